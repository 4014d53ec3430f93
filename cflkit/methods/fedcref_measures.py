"""What is measured of FedCRef: its clusters of samples, and their associations.

Measuring needs the truth, which the method does not see: the classes of each client's samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cflkit import metrics
from cflkit.clustering import Labels
from cflkit.methods.base import Measuring
from cflkit.methods.fedcref_clusters import Edges, true_classes

if TYPE_CHECKING:
    import pandas as pd


def clusters_of_samples(
    methods: Mapping[str, Any], federation: Any, t: int, test_sets: str = "all"
) -> list[dict[str, Any]]:
    """Measure the clusters of samples that FedCRef has after iteration ``t``; no test set is used.

    Returns
    -------
    list of dict
        One row per method. These columns describe the clusters with which the iteration began:

        - ``communities``, and ``isolated``: the number of isolated clusters; at the start all
          clusters are isolated;
        - ``wrong``: the share of associations between clusters of different classes;
        - ``owners`` and ``classes``: the client and the true class of each cluster, joined by
          ``|``;
        - ``edges``: the associations as pairs of clusters ``i-j``, joined by ``|``.

        These columns describe the clusters that the iteration refined:

        - ``accuracy`` and ``worst_accuracy``: the mean and the smallest clustering accuracy of the
          clients;
        - ``active``: the number of clients that will refine again.

        A row also has ``method``, and ``round``: the iteration, where 0 is the start.
    """
    truth = [federation.targets(c, "train").cpu().tolist() for c in range(federation.clients)]
    rows = []
    for name, method in methods.items():
        accuracies = [
            metrics.clustering_accuracy(classes, found)
            for classes, found in zip(truth, method.clusterings, strict=True)
        ]
        classes = true_classes(truth, method.before)
        communities, isolated = method.counts[-1]
        pairs = zip(*np.nonzero(np.triu(method.edges)), strict=True)
        rows.append(
            {
                "method": name,
                "round": method.iteration,
                "communities": communities,
                "isolated": isolated,
                "wrong": wrong_share(method.edges, classes),
                "accuracy": float(np.mean(accuracies)),
                "worst_accuracy": float(np.min(accuracies)),
                "active": int(method.active.sum()),
                "owners": "|".join(map(str, method.owner)),
                "classes": "|".join(map(str, classes)),
                "edges": "|".join(f"{i}-{j}" for i, j in pairs),
            }
        )
    return rows


def wrong_share(edges: Edges, classes: Labels) -> float:
    """Return the share of associations between clusters of different classes; 0 without any.

    Every association of a cluster that represents no class (-1) is wrong.
    """
    first, second = np.nonzero(np.triu(edges))
    wrong = (classes[first] != classes[second]) | (classes[first] < 0)
    return float(wrong.mean()) if len(first) else 0.0


def of_clusters(rows: pd.DataFrame) -> dict[str, Any]:
    """Summarise the iterations of a method.

    Values are those after the last iteration. Those with the suffix ``_start`` are from before the
    first iteration.
    """
    first, last = rows.iloc[0], rows.iloc[-1]
    return {
        "iterations": int(last["round"]),
        **{name: int(last[name]) for name in ("communities", "isolated", "active")},
        "isolated_start": int(first["isolated"]),
        **{name: float(last[name]) for name in ("wrong", "accuracy", "worst_accuracy")},
        "accuracy_start": float(first["accuracy"]),
    }


OF_CLUSTERS = Measuring(clusters_of_samples, of_clusters, at_start=True)
