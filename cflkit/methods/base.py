"""What the simulation asks of an algorithm, and the averaging that most of them share.

A round is: `Method.broadcast` says which model goes to which client, the federation trains, and
`Method.aggregate` makes the next models of what came back.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from cflkit.federation import Federation, Jobs

WEIGHTINGS = ("equal", "samples")


class Method:
    """An algorithm that keeps K models and tells each client which one is its own.

    Attributes
    ----------
    partial : bool
        Whether a round may leave clients out.
    federation : Federation
        Whose clients take part.
    models : Tensor
        ``[K, P + Q]``, the models on the server.
    labels : Tensor
        ``[m]``, int64: the model, that is the cluster, of each client.
    scalars : dict of str to float or str
        What is worth plotting of the last round: the temperature; norms, a value a cluster joined
        by ``|``.
    """

    partial: ClassVar[bool] = False
    federation: Federation
    models: Tensor
    labels: Tensor
    scalars: dict[str, float | str]

    def setup(self, federation: Federation, initial: Tensor) -> None:
        """Start from one model, ``initial`` (``[P + Q]``), for every client.

        Raises
        ------
        ValueError
            Only some clients take part in a round, and the method is not defined for that.
        """
        if federation.participating < federation.clients and not self.partial:
            raise ValueError(f"{type(self).__name__} is not defined for partial participation")
        self.federation = federation
        self.models = initial[None]
        self.labels = torch.zeros(federation.clients, dtype=torch.int64)
        self.scalars = {}

    def broadcast(self, round: int) -> Jobs:
        """Which models train where in this round: each participant gets its cluster's."""
        present = self.federation.participants(round)
        return Jobs(self.models, self.labels[present], present)

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """Make the next models from ``trained`` (``[J, P + Q]``), the results of ``jobs``."""
        raise NotImplementedError

    def client_models(self) -> tuple[Tensor, Tensor]:
        """What clients would predict with: models ``[K, P + Q]``, and each client's row ``[m]``."""
        return self.models, self.labels

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold: what is neither an option nor the federation."""
        options = {field.name for field in fields(self)} | {"federation"}  # type: ignore[arg-type]
        return {name: value for name, value in vars(self).items() if name not in options}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        vars(self).update(state)


def check_weighting(weighting: str) -> None:
    """Raise ValueError unless ``weighting`` is one of `WEIGHTINGS`."""
    if weighting not in WEIGHTINGS:
        raise ValueError(f"unknown weighting {weighting!r}; known are {', '.join(WEIGHTINGS)}")


def client_weights(federation: Federation, weighting: str) -> Tensor:
    """``[m]``: 1 for each client, or its number of training samples."""
    sizes = federation.sizes
    return torch.ones_like(sizes) if weighting == "equal" else sizes


def local_updates(trained: Tensor, models: Tensor, labels: Tensor) -> Tensor:
    """What clients changed: ``trained`` (``[m, D]``) minus the model that each received.

    ``models[labels]`` would be a copy of the received model for every client; rows are not.
    """
    updates = trained.clone()
    for update, label in zip(updates, labels.tolist(), strict=True):
        update -= models[label]
    return updates


def average_updates(models: Tensor, updates: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Federated averaging within each cluster: add the weighted mean of its members' updates.

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
