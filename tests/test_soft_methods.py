"""Methods without clusters of clients: mixtures of components, and personal models."""

import copy
import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rounds import begin, first_jobs, gradient, run
from test_contract import OPTIONS

from cflkit import methods, simulation
from cflkit.federation import Federation, LocalTraining, Losses
from cflkit.methods.base import weighted_means
from cflkit.methods.baselines.fedsac import closeness, feature_axes
from cflkit.methods.baselines.scaffold import length_of_steps


def exchanges(method, federation, t=0):
    """Run a round, and return its requests with their answers."""
    conversation, answer, found = method.round(t), None, []
    while True:
        try:
            request = conversation.send(answer)
        except StopIteration:
            return found
        answer = request.answered_by(federation, t)
        found.append((request, copy.deepcopy(answer)))  # a method may change its answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fedem", "fedrc", "fedrep", "fedsoft", "pfedgraph", "fedsac", "ditto", "ifca", "pacfl"]
)
def test_absent_clients_keep_what_is_theirs(name, federate_turned):
    """Their clusters, too, but PACFL asks and clusters all clients in the first round."""
    federation = federate_turned(clients_per_round=3)
    method = begin(name, federation, **OPTIONS.get(name, {}))
    for t in range(5):
        before = {key: value.clone() for key, value in personal(method).items()}
        federation.converse(method.round(t), t)
        absent = sorted(set(range(6)) - set(federation.participants(t).tolist()))
        assert before and absent
        for key, value in personal(method).items():
            assert t == 0 or torch.equal(value[absent], before[key][absent]), key


def personal(method):
    """Return the parts of a method's state that belong to single clients."""
    names = ("shares", "importance", "personal") + ("models",) * hasattr(method, "graph")
    names += ("labels",) * (method.labels is not None)
    return {name: value for name, value in vars(method).items() if name in names}


def test_weighted_means_are_numpys():
    models, trained = torch.ones(2, 4), torch.randn(3, 4)
    weights = torch.tensor([[0.2, 0.0, 0.7], [0.0, 0.0, 0.0]])
    found = weighted_means(models, trained, weights)
    assert torch.equal(found[1], models[1]), "without weights a model stays as it is"
    np.testing.assert_allclose(found[0], np.average(trained, axis=0, weights=weights[0]), atol=1e-6)


# --- FedEM and FedRC ------------------------------------------------------------------------------


def test_as_published_clients_predict_with_their_last_component(federation):
    method = begin("fedem", federation, k=2, predicts="last component")
    _, (request, trained) = exchanges(method, federation)
    models, mixture = method.client_models()
    assert torch.equal(mixture, torch.eye(6))
    assert torch.equal(models, trained[request.jobs.model_of == 1])
    _, mixture = begin("fedem", federation, k=2).client_models()
    assert mixture.shape == (6, 2)


def test_a_class_without_samples_keeps_a_small_share(federate_turned):
    """Otherwise, one sample of this class in a later round would divide by zero."""
    method = begin("fedrc", federate_turned(), k=2)
    method.classes = [torch.zeros(3).long()] * 6
    method.class_shares = torch.full((2, 4), 0.25)
    method.m_step(torch.arange(1), [torch.tensor([[1.0] * 3, [0.0] * 3])])
    torch.testing.assert_close(method.class_shares.sum(dim=1), torch.ones(2))
    assert (method.class_shares > 0).all()


# --- FedSoft --------------------------------------------------------------------------------------


def test_importance_counts_samples_or_batches():
    """Five samples, of which three are best explained by centre 0, in batches of four and one."""
    losses = torch.tensor([[1.0, 1.0, 1.0, 9.0, 5.0], [2.0, 2.0, 2.0, 1.0, 1.0], [9.0] * 5])

    def estimate(counted):
        [request] = methods.make("fedsoft", smoother=0.1, counted=counted).asks()
        return request.told(losses, LocalTraining(1, 4), **request.options)

    torch.testing.assert_close(estimate("samples"), torch.tensor([0.6, 0.4, 0.1]) / 1.1)
    # The first batch has means 3 and 1.75, so both batches belong to centre 1
    torch.testing.assert_close(estimate("batches"), torch.tensor([0.1, 1.0, 0.1]) / 1.2)


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_clients_estimate_the_weights_of_centres_once_per_interval(interval, federate_turned):
    method = begin("fedsoft", federate_turned(), k=2, interval=interval)
    method.estimated[:] = True  # nobody was absent before
    estimates = [isinstance(next(method.round(t)), Losses) for t in range(6)]
    assert estimates == [t % interval == 0 for t in range(6)]


