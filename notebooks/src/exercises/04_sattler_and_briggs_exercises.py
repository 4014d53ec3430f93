# %% [markdown]
# # Exercises: Sattler's and Briggs' methods
#
# They belong to the lesson [04 Sattler and Briggs](../04_sattler_and_briggs.ipynb). Each function gets NumPy arrays.

# %%
from itertools import combinations

import numpy as np

from cflkit import check

# %% tags=["exercise"]
# F. Sattler, K.-R. Müller, W. Samek, IEEE TNNLS 32(8), 2021. C. Briggs, Z. Fan, P. Andras, IJCNN
# 2020.

from cflkit import clustering
from cflkit.course.exercises import Explain, Implement, Predict, same_groups
from cflkit.divergence import cosine_divergence

# %% [markdown]
# ## 04.1
#
# Sattler's method splits a cluster $c$ if two conditions hold:
#
# $$\Big\lVert \frac{1}{|c|}\sum_{i \in c} \Delta_i \Big\rVert < \varepsilon_1
# \qquad\text{and}\qquad \max_{i \in c} \lVert \Delta_i \rVert > \varepsilon_2 .$$
#
# Write this test. The rows of `updates` are the updates $\Delta_i$ of the members of one cluster. All members have the
# same weight, and norms are Euclidean. Only the two norms matter here. The package also waits for some rounds, and it
# never splits a cluster of one or two clients.


# %%
def may_split(updates, eps1, eps2):
    """Return True or False for the updates [m, P] of a cluster and the two thresholds."""
    ### BEGIN SOLUTION
    mean = np.linalg.norm(updates.mean(axis=0))
    largest = np.linalg.norm(updates, axis=1).max()
    return bool(mean < eps1 and largest > eps2)
    ### END SOLUTION


# %%
check("04.1", may_split)


# %% tags=["exercise"]
def updates_and_thresholds(rng):
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


def with_the_mean_of_norms_first(updates, eps1, eps2):
    norms = np.linalg.norm(updates, axis=1)
    return bool(norms.mean() < eps1 and norms.max() > eps2)


def with_the_mean_of_norms_second(updates, eps1, eps2):
    norms = np.linalg.norm(updates, axis=1)
    return bool(np.linalg.norm(updates.mean(axis=0)) < eps1 and norms.mean() > eps2)


def with_one_condition(updates, eps1, eps2):
    norms = np.linalg.norm(updates, axis=1)
    return bool(np.linalg.norm(updates.mean(axis=0)) < eps1 or norms.max() > eps2)


exercise = Implement(
    "When Sattler's method splits",
    minutes=10,
    level="easy",
    points=1,
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
)

# %% [markdown]
# ## 04.2
#
# Now divide a cluster in two. The matrix `similarity` holds the cosine similarities $s_{ij}$ of the members' updates.
# Use complete linkage, as in the lesson. Begin with one group for each client. Then join the two groups $A$ and $B$
# with the largest value of
#
# $$\min_{i \in A,\, j \in B} s_{ij},$$
#
# again and again, until two groups remain. No two values are equal. The function `combinations` is imported above.
#
# Return one label per client. Clients of the same half have the same label, and it does not matter which numbers you
# take.


# %%
def two_halves(similarity):
    """Return the labels [m] of the two halves for similarities [m, m], with m of at least 3."""
    ### BEGIN SOLUTION
    groups = [[client] for client in range(len(similarity))]

    def least(pair):
        return similarity[np.ix_(*pair)].min()

    while len(groups) > 2:
        one, other = max(combinations(groups, 2), key=least)
        groups = [group for group in groups if group not in (one, other)] + [one + other]
    return [int(client in groups[1]) for client in range(len(similarity))]
    ### END SOLUTION


# %%
check("04.2", two_halves)


# %% tags=["exercise"]
def similarities(rng):
    """Draw the cosine similarities of a few updates without clear groups."""
    return (1 - cosine_divergence(rng.normal(size=(rng.integers(5, 10), 4))),)


def by_agglomeration(n_clusters, linkage, **options):
    """Build the function that clusters similarities by the kit's clusterer."""
    clusterer = clustering.make("agglomerative", n_clusters=n_clusters, linkage=linkage, **options)
    return lambda similarity: clusterer.fit_predict(1 - similarity)


def by_the_least_similar_pair(similarity):
    one, other = np.unravel_index(similarity.argmin(), similarity.shape)
    return (similarity[:, one] < similarity[:, other]).astype(np.int64)


