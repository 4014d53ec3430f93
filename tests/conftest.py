import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import nn

from cflkit import datasets, models, partition
from cflkit.federation import Federation, LocalTraining

# A busy machine fails no property
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def outputs_elsewhere(tmp_path_factory, monkeypatch):
    """Records, figures and checkpoints of tests never land in the project."""
    folder = tmp_path_factory.mktemp("outputs")
    for name in ("RESULTS", "FIGURES", "CACHE"):
        monkeypatch.setenv(f"CFLKIT_{name}", str(folder / name.lower()))


@pytest.fixture
def data_root():
    """The folder of real data, or a skip that says so."""
    root = os.environ.get("CFLKIT_DATA")
    if not root:
        pytest.skip("needs real data: set CFLKIT_DATA to a folder that holds MNIST/raw/*.gz")
    return Path(root)


@pytest.fixture(scope="session")
def digits():
    return datasets.load("digits")


@pytest.fixture(scope="session")
def small():
    """The digits at 8×8: quick to train on."""
    return datasets.load("digits-8x8")


@pytest.fixture(scope="session")
def split(small):
    """Six clients in three clusters, of different sizes."""
    _, made = partition.ocfl(
        small, overlap="nonoverlapping", balance="imbalanced", clients=6, draws=120
    )
    return made


@pytest.fixture(scope="session")
def pool_of():
    """Build an image set that has nothing but the given labels in its pool."""

    def build(labels, name="numbers"):
        targets = torch.as_tensor(labels).long()
        images = torch.zeros(len(targets), 1, 1, 1, dtype=torch.uint8)
        classes = len(targets.unique())
        return datasets.ImageSet(name, images, targets, images[:0], targets[:0], classes=classes)

    return build


@pytest.fixture
def federate(small, split):
    """Build a federation on the small digits; keyword arguments go to `Federation`."""

    def build(model="compact-cnn", training=None, **options):
        training = training or LocalTraining(epochs=2, batch_size=16, lr=0.1)
        return Federation(small, split, model, training, device="cpu", **options)

    return build


@pytest.fixture
def normalised(monkeypatch):
    """The name of a small network with BatchNorm, to stand for ResNet34."""

    def build(shape, classes):
        parts = OrderedDict(
            features=nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            flatten=nn.Flatten(),
            classifier=nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), classes),
        )
        return nn.Sequential(parts)

    monkeypatch.setitem(models.MODELS, "normalised", build)
    return "normalised"


@pytest.fixture(autouse=True)
def same_threads():
    """The engine leaves torch's number of threads as it found it."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
