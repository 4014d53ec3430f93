"""Clusterers of a divergence matrix, with the ``fit_predict`` of scikit-learn.

Every clusterer takes a symmetric ``[m, m]`` matrix of distances and returns labels ``[m]``, which
are numbered from 0 in order of first appearance. Distances that differ by no more than a rounding
are made equal first (`levelled`), and k-means computes in one thread, so that neither the last bits
nor the number of cores decide. Where distances tie, the order of the clients decides as it
does in the clusterer's library: k-means and affinity propagation draw from their seed for it. If
the clients in reverse order would then have other clusters, a note says so.

Clustering packages take seconds to import, so each clusterer imports its own only when it is used.
"""

import math
import warnings
from importlib.util import find_spec
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator
from pydantic.dataclasses import dataclass
from threadpoolctl import threadpool_limits

from cflkit import _bounds
from cflkit._bounds import STRICT, Count, Natural, Positive, TwoOrMore
from cflkit.divergence import Matrix, checked_distances

Labels = NDArray[np.int64]
Noise = Literal["own cluster", "singletons", "nearest"]
Linkage = Literal["average", "complete", "single", "weighted"]
STRONGER = 0.9  # the damping of the second try of affinity propagation
# The rounding of an update, as a share of its length: 16 times that of float32, since an update is
# the difference of two models that are up to a hundred times as long. Equal clients, trained on
# their samples in another order, differed by at most half of it
UPDATE_ROUNDING = 2.0**-20
MISSING = "hdbscan is not installed, so scikit-learn's HDBSCAN is used"
TIED = "distances tie: with the clients in another order, the clusters would be others"


class Clusterer:
    """The interface that methods expect; each clusterer defines `noted`."""

    def fit_predict(self, distance: ArrayLike) -> Labels:
        """Return labels ``[m]`` for distances ``[m, m]``, in order of first appearance."""
        return self.answer(distance)[0]

    def answer(self, distance: ArrayLike) -> tuple[Labels, str | None]:
        """Return the labels as `fit_predict`, and what a record must say of them, if anything."""
        gamma = checked_distances(distance)
        if not getattr(self, "wrong_sign", False):  # what was published is not mended
            gamma = levelled(gamma)
        answer, note = self.noted(gamma)
        labels = canonical_labels(answer)
        if self.has_ties(gamma):
            reverse = canonical_labels(self.noted(gamma[::-1, ::-1])[0][::-1])
            if (reverse != labels).any() and self.as_good(reverse, labels, gamma):
                note = "; ".join(filter(None, [note, TIED]))
        return labels, note

    def has_ties(self, gamma: Matrix) -> bool:
        """Return whether two pairs of clients are equally far apart, so that order can decide."""
        apart = gamma[np.triu_indices(len(gamma), 1)]
        return len(np.unique(apart)) < len(apart)

    def as_good(self, labels: Labels, others: Labels, gamma: Matrix) -> bool:
        """Return whether a tie lies between two answers, and not the luck of a start."""
        return True

    def noted(self, gamma: Matrix) -> tuple[Labels, str | None]:
        """Return labels ``[m]`` in any order, and what a record must say of them."""
        raise NotImplementedError


@dataclass(config=STRICT, frozen=True)
class HDBSCAN(Clusterer):
    """Density-based clustering that finds the number of clusters itself (Campello et al. 2013).

    Attributes
    ----------
    min_cluster_size : int, optional
        The smallest number of clients per cluster; by default 20 % of them, as in the OCFL papers.
    noise : {"own cluster", "singletons", "nearest"}
        The cluster of clients that HDBSCAN leaves out as noise: one more for all of them (as in the
        OCFL authors' code), one for each, or the one with the smallest mean distance.
    implementation : {"hdbscan", "scikit-learn"}
        The package: hdbscan (McInnes et al. 2017), or scikit-learn, as in the OCFL authors' code.
        Where hdbscan is not installed, as in a browser, scikit-learn answers, and a note says so.

    Notes
    -----
    Mutual reachability makes many edges equally long, and their order decides. Without clear
    groups, another numbering of the clients can therefore give other clusters. A note says so.
    """

    min_cluster_size: TwoOrMore | None = None
    noise: Noise = "own cluster"
    implementation: Literal["hdbscan", "scikit-learn"] = "hdbscan"

    def has_ties(self, gamma: Matrix) -> bool:
        """Return True: mutual reachability makes ties of its own."""
        return True

    def noted(self, gamma: Matrix) -> tuple[Labels, str | None]:
        """Return the labels, and a note if the package is missing."""
        missing = self.implementation == "hdbscan" and not find_spec("hdbscan")
        size = self.min_cluster_size or max(2, round(0.2 * len(gamma)))
        options: dict[str, Any] = {"metric": "precomputed", "min_cluster_size": size}
        if len(gamma) < 2 * size:
            labels = np.full(len(gamma), -1)  # too few clients for two clusters: all are noise
        elif missing or self.implementation == "scikit-learn":
            from sklearn import cluster

            labels = cluster.HDBSCAN(**options, copy=True).fit_predict(gamma)
        else:
            import hdbscan

            # Unlike scikit-learn, hdbscan does not count a point among its own neighbours. Without
            # −1, clusters of exactly `size` clients would be lost, which the papers' scenarios have
            labels = hdbscan.HDBSCAN(**options, min_samples=size - 1).fit_predict(gamma.copy())
        return assign_noise(gamma, labels, self.noise), MISSING if missing else None


