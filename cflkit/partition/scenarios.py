"""The scenarios of the OCFL papers: clusters of clients that differ in their classes.

They follow Zuziak et al., sections III-A and IV-A of the first paper, section 3.1.2 of the extended
one, and what the authors' archived partitions show.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cflkit.datasets.images import ImageSet
from cflkit.partition.manifest import Indices, Partition, PartitionError, local_splits, seeded

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
SHARES = {"balanced": [1 / 3, 1 / 3, 1 / 3], "imbalanced": [0.20, 0.47, 0.33]}


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
        Whether all clusters have the same number of clients, and all samples of the allowed classes
        are equally likely. Otherwise, the clusters have 20, 47 and 33 % of the clients, and the
        clients of a cluster share one Dirichlet(1) draw of class probabilities.
    clients : int
        The number of clients m, at least 3; the papers have 15 and 30.
    draws : int, optional
        The number of draws per client, with replacement; by default ``floor(N / m)``, as in the
        papers. Repeated draws are dropped, so that a client holds fewer samples than this. Of
        these, 70 % are its training set and 30 % its test set.
    seed : int
        The seed of the partition only.
    """
    labels = images.labels.numpy()
    sets = class_sets(overlap, int(labels.max()) + 1 if labels.size else 0)
    sizes = cluster_sizes(clients, balance)
    weighted = balance == "imbalanced"
    drawn = by_class_sets(labels, sets, sizes, draws=draws, dirichlet=weighted, seed=seed)
    recipe = {"name": "ocfl", "overlap": overlap, "balance": balance, "clients": clients}
    return images, Partition(images.name, *drawn, recipe | {"draws": draws, "seed": seed})


def class_sets(overlap: str, classes: int) -> list[list[int]]:
    """Return the classes of the three clusters of an OCFL scenario.

    For 8, 9 and 10 classes, they are those of the papers' authors. Other numbers of classes have no
    scenario in the papers. Then the classes are divided into thirds, as equal as possible. Disjoint
    clusters have one third each, and overlapping ones two.
    """
    layouts = {"nonoverlapping": NON_OVERLAPPING, "overlapping": OVERLAPPING}
    if overlap not in layouts:
        raise PartitionError(f"overlap is {overlap!r}, not one of {', '.join(layouts)}")
    if classes < 3:
        raise PartitionError(f"three clusters need at least three classes; there are {classes}")
    if classes in layouts[overlap]:
        return [[*part] for part in layouts[overlap][classes]]
    thirds = [part.tolist() for part in np.array_split(np.arange(classes), 3)]
    if overlap == "nonoverlapping":
        return thirds
    return [sorted(third + thirds[place - 1]) for place, third in enumerate(thirds)]


def cluster_sizes(clients: int, balance: str) -> list[int]:
    """Return the number of clients in each of the three clusters of an OCFL scenario.

    For numbers of clients that the papers do not use, each cluster has one client, and the shares
    of the others are rounded by the method of largest remainders. So no cluster is empty.
    """
    if balance not in SHARES:
        raise PartitionError(f"balance is {balance!r}, not one of {', '.join(SHARES)}")
    if clients < 3:
        raise PartitionError(f"an OCFL scenario has three clusters: {clients} clients are too few")
    if balance == "imbalanced" and clients in IMBALANCED_CLIENTS:
        return [*IMBALANCED_CLIENTS[clients]]
    exact = np.array(SHARES[balance]) * (clients - 3)
    sizes = np.floor(exact).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: clients - 3 - sizes.sum()]] += 1
    return (sizes + 1).tolist()


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
    class_sets, sizes : sequence
        The classes of each cluster, and its number of clients, which are numbered cluster by
        cluster.
    draws : int or None
        The number of draws per client, at least 4; ``floor(N / m)`` for None.
    dirichlet : bool
        Whether to weight samples by class probabilities, as the authors' code does. A cluster's
        probabilities are drawn from Dirichlet(1) over all classes, and those of forbidden classes
        are set to zero. Otherwise all samples of the allowed classes are equally likely.
    seed : int
        The seed of the generator.

    Returns
    -------
    train, test : list of ndarray
        The indices of each client. Two clients may share a sample, but no client has one twice.
    clusters : ndarray
        ``[m]``, the cluster of each client.
    """
    m, classes = sum(sizes), np.unique(labels)
    if missing := {label for allowed in class_sets for label in allowed} - set(classes.tolist()):
        raise PartitionError(f"no sample has the classes {sorted(missing)}")
    count = len(labels) // m if draws is None else draws
    if count < 4 or m > len(labels):
        fault = f"{m} clients on {len(labels)} samples have {count} draws each, but need at least 4"
        raise PartitionError(f"{fault}; use fewer clients or more draws")
    generator = seeded(seed)

    def parts() -> Iterator[Indices]:
        for allowed, size in zip(class_sets, sizes, strict=True):
            weight = np.isin(np.arange(classes[-1] + 1), allowed).astype(float)
            if dirichlet:
                weight *= generator.dirichlet(np.ones(len(weight)))
            # As `generator.choice` draws with the probabilities p, but p is summed up only once
            ends = np.cumsum(weight[labels] / weight[labels].sum())
            ends /= ends[-1]
            for _ in range(size):
                yield np.unique(np.searchsorted(ends, generator.random(count), side="right"))

    train, test = local_splits(parts(), generator)
    return train, test, np.repeat(np.arange(len(sizes)), sizes)
