# %% [markdown]
# # Exercises: Tutorial 022
#
# They belong to the lesson [08 Tutorial 022](../08_tutorial_022.ipynb). The exercises 08.1 to 08.5 are parts of
# the tutorial's four exercises: 08.1 belongs to its third, 08.2 to its first, 08.3 and 08.4 to its second, and 08.5 to its
# fourth. Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% [markdown]
# ## 08.1
#
# The tutorial names three ways to compare clients. Client $i$ has the gradient $g_i$, the loss $f_i$ and the model
# $\theta_i$. Compute three matrices:
#
# $$1 - \frac{g_i \cdot g_j}{\lVert g_i \rVert\, \lVert g_j \rVert}, \qquad \lvert f_i - f_j \rvert, \qquad
# \lVert \theta_i - \theta_j \rVert .$$
#
# Return them in this order, in a list. Write it without scikit-learn and SciPy.


# %%
def three_distances(gradients, losses, models):
    """Return three matrices [m, m] for gradients [m, d], losses [m] and models [m, d]."""
    ### BEGIN SOLUTION
    directions = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    differences = models[:, None] - models
    return [
        1 - directions @ directions.T,
        np.abs(losses[:, None] - losses),
        np.linalg.norm(differences, axis=2),
    ]
    ### END SOLUTION


# %%
check("08.1", three_distances)

# %% [markdown]
# ## 08.2
#
# In the lesson every client moves to the model with the smallest loss, in every round. Losses are noisy, and a client on the
# border would jump back and forth. So let it move only if this lowers its loss by *more than* a margin. Otherwise it
# stays where it is.


# %%
def reassign(losses, before, margin):
    """Return the new clusters [m] for losses [K, m], the clusters [m] before, and a margin."""
    ### BEGIN SOLUTION
    clients = np.arange(len(before))
    best = losses.argmin(axis=0)
    gain = losses[before, clients] - losses[best, clients]
    return np.where(gain > margin, best, before)
    ### END SOLUTION


# %%
check("08.2", reassign)

# %% [markdown]
# ## 08.3
#
# Let $f_i(\theta_k)$ be the loss of model $k$ on client $i$. Compute the share of client $i$ in cluster $k$,
#
# $$s_{ik} = \frac{\exp(-f_i(\theta_k)/\tau)}{\sum_l \exp(-f_i(\theta_l)/\tau)} .$$


# %%
def soft_shares(losses, tau):
    """Return the shares [m, K] for losses [K, m] and the temperature tau."""
    ### BEGIN SOLUTION
    weights = np.exp(-losses.T / tau)
    return weights / weights.sum(axis=1, keepdims=True)
    ### END SOLUTION


# %%
check("08.3", soft_shares)

# %% [markdown]
# ## 08.4
#
# Client $i$ has trained its mixture of models, and sends the update $\Delta_i$. The server adds to each model $\theta_k$ a weighted
# mean of all updates. The weight of client $i$ in this mean is proportional to $s_{ik}\, n_i$: its share in the cluster times its number
# of samples.


# %%
def soft_aggregate(models, updates, shares, sizes):
    """Return the new models [K, P] for models [K, P], updates [m, P], shares [m, K], sizes [m]."""
    ### BEGIN SOLUTION
    weights = shares * sizes[:, None]
    weights = weights / weights.sum(axis=0)
    return models + weights.T @ updates
    ### END SOLUTION


# %%
check("08.4", soft_aggregate)

# %% [markdown]
# ## 08.5
#
# Agglomerative clustering begins with every point alone, and each merge has a height. You get the heights of all merges, in
# ascending order. Find the largest gap between two neighbouring heights. The merges below the gap are kept, and those above are
# undone. How many clusters remain?


# %%
def clusters_below_the_gap(heights):
    """Return the number of clusters for the heights [n] of the merges of n + 1 points."""
    ### BEGIN SOLUTION
    kept = np.diff(heights).argmax() + 1
    return len(heights) + 1 - kept
    ### END SOLUTION


# %%
check("08.5", clusters_below_the_gap)

# %% [markdown]
# ## 08.6
#
# Suppose that "Global Acc" is measured on samples of all clients together. The three clusters have equally many samples and the
# classes 0 to 3, 3 to 6, and 6 to 9. Within a cluster, classes are equally frequent. Each cluster has a
# perfect model for its four classes, which never answers with another class. What is the mean accuracy of the three models? Write a number
# between 0 and 1.

# %%
### BEGIN SOLUTION
prediction = 4 / 9
### END SOLUTION

# %%
check("08.6", prediction)

# %% [markdown]
# ## 08.7
#
# There are three groups of ten clients. In a run with reassignment, all clients of two groups have chosen the same model, and the
# third group has another model. Nobody has chosen the third model. Which ARI would Figure 6 of the lesson show? Two digits after the point are enough. You
# may compute it.

# %%
### BEGIN SOLUTION
prediction = 0.55
### END SOLUTION

# %%
check("08.7", prediction)

# %% [markdown]
# ## 08.8
#
# A blog post compares four methods of federated learning in a table of accuracies. There is one number per method. Write
# down the four questions that you would ask first, and say for each which answer would change your mind about the table.

# %% [markdown] tags=["answer"]
# 1. *Which code produced the numbers?* If there is no script with a seed and a version, nobody can tell a measurement from a
#    guess. In the tutorial, no function that measures an accuracy is ever called.
# 2. *On which samples?* If training has seen them, models that remember their samples win. In the lesson, this turns the ranking
#    around.
# 3. *Are the numbers possible?* Chance is what guessing gives. The data often give an upper bound, such as the ceilings of the lesson. And
#    columns must fit together: if two columns are the same average, they have the same numbers.
# 4. *How often was it run, and was everybody given the same?* A difference that is smaller than the scatter over seeds says
#    nothing. A method that is told the number of clusters, or that trains for more rounds, has an advantage that the table must
#    state.
