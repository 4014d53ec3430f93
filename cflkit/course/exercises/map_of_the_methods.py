"""Exercises of lesson 09: a map of the methods.

R. Ye et al.: Personalized federated learning with inferred collaboration graphs. ICML 2023.
O. Marfoq et al.: Federated multi-task learning under a mixture of distributions. NeurIPS 2021.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ot.utils import proj_simplex
from scipy.special import softmax

from cflkit import methods, simulation
from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict
from cflkit.datasets import load
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import shifts

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 09.1 ----------------------------------------------------------------------------------------


def mixing_of_clusters(labels: Labels, sizes: Array) -> Array:
    """Build the mixing matrix ``[m, m]`` of federated averaging within clusters."""
    weights = (labels[:, None] == labels) * sizes
    matrix: Array = weights / weights.sum(axis=1, keepdims=True)
    return matrix


def labels_and_sizes(rng: np.random.Generator) -> Arguments:
    """Draw clusters that are no blocks, and numbers of samples that differ."""
    m = int(rng.integers(6, 10))
    labels = rng.permutation(np.arange(m) % 3)
    return labels, rng.integers(20, 200, m).astype(float)


# --- 09.2 ----------------------------------------------------------------------------------------


def divided(matrix: Array, groups: Labels) -> Array:
    """Divide the weights of an average client: on itself, on its group, on other groups."""
    own = np.diag(matrix).mean()
    group = (matrix * (groups[:, None] == groups)).sum(axis=1).mean()
    return np.array([own, group - own, 1 - group])


def matrix_and_groups(rng: np.random.Generator) -> Arguments:
    """Draw a mixing matrix, and groups of clients."""
    m = int(rng.integers(6, 10))
    groups = rng.permutation(np.arange(m) % 2)
    return softmax(2 * rng.normal(size=(m, m)), axis=1), groups


# --- 09.3 ----------------------------------------------------------------------------------------


def responsibilities(losses: Array, shares: Array) -> Array:
    """Compute FedEM's responsibilities ``[K, n]`` from losses ``[K, n]`` and shares ``[K]``."""
    found: Array = softmax(np.log(shares)[:, None] - losses, axis=0)
    return found


def losses_and_shares(rng: np.random.Generator) -> Arguments:
    """Draw losses of some models on some images, and the models' shares at a client."""
    count, n = int(rng.integers(2, 5)), int(rng.integers(5, 9))
    return rng.uniform(0, 3, (count, n)), softmax(rng.normal(size=count))


# --- 09.4 ----------------------------------------------------------------------------------------


def row_of_pfedgraph(sizes: Array, distances: Array, strength: float) -> Array:
    """Minimise pFedGraph's cost for one client over weights that are not negative and sum to 1."""
    wanted = sizes / sizes.sum() - strength * distances / 2
    row: Array = proj_simplex(wanted)
    return row


def sizes_and_distances(rng: np.random.Generator) -> Arguments:
    """Draw a client's costs such that some weights, but not all, are zero."""
    m = int(rng.integers(6, 10))
    distances = rng.uniform(-1, 1, m)
    return rng.integers(40, 80, m).astype(float), distances, float(rng.uniform(0.3, 0.6))


def cut_and_divided(sizes: Array, distances: Array, strength: float) -> Array:
    """Make the mistake of cutting negative weights off and dividing by the sum."""
    wanted = np.clip(sizes / sizes.sum() - strength * distances / 2, 0, None)
    found: Array = wanted / wanted.sum()
    return found


def only_shifted(sizes: Array, distances: Array, strength: float) -> Array:
    """Make the mistake of shifting the weights to the sum 1, with negative ones left."""
    wanted = sizes / sizes.sum() - strength * distances / 2
    found: Array = wanted + (1 - wanted.sum()) / len(wanted)
    return found


# --- 09.5 and 09.6 -------------------------------------------------------------------------------


def bytes_of_ifca() -> float:
    """Run a round of IFCA with six models; measure its bytes in multiples of FedAvg's."""
    images, split = shifts.make(load("digits-8x8"), "base", clients=4, samples=40)
    federation = Federation(images, split, "linear", LocalTraining(1, 16), engine="stacked")
    lines = {"FedAvg": methods.make("fedavg"), "IFCA": methods.make("ifca", k=6)}
    rounds = simulation.run(lines, federation, 1, progress=False).table()
    total = (rounds["bytes_down"] + rounds["bytes_up"]).groupby(rounds["method"]).sum()
    return float(total["IFCA"] / total["FedAvg"])


def through_a_common_neighbour() -> float:
    """Compute the share of client 0 in client 2 after two rounds with different clusters."""
    first = mixing_of_clusters(np.array([0, 0, 1, 2]), np.ones(4))
    second = mixing_of_clusters(np.array([0, 1, 1, 2]), np.ones(4))
    return float((second @ first)[2, 0])


