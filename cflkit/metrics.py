"""Measures of how well clusters agree with the truth, and what a run measures after each round.

The measures of clusters are those of section 4.3 of the extended OCFL paper, each computed as its
name says; `reproduce.papers.ocfl` computes what the tables of that paper report under these names.
Measuring needs the truth, which methods do not see: the true cluster of each client, and the labels
of test samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from cflkit.federation import FederationLike
from cflkit.federation.interface import Mixture, Scores
from cflkit.methods.base import Measuring, Method
from cflkit.models.rows import digests

if TYPE_CHECKING:
    import pandas as pd

# What is measured of the clients' models, in the order of `performance`
PERFORMANCE = ("pf1", "gf1", "learning_gap", "accuracy", "worst_accuracy", "central_accuracy")
MEASURES = (
    *("ari", "ami", "homogeneity", "completeness", *PERFORMANCE),
    *("clean_accuracy", "backdoor_accuracy"),
)
COSTS = ("bytes_down", "bytes_up", "trainings")


def agreement(truth: ArrayLike, found: ArrayLike) -> dict[str, float]:
    """Compute the agreement of a clustering with the true one, both as labels ``[m]``.

    Returns
    -------
    dict of str to float
        ``ari`` (adjusted Rand index), ``ami`` (adjusted mutual information), ``homogeneity``
        (whether each cluster holds members of one true cluster) and ``completeness`` (whether each
        true cluster lies in one cluster). All are 1 when the groupings are the same.
    """
    from sklearn import metrics  # scikit-learn takes half a second to load

    return {
        "ari": float(metrics.adjusted_rand_score(truth, found)),
        "ami": float(metrics.adjusted_mutual_info_score(truth, found)),
        "homogeneity": float(metrics.homogeneity_score(truth, found)),
        "completeness": float(metrics.completeness_score(truth, found)),
    }


def matched(truth: ArrayLike, found: ArrayLike) -> dict[int, int]:
    """Match clusters to true classes one to one, so that as many samples as possible are right.

    If there are more clusters than classes, the result does not contain the remaining clusters.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    classes, clusters = np.unique(truth), np.unique(found)
    together = contingency_matrix(truth, found)
    pairs = zip(*linear_sum_assignment(together, maximize=True), strict=True)
    return {int(clusters[j]): int(classes[i]) for i, j in pairs}


def renamed(truth: ArrayLike, found: ArrayLike) -> np.ndarray:
    """Give the clusters of a clustering the names of the true clusters that they match best.

    Both are labels ``[m]``. Clusters that match no true one get numbers that are new. Figures can
    then show the same colour for the same cluster.
    """
    truth, found = np.asarray(truth), np.asarray(found)
    names = matched(truth, found)
    unused = itertools.count(int(truth.max()) + 1)
    for cluster in np.unique(found).tolist():
        if cluster not in names:
            names[cluster] = next(unused)
    return np.array([names[cluster] for cluster in found.tolist()])


def clustering_accuracy(truth: ArrayLike, found: ArrayLike) -> float:
    """Compute ACC, the share of samples that are right under the best matching of clusters.

    This is equation 4 of FedCRef; the Hungarian algorithm finds the matching. ACC is symmetric. It
    can therefore also compare two clusterings of which neither is the truth.

    Raises
    ------
    ValueError
        There is no sample, or the two arguments have different numbers of labels.
    """
    truth, found = np.asarray(truth), np.asarray(found)
    if not truth.size or truth.shape != found.shape:
        raise ValueError(f"needs as many labels on both sides, not {truth.shape}, {found.shape}")
    names = matched(truth, found)
    guesses = np.array([names.get(cluster, -1) for cluster in found.tolist()])
    return float((guesses == truth).mean())


# --- After each round -----------------------------------------------------------------------------


def on_test_sets(
    methods: Mapping[str, Method],
    federation: FederationLike,
    t: int,
    test_sets: str = "all",
) -> list[dict[str, Any]]:
    """Measure the clusters and the model of each client after round ``t``.

    Each distinct model is evaluated only once on each test set.

    Parameters
    ----------
    methods : mapping of str to Method
        The methods by name.
    federation : FederationLike
        The federation that has the test sets.
    t : int
        The round, from 0.
    test_sets : {"all", "own", "none"}
        The test sets for the models: those of the clients and the central one, those of the
        clients alone, or none.

    Returns
    -------
    list of dict
        One row per method, with these columns:

        - ``method``, and ``round`` (from 1);
        - ``n_clusters``, and the measures of `agreement`;
        - ``pf1`` and ``accuracy``: macro-F1 and accuracy of each client's model on the client's own
          test set, as means over clients;
        - ``worst_accuracy``: the smallest accuracy of a client;
        - ``gf1`` and ``central_accuracy``: the same models on the central test set;
        - ``learning_gap``: the mean over clients of the distance between both F1;
        - ``clean_accuracy`` and ``backdoor_accuracy``: means over the target clients of a backdoor,
          on their test samples as they are, and on the manipulated ones;
        - the method's scalars;
        - ``clusters``: the cluster of each client, joined by ``|``;
        - ``settled``: whether no later round can change the clusters.

        The measures on the central test set and the gap are NaN where this set was skipped or does
        not exist. Without test sets, there are no columns about models. Methods without clusters
        have no columns about clusters, and without true clusters there are no measures of
        agreement. Only federations with a backdoor have the two measures of a backdoor.
    """
    measured: Mapping[str, Mapping[str, float]] = {}
    if test_sets != "none":
        measured = performances(methods, federation, test_sets == "all")
    return [
        {
            "method": name,
            "round": t + 1,
            **clusters_found(federation, method),
            **measured.get(name, {}),
            **method.scalars,
            **joined_labels(method),
        }
        for name, method in methods.items()
    ]


