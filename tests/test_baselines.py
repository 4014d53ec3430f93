"""The baselines of EMD-CFL's comparison that assign clients to clusters."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rounds import begin, run
from scipy.spatial.distance import cdist
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics.pairwise import cosine_similarity
from test_contract import OPTIONS, SOFT, TRUTH

from cflkit import methods, simulation
from cflkit.divergence import coordinates, principal_angles
from cflkit.federation import Ask, Diverged, Jobs, without_models
from cflkit.methods.baselines import flux, pacfl
from cflkit.methods.baselines.cfl_gp import relabel
from cflkit.methods.baselines.flexcfl import direction_similarities
from cflkit.methods.baselines.questions import loss_gradient

# Options with which each method is FedAvg, and the weights of that FedAvg
ONE_MODEL = {
    **dict.fromkeys(("ifca", "cfl-gp", "fedce"), ({"k": 1}, "equal")),
    **dict.fromkeys(("fedem", "fedrc"), ({"k": 1}, "samples")),
    "pacfl": ({"angle": 180.0}, "samples"),
    "fedclust": ({"threshold": 1e6}, "samples"),
    "flexcfl": ({"k": 1, "weighting": "equal"}, "equal"),
    "fesem": ({"k": 1, "mu": 0.0}, "equal"),
    "fedsoft": ({"k": 1, "mu": 0.0, "start": "mixture"}, "samples"),
}
HARD = [name for name in ONE_MODEL if name not in SOFT]
EVERYONE = torch.arange(6)


@pytest.mark.parametrize("name", [name for name in HARD if name != "ifca"])
def test_it_finds_the_groups(name, federate_turned):
    """IFCA does so from most starts, but not from all; see below."""
    method, table = run(name, federate_turned(), **OPTIONS[name])
    assert method.labels.tolist() == TRUTH
    assert table["ari"].iloc[-1] == 1


def looked(method, federation, losses, t):
    """Let a method look at mean losses ``[m, K]`` in a round, up to its request to train."""
    talk = method.round(t)
    request = next(talk)
    assert len(request.jobs) == losses.numel()
    return talk.send(list(losses.flatten()))


def test_feddrift_isolates_who_drifts_and_merges_what_is_alike(federation):
    method = begin("feddrift", federation, threshold=0.5, start="each", period=1)
    method.models += torch.arange(6.0)[:, None]
    before = method.models
    group = torch.tensor(TRUTH)
    losses = 1.0 + (group[:, None] != group) + 0.1 * (1 - torch.eye(6))
    looked(method, federation, losses, 1)
    assert method.labels.tolist() == TRUTH, "models merge whose losses differ by 0.1, not by 1.1"
    sizes = federation.sizes[:3, None] / federation.sizes[:3].sum()
    torch.testing.assert_close(method.models[0], (sizes * before[:3]).sum(dim=0))
    kept = method.models.clone()
    now = torch.tensor([[1.0, 2.0]] * 2 + [[1.8, 1.7]] + [[2.0, 1.0]] * 2 + [[1.0, 2.0]])
    looked(method, federation, now, 2)
    assert method.labels.tolist() == [0, 0, 2, 1, 1, 0], "the third has drifted, the last changed"
    assert torch.equal(method.models[:2], kept) and len(method.models) == 3
    looked(method, federation, now[:, [0, 1, 1]] + 1, 3)
    assert method.labels.unique(return_counts=True)[1].tolist() == [1] * 6, "all have drifted"


@pytest.fixture(scope="module")
def fedavg(federate_turned):
    """Return FedAvg's model after three rounds, by its weights of the clients and who is there."""

    @cache
    def model(weighting, present):
        federation = federate_turned(clients_per_round=present)
        return run("fedavg", federation, weighting=weighting)[0].models[0]

    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "present", "weighting"),
    [
        *((name, None, None) for name in ONE_MODEL),
        *itertools.product(HARD, [None], ["equal", "samples"]),
        *itertools.product(["ifca", "pacfl"], [3], ["equal", "samples", None]),
    ],
)
def test_with_one_model_it_is_fedavg_to_the_bit(name, present, weighting, federate_turned, fedavg):
    """Clients count equally or by their samples, as told or by default, and only those there."""
    options, usual = ONE_MODEL[name]
    options = options if weighting is None else options | {"weighting": weighting}
    method, _ = run(name, federate_turned(clients_per_round=present), **options)
    assert torch.equal(method.models[0], fedavg(weighting or usual, present))
    assert name in SOFT or method.labels.tolist() == [0] * 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pacfl", {"p": 2, "split": "validation", "standardised": True}),
        ("cfl-gp", {"samples": 5}),
        *itertools.product(["fedsoft", "fedce"], [{"split": "train"}, {"split": "validation"}]),
    ],
)
def test_options_reach_the_clients(name, options, federate_turned):
    request = next(begin(name, federate_turned(), **options).round(0))
    assert options in (request.options, {"split": getattr(request, "split", None)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("pacfl", "fedclust", "emd-cfl", "emd-cfl-variant")),
        ("flexcfl", {"mixing": 0.0, "weighting": "samples"}),
    ],
)
def test_with_right_clusters_after_round_1_it_is_the_oracle(name, options, federate_turned):
    method, table = run(name, federate_turned(), **OPTIONS[name] | options)
    oracle, expected = run("oracle", federate_turned(), truth=TRUTH)
    assert torch.equal(method.models, oracle.models)
    assert table["accuracy"].equals(expected["accuracy"])
    assert table["settled"].all()


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("k", [6, 9])
def test_as_many_clusters_as_clients_or_more(name, k, federate_turned):
    options = {"pacfl": {"angle": 1e-9}, "fedclust": {"threshold": 1e-9}}.get(name, {"k": k})
    method, table = run(name, federate_turned(), **options)
    assert table["n_clusters"].max() <= 6
    if name != "ifca":  # where some models may be chosen by no one
        assert sorted(method.labels.tolist()) == list(range(6))


