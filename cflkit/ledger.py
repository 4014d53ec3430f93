"""Every published number beside ours.

The papers' tables lie under ``data/published``, a row a cell; the ledger joins them with the run
records. Runs at a paper's own scale and at a reduced one are kept apart: what a small network finds
in a corner of the data is no reproduction of a table, however near the numbers are.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from cflkit import metrics, notebooks, records
from cflkit.published import AS_PUBLISHED, CLUSTERERS
from cflkit.records import PROJECT, Record

PUBLISHED = PROJECT / "data" / "published"
# Of the committed records; `notebooks/build.py` writes it
LEDGER = PROJECT / "data" / "ledger.csv"
STATUS = ("reproduced", "close", "not reproduced", "not run")
SCENARIO = ["dataset", "overlap", "balance", "clients"]

# How far our mean may lie from a published score, a published round, a published percentage, and a
# published number of clusters
SCORES, ROUNDS, PERCENT, CLUSTERS = (0.02, 0.05), (0.0, 1.0), (0.5, 2.0), (1.0, 2.0)
# Half a unit of the digits printed
ROUNDING = 0.005


@dataclass(frozen=True)
class Protocol:
    """How a published number comes from a method's rounds.

    Attributes
    ----------
    value : callable
        From the method's rows to the number, in the table's units.
    within : tuple of float
        How far our mean may lie from it to be reproduced, and to be close.
    dash_is_one_cluster : bool
        Whether print has a dash where all clients stayed one cluster from first to last.
    """

    value: Callable[[pd.DataFrame], float | None]
    within: tuple[float, float]
    dash_is_one_cluster: bool = False


def table_measure(name: str) -> Protocol:
    """A measure of the OCFL papers' tables, by its name there."""
    return Protocol(lambda rounds: metrics.as_in_the_ocfl_tables(rounds)[name], SCORES, True)


def at(row: int, measure: str, within: tuple[float, float], factor: float = 1) -> Protocol:
    """A measure in one row: of the start (0, FedCRef) or after the last round (-1)."""
    return Protocol(lambda rounds: factor * rounds[measure].iloc[row], within)


def explained(measure: str, source: str) -> Protocol:
    """Mean over clusters of what GradCAM's maps score on samples from a source."""

    def mean(rows: pd.DataFrame) -> float:
        chosen = (rows["map"] == "GradCAM") & (rows["source"] == source)
        return float(rows.loc[chosen, measure].mean())

    return Protocol(mean, SCORES)


def percent_gained(rounds: pd.DataFrame) -> float:
    """How much a clustering's accuracy grew, in per cent of what it was."""
    first, last_one = rounds["accuracy"].iloc[0], rounds["accuracy"].iloc[-1]
    return float(100 * (last_one - first) / first)


PROTOCOLS = {
    "mean-50-ari": table_measure("RAND"),
    "mean-50-ami": table_measure("AMI"),
    "mean-50-homogeneity": table_measure("COM"),
    "clustering-round": Protocol(metrics.round_as_in_the_ocfl_tables, ROUNDS),
    "last-accuracy": at(-1, "accuracy", PERCENT, 100),
    "last-worst-accuracy": at(-1, "worst_accuracy", PERCENT, 100),
    "last-clean-accuracy": at(-1, "clean_accuracy", PERCENT, 100),
    "last-backdoor-accuracy": at(-1, "backdoor_accuracy", PERCENT, 100),
    "last-ari": at(-1, "ari", SCORES),
    "first-clustering-accuracy": at(0, "accuracy", SCORES),
    "last-clustering-accuracy": at(-1, "accuracy", SCORES),
    "clustering-improvement": Protocol(percent_gained, PERCENT),
    "last-communities": at(-1, "communities", CLUSTERS),
    "last-wrong-associations": at(-1, "wrong", PERCENT, 100),
    "first-isolated": at(0, "isolated", CLUSTERS),
    "last-isolated": at(-1, "isolated", CLUSTERS),
    **{
        f"{measure}-{source}": explained(measure, source)
        for measure in ("insertion", "deletion")
        for source in ("in-cluster", "out-of-cluster", "orchestrator")
    },
}
# Of what no record holds: hours, distances between parameters, ranks over many runs
UNRECORDED = Protocol(lambda rounds: None, SCORES)


@dataclass(frozen=True)
class Source:
    """Where a paper's runs come from.

    Attributes
    ----------
    folder : str
        Of its parameter files; its records' names begin so, too.
    notebook : str
        That takes them.
    scenario : list of str
        The parameters that tell its scenarios apart: columns of its tables.
    file : str
        The name of a scenario's parameter file, which has the other parameters.
    methods : dict of str to str
        Its names for methods, and ours. A run has a method "as published", too, where what the
        paper's code did is another thing than what was meant.
    """

    folder: str
    notebook: str
    scenario: list[str]
    file: str
    methods: dict[str, str]


