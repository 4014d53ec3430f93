"""The ledger, which compares every published number with ours.

The papers' tables are in ``data/published``, one row per cell. The ledger joins them with the run
records. It keeps runs at a paper's own scale and runs at a reduced scale apart: a small network on
a part of the data does not reproduce a table, however close the numbers are.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from cflkit.reproduce import grid, notebooks, records, stats
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.papers.base import SCORES, Margin, Protocol, Ranks
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import AS_PUBLISHED, PROJECT, PUBLISHED, Record

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
# The prefixes of the two scales' columns, and their words for `STATUS`
SCALES = {"paper": ("", STATUS), "reduced": ("reduced_", REDUCED_STATUS)}

Cell = Mapping[Hashable, Any]
Scenario = tuple[Any, ...]


# --- Published numbers ---------------------------------------------------------------------------


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


def printed_before(cells: pd.DataFrame) -> pd.Series:
    """Name the earlier table that has the same number of the same system; empty if none has."""
    key = ["folder", *scenario_columns(), "method", "protocol", "value"]
    folders = cells["paper"].map(lambda paper: PAPERS[paper].folder)
    tables = cells["paper"] + " " + cells["table"]
    # Dashes equal each other, too
    named = cells.assign(folder=folders, tables=tables).fillna({"value": np.inf})
    first = named.groupby(key, dropna=False)["tables"].transform("first")
    # Numbers without a protocol may be of different quantities
    return first.where(named.duplicated(key) & cells["protocol"].notna(), "")


def is_fixed(cell: Cell) -> bool:
    """Return whether a run cannot miss a published number (`Paper.fixed`)."""
    fixed = PAPERS[cell["paper"]].fixed
    return any(all(cell[name] == value for name, value in one.items()) for one in fixed)


# --- Scales and scenarios ------------------------------------------------------------------------


def scale(record: Record, paper: str) -> str | None:
    """Return the scale of a record, ``paper`` or ``reduced``, by comparison with parameter files.

    Parameters in `Paper.free` are not compared. If the parameters match neither file, the run
    belongs to no table, and the result is None. It is also None for a run of another paper, and for
    a run that ``CFLKIT_PERTURB`` perturbed or whose engine ``CFLKIT_ENGINE`` named, which its
    parameters do not say.
    """
    known = PAPERS[paper]
    perturbation = record.provenance.get("perturbation")
    if record.paper != known.folder or perturbation != record.parameters.get("perturbation"):
        return None
    if records.variables(record.id):
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


def any_scale(record: Record) -> str:
    """Return the scale at which some paper's tables count a record; empty if none does."""
    return next(filter(None, (scale(record, paper) for paper in PAPERS)), "")


def scenario_of(record: Record, paper: str) -> Scenario:
    """Return the scenario of a run in the order of `Paper.scenario`."""
    return tuple(record.parameters.get(name) for name in PAPERS[paper].scenario)


def scenario_in(cell: Cell) -> Scenario:
    """Return the scenario of a published number in the order of `Paper.scenario`."""
    names = PAPERS[cell["paper"]].scenario
    return tuple(None if pd.isna(cell[name]) else cell[name] for name in names)


@cache
def scenarios(paper: str, scale: str) -> list[Scenario]:
    """Return the scenarios of a paper's tables that have parameters for one of the two scales."""
    cells = published().query("paper == @paper").to_dict("records")
    found = dict.fromkeys(scenario_in(cell) for cell in cells)
    return [named for named in found if scale_parameters(paper, scale, named) is not None]


@cache
def scale_parameters(paper: str, scale: str, scenario: Scenario) -> dict[str, Any] | None:
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


def reduction(paper: str, scenario: Scenario) -> str:
    """List how the reduced scale differs from the paper's, as ``"name value, name value"``."""
    full, less = (scale_parameters(paper, name, scenario) or {} for name in SCALES)
    free = PAPERS[paper].free
    return ", ".join(f"{n} {less[n]}" for n in less if n not in free and less[n] != full.get(n))


def command(record: Record, paper: str) -> str:
    """Build the command that makes a record again."""
    notebook = PAPERS[paper].notebook
    usual = defaults(notebook)
    given = [
        ("-p", name, notebooks.as_yaml(value))
        for name, value in record.parameters.items()
        if name in usual and usual[name] != value
    ]
    words = [f"{name}={value}" for name, value in records.variables(record.id).items()]
    words += ["python", "-m", "cflkit", "run", f"notebooks/{notebook}.ipynb"]
    return shlex.join([*words, *itertools.chain.from_iterable(given)])


def one_per_seed(
    runs: Sequence[Record], rows: Callable[[Record], int] = lambda run: len(run.rounds)
) -> list[Record]:
    """Return one run per seed, sorted by id: that with most rows, and among these the newest."""
    found: dict[tuple[Any, ...], Record] = {}
    finished = sorted(runs, key=lambda run: run.provenance.get("finished", ""), reverse=True)
    for run in sorted(finished, key=rows, reverse=True):
        # The seeds of the training and of the partition
        found.setdefault(seeds_of(run), run)
    return sorted(found.values(), key=lambda run: run.id)


