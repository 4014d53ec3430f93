"""Clusterers of a divergence matrix, with scikit-learn's ``fit_predict``.

Every clusterer takes a symmetric ``[m, m]`` matrix of distances and returns labels ``[m]`` from 0,
in order of first appearance, so that equal groupings have equal labels whoever found them. The
packages that cluster take seconds to import, so each clusterer imports its own when it is used.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Labels = NDArray[np.int64]
NOISE_POLICIES = ("own cluster", "singletons", "nearest")
LINKAGES = ("average", "complete", "single")


class Clusterer(Protocol):
    """What a method asks of a clusterer."""

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Labels ``[m]`` for distances ``[m, m]``."""
        ...


@dataclass(frozen=True)
class HDBSCAN:
    """Density-based clustering; finds the number of clusters itself (Campello et al. 2013).

    Attributes
    ----------
    min_cluster_size : int, optional
        20 % of the clients by default, the rule of the OCFL papers.
    noise : {"own cluster", "singletons", "nearest"}
        What becomes of clients that HDBSCAN leaves out: together one more cluster (what the OCFL
        authors' code does), a cluster each, or the cluster of smallest mean distance.

    Notes
    -----
    The OCFL authors used scikit-learn's implementation, which counts a point among its own
    neighbours; the hdbscan package does not. With ``min_samples`` one smaller the two agree (but
    for single borderline clients where clusters are blurred), and without that a cluster of
    exactly ``min_cluster_size`` clients (three of fifteen, in the papers' imbalanced scenarios) is
    lost.
    """

    min_cluster_size: int | None = None
    noise: str = "own cluster"

    def __post_init__(self) -> None:
        if self.noise not in NOISE_POLICIES:
            raise ValueError(f"unknown noise policy {self.noise!r}; known are {NOISE_POLICIES}")
        size = self.min_cluster_size
        if size is not None and (not isinstance(size, int) or size < 2):
            raise ValueError(f"min_cluster_size must be an integer from 2, not {size!r}")

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Labels ``[m]`` for distances ``[m, m]``."""
        import hdbscan

        gamma = checked(distance)
        size = self.min_cluster_size or max(2, round(0.2 * len(gamma)))
        if len(gamma) < 2 * size:
            labels = np.full(len(gamma), -1)  # no room for two clusters: all are noise
        else:
            labels = hdbscan.HDBSCAN(
                metric="precomputed", min_cluster_size=size, min_samples=size - 1
            ).fit_predict(gamma.copy())
        return in_order(settle_noise(gamma, labels, self.noise))


@dataclass(frozen=True)
class KMeans:
    """k-means on the rows of Γ; must be told the number of clusters (OCFL-KM, the ideal case)."""

    n_clusters: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.n_clusters, int) or self.n_clusters < 1:
            raise ValueError(f"n_clusters must be a positive integer, not {self.n_clusters!r}")

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import KMeans as SklearnKMeans

        gamma = checked(distance)
        distinct = len(np.unique(gamma, axis=0))
        estimator = SklearnKMeans(
            n_clusters=min(self.n_clusters, distinct), n_init=10, random_state=self.seed
        )
        return in_order(estimator.fit_predict(gamma))


@dataclass(frozen=True)
class MeanShift:
    """Mean shift on the rows of Γ, with scikit-learn's estimate of the bandwidth (OCFL-MS)."""

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import MeanShift as SklearnMeanShift

        gamma = checked(distance)
        if len(np.unique(gamma, axis=0)) == 1:
            return np.zeros(len(gamma), dtype=np.int64)  # the bandwidth would be zero
        return in_order(SklearnMeanShift().fit_predict(gamma))


