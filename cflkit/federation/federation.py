"""Clients with their data, a network, and the primitives that run it.

The methods of `Federation` are the only code of the kit that runs clients' models. Each takes a
batch of `Jobs` and runs it in *threads*, with clients side by side on a CPU, or *stacked*, with
many models as one tensor.
"""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from cflkit import models
from cflkit._bounds import as_python, checked_seed
from cflkit.datasets import ImageSet
from cflkit.federation import machine, requests
from cflkit.federation.blueprint import Blueprint, Server
from cflkit.federation.clients import CENTRAL, Client, Clients, f1_and_accuracy
from cflkit.federation.machine import SettingError
from cflkit.federation.privacy import Hook
from cflkit.federation.requests import Conversation, Jobs, LocalTraining
from cflkit.federation.seeds import drawn
from cflkit.federation.stacked import train_in_stacks
from cflkit.federation.training import evaluate, run_in_threads, train_in_threads
from cflkit.models.rows import RowModel, digests
from cflkit.partition import Partition

# The models that a client predicts with, as pairs of a digest and the model's weight
Mixture = tuple[tuple[bytes, float], ...]
Pair = tuple[Mixture, int]
Scores = dict[Pair, tuple[float, float]]
# How each engine trains
TRAIN = {"threads": train_in_threads, "stacked": train_in_stacks}


