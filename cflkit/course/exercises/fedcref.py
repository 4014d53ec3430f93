"""Exercises of lesson 06: FedCRef.

M. Nardi, L. Valerio, A. Passarella, arXiv 2408.10664.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics.cluster import contingency_matrix

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict, same_groups
from cflkit.course.exercises.ledger import purity
from cflkit.methods.fedcref import FedCRef, LocalClusters, associate, communities_of, differences
from cflkit.metrics import clustering_accuracy, matched

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 06.1 ----------------------------------------------------------------------------------------


def scaled_differences(own: Array, others: Array) -> Array:
    """Scale the differences of other networks' errors ``[L, n]`` to the own errors ``[n]``."""
    return differences(np.vstack([own, others]), 0, "min-max")[1:]


def errors_on_images(rng: np.random.Generator) -> Arguments:
    """Draw the errors of a network, and of a few others, on the same images."""
    others, images = rng.integers(3, 6), rng.integers(6, 12)
    return rng.uniform(0.02, 0.1, images), rng.uniform(0.02, 0.1, (others, images))


def scaled_over(gaps: Array, axis: int | None) -> Array:
    """Scale by the smallest and the largest value along an axis, or of the whole array."""
    low, high = gaps.min(axis=axis, keepdims=True), gaps.max(axis=axis, keepdims=True)
    return (gaps - low) / (high - low)


# --- 06.2 ----------------------------------------------------------------------------------------


def associated(on_q: Array, on_r: Array, alpha: float, theta: float) -> bool:
    """Decide whether two local clusters of two clients are associated.

    Parameters
    ----------
    on_q, on_r : ndarray
        ``[2, n_q]`` and ``[2, n_r]``, the errors of both networks on the images of q and of r.
    alpha, theta : float
        The percentage α, and the largest scaled difference θ.
    """
    samples = [np.arange(errors.shape[1]) for errors in (on_q, on_r)]
    two = LocalClusters(np.array([0, 1]), samples)
    options = FedCRef(start=(), alpha=alpha, theta=theta)
    return bool(associate([on_q, on_r], two, options)[0, 1])


def two_local_clusters(rng: np.random.Generator) -> Arguments:
    """Draw errors on two local clusters, on each of which the networks agree or not."""
    alpha, theta = float(rng.choice([65, 70, 75, 80])), rng.uniform(0.2, 0.45)
    return errors_of_two(rng, alpha, theta), errors_of_two(rng, alpha, theta), alpha, theta


def errors_of_two(rng: np.random.Generator, alpha: float, theta: float) -> Array:
    """Draw the errors ``[2, n]`` of two networks; the share within θ is never close to α."""
    n = int(rng.integers(20, 40))
    needed = alpha * n / 100
    few, some, many = (
        (1, max(2, int(n - needed) - 1)),  # fewer than 100 − α per cent
        (int(n - needed) + 2, int(needed) - 1),
        (int(needed) + 3, n),
    )
    within = int(rng.integers(*[few, some, many, many][rng.integers(4)]))
    # Often many differences just below θ and some large ones, or few just above θ and many tiny
    # ones, so that the mean lies on the other side of θ than the percentile
    near = (within > needed) == (rng.random() < 0.75)
    low = theta * rng.uniform(*((0.85, 0.98) if near else (0.0, 0.3)), within)
    high = rng.uniform(theta + 0.05, 1.0 if near else theta + 0.1, n - within)
    low[0], high[0] = 0, 1
    gaps = rng.uniform(0, 0.005) + 0.04 * rng.permutation(np.concatenate([low, high]))
    own = rng.uniform(0.06, 0.1, n)
    return np.stack([own, own + rng.choice([-1, 1], n) * gaps])


def agree_on(errors: Array, rule: Callable[[Array], bool]) -> bool:
    """Apply a rule to the scaled differences of two networks."""
    return rule(scaled_over(np.abs(errors[0] - errors[1]), None))


def percentile_within(alpha: float, theta: float) -> Callable[[Array], bool]:
    """Build the rule that the α-th percentile is at most θ."""
    return lambda gaps: bool(np.percentile(gaps, alpha, method="inverted_cdf") <= theta)


def by_the_mean(on_q: Array, on_r: Array, alpha: float, theta: float) -> bool:
    """Make the mistake of comparing the mean with θ."""
    return all(agree_on(errors, lambda gaps: bool(gaps.mean() <= theta)) for errors in (on_q, on_r))


def in_one_direction(on_q: Array, on_r: Array, alpha: float, theta: float) -> bool:
    """Make the mistake of associating if one of the two clients agrees."""
    return any(agree_on(errors, percentile_within(alpha, theta)) for errors in (on_q, on_r))


def with_large_differences(on_q: Array, on_r: Array, alpha: float, theta: float) -> bool:
    """Make the mistake of asking for a percentile of at least θ."""
    rule = percentile_within(alpha, theta)
    return not any(agree_on(errors, rule) for errors in (on_q, on_r))


