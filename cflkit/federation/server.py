"""The knowledge of a method about a federation: some numbers, but no data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cflkit.federation.federation import Federation
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
    training : LocalTraining
        The training that clients do with a model in a round.
    """

    def __init__(self, federation: Federation) -> None:
        self.clients = federation.clients
        self.clients_per_round = federation.per_round
        self.partial = federation.partial
        self.sizes = federation.sizes.clone()
        self.parameters = federation.parameters
        self.layout = dict(federation.layout)
        self.training: LocalTraining = federation.training
        self.initials = federation.initials
        self.participants = federation.participants
        self.reachable = federation.reachable
        self.num_samples = federation.num_samples
        self.drawn = federation.drawn

    def last_layer(self) -> Tensor:
        """Return the places of the last layer's weights and biases in a model's row."""
        # Networks list their layers in the order of the computation
        names = [name for name, at in self.layout.items() if at.stop <= self.parameters]
        layer = names[-1].rpartition(".")[0]
        parts = [at for name, at in self.layout.items() if name.startswith(f"{layer}.")]
        return torch.cat([torch.arange(at.start, at.stop) for at in parts])
