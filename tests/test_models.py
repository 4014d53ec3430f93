import pytest
import torch
import torchvision
from torch import nn
from torch.nn.utils import parameters_to_vector
from torchvision.transforms.functional import normalize

from cflkit import models
from cflkit.models.rows import RowModel, join


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("linear", (1, 8, 8), 650),
        ("compact-cnn", (1, 28, 28), 7_740),
        ("compact-cnn", (3, 32, 32), 9_420),
        ("compact-bn", (1, 28, 28), 7_820),
        ("emd-cnn", (1, 28, 28), 3_287_178),
        ("perceptron", (32, 1, 1), 2_762),
        ("ocfl-cnn", (1, 28, 28), 25_404_240),
        ("resnet34", (3, 32, 32), 21_282_122),
        ("autoencoder", (1, 28, 28), 174_840),
    ],
)
def test_parameter_counts(name, shape, expected):
    with torch.device("meta"):
        network = models.make(name, shape, 10)
    assert parameters_to_vector(network.parameters()).numel() == expected


@pytest.mark.parametrize(
    "name", [name for name in models.MODELS if name not in models.AUTOENCODERS]
)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28)])
def test_outputs_and_named_layers(name, shape):
    network = models.make(name, shape, 7).eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 7)
    assert isinstance(network.get_submodule("classifier"), torch.nn.Linear)
    if name in models.LAST_FEATURES:
        convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
        found = []
        last = network.get_submodule(models.LAST_FEATURES[name])
        with last.register_forward_hook(lambda *call: found.append(call[-1])):
            network(torch.rand(2, *shape))
        assert found[0].ndim == 4
        assert found[0].shape[1] == convolutions[-1].weight.shape[0]
        assert found[0].min() >= 0


def test_the_autoencoder_gives_pixels_back_through_a_narrow_code():
    network = models.make("autoencoder", (3, 8, 8), 10)
    images = torch.rand(5, 3, 8, 8)
    code, pixels = network.encoder(images.flatten(1)), network(images)
    assert code.shape == (5, 32) and pixels.shape == (5, 192)
    assert torch.equal(pixels, network.decoder(code))
    assert 0 < pixels.min() < pixels.max() < 1
    widths = [m.out_features for m in network.modules() if isinstance(m, nn.Linear)]
    assert widths == [100, 64, 32, 64, 100, 192]


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("key", [None, torch.tensor(1)])
def test_dropout_keeps_the_mean_and_draws_by_its_key_or_the_global_generator(key, rows):
    """With ``rows``, whole samples are dropped; another key drops other units."""
    layer = models.Dropout(0.2, rows).train()
    ones = torch.ones(50_000, 2) if rows else torch.ones(200, 500)
    layer.key = key
    torch.manual_seed(1)
    first = layer(ones)
    torch.manual_seed(1 if key is None else 2)
    assert torch.equal(layer(ones), first)
    assert first.unique().tolist() == pytest.approx([0, 1.25])
    assert first.mean() == pytest.approx(1, abs=0.01)
    assert (first == first[:, :1]).all() == rows
    if not rows:  # no two rows and no two columns are equal
        assert first.unique(dim=0).shape == first.unique(dim=1).shape == first.shape
    layer.key = None if key is None else key + 1
    both_dropped = (layer(ones) == 0) & (first == 0)
    assert both_dropped.float().mean() == pytest.approx(0.04, abs=0.01)
    assert layer.eval()(ones) is ones


@pytest.mark.parametrize("name", ["compact-cnn", pytest.param("resnet34", marks=pytest.mark.slow)])
def test_a_row_is_the_whole_model(name):
    shape = (1, 8, 8)
    source, target = models.make(name, shape, 10), models.make(name, shape, 10)
    with torch.no_grad():
        source.train()(torch.rand(8, *shape))  # changes BatchNorm's statistics
    inputs = torch.rand(4, *shape)
    expected = source.eval()(inputs)
    plain = parameters_to_vector(source.parameters())
    copied = RowModel(target)
    copied.load(RowModel(source).row)
    torch.testing.assert_close(copied.network.eval()(inputs), expected)
    pieces = copied.split(copied.row)
    assert set(pieces) == set(source.state_dict())
    assert torch.equal(join(pieces.values()), copied.row)
    assert torch.equal(copied.row[: copied.parameters], plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.PRETRAINED)
def test_networks_of_torchvision_take_images_of_any_size(name):
    # On the device ``meta``, only shapes are computed, so large networks take no time
    with torch.device("meta"), torch.no_grad():
        network = models.make(name, (3, 32, 32), 7).eval()
        assert network(torch.rand(1, 3, 32, 32)).shape == (1, 7)
    widths = {"resnet18": 512, "resnet50": 2048, "efficientnet_b3": 1536, "vit_b_16": 768}
    assert network.classifier.in_features == widths.get(name, 1024)
    assert not any(isinstance(layer, nn.Dropout) for layer in network.modules())


def test_weights_that_cannot_be_had_are_a_clear_error(monkeypatch, tmp_path):
    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="weights of resnet18 cannot be loaded"):
        models.make("resnet18-imagenet", (3, 32, 32), 7)
    for name in ("compact-cnn-imagenet", "resnet18-cifar"):
        with pytest.raises(ValueError, match=f"unknown model '{name}'; choose from linear"):
            models.make(name, (3, 32, 32), 7)


def test_pixels_are_standardised_as_those_of_mnist_or_of_imagenet():
    grey, coloured = torch.rand(2, 1, 8, 8), torch.rand(2, 3, 8, 8)
    found = models.make("emd-cnn", (1, 8, 8), 10).standardise(grey)
    torch.testing.assert_close(found, (grey - 0.1307) / 0.3081)
    stated = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    found = models.make("emd-cnn", (3, 8, 8), 10).standardise(coloured)
    torch.testing.assert_close(found, normalize(coloured, stated.mean, stated.std))
    network = models.make("resnet18", (1, 8, 8), 10)
    large = torch.nn.functional.interpolate(grey, (224, 224), mode="bilinear")
    expected = normalize(large.expand(-1, 3, -1, -1), stated.mean, stated.std)
    torch.testing.assert_close(network.standardise(network.enlarge(grey)), expected)
