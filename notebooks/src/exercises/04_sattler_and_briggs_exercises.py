# %% [markdown]
# # Exercises: Sattler's and Briggs' methods
#
# They belong to the lesson [04 Sattler and Briggs](../04_sattler_and_briggs.ipynb). Each function gets NumPy arrays.

# %%
from itertools import combinations

import numpy as np

from cflkit import check

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

# %% [markdown]
# ## 04.7
#
# Answer in about ten sentences.
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
