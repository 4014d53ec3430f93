"""Failure labs about training and evaluation: a rate, an empty image, ranks, and agreement.

L3.1: J. M. Cohen, S. Kaur, Y. Li, J. Z. Kolter, A. Talwalkar, ICLR 2021 (the edge of stability).
L3.2: V. Petsiuk, A. Das, K. Saenko, BMVC 2018. L3.3: J. Demšar, JMLR 7, 2006. L3.4: A. Rosenberg,
J. Hirschberg, EMNLP-CoNLL 2007.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
    mutual_info_score,
    rand_score,
)

from cflkit.course.exercises.base import Arguments, Implement
from cflkit.course.exercises.explanations import area
from cflkit.course.exercises.ledger import purity
from cflkit.reproduce import stats

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Labels = NDArray[np.int64]
Agreement = tuple[float, float, float]


# --- L3.1 ----------------------------------------------------------------------------------------


def largest_safe_rate(rates: Array, accuracies: Array, floor: float) -> float | None:
    """Return the largest rate at which no seed falls below the floor, if there is one.

    Parameters
    ----------
    rates : ndarray
        ``[R]``, different learning rates in any order.
    accuracies : ndarray
        ``[R, S]``, by rate and seed; NaN where the training diverged.
    floor : float
        The lowest accuracy that a run may have.
    """
    return largest_where(rates, np.all(accuracies >= floor, axis=1))  # which NaN is not


def largest_where(rates: Array, safe: Flags) -> float | None:
    """Return the largest of the rates that are safe, if there is one."""
    return float(rates[safe].max()) if safe.any() else None


def rates_and_accuracies(rng: np.random.Generator) -> Arguments:
    """Draw rates at which some seeds collapse or diverge, at large rates more often."""
    count, seeds = int(rng.integers(4, 8)), int(rng.integers(3, 7))
    rates = 0.01 * np.cumprod(rng.uniform(1.5, 3, count))
    accuracies = rng.uniform(0.88, 0.97, (count, seeds))
    risk = np.linspace(0, 0.5, count)[:, None] if rng.random() < 0.75 else 0.8
    collapsed = rng.random((count, seeds)) < risk
    # There is always a seed that trains well, so that the mean over seeds is a number
    collapsed[np.arange(count), rng.integers(seeds, size=count)] = False
    low = rng.uniform(0.1, 0.75, (count, seeds))
    low[rng.random((count, seeds)) < 0.3] = np.nan
    accuracies[collapsed] = low[collapsed]
    order = rng.permutation(count)
    return rates[order], accuracies[order], float(rng.uniform(0.78, 0.85))


def last_safe_rate(rates: Array, accuracies: Array, floor: float) -> float | None:
    """Make the mistake of returning the rate that comes last."""
    safe = (accuracies >= floor).all(axis=1)
    return float(rates[safe][-1]) if safe.any() else None


def smallest_safe_rate(rates: Array, accuracies: Array, floor: float) -> float | None:
    """Make the mistake of returning the smallest rate."""
    safe = (accuracies >= floor).all(axis=1)
    return float(rates[safe].min()) if safe.any() else None


def or_the_smallest(rates: Array, accuracies: Array, floor: float) -> float:
    """Make the mistake of returning some rate even if no rate is safe."""
    found = largest_safe_rate(rates, accuracies, floor)
    return float(rates.min()) if found is None else found


# --- L3.2 ----------------------------------------------------------------------------------------


def gain_over_empty(curve: Array) -> float:
    """Compute the area under an insertion curve ``[J + 1]``, from the empty to the full image."""
    return gain(curve, float(curve[-1] - curve[0]))


def gain(curve: Array, most: float) -> float:
    """Measure a curve's gain over its first value in units of the most that could be gained."""
    return area((curve - curve[0]) / most) if most else 0.0


def an_insertion_curve(rng: np.random.Generator) -> Arguments:
    """Draw a curve that mostly rises. Sometimes it falls, or ends where it begins."""
    steps = int(rng.integers(3, 10))
    first, last = float(rng.uniform(0.1, 0.5)), float(rng.uniform(0.65, 0.95))
    kind = rng.choice(["rises", "rises", "falls", "returns"])
    if kind == "falls":
        first, last = last, first
    curve = np.linspace(first, last, steps + 1) + rng.normal(0, 0.05, steps + 1)
    curve[0], curve[-1] = first, first if kind == "returns" else last
    return (np.clip(curve, 0, 1),)


# --- L3.3 ----------------------------------------------------------------------------------------


