"""Clients with their data, a network, and the primitives that run it.

The methods of `Federation` are the only code of the kit that runs clients' models. (`explain` looks
into one that `Federation.network` hands out; `sample_clustering.DEC` has a network that is no
client's model.) Each takes a batch of `Jobs` and decides how to run it:

- *threads*, the default on a CPU: clients side by side on as many threads as there are cores;
- *stacked*, the default on a GPU: many models train as one stacked tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from cflkit import models
from cflkit.federation.clients import CENTRAL, Client, Clients
from cflkit.federation.jobs import Diverged, Jobs, LocalTraining
from cflkit.federation.machine import (
    autocast,
    check_precision,
    default_device,
    matmul_precision,
    spare_memory,
    usable_cores,
)
from cflkit.federation.outputs import embedding_of, evaluate, loss_of, prediction_of
from cflkit.federation.requests import Request
from cflkit.federation.rows import RowModel
from cflkit.federation.seeds import INITIALISATION, dropout_seeds, integer, step_keys
from cflkit.federation.server import Server
from cflkit.federation.stacked import batches_of, train_stack
from cflkit.federation.threads import run_in_threads
from cflkit.federation.training import TASKS, Samples, train_client

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.partition import Partition

ENGINES = ("threads", "stacked")


class Federation:
    """Clients with their data, an architecture, and how clients train.

    Parameters
    ----------
    images : ImageSet
        The pool that the partition's indices point into, and the central test set.
    partition : Partition
        Which samples each client holds.
    model : str
        A name that `models.make` knows.
    training : LocalTraining
        What clients do with a model in a round.
    seed : int
        The seed of initialisation, batches and dropout; the partition has its own.
    device : str or torch.device, optional
        A GPU where there is one, else the CPU.
    engine : {"threads", "stacked"}, optional
        How jobs run; by default threads on a CPU and stacked on anything else.
    task : {"classification", "reconstruction"}
        Cross-entropy of the labels, or mean squared error of the pixels.
    clients_per_round : int, optional
        How many clients take part in a round, drawn anew each time; all by default.
    weights : {"imagenet"}, optional
        What initial models start from, see `models.make`.
    precision : {"float32", "tf32", "bfloat16"}
        The precision of matrix products and convolutions. ``tf32`` rounds their factors to 10 bits,
        on NVIDIA GPUs alone; ``bfloat16`` runs the network under ``torch.autocast``, with
        parameters, gradients and losses in float32. Neither is meant for records that must be
        exact.

    Attributes
    ----------
    clients : int
        m.
    clusters : Tensor
        ``[m]``, the true cluster of each client, which no method is shown.
    sizes : Tensor
        ``[m]``, float: training samples of each client.
    parameters, buffers : int
        P and Q, the parts of a model's row.
    layout : dict of str to slice
        Where each parameter and buffer of the network lies in a row.
    data : Clients
        The clients' samples.
    networks : list of RowModel
        What computes, one per core; they hold the models that were computed with last.
    server : Server
        What a method may know.
    """

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
        weights: str | None = None,
        precision: str = "float32",
    ) -> None:
        self.device = default_device() if device is None else torch.device(device)
        self.engine = engine or ("threads" if self.device.type == "cpu" else "stacked")
        if self.engine not in ENGINES:
            raise ValueError(f"unknown engine {self.engine!r}; known are {', '.join(ENGINES)}")
        check_precision(precision, self.device)
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
        if (task == "reconstruction") != (model in models.AUTOENCODERS):
            raise ValueError(f"a network {model!r} is not made for {task}")
        self.task, self.precision, self.seed = task, precision, seed
        self.training = training or LocalTraining()
        self.partition = partition
        self.data = Clients(images, partition, self.device, seed, clients_per_round)
        if self.engine == "threads":
            self.data.memory_format = torch.channels_last
        self.clients = partition.clients
        self.clusters = torch.from_numpy(partition.clusters)
        self.sizes = torch.tensor([len(i) for i in partition.train], dtype=torch.float32)

        def build() -> RowModel:
            network = models.make(model, images.shape, images.classes, weights)
            return RowModel(network.to(self.device))

        self._build = build
        first = self._initialised(lambda: build())
        self._initial = first.row
        cores = min(usable_cores(), self.clients) if self.device.type == "cpu" else 1
        with torch.random.fork_rng(devices=[]):  # building draws
            self.networks = [first, *(build() for _ in range(cores - 1))]
        self.parameters = first.parameters
        self.buffers = len(self._initial) - first.parameters
        self.layout = first.layout
        self.server = Server(self)

    def _initialised(self, build: Callable[[], Any], *key: int) -> Any:
        """Return what ``build`` makes with torch's generator at the seed of this key."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(integer(self.seed, INITIALISATION, *key))
            return build()

    def initial(self) -> Tensor:
        """``[P + Q]``: the model that every client starts from, the same for the same seed."""
        return self._initial.clone()

    def initials(self, count: int, *key: int) -> Tensor:
        """``[count, P + Q]``: models initialised one by one, the same for the same seed and key."""
        rows = self._initialised(lambda: [self._build().row for _ in range(count)], *key)
        return torch.stack(rows) if rows else self._initial[None][:0]

    def network(self, model: Tensor) -> nn.Module:
        """Return a network of its own that computes with a model (``[P + Q]``), for evaluation."""
        with torch.random.fork_rng(devices=[]):  # building draws
            row_model = self._build()
        row_model.load(model)
        return row_model.network.eval()

    # --- Data -------------------------------------------------------------------------------------

    def participants(self, round: int) -> Tensor:
        """Return the clients that train in a round, ascending."""
        return self.data.sampled(round)

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 where there is no such split."""
        return self.data.num_samples(client, split)

    def inputs(self, index: ArrayLike, central: bool = False) -> tuple[Tensor, Tensor]:
        """Return samples of the pool or of the central test set, as networks see them.

        ``[n, channels, height, width]`` in [0, 1], and labels ``[n]``.
        """
        split = CENTRAL if central else "train"
        return self.data.samples(torch.as_tensor(index, dtype=torch.int64), split)

    def targets(self, client: int, split: str = "test") -> Tensor:
        """``[n]``: the labels that belong to the primitives' outputs on this split."""
        return self.data.labels(client, split)

    def batches(self, client: int, round: int) -> list[Tensor]:
        """Return where the samples of each batch of a client lie in the pool, for all epochs."""
        return [batch.index for batch in self.data.batches(client, round, self.training)]

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int) -> Tensor:
        """Train each job's model on its client's training samples, or on a part of them.

        Parameters
        ----------
        jobs : Jobs
            J jobs.
        round : int
            From 0; picks the clients' batch orders.

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
            if self.engine == "stacked":
                self._train_stacks(jobs, round, training, trained)
            else:
                self._train_one_by_one(jobs, round, training, trained)
        if len(jobs):
            # Smallest and largest in one pass over the memory; NaN is both
            broken = ~torch.isfinite(torch.stack(torch.aminmax(trained, dim=1))).all(dim=0).cpu()
            if broken.any():
                raise Diverged(round, jobs.client_of[broken].tolist(), trained, broken)
        return trained

    def _train_one_by_one(
        self, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
    ) -> None:
        """Fill ``trained`` by an ordinary training loop per job, side by side on threads."""
        batches = batches_of(jobs, self.data, training, round)
        seeds = dropout_seeds(self.seed, jobs.client_of.tolist(), round)

        def train_one(network: RowModel, job: int) -> None:
            def samples() -> Iterator[Samples]:
                for step, batch in enumerate(batches[job]):
                    models.give_keys(network.network, step_keys(seeds[job], step))
                    yield *self.data.samples(batch.index), batch.weights

            network.load(jobs.models[jobs.model_of[job]])
            precision = autocast(self.precision, self.device)
            anchor = jobs.anchored_to(job)
            train_client(network, samples(), TASKS[self.task], training, anchor, precision)
            network.store(trained[job])

        run_in_threads(train_one, range(len(jobs)), self.networks)

    def _train_stacks(
        self, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
    ) -> None:
        """Fill ``trained`` stack by stack: a share of the jobs per core, if all fit the memory."""
        side_by_side = len(self.networks)
        fitting = int(spare_memory(self.device) / self.job_bytes(training) / side_by_side)
        size = max(1, min(fitting, -(-len(jobs) // side_by_side)))
        stacks = [
            list(range(len(jobs)))[first : first + size] for first in range(0, len(jobs), size)
        ]

        def train_part(network: RowModel, stack: list[int]) -> None:
            precision = autocast(self.precision, self.device)
            part = jobs.part(stack)
            trained[stack] = train_stack(
                network, part, self.data, TASKS[self.task], training, round, precision
            )

        run_in_threads(train_part, stacks, self.networks)

    def losses(self, jobs: Jobs, split: str = "train") -> list[Tensor]:
        """Return the loss of each job's model on each sample of its client; J tensors ``[n]``."""
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
        return evaluate(self, jobs, split, embedding_of(self), max_samples, train_mode)

    def predict(self, jobs: Jobs, split: str = "test") -> list[Tensor]:
        """Return class probabilities (or pixels) of each job's model; J tensors ``[n, …]``.

        ``split`` is one of the partition's, of which it is the job's client's samples, or the
        ``central`` test set, for which the client does not matter.
        """
        return evaluate(self, jobs, split, prediction_of(self))

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let each job's client answer a question, see `Ask`; J answers."""

        def ask_one(network: RowModel, job: int) -> Any:
            client = Client(self, int(jobs.client_of[job]), network)
            return question(client, jobs.models[jobs.model_of[job]], **options)

        with matmul_precision(self.precision, self.device):
            return run_in_threads(ask_one, range(len(jobs)), self.networks)

    def converse(self, conversation: Generator[Request, Any, Any], round: int = 0) -> Any:
        """Answer every request of a conversation, such as a method's round; return its result."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(request.answered_by(self, round))
        except StopIteration as end:
            return end.value

    # --- Memory -----------------------------------------------------------------------------------

    @cached_property
    def sample_bytes(self) -> float:
        """What the backward pass keeps of a sample, measured."""
        network, shape = self.networks[0].network.train(), self.data.shape
        kept = [0, 0]
        for number, samples in enumerate((2, 4)):  # BatchNorm cannot train on one

            def count(tensor: Tensor, number: int = number) -> Tensor:
                kept[number] += tensor.nbytes
                return tensor

            inputs = torch.zeros(samples, *shape, device=self.device)
            models.give_keys(network, torch.tensor(0, device=self.device))
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                network(inputs)
        return (kept[1] - kept[0]) / 2

    def job_bytes(self, training: LocalTraining) -> float:
        """What a job of a stack takes, roughly.

        Six rows (parameters, gradients, optimiser state and copies) and, twice, what the backward
        pass keeps of a batch.
        """
        batch = min(training.batch_size, int(self.sizes.max())) * self.sample_bytes
        return 6 * 4 * (self.parameters + self.buffers) + 2 * batch
