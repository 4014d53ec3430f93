"""Write ``data/groups.csv`` and ``data/groups_methods.csv``: how often `cflkit.groups` is right.

A row of the first is a draw of a situation, with what the tool says of all rounds, of the first
alone, and of the distances in all rounds. The second has `ocfl-replicated` beside OCFL, OCFL that
clusters in round 1, and the oracle. Rows that are there are not run again.

The rule, the situations and the seeds were committed before the count. The rule was developed on
the seeds 300 to 304, which are not counted. What is right of a situation is known from how it was
dealt: it has groups, it has clients that draw from distributions without groups (Dirichlet), or all
clients draw from one distribution.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cflkit import datasets, methods, partition, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.federation.privacy import Privacy
from cflkit.groups import ALIKE, DEGREES, GROUPS, Evidence, groups
from cflkit.halves import agreement
from cflkit.partition import shifts
from cflkit.reproduce.records import PROJECT

SEEDS, SEEDS_OF_METHODS = range(160, 172), range(160, 166)
WHOLE = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
ADAM = LocalTraining(epochs=5, batch_size=16, optimizer="adam", lr=0.005)
STEP = LocalTraining(epochs=1, batch_size=16, lr=0.5)


class OneStep(Federation):
    """Clients that take one step in a round, on 16 of their images, drawn anew."""

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> torch.Tensor:
        """Train on a draw of samples, which depends on the seed, the client and the round."""
        drawn = [
            torch.from_numpy(
                np.random.default_rng([self.seed, client, round])
                .permutation(self.num_samples(client))[:16]
                .copy()
            )
            for client in jobs.client_of.tolist()
        ]
        return super().train(jobs.replace(subset=drawn), round, reported)


def four(clients: int, samples: int, seed: int, version: str = "four") -> Any:
    """Deal digits that are rotated by 0, 90, 180 and 270 degrees."""
    digits = datasets.load("digits-8x8")
    return shifts.make(digits, version, clients=clients, samples=samples, seed=seed)


def some(clients: int, samples: int, kept: tuple[int, ...], seed: int) -> Any:
    """Keep the first clients of each angle, as many as told."""
    images, split = four(clients, samples, seed)
    places = [np.flatnonzero(split.clusters == k)[:n] for k, n in enumerate(kept)]
    return images, split.take(np.concatenate(places).tolist())


def unequal(made: Any, seed: int) -> Any:
    """Keep between a sixth and all of a client's training images."""
    images, split = made
    rng = np.random.default_rng(seed)
    own = [np.sort(rng.permutation(r)[: int(len(r) * rng.uniform(1 / 6, 1))]) for r in split.train]
    return images, replace(split, train=own)


def mixed(recipe: str, seed: int, **options: Any) -> Any:
    """Deal digits by a recipe of `cflkit.partition`."""
    return getattr(partition, recipe)(datasets.load("digits-8x8"), **options, seed=seed)


@dataclass(frozen=True)
class Situation:
    """What clients hold, what is right to say of them, and how they train."""

    answer: str
    deal: Callable[[int], Any]
    rounds: int = 12
    model: str = "perceptron"
    training: LocalTraining = WHOLE
    noise: float = 0.0

    def federation(self, seed: int) -> Federation:
        """Build the federation of a draw."""
        kind = OneStep if self.training is STEP else Federation
        home = kind(*self.deal(seed), self.model, self.training, seed=seed, engine="stacked")
        return home.with_hooks(Privacy(1.0, self.noise, seed)) if self.noise else home


D = "dirichlet"
SITUATIONS = {
    "four angles, 20 clients": Situation(GROUPS, lambda s: four(20, 40, s)),
    "four angles, 100 clients": Situation(GROUPS, lambda s: four(100, 40, s), 8),
    "four angles, unequal groups": Situation(GROUPS, lambda s: some(40, 30, (10, 5, 5, 5), s)),
    "four angles, unequal sizes": Situation(GROUPS, lambda s: unequal(four(20, 60, s), s)),
    "two angles, 10 clients": Situation(GROUPS, lambda s: four(10, 200, s, "quarter-turn")),
    "separate classes, 15 clients": Situation(
        GROUPS, lambda s: mixed("ocfl", s, overlap="nonoverlapping", balance="balanced", clients=15)
    ),
    "shared classes, unequal groups": Situation(
        GROUPS, lambda s: mixed("ocfl", s, overlap="overlapping", balance="imbalanced", clients=15)
    ),
    "backdoor, 24 clients": Situation(GROUPS, lambda s: four(24, 50, s, "backdoor")),
    "four angles, one step": Situation(GROUPS, lambda s: four(20, 40, s), 40, training=STEP),
    "four angles, noise 0.06": Situation(GROUPS, lambda s: four(20, 40, s), 20, noise=0.06),
    "four angles, CNN": Situation(GROUPS, lambda s: four(20, 40, s), 8, "compact-cnn", ADAM),
    "Dirichlet 0.1, 20 clients": Situation(DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.1)),
    "Dirichlet 0.3, 20 clients": Situation(DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.3)),
    "Dirichlet 1, 20 clients": Situation(DEGREES, lambda s: mixed(D, s, clients=20, alpha=1.0)),
    "Dirichlet 0.1, noise 0.06": Situation(
        DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.1), 20, noise=0.06
    ),
    "Dirichlet 0.3, CNN": Situation(
        DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.3), 8, "compact-cnn", ADAM
    ),
    "IID, 20 clients": Situation(ALIKE, lambda s: mixed("iid", s, clients=20)),
    "IID, 8 clients": Situation(ALIKE, lambda s: mixed("iid", s, clients=8)),
    "IID, 100 clients": Situation(ALIKE, lambda s: mixed("iid", s, clients=100), 8),
    "one angle, 10 clients": Situation(ALIKE, lambda s: some(40, 30, (10, 0, 0, 0), s)),
    "IID, unequal sizes": Situation(ALIKE, lambda s: unequal(mixed("iid", s, clients=20), s)),
    "IID, one step": Situation(ALIKE, lambda s: mixed("iid", s, clients=20), 40, training=STEP),
    "IID, noise 0.06": Situation(ALIKE, lambda s: mixed("iid", s, clients=20), 20, noise=0.06),
    "IID, CNN": Situation(ALIKE, lambda s: mixed("iid", s, clients=20), 8, "compact-cnn", ADAM),
}


