"""FedCRef: find the classes of a whole federation without labels.

M. Nardi, L. Valerio, A. Passarella: Federated clustering: an unsupervised cluster-wise training for
decentralized data distributions. arXiv 2408.10664, Algorithms 1 and 2.

A round of the method is an iteration of Algorithm 1, which contains many rounds of training.
`fedcref_variants` has what the authors' code does otherwise, and the paper's upper bound.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit import metrics
from cflkit._bounds import STRICT, Count, Percent, PositiveShare, Share
from cflkit.clustering import Labels
from cflkit.divergence import Matrix
from cflkit.federation import NOBODY, Conversation, Jobs, LocalTraining, Losses, Server, Train
from cflkit.federation.requests import Request
from cflkit.methods.base import Measuring, Method, average_updates, local_updates
from cflkit.methods.fedcref_clusters import (
    Edges,
    PerSample,
    labels_of,
    local_clusters,
    reconstruction_errors,
)
from cflkit.methods.fedcref_measures import OF_CLUSTERS

# The initial models of the two kinds are drawn from different random streams
LOCAL, COMMUNITIES = 0, 1


@dataclass(config=STRICT)
class FedCRef(Method):
    """Federated cluster-wise refinement.

    Parameters
    ----------
    start : sequence of sequence of int
        For each client, the initial local cluster of each of its training samples.
    alpha, theta : float
        The percentage α of a cluster's samples on which the normalised errors of two models may
        differ by θ at most. The largest difference is always 1. So for θ below 1, no clusters agree
        at α = 100, and clusters of three samples or fewer never agree at α = 75.
    tau : float
        The accuracy τ with which a client's new clusters must agree with the old ones for the
        client to become inactive.
    local, federated, rounds : LocalTraining, LocalTraining, int
        The training of an autoencoder on a local cluster; and that of a community's model in a
        round of federated averaging, with the number of these rounds.

    Attributes
    ----------
    clusterings : list of ndarray
        For each of the m clients, ``[n]``: the local cluster Q of each of its samples.
    before, owner, samples : list of ndarray, ndarray, list of ndarray
        The clusterings with which the last iteration began, and their L clusters (`LocalClusters`).
    local_models, errors : list of Tensor, list of list of ndarray
        Each client's autoencoders ``[K, P]``, and in ``errors[i][j]``, ``[K, n]``, the errors of
        those of client i on client j's samples.
    edges, communities : ndarray, list of ndarray
        ``[L, L]``, the graph Γ of associations, and the set G of its components.
    models : Tensor
        ``[G, P]``, the models of the communities.
    counts : list of tuple of int
        The sizes of G and I at the start, and after each iteration.
    active : ndarray
        ``[m]``, bool: the set A of active clients.
    iteration : int
        The number of iterations that are over.
    """

    task: ClassVar[str] = "reconstruction"
    measuring: ClassVar[Measuring | None] = OF_CLUSTERS

    start: PerSample
    alpha: Percent = 75.0
    theta: Share = 0.2
    tau: PositiveShare = 0.8
    local: LocalTraining = LocalTraining(epochs=20, optimizer="adam", lr=1e-3)
    federated: LocalTraining = LocalTraining(epochs=7, optimizer="adam", lr=1e-3)
    rounds: Count = 15

    def enter(self, server: Server) -> None:
        """Take part in a federation whose clients have as many samples as there are labels."""
        labels_of(self.start, server)
        super().enter(server)

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare with the given local clusters, where all clients are active (lines 2 to 4)."""
        super().setup(server, initial)
        self.labels = None  # type: ignore[assignment]  # the method clusters samples, not clients
        self.clusterings = labels_of(self.start, server)
        self.before = list(self.clusterings)
        self.owner, self.samples = local_clusters(self.before)
        self.active = np.ones(server.clients, dtype=bool)
        self.models = server.initials(0)
        self.local_models = [self.models] * server.clients
        self.errors: list[list[Matrix]] = [[] for _ in range(server.clients)]
        self.edges = np.zeros((len(self.owner), len(self.owner)), dtype=bool)
        self.counts, self.iteration = [(0, len(self.owner))], 0

    @property
    def finished(self) -> bool:
        """Return whether no client is active, or I and G vary no more (section 4.5).

        Line 5, as it is printed, would go on until both hold.
        """
        return not self.active.any() or stable(self.counts)

    settled = property(lambda self: self.finished)  # the clusters are of samples, not of clients

    def asks(self) -> list[Request]:
        """Return the request for the errors of models."""
        return [Losses(NOBODY, reported=False)]

    def round(self, t: int) -> Conversation[None]:
        """Run lines 6 to 31 of Algorithm 1 once."""
        self.before = list(self.clusterings)
        self.owner, self.samples = local_clusters(self.before)
        # Lines 6 to 9: active clients train a model on each of their clusters, and send it to all
        yield from self.train_local_models()
        # Lines 10 to 16: every client compares the models of all clients on its own clusters
        self.edges = self.associated([self.errors_on(c) for c in range(self.server.clients)])
        # Lines 17 to 20: communities, and isolated clusters
        self.communities, isolated = communities_of(self.edges)
        # Lines 21 to 25: a model for each community
        yield from self.train_communities()
        general = yield from reconstruction_errors(self.server, self.models)
        # Lines 26 to 31: active clients refine their clusters; little change makes them inactive
        for client in np.flatnonzero(self.active):
            self.refine(int(client), general[client])
        self.counts.append((len(self.communities), isolated))
        self.iteration += 1

    def train_local_models(self) -> Conversation[None]:
        """Train an autoencoder for each cluster of the active clients, and let all test it."""
        mine = np.flatnonzero(self.active[self.owner])
        owners = self.owner[mine]
        models = self.server.initials(len(mine), LOCAL, self.iteration)
        pairs = torch.arange(len(mine)), torch.from_numpy(owners)
        parts = [torch.from_numpy(self.samples[cluster]) for cluster in mine]
        jobs = Jobs(models, *pairs, self.local, subset=parts)
        trained = yield Train(jobs, order=self.iteration * (1 + self.rounds))
        errors = yield from reconstruction_errors(self.server, trained)
        for client in np.flatnonzero(self.active):
            self.local_models[client] = trained[owners == client]
            self.errors[client] = [of_client[owners == client] for of_client in errors]

    def errors_on(self, client: int) -> Matrix:
        """Return the errors ``[L, n]`` of the models of all clusters on a client's samples."""
        return np.concatenate([of_models[client] for of_models in self.errors])

    def associated(self, errors: Sequence[Matrix]) -> Edges:
        """Find the pairs of clusters whose models reconstruct both alike, from `errors_on`."""
        far = self.percentiles(errors)
        return (np.maximum(far, far.T) <= self.theta) & (self.owner[:, None] != self.owner)

    def percentiles(self, errors: Sequence[Matrix]) -> Matrix:
        """Compute how far models are apart on each cluster, ``[L, L]``.

        Entry ij is for the model of cluster j on the samples of cluster i: the smallest bound of
        α per cent of the differences. It is at most θ if and only if Pr{difference ≤ θ} ≥ α
        (equation 2).
        """
        bounds = np.empty((len(self.owner), len(self.owner)))
        for cluster, (owner, samples) in enumerate(zip(self.owner, self.samples, strict=True)):
            gaps = self.differences(errors[owner][:, samples], cluster)
            # Rounding must not make one sample more of a whole number
            last = max(1, math.ceil(self.alpha / 100 * gaps.shape[1] - 1e-9)) - 1
            bounds[cluster] = np.partition(gaps, last, axis=1)[:, last]
        return bounds

    def differences(self, errors: Matrix, cluster: int) -> Matrix:
        """Normalise the differences of errors ``[L, n]`` from those of a cluster's own model.

        For a model whose errors all differ equally, it is not defined: then 0 if equal, else 1.
        """
        gaps = np.abs(errors[cluster] - errors)
        low, high = gaps.min(axis=1, keepdims=True), gaps.max(axis=1, keepdims=True)
        spread = np.where(high == low, 1.0, high - low)
        return np.where(high == low, gaps > 0, (gaps - low) / spread)

    def train_communities(self) -> Conversation[None]:
        """Train one model per community by federated averaging (lines 21 to 23)."""
        self.models = self.server.initials(len(self.communities), COMMUNITIES, self.iteration)
        if not self.communities:
            return
        member = np.concatenate(self.communities)
        owners = torch.from_numpy(self.owner[member])
        parts = [torch.from_numpy(self.samples[cluster]) for cluster in member]
        weights = torch.tensor([float(len(part)) for part in parts])
        community = torch.tensor([g for g, members in enumerate(self.communities) for _ in members])
        first = self.iteration * (1 + self.rounds) + 1  # the order after that of the local models
        for order in range(first, first + self.rounds):
            jobs = Jobs(self.models, community, owners, self.federated, subset=parts)
            updates = local_updates((yield Train(jobs, order=order)), self.models, community)
            self.models = average_updates(self.models, updates, community, weights)

    def refine(self, client: int, general: Matrix) -> None:
        """Refine a client's clusters, given the errors ``[G, n]`` of the communities' models."""
        candidates = np.concatenate([self.errors[client][client], general])
        before = self.clusterings[client]
        # K is that of the start. There are fewer if clusters were lost, without enough communities
        k = min(len(set(self.start[client])), len(candidates))
        # So that each model of an inactive client belongs to the cluster of the same number
        refined = metrics.renamed(before, cluster_refine(candidates, k), first=0)
        self.clusterings[client] = refined
        # An inactive client keeps its models, so it must have one model for each cluster
        as_many = len(np.unique(refined)) == len(np.unique(before))
        resting = as_many and metrics.clustering_accuracy(before, refined) >= self.tau
        self.active[client] = not resting


