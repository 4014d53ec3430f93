"""Every published number beside ours.

The papers' tables lie under ``data/published``, a row a cell; the ledger joins them with the run
records. Runs at a paper's own scale and at a reduced one are kept apart: what a small network finds
in a corner of the data is no reproduction of a table, however near the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from cflkit import metrics, notebooks, records
from cflkit.published import AS_PUBLISHED
from cflkit.records import PROJECT, Record

PUBLISHED = PROJECT / "data" / "published"
LEDGER = PROJECT / "data" / "ledger.csv"
STATUS = ("reproduced", "close", "not reproduced", "not run")
SCENARIO = ["dataset", "overlap", "balance", "clients"]
CELL = ["paper", "table", *SCENARIO, "method", "measure"]

# How far from the published value our mean may lie
REPRODUCED, CLOSE = 0.02, 0.05
# Half a unit of the digits printed
ROUNDING = 0.005


def table_measure(name: str) -> Callable[[pd.DataFrame], float | None]:
    """A measure of the OCFL papers' tables, by its name there."""
    return lambda rounds: metrics.as_in_the_ocfl_tables(rounds)[name]


# How a published number comes from a method's rounds
PROTOCOLS: dict[str, Callable[[pd.DataFrame], float | None]] = {
    "mean-50-ari": table_measure("RAND"),
    "mean-50-ami": table_measure("AMI"),
    "mean-50-homogeneity": table_measure("COM"),
    "clustering-round": metrics.clustering_round,
}
# A paper's name for a method, and ours for what its code did and for what was meant
METHODS = {
    "SCL": ("Sattler", "Sattler"),
    "BCL": ("Briggs" + AS_PUBLISHED, "Briggs"),
    "OCFL-KM": ("OCFL-KM", "OCFL-KM"),
    "OCFL-AFF": ("OCFL-AFF" + AS_PUBLISHED, "OCFL-AFF"),
    "OCFL-MS": ("OCFL-MS", "OCFL-MS"),
    "OCFL-HDB": ("OCFL-HDB", "OCFL-HDB"),
}
# What a subset stands for, in runs of reduced scale
STANDS_FOR = {"cifar10-subset": "cifar10", "bloodmnist-rebuilt": "bloodmnist"}
# The paper's parameter files and the notebook that takes them
RUNS = {
    "ocfl": ("ocfl", "03_ocfl_temperature"),
    "ocfl-extended": ("ocfl", "03_ocfl_temperature"),
}


def published() -> pd.DataFrame:
    """The cells of all tables under ``data/published``."""
    files = sorted(PUBLISHED.glob("*_table-*.csv"))
    return pd.concat([pd.read_csv(f, dtype={"table": str}) for f in files], ignore_index=True)


def status(value: float, ours: Iterable[float]) -> str:
    """One of `STATUS` for a published value and ours, a value a seed.

    Reproduced: the value lies in the interval of ours (smallest to largest; three seeds carry no
    finer one) up to the rounding of print, or within 0.02 of their mean. Close: within 0.05 of it.
    A value or a run that is NaN never clustered, and only agrees with another.
    """
    runs = np.array(list(ours), dtype=float)
    if not len(runs):
        return "not run"
    if np.isnan(value) or np.isnan(runs).any():
        return "reproduced" if np.isnan(value) and np.isnan(runs).all() else "not reproduced"
    distance = abs(runs.mean() - value)
    inside = runs.min() - ROUNDING <= value <= runs.max() + ROUNDING
    # The tolerances themselves belong to what they bound, whatever binary fractions make of them
    if inside or distance <= REPRODUCED + 1e-9:
        return "reproduced"
    return "close" if distance <= CLOSE + 1e-9 else "not reproduced"


def scale(record: Record, paper: str) -> str:
    """What a run has otherwise than the paper: ``""`` at the paper's scale, else ``"name value"``s.

    Seeds do not count, nor what does not touch a table's numbers.
    """
    folder, notebook = RUNS[paper]
    given, wanted = record.parameters, paper_parameters(folder, scenario_of(record))
    if wanted is None:
        return "a scenario that the paper does not have"
    full = defaults(notebook) | wanted
    free = {"seed", "partition_seed", "central_every", "briggs_threshold"}
    other = [f"{k} {given[k]}" for k in full if k not in free and given.get(k) != full[k]]
    return ", ".join(other)


def scenario_of(record: Record) -> tuple[str, str, str, int]:
    """The scenario of a run, under the name of the data set that it stands for."""
    p = record.parameters
    dataset = STANDS_FOR.get(p["dataset"], p["dataset"])
    return dataset, p["overlap"], p["balance"], p["clients"]


@cache
def paper_parameters(folder: str, scenario: tuple[str, str, str, int]) -> dict | None:
    """The parameter file of a scenario at the paper's scale."""
    dataset, overlap, balance, clients = scenario
    file = f"{dataset}_{clients}_{overlap}_{balance}.yaml"
    path = PROJECT / "notebooks" / "params" / folder / file
    return yaml.safe_load(path.read_text()) if path.exists() else None


