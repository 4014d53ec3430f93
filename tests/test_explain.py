"""Tests of GradCAM, insertion and deletion against plain computations."""

import copy
import dataclasses
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reports import figures
from rounds import begin
from scipy.ndimage import gaussian_filter
from torch import nn

from cflkit import explain, methods, models, simulation
from cflkit.explain import assessment
from cflkit.reproduce import notebooks, papers, records
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return models.make("compact-cnn", (1, 12, 12), 5).eval()


@pytest.fixture(scope="module")
def images():
    return torch.rand(6, 1, 12, 12, generator=torch.Generator().manual_seed(1))


CLASSES = torch.tensor([0, 1, 2, 3, 4, 0])


def by_hand(network, images, classes, layer):
    """Compute GradCAM by equations 1 and 2 of Selvaraju et al."""
    caught = []
    hook = network.get_submodule(layer).register_forward_hook(lambda *a: caught.append(a[-1]))
    scores = network(images).gather(1, classes[:, None]).sum()
    hook.remove()
    [activations] = caught
    [gradients] = torch.autograd.grad(scores, activations)
    maps = F.relu((gradients.mean(dim=(2, 3), keepdim=True) * activations).sum(1, keepdim=True))
    large = F.interpolate(maps, images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    largest = large.amax((1, 2), keepdim=True)
    return (large / torch.where(largest > 0, largest, 1.0)).detach()


@pytest.mark.parametrize("layer", ["features.8", "features.7", "features.2"])
def test_gradcam_is_what_the_paper_says(network, images, layer):
    found = explain.gradcam(network, images, CLASSES, layer)
    expected = by_hand(network, images, CLASSES, layer)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_map_without_support_is_zero_and_finite(images):
    """The class scores of this network do not depend on the image."""
    network = models.make("compact-cnn", (1, 12, 12), 5).eval()
    nn.init.zeros_(network.classifier.weight)
    maps = explain.gradcam(network, images, CLASSES, "features.7")
    assert torch.equal(maps, torch.zeros(6, 12, 12))


def background_by_hand(images, baseline):
    """Compute the values of absent pixels; the blur is a Gaussian whose σ is 5 pixels."""
    if baseline == "zeros":
        return torch.zeros(images.shape)
    if baseline == "mean":
        means = [[float(channel.mean()) for channel in image] for image in images]
        return torch.tensor(means)[:, :, None, None].expand(images.shape)
    return torch.from_numpy(gaussian_filter(images, 5, mode="mirror", radius=5, axes=(2, 3)))


@pytest.mark.parametrize("baseline", explain.BASELINES)
def test_baselines_are_those_by_hand(baseline):
    colourful = torch.rand(2, 3, 12, 15, generator=torch.Generator().manual_seed(0))
    found = explain.background(colourful, baseline)
    expected = background_by_hand(colourful, baseline)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def slow_curves(network, images, maps, classes, step, baseline):
    """Compute the curves for one image and one frame at a time: ``[2, n, steps + 1]``."""
    probabilities = []
    orders = explain.pixel_order(maps, seed=0)
    for image, order, label, empty in zip(images, orders, classes, baseline, strict=True):
        pixels = image[0].numel()
        for count in [*range(0, pixels, step), pixels]:
            changed = torch.isin(torch.arange(pixels), order[:count]).view(image.shape[1:])
            for frame in (image.where(changed, empty), empty.where(changed, image)):
                probabilities.append(network(frame[None]).softmax(1)[0, label].item())
    return torch.tensor(probabilities).view(len(images), -1, 2).permute(2, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baseline", "step"), [("zeros", 1), ("blur", 10), ("mean", 144), ("zeros", 500)]
)
def test_curves_are_those_of_a_slow_loop(network, images, baseline, step):
    """A step of 10 does not divide 144 pixels, and a step of 500 changes all at once."""
    some, classes = images[:2], CLASSES[:2]
    maps = explain.gradcam(network, some, classes, "features.7")
    found = explain.curves(network, some, maps, classes, step=step, baseline=baseline)
    empty = background_by_hand(some, baseline)
    insertion, deletion = slow_curves(network, some, maps, classes, step, empty)
    torch.testing.assert_close(found.insertion, insertion, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.deletion, deletion, rtol=1e-5, atol=1e-7)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_pixels_are_ordered_by_saliency_and_else_by_chance(height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(0, 3, (4, height, width), generator=generator).float()
    order = explain.pixel_order(maps, seed)
    assert torch.equal(order.sort(dim=1).values, torch.arange(height * width).expand(4, -1))
    assert (maps.flatten(1).gather(1, order).diff(dim=1) <= 0).all()
    assert torch.equal(order, explain.pixel_order(maps, seed))


def test_where_a_map_knows_nothing_chance_decides():
    """The position of pixels must not decide: each is as often first, and last."""
    orders = explain.pixel_order(torch.zeros(2000, 3, 4), seed=0)
    for place in (0, -1):
        share = orders[:, place].bincount(minlength=12) / 2000
        assert (share - 1 / 12).abs().max() < 0.03
    assert not torch.equal(orders, explain.pixel_order(torch.zeros(2000, 3, 4), seed=1))


def test_maps_that_know_nothing_of_the_model_are_in_the_middle_bright_or_random():
    centre = explain.centre_maps(torch.zeros(1, 1, 12, 11))[0]
    assert centre.argmax() in (5 * 11 + 5, 6 * 11 + 5)
    assert torch.equal(centre, centre.flip(0).flip(1))
    colour = torch.tensor([0.0, 0.3, 0.9])[None, :, None, None].expand(1, 3, 4, 4)
    torch.testing.assert_close(explain.brightness_maps(colour), torch.full((1, 4, 4), 0.4))
    one, other = (explain.random_maps(colour, seed) for seed in (0, 1))
    assert one.shape == (1, 4, 4) and not torch.equal(one, other)


NOTHING = torch.empty(0, 12, 12)
BAD_REQUESTS = [
    ({"step": 0}, "step must be at least 1"),
    ({"baseline": "noise"}, "unknown baseline 'noise'; choose from zeros, blur, mean"),
    ({"maps": torch.zeros(6, 5, 5)}, "do not fit"),
    ({"maps": torch.full((6, 12, 12), torch.nan)}, "maps are not finite"),
    ({"images": torch.full((6, 1, 12, 12), torch.nan)}, "the images, .* are not finite"),
    ({"classes": CLASSES[:5]}, r"shape \[6\], one per image, not torch.int64 of .* \[5\]"),
    ({"classes": CLASSES.float()}, "must be int64"),
    ({"images": NOTHING[:, None], "maps": NOTHING, "classes": CLASSES[:0]}, "no image"),
    ({"classes": CLASSES + 1}, "classes are from 1 to 5, but outputs from 0 to 4"),
]


@pytest.mark.parametrize("change, message", BAD_REQUESTS)
def test_bad_requests_are_refused(network, images, change, message):
    usual = {"images": images, "maps": torch.zeros(6, 12, 12), "classes": CLASSES}
    with pytest.raises(ValueError, match=message):
        explain.curves(network, **usual | change)


def test_a_network_in_training_is_explained_as_evaluated_and_stays_as_it_was(images):
    torch.manual_seed(0)
    network = models.make("compact-bn", (1, 12, 12), 5).train()
    network.features[1].eval()
    before = copy.deepcopy(network)
    maps = explain.gradcam(network, images, CLASSES, "features.12")
    found = explain.curves(network, images, maps, CLASSES)
    with pytest.raises(ValueError, match="has no layer"):
        explain.gradcam(network, images, CLASSES, "nothing")
    modes = [[module.training for module in one.modules()] for one in (network, before)]
    assert modes[0] == modes[1]
    torch.testing.assert_close(network.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in network.parameters())
    before.eval()
    torch.testing.assert_close(maps, explain.gradcam(before, images, CLASSES, "features.12"))
    again = explain.curves(before, images, maps, CLASSES)
    torch.testing.assert_close(found.insertion, again.insertion)


def test_samples_come_from_the_clusters_clients_or_from_the_others(split):
    def drawn(source, size, seed=0):
        return assessment.samples_from(source, split, split.clusters, 0, 50, size, seed).tolist()

    def held(which):
        return np.unique(np.concatenate([split.test[c] for c in np.flatnonzero(which)])).tolist()

    inside, own = drawn("in-cluster", 30), held(split.clusters == 0)
    assert len(inside) == len(set(inside)) == min(30, len(own)) and set(inside) <= set(own)
    assert drawn("out-of-cluster", 10_000) == held(split.clusters != 0)
    central = drawn("orchestrator", 20)
    assert len(set(central)) == 20 and max(central) < 50
    assert drawn("orchestrator", 20, seed=1) != central


BAD_SOURCES = [
    ("in-cluster", [0] * 5, 0, "5 labels do not fit 6 clients"),
    ("elsewhere", [0] * 6, 0, "unknown source"),
    ("in-cluster", [0] * 6, 3, "no client is in cluster 3"),
]


@pytest.mark.parametrize("source, labels, cluster, message", BAD_SOURCES)
def test_sources_that_do_not_exist_are_refused(split, source, labels, cluster, message):
    with pytest.raises(ValueError, match=message):
        assessment.samples_from(source, split, labels, cluster, 50, 20, seed=0)


# --- Algorithm 2 ---------------------------------------------------------------------------------

HOW = assessment.Assessment("features.8", sample_size=12, step=16)


@pytest.fixture(scope="module")
def line_up(federate):
    """Run FedAvg and two methods with the same clusters for two rounds."""
    federation = federate("compact-cnn")
    found = {
        "FedAvg": methods.make("fedavg"),
        "oracle": methods.make("oracle", truth=federation.clusters),
        "twin": methods.make("oracle", truth=federation.clusters),
    }
    return found, federation, simulation.run(found, federation, rounds=2, progress=False)


@pytest.fixture(scope="module")
def assessed(line_up):
    """Explain the models of these methods, and note the clusters that are explained."""
    usual = assessment.explain_cluster
    with mock.patch.object(assessment, "explain_cluster", wraps=usual) as explained:
        history = assessment.assess(*line_up, HOW)
    return history, [call.args[3] for call in explained.call_args_list]


def test_every_clusters_model_is_explained_on_every_source_that_has_samples(assessed):
    table, summary = assessed[0].table(), assessed[0].summary()
    kinds = len(assessment.MAPS) + 2
    assert table.groupby("method", sort=False).size().tolist() == [kinds, 3 * kinds, 3 * kinds]
    assert set(table["round"]) == {2} and summary["oracle"]["n_clusters"] == 3
    assert table["clients"].unique().tolist() == ["0|1|2|3|4|5", "0|1", "2|3", "4|5"]
    assert set(table.loc[table["source"] != "in-cluster", "map"]) == {"GradCAM"}
    alone = table[table["samples"] == 0]  # nobody is outside a cluster that has all
    assert alone[["method", "source"]].to_numpy().tolist() == [["FedAvg", "out-of-cluster"]]
    assert np.isnan(summary["FedAvg"]["insertion_out-of-cluster"])
    for measure in ("insertion", "deletion"):
        quantiles = [f"{measure}_p{q:02d}" for q in (5, 25, 50, 75, 95)]
        assert (np.diff(table[quantiles].dropna().to_numpy(), axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("source", "kind"),
    [(source, "GradCAM") for source in assessment.SOURCES]
    + [("in-cluster", kind) for kind in assessment.MAPS[1:]],
)
def test_a_row_is_what_the_parts_say(line_up, assessed, small, source, kind):
    """The row of the second cluster is put together by hand."""
    found, federation, _ = line_up
    table = assessed[0].table()
    row = table.query("method == 'oracle' and cluster == 1 and source == @source and map == @kind")
    [row] = [row for _, row in row.iterrows()]
    labels, central = found["oracle"].labels, len(small.test_labels)
    drawn = assessment.samples_from(source, federation.partition, labels, 1, central, 12, seed=0)
    images, truth = federation.inputs(drawn, central=source == "orchestrator")
    network = federation.network(found["oracle"].models[1])
    untrained = federation.network(federation.blueprint.initials(1, 0)[0])
    answers = network(images).softmax(dim=1).detach()
    classes = answers.argmax(dim=1)
    maps = {
        "GradCAM": lambda: by_hand(network, images, classes, "features.8"),
        "untrained": lambda: by_hand(untrained, images, classes, "features.8"),
        "noise": lambda: explain.random_maps(images, 0),
        "centre": lambda: explain.centre_maps(images),
        "brightness": lambda: images[:, 0],
    }[kind]()
    curves = explain.curves(network, images, maps, classes, step=16)
    assert row["empty"] == float((maps == 0).all(dim=2).all(dim=1).float().mean())
    areas = explain.area(curves.deletion).numpy()
    expected = {"insertion": float(explain.area(curves.insertion).mean())}
    expected |= {"deletion_p50": np.median(areas), "deletion_std": areas.std()}
    # Rounding in maps may change the order of pixels
    assert row[[*expected]].to_dict() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert row["accuracy"] == pytest.approx(float((classes == truth).float().mean()))
    assert row["confidence"] == pytest.approx(float(answers.max(dim=1).values.mean()))


def test_methods_that_share_models_share_explanations(line_up, assessed):
    explained, asked = assessed
    assert asked == [0, 0, 1, 2]  # FedAvg's one cluster, and three that two methods share
    summary, history = explained.summary(), line_up[2]
    assert summary["twin"] == summary["oracle"]
    assert (explained.requested, explained.trained) == (history.requested, history.trained)
    assert explained.minutes > history.minutes


def test_explanations_without_any_samples_have_a_summary():
    row = {"method": "FedAvg", "cluster": 0, "map": "GradCAM", "source": "in-cluster", "samples": 0}
    assert assessment.of_explanations(pd.DataFrame([row])) == {"n_clusters": 1}


@pytest.mark.slow
def test_a_method_is_explained_after_its_own_last_round_unless_it_has_diverged(line_up):
    found, federation, finished = line_up
    history = copy.deepcopy(finished)
    history.rows.append({"method": "oracle", "round": 9})
    history.rows.append({"method": "twin", "round": 2, "diverged": True})
    explained = assessment.assess(found, federation, history, HOW)
    table, summary = explained.table(), explained.summary()
    ends = table.groupby("method")["round"].max()
    assert (ends["oracle"], ends["FedAvg"]) == (9, finished.rows[-1]["round"])
    [left] = table[table["method"] == "twin"].to_dict("records")
    assert (left["round"], left["diverged"]) == (2, True)
    assert summary["twin"] == {"diverged_in": 2}
    assert summary["oracle"]["n_clusters"] == 3


def test_methods_without_clusters_are_refused(line_up):
    _, federation, history = line_up
    soft = {"FedEM": begin("fedem", federation, k=2)}
    with pytest.raises(ValueError, match="without clusters cannot be explained: FedEM"):
        assessment.assess(soft, federation, history, HOW)


def test_the_true_class_may_be_explained_instead(line_up):
    found, federation, history = line_up
    some, true = {"FedAvg": found["FedAvg"]}, dataclasses.replace(HOW, explained="true")
    one, other = (
        assessment.assess(some, federation, history, how).summary()["FedAvg"] for how in (HOW, true)
    )
    assert one["confidence_in-cluster"] > other["confidence_in-cluster"]
    assert one["accuracy_in-cluster"] == other["accuracy_in-cluster"]


def test_boxes_have_a_method_each():
    columns = {"method": ["b", "b", "a", "c"], "insertion": [0.2, 0.4, 0.9, float("nan")]}
    table = pd.DataFrame(columns)
    figures.boxes(axes := plt.figure().gca(), table, "insertion", points=True)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a", "c"]
    plt.close("all")


@pytest.fixture(scope="module")
def parameters():
    """Make the lesson's parameters, with other values of some."""
    lesson = PROJECT / "notebooks" / "07b_explanations_controls.ipynb"
    usual = notebooks.read_notebook(lesson).defaults
    return lambda **change: papers.explanations.Parameters.checked(usual | change)


BAD_LAYERS = [
    ({"layer": "conv9"}, "no layer 'conv9'; its layers are features"),
    ({"layer": "classifier"}, "'classifier' has no height and width"),
    ({"model": "resnet34", "layer": "features.avgpool"}, "no height and width"),
    ({"model": "linear"}, "linear has no default layer to explain"),
]


@pytest.mark.parametrize("change, message", BAD_LAYERS)
def test_layers_are_checked_before_anything_trains(parameters, change, message):
    parameters().check_against_data()
    with pytest.raises(ParameterError, match=message):
        parameters(**change).check_against_data()


def test_layers_and_the_blur_are_checked_with_the_data_as_they_are(parameters, small, split):
    """An output with height and width for photographs may be one place for digits of 8×8 pixels."""
    run = parameters(dataset=small.name, model="resnet34", layer="features.layer4")
    with pytest.raises(ParameterError, match=r"layer: .* has no height and width"):
        papers.explanations.federation(run, small, split)
    run = parameters(dataset=small.name, baseline="blur", layer="features.0")
    parts = {name: getattr(small, name)[..., :5, :5] for name in ("images", "test_images")}
    tiny = dataclasses.replace(small, **parts)
    with pytest.raises(ParameterError, match="blur needs images of 6 pixels or more"):
        papers.explanations.check_layer(run, tiny)
    assert explain.background(torch.rand(1, 1, 6, 6), "blur").shape == (1, 1, 6, 6)


def test_models_of_a_run_are_explained_without_training(parameters, monkeypatch):
    small = {"dataset": "digits-8x8", "draws": 60, "local_epochs": 1, "rounds": 3}
    lesson = PROJECT / "notebooks" / "03b_ocfl_controls.ipynb"
    usual = notebooks.read_notebook(lesson).defaults | small | {"model": "compact-cnn"}
    of = papers.ocfl.Parameters.checked(usual | {"only": ["FedAvg", "OCFL-HDB"]})
    id, (images, split) = records.run_id(of), papers.ocfl.data(of)
    federation = papers.ocfl.federation(of, images, split)
    lines = papers.ocfl.chosen(of, images, split)
    history = papers.ocfl.play(of, federation, lines, of.rounds, records.checkpoint(id))
    monkeypatch.setenv(records.KEEP_MODELS, "1")
    records.write(id, of, history, federation)
    assert records.kept_models(id).exists() and not records.checkpoint(id).exists()

    shared = {n: v for n, v in usual.items() if n in papers.explanations.Parameters.model_fields}
    shared |= {"layer": None, "trained_in": id}
    run = parameters(**shared)
    home = papers.explanations.federation(run, images, split)
    monkeypatch.setattr(type(home), "train", None)
    explained, past = papers.explanations.trained(run, home, images, split)
    assert past.rows == history.rows
    for name, method in lines.items():
        assert torch.equal(explained[name].models, method.models)
    other = parameters(**shared | {"seed": 1, "rounds": 4})
    with pytest.raises(ParameterError, match=r"trained_in: .* has other values of rounds, seed$"):
        papers.explanations.trained(other, home, images, split)
    until = of.model_dump() | {"until": "clusters"}
    early = dataclasses.replace(records.find_record(id), parameters=until)
    with monkeypatch.context() as patched:
        patched.setattr(records, "find_record", lambda text: early)
        with pytest.raises(ParameterError, match="ended with its clusters"):
            papers.explanations.trained(run, home, images, split)
    records.kept_models(id).unlink()
    with pytest.raises(ParameterError, match="has no models; run 03b again with CFLKIT_KEEP"):
        papers.explanations.trained(run, home, images, split)
