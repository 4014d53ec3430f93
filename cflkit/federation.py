"""The engine: many clients' data, many models, and four primitives on them.

`Federation.train`, `losses`, `embed` and `predict` are the only code of the kit that runs clients'
models. (`explain` looks into one that `Federation.network` hands out; `sample_clustering.DEC` has a
network that is no client's model.) Each takes a batch of `Jobs` (which model with which client) and
decides how to run it:

- *threads*, the default on a CPU: clients side by side on as many threads as there are cores, each
  thread computing alone;
- *stacked*, the default on a GPU: many models train as one stacked tensor, by ``torch.func.vmap``;
  on a CPU there is one for each core.

The batch order of a client depends on (seed, client, round) alone, never on the method that asks,
on scheduling, or on a global generator. So does dropout on threads; stacked models draw their masks
together, so there a network with dropout depends on what else is in the stack.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from cflkit import models
from cflkit.datasets import ImageSet
from cflkit.partition import Partition
from cflkit.rows import RowModel

ENGINES = ("threads", "stacked")
PRECISIONS = ("float32", "tf32", "bfloat16")

# Children of a federation's one seed
INITIALISATION, BATCHES, DROPOUT, PARTICIPATION, SAMPLES, PROJECTION = range(6)

Item = TypeVar("Item")
Result = TypeVar("Result")


class Diverged(Exception):
    """Training gave NaN or infinity; the message says where."""


@dataclass(frozen=True)
class LocalTraining:
    """What a client does with a model in one round; the optimiser starts fresh each time.

    Attributes
    ----------
    epochs : int
        Local epochs.
    batch_size : int
        Samples a step; the last batch of an epoch may be smaller.
    optimizer : {"sgd", "adam"}
        torch's, with its defaults but for the values below.
    lr, momentum, weight_decay : float
        ``momentum`` is SGD's alone.
    """

    epochs: int = 3
    batch_size: int = 32
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(
                f"epochs and batch_size must be at least 1, not {self.epochs} and {self.batch_size}"
            )
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive and finite, not {self.lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative, but is {self.weight_decay}")
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"unknown optimizer {self.optimizer!r}; known are sgd, adam")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd, not to adam")

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser; every rule here works value by value, so models can be stacked."""
        if self.optimizer == "adam":
            # Fused: one pass over the memory, where torch's default on a CPU makes many
            return torch.optim.Adam(
                parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True
            )
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Jobs:
    """J pairs of a model and a client.

    Attributes
    ----------
    models : Tensor
        ``[K, P + Q]``, the distinct models.
    model : Tensor
        ``[J]``, int64: the row of ``models`` of each job.
    client : Tensor
        ``[J]``, int64: the client of each job.
    proximal : Tensor, optional
        ``[J]``: μ of the term μ/2 ‖θ − θ₀‖² that local training adds to each job's loss, θ₀ being
        the job's model; 0 everywhere for None.
    samples : sequence of Tensor, optional
        J of them, int64: the positions among its client's training samples that a job trains on;
        all of them for None.
    """

    models: Tensor
    model: Tensor
    client: Tensor
    proximal: Tensor | None = None
    samples: Sequence[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.client)

    def part(self, which: Tensor) -> Jobs:
        """Some of the jobs."""
        proximal = None if self.proximal is None else self.proximal[which]
        samples = None if self.samples is None else [self.samples[job] for job in which.tolist()]
        return Jobs(self.models, self.model[which], self.client[which], proximal, samples)


@dataclass(frozen=True)
class Task:
    """What networks are trained for.

    Attributes
    ----------
    loss : callable
        From outputs, inputs, labels and a reduction to the loss: ``mean`` over the batch, or
        ``none``, of each sample.
    prediction : callable
        From outputs to what `Federation.predict` returns.
    head : str
        The layer whose input is the embedding.
    """

    loss: Callable[[Tensor, Tensor, Tensor, str], Tensor]
    prediction: Callable[[Tensor], Tensor]
    head: str


