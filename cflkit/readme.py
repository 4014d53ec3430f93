"""The README's tables, made from committed notebooks and records.

Each table is between two markers. The text around the markers is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cflkit import grid, ledger, notebooks, records
from cflkit.papers import PAPERS
from cflkit.papers.base import Results, Runs
from cflkit.parameters import ParameterError
from cflkit.records import PROJECT, Record
from cflkit.revision import CHECKOUT

README = PROJECT / "README.md"
# The line in a notebook's first cell that states the minutes
MINUTES = re.compile(r"(\*\*Minutes on two cores:\*\*) ([\d.]+)")


def write() -> list[Path]:
    """Write the ledger of the records that git tracks, and the README's tables.

    Returns
    -------
    list of Path
        The files written.
    """
    if CHECKOUT is None:
        raise ParameterError("the README is written in a clone of the project")
    committed = records.committed()
    table = ledger.ledger(committed)
    ledger.write(table, ledger.LEDGER)
    text = README.read_text(encoding="utf-8")
    README.write_text(filled(text, committed, table), encoding="utf-8")
    return [ledger.LEDGER, README]


def filled(text: str, committed: Sequence[Record], table: pd.DataFrame) -> str:
    """Put the tables between their markers.

    Parameters
    ----------
    text : str
        The text of the README.
    committed : sequence of Record
        The records that git tracks.
    table : DataFrame
        The ledger of these records.

    Raises
    ------
    ValueError
        The markers of a table are missing.
    """
    parts = {"notebooks": notebook_table(), "ledger": headline(table)}
    for paper in PAPERS.values():
        if paper.results is not None:
            parts[paper.results.marker] = results_table(paper.name, paper.results, committed)
    for name, part in parts.items():
        marker, end = f"<!-- {name}: written by python -m cflkit readme -->\n", "\n<!-- end -->"
        before, found, rest = text.partition(marker)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"README.md has no place for {name} between {marker.strip()} and{end}")
        text = before + marker + part + end + after
    return text


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Build a table in Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def notebook_table() -> str:
    """Build the table of notebooks, each with its title and its minutes."""
    rows = []
    for path in sorted(grid.NOTEBOOKS.glob("[0-9]*.ipynb")):
        cells = notebooks.read(path)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        title = re.search(r"^# (.+)$", text, re.M)
        minutes = MINUTES.search(text)
        if title is None or (minutes is None and any(c["cell_type"] == "code" for c in cells)):
            raise ValueError(f"{path.name} does not state its title and its minutes")
        link = f"[{path.stem}](notebooks/{path.name})"
        rows.append((link, title.group(1), "" if minutes is None else minutes.group(2)))
    return markdown(("notebook", "what it shows", "minutes"), rows)


def results_table(paper: str, results: Results, committed: Sequence[Record]) -> str:
    """Build the table of a paper's runs, one row per scale and scenario, sorted by these."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in committed:
        scale = ledger.scale(record, paper)
        if scale in results.scales:
            scenario = ledger.scenario_of(record, paper)
            # None cannot be compared with other values, and is sorted first
            key = tuple((value is not None, value) for value in (scale, *scenario))
            found.setdefault(key, []).append(record)
    runs = [Runs(key[0][1], found[key]) for key in sorted(found)]
    rows = [[column.cell(row) for column in results.columns] for row in runs]
    return markdown([column.head for column in results.columns], rows)


def headline(table: pd.DataFrame) -> str:
    """Build the table of how many of the papers' numbers committed runs have reproduced."""
    counts = ledger.counts(table)
    whole = ["run", *ledger.ANSWERS, "distinct", "distinct reproduced"]
    numbers = counts[list(ledger.STATUS)].sum(axis=1)
    rows = [
        (
            ", ".join(names),
            scale,
            numbers[scale, *names],
            *(f"{row[name]:.0f}" for name in whole),
            "–" if pd.isna(row["placebo"]) else f"{row['placebo']:.0%}",
        )
        for (scale, *names), row in counts[counts["run"] > 0].iterrows()
    ]
    without = counts[counts["run"].eq(0)].index.get_level_values("scale").value_counts()
    rows += [(f"{count} others", scale, "", 0, *[""] * 8) for scale, count in without.items()]
    # At the reduced scale, nothing is reproduced
    heads = [name.replace("reproduced", "reproduced or agrees") for name in whole]
    return markdown(("paper, table", "scale", "numbers", *heads, "placebo"), rows)