@pytest.mark.slow
def test_flexcfls_authors_weight_clients_by_samples_after_the_cold_start(federation):
    authors, told = (begin("flexcfl", federation, k=2, mixing=0.0) for _ in range(2))
    for t, weighting in enumerate(["equal", "samples"]):
        told.weighting = weighting
        for method in (authors, told):
            federation.converse(method.round(t), t)
        assert torch.equal(authors.models, told.models)


# --- IFCA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation"])
def test_ifca_trains_the_model_with_the_smallest_loss(split, federation):
    method = begin("ifca", federation, k=3, chosen_by=split)
    before = method.models.clone()
    assert len(before.unique(dim=0)) == 3
    federation.converse(method.round(0))
    jobs = Jobs(before, torch.arange(3).repeat(6), EVERYONE.repeat_interleave(3))
    losses = torch.stack([own.mean() for own in federation.losses(jobs, split)]).view(6, 3)
    assert method.labels.tolist() == losses.argmin(dim=1).tolist()
    trained = federation.train(Jobs(before, method.labels, EVERYONE), 0)
    for number, model in enumerate(before):
        members = method.labels == number
        expected = trained[members].mean(dim=0) if members.any() else model
        torch.testing.assert_close(method.models[number], expected, rtol=1e-5, atol=1e-6)


# --- PACFL ---------------------------------------------------------------------------------------