def test_centres_are_sent_in_every_round_and_one_model_comes_back(federation):
    _, table = run("fedsoft", federation, k=3, interval=2)
    model = 4 * federation.parameters
    assert table["bytes_down"].tolist() == [18 * model] * 3
    assert table["bytes_up"].tolist() == [6 * model] * 3


@pytest.mark.parametrize("start", ["own", "mixture"])
def test_each_centre_pulls_with_its_weight_and_is_a_mean(start, federate_turned):
    """Follow one step with a full batch, in the second round, when models and centres differ."""
    federation = federate_turned(training=LocalTraining(1, 100, lr=0.1))
    method = begin("fedsoft", federation, k=2, mu=5.0, start=start)
    federation.converse(method.round(0), 0)
    centres, personal = method.models, method.personal
    federation.converse(method.round(1), 1)
    for client, shares in enumerate(method.importance):
        begun = personal[client] if start == "own" else shares @ centres
        pull = 5.0 * sum(u * (begun - centre) for u, centre in zip(shares, centres, strict=True))
        samples = federation.inputs(federation.partition.train[client])
        expected = begun - 0.1 * (gradient(federation.network(begun), *samples) + pull)
        torch.testing.assert_close(method.personal[client], expected, rtol=1e-3, atol=1e-5)
    weights = method.importance * federation.sizes[:, None]
    means = weights.T @ method.personal / weights.sum(dim=0)[:, None]
    torch.testing.assert_close(method.models, means, rtol=1e-4, atol=1e-6)


# --- FedCE ----------------------------------------------------------------------------------------


def test_gains_by_hand():
    """Two batches of two samples; the means of the batches are (2, 4), (1, 1) and (4, 1)."""
    losses = torch.tensor([[1.0, 3.0, 4.0, 4.0], [1.0, 1.0, 1.0, 1.0], [4.0, 4.0, 1.0, 1.0]])
    # Of prefixes, the first model is the best of one, and the second of two and three
    for options, more in (
        ({}, [0, 0, 0]),
        ({"delta": 2.0}, [0, 0, 0]),
        ({"counted": "prefixes"}, [1, 1, 0]),
    ):
        [request] = methods.make("fedce", k=3, **options).asks()
        gained, best = request.told(losses, LocalTraining(1, 2), **request.options).T
        decay = np.exp(-options.get("delta", 0.5) * np.sqrt([1 + 9, 0, 9]))
        assert gained.tolist() == pytest.approx(decay + more)
        assert best.tolist() == [0, 1, 0]


def test_gains_add_up_and_every_model_is_a_mean_of_all_clients_by_them(federation):
    method, total = begin("fedce", federation, k=2), torch.zeros(6, 2)
    for t in range(2):
        (_, told), (request, trained) = exchanges(method, federation, t)
        total = total + torch.stack(told).view(6, 2, 2)[:, :, 0]
        torch.testing.assert_close(method.association, total)
        assert request.jobs.model_of.tolist() == method.best.tolist()
        for model, odds in zip(method.models, total.exp().T, strict=True):
            expected = (odds[:, None] * trained).sum(dim=0) / odds.sum()
            torch.testing.assert_close(model, expected, rtol=1e-4, atol=1e-6)


# --- pFedGraph and FedSaC -------------------------------------------------------------------------


COMPARED = [
    ({}, 0),
    ({"since": "received"}, -1),
    ({"include_buffers": True}, -1),
    ({"include_buffers": True, "clipped": False}, -25 / 26),
]


@pytest.mark.parametrize("options, expected", COMPARED)
def test_updates_are_compared_and_near_ones_count_as_equal(options, expected, federation):
    """Two clients with two parameters and a buffer."""
    method = begin("pfedgraph", federation, **options)
    method.server.parameters, method.initial = 2, torch.zeros(3)
    method.models = torch.tensor([[0.0, 0.0, 5.0], [-1.0, 1.0, 5.0]])
    trained = torch.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, 5.0]])
    found = method.dissimilarity(torch.arange(2), trained)
    assert found[0, 1] == pytest.approx(expected, abs=1e-6)


def test_the_first_round_has_no_term_unless_the_anchor_is_the_own_model(federation):
    method = begin("pfedgraph", federation)
    assert method.broadcast(0).training is None
    [(_, trained)] = exchanges(method, federation)
    assert method.broadcast(1).training.penalty == "cosine"
    # An anchor is a mean of directions, with the weights of this round
    torch.testing.assert_close(method.anchors, method.graph.float() @ F.normalize(trained))
    for term, strength in (("pull", -0.01), ("push", 0.01)):
        own = begin("pfedgraph", federation, anchor="own", term=term)
        assert own.broadcast(0).training.strength == strength


