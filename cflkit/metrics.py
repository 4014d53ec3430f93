"""How well clusters agree with the truth, and how well models predict.

The measures of section 4.3 and 4.4 of the extended OCFL paper, under their own names; and, apart
from them, the numbers as that paper's tables really have them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
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


# --- The OCFL papers' tables ---------------------------------------------------------------------

# Their averages end here also where a run went on: 80 rounds (CIFAR-10) or 75 (MedMNIST)
TABLE_ROUNDS = 50


def as_in_the_ocfl_tables(rounds: pd.DataFrame) -> dict[str, float]:
    """RAND, AMI and COM of a run, by the protocol behind Table I and Table 1 of the OCFL papers.

    Parameters
    ----------
    rounds : DataFrame
        A method's rows of a history in order of rounds, with ``ari``, ``ami`` and ``homogeneity``.

    Returns
    -------
    dict of str to float
        Means over rounds 1 to 50, the rounds before clustering included: one cluster scores zero,
        so that who clusters in round r gets at most (51 − r) / 50. NaN if there are fewer rounds.

        - ``RAND``: the *adjusted* Rand index.
        - ``AMI``: adjusted mutual information. In the rows of OCFL-HDB the tables have RAND again.
        - ``COM``: *homogeneity*. The authors call scikit-learn's completeness with its arguments
          exchanged. True completeness of a single cluster would be 1.

    Notes
    -----
    From the authors' archived labels these rules give every number of the extended paper's Table 1
    that can be read and checked (a golden test counts them). The right measures of a whole run are
    the means of `agreement`, those of its outcome the last round's.
    """
    if len(rounds) < TABLE_ROUNDS:
        return {"RAND": np.nan, "AMI": np.nan, "COM": np.nan}
    means = rounds[["ari", "ami", "homogeneity"]].head(TABLE_ROUNDS).mean()
    return {
        "RAND": float(means["ari"]),
        "AMI": float(means["ami"]),
        "COM": float(means["homogeneity"]),
    }


def round_as_in_the_ocfl_tables(rounds: pd.DataFrame) -> int | None:
    """The round (from 1) in which a method clustered, by the protocol of the extended Table 2.

    Parameters
    ----------
    rounds : DataFrame
        A method's rows of a history in order of rounds.

    Returns
    -------
    int or None
        For a method that watches a temperature (or cuts a dendrogram) once, the round in which it
        did, also where it found a single cluster; otherwise the last round that ends with other
        clusters than the round before (the table has Sattler's last split). None if there is none.
    """
    cut = rounds.get("merge_heights")
    if cut is not None and cut.notna().any():
        return int(rounds.loc[cut.notna(), "round"].iloc[0])
    watched = rounds.get("temperature")
    if watched is not None and watched.notna().any() and pd.isna(watched.iloc[-1]):
        return int(rounds.loc[watched.notna(), "round"].iloc[-1])
    changed = rounds["clusters"].ne(rounds["clusters"].shift()) & (rounds["round"] > 1)
    return int(rounds.loc[changed, "round"].iloc[-1]) if changed.any() else None
