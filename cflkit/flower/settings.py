"""The settings of a run: the values of ``[tool.flwr.app.config]`` in the app's ``pyproject.toml``.

Flower gives them to the server and to each node. `--run-config` replaces some of them.

- ``methods``: the rows of the results, separated by semicolons. Each is the name of a method, and
  perhaps its options, such as ``ifca:k=4``.
- ``rounds``: the number of rounds.
- ``clients``: the number of clients; the run waits until all of them are there.
- ``clients-per-round``: how many of them take part in a round; 0 for all.
- ``dataset``, ``partition``: the data of nodes that have no file of their own (`client_data`).
- ``shape``, ``classes``: of the images, as channels, height and width; and the number of classes,
  or their names, separated by commas.
- ``model``, ``epochs``, ``batch-size``, ``optimizer``, ``lr``, ``momentum``, ``seed``: the network
  and its local training.
- ``nodes``: for each client, in order, the number that ``flwr supernode register`` has printed for
  the key of its node, separated by commas. In Flower's simulation, nodes have no keys, and it is
  empty: any node can then be any client.
- ``timeout``: how long to wait for all clients at the start, and for an answer, in seconds.
  Meanwhile, a node may die and come back. Then the run ends, and says who is missing.
- ``output``: a folder for the results and the checkpoint. A run that ended early goes on from
  there when it is started again with the same settings. By default, it is a new temporary folder.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from cflkit import methods
from cflkit._bounds import STRICT, Count, Natural, Positive, one_line
from cflkit.datasets.labels import one_form
from cflkit.federation import NOBODY, LocalTraining, Request, Train
from cflkit.methods import Method
from cflkit.reproduce.values import parse_yaml

# The Flower app: `flwr run` sends this folder to the nodes
APP = Path(__file__).with_name("app")
PROJECT = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
DEFAULTS: dict[str, Any] = PROJECT["tool"]["flwr"]["app"]["config"]
TRAINING = "epochs", "batch-size", "optimizer", "lr", "momentum"  # the settings of `LocalTraining`
# FedCRef's clients cluster their samples, and FedRC's server needs the labels of the samples. Nor
# does a node train on a part of its samples, as OCFL-replicated does with halves of them
ONLY_SIMULATED = ("fedcref", "fedcref-variant", "fedrc")


def named(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME:OPTION=VALUE,…`` into the name and its options, with values as in YAML."""
    name, _, options = text.partition(":")
    values = parse_yaml(repr(text), re.sub(r"(\w+)=", r"\1: ", f"{{{options}}}"))
    if nameless := [value for value in values if not isinstance(value, str)]:
        raise ValueError(f"{text!r} needs OPTION=VALUE, not {nameless[0]!r}")
    return name, values


def line_up_of(text: str) -> dict[str, Method]:
    """Build the methods of a setting; a `ValueError` or `Mistake` says which one cannot be."""
    made = {}
    for row in filter(None, map(str.strip, text.split(";"))):
        name, options = named(row)
        if name in ONLY_SIMULATED or options.get("split") == "samples":
            raise ValueError(f"{row} does not run over a network")
        made[row] = methods.make(name, **options)
    return made


def parts(text: Any) -> Any:
    """Split a text at its commas, into numbers where it has only digits between them."""
    if not isinstance(text, str):
        return text
    texts = tuple(one_form(part.strip()) for part in text.split(",") if text)
    return tuple(map(int, texts)) if all(map(str.isdecimal, texts)) else texts


class Settings(BaseModel):
    """The settings of a run, as the module describes them; each node has the same."""

    model_config = STRICT | ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    methods: Annotated[dict[str, Method], BeforeValidator(line_up_of)]
    rounds: Count
    clients: Count
    clients_per_round: Natural
    dataset: str
    partition: str
    shape: Annotated[tuple[Count, Count, Count], BeforeValidator(parts)]
    classes: Annotated[Count | tuple[str, ...], BeforeValidator(parts)]
    model: str
    training: LocalTraining
    seed: Natural
    nodes: Annotated[tuple[Natural, ...], BeforeValidator(parts)]
    timeout: Positive
    output: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read the values of a run; a `ValueError` or `Mistake` says which one cannot be."""
        training = {name.replace("-", "_"): config[name] for name in TRAINING}
        others = {name: value for name, value in config.items() if name not in TRAINING}
        try:
            return cls(training=LocalTraining(**training), **others)
        except ValidationError as error:
            raise ValueError(one_line(error)) from error

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """Refuse fewer or more nodes than there are clients."""
        if self.nodes and not len({*self.nodes}) == len(self.nodes) == self.clients:
            numbers = "the numbers that 'flwr supernode register' has printed"
            raise ValueError(f"nodes must be {numbers}, one for each of {self.clients} clients")
        return self

    @property
    def asked(self) -> list[Request]:
        """Return the requests of a run, from the usual training; server and nodes number them."""
        questions = [request for method in self.methods.values() for request in method.asks()]
        return [Train(NOBODY), *(replace(ask, sent=True, reported=True) for ask in questions)]

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a `Federation` that computes as the nodes do."""
        options = {"model": self.model, "training": self.training, "seed": self.seed}
        options |= {"clients_per_round": self.clients_per_round or None}
        return options | {"device": "cpu", "engine": "threads"}
