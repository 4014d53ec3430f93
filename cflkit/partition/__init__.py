"""Recipes that give each client its samples and its true cluster, and the manifest that keeps them.

The partition defines the experiment. It is made from its own seed and saved as a manifest with a
hash; no training seed changes it. Every recipe, also those of `shifts`, takes an image set. It
returns the image set that the clients draw from, and the partition of its pool. The recipes of this
module leave the images unchanged.

The scenarios of `ocfl` follow the OCFL papers: Zuziak et al., sections III-A and IV-A of the first
paper, section 3.1.2 of the extended one, and what the authors' archived partitions show. One recipe
comes from FedCRef, and two standard recipes are here for comparison. With `by_owners`, the clients
are those of the data themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cflkit.datasets import ImageSet

Indices = NDArray[np.int64]

# Classes of the three clusters, by the number of classes in the data set: ten in MNIST,
# Fashion-MNIST and CIFAR-10, nine in PathMNIST, eight in BloodMNIST.
NON_OVERLAPPING = {
    10: ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9]),
    9: ([0, 1, 2], [3, 4, 5], [6, 7, 8]),
    8: ([0, 1], [2, 3, 4], [5, 6, 7]),
}
OVERLAPPING = {
    10: ([0, 1, 2, 3, 8, 9], [4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5]),
    9: ([0, 1, 2, 7, 8], [4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5]),
    8: ([0, 1, 2, 6, 7], [3, 4, 5, 6, 7], [0, 1, 2, 3, 4]),
}
# Clients per cluster in the authors' archive; the papers' 20, 47 and 33 % are exact only for 15
# clients.
IMBALANCED_CLIENTS = {15: [3, 7, 5], 30: [7, 14, 9]}
IMBALANCED_SHARES = [0.20, 0.47, 0.33]
LOCAL_TEST_SHARE = 0.3


class PartitionError(Exception):
    """A recipe cannot be followed on this data, or a manifest does not match its hash."""


@dataclass(frozen=True)
class Partition:
    """The samples of a pool that each client holds, and the true cluster of each client.

    Attributes
    ----------
    dataset : str
        The name of the image set to whose pool the indices refer.
    train, test : list of ndarray
        For each client, the indices of its local training and test samples in ascending order.
    clusters : ndarray or None
        ``[m]``, the true cluster of each client, numbered from 0; None where nobody knows it.
    recipe : dict
        The name and the arguments of the recipe that made the partition, including the seed.
    more : dict of str to list of ndarray
        Further splits by name (``validation``, ``backdoor``), in the form of ``train``.
    """

    dataset: str
    train: list[Indices]
    test: list[Indices]
    clusters: Indices | None
    recipe: dict
    more: dict[str, list[Indices]] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        """Return m, the number of clients."""
        return len(self.train)

    @property
    def truth(self) -> Indices:
        """Return the true cluster of each client, for what cannot do without.

        Raises
        ------
        PartitionError
            Nobody knows the true clusters.
        """
        if self.clusters is None:
            raise PartitionError(f"nobody knows the true clusters of the clients of {self.dataset}")
        return self.clusters

    @property
    def splits(self) -> dict[str, list[Indices]]:
        """Return all splits by name, with ``train`` and ``test`` first."""
        return {"train": self.train, "test": self.test, **self.more}

    def take(self, clients: Sequence[int]) -> Partition:
        """Return the partition with these clients alone, in this order."""

        def chosen(held: list[Indices]) -> list[Indices]:
            return [held[client] for client in clients]

        return replace(
            self,
            train=chosen(self.train),
            test=chosen(self.test),
            clusters=None if self.clusters is None else self.clusters[list(clients)],
            recipe=self.recipe | {"clients taken": [int(client) for client in clients]},
            more={name: chosen(held) for name, held in self.more.items()},
        )

    @property
    def hash(self) -> str:
        """Return ``2:`` and the SHA-256 of everything that decides which client holds what.

        Different partitions have different hashes. The hash covers the data set's name, the true
        cluster of each client, the names of the splits, and the indices of each client in each
        split. It does not cover the recipe, which only tells how the partition was made. It does
        not cover pixels either. These follow from the data set's name, which includes the shift of
        a shifted set, and from its files, whose checksums are in `ImageSet.files`.
        """
        digest = hashlib.sha256()
        digest.update(framed(self.dataset.encode()))
        # Known clusters have eight bytes each, so that they never equal these seven
        known = b"unknown" if self.clusters is None else integers(self.clusters)
        digest.update(framed(known))
        for name in sorted(self.splits):
            digest.update(framed(name.encode()))
            # Without the number of clients, a client's indices could be read as the next split
            digest.update(integers([len(self.splits[name])]))
            for indices in self.splits[name]:
                digest.update(framed(integers(indices)))
        return f"2:{digest.hexdigest()}"

    def save(self, path: str | Path) -> Path:
        """Write the manifest as JSON and return its path."""
        manifest = {
            "dataset": self.dataset,
            "recipe": self.recipe,
            "hash": self.hash,
            "clients": [
                {"cluster": None if self.clusters is None else int(self.clusters[client])}
                | {name: parts[client].tolist() for name, parts in self.splits.items()}
                for client in range(self.clients)
            ],
        }
        path = Path(path)
        path.write_text(json.dumps(manifest) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a manifest.

        Raises
        ------
        PartitionError
            The file is not a manifest, or its contents do not have the hash that it states.
        """
        try:
            manifest = json.loads(Path(path).read_text())
            clients = manifest["clients"]
            splits = {
                name: [np.array(client[name], dtype=np.int64) for client in clients]
                for name in clients[0]
                if name != "cluster"
            }
            clusters = [client["cluster"] for client in clients]
            partition = cls(
                dataset=manifest["dataset"],
                train=splits.pop("train"),
                test=splits.pop("test"),
                clusters=None if None in clusters else np.array(clusters, dtype=np.int64),
                recipe=manifest["recipe"],
                more=splits,
            )
            stated = manifest["hash"]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise PartitionError(f"{path} is not a partition manifest ({error!r})") from error
        if stated != partition.hash:
            raise PartitionError(
                f"{path} was altered: its clients have the hash {partition.hash}, but it states "
                f"{stated}"
            )
        return partition


