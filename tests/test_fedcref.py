"""Tests of FedCRef: its parts against brute force and by hand, and the whole method on digits."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rounds import first_jobs, watched
from torch.nn.utils import vector_to_parameters

from cflkit import metrics, models, partition, simulation
from cflkit.federation import Federation, LocalTraining, Privacy
from cflkit.methods import fedcref, fedcref_measures, fedcref_variants
from cflkit.methods import sample_clustering as first
from cflkit.methods.fedcref_variants import Alone, FedCRefVariant, PerfectAssociations
from cflkit.reproduce import ledger, papers
from cflkit.reproduce.parameters import ParameterError
from cflkit.simulation import loop

QUICK = LocalTraining(epochs=30, batch_size=16, optimizer="adam", lr=1e-3)
AUTOENCODERS = "autoencoder", QUICK
OPTIONS = FedCRefVariant(
    start=(), theta=0.35, local=QUICK, federated=replace(QUICK, epochs=5), rounds=3
)
# For what does not depend on how well networks are trained
BRIEF = replace(OPTIONS, local=replace(QUICK, epochs=3))
errors_ = st.floats(0, 1, allow_subnormal=False)


@pytest.fixture(scope="module")
def system(small):
    """Make five clients with two or three of the first four digits; other classes are too rare."""
    rare = 4 + torch.arange(len(small.labels)) % 50
    labels = torch.where(small.labels < 4, small.labels, rare)
    kinds = {"samples_per_class": 100, "max_classes": 3, "at_least": 100, "overlap": 0.7}
    images = replace(small, labels=labels, classes=54)
    return partition.class_mixtures(images, clients=5, **kinds, seed=2)[1]


@pytest.fixture
def federation(small, system):
    return Federation(small, system, *AUTOENCODERS, engine="stacked", device="cpu")


@pytest.fixture
def dealt(small, system):
    return first.first_clusters("dirty-uniform", small, system, dirtiness=0.3, seed=1)


def of_kind(kind, options, **more):
    """Build another kind of FedCRef with the same options."""
    return kind(**{f.name: getattr(options, f.name) for f in fields(options)} | more)


def begin(federation, dealt, kind=FedCRefVariant, **options):
    """Build the method and set it up, before its first iteration."""
    method = of_kind(kind, OPTIONS, start=dealt, **options)
    method.setup(federation.server, federation.initial())
    return method


def iterate(federation, method):
    federation.converse(method.round(method.iteration))


def run(lines, federation, dealt, iterations, **given):
    """Run variants, given by their options; return the history and the methods."""
    made = {name: replace(options, start=dealt) for name, options in lines.items()}
    history = simulation.run(made, federation, iterations, progress=False, **given)
    return history, made


def truth_of(federation):
    return [federation.targets(client, "train") for client in range(federation.clients)]


# --- The systems ---------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    clients=st.integers(1, 12),
    samples=st.integers(1, 40),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    unique=st.booleans(),
    seed=st.integers(0, 99),
)
def test_clients_hold_as_many_of_each_class(pool_of, clients, samples, overlap, unique, seed):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 500))
    kinds = {"clients": clients, "samples_per_class": samples, "overlap": overlap}
    _, made = partition.class_mixtures(pool_of(labels), **kinds, unique=unique, seed=seed)
    sets = []
    for indices in made.train:
        assert len(np.unique(indices)) == len(indices)
        classes, counts = np.unique(labels[indices], return_counts=True)
        assert 2 <= len(classes) <= 3
        assert (counts == samples).all()
        sets.append(tuple(classes))
    assert not unique or len(set(sets)) == clients
    assert [made.clusters[sets.index(s)] for s in sets] == made.clusters.tolist()
    # 500 images are enough for 12 clients of 40, so clients share only what they should share
    for one, other in itertools.combinations(range(clients), 2):
        common = np.intersect1d(made.train[one], made.train[other])
        both = set(sets[one]) & set(sets[other])
        assert len(common) == len(both) * round(overlap * samples)


def test_a_class_that_runs_out_is_dealt_anew(pool_of):
    images = pool_of(np.repeat(np.arange(4), 10))
    _, made = partition.class_mixtures(images, clients=6, samples_per_class=8, seed=0)
    assert {len(np.unique(i)) for i in made.train} == {16}
    assert len(np.unique(np.concatenate(made.train))) > 24
    assert made.recipe["samples_per_class"] == 8


IMPOSSIBLE = [
    ({"clients": 0}, "needs clients"),
    ({"overlap": 1.5}, "overlap in"),
    ({"samples_per_class": 11}, "a class of 10 samples"),
    ({"clients": 7}, "7 clients cannot differ in classes: there are 6 sets"),
    ({"min_classes": 3, "max_classes": 2}, "cannot hold 3 to 2 of the 4 classes"),
    ({"at_least": 11}, "2 to 0 of the 0 classes with 11 samples"),
]


@pytest.mark.parametrize("options, message", IMPOSSIBLE)
def test_impossible_systems_are_refused(pool_of, options, message):
    given_ = {"clients": 3, "samples_per_class": 5} | options
    with pytest.raises(partition.PartitionError, match=message):
        partition.class_mixtures(pool_of(np.repeat(np.arange(4), 10)), **given_)


# --- Initial clusterings --------------------------------------------------------------------------


@given(st.integers(2, 5), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 99))
def test_dirt_is_as_frequent_as_it_says(k, dirtiness, seed):
    classes = np.repeat(10 * np.arange(k), 600)
    labels = first.dirty_uniform(classes, dirtiness, seed)
    wrong = labels != classes // 10
    assert wrong.mean() == pytest.approx(dirtiness, abs=0.06)
    if dirtiness:  # all other clusters are equally likely
        counts = np.bincount(labels[:600], minlength=k)[1:]
        assert counts == pytest.approx(600 * dirtiness / (k - 1), abs=80)


@pytest.mark.slow
def test_real_clusterings_find_what_is_plain_and_one_pretraining_serves_all_numbers():
    generator, truth = np.random.default_rng(0), np.repeat(np.arange(3), 60)
    samples = generator.random((3, 16))[truth] + 0.03 * generator.normal(size=(180, 16))
    dec = first.DEC((12, 4), layer_steps=60, whole_steps=120, updates=5)
    labels = dec.fit_predict(samples, 3, 0)
    for found in (first.kmeans(samples, 3, 0), labels):
        assert metrics.clustering_accuracy(truth, found) > 0.97
    each = dec.fit_each(samples, (4, 3), 0)
    assert list(each) == [4, 3] and each[3].tolist() == labels.tolist()


def fit_quickly(**options):
    """Cluster random samples by a small DEC."""
    samples = np.random.default_rng(0).random((30, 5))
    return first.DEC((8, 2), layer_steps=2, whole_steps=2, **options).fit_predict(samples, 3, 0)


def test_dec_drops_units_in_layers_alone_and_refines_slowly(monkeypatch, no_draws):
    """Embeddings may be negative, and all draws are from the seed."""
    rates, networks, adam, train = [], [], torch.optim.Adam, first.DEC.train

    def watched(dec, network, values, steps):
        networks.append(network)
        train(dec, network, values, steps)

    monkeypatch.setattr(first.DEC, "train", watched)
    monkeypatch.setattr(torch.optim, "Adam", lambda p, lr: rates.append(lr) or adam(p, lr))
    fit_quickly(lr=0.01, updates=1, dropout=0.4)
    assert rates == pytest.approx([0.01] * 3 + [0.001])  # two layers, the whole, the last phase
    dropped = [[p.p for p in net.modules() if isinstance(p, torch.nn.Dropout)] for net in networks]
    assert dropped == [[0.4], [0.4], []]
    samples = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 5))).float()
    assert networks[-1][:2](samples).min() < 0


def test_dec_ends_when_few_labels_change(monkeypatch):
    targets, target_distribution = [], first.target_distribution
    monkeypatch.setattr(
        first, "target_distribution", lambda q: targets.append(q) or target_distribution(q)
    )
    fit_quickly(updates=4, lr=1e-9)  # with which nothing changes
    assert len(targets) == 1
    targets.clear()
    fit_quickly(updates=4, tolerance=-1.0)  # which no change is below
    assert len(targets) == 4, "one target per pass over the samples"


def test_soft_assignment_and_its_target_by_hand():
    points, centres = torch.tensor([[0.0], [3.0]]), torch.tensor([[0.0], [2.0]])
    kernel = np.array([[1, 1 / 5], [1 / 10, 1 / 2]])
    expected = kernel / kernel.sum(axis=1, keepdims=True)
    q = first.soft_assignment(points, centres)
    np.testing.assert_allclose(q, expected, rtol=1e-6)
    p = expected**2 / expected.sum(axis=0)
    p = p / p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(first.target_distribution(q), p, rtol=1e-6)


def test_clients_with_the_same_samples_do_not_have_the_same_dirt(small, system):
    twins = replace(system, train=[system.train[0]] * 5)
    dealt = first.first_clusters("dirty-uniform", small, twins, dirtiness=0.5)
    assert len({tuple(labels.tolist()) for labels in dealt}) == 5


def test_each_client_gets_as_many_clusters_as_it_has_classes(small, system):
    found = first.first_clusters("k-means", small, system)
    for own, labels in zip(system.train, found, strict=True):
        assert len(np.unique(labels)) == len(small.labels[own].unique())


def test_clusterings_that_cannot_be_made_are_refused(small, system):
    with pytest.raises(ValueError, match="unknown clustering 'kmeans'; choose from dirty-uniform"):
        first.first_clusters("kmeans", small, system)
    for classes in ([4, 4], []):
        with pytest.raises(ValueError, match=r"two classes or more, not of [01]"):
            first.dirty_uniform(classes, 0.3, 0)
    with pytest.raises(ValueError, match="from 0 on, not None"):
        first.first_clusters("k-means", small, system, seed=None)


def test_kfed_takes_the_farthest_centres_one_by_one():
    rng = np.random.default_rng(1)
    samples = [rng.normal(size=(12, 2)) for _ in range(5)]
    local = [rng.permutation(np.arange(12) % k) for k in (3, 2, 4, 1, 3)]
    numbers = [(i, c) for i, own in enumerate(local) for c in range(own.max() + 1)]
    centres = [samples[i][local[i] == c].mean(axis=0) for i, c in numbers]
    taken = centres[:3]
    for _ in range(2):
        nearest = [min(np.linalg.norm(c - t) for t in taken) for c in centres]
        taken.append(centres[nearest.index(max(nearest))])
    to = [min(range(5), key=lambda t: np.linalg.norm(c - taken[t])) for c in centres]
    wanted = [[to[numbers.index((i, c))] for c in own] for i, own in enumerate(local)]
    assert [found.tolist() for found in first.kfed(samples, local, 5)] == wanted
    assert len(set(np.concatenate(first.kfed(samples, local, 2)))) == 2


# --- Accuracy ------------------------------------------------------------------------------------


def test_accuracy_takes_noise_for_a_class_and_wants_labels():
    noisy, whole = [-1, -1, 0], [0, 1, 2]
    assert metrics.clustering_accuracy(noisy, whole) == pytest.approx(2 / 3)
    assert metrics.clustering_accuracy(whole, noisy) == pytest.approx(2 / 3)
    for labels in ([], [1]):
        with pytest.raises(ValueError, match="as many labels"):
            metrics.clustering_accuracy(labels, [])


# --- Associations --------------------------------------------------------------------------------


def associate(errors, owner, samples, **options):
    """Associate clusters, given the errors of all models on the samples of each client."""
    method = FedCRefVariant(start=(), **options)
    method.owner, method.samples = np.array(owner), [np.array(own) for own in samples]
    return method.associated(errors)


@pytest.mark.parametrize("alpha", range(1, 101))
def test_alpha_per_cent_of_a_hundred_images_are_alpha_images(alpha):
    """Two clients have one cluster each, on whose images the errors differ by 0, 0.01, 0.02, …"""
    errors = [np.stack([np.zeros(100), np.arange(100) / 100])] * 2
    clusters = [0, 1], [np.arange(100)] * 2
    for theta, expected in (((alpha - 1) / 100, True), ((alpha - 1.5) / 100, False)):
        if theta >= 0:
            options = {"alpha": alpha, "theta": theta, "normalisation": "absolute"}
            assert associate(errors, *clusters, **options)[0, 1] == expected


@settings(max_examples=50)
@given(
    arrays(float, (5, 7), elements=errors_),
    arrays(float, (5, 6), elements=errors_),
    st.sampled_from([10.0, 50.0, 75.0, 100.0]),
    st.floats(0, 1),
    st.sampled_from(["min-max", "absolute"]),
)
@example(np.arange(5)[:, None] * np.full(7, 0.1), np.zeros((5, 6)), 75.0, 0.5, "min-max")
def test_associations_as_equation_2_says(one, other, alpha, theta, normalisation):
    """Two clients have three and two clusters; probabilities are counted sample by sample."""
    owner, samples = [0, 0, 0, 1, 1], [[0, 1, 2], [3, 4], [5, 6], [0, 5], [1, 2, 3, 4]]
    options = {"alpha": alpha, "theta": theta, "normalisation": normalisation}
    edges = associate([one, other], owner, samples, **options)
    for q, p in itertools.product(range(5), repeat=2):
        agreed = []
        for here, there in ((q, p), (p, q)):
            errors = (one, other)[owner[here]][:, samples[here]]
            gaps = np.abs(errors[here] - errors[there])
            if normalisation == "min-max" and np.ptp(gaps):
                gaps = (gaps - gaps.min()) / np.ptp(gaps)
            elif normalisation == "min-max":
                gaps = (gaps > 0).astype(float)
            agreed.append(np.sum(gaps <= theta) * 100 >= alpha * len(gaps))
        assert edges[q, p] == (all(agreed) and owner[q] != owner[p])


@given(arrays(bool, (7, 7)), st.sampled_from(["first", "best"]), st.integers(0, 99))
def test_a_pair_is_kept_if_each_is_the_first_or_best_match_of_the_other(raw, match, seed):
    owner = np.array([0, 0, 1, 1, 1, 2, 2])
    both = (raw | raw.T) & (owner[:, None] != owner[None])
    distance = np.random.default_rng(seed).random((7, 7))
    distance += distance.T

    def match_of(cluster, client):
        agreeing = np.flatnonzero(both[cluster] & (owner == client))
        ranks = agreeing if match == "first" else distance[cluster, agreeing]
        return agreeing[ranks.argmin()]

    kept = fedcref_variants.keep_one_match(both, distance, owner, match)
    for one, other in itertools.product(range(7), repeat=2):
        expected = both[one, other] and (
            match_of(one, owner[other]) == other and match_of(other, owner[one]) == one
        )
        assert kept[one, other] == expected


# --- Refinement ----------------------------------------------------------------------------------


def slow_refinement(errors, k):
    """Run Algorithm 2 sample by sample."""
    left, models, chosen, labels = set(range(errors.shape[1])), set(range(len(errors))), [], {}
    for p in range(k):
        if not left:
            break
        best = {x: min(models, key=lambda m: (errors[m, x], m)) for x in left}
        votes = {m: sum(b == m for b in best.values()) for m in models}
        winner = min(models, key=lambda m: (-votes[m], m))
        won = {x for x in left if best[x] == winner}
        labels |= dict.fromkeys(won, p)
        chosen.append(winner)
        models.remove(winner)
        left -= won
    for x in left:
        labels[x] = min(range(len(chosen)), key=lambda p: (errors[chosen[p], x], p))
    return [labels[x] for x in range(errors.shape[1])]


@given(arrays(float, (5, 8), elements=errors_), st.integers(1, 5))
def test_refinement_equals_algorithm_2_sample_by_sample(errors, k):
    assert fedcref.cluster_refine(errors, k).tolist() == slow_refinement(errors, k)


def test_more_clusters_than_models_are_refused():
    with pytest.raises(ValueError, match="3 clusters need as many models; there are 2"):
        fedcref.cluster_refine(np.ones((2, 5)), 3)


def test_a_new_cluster_gets_a_name_that_is_free():
    before, after = np.array([0, 0, 0, 2, 2]), np.array([5, 5, 1, 7, 7])
    assert metrics.renamed(before, after, first=0).tolist() == [0, 0, 1, 2, 2]


# --- Stopping ------------------------------------------------------------------------------------


COUNTS = [
    ([(10, 20), (10, 20), (10, 20)], 0.1, False),
    ([(10, 20), (10, 20), (10, 20), (10, 20)], 0.1, True),
    ([(10, 20), (11, 20), (10, 19), (10, 18)], 0.1, True),
    ([(10, 20), (12, 20), (12, 20), (12, 20)], 0.1, False),
    ([(10, 20), (10, 17), (10, 17), (10, 17)], 0.1, False),
    ([(10, 20), (10, 17), (10, 17), (10, 17)], 0.15, True),
    ([(0, 90), (9, 30), (10, 20), (10, 20), (10, 20), (10, 20)], 0.1, True),
    ([(5, 0), (5, 0), (5, 0), (5, 0)], 0.15, True),
]


@pytest.mark.parametrize("counts, isolated, expected", COUNTS)
def test_three_calm_iterations_end_a_run(counts, isolated, expected):
    assert fedcref.stable(counts, (0.1, isolated)) is expected


def test_a_run_ends_when_nobody_is_active_or_all_have_refined_enough(federation, dealt):
    method, code = (begin(federation, dealt, stop=stop) for stop in ("paper", "code"))
    assert not method.finished
    assert not code.finished
    method.refined[:] = code.refined[:] = 10
    assert code.finished
    assert not method.finished
    method.active[:] = False
    assert method.finished


# --- The whole method ----------------------------------------------------------------------------


@pytest.mark.slow
def test_dirty_clusters_become_cleaner_and_find_each_other(federation, dealt):
    history, made = run({"FedCRef": OPTIONS}, federation, dealt, 3)
    found = history.summary()["FedCRef"]
    assert found["accuracy"] > found["accuracy_start"] + 0.05
    assert found["isolated"] < found["isolated_start"]
    assert found["communities"] >= 2
    table = history.table()
    assert table["round"].tolist() == list(range(found["iterations"] + 1))
    method, told = made["FedCRef"], table.iloc[-1][["owners", "classes", "edges"]].str.split("|")
    assert told.map(len).tolist() == [len(method.edges)] * 2 + [method.edges.sum() // 2]


@pytest.mark.slow
def test_perfect_associations_are_never_wrong_and_isolate_nothing_shared(federation, dealt, small):
    truth = truth_of(federation)
    options = of_kind(PerfectAssociations, BRIEF, truth=truth, start=dealt, rounds=1)
    last = run({"P": options}, federation, dealt, 1)[0].rows[-1]
    holders = torch.cat([classes.unique() for classes in truth]).bincount()
    found = last["wrong"], last["isolated"], last["communities"]
    assert found == (0, (holders == 1).sum(), (holders > 1).sum())


@pytest.mark.slow
def test_isolated_clusters_end_a_run_without_communities(federation, dealt):
    """Without associations, clients soon become inactive.

    θ = 0 with absolute differences has the same effect as no associations.
    """
    history, made = run({"F": of_kind(Alone, BRIEF)}, federation, dealt, 6)
    assert {row["communities"] for row in history.rows} == {0}
    strict = replace(BRIEF, theta=0.0, normalisation="absolute")
    again, _ = run({"F": strict}, federation, dealt, 6, until_settled=True)
    assert again.rows == history.rows
    assert made["F"].models.shape == (0, federation.parameters)
    assert made["F"].finished
    with pytest.raises(ValueError, match=r"^F: .* without privacy"):  # before it trains
        run({"F": BRIEF}, federation.with_hooks(Privacy(1.0, 1.0)), dealt, 1)


@pytest.mark.slow
def test_a_cluster_that_vanished_does_not_end_a_run(federation, dealt):
    """A client with fewer networks than clusters wanted continues with the networks it has."""
    method = begin(federation, dealt, Alone, local=BRIEF.local)
    method.clusterings[0] = np.zeros_like(method.clusterings[0])
    iterate(federation, method)
    assert set(method.clusterings[0]) == {0}
    assert len(set(method.start[0])) > 1


def test_labels_must_fit_the_clients_also_where_a_run_goes_on(small, system, federation, dealt):
    method = begin(federation, dealt)
    again = Federation(small, system, *AUTOENCODERS, device="cpu")
    loop.move("FedCRef", method, again.server)  # the same samples in a new federation
    fewer = replace(system, train=[system.train[0][1:], *system.train[1:]])
    elsewhere = Federation(small, fewer, *AUTOENCODERS, device="cpu")
    short = [dealt[0][1:], *dealt[1:]]
    for refused in (
        lambda: loop.move("FedCRef", method, elsewhere.server),
        lambda: begin(federation, dealt[:-1]),
        lambda: begin(federation, short),
        lambda: begin(federation, dealt, PerfectAssociations),
    ):
        with pytest.raises(ValueError, match="needs labels for"):
            refused()


def test_who_changes_little_rests_and_the_rest_refine(federation, dealt):
    """With errors by which the clients' clusterings change by these shares."""
    method = begin(federation, dealt, tau=0.68)
    before = [labels.copy() for labels in method.clusterings]
    shares, agreement = (0.0, 0.1, 0.25, 0.4, 0.5), []
    method.errors = [[None] * len(before) for _ in before]
    for client, (old, share) in enumerate(zip(before, shares, strict=True)):
        k = len(np.unique(old))
        moved = np.random.default_rng(client).permutation(len(old)) < share * len(old)
        new = np.where(moved, (old + 1) % k, old)
        method.errors[client][client] = (new[None] != np.arange(k)[:, None]).astype(float)
        method.refine(client, np.ones((0, len(old))))
        agreement.append(metrics.clustering_accuracy(old, method.clusterings[client]))
        assert metrics.clustering_accuracy(new, method.clusterings[client]) == 1
    assert agreement == pytest.approx([1 - share for share in shares], abs=0.01)
    assert method.active.tolist() == [False, False, False, True, True]
    assert method.refined.tolist() == [1] * 5
    at_the_bound = begin(federation, dealt, tau=agreement[2])
    at_the_bound.errors = method.errors
    at_the_bound.refine(2, np.ones((0, len(before[2]))))
    assert not at_the_bound.active[2], "an agreement of τ is enough"
    # Each new cluster has the number of the old cluster that it matches best
    for labels, old in zip(method.clusterings, before, strict=True):
        assert all(new == name for new, name in metrics.matched(old, labels).items())


