"""The samples of Tutorial 022."""

import numpy as np
import pytest
import torch
from torch import nn

from cflkit import models
from cflkit.federation import Federation
from cflkit.partition import features


@pytest.fixture(scope="module")
def made():
    return features.class_bumps()


def test_the_training_samples_are_the_tutorials_own_and_others_are_new(made):
    """They are drawn from the generator behind ``np.random.seed(42)``, client by client.

    The new ones have the same distribution, but come from a generator of their own. They are the
    central test set, too.
    """
    samples, split = made
    legacy, fresh = np.random.RandomState(42), np.random.default_rng(42)
    for client in range(split.clients):
        first = client // 10 * 3
        allowed = [first, first + 1, first + 2, first + 3]
        n = legacy.randint(50, 150)
        x = legacy.randn(n, 32).astype("float32")
        y = legacy.choice(allowed, size=n)
        new = fresh.standard_normal((features.NEW_SAMPLES, 32), dtype=np.float32)
        new_y = fresh.choice(allowed, size=features.NEW_SAMPLES)
        for part, drawn, labels in ((split.train, x, y), (split.test, new, new_y)):
            drawn += 2.0 * np.eye(32, dtype="float32")[labels]
            assert np.array_equal(samples.images[part[client]].flatten(1).numpy(), drawn)
            assert np.array_equal(samples.labels[part[client]].numpy(), labels)
    assert len(torch.unique(samples.images, dim=0)) == len(samples.images)
    assert sum(map(len, [*split.train, *split.test])) == len(samples.images), "all have a client"
    assert torch.equal(samples.test_images, samples.images[np.concatenate(split.test)])


def test_height_and_seed_change_the_samples_and_clients_their_number():
    base, split = features.class_bumps(clients=6, seed=1)
    higher, _ = features.class_bumps(clients=6, seed=1, height=3.0)
    other, elsewhere = features.class_bumps(clients=6, seed=2)
    assert split.clusters.tolist() == [0, 0, 1, 1, 2, 2]
    raised = higher.images - base.images
    assert torch.allclose(raised.flatten(1).sum(dim=1), torch.ones(len(raised)), atol=1e-5)
    assert len(base.images) != len(other.images) or not torch.equal(base.images, other.images)
    assert base.name == "class-bumps-2-seed1" != higher.name
    assert features.class_bumps(clients=6, seed=1, height=2.0000001)[0].name != base.name
    assert split.hash != elsewhere.hash


@pytest.mark.parametrize("network", ["compact-cnn", "emd-cnn-small", "mine"])
def test_a_network_that_cannot_take_features_is_refused_with_advice(made, monkeypatch, network):
    monkeypatch.setitem(models.MODELS, "mine", lambda shape, classes: nn.Conv2d(3, classes, 1))
    said = rf"'{network}' cannot take samples of the shape \(32, 1, 1\).* take 'perceptron'"
    with pytest.raises(ValueError, match=said):
        Federation(*made, network, device="cpu")


@pytest.mark.parametrize("network", ["linear", "perceptron", "mine"])
def test_a_network_that_takes_features_is_left_as_it_was_built(
    made, monkeypatch, network, no_draws
):
    """The first pass must not change statistics, draw numbers or end the training mode."""

    def build(shape, classes):
        own = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(shape[0]), nn.Dropout())
        return own.append(nn.Linear(shape[0], classes))

    monkeypatch.setitem(models.MODELS, "mine", build)
    federation = Federation(*made, network, device="cpu")
    first = federation.blueprint.first
    assert first.network.training
    assert torch.equal(first.row, federation.initial())
    if network == "mine":
        assert first.values["1.num_batches_tracked"] == 0
