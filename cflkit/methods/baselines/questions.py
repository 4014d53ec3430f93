"""What clients are asked by more than one method, and how they weight models by their losses."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cflkit.federation import (
    NOBODY,
    Ask,
    Client,
    Conversation,
    Jobs,
    LocalTraining,
    Train,
    check_finite,
)
from cflkit.methods.base import Method


def mean_loss(client: Client, model: Tensor) -> Tensor:
    """Return a model's mean loss ``[1]`` on a client's training samples."""
    return client.losses(model).mean()[None]


def loss_gradient(client: Client, model: Tensor, samples: int | None) -> Tensor:
    """Return the gradient ``[P]`` of a client's mean loss on its first training samples."""
    return client.gradient(model, samples)


def gradient_of(samples: int | None) -> Ask:
    """Return the request for the gradient of the loss on so many samples."""
    return Ask(NOBODY, question=loss_gradient, options={"samples": samples})


def reports(method: Method, rows: Tensor, t: int) -> Conversation[Tensor]:
    """Ask all clients for what the method asks, or to train the models in these rows ``[m]``.

    The answers are ``[m, D]``; `Diverged` tells if one is not finite.
    """
    [request] = method.asks() or [Train(NOBODY)]
    jobs = Jobs(method.models, rows, torch.arange(method.server.clients))
    answers = torch.stack(list((yield request.only(jobs))))
    check_finite(answers, jobs, t)
    return answers


def importance(
    losses: Sequence[Tensor], training: LocalTraining, counted: str, smoother: float
) -> Tensor:
    """Compute a client's weights ``[k]`` from the losses ``[n]`` of each of the centres."""
    whole = torch.stack(list(losses)).cpu()
    if counted == "batches":
        parts = whole.split(training.batch_size, dim=1)
        whole = torch.cat([p.mean(dim=1, keepdim=True).expand_as(p) for p in parts], dim=1)
    counts = whole.argmin(dim=0).bincount(minlength=len(whole))
    weights = (counts / counts.sum()).clamp_min(smoother)
    return weights / weights.sum()
