"""Federated learning with one hierarchical clustering step, FL+HC (BCL of the OCFL papers).

C. Briggs, Z. Fan, P. Andras: Federated learning with hierarchical clustering of local updates to
improve training on non-IID data. IJCNN 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cflkit import clustering
from cflkit.divergence import METRICS, pairwise
from cflkit.federation import Jobs
from cflkit.methods.base import (
    Method,
    average_updates,
    check_weighting,
    client_weights,
    local_updates,
)


@dataclass
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

    rounds: int = 20
    threshold: float = 0.05
    metric: str = "cosine"
    linkage: str = "average"
    wrong_sign: bool = False
    include_buffers: bool = False
    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_weighting(self.weighting)
        self.clusterer()
        if not isinstance(self.rounds, int) or self.rounds < 0:
            raise ValueError(f"rounds must be an integer and not negative, not {self.rounds!r}")
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}; known are {', '.join(METRICS)}")
        if self.metric == "cosine" and self.threshold > 2:
            raise ValueError(
                f"cosine distances end at 2; a threshold of {self.threshold} cuts none"
            )
        if self.wrong_sign and self.metric != "cosine":
            raise ValueError(f"wrong_sign is about cosine similarity, not {self.metric} distance")

    def clusterer(self) -> clustering.Clusterer:
        """The cut."""
        return clustering.make(
            "agglomerative",
            threshold=self.threshold,
            linkage=self.linkage,
            wrong_sign=self.wrong_sign,
        )

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """Cluster in round n (from 0), where all clients trained the global model; average.

        The heights kept in ``scalars`` are those of the distances, whatever sign was clustered.
        """
        updates = local_updates(trained, self.models, self.labels)
        self.scalars = {}
        if round == self.rounds:
            compared = updates if self.include_buffers else updates[:, : self.federation.parameters]
            distance = pairwise(compared, self.metric)
            heights = clustering.merge_heights(distance, self.linkage)
            self.scalars = {"merge_heights": "|".join(f"{height:.4g}" for height in heights)}
            self.labels = torch.from_numpy(self.clusterer().fit_predict(distance))
            # Each cluster goes on from the global model, with its own members' updates
            self.models = self.models.repeat(int(self.labels.max()) + 1, 1)
        weights = client_weights(self.federation, self.weighting)
        self.models = average_updates(self.models, updates, self.labels, weights)
