"""EMD-CFL: cluster once, by the earth mover's distance between clients' embeddings.

D. Zhang, F. Toni, M. Williams: Clustered federated learning via embedding distributions. arXiv
2506.07769, Algorithm 1.

`emd_cfl_clients` computes what clients send. Of a client's data, the server only gets projected
embeddings and one number. It never gets the projection. `emd_cfl_variants` has other rules for
clusters, and the distances of the authors' code.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, NonNegative, Positive, PositiveShare, Sample
from cflkit.divergence import earth_movers_distance
from cflkit.federation import NOBODY, Ask, Conversation, Jobs, Request, Server, Train
from cflkit.federation.training import on_cores
from cflkit.methods.base import Method, Weighting, client_weights, weighted_means
from cflkit.methods.emd_cfl_clients import Embeddings, other_sends, owner_sends


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
        The largest number of samples of a client that enter a distance. The paper's further limit,
        10 % of the samples, is neither in the authors' code nor here.
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
    weighting: Weighting = "samples"

    def samples_needed(self) -> dict[str, int]:
        """Return the samples that a client's own two sides of a distance need."""
        return {"train": 2, "validation": 1}

    def questions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return what the two clients of a pair are asked."""
        return owner_sends, other_sends

    def asks(self) -> list[Request]:
        """Return the two questions to the clients of a pair, with their options."""
        to_owner, to_other = self.questions()
        sampling = self.sampling()
        owner = Ask(NOBODY, question=to_owner, options=sampling | {"sinkhorn": self.sinkhorn})
        return [owner, Ask(NOBODY, question=to_other, options=sampling)]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Give every client the initial model (lines 2 and 3)."""
        super().setup(server, initial)
        m = server.clients
        self.scores = torch.full((m, m), math.nan, dtype=torch.float64)
        self.seen = torch.zeros(m, dtype=torch.bool)
        # The first model that each client has trained, which embeds data, and the last one. Both
        # are as large as all clients together, and are kept only as long as they are needed
        self.embedders = self.latest = initial.new_empty(0)

    @property
    def settled(self) -> bool:
        """Return whether every pair of clients has been measured."""
        return not bool(self.scores.isnan().any())

    def round(self, t: int) -> Conversation[None]:
        """Run lines 5 to 21 of Algorithm 1; each pair of clients is measured only once."""
        jobs = self.broadcast(t)
        trained = yield Train(jobs)
        self.scalars = {}
        regrouped = yield from self.meet(jobs.client_of, trained, self.server.reachable(t))
        # A cluster that is new has no mean yet, even if none of its members takes part
        self.average(self.seen.nonzero().flatten() if regrouped else jobs.client_of)
        self.forget()

    def meet(
        self, present: Tensor, trained: Tensor, reachable: Tensor | None = None
    ) -> Conversation[bool]:
        """Cluster again if clients that answer have not been compared (lines 10 to 17)."""
        self.remember(present, trained)
        there = torch.zeros_like(self.seen)
        there[present if reachable is None else reachable] = True
        there &= self.seen
        pairs = there[:, None] & there & self.scores.isnan()
        if pairs.any():
            yield from self.measure(pairs)
            self.cluster()
        return bool(pairs.any())

    def remember(self, present: Tensor, trained: Tensor) -> None:
        """Keep the models that clients have trained."""
        new = ~self.seen[present]
        joins = bool(new.any() and self.seen.any())  # others have their first model already
        if self.server.partial or len(present) < len(self.seen) or joins:
            if not len(self.latest):
                self.latest = self.models[self.labels]
                self.embedders = self.latest.clone()
            if new.any():
                self.embedders[present[new]] = trained[new]
            self.latest[present] = trained
        else:  # all clients train in each round, in the order of their numbers
            self.latest = trained
            self.embedders = trained if new.any() else self.embedders
        self.seen[present] = True

    def forget(self) -> None:
        """Give up models that nothing will need again."""
        if self.settled:
            self.embedders = self.models.new_empty(0)
        if not self.server.partial:
            self.latest = self.models.new_empty(0)

    def measure(self, pairs: Tensor) -> Conversation[None]:
        """Measure the scores of the pairs that are true in ``[m, m]`` (lines 11 to 16)."""
        for owner in pairs.any(dim=1).nonzero().flatten().tolist():
            others = pairs[owner].nonzero().flatten()
            self.scores[owner, others] = yield from self.scored(owner, others)
        # Row by row, with the number of digits to which the authors round
        self.scalars["scores"] = "|".join(f"{s:.4f}" for s in self.scores.flatten().tolist())

    def scored(self, owner: int, others: Tensor) -> Conversation[Tensor]:
        """Return the scores of a client with others, where its model embeds both sides."""
        model, row = self.embedders[owner][None], torch.tensor([0])
        ask_owner, ask_others = self.asks()
        jobs = Jobs(model, row, torch.tensor([owner]), about=[tuple(others.tolist())])
        [(reference, sent)] = yield ask_owner.only(jobs)
        jobs = Jobs(model, torch.zeros_like(others), others, about=[owner] * len(others))
        theirs = yield ask_others.only(jobs)

        def score(pair: int) -> float:
            return server_sees(sent[pair], theirs[pair], reference, self.sinkhorn)

        return torch.tensor(on_cores(score, range(len(others))), dtype=torch.float64)

    def sampling(self) -> dict[str, Any]:
        """Return the options of both questions."""
        return {"projection": self.projection, "max_samples": self.max_samples}

    def cluster(self) -> None:
        """Compute the clusters from the scores, and their first models (lines 17 and 20)."""
        labels, neighbourhoods = neighbourhoods_of(self.agreeing())
        _, first = np.unique(labels, return_index=True)
        self.models = self.models[self.labels[first]]
        self.labels, self.neighbourhoods = map(torch.from_numpy, (labels, neighbourhoods))

    def agreeing(self) -> NDArray[np.bool_]:
        """Return which clients agree, ``[m, m]`` (line 17)."""
        return agreements(self.scores.numpy(), self.epsilon)

    def average(self, present: Tensor) -> None:
        """Average the models of each neighbourhood, also of absent members (lines 18 to 21)."""
        weights = client_weights(self.server, self.weighting)
        for cluster, members in enumerate(self.neighbourhoods):
            if members[present].any():
                model, shares = self.models[cluster][None], weights[members][None]
                self.models[cluster] = weighted_means(model, self.latest[members], shares)[0]


def server_sees(
    owners: Embeddings, others: Embeddings, reference: float, sinkhorn: float | None = None
) -> float:
    """Compute the score of a pair in one direction: distance minus reference (line 16).

    The projected embeddings ``[n, k]`` are those of the training samples of the client whose model
    embeds, and those of the other's validation samples. The reference is the owner's.
    """
    return earth_movers_distance(owners, others, sinkhorn) - reference


def agreements(scores: NDArray[np.float64], epsilon: float) -> NDArray[np.bool_]:
    """Compute which clients agree, ``[m, m]``: both scores are below ε, and known (line 17)."""
    near = scores < epsilon
    return near & near.T


def neighbourhoods_of(near: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find the clusters of clients that agree with exactly the same clients, or with none.

    Returns
    -------
    labels, neighbourhoods : ndarray
        ``[m]``, the cluster of each client, numbered in order of first appearance; and ``[K, m]``,
        for each cluster, the clients over whose models its model is the mean.
    """
    near = near | (np.eye(len(near), dtype=bool) & ~near.any(axis=1, keepdims=True))  # the lonely
    distinct, first, labels = np.unique(near, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[labels.reshape(-1)], distinct[order]
