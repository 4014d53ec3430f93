"""FedOpt: federated averaging in which an optimiser of the server applies the mean update.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive
federated optimization. ICLR 2021, Algorithm 2.
"""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Momentum, Positive
from cflkit.federation import Jobs, Server
from cflkit.methods.fedavg import FedAvg


@dataclass(config=STRICT)
class FedOpt(FedAvg):
    """Federated averaging whose mean update is a pseudo-gradient for the server.

    Parameters
    ----------
    optimizer : {"sgd", "momentum", "adagrad", "adam", "yogi"}
        The server's optimiser. FedAvg is ``sgd`` with ``lr`` 1.
    lr : float, optional
        The server's learning rate η. By default 1, and 0.1 for ``adam`` and ``yogi``, whose first
        steps would otherwise be longer than the model.
    beta1, beta2, tau : float
        The momentum β₁, the decay β₂ of the second moment, and the adaptivity τ.
    """

    optimizer: Literal["sgd", "momentum", "adagrad", "adam", "yogi"] = "adam"
    lr: Positive | None = None
    beta1: Momentum = 0.9
    beta2: Momentum = 0.99
    tau: Positive = 1e-3

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with zero momentum and v₋₁ = τ²."""
        super().setup(server, initial)
        self.momentum = torch.zeros(server.parameters, device=initial.device)
        self.second_moment = torch.full_like(self.momentum, self.tau**2)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the updates, and let the server's optimiser apply the mean."""
        p, before = self.server.parameters, self.models
        super().aggregate(t, jobs, trained)
        self.models[0, :p] = before[0, :p] + self.step(self.models[0, :p] - before[0, :p])

    def step(self, update: Tensor) -> Tensor:
        """Compute the step ``[P]`` of the server's optimiser from the mean update."""
        rate = self.lr or (0.1 if self.optimizer in ("adam", "yogi") else 1.0)
        if self.optimizer == "sgd":
            return rate * update
        if self.optimizer == "momentum":
            self.momentum = self.beta1 * self.momentum + update
            return rate * self.momentum
        self.momentum = self.beta1 * self.momentum + (1 - self.beta1) * update
        squared, v = update**2, self.second_moment
        if self.optimizer == "adagrad":
            self.second_moment = v + squared
        elif self.optimizer == "adam":
            self.second_moment = self.beta2 * v + (1 - self.beta2) * squared
        else:
            self.second_moment = v - (1 - self.beta2) * squared * torch.sign(v - squared)
        return rate * self.momentum / (self.second_moment.sqrt() + self.tau)
