"""The rule by which the ledger compares a published number with ours."""

import numpy as np
from numpy.typing import ArrayLike

from cflkit.reproduce.papers.base import SCORES, Margin
from cflkit.reproduce.stats import half_width

ANSWERS = ("reproduced", "close", "differs", "inconclusive", "single run")
# A number that the authors' own code does not produce cannot be reproduced
NO_CODE = "produced by no code"
STATUS = (*ANSWERS, "not run", NO_CODE)


def status(value: float, ours: ArrayLike, margin: Margin = SCORES) -> str:
    """Compare a published value with ours, one value per seed; return one of `STATUS`.

    NaN means that all clients stayed one cluster.
    """
    values = np.asarray(ours, dtype=float)
    some = values[~np.isnan(values)]
    mean = some.mean() if len(some) else np.nan
    return answer(value, mean, half_width(some), len(values), len(values) - len(some), margin)


def answer(
    value: float, mean: float, half_width: float, seeds: int, never: int, margin: Margin
) -> str:
    """Compare a published value with the 90 % t-interval of our mean; return one of `STATUS`.

    Parameters
    ----------
    value : float
        The published value; NaN where the table has a dash, since all clients stayed one cluster.
    mean, half_width : float
        The mean over seeds, and half the width of its interval.
    seeds, never : int
        The number of seeds, and of those with which all clients stayed one cluster.
    margin : Margin
        The distances that count.

    Returns
    -------
    str
        ``reproduced`` if the interval lies within ``far`` of the value and the mean within
        ``near``, ``close`` if only the interval does, ``differs`` if no value of the interval lies
        within ``far``, and otherwise ``inconclusive``. One seed has no interval (``single run``). A
        dash is reproduced if no seed clustered, differs if each did, and is inconclusive if some
        did. A printed number differs if no seed clustered, and is inconclusive if some did not.
    """
    if seeds < 2:
        return "single run" if seeds else "not run"
    if np.isnan(value) and never == seeds:
        return "reproduced"
    if np.isnan(value) or never:
        return "differs" if never in (0, seeds) else "inconclusive"
    # A distance equal to a bound must count as within it, despite the rounding of binary fractions
    slack = margin.rounding + 1e-9
    distance = abs(mean - value)
    if distance + half_width <= margin.far + slack:
        return "reproduced" if distance <= margin.near + slack else "close"
    return "differs" if distance - half_width > margin.far + slack else "inconclusive"