def framed(data: bytes) -> bytes:
    """Return ``data`` preceded by its length, which makes a sequence of such items unambiguous."""
    return integers([len(data)]) + data


def integers(values: ArrayLike) -> bytes:
    """Encode whole numbers in eight bytes each, in the same way on every machine."""
    return np.asarray(values, dtype="<i8").tobytes()


def ocfl(
    images: ImageSet,
    *,
    overlap: str,
    balance: str,
    clients: int = 15,
    draws: int | None = None,
    seed: int = 0,
) -> tuple[ImageSet, Partition]:
    """Make a scenario of the OCFL papers: three clusters of clients that differ in their classes.

    Parameters
    ----------
    images : ImageSet
        The images, with at least three classes (see `class_sets`).
    overlap : {"nonoverlapping", "overlapping"}
        Whether the clusters' class sets are disjoint.
    balance : {"balanced", "imbalanced"}
        In a balanced scenario, all clusters have the same number of clients, and all samples of the
        allowed classes are equally likely. In an imbalanced one, the clusters have 20, 47 and 33 %
        of the clients, and the clients of a cluster share one Dirichlet(1) draw of class
        probabilities.
    clients : int
        The number of clients m, at least 3; the papers have 15 and 30.
    draws : int, optional
        The number of draws per client, with replacement; by default ``floor(N / m)``, as in the
        papers. Repeated draws are dropped, so that a client holds fewer samples than this.
    seed : int
        The seed of the partition only.

    Returns
    -------
    ImageSet
        The given image set.
    Partition
        The clients. Of a client's samples, 70 % are its training set and 30 % its test set.

    Raises
    ------
    PartitionError
        The scenario is unknown, or there are too few clients, samples or classes.
    """
    labels = images.labels.numpy()
    classes = int(labels.max()) + 1 if labels.size else 0
    sets = class_sets(overlap, classes)
    if balance not in ("balanced", "imbalanced"):
        raise PartitionError(f"balance is {balance!r}, not one of balanced, imbalanced")
    sizes = cluster_sizes(clients, balance)
    train, test, clusters = by_class_sets(
        labels,
        sets,
        sizes,
        draws=draws,
        dirichlet=balance == "imbalanced",
        seed=seed,
    )
    recipe = {"name": "ocfl", "overlap": overlap, "balance": balance, "clients": clients}
    recipe |= {"draws": draws, "seed": seed}
    return images, Partition(images.name, train, test, clusters, recipe)


