"""FedDrift: a client whose loss rises gets a model of its own, and models that are alike merge.

E. Jothimurugesan, K. Hsieh, J. Wang, G. Joshi, P. B. Gibbons: Federated learning under distributed
concept drift. AISTATS 2023. Written from the paper's idea, and then compared with the clustering of
the authors' code (microsoft/FedDrift, e4ac32f, MIT), which gives the same if losses take the place
of accuracies (``tests/golden``). Their numbers cannot come out: that code compares accuracies on
random batches, a model trains on all data of earlier time steps that were its clients', and a
drifted client goes on from a copy of its best model. Here, clients train on their present data
alone, a drifted one begins anew, and a model without clients is forgotten.
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from cflkit._bounds import STRICT, Count, Positive
from cflkit.federation import NOBODY, Conversation, Losses, Request, Server, check_finite
from cflkit.methods.base import Method, Weighting, all_pairs, client_weights, weighted_means
from cflkit.methods.baselines.clove import mean_losses


@dataclass(config=STRICT)
class FedDrift(Method):
    """Clusters over time, by losses: drifted clients leave their clusters, and clusters merge.

    Parameters
    ----------
    threshold : float
        δ, in units of the loss. A client drifts if its smallest loss rises by more. Two clusters
        merge if neither model has a loss on the other's clients that is larger by more than its
        loss on its clients.
    period : int
        The number of rounds of a time step, which begins with a look at all losses.
    start : {"one", "each"}
        Whether all clients begin as one cluster, or each with a model of its own.
    weighting : {"samples", "equal"}
        The weights of clients in means of models.

    Attributes
    ----------
    losses : Tensor
        ``[m]``, the smallest loss of each client when all were last measured.
    """

    threshold: Positive = 0.5
    period: Count = 5
    start: Literal["one", "each"] = "one"
    weighting: Weighting = "samples"

    def asks(self) -> list[Request]:
        """Return the request for each client's mean losses."""
        return [Losses(NOBODY, told=mean_losses)]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, in which no client has drifted yet."""
        super().setup(server, initial)
        if self.start == "each":
            self.labels = torch.arange(server.clients)
            self.models = initial.repeat(server.clients, 1)
        self.losses = torch.full((server.clients,), torch.inf)

    def round(self, t: int) -> Conversation[None]:
        """Look for drift and merge clusters in the first round of a time step; then run FedAvg."""
        if t % self.period == 0 and t > 0:
            everyone = torch.arange(self.server.clients)
            [request] = self.asks()
            jobs = all_pairs(self.models, everyone)
            answers = torch.stack((yield request.only(jobs)))
            check_finite(answers[:, None], jobs, t)
            losses = answers.view(len(everyone), -1).cpu()  # [m, K]
            smallest, self.labels = losses.min(dim=1)
            drifted = smallest > self.losses + self.threshold
            self.losses = smallest
            self.merge(losses, ~drifted)
            self.isolate(drifted, t)
        yield from super().round(t)

    def merge(self, losses: Tensor, stay: Tensor) -> None:
        """Unite clusters of the clients that stay in theirs, and average the models."""
        known, members = self.labels[stay].unique(return_inverse=True)
        models, self.labels[stay] = self.models[known], members
        self.models = models  # without those that have no client
        if len(known) < 2:
            return
        shares = F.one_hot(members, len(known)).float()
        # The mean loss of model i at the clients of cluster j, and how much more it is than at i's
        means = losses[stay][:, known].T @ (shares / shares.sum(dim=0))
        worse = (means - means.diagonal()[:, None]).clamp_min(0).numpy()
        distances = squareform(np.maximum(worse, worse.T), checks=False)
        numbers = fcluster(linkage(distances, "complete"), self.threshold, "distance")
        merged = torch.from_numpy(numbers.astype(np.int64) - 1)  # the new cluster of each old one
        sizes = client_weights(self.server, self.weighting)[stay] @ shares
        weights = sizes * (merged == merged.unique()[:, None])
        self.models = weighted_means(models[weights.argmax(dim=1)], models, weights)
        self.labels[stay] = merged[members]

    def isolate(self, drifted: Tensor, t: int) -> None:
        """Give each drifted client a new model of its own."""
        new = self.server.initials(int(drifted.sum()), t)
        self.labels[drifted] = len(self.models) + torch.arange(len(new))
        self.models = torch.cat([self.models, new])