def test_the_papers_angles_are_those_of_singular_values_and_of_paired_columns():
    """No basis of a space changes its principal angles, but the authors' code compares columns."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        one, other = (np.linalg.svd(v)[0][:, :3] for v in rng.normal(size=(2, 9, 9)))
        largest = np.linalg.svd(one.T @ other)[1].max()
        turned = one @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
        for bases in ([one, other], [turned, other], [other, np.hstack([one, one])]):
            found = principal_angles(bases, measure="subspaces")
            assert found[0, 1] == pytest.approx(np.degrees(np.arccos(largest)))
            smallest = np.arccos(np.abs(bases[0].T @ bases[1]).max())
            assert principal_angles(bases)[0, 1] == pytest.approx(np.degrees(smallest))
        paired = [np.arccos(one[:, i] @ other[:, i]) for i in range(3)]
        found = principal_angles([one, other], signed=True, measure="trace")[0, 1]
        assert found == pytest.approx(np.degrees(np.mean(paired)))


def test_pacfl_compares_standardised_pixels_if_it_is_told_to(federate_turned):
    federation = federate_turned(model="emd-cnn-small")
    network = federation.network(federation.initial())
    found = {}
    for standardised in (False, True):
        options = {"p": 2, "split": "train", "standardised": standardised}
        nobody = without_models(torch.tensor([0]))
        request = Ask(nobody, question=pacfl.directions, options=options)
        [found[standardised]] = request.answered_by(federation, 0)
    images, labels = federation.data.samples(federation.data.index("train", 0), "train")
    for standardised, pixels in ((False, images), (True, network.standardise(images))):
        classes = [pixels.flatten(1).double()[labels == k] for k in labels.unique()]
        fits = [TruncatedSVD(2, algorithm="arpack", random_state=0).fit(part) for part in classes]
        expected = np.hstack([fit.components_.T for fit in fits])
        # Singular vectors have arbitrary signs
        assert np.abs((found[standardised] * expected).sum(axis=0)) == pytest.approx(1)
    assert principal_angles([found[False], found[True]])[0, 1] > 1


DIRECTIONS = [
    # To the third direction, the first two have angles of 45° and 25°, so 35° in the mean
    ([0, 20, 45], {}, 2),
    ([0, 20, 45], {"linkage": "single"}, 1),
    # The third direction is opposite to the second one
    ([0, 20, 200], {}, 1),
    ([0, 20, 200], {"signed": True}, 2),
]


@pytest.mark.parametrize("degrees, options, clusters", DIRECTIONS)
def test_linkage_and_signs_decide_what_pacfl_joins(degrees, options, clusters, federation):
    method = begin("pacfl", federation, angle=30.0, **options)
    bases = [np.array([[np.cos(a)], [np.sin(a)]]) for a in np.radians(degrees * 2)]
    conversation = method.cluster()
    next(conversation)
    with pytest.raises(StopIteration):
        conversation.send(bases)
    assert int(method.labels.max()) + 1 == clusters


# --- FedClust ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compared", ["last layer", "parameters", "state"])
def test_fedclust_compares_the_last_layer_or_more(compared, federate_turned):
    """Each part of the network in turn differs between the clients."""
    federation = federate_turned(model="compact-bn")
    layout, p = federation.blueprint.layout, federation.parameters
    seen = [name for name, at in layout.items() if compared == "state" or at.stop <= p]
    if compared == "last layer":
        seen = ["classifier.weight", "classifier.bias"]
    found = []
    for name, at in layout.items():
        method = begin("fedclust", federation, compared=compared)
        trained = federation.initial().repeat(6, 1)
        trained[:, at] += 9 * torch.arange(6.0)[:, None]
        method.cluster(trained)
        if len(method.models) == 6:
            found.append(name)
    assert found == seen


@pytest.mark.parametrize("linkage, clusters", [("single", 1), ("average", 2), ("complete", 3)])
def test_what_fedclust_joins(linkage, clusters, federate_turned):
    federation = federate_turned(model="compact-cnn")
    method = begin("fedclust", federation, threshold=3.5, linkage=linkage)
    trained = federation.initial().repeat(6, 1)
    last = federation.blueprint.layout["classifier.bias"].start
    trained[:, last] = torch.tensor([0.0, 1, 3, 4, 7, 8])
    method.cluster(trained)
    assert int(method.labels.max()) + 1 == clusters


def test_fedclust_as_published_stops_after_the_first_round(federate_turned):
    method, table = run("fedclust", federate_turned(), stops=True, **OPTIONS["fedclust"])
    first, _ = run("fedclust", federate_turned(), rounds=1, **OPTIONS["fedclust"])
    assert torch.equal(method.models, first.models)
    assert table["bytes_up"].tolist()[1:] == [0, 0]
    assert table["accuracy"].nunique() == 1


# --- FlexCFL -------------------------------------------------------------------------------------


def test_similarities_are_those_with_the_singular_vectors():
    updates = np.random.default_rng(2).normal(size=(7, 30))
    k = 3
    vectors = TruncatedSVD(k, algorithm="arpack", random_state=0).fit(updates).components_
    expected = cosine_similarity(updates, vectors)
    found = direction_similarities(torch.from_numpy(updates), k)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-8)
    # Each column has one sign for all clients
    signs = np.sign(found * expected)
    assert (np.abs(signs.sum(axis=0)) == 7).all()


@given(arrays(float, (4, 9), elements=st.floats(-5, 5, width=32)))
def test_coordinates_keep_all_distances(vectors):
    points = coordinates(vectors)
    np.testing.assert_allclose(cdist(points, points), cdist(vectors, vectors), atol=1e-5)
    np.testing.assert_allclose(points @ points.T, vectors @ vectors.T, atol=1e-8)


def test_the_first_round_only_groups_and_later_rounds_exchange(federation):
    plain, mixing = (begin("flexcfl", federation, k=2, mixing=rate) for rate in (0.0, 0.5))
    for t in range(2):
        for method in (plain, mixing):
            federation.converse(method.round(t), t)
        assert torch.equal(mixing.models, plain.models) == (t == 0)
    torch.testing.assert_close(mixing.models, mixing.mixed(plain.models))


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("include_buffers", [True, False])
def test_groups_exchange_their_directions(divided, include_buffers, federate_turned):
    """Three groups with two parameters; BatchNorm's statistics are mixed only if it is told to."""
    options = {"mixing": 0.5, "divided": divided, "include_buffers": include_buffers}
    method = begin("flexcfl", federate_turned(), **options)
    method.server.parameters = 2
    models = torch.tensor([[3.0, 4.0, 7.0], [0.0, 2.0, 8.0], [1.0, 0.0, 9.0]])
    expected, mixed = models.clone(), slice(3 if include_buffers else 2)
    for group in range(3):
        weights = 0.5 / models[:, mixed].norm(dim=1)
        weights[group] = 0
        added = models[group, mixed] + weights @ models[:, mixed]
        expected[group, mixed] = added / (1 + weights.sum()) if divided else added
    torch.testing.assert_close(method.mixed(models), expected)


