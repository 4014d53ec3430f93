"""The facts about a federation on which the server and all nodes must agree, and the methods."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from cflkit import methods
from cflkit._bounds import STRICT, Count, Natural, one_line
from cflkit.datasets import ImageSet
from cflkit.datasets.labels import one_form
from cflkit.federation import Federation, LocalTraining
from cflkit.methods import Method
from cflkit.partition import Partition
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.values import parse_yaml

# The Flower app, which `flwr run` sends to the nodes, and its settings
APP = Path(__file__).with_name("app")
PROJECT = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
DEFAULTS: dict[str, Any] = PROJECT["tool"]["flwr"]["app"]["config"]
CLUSTERS_SAMPLES = "its clients cluster their samples, and here they train classifiers"
# The methods that nodes cannot run, and why
ONLY_SIMULATED = {
    "fedrc": "its server would need the labels of the clients' samples",
    "fedcref": CLUSTERS_SAMPLES,
    "fedcref-variant": CLUSTERS_SAMPLES,
}


@dataclass(frozen=True, config=STRICT)
class Setting:
    """The network, the local training and the seed."""

    clients: Count
    model: str  # a name that `cflkit.models.make` knows
    shape: tuple[Count, Count, Count]  # channels, height, width of an image
    classes: Count
    training: LocalTraining
    seed: Natural = 0  # of initialisation, batches and dropout
    names: tuple[str, ...] = ()  # of the classes, in their order, if clients' labels are names

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
        if isinstance(facts["classes"], str):
            names = facts["names"] = tuple(
                one_form(name.strip()) for name in facts["classes"].split(",")
            )
            facts["classes"] = len(names)
            if "" in names or len(set(names)) < len(names):
                raise ValueError(f"classes must be different names, not {config['classes']!r}")
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


def line_up_of(text: str) -> dict[str, Method]:
    """Build the methods of the setting ``methods``; a `ValueError` says which one cannot be."""
    try:
        described = parse_yaml("methods", text)
    except ParameterError:
        described = None
    if not isinstance(described, dict) or not described:
        raise ValueError("methods must be YAML such as {OCFL: {method: ocfl}}")
    found = {}
    for name, own in described.items():
        if not isinstance(own, dict) or not isinstance(own.get("method"), str):
            raise ValueError(f"{name} needs the name of a method, as {{{name}: {{method: ocfl}}}}")
        method = own.pop("method")
        if method in ONLY_SIMULATED:
            raise ValueError(f"{name} does not run over a network: {ONLY_SIMULATED[method]}")
        found[name] = methods.make(method, **own)
    return found
