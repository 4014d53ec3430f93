"""The clients: their samples, their batch orders, and the choice of those that take part."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cflkit.datasets import as_inputs
from cflkit.federation.jobs import Jobs, LocalTraining
from cflkit.federation.machine import matmul_precision
from cflkit.federation.outputs import (
    embedding_of,
    evaluate_client,
    gradient_of_client,
    loss_of,
)
from cflkit.federation.rows import RowModel
from cflkit.federation.seeds import BATCHES, SAMPLES, stream
from cflkit.federation.threads import run_in_threads

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.federation.federation import Federation
    from cflkit.partition import Partition

CENTRAL = "central"


@dataclass(frozen=True)
class Batch:
    """Some of a client's training samples.

    Attributes
    ----------
    index : Tensor
        ``[B]``, int64: the positions of the samples in the pool.
    weights : Tensor or None
        ``[B]``: the weight of each sample in the loss; None means that all weights are one.
    """

    index: Tensor
    weights: Tensor | None = None


class Clients:
    """The data of all clients on one device.

    Parameters
    ----------
    images : ImageSet
        The pool to which the partition's indices refer, and the central test set.
    partition : Partition
        The samples that each client holds.
    device : torch.device
        The device on which networks compute.
    seed : int
        The seed of the federation.
    per_round : int, optional
        The number of clients that take part in a round; by default all.

    Raises
    ------
    ValueError
        The partition does not fit the images, or there are not so many clients as should take part.
    """

    def __init__(
        self,
        images: ImageSet,
        partition: Partition,
        device: torch.device,
        seed: int,
        per_round: int | None,
    ) -> None:
        if partition.dataset != images.name:
            raise ValueError(
                f"the partition is of {partition.dataset!r}, but the images are {images.name!r}"
            )
        held = [indices for parts in partition.splits.values() for indices in parts]
        if max(int(indices.max(initial=0)) for indices in held) >= len(images.labels):
            raise ValueError(
                f"the partition has indices beyond the {len(images.labels)} samples of the pool"
            )
        self.count = partition.clients
        if per_round is not None and not 0 < per_round <= self.count:
            raise ValueError(f"clients_per_round must be from 1 to {self.count}, not {per_round}")
        self.per_round = per_round or self.count
        self.device, self.seed = device, seed
        self.files = images.files
        self._pool = images.images.to(device), images.labels.to(device)
        self._central = images.test_images.to(device), images.test_labels.to(device)
        self._indices = {
            name: [torch.from_numpy(indices) for indices in parts]
            for name, parts in partition.splits.items()
        }
        # An engine may choose the memory layout of the kernels of convolutions (see `RowModel`)
        self.memory_format = torch.contiguous_format

    @property
    def shape(self) -> torch.Size:
        """Return ``(channels, height, width)`` of an image."""
        return self._pool[0].shape[1:]

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""
        if split == CENTRAL:
            return len(self._central[1])
        return len(self._indices[split][client]) if split in self._indices else 0

    def batches(
        self,
        client: int,
        round: int,
        training: LocalTraining,
        subset: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> list[Batch]:
        """Return the batches of all local epochs, with a new permutation in each epoch.

        The order depends only on the seed, the client and the round.
        """
        generator = np.random.default_rng(stream(self.seed, BATCHES, client, round))
        indices = self._indices["train"][client]
        indices = indices if subset is None else indices[subset]
        batches: list[Batch] = []
        for _ in range(training.epochs):
            order = torch.from_numpy(generator.permutation(len(indices)))
            for chosen in order.split(training.batch_size):
                if not len(chosen):  # nothing, split, is one empty batch
                    continue
                own = None if weights is None else weights[chosen.to(weights.device)]
                batches.append(Batch(indices[chosen], own))
        return batches

    def batches_of(self, jobs: Jobs, round: int, training: LocalTraining) -> list[list[Batch]]:
        """Return the batches of each job, see `batches`."""
        return [
            self.batches(
                client,
                round,
                training,
                None if jobs.subset is None else jobs.subset[job],
                None if jobs.weights is None else jobs.weights[job],
            )
            for job, client in enumerate(jobs.client_of.tolist())
        ]

    def index(self, split: str, client: int, most: int | None = None) -> Tensor:
        """Return the positions of a client's samples of a split in the pool.

        If there are more than ``most``, this many are drawn. The draw depends only on the seed, the
        split and the client. Every client has the whole central test set.
        """
        if split == CENTRAL:
            return torch.arange(len(self._central[1]))
        index = self._indices[split][client]
        if most is None or len(index) <= most:
            return index
        key = (SAMPLES, list(self._indices).index(split), client)
        generator = np.random.default_rng(stream(self.seed, *key))
        return index[torch.from_numpy(np.sort(generator.permutation(len(index))[:most]))]

    def samples(self, index: Tensor, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return the inputs ``[n, channels, height, width]``, and the labels ``[n]``."""
        images, labels = self._central if split == CENTRAL else self._pool
        index = index.to(self.device)
        inputs = as_inputs(images[index])
        return inputs.contiguous(memory_format=self.memory_format), labels[index]

    def labels(self, client: int, split: str) -> Tensor:
        """Return the labels ``[n]`` of a client's samples of a split."""
        self.check(split)
        if split == CENTRAL:
            return self._central[1]
        return self._pool[1][self._indices[split][client].to(self.device)]

    def check(self, split: str) -> None:
        """Raise a ValueError if there is no such split."""
        known = (*self._indices, CENTRAL)
        if split not in known:
            raise ValueError(f"unknown split {split!r}; choose from {', '.join(known)}")


@dataclass(frozen=True)
class Client:
    """One client as a question (`Ask`) sees it: its own data, and its computations.

    Attributes
    ----------
    federation : Federation
        The federation that the client takes part in.
    number : int
        The number of the client, from 0.
    network : RowModel
        The network with which the client computes.
    """

    federation: Federation
    number: int
    network: RowModel

    def samples(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return the client's inputs ``[n, channels, height, width]`` in [0, 1] and labels."""
        data = self.federation.data
        data.check(split)
        return data.samples(data.index(split, self.number), split)

    def embed(
        self, model: Tensor, split: str, max_samples: int | None = None, train_mode: bool = False
    ) -> Tensor:
        """Return a model's embeddings ``[n, d]`` of the client's samples (`Federation.embed`)."""
        output = embedding_of(self.federation)
        return evaluate_client(self, model, split, output, max_samples, train_mode)

    def losses(self, model: Tensor, split: str = "train") -> Tensor:
        """Return the losses ``[n]`` of a model on the client's samples."""
        return evaluate_client(self, model, split, loss_of(self.federation))

    def gradient(self, model: Tensor, samples: int | None = None) -> Tensor:
        """Return the gradient ``[P]`` of a model's mean loss on the first training samples."""
        return gradient_of_client(self, model, samples)

    @property
    def shared_seed(self) -> int:
        """Return a seed that the clients share and the server does not know."""
        return self.federation.shared_seed


def answers_of(
    federation: Federation, question: Callable[..., Any], jobs: Jobs, **options: Hashable
) -> list[Any]:
    """Let each job's client answer a question about its own data; return the J answers."""

    def ask_one(network: RowModel, job: int) -> Any:
        client = Client(federation, int(jobs.client_of[job]), network)
        about = () if jobs.about is None else (jobs.about[job],)
        return question(client, jobs.models[jobs.model_of[job]], *about, **options)

    # Measured now, since it computes with a network that a thread will use
    _ = federation.sample_bytes
    with matmul_precision(federation.precision, federation.device):
        return run_in_threads(ask_one, range(len(jobs)), federation.networks)