# --- FeSEM ---------------------------------------------------------------------------------------


def test_batchnorms_statistics_do_not_decide_which_centre_is_nearest(federate_turned):
    method = begin("fesem", federate_turned(), k=2)
    method.server.parameters = 2
    method.latest = torch.tensor([[0.0, 0.0, 9.0], [1.0, 1.0, 0.0]])
    method.models = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 9.0]])
    assert method.nearest().tolist() == [0, 1]


def test_a_centre_is_the_mean_of_its_new_members_before_they_train(federation):
    """A client that is moved to another centre by hand returns to its own, and so does its part."""
    method = begin("fesem", federation, k=2, mu=0.0)
    federation.converse(method.round(0), 0)
    assert method.labels.tolist() == TRUTH
    method.labels[0] = 1
    method.models = method.centres()
    sent = next(method.round(1)).jobs
    assert method.labels.tolist() == TRUTH
    for number, model in enumerate(sent.models):
        members = method.latest[torch.tensor(TRUTH) == number]
        torch.testing.assert_close(model, members.mean(dim=0), rtol=1e-5, atol=1e-6)


# --- CFL-GP --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 2])
def test_a_profile_is_the_mean_of_the_gradients_at_each_model(period, federation):
    """Two models and five reports: three on the first and two on the second."""
    method = begin("cfl-gp", federation, k=2, period=period)
    reports = {0: [], 1: []}
    for t in range(5 * period):
        if t % period == 0:
            chosen = t // period % 2
            jobs = Jobs(method.models[chosen][None], torch.zeros(6).long(), EVERYONE)
            reports[chosen].append(torch.stack(federation.ask(loss_gradient, jobs, samples=None)))
        federation.converse(method.round(t), t)
    for number, known in reports.items():
        expected = torch.stack(known).mean(dim=0)
        torch.testing.assert_close(method.profile[:, number], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("period", "weights"),
    [(1, [1, 1 / 2, 1 / 2, 1 / 3]), (3, [1, 0, 0, 1, 0, 0, 1 / 2, 0, 0, 1 / 2, 0, 0, 1 / 3])],
)
def test_cfl_gp_as_published_keeps_each_clients_own_updates(period, weights, federation):
    """In round t, with reports every P rounds, the newest weighs 1 / (⌊(t + 1) / 2 P⌋ + 1)."""
    method = begin("cfl-gp", federation, k=2, period=period, report="own update")
    expected = torch.zeros(6, 2, len(federation.initial()))
    for t, weight in enumerate(weights):
        trained = federation.train(Jobs(method.models, method.labels, EVERYONE), t)
        updates = trained - method.models[method.labels]
        trained_by = EVERYONE, method.labels
        expected[trained_by] = (1 - weight) * expected[trained_by] + weight * updates
        federation.converse(method.round(t), t)
        torch.testing.assert_close(method.profile, expected, rtol=1e-4, atol=1e-6)
        for number, model in enumerate(method.models):
            members = trained[method.labels == number]
            torch.testing.assert_close(model, members.mean(dim=0), rtol=1e-4, atol=1e-6)
    assert len(set(method.labels.tolist())) == 2


