"""Local training as in a textbook, and the threads in which clients compute side by side.

`train_client` trains one client's model. The engine *threads* calls it for many clients, each on
one core of a CPU. The engine `stacked` does the same steps for many models at once.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from cflkit import models
from cflkit.federation.clients import CENTRAL, Clients, Loss, Output
from cflkit.federation.fast_linear import steps_in_backward
from cflkit.federation.machine import usable_cores
from cflkit.federation.requests import Jobs, LocalTraining
from cflkit.federation.seeds import dropout_seeds, step_keys
from cflkit.models.rows import RowModel, blas_libraries, threads_per_operation

Item = TypeVar("Item")
Result = TypeVar("Result")
# Inputs, labels and weights of a batch's samples; None means that all weights are one
Samples = tuple[Tensor, Tensor, Tensor | None]


def train_client(
    network: RowModel,
    batches: Iterable[Samples],
    loss_of: Loss,
    training: LocalTraining,
    anchor: Tensor,
) -> None:
    """Train a network on a client's batches, one step per batch.

    Parameters
    ----------
    network : RowModel
        The network with the model that the client received; afterwards, it has the trained model.
    batches : iterable
        The batches of all local epochs.
    loss_of : callable
        The loss of the task.
    training : LocalTraining
        The optimiser and the penalty.
    anchor : Tensor
        ``[P + Q]``, the model to which the penalty refers.
    """
    network.network.train()
    optimizer = training.build(network.trainable)
    centre = network.split(anchor)
    for inputs, labels, weights in batches:
        optimizer.zero_grad()
        outputs = network.network(inputs)
        if weights is None:
            loss = loss_of(outputs, inputs, labels, "mean")
        else:
            loss = (weights * loss_of(outputs, inputs, labels, "none")).mean()
        loss.backward()
        directions = penalty_directions(network.trainable, centre, training.penalty)
        add_to_gradients(network.trainable, directions, training.strength)
        optimizer.step()


def add_to_gradients(
    parameters: Mapping[str, nn.Parameter], directions: Mapping[str, Tensor], strength: float
) -> None:
    """Add directions, times a strength, to the gradients of the parameters of the same names."""
    for name, direction in directions.items():
        grad = parameters[name].grad
        assert grad is not None
        grad.add_(direction, alpha=strength)


def penalty_directions(
    values: Mapping[str, Tensor], centre: Mapping[str, Tensor], penalty: str
) -> dict[str, Tensor]:
    """Compute the gradient of the penalty of `LocalTraining` for μ = 1; empty without a penalty.

    Parameters
    ----------
    values : mapping of str to Tensor
        The trained parameters θ by name.
    centre : mapping of str to Tensor
        The anchor c by the same names, in the same shapes. It may have further parameters.
    penalty : {"none", "proximal", "norms", "cosine", "linear"}
        The penalty, as in `LocalTraining`.
    """
    if penalty == "none":
        return {}
    theta = {name: value.detach() for name, value in values.items()}
    tiny = torch.finfo(torch.float32).tiny
    if penalty in ("proximal", "norms"):
        steps = {name: value - centre[name] for name, value in theta.items()}
        if penalty == "proximal":
            return steps
        return {name: step / step.norm().clamp_min(tiny) for name, step in steps.items()}
    if penalty == "linear":
        return {name: centre[name] for name in theta}
    # The gradient of ⟨c, θ⟩ / ‖θ‖ is c / ‖θ‖ − ⟨c, θ⟩ θ / ‖θ‖³
    squares = torch.stack([value.square().sum() for value in theta.values()])
    products = torch.stack([(centre[name] * value).sum() for name, value in theta.items()])
    norm = squares.sum().sqrt().clamp_min(tiny)
    along = products.sum() / norm / norm  # the square of the smallest norm would be zero
    return {name: (centre[name] - along * value) / norm for name, value in theta.items()}


# --- Many clients ---------------------------------------------------------------------------------


def train_in_threads(
    clients: Clients, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
) -> None:
    """Train each job by `train_client`, and write the models into ``trained`` (``[J, P + Q]``)."""
    batches = clients.batches_of(jobs, round, training)

    def train_one(network: RowModel, job: int) -> None:
        model = jobs.models[jobs.model_of[job]]

        def samples() -> Iterator[Samples]:
            if network.drops_out:
                client = int(jobs.client_of[job])
                seeds = dropout_seeds(clients.seed, [client], round).to(clients.device)
            for step, batch in enumerate(batches[job]):
                if network.drops_out:
                    models.give_keys(network.network, step_keys(seeds, step)[0])
                weights = None if batch.weights is None else batch.weights.to(clients.device)
                yield *clients.samples(batch.index), weights

        network.load(model)
        anchor = jobs.of(job, "anchor", model)
        with steps_in_backward(network, training) if clients.has_large_layers else nullcontext():
            train_client(network, samples(), clients.loss_of, training, anchor)
        network.store(trained[job])

    run_in_threads(train_one, range(len(jobs)), clients.networks)


def evaluate(
    clients: Clients, jobs: Jobs, split: str, output: Output, most: int | None = None
) -> list[Tensor]:
    """Compute an output of each job's model on its client's samples, or on at most this many."""
    # Models for the same samples are evaluated one after the other, so samples are loaded only once
    jobs_at: dict[int, list[int]] = {}
    for job, client in enumerate(jobs.client_of.tolist()):
        jobs_at.setdefault(0 if split == CENTRAL else client, []).append(job)
    tasks = [
        (numbers, part)
        for client, numbers in jobs_at.items()
        for part in clients.parts(client, split, most)
    ]

    def evaluate_part(network: RowModel, task: tuple[list[int], Tensor]) -> list[Tensor]:
        numbers, part = task
        rows = [jobs.models[jobs.model_of[job]] for job in numbers]
        return clients.evaluate(network, rows, part, split, output)

    collected: list[list[Tensor]] = [[] for _ in range(len(jobs))]
    results = run_in_threads(evaluate_part, tasks, clients.networks)
    for (numbers, _), outputs in zip(tasks, results, strict=True):
        for job, part in zip(numbers, outputs, strict=True):
            collected[job].append(part)
    return [torch.cat(part) for part in collected]


def run_in_threads(
    work: Callable[[RowModel, Item], Result], tasks: Sequence[Item], networks: Sequence[RowModel]
) -> list[Result]:
    """Compute the results of all tasks in parallel threads, and return them in order.

    Parameters
    ----------
    work : callable
        The function from a network and a task to the result. It may change the network.
    tasks : sequence
        The tasks.
    networks : sequence of RowModel
        The networks, one per thread. Each operation of torch and of NumPy's linear algebra uses one
        core, so that no result depends on the number of cores. With more, the threads would also
        wait for each other: two SVDs at a time then take ten times as long.
    """
    free, at_hand = list(networks), threading.local()

    def take_network() -> None:
        torch.set_num_threads(1)  # takes effect only in the thread that calls it
        at_hand.network = free.pop()

    with threads_per_operation(1), blas_libraries().limit(limits=1):
        if len(networks) == 1 or len(tasks) < 2:
            return [work(networks[0], task) for task in tasks]
        with ThreadPoolExecutor(len(networks), initializer=take_network) as pool:
            return list(pool.map(lambda task: work(at_hand.network, task), tasks))


def on_cores(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Compute the results of all items in parallel threads without networks, in order."""
    with blas_libraries().limit(limits=1), ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(work, items))
