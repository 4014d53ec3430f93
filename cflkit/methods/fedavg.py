"""FedAvg, one model for everyone.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning
of deep networks from decentralized data. AISTATS 2017.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT
from cflkit.federation import Jobs
from cflkit.methods.base import Method, Weighting, average_updates, client_weights, local_updates


@dataclass(config=STRICT)
class FedAvg(Method):
    """Federated averaging (BNC, "baseline no clustering", of the OCFL papers).

    Parameters
    ----------
    weighting : {"samples", "equal"}
        The weights of clients: their numbers of training samples (McMahan et al.), or equal weights
        (the OCFL authors).
    """

    partial: ClassVar[bool] = True
    settled = True  # the labels are those of the first round

    weighting: Weighting = "samples"

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Add the mean of the participants' updates to the model."""
        updates = local_updates(trained, self.models, jobs.model_of)
        weights = client_weights(self.server, self.weighting)[jobs.client_of]
        self.models = average_updates(self.models, updates, jobs.model_of, weights)
