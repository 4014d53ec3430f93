"""FedProx: federated averaging with a term that keeps clients near the model that they received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated optimization in
heterogeneous networks. MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

import dataclasses

from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT, NonNegative
from cflkit.federation import Jobs, LocalTraining, Server
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
        return jobs.replace(training=proximal_training(self.server, self.mu))


def proximal_training(server: Server, mu: float) -> LocalTraining | None:
    """Return the federation's local training with a proximal term of strength μ.

    Without a term, this is None: jobs then have the federation's own training, and the lockstep
    shares them with federated averaging.
    """
    if not mu:
        return None
    return dataclasses.replace(server.training, penalty="proximal", strength=mu)