@dataclass(config=STRICT, frozen=True)
class KMeans(Clusterer):
    """k-means on the rows of Γ, given the number of clusters (OCFL-KM, the ideal case)."""

    n_clusters: Count = 3
    seed: Natural = 0

    def noted(self, gamma: Matrix) -> tuple[Labels, str | None]:
        """Return the labels, and a note if there are fewer different clients than clusters."""
        k = min(self.n_clusters, len(np.unique(gamma, axis=0)))
        few = f"k-means found {k} clusters of {self.n_clusters}, since no more clients differ"
        labels = k_means(gamma, k, random_state=self.seed).labels_
        return labels, few if k < self.n_clusters else None

    def as_good(self, labels: Labels, others: Labels, gamma: Matrix) -> bool:
        """Return whether two answers have the same sum of squares."""

        def squares(answer: Labels) -> float:
            parts = [gamma[answer == cluster] for cluster in np.unique(answer)]
            return sum(float(((part - part.mean(axis=0)) ** 2).sum()) for part in parts)

        return math.isclose(squares(labels), squares(others), abs_tol=UPDATE_ROUNDING)


@dataclass(config=STRICT, frozen=True)
class MeanShift(Clusterer):
    """Mean shift on the rows of Γ, with scikit-learn's estimate of the bandwidth (OCFL-MS).

    The estimate is the mean distance from a client to the farthest of its nearest 30 % of clients,
    itself included. With fewer than seven clients, these are the client itself, so three to six
    clients count one neighbour more here. Two clients are two clusters unless they are equal.
    """

    def noted(self, gamma: Matrix) -> tuple[Labels, None]:
        """Return the labels, and no note."""
        from sklearn import cluster

        if len(np.unique(gamma, axis=0)) == 1:
            return np.zeros(len(gamma), dtype=np.int64), None  # the bandwidth would be zero
        nearest = max(0.3, 2 / len(gamma)) if len(gamma) > 2 else 0.3
        width = cluster.estimate_bandwidth(gamma, quantile=nearest)
        if width == 0:  # two clients, or each client has a twin
            width = float(np.finfo(np.float32).eps)
        return cluster.MeanShift(bandwidth=width).fit_predict(gamma), None


@dataclass(config=STRICT, frozen=True)
class AffinityPropagation(Clusterer):
    """Affinity propagation on −Γ (OCFL-AFF).

    Messages are damped by 0.5, scikit-learn's default, with which the papers' numbers were made.
    Where they oscillate, which near-identical clients can cause, a second try damps them by
    `STRONGER`. If this converges, its labels are the answer. Else, the labels are those of the last
    iteration of the first try, with a warning; without exemplars, all clients form one cluster. In
    a record, the column ``clustering_note`` says so in both cases. Two clients alone are two
    clusters, however near they are.

    Attributes
    ----------
    seed : int
        The seed of the tiny noise with which scikit-learn breaks ties.
    wrong_sign : bool
        Whether to pass Γ itself where similarities are expected, as the OCFL authors' code does.
        Distant clients then count as similar. As in the code, there is no second try; what did not
        converge is noted, without a warning.
    """

    seed: Natural = 0
    wrong_sign: bool = False

    def noted(self, gamma: Matrix) -> tuple[Labels, str | None]:
        """Return the labels, and a note if the messages did not converge at the first try."""
        similarity = gamma if self.wrong_sign else -gamma
        labels, converged = self._propagated(similarity, 0.5)
        note = None if converged else "affinity propagation did not converge with damping 0.5"
        if note and not self.wrong_sign:
            again, converged = self._propagated(similarity, STRONGER)
            labels = again if converged else labels
            note += f", but with {STRONGER}" if converged else f", nor with {STRONGER}"
        if not converged and not self.wrong_sign:  # what was published is noted, not mended
            from sklearn.exceptions import ConvergenceWarning

            message = f"{note}: the labels are those of the last iteration"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        return labels, note

    def _propagated(self, similarity: Matrix, damping: float) -> tuple[Labels, bool]:
        """Return labels ``[m]``, and whether the messages converged."""
        from sklearn import cluster
        from sklearn.exceptions import ConvergenceWarning

        estimator = cluster.AffinityPropagation(
            affinity="precomputed",
            damping=damping,
            max_iter=200 if damping == 0.5 else 1000,  # strong damping needs more iterations
            random_state=self.seed,
        )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            labels = estimator.fit_predict(similarity)
        # It also tells of equal distances, which is harmless
        return labels, not any(issubclass(w.category, ConvergenceWarning) for w in warned)


