"""One table of all methods of the kit: what they are told, what they send, and whose code there is.

What a method is told, what its clients answer and whether they may be away is read from its class.
What a round costs is measured in a small federation. The authors' code is in ``data/methods.csv``.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import pandas as pd

from cflkit import datasets, methods, simulation
from cflkit.federation import Federation, LocalTraining
from cflkit.methods import METHODS, Method
from cflkit.methods.base import Personal
from cflkit.methods.baselines.local import Local
from cflkit.methods.baselines.scaffold import Scaffold
from cflkit.methods.fedavg import FedAvg
from cflkit.partition import shifts
from cflkit.reproduce.records import PROJECT
from reports import costs

SOURCES = PROJECT / "data" / "methods.csv"
# The small federation of the costs: the true groups of its clients, images per client, rounds
TRUTH, SAMPLES, ROUNDS, EPOCHS = [0, 0, 0, 1, 1, 1], 60, 12, 1
# What the server is told of the groups, by the options that have it
TOLD = {
    "truth": "the true groups",
    "k": "k",
    "epsilon": "a threshold (ε)",
    "angle": "a threshold (an angle)",
    "theta": "thresholds (α, θ, τ)",
    "threshold": "a threshold",
    "warm_up": "a round",
    "min_rounds": "a first round",
}
# Methods whose option for the round of the clustering has a name that means other things elsewhere
ROUND_OF = {"briggs": "rounds", "flux": "start"}
# Rows are sorted by what stands in the second column
ORDER = ("nothing", "a first round", "a round", "a threshold", "thresholds", "k", "the true groups")
NOTHING = "nothing"


def build(name: str, federation: Federation) -> Method:
    """Build a method with its default options; where it has none, with those of the federation."""
    held = [field.name for field in fields(METHODS[name])]  # type: ignore[arg-type]
    options: dict[str, Any] = {"truth": TRUTH} if "truth" in held else {}
    if METHODS[name].task == "reconstruction":
        training = LocalTraining(EPOCHS, 16, optimizer="adam", lr=1e-3)
        held_images = federation.partition.splits["train"]
        options = {"start": [[n % 3 for n in range(len(images))] for images in held_images]}
        options |= {"local": training, "federated": training}
    return methods.make(name, **options)


def told(name: str, method: Method) -> str:
    """Say what the server is told of the groups before the first round."""
    held = [field.name for field in fields(method)]  # type: ignore[arg-type]
    found = [words for option, words in TOLD.items() if option in held]
    found += ["a round"] * (name in ROUND_OF)
    # An oracle's other options do not matter
    return ", ".join(found[: 1 if "truth" in held else None]) or NOTHING


def predicts(method: Method) -> str:
    """Say with what a client predicts, from a method after its run."""
    if isinstance(method, Personal | Local):
        return "its own model"
    if method.task == "reconstruction":
        return "a model per class of images"
    if method.labels is None:
        return "a mixture of models"
    alone = isinstance(method, FedAvg | Scaffold)
    return "one model for all" if alone else "the model of its cluster"


@cache
def measured() -> dict[str, tuple[Method, dict[str, float]]]:
    """Run all methods in one small federation; return each with its costs per client and round."""
    images = datasets.load("digits-8x8")
    images, split = shifts.make(images, "quarter-turn", clients=len(TRUTH), samples=SAMPLES)
    found = {}
    for task, network in (("classification", "perceptron"), ("reconstruction", "autoencoder")):
        training = LocalTraining(EPOCHS, 16, lr=0.05)
        federation = Federation(images, split, network, training, device="cpu")
        ran = {name: build(name, federation) for name in METHODS if METHODS[name].task == task}
        rounds = ROUNDS if task == "classification" else 1
        history = simulation.run(ran, federation, rounds, progress=False)
        rows = pd.DataFrame(history.rows).groupby("method")[["trainings", "bytes_down", "bytes_up"]]
        model = 4 * federation.parameters
        per_round = rows.sum() / (len(TRUTH) * rounds)
        per_round[["bytes_down", "bytes_up"]] /= model
        for name, method in ran.items():
            found[name] = method, per_round.loc[name].to_dict()
    return found


def table() -> pd.DataFrame:
    """Return a row per method of the kit, with the columns of the page of methods."""
    sources = pd.read_csv(SOURCES, keep_default_na=False).set_index("method")
    lessons = {
        path.name.split("_")[0]: path.name for path in (PROJECT / "notebooks").glob("*.ipynb")
    }
    rows = []
    for name, (method, cost) in measured().items():
        of = sources.loc[name]
        module, _ = methods.WHERE[name]
        file = f"{module.replace('.', '/')}.py"
        code = of["repository"] and f"[{of['repository']}](https://github.com/{of['repository']})"
        rows.append(
            {
                "method": f"**{of['title']}**",
                "told beforehand": told(name, method),
                "a client sends": costs.sees(method) if cost["bytes_up"] else NOTHING,
                "a client predicts with": predicts(method),
                "may be away": "yes" if method.partial else "no",
                "trainings": f"{cost['trainings']:.2g}",
                "down": f"{cost['bytes_down']:.2g}",
                "up": f"{cost['bytes_up']:.2g}",
                "authors' code": ", ".join(filter(None, (code, of["licence"]))) or "–",
                "compared with it": of["compared"] or "–",
                "lesson": f"[{of['lesson']}]({lessons[of['lesson']]})" if of["lesson"] else "–",
                "file": f"[`{name}`](../cflkit/methods/{file})",
            }
        )
    rows.sort(key=lambda row: (order(row["told beforehand"]), row["method"].lower()))
    return pd.DataFrame(rows)


def order(words: str) -> int:
    """Return the place of what a method is told in the order of the table."""
    return max(place for place, start in enumerate(ORDER) if words.startswith(start))
