"""The local training of one client in a round, written as in a textbook.

The engines run this training for many clients. The engine of `threads` calls `train_client` for
clients in parallel. The engine of `stacked` does the same steps for many models at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cflkit.federation.jobs import LocalTraining
from cflkit.federation.rows import RowModel
from cflkit.models import AUTOENCODERS


@dataclass(frozen=True)
class Task:
    """A task for which networks are trained.

    Attributes
    ----------
    loss : callable
        The function from outputs, inputs, labels and a reduction to the loss. The reduction
        ``mean`` gives the mean over the batch, and ``none`` gives the loss of each sample ``[n]``.
    prediction : callable
        The function from outputs to the predictions that `Federation.predict` returns.
    head : str
        The name of the layer whose input is the embedding.
    """

    loss: Callable[[Tensor, Tensor, Tensor, str], Tensor]
    prediction: Callable[[Tensor], Tensor]
    head: str


def cross_entropy(outputs: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Compute the cross-entropy of class scores ``[n, classes]`` and the labels."""
    return F.cross_entropy(outputs, labels, reduction=reduction)


def squared_error(outputs: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Compute the mean squared error over the pixels of reconstructions ``[n, pixels]``."""
    errors = (outputs - inputs.flatten(1)).square().mean(dim=1)
    return errors if reduction == "none" else errors.mean()


TASKS = {
    "classification": Task(cross_entropy, lambda outputs: outputs.softmax(dim=1), "classifier"),
    "reconstruction": Task(squared_error, lambda outputs: outputs, "decoder"),
}


def check_task(task: str, model: str) -> None:
    """Refuse an unknown task, or a network that is made for another task."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose from {', '.join(TASKS)}")
    if (task == "reconstruction") != (model in AUTOENCODERS):
        raise ValueError(f"a network {model!r} is not made for {task}")


# Inputs, labels and weights of a batch's samples; None means that all weights are one
Samples = tuple[Tensor, Tensor, Tensor | None]


def train_client(
    network: RowModel,
    batches: Iterable[Samples],
    task: Task,
    training: LocalTraining,
    anchor: Tensor,
    autocast: AbstractContextManager,
) -> None:
    """Train a network on a client's batches, one step per batch.

    Parameters
    ----------
    network : RowModel
        The network with the model that the client received; afterwards, it has the trained model.
    batches : iterable
        The batches of all local epochs.
    task : Task
        The task, which defines the loss.
    training : LocalTraining
        The optimiser and the penalty.
    anchor : Tensor
        ``[P + Q]``, the model to which the penalty refers.
    autocast : context manager
        The precision in which the network computes.
    """
    network.network.train()
    parameters = network.trainable
    optimizer = training.build(parameters.values())
    centre = network.split(anchor)
    for inputs, labels, weights in batches:
        optimizer.zero_grad()
        with autocast:
            outputs = network.network(inputs)
            if weights is None:
                loss = task.loss(outputs, inputs, labels, "mean")
            else:
                loss = (weights * task.loss(outputs, inputs, labels, "none")).mean()
        loss.backward()
        for name, direction in penalty_directions(parameters, centre, training.penalty).items():
            grad = parameters[name].grad
            assert grad is not None
            grad.add_(direction, alpha=training.strength)
        optimizer.step()


def penalty_directions(
    values: Mapping[str, Tensor], centre: Mapping[str, Tensor], penalty: str
) -> dict[str, Tensor]:
    """Compute the gradient of the penalty of `LocalTraining` for μ = 1; empty without a penalty.

    Parameters
    ----------
    values : mapping of str to Tensor
        The trained parameters θ by name.
    centre : mapping of str to Tensor
        The anchor c by the same names, in the same shapes. It may have further parameters.
    penalty : {"none", "proximal", "cosine", "linear"}
        The penalty, as in `LocalTraining`.
    """
    if penalty == "none":
        return {}
    theta = {name: value.detach() for name, value in values.items()}
    if penalty == "proximal":
        return {name: value - centre[name] for name, value in theta.items()}
    if penalty == "linear":
        return {name: centre[name] for name in theta}
    # The gradient of ⟨c, θ⟩ / ‖θ‖ is c / ‖θ‖ − ⟨c, θ⟩ θ / ‖θ‖³
    squares = torch.stack([value.square().sum() for value in theta.values()])
    products = torch.stack([(centre[name] * value).sum() for name, value in theta.items()])
    norm = squares.sum().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    along = products.sum() / norm / norm  # the square of the smallest norm would be zero
    return {name: (centre[name] - along * value) / norm for name, value in theta.items()}
