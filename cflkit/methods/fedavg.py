"""FedAvg, one model for everyone, with FedOpt's server optimisers.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning
of deep networks from decentralized data. AISTATS 2017.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive
federated optimization. ICLR 2021. The server treats the clients' mean update as a pseudo-gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs
from cflkit.methods.base import Method, average_updates, check_weighting, client_weights

SERVER_OPTIMISERS = ("sgd", "momentum", "adagrad", "adam", "yogi")


@dataclass
class FedAvg(Method):
    """Federated averaging (BNC, "baseline no clustering", of the OCFL papers).

    Parameters
    ----------
    weighting : {"samples", "equal"}
        Clients weigh by their training samples (McMahan et al.), or alike (the OCFL authors).
    server : {"sgd", "momentum", "adagrad", "adam", "yogi"}
        How the server applies the mean update; ``sgd`` with ``server_lr`` 1 is FedAvg.
    server_lr : float
        η of Reddi et al., Algorithm 2.
    beta1, beta2, tau : float
        β₁, β₂ and τ there (momentum, decay of the second moment, adaptivity).
    """

    partial: ClassVar[bool] = True

    weighting: str = "samples"
    server: str = "sgd"
    server_lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check_weighting(self.weighting)
        if self.server not in SERVER_OPTIMISERS:
            raise ValueError(
                f"unknown server optimiser {self.server!r}; "
                f"known are {', '.join(SERVER_OPTIMISERS)}"
            )

        if not (
            self.server_lr > 0 and self.tau > 0 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        ):
            raise ValueError("needs server_lr > 0, tau > 0, and beta1 and beta2 in [0, 1)")

    def setup(self, federation: Federation, initial: Tensor) -> None:
        """Start from one model, with zero momentum and v₋₁ = τ²."""
        super().setup(federation, initial)
        self.momentum = torch.zeros(federation.parameters, device=initial.device)
        self.second_moment = torch.full_like(self.momentum, self.tau**2)

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the updates and let the server optimiser apply the mean."""
        updates = trained - self.models  # of the participants
        p = self.federation.parameters
        # What OCFL would see: the curve that its trigger reads
        self.scalars = {"temperature": temperature(cosine_divergence(updates[:, :p]))}

        weights = client_weights(self.federation, self.weighting)[jobs.client]
        averaged = average_updates(self.models, updates, self.labels[jobs.client], weights)
        if not (self.server == "sgd" and self.server_lr == 1):
            mean_update = averaged[0, :p] - self.models[0, :p]
            averaged[0, :p] = self.models[0, :p] + self.server_step(mean_update)
        self.models = averaged

    def server_step(self, update: Tensor) -> Tensor:
        """``[P]``: what a mean update adds to the parameters (Reddi et al., Algorithm 2)."""
        if self.server == "sgd":
            return self.server_lr * update
        if self.server == "momentum":
            self.momentum = self.beta1 * self.momentum + update
            return self.server_lr * self.momentum
        self.momentum = self.beta1 * self.momentum + (1 - self.beta1) * update
        squared, v = update**2, self.second_moment
        if self.server == "adagrad":
            self.second_moment = v + squared
        elif self.server == "adam":
            self.second_moment = self.beta2 * v + (1 - self.beta2) * squared
        else:
            self.second_moment = v - (1 - self.beta2) * squared * torch.sign(v - squared)
        return self.server_lr * self.momentum / (self.second_moment.sqrt() + self.tau)
