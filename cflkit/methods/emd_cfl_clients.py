"""EMD-CFL at a client: what it sends of its data (lines 11 to 15 of Algorithm 1)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cflkit.divergence import earth_movers_distance
from cflkit.federation import Client
from cflkit.federation.seeds import PROJECTION, stream

Embeddings = NDArray[np.float64]
SPLITS = ("train", "validation")


def owner_sends(
    client: Client,
    model: Tensor,
    others: Sequence[int],
    projection: float,
    sinkhorn: float | None,
    max_samples: int,
    train_mode: bool = False,
) -> tuple[float, list[Embeddings]]:
    """Embed a client's training samples by its own model, and project them for each other client.

    The network is in evaluation mode, or in ``train_mode``.

    Returns
    -------
    reference : float
        The distance between the client's own training and validation samples (line 15).
    sent : list of ndarray
        For each of the others, the embeddings ``[n, k]``, projected by the matrix that only the two
        clients share.
    """
    train, validation = (
        embeddings(client, model, split, max_samples, train_mode) for split in SPLITS
    )
    pair = client.shared_seed, client.number
    sent = [train @ shared_projection(*pair, c, train.shape[1], projection).T for c in others]
    return earth_movers_distance(train, validation, sinkhorn), sent


def other_sends(
    client: Client,
    model: Tensor,
    owner: int,
    projection: float,
    max_samples: int,
    train_mode: bool = False,
) -> Embeddings:
    """Embed a client's validation samples by the owner's model, and project them: ``[n, k]``."""
    foreign = embeddings(client, model, "validation", max_samples, train_mode)
    pair = client.shared_seed, owner, client.number
    return foreign @ shared_projection(*pair, foreign.shape[1], projection).T


def embeddings(
    client: Client, model: Tensor, split: str, max_samples: int | None, train_mode: bool
) -> Embeddings:
    """Return a model's embeddings ``[n, d]`` of a client's samples, at most ``max_samples``."""
    return client.embed(model, split, max_samples, train_mode).cpu().double().numpy()


def shared_projection(
    seed: int, owner: int, other: int, dimensions: int, share: float
) -> Embeddings:
    """Draw the random matrix ``[k, d]`` that two clients share, unknown to the server (line 12).

    Its rows are Gaussian, of unit length. By the lemma of Johnson and Lindenstrauss, the projection
    nearly preserves angles. At least one of the d dimensions is kept.
    """
    size = max(1, int(share * dimensions)), dimensions
    matrix = stream(seed, PROJECTION, owner, other).normal(size=size)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
