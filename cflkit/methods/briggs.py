"""Federated learning with one hierarchical clustering step, FL+HC (BCL of the OCFL papers).

C. Briggs, Z. Fan, P. Andras: Federated learning with hierarchical clustering of local updates to
improve training on non-IID data. IJCNN 2020.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit.bounds import STRICT, Natural, Positive
from cflkit.divergence import pairwise
from cflkit.federation import Jobs
from cflkit.methods.base import (
    Method,
    Weighting,
    average_updates,
    client_weights,
    local_updates,
)

# Where cosine distances end
OPPOSITE = 2.0
CosineThreshold = Annotated[float, Field(gt=0, le=OPPOSITE)]


@dataclass(config=STRICT)
class Briggs(Method):
    """FedAvg for n rounds, one cut of a dendrogram over the updates, FedAvg in each cluster.

    Parameters
    ----------
    rounds : int
        n, rounds of FedAvg before the one that clusters.
    threshold : float
        The distance at which the dendrogram is cut, in units of ``metric``.
    metric : {"cosine", "euclidean", "manhattan"}
        Distance between updates.
    linkage : {"average", "complete", "single"}
        Distance between groups of them.
    wrong_sign : bool
        Take the cosine similarity for a distance, as the OCFL authors' code does.
    include_buffers : bool
        Whether updates hold BatchNorm's statistics and batch counters too, as in the OCFL authors'
        code.
    weighting : {"samples", "equal"}
        As in `FedAvg`; the OCFL authors weigh clients alike.
    """

    rounds: Natural = 20
    threshold: Positive = 0.05
    metric: Literal["cosine", "euclidean", "manhattan"] = "cosine"
    linkage: Literal["average", "complete", "single"] = "average"
    wrong_sign: bool = False
    include_buffers: bool = False
    weighting: Weighting = "samples"

    @model_validator(mode="after")
    def consistent(self) -> Briggs:
        """Refuse a threshold above all distances, and a sign that a distance does not have."""
        if self.metric == "cosine" and self.threshold > OPPOSITE:
            raise ValueError(
                f"cosine distances end at 2; a threshold of {self.threshold} cuts none"
            )
        if self.wrong_sign and self.metric != "cosine":
            raise ValueError(f"wrong_sign is about cosine similarity, not {self.metric} distance")
        return self

    def clusterer(self) -> clustering.Clusterer:
        """Return what cuts the dendrogram."""
        return clustering.make(
            "agglomerative",
            threshold=self.threshold,
            linkage=self.linkage,
            wrong_sign=self.wrong_sign,
        )

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Cluster in round n (from 0), where all clients trained the global model; average.

        The heights kept in ``scalars`` are those of the distances, whatever sign was clustered.
        """
        updates = local_updates(trained, self.models, self.labels)
        self.scalars = {}
        if t == self.rounds:
            compared = updates if self.include_buffers else updates[:, : self.server.parameters]
            distance = pairwise(compared, self.metric)
            heights = clustering.merge_heights(distance, self.linkage)
            self.scalars = {"merge_heights": "|".join(f"{height:.4g}" for height in heights)}
            self.labels = torch.from_numpy(self.clusterer().fit_predict(distance))
            # Each cluster goes on from the global model, with its own members' updates
            self.models = self.models.repeat(int(self.labels.max()) + 1, 1)
        weights = client_weights(self.server, self.weighting)
        self.models = average_updates(self.models, updates, self.labels, weights)
