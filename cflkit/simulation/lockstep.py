"""One round of many methods at once; a computation that several methods ask for is done once."""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Conversation, Diverged, Federation, Request, Train
from cflkit.federation.requests import ClientsAbsent, joined
from cflkit.methods.base import Method, local_updates
from cflkit.models.rows import digests, finite_rows
from cflkit.simulation.evaluation import History

Key = tuple[Any, ...]


@dataclass
class Traffic:
    """The bytes that a method's clients received and sent in a round, and how often they trained.

    Models, embeddings and other answers count. Labels, seeds and choices do not, and neither do
    weights of samples, which clients compute themselves. A model is not sent again to a client that
    has already received or trained it in this round. A training that a client has already done in
    this round is neither done nor reported again.

    The counts are those of the kit's own messages. Embeddings and directions are in float64, with
    8 bytes per number. An anchor is a second model, and FedCRef's first autoencoders are sent, too,
    although clients could compute them.
    """

    down: int = 0
    up: int = 0
    trainings: int = 0
    # Pairs of a model's digest and a client that has this model
    held: set[tuple[Hashable, Hashable]] = field(default_factory=set)
    # Pairs of a request's kind and a job's key: the trainings that were done
    trained: set[tuple[Hashable, Hashable]] = field(default_factory=set)

    @property
    def cost(self) -> dict[str, int]:
        """Return the counts as columns of the history."""
        return {"bytes_down": self.down, "bytes_up": self.up, "trainings": self.trainings}

    def count(
        self,
        request: Request,
        keys: Sequence[Key],
        answers: Sequence[Any] | Tensor,
        results: Sequence[bytes] | None,
    ) -> None:
        """Count the bytes of a request with these `Jobs.keys` and of its answers.

        ``results`` are the digests of the answers, if these are models.
        """
        jobs = request.jobs
        size = jobs.models.shape[1] * jobs.models.element_size()
        for model, client, *columns in keys if request.sent else ():
            for row in (model, dict(columns).get("anchor")):
                if row is not None and (row, client) not in self.held:
                    self.held.add((row, client))
                    self.down += size
        if isinstance(request, Train):
            assert results is not None
            self.held |= set(zip(results, jobs.client_of.tolist(), strict=True))
            new = {(request.kind(), key) for key in keys} - self.trained
            self.trained |= new
            self.trainings += len(new)
            if request.reported:
                self.up += len(new) * size
        elif request.reported:
            self.up += sum(map(num_bytes, answers))


def num_bytes(value: Any) -> int:
    """Return how many bytes an answer takes: an array its own size, a single number 8 bytes."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    return sum(map(num_bytes, value)) if isinstance(value, list | tuple) else 8


class MethodRound:
    """A method's round: the request that waits for answers, until the round ends or breaks off."""

    def __init__(self, method: Method, t: int, until_settled: bool, heated: bool) -> None:
        self.method, self.t, self.until_settled = method, t, until_settled
        self.heated = heated  # whether the temperature of the updates is measured
        if heated:
            method.scalars.pop("temperature", None)  # that of the round before
        self.talk: Conversation[None] = method.round(t)
        self.traffic = Traffic()
        # Why the round broke off, or that the models on the server are not finite after it
        self.error: Diverged | None = None
        self.request: Request | None = None  # none if the round is over
        self.advance(None)

    def advance(self, answers: Any) -> None:
        """Give the method its answers, and note its next request."""
        self.request = None
        try:
            request = self.talk.send(answers)
        except StopIteration:
            for models in (self.method.models, getattr(self.method, "personal", None)):
                if models is not None and (broken := ~finite_rows(models)).any():
                    self.error = Diverged(self.t, [], models, broken)
        except Diverged as error:  # a method may see it first, for example in a gradient
            self.error = error
        else:
            settled = self.until_settled and self.method.settled
            self.request = None if settled and isinstance(request, Train) else request

    def answer(self, answers: Answers, keys: Sequence[Key], shared: bool) -> None:
        """Give the method the answers to its request, or break off if its trainings diverged."""
        assert self.request is not None
        where = [answers.places[key] for key in keys]
        if answers.error is not None and (broken := answers.error.broken[where]).any():
            clients = self.request.jobs.client_of[broken].tolist()
            self.error = Diverged(self.t, clients, answers.error.trained[where], broken)
            self.request = None
            return
        # Each method gets answers that no other method shares, so it may change them in place. A
        # method that asks alone gets them uncopied, unless it has asked for one job twice
        alone = not shared and len(answers.values) == len(where)
        received = answers.values if alone else copies(answers.values, where)
        held = None if answers.digests is None else [answers.digests[place] for place in where]
        self.traffic.count(self.request, keys, received, held)
        heat: dict[str, float | str] = {}
        jobs, reported = self.request.jobs, self.request.reported
        if self.heated and reported and isinstance(received, Tensor) and len(jobs) > 1:
            updates = local_updates(received.clone(), jobs.models, jobs.model_of)
            gamma = cosine_divergence(updates[:, : self.method.server.parameters])
            heat = {"temperature": temperature(gamma)}
        self.advance(received)
        self.method.scalars.update(heat | self.method.scalars)  # a trigger's own number stays


