"""Clients that do not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ClientsAbsent(Exception):
    """Clients did not answer, or their answers are of no use; the message says why.

    Attributes
    ----------
    clients : list of int
        The clients.
    asked_again : bool
        Whether they were known to be absent when they were asked. A round that asks them cannot go
        on, whoever takes part.
    """

    def __init__(
        self, clients: Sequence[int], reasons: Mapping[int, str], asked_again: bool = False
    ) -> None:
        listed = "; ".join(f"client {c}: {reasons.get(c, 'no answer')}" for c in clients)
        super().__init__(f"a round needs clients that are absent ({listed})")
        self.clients, self.asked_again = list(clients), asked_again
