"""Exercises of lesson 02: when clients disagree.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning (OCFL), extended
version, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from cflkit import partition
from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


# --- 02.1 ----------------------------------------------------------------------------------------


def class_counts(labels: Indices, held: Sequence[Indices]) -> Indices:
    """Count the images of each class of the pool ``[N]`` that each of m clients holds: ``[m, C]``.

    ``held`` has the indices of each client's images.
    """
    clients = list(held)
    nothing_else = np.zeros(len(clients), dtype=np.int64)
    made = partition.Partition("pool", clients, clients, nothing_else, {})
    return partition.class_counts(made, labels)


def over_the_held_classes(labels: Indices, held: Sequence[Indices]) -> Indices:
    """Make the mistake of having a column for each class up to the largest that is held."""
    classes = max(int(labels[own].max(initial=0)) for own in held) + 1
    return class_counts(labels, held)[:, :classes]


def a_pool_and_its_owners(rng: np.random.Generator) -> Arguments:
    """Draw the labels of a pool, in which classes may be missing, and the images of each client."""
    classes, m = int(rng.integers(3, 7)), int(rng.integers(2, 7))
    names = np.sort(rng.choice(classes + 2, classes, replace=False))
    labels = rng.permutation(np.concatenate([names, rng.choice(names, size=30)]))
    held = [draw_different(rng, len(labels), 3, 16) for _ in range(m)]
    if rng.random() < 0.3:  # nobody holds the last class
        held = [own[labels[own] < labels.max()] for own in held]
    return labels, held


def draw_different(rng: np.random.Generator, pool: int, low: int, high: int) -> Indices:
    """Draw from ``low`` to ``high`` - 1 different images of a pool, in ascending order."""
    return np.sort(rng.choice(pool, int(rng.integers(low, high)), replace=False))


# --- 02.2 ----------------------------------------------------------------------------------------


def expected_different(pool: int, draws: int) -> float:
    """Compute how many different images ``draws`` draws with replacement find in a pool."""
    return pool * (1 - (1 - 1 / pool) ** draws)


def a_pool_and_draws(rng: np.random.Generator) -> Arguments:
    """Draw a small pool, and fewer or more draws than it has images."""
    return int(rng.integers(3, 20)), int(rng.integers(2, 40))


# --- 02.3 ----------------------------------------------------------------------------------------


def mates_of(client: int, clusters: Indices) -> list[int]:
    """Return the other clients of a client's cluster."""
    same: list[int] = np.flatnonzero(clusters == clusters[client]).tolist()
    return [mate for mate in same if mate != client]


def known_shares(trained: Sequence[Indices], tested: Sequence[Indices], clusters: Indices) -> Array:
    """Compute the share ``[m]`` of each client's test images that others of its cluster train."""
    shares = np.zeros(len(clusters))
    for client, own in enumerate(tested):
        known = [np.isin(own, trained[mate]) for mate in mates_of(client, clusters)]
        shares[client] = np.any(known, axis=0).mean()  # 0 for a client that is alone
    return shares


def leaked_share(train: Sequence[Indices], test: Sequence[Indices], clusters: Indices) -> float:
    """Average over clients the share of test images that others of the same cluster train on."""
    return float(known_shares(train, test, clusters).mean())


def training_and_test_sets(rng: np.random.Generator) -> Arguments:
    """Draw clusters, one of which may have one client or none, and each client's samples."""
    others = rng.integers(3, size=int(rng.integers(1, 4)))
    clusters = rng.permutation(np.concatenate([[0, 0, 1, 1], others]))
    held = [rng.permutation(draw_different(rng, 40, 8, 25)) for _ in clusters]
    cuts = [round(len(own) * float(rng.uniform(0.2, 0.5))) for own in held]
    train = [np.sort(own[cut:]) for own, cut in zip(held, cuts, strict=True)]
    test = [np.sort(own[:cut]) for own, cut in zip(held, cuts, strict=True)]
    return train, test, clusters