@dataclass
class Answers:
    """The answers of the D distinct jobs of some requests; for trainings ``[D, P + Q]``."""

    values: Sequence[Any] | Tensor
    places: dict[Key, int]  # of each job's answer among these
    error: Diverged | None = None  # if not all trained models are finite
    digests: list[bytes] | None = None  # of the answers, if these are models


def converse(
    methods: Mapping[str, Method],
    federation: Federation,
    t: int,
    history: History,
    until_settled: bool = False,
    temperature_of: Collection[str] = (),
) -> tuple[dict[str, Traffic], dict[str, Diverged]]:
    """Answer the requests of all methods in round ``t`` until their conversations end.

    With ``until_settled``, a conversation also ends at a training that can no longer change the
    method's clusters. So PACFL, which clusters before any training, trains nothing. See `run` for
    ``temperature_of``.

    Returns
    -------
    traffic : dict of str to Traffic
        The bytes that each method's clients received and sent.
    errors : dict of str to Diverged
        The errors of the methods whose conversation was broken off, since their training diverged,
        and of those whose models on the server are not finite after it.
    """
    talks = {
        name: MethodRound(method, t, until_settled, name in temperature_of)
        for name, method in methods.items()
    }
    while waiting := {name: talk.request for name, talk in talks.items() if talk.request}:
        asked = next_to_answer(waiting, federation)
        keys = {name: request.keys() for name, request in asked.items()}
        answers = answered_once(asked, keys, federation, t, history)
        for name in asked:
            talks[name].answer(answers, keys[name], shared=len(asked) > 1)
    errors = {name: talk.error for name, talk in talks.items() if talk.error is not None}
    return {name: talk.traffic for name, talk in talks.items()}, errors


def next_to_answer(waiting: Mapping[str, Request], federation: Federation) -> dict[str, Request]:
    """Return waiting requests of one kind, to be answered together.

    Trainings come last. They wait as long as any method asks for something else, so that all
    methods arrive at their next training together. Where hooks change what clients report, this is
    answered apart from what they keep.
    """

    def kind(request: Request) -> tuple[Any, ...]:
        return *request.kind(), bool(federation.after_training) and request.reported

    others = [request for request in waiting.values() if not isinstance(request, Train)]
    first = kind(next(iter(others or waiting.values())))
    return {name: request for name, request in waiting.items() if kind(request) == first}


def answered_once(
    requests: Mapping[str, Request],
    keys: Mapping[str, Sequence[Key]],
    federation: Federation,
    t: int,
    history: History,
) -> Answers:
    """Answer requests of one kind, and compute each distinct job once."""
    places: dict[Key, int] = {}
    firsts = []
    for job, key in enumerate(key for name in requests for key in keys[name]):
        if key not in places:
            places[key] = len(places)
            firsts.append(job)
    request = next(iter(requests.values()))
    if isinstance(request, Train):
        history.requested += sum(map(len, keys.values()))
        history.trained += len(places)
    distinct = joined([request.jobs for request in requests.values()]).part(firsts)
    absent = distinct.client_of[~torch.isin(distinct.client_of, federation.reachable(t))]
    if len(absent):
        raise ClientsAbsent(absent.unique().tolist())
    try:
        values = request.only(distinct).answered_by(federation, t)
    except Diverged as error:
        return Answers(error.trained, places, error, digests(error.trained))
    return Answers(values, places, None, digests(values) if isinstance(values, Tensor) else None)


def copies(answers: Sequence[Any] | Tensor, where: Sequence[int]) -> Sequence[Any] | Tensor:
    """Return copies of some of the answers."""
    if isinstance(answers, Tensor):
        return answers[list(where)]
    return copy.deepcopy([answers[place] for place in where])
