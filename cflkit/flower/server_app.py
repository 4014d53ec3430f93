"""The Flower ``ServerApp``: it runs methods in lockstep on a federation whose clients are nodes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from cflkit import simulation
from cflkit._bounds import MOST
from cflkit._files import expanded
from cflkit.federation import ClientsAbsent, Federation
from cflkit.federation.federation import Pair, Scores
from cflkit.federation.requests import NOBODY, Ask, Jobs, Losses, Request, Train, check_finite
from cflkit.flower.client_data import SPLITS, divided
from cflkit.flower.messages import LARGEST, is_array, one_line, packed, unpacked
from cflkit.flower.settings import Settings

# Flower's type of each kind of message
TYPES = {"train": "train", "scores": "evaluate"}
POLL = 0.5  # how often the server looks for answers, in seconds
Contents = Mapping[int, RecordDict]  # of messages, by node
Samples = dict[str, int]  # how many samples a client has in each split
Values = dict[str, Any]
Fits = Callable[[Any], bool]
Asking = Callable[[list[int]], Values]  # from places of jobs to what their client is asked
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the methods, and write the results into the folder ``output`` of the settings, if any.

    If the run fails, the reason is in its ``error.txt``, since Flower does not show it.
    """
    output = expanded(str(context.run_config["output"] or tempfile.mkdtemp()))
    output.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(output / ".lock", timeout=0):  # another run may write here
        (output / "error.txt").unlink(missing_ok=True)
        try:
            federate(grid, Settings.of(context.run_config), output)
        except Exception as error:
            text = f"{type(error).__name__}: {error}\n"
            (output / "error.txt").write_text(text, encoding="utf-8")
            raise


def federate(grid: Grid, settings: Settings, output: Path) -> None:
    """Run the methods; `ClientsAbsent` says which clients do not answer."""
    federation, line_up = RemoteFederation(grid, settings), settings.methods
    checkpoint = output / "checkpoint.pt"
    try:
        history = simulation.run(line_up, federation, settings.rounds, checkpoint=checkpoint)
    finally:
        pd.DataFrame(federation.log).to_csv(output / "messages.csv", index=False)
    table = history.table()
    table.to_csv(output / "rounds.csv", index=False)
    # The models of each method, and the model of each client as weights of these
    models = {}
    for name, method in line_up.items():
        models[name] = dict(zip(("models", "mixture"), method.client_models(), strict=True))
    torch.save(models, output / "models.pt")
    checkpoint.unlink(missing_ok=True)
    last = table.groupby("method")["accuracy"].last().round(3)
    log(INFO, "%s after the last round; all results are in %s", last.to_dict(), output)