OCFL = Source(
    "ocfl",
    "03_ocfl_temperature",
    SCENARIO,
    "{dataset}_{clients}_{overlap}_{balance}.yaml",
    {"SCL": "Sattler", "BCL": "Briggs", **{name: name for name in CLUSTERERS}},
)
EXPLANATIONS = Source(
    "explanations",
    "07_explaining_cluster_models",
    SCENARIO,
    OCFL.file,
    {"BNC": "FedAvg", **OCFL.methods},
)
EMD = Source(
    "emd-cfl",
    "05_emd_cfl",
    ["dataset", "version", "participants"],
    "{dataset}_{version}.yaml",
    {name: name for name in ("EMD-CFL", "Oracle", "FedAvg", "FedProx")},
)
FEDCREF = Source(
    "fedcref",
    "06_fedcref",
    ["dataset", "clustering", "dirtiness", "overlap_fraction", "clients"],
    "{dataset}.yaml",
    {name: name for name in ("FedCRef", "Perfect associations", "Global DEC")},
)
RUNS = {
    "ocfl": OCFL,
    "ocfl-extended": OCFL,
    "ocfl-explanations": EXPLANATIONS,
    "emd-cfl": EMD,
    "fedcref": FEDCREF,
}
SCENARIOS = [*dict.fromkeys(SCENARIO + EMD.scenario + FEDCREF.scenario)]
CELL = ["paper", "table", *SCENARIOS, "method", "measure"]
# Whole numbers, where a table has them
COUNTED = dict.fromkeys(("clients", "participants"), "Int64")
# Parameters in which runs of one scale may differ: seeds, and how often something is measured that
# no table has
FREE = {"seed", "partition_seed", "central_every"}


def published() -> pd.DataFrame:
    """The cells of all tables under ``data/published``, dashes that say nothing left out."""
    files = sorted(PUBLISHED.glob("*_table-*.csv"))
    texts = {"table": str, "protocol": str}
    cells = pd.concat([pd.read_csv(f, dtype=texts) for f in files], ignore_index=True)
    cells = cells[cells["value"].notna() | cells["dash"].notna()].reset_index(drop=True)
    return cells.astype(COUNTED)


def status(value: float, ours: Iterable[float], within: tuple[float, float] = SCORES) -> str:
    """One of `STATUS` for a published value and ours, a value a seed.

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

    None for all other parameters (`FREE` ones apart): such a run is an experiment of its own, and
    no table's. None, too, for a run of another paper's methods.
    """
    source = RUNS[paper]
    if not record.id.startswith(f"{source.folder}-"):
        return None
    for name in ("paper", "reduced"):
        full = scale_parameters(paper, name, scenario_of(record, paper))
        if full is not None and all(
            record.parameters.get(k) == full[k] for k in full if k not in FREE
        ):
            return name
    return None


def scenario_of(record: Record, paper: str = "ocfl") -> tuple:
    """The scenario of a run."""
    return tuple(record.parameters.get(name) for name in RUNS[paper].scenario)


def reduction(paper: str, scenario: tuple) -> str:
    """What the reduced scale has otherwise than the paper's, as ``"name value"``s."""
    full, less = (scale_parameters(paper, name, scenario) or {} for name in ("paper", "reduced"))
    return ", ".join(f"{n} {less[n]}" for n in less if n not in FREE and less[n] != full.get(n))


@cache
def scale_parameters(paper: str, scale: str, scenario: tuple) -> dict | None:
    """All parameters of a scenario at one of the two scales, if there is a file of it."""
    source = RUNS[paper]
    named = dict(zip(source.scenario, scenario, strict=True))
    place = PROJECT / "notebooks" / "params" / source.folder / scale
    path = place / source.file.format(**named)
    if not path.exists():
        return None
    usual = defaults(source.notebook)
    given = yaml.safe_load(path.read_text())
    meant = {name: notebooks.as_meant(value, usual.get(name)) for name, value in given.items()}
    return usual | meant | named


@cache
def defaults(notebook: str) -> dict:
    """The parameters of a notebook as committed."""
    return notebooks.defaults(notebooks.read(PROJECT / "notebooks" / f"{notebook}.ipynb"))


def command(record: Record, paper: str = "ocfl") -> str:
    """The command that makes a record again."""
    notebook = RUNS[paper].notebook
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
        The columns of `published`, then for runs at the paper's scale those of `compared`; and the
        same with the prefix ``reduced_`` for runs at the reduced scale, of which ``reduced_scale``
        says what differs.
    """
    cells = published()
    grouped: dict[tuple, dict[tuple, Record]] = {}
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
            None if pd.isna(cell[name]) else cell[name] for name in RUNS[paper].scenario
        )
        full, less = (
            list(grouped.get((paper, scenario, name), {}).values()) for name in ("paper", "reduced")
        )
        reduced = {f"reduced_{name}": value for name, value in compared(cell, less).items()}
        differs = reduction(paper, scenario) if less else ""
        rows.append(cell | compared(cell, full) | reduced | {"reduced_scale": differs})
    return pd.DataFrame(rows).astype(COUNTED)


def compared(cell: dict, runs: list[Record]) -> dict[str, object]:
    """One published cell against the runs of one scale.

    Returns
    -------
    dict of str to object
        ``ours``, ``low`` and ``high`` (mean, smallest and largest over seeds of the method as the
        paper's code has it; of a round, over the seeds that have one), ``seeds``, ``never`` (in how
        many of them all clients stayed one cluster), ``status``, ``intended`` (the mean of the
        method as meant, where that is another) and ``runs`` (their ids).
    """
    protocol = PROTOCOLS.get(cell["protocol"], UNRECORDED)
    runs = [] if protocol is UNRECORDED else runs
    name = RUNS[cell["paper"]].methods.get(cell["method"], "")
    rows = [method for run in runs if len(method := as_printed(run, name))]
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


def as_printed(run: Record, name: str) -> pd.DataFrame:
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


def shown(table: pd.DataFrame) -> pd.DataFrame:
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
                for name in CELL
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