def communities_of(edges: Edges) -> tuple[list[Labels], int]:
    """Find the components of two or more clusters, and count isolated clusters (lines 18 to 20)."""
    count, component = connected_components(edges, directed=False)
    members = (np.flatnonzero(component == number) for number in range(count))
    communities = [clusters for clusters in members if len(clusters) > 1]
    return communities, count - len(communities)


def cluster_refine(errors: Matrix, k: int) -> Labels:
    """Cluster a client's samples by the models that fit most of them best (Algorithm 2).

    Given the errors ``[M, n]`` of the candidates on the client's samples (of its own models, and
    then of the communities' models), it returns the cluster ``[n]`` of each sample. There are fewer
    than ``k`` clusters if no sample is left for them. Of equal candidates, the first one counts.
    """
    candidates, n = errors.shape
    if candidates < k:
        raise ValueError(f"{k} clusters need as many models; there are {candidates}")
    labels, available = np.full(n, -1), np.ones(candidates, dtype=bool)
    selected: list[int] = []
    while len(selected) < k and (labels < 0).any():  # lines 5 to 13
        rest = np.flatnonzero(labels < 0)
        best = np.where(available[:, None], errors[:, rest], np.inf).argmin(axis=0)
        winner = int(np.bincount(best, minlength=candidates).argmax())
        labels[rest[best == winner]] = len(selected)
        selected.append(winner)
        available[winner] = False
    rest = np.flatnonzero(labels < 0)  # lines 14 to 16
    labels[rest] = errors[selected][:, rest].argmin(axis=0)
    return labels


def stable(counts: Sequence[tuple[int, int]], bounds: tuple[float, float] = (0.1, 0.1)) -> bool:
    """Return whether G and I hardly change in three iterations (section 4.5).

    ``counts`` has both numbers, at the start and after each iteration. ``bounds`` are their largest
    changes, as shares of the number before; 0 counts as 1.
    """
    last = np.array(counts[-4:], dtype=float)
    changes = np.abs(np.diff(last, axis=0)) / np.maximum(last[:-1], 1)
    return len(last) == 4 and bool((changes <= bounds).all())
