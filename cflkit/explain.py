"""What a model looks at: GradCAM, and how much its maps explain, by insertion and deletion.

R. Selvaraju et al.: Grad-CAM, ICCV 2017, by Captum. V. Petsiuk, A. Das, K. Saenko: RISE, BMVC 2018,
whose insertion and deletion section 5 of the extended OCFL paper puts on cluster models (Algorithm
2). Networks come from `Federation.network`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from captum.attr import LayerGradCam
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torchvision.transforms.functional import gaussian_blur

from cflkit.federation import Federation
from cflkit.federation.machine import matmul_precision
from cflkit.federation.rows import digests
from cflkit.history import History
from cflkit.methods.base import Method
from cflkit.partition import Partition

BASELINES = ("zeros", "blur", "mean")
SOURCES = ("in-cluster", "out-of-cluster", "orchestrator")
EXPLAINED = ("predicted", "true")
# GradCAM, and what it is held against: itself on a network that was never trained, and maps that do
# not know the model: noise, a blob in the middle, the image's own brightness
MAPS = ("GradCAM", "untrained", "noise", "centre", "brightness")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
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


def samples_from(
    source: str,
    partition: Partition,
    labels: ArrayLike,
    cluster: int,
    central: int,
    size: int,
    seed: int,
) -> NDArray[np.int64]:
    """The samples on which a cluster's model is explained (Algorithm 2, lines 3, 4, 8 to 14).

    Parameters
    ----------
    source : {"in-cluster", "out-of-cluster", "orchestrator"}
        The test sets of the cluster's clients, of all others, or the central test set.
    partition : Partition
        Which samples each client holds.
    labels : array_like
        ``[m]``, the cluster of each client.
    cluster : int
        One of them.
    central : int
        Samples of the central test set.
    size : int
        How many to draw without replacement; fewer if there are not as many.
    seed : int
        Of the draw.

    Returns
    -------
    ndarray
        Indices into the pool, or into the central test set for ``orchestrator``; none if no client
        is outside the cluster.

    Raises
    ------
    ValueError
        An unknown source or cluster, or a size below 1.
    """
    members = np.asarray(labels) == cluster
    if not members.any():
        raise ValueError(f"no client is in cluster {cluster}")
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    if source == "orchestrator":
        pool = np.arange(central)
    elif source in SOURCES:
        chosen = np.flatnonzero(members if source == "in-cluster" else ~members)
        parts = [partition.test[client] for client in chosen]
        # Clients may share samples
        pool = np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
    else:
        raise ValueError(f"unknown source {source!r}; known are {', '.join(SOURCES)}")
    generator = np.random.default_rng(seed)
    return np.sort(generator.permutation(pool)[:size])


# --- Algorithm 2 ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assessment:
    """How `assess` explains models.

    Attributes
    ----------
    layer : str
        Of GradCAM, as in `gradcam`.
    sample_size : int
        Images that a cluster's model is explained on, from each source (ζ; a share of them in
        Algorithm 2, a number in the paper's text).
    step, baseline
        As in `curves`.
    explained : {"predicted", "true"}
        The class whose map and probability it is: what the model says, or what it should say.
    seed : int
        Of the draws of samples, of noise, and of the order of equally salient pixels.
    """

    layer: str
    sample_size: int = 350
    step: int = 20
    baseline: str = "zeros"
    explained: str = "predicted"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.explained not in EXPLAINED:
            raise ValueError(
                f"unknown class {self.explained!r} to explain; known are {', '.join(EXPLAINED)}"
            )


class Explanations(History):
    """What was measured, a row a method, cluster, source of samples and kind of map.

    Rows have ``method``, ``round`` (after which the models were explained), ``cluster``,
    ``clients`` (its members, joined by ``|``), ``source`` (of `SOURCES`), ``map`` (of `MAPS`; in
    other sources than in-cluster GradCAM alone), ``samples``, ``empty`` (the share of maps that are
    zero everywhere), ``accuracy`` and ``confidence`` (the mean probability of the explained class,
    image whole), and of the areas under the insertion and deletion curves ``insertion`` and
    ``deletion`` (means over images), ``…_std`` and the quantiles ``…_p05`` to ``…_p95``. All are
    NaN where there was no sample.
    """

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        """Method → measure → what a run has for GradCAM: means over its clusters."""
        table = self.table()
        result: dict[str, dict[str, float | int | None]] = {}
        for method, rows in table[table["map"] == "GradCAM"].groupby("method", sort=False):
            result[str(method)] = {"n_clusters": int(rows["cluster"].nunique())}
            for source, own in rows.groupby("source", sort=False):
                for name in ("insertion", "deletion", "accuracy", "confidence"):
                    result[str(method)][f"{name}_{source}"] = float(own[name].mean())
        return result


def assess(
    methods: Mapping[str, Method], federation: Federation, trained: History, how: Assessment
) -> Explanations:
    """Explain every cluster's model of every method (Algorithm 2 of the extended OCFL paper).

    In float32, or in TF32 where the federation trains in that.

    Parameters
    ----------
    methods : mapping of str to Method
        After their run. Methods that share a model and its clients share its explanations.
    federation : Federation
        They ran on.
    trained : History
        Of that run: how long it was, and what it cost.
    how : Assessment
        The options.

    Returns
    -------
    Explanations
    """
    begin = perf_counter()
    last = int(trained.rows[-1]["round"])
    known: dict[tuple, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    for name, method in methods.items():
        models, mixture = method.client_models()
        labels = method.labels.numpy()
        keys = digests(models)
        for cluster in np.unique(labels).tolist():
            members = np.flatnonzero(labels == cluster)
            model = int(mixture[members[0]].argmax())
            key = keys[model], *members.tolist()
            if key not in known:
                known[key] = explain_cluster(federation, models[model], labels, cluster, how)
            common = {
                "method": name,
                "round": last,
                "cluster": cluster,
                "clients": "|".join(map(str, members)),
            }
            rows += [common | row for row in known[key]]
    minutes = trained.minutes + (perf_counter() - begin) / 60
    return Explanations(rows, trained.requested, trained.trained, minutes)


def explain_cluster(
    federation: Federation, model: Tensor, labels: ArrayLike, cluster: int, how: Assessment
) -> list[dict[str, Any]]:
    """A cluster's rows of `Explanations`, from ``source`` on."""
    network = federation.network(model)
    untrained = federation.network(federation.initials(1, 0)[0])
    central = len(federation.targets(0, "central"))
    rows = []
    for source in SOURCES:
        drawn = samples_from(
            source, federation.partition, labels, cluster, central, how.sample_size, how.seed
        )
        images, truth = federation.inputs(drawn, central=source == "orchestrator")
        kinds = MAPS if source == "in-cluster" else MAPS[:1]
        with matmul_precision(federation.precision, federation.device):
            found = explain_images(network, untrained, images, truth, kinds, how)
        rows += [{"source": source} | row for row in found]
    return rows


