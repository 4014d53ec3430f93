"""A model as one row of numbers: first its P trainable parameters, then its Q buffer values.

Methods of clustered federated learning do arithmetic on models: they subtract, average and compare
them. With rows, this arithmetic is plain tensor code for any network. Buffers (the running
statistics and the batch counter of BatchNorm) come after the parameters. The part ``row[:P]``
therefore holds what an optimiser trains, and what update vectors consist of.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# Constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), as signed 64-bit integers
GOLDEN, FIRST, SECOND = (
    constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# How many values of all rows are hashed at once on a GPU: this takes some hundred MB
HASHED = 2**23


class RowModel:
    """A network whose parameters and buffers can be loaded from a row and stored in a row.

    In the network, the kernels of convolutions have the memory layout "channels last". On a CPU,
    torch's convolutions are a third faster with it. Rows hold the values in the order of
    ``parameters()``, whatever the memory layout.

    BatchNorm is defined for a batch that has one value per channel, such as one sample whose
    features are down to one pixel: there it uses its running statistics, and leaves them unchanged.
    PyTorch refuses to train on such a batch.

    Attributes
    ----------
    network : nn.Module
        The network, which computes with the model that was loaded last.
    parameters : int
        The number of trainable parameters P.
    trainable : dict of str to Parameter
        These parameters, by their names in the network.
    drops_out : bool
        Whether the network has dropout layers, whose masks need keys.
    layout : dict of str to slice
        The position of each parameter and buffer in a row, by its name in the network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network.to(memory_format=torch.channels_last)
        for owner in network.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                owner._buffers[name] = buffer.float()  # a mean of batch counters is not an integer
            if isinstance(owner, _BatchNorm):
                owner.register_forward_pre_hook(use_running_statistics)
                owner.register_forward_hook(train_again)
        self.trainable = {n: p for n, p in network.named_parameters() if p.requires_grad}
        parameters = {name: parameter.detach() for name, parameter in self.trainable.items()}
        buffers = dict(network.named_buffers())
        self.values = parameters | buffers
        self.buffer_names = list(buffers)
        self.parameters = sum(p.numel() for p in parameters.values())
        self.drops_out = any(hasattr(layer, "key") for layer in network.modules())
        ends = accumulate((value.numel() for value in self.values.values()), initial=0)
        places = pairwise(ends)
        self.layout = {name: slice(*at) for name, at in zip(self.values, places, strict=True)}

    @property
    def row(self) -> Tensor:
        """Return a copy of the model, ``[P + Q]``, float32."""
        return join(self.values.values())

    def load(self, row: Tensor) -> None:
        """Copy the values of ``row`` (``[P + Q]``) into the network."""
        for name, piece in self.split(row).items():
            self.values[name].copy_(piece)

    def store(self, row: Tensor) -> None:
        """Copy the values of the network into ``row`` (``[P + Q]``), without a second copy."""
        for name, piece in self.split(row).items():
            piece.copy_(self.values[name])

    def split(self, row: Tensor) -> dict[str, Tensor]:
        """Return views of a row (``[P + Q]``), or of several (``[…, P + Q]``), by name."""
        return {
            name: row[..., part].view((*row.shape[:-1], *self.values[name].shape))
            for name, part in self.layout.items()
        }