def without_lone_clients(
    train: Sequence[Indices], test: Sequence[Indices], clusters: Indices
) -> float:
    """Make the mistake of leaving out clients that are alone in their cluster."""
    company = np.bincount(clusters)[clusters] > 1
    return float(known_shares(train, test, clusters)[company].mean())


def once_per_mate(train: Sequence[Indices], test: Sequence[Indices], clusters: Indices) -> float:
    """Make the mistake of counting an image once for each client that trains on it."""
    shares = [
        sum(float(np.isin(own, train[mate]).mean()) for mate in mates_of(client, clusters))
        for client, own in enumerate(test)
    ]
    return float(np.mean(shares))


# --- 02.4 ----------------------------------------------------------------------------------------


def class_shares(counts: Indices) -> Array:
    """Compute the class distribution of each client from counts ``[m, C]``."""
    return counts / counts.sum(axis=1, keepdims=True)


def variation(counts: Indices) -> Array:
    """Compute the total variation distances ``[m, m]`` of clients from class counts ``[m, C]``."""
    shares = class_shares(counts)
    return cdist(shares, shares, "cityblock") / 2


def counts_with_gaps(rng: np.random.Generator) -> Arguments:
    """Draw class counts of clients, of which each misses some classes."""
    m, classes = int(rng.integers(2, 6)), int(rng.integers(3, 7))
    counts = rng.integers(1, 20, (m, classes)) * (rng.random((m, classes)) < 0.7)
    counts[np.arange(m), rng.integers(classes, size=m)] += 5
    return (counts,)


def from_shares_of_classes(counts: Indices) -> Array:
    """Make the mistake of dividing by the number of images of the class."""
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    return cdist(shares, shares, "cityblock") / 2


# --- 02.5 ----------------------------------------------------------------------------------------


def mean_shared() -> float:
    """Let two clients draw 50 and 100 of 100 images, often; return how many images they share."""
    rng = np.random.default_rng(0)
    shared = [
        len(np.intersect1d(rng.integers(100, size=50), rng.integers(100, size=100)))
        for _ in range(3000)
    ]
    return float(np.mean(shared))


