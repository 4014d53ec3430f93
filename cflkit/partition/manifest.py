"""The partition: which client holds which samples, its hash, and the manifest that keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cflkit._bounds import Mistake, checked_seed, one_line
from cflkit._project import as_json, check_regular

Indices = NDArray[np.int64]
Index = Annotated[int, Field(ge=0, lt=2**63)]
# The share of a client's samples on which its model is tested
LOCAL_TEST_SHARE = 0.3
# Names that no further split can have, since a client has something else by them
TAKEN = {"train", "test", "cluster", "central"}


class PartitionError(Mistake):
    """A recipe cannot be followed, a partition is wrong, or a manifest does not match its hash."""


class ClientEntry(BaseModel):
    """What a manifest says of a client: its cluster, and its indices in each split."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, list[Index]]
    cluster: Index | None
    train: list[Index]
    test: list[Index]


class Manifest(BaseModel):
    """The JSON that `Partition.save` writes."""

    model_config = ConfigDict(strict=True)
    dataset: str
    recipe: dict[str, Any]
    hash: str
    recipe_hash: str | None = None  # manifests of older versions have none
    clients: list[ClientEntry] = Field(min_length=1)


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

    Raises
    ------
    PartitionError
        The indices are no arrays ``[n]`` of int32 or int64, or a client has one below 0, one twice,
        or one both for training and for test; or a split or the clusters do not fit the number of
        clients. Clients may share samples.
    """

    dataset: str
    train: list[Indices]
    test: list[Indices]
    clusters: Indices | None
    recipe: dict
    more: dict[str, list[Indices]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if fault := self.fault():
            raise PartitionError(f"the partition of {self.dataset}: {fault}")

    def fault(self) -> str | None:
        """Return what is wrong, and what to do; None if nothing is."""
        if not self.clients:
            return "it needs clients"
        if taken := TAKEN & set(self.more):
            return f"no further split can have the name {taken.pop()!r}"
        for split, parts in self.splits.items():
            if len(parts) != self.clients:
                return f"{split} has {len(parts)} clients, but train has {self.clients}"
            for client, indices in enumerate(parts):
                if fault := fault_of(indices):
                    return f"{split} of client {client} {fault}"
                both = len(np.intersect1d(self.train[client], indices, assume_unique=True))
                if both and split in ("test", "validation"):
                    return f"client {client} has {both} samples both for training and for {split}"
        if self.clusters is not None:
            if fault := fault_of(self.clusters, unique=False):
                return f"clusters {fault}"
            if len(self.clusters) != self.clients:
                return f"clusters has {len(self.clusters)} numbers for {self.clients} clients"
        return None

    @property
    def clients(self) -> int:
        """Return m, the number of clients."""
        return len(self.train)

    @property
    def truth(self) -> Indices:
        """Return the true clusters; raise a `PartitionError` if nobody knows them."""
        if self.clusters is None:
            raise PartitionError(f"nobody knows the true clusters of the clients of {self.dataset}")
        return self.clusters

    @property
    def splits(self) -> dict[str, list[Indices]]:
        """Return all splits by name, with ``train`` and ``test`` first."""
        return {"train": self.train, "test": self.test, **self.more}

    def take(self, clients: Sequence[int]) -> Partition:
        """Return the partition with these clients alone, in this order."""
        taken = {name: [held[client] for client in clients] for name, held in self.splits.items()}
        clusters = None if self.clusters is None else self.clusters[list(clients)]
        before = self.recipe.get("clients taken", range(self.clients))
        recipe = self.recipe | {"clients taken": [int(before[client]) for client in clients]}
        train, test = taken.pop("train"), taken.pop("test")
        return Partition(self.dataset, train, test, clusters, recipe, taken)

    @property
    def hash(self) -> str:
        """Return ``2:`` and the SHA-256 of everything that decides which client holds what.

        It covers the data set's name, the true clusters, the names of the splits, and the indices
        of each client in each split. It does not cover the recipe, which only tells how the
        partition was made, and has a hash of its own in a manifest. Nor does it cover pixels. These
        follow from the data set's name, which includes the shift of a shifted set, and from its
        files, whose checksums are in `ImageSet.files`.
        """
        digest = hashlib.sha256(framed(self.dataset.encode()))
        # Known clusters have eight bytes each, so that they never equal these seven
        digest.update(framed(b"unknown" if self.clusters is None else integers(self.clusters)))
        for name, held in sorted(self.splits.items()):
            digest.update(framed(name.encode()))
            # Without the number of clients, a client's indices could be read as the next split
            digest.update(integers([len(held)]))
            for indices in held:
                digest.update(framed(integers(indices)))
        return f"2:{digest.hexdigest()}"

    @property
    def recipe_hash(self) -> str:
        """Return the SHA-256 of the recipe as JSON."""
        return hashlib.sha256(as_json(self.recipe, sort_keys=True).encode()).hexdigest()

    def save(self, path: str | Path) -> Path:
        """Write the manifest as JSON and return its path."""
        clusters = [None] * self.clients if self.clusters is None else self.clusters.tolist()
        clients = [
            {"cluster": cluster} | {name: held[m].tolist() for name, held in self.splits.items()}
            for m, cluster in enumerate(clusters)
        ]
        manifest = {"dataset": self.dataset, "recipe": self.recipe, "hash": self.hash}
        manifest |= {"recipe_hash": self.recipe_hash, "clients": clients}
        Path(path).write_text(as_json(manifest) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a manifest; raise a `PartitionError` if it is none or was altered."""
        try:
            return cls.from_manifest(check_regular(Path(path)).read_bytes())
        except (OSError, ValidationError, PartitionError) as error:
            reason = one_line(error) if isinstance(error, ValidationError) else error
            raise PartitionError(f"{path} is not a partition manifest ({reason})") from error

    @classmethod
    def from_manifest(cls, content: bytes) -> Partition:
        """Build the partition of a manifest, and compare its hashes with those that it states."""
        manifest = Manifest.model_validate_json(content)
        held = [client.model_dump() for client in manifest.clients]
        clusters = [client.pop("cluster") for client in held]
        known = None if None in clusters else np.array(clusters, dtype=np.int64)
        more = {
            name: [np.array(client.get(name, ()), dtype=np.int64) for client in held]
            for name in dict.fromkeys(chain(*held))
        }
        train, test = more.pop("train"), more.pop("test")
        partition = cls(manifest.dataset, train, test, known, manifest.recipe, more)
        for what in ("hash", "recipe_hash"):
            stated, computed = getattr(manifest, what), getattr(partition, what)
            if stated not in (None, computed):
                raise PartitionError(f"it was altered: its {what} is {computed}, not {stated}")
        return partition