class Federation:
    """Clients with their data, an architecture, and how clients train.

    Parameters
    ----------
    images : ImageSet
        The pool that the partition's indices point into, and the central test set.
    partition : Partition
        The samples that each client holds.
    model : str
        A name that `models.make` knows. Autoencoders are trained to reconstruct their inputs, and
        all others to classify them.
    training : LocalTraining
        The training that clients do with a model in a round.
    seed : int
        The seed of initialisation, batches and dropout; the partition has its own.
    device : str or torch.device, optional
        A GPU where there is one, else the CPU.
    engine : {"threads", "stacked"}, optional
        The way in which jobs run; by default the one that is fastest (`machine.engine_to_use`).
    clients_per_round : int, optional
        The number of clients that take part in a round, drawn anew each time. By default all do.

    Attributes
    ----------
    clients : int
        The number of clients m.
    task : {"classification", "reconstruction"}
        Cross-entropy of the labels, or mean squared error of the pixels.
    blueprint : Blueprint
        The network, from which models are built.
    clusters : Tensor or None
        ``[m]``, int64: the true cluster of each client, which no method is shown; None if it is
        unknown.
    sizes : Tensor
        ``[m]``, float: the number of training samples of each client.
    parameters, buffers : int
        The numbers P and Q of trainable parameters and of buffer values in a model's row.
    data : Clients
        The clients' samples, and the networks that compute with them.
    server : Server
        The information about the federation that a method may use.
    presence : Tensor or None
        ``[R, m]``, bool: which clients are there in each round (`with_presence`); None if all are.
    after_training : tuple of Hook
        What happens to trained models before anybody sees them (`with_hooks`).
    shared_seed : int
        What the clients share and the server does not know (`Client`); in a simulation, the seed.
    """

    after_training: tuple[Hook, ...] = ()
    presence: Tensor | None = None

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
        clients_per_round: int | None = None,
    ) -> None:
        self.clients, self.partition = partition.clients, partition
        self.per_round = as_python(self.clients if clients_per_round is None else clients_per_round)
        if not isinstance(self.per_round, int) or not 0 < self.per_round <= self.clients:
            limits = f"a whole number from 1 to {self.clients}, not {clients_per_round}"
            raise SettingError(f"clients_per_round must be {limits}")
        self.seed = self.shared_seed = seed = checked_seed(seed)
        self.training = training = training or LocalTraining()
        self.device = machine.default_device() if device is None else torch.device(device)
        self.engine = machine.engine_to_use(engine, self.device)
        if self.training.precision == "tf32" and self.device.type != "cuda":
            raise SettingError(f"precision tf32 needs an NVIDIA GPU, and this is {self.device}")
        self.task = "reconstruction" if model in models.AUTOENCODERS else "classification"
        if self.task == "reconstruction" and images.images.is_floating_point():
            low, high = (float(end) for end in images.images.aminmax())
            if low < 0 or high > 1:
                ends = f"but these features go from {low:g} to {high:g}"
                raise SettingError(f"an autoencoder's outputs are from 0 to 1, {ends}: scale them")
        self.blueprint = Blueprint(model, images.shape, images.classes, seed, self.device)
        self.parameters, self.buffers = self.blueprint.parameters, self.blueprint.buffers
        if not self.training.moving(self.blueprint.first.trainable):
            raise SettingError(f"{model!r} has nothing to train with trains={training.trains!r}")
        self.data = Clients(
            images, partition, self.blueprint, self.task, self.training, self.engine
        )
        known = partition.clusters
        self.clusters = None if known is None else torch.from_numpy(known)
        self.sizes = torch.tensor(self.data.sizes, dtype=torch.float32)
        self.server = self._view()
        if self.device.type == "cpu":
            machine.keep_freed_memory()

    def with_presence(self, presence: Tensor | ArrayLike) -> Self:
        """Return the same federation, in which clients are there as a table says.

        Parameters
        ----------
        presence : array_like
            ``[R, m]``, bool: which clients are there in each round; the last row also counts for
            all later rounds. Those that take part are drawn from them.

        Raises
        ------
        ValueError
            It is not a table of truth values with a column per client, it has no rounds, or nobody
            is there in a round.
        """
        presence = torch.as_tensor(presence)
        fits = presence.ndim == 2 and presence.shape[1] == self.clients and len(presence) > 0
        if presence.dtype != torch.bool or not fits:
            raise ValueError(
                f"presence must be bool of the shape [rounds, {self.clients}], with a round or "
                f"more, not {presence.dtype} of {list(presence.shape)}"
            )
        if empty := (~presence.any(dim=1)).nonzero().flatten().tolist():
            raise ValueError(f"nobody is there in the rounds {empty} (from 0)")
        return self._changed(presence=None if presence.all() else presence)

    def with_hooks(self, *hooks: Hook) -> Self:
        """Return the same federation, in which trained models go through further hooks.

        Raises
        ------
        ValueError
            A hook hides the data, and the network has buffers such as BatchNorm's statistics.
        """
        if self.buffers and any(hook.models_only for hook in hooks):
            raise ValueError(
                "the network has buffers, which would tell about the data: choose a network "
                "without BatchNorm"
            )
        return self._changed(after_training=(*self.after_training, *hooks))

    def _changed(self, **attributes: Any) -> Self:
        """Return the same federation with other attributes, which its server sees."""
        other = copy.copy(self)
        vars(other).update(attributes)
        other.server = other._view()
        return other

    def _view(self) -> Server:
        """Return the server's view of the federation as it is."""
        facts = self.blueprint, self.training, self.sizes, self.partial
        return Server(*facts, self.participants, self.reachable, self.num_samples)

    @property
    def partial(self) -> bool:
        """Return whether a round can leave out clients."""
        return self.per_round < self.clients or self.presence is not None

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data and presence, for checkpoints."""
        data = [digests(t.cpu().reshape(1, -1)) for t in self.data.pool + self.data.central]
        there = "always" if self.presence is None else self.presence.int().tolist()
        return f"{self.partition.hash} of {data}, present {there}"

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round, ascending: all except the absent ones."""
        if self.presence is None:
            return torch.arange(self.clients)
        return self.presence[min(round, len(self.presence) - 1)].nonzero().flatten()

    def participants(self, round: int) -> Tensor:
        """Return the clients that train in a round, ascending: drawn from those that answer."""
        there = self.reachable(round)
        everyone = self.per_round >= len(there)
        return there if everyone else drawn(there, self.per_round, self.seed, round)

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split.

        The split ``central`` is the central test set, the same one for all clients.
        """
        return self.data.num_samples(client, split)

    def inputs(self, index: ArrayLike, central: bool = False) -> tuple[Tensor, Tensor]:
        """Return samples of the pool or of the central test set, as networks see them.

        ``[n, channels, height, width]``, pixels in [0, 1] and features as they are, and labels
        ``[n]``.
        """
        split = CENTRAL if central else "train"
        return self.data.samples(torch.as_tensor(index, dtype=torch.int64), split)

    def targets(self, client: int, split: str = "test") -> Tensor:
        """Return the labels ``[n]`` that belong to the primitives' outputs on this split."""
        return self.data.labels(client, split)

    def batches(self, client: int, round: int) -> list[Tensor]:
        """Return where the samples of each batch of a client lie in the pool, for all epochs."""
        return [batch.index for batch in self.data.batches(client, round, self.training)]

    # --- Models -----------------------------------------------------------------------------------

    def initial(self) -> Tensor:
        """Return the model ``[P + Q]`` that all clients start from, the same for the same seed."""
        return self.blueprint.initial()

    def network(self, model: Tensor) -> nn.Module:
        """Return a network of its own that computes with a model (``[P + Q]``), for evaluation."""
        return self.blueprint.network(model)

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
            need no protection (`privacy`).

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
        with self.precise(training):
            TRAIN[self.engine](self.data, jobs, round, training, trained)
        for hook in self.after_training:
            hook(trained[:, : self.parameters], jobs, round, reported)
        requests.check_finite(trained, jobs, round)
        return trained

    def losses(
        self,
        jobs: Jobs,
        split: str = "train",
        told: Callable[..., Tensor] | None = None,
        **options: Hashable,
    ) -> list[Tensor]:
        """Return the losses ``[n]`` of each job's model, or what is ``told`` of them (`Losses`)."""
        self._refuse_if_hidden("losses")
        with self.precise():
            losses = evaluate(self.data, jobs, split, self.data.loss)
            if told is None:
                return losses
            answers = list(losses)
            for client in jobs.client_of.unique().tolist():
                places = (jobs.client_of == client).nonzero().flatten().tolist()
                rows = told([losses[job] for job in places], self.training, **options)
                for job, row in zip(places, rows, strict=True):
                    answers[job] = row
            return answers

    def embed(
        self, jobs: Jobs, split: str = "train", max_samples: int | None = None
    ) -> list[Tensor]:
        """Return what enters the last layer of each job's model; J tensors ``[n, d]``.

        At most ``max_samples`` samples of the client count, the same ones whatever the model.
        """
        self._refuse_if_hidden("embeddings")
        with self.precise():
            return evaluate(self.data, jobs, split, self.data.embedding, max_samples)

    def predict(self, jobs: Jobs, split: str = "test") -> list[Tensor]:
        """Return class probabilities (or pixels) of each job's model; J tensors ``[n, …]``.

        ``split`` names the samples: those that the job's client has in a split of the partition, or
        the ``central`` test set, for which the client does not matter.
        """
        with self.precise():
            return evaluate(self.data, jobs, split, self.data.prediction)

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Return macro-F1 and accuracy of mixtures of models, by mixture and client.

        Each distinct model predicts only once for each client.

        Parameters
        ----------
        models : mapping of bytes to Tensor
            The models ``[P + Q]`` by digest.
        pairs : sequence
            Mixtures of these models, and the client that predicts with each of them.
        split : str
            The samples, as in `predict`.
        """
        alone = list(dict.fromkeys((key, c) for mixture, c in pairs for key, _ in mixture))
        if not alone:
            return {}
        number = {key: place for place, key in enumerate(models)}
        pairs_alone = torch.tensor([(number[key], client) for key, client in alone])
        jobs = Jobs(torch.stack(list(models.values())), *pairs_alone.T)
        predicted = dict(zip(alone, self.predict(jobs, split), strict=True))

        def probabilities(mixture: Mixture, client: int) -> Tensor:
            parts = [share * predicted[key, client] for key, share in mixture]
            return torch.stack(parts).sum(dim=0)

        return {
            (mixture, c): f1_and_accuracy(self.targets(c, split), probabilities(mixture, c))
            for mixture, c in pairs
        }

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let each job's client answer a question about its own data, see `Ask`; J answers."""
        self._refuse_if_hidden(f"answers to {getattr(question, '__name__', question)!r}")

        def ask_one(network: RowModel, job: int) -> Any:
            client = Client(self.data, int(jobs.client_of[job]), network, self.shared_seed)
            about = (jobs.of(job, "about"),) if "about" in jobs.columns else ()
            return question(client, jobs.models[jobs.model_of[job]], *about, **options)

        with self.precise():
            return run_in_threads(ask_one, range(len(jobs)), self.data.networks)

    def converse(self, conversation: Conversation[Any], round: int = 0) -> Any:
        """Answer every request of a conversation, such as a method's round; return its result."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(request.answered_by(self, round))
        except StopIteration as end:
            return end.value

    def precise(self, training: LocalTraining | None = None) -> AbstractContextManager:
        """Return the context that sets the precision of products, a setting that only CUDA has."""
        precision = (training or self.training).precision
        cuda = self.device.type == "cuda"
        return machine.products_on_cuda(precision) if cuda else nullcontext()

    def _refuse_if_hidden(self, what: str) -> None:
        """Refuse to tell about the data what a hook hides."""
        if any(hook.models_only for hook in self.after_training):
            raise ValueError(
                f"{what} have no noise, and would tell about the clients' data: only models can be "
                "asked for with privacy"
            )
