"""FedProx: federated averaging whose clients are held near the model that they received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated optimization in
heterogeneous networks. MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

import dataclasses

from pydantic.dataclasses import dataclass

from cflkit.bounds import STRICT, NonNegative
from cflkit.federation import Jobs
from cflkit.methods.fedavg import FedAvg


@dataclass(config=STRICT)
class FedProx(FedAvg):
    """Federated averaging with a proximal term.

    Parameters
    ----------
    mu : float
        μ: clients minimise their loss plus μ/2 ‖θ − θᵗ‖², squared as in the paper (the code of
        EMD-CFL adds μ times the norms, of each tensor apart).
    """

    mu: NonNegative = 0.01

    def broadcast(self, t: int) -> Jobs:
        """Return the global model for each participant, and how strongly it holds them."""
        jobs = super().broadcast(t)
        if not self.mu:
            return jobs  # the very jobs of federated averaging
        training = dataclasses.replace(self.server.training, penalty="proximal", strength=self.mu)
        return dataclasses.replace(jobs, training=training)
