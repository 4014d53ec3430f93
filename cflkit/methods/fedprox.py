"""FedProx: federated averaging with a term that keeps clients near the model that they received.

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
        The strength μ. Clients minimise their loss plus μ/2 ‖θ − θᵗ‖², where the norm is squared as
        in the paper. The code of EMD-CFL instead adds μ times the norm of each tensor.
    """

    mu: NonNegative = 0.01

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of federated averaging, with the proximal term in the local training."""
        jobs = super().broadcast(t)
        if not self.mu:
            return jobs  # unchanged, so that the lockstep shares them with federated averaging
        training = dataclasses.replace(self.server.training, penalty="proximal", strength=self.mu)
        return dataclasses.replace(jobs, training=training)
