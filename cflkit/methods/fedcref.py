"""FedCRef: find the classes of a whole federation without a label.

M. Nardi, L. Valerio, A. Passarella: Federated clustering: an unsupervised cluster-wise training for
decentralized data distributions. arXiv 2408.10664, Algorithms 1 and 2.

Each client holds several classes and begins with some clustering of its samples. Whoever trains an
autoencoder on a cluster may ask how well another's autoencoder reconstructs it; clusters on which
both do alike are associated; what is connected trains one model by federated averaging; and with
these models clients sort their samples anew.

All autoencoders of a step train as one batch of jobs. The error of each model on each sample is
computed once, when the model is new; associations and refinement only read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit import metrics
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.methods.base import average_updates, local_updates

NORMALISATIONS = ("min-max", "absolute")
MATCHES = ("all", "first", "best")
STOPS = ("paper", "code")
ASSOCIATIONS = ("found", "true", "none")
# Initial models of the two kinds are drawn from streams of their own
LOCAL, COMMUNITIES = 0, 1

Labels = NDArray[np.int64]
Matrix = NDArray[np.float64]
Edges = NDArray[np.bool_]


@dataclass(frozen=True)
class FedCRef:
    """The options of FedCRef.

    Attributes
    ----------
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
        most 10 % (``paper``), or 10 and 15 %, and after ten refinements a client (``code``). A run
        ends, too, when no client is active; the authors' code then goes on until it is stable.
    local : LocalTraining
        Of an autoencoder on a cluster.
    federated : LocalTraining
        Of a community's model in a round of federated averaging.
    rounds : int
        Of federated averaging.
    associations : {"found", "true", "none"}
        As Algorithm 1 finds them; those of clusters of one true class, the paper's upper bound; or
        none, so that clients refine with their own models alone.
    """

    alpha: float = 75.0
    theta: float = 0.2
    tau: float = 0.8
    normalisation: str = "min-max"
    match: str = "all"
    stop: str = "paper"
    local: LocalTraining = field(
        default_factory=lambda: LocalTraining(epochs=20, optimizer="adam", lr=1e-3)
    )
    federated: LocalTraining = field(
        default_factory=lambda: LocalTraining(epochs=7, optimizer="adam", lr=1e-3)
    )
    rounds: int = 15
    associations: str = "found"

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 100:
            raise ValueError(f"alpha must be in (0, 100], not {self.alpha}")
        if not 0 <= self.theta <= 1:
            raise ValueError(f"theta must be in [0, 1], not {self.theta}")
        if not 0 < self.tau <= 1:
            raise ValueError(f"tau must be in (0, 1], not {self.tau}")
        for name, known in (
            ("normalisation", NORMALISATIONS),
            ("match", MATCHES),
            ("stop", STOPS),
            ("associations", ASSOCIATIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"unknown {name} {getattr(self, name)!r}; known are {', '.join(known)}"
                )
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, not {self.rounds}")


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


def local_clusters(labels: Sequence[Labels]) -> LocalClusters:
    """The clusters that clients' labels make, empty ones left out."""
    pairs = [(c, np.flatnonzero(own == k)) for c, own in enumerate(labels) for k in np.unique(own)]
    return LocalClusters(np.array([c for c, _ in pairs]), [samples for _, samples in pairs])


@dataclass
class State:
    """Where a run of Algorithm 1 stands between two iterations.

    Attributes
    ----------
    labels : list of ndarray
        m of them, ``[n]``: the cluster of each of a client's samples.
    wanted : list of int
        K of each client, the number of its first clusters; a refinement may leave some empty.
    active : ndarray
        ``[m]``, bool.
    models : list of Tensor
        For each client ``[K, P]``, the autoencoders of its clusters; empty before the first.
    errors : list of list of ndarray
        ``errors[i][j]`` is ``[K, n]``: of client i's autoencoders on client j's samples.
    clusters : LocalClusters
        Those that the last iteration associated; before the first, the given ones.
    edges : ndarray
        ``[L, L]``, their associations.
    communities : list of ndarray
        Its connected components of two clusters or more, numbers of clusters.
    federated : Tensor
        ``[G, P]``, the communities' models.
    counts : list of tuple of int
        Communities and isolated clusters, first at the start (all isolated), then of each
        iteration.
    refined : ndarray
        ``[m]``, how often a client has refined its clusters.
    """

    labels: list[Labels]
    wanted: list[int]
    active: NDArray[np.bool_]
    models: list[Tensor]
    errors: list[list[Matrix]]
    clusters: LocalClusters
    edges: Edges
    communities: list[Labels]
    federated: Tensor
    counts: list[tuple[int, int]]
    refined: Labels

    @property
    def iteration(self) -> int:
        """How many iterations have been run."""
        return len(self.counts) - 1

    def errors_on(self, client: int) -> Matrix:
        """``[L, n]``: of the models of all clusters on a client's samples."""
        return np.concatenate([of_models[client] for of_models in self.errors])


