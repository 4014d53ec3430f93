"""Distances between clients, and the temperature that shows when to cluster.

Γ and the temperature follow Definitions 4 to 7 of the extended OCFL paper (equations 6 to 10; 1 to
4 of the first). Distances of data are the earth mover's (EMD-CFL, equation 3) and angles (PACFL).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cflkit.models.rows import device_of_doubles, finite_rows, threads_per_operation

Matrix = NDArray[np.float64]

# The order of the norm of two updates' difference, by the name of a distance; the cosine has none
METRICS = {"cosine": None, "euclidean": 2.0, "manhattan": 1.0}
COSTS = ("cosine", "euclidean")
# How many values of all updates enter one matrix product: this limits their float64 copy to 128 MiB
CHUNK = 2**24
# How far rounding may take a distance from 0 or from its mirror image: a share of the largest
# distance (angles of float32 need most of it), and a least value for clients that hardly differ
ROUNDED, LEAST = 1e-3, 1e-6


def cosine_divergence(updates: Tensor | ArrayLike) -> Matrix:
    r"""Compute the divergence matrix Γ: pairwise cosine distances of update vectors.

    .. math:: \gamma_{ij} = 1 - \frac{\Delta_i \cdot \Delta_j}{\|\Delta_i\| \|\Delta_j\|}

    Sums are in float64, since nearly parallel updates differ in digits that float32 does not have.

    Parameters
    ----------
    updates : Tensor or array_like
        ``[m, P]``, one update vector per client: trained minus received parameters.

    Returns
    -------
    ndarray
        ``[m, m]``, float64, symmetric, in [0, 2], zero on the diagonal. A zero update has no
        direction; its distance to every other client is 1, as in scikit-learn.

    Raises
    ------
    ValueError
        The updates are not a matrix, or one has NaN or infinity; the message names the clients.
    """
    vectors = finite_updates(updates)
    # One scale for all clients leaves the angles unchanged and keeps the squares within range
    low, high = vectors.aminmax() if vectors.numel() else (torch.tensor(-1.0), torch.tensor(1.0))
    scale = torch.maximum(-low, high).double()
    gram = gram_matrix(vectors, scale.clamp_min(torch.finfo(torch.float64).tiny))
    norms = gram.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, torch.ones_like(norms))
    gamma = (1 - gram / (norms[:, None] * norms)).clamp(0, 2).cpu().numpy()
    gamma = (gamma + gamma.T) / 2
    np.fill_diagonal(gamma, 0)
    return gamma


def gram_matrix(vectors: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Compute the inner products ``[m, m]``, float64, of vectors ``[m, P]`` divided by a scale.

    Each product uses one core, so that the last bits do not depend on the number of cores.
    """
    m = len(vectors)
    gram = torch.zeros(m, m, dtype=torch.float64, device=vectors.device)
    part = gram.new_empty(0)
    with threads_per_operation(1):
        for chunk in vectors.split(max(1, CHUNK // max(1, m)), dim=1):
            # New memory for each copy would take longer than the product
            part = part if part.shape == chunk.shape else gram.new_empty(chunk.shape)
            part.copy_(chunk).div_(scale)
            gram += part @ part.T
    return gram


def coordinates(updates: Tensor | ArrayLike) -> Matrix:
    """Compute points ``[m, m]`` with the same inner products and distances as vectors ``[m, P]``.

    Column j has the coordinates along the j-th singular vector of the updates, in descending order
    of the singular values; its sign is arbitrary. For m clients and many more parameters, this is
    much smaller than the updates, and k-means of the points is k-means of the updates. Errors are
    those of `cosine_divergence`.
    """
    values, vectors = np.linalg.eigh(gram_matrix(finite_updates(updates)).cpu().numpy())
    points: Matrix = vectors * np.sqrt(values.clip(0))
    return points[:, ::-1]


def pairwise(updates: Tensor | ArrayLike, metric: str = "cosine") -> Matrix:
    """Compute distances ``[m, m]`` of updates: `cosine_divergence`, or a norm of their differences.

    The metric is ``cosine``, or ``euclidean`` or ``manhattan`` in the units of the parameters.
    Another one is a `ValueError`; the rest is as in `cosine_divergence`.
    """
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    if (order := METRICS[metric]) is None:
        return cosine_divergence(updates)
    vectors = finite_updates(updates)
    powers = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors.device)
    for chunk in vectors.split(max(1, CHUNK // max(1, len(vectors))), dim=1):
        part = chunk.double()
        # torch's faster way, by a matrix product, loses the digits in which similar vectors differ
        distances = torch.cdist(part, part, p=order, compute_mode="donot_use_mm_for_euclid_dist")
        powers += distances**order
    return (powers ** (1 / order)).cpu().numpy()


def earth_movers_distance(
    a: ArrayLike, b: ArrayLike, sinkhorn: float | None = None, cost: str = "cosine"
) -> float:
    r"""Compute the least cost of moving one sample's mass to another's, with the package POT.

    .. math:: W(a, b) = \min_{T \ge 0} \sum_{ij} T_{ij} c(a_i, b_j), \quad
              \sum_j T_{ij} = 1/n_a, \; \sum_i T_{ij} = 1/n_b

    Parameters
    ----------
    a, b : array_like
        ``[n_a, d]`` and ``[n_b, d]``, the points of two samples, with equal weights.
    sinkhorn : float, optional
        The regularisation of Sinkhorn's approximation, whose cost is then that of its plan alone;
        None for the exact distance.
    cost : {"cosine", "euclidean"}
        The cost c, and the units of the result; cosine distances are in [0, 2], and a zero vector
        has distance 1 to every vector, as in scikit-learn.

    Raises
    ------
    ValueError
        A sample is empty or not finite, the samples differ in dimension, the cost is unknown, or
        the regularisation is not positive, or too small for Sinkhorn's iterations to converge.
    """
    if cost not in COSTS:
        raise ValueError(f"unknown cost {cost!r}; choose from {', '.join(COSTS)}")
    if sinkhorn is not None and not 0 < sinkhorn < np.inf:
        raise ValueError(f"sinkhorn must be positive and finite, not {sinkhorn}")
    import ot  # only here, since few processes need it
    from sklearn.metrics import pairwise_distances

    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    # scikit-learn takes tiny vectors for zero, squares of huge ones are infinite, and POT's solver
    # takes tiny costs for equal. A power of two changes no digit
    if cost == "cosine":
        first, second = (np.ldexp(rows, -exponents(rows, axis=-1)) for rows in (first, second))
        unit = 0
    else:
        unit = max(exponents(first), exponents(second))
        first, second = np.ldexp(first, -unit), np.ldexp(second, -unit)
    # It refuses samples that are empty, not finite, or of different dimensions
    costs = pairwise_distances(first, second, cost)
    power = exponents(costs)
    costs = np.ldexp(costs, -power)
    masses = [np.full(size, 1 / size) for size in costs.shape]
    if sinkhorn is None:
        return float(np.ldexp(ot.emd2(*masses, costs, numItermax=1_000_000), power + unit))
    strength = float(np.ldexp(sinkhorn, -power - unit))
    plan = ot.sinkhorn(*masses, costs, strength, numItermax=10_000, warn=False)
    arrived = plan.sum(axis=1) / masses[0], plan.sum(axis=0) / masses[1]
    if not all(np.allclose(mass, 1, atol=1e-3) for mass in arrived):
        raise ValueError(
            f"Sinkhorn's iterations do not converge with a regularisation of {sinkhorn:g}: take a "
            "larger one, or exact distances"
        )
    return float(np.ldexp((plan * costs).sum(), power + unit))


def exponents(values: Matrix, axis: int | None = None) -> Any:
    """Return the exponent e of the largest absolute value, which is below 2ᵉ; 0 for zeros."""
    largest = np.abs(values).max(axis=axis, keepdims=axis is not None, initial=0)
    return np.frexp(largest)[1]


def principal_angles(
    bases: Sequence[ArrayLike], signed: bool = False, measure: str = "columns"
) -> Matrix:
    """Compute angles ``[m, m]``, in degrees, between clients' directions (PACFL).

    Parameters
    ----------
    bases : sequence of array_like
        For each client, ``[d, p_i]``: unit vectors in columns, see `class_directions`.
    signed : bool
        Whether two opposite vectors have an angle of 180 degrees, and not of 0. So it is in the
        authors' code, though the signs of singular vectors are arbitrary.
    measure : {"columns", "subspaces", "trace"}
        The smallest angle between two columns; the smallest principal angle of the spaces that the
        columns span, which have no sign (paper, equation 2); or the mean angle of columns with
        equal numbers, as many as both clients have (equation 3 has their sum).
    """
    from scipy.linalg import subspace_angles  # only here, since few processes need it

    angles = np.zeros((len(bases), len(bases)))
    for i, j in combinations(range(len(bases)), 2):
        if measure == "subspaces":
            angle = subspace_angles(bases[j], bases[i]).min()
        else:
            cosines = np.asarray(bases[j]).T @ np.asarray(bases[i])
            between = np.arccos(np.clip(cosines if signed else np.abs(cosines), -1, 1))
            angle = between.diagonal().mean() if measure == "trace" else between.min()
        angles[i, j] = angles[j, i] = np.degrees(angle)
    return angles


def class_directions(images: ArrayLike, labels: ArrayLike, p: int = 3) -> Matrix:
    """Compute the first p left singular vectors of the images of each class.

    The images are ``[n, d]``, and the result is ``[d, p · classes]``; a class with fewer than p
    images contributes fewer vectors.
    """
    pixels, targets = np.asarray(images, dtype=np.float64), np.asarray(labels)
    parts = [
        np.linalg.svd(pixels[targets == label].T, full_matrices=False)[0][:, :p]
        for label in np.unique(targets)
    ]
    return np.concatenate(parts, axis=1)


def finite_updates(updates: Tensor | ArrayLike) -> Tensor:
    """Return updates ``[m, P]`` on a device with float64; errors are as in `cosine_divergence`."""
    vectors = torch.as_tensor(updates)
    vectors = vectors.to(device_of_doubles(vectors.device))
    if vectors.ndim != 2:
        raise ValueError(f"updates must be a matrix [m, P], not of shape {tuple(vectors.shape)}")
    if broken := (~finite_rows(vectors)).nonzero().flatten().tolist():
        raise ValueError(f"updates of clients {broken} are not finite")
    return vectors


def checked_distances(distance: ArrayLike) -> Matrix:
    """Return ``distance`` as a float64 matrix; raise a `ValueError` if it holds no distances."""
    gamma = np.asarray(distance, dtype=np.float64)
    if gamma.ndim != 2 or gamma.shape[0] != gamma.shape[1] or not len(gamma):
        raise ValueError(f"distance must be a square matrix, not of shape {gamma.shape}")
    if not np.isfinite(gamma).all():
        raise ValueError("distance holds NaN or infinity")
    rounding = max(ROUNDED * np.abs(gamma).max(), LEAST)
    if (most := np.abs(gamma.diagonal()).max()) > rounding:
        fault = f"distance has {most:g} on its diagonal, but a client is at 0 from itself"
        raise ValueError(f"{fault}; of cosine similarities s, 1 - s are distances")
    if (least := gamma.min()) < -rounding:
        raise ValueError(f"distance has {least:g}, but distances are 0 or more")
    if (apart := np.abs(gamma - gamma.T).max()) > rounding:
        fault = f"distance is not symmetric: d[i, j] and d[j, i] differ by up to {apart:g}"
        raise ValueError(f"{fault}; (d + d.T) / 2 is symmetric")
    return gamma


def temperature(divergence: ArrayLike, p: float = 2, scale: float | None = None) -> float:
    r"""Compute the clustering temperature T, the entrywise p-norm of Γ over λ; 0 for one client.

    .. math:: T(\Gamma) = \frac{1}{\lambda} \Big(\sum_{i,j} |\gamma_{ij}|^p\Big)^{1/p},
        \qquad \lambda = \sqrt[p]{n(n-1)2^p}

    Parameters
    ----------
    divergence : array_like
        ``[m, m]``, the matrix Γ.
    p : float
        The order of the norm, at least 1.
    scale : float, optional
        λ; by default the paper's Maximal Divergence Constant, with which T is in [0, 1].

    Raises
    ------
    ValueError
        The matrix has no distances (`checked_distances`), or ``p`` or ``scale`` is out of bounds.
    """
    gamma = checked_distances(divergence)
    if not p >= 1 or (scale is not None and not 0 < scale < np.inf):  # NaN is neither
        raise ValueError(f"needs p ≥ 1 and a finite scale > 0, not {p} and {scale}")
    n = len(gamma)
    if n < 2:
        return 0.0
    bound = 2 * (n * (n - 1)) ** (1 / p) if scale is None else scale
    return float(np.linalg.norm(gamma.ravel(), ord=p) / bound)
