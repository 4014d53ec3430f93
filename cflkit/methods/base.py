"""What the simulation asks of an algorithm, and the averaging that most of them share."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import BeforeValidator
from torch import Tensor

from cflkit.federation import Jobs, Request, Server, Train

Weighting = Literal["equal", "samples"]
# The true cluster of each client, for methods that are yardsticks
Truth = Annotated[
    tuple[int, ...], BeforeValidator(lambda given: tuple(int(cluster) for cluster in given))
]


class Method:
    """An algorithm that keeps models on a server and tells clients which of them to train.

    A round is a conversation: `round` yields requests to clients and gets their answers. Most
    methods need one training per round. They say in `broadcast` which model goes to which client,
    and make the next models of the results in `aggregate`.

    Attributes
    ----------
    partial : bool
        Whether a round may leave clients out.
    server : Server
        What the method may know of the federation.
    models : Tensor
        ``[K, P + Q]``, the models on the server.
    labels : Tensor or None
        ``[m]``, int64: the model, that is the cluster, of each client. None for methods that find
        no clusters.
    scalars : dict of str to float or str
        What is worth plotting of the last round: the temperature; norms, one value per cluster
        joined by ``|``.
    """

    partial: ClassVar[bool] = False
    server: Server
    models: Tensor
    labels: Any  # not Tensor | None, which every method would have to narrow
    scalars: dict[str, float | str]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Start from one model, ``initial`` (``[P + Q]``), for every client.

        Raises
        ------
        ValueError
            Only some clients take part in a round, and the method is not defined for that.
        """
        if server.clients_per_round < server.clients and not self.partial:
            raise ValueError(f"{type(self).__name__} is not defined for partial participation")
        self.server = server
        self.models = initial[None]
        self.labels = torch.zeros(server.clients, dtype=torch.int64)
        self.scalars = {}

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run round ``t`` (from 0): broadcast, local training, aggregation.

        Methods with more to ask replace it. Each ``yield`` of a request gives its answers.
        """
        jobs = self.broadcast(t)
        self.aggregate(t, jobs, (yield Train(jobs)))

    def broadcast(self, t: int) -> Jobs:
        """Return which models train where: each participant gets its cluster's model."""
        present = self.server.participants(t)
        return Jobs(self.models, self.labels[present], present)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Make the next models from ``trained`` (``[J, P + Q]``), the results of ``jobs``."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether the method needs no more rounds."""
        return False

    def client_models(self) -> tuple[Tensor, Tensor]:
        """Return what clients predict with.

        Returns
        -------
        models : Tensor
            ``[K, P + Q]``.
        mixture : Tensor
            ``[m, K]``: each client's weights of the models' predictions, which sum to one. By
            default all weight is on the model of the client's cluster.
        """
        return self.models, F.one_hot(self.labels, len(self.models)).float()

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must hold: what is neither an option nor the server."""
        options = {field.name for field in fields(self)} | {"server"}  # type: ignore[arg-type]
        return {name: value for name, value in vars(self).items() if name not in options}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        vars(self).update(state)


def true_labels(truth: Sequence[int], server: Server) -> Tensor:
    """``[m]``: the truth that a yardstick was given.

    Raises
    ------
    ValueError
        It has another number of clients.
    """
    if len(truth) != server.clients:
        raise ValueError(f"needs the true cluster of {server.clients} clients, not {len(truth)}")
    return torch.tensor(truth, dtype=torch.int64)


def client_weights(server: Server, weighting: Weighting) -> Tensor:
    """``[m]``: 1 for each client, or its number of training samples."""
    return torch.ones_like(server.sizes) if weighting == "equal" else server.sizes


def local_updates(trained: Tensor, models: Tensor, labels: Tensor) -> Tensor:
    """Return what clients changed: ``trained`` (``[m, D]``) minus the model that each received.

    ``models[labels]`` would be a copy of the received model for every client; rows are not.
    """
    updates = trained.clone()
    for update, label in zip(updates, labels.tolist(), strict=True):
        update -= models[label]
    return updates


def average_updates(models: Tensor, updates: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Average within each cluster: add the weighted mean of its members' updates to its model.

    Parameters
    ----------
    models : Tensor
        ``[K, D]``, the cluster models that the members' updates are added to.
    updates : Tensor
        ``[m, D]``, trained minus received.
    labels : Tensor
        ``[m]``, the cluster of each client.
    weights : Tensor
        ``[m]``, positive.

    Returns
    -------
    Tensor
        ``[K, D]``; a cluster without members keeps its model.
    """
    averaged = models.clone()
    for cluster in range(len(models)):
        members = labels == cluster
        if members.any():
            shares = (weights[members] / weights[members].sum()).to(updates.device)
            averaged[cluster] += shares @ updates[members]
    return averaged
