"""The server's side: a federation whose clients are Flower nodes.

`RemoteFederation` has the primitives of `cflkit.federation.Federation`, so that methods, lockstep
and evaluation run on it unchanged. It has no sample: each primitive sends messages and collects
the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import Tensor

from cflkit._bounds import MOST
from cflkit.federation import Ask, ClientsAbsent, Jobs, Losses, Server, check_finite
from cflkit.federation.blueprint import Blueprint
from cflkit.federation.interface import Hook, Pair, Scores
from cflkit.federation.seeds import drawn
from cflkit.flower.messages import LARGEST, is_array, one_line, packed, unpacked
from cflkit.flower.settings import Settings

# Flower's type of each kind of message
TYPES = {"train": "train", "scores": "evaluate"}
POLL = 0.5  # how often the server looks for answers, in seconds
Fits = Callable[[Any], bool]
Contents = Mapping[int, RecordDict]  # of messages, by client or by node
Own = Mapping[int, Sequence[Any]]  # the jobs of each client


class NoAnswer(Exception):
    """A node has not answered; the message says why."""


class RemoteFederation:
    """Clients that are elsewhere; see `Federation` for the attributes and methods.

    A message to a node that is lost is sent again once the node is back. If a client fails, or does
    not answer in time, all methods raise `ClientsAbsent`.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    settings : Settings
        The settings of the run.

    Attributes
    ----------
    log : list of dict
        Every message: ``seconds`` from the start, ``round`` (0 before the first one), ``node``,
        ``kind``, ``direction`` (``down`` to the client, or ``up``), ``contents`` (the shapes of the
        arrays) and ``bytes``.

    Raises
    ------
    ClientsAbsent
        Not all clients have said hello in time.
    """

    task = "classification"
    engine = "flower"
    after_training: tuple[Hook, ...] = ()
    clusters: Tensor | None = None

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self.grid, self.settings, self.device = grid, settings, torch.device("cpu")
        self.clients, self.seed, self.training = settings.clients, settings.seed, settings.training
        self.per_round = settings.clients_per_round or settings.clients
        self.partial = self.per_round < settings.clients
        network = settings.model, settings.shape, settings.num_classes
        self.blueprint = Blueprint(*network, self.seed, self.device)
        self.parameters, self.initial = self.blueprint.parameters, self.blueprint.initial
        self.log: list[dict[str, Any]] = []
        self._round, self._start = 0, time.monotonic()
        self._nodes: dict[int, int] = {}  # of each client
        self._samples: dict[int, dict[str, int]] = {}  # how many each client has in each split
        self._greet()
        sizes = [self.num_samples(client) for client in range(self.clients)]
        self.sizes = torch.tensor(sizes, dtype=torch.float32)
        self.server = Server(self)

    def _greet(self) -> None:
        """Ask all nodes which client they are, with how many samples."""
        owners = {node: client for client, node in enumerate(self.settings.nodes)}
        nodes, end = [*owners], time.monotonic() + self.settings.wait
        while len(nodes) < self.clients and time.monotonic() < end:  # in Flower's simulation
            time.sleep(POLL)
            nodes = [*self.grid.get_node_ids()]
        hellos = {node: packed(kind="hello", client=owners.get(node)) for node in nodes}
        faults = dict.fromkeys(range(self.clients), "it has not said hello")
        for node, reply in self._exchange("hello", hellos, self.settings.wait).items():
            try:
                client, samples = who(answer_in(reply))
                if owners.get(node, client) != client:
                    raise NoAnswer(f"it says that it is client {client}")
                self._nodes[client], self._samples[client] = node, samples
            except NoAnswer as error:
                faults[owners.get(node, -1)] = f"its hello was refused: {error}"
        if missing := [client for client in range(self.clients) if client not in self._nodes]:
            raise ClientsAbsent(missing, faults)

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data, for checkpoints: their numbers of samples."""
        return sha256(repr(sorted(self._samples.items())).encode()).hexdigest()

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round: all of them, or else the run ends."""
        self._round = round + 1
        return torch.arange(self.clients)

    def participants(self, round: int) -> Tensor:
        """Return the clients that take part in a round, ascending."""
        return drawn(self.reachable(round), self.per_round, self.seed, round)

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""
        return self._samples[client].get(split, 0)

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Let clients train; a model that is not finite ends its methods, and not the run."""
        width = jobs.models.shape[1]
        fits = partial(is_array, dtype=torch.float32, shape=(width,))
        models = self._ask_all(jobs, fits, kind="train", order=round)
        trained = torch.stack(models) if models else torch.empty(0, width)
        # In a mean with such a model, those of the others would seem to have diverged later
        trained[trained.abs() > LARGEST] = torch.inf
        check_finite(trained, jobs, round)
        return trained

    def losses(
        self, jobs: Jobs, split: str, told: Callable[..., Tensor] | None, **options: Hashable
    ) -> list[Tensor]:
        """Let clients compute losses, and tell them or what a method needs of them."""
        return self._ask_all(jobs, is_sound, kind="ask", place=self._place(told, options, split))

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let clients answer a question that a method of the run asks."""
        return self._ask_all(jobs, is_sound, kind="ask", place=self._place(question, options))

    def _place(self, question: Any, options: Mapping[str, Any], split: str | None = None) -> int:
        """Return the place of a question among those that the run's methods ask."""
        for place, request in enumerate(self.settings.asked):
            if isinstance(request, Ask | Losses) and options == dict(request.options):
                own = request.question if isinstance(request, Ask) else request.told
                if (own, getattr(request, "split", None)) == (question, split):
                    return place
        raise ValueError(f"no method of the run asks {question!r} with {options!r}")

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Let clients evaluate models."""
        own: dict[int, list[Pair]] = {}
        for mixture, client in pairs:
            own.setdefault(client, []).append((mixture, client))
        requests = {}
        for client, held in own.items():
            keys = sorted({key for mixture, _ in held for key, _ in mixture})
            mixtures = [[(keys.index(key), share) for key, share in own] for own, _ in held]
            rows = torch.stack([models[key] for key in keys])
            requests[client] = packed(kind="scores", models=rows, mixtures=mixtures, split=split)
        found = self._answers("scores", requests, own, are_scores)
        return {pair: tuple(scores.tolist()) for pair, scores in found.items()}

    # --- Messages ---------------------------------------------------------------------------------

    def _ask_all(self, jobs: Jobs, fits: Fits, **request: Any) -> list[Any]:
        """Send each client its jobs, and return the answers in the order of all jobs."""
        own: dict[int, list[int]] = {}
        for job, client in enumerate(jobs.client_of.tolist()):
            own.setdefault(client, []).append(job)
        requests = {c: packed(**request, jobs=sent(jobs.part(which))) for c, which in own.items()}
        found = self._answers(request["kind"], requests, own, fits)
        return [found[job] for job in range(len(jobs))]

    def _answers(self, kind: str, requests: Contents, jobs: Own, fits: Fits) -> dict[Any, Any]:
        """Send each client its request, which is about its jobs; return the answer to each job."""
        contents = {self._nodes[client]: content for client, content in requests.items()}
        replies = self._exchange(kind, contents, self.settings.timeout)
        found, faults = dict[Any, Any](), dict[int, str]()
        for client, own in jobs.items():
            try:
                answer = answer_in(replies.get(self._nodes[client]))
                parts = list(answer) if isinstance(answer, list | Tensor | np.ndarray) else []
                if len(parts) != len(own) or not all(map(fits, parts)):
                    raise NoAnswer(f"its answer to {kind!r} has a wrong form, or is not finite")
                found |= zip(own, parts, strict=True)
            except NoAnswer as error:
                faults[client] = str(error)
        if faults:
            raise ClientsAbsent(list(faults), faults)
        return found

    def _exchange(self, kind: str, contents: Contents, timeout: float) -> dict[int, Message]:
        """Send each node its message; return the replies that arrive in time, by node."""
        end, replies = time.monotonic() + timeout, dict[int, Message]()
        asked, node_of = set[int](), dict[str, int]()
        while len(replies) < len(contents) and time.monotonic() < end:
            # What a node was asked is lost with the node, and it is asked again once it is back
            connected = {*self.grid.get_node_ids()} & contents.keys()
            asked &= connected
            new = [node for node in sorted(connected - asked) if node not in replies]
            asked |= {*new}
            what, group = TYPES.get(kind, "query"), str(self._round)
            messages = [Message(contents[node], node, what, group_id=group) for node in new]
            node_of |= zip(self.grid.push_messages(messages) if new else (), new, strict=True)
            self._note(kind, "down", {node: contents[node] for node in new})
            for reply in self.grid.pull_messages(list(node_of)) if node_of else ():
                node = node_of.pop(reply.metadata.reply_to_message_id)
                if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
                    asked.discard(node)
                else:
                    replies[node] = reply
            time.sleep(POLL if len(replies) < len(contents) else 0)
        told = {node: reply.content for node, reply in replies.items() if reply.has_content()}
        self._note(kind, "up", told)
        return replies

    def _note(self, kind: str, direction: str, contents: Contents) -> None:
        """Write messages into the log."""
        seconds = round(time.monotonic() - self._start, 2)
        for node, content in contents.items():
            arrays: Mapping[str, Any] = content.array_records.get("arrays", {})
            shapes = ["×".join(map(str, array.shape)) or "scalar" for array in arrays.values()]
            count = sum(record.count_bytes() for record in content.values())
            row = {"seconds": seconds, "round": self._round, "node": node, "kind": kind}
            row |= {"direction": direction, "contents": ", ".join(shapes), "bytes": int(count)}
            self.log.append(row)


def answer_in(reply: Message | None) -> Any:
    """Return the answer in a reply; raise `NoAnswer` if there is none."""
    if reply is None:
        raise NoAnswer("it did not answer in time")
    if reply.has_error():
        raise NoAnswer(one_line(f"it failed: {reply.error.reason}"))
    try:
        return unpacked(reply.content)["answer"]
    except (KeyError, ValueError) as error:
        raise NoAnswer(one_line(f"its answer cannot be read: {error!r}")) from error


def who(said: Any) -> tuple[int, dict[str, int]]:
    """Return the client and the numbers of samples that a node names in its hello."""
    match said:
        case {"client": int(client), "samples": {"train": int(), "test": int()} as samples}:
            counts = samples.values()
            if samples["train"] and all(type(n) is int and 0 <= n <= MOST for n in counts):
                return client, samples
    raise NoAnswer("it does not say which client it is, with how many samples")


def is_sound(part: Any) -> bool:
    """Return whether an answer has only numbers with which a method can compute."""
    if isinstance(part, list):
        return all(map(is_sound, part))
    numbers = np.asarray(part)
    return numbers.dtype.kind in "fiub" and bool((abs(numbers) <= LARGEST).all())


def are_scores(part: Any) -> bool:
    """Return whether an answer is two numbers from 0 to 1."""
    return is_array(part, np.float64, (2,)) and bool(((part >= 0) & (part <= 1)).all())


def sent(jobs: Jobs) -> dict[str, Any]:
    """Return one client's jobs in a form that can be sent, with only the models that they need."""
    used, model_of = jobs.model_of.unique(return_inverse=True)
    columns = {name: list(values) for name, values in jobs.columns.items()}
    training = None if jobs.training is None else asdict(jobs.training)
    models = jobs.models[used]
    return {"models": models, "model_of": model_of, "training": training, "columns": columns}
