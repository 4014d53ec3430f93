"""Tests of the two baselines on updates made by hand."""

import math
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist, squareform

from cflkit import divergence, methods
from cflkit.divergence import cosine_divergence, pairwise
from cflkit.federation import Jobs
from cflkit.methods.baselines import sattler

# Two groups of clients with opposite updates, whose mean is small but not zero
OPPOSED = torch.tensor([[3.0, 0.1], [3.0, -0.1], [3.0, 0.0], [-3.0, 0.1], [-3.0, -0.1]])
# Four directions, of which the two in the middle have the smallest angle
FAN = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in (0.0, 0.5, 0.9, 1.45)])
NEVER = 10**6


def federation(m, width=2):
    sizes = torch.arange(1.0, m + 1)
    return SimpleNamespace(clients=m, partial=False, parameters=width, sizes=sizes)


def play(method, updates, rounds=1, start=0):
    """Run rounds in which the clients answer any model with the same updates."""
    if not hasattr(method, "labels"):
        method.setup(federation(*updates.shape), torch.zeros(updates.shape[1]))
    for round in range(start, start + rounds):
        jobs = Jobs(method.models, method.labels, torch.arange(len(updates)))
        method.aggregate(round, jobs, method.models[method.labels] + updates)
    return method


def make(**options):
    return methods.make("sattler", **{"eps1": 1.0, "eps2": 2.0, "min_rounds": 0} | options)


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize(
    ("name", "options"), [("sattler", {"min_rounds": 9}), ("briggs", {"rounds": 9}), ("ocfl", {})]
)
def test_clients_count_equally_or_by_their_samples(name, options, weighting):
    method = play(methods.make(name, **options, weighting=weighting), OPPOSED)
    weights = torch.ones(5) if weighting == "equal" else torch.arange(1.0, 6.0)
    torch.testing.assert_close(method.models[0], weights @ OPPOSED / weights.sum())


# --- Sattler et al. ------------------------------------------------------------------------------


def test_the_norms_by_hand():
    mean, largest = sattler.update_norms(torch.tensor([[3.0, 4.0], [-3.0, 0.0]]))
    assert mean == 2
    assert largest == 5


def test_a_stationary_incongruent_cluster_is_split_and_its_halves_go_on_from_it():
    method = play(make(), OPPOSED)
    assert method.labels.tolist() == [0, 0, 0, 1, 1]
    torch.testing.assert_close(method.models, torch.tensor([[3.0, 0.0], [-3.0, 0.0]]))
    assert (method.scalars["eps1"], method.scalars["eps2"]) == (1.0, 2.0)
    assert method.scalars["mean_norm"] == "0.6"
    assert float(method.scalars["max_norm"]) == pytest.approx(math.hypot(3, 0.1), abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [{"eps1": 0.5}, {"eps2": 4.0}],
    ids=["not stationary", "no large update"],
)
def test_each_condition_alone_prevents_a_split(options):
    method = play(make(**options), OPPOSED)
    assert method.labels.tolist() == [0] * 5
    torch.testing.assert_close(method.models, OPPOSED.mean(dim=0)[None])


def test_the_first_split_comes_after_min_rounds():
    method = make(min_rounds=3)
    for round in range(3):
        assert len(set(play(method, OPPOSED, start=round).labels.tolist())) == 1
    assert len(set(play(method, OPPOSED, start=3).labels.tolist())) == 2


def test_splitting_goes_on_within_the_parts():
    corners = torch.tensor([[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0]]).repeat_interleave(3, 0) * 3
    jitter = 0.1 * torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    method = play(make(eps1=2.5), corners + jitter, rounds=4)
    together = method.labels[:, None] == method.labels
    assert all(together[3 * c : 3 * c + 3, 3 * c : 3 * c + 3].all() for c in range(4))
    assert int(method.labels.max()) == 3
    assert len(method.scalars["mean_norm"].split("|")) == 4


def test_zero_updates_split_nothing():
    method = play(make(), torch.zeros(5, 2), rounds=2)
    assert method.labels.tolist() == [0] * 5
    assert method.scalars["mean_norm"] == "0"


def test_updates_that_are_not_finite_are_named():
    broken = OPPOSED.clone()
    broken[3, 0] = math.nan
    with pytest.raises(ValueError, match=r"clients \[3\]"):
        sattler.bipartition(broken)


@given(st.integers(0, 1000), st.integers(3, 8), st.integers(1, 7))
def test_the_bipartition_is_optimal_where_two_groups_are_clear(seed, m, cut):
    """Among all bipartitions, the optimal one has the smallest largest similarity across."""
    cut = min(cut, m - 1)
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(8, generator=generator)
    sign = torch.ones(m, 1)
    sign[cut:] = -1
    updates = sign * direction + 0.1 * torch.randn(m, 8, generator=generator)
    similarity = 1 - cosine_divergence(updates)
    best = min(
        (set(group) for size in range(1, m) for group in combinations(range(m), size)),
        key=lambda group: similarity[np.ix_(sorted(group), sorted(set(range(m)) - group))].max(),
    )
    leaving = set(sattler.bipartition(updates).nonzero().flatten().tolist())
    assert leaving in (best, set(range(m)) - best)


