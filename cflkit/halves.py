"""Whether two halves of what clients sent show the same groups: split-half replication.

A group that is really there shows again in other rounds, or in other samples of the same clients.
So the evidence is divided into two halves, such as odd and even rounds, which are clustered apart.
Psychometrics has measured the reliability of a test so since Spearman and Brown (1910). Agreement
of clusterings of split data judges the number of clusters in R. Tibshirani, G. Walther: Cluster
validation by prediction strength (JCGS 2005), and in T. Lange, V. Roth, M. Braun, J. Buhmann:
Stability-based validation of clustering solutions (Neural Computation 2004). Adding up what a
client sends before clustering is the idea of CFL-GP (`methods.baselines.cfl_gp`).

The products of one half with the other hold no noise on average, since the noise of two halves is
independent. What is left is what persists in a client, and the part of it that its group shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit.clustering import Clusterer, Labels
from cflkit.divergence import Matrix, finite_updates, gram_matrix

# The adjusted Rand index from which two clusterings agree: one client of twenty may differ
AGREEMENT = 0.9
# The share of what persists in a client from which its cluster has enough in common. It was chosen
# on the draws 300 to 304 of `notebooks/src/hit_rate.py`: groups had 0.2 to 0.95 there, and clusters
# without groups at most 0.18
SHARED = 0.2
# Up to so many clients, peculiarities of single clients can look like groups that persist
FEW = 10


@dataclass(frozen=True)
class Halves:
    """What two halves of the evidence say of the same m clients.

    Attributes
    ----------
    divergence : ndarray
        ``[m, m]``, the distances of the clients by all of the evidence.
    labels : ndarray
        ``[m]``, the clusters by all of the evidence.
    agreement : float
        The adjusted Rand index of the clusters of one half and of the other; 0 if one of them, or
        ``labels``, has a single cluster.
    shared : float
        The share of what persists in a client that it has in common with others of its cluster. It
        is 1 if they differ by noise alone, and about 0 if each client is peculiar.
    scatter : float
        The typical correlation (root mean square) of what persists in two clients, without noise.
        It is about 0 if clients are peculiar each in its own way, as clients with equal
        distributions are, and large if they differ in few ways.
    least : float
        The least ``shared`` of groups.
    persists : bool
        Whether a client is more like itself, in the other half, than clients typically are alike.
    """

    divergence: Matrix
    labels: Labels
    agreement: float
    shared: float
    scatter: float
    least: float = SHARED
    persists: bool = True

    @property
    def agree(self) -> bool:
        """Return whether both halves show the same groups, whose members have much in common."""
        return bool(self.agreement >= AGREEMENT and self.shared >= self.least)


def replicated(now: Halves, before: Labels | None) -> bool:
    """Return whether the halves agree, and agreed on the same groups ``[m]`` a round before."""
    return before is not None and now.agree and agreement(now.labels, before) >= AGREEMENT


def compare(first: Tensor, second: Tensor, clusterer: Clusterer) -> Halves:
    """Compare two halves of the clients' updates.

    Parameters
    ----------
    first, second : Tensor
        ``[m, P]``, the sum of each client's updates in one half, and in the other.
    clusterer : Clusterer
        What finds the clusters of a divergence matrix.

    Raises
    ------
    ValueError
        The updates are no two matrices of the same shape, or are not finite.
    """
    if first.shape != second.shape:
        raise ValueError(f"halves must have one shape, not {first.shape} and {second.shape}")
    gram = gram_matrix(finite_updates(torch.cat([first, second]))).cpu().numpy()
    m = len(first)
    of_first, across, of_second = gram[:m, :m], gram[:m, m:], gram[m:, m:]
    squares = np.outer(squared_lengths(of_first), squared_lengths(of_second))
    kernel = centred(across / np.sqrt(squares))
    total = of_first + across + across.T + of_second
    distances = [cosine(gram) for gram in (of_first, of_second, total)]
    return judge(distances, (kernel, kernel.T), clusterer)


def compare_matrices(first: Matrix, second: Matrix, clusterer: Clusterer) -> Halves:
    """Compare two halves of the clients' distances ``[m, m]``, each the mean over its rounds.

    Distances do not tell what persists in a client from its noise. So ``shared`` and ``scatter``
    come out smaller than those of `compare` where updates are noisy. With more than `FEW` clients,
    the agreement alone decides.
    """
    kernels = centred(-first), centred(-second)
    halves = judge([first, second, (first + second) / 2], kernels, clusterer)
    return replace(halves, least=SHARED if len(first) <= FEW else -1.0)


def judge(
    distances: Sequence[Matrix], kernels: tuple[Matrix, Matrix], clusterer: Clusterer
) -> Halves:
    """Cluster the distances of two halves and of the whole, and measure what persists."""
    by_first, by_second, labels = map(clusterer.fit_predict, distances)
    divided = by_first.any() and by_second.any() and labels.any()  # one cluster has only zeros
    agreed = agreement(by_first, by_second) if divided else 0.0
    persists = float((kernels[0] + kernels[1]).diagonal().mean() / 2)
    typical = kernels[0][~np.eye(len(labels), dtype=bool)].std() if len(labels) > 1 else 0.0
    parts = agreed, shared(kernels, labels, persists), scatter(kernels, persists)
    return Halves(distances[-1], labels, *parts, persists=bool(persists > typical))


def agreement(labels: Labels, others: Labels) -> float:
    """Compute the adjusted Rand index of two clusterings ``[m]``."""
    from sklearn.metrics import adjusted_rand_score  # scikit-learn takes half a second to load

    return float(adjusted_rand_score(labels, others))


def squared_lengths(gram: Matrix) -> NDArray[np.float64]:
    """Return the squared lengths ``[m]`` of vectors with inner products; 1 for zero vectors."""
    squares = gram.diagonal()
    return np.where(squares > 0, squares, 1.0)


def cosine(gram: Matrix) -> Matrix:
    """Turn inner products ``[m, m]`` into cosine distances, as `cosine_divergence` has them."""
    squares = squared_lengths(gram)
    gamma = (1 - gram / np.sqrt(np.outer(squares, squares))).clip(0, 2)
    np.fill_diagonal(gamma, 0)
    return (gamma + gamma.T) / 2


def centred(kernel: Matrix) -> Matrix:
    """Subtract from products ``[m, m]`` what all clients have in common."""
    centring = np.eye(len(kernel)) - 1 / len(kernel)
    return centring @ kernel @ centring


def shared(kernels: tuple[Matrix, Matrix], labels: Labels, persists: float) -> float:
    """Compute how much of what persists in a client its cluster has in common (`Halves`).

    This is an intraclass correlation: the mean product of two members of a cluster, as a share of
    the mean product of a client with itself, ``persists``.
    """
    mean = (kernels[0] + kernels[1]) / 2
    same = np.equal.outer(labels, labels) & ~np.eye(len(labels), dtype=bool)
    return float(mean[same].mean() / persists) if persists > 0 and same.any() else 0.0


def scatter(kernels: tuple[Matrix, Matrix], persists: float) -> float:
    """Compute the typical correlation of what persists in two clients (`Halves`).

    Both kernels estimate the product of two clients with independent noise. So the covariance of
    the estimates is the variance of the products.
    """
    if len(kernels[0]) < 2:
        return 0.0  # nobody is apart
    apart = ~np.eye(len(kernels[0]), dtype=bool)
    first, second = (kernel[apart] for kernel in kernels)
    variance = np.mean(first * second) - first.mean() * second.mean()
    return float(np.sqrt(max(variance, 0.0)) / persists) if persists > 0 else 0.0
