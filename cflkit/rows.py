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

    An optimiser step is one operation on one tensor, however many layers the network has. In memory
    the kernels of convolutions lie channels last, which torch's convolutions on a CPU are a third
    faster with; rows hold them in the order of ``parameters()``, whatever the memory.

    Attributes
    ----------
    network : nn.Module
        Computes with the model that was loaded last.
    leaf : nn.Parameter
        ``[P]``, the parameters as one tensor for an optimiser, in the order of memory.
    gradient : Tensor
        ``[P]``, where backward passes add up; the same tensor as ``leaf.grad``.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        parameters = {n: p for n, p in network.named_parameters() if p.requires_grad}
        buffers = dict(network.named_buffers())
        self.shapes = {name: value.shape for name, value in (parameters | buffers).items()}
        self.parameter_names, self.buffer_names = list(parameters), list(buffers)
        self.parameters = sum(p.numel() for p in parameters.values())
        initial = join(value.detach().float() for value in (parameters | buffers).values())

        flat = torch.empty_like(initial)
        self.leaf = nn.Parameter(flat[: self.parameters])
        self.gradient = torch.zeros_like(self.leaf)
        self.leaf.grad = self.gradient
        self.views = {n: channels_last(view) for n, view in self.split(flat).items()}
        gradients = self.split(self.gradient, self.parameter_names)
        for name, view in self.views.items():
            if name in buffers:
                owner, _, last = name.rpartition(".")
                # .data has a version counter of its own: BatchNorm moves its statistics in place
                # during the forward pass, which autograd must not take for a change of the others
                network.get_submodule(owner)._buffers[last] = view.data
            else:
                parameters[name].data = view
                parameters[name].grad = channels_last(gradients[name])
        self.load(initial)

    @property
    def row(self) -> Tensor:
        """A copy of the model, ``[P + Q]``, float32."""
        return join(self.views.values())

    def load(self, row: Tensor) -> None:
        """Make the network compute with the values of ``row`` (``[P + Q]``), which is copied."""
        for name, piece in self.split(row).items():
            self.views[name].copy_(piece)

    def store(self, row: Tensor) -> None:
        """Copy the model into ``row`` (``[P + Q]``)."""
        for name, piece in self.split(row).items():
            piece.copy_(self.views[name])

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


def channels_last(view: Tensor) -> Tensor:
    """The same memory and shape; a convolution's kernel with its channels last in memory."""
    if view.ndim != 4:
        return view
    outputs, inputs, height, width = view.shape
    return view.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
