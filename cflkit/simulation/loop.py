"""The loop over rounds, for one method or for many methods in lockstep.

A round of a method is a conversation of requests and answers. The simulation advances the
conversations of all methods together. A computation that several methods ask for is done once, so
methods that share a starting point share the training. Comparisons are therefore paired by
construction.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from cflkit._project import revision
from cflkit.federation import FederationLike
from cflkit.federation.machine import peak_memory
from cflkit.federation.rows import digests
from cflkit.methods.base import Method
from cflkit.simulation import checkpoints, evaluation
from cflkit.simulation.history import History, Summary, of_models
from cflkit.simulation.lockstep import converse_with_present
from cflkit.simulation.progress import Progress

# The largest share of a run's time that may be spent on writing checkpoints: a second per minute
CHECKPOINT_SHARE = 1 / 60

__all__ = ["History", "run"]


@dataclass(frozen=True)
class Measuring:
    """The way in which runs of a task are measured.

    Attributes
    ----------
    rows : callable
        The function that measures a round and returns the rows of the history. Its arguments are
        the methods, the federation, the round, and the test sets to use.
    summarise : callable
        The function from the table of all rows to the summary.
    at_start : bool
        Whether runs are also measured before the first round.
    """

    rows: Callable[
        [Mapping[str, Method], FederationLike, int, evaluation.TestSets], list[dict[str, Any]]
    ]
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
    federation: FederationLike,
    rounds: int,
    *,
    central_every: int = 1,
    until_settled: bool = False,
    after: History | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Run methods in lockstep from the same initial model.

    Parameters
    ----------
    methods : mapping of str to Method
        The methods by the names that the rows of the history will have. They are set up here, and
        hold their final models afterwards.
    federation : FederationLike
        The federation that trains and evaluates the models.
    rounds : int
        The number of rounds, at least 1. A method that finishes earlier has fewer rounds. Rounds of
        ``after`` count, too.
    central_every : int
        The number of rounds between evaluations on the central test set. On a CPU, these can cost
        more than the training. There is always an evaluation after the last round, also of a run
        that later goes on.
    until_settled : bool
        Whether only the clusters are of interest. A method then leaves the run in the round in
        which its clusters become final (`Method.settled`), without further training, and no model
        is tested.
    after : History, optional
        The results of earlier rounds of these methods, which then go on from there. The federation
        can be another one, in which the same clients have other data.
    checkpoint : path, optional
        The file for the state of the run. It is written after each round, unless writing takes more
        than a second per minute. If the file exists, the run continues from it. The file is kept
        after the last round, until a record holds the result (`records.write`).
    progress : bool
        Whether to show a bar with the round, the temperature and the numbers of clusters. Without a
        terminal or notebook, there is one line per round instead.

    Returns
    -------
    History
        The results. Rows also have ``bytes_down`` and ``bytes_up``, the bytes that the method's
        clients received and sent in the round, and ``trainings``, the number of local trainings
        that the method asked for. A method whose training diverges gets a last row
        with ``diverged``, and the other methods go on without it.

    Raises
    ------
    Diverged
        Every method has diverged.
    ClientsAbsent
        Clients did not answer, and the round cannot go on without them.
    ValueError
        ``rounds`` or ``central_every`` is below 1, there is no method, a method is made for another
        task, a client has no training sample, no client has a test sample, the methods cannot go on
        in this federation, or ``after`` has no rows, or leaves no round to run.
    checkpoints.CheckpointMismatch
        The checkpoint is damaged, was made by other code, or belongs to another run: other methods,
        options, seed, partition, data files, device, engine, precision or perturbation, or more
        rounds.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    if central_every < 1:
        raise ValueError(f"central_every must be at least 1, not {central_every}")
    if not methods:
        raise ValueError("there is no method to run")
    check_tasks(methods, federation.task)
    if empty := (federation.sizes == 0).nonzero().flatten().tolist():
        raise ValueError(f"clients {empty} have no training samples")
    measuring = MEASURING[federation.task]
    if federation.task == "classification" and not until_settled:
        check_tests(federation)
    if after is None:
        for method in methods.values():
            method.setup(federation.server, federation.initial())
        history, start = History(summarise=measuring.summarise), 0
    else:
        if not after.rows:
            raise ValueError("there are no rounds after which to go on: the given history is empty")
        move(methods, federation)
        history, start = copy.deepcopy(after), max(row["round"] for row in after.rows)
    measured = f"central every {central_every}, until settled {until_settled}"
    if after is not None:
        measured += f", after {as_json(after.rows)}"
    keeper = Keeper(checkpoint, fingerprint(methods, federation, measured))
    if keeper.path is not None and keeper.path.exists():
        history, start = keeper.resume(methods, rounds, federation.device)
        history.summarise = measuring.summarise
        history.revisions.append(revision() or "unknown")
    elif start >= rounds:
        raise ValueError(f"{start} rounds have been run, and rounds = {rounds} counts them, too")
    elif after is None:
        history.revisions.append(revision() or "unknown")
        if measuring.at_start:
            history.rows = measuring.rows(methods, federation, -1, "all")
    running = unfinished(methods, history, until_settled)
    with Progress(start, rounds, progress) as shown:
        for t in range(start, rounds):
            if not running:
                break
            begin = perf_counter()
            traffic, errors = converse_with_present(running, federation, t, history, until_settled)
            for name, error in errors.items():
                history.rows.append({"method": name, "round": t + 1, "diverged": True})
                if all(map(history.divergence, methods)):
                    raise error
                del running[name]
            central = (t + 1) % central_every == 0 or t + 1 == rounds
            test_sets: evaluation.TestSets = "all" if central else "own"
            test_sets = "none" if until_settled else test_sets
            for row in measuring.rows(running, federation, t, test_sets) if running else []:
                exchanged = traffic[row["method"]]
                cost = {"bytes_down": exchanged.down, "bytes_up": exchanged.up}
                history.rows.append(row | cost | {"trainings": exchanged.trainings})
            history.minutes += (perf_counter() - begin) / 60
            history.peak_memory = max(history.peak_memory, peak_memory(federation.device))
            shown.step(t, progress_text(running))
            running = unfinished(methods, history, until_settled)
            keeper.keep(history, t + 1, methods, last=t + 1 == rounds or not running)
    return history


def check_tasks(methods: Mapping[str, Method], task: str) -> None:
    """Raise a `ValueError` if a method is made for federations with another task."""
    for name, method in methods.items():
        if method.task != task:
            raise ValueError(
                f"{name} is made for {method.task}, and this federation has the task {task}: give "
                f"it task={method.task!r} with a network for it, or leave the method out"
            )


def check_tests(federation: FederationLike) -> None:
    """Raise a `ValueError` if no client has test samples, so that nothing could be measured."""
    if not any(federation.num_samples(client, "test") for client in range(federation.clients)):
        raise ValueError(
            "no client has test samples, on which its model could be measured; give the partition "
            "a test set, or set until_settled to look at clusters alone"
        )


def move(methods: Mapping[str, Method], federation: FederationLike) -> None:
    """Let methods that have run in one federation go on in another one.

    Raises
    ------
    ValueError
        A method has not run yet, or the federation has other clients or another network.
    """
    for name, method in methods.items():
        old, new = getattr(method, "server", None), federation.server
        if old is None or (old.clients, old.layout) != (new.clients, new.layout):
            raise ValueError(
                f"{name} cannot go on here: it must have run with {new.clients} clients, and with "
                "this network"
            )
        method.enter(new)


def unfinished(
    methods: Mapping[str, Method], history: History, until_settled: bool
) -> dict[str, Method]:
    """Return the methods that need another round."""
    measured = {row["method"] for row in history.rows}
    return {
        name: method
        for name, method in methods.items()
        if not method.finished
        and not history.divergence(name)
        # A method that is settled from the start has one row, too
        and not (until_settled and method.settled and name in measured)
    }


def progress_text(methods: Mapping[str, Method]) -> str:
    """Build the text that shows the temperature and each method's number of clusters."""
    heats = [m.scalars["temperature"] for m in methods.values() if "temperature" in m.scalars]
    clusters = ", ".join(
        f"{name} {len(method.labels.unique())}"
        for name, method in methods.items()
        if method.labels is not None
    )
    parts = [f"T {heats[0]:.3f}"] if heats else []
    return "; ".join([*parts, *([f"clusters: {clusters}"] if clusters else [])])


