"""The one loop over rounds, for one method or many in lockstep.

A round of a method is a conversation of requests and answers. The simulation advances the
conversations of all methods together and computes what several of them ask for once: methods that
share a starting point share the training. Comparisons are paired by construction.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflkit import checkpoints, evaluation
from cflkit.federation import Diverged, Federation, Request, Train
from cflkit.federation.jobs import joined
from cflkit.federation.rows import digests
from cflkit.history import History, Summary, of_models
from cflkit.methods.base import Method
from cflkit.progress import Progress
from cflkit.revision import revision

Conversation = Generator[Request, Any, None]
# Of the time of a run at most this share goes into checkpoints
CHECKPOINT_SHARE = 0.05

__all__ = ["History", "run"]


@dataclass(frozen=True)
class Measuring:
    """How runs of a task are measured.

    Attributes
    ----------
    rows : callable
        From methods, federation, round and whether to use the central test set to rows.
    summarise : callable
        From all rows to a summary.
    at_start : bool
        Whether there is something to measure before the first round.
    """

    rows: Callable[[Mapping[str, Method], Federation, int, bool], list[dict[str, Any]]]
    summarise: Callable[..., Summary]
    at_start: bool


MEASURING = {
    "classification": Measuring(evaluation.models_on_test_sets, of_models, at_start=False),
    "reconstruction": Measuring(
        evaluation.clusters_of_samples, evaluation.of_clusters, at_start=True
    ),
}


def run(
    methods: Mapping[str, Method],
    federation: Federation,
    rounds: int,
    *,
    central_every: int = 1,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Run methods in lockstep from the same initial model.

    Parameters
    ----------
    methods : mapping of str to Method
        The names are those of the history's rows. Methods are set up here and hold their final
        models afterwards.
    federation : Federation
        Trains and evaluates.
    rounds : int
        At least 1. A method that is finished earlier has fewer.
    central_every : int
        Rounds from one evaluation on the central test set to the next, which on a CPU can cost more
        than the training; the last round always has one.
    checkpoint : path, optional
        Where the state after a round is kept, after each round unless writing takes more than a
        twentieth of the time. If the file exists the run goes on from it. It stays when the run is
        complete, until a record holds the result (`records.write`).
    progress : bool
        Whether to show a bar with the round, the temperature and the number of clusters; where
        there is no terminal and no notebook, a line per round.

    Returns
    -------
    History
        Its rows also have ``bytes_down`` and ``bytes_up``: what the method's clients received and
        sent in the round. A method whose training diverges has a row with ``diverged`` as its last
        one, and the others go on without it.

    Raises
    ------
    Diverged
        Every method has diverged.
    checkpoints.CheckpointMismatch
        The checkpoint is damaged, of another run (other methods, options, seed or partition, or
        more rounds), or was made by other code.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    if central_every < 1:
        raise ValueError(f"central_every must be at least 1, not {central_every}")
    if not methods:
        raise ValueError("there is no method to run")
    for method in methods.values():
        method.setup(federation.server, federation.initial())
    measuring = MEASURING[federation.task]
    history, start = History(summarise=measuring.summarise), 0
    keeper = Keeper(checkpoint, fingerprint(methods, federation))
    if keeper.path is not None and keeper.path.exists():
        history, start = keeper.resume(methods, rounds, federation.device)
        history.summarise = measuring.summarise
    elif measuring.at_start:
        history.rows = measuring.rows(methods, federation, -1, True)
    history.revisions.append(revision() or "unknown")
    with Progress(start, rounds, progress) as shown:
        for t in range(start, rounds):
            running = {n: m for n, m in methods.items() if not m.finished and not left(history, n)}
            if not running:
                break
            begin = perf_counter()
            traffic, errors = converse(running, federation, t, history)
            for name, error in errors.items():
                history.rows.append({"method": name, "round": t + 1, "diverged": True})
                if all(left(history, other) for other in methods):
                    raise error
                del running[name]
            central = (t + 1) % central_every == 0 or t + 1 == rounds
            for row in measuring.rows(running, federation, t, central) if running else []:
                exchanged = traffic[row["method"]]
                history.rows.append(row | {"bytes_down": exchanged.down, "bytes_up": exchanged.up})
            history.minutes += (perf_counter() - begin) / 60
            keeper.keep(history, t + 1, methods, last=t + 1 == rounds)
            shown.step(t, progress_text(running))
    return history


def left(history: History, name: str) -> bool:
    """Return whether a method has diverged and left the run."""
    return any(row.get("diverged") and row["method"] == name for row in history.rows)


# --- A round: conversations in lockstep -----------------------------------------------------------


def converse(
    methods: Mapping[str, Method], federation: Federation, t: int, history: History
) -> tuple[dict[str, Traffic], dict[str, Diverged]]:
    """Bring the conversations of all methods in round ``t`` to their ends.

    Returns
    -------
    traffic : dict of str to Traffic
        What each method's clients received and sent.
    errors : dict of str to Diverged
        Why some methods got no further answer.
    """
    conversations: dict[str, Conversation] = {n: m.round(t) for n, m in methods.items()}
    traffic = {name: Traffic() for name in methods}
    errors: dict[str, Diverged] = {}
    waiting: dict[str, Request] = {}

    def advance(name: str, value: Any) -> None:
        try:
            waiting[name] = conversations[name].send(value)
        except StopIteration:
            waiting.pop(name, None)

    for name in methods:
        advance(name, None)
    while waiting:
        asked = next_to_answer(waiting)
        keys = {name: request.jobs.keys() for name, request in asked.items()}
        answers, places, error = answered_once(asked, keys, federation, t, history)
        results = digests(answers) if isinstance(answers, Tensor) else None
        for name, request in asked.items():
            where = [places[key] for key in keys[name]]
            if error is not None and error.broken[where].any():
                errors[name] = of_method(error, request, where, t)
                del waiting[name]
                continue
            # Nobody else refers to what a method gets, so that it may do with it what it likes
            own = answers if len(asked) == 1 else copies(answers, where)
            held = None if results is None else [results[place] for place in where]
            traffic[name].count(request, keys[name], own, held, federation.layout)
            advance(name, own)
    return traffic, errors


def next_to_answer(waiting: Mapping[str, Request]) -> dict[str, Request]:
    """Return requests of one kind.

    Trainings come last: as long as somebody asks for something else they wait, so that methods meet
    at their next training.
    """
    others = [request for request in waiting.values() if not isinstance(request, Train)]
    kind = next(iter(others or waiting.values())).kind()
    return {name: request for name, request in waiting.items() if request.kind() == kind}


def answered_once(
    requests: Mapping[str, Request],
    keys: Mapping[str, Sequence[Hashable]],
    federation: Federation,
    t: int,
    history: History,
) -> tuple[Sequence[Any] | Tensor, dict[Hashable, int], Diverged | None]:
    """Answer requests of one kind, each distinct job once.

    Returns
    -------
    answers : sequence
        The distinct answers; of trainings ``[D, P + Q]``.
    places : dict
        Where the answer to a job with a key lies in them.
    error : Diverged or None
        What happened if not all models are finite.
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
    distinct = joined([part for part in parts if len(part)] or parts[:1])
    try:
        return request.only(distinct).answered_by(federation, t), places, None
    except Diverged as error:
        return error.trained, places, error


