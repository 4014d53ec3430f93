"""OCFL where the clusterer sees some of the clients: samples, partial participation, newcomers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import begin
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import normalize

from cflkit import methods, simulation
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import ClientsAbsent, Jobs
from cflkit.federation.seeds import drawn
from cflkit.methods import ocfl_open
from cflkit.methods.fedavg import FedAvg
from cflkit.methods.ocfl_open import attribute, mean_directions, nearest

AT_ONCE = {"clusterer": "kmeans", "options": {"n_clusters": 3}, "before": -np.inf}


def ready(clients, start=0.0, partial=False, name="ocfl-open", **options):
    """A method on a server that knows some clients, but has no data; it starts from ``start``."""
    method = methods.make(name, **(AT_ONCE if name == "ocfl-open" else {}) | options)
    server = SimpleNamespace(
        clients=clients,
        partial=partial,
        parameters=40,
        sizes=torch.arange(1.0, clients + 1),
        drawn=lambda those, count, *key: drawn(those, count, 0, *key),
    )
    method.setup(server, torch.full((40,), start))
    return method


def grouped(clients, groups=3, noise=1.0, parameters=40, seed=0):
    """Updates in some groups, and the group of each client."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(groups, parameters, generator=generator)
    truth = torch.arange(clients) % groups
    return centres[truth] + noise * torch.randn(clients, parameters, generator=generator), truth


def round_of(method, t, updates, present=None):
    """Run a round in which clients send models that differ from what they received by updates."""
    present = torch.arange(len(method.labels)) if present is None else torch.as_tensor(present)
    method.server.participants = lambda t: present
    jobs = method.broadcast(t)
    method.aggregate(t, jobs, jobs.models[jobs.model_of] + updates[present])


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(2, 12), st.integers(1, 3))
def test_the_nearest_cluster_has_the_smallest_mean_cosine_distance(seed, clients, groups):
    updates, truth = grouped(clients + 3, groups, noise=5.0, parameters=6, seed=seed)
    updates[0] = 0  # no direction: distance 1 from everybody
    labels = (truth[:clients] % groups).unique(return_inverse=True)[1]
    gamma = cosine_divergence(updates)[clients:, :clients]
    by_hand = np.stack([gamma[:, labels == c].mean(axis=1) for c in range(int(labels.max()) + 1)])
    own = updates[:clients]
    distances = 1 - normalize(updates[clients:].double()) @ mean_directions(own, labels).T
    np.testing.assert_allclose(distances.T, by_hand, atol=1e-6)
    found = nearest(updates[clients:], mean_directions(own, labels))
    np.testing.assert_allclose(
        by_hand[found, range(3)], by_hand.min(axis=0), atol=1e-6, err_msg="ties may differ"
    )
    assert attribute(updates[clients], own, labels + 5) == 5 + int(found[0])


@pytest.mark.parametrize("chunk", [1, 23])
def test_updates_are_converted_in_parts_that_change_nothing(monkeypatch, chunk):
    updates, labels = torch.randn(9, 7), torch.arange(9) % 3
    whole = mean_directions(updates, labels)
    found = nearest(updates, whole).tolist()
    monkeypatch.setattr(ocfl_open, "CHUNK", chunk)
    torch.testing.assert_close(mean_directions(updates, labels), whole)
    assert nearest(updates, whole).tolist() == found


def test_clients_outside_the_sample_join_the_clusters_of_those_inside():
    updates, truth = grouped(600)
    method = ready(600, sample=60)
    round_of(method, 0, updates)
    assert method.settled and adjusted_rand_score(truth, method.labels) == 1
    for cluster in range(3):  # everyone counts in the mean, not only the sample
        expected = updates[method.labels == cluster].mean(dim=0)
        torch.testing.assert_close(method.models[cluster], expected, rtol=1e-4, atol=1e-5)


def test_every_round_draws_the_same_sample():
    method = ready(50, sample=5, before=np.inf)
    updates = torch.randn(50, 40)
    one, other = method.seen(50), method.seen(50)
    assert torch.equal(one, other) and len(one.unique()) == 5
    assert method.seen(5) == method.seen(4) == slice(None)
    heats = []
    for t in range(2):
        round_of(method, t, updates)
        heats.append(method.scalars["temperature"])
    gamma = cosine_divergence(updates[one])
    assert heats == pytest.approx([temperature(gamma)] * 2, rel=1e-6)


