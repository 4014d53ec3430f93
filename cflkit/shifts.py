"""Clusters by a shift of the images, where `partition` makes them by classes.

As every recipe of `partition`, `make` takes an image set and returns the one that the clients draw
from, here with shifted images, and the partition of its pool. The recipes are those of EMD-CFL:
rotations (section 4.1; appendices C.1, C.2 and E.9), backdoors (appendices C.4 and C.5) and the
domains of PACS (appendix C.3), as the authors' notebooks make them except for what notebook
``05_emd_cfl`` lists. Unlike in `partition.ocfl`, a client has validation samples, too.

D. Zhang, F. Toni, M. Williams: Clustered federated learning via embedding distributions. arXiv
2506.07769.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray
from torch import Tensor

from cflkit.datasets import ImageSet
from cflkit.partition import Indices, Partition, PartitionError

# What a group does to its images, given their labels
Shift = Callable[[Tensor, Tensor], Tensor]

# Colours of Backdoor MNIST, in [0, 1]: the code's green and purple, and ten of its forty greens
GREEN, PURPLE = (0.26, 0.63, 0.40), (149 / 255, 52 / 255, 235 / 255)
SHADES = colormaps["summer"].resampled(40)(range(10))[:, :3]
PATCHES = colormaps["tab10"](range(10))[:, :3]
PATCH_SIDE = 3
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Group:
    """Clients whose images are shifted alike.

    Attributes
    ----------
    cluster : int
        The true cluster; two groups can belong to one.
    shift : Shift
        What is done to the group's images.
    share : float
        Of its training images that the group keeps; validation images are those of the whole.
    classes : sequence of int, optional
        The classes that it holds; all for None.
    """

    cluster: int
    shift: Shift
    share: float = 1.0
    classes: Sequence[int] | None = None


def rotated(degrees: float) -> Shift:
    """Rotate images counter-clockwise, to the nearest pixel, black where nothing was."""

    def shift(images: Tensor, labels: Tensor) -> Tensor:
        from torchvision.transforms.functional import rotate

        return rotate(images, degrees) if degrees % 360 else images

    return shift


def unchanged(images: Tensor, labels: Tensor) -> Tensor:
    """Return the images as they are."""
    return images


def inverted(images: Tensor, labels: Tensor) -> Tensor:
    """Invert grey levels: black on white for white on black."""
    return 255 - images


def coloured(colours: Sequence[float] | NDArray[np.float64]) -> Shift:
    """Multiply grey images by an RGB colour, ``[3]``, or by one per class, ``[classes, 3]``."""

    def shift(images: Tensor, labels: Tensor) -> Tensor:
        table = torch.as_tensor(np.array(colours), dtype=torch.float32)
        colour = table[labels][:, :, None, None] if table.ndim == 2 else table[:, None, None]
        return (images * colour).round().to(torch.uint8)

    return shift


def patched(move: int = 0) -> Shift:
    """Paint a small square in the upper left corner, in the colour of (label + ``move``) mod 5."""

    def shift(images: Tensor, labels: Tensor) -> Tensor:
        colours = torch.as_tensor(PATCHES * 255).round().to(torch.uint8)
        shifted = images.clone()
        chosen = colours[(labels + move) % 5]
        shifted[:, :, :PATCH_SIDE, :PATCH_SIDE] = chosen[:, :, None, None]
        return shifted

    return shift


def rotation_groups(degrees: Sequence[float], clusters: Sequence[int]) -> list[Group]:
    """Return one group per angle."""
    return [Group(c, rotated(d)) for d, c in zip(degrees, clusters, strict=True)]


# Table 1 (``four``) and Tables 10 and 11, where three degrees more or less are one true cluster;
# and two shifts that 1,437 digits can carry, for lessons
ROTATIONS = {
    "four": rotation_groups((0, 90, 180, 270), (0, 1, 2, 3)),
    "min": rotation_groups((-3, -1, 1, 3), (0, 0, 0, 0)),
    "two": rotation_groups((-3, 3, 177, 183), (0, 0, 1, 1)),
    "base": rotation_groups((0, 0, 0, 0), (0, 0, 0, 0)),
    "quarter-turn": rotation_groups((0, 90), (0, 1)),
    "inverted": [Group(0, unchanged), Group(1, inverted)],
}
COLOURS = [
    Group(0, coloured(GREEN), 0.5),
    Group(1, coloured(SHADES)),
    Group(2, coloured(PURPLE), 0.5),
]
CORNERS = [
    Group(0, unchanged, classes=range(5)),
    Group(1, patched(), classes=range(5)),
    Group(2, unchanged, classes=range(5, 10)),
]
VERSIONS = (*ROTATIONS, "backdoor", "domains")


def make(
    images: ImageSet,
    version: str,
    *,
    clients: int | None = None,
    samples: int | None = None,
    published: bool = False,
    seed: int = 0,
) -> tuple[ImageSet, Partition]:
    """Make the pool and the clients of one of EMD-CFL's data sets.

    Parameters
    ----------
    images : ImageSet
        What is shifted. Backdoors want grey images (which are coloured) or images with colours
        (which are patched) of ten classes; ``domains`` wants domains (PACS).
    version : str
        One of `VERSIONS`.
    clients : int, optional
        m, the same number in each group. None for ``domains``, where the number of images decides.
    samples : int, optional
        Training and validation images of a client before a group gives any up; a group's images
        over its clients by default. Give both for fewer clients of the paper's size.
    published : bool
        As the authors' code does it, where the paper says otherwise: the test images of a group of
        rotations are split among as many clients as there are in *all* groups (220 images per
        client of Rotated MNIST, in places 230, and not 892; all of theirs have 220), and the
        domains of PACS are cut 64/16/20 and not 80/10/10.
    seed : int
        Seed of the partition alone.

    Returns
    -------
    ImageSet
        Named ``<version>-<name>``. Its pool holds the training and test images of every group, one
        group after the other (images that no client has are black); it has no central test set.
    Partition
        With ``validation`` beside ``train`` and ``test``; for backdoors with ``backdoor``, the
        manipulated test images of the target clients, and nothing for the others.

    Raises
    ------
    PartitionError
        Unknown version, images that do not suit it, or too few of them.
    """
    if version not in VERSIONS:
        raise PartitionError(f"unknown version {version!r}; known are {', '.join(VERSIONS)}")
    recipe = {
        "name": version,
        "clients": clients,
        "samples": samples,
        "published": published,
        "seed": seed,
    }
    if version == "domains":
        if clients is not None or samples is not None:
            raise PartitionError("the domains' sizes decide about clients and samples: give None")
        return images, by_domains(images, recipe)
    if version == "backdoor":
        if images.classes != 10:
            raise PartitionError(
                f"backdoors need ten classes, and {images.name} has {images.classes}"
            )
        groups = COLOURS if images.shape[0] == 1 else CORNERS
        manipulated = coloured(SHADES[::-1]) if images.shape[0] == 1 else patched(move=1)
    else:
        groups, manipulated = ROTATIONS[version], None
    if clients is None or clients < len(groups) or clients % len(groups):
        raise PartitionError(
            f"{version} has {len(groups)} groups: clients must be a multiple of it"
        )
    return by_groups(images, groups, manipulated, recipe)


def by_groups(
    images: ImageSet, groups: Sequence[Group], manipulated: Shift | None, recipe: dict
) -> tuple[ImageSet, Partition]:
    """Shift all images in each group's way, and split each group's copy among its clients.

    The pool holds one copy of the images per group, and behind them, for backdoors, the test images
    of the target clients as ``manipulated`` makes them.
    """
    generator = np.random.default_rng(recipe["seed"])
    members = recipe["clients"] // len(groups)
    source = torch.cat([images.images, images.test_images])
    labels = torch.cat([images.labels, images.test_labels])
    copies = len(groups) + (manipulated is not None)
    channels = len(groups[0].shift(source[:1], labels[:1])[0])
    pool = torch.zeros(copies, len(labels), channels, *source.shape[2:], dtype=torch.uint8)
    splits: dict[str, list[Indices]] = {"train": [], "test": [], "validation": []}
    for number, group in enumerate(groups):
        # The slip of the published code is in the notebook of the rotations alone
        slip = recipe["published"] and manipulated is None
        sharers = recipe["clients"] if slip else members
        train, test = split_group(images, group, members, sharers, recipe["samples"], generator)
        used = np.concatenate([*train, *test])
        pool[number, used] = group.shift(source[used], labels[used])
        for own, own_test in zip(train, test, strict=True):
            for name, rows in client_splits(own, own_test, group.share, generator).items():
                splits[name].append(rows + number * len(labels))
    clusters = np.repeat([group.cluster for group in groups], members)
    if manipulated is not None:
        targets = [
            rows % len(labels) if cluster == 0 else rows[:0]
            for rows, cluster in zip(splits["test"], clusters, strict=True)
        ]
        tested = np.concatenate(targets)
        pool[-1, tested] = manipulated(source[tested], labels[tested])
        splits["backdoor"] = [rows + len(groups) * len(labels) for rows in targets]
    name = f"{recipe['name']}-{images.name}"
    shifted = replace(
        images,
        name=name,
        images=pool.flatten(0, 1),
        labels=labels.repeat(copies),
        test_images=pool[0, :0],
        test_labels=labels[:0],
        domains=None,
    )
    train, test = splits.pop("train"), splits.pop("test")
    return shifted, Partition(name, train, test, clusters, recipe, splits)


def split_group(
    images: ImageSet,
    group: Group,
    clients: int,
    sharers: int,
    samples: int | None,
    generator: np.random.Generator,
) -> tuple[list[Indices], list[Indices]]:
    """Split the images that a group holds among its clients.

    Returns
    -------
    train, test : list of ndarray
        For each client rows of the training images followed by the test images. Test images are cut
        for ``sharers`` clients, of which the group has the first.
    """
    labels = torch.cat([images.labels, images.test_labels])
    rows = np.arange(len(labels))
    held = np.isin(labels, labels.unique() if group.classes is None else list(group.classes))
    first = rows < len(images.labels)
    train = split_among_clients(rows[held & first], labels, clients, samples, generator)
    test = split_among_clients(rows[held & ~first], labels, sharers, None, generator)
    return train, test[:clients]


def client_splits(
    own: Indices, own_test: Indices, share: float, generator: np.random.Generator
) -> dict[str, Indices]:
    """Split a client's rows into training (of which it keeps ``share``), validation and test."""
    kept = int(len(own) * (1 - VALIDATION_SHARE))
    if kept == len(own) or not kept or not len(own_test):
        raise PartitionError(
            f"{len(own)} and {len(own_test)} images are too few for training, validation and test "
            "of a client; use fewer clients or more samples"
        )
    shuffled = generator.permutation(own)
    return {
        "train": np.sort(shuffled[: int(kept * share)]),
        "validation": np.sort(shuffled[kept:]),
        "test": np.sort(own_test),
    }


