"""Exercises of lesson 04: Sattler's recursive bipartition and Briggs' hierarchical clustering.

F. Sattler, K.-R. Müller, W. Samek, IEEE TNNLS 32(8), 2021. C. Briggs, Z. Fan, P. Andras, IJCNN
2020.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from cflkit import clustering
from cflkit.clustering import Labels
from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict, same_groups
from cflkit.divergence import cosine_divergence
from cflkit.federation.machine import threads_per_operation
from cflkit.methods.baselines import sattler

Array = NDArray[np.float64]


# --- 04.1 ----------------------------------------------------------------------------------------


def may_split(updates: Array, eps1: float, eps2: float) -> bool:
    """Test Sattler's two conditions on the updates ``[m, P]`` of a cluster."""
    mean, largest = sattler.update_norms(torch.from_numpy(updates))
    return mean < eps1 and largest > eps2


def updates_and_thresholds(rng: np.random.Generator) -> Arguments:
    """Draw updates, and two thresholds between or beside three norms of these updates."""
    m, parameters = rng.integers(3, 8), rng.integers(4, 9)
    lengths = rng.uniform(0.5, 1.5, m)
    lengths[rng.integers(m)] = 4
    updates = rng.normal(size=(m, parameters))
    updates *= (lengths / np.linalg.norm(updates, axis=1))[:, None]
    norms = np.linalg.norm(updates, axis=1)
    # In ascending order
    places = [np.linalg.norm(updates.mean(axis=0)), norms.mean(), norms.max()]
    below, above = 0.6 * places[0], 1.5 * places[2]
    between = [below, (places[0] + places[1]) / 2, (places[1] + places[2]) / 2, above]
    eps1 = rng.choice(between, p=[0.2, 0.4, 0.2, 0.2])
    eps2 = rng.choice(between, p=[0.2, 0.2, 0.4, 0.2])
    return updates, float(eps1), float(eps2)


def with_the_mean_of_norms_first(updates: Array, eps1: float, eps2: float) -> bool:
    """Make the mistake of comparing the mean of the norms with ε₁."""
    norms = np.linalg.norm(updates, axis=1)
    return bool(norms.mean() < eps1 and norms.max() > eps2)


def with_the_mean_of_norms_second(updates: Array, eps1: float, eps2: float) -> bool:
    """Make the mistake of comparing the mean of the norms with ε₂."""
    norms = np.linalg.norm(updates, axis=1)
    return bool(np.linalg.norm(updates.mean(axis=0)) < eps1 and norms.mean() > eps2)


def with_one_condition(updates: Array, eps1: float, eps2: float) -> bool:
    """Make the mistake of asking for only one of the two conditions."""
    mean, largest = sattler.update_norms(torch.from_numpy(updates))
    return mean < eps1 or largest > eps2


# --- 04.2 ----------------------------------------------------------------------------------------


def two_halves(similarity: Array) -> Labels:
    """Divide clients in two by complete linkage of their similarities ``[m, m]``."""
    halves = clustering.make("agglomerative", n_clusters=2, linkage="complete")
    return halves.fit_predict(1 - similarity)


def similarities(rng: np.random.Generator) -> Arguments:
    """Draw the cosine similarities of a few updates without clear groups."""
    return (1 - cosine_divergence(rng.normal(size=(rng.integers(5, 10), 4))),)


def by_the_least_similar_pair(similarity: Array) -> Labels:
    """Make the mistake of giving each client to the nearer one of the two least similar clients."""
    one, other = np.unravel_index(similarity.argmin(), similarity.shape)
    return (similarity[:, one] < similarity[:, other]).astype(np.int64)


# --- 04.3 ----------------------------------------------------------------------------------------


def cut(tree: Array, threshold: float) -> Labels:
    """Cut a dendrogram, given as SciPy's ``[m - 1, 4]``, at a threshold; return labels ``[m]``."""
    found: Labels = hierarchy.fcluster(tree, threshold, "distance").astype(np.int64)
    return found


