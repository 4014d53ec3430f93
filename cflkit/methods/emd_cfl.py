"""EMD-CFL: cluster once, by the earth mover's distance between clients' embeddings.

D. Zhang, F. Toni, M. Williams: Clustered federated learning via embedding distributions. arXiv
2506.07769, Algorithm 1.

What a client sends is made by `client_sends`, what the server makes of it by `server_sees`: of its
data the server is given projected embeddings and one number, and never the projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit.divergence import earth_movers_distance
from cflkit.federation import PROJECTION, Federation, Jobs, stream, usable_cores
from cflkit.methods.base import Method, average_updates, check_weighting, client_weights

CLUSTERS = ("neighbourhoods", "components")

Embeddings = NDArray[np.float64]


@dataclass
class EMDCFL(Method):
    """One-shot clustering by distances between embeddings.

    Parameters
    ----------
    epsilon : float
        ε: two clients agree if, in both directions, the distance between the one's training and the
        other's validation embeddings exceeds the reference distance by less.
    projection : float
        The share of the embedding's dimensions that the random projection keeps, in (0, 1].
    sinkhorn : float, optional
        Regularisation of Sinkhorn's approximation (the paper has 0.1); None is exact.
    samples : int
        The most samples a side, drawn once a client.
    clusters : {"neighbourhoods", "components"}
        ``neighbourhoods`` as published: clients that agree with exactly the same clients are a
        cluster, and its model is the mean over the clients it agrees with. Where one edge is
        missing, every odd neighbourhood is a cluster of its own, and members count in several;
        ``components`` joins all that a chain of edges joins. They are the same if and only if each
        component is complete.
    train_mode : bool
        Embeddings with the network in training mode, as in the authors' code: BatchNorm uses the
        statistics of the batch, and dropout drops.
    weighting : {"samples", "equal"}
        As in `FedAvg`.

    Attributes
    ----------
    scores : Tensor
        ``[m, m]``, float64: distance minus reference, the row's client owning the model; NaN for
        pairs that have not met.
    neighbourhoods : Tensor
        ``[K, m]``, bool: the clients whose models each cluster's model is the mean of.
    """

    partial: ClassVar[bool] = True

    epsilon: float = 0.1
    projection: float = 0.9
    sinkhorn: float | None = None
    samples: int = 512
    clusters: str = "neighbourhoods"
    train_mode: bool = False
    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_weighting(self.weighting)
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number from 0 on, not {self.epsilon}")
        if not 0 < self.projection <= 1:
            raise ValueError(f"projection must be in (0, 1], not {self.projection}")
        if self.sinkhorn is not None and not 0 < self.sinkhorn < math.inf:
            raise ValueError(f"sinkhorn must be positive and finite, not {self.sinkhorn}")
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, not {self.samples}")
        if self.clusters not in CLUSTERS:
            raise ValueError(f"unknown clusters {self.clusters!r}; known are {', '.join(CLUSTERS)}")

    def setup(self, federation: Federation, initial: Tensor) -> None:
        """Nobody has been seen, and everybody has the initial model.

        Raises
        ------
        ValueError
            A client has fewer than two training samples, or no validation sample.
        """
        super().setup(federation, initial)
        m = federation.clients
        for split, least in (("train", 2), ("validation", 1)):
            poor = [c for c in range(m) if federation.samples(c, split) < least]
            if poor:
                raise ValueError(
                    f"EMD-CFL needs {least} or more {split} samples of each client; clients {poor} "
                    "have fewer"
                )
        self.scores = torch.full((m, m), math.nan, dtype=torch.float64)
        self.seen = torch.zeros(m, dtype=torch.bool)
        # Model i is what client i first trained, with which it looks at data
        self.embedders: Tensor | None = initial.new_zeros(m, len(initial))
        # What each client trained last; only where some are absent from a round
        self.latest = initial.repeat(m if federation.participating < m else 0, 1)

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """Lines 10 to 21 of Algorithm 1; distances once for each pair of clients."""
        self.scalars = {}
        present = jobs.client
        new = present[~self.seen[present]]
        if len(new):
            assert self.embedders is not None
            self.embedders[new] = trained[torch.isin(present, new)]
            self.seen[new] = True
            self.measure(set(new.tolist()))
            self.cluster()
            # Row by row, in the digits that the authors round to
            self.scalars["scores"] = "|".join(f"{s:.4f}" for s in self.scores.flatten().tolist())
            if self.seen.all():
                self.embedders = None  # every pair has met
        if len(self.latest):
            self.latest[present] = trained
            trained = self.latest
        weights = client_weights(self.federation, self.weighting)
        for cluster, members in enumerate(self.neighbourhoods):
            if members[present].any():
                # All members count, the absent ones with what they trained last
                known = members & self.seen
                model = self.models[cluster : cluster + 1]
                whole = torch.zeros(int(known.sum()), dtype=torch.int64)
                self.models[cluster] = average_updates(
                    model, trained[known] - model, whole, weights[known]
                )[0]

    def measure(self, new: set[int]) -> None:
        """Fill in the scores of all pairs seen so far that have a new client (lines 11 to 16)."""
        seen = self.seen.nonzero().flatten().tolist()
        for owner in seen:
            others = [c for c in seen if owner in new or c in new]
            own = self.embeddings(owner, [owner], "train")[0]
            foreign = self.embeddings(owner, [owner, *others], "validation")
            reference = earth_movers_distance(own, foreign[0], self.sinkhorn)

            def score(
                other: int,
                theirs: Embeddings,
                owner: int = owner,
                own: Embeddings = own,
                reference: float = reference,
            ) -> float:
                matrix = shared_projection(
                    self.federation.seed, owner, other, own.shape[1], self.projection
                )
                sent = client_sends(own, matrix), client_sends(theirs, matrix)
                return server_sees(*sent, reference, self.sinkhorn)

            with ThreadPoolExecutor(usable_cores()) as pool:
                found = list(pool.map(score, others, foreign[1:]))
            self.scores[owner, others] = torch.tensor(found, dtype=torch.float64)

    def embeddings(self, owner: int, clients: Sequence[int], split: str) -> list[Embeddings]:
        """Samples of some clients as the owner's model embeds them, ``[n, d]`` each."""
        assert self.embedders is not None
        of = torch.tensor(clients)
        jobs = Jobs(self.embedders[owner : owner + 1], torch.zeros_like(of), of)
        found = self.federation.embed(jobs, split, self.samples, self.train_mode)
        return [embedding.cpu().double().numpy() for embedding in found]

    def cluster(self) -> None:
        """Labels and models of the clusters that the scores make (lines 17 and 20)."""
        labels, neighbourhoods = clusters_of(self.scores.numpy(), self.epsilon, self.clusters)
        first = [labels.tolist().index(cluster) for cluster in range(len(neighbourhoods))]
        self.models = self.models[self.labels[first]]
        self.labels, self.neighbourhoods = map(torch.from_numpy, (labels, neighbourhoods))


