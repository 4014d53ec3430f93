"""Recipes in which each client holds its own mixture of classes.

One is from FedCRef, and two standard ones are here for comparison. With `by_owners`, the clients
are those of the data themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cflkit._bounds import LARGEST
from cflkit.datasets.images import ImageSet
from cflkit.partition.manifest import Indices, Partition, PartitionError, local_splits, seeded


def with_validation(split: Partition, share: float, seed: int = 0) -> Partition:
    """Turn a share of each client's training samples into a further split named ``validation``.

    Each client gets at least one validation sample. ``seed`` is that of the choice.
    """
    if not 0 < share < 1:
        raise PartitionError(f"the share must be above 0 and below 1, not {share}")
    if "validation" in split.more:
        raise PartitionError("the partition has validation samples already")
    generator = seeded(seed)
    train, validation = [], []
    for client, held in enumerate(split.train):
        count = max(1, round(share * len(held)))
        if count >= len(held):
            raise PartitionError(f"client {client} would have no training samples left")
        order = generator.permutation(len(held))
        validation.append(np.sort(held[order[:count]]))
        train.append(np.sort(held[order[count:]]))
    recipe = split.recipe | {"validation": share, "validation_seed": seed}
    return replace(split, train=train, recipe=recipe, more={**split.more, "validation": validation})


def iid(
    images: ImageSet, *, clients: int, draws: int | None = None, seed: int = 0
) -> tuple[ImageSet, Partition]:
    """Let every client draw from the whole pool, so that there is only one true cluster.

    Each client has ``draws`` samples (``floor(N / m)`` by default), drawn without replacement. No
    two clients share a sample, and a client needs 4.
    """
    total = len(images.labels)
    share = total // clients if clients > 0 else 0
    draws = share if draws is None else draws
    if clients < 1 or not 4 <= draws <= share:
        fault = f"{draws} of {total} samples cannot be drawn for each of {clients} clients"
        raise PartitionError(f"{fault}; each needs at least 4")
    generator = seeded(seed)
    parts = np.sort(generator.permutation(total)[: clients * draws].reshape(clients, draws))
    recipe = {"name": "iid", "clients": clients, "draws": draws, "seed": seed}
    same = np.zeros(clients, dtype=np.int64)
    return images, Partition(images.name, *local_splits(parts, generator), same, recipe)


def dirichlet(
    images: ImageSet, *, clients: int, alpha: float, seed: int = 0
) -> tuple[ImageSet, Partition]:
    """Make the standard label skew without groups: split each class by Dirichlet(α).

    This is the recipe of Hsu, Qi and Brown (2019) in the form that has been most common since. For
    each class, the clients' shares are drawn from Dirichlet(α·1), and its samples are split
    accordingly. The draw is repeated, up to 100 times, while a client holds fewer than 4 samples.
    No two clients share a sample, and all clients form one true cluster.
    """
    if clients < 1 or not 0 < alpha <= LARGEST:
        needs = f"needs clients ≥ 1, and alpha above 0 and up to {LARGEST:g}"
        raise PartitionError(f"{needs}, not {clients} and {alpha}")
    labels = images.labels.numpy()
    generator = seeded(seed)
    for _ in range(100):
        by_class = []
        for label in np.unique(labels):
            members = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, float(alpha)))
            cuts = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(int)
            by_class.append(np.split(members, cuts))
        parts = [np.sort(np.concatenate(held)) for held in zip(*by_class, strict=True)]
        if min(map(len, parts)) >= 4:
            break
    else:
        raise PartitionError("a client always has fewer than 4 samples; fewer clients may help")
    recipe = {"name": "dirichlet", "clients": clients, "alpha": alpha, "seed": seed}
    same = np.zeros(clients, dtype=np.int64)
    return images, Partition(images.name, *local_splits(parts, generator), same, recipe)


def by_owners(images: ImageSet, *, seed: int = 0) -> tuple[ImageSet, Partition]:
    """Give each client the samples that it holds in the data; nobody knows the true clusters.

    Results then have no measure that needs a truth, such as the ARI. The seed chooses each client's
    test samples. Images have owners if one's own data have the array ``clients``.
    """
    if images.owners is None:
        raise PartitionError(f"{images.name} does not say who holds what; give the array 'clients'")
    counts = images.owners.bincount().numpy()
    order = np.argsort(images.owners.numpy(), kind="stable")
    splits = local_splits(np.split(order, np.cumsum(counts)[:-1]), seeded(seed))
    return images, Partition(images.name, *splits, None, {"name": "by_owners", "seed": seed})


def class_mixtures(
    images: ImageSet,
    *,
    clients: int = 25,
    samples_per_class: int = 500,
    min_classes: int = 2,
    max_classes: int | None = None,
    at_least: int = 0,
    unique: bool = True,
    overlap: float = 0.0,
    seed: int = 0,
) -> tuple[ImageSet, Partition]:
    """Make a system of FedCRef, where clients hold some classes, with equally many samples of each.

    The recipe is that of Nardi, Valerio and Passarella, section 5.2. The rule that no two clients
    hold the same set of classes is taken from the authors' code.
    Clients with the same set of classes share a true cluster. No client has test samples.

    Parameters
    ----------
    images : ImageSet
        The images, whose pool is split.
    clients : int
        The number of clients m.
    samples_per_class : int
        S, the number of samples of each class that a client holds.
    min_classes, max_classes : int, optional
        Bounds of the number of classes per client, which is drawn uniformly. By default the upper
        bound is half of all classes.
    at_least : int
        The smallest number of samples of a class; classes with fewer are left out. The authors use
        6,000 for Kuzushiji-49.
    unique : bool
        Whether all clients must hold different sets of classes.
    overlap : float
        The share, in [0, 1], of a client's samples of a class that all other clients with this
        class hold, too. No other client has the rest, unless the class has too few samples. The
        rest of the class is then shuffled and split again, so that clients share more samples.
    seed : int
        The seed of the partition only.
    """
    labels = images.labels.numpy()
    classes, counts = np.unique(labels, return_counts=True)
    classes, counts = classes[counts >= at_least], counts[counts >= at_least]
    max_classes = len(classes) // 2 if max_classes is None else max_classes
    if clients < 1 or samples_per_class < 1 or not 0 <= overlap <= 1:
        needs = "needs clients ≥ 1, samples_per_class ≥ 1 and overlap in [0, 1], not"
        raise PartitionError(f"{needs} {clients}, {samples_per_class} and {overlap}")
    if not 1 <= min_classes <= max_classes <= len(classes):
        bounds = f"{min_classes} to {max_classes} of the {len(classes)} classes"
        raise PartitionError(f"a client cannot hold {bounds} with {at_least} samples or more")
    if samples_per_class > counts.min():
        raise PartitionError(f"a class of {counts.min()} samples cannot give {samples_per_class}")
    sets = sum(math.comb(len(classes), size) for size in range(min_classes, max_classes + 1))
    if unique and clients > sets:
        raise PartitionError(f"{clients} clients cannot differ in classes: there are {sets} sets")
    generator = seeded(seed)
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < clients:
        size = generator.integers(min_classes, max_classes, endpoint=True)
        chosen = tuple(sorted(generator.choice(classes, size, replace=False).tolist()))
        if not (unique and chosen in drawn):
            drawn.append(chosen)
    common = round(overlap * samples_per_class)
    held = split_classes(labels, classes, drawn, samples_per_class, common, generator)
    known = sorted(set(drawn))
    clusters = np.array([known.index(chosen) for chosen in drawn], dtype=np.int64)
    recipe = {"name": "class_mixtures", "clients": clients, "samples_per_class": samples_per_class}
    recipe |= {"min_classes": min_classes, "max_classes": max_classes, "at_least": at_least}
    recipe |= {"unique": unique, "overlap": overlap, "seed": seed}
    nothing = [np.empty(0, dtype=np.int64)] * clients
    return images, Partition(images.name, held, nothing, clusters, recipe)


def split_classes(
    labels: NDArray[np.int64],
    classes: NDArray[np.int64],
    class_sets: Sequence[tuple[int, ...]],
    size: int,
    common: int,
    generator: np.random.Generator,
) -> list[Indices]:
    """Give each client ``size`` samples of each of its classes.

    All clients with a class get the same ``common`` samples of it. The others are taken client by
    client from the rest of the class, which is shuffled again when it runs out.
    """
    held: list[list[Indices]] = [[] for _ in class_sets]
    for label in classes.tolist():
        members = generator.permutation(np.flatnonzero(labels == label))
        shared, rest = members[:common], members[common:]
        start, width = 0, size - common
        for client in (c for c, held_classes in enumerate(class_sets) if label in held_classes):
            if start + width > len(rest):
                rest, start = generator.permutation(rest), 0
            held[client] += [shared, rest[start : start + width]]
            start += width
    return [np.sort(np.concatenate(parts)) for parts in held]
