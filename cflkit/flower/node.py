"""The client's side: a node answers the requests to which its owner has agreed, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from flwr.common.logger import log
from torch import Tensor

from cflkit.federation import Ask, Diverged, Jobs, LocalTraining, Losses, Train
from cflkit.federation.interface import Mixture
from cflkit.flower.agreement import Agreement
from cflkit.flower.answers import QUESTIONS, is_array, is_number, name_of
from cflkit.flower.client_file import federation_of
from cflkit.flower.messages import one_line, packed, unpacked

TESTED = ("test", "backdoor")
Check = Callable[[Any], bool]


class Refused(Exception):
    """A node does not answer a message; the text says who refuses, and why."""


class Node:
    """A client with its data, and what its owner has agreed to.

    Parameters
    ----------
    client : int
        The number of the client.
    data : Path
        The client's file, which is read once.
    agreement : Agreement
        What the owner has agreed to.
    shared_seed : int, optional
        The secret of the clients, which the server does not know (`Client`). By default it is the
        seed of the federation, which the server knows.

    Raises
    ------
    DatasetError
        The client's file cannot be used, or does not fit the settings.
    ValueError
        A method needs a shared seed.
    """

    def __init__(
        self, client: int, data: Path, agreement: Agreement, shared_seed: int | None = None
    ) -> None:
        if agreement.hidden and shared_seed is None:
            raise ValueError("clients hide their embeddings with a shared seed; give --shared-seed")
        self.client, self.agreement = client, agreement
        self.federation = federation_of(agreement.setting, data, client)
        if shared_seed is not None:
            self.federation.shared_seed = shared_seed
        self.width = len(self.federation.initial())
        self.answers = 0  # to all requests except hellos

    def answered(self, content: RecordDict) -> RecordDict:
        """Answer the content of a message.

        Raises
        ------
        Refused
            The message is not within the agreement; this is also logged.
        """
        try:
            request = unpacked(content)
            compute = self.computation(request)
        # Whatever a server sends, it gets no answer from here, and the node goes on
        except Exception as error:
            why = error if isinstance(error, Refused) else f"it cannot be read: {error!r}"
            told = one_line(f"client {self.client} refuses a message of the server: {why}")
            log(WARNING, "%s", told)
            raise Refused(told) from error
        self.answers += request["kind"] != "hello"
        return packed({"answer": compute()})

    def computation(self, request: Mapping[str, Any]) -> Callable[[], Any]:
        """Return the function that computes the answer, with one part per job if there are jobs.

        Raises
        ------
        Refused
            The owner has not agreed to this request; the message says why.
        """
        agreed = self.agreement
        if changed := agreed.differences(request["setting"]):
            raise Refused(f"its setting is not the agreed one: {', '.join(changed)}")
        if request["kind"] != "hello" and self.answers >= agreed.messages:
            most = f"{agreed.messages} messages, twice what the agreed run can need"
            raise Refused(f"it has answered {most}")
        match request:
            case {"kind": "hello"}:
                return self.hello
            case {"kind": "train", "jobs": sent, "order": order}:
                if not is_number(order, agreed.rounds):
                    raise Refused(f"there are {agreed.rounds} rounds, and no round {order!r}")
                return partial(self.train, self.jobs(sent, self.columns_of_trainings()), order)
            case {"kind": "losses", "jobs": sent, "told": name, "split": split, "options": options}:
                told, jobs = self.question("losses", name, options, split), self.jobs(sent, {})
                return partial(self.federation.losses, jobs, split, told, **options)
            case {"kind": "ask", "jobs": sent, "question": name, "options": options}:
                question = self.question("ask", name, options)
                about, with_model = QUESTIONS[question].about, QUESTIONS[question].model
                fits = about and partial(about, below=agreed.setting.clients)
                jobs = self.jobs(sent, {"about": fits} if fits else {}, with_model)
                return partial(self.federation.ask, question, jobs, **options)
            case {"kind": "scores", "keys": keys, "models": models, "mixtures": mixtures}:
                split = request["split"]
                self.check_scored(keys, models, mixtures, split)
                return partial(self.scores, dict(zip(keys, models, strict=True)), mixtures, split)
        raise Refused(f"nodes do not answer requests of the kind {request['kind']!r}")

    # --- What is refused --------------------------------------------------------------------------

    def question(self, kind: str, name: Any, options: Any, split: Any = None) -> Any:
        """Return the question of this name, if an agreed method asks it so."""
        known: tuple[str, str | None, str | None]
        for own in self.agreement.asked:
            match own:
                case Losses(told=question):
                    known = "losses", name_of(question), own.split
                case Ask(question=question):
                    known = "ask", name_of(question), None
                case _:
                    continue
            if known == (kind, name, split) and dict(own.options) == options:
                return question
        what = "losses of samples" if name is None else repr(name)
        where = "" if split is None else f" of the split {split!r}"
        raise Refused(f"none of the agreed methods asks for {what}{where} with {options!r}")

    def columns_of_trainings(self) -> dict[str, Check]:
        """Return the columns that jobs of trainings may have, and how their values are checked."""
        width, samples = self.width, self.federation.num_samples(self.client)
        checks: dict[str, Check] = {
            "anchor": lambda row: is_array(row, torch.float32, width, finite=False)
        }
        trainings = [own for own in self.agreement.asked if isinstance(own, Train)]
        if any("weights" in own.jobs.columns for own in trainings):
            checks["weights"] = lambda row: is_array(row, torch.float32, samples, least=0)
        return checks

    def jobs(self, sent: Any, checks: Mapping[str, Check], model: bool = True) -> Jobs:
        """Return jobs that were sent, if their columns pass the checks."""
        models, of, columns = sent["models"], sent["model_of"], sent["columns"]
        self.check_models(models, self.width if model else 0)
        most = self.agreement.jobs
        if not is_array(of, torch.int64, range(1, most + 1), least=0, most=len(models) - 1):
            raise Refused(f"there must be 1 to {most} jobs, each with one of the models")
        training = None if sent["training"] is None else LocalTraining(**sent["training"])
        if training is not None and not self.agreement.allows(training):
            raise Refused("its local training is not what the node's owner has agreed to")
        for name, values in columns.items():
            if name not in checks:
                raise Refused(f"none of the agreed methods sends {name!r} for each job")
            whole = type(values) is list and len(values) == len(of)
            if not whole or not all(map(checks[name], values)):
                raise Refused(f"{name!r} has a wrong form")
        return Jobs(models, of, torch.full_like(of, self.client), training, **columns)

    def check_models(self, models: Any, width: int) -> None:
        """Check that models are no more than the agreed methods need, and have this width."""
        most = self.agreement.jobs
        if not is_array(models, torch.float32, range(1, most + 1), width, finite=False):
            raise Refused(f"models must be 1 to {most} rows of {width} numbers of float32")

    def check_scored(self, keys: Any, models: Any, mixtures: Any, split: Any) -> None:
        """Check a request for scores."""
        if split not in TESTED or not self.federation.num_samples(self.client, split):
            raise Refused(f"models are not evaluated on the split {split!r}")
        self.check_models(models, self.width)
        known = isinstance(keys, list) and all(isinstance(key, bytes) for key in keys)
        if not known or len({*keys}) != len(keys) or len(keys) != len(models):
            raise Refused("each model needs a key of its own")
        most = range(1, self.agreement.jobs + 1)
        if not isinstance(mixtures, list) or len(mixtures) not in most:
            raise Refused(f"there must be 1 to {self.agreement.jobs} mixtures")
        for mixture in mixtures:
            whole = type(mixture) is tuple and len(mixture) in most
            if not whole or not all(is_part(part, keys) for part in mixture):
                raise Refused("a mixture must be pairs of a model's key and its weight")

    # --- Answers ----------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """Return the client's number, and how many samples it has in each split."""
        own = self.federation
        counts = {split: own.num_samples(self.client, split) for split in own.partition.splits}
        return {"client": self.client, "samples": counts}

    def train(self, jobs: Jobs, order: int) -> Tensor:
        """Return trained models; the server sees whether they are finite."""
        try:
            return self.federation.train(jobs, order)
        except Diverged as error:
            return error.trained

    def scores(
        self, models: Mapping[bytes, Tensor], mixtures: Sequence[Mixture], split: str
    ) -> list[tuple[float, float]]:
        """Return macro-F1 and accuracy of each mixture of models."""
        pairs = [(mixture, self.client) for mixture in mixtures]
        found = self.federation.scores(models, pairs, split)
        return [found[pair] for pair in pairs]


def is_part(part: Any, keys: Sequence[bytes]) -> bool:
    """Return whether a part of a mixture is the key of a model and its weight."""
    match part:
        case (bytes(key), float(share)):
            return key in keys and math.isfinite(share)
    return False
