"""The numbers of clusters that are found anew, as in CFL-GP."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment


def relabelled(found: ArrayLike, before: ArrayLike) -> np.ndarray[Any, Any]:
    """Number clusters anew, so that as many clients as possible keep their number.

    Parameters
    ----------
    found, before : array_like
        ``[m]``, the new labels and the old ones.

    Returns
    -------
    ndarray
        ``[m]``, the new clusters with the other numbers, which are at most the largest that is
        given.
    """
    new, old = np.asarray(found), np.asarray(before)
    numbers = np.arange(max(new.max(), old.max()) + 1)
    shared = np.equal.outer(numbers, new).astype(int) @ np.equal.outer(old, numbers)
    _, number = linear_sum_assignment(shared, maximize=True)
    return np.asarray(number[new])
