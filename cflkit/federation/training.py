"""What one client does in a round, as a textbook prints it.

The engines run it for many clients: `threads` calls `train_client` as it stands here, for clients
side by side; `stacked` does the same steps for many models at once.
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
    """What networks are trained for.

    Attributes
    ----------
    loss : callable
        From outputs, inputs, labels and a reduction to the loss: ``mean`` over the batch, or
        ``none``, the loss of each sample ``[n]``.
    prediction : callable
        From outputs to what `Federation.predict` returns.
    head : str
        The layer whose input is the embedding.
    """

    loss: Callable[[Tensor, Tensor, Tensor, str], Tensor]
    prediction: Callable[[Tensor], Tensor]
    head: str


def cross_entropy(outputs: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Return the cross-entropy of class scores ``[n, classes]`` with the labels."""
    return F.cross_entropy(outputs, labels, reduction=reduction)


def squared_error(outputs: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Return the squared error of reconstructed pixels ``[n, pixels]``, mean over the pixels."""
    errors = (outputs - inputs.flatten(1)).square().mean(dim=1)
    return errors if reduction == "none" else errors.mean()


TASKS = {
    "classification": Task(cross_entropy, lambda outputs: outputs.softmax(dim=1), "classifier"),
    "reconstruction": Task(squared_error, lambda outputs: outputs, "decoder"),
}


def check_task(task: str, model: str) -> None:
    """Refuse a task that there is not, or a network that is made for another one."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
    if (task == "reconstruction") != (model in AUTOENCODERS):
        raise ValueError(f"a network {model!r} is not made for {task}")


# Inputs, labels, and the weight of each sample (None for ones) of a batch
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
        Holds the model that the client received, and afterwards the trained one.
    batches : iterable
        The batches of all local epochs.
    task : Task
        The loss.
    training : LocalTraining
        The optimiser, the penalty, and which layers are trained.
    anchor : Tensor
        ``[P + Q]``, what the penalty refers to.
    autocast : context manager
        The precision in which the network computes.
    """
    network.network.train()
    parameters = network.trainable(training)
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
    """Return the gradient of the penalty of `LocalTraining` for μ = 1; nothing where it is none.

    Parameters
    ----------
    values : mapping of str to Tensor
        θ, by the names of the trained parameters.
    centre : mapping of str to Tensor
        c, in the same shapes (and perhaps of more parameters).
    penalty : {"none", "proximal", "cosine"}
        As in `LocalTraining`.
    """
    if penalty == "none":
        return {}
    theta = {name: value.detach() for name, value in values.items()}
    if penalty == "proximal":
        return {name: value - centre[name] for name, value in theta.items()}
    # Of ⟨c, θ⟩ / ‖θ‖ the gradient is c / ‖θ‖ − ⟨c, θ⟩ θ / ‖θ‖³
    squares = torch.stack([value.square().sum() for value in theta.values()])
    products = torch.stack([(centre[name] * value).sum() for name, value in theta.items()])
    norm = squares.sum().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    along = products.sum() / norm**2
    return {name: (centre[name] - along * value) / norm for name, value in theta.items()}
