"""Records and the ledger as readers see them in a terminal."""

from __future__ import annotations

from functools import cache
from statistics import mean
from textwrap import shorten

import pandas as pd

from cflkit import _project
from cflkit._project import git
from cflkit.reproduce import grid, ledger
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.records import Record, folder, readable


def grids() -> pd.DataFrame:
    """List the tables that a grid runs: what each is, its runs, and what those that are done took.

    ``minutes`` is the mean of the runs that are done.
    """
    rows = []
    for name in grid.tables():
        jobs = grid.jobs_of(name)
        folders = [place for job in jobs if (place := folder(job.run)) is not None]
        costs = [record.provenance for record in readable(folders)]
        minutes = [cost["minutes"] for cost in costs]
        rows.append(
            {
                "table": name,
                "runs": len(jobs),
                "done": len(costs),
                "minutes": round(mean(minutes), 1) if minutes else None,
                "computed on": ", ".join(sorted({cost["device"] for cost in costs})) or "–",
                "what it is": grid.about(name),
            }
        )
    return pd.DataFrame(rows)


def for_a_terminal(table: pd.DataFrame) -> pd.DataFrame:
    """Shorten the texts of a table, align them to the left, and show what is missing as a dash."""
    texts = table.select_dtypes(exclude="number").map(lambda text: shorten(text, 90))
    padded = {name: own.str.ljust(own.str.len().max()) for name, own in texts.items()}
    return table.assign(**padded).astype(object).where(table.notna(), "–")


def listing(found: list[Record]) -> pd.DataFrame:
    """List records in a table: id, paper, scale, seed, minutes, and the age of their code.

    ``scale`` is that at which some paper's tables count the record. ``code`` says how many commits
    have changed the package since. ``stale`` says that what computes was other code when the record
    was made, or that the record cannot tell.
    """
    return pd.DataFrame(
        {
            "record": record.id,
            "paper": record.paper,
            "scale": next(filter(None, (ledger.scale(record, paper) for paper in PAPERS)), ""),
            "seed": record.parameters["seed"],
            "minutes": record.provenance["minutes"],
            "code": age(record.provenance["git_revision"]),
            "stale": "" if is_of_this_code(record) else "stale",
        }
        for record in found
    )


def is_of_this_code(record: Record) -> bool:
    """Return whether a record was made by what computes now, see `_project.digest_of_code`."""
    modules = record.provenance.get("modules") or []
    return bool(modules) and record.provenance["code"] == _project.digest_of_code(*modules)


@cache
def age(commit: str | None) -> str:
    """Return the age of a record's code: how many commits have changed the package since then."""
    counted = ("rev-list", "--count", "--end-of-options", f"{commit}..HEAD", "--", "cflkit")
    since = commit and git(*counted)
    return f"{since} commits ago" if since else "of an unknown revision"


def side_by_side(found: list[Record]) -> str:
    """Return the parameters and the measures of one or two records as text.

    For two records, only the parameters in which they differ are listed. The measures are those of
    the summaries, in one line per method and measure.
    """
    numbered = dict(enumerate(found, 1))
    lines = [*(f"{n}: {record.id}" for n, record in numbered.items()), ""]
    values = {n: record.parameters for n, record in numbered.items()}
    parameters = pd.DataFrame(values, dtype=object)
    if len(found) == 2:
        parameters = parameters[parameters[1].astype(str) != parameters[2].astype(str)]
        lines.append("parameters in which they differ" if len(parameters) else "equal parameters")
    if len(parameters):
        lines.append(parameters.to_string())
    measures = {
        n: {(m, name): v for m, own in record.summary.items() for name, v in own.items()}
        for n, record in numbered.items()
    }
    shown = pd.DataFrame(measures).to_string(float_format=lambda v: f"{v:.4g}", na_rep="–")
    return "\n".join([*lines, "", shown])


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Format a ledger for readers, with our numbers as ``mean ± half width [low, high]``."""
    names = [name for name in ledger.cell_columns() if table[name].notna().any()]
    shown = table[names].astype(object).where(table[names].notna(), "")
    shown["published"] = ["–" if pd.isna(value) else f"{value:g}" for value in table["value"]]
    for title, prefix in (("paper's scale", ""), ("reduced scale", "reduced_")):
        own = table[[prefix + name for name in (*ledger.OURS, "status")]]
        shown[title] = [as_text(*values) for values in own.itertuples(index=False)]
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
    parts = [] if pd.isna(mean) else [f"{mean:.2f}{width} [{low:.2f}, {high:.2f}]"]
    parts += [f"never in {never}"] if never else []
    return f"{', '.join(parts)} n={seeds} {status}"
