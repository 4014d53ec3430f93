# %% [markdown]
# # Exercises: EMD-CFL
#
# They belong to the lesson [05 EMD-CFL](../05_emd_cfl.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np
from scipy.optimize import linear_sum_assignment

from cflkit import check
from cflkit.divergence import earth_movers_distance

# %% [markdown]
# ## 05.1
#
# Two samples have $n$ points each, and all points weigh $\frac1n$. Then there is always a cheapest plan that moves each
# pile as a whole into one hole, and fills each hole with one pile. So the earth mover's distance is the least mean cost
# over all one-to-one assignments $\pi$ of piles to holes:
#
# $$W = \min_\pi \frac1n \sum_{i=1}^n c_{i\,\pi(i)}.$$
#
# Compute it from the costs $c_{ij}$ of moving pile $i$ to hole $j$. You may use SciPy's `linear_sum_assignment(costs)`,
# which returns the rows and the columns of the assignment with the least *sum*.


# %%
def least_mean_cost(costs):
    """Return the earth mover's distance, a number, for costs [n, n]."""
    ### BEGIN SOLUTION
    return costs[linear_sum_assignment(costs)].mean()
    ### END SOLUTION


# %%
check("05.1", least_mean_cost)

# %% [markdown]
# ## 05.2
#
# The cost of moving point $a_i$ to point $b_j$ is their cosine distance
#
# $$c_{ij} = 1 - \frac{a_i \cdot b_j}{\lVert a_i \rVert\, \lVert b_j \rVert}.$$
#
# The rows of `a` and `b` are the points of two samples. The samples may have different sizes, and no point is zero.
# Write it without scikit-learn.


