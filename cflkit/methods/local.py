"""No federation at all: each client trains a model of its own, round after round.

What clustering has to beat from the other side; the OCFL papers do not report it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cflkit.federation import Federation, Jobs
from cflkit.methods.base import Method


@dataclass
class Local(Method):
    """Local training from the common initial model."""

    partial: ClassVar[bool] = True

    def setup(self, federation: Federation, initial: Tensor) -> None:
        """Give every client a copy of the initial model."""
        super().setup(federation, initial)
        self.models = initial.repeat(federation.clients, 1)
        self.labels = torch.arange(federation.clients)

    def aggregate(self, round: int, jobs: Jobs, trained: Tensor) -> None:
        """Keep what each client trained."""
        self.models = self.models.clone()
        self.models[jobs.client] = trained
