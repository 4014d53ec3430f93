import sys
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN as SklearnHDBSCAN
from sklearn.cluster import AffinityPropagation as SklearnAffinityPropagation
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.cluster import MeanShift as SklearnMeanShift
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import cosine_distances
from threadpoolctl import threadpool_limits

from cflkit import clustering, methods
from cflkit.divergence import checked_distances, cosine_divergence


def blocks(sizes, noise=0.1, seed=0, directions=None):
    """Compute cosine distances of noisy vectors around one direction per cluster.

    The directions are random by default.
    """
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if directions is None:
        directions = generator.normal(size=(len(sizes), 40))
    vectors = directions[labels] + noise * generator.normal(size=(len(labels), 40))
    return cosine_distances(vectors), labels


LINKAGES = get_args(clustering.Linkage)
CLEAR = [(name, {}) for name in ("hdbscan", "kmeans", "affinity")]
CLEAR += [("agglomerative", {"threshold": 0.4, "linkage": linkage}) for linkage in LINKAGES]
CLEAR += [("agglomerative", {"n_clusters": 3, "linkage": linkage}) for linkage in LINKAGES]


@pytest.mark.parametrize("sizes", [(5, 5, 5), (3, 7, 5), (10, 10, 10), (7, 14, 9)])
@pytest.mark.parametrize(("name", "options"), CLEAR)
def test_clear_clusters_are_found(name, options, sizes):
    gamma, truth = blocks(sizes)
    assert clustering.make(name, **options).fit_predict(gamma).tolist() == truth.tolist()


@pytest.mark.parametrize("end", [{"threshold": 1.0}, {"n_clusters": 9}])
def test_clients_at_the_threshold_and_fewer_clients_than_clusters_are_alone(end):
    cut = clustering.make("agglomerative", **end)
    assert cut.fit_predict(1 - np.eye(4)).tolist() == [0, 1, 2, 3]


RIGHT_ANGLES = 10 * np.eye(3, 40)
PULLING_APART = RIGHT_ANGLES - RIGHT_ANGLES.mean(axis=0)  # at angles of 120°


PRINTED = [
    ("affinity", {}, None, 0.23),
    ("agglomerative", {"threshold": 0.05}, RIGHT_ANGLES, -0.24),
    ("agglomerative", {"threshold": 0.05}, PULLING_APART, 0),
]


@pytest.mark.parametrize("name, options, directions, ari", PRINTED)
def test_the_wrong_sign_gives_the_papers_numbers_on_clear_clusters(name, options, directions, ari):
    """In Table 1, OCFL-AFF has 0.23, and BCL has −0.24 · 30/50 or a dash.

    These are the balanced splits with 15 clients of three data sets.
    """
    gamma, truth = blocks((5, 5, 5), directions=directions)
    corrected = clustering.make(name, **options).fit_predict(gamma)
    wrong = clustering.make(name, **options, wrong_sign=True).fit_predict(gamma)
    assert adjusted_rand_score(truth, corrected) == 1
    assert adjusted_rand_score(truth, wrong) == pytest.approx(ari, abs=0.005)


def test_affinity_propagation_that_does_not_settle_still_answers(monkeypatch):
    """Scikit-learn warns and returns the labels of the last messages; so do we."""
    monkeypatch.setattr(clustering, "STRONGER", 0.5)  # the second try is the first one again
    gamma, _ = blocks((5, 5, 5), noise=1.0, seed=93)
    theirs = SklearnAffinityPropagation(affinity="precomputed", random_state=0)
    with pytest.warns(ConvergenceWarning, match="may return degenerate"):
        labels = theirs.fit_predict(-gamma)
    with pytest.warns(ConvergenceWarning, match="nor with 0.5: the labels are those of the last"):
        ours = clustering.make("affinity").fit_predict(gamma)
    assert ours.max() > 0
    assert adjusted_rand_score(labels, ours) == 1


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("angle", [90, 1])
@pytest.mark.parametrize("seed", range(3))
def test_roundings_decide_no_cluster(dtype, angle, seed):
    """Updates of a group are parallel, and differ by the rounding of their lengths alone."""
    rng = np.random.default_rng(seed)
    first, other = np.linalg.qr(rng.normal(size=(5000, 2)))[0].T
    second = np.cos(np.radians(angle)) * first + np.sin(np.radians(angle)) * other
    lengths = rng.uniform(0.2, 1.2, size=(10, 1))
    updates = lengths * np.repeat([first, second], 5, axis=0)
    gamma = cosine_divergence(updates.astype(dtype))
    levels = clustering.levelled(gamma)
    assert len(np.unique(levels)) == 2 and abs(levels - gamma).max() < 3e-6
    for name in ("hdbscan", "meanshift", "affinity", "kmeans"):
        options = {"n_clusters": np.int64(2)} if name == "kmeans" else {}
        labels, note = clustering.make(name, **options).answer(gamma)
        assert labels.tolist() == [0] * 5 + [1] * 5 and note is None, name