# %%
def cosine_costs(a, b):
    """Return the costs [n_a, n_b] for points a [n_a, d] and b [n_b, d]."""
    ### BEGIN SOLUTION
    a = a / np.linalg.norm(a, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    return 1 - a @ b.T
    ### END SOLUTION


# %%
check("05.2", cosine_costs)

# %% [markdown]
# ## 05.3
#
# Let $s_{ij}$ be the scores of $m$ clients. As in the lesson, an edge joins clients $i$ and $j$ if *both* $s_{ij}$ and
# $s_{ji}$ are below $\varepsilon$. The matrix need not be symmetric.
#
# Here the clusters are the *connected components*: two clients are in the same cluster if a chain of edges leads from
# one to the other. A client without edges to others is a cluster of its own. Every pair has been compared, and no score
# equals $\varepsilon$.
#
# Return one label per client. It does not matter which numbers you take. Write it without SciPy.


# %%
def components(scores, epsilon):
    """Return the labels [m] of the clients for scores [m, m] and the threshold epsilon."""
    ### BEGIN SOLUTION
    near = scores < epsilon
    reached = near & near.T
    np.fill_diagonal(reached, True)
    for _ in range(len(scores)):
        reached = reached @ reached  # chains of twice the length
    return reached.argmax(axis=1)  # the first client that is reached
    ### END SOLUTION


# %%
check("05.3", components)

# %% [markdown]
# ## 05.4
#
# Each $\varepsilon$ in the working range finds exactly the true clusters. Compute its two ends from the scores and
# the true clusters:
#
# - `within` is the largest value of all pairs within a true cluster. The pair of a client and itself counts, too.
# - `between` is the smallest value of all pairs of two true clusters. If there is only one true cluster, it is 2, the
#   largest cosine distance.
#
# The value of a pair is made of its scores in the two directions. Work out how, from the rule for edges. The first end
# may be larger than the second. The range is then empty, and you return both ends all the same.


# %%
def working_range(scores, clusters):
    """Return the pair (within, between) for scores [m, m] and true clusters [m]."""
    ### BEGIN SOLUTION
    larger = np.maximum(scores, scores.T)
    same = clusters[:, None] == clusters[None]
    within = larger[same].max()
    between = 2.0 if same.all() else larger[~same].min()
    return within, between
    ### END SOLUTION


# %%
check("05.4", working_range)

# %% [markdown]
# ## 05.5
#
# Five clients, numbered from 0 to 4, have these scores. Row $i$ and column $j$ hold $s_{ij}$:
#
# $$\begin{pmatrix}
# 0.02 & 0.03 & 0.04 & 0.35 & 0.41 \\
# 0.04 & 0.01 & 0.02 & 0.38 & 0.33 \\
# 0.03 & 0.05 & 0.02 & 0.06 & 0.29 \\
# 0.44 & 0.36 & 0.27 & 0.01 & 0.05 \\
# 0.39 & 0.31 & 0.34 & 0.03 & 0.02
# \end{pmatrix}$$
#
# How many clusters does EMD-CFL find with $\varepsilon = 0.005$, with $0.1$ and with $0.6$? Neighbourhoods and
# connected components give the same numbers here. Write a list of three numbers, such as `[3, 3, 3]`.

# %%
### BEGIN SOLUTION
prediction = [5, 2, 1]
### END SOLUTION

# %%
check("05.5", prediction)

# %% [markdown]
# ## 05.6
#
# Now compute all scores of the lesson,
#
# $$s_{ij} = W\big(R_{ij}\,g_i(X_i^{train}),\; R_{ij}\,g_i(X_j^{val})\big) - r_i, \qquad
# r_i = W\big(g_i(X_i^{train}),\; g_i(X_i^{val})\big).$$
#
# The models $g_i$ have already embedded all samples. You get three arrays, with one embedding per row:
#
# - `train[i]` is $g_i(X_i^{train})$, of shape $[n, d]$.
# - `validation[i, j]` is $g_i(X_j^{val})$, of shape $[v, d]$. The model is that of client $i$, the images are those of
#   client $j$.
# - `projections[i, j]` is $R_{ij}$, of shape $[k, d]$. It multiplies each embedding from the left.
#
# Use `earth_movers_distance(a, b)` for $W$. It takes two samples with one point per row, and its costs are cosine
# distances. Compute the scores with $i = j$, too.


# %%
def all_scores(train, validation, projections):
    """Return the scores [m, m] for arrays [m, n, d], [m, m, v, d] and [m, m, k, d]."""
    ### BEGIN SOLUTION
    m = len(train)
    scores = np.zeros((m, m))
    for i in range(m):
        reference = earth_movers_distance(train[i], validation[i, i])
        for j in range(m):
            own = train[i] @ projections[i, j].T
            other = validation[i, j] @ projections[i, j].T
            scores[i, j] = earth_movers_distance(own, other) - reference
    return scores
    ### END SOLUTION


# %%
check("05.6", all_scores)

# %% [markdown]
# ## 05.7
#
# A group of honest clients forms a cluster. Client $i$ holds other data, but wants to be in this cluster. It sends a
# false reference distance $r_i$, so large that its whole row of scores is negative. The scores of the honest clients'
# rows against client $i$ are above $\varepsilon > 0$.
#
# Is client $i$ let in? What would it have to forge to change its column of scores as well, and what makes that
# difficult?

# %% [markdown] tags=["answer"]
# Client $i$ is not let in. An edge between $i$ and a client $j$ of the group needs both $s_{ij}$ and $s_{ji}$ below
# $\varepsilon$. The lie makes $s_{ij}$ negative, but $r_i$ is not part of
#
# $$s_{ji} = W\big(R_{ji}\,g_j(X_j^{train}),\; R_{ji}\,g_j(X_i^{val})\big) - r_j .$$
#
# Here the model, the training samples and the reference distance are those of client $j$. So the column stays as it is.
# With a reference distance that is too small, client $i$ could refuse others, but nothing more.
#
# The one part of $s_{ji}$ that client $i$ sends is $R_{ji}\,g_j(X_i^{val})$, its own validation embeddings. It would
# have to send other vectors, which lie near the projected training embeddings of client $j$. It knows $g_j$ and
# $R_{ji}$, but not the data of client $j$. So it would need similar images, or vectors that it derives from the model
# $g_j$. It would need them for each client of the group whose score it wants to change, because each has its own model
# and its own projection. The server sees projected vectors alone, and so it could not easily tell such a forgery from
# honest vectors.
