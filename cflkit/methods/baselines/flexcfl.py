"""FlexCFL, an extension of FedGroup: cluster once, by the main directions of the first updates.

M. Duan, D. Liu, X. Ji, Y. Wu, L. Liang, X. Chen, Y. Tan, A. Ren: Flexible clustered federated
learning for client-level data distribution shift. IEEE TPDS 33(11), 2022.

All clients take part in the first round here, so there are no newcomers. The migration of clients
whose data change is not part of this kit.
"""

from typing import Any, Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Count, NonNegative
from cflkit.clustering import canonical_labels, k_means
from cflkit.divergence import Matrix, coordinates
from cflkit.federation import Jobs
from cflkit.methods.base import Method, Weighting, average_updates, client_weights, local_updates


@dataclass(config=STRICT)
class FlexCFL(Method):
    """One clustering of the first updates, FedAvg per group, and an exchange between the groups.

    The first round is the method's cold start, which ends with the means of the groups.

    Parameters
    ----------
    k : int
        The number of groups, which the method is told; at most one per client.
    mixing : float
        The rate η of the exchange. After each later round, every group adds the other groups'
        models, each divided by its norm and multiplied by η. Without an exchange, it is 0.
    divided : bool
        Whether the sum is divided by the total weight, as in the method's own code. The code of
        EMD-CFL's comparison does not divide, and has a rate of 5.
    include_buffers : bool
        Whether updates and the exchange also contain BatchNorm's statistics and batch counters, as
        in the code of EMD-CFL's comparison.
    weighting : {"authors", "equal", "samples"}
        The weights of clients: equal in the first round and their numbers of training samples
        later, as in the method's own code, or the same ones in all rounds, as in `FedAvg`.
    """

    k: Count = 3
    mixing: NonNegative = 0.1
    divided: bool = True
    include_buffers: bool = False
    weighting: Weighting | Literal["authors"] = "authors"  # type: ignore[assignment]

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Average the updates within groups, and mix. The first round groups and does not mix."""
        updates = local_updates(trained, self.models, self.labels)
        if t == 0:
            self.divide(self.group(self.vectors(updates)))
        authors: Weighting = "equal" if t == 0 else "samples"
        weighting = authors if self.weighting == "authors" else self.weighting
        weights = client_weights(self.server, weighting)
        self.models = average_updates(self.models, updates, self.labels, weights)
        if t > 0 and self.mixing:
            self.models = self.mixed(self.models)

    def group(self, updates: Tensor) -> np.ndarray[Any, Any]:
        """Cluster updates ``[m, P]`` by their cosine similarities with their main directions."""
        k = min(self.k, len(updates))
        similarities = direction_similarities(updates, k)
        return canonical_labels(k_means(similarities, k, max_iter=20, random_state=0).labels_)

    def mixed(self, models: Tensor) -> Tensor:
        """Add to each group's model ``[K, P + Q]`` the directions of the others."""
        compared = self.vectors(models)
        weights = (self.mixing / compared.norm(dim=1)).repeat(len(compared), 1).fill_diagonal_(0)
        mixed = compared + weights @ compared
        if self.divided:
            mixed = mixed / (1 + weights.sum(dim=1, keepdim=True))
        return torch.cat([mixed, models[:, compared.shape[1] :]], dim=1)


def direction_similarities(updates: Tensor, k: int) -> Matrix:
    """Compute the cosine similarities ``[m, k]`` of updates with their first k singular vectors.

    These are the right singular vectors of the updates ``[m, P]``. An update of zero has similarity
    0 with all of them.
    """
    points = coordinates(updates)
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return points[:, :k] / np.where(norms > 0, norms, 1)
