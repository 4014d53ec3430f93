"""Exercises of lesson 08: Tutorial 022.

O. Y. Laitinen Imanov and contributors: Tutorial 022, Clustered Federated Learning. 2026.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 08.1 ----------------------------------------------------------------------------------------


def three_distances(gradients: Array, losses: Array, models: Array) -> list[Array]:
    """Compute the distances of clients by gradients, by losses and by models, each ``[m, m]``."""
    by_losses = euclidean_distances(losses[:, None])
    return [cosine_distances(gradients), by_losses, euclidean_distances(models)]


def some_signatures(rng: np.random.Generator) -> Arguments:
    """Draw the three signatures of some clients."""
    m, d = rng.integers(3, 7), rng.integers(4, 9)
    return rng.normal(size=(m, d)), rng.uniform(0.5, 3, m), rng.normal(size=(m, d))


def with_one_changed(place: int, change: Callable[..., Array]) -> Callable[..., list[Array]]:
    """Build the mistake that changes one of the three distances by a function of the arguments."""

    def mistake(*signatures: Array) -> list[Array]:
        found = three_distances(*signatures)
        found[place] = change(*signatures)
        return found

    return mistake


# --- 08.2 ----------------------------------------------------------------------------------------


def reassigned(losses: Array, before: Labels, margin: float) -> Labels:
    """Choose a cluster for each client by losses ``[K, m]``; who gains too little stays."""
    best = losses.argmin(axis=0)
    clients = np.arange(len(before))
    gains = losses[before, clients] - losses[best, clients]
    chosen: Labels = np.where(gains > margin, best, before)
    return chosen


def losses_and_clusters(rng: np.random.Generator) -> Arguments:
    """Draw losses of three or four models on some clients, and the clients' clusters."""
    count, m = rng.integers(3, 5), rng.integers(6, 12)
    losses = rng.uniform(0.5, 2.5, (count, m))
    return losses, rng.integers(0, count, m), float(rng.uniform(0.2, 0.6))


def by_the_share_of_the_loss(losses: Array, before: Labels, margin: float) -> Labels:
    """Make the mistake of comparing the relative gain with the margin."""
    own = losses[before, np.arange(len(before))]
    return np.where((own - losses.min(axis=0)) / own > margin, losses.argmin(axis=0), before)


def compared_with_the_mean(losses: Array, before: Labels, margin: float) -> Labels:
    """Make the mistake of comparing the smallest loss with the mean loss of all models."""
    gains = losses.mean(axis=0) - losses.min(axis=0)
    return np.where(gains > margin, losses.argmin(axis=0), before)


# --- 08.3 ----------------------------------------------------------------------------------------


def shares(losses: Array, tau: float) -> Array:
    """Compute the shares ``[m, K]`` of clients in clusters from losses ``[K, m]``."""
    found: Array = softmax(-losses.T / tau, axis=1)
    return found


def losses_and_tau(rng: np.random.Generator) -> Arguments:
    """Draw losses, of which some are large, and a temperature."""
    count, m = rng.integers(2, 5), rng.integers(5, 9)
    return rng.uniform(0, 4, (count, m)), float(rng.uniform(0.2, 0.8))


def not_normalised(losses: Array, tau: float) -> Array:
    """Make the mistake of not dividing by the sum."""
    return np.exp(-losses.T / tau)


# --- 08.4 ----------------------------------------------------------------------------------------


def soft_aggregate(models: Array, updates: Array, of: Array, sizes: Array) -> Array:
    """Add to each model ``[K, P]`` the mean update, with the weights shares times samples."""
    weights = of * sizes[:, None]
    moved: Array = models + (weights / weights.sum(axis=0)).T @ updates
    return moved


def a_soft_round(rng: np.random.Generator) -> Arguments:
    """Draw models, updates, shares and numbers of samples."""
    count, m, parameters = 3, int(rng.integers(4, 8)), 5
    of = softmax(2 * rng.normal(size=(m, count)), axis=1)
    sizes = rng.integers(20, 150, m).astype(float)
    return rng.normal(size=(count, parameters)), rng.normal(size=(m, parameters)), of, sizes


