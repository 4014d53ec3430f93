"""Tests of EMD-CFL: distances against other solvers, clusters by hand, and the whole method."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from reports.thresholds import recorded_scores, true_clusters
from rounds import begin, first_jobs
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances

from cflkit import datasets, methods, simulation
from cflkit.divergence import earth_movers_distance
from cflkit.federation import Client, Federation, LocalTraining
from cflkit.methods import emd_cfl, emd_cfl_variants
from cflkit.methods.emd_cfl_clients import shared_projection
from cflkit.models.rows import blas_libraries
from cflkit.partition import shifts


@pytest.mark.parametrize("seed", range(50))
def test_distance_is_that_of_the_best_assignment_of_as_many_copies_of_all_samples(seed):
    generator = np.random.default_rng(seed)
    n, m, d = generator.integers(1, 12), generator.integers(1, 12), generator.integers(1, 6)
    a, b = generator.normal(size=(n, d)), generator.normal(size=(m, d)) + generator.normal(size=d)
    kinds = ("cosine", cosine_distances, 1e-12), ("euclidean", euclidean_distances, 1e-9)
    for cost, metric, near in kinds:
        costs = metric(np.repeat(a, m, axis=0), np.repeat(b, n, axis=0))
        expected = pytest.approx(costs[linear_sum_assignment(costs)].mean(), rel=1e-6, abs=near)
        assert earth_movers_distance(a, b, cost=cost) == expected


@pytest.mark.parametrize("sinkhorn", [None, 0.5])
@pytest.mark.parametrize("factor", [1e-300, 1e-20, 1e-12, 1e155])
def test_distances_follow_the_unit_of_the_points(factor, sinkhorn):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(60, 5)), rng.normal(size=(7, 5)) + 1
    expected = earth_movers_distance(a, b, sinkhorn)
    assert earth_movers_distance(a * factor, b, sinkhorn) == pytest.approx(expected, rel=1e-9)
    expected = earth_movers_distance(a, b, sinkhorn, "euclidean")
    scaled = sinkhorn and sinkhorn * factor
    distance = earth_movers_distance(a * factor, b * factor, scaled, "euclidean")
    assert distance / factor == pytest.approx(expected, rel=1e-9)


def test_a_regularisation_with_which_sinkhorn_does_not_converge_is_an_error():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"converge with a regularisation of 0\.0002:"):
        earth_movers_distance(rng.normal(size=(60, 9)) + 0.3, rng.normal(size=(50, 9)), 2e-4)


def test_sinkhorn_comes_near_as_regularisation_falls():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(30, 5)), generator.normal(size=(20, 5)) + 1
    exact = earth_movers_distance(a, b)
    excess = [earth_movers_distance(a, b, sinkhorn=s) - exact for s in (1.0, 0.1, 0.02)]
    assert excess[0] > excess[1] > excess[2] > 0
    assert excess[2] < 0.02 * exact


NO_DISTANCES = [
    (np.zeros((0, 2)), np.ones((3, 2)), {}, "0 sample"),
    (np.ones((3, 2)), np.ones((3, 4)), {}, "Incompatible dimension"),
    (np.ones(3), np.ones((3, 1)), {}, "Expected 2D array"),
    (np.full((2, 2), np.nan), np.ones((2, 2)), {}, "contains NaN"),
    (np.ones((2, 2)), np.ones((2, 2)), {"cost": "manhattan"}, "unknown cost 'manhattan'"),
    (np.ones((2, 2)), np.ones((2, 2)), {"sinkhorn": 0.0}, "sinkhorn must be positive"),
]


@pytest.mark.parametrize("a, b, options, message", NO_DISTANCES)
def test_distances_that_do_not_exist_are_refused(a, b, options, message):
    with pytest.raises(ValueError, match=message):
        earth_movers_distance(a, b, **options)


def test_a_zero_embedding_is_at_right_angles_to_everything():
    zeros, ones = np.zeros((4, 3)), np.ones((5, 3))
    assert earth_movers_distance(zeros, ones) == pytest.approx(1)
    assert earth_movers_distance(zeros, zeros.copy()) == pytest.approx(1)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
def test_projections_keep_distances_within_the_lemmas_bound(share):
    """By Johnson and Lindenstrauss, k ≥ 8 ln(n) / δ² dimensions keep squares within 1 ± δ."""
    points = np.abs(np.random.default_rng(1).normal(size=(40, 512)))
    matrix = shared_projection(0, 1, 2, 512, share)
    assert matrix.shape == (int(share * 512), 512)
    assert np.linalg.norm(matrix, axis=1) == pytest.approx(np.ones(len(matrix)))
    # A projection with rows of unit length multiplies squares by about k / d
    projected = points @ matrix.T * math.sqrt(512 / len(matrix))
    upper = np.triu_indices(40, 1)
    before, after = (((x[:, None] - x[None]) ** 2).sum(axis=2)[upper] for x in (points, projected))
    delta = math.sqrt(8 * math.log(40) / len(matrix))
    assert np.abs(after / before - 1).max() < delta


def test_projections_belong_to_a_pair_and_a_direction():
    draw = shared_projection
    assert np.array_equal(draw(0, 1, 2, 8, 0.5), draw(0, 1, 2, 8, 0.5))
    others = [draw(1, 1, 2, 8, 0.5), draw(0, 2, 1, 8, 0.5), draw(0, 1, 3, 8, 0.5)]
    assert not any(np.array_equal(draw(0, 1, 2, 8, 0.5), other) for other in others)


def test_one_missing_edge_splits_neighbourhoods_and_not_components():
    complete = np.kron(np.eye(2), np.ones((3, 3)))
    missing = complete.copy()
    missing[0, 2] = missing[2, 0] = 0
    whole = [0, 0, 0, 1, 1, 1], [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    apart = [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    for edges, rule, expected in (
        (complete, "neighbourhoods", whole),
        (complete, "components", whole),
        (missing, "components", whole),
        (missing, "neighbourhoods", ([0, 1, 2, 3, 3, 3], apart)),
    ):
        method = methods.make("emd-cfl-variant", clusters=rule, epsilon=0.5)
        method.scores = torch.from_numpy(1 - edges)
        method.labels, method.models = torch.zeros(6, dtype=torch.int64), torch.zeros(1, 3)
        method.cluster()
        assert (method.labels.tolist(), method.neighbourhoods.int().tolist()) == expected


# --- The whole method ----------------------------------------------------------------------------


# Of all trainings below; the tests hold with any other
SEED = 0
# In the middle of the working range, which reaches from about 0.02 to 0.12 for these clients
EPSILON = 0.06
# A rate with room: five times as much is at the edge, where rounding decides
TRAINING = LocalTraining(epochs=5, batch_size=16, lr=0.01, momentum=0.9)


@pytest.fixture(scope="module")
def federate():
    """Build federations of digits that are rotated by 90° for half of the clients."""
    images, split = shifts.make(datasets.load("digits-8x8"), "quarter-turn", clients=6, samples=150)
    usual = {"model": "emd-cnn-small", "training": TRAINING, "seed": SEED, "device": "cpu"}
    return partial(Federation, images=images, partition=split, **usual)


def aggregate(method, federation, jobs, trained):
    """Run the part of a round that follows the training."""
    everyone = torch.arange(federation.clients)
    federation.converse(method.meet(jobs.client_of, trained, everyone))
    method.average(jobs.client_of)


def client_of(federation, number):
    """Return a client as a question sees it."""
    return Client(federation.data, number, federation.data.networks[0], federation.seed)


def test_no_more_than_the_samples_asked_for_and_always_the_same(federate):
    federation = federate()
    jobs = first_jobs(federation, [0, 3])
    [some, other], again = (federation.embed(jobs, "train", 100) for _ in range(2))
    assert len(some) == len(other) == 100
    assert torch.equal(some, again[0]) and torch.equal(other, again[1])
    everything = federation.embed(jobs, "train")[0]
    apart, places = (some[:, None] - everything[None]).abs().amax(dim=2).min(dim=1)
    assert apart.max() < 1e-6
    assert len(places.unique()) == 100


def embedded_in_batches(federation, model, client, split, most=None):
    """Embed samples in training mode, batch by batch."""
    network = federation.network(model).train()
    batches = federation.data.index(split, client, most).split(federation.training.batch_size)
    with torch.no_grad():
        parts = [network.features(federation.data.samples(batch)[0]) for batch in batches]
    return torch.cat(parts).flatten(1)


@pytest.mark.slow
def test_partial_participation_clusters_who_was_seen(federate):
    federation = federate(clients_per_round=2)
    method = begin("emd-cfl", federation, epsilon=EPSILON)
    seen = set()
    for t in range(4):
        before = method.models[method.labels]
        federation.converse(method.round(t), t)
        seen |= set(federation.participants(t).tolist())
        assert (~method.scores.isnan()).sum() == len(seen) ** 2
        for client in set(range(6)) - seen:  # it is alone and has the initial model
            assert (method.labels == method.labels[client]).sum() == 1
            assert torch.equal(method.models[method.labels[client]], before[client])
    for client in seen:
        together = {c for c in seen if federation.clusters[c] == federation.clusters[client]}
        assert {c for c in range(6) if method.labels[c] == method.labels[client]} == together


def test_absent_members_count_with_what_they_trained_last(federate):
    """Two clients train, and later a third client of their cluster trains alone; by hand."""
    federation = federate(clients_per_round=2)
    method = begin("emd-cfl", federation, epsilon=0.5)

    def measure(pairs):
        method.scores = torch.where(pairs, 0.0, method.scores)
        yield from ()

    method.measure = measure
    generator = torch.Generator().manual_seed(0)
    first, later = (torch.randn(2, len(federation.initial()), generator=generator) for _ in "ab")

    for clients, trained in ([0, 1], first), ([1, 2], later):
        aggregate(method, federation, first_jobs(federation, clients), trained)
    # Distances stay those of what each client trained first
    assert torch.equal(method.embedders[:3], torch.stack([*first, later[1]]))
    last = torch.cat([first[:1], later])
    expected = np.average(last.double(), axis=0, weights=federation.sizes[:3])
    assert method.labels[0] == method.labels[1] == method.labels[2] != method.labels[3]
    np.testing.assert_allclose(method.models[method.labels[2]], expected, rtol=1e-4, atol=1e-5)


def test_a_client_that_joins_is_compared_by_the_first_models_of_the_others(federate):
    """A run that goes on in the federation with everybody is that of one table of presence."""
    federation = federate(training=LocalTraining(epochs=1, batch_size=16, lr=0.01))
    rows = torch.ones(2, 6, dtype=torch.bool)
    rows[0, 5] = False
    joined, usual = methods.make("emd-cfl"), methods.make("emd-cfl")
    before = simulation.run({"": joined}, federation.with_presence(rows[:1]), 1, progress=False)
    simulation.run({"": joined}, federation, 2, after=before, progress=False)
    simulation.run({"": usual}, federation.with_presence(rows), 2, progress=False)
    assert torch.equal(joined.scores, usual.scores)


@pytest.mark.slow
def test_the_tables_oracle_is_the_oracle_if_all_take_part_and_waits_if_not(federate):
    everyone, some = (federate(model="linear", clients_per_round=count) for count in (None, 2))
    truth = everyone.clusters
    line_up = {"plain": methods.make("oracle", truth=truth)}
    for name, epsilon in ("wide", 2.5), ("tables", 0.0):  # no threshold takes the truth from it
        line_up[name] = methods.make("emd-cfl-oracle", truth=truth, epsilon=epsilon)
    simulation.run(line_up, everyone, 2, progress=False)
    assert all(torch.equal(line_up["plain"].models, made.models) for made in line_up.values())
    method = line_up["tables"]
    assert not len(method.latest) and not len(method.embedders), "nothing will need them again"
    without = dataclasses.replace(everyone.partition, more={})
    home = federate(partition=without, model="linear", training=LocalTraining(epochs=1))
    simulation.run({"tables": method}, home, 1, progress=False)  # without validation
    waiting = methods.make("emd-cfl-oracle", truth=some.clusters)
    simulation.run({"tables": waiting}, some, 1, progress=False)
    assert len(waiting.labels.unique()) >= 5
    present = some.participants(0)
    together = some.clusters[present[0]] == some.clusters[present[1]]
    assert (waiting.labels[present[0]] == waiting.labels[present[1]]) == together


@pytest.mark.slow
def test_options_reach_the_distances(federate, normalised):
    """Test one score: BatchNorm in training mode, Sinkhorn's distance, and few samples."""
    federation = federate(model=normalised)
    options = {"train_mode": True, "max_samples": 20, "sinkhorn": 0.1, "projection": 0.5}
    method = begin("emd-cfl-variant", federation, **options)
    jobs = method.broadcast(0)
    trained, usual = federation.train(jobs, 0), federation.embed(jobs)
    aggregate(method, federation, jobs, trained)
    assert all(map(torch.equal, federation.embed(jobs), usual)), "the mode has no lasting effect"
    owner, other = 4, 2
    train, own, theirs = (
        embedded_in_batches(federation, trained[owner], client, split, 20)
        for client, split in ((owner, "train"), (owner, "validation"), (other, "validation"))
    )
    matrix = shared_projection(SEED, owner, other, train.shape[1], 0.5)
    a, b = (x.double().numpy() @ matrix.T for x in (train, theirs))
    reference = earth_movers_distance(train, own, 0.1)
    expected = earth_movers_distance(a, b, 0.1) - reference
    assert float(method.scores[owner, other]) == pytest.approx(expected, abs=1e-5)
    written = [float(score) for score in method.scalars["scores"].split("|")]
    assert written == pytest.approx(method.scores.flatten().tolist(), abs=5.1e-5)
    for change in ({"train_mode": False}, {"max_samples": 30}, {"sinkhorn": None}):
        changed = begin("emd-cfl-variant", federation, **options | change)
        aggregate(changed, federation, jobs, trained)
        assert abs(changed.scores - method.scores)[owner, other] > 1e-4, change


