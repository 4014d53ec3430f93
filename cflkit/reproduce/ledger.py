"""The ledger, which compares every published number with ours.

The papers' tables are in ``data/published``, one row per cell. The ledger joins them with the run
records. It keeps runs at a paper's own scale and runs at a reduced scale apart: a small network on
a part of the data does not reproduce a table, however close the numbers are.
"""

import shlex
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cflkit._project import KIT, git
from cflkit.reproduce import grid, notebooks, records, stats
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.papers.base import SCORES, Margin, Protocol, Ranks
from cflkit.reproduce.records import AS_PUBLISHED, PUBLISHED, Record
from cflkit.reproduce.rule import ANSWERS, NO_CODE, STATUS, status
from cflkit.reproduce.stats import half_width
from cflkit.reproduce.values import options, read_yaml

# The ledger of the committed records, which `readme` writes
LEDGER = KIT / "data" / "ledger.csv"
# The same answers for runs at the reduced scale, which can reproduce nothing
REDUCED_STATUS = tuple(
    f"{word} (reduced)".replace("reproduced", "agrees") if word in ANSWERS else word
    for word in STATUS
)
# The prefixes of the two scales' columns, and their words for `STATUS`
SCALES = {"paper": ("", STATUS), "reduced": ("reduced_", REDUCED_STATUS)}
# The columns that are texts, also if they look like numbers
TEXTS = {"table": str, "protocol": str}
# The columns of each scale that summarise our runs of a cell
OURS = ("ours", "half_width", "low", "high", "seeds", "never")

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
    files = sorted(PUBLISHED.glob("[!.]*_table-*.csv"))
    cells = pd.concat([pd.read_csv(f, dtype=TEXTS) for f in files], ignore_index=True)
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
    return any(all(cell[name] == value for name, value in values.items()) for values in fixed)


# --- Scales and scenarios ------------------------------------------------------------------------


def scale(record: Record, paper: str, unread: Collection[str] = ()) -> str | None:
    """Return the scale of a record, ``paper`` or ``reduced``, by comparison with parameter files.

    Parameters in `Paper.free` and in ``unread`` are not compared. The result is None if the others
    match neither file, for a run of another paper, and for a run whose parameters hide that it was
    perturbed.
    """
    known = PAPERS[paper]
    perturbation = record.provenance.get("perturbation")
    if record.paper != known.folder or perturbation != record.parameters.get("perturbation"):
        return None
    not_compared = known.free | {*unread}
    partial = any(record.parameters.get(name) is not None for name in known.whole_only)
    for name in ("paper",) if partial else SCALES:
        full = scale_parameters(paper, name, scenario_of(record, paper))
        compared = {k: v for k, v in (full or {}).items() if k not in not_compared}
        if full and records.has_parameters(record, compared):
            return name
    return None


def scenario_of(record: Record, paper: str) -> Scenario:
    """Return the scenario of a run in the order of `Paper.scenario`; lists are told as texts."""
    values = (record.parameters.get(name) for name in PAPERS[paper].scenario)
    return tuple(str(value) if isinstance(value, list) else value for value in values)


def scenario_in(cell: Cell) -> Scenario:
    """Return the scenario of a published number in the order of `Paper.scenario`."""
    names = PAPERS[cell["paper"]].scenario
    return tuple(None if pd.isna(cell[name]) else cell[name] for name in names)


@cache
def scenarios(paper: str, scale: str) -> list[Scenario]:
    """Return the scenarios of a paper's tables that have parameters for one of the two scales."""
    cells = published().query("paper == @paper").to_dict("records")
    named_in_tables = dict.fromkeys(scenario_in(cell) for cell in cells)
    return [named for named in named_in_tables if scale_parameters(paper, scale, named) is not None]


@cache
def scale_parameters(paper: str, scale: str, scenario: Scenario) -> dict[str, Any] | None:
    """Return all parameters of a scenario at one of the two scales, or None if it has no file."""
    known = PAPERS[paper]
    named = dict(zip(known.scenario, scenario, strict=True))
    files = {path.name: path for path in (grid.PARAMS / known.folder / scale).glob("*.yaml")}
    # Looked up, since the values of a record are no part of a path
    path = files.get(known.file.format(**named))
    return None if path is None else defaults(known.notebook) | read_yaml(path) | named


@cache
def defaults(notebook: str) -> dict[str, Any]:
    """Read the parameters of a notebook of the kit: as git has it, since a reader may edit them."""
    import nbformat

    path = grid.NOTEBOOKS / f"{notebook}.ipynb"
    text = git("show", f":notebooks/{path.name}")
    if text is None:
        return notebooks.read_notebook(path).defaults
    return notebooks.Notebook(path, nbformat.v4.reads(text)).defaults


def reduction(paper: str, scenario: Scenario) -> str:
    """List how the reduced scale differs from the paper's, as ``"name value, name value"``."""
    full, less = (scale_parameters(paper, name, scenario) or {} for name in SCALES)
    free = PAPERS[paper].free
    return ", ".join(f"{n} {less[n]}" for n in less if n not in free and less[n] != full.get(n))


