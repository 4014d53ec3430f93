# %% [markdown]
# # Failure labs: clusters
#
# In each lab somebody has run an experiment, and the result cannot be right. Read the symptom, run the cells, and look
# at the code and at the numbers behind the figure. Change the cells and add your own. Write down your diagnosis with
# the observation that supports it, and only then open the fold below it. At the end of each lab you write the repair.
#
# You need the lesson [03 OCFL](../03_ocfl_temperature.ipynb). Labs L2.1 and L2.2 also need
# [04](../04_sattler_and_briggs.ipynb) with its appendix [04b](../04b_an_autopsy.ipynb), and L2.4 needs [05 EMD-CFL](../05_emd_cfl.ipynb).

# %%
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import AgglomerativeClustering, KMeans

from cflkit import check, datasets, methods, metrics, partition, plots
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts

plots.style()

# %% tags=["exercise"]
# L2.1: C. Briggs, Z. Fan, P. Andras, IJCNN 2020. L2.2: F. Sattler, K.-R. Müller, W. Samek, IEEE TNNLS
# 32(8), 2021. L2.3: H. W. Kuhn, Naval Research Logistics 2, 1955. L2.4: D. Zhang, F. Toni, M.
# Williams, arXiv 2506.07769.

from cflkit.course.exercises import Implement, same_groups

# %% [markdown]
# The first three labs have the same 15 clients. They form three true clusters of five clients. Clients of different
# true clusters have no class in common. The function `one_round` trains the model $\theta$ on every client.

# %%
images, split = partition.ocfl(
    datasets.load("digits-8x8"),
    overlap="nonoverlapping",
    balance="balanced",
    clients=15,
    draws=120,
    seed=0,
)


def one_round(federation, theta, t):
    """Return the trained models of all clients, one row per client."""
    everyone = torch.arange(federation.clients)
    jobs = Jobs(theta[None], torch.zeros_like(everyone), everyone)
    return federation.train(jobs, round=t)


# %% [markdown]
# ## L2.1
#
# After one round of federated averaging, Mira clusters the clients by their updates. She uses average linkage and the
# threshold 0.05, which are in the OCFL authors' code for Briggs' method. She gets five clusters of three clients. The
# ARI is −0.24, although random clusters have an ARI near 0. She concludes that the updates of the first round say
# nothing about the groups. But how can clusters that contain no information be worse than random ones?

# %%
five_epochs = LocalTraining(epochs=5, batch_size=32, lr=0.1)
federation = Federation(images, split, "compact-cnn", five_epochs, seed=1)
theta = federation.initial()
updates = (one_round(federation, theta, 0) - theta).cpu().numpy()


def compared(updates):
    """Compare the directions of all pairs of updates [m, P]; return a matrix [m, m]."""
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    return directions @ directions.T


matrix = compared(updates)
clusterer = AgglomerativeClustering(
    n_clusters=None, distance_threshold=0.05, metric="precomputed", linkage="average"
)
labels = clusterer.fit_predict(matrix)

# %%
for cluster in range(labels.max() + 1):
    members = np.flatnonzero(labels == cluster)
    print(f"cluster {cluster}: clients {members}, of the true clusters {split.clusters[members]}")
