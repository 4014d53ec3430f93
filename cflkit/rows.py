"""A model as one row of numbers: first its P trainable parameters, then its Q buffer values.

Methods of clustered federated learning do arithmetic on models: they subtract, average and compare
them. On rows that arithmetic is plain tensor code, for any network. Buffers (the running statistics
and the batch counter of BatchNorm) stand behind the parameters, so ``row[:P]`` is what an optimiser
trains and what update vectors hold.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class RowModel:
    """A network that takes its parameters and buffers from a row, and gives them back.

    In memory the kernels of convolutions lie channels last, which torch's convolutions on a CPU are
    a third faster with; rows hold them in the order of ``parameters()``, whatever the memory.

    Attributes
    ----------
    network : nn.Module
        Computes with the model that was loaded last.
    parameters : int
        P.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network.to(memory_format=torch.channels_last)
        for owner in network.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                owner._buffers[name] = buffer.float()  # the mean of batch counters is no integer
        parameters = {n: p.detach() for n, p in network.named_parameters() if p.requires_grad}
        buffers = dict(network.named_buffers())
        self.values = parameters | buffers
        self.shapes = {name: value.shape for name, value in self.values.items()}
        self.parameter_names, self.buffer_names = list(parameters), list(buffers)
        self.parameters = sum(p.numel() for p in parameters.values())

    @property
    def row(self) -> Tensor:
        """A copy of the model, ``[P + Q]``, float32."""
        return join(self.values.values())

    def load(self, row: Tensor) -> None:
        """Make the network compute with the values of ``row`` (``[P + Q]``), which is copied."""
        for name, piece in self.split(row).items():
            self.values[name].copy_(piece)

    def store(self, row: Tensor) -> None:
        """Copy the model into ``row`` (``[P + Q]``)."""
        for name, piece in self.split(row).items():
            piece.copy_(self.values[name])

    def pull(self, row: Tensor, mu: float) -> None:
        """Add μ (θ − ``row``) to the gradients: those of μ/2 ‖θ − ``row``‖²."""
        centre = self.split(row[: self.parameters], self.parameter_names)
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - centre[name], alpha=mu)

    def split(self, row: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Views of a row (``[P + Q]``) by name, or of the part of it that holds only ``names``.

        Of several rows at once, too: ``[…, P + Q]``.
        """
        pieces, start = {}, 0
        for name in self.shapes if names is None else names:
            shape = self.shapes[name]
            piece = row[..., start : start + shape.numel()]
            pieces[name] = piece.view((*row.shape[:-1], *shape))
            start += shape.numel()
        return pieces


def join(pieces: Iterable[Tensor]) -> Tensor:
    """The inverse of `RowModel.split`: all values, one after the other."""
    return torch.cat([piece.reshape(-1) for piece in pieces])
