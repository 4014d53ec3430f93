# %% [markdown]
# # Exercises: OCFL and its temperature
#
# They belong to the lesson [03 OCFL](../03_ocfl_temperature.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% [markdown]
# ## 03.1
#
# OCFL compares the directions of the clients' updates $\Delta_i$ by their cosine distances
#
# $$\gamma_{ij} = 1 - \frac{\Delta_i \cdot \Delta_j}{\lVert \Delta_i \rVert \lVert \Delta_j \rVert}.$$
#
# Write the function that computes the matrix $\Gamma$ of all these distances. No update is zero.


# %%
def divergence(updates):
    """Return the divergence matrix [m, m] of updates [m, P]."""
    ### BEGIN SOLUTION
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    return 1 - directions @ directions.T
    ### END SOLUTION


# %%
check("03.1", divergence)

# %% [markdown]
# ## 03.2
#
# The temperature is the norm of $\Gamma$, divided by an upper bound $\lambda$ of it. Write it for $p = 2$:
#
# $$T(\Gamma) = \frac{1}{\lambda} \sqrt{\sum_{i,j} \gamma_{ij}^2}, \qquad \lambda = \sqrt{4\, m(m-1)}.$$


# %%
def temperature(gamma):
    """Return the temperature, a number in [0, 1], of a divergence matrix [m, m]."""
    ### BEGIN SOLUTION
    m = len(gamma)
    return np.sqrt((gamma**2).sum()) / np.sqrt(4 * m * (m - 1))
    ### END SOLUTION


# %%
check("03.2", temperature)

# %% [markdown]
# ## 03.3
#
# OCFL clusters in the first round $t$ with $T_t > T_{t-w}$. Here $w$ is the window, a number of rounds. Without enough
# earlier rounds, the trigger does not fire. Return the number of this round, counted from 1. Return `None` if the trigger
# never fires.


# %%
def first_rise(temperatures, window):
    """Return the first round that fires, for a list of the temperatures of rounds 1, 2, …"""
    ### BEGIN SOLUTION
    for t in range(window, len(temperatures)):
        if temperatures[t] > temperatures[t - window]:
            return t + 1
    return None
    ### END SOLUTION


# %%
check("03.3", first_rise)

# %% [markdown]
# ## 03.4
#
# After the clustering, federated averaging goes on within each cluster. The array `labels` has the cluster of each
# client, from 0 to $K - 1$. Every cluster has at least one client. Add to the model of each cluster the mean of the
# updates of its clients, with equal weights.


# %%
def step_of_each_cluster(models, updates, labels):
    """Return the new models [K, P], for models [K, P], updates [m, P] and labels [m]."""
    ### BEGIN SOLUTION
    means = [updates[labels == k].mean(axis=0) for k in range(len(models))]
    return models + np.stack(means)
    ### END SOLUTION


# %%
check("03.4", step_of_each_cluster)

# %% [markdown]
# ## 03.5
#
# A client joins after the clustering. It trains the model from which all others started in the round of the clustering,
# and sends its update. It goes to the cluster whose clients' updates are nearest: the one with the smallest *mean* cosine
# distance. Return the number of this cluster. The clusters have the numbers 0 to $K - 1$.


# %%
def cluster_of_newcomer(update, updates, labels):
    """Return a cluster, for the new update [P], the others' updates [m, P] and labels [m]."""
    ### BEGIN SOLUTION
    distances = 1 - updates @ update / (np.linalg.norm(updates, axis=1) * np.linalg.norm(update))
    return int(np.argmin([distances[labels == k].mean() for k in range(labels.max() + 1)]))
    ### END SOLUTION


# %%
check("03.5", cluster_of_newcomer)

# %% [markdown]
# ## 03.6
#
# Six clients form three groups of two. Within a group, all updates have the same direction. The directions of two
# groups are 120 degrees apart. What is the temperature of the six clients? Work it out by hand, to two decimal places.

# %%
### BEGIN SOLUTION
prediction = 0.67
### END SOLUTION

# %%
check("03.6", prediction)

# %% [markdown]
# ## 03.7
#
# Fifteen clients are alike. In round $t$, from 1 to 20, the update of each is $s / t$ plus noise. The direction $s$ is
# the same for all of them. The noise is drawn anew for each client and each round, and its size does not change. Does the
# trigger fire in some round (`"fires"`), or does it never fire (`"never"`)?

# %%
### BEGIN SOLUTION
prediction = "fires"
### END SOLUTION

# %%
check("03.7", prediction)

# %% [markdown]
# ## 03.8
#
# There are $K$ groups with $m / K$ clients each. Two clients of one group have the distance 0, and two clients of
# different groups have the distance $d$. Derive the temperature for $p = 2$. How does it depend on $K$ and on $d$? Can
# the server read the number of groups from $T$?

# %% [markdown] tags=["answer"]
# There are $m^2$ ordered pairs, and a share of $1 / K$ of them lies within a group. So $m^2 (1 - 1/K)$ pairs have the
# distance $d$, and all others have the distance 0. This gives
#
# $$T = \frac{d\, m \sqrt{1 - 1/K}}{2 \sqrt{m (m - 1)}} = \frac d2 \sqrt{\frac{m}{m - 1} \Big(1 - \frac1K\Big)}.$$
#
# $T$ grows with $d$ and with $K$. Two groups that are far apart and many groups that are less far apart can have the
# same temperature. So the server cannot read the number of groups from $T$. It needs a clustering of $\Gamma$.

# %% [markdown]
# ## 03.9
#
# The trigger watches one number for all clients together. Describe a federation in which two groups disagree in every
# round, from the first one on, and the temperature still falls from round to round. What does this say about the trigger?

# %% [markdown] tags=["answer"]
# Let two groups have directions 90 degrees apart in every round. In the first round, the updates within a group differ
# much, since the initial model has learned nothing and batches are noisy. Later, the clients of a group agree more and
# more. The distances between the groups stay near 1, and the distances within them fall. So $T$ falls in every round,
# and the trigger never fires, although the groups could be told apart from the first round on. The trigger sees that a
# disagreement *grows*. It does not see that there *is* one.
