"""FedProx: federated averaging with a term that keeps clients near the model that they received.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated optimization in
heterogeneous networks. MLSys 2020, Algorithm 2.
"""

import dataclasses
from typing import Literal

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
        The strength μ. Clients minimise their loss plus μ/2 ‖θ − θᵗ‖².
    squared : bool
        Whether the norm is squared, as in the paper. The code of EMD-CFL's comparison instead adds
        μ times the norm of each tensor's step.
    """

    mu: NonNegative = 0.01
    squared: bool = True

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of federated averaging, with the proximal term in the local training."""
        jobs = super().broadcast(t)
        return jobs.replace(training=proximal_training(self.server, self.mu, self.squared))


def proximal_training(server: Server, mu: float, squared: bool = True) -> LocalTraining | None:
    """Return the federation's local training with a proximal term of strength μ, as in `FedProx`.

    Without a term, this is None: jobs then have the federation's own training, and the lockstep
    shares them with federated averaging.
    """
    if not mu:
        return None
    penalty: Literal["proximal", "norms"] = "proximal" if squared else "norms"
    return dataclasses.replace(server.training, penalty=penalty, strength=mu)