class RemoteFederation(Federation):
    """A federation whose clients are elsewhere, and which has no sample: blanks stand for them.

    Each primitive that methods and the evaluation use sends messages and collects the answers. A
    message to a node that is lost is sent again once the node is back. If a client fails, or does
    not answer in time, all primitives raise `ClientsAbsent`.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    settings : Settings
        The settings of the run.

    Attributes
    ----------
    log : list of dict
        Every message: ``seconds`` from the start (of an answer: when all answers were there),
        ``round`` (0 before the first one), ``node``, ``kind``, ``direction`` (``down`` to the
        client, or ``up``), ``contents`` (the shapes of the arrays) and ``bytes``.

    Raises
    ------
    ClientsAbsent
        Not all clients have said hello in time.
    """

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self.grid, self.settings, self.log = grid, settings, list[dict[str, Any]]()
        self._round, self._start = 0, time.monotonic()
        self._nodes: dict[int, int] = {}  # of each client
        held = self._greet()
        count = sum(sum(samples.values()) for samples in held.values())
        blanks = torch.zeros(1, *settings.shape, dtype=torch.uint8).expand(count, -1, -1, -1)
        labels = torch.zeros(1, dtype=torch.int64).expand(count)
        super().__init__(*divided(settings, blanks, labels, held), **settings.options)

    def _greet(self) -> dict[int, Samples]:
        """Ask all nodes which client they are; return how many samples each client has."""
        owners = {node: client for client, node in enumerate(self.settings.nodes)}
        nodes, end = [*owners], time.monotonic() + self.settings.timeout
        clients, held = range(self.settings.clients), dict[int, Samples]()
        while len(nodes) < len(clients) and time.monotonic() < end:  # in Flower's simulation
            time.sleep(POLL)
            nodes = [*self.grid.get_node_ids()]
        hellos = {node: packed(kind="hello", client=owners.get(node)) for node in nodes}
        faults = dict.fromkeys(clients, "it has not said hello")
        for node, reply in self._exchange("hello", hellos).items():
            try:
                client, samples = who(answer_in(reply))
                if owners.get(node, client) != client:
                    raise ValueError(f"it says that it is client {client}")
                self._nodes[client], held[client] = node, samples
            except ValueError as error:
                faults[owners.get(node, -1)] = f"its hello was refused: {error}"
        if missing := [client for client in clients if client not in held]:
            raise ClientsAbsent(missing, faults)
        return held

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round: all of them, or else the run ends."""
        self._round = round + 1
        return super().reachable(round)

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Let clients train; a model that is not finite ends its methods, and not the run."""
        width = jobs.models.shape[1]
        fits = partial(is_array, dtype=torch.float32, shape=(width,))
        models = self._asked(Train(NOBODY), jobs, fits, round)
        trained = torch.stack(models) if models else torch.empty(0, width)
        # In a mean with such a model, those of the others would seem to have diverged later
        trained[trained.abs() > LARGEST] = torch.inf
        check_finite(trained, jobs, round)
        return trained

    def losses(self, jobs: Jobs, split: str = "train", told: Any = None, **options: Any) -> Any:
        """Let clients compute losses, and tell them or what a method needs of them."""
        return self._asked(Losses(NOBODY, split, told=told, options=options), jobs, is_sound)

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Any) -> list[Any]:
        """Let clients answer a question that a method of the run asks."""
        return self._asked(Ask(NOBODY, question=question, options=options), jobs, is_sound)

    def _asked(self, request: Request, jobs: Jobs, fits: Fits, order: int = 0) -> list[Any]:
        """Send each client its jobs, and the request's place among those of the run."""
        plain: Values = {"jobs": NOBODY, "sent": True, "reported": True}
        requests = [replace(known, **plain) for known in self.settings.asked]
        more = {"place": requests.index(request), "order": order}
        kind, clients = "train" if isinstance(request, Train) else "ask", jobs.client_of.tolist()

        def part(places: list[int]) -> Values:
            return more | {"jobs": sent(jobs.part(places))}

        return self._answers(kind, clients, fits, part)

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Let clients evaluate models."""

        def request(places: list[int]) -> Values:
            mixtures = [pairs[place][0] for place in places]
            keys = sorted({key for mixture in mixtures for key, _ in mixture})
            rows = [[(keys.index(key), share) for key, share in mixture] for mixture in mixtures]
            needed = torch.stack([models[key] for key in keys])
            return {"models": needed, "mixtures": rows, "split": split}

        answers = self._answers("scores", [client for _, client in pairs], are_scores, request)
        return {pair: tuple(answer.tolist()) for pair, answer in zip(pairs, answers, strict=True)}

    # --- Messages ---------------------------------------------------------------------------------

    def _answers(self, kind: str, clients: list[int], fits: Fits, request: Asking) -> list[Any]:
        """Send each client a request about its places in the list; return one answer per place."""
        places: dict[int, list[int]] = {}
        for place, client in enumerate(clients):
            places.setdefault(client, []).append(place)
        nodes = self._nodes
        contents = {nodes[c]: packed(kind=kind, **request(part)) for c, part in places.items()}
        replies = self._exchange(kind, contents)
        answers, faults = dict[int, Any](), dict[int, str]()
        for client, part in places.items():
            try:
                answer = answer_in(replies.get(nodes[client]))
                values = list(answer) if isinstance(answer, list | Tensor | np.ndarray) else []
                if len(values) != len(part) or not all(map(fits, values)):
                    raise ValueError(f"its answer to {kind!r} has a wrong form, or is not finite")
                answers |= zip(part, values, strict=True)
            except ValueError as error:
                faults[client] = str(error)
        if faults:
            raise ClientsAbsent(list(faults), faults)
        return [answers[place] for place in range(len(clients))]

    def _exchange(self, kind: str, contents: Contents) -> dict[int, Message]:
        """Send each node its message; return the replies that arrive in time, by node."""
        end, replies = time.monotonic() + self.settings.timeout, dict[int, Message]()
        what, group = TYPES.get(kind, "query"), str(self._round)
        waiting: dict[str, int] = {}  # the node that each message without a reply was sent to
        while len(replies) < len(contents) and time.monotonic() < end:
            # What a node was asked is lost with the node, and it is asked again once it is back
            here = {*self.grid.get_node_ids()}
            waiting = {name: node for name, node in waiting.items() if node in here}
            new = sorted((contents.keys() & here) - {*waiting.values()} - replies.keys())
            messages = [Message(contents[node], node, what, group_id=group) for node in new]
            waiting |= zip(self.grid.push_messages(messages), new, strict=True)
            self._note(kind, "down", {node: contents[node] for node in new})
            for reply in self.grid.pull_messages([*waiting]) if waiting else ():
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if not reply.has_error() or reply.error.code != ErrorCode.NODE_UNAVAILABLE:
                    replies[node] = reply
            time.sleep(POLL if len(replies) < len(contents) else 0)
        arrived = {node: reply.content for node, reply in replies.items() if reply.has_content()}
        self._note(kind, "up", arrived)
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
    """Return the answer in a reply; a `ValueError` says why there is none."""
    if reply is None:
        raise ValueError("it did not answer in time")
    if reply.has_error():
        raise ValueError(one_line(f"it failed: {reply.error.reason}"))
    return unpacked(reply.content).get("answer")


def who(said: Any) -> tuple[int, Samples]:
    """Return the client and the numbers of samples that a node names in its hello."""
    match said:
        case {"client": int(client), "samples": {"train": int(), "test": int()} as samples}:
            right = all(type(n) is int and 0 <= n <= MOST for n in samples.values())
            if right and samples["train"] and samples.keys() <= {*SPLITS}:
                return client, samples
    raise ValueError("it does not say which client it is, with how many samples")


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