# --- Checkpoints ----------------------------------------------------------------------------------


def fingerprint(methods: Mapping[str, Method], federation: FederationLike, measured: str) -> str:
    """Compute the identity of a run, a hash of all that must be the same for it to continue.

    These are the methods with their options, the partition, the training, the seed, the number of
    clients per round, the engine with its device, precision, perturbation and privacy, the initial
    model, and what is measured when.
    """
    parts = [
        *(f"{name}: {method!r}" for name, method in methods.items()),
        federation.identity,
        repr(asdict(federation.training)),
        f"{federation.seed}, {federation.server.clients_per_round} per round",
        f"{federation.engine} on {federation.device.type} in {federation.precision}",
        f"perturbation {federation.perturbation}",
        *([] if federation.privacy is None else [repr(federation.privacy)]),
        digests(federation.initial()[None])[0].hex(),
        measured,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Keeper:
    """A writer and reader of a run's checkpoints.

    Parameters
    ----------
    path : path or None
        The file; None for no checkpoints.
    identity : str
        The identity of the run, see `fingerprint`.
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
        """Restore the methods; return the history and the number of rounds already run."""
        assert self.path is not None
        state = checkpoints.load(self.path, self.identity, rounds, device)
        for name, method in methods.items():
            method.restore(state["methods"][name])
        return History(**json.loads(state["history"])), state["rounds"]


def as_json(value: Any) -> str:
    """Write as JSON; a method may put NumPy numbers into its scalars, and JSON needs Python's."""
    return json.dumps(value, default=lambda number: number.item())


def save_checkpoint(
    path: Path, identity: str, history: History, rounds: int, methods: Mapping[str, Method]
) -> None:
    """Write the state of the history and the methods after ``rounds`` rounds."""
    kept = {f.name: getattr(history, f.name) for f in fields(history) if f.name != "summarise"}
    state = {
        "rounds": rounds,
        "history": as_json(kept),
        "methods": {name: method.state() for name, method in methods.items()},
    }
    checkpoints.save(path, identity, state)
