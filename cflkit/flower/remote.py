"""The server's side: a federation whose clients are Flower nodes.

`RemoteFederation` has the primitives of `cflkit.federation.Federation`, so that methods, lockstep
and evaluation run on it unchanged. It has no sample: each primitive sends messages and collects
the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from cflkit.federation import Jobs, Privacy, Server, check_finite
from cflkit.federation.absence import ClientsAbsent
from cflkit.federation.blueprint import Blueprint
from cflkit.federation.jobs import Hook
from cflkit.federation.requests import QUESTIONS
from cflkit.federation.scoring import Pair, Scores
from cflkit.federation.seeds import drawn
from cflkit.flower.messages import num_bytes, packed, unpacked
from cflkit.flower.node import sent_jobs
from cflkit.flower.setting import Setting

# Flower's type of each kind of message
TYPES = {"train": "train", "scores": "evaluate"}
# What is wrong with an answer, if something is; the arguments are the answer, how many values are
# expected, and the client
Fitting = Callable[[Any, int, int], str | None]
# How often the server asks for answers, in seconds
POLL = 0.2
# After how many seconds the server asks a node again whose hello it could not use
AGAIN = 10.0


class Fault(str):
    """Why a client has no answer, in place of its answer."""


@dataclass(frozen=True)
class Sent:
    """A message that crossed the wire, for the log.

    Attributes
    ----------
    seconds : float
        When it was sent or received, in seconds from the start.
    round : int
        The round, from 1; 0 before the first one.
    client : int
        The number of the client; -1 if the server does not know it yet.
    kind : str
        The kind of the request.
    direction : {"down", "up"}
        From the server to the client, or back.
    contents : str
        The names and shapes of the arrays.
    bytes : int
        The size of the message's records.
    """

    seconds: float
    round: int
    client: int
    kind: str
    direction: str
    contents: str
    bytes: int


class RemoteFederation:
    """Clients that are elsewhere.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    setting : Setting
        The facts on which server and nodes agree.
    per_round : int, optional
        The number of clients that take part in a round; by default all.
    timeout : float
        How long to wait for an answer, in seconds.
    wait : float
        How long to wait for all clients at the start, in seconds.
    absent_allowed : bool
        Whether rounds go on without clients that do not answer. Otherwise, such a client ends the
        run.

    Attributes
    ----------
    log : list of Sent
        Every message.
    nodes : dict of int to int
        The node of each client that is present.
    faults : dict of int to str
        Why each absent client is absent.

    Raises
    ------
    ValueError
        More clients should take part than there are.
    ClientsAbsent
        Not all clients have said hello in time.
    """

    task = "classification"
    engine = "flower"
    precision = "float32"
    after_training: tuple[Hook, ...] = ()
    privacy: Privacy | None = None
    clusters: Tensor | None = None

    def __init__(
        self,
        grid: Grid,
        setting: Setting,
        *,
        per_round: int | None = None,
        timeout: float = 600.0,
        wait: float = 600.0,
        absent_allowed: bool = False,
    ) -> None:
        self.grid, self.setting, self.timeout = grid, setting, timeout
        self.absent_allowed = absent_allowed
        self.clients, self.seed, self.training = setting.clients, setting.seed, setting.training
        self.per_round = per_round or self.clients
        if not 1 <= self.per_round <= self.clients:
            raise ValueError(f"{self.per_round} of {self.clients} clients cannot take part")
        self.partial = absent_allowed or self.per_round < self.clients
        self.device = torch.device("cpu")
        self.blueprint = Blueprint(
            setting.model, setting.shape, setting.classes, self.seed, self.device
        )
        self.parameters, self.buffers = self.blueprint.parameters, self.blueprint.buffers
        self.layout = self.blueprint.layout
        self.initial, self.initials = self.blueprint.initial, self.blueprint.initials
        self.log: list[Sent] = []
        self.faults: dict[int, str] = {}
        self.nodes: dict[int, int] = {}
        self.samples: dict[int, dict[str, int]] = {}
        self._round, self._start = -1, time.monotonic()
        # The hellos without an answer: the node and the time of each message
        self._greeted: dict[str, tuple[int, float]] = {}
        # The nodes whose hello could not be used: why, and when
        self._refused: dict[int, tuple[str, float]] = {}
        self._answers: dict[tuple[int, str], Any] = {}
        self._wait_for_all(wait)
        self.sizes = torch.tensor(
            [self.samples[client]["train"] for client in range(self.clients)],
            dtype=torch.float32,
        )
        self.server = Server(self)

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data, for checkpoints: their numbers of samples."""
        return sha256(repr(sorted(self.samples.items())).encode()).hexdigest()

    # --- Who is there -----------------------------------------------------------------------------

    def _wait_for_all(self, wait: float) -> None:
        """Wait until every client has said hello."""
        end = time.monotonic() + wait
        while True:
            self._greet()
            missing = [client for client in range(self.clients) if client not in self.nodes]
            if not missing:
                return
            if time.monotonic() > end:
                told = "".join(f"; a node was refused: {why}" for why, _ in self._refused.values())
                for client in missing:
                    self.faults.setdefault(client, f"it has not said hello{told}")
                raise ClientsAbsent(missing, self.faults)
            time.sleep(POLL)

    def _greet(self) -> None:
        """Ask connected nodes that are not known which client they are; do not wait for answers.

        Their answers are read when this is called again.
        """
        connected = set(self.grid.get_node_ids())
        for client, node in list(self.nodes.items()):
            if node not in connected:
                self._lose(client, "its node has disconnected")
        now = time.monotonic()
        asked = {node for node, _ in self._greeted.values()}
        asked |= {node for node, (_, since) in self._refused.items() if now - since < AGAIN}
        unknown = sorted(connected - set(self.nodes.values()) - asked)
        hello = self._packed({"kind": "hello"})
        sent = self._push("hello", dict.fromkeys(unknown, hello), {})
        self._greeted |= {message: (node, time.monotonic()) for message, node in sent.items()}
        for reply in self.grid.pull_messages(list(self._greeted)) if self._greeted else ():
            node, _ = self._greeted.pop(reply.metadata.reply_to_message_id)
            self._admit(node, self._answer_of(reply, -1, "hello"))
        for message, (_, since) in list(self._greeted.items()):
            if time.monotonic() - since > self.timeout:  # a node that has come back is asked again
                del self._greeted[message]

    def _admit(self, node: int, said: Any) -> None:
        """Read the hello of a node."""
        match said:
            case Fault():
                return self._refuse(node, said)
            case {"client": int(client), "samples": {"train": int(), "test": int()} as samples}:
                pass
            case _:
                return self._refuse(node, "it does not say which client it is")
        if not 0 <= client < self.clients or client in self.nodes:
            return self._refuse(node, f"it says that it is client {client}")
        if samples != self.samples.setdefault(client, samples):
            return self._refuse(node, f"client {client} has come back with other data")
        self.nodes[client] = node
        self._refused.pop(node, None)
        if self.faults.pop(client, None):
            log(INFO, "client %s is back", client)

    def _refuse(self, node: int, reason: str) -> None:
        """Note that the hello of a node is of no use."""
        self._refused[node] = reason, time.monotonic()
        log(WARNING, "node %s does not take part: %s", node, reason)

    def _lose(self, client: int, reason: str) -> None:
        """Note that a client is absent."""
        del self.nodes[client]
        self.faults[client] = reason
        log(WARNING, "client %s is absent: %s", client, reason)

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round, ascending: those whose nodes are there.

        Raises
        ------
        ClientsAbsent
            A client is absent, and rounds may not go on without clients.
        """
        if round != self._round:
            self._round, self._answers = round, {}
            self._greet()
        absent = [client for client in range(self.clients) if client not in self.nodes]
        if absent and not self.absent_allowed:
            raise ClientsAbsent(absent, self.faults)
        return torch.tensor(sorted(self.nodes), dtype=torch.int64)

    def participants(self, round: int) -> Tensor:
        """Return the clients that take part in a round, ascending: those drawn that are present.

        Raises
        ------
        ClientsAbsent
            None of the drawn clients is present; also see `reachable`.
        """
        there = self.reachable(round)
        chosen = self.drawn(torch.arange(self.clients), self.per_round, round)
        present = chosen[torch.isin(chosen, there)]
        if not len(present):
            raise ClientsAbsent(chosen.tolist(), self.faults, asked_again=True)
        return present

    def drawn(self, clients: Tensor, count: int, *key: int) -> Tensor:
        """Draw some of the clients, in ascending order; the same for the same seed and key."""
        return drawn(clients, count, self.seed, *key)

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""
        return self.samples[client].get(split, 0)

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Let clients train (`Federation.train`); nodes protect nothing, reported or not."""
        width = jobs.models.shape[1]

        def fault(answer: Any, count: int, client: int) -> str | None:
            if not isinstance(answer, Tensor) or answer.shape != (count, width):
                return f"it sent something else than {count} models of {width} values"
            if self.absent_allowed and not bool(torch.isfinite(answer).all()):
                return "it sent a model that is not finite"
            return None

        answers = self._ask_all(jobs, "train", {"order": round}, fault)
        trained = torch.stack(answers) if answers else torch.empty(0, width)
        check_finite(trained, jobs, round)
        return trained

    def losses(self, jobs: Jobs, split: str = "train") -> list[Tensor]:
        """Let clients compute losses (`Federation.losses`)."""

        def fault(answer: Any, count: int, client: int) -> str | None:
            shape = (self.num_samples(client, split),)
            if not_a_list(answer, count, client) or not all(
                isinstance(part, Tensor) and part.shape == shape for part in answer
            ):
                return f"it sent something else than {count} times {shape[0]} losses"
            if not all(bool(torch.isfinite(part).all()) for part in answer):
                return "it sent a loss that is not finite"
            return None

        return self._ask_all(jobs, "losses", {"split": split}, fault)

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let clients answer a question (`Federation.ask`).

        Raises
        ------
        ValueError
            Answers to this question are not safe to send (`question`).
        """
        named = [(name, known.fits) for name, known in QUESTIONS.items() if known.ask is question]
        if not named:
            raise ValueError(
                f"clients do not answer {question.__name__!r} over a network, since the answer "
                "would contain their samples or labels"
            )
        [(name, fits)] = named

        def fault(answer: Any, count: int, client: int) -> str | None:
            if reason := not_a_list(answer, count, client):
                return reason
            own = jobs.part((jobs.client_of == client).nonzero().flatten().tolist())
            about = [()] * count if own.about is None else [(what,) for what in own.about]
            for part, what in zip(answer, about, strict=True):
                if not fits(part, self.blueprint, *what, **options):
                    return f"its answer to {question.__name__!r} has a wrong form or is not finite"
            return None

        request = {"question": name, "options": dict(options)}
        return self._ask_all(jobs, "ask", request, fault)

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Let clients evaluate models (`Federation.scores`); absent clients have no scores."""
        own: dict[int, list[Pair]] = {}
        for mixture, client in pairs:
            if client in self.nodes:
                own.setdefault(client, []).append((mixture, client))
        requests = {}
        for client, held in own.items():
            keys = sorted({key for mixture, _ in held for key, _ in mixture})
            requests[client] = {
                "keys": keys,
                "models": torch.stack([models[key] for key in keys]),
                "mixtures": [mixture for mixture, _ in held],
                "split": split,
            }
        found: Scores = {}
        counts = {client: len(held) for client, held in own.items()}
        answers = self._collect("scores", requests, counts, not_scores, must=False)
        for client, answer in answers.items():
            found |= zip(own[client], map(tuple, answer), strict=True)
        return found

    # --- Messages ---------------------------------------------------------------------------------

    def _ask_all(
        self,
        jobs: Jobs,
        kind: str,
        request: dict[str, Any],
        fault: Fitting,
    ) -> list[Any]:
        """Send each client its jobs, and return the answers in the order of all jobs."""
        own: dict[int, list[int]] = {}
        for job, client in enumerate(jobs.client_of.tolist()):
            own.setdefault(client, []).append(job)
        requests = {
            client: request | {"jobs": sent_jobs(jobs.part(which))} for client, which in own.items()
        }
        counts = {client: len(which) for client, which in own.items()}
        answers: list[Any] = [None] * len(jobs)
        for client, answer in self._collect(kind, requests, counts, fault).items():
            for job, part in zip(own[client], answer, strict=True):
                answers[job] = part
        return answers

    def _collect(
        self,
        kind: str,
        requests: Mapping[int, dict[str, Any]],
        counts: Mapping[int, int],
        fault: Fitting,
        must: bool = True,
    ) -> dict[int, Any]:
        """Send each client its request and return the answers.

        Answers are kept until the round ends: if it begins again without an absent client, the
        others do not compute again.

        Raises
        ------
        ClientsAbsent
            A client does not answer or its answer is of no use, and ``must`` holds or rounds may
            not go on without clients.
        """
        contents = {
            client: self._packed(request | {"kind": kind}) for client, request in requests.items()
        }
        keys = {client: (client, content.object_id) for client, content in contents.items()}
        new = [client for client in requests if keys[client] not in self._answers]
        clients = {self.nodes[client]: client for client in new}
        sent = {node: contents[client] for node, client in clients.items()}
        raw = self._exchange(kind, sent, clients)
        lost = []
        for node, answer in raw.items():
            client = clients[node]
            told = isinstance(answer, Fault)
            reason = answer if told else fault(answer, counts[client], client)
            if reason is None:
                self._answers[keys[client]] = answer
            else:
                self._lose(client, reason)
                lost.append(client)
        if lost and (must or not self.absent_allowed):
            raise ClientsAbsent(lost, self.faults)
        return {client: self._answers[key] for client, key in keys.items() if key in self._answers}

    def _packed(self, request: dict[str, Any]) -> RecordDict:
        """Return the content of a message, which always has the setting."""
        return packed(request | {"setting": self.setting.sent()})

    def _exchange(
        self, kind: str, contents: Mapping[int, RecordDict], clients: Mapping[int, int]
    ) -> dict[int, Any]:
        """Send each node its message; return its answer, or the reason why there is none."""
        waiting = self._push(kind, contents, clients)
        answers: dict[int, Any] = {}
        end = time.monotonic() + self.timeout
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                answers[node] = self._answer_of(reply, clients[node], kind)
            time.sleep(POLL if waiting else 0)
        late = Fault(f"it did not answer within {self.timeout:g} seconds")
        return answers | dict.fromkeys(waiting.values(), late)

    def _push(
        self, kind: str, contents: Mapping[int, RecordDict], clients: Mapping[int, int]
    ) -> dict[str, int]:
        """Send each node its message; return the node of each message."""
        messages = []
        for node, content in contents.items():
            group = str(self._round + 1)
            messages.append(Message(content, node, TYPES.get(kind, "query"), group_id=group))
            self._note(clients.get(node, -1), kind, "down", content)
        if not messages:
            return {}
        numbers = list(self.grid.push_messages(messages))
        if len(numbers) != len(messages):
            raise RuntimeError(
                f"Flower has sent {len(numbers)} of {len(messages)} messages {kind!r}"
            )
        return dict(zip(numbers, contents, strict=True))

    def _answer_of(self, reply: Message, client: int, kind: str) -> Any:
        """Return the answer in a reply, or what is wrong with it."""
        if reply.has_error():
            return Fault(f"it failed: {reply.error.reason}")
        self._note(client, kind, "up", reply.content)
        try:
            return unpacked(reply.content)["answer"]
        except (KeyError, ValueError) as error:
            return Fault(f"its answer cannot be read: {error!r}")

    def _note(self, client: int, kind: str, direction: str, content: RecordDict) -> None:
        arrays: Mapping[str, Any] = content.array_records.get("arrays", {})
        names = [f"{name} {'×'.join(map(str, a.shape)) or 'scalar'}" for name, a in arrays.items()]
        seconds = round(time.monotonic() - self._start, 2)
        told = ", ".join(names)
        sent = Sent(seconds, self._round + 1, client, kind, direction, told, num_bytes(content))
        self.log.append(sent)


def not_a_list(answer: Any, count: int, client: int) -> str | None:
    """Return what is wrong with an answer that should be a list of ``count`` values."""
    if not isinstance(answer, list) or len(answer) != count:
        return f"it sent something else than a list of {count} answers"
    return None


def not_scores(answer: Any, count: int, client: int) -> str | None:
    """Return what is wrong with an answer that should be ``count`` pairs of F1 and accuracy."""
    fits = not not_a_list(answer, count, client) and all(
        isinstance(part, tuple) and [*map(type, part)] == [float, float] for part in answer
    )
    return None if fits else f"it sent something else than {count} pairs of scores"
