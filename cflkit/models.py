"""The papers' networks, by name, for images of any size.

Each network that classifies is a plain ``torch.nn.Module`` whose last linear layer is called
``classifier``; what enters it is the network's *embedding*. `LAST_FEATURES` names the layer that
GradCAM looks at. The autoencoder has ``encoder`` and ``decoder`` instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from cflkit.hashing import numbered, uniform

Shape = tuple[int, int, int]


class Dropout(nn.Module):
    """Dropout whose masks depend on a key and on positions alone, where it is given a key.

    With ``rows`` it drops samples as a whole (stochastic depth of a residual branch).

    PyTorch's dropout draws from a generator with a state: which client got which mask would depend
    on scheduling, and on what is computed beside it. The engines give each layer a ``key`` (an
    int64 without dimensions) before each step. Without one, masks come from the global generator.
    """

    def __init__(self, p: float, rows: bool = False) -> None:
        super().__init__()
        self.p = p
        self.rows = rows
        self.key: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """In training, zero each value or row with probability p; the rest times 1 / (1 - p)."""
        if not self.training or not self.p:
            return x
        shape = torch.Size([len(x), *(1,) * (x.ndim - 1)]) if self.rows else x.shape
        key = self.key
        drawn = torch.rand(shape, device=x.device) if key is None else uniform(key, shape)
        return x * (drawn >= self.p) / (1 - self.p)


def give_keys(network: nn.Module, key: Tensor) -> None:
    """Give each dropout layer of a network a key of its own, made of ``key``."""
    layers = (layer for layer in network.modules() if isinstance(layer, Dropout))
    for number, layer in enumerate(layers, 1):
        layer.key = numbered(key, number)


def linear(shape: Shape, classes: int) -> nn.Module:
    """Softmax regression on the pixels: a convex loss, on which lessons see client drift pure."""
    channels, height, width = shape
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), classifier=nn.Linear(channels * height * width, classes))
    )


def compact_cnn(shape: Shape, classes: int) -> nn.Module:
    """The default on a CPU: tiny-VGG, 7,740 parameters for 28×28 grey images and ten classes.

    Two blocks of two 3×3 convolutions of 10 channels, each block halving the image.
    """
    return tiny_vgg(shape, classes, lambda: None)


def compact_bn(shape: Shape, classes: int) -> nn.Module:
    """The compact network with BatchNorm after each convolution: 7,820 parameters, 84 buffers.

    It shows in a minute what BatchNorm's state does to methods that compare updates; the papers'
    network with BatchNorm is ResNet34.
    """
    return tiny_vgg(shape, classes, lambda: nn.BatchNorm2d(10))


def tiny_vgg(shape: Shape, classes: int, after: Callable[[], nn.Module | None]) -> nn.Module:
    """Two blocks of two convolutions, each followed by ``after()`` and ReLU; one linear layer."""
    channels, height, width = shape
    layers: list[nn.Module | None] = []
    for inputs, last in ((channels, False), (10, True), (10, False), (10, True)):
        layers += [nn.Conv2d(inputs, 10, kernel_size=3, padding=1), after(), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if last else []
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*(layer for layer in layers if layer is not None)),
            flatten=nn.Flatten(),
            classifier=nn.Linear(10 * (height // 4) * (width // 4), classes),
        )
    )


def ocfl_cnn(shape: Shape, classes: int) -> nn.Module:
    """The network of the OCFL papers for MNIST and Fashion-MNIST: 25.4 million parameters.

    Three 5×5 convolutions without pooling, then four linear layers with dropout, as in the authors'
    code (the papers only call it inspired by tiny-VGG).
    """
    channels, height, width = shape
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(
                nn.Conv2d(channels, 16, kernel_size=5, padding=2),
                nn.ReLU(),
                nn.Conv2d(16, 32, kernel_size=5, padding=2),
                nn.ReLU(),
                nn.Conv2d(32, 32, kernel_size=5, padding=2),
                nn.ReLU(),
            ),
            flatten=nn.Flatten(),
            hidden=nn.Sequential(
                *(nn.Linear(32 * height * width, 1000), nn.ReLU(), Dropout(0.2)),
                *(nn.Linear(1000, 250), nn.ReLU(), Dropout(0.2)),
                *(nn.Linear(250, 100), nn.ReLU(), Dropout(0.2)),
            ),
            classifier=nn.Linear(100, classes),
        )
    )


def resnet34(shape: Shape, classes: int) -> nn.Module:
    """ResNet34 for small images (CIFAR style), 21.3 million parameters.

    torchvision's network with a 3×3 stem of stride 1 and no first pooling (He et al. 2016, as the
    OCFL authors adapted it), and torch's default initialisation of convolutions, as theirs.
    """
    network = ResNet(BasicBlock, [3, 4, 6, 3], num_classes=classes)
    network.conv1 = nn.Conv2d(shape[0], 64, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    parts = OrderedDict(network.named_children())
    head = parts.pop("fc")
    return nn.Sequential(
        OrderedDict(features=nn.Sequential(parts), flatten=nn.Flatten(), classifier=head)
    )


class Standardised(nn.Module):
    """Pixels minus a mean, over a deviation, a channel each; not trained, and no buffers either."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.deviation = tuple(mean), tuple(deviation)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, channels, height, width]``."""
        mean, deviation = (
            torch.tensor(values, dtype=x.dtype, device=x.device)[:, None, None]
            for values in (self.mean, self.deviation)
        )
        return (x - mean) / deviation


