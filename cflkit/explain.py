"""What a model looks at: GradCAM, and how much its maps explain, by insertion and deletion.

R. Selvaraju et al.: Grad-CAM, ICCV 2017, by Captum. V. Petsiuk, A. Das, K. Saenko: RISE, BMVC 2018,
whose insertion and deletion `assessment` puts on cluster models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from captum.attr import LayerGradCam
from torch import Tensor, nn
from torchvision.transforms.functional import gaussian_blur

BASELINES = ("zeros", "blur", "mean")
# Images that a network sees at once
CHUNK = 1024


def gradcam(
    network: nn.Module,
    images: Tensor,
    classes: Tensor,
    layer: str,
    *,
    relu: bool = True,
    mode: str = "bilinear",
) -> Tensor:
    """GradCAM maps, by Captum's ``LayerGradCam``, enlarged to the images.

    Parameters
    ----------
    network : nn.Module
        In evaluation mode.
    images : Tensor
        ``[n, channels, height, width]``, float.
    classes : Tensor
        ``[n]``, int64: the class to explain, predicted or true.
    layer : str
        The name of a layer with spatial outputs; `models.LAST_FEATURES` names the usual ones.
    relu : bool
        Only what speaks for the class, as in GradCAM's paper. Captum's default is off.
    mode : str
        Of ``torch.nn.functional.interpolate``. Captum's default is ``nearest``.

    Returns
    -------
    Tensor
        ``[n, height, width]``, each map divided by its largest absolute value: within [0, 1] with
        ``relu``. A map without any positive value stays zero: `curves` then has nothing but chance
        to go by.

    Raises
    ------
    ValueError
        There is no such layer, its output has no height and width, or there is no image.
    """
    if not len(images):
        raise ValueError("there is no image to explain")
    explainer = LayerGradCam(network, spatial_layer(network, images[:1], layer))
    parts = []
    for inputs, target in zip(images.split(CHUNK), classes.split(CHUNK), strict=True):
        small = explainer.attribute(inputs, target, relu_attributions=relu)
        corners = None if mode == "nearest" else False
        large = F.interpolate(small, images.shape[-2:], mode=mode, align_corners=corners)
        parts.append(large.detach()[:, 0])
    maps = torch.cat(parts)
    largest = maps.abs().amax(dim=(1, 2), keepdim=True)
    return maps / torch.where(largest > 0, largest, 1.0)


def spatial_layer(network: nn.Module, image: Tensor, layer: str) -> nn.Module:
    """The layer of that name.

    Raises
    ------
    ValueError
        There is none, or its output for an ``image`` (``[1, channels, height, width]``) has no
        height and width.
    """
    known = {name: module for name, module in network.named_modules() if name}
    if layer not in known:
        raise ValueError(f"the network has no layer {layer!r}; known are {', '.join(known)}")
    outputs: list[Tensor] = []
    hook = known[layer].register_forward_hook(lambda _, inputs, output: outputs.append(output))
    with hook, torch.no_grad():
        network(image)
    if not outputs or outputs[0].ndim != 4 or outputs[0][0, 0].numel() == 1:
        raise ValueError(f"the output of layer {layer!r} has no height and width")
    return known[layer]


def brightness_maps(images: Tensor) -> Tensor:
    """``[n, height, width]``: the mean of the channels; against zeros, all that there is to see."""
    return images.mean(dim=1)


def random_maps(images: Tensor, seed: int) -> Tensor:
    """``[n, height, width]``: maps that know nothing, the least that a method must beat."""
    generator = torch.Generator().manual_seed(seed)
    n, _, height, width = images.shape
    return torch.rand(n, height, width, generator=generator).to(images.device)


def centre_maps(images: Tensor) -> Tensor:
    """``[n, height, width]``: a blob in the middle, where most objects are anyway."""
    n, _, height, width = images.shape
    rows, columns = (torch.linspace(-1, 1, size, device=images.device) for size in (height, width))
    blob = torch.exp(-2 * (rows[:, None].square() + columns[None].square()))
    return blob.expand(n, height, width)


@dataclass(frozen=True)
class Curves:
    """Probabilities of the explained class while pixels come or go.

    Attributes
    ----------
    insertion, deletion : Tensor
        ``[n, steps + 1]``: from the baseline to the image, and from the image to the baseline, the
        most salient pixels first.
    """

    insertion: Tensor
    deletion: Tensor


def pixel_order(maps: Tensor, seed: int) -> Tensor:
    """``[n, height · width]``: pixels, row by row, from the most to the least salient.

    Equal ones, as where ReLU left nothing, are in random order: where a map knows nothing it is
    worth as much as noise, and not as a walk from the upper left corner.
    """
    flat = maps.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.rand(flat.shape, generator=generator).argsort(dim=1).to(maps.device)
    order = flat.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    return shuffled.gather(1, order)


def curves(
    network: nn.Module,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    *,
    step: int = 20,
    baseline: str = "zeros",
    seed: int = 0,
) -> Curves:
    """Insertion and deletion (RISE, section 4.2) of all images.

    Parameters
    ----------
    network : nn.Module
        In evaluation mode.
    images : Tensor
        ``[n, channels, height, width]``.
    maps : Tensor
        ``[n, height, width]``, the saliency.
    classes : Tensor
        ``[n]``, the class whose probability is followed.
    step : int
        Pixels that change at a time; the last step takes what is left.
    baseline : {"zeros", "blur", "mean"}
        What stands where no pixel of the image is: zeros (as the OCFL authors; RISE's deletion has
        the zero of normalised images, which is a mean colour), the image blurred (a blur of the
        size of RISE's, for its insertion), or its mean in each channel.
    seed : int
        Of the order of equally salient pixels, see `pixel_order`.

    Raises
    ------
    ValueError
        No image, a step below 1, an unknown baseline, or maps of another size.
    """
    n, _, height, width = images.shape
    if not n:
        raise ValueError("there is no image to explain")
    if step < 1:
        raise ValueError(f"step must be at least 1, not {step}")
    if maps.shape != (n, height, width):
        raise ValueError(f"maps of {tuple(maps.shape)} do not fit images of {tuple(images.shape)}")
    pixels = height * width
    order = pixel_order(maps, seed)
    rank = torch.empty_like(order)
    rank.scatter_(1, order, torch.arange(pixels, device=order.device).expand(n, -1))
    counts = torch.arange(0, pixels + step, step, device=order.device).clamp(max=pixels)
    without = background(images, baseline)
    insertion, deletion = torch.empty((2, n, len(counts)))
    frames = torch.cartesian_prod(torch.arange(n), torch.arange(len(counts))).to(images.device)
    for part in frames.split(CHUNK):
        image, place = part.T
        changed = (rank[image] < counts[place][:, None]).view(-1, 1, height, width)
        present, absent = images[image], without[image]
        for found, inside, outside in (
            (insertion, present, absent),
            (deletion, absent, present),
        ):
            with torch.inference_mode():
                outputs = network(torch.where(changed, inside, outside)).softmax(dim=1)
            chosen = outputs.gather(1, classes[image][:, None])[:, 0]
            found[image.cpu(), place.cpu()] = chosen.cpu()
    return Curves(insertion, deletion)


def background(images: Tensor, baseline: str) -> Tensor:
    """What stands where no pixel of an image is, as images."""
    if baseline == "zeros":
        return torch.zeros_like(images)
    if baseline == "blur":
        return gaussian_blur(images, [11, 11], [5.0, 5.0])
    if baseline == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    raise ValueError(f"unknown baseline {baseline!r}; known are {', '.join(BASELINES)}")


def area(curve: Tensor) -> Tensor:
    """Area under curves ``[…, steps + 1]`` by trapezoids over [0, 1]; a constant's is itself.

    All steps count alike, as in RISE's code, also a last one of fewer pixels. The area is linear:
    that of the mean curve, which the OCFL authors and RISE's code take, is the mean of the areas.
    """
    return (curve[..., :-1] + curve[..., 1:]).mean(dim=-1) / 2
