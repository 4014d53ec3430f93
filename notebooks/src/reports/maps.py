"""Scores of explanations, the authors' and ours, as tables for report 97."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pandas as pd

from cflkit.reproduce.papers import explanations
from cflkit.reproduce.records import AS_PUBLISHED, PUBLISHED, Record


def rows_as_published(run: Record, name: str) -> pd.DataFrame:
    """Return the rows of a method in a run; if the run has it as published, the rows of that."""
    of = run.by_method
    return of.get(name + AS_PUBLISHED, of.get(name, run.rounds.iloc[:0]))


def archived() -> pd.DataFrame:
    """Read the authors' scores, one row per run, source of samples and cluster.

    Methods have our names, and the orchestrator's samples are called central.
    """
    table = pd.read_csv(PUBLISHED / "ocfl-explanations_per-cluster.csv")
    table["method"] = table["method"].replace(explanations.METHODS)
    table["source"] = table["source"].replace("orchestrator", "central")
    table["difference"] = table["insertion"] - table["deletion"]
    return table


def scores(runs: Sequence[Record]) -> pd.DataFrame:
    """Collect the in-cluster scores of this paper's runs, each method as the authors' code had it.

    A row per run, method, cluster and kind of map has the columns of `assessment.assess` and of
    `SCENARIO`, ``seed``, and ``difference``, which is insertion minus deletion.
    """
    columns = [*explanations.SCENARIO, "seed", "method", "map", "source", "insertion", "deletion"]
    parts = [pd.DataFrame(columns=columns)]
    for run, method in product(runs, explanations.METHODS.values()):
        of_run = {name: run.parameters[name] for name in (*explanations.SCENARIO, "seed")}
        parts.append(rows_as_published(run, method).assign(method=method, **of_run))
    table = pd.concat(parts[1:] or parts)
    table = table[table["source"] == "in-cluster"].reset_index(drop=True)
    return table.assign(difference=table["insertion"] - table["deletion"])


def gains(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Compute what OCFL-HDB gains over FedAvg, from the rows of `scores`.

    A row per scenario and seed has, for each kind of map, the mean over OCFL-HDB's clusters minus
    the score of FedAvg's model.
    """
    by = [*explanations.SCENARIO, "seed", "map", "method"]
    means = table.groupby(by, sort=False)[measure].mean().unstack()
    return means if means.empty else (means["OCFL-HDB"] - means["FedAvg"]).unstack("map")