@pytest.mark.parametrize(
    ("report", "include_buffers", "buffers"),
    [("own update", True, True), ("own update", False, False), ("gradient", True, False)],
)
def test_a_profile_may_hold_buffers_of_updates(report, include_buffers, buffers, federate_turned):
    federation = federate_turned(model="compact-bn")
    method = begin("cfl-gp", federation, report=report, include_buffers=include_buffers)
    width = len(federation.initial()) if buffers else federation.parameters
    assert method.profile.shape == (6, 3, width)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_relabelling_keeps_the_clusters_and_as_many_numbers_as_possible(pairs):
    found, before = np.array(pairs).T
    names = relabel(found, before)
    assert (np.equal.outer(names, names) == np.equal.outer(found, found)).all()
    best = max((np.array(p)[found] == before).sum() for p in itertools.permutations(range(5)))
    assert (names == before).sum() == best


# --- StoCFL --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stocfl_finds_the_groups_three_participants_at_a_time(federate_turned):
    """Directions are those from the first model, whenever a client comes; who never came waits."""
    federation = federate_turned(clients_per_round=3)
    method = begin("stocfl", federation, threshold=0.5)
    seen = set()
    for t in range(12):
        federation.converse(method.round(t), t)
        seen |= set(federation.participants(t).tolist())
        assert method.seen.nonzero().flatten().tolist() == sorted(seen)
        for client in set(range(6)) - seen:
            assert method.labels.tolist().count(int(method.labels[client])) == 1
            assert torch.equal(method.models[method.labels[client]], method.common)
    same = method.labels[:, None] == method.labels
    assert seen == set(range(6))
    assert torch.equal(same, torch.tensor(TRUTH)[:, None] == torch.tensor(TRUTH))


def test_stocfl_merges_along_chains_and_keeps_the_largest_parts_model(federate_turned):
    method = begin("stocfl", federate_turned(), threshold=0.3)
    angles = torch.tensor([0.0, 40.0, 80.0, 180.0, 185.0, 0.0]).deg2rad()
    method.directions[:, 0], method.directions[:, 1] = angles.cos(), angles.sin()
    method.seen[:5] = True
    method.labels = torch.tensor([0, 1, 1, 2, 3, 4])
    method.models = torch.arange(5.0)[:, None].repeat(1, method.models.shape[1])
    method.merge(torch.tensor([0, 1, 2, 3, 4]))  # 1 − cos 60° = 0.5, and 1 − cos 5° is small
    assert method.labels.tolist() == [0, 1, 1, 2, 2, 3]
    assert method.models[:, 0].tolist() == [0, 1, 2, 4]
    method.threshold = 0.5 + 1e-6
    method.merge(torch.tensor([0, 1]))
    assert method.labels.tolist() == [0, 0, 0, 1, 1, 2]
    assert method.models[:, 0].tolist() == [1, 2, 4]  # of the part with two clients


# --- FLUX ----------------------------------------------------------------------------------------


def test_flux_waits_for_its_round_and_is_fedavg_until_then(federate_turned):
    method = begin("flux", federation := federate_turned(), start=2)
    average = begin("fedavg", federation)
    for t, found in enumerate([False, True]):
        federation.converse(method.round(t), t)
        assert method.clustered == found
        if not found:
            federation.converse(average.round(t), t)
            assert torch.equal(method.models, average.models)
    assert len(method.models) == method.labels.max() + 1 > 1


def test_flux_of_equal_clients_is_one_cluster():
    assert flux.cluster(np.ones((4, 2, 3))).tolist() == [0] * 4
    assert flux.cluster(np.ones((1, 2, 3))).tolist() == [0]


def test_losses_that_are_not_finite_are_a_divergence(federation):
    method = begin("feddrift", federation, start="each", period=1)
    losses = torch.full((6, 6), torch.inf).fill_diagonal_(0.1)
    with pytest.raises(Diverged, match="diverged in round 2"):
        looked(method, federation, losses, 1)


@pytest.mark.parametrize("names", [["fedavg", "ditto"], ["ditto", "fedavg"]])
def test_ditto_shares_fedavgs_training_wherever_it_stands(names, federate_turned):
    line_up = {name: methods.make(name) for name in names}
    history = simulation.run(line_up, federate_turned(), 2, progress=False)
    assert (history.requested, history.trained) == (36, 24)
