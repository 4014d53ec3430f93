"""A round that goes on without the clients that do not answer."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from cflkit.federation import ClientsAbsent, Diverged
from cflkit.flower.remote import RemoteFederation
from cflkit.methods import Method
from cflkit.simulation.history import History
from cflkit.simulation.lockstep import Traffic, converse


def converse_with_present(
    methods: Mapping[str, Method],
    federation: RemoteFederation,
    t: int,
    history: History,
    until_settled: bool = False,
) -> tuple[dict[str, Traffic], dict[str, Diverged]]:
    """Run a round as `converse` does; if clients fail in it, begin it again without them.

    Raises
    ------
    ClientsAbsent
        A method asks clients that were absent before, so that no round can go on; or nobody who
        should take part is there.
    """
    before = {name: copy.deepcopy(method.state()) for name, method in methods.items()}
    counts = history.requested, history.trained
    while True:
        there = set(federation.reachable(t).tolist())
        try:
            return converse(methods, federation, t, history, until_settled)
        except ClientsAbsent as error:
            if not there.intersection(error.clients):
                raise ClientsAbsent(error.clients, federation.nodes.faults) from error
        for name, method in methods.items():
            method.restore(copy.deepcopy(before[name]))
        history.requested, history.trained = counts
