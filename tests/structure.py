"""Is there a structure at all? How often tests say so, with groups of clients and without.

``python tests/structure.py`` writes ``data/structure.csv``: for each scene, the share of 20 seeds
in which `divergence.persistence` finds differences between 20 clients (p ≤ 0.05) where each client
halves its samples at random, and where it halves each of its classes; and in which the largest gap
between merge heights is larger than in all of 19 copies with permuted coordinates.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cflkit import clustering, datasets, partition
from cflkit.divergence import cosine_divergence, persistence
from cflkit.federation import Federation, Jobs
from cflkit.partition import Partition, shifts

CLIENTS, HELD, SEEDS, LEVEL = 20, 40, 20, 0.05
DIGITS = datasets.load("digits-8x8")
SCENES: dict[str, Callable[[int], tuple[datasets.ImageSet, Partition]]] = {
    "four rotations": lambda seed: turned(seed),
    "classes of three groups": lambda seed: partition.ocfl(
        DIGITS,
        overlap="nonoverlapping",
        balance="balanced",
        clients=CLIENTS - 2,
        draws=60,
        seed=seed,
    ),
    "own shares of classes, no groups": lambda seed: partition.dirichlet(
        DIGITS, clients=CLIENTS, alpha=1.0, seed=seed
    ),
    "equal clients": lambda seed: partition.iid(DIGITS, clients=CLIENTS, seed=seed),
    "equal clients, equal classes": lambda seed: shifts.make(
        DIGITS, "base", clients=CLIENTS, samples=HELD, seed=seed
    ),
}


def turned(seed: int) -> tuple[datasets.ImageSet, Partition]:
    """Make equal clients, and turn the images of each group of five by another angle."""
    _, split = partition.iid(DIGITS, clients=CLIENTS, seed=seed)
    images = DIGITS.images.clone()
    for client in range(CLIENTS):
        own = [*split.train[client], *split.test[client]]
        images[own] = torch.rot90(images[own], client // 5, dims=(2, 3))
    return dataclasses.replace(DIGITS, images=images), split


def updates_of(federation: Federation, seed: int, by_class: bool) -> list[torch.Tensor]:
    """Train the initial model on each half of up to 36 samples per client; return the updates."""
    rng, everyone = np.random.default_rng(seed), torch.arange(federation.clients)
    own = [rng.permutation(int(size))[:36] for size in federation.sizes]
    if by_class:
        labels = [federation.targets(client, "train").numpy() for client in range(len(own))]
        own = [
            held[np.argsort(classes[held], kind="stable")]
            for held, classes in zip(own, labels, strict=True)
        ]
    halves = [[torch.from_numpy(np.sort(held[half::2])) for held in own] for half in range(2)]
    initial = federation.initial()
    jobs = [Jobs(initial[None], 0 * everyone, everyone, subset=half) for half in halves]
    return [federation.train(one, round) - initial for round, one in enumerate(jobs)]


def largest_gap(updates: torch.Tensor) -> float:
    return float(np.diff(clustering.merge_heights(cosine_divergence(updates))).max())


def found(scene: str, seed: int) -> dict[str, object]:
    federation = Federation(*SCENES[scene](seed), seed=seed, device="cpu")
    says = {}
    for way, by_class in (("random halves", False), ("halves of classes", True)):
        one, other = updates_of(federation, seed, by_class)
        divergences = cosine_divergence(one), cosine_divergence(other)
        says[way] = persistence(*divergences, seed=seed)[1] <= LEVEL
    draw = torch.Generator().manual_seed(seed)
    both = one + other
    permuted = [
        torch.stack([row[torch.randperm(len(row), generator=draw)] for row in both])
        for _ in range(19)
    ]
    gap = largest_gap(both) > max(largest_gap(copy) for copy in permuted)
    return {"scene": scene, **says, "gap of merge heights": gap}


if __name__ == "__main__":
    rows = pd.DataFrame([found(scene, seed) for scene in SCENES for seed in range(SEEDS)])
    table = rows.groupby("scene", sort=False).mean().round(3).assign(seeds=SEEDS)
    table.to_csv(Path(__file__).parents[1] / "data" / "structure.csv")
    print(table.to_string())
