"""What the owner of a node has agreed to; the node refuses everything else.

The agreement is the node's own copy of the settings of the run (`cflkit.flower.server_app`). They
name the network, the local training and the methods, and each method says what its clients are
asked (`Method.asks`). So the server cannot choose another network, training, split or question.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cflkit.federation import Ask, LocalTraining, Request
from cflkit.flower.answers import QUESTIONS, told_by
from cflkit.flower.setting import DEFAULTS, Setting, line_up_of
from cflkit.methods import Method


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
