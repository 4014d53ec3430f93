"""The papers' networks, by name, for images of any size.

Each network is a plain ``torch.nn.Module`` whose last linear layer is called ``classifier``; what
enters it is the network's *embedding*. `LAST_CONVOLUTION` names the layer that GradCAM looks at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

Shape = tuple[int, int, int]


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own where it is given one.

    torch's dropout draws from the global generator, which threads share: which client got which
    mask would depend on scheduling. The engine sets ``generator`` before it trains a client.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """In training, zero each value with probability p and scale the rest by 1 / (1 - p)."""
        if not self.training:
            return x
        kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept / (1 - self.p)


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


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": linear,
    "compact-cnn": compact_cnn,
    "compact-bn": compact_bn,
    "ocfl-cnn": ocfl_cnn,
    "resnet34": resnet34,
}
LAST_CONVOLUTION = {
    "compact-cnn": "features.7",
    "compact-bn": "features.10",
    "ocfl-cnn": "features.4",
    "resnet34": "features.layer4.2.conv2",
}


def make(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a network by name, freshly initialised from torch's global generator.

    Parameters
    ----------
    name : str
        One of `MODELS`.
    shape : tuple of int
        ``(channels, height, width)`` of an image.
    classes : int
        Number of outputs.

    Raises
    ------
    ValueError
        The name is unknown.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(MODELS)}")
    return MODELS[name](shape, classes)


def parameter_count(network: nn.Module) -> int:
    """P, the number of trainable parameters."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
