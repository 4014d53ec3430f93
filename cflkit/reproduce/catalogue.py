"""Lists of the records that exist, and the comparison of two records."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from cflkit import _project
from cflkit._project import git
from cflkit.reproduce import ledger, papers, records
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import Record


def named(run: str) -> Record:
    """Read the record of this name, or the only one whose name begins or ends so.

    The path of its folder, which a run prints, is a name, too.

    Raises
    ------
    ParameterError
        There is no such record, or there are several.
    """
    run = Path(run).name
    folder = records.folder(run)
    if folder is not None:
        return records.read(folder)
    found = [
        name for name in records.names() if run and (name.startswith(run) or name.endswith(run))
    ]
    if not found:
        raise ParameterError(f"no record {run!r}; `python -m cflkit records` lists all records")
    if len(found) > 1:
        more = ", …" if len(found) > 3 else ""
        raise ParameterError(
            f"{len(found)} records are called {run!r}: {', '.join(found[:3])}{more}"
        )
    return named(found[0])


def listing(found: list[Record]) -> pd.DataFrame:
    """List records in a table, one row per record.

    Returns
    -------
    DataFrame
        ``record`` (its id), ``paper``, ``scale`` (``paper`` or ``reduced``; empty for an experiment
        that belongs to no table), ``seed``, ``minutes``, ``code`` (how many commits have changed
        the package since) and ``stale`` (whether other code than the present one made it).
    """
    return pd.DataFrame(
        {
            "record": record.id,
            "paper": record.paper,
            "scale": scale_of(record),
            "seed": record.parameters.get("seed", ""),
            "minutes": record.provenance.get("minutes", ""),
            "code": age(record),
            "stale": "stale" if is_stale(record) else "",
        }
        for record in found
    )


def scale_of(record: Record) -> str:
    """Return the scale at which some paper's tables count a record; empty if none does."""
    scales = (ledger.scale(record, paper) for paper in papers.PAPERS)
    return next((scale for scale in scales if scale is not None), "")


def is_stale(record: Record) -> bool:
    """Return whether other code than the present one made a record, or the record cannot tell."""
    return bool(record.provenance["code"] != _project.DIGEST)


def age(record: Record) -> str:
    """Return the age of a record's code: how many commits have changed the package since then."""
    since = commits_since(record.provenance.get("git_revision"))
    return "of an unknown revision" if since is None else f"{since} commits ago"


@cache
def commits_since(commit: str | None) -> int | None:
    """Count the commits since ``commit`` that changed the package; None if git does not know it."""
    counted = commit and git("rev-list", "--count", f"{commit}..HEAD", "--", "cflkit")
    return int(counted) if counted else None


def side_by_side(found: list[Record]) -> str:
    """Return the parameters and the measures of one or two records as text.

    For two records, only the parameters in which they differ are listed. The measures are those of
    the summaries, in one line per method and measure. For one record, there is also the command
    that makes it again.
    """
    lines = [f"{number}: {record.id}" for number, record in enumerate(found, 1)]
    paper = papers.by_folder(found[0].paper)
    if len(found) == 1 and paper is not None:
        lines += ["", ledger.command(found[0], paper.name), ""]
    parameters = pd.DataFrame([record.parameters for record in found]).T.astype(object)
    if len(found) == 2:
        differ = parameters[parameters[0].astype(str) != parameters[1].astype(str)]
        lines += ["", "parameters in which they differ" if len(differ) else "equal parameters"]
        parameters = differ
    if len(parameters):
        parameters.columns = range(1, len(found) + 1)
        lines += [parameters.to_string()]
    measures = {
        number: {
            (method, measure): value
            for method, values in record.summary.items()
            for measure, value in values.items()
        }
        for number, record in enumerate(found, 1)
    }
    table = pd.DataFrame(measures)
    lines += ["", table.to_string(float_format=lambda value: f"{value:.4g}", na_rep="–")]
    return "\n".join(lines)
