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
# Of the committed records; `notebooks/build.py` writes it
LEDGER = PROJECT / "data" / "ledger.csv"
STATUS = ("reproduced", "close", "not reproduced", "not run")
SCENARIO = ["dataset", "overlap", "balance", "clients"]
CELL = ["paper", "table", *SCENARIO, "method", "measure"]

# How far our mean may lie from a published score, and from a published round
SCORES, ROUNDS = (0.02, 0.05), (0.0, 1.0)
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
    "clustering-round": metrics.round_as_in_the_ocfl_tables,
}
# A paper's names for methods, and ours; a run has a method "as published", too, where what the
# paper's code did is another thing than what was meant
METHODS = {
    "SCL": "Sattler",
    "BCL": "Briggs",
    **{name: name for name in ("OCFL-KM", "OCFL-AFF", "OCFL-MS", "OCFL-HDB")},
}
# The paper's parameter files, and the notebook that takes them
RUNS = {
    "ocfl": ("ocfl", "03_ocfl_temperature"),
    "ocfl-extended": ("ocfl", "03_ocfl_temperature"),
}
# Parameters in which runs of one scale may differ: seeds, and how often something is measured that
# no table has
FREE = {"seed", "partition_seed", "central_every"}


def published() -> pd.DataFrame:
    """The cells of all tables under ``data/published``."""
    files = sorted(PUBLISHED.glob("*_table-*.csv"))
    return pd.concat([pd.read_csv(f, dtype={"table": str}) for f in files], ignore_index=True)


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
    folder, notebook = RUNS[paper]
    if not record.id.startswith(f"{folder}-"):
        return None
    for name in ("paper", "reduced"):
        wanted = file_parameters(folder, name, scenario_of(record))
        if wanted is not None:
            full = defaults(notebook) | wanted
            if all(record.parameters.get(k) == full[k] for k in full if k not in FREE):
                return name
    return None


def scenario_of(record: Record) -> tuple[str, str, str, int]:
    """The scenario of a run."""
    p = record.parameters
    return p["dataset"], p["overlap"], p["balance"], p["clients"]


def reduction(paper: str, scenario: tuple[str, str, str, int]) -> str:
    """What the reduced scale has otherwise than the paper's, as ``"name value"``s."""
    folder, notebook = RUNS[paper]
    full, less = (
        defaults(notebook) | (file_parameters(folder, name, scenario) or {})
        for name in ("paper", "reduced")
    )
    return ", ".join(f"{n} {less[n]}" for n in less if n not in FREE and less[n] != full[n])


@cache
def file_parameters(folder: str, scale: str, scenario: tuple[str, str, str, int]) -> dict | None:
    """The parameter file of a scenario at one of the two scales, if there is one."""
    dataset, overlap, balance, clients = scenario
    place = PROJECT / "notebooks" / "params" / folder / scale
    path = place / f"{dataset}_{clients}_{overlap}_{balance}.yaml"
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
                grouped.setdefault((paper, scenario_of(run), of), {}).setdefault(seeds, run)
    rows = []
    for cell in cells.to_dict("records"):
        paper, scenario = cell["paper"], tuple(cell[name] for name in SCENARIO)
        full, less = (
            list(grouped.get((paper, scenario, name), {}).values()) for name in ("paper", "reduced")
        )
        reduced = {f"reduced_{name}": value for name, value in compared(cell, less).items()}
        differs = reduction(paper, scenario) if less else ""
        rows.append(cell | compared(cell, full) | reduced | {"reduced_scale": differs})
    return pd.DataFrame(rows)


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
    name = METHODS[cell["method"]]
    as_meant = [run.rounds[run.rounds["method"] == name] for run in runs]
    twins = [run.rounds[run.rounds["method"] == name + AS_PUBLISHED] for run in runs]
    both = [(twin if len(twin) else meant) for twin, meant in zip(twins, as_meant, strict=True)]
    rows = [method for method in both if len(method)]
    protocol = PROTOCOLS[cell["protocol"]]
    ours = np.array([protocol(method) for method in rows], dtype=float)
    # Against print, one cluster from first to last is a dash; a table's score of 0 has several
    whole = np.array([(method["n_clusters"] == 1).all() for method in rows], dtype=bool)
    rounds = cell["protocol"] == "clustering-round"
    against_print = ours if rounds else np.where(whole, np.nan, ours)
    some = ours[~np.isnan(ours)]
    meant = [protocol(method) for method in as_meant if len(method)] if any(map(len, twins)) else []
    return {
        "ours": some.mean() if len(some) else np.nan,
        "low": some.min() if len(some) else np.nan,
        "high": some.max() if len(some) else np.nan,
        "seeds": len(rows),
        "never": int(np.isnan(ours).sum() if rounds else whole.sum()),
        "status": status(cell["value"], against_print, ROUNDS if rounds else SCORES),
        "intended": pd.Series(meant, dtype=float).mean(),
        "runs": " ".join(run.id for run in runs) if rows else "",
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
            **{name: table[name] for name in CELL},
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
