"""SCAFFOLD: one model for everyone, with terms that correct the drift of local training.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: SCAFFOLD: stochastic
controlled averaging for federated learning. ICML 2020, Algorithm 1 with Option II.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Positive
from cflkit.federation import Jobs, LocalTraining, Server
from cflkit.methods.base import Method, average_updates, local_updates


@dataclass(config=STRICT)
class Scaffold(Method):
    """Federated averaging in which clients add the difference of two control variates to gradients.

    A client's control variate cᵢ estimates the gradient of its own loss, and the server's c that of
    all clients. Local steps follow g − cᵢ + c, so they do not drift to the client's own optimum.
    Control variates are gradients of the last local training. The paper computes them for plain
    SGD. With momentum, the divisor is the sum of steps that a constant gradient would make.

    In the paper, clients keep their control variates and send the changes. Here the server computes
    them from the updates and sends c − cᵢ. So a client receives two vectors and sends one.

    Parameters
    ----------
    server_lr : float
        The server's learning rate η_g.

    Attributes
    ----------
    variates : Tensor
        ``[m, P + Q]``, the control variates of the clients. Those of the buffers are not used.
    common : Tensor
        ``[P + Q]``, the control variate of the server, which is their mean.
    """

    partial: ClassVar[bool] = True
    settled = True  # the labels are those of the first round

    server_lr: Positive = 1.0

    def enter(self, server: Server) -> None:
        """Take part in a federation whose clients train by SGD, for which the method is defined.

        Raises
        ------
        ValueError
            They train by another optimiser, or with a penalty, whose place the method needs.
        """
        if (server.training.optimizer, server.training.penalty) != ("sgd", "none"):
            raise ValueError("Scaffold is defined for local training by sgd, without a penalty")
        super().enter(server)

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with control variates of zero."""
        super().setup(server, initial)
        self.variates = torch.zeros_like(initial).repeat(server.clients, 1)
        self.common = torch.zeros_like(initial)

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of federated averaging, with the term ⟨c − cᵢ, θ⟩ in the loss."""
        jobs = super().broadcast(t)
        training = replace(self.server.training, penalty="linear", strength=1.0)
        return jobs.replace(training=training, anchor=self.common - self.variates[jobs.client_of])

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the models and the control variates.

        The server knows the updates, so it computes the clients' new control variates itself.
        """
        present = jobs.client_of
        counts = self.server.sizes[present]
        travelled = torch.stack(
            [length_of_steps(self.server.training, int(count)) for count in counts]
        )
        updates = local_updates(trained, self.models, jobs.model_of)
        change = -self.common - updates / travelled[:, None].to(updates)
        self.variates = self.variates.clone()
        self.variates[present] += change
        self.common = self.common + change.sum(dim=0) / self.server.clients
        mean = average_updates(self.models, updates, jobs.model_of, torch.ones(len(present)))
        p = self.server.parameters  # the rest, BatchNorm's statistics, is averaged
        mean[:, :p] = self.models[:, :p] + self.server_lr * (mean - self.models)[:, :p]
        self.models = mean


def length_of_steps(training: LocalTraining, samples: int) -> Tensor:
    """Return how far a constant gradient of length 1 leads in a local training with SGD.

    Without momentum, this is the number of steps times the learning rate.
    """
    steps = training.epochs * -(-samples // training.batch_size)
    number = torch.arange(1, steps + 1, dtype=torch.float64)
    momentum = training.momentum
    return training.lr * ((1 - momentum**number) / (1 - momentum)).sum()