@dataclass
class EMDOracle(EMDCFL):
    """EMD-CFL with the truth in place of its distances: the oracle of the paper's tables.

    With everybody in every round it is `Oracle`. With some, clients that were never drawn are alone
    with the initial model, as EMD-CFL has them, and not in their true cluster.
    """

    def measure(self, new: set[int]) -> None:
        """Distance 0 within a true cluster, and the largest there is between two."""
        truth = self.federation.clusters
        met = self.seen[:, None] & self.seen[None]
        exact = torch.where(truth[:, None] == truth[None], 0.0, 2.0).double()
        self.scores = torch.where(met, exact, self.scores)

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """As EMD-CFL; its scores are nothing to write down."""
        super().aggregate(round, jobs, trained)
        self.scalars = {}


def shared_projection(
    seed: int, owner: int, other: int, dimensions: int, share: float
) -> Embeddings:
    """``[k, d]``: the random matrix on which two clients agree, unknown to the server (line 12).

    Gaussian, with rows of unit length (the authors' code scales the columns); by the lemma of
    Johnson and Lindenstrauss it nearly keeps angles.
    """
    generator = np.random.default_rng(stream(seed, PROJECTION, owner, other))
    matrix = generator.normal(size=(max(1, int(share * dimensions)), dimensions))
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def client_sends(embeddings: Embeddings, projection: Embeddings) -> Embeddings:
    """``[n, k]``: all that leaves a client for one pair, besides models and its reference."""
    return embeddings @ projection.T


def server_sees(
    owners: Embeddings, others: Embeddings, reference: float, sinkhorn: float | None = None
) -> float:
    """The score of a pair in one direction: distance of the embeddings minus the reference.

    Parameters
    ----------
    owners, others : ndarray
        ``[n, k]``, what two clients sent: the training samples of the one whose model embeds, the
        validation samples of the other.
    reference : float
        The distance between the owner's own training and validation samples, which it sent, too.
    sinkhorn : float, optional
        As in `EMDCFL`.
    """
    return earth_movers_distance(owners, others, sinkhorn) - reference


def agreements(scores: NDArray[np.float64], epsilon: float) -> NDArray[np.bool_]:
    """``[m, m]``: whether two clients agree; either can refuse, and strangers (NaN) do not."""
    near = scores < epsilon
    return near & near.T


def clusters_of(
    scores: NDArray[np.float64], epsilon: float, clusters: str = "neighbourhoods"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The clusters that scores make, see `EMDCFL`.

    Returns
    -------
    labels : ndarray
        ``[m]``, the cluster of each client, numbered as they first appear.
    neighbourhoods : ndarray
        ``[K, m]``: the clients whose models each cluster's model is the mean of.
    """
    edges = agreements(scores, epsilon)
    near = edges if clusters == "neighbourhoods" else components(edges)
    # Whoever agrees with nobody, not even itself or not yet seen, is alone
    lonely = ~near.any(axis=1, keepdims=True)
    near = near | (np.eye(len(near), dtype=bool) & lonely)
    found, first, labels = np.unique(near, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[labels.reshape(-1)], found[order]


def components(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """``[m, m]``: whether a chain of edges joins two clients."""
    _, labels = connected_components(edges, directed=False)
    return labels[:, None] == labels[None, :]
