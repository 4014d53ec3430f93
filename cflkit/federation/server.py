"""What a method may know: numbers about the federation, and none of its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cflkit.federation.federation import Federation
    from cflkit.federation.jobs import LocalTraining


class Server:
    """The server's view of a federation.

    It shows no true cluster, no sample and no label. What a method wants to know of the clients'
    data it must ask them (`cflkit.federation.requests`).

    Attributes
    ----------
    clients : int
        m.
    clients_per_round : int
        How many of them take part in a round.
    sizes : Tensor
        ``[m]``, float: training samples of each client.
    parameters : int
        P.
    layout : dict of str to slice
        Where each parameter and buffer of the network lies in a model's row.
    training : LocalTraining
        What clients do with a model in a round.
    """

    def __init__(self, federation: Federation) -> None:
        self.clients = federation.clients
        self.clients_per_round = federation.data.per_round
        self.sizes = federation.sizes.clone()
        self.parameters = federation.parameters
        self.layout = dict(federation.layout)
        self.training: LocalTraining = federation.training
        self.initials = federation.initials
        self.participants = federation.participants
        self.num_samples = federation.num_samples
