"""Comparison of methods: intervals of means over seeds, and ranks over many data sets with tests.

The analysis of ranks is that of J. Demšar (JMLR 2006), whose diagrams are named after Nemenyi's
critical difference. Its form is that of the OCFL authors' code (section 5.4 of the extended paper):
Friedman's test over all methods, then Wilcoxon's signed-rank test for each pair with Holm's
correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

# The significance level of all tests
LEVEL = 0.05


def half_width(ours: ArrayLike) -> float:
    """Return half the width of the 90 % t-interval of a mean over seeds; NaN for a single value."""
    from scipy.special import stdtrit  # SciPy and pandas take half a second to load

    values = np.asarray(ours, dtype=float)
    if len(values) < 2:
        return np.nan
    return float(stdtrit(len(values) - 1, 0.95) * values.std(ddof=1) / np.sqrt(len(values)))


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    ranks: pd.Series  # the average rank of each method, best (smallest) first
    friedman: float  # the p-value of Friedman's test, by whose hypothesis all methods are equal
    pairs: pd.DataFrame  # by method: p-values of the pairs after Holm's correction; 1 for itself
    # The maximal groups of two methods or more of which no two differ significantly, in order of
    # rank; one group with all methods if Friedman's test is not significant
    alike: list[list[str]]


def average_ranks(scores: pd.DataFrame, higher_is_better: bool) -> pd.Series:
    """Compute each method's mean rank over blocks from ``scores`` ``[blocks, k]``, best first.

    The largest score of a block has rank 1 if ``higher_is_better``. Equal scores share the mean of
    their ranks.

    Raises
    ------
    ValueError
        A score is missing.
    """
    if absent := scores.columns[scores.isna().any()].tolist():
        raise ValueError(f"ranks need a score of every method in every block; missing in {absent}")
    ranks = scores.rank(axis=1, ascending=not higher_is_better).mean()
    return ranks.sort_values(kind="stable")


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correct p-values by Holm's step-down method; return them in the given order.

    The smallest of n p-values is multiplied by n, the next by n − 1, and so on. No result is
    smaller than the one before, nor larger than 1.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1)
    return corrected


def compare(scores: pd.DataFrame, higher_is_better: bool) -> Comparison:
    """Rank methods and find out which of them differ significantly, at `LEVEL`.

    ``scores`` ``[blocks, k]`` has a row per block (data set and split) and a column per method. Of
    insertion, higher scores are better, and of deletion, lower ones. (The authors' diagram of
    deletion ranks in the opposite order.)

    Raises
    ------
    ValueError
        There are fewer than three methods, or a score is missing.
    """
    import pandas as pd
    from scipy.stats import friedmanchisquare

    ranks = average_ranks(scores, higher_is_better)
    names = ranks.index.tolist()
    friedman = float(friedmanchisquare(*(scores[name] for name in names)).pvalue)
    p_values = np.array([pair_test(scores[a], scores[b]) for a, b in combinations(names, 2)])
    pairs = pd.DataFrame(1.0, index=names, columns=names)
    for (a, b), p in zip(combinations(names, 2), holm(p_values), strict=True):
        pairs.loc[a, b] = pairs.loc[b, a] = p
    # Pairs are compared only if Friedman's test is significant
    alike = cliques(pairs > LEVEL) if friedman <= LEVEL else [names]
    return Comparison(ranks, friedman, pairs, alike)


def pair_test(a: pd.Series, b: pd.Series) -> float:
    """Compute the p-value of Wilcoxon's signed-rank test of two methods' scores.

    Zero differences are ranked (Pratt); if all differences are zero, the p-value is 1.
    """
    from scipy.stats import wilcoxon

    return 1.0 if (a == b).all() else float(wilcoxon(a, b, zero_method="pratt").pvalue)


def cliques(alike: pd.DataFrame) -> list[list[Any]]:
    """Find the maximal sets of two or more methods whose pairs are all alike, in their order."""
    import networkx

    graph = networkx.from_numpy_array(alike.to_numpy() & ~np.eye(len(alike), dtype=bool))
    members = sorted(sorted(clique) for clique in networkx.find_cliques(graph) if len(clique) > 1)
    return [alike.index[clique].tolist() for clique in members]