@dataclass(config=STRICT, frozen=True)
class Agglomerative(Clusterer):
    """Agglomerative hierarchical clustering, cut at a distance or into a number of clusters.

    Attributes
    ----------
    threshold : float, optional
        The distance from which two clusters are not merged (Briggs et al. 2020).
    n_clusters : int, optional
        The number of clusters at which merging ends (2 for the bipartition of Sattler et al. 2021).
    linkage : {"average", "complete", "single", "weighted"}
        The distance of two clusters: the mean, largest or smallest distance between their members.
        With ``weighted``, both parts of a merged cluster count equally, whatever their sizes.
    wrong_sign : bool
        Whether to pass the cosine similarity 1 − Γ where distances are expected, as the OCFL
        authors' code does for Briggs et al. The least similar clients are then merged first.
    """

    threshold: Positive | None = None
    n_clusters: Count | None = None
    linkage: Linkage = "average"
    wrong_sign: bool = False

    @model_validator(mode="after")
    def one_way_to_cut(self) -> Self:
        """Refuse two ways to cut, or none."""
        if (self.threshold is None) == (self.n_clusters is None):
            raise ValueError("give either threshold or n_clusters, not both")
        return self

    def noted(self, gamma: Matrix) -> tuple[Labels, None]:
        """Return the labels, and no note."""
        from scipy.cluster.hierarchy import fcluster

        if len(gamma) == 1:
            return np.zeros(1, dtype=np.int64), None
        tree = dendrogram(1 - gamma if self.wrong_sign else gamma, self.linkage)
        below = (tree[:, 2] < (self.threshold or 0)).sum()
        merges = below if self.n_clusters is None else len(gamma) - self.n_clusters
        # Cut after so many merges: heights may be equal, and negative with the wrong sign
        tree[:, 2] = np.arange(len(tree))
        return fcluster(tree, merges - 1, "distance"), None


def k_means(points: ArrayLike, k: int, n_init: int = 10, **options: Any) -> Any:
    """Fit scikit-learn's k-means to points ``[n, d]`` in one thread; return the estimator.

    Several threads would each add up a part of the points, so that their number, which is that of
    the cores, would decide the last bits and sometimes the clusters.
    """
    from sklearn import cluster

    with threadpool_limits(limits=1):
        return cluster.KMeans(k, n_init=n_init, **options).fit(points)


def dendrogram(distance: Matrix, linkage: str) -> NDArray[np.float64]:
    """Return SciPy's linkage matrix ``[m − 1, 4]``: the merges, in ascending order of distance."""
    from scipy.cluster import hierarchy

    return hierarchy.linkage(distance[np.triu_indices(len(distance), 1)], linkage)


def merge_heights(distance: ArrayLike, linkage: str = "average") -> NDArray[np.float64]:
    """Return the distances ``[m − 1]`` at which clusters are merged, in ascending order.

    If k of them lie above a threshold, a cut at the threshold leaves k + 1 clusters.
    """
    gamma = levelled(checked_distances(distance))
    return dendrogram(gamma, linkage)[:, 2] if len(gamma) > 1 else np.zeros(0)


CLUSTERERS: dict[str, type[Clusterer]] = {
    "hdbscan": HDBSCAN,
    "kmeans": KMeans,
    "meanshift": MeanShift,
    "affinity": AffinityPropagation,
    "agglomerative": Agglomerative,
}


def make(name: str, **options: Any) -> Clusterer:
    """Build a clusterer by its name; raise a `ValueError` for another name, option or value."""
    return _bounds.make("clusterer", CLUSTERERS, name, **options)


def assign_noise(distance: Matrix, labels: Labels, policy: str) -> Labels:
    """Assign clients with the label −1 to clusters, by a policy of `Noise`."""
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


def levelled(gamma: Matrix) -> Matrix:
    r"""Return distances ``[m, m]`` in which those that differ by no more than a rounding are equal.

    If two vectors of length 1 are each wrong by :math:`r`, then their distance
    :math:`\|a - b\|` is wrong by :math:`2r`, and their cosine distance
    :math:`d = \|a - b\|^2 / 2` by :math:`2r\sqrt{2d} + 2r^2`: by 3e-6 for a right angle, and by
    2e-12 for equal vectors. Here, :math:`r` is `UPDATE_ROUNDING`; for distances above 2, all is in
    units of half of the largest. Distances that follow each other within this limit become the
    smallest of them, as long as they lie within the limit together.
    """
    values, place = np.unique(gamma, return_inverse=True)
    unit = max(1.0, values[-1] / 2)
    limits = 2 * UPDATE_ROUNDING * (np.sqrt(2 * abs(values) * unit) + UPDATE_ROUNDING * unit)
    chain = np.concatenate([[0], np.cumsum(np.diff(values) > limits[1:])])
    first = np.searchsorted(chain, chain)  # where the chain of each value begins
    steps = (values - values[first]) // limits[first]
    return (values[first] + steps * limits[first])[place.reshape(gamma.shape)]


def canonical_labels(labels: ArrayLike) -> Labels:
    """Number the clusters of a grouping from 0 in order of first appearance."""
    values = np.asarray(labels)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)
