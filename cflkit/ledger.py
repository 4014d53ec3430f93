"""The ledger, which compares every published number with ours.

The papers' tables are in ``data/published``, one row per cell. The ledger joins them with the run
records. It keeps runs at a paper's own scale and runs at a reduced scale apart: a small network on
a part of the data does not reproduce a table, however close the numbers are.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import t

from cflkit import grid, notebooks, records
from cflkit.files import write_whole
from cflkit.papers import PAPERS
from cflkit.papers.base import AS_PUBLISHED, SCORES, Margin, Protocol
from cflkit.parameters import ParameterError
from cflkit.records import PROJECT, Record

PUBLISHED = PROJECT / "data" / "published"
# The ledger of the committed records, which `readme` writes
LEDGER = PROJECT / "data" / "ledger.csv"
ANSWERS = ("reproduced", "close", "differs", "inconclusive", "single run")
# A number that the authors' own code does not produce cannot be reproduced
NO_CODE = "produced by no code"
STATUS = (*ANSWERS, "not run", NO_CODE)
# The same answers for runs at the reduced scale, which can reproduce nothing
REDUCED_STATUS = tuple(
    f"{word} (reduced)".replace("reproduced", "agrees") if word in ANSWERS else word
    for word in STATUS
)
# The columns of each scale that summarise our runs of a cell
OURS = ("ours", "half_width", "low", "high", "seeds", "never")

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


def half_width(ours: ArrayLike) -> float:
    """Return half the width of the 90 % t-interval of a mean over seeds; NaN for a single value."""
    values = np.asarray(ours, dtype=float)
    if len(values) < 2:
        return np.nan
    return float(t.ppf(0.95, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def status(value: float, ours: ArrayLike, margin: Margin = SCORES) -> str:
    """Compare a published value with ours, one value per seed; return one of `STATUS`.

    NaN means that all clients stayed one cluster.
    """
    values = np.asarray(ours, dtype=float)
    some = values[~np.isnan(values)]
    mean = some.mean() if len(some) else np.nan
    return answer(value, mean, half_width(some), len(values), len(values) - len(some), margin)


def answer(
    value: float, mean: float, half_width: float, seeds: int, never: int, margin: Margin
) -> str:
    """Compare a published value with the 90 % t-interval of our mean; return one of `STATUS`.

    Parameters
    ----------
    value : float
        The published value; NaN where the table has a dash, since all clients stayed one cluster.
    mean, half_width : float
        The mean over seeds, and half the width of its interval.
    seeds, never : int
        The number of seeds, and of those with which all clients stayed one cluster.
    margin : Margin
        The distances that count.

    Returns
    -------
    str
        One of these answers:

        - ``reproduced``: the interval lies within ``far`` of the value, and the mean within
          ``near``;
        - ``close``: the interval does, but not the mean;
        - ``differs``: no value of the interval lies within ``far``;
        - ``inconclusive``: the interval is too wide to say so;
        - ``single run``: one seed has no interval;
        - ``not run``.

        A dash is reproduced if no seed clustered, differs if each did, and is inconclusive if some
        did. A printed number differs if no seed clustered, and is inconclusive if some did not.
    """
    if seeds < 2:
        return "single run" if seeds else "not run"
    if np.isnan(value) and never == seeds:
        return "reproduced"
    if np.isnan(value) or never:
        return "differs" if never in (0, seeds) else "inconclusive"
    # A distance equal to a bound must count as within it, despite the rounding of binary fractions
    slack = margin.rounding + 1e-9
    distance = abs(mean - value)
    if distance + half_width <= margin.far + slack:
        return "reproduced" if distance <= margin.near + slack else "close"
    return "differs" if distance - half_width > margin.far + slack else "inconclusive"


def scale(record: Record, paper: str) -> str | None:
    """Return the scale of a record, ``paper`` or ``reduced``, by comparison with parameter files.

    Parameters in `Paper.free` are not compared. If the parameters match neither file, the run
    belongs to no table, and the result is None. It is also None for a run of another paper.
    """
    known = PAPERS[paper]
    if record.paper != known.folder:
        return None
    partial = any(record.parameters.get(name) is not None for name in known.whole_only)
    for name in ("paper",) if partial else ("paper", "reduced"):
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
        ("-p", name, notebooks.as_yaml(value))
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
        The columns of `published`, and these:

        - ``again``: the earlier table that has the same number of the same system, if any;
        - ``fixed``: whether a run cannot miss the number (`Paper.fixed`);
        - the columns of `compare_cell` for runs at the paper's scale;
        - the same columns with the prefix ``reduced_`` for runs at the reduced scale;
        - ``reduced_scale``: how this scale differs from the paper's.
    """
    cells = published()
    grouped: dict[tuple[Any, ...], list[Record]] = {}
    for run in records.find() if runs is None else runs:
        for paper in cells["paper"].unique():
            if (of := scale(run, paper)) is not None:
                grouped.setdefault((paper, scenario_of(run, paper), of), []).append(run)
    rows = []
    for cell in cells.to_dict("records"):
        paper = cell["paper"]
        scenario = tuple(
            None if pd.isna(cell[name]) else cell[name] for name in PAPERS[paper].scenario
        )
        full, less = (grouped.get((paper, scenario, name), []) for name in ("paper", "reduced"))
        reduced = {f"reduced_{name}": value for name, value in compare_cell(cell, less).items()}
        reduced["reduced_status"] = REDUCED_STATUS[STATUS.index(reduced["reduced_status"])]
        differs = reduction(paper, scenario) if less else ""
        fixed = {"fixed": is_fixed(cell)}
        rows.append(cell | fixed | compare_cell(cell, full) | reduced | {"reduced_scale": differs})
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("fixed"), "again", printed_before(table))
    return counted(table)


