"""Clusterers of a divergence matrix, with the ``fit_predict`` of scikit-learn.

Every clusterer takes a symmetric ``[m, m]`` matrix of distances and returns labels ``[m]``. Labels
are numbered from 0 in order of first appearance, so that two clusterers that find the same grouping
return the same labels. Clustering packages take seconds to import. Each clusterer therefore imports
the package that it needs only when it is used.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Labels = NDArray[np.int64]
NOISE_POLICIES = ("own cluster", "singletons", "nearest")
LINKAGES = ("average", "complete", "single", "weighted")


class Clusterer(Protocol):
    """The interface that methods expect of a clusterer."""

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``."""
        ...


@dataclass(frozen=True)
class HDBSCAN:
    """Density-based clustering that finds the number of clusters itself (Campello et al. 2013).

    Attributes
    ----------
    min_cluster_size : int, optional
        The smallest number of clients per cluster; by default 20 % of the clients, the rule of the
        OCFL papers.
    noise : {"own cluster", "singletons", "nearest"}
        The cluster of clients that HDBSCAN leaves out as noise: one more cluster for all of them
        (as in the OCFL authors' code), one cluster per client, or the cluster with the smallest
        mean distance.
    implementation : {"hdbscan", "scikit-learn"}
        The package: hdbscan (McInnes, Healy and Astels 2017), or scikit-learn, as in the OCFL
        authors' code.

    Notes
    -----
    scikit-learn's implementation counts a point among its own neighbours; the hdbscan package does
    not. With ``min_samples`` smaller by one the two agree, except for single borderline clients
    where clusters are not clearly separate. Otherwise a cluster of exactly ``min_cluster_size``
    clients would be lost; the papers' imbalanced scenarios have such clusters (three clients of
    fifteen).
    """

    min_cluster_size: int | None = None
    noise: str = "own cluster"
    implementation: str = "hdbscan"

    def __post_init__(self) -> None:
        if self.implementation not in ("hdbscan", "scikit-learn"):
            raise ValueError(
                f"unknown implementation {self.implementation!r}; choose hdbscan or scikit-learn"
            )
        if self.noise not in NOISE_POLICIES:
            raise ValueError(f"unknown noise policy {self.noise!r}; choose from {NOISE_POLICIES}")
        size = self.min_cluster_size
        if size is not None and (not isinstance(size, int) or size < 2):
            raise ValueError(f"min_cluster_size must be an integer of at least 2, not {size!r}")

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``."""
        gamma = checked(distance)
        size = self.min_cluster_size or max(2, round(0.2 * len(gamma)))
        if len(gamma) < 2 * size:
            labels = np.full(len(gamma), -1)  # too few clients for two clusters: all are noise
        elif self.implementation == "hdbscan":
            import hdbscan

            labels = hdbscan.HDBSCAN(
                metric="precomputed", min_cluster_size=size, min_samples=size - 1
            ).fit_predict(gamma.copy())
        else:
            from sklearn.cluster import HDBSCAN as SklearnHDBSCAN

            labels = SklearnHDBSCAN(
                metric="precomputed", min_cluster_size=size, copy=True
            ).fit_predict(gamma)
        return canonical_labels(assign_noise(gamma, labels, self.noise))


@dataclass(frozen=True)
class KMeans:
    """k-means on the rows of Γ, given the number of clusters (OCFL-KM, the ideal case)."""

    n_clusters: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.n_clusters, int) or self.n_clusters < 1:
            raise ValueError(f"n_clusters must be a positive integer, not {self.n_clusters!r}")

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import KMeans as SklearnKMeans

        gamma = checked(distance)
        distinct = len(np.unique(gamma, axis=0))
        estimator = SklearnKMeans(
            n_clusters=min(self.n_clusters, distinct), n_init=10, random_state=self.seed
        )
        return canonical_labels(estimator.fit_predict(gamma))


@dataclass(frozen=True)
class MeanShift:
    """Mean shift on the rows of Γ, with scikit-learn's estimate of the bandwidth (OCFL-MS).

    The estimate is the mean distance from a client to the farthest of its nearest 30 % of clients,
    itself included. With fewer than seven clients, these 30 % are the client itself, and the
    bandwidth is zero. So three to six clients count one neighbour beside themselves here. Two
    clients give no estimate: they form two clusters unless they are equal.
    """

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import MeanShift as SklearnMeanShift
        from sklearn.cluster import estimate_bandwidth

        gamma = checked(distance)
        if len(np.unique(gamma, axis=0)) == 1:
            return np.zeros(len(gamma), dtype=np.int64)  # the bandwidth would be zero
        nearest = max(0.3, 2 / len(gamma)) if len(gamma) > 2 else 0.3
        width = estimate_bandwidth(gamma, quantile=nearest)
        if width == 0:  # two clients, or each client has a twin
            width = float(np.finfo(np.float32).eps)
        return canonical_labels(SklearnMeanShift(bandwidth=width).fit_predict(gamma))


@dataclass(frozen=True)
class AffinityPropagation:
    """Affinity propagation on −Γ (OCFL-AFF).

    Attributes
    ----------
    seed : int
        The seed of the tiny noise with which scikit-learn breaks ties.
    wrong_sign : bool
        Whether to pass Γ itself where similarities are expected, as the OCFL authors' code does.
        Distant clients then count as similar.

    Notes
    -----
    If the messages do not converge, scikit-learn returns the labels of the last iteration. If it
    found no exemplar, it returns −1 for every client, and all clients form one cluster. Two clients
    alone are two clusters, however near they are.
    """

    seed: int = 0
    wrong_sign: bool = False

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import AffinityPropagation as SklearnAffinityPropagation
        from sklearn.exceptions import ConvergenceWarning

        gamma = checked(distance)
        estimator = SklearnAffinityPropagation(affinity="precomputed", random_state=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", message="All samples have mutually equal")
            return canonical_labels(estimator.fit_predict(gamma if self.wrong_sign else -gamma))


@dataclass(frozen=True)
class Agglomerative:
    """Agglomerative hierarchical clustering, cut at a distance or into a number of clusters.

    Attributes
    ----------
    threshold : float, optional
        The distance from which two clusters are not merged (Briggs et al. 2020).
    n_clusters : int, optional
        The number of clusters at which merging ends (2 for the bipartition of Sattler et al. 2021).
    linkage : {"average", "complete", "single", "weighted"}
        The distance of two clusters: the mean, largest or smallest distance between their members.
        With ``weighted``, a cluster's distance to others is the mean of those of the two clusters
        that were merged into it, whatever their sizes (PACFL).
    wrong_sign : bool
        Whether to pass the cosine similarity 1 − Γ where distances are expected, as the OCFL
        authors' code does for Briggs et al. The least similar clients are then merged first.
    """

    threshold: float | None = None
    n_clusters: int | None = None
    linkage: str = "average"
    wrong_sign: bool = False

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.n_clusters is None):
            raise ValueError("give either threshold or n_clusters, not both")
        if self.threshold is not None and not 0 < self.threshold < np.inf:
            raise ValueError(f"threshold must be positive and finite, not {self.threshold}")
        count = self.n_clusters
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ValueError(f"n_clusters must be a positive integer, not {count!r}")
        if self.linkage not in LINKAGES:
            raise ValueError(f"unknown linkage {self.linkage!r}; choose from {', '.join(LINKAGES)}")

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``."""
        from sklearn.cluster import AgglomerativeClustering

        gamma = checked(distance)
        if len(gamma) == 1:
            return np.zeros(1, dtype=np.int64)
        if self.linkage == "weighted":  # scikit-learn does not have it
            return canonical_labels(self.cut_by_scipy(1 - gamma if self.wrong_sign else gamma))
        estimator = AgglomerativeClustering(
            n_clusters=None if self.n_clusters is None else min(self.n_clusters, len(gamma)),
            distance_threshold=self.threshold,
            metric="precomputed",
            linkage=self.linkage,
        )
        return canonical_labels(estimator.fit_predict(1 - gamma if self.wrong_sign else gamma))

    def cut_by_scipy(self, gamma: NDArray[np.float64]) -> Labels:
        """Return labels ``[m]`` by SciPy's linkage; merges at the threshold are not made."""
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        tree = linkage(squareform(gamma, checks=False), self.linkage)
        if self.threshold is None:
            return fcluster(tree, self.n_clusters, "maxclust")
        return fcluster(tree, np.nextafter(self.threshold, -np.inf), "distance")


