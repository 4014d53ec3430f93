"""The last bit of what was trained, perturbed as another processor might round it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cflkit.federation import Jobs
from cflkit.federation.seeds import PERTURBATION, integer


@dataclass(frozen=True)
class Perturbation:
    """A hook after training: parameters move by one unit in the last place, or not at all.

    This stands for another processor, whose sums round in another order. A client's perturbation
    depends on the seed, the client and the round alone, so equal trainings stay equal. Parameters
    that training did not change stay as they are, and so do buffers.
    """

    models_only: ClassVar[bool] = False

    perturbation: int  # the seed, which a record states (`records.provenance`)

    def __call__(self, trained: Tensor, jobs: Jobs, round: int, reported: bool) -> None:
        """Perturb the rows of ``trained`` in place, see `Hook`."""
        starts, clients = jobs.model_of.tolist(), jobs.client_of.tolist()
        for row, start, client in zip(trained, starts, clients, strict=True):
            generator = torch.Generator()
            generator.manual_seed(integer(self.perturbation, PERTURBATION, client, round))
            towards = torch.randint(-1, 2, (len(row),), generator=generator).to(row)
            moved = row != jobs.models[start, : len(row)]
            row.copy_(torch.nextafter(row, row + towards * moved))