def test_axes_do_not_depend_on_the_order_of_few_samples(turned):
    """Three samples have two axes; a third one would be rounding noise."""
    images, whole = turned
    found = []
    for order in ([0, 1, 2], [2, 0, 1]):
        split = dataclasses.replace(whole, train=[whole.train[0][order]] * 6)
        few = Federation(images, split, "linear", device="cpu")
        found += few.ask(feature_axes, first_jobs(few, [0]), components=3)
    assert [len(axes) for axes in found] == [2, 2]
    assert closeness(found, signed=False)[0, 1] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("signed", [False, True])
def test_opposite_axes_are_near_unless_signs_count(signed):
    x, y = torch.eye(2)
    opposite = -1 if signed else 1
    expected = [[1, opposite, 0], [opposite, 1, 0], [0, 0, 1]]
    found = closeness([x[None], -x[None], y[None]], signed)
    np.testing.assert_allclose(found, expected, atol=1e-9)


# --- SCAFFOLD and Ditto ---------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_length_of_steps_is_that_of_torchs_optimiser(momentum):
    training = LocalTraining(3, 16, lr=0.1, momentum=momentum)
    value = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = training.build({"value": value})
    for _ in range(3 * 4):  # 50 samples are four batches
        value.grad = -torch.ones_like(value)
        optimizer.step()
    assert float(length_of_steps(training, 50)) == pytest.approx(value.item())


