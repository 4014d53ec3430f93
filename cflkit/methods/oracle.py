"""FedAvg within the true clusters, from the first round: what perfect clustering would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cflkit.federation import Federation, Jobs
from cflkit.methods.base import (
    Method,
    average_updates,
    check_weighting,
    client_weights,
    local_updates,
)


@dataclass
class Oracle(Method):
    """Federated averaging in each true cluster.

    Parameters
    ----------
    weighting : {"samples", "equal"}
        As in `FedAvg`.
    """

    partial: ClassVar[bool] = True

    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_weighting(self.weighting)

    def setup(self, federation: Federation, initial: Tensor) -> None:
        """Give every true cluster a copy of the initial model."""
        super().setup(federation, initial)
        self.labels = federation.clusters
        self.models = initial.repeat(int(self.labels.max()) + 1, 1)

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the updates within each cluster."""
        labels = self.labels[jobs.client]
        updates = local_updates(trained, self.models, labels)
        weights = client_weights(self.federation, self.weighting)[jobs.client]
        self.models = average_updates(self.models, updates, labels, weights)
