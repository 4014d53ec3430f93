"""Exercises of lesson 05: EMD-CFL.

D. Zhang, F. Toni, M. Williams, arXiv 2506.07769, 2025.
"""

from __future__ import annotations

import numpy as np
import ot
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from sklearn.metrics.pairwise import cosine_distances

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict, same_groups
from cflkit.divergence import earth_movers_distance
from cflkit.methods.emd_cfl import agreements, clusters_of, project, server_sees
from cflkit.reproduce.papers.emd_cfl import working_range

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 05.1 ----------------------------------------------------------------------------------------


def least_mean_cost(costs: Array) -> float:
    """Compute the earth mover's distance of two samples of equal size from costs ``[n, n]``."""
    weights = np.full(len(costs), 1 / len(costs))
    return float(ot.emd2(weights, weights, costs))


def some_costs(rng: np.random.Generator) -> Arguments:
    """Draw the cosine costs of two samples of equal size."""
    one, other = rng.normal(size=(2, rng.integers(3, 9), 3))
    return (cosine_distances(one, other),)


def one_pile_after_the_other(costs: Array) -> float:
    """Make the mistake of letting each pile choose the cheapest hole that is still free."""
    free, total = list(range(len(costs))), 0.0
    for row in costs:
        hole = min(free, key=lambda place: row[place])
        free.remove(hole)
        total += row[hole]
    return total / len(costs)


# --- 05.2 ----------------------------------------------------------------------------------------


def cosine_costs(a: Array, b: Array) -> Array:
    """Compute the cosine distances ``[n_a, n_b]`` of the points of two samples."""
    found: Array = cosine_distances(a, b)
    return found


def two_samples(rng: np.random.Generator) -> Arguments:
    """Draw two samples of different sizes, with points of different lengths."""
    n_a, more, dimensions = rng.integers(2, 6), rng.integers(1, 4), rng.integers(3, 7)
    lengths = rng.uniform(0.5, 3, (2 * n_a + more, 1))
    points = lengths * rng.normal(size=(2 * n_a + more, dimensions))
    return points[:n_a], points[n_a:]


def unit(points: Array, axis: int) -> Array:
    """Divide an array by its norms along an axis."""
    return points / np.linalg.norm(points, axis=axis, keepdims=True)


# --- 05.3 ----------------------------------------------------------------------------------------


def components_of(scores: Array, epsilon: float) -> Labels:
    """Compute the connected components of the clients that agree, by scores ``[m, m]``."""
    return clusters_of(scores, epsilon, "components")[0]


def scores_and_epsilon(rng: np.random.Generator) -> Arguments:
    """Draw scores, of which about a third are below ε. A client need not agree with itself."""
    m = rng.integers(6, 10)
    scores = rng.uniform(-0.02, 0.3, (m, m))
    np.fill_diagonal(scores, rng.uniform(-0.02, 0.16, m))
    return scores, float(rng.uniform(0.08, 0.12))


def by_edges(edges: NDArray[np.bool_]) -> Labels:
    """Compute connected components."""
    labels: Labels = connected_components(edges, directed=False)[1].astype(np.int64)
    return labels


def by_the_first_neighbour(scores: Array, epsilon: float) -> Labels:
    """Make the mistake of looking at direct neighbours only."""
    return agreements(scores, epsilon).argmax(axis=1)


# --- 05.4 ----------------------------------------------------------------------------------------


def scores_and_clusters(rng: np.random.Generator) -> Arguments:
    """Draw scores and true clusters; sometimes there is only one cluster, or no working range."""
    m = rng.integers(4, 9)
    clusters = rng.integers(0, rng.choice([1, 2, 3]), m)
    same = clusters[:, None] == clusters[None]
    far = rng.choice([0.05, 0.2])
    scores = np.where(same, 0, far) + rng.normal(scale=0.02, size=(m, m))
    np.fill_diagonal(scores, rng.uniform(0, 0.04, m))
    return scores, clusters


def ends(pairs: Array, clusters: Labels) -> tuple[float, float]:
    """Return the largest value within true clusters, and the smallest between them."""
    same = clusters[:, None] == clusters[None]
    return float(pairs[same].max()), float(pairs[~same].min(initial=2.0))


def other_ends(scores: Array, clusters: Labels) -> tuple[float, float]:
    """Make the mistake of taking the smallest score within, and the largest between."""
    pairs = np.maximum(scores, scores.T)
    same = clusters[:, None] == clusters[None]
    return float(pairs[same].min()), float(pairs[~same].max(initial=-2.0))


def without_the_diagonal(scores: Array, clusters: Labels) -> tuple[float, float]:
    """Make the mistake of leaving out the score of a client with itself."""
    scores = scores.copy()
    np.fill_diagonal(scores, -2)
    return working_range(scores, clusters)


