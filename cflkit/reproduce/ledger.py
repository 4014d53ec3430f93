"""The ledger, which compares every published number with ours.

The papers' tables are in ``data/published``, one row per cell. The ledger joins them with the run
records. It keeps runs at a paper's own scale and runs at a reduced scale apart: a small network on
a part of the data does not reproduce a table, however close the numbers are.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from cflkit.datasets.files import write_whole
from cflkit.reproduce import grid, notebooks, records, stats
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.papers.base import AS_PUBLISHED, SCORES, Margin, Protocol, Ranks
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT, Record
from cflkit.reproduce.values import options, read_yaml

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
# The runs of one paper at one scale, by their scenario
ByScenario = Mapping[tuple[Any, ...], list[Record]]
# The columns of each scale that summarise our runs of a cell
OURS = ("ours", "half_width", "low", "high", "seeds", "never")

# The protocol of numbers that no record has, such as hours
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
    belongs to no table, and the result is None. It is also None for a run of another paper, and for
    a run that was perturbed although its parameters do not say so.
    """
    known = PAPERS[paper]
    perturbation = record.provenance.get("perturbation")
    if record.paper != known.folder or perturbation != record.parameters.get("perturbation"):
        return None
    fields = known.parameters.model_fields
    # Records have no parameters of the demonstrations, such as `repeats`
    not_compared = {*known.free, *(name for name, field in fields.items() if field.exclude)}
    partial = any(record.parameters.get(name) is not None for name in known.whole_only)
    for name in ("paper",) if partial else ("paper", "reduced"):
        full = scale_parameters(paper, name, scenario_of(record, paper))
        if full is not None and all(
            record.parameters.get(k) == full[k] for k in full if k not in not_compared
        ):
            return name
    return None


def scenario_of(record: Record, paper: str) -> tuple[Any, ...]:
    """Return the scenario of a run in the order of `Paper.scenario`."""
    return tuple(record.parameters.get(name) for name in PAPERS[paper].scenario)


def scenario_in(cell: Mapping[Hashable, Any]) -> tuple[Any, ...]:
    """Return the scenario of a published number in the order of `Paper.scenario`."""
    names = PAPERS[cell["paper"]].scenario
    return tuple(None if pd.isna(cell[name]) else cell[name] for name in names)


def reduced_scale(cell: Mapping[Hashable, Any]) -> str:
    """Describe the reduced scale of a published cell; for an average rank, by its scenarios."""
    paper = PAPERS[cell["paper"]]
    if isinstance(paper.protocols.get(cell["protocol"]), Ranks):
        there, wanted = (len(scenarios(paper.name, name)) for name in ("reduced", "paper"))
        return f"{there} of {wanted} scenarios"
    return reduction(paper.name, scenario_in(cell))


def reduction(paper: str, scenario: tuple[Any, ...]) -> str:
    """List how the reduced scale differs from the paper's, as ``"name value, name value"``."""
    full, less = (scale_parameters(paper, name, scenario) or {} for name in ("paper", "reduced"))
    free = PAPERS[paper].free
    return ", ".join(f"{n} {less[n]}" for n in less if n not in free and less[n] != full.get(n))


@cache
def scenarios(paper: str, scale: str) -> list[tuple[Any, ...]]:
    """Return the scenarios of a paper's tables that have parameters for one of the two scales."""
    cells = published().query("paper == @paper").to_dict("records")
    found = dict.fromkeys(scenario_in(cell) for cell in cells)
    return [named for named in found if scale_parameters(paper, scale, named) is not None]