exercise = Implement(
    "Which two halves",
    minutes=20,
    level="medium",
    points=2,
    inputs=similarities,
    same=same_groups,
    mistakes={
        "You join the least similar clients first. These numbers are similarities, and not "
        "distances.": by_agglomeration(2, "complete", wrong_sign=True),
        "This is single linkage: you judge two groups by their most similar members.": (
            by_agglomeration(2, "single")
        ),
        "This is average linkage: you judge two groups by the mean over their pairs.": (
            by_agglomeration(2, "average")
        ),
        "Three groups are left, and so one join is missing.": by_agglomeration(3, "complete"),
        "You give each client to the nearer one of the two least similar clients. The lesson "
        "begins with single clients, and joins two groups at a time.": by_the_least_similar_pair,
    },
)

# %% [markdown]
# ## 04.3
#
# Briggs' method cuts a dendrogram at a threshold. SciPy writes the dendrogram of $m$ clients as an array `tree` of
# shape $[m - 1, 4]$. Row $k$, counted from 0, is one join:
#
# - The first two values are the numbers of the two clusters that are joined. The numbers 0 to $m - 1$ are the clients.
#   The number $m + k$ is the cluster that row $k$ has made.
# - The third value is the height of the join, a distance. The heights ascend from row to row.
# - The fourth value is the number of clients in the new cluster. You need not use it.
#
# All values are floats. Carry out the joins whose height is below the threshold, and no others. No height equals the
# threshold. Return one label per client. A client that has not been joined is a cluster of its own. It does not matter
# which numbers you take. Write it without SciPy.


# %%
def cut(tree, threshold):
    """Return the labels [m] of the clients for a tree [m - 1, 4]."""
    ### BEGIN SOLUTION
    m = len(tree) + 1
    labels = np.arange(m)
    members = [[client] for client in range(m)]
    for one, other, height, _ in tree:
        members.append(members[int(one)] + members[int(other)])
        if height < threshold:
            labels[members[-1]] = len(members) - 1
    return labels
    ### END SOLUTION


# %%
check("04.3", cut)


# %% tags=["exercise"]
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform


def tree_and_threshold(rng):
    """Draw a dendrogram of cosine distances, and a threshold midway between two of its joins."""
    m = rng.integers(5, 10)
    common = rng.choice([0.0, 2.0])  # with something in common, all distances are small
    gamma = cosine_divergence(rng.normal(size=(m, 4)) + common)
    tree = hierarchy.linkage(squareform(gamma, checks=False), "average")
    joins = rng.integers(1, m - 1)
    return tree, float(tree[joins - 1 : joins + 1, 2].mean())


def after_joins(tree, kept, first=None):
    """Carry out some joins; clients have the labels ``first``, or are alone, before them."""
    m = len(tree) + 1
    labels = np.arange(m) if first is None else first
    members = [[client] for client in range(m)]
    for step, (one, other) in enumerate(tree[:, :2].astype(int)):
        members.append(members[one] + members[other])
        if kept[step]:
            labels[members[-1]] = m + step
    return labels


def with_joins_shifted(tree, threshold, by):
    wanted = (tree[:, 2] < threshold).sum() + by
    return after_joins(tree, np.arange(len(tree)) < wanted)


def without_single_clients(tree, threshold):
    return after_joins(tree, tree[:, 2] < threshold, np.zeros(len(tree) + 1, dtype=np.int64))


exercise = Implement(
    "Cut a dendrogram",
    minutes=20,
    level="medium",
    points=2,
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
)

# %% [markdown]
# ## 04.4
#
# A clusterer needs a matrix of distances, but you have cosine similarities. They were computed in low precision. So
# $s_{ij}$ and $s_{ji}$ may differ a little, and $s_{ii}$ may be a little more or less than 1.
#
# Return the matrix of cosine distances $1 - s$ that a clusterer can use. Its diagonal is exactly 0. It is symmetric:
# both directions of a pair have the mean of their two distances.


# %%
def as_distances(similarity):
    """Return the cosine distances [m, m] for similarities [m, m] of low precision."""
    ### BEGIN SOLUTION
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    return distance
    ### END SOLUTION


# %%
check("04.4", as_distances)


# %% tags=["exercise"]
def tidy(matrix):
    """Make a matrix symmetric, and its diagonal zero."""
    mean = (matrix + matrix.T) / 2
    np.fill_diagonal(mean, 0)
    return mean


def rough_similarities(rng):
    """Draw cosine similarities with errors of about one percent."""
    vectors = rng.normal(size=(rng.integers(3, 8), 5))
    exact = 0.95 * (1 - cosine_divergence(vectors))
    np.fill_diagonal(exact, 1)
    return (exact + rng.uniform(-0.01, 0.01, exact.shape),)


exercise = Implement(
    "From similarities to distances",
    minutes=10,
    level="easy",
    points=1,
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
)

