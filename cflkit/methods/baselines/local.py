"""Local training without a federation: each client trains its own model in every round.

Like one global model, this is a reference that clustering has to beat. The OCFL papers do not
report it.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT
from cflkit.federation import Conversation, Jobs, Server, Train
from cflkit.methods.base import Method


@dataclass(config=STRICT)
class Local(Method):
    """Local training from the common initial model."""

    partial: ClassVar[bool] = True
    reference: ClassVar[str] = "local"
    settled = True  # the labels are those of the first round

    def setup(self, server: Server, initial: Tensor) -> None:
        """Give every client a copy of the initial model."""
        super().setup(server, initial)
        self.models = initial.repeat(server.clients, 1)
        self.labels = torch.arange(server.clients)

    def round(self, t: int) -> Conversation[None]:
        """Let each participant train its own model, which never leaves the client."""
        jobs = self.broadcast(t)
        self.aggregate(t, jobs, (yield Train(jobs, sent=False, reported=False)))

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Keep the model that each client trained."""
        self.models = self.models.clone()
        self.models[jobs.client_of] = trained
