"""FedCRef: find the classes of a whole federation without a label.

M. Nardi, L. Valerio, A. Passarella: Federated clustering: an unsupervised cluster-wise training for
decentralized data distributions. arXiv 2408.10664, Algorithms 1 and 2.

Each client holds several classes and begins with some clustering of its samples. Whoever trains an
autoencoder on a cluster may ask how well another's autoencoder reconstructs it; clusters on which
both do alike are associated; what is connected trains one model by federated averaging; and with
these models clients sort their samples anew.

A round of the method is an iteration of Algorithm 1, with many rounds of training in it. All
autoencoders of a step train as one batch of jobs. The error of each model on each sample is
computed once, when the model is new; associations and refinement only read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass as validated
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit import metrics
from cflkit.bounds import STRICT, Count, Share
from cflkit.federation import Jobs, LocalTraining, Losses, Request, Server, Train
from cflkit.methods.base import Method, average_updates, local_updates

# Initial models of the two kinds are drawn from streams of their own
LOCAL, COMMUNITIES = 0, 1

Labels = NDArray[np.int64]
Matrix = NDArray[np.float64]
Edges = NDArray[np.bool_]

Percent = Annotated[float, Field(gt=0, le=100)]
Accuracy = Annotated[float, Field(gt=0, le=1)]
Normalisation = Literal["min-max", "absolute"]
NORMALISATIONS = get_args(Normalisation)
Match = Literal["all", "first", "best"]
Stop = Literal["paper", "code"]
# A label per sample of each client
Clusterings = Sequence[ArrayLike]


def per_sample(given: Clusterings) -> tuple[tuple[int, ...], ...]:
    """Return labels as an option holds them."""
    return tuple(tuple(np.asarray(own, dtype=np.int64).tolist()) for own in given)


PerSample = Annotated[tuple[tuple[int, ...], ...], BeforeValidator(per_sample)]


def adam(epochs: int) -> LocalTraining:
    """Return the training of an autoencoder: Adam at its usual learning rate."""
    return LocalTraining(epochs=epochs, optimizer="adam", lr=1e-3)


@validated(config=STRICT)
class FedCRef(Method):
    """Federated cluster-wise refinement.

    Parameters
    ----------
    start : sequence of sequence of int
        For each client the first cluster of each of its training samples.
    alpha : float
        α, in per cent: so many of a cluster's samples must be reconstructed alike. With ``min-max``
        the largest difference is always 1: at α = 100 nobody agrees, nor, at 75, do clusters of
        three samples or fewer (θ below 1).
    theta : float
        θ: the normalised difference of errors up to which they are.
    tau : float
        τ: a client whose new clusters agree with the old ones to this accuracy becomes inactive.
    normalisation : {"min-max", "absolute"}
        ``min-max`` as published: the differences of a pair reach from 0 to 1, however small they
        are, and one outlier moves all others. ``absolute`` leaves them as they are, mean squared
        errors of pixels in [0, 1]; θ is then of another size (0.02, say).
    match : {"all", "first", "best"}
        How many of another client's clusters a cluster may be associated with: ``all`` that agree,
        as in Algorithm 1; the ``first`` that does, as in the authors' code; or the ``best``, with
        the smallest α-th percentile.
    stop : {"paper", "code"}
        When communities and isolated clusters are stable for three iterations: if both change by at
        most 10 % (``paper``), or 10 and 15 %, and after ten refinements per client (``code``). A
        run ends, too, when no client is active; the authors' code then goes on until it is stable.
    local : LocalTraining
        How an autoencoder trains on a cluster.
    federated : LocalTraining
        How a community's model trains in a round of federated averaging.
    rounds : int
        Rounds of federated averaging.
    associations : {"found", "true", "none"}
        As Algorithm 1 finds them; those of clusters of one true class, the paper's upper bound; or
        none, so that clients refine with their own models alone.
    truth : sequence of sequence of int, optional
        For each client the class of each of its training samples; for ``true`` associations alone.

    Attributes
    ----------
    clusterings : list of ndarray
        m of them, ``[n]``: the cluster of each of a client's samples.
    wanted : list of int
        K of each client, the number of its first clusters; a refinement may leave some empty.
    active : ndarray
        ``[m]``, bool.
    local_models : list of Tensor
        For each client ``[K, P]``, the autoencoders of its clusters; empty before the first.
    errors : list of list of ndarray
        ``errors[i][j]`` is ``[K, n]``: of client i's autoencoders on client j's samples.
    clusters : LocalClusters
        Those that the last iteration associated; before the first, the given ones.
    edges : ndarray
        ``[L, L]``, their associations.
    communities : list of ndarray
        Its connected components of two clusters or more, numbers of clusters.
    models : Tensor
        ``[G, P]``, the communities' models.
    counts : list of tuple of int
        Communities and isolated clusters, first at the start (all isolated), then of each
        iteration.
    refined : ndarray
        ``[m]``, how often a client has refined its clusters.
    """

    start: PerSample
    alpha: Percent = 75.0
    theta: Share = 0.2
    tau: Accuracy = 0.8
    normalisation: Normalisation = "min-max"
    match: Match = "all"
    stop: Stop = "paper"
    local: LocalTraining = field(default_factory=lambda: adam(20))
    federated: LocalTraining = field(default_factory=lambda: adam(7))
    rounds: Count = 15
    associations: Literal["found", "true", "none"] = "found"
    truth: PerSample | None = None

    def setup(self, server: Server, initial: Tensor) -> None:
        """Begin with the local clusters as they are given, all clients active (lines 2 to 4).

        Raises
        ------
        ValueError
            Labels that do not fit the clients' samples, or a client without any.
        """
        super().setup(server, initial)
        self.labels = None  # samples are clustered, clients are not
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

    @property
    def iteration(self) -> int:
        """How many iterations have been run."""
        return len(self.counts) - 1

    @property
    def finished(self) -> bool:
        """No client is active, or the system is stable or refined often enough (section 4.5)."""
        enough_refinements = self.stop == "code" and self.refined.mean() >= 10
        return not self.active.any() or stable(self.counts, self.stop) or bool(enough_refinements)

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run lines 6 to 31 of Algorithm 1 once."""
        self.clusters = local_clusters(self.clusterings)
        # Lines 6 to 8: active clients train a model on each of their clusters
        yield from self.train_local_models()
        # Lines 9 to 16: every client compares everybody's models on its clusters
        self.edges = self.associated()
        # Lines 17 to 20: communities, and isolated clusters
        self.communities, isolated = communities_of(self.edges)
        # Lines 21 to 25: a model for each community
        yield from self.train_communities()
        general = yield from reconstruction_errors(self.server, self.models)
        # Lines 26 to 31: active clients refine their clusters, and rest if little changes
        for client in np.flatnonzero(self.active):
            self.refine(int(client), general[client])
        self.counts.append((len(self.communities), isolated))

    def train_local_models(self) -> Generator[Request, Any, None]:
        """Train a fresh autoencoder per cluster of the active clients, and compare them."""
        if self.iteration and not self.errors:  # after a restart from a checkpoint
            yield from self.compare(range(self.server.clients), exchanged=False)
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
        self, owners: Sequence[int] | Labels, exchanged: bool = True
    ) -> Generator[Request, Any, None]:
        """Get the errors of some clients' autoencoders on everybody's samples."""
        self.errors = self.errors or [[] for _ in range(self.server.clients)]
        models = torch.cat([self.local_models[owner] for owner in owners])
        errors = yield from reconstruction_errors(self.server, models, exchanged)
        ends = np.cumsum([len(self.local_models[owner]) for owner in owners])
        parts = [np.split(of_client, ends[:-1]) for of_client in errors]
        for place, owner in enumerate(owners):
            self.errors[owner] = [part[place] for part in parts]

    def errors_on(self, client: int) -> Matrix:
        """``[L, n]``: of the models of all clusters on a client's samples."""
        return np.concatenate([of_models[client] for of_models in self.errors])

    def associated(self) -> Edges:
        """``[L, L]``: which clusters are associated, by the rule that was chosen."""
        if self.associations == "found":
            errors = [self.errors_on(client) for client in range(self.server.clients)]
            return associate(errors, self.clusters, self)
        if self.associations == "true":
            assert self.truth is not None
            return perfect_associations(self.truth, self.clusterings, self.clusters)
        return np.zeros((len(self.clusters), len(self.clusters)), dtype=bool)

    def train_communities(self) -> Generator[Request, Any, None]:
        """Train a model per community by federated averaging (lines 21 to 23)."""
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
        first = self.iteration * (1 + self.rounds) + 1  # after the training of local models
        for order in range(first, first + self.rounds):
            jobs = Jobs(self.models, community, owners, subset=parts, training=self.federated)
            trained = yield Train(jobs, order=order)
            updates = local_updates(trained, self.models, community)
            self.models = average_updates(self.models, updates, community, weights)

    def refine(self, client: int, general: Matrix) -> None:
        """Sort a client's samples anew by Algorithm 2 (lines 26 to 31).

        ``general`` are the errors of the communities' models on them, ``[G, n]``.
        """
        candidates = np.concatenate([self.errors[client][client], general])
        before = self.clusterings[client]
        # Fewer than K where clusters were lost before and there are not enough communities
        k = min(self.wanted[client], len(candidates))
        refined = align_labels(before, cluster_refine(candidates, k))
        self.refined[client] += 1
        self.clusterings[client] = refined
        # An inactive client keeps its models, and needs one for each cluster
        as_many = len(np.unique(refined)) == len(np.unique(before))
        resting = as_many and metrics.clustering_accuracy(before, refined) >= self.tau
        self.active[client] = not resting

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must hold; the errors are computed again."""
        kept = super().state()
        del kept["errors"]
        clusters = kept.pop("clusters")
        kept |= {"owner": clusters.owner, "samples": clusters.samples}
        return {name: as_tensors(value) for name, value in kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
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
    """All clients' clusters, L of them, client by client.

    Attributes
    ----------
    owner : ndarray
        ``[L]``, the client of each cluster.
    samples : list of ndarray
        L of them: positions among the owner's training samples, ascending.
    """

    owner: Labels
    samples: list[Labels]

    def __len__(self) -> int:
        return len(self.owner)

    def labels(self, client: int) -> Labels:
        """``[n]``: which of its clusters holds each sample of a client, from 0."""
        own = [self.samples[cluster] for cluster in np.flatnonzero(self.owner == client)]
        labels = np.empty(sum(map(len, own)), dtype=np.int64)
        for number, members in enumerate(own):
            labels[members] = number
        return labels


def local_clusters(labels: Sequence[Labels]) -> LocalClusters:
    """Return the clusters that clients' labels make, without empty ones."""
    pairs = [(c, np.flatnonzero(own == k)) for c, own in enumerate(labels) for k in np.unique(own)]
    return LocalClusters(np.array([c for c, _ in pairs]), [samples for _, samples in pairs])


