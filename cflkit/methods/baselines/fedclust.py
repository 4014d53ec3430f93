"""FedClust: cluster once, by the weights of the last layer after a first local training.

M. S. Islam, S. Javaherian, F. Xu, X. Yuan, L. Chen, N.-F. Tzeng: FedClust: Optimizing federated
learning on non-IID data through weight-driven client clustering. IPDPS Workshops 2024. The authors
have published no code.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Positive
from cflkit.divergence import pairwise
from cflkit.federation import Request, Server, Train
from cflkit.methods.base import (
    Method,
    Weighting,
    average_updates,
    client_weights,
    local_updates,
)


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

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        self.clustered = False

    @property
    def settled(self) -> bool:
        """Return whether the clients have been clustered."""
        return self.clustered

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run a round of FedAvg within each cluster; the first round clusters what was trained."""
        if self.stops and t > 0:
            return
        jobs = self.broadcast(t)
        trained = yield Train(jobs)
        if t == 0:
            self.cluster(trained)
        updates = local_updates(trained, self.models, self.labels)
        weights = client_weights(self.server, self.weighting)
        self.models = average_updates(self.models, updates, self.labels, weights)

    def cluster(self, trained: Tensor) -> None:
        """Cluster the trained models ``[m, P + Q]``; each cluster starts from the common model."""
        distance = pairwise(trained[:, self.columns()], "euclidean")
        cut = clustering.make("agglomerative", threshold=self.threshold, linkage=self.linkage)
        self.labels = torch.from_numpy(cut.fit_predict(distance))
        self.models = self.models.repeat(int(self.labels.max()) + 1, 1)
        self.clustered = True

    def columns(self) -> Tensor:
        """Return the places of the compared values in a model's row."""
        places = torch.arange(self.models.shape[1])
        if self.compared == "state":
            return places
        if self.compared == "parameters":
            return places[: self.server.parameters]
        return self.server.last_layer()
