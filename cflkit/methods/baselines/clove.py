"""CLoVE: cluster clients by the vectors of the losses that all models have on their data.

R. Bhatia, N. Papadis, M. Kodialam, T. V. Lakshman, S. Chakrabarty: CLoVE: personalized federated
learning through clustering of loss vector embeddings. ICML 2026, arXiv 2506.22427. Written from the
paper's idea, and then compared with the authors' code, which gives the same if both have as many
starts of k-means (``tests/golden``). By default, that code stops clustering once all clients have
kept their models for three rounds. Here, the clusters are found anew in every round.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from cflkit._bounds import STRICT, Count
from cflkit.clustering import k_means
from cflkit.federation import (
    NOBODY,
    Conversation,
    LocalTraining,
    Losses,
    Request,
    Server,
    check_finite,
)
from cflkit.methods.base import Method, Weighting, all_pairs


@dataclass(config=STRICT)
class CLoVE(Method):
    """Each client tells k mean losses; k-means of these vectors finds the clusters.

    Unlike in IFCA, where a client takes its best model, clients of one group stay together even if
    one model is best for everybody, as after the start.

    Parameters
    ----------
    k : int
        The number of models and of clusters, which the method is told.
    weighting : {"samples", "equal"}
        The weights of clients in the mean of a cluster.
    starts : int
        The number of starts of k-means, of which the best counts. The authors' code has one start.
    """

    partial: ClassVar[bool] = True

    k: Count = 3
    weighting: Weighting = "samples"
    starts: Count = 10

    def asks(self) -> list[Request]:
        """Return the request for each client's mean losses."""
        return [Losses(NOBODY, told=mean_losses)]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round; the first model is the one with which all methods begin."""
        super().setup(server, initial)
        self.models = torch.cat([initial[None], server.initials(self.k - 1, 0)])

    def round(self, t: int) -> Conversation[None]:
        """Send all models, cluster the vectors of losses, and run FedAvg within each cluster."""
        present = self.server.participants(t)
        [request] = self.asks()
        jobs = all_pairs(self.models, present)
        losses = torch.stack((yield request.only(jobs)))
        check_finite(losses[:, None], jobs, t)
        vectors = losses.view(-1, self.k).double().cpu().numpy()
        self.labels[present] = torch.from_numpy(clusters_with_models(vectors, self.starts))
        yield from super().round(t)


def mean_losses(losses: Sequence[Tensor], training: LocalTraining) -> Tensor:
    """Return the mean loss ``[k]`` of each of k models at a client."""
    return torch.stack([loss.mean() for loss in losses])


def clusters_with_models(vectors: np.ndarray, starts: int) -> np.ndarray:
    """Cluster vectors of losses ``[n, k]``; return for each client the model of its cluster.

    Each cluster has a model of its own, such that the sum of all clients' losses is the smallest.
    """
    count = min(vectors.shape[1], len(np.unique(vectors, axis=0)))
    clusters = k_means(vectors, count, starts, random_state=0).labels_
    sums = np.stack([vectors[clusters == cluster].sum(axis=0) for cluster in range(count)])
    _, model_of = linear_sum_assignment(sums)
    return np.asarray(model_of[clusters])
