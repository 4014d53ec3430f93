"""Write ``data/failures.csv``: how well each method of lesson 09b does where its assumptions fail.

The program executes the lesson's own cells up to its line-up, and runs all methods in each
situation with each seed, which decides data and training. Rows that are there are not run again.
"""

import csv
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cflkit import datasets, methods, simulation
from cflkit.partition import shifts
from cflkit.partition.manifest import Partition
from cflkit.reproduce.records import PROJECT
from cflkit.simulation.evaluation import client_scores

sys.path.insert(0, str(PROJECT / "notebooks" / "src" / "play" / "explorers"))
from data import lesson

TABLE = PROJECT / "data" / "failures.csv"
COLUMNS = ("situation", "value", "seed", "method", "accuracy", "ari")
SEEDS, TRUE_K = (0, 1, 2), 4
SITUATIONS: dict[str, list[Any]] = {
    "base": [""],
    "IID": [""],
    "images": [40, 20, 10, 5],  # training images per client
    "labels wrong": [0.2, 0.4],  # share of a client's training images
    "five classes": [6, 30],  # rounds
    "6/3/2/1": ["all", "last"],  # clients per group, and who is affected
    "alone": [""],
    "between": [""],
    "k": [2, 3, 5, 6],
}

Names = dict[str, Any]  # what the lesson's cells define


@dataclass
class Scene:
    """What methods meet in a situation."""

    images: datasets.ImageSet
    split: Partition
    affected: list[int]  # the clients whose accuracy counts
    k: int  # the number of clusters that methods are told
    epochs: int
    rounds: int


def line_up(names: Names, truth: Any, k: int) -> dict[str, methods.Method]:
    """Return the lesson's methods, and three that it leaves out."""
    return names["line_up"](truth, k) | {
        "FLUX": methods.make("flux", start=2),  # by embeddings of a model that was trained once
        "StoCFL": methods.make("stocfl"),
        "FedRep": methods.make("fedrep"),
    }


def remade(split: Partition, change: Callable[[list], list]) -> Partition:
    """Return the partition with what a function makes of the clients' rows of each split."""
    parts = {name: change(rows) for name, rows in split.splits.items()}
    return replace(split, train=parts.pop("train"), test=parts.pop("test"), more=parts)


def scene(names: Names, situation: str, value: Any) -> Scene:
    """Return what is changed in a situation; all else is as in the lesson."""
    run, images, split = names["run"], names["images"], names["split"]
    rng, everyone = np.random.default_rng(run.seed), [*range(run.clients)]
    new = Scene(images, split, everyone, TRUE_K, run.local_epochs, run.rounds)

    def dealt(version: str = "four", clients: int = run.clients, samples: int = run.samples) -> Any:
        digits = datasets.load("digits-8x8")
        return shifts.make(digits, version, clients=clients, samples=samples, seed=run.seed)

    if situation == "IID":
        new.images, new.split = dealt("base")
    elif situation == "images":  # with as many steps as before
        new.split = replace(
            split, train=[np.sort(rng.choice(r, value, False)) for r in split.train]
        )
        batches = [math.ceil(len(s.train[0]) / run.batch_size) for s in (split, new.split)]
        new.epochs = round(run.local_epochs * batches[0] / batches[1])
    elif situation == "labels wrong":
        labels = images.labels.clone()
        for rows in split.train:
            wrong = rng.choice(rows, round(value * len(rows)), replace=False)
            labels[wrong] += torch.from_numpy(rng.integers(1, images.classes, len(wrong)))
        new.images = replace(images, labels=labels % images.classes)
    elif situation == "five classes":  # of ten, drawn for each client, which has as many images
        new.images, new.split = dealt(samples=2 * run.samples)
        has = [np.isin(new.images.labels, rng.permutation(10)[:5]) for _ in everyone]
        new.split = remade(new.split, lambda rows: [r[has[c][r]] for c, r in enumerate(rows)])
        new.rounds = value
    elif situation == "6/3/2/1":
        new.images, new.split = dealt(clients=24)
        new.split = new.split.take([*range(9), 12, 13, 18])
        new.affected = [11] if value == "last" else everyone
    elif situation == "alone":  # the last group keeps one client
        new.affected = [3 * run.clients // 4]
        new.split = split.take(range(new.affected[0] + 1))
    elif situation == "between":  # client 0 gets half of its images from the last client
        new.affected = [0]
        new.split = remade(split, lambda r: [np.sort(np.r_[r[0][::2], r[-1][::2]]), *r[1:]])
    elif situation == "k":
        new.k = value
    return new


def measured(names: Names, new: Scene, only: Iterable[str] | None = None) -> list[dict[str, str]]:
    """Run the methods in a scene; with a wrong k, those alone that are told k."""
    lines, right = (line_up(names, new.split.clusters, k) for k in (new.k, TRUE_K))
    told = [name for name in lines if new.k == TRUE_K or repr(lines[name]) != repr(right[name])]
    lines = {name: lines[name] for name in told if only is None or name in only}
    home = names["home"](new.images, new.split, new.epochs)
    summary = simulation.run(lines, home, new.rounds, progress=False).summary()
    return [
        {
            "method": name,
            "accuracy": f"{client_scores(line, home)[new.affected, 1].mean():.4f}",
            "ari": f"{summary[name]['ari']:.3f}" if "ari" in summary[name] else "",
        }
        for name, line in lines.items()
    ]


def main() -> None:
    """Add what the table lacks, one seed and situation after the other."""
    torch.set_num_threads(1)
    if not TABLE.exists():
        TABLE.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with TABLE.open("r+", 1, encoding="utf-8", newline="") as file:  # written line by line
        there = {(row["situation"], row["value"], row["seed"]) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for seed in SEEDS:
            names = lesson("09b_catalogue", until="line_up", seed=seed)
            for place in ((name, v) for name, values in SITUATIONS.items() for v in values):
                if (place[0], str(place[1]), str(seed)) not in there:
                    key = dict(zip(COLUMNS, (*place, seed), strict=False))
                    writer.writerows(key | row for row in measured(names, scene(names, *place)))
                    print(*place, seed, flush=True)


if __name__ == "__main__":
    main()
