import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cflkit import federation as federation_module
from cflkit import models
from cflkit.federation import Federation, Jobs, LocalTraining, padded
from cflkit.partition import Partition
from cflkit.rows import RowModel

SGD = LocalTraining(epochs=2, batch_size=16, lr=0.1)
MOMENTUM = LocalTraining(epochs=1, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3)
ADAM = LocalTraining(epochs=2, batch_size=16, optimizer="adam", lr=1e-3, weight_decay=1e-2)


def everyone(federation):
    clients = torch.arange(federation.clients)
    return Jobs(federation.initial()[None], torch.zeros_like(clients), clients)


def plain_loop(federation, images, model, client, round):
    """What a textbook would write: one network, one optimiser over its parameters."""
    training = federation.training
    network = models.make(model, images.shape, images.classes).train()
    vector_to_parameters(federation.initial()[: federation.parameters], network.parameters())
    if training.optimizer == "adam":
        make = torch.optim.Adam
        options = {}
    else:
        make = torch.optim.SGD
        options = {"momentum": training.momentum}
    optimizer = make(
        network.parameters(), lr=training.lr, weight_decay=training.weight_decay, **options
    )
    for batch in federation.batches(client, round):
        optimizer.zero_grad()
        pixels = images.images[batch].to(torch.get_default_dtype()) / 255
        F.cross_entropy(network(pixels), images.labels[batch]).backward()
        optimizer.step()
    return parameters_to_vector(network.parameters()).detach()


@pytest.fixture
def float64():
    """Double precision: training amplifies what two algorithms for a convolution round otherwise.

    In single precision a large momentum makes 1e-4 of 1e-7, on some processors.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("engine", ["threads", "stacked"])
@pytest.mark.parametrize("training", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
def test_each_client_trains_as_a_plain_loop_would(float64, federate, small, engine, training):
    federation = federate(training=training, engine=engine)
    trained = federation.train(everyone(federation), round=3)
    for client in range(federation.clients):
        expected = plain_loop(federation, small, "compact-cnn", client, round=3)
        torch.testing.assert_close(trained[client], expected, rtol=1e-10, atol=1e-12)


def test_both_ways_agree_with_batch_normalisation(federate, normalised):
    """Rows hold the running statistics, and batches of unequal size do not disturb them."""
    training = LocalTraining(epochs=1, batch_size=16, lr=0.01)
    threads = federate(normalised, training)
    stacked = federate(normalised, training, engine="stacked")
    assert threads.buffers == stacked.buffers > 0
    jobs = everyone(threads)
    jobs = Jobs(jobs.models, jobs.model[:3], torch.tensor([0, 2, 5]))
    sizes = [len(threads.partition.train[c]) for c in (0, 2, 5)]
    assert len({size % 16 for size in sizes}) > 1
    one, other = threads.train(jobs, 0), stacked.train(jobs, 0)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    pieces = RowModel(models.make(normalised, (1, 8, 8), 10)).split(one[0])
    counts = {float(v) for name, v in pieces.items() if name.endswith("num_batches_tracked")}
    assert counts == {-(-sizes[0] // 16)}


def test_jobs_of_different_lengths_stop_when_they_are_done(federate):
    """Momentum must not move a stacked model on after its client's last batch."""
    federation = federate(training=MOMENTUM, engine="stacked")
    assert len({len(federation.batches(c, 0)) for c in range(federation.clients)}) > 1
    together = federation.train(everyone(federation), 0)
    for client in range(federation.clients):
        alone = Jobs(federation.initial()[None], torch.zeros(1).long(), torch.tensor([client]))
        torch.testing.assert_close(
            together[client], federation.train(alone, 0)[0], rtol=1e-3, atol=1e-3
        )


def test_a_stack_too_large_for_memory_is_cut(federate, monkeypatch):
    whole = federate(engine="stacked")
    expected = whole.train(everyone(whole), 0)
    two = whole._job_bytes * 2.5 * len(whole._networks)
    monkeypatch.setattr(federation_module, "stack_bytes", lambda device: two)
    assert whole._stack_size(100) == 2 < whole.clients
    torch.testing.assert_close(whole.train(everyone(whole), 0), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("model", ["compact-cnn", "compact-bn"])
def test_cores_share_the_jobs_of_a_stack(federate, monkeypatch, model):
    """And nothing but time depends on how many there are."""
    trained = []
    for cores in (1, 4):
        monkeypatch.setenv("CFLKIT_THREADS", str(cores))
        federation = federate(model, engine="stacked")
        assert federation._stack_size(6) == {1: 6, 4: 2}[cores]
        trained.append(federation.train(everyone(federation), 0))
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-5)


def test_padding_has_no_share_in_a_loss():
    index, shares = padded([[torch.tensor([3, 1, 2])], [], [torch.tensor([5])]])
    assert index.tolist() == [[3, 1, 2], [0, 0, 0], [5, 0, 0]]
    torch.testing.assert_close(shares, torch.tensor([[1 / 3] * 3, [0, 0, 0], [1, 0, 0]]))