def start(federation: Federation, labels: Sequence[ArrayLike]) -> State:
    """Lines 2 to 4 of Algorithm 1: local clusters as they are given, all clients active.

    Parameters
    ----------
    federation : Federation
        Whose task is reconstruction.
    labels : sequence of array_like
        m of them, ``[n]``: the cluster of each training sample of a client.

    Raises
    ------
    ValueError
        Labels that do not fit the clients' samples, or a client without any.
    """
    own = [np.asarray(given, dtype=np.int64) for given in labels]
    sizes = [federation.samples(client) for client in range(federation.clients)]
    if [len(given) for given in own] != sizes:
        raise ValueError(f"needs labels for {sizes} samples, not {[len(given) for given in own]}")
    if 0 in sizes:
        raise ValueError(f"client {sizes.index(0)} has no sample")
    clusters = local_clusters(own)
    m = federation.clients
    return State(
        labels=own,
        wanted=[len(np.unique(given)) for given in own],
        active=np.ones(m, dtype=bool),
        models=[federation.initials(0)] * m,
        errors=[[] for _ in range(m)],
        clusters=clusters,
        edges=np.zeros((len(clusters), len(clusters)), dtype=bool),
        communities=[],
        federated=federation.initials(0),
        counts=[(0, len(clusters))],
        refined=np.zeros(m, dtype=np.int64),
    )


def iterate(
    federation: Federation, state: State, options: FedCRef, alike: State | None = None
) -> None:
    """Lines 6 to 31 of Algorithm 1, once; changes ``state``.

    ``alike`` is the state of a variant that trains alike, began this iteration with the same
    clusters, and has been through it: its local models are taken over.
    """
    state.clusters = local_clusters(state.labels)
    # Lines 6 to 8: active clients train a model on each of their clusters
    if alike is None:
        train_local_models(federation, state, options)
    else:
        state.models, state.errors = [*alike.models], [*alike.errors]
    # Lines 9 to 16: every client compares everybody's models on its clusters
    if options.associations == "found":
        errors = [state.errors_on(client) for client in range(federation.clients)]
        state.edges = associate(errors, state.clusters, options)
    elif options.associations == "true":
        classes = true_classes(federation, state.labels)
        state.edges = perfect_associations(classes, state.clusters)
    else:
        state.edges = np.zeros((len(state.clusters), len(state.clusters)), dtype=bool)
    # Lines 17 to 20: communities, and isolated clusters
    state.communities, isolated = communities_of(state.edges)
    # Lines 21 to 25: a model for each community
    state.federated = train_communities(federation, state, options)
    general = reconstruction_errors(federation, state.federated)
    # Lines 26 to 31: active clients refine their clusters, and rest if little changes
    for client in np.flatnonzero(state.active):
        candidates = np.concatenate([state.errors[client][client], general[client]])
        before = state.labels[client]
        # Fewer than K where clusters were lost before and there are not enough communities
        k = min(state.wanted[client], len(candidates))
        refined = renamed(before, cluster_refine(candidates, k))
        state.refined[client] += 1
        state.labels[client] = refined
        # Who rests keeps its models, and needs one for each cluster
        as_many = len(np.unique(refined)) == len(np.unique(before))
        resting = as_many and metrics.clustering_accuracy(before, refined) >= options.tau
        state.active[client] = not resting
    state.counts.append((len(state.communities), isolated))


def train_local_models(federation: Federation, state: State, options: FedCRef) -> None:
    """A fresh autoencoder for each cluster of the active clients, and its errors everywhere."""
    clusters, iteration = state.clusters, state.iteration
    mine = np.flatnonzero(state.active[clusters.owner])
    if not len(mine):
        return
    fresh = federation.initials(len(mine), LOCAL, iteration)
    owners = clusters.owner[mine]
    parts = [torch.from_numpy(clusters.samples[cluster]) for cluster in mine]
    jobs = Jobs(fresh, torch.arange(len(mine)), torch.from_numpy(owners), samples=parts)
    trained = federation.train(jobs, iteration * (1 + options.rounds), options.local)
    errors = reconstruction_errors(federation, trained)
    for client in np.flatnonzero(state.active):
        own = np.flatnonzero(owners == client)
        state.models[client] = trained[own]
        state.errors[client] = [of_models[own] for of_models in errors]


