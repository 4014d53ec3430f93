from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rounds import first_jobs
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cflkit import models
from cflkit.federation import (
    Ask,
    Federation,
    Jobs,
    LocalTraining,
    Losses,
    Train,
    fast_linear,
    machine,
    stacked,
)
from cflkit.federation.clients import Clients
from cflkit.federation.federation import TRAIN
from cflkit.federation.machine import ENGINES, products_on_cuda
from cflkit.federation.seeds import dropout_seeds, step_keys
from cflkit.models.rows import RowModel, blas_libraries, digests, digests_on_gpu
from cflkit.partition import Partition

SGD = LocalTraining(epochs=2, batch_size=16, lr=0.1)
MOMENTUM = LocalTraining(epochs=1, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3)
ADAM = LocalTraining(epochs=2, batch_size=16, optimizer="adam", lr=1e-3, weight_decay=1e-2)


@pytest.fixture(scope="module")
def federate(federate):
    """Build federations of networks with convolutions."""
    return lambda model="compact-cnn", *rest, **options: federate(model, *rest, **options)


@pytest.fixture(params=ENGINES)
def engine(request):
    """Run a test that asks for it with each engine."""
    return request.param


def cross_entropy(network, pixels, labels, batch):
    return F.cross_entropy(network(pixels), labels)