def test_stacked_training_leaves_the_global_generator_alone(federate):
    federation = federate("ocfl-cnn", engine="stacked")
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert federation._job_bytes > 0
    assert torch.equal(torch.rand(3), expected)


def test_a_stack_counts_what_the_backward_pass_keeps(federate):
    """Twice the batch, twice the activations."""
    small, large = (
        federate(training=LocalTraining(batch_size=b), engine="stacked") for b in (8, 16)
    )
    rows = 6 * 4 * small.parameters
    bytes_of = [f._job_bytes - rows for f in (small, large)]
    assert bytes_of[1] / bytes_of[0] == pytest.approx(2)
    # At least the outputs of four convolutions of ten channels, at 8×8 and 4×4
    assert bytes_of[0] > 8 * 4 * 10 * (2 * 64 + 2 * 16)


@pytest.mark.parametrize("engine", ["threads", "stacked"])
def test_bfloat16_is_coarser_and_points_the_same_way(federate, engine):
    exact = federate(engine=engine)
    coarse = federate(engine=engine, precision="bfloat16")
    jobs = everyone(exact)
    one, other = (f.train(jobs, 0) - jobs.models for f in (exact, coarse))
    assert one.dtype == other.dtype == torch.float32
    difference = ((one - other).norm(dim=1) / one.norm(dim=1)).max()
    assert 1e-4 < difference < 0.1
    assert not torch.equal(exact.predict(jobs)[0], coarse.predict(jobs)[0])
    assert {t.dtype for t in (coarse.predict(jobs)[0], coarse.embed(jobs)[0])} == {torch.float32}


@pytest.mark.parametrize(("precision", "expected"), [("float32", "ieee"), ("tf32", "tf32")])
def test_tf32_is_on_only_if_asked_for(federate, precision, expected):
    """torch has it on in convolutions; the switches can be read without a GPU."""
    federation = federate()
    federation.device, federation.precision = torch.device("cuda"), precision
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [switch.fp32_precision for switch in switches]
    with federation.tf32():
        assert [switch.fp32_precision for switch in switches] == [expected] * 2
    assert [switch.fp32_precision for switch in switches] == before


@pytest.mark.parametrize("model", ["compact-cnn", "ocfl-cnn"])
def test_same_seed_same_bits_whatever_else_is_trained(federate, model):
    """Also with dropout, whose masks must not depend on which thread came first."""
    one, other = federate(model, seed=5), federate(model, seed=5)
    first = one.train(everyone(one), 1)
    jobs = everyone(other)
    backwards = Jobs(jobs.models, jobs.model, jobs.client.flip(0))
    assert torch.equal(first, other.train(backwards, 1).flip(0))


