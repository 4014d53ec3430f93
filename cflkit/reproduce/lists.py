"""Grids, records and the ledger as readers see them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from cflkit import _project
from cflkit.reproduce import grid, records
from cflkit.reproduce.records import Record
from cflkit.reproduce.terminal import Row, fitted

if TYPE_CHECKING:
    import pandas as pd


def grids() -> list[Row]:
    """List the tables that a grid runs: what each is, its runs, and what those that are done took.

    ``minutes`` is the mean of the runs that are done.
    """
    rows: list[Row] = []
    for name in grid.tables():
        jobs = grid.jobs_of(name)
        folders = [folder for job in jobs if (folder := records.folder(job.run)) is not None]
        costs = [record.provenance for record in records.read_all(folders)]
        rows.append(
            {
                "table": name,
                "runs": len(jobs),
                "done": len(costs),
                "minutes": round(mean(cost["minutes"] for cost in costs), 1) if costs else None,
                "computed on": ", ".join(sorted({cost["device"] for cost in costs})) or None,
                "what it is": grid.about(name),
            }
        )
    return rows


def listing(chosen: Sequence[Record]) -> list[Row]:
    """List records: id, paper, scale, seed, minutes, and whether their code has changed.

    ``scale`` is that at which some paper's tables count the record. ``stale`` is the answer of
    `staleness`.
    """
    from cflkit.reproduce import ledger  # needs pandas, which lists of grids do not
    from cflkit.reproduce.papers import PAPERS

    return [
        {
            "record": record.id,
            "paper": record.paper,
            "scale": next(filter(None, (ledger.scale(record, paper) for paper in PAPERS)), ""),
            "seed": record.parameters["seed"],
            "minutes": record.provenance["minutes"],
            "stale": staleness(record),
        }
        for record in chosen
    ]


def staleness(record: Record) -> str:
    """Say ``stale`` of a record if what computes was other code when it was made.

    Old records do not say which code it was (``unknown``). Of others, the text is empty.
    """
    modules = record.provenance.get("modules")
    if not modules:
        return "unknown"
    return "" if record.provenance["code"] == _project.digest_of_code(*modules) else "stale"


def side_by_side(chosen: Sequence[Record]) -> str:
    """Return the parameters and the measures of one or two records as text.

    For two records, only the parameters in which they differ are listed. The measures are those of
    the summaries, in one line per method and measure.
    """
    numbered = {str(number): record for number, record in enumerate(chosen, 1)}
    names = dict.fromkeys(name for record in chosen for name in record.parameters)
    parameters = [
        {"parameter": name} | {n: record.parameters.get(name) for n, record in numbered.items()}
        for name in names
    ]
    lines = [*(f"{number}: {record.id}" for number, record in numbered.items()), ""]
    if len(chosen) == 2:
        parameters = [row for row in parameters if row["1"] != row["2"]]
        lines.append("parameters in which they differ" if parameters else "equal parameters")
    every = [
        (m, n) for record in chosen for m, of_method in record.summary.items() for n in of_method
    ]
    measures = [
        {"method": method, "measure": name}
        | {n: record.value(method, name) for n, record in numbered.items()}
        for method, name in dict.fromkeys(every)
    ]
    return "\n".join([*lines, fitted(parameters), "", fitted(measures, 2)])


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Format a ledger for readers, with our numbers as ``mean ± half width [low, high]``."""
    import pandas as pd

    from cflkit.reproduce import ledger

    names = [name for name in ledger.cell_columns() if table[name].notna().any()]
    shown = table[names].astype(object).where(table[names].notna(), "")
    shown["published"] = ["–" if pd.isna(value) else f"{value:g}" for value in table["value"]]
    for title, prefix in (("paper's scale", ""), ("reduced scale", "reduced_")):
        numbers = table[[prefix + name for name in (*ledger.OURS, "status")]]
        shown[title] = [as_text(*values) for values in numbers.itertuples(index=False)]
        meant = table[f"{prefix}intended"]
        shown[f"as meant, {title}"] = ["" if pd.isna(value) else f"{value:.2f}" for value in meant]
    return shown


def as_text(
    mean: float, half: float, low: float, high: float, seeds: int, never: int, status: str
) -> str:
    """Format our numbers of a published cell at one scale."""
    if not seeds:
        return status
    # Equal values of all seeds have no interval: half of other runs might still miss them
    width = f" ± {half:.2f}" if half > 0 else ""
    parts = [f"{mean:.2f}{width} [{low:.2f}, {high:.2f}]"] if mean == mean else []
    parts += [f"never in {never}"] if never else []
    return f"{', '.join(parts)} n={seeds} {status}"
