"""How well clusters agree with the truth, and how well models predict.

The measures of section 4.3 and 4.4 of the extended OCFL paper, under their own names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import (
    accuracy_score,
    adjusted_mutual_info_score,
    adjusted_rand_score,
    completeness_score,
    f1_score,
    homogeneity_score,
)


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


def scores(labels: ArrayLike, probabilities: ArrayLike) -> tuple[float, float]:
    """Macro-F1 and accuracy of predicted probabilities ``[n, classes]`` for labels ``[n]``.

    The mean of F1 is over the classes that occur in the labels or among the predictions: a model
    that predicts a class which the client does not have pays for it.
    """
    if not len(np.asarray(labels)):
        return float("nan"), float("nan")
    predicted = np.asarray(probabilities).argmax(axis=1)
    return (
        float(f1_score(labels, predicted, average="macro", zero_division=0)),
        float(accuracy_score(labels, predicted)),
    )