def by_the_upper_triangle(scores: Array, clusters: Labels) -> tuple[float, float]:
    """Make the mistake of looking at only one of the two directions."""
    upper = np.triu(scores)
    return ends(upper + np.triu(scores, 1).T, clusters)


# --- 05.5 ----------------------------------------------------------------------------------------

OF_FIVE_CLIENTS = np.array(
    [
        [0.02, 0.03, 0.04, 0.35, 0.41],
        [0.04, 0.01, 0.02, 0.38, 0.33],
        [0.03, 0.05, 0.02, 0.06, 0.29],
        [0.44, 0.36, 0.27, 0.01, 0.05],
        [0.39, 0.31, 0.34, 0.03, 0.02],
    ]
)


def clusters_at_three_thresholds() -> list[int]:
    """Count the clusters that EMD-CFL finds with a tiny, a middle and a huge ε."""
    return [len(set(clusters_of(OF_FIVE_CLIENTS, e)[0].tolist())) for e in (0.005, 0.1, 0.6)]


# --- 05.6 ----------------------------------------------------------------------------------------


def all_scores(train: Array, validation: Array, projections: Array) -> Array:
    """Compute all scores ``[m, m]`` from embeddings.

    Parameters
    ----------
    train : ndarray
        ``[m, n, d]``, the training samples of each client, embedded by its own model.
    validation : ndarray
        ``[m, m, v, d]``, where ``validation[i, j]`` has the validation samples of client j,
        embedded by the model of client i.
    projections : ndarray
        ``[m, m, k, d]``, the random matrix of each pair.
    """
    m = len(train)
    scores = np.zeros((m, m))
    for i, j in np.ndindex(m, m):
        owners, others = (project(x, projections[i, j]) for x in (train[i], validation[i, j]))
        reference = earth_movers_distance(train[i], validation[i, i])
        scores[i, j] = server_sees(owners, others, reference)
    return scores


def distance(a: Array, b: Array) -> float:
    """Compute what `earth_movers_distance` does, in less time for so few points."""
    return float(ot.emd2([], [], 1 - unit(a, axis=1) @ unit(b, axis=1).T))


def distances_of(train: Array, validation: Array, projections: Array) -> Array:
    """Compute the distances ``[m, m]`` of projected embeddings, without the references."""
    m = len(train)
    found = np.zeros((m, m))
    for i, j in np.ndindex(m, m):
        matrix = projections[i, j].T
        found[i, j] = distance(train[i] @ matrix, validation[i, j] @ matrix)
    return found


def references(train: Array, validation: Array) -> Array:
    """Compute the reference distances of the rows, ``[m, 1]``."""
    return np.array([[distance(own, validation[i, i])] for i, own in enumerate(train)])


def some_embeddings(rng: np.random.Generator) -> Arguments:
    """Draw embeddings without negative coordinates, and projections with rows of unit length."""
    m, d = int(rng.choice([2, 2, 2, 3])), 6
    train = np.abs(rng.normal(size=(m, 5, d)) + 2 * rng.normal(size=(m, 1, d)))
    validation = np.abs(rng.normal(size=(m, m, 4, d)) + 2 * rng.normal(size=(m, m, 1, d)))
    return train, validation, unit(rng.normal(size=(m, m, 5, d)), axis=3)


def with_projected_references(train: Array, validation: Array, projections: Array) -> Array:
    """Make the mistake of computing the references after the projection."""
    distances = distances_of(train, validation, projections)
    return distances - distances.diagonal()[:, None]


EXERCISES = (
    Implement(
        "05.1",
        "The earth mover's distance",
        minutes=15,
        level="medium",
        points=2,
        reference=least_mean_cost,
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
    ),
    Implement(
        "05.2",
        "Cosine costs",
        minutes=10,
        level="easy",
        points=1,
        reference=cosine_costs,
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
    ),
    Implement(
        "05.3",
        "From scores to connected components",
        minutes=20,
        level="medium",
        points=2,
        reference=components_of,
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
    ),
    Implement(
        "05.4",
        "The working range of ε",
        minutes=20,
        level="hard",
        points=2,
        reference=working_range,
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
            "You take the mean of the two directions. The larger one decides.": (
                lambda scores, clusters: ends((scores + scores.T) / 2, clusters)
            ),
        },
    ),
    Predict(
        "05.5",
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
    ),
    Implement(
        "05.6",
        "From embeddings to scores",
        minutes=20,
        level="medium",
        points=2,
        reference=all_scores,
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
    ),
    Explain(
        "05.7",
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
    ),
)