@cache
def scale_parameters(paper: str, scale: str, scenario: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return all parameters of a scenario at one of the two scales, or None if it has no file."""
    known = PAPERS[paper]
    named = dict(zip(known.scenario, scenario, strict=True))
    path = grid.PARAMS / known.folder / scale / known.file.format(**named)
    if not path.exists():
        return None
    return defaults(known.notebook) | read_yaml(path) | named


@cache
def defaults(notebook: str) -> dict[str, Any]:
    """Read the parameters of a committed notebook."""
    return notebooks.read_notebook(grid.NOTEBOOKS / f"{notebook}.ipynb").defaults


def command(record: Record, paper: str) -> str:
    """Build the command that makes a record again."""
    notebook = PAPERS[paper].notebook
    usual = defaults(notebook)
    differing = {n: v for n, v in record.parameters.items() if n in usual and usual[n] != v}
    words = ["python", "-m", "cflkit", "run", f"notebooks/{notebook}.ipynb"]
    return shlex.join([*words, *options(differing)])


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
        - the columns of `summarised` for runs at the paper's scale;
        - the same columns with the prefix ``reduced_`` for runs at the reduced scale;
        - ``reduced_scale``: how this scale differs from the paper's.
    """
    cells = published()
    grouped: dict[tuple[str, str], dict[tuple[Any, ...], list[Record]]] = {}
    for run in records.find() if runs is None else runs:
        for paper in cells["paper"].unique():
            if (of := scale(run, paper)) is not None:
                known = grouped.setdefault((paper, of), {})
                known.setdefault(scenario_of(run, paper), []).append(run)
    rows = []
    for cell in cells.to_dict("records"):
        full, less = (
            compare(cell, grouped.get((cell["paper"], of), {}), of) for of in ("paper", "reduced")
        )
        reduced = {f"reduced_{name}": value for name, value in less.items()}
        reduced["reduced_status"] = REDUCED_STATUS[STATUS.index(reduced["reduced_status"])]
        differs = reduced_scale(cell) if less["seeds"] else ""
        fixed = {"fixed": is_fixed(cell)}
        rows.append(cell | fixed | full | reduced | {"reduced_scale": differs})
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


def compare(cell: Mapping[Hashable, Any], runs: ByScenario, scale: str) -> dict[str, object]:
    """Compare one published cell with all runs of its paper at one scale; see `summarised`."""
    protocol = PAPERS[cell["paper"]].protocols.get(cell["protocol"], UNRECORDED)
    if isinstance(protocol, Ranks):
        return compare_rank(
            cell, protocol, [runs.get(s, []) for s in scenarios(cell["paper"], scale)]
        )
    return compare_cell(cell, protocol, runs.get(scenario_in(cell), []))


def compare_cell(
    cell: Mapping[Hashable, Any], protocol: Protocol, runs: list[Record]
) -> dict[str, object]:
    """Compare one published cell with the runs of its scenario; see `summarised`.

    Of several runs of one seed, that with most rows of the method counts, and among these the
    newest. The method is that of the paper's code: if some of the runs have it as published, only
    these count.
    """
    paper = PAPERS[cell["paper"]]
    name = paper.methods.get(cell["method"], "")
    with_twin = [run for run in runs if name + AS_PUBLISHED in run.by_method]
    runs = [] if protocol is UNRECORDED else with_twin or runs
    found = {run.id: rows for run in runs if len(rows := rows_as_published(run, name))}
    values = {id: protocol.value(rows) for id, rows in found.items()}
    measured = {id for id, value in values.items() if value is None or not np.isnan(value)}
    runs = one_per_seed([run for run in runs if run.id in measured], lambda run: len(found[run.id]))
    rows = [found[run.id] for run in runs]
    ours = np.array([values[run.id] for run in runs], dtype=float)
    # A printed dash stands for a run that stayed one cluster in all rounds; a printed 0 does not
    against_print = ours
    if protocol.dash_is_one_cluster:
        whole = np.array([(method["n_clusters"] == 1).all() for method in rows], dtype=bool)
        against_print = np.where(whole, np.nan, ours)
    own_rows = [run.by_method[name] for run in runs if name in run.by_method]
    intended = (protocol.value(own) for own in own_rows if with_twin)
    known = [value for value in intended if value is not None and not np.isnan(value)]
    return summarised(cell, protocol.margin, ours, against_print, runs) | {
        "intended": np.mean(known) if known else np.nan
    }


def compare_rank(
    cell: Mapping[Hashable, Any], ranks: Ranks, runs: Sequence[Sequence[Record]]
) -> dict[str, object]:
    """Compare a printed average rank with ours over ``runs``, one sequence per scenario.

    A seed counts if it has a run of every scenario, with a score of every method in it.
    """
    methods = PAPERS[cell["paper"]].methods
    by_seed: dict[tuple[Any, ...], list[Record]] = {}
    for run in itertools.chain.from_iterable(one_per_seed(own) for own in runs):
        by_seed.setdefault(seeds_of(run), []).append(run)
    values: list[float] = []
    used: list[Record] = []
    for own in by_seed.values():
        scores = pd.DataFrame(
            {name: score_in(rows_as_published(run, name), ranks.score) for name in methods.values()}
            for run in own
        )
        if len(own) == len(runs) and scores.notna().all(axis=None):
            found = stats.average_ranks(scores, higher_is_better=True)
            values.append(found[methods[cell["method"]]])
            used += own
    ours = np.array(values, dtype=float)
    return summarised(cell, ranks.margin, ours, ours, used)


def score_in(rows: pd.DataFrame, protocol: Protocol) -> float | None:
    """Return the value of a protocol; NaN for a method that a run does not have."""
    return protocol.value(rows) if len(rows) else np.nan


def summarised(
    cell: Mapping[Hashable, Any],
    margin: Margin,
    ours: NDArray[np.float64],
    against_print: NDArray[np.float64],
    runs: Sequence[Record],
) -> dict[str, object]:
    """Summarise our values of a published cell, one per seed.

    Parameters
    ----------
    cell : mapping
        The cell, a row of `published`.
    margin : Margin
        The distances that count.
    ours, against_print : ndarray
        The values; NaN where a run has none, such as a clustering round. In the second, also NaN
        where all clients stayed one cluster and the table would have a dash.
    runs : sequence of Record
        The runs.

    Returns
    -------
    dict of str to object
        The columns of the ledger:

        - ``ours``, ``half_width``, ``low`` and ``high``: the mean over seeds, half the width of its
          90 % t-interval, the smallest and the largest value, without seeds that have no value;
        - ``seeds``: the number of seeds;
        - ``never``: the number of seeds with which all clients stayed one cluster;
        - ``status``: one of `STATUS`; a number with the source "no code" is compared with nothing;
        - ``intended``: the mean of the method as intended where it differs from the code, which is
          set by `compare_cell`;
        - ``runs``: the ids of the records.
    """
    some = ours[~np.isnan(ours)]
    no_code = cell.get("source") == "no code"
    return {
        "ours": some.mean() if len(some) else np.nan,
        "half_width": half_width(some),
        "low": some.min() if len(some) else np.nan,
        "high": some.max() if len(some) else np.nan,
        "seeds": len(ours),
        "never": int(np.isnan(against_print).sum()),
        "status": NO_CODE if no_code else status(cell["value"], against_print, margin),
        "intended": np.nan,
        "runs": " ".join(run.id for run in runs),
    }


def one_per_seed(
    runs: Sequence[Record], rows: Callable[[Record], int] = lambda run: len(run.rounds)
) -> list[Record]:
    """Return one run per seed, sorted by id: that with most rows, and among these the newest."""
    found: dict[tuple[Any, ...], Record] = {}
    finished = sorted(runs, key=lambda run: run.provenance.get("finished", ""), reverse=True)
    for run in sorted(finished, key=rows, reverse=True):
        found.setdefault(seeds_of(run), run)
    return sorted(found.values(), key=lambda run: run.id)


def seeds_of(run: Record) -> tuple[Any, ...]:
    """Return the seeds of a run: of its training and of its partition."""
    return run.parameters.get("seed"), run.parameters.get("partition_seed")


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
    Numbers that a run cannot miss (`Paper.fixed`) are left out.

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
    run = table[(table[f"{prefix}seeds"] > 1) & ~table["fixed"]]
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


def check_place(path: Path) -> None:
    """Raise a `ParameterError` if a file is there that is no ledger."""
    if path.is_file() and not path.read_text("utf-8", "replace").startswith("paper,table,"):
        raise ParameterError(f"{path} is no ledger, and stays as it is")


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write the ledger as CSV with numbers of four significant digits.

    Raises
    ------
    ParameterError
        The file is there, and is no ledger.
    """
    check_place(path)
    write_whole(path, table.to_csv(index=False, float_format="%.4g", lineterminator="\n"))
    return path