def average_ranks(scores: Array, high_is_good: Flags) -> Array:
    """Compute the average rank ``[M]`` of methods for scores ``[J, M]`` and flags ``[J]``."""
    ranks = [
        stats.average_ranks(pd.DataFrame(row[None]), bool(flag)).sort_index().to_numpy()
        for row, flag in zip(scores, high_is_good, strict=True)
    ]
    return np.mean(ranks, axis=0)


def scores_of_measures(rng: np.random.Generator) -> Arguments:
    """Draw scores with ties, in different units, for measures of both kinds."""
    measures, methods = rng.integers(3, 7), rng.integers(3, 6)
    unit = 10.0 ** rng.integers(-2, 3, (measures, 1))
    scores = unit * rng.integers(0, 5, (measures, methods))
    flags = rng.permutation([True, False, *(rng.random(measures - 2) < 0.5)])
    return scores, flags


def signed(scores: Array, high_is_good: Flags) -> Array:
    """Change signs so that low is good for each measure."""
    return np.where(high_is_good[:, None], -scores, scores)


# --- L3.4 ----------------------------------------------------------------------------------------


def agreement(truth: Labels, found: Labels) -> Agreement:
    """Compute the adjusted Rand index, the homogeneity and the completeness of a clustering."""
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(truth, found)
    return float(adjusted_rand_score(truth, found)), float(homogeneity), float(completeness)


def true_and_found_clusters(rng: np.random.Generator) -> Arguments:
    """Draw true clusters, and a clustering that breaks them, merges them or is wrong elsewhere."""
    groups = int(rng.integers(2, 5))
    truth = rng.permutation(
        np.concatenate([np.arange(groups).repeat(2), rng.integers(groups, size=9)])
    )
    kind = rng.choice(["pieces", "pieces", "merged", "one", "one", "alone", "moved", "moved"])
    found = {
        "pieces": truth + groups * rng.integers(3, size=len(truth)),
        "merged": truth // 2,
        "one": 0 * truth,
        "alone": np.arange(len(truth)),
        "moved": np.where(
            rng.random(len(truth)) < 0.3, rng.integers(groups, size=len(truth)), truth
        ),
    }[kind]
    names, other_names = rng.permutation(30), rng.permutation(30)
    return names[truth], other_names[found]


def without_the_edge_case(truth: Labels, found: Labels) -> Agreement:
    """Make the mistake of returning completeness 0 for a single found cluster."""
    ari, homogeneity, completeness = agreement(truth, found)
    return ari, homogeneity, completeness if len(np.unique(found)) > 1 else 0.0


def with_one_entropy(truth: Labels, found: Labels) -> Agreement:
    """Make the mistake of dividing by the entropy of the truth in both measures."""
    ari, homogeneity, _ = agreement(truth, found)
    return ari, homogeneity, homogeneity


def with_information(truth: Labels, found: Labels) -> Agreement:
    """Make the mistake of not dividing the mutual information by an entropy."""
    shared = float(mutual_info_score(truth, found))
    return agreement(truth, found)[0], shared, shared


