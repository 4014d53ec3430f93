"""Measures of how well clusters agree with the truth, and of how well models predict.

These are the measures of sections 4.3 and 4.4 of the extended OCFL paper, each computed as its name
says. `papers.ocfl` computes what the tables of that paper report under these names.
"""

from __future__ import annotations

import itertools

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
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor


def agreement(truth: ArrayLike, found: ArrayLike) -> dict[str, float]:
    """Compute the agreement of a clustering with the true one, both as labels ``[m]``.

    Returns
    -------
    dict of str to float
        ``ari`` (adjusted Rand index), ``ami`` (adjusted mutual information), ``homogeneity``
        (whether each cluster holds members of one true cluster) and ``completeness`` (whether each
        true cluster lies in one cluster). All are 1 when the groupings are the same.
    """
    return {
        "ari": float(adjusted_rand_score(truth, found)),
        "ami": float(adjusted_mutual_info_score(truth, found)),
        "homogeneity": float(homogeneity_score(truth, found)),
        "completeness": float(completeness_score(truth, found)),
    }


def matched(truth: ArrayLike, found: ArrayLike) -> dict[int, int]:
    """Match clusters to true classes one to one, so that as many samples as possible are right.

    If there are more clusters than classes, the result does not contain the remaining clusters.
    """
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


def scores(labels: Tensor, probabilities: Tensor) -> tuple[float, float]:
    """Compute macro-F1 and accuracy of probabilities ``[n, classes]`` for labels ``[n]``.

    F1 is averaged over the classes that occur among the labels or the predictions. The prediction
    of a class that the client does not have therefore lowers the mean. The confusion matrix is
    computed on the device of the arguments. Without a sample, both results are NaN.
    """
    if not len(labels):
        return float("nan"), float("nan")
    classes = probabilities.shape[1]
    cells = labels * classes + probabilities.argmax(dim=1)
    confusion = torch.bincount(cells, minlength=classes**2).view(classes, classes).cpu().numpy()
    hits = confusion.diagonal()
    occurring = confusion.sum(axis=0) + confusion.sum(axis=1)  # counts labels and predictions
    f1 = 2 * hits[occurring > 0] / occurring[occurring > 0]
    return float(f1.mean()), float(hits.sum() / len(labels))
