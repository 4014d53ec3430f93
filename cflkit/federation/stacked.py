"""The engine for GPUs: many models train as one stacked tensor, by ``torch.func.vmap``.

Each step of `training.train_client` is done for all models of a stack at once. On a CPU, there is
one stack per core.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Self

import torch
from torch import Tensor, nn

from cflkit.federation.clients import Batch, Clients, Loss, spare_memory
from cflkit.federation.requests import Jobs, LocalTraining
from cflkit.federation.seeds import dropout_seeds, step_keys
from cflkit.federation.training import add_to_gradients, penalty_directions, run_in_threads
from cflkit.models import give_keys
from cflkit.models.rows import RowModel

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """The batches of J jobs in one index, which is on the device before the first step.

    Attributes
    ----------
    index, shares : Tensor
        ``[steps, J, B]``: the positions of samples in the pool, and the share of each sample in its
        job's loss. Padding has share 0. Without weights of samples, the shares of a batch sum to 1.
    sizes : list of list of int
        For each step, the size of each job's batch; 0 if the job has no batch left.
    """

    index: Tensor
    shares: Tensor
    sizes: list[list[int]]

    @classmethod
    def of(cls, batches: Sequence[Sequence[Batch]], device: torch.device) -> Self:
        """Build the schedule from the batches of each job."""
        nothing = Batch(torch.zeros(0, dtype=torch.int64))
        steps = list(zip_longest(*batches, fillvalue=nothing))
        every = [nothing, *chain.from_iterable(steps)]
        sizes = [[len(batch.index) for batch in step] for step in steps]
        counts = torch.tensor(sizes, dtype=torch.int64).view(len(steps), len(batches), 1)
        there = torch.arange(max(len(batch.index) for batch in every)) < counts
        index, shares = torch.zeros(there.shape, dtype=torch.int64), there / counts.clamp_min(1)
        index[there] = torch.cat([batch.index for batch in every])
        if any(batch.weights is not None for batch in every):
            weights = [torch.ones(len(b.index)) if b.weights is None else b.weights for b in every]
            shares[there] *= torch.cat([part.cpu() for part in weights])
        return cls(index.to(device), shares.to(device), sizes)

    def groups(self, step: int, alike: bool) -> list[tuple[slice | list[int], int]]:
        """Return the groups of jobs that compute together in a step, each with its largest batch.

        With ``alike``, jobs with batches of the same size form a group. Otherwise, all jobs that
        have a batch form one. Those are the first, since jobs with fewer batches come later.
        """
        sizes = [size for size in self.sizes[step] if size]
        if not alike or len(set(sizes)) == 1:
            return [(slice(len(sizes)), max(sizes))]
        jobs = range(len(sizes))
        return [([j for j in jobs if sizes[j] == size], size) for size in set(sizes)]


def train_in_stacks(
    clients: Clients, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
) -> None:
    """Train the jobs stack by stack, and write the models into ``trained`` (``[J, P + Q]``).

    A stack has one core's share of the jobs, or fewer jobs if the memory is too small.
    """
    side_by_side = len(clients.networks)
    fitting = spare_memory(clients.device) / clients.bytes_per_job(training) / side_by_side
    size = max(1, min(int(fitting), -(-len(jobs) // side_by_side)))
    stacks = [part.tolist() for part in torch.arange(len(jobs)).split(size) if len(part)]

    def train_part(network: RowModel, stack: list[int]) -> None:
        batches = clients.batches_of(jobs.part(stack), round, training)
        # Jobs that are done early come last, so that those that go on are a slice of the stack
        longest = sorted(range(len(stack)), key=lambda job: len(batches[job]), reverse=True)
        stack, batches = [stack[job] for job in longest], [batches[job] for job in longest]
        trained[stack] = train_stack(network, jobs.part(stack), batches, clients, round, training)

    run_in_threads(train_part, stacks, clients.networks)


def train_stack(
    network: RowModel,
    jobs: Jobs,
    batches: Sequence[Sequence[Batch]],
    clients: Clients,
    round: int,
    training: LocalTraining,
) -> Tensor:
    """Train all jobs at once, with one stacked model, one optimiser and one call per step.

    ``batches`` has those of each job; jobs with fewer batches come later.

    Returns
    -------
    Tensor
        ``[J, P + Q]``, the trained models.
    """
    network.network.train()
    anchor = start = network.split(jobs.models[jobs.model_of])
    if training.penalty != "none" and "anchor" in jobs.columns:
        anchor = network.split(torch.stack(list(jobs.columns["anchor"])))
    directions = torch.func.vmap(partial(penalty_directions, penalty=training.penalty))
    # Clones, so that each parameter is its own leaf and its gradients are contiguous in memory
    values = {name: stack.clone() for name, stack in start.items()}
    leaves = {n: nn.Parameter(values[n]) for n in network.trainable}  # share the memory of `values`
    optimizer = training.build(leaves)
    schedule = Schedule.of(batches, clients.device)
    seeds = dropout_seeds(clients.seed, jobs.client_of.tolist(), round).to(clients.device)
    gradients = gradients_of(network, clients.loss_of)
    going, done = len(jobs), []

    def rows(first: int, end: int) -> Tensor:
        parts = [value[first:end].reshape(end - first, -1) for value in values.values()]
        return torch.cat(parts, dim=1)

    for step, sizes in enumerate(schedule.sizes):
        left = sum(map(bool, sizes))
        if left < going:  # momentum and weight decay change those that are done further on
            done.append(rows(left, going))
            going = left
        # Padding would enter BatchNorm's statistics, so its batches are grouped by their size
        for which, width in schedule.groups(step, alike=bool(network.buffer_names)):
            inputs, labels = clients.samples(schedule.index[step, which, :width])
            grads, moved = gradients(
                {name: values[name][which] for name in network.trainable},
                {name: values[name][which] for name in network.buffer_names},
                *(inputs, labels, schedule.shares[step, which, :width]),
                step_keys(seeds, step)[which],
            )
            for name, gradient in grads.items():
                write_gradient(leaves[name], gradient, which)
            for name, buffer in moved.items():
                values[name][which] = buffer
        if training.penalty != "none":
            add_to_gradients(leaves, directions(leaves, anchor), training.strength)
        optimizer.step()
    return torch.cat([rows(0, going), *reversed(done)])


def gradients_of(network: RowModel, loss_of: Loss) -> Callable[..., tuple[Values, Values]]:
    """Build the function from stacked models and batches to gradients and updated buffers."""

    def loss(
        trained: Values, buffers: Values, x: Tensor, y: Tensor, shares: Tensor, keys: Tensor
    ) -> tuple[Tensor, Values]:
        # BatchNorm updates its buffers in place
        moved = {name: buffer.clone() for name, buffer in buffers.items()}
        give_keys(network.network, keys)
        outputs = torch.func.functional_call(network.network, {**trained, **moved}, (x,))
        return (shares * loss_of(outputs, x, y, "none")).sum(), moved

    return torch.func.vmap(torch.func.grad(loss, has_aux=True))


def write_gradient(leaf: nn.Parameter, gradient: Tensor, which: slice | list[int]) -> None:
    """Write the gradients of some jobs into ``leaf.grad``, where the optimiser reads them."""
    if len(gradient) == len(leaf):
        leaf.grad = gradient
        return
    leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    leaf.grad[which] = gradient
