"""CFL-GP: cluster repeatedly, by gradients that clients accumulate for several models.

H. Kim, H. Kim, G. de Veciana: Clustered federated learning via gradient-based partitioning. ICML
2024. Written from descriptions; ``report="own update"`` is as in the code of EMD-CFL's comparison.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic.dataclasses import dataclass
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from cflkit._bounds import STRICT, Count
from cflkit.clustering import k_means
from cflkit.divergence import coordinates
from cflkit.federation import Conversation, Request, Server, Train
from cflkit.methods.base import Method, Weighting, local_updates
from cflkit.methods.baselines.questions import gradient_of, reports


@dataclass(config=STRICT)
class CFLGP(Method):
    """Every few rounds, clients report how a model would change, and all reports are clustered.

    The authors' code stops clustering after ten rounds; here it goes on.

    Parameters
    ----------
    k : int
        The number of models and of clusters, which the method is told; at most one per client.
    report : {"gradient", "own update"}
        What a client reports: the gradient of its loss at one model, which the server chooses in
        turn, as in the paper (in the authors' code, it is the model of the client's cluster); or
        how training has changed the model of its cluster.
    samples : int, optional
        The number of a client's first samples in its gradient; the authors take a batch.
    period : int
        The number of rounds from one report to the next: 2 of the authors, 1 in the comparison.
    include_buffers : bool
        Whether updates contain BatchNorm's buffers, as in the comparison. Gradients have none.
    weighting : {"equal", "samples"}
        The weights of clients in the mean of a cluster.
    """

    k: Count = 3
    report: Literal["gradient", "own update"] = "gradient"
    samples: Count | None = None
    period: Count = 2
    include_buffers: bool = False
    weighting: Weighting = "equal"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round; the first model is the one with which all methods begin."""
        super().setup(server, initial)
        k = min(self.k, server.clients)
        self.models = torch.cat([initial[None], server.initials(k - 1, 0)])
        whole = self.include_buffers and self.report == "own update"
        # For each client and model, a running average of the reports
        self.profile = torch.zeros(server.clients, k, len(initial) if whole else server.parameters)

    def asks(self) -> list[Request]:
        """Return the question for gradients, if these are reported."""
        return [gradient_of(self.samples)] if self.report == "gradient" else []

    def round(self, t: int) -> Conversation[None]:
        """Run a round of FedAvg within each cluster, with a new clustering if reports are due."""
        due = t % self.period == 0
        if due and self.report == "gradient":
            yield from self.ask_for_gradients(t)
            self.labels = torch.from_numpy(self.cluster())
        jobs = self.broadcast(t)
        trained = yield Train(jobs)
        if due and self.report == "own update":
            updates = local_updates(trained.clone(), self.models, self.labels)
            cycle = (t + 1) // (len(self.models) * self.period)
            self.extend_profiles(updates, self.labels, 1 / (cycle + 1))
            self.labels = torch.from_numpy(self.cluster())
        # A client whose cluster has just changed brings the model that it has trained
        self.aggregate(t, jobs, trained)

    def ask_for_gradients(self, t: int) -> Conversation[None]:
        """Add all clients' gradients at one model to the profiles."""
        cycle, chosen = divmod(t // self.period, len(self.models))
        rows = torch.full((self.server.clients,), chosen)
        self.extend_profiles((yield from reports(self, rows, t)), rows, 1 / (cycle + 1))

    def extend_profiles(self, reports: Tensor, parts: Tensor, weight: float) -> None:
        """Move one part of each client's profile towards its report (``[m, D]``)."""
        for profile, part, report in zip(self.profile, parts.tolist(), reports, strict=True):
            profile[part].lerp_(report[: profile.shape[1]].to(profile.device), weight)

    def cluster(self) -> np.ndarray[Any, Any]:
        """Cluster the profiles in the space of their first k singular vectors, by k-means."""
        k = len(self.models)
        means = k_means(coordinates(self.profile.flatten(1))[:, :k], k, random_state=0)
        # Numbers decide which model a new cluster gets: they must not depend on the clients' order
        rank = np.linalg.norm(means.cluster_centers_, axis=1).argsort().argsort()
        return relabel(rank[means.labels_], self.labels)


def relabel(labels: ArrayLike, before: ArrayLike) -> np.ndarray[Any, Any]:
    """Number clusters ``[m]`` anew, up to the largest number given; most clients keep theirs."""
    new, old = np.asarray(labels), np.asarray(before)
    numbers = np.arange(max(new.max(), old.max()) + 1)
    shared = np.equal.outer(numbers, new).astype(int) @ np.equal.outer(old, numbers)
    return np.asarray(linear_sum_assignment(shared, maximize=True)[1][new])
