"""One clustering of client signatures after a warm-up, as in Tutorial 022 of unbitrium.

O. Y. Laitinen Imanov and contributors: Tutorial 022, Clustered Federated Learning. 2026.
"""

from typing import Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from cflkit._bounds import STRICT, Count, Natural, PositiveShare
from cflkit.clustering import canonical_labels, k_means
from cflkit.divergence import cosine_divergence
from cflkit.federation import NOBODY, Ask, Client, Conversation, Jobs, Request
from cflkit.methods.base import Method
from cflkit.methods.baselines.questions import gradient_of, reports


@dataclass(config=STRICT)
class Signatures(Method):
    """FedAvg, then one clustering of what clients send of its model, and FedAvg per cluster.

    Parameters
    ----------
    warm_up : int
        The number of rounds of FedAvg with all clients before the clustering.
    k : int
        The number of clusters, which the method is told; at most one per client.
    signature : {"gradient", "loss", "model"}
        What a client sends: the gradient of its loss, the loss, or the model after local training.
        Gradients are compared by cosine distances, the others by Euclidean distances.
    samples : int, optional
        The number of training samples in the gradient: the client's first ones, 32 in the tutorial.
    clustering : {"hierarchical", "k-means"}
        Hierarchical clustering of the distances, or k-means of the signatures themselves.
    linkage : {"average", "complete", "single", "ward"}
        That of the hierarchical clustering. The tutorial's ``ward`` is for Euclidean distances.
    restart : bool
        Whether clusters begin with new models, as in the tutorial, and not with the shared one.
    fraction : float
        The share of each cluster's clients, at least one, that train in a round after the warm-up.
    """

    warm_up: Natural = 10
    k: Count = 3
    signature: Literal["gradient", "loss", "model"] = "gradient"
    samples: Count | None = None
    clustering: Literal["hierarchical", "k-means"] = "hierarchical"
    linkage: Literal["average", "complete", "single", "ward"] = "average"
    restart: bool = False
    fraction: PositiveShare = 1.0

    weighting = "samples"

    def asks(self) -> list[Request]:
        """Return the request for the signatures, unless these are trained models."""
        requests: dict[str, list[Request]] = {
            "gradient": [gradient_of(self.samples)],
            "loss": [Ask(NOBODY, question=mean_loss)],
            "model": [],
        }
        return requests[self.signature]

    def round(self, t: int) -> Conversation[None]:
        """Run a round of FedAvg within each cluster; the first round after the warm-up clusters."""
        if t == self.warm_up:
            yield from self.discover()
        yield from super().round(t)

    def discover(self) -> Conversation[None]:
        """Ask for the signatures, cluster them, and give each cluster a model."""
        answers = yield from reports(self, self.labels, self.warm_up)
        # [m, d], without buffers, of which BatchNorm's counters would be the largest difference
        self.signatures = answers[:, : self.server.parameters].cpu()
        self.divide(self.cluster(self.signatures.double().numpy()))
        if self.restart:
            self.models = self.server.initials(len(self.models), self.warm_up)

    def cluster(self, signatures: np.ndarray) -> np.ndarray:
        """Cluster signatures ``[m, d]``; return labels ``[m]`` in order of appearance."""
        if self.clustering == "k-means" or len(signatures) == 1:
            k = min(self.k, len(signatures))
            return canonical_labels(k_means(signatures, k, random_state=0).labels_)
        distances = pdist(signatures)
        if self.signature == "gradient":
            distances = squareform(cosine_divergence(signatures), checks=False)
        return canonical_labels(fcluster(linkage(distances, self.linkage), self.k, "maxclust"))

    def broadcast(self, t: int) -> Jobs:
        """Let all clients train during the warm-up, and afterwards a share of each cluster."""
        if t < self.warm_up or self.fraction == 1:
            return super().broadcast(t)
        drawn = []
        for cluster in range(len(self.models)):
            members = torch.nonzero(self.labels == cluster).flatten()
            count = max(1, int(self.fraction * len(members)))
            drawn.append(self.server.drawn(members, count, t, cluster))
        present = torch.cat(drawn).sort().values
        return Jobs(self.models, self.labels[present], present)


def mean_loss(client: Client, model: torch.Tensor) -> torch.Tensor:
    """Return a model's mean loss ``[1]`` on a client's training samples."""
    return client.losses(model).mean()[None]
