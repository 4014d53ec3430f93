"""Measures of how well clusters agree with the truth, and the summary of a run.

The measures of clusters are those of section 4.3 of the extended OCFL paper, each computed as its
name says; `reproduce.papers.ocfl` computes what the tables of that paper report under these names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd

# What is measured of the clients' models, in the order of `performance`
PERFORMANCE = ("pf1", "gf1", "learning_gap", "accuracy", "worst_accuracy", "central_accuracy")
MEASURES = (
    *("ari", "ami", "homogeneity", "completeness", *PERFORMANCE),
    *("clean_accuracy", "backdoor_accuracy"),
)
COSTS = ("bytes_down", "bytes_up", "trainings")


def agreement(truth: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Compute the agreement of a clustering with the true one, both as labels ``[m]``.

    Returns
    -------
    dict of str to float
        ``ari`` (adjusted Rand index), ``ami`` (adjusted mutual information), ``homogeneity``
        (whether each cluster holds members of one true cluster) and ``completeness`` (whether each
        true cluster lies in one cluster). All are 1 when the groupings are the same.
    """
    from sklearn import metrics  # scikit-learn takes half a second to load

    homogeneity, completeness, _ = metrics.homogeneity_completeness_v_measure(truth, labels)
    return {
        "ari": float(metrics.adjusted_rand_score(truth, labels)),
        "ami": float(metrics.adjusted_mutual_info_score(truth, labels)),
        "homogeneity": float(homogeneity),
        "completeness": float(completeness),
    }


def matched(truth: ArrayLike, labels: ArrayLike) -> dict[int, int]:
    """Match clusters to true classes one to one, so that as many samples as possible are right.

    If there are more clusters than classes, the result does not contain the remaining clusters.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    classes, clusters = np.unique(truth), np.unique(labels)
    together = contingency_matrix(truth, labels)
    pairs = zip(*linear_sum_assignment(together, maximize=True), strict=True)
    return {int(clusters[j]): int(classes[i]) for i, j in pairs}


def renamed(truth: ArrayLike, labels: ArrayLike, first: int | None = None) -> np.ndarray:
    """Give the clusters of a clustering the names of the true clusters that they match best.

    Both are labels ``[m]``. Clusters that match no true one get the smallest unused numbers from
    ``first`` on, by default numbers above all true ones. Figures can then show the same colour for
    the same cluster.
    """
    truth, labels = np.asarray(truth), np.asarray(labels)
    names = matched(truth, labels)
    start = int(truth.max()) + 1 if first is None else first
    unused = (name for name in itertools.count(start) if name not in names.values())
    for cluster in labels.tolist():
        if cluster not in names:
            names[cluster] = next(unused)
    return np.array([names[cluster] for cluster in labels.tolist()])


def clustering_accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Compute ACC, the share of samples that are right under the best matching of clusters.

    This is equation 4 of FedCRef; the Hungarian algorithm finds the matching. ACC is symmetric. It
    can therefore also compare two clusterings of which neither is the truth.

    Raises
    ------
    ValueError
        There is no sample, or the two arguments have different numbers of labels.
    """
    truth, labels = np.asarray(truth), np.asarray(labels)
    if not truth.size or truth.shape != labels.shape:
        raise ValueError(f"needs as many labels on both sides, not {truth.shape}, {labels.shape}")
    guesses = map(matched(truth, labels).get, labels.tolist())  # None without a match
    pairs = zip(guesses, truth.tolist(), strict=True)
    return float(np.mean([guess == label for guess, label in pairs]))


# --- The summary of a run ------------------------------------------------------------------------


def by_method(
    table: pd.DataFrame, measures: Callable[[pd.DataFrame], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Summarise a run: for each method, the ``measures`` of its rows.

    For a method that diverged, the summary has only ``diverged_in``, the round in which this
    happened.
    """
    result: dict[str, dict[str, Any]] = {}
    for method, rows in table.groupby("method", sort=False):
        if "diverged" in rows and rows["diverged"].notna().any():
            result[str(method)] = {"diverged_in": int(rows["round"].iloc[-1])}
        else:
            result[str(method)] = measures(rows)
    return result


def of_models(rows: pd.DataFrame) -> dict[str, float | int | None]:
    """Summarise the rows of a method.

    A measure has its value after the last round. With the prefix ``mean_``, it is the mean over the
    rounds in which it was measured. Costs, such as bytes, have only a sum over rounds, with the
    prefix ``total_``.
    ``clustering_round`` is the first round (from 1) that ends with more than one cluster.
    """
    known = set(rows.columns[rows.notna().any()])
    measures: dict[str, float | int | None] = {}
    if "n_clusters" in known:
        split = rows.loc[rows["n_clusters"] > 1, "round"]
        measures["clustering_round"] = int(split.iloc[0]) if len(split) else None
        measures["n_clusters"] = int(rows["n_clusters"].iloc[-1])
    for name in [name for name in MEASURES if name in known]:
        measures[name] = float(rows[name].iloc[-1])
        measures[f"mean_{name}"] = float(rows[name].mean())
    for name in [name for name in COSTS if name in known]:
        measures[f"total_{name}"] = int(rows[name].sum())
    return measures