def labels_of(given: Sequence[Sequence[int]], server: Server) -> list[Labels]:
    """Return labels as arrays, if there is one per training sample of each client.

    Raises
    ------
    ValueError
        There is not, or a client has no sample.
    """
    own = [np.asarray(labels, dtype=np.int64) for labels in given]
    sizes = [server.num_samples(client) for client in range(server.clients)]
    if [len(labels) for labels in own] != sizes:
        raise ValueError(f"needs labels for {sizes} samples, not {[len(given) for given in own]}")
    if 0 in sizes:
        raise ValueError(f"client {sizes.index(0)} has no sample")
    return own


def as_tensors(value: Any) -> Any:
    """Return arrays, and lists of them, as tensors, which checkpoints can hold."""
    if isinstance(value, list):
        return [as_tensors(member) for member in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def as_arrays(value: Any) -> Any:
    """Return tensors, and lists of them, as arrays."""
    if isinstance(value, list):
        return [as_arrays(member) for member in value]
    return value.numpy() if isinstance(value, Tensor) else value


def reconstruction_errors(
    server: Server, models: Tensor, exchanged: bool = True
) -> Generator[Request, Any, list[Matrix]]:
    """For each client ``[M, n]``: ask for the error of each of M models on each of its samples.

    Clients keep them to themselves: they compare, and report which clusters agree.
    """
    count, m = len(models), server.clients
    jobs = Jobs(models, torch.arange(count).repeat(m), torch.arange(m).repeat_interleave(count))
    answers = yield Losses(jobs, reported=False, exchanged=exchanged)
    found = [error.cpu().double().numpy() for error in answers]
    return [
        np.array(found[i * count : (i + 1) * count]).reshape(count, server.num_samples(i))
        for i in range(m)
    ]


def differences(errors: Matrix, own: int, normalisation: str) -> Matrix:
    """Return how differently each model reconstructs a cluster from the cluster's own model.

    Parameters
    ----------
    errors : ndarray
        ``[L, n]``, of all models on the cluster's samples.
    own : int
        The row of the cluster's own model.
    normalisation : {"min-max", "absolute"}
        As in `FedCRef`.

    Returns
    -------
    ndarray
        ``[L, n]`` in [0, 1], line 11. Where all samples differ by the same there is nothing to
        normalise by: 0 for no difference at all, else 1.
    """
    gaps = np.abs(errors[own] - errors)
    if normalisation == "absolute":
        return gaps
    low, high = gaps.min(axis=1, keepdims=True), gaps.max(axis=1, keepdims=True)
    flat = (high == low)[:, 0]
    spread = np.where(high == low, 1.0, high - low)
    return np.where(flat[:, None], gaps > 0, (gaps - low) / spread)


def associate(errors: Sequence[Matrix], clusters: LocalClusters, options: FedCRef) -> Edges:
    """Find out which clusters are associated (lines 10 to 16).

    Parameters
    ----------
    errors : sequence of ndarray
        For each client ``[L, n]``, of all clusters' models on its samples.
    clusters : LocalClusters
        L of them.
    options : FedCRef
        α, θ, the normalisation and which matches count.

    Returns
    -------
    ndarray
        ``[L, L]``, symmetric: pairs of two clients' clusters whose models reconstruct each of the
        two clusters alike (equation 2).
    """
    quantile = np.empty((len(clusters), len(clusters)))
    for own, (owner, samples) in enumerate(zip(clusters.owner, clusters.samples, strict=True)):
        gaps = differences(errors[owner][:, samples], own, options.normalisation)
        # The smallest bound under which α per cent of the samples lie: at most θ if and only if
        # Pr{gap ≤ θ} ≥ α
        quantile[own] = np.percentile(gaps, options.alpha, axis=1, method="inverted_cdf")
    strangers = clusters.owner[:, None] != clusters.owner[None]
    both = (np.maximum(quantile, quantile.T) <= options.theta) & strangers
    if options.match == "all":
        return both
    return keep_one_match(both, np.maximum(quantile, quantile.T), clusters.owner, options.match)


def keep_one_match(both: Edges, distance: Matrix, owner: Labels, match: str) -> Edges:
    """Keep of the pairs that agree at most one per cluster and other client.

    The first in the order of clusters, or that of the smallest ``distance``; a pair stays if it is
    so from both sides.
    """
    rank = np.arange(len(owner))[None] if match == "first" else distance
    rank = np.where(both, rank, np.inf)
    kept = np.zeros_like(both)
    for client in np.unique(owner):
        theirs = np.flatnonzero(owner == client)
        chosen = theirs[rank[:, theirs].argmin(axis=1)]
        kept[np.arange(len(owner)), chosen] = True
    kept &= both  # a cluster that agrees with none of a client's has been given one, too
    return kept & kept.T


def communities_of(edges: Edges) -> tuple[list[Labels], int]:
    """Return the components of two or more clusters, and how many are isolated (lines 18 to 20)."""
    count, component = connected_components(edges, directed=False)
    members = [np.flatnonzero(component == number) for number in range(count)]
    communities = [cluster for cluster in members if len(cluster) > 1]
    return communities, count - len(communities)


def cluster_refine(errors: Matrix, k: int) -> Labels:
    """Sort a client's samples anew, by the models that fit most of them best (Algorithm 2).

    Parameters
    ----------
    errors : ndarray
        ``[M, n]``, of the candidates (a client's own models, then the communities') on the client's
        samples.
    k : int
        How many clusters to form; fewer if no sample is left for them. Of candidates that fit as
        many samples the earlier wins; so does the earlier of two that fit a sample alike.

    Returns
    -------
    ndarray
        ``[n]``, from 0.

    Raises
    ------
    ValueError
        Fewer candidates than clusters.
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
    """Return ``after`` with each cluster under the name of the old one that it matches best.

    So that a client that becomes inactive still has each model beside its cluster. New clusters
    that match none take the names that are left, and then new ones.
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

    A change is relative to the number before (0 counts as 1), and may be 10 %; of isolated clusters
    15 % by the code's rule.
    """
    bounds = (0.10, 0.10) if stop == "paper" else (0.10, 0.15)
    last = np.array(counts[-4:], dtype=float)
    if len(last) < 4:
        return False
    changes = np.abs(np.diff(last, axis=0)) / np.maximum(last[:-1], 1)
    return bool((changes <= bounds).all())


def true_classes(truth: Sequence[Sequence[int]], labels: Sequence[Labels]) -> Labels:
    """``[L]``: the class that each cluster stands for within its client; -1 for none.

    By the matching that gives the client its accuracy.
    """
    found = []
    for classes, own in zip(truth, labels, strict=True):
        names = metrics.matched(classes, own)
        found += [names.get(int(cluster), -1) for cluster in np.unique(own)]
    return np.array(found)


def perfect_associations(
    truth: Sequence[Sequence[int]], labels: Sequence[Labels], clusters: LocalClusters
) -> Edges:
    """``[L, L]``: clusters of two clients that stand for one class, the paper's upper bound."""
    classes = true_classes(truth, labels)
    alike = (classes[:, None] == classes[None]) & (classes >= 0)
    return alike & (clusters.owner[:, None] != clusters.owner[None])
