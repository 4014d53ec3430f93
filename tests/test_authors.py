"""Our methods beside their authors' own code, which was run once elsewhere (golden/README.md)."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cflkit import clustering, datasets, methods, models
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.methods import emd_cfl_variants
from cflkit.methods.baselines import clove, flux
from cflkit.methods.emd_cfl_variants import REFERENCE
from cflkit.partition import Partition

GOLDEN = Path(__file__).parent / "golden"
INPUTS = np.load(GOLDEN / "inputs.npz")
FIRST = torch.from_numpy(INPUTS["models"])
# Of float32, in which both sides train: ten times the largest difference, see golden/README.md
CLOSE = {"rtol": 0, "atol": 1e-6}


def golden(name, part=""):
    """Return the arrays of an authors' run, or those of one method in it."""
    arrays = np.load(GOLDEN / f"{name}.npz")
    return {key.removeprefix(part): arrays[key] for key in arrays.files if key.startswith(part)}


@pytest.fixture
def federate(monkeypatch):
    """Build federations of the golden images, on whole batches: their order does not matter."""

    def narrow(shape, classes):
        parts = {"flatten": nn.Flatten(), "hidden": nn.Sequential(nn.Linear(64, 8), nn.ReLU())}
        return nn.Sequential(OrderedDict(parts | {"classifier": nn.Linear(8, classes)}))

    monkeypatch.setitem(models.MODELS, "narrow", narrow)
    images = torch.from_numpy(INPUTS["images"])[:, None]
    labels = torch.from_numpy(INPUTS["labels"]).long()
    pool = datasets.ImageSet("golden", images, labels, images[:0], labels[:0], classes=10)

    def build(train=None, **training):
        by_split = [
            [np.flatnonzero((INPUTS["client"] == c) & (INPUTS["split"] == s)) for c in range(6)]
            for s in range(3)
        ]
        more = {} if train else {"validation": by_split[1]}
        none = [np.empty(0, np.int64)] * len(train or [])
        split = Partition("golden", train or by_split[0], none or by_split[2], None, {}, more)
        training = LocalTraining(batch_size=64, **training)
        return Federation(pool, split, "narrow", training, device="cpu")

    return build


def steps(method, federation, rounds, start=FIRST[0]):
    """Run a method from the golden models, and give it back after each round."""
    method.setup(federation.server, start.clone())
    if len(method.models) == len(FIRST):
        method.models = FIRST.clone()
    for t in range(rounds):
        federation.converse(method.round(t), t)
        yield method


# As the authors' runs of EMD-CFL and of the baselines in the same code
COMPARISON = {"epochs": 40, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-6}


@pytest.mark.slow
def test_emd_cfl_has_its_authors_scores_clusters_and_models(federate, monkeypatch):
    """The random matrices are those that the authors' run has drawn."""
    theirs = golden("emd_cfl", "emd-cfl/")

    def drawn(seed, owner, other, *_):
        square = other == REFERENCE
        return (theirs["squares"][owner] if square else theirs["projections"][owner, other]).T

    monkeypatch.setattr(emd_cfl_variants, "matrix", drawn)
    options = {"draws": "per distance", "train_mode": True, "epsilon": 0.1}
    method = methods.make("emd-cfl-variant", **options)
    for t, done in enumerate(steps(method, federate(**COMPARISON), 3)):
        assert done.labels.tolist() == theirs["memberships"][1].tolist()
        torch.testing.assert_close(done.models.numpy(), theirs["models"][t], **CLOSE)
    scores = theirs["distances"][:, 1:] - theirs["distances"][:, :1]
    np.testing.assert_allclose(method.scores, scores, **CLOSE)
    for epsilon, members in zip(theirs["tolerances"], theirs["memberships"], strict=True):
        labels, _ = emd_cfl_variants.clusters_of(np.round(scores, 4), epsilon)
        assert labels.tolist() == members.tolist()


