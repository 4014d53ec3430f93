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
    """A network whose parameters, gradients and buffers are views of flat tensors.

    Loading a model is one copy, an optimiser step one operation on one tensor, however many layers
    the network has.

    Attributes
    ----------
    network : nn.Module
        Computes with whatever ``row`` holds.
    row : Tensor
        ``[P + Q]``, float32.
    leaf : nn.Parameter
        ``[P]``, the parameters as one tensor for an optimiser.
    gradient : Tensor
        ``[P]``, where backward passes add up; the same tensor as ``leaf.grad``.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        parameters = {n: p for n, p in network.named_parameters() if p.requires_grad}
        buffers = dict(network.named_buffers())
        self.parameters = sum(p.numel() for p in parameters.values())
        self.shapes = {name: value.shape for name, value in (parameters | buffers).items()}
        self.parameter_names, self.buffer_names = list(parameters), list(buffers)
        # reshape follows the logical order of the values, whatever their layout in memory
        self.row = join(value.detach().float() for value in (parameters | buffers).values())
        self.leaf = nn.Parameter(self.row[: self.parameters])
        self.gradient = torch.zeros_like(self.leaf)
        self.leaf.grad = self.gradient

        gradients = self.split(self.gradient, self.parameter_names)
        for name, view in self.split(self.row).items():
            if name in buffers:
                owner, _, last = name.rpartition(".")
                # .data has a version counter of its own: BatchNorm moves its statistics in place
                # during the forward pass, which autograd must not take for a change of the others
                network.get_submodule(owner)._buffers[last] = view.data
            else:
                parameters[name].data = view
                parameters[name].grad = gradients[name]

    def load(self, row: Tensor) -> None:
        """Make the network compute with the values of ``row`` (``[P + Q]``), which is copied."""
        self.row.copy_(row)

    def split(self, row: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Views of a row (``[P + Q]``) by name, or of the part of it that holds only ``names``."""
        pieces, start = {}, 0
        for name in self.shapes if names is None else names:
            shape = self.shapes[name]
            pieces[name] = row[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return pieces


def join(pieces: Iterable[Tensor]) -> Tensor:
    """The inverse of `RowModel.split`: all values, one after the other."""
    return torch.cat([piece.reshape(-1) for piece in pieces])
