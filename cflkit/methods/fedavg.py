"""FedAvg, one model for everyone, with FedOpt's server optimisers.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning
of deep networks from decentralized data. AISTATS 2017.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive
federated optimization. ICLR 2021. The server treats the clients' mean update as a pseudo-gradient.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Positive
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Jobs, Server
from cflkit.methods.base import (
    Method,
    Weighting,
    average_updates,
    client_weights,
    local_updates,
)

Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(config=STRICT)
class FedAvg(Method):
    """Federated averaging (BNC, "baseline no clustering", of the OCFL papers).

    Parameters
    ----------
    weighting : {"samples", "equal"}
        The weights of clients: their numbers of training samples (McMahan et al.), or equal weights
        (the OCFL authors).
    server_optimizer : {"sgd", "momentum", "adagrad", "adam", "yogi"}
        The optimiser with which the server applies the mean update. FedAvg is ``sgd`` with
        ``server_lr`` 1.
    server_lr : float, optional
        The server's learning rate η (Reddi et al., Algorithm 2). By default 1, and 0.1 for ``adam``
        and ``yogi``, whose first steps would otherwise be longer than the model.
    beta1, beta2, tau : float
        The momentum β₁, the decay β₂ of the second moment, and the adaptivity τ of that algorithm.
    watch_temperature : bool
        Whether to measure the temperature that OCFL's trigger would see. This compares all pairs of
        clients.
    """

    partial: ClassVar[bool] = True

    weighting: Weighting = "samples"
    server_optimizer: Literal["sgd", "momentum", "adagrad", "adam", "yogi"] = "sgd"
    server_lr: Positive | None = None
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Positive = 1e-3
    watch_temperature: bool = True

    @property
    def settled(self) -> bool:
        """Return True: the labels are those of the first round."""
        return True

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with zero momentum and v₋₁ = τ²."""
        super().setup(server, initial)
        self.momentum = torch.zeros(server.parameters, device=initial.device)
        self.second_moment = torch.full_like(self.momentum, self.tau**2)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the updates, and let the server's optimiser apply the mean."""
        updates = local_updates(trained, self.models, jobs.model_of)  # of the participants
        p = self.server.parameters
        self.scalars = {}
        if self.watch_temperature and len(updates) > 1:  # a single update has no temperature
            self.scalars = {"temperature": temperature(cosine_divergence(updates[:, :p]))}
        weights = client_weights(self.server, self.weighting)[jobs.client_of]
        averaged = average_updates(self.models, updates, jobs.model_of, weights)
        if not (self.server_optimizer == "sgd" and self.rate == 1):
            mean_update = averaged[0, :p] - self.models[0, :p]
            averaged[0, :p] = self.models[0, :p] + self.server_step(mean_update)
        self.models = averaged

    @property
    def rate(self) -> float:
        """Return the server's learning rate."""
        if self.server_lr is not None:
            return self.server_lr
        return 0.1 if self.server_optimizer in ("adam", "yogi") else 1.0

    def server_step(self, update: Tensor) -> Tensor:
        """Compute the step ``[P]`` of the server's optimiser (Reddi et al., Algorithm 2)."""
        if self.server_optimizer == "sgd":
            return self.rate * update
        if self.server_optimizer == "momentum":
            self.momentum = self.beta1 * self.momentum + update
            return self.rate * self.momentum
        self.momentum = self.beta1 * self.momentum + (1 - self.beta1) * update
        squared, v = update**2, self.second_moment
        if self.server_optimizer == "adagrad":
            self.second_moment = v + squared
        elif self.server_optimizer == "adam":
            self.second_moment = self.beta2 * v + (1 - self.beta2) * squared
        else:
            self.second_moment = v - (1 - self.beta2) * squared * torch.sign(v - squared)
        return self.rate * self.momentum / (self.second_moment.sqrt() + self.tau)
