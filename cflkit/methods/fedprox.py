"""FedProx: federated averaging whose clients are held near the model that they received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated optimization in
heterogeneous networks. MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cflkit.federation import Jobs
from cflkit.methods.fedavg import FedAvg


@dataclass
class FedProx(FedAvg):
    """Federated averaging with a proximal term.

    Parameters
    ----------
    mu : float
        μ: clients minimise their loss plus μ/2 ‖θ − θᵗ‖², squared as in the paper (the code of
        EMD-CFL adds μ times the norms, of each tensor apart).
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu must be a finite number from 0 on, not {self.mu}")

    def broadcast(self, round: int) -> Jobs:
        """The global model to each participant, and how strongly it holds."""
        jobs = super().broadcast(round)
        return replace(jobs, proximal=torch.full((len(jobs),), self.mu))
