"""FedAvg within the true clusters from the first round, as if the clustering were perfect."""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT
from cflkit.federation import Server
from cflkit.methods.base import Method, Truth, Weighting, true_labels


@dataclass(config=STRICT)
class Oracle(Method):
    """Federated averaging in each true cluster, by the default `Method.aggregate`.

    Parameters
    ----------
    truth : sequence of int
        ``[m]``, the true cluster of each client, which no other method knows.
    weighting : {"samples", "equal"}
        The weights of clients, as in `FedAvg`.
    """

    partial: ClassVar[bool] = True
    settled = True  # the labels are those of the first round

    truth: Truth
    weighting: Weighting = "samples"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round; every true cluster has a copy of the initial model."""
        super().setup(server, initial)
        self.labels = true_labels(self.truth, server)
        self.models = initial.repeat(int(self.labels.max()) + 1, 1)
