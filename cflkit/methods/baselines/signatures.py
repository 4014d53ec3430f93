"""One clustering of client signatures after a warm-up, as in Tutorial 022 of unbitrium.

O. Y. Laitinen Imanov and contributors: Tutorial 022, Clustered Federated Learning. 2026.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import KMeans
from torch import Tensor

from cflkit._bounds import STRICT, Count, Natural
from cflkit.clustering import canonical_labels
from cflkit.divergence import cosine_divergence
from cflkit.federation import (
    Ask,
    Client,
    Jobs,
    Request,
    Server,
    Train,
    check_finite,
)
from cflkit.methods.base import Method, average_updates, local_updates


@dataclass(config=STRICT)
class Signatures(Method):
    """FedAvg for some rounds, one clustering of the clients' signatures, and FedAvg per cluster.

    Parameters
    ----------
    warm_up : int
        The number of rounds of FedAvg with all clients before the clustering.
    k : int
        The number of clusters, which the method is told; at most one per client.
    signature : {"gradient", "loss", "model"}
        What a client sends about the model of the warm-up: the gradient of its loss, the loss, or
        the model after local training. Gradients are compared by their cosine distance, the others
        by their Euclidean distance.
    samples : int, optional
        The number of training samples in the gradient, in the order in which the client has them.
        By default all; the tutorial takes the first batch of 32.
    clustering : {"hierarchical", "k-means"}
        Hierarchical clustering of the distances, or k-means of the signatures themselves.
    linkage : {"average", "complete", "single", "ward"}
        The linkage of the hierarchical clustering. The tutorial's ``ward`` is defined only for
        Euclidean distances.
    restart : bool
        Whether each cluster begins with a new initial model, as in the tutorial, instead of the
        model of the warm-up.
    fraction : float
        The share of each cluster's clients that train in a round after the warm-up; at least one
        client does.

    Attributes
    ----------
    signatures : Tensor
        ``[m, d]``, what the clients sent; empty before the clustering.
    """

    warm_up: Natural = 10
    k: Count = 3
    signature: Literal["gradient", "loss", "model"] = "gradient"
    samples: Count | None = None
    clustering: Literal["hierarchical", "k-means"] = "hierarchical"
    linkage: Literal["average", "complete", "single", "ward"] = "average"
    restart: bool = False
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        self.signatures = torch.empty(0)

    @property
    def settled(self) -> bool:
        """Return whether the clients have been clustered."""
        return len(self.signatures) > 0

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run a round of FedAvg within each cluster; the first round after the warm-up clusters."""
        if t == self.warm_up:
            yield from self.discover()
        jobs = self.broadcast(t)
        trained = yield Train(jobs)
        updates = local_updates(trained, self.models, jobs.model_of)
        weights = self.server.sizes[jobs.client_of]
        self.models = average_updates(self.models, updates, jobs.model_of, weights)

    def discover(self) -> Generator[Request, Any, None]:
        """Ask for the signatures, cluster them, and give each cluster a model."""
        everyone = torch.arange(self.server.clients)
        jobs = Jobs(self.models, self.labels, everyone)
        if self.signature == "gradient":
            options = {"samples": self.samples}
            answers = yield Ask(jobs, question=loss_gradient, options=options)
        elif self.signature == "loss":
            answers = yield Ask(jobs, question=mean_loss)
        else:
            answers = yield Train(jobs)
        self.signatures = torch.stack(list(answers)).cpu()
        check_finite(self.signatures, jobs, self.warm_up)
        self.labels = torch.from_numpy(self.cluster(self.signatures.double().numpy()))
        clusters = int(self.labels.max()) + 1
        if self.restart:
            self.models = self.server.initials(clusters, self.warm_up)
        else:
            self.models = self.models.repeat(clusters, 1)

    def cluster(self, signatures: np.ndarray) -> np.ndarray:
        """Cluster signatures ``[m, d]``; return labels ``[m]`` in order of appearance."""
        if self.clustering == "k-means":
            k = min(self.k, len(signatures))
            labels = KMeans(k, n_init=10, random_state=0).fit_predict(signatures)
        elif len(signatures) > 1:
            tree = linkage(self.distances(signatures), self.linkage)
            labels = fcluster(tree, self.k, "maxclust")
        else:
            labels = np.zeros(1)
        return canonical_labels(labels)

    def distances(self, signatures: np.ndarray) -> np.ndarray:
        """Compute the distances of all pairs of signatures, in SciPy's condensed form."""
        if self.signature == "gradient":
            return squareform(cosine_divergence(signatures), checks=False)
        return pdist(signatures)

    def broadcast(self, t: int) -> Jobs:
        """Let all clients train during the warm-up, and afterwards a share of each cluster."""
        present = torch.arange(self.server.clients)
        if t >= self.warm_up and self.fraction < 1:
            drawn = []
            for cluster in range(len(self.models)):
                members = torch.nonzero(self.labels == cluster).flatten()
                count = max(1, int(self.fraction * len(members)))
                drawn.append(self.server.drawn(members, count, t, cluster))
            present = torch.cat(drawn).sort().values
        return Jobs(self.models, self.labels[present], present)


def mean_loss(client: Client, model: Tensor) -> Tensor:
    """Return a model's mean loss ``[1]`` on a client's training samples."""
    return client.losses(model).mean()[None]


def loss_gradient(client: Client, model: Tensor, samples: int | None) -> Tensor:
    """Return the gradient ``[P]`` of a client's mean loss on its first training samples."""
    return client.gradient(model, samples)