def seeds_of(run: Record) -> tuple[Any, ...]:
    """Return the seeds of a run: of its training and of its partition."""
    return run.parameters.get("seed"), run.parameters.get("partition_seed")


# --- The rule ------------------------------------------------------------------------------------


def half_width(ours: ArrayLike) -> float:
    """Return half the width of the 90 % t-interval of a mean over seeds; NaN for a single value."""
    values = np.asarray(ours, dtype=float)
    if len(values) < 2:
        return np.nan
    return float(stdtrit(len(values) - 1, 0.95) * values.std(ddof=1) / np.sqrt(len(values)))


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


# --- The ledger ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What a run has for a published number; NaN for what a method never did."""

    value: float
    rows: int  # of the method
    whole: bool  # whether the table has a dash, since all clients stayed one cluster
    intended: float  # the value of the method as intended where it differs from the code


def measured(run: Record, name: str, protocol: Protocol) -> Measured | None:
    """Compute a protocol's value for a method as published; None if the run did not measure it."""
    known = run.by_method
    own = [known[one] for one in (name + AS_PUBLISHED, name) if one in known]
    values = [protocol.value(rows) for rows in own]
    if not own or (values[0] is not None and np.isnan(values[0])):
        return None
    value, *intended = [np.nan if value is None else value for value in values]
    whole = protocol.dash_is_one_cluster and bool((own[0]["n_clusters"] == 1).all())
    return Measured(value, len(own[0]), whole, intended[0] if intended else np.nan)


# `measured`, which remembers what it has computed
Measure = Callable[[Record, str, Protocol], Measured | None]
# The runs of one paper at one scale, by their scenario
ByScenario = Mapping[Scenario, list[Record]]


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
    grouped: dict[tuple[str, str], dict[Scenario, list[Record]]] = {}
    for run in records.find() if runs is None else runs:
        for paper in cells["paper"].unique():
            if (of := scale(run, paper)) is not None:
                known = grouped.setdefault((paper, of), {})
                known.setdefault(scenario_of(run, paper), []).append(run)
    measure = cache(measured)

    @cache
    def ranks(paper: str, protocol: str, of: str) -> list[tuple[list[Record], pd.Series]]:
        return list(ranked(paper, protocol, of, grouped.get((paper, of), {}), measure))

    def compared(cell: Cell, of: str) -> dict[str, object]:
        paper = PAPERS[cell["paper"]]
        protocol, name = paper.protocols.get(cell["protocol"]), paper.methods.get(cell["method"])
        if isinstance(protocol, Ranks):
            found = ranks(paper.name, cell["protocol"], of)
            values = np.array([ranks_of_seed[name] for _, ranks_of_seed in found], dtype=float)
            used = [run for own, _ in found for run in own]
            return summarised(cell, protocol.margin, values, values, used)
        own = grouped.get((paper.name, of), {}).get(scenario_in(cell), [])
        if protocol is None or name is None:  # no record has such a number
            return summarised(cell, SCORES, np.array([]), np.array([]), [])
        return compare_cell(cell, name, protocol, own, measure)

    rows = []
    for cell in cells.to_dict("records"):
        row = cell | {"fixed": is_fixed(cell)}
        for of, (prefix, words) in SCALES.items():
            found = compared(cell, of)
            found["status"] = words[STATUS.index(str(found["status"]))]
            row |= {prefix + name: value for name, value in found.items()}
        rows.append(row | {"reduced_scale": reduced_scale(cell) if row["reduced_seeds"] else ""})
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("fixed"), "again", printed_before(table))
    return counted(table)


def compare_cell(
    cell: Cell, name: str, protocol: Protocol, runs: list[Record], measure: Measure
) -> dict[str, object]:
    """Compare one published cell with the runs of its scenario; see `summarised`.

    Of several runs of one seed, that with most rows of the method counts, and among these the
    newest. The method is that of the paper's code: if some of the runs have it as published, only
    these count.
    """
    with_twin = [run for run in runs if name + AS_PUBLISHED in run.by_method]
    found = {run: own for run in with_twin or runs if (own := measure(run, name, protocol))}
    used = one_per_seed(list(found), lambda run: found[run].rows)
    ours = np.array([found[run].value for run in used], dtype=float)
    # A printed dash stands for a run that stayed one cluster in all rounds; a printed 0 does not
    against_print = np.where([found[run].whole for run in used], np.nan, ours)
    intended = np.array([found[run].intended for run in used], dtype=float)
    known = intended[~np.isnan(intended)]
    return summarised(cell, protocol.margin, ours, against_print, used) | {
        "intended": known.mean() if len(known) else np.nan
    }


