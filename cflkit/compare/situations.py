"""The twenty situations of appendix 09b, in which the assumptions of methods fail one by one."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cflkit import datasets
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import shifts
from cflkit.partition.manifest import Partition, shortened, unequal

SEEDS, TRUE_K = (0, 1, 2), 4
# The values in which a situation comes; those of the appendix that are not changed are below
SITUATIONS: dict[str, list[Any]] = {
    "base": [""],
    "IID": [""],
    "images": [40, 20, 10, 5],  # training images per client
    "sizes": ["1/r", "half"],  # a client's share of its images (`unequal`)
    "labels wrong": [0.2, 0.4],  # share of a client's training images
    "five classes": [6, 30],  # rounds
    "6/3/2/1": ["all", "last"],  # clients per group, and who is affected
    "alone": [""],
    "between": [""],
    "k": [2, 3, 5, 6],
}
CLIENTS, SAMPLES, ROUNDS = 12, 80, 6
TRAINING = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)


@dataclass
class Scene:
    """What methods meet in a situation."""

    images: datasets.ImageSet
    split: Partition
    seed: int  # of data, initial models and batch orders
    affected: list[int]  # the clients whose accuracy counts
    k: int = TRUE_K  # the number of clusters that methods are told
    epochs: int = TRAINING.epochs
    rounds: int = ROUNDS

    def federation(self) -> Federation:
        """Build the federation, with the appendix's network and training."""
        training = replace(TRAINING, epochs=self.epochs)
        made = self.images, self.split
        return Federation(*made, "perceptron", training, seed=self.seed, engine="stacked")


def places() -> list[tuple[str, Any]]:
    """Return each situation with each of its values."""
    return [(name, value) for name, values in SITUATIONS.items() for value in values]


def dealt(seed: int, version: str = "four", clients: int = CLIENTS, samples: int = SAMPLES) -> Any:
    """Return images and clients of a version of the data."""
    digits = datasets.load("digits-8x8")
    return shifts.make(digits, version, clients=clients, samples=samples, seed=seed)


def remade(split: Partition, change: Callable[[list], list]) -> Partition:
    """Return the partition with what a function makes of the clients' rows of each split."""
    parts = {name: change(rows) for name, rows in split.splits.items()}
    return replace(split, train=parts.pop("train"), test=parts.pop("test"), more=parts)


def scene(situation: str, value: Any, seed: int) -> Scene:
    """Return what is changed in a situation; all else is as in the appendix."""
    images, split = dealt(seed)
    rng, everyone = np.random.default_rng(seed), [*range(CLIENTS)]
    new = Scene(images, split, seed, everyone)
    if situation == "IID":
        new.images, new.split = dealt(seed, "base")
    elif situation == "images":  # with as many steps as before
        new.split = shortened(split, [value] * CLIENTS, rng)
        batches = [math.ceil(len(s.train[0]) / TRAINING.batch_size) for s in (split, new.split)]
        new.epochs = round(TRAINING.epochs * batches[0] / batches[1])
    elif situation == "sizes":
        new.split = unequal(split, value, seed)
    elif situation == "labels wrong":
        labels = images.labels.clone()
        for rows in split.train:
            wrong = rng.choice(rows, round(value * len(rows)), replace=False)
            labels[wrong] += torch.from_numpy(rng.integers(1, images.classes, len(wrong)))
        new.images = replace(images, labels=labels % images.classes)
    elif situation == "five classes":  # of ten, drawn for each client, which has as many images
        new.images, new.split = dealt(seed, samples=2 * SAMPLES)
        has = [np.isin(new.images.labels, rng.permutation(10)[:5]) for _ in everyone]
        new.split = remade(new.split, lambda rows: [r[has[c][r]] for c, r in enumerate(rows)])
        new.rounds = value
    elif situation == "6/3/2/1":
        new.images, new.split = dealt(seed, clients=24)
        new.split = new.split.take([*range(9), 12, 13, 18])
        new.affected = [11] if value == "last" else everyone
    elif situation == "alone":  # the last group keeps one client
        new.affected = [3 * CLIENTS // 4]
        new.split = split.take(range(new.affected[0] + 1))
    elif situation == "between":  # client 0 gets half of its images from the last client
        new.affected = [0]
        new.split = remade(split, lambda r: [np.sort(np.r_[r[0][::2], r[-1][::2]]), *r[1:]])
    elif situation == "k":
        new.k = value
    return new