@cache
def defaults(notebook: str) -> dict:
    """The parameters of a notebook as committed."""
    return notebooks.defaults(notebooks.read(PROJECT / "notebooks" / f"{notebook}.ipynb"))


def command(record: Record, paper: str = "ocfl") -> str:
    """The command that makes a record again."""
    notebook = RUNS[paper][1]
    usual = defaults(notebook)
    given = [
        f"-p {name} {'null' if value is None else str(value).lower()}"
        for name, value in record.parameters.items()
        if name in usual and usual[name] != value
    ]
    return " ".join([f"python -m cflkit run notebooks/{notebook}.ipynb", *given])


def values(runs: list[Record], method: str, protocol: str) -> list[float]:
    """A method's number in each run that has the method; NaN where it never clustered."""
    found = []
    for run in runs:
        rows = run.rounds[run.rounds["method"] == method]
        if len(rows):
            number = PROTOCOLS[protocol](rows)
            found.append(np.nan if number is None else float(number))
    return found


def ledger(runs: list[Record] | None = None) -> pd.DataFrame:
    """The published cells, each beside our runs of the scenario.

    Parameters
    ----------
    runs : list of Record, optional
        By default all of `records.find`.

    Returns
    -------
    DataFrame
        The columns of `published`, then for runs at the paper's scale ``ours`` (mean over seeds of
        the method as the paper's code has it), ``low``, ``high``, ``seeds``, ``status``,
        ``intended`` (the mean of the method as meant, where that is another) and ``runs`` (their
        ids); the same with the prefix ``reduced_`` for runs at a reduced scale, of which
        ``reduced_scale`` says what differs. Where there are several reduced scales the one with
        most runs counts.
    """
    cells = published()
    known = records.find() if runs is None else runs
    grouped: dict[tuple, dict[str, list[Record]]] = {}
    for paper in cells["paper"].unique():
        for run in known:
            if run.id.startswith(RUNS[paper][0] + "-"):
                scales = grouped.setdefault((paper, *scenario_of(run)), {})
                scales.setdefault(scale(run, paper), []).append(run)
    rows = []
    for cell in cells.to_dict("records"):
        scales = grouped.get((cell["paper"], *(cell[name] for name in SCENARIO)), {})
        reduced = max((s for s in scales if s), key=lambda s: len(scales[s]), default="")
        rows.append(
            cell
            | compared(cell, scales.get("", []), "")
            | compared(cell, scales.get(reduced, []) if reduced else [], "reduced_")
            | {"reduced_scale": reduced}
        )
    return pd.DataFrame(rows)


def compared(cell: dict, runs: list[Record], prefix: str) -> dict[str, object]:
    """One published cell against the runs of one scale."""
    as_published, intended = METHODS[cell["method"]]
    # A dash is a score of zero, but in a column of rounds there is no such round
    rounds = cell["protocol"] == "clustering-round"
    value = (np.nan if rounds else 0.0) if pd.isna(cell["value"]) else cell["value"]
    ours = values(runs, as_published, cell["protocol"])
    if not rounds:
        ours = [number for number in ours if not np.isnan(number)]  # too short for the protocol
    meant = values(runs, intended, cell["protocol"]) if intended != as_published else []
    some = [number for number in ours if not np.isnan(number)]
    return {
        f"{prefix}ours": np.mean(some) if some else np.nan,
        f"{prefix}low": min(some, default=np.nan),
        f"{prefix}high": max(some, default=np.nan),
        f"{prefix}seeds": len(ours),
        f"{prefix}status": status(value, ours),
        f"{prefix}intended": np.mean(meant) if meant else np.nan,
        f"{prefix}runs": " ".join(run.id for run in runs) if ours else "",
    }


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

    def ours(row: pd.Series, prefix: str) -> str:
        if row[f"{prefix}status"] == "not run":
            return "not run"
        mean, low, high = (row[f"{prefix}{name}"] for name in ("ours", "low", "high"))
        number = "never" if pd.isna(mean) else f"{mean:.2f} [{low:.2f}, {high:.2f}]"
        return f"{number} n={row[f'{prefix}seeds']} {row[f'{prefix}status']}"

    return pd.DataFrame(
        {
            **{name: table[name] for name in CELL},
            "published": ["–" if pd.isna(v) else f"{v:g}" for v in table["value"]],
            "paper's scale": [ours(row, "") for _, row in table.iterrows()],
            "reduced scale": [ours(row, "reduced_") for _, row in table.iterrows()],
            "as meant, reduced": [
                "" if pd.isna(v) else f"{v:.2f}" for v in table["reduced_intended"]
            ],
        }
    )


def write(table: pd.DataFrame, path: Path = LEDGER) -> Path:
    """Write the ledger as CSV, numbers to four digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.4g")
    return path
