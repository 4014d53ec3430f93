"""One round of many methods at once; a computation that several methods ask for is done once."""

from __future__ import annotations

import copy
from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cflkit.federation import ClientsAbsent, Diverged, FederationLike, Request, Send, Train
from cflkit.federation.jobs import joined
from cflkit.federation.rows import digests, finite_rows
from cflkit.methods.base import Method
from cflkit.simulation.communication import Traffic
from cflkit.simulation.history import History

Conversation = Generator[Request, Any, None]


def converse(
    methods: Mapping[str, Method],
    federation: FederationLike,
    t: int,
    history: History,
    until_settled: bool = False,
) -> tuple[dict[str, Traffic], dict[str, Diverged]]:
    """Answer the requests of all methods in round ``t`` until their conversations end.

    With ``until_settled``, a conversation also ends at a training that can no longer change the
    method's clusters. So PACFL, which clusters before any training, trains nothing.

    Returns
    -------
    traffic : dict of str to Traffic
        The bytes that each method's clients received and sent.
    errors : dict of str to Diverged
        The errors of the methods whose conversation was broken off, since their training diverged,
        and of those whose models on the server are not finite after it.
    """
    conversations: dict[str, Conversation] = {n: m.round(t) for n, m in methods.items()}
    traffic = {name: Traffic() for name in methods}
    errors: dict[str, Diverged] = {}
    waiting: dict[str, Request] = {}

    def advance(name: str, value: Any) -> None:
        try:
            request = conversations[name].send(value)
            if until_settled and methods[name].settled and isinstance(request, Train):
                conversations[name].close()
                waiting.pop(name, None)
            else:
                waiting[name] = request
        except StopIteration:
            waiting.pop(name, None)
            broken = ~finite_rows(methods[name].models)
            if broken.any():
                errors[name] = Diverged(t, [], methods[name].models, broken)
        except Diverged as error:  # a method may see it first, for example in a gradient
            waiting.pop(name, None)
            errors[name] = error

    for name in methods:
        advance(name, None)
    while waiting:
        asked = next_to_answer(waiting, private=federation.privacy is not None)
        keys = {name: request.jobs.keys() for name, request in asked.items()}
        answers, places, error = answered_once(asked, keys, federation, t, history)
        results = digests(answers) if isinstance(answers, Tensor) else None
        for name, request in asked.items():
            where = [places[key] for key in keys[name]]
            if error is not None and error.broken[where].any():
                errors[name] = of_method(error, request, where, t)
                del waiting[name]
                continue
            # Each method gets answers that no other method shares, so it may change them in place.
            # A method that asks alone gets them uncopied, unless it has asked for one job twice
            alone = len(asked) == 1 and len(answers) == len(where)
            own = answers if alone else copies(answers, where)
            held = None if results is None else [results[place] for place in where]
            traffic[name].count(request, keys[name], own, held)
            advance(name, own)
            del own  # before the next copy is made
    return traffic, errors


def converse_with_present(
    methods: Mapping[str, Method],
    federation: FederationLike,
    t: int,
    history: History,
    until_settled: bool = False,
) -> tuple[dict[str, Traffic], dict[str, Diverged]]:
    """Converse; if clients do not answer, begin the round again with those that are present.

    Raises
    ------
    ClientsAbsent
        The federation allows no absence, or a method asks clients that are absent.
    """
    if not federation.absent_allowed:
        return converse(methods, federation, t, history, until_settled)
    before = {name: copy.deepcopy(method.state()) for name, method in methods.items()}
    counts = history.requested, history.trained
    while True:
        try:
            return converse(methods, federation, t, history, until_settled)
        except ClientsAbsent as error:
            if error.asked_again:
                raise
        for name, method in methods.items():
            method.restore(copy.deepcopy(before[name]))
        history.requested, history.trained = counts


def next_to_answer(waiting: Mapping[str, Request], private: bool) -> dict[str, Request]:
    """Return waiting requests of one kind, to be answered together.

    Trainings come last. They wait as long as any method asks for something else, so that all
    methods arrive at their next training together. With differential privacy (``private``), what
    clients report has noise and what they keep has none, so these are answered apart.
    """

    def kind(request: Request) -> tuple[Any, ...]:
        return *request.kind(), private and request.reported

    others = [request for request in waiting.values() if not isinstance(request, Train)]
    first = kind(next(iter(others or waiting.values())))
    return {name: request for name, request in waiting.items() if kind(request) == first}


def answered_once(
    requests: Mapping[str, Request],
    keys: Mapping[str, Sequence[Hashable]],
    federation: FederationLike,
    t: int,
    history: History,
) -> tuple[Sequence[Any] | Tensor, dict[Hashable, int], Diverged | None]:
    """Answer requests of one kind, and compute each distinct job once.

    Returns
    -------
    answers : sequence
        The answers of the D distinct jobs; for trainings ``[D, P + Q]``.
    places : dict
        The position of a job's answer among these, by the job's key.
    error : Diverged or None
        The error if not all trained models are finite.
    """
    places: dict[Hashable, int] = {}
    parts = []
    for name, request in requests.items():
        before = len(places)
        numbers = [places.setdefault(key, len(places)) for key in keys[name]]
        firsts = {number: job for job, number in reversed(list(enumerate(numbers)))}
        parts.append(request.jobs.part([firsts[number] for number in range(before, len(places))]))
    request = next(iter(requests.values()))
    if isinstance(request, Train):
        history.requested += sum(map(len, keys.values()))
        history.trained += len(places)
    check_private(requests, federation)
    distinct = joined([part for part in parts if len(part)] or parts[:1])
    check_present(distinct.client_of, federation, t)
    try:
        return request.only(distinct).answered_by(federation, t), places, None
    except Diverged as error:
        return error.trained, places, error


def check_present(clients: Tensor, federation: FederationLike, t: int) -> None:
    """Raise `ClientsAbsent` if a client is asked that is absent in round ``t``."""
    absent = clients[~torch.isin(clients, federation.reachable(t))]
    if len(absent):
        raise ClientsAbsent(absent.unique().tolist(), federation.faults, asked_again=True)


def check_private(requests: Mapping[str, Request], federation: FederationLike) -> None:
    """Raise a `ValueError` if clients with differential privacy are asked for more than models."""
    telling = [name for name, own in requests.items() if not isinstance(own, Train | Send)]
    if telling and federation.privacy is not None:
        raise ValueError(
            f"{', '.join(telling)}: what is asked of clients has no noise, and would tell about "
            "their data; leave the method out, or build the federation without privacy"
        )


def copies(answers: Sequence[Any] | Tensor, where: Sequence[int]) -> Sequence[Any] | Tensor:
    """Return copies of some of the answers."""
    if isinstance(answers, Tensor):
        everything = list(where) == list(range(len(answers)))
        return answers.clone() if everything else answers[list(where)]
    return copy.deepcopy([answers[place] for place in where])


def of_method(error: Diverged, request: Request, where: Sequence[int], t: int) -> Diverged:
    """Return the part of an error that belongs to one method's trainings."""
    broken = error.broken[list(where)]
    clients = request.jobs.client_of[broken].tolist()
    return Diverged(t, clients, error.trained[list(where)], broken)
