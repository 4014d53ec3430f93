"""The facts about a federation on which the server and all nodes must agree."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT, Count, Natural
from cflkit.datasets import ImageSet
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import Partition


@dataclass(frozen=True, config=STRICT)
class Setting:
    """The network, the local training and the seed.

    Attributes
    ----------
    clients : int
        The number of clients m.
    model : str
        A name that `cflkit.models.make` knows.
    shape : tuple of int
        ``(channels, height, width)`` of an image.
    classes : int
        The number of classes; labels are from 0 to this number − 1.
    training : LocalTraining
        The local training of a round.
    seed : int
        The seed of initialisation, batches and dropout.
    """

    clients: Count
    model: str
    shape: tuple[Count, Count, Count]
    classes: Count
    training: LocalTraining
    seed: Natural = 0

    def federation(
        self, images: ImageSet, partition: Partition, per_round: int | None = None
    ) -> Federation:
        """Build the federation of these facts, which computes as the nodes do."""
        return Federation(
            images,
            partition,
            self.model,
            self.training,
            seed=self.seed,
            device="cpu",
            engine="threads",
            clients_per_round=per_round,
        )

    def sent(self) -> dict[str, Any]:
        """Return the setting in a form that can be sent."""
        return asdict(self)

    @classmethod
    def received(cls, sent: dict[str, Any]) -> Setting:
        """Return the setting that was sent."""
        return cls(**{**sent, "training": LocalTraining(**sent["training"])})
