"""The partition: which client holds which samples, its hash, and the manifest that keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cflkit._bounds import STRICT, one_line
from cflkit._files import check_regular

Indices = NDArray[np.int64]


class PartitionError(Exception):
    """A recipe cannot be followed on this data, or a manifest does not match its hash."""


Index = Annotated[int, Field(ge=0, lt=2**63)]


class Client(BaseModel):
    """A client in a manifest: its true cluster, and its indices in each split by name."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, list[Index]]

    cluster: Index | None
    train: list[Index]
    test: list[Index]

    @property
    def splits(self) -> dict[str, list[Index]]:
        """Return the indices in all splits."""
        return {"train": self.train, "test": self.test, **self.__pydantic_extra__}


class Manifest(BaseModel):
    """The contents of a manifest's file."""

    model_config = STRICT

    dataset: str
    recipe: dict[str, Any]
    hash: str
    clients: Annotated[list[Client], Field(min_length=1)]

    @model_validator(mode="after")
    def clients_are_alike(self) -> Self:
        """Check that all clients have the same splits, and that all clusters are known or none."""
        if len({tuple(sorted(client.splits)) for client in self.clients}) > 1:
            raise ValueError("the clients have different splits")
        if len({client.cluster is None for client in self.clients}) > 1:
            raise ValueError("the clusters of some clients alone are known")
        return self


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
        recipe = self.recipe | {"clients taken": [int(client) for client in clients]}
        train, test = taken.pop("train"), taken.pop("test")
        return Partition(self.dataset, train, test, clusters, recipe, taken)

    @property
    def hash(self) -> str:
        """Return ``2:`` and the SHA-256 of everything that decides which client holds what.

        It covers the data set's name, the true clusters, the names of the splits, and the indices
        of each client in each split. It covers neither the recipe, which only tells how the
        partition was made, nor pixels. These follow from the data set's name, which includes the
        shift of a shifted set, and from its files, whose checksums are in `ImageSet.files`.
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

    def save(self, path: str | Path) -> Path:
        """Write the manifest as JSON and return its path."""
        clusters = [None] * self.clients if self.clusters is None else self.clusters.tolist()
        clients = [
            {"cluster": cluster} | {name: held[m].tolist() for name, held in self.splits.items()}
            for m, cluster in enumerate(clusters)
        ]
        manifest = {"dataset": self.dataset, "recipe": self.recipe, "hash": self.hash}
        path = Path(path)
        path.write_text(json.dumps(manifest | {"clients": clients}) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a manifest; raise a `PartitionError` if it is none or was altered."""
        try:
            contents = Manifest.model_validate_json(check_regular(Path(path)).read_bytes())
        except (OSError, ValidationError) as error:
            told = one_line(error) if isinstance(error, ValidationError) else error
            raise PartitionError(f"{path} is not a partition manifest ({told})") from error
        clusters = [client.cluster for client in contents.clients]
        known = None if None in clusters else np.array(clusters, dtype=np.int64)
        more = {
            name: [np.array(client.splits[name], dtype=np.int64) for client in contents.clients]
            for name in contents.clients[0].splits
        }
        train, test = more.pop("train"), more.pop("test")
        partition = cls(contents.dataset, train, test, known, contents.recipe, more)
        if contents.hash != partition.hash:
            raise PartitionError(
                f"{path} was altered: it states the hash {contents.hash}, but has {partition.hash}"
            )
        return partition


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
