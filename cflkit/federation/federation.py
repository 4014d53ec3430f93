"""Clients with their data, a network, and the primitives that run it.

The methods of `Federation` are the only code of the kit that runs clients' models. Each takes a
batch of `Jobs` and runs it in *threads*, the default on a CPU, with clients side by side; or
*stacked*, the default on a GPU, where many models train as one stacked tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cflkit.federation.blueprint import Blueprint
from cflkit.federation.clients import CENTRAL, Clients, answers_of
from cflkit.federation.jobs import Hook, Jobs, LocalTraining, check_finite, contents
from cflkit.federation.machine import (
    check_precision,
    default_device,
    engine_to_use,
    matmul_precision,
    usable_cores,
)
from cflkit.federation.memory import kept_per_sample
from cflkit.federation.outputs import embedding_of, evaluate, loss_of, prediction_of
from cflkit.federation.privacy import Privacy, protect
from cflkit.federation.requests import Request
from cflkit.federation.scoring import Pair, Scores, scores
from cflkit.federation.seeds import drawn
from cflkit.federation.server import Server
from cflkit.federation.stacked import train_in_stacks
from cflkit.federation.threads import train_in_threads
from cflkit.federation.training import check_task

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.partition import Partition


class Federation:
    """Clients with their data, an architecture, and how clients train.

    Parameters
    ----------
    images : ImageSet
        The pool that the partition's indices point into, and the central test set.
    partition : Partition
        The samples that each client holds.
    model : str
        A name that `models.make` knows.
    training : LocalTraining
        The training that clients do with a model in a round.
    seed : int
        The seed of initialisation, batches and dropout; the partition has its own.
    device : str or torch.device, optional
        A GPU where there is one, else the CPU.
    engine : {"threads", "stacked"}, optional
        The way in which jobs run, see `machine.engine_to_use`.
    task : {"classification", "reconstruction"}
        Cross-entropy of the labels, or mean squared error of the pixels.
    clients_per_round : int, optional
        The number of clients that take part in a round, drawn anew each time. By default all do.
    presence : Tensor, optional
        ``[R, m]``, bool: which clients are there in each round; the last row also counts for all
        later rounds. Those that take part are drawn from them. By default all are always there.
    weights : {"imagenet"}, optional
        The weights that initial models start from, see `models.make`.
    precision : {"float32", "tf32", "bfloat16"}
        The precision of matrix products and convolutions, see `machine.PRECISIONS`.
    privacy : Privacy, optional
        Clipping and noise of the clients' updates (`cflkit.federation.privacy`). Clients then
        answer no other requests, since the noise protects nothing but models. The network must not
        have buffers such as BatchNorm's statistics.

    Attributes
    ----------
    clients : int
        The number of clients m.
    task, engine, precision : str
        The task, the engine that is used, and the precision.
    device : torch.device
        The device that is used.
    privacy : Privacy or None
        The clipping and the noise; None if there are none.
    blueprint : Blueprint
        The network, from which models are built.
    clusters : Tensor or None
        ``[m]``, int64: the true cluster of each client, which no method is shown; None if it is
        unknown.
    sizes : Tensor
        ``[m]``, float: the number of training samples of each client.
    parameters, buffers : int
        The numbers P and Q of trainable parameters and of buffer values in a model's row.
    layout : dict of str to slice
        Where each parameter and buffer of the network lies in a row.
    initial, initials, network : callable
        The methods of `Blueprint`, which build initial models and networks.
    data : Clients
        The clients' samples.
    networks : list of RowModel
        The networks that compute, one per core.
    server : Server
        The information about the federation that a method may use.
    shared_seed : int
        The secret that clients share (`Client.shared_seed`); in the simulation, the seed.
    after_training : tuple of callable
        Hooks that change trained parameters in place, see `jobs.Hook`. Set on the class, they are
        those of all federations of a process.
    forced_engine : str or None
        An engine that wins over the one given: set on the class, it is that of all federations of a
        process.
    absent_allowed : bool
        Whether a round begins again without the clients that do not answer. In the simulation, all
        answer that are there.
    faults : mapping of int to str
        Why absent clients are absent, where this is known.
    """

    forced_engine: ClassVar[str | None] = None
    after_training: tuple[Hook, ...] = ()
    absent_allowed = False
    faults: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        images: ImageSet,
        partition: Partition,
        model: str = "compact-cnn",
        training: LocalTraining | None = None,
        *,
        seed: int = 0,
        device: str | torch.device | None = None,
        engine: str | None = None,
        task: str = "classification",
        clients_per_round: int | None = None,
        presence: Tensor | None = None,
        weights: str | None = None,
        precision: str = "float32",
        privacy: Privacy | None = None,
    ) -> None:
        self.device = default_device() if device is None else torch.device(device)
        self.engine = engine_to_use(self.forced_engine or engine, self.device)
        if seed < 0:
            raise ValueError(f"a seed is a whole number of 0 or more, not {seed}")
        check_precision(precision, self.device)
        check_task(task, model)
        self.task, self.precision, self.seed = task, precision, seed
        self.shared_seed = seed
        self.training = training or LocalTraining()
        self.data = Clients(images, partition, self.device, seed, clients_per_round)
        if self.engine == "threads":
            self.data.memory_format = torch.channels_last
        self.partition, self.clients = partition, partition.clients
        self.presence = checked_presence(presence, self.clients)
        known = partition.clusters
        self.clusters = None if known is None else torch.from_numpy(known)
        self.sizes = torch.tensor([len(i) for i in partition.train], dtype=torch.float32)

        shape, classes = images.shape, images.classes
        self.blueprint = Blueprint(model, shape, classes, seed, self.device, weights)
        self.parameters, self.buffers = self.blueprint.parameters, self.blueprint.buffers
        self.layout = self.blueprint.layout
        self.initial, self.initials = self.blueprint.initial, self.blueprint.initials
        self.network = self.blueprint.network
        if privacy is not None and self.buffers:
            raise ValueError(
                f"{model!r} has buffers, which would tell about the data: choose a network without "
                "BatchNorm"
            )
        self.privacy = privacy
        cores = min(usable_cores(), self.clients) if self.device.type == "cpu" else 1
        others = (self.blueprint.row_model() for _ in range(cores - 1))
        self.networks = [self.blueprint.first, *others]
        self.server = Server(self)

    @property
    def per_round(self) -> int:
        """Return how many clients take part in a round."""
        return self.data.per_round

    @property
    def partial(self) -> bool:
        """Return whether a round can leave out clients."""
        return self.per_round < self.clients or self.presence is not None

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data and presence, for checkpoints."""
        files = ", ".join(f"{name} {md5}" for name, md5 in sorted(self.data.files.items()))
        there = "always" if self.presence is None else contents(self.presence).hex()
        return f"{self.partition.hash} of {files}, present {there}"

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round, ascending: all except the absent ones."""
        if self.presence is None:
            return torch.arange(self.clients)
        return self.presence[min(round, len(self.presence) - 1)].nonzero().flatten()

    def participants(self, round: int) -> Tensor:
        """Return the clients that train in a round, ascending: drawn from those that answer."""
        there = self.reachable(round)
        return self.drawn(there, min(self.per_round, len(there)), round)

    def drawn(self, clients: Tensor, count: int, *key: int) -> Tensor:
        """Draw some of the clients, in ascending order; the same for the same seed and key."""
        return drawn(clients, count, self.seed, *key)

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split.

        The split ``central`` is the central test set, the same one for all clients.
        """
        return self.data.num_samples(client, split)

    def inputs(self, index: ArrayLike, central: bool = False) -> tuple[Tensor, Tensor]:
        """Return samples of the pool or of the central test set, as networks see them.

        ``[n, channels, height, width]`` in [0, 1], and labels ``[n]``.
        """
        split = CENTRAL if central else "train"
        return self.data.samples(torch.as_tensor(index, dtype=torch.int64), split)

    def targets(self, client: int, split: str = "test") -> Tensor:
        """Return the labels ``[n]`` that belong to the primitives' outputs on this split."""
        return self.data.labels(client, split)

    def batches(self, client: int, round: int) -> list[Tensor]:
        """Return where the samples of each batch of a client lie in the pool, for all epochs."""
        return [batch.index for batch in self.data.batches(client, round, self.training)]

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Train each job's model on its client's training samples, or on a part of them.

        Parameters
        ----------
        jobs : Jobs
            J jobs.
        round : int
            From 0; picks the clients' batch orders.
        reported : bool
            Whether clients send the trained models to the server. Models that stay at their clients
            need no protection, so that they get no noise from ``privacy``.

        Returns
        -------
        Tensor
            ``[J, P + Q]``, the trained models.

        Raises
        ------
        Diverged
            A trained model is not finite; the message names the round (from 1) and the clients.
        """
        training = jobs.training or self.training
        trained = torch.empty(len(jobs), jobs.models.shape[1], device=self.device)
        with matmul_precision(self.precision, self.device):
            train_all = train_in_stacks if self.engine == "stacked" else train_in_threads
            train_all(self, jobs, round, training, trained)
        for hook in self.after_training:
            hook(trained[:, : self.parameters], jobs, round, reported)
        if self.privacy is not None and reported:
            protect(trained, jobs, round, self.privacy, self.seed)
        check_finite(trained, jobs, round)
        return trained

    def losses(self, jobs: Jobs, split: str = "train") -> list[Tensor]:
        """Return the loss of each job's model on each sample of its client; J tensors ``[n]``."""
        self._refuse_if_private("losses")
        return evaluate(self, jobs, split, loss_of(self))

    def embed(
        self,
        jobs: Jobs,
        split: str = "train",
        max_samples: int | None = None,
        train_mode: bool = False,
    ) -> list[Tensor]:
        """Return what enters the last layer of each job's model; J tensors ``[n, d]``.

        At most ``max_samples`` samples of the client count, the same ones whatever the model. In
        ``train_mode`` the network computes as in training, batch by batch.
        """
        self._refuse_if_private("embeddings")
        return evaluate(self, jobs, split, embedding_of(self), max_samples, train_mode)

    def predict(self, jobs: Jobs, split: str = "test") -> list[Tensor]:
        """Return class probabilities (or pixels) of each job's model; J tensors ``[n, …]``.

        ``split`` is one of the partition's, of which it is the job's client's samples, or the
        ``central`` test set, for which the client does not matter.
        """
        return evaluate(self, jobs, split, prediction_of(self))

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Return macro-F1 and accuracy of mixtures of models, by mixture and client.

        Parameters
        ----------
        models : mapping of bytes to Tensor
            The models ``[P + Q]`` by digest.
        pairs : sequence
            Mixtures of these models, and the client that predicts with each of them.
        split : str
            The samples, as in `predict`.
        """
        return scores(self, models, pairs, split)

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let each job's client answer a question, see `Ask`; J answers."""
        self._refuse_if_private(f"answers to {question.__name__!r}")
        return answers_of(self, question, jobs, **options)

    def _refuse_if_private(self, what: str) -> None:
        """Refuse to tell about the data without noise."""
        if self.privacy is not None:
            raise ValueError(
                f"{what} have no noise, and would tell about the clients' data: only models can be "
                "asked for with privacy"
            )

    def converse(self, conversation: Generator[Request, Any, Any], round: int = 0) -> Any:
        """Answer every request of a conversation, such as a method's round; return its result."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(request.answered_by(self, round))
        except StopIteration as end:
            return end.value

    @cached_property
    def sample_bytes(self) -> float:
        """Return how many bytes the backward pass keeps per sample (`memory.kept_per_sample`)."""
        return kept_per_sample(self.networks[0], self.data.shape, self.device)


def checked_presence(presence: Tensor | None, clients: int) -> Tensor | None:
    """Return the presence, or None if all clients are always there.

    Raises
    ------
    ValueError
        It is not a table of truth values with a column per client, it has no rounds, or nobody is
        there in a round.
    """
    if presence is None:
        return None
    if presence.dtype != torch.bool or presence.ndim != 2 or presence.shape[1] != clients:
        raise ValueError(
            f"presence must be bool of the shape [rounds, {clients}], not {presence.dtype} of "
            f"{list(presence.shape)}"
        )
    if not len(presence):
        raise ValueError("presence has no rounds: it needs one row or more")
    if empty := (~presence.any(dim=1)).nonzero().flatten().tolist():
        raise ValueError(f"nobody is there in the rounds {empty} (from 0)")
    return None if presence.all() else presence