def plain_loop(federation, images, model, client, round, loss=cross_entropy):
    """Train one network with one optimiser, as a textbook would; return it as a row."""
    training = federation.training
    network = models.make(model, images.shape, images.classes).train()
    initial = federation.initial()[: federation.parameters].to(torch.get_default_dtype())
    vector_to_parameters(initial, network.parameters())
    options = {"lr": training.lr, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        optimizer = torch.optim.Adam(network.parameters(), **options)
    else:
        optimizer = torch.optim.SGD(network.parameters(), momentum=training.momentum, **options)
    for batch in federation.batches(client, round):
        optimizer.zero_grad()
        pixels = images.images[batch].to(torch.get_default_dtype()) / 255
        loss(network, pixels, images.labels[batch], batch).backward()
        optimizer.step()
    return RowModel(network).row


def trained_in_loops(federation, images, model, round=3, loss=cross_entropy):
    """Train the network of each client by itself; return their rows."""
    clients = range(federation.clients)
    rows = [plain_loop(federation, images, model, client, round, loss) for client in clients]
    return torch.stack(rows)


@pytest.fixture
def float64():
    """Compute in double precision.

    Two algorithms for a convolution round differently, and training amplifies the difference. In
    single precision, a large momentum turns 1e-7 into 1e-4 on some processors.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("training", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
def test_each_client_trains_as_a_plain_loop_would(float64, federate, small, engine, training):
    federation = federate(training=training, engine=engine)
    lengths = {len(federation.batches(client, 3)) for client in range(federation.clients)}
    assert training is not MOMENTUM or len(lengths) > 1, "some are done early"
    trained = federation.train(first_jobs(federation), round=3)
    expected = trained_in_loops(federation, small, "compact-cnn")
    torch.testing.assert_close(trained, expected, rtol=1e-10, atol=1e-12)


def test_large_layers_step_in_the_backward_pass(float64, federate, small, monkeypatch):
    monkeypatch.setattr(machine, "KEPT_BLOCK", 0)
    federation = federate("perceptron", replace(SGD, weight_decay=1e-2))
    trained = federation.train(first_jobs(federation), round=3)
    expected = trained_in_loops(federation, small, "perceptron")
    torch.testing.assert_close(trained, expected, rtol=1e-10, atol=1e-12)
    head = federation.data.networks[0].network.classifier
    assert head.weight.grad is None and head.bias.grad is not None  # also of the last step
    assert "forward" not in vars(head)


@pytest.mark.parametrize(
    ("options", "stepping"),
    [
        ({}, {"hidden.0", "classifier"}),
        ({"trains": "body"}, {"hidden.0"}),
        ({"momentum": 0.9}, set()),
        ({"optimizer": "adam"}, set()),
        ({"penalty": "proximal", "strength": 0.1}, set()),
    ],
)
def test_only_plain_sgd_steps_in_the_backward_pass(monkeypatch, options, stepping):
    network = RowModel(models.make("perceptron", (1, 8, 8), 10))
    local = LocalTraining(**options)

    def found():
        with fast_linear.steps_in_backward(network, local):
            return {n for n, layer in network.network.named_modules() if "forward" in vars(layer)}

    assert not found()  # these layers are small
    monkeypatch.setattr(machine, "KEPT_BLOCK", 0)
    assert found() == stepping


@pytest.mark.parametrize("library", ["BLAS", "oneDNN"])
def test_the_fast_layer_is_as_close_to_float64_as_a_plain_loop(
    federate, small, monkeypatch, request, unperturbed, library
):
    monkeypatch.setattr(machine, "KEPT_BLOCK", 0)
    monkeypatch.setattr(fast_linear, "product_library", lambda: library)
    federation = federate("perceptron", SGD)
    fast = federation.train(first_jobs(federation), 0)
    plain = trained_in_loops(federation, small, "perceptron", 0)
    request.getfixturevalue("float64")
    exact = trained_in_loops(federation, small, "perceptron", 0)
    errors = [(rows.double() - exact).square().mean().sqrt() for rows in (fast, plain)]
    assert 0 < errors[0] <= 1.2 * errors[1]


@pytest.mark.parametrize(("name", "library"), [("AMD EPYC", "oneDNN"), ("Intel Xeon", "BLAS")])
def test_the_library_of_large_products_depends_on_the_processor(monkeypatch, name, library):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name})
    assert machine.product_library() == library


def loss_by_hand(network, pixels, labels, weights, anchor, training):
    """Compute the loss of a batch by the formulas of cross-entropy and penalty, for autograd."""
    losses = F.cross_entropy(network(pixels), labels, reduction="none")
    theta = parameters_to_vector(network.parameters())
    step, sizes = theta - anchor, [tensor.numel() for tensor in network.parameters()]
    penalty = {
        "none": torch.zeros(()),
        "proximal": step.square().sum() / 2,
        "norms": sum(tensor.norm() for tensor in step.split(sizes)),
        "cosine": anchor @ theta / theta.norm(),
        "linear": anchor @ theta,
    }
    return (weights * losses).sum() / len(labels) + training.strength * penalty[training.penalty]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("penalty", "strength", "anchored"),
    [
        ("none", 0.0, False),
        ("proximal", 0.5, True),
        ("proximal", 0.5, False),  # the start is the usual anchor
        ("norms", 0.3, True),
        ("cosine", -0.7, True),
        ("cosine", 0.3, True),
        ("linear", 0.2, True),
    ],
)
def test_weights_and_penalties_do_what_their_formulas_say(
    float64, federate, small, engine, penalty, strength, anchored
):
    training = replace(SGD, penalty=penalty, strength=strength)
    federation = federate(engine=engine)
    clients, anchors = torch.tensor([0, 3, 4]), torch.tensor([1, 0, 1])
    generator = torch.Generator().manual_seed(0)
    weights = [torch.rand(federation.num_samples(c), generator=generator) for c in clients.tolist()]
    anchor = torch.stack([federation.initial(), federation.blueprint.initials(1, 7)[0]])
    named = {"anchor": anchor[anchors]} if anchored else {}
    anchors = anchors if anchored else torch.zeros_like(anchors)
    jobs = first_jobs(federation, clients).replace(weights=weights, training=training, **named)
    trained = federation.train(jobs, 2)
    for job, client in enumerate(clients.tolist()):
        held = federation.partition.train[client].tolist()

        def loss(network, pixels, labels, batch, job=job, held=held):
            own = weights[job][[held.index(index) for index in batch.tolist()]]
            return loss_by_hand(network, pixels, labels, own, anchor[anchors[job]], training)

        expected = plain_loop(federation, small, "compact-cnn", client, 2, loss)
        torch.testing.assert_close(trained[job], expected, rtol=1e-9, atol=1e-11)


def test_a_job_without_samples_keeps_its_model(federate, engine):
    federation = federate(engine=engine)
    training = replace(federation.training, weight_decay=0.1)
    jobs = first_jobs(federation).replace(training=training)
    some = [torch.arange(4) for _ in range(federation.clients)]
    some[1] = some[1][:0]
    trained = federation.train(jobs.replace(subset=some), 0)
    assert torch.equal(trained[1], jobs.models[0])
    assert not torch.equal(trained[0], jobs.models[0])


@pytest.mark.slow
def test_both_ways_drop_the_same_units(federate):
    """Masks depend only on seed, client, round, step, layer and position, not on other jobs."""
    training = LocalTraining(epochs=1, batch_size=16, lr=0.01)
    threads = federate("ocfl-cnn", training)
    stacked = federate("ocfl-cnn", training, engine="stacked")
    jobs = first_jobs(threads, [0, 5])
    one, other = threads.train(jobs, 4), stacked.train(jobs, 4)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    own = threads.data.batches
    threads.data.batches = lambda client, round, *rest: own(client, 4, *rest)
    later = threads.train(jobs, 5)  # the same batches, and other masks
    assert (one - other).abs().max() < 0.01 * (one - later).abs().max()


def test_each_seed_client_round_and_step_has_its_own_masks():
    seeds = torch.cat(
        [dropout_seeds(seed, [0, 1, 2], round) for seed in (0, 1) for round in (0, 1)]
    )
    keys = torch.cat([step_keys(seeds, step) for step in range(3)])
    assert len(keys.unique()) == 2 * 2 * 3 * 3


@pytest.mark.parametrize("digests", [digests, digests_on_gpu])
def test_digests_tell_rows_apart_and_know_them_again(digests):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 1000, generator=generator)
    near = rows.clone()
    near[:, -1] = torch.nextafter(near[:, -1], torch.tensor(9.0))  # the last bit of one value
    swapped = rows[:, [1, 0, *range(2, 1000)]]
    keys = [*digests(rows), *digests(near), *digests(swapped), *digests(-rows)]
    assert len(set(keys)) == 200
    assert digests(rows[7:9].clone()) == keys[7:9]  # the number of rows does not matter
    assert len(set(digests(torch.tensor([[0.0], [-0.0], [1.0]])))) == 3


def test_jobs_that_differ_in_anything_are_different_computations(federate):
    federation = federate()
    jobs = first_jobs(federation)
    count, anchors = federation.clients, federation.blueprint.initials(2, 7)
    columns = {
        "weights": [torch.ones(3), torch.tensor([1.0, 2.0, 3.0])],
        # The position 0 adds nothing to a digest
        "subset": [torch.arange(3), torch.arange(4), torch.tensor([5]), torch.tensor([5, 0])],
        "about": [1, 2],
        "anchor": [*anchors],
    }
    changes = [{}, {"models": anchors[:1]}, {"client_of": jobs.client_of.flip(0)}]
    changes += [{name: [value] * count} for name, values in columns.items() for value in values]
    assert len({jobs.replace(**change).keys()[0] for change in changes}) == len(changes)
    keys = jobs.replace(about=torch.arange(count)).keys()  # a column may be a tensor
    assert keys == jobs.replace(about=[torch.tensor(client) for client in range(count)]).keys()
    assert len(set(keys)) == count


def test_requests_that_differ_are_not_answered_together(federate):
    jobs, count = first_jobs(federate()), partial(sum)
    requests = [
        Train(jobs),
        Train(jobs, order=3),
        Train(jobs.replace(training=ADAM)),
        Losses(jobs),
        Losses(jobs, split="test"),
        Ask(jobs, question=count),
        Ask(jobs, question=count, options={"least": 1}),
        Ask(jobs, question=count, options={"least": 2}),
        Ask(jobs, question=first_jobs),
    ]
    assert len({request.kind() for request in requests}) == len(requests)


def test_a_question_is_answered_by_each_client_from_its_own_data(federate, small, split):
    federation = federate()

    def told(client, model, least):
        _, labels = client.samples("test")
        often = [int(label) for label in labels.unique() if (labels == label).sum() >= least]
        return often, client.embed(model, "test"), client.losses(model, "test")

    jobs = first_jobs(federation, [4, 0])
    answers = Ask(jobs, question=told, options={"least": 2}).answered_by(federation, 0)
    embeddings, losses = federation.embed(jobs, "test"), federation.losses(jobs, "test")
    for job, client in enumerate((4, 0)):
        often, own_embeddings, own_losses = answers[job]
        counts = small.labels[split.test[client]].bincount()
        assert often == (counts >= 2).nonzero().flatten().tolist()
        assert torch.equal(own_embeddings, embeddings[job])
        assert torch.equal(own_losses, losses[job])


def test_nothing_to_do_is_no_error(federate, engine):
    federation = federate(engine=engine)
    nothing = first_jobs(federation, [])
    assert federation.train(nothing, 0).shape == (0, federation.parameters)
    assert federation.predict(nothing) == federation.losses(nothing) == []


@pytest.mark.parametrize("model", ["one-pixel", "normalised"])
def test_batch_normalisation_trains_as_in_a_plain_loop(small, normalised, engine, model):
    """Rows hold the running statistics, which a batch of one sample and one pixel leaves.

    The clients' last batches have 1, 9 and 1 samples.
    """
    held = [np.arange(17), np.arange(17, 42), np.arange(42, 43)]
    split = Partition(small.name, held, [np.arange(0)] * 3, None, {})
    federation = Federation(small, split, model, SGD, device="cpu", engine=engine)
    trained = federation.train(first_jobs(federation), 0)

    def loss(network, pixels, labels, batch):
        network.train(model == "normalised" or len(batch) > 1)  # only BatchNorm depends on it
        return cross_entropy(network, pixels, labels, batch)

    expected = trained_in_loops(federation, small, model, 0, loss)
    torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-5)
    assert not any(federation.network(row).training for row in trained)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["compact-bn", "ocfl-cnn"])
def test_a_stack_is_shared_by_cores_and_cut_to_the_memory(federate, monkeypatch, model):
    """Both affect nothing except the time."""
    trained = []
    for cores, fitting, expected in ((1, 99, [6]), (4, 99, [2, 2, 2]), (1, 2.5, [2, 2, 2])):
        monkeypatch.setenv("CFLKIT_THREADS", str(cores))
        federation = federate(model, replace(SGD, epochs=1), engine="stacked")
        memory = fitting * federation.data.bytes_per_job(federation.training)
        with monkeypatch.context() as patch:
            patch.setattr(stacked, "spare_memory", Mock(return_value=memory))
            patch.setattr(stacked, "train_stack", Mock(wraps=stacked.train_stack))
            trained.append(federation.train(first_jobs(federation), 0))
            sizes = [len(call.args[1]) for call in stacked.train_stack.call_args_list]
        assert sorted(sizes) == expected
        torch.testing.assert_close(trained[-1], trained[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_each_client_computes_on_one_core(federate, monkeypatch, threads):
    """This also holds for a single client or thread, since bits must not depend on the cores."""
    monkeypatch.setenv("CFLKIT_THREADS", threads)
    federation = federate()
    seen = set()
    samples = Clients.samples

    def watched(*given):
        numpys = {library["num_threads"] for library in blas_libraries().info()}
        seen.update({torch.get_num_threads()} | numpys)
        return samples(*given)

    monkeypatch.setattr(Clients, "samples", watched)
    jobs = first_jobs(federation)
    with blas_libraries().limit(limits=2):
        federation.train(jobs, 0)
        federation.train(jobs.part([3]), 0)
        federation.predict(jobs.part([3]))
        assert {library["num_threads"] for library in blas_libraries().info()} == {2}
    assert seen == {1}


@pytest.mark.slow
def test_building_and_stacked_training_leave_the_global_generator_alone(federate, no_draws):
    federation = federate("ocfl-cnn", engine="stacked")
    assert federation.data.bytes_per_sample > 0
    federation.train(first_jobs(federation, [0]), 0)


def test_a_stack_counts_what_the_backward_pass_keeps(federate):
    """Twice the batch keeps twice the activations, for the batch size of the given training."""
    federation = federate(engine="stacked")
    rows = 6 * 4 * federation.parameters
    bytes_of = [federation.data.bytes_per_job(LocalTraining(batch_size=b)) - rows for b in (8, 16)]
    assert bytes_of[1] / bytes_of[0] == pytest.approx(2)
    # At least the outputs of four convolutions of ten channels, at 8×8 and 4×4
    assert bytes_of[0] > 8 * 4 * 10 * (2 * 64 + 2 * 16)


@pytest.mark.parametrize(("device", "engine"), [("cpu", "threads"), ("cuda", "stacked")])
def test_the_engine_is_the_fastest_one(device, engine):
    assert machine.engine_to_use(None, torch.device(device)) == engine


@pytest.mark.parametrize(("precision", "expected"), [("float32", "ieee"), ("tf32", "tf32")])
def test_tf32_is_on_only_if_asked_for(precision, expected):
    """By default, torch uses TF32 in convolutions; the switches can be read without a GPU."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    before = [switch.fp32_precision for switch in switches]
    deterministic = torch.backends.cudnn.deterministic
    with products_on_cuda(precision):
        assert [switch.fp32_precision for switch in switches] == [expected] * 2
        assert torch.backends.cudnn.deterministic
    assert [switch.fp32_precision for switch in switches] == before
    assert torch.backends.cudnn.deterministic == deterministic


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ocfl-cnn", "compact-bn"])
def test_all_tensors_are_on_the_device_of_the_federation(federate, monkeypatch, engine, model):
    """Stand in for a GPU: operations refuse to mix torch's device ``meta`` with the CPU."""
    local = replace(MOMENTUM, penalty="cosine", strength=0.1)
    federation = federate(model, training=local, device="meta", engine=engine)
    anchors = list(federation.blueprint.initials(2, 7))
    columns = {"subset": [torch.arange(8)] * 2, "weights": [torch.ones(8)] * 2, "anchor": anchors}
    jobs = first_jobs(federation, [0, 3]).replace(**columns)
    trained = torch.empty(len(jobs), jobs.models.shape[1], device="meta")
    TRAIN[engine](federation.data, jobs, 0, local, trained)
    answers = [*federation.predict(jobs), *federation.losses(jobs), *federation.embed(jobs)]
    answers += federation.ask(lambda client, row: client.embed(row, "train", None, True), jobs)
    assert {answer.device.type for answer in answers} == {"meta"}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["compact-cnn", "ocfl-cnn"])
