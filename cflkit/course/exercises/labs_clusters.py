"""Failure labs about clusters: similarities and distances, updates, cluster numbers, scores.

L2.1: C. Briggs, Z. Fan, P. Andras, IJCNN 2020. L2.2: F. Sattler, K.-R. Müller, W. Samek, IEEE TNNLS
32(8), 2021. L2.3: H. W. Kuhn, Naval Research Logistics 2, 1955. L2.4: D. Zhang, F. Toni, M.
Williams, arXiv 2506.07769.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import rand_score
from sklearn.metrics.pairwise import euclidean_distances

from cflkit.clustering import Labels, canonical_labels
from cflkit.course.exercises.base import Arguments, Implement, same_groups
from cflkit.course.exercises.fedcref import greedy
from cflkit.course.exercises.ledger import purity
from cflkit.divergence import cosine_divergence
from cflkit.methods import emd_cfl
from cflkit.metrics import clustering_accuracy

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
State = Sequence[tuple[str, Array]]

# How far a computed number may be from an exact one
ROUNDING = 1e-6


# --- L2.1 ----------------------------------------------------------------------------------------


def as_distances(matrix: Array) -> Array | None:
    """Convert cosine similarities ``[m, m]`` to distances; return distances as they are.

    For a matrix that is neither, the result is None.
    """
    if has_diagonal(matrix, 1) and (np.abs(matrix) <= 1 + ROUNDING).all():
        return 1 - matrix
    if has_diagonal(matrix, 0) and (matrix >= -ROUNDING).all():
        return matrix
    return None


def has_diagonal(matrix: Array, value: float, tolerance: float = ROUNDING) -> bool:
    """Test whether all entries on the diagonal have a value."""
    return bool((np.abs(np.diagonal(matrix) - value) <= tolerance).all())


def some_matrix(rng: np.random.Generator) -> Arguments:
    """Draw similarities, distances, or one of three matrices that are neither."""
    m = int(rng.integers(3, 8))
    # Vectors with something in common have positive similarities
    vectors = rng.normal(size=(m, 5)) + rng.choice([0.0, 2.0])
    kind = rng.choice(5, p=[0.28, 0.28, 0.2, 0.12, 0.12])
    matrix: Array
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
    return (matrix + rng.uniform(-1e-9, 1e-9, matrix.shape),)


def by_the_diagonal_alone(matrix: Array) -> Array | None:
    """Make the mistake of not looking at the other entries."""
    if has_diagonal(matrix, 1):
        return 1 - matrix
    return matrix if has_diagonal(matrix, 0) else None


def by_the_range(matrix: Array) -> Array | None:
    """Make the mistake of taking every matrix with entries in [-1, 1] for similarities."""
    if (np.abs(matrix) <= 1 + ROUNDING).all():
        return 1 - matrix
    return matrix if (matrix >= -ROUNDING).all() else None


def without_rounding(matrix: Array) -> Array | None:
    """Make the mistake of comparing the diagonal without a tolerance."""
    exact = has_diagonal(matrix, 1, 0) or has_diagonal(matrix, 0, 0)
    return as_distances(matrix) if exact else None


def halved(matrix: Array) -> Array | None:
    """Make the mistake of converting similarities to distances that are half as long."""
    right = as_distances(matrix)
    return right / 2 if right is not None and has_diagonal(matrix, 1) else right


# --- L2.2 ----------------------------------------------------------------------------------------


def update_of(before: State, after: State, trainable: Sequence[str]) -> Array:
    """Join the changes of all trainable parameters in the order of the state: ``[P]``."""
    return changes(before, after, lambda name, array: name in trainable)


def changes(before: State, after: State, kept: Callable[[str, Array], bool]) -> Array:
    """Join the changes of the entries that a function of name and array keeps."""
    pairs = zip(before, after, strict=True)
    return np.concatenate([(b - a).ravel() for (name, a), (_, b) in pairs if kept(name, a)])


def two_states(rng: np.random.Generator) -> Arguments:
    """Draw the states of a network with BatchNorm before and after training.

    In about half of the cases, the first convolution is frozen.
    """
    blocks, channels, classes = int(rng.integers(1, 3)), int(rng.integers(2, 4)), 3
    shapes: dict[str, tuple[int, ...]] = {}
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


def is_counter(name: str) -> bool:
    """Test whether an entry is a counter of batches."""
    return name.endswith("num_batches_tracked")


def is_buffer(name: str) -> bool:
    """Test whether an entry belongs to BatchNorm's state, by its name."""
    return is_counter(name) or name.endswith(("running_mean", "running_var"))


def in_the_order_of_the_list(before: State, after: State, trainable: Sequence[str]) -> Array:
    """Make the mistake of joining the changes in the order of the list of names."""
    old, new = dict(before), dict(after)
    return np.concatenate([(new[name] - old[name]).ravel() for name in trainable])


def without_subtraction(before: State, after: State, trainable: Sequence[str]) -> Array:
    """Make the mistake of returning the trained parameters."""
    return update_of([(name, np.zeros_like(array)) for name, array in before], after, trainable)


# --- L2.3 ----------------------------------------------------------------------------------------


