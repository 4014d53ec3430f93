"""The machine that computes: its device, cores and memory, and the precision of its products."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from joblib import cpu_count
from torch import Tensor

from cflkit.federation.seeds import PERTURBATION, integer

if TYPE_CHECKING:
    from cflkit.federation.jobs import Jobs

ENGINES = ("threads", "stacked")
# Of matrix products and convolutions. ``tf32`` rounds their factors to 10 bits, on NVIDIA GPUs
# alone; ``bfloat16`` runs the network under ``torch.autocast``, with parameters, gradients and
# losses in float32. Neither is meant for records that must be exact
PRECISIONS = ("float32", "tf32", "bfloat16")


def default_device() -> torch.device:
    """Return CUDA or Apple's MPS where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_of_doubles(device: torch.device) -> torch.device:
    """Return a device that computes in float64: this one, or the CPU for Apple's GPUs."""
    return torch.device("cpu") if device.type == "mps" else device


def as_doubles(values: Tensor) -> Tensor:
    """Convert to float64, on the device of `device_of_doubles`."""
    return values.to(device_of_doubles(values.device)).double()


def usable_cores() -> int:
    """Return ``CFLKIT_THREADS``, or the cores that this process may use.

    A container's quota and the process's affinity count, by joblib.

    Raises
    ------
    ValueError
        ``CFLKIT_THREADS`` is not a positive integer.
    """
    given = os.environ.get("CFLKIT_THREADS")
    if not given:
        return cpu_count()
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"CFLKIT_THREADS must be a positive integer, not {given!r}")
    return int(given)


def default_engine(device: torch.device) -> str:
    """Return how jobs run where nobody says it: in threads on a CPU, stacked on anything else."""
    return "threads" if device.type == "cpu" else "stacked"


def engine_to_use(engine: str | None, device: torch.device) -> str:
    """Return the engine: ``CFLKIT_ENGINE`` wins over the one given, and that over the default.

    The variable is there to run a lesson on the other engine without changing it, see `robust`.

    Raises
    ------
    ValueError
        There is no such engine; the message says whether the variable names it.
    """
    given = os.environ.get("CFLKIT_ENGINE")
    if given and given not in ENGINES:
        raise ValueError(f"CFLKIT_ENGINE must be one of {', '.join(ENGINES)}, not {given!r}")
    chosen = given or engine or default_engine(device)
    if chosen not in ENGINES:
        raise ValueError(f"unknown engine {chosen!r}; choose from {', '.join(ENGINES)}")
    return chosen


def perturbation_to_use(seed: int | None) -> int | None:
    """Return the seed of the perturbation: ``CFLKIT_PERTURB`` wins over the one given.

    Raises
    ------
    ValueError
        ``CFLKIT_PERTURB`` is not a whole number.
    """
    given = os.environ.get("CFLKIT_PERTURB")
    if given and not given.isdecimal():
        raise ValueError(f"CFLKIT_PERTURB must be a whole number, not {given!r}")
    return int(given) if given else seed


def perturb(rows: Tensor, jobs: Jobs, parameters: int, round: int, seed: int | None) -> None:
    """Move trained parameters by one unit in the last place, up or down or not at all, in place.

    This stands for another processor, whose sums round in another order. A client's perturbation
    depends on the seed, the client and the round alone, so equal trainings stay equal. Parameters
    that training did not change stay as they are.

    Parameters
    ----------
    rows : Tensor
        ``[J, P + Q]``, the trained models of the jobs.
    jobs : Jobs
        The jobs, with their clients and the models from which they started.
    parameters : int
        P; buffers, such as counters, stay as they are.
    round : int
        The round, from 0.
    seed : int or None
        The seed of the perturbation; None for no perturbation.
    """
    if seed is None:
        return
    starts = jobs.model_of.tolist()
    for row, start, client in zip(rows, starts, jobs.client_of.tolist(), strict=True):
        generator = torch.Generator().manual_seed(integer(seed, PERTURBATION, client, round))
        towards = torch.randint(-1, 2, (parameters,), generator=generator).to(rows)
        trained = row[:parameters]
        moved = trained != jobs.models[start, :parameters]
        row[:parameters] = torch.nextafter(trained, trained + towards * moved)


def spare_memory(device: torch.device) -> int:
    """Return the bytes that a computation may take: half of what the device has free now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return psutil.virtual_memory().available // 2


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, where it is glibc.

    A step of training frees some megabytes of activations and asks for as many again. By default
    glibc gives such blocks back to the system at once, and each step pays for fresh pages: up to a
    fifth of the time of small networks. Larger thresholds (32 and 64 MiB) end that.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # the numbers of malloc.h
        mallopt(mmap_threshold, 32 * 2**20)
        mallopt(trim_threshold, 64 * 2**20)


@contextmanager
def threads_per_operation(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads within an operation for the duration of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that the device does not have, and warn of one that it only emulates.

    Raises
    ------
    ValueError
        An unknown precision, or TF32 without an NVIDIA GPU.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; choose from {', '.join(PRECISIONS)}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(f"precision tf32 needs an NVIDIA GPU, and this is {device}")
    if precision == "bfloat16" and device.type == "cpu" and not multiplies_bfloat16():
        warnings.warn(
            "this processor has no instructions for bfloat16: torch emulates them, and training "
            "takes several times as long as in float32",
            stacklevel=3,
        )


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for products of bfloat16 numbers."""
    capabilities = torch.cpu.get_capabilities()
    names = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    return any(capabilities.get(name, False) for name in names)


def peak_memory(device: torch.device) -> float:
    """Return the largest memory in GiB that this process has had, of the GPU if it computes there.

    Except on Linux and Windows, it is the present memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent process had
        [line] = [x for x in status.read_text(encoding="utf-8").splitlines() if "VmHWM" in x]
        return int(line.split()[1]) / 2**20
    known = psutil.Process().memory_info()
    return getattr(known, "peak_wset", known.rss) / 2**30


@contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Set TF32 on or off for the duration of the block: torch has it on in convolutions."""
    if device.type != "cuda":
        yield
        return
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    # Of the algorithms for a convolution take one that gives the same bits each time
    deterministic = torch.backends.cudnn.deterministic
    try:
        torch.backends.cudnn.deterministic = True
        for switch in switches:
            switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        torch.backends.cudnn.deterministic = deterministic
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the context in which a network computes: bfloat16 if that is the precision."""
    # Without its cache, which would keep weights from before the optimiser's step
    return torch.autocast(device.type, torch.bfloat16, precision == "bfloat16", cache_enabled=False)