CLUSTERERS = [
    ("hdbscan", {"min_cluster_size": 3, "implementation": "scikit-learn"}),
    ("hdbscan", {"min_cluster_size": 3}),
    ("kmeans", {"n_clusters": 3}),
    ("meanshift", {}),
    ("affinity", {"wrong_sign": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize("clusterer, options", CLUSTERERS)
def test_ocfl_has_its_authors_temperatures_clusters_and_models(clusterer, options, federate):
    """Their library trains the same clients, of three groups of classes, and fires in round 4."""
    theirs = golden("ocfl", f"{clusterer}/")
    groups = (0, 1, 2, 3), (4, 5, 6), (7, 8, 9)
    own = [np.flatnonzero(np.isin(INPUTS["labels"], group)) for group in groups]
    held = [indices[i::4] for indices in own for i in range(4)]
    federation = federate(held, epochs=2, lr=0.02)
    method = methods.make("ocfl", clusterer=clusterer, options=options)
    for t, done in enumerate(steps(method, federation, 8)):
        same = done.labels[:, None] == done.labels
        found = theirs["labels"][t]
        np.testing.assert_array_equal(same, found[:, None] == found)
    np.testing.assert_allclose(method.temperatures, theirs["temperatures"], **CLOSE)
    np.testing.assert_allclose(method.models[method.labels], theirs["models"], **CLOSE)


@pytest.mark.parametrize("name", ["fedem", "fedrc"])
def test_mixtures_have_their_authors_components_and_shares(name, federate):
    theirs = golden(name)
    method = methods.make(name, k=2)
    for t, done in enumerate(steps(method, federate(epochs=5, lr=0.2), 4)):
        np.testing.assert_allclose(done.models, theirs["models"][t], **CLOSE)
        np.testing.assert_allclose(done.shares, theirs["shares"][t], **CLOSE)
        if name == "fedrc":
            np.testing.assert_allclose(done.class_shares, theirs["class_shares"][t], **CLOSE)


# What the code of EMD-CFL's comparison does, by method
GRAPH = {"anchor": "own", "since": "received", "clipped": False, "in_turn": True}
EQUAL_MODELS = {"k": 2, "zeros_first": True, "received": True}
AS_COMPARED = {
    "fedprox": {"squared": False},
    "fesem": EQUAL_MODELS | {"squared": False, "weighting": "samples"},
    "pfedgraph": GRAPH,
    "fedsac": GRAPH | {"mu": 1.0, "signed": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_COMPARED)
def test_baselines_as_compared_have_the_models_of_the_comparisons_code(name, federate):
    theirs = golden("emd_cfl", f"{name}/")
    federation = federate(**COMPARISON)
    federation.server.initials = lambda *_: FIRST[1:]
    for t, done in enumerate(steps(methods.make(name, **AS_COMPARED[name]), federation, 3)):
        # Differences grow over 120 epochs, most where the norm of a short step is divided by
        np.testing.assert_allclose(done.models, theirs["models"][t], rtol=0, atol=1e-5)
        if "memberships" in theirs:
            assert done.labels.tolist() == theirs["memberships"][t].tolist()


def test_flux_has_its_authors_descriptors_and_clusters(federate):
    theirs, federation = golden("flux"), federate()
    method = methods.make("flux", start=1, components=8)
    [_] = steps(method, federation, 1)
    asked = Jobs(FIRST[:1], torch.zeros(6, dtype=torch.int64), torch.arange(6))
    [question] = method.asks()
    own = np.stack(federation.ask(flux.descriptor, asked, **question.options))
    np.testing.assert_allclose(own.reshape(6, -1), theirs["descriptors"], **CLOSE)
    assert method.labels.tolist() == theirs["clusters"].tolist()
    for descriptors, labels in zip(theirs["more"], theirs["more_clusters"], strict=True):
        found = flux.cluster(descriptors.reshape(12, 22, 2).astype(float))
        assert found.tolist() == labels.tolist()


@pytest.mark.parametrize("tau", [0.6, 0.5, 0.4, 0.33, 0.3, 0.25, 0.2, 0.1])
def test_stocfl_has_its_authors_clusters_and_models(federate, tau):
    theirs = golden("stocfl", f"{tau}/")
    stocfl = methods.make("stocfl", threshold=1 - tau, lam=0.05)
    *_, stocfl = steps(stocfl, federate(epochs=5, lr=0.2), 3)
    ours = clustering.canonical_labels(stocfl.labels)
    np.testing.assert_array_equal(ours, clustering.canonical_labels(theirs["labels"]))
    if "models" in theirs:
        np.testing.assert_allclose(stocfl.models[stocfl.labels], theirs["models"], **CLOSE)
        np.testing.assert_allclose(stocfl.common, theirs["common"], **CLOSE)


@pytest.mark.parametrize("starts", [1, 10])
def test_clove_has_its_authors_clusters_and_models(starts, federate):
    theirs = golden("clove", f"{starts}/")
    method = methods.make("clove", k=2, starts=starts)
    for t, done in enumerate(steps(method, federate(epochs=5, lr=0.2), 3)):
        assert done.labels.tolist() == theirs["labels"][t].tolist()
        np.testing.assert_allclose(done.models, theirs["models"][t], **CLOSE)
    for vectors, labels in zip(golden("clove")["vectors"], theirs["clusters"], strict=True):
        assert clove.clusters_with_models(vectors, starts).tolist() == labels.tolist()


def test_feddrift_has_its_authors_clusters_and_weights(federate):
    """Two looks at the mean losses of six models; in the second, all but drifted clients stay."""
    theirs, federation = golden("feddrift"), federate()
    padded = nn.functional.pad(torch.eye(6), (0, FIRST.shape[1] - 6))
    for first, second, (then, now), merged in zip(
        theirs["first"], theirs["second"], theirs["labels"], theirs["models"], strict=True
    ):
        method = methods.make("feddrift", start="each", period=1, weighting="equal")
        method.setup(federation.server, FIRST[0])
        method.models = padded
        for t, (losses, labels) in enumerate(((first, then), (second, now)), start=1):
            # Their columns of models are in another order
            numbers = np.unique(then, return_inverse=True)[1] if t == 2 else np.arange(6)
            order = [numbers[method.labels == k][0] for k in range(len(method.models))]
            talk = method.round(t)
            next(talk)
            talk.send([*torch.from_numpy(losses[:, order]).flatten()])
            found = clustering.canonical_labels(method.labels)
            assert found.tolist() == clustering.canonical_labels(labels).tolist()
            if t == 1:
                np.testing.assert_allclose(method.models[method.labels, :6], merged, **CLOSE)