def without_scaling(on_q: Array, on_r: Array, alpha: float, theta: float) -> bool:
    """Make the mistake of comparing differences as they are."""
    gaps = [np.abs(errors[0] - errors[1]) for errors in (on_q, on_r)]
    return all(percentile_within(alpha, theta)(one) for one in gaps)


# --- 06.3 ----------------------------------------------------------------------------------------


def a_clustering(rng: np.random.Generator) -> Arguments:
    """Draw classes, and clusters that are as many, fewer or more."""
    classes, clusters = rng.integers(3, 5), rng.integers(2, 6)
    counts = rng.integers(1, 15, (classes, clusters))
    row, column = np.indices(counts.shape)
    names = rng.choice(10, classes, replace=False)
    truth, found = names[np.repeat(row, counts.ravel())], np.repeat(column, counts.ravel())
    order = rng.permutation(len(truth))
    return truth[order], found[order]


def greedy(truth: Labels, found: Labels) -> float:
    """Make the mistake of matching the largest overlap first, and then the next."""
    together, right = contingency_matrix(truth, found), 0.0
    for _ in range(min(together.shape)):
        i, j = np.unravel_index(together.argmax(), together.shape)
        right += together[i, j]
        together[i], together[:, j] = -1, -1
    return right / len(truth)


def mean_over_classes(truth: Labels, found: Labels) -> float:
    """Make the mistake of averaging the shares of the classes."""
    names = matched(truth, found)
    right = np.array([names.get(int(cluster), -1) for cluster in found]) == truth
    return float(np.mean([right[truth == k].mean() for k in np.unique(truth)]))


def per_class(truth: Labels, found: Labels) -> float:
    """Make the mistake of dividing the number of right images by that of the classes."""
    return clustering_accuracy(truth, found) * len(truth) / len(np.unique(truth))


# --- 06.4 ----------------------------------------------------------------------------------------


def components(n: int, pairs: Labels) -> Labels:
    """Number the connected components of n local clusters with associated pairs ``[p, 2]``."""
    edges = np.zeros((n, n), dtype=bool)
    edges[pairs[:, 0], pairs[:, 1]] = True
    labels = np.arange(n)
    for members in communities_of(edges)[0]:
        labels[members] = members[0]
    return labels


def associations(rng: np.random.Generator) -> Arguments:
    """Draw chains of associations with a few branches, and some isolated local clusters."""
    sizes = [int(rng.integers(4, 7)), int(rng.integers(3, 5)), 2]
    n = sum(sizes) + int(rng.integers(2, 4))
    names = rng.permutation(n)
    pairs, start = [], 0
    for size in sizes:
        for place in range(start + 1, start + size):
            # Mostly the one before it in the chain, and sometimes an earlier one
            before = rng.integers(start, place) if rng.random() < 0.3 else place - 1
            pairs.append(rng.permutation([names[before], names[place]]))
        start += size
    return n, rng.permutation(np.array(pairs))


def with_neighbours(n: int, pairs: Labels) -> Labels:
    """Make the mistake of joining each local cluster with its direct neighbours only."""
    labels = np.arange(n)
    for i, j in pairs:
        labels[i], labels[j] = min(labels[i], j), min(labels[j], i)
    return labels


def the_last_pair_wins(n: int, pairs: Labels) -> Labels:
    """Make the mistake of renaming one local cluster, and not all of its component."""
    labels = np.arange(n)
    for i, j in pairs:
        labels[j] = labels[i]
    return labels


def isolated_together(n: int, pairs: Labels) -> Labels:
    """Make the mistake of putting all isolated local clusters into one group."""
    labels = components(n, pairs)
    labels[~np.isin(np.arange(n), pairs)] = -1
    return labels


def one_way(n: int, pairs: Labels) -> Labels:
    """Make the mistake of following a pair from its first to its second member only."""
    labels = np.full(n, -1)
    for start in range(n):
        waiting = [start] if labels[start] < 0 else []
        while waiting:
            at = waiting.pop()
            labels[at] = start
            waiting += [int(j) for i, j in pairs if i == at and labels[j] < 0]
    return labels


# --- 06.5 ----------------------------------------------------------------------------------------


def with_errors_times_100() -> str:
    """Associate local clusters by their errors, and by errors that are 100 times as large."""
    rng = np.random.default_rng(0)
    clients, classes, n = 8, 3, 60
    owner = np.repeat(np.arange(clients), classes)
    of_network = np.tile(np.arange(classes), clients)
    clusters = LocalClusters(owner, [k * n + np.arange(n) for k in of_network])
    of_image = np.repeat(np.arange(classes), n)
    errors = []
    for _ in range(clients):
        errors_on = rng.uniform(0.01, 0.04, len(of_image)) + np.where(
            of_network[:, None] == of_image,
            rng.exponential(0.002, (len(owner), len(of_image))),
            rng.uniform(0.02, 0.08, (len(owner), len(of_image))),
        )
        errors.append(errors_on)
    thresholds: dict[Literal["min-max", "absolute"], float] = {"min-max": 0.45, "absolute": 0.015}
    kept = []
    for normalisation, theta in thresholds.items():
        options = FedCRef(start=(), theta=theta, normalisation=normalisation)
        before = associate(errors, clusters, options)
        after = associate([100 * one for one in errors], clusters, options)
        assert 0 < before.sum() < before.size / 2
        if np.array_equal(before, after):
            kept.append(normalisation)
    return {0: "neither", 1: kept[0] if kept else "", 2: "both"}[len(kept)]


