"""The interface of an algorithm, and the averaging that most algorithms share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field
from torch import Tensor

from cflkit._bounds import Natural
from cflkit.federation import Conversation, Federation, Jobs, Request, Server, Train

if TYPE_CHECKING:
    import pandas as pd

Weighting = Literal["equal", "samples"]
TestSets = Literal["all", "own", "none"]
AnyMethod = TypeVar("AnyMethod", bound="Method")


def listed(values: Any) -> Any:
    """Return an array or Tensor as a list, and all else as it is."""
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else values


# Labels from 0 in any sequence, such as the true cluster of each client for the oracles
Truth = Annotated[tuple[Natural, ...], Field(strict=False), BeforeValidator(listed)]


@dataclass(frozen=True)
class Measuring(Generic[AnyMethod]):
    """The way in which a run is measured.

    Attributes
    ----------
    rows : callable
        From the methods by name, the federation, the round and the test sets to use (``all``,
        ``own`` without the central one, or ``none``) to the rows of the history.
    summarise : callable
        From the rows of one method to its measures in the summary.
    at_start : bool
        Whether runs are also measured before the first round.
    """

    rows: Callable[[Mapping[str, AnyMethod], Federation, int, TestSets], list[dict[str, Any]]]
    summarise: Callable[[pd.DataFrame], dict[str, Any]]
    at_start: bool = False


class Method:
    """An algorithm that keeps models on a server and tells clients which models to train.

    A round is a conversation: `round` yields requests to clients and gets their answers. In most
    methods, it is one training: `broadcast` decides which model goes to which client, and
    `aggregate` computes the next models from the results.

    Attributes
    ----------
    partial : bool
        Whether the method allows rounds in which only some clients take part.
    task : str
        The task of the federations for which the method is made (`Federation`).
    measuring : Measuring, optional
        How runs of the method are measured; by default on test sets (`simulation.evaluation`).
    reference : str
        A name by which rows of other methods say which clients they leave worse than this one does
        (`simulation.evaluation`); empty for most methods.
    weighting : {"equal", "samples"}
        The weights of clients in the default `aggregate`; methods that use it have this option.
    include_buffers : bool
        Whether `vectors` keeps the buffers; methods that compare updates have this option.
    server : Server
        The information about the federation that the method may use.
    models : Tensor
        ``[K, P + Q]``, the models on the server.
    labels : Tensor or None
        ``[m]``, int64: the cluster of each client, which is the row of its model. None for methods
        that find no clusters of clients.
    clustered : bool
        Whether the clusters have been found, for methods that find them once.
    scalars : dict of str to float or str
        Values of the last round for the history; those of several clusters are joined by ``|``.
    """

    partial: ClassVar[bool] = False
    task: ClassVar[str] = "classification"
    measuring: ClassVar[Measuring[Any] | None] = None
    reference: ClassVar[str] = ""
    weighting: Weighting
    include_buffers: bool
    server: Server
    models: Tensor
    labels: Tensor  # or None; were this its type, methods with clusters would have to narrow it
    clustered: bool
    scalars: dict[str, float | str]

    def setup(self, server: Server, initial: Tensor) -> None:
        """`enter`, and give all clients the model ``initial`` (``[P + Q]``) as one cluster."""
        self.enter(server)
        self.models = initial[None]
        self.labels = torch.zeros(server.clients, dtype=torch.int64)
        self.clustered = False
        self.scalars = {}

    def enter(self, server: Server) -> None:
        """Take part in the federation of a server; the method's state stays as it is.

        A `ValueError` tells if the method needs all clients in a round, or a client more samples.
        """
        name = type(self).__name__
        if server.partial and not self.partial:
            raise ValueError(f"{name} runs only with all clients here")
        for split, least in self.samples_needed().items():
            held = [server.num_samples(client, split) for client in range(server.clients)]
            if poor := [client for client, count in enumerate(held) if count < least]:
                raise ValueError(
                    f"{name} needs {least} or more {split} samples of each client; clients {poor} "
                    "have fewer"
                )
        self.server = server

    def vectors(self, updates: Tensor) -> Tensor:
        """Return the update vectors ``[n, D]`` that are compared, with or without buffers."""
        return updates if self.include_buffers else updates[:, : self.server.parameters]

    def samples_needed(self) -> dict[str, int]:
        """Return the smallest number of samples that each client must have, by split."""
        return {}

    def asks(self) -> list[Request]:
        """Return what clients are asked for besides usual trainings, as requests to nobody.

        Clients that are elsewhere answer these and no others (`cflkit.flower`).
        """
        return []

    def needs_everyone(self, t: int) -> None:
        """Raise a `ValueError` if not all clients answer in round ``t``."""
        answering = self.server.reachable(t)
        if len(answering) < self.server.clients:
            raise ValueError(
                f"{type(self).__name__} asks all clients in round {t + 1}, and only the clients "
                f"{answering.tolist()} are there"
            )

    def round(self, t: int) -> Conversation[None]:
        """Run round ``t`` (from 0): broadcast, local training, aggregation.

        Methods with other requests override it; each ``yield`` of a request returns its answers.
        """
        jobs = self.broadcast(t)
        self.aggregate(t, jobs, (yield Train(jobs)))

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of a round, in which each participant trains the model of its cluster."""
        present = self.server.participants(t)
        return Jobs(self.models, self.labels[present], present)

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Compute the next models from ``trained`` (``[J, P + Q]``), the results of ``jobs``.

        By default, this is federated averaging within clusters: the mean of the members' updates,
        with the method's option ``weighting``, is added to the cluster's model. Without clusters,
        the clients that have trained the same model are averaged.
        """
        members = jobs.model_of if self.labels is None else self.labels[jobs.client_of]
        updates = local_updates(trained, self.models, members)
        self.add_means(updates, members, jobs.client_of)

    def add_means(self, updates: Tensor, members: Tensor, clients: Tensor) -> None:
        """Add the weighted mean of its members' updates to each model (`average_updates`).

        The ``clients`` ``[n]`` have the ``updates`` ``[n, D]``, and are ``members`` ``[n]`` of the
        models. Their weights are those of the method's option ``weighting``.
        """
        weights = client_weights(self.server, self.weighting)[clients]
        self.models = average_updates(self.models, updates, members, weights)

    def divide(self, labels: np.ndarray) -> None:
        """Take these clusters ``[m]``, each of which goes on from the common model."""
        self.labels = torch.from_numpy(labels)
        self.models = self.models.repeat(int(self.labels.max()) + 1, 1)
        self.clustered = True

    @property
    def finished(self) -> bool:
        """Return whether the method needs no more rounds."""
        return False

    @property
    def settled(self) -> bool:
        """Return whether no later round can change the labels; True if there are none."""
        return self.labels is None or self.clustered

    def client_models(self) -> tuple[Tensor, Tensor]:
        """Return models ``[K, P + Q]``, and their weights ``[m, K]`` in each client's predictions.

        The weights of a client sum to one; by default, its cluster's model has all of it.
        """
        return self.models, F.one_hot(self.labels, len(self.models)).float()

    def state(self) -> dict[str, Any]:
        """Return the contents of a checkpoint: all attributes except the options and the server."""
        options = {field.name for field in fields(self)} | {"server"}  # type: ignore[arg-type]
        return {name: value for name, value in vars(self).items() if name not in options}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        vars(self).update(state)


Methods = Mapping[str, Method]  # by the names that they have in a run


class Personal(Method):
    """A method in which each client predicts with a model of its own, a row of ``personal``."""

    personal: Tensor

    def setup(self, server: Server, initial: Tensor) -> None:
        """Give each client a copy of the initial model."""
        super().setup(server, initial)
        self.labels = None  # type: ignore[assignment]
        self.personal = initial.repeat(server.clients, 1)

    def client_models(self) -> tuple[Tensor, Tensor]:
        """Return the personal models."""
        return each_its_own(self.personal)


def true_labels(truth: Sequence[int], server: Server) -> Tensor:
    """Return the true clusters as labels ``[m]``; any other number of them is a `ValueError`."""
    if len(truth) != server.clients:
        raise ValueError(f"needs the true cluster of {server.clients} clients, not {len(truth)}")
    return torch.tensor(truth, dtype=torch.int64)


def client_weights(server: Server, weighting: Weighting) -> Tensor:
    """Return the weights ``[m]`` of clients: 1 for each, or their numbers of training samples."""
    return torch.ones_like(server.sizes) if weighting == "equal" else server.sizes


def all_pairs(models: Tensor, clients: Tensor) -> Jobs:
    """Return one job per client and model, with the jobs of a client next to each other."""
    count = len(models)
    return Jobs(models, torch.arange(count).repeat(len(clients)), clients.repeat_interleave(count))


def each_its_own(models: Tensor) -> tuple[Tensor, Tensor]:
    """Return models and mixture as `Method.client_models` does; each client has its own model."""
    return models, torch.eye(len(models))


def local_updates(trained: Tensor, models: Tensor, labels: Tensor) -> Tensor:
    """Turn ``trained`` (``[m, D]``) into the clients' updates: minus the model that each received.

    This is in place and row by row: ``trained - models[labels]`` would take gigabytes more.
    """
    for row, label in zip(trained, labels.tolist(), strict=True):
        row -= models[label]
    return trained


def average_updates(models: Tensor, updates: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Add the weighted mean of the members' updates to the model of each cluster.

    The models are ``[K, D]``. Clients have updates ``[m, D]`` (trained minus received model),
    clusters ``[m]`` and positive weights ``[m]``. A cluster without members keeps its model.
    """
    averaged = models.clone()
    for cluster in range(len(models)):
        members = labels == cluster
        if members.any():
            shares = (weights[members] / weights[members].sum()).to(updates)
            # Indexing copies, which for all clients of a large network would be gigabytes
            member_updates = updates if members.all() else updates[members]
            averaged[cluster] += shares @ member_updates
    return averaged


def weighted_means(models: Tensor, trained: Tensor, weights: Tensor) -> Tensor:
    """Return models ``[K, D]``, moved to weighted means of the trained ones.

    The trained models are ``[n, D]``, and their weights in each mean ``[K, n]``. A step is a
    mean of differences, whose rounding errors are smaller than those of a mean of models. A model
    whose weights are all zero stays as it is.
    """
    means = models.clone()
    for mean, row in zip(means, weights, strict=True):
        if row.any():
            shares = (row / row.sum()).to(trained)
            mean += shares @ (trained - mean)
    return means
