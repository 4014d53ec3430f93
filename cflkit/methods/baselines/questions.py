"""What more than one method asks: the gradient of a client's loss, and how it is asked for."""

import torch
from torch import Tensor

from cflkit.federation import NOBODY, Ask, Client, Conversation, Jobs, Train, check_finite
from cflkit.methods.base import Method


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
