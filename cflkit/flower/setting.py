"""The facts about a federation on which the server and all nodes must agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT, Count, Natural, one_line
from cflkit.datasets import ImageSet
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import Partition


@dataclass(frozen=True, config=STRICT)
class Setting:
    """The network, the local training and the seed.

    Attributes
    ----------
    clients, classes : int
        The number of clients m, and that of classes, which are numbered from 0.
    model : str
        A name that `cflkit.models.make` knows.
    shape : tuple of int
        ``(channels, height, width)`` of an image.
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

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Setting:
        """Read the values of a run; a `ValueError` says which one cannot be."""
        try:
            channels, height, width = map(int, str(config["shape"]).split(","))
        except ValueError as error:
            told = f"shape must be channels, height, width, not {config['shape']!r}"
            raise ValueError(told) from error
        local = {name: config[name] for name in ("epochs", "optimizer", "lr", "momentum")}
        facts = {name: config[name] for name in ("clients", "model", "classes", "seed")}
        try:
            training = LocalTraining(batch_size=config["batch-size"], **local)
            return cls(shape=(channels, height, width), training=training, **facts)
        except ValidationError as error:
            raise ValueError(one_line(error)) from error

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