def command(record: Record, paper: str) -> str:
    """Build the command that makes a record again, without what its notebook also shows."""
    notebook = PAPERS[paper].notebook
    # The command runs the file as it is, also if a reader has edited it
    usual = notebooks.read_notebook(grid.NOTEBOOKS / f"{notebook}.ipynb").defaults
    differing = {n: v for n, v in record.parameters.items() if n in usual and usual[n] != v}
    words = ["python", "-m", "cflkit", "run", f"notebooks/{notebook}.ipynb"]
    return shlex.join([*words, *options(differing), "--record-only"])


def by_scenario(
    runs: Iterable[Record], paper: str, of: str, unread: Collection[str] = ()
) -> dict[Scenario, list[Record]]:
    """Group the runs of a paper at a scale (see `scale`) by their scenarios, which are sorted."""
    groups: defaultdict[Scenario, list[Record]] = defaultdict(list)
    for record in runs:
        if scale(record, paper, unread) == of:
            groups[scenario_of(record, paper)].append(record)
    # None cannot be compared with other values, and is sorted first
    return dict(sorted(groups.items(), key=lambda group: [(v is not None, v) for v in group[0]]))


# --- The ledger ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """What one seed has for a published number; NaN for what a method never did."""

    value: float
    runs: list[Record]  # one run, or those of all scenarios for an average rank
    rows: int = 0  # of the method
    dash: bool = False  # whether the table would have a dash, since clients stayed one cluster
    intended: float = np.nan  # the value of the method as intended where it differs from the code


def sample(record: Record, name: str, protocol: Protocol) -> Sample | None:
    """Compute a protocol's value for a method as published; None if the run did not measure it."""
    tables = [record.by_method[n] for n in (name + AS_PUBLISHED, name) if n in record.by_method]
    if not tables:
        return None
    try:
        values = [protocol.value(rows) for rows in tables]
        # A printed dash stands for a run that stayed one cluster in all rounds; a 0 does not
        dash = protocol.dash_is_one_cluster and bool((tables[0]["n_clusters"] == 1).all())
    except (KeyError, TypeError, ValueError) as error:
        print(f"left out: {record.id}, {name}: its rows are damaged ({error!r})", file=sys.stderr)
        return None
    if values[0] is not None and np.isnan(values[0]):
        return None
    value, intended = [np.nan if value is None else value for value in (*values, None)][:2]
    return Sample(value, [record], len(tables[0]), dash, intended)


class Evidence:
    """The runs of one paper at one scale, and what they have for its numbers."""

    def __init__(self, paper: str, scale: str, runs: Sequence[Record] = ()) -> None:
        self.paper, self.scale, self.runs = PAPERS[paper], scale, runs
        self.sample, self.ranks = cache(sample), cache(self.ranks_of)
        self.by_scenario = cache(self.by_scenario_of)

    def by_scenario_of(self, unread: frozenset[str]) -> dict[Scenario, list[Record]]:
        """Group the runs by scenario; those that differ only in these parameters count, too."""
        return by_scenario(self.runs, self.paper.name, self.scale, unread)

    def samples(self, cell: Cell) -> list[Sample]:
        """Return the samples for a published cell.

        Of several runs of one seed, that with most rows of the method counts, and among these the
        newest. The method is that of the paper's code: if some of the runs have it as published,
        only these count.
        """
        name = self.paper.methods.get(cell["method"])
        protocol = self.paper.protocols.get(cell["protocol"])
        if name is None or protocol is None:  # no record has such a number, such as hours
            return []
        if isinstance(protocol, Ranks):
            return [samples[name] for samples in self.ranks(protocol)]
        runs = self.by_scenario(self.paper.unread_by(name)).get(scenario_in(cell), [])
        with_twin = [record for record in runs if name + AS_PUBLISHED in record.by_method]
        made = {record: self.sample(record, name, protocol) for record in with_twin or runs}
        samples = {record: of_run for record, of_run in made.items() if of_run}
        best = records.one_per_seed(samples, lambda record: samples[record].rows)
        return [samples[record] for record in best]

    def ranks_of(self, ranks: Ranks) -> list[dict[str, Sample]]:
        """Return the methods' average ranks over all scenarios, for each seed.

        A seed counts if it has a run of every scenario, with a score of every method in it.
        """
        wanted, runs_of = scenarios(self.paper.name, self.scale), self.by_scenario(frozenset())
        by_seed: defaultdict[tuple[Any, ...], list[Record]] = defaultdict(list)
        for scenario in wanted:
            for record in records.one_per_seed(runs_of.get(scenario, [])):
                by_seed[records.seeds_of(record)].append(record)
        ranks_by_seed = []
        for runs in by_seed.values():
            names = self.paper.methods.values()
            samples = [
                [self.sample(record, name, ranks.score) for name in names] for record in runs
            ]
            values = [[np.nan if s is None else s.value for s in of_run] for of_run in samples]
            scores = pd.DataFrame(values, columns=[*names])
            if len(runs) == len(wanted) and scores.notna().all(axis=None):
                average = stats.average_ranks(scores, higher_is_better=True)
                ranks_by_seed.append({str(n): Sample(rank, runs) for n, rank in average.items()})
        return ranks_by_seed