def cross_entropy(outputs: Tensor, _: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Of class scores ``[n, classes]``."""
    return F.cross_entropy(outputs, labels, reduction=reduction)


def squared_error(outputs: Tensor, inputs: Tensor, _: Tensor, reduction: str) -> Tensor:
    """Of reconstructed pixels ``[n, pixels]``; a sample's error is the mean over its pixels."""
    errors = (outputs - inputs.flatten(1)).square().mean(dim=1)
    return errors if reduction == "none" else errors.mean()


TASKS = {
    "classification": Task(cross_entropy, lambda outputs: outputs.softmax(dim=1), "classifier"),
    "reconstruction": Task(squared_error, lambda outputs: outputs, "decoder"),
}


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    """The child of ``seed`` that belongs to ``key``; streams of different keys are independent."""
    return np.random.SeedSequence(seed, spawn_key=key)


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
        Of initialisation, batches and dropout; the partition has its own.
    device : str or torch.device, optional
        A GPU where there is one, else the CPU.
    engine : {"threads", "stacked"}, optional
        How jobs run; by default threads on a CPU and stacked on anything else.
    task : {"classification", "reconstruction"}
        Cross-entropy of the labels, or mean squared error of the pixels.
    participants : int, optional
        Clients that train in a round, drawn anew each time; all by default.
    weights : {"imagenet"}, optional
        What the initial model starts from, see `models.make`.
    precision : {"float32", "tf32", "bfloat16"}
        Of matrix products and convolutions. ``tf32`` rounds their factors to 10 bits, on NVIDIA
        GPUs alone; ``bfloat16`` runs the network under ``torch.autocast``, with parameters,
        gradients and losses in float32. Neither is meant for records that must be exact.

    Attributes
    ----------
    clients : int
        m.
    clusters : Tensor
        ``[m]``, the true cluster of each client.
    sizes : Tensor
        ``[m]``, float: training samples of each client.
    parameters, buffers : int
        P and Q, the parts of a model's row.
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
        participants: int | None = None,
        weights: str | None = None,
        precision: str = "float32",
    ) -> None:
        if partition.dataset != images.name:
            raise ValueError(
                f"the partition is of {partition.dataset!r}, the images {images.name!r}"
            )
        held = [indices for parts in partition.splits.values() for indices in parts]
        if max(int(indices.max(initial=0)) for indices in held) >= len(images.labels):
            raise ValueError(
                f"the partition points beyond the {len(images.labels)} samples of the pool"
            )
        self.device = default_device() if device is None else torch.device(device)
        self.engine = engine or ("threads" if self.device.type == "cpu" else "stacked")
        if self.engine not in ENGINES:
            raise ValueError(f"unknown engine {self.engine!r}; known are {', '.join(ENGINES)}")
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")
        if precision == "tf32" and self.device.type != "cuda":
            raise ValueError(f"precision tf32 needs an NVIDIA GPU, and this is {self.device}")
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
        if (task == "reconstruction") != (model in models.AUTOENCODERS):
            raise ValueError(f"a network {model!r} is not made for {task}")
        self.task = TASKS[task]
        self.precision = precision
        self.seed = seed
        self.training = training or LocalTraining()
        if participants is not None and not 0 < participants <= partition.clients:
            raise ValueError(
                f"participants must be from 1 to {partition.clients}, not {participants}"
            )
        self.participating = participants or partition.clients
        self.partition = partition
        self.clients = partition.clients
        self.clusters = torch.from_numpy(partition.clusters)
        self.sizes = torch.tensor([len(i) for i in partition.train], dtype=torch.float32)

        self._pool = images.images.to(self.device), images.labels.to(self.device)
        self._central = images.test_images.to(self.device), images.test_labels.to(self.device)
        self._indices = {
            name: [torch.from_numpy(indices) for indices in parts]
            for name, parts in partition.splits.items()
        }

        def build(weights: str | None = None) -> RowModel:
            network = models.make(model, images.shape, images.classes, weights)
            return RowModel(network.to(self.device))

        self._build = build
        with torch.random.fork_rng(devices=[]):
            child = stream(seed, INITIALISATION).generate_state(1, np.uint64)[0]
            torch.default_generator.manual_seed(int(child))
            first = build(weights)
            self._initial = first.row
            threads = min(usable_cores(), self.clients) if self.device.type == "cpu" else 1
            self._networks = [first, *(build() for _ in range(threads - 1))]
        self.parameters = first.parameters
        self.buffers = len(self._initial) - first.parameters

    def initial(self) -> Tensor:
        """``[P + Q]``: the model that every client starts from, the same for the same seed."""
        return self._initial.clone()

    def initials(self, count: int, *key: int) -> Tensor:
        """``[count, P + Q]``: models initialised one by one, the same for the same seed and key."""
        with torch.random.fork_rng(devices=[]):
            child = stream(self.seed, INITIALISATION, *key).generate_state(1, np.uint64)[0]
            torch.default_generator.manual_seed(int(child))
            rows = [self._build().row for _ in range(count)]
        return torch.stack(rows) if rows else self._initial[None][:0]

    def network(self, model: Tensor) -> nn.Module:
        """A network of its own that computes with a model (``[P + Q]``), in evaluation mode."""
        with torch.random.fork_rng(devices=[]):  # building draws
            row_model = self._build()
        row_model.load(model)
        return row_model.network.eval()

    def participants(self, round: int) -> Tensor:
        """The clients that train in a round, ascending."""
        generator = np.random.default_rng(stream(self.seed, PARTICIPATION, round))
        drawn = generator.choice(self.clients, self.participating, replace=False)
        return torch.from_numpy(np.sort(drawn))

    def samples(self, client: int, split: str = "train") -> int:
        """How many samples a client has in a split; none where the partition lacks the split."""
        return len(self._indices[split][client]) if split in self._indices else 0

    def inputs(self, index: ArrayLike, central: bool = False) -> tuple[Tensor, Tensor]:
        """Samples of the pool or of the central test set, as networks see them.

        ``[n, channels, height, width]`` in [0, 1], and labels ``[n]``.
        """
        source = self._central if central else self._pool
        return self._samples(source, torch.as_tensor(index, dtype=torch.int64))

    # --- The four primitives ---------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, training: LocalTraining | None = None) -> Tensor:
        """Local training of each job's model on its client's training set, or on a part of it.

        Parameters
        ----------
        jobs : Jobs
            J jobs.
        round : int
            From 0; picks the clients' batch orders.
        training : LocalTraining, optional
            Instead of the federation's own.

        Returns
        -------
        Tensor
            ``[J, P + Q]``, the trained models.

        Raises
        ------
        Diverged
            A trained model is not finite; the message names the round (from 1) and the clients.
        """
        trained = torch.empty(len(jobs), jobs.models.shape[1], device=self.device)
        training = training or self.training
        with self.tf32():
            if self.engine == "stacked":

                def train_stack(network: RowModel, part: Tensor) -> None:
                    trained[part] = self._train_stacked(network, jobs.part(part), round, training)

                stacks = torch.arange(len(jobs)).split(self._stack_size(len(jobs)))
                self._side_by_side(train_stack, stacks)
            else:
                self._train_on_threads(jobs, round, training, trained)
        # Smallest and largest in one pass over the memory; NaN is both
        broken = ~torch.isfinite(torch.stack(torch.aminmax(trained, dim=1))).all(dim=0).cpu()
        if broken.any():
            raise Diverged(
                f"training diverged in round {round + 1}: the models of clients "
                f"{sorted(set(jobs.client[broken].tolist()))} are no longer finite; lower the "
                "learning rate"
            )
        return trained

    def _train_on_threads(
        self, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
    ) -> None:
        """One job a task, each an ordinary training loop; fills ``trained``."""

        def train_one(network: RowModel, job: int) -> None:
            client = int(jobs.client[job])
            network.load(jobs.models[jobs.model[job]])
            network.network.train()
            self._seed_dropout(network, client, round)
            optimizer = training.build(network.network.parameters())
            samples = None if jobs.samples is None else jobs.samples[job]
            for batch in self.batches(client, round, samples, training):
                optimizer.zero_grad()
                inputs, labels = self._samples(self._pool, batch)
                with self._autocast():
                    loss = self.task.loss(network.network(inputs), inputs, labels, "mean")
                loss.backward()
                if jobs.proximal is not None:
                    network.pull(jobs.models[jobs.model[job]], float(jobs.proximal[job]))
                optimizer.step()
            network.store(trained[job])

        self._side_by_side(train_one, range(len(jobs)))

    def losses(self, jobs: Jobs, split: str = "train") -> list[Tensor]:
        """The task's loss of each job's model on each sample of its client; J tensors ``[n]``."""
        return self._evaluate(jobs, split, lambda net, x, y: self.task.loss(net(x), x, y, "none"))

    def embed(
        self, jobs: Jobs, split: str = "train", most: int | None = None, training: bool = False
    ) -> list[Tensor]:
        """What enters the classifier (or decoder) of each job's model; J tensors ``[n, d]``.

        Of no more than ``most`` samples of the client, the same ones whatever the model; with the
        network in ``training`` mode if asked for, in batches as in training.
        """

        def embedding(net: nn.Module, inputs: Tensor, _: Tensor) -> Tensor:
            caught: list[Tensor] = []
            hook = net.get_submodule(self.task.head).register_forward_pre_hook(
                lambda _, inputs: caught.append(inputs[0])
            )
            with hook:
                net(inputs)
            return caught[0]

        return self._evaluate(jobs, split, embedding, most, training)

    def predict(self, jobs: Jobs, split: str = "test") -> list[Tensor]:
        """Class probabilities (or reconstructed pixels) of each job's model; J tensors ``[n, …]``.

        ``split`` is one of the partition's, of which it is the job's client's samples, or the
        ``central`` test set, for which the client does not matter.
        """
        return self._evaluate(jobs, split, lambda net, x, _: self.task.prediction(net(x)))

    def targets(self, client: int, split: str = "test") -> Tensor:
        """``[n]``: the labels that belong to the primitives' outputs on this split."""
        self._check(split)
        if split == "central":
            return self._central[1]
        return self._pool[1][self._indices[split][client].to(self.device)]

    # --- How they run ----------------------------------------------------------------------------

    def batches(
        self,
        client: int,
        round: int,
        samples: Tensor | None = None,
        training: LocalTraining | None = None,
    ) -> list[Tensor]:
        """Indices of the batches of all local epochs: a fresh permutation each epoch."""
        generator = np.random.default_rng(stream(self.seed, BATCHES, client, round))
        training = training or self.training
        indices = self._indices["train"][client]
        indices = indices if samples is None else indices[samples]
        batches: list[Tensor] = []
        for _ in range(training.epochs):
            order = torch.from_numpy(generator.permutation(len(indices)))
            batches += indices[order].split(training.batch_size)
        return batches

    def _autocast(self) -> torch.autocast:
        """Where the network computes; bfloat16 if asked for."""
        # Without its cache, which would keep weights from before the optimiser's step
        return torch.autocast(
            self.device.type, torch.bfloat16, self.precision == "bfloat16", cache_enabled=False
        )

    @contextmanager
    def tf32(self) -> Iterator[None]:
        """Say whether TF32 is wanted: torch's own default has it on in convolutions."""
        if self.device.type != "cuda":
            yield
            return
        switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
        before = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = "tf32" if self.precision == "tf32" else "ieee"
            yield
        finally:
            for switch, value in zip(switches, before, strict=True):
                switch.fp32_precision = value

    def _seed_dropout(self, network: RowModel, client: int, round: int) -> None:
        """Give dropout a generator that depends on (seed, client, round) alone."""
        seed = int(stream(self.seed, DROPOUT, client, round).generate_state(1, np.uint64)[0])
        generator = torch.Generator(self.device).manual_seed(seed)
        for layer in network.network.modules():
            if isinstance(layer, models.Dropout):
                layer.generator = generator

    def _samples(self, source: tuple[Tensor, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
        """A batch as the networks take it: float in [0, 1], and labels."""
        images, labels = source
        index = index.to(self.device)
        inputs = images[index].to(torch.get_default_dtype()).div_(255)
        if self.engine == "threads":
            # As the kernels lie in memory (see RowModel)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, labels[index]

    def _side_by_side(
        self, work: Callable[[RowModel, Item], Result], tasks: Sequence[Item]
    ) -> list[Result]:
        """Results of all tasks, in order; each thread has a network of its own."""
        if len(self._networks) == 1:
            return [work(self._networks[0], task) for task in tasks]
        free: SimpleQueue[RowModel] = SimpleQueue()
        for network in self._networks:
            free.put(network)

        def with_network(task: Item) -> Result:
            torch.set_num_threads(1)  # within an operation; threads work on different tasks
            network = free.get()
            try:
                return work(network, task)
            finally:
                free.put(network)

        before = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(len(self._networks)) as pool:
                return list(pool.map(with_network, tasks))
        finally:
            torch.set_num_threads(before)

    def _stack_size(self, jobs: int) -> int:
        """How many jobs make a stack: a share for each core, if all fit `stack_bytes`."""
        side_by_side = len(self._networks)
        most = int(stack_bytes(self.device) / self._job_bytes / side_by_side)
        return max(1, min(most, -(-jobs // side_by_side)))

    @cached_property
    def _job_bytes(self) -> float:
        """What a job of a stack takes, roughly.

        Six rows (parameters, gradients, optimiser state and copies) and, twice, what the backward
        pass keeps of a batch, which is measured.
        """
        network, shape = self._networks[0], self._pool[0].shape[1:]
        kept = [0, 0]
        for samples in (2, 4):  # BatchNorm cannot train on one

            def count(tensor: Tensor, samples: int = samples) -> Tensor:
                kept[samples // 4] += tensor.nbytes
                return tensor

            inputs = torch.zeros(samples, *shape, device=self.device)
            network.network.train()
            self._seed_dropout(network, 0, 0)  # not from the global generator
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                network.network(inputs)
        batch = min(self.training.batch_size, int(self.sizes.max())) * (kept[1] - kept[0]) / 2
        return 6 * 4 * (self.parameters + self.buffers) + 2 * batch

    def _train_stacked(
        self, network: RowModel, jobs: Jobs, round: int, training: LocalTraining
    ) -> Tensor:
        """All jobs at once: one stacked model, one optimiser, one call a step."""
        network.network.train()
        self._seed_dropout(network, self.clients, round)
        rows = jobs.models[jobs.model]
        # Copies: a leaf of its own for each parameter, whose gradients lie together in memory
        stacks = {name: stack.clone() for name, stack in network.split(rows).items()}
        leaves = {name: nn.Parameter(stacks[name]) for name in network.parameter_names}
        values = {name: stacks[name] for name in network.parameter_names}  # the leaves' memory
        buffers = {name: stacks[name] for name in network.buffer_names}
        start = network.split(rows)
        optimizer = training.build(leaves.values())

        def loss(
            weights: dict[str, Tensor],
            statistics: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            shares: Tensor,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            moved = {name: value.clone() for name, value in statistics.items()}  # by BatchNorm
            with self._autocast():
                outputs = torch.func.functional_call(network.network, {**weights, **moved}, (x,))
                losses = self.task.loss(outputs, x, y, "none")
            return (shares * losses).sum(), moved

        gradients = torch.func.vmap(torch.func.grad(loss, has_aux=True), randomness="different")
        parts = [None] * len(jobs) if jobs.samples is None else jobs.samples
        batches = [
            self.batches(int(client), round, part, training)
            for client, part in zip(jobs.client, parts, strict=True)
        ]
        for step in range(max(map(len, batches))):
            done = [job for job in range(len(jobs)) if step >= len(batches[job])]
            finished = {name: value[done] for name, value in values.items()}
            # Clients end their epochs with batches of different sizes. Padding would enter
            # BatchNorm's statistics: there only batches of equal size run together
            for group in by_size(batches, step) if buffers else [trained_together(batches, step)]:
                index, shares = padded([batches[job][step : step + 1] for job in group])
                inputs, labels = self._samples(self._pool, index)
                everyone = len(group) == len(jobs)
                which = slice(None) if everyone else group
                found, moved = gradients(
                    {name: value[which] for name, value in values.items()},
                    {name: buffer[which] for name, buffer in buffers.items()},
                    inputs,
                    labels,
                    shares.to(self.device),
                )
                for name, gradient in found.items():
                    if everyone:
                        leaves[name].grad = gradient
                    else:
                        leaf = leaves[name]
                        leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                        leaf.grad[group] = gradient
                for name, buffer in moved.items():
                    buffers[name][which] = buffer
            if jobs.proximal is not None:
                for name, leaf in leaves.items():
                    mu = jobs.proximal.to(self.device).view(-1, *(1,) * (leaf.ndim - 1))
                    assert leaf.grad is not None
                    leaf.grad += mu * (values[name] - start[name])
            optimizer.step()
            for name, value in finished.items():
                values[name][done] = value  # momentum and weight decay must not move them on
        return torch.cat([stack.reshape(len(jobs), -1) for stack in stacks.values()], dim=1)

    def _check(self, split: str) -> None:
        """Raise ValueError unless there is such a split."""
        known = (*self._indices, "central")
        if split not in known:
            raise ValueError(f"unknown split {split!r}; known are {', '.join(known)}")

    def _chosen(self, split: str, client: int, most: int | None) -> Tensor:
        """A client's samples of a split, or ``most`` of them."""
        index = self._indices[split][client]
        if most is None or len(index) <= most:
            return index
        key = (SAMPLES, list(self._indices).index(split), client)
        generator = np.random.default_rng(stream(self.seed, *key))
        return index[torch.from_numpy(np.sort(generator.permutation(len(index))[:most]))]

    def _evaluate(
        self,
        jobs: Jobs,
        split: str,
        output: Callable[[nn.Module, Tensor, Tensor], Tensor],
        most: int | None = None,
        training: bool = False,
    ) -> list[Tensor]:
        """``output`` of each job's model on every sample of the split, or on ``most`` of them."""
        self._check(split)
        chunk = 512 if self.engine == "threads" else 4096
        # Models that meet the same samples meet them one after the other, as long as they are there
        meetings: dict[int, list[int]] = {}
        for job, client in enumerate(jobs.client.tolist()):
            meetings.setdefault(0 if split == "central" else client, []).append(job)
        tasks: list[tuple[list[int], Tensor]] = []
        for client, present in meetings.items():
            if split == "central":
                index = torch.arange(len(self._central[1]))
            else:
                index = self._chosen(split, client, most)
            size = self.training.batch_size if training else chunk
            tasks += [(present, part) for part in index.split(size)]

        @torch.inference_mode()
        def evaluate_one(network: RowModel, task: tuple[list[int], Tensor]) -> list[Tensor]:
            present, index = task
            samples = self._samples(self._central if split == "central" else self._pool, index)
            found = []
            for job in present:
                network.load(jobs.models[jobs.model[job]])
                network.network.train(training)
                if training:
                    self._seed_dropout(network, int(jobs.client[job]), 0)
                with self._autocast():
                    found.append(output(network.network, *samples).float())
            return found

        parts: list[list[Tensor]] = [[] for _ in range(len(jobs))]
        with self.tf32():
            results = self._side_by_side(evaluate_one, tasks)
        for (present, _), found in zip(tasks, results, strict=True):
            for job, part in zip(present, found, strict=True):
                parts[job].append(part)
        return [torch.cat(part).clone() for part in parts]


def by_size(batches: Sequence[Sequence[Tensor]], step: int) -> list[list[int]]:
    """The jobs that have a batch at this step, those with batches of one size together."""
    groups: dict[int, list[int]] = {}
    for job, own in enumerate(batches):
        if step < len(own):
            groups.setdefault(len(own[step]), []).append(job)
    return list(groups.values())


def trained_together(batches: Sequence[Sequence[Tensor]], step: int) -> list[int]:
    """The jobs that have a batch at this step; all while most have one, which saves copies."""
    jobs = [job for job, own in enumerate(batches) if step < len(own)]
    return jobs if 2 * len(jobs) < len(batches) else list(range(len(batches)))


def padded(batches: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """The batch of each job, or none, as one index; and the share of each sample in a job's loss.

    Both ``[J, B]``. Shares of what was padded are 0, those of a batch sum to 1.
    """
    size = max(len(batch) for own in batches for batch in own)
    index = torch.zeros(len(batches), size, dtype=torch.int64)
    shares = torch.zeros(len(batches), size)
    for row, own in enumerate(batches):
        for batch in own:
            index[row, : len(batch)] = batch
            shares[row, : len(batch)] = 1 / len(batch)
    return index, shares


def stack_bytes(device: torch.device) -> int:
    """The memory that a stack may take: half of a GPU's, 8 GiB elsewhere."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 2
    return 8 * 2**30


def usable_cores() -> int:
    """``CFLKIT_THREADS``, or the cores that this process may use where the system says so."""
    if os.environ.get("CFLKIT_THREADS"):
        return int(os.environ["CFLKIT_THREADS"])
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_device() -> torch.device:
    """CUDA or Apple's MPS where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