@given(st.integers(2, 40), st.integers(0, 1000), st.sampled_from([1.0, 90.0]))
def test_levels_keep_what_can_be_told_apart(m, seed, scale):
    gamma = scale * np.random.default_rng(seed).uniform(size=(m, m))
    levels = clustering.levelled(gamma)
    limit = 3 * clustering.UPDATE_ROUNDING * max(1, scale)
    assert (levels <= gamma).all() and abs(levels - gamma).max() < limit
    order = np.argsort(gamma.ravel())
    assert (np.diff(levels.ravel()[order]) >= 0).all()


TIE = np.array([[0.0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]])


WITH_TIES = [
    ("agglomerative", {"n_clusters": 3}, TIE, clustering.TIED),
    ("kmeans", {"n_clusters": 3}, TIE, clustering.TIED),
    ("kmeans", {"n_clusters": 2}, TIE, None),
    ("kmeans", {"n_clusters": 4}, np.zeros((3, 3)), "k-means found 1 clusters of 4"),
    ("hdbscan", {}, blocks((5, 5, 5))[0], None),
]


@pytest.mark.parametrize("name, options, distance, note", WITH_TIES)
def test_an_answer_that_rests_on_the_order_of_clients_says_so(name, options, distance, note):
    answered = clustering.make(name, **options).answer(distance)[1]
    assert answered is None if note is None else note in answered


def test_k_means_has_the_same_clusters_with_any_number_of_threads():
    gamma = np.where(np.subtract.outer(*[np.repeat(range(3), 5)] * 2) == 0, 0.1, 0.8)
    gamma[10:, :5] = gamma[:5, 10:] = 0.1
    np.fill_diagonal(gamma, 0)
    labels = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads, user_api="openmp"):
            labels.append(clustering.make("kmeans").fit_predict(gamma).tolist())
    assert labels[0] == labels[1] == labels[2]


