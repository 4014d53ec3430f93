"""Counts of the bytes that a method's clients receive and send, taken from its requests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from cflkit.federation import Request, Train


@dataclass
class Traffic:
    """The bytes that a method's clients received and sent in a round, and how often they trained.

    Models, embeddings and other answers count. Labels, seeds and choices do not, and neither do
    weights of samples, which clients compute themselves. A model is not sent again to a client that
    has already received or trained it in this round. A training that a client has already done in
    this round is neither done nor reported again.

    The counts are those of the kit's own messages. Embeddings and directions are in float64, with
    8 bytes per number. An anchor is a second model, and FedCRef's first autoencoders are sent, too,
    although clients could compute them.
    """

    down: int = 0
    up: int = 0
    trainings: int = 0
    held: set[tuple[Hashable, Hashable]] = field(default_factory=set)
    trained: set[tuple[Hashable, Hashable]] = field(default_factory=set)

    def count(
        self,
        request: Request,
        keys: Sequence[Any],
        answers: Sequence[Any] | Tensor,
        results: Sequence[bytes] | None,
    ) -> None:
        """Count the bytes of a request and of its answers, and the trainings.

        Parameters
        ----------
        request : Request
            The request to the clients.
        keys : sequence
            The keys of the request's jobs (`Jobs.keys`).
        answers : sequence
            The answers, one per job.
        results : sequence of bytes, optional
            The digests of the answers, if these are models.
        """
        jobs = request.jobs
        size = jobs.models.shape[1] * jobs.models.element_size()
        for model, client, _, _, anchor, _ in keys if request.sent else ():
            for row in (model, anchor):
                if row is not None and (row, client) not in self.held:
                    self.held.add((row, client))
                    self.down += size
        if isinstance(request, Train):
            assert results is not None
            clients = jobs.client_of.tolist()
            self.held |= set(zip(results, clients, strict=True))
            new = {(request.kind(), key) for key in keys} - self.trained
            self.trained |= new
            self.trainings += len(new)
            if request.reported:
                self.up += len(new) * size
        elif request.reported:
            self.up += sum(map(num_bytes, answers))


def num_bytes(value: Any) -> int:
    """Return how many bytes an answer takes: an array its own size, a single number 8 bytes."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(num_bytes, value))
    return 8