def class_sets(overlap: str, classes: int) -> list[list[int]]:
    """Return the classes of the three clusters of an OCFL scenario.

    For 8, 9 and 10 classes, they are those of the papers' authors. Other numbers of classes have no
    scenario in the papers. Then the classes are divided into thirds, as equal as possible. Disjoint
    clusters have one third each, and overlapping ones two.

    Raises
    ------
    PartitionError
        The overlap is unknown, or there are fewer than three classes.
    """
    layouts = {"nonoverlapping": NON_OVERLAPPING, "overlapping": OVERLAPPING}
    if overlap not in layouts:
        raise PartitionError(f"overlap is {overlap!r}, not one of {', '.join(layouts)}")
    if classes < 3:
        raise PartitionError(f"three clusters need at least three classes; there are {classes}")
    if classes in layouts[overlap]:
        return [*layouts[overlap][classes]]
    thirds = [part.tolist() for part in np.array_split(np.arange(classes), 3)]
    if overlap == "nonoverlapping":
        return thirds
    return [sorted(third + thirds[place - 1]) for place, third in enumerate(thirds)]


def with_validation(split: Partition, share: float, seed: int = 0) -> Partition:
    """Turn a share of each client's training samples into its validation samples.

    Parameters
    ----------
    split : Partition
        A partition without validation samples.
    share : float
        The share of the training samples, above 0 and below 1. Each client gets at least one
        validation sample.
    seed : int
        The seed of the choice.

    Returns
    -------
    Partition
        The same clients, with one more split named ``validation``.

    Raises
    ------
    PartitionError
        The share is out of bounds, there are validation samples already, or a client would have no
        training sample left.
    """
    if not 0 < share < 1:
        raise PartitionError(f"the share must be above 0 and below 1, not {share}")
    if "validation" in split.more:
        raise PartitionError("the partition has validation samples already")
    generator = np.random.default_rng(seed)
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


def cluster_sizes(clients: int, balance: str) -> list[int]:
    """Return the number of clients in each of the three clusters of an OCFL scenario.

    For numbers of clients that the papers do not use, the shares are rounded by the method of
    largest remainders, and no cluster is empty.
    """
    if clients < 3:
        raise PartitionError(f"an OCFL scenario has three clusters: {clients} clients are too few")
    if balance == "imbalanced" and clients in IMBALANCED_CLIENTS:
        return IMBALANCED_CLIENTS[clients]
    shares = IMBALANCED_SHARES if balance == "imbalanced" else [1 / 3, 1 / 3, 1 / 3]
    exact = np.array(shares) * (clients - 3)
    sizes = np.floor(exact).astype(int)
    for cluster in np.argsort(sizes - exact, kind="stable")[: clients - 3 - sizes.sum()]:
        sizes[cluster] += 1
    return [int(size) + 1 for size in sizes]


def by_class_sets(
    labels: NDArray[np.int64],
    class_sets: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    draws: int | None,
    dirichlet: bool,
    seed: int,
) -> tuple[list[Indices], list[Indices], Indices]:
    """Draw the samples of clusters of clients, each cluster from its own set of classes.

    Parameters
    ----------
    labels : ndarray
        ``[N]``, the class of each sample in the pool.
    class_sets : sequence of sequence of int
        The classes of each cluster.
    sizes : sequence of int
        The number of clients in each cluster; clients are numbered cluster by cluster.
    draws : int or None
        The number of draws per client; ``floor(N / m)`` for None.
    dirichlet : bool
        Whether to weight samples by class probabilities, as the authors' code does. A cluster's
        probabilities are drawn from Dirichlet(1) over all classes, and those of forbidden classes
        are set to zero. Otherwise all samples of the allowed classes are equally likely.
    seed : int
        The seed of the generator.

    Returns
    -------
    train, test : list of ndarray
        The indices of each client. Two clients may share a sample, but no client has a sample
        twice.
    clusters : ndarray
        ``[m]``, the cluster of each client.

    Raises
    ------
    PartitionError
        A client would have fewer than 4 samples, or a class has no sample.
    """
    m = sum(sizes)
    classes = int(labels.max()) + 1
    for allowed in class_sets:
        absent = sorted(set(allowed) - set(np.unique(labels).tolist()))
        if absent:
            raise PartitionError(
                f"no sample has class {absent[0]}; the classes are 0 to {classes - 1}"
            )
    draws = len(labels) // m if draws is None else draws
    if draws < 4 or m > len(labels):
        raise PartitionError(
            f"{m} clients on {len(labels)} samples with {draws} draws each: a client needs at "
            "least 4 draws to hold a training and a test set; use fewer clients or more draws"
        )
    generator = np.random.default_rng(seed)
    train, test, clusters = [], [], np.repeat(np.arange(len(sizes)), sizes)
    for allowed, size in zip(class_sets, sizes, strict=True):
        weight = np.isin(np.arange(classes), allowed).astype(float)
        if dirichlet:
            weight *= generator.dirichlet(np.ones(classes))
        probabilities = weight[labels] / weight[labels].sum()
        for _ in range(size):
            drawn = generator.choice(len(labels), size=draws, replace=True, p=probabilities)
            local_train, local_test = local_split(np.unique(drawn), generator)
            train.append(local_train)
            test.append(local_test)
    return train, test, clusters


