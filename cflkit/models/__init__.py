"""The networks of the papers by name, for images of any size.

Each network that classifies is a plain ``torch.nn.Module`` whose last linear layer is called
``classifier``. The input of that layer is the network's *embedding*. `LAST_FEATURES` names the
layer whose outputs GradCAM uses. The autoencoder has an ``encoder`` and a ``decoder`` instead.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from cflkit._bounds import Mistake
from cflkit._project import import_package
from cflkit.models.rows import numbered, uniform

Shape = tuple[int, int, int]


class Dropout(nn.Module):
    """Dropout whose masks depend only on positions and on a key, if the layer has a key.

    With ``rows`` it drops whole samples (stochastic depth of a residual branch).

    PyTorch's dropout draws from a generator with a state. With it, a client's masks would depend on
    scheduling and on all other computations. The engines therefore give each layer a ``key`` (a
    scalar int64 tensor) before each step. Without a key, masks come from the global generator.
    """

    def __init__(self, p: float, rows: bool = False) -> None:
        super().__init__()
        self.p = p
        self.rows = rows
        self.key: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """In training, zero values or rows with probability p and scale the rest by 1/(1 − p)."""
        if not self.training or not self.p:
            return x
        shape = torch.Size([len(x), *(1,) * (x.ndim - 1)]) if self.rows else x.shape
        key = self.key
        drawn = torch.rand(shape, device=x.device) if key is None else uniform(key, shape)
        return x * (drawn >= self.p) / (1 - self.p)


def give_keys(network: nn.Module, key: Tensor) -> None:
    """Give each dropout layer of a network its own key, derived from ``key``."""
    layers = (layer for layer in network.modules() if isinstance(layer, Dropout))
    for number, layer in enumerate(layers, 1):
        layer.key = numbered(key, number)


def parts(**layers: nn.Module) -> nn.Sequential:
    """Build a network of named parts, one after the other."""
    return nn.Sequential(OrderedDict(layers))


def linear(shape: Shape, classes: int) -> nn.Module:
    """Build softmax regression on the pixels.

    Its loss is convex, so that lessons can show client drift without effects of non-convexity.
    """
    return parts(flatten=nn.Flatten(), classifier=nn.Linear(math.prod(shape), classes))


def perceptron(shape: Shape, classes: int) -> nn.Module:
    """Build a perceptron with one hidden layer of 64 units, for features (Tutorial 022)."""
    return parts(
        flatten=nn.Flatten(),
        hidden=linear_layers(math.prod(shape), 64, last=nn.ReLU()),
        classifier=nn.Linear(64, classes),
    )


def tiny_vgg(shape: Shape, classes: int, normalised: bool = False) -> nn.Module:
    """Build the default network on a CPU, a tiny VGG, or the same with BatchNorm.

    It has two blocks of two 3×3 convolutions with 10 channels. Each block halves the height and
    width of the image. For 28×28 grey images and ten classes, the network has 7,740 parameters.

    If it is ``normalised``, each convolution has BatchNorm, and there are 7,820 parameters and 84
    buffer values. This shows within a minute how BatchNorm's state affects methods that compare
    updates. The papers' network with BatchNorm is ResNet34.
    """
    channels, height, width = shape
    layers: list[nn.Module] = []
    for inputs, last in ((channels, False), (10, True), (10, False), (10, True)):
        layers += [nn.Conv2d(inputs, 10, kernel_size=3, padding=1)]
        layers += [nn.BatchNorm2d(10)] if normalised else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)] if last else [nn.ReLU()]
    return parts(
        features=nn.Sequential(*layers),
        flatten=nn.Flatten(),
        classifier=nn.Linear(10 * (height // 4) * (width // 4), classes),
    )


def ocfl_cnn(shape: Shape, classes: int) -> nn.Module:
    """Build the OCFL papers' network for MNIST and Fashion-MNIST, with 25.4 million parameters.

    As in the authors' code, it has three 5×5 convolutions without pooling, and then four linear
    layers with dropout between them. The papers only say that tiny-VGG inspired it.
    """
    channels, height, width = shape
    return parts(
        features=nn.Sequential(
            *(nn.Conv2d(channels, 16, kernel_size=5, padding=2), nn.ReLU()),
            *(nn.Conv2d(16, 32, kernel_size=5, padding=2), nn.ReLU()),
            *(nn.Conv2d(32, 32, kernel_size=5, padding=2), nn.ReLU()),
        ),
        flatten=nn.Flatten(),
        hidden=nn.Sequential(
            *(nn.Linear(32 * height * width, 1000), nn.ReLU(), Dropout(0.2)),
            *(nn.Linear(1000, 250), nn.ReLU(), Dropout(0.2)),
            *(nn.Linear(250, 100), nn.ReLU(), Dropout(0.2)),
        ),
        classifier=nn.Linear(100, classes),
    )


def resnet34(shape: Shape, classes: int) -> nn.Module:
    """Build ResNet34 for small images (CIFAR style), with 21.3 million parameters.

    It is torchvision's network (He et al. 2016) with the changes of the OCFL authors: a 3×3 stem of
    stride 1, no first pooling, and PyTorch's default initialisation of convolutions.
    """
    resnet = import_package("torchvision.models.resnet")
    network = resnet.ResNet(resnet.BasicBlock, [3, 4, 6, 3], num_classes=classes)
    network.conv1 = nn.Conv2d(shape[0], 64, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    layers = dict(network.named_children())
    head = layers.pop("fc")
    return parts(features=parts(**layers), flatten=nn.Flatten(), classifier=head)


class Standardised(nn.Module):
    """Per-channel standardisation with fixed constants, without parameters and buffers."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.deviation = tuple(mean), tuple(deviation)

    def forward(self, x: Tensor) -> Tensor:
        """Subtract each channel's mean and divide by its deviation: ``[n, channels, h, w]``."""
        constants = torch.tensor([self.mean, self.deviation], device=x.device)[..., None, None]
        return (x - constants[0]) / constants[1]


