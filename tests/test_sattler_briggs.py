"""Tests of OCFL and of its two baselines on updates made by hand."""

import math
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from cflkit import methods
from cflkit.divergence import cosine_divergence, pairwise, temperature
from cflkit.federation import Jobs
from cflkit.methods.baselines import sattler

# Two groups of clients with opposite updates, whose mean is small but not zero
OPPOSED = torch.tensor([[3.0, 0.1], [3.0, -0.1], [3.0, 0.0], [-3.0, 0.1], [-3.0, -0.1]])
# Four directions, of which the two in the middle have the smallest angle
FAN = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in (0.0, 0.5, 0.9, 1.45)])
NEVER = 10**6
LINKAGES = ("single", "average", "complete")
METRICS = ("cosine", "euclidean", "manhattan")


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


# --- OCFL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"p": 1}, {"p": 3}, {"scale": 5.0}])
def test_ocfl_measures_the_temperature_by_its_norm_and_scale(options):
    method = play(methods.make("ocfl", **options), OPPOSED)
    expected = temperature(cosine_divergence(OPPOSED), **options)
    assert method.temperatures == pytest.approx([expected])


def test_ocfl_keeps_the_distances_of_its_first_and_last_look_and_looks_no_more():
    method = methods.make("ocfl", clusterer="kmeans", options={"n_clusters": 2})
    for t, updates in enumerate([OPPOSED, OPPOSED.abs(), OPPOSED]):
        play(method, updates, start=t)
        assert ("distances" in method.scalars) == (t != 1)
    assert method.labels.tolist() == [0, 0, 0, 1, 1]
    kept = [float(own) for own in method.scalars["distances"].split("|")]
    assert kept == pytest.approx(cosine_divergence(OPPOSED).ravel().tolist(), rel=1e-3, abs=1e-6)
    play(method, OPPOSED, start=3)
    assert len(method.temperatures) == 3
    assert method.scalars == {}


# --- Sattler et al. ------------------------------------------------------------------------------


def test_a_stationary_incongruent_cluster_is_split_and_its_halves_go_on_from_it():
    method = play(make(), OPPOSED)
    assert method.labels.tolist() == [0, 0, 0, 1, 1]
    torch.testing.assert_close(method.models, torch.tensor([[3.0, 0.0], [-3.0, 0.0]]))
    assert (method.scalars["eps1"], method.scalars["eps2"]) == (1.0, 2.0)
    assert method.scalars["mean_norm"] == "0.6"
    assert float(method.scalars["max_norm"]) == pytest.approx(math.hypot(3, 0.1), abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [{"eps1": 0.5}, {"eps2": 4.0}, {"min_rounds": 1}],
    ids=["not stationary", "no large update", "too early"],
)
def test_each_condition_alone_prevents_a_split(options):
    method = play(make(**options), OPPOSED)
    assert method.labels.tolist() == [0] * 5
    torch.testing.assert_close(method.models, OPPOSED.mean(dim=0)[None])


def test_splitting_goes_on_within_the_parts():
    corners = torch.tensor([[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0]]).repeat_interleave(3, 0) * 3
    jitter = 0.1 * torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    method = play(make(eps1=2.5), corners + jitter, rounds=4)
    together = method.labels[:, None] == method.labels
    assert all(together[3 * c : 3 * c + 3, 3 * c : 3 * c + 3].all() for c in range(4))
    assert int(method.labels.max()) == 3
    assert len(method.scalars["mean_norm"].split("|")) == 4


def test_the_papers_rule_for_the_thresholds():
    assert sattler.recommended_thresholds([1.0, 4.0, 2.0]) == (0.4, 4.0)
    with pytest.raises(ValueError, match="norm of at least one round"):
        sattler.recommended_thresholds([])
    method = make(eps1=None, eps2=None, min_rounds=NEVER)
    play(method, OPPOSED)
    play(method, OPPOSED / 2, start=1)
    assert (method.scalars["eps1"], method.scalars["eps2"]) == pytest.approx((0.06, 0.6))


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
    sizes = np.arange(1.0, 6.0)
    for cluster, members in enumerate(([0, 1, 2], [3, 4])):
        mean = np.average(OPPOSED[members], axis=0, weights=sizes[members])
        np.testing.assert_allclose(method.models[cluster], before + mean, rtol=1.3e-6, atol=1e-5)
    assert len(method.scalars["merge_heights"].split("|")) == 4
    labels = method.labels.clone()
    play(method, -OPPOSED.flip(0), start=3)
    assert torch.equal(method.labels, labels)
    assert method.scalars == {}


CUTS = [
    *((OPPOSED, {"threshold": cut}, found) for cut, found in ((0.5, 2), (2.0, 1), (1e-9, 5))),
    (OPPOSED, {"wrong_sign": True}, 1),
    *((FAN, {"threshold": 0.3, "linkage": own}, n + 1) for n, own in enumerate(LINKAGES)),
    *((FAN, {"threshold": 0.45, "metric": own}, n + 2) for n, own in enumerate(METRICS)),
]


@pytest.mark.parametrize("updates, options, clusters", CUTS)
def test_what_a_cut_finds(updates, options, clusters):
    assert int(play(briggs(rounds=0, **options), updates).labels.max()) + 1 == clusters


@pytest.mark.parametrize("include_buffers", [False, True])
def test_large_buffers_hide_the_groups_and_keep_norms_up_if_they_are_compared(include_buffers):
    """Averaging cannot cancel what all clients count alike, as batches."""
    options = {"include_buffers": include_buffers}
    one, other = briggs(rounds=0, **options), make(min_rounds=NEVER, **options)
    third = methods.make("ocfl", **options)
    for method in (one, other, third):
        method.setup(federation(5, width=2), torch.zeros(3))
        play(method, torch.cat([OPPOSED, torch.full((5, 1), 1000.0)], dim=1))
    assert int(one.labels.max()) + 1 == (1 if include_buffers else 2)
    assert (other.mean_norms[0] >= 1000) == (third.temperatures[0] < 0.01) == include_buffers


@pytest.mark.parametrize(("metric", "scipys"), [("euclidean", None), ("manhattan", "cityblock")])
@given(seed=st.integers(0, 100))
def test_distances_are_scipys(metric, scipys, seed):
    vectors = np.random.default_rng(seed).normal(size=(7, 30))
    expected = squareform(pdist(vectors, scipys or metric))
    np.testing.assert_allclose(pairwise(vectors, metric), expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"clients \[1\] are not finite"):
        pairwise(np.where(np.arange(7)[:, None] == 1, np.inf, vectors), metric)


# --- Unusual updates -----------------------------------------------------------------------------

AT_ONCE = {"before": -math.inf}
CLUSTERING = {"sattler": make, "briggs": partial(briggs, rounds=0)}
for name in ("hdbscan", "kmeans", "meanshift", "affinity"):
    CLUSTERING[f"ocfl, {name}"] = partial(methods.make, "ocfl", clusterer=name, **AT_ONCE)
each = pytest.mark.parametrize("method", CLUSTERING)


@each
def test_two_opposed_clients_stay_or_part(method):
    done = play(CLUSTERING[method](), OPPOSED[[0, 4]])
    parted = method in {"briggs", "ocfl, kmeans", "ocfl, meanshift", "ocfl, affinity"}
    assert len(done.models) == (2 if parted else 1)
    expected = OPPOSED[[0, 4]] if parted else OPPOSED[[0, 4]].mean(0)[None]
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
    assert across(sattler.bipartition(updates).numpy()) == found["complete"], "by default"