def test_who_has_other_than_as_many_clusters_goes_on(federation, dealt):
    """Though its clustering agrees with the old one to τ: it needs a network for each cluster."""
    method = begin(federation, dealt, tau=0.3)
    old = method.clusterings[0]
    method.errors = [[np.ones((len(np.unique(old)), len(old)))]]
    method.refine(0, np.zeros((1, len(old))))
    assert set(method.clusterings[0]) != set(old)
    assert metrics.clustering_accuracy(old, method.clusterings[0]) >= 0.3
    assert method.active[0]


@pytest.mark.slow
def test_errors_are_those_of_a_plain_forward_pass(federation, dealt, small, system):
    method = begin(federation, dealt, local=BRIEF.local)
    federation.converse(method.train_local_models())
    network = models.make("autoencoder", small.shape, 10)
    for owner, other in ((0, 3), (2, 2), (4, 1)):
        images = small.images[system.train[other]].float() / 255
        own = zip(method.local_models[owner], method.errors[owner][other], strict=True)
        for row, errors in own:
            vector_to_parameters(row, network.parameters())
            with torch.no_grad():
                expected = (network(images) - images.flatten(1)).square().mean(1)
            np.testing.assert_allclose(errors, expected, rtol=1e-3, atol=1e-6)


def test_every_association_of_a_cluster_without_a_class_is_wrong():
    ring = np.roll(np.eye(4, dtype=bool), 1, axis=1)
    assert fedcref_measures.wrong_share(ring | ring.T, np.array([-1, -1, 5, 5])) == 0.75