def explain_images(
    network: nn.Module,
    untrained: nn.Module,
    images: Tensor,
    truth: Tensor,
    kinds: Sequence[str],
    how: Assessment,
) -> list[dict[str, Any]]:
    """A row of `Explanations` for each kind of map, from ``map`` on."""
    if not len(images):
        return [{"map": kind, "samples": 0} for kind in kinds]
    with torch.inference_mode():
        answers = torch.cat([network(part).softmax(dim=1) for part in images.split(CHUNK)])
    predicted = answers.argmax(dim=1)
    classes = predicted if how.explained == "predicted" else truth
    rows = []
    for kind in kinds:
        if kind == "noise":
            maps = random_maps(images, how.seed)
        elif kind == "centre":
            maps = centre_maps(images)
        elif kind == "brightness":
            maps = brightness_maps(images)
        else:
            looked_into = untrained if kind == "untrained" else network
            maps = gradcam(looked_into, images, classes, how.layer)
        found = curves(
            *(network, images, maps, classes),
            step=how.step,
            baseline=how.baseline,
            seed=how.seed,
        )
        rows.append(
            {
                "map": kind,
                "samples": len(images),
                "empty": float((maps.amax(dim=(1, 2)) == 0).float().mean()),
                "accuracy": float((predicted == truth).float().mean()),
                "confidence": float(answers.gather(1, classes[:, None]).mean()),
                **described("insertion", area(found.insertion)),
                **described("deletion", area(found.deletion)),
            }
        )
    return rows


def described(name: str, areas: Tensor) -> dict[str, float]:
    """Mean, standard deviation and quantiles of images' areas ``[n]``."""
    quantiles = np.quantile(areas.double().numpy(), QUANTILES)
    return {
        name: float(areas.mean()),
        f"{name}_std": float(areas.double().numpy().std()),
        **{f"{name}_p{100 * q:02.0f}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)},
    }