# --- 08.5 ----------------------------------------------------------------------------------------


def clusters_below_the_gap(heights: Array) -> int:
    """Count the clusters that remain if the largest gap between two merges is cut."""
    return int(len(heights) - np.diff(heights).argmax())


def rising_heights(rng: np.random.Generator) -> Arguments:
    """Draw the heights of merges in ascending order, with one gap that is clearly the largest."""
    steps = rng.uniform(0.05, 0.3, rng.integers(5, 9))
    steps[rng.integers(2, len(steps) - 1)] += rng.uniform(0.6, 1.5)
    steps[0] = 0.01  # the second height is the largest multiple of the one before
    return (np.cumsum(steps),)


# --- 08.6 and 08.7 -------------------------------------------------------------------------------


def mean_ceiling() -> float:
    """Compute the mean over clusters of the share of samples whose class the cluster has."""
    classes = [3 * cluster + np.arange(4) for cluster in range(3)]
    samples = np.concatenate(classes)
    return float(np.mean([np.isin(samples, own).mean() for own in classes]))


def ari_of_the_plateau() -> float:
    """Compute the ARI if two of three groups of ten clients share a model."""
    truth = np.repeat([0, 1, 2], 10)
    return float(adjusted_rand_score(truth, truth > 0))


EXERCISES = (
    Implement(
        "08.1",
        "Three distances",
        minutes=15,
        level="easy",
        points=2,
        reference=three_distances,
        inputs=some_signatures,
        mistakes={
            "The first matrix has similarities. A client must be at distance 0 from itself.": (
                with_one_changed(0, lambda g, f, w: 1 - cosine_distances(g))
            ),
            "The gradients are not divided by their norms, so long ones count more.": (
                with_one_changed(0, lambda g, f, w: 1 - g @ g.T)
            ),
            "The second matrix has signs. A distance is the same in both directions.": (
                with_one_changed(1, lambda g, f, w: f[:, None] - f)
            ),
            "The third matrix has squared distances. A root is missing.": (
                with_one_changed(2, lambda g, f, w: euclidean_distances(w, squared=True))
            ),
            "The third matrix has cosine distances. Models are compared by the length of their "
            "difference.": with_one_changed(2, lambda g, f, w: cosine_distances(w)),
        },
    ),
    Implement(
        "08.2",
        "Reassign, but not for nothing",
        minutes=15,
        level="medium",
        points=2,
        reference=reassigned,
        inputs=losses_and_clusters,
        mistakes={
            "Your clients go to the model with the largest loss.": (
                lambda losses, before, margin: reassigned(-losses, before, margin)
            ),
            "Your clients always move to the best model. They must gain more than the margin.": (
                lambda losses, before, margin: losses.argmin(axis=0)
            ),
            "You compare a share of the loss with the margin. The margin is a difference of "
            "losses.": by_the_share_of_the_loss,
            "You compare the smallest loss with the mean over all models. What counts is the loss "
            "of the model that the client has now.": compared_with_the_mean,
            "Nobody moves.": lambda losses, before, margin: before,
        },
    ),
    Implement(
        "08.3",
        "Soft shares",
        minutes=10,
        level="easy",
        points=1,
        reference=shares,
        inputs=losses_and_tau,
        mistakes={
            "The sign is wrong: a client now has its largest share in the worst cluster.": (
                lambda losses, tau: shares(-losses, tau)
            ),
            "The shares of a client do not add up to 1.": not_normalised,
            "You multiply by τ. A small τ must make the shares sharp.": (
                lambda losses, tau: shares(losses, 1 / tau)
            ),
            "You normalise over the clients. The shares of each client must add up to 1.": (
                lambda losses, tau: softmax(-losses.T / tau, axis=0)
            ),
            "The result is transposed. It has one row per client.": (
                lambda losses, tau: shares(losses, tau).T
            ),
        },
    ),
    Implement(
        "08.4",
        "A soft round at the server",
        minutes=15,
        level="medium",
        points=2,
        reference=soft_aggregate,
        inputs=a_soft_round,
        mistakes={
            "All clients count alike. A client also counts by its number of samples.": (
                lambda models, updates, of, sizes: soft_aggregate(
                    models, updates, of, np.ones_like(sizes)
                )
            ),
            "The weights of a cluster do not add up to 1. Divide by their sum.": (
                lambda models, updates, of, sizes: models + (of * sizes[:, None]).T @ updates
            ),
            "You divide by the number of all samples. The weights of each cluster must add up to "
            "1.": lambda models, updates, of, sizes: (
                models + (of * sizes[:, None] / sizes.sum()).T @ updates
            ),
            "The models themselves are missing. You return the mean updates.": (
                lambda models, updates, of, sizes: soft_aggregate(0 * models, updates, of, sizes)
            ),
            "The updates have the wrong sign. An update is the model after training minus the "
            "model before.": lambda models, updates, of, sizes: soft_aggregate(
                models, -updates, of, sizes
            ),
        },
    ),
    Implement(
        "08.5",
        "Cut the largest gap",
        minutes=15,
        level="medium",
        points=2,
        reference=clusters_below_the_gap,
        inputs=rising_heights,
        mistakes={
            "You are off by one: n merges join n + 1 points. How many clusters are left after the "
            "merges that you keep?": (lambda heights: clusters_below_the_gap(heights) - 1),
            "You are off by one. How many clusters are left if no merge is undone?": (
                lambda heights: clusters_below_the_gap(heights) + 1
            ),
            "You count the merges that are kept. How many clusters do they leave?": (
                lambda heights: int(np.diff(heights).argmax()) + 1
            ),
            "You cut the smallest gap.": lambda heights: int(
                len(heights) - np.diff(heights).argmin()
            ),
            "You look for the largest ratio of two heights. The gap is their difference.": (
                lambda heights: int(len(heights) - (heights[1:] / heights[:-1]).argmax())
            ),
        },
    ),
    Predict(
        "08.6",
        "An impossible number",
        minutes=10,
        level="easy",
        points=1,
        measure=mean_ceiling,
        mistakes={
            "A model for four of ten classes would be right in 40 % if all classes were equally "
            "frequent. Are they?": 0.4,
            "This is the share of a cluster's own samples. Other clusters have samples of its "
            "classes, too.": 1 / 3,
            "This is the ceiling of the two outer clusters. The middle one shares two classes.": (
                5 / 12
            ),
            "This is the ceiling of the middle cluster. The outer ones share only one class.": 0.5,
        },
        tolerance=0.005,
        because="Each cluster has a third of the samples, a quarter of which are of each class. So "
        "the shared classes have two twelfths each, and the others one. The outer clusters have "
        "five twelfths, and the middle one six. No training can change this: the printed 78 % are "
        "impossible under this reading.",
    ),
    Predict(
        "08.7",
        "The height of the plateau",
        minutes=10,
        level="medium",
        points=1,
        measure=ari_of_the_plateau,
        mistakes={
            "Two thirds of the clients are right in some sense, but the ARI counts pairs of "
            "clients, and subtracts what chance would give.": 2 / 3,
            "This is the Rand index: the share of pairs that are right. The adjusted index "
            "subtracts what chance would give.": 0.77,
            "You are near, but two digits are asked for. Compute it, for example with "
            "scikit-learn.": 0.5,
        },
        tolerance=0.006,
        because="Of 435 pairs, 335 are right, but many of these would be right by chance. A "
        "plateau at this value tells that two groups share a model.",
    ),
    Explain(
        "08.8",
        "Read a table critically",
        minutes=25,
        level="hard",
        points=4,
        rubric=(
            (1, "Asks which code, with which seed and commit, produced each number."),
            (1, "Asks on which samples a measure was taken, and whether training saw them."),
            (
                1,
                "Compares with a bound that follows from the data alone: chance, a ceiling, or "
                "what the columns would have to satisfy together.",
            ),
            (
                1,
                "Asks for repeated runs, and for what each row was given: the number of clusters, "
                "more rounds, or more local training than the others.",
            ),
        ),
    ),
)