def share_moved(before: Labels, after: Labels) -> float:
    """Compute the smallest share of clients that moved, over all matchings of cluster numbers."""
    return 1 - clustering_accuracy(before, after)


def two_clusterings(rng: np.random.Generator) -> Arguments:
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


def by_majority(before: Labels, after: Labels) -> float:
    """Make the mistake of giving each new cluster the old number of most of its clients."""
    return 1 - purity(before, after)


def greedily(before: Labels, after: Labels) -> float:
    """Make the mistake of matching the two clusters with the largest overlap, and so on."""
    return 1 - greedy(before, after)


def by_position(before: Labels, after: Labels) -> float:
    """Make the mistake of comparing the numbers themselves."""
    return float((before != after).mean())


# --- L2.4 ----------------------------------------------------------------------------------------


def clusters_of_measured(scores: Array, measured: Mask, epsilon: float) -> Labels:
    """Compute the connected components of the pairs whose two scores are measured and below ε."""
    known = np.where(measured, scores, np.nan)
    return emd_cfl.clusters_of(known, epsilon, "components")[0]


def scores_of_some_pairs(rng: np.random.Generator) -> Arguments:
    """Draw scores, of which many were not measured and are 0; some clients were never seen."""
    m = int(rng.integers(9, 13))
    met = np.triu(rng.random((m, m)) < 0.45)
    measured = (met | met.T) & (rng.random((m, m)) < 0.85)
    absent = rng.choice(m, int(rng.integers(2, 4)), replace=False)
    measured[absent] = measured[:, absent] = False
    groups = rng.integers(3, size=m)
    near = groups[:, None] == groups[None]
    scores = np.where(near, rng.uniform(-0.02, 0.06, (m, m)), rng.uniform(0.05, 0.4, (m, m)))
    scores[near & (rng.random((m, m)) < 0.3)] = 0  # measured scores that were rounded
    scores[near & (rng.random((m, m)) < 0.15)] = 0.2  # one of the two refuses
    scores[~measured] = 0
    return scores, measured, float(rng.uniform(0.08, 0.12))


def joined(edges: Mask) -> Labels:
    """Number the connected components of a graph."""
    return canonical_labels(emd_cfl.components(edges).argmax(axis=1))


def by_one_direction(scores: Array, measured: Mask, epsilon: float) -> Labels:
    """Make the mistake of joining two clients if only one of them agrees."""
    near = measured & (scores < epsilon)
    return joined(near | near.T)


def with_one_measured(scores: Array, measured: Mask, epsilon: float) -> Labels:
    """Make the mistake of joining two clients if only one of their scores was measured."""
    near = scores < epsilon
    return joined(near & near.T & (measured | measured.T))


def with_the_unseen_together(scores: Array, measured: Mask, epsilon: float) -> Labels:
    """Make the mistake of putting all clients that were never measured into one cluster."""
    labels = clusters_of_measured(scores, measured, epsilon)
    never = ~(measured.any(axis=0) | measured.any(axis=1))
    return np.where(never, len(labels), labels)


def of_first_neighbours(scores: Array, measured: Mask, epsilon: float) -> Labels:
    """Make the mistake of looking at direct neighbours only."""
    near = measured & (scores < epsilon)
    edges = (near & near.T) | np.eye(len(near), dtype=bool)
    return edges.argmax(axis=1)


EXERCISES = (
    Implement(
        "L2.1",
        "Worse than chance",
        minutes=20,
        level="medium",
        points=2,
        reference=as_distances,
        inputs=some_matrix,
        mistakes={
            "Your function returns every matrix as it is. A clusterer would get similarities and "
            "join the clients that are least alike.": lambda matrix: matrix,
            "Your function converts every matrix. Distances become similarities by this, which is "
            "the same error the other way round.": lambda matrix: 1 - matrix,
            "Your function never returns None. A matrix that is neither would be clustered, and "
            "nobody would notice.": (
                lambda matrix: 1 - matrix if has_diagonal(matrix, 1) else matrix
            ),
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
    ),
    Implement(
        "L2.2",
        "Perfect harmony",
        minutes=20,
        level="medium",
        points=2,
        reference=update_of,
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
    ),
    Implement(
        "L2.3",
        "Always on the move",
        minutes=20,
        level="medium",
        points=2,
        reference=share_moved,
        inputs=two_clusterings,
        mistakes={
            "You compare numbers. Which group has the number 0 is arbitrary in each clustering.": (
                by_position
            ),
            "Two new clusters can belong to the same old one here. If a cluster splits in two, "
            "some clients do move.": by_majority,
            "You match the pair with the largest overlap first. The best matching as a whole can "
            "leave out this pair.": greedily,
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
    ),
    Implement(
        "L2.4",
        "One big family",
        minutes=25,
        level="hard",
        points=2,
        reference=clusters_of_measured,
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
            "Only direct neighbours share a cluster. A chain of edges is enough.": (
                of_first_neighbours
            ),
            "You ask for identical neighbourhoods, which is the published rule of EMD-CFL. Here "
            "the clusters are connected components.": lambda scores, measured, epsilon: (
                emd_cfl.clusters_of(np.where(measured, scores, np.nan), epsilon)[0]
            ),
        },
    ),
)
