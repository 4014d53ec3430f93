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
    *("clean_accuracy", "backdoor_accuracy", "bytes_down", "bytes_up"),
)


def of_models(table: pd.DataFrame) -> Summary:
    """Summarise a run: each measure at the last round; with ``mean_`` over the rounds measured.

    ``clustering_round`` is the first round (from 1) that ends with more than one cluster. Of a
    method that diverged there is the round in which it did (``diverged_in``) and nothing else.
    Bytes have ``total_`` in place of ``mean_``.
    """
    result: Summary = {}
    for method, rows in table.groupby("method", sort=False):
        if "diverged" in rows and rows["diverged"].notna().any():
            result[str(method)] = {"diverged_in": int(rows["round"].iloc[-1])}
            continue
        measures: dict[str, float | int | None] = {}
        if rows["n_clusters"].notna().any():
            split = rows.loc[rows["n_clusters"] > 1, "round"]
            measures["clustering_round"] = int(split.iloc[0]) if len(split) else None
            measures["n_clusters"] = int(rows["n_clusters"].iloc[-1])
        for name in (name for name in MEASURES if name in rows and rows[name].notna().any()):
            if name.startswith("bytes"):
                measures[f"total_{name}"] = int(rows[name].sum())
                continue
            measures[name] = float(rows[name].iloc[-1])
            measures[f"mean_{name}"] = float(rows[name].mean())
        result[str(method)] = measures
    return result


@dataclass
class History:
    """Results of a run: one row per method and round.

    Attributes
    ----------
    rows : list of dict
        ``method``, ``round``, and what was measured (see `cflkit.evaluation`). The row of the round
        in which a method diverged, its last, has ``diverged`` and nothing measured.
    requested, trained : int
        Local trainings that the methods asked for, and those that were run.
    minutes : float
        Wall-clock minutes of the rounds, those before an interruption included.
    revisions : list of str
        The code's git revision at the start, and at each time that the run went on from a
        checkpoint.
    summarise : callable
        From the table to a summary.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    requested: int = 0
    trained: int = 0
    minutes: float = 0.0
    revisions: list[str] = field(default_factory=list)
    summarise: Callable[[pd.DataFrame], Summary] = of_models

    def table(self) -> pd.DataFrame:
        """Return the rows as a table, methods together, rounds ascending."""
        table = pd.DataFrame(self.rows)
        for name in table.columns[table.isna().any()]:
            values = [row[name] for row in self.rows if row.get(name) is not None]
            if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                table[name] = table[name].astype("Int64")  # pandas makes floats of them otherwise
        methods = table["method"].unique()
        order = pd.Categorical(table["method"], categories=methods, ordered=True)
        return table.assign(order=order).sort_values(["order", "round"]).drop(columns="order")

    def summary(self) -> Summary:
        """Return method → measure → value, by the history's way to summarise."""
        return self.summarise(self.table())