def watched(home: Federation, rounds: int) -> Iterator[torch.Tensor]:
    """Yield the updates ``[m, P]`` of each round of federated averaging."""
    kept, everyone = home.initial(), torch.arange(home.clients)
    for t in range(rounds):
        trained = home.train(Jobs(kept[None], torch.zeros_like(everyone), everyone), round=t)
        yield (trained - kept)[:, : home.parameters]
        kept = trained.mean(dim=0)


def asked(situation: Situation, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what the tool says of a draw."""
    home = situation.federation(seed)
    updates = torch.stack([*watched(home, situation.rounds)]).numpy()
    answer = groups(Evidence(updates, distances=False))
    first = groups(Evidence(updates[:1], distances=False))
    apart = np.stack([cosine_divergence(own) for own in updates])
    assert home.clusters is not None
    truth = home.clusters.numpy()
    yield {
        "truth": situation.answer,
        "answer": answer.answer,
        "k": answer.k,
        "ari": f"{agreement(truth, np.array(answer.clusters)):.2f}" if truth.any() else "",
        "rounds needed": answer.rounds_needed or "",
        "shared": f"{answer.shared:.2f}",
        "scatter": f"{answer.scatter:.2f}",
        "one look": first.answer,
        "distances": groups(Evidence(apart, distances=True)).answer,
    }


def raced(situation: Situation, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what each method finds in a draw, and how well its models do."""
    home = situation.federation(seed)
    assert home.clusters is not None
    lines = {
        "FedAvg": methods.make("fedavg"),
        "round 1": methods.make("ocfl", before=-np.inf),
        "OCFL": methods.make("ocfl"),
        "OCFL-replicated": methods.make("ocfl-replicated"),
        "oracle": methods.make("oracle", truth=home.clusters.tolist()),
    }
    if home.sizes.min() >= 80:
        lines["halves of samples"] = methods.make("ocfl-replicated", split="samples")
    summary = simulation.run(lines, home, situation.rounds, progress=False).summary()
    for name, own in summary.items():
        yield {
            "truth": situation.answer,
            "method": name,
            "clusters": own["n_clusters"],
            "round": own["clustering_round"] or "",
            "ari": f"{own['ari']:.2f}" if home.clusters.any() else "",
            "accuracy": f"{own['accuracy']:.4f}",
        }


TABLES: dict[str, tuple[Callable[[Situation, int], Iterator[dict[str, Any]]], range, str]] = {
    "groups": (asked, SEEDS, "truth,answer,k,ari,rounds needed,shared,scatter,one look,distances"),
    "groups_methods": (raced, SEEDS_OF_METHODS, "truth,method,clusters,round,ari,accuracy"),
}


def main(name: str) -> None:
    """Add what a table lacks, one seed and situation after the other."""
    torch.set_num_threads(1)
    rows_of, seeds, columns = TABLES[name]
    path = PROJECT / "data" / f"{name}.csv"
    names = ["situation", "seed", *columns.split(",")]
    if not path.exists():
        path.write_text(",".join(names) + "\n", encoding="utf-8")
    with path.open("r+", 1, encoding="utf-8", newline="") as file:  # written line by line
        there = {(row["situation"], row["seed"]) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, names, lineterminator="\n")
        for seed, (place, situation) in ((s, x) for s in seeds for x in SITUATIONS.items()):
            if (place, str(seed)) not in there:
                key = {"situation": place, "seed": seed}
                writer.writerows(key | row for row in rows_of(situation, seed))


if __name__ == "__main__":
    main(sys.argv[1])