class Enlarged(nn.Module):
    """Images at the side that a network was made for."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        """``[n, channels, side, side]``, bilinear; grey images as three equal channels."""
        x = x.expand(-1, 3, -1, -1)
        if x.shape[-2:] == (self.side, self.side):
            return x
        return nn.functional.interpolate(x, (self.side, self.side), mode="bilinear")


def emd_cnn(shape: Shape, classes: int, width: int = 64) -> nn.Module:
    """The two-layer network of EMD-CFL for Rotated and Backdoor MNIST: 3.3 million parameters.

    Two 3×3 convolutions of 64 and 128 channels, one pooling, a hidden layer of 128 (section 4.5,
    appendix D.2), and the pixels' standardisation, which the authors have in their data.
    """
    channels, height, width_ = shape
    return nn.Sequential(
        OrderedDict(
            standardise=Standardised([0.1307], [0.3081]) if channels == 1 else imagenet(),
            features=nn.Sequential(
                nn.Conv2d(channels, width, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ),
            flatten=nn.Flatten(),
            hidden=nn.Sequential(
                nn.Linear(2 * width * (height // 2) * (width_ // 2), 128), nn.ReLU()
            ),
            classifier=nn.Linear(128, classes),
        )
    )


def emd_cnn_small(shape: Shape, classes: int) -> nn.Module:
    """The same with 16 and 32 channels, for a CPU: 0.8 million parameters, a tenth of the work."""
    return emd_cnn(shape, classes, width=16)


def autoencoder(shape: Shape, _: int) -> nn.Module:
    """FedCRef's: pixels – 100 – 64 – 32 and back, 174,840 parameters for 28×28 grey images.

    ReLU between the layers and a sigmoid at the end, for pixels in [0, 1] (section 5.2; the sigmoid
    from the authors' code). ``encoder`` ends with the code of 32 numbers, ``decoder`` starts there.
    """
    pixels = shape[0] * shape[1] * shape[2]
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            encoder=perceptron(pixels, 100, 64, 32, last=nn.ReLU()),
            decoder=perceptron(32, 64, 100, pixels, last=nn.Sigmoid()),
        )
    )


def perceptron(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    """Linear layers from width to width, ReLU between them, and what stands at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([] if last is None else [last]))


def imagenet() -> Standardised:
    """As networks trained on ImageNet want their pixels."""
    return Standardised([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def from_torchvision(name: str, shape: Shape, classes: int, weights: str | None) -> nn.Module:
    """A network of torchvision with a new last layer, its images enlarged to 224 pixels.

    What else stands before the last layer stays: ConvNeXt's normalisation and EfficientNet's
    dropout, which the authors of EMD-CFL cut off.
    """
    try:
        network = torchvision.models.get_model(name, weights="DEFAULT" if weights else None)
    except (OSError, RuntimeError) as error:  # no network; a damaged download
        raise ValueError(
            f"the ImageNet weights of {name} cannot be had ({error}); put torchvision's file into "
            f"{torch.hub.get_dir()}/checkpoints, or train from weights=None"
        ) from error
    head = [n for n, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    width = network.get_submodule(head).in_features
    network.set_submodule(head, nn.Identity())
    for layer_name, layer in list(network.named_modules()):
        if isinstance(layer, nn.Dropout):
            network.set_submodule(layer_name, Dropout(layer.p))
        elif isinstance(layer, torchvision.ops.StochasticDepth):
            network.set_submodule(layer_name, Dropout(layer.p, rows=True))
    return nn.Sequential(
        OrderedDict(
            enlarge=Enlarged(224),
            standardise=imagenet(),
            features=network,
            classifier=nn.Linear(width, classes),
        )
    )


# The networks of EMD-CFL's other experiments, by torchvision's names
PRETRAINED = ("resnet18", "resnet50", "efficientnet_b3", "vit_b_16", "convnext_base")
MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": linear,
    "compact-cnn": compact_cnn,
    "compact-bn": compact_bn,
    "ocfl-cnn": ocfl_cnn,
    "resnet34": resnet34,
    "emd-cnn": emd_cnn,
    "emd-cnn-small": emd_cnn_small,
    "autoencoder": autoencoder,
}
# Those that give an image's pixels back, not its class
AUTOENCODERS = ("autoencoder",)
# The last feature maps that know places: what the last convolution gives, activation included.
# Before its ReLU units are negative where they see nothing, and GradCAM takes that for evidence
LAST_FEATURES = {
    "compact-cnn": "features.8",
    "compact-bn": "features.12",
    "ocfl-cnn": "features.5",
    "resnet34": "features.layer4",
    "emd-cnn": "features.3",
    "emd-cnn-small": "features.3",
    "resnet18": "features.layer4",
    "resnet50": "features.layer4",
    "efficientnet_b3": "features.features.8",
    "convnext_base": "features.features.7",
}


def names() -> list[str]:
    """Every name that `make` knows."""
    return [*MODELS, *PRETRAINED]


def make(name: str, shape: Shape, classes: int, weights: str | None = None) -> nn.Module:
    """Build a network by name, freshly initialised from torch's global generator.

    Parameters
    ----------
    name : str
        One of `MODELS`.
    shape : tuple of int
        ``(channels, height, width)`` of an image.
    classes : int
        Number of outputs.
    weights : {"imagenet"}, optional
        torchvision's weights of all layers but the last, downloaded at first use.

    Raises
    ------
    ValueError
        The name is unknown; there are no such weights, or they cannot be downloaded.
    """
    if name not in names():
        raise ValueError(f"unknown model {name!r}; known are {', '.join(names())}")
    if weights not in (None, "imagenet"):
        raise ValueError(f"unknown weights {weights!r}; known are imagenet")
    if name in PRETRAINED:
        return from_torchvision(name, shape, classes, weights)
    if weights is not None:
        raise ValueError(f"{name} has no weights; those with are {', '.join(PRETRAINED)}")
    return MODELS[name](shape, classes)