def gathered(runs: Sequence[Record], papers: Iterable[str]) -> dict[tuple[str, str], Evidence]:
    """Gather the runs of each paper at each of the two scales."""
    return {(paper, of): Evidence(paper, of, runs) for paper, of in product(papers, SCALES)}


def margin_of(cell: Cell) -> Margin:
    """Return the distances that count for a published cell."""
    return getattr(PAPERS[cell["paper"]].protocols.get(cell["protocol"]), "margin", SCORES)


def ledger(runs: list[Record] | None = None) -> pd.DataFrame:
    """Join the published cells with our runs of their scenarios, by default with all records.

    Returns
    -------
    DataFrame
        The columns of `published`; ``again``, the earlier table that has the same number of the
        same system; ``fixed``, whether a run cannot miss the number; the columns of `summarised`
        for the paper's scale, and with the prefix ``reduced_`` for the reduced scale; and
        ``reduced_scale``, how this scale differs from the paper's.
    """
    cells, rows = published(), []
    evidence = gathered(records.find_records() if runs is None else runs, cells["paper"].unique())
    for cell in cells.to_dict("records"):
        row = cell | {"fixed": is_fixed(cell)}
        for of, (prefix, words) in SCALES.items():
            summary = summarised(cell, evidence[cell["paper"], of].samples(cell))
            summary["status"] = words[STATUS.index(str(summary["status"]))]
            row |= {prefix + name: value for name, value in summary.items()}
        rows.append(row | {"reduced_scale": reduced_scale(cell) if row["reduced_seeds"] else ""})
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("fixed"), "again", printed_before(table))
    return counted(table)


def read() -> pd.DataFrame:
    """Read the ledger of the committed records, as far as its rows are in the file."""
    return counted(pd.read_csv(LEDGER, dtype=TEXTS)).fillna({"again": ""})


def reduced_scale(cell: Cell) -> str:
    """Describe the reduced scale of a published cell; for an average rank, by its scenarios."""
    paper = PAPERS[cell["paper"]]
    if isinstance(paper.protocols.get(cell["protocol"]), Ranks):
        whole, there = (len(scenarios(paper.name, name)) for name in SCALES)
        return f"{there} of {whole} scenarios"
    return reduction(paper.name, scenario_in(cell))


def summarised(cell: Cell, samples: Sequence[Sample]) -> dict[str, object]:
    """Summarise our values of a published cell, one per seed.

    Returns
    -------
    dict of str to object
        The mean over seeds ``ours``, half the width of its 90 % t-interval, the smallest and the
        largest value; the numbers of ``seeds`` and of those that ``never`` clustered; ``status``,
        where a number with the source "no code" is compared with nothing; ``intended``, the mean of
        the method as intended where it differs from the code; and the ids of the ``runs``.
    """
    ours = np.array([sample.value for sample in samples], dtype=float)
    against_print = np.where([sample.dash for sample in samples], np.nan, ours)
    intended = np.array([sample.intended for sample in samples], dtype=float)
    ours, intended = ours[~np.isnan(ours)], intended[~np.isnan(intended)]
    no_code = cell.get("source") == "no code"
    return {
        "ours": ours.mean() if len(ours) else np.nan,
        "half_width": half_width(ours),
        "low": ours.min() if len(ours) else np.nan,
        "high": ours.max() if len(ours) else np.nan,
        "seeds": len(samples),
        "never": int(np.isnan(against_print).sum()),
        "status": NO_CODE if no_code else status(cell["value"], against_print, margin_of(cell)),
        "intended": intended.mean() if len(intended) else np.nan,
        "runs": " ".join(record.id for sample in samples for record in sample.runs),
    }


# --- Counts --------------------------------------------------------------------------------------


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Count the cells of each table by answer; the rows are scale, paper and table."""
    by = [table["paper"], table["table"]]
    parts = {
        "paper's" if of == "paper" else of: pd.crosstab(by, answers_at(table, of)) for of in SCALES
    }
    whole = pd.concat(parts, names=["scale"]).reindex(columns=STATUS)
    return whole.fillna(0).astype(int)


def answers_at(table: pd.DataFrame, of: str) -> pd.Series:
    """Return the answers of a ledger at a scale, in the words of `STATUS` at both scales."""
    prefix, words = SCALES[of]
    return table[f"{prefix}status"].map(dict(zip(words, STATUS, strict=True)))


def write(table: pd.DataFrame, path: Path) -> Path:
    """Write the ledger as CSV with numbers of four significant digits."""
    text = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    records.write_whole(path, text)
    return path
