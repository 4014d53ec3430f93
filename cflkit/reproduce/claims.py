"""Claims: what a lesson says happened, evaluated by the lesson itself.

A lesson states its outcomes in one cell tagged ``claims``. Each claim is a sentence with a truth
value that the cell computes. The cell prints the claims, and its output keeps them for `robust`,
which runs the lesson with other seeds, on the other engine and with the last bit perturbed. How
often each claim held is written into ``data/robustness.csv``, and the cell prints that, too.
"""

import html
from collections.abc import Iterable, Mapping
from typing import Any

from cflkit._project import KIT
from cflkit.reproduce import records
from cflkit.reproduce.records import Record

TABLE = KIT / "data" / "robustness.csv"
# The type under which a cell's output keeps its claims; frontends show the text beside it
MIME = "application/vnd.cflkit.claims+json"
# How a lesson is run to see whether its claims hold, and how to say so
SETTINGS = {
    "default": "seeds",
    "threads": "with the threads engine",
    "stacked": "with the stacked engine",
    "perturbed": "with the last bit perturbed",
}


def check(notebook: str, claims: Mapping[str, bool], record: Record | None = None) -> None:
    """Print each claim, whether it is true in this run, and how often it held in other runs.

    Parameters
    ----------
    notebook : str
        The name of the lesson, as ``03_ocfl_temperature``.
    claims : mapping of str to bool
        The truth of each claim in this run, by the claim's sentence.
    record : Record, optional
        The record of this run, which the claims are written into.
    """
    from IPython.display import display

    truth = {claim: bool(holds) for claim, holds in claims.items()}
    display(shown(notebook, truth), raw=True)
    if record is not None:
        records.add_claims(record, truth)


def shown(notebook: str, truth: Mapping[str, bool]) -> dict[str, Any]:
    """Return what a notebook shows of its claims, by the type of the contents.

    The page has one line, which opens; text has all lines.
    """
    rows = {(r["claim"], r["setting"]): r for r in counts() if r["notebook"] == notebook}
    lines, items = [], []
    for claim, holds in truth.items():
        counted_rows = [rows[claim, setting] for setting in SETTINGS if (claim, setting) in rows]
        times_held = [f"held in {counted(row)}" for row in counted_rows] or ["not counted yet"]
        lines += [
            f"{'true ' if holds else 'FALSE'}  {claim}",
            *(f"       {text}" for text in times_held),
        ]
        times = ", ".join(times_held).replace(", held in", ",")
        items.append(f"<li>{holds}: {html.escape(claim)} ({times})</li>")
    usual = [rows[claim, "default"] for claim in truth if (claim, "default") in rows]
    held = sum(int(row["held"]) == int(row["runs"]) for row in usual)
    every = f"{held} of {len(usual)} that were counted held with every seed"
    head = f"{sum(truth.values())} of {len(truth)} claims are true in this run; "
    head += every if usual else "not counted yet"
    page = f"<details><summary>{head}</summary><ul>{''.join(items)}</ul></details>"
    # As pairs, since notebooks are written with the names of a mapping in alphabetical order
    return {MIME: list(truth.items()), "text/plain": "\n".join(lines), "text/html": page}


def counted(row: Mapping[str, Any]) -> str:
    """Return in how many runs a claim held, and the parameters in which those runs differed."""
    differing = f" ({row['given'].replace('=', ' = ')})" if row["given"] else ""
    return f"{row['held']} of {row['runs']} {SETTINGS[row['setting']]}{differing}"


def of_cells(cells: Iterable[Any]) -> dict[str, bool]:
    """Return the claims that executed cells have in their outputs."""
    outputs = (output for cell in cells for output in cell.get("outputs", ()))
    return dict(pair for output in outputs for pair in output.get("data", {}).get(MIME, ()))


def counts() -> list[dict[str, Any]]:
    """Return the rows of ``data/robustness.csv``: one per notebook, setting and claim."""
    import pandas as pd

    return pd.read_csv(TABLE, **records.TEXTS).to_dict("records") if TABLE.exists() else []
