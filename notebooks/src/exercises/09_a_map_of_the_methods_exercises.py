# %% [markdown]
# # Exercises: A map of the methods
#
# They belong to the lesson [09 A map of the methods](../09_a_map_of_the_methods.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% [markdown]
# ## 09.1
#
# Clients are in clusters, and each cluster does federated averaging. Client $j$ has $n_j$ samples. Build the mixing matrix:
#
# $$W_{ij} = \begin{cases} n_j \big/ \sum_{l \text{ in the cluster of } i} n_l & \text{if } j \text{ is in the cluster of } i, \\ 0 & \text{otherwise.}\end{cases}$$


# %%
def mixing_of_clusters(labels, sizes):
    """Return the matrix [m, m] for clusters [m] and numbers of samples [m]."""
    ### BEGIN SOLUTION
    weights = (labels[:, None] == labels) * sizes
    return weights / weights.sum(axis=1, keepdims=True)
    ### END SOLUTION


# %%
check("09.1", mixing_of_clusters)

# %% [markdown]
# ## 09.2
#
# Figure 2 of the lesson divides the weight of an average client into three parts: the client itself, the rest of its group, and other
# groups. Compute them. The rows of the matrix sum to 1.


# %%
def divided(matrix, groups):
    """Return three shares that sum to 1 for a mixing matrix [m, m] and true groups [m]."""
    ### BEGIN SOLUTION
    same = groups[:, None] == groups
    own = np.diag(matrix).mean()
    group = (matrix * same).sum(axis=1).mean()
    return np.array([own, group - own, 1 - group])
    ### END SOLUTION


# %%
check("09.2", divided)

# %% [markdown]
# ## 09.3
#
# In FedEM, a client has a share $\pi_k$ for each of $K$ models. Model $k$ has the loss $f_k(x)$ on the image $x$. Compute the
# responsibilities of the E-step, which sum to 1 for each image:
#
# $$q_k(x) = \frac{\pi_k\, e^{-f_k(x)}}{\sum_l \pi_l\, e^{-f_l(x)}} .$$


# %%
def responsibilities(losses, shares):
    """Return the responsibilities [K, n] for losses [K, n] and shares [K]."""
    ### BEGIN SOLUTION
    weights = shares[:, None] * np.exp(-losses)
    return weights / weights.sum(axis=0)
    ### END SOLUTION


# %%
check("09.3", responsibilities)

# %% [markdown]
# ## 09.4
#
# pFedGraph chooses the row $w$ of a client. The shares of the samples are $p_j = n_j / \sum_l n_l$, and $d_j$ is the distance to client $j$. In this exercise,
# distances may be negative, and $\lambda$ is their weight. (The package has `alpha`, which is $1 / \lambda$.) The row minimises
#
# $$\lVert w - p \rVert^2 + \lambda\, d \cdot w \qquad \text{with } w_j \ge 0 \text{ and } \sum_j w_j = 1 .$$
#
# Without the two conditions, the minimum would be at $v = p - \lambda d / 2$. With them, it has the form $w_j = \max(v_j - \tau, 0)$. One number
# $\tau$ makes the sum 1. (Hint: sort $v$ in descending order. If the $r$ largest entries stay, $\tau$ is their sum minus 1, divided by $r$. The right $r$ is the
# largest one for which the $r$-th entry is still above the $\tau$ of this $r$.) Write the function that returns this row.


# %%
def row_of_pfedgraph(sizes, distances, strength):
    """Return the weights [m] of one client for samples [m], distances [m] and the weight λ."""
    ### BEGIN SOLUTION
    v = sizes / sizes.sum() - strength * distances / 2
    descending = np.sort(v)[::-1]
    taus = (np.cumsum(descending) - 1) / np.arange(1, len(v) + 1)
    tau = taus[np.flatnonzero(descending > taus)[-1]]
    return np.maximum(v - tau, 0)
    ### END SOLUTION


# %%
check("09.4", row_of_pfedgraph)

# %% [markdown]
# ## 09.5
#
# In each round of IFCA, a client receives all models. It trains one of them and sends this one back. (We neglect the number of
# the chosen model.) IFCA has six models here. How many times the bytes of federated averaging does it exchange, in both directions together?

# %%
### BEGIN SOLUTION
prediction = 3.5
### END SOLUTION

# %%
check("09.5", prediction)

# %% [markdown]
# ## 09.6
#
# Four clients have equally many samples. In round 1, the clusters are {0, 1}, {2} and {3}. In round 2 they are {0}, {1, 2} and {3}.
# Suppose that the training in round 2 changes nothing. Client 0 has trained a model in round 1. What is the share of
# this model, as it was before the averaging, in client 2's model after round 2?

# %%
### BEGIN SOLUTION
prediction = 1 / 4
### END SOLUTION

# %%
check("09.6", prediction)

# %% [markdown]
# ## 09.7
#
# Thirty hospitals want to train a classifier of X-ray images together. Their machines are of different makers; nobody knows how many kinds there are. One
# hospital has a machine that it built itself. The connection is slow, and there will be a hundred rounds. Which method do you propose?
# Write half a page: what you run first, which method you choose and why, where it may fail, and how you will notice.

# %% [markdown] tags=["answer"]
# 1. *First*, FedAvg and local training, with three seeds. If FedAvg is better for all hospitals, less is at stake, although clusters may still
#    help. If local training is better somewhere, other hospitals' models do harm there.
# 2. *What we know.* The number of groups is unknown, so methods that must be told $k$ need a guess. The connection is slow, so that methods
#    with several models per round cost too much (Figure 3).
# 3. *The method.* OCFL clusters once, by updates that the server has anyway, and sends nothing more than FedAvg. With HDBSCAN it would put the
#    hospital with its own machine into a group (Figure 4, "alone"). So this hospital compares the group's model with its own on validation images, and keeps the better one.
# 4. *Measures.* Each hospital reports the accuracy on its own test images, under FedAvg, its group's model and local training. The worst one
#    counts, and not the mean alone. If clusters differ between seeds, there are perhaps no groups. We would then take personal models instead, such as those of Ditto, which sends no more than FedAvg.
