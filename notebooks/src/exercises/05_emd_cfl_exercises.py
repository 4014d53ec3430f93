# %% [markdown]
# # Exercises: EMD-CFL
#
# They belong to the lesson [05 EMD-CFL](../05_emd_cfl.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np
from scipy.optimize import linear_sum_assignment

from cflkit import check
from cflkit.divergence import earth_movers_distance

# %% tags=["exercise"]
# D. Zhang, F. Toni, M. Williams, arXiv 2506.07769, 2025.

from cflkit.course.exercises import Explain, Implement, Predict, same_groups
from cflkit.methods.emd_cfl_variants import clusters_of

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


# %% tags=["exercise"]
from sklearn.metrics.pairwise import cosine_distances


def some_costs(rng):
    """Draw the cosine costs of two samples of equal size."""
    one, other = rng.normal(size=(2, rng.integers(3, 9), 3))
    return (cosine_distances(one, other),)


def one_pile_after_the_other(costs):
    free, total = list(range(len(costs))), 0.0
    for row in costs:
        hole = min(free, key=lambda place: row[place])
        free.remove(hole)
        total += row[hole]
    return total / len(costs)


exercise = Implement(
    "The earth mover's distance",
    minutes=15,
    level="medium",
    points=2,
    inputs=some_costs,
    mistakes={
        "You add up the costs of all piles. Together, the piles weigh 1.": (
            lambda costs: len(costs) * least_mean_cost(costs)
        ),
        "Every pile goes to its nearest hole. Then some holes get several piles, and others "
        "stay empty.": lambda costs: float(costs.min(axis=1).mean()),
        "This is the mean of all costs: every pile is spread over all holes, which is a "
        "possible plan, but not the cheapest one.": lambda costs: float(costs.mean()),
        "Pile 1 goes to hole 1, pile 2 to hole 2, and so on. The order of the points has no "
        "meaning here.": lambda costs: float(costs.diagonal().mean()),
        "Each pile in turn takes the cheapest free hole. An early pile may then take a hole "
        "that a later pile needs more.": one_pile_after_the_other,
    },
)

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


# %% tags=["exercise"]
def two_samples(rng):
    """Draw two samples of different sizes, with points of different lengths."""
    n_a, more, dimensions = rng.integers(2, 6), rng.integers(1, 4), rng.integers(3, 7)
    lengths = rng.uniform(0.5, 3, (2 * n_a + more, 1))
    points = lengths * rng.normal(size=(2 * n_a + more, dimensions))
    return points[:n_a], points[n_a:]


def unit(points, axis):
    """Divide an array by its norms along an axis."""
    return points / np.linalg.norm(points, axis=axis, keepdims=True)


exercise = Implement(
    "Cosine costs",
    minutes=10,
    level="easy",
    points=1,
    inputs=two_samples,
    mistakes={
        "These are similarities. Moving to a point in the same direction must cost nothing.": (
            lambda a, b: 1 - cosine_costs(a, b)
        ),
        "You do not divide by the norms, so long vectors count more than short ones.": (
            lambda a, b: 1 - a @ b.T
        ),
        "You divide by norms along the wrong axis. Each point, which is a row, has a norm.": (
            lambda a, b: 1 - unit(a, axis=0) @ unit(b, axis=0).T
        ),
        "The result is transposed. The points of the first sample belong to the rows.": (
            lambda a, b: cosine_costs(b, a)
        ),
    },
)

# %% [markdown]
# ## 05.3
#
# Let $s_{ij}$ be the scores of $m$ clients. An edge joins clients $i$ and $j$ if they agree as in the lesson: *both* $s_{ij}$ and $s_{ji}$ are below $\varepsilon$. The matrix need not be symmetric.
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


# %% tags=["exercise"]
from scipy.sparse.csgraph import connected_components


def scores_and_epsilon(rng):
    """Draw scores, of which about a third are below ε, or only those along a chain of clients.

    A client need not agree with itself.
    """
    m = rng.integers(6, 10)
    scores = rng.uniform(-0.02, 0.3, (m, m))
    if rng.random() < 0.3:
        places = rng.permutation(m)
        far = abs(places[:, None] - places[None]) > 1
        scores = np.where(far, rng.uniform(0.13, 0.3, (m, m)), rng.uniform(-0.02, 0.07, (m, m)))
    np.fill_diagonal(scores, rng.uniform(-0.02, 0.16, m))
    return scores, float(rng.uniform(0.08, 0.12))


