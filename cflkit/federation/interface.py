"""The two sides of a federation: what the loop over rounds needs of it, and what a method sees.

Two classes have the interface `FederationLike`. `cflkit.federation.Federation` simulates the
clients, and `cflkit.flower.server_app.RemoteFederation` talks to clients that are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

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
    initials, participants, reachable, num_samples : callable
        The methods of `FederationLike`.
    """

    def __init__(self, federation: FederationLike) -> None:
        self.clients = federation.clients
        self.partial = federation.partial
        self.sizes = federation.sizes.clone()
        self.parameters = federation.parameters
        self.layout = dict(federation.blueprint.layout)
        self.linear_layers = federation.blueprint.linear_layers
        self.training = federation.training
        self.initials = federation.blueprint.initials
        self.participants = federation.participants
        self.reachable = federation.reachable
        self.num_samples = federation.num_samples
        self.seed = federation.seed

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


class FederationLike(Protocol):
    """Clients that train and evaluate models, wherever they are; `Federation` describes each."""

    clients: int
    sizes: Tensor
    clusters: Tensor | None
    task: str
    training: LocalTraining
    seed: int
    device: torch.device
    engine: str
    after_training: tuple[Hook, ...]
    blueprint: Blueprint
    parameters: int
    server: Server

    @property
    def identity(self) -> str: ...
    @property
    def per_round(self) -> int: ...
    @property
    def partial(self) -> bool: ...
    def initial(self) -> Tensor: ...
    def reachable(self, round: int) -> Tensor: ...
    def participants(self, round: int) -> Tensor: ...
    def num_samples(self, client: int, split: str = "train") -> int: ...
    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor: ...
    def losses(
        self, jobs: Jobs, split: str, told: Callable[..., Tensor] | None, **options: Hashable
    ) -> list[Tensor]: ...
    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]: ...
    def scores(
        self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str
    ) -> Scores: ...


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
