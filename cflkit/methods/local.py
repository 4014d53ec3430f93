"""No federation at all: each client trains a model of its own, round after round.

What clustering has to beat from the other side; the OCFL papers do not report it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit.bounds import STRICT
from cflkit.federation import Jobs, Request, Server, Train
from cflkit.methods.base import Method


@dataclass(config=STRICT)
class Local(Method):
    """Local training from the common initial model."""

    partial: ClassVar[bool] = True

    def setup(self, server: Server, initial: Tensor) -> None:
        """Give every client a copy of the initial model."""
        super().setup(server, initial)
        self.models = initial.repeat(server.clients, 1)
        self.labels = torch.arange(server.clients)

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Let each participant train its own model, which never leaves it."""
        jobs = self.broadcast(t)
        self.aggregate(t, jobs, (yield Train(jobs, exchanged=False)))

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Keep what each client trained."""
        self.models = self.models.clone()
        self.models[jobs.client_of] = trained
