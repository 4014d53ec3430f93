"""The knowledge of a method about a federation: some numbers, but no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cflkit.federation.interface import FederationLike
    from cflkit.federation.jobs import LocalTraining


class Server:
    """The server's view of a federation.

    It contains no true cluster, no sample and no label. To learn anything about the clients' data,
    a method must ask the clients (`cflkit.federation.requests`).

    Attributes
    ----------
    clients : int
        The number of clients m.
    clients_per_round : int
        The number of clients that take part in a round.
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
    initials : callable
        The function from a count and numbers to ``[count, P + Q]``: models that are initialised one
        by one, the same ones for the same numbers (`Blueprint.initials`).
    participants, reachable : callable
        The functions from a round to the clients that train in it, and to those that answer in it;
        ascending, int64 (`Federation.participants`, `Federation.reachable`).
    num_samples : callable
        The function from a client and a split to the number of its samples, 0 if there is no such
        split (`Federation.num_samples`).
    drawn : callable
        The function that draws some of the clients, ascending, from their numbers, a count and a
        key; the same ones for the same key (`Federation.drawn`).
    """

    def __init__(self, federation: FederationLike) -> None:
        self.clients = federation.clients
        self.clients_per_round = federation.per_round
        self.partial = federation.partial
        self.sizes = federation.sizes.clone()
        self.parameters = federation.parameters
        self.layout = dict(federation.layout)
        self.linear_layers = federation.blueprint.linear_layers
        self.training: LocalTraining = federation.training
        self.initials = federation.initials
        self.participants = federation.participants
        self.reachable = federation.reachable
        self.num_samples = federation.num_samples
        self.drawn = federation.drawn

    def places(self, layers: Sequence[str]) -> Tensor:
        """Return the places of these layers' weights and biases in a model's row."""
        owners = {name: name.rpartition(".")[0] for name in self.layout}
        parts = [at for name, at in self.layout.items() if owners[name] in layers]
        return torch.cat([torch.arange(at.start, at.stop) for at in parts])

    def last_layer(self) -> Tensor:
        """Return the places of the last layer's weights and biases in a model's row."""
        return self.places(self.linear_layers[-1:])