def test_a_row_has_the_mean_and_the_smallest_accuracy_of_the_clients(federation, dealt):
    [row] = fedcref_measures.clusters_of_samples({"F": begin(federation, dealt)}, federation, -1)
    each = [
        metrics.clustering_accuracy(truth, labels)
        for truth, labels in zip(truth_of(federation), dealt, strict=True)
    ]
    assert min(each) < np.mean(each) - 0.01
    assert row["accuracy"] == pytest.approx(np.mean(each))
    assert row["worst_accuracy"] == pytest.approx(min(each))


@pytest.mark.slow
def test_resting_clients_train_no_more_and_keep_a_model_for_each_cluster(federation, dealt):
    method = begin(federation, dealt, rounds=1, local=BRIEF.local)
    iterate(federation, method)
    method.active[:] = [True, False, True, False, True]
    networks, labels = list(method.local_models), list(method.clusterings)
    trained = watched(federation)
    iterate(federation, method)
    jobs, _ = trained[0]
    assert set(jobs.client_of.tolist()) == {0, 2, 4}
    for client in (1, 3):
        assert method.local_models[client] is networks[client]
        assert method.clusterings[client] is labels[client]
    for client in np.flatnonzero(~method.active):
        assert len(method.local_models[client]) == len(np.unique(method.clusterings[client]))