@pytest.mark.parametrize("engine", ["threads", "stacked"])
def test_a_job_trains_on_its_part_of_a_client_alone(federate, small, split, engine):
    """As a client that holds nothing else would."""
    parts = [torch.arange(0, 20), torch.arange(30, 43)]
    whole = federate(engine=engine, training=ADAM)
    models_, clients = whole.initial()[None], torch.tensor([2, 2])
    trained = whole.train(Jobs(models_, torch.zeros(2).long(), clients, samples=parts), 1)
    for part, found in zip(parts, trained, strict=True):
        cut = [indices[part.numpy()] for indices in split.train[2:3]]
        alone = Partition(small.name, cut, split.test[2:3], np.zeros(1, int), {})
        other = Federation(small, alone, "compact-cnn", ADAM, device="cpu", engine=engine)
        other.batches = lambda client, *rest, f=other: Federation.batches(f, 2, *rest)
        other._indices["train"] *= 3  # the batch order of client 2
        expected = other.train(Jobs(models_, torch.zeros(1).long(), torch.zeros(1).long()), 1)[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("engine", ["threads", "stacked"])
def test_autoencoders_learn_to_reconstruct(federate, small, split, engine):
    training = LocalTraining(epochs=10, batch_size=16, optimizer="adam", lr=1e-3)
    federation = federate("autoencoder", training, task="reconstruction", engine=engine)
    jobs = everyone(federation)
    trained = federation.train(jobs, 0)
    images = small.images[split.train[1]].flatten(1).float() / 255
    after = Jobs(trained, jobs.client, jobs.client)
    errors = (federation.predict(after, "train")[1] - images).square().mean(1)
    torch.testing.assert_close(federation.losses(after)[1], errors)
    assert errors.mean() < 0.8 * federation.losses(jobs)[1].mean()
    network = federation.network(trained[1])
    with torch.no_grad():
        torch.testing.assert_close(federation.embed(after, "train")[1], network.encoder(images))


def test_both_ways_train_the_same_autoencoders(federate):
    one, other = (
        federate("autoencoder", ADAM, task="reconstruction", engine=engine)
        for engine in ("threads", "stacked")
    )
    jobs = everyone(one)
    torch.testing.assert_close(one.train(jobs, 0), other.train(jobs, 0), rtol=1e-4, atol=2e-5)


def test_another_training_and_other_initial_models(federate):
    federation = federate(training=SGD)
    jobs = everyone(federation)
    assert torch.equal(federation.train(jobs, 0, ADAM), federate(training=ADAM).train(jobs, 0))
    first, second = federation.initials(2, 7), federation.initials(2, 8)
    assert torch.equal(first, federate().initials(2, 7))
    rows = [federation.initial(), *first, *second]
    assert len({tuple(row[:5].tolist()) for row in rows}) == 5


def test_seeds_and_rounds_change_batches(federate):
    federation = federate(seed=0)
    orders = [federation.batches(0, 0)[0], federation.batches(0, 1)[0], federation.batches(1, 0)[0]]
    orders.append(federate(seed=1).batches(0, 0)[0])
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert not torch.equal(federation.initial(), federate(seed=1).initial())


def test_an_epoch_is_a_permutation_of_the_clients_samples(federate, split):
    federation = federate()
    batches = torch.cat(federation.batches(2, 0))
    n = len(split.train[2])
    for epoch in (batches[:n], batches[n:]):
        assert sorted(epoch.tolist()) == split.train[2].tolist()


def test_building_a_federation_leaves_the_global_generator_alone(federate):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    federate()
    assert torch.equal(torch.rand(3), expected)


def test_averaging_identical_clients_equals_training_one(small, split):
    """FedAvg over clients with the same data and the same batches."""
    same = Partition(small.name, [split.train[0]] * 4, [split.test[0]] * 4, np.zeros(4, int), {})
    federation = Federation(small, same, training=SGD, device="cpu")
    federation.batches = lambda client, *rest: Federation.batches(federation, 0, *rest)
    trained = federation.train(everyone(federation), 0)
    torch.testing.assert_close(trained.mean(dim=0), trained[0])


def test_predict_losses_and_embed_agree_with_the_network(federate, small, split):
    federation = federate("ocfl-cnn")
    jobs = everyone(federation)
    network = models.make("ocfl-cnn", small.shape, 10).eval()
    vector_to_parameters(federation.initial(), network.parameters())
    inputs = small.images[split.train[1]].float() / 255
    with torch.no_grad():
        hidden = network.hidden(network.flatten(network.features(inputs)))
        logits = network.classifier(hidden)
    torch.testing.assert_close(federation.embed(jobs)[1], hidden, rtol=1e-4, atol=1e-6)
    labels = federation.targets(1, "train")
    torch.testing.assert_close(
        federation.losses(jobs)[1], F.cross_entropy(logits, labels, reduction="none")
    )
    torch.testing.assert_close(federation.predict(jobs, "train")[1], logits.softmax(1))


def test_predictions_come_in_the_order_of_the_labels(federate, small, split):
    federation = federate()
    jobs = everyone(federation)
    assert [len(p) for p in federation.predict(jobs)] == [len(t) for t in split.test]
    assert torch.equal(federation.targets(3), small.labels[split.test[3]])
    central = federation.predict(jobs, "central")
    assert {len(p) for p in central} == {len(small.test_labels)}
    assert torch.equal(federation.targets(0, "central"), small.test_labels)


def test_bad_requests_are_refused(small, split, federate):
    with pytest.raises(ValueError, match="the partition is of 'mnist'"):
        Federation(small, Partition("mnist", split.train, split.test, split.clusters, {}))
    with pytest.raises(ValueError, match="beyond the 1437 samples"):
        beyond = [*split.train[:-1], np.array([1, 99999])]
        Federation(small, Partition(small.name, beyond, split.test, split.clusters, {}))
    with pytest.raises(ValueError, match="unknown engine 'ray'"):
        federate(engine="ray")
    with pytest.raises(ValueError, match="unknown precision 'float8'"):
        federate(precision="float8")
    with pytest.raises(ValueError, match="unknown task 'ranking'"):
        federate(task="ranking")
    with pytest.raises(ValueError, match="'compact-cnn' is not made for reconstruction"):
        federate(task="reconstruction")
    with pytest.raises(ValueError, match="'autoencoder' is not made for classification"):
        federate("autoencoder")
    with pytest.raises(ValueError, match="tf32 needs an NVIDIA GPU"):
        federate(precision="tf32")
    with pytest.raises(ValueError, match="unknown model"):
        federate("lenet")
    with pytest.raises(ValueError, match="unknown split 'validation'"):
        federation = federate()
        federation.predict(everyone(federation), "validation")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"lr": 0}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum belongs to sgd"),
        ({"lr": float("inf")}, "lr must be positive"),
        ({"weight_decay": -1}, "weight_decay must not be negative"),
    ],
)
def test_local_training_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**options)
