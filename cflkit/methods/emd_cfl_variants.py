"""EMD-CFL with the distances of its authors' code, another rule for clusters, and its oracle."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from cflkit._bounds import STRICT, Clusters
from cflkit.divergence import earth_movers_distance
from cflkit.federation import Client, Conversation, Request, Server
from cflkit.federation.seeds import PROJECTION, SAMPLES, stream
from cflkit.methods.base import Truth, true_labels
from cflkit.methods.emd_cfl import EMDCFL, agreements, neighbourhoods_of
from cflkit.methods.emd_cfl_clients import SPLITS, Embeddings, embeddings

# Stands for the other client where a client's training and validation samples are compared
REFERENCE = -1


def owner_draws(
    client: Client,
    model: Tensor,
    others: Sequence[int],
    projection: float,
    sinkhorn: float | None,
    max_samples: int,
    train_mode: bool,
) -> tuple[float, list[Embeddings]]:
    """Do what `emd_cfl_clients.owner_sends` does, with other samples for each distance."""
    me = client.number
    train, validation = (sampler(client, model, s, max_samples, train_mode) for s in SPLITS)
    first, second = train(me, REFERENCE), validation(me, REFERENCE)
    width = first.shape[1]
    square = matrix(client.shared_seed, me, REFERENCE, width, 1.0)
    sent = [train(me, c) @ matrix(client.shared_seed, me, c, width, projection).T for c in others]
    return earth_movers_distance(first @ square.T, second @ square.T, sinkhorn), sent


def other_draws(
    client: Client, model: Tensor, owner: int, projection: float, max_samples: int, train_mode: bool
) -> Embeddings:
    """Do what `emd_cfl_clients.other_sends` does, with other samples for each distance."""
    me = client.number
    foreign = sampler(client, model, "validation", max_samples, train_mode)(owner, me)
    return foreign @ matrix(client.shared_seed, owner, me, foreign.shape[1], projection).T


def sampler(
    client: Client, model: Tensor, split: str, max_samples: int, train_mode: bool
) -> Callable[[int, int], Embeddings]:
    """Embed a client's samples, and return the function from a distance to those that enter it.

    A distance is identified by its owner and the other client, or by its owner and `REFERENCE`.
    """
    whole = embeddings(client, model, split, None, train_mode)

    def some(owner: int, other: int) -> Embeddings:
        key = (SAMPLES, SPLITS.index(split), client.number, owner, other + 1)
        return whole[stream(client.shared_seed, *key).permutation(len(whole))[:max_samples]]

    return some


def matrix(seed: int, owner: int, other: int, dimensions: int, share: float) -> Embeddings:
    """Draw the matrix that two clients share; its columns have unit length.

    The matrix of a reference distance belongs to its owner and `REFERENCE`.
    """
    pair = (owner, other) if other != REFERENCE else (owner, owner, 0)
    size = max(1, int(share * dimensions)), dimensions
    drawn = stream(seed, PROJECTION, *pair).normal(size=size)
    return drawn / np.linalg.norm(drawn, axis=0, keepdims=True)


@dataclass(config=STRICT)
class EMDCFLVariant(EMDCFL):
    """EMD-CFL with choices that differ between the paper and its authors' code, or that are ours.

    Parameters
    ----------
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
    """

    draws: Literal["per client", "per distance"] = "per client"
    clusters: Clusters = "neighbourhoods"
    train_mode: bool = False

    def questions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the questions of EMD-CFL, or those with draws for each distance."""
        return super().questions() if self.draws == "per client" else (owner_draws, other_draws)

    def sampling(self) -> dict[str, Any]:
        """Return the options of both questions."""
        return super().sampling() | {"train_mode": self.train_mode}

    def agreeing(self) -> NDArray[np.bool_]:
        """Return which clients agree, or which of them a chain of agreements connects."""
        edges = super().agreeing()
        return edges if self.clusters == "neighbourhoods" else components(edges)


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

    truth: Truth = field(kw_only=True)

    def enter(self, server: Server) -> None:
        """Take part in a federation that has a true cluster for each client."""
        true_labels(self.truth, server)
        super().enter(server)

    def samples_needed(self) -> dict[str, int]:
        """Return that no samples are needed, since none are compared."""
        return {}

    def asks(self) -> list[Request]:
        """Return nothing, since nothing is measured."""
        return []

    def measure(self, pairs: Tensor) -> Conversation[None]:
        """Set the score −∞ within a true cluster, and ∞ between two, so that any ε finds them.

        The scores are not recorded, since they are only the truth.
        """
        truth = true_labels(self.truth, self.server)
        exact = torch.where(truth[:, None] == truth, -torch.inf, torch.inf).double()
        self.scores = torch.where(pairs, exact, self.scores)
        yield from ()


def clusters_of(
    scores: NDArray[np.float64], epsilon: float, clusters: Clusters = "neighbourhoods"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Compute clusters from scores ``[m, m]`` by one of the two rules; see `neighbourhoods_of`."""
    edges = agreements(scores, epsilon)
    return neighbourhoods_of(edges if clusters == "neighbourhoods" else components(edges))


def components(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Compute which clients are connected by a chain of edges, ``[m, m]``."""
    _, labels = connected_components(edges, directed=False)
    return labels[:, None] == labels[None, :]