def test_as_published_a_matrix_has_columns_of_unit_length():
    for share in (0.5, 1.0):
        matrix = emd_cfl_variants.matrix(SEED, 4, 2, 128, share)
        assert matrix.shape == (128 * share, 128)
        assert np.linalg.norm(matrix, axis=0) == pytest.approx(np.ones(128))


def test_as_published_each_distance_has_its_own_samples(federate):
    federation = federate()
    [everything] = federation.embed(first_jobs(federation, [0]), "train")

    def seen(client):
        draw = emd_cfl_variants.sampler(client, federation.initial(), "train", 20, False)
        sets = [draw(0, to) for to in (1, 2, 0, emd_cfl_variants.REFERENCE)]
        places = [cosine_distances(part, everything).argmin(axis=1).tolist() for part in sets]
        assert all(len(set(part)) == 20 for part in places), "20 different samples of the client"
        return {tuple(sorted(part)) for part in places}

    client = client_of(federation, 0)
    assert len(seen(client)) == 4
    assert seen(client) == seen(client)
    assert seen(client).isdisjoint(seen(client_of(federate(seed=SEED + 1), 0)))


def test_scores_do_not_depend_on_the_number_of_cores(federate, monkeypatch):
    """The server computes each of them with one thread, as clients do."""
    federation = federate()
    seen, score = set(), emd_cfl.server_sees

    def counted(*arguments):
        seen.update(library["num_threads"] for library in blas_libraries().info())
        return score(*arguments)

    monkeypatch.setattr(emd_cfl, "server_sees", counted)
    method = begin("emd-cfl", federation, epsilon=EPSILON, max_samples=10)
    with blas_libraries().limit(limits=2):
        aggregate(method, federation, method.broadcast(0), federation.blueprint.initials(6, 3))
        assert {library["num_threads"] for library in blas_libraries().info()} == {2}
    assert seen == {1}


@pytest.mark.slow
def test_scores_of_a_record_have_the_true_clusters_where_some_clients_are_absent(committed):
    every = [past for past in committed if past.paper == "emd-cfl"]
    past = next(past for past in every if past.parameters["participants"])
    scores, truth = recorded_scores(past)
    assert np.isnan(scores).any()
    assert truth.tolist() == true_clusters(past.parameters["version"], len(truth)).tolist()
