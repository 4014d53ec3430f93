"""The nodes of a federation: which clients are there, and messages to them with their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from logging import INFO, WARNING
from typing import Annotated, Any, Literal

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Natural
from cflkit.federation import ClientsAbsent
from cflkit.flower.agreement import Setting
from cflkit.flower.messages import one_line, packed, unpacked

# Flower's type of each kind of message
TYPES = {"train": "train", "scores": "evaluate"}
# How often the server asks for answers, in seconds; `Grid.send_and_receive` would take 3
POLL = 0.2
# After how many seconds the server asks a node again whose hello it could not use
AGAIN = 10.0
# No client has more samples; one that says so would have all the weight in a mean
MOST_SAMPLES = 10**6
Split = Literal["train", "test", "validation", "backdoor"]
Count = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]


@dataclass(frozen=True, config=STRICT)
class Hello:
    """What a node says of itself: its client's number, and its samples in each split."""

    client: Natural
    samples: dict[Split, Count]


class NoAnswer(Exception):
    """A reply has no answer; the message says why."""


class Nodes:
    """The nodes that are connected, each of which has the data of one client.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    setting : Setting
        The facts on which server and nodes agree, which every message has.
    timeout, wait : float
        How long to wait for an answer, and for all clients at the start, in seconds.
    numbers : sequence of int
        ``[m]``, the number that Flower has given to the key of each client's node. A node with
        another key cannot say that it is this client.

    Attributes
    ----------
    log : list of dict
        Every message: ``seconds`` from the start, ``round`` (0 before the first one), ``client``
        (-1 if it is not known yet), ``kind``, ``direction`` (``down`` to the client, or ``up``),
        ``contents`` (the names and shapes of the arrays) and ``bytes``.

    Raises
    ------
    ClientsAbsent
        Not all clients have said hello in time.
    """

    def __init__(
        self,
        grid: Grid,
        setting: Setting,
        timeout: float,
        wait: float,
        numbers: Sequence[int],
    ) -> None:
        self.owners = {node: client for client, node in enumerate(numbers)}
        self.grid, self.setting, self.timeout = grid, setting, timeout
        self.log: list[dict[str, Any]] = []
        self.of: dict[int, int] = {}  # the node of each client that is there
        # Why each absent client is absent
        self.faults = dict.fromkeys(range(setting.clients), "it has not said hello")
        self.samples: dict[int, dict[str, int]] = {}  # how many each client has in each split
        self._round, self._start = -1, time.monotonic()
        self._greeted: dict[str, int] = {}  # the node of each hello without an answer
        self._again: dict[int, float] = {}  # when a node may be asked again who it is
        self._answers: dict[tuple[int, str], Sequence[Any]] = {}
        self._greet()
        while len(self.of) < setting.clients:
            if time.monotonic() > self._start + wait:
                self.need(range(setting.clients))
            time.sleep(POLL)
            self._greet()

    # --- Who is there -----------------------------------------------------------------------------

    def need(self, clients: Iterable[int]) -> None:
        """Raise `ClientsAbsent` if some of these clients have no node."""
        if absent := [client for client in clients if client not in self.of]:
            raise ClientsAbsent(absent, self.faults)

    def enter(self, round: int) -> None:
        """Begin a round, if it is a new one: forget the answers of the last, and look who is there.

        Answers are kept until the round ends: if it begins again without an absent client, the
        others do not compute again.
        """
        if round != self._round:
            self._round, self._answers = round, {}
            self._greet()

    def _greet(self) -> None:
        """Ask connected nodes that are not known which client they are; do not wait for answers.

        Their answers are read when this is called again.
        """
        connected = set(self.grid.get_node_ids()) & self.owners.keys()
        for client, node in list(self.of.items()):
            if node not in connected:
                self._lose(client, "its node has disconnected")
        now = time.monotonic()
        asked = {node for node, again in self._again.items() if now < again}
        unknown = sorted(connected - set(self.of.values()) - asked)
        self._greeted |= self._push("hello", dict.fromkeys(unknown, self._packed("hello", {})))
        self._again |= dict.fromkeys(unknown, now + self.timeout)
        for reply in self.grid.pull_messages(list(self._greeted)) if self._greeted else ():
            node = self._greeted.pop(reply.metadata.reply_to_message_id)
            try:
                self._admit(node, self._answer_of(reply, -1, "hello"))
            except NoAnswer as error:
                self._again[node] = now + AGAIN
                self.faults[self.owners[node]] = f"its hello was refused: {error}"
                log(WARNING, "node %s does not take part: %s", node, error)

    def _admit(self, node: int, said: Any) -> None:
        """Read the hello of a node; raise `NoAnswer` if it is of no use."""
        try:
            hello = Hello(**said)
        except (TypeError, ValidationError) as error:
            raise NoAnswer("it does not say which client it is, with how many samples") from error
        client, samples = hello.client, {str(own): n for own, n in hello.samples.items()}
        if (whose := self.owners[node]) != client:
            raise NoAnswer(f"it says that it is client {client}, with the key of client {whose}")
        if "test" not in samples or not samples.get("train"):
            raise NoAnswer(f"client {client} does not say that it has samples to train and to test")
        if samples != self.samples.setdefault(client, samples):
            raise NoAnswer(f"client {client} has come back with other data")
        self.of[client] = node
        self._again.pop(node, None)
        self.faults.pop(client, None)
        log(INFO, "client %s takes part", client)

    def _lose(self, client: int, reason: str) -> None:
        """Note that a client is absent."""
        del self.of[client]
        self.faults[client] = reason
        log(WARNING, "client %s is absent: %s", client, reason)

    # --- Messages ---------------------------------------------------------------------------------

    def answers(
        self,
        kind: str,
        requests: Mapping[int, Mapping[str, Any]],
        jobs: Mapping[int, Sequence[Any]],
        fits: Callable[[Any, Any], bool],
    ) -> dict[Any, Any]:
        """Send each client its request, which is about its jobs; return the answer to each job.

        A client without an answer that ``fits`` each of its jobs is absent from then on.
        """
        contents = {client: self._packed(kind, request) for client, request in requests.items()}
        keys = {client: (client, content.object_id) for client, content in contents.items()}
        asked = {self.of[c]: c for c in requests if keys[c] not in self._answers}
        waiting = self._push(kind, {node: contents[client] for node, client in asked.items()})
        end = time.monotonic() + self.timeout
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                client = asked[waiting.pop(reply.metadata.reply_to_message_id)]
                try:
                    answer = self._answer_of(reply, client, kind)
                    rows = isinstance(answer, Tensor) and answer.ndim > 0
                    parts = list(answer) if rows or isinstance(answer, list) else []
                    if len(parts) != len(jobs[client]) or not all(map(fits, jobs[client], parts)):
                        what = requests[client].get("question", kind)
                        wrong = "has a wrong form or is not finite, or is out of range"
                        raise NoAnswer(f"its answer to {what!r} {wrong}")
                    self._answers[keys[client]] = parts
                except NoAnswer as error:
                    self._lose(client, str(error))
            time.sleep(POLL if waiting else 0)
        for node in waiting.values():
            self._lose(asked[node], f"it did not answer within {self.timeout:g} seconds")
        found: dict[Any, Any] = {}
        for client, key in keys.items():
            if key in self._answers:
                found |= zip(jobs[client], self._answers[key], strict=True)
        return found

    def _packed(self, kind: str, request: Mapping[str, Any]) -> RecordDict:
        """Return the content of a message."""
        return packed({**request, "kind": kind, "setting": asdict(self.setting)})

    def _push(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[str, int]:
        """Send each node its message; return the node of each message."""
        if not contents:
            return {}
        group, clients = str(self._round + 1), {node: client for client, node in self.of.items()}
        messages = []
        for node, content in contents.items():
            messages.append(Message(content, node, TYPES.get(kind, "query"), group_id=group))
            self._note(clients.get(node, -1), kind, "down", content)
        numbers = list(self.grid.push_messages(messages))
        if len(numbers) != len(messages):
            raise RuntimeError(
                f"Flower has sent {len(numbers)} of {len(messages)} messages {kind!r}"
            )
        return dict(zip(numbers, contents, strict=True))

    def _answer_of(self, reply: Message, client: int, kind: str) -> Any:
        """Return the answer in a reply; raise `NoAnswer` if there is none."""
        if reply.has_error():
            raise NoAnswer(one_line(f"it failed: {reply.error.reason}"))
        self._note(client, kind, "up", reply.content)
        try:
            return unpacked(reply.content)["answer"]
        except (KeyError, ValueError) as error:
            raise NoAnswer(one_line(f"its answer cannot be read: {error!r}")) from error

    def _note(self, client: int, kind: str, direction: str, content: RecordDict) -> None:
        """Write a message into the log."""
        arrays: Mapping[str, Any] = content.array_records.get("arrays", {})
        names = [f"{name} {'×'.join(map(str, a.shape)) or 'scalar'}" for name, a in arrays.items()]
        self.log.append(
            {
                "seconds": round(time.monotonic() - self._start, 2),
                "round": self._round + 1,
                "client": client,
                "kind": kind,
                "direction": direction,
                "contents": ", ".join(names),
                "bytes": int(sum(record.count_bytes() for record in content.values())),
            }
        )