class Enlarged(nn.Upsample):
    """Enlargement of images to the size that a network expects."""

    def forward(self, x: Tensor) -> Tensor:
        """Enlarge images to ``[n, 3, side, side]``; grey images get three equal channels."""
        return super().forward(x.expand(-1, 3, -1, -1))


def emd_cnn(shape: Shape, classes: int, filters: int = 64) -> nn.Module:
    """Build EMD-CFL's network for Rotated and Backdoor MNIST, with 3.3 million parameters.

    It has two 3×3 convolutions of 64 and 128 channels, one pooling, and a hidden layer of 128 units
    (section 4.5, appendix D.2). It also standardises the pixels, which the authors do in the data.

    With 16 ``filters``, it has 0.8 million parameters and takes a tenth of the work, for CPUs.
    """
    channels, height, width = shape
    return parts(
        standardise=Standardised([0.1307], [0.3081]) if channels == 1 else imagenet(),
        features=nn.Sequential(
            *(nn.Conv2d(channels, filters, kernel_size=3, padding=1), nn.ReLU()),
            *(nn.Conv2d(filters, 2 * filters, kernel_size=3, padding=1), nn.ReLU()),
            nn.MaxPool2d(2),
        ),
        flatten=nn.Flatten(),
        hidden=linear_layers(2 * filters * (height // 2) * (width // 2), 128, last=nn.ReLU()),
        classifier=nn.Linear(128, classes),
    )


def autoencoder(shape: Shape, _: int) -> nn.Module:
    """Build FedCRef's autoencoder, with 174,840 parameters for 28×28 grey images.

    Its layers have the widths pixels – 100 – 64 – 32 – 64 – 100 – pixels, with ReLU between them
    (section 5.2). The sigmoid at the end is from the authors' code and gives pixels in [0, 1]. The
    output of ``encoder`` is the code of 32 numbers, which is the input of ``decoder``.
    """
    pixels = math.prod(shape)
    return parts(
        flatten=nn.Flatten(),
        encoder=linear_layers(pixels, 100, 64, 32, last=nn.ReLU()),
        decoder=linear_layers(32, 64, 100, pixels, last=nn.Sigmoid()),
    )


def linear_layers(*widths: int, last: nn.Module) -> nn.Sequential:
    """Build linear layers of these widths with ReLU between them, and ``last`` at the end."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def imagenet() -> Standardised:
    """Build the standardisation that networks trained on ImageNet expect."""
    return Standardised([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def from_torchvision(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a torchvision network with a new last layer; images are enlarged to 224×224 pixels.

    With the ending ``-imagenet``, all layers except the last start from torchvision's weights,
    which are downloaded when they are first used.

    ConvNeXt's normalisation and EfficientNet's dropout before the last layer are kept. The authors
    of EMD-CFL remove them.
    """
    torchvision = import_package("torchvision")
    plain = name.removesuffix(IMAGENET)
    try:
        network = torchvision.models.get_model(plain, weights=None if name == plain else "DEFAULT")
    except (OSError, RuntimeError) as error:  # no connection, or a damaged download
        raise ValueError(
            f"the ImageNet weights of {plain} cannot be loaded ({error}); put torchvision's file "
            f"into {torch.hub.get_dir()}/checkpoints, or train without them"
        ) from error
    last = [n for n, layer in network.named_modules() if isinstance(layer, nn.Linear)][-1]
    width = network.get_submodule(last).in_features
    network.set_submodule(last, nn.Identity())
    for layer_name, layer in list(network.named_modules()):
        if isinstance(layer, nn.Dropout):
            network.set_submodule(layer_name, Dropout(layer.p))
        elif isinstance(layer, torchvision.ops.StochasticDepth):
            network.set_submodule(layer_name, Dropout(layer.p, rows=True))
    head = nn.Linear(width, classes)
    enlarge = Enlarged((224, 224), mode="bilinear")
    return parts(enlarge=enlarge, standardise=imagenet(), features=network, classifier=head)


class UnknownModel(Mistake, ValueError):
    """No network has this name; the message says which there are."""


# The ending of a name whose network starts from ImageNet's weights
IMAGENET = "-imagenet"
# The networks of EMD-CFL's other experiments, by torchvision's names
PRETRAINED = ("resnet18", "resnet50", "efficientnet_b3", "vit_b_16", "convnext_base")
MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": linear,
    "perceptron": perceptron,
    "compact-cnn": tiny_vgg,
    "compact-bn": partial(tiny_vgg, normalised=True),
    "ocfl-cnn": ocfl_cnn,
    "resnet34": resnet34,
    "emd-cnn": emd_cnn,
    "emd-cnn-small": partial(emd_cnn, filters=16),
    "autoencoder": autoencoder,
}
# Networks whose outputs are an image's pixels, not its class
AUTOENCODERS = ("autoencoder",)
# The last layer with spatial outputs: the last convolution with its activation. Before the ReLU,
# units are negative where they detect nothing, and GradCAM would take these values for evidence
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
    """Return every name that `make` knows."""
    return [*MODELS, *PRETRAINED, *(name + IMAGENET for name in PRETRAINED)]


def make(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a network by name, initialised from torch's global generator.

    Parameters
    ----------
    name : str
        One of `names`.
    shape : tuple of int
        ``(channels, height, width)`` of an image.
    classes : int
        The number of outputs.

    Raises
    ------
    ValueError
        The name is unknown, or its weights cannot be downloaded.
    """
    if name in MODELS:
        return MODELS[name](shape, classes)
    if name not in names():
        raise UnknownModel(f"unknown model {name!r}; choose from {', '.join(names())}")
    return from_torchvision(name, shape, classes)
