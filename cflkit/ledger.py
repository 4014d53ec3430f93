"""Every published number beside ours.

The papers' tables lie under ``data/published``, one row per cell; the ledger joins them with the
run records. Runs at a paper's own scale and at a reduced one are kept apart: what a small network
finds in a corner of the data is no reproduction of a table, however near the numbers are.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cflkit import grid, notebooks, records
from cflkit.papers import PAPERS
from cflkit.papers.base import AS_PUBLISHED, SCORES, Protocol
from cflkit.records import PROJECT, Record

PUBLISHED = PROJECT / "data" / "published"
# Of the committed records; `readme` writes it
LEDGER = PROJECT / "data" / "ledger.csv"
STATUS = ("reproduced", "close", "not reproduced", "not run")
# Half a unit of the digits printed
ROUNDING = 0.005

# Of what no record holds: hours, distances between parameters, ranks over many runs
UNRECORDED = Protocol(lambda rounds: None, SCORES)


def scenario_columns() -> dict[str, type]:
    """The columns that tell the scenarios of any paper apart, and what they hold."""
    return {name: kind for paper in PAPERS.values() for name, kind in paper.scenario.items()}


def cell_columns() -> list[str]:
    """The columns that together name a published number."""
    return ["paper", "table", *scenario_columns(), "method", "measure"]


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Make whole numbers of the scenarios' whole numbers, also where a table has none."""
    whole = [name for name, kind in scenario_columns().items() if kind is int and name in table]
    return table.astype(dict.fromkeys(whole, "Int64"))


def published() -> pd.DataFrame:
    """The cells of all tables under ``data/published``, dashes that say nothing left out."""
    files = sorted(PUBLISHED.glob("*_table-*.csv"))
    texts = {"table": str, "protocol": str}
    cells = pd.concat([pd.read_csv(f, dtype=texts) for f in files], ignore_index=True)
    return counted(cells[cells["value"].notna() | cells["dash"].notna()].reset_index(drop=True))


def status(value: float, ours: Iterable[float], within: tuple[float, float] = SCORES) -> str:
    """One of `STATUS` for a published value and ours, one value per seed.

    Reproduced: the value lies in the interval of ours (smallest to largest; three seeds carry no
    finer one) up to the rounding of print, or within the first bound of their mean. Close: within
    the second. A value or a run that is NaN stayed one cluster, and only agrees with another.
    """
    runs = np.array(list(ours), dtype=float)
    if not len(runs):
        return "not run"
    if np.isnan(value) or np.isnan(runs).any():
        return "reproduced" if np.isnan(value) and np.isnan(runs).all() else "not reproduced"
    distance = abs(runs.mean() - value)
    inside = runs.min() - ROUNDING <= value <= runs.max() + ROUNDING
    # The bounds themselves belong to what they bound, whatever binary fractions make of them
    if inside or distance <= within[0] + 1e-9:
        return "reproduced"
    return "close" if distance <= within[1] + 1e-9 else "not reproduced"


def scale(record: Record, paper: str) -> str | None:
    """``paper`` or ``reduced``, as the parameters are those of the one or the other file.

    None for all other parameters (`Paper.free` ones apart): such a run is an experiment of its own,
    and no table's. None, too, for a run of another paper's methods.
    """
    known = PAPERS[paper]
    if record.paper != known.folder:
        return None
    for name in ("paper", "reduced"):
        full = scale_parameters(paper, name, scenario_of(record, paper))
        if full is not None and all(
            record.parameters.get(k) == full[k] for k in full if k not in known.free
        ):
            return name
    return None


def scenario_of(record: Record, paper: str) -> tuple[Any, ...]:
    """The scenario of a run, in the order of `Paper.scenario`."""
    return tuple(record.parameters.get(name) for name in PAPERS[paper].scenario)


def reduction(paper: str, scenario: tuple[Any, ...]) -> str:
    """What the reduced scale has otherwise than the paper's, as ``"name value"``s."""
    full, less = (scale_parameters(paper, name, scenario) or {} for name in ("paper", "reduced"))
    free = PAPERS[paper].free
    return ", ".join(f"{n} {less[n]}" for n in less if n not in free and less[n] != full.get(n))


@cache
def scale_parameters(paper: str, scale: str, scenario: tuple[Any, ...]) -> dict[str, Any] | None:
    """All parameters of a scenario at one of the two scales, if there is a file of it."""
    known = PAPERS[paper]
    named = dict(zip(known.scenario, scenario, strict=True))
    path = grid.PARAMS / known.folder / scale / known.file.format(**named)
    if not path.exists():
        return None
    return defaults(known.notebook) | notebooks.read_yaml(path) | named


@cache
def defaults(notebook: str) -> dict[str, Any]:
    """The parameters of a notebook as committed."""
    return notebooks.defaults(notebooks.read(grid.NOTEBOOKS / f"{notebook}.ipynb"))


def command(record: Record, paper: str) -> str:
    """The command that makes a record again."""
    notebook = PAPERS[paper].notebook
    usual = defaults(notebook)
    given = [
        ("-p", name, value if isinstance(value, str) else json.dumps(value))
        for name, value in record.parameters.items()
        if name in usual and usual[name] != value
    ]
    words = ["python", "-m", "cflkit", "run", f"notebooks/{notebook}.ipynb"]
    return shlex.join([*words, *itertools.chain.from_iterable(given)])