@pytest.mark.slow
def test_a_community_is_averaged_by_the_sizes_of_its_clusters(federation, dealt):
    method = begin(federation, dealt, rounds=1)
    members = np.array([0, len(method.owner) - 1])
    method.communities = [members]
    federation.converse(method.train_communities())
    first_model = federation.blueprint.initials(1, fedcref.COMMUNITIES, 0)
    samples = [torch.from_numpy(method.samples[k]) for k in members]
    jobs = first_jobs(federation, method.owner[members])
    jobs = jobs.replace(models=first_model, training=OPTIONS.federated, subset=samples)
    alone = federation.train(jobs, 1).numpy()
    expected = np.average(alone, axis=0, weights=[len(own) for own in samples])
    np.testing.assert_allclose(method.models[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_each_training_has_its_own_batches_and_each_iteration_new_networks(federation, dealt):
    brief = replace(QUICK, epochs=1)
    options = {"truth": truth_of(federation), "local": brief, "federated": brief}
    method = begin(federation, dealt, PerfectAssociations, rounds=2, **options)
    trained = watched(federation)
    for _ in range(2):
        method.active[:] = True
        iterate(federation, method)
    orders = [order for _, order in trained]
    assert len(set(orders)) == len(orders) == 6  # in each iteration, one of clusters and two rounds
    firsts = torch.stack([trained[number][0].models[0] for number in (0, 1, 3, 4)])
    assert len(firsts.unique(dim=0)) == 4


def test_parameters_become_options():
    values = ledger.defaults("06b_fedcref_controls") | {
        **{"clients": 3, "overlap_fraction": 0.0, "clustering": "dec", "dirtiness": 0.0},
        **{"dec_widths": [4, 2], "dec_steps": 3, "seed": 6},
        **{"normalisation": "absolute", "match": "best", "stop": "code"},
        **{"lr": 0.01, "batch_size": 8, "local_epochs": 2, "federated_epochs": 3},
    }
    run = papers.fedcref.Parameters.checked(values)
    lines = papers.fedcref.variants(run, [[0, 1]], [[7, 8]])
    options, training = lines["FedCRef"], LocalTraining(2, 8, "adam", 0.01)
    assert (options.local, options.federated) == (training, replace(training, epochs=3))
    assert (options.normalisation, options.match, options.stop) == ("absolute", "best", "code")
    assert lines["Perfect associations"] == of_kind(PerfectAssociations, options, truth=[[7, 8]])
    assert lines["Alone"] == of_kind(Alone, options)
    assert run.dec() == first.DEC((4, 2), 3, 6)
    assert run.scenario == "digits-8x8-dec-overlap0-m3"
    with pytest.raises(ParameterError, match="dirtiness must be 0 for dec"):
        papers.fedcref.Parameters.checked(values | {"dirtiness": 0.3})