def iid(
    images: ImageSet, *, clients: int, draws: int | None = None, seed: int = 0
) -> tuple[ImageSet, Partition]:
    """Let every client draw from the whole pool, so that there is only one true cluster.

    Each client has ``draws`` samples (``floor(N / m)`` by default), drawn without replacement. No
    two clients share a sample.

    Raises
    ------
    PartitionError
        A client would have fewer than 4 samples.
    """
    total = len(images.labels)
    share = total // clients if clients > 0 else 0
    draws = share if draws is None else draws
    if clients < 1 or not 4 <= draws <= share:
        raise PartitionError(
            f"{clients} clients of {draws} samples each cannot be drawn from {total} samples "
            "(a client needs at least 4)"
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(total)
    parts = [np.sort(order[client * draws : (client + 1) * draws]) for client in range(clients)]
    recipe = {"name": "iid", "clients": clients, "draws": draws, "seed": seed}
    return images, without_clusters(images.name, parts, recipe, generator)


def dirichlet(
    images: ImageSet, *, clients: int, alpha: float, seed: int = 0
) -> tuple[ImageSet, Partition]:
    """Make the standard label skew without groups: split each class by Dirichlet(α).

    This is the recipe of Hsu, Qi and Brown (2019) in the form that has been most common since. For
    each class, the clients' shares are drawn from Dirichlet(α·1), and its samples are split
    accordingly. The draw is repeated, up to 100 times, while a client holds fewer than 4 samples.
    No two clients share a sample, and all clients form one true cluster.

    Raises
    ------
    PartitionError
        An argument is out of bounds, or some client always has fewer than 4 samples.
    """
    if clients < 1 or not alpha > 0:
        raise PartitionError(f"needs clients ≥ 1 and alpha > 0, not {clients} and {alpha}")
    labels = images.labels.numpy()
    generator = np.random.default_rng(seed)
    for _ in range(100):
        indices = dirichlet_shares(labels, clients, alpha, generator)
        if min(map(len, indices)) >= 4:
            break
    else:
        raise PartitionError(
            f"{clients} clients with alpha = {alpha} on {len(labels)} samples: some client always "
            "stays below 4 samples; use fewer clients or a larger alpha"
        )
    recipe = {"name": "dirichlet", "clients": clients, "alpha": alpha, "seed": seed}
    return images, without_clusters(images.name, indices, recipe, generator)


def dirichlet_shares(
    labels: NDArray[np.int64], clients: int, alpha: float, generator: np.random.Generator
) -> list[Indices]:
    """Split each class among the clients by shares from Dirichlet(α); return their indices."""
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, float(alpha)))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for client, part in enumerate(np.split(members, cuts)):
            held[client].append(part)
    return [np.sort(np.concatenate(parts)) for parts in held]


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

    Returns
    -------
    ImageSet
        The given image set.
    Partition
        The clients, without test samples. Clients with the same set of classes share a true
        cluster.

    Raises
    ------
    PartitionError
        An argument is out of bounds, a class has too few samples, or there are too few sets of
        classes.
    """
    labels = images.labels.numpy()
    classes, counts = np.unique(labels, return_counts=True)
    classes, counts = classes[counts >= at_least], counts[counts >= at_least]
    if not len(classes):
        raise PartitionError(
            f"no class of {images.name} has {at_least} samples; take a smaller at_least"
        )
    max_classes = len(classes) // 2 if max_classes is None else max_classes
    if clients < 1 or samples_per_class < 1 or not 0 <= overlap <= 1:
        raise PartitionError(
            "needs clients ≥ 1, samples_per_class ≥ 1 and overlap in [0, 1], not "
            f"{clients}, {samples_per_class} and {overlap}"
        )
    if not 1 <= min_classes <= max_classes <= len(classes):
        raise PartitionError(
            f"a client cannot hold from {min_classes} to {max_classes} of {len(classes)} classes"
        )
    if samples_per_class > counts.min():
        raise PartitionError(
            f"{images.name} has a class of {counts.min()} samples, but each client should get "
            f"{samples_per_class}"
        )
    generator = np.random.default_rng(seed)
    bounds = (min_classes, max_classes)
    class_sets = draw_class_sets(classes, clients, bounds, unique, generator)
    common = round(overlap * samples_per_class)
    held = split_classes(labels, classes, class_sets, samples_per_class, common, generator)
    known = sorted(set(class_sets))
    clusters = np.array([known.index(own) for own in class_sets], dtype=np.int64)
    recipe = {
        "name": "class_mixtures",
        "clients": clients,
        "samples_per_class": samples_per_class,
        "min_classes": min_classes,
        "max_classes": max_classes,
        "at_least": at_least,
        "unique": unique,
        "overlap": overlap,
        "seed": seed,
    }
    nothing = [np.empty(0, dtype=np.int64)] * clients
    return images, Partition(images.name, held, nothing, clusters, recipe)


def draw_class_sets(
    classes: NDArray[np.int64],
    clients: int,
    bounds: tuple[int, int],
    unique: bool,
    generator: np.random.Generator,
) -> list[tuple[int, ...]]:
    """Draw the classes of each client in ascending order; ``bounds`` limit their number.

    Raises
    ------
    PartitionError
        The clients should hold different sets of classes, and there are too few such sets.
    """
    lowest, highest = bounds
    sets = sum(math.comb(len(classes), size) for size in range(lowest, highest + 1))
    if unique and clients > sets:
        raise PartitionError(f"{clients} clients cannot differ in classes: there are {sets} sets")
    drawn: list[tuple[int, ...]] = []
    while len(drawn) < clients:
        size = generator.integers(lowest, highest, endpoint=True)
        own = tuple(sorted(generator.choice(classes, size, replace=False).tolist()))
        if not (unique and own in drawn):
            drawn.append(own)
    return drawn


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
        start, own = 0, size - common
        for client in (c for c, held_classes in enumerate(class_sets) if label in held_classes):
            if start + own > len(rest):
                rest, start = generator.permutation(rest), 0
            held[client] += [shared, rest[start : start + own]]
            start += own
    return [np.sort(np.concatenate(parts)) for parts in held]


def by_owners(images: ImageSet, *, seed: int = 0) -> tuple[ImageSet, Partition]:
    """Give each client the samples that it holds in the data; nobody knows the true clusters.

    Results then have no measure that needs a truth, such as the ARI.

    Parameters
    ----------
    images : ImageSet
        Images with owners, such as one's own with the array ``clients``.
    seed : int
        The seed of the partition only, which chooses each client's test samples.

    Returns
    -------
    ImageSet
        The given image set.
    Partition
        The clients. Of a client's samples, 70 % are its training set and 30 % its test set.

    Raises
    ------
    PartitionError
        The images have no owners, or a client has fewer than two samples.
    """
    if images.owners is None:
        raise PartitionError(
            f"{images.name} does not say which client holds which sample; give the array 'clients'"
        )
    owners = images.owners.numpy()
    counts = np.bincount(owners)
    if (poor := np.flatnonzero(counts < 2)).size:
        raise PartitionError(
            f"clients {poor.tolist()} of {images.name} have fewer than two samples in the pool, "
            "and need one to train and one to test; leave them out, and number the others from 0"
        )
    generator = np.random.default_rng(seed)
    parts = [
        local_split(np.flatnonzero(owners == owner), generator) for owner in range(len(counts))
    ]
    train, test = ([part[side] for part in parts] for side in (0, 1))
    return images, Partition(images.name, train, test, None, {"name": "by_owners", "seed": seed})


def without_clusters(
    dataset: str, parts: list[Indices], recipe: dict, generator: np.random.Generator
) -> Partition:
    """Build the partition with one true cluster, in which each client has its part of the pool."""
    splits = [local_split(part, generator) for part in parts]
    train, test = ([split[side] for split in splits] for side in (0, 1))
    return Partition(dataset, train, test, np.zeros(len(parts), dtype=np.int64), recipe)


def local_split(indices: Indices, generator: np.random.Generator) -> tuple[Indices, Indices]:
    """Split a client's samples into training (70 %) and test (30 %) at random, not stratified."""
    shuffled = generator.permutation(indices)
    # Both sets need a sample, even where repeated draws left the client with very few
    tests = min(max(round(LOCAL_TEST_SHARE * len(indices)), 1), len(indices) - 1)
    if len(indices) < 2:
        raise PartitionError("all draws of a client are the same sample; use more draws")
    return np.sort(shuffled[tests:]), np.sort(shuffled[:tests])


def class_counts(partition: Partition, labels: ArrayLike, part: str = "train") -> NDArray[np.int64]:
    """Count the samples of each class that each client has in a split: ``[m, classes]``."""
    targets = np.asarray(labels)
    classes = int(targets.max()) + 1
    return np.stack([np.bincount(targets[i], minlength=classes) for i in partition.splits[part]])
