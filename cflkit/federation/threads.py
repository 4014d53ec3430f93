"""The engine for CPUs: clients train in parallel threads, each on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from cflkit import models
from cflkit.federation.jobs import Jobs, LocalTraining
from cflkit.federation.machine import autocast, keep_freed_memory, threads_per_operation
from cflkit.federation.rows import RowModel
from cflkit.federation.seeds import dropout_seeds, step_keys
from cflkit.federation.training import TASKS, Samples, train_client

if TYPE_CHECKING:
    from cflkit.federation.federation import Federation

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    if len(networks) == 1 or len(tasks) < 2:
        with threads_per_operation(1), blas_libraries().limit(limits=1):
            return [work(networks[0], task) for task in tasks]
    free: SimpleQueue[RowModel] = SimpleQueue()
    for network in networks:
        free.put(network)

    def with_network(task: Item) -> Result:
        torch.set_num_threads(1)  # takes effect only in the thread that calls it
        network = free.get()
        try:
            return work(network, task)
        finally:
            free.put(network)

    with (
        threads_per_operation(torch.get_num_threads()),  # undoes the setting of the workers
        blas_libraries().limit(limits=1),
        ThreadPoolExecutor(len(networks)) as pool,
    ):
        return list(pool.map(with_network, tasks))


@cache
def blas_libraries() -> ThreadpoolController:
    """Find the libraries of linear algebra of this process, which takes some milliseconds."""
    return ThreadpoolController().select(user_api="blas")


def train_in_threads(
    federation: Federation, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
) -> None:
    """Train each job by `train_client`, and write the models into ``trained`` (``[J, P + Q]``)."""
    keep_freed_memory()
    data, task = federation.data, TASKS[federation.task]
    batches = data.batches_of(jobs, round, training)
    seeds = dropout_seeds(federation.seed, jobs.client_of.tolist(), round).to(federation.device)

    def train_one(network: RowModel, job: int) -> None:
        def samples() -> Iterator[Samples]:
            for step, batch in enumerate(batches[job]):
                if network.drops_out:
                    models.give_keys(network.network, step_keys(seeds[job], step))
                weights = None if batch.weights is None else batch.weights.to(data.device)
                yield *data.samples(batch.index), weights

        network.load(jobs.models[jobs.model_of[job]])
        precision = autocast(federation.precision, federation.device)
        train_client(network, samples(), task, training, jobs.anchored_to(job), precision)
        network.store(trained[job])

    run_in_threads(train_one, range(len(jobs)), federation.networks)
