"""What the owner of a node has agreed to; the node refuses everything else.

The agreement is the node's own copy of the settings of the run (`cflkit.flower.server_app`). They
name the network, the local training and the methods, and each method says what its clients are
asked (`Method.asks`). So the server cannot choose another network, training, split or question.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cflkit.federation import Ask, Federation, LocalTraining, Losses, Request, Train
from cflkit.flower.answers import QUESTIONS, TOLD, is_array, name_of, told_by
from cflkit.flower.setting import DEFAULTS, Setting, line_up_of, rounds_of
from cflkit.methods import Method

TESTED = ("test", "backdoor")
Check = Callable[[Any], bool]


class Refused(Exception):
    """A node does not answer a message; the text says who sent it, and why."""


@dataclass(frozen=True)
class Agreement:
    """The setting, the methods and the number of rounds to which a node has agreed.

    ``answered`` counts the messages that the node has answered, by their kind.
    """

    setting: Setting
    methods: Mapping[str, Method]
    rounds: int
    answered: Counter[str] = field(default_factory=Counter, init=False, compare=False)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Agreement:
        """Read the settings of a run; a `ValueError` says which one cannot be."""
        return cls(Setting.of(config), line_up_of(str(config["methods"])), rounds_of(config))

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

    # --- What is refused --------------------------------------------------------------------------

    def refusal(self, request: Mapping[str, Any], own: Federation, client: int) -> str | None:
        """Return why a request to a client is refused, or None; ``own`` has the client's data."""
        if changed := self.differences(request["setting"]):
            return f"its setting is not the agreed one: {', '.join(changed)}"
        if request["kind"] != "hello" and self.answered.total() >= self.messages:
            return f"it has answered {self.messages} messages, twice what the agreed run can need"
        match request:
            case {"kind": "hello"}:
                return None
            case {"kind": "train", "jobs": jobs, "order": order}:
                if not is_number(order, self.rounds):
                    return f"there are {self.rounds} rounds, and no round {order!r}"
                return self.fault(jobs, own, self.of_training(own, client))
            case {"kind": "losses", "jobs": jobs, "told": told, "split": split, "options": options}:
                return self.not_asked(told, options, split) or self.fault(jobs, own, {})
            case {"kind": "ask", "jobs": jobs, "question": question, "options": options}:
                if why := self.not_asked(question, options):
                    return why
                answer = next(a for q, a in QUESTIONS.items() if name_of(q) == question)
                is_one = partial(is_number, below=self.setting.clients)
                about = {int: is_one, tuple: partial(are_several, each=is_one)}
                checks = {} if answer.about is None else {"about": about[answer.about]}
                missing = checks.keys() - jobs["columns"].keys()
                return self.fault(jobs, own, checks, answer.model) if not missing else "no about"
            case {"kind": "scores", "keys": keys, "models": models, "mixtures": mixtures}:
                return self.not_scored(keys, models, mixtures, request.get("split"), own, client)
        return f"nodes do not answer requests of the kind {request.get('kind')!r}"

    def differences(self, sent: Any) -> list[str]:
        """Return which facts of a setting, as it is sent, differ from those agreed on."""
        own, theirs = flat(asdict(self.setting)), flat(sent)
        names = [*own, *(theirs.keys() - own.keys())]
        return [
            f"{name} is {theirs.get(name)!r} and not {own.get(name)!r}"
            for name in names
            if theirs.get(name) != own.get(name)
        ]

    def not_asked(self, name: Any, options: Any, split: Any = None) -> str | None:
        """Say that no agreed method asks this with these options of this split, if none does."""
        for own in self.asked:
            match own:
                case Losses(split=of, told=told):
                    same = (name_of(told), of) == (name, split) and told in TOLD
                case Ask(question=question):
                    same = name_of(question) == name and split is None
                case _:
                    continue
            if same and dict(own.options) == options:
                return None
        what = "losses of samples" if name is None else repr(name)
        where = "" if split is None else f" of the split {split!r}"
        return f"none of the agreed methods asks for {what}{where} with {options!r}"

    def of_training(self, own: Federation, client: int) -> dict[str, Check]:
        """Return the columns that jobs of trainings may have, and how their values are checked."""
        width, samples = len(own.blueprint.first.row), own.num_samples(client)
        checks: dict[str, Check] = {
            "anchor": lambda row: is_array(row, torch.float32, width, finite=False),
            "weights": lambda row: is_array(row, torch.float32, samples, least=0),
        }
        allowed = {
            "anchor",
            *(c for r in self.asked if isinstance(r, Train) for c in r.jobs.columns),
        }
        return {name: check for name, check in checks.items() if name in allowed}

    def fault(
        self, jobs: Any, own: Federation, checks: Mapping[str, Check], model: bool = True
    ) -> str | None:
        """Return what is wrong with jobs, as they are sent, or None."""
        models, of, columns = jobs["models"], jobs["model_of"], jobs["columns"]
        width = len(own.blueprint.first.row) if model else 0
        most = range(1, self.jobs + 1)
        if not is_array(models, torch.float32, most, width, finite=False):
            return f"models must be 1 to {self.jobs} rows of {width} numbers of float32"
        if not is_array(of, torch.int64, most, least=0, most=len(models) - 1):
            return f"there must be 1 to {self.jobs} jobs, each with one of the models"
        if jobs["training"] is not None and not self.is_agreed(LocalTraining(**jobs["training"])):
            return "its local training is not what the node's owner has agreed to"
        for name, values in columns.items():
            if name not in checks:
                return f"none of the agreed methods sends {name!r} for each job"
            if (
                type(values) is not list
                or len(values) != len(of)
                or not all(map(checks[name], values))
            ):
                return f"{name!r} has a wrong form"
        return None

    def is_agreed(self, training: LocalTraining) -> bool:
        """Return whether a local training is the agreed one, but for its penalty and its layers.

        It may have fewer epochs, too.
        """
        agreed = self.setting.training
        alike = replace(training, penalty="none", strength=0.0, trains="all", epochs=agreed.epochs)
        return alike == agreed and training.epochs <= agreed.epochs

    def not_scored(
        self, keys: Any, models: Any, mixtures: Any, split: Any, own: Federation, client: int
    ) -> str | None:
        """Return what is wrong with a request for scores, or None."""
        if split not in TESTED or not own.num_samples(client, split):
            return f"models are not evaluated on the split {split!r}"
        width, most = len(own.blueprint.first.row), range(1, self.jobs + 1)
        if not is_array(models, torch.float32, most, width, finite=False):
            return f"models must be 1 to {self.jobs} rows of {width} numbers of float32"
        known = isinstance(keys, list) and all(isinstance(key, bytes) for key in keys)
        if not known or len({*keys}) != len(keys) or len(keys) != len(models):
            return "each model needs a key of its own"
        if not isinstance(mixtures, list) or len(mixtures) not in most:
            return f"there must be 1 to {self.jobs} mixtures"
        for mixture in mixtures:
            whole = type(mixture) is tuple and len(mixture) in most
            if not whole or not all(is_part(part, keys) for part in mixture):
                return "a mixture must be pairs of a model's key and its weight"
        return None


def flat(setting: Any) -> dict[str, Any]:
    """Return the facts of a setting, those of the training among them; of another value, none."""
    if not isinstance(setting, dict) or not isinstance(setting.get("training"), dict):
        return {}
    return {name: own for name, own in setting.items() if name != "training"} | setting["training"]


def is_number(value: Any, below: int) -> bool:
    """Return whether a value is a whole number from 0 to below a bound."""
    return type(value) is int and 0 <= value < below


def are_several(value: Any, each: Check) -> bool:
    """Return whether a value is a tuple of different values that pass a check."""
    return type(value) is tuple and all(map(each, value)) and 0 < len({*value}) == len(value)


def is_part(part: Any, keys: Sequence[bytes]) -> bool:
    """Return whether a part of a mixture is the key of a model and its weight."""
    match part:
        case (bytes(key), float(share)):
            return key in keys and math.isfinite(share)
    return False
