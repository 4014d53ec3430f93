"""OCFL: cluster once, in the round in which the temperature of the clients' updates rises.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData
2024, Algorithm 1; and its extended version, Algorithm 1 and sections 6.2 and 6.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Count, Positive
from cflkit.divergence import CHUNK, cosine_divergence, temperature
from cflkit.federation import Jobs, Server
from cflkit.federation.machine import as_doubles, device_of_doubles
from cflkit.methods.base import (
    Method,
    Weighting,
    average_updates,
    client_weights,
    local_updates,
)

Norm = Annotated[float, Field(ge=1)]
# Infinite values are allowed; NaN is refused, since no temperature exceeds it
Temperature = Annotated[float, Field(allow_inf_nan=True, ge=-math.inf)]


@dataclass(config=STRICT)
class OCFL(Method):
    """One-shot clustered federated learning.

    Parameters
    ----------
    clusterer : str
        A name that `clustering.make` knows: ``hdbscan`` (OCFL-HDB), ``meanshift`` (OCFL-MS),
        ``kmeans`` (OCFL-KM), ``affinity`` (OCFL-AFF).
    options : dict
        The options of the clusterer.
    p : float
        The order of the norm in the temperature.
    scale : float, optional
        The scale λ of the temperature; by default the upper bound of the norm, so that T is in
        [0, 1].
    strict : bool
        Whether the temperature must rise (``>``, as in the authors' code). Otherwise it is enough
        that it does not fall (``≥``, as printed in the papers).
    window : int
        The number of rounds in the moving average that the trigger watches (extended paper, section
        6.3); 1 gives Algorithm 1.
    before : float
        T₋₁, the temperature before the first round. It is +∞ in the extended paper and the code. It
        is −∞ in Algorithm 1 of the first paper, which therefore clusters in the first round.
    include_buffers : bool
        Whether update vectors also contain BatchNorm's statistics and batch counters, as in the
        authors' code.
    weighting : {"equal", "samples"}
        The weights of a cluster's members; equal weights in Algorithm 1, line 28.
    sample : int, optional
        The number of clients, at least two, whose updates the temperature and the clusterer see.
        They are drawn at random from those that take part in the round. All others are attributed
        to the clusters (extended paper, section 6.2). By default there is no limit. The matrix of
        100,000 clients would need 80 GB.
    again : int, optional
        The number of rounds after which the clusters are found anew, again and again (few-shot
        clustering; extended paper, section 6.2). By default they are found once.

    Notes
    -----
    The papers have no rounds in which only some clients take part. Here, the clients of the round
    that clusters are clustered. The server keeps the model with which they began this round. A
    client that comes later first trains this model, and is attributed by its update. Until then, it
    has the kept model, which is in the last row of ``models``.

    The papers do not say how clusters are found anew. Here, all participants of such a round train
    the kept model, since only updates of one model can be compared. A new cluster goes on from the
    mean of the models that its members had. So the round costs a training, and improves no model.
    Clients that are absent get the new cluster whose updates are most like those of their old one.
    """

    partial: ClassVar[bool] = True
    clusterer: str = "hdbscan"
    options: dict[str, Any] = field(default_factory=dict)
    p: Norm = 2
    scale: Positive | None = None
    strict: bool = True
    window: Count = 1
    before: Temperature = math.inf
    include_buffers: bool = False
    weighting: Weighting = "equal"
    sample: Annotated[int, Field(ge=2)] | None = None
    again: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def known_clusterer(self) -> OCFL:
        """Refuse an unknown clusterer, and options that it does not accept."""
        clustering.make(self.clusterer, **self.options)
        return self

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        self.clustered = False
        self.temperatures: list[float] = []
        # The mean direction of each cluster's updates, as long as it can still be needed
        self.directions: Tensor | None = None
        # The round in which the clusters are found anew, and the model that clients then train
        self.due: int | None = None
        self.kept: Tensor | None = None

    @property
    def settled(self) -> bool:
        """Return whether the trigger has fired and every client has its cluster for good."""
        return self.clustered and self.directions is None and self.again is None

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of a round, in which participants train the models of their clusters."""
        if t != self.due or self.kept is None:
            return super().broadcast(t)
        present = self.server.participants(t)
        return Jobs(self.kept[None], torch.zeros_like(present), present)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Run lines 14 to 28 of Algorithm 1."""
        present = jobs.client_of
        updates = local_updates(trained, jobs.models, jobs.model_of)
        compared = updates if self.include_buffers else updates[:, : self.server.parameters]
        self.scalars = {}
        if not self.clustered:
            seen, gamma = self.compare(compared)
            if self.heats_up(gamma):
                self.kept = None if self.again is None else self.models[0].clone()
                # Each cluster starts from the global model and adds the updates of its own members
                self.models = self.models.repeat(self.cluster(t, present, compared, seen, gamma), 1)
            members = self.labels[present]
        elif t == self.due and self.kept is not None:
            self.cluster_again(t, present, compared, self.kept)
            return
        else:
            members = self.attribute_newcomers(present, compared)
        weights = client_weights(self.server, self.weighting)[present]
        self.models = average_updates(self.models, updates, members, weights)

    def heats_up(self, gamma: NDArray[np.float64]) -> bool:
        """Note the temperature of a round, and return whether it rises (line 20).

        A single update has no temperature, and its round is left out.
        """
        if len(gamma) < 2:
            return False
        self.temperatures.append(temperature(gamma, self.p, self.scale))
        self.scalars["temperature"] = self.temperatures[-1]
        return rises(self.temperatures, self.window, self.strict, self.before)

    def compare(self, compared: Tensor) -> tuple[Tensor | None, NDArray[np.float64]]:
        """Return which updates the clusterer sees (None for all), and their divergence."""
        count = len(compared)
        if self.sample is None or count <= self.sample:
            return None, cosine_divergence(compared)
        # The same draw in each round, so that temperatures can be compared
        seen = self.server.drawn(torch.arange(count), self.sample, 0, 0, 0)
        return seen, cosine_divergence(compared[seen])

    def cluster(
        self,
        t: int,
        present: Tensor,
        compared: Tensor,
        seen: Tensor | None,
        gamma: NDArray[np.float64],
    ) -> int:
        """Give each client of this round its cluster.

        Returns
        -------
        int
            The number of models: one per cluster, and one for clients that are absent.
        """
        self.clustered = True
        self.due = None if self.again is None else t + self.again
        found = torch.from_numpy(clustering.make(self.clusterer, **self.options).fit_predict(gamma))
        labels, directions = found, None
        waiting = len(present) < len(self.labels)
        if seen is not None or waiting or self.again is not None:
            own = compared if seen is None else compared[seen]
            directions = mean_directions(own, found)
        if seen is not None and directions is not None:
            labels = nearest(compared, directions)
            labels[seen] = found
        count = int(found.max()) + 1
        self.labels = torch.full_like(self.labels, count)
        self.labels[present] = labels
        self.directions = directions if waiting or self.again is not None else None
        return count + waiting

    def cluster_again(self, t: int, present: Tensor, compared: Tensor, kept: Tensor) -> None:
        """Find the clusters anew, and let each go on from the mean of its members' models."""
        assert self.directions is not None
        former, directions = self.labels, self.directions
        newcomers = len(self.models) > len(directions)
        seen, gamma = self.compare(compared)
        count = self.cluster(t, present, compared, seen, gamma)
        absent = former < len(directions)
        absent[present] = False
        self.labels[absent] = nearest(directions, self.directions)[former[absent]]
        # The weight of each former model in each new one
        shares = torch.zeros(count, len(self.models))
        weights = client_weights(self.server, self.weighting)[present]
        shares.index_put_((self.labels[present], former[present]), weights, accumulate=True)
        if newcomers:  # the last model is the kept one: it counts only in clusters of newcomers
            shares[shares[:, :-1].any(dim=1), -1] = 0
        models = kept.repeat(count, 1)
        continued = shares.any(dim=1)
        shares = shares[continued] / shares[continued].sum(dim=1, keepdim=True)
        models[continued] = shares.to(models) @ self.models
        self.models = models

    def attribute_newcomers(self, present: Tensor, compared: Tensor) -> Tensor:
        """Attribute clients that are here for the first time since the clustering.

        Returns
        -------
        Tensor
            The cluster of each participant whose update counts in this round. For newcomers it is
            −1, since they have trained the kept model and not that of their cluster.
        """
        members = self.labels[present]
        if self.directions is None:
            return members
        new = members == len(self.directions)
        if new.any():
            self.labels[present[new]] = nearest(compared[new], self.directions)
            if self.again is None and not (self.labels == len(self.directions)).any():
                self.directions = None
        return torch.where(new, -1, members)


def rises(
    temperatures: Sequence[float],
    window: int = 1,
    strict: bool = True,
    before: float = math.inf,
) -> bool:
    """Return whether the moving average of the temperature rose in the last round (line 20).

    Parameters
    ----------
    temperatures : sequence of float
        T₀ … T_t.
    window : int
        The number w of rounds in the average; with 1, T_t is compared with T_{t−1}.
    strict : bool
        Whether to compare with ``>`` and not with ``≥``.
    before : float
        The value of temperatures before the first round. With +∞, the trigger cannot fire before
        round w (from 0).

    Returns
    -------
    bool

    Notes
    -----
    The averages over w rounds in round t and in round t − 1 have all values in common except T_t
    and T_{t−w}. The average therefore rises exactly if T_t > T_{t−w}. The window states how many
    rounds back the trigger looks.
    """
    past = temperatures[-1 - window] if len(temperatures) > window else before
    return temperatures[-1] > past if strict else temperatures[-1] >= past


def attribute(update: Tensor, updates: Tensor, labels: Tensor) -> int:
    """Find the cluster of a client that joins after the clustering (extended paper, section 6.2).

    Parameters
    ----------
    update : Tensor
        ``[P]``, the new client's update of the model from which the others started in the round
        that clustered them. The server must keep this model.
    updates : Tensor
        ``[m, P]``, the updates of the other clients in that round.
    labels : Tensor
        ``[m]``, the clusters of these clients.

    Returns
    -------
    int
        The cluster whose members' updates are nearest by mean cosine distance.
    """
    clusters, rows = labels.unique(return_inverse=True)
    return int(clusters[nearest(update[None], mean_directions(updates, rows))[0]])


def mean_directions(updates: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean of the updates of each cluster, each divided by its norm.

    The mean cosine distance of an update from a cluster's members is one minus the inner product of
    its direction and this mean. So no matrix of all pairs is needed.

    Parameters
    ----------
    updates : Tensor
        ``[m, P]``, the updates.
    labels : Tensor
        ``[m]``, their clusters from 0 to K − 1.

    Returns
    -------
    Tensor
        ``[K, P]``, float64. An update of zeros has no direction, and counts as zeros.
    """
    count = int(labels.max()) + 1
    device = device_of_doubles(updates.device)
    means = torch.zeros(count, updates.shape[1], dtype=torch.float64, device=device)
    owners = labels.to(device)
    rows = rows_at_once(updates)
    for part, own in zip(updates.split(rows), owners.split(rows), strict=True):
        means.index_add_(0, own, F.normalize(as_doubles(part), dim=1))
    return means.div_(torch.bincount(owners, minlength=count)[:, None])


def nearest(updates: Tensor, directions: Tensor) -> Tensor:
    """Return the cluster ``[n]`` whose members are nearest to each update, by `mean_directions`."""
    parts = updates.split(rows_at_once(updates))
    return torch.cat([(as_doubles(part) @ directions.T).argmax(dim=1) for part in parts]).cpu()


def rows_at_once(updates: Tensor) -> int:
    """Return how many updates are converted to float64 at once, which bounds the memory."""
    return max(1, CHUNK // max(1, updates.shape[1]))
