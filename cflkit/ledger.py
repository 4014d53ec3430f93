"""The ledger, which compares every published number with ours.

The papers' tables are in ``data/published``, one row per cell. The ledger joins them with the run
records. It keeps runs at a paper's own scale and runs at a reduced scale apart: a small network on
a part of the data does not reproduce a table, however close the numbers are.
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
# The ledger of the committed records, which `readme` writes
LEDGER = PROJECT / "data" / "ledger.csv"
STATUS = ("reproduced", "close", "not reproduced", "not run")
# Half a unit of the last digit that the papers print
ROUNDING = 0.005

# The protocol of numbers that no record has: hours, distances between parameters, ranks over many
# runs
UNRECORDED = Protocol(lambda rounds: None, SCORES)


def scenario_columns() -> dict[str, type]:
    """Return the columns that identify the scenarios of all papers, and their types."""
    return {name: kind for paper in PAPERS.values() for name, kind in paper.scenario.items()}


def cell_columns() -> list[str]:
    """Return the columns that together identify a published number."""
    return ["paper", "table", *scenario_columns(), "method", "measure"]


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Convert the scenarios' whole numbers to integers, also in columns with missing values."""
    whole = [name for name, kind in scenario_columns().items() if kind is int and name in table]
    return table.astype(dict.fromkeys(whole, "Int64"))


def published() -> pd.DataFrame:
    """Read the cells of all tables in ``data/published``, except dashes without a meaning."""
    files = sorted(PUBLISHED.glob("*_table-*.csv"))
    texts = {"table": str, "protocol": str}
    cells = pd.concat([pd.read_csv(f, dtype=texts) for f in files], ignore_index=True)
    return counted(cells[cells["value"].notna() | cells["dash"].notna()].reset_index(drop=True))


def status(value: float, ours: Iterable[float], within: tuple[float, float] = SCORES) -> str:
    """Compare a published value with ours, one value per seed; return one of `STATUS`.

    A value is reproduced if it lies between our smallest and our largest value, up to the rounding
    in print. It is also reproduced if its distance from our mean is within the first bound. Three
    seeds allow no finer interval. A value is close if this distance is within the second bound. NaN
    means that all clients stayed one cluster; it agrees only with another NaN.
    """
    runs = np.array(list(ours), dtype=float)
    if not len(runs):
        return "not run"
    if np.isnan(value) or np.isnan(runs).any():
        return "reproduced" if np.isnan(value) and np.isnan(runs).all() else "not reproduced"
    distance = abs(runs.mean() - value)
    inside = runs.min() - ROUNDING <= value <= runs.max() + ROUNDING
    # A distance equal to a bound must count as within it, despite the rounding of binary fractions
    if inside or distance <= within[0] + 1e-9:
        return "reproduced"
    return "close" if distance <= within[1] + 1e-9 else "not reproduced"


def scale(record: Record, paper: str) -> str | None:
    """Return the scale of a record, ``paper`` or ``reduced``, by comparison with parameter files.

    Parameters in `Paper.free` are not compared. If the parameters match neither file, the run
    belongs to no table, and the result is None. It is also None for a run of another paper.
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
    """Return the scenario of a run in the order of `Paper.scenario`."""
    return tuple(record.parameters.get(name) for name in PAPERS[paper].scenario)


def reduction(paper: str, scenario: tuple[Any, ...]) -> str:
    """List how the reduced scale differs from the paper's, as ``"name value, name value"``."""
    full, less = (scale_parameters(paper, name, scenario) or {} for name in ("paper", "reduced"))
    free = PAPERS[paper].free
    return ", ".join(f"{n} {less[n]}" for n in less if n not in free and less[n] != full.get(n))


