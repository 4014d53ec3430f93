"""What the server and the owners of all nodes agree on: the settings of a run.

The settings (`cflkit.flower.server_app`) name the network, the local training and the methods, and
each method says what its clients are asked (`Method.asks`). A node has its own copy of them, and
refuses everything else. So the server cannot choose another network, training, split or question.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass as validated

from cflkit import methods
from cflkit._bounds import STRICT, Count, Natural, one_line
from cflkit.datasets import ImageSet
from cflkit.datasets.labels import one_form
from cflkit.federation import Ask, Federation, LocalTraining, Request
from cflkit.flower.answers import QUESTIONS, told_by
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


@validated(frozen=True, config=STRICT)
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


@dataclass(frozen=True)
class Agreement:
    """The setting, the methods and the number of rounds on which server and nodes agree."""

    setting: Setting
    methods: Mapping[str, Method]
    rounds: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Agreement:
        """Read the settings of a run; a `ValueError` says which one cannot be."""
        if (rounds := int(config["rounds"])) < 1:
            raise ValueError(f"rounds must be 1 or more, not {rounds}")
        return cls(Setting.of(config), line_up_of(str(config["methods"])), rounds)

    @classmethod
    def read(cls, path: Path) -> Agreement:
        """Read a file of settings (TOML); a `ValueError` or an `OSError` says what is wrong."""
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := config.keys() - DEFAULTS.keys():
            raise ValueError(f"{path} has unknown settings: {', '.join(sorted(unknown))}")
        return cls.of(DEFAULTS | config)

    @property
    def asked(self) -> list[Request]:
        """Return what the methods ask for besides trainings."""
        return [request for method in self.methods.values() for request in method.asks()]

    @property
    def jobs(self) -> int:
        """Return the largest number of jobs of one message: that of all methods together."""
        return sum(1 + getattr(method, "k", 1) for method in self.methods.values())

    @property
    def messages(self) -> int:
        """Return how many messages are answered: twice what the agreed run can need.

        For each method and round, this is two trainings and a question, with scores on two splits.
        EMD-CFL's clients are also asked about each other. Many answers tell what one does not.
        """
        count = len(self.methods)
        return 2 * (self.rounds * (3 * count + 2) + 2 * count * self.setting.clients + 2)

    @property
    def hidden(self) -> bool:
        """Return whether clients must share a seed, which hides what they tell."""
        return any(isinstance(own, Ask) and QUESTIONS[own.question].hidden for own in self.asked)

    def lines(self) -> list[str]:
        """Say what this node will tell a server, for its owner."""
        told = {
            f"- {what}. {says}"
            for method in self.methods.values()
            for what, says in told_by(method)
        }
        first = (
            f"it trains {self.setting.model} in {self.rounds} rounds, and tells models and scores"
        )
        return [f"{first}, for {', '.join(self.methods)}", *sorted(told)]

    def differences(self, sent: Mapping[str, Any]) -> list[str]:
        """Return which facts of a setting, as it is sent, differ from those agreed on."""
        own, theirs = flat(asdict(self.setting)), flat(sent)
        return [
            f"{name} is {theirs.get(name)!r} and not {own.get(name)!r}"
            for name in own | theirs
            if theirs.get(name) != own.get(name)
        ]

    def allows(self, training: LocalTraining) -> bool:
        """Return whether a local training is the agreed one, but for its penalty and its layers.

        It may have fewer epochs, too.
        """
        agreed = self.setting.training
        alike = replace(training, penalty="none", strength=0.0, trains="all", epochs=agreed.epochs)
        return alike == agreed and training.epochs <= agreed.epochs


def flat(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a setting, those of the training among them."""
    return {name: own for name, own in setting.items() if name != "training"} | setting["training"]


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
