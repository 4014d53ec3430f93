"""Exercises of lesson 10: privacy, and clients that come and go.

B. Zhao, K. R. Mopuri, H. Bilen: iDLG: improved deep leakage from gradients. 2020.
S. Yeom et al.: Privacy risk in machine learning: analyzing the connection to overfitting. IEEE CSF
2018.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import softmax
from scipy.stats import mannwhitneyu
from sklearn.metrics.pairwise import cosine_distances

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict
from cflkit.federation.privacy import epsilon

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 10.1 ----------------------------------------------------------------------------------------


def shares_from_step(change: Array, predicted: Array, lr: float) -> Array:
    """Compute the shares of the classes ``[C]`` from the change of the biases in one step."""
    return change / lr + predicted


def one_step(rng: np.random.Generator) -> Arguments:
    """Draw a client's classes and predictions, and take one step on all of its images."""
    classes = int(rng.integers(3, 8))
    shares = rng.dirichlet(np.ones(classes))
    predicted, lr = softmax(rng.normal(size=classes)), float(rng.uniform(0.05, 0.5))
    return lr * (shares - predicted), predicted, lr


# --- 10.2 ----------------------------------------------------------------------------------------


def protected(updates: Array, clip: float, noise: float, draws: Array) -> Array:
    """Clip each update of ``[m, P]`` to the norm ``clip``, and add its noise."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    kept: Array = updates * np.minimum(1, clip / norms) + noise * clip * draws
    return kept


def long_and_short_updates(rng: np.random.Generator) -> Arguments:
    """Draw updates, one of which is shorter than the bound, and one longer."""
    m, size = int(rng.integers(3, 6)), int(rng.integers(3, 8))
    updates = rng.normal(size=(m, size))
    norms = np.linalg.norm(updates, axis=1)
    clip = float(norms.min() + rng.uniform(0.05, 0.95) * (norms.max() - norms.min()))
    return updates, clip, float(rng.uniform(0.1, 2)), rng.normal(size=(m, size))


def all_to_the_bound(updates: Array, clip: float, noise: float, draws: Array) -> Array:
    """Make the mistake of lengthening short updates."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    found: Array = updates * clip / norms + noise * clip * draws
    return found


# --- 10.3 ----------------------------------------------------------------------------------------


def area(members: Array, others: Array) -> float:
    """Compute the probability that a member's loss is smaller; ties count half."""
    return float(mannwhitneyu(others, members).statistic / (len(members) * len(others)))


def losses_with_ties(rng: np.random.Generator) -> Arguments:
    """Draw losses of members and others, some of which are equal."""
    members = rng.integers(0, 6, int(rng.integers(5, 12))) / 4
    others = rng.integers(1, 8, int(rng.integers(5, 12))) / 4
    return members, others


# --- 10.4 ----------------------------------------------------------------------------------------


def attributed(update: Array, updates: Array, labels: Labels, limit: float) -> int | None:
    """Find the cluster with the smallest mean cosine distance; None if it is above the limit."""
    distances = cosine_distances(update[None], updates)[0]
    means = [distances[labels == k].mean() for k in range(labels.max() + 1)]
    nearest = int(np.argmin(means))
    return nearest if means[nearest] <= limit else None


def newcomer(rng: np.random.Generator) -> Arguments:
    """Draw updates of clusters of different size and length, a newcomer's update, and a limit."""
    clusters = int(rng.integers(2, 5))
    labels = rng.permutation(np.repeat(np.arange(clusters), rng.choice([2, 3, 6], clusters)))
    updates = rng.normal(size=(clusters, 3))[labels] + 0.7 * rng.normal(size=(len(labels), 3))
    updates *= rng.uniform(0.1, 6, size=(len(labels), 1))
    update = rng.normal(size=3)
    distances = cosine_distances(update[None], updates)[0]
    nearest = min(distances[labels == k].mean() for k in range(clusters))
    return update, updates, labels, float(nearest * rng.choice([0.9, 1.1, 1.3, 1.5]))


def whatever_the_limit(update: Array, updates: Array, labels: Labels, limit: float) -> int | None:
    """Make the mistake of ignoring the limit."""
    return attributed(update, updates, labels, np.inf)


def by_the_nearest_client(
    update: Array, updates: Array, labels: Labels, limit: float
) -> int | None:
    """Make the mistake of asking the nearest client alone."""
    distances = cosine_distances(update[None], updates)[0]
    return int(labels[distances.argmin()]) if distances.min() <= limit else None


def by_length(update: Array, updates: Array, labels: Labels, limit: float) -> int | None:
    """Make the mistake of Euclidean distances."""
    distances = np.linalg.norm(updates - update, axis=1)
    means = [distances[labels == k].mean() for k in range(labels.max() + 1)]
    return int(np.argmin(means)) if min(means) <= limit else None