def copies(answers: Sequence[Any] | Tensor, where: Sequence[int]) -> Sequence[Any] | Tensor:
    """Return some of the answers, as copies."""
    if isinstance(answers, Tensor):
        everything = list(where) == list(range(len(answers)))
        return answers.clone() if everything else answers[list(where)]
    return copy.deepcopy([answers[place] for place in where])


def of_method(error: Diverged, request: Request, where: Sequence[int], t: int) -> Diverged:
    """Return the error of one method, which asked for some of the trainings."""
    broken = error.broken[list(where)]
    clients = request.jobs.client_of[broken].tolist()
    return Diverged(t, clients, error.trained[list(where)], broken)


@dataclass
class Traffic:
    """Bytes that a method's clients received and sent in a round.

    Models, embeddings and other answers count; labels, seeds and choices do not. A client that has
    received or trained a model in this round is not sent it again.
    """

    down: int = 0
    up: int = 0
    held: set[tuple[Hashable, Hashable]] = field(default_factory=set)

    def count(
        self,
        request: Request,
        keys: Sequence[Any],
        answers: Sequence[Any] | Tensor,
        results: Sequence[bytes] | None,
        layout: Mapping[str, slice],
    ) -> None:
        """Count a request and its answers.

        Parameters
        ----------
        request : Request
            What was asked.
        keys : sequence
            Those of its jobs (`Jobs.keys`).
        answers : sequence
            One per job.
        results : sequence of bytes, optional
            Digests of the answers, where these are models.
        layout : mapping of str to slice
            The federation's.
        """
        jobs = request.jobs
        if not request.exchanged:
            return
        size = jobs.models.shape[1] * jobs.models.element_size()
        for model, client, _, _, anchor in keys:
            for row in (model, anchor):
                if row is not None and (row, client) not in self.held:
                    self.held.add((row, client))
                    self.down += size
        self.down += sum(weights.nbytes for weights in jobs.weights or ())
        if isinstance(request, Train):
            assert results is not None
            clients = jobs.client_of.tolist()
            self.held |= set(zip(results, clients, strict=True))
            values = jobs.models.shape[1]
            if jobs.training is not None and jobs.training.layers:
                sent = (part for name, part in layout.items() if jobs.training.trains(name))
                values = sum(part.stop - part.start for part in sent)
            self.up += len(jobs) * values * jobs.models.element_size()
        elif request.reported:
            self.up += sum(map(num_bytes, answers))


