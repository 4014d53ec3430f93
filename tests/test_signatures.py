"""One clustering of signatures after a warm-up, on clients with features."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rounds import first_jobs, gradient
from rounds import run as run_alone

from cflkit import methods
from cflkit.federation import Federation, LocalTraining, clients
from cflkit.methods.baselines.questions import loss_gradient
from cflkit.partition.features import class_bumps

WARM_UP = 2


@pytest.fixture(scope="module")
def bumps():
    """Make nine clients in three groups: features that are high where the label is."""
    return class_bumps(clients=9, height=3.0, seed=0)


@pytest.fixture
def federation(bumps):
    training = LocalTraining(epochs=2, batch_size=16, lr=0.05)
    return Federation(*bumps, "perceptron", training, device="cpu")


def run(federation, rounds=WARM_UP + 2, **options):
    return run_alone("signatures", federation, rounds, warm_up=WARM_UP, **options)[0]


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["gradient", "model"])
@pytest.mark.parametrize(
    "how",
    [{"linkage": "ward"}, {"linkage": "average"}, {"linkage": "single"}, {"clustering": "k-means"}],
)
def test_it_finds_groups_with_other_classes(federation, bumps, signature, how):
    method = run(federation, signature=signature, **how)
    assert method.labels.tolist() == bumps[1].clusters.tolist()
    assert method.settled


def test_buffers_are_no_part_of_a_models_signature(federate_turned, normalised):
    method = run(federation := federate_turned(model=normalised), signature="model")
    assert method.signatures.shape == (6, federation.parameters)


def test_a_gradient_leaves_batchnorms_statistics_as_they_are(federate_turned, normalised):
    """The network is in evaluation mode, so a client answers the same whenever it is asked."""
    federation = federate_turned(model=normalised)
    [found] = federation.ask(loss_gradient, first_jobs(federation, [0]), samples=None)
    network = federation.network(federation.initial()).eval()
    expected = gradient(network, *federation.inputs(federation.partition.train[0]))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"samples": 16}, {"signature": "loss"}])
def test_a_signature_is_the_mean_loss_or_its_gradient(federation, bumps, options):
    fedavg, _ = run_alone("fedavg", federation, WARM_UP)
    method = run(federation, WARM_UP + 1, **options)
    network = federation.network(fedavg.models[0])
    for client, own in enumerate(bumps[1].train):
        used = own[: options.get("samples")]
        inputs, labels = bumps[0].images[used], bumps[0].labels[used]
        expected = gradient(network, inputs, labels)
        if options.get("signature") == "loss":
            expected = F.cross_entropy(network(inputs), labels)[None]
        torch.testing.assert_close(method.signatures[client], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("at_once", [1, 7, 39])
def test_a_gradient_of_parts_is_that_of_all_samples(federation, bumps, monkeypatch, at_once):
    jobs = first_jobs(federation, [0])
    [whole] = federation.ask(loss_gradient, jobs, samples=None)
    computed = []
    network = federation.data.networks[0].network
    with network.register_forward_hook(lambda _, inputs, out: computed.append(len(out))):
        monkeypatch.setattr(clients, "GRADIENT_BYTES", at_once * federation.data.bytes_per_sample)
        [found] = federation.ask(loss_gradient, jobs, samples=None)
    assert sum(computed) == len(bumps[1].train[0])
    assert max(computed) == at_once
    torch.testing.assert_close(found, whole, atol=1e-7, rtol=1e-5)


@pytest.mark.slow
def test_a_client_sends_its_model_once_and_of_its_losses_the_mean(federation):
    size = federation.initial().nbytes
    for signature, more in {"gradient": 4 * federation.parameters, "loss": 4, "model": 0}.items():
        options = {"warm_up": WARM_UP, "signature": signature}
        _, table = run_alone("signatures", federation, WARM_UP + 1, **options)
        assert table[["bytes_up", "trainings"]].iloc[-1].tolist() == [9 * (size + more), 9]


def test_a_client_without_gradient_has_no_direction():
    method = methods.make("signatures", k=2)
    assert method.cluster(np.array([[1.0, 0], [2.0, 0], [0, 0]])).tolist() == [0, 0, 1]


@pytest.mark.slow
def test_a_restart_forgets_the_warm_up_and_clusters_start_differently(federation):
    warm, anew = (run(federation, WARM_UP + 1, restart=restart) for restart in (False, True))
    assert torch.equal(warm.labels, anew.labels)
    # A round moves a model less than initial models are apart
    assert (warm.models[0] - warm.models[1]).norm() < (anew.models[0] - anew.models[1]).norm() / 2
    assert torch.equal(anew.models, run(federation, WARM_UP + 1, restart=True).models)


@pytest.mark.slow
@pytest.mark.parametrize(("fraction", "count"), [(0.3, 1), (0.6, 1), (0.7, 2), (1.0, 3)])
def test_a_share_of_each_cluster_trains(federation, bumps, fraction, count):
    method = run(federation, fraction=fraction)
    drawn = [method.broadcast(t).client_of for t in range(WARM_UP, WARM_UP + 20)]
    for present in drawn:
        assert np.bincount(bumps[1].clusters[present.numpy()]).tolist() == [count] * 3
    assert len({tuple(present.tolist()) for present in drawn}) > (1 if fraction < 1 else 0)
    assert len(method.broadcast(WARM_UP - 1).client_of) == 9


@pytest.mark.slow
def test_more_clusters_than_clients_leave_each_client_alone(federation):
    assert run(federation, k=20).labels.tolist() == list(range(9))
    assert run(federation, k=20, clustering="k-means").labels.tolist() == list(range(9))