def ranked(
    paper: str, protocol: str, of: str, runs: ByScenario, measure: Measure
) -> Iterator[tuple[list[Record], pd.Series]]:
    """Yield the runs of each seed, and the methods' average ranks over all scenarios.

    A seed counts if it has a run of every scenario, with a score of every method in it.
    """
    ranks = PAPERS[paper].protocols[protocol]
    assert isinstance(ranks, Ranks)
    wanted = scenarios(paper, of)
    by_seed: dict[tuple[Any, ...], list[Record]] = {}
    for scenario in wanted:
        for run in one_per_seed(runs.get(scenario, [])):
            by_seed.setdefault(seeds_of(run), []).append(run)
    for own in by_seed.values():
        found = [
            {name: measure(run, name, ranks.score) for name in PAPERS[paper].methods.values()}
            for run in own
        ]
        if len(own) == len(wanted) and all(all(row.values()) for row in found):
            scores = pd.DataFrame({n: one.value for n, one in row.items() if one} for row in found)
            yield own, stats.average_ranks(scores, higher_is_better=True)


def reduced_scale(cell: Cell) -> str:
    """Describe the reduced scale of a published cell; for an average rank, by its scenarios."""
    paper = PAPERS[cell["paper"]]
    if isinstance(paper.protocols.get(cell["protocol"]), Ranks):
        whole, there = (len(scenarios(paper.name, name)) for name in SCALES)
        return f"{there} of {whole} scenarios"
    return reduction(paper.name, scenario_in(cell))


def summarised(
    cell: Cell,
    margin: Margin,
    ours: NDArray[np.float64],
    against_print: NDArray[np.float64],
    runs: Sequence[Record],
) -> dict[str, object]:
    """Summarise our values of a published cell, one per seed.

    Parameters
    ----------
    ours, against_print : ndarray
        The values; NaN where a run has none, such as a clustering round. In the second, also NaN
        where all clients stayed one cluster and the table would have a dash.

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


# --- Counts, and the ledger for readers ----------------------------------------------------------


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
    for of, (prefix, words) in SCALES.items():
        found = table[f"{prefix}status"].map(dict(zip(words, STATUS, strict=True)))
        run = found.isin(ANSWERS)
        own = table["again"].eq("") & ~table["fixed"] & run
        by = [table["paper"], table["table"]]
        part = pd.crosstab(by, found).reindex(columns=STATUS, fill_value=0)
        parts["paper's" if of == "paper" else of] = part.assign(
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
    facts = [prefix + name for name in ("ours", "half_width", "seeds", "never")]
    run = table[(table[f"{prefix}seeds"] > 1) & ~table["fixed"]]
    run = run.assign(number=range(len(run)))
    key = ["paper", "table", "method", "measure"]
    pairs = run.merge(run[[*key, *facts, "number"]], on=key, suffixes=("", "_other"))
    pairs = pairs[pairs["number"] != pairs["number_other"]]
    columns = ["paper", "protocol", "value", *(f"{name}_other" for name in facts)]
    passes = [
        answer(value, mean, width, seeds, never, PAPERS[paper].protocols[protocol].margin)
        == "reproduced"
        for paper, protocol, value, mean, width, seeds, never in pairs[columns].to_numpy()
    ]
    return pairs.assign(passes=passes).groupby(["paper", "table"])["passes"].mean()


def formatted(table: pd.DataFrame) -> pd.DataFrame:
    """Format a ledger for readers, with our numbers as ``mean ± half width [low, high]``."""
    names = [name for name in cell_columns() if table[name].notna().any()]
    shown = table[names].astype(object).where(table[names].notna(), "")
    shown["published"] = ["–" if pd.isna(value) else f"{value:g}" for value in table["value"]]
    for title, (prefix, _) in zip(("paper's scale", "reduced scale"), SCALES.values(), strict=True):
        own = table[[c for c in table if c.startswith(prefix)]].rename(
            columns=lambda name, prefix=prefix: name.removeprefix(prefix)
        )
        shown[title] = [as_text(row) for row in own.to_dict("records")]
        meant = own["intended"]
        shown[f"as meant, {title}"] = ["" if pd.isna(v) else f"{v:.2f}" for v in meant]
    return shown


def as_text(row: Mapping[Hashable, Any]) -> str:
    """Format our numbers of a published cell at one scale."""
    if not row["seeds"]:
        return str(row["status"])
    parts = []
    if not pd.isna(row["ours"]):
        width = "" if pd.isna(row["half_width"]) else f" ± {row['half_width']:.2f}"
        parts.append(f"{row['ours']:.2f}{width} [{row['low']:.2f}, {row['high']:.2f}]")
    if row["never"]:
        parts.append(f"never in {row['never']}")
    return f"{', '.join(parts)} n={row['seeds']} {row['status']}"


def check_place(path: Path) -> None:
    """Raise a `ParameterError` if a file is there that is no ledger."""
    if path.is_file() and not path.read_text("utf-8", "replace").startswith("paper,table,"):
        raise ParameterError(f"{path} is no ledger, and stays as it is")


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write the ledger as CSV with numbers of four significant digits (see `check_place`)."""
    check_place(path)
    text = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    records.write_whole(path, text)
    return path