print(f"ARI {metrics.agreement(split.clusters, labels)['ari']:.2f}")
figure, ax = plt.subplots(figsize=(4.2, 3.2))
plots.divergence(matrix, split.clusters, ax)
ax.images[0].set_clim(-1, 1)
ax.set_xticks([0, 5, 10])
figure.colorbar(ax.images[0], ax=ax, label="entry of the matrix")
plots.show(
    figure,
    1,
    "Mira's matrix, which compares the updates of all pairs of clients. White lines separate the true clusters.",
    "A matrix of 15 by 15 clients with three bright blocks on the diagonal. All cells outside the blocks are darker.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# Which two clients does the clusterer join first, and what is their entry in the matrix? What does the matrix have
# where a client is compared with itself?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# The matrix holds cosine *similarities*, and the clusterer expects *distances*. It joins the pair with the smallest
# entry first, which are the two clients that are least alike. In the end, each cluster has one client of each group.
# Two such trios have a mean similarity above 0.05, so they stay apart.
#
# The diagonal shows it at once, for a client's distance from itself is 0, and not 1. The ARI shows it, too: a value far
# below 0 is no lack of information. It needs information that is used the wrong way round.
#
# This error is in the OCFL authors' code for Briggs' method, and the opposite one is in their affinity propagation.
# Both methods do badly in the papers' tables, and errors of this kind produce such values. See
# [Two wrong signs](../04b_an_autopsy.ipynb#the-second-culprit-two-wrong-signs) in the appendix 04b.
#
# </details>

# %% [markdown]
# **The repair.** Write a function that recognises what it gets. Its argument is a matrix $[m, m]$ with $m \ge 2$.
#
# - If all entries on the diagonal are 1 and all entries are in $[-1, 1]$, the entries are cosine similarities. Return
#   the matrix of the cosine distances $1 - s$.
# - If all entries on the diagonal are 0 and no entry is negative, the entries are distances. Return the matrix as it
#   is. Distances can be larger than 1, and also larger than 2.
# - Otherwise the matrix is neither. Return `None`.
#
# The entries have rounding errors. Each of these conditions may be violated by up to $10^{-6}$.


# %%
def as_distances(matrix):
    """Return distances [m, m] for similarities or distances [m, m], and None for anything else."""
    ### BEGIN SOLUTION
    diagonal, rounding = np.diagonal(matrix), 1e-6
    if np.all(np.abs(diagonal - 1) <= rounding) and np.all(np.abs(matrix) <= 1 + rounding):
        return 1 - matrix
    if np.all(np.abs(diagonal) <= rounding) and np.all(matrix >= -rounding):
        return matrix
    return None
    ### END SOLUTION


# %%
check("L2.1", as_distances)


# %% tags=["exercise"]
from sklearn.metrics.pairwise import euclidean_distances


ROUNDING = 1e-6  # how far a computed number may be from an exact one


def has_diagonal(matrix, value, tolerance=ROUNDING):
    """Test whether all entries on the diagonal have a value."""
    return bool((np.abs(np.diagonal(matrix) - value) <= tolerance).all())


def some_matrix(rng):
    """Draw similarities, distances, or one of three matrices that are neither."""
    m = int(rng.integers(3, 8))
    # Vectors with something in common have positive similarities
    vectors = rng.normal(size=(m, 5)) + rng.choice([0.0, 2.0])
    kind = rng.choice(5, p=[0.28, 0.28, 0.2, 0.12, 0.12])
    if kind == 0:
        matrix = 1 - cosine_divergence(vectors)
    elif kind == 1:
        far = rng.random() < 0.4
        matrix = euclidean_distances(vectors) if far else cosine_divergence(vectors)
    elif kind == 2:  # products of updates that have not been divided by their lengths
        matrix = 4 * vectors @ vectors.T
    elif kind == 3:  # negated distances
        matrix = -cosine_divergence(vectors)
    else:  # divided by the wrong length; the first vector is the longest one
        lengths = rng.uniform(0.5, 1, m)
        lengths[0] = 5
        matrix = (1 - cosine_divergence(vectors + 2)) * lengths / lengths[:, None]
    return (matrix + rng.uniform(-5e-7, 5e-7, matrix.shape),)


def by_the_diagonal_alone(matrix):
    if has_diagonal(matrix, 1):
        return 1 - matrix
    return matrix if has_diagonal(matrix, 0) else None


def by_the_range(matrix):
    if (np.abs(matrix) <= 1 + ROUNDING).all():
        return 1 - matrix
    return matrix if (matrix >= -ROUNDING).all() else None


def without_rounding(matrix):
    exact = has_diagonal(matrix, 1, 0) or has_diagonal(matrix, 0, 0)
    return as_distances(matrix) if exact else None


def halved(matrix):
    right = as_distances(matrix)
    return right / 2 if right is not None and has_diagonal(matrix, 1) else right


exercise = Implement(
    "Worse than chance",
    minutes=20,
    level="medium",
    points=2,
    inputs=some_matrix,
    mistakes={
        "Your function returns every matrix as it is. A clusterer would get similarities and "
        "join the clients that are least alike.": lambda matrix: matrix,
        "Your function converts every matrix. Distances become similarities by this, which is "
        "the same error the other way round.": lambda matrix: 1 - matrix,
        "Your function never returns None. A matrix that is neither would be clustered, and "
        "nobody would notice.": (lambda matrix: 1 - matrix if has_diagonal(matrix, 1) else matrix),
        "Only the diagonal decides. Similarities cannot be above 1, and distances cannot be "
        "negative.": by_the_diagonal_alone,
        "The range of the entries decides. Distances can all be below 1, too. Which entries "
        "tell similarities and distances apart without doubt?": by_the_range,
        "The sign of the entries decides. The updates of all clients can have positive "
        "similarities.": lambda matrix: 1 - matrix if matrix.min() < -ROUNDING else matrix,
        "Your function takes no similarities and no distances for what they are. Computed "
        "numbers are seldom exactly 0 or 1.": without_rounding,
        "Your distances are half as long as cosine distances. Opposite updates have the "
        "distance 2.": halved,
    },
)

# %% [markdown]
# ## L2.2
#
# Omar replaces the network `compact-cnn` by `compact-bn`, because it learns faster. He changes nothing else. From then
# on, OCFL's temperature is close to 0. Sattler's method would have split the clients in the first round, with both
# thresholds at 0.35 as in the first OCFL paper. Now it never splits. Omar reports: "With the new network all clients
# agree. We no longer need clusters." But the clients still have no class in common with those of another group.

# %%
two_epochs = LocalTraining(epochs=2, batch_size=32, lr=0.1)
kept, heats = {}, {}
print("network      round  temperature  norm of the mean  shortest update  longest update  split")
for network in ("compact-cnn", "compact-bn"):
    federation = Federation(images, split, network, two_epochs, seed=0)
    theta = federation.initial()
    for t in range(3):
        trained = one_round(federation, theta, t)
        updates = trained - theta
        theta = trained.mean(dim=0)
        mean, norms = updates.mean(dim=0).norm(), updates.norm(dim=1)
        heat = heats[network, t + 1] = temperature(cosine_divergence(updates))
        row = f"{network:12s} {t + 1:5d} {heat:12.4f} {mean:17.2f} {norms.min():16.2f}"
        print(row, f"{norms.max():15.2f}  {bool(mean < 0.35 < norms.max())}")
    kept[network] = updates.cpu().numpy(), federation.blueprint.layout

# %%
figure, ax = plt.subplots(figsize=(4.5, 2.4))
for network in kept:
    ax.plot([1, 2, 3], [heats[network, t] for t in (1, 2, 3)], "o-", label=network)
ax.set(xlabel="round", xticks=[1, 2, 3], ylabel="temperature", ylim=0)
ax.legend()
plots.show(
    figure,
    2,
    "OCFL's temperature with the two networks. The clients and their images are the same.",
    "Two lines over three rounds: compact-cnn is far above zero, and compact-bn lies nearly on the axis.",
)

# %% [markdown]
# The updates of the last round are in `kept`, together with the layout of a model's row. For example,
# `kept["compact-bn"][0]` has the shape [15, 3404]. The layout `kept["compact-bn"][1]` says where each named part of the
# network lies in a row.

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# Compare the shortest and the longest update of each network. Which parts of the network have the largest entries in
# the update of client 0?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Omar subtracts whole model states. With BatchNorm, a state also has running statistics and, for each layer, a counter
# of batches. All clients take 6 steps per round, so that each of the 4 counters grows by 6. Together they move by
# $6 \sqrt 4 = 12$, much farther than all weights. So all updates point in nearly the same direction. Their mean is as
# long as each of them, and Sattler's first condition never holds.
#
# Two observations show it. All updates have nearly the same length, and their four largest entries are exactly 6.
#
# The OCFL authors' code does the same with ResNet34, on three of five data sets. With the thresholds of the extended
# paper, Sattler's method cannot split there, whatever the clients learn. See
# [A counter](../04b_an_autopsy.ipynb#the-first-culprit-a-counter) in the appendix 04b.
#
# </details>

# %% [markdown]
# **The repair.** Write the function that computes the update of one client from trainable parameters alone.
#
# - `before` and `after` are the states of the model before and after training. Each is a list of pairs (name, array).
#   Both lists have the same names in the same order, and the arrays of a name have the same shape. A shape can be `()`.
# - `trainable` is the list of the names of all trainable parameters, in any order. It has at least one name. Buffers
#   are not in this list, and neither are parameters of frozen layers.
#
# Flatten the change of each trainable parameter with `ravel`. Join these changes in the order of the state, and return
# the vector.


# %%
def update_of(before, after, trainable):
    """Return the update [P] for two states, lists of pairs (name, array), and a list of names."""
    ### BEGIN SOLUTION
    changes = []
    for (name, start), (_, end) in zip(before, after, strict=True):
        if name in trainable:
            changes.append((end - start).ravel())
    return np.concatenate(changes)
    ### END SOLUTION


# %%
check("L2.2", update_of)


# %% tags=["exercise"]
def changes(before, after, kept):
    """Join the changes of the entries that a function of name and array keeps."""
    pairs = zip(before, after, strict=True)
    return np.concatenate([(b - a).ravel() for (name, a), (_, b) in pairs if kept(name, a)])


def two_states(rng):
    """Draw the states of a network with BatchNorm before and after training.

    In about half of the cases, the first convolution is frozen.
    """
    blocks, channels, classes = int(rng.integers(1, 3)), int(rng.integers(2, 4)), 3
    shapes = {}
    for block in range(blocks):
        convolution, norm = f"features.{2 * block}", f"features.{2 * block + 1}"
        shapes[f"{convolution}.weight"] = (channels, channels, 2, 2)
        shapes[f"{convolution}.bias"] = (channels,)
        parts = ("weight", "bias", "running_mean", "running_var")
        shapes |= {f"{norm}.{part}": (channels,) for part in parts}
        shapes[f"{norm}.num_batches_tracked"] = ()
    shapes |= {"classifier.weight": (classes, channels), "classifier.bias": (classes,)}
    frozen = "features.0." if rng.random() < 0.5 else "nothing"
    start = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    moved = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    steps = float(rng.integers(2, 30))
    for name in shapes:
        if is_counter(name):
            start[name], moved[name] = np.array(10 * steps), np.array(steps)
        elif name.startswith(frozen):
            moved[name] = np.zeros(shapes[name])
    trainable = [name for name in shapes if not (is_buffer(name) or name.startswith(frozen))]
    after = [(name, start[name] + moved[name]) for name in shapes]
    return list(start.items()), after, rng.permutation(trainable).tolist()


def is_counter(name):
    """Test whether an entry is a counter of batches."""
    return name.endswith("num_batches_tracked")


def is_buffer(name):
    """Test whether an entry belongs to BatchNorm's state, by its name."""
    return is_counter(name) or name.endswith(("running_mean", "running_var"))


def in_the_order_of_the_list(before, after, trainable):
    old, new = dict(before), dict(after)
    return np.concatenate([(new[name] - old[name]).ravel() for name in trainable])


def without_subtraction(before, after, trainable):
    return update_of([(name, np.zeros_like(array)) for name, array in before], after, trainable)


exercise = Implement(
    "Perfect harmony",
    minutes=20,
    level="medium",
    points=2,
    inputs=two_states,
    mistakes={
        "All entries of the state are in your vector. Which of them does no gradient move?": (
            lambda before, after, trainable: changes(before, after, lambda name, array: True)
        ),
        "The sign is wrong. An update says how to get from the start to the end.": (
            lambda before, after, trainable: update_of(after, before, trainable)
        ),
        "You leave out the counters of batches. BatchNorm has more entries that no gradient "
        "moves.": lambda before, after, trainable: changes(
            before, after, lambda name, array: not is_counter(name)
        ),
        "You leave out all arrays with one dimension. Biases are trainable, and so are two "
        "vectors of each BatchNorm layer.": lambda before, after, trainable: changes(
            before, after, lambda name, array: name in trainable and array.ndim > 1
        ),
        "You recognise BatchNorm's state by its names. What is not trainable can have other "
        "names, such as those of a frozen layer. Use the list.": (
            lambda before, after, trainable: changes(
                before, after, lambda name, array: not is_buffer(name)
            )
        ),
        "The right numbers are in another order. Follow the state, and not the list of names. "
        "Two clients might have their lists in different orders.": in_the_order_of_the_list,
        "These are the trained parameters. An update is what training has changed.": (
            without_subtraction
        ),
    },
)

# %% [markdown]
# ## L2.3
#
# Lena wants to know whether clusters settle. She runs plain federated averaging for twelve rounds. In each round she
# clusters the rows of the divergence matrix with k-means, as OCFL-KM does. Then she measures how many clients are in
# another cluster than one round before. In most rounds, two thirds of the clients or all of them have moved. Lena
# concludes: "These clusters are pure chance." But the divergence matrices of the first and of the last round look
# alike, with three clear blocks.

# %%
one_epoch = LocalTraining(epochs=1, batch_size=16, lr=0.1)
federation = Federation(images, split, "linear", one_epoch, seed=0)
theta = federation.initial()
gammas, found = [], []
for t in range(12):
    trained = one_round(federation, theta, t)
    gammas.append(cosine_divergence(trained - theta))
    found.append(KMeans(n_clusters=3, n_init=10, random_state=t).fit_predict(gammas[-1]))
    theta = trained.mean(dim=0)
moved = [np.mean(now != before) for before, now in pairwise(found)]

# %%
print("share of clients that moved:", *np.round(moved, 2), f"mean {np.mean(moved):.2f}")
figure, axes = plt.subplots(1, 3, figsize=(8, 2.5), width_ratios=[1, 1, 1.5])
for ax, t in zip(axes, (0, 11), strict=False):
    plots.divergence(gammas[t], split.clusters, ax, vmax=2)
    ax.set_title(f"round {t + 1}")
axes[2].bar(range(2, 13), moved)
axes[2].set(xlabel="round", ylabel="share that moved", ylim=(0, 1.05))
plots.show(
    figure,
    3,
    "The divergence matrices of two rounds, and the share of clients that moved since the round before.",
    "Two matrices with the same three dark blocks on the diagonal, and a bar chart over rounds. Most "
    "bars have a height of two thirds or of 1, and the others are missing.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# The share takes only a few different values. Which ones? What do `found[3]` and `found[4]` look like, side by side?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Nobody has moved. All twelve clusterings have the same three groups, and only the *numbers* of the groups differ.
# k-means gives its clusters numbers in an arbitrary order, which depends on its random start. Equal numbers in two
# clusterings therefore mean nothing. This is called **label switching**.
#
# The shares show it. If two of three groups of five exchange their numbers, 10 of 15 clients seem to move. If all three
# numbers change, all clients do. Real moves would also give other values. The ARI, which ignores the numbers, is 1 for
# each pair of rounds.
#
# The error costs more than a wrong figure. A server that keeps model 0 for "cluster 0" would give each group the model
# of another one. The authors of the method CFL-GP therefore renumber each new clustering, so that it agrees best with
# the round before. The [Hungarian algorithm](../99_glossary.ipynb#hungarian-algorithm) finds such a matching.
#
# </details>

# %% [markdown]
# **The repair.** Measure how many clients have really moved. A *matching* gives each cluster of `before` at most one
# cluster of `after`, and each cluster of `after` at most one of `before`. A client stays if its two clusters are
# matched with each other. Otherwise it moves. Return the smallest share of clients that move, over all matchings.
#
# Cluster numbers are any whole numbers from 0. The two clusterings can have different numbers of clusters. You may use
# `rows, columns = linear_sum_assignment(table, maximize=True)`, which chooses entries of a table with the largest sum,
# at most one per row and per column. The table need not be square.


# %%
def share_moved(before, after):
    """Return the smallest share of clients that move, for the labels [m] of two clusterings."""
    ### BEGIN SOLUTION
    old, new = np.unique(before), np.unique(after)
    both = np.array([[np.sum((before == a) & (after == b)) for b in new] for a in old])
    rows, columns = linear_sum_assignment(both, maximize=True)
    return 1 - both[rows, columns].sum() / len(before)
    ### END SOLUTION


# %%
check("L2.3", share_moved)


# %% tags=["exercise"]
from sklearn.metrics import rand_score

from cflkit.clustering import canonical_labels
from cflkit.course.sources import hidden


def two_clusterings(rng):
    """Draw two clusterings that differ in a few clients, or in many."""
    if rng.random() < 0.6:
        counts = rng.integers(0, 5, (int(rng.integers(3, 5)), int(rng.integers(3, 5))))
        row, column = np.indices(counts.shape)
        before, after = np.repeat(row, counts.ravel()), np.repeat(column, counts.ravel())
    else:
        before = np.repeat(np.arange(3), rng.integers(3, 6, 3))
        after = np.where(rng.random(len(before)) < 0.2, rng.integers(4, size=len(before)), before)
    before, after = np.append(before, [0, 1]), np.append(after, [0, 1])
    names, others = (rng.choice(10, 5, replace=False) for _ in range(2))
    # Sometimes most numbers are the same in both
    others = names if rng.random() < 0.2 else others
    order = rng.permutation(len(before))
    return names[before][order], others[after][order]


def by_position(before, after):
    return float((before != after).mean())


exercise = Implement(
    "Always on the move",
    minutes=20,
    level="medium",
    points=2,
    inputs=two_clusterings,
    mistakes={
        "You compare numbers. Which group has the number 0 is arbitrary in each clustering.": (
            by_position
        ),
        "Two new clusters can belong to the same old one here. If a cluster splits in two, "
        "some clients do move.": lambda before, after: 1 - hidden("90.3", "purity")(before, after),
        "You match the pair with the largest overlap first. The best matching as a whole can "
        "leave out this pair.": lambda before, after: 1 - hidden("06.3", "greedy")(before, after),
        "This is the share of clients that stay.": (
            lambda before, after: 1 - share_moved(before, after)
        ),
        "You number the clusters in the order of their first clients, and then compare the "
        "numbers. If one of these first clients moves, most numbers can change.": (
            lambda before, after: by_position(canonical_labels(before), canonical_labels(after))
        ),
        "This is a share of pairs of clients. Count clients.": (
            lambda before, after: 1 - rand_score(before, after)
        ),
        "This is a number of clients. Return a share.": (
            lambda before, after: len(before) * share_moved(before, after)
        ),
    },
)

# %% [markdown]
# ## L2.4
#
# Ten clients hold digits. Clients 5 to 9 have turned them by 90 degrees. With all clients in every round, Jonas finds
# both groups by the scores of EMD-CFL and connected components. Now only four clients take part per round. Two clients
# are measured when both take part in the same round. The server keeps all scores and clusters after every round. Jonas
# expected many small clusters at first. Instead, all clients are in one cluster from the first round on.

# %%
digits, turned = shifts.make(datasets.load("digits-8x8"), "quarter-turn", clients=10, seed=0)
training = LocalTraining(epochs=3, batch_size=16, lr=0.01, momentum=0.9)
federation = Federation(digits, turned, "emd-cnn-small", training, clients_per_round=4)
theta, everyone, epsilon = federation.initial(), torch.arange(10), 0.05
emd = methods.make("emd-cfl")
emd.setup(federation.server, theta)
federation.converse(emd.meet(everyone, one_round(federation, theta, 0)))
all_scores = emd.scores.numpy()  # those of all pairs, of which the server gets some in each round


def clusters_by(scores):
    """Return the connected components of the clients that agree in both directions."""
    near = scores < epsilon
    return connected_components(near & near.T, directed=False)[1]


# %%
print("all clients in every round: clusters", clusters_by(all_scores))
scores = np.zeros((10, 10))
for t in range(3):
    present = federation.participants(t).numpy()
    pairs = np.ix_(present, present)
    scores[pairs] = all_scores[pairs]
    print(f"round {t + 1}: clients {present} take part, clusters {clusters_by(scores)}")
figure, ax = plt.subplots(figsize=(4.2, 3.2))
plots.divergence(scores, turned.clusters, ax)
figure.colorbar(ax.images[0], ax=ax, label="score $s_{ij}$")
ax.set(xlabel="client $j$, whose images are embedded", ylabel="client $i$, owner of the model")
plots.show(
    figure,
    4,
    "The scores on Jonas' server after three rounds. White lines separate the true clusters.",
    "A matrix of ten by ten clients. Most cells are dark. In the two blocks beside the diagonal, some "
    "cells are bright.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# Choose two clients of different groups that the server takes for neighbours. What is their score, and in which round
# was it measured?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# The server's matrix begins with zeros, and a pair that was never measured keeps its 0. This is not neutral: 0 is an
# excellent score. It says that the other client's images are as near as the client's own validation images. So all clients that
# never met agree, and chains of such pairs join everybody.
#
# After the first round, only 6 of 45 pairs have met. The server therefore knows almost nothing, and yet it joins all
# clients. Clients 3 and 4 have not even taken part in any of the three rounds.
#
# The price is one model for two groups. The kit stores NaN for a missing score. No comparison with NaN is true, so that
# such a pair does not agree, and a client without scores stays alone. See
# [partial participation](../05b_emd_cfl_controls.ipynb#if-only-some-take-part) in appendix 05b.
#
# </details>

# %% [markdown]
# **The repair.** Write the clustering for a matrix of which parts are missing.
#
# - `scores` has the scores $s_{ij}$. A score that was not measured is 0 there. A measured score can be 0, too.
# - `measured` says which scores were measured. It is a matrix of `True` and `False`, and it need not be symmetric.
#
# An edge joins two clients $i$ and $j$ if both $s_{ij}$ and $s_{ji}$ were measured and both are below $\varepsilon$.
# The clusters are the connected components: two clients share a cluster if a chain of edges leads from one to the
# other. A client without edges to others is a cluster of its own, also if it was never measured.
#
# Return one label per client. It does not matter which numbers you take. You may use SciPy's `connected_components`.


# %%
def clusters_of_measured(scores, measured, epsilon):
    """Return the labels [m] for scores [m, m], a mask [m, m] and the threshold epsilon."""
    ### BEGIN SOLUTION
    near = measured & (scores < epsilon)
    reached = near & near.T
    np.fill_diagonal(reached, True)
    for _ in range(len(scores)):
        reached = reached @ reached  # chains of twice the length
    return reached.argmax(axis=1)  # the first client that is reached
    ### END SOLUTION


# %%
check("L2.4", clusters_of_measured)


# %% tags=["exercise"]
from cflkit.methods.emd_cfl_variants import clusters_of


def scores_of_some_pairs(rng):
    """Draw scores, of which many were not measured and are 0; some clients were never seen."""
    m = int(rng.integers(9, 13))
    met = np.triu(rng.random((m, m)) < 0.45)
    measured = (met | met.T) & (rng.random((m, m)) < 0.85)
    absent = rng.choice(m, int(rng.integers(2, 4)), replace=False)
    measured[absent] = measured[:, absent] = False
    groups = rng.integers(3, size=m)
    near = groups[:, None] == groups[None]
    if rng.random() < 0.2:  # a chain of clients
        measured[:] = True
        near = abs(np.arange(m)[:, None] - np.arange(m)[None]) <= 1
        return np.where(near, 0.01, 0.3), measured, 0.1
    scores = np.where(near, rng.uniform(-0.02, 0.06, (m, m)), rng.uniform(0.05, 0.4, (m, m)))
    scores[near & (rng.random((m, m)) < 0.3)] = 0  # measured scores that were rounded
    scores[near & (rng.random((m, m)) < 0.15)] = 0.2  # one of the two refuses
    scores[~measured] = 0
    return scores, measured, float(rng.uniform(0.08, 0.12))


def joined(edges):
    """Number the connected components of a graph."""
    return connected_components(edges, directed=False)[1]


def by_one_direction(scores, measured, epsilon):
    near = measured & (scores < epsilon)
    return joined(near | near.T)


def with_one_measured(scores, measured, epsilon):
    near = scores < epsilon
    return joined(near & near.T & (measured | measured.T))


def with_the_unseen_together(scores, measured, epsilon):
    labels = clusters_of_measured(scores, measured, epsilon)
    never = ~(measured.any(axis=0) | measured.any(axis=1))
    return np.where(never, len(labels), labels)


def of_first_neighbours(scores, measured, epsilon):
    near = measured & (scores < epsilon)
    edges = (near & near.T) | np.eye(len(near), dtype=bool)
    return edges.argmax(axis=1)


exercise = Implement(
    "One big family",
    minutes=25,
    level="hard",
    points=2,
    inputs=scores_of_some_pairs,
    same=same_groups,
    mistakes={
        "A 0 that nobody measured counts as a score. It is below ε, so that clients who never "
        "met agree.": lambda scores, measured, epsilon: joined(
            (scores < epsilon) & (scores < epsilon).T
        ),
        "One direction is enough for your edges. Both clients must agree.": by_one_direction,
        "If only one of the two scores was measured, the 0 of the other one counts as "
        "agreement. Both must have been measured.": with_one_measured,
        "All clients that were never measured are in one cluster. Nothing is known about any "
        "two of them, so that each stays alone.": with_the_unseen_together,
        "You take every 0 for a missing score. A measured score can be 0, too. The mask says "
        "which scores were measured.": (
            lambda scores, measured, epsilon: clusters_of_measured(scores, scores != 0, epsilon)
        ),
        "Only direct neighbours share a cluster. A chain of edges is enough.": of_first_neighbours,
        "You ask for identical neighbourhoods, which is the published rule of EMD-CFL. Here "
        "the clusters are connected components.": lambda scores, measured, epsilon: clusters_of(
            np.where(measured, scores, np.nan), epsilon
        )[0],
    },
)