def by_edges(edges):
    """Compute connected components."""
    return connected_components(edges, directed=False)[1]


def by_the_first_neighbour(scores, epsilon):
    return ((scores < epsilon) & (scores < epsilon).T).argmax(axis=1)


exercise = Implement(
    "From scores to connected components",
    minutes=20,
    level="medium",
    points=2,
    inputs=scores_and_epsilon,
    same=same_groups,
    mistakes={
        "One direction is enough for your edges. Either client can refuse.": (
            lambda scores, epsilon: by_edges(np.minimum(scores, scores.T) < epsilon)
        ),
        "You compare the mean of both directions with ε. Either client can refuse.": (
            lambda scores, epsilon: by_edges((scores + scores.T) / 2 < epsilon)
        ),
        "Your edges join clients that are far apart. A low score means that two clients are "
        "near each other.": lambda scores, epsilon: by_edges(
            np.minimum(scores, scores.T) > epsilon
        ),
        "You put clients with identical neighbourhoods together. This is the paper's rule, "
        "but here a chain of edges is enough.": (
            lambda scores, epsilon: clusters_of(scores, epsilon)[0]
        ),
        "Each client is named after its first neighbour. Go on to the neighbours of the "
        "neighbours.": by_the_first_neighbour,
    },
)

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


# %% tags=["exercise"]
def scores_and_clusters(rng):
    """Draw scores and true clusters; sometimes there is only one cluster, or no working range."""
    m = rng.integers(4, 9)
    clusters = rng.integers(0, rng.choice([1, 2, 3]), m)
    same = clusters[:, None] == clusters[None]
    far = rng.choice([0.05, 0.2])
    scores = np.where(same, 0, far) + rng.normal(scale=0.02, size=(m, m))
    np.fill_diagonal(scores, rng.uniform(0, 0.04, m))
    return scores, clusters


def ends(pairs, clusters):
    """Return the largest value within true clusters, and the smallest between them."""
    same = clusters[:, None] == clusters[None]
    return float(pairs[same].max()), float(pairs[~same].min(initial=2.0))


def other_ends(scores, clusters):
    pairs = np.maximum(scores, scores.T)
    same = clusters[:, None] == clusters[None]
    return float(pairs[same].min()), float(pairs[~same].max(initial=-2.0))


def without_the_diagonal(scores, clusters):
    scores = scores.copy()
    np.fill_diagonal(scores, -2)
    return working_range(scores, clusters)


def by_the_upper_triangle(scores, clusters):
    upper = np.triu(scores)
    return ends(upper + np.triu(scores, 1).T, clusters)


exercise = Implement(
    "The working range of ε",
    minutes=20,
    level="hard",
    points=2,
    inputs=scores_and_clusters,
    mistakes={
        "You take the smaller of the two directions. Two clients agree only if both scores are "
        "below ε.": lambda scores, clusters: ends(np.minimum(scores, scores.T), clusters),
        "The two ends are exchanged. The score within clusters comes first.": (
            lambda scores, clusters: working_range(scores, clusters)[::-1]
        ),
        "You take the smallest score within clusters and the largest between them. Every pair "
        "within a cluster must agree, and no pair of two clusters may agree.": other_ends,
        "The diagonal is left out. A client and itself are a pair within a cluster, too.": (
            without_the_diagonal
        ),
        "You look at one direction only, above the diagonal. The matrix is not symmetric.": (
            by_the_upper_triangle
        ),
        "You take the mean of the two directions. Can two clients agree if one score is far above ε?": (
            lambda scores, clusters: ends((scores + scores.T) / 2, clusters)
        ),
    },
)

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
# How many clusters does EMD-CFL find with $\varepsilon = 0.005$, with $0.1$ and with $0.6$? The lesson's rule, by
# which clients that agree with exactly the same clients form a cluster, and connected components give the same numbers here. Write a list of three numbers, such as `[3, 3, 3]`.

# %%
### BEGIN SOLUTION
prediction = [5, 2, 1]
### END SOLUTION

# %%
check("05.5", prediction)

# %% tags=["exercise"]
OF_FIVE_CLIENTS = np.array(
    [
        [0.02, 0.03, 0.04, 0.35, 0.41],
        [0.04, 0.01, 0.02, 0.38, 0.33],
        [0.03, 0.05, 0.02, 0.06, 0.29],
        [0.44, 0.36, 0.27, 0.01, 0.05],
        [0.39, 0.31, 0.34, 0.03, 0.02],
    ]
)


