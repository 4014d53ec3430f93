"""FedCRef: find the classes of a whole federation without labels.

M. Nardi, L. Valerio, A. Passarella: Federated clustering: an unsupervised cluster-wise training for
decentralized data distributions. arXiv 2408.10664, Algorithms 1 and 2.

Each client holds several classes, and begins with some clustering of its samples. It trains an
autoencoder on each of its local clusters. Two clusters of different clients are associated if the
autoencoders of both reconstruct the samples of each cluster about equally well. Connected clusters
form a community and train one model by federated averaging. With the models of the communities,
clients assign their samples to clusters again.

A round of the method is an iteration of Algorithm 1, which contains many rounds of training. All
autoencoders of a step train as one batch of jobs. The error of each model on each sample is
computed once, when the model is new. Associations and refinement only read these errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass as validated
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit import metrics
from cflkit._bounds import STRICT, Count, Match, Normalisation, Percent, PositiveShare, Share, Stop
from cflkit.federation import Jobs, LocalTraining, Losses, Request, Server, Train
from cflkit.methods.base import Method, average_updates, local_updates, whole_numbers

# The initial models of the two kinds are drawn from different random streams
LOCAL, COMMUNITIES = 0, 1

Labels = NDArray[np.int64]
Matrix = NDArray[np.float64]
Edges = NDArray[np.bool_]

NORMALISATIONS = get_args(Normalisation)
# One label per sample of each client
Clusterings = Sequence[ArrayLike]


def per_sample(given: Clusterings) -> tuple[tuple[int, ...], ...]:
    """Convert the labels of each client's samples to tuples, by `whole_numbers`.

    Raises
    ------
    ValueError
        There are no labels per client, or one is negative or no integer.
    """
    if not isinstance(given, Iterable):
        raise ValueError("needs the labels of each client's samples")
    return tuple(whole_numbers(own) for own in given)


PerSample = Annotated[tuple[tuple[int, ...], ...], BeforeValidator(per_sample)]


def adam(epochs: int) -> LocalTraining:
    """Build the local training of an autoencoder, by Adam with its usual learning rate."""
    return LocalTraining(epochs=epochs, optimizer="adam", lr=1e-3)


@validated(config=STRICT)
class FedCRef(Method):
    """Federated cluster-wise refinement.

    Parameters
    ----------
    start : sequence of sequence of int
        For each client, the initial local cluster of each of its training samples.
    alpha : float
        The percentage α of a cluster's samples that two models must reconstruct alike. With
        ``min-max``, the largest normalised difference is always 1. For θ below 1, no clusters agree
        at α = 100, and clusters of three samples or fewer never agree at α = 75.
    theta : float
        The largest normalised difference θ of the errors of two models on a sample that they
        reconstruct alike.
    tau : float
        The accuracy τ with which a client's new clusters must agree with the old ones for the
        client to become inactive.
    normalisation : {"min-max", "absolute"}
        The normalisation of differences. With ``min-max``, as published, the differences of a pair
        range from 0 to 1, however small they are, and one outlier changes all others. With
        ``absolute``, they remain differences between mean squared errors of pixels in [0, 1]. This
        needs another order of magnitude for θ, such as 0.02.
    match : {"all", "first", "best"}
        The clusters of another client with which a cluster may be associated: ``all`` that agree,
        as in Algorithm 1; the ``first`` that agrees; or the ``best``, with the smallest α-th
        percentile. One match must hold from both sides here. The authors' code takes the first one
        from the side of the client with the smaller number alone, and so keeps more associations.
    stop : {"paper", "code"}
        The rule by which a run ends. By ``paper``, it ends when the numbers of communities and of
        isolated clusters are stable, with changes of at most 10 % in each of three iterations. By
        ``code``, these changes are at most 10 and 15 %, and the run also ends when clients have
        refined ten times on average. In both cases, a run also ends when no client is active; the
        authors' code then continues until it is stable.
    local : LocalTraining
        The training of an autoencoder on a local cluster.
    federated : LocalTraining
        The local training of a community's model in a round of federated averaging.
    rounds : int
        The number of rounds of federated averaging.
    associations : {"found", "true", "none"}
        The associations to use: those that Algorithm 1 finds; those between clusters of the same
        true class, which is the paper's upper bound; or none, so that clients refine with their own
        models alone.
    truth : sequence of sequence of int, optional
        For each client, the class of each of its training samples. Only ``true`` associations use
        it.

    Attributes
    ----------
    clusterings : list of ndarray
        For each of the m clients, ``[n]``: the local cluster of each of its samples.
    wanted : list of int
        For each client, the number K of its initial clusters. A refinement may leave some empty.
    active : ndarray
        ``[m]``, bool: whether each client still refines its clusters.
    local_models : list of Tensor
        For each client, ``[K, P]``: the autoencoders of its clusters. They are empty before the
        first iteration.
    errors : list of list of ndarray
        ``errors[i][j]`` is ``[K, n]``: the errors of client i's autoencoders on client j's samples.
    clusters : LocalClusters
        The L local clusters of the last iteration; before the first iteration, the initial ones.
    edges : ndarray
        ``[L, L]``, the associations between these clusters.
    communities : list of ndarray
        The connected components of two or more clusters, as numbers of clusters.
    models : Tensor
        ``[G, P]``, the models of the communities.
    counts : list of tuple of int
        The numbers of communities and of isolated clusters: at the start, where all clusters are
        isolated, and after each iteration.
    refined : ndarray
        ``[m]``, how often each client has refined its clusters.
    """

    task: ClassVar[str] = "reconstruction"

    start: PerSample
    alpha: Percent = 75.0
    theta: Share = 0.2
    tau: PositiveShare = 0.8
    normalisation: Normalisation = "min-max"
    match: Match = "all"
    stop: Stop = "paper"
    local: LocalTraining = field(default_factory=lambda: adam(20))
    federated: LocalTraining = field(default_factory=lambda: adam(7))
    rounds: Count = 15
    associations: Literal["found", "true", "none"] = "found"
    truth: PerSample | None = None

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare with the given local clusters, where all clients are active (lines 2 to 4).

        Raises
        ------
        ValueError
            Labels do not fit the clients' samples, a client has no sample, or there is no truth for
            ``true`` associations.
        """
        self.counts: list[tuple[int, int]] = []  # what has been run before is forgotten
        super().setup(server, initial)
        self.labels = None  # the method clusters samples, not clients
        self.clusterings = labels_of(self.start, server)
        if self.associations == "true":
            if self.truth is None:
                raise ValueError("true associations need the true classes (truth)")
            labels_of(self.truth, server)
        self.wanted = [len(np.unique(given)) for given in self.clusterings]
        self.active = np.ones(server.clients, dtype=bool)
        self.models = server.initials(0)
        self.local_models = [self.models] * server.clients
        self.errors: list[list[Matrix]] = []
        self.clusters = local_clusters(self.clusterings)
        self.edges = np.zeros((len(self.clusters), len(self.clusters)), dtype=bool)
        self.communities: list[Labels] = []
        self.counts = [(0, len(self.clusters))]
        self.refined = np.zeros(server.clients, dtype=np.int64)

    def enter(self, server: Server) -> None:
        """Take part in a federation; after the setup, only with the same samples.

        The method has clusters and errors of these samples. The server knows only how many there
        are, so that other samples of the same number are not noticed.

        Raises
        ------
        ValueError
            A client has another number of samples than there are labels.
        """
        if self.counts:
            labels_of(self.clusterings, server)
        super().enter(server)

    @property
    def iteration(self) -> int:
        """Return how many iterations have been run."""
        return len(self.counts) - 1

    @property
    def finished(self) -> bool:
        """Return whether no client is active, or the rule ``stop`` ends the run (section 4.5)."""
        enough_refinements = self.stop == "code" and self.refined.mean() >= 10
        return not self.active.any() or stable(self.counts, self.stop) or bool(enough_refinements)

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run lines 6 to 31 of Algorithm 1 once."""
        self.clusters = local_clusters(self.clusterings)
        # Lines 6 to 8: active clients train a model on each of their clusters
        yield from self.train_local_models()
        # Lines 9 to 16: every client compares the models of all clients on its own clusters
        self.edges = self.associated()
        # Lines 17 to 20: communities, and isolated clusters
        self.communities, isolated = communities_of(self.edges)
        # Lines 21 to 25: a model for each community
        yield from self.train_communities()
        general = yield from reconstruction_errors(self.server, self.models)
        # Lines 26 to 31: active clients refine their clusters; little change makes them inactive
        for client in np.flatnonzero(self.active):
            self.refine(int(client), general[client])
        self.counts.append((len(self.communities), isolated))

    def train_local_models(self) -> Generator[Request, Any, None]:
        """Train a new autoencoder for each cluster of the active clients, and compare them."""
        if self.iteration and not self.errors:  # after a restart from a checkpoint
            yield from self.compare(range(self.server.clients), sent=False)
        mine = np.flatnonzero(self.active[self.clusters.owner])
        if not len(mine):
            return
        fresh = self.server.initials(len(mine), LOCAL, self.iteration)
        owners = self.clusters.owner[mine]
        jobs = Jobs(
            fresh,
            torch.arange(len(mine)),
            torch.from_numpy(owners),
            subset=[torch.from_numpy(self.clusters.samples[cluster]) for cluster in mine],
            training=self.local,
        )
        trained = yield Train(jobs, order=self.iteration * (1 + self.rounds))
        for client in np.flatnonzero(self.active):
            self.local_models[client] = trained[np.flatnonzero(owners == client)]
        yield from self.compare(np.flatnonzero(self.active))

    def compare(
        self, owners: Sequence[int] | Labels, sent: bool = True
    ) -> Generator[Request, Any, None]:
        """Compute the errors of some clients' autoencoders on the samples of all clients."""
        self.errors = self.errors or [[] for _ in range(self.server.clients)]
        models = torch.cat([self.local_models[owner] for owner in owners])
        errors = yield from reconstruction_errors(self.server, models, sent)
        ends = np.cumsum([len(self.local_models[owner]) for owner in owners])
        parts = [np.split(of_client, ends[:-1]) for of_client in errors]
        for place, owner in enumerate(owners):
            self.errors[owner] = [part[place] for part in parts]

    def errors_on(self, client: int) -> Matrix:
        """Return the errors ``[L, n]`` of the models of all clusters on a client's samples."""
        return np.concatenate([of_models[client] for of_models in self.errors])

    def associated(self) -> Edges:
        """Return which clusters are associated, ``[L, L]``, by the option ``associations``."""
        if self.associations == "found":
            errors = [self.errors_on(client) for client in range(self.server.clients)]
            return associate(errors, self.clusters, self)
        if self.associations == "true":
            assert self.truth is not None
            return perfect_associations(self.truth, self.clusterings, self.clusters)
        return np.zeros((len(self.clusters), len(self.clusters)), dtype=bool)

    def train_communities(self) -> Generator[Request, Any, None]:
        """Train one model per community by federated averaging (lines 21 to 23)."""
        count = len(self.communities)
        self.models = self.server.initials(count, COMMUNITIES, self.iteration)
        if not count:
            return
        member = np.concatenate(self.communities)
        sizes = [len(community) for community in self.communities]
        community = torch.from_numpy(np.repeat(np.arange(count), sizes))
        parts = [torch.from_numpy(self.clusters.samples[cluster]) for cluster in member]
        weights = torch.tensor([float(len(part)) for part in parts])
        owners = torch.from_numpy(self.clusters.owner[member])
        first = self.iteration * (1 + self.rounds) + 1  # the order after that of the local models
        for order in range(first, first + self.rounds):
            jobs = Jobs(self.models, community, owners, subset=parts, training=self.federated)
            trained = yield Train(jobs, order=order)
            updates = local_updates(trained, self.models, community)
            self.models = average_updates(self.models, updates, community, weights)

    def refine(self, client: int, general: Matrix) -> None:
        """Assign a client's samples to clusters again, by Algorithm 2 (lines 26 to 31).

        ``general`` are the errors ``[G, n]`` of the communities' models on these samples.
        """
        candidates = np.concatenate([self.errors[client][client], general])
        before = self.clusterings[client]
        # Fewer than K if clusters were lost before and there are not enough communities
        k = min(self.wanted[client], len(candidates))
        refined = align_labels(before, cluster_refine(candidates, k))
        self.refined[client] += 1
        self.clusterings[client] = refined
        # An inactive client keeps its models, so it must have one model for each cluster
        as_many = len(np.unique(refined)) == len(np.unique(before))
        resting = as_many and metrics.clustering_accuracy(before, refined) >= self.tau
        self.active[client] = not resting

    def state(self) -> dict[str, Any]:
        """Return the contents of a checkpoint, without the errors, which are computed again."""
        kept = super().state()
        del kept["errors"]
        clusters = kept.pop("clusters")
        kept |= {"owner": clusters.owner, "samples": clusters.samples}
        return {name: as_tensors(value) for name, value in kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        kept = {
            name: value if name in ("models", "local_models") else as_arrays(value)
            for name, value in state.items()
        }
        self.clusters = LocalClusters(kept.pop("owner"), kept.pop("samples"))
        super().restore(kept)
        self.counts = [(communities, isolated) for communities, isolated in self.counts]
        self.errors = []


@dataclass(frozen=True)
class LocalClusters:
    """The L local clusters of all clients, client by client.

    Attributes
    ----------
    owner : ndarray
        ``[L]``, the client of each cluster.
    samples : list of ndarray
        For each cluster, the positions of its samples among the owner's training samples, in
        ascending order.
    """

    owner: Labels
    samples: list[Labels]

    def __len__(self) -> int:
        return len(self.owner)

    def labels(self, client: int) -> Labels:
        """Return the labels ``[n]`` of a client's samples: the number of the cluster, from 0."""
        own = [self.samples[cluster] for cluster in np.flatnonzero(self.owner == client)]
        labels = np.empty(sum(map(len, own)), dtype=np.int64)
        for number, members in enumerate(own):
            labels[members] = number
        return labels


def local_clusters(labels: Sequence[Labels]) -> LocalClusters:
    """Build the local clusters from the clients' labels, without empty clusters."""
    pairs = [(c, np.flatnonzero(own == k)) for c, own in enumerate(labels) for k in np.unique(own)]
    return LocalClusters(np.array([c for c, _ in pairs]), [samples for _, samples in pairs])


def labels_of(given: Sequence[Sequence[int] | Labels], server: Server) -> list[Labels]:
    """Return labels as arrays, if there is one label per training sample of each client.

    Raises
    ------
    ValueError
        A client has another number of labels than training samples, or a client has no sample.
    """
    own = [np.asarray(labels, dtype=np.int64) for labels in given]
    sizes = [server.num_samples(client) for client in range(server.clients)]
    if [len(labels) for labels in own] != sizes:
        raise ValueError(f"needs labels for {sizes} samples, not {[len(given) for given in own]}")
    if 0 in sizes:
        raise ValueError(f"client {sizes.index(0)} has no sample")
    return own


def as_tensors(value: Any) -> Any:
    """Convert arrays, and arrays in lists, to tensors, which checkpoints can hold."""
    if isinstance(value, list):
        return [as_tensors(member) for member in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def as_arrays(value: Any) -> Any:
    """Convert tensors, and tensors in lists, to arrays."""
    if isinstance(value, list):
        return [as_arrays(member) for member in value]
    return value.numpy() if isinstance(value, Tensor) else value


def reconstruction_errors(
    server: Server, models: Tensor, sent: bool = True
) -> Generator[Request, Any, list[Matrix]]:
    """Ask each client for the errors ``[M, n]`` of M models on its samples.

    Clients do not send the errors to the server. They compare them, and report which clusters
    agree.
    """
    count, m = len(models), server.clients
    jobs = Jobs(models, torch.arange(count).repeat(m), torch.arange(m).repeat_interleave(count))
    answers = yield Losses(jobs, reported=False, sent=sent)
    found = [error.cpu().double().numpy() for error in answers]
    return [
        np.array(found[i * count : (i + 1) * count]).reshape(count, server.num_samples(i))
        for i in range(m)
    ]


def differences(errors: Matrix, own: int, normalisation: str) -> Matrix:
    """Compute how much the errors of each model differ from those of the cluster's own model.

    Parameters
    ----------
    errors : ndarray
        ``[L, n]``, the errors of all models on the cluster's samples.
    own : int
        The row of the cluster's own model.
    normalisation : {"min-max", "absolute"}
        The normalisation, as in `FedCRef`.

    Returns
    -------
    ndarray
        ``[L, n]`` in [0, 1], line 11. If the errors of two models differ by the same value on all
        samples, min-max normalisation is not defined: the result is then 0 for no difference, and
        else 1.
    """
    gaps = np.abs(errors[own] - errors)
    if normalisation == "absolute":
        return gaps
    low, high = gaps.min(axis=1, keepdims=True), gaps.max(axis=1, keepdims=True)
    flat = (high == low)[:, 0]
    spread = np.where(high == low, 1.0, high - low)
    return np.where(flat[:, None], gaps > 0, (gaps - low) / spread)


def associate(errors: Sequence[Matrix], clusters: LocalClusters, options: FedCRef) -> Edges:
    """Find the associated clusters (lines 10 to 16).

    Parameters
    ----------
    errors : sequence of ndarray
        For each client, ``[L, n]``: the errors of all clusters' models on its samples.
    clusters : LocalClusters
        The L local clusters.
    options : FedCRef
        The method, which has α, θ, the normalisation and the rule for matches.

    Returns
    -------
    ndarray
        ``[L, L]``, symmetric: the pairs of clusters of different clients whose two models
        reconstruct each of the two clusters alike (equation 2).
    """
    quantile = np.empty((len(clusters), len(clusters)))
    for own, (owner, samples) in enumerate(zip(clusters.owner, clusters.samples, strict=True)):
        gaps = differences(errors[owner][:, samples], own, options.normalisation)
        # The smallest bound that the gaps of α per cent of the samples do not exceed; it is at most
        # θ if and only if Pr{gap ≤ θ} ≥ α. Rounding must not make one sample more of a whole number
        last = max(1, math.ceil(options.alpha / 100 * gaps.shape[1] - 1e-9)) - 1
        quantile[own] = np.partition(gaps, last, axis=1)[:, last]
    two_clients = clusters.owner[:, None] != clusters.owner[None]
    both = (np.maximum(quantile, quantile.T) <= options.theta) & two_clients
    if options.match == "all":
        return both
    return keep_one_match(both, np.maximum(quantile, quantile.T), clusters.owner, options.match)


def keep_one_match(both: Edges, distance: Matrix, owner: Labels, match: str) -> Edges:
    """Keep at most one of the agreeing pairs per cluster and other client.

    A cluster's match with another client is the first of this client's clusters that agrees, or the
    agreeing cluster with the smallest ``distance``. A pair is kept if each of the two clusters is
    the match of the other.
    """
    rank = np.arange(len(owner))[None] if match == "first" else distance
    rank = np.where(both, rank, np.inf)
    kept = np.zeros_like(both)
    for client in np.unique(owner):
        theirs = np.flatnonzero(owner == client)
        chosen = theirs[rank[:, theirs].argmin(axis=1)]
        kept[np.arange(len(owner)), chosen] = True
    kept &= both  # argmin chooses a cluster even if none of the client's agrees
    return kept & kept.T


def communities_of(edges: Edges) -> tuple[list[Labels], int]:
    """Find the components of two or more clusters, and count isolated clusters (lines 18 to 20)."""
    count, component = connected_components(edges, directed=False)
    members = [np.flatnonzero(component == number) for number in range(count)]
    communities = [cluster for cluster in members if len(cluster) > 1]
    return communities, count - len(communities)


def cluster_refine(errors: Matrix, k: int) -> Labels:
    """Cluster a client's samples by the models that fit most of them best (Algorithm 2).

    Among candidates that fit the same number of samples best, the first one is selected. Among
    candidates that fit a sample equally well, the sample counts for the first one.

    Parameters
    ----------
    errors : ndarray
        ``[M, n]``, the errors of the candidates on the client's samples. The candidates are the
        client's own models, followed by the communities' models.
    k : int
        The number of clusters to form. There are fewer if no sample is left for them.

    Returns
    -------
    ndarray
        ``[n]``, the cluster of each sample, from 0.

    Raises
    ------
    ValueError
        There are fewer candidates than clusters.
    """
    candidates, n = errors.shape
    if candidates < k:
        raise ValueError(f"{k} clusters need as many models; there are {candidates}")
    labels = np.full(n, -1)
    available = np.ones(candidates, dtype=bool)
    selected: list[int] = []
    while len(selected) < k and (labels < 0).any():
        rest = np.flatnonzero(labels < 0)
        best = np.where(available[:, None], errors[:, rest], np.inf).argmin(axis=0)
        winner = int(np.bincount(best, minlength=candidates).argmax())
        labels[rest[best == winner]] = len(selected)
        selected.append(winner)
        available[winner] = False
    rest = np.flatnonzero(labels < 0)
    labels[rest] = errors[selected][:, rest].argmin(axis=0)
    return labels


def align_labels(before: Labels, after: Labels) -> Labels:
    """Rename the clusters of ``after`` by the best matching with the clusters of ``before``.

    If the client becomes inactive, each of its models then still belongs to the cluster of the same
    number. Clusters without a match get the smallest unused numbers.
    """
    names = metrics.matched(before, after)
    taken = set(names.values())
    free = (name for name in itertools.count() if name not in taken)
    for cluster in after.tolist():
        if cluster not in names:
            names[cluster] = next(free)
    return np.array([names[cluster] for cluster in after.tolist()])


def stable(counts: Sequence[tuple[int, int]], stop: str) -> bool:
    """Return whether communities and isolated clusters have hardly changed for three iterations.

    Changes are relative to the number before, where 0 counts as 1. They may be at most 10 %. By the
    rule of the code, those of isolated clusters may be at most 15 %.
    """
    bounds = (0.10, 0.10) if stop == "paper" else (0.10, 0.15)
    last = np.array(counts[-4:], dtype=float)
    if len(last) < 4:
        return False
    changes = np.abs(np.diff(last, axis=0)) / np.maximum(last[:-1], 1)
    return bool((changes <= bounds).all())


def true_classes(truth: Sequence[Sequence[int]], labels: Sequence[Labels]) -> Labels:
    """Return the class that each local cluster represents, ``[L]``; -1 for no class.

    Clusters and classes are matched within each client, as for the client's accuracy.
    """
    found = []
    for classes, own in zip(truth, labels, strict=True):
        names = metrics.matched(classes, own)
        found += [names.get(int(cluster), -1) for cluster in np.unique(own)]
    return np.array(found)


def perfect_associations(
    truth: Sequence[Sequence[int]], labels: Sequence[Labels], clusters: LocalClusters
) -> Edges:
    """Associate the clusters of different clients that represent the same class, ``[L, L]``.

    These associations are the paper's upper bound.
    """
    classes = true_classes(truth, labels)
    alike = (classes[:, None] == classes[None]) & (classes >= 0)
    return alike & (clusters.owner[:, None] != clusters.owner[None])