def ledger(runs: list[Record] | None = None) -> pd.DataFrame:
    """The published cells, each beside our runs of the scenario.

    Parameters
    ----------
    runs : list of Record, optional
        By default all of `records.find`.

    Returns
    -------
    DataFrame
        The columns of `published`, then for runs at the paper's scale those of `compare_cell`; and
        the same with the prefix ``reduced_`` for runs at the reduced scale, of which
        ``reduced_scale`` says what differs.
    """
    cells = published()
    grouped: dict[tuple[Any, ...], dict[tuple[Any, ...], Record]] = {}
    for run in records.find() if runs is None else runs:
        seeds = run.parameters.get("seed"), run.parameters.get("partition_seed")
        for paper in cells["paper"].unique():
            if (of := scale(run, paper)) is not None:
                # A seed counts once
                key = paper, scenario_of(run, paper), of
                grouped.setdefault(key, {}).setdefault(seeds, run)
    rows = []
    for cell in cells.to_dict("records"):
        paper = cell["paper"]
        scenario = tuple(
            None if pd.isna(cell[name]) else cell[name] for name in PAPERS[paper].scenario
        )
        full, less = (
            list(grouped.get((paper, scenario, name), {}).values()) for name in ("paper", "reduced")
        )
        reduced = {f"reduced_{name}": value for name, value in compare_cell(cell, less).items()}
        differs = reduction(paper, scenario) if less else ""
        rows.append(cell | compare_cell(cell, full) | reduced | {"reduced_scale": differs})
    return counted(pd.DataFrame(rows))


def compare_cell(cell: dict, runs: list[Record]) -> dict[str, object]:
    """One published cell against the runs of one scale.

    Returns
    -------
    dict of str to object
        ``ours``, ``low`` and ``high`` (mean, smallest and largest over seeds of the method as the
        paper's code has it; of a round, over the seeds that have one), ``seeds``, ``never`` (in how
        many of them all clients stayed one cluster), ``status``, ``intended`` (the mean of the
        method as meant, where that is another) and ``runs`` (their ids).
    """
    paper = PAPERS[cell["paper"]]
    protocol = paper.protocols.get(cell["protocol"], UNRECORDED)
    runs = [] if protocol is UNRECORDED else runs
    name = paper.methods.get(cell["method"], "")
    rows = [method for run in runs if len(method := rows_as_published(run, name))]
    ours = np.array([protocol.value(method) for method in rows], dtype=float)
    # Against print, one cluster from first to last is a dash; a table's score of 0 has several
    against_print = ours
    if protocol.dash_is_one_cluster:
        whole = np.array([(method["n_clusters"] == 1).all() for method in rows], dtype=bool)
        against_print = np.where(whole, np.nan, ours)
    some = ours[~np.isnan(ours)]
    as_meant = [run.rounds[run.rounds["method"] == name] for run in runs]
    slipped = any((run.rounds["method"] == name + AS_PUBLISHED).any() for run in runs)
    meant = [protocol.value(method) for method in as_meant if len(method)] if slipped else []
    return {
        "ours": some.mean() if len(some) else np.nan,
        "low": some.min() if len(some) else np.nan,
        "high": some.max() if len(some) else np.nan,
        "seeds": len(rows),
        "never": int(np.isnan(against_print).sum()),
        "status": status(cell["value"], against_print, protocol.within),
        "intended": pd.Series(meant, dtype=float).mean(),
        "runs": " ".join(run.id for run in runs) if rows else "",
    }


def rows_as_published(run: Record, name: str) -> pd.DataFrame:
    """A method's rows in a run; of the method as published, where the run has both."""
    twin = run.rounds[run.rounds["method"] == name + AS_PUBLISHED]
    return twin if len(twin) else run.rounds[run.rounds["method"] == name]


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Cells of each table by status, at the paper's scale and at a reduced one."""
    scales = {"paper's": "status", "reduced": "reduced_status"}
    return pd.concat(
        {
            name: table.groupby(["paper", "table"])[column]
            .value_counts()
            .unstack(fill_value=0)
            .reindex(columns=STATUS, fill_value=0)
            for name, column in scales.items()
        },
        names=["scale"],
    )


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """A ledger for the eye: texts, a number as ``mean [low, high]`` with its seeds and status."""
    scales = {"paper's scale": "", "reduced scale": "reduced_"}

    def ours(row: pd.Series, prefix: str) -> str:
        if row[f"{prefix}status"] == "not run":
            return "not run"
        mean, low, high, seeds, never = (
            row[f"{prefix}{name}"] for name in ("ours", "low", "high", "seeds", "never")
        )
        number = [] if pd.isna(mean) else [f"{mean:.2f} [{low:.2f}, {high:.2f}]"]
        absent = [f"never in {never}"] if never else []
        return f"{', '.join(number + absent)} n={seeds} {row[f'{prefix}status']}"

    return pd.DataFrame(
        {
            **{
                name: table[name].astype(object).where(table[name].notna(), "")
                for name in cell_columns()
                if table[name].notna().any()
            },
            "published": ["–" if pd.isna(v) else f"{v:g}" for v in table["value"]],
            **{
                name: [ours(row, prefix) for _, row in table.iterrows()]
                for name, prefix in scales.items()
            },
            **{
                f"as meant, {name}": [
                    "" if pd.isna(v) else f"{v:.2f}" for v in table[f"{prefix}intended"]
                ]
                for name, prefix in scales.items()
            },
        }
    )


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write the ledger as CSV, numbers to four digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.4g")
    return path