def performances(
    methods: Mapping[str, Method], federation: FederationLike, central: bool
) -> dict[str, dict[str, float]]:
    """Evaluate the clients' models; return each method's measures."""
    models, held = models_of(methods)
    pairs = sorted({(mixture, c) for own in held.values() for c, mixture in enumerate(own)})
    tested = [pair for pair in pairs if federation.num_samples(pair[1], "test")]
    own = federation.scores(models, tested, "test")
    targets = [pair for pair in pairs if federation.num_samples(pair[1], "backdoor")]
    on_backdoor = federation.scores(models, targets, "backdoor")
    general: Scores = {}
    if central and federation.num_samples(0, "central"):
        everywhere = sorted({(mixture, 0) for mixture, _ in pairs})
        general = federation.scores(models, everywhere, "central")
    return {
        name: performance(mixtures, own, on_backdoor, general) for name, mixtures in held.items()
    }


def models_of(
    methods: Mapping[str, Method],
) -> tuple[dict[bytes, Tensor], dict[str, list[Mixture]]]:
    """Return the distinct models by digest, and for each method the mixture of each client."""
    models: dict[bytes, Tensor] = {}
    held: dict[str, list[Mixture]] = {}
    for name, method in methods.items():
        rows, mixture = method.client_models()
        keys = digests(rows)
        held[name] = [
            tuple((keys[k], float(shares[k])) for k in shares.nonzero().flatten().tolist())
            for shares in mixture
        ]
        used = {key for own in held[name] for key, _ in own}
        models.update({key: rows[k] for k, key in enumerate(keys) if key in used})
    return models, held


def clusters_found(federation: FederationLike, method: Method) -> dict[str, Any]:
    """Count a method's clusters, if it has any, and compare them with the true ones, if known."""
    if method.labels is None:
        return {}
    labels = method.labels.tolist()
    count = {"n_clusters": len(set(labels))}
    if federation.clusters is None:
        return count
    return count | agreement(federation.clusters.numpy(), labels)


def performance(
    mixtures: Sequence[Mixture], own: Scores, on_backdoor: Scores, general: Scores
) -> dict[str, float]:
    """Average the scores of the clients' mixtures of models over the clients that have scores."""
    held = [(mixture, c) for c, mixture in enumerate(mixtures) if (mixture, c) in own]
    if not held:  # no client has answered
        return dict.fromkeys(PERFORMANCE, np.nan)
    pf1, accuracy = np.array([own[pair] for pair in held]).T
    missing = (np.nan, np.nan)
    gf1, central = np.array([general.get((mixture, 0), missing) for mixture, _ in held]).T
    means = pf1.mean(), gf1.mean(), np.abs(pf1 - gf1).mean(), accuracy.mean(), accuracy.min()
    measures = dict(zip(PERFORMANCE, map(float, (*means, central.mean())), strict=True))
    targets = [pair for pair in held if pair in on_backdoor]
    if targets:
        measures["clean_accuracy"] = float(np.mean([own[pair][1] for pair in targets]))
        measures["backdoor_accuracy"] = float(np.mean([on_backdoor[pair][1] for pair in targets]))
    return measures


def joined_labels(method: Method) -> dict[str, Any]:
    """Return the cluster of each client joined by ``|``, if the method has clusters."""
    if method.labels is None:
        return {}
    return {"clusters": "|".join(map(str, method.labels.tolist())), "settled": method.settled}


def diverged_in(rows: pd.DataFrame) -> int | None:
    """Return the round in which the method of these rows left the run; None if it did not."""
    if "diverged" not in rows or rows["diverged"].isna().all():
        return None
    return int(rows["round"].iloc[-1])


def of_models(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Summarise a run by the measures of each method.

    A measure has its value after the last round. With the prefix ``mean_``, it is the mean over the
    rounds in which it was measured. Costs, such as bytes, have only a sum over rounds, with the
    prefix ``total_``.
    ``clustering_round`` is the first round (from 1) that ends with more than one cluster. For a
    method that diverged, the summary has only ``diverged_in``, the round in which this happened.
    """
    result: dict[str, dict[str, Any]] = {}
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


ON_TEST_SETS = Measuring(on_test_sets, of_models)
