"""The results of a run as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

# Method → measure → value
Summary = dict[str, dict[str, float | int | None]]

MEASURES = (
    *("ari", "ami", "homogeneity", "completeness"),
    *("pf1", "gf1", "learning_gap", "accuracy", "worst_accuracy", "central_accuracy"),
    *("clean_accuracy", "backdoor_accuracy"),
)
COSTS = ("bytes_down", "bytes_up", "trainings")


def diverged_in(rows: pd.DataFrame) -> int | None:
    """Return the round in which the method of these rows left the run; None if it did not."""
    if "diverged" not in rows or rows["diverged"].isna().all():
        return None
    return int(rows["round"].iloc[-1])


def of_models(table: pd.DataFrame) -> Summary:
    """Summarise a run by the measures of each method.

    A measure has its value after the last round. With the prefix ``mean_``, it is the mean over the
    rounds in which it was measured. Costs, such as bytes, have only a sum over rounds, with the
    prefix ``total_``.
    ``clustering_round`` is the first round (from 1) that ends with more than one cluster. For a
    method that diverged, the summary has only ``diverged_in``, the round in which this happened.
    """
    result: Summary = {}
    for method, rows in table.groupby("method", sort=False):
        if (left := diverged_in(rows)) is not None:
            result[str(method)] = {"diverged_in": left}
            continue
        measures: dict[str, float | int | None] = {}
        if "n_clusters" in rows and rows["n_clusters"].notna().any():
            split = rows.loc[rows["n_clusters"] > 1, "round"]
            measures["clustering_round"] = int(split.iloc[0]) if len(split) else None
            measures["n_clusters"] = int(rows["n_clusters"].iloc[-1])
        for name in (name for name in MEASURES if name in rows and rows[name].notna().any()):
            measures[name] = float(rows[name].iloc[-1])
            measures[f"mean_{name}"] = float(rows[name].mean())
        for name in (name for name in COSTS if name in rows and rows[name].notna().any()):
            measures[f"total_{name}"] = int(rows[name].sum())
        result[str(method)] = measures
    return result


@dataclass
class History:
    """Results of a run: one row per method and round.

    Attributes
    ----------
    rows : list of dict
        ``method``, ``round``, and the measurements (see `cflkit.simulation.evaluation`). In the
        round in which a method diverges, its row has ``diverged`` and no measurements. It is the
        method's last row.
    requested, trained : int
        The numbers of local trainings that the methods asked for, and that were run.
    minutes : float
        The wall-clock minutes of all rounds, including those before an interruption.
    peak_memory : float
        The largest memory in GiB after a round, including those before an interruption (see
        `machine.peak_memory`).
    revisions : list of str
        The git revision of the code at the start, and at each time that the run continued from a
        checkpoint.
    summarise : callable
        The function from the table to the summary.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    requested: int = 0
    trained: int = 0
    minutes: float = 0.0
    peak_memory: float = 0.0
    revisions: list[str] = field(default_factory=list)
    summarise: Callable[[pd.DataFrame], Summary] = of_models

    def table(self) -> pd.DataFrame:
        """Return the rows as a table, sorted by method and then by round; empty without rows."""
        if not self.rows:
            return pd.DataFrame(columns=["method", "round"])
        table = pd.DataFrame(self.rows)
        for name in table.columns[table.isna().any()]:
            values = [row[name] for row in self.rows if row.get(name) is not None]
            if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                table[name] = table[name].astype("Int64")  # pandas would convert them to floats
        methods = table["method"].unique()
        order = pd.Categorical(table["method"], categories=methods, ordered=True)
        return table.assign(order=order).sort_values(["order", "round"]).drop(columns="order")

    def divergence(self, method: str) -> dict[str, Any] | None:
        """Return the row that says that a method has diverged; None if it has not."""
        own = (row for row in self.rows if row["method"] == method and row.get("diverged"))
        return next(own, None)

    def summary(self) -> Summary:
        """Return the summary of the table: for each method, the values of its measures."""
        return self.summarise(self.table())