def by_the_mean_update(update: Array, updates: Array, labels: Labels, limit: float) -> int | None:
    """Make the mistake of comparing with mean updates, in which long updates count more."""
    means = np.stack([updates[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return attributed(update, means, np.arange(len(means)), limit)


# --- 10.5 and 10.6 -------------------------------------------------------------------------------


def noise_of_a_mean() -> float:
    """Measure the noise in the mean of four updates, each with a noise of 0.2."""
    draws = np.random.default_rng(0).normal(scale=0.2, size=(4, 1_000_000))
    return float(draws.mean(axis=0).std())


def noise_for_more_rounds() -> float:
    """Find the factor by which the noise grows if ε stays and there are four times the rounds."""
    target = epsilon(3.0, 10)
    return float(brentq(lambda factor: epsilon(3.0 * factor, 40) - target, 1, 5))


EXERCISES = (
    Implement(
        "10.1",
        "What an update tells",
        minutes=10,
        level="easy",
        points=1,
        reference=shares_from_step,
        inputs=one_step,
        mistakes={
            "The predictions are missing. A bias goes down for a class that is predicted and "
            "absent.": lambda change, predicted, lr: change / lr,
            "A step goes against the gradient, so the sign changes once more.": (
                lambda change, predicted, lr: predicted - change / lr
            ),
            "Divide the change by the learning rate first.": (
                lambda change, predicted, lr: change + predicted
            ),
            "You multiply by the learning rate, and must divide.": (
                lambda change, predicted, lr: change * lr + predicted
            ),
        },
    ),
    Implement(
        "10.2",
        "Clip and add noise",
        minutes=10,
        level="easy",
        points=1,
        reference=protected,
        inputs=long_and_short_updates,
        mistakes={
            "Short updates have become longer. Only those that are longer than C change.": (
                all_to_the_bound
            ),
            "The noise is measured in units of C.": lambda updates, clip, noise, draws: protected(
                updates, clip, noise / clip, draws
            ),
            "You clip each value. What is bounded is the norm of the whole update.": (
                lambda updates, clip, noise, draws: (
                    np.clip(updates, -clip, clip) + noise * clip * draws
                )
            ),
            "You clip after adding the noise. Then the noise is clipped, too.": (
                lambda updates, clip, noise, draws: protected(
                    updates + noise * clip * draws, clip, 0.0, draws
                )
            ),
        },
    ),
    Implement(
        "10.3",
        "How good is an attack?",
        minutes=15,
        level="medium",
        points=2,
        reference=area,
        inputs=losses_with_ties,
        mistakes={
            "The direction is wrong. A member has the smaller loss.": (
                lambda members, others: area(others, members)
            ),
            "Equal losses count as a success. They must count half.": (
                lambda members, others: float((members[:, None] <= others).mean())
            ),
            "Equal losses count as a failure. They must count half.": (
                lambda members, others: float((members[:, None] < others).mean())
            ),
        },
    ),
    Implement(
        "10.4",
        "A newcomer's cluster, or none",
        minutes=20,
        level="medium",
        points=2,
        reference=attributed,
        inputs=newcomer,
        mistakes={
            "You ask the nearest client alone. Take the mean over a cluster's members.": (
                by_the_nearest_client
            ),
            "The lengths of the updates must not matter. Use cosine distances.": by_length,
            "In the mean of updates, long ones count more. Take the mean of distances.": (
                by_the_mean_update
            ),
            "Your function finds a cluster for every newcomer. What if none is near?": (
                whatever_the_limit
            ),
            "The limit is for the nearest cluster. Is its distance above it, or below?": (
                lambda update, updates, labels, limit: (
                    None
                    if attributed(update, updates, labels, limit) is not None
                    else whatever_the_limit(update, updates, labels, limit)
                )
            ),
        },
    ),
    Predict(
        "10.5",
        "Noise in good company",
        minutes=5,
        level="easy",
        points=1,
        measure=noise_of_a_mean,
        mistakes={
            "The noise is independent, so a part of it cancels.": 0.2,
            "The variance is divided by four. What follows for the standard deviation?": 0.05,
            "The noise of the sum would grow. What about the mean?": 0.4,
        },
        tolerance=0.001,
        because="In a mean of n independent values, the standard deviation is divided by the root "
        "of n. So a cluster of one has twice as much noise in its model as a cluster of four.",
    ),
    Predict(
        "10.6",
        "Four times as many rounds",
        minutes=10,
        level="medium",
        points=1,
        measure=noise_for_more_rounds,
        mistakes={
            "ε depends on s = 2√T / σ alone. If T is four times as large, how much larger must σ "
            "be for the same s?": 4.0,
            "That is the factor for twice as many rounds. What is it for four times as many?": (
                2**0.5
            ),
            "More rounds tell more, so the noise must grow.": 1.0,
        },
        tolerance=0.01,
        because="ε depends on √T / σ alone. Four times as many rounds need twice the noise.",
    ),
    Explain(
        "10.7",
        "Hospitals that come late",
        minutes=25,
        level="hard",
        points=4,
        rubric=(
            (1, "Says what is seen by the server and by other clients, for the chosen method."),
            (
                1,
                "Says what happens to a hospital that comes later, and to one of a new kind, with "
                "a scene of the lesson as the reason.",
            ),
            (
                1,
                "Does not promise privacy by noise without a number: names ε, and what it costs "
                "small clusters.",
            ),
            (1, "Says how one would notice a hospital that has changed, and what is then done."),
        ),
    ),
)
