"""Exercises of lesson 90: published numbers beside ours.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, IEEE BigData 2024, and its extended version, whose
tables the lesson shows in detail. The adjusted Rand index is that of L. Hubert, P. Arabie, Journal
of Classification 2, 1985.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t
from sklearn.metrics import adjusted_rand_score, rand_score
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict
from cflkit.reproduce import ledger
from cflkit.reproduce.papers.base import Margin

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 90.1 ----------------------------------------------------------------------------------------


def values_of_seeds(rng: np.random.Generator) -> Arguments:
    """Draw the values of two to eight seeds."""
    seeds = int(rng.integers(2, 9))
    return (rng.uniform(0.2, 0.9) + rng.uniform(0.02, 0.2) * rng.normal(size=seeds),)


def with_quantile(ours: Array, quantile: float) -> float:
    """Multiply the standard error of the mean by a quantile."""
    return float(quantile * ours.std(ddof=1) / np.sqrt(len(ours)))


# --- 90.2 ----------------------------------------------------------------------------------------


def status(value: float, ours: Array, near: float, far: float) -> str:
    """Compare a published value with ours, by margins that contain the rounding of the print."""
    return ledger.status(value, ours, Margin(near, far, rounding=0))


def a_published_number(rng: np.random.Generator) -> Arguments:
    """Draw a number, our values and two margins, with room between each answer and the next."""
    near, far = rng.uniform(0.01, 0.03), rng.uniform(0.06, 0.1)
    kind = rng.choice(["near", "near", "farther", "farther", "outside"])
    low, high = {
        "near": (0.1 * near, 0.8 * near),
        "farther": (1.2 * near, 0.8 * far),
        "outside": (1.4 * far, 4 * far),
    }[kind]
    distance = rng.uniform(low, high)
    room = abs(far - distance)
    # The standard error, too, must reach beyond the room in some of the trials
    factor = [(0.1, 0.85), (1.15, 2), (8, 12)][rng.choice(3, p=[0.5, 0.25, 0.25])]
    half_width = room * rng.uniform(*factor)
    scatter = rng.normal(size=int(rng.integers(2, 5)))
    scatter = (scatter - scatter.mean()) * half_width / ledger.half_width(scatter)
    value = float(rng.uniform(0.2, 0.9))
    return value, value + rng.choice([-1, -1, 1]) * distance + scatter, near, far


def by_interval(distance: float, half_width: float, near: float, far: float) -> str:
    """Apply the rule to a distance and half a width, which may be wrong."""
    if distance + half_width <= far:
        return "reproduced" if distance <= near else "close"
    return "differs" if distance - half_width > far else "inconclusive"


def by_the_mean_alone(value: float, ours: Array, near: float, far: float) -> str:
    """Make the mistake of ignoring the interval."""
    return by_interval(abs(ours.mean() - value), 0, near, far)


def if_it_contains_the_value(value: float, ours: Array, near: float, far: float) -> str:
    """Make the mistake of counting each number in our interval as reproduced."""
    inside = abs(ours.mean() - value) <= ledger.half_width(ours)
    return "reproduced" if inside else status(value, ours, near, far)


def with_a_sign(value: float, ours: Array, near: float, far: float) -> str:
    """Make the mistake of leaving the sign of the difference."""
    return by_interval(float(ours.mean() - value), ledger.half_width(ours), near, far)


def by_the_standard_error(value: float, ours: Array, near: float, far: float) -> str:
    """Make the mistake of leaving out the factor from the t-distribution."""
    error = ours.std(ddof=1) / np.sqrt(len(ours))
    return by_interval(abs(ours.mean() - value), error, near, far)


def by_extremes(value: float, ours: Array, near: float, far: float) -> str:
    """Make the mistake of taking the smallest and the largest value as the interval."""
    distances = abs(ours - value)
    if distances.max() <= far:
        return "reproduced" if abs(ours.mean() - value) <= near else "close"
    apart = ours.min() > value + far or ours.max() < value - far
    return "differs" if apart else "inconclusive"


# --- 90.3 ----------------------------------------------------------------------------------------


def two_groupings(rng: np.random.Generator) -> Arguments:
    """Draw a grouping, and a second one that moves some clients; names of groups are arbitrary."""
    while True:
        m, groups = int(rng.integers(8, 20)), int(rng.integers(2, 5))
        truth = rng.integers(0, groups, m)
        found = np.where(rng.random(m) < 0.4, rng.integers(0, groups + 1, m), truth)
        names, other_names = rng.permutation(10), rng.permutation(10)
        several = min(len(np.unique(truth)), len(np.unique(found))) > 1
        if several and 0.05 < adjusted_rand_score(truth, found) < 0.95:
            return names[truth], other_names[found]


def expected_rand(truth: Labels, found: Labels) -> float:
    """Compute the mean Rand index of random groupings with the same sizes."""
    (neither, only_found), (only_true, both) = pair_confusion_matrix(truth, found)
    pairs = neither + only_found + only_true + both
    a, b = (both + only_true) / pairs, (both + only_found) / pairs
    return float(a * b + (1 - a) * (1 - b))


def without_division(truth: Labels, found: Labels) -> float:
    """Make the mistake of not dividing by the largest possible difference."""
    return float(rand_score(truth, found)) - expected_rand(truth, found)


def purity(truth: Labels, found: Labels) -> float:
    """Compute the share of clients that belong to the majority of their found cluster."""
    return float(contingency_matrix(truth, found).max(axis=0).sum() / len(truth))


def with_all_pairs(truth: Labels, found: Labels) -> float:
    """Make the mistake of pairing each client with itself, too."""
    same, alike = truth[:, None] == truth, found[:, None] == found
    a, b = same.mean(), alike.mean()
    expected = a * b + (1 - a) * (1 - b)
    return float(((same == alike).mean() - expected) / (1 - expected))


# --- 90.4 ----------------------------------------------------------------------------------------


def hits_of_wrong_scenarios(scatter: float, rng: np.random.Generator) -> float:
    """Compute how often the old rule accepts our runs of another scenario."""
    published, other = rng.uniform(0.3, 0.9, (2, 20_000))
    ours = other[:, None] + scatter * rng.normal(size=(len(other), 5))
    inside = (ours.min(axis=1) <= published) & (published <= ours.max(axis=1))
    return float((inside | (abs(ours.mean(axis=1) - published) <= 0.02)).mean())


def what_scatter_does() -> str:
    """Compare the share of hits with much scatter and with little."""
    little, much = (hits_of_wrong_scenarios(s, np.random.default_rng(0)) for s in (0.01, 0.1))
    return "equal" if abs(much - little) < 0.05 else ("more" if much > little else "fewer")


# --- 90.5 ----------------------------------------------------------------------------------------


def gain_of_the_best_round() -> float:
    """Compute the mean of best minus last round, over many curves of 50 rounds of pure noise."""
    curves = 0.8 + 0.02 * np.random.default_rng(0).normal(size=(20_000, 50))
    return float((curves.max(axis=1) - curves[:, -1]).mean())


EXERCISES = (
    Implement(
        "90.1",
        "The interval of a mean",
        minutes=10,
        level="easy",
        points=1,
        reference=ledger.half_width,
        inputs=values_of_seeds,
        mistakes={
            "This is the quantile of the normal distribution. With few seeds, the standard "
            "deviation is uncertain itself, and the t-distribution allows for that.": (
                lambda ours: with_quantile(ours, norm.ppf(0.95))
            ),
            "This is a 95 % interval. Which share may lie beyond each end of a 90 % interval?": (
                lambda ours: with_quantile(ours, t.ppf(0.975, len(ours) - 1))
            ),
            "This interval leaves a tenth on each side. Together, both sides may have a tenth.": (
                lambda ours: with_quantile(ours, t.ppf(0.9, len(ours) - 1))
            ),
            "The standard deviation divides by n. The seeds are a sample, so divide by n − 1.": (
                lambda ours: ledger.half_width(ours) * np.sqrt(1 - 1 / len(ours))
            ),
            "This is an interval for one more seed. The mean of n seeds scatters less than one "
            "seed does.": lambda ours: ledger.half_width(ours) * np.sqrt(len(ours)),
        },
    ),
    Implement(
        "90.2",
        "The answer to a number",
        minutes=15,
        level="medium",
        points=2,
        reference=status,
        inputs=a_published_number,
        mistakes={
            "Your interval is the mean ± one standard error. The factor from the t-distribution is "
            "missing.": by_the_standard_error,
            "Only the mean counts in your function. What if our seeds scatter widely around a mean "
            "that happens to be right?": by_the_mean_alone,
            "A number inside our interval counts as reproduced. Then more scatter makes more "
            "numbers right. The rule asks where the whole interval lies.": if_it_contains_the_value,
            "The two margins are exchanged. Which of them is for the mean, and which for the whole "
            "interval?": lambda value, ours, near, far: status(value, ours, far, near),
            "Your distance can be negative. A mean far below the number is then called near.": (
                with_a_sign
            ),
            "Your interval comes from the spread of the seeds, such as the smallest and the "
            "largest one. The rule takes the t-interval of the mean, with the h of 90.1.": (
                by_extremes
            ),
        },
        same=lambda a, b: isinstance(a, str) and a == b,
    ),
    Implement(
        "90.3",
        "The adjusted Rand index",
        minutes=20,
        level="medium",
        points=2,
        reference=lambda truth, found: float(adjusted_rand_score(truth, found)),
        inputs=two_groupings,
        mistakes={
            "This is the Rand index. It is far above 0 for random groupings, too.": (
                lambda truth, found: float(rand_score(truth, found))
            ),
            "This is the purity: the share of clients in the majority of their found cluster. It "
            "is 1 if every client is alone.": purity,
            "You subtract the expectation, but equal groupings do not get 1 so. Divide by the "
            "largest difference that is possible.": without_division,
            "You count pairs of a client with itself. All groupings agree on these.": (
                with_all_pairs
            ),
        },
    ),
    Predict(
        "90.4",
        "A rule that rewards scatter",
        minutes=10,
        level="medium",
        points=1,
        measure=what_scatter_does,
        mistakes={
            "Noisier runs say less about their own scenario. But how long is the interval from the "
            "smallest to the largest seed now, and what does the rule do with it?": "fewer",
            "The mean of the runs stays at the same place on average. The rule has a second "
            "condition. Does that one depend on the scatter?": "equal",
        },
        because="The interval from the smallest to the largest seed grows with the scatter, and a "
        "longer interval contains more numbers, right or wrong. Bad runs are rewarded.",
    ),
    Predict(
        "90.5",
        "The best round",
        minutes=5,
        level="easy",
        points=1,
        measure=gain_of_the_best_round,
        tolerance=0.002,
        mistakes={
            "The noise has the mean 0 in each round. Has the largest of fifty draws the mean 0, "
            "too?": 0.0,
            "One standard deviation is what a single round is usually off. How far out is the most "
            "extreme of fifty rounds?": 0.02,
            "That is 0.02 times the root of 50, as if the noise of all rounds were added up. Only "
            "one round is reported. Is a draw seven standard deviations out likely among "
            "fifty?": 0.14,
        },
        because="The largest of fifty normal draws lies 2.25 standard deviations above the mean on "
        "average, and 2.25 · 0.02 = 0.045. Nothing has been learned in these rounds.",
    ),
    Explain(
        "90.6",
        "Why a placebo?",
        minutes=15,
        level="medium",
        points=3,
        rubric=(
            (
                1,
                "Defines the placebo rate. It compares numbers with our runs of other scenarios "
                "(of the same table, method and measure). The rate is the share that the rule "
                "calls reproduced.",
            ),
            (
                1,
                "Says why a count alone proves nothing: a generous rule, or a table with similar "
                "numbers, gives many hits with wrong scenarios as well.",
            ),
            (
                1,
                "Draws the conclusion: only a share for right scenarios that lies well above the "
                "placebo rate is evidence that these numbers came out again.",
            ),
        ),
    ),
)
