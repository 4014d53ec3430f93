"""The local clusters of FedCRef, and the errors of models on the clients' samples."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from cflkit import metrics
from cflkit.clustering import Labels
from cflkit.divergence import Matrix
from cflkit.federation import Conversation, Losses, Server
from cflkit.methods.base import Truth, all_pairs

Edges = NDArray[np.bool_]
# The labels of each client's samples
PerSample = Annotated[tuple[Truth, ...], Field(strict=False)]


class LocalClusters(NamedTuple):
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


def local_clusters(labels: Sequence[Labels]) -> LocalClusters:
    """Build the local clusters from the clients' labels, without empty clusters."""
    pairs = [
        (c, np.flatnonzero(held == k)) for c, held in enumerate(labels) for k in np.unique(held)
    ]
    return LocalClusters(np.array([c for c, _ in pairs]), [samples for _, samples in pairs])


def labels_of(clusterings: Sequence[Sequence[int] | Labels], server: Server) -> list[Labels]:
    """Return labels as arrays, if there is one label per training sample of each client.

    Raises
    ------
    ValueError
        A client has another number of labels than training samples.
    """
    arrays = [np.asarray(labels, dtype=np.int64) for labels in clusterings]
    sizes = [server.num_samples(client) for client in range(server.clients)]
    if (counts := [len(labels) for labels in arrays]) != sizes:
        raise ValueError(f"needs labels for {sizes} samples, not {counts}")
    return arrays


def true_classes(truth: Sequence[Sequence[int]], labels: Sequence[Labels]) -> Labels:
    """Return the class that each local cluster represents, ``[L]``; -1 for no class.

    Clusters and classes are matched within each client, as for the client's accuracy.
    """
    represented = []
    for classes, clusters in zip(truth, labels, strict=True):
        names = metrics.matched(classes, clusters)
        represented += [names.get(int(cluster), -1) for cluster in np.unique(clusters)]
    return np.array(represented)


def reconstruction_errors(server: Server, models: Tensor) -> Conversation[list[Matrix]]:
    """Ask each client for the errors ``[M, n]`` of M models on its samples.

    Clients do not send the errors to the server. They compare them, and report which clusters
    agree.
    """
    count, m = len(models), server.clients
    answers = yield Losses(all_pairs(models, torch.arange(m)), reported=False)
    errors = [error.cpu().double().numpy() for error in answers]
    return [
        np.array(errors[i * count : (i + 1) * count]).reshape(count, server.num_samples(i))
        for i in range(m)
    ]