def use_running_statistics(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Put BatchNorm into evaluation mode for a batch with one value per channel (a hook)."""
    layer.alone = layer.training and inputs[0].numel() == inputs[0].shape[1]  # type: ignore[assignment]
    if layer.alone:
        layer.eval()


def train_again(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Put BatchNorm back into training mode after such a batch (a hook)."""
    if layer.alone:
        layer.train()


def device_of_doubles(device: torch.device) -> torch.device:
    """Return a device that computes in float64: this one, or the CPU for Apple's GPUs."""
    return torch.device("cpu") if device.type == "mps" else device


def as_doubles(values: Tensor) -> Tensor:
    """Convert to float64, on the device of `device_of_doubles`."""
    return values.to(device_of_doubles(values.device)).double()


def join(pieces: Iterable[Tensor]) -> Tensor:
    """Join the values of all pieces into one row; this is the inverse of `RowModel.split`."""
    return torch.cat([piece.reshape(-1) for piece in pieces])


def finite_rows(rows: Tensor) -> Tensor:
    """Return for each row ``[J]`` whether all of its values are finite.

    The smallest and the largest value tell it, in one pass and without a copy of the rows: both are
    NaN if any value is. Those of all rows, which are asked first, take a quarter of the time.
    """
    if not rows.numel() or torch.isfinite(torch.stack(rows.aminmax())).all():
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    return torch.isfinite(torch.stack(torch.aminmax(rows, dim=1))).all(dim=0)


def digests(models: Tensor) -> list[bytes]:
    """Return one key of 128 bits per row of ``models``; rows with equal bits have equal keys."""
    rows = models.detach().contiguous()
    if rows.device.type != "cpu":
        return digests_on_gpu(rows)
    return [hashlib.blake2b(row.numpy(), digest_size=16).digest() for row in rows]


def digests_on_gpu(rows: Tensor) -> list[bytes]:
    """Compute keys where the rows are, since copying gigabytes takes longer than a round may take.

    A key has two sums over the values of the row, which are taken as integers and multiplied by
    pseudo-random odd numbers.
    """
    bits = rows.view(torch.int32)
    count, length = bits.shape
    sums = torch.zeros(2, count, dtype=torch.int64, device=bits.device)
    step = max(1, HASHED // max(1, count))
    for start in range(0, length, step):
        part = bits[:, start : start + step].long()
        position = torch.arange(start, start + part.shape[1], device=bits.device)
        for half in range(2):
            factors = mix((2 * position + half + 1) * GOLDEN) | 1
            sums[half] += (part * factors).sum(dim=1)
    return [row.tobytes() for row in sums.T.contiguous().cpu().numpy()]


# --- Hashing, and random numbers without a generator ----------------------------------------------


def numbered(keys: Tensor, number: int) -> Tensor:
    """Derive keys from ``keys`` for a number; different numbers give independent keys."""
    step = (number * GOLDEN + 2**63) % 2**64 - 2**63  # wraps around like an addition of int64
    return mix(keys + step)


def mix(values: Tensor) -> Tensor:
    """Hash 64-bit integers value by value, by the finaliser of splitmix64.

    Products of int64 wrap around. Shifts to the right copy the sign bit, and the masks remove these
    copies.
    """
    values = (values ^ ((values >> 30) & (2**34 - 1))) * FIRST
    values = (values ^ ((values >> 27) & (2**37 - 1))) * SECOND
    return values ^ ((values >> 31) & (2**33 - 1))


def uniform(key: Tensor, shape: torch.Size) -> Tensor:
    """Draw numbers in [0, 1) that depend only on a key and on the position in the result.

    The generator is counter-based and has no state. The numbers are therefore the same for one
    model alone and for many models in a stack (``torch.func.vmap``).

    Parameters
    ----------
    key : Tensor
        A scalar of type int64.
    shape : torch.Size
        The shape of the result, whose type is float32.
    """
    position = torch.arange(shape.numel(), device=key.device).view(shape)
    bits = mix(position * GOLDEN + key)
    return ((bits >> 40) & (2**24 - 1)).float() / 2**24


# --- Threads --------------------------------------------------------------------------------------


@contextmanager
def threads_per_operation(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads within an operation for the duration of the block.

    With more threads, a library adds numbers in another order, so that the last bits of a result
    would depend on the machine's cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def blas_libraries() -> ThreadpoolController:
    """Find the libraries of linear algebra of this process, which takes some milliseconds."""
    return ThreadpoolController().select(user_api="blas")
