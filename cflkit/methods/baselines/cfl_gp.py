"""CFL-GP: cluster repeatedly, by gradients that clients accumulate for several models.

H. Kim, H. Kim, G. de Veciana: Clustered federated learning via gradient-based partitioning. ICML
2024.

This method was written from descriptions. The code of EMD-CFL's comparison has another variant of
it, which is an option (``report="own update"``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic.dataclasses import dataclass
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from torch import Tensor

from cflkit._bounds import STRICT, Count
from cflkit.divergence import coordinates
from cflkit.federation import Ask, Jobs, Request, Server, Train, check_finite
from cflkit.methods.base import (
    Method,
    Weighting,
    average_updates,
    client_weights,
    local_updates,
)
from cflkit.methods.baselines.signatures import loss_gradient


@dataclass(config=STRICT)
class CFLGP(Method):
    """Every few rounds, clients report how a model would change, and all reports are clustered.

    A client's gradient profile has one part per model.

    Parameters
    ----------
    k : int
        The number of models, which is the number of clusters that the method is told; at most one
        per client. The models have different random initialisations.
    report : {"gradient", "own update"}
        What a client reports. With ``gradient``, the server chooses the models in turn, and clients
        report the gradient of their loss at the chosen model. (In the authors' code, this is always
        the first model.) Each part of a profile is the mean of its reports. With ``own update``, as
        in the code of EMD-CFL's comparison, clients train first, and report the update of their own
        cluster's model. The weight of the newest report is `weight_of_report`.
    samples : int, optional
        The number of training samples in the gradient, in the order in which the client has them.
        By default all; the authors take one batch.
    period : int
        The number of rounds from one report to the next. The authors have 2, and the code of
        EMD-CFL's comparison has 1.
    stops : int, optional
        The number of rounds after which clients report no more, and keep their clusters. By default
        they never stop; the authors stop after 10.
    include_buffers : bool
        Whether updates also contain BatchNorm's statistics and batch counters, as in the code of
        EMD-CFL's comparison. Gradients have none.
    weighting : {"equal", "samples"}
        The weights of clients in the mean of a cluster.

    Attributes
    ----------
    profile : Tensor
        ``[m, k, D]``, for each client and model, the mean of the reports; zero before the first.
    """

    k: Count = 3
    report: Literal["gradient", "own update"] = "gradient"
    samples: Count | None = None
    period: Count = 2
    stops: Count | None = None
    include_buffers: bool = False
    weighting: Weighting = "equal"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round; the first model is the one with which all methods begin."""
        super().setup(server, initial)
        k = min(self.k, server.clients)
        self.models = torch.cat([initial[None], server.initials(k - 1, 0)])
        compared = len(initial) if self.compares_buffers else server.parameters
        self.profile = torch.zeros(server.clients, k, compared)
        self.rounds = 0

    @property
    def compares_buffers(self) -> bool:
        """Return whether the reports contain BatchNorm's buffers."""
        return self.include_buffers and self.report == "own update"

    @property
    def settled(self) -> bool:
        """Return whether there are no more reports."""
        following = -(-self.rounds // self.period) * self.period
        return self.stops is not None and following >= self.stops

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run a round of FedAvg within each cluster, with a new clustering if reports are due."""
        due = t % self.period == 0 and not self.settled
        if due and self.report == "gradient":
            yield from self.ask_for_gradients(t)
            self.labels = torch.from_numpy(self.cluster())
        trained = yield Train(self.broadcast(t))
        if due and self.report == "own update":
            own = local_updates(trained.clone(), self.models, self.labels)
            self.extend_profiles(own, self.labels, self.weight_of_report(t))
            self.labels = torch.from_numpy(self.cluster())
        # A client whose cluster has just changed brings the model that it has trained
        updates = local_updates(trained, self.models, self.labels)
        weights = client_weights(self.server, self.weighting)
        self.models = average_updates(self.models, updates, self.labels, weights)
        self.rounds = t + 1

    def ask_for_gradients(self, t: int) -> Generator[Request, Any, None]:
        """Ask all clients for their gradients at one model, and add them to the profiles."""
        cycle, chosen = divmod(t // self.period, len(self.models))
        everyone = torch.arange(self.server.clients)
        jobs = Jobs(self.models[chosen][None], torch.zeros_like(everyone), everyone)
        options = {"samples": self.samples}
        gradients = torch.stack((yield Ask(jobs, question=loss_gradient, options=options)))
        check_finite(gradients, jobs, t)
        self.extend_profiles(gradients, torch.full_like(everyone, chosen), 1 / (cycle + 1))

    def weight_of_report(self, t: int) -> float:
        """Return the weight of a client's newest update: 1 / (⌊(t + 1) / (k P)⌋ + 1)."""
        return 1 / ((t + 1) // (len(self.models) * self.period) + 1)

    def extend_profiles(self, reports: Tensor, parts: Tensor, weight: float) -> None:
        """Move one part of each client's profile towards its report (``[m, D]``)."""
        for profile, part, report in zip(self.profile, parts.tolist(), reports, strict=True):
            profile[part].lerp_(report[: profile.shape[1]].to(profile.device), weight)

    def cluster(self) -> np.ndarray[Any, Any]:
        """Cluster the profiles in the space of their first k singular vectors, by k-means."""
        k = len(self.models)
        means = KMeans(k, n_init=10, random_state=0)
        found = means.fit_predict(coordinates(self.profile.flatten(1))[:, :k])
        # The numbers decide which model a new cluster gets, so they must not depend on the order of
        # the clients
        rank = np.linalg.norm(means.cluster_centers_, axis=1).argsort().argsort()
        return relabelled(rank[found], self.labels)


def relabelled(found: ArrayLike, before: ArrayLike) -> np.ndarray[Any, Any]:
    """Number clusters anew, so that as many clients as possible keep their number.

    Parameters
    ----------
    found, before : array_like
        ``[m]``, the new labels and the old ones.

    Returns
    -------
    ndarray
        ``[m]``, the new clusters with the other numbers, which are at most the largest that is
        given.
    """
    new, old = np.asarray(found), np.asarray(before)
    numbers = np.arange(max(new.max(), old.max()) + 1)
    shared = np.equal.outer(numbers, new).astype(int) @ np.equal.outer(old, numbers)
    _, number = linear_sum_assignment(shared, maximize=True)
    return np.asarray(number[new])