def test_the_papers_rule_for_the_thresholds():
    assert sattler.recommended_thresholds([1.0, 4.0, 2.0]) == (0.4, 4.0)
    with pytest.raises(ValueError, match="norm of at least one round"):
        sattler.recommended_thresholds([])
    method = make(eps1=None, eps2=None, min_rounds=NEVER)
    play(method, OPPOSED)
    play(method, OPPOSED / 2, start=1)
    assert (method.scalars["eps1"], method.scalars["eps2"]) == pytest.approx((0.06, 0.6))


def test_batch_counters_keep_the_mean_norm_up(federate, normalised):
    """The counters count the steps of all local epochs, so averaging cannot cancel them."""
    trained = {}
    for include in (False, True):
        engine = federate(normalised)
        method = make(min_rounds=NEVER, include_buffers=include)
        method.setup(engine.server, engine.initial())
        jobs = method.broadcast(0)
        method.aggregate(0, jobs, engine.train(jobs, 0))
        trained[include] = method.mean_norms[0]
    steps = [len(engine.batches(client, 0)) for client in range(engine.clients)]
    assert trained[True] > np.mean(steps) > 5 * trained[False]


# --- Briggs et al. -------------------------------------------------------------------------------


def briggs(**options):
    return methods.make("briggs", **{"rounds": 2, "threshold": 0.5} | options)


def test_fedavg_then_one_cut_then_fedavg_in_each_cluster():
    method, fedavg = briggs(), methods.make("fedavg")
    for round in range(2):
        play(method, OPPOSED, start=round)
        play(fedavg, OPPOSED, start=round)
        assert torch.equal(method.models, fedavg.models)
        assert method.scalars == {}
    before = method.models[0].clone()
    play(method, OPPOSED, start=2)
    assert method.labels.tolist() == [0, 0, 0, 1, 1]
    sizes = torch.arange(1.0, 6.0)
    for cluster, members in enumerate(([0, 1, 2], [3, 4])):
        shares = sizes[members] / sizes[members].sum()
        expected = before + shares @ OPPOSED[members]
        torch.testing.assert_close(method.models[cluster], expected)
    assert len(method.scalars["merge_heights"].split("|")) == 4
    labels = method.labels.clone()
    play(method, -OPPOSED.flip(0), start=3)
    assert torch.equal(method.labels, labels)
    assert method.scalars == {}


@pytest.mark.parametrize(
    ("options", "clusters"),
    [({}, 2), ({"threshold": 2.0}, 1), ({"threshold": 1e-9}, 5), ({"wrong_sign": True}, 1)],
)
def test_what_a_cut_finds(options, clusters):
    method = play(briggs(rounds=0, **options), OPPOSED)
    assert int(method.labels.max()) + 1 == clusters


@pytest.mark.parametrize(
    ("options", "clusters"),
    [
        ({"threshold": 0.3, "linkage": "single"}, 1),
        ({"threshold": 0.3, "linkage": "average"}, 2),
        ({"threshold": 0.3, "linkage": "complete"}, 3),
        ({"threshold": 0.45, "metric": "cosine"}, 2),
        ({"threshold": 0.45, "metric": "euclidean"}, 3),
        ({"threshold": 0.45, "metric": "manhattan"}, 4),
    ],
)
def test_linkage_and_metric_decide_what_a_cut_finds(options, clusters):
    method = play(briggs(rounds=0, **options), FAN)
    assert int(method.labels.max()) + 1 == clusters


@pytest.mark.parametrize(("include_buffers", "clusters"), [(False, 2), (True, 1)])
def test_large_buffers_hide_the_groups_if_they_are_compared(include_buffers, clusters):
    method = briggs(rounds=0, include_buffers=include_buffers)
    method.setup(federation(5, width=2), torch.zeros(3))
    play(method, torch.cat([OPPOSED, torch.full((5, 1), 1000.0)], dim=1))
    assert int(method.labels.max()) + 1 == clusters


def test_one_client_is_one_cluster():
    method = play(briggs(rounds=0), OPPOSED[:1])
    assert method.labels.tolist() == [0]
    assert method.scalars == {"merge_heights": ""}


def test_zero_updates_have_no_direction_and_stay_apart_from_each_other():
    """Their cosine distance is 1, so a lower threshold gives singletons, a higher one a cluster."""
    assert len(play(briggs(rounds=0), torch.zeros(4, 2)).labels.unique()) == 4
    assert len(play(briggs(rounds=0, threshold=1.5), torch.zeros(4, 2)).labels.unique()) == 1