def test_newcomers_train_the_kept_model_once_and_then_that_of_their_cluster():
    updates, truth = grouped(12)
    method = ready(12, start=7.0, partial=True)
    round_of(method, 0, updates, range(9))
    waiting = len(method.models) - 1
    assert method.clustered and not method.settled
    assert method.labels[9:].tolist() == [waiting] * 3
    assert torch.equal(method.models[waiting], torch.full((40,), 7.0)), "the model before"

    before = method.models.clone()
    round_of(method, 1, updates, [9, 10])
    assert torch.equal(method.models, before), "newcomers count from the next round on"
    assert adjusted_rand_score(truth[:11], method.labels[:11]) == 1
    assert not method.settled
    round_of(method, 2, updates, [11])
    assert method.settled and adjusted_rand_score(truth, method.labels) == 1

    round_of(method, 3, updates, [9])
    own = int(method.labels[9])
    torch.testing.assert_close(method.models[own], before[own] + updates[9])


# --- Few-shot clustering --------------------------------------------------------------------------


def few_shot(again, clusters, partial=False, clients=6, **options):
    """A method that clusters in the first round, and then again and again."""
    options |= {"options": {"n_clusters": clusters}, "again": again}
    return ready(clients, start=7.0, partial=partial, **options)


def begun(clusters=3, present=None, clients=6, **options):
    """A method that clusters every other round, after two rounds; its updates and their groups."""
    updates, truth = grouped(clients)
    method = few_shot(2, clusters, clients=clients, **options)
    for t in range(2):
        round_of(method, t, updates, present)
    return method, updates, truth


def test_clusters_that_are_found_again_are_the_same_if_nothing_has_changed():
    updates, truth = grouped(6)
    again, once = few_shot(3, 3), few_shot(None, 3)
    for t in range(7):
        if t in (3, 6):  # everybody trains the kept model
            assert torch.equal(again.broadcast(t).models, torch.full((1, 40), 7.0))
            assert again.broadcast(t).model_of.tolist() == [0] * 6
        round_of(again, t, updates)
        if t not in (3, 6):  # rounds that only cluster
            round_of(once, t, updates)
        assert adjusted_rand_score(truth, again.labels) == 1
    assert torch.equal(again.models[again.labels], once.models[once.labels])
    assert once.settled and not again.settled


@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_who_has_changed_gets_into_the_group_and_its_model_is_mixed_by_members(weighting):
    method, updates, _ = begun(weighting=weighting)
    moved = updates.clone()
    moved[0] = updates[1]  # client 0 now has the data of another group
    before, former = method.models.clone(), method.labels.clone()
    round_of(method, 2, moved)
    assert adjusted_rand_score([1, 1, 2, 0, 1, 2], method.labels) == 1
    members = [0, 1, 4]
    weights = torch.ones(3) if weighting == "equal" else method.server.sizes[members]
    mean = weights @ before[former[members]] / weights.sum()
    torch.testing.assert_close(method.models[method.labels[0]], mean)
    assert torch.equal(method.models[method.labels[3]], before[former[3]]), "alone, as before"


def test_newcomers_of_a_round_that_clusters_again_do_not_pull_a_cluster_back():
    method, updates, _ = begun(2, [0, 1], partial=True)
    before = method.models[method.labels[0]].clone()
    round_of(method, 2, updates[[0, 1, 2, 0, 1, 5]], [0, 1, 3, 4])
    assert method.labels[3] == method.labels[0] and method.labels[4] == method.labels[1]
    assert torch.equal(method.models[method.labels[0]], before), "not the mean with the kept model"
    # Those that nobody has seen wait, with the kept model
    assert (method.models[method.labels[[2, 5]]] == 7).all()


def test_clients_that_are_absent_follow_their_old_cluster():
    method, updates, truth = begun(clients=9)
    before = method.models[method.labels].clone()
    # One client of each group is there, and the clusters get other numbers
    round_of(method, 2, updates, [1, 3, 5])
    assert method.labels[1] == 0
    assert adjusted_rand_score(truth, method.labels) == 1
    assert torch.equal(method.models[method.labels], before)


def test_a_cluster_of_newcomers_alone_begins_with_the_kept_model():
    updates, _ = grouped(6)
    method = few_shot(2, 1, partial=True)
    round_of(method, 0, updates, [0, 3])
    method.options = {"n_clusters": 2}
    round_of(method, 2, updates, [0, 3, 2, 5])
    assert method.labels[2] == method.labels[5] != method.labels[0]
    assert (method.models[method.labels[2]] == 7).all()
    assert not (method.models[method.labels[0]] == 7).any()


