"""What a matrix of distances must be, for clusterers and for the temperature alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Distances = NDArray[np.float64]
# How far rounding may take a distance from 0 or from its mirror image: a share of the largest
# distance (angles of float32 need most of it), and a least value for clients that hardly differ
ROUNDED, LEAST = 1e-3, 1e-6


def checked_distances(distance: ArrayLike) -> Distances:
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