EXERCISES = (
    Implement(
        "09.1",
        "The matrix of a clustering",
        minutes=10,
        level="easy",
        points=1,
        reference=mixing_of_clusters,
        inputs=labels_and_sizes,
        mistakes={
            "All clients count alike. In federated averaging, a client counts by its number of "
            "samples.": lambda labels, sizes: mixing_of_clusters(labels, np.ones_like(sizes)),
            "The rows do not sum to 1. Divide by the number of samples of the cluster, and not of "
            "all clients.": lambda labels, sizes: (labels[:, None] == labels) * sizes / sizes.sum(),
            "The matrix is transposed. Row i has the weights of the models in that of client i.": (
                lambda labels, sizes: mixing_of_clusters(labels, sizes).T
            ),
            "This is the matrix without clusters.": lambda labels, sizes: mixing_of_clusters(
                np.zeros_like(labels), sizes
            ),
        },
    ),
    Implement(
        "09.2",
        "Whose models do you get?",
        minutes=10,
        level="easy",
        points=1,
        reference=divided,
        inputs=matrix_and_groups,
        mistakes={
            "The second number contains the client itself. Subtract the diagonal.": (
                lambda matrix, groups: np.add(
                    divided(matrix, groups), [0, np.diag(matrix).mean(), 0]
                )
            ),
            "These are sums over all clients. Give means.": (
                lambda matrix, groups: divided(matrix, groups) * len(groups)
            ),
            "These are means over pairs of clients. Sum each row first.": (
                lambda matrix, groups: divided(matrix, groups) / [1, len(groups), len(groups)]
            ),
        },
    ),
    Implement(
        "09.3",
        "The E-step of FedEM",
        minutes=15,
        level="medium",
        points=2,
        reference=responsibilities,
        inputs=losses_and_shares,
        mistakes={
            "The shares are missing. A model with a small share must be less probable.": (
                lambda losses, shares: responsibilities(losses, np.ones_like(shares))
            ),
            "The sign of the losses is wrong: models with large losses get more.": (
                lambda losses, shares: responsibilities(-losses, shares)
            ),
            "The responsibilities of an image do not sum to 1.": (
                lambda losses, shares: shares[:, None] * np.exp(-losses)
            ),
            "You normalise over the images. For each image, the sum over models must be 1.": (
                lambda losses, shares: softmax(np.log(shares)[:, None] - losses, axis=1)
            ),
            "The share stands in the exponent. The probability is π times exp(−loss).": (
                lambda losses, shares: softmax(shares[:, None] - losses, axis=0)
            ),
            "The best model gets everything. That is IFCA, image by image.": (
                lambda losses, shares: (
                    np.eye(len(losses))[(np.log(shares)[:, None] - losses).argmax(axis=0)].T
                )
            ),
        },
    ),
    Implement(
        "09.4",
        "A row of pFedGraph's matrix",
        minutes=25,
        level="hard",
        points=3,
        reference=row_of_pfedgraph,
        inputs=sizes_and_distances,
        mistakes={
            "Some weights are negative. They must be at least 0.": only_shifted,
            "You cut negative weights off and divide. The sum is 1, but the cost is not minimal: "
            "all weights that stay must be shifted by the same amount.": cut_and_divided,
            "The term p is missing. If all distances are equal, the weights are the shares of the "
            "samples.": lambda sizes, distances, strength: row_of_pfedgraph(
                np.ones_like(sizes), distances, strength
            ),
            "The sign of the distances is wrong: clients that are far away weigh more.": (
                lambda sizes, distances, strength: row_of_pfedgraph(sizes, -distances, strength)
            ),
            "A factor 2 is missing. The derivative of a square has one.": (
                lambda sizes, distances, strength: row_of_pfedgraph(sizes, 2 * distances, strength)
            ),
        },
    ),
    Predict(
        "09.5",
        "What six models cost",
        minutes=5,
        level="easy",
        points=1,
        measure=bytes_of_ifca,
        mistakes={
            "Six models go down to each client. How many come back?": 6.0,
            "FedAvg sends one model down and one up. Divide by these two.": 7.0,
            "One model comes back to the server, too.": 3.0,
        },
        tolerance=0.01,
        because="Seven models are exchanged per client and round, and federated averaging "
        "exchanges two. FedEM also sends all six models back, so it costs six times as much.",
    ),
    Predict(
        "09.6",
        "Through a common neighbour",
        minutes=10,
        level="medium",
        points=1,
        measure=through_a_common_neighbour,
        mistakes={
            "They never share a cluster, but client 1 was in a cluster with both of them.": 0.0,
            "In round 2, client 2 gets half of client 1's model. Client 0 has only a half of what "
            "client 1 started with.": 0.5,
            "Three clients are connected, but not with equal shares.": 1 / 3,
        },
        tolerance=0.01,
        because="The shares of two rounds are the product of their matrices, ½ · ½. This counts "
        "where a round's training starts. What the training then adds is the clients' own.",
    ),
    Explain(
        "09.7",
        "Choose a method",
        minutes=25,
        level="hard",
        points=4,
        rubric=(
            (1, "Proposes to run FedAvg and local training first, and says what each tells."),
            (
                1,
                "Uses what is known of the clients: the number of groups is unknown, one hospital "
                "may be alone, and the connection is slow.",
            ),
            (
                1,
                "Names a method and a reason that one of the lesson's figures shows, and a "
                "situation in which the method would fail.",
            ),
            (1, "Says what would be measured, with which seeds, and what would change the choice."),
        ),
    ),
)
