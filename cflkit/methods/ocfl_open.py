"""OCFL in an open federation: many clients, clients that come later, and clusters found anew.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustering for federated learning under
clustering-agnostic assumption, section 6.2, names these extensions. The choices are ours.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, TwoOrMore
from cflkit.divergence import CHUNK, Matrix, cosine_divergence
from cflkit.federation import Jobs, Server
from cflkit.methods.base import client_weights, local_updates
from cflkit.methods.ocfl import OCFL
from cflkit.models.rows import as_doubles, device_of_doubles


@dataclass(config=STRICT)
class OpenOCFL(OCFL):
    """OCFL whose rounds may leave clients out.

    Parameters
    ----------
    sample : int, optional
        The number of clients, at least two, whose updates the temperature and the clusterer see.
        They are drawn at random from those that take part in the round. All others are attributed
        to the clusters. By default there is no limit. The matrix of 100,000 clients would need 80
        GB.
    again : int, optional
        The number of rounds after which the clusters are found anew, again and again (few-shot
        clustering). By default they are found once.

    Notes
    -----
    The clients of the round that clusters are clustered. The server keeps the model with which they
    began this round. A client that comes later first trains this model, and is attributed by its
    update. Until then, it has the kept model, which is in the last row of ``models``.

    To find clusters anew, all participants of such a round train the kept model, since only updates
    of one model can be compared. A new cluster goes on from the mean of the models that its members
    had. So the round costs a training, and improves no model. Clients that are absent get the new
    cluster whose updates are most like those of their old one.
    """

    partial: ClassVar[bool] = True

    sample: TwoOrMore | None = None
    again: TwoOrMore | None = None

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        # The mean direction of each cluster's updates, as long as it can still be needed
        self.directions = initial.new_empty(0, 0)
        # The round in which the clusters are found anew, and the model that clients then train
        self.due: int | None = None
        self.kept = initial.new_empty(0)

    @property
    def settled(self) -> bool:
        """Return whether every client has its cluster for good."""
        return self.clustered and not len(self.directions)

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of a round, in which participants train the models of their clusters."""
        present = self.server.participants(t)
        if t == self.due and len(present) < 2:  # one update shows no groups
            self.due = t + 1
        if t != self.due:
            return super().broadcast(t)
        return Jobs(self.kept[None], torch.zeros_like(present), present)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Cluster if it is time, attribute newcomers, and average within clusters."""
        present = jobs.client_of
        updates = local_updates(trained, jobs.models, jobs.model_of)
        compared = self.vectors(updates)
        self.scalars = {}
        if self.clustered and t != self.due:
            members = self.attribute_newcomers(present, compared)
            return self.add_means(updates, members, present)
        seen = self.seen(len(compared))
        gamma = cosine_divergence(compared[seen])
        if self.clustered:
            return self.find_clusters(t, present, compared, seen, gamma)
        # A single update has no temperature, and its round is left out
        if len(gamma) > 1 and self.heats_up(gamma):
            self.kept = self.models[0].clone()
            self.find_clusters(t, present, compared, seen, gamma)
        self.add_means(updates, self.labels[present], present)

    def seen(self, count: int) -> Tensor | slice:
        """Return which of the updates the clusterer sees: the same draw in each round, or all."""
        if self.sample is None or count <= self.sample:
            return slice(None)
        # No other draw has a key of three numbers
        return self.server.drawn(torch.arange(count), self.sample, 0, 0, 0)

    def find_clusters(
        self, t: int, present: Tensor, compared: Tensor, seen: Tensor | slice, gamma: Matrix
    ) -> None:
        """Give each client of this round its cluster; absent ones follow their old cluster."""
        former, directions = self.labels, self.directions
        labels = clusters = torch.from_numpy(self.clusters(gamma))
        self.directions = mean_directions(compared[seen], clusters)
        if isinstance(seen, Tensor):
            labels = nearest(compared, self.directions)
            labels[seen] = clusters
        self.labels = torch.full_like(former, len(self.directions))  # of clients that are absent
        self.labels[present] = labels
        self.go_on(former, present, newcomers=len(self.models) > len(directions))
        absent = former < len(directions)
        absent[present] = False
        if absent.any():
            self.labels[absent] = nearest(directions, self.directions)[former[absent]]
        self.clustered = True
        self.due = None if self.again is None else t + self.again
        self.forget()

    def go_on(self, former: Tensor, present: Tensor, newcomers: bool) -> None:
        """Let each cluster go on from the mean of the models that its members had."""
        models = self.kept.repeat(int(self.labels.max()) + 1, 1)
        # The weight of each former model in each new one
        shares = torch.zeros(len(models), len(self.models))
        weights = client_weights(self.server, self.weighting)[present]
        shares.index_put_((self.labels[present], former[present]), weights, accumulate=True)
        if newcomers:  # the last model is the kept one: it counts only in clusters of newcomers
            shares[shares[:, :-1].any(dim=1), -1] = 0
        continued = shares.any(dim=1)
        shares = shares[continued] / shares[continued].sum(dim=1, keepdim=True)
        models[continued] = shares.to(models) @ self.models
        self.models = models

    def forget(self) -> None:
        """Give up the directions if all clients have a cluster, and keep it."""
        if self.again is None and not (self.labels == len(self.directions)).any():
            self.directions = self.directions.new_empty(0, 0)

    def attribute_newcomers(self, present: Tensor, compared: Tensor) -> Tensor:
        """Attribute clients that are here for the first time since the clustering.

        Returns
        -------
        Tensor
            The cluster of each participant whose update counts in this round. For newcomers it is
            −1, since they have trained the kept model and not that of their cluster.
        """
        members = self.labels[present]
        if not len(self.directions):
            return members
        new = members == len(self.directions)
        if new.any():
            self.labels[present[new]] = nearest(compared[new], self.directions)
            self.forget()
        return torch.where(new, -1, members)


def attribute(update: Tensor, updates: Tensor, labels: Tensor) -> int:
    """Find the cluster of a client that joins after the clustering.

    Parameters
    ----------
    update : Tensor
        ``[P]``, the new client's update of the model from which the others started in the round
        that clustered them. The server must keep this model.
    updates, labels : Tensor
        ``[m, P]`` and ``[m]``, the updates of the other clients in that round and their clusters.

    Returns
    -------
    int
        The cluster whose members' updates are nearest by mean cosine distance.
    """
    clusters, rows = labels.unique(return_inverse=True)
    return int(clusters[nearest(update[None], mean_directions(updates, rows))[0]])


def mean_directions(updates: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean of the updates of each cluster, each divided by its norm: ``[K, P]``.

    The mean cosine distance of an update from a cluster's members is one minus the inner product of
    its direction and this mean, so no matrix of all pairs is needed. An update of zeros has no
    direction, and counts as zeros. Labels ``[m]`` are numbered from 0; the result is in float64.
    """
    count = int(labels.max()) + 1
    device = device_of_doubles(updates.device)
    means = torch.zeros(count, updates.shape[1], dtype=torch.float64, device=device)
    owners = labels.to(device)
    rows = rows_at_once(updates)
    for part, owner in zip(updates.split(rows), owners.split(rows), strict=True):
        means.index_add_(0, owner, F.normalize(as_doubles(part), dim=1))
    return means.div_(torch.bincount(owners, minlength=count)[:, None])


def nearest(updates: Tensor, directions: Tensor) -> Tensor:
    """Return the cluster ``[n]`` whose members are nearest to each update, by `mean_directions`."""
    parts = updates.split(rows_at_once(updates))
    return torch.cat([(as_doubles(part) @ directions.T).argmax(dim=1) for part in parts]).cpu()


def rows_at_once(updates: Tensor) -> int:
    """Return how many updates are converted to float64 at once, which bounds the memory."""
    return max(1, CHUNK // max(1, updates.shape[1]))
