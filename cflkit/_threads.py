"""How many cores this process may use, and how many threads a library takes within an operation.

With more threads, a library adds numbers in another order, so that the last bits of a result would
depend on the machine's cores. Where clients compute side by side, the threads of the libraries
would also wait for each other: two SVDs at a time then take ten times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Return ``CFLKIT_THREADS``, or the cores that this process may use.

    A container's quota and the process's affinity count, by joblib.

    Raises
    ------
    ValueError
        ``CFLKIT_THREADS`` is not a positive integer.
    """
    setting = os.environ.get("CFLKIT_THREADS")
    if not setting:
        import joblib  # a twentieth of a second, which clusterers alone need not wait for

        return joblib.cpu_count()
    if not setting.isdecimal() or int(setting) < 1:
        raise ValueError(f"CFLKIT_THREADS must be a positive integer, not {setting!r}")
    return int(setting)


@contextmanager
def threads_per_operation(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads within an operation for the duration of the block."""
    import torch  # in whose place nothing is imported where clusterers alone are used

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_cores(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Compute the results of all items side by side, and return them in order."""
    with blas_libraries().limit(limits=1), ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(work, items))


@cache
def blas_libraries() -> ThreadpoolController:
    """Find the libraries of linear algebra of this process, which takes some milliseconds."""
    return ThreadpoolController().select(user_api="blas")