def is_fixed(cell: Mapping[Hashable, Any]) -> bool:
    """Return whether a run cannot miss a published number (`Paper.fixed`)."""
    fixed = PAPERS[cell["paper"]].fixed
    return any(all(cell[name] == value for name, value in one.items()) for one in fixed)


def printed_before(cells: pd.DataFrame) -> pd.Series:
    """Name the earlier table that has the same number of the same system; empty if none has."""
    key = [*scenario_columns(), "method", "protocol", "value"]
    folders = cells["paper"].map(lambda paper: PAPERS[paper].folder)
    tables = cells["paper"] + " " + cells["table"]
    # Dashes equal each other, too
    named = cells.assign(folder=folders, tables=tables).fillna({"value": np.inf})
    first = named.groupby(["folder", *key], dropna=False)["tables"].transform("first")
    # Numbers without a protocol may be of different quantities
    repeated = named.duplicated(["folder", *key]) & cells["protocol"].notna()
    return first.where(repeated, "")


def compare_cell(cell: dict, runs: list[Record]) -> dict[str, object]:
    """Compare one published cell with the runs of one scale.

    Returns
    -------
    dict of str to object
        The columns of the ledger:

        - ``ours``, ``half_width``, ``low`` and ``high``: the mean over seeds, half the width of its
          90 % t-interval, the smallest and the largest value. The method is that of the paper's
          code. Seeds without a value, such as a clustering round, are left out.
        - ``seeds``: the number of seeds. Several runs of one seed count once.
        - ``never``: the number of seeds with which all clients stayed one cluster.
        - ``status``: one of `STATUS`; a number with the source "no code" is compared with nothing.
        - ``intended``: the mean of the method as intended, where it differs from the code.
        - ``runs``: the ids of the records.
    """
    paper = PAPERS[cell["paper"]]
    protocol = paper.protocols.get(cell["protocol"], UNRECORDED)
    runs = [] if protocol is UNRECORDED else runs
    name = paper.methods.get(cell["method"], "")
    found = {run.id: rows for run in runs if len(rows := rows_as_published(run, name))}
    values = {id: protocol.value(rows) for id, rows in found.items()}
    measured = {id for id, value in values.items() if value is None or not np.isnan(value)}
    runs = one_per_seed([run for run in runs if run.id in measured])
    rows = [found[run.id] for run in runs]
    ours = np.array([values[run.id] for run in runs], dtype=float)
    # A printed dash stands for a run that stayed one cluster in all rounds; a printed 0 does not
    against_print = ours
    if protocol.dash_is_one_cluster:
        whole = np.array([(method["n_clusters"] == 1).all() for method in rows], dtype=bool)
        against_print = np.where(whole, np.nan, ours)
    some = ours[~np.isnan(ours)]
    has_twin = any(name + AS_PUBLISHED in run.by_method for run in runs)
    own_rows = [run.by_method[name] for run in runs if name in run.by_method]
    intended = [protocol.value(own) for own in own_rows] if has_twin else []
    return {
        "ours": some.mean() if len(some) else np.nan,
        "half_width": half_width(some),
        "low": some.min() if len(some) else np.nan,
        "high": some.max() if len(some) else np.nan,
        "seeds": len(rows),
        "never": int(np.isnan(against_print).sum()),
        "status": NO_CODE
        if cell.get("source") == "no code"
        else status(cell["value"], against_print, protocol.margin),
        "intended": pd.Series(intended, dtype=float).mean(),
        "runs": " ".join(run.id for run in runs),
    }


