"""FedClust: cluster once, by the weights of the last layer after a first local training.

M. S. Islam, S. Javaherian, F. Xu, X. Yuan, L. Chen, N.-F. Tzeng: FedClust: Optimizing federated
learning on non-IID data through weight-driven client clustering. IPDPS Workshops 2024. The authors
have published no code.
"""

from typing import Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Positive
from cflkit.divergence import pairwise
from cflkit.federation import Conversation, Jobs
from cflkit.methods.base import Method, Weighting


@dataclass(config=STRICT)
class FedClust(Method):
    """One clustering of the models that clients train in the first round, and FedAvg per cluster.

    Parameters
    ----------
    threshold : float
        The distance λ from which two clusters are not merged, in the units of the parameters.
    compared : {"last layer", "parameters", "state"}
        What the server compares: the weights and biases of the last layer, as in the paper, all
        parameters, or the whole state with BatchNorm's buffers, as in the code of EMD-CFL's
        comparison. Clients send whole models here, with which the first round also averages. In the
        paper, they first send the last layer alone.
    linkage : {"complete", "average", "single"}
        The linkage of the hierarchical clustering of Euclidean distances.
    stops : bool
        Whether the models stay as they are after the first round, as in the code of EMD-CFL's
        comparison. Later rounds then train nothing.
    weighting : {"samples", "equal"}
        The weights of clients, as in `FedAvg`.
    """

    threshold: Positive = 1.0
    compared: Literal["last layer", "parameters", "state"] = "last layer"
    linkage: Literal["complete", "average", "single"] = "complete"
    stops: bool = False
    weighting: Weighting = "samples"

    def round(self, t: int) -> Conversation[None]:
        """Run a round of FedAvg within each cluster, unless the models stay as they are."""
        self.scalars = {}
        if not (self.stops and t > 0):
            yield from super().round(t)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Average within clusters; the first round clusters what was trained."""
        if t == 0:
            self.cluster(trained)
        super().aggregate(t, jobs, trained)

    def cluster(self, trained: Tensor) -> None:
        """Cluster the trained models ``[m, P + Q]``; each cluster starts from the common model."""
        p = self.server.parameters
        columns: Tensor | slice = slice(p if self.compared == "parameters" else None)
        if self.compared == "last layer":
            columns = self.server.last_layer()
        distance = pairwise(trained[:, columns], "euclidean")
        cut = clustering.make("agglomerative", threshold=self.threshold, linkage=self.linkage)
        self.divide(cut.fit_predict(distance))
        self.scalars["distances"] = "|".join(f"{value:.4g}" for value in distance.flat)