def local_splits(
    parts: Iterable[Indices], generator: np.random.Generator
) -> tuple[list[Indices], list[Indices]]:
    """Split each client's samples into training (70 %) and test (30 %), at random, not stratified.

    ``parts`` may draw from the same generator: each part is split before the next one is drawn.
    """
    train, test = [], []
    for client, part in enumerate(parts):
        shuffled = generator.permutation(part)
        if len(part) < 2:
            raise PartitionError(f"client {client} has fewer than two different samples")
        # Both sets need a sample, even where repeated draws left the client with very few
        tests = min(max(round(LOCAL_TEST_SHARE * len(part)), 1), len(part) - 1)
        train.append(np.sort(shuffled[tests:]))
        test.append(np.sort(shuffled[:tests]))
    return train, test


def unequal(split: Partition, sizes: str | None, seed: int = 0) -> Partition:
    """Let clients differ in their numbers of training samples (quantity skew).

    Parameters
    ----------
    split : Partition
        The clients, of whom each keeps a share of its training samples. All else stays as it is.
    sizes : {"1/r", "half"} or None
        The shares, by the clients' ranks, which are drawn. With ``1/r``, a power law, the client of
        rank r keeps 1/r. With ``half``, one of m clients keeps all, and each of the others
        1/(m − 1): if all had equally many, this client has half of the samples that are left. With
        None, all samples are kept.
    seed : int
        The seed of the ranks, and of the samples that are kept.
    """
    if sizes is None:
        return split
    generator = seeded(seed)
    ranks = 1 + generator.permutation(split.clients)
    shares = {"1/r": 1 / ranks, "half": np.where(ranks == 1, 1, 1 / max(1, split.clients - 1))}
    if sizes not in shares:
        raise PartitionError(f"sizes is {sizes!r}, not one of {', '.join(shares)}")
    counts = [round(n) for n in shares[sizes] * [len(rows) for rows in split.train]]
    recipe = split.recipe | {"sizes": sizes, "sizes_seed": seed}
    return replace(shortened(split, counts, generator), recipe=recipe)


def shortened(split: Partition, counts: Sequence[int], generator: np.random.Generator) -> Partition:
    """Return the partition with so many of each client's training samples, drawn at random.

    Each client needs two, since some methods compare two parts of its samples.
    """
    if (least := min(counts)) < 2:
        raise PartitionError(f"a client would keep {least} training samples, and 2 are needed")
    kept = zip(split.train, counts, strict=True)
    train = [np.sort(generator.choice(rows, n, replace=False)) for rows, n in kept]
    return replace(split, train=train)


def seeded(seed: int) -> np.random.Generator:
    """Return the generator of a seed; raise a `PartitionError` if it is none."""
    try:
        return np.random.default_rng(checked_seed(seed))
    except ValueError as error:
        raise PartitionError(str(error)) from error


def fault_of(numbers: Any, unique: bool = True) -> str | None:
    """Return what is wrong with a client's indices or with clusters ``[n]``; None if nothing is."""
    fits = isinstance(numbers, np.ndarray) and numbers.ndim == 1
    if not fits or numbers.dtype not in (np.int64, np.int32):  # bool and uint8 would be masks
        seen = getattr(numbers, "dtype", type(numbers).__name__)
        return f"has the type {seen}; arrays [n] of whole numbers (int64) are taken"
    if (numbers < 0).any():
        return f"has {numbers.min()}; numbers begin with 0"
    if unique and (repeats := len(numbers) - len(np.unique(numbers))):
        return f"has the same samples again, {repeats} times; np.unique leaves each once"
    return None


def framed(data: bytes) -> bytes:
    """Return ``data`` preceded by its length, which makes a sequence of such items unambiguous."""
    return integers([len(data)]) + data


def integers(values: ArrayLike) -> bytes:
    """Encode whole numbers in eight bytes each, in the same way on every machine."""
    return np.asarray(values, dtype="<i8").tobytes()


def class_counts(partition: Partition, labels: ArrayLike, part: str = "train") -> NDArray[np.int64]:
    """Count the samples of each class that each client has in a split: ``[m, classes]``."""
    targets = np.asarray(labels)
    classes = int(targets.max()) + 1
    return np.stack([np.bincount(targets[i], minlength=classes) for i in partition.splits[part]])