@cache
def scale_parameters(paper: str, scale: str, scenario: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return all parameters of a scenario at one of the two scales, or None if it has no file."""
    known = PAPERS[paper]
    named = dict(zip(known.scenario, scenario, strict=True))
    path = grid.PARAMS / known.folder / scale / known.file.format(**named)
    if not path.exists():
        return None
    return defaults(known.notebook) | notebooks.read_yaml(path) | named


@cache
def defaults(notebook: str) -> dict[str, Any]:
    """Read the parameters of a committed notebook."""
    return notebooks.defaults(notebooks.read(grid.NOTEBOOKS / f"{notebook}.ipynb"))


def command(record: Record, paper: str) -> str:
    """Build the command that makes a record again."""
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
    """Join the published cells with our runs of their scenarios.

    Parameters
    ----------
    runs : list of Record, optional
        The records to join; by default all of `records.find`.

    Returns
    -------
    DataFrame
        The columns of `published`, then those of `compare_cell` for runs at the paper's scale. The
        same columns with the prefix ``reduced_`` are for runs at the reduced scale;
        ``reduced_scale`` says how it differs.
    """
    cells = published()
    grouped: dict[tuple[Any, ...], dict[tuple[Any, ...], Record]] = {}
    for run in records.find() if runs is None else runs:
        seeds = run.parameters.get("seed"), run.parameters.get("partition_seed")
        for paper in cells["paper"].unique():
            if (of := scale(run, paper)) is not None:
                # Several records of one seed count once
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
    """Compare one published cell with the runs of one scale.

    Returns
    -------
    dict of str to object
        The columns of the ledger:

        - ``ours``, ``low`` and ``high``: the mean, smallest and largest value over seeds, of the
          method as in the paper's code. Seeds without a value, such as a clustering round, are left
          out.
        - ``seeds``: the number of seeds.
        - ``never``: the number of seeds with which all clients stayed one cluster.
        - ``status``: one of `STATUS`.
        - ``intended``: the mean of the method as intended, where it differs from the code.
        - ``runs``: the ids of the records.
    """
    paper = PAPERS[cell["paper"]]
    protocol = paper.protocols.get(cell["protocol"], UNRECORDED)
    runs = [] if protocol is UNRECORDED else runs
    name = paper.methods.get(cell["method"], "")
    rows = [method for run in runs if len(method := rows_as_published(run, name))]
    ours = np.array([protocol.value(method) for method in rows], dtype=float)
    # A printed dash stands for a run that stayed one cluster in all rounds; a printed 0 does not
    against_print = ours
    if protocol.dash_is_one_cluster:
        whole = np.array([(method["n_clusters"] == 1).all() for method in rows], dtype=bool)
        against_print = np.where(whole, np.nan, ours)
    some = ours[~np.isnan(ours)]
    own_rows = [run.rounds[run.rounds["method"] == name] for run in runs]
    has_twin = any((run.rounds["method"] == name + AS_PUBLISHED).any() for run in runs)
    intended = [protocol.value(own) for own in own_rows if len(own)] if has_twin else []
    return {
        "ours": some.mean() if len(some) else np.nan,
        "low": some.min() if len(some) else np.nan,
        "high": some.max() if len(some) else np.nan,
        "seeds": len(rows),
        "never": int(np.isnan(against_print).sum()),
        "status": status(cell["value"], against_print, protocol.within),
        "intended": pd.Series(intended, dtype=float).mean(),
        "runs": " ".join(run.id for run in runs) if rows else "",
    }


def rows_as_published(run: Record, name: str) -> pd.DataFrame:
    """Return the rows of a method in a run; if the run has it as published, the rows of that."""
    twin = run.rounds[run.rounds["method"] == name + AS_PUBLISHED]
    return twin if len(twin) else run.rounds[run.rounds["method"] == name]


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Count the cells of each table by status, at the paper's scale and at the reduced scale."""
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
    """Format a ledger for readers, with our numbers as ``mean [low, high]``, seeds and status."""
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
    """Write the ledger as CSV with numbers of four significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.4g")
    return path
