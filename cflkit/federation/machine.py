"""The machine that computes: its device, its cores, and the precision of its products."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cflkit._bounds import Mistake

ENGINES = ("threads", "stacked")
# The largest block of memory in bytes that the C library keeps for the next step
KEPT_BLOCK = 32 * 2**20


class SettingError(Mistake, ValueError):
    """A setting has a wrong value, or one that does not fit this machine, the model or the data."""


def default_device() -> torch.device:
    """Return CUDA or Apple's MPS where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def usable_cores() -> int:
    """Return ``CFLKIT_THREADS``, or the cores that this process may use.

    A container's quota and the process's affinity count, by joblib.

    Raises
    ------
    SettingError
        ``CFLKIT_THREADS`` is not a positive integer.
    """
    setting = os.environ.get("CFLKIT_THREADS")
    if not setting:
        import joblib  # a twentieth of a second, which a table of runs need not wait for

        return joblib.cpu_count()
    if not setting.isdecimal() or int(setting) < 1:
        raise SettingError(f"CFLKIT_THREADS must be a positive integer, not {setting!r}")
    return int(setting)


def engine_to_use(engine: str | None, device: torch.device) -> str:
    """Return the engine that is given, or the fastest one: threads on a CPU, and stacked elsewhere.

    Another one is a `ValueError`.
    """
    engine = engine or ("threads" if device.type == "cpu" else "stacked")
    if engine not in ENGINES:
        raise SettingError(f"unknown engine {engine!r}; choose from {', '.join(ENGINES)}")
    return engine


def product_library() -> str:
    """Return which library multiplies the matrices of large layers, ``BLAS`` or ``oneDNN``.

    PyTorch has MKL for BLAS, which does not use all of an AMD processor: on one core of a Zen 5, it
    makes 105 GFLOP/s, and oneDNN makes 230. On an Intel Xeon, both make 120. The maker alone
    decides, since a measurement could change the last bits from run to run.
    """
    amd = torch.cpu.get_capabilities().get("cpu_name", "").startswith("AMD")
    return "oneDNN" if amd and hasattr(torch.ops.mkldnn, "_linear_pointwise") else "BLAS"


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, where it is glibc.

    A step of training frees some megabytes of activations and asks for as many again. By default
    glibc gives such blocks back to the system at once, and each step pays for fresh pages: up to a
    fifth of the time of small networks. Larger thresholds end that for blocks of up to 32 MiB, the
    most that glibc allows. For the gradients of larger layers, see `fast_linear`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # the numbers of malloc.h
        mallopt(mmap_threshold, KEPT_BLOCK)
        mallopt(trim_threshold, 2 * KEPT_BLOCK)


@contextmanager
def products_on_cuda(precision: str) -> Iterator[None]:
    """Set TF32 on or off for the duration of the block: torch has it on in convolutions."""
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