# %% [markdown]
# ## 04.5
#
# Six clients form two groups of three. Two clients of the same group have a cosine similarity near 0.9. Two clients of
# different groups have a cosine similarity near 0.1. All values are within 0.02 of these numbers.
#
# Somebody gives these *similarities* to agglomerative clustering with average linkage, which expects *distances*. It
# cuts at the threshold 0.3. With the right sign, 0.3 would be a good threshold. What are the clusters now? Write
#
# - `"groups"`: the two true groups;
# - `"pairs"`: three pairs, each with one client of each group;
# - `"one"`: all clients in one cluster;
# - `"alone"`: each client alone.

# %%
### BEGIN SOLUTION
prediction = "pairs"
### END SOLUTION

# %%
check("04.5", prediction)

# %% tags=["exercise"]
OF_TWO_GROUPS = np.array([0, 0, 0, 1, 1, 1])


def clusters_with_the_wrong_sign():
    """Cluster two groups of three clients by similarities that are passed as distances."""
    same = OF_TWO_GROUPS[:, None] == OF_TWO_GROUPS[None]
    noise = np.random.default_rng(0).uniform(-0.02, 0.02, same.shape)
    similarity = np.where(same, 0.9, 0.1) + (noise + noise.T) / 2
    np.fill_diagonal(similarity, 1)
    clusterer = clustering.make("agglomerative", threshold=0.3, wrong_sign=True)
    return described(clusterer.fit_predict(1 - similarity))


def described(labels):
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


exercise = Predict(
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
)

# %% [markdown]
# ## 04.6
#
# A network has 4 BatchNorm layers. Each layer has a counter, which grows by 1 with every batch that the layer sees in
# training. Each of 16 clients starts from the same model and has 35 training samples. It trains for 3 local epochs in
# batches of 8 samples. The last batch of an epoch is smaller, and the client uses it, too.
#
# Suppose that updates also contain the counters. The server takes the mean of the 16 updates. What is the norm of that
# part of the mean which belongs to the counters? Choose from 7.5, 10, 15, 24, 30 and 60. The check then trains such a
# network.

# %%
### BEGIN SOLUTION
prediction = 30
### END SOLUTION

# %%
check("04.6", prediction)


# %% tags=["exercise"]
import copy

import torch
from torch import nn

from cflkit.models.rows import threads_per_operation


def norm_of_the_counters():
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


def train(network, samples, classes):
    """Train for three epochs with batches of eight samples; the last batch is smaller."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        for batch in torch.randperm(len(samples)).split(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(samples[batch]), classes[batch]).backward()
            optimizer.step()


def counters(network):
    """Return the counters of batches of all BatchNorm layers ``[L]``."""
    buffers = network.named_buffers()
    found = [value for name, value in buffers if name.endswith("num_batches_tracked")]
    return torch.stack(found).double()


exercise = Predict(
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
)

# %% [markdown]
# ## 04.7
#
# Answer in ten to twenty sentences.
#
# 1. Suppose that another learning rate multiplies all updates $\Delta_i$ by a factor $c > 0$. The mean update is not
#    exactly zero. What becomes of the two norms in Sattler's criterion? Why can no fixed pair $\varepsilon_1$,
#    $\varepsilon_2$ serve all $c$?
# 2. The cosine distance does not change with $c$. Why is there still no threshold of Briggs' method that serves all
#    data sets?
# 3. What does OCFL do instead? Name at least two prices that it pays.

# %% [markdown] tags=["answer"]
# 1. Both norms are multiplied by $c$. For a small $c$ the largest norm is never above $\varepsilon_2$, and nothing is
#    split. For a large $c$ the norm of the mean is never below $\varepsilon_1$, and again nothing is split. The groups
#    are the same for each $c$. The number of local steps and the network change the lengths, too. Even within one
#    training, the pair must fit the whole federation and every half of it.
# 2. The threshold must lie above the joins within groups and below the joins between them. The first depend on the
#    noise of the clients, and the second on how different the groups are. Suppose that clients of one data set are
#    noisy: they join within groups at up to 0.7, and the groups join at 1.3. In another data set the groups share
#    classes and join at 0.5. The first data set needs a threshold above 0.7, and the second needs one below 0.5.
# 3. OCFL computes the temperature of the clients' updates in each round. It clusters in the first round in which the
#    temperature rises. So it compares the training with itself one round earlier. Only the order of the two values
#    counts, and there is no number to set. The clusterer then has to find the groups and their number.
#
#    OCFL pays for this in several ways. It clusters once, and cannot correct a wrong clustering. One rise by chance is
#    enough to fire. The temperature also rises for clients without groups, so that only the clusterer can say "one
#    cluster". The clusterer has choices of its own, too, such as the smallest cluster of HDBSCAN, which has 20 % of the
#    clients. Part of the choice has thus moved from the threshold to the clusterer.

# %% tags=["exercise"]
exercise = Explain(
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
)