def near_twins(sizes, seed):
    """Build distances of clients that are within 0.01 in a group, and at 1 between groups."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    gamma = np.where(truth[:, None] == truth, 0, 1.0)
    gamma += 0.01 * np.abs(np.random.default_rng(seed).normal(size=gamma.shape))
    np.fill_diagonal(gamma, 0)
    return (gamma + gamma.T) / 2, truth


def test_affinity_propagation_that_oscillates_tries_again_and_says_so():
    notes = []
    for seed in range(10):
        gamma, truth = near_twins((7, 14, 9), seed)
        labels, note = clustering.make("affinity").answer(gamma)
        assert labels.tolist() == truth.tolist()
        notes.append(note)
    told = "affinity propagation did not converge with damping 0.5"
    assert set(notes) == {None, f"{told}, but with 0.9"}
    ocfl = methods.make("ocfl", clusterer="affinity")
    ocfl.scalars = {}
    ocfl.clusters(near_twins((7, 14, 9), seed=notes.index(f"{told}, but with 0.9"))[0])
    assert ocfl.scalars == {"clustering_note": f"{told}, but with 0.9"}, "which a record keeps"
    gamma = (2 - near_twins((7, 14, 9), seed=1)[0]) * (1 - np.eye(30))
    assert clustering.make("affinity", wrong_sign=True).answer(gamma)[1] == told


@pytest.mark.parametrize("seed", range(3))
def test_the_seed_decides_as_in_scikit_learn(seed):
    """Four clients on a circle have no best exemplars, and without clear clusters starts matter."""
    circle = np.array([[0.0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]])
    theirs = SklearnAffinityPropagation(affinity="precomputed", random_state=seed)
    ours = clustering.make("affinity", seed=seed)
    assert adjusted_rand_score(theirs.fit_predict(-circle), ours.fit_predict(circle)) == 1
    gamma, _ = blocks((10, 10, 10), noise=9.0)
    theirs = SklearnKMeans(6, n_init=10, random_state=seed).fit_predict(gamma)
    ours = clustering.make("kmeans", n_clusters=6, seed=seed).fit_predict(gamma)
    assert adjusted_rand_score(theirs, ours) == 1


@pytest.mark.slow
@settings(max_examples=30)  # each takes a third of a second
@given(st.floats(0.01, 1), st.integers(0, 1000))
def test_mean_shift_is_scikit_learns_on_the_rows(noise, seed):
    gamma, _ = blocks((5, 5, 5), noise, seed)
    theirs = SklearnMeanShift().fit_predict(gamma)
    assert adjusted_rand_score(theirs, clustering.make("meanshift").fit_predict(gamma)) == 1


@given(
    st.sampled_from([(5, 5, 5), (3, 7, 5), (10, 10, 10), (7, 14, 9)]),
    st.floats(0.05, 0.5),
    st.integers(0, 10_000),
)
def test_hdbscan_agrees_with_scikit_learns_which_the_authors_used(sizes, noise, seed):
    """With noise above 0.5, ties let single clients differ in 16 of 3,000 matrices."""
    gamma, _ = blocks(sizes, noise, seed)
    size = round(0.2 * len(gamma))
    theirs = SklearnHDBSCAN(min_cluster_size=size, metric="precomputed", copy=True)
    expected = theirs.fit_predict(gamma)
    for implementation in ("hdbscan", "scikit-learn"):
        ours = clustering.make("hdbscan", implementation=implementation).fit_predict(gamma)
        assert adjusted_rand_score(expected, ours) == 1


def test_without_hdbscan_scikit_learn_answers_and_says_so(monkeypatch):
    gamma, truth = blocks((5, 5, 5))
    monkeypatch.setitem(sys.modules, "hdbscan", None)
    labels, note = clustering.make("hdbscan").answer(gamma)
    assert adjusted_rand_score(truth, labels) == 1 and note == clustering.MISSING
    assert clustering.make("hdbscan", implementation="scikit-learn").answer(gamma)[1] is None


POLICIES = [
    ("own cluster", [0, 0, 1, 1, -1, -1], [-1] * 6),
    ("singletons", [0, 0, 1, 1, 2, 3], [0, 1, 2, 3, 4, 5]),
    ("nearest", [0, 0, 1, 1, 0, 1], [-1] * 6),
]


@pytest.mark.parametrize("policy, expected, all_noise", POLICIES)
def test_noise_policies(policy, expected, all_noise):
    distance = np.ones((6, 6)) - np.eye(6)
    distance[4, :2] = distance[5, 2:4] = 0.5
    distance[4, 2] = 0.1  # the mean distance counts, not the smallest
    for labels, assigned in (([0, 0, 1, 1, -1, -1], expected), ([-1] * 6, all_noise)):
        found = clustering.assign_noise(distance, np.array(labels), policy)
        assert found.tolist() == assigned


# Agglomerative clustering has no default for its threshold
NEEDED = {"agglomerative": {"threshold": 0.5}}
MADE = {name: clustering.make(name, **NEEDED.get(name, {})) for name in clustering.CLUSTERERS}
every = pytest.mark.parametrize("clusterer", MADE.values(), ids=MADE)


@every
@pytest.mark.parametrize("distance", [np.zeros((1, 1)), np.zeros((2, 2)), np.zeros((15, 15))])
def test_clients_that_do_not_differ_are_one_cluster(clusterer, distance):
    assert set(clusterer.fit_predict(distance).tolist()) == {0}


@pytest.mark.slow
@every
@settings(max_examples=40)
@given(seed=st.integers(0, 1000), m=st.integers(1, 12))
def test_any_distances_give_labels_in_order_of_appearance(clusterer, seed, m):
    vectors = np.random.default_rng(seed).normal(size=(m, 3))
    gamma = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    labels = clusterer.fit_predict(gamma).tolist()
    assert len(labels) == m
    assert list(dict.fromkeys(labels)) == list(range(max(labels) + 1))


BAD_OPTIONS = [
    ("dbscan", {}, "unknown clusterer 'dbscan'; choose from hdbscan, kmeans"),
    ("hdbscan", {"eps": 1}, "'hdbscan': eps: Unexpected keyword argument"),
    ("hdbscan", {"min_cluster_size": 1}, "min_cluster_size: .* greater than or equal to 2"),
    ("agglomerative", {}, "give either threshold or n_clusters, not both"),
    ("agglomerative", {"threshold": 0.5, "n_clusters": 2}, "either threshold or n_clusters"),
]


@pytest.mark.parametrize("name, options, message", BAD_OPTIONS)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        clustering.make(name, **options)


NO_DISTANCES = [
    (np.full((3, 3), np.nan), "NaN"),
    (np.zeros((3, 2)), "square"),
    (np.eye(3), "has 1 on its diagonal, .* of cosine similarities s, 1 - s are distances"),
    (np.eye(3) - 1, "has -1, but distances are 0 or more"),
    (np.triu(np.ones((3, 3)), 1), r"not symmetric: .* by up to 1; \(d \+ d.T\) / 2 is symm"),
]


@every
@pytest.mark.parametrize("distance, message", NO_DISTANCES)
def test_what_is_no_matrix_of_distances_is_refused(clusterer, distance, message):
    with pytest.raises(ValueError, match=message):
        clusterer.fit_predict(distance)
    with pytest.raises(ValueError, match=message):
        clustering.merge_heights(distance)


@given(st.integers(0, 1000), st.sampled_from([1e-9, 1e-3, 1.0, 1e3]))
def test_distances_with_the_errors_of_float32_are_taken(seed, scale):
    vectors = np.random.default_rng(seed).normal(size=(6, 40)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.einsum("ik,jk->ij", vectors, vectors)
    for distance in (1 - cosines, np.degrees(np.arccos(cosines.clip(-1, 1)))):
        assert len(checked_distances(np.float32(scale) * distance)) == 6


@pytest.mark.slow
@settings(max_examples=25)
@given(st.permutations(range(6)), st.sampled_from([0.0, 0.1]))
def test_mean_shift_finds_pairs_of_few_clients_in_any_order(order, near):
    pairs = np.repeat([0, 1, 2], 2)[list(order)]
    gamma = np.where(pairs[:, None] == pairs, near, 1.0)
    np.fill_diagonal(gamma, 0)
    assert adjusted_rand_score(pairs, clustering.make("meanshift").fit_predict(gamma)) == 1
