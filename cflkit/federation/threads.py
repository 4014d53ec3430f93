"""The engine of a CPU: clients side by side on threads, each computing with one core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

from cflkit.federation.machine import threads_per_operation
from cflkit.federation.rows import RowModel

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_threads(
    work: Callable[[RowModel, Item], Result], tasks: Sequence[Item], networks: Sequence[RowModel]
) -> list[Result]:
    """Return the results of all tasks, in order.

    Parameters
    ----------
    work : callable
        From a network, which it may use as it likes, and a task to the result.
    tasks : sequence
        What there is to do.
    networks : sequence of RowModel
        There is a thread per network, and within an operation of torch one core: so no result
        depends on how many cores there are.
    """
    if len(networks) == 1 or len(tasks) < 2:
        with threads_per_operation(1):
            return [work(networks[0], task) for task in tasks]
    free: SimpleQueue[RowModel] = SimpleQueue()
    for network in networks:
        free.put(network)

    def with_network(task: Item) -> Result:
        torch.set_num_threads(1)  # counts for the thread that calls it
        network = free.get()
        try:
            return work(network, task)
        finally:
            free.put(network)

    with (
        threads_per_operation(torch.get_num_threads()),  # restores what the workers set
        ThreadPoolExecutor(len(networks)) as pool,
    ):
        return list(pool.map(with_network, tasks))