def clusters_at_three_thresholds():
    """Count the clusters that EMD-CFL finds with a tiny, a middle and a huge ε."""
    return [len(set(clusters_of(OF_FIVE_CLIENTS, e)[0].tolist())) for e in (0.005, 0.1, 0.6)]


exercise = Predict(
    "Three thresholds",
    minutes=5,
    level="easy",
    points=1,
    measure=clusters_at_three_thresholds,
    mistakes={
        "With ε = 0.1, client 2 accepts client 3. Look at the score in the other direction as "
        "well.": [5, 1, 1],
        "A smaller ε is harder to pass. Do fewer or more clients agree then?": [1, 2, 5],
        "A client that agrees with nobody, not even with itself, is a cluster of its own.": [
            0,
            2,
            1,
        ],
    },
    because="No score is below 0.005, so every client is alone. Every score is below 0.6, so "
    "all agree. With 0.1, the pair of clients 2 and 3 fails, since only one of its two scores "
    "is low.",
)

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


# %% tags=["exercise"]
import ot


def distance(a, b):
    """Compute what `earth_movers_distance` does, in less time for so few points."""
    return float(ot.emd2([], [], 1 - unit(a, axis=1) @ unit(b, axis=1).T))


def distances_of(train, validation, projections):
    """Compute the distances ``[m, m]`` of projected embeddings, without the references."""
    m = len(train)
    found = np.zeros((m, m))
    for i, j in np.ndindex(m, m):
        matrix = projections[i, j].T
        found[i, j] = distance(train[i] @ matrix, validation[i, j] @ matrix)
    return found


def references(train, validation):
    """Compute the reference distances of the rows, ``[m, 1]``."""
    return np.array([[distance(own, validation[i, i])] for i, own in enumerate(train)])


def some_embeddings(rng):
    """Draw embeddings without negative coordinates, and projections with rows of unit length."""
    m, d = int(rng.choice([2, 2, 2, 3])), 6
    train = np.abs(rng.normal(size=(m, 5, d)) + 2 * rng.normal(size=(m, 1, d)))
    validation = np.abs(rng.normal(size=(m, m, 4, d)) + 2 * rng.normal(size=(m, m, 1, d)))
    return train, validation, unit(rng.normal(size=(m, m, 5, d)), axis=3)


def with_projected_references(train, validation, projections):
    distances = distances_of(train, validation, projections)
    return distances - distances.diagonal()[:, None]


exercise = Implement(
    "From embeddings to scores",
    minutes=20,
    level="medium",
    points=2,
    inputs=some_embeddings,
    mistakes={
        "The reference distance is missing. These are the distances themselves.": distances_of,
        "The sign is wrong. A pair that is far apart must have a high score.": (
            lambda train, validation, projections: (
                references(train, validation) - distances_of(train, validation, projections)
            )
        ),
        "You subtract the reference distance of client j. Which client's model has embedded "
        "both samples?": lambda train, validation, projections: (
            distances_of(train, validation, projections) - references(train, validation).T
        ),
        "The result is transposed. The owner of the model belongs to the row.": (
            lambda train, validation, projections: (
                (distances_of(train, validation, projections) - references(train, validation)).T
            )
        ),
        "You divide by the reference distance. The lesson subtracts it.": (
            lambda train, validation, projections: (
                distances_of(train, validation, projections) / references(train, validation)
            )
        ),
        "You compute the reference distance after a projection. A client computes it alone, "
        "from its own embeddings, and needs no projection.": with_projected_references,
        "You compare embeddings of two different models. One score needs two samples that the "
        "same model has embedded.": lambda train, validation, projections: (
            distances_of(train, validation.swapaxes(0, 1), projections)
            - references(train, validation)
        ),
    },
)

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

# %% tags=["exercise"]
exercise = Explain(
    "A client that lies",
    minutes=15,
    level="medium",
    points=3,
    rubric=(
        (1, "Says that it is not let in, because an edge needs both scores below ε."),
        (
            1,
            "Shows that rᵢ enters row i alone: in the column, sⱼᵢ has the model, the training "
            "samples and the reference distance of client j.",
        ),
        (
            1,
            "Says that it would have to forge its projected validation embeddings for each j. "
            "They would have to lie near the training embeddings of j, whose data it lacks.",
        ),
    ),
)