EXERCISES = (
    Implement(
        "02.1",
        "Class counts",
        minutes=10,
        level="easy",
        points=1,
        reference=class_counts,
        inputs=a_pool_and_its_owners,
        mistakes={
            "The rows add up to one. These are shares, and not counts.": (
                lambda labels, held: class_shares(class_counts(labels, held))
            ),
            "Rows and columns are swapped. There is one row per client.": (
                lambda labels, held: class_counts(labels, held).T
            ),
            "You note whether a client has a class. Count its images of this class.": (
                lambda labels, held: (class_counts(labels, held) > 0).astype(int)
            ),
            "You divide by the number of images of the class in the pool. Only count.": (
                lambda labels, held: class_counts(labels, held) / np.maximum(np.bincount(labels), 1)
            ),
            "There are as many columns as classes in the pool, whether clients hold them or not.": (
                over_the_held_classes
            ),
            "There are too few columns. There are as many as the largest label plus one.": (
                lambda labels, held: class_counts(labels, held)[:, np.unique(labels)]
            ),
        },
    ),
    Implement(
        "02.2",
        "What remains of the draws",
        minutes=10,
        level="easy",
        points=1,
        reference=expected_different,
        inputs=a_pool_and_draws,
        mistakes={
            "No draw repeats another one here. With replacement, some images are drawn again.": (
                lambda pool, draws: draws
            ),
            "This is the largest possible number. The expected number is smaller, because some "
            "images are drawn again.": lambda pool, draws: min(pool, draws),
            "This is the approximation for large pools. Write the exact expectation.": (
                lambda pool, draws: pool * (1 - np.exp(-draws / pool))
            ),
            "This is the number of images that are never drawn.": (
                lambda pool, draws: pool * (1 - 1 / pool) ** draws
            ),
            "This is the probability that one image is drawn. How many images are there?": (
                lambda pool, draws: 1 - (1 - 1 / pool) ** draws
            ),
            "You confuse the size of the pool with the number of draws.": (
                lambda pool, draws: expected_different(draws, pool)
            ),
        },
    ),
    Implement(
        "02.3",
        "Test images that others train on",
        minutes=20,
        level="medium",
        points=2,
        reference=leaked_share,
        inputs=training_and_test_sets,
        mistakes={
            "You count the clients of all clusters. Only those of the same cluster count here.": (
                lambda train, test, clusters: leaked_share(train, test, np.zeros_like(clusters))
            ),
            "You pool the test images of all clients. Compute the share of each client first, and "
            "then the mean over clients.": lambda train, test, clusters: float(
                np.average(known_shares(train, test, clusters), weights=[len(one) for one in test])
            ),
            "You look into the test sets of the other clients. Do they train on them?": (
                lambda train, test, clusters: leaked_share(test, test, clusters)
            ),
            "You take shares of the training images. Ask how many test images are leaked.": (
                lambda train, test, clusters: leaked_share(test, train, clusters)
            ),
            "You leave out the clients that are alone in their cluster. They have a share of 0, "
            "and they count in the mean.": without_lone_clients,
            "An image counts several times here, if several clients train on it. Count it once.": (
                once_per_mate
            ),
        },
    ),
    Implement(
        "02.4",
        "Total variation distance",
        minutes=15,
        level="medium",
        points=2,
        reference=variation,
        inputs=counts_with_gaps,
        mistakes={
            "The values are twice as large as they should be. What is the distance of two clients "
            "with no class in common?": lambda counts: 2 * variation(counts),
            "You compare counts. A client with more images would then be far from all others. "
            "Compare distributions.": lambda counts: cdist(counts, counts, "cityblock") / 2,
            "The differences are squared. The definition has their absolute values.": (
                lambda counts: cdist(class_shares(counts), class_shares(counts), "sqeuclidean") / 2
            ),
            "You take the largest difference of a single class. Sum over the classes.": (
                lambda counts: cdist(class_shares(counts), class_shares(counts), "chebyshev")
            ),
            "You divide by the number of images of the class. The distribution of a client sums to "
            "one over the classes.": from_shares_of_classes,
            "This is what two clients have in common. It is 1 for equal distributions, and the "
            "distance is then 0.": lambda counts: 1 - variation(counts),
        },
    ),
    Predict(
        "02.5",
        "How much do two clients share?",
        minutes=10,
        level="medium",
        points=1,
        measure=mean_shared,
        mistakes={
            "This is the product of the draws, divided by the size of the pool. Repeated draws are "
            "dropped. How many different images does each client keep?": 50,
            "All images of client 0 would then be among those of client 1. But client 1 does not "
            "hold the whole pool.": 39,
            "The clients would then share as few images as possible. But neither of them knows "
            "what the other one draws.": 3,
        },
        because="Client 0 keeps k₀ ≈ 39.5 images and client 1 keeps k₁ ≈ 63.4. Each image that "
        "client 0 keeps is also with client 1 with probability k₁ / N. They share k₀ k₁ / N ≈ 25.",
        tolerance=0.05,
    ),
    Explain(
        "02.6",
        "What a leaked test set measures",
        minutes=15,
        level="medium",
        points=3,
        rubric=(
            (
                1,
                "Says that the accuracy is in part one on training images of the model. It "
                "overestimates the accuracy on new images of the client.",
            ),
            (
                1,
                "Says that it flatters models that several clients of the cluster train, such as "
                "the cluster's or a shared model. It does not flatter a client's model trained "
                "alone, so that a comparison of the two is unfair.",
            ),
            (
                1,
                "Divides the pool into training and test images before any client draws, or gives "
                "each image the same role for all clients in another way. Each client's test "
                "images still come from its own distribution.",
            ),
        ),
    ),
)
