"""Exercises of lesson 03: OCFL, which clusters once, when the temperature rises.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning, IEEE BigData
2024, and its extended version.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict
from cflkit.divergence import cosine_divergence, temperature
from cflkit.methods.ocfl import attribute, rises

Array = NDArray[np.float64]


# --- 03.1 ----------------------------------------------------------------------------------------


def some_updates(rng: np.random.Generator) -> Arguments:
    """Draw updates of different lengths."""
    m, parameters = rng.integers(2, 7), rng.integers(3, 9)
    return (rng.normal(size=(m, parameters)) * rng.uniform(0.1, 10, (m, 1)),)


# --- 03.2 ----------------------------------------------------------------------------------------


def a_divergence_matrix(rng: np.random.Generator) -> Arguments:
    """Draw updates and compute their divergence matrix."""
    return (cosine_divergence(*some_updates(rng)),)


# --- 03.3 ----------------------------------------------------------------------------------------


def first_rise(temperatures: list[float], window: int) -> int | None:
    """Return the first round (from 1) in which the trigger fires; None if it never does."""
    for t in range(len(temperatures)):
        if rises(temperatures[: t + 1], window):
            return t + 1
    return None


def some_temperatures(rng: np.random.Generator) -> Arguments:
    """Draw temperatures that mostly fall, some of them equal, and a window of one or two rounds.

    Some rise over the window of two rounds, but not over its last round.
    """
    if rng.random() < 0.3:
        start = float(rng.uniform(0.4, 0.6))
        falls = [[0, -0.05, -0.1, -0.06, -0.07], [0, -0.06, -0.08, -0.07, -0.07, -0.05]]
        return [round(start + step, 2) for step in falls[rng.integers(2)]], 2
    steps = rng.choice([-0.02, -0.01, 0.0, 0.01], size=rng.integers(4, 9), p=[0.4, 0.25, 0.2, 0.15])
    return [float(value) for value in (0.5 + steps.cumsum()).round(2)], int(rng.integers(1, 3))


def rises_or_stays(temperatures: list[float], window: int) -> int | None:
    """Make the mistake of firing where the temperature stays equal."""
    rounds = range(window, len(temperatures))
    return next((t + 1 for t in rounds if temperatures[t] >= temperatures[t - window]), None)


def rises_over_all(temperatures: list[float], window: int) -> int | None:
    """Make the mistake of asking for a value above all of the last ``window`` ones."""
    rounds = range(window, len(temperatures))
    higher = (t for t in rounds if temperatures[t] > max(temperatures[t - window : t]))
    return next((t + 1 for t in higher), None)


def counted_from_zero(temperatures: list[float], window: int) -> int | None:
    """Make the mistake of counting rounds from 0."""
    found = first_rise(temperatures, window)
    return None if found is None else found - 1


# --- 03.4 ----------------------------------------------------------------------------------------


def step_of_each_cluster(models: Array, updates: Array, labels: NDArray[np.int64]) -> Array:
    """Add to each model ``[K, P]`` the mean update ``[m, P]`` of its own clients."""
    means = [updates[labels == k].mean(axis=0) for k in range(len(models))]
    moved: Array = models + np.stack(means)
    return moved


def clustered_clients(rng: np.random.Generator) -> Arguments:
    """Draw models, updates and labels; every cluster has a client."""
    clusters, parameters = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    labels = rng.permutation(np.concatenate([np.arange(clusters), rng.integers(0, clusters, 5)]))
    size = (len(labels), parameters)
    return rng.normal(size=(clusters, parameters)), rng.normal(size=size), labels


# --- 03.5 ----------------------------------------------------------------------------------------


def cluster_of_newcomer(update: Array, updates: Array, labels: NDArray[np.int64]) -> int:
    """Return the cluster with the smallest mean cosine distance between its updates and this."""
    tensors = (torch.from_numpy(update), torch.from_numpy(updates), torch.from_numpy(labels))
    return attribute(*tensors)


def a_newcomer(rng: np.random.Generator) -> Arguments:
    """Draw two to four clusters of updates with different lengths, and one more update."""
    clusters = int(rng.integers(2, 5))
    labels = rng.permutation(np.repeat(np.arange(clusters), rng.choice([2, 3, 9], clusters)))
    centres = rng.normal(size=(clusters, 4))
    lengths = rng.uniform(0.2, 5, (len(labels), 1))
    updates = (centres[labels] + 0.9 * rng.normal(size=(len(labels), 4))) * lengths
    return centres[0] + 0.9 * rng.normal(size=4), updates, labels


def farthest_cluster(update: Array, updates: Array, labels: NDArray[np.int64]) -> int:
    """Make the mistake of taking the largest mean distance."""
    return cluster_of_newcomer(-update, updates, labels)


def cluster_of_smallest_sum(update: Array, updates: Array, labels: NDArray[np.int64]) -> int:
    """Make the mistake of adding up the distances instead of averaging them."""
    lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(update)
    distances = 1 - updates @ update / lengths
    return int(np.argmin([distances[labels == k].sum() for k in range(labels.max() + 1)]))


def cluster_of_nearest_client(update: Array, updates: Array, labels: NDArray[np.int64]) -> int:
    """Make the mistake of looking at a single client."""
    return int(labels[np.argmax(updates @ update / np.linalg.norm(updates, axis=1))])


def nearest_by_length(update: Array, updates: Array, labels: NDArray[np.int64]) -> int:
    """Make the mistake of comparing dot products, in which the lengths matter."""
    products = updates @ update
    return int(np.argmax([products[labels == k].mean() for k in range(labels.max() + 1)]))


# --- 03.6 and 03.7 -------------------------------------------------------------------------------


def of_three_groups() -> float:
    """Compute the temperature of six clients in three groups whose directions are 120° apart."""
    angles = np.repeat([0, 2 * np.pi / 3, 4 * np.pi / 3], 2)
    return temperature(cosine_divergence(np.stack([np.cos(angles), np.sin(angles)], axis=1)))


def of_clients_that_are_alike() -> str:
    """Watch the trigger while what alike clients have in common shrinks, and their noise stays."""
    rng = np.random.default_rng(0)
    common, past = np.ones(200), []
    for t in range(20):
        noise = rng.normal(size=(15, 200))
        past.append(temperature(cosine_divergence(common / (t + 1) + noise)))
    return "never" if first_rise(past, 1) is None else "fires"


EXERCISES = (
    Implement(
        "03.1",
        "The divergence matrix",
        minutes=10,
        level="easy",
        points=1,
        reference=cosine_divergence,
        inputs=some_updates,
        mistakes={
            "These are similarities: clients with the same direction get 1, and must get 0.": (
                lambda updates: 1 - cosine_divergence(updates)
            ),
            "The lengths of the updates still matter. Only their directions should.": (
                lambda updates: 1 - updates @ updates.T
            ),
            "Opposite directions must have the distance 2, and not 1.": (
                lambda updates: cosine_divergence(updates) / 2
            ),
        },
    ),
    Implement(
        "03.2",
        "The clustering temperature",
        minutes=10,
        level="easy",
        points=1,
        reference=temperature,
        inputs=a_divergence_matrix,
        mistakes={
            "The bound counts all m² pairs. The diagonal is always zero, and does not count.": (
                lambda gamma: temperature(gamma) * np.sqrt((len(gamma) - 1) / len(gamma))
            ),
            "The largest cosine distance is 2, and λ must take it into account.": (
                lambda gamma: 2 * temperature(gamma)
            ),
            "The root is missing in the norm of Γ.": lambda gamma: (
                temperature(gamma) ** 2 * np.sqrt(4 * len(gamma) * (len(gamma) - 1))
            ),
            "The root is missing in λ.": lambda gamma: (
                temperature(gamma) / np.sqrt(4 * len(gamma) * (len(gamma) - 1))
            ),
            "The root is missing in the norm of Γ and in λ.": lambda gamma: temperature(gamma) ** 2,
        },
    ),
    Implement(
        "03.3",
        "The trigger",
        minutes=10,
        level="medium",
        points=2,
        reference=first_rise,
        inputs=some_temperatures,
        mistakes={
            "The trigger fires where the temperature stays equal. It must rise.": rises_or_stays,
            "Rounds are counted from 1.": counted_from_zero,
            "You ask for a rise over all of the last w rounds. Compare with round t − w alone.": (
                rises_over_all
            ),
            "The window is not used. It says how many rounds back the trigger looks.": (
                lambda temperatures, window: first_rise(temperatures, 1)
            ),
        },
    ),
    Implement(
        "03.4",
        "After the clustering",
        minutes=10,
        level="easy",
        points=1,
        reference=step_of_each_cluster,
        inputs=clustered_clients,
        mistakes={
            "Every model gets the mean update of all clients. It must get that of its own.": (
                lambda models, updates, labels: models + updates.mean(axis=0)
            ),
            "You add the sum of the updates, and not their mean.": (
                lambda models, updates, labels: models + np.eye(len(models))[labels].T @ updates
            ),
            "You return the mean updates alone. They must be added to the models.": (
                lambda models, updates, labels: (
                    step_of_each_cluster(models, updates, labels) - models
                )
            ),
        },
    ),
    Implement(
        "03.5",
        "A client that joins later",
        minutes=15,
        level="medium",
        points=2,
        reference=cluster_of_newcomer,
        inputs=a_newcomer,
        mistakes={
            "The lengths of the updates matter. Only their directions should.": nearest_by_length,
            "This is the cluster that is farthest away.": farthest_cluster,
            "You add up the distances, so large clusters seem far away. Take the mean.": (
                cluster_of_smallest_sum
            ),
            "A single client decides. Compare the mean distance to all clients of a cluster.": (
                cluster_of_nearest_client
            ),
        },
    ),
    Predict(
        "03.6",
        "The temperature of three groups",
        minutes=10,
        level="medium",
        points=1,
        measure=of_three_groups,
        tolerance=0.004,
        mistakes={
            "That is the temperature of fifteen clients, which the lesson has. Here there are "
            "six.": 0.63,
            "The bound counts all m² pairs. The diagonal is always zero, and does not count.": 0.61,
            "That is the mean distance between groups, 1.5, divided by 2. What do the pairs within "
            "a group contribute?": 0.75,
            "That would be right angles between all clients. Here three groups pull against each "
            "other, and two clients pull the same way.": 0.5,
            "That is the temperature if all clients are opposed to each other, which is impossible "
            "for more than two.": 1.0,
        },
        because="Of the 30 ordered pairs, 24 lie in different groups and have the distance 1.5. "
        "So T = 1.5 √24 / (2 √30) = 0.67.",
    ),
    Predict(
        "03.7",
        "Nothing to find",
        minutes=10,
        level="medium",
        points=1,
        measure=of_clients_that_are_alike,
        mistakes={
            "The clients have one direction in common, and it becomes shorter from round to round. "
            "What does then decide the angles between their updates?": "never",
            "Write one of the two words that the exercise offers.": "sometimes",
        },
        because="The common part shrinks as training converges, and the noise does not. The "
        "updates come to stand at right angles, so the temperature rises. A rise alone does not "
        "show that there are groups.",
    ),
    Explain(
        "03.8",
        "The temperature of K groups",
        minutes=20,
        level="hard",
        points=3,
        rubric=(
            (1, "Counts m² (1 − 1/K) ordered pairs of clients in different groups."),
            (1, "Derives T = (d/2) √(m (1 − 1/K) / (m − 1)), for p = 2 and the distance d."),
            (1, "Says that T grows with K and with d, so that one number cannot tell them apart."),
        ),
    ),
    Explain(
        "03.9",
        "Where the trigger is blind",
        minutes=20,
        level="hard",
        points=3,
        rubric=(
            (1, "Names a federation with groups that disagree in every round from the start."),
            (1, "Gives a reason why T falls all the same, such as alignment within the groups."),
            (1, "Concludes that the trigger sees changes of disagreement, and not disagreement."),
        ),
    ),
)
