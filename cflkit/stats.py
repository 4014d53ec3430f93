"""Comparing methods over many data sets: ranks, Friedman's test, pairwise tests, who is alike.

The analysis of J. Demšar (JMLR 2006), whose diagrams have their name from Nemenyi's critical
difference, in the form of the OCFL authors' code (section 5.4 of the extended paper): Friedman's
test over all methods, then Wilcoxon's signed-rank test for each pair with Holm's correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import networkx
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, wilcoxon

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    ranks : Series
        The average rank of each method, best (smallest) first.
    friedman : float
        p-value of Friedman's test: that all methods are alike.
    pairs : DataFrame
        ``[k, k]`` by method, in the order of ``ranks``: p-values of the pairs after Holm's
        correction; 1 on the diagonal.
    alike : list of list of str
        Methods of which no two differ significantly: the maximal cliques, of two methods or more,
        in order of rank. All methods where Friedman's test rejects nothing.
    """

    ranks: pd.Series
    friedman: float
    pairs: pd.DataFrame
    alike: list[list[str]]


def average_ranks(scores: pd.DataFrame, higher_is_better: bool) -> pd.Series:
    """Mean over blocks of each method's rank in the block, best first.

    Parameters
    ----------
    scores : DataFrame
        ``[blocks, k]``, a column a method.
    higher_is_better : bool
        Whether the largest score of a block has rank 1. Ties share the mean of their ranks.

    Raises
    ------
    ValueError
        A score is missing.
    """
    if scores.isna().any(axis=None):
        absent = scores.columns[scores.isna().any()].tolist()
        raise ValueError(f"ranks need a score of every method in every block; missing in {absent}")
    ranks = scores.rank(axis=1, ascending=not higher_is_better).mean()
    return ranks.sort_values(kind="stable")


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """p-values after Holm's step-down correction, in the order given.

    The smallest of n is multiplied by n, the next by n − 1, and so on; none may be smaller than the
    one before, nor larger than 1.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1)
    return corrected


def compare(scores: pd.DataFrame, higher_is_better: bool, level: float = 0.05) -> Comparison:
    """Rank methods and say which of them differ.

    Parameters
    ----------
    scores : DataFrame
        ``[blocks, k]``, a row a block (data set and split), a column a method; k ≥ 3.
    higher_is_better : bool
        Of the score: insertion is better high, deletion low (the authors' diagram of deletion ranks
        it the other way round).
    level : float
        Of both tests.

    Raises
    ------
    ValueError
        Fewer than three methods or two blocks, or a missing score.
    """
    if scores.shape[1] < 3 or len(scores) < 2:
        raise ValueError(
            f"needs three methods and two blocks or more, not {scores.shape[1]} and {len(scores)}"
        )
    ranks = average_ranks(scores, higher_is_better)
    names = ranks.index.tolist()
    friedman = float(friedmanchisquare(*(scores[name] for name in names)).pvalue)
    found = np.array([pair_test(scores[a], scores[b]) for a, b in combinations(names, 2)])
    pairs = pd.DataFrame(1.0, index=names, columns=names)
    for (a, b), p in zip(combinations(names, 2), holm(found), strict=True):
        pairs.loc[a, b] = pairs.loc[b, a] = p
    # Friedman's test comes first: where it finds nothing, no pair counts
    alike = cliques(pairs.to_numpy() > level) if friedman <= level else [list(range(len(names)))]
    return Comparison(ranks, friedman, pairs, [[names[i] for i in clique] for clique in alike])


def pair_test(a: pd.Series, b: pd.Series) -> float:
    """Wilcoxon's signed-rank test of two methods' scores, zeros ranked (Pratt); 1 if all are."""
    return 1.0 if (a == b).all() else float(wilcoxon(a, b, zero_method="pratt").pvalue)


def cliques(alike: NDArray[np.bool_]) -> list[list[int]]:
    """The maximal sets, of two or more, whose members are alike in pairs; ascending."""
    found = networkx.find_cliques(
        networkx.from_numpy_array(alike & ~np.eye(len(alike), dtype=bool))
    )
    return sorted(sorted(clique) for clique in found if len(clique) > 1)
