"""EMD-CFL: cluster once, by the earth mover's distance between clients' embeddings.

D. Zhang, F. Toni, M. Williams: Clustered federated learning via embedding distributions. arXiv
2506.07769, Algorithm 1.

`owner_sends` and `other_sends` compute what clients send, and `server_sees` computes the server's
score from it. Of a client's data, the server only gets projected embeddings and one number. It
never gets the projection.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit._bounds import STRICT, Clusters, NonNegative, Positive, PositiveShare, Sample
from cflkit.divergence import earth_movers_distance
from cflkit.federation import Ask, Client, Jobs, Request, Server, Train, question, usable_cores
from cflkit.federation.blueprint import Blueprint
from cflkit.federation.requests import is_finite
from cflkit.federation.seeds import PROJECTION, SAMPLES, stream
from cflkit.federation.threads import blas_libraries
from cflkit.methods.base import (
    Method,
    Truth,
    Weighting,
    average_updates,
    client_weights,
    true_labels,
)

Draws = Literal["per client", "per distance"]
CLUSTERS = get_args(Clusters)

Embeddings = NDArray[np.float64]
SPLITS = ("train", "validation")
# Stands for the other client where a client's training and validation samples are compared
REFERENCE = -1
# How many pairs of clients send their embeddings at once, which limits the server's memory; at
# least those of one client
PAIRS_AT_ONCE = 256


@dataclass(config=STRICT)
class EMDCFL(Method):
    """One-shot clustering by distances between embeddings.

    Parameters
    ----------
    epsilon : float
        The threshold ε. The score of two clients in one direction is the distance between one
        client's training and the other's validation embeddings, minus the reference distance. The
        clients agree if their scores in both directions are below ε.
    projection : float
        The share of the embedding's dimensions that the random projection keeps, in (0, 1].
    sinkhorn : float, optional
        The regularisation of Sinkhorn's approximation (0.1 in the paper); None for exact distances.
    max_samples : int
        The largest number of samples of a client that enter a distance.
    draws : {"per client", "per distance"}
        What is drawn for a distance. With ``per client``, each client draws its samples once, and
        computes its reference distance without a projection. With ``per distance``, as in the
        authors' code, each distance has its own samples. The reference distance is then projected,
        too, by a square matrix, and the columns of all matrices have unit length in place of the
        rows.
    clusters : {"neighbourhoods", "components"}
        The rule for clusters. With ``neighbourhoods``, as published, clients that agree with
        exactly the same clients form a cluster. Its model is the mean over the clients with which
        they agree. Where an edge is missing, each different neighbourhood is a separate cluster,
        and clients count in the means of several. With ``components``, all clients that a chain of
        edges connects form a cluster. Both rules give the same clusters if and only if each
        component is complete.
    train_mode : bool
        Whether to embed with the network in training mode, as in the authors' code. BatchNorm then
        uses the statistics of the batch, and dropout is active.
    weighting : {"samples", "equal"}
        The weights of clients, as in `FedAvg`.

    Attributes
    ----------
    scores : Tensor
        ``[m, m]``, float64: distance minus reference, where the model is that of the row's client.
        NaN for pairs that have not been measured.
    neighbourhoods : Tensor
        ``[K, m]``, bool: for each cluster, the clients over whose models its model is the mean.
    """

    partial: ClassVar[bool] = True

    epsilon: NonNegative = 0.1
    projection: PositiveShare = 0.9
    sinkhorn: Positive | None = None
    max_samples: Sample = 512
    draws: Draws = "per client"
    clusters: Clusters = "neighbourhoods"
    train_mode: bool = False
    weighting: Weighting = "samples"

    def samples_needed(self) -> dict[str, int]:
        """Return the samples that a client's own two sides of a distance need."""
        return {"train": 2, "validation": 1}

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, in which every client has the initial model."""
        super().setup(server, initial)
        m = server.clients
        self.scores = torch.full((m, m), math.nan, dtype=torch.float64)
        self.seen = torch.zeros(m, dtype=torch.bool)
        # Row i is the first model that client i has trained; it embeds data with this model
        self.embedders: Tensor | None = initial.new_zeros(m, len(initial))
        # The last model that each client has trained, needed only if rounds leave clients out
        self.latest = initial.new_empty(0, len(initial))

    @property
    def settled(self) -> bool:
        """Return whether every pair of clients has been measured."""
        return not bool(self.scores.isnan().any())

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run lines 10 to 21 of Algorithm 1; each pair of clients is measured only once."""
        jobs = self.broadcast(t)
        trained = yield Train(jobs)
        self.scalars = {}
        yield from self.meet(jobs.client_of, trained, self.server.reachable(t))
        self.average(jobs.client_of, trained)

    def meet(
        self, present: Tensor, trained: Tensor, reachable: Tensor | None = None
    ) -> Generator[Request, Any, None]:
        """Cluster again if there are pairs that have not been measured (lines 11 to 17).

        Clients that have trained before and answer now (``reachable``) are measured, too, although
        they do not train in this round. By default only those that have trained now answer.
        """
        if self.embedders is None:
            return
        new = ~self.seen[present]
        self.embedders[present[new]] = trained[new]
        self.seen[present] = True
        there = torch.zeros_like(self.seen)
        there[present if reachable is None else reachable] = True
        there &= self.seen
        pairs = there[:, None] & there & self.scores.isnan()
        if not pairs.any():
            return
        yield from self.measure(pairs)
        self.cluster()
        # Row by row, with the number of digits to which the authors round
        self.scalars["scores"] = "|".join(f"{s:.4f}" for s in self.scores.flatten().tolist())
        if self.settled:
            self.embedders = None

    def measure(self, pairs: Tensor) -> Generator[Request, Any, None]:
        """Measure the scores of the pairs that are true in ``[m, m]`` (lines 11 to 16)."""
        owners = pairs.any(dim=1).nonzero().flatten().tolist()
        partners = {owner: pairs[owner].nonzero().flatten().tolist() for owner in owners}
        at_once = max(1, PAIRS_AT_ONCE // len(owners))
        for start in range(0, len(owners), at_once):
            some = owners[start : start + at_once]
            yield from self.measure_from(some, [partners[owner] for owner in some])

    def measure_from(
        self, owners: Sequence[int], partners: Sequence[Sequence[int]]
    ) -> Generator[Request, Any, None]:
        """Measure the scores of pairs, in whose direction each owner's model embeds both sides."""
        assert self.embedders is not None
        models = self.embedders[owners]
        rows = [row for row, others in enumerate(partners) for _ in others]
        pairs = [(owner, c) for owner, own in zip(owners, partners, strict=True) for c in own]
        sampling = {
            "max_samples": self.max_samples,
            "train_mode": self.train_mode,
            "draws": self.draws,
        }
        sent = yield Ask(
            Jobs(
                models,
                torch.arange(len(owners)),
                torch.tensor(owners),
                about=[tuple(others) for others in partners],
            ),
            question=owner_sends,
            options=sampling | {"projection": self.projection, "sinkhorn": self.sinkhorn},
        )
        theirs = yield Ask(
            Jobs(
                models,
                torch.tensor(rows),
                torch.tensor([c for _, c in pairs]),
                about=[owner for owner, _ in pairs],
            ),
            question=other_sends,
            options=sampling | {"projection": self.projection},
        )
        mine = [(own, reference) for reference, all_own in sent for own in all_own]

        def score(pair: int) -> float:
            own, reference = mine[pair]
            return server_sees(own, theirs[pair], reference, self.sinkhorn)

        # With more threads per product, the last bits of a score depend on the number of cores
        with blas_libraries().limit(limits=1), ThreadPoolExecutor(usable_cores()) as pool:
            found = list(pool.map(score, range(len(pairs))))
        for (owner, other), value in zip(pairs, found, strict=True):
            self.scores[owner, other] = value

    def average(self, present: Tensor, trained: Tensor) -> None:
        """Average the models of each neighbourhood (lines 18 to 21)."""
        if self.server.partial and not len(self.latest):
            self.latest = self.models[self.labels]
        if len(self.latest):
            self.latest[present] = trained
            trained = self.latest
        weights = client_weights(self.server, self.weighting)
        for cluster, members in enumerate(self.neighbourhoods):
            if members[present].any():
                # All members count; absent members count with the model that they trained last
                known = members & self.seen
                model = self.models[cluster : cluster + 1]
                whole = torch.zeros(int(known.sum()), dtype=torch.int64)
                self.models[cluster] = average_updates(
                    model, trained[known] - model, whole, weights[known]
                )[0]

    def cluster(self) -> None:
        """Compute the clusters from the scores, and their first models (lines 17 and 20)."""
        labels, neighbourhoods = clusters_of(self.scores.numpy(), self.epsilon, self.clusters)
        first = [labels.tolist().index(cluster) for cluster in range(len(neighbourhoods))]
        self.models = self.models[self.labels[first]]
        self.labels, self.neighbourhoods = map(torch.from_numpy, (labels, neighbourhoods))


@dataclass(config=STRICT)
class EMDOracle(EMDCFL):
    """EMD-CFL with the truth in place of its distances: the oracle of the paper's tables.

    If all clients take part in every round, it is the same as `Oracle`. Otherwise, a client that
    was never drawn is not yet in its true cluster: as in EMD-CFL, it is alone with the initial
    model.

    Parameters
    ----------
    truth : sequence of int
        ``[m]``, the true cluster of each client.
    """

    truth: Truth = dataclasses.field(kw_only=True)

    def samples_needed(self) -> dict[str, int]:
        """Return that no samples are needed, since none are compared."""
        return {}

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run a round of EMD-CFL without recording scores, since these are only the truth."""
        yield from super().round(t)
        self.scalars = {}

    def measure(self, pairs: Tensor) -> Generator[Request, Any, None]:
        """Set the score −∞ within a true cluster, and ∞ between two, so that any ε finds them."""
        truth = true_labels(self.truth, self.server)
        exact = torch.where(truth[:, None] == truth, -torch.inf, torch.inf).double()
        self.scores = torch.where(pairs, exact, self.scores)
        yield from ()


# --- What a client sends, and what the server sees ------------------------------------------------


def owner_fits(
    answer: Any, blueprint: Blueprint, others: Sequence[int], projection: float, **_: Any
) -> bool:
    """Return whether an answer to `owner_sends` can be used."""
    match answer:
        case float(reference), [*sent] if len(sent) == len(others):
            width = projected_dimensions(projection, blueprint.embedding)
            return math.isfinite(reference) and all(is_finite(part, None, width) for part in sent)
    return False


@question(owner_fits)
def owner_sends(
    client: Client,
    model: Tensor,
    others: Sequence[int],
    projection: float,
    sinkhorn: float | None,
    max_samples: int,
    train_mode: bool,
    draws: Draws,
) -> tuple[float, list[Embeddings]]:
    """Embed a client's training samples by its own model, and project them for each other client.

    Returns
    -------
    reference : float
        The distance between the client's own training and validation samples.
    sent : list of ndarray
        For each of the others, the embeddings ``[n, k]``, projected by the matrix that only the two
        clients share.
    """
    own, held_back = (
        sampler(client, model, split, max_samples, train_mode, draws) for split in SPLITS
    )
    me = client.number
    reference = own(me, REFERENCE), held_back(me, REFERENCE)
    width = reference[0].shape[1]

    def matrix(other: int, share: float) -> Embeddings:
        return shared_projection(client.shared_seed, me, other, width, share, draws)

    if draws == "per distance":
        square = matrix(REFERENCE, 1.0)
        reference = project(reference[0], square), project(reference[1], square)
    sent = [project(own(me, other), matrix(other, projection)) for other in others]
    return earth_movers_distance(*reference, sinkhorn), sent


def other_fits(answer: Any, blueprint: Blueprint, owner: int, projection: float, **_: Any) -> bool:
    """Return whether an answer to `other_sends` can be used."""
    return is_finite(answer, None, projected_dimensions(projection, blueprint.embedding))


@question(other_fits)
def other_sends(
    client: Client,
    model: Tensor,
    owner: int,
    projection: float,
    max_samples: int,
    train_mode: bool,
    draws: Draws,
) -> Embeddings:
    """Embed a client's validation samples by the owner's model, and project them: ``[n, k]``."""
    me = client.number
    foreign = sampler(client, model, "validation", max_samples, train_mode, draws)(owner, me)
    width = foreign.shape[1]
    matrix = shared_projection(client.shared_seed, owner, me, width, projection, draws)
    return project(foreign, matrix)


def sampler(
    client: Client, model: Tensor, split: str, max_samples: int, train_mode: bool, draws: Draws
) -> Callable[[int, int], Embeddings]:
    """Embed a client's samples, and return the function from a distance to those that enter it.

    A distance is identified by its owner and the other client, or by its owner and `REFERENCE`.
    """
    if draws == "per client":
        once = as_doubles(client.embed(model, split, max_samples, train_mode))
        return lambda owner, other: once
    whole = as_doubles(client.embed(model, split, None, train_mode))

    def some(owner: int, other: int) -> Embeddings:
        key = (SAMPLES, SPLITS.index(split), client.number, owner, other + 1)
        generator = np.random.default_rng(stream(client.shared_seed, *key))
        return whole[generator.permutation(len(whole))[:max_samples]]

    return some


def as_doubles(embeddings: Tensor) -> Embeddings:
    """Return embeddings as a float64 array, since distances are computed in float64."""
    return embeddings.cpu().double().numpy()


def projected_dimensions(share: float, dimensions: int) -> int:
    """Return k, the dimensions that are left of d by a projection that keeps a share of them."""
    return max(1, int(share * dimensions))


def shared_projection(
    seed: int, owner: int, other: int, dimensions: int, share: float, draws: Draws = "per client"
) -> Embeddings:
    """Draw the random matrix ``[k, d]`` that two clients share, unknown to the server (line 12).

    The matrix is Gaussian. Its rows have unit length, or its columns (see ``draws`` of `EMDCFL`).
    By the lemma of Johnson and Lindenstrauss, the projection nearly preserves angles. The matrix of
    a reference distance belongs to its owner and `REFERENCE`.
    """
    pair = (owner, other) if other != REFERENCE else (owner, owner, 0)
    generator = np.random.default_rng(stream(seed, PROJECTION, *pair))
    matrix = generator.normal(size=(projected_dimensions(share, dimensions), dimensions))
    axis = {"per client": 1, "per distance": 0}[draws]
    return matrix / np.linalg.norm(matrix, axis=axis, keepdims=True)


def project(embeddings: Embeddings, projection: Embeddings) -> Embeddings:
    """Project embeddings to ``[n, k]``.

    For one pair of clients, these are all that leaves a client, besides models and its reference.
    """
    return embeddings @ projection.T


def server_sees(
    owners: Embeddings, others: Embeddings, reference: float, sinkhorn: float | None = None
) -> float:
    """Compute the score of a pair of clients in one direction: distance minus reference.

    Parameters
    ----------
    owners, others : ndarray
        ``[n, k]``, the projected embeddings that two clients sent: the training samples of the
        client whose model embeds, and the validation samples of the other.
    reference : float
        The distance between the owner's own training and validation samples, which the owner also
        sent.
    sinkhorn : float, optional
        The regularisation, as in `EMDCFL`.
    """
    return earth_movers_distance(owners, others, sinkhorn) - reference


# --- From scores to clusters ----------------------------------------------------------------------


def agreements(scores: NDArray[np.float64], epsilon: float) -> NDArray[np.bool_]:
    """Compute which clients agree, ``[m, m]``.

    Two clients agree if both scores are below ``epsilon``. Clients that have not been compared
    (NaN) do not agree.
    """
    near = scores < epsilon
    return near & near.T


def clusters_of(
    scores: NDArray[np.float64], epsilon: float, clusters: Clusters = "neighbourhoods"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Compute clusters from scores by one of the two rules of `EMDCFL`.

    Returns
    -------
    labels : ndarray
        ``[m]``, the cluster of each client, numbered in order of first appearance.
    neighbourhoods : ndarray
        ``[K, m]``: for each cluster, the clients over whose models its model is the mean.
    """
    edges = agreements(scores, epsilon)
    near = edges if clusters == "neighbourhoods" else components(edges)
    # A client that agrees with no client, not even with itself, or that was never seen, is alone
    lonely = ~near.any(axis=1, keepdims=True)
    near = near | (np.eye(len(near), dtype=bool) & lonely)
    found, first, labels = np.unique(near, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[labels.reshape(-1)], found[order]


def components(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Compute which clients are connected by a chain of edges, ``[m, m]``."""
    _, labels = connected_components(edges, directed=False)
    return labels[:, None] == labels[None, :]