def split_among_clients(
    rows: Indices,
    labels: Tensor,
    clients: int,
    samples: int | None,
    generator: np.random.Generator,
) -> list[Indices]:
    """Split rows among clients, as many of each class for each client.

    Of every class as many are used as the rarest one has, where classes are nearly alike (MNIST's
    differ by a quarter, and the authors cut them so).
    """
    classes = np.unique(labels[rows])
    per_class = min(int((labels[rows] == label).sum()) for label in classes)
    each = per_class / clients if samples is None else samples / len(classes)
    cuts = np.floor(np.arange(clients + 1) * each).astype(int)
    if cuts[-1] > per_class:
        raise PartitionError(
            f"{clients} clients with {samples} images each need {cuts[-1]} images of every class, "
            f"and there are {per_class}"
        )
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for label in classes:
        members = generator.permutation(rows[labels[rows].numpy() == label])
        for client, (start, end) in enumerate(itertools.pairwise(cuts)):
            held[client].append(members[start:end])
    return [np.concatenate(parts) for parts in held]


def by_domains(images: ImageSet, recipe: dict) -> Partition:
    """Split PACS into clients of at least 500 images of one domain, which is the true cluster."""
    if images.domains is None:
        raise PartitionError(f"{images.name} has no domains")
    generator = np.random.default_rng(recipe["seed"])
    test_share, validation_share = (0.2, 0.2) if recipe["published"] else (0.1, 1 / 9)
    train, test, validation, clusters = [], [], [], []
    for domain in images.domains.unique().tolist():
        rows = generator.permutation(np.flatnonzero(images.domains.numpy() == domain))
        clients = len(rows) // 500
        if not clients:
            raise PartitionError(f"domain {domain} has {len(rows)} images, and a client needs 500")
        tests = round(len(rows) * test_share)
        for client in range(clients):
            own, held_back = rows[tests:][client::clients], rows[:tests][client::clients]
            cut = round(len(own) * validation_share)
            validation.append(np.sort(own[:cut]))
            train.append(np.sort(own[cut:]))
            test.append(np.sort(held_back))
            clusters.append(domain)
    return Partition(
        images.name, train, test, np.array(clusters), recipe, {"validation": validation}
    )
