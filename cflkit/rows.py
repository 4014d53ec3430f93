"""A model as one row of numbers: first its P trainable parameters, then its Q buffer values.

Methods of clustered federated learning do arithmetic on models: they subtract, average and compare
them. On rows that arithmetic is plain tensor code, for any network. Buffers (the running statistics
and the batch counter of BatchNorm) stand behind the parameters, so ``row[:P]`` is what an optimiser
trains and what update vectors hold.
"""

from __future__ import annotations

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
        self.buffer_names = set(buffers)
        # reshape follows the logical order of the values, whatever their layout in memory
        self.row = torch.cat(
            [value.detach().reshape(-1).float() for value in (parameters | buffers).values()]
        )
        self.leaf = nn.Parameter(self.row[: self.parameters])
        self.gradient = torch.zeros_like(self.leaf)
        self.leaf.grad = self.gradient

        gradients = self.split(self.gradient)
        for name, view in self.split(self.row).items():
            if name in buffers:
                owner, _, last = name.rpartition(".")
                network.get_submodule(owner)._buffers[last] = view
            else:
                parameters[name].data = view
                parameters[name].grad = gradients[name]

    def load(self, row: Tensor) -> None:
        """Make the network compute with the values of ``row`` (``[P + Q]``), which is copied."""
        self.row.copy_(row)

    def split(self, row: Tensor) -> dict[str, Tensor]:
        """Views of a row (``[P + Q]``, or only its first ``[P]``) by the names of the network."""
        pieces, start = {}, 0
        for name, shape in self.shapes.items():
            if start >= len(row):
                break
            pieces[name] = row[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return pieces

    def join(self, pieces: dict[str, Tensor]) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([pieces[name].reshape(-1) for name in self.shapes if name in pieces])