def reconstruction_errors(federation: Federation, models: Tensor) -> list[Matrix]:
    """For each client ``[M, n]``: the error of each of M models on each of its samples."""
    count, m = len(models), federation.clients
    jobs = Jobs(models, torch.arange(count).repeat(m), torch.arange(m).repeat_interleave(count))
    found = [error.cpu().double().numpy() for error in federation.losses(jobs)]
    return [
        np.array(found[i * count : (i + 1) * count]).reshape(count, federation.samples(i))
        for i in range(m)
    ]


def differences(errors: Matrix, own: int, normalisation: str) -> Matrix:
    """How differently each model reconstructs a cluster from the cluster's own model.

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
    """Lines 10 to 16: which clusters are associated.

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
    return one_each(both, np.maximum(quantile, quantile.T), clusters.owner, options.match)


def one_each(both: Edges, distance: Matrix, owner: Labels, match: str) -> Edges:
    """Of the pairs that agree, at most one for each cluster and other client.

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
    """Lines 18 to 20: connected components of two or more clusters, and how many are isolated."""
    count, component = connected_components(edges, directed=False)
    members = [np.flatnonzero(component == number) for number in range(count)]
    communities = [cluster for cluster in members if len(cluster) > 1]
    return communities, count - len(communities)


def train_communities(federation: Federation, state: State, options: FedCRef) -> Tensor:
    """Lines 21 to 23: ``[G, P]``, a model for each community by federated averaging."""
    communities, clusters, iteration = state.communities, state.clusters, state.iteration
    models = federation.initials(len(communities), COMMUNITIES, iteration)
    if not communities:
        return models
    member = np.concatenate(communities)
    community = torch.from_numpy(np.repeat(np.arange(len(communities)), [*map(len, communities)]))
    parts = [torch.from_numpy(clusters.samples[cluster]) for cluster in member]
    weights = torch.tensor([float(len(part)) for part in parts])
    owners = torch.from_numpy(clusters.owner[member])
    first = iteration * (1 + options.rounds) + 1  # after the round of local training
    for round in range(first, first + options.rounds):
        jobs = Jobs(models, community, owners, samples=parts)
        trained = federation.train(jobs, round, options.federated)
        updates = local_updates(trained, models, community)
        models = average_updates(models, updates, community, weights)
    return models


def cluster_refine(errors: Matrix, k: int) -> Labels:
    """Algorithm 2: sort a client's samples anew, by the models that fit most of them best.

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


def renamed(before: Labels, after: Labels) -> Labels:
    """``after`` with each cluster under the name of the old one that it matches best.

    So that a client that rests still has each model beside its cluster. New clusters that match
    none take the names that are left, and then new ones.
    """
    names = metrics.matched(before, after)
    taken = set(names.values())
    free = (name for name in itertools.count() if name not in taken)
    for cluster in after.tolist():
        if cluster not in names:
            names[cluster] = next(free)
    return np.array([names[cluster] for cluster in after.tolist()])


def stable(counts: Sequence[tuple[int, int]], stop: str) -> bool:
    """Whether communities and isolated clusters have hardly changed for three iterations.

    A change is relative to the number before (0 counts as 1), and may be 10 %; of isolated clusters
    15 % by the code's rule.
    """
    bounds = (0.10, 0.10) if stop == "paper" else (0.10, 0.15)
    last = np.array(counts[-4:], dtype=float)
    if len(last) < 4:
        return False
    changes = np.abs(np.diff(last, axis=0)) / np.maximum(last[:-1], 1)
    return bool((changes <= bounds).all())


def finished(state: State, options: FedCRef) -> bool:
    """Section 4.5: no client is active, or the system is stable (or refined often enough)."""
    weary = options.stop == "code" and state.refined.mean() >= 10
    return not state.active.any() or stable(state.counts, options.stop) or weary


# --- What labels are for: measures, and the upper bound -------------------------------------------


def true_classes(federation: Federation, labels: Sequence[Labels]) -> Labels:
    """``[L]``: the class that each cluster stands for within its client; -1 for none.

    By the matching that gives the client its accuracy.
    """
    found = []
    for client, own in enumerate(labels):
        names = metrics.matched(federation.targets(client, "train").cpu(), own)
        found += [names.get(int(cluster), -1) for cluster in np.unique(own)]
    return np.array(found)


def perfect_associations(classes: Labels, clusters: LocalClusters) -> Edges:
    """``[L, L]``: clusters of two clients that stand for one class."""
    alike = (classes[:, None] == classes[None]) & (classes >= 0)
    return alike & (clusters.owner[:, None] != clusters.owner[None])


def wrong_share(edges: Edges, classes: Labels) -> float:
    """The share of associations that join clusters of two classes; 0 if there is no association.

    A cluster that stands for no class (-1) is associated wrongly with whatever.
    """
    first, second = np.nonzero(np.triu(edges))
    wrong = (classes[first] != classes[second]) | (classes[first] < 0)
    return float(wrong.mean()) if len(first) else 0.0
