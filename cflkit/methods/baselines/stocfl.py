"""StoCFL: merge clusters whose clients move a common first model in similar directions.

D. Zeng, X. Hu, S. Liu, Y. Yu, Q. Wang, Z. Xu: Stochastic clustered federated learning. arXiv
2303.00897. With all clients in each round, clusters and models are those of the authors' code
(tests/golden). With some of them, that code takes the mean direction of a cluster over those that
are present, and here it is over all that have been.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit._bounds import STRICT, CosineThreshold, NonNegative
from cflkit.divergence import cosine_divergence
from cflkit.federation import Conversation, Jobs, Server, Train
from cflkit.methods.base import Method, Weighting, client_weights, weighted_means
from cflkit.methods.baselines.fedprox import proximal_training


@dataclass(config=STRICT)
class StoCFL(Method):
    """Each client begins as its own cluster, and clusters of participants merge in any round.

    The method is told no number of clusters. A client that was never there is alone, with the
    common model of all clients.

    Parameters
    ----------
    threshold : float
        The cosine distance 1 − τ up to which two clusters merge. The authors' examples have τ from
        0.2 to 0.65.
    lam : float
        The strength λ of the pull of the clusters' models towards the common one, as in `FedProx`.
    weighting : {"equal", "samples"}
        The weights of clients in means of models.

    Attributes
    ----------
    directions : Tensor
        ``[m, P + Q]``, Ψ: how each client's training moves the first model; zero until it is there.
    seen : Tensor
        ``[m]``, bool: which clients have taken part.
    common : Tensor
        ``[P + Q]``, the common model ω, which is a mean over all participants.
    """

    partial: ClassVar[bool] = True

    threshold: CosineThreshold = 0.5
    lam: NonNegative = 0.05
    weighting: Weighting = "equal"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Give each client a cluster of its own."""
        super().setup(server, initial)
        self.labels = torch.arange(server.clients)
        self.models = initial.repeat(server.clients, 1)
        self.common, self.anchor = initial, initial
        self.directions = torch.zeros_like(self.models)
        self.seen = torch.zeros(server.clients, dtype=torch.bool)

    def round(self, t: int) -> Conversation[None]:
        """Observe new participants, merge clusters, and train their models and the common one."""
        present = self.server.participants(t)
        new = present[~self.seen[present]]
        if len(new):
            moved = yield Train(Jobs(self.anchor[None], torch.zeros_like(new), new))
            self.directions[new] = moved - self.anchor
            self.seen[new] = True
        self.merge(present)

        members, same = self.labels[present], torch.zeros_like(present)
        shared = yield Train(Jobs(self.common[None], same, present))
        training = proximal_training(self.server, self.lam)
        pull = [self.common] * len(present)
        trained = yield Train(Jobs(self.models, members, present, training, anchor=pull))
        weights = client_weights(self.server, self.weighting)[present]
        shares = torch.stack([weights * (members == c) for c in range(len(self.models))])
        self.models = weighted_means(self.models, trained, shares)
        self.common = weighted_means(self.common[None], shared, weights[None])[0]
        self.models[self.labels[~self.seen]] = self.common

    def merge(self, present: Tensor) -> None:
        """Unite the participants' clusters whose mean directions are near, also along a chain.

        As in the authors' code, the largest part's model is that of the whole.
        """
        there, count = self.labels[present].unique(), self.labels.bincount()
        means = [self.directions[self.seen & (self.labels == c)].mean(dim=0) for c in there]
        directions = torch.stack(means)[:, : self.server.parameters]
        near = cosine_divergence(directions) <= self.threshold
        _, parts = connected_components(near, directed=False)
        joined = torch.arange(len(count))
        for part in range(int(parts.max()) + 1):
            members = there[torch.from_numpy(parts == part)]
            joined[members] = members[count[members].argmax()]
        kept, self.labels = joined[self.labels].unique(return_inverse=True)
        self.models = self.models[kept]
        self.clustered |= bool(self.seen.all()) and len(kept) == len(count) == len(there)