def test_same_seed_same_bits_whatever_else_is_trained(federate, model):
    """This also holds with dropout, whose masks must not depend on the order of threads."""
    one, other = (federate(model, replace(SGD, epochs=1), seed=5) for _ in range(2))
    first = one.train(first_jobs(one), 1)
    backwards = first_jobs(other, range(other.clients)[::-1])
    assert torch.equal(first, other.train(backwards, 1).flip(0))


def test_a_job_trains_on_its_part_of_a_client_alone(federate, small, split, engine):
    """The result is the same as for a client that holds only these samples."""
    parts = [torch.arange(0, 20), torch.arange(30, 43)]
    whole = federate(engine=engine, training=ADAM)
    trained = whole.train(first_jobs(whole, [2, 2]).replace(subset=parts), 1)
    for part, found in zip(parts, trained, strict=True):
        held = [*split.train]
        held[2] = held[2][part.numpy()]
        fewer = replace(split, train=held)
        other = Federation(small, fewer, "compact-cnn", ADAM, device="cpu", engine=engine)
        [expected] = other.train(first_jobs(other, [2]), 1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_autoencoders_learn_to_reconstruct(federate, small, split, engine):
    training = LocalTraining(epochs=10, batch_size=16, optimizer="adam", lr=1e-3)
    federation = federate("autoencoder", training, engine=engine)
    jobs = first_jobs(federation)
    trained = federation.train(jobs, 0)
    images = small.images[split.train[1]].flatten(1).float() / 255
    after = Jobs(trained, jobs.client_of, jobs.client_of)
    errors = (federation.predict(after, "train")[1] - images).square().mean(1)
    torch.testing.assert_close(federation.losses(after)[1], errors)
    assert errors.mean() < 0.8 * federation.losses(jobs)[1].mean()
    network = federation.network(trained[1])
    with torch.no_grad():
        torch.testing.assert_close(federation.embed(after, "train")[1], network.encoder(images))


def test_each_draw_depends_on_the_seed_the_round_and_the_client(federate, split):
    federation, other = federate(clients_per_round=3), federate(clients_per_round=3, seed=1)
    first, second = federation.blueprint.initials(2, 7), federation.blueprint.initials(2, 8)
    assert torch.equal(first, federate().blueprint.initials(2, 7))
    rows = [federation.initial(), other.initial(), *first, *second]
    assert len({tuple(row[:5].tolist()) for row in rows}) == 6
    drawn = [federation.batches(0, 0), federation.batches(0, 1), other.batches(0, 0)]
    drawn = [torch.cat(batches).tolist() for batches in (*drawn, federation.batches(1, 0))]
    assert len(set(map(tuple, drawn))) == 4
    n = len(split.train[0])
    epochs = drawn[0][:n], drawn[0][n:]
    assert epochs[0] != epochs[1]
    assert [sorted(epoch) for epoch in epochs] == [split.train[0].tolist()] * 2
    present = [[each.participants(t).tolist() for t in range(5)] for each in (federation, other)]
    assert present[0] != present[1] and len(set(map(tuple, present[0]))) > 1


@pytest.mark.slow
def test_predict_losses_and_embed_agree_with_the_network(federate, small, split):
    federation = federate("ocfl-cnn")
    jobs = first_jobs(federation)
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
    assert [len(p) for p in federation.predict(jobs)] == [len(t) for t in split.test]
    assert torch.equal(federation.targets(3), small.labels[split.test[3]])
    central = federation.predict(jobs, "central")
    assert {len(p) for p in central} == {len(small.test_labels)}
    assert torch.equal(federation.targets(0, "central"), small.test_labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "a whole number from 0 on, not -1"),
        ({"engine": "ray"}, "unknown engine 'ray'"),
        ({"training": LocalTraining(precision="tf32")}, "tf32 needs an NVIDIA GPU"),
        ({"clients_per_round": 0.5}, "a whole number from 1 to 6, not 0.5"),
        ({"clients_per_round": 7}, "a whole number from 1 to 6, not 7"),
        ({"model": "linear", "training": LocalTraining(trains="body")}, "has nothing to train"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(federate, options, message):
    with pytest.raises(ValueError, match=message):
        federate(**options)


def test_data_that_do_not_fit_are_refused(small, split, federate, monkeypatch):
    with pytest.raises(ValueError, match="the partition is of 'mnist'"):
        Federation(small, replace(split, dataset="mnist"))
    with pytest.raises(ValueError, match="beyond the 1437 samples"):
        Federation(small, replace(split, train=[*split.train[:-1], np.array([1, 99999])]))
    own = replace(small, images=small.images / 127.5 - 1, test_images=small.test_images / 127.5 - 1)
    with pytest.raises(ValueError, match="from 0 to 1, but these features go from -1 to 1"):
        Federation(own, split, "autoencoder", device="cpu")
    with pytest.raises(ValueError, match="unknown split 'validation'"):
        federation = federate()
        federation.predict(first_jobs(federation), "validation")
    monkeypatch.setenv("CFLKIT_THREADS", "1.5")
    with pytest.raises(ValueError, match="CFLKIT_THREADS must be a positive integer"):
        federate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs\n  Input should be greater than or equal to 1"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum belongs to sgd"),
        ({"strength": 0.1}, "a strength needs a penalty"),
        ({"penalty": "proximal", "strength": -0.1}, "a strength ≥ 0, not -0.1"),
    ],
)
def test_local_training_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**options)
