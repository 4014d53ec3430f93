"""The nodes of a federation: which clients are there, and messages to them with their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from cflkit.federation import ClientsAbsent
from cflkit.flower.messages import num_bytes, packed, unpacked
from cflkit.flower.setting import Setting

# Flower's type of each kind of message
TYPES = {"train": "train", "scores": "evaluate"}
# What is wrong with the answer of a client, if something is
Fault = Callable[[Any, int], str | None]
# How often the server asks for answers, in seconds
POLL = 0.2
# After how many seconds the server asks a node again whose hello it could not use
AGAIN = 10.0


class NoAnswer(str):
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


class Nodes:
    """The nodes that are connected, each of which has the data of one client.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    setting : Setting
        The facts on which server and nodes agree, which every message has.
    timeout : float
        How long to wait for an answer, in seconds.
    wait : float
        How long to wait for all clients at the start, in seconds.

    Attributes
    ----------
    of : dict of int to int
        The node of each client that is there.
    faults : dict of int to str
        Why each absent client is absent.
    samples : dict of int to dict
        How many samples each client has in each split.
    log : list of Sent
        Every message.

    Raises
    ------
    ClientsAbsent
        Not all clients have said hello in time.
    """

    def __init__(self, grid: Grid, setting: Setting, timeout: float, wait: float) -> None:
        self.grid, self.setting, self.timeout = grid, setting, timeout
        self.log: list[Sent] = []
        self.of: dict[int, int] = {}
        self.faults: dict[int, str] = {}
        self.samples: dict[int, dict[str, int]] = {}
        self._round, self._start = -1, time.monotonic()
        # The hellos without an answer: the node and the time of each message
        self._greeted: dict[str, tuple[int, float]] = {}
        # The nodes whose hello could not be used: why, and when
        self._refused: dict[int, tuple[str, float]] = {}
        self._answers: dict[tuple[int, str], Any] = {}
        self._wait_for_all(wait)

    # --- Who is there -----------------------------------------------------------------------------

    def _wait_for_all(self, wait: float) -> None:
        """Wait until every client has said hello."""
        end = time.monotonic() + wait
        while True:
            self._greet()
            if not (missing := self.absent()):
                return
            if time.monotonic() > end:
                told = "".join(f"; a node was refused: {why}" for why, _ in self._refused.values())
                for client in missing:
                    self.faults.setdefault(client, f"it has not said hello{told}")
                raise ClientsAbsent(missing, self.faults)
            time.sleep(POLL)

    def absent(self) -> list[int]:
        """Return the clients without a node."""
        return [client for client in range(self.setting.clients) if client not in self.of]

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
        connected = set(self.grid.get_node_ids())
        for client, node in list(self.of.items()):
            if node not in connected:
                self._lose(client, "its node has disconnected")
        now = time.monotonic()
        asked = {node for node, _ in self._greeted.values()}
        asked |= {node for node, (_, since) in self._refused.items() if now - since < AGAIN}
        unknown = sorted(connected - set(self.of.values()) - asked)
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
            case NoAnswer():
                return self._refuse(node, said)
            case {"client": int(client), "samples": {"train": int(), "test": int()} as samples}:
                pass
            case _:
                return self._refuse(node, "it does not say which client it is")
        if not 0 <= client < self.setting.clients or client in self.of:
            return self._refuse(node, f"it says that it is client {client}")
        if samples != self.samples.setdefault(client, samples):
            return self._refuse(node, f"client {client} has come back with other data")
        self.of[client] = node
        self._refused.pop(node, None)
        if self.faults.pop(client, None):
            log(INFO, "client %s is back", client)

    def _refuse(self, node: int, reason: str) -> None:
        """Note that the hello of a node is of no use."""
        self._refused[node] = reason, time.monotonic()
        log(WARNING, "node %s does not take part: %s", node, reason)

    def _lose(self, client: int, reason: str) -> None:
        """Note that a client is absent."""
        del self.of[client]
        self.faults[client] = reason
        log(WARNING, "client %s is absent: %s", client, reason)

    # --- Messages ---------------------------------------------------------------------------------

    def answers(
        self, kind: str, requests: Mapping[int, Mapping[str, Any]], fault: Fault
    ) -> dict[int, Any]:
        """Send each client its request; return the answers of those who give one that fits.

        The others are absent from then on.
        """
        contents = {c: self._packed({**request, "kind": kind}) for c, request in requests.items()}
        keys = {client: (client, content.object_id) for client, content in contents.items()}
        clients = {self.of[c]: c for c in requests if keys[c] not in self._answers}
        sent = {node: contents[client] for node, client in clients.items()}
        for node, answer in self._exchange(kind, sent, clients).items():
            client = clients[node]
            reason = answer if isinstance(answer, NoAnswer) else fault(answer, client)
            if reason is None:
                self._answers[keys[client]] = answer
            else:
                self._lose(client, reason)
        return {client: self._answers[key] for client, key in keys.items() if key in self._answers}

    def _packed(self, request: Mapping[str, Any]) -> RecordDict:
        """Return the content of a message."""
        return packed({**request, "setting": self.setting.sent()})

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
        late = NoAnswer(f"it did not answer within {self.timeout:g} seconds")
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
            return NoAnswer(f"it failed: {reply.error.reason}")
        self._note(client, kind, "up", reply.content)
        try:
            return unpacked(reply.content)["answer"]
        except (KeyError, ValueError) as error:
            return NoAnswer(f"its answer cannot be read: {error!r}")

    def _note(self, client: int, kind: str, direction: str, content: RecordDict) -> None:
        """Write a message into the log."""
        arrays: Mapping[str, Any] = content.array_records.get("arrays", {})
        names = [f"{name} {'×'.join(map(str, a.shape)) or 'scalar'}" for name, a in arrays.items()]
        seconds = round(time.monotonic() - self._start, 2)
        told = ", ".join(names)
        sent = Sent(seconds, self._round + 1, client, kind, direction, told, num_bytes(content))
        self.log.append(sent)