EXERCISES = (
    Implement(
        "06.1",
        "Scaled differences of errors",
        minutes=10,
        level="easy",
        points=1,
        reference=scaled_differences,
        inputs=errors_on_images,
        mistakes={
            "You divide by the largest difference only. Where must the smallest difference go?": (
                lambda own, others: (
                    np.abs(others - own) / np.abs(others - own).max(axis=1, keepdims=True)
                )
            ),
            "You scale along the wrong axis. Each network needs its own smallest and largest "
            "difference, over all images.": lambda own, others: scaled_over(
                np.abs(others - own), 0
            ),
            "All networks share one smallest and one largest difference. Each needs its own.": (
                lambda own, others: scaled_over(np.abs(others - own), None)
            ),
            "The scale is upside down. Which image must get 0?": (
                lambda own, others: 1 - scaled_differences(own, others)
            ),
            "Your differences have signs. It must not matter which network errs more.": (
                lambda own, others: scaled_over(others - own, 1)
            ),
        },
    ),
    Implement(
        "06.2",
        "Are two local clusters associated?",
        minutes=15,
        level="medium",
        points=2,
        reference=associated,
        inputs=two_local_clusters,
        mistakes={
            "You compare the mean difference with θ. The rule counts images instead.": by_the_mean,
            "One direction suffices for you. Both clients must agree.": in_one_direction,
            "Your inequality points the wrong way. Do small differences speak for or against an "
            "association?": with_large_differences,
            "Your function asks for 100 − α per cent of the images, and not for α per cent. How "
            "many images may exceed θ?": (
                lambda on_q, on_r, alpha, theta: associated(on_q, on_r, 100 - alpha, theta)
            ),
            "You compare differences with θ as they are. Scale them first.": without_scaling,
        },
    ),
    Implement(
        "06.3",
        "Clustering accuracy",
        minutes=15,
        level="medium",
        points=2,
        reference=clustering_accuracy,
        inputs=a_clustering,
        mistakes={
            "This is purity, in which two clusters may have the name of the same class.": purity,
            "You compare the labels as they are. The number of a cluster means nothing.": (
                lambda truth, found: float((truth == found).mean())
            ),
            "You divide by the number of classes. ACC is a share of all images.": per_class,
            "You average the shares of the classes. Every image counts the same.": (
                mean_over_classes
            ),
            "You match the largest overlap first, then the next. The best matching may need a "
            "smaller overlap for one cluster, so that another cluster gains more.": greedy,
        },
    ),
    Implement(
        "06.4",
        "Communities",
        minutes=15,
        level="easy",
        points=1,
        reference=components,
        inputs=associations,
        same=same_groups,
        mistakes={
            "You join direct neighbours only. A chain of associations also joins its two ends.": (
                with_neighbours
            ),
            "Each pair gives its second local cluster a new number, and forgets what was joined to "
            "it before. Which others must be renumbered, too?": the_last_pair_wins,
            "All isolated local clusters are in one group. Nothing joins them.": isolated_together,
            "You follow a pair from its first to its second member only. An association has no "
            "direction.": one_way,
        },
    ),
    Predict(
        "06.5",
        "Errors that are 100 times as large",
        minutes=5,
        level="medium",
        points=1,
        measure=with_errors_times_100,
        mistakes={
            "The differences are 100 times as large, too. What happens to them where they are "
            "compared with θ as they are?": "both",
            "θ is a number in the unit of the errors there, and the unit has changed. Which of the "
            "two rules does not know the unit?": "absolute",
            "All differences of a pair have the factor 100. Write it into the formula for the "
            "scaled difference. What remains of it?": "neither",
        },
        because="In min-max scaling, the factor 100 is in the numerator and in the denominator, "
        "and cancels. An absolute threshold has the unit of the errors, and must grow with them.",
    ),
    Explain(
        "06.6",
        "A client that copies networks",
        minutes=20,
        level="hard",
        points=3,
        rubric=(
            (
                1,
                "Two equal networks have equal errors on every image of any class. All differences "
                "are zero, so the local cluster is associated with the one of the original for "
                "every θ and α.",
            ),
            (
                1,
                "Both directions are not enough: each compares a network with its own copy. "
                "Client j even answers the second question itself.",
            ),
            (
                1,
                "Says what follows: client j's local cluster is in the community of the original, "
                "whatever its images are, and so trains this community's model. Compared with a "
                "third client, the networks are equal to the originals, but one direction is asked "
                "on client j's own images.",
            ),
        ),
    ),
)
