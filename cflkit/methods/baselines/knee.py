"""Kneedle, which finds the radius of FLUX's clusters.

V. Satopää, J. Albrecht, D. Irwin, B. Raghavan: Finding a "kneedle" in a haystack: detecting knee
points in system behavior. ICDCS Workshops 2011.
"""

import numpy as np
from numpy.typing import NDArray


def knee(rising: NDArray[np.float64]) -> float:
    """Return the value at the knee of sorted values, or the largest if there is none.

    The curve is convex, and is followed from the right. Two clients that are each other's nearest
    give two equal values, for which a rounding often decides. So the order of the operations is
    that of the library `kneed`, which FLUX's authors use.
    """
    height, last = rising[-1] - rising[0], len(rising) - 1
    if height <= 0:
        return float(rising[-1])
    places = np.flip(1 - np.arange(last + 1) / last)
    scaled = (rising - rising[0]) / height
    below = np.flip(scaled.max() - scaled) - places
    bound, step = -np.inf, np.diff(places).mean()
    for i in range(last):
        before, after = below[max(i - 1, 0)], below[i + 1]
        if below[i] >= max(before, after):
            top, bound = i, below[i] - step
        if below[i] <= min(before, after):
            bound = -np.inf
        if after < bound:
            return float(rising[last - top])
    return float(rising[-1])
