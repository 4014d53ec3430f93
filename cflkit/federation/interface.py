"""What a method sees of a federation, what can happen to models, and how scores are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from cflkit.federation.blueprint import Blueprint
from cflkit.federation.requests import Jobs, LocalTraining
from cflkit.federation.seeds import drawn

# The models that a client predicts with, as pairs of a digest and the model's weight
Mixture = tuple[tuple[bytes, float], ...]
Pair = tuple[Mixture, int]
Scores = dict[Pair, tuple[float, float]]


class Hook(Protocol):
    """What happens to trained models at their clients, before anybody sees them.

    Attributes
    ----------
    models_only : bool
        Whether clients answer no other requests, since these would tell what the hook hides.
    """

    models_only: ClassVar[bool]

    def __call__(self, trained: Tensor, jobs: Jobs, round: int, reported: bool) -> None:
        """Change the trained parameters ``[J, P]`` in place."""


class Server:
    """The server's view of a federation.

    It contains no true cluster, no sample and no label. To learn anything about the clients' data,
    a method must ask the clients (`cflkit.federation.requests`).

    Attributes
    ----------
    clients : int
        The number of clients m.
    partial : bool
        Whether a round can leave out clients.
    sizes : Tensor
        ``[m]``, float: the number of training samples of each client.
    parameters : int
        The number of trainable parameters P.
    layout : dict of str to slice
        The position of each parameter and buffer of the network in a model's row.
    linear_layers : tuple of str
        The names of the network's linear layers, in the order of the computation.
    training : LocalTraining
        The training that clients do with a model in a round.
    seed : int
        The seed of the federation.
    initials : callable
        `Blueprint.initials`.
    participants, reachable, num_samples : callable
        The methods of `Federation`.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        training: LocalTraining,
        seed: int,
        sizes: Tensor,
        partial: bool,
        participants: Callable[[int], Tensor],
        reachable: Callable[[int], Tensor],
        num_samples: Callable[..., int],
    ) -> None:
        self.clients, self.sizes = len(sizes), sizes.clone()
        self.parameters, self.layout = blueprint.parameters, dict(blueprint.layout)
        self.linear_layers, self.initials = blueprint.linear_layers, blueprint.initials
        self.training, self.seed, self.partial = training, seed, partial
        self.participants, self.reachable = participants, reachable
        self.num_samples = num_samples

    def drawn(self, clients: Tensor, count: int, *key: int) -> Tensor:
        """Draw some of the clients, in ascending order; the same for the same seed and key."""
        return drawn(clients, count, self.seed, *key)

    def places(self, layers: Sequence[str]) -> Tensor:
        """Return the places of these layers' weights and biases in a model's row."""
        owners = {name: name.rpartition(".")[0] for name in self.layout}
        parts = [at for name, at in self.layout.items() if owners[name] in layers]
        return torch.cat([torch.arange(at.start, at.stop) for at in parts])

    def last_layer(self) -> Tensor:
        """Return the places of the last layer's weights and biases in a model's row."""
        return self.places(self.linear_layers[-1:])


class ClientsAbsent(Exception):
    """Clients are asked that do not answer.

    Attributes
    ----------
    clients : list of int
        The clients.
    """

    def __init__(self, clients: Sequence[int], reasons: Mapping[int, str] | None = None) -> None:
        known = reasons or {}
        listed = "; ".join(f"client {c}: {known.get(c, 'no answer')}" for c in clients)
        super().__init__(f"a round needs clients that are absent ({listed})")
        self.clients = list(clients)