@pytest.mark.parametrize(("metric", "scipys"), [("euclidean", None), ("manhattan", "cityblock")])
@given(seed=st.integers(0, 100))
def test_distances_are_scipys(metric, scipys, seed):
    vectors = np.random.default_rng(seed).normal(size=(7, 30))
    expected = squareform(pdist(vectors, scipys or metric))
    np.testing.assert_allclose(pairwise(vectors, metric), expected, rtol=1e-9)


@pytest.mark.parametrize(("metric", "expected"), [("euclidean", 1e-3), ("manhattan", 1.0)])
def test_distances_of_long_updates_are_summed_without_loss(metric, expected, monkeypatch):
    """There are a million differences of 1e-6 in float32, in more than one chunk."""
    monkeypatch.setattr(divergence, "CHUNK", 2**19)
    near = torch.zeros(2, 10**6 + 2**20)
    near[1, -(10**6) :] = 1e-6
    np.testing.assert_allclose(pairwise(near, metric)[0, 1], expected, rtol=1e-6)


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_no_distance_between_updates_that_are_not_finite(metric):
    with pytest.raises(ValueError, match=r"clients \[1\]"):
        pairwise(torch.tensor([[1.0, 2.0], [math.inf, 0.0]]), metric)


# --- Unusual updates -----------------------------------------------------------------------------

AT_ONCE = {"before": -math.inf}
CLUSTERING = {
    "sattler": lambda: make(),
    "briggs": lambda: briggs(rounds=0),
    **{
        f"ocfl, {name}": lambda name=name: methods.make("ocfl", clusterer=name, **AT_ONCE)
        for name in ("hdbscan", "kmeans", "meanshift", "affinity")
    },
}
each = pytest.mark.parametrize("method", list(CLUSTERING))


@each
def test_a_client_alone_is_one_cluster_whose_model_it_trains(method):
    done = play(CLUSTERING[method](), OPPOSED[:1], rounds=2)
    assert done.labels.tolist() == [0]
    torch.testing.assert_close(done.models, 2 * OPPOSED[:1])


@each
def test_two_opposed_clients_stay_or_part(method):
    done = play(CLUSTERING[method](), OPPOSED[[0, 4]])
    parted = {"sattler": False, "briggs": True, "ocfl, kmeans": True, "ocfl, meanshift": True}
    parted["ocfl, affinity"] = True
    assert len(done.models) == (2 if parted.get(method, False) else 1)
    expected = OPPOSED[[0, 4]] if len(done.models) == 2 else OPPOSED[[0, 4]].mean(0)[None]
    if method != "briggs":  # Briggs weights clients by samples
        torch.testing.assert_close(done.models, expected)


@each
def test_zero_updates_leave_every_model_where_it_was(method):
    done = play(CLUSTERING[method](), torch.zeros(6, 3), rounds=2)
    assert torch.equal(done.models, torch.zeros(len(done.models), 3))
    assert done.labels.max() + 1 == len(done.models)


@each
def test_updates_with_nan_end_the_round_and_name_the_client(method):
    broken = OPPOSED.clone()
    broken[2, 1] = math.nan
    with pytest.raises(ValueError, match=r"updates of clients \[2\] are not finite"):
        play(CLUSTERING[method](), broken)


@pytest.mark.parametrize(("noise", "clusters"), [("own cluster", 1), ("singletons", 5)])
def test_ocfl_whose_clusterer_finds_noise_alone(noise, clusters):
    """No three of five clients are similar; with one cluster, OCFL continues as FedAvg."""
    apart = 3 * torch.eye(5)
    options = {"min_cluster_size": 3, "noise": noise}
    done = play(methods.make("ocfl", clusterer="hdbscan", options=options, **AT_ONCE), apart)
    assert done.clustered
    assert len(done.models) == clusters
    if clusters == 1:
        torch.testing.assert_close(done.models, apart.mean(dim=0)[None])


@pytest.mark.parametrize("seed", range(20))
def test_single_linkage_is_the_best_of_all_bipartitions(seed):
    """Try all: the paper's optimum has the smallest largest similarity across; complete has not."""
    updates = torch.from_numpy(np.random.default_rng(seed).normal(size=(7, 5)))
    similarity = 1 - cosine_divergence(updates)

    def across(leaving):
        return similarity[np.ix_(leaving, ~leaving)].max()

    halves = [np.array([*bits, False]) for bits in product([False, True], repeat=6)]
    best = min(across(half) for half in halves if half.any())
    linkages = ("single", "complete")
    found = {name: across(sattler.bipartition(updates, name).numpy()) for name in linkages}
    assert found["single"] == pytest.approx(best)
    assert found["complete"] >= best - 1e-9


@pytest.mark.parametrize("linkage", ["complete", "average"])
def test_the_bipartition_is_complete_linkages_where_linkages_differ(linkage):
    updates = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
    tree = hierarchy.linkage(squareform(cosine_divergence(updates), checks=False), linkage)
    theirs = hierarchy.fcluster(tree, 2, "maxclust") == 2
    ours = sattler.bipartition(updates).numpy()
    same = (ours == theirs).all() or (ours == ~theirs).all()
    assert same == (linkage == "complete")