EXERCISES = (
    Implement(
        "L3.1",
        "It worked on her laptop",
        minutes=20,
        level="medium",
        points=2,
        reference=largest_safe_rate,
        inputs=rates_and_accuracies,
        mistakes={
            "You look at one seed only, and take the rate with its highest accuracy. What do the "
            "other seeds do at this rate?": lambda rates, accuracies, floor: float(
                rates[np.nan_to_num(accuracies[:, 0]).argmax()]
            ),
            "The mean over the seeds is above the floor here. A mean can hide a seed that has "
            "collapsed.": lambda rates, accuracies, floor: largest_where(
                rates, np.nanmean(accuracies, axis=1) >= floor
            ),
            "It is enough here that the best seed is above the floor. Every seed must be.": (
                lambda rates, accuracies, floor: largest_where(
                    rates, np.nanmax(accuracies, axis=1) >= floor
                )
            ),
            "This is the rate with the highest mean accuracy. It need not be safe, and it need not "
            "be the largest safe rate.": lambda rates, accuracies, floor: float(
                rates[np.nanmean(accuracies, axis=1).argmax()]
            ),
            "This is the smallest safe rate. The largest one was asked for.": smallest_safe_rate,
            "A run that diverged counts as safe here. Try `float('nan') < 0.5` and "
            "`float('nan') >= 0.5`.": lambda rates, accuracies, floor: largest_where(
                rates, ~(accuracies < floor).any(axis=1)
            ),
            "This is the safe rate that stands last in the list. The rates can be in any order.": (
                last_safe_rate
            ),
            "You return a rate even if none is safe. Return None in this case.": or_the_smallest,
        },
    ),
    Implement(
        "L3.2",
        "The worst model, explained best",
        minutes=15,
        level="medium",
        points=2,
        reference=gain_over_empty,
        inputs=an_insertion_curve,
        mistakes={
            "This is the plain area. It also counts what the model says of the empty image.": area,
            "You subtract the value of the empty image, but you do not divide by what the full "
            "image adds to it.": lambda curve: area(curve - curve[0]),
            "You divide by the value of the full image, and do not subtract that of the empty "
            "image.": lambda curve: area(curve) / curve[-1],
            "You divide by the distance from the empty image to certainty. Divide by the distance "
            "to what the model says of the full image.": lambda curve: gain(curve, 1 - curve[0]),
            "You scale the curve from its smallest to its largest value. The two ends of the "
            "curve are the empty and the full image.": lambda curve: area(
                (curve - curve.min()) / np.ptp(curve)
            ),
            "The denominator has lost its sign. It is negative where the full image has a lower "
            "probability than the empty one.": lambda curve: gain(curve, abs(curve[-1] - curve[0])),
            "You return 0 wherever the full image has a lower probability than the empty one. Only "
            "equal probabilities give 0.": lambda curve: gain(curve, max(curve[-1] - curve[0], 0)),
            "This is the mean of the points. In the trapezoidal rule, the first and the last point "
            "have half the weight of the others.": lambda curve: (
                float((curve - curve[0]).mean() / most) if (most := curve[-1] - curve[0]) else 0.0
            ),
        },
    ),
    Implement(
        "L3.3",
        "Noise wins",
        minutes=15,
        level="medium",
        points=2,
        reference=average_ranks,
        inputs=scores_of_measures,
        mistakes={
            "You rank each measure as if a high score were good. Where do you use the flags?": (
                lambda scores, high_is_good: average_ranks(scores, np.ones_like(high_is_good))
            ),
            "The flags work the wrong way round. The best method must have the smallest rank.": (
                lambda scores, high_is_good: average_ranks(scores, ~high_is_good)
            ),
            "Of equal scores, the first one gets the better rank. They must share the mean of "
            "their ranks.": lambda scores, high_is_good: rankdata(
                signed(scores, high_is_good), method="ordinal", axis=1
            ).mean(axis=0),
            "Equal scores all get the best of their ranks. They must share the mean of them.": (
                lambda scores, high_is_good: rankdata(
                    signed(scores, high_is_good), method="min", axis=1
                ).mean(axis=0)
            ),
            "A single `argsort` says which method is first, second and so on. It does not say "
            "which rank each method has.": lambda scores, high_is_good: (
                1 + signed(scores, high_is_good).argsort(axis=1, kind="stable").mean(axis=0)
            ),
            "You rank the measures of each method. Rank the methods by each measure.": (
                lambda scores, high_is_good: rankdata(signed(scores, high_is_good), axis=0).mean(
                    axis=0
                )
            ),
            "You average the scores, and rank the means. The measures have different units, and "
            "the one with the largest numbers decides then. Rank first.": (
                lambda scores, high_is_good: rankdata(signed(scores, high_is_good).mean(axis=0))
            ),
            "You average over the methods. Each method needs a mean over the measures.": (
                lambda scores, high_is_good: rankdata(signed(scores, high_is_good), axis=1).mean(
                    axis=1
                )
            ),
        },
    ),
    Implement(
        "L3.4",
        "Full marks",
        minutes=20,
        level="medium",
        points=2,
        reference=agreement,
        inputs=true_and_found_clusters,
        mistakes={
            "Homogeneity and completeness are interchanged. Which of them is 1 if every client is "
            "alone? If you call a library, look at the order of its arguments.": (
                lambda truth, found: agreement(found, truth)
            ),
            "The first number is the Rand index without adjustment. It is far above 0 for random "
            "clusters, too.": lambda truth, found: (
                float(rand_score(truth, found)),
                *agreement(truth, found)[1:],
            ),
            "The first number is the adjusted mutual information. The adjusted Rand index counts "
            "pairs of clients.": lambda truth, found: (
                float(adjusted_mutual_info_score(truth, found)),
                *agreement(truth, found)[1:],
            ),
            "The second number is the purity: the share of clients in the majority of their found "
            "cluster. Homogeneity compares two entropies.": lambda truth, found: (
                agreement(truth, found)[0],
                purity(truth, found),
                agreement(truth, found)[2],
            ),
            "You divide by the entropy of the true clusters in both measures. Which entropy "
            "belongs to completeness?": with_one_entropy,
            "You return what the two groupings have in common, without dividing by an entropy.": (
                with_information
            ),
            "Completeness is 1 if there is only one found cluster. No true cluster is then in "
            "pieces.": without_the_edge_case,
        },
    ),
)
