"""What records there are: a list for the eye, and two of them side by side."""

from __future__ import annotations

from functools import cache

import pandas as pd

from cflkit import ledger, papers, records, revision
from cflkit.parameters import ParameterError
from cflkit.records import Record
from cflkit.revision import git


def named(run: str) -> Record:
    """Read the record of this name.

    Raises
    ------
    ParameterError
        There is none.
    """
    folder = records.folder(run)
    if folder is None:
        raise ParameterError(f"no record {run!r}; `python -m cflkit records` lists those there are")
    return records.read(folder)


def listing(found: list[Record]) -> pd.DataFrame:
    """List records: one row per record.

    Returns
    -------
    DataFrame
        ``record`` (its id), ``paper``, ``scale`` (``paper`` or ``reduced``; empty for an experiment
        that no table has), ``seed``, ``minutes``, ``code`` (how many commits have changed the
        package since) and ``stale`` (whether its code is another than this).
    """
    return pd.DataFrame(
        {
            "record": record.id,
            "paper": record.paper or "",
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
    """Return whether a record was made by other code than this, as far as it says."""
    known = record.provenance.get("code")
    if known is not None:
        return bool(known != revision.DIGEST)
    return record.provenance.get("git_clean") is not True or bool(
        commits_since(record.provenance.get("git_revision"))
    )


def age(record: Record) -> str:
    """Return how old a record's code is, in commits that have changed the package since."""
    since = commits_since(record.provenance.get("git_revision"))
    return "of an unknown revision" if since is None else f"{since} commits ago"


@cache
def commits_since(commit: str | None) -> int | None:
    """Return how many commits have changed the package since one; None if git does not know it."""
    counted = commit and git("rev-list", "--count", f"{commit}..HEAD", "--", "cflkit")
    return int(counted) if counted else None


def side_by_side(found: list[Record]) -> str:
    """Return the measures of one or two records as text.

    Of two records first the parameters in which they differ. Measures are those of the summary, one
    line per method and measure.
    """
    lines = [f"{number}: {record.id}" for number, record in enumerate(found, 1)]
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