def tree_and_threshold(rng: np.random.Generator) -> Arguments:
    """Draw a dendrogram of cosine distances, and a threshold midway between two of its joins."""
    m = rng.integers(5, 10)
    common = rng.choice([0.0, 2.0])  # with something in common, all distances are small
    gamma = cosine_divergence(rng.normal(size=(m, 4)) + common)
    tree = hierarchy.linkage(squareform(gamma, checks=False), "average")
    joins = rng.integers(1, m - 1)
    return tree, float(tree[joins - 1 : joins + 1, 2].mean())


def after_joins(tree: Array, kept: NDArray[np.bool_], first: Labels | None = None) -> Labels:
    """Carry out some joins; clients have the labels ``first``, or are alone, before them."""
    m = len(tree) + 1
    labels = np.arange(m) if first is None else first
    members = [[client] for client in range(m)]
    for step, (one, other) in enumerate(tree[:, :2].astype(int)):
        members.append(members[one] + members[other])
        if kept[step]:
            labels[members[-1]] = m + step
    return labels


def with_joins_shifted(tree: Array, threshold: float, by: int) -> Labels:
    """Make the mistake of carrying out some joins too many."""
    wanted = (tree[:, 2] < threshold).sum() + by
    return after_joins(tree, np.arange(len(tree)) < wanted)


def without_single_clients(tree: Array, threshold: float) -> Labels:
    """Make the mistake of giving all clients that have not been joined the same label."""
    return after_joins(tree, tree[:, 2] < threshold, np.zeros(len(tree) + 1, dtype=np.int64))


# --- 04.4 ----------------------------------------------------------------------------------------


def as_distances(similarity: Array) -> Array:
    """Convert cosine similarities ``[m, m]`` of low precision to cosine distances ``[m, m]``."""
    return tidy(1 - similarity)


def tidy(matrix: Array) -> Array:
    """Make a matrix symmetric, and its diagonal zero."""
    mean = (matrix + matrix.T) / 2
    np.fill_diagonal(mean, 0)
    return mean


def rough_similarities(rng: np.random.Generator) -> Arguments:
    """Draw cosine similarities with errors of about one percent."""
    vectors = rng.normal(size=(rng.integers(3, 8), 5))
    exact = 0.95 * (1 - cosine_divergence(vectors))
    np.fill_diagonal(exact, 1)
    return (exact + rng.uniform(-0.01, 0.01, exact.shape),)


# --- 04.5 ----------------------------------------------------------------------------------------

OF_TWO_GROUPS = np.array([0, 0, 0, 1, 1, 1])


def clusters_with_the_wrong_sign() -> str:
    """Cluster two groups of three clients by similarities that are passed as distances."""
    same = OF_TWO_GROUPS[:, None] == OF_TWO_GROUPS[None]
    noise = np.random.default_rng(0).uniform(-0.02, 0.02, same.shape)
    similarity = np.where(same, 0.9, 0.1) + (noise + noise.T) / 2
    np.fill_diagonal(similarity, 1)
    clusterer = clustering.make("agglomerative", threshold=0.3, wrong_sign=True)
    return described(clusterer.fit_predict(1 - similarity))


def described(labels: Labels) -> str:
    """Describe clusters of two groups of three clients in a word."""
    counts = np.zeros((labels.max() + 1, 2), dtype=np.int64)  # of each group in each cluster
    np.add.at(counts, (labels, OF_TWO_GROUPS), 1)
    if len(counts) == 1:
        return "one"
    if len(counts) == len(labels):
        return "alone"
    if (counts.min(axis=1) == 0).all():
        return "groups"
    return "pairs" if (counts == 1).all() else "other"


# --- 04.6 ----------------------------------------------------------------------------------------


