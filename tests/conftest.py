import dataclasses
import os
from collections import OrderedDict
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import nbval.kernel
import pytest
import torch
from hypothesis import settings
from jupyter_client import KernelManager
from torch import nn

from cflkit import _project, datasets, models, partition
from cflkit.__main__ import main
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import shifts
from cflkit.reproduce import notebooks, records

# No deadline, so that no property fails only because the machine is busy
settings.register_profile("any machine", deadline=None)
settings.register_profile("quick", settings.get_profile("any machine"), max_examples=25)
settings.load_profile("any machine")


def pytest_configure(config):
    """Let nbval's kernels talk as those of `notebooks.execute` do, since tests run side by side."""
    sockets = ExitStack()
    options = sockets.enter_context(notebooks.private_sockets())
    nbval.kernel.KernelManager = partial(KernelManager, config=options)
    config.add_cleanup(sockets.close)


@pytest.fixture(autouse=True)
def outputs_elsewhere(tmp_path_factory, monkeypatch):
    """Keep the records, figures and checkpoints of tests out of the project."""
    folder = tmp_path_factory.mktemp("outputs")
    for name in ("RESULTS", "FIGURES", "CACHE"):
        monkeypatch.setenv(f"CFLKIT_{name}", str(folder / name.lower()))


@pytest.fixture
def unperturbed(monkeypatch):
    """Leave the last bit as it is, for a test whose question `--perturb` would change."""
    monkeypatch.setattr(Federation, "after_training", ())


@pytest.fixture
def data_root():
    """Return the folder of real data, or skip the test if there is none."""
    root = os.environ.get("CFLKIT_DATA")
    if not root:
        pytest.skip("needs real data: set CFLKIT_DATA to a folder that holds MNIST/raw/*.gz")
    return Path(root)


@pytest.fixture(scope="session")
def repository():
    """Skip a test that needs the project's files in git, as a downloaded archive has none."""
    if _project.git("ls-files", "--error-unmatch", "Makefile") is None:
        pytest.skip("needs git and a clone of the project")


@pytest.fixture(scope="session")
def committed():
    """Read the records of the project once, as their tables are read when they are asked for."""
    return records.committed()


@pytest.fixture(scope="session")
def digits():
    return datasets.load("digits")


@pytest.fixture(scope="session")
def small():
    """Load the digits at 8×8 pixels, on which training is quick."""
    return datasets.load("digits-8x8")


@pytest.fixture(scope="session")
def split(small):
    """Build a partition of six clients in three clusters of different sizes."""
    _, made = partition.ocfl(
        small, overlap="nonoverlapping", balance="imbalanced", clients=6, draws=120
    )
    return made


@pytest.fixture(scope="session")
def pool_of():
    """Build image sets whose pool has the given labels and images of one pixel."""

    def build(labels, name="numbers"):
        targets = torch.as_tensor(labels).long()
        images = torch.zeros(len(targets), 1, 1, 1, dtype=torch.uint8)
        classes = len(targets.unique())
        return datasets.ImageSet(name, images, targets, images[:0], targets[:0], classes=classes)

    return build


@pytest.fixture(scope="session")
def federate(small, split):
    """Build federations on the small digits; keyword arguments go to `Federation`."""

    def build(model="perceptron", training=None, **options):
        training = training or LocalTraining(epochs=2, batch_size=16, lr=0.1)
        return Federation(small, split, model, training, **{"device": "cpu"} | options)

    return build


@pytest.fixture(scope="session")
def turned(small):
    """Make six clients, of whom three have images that are turned by 90°, with unequal sizes."""
    images, split = shifts.make(small, "quarter-turn", clients=6, samples=60)
    smaller = [own[: len(own) - 3 * client] for client, own in enumerate(split.train)]
    return images, dataclasses.replace(split, train=smaller)


@pytest.fixture(scope="session")
def federate_turned(turned):
    """Build federations of the clients in `turned`; keyword arguments go to `Federation`."""
    images, usual = turned

    def build(split=usual, **options):
        options = {"model": "linear", "training": LocalTraining(2, 16, lr=0.05)} | options
        return Federation(images, split, device="cpu", **options)

    return build


@pytest.fixture
def federation(federate_turned):
    """Build the federation of the clients in `turned`."""
    return federate_turned()


@pytest.fixture
def normalised(monkeypatch):
    """Register a small network with BatchNorm in place of ResNet34, and return its name.

    In the network "one-pixel", BatchNorm sees one value per channel and sample of 8×8 pixels.
    """

    def build(shape, classes, side=3):
        height, width = (pixels - side + 1 for pixels in shape[1:])
        parts = OrderedDict(
            features=nn.Sequential(nn.Conv2d(shape[0], 4, side), nn.BatchNorm2d(4), nn.ReLU()),
            flatten=nn.Flatten(),
            classifier=nn.Linear(4 * height * width, classes),
        )
        return nn.Sequential(parts)

    monkeypatch.setitem(models.MODELS, "normalised", build)
    monkeypatch.setitem(models.MODELS, "one-pixel", partial(build, side=8))
    return "normalised"


@pytest.fixture
def printed(capsys):
    """Run a command that must succeed; return what it prints."""

    def run(*words):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refuse(capsys):
    """Run a command that must fail and write no record; return its error message of one line."""

    def run(*words):
        before = set(records.results().glob("*"))
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith("error: ") and err.count("\n") == 1
        assert set(records.results().glob("*")) == before
        return err

    return run


@pytest.fixture
def no_draws():
    """Check that a test draws nothing from torch's global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(autouse=True)
def same_threads():
    """Check that no test changes torch's number of threads."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