def num_bytes(value: Any) -> int:
    """Return how many bytes an answer takes: arrays as they are, 8 per number."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(num_bytes, value))
    return 8


def progress_text(methods: Mapping[str, Method]) -> str:
    """Return the temperature and each method's number of clusters, for the progress."""
    heats = [m.scalars["temperature"] for m in methods.values() if "temperature" in m.scalars]
    clusters = ", ".join(
        f"{name} {len(method.labels.unique())}"
        for name, method in methods.items()
        if method.labels is not None
    )
    parts = [f"T {heats[0]:.3f}"] if heats else []
    return "; ".join([*parts, *([f"clusters: {clusters}"] if clusters else [])])


# --- Checkpoints ----------------------------------------------------------------------------------


def fingerprint(methods: Mapping[str, Method], federation: Federation) -> str:
    """Return what a run is: methods with options, partition, training, seed, engine and network."""
    parts = [
        *(f"{name}: {method!r}" for name, method in methods.items()),
        federation.partition.hash,
        repr(asdict(federation.training)),
        f"{federation.seed}, {federation.server.clients_per_round} per round",
        f"{federation.engine} on {federation.device.type} in {federation.precision}",
        digests(federation.initial()[None])[0].hex(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Keeper:
    """Writes checkpoints of a run, and reads them.

    Parameters
    ----------
    path : path or None
        The file; None for no checkpoints.
    identity : str
        The run's, see `fingerprint`.
    """

    def __init__(self, path: str | Path | None, identity: str) -> None:
        self.path = None if path is None else Path(path)
        self.identity = identity
        self.cost = 0.0
        self.written = perf_counter()

    def keep(
        self, history: History, rounds: int, methods: Mapping[str, Method], last: bool
    ) -> None:
        """Write the state after ``rounds`` rounds, unless writing takes too much of the time."""
        begin = perf_counter()
        if self.path is None:
            return
        if not last and self.cost > CHECKPOINT_SHARE * (begin - self.written):
            return
        save_checkpoint(self.path, self.identity, history, rounds, methods)
        self.written = perf_counter()
        self.cost = self.written - begin

    def resume(
        self, methods: Mapping[str, Method], rounds: int, device: torch.device
    ) -> tuple[History, int]:
        """Restore the methods; returns the history and the number of rounds already run."""
        assert self.path is not None
        state = checkpoints.load(self.path, self.identity, rounds, device)
        for name, method in methods.items():
            method.restore(state["methods"][name])
        return History(**json.loads(state["history"])), state["rounds"]


def save_checkpoint(
    path: Path, identity: str, history: History, rounds: int, methods: Mapping[str, Method]
) -> None:
    """Write the state after ``rounds`` rounds."""
    kept = {f.name: getattr(history, f.name) for f in fields(history) if f.name != "summarise"}
    state = {
        "rounds": rounds,
        # NumPy's numbers, which a method may put into its scalars, become Python's
        "history": json.dumps(kept, default=lambda number: number.item()),
        "methods": {name: method.state() for name, method in methods.items()},
    }
    checkpoints.save(path, identity, state)
