"""Federated learning with one hierarchical clustering step, FL+HC (BCL of the OCFL papers).

C. Briggs, Z. Fan, P. Andras: Federated learning with hierarchical clustering of local updates to
improve training on non-IID data. IJCNN 2020.
"""

from typing import Literal, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Natural, Positive
from cflkit.divergence import pairwise
from cflkit.federation import Jobs
from cflkit.methods.base import Method, Weighting, local_updates

# The largest cosine distance
OPPOSITE = 2.0


@dataclass(config=STRICT)
class Briggs(Method):
    """FedAvg for n rounds, then one cut of a dendrogram over the updates, and FedAvg per cluster.

    The default values are those of the OCFL papers' comparison.

    Parameters
    ----------
    rounds : int
        The number n of rounds of FedAvg before the round that clusters.
    threshold : float
        The distance at which the dendrogram is cut, in units of ``metric``.
    metric : {"cosine", "euclidean", "manhattan"}
        The distance between two updates.
    linkage : {"average", "complete", "single"}
        The distance between two groups of updates.
    wrong_sign : bool
        Whether to use the cosine similarity as a distance, as the OCFL authors' code does.
    include_buffers : bool
        Whether updates also contain BatchNorm's statistics and batch counters, as in the OCFL
        authors' code.
    weighting : {"samples", "equal"}
        The weights of clients, as in `FedAvg`. The OCFL authors give all clients equal weights.
    """

    rounds: Natural = 20
    threshold: Positive = 0.05
    metric: Literal["cosine", "euclidean", "manhattan"] = "cosine"
    linkage: Literal["average", "complete", "single"] = "average"
    wrong_sign: bool = False
    include_buffers: bool = False
    weighting: Weighting = "samples"

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """Refuse a threshold above all distances, and a wrong sign unless the metric is cosine."""
        if self.metric == "cosine" and self.threshold > OPPOSITE:
            raise ValueError(
                f"cosine distances are at most 2, so a threshold of {self.threshold} cuts nothing"
            )
        if self.wrong_sign and self.metric != "cosine":
            raise ValueError(f"wrong_sign is about cosine similarity, not {self.metric} distance")
        return self

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the updates; cluster first in round n (from 0), which trains the global model.

        The heights in ``scalars`` are those of the distances, also if the sign is wrong.
        """
        updates = local_updates(trained, self.models, self.labels)
        self.scalars = {}
        if t == self.rounds:
            distance = pairwise(self.vectors(updates), self.metric)
            heights = clustering.merge_heights(distance, self.linkage)
            self.scalars = {"merge_heights": "|".join(f"{height:.4g}" for height in heights)}
            cut = {"threshold": self.threshold, "linkage": self.linkage}
            clusterer = clustering.make("agglomerative", **cut, wrong_sign=self.wrong_sign)
            # Each cluster starts from the global model and adds the updates of its own members
            self.divide(clusterer.fit_predict(distance))
        self.add_means(updates, self.labels, jobs.client_of)