def test_scaffold_by_hand(federate_turned):
    """Follow Algorithm 1 for three rounds, of four clients each, with one full batch per epoch."""
    federation = federate_turned(training=LocalTraining(3, 100, lr=0.1), clients_per_round=4)
    method = begin("scaffold", federation)
    x, own = federation.initial(), torch.zeros(6, federation.parameters)
    for t in range(3):
        federation.converse(method.round(t), t)
        present, common = federation.participants(t), own.mean(dim=0)
        ends = x.repeat(4, 1)
        for client, y in zip(present.tolist(), ends, strict=True):
            samples = federation.inputs(federation.partition.train[client])
            for _ in range(3):
                slope = gradient(federation.network(y.clone()), *samples)
                y -= 0.1 * (slope - own[client] + common)
        updates = ends - x
        own[present] -= common + updates / 0.3
        x = x + updates.mean(dim=0)
        torch.testing.assert_close(method.models[0], x, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(method.variates, own, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(method.common, method.variates.mean(dim=0), rtol=1e-4, atol=1e-5)


def test_scaffolds_server_step_leaves_batchnorms_statistics(federate_turned, normalised):
    federation = federate_turned(model=normalised)
    doubled, usual = (
        run("scaffold", federation, rounds=1, server_lr=rate)[0].models[0] for rate in (2.0, 1.0)
    )
    p, start = federation.parameters, federation.initial()
    torch.testing.assert_close((doubled - start)[:p], 2 * (usual - start)[:p])
    assert torch.equal(doubled[p:], usual[p:])


@pytest.mark.parametrize("given", [{"optimizer": "adam"}, {"penalty": "norms", "strength": 1.0}])
def test_scaffold_refuses_adam_and_penalties(federate_turned, given):
    with pytest.raises(ValueError, match="defined for local training by sgd, without a penalty"):
        begin("scaffold", federate_turned(training=LocalTraining(lr=1e-3, **given)))


@pytest.mark.slow
def test_ditto_has_fedavg_and_without_pull_local_training(federate_turned):
    """The personal models never leave their clients."""
    method, _ = run("ditto", federate_turned(), mu=0.0)
    fedavg, usual = run("fedavg", federate_turned())
    local, _ = run("local", federate_turned())
    assert torch.equal(method.models, fedavg.models)
    assert torch.equal(method.personal, local.models)
    pulled, table = run("ditto", federate_turned(), mu=10.0)
    assert torch.equal(pulled.models, fedavg.models)
    far = [(other.personal - fedavg.models).norm(dim=1).mean() for other in (method, pulled)]
    assert far[1] < 0.8 * far[0]
    assert table["bytes_up"].equals(usual["bytes_up"])
    assert table["bytes_down"].equals(usual["bytes_down"])
    assert table["trainings"].tolist() == [12, 12, 12]


# --- FedRep --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["threads", "stacked"])
def test_fedrep_trains_the_last_layer_then_the_others_and_shares_these(federate_turned, engine):
    """By a plain loop on whole batches, with momentum and weight decay."""
    training = LocalTraining(2, 64, lr=0.1, momentum=0.9, weight_decay=0.1)
    federation = federate_turned(model="perceptron", training=training, engine=engine)
    method, _ = run("fedrep", federation, rounds=1, head_epochs=3, body_epochs=2)
    trained = []
    for client in range(6):
        network = federation.network(federation.initial())
        (_, body), (_, head) = list(network.named_children())[1:]
        for part, epochs in ((head, 3), (body, 2)):
            own = part.parameters()
            optimizer = torch.optim.SGD(own, lr=0.1, momentum=0.9, weight_decay=0.1)
            for _ in range(epochs):
                network.zero_grad()
                inputs, labels = federation.data.samples(federation.data.index("train", client))
                F.cross_entropy(network(inputs), labels).backward()
                optimizer.step()
        trained.append(torch.nn.utils.parameters_to_vector(network.parameters()).detach())
    places = federation.server.last_layer()
    expected = torch.stack(trained).mean(dim=0).repeat(6, 1)
    expected[:, places] = torch.stack(trained)[:, places]
    torch.testing.assert_close(method.personal, expected, rtol=1e-5, atol=1e-6)


# --- Clients that lack samples, or have others later ----------------------------------------------


def briefly(images, part):
    """Build a federation that trains for one epoch."""
    return Federation(images, part, "linear", LocalTraining(1, 16, lr=0.05), device="cpu")


def without(turned, split, kept=0):
    """Leave the fourth client only so many samples of a split."""
    images, whole = turned
    own = [indices[:kept] if c == 3 else indices for c, indices in enumerate(whole.splits[split])]
    changes = {split: own} if split in ("train", "test") else {"more": whole.more | {split: own}}
    return briefly(images, dataclasses.replace(whole, **changes))


@pytest.mark.parametrize(
    "name, options",
    [
        ("ifca", {"k": 2, "chosen_by": "validation"}),
        *((name, {"split": "validation"}) for name in ("fedsoft", "fedce", "pacfl")),
        ("emd-cfl", {}),
    ],
)
def test_a_client_without_validation_samples_is_told_before_the_training(turned, name, options):
    with pytest.raises(ValueError, match=r"needs 1 or more validation samples.* clients \[3\]"):
        run(name, without(turned, "validation"), **options)


@pytest.mark.parametrize("name", ["ifca", "fedsac", "emd-cfl", "emd-cfl-oracle"])
def test_samples_are_also_counted_where_a_method_goes_on(turned, federate_turned, name):
    """One sample spans no feature space; the oracle compares no samples."""
    options = {"emd-cfl-oracle": {"truth": [0, 0, 0, 1, 1, 1]}}
    line_up = {name: methods.make(name, **options.get(name, {}))}
    history = simulation.run(line_up, federate_turned(), 1, progress=False)
    refused = pytest.raises(ValueError, match=r"needs 2 or more train samples.* clients \[3\]")
    with refused if name in ("fedsac", "emd-cfl") else nullcontext():
        poor = without(turned, "train", kept=1)
        simulation.run(line_up, poor, 2, after=history, progress=False)


def test_a_client_without_training_samples_is_told_before_the_training(turned):
    with pytest.raises(ValueError, match=r"clients \[3\] have no training samples"):
        run("fedavg", without(turned, "train"))


def test_a_client_without_test_samples_does_not_count_in_means(turned):
    _, table = run("fedavg", without(turned, "test"), rounds=1)
    for measure in ("accuracy", "pf1", "worst_accuracy"):
        assert table[measure].notna().all()


def test_fedrc_knows_the_classes_of_clients_that_have_changed(turned):
    images, split = turned
    homes = [briefly(images, part) for part in (split, split.take([5, 1, 2, 3, 4, 0]))]
    line_up = {"FedRC": methods.make("fedrc", k=2)}
    history = simulation.run(line_up, homes[0], 1, progress=False)
    simulation.run(line_up, homes[1], 2, after=history, progress=False)
    assert [len(own) for own in line_up["FedRC"].classes] == homes[1].sizes.int().tolist()


def test_emd_cfl_goes_on_where_only_some_clients_take_part(turned, federate_turned):
    line_up = {"EMD-CFL": methods.make("emd-cfl", epsilon=0.1)}
    history = simulation.run(line_up, federate_turned(), 1, progress=False)
    partial = federate_turned(clients_per_round=2)
    table = simulation.run(line_up, partial, 3, after=history, progress=False).table()
    assert table["accuracy"].notna().all()