def one_per_seed(runs: Sequence[Record]) -> list[Record]:
    """Return the runs of different seeds; of several runs of one seed, the one with most rows."""
    found: dict[tuple[Any, ...], Record] = {}
    for run in sorted(runs, key=lambda run: -len(run.rounds)):
        found.setdefault((run.parameters.get("seed"), run.parameters.get("partition_seed")), run)
    return sorted(found.values(), key=lambda run: run.id)


def rows_as_published(run: Record, name: str) -> pd.DataFrame:
    """Return the rows of a method in a run; if the run has it as published, the rows of that."""
    known = run.by_method
    return known.get(name + AS_PUBLISHED, known.get(name, run.rounds.iloc[:0]))


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Count the cells of each table by answer, at the paper's scale and at the reduced scale.

    Returns
    -------
    DataFrame
        One row per scale, paper and table, with the columns `STATUS` and these:

        - ``run``: the number of cells that are compared with runs, those with `ANSWERS`;
        - ``distinct``: those that no earlier table has, and that a run can miss;
        - ``distinct reproduced``: those of these that are reproduced;
        - ``placebo``: the share of reproduced cells if each is compared with our runs of the other
          scenarios, see `placebo`.
    """
    parts = {}
    for name, (prefix, words) in {
        "paper's": ("", STATUS),
        "reduced": ("reduced_", REDUCED_STATUS),
    }.items():
        found = table[f"{prefix}status"].map(dict(zip(words, STATUS, strict=True)))
        run = found.isin(ANSWERS)
        own = table["again"].eq("") & ~table["fixed"] & run
        by = [table["paper"], table["table"]]
        part = pd.crosstab(by, found).reindex(columns=STATUS, fill_value=0)
        parts[name] = part.assign(
            run=run.groupby(by).sum(),
            distinct=own.groupby(by).sum(),
            **{"distinct reproduced": (own & found.eq("reproduced")).groupby(by).sum()},
            placebo=placebo(table, prefix),
        )
    return pd.concat(parts, names=["scale"])


def placebo(table: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Compute how often the rule says "reproduced" of a wrong scenario.

    Each published number is compared with our runs of every other scenario of the same table, for
    the same method and measure. A rule that can tell scenarios apart rarely says "reproduced".

    Parameters
    ----------
    table : DataFrame
        A ledger.
    prefix : str
        The prefix of the scale's columns.

    Returns
    -------
    Series
        The share per paper and table. NaN if no cell has runs of two seeds.
    """
    facts = [prefix + name for name in OURS if name not in ("low", "high")]
    run = table[table[f"{prefix}seeds"] > 1]
    run = run.assign(number=range(len(run)))
    key = ["paper", "table", "method", "measure"]
    pairs = run.merge(run[[*key, *facts, "number"]], on=key, suffixes=("", "_other"))
    pairs = pairs[pairs["number"] != pairs["number_other"]]
    columns = ["paper", "protocol", "value", *(f"{name}_other" for name in facts)]
    passes = [
        answer(value, mean, width, seeds, never, PAPERS[paper].protocols[protocol].margin)
        == "reproduced"
        for paper, protocol, value, mean, width, seeds, never in pairs[columns].itertuples(
            index=False
        )
    ]
    return pairs.assign(passes=passes).groupby(["paper", "table"])["passes"].mean()


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Format a ledger for readers, with our numbers as ``mean ± half width [low, high]``."""
    scales = {"paper's scale": "", "reduced scale": "reduced_"}

    def ours(row: pd.Series, prefix: str) -> str:
        if not row[f"{prefix}seeds"]:
            return str(row[f"{prefix}status"])
        mean, half, low, high, seeds, never = (row[f"{prefix}{name}"] for name in OURS)
        number = [] if pd.isna(mean) else [f"{mean:.2f} [{low:.2f}, {high:.2f}]"]
        number = number if pd.isna(half) else [f"{mean:.2f} ± {half:.2f} [{low:.2f}, {high:.2f}]"]
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
    """Write the ledger as CSV with numbers of four significant digits.

    Raises
    ------
    ParameterError
        The file is there, and is no ledger.
    """
    if path.is_file() and not path.read_text("utf-8", "replace").startswith("paper,table,"):
        raise ParameterError(f"{path} is no ledger, and stays as it is")
    write_whole(path, table.to_csv(index=False, float_format="%.4g", lineterminator="\n"))
    return path