# --- Clients that come and go ---------------------------------------------------------------------


def rows(*present):
    """Build a presence: who of six clients is there in each round."""
    return torch.tensor([[client in those for client in range(6)] for those in present])


def test_only_clients_that_are_there_take_part(federate):
    presence = rows({0, 1}, {1, 2, 3, 4}, range(6))
    federation = federate().with_presence(presence)
    there = [[0, 1], [1, 2, 3, 4], [*range(6)], [*range(6)]]
    assert [federation.participants(t).tolist() for t in range(4)] == there
    drawn_from = federate(clients_per_round=3).with_presence(presence)
    assert drawn_from.participants(0).tolist() == [0, 1]
    assert len(drawn_from.participants(1)) == 3 and 0 not in drawn_from.participants(1)
    usual, same = federate(), federate().with_presence(rows(range(6), range(6)))
    assert not same.partial and same.identity == usual.identity
    assert federation.partial and federation.identity != usual.identity


def test_fedsoft_estimates_the_weights_of_clients_that_come_between_two_estimates(federate):
    federation = federate("linear").with_presence(rows(range(5), range(6), range(5), range(6)))
    method = methods.make("fedsoft", k=2)
    simulation.run({"FedSoft": method}, federation, 2, progress=False)
    assert not torch.allclose(method.importance[5], torch.tensor([0.5, 0.5]))


def test_a_cluster_of_emd_cfl_that_is_new_gets_the_mean_of_its_members_models(federate):
    federation = federate("linear").with_presence(rows({0}, {1}, {2, 3}))
    method = begin("emd-cfl-oracle", federation, truth=[0, 0, 1, 1, 2, 2])
    for t in range(2):
        federation.converse(method.round(t), t)
    method.server.participants = lambda t: torch.tensor([2])  # of those who can be reached
    method.server.reachable = lambda t: torch.arange(6)
    federation.converse(method.round(2), 2)
    assert method.labels[0] == method.labels[1]
    mixed = method.client_models()
    own = (mixed[1] @ mixed[0])[0]
    weights = federation.sizes[:2] / federation.sizes[:2].sum()
    torch.testing.assert_close(own, weights @ method.latest[:2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "presence, message",
    [
        (torch.ones(2, 5, dtype=torch.bool), r"with .* torch.bool of \[2, 5\]"),
        (torch.ones(2, 6), "must be bool"),
        (rows({0}, set()), r"nobody is there in the rounds \[1\]"),
        (torch.ones(0, 6, dtype=torch.bool), r"with a round or more, not torch.bool of \[0, 6\]"),
    ],
)
def test_a_presence_that_does_not_fit_is_refused(federate, presence, message):
    with pytest.raises(ValueError, match=message):
        federate().with_presence(presence)


@pytest.mark.slow
def test_emd_cfl_measures_a_pair_when_both_clients_answer(federation):
    """Clients 0 and 1 are first there together in round 3; nobody is asked while absent."""
    presence = rows({0, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, range(6))
    federation = federation.with_presence(presence)
    method, history = methods.make("emd-cfl", epsilon=0.1), None
    for t in range(3):
        history = simulation.run({"": method}, federation, t + 1, after=history, progress=False)
        there = presence[: t + 1]
        met = (there[:, :, None] & there[:, None]).any(dim=0)
        assert torch.equal(~method.scores.isnan(), met)
        assert method.settled == (t == 2)


class Nosy(FedAvg):
    """A method that trains with all clients, whoever is there."""

    def broadcast(self, t):
        everyone = torch.arange(self.server.clients)
        return Jobs(self.models, torch.zeros_like(everyone), everyone)


@pytest.mark.parametrize(
    "method, error, message",
    [
        (methods.make("pacfl"), ValueError, r"PACFL asks all clients in round 1, .* \[0, 1, 2\]"),
        (Nosy(), ClientsAbsent, "client 3: no answer"),
    ],
)
def test_a_method_that_asks_absent_clients_is_an_error(federation, method, error, message):
    some = federation.with_presence(rows(range(3), range(6)))
    with pytest.raises(error, match=message):
        simulation.run({"method": method}, some, 1, progress=False)


def test_a_client_that_is_alone_when_clusters_are_due_does_not_merge_them():
    method, updates, truth = begun(partial=True)
    round_of(method, 2, updates, [0])
    assert adjusted_rand_score(truth, method.labels) == 1
    round_of(method, 3, updates)  # now the clusters are found again
    assert adjusted_rand_score(truth, method.labels) == 1 and method.due == 5