def norm_of_the_counters() -> float:
    """Train a network with four BatchNorm layers on 16 clients; measure the mean of counters."""
    moved = []
    # Many threads for tiny networks wait for each other on a busy machine. The random numbers of a
    # notebook stay as they were
    with threads_per_operation(1), torch.random.fork_rng(devices=[]):
        layers = [nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)) for _ in range(4)]
        initial = nn.Sequential(*layers)
        for _ in range(16):
            network = copy.deepcopy(initial)
            train(network, torch.randn(35, 5), torch.randint(5, (35,)))
            moved.append(counters(network) - counters(initial))
    return float(torch.stack(moved).mean(dim=0).norm())


def train(network: nn.Module, samples: Tensor, classes: Tensor) -> None:
    """Train for three epochs with batches of eight samples; the last batch is smaller."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        for batch in torch.randperm(len(samples)).split(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(samples[batch]), classes[batch]).backward()
            optimizer.step()


def counters(network: nn.Module) -> Tensor:
    """Return the counters of batches of all BatchNorm layers ``[L]``."""
    buffers = network.named_buffers()
    found = [value for name, value in buffers if name.endswith("num_batches_tracked")]
    return torch.stack(found).double()


EXERCISES = (
    Implement(
        "04.1",
        "When Sattler's method splits",
        minutes=10,
        level="easy",
        points=1,
        reference=may_split,
        inputs=updates_and_thresholds,
        mistakes={
            "You compare the mean of the norms with ε₁. Take the mean of the updates first, so "
            "that opposite updates can cancel.": with_the_mean_of_norms_first,
            "The two thresholds are exchanged.": (
                lambda updates, eps1, eps2: may_split(updates, eps2, eps1)
            ),
            "One of the two conditions is enough for your function. Both must hold.": (
                with_one_condition
            ),
            "You compare the mean of the norms with ε₂. One member with a long update is enough "
            "for the second condition.": with_the_mean_of_norms_second,
        },
    ),
    Implement(
        "04.2",
        "Which two halves",
        minutes=20,
        level="medium",
        points=2,
        reference=two_halves,
        inputs=similarities,
        same=same_groups,
        mistakes={
            "You join the least similar clients first. These numbers are similarities, and not "
            "distances.": lambda similarity: clustering.make(
                "agglomerative", n_clusters=2, linkage="complete", wrong_sign=True
            ).fit_predict(1 - similarity),
            "This is single linkage: you judge two groups by their most similar members.": (
                lambda similarity: clustering.make(
                    "agglomerative", n_clusters=2, linkage="single"
                ).fit_predict(1 - similarity)
            ),
            "This is average linkage: you judge two groups by the mean over their pairs.": (
                lambda similarity: clustering.make(
                    "agglomerative", n_clusters=2, linkage="average"
                ).fit_predict(1 - similarity)
            ),
            "Three groups are left, and so one join is missing.": (
                lambda similarity: clustering.make(
                    "agglomerative", n_clusters=3, linkage="complete"
                ).fit_predict(1 - similarity)
            ),
            "You give each client to the nearer one of the two least similar clients. The lesson "
            "begins with single clients, and joins two groups at a time.": (
                by_the_least_similar_pair
            ),
        },
    ),
    Implement(
        "04.3",
        "Cut a dendrogram",
        minutes=20,
        level="medium",
        points=2,
        reference=cut,
        inputs=tree_and_threshold,
        same=same_groups,
        mistakes={
            "You carry out the joins above the threshold. A cut keeps those below it.": (
                lambda tree, threshold: after_joins(tree, tree[:, 2] > threshold)
            ),
            "There is one join too many.": (
                lambda tree, threshold: with_joins_shifted(tree, threshold, 1)
            ),
            "There is one join too few.": (
                lambda tree, threshold: with_joins_shifted(tree, threshold, -1)
            ),
            "You compare the threshold with 1 − height, which is a similarity. Height and "
            "threshold are both distances.": (
                lambda tree, threshold: after_joins(tree, 1 - tree[:, 2] > threshold)
            ),
            "All clients that no join has reached share a label. Each of them is a cluster of its "
            "own.": without_single_clients,
        },
    ),
    Implement(
        "04.4",
        "From similarities to distances",
        minutes=10,
        level="easy",
        points=1,
        reference=as_distances,
        inputs=rough_similarities,
        mistakes={
            "You hand on the similarities as they are. The most similar clients would have the "
            "largest distance.": lambda similarity: similarity,
            "These are still similarities, only with another diagonal. Which pair of clients "
            "should have the smallest distance?": tidy,
            "Clients with opposite updates get a distance near 0. They are the least similar of "
            "all.": lambda similarity: tidy(1 - np.abs(similarity)),
            "The order is right, but the values are negated similarities, which are below 0 for "
            "similar clients. A cosine distance lies between 0 and 2.": (
                lambda similarity: tidy(-similarity)
            ),
            "Your distances are half as long as cosine distances. Opposite updates have the "
            "distance 2.": lambda similarity: tidy((1 - similarity) / 2),
            "This is the inverse of the similarity. It is negative for opposite updates, and huge "
            "for updates at right angles.": lambda similarity: tidy(1 / similarity),
            "The errors of the low precision are still there. Is every client at the distance 0 "
            "from itself, and is the matrix symmetric?": lambda similarity: 1 - similarity,
        },
    ),
    Predict(
        "04.5",
        "The wrong sign and two groups",
        minutes=10,
        level="medium",
        points=1,
        measure=clusters_with_the_wrong_sign,
        mistakes={
            "That is the result with the right sign. The clusterer joins where the number is "
            "smallest. Which clients have the smallest numbers here?": "groups",
            "Follow the joins to the end. Which number do two clusters have that each contain one "
            "client of each group? Compare this number with the threshold.": "one",
            "The smallest numbers in the matrix are near 0.1, which is below the threshold. So "
            "some clients do join.": "alone",
        },
        because="The smallest numbers, near 0.1, belong to clients of different groups, who "
        "therefore join first. Two such pairs have the mean (0.9 + 0.1) / 2 = 0.5, which is above "
        "0.3, so the pairs stay.",
    ),
    Predict(
        "04.6",
        "The norm of BatchNorm's counters",
        minutes=10,
        level="medium",
        points=1,
        measure=norm_of_the_counters,
        mistakes={
            "You divide by the root of the number of clients. That holds for independent errors. "
            "Do the counters of two clients differ at all?": 7.5,
            "A client trains for three epochs before it sends its update.": 10,
            "This is how far a single counter moves. Every BatchNorm layer has one.": 15,
            "Every batch moves the counters, also the last one, which is not full.": 24,
            "You add up the counters. The norm adds their squares and takes the root.": 60,
        },
        because="Each of the 4 counters moves by 3 · 5 = 15 steps in every client. The mean over "
        "clients is 15 as well, and the norm is 15 · √4.",
    ),
    Explain(
        "04.7",
        "Thresholds and what replaces them",
        minutes=25,
        level="hard",
        points=3,
        rubric=(
            (
                1,
                "Shows for Sattler that a fixed pair fails for small c, since the largest norm "
                "falls below ε₂. It also fails for large c, since the norm of the mean exceeds ε₁. "
                "Says for Briggs that the heights within and between groups depend on the data, "
                "so that the gap between them moves.",
            ),
            (
                1,
                "Says that OCFL compares the temperature with that of the round before. So only "
                "the order of two values of the same training counts, and no number must be set.",
            ),
            (
                1,
                "Names at least two prices, such as: it clusters once and cannot correct itself; "
                "a rise by chance fires, too; a rise does not show that there are groups; the "
                "clusterer keeps choices of its own, such as the smallest cluster of HDBSCAN.",
            ),
        ),
    ),
)
