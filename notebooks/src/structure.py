"""Write ``data/structure.csv``: what `groups.structure` says of clients with groups and without.

A row is a federation of 15 or 16 clients and a round: the first, or that in which OCFL's trigger
fires (the eighth, if it does not). Rows that are there are not computed again.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hit_rate import watched

from cflkit import datasets, partition
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, LocalTraining
from cflkit.groups.structure import structure_test
from cflkit.partition import shifts
from cflkit.reproduce.records import PROJECT

TABLE = PROJECT / "data" / "structure.csv"
COLUMNS = ("data", "clients", "groups", "seed", "round", "silhouette", "p")
ROUNDS = 8
# Draws per client, the most training images of a Dirichlet client, and the local training
SETTINGS = {
    "digits-8x8": (120, None, LocalTraining(epochs=2, batch_size=16, lr=0.1)),
    "mnist": (600, 600, LocalTraining(epochs=1, batch_size=16, lr=0.1)),
    "fashion-mnist": (600, 600, LocalTraining(epochs=1, batch_size=16, lr=0.1)),
}
SEEDS = {"digits-8x8": range(100, 120), "mnist": range(5), "fashion-mnist": range(5)}


def federations(name: str, seed: int) -> Iterator[tuple[str, int, Any]]:
    """Yield federations: what their clients have, the number of true groups, images and split."""
    images, (draws, most, _) = datasets.load(name), SETTINGS[name]
    for overlap in ("nonoverlapping", "overlapping"):
        for balance in ("balanced", "imbalanced"):
            options = {"overlap": overlap, "balance": balance, "clients": 15, "draws": draws}
            yield f"{overlap}, {balance}", 3, partition.ocfl(images, **options, seed=seed)
    for version, groups in (("four", 4), ("base", 1)):  # rotations, and the same without them
        made = shifts.make(images, version, clients=16, samples=draws // 2, seed=seed)
        yield "rotated" if groups > 1 else "IID", groups, made
    rng = np.random.default_rng(seed)
    for alpha in (0.1, 0.3, 1.0):
        _, split = partition.dirichlet(images, clients=15, alpha=alpha, seed=seed)
        few = [np.sort(rng.permutation(rows)[:most]) for rows in split.train]
        yield f"Dirichlet, α = {alpha:g}", 1, (images, replace(split, train=few))


def matrices(federation: Federation) -> Iterator[np.ndarray]:
    """Return the divergence matrices of the rounds of federated averaging."""
    return map(cosine_divergence, watched(federation, ROUNDS))


def tested(federation: Federation) -> Iterator[dict[str, Any]]:
    """Yield the answers of the first round, and of the round that fires."""
    before = np.inf
    for number, gamma in enumerate(matrices(federation), 1):
        heat = temperature(gamma)
        if number in (1, ROUNDS) or heat > before:
            found = structure_test(gamma)
            numbers = {"silhouette": f"{found.silhouette:.3f}", "p": f"{found.p_value:.2f}"}
            yield {"round": "first" if number == 1 else "fires", **numbers}
            if number > 1:
                return
        before = heat


def main() -> None:
    """Add what the table lacks, one federation after the other."""
    torch.set_num_threads(1)
    if not TABLE.exists():
        TABLE.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with TABLE.open("r+", 1, encoding="utf-8", newline="") as file:  # written line by line
        there = {(row["data"], row["clients"], row["seed"]) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for name, seed in ((known, seed) for known in SEEDS for seed in SEEDS[known]):
            for clients, groups, made in federations(name, seed):
                if (name, clients, str(seed)) not in there:
                    home = Federation(*made, "compact-cnn", SETTINGS[name][-1], seed=seed)
                    key = {"data": name, "clients": clients, "groups": groups, "seed": seed}
                    writer.writerows([key | row for row in tested(home)])  # all rows or none


if __name__ == "__main__":
    main()
