"""What clients are asked by more than one method."""

from __future__ import annotations

from torch import Tensor

from cflkit.federation import Client


def mean_loss(client: Client, model: Tensor) -> Tensor:
    """Return a model's mean loss ``[1]`` on a client's training samples."""
    return client.losses(model).mean()[None]


def loss_gradient(client: Client, model: Tensor, samples: int | None) -> Tensor:
    """Return the gradient ``[P]`` of a client's mean loss on its first training samples."""
    return client.gradient(model, samples)