def merge_heights(distance: ArrayLike, linkage: str = "average") -> NDArray[np.float64]:
    """Compute the distances at which agglomerative clustering merges clusters.

    The distances are ``[m − 1]``, in ascending order. If k of them lie above a threshold, a cut at
    the threshold leaves k + 1 clusters.
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
        The name is unknown, or the clusterer does not have an option.
    """
    if name not in CLUSTERERS:
        raise ValueError(f"unknown clusterer {name!r}; choose from {', '.join(CLUSTERERS)}")
    try:
        return CLUSTERERS[name](**options)
    except TypeError as error:
        raise ValueError(f"clusterer {name!r}: {error}") from error


def assign_noise(distance: NDArray[np.float64], labels: Labels, policy: str) -> Labels:
    """Assign clients with the label −1 to clusters, by one of `NOISE_POLICIES`."""
    noise = np.flatnonzero(labels == -1)
    clusters = np.unique(labels[labels != -1])
    assigned = labels.copy()
    if policy == "singletons":
        assigned[noise] = labels.max() + 1 + np.arange(len(noise))
    elif policy == "nearest" and len(clusters):
        for client in noise:
            means = [distance[client, labels == cluster].mean() for cluster in clusters]
            assigned[client] = clusters[int(np.argmin(means))]
    return assigned


def canonical_labels(labels: ArrayLike) -> Labels:
    """Number the clusters of a grouping from 0 in order of first appearance."""
    values = np.asarray(labels)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[inverse].astype(np.int64)


def checked(distance: ArrayLike) -> NDArray[np.float64]:
    """Return ``distance`` as a float64 matrix, if it is square and finite.

    Raises
    ------
    ValueError
        The matrix is not square, or holds NaN or infinity.
    """
    gamma = np.asarray(distance, dtype=np.float64)
    if gamma.ndim != 2 or gamma.shape[0] != gamma.shape[1] or not len(gamma):
        raise ValueError(f"distance must be a square matrix, not of shape {gamma.shape}")
    if not np.isfinite(gamma).all():
        raise ValueError("distance holds NaN or infinity")
    return gamma
