"""How well clusters agree with the truth, and how well models predict.

The measures of section 4.3 and 4.4 of the extended OCFL paper, under their own names. (What that
paper's tables have under these names is in `papers.ocfl`.)
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    completeness_score,
    homogeneity_score,
)
from torch import Tensor


def agreement(truth: ArrayLike, found: ArrayLike) -> dict[str, float]:
    """Agreement of a clustering with the true one, both as labels ``[m]``.

    Returns
    -------
    dict of str to float
        ``ari`` (adjusted Rand index), ``ami`` (adjusted mutual information), ``homogeneity`` (each
        cluster holds members of one true cluster) and ``completeness`` (each true cluster lies in
        one cluster): 1 when the groupings are the same.
    """
    return {
        "ari": float(adjusted_rand_score(truth, found)),
        "ami": float(adjusted_mutual_info_score(truth, found)),
        "homogeneity": float(homogeneity_score(truth, found)),
        "completeness": float(completeness_score(truth, found)),
    }


def matched(truth: ArrayLike, found: ArrayLike) -> dict[int, int]:
    """Which true class each cluster stands for: the one-to-one matching with most samples right.

    Clusters that are left over (there are more than classes) are missing.
    """
    classes, row = np.unique(np.asarray(truth), return_inverse=True)
    clusters, column = np.unique(np.asarray(found), return_inverse=True)
    together = np.zeros((len(classes), len(clusters)), dtype=int)
    np.add.at(together, (row, column), 1)
    pairs = zip(*linear_sum_assignment(together, maximize=True), strict=True)
    return {int(clusters[j]): int(classes[i]) for i, j in pairs}


def clustering_accuracy(truth: ArrayLike, found: ArrayLike) -> float:
    """ACC: the share of samples that are right under the best renaming of clusters.

    Equation 4 of FedCRef; the Hungarian algorithm finds the renaming. As well for two clusterings
    of which neither is the truth: it is symmetric.

    Raises
    ------
    ValueError
        No sample, or another number of them on either side.
    """
    truth, found = np.asarray(truth), np.asarray(found)
    if not truth.size or truth.shape != found.shape:
        raise ValueError(f"needs as many labels on both sides, not {truth.shape}, {found.shape}")
    names = matched(truth, found)
    renamed = np.array([names.get(cluster, -1) for cluster in found.tolist()])
    return float((renamed == truth).mean())


def scores(labels: Tensor, probabilities: Tensor) -> tuple[float, float]:
    """Macro-F1 and accuracy of predicted probabilities ``[n, classes]`` for labels ``[n]``.

    The mean of F1 is over the classes that occur in the labels or among the predictions: a model
    that predicts a class which the client does not have pays for it. Computed from the confusion
    matrix, on the device of the arguments. NaN without a sample.
    """
    if not len(labels):
        return float("nan"), float("nan")
    classes = probabilities.shape[1]
    cells = labels * classes + probabilities.argmax(dim=1)
    confusion = torch.bincount(cells, minlength=classes**2).view(classes, classes).cpu().numpy()
    hits = confusion.diagonal()
    occurring = confusion.sum(axis=0) + confusion.sum(axis=1)  # once per label, once per prediction
    f1 = 2 * hits[occurring > 0] / occurring[occurring > 0]
    return float(f1.mean()), float(hits.sum() / len(labels))