@dataclass(frozen=True)
class AffinityPropagation:
    """Affinity propagation on −Γ (OCFL-AFF).

    Attributes
    ----------
    wrong_sign : bool
        Pass Γ itself where similarities belong, as the OCFL authors' code does: far clients then
        count as alike.

    Notes
    -----
    Where the messages do not settle, scikit-learn gives what they say at the end, or −1 to everyone
    if they name no exemplar: then all clients are one cluster.
    """

    seed: int = 0
    wrong_sign: bool = False

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import AffinityPropagation as SklearnAffinityPropagation
        from sklearn.exceptions import ConvergenceWarning

        gamma = checked(distance)
        estimator = SklearnAffinityPropagation(affinity="precomputed", random_state=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", message="All samples have mutually equal")
            return in_order(estimator.fit_predict(gamma if self.wrong_sign else -gamma))


@dataclass(frozen=True)
class Agglomerative:
    """Agglomerative hierarchical clustering, cut at a distance or into a number of clusters.

    Attributes
    ----------
    threshold : float, optional
        Clusters at least this far apart are not joined (Briggs et al. 2020).
    n_clusters : int, optional
        Joining ends with so many clusters (2 for the bipartition of Sattler et al. 2021).
    linkage : {"average", "complete", "single"}
        How far apart two clusters are: the mean, largest or smallest distance between members.
    wrong_sign : bool
        Pass the cosine similarity 1 − Γ where distances belong, as the OCFL authors' code does for
        Briggs et al.: the most unlike clients are then joined first.
    """

    threshold: float | None = None
    n_clusters: int | None = None
    linkage: str = "average"
    wrong_sign: bool = False

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.n_clusters is None):
            raise ValueError("needs either threshold or n_clusters")
        if self.threshold is not None and not 0 < self.threshold < np.inf:
            raise ValueError(f"threshold must be positive and finite, not {self.threshold}")
        count = self.n_clusters
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"n_clusters must be a positive integer, not {count!r}")
        if self.linkage not in LINKAGES:
            raise ValueError(f"unknown linkage {self.linkage!r}; known are {', '.join(LINKAGES)}")

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import AgglomerativeClustering

        gamma = checked(distance)
        if len(gamma) == 1:
            return np.zeros(1, dtype=np.int64)
        estimator = AgglomerativeClustering(
            n_clusters=None if self.n_clusters is None else min(self.n_clusters, len(gamma)),
            distance_threshold=self.threshold,
            metric="precomputed",
            linkage=self.linkage,
        )
        return in_order(estimator.fit_predict(1 - gamma if self.wrong_sign else gamma))


def merge_heights(distance: ArrayLike, linkage: str = "average") -> NDArray[np.float64]:
    """``[m − 1]``, ascending: the distances at which agglomerative clustering joins clusters.

    A threshold between two of them leaves as many clusters as heights lie above it, and one more.
    """
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    gamma = checked(distance)
    if len(gamma) == 1:
        return np.zeros(0)
    return hierarchy.linkage(squareform(gamma, checks=False), linkage)[:, 2]


CLUSTERERS: dict[str, type] = {
    "hdbscan": HDBSCAN,
    "kmeans": KMeans,
    "meanshift": MeanShift,
    "affinity": AffinityPropagation,
    "agglomerative": Agglomerative,
}


def make(name: str, **options: Any) -> Clusterer:
    """Build a clusterer by its name in `CLUSTERERS`.

    Raises
    ------
    ValueError
        An unknown name, or an option that the clusterer does not have.
    """
    if name not in CLUSTERERS:
        raise ValueError(f"unknown clusterer {name!r}; known are {', '.join(CLUSTERERS)}")
    try:
        return CLUSTERERS[name](**options)
    except TypeError as error:
        raise ValueError(f"clusterer {name!r}: {error}") from error


def settle_noise(distance: NDArray[np.float64], labels: Labels, policy: str) -> Labels:
    """Give clients labelled −1 a cluster, by one of `NOISE_POLICIES`."""
    noise = np.flatnonzero(labels == -1)
    clusters = np.unique(labels[labels != -1])
    settled = labels.copy()
    if policy == "singletons":
        settled[noise] = labels.max() + 1 + np.arange(len(noise))
    elif policy == "nearest" and len(clusters):
        for client in noise:
            means = [distance[client, labels == cluster].mean() for cluster in clusters]
            settled[client] = clusters[int(np.argmin(means))]
    return settled


def in_order(labels: ArrayLike) -> Labels:
    """The same grouping, numbered from 0 in order of first appearance."""
    values = np.asarray(labels)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[inverse].astype(np.int64)


def checked(distance: ArrayLike) -> NDArray[np.float64]:
    """``distance`` as a float64 matrix, if it is square and finite."""
    gamma = np.asarray(distance, dtype=np.float64)
    if gamma.ndim != 2 or gamma.shape[0] != gamma.shape[1] or not len(gamma):
        raise ValueError(f"distance must be a square matrix, not of shape {gamma.shape}")
    if not np.isfinite(gamma).all():
        raise ValueError("distance holds NaN or infinity")
    return gamma
