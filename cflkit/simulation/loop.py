"""The loop over rounds, for one method or for many methods in lockstep.

A round of a method is a conversation of requests and answers. The loop advances the conversations
of all methods together (`lockstep`). A computation that several methods ask for is done once, so
methods that share a starting point share the training. Comparisons are therefore paired by
construction.
"""

import copy
import os
import sys
from collections.abc import Collection
from numbers import Integral
from pathlib import Path
from time import perf_counter

import torch
from tqdm.auto import tqdm

from cflkit._project import state
from cflkit.federation import Federation, Send, Server, Train
from cflkit.methods.base import Measuring, Method, Methods, TestSets
from cflkit.simulation.checkpoints import Keeper
from cflkit.simulation.evaluation import ON_TEST_SETS, History
from cflkit.simulation.lockstep import converse
from cflkit.simulation.mixing import Watched


def run(
    methods: Methods,
    federation: Federation,
    rounds: int,
    *,
    central_every: int = 1,
    until_settled: bool = False,
    after: History | None = None,
    temperature_of: Collection[str] = (),
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Run methods in lockstep from the same initial model.

    Parameters
    ----------
    methods : mapping of str to Method
        The methods by the names that the rows of the history will have. They are set up here, and
        hold their final models afterwards.
    federation : Federation
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
    temperature_of : collection of str
        The methods that get a column ``temperature``: that of their clients' updates, which OCFL's
        trigger would see (`divergence.temperature`). It compares all pairs of clients.
    checkpoint : path, optional
        The file for the state of the run. It is written after each round, unless writing takes more
        than a second per minute. If the file exists, the run continues from it. The file is kept
        after the last round.
    progress : bool
        Whether to show a bar with the round, the temperature and the numbers of clusters. Without a
        terminal or notebook, there is one line per round instead.

    Returns
    -------
    History
        The results. Rows also have ``bytes_down`` and ``bytes_up``, the bytes that the method's
        clients received and sent in the round, and ``trainings``, the number of different
        local trainings that the method asked for in it. A method whose training diverges gets a
        last row with ``diverged``, and the other methods go on without it.

    Raises
    ------
    Diverged
        Every method has diverged.
    ClientsAbsent
        Clients did not answer, and the round cannot go on without them.
    ValueError
        ``rounds`` or ``central_every`` is below 1; there is no method, or none of a name in
        ``temperature_of``; a method is made for another task; a client has no training sample, or
        no client has a test sample; the methods cannot go on in this federation; or ``after`` has
        no rows, or leaves no round to run.
    checkpoints.CheckpointMismatch
        The checkpoint is damaged, was made by other code, or belongs to another run: other methods,
        options, seed, partition, data files, device, engine or hooks, or more rounds.
    """
    for name, value in (("rounds", rounds), ("central_every", central_every)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be at least 1 and whole, not {value}")
    check_runnable(methods, federation, until_settled)
    if absent := set(temperature_of) - methods.keys():
        raise ValueError(f"temperature_of names {sorted(absent)}, which are no methods of the run")
    measuring = next(iter(methods.values())).measuring or ON_TEST_SETS
    plan = f"central every {central_every}, until settled {until_settled}, {sorted(temperature_of)}"
    modules = modules_of(methods, federation)
    keeper = Keeper(checkpoint, methods, federation, plan, after, modules) if checkpoint else None
    history, start = begin(methods, federation, rounds, measuring, after, keeper)
    history.modules = sorted({*history.modules, *modules})
    running = unfinished(methods, history, until_settled)
    shown = Progress(start, rounds, progress)
    with shown.bar:
        for t in range(start, rounds):
            if not running:
                break
            began = perf_counter()
            traffic, errors = converse(
                running, federation, t, history, until_settled, temperature_of
            )
            for name in errors:
                history.rows.append({"method": name, "round": t + 1, "diverged": True})
                del running[name]
            if errors and diverged(history) >= methods.keys():
                raise errors.popitem()[1]
            central = (t + 1) % central_every == 0 or t + 1 == rounds
            test_sets: TestSets = "none" if until_settled else ("all" if central else "own")
            rows = measuring.rows(running, federation, t, test_sets)
            history.rows += [row | traffic[row["method"]].cost for row in rows]
            history.minutes += (perf_counter() - began) / 60
            history.peak_memory = max(history.peak_memory, peak_memory(federation.device))
            shown.step(t, running)
            running = unfinished(methods, history, until_settled)
            if keeper:
                keeper.keep(history, t + 1, methods, last=t + 1 == rounds or not running)
    return history


def check_runnable(methods: Methods, federation: Federation, until_settled: bool) -> None:
    """Raise a `ValueError` if the methods cannot run, or could not be measured."""
    if not methods:
        raise ValueError("there is no method to run")
    hidden = any(hook.models_only for hook in federation.after_training)
    for name, method in methods.items():
        if method.task != federation.task:
            raise ValueError(
                f"{name} is made for {method.task}, and this federation has the task "
                f"{federation.task}: give it a network for {method.task}, or leave the method out"
            )
        if hidden and any(not isinstance(request, Train | Send) for request in method.asks()):
            raise ValueError(
                f"{name}: what is asked of clients has no noise, and would tell about their data; "
                "leave the method out, or build the federation without privacy"
            )
    if empty := (federation.sizes == 0).nonzero().flatten().tolist():
        raise ValueError(f"clients {empty} have no training samples")
    tested = federation.task != "classification" or until_settled
    if not tested and not any(federation.num_samples(c, "test") for c in range(federation.clients)):
        raise ValueError(
            "no client has test samples, on which its model could be measured; give the partition "
            "a test set, or set until_settled to look at clusters alone"
        )


def modules_of(methods: Methods, federation: Federation) -> list[str]:
    """Return the modules in which a run begins; what they import can change its numbers, too."""
    parts = *methods.values(), federation, *federation.after_training
    watched = (part.method for part in parts if isinstance(part, Watched))
    return sorted({"cflkit.simulation"} | {type(part).__module__ for part in (*parts, *watched)})


def begin(
    methods: Methods,
    federation: Federation,
    rounds: int,
    measuring: Measuring,
    after: History | None,
    keeper: Keeper | None,
) -> tuple[History, int]:
    """Set methods up, or let them go on; return the history and the number of its rounds.

    Raises
    ------
    ValueError
        The given history is empty, no round is left to run, a method has not run yet, or the
        federation has other clients or another network.
    """
    if after is None:
        for method in methods.values():
            method.setup(federation.server, federation.initial())
        history, start = History(), 0
    else:
        if not after.rows:
            raise ValueError("there are no rounds after which to go on: the given history is empty")
        for name, method in methods.items():
            move(name, method, federation.server)
        last = {row["method"]: row["round"] for row in after.rows}
        history, start = copy.deepcopy(after), max(last.values())
        going_on = unfinished(methods, after, until_settled=False)
        if behind := [name for name in going_on if last.get(name, start) < start]:
            raise ValueError(
                f"{behind} have fewer rounds than {start}, as after until_settled: they cannot go "
                "on beside the others"
            )
    if resumed := keeper and keeper.resume(methods, rounds, federation.device):
        history, start = resumed
    elif start >= rounds:
        raise ValueError(f"{start} rounds have been run, and rounds = {rounds} counts them, too")
    elif measuring.at_start and after is None:
        history.rows = measuring.rows(methods, federation, -1, "all")
    if resumed or after is None:
        history.revisions.append(state()[0] or "unknown")
    history.summarise = measuring.summarise
    return history, start


def move(name: str, method: Method, server: Server) -> None:
    """Let a method that has run in one federation go on in that of another server."""
    old = getattr(method, "server", None)
    if old is None or (old.clients, old.layout) != (server.clients, server.layout):
        raise ValueError(
            f"{name} cannot go on here: it must have run with {server.clients} clients, and with "
            "this network"
        )
    method.enter(server)


def diverged(history: History) -> set[str]:
    """Return the methods that have diverged."""
    return {row["method"] for row in history.rows if row.get("diverged")}


def unfinished(methods: Methods, history: History, until_settled: bool) -> dict[str, Method]:
    """Return the methods that need another round."""
    measured, left = {row["method"] for row in history.rows}, diverged(history)
    return {
        name: method
        for name, method in methods.items()
        if not (method.finished or name in left)
        # A method that is settled from the start has one row, too
        and not (until_settled and method.settled and name in measured)
    }


def peak_memory(device: torch.device) -> float:
    """Return the largest memory in GiB that this process has had, of the GPU if it computes there.

    Except on Linux, it is the present memory of the process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent process had
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):  # gVisor has none
                return int(line.split()[1]) / 2**20
    import psutil

    return psutil.Process().memory_info().rss / 2**30


class Progress:
    """A count of rounds on a bar, or in one line per round where nobody would see a bar.

    ``CFLKIT_PROGRESS=lines`` asks for lines. `python -m cflkit run` sets it for its kernel.
    """

    def __init__(self, start: int, rounds: int, shown: bool) -> None:
        interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
        lines = os.environ.get("CFLKIT_PROGRESS") == "lines" or not interactive
        self.start, self.rounds, self.lines = start, rounds, shown and lines
        self.begin = perf_counter()
        if self.lines and start:
            print(f"continues after round {start} of {rounds}", file=sys.stderr, flush=True)
        self.bar = tqdm(total=rounds, initial=start, disable=not shown or lines, unit="round")

    def step(self, t: int, methods: Methods) -> None:
        """Show that round ``t`` (from 0) is over, with what the methods found."""
        if self.lines:
            seconds = (perf_counter() - self.begin) / (t + 1 - self.start)
            about = f"round {t + 1} of {self.rounds} ({seconds:.1f} s per round)"
            print(f"{about}; {found_by(methods)}", file=sys.stderr, flush=True)
        elif not self.bar.disable:
            self.bar.set_postfix_str(found_by(methods), refresh=False)
            self.bar.update()


def found_by(methods: Methods) -> str:
    """Build the text that shows the temperature and each method's number of clusters."""
    heats = [m.scalars["temperature"] for m in methods.values() if "temperature" in m.scalars]
    parts = [f"T {heat:.3f}" for heat in heats[:1]]
    counts = [f"{n} {len(m.labels.unique())}" for n, m in methods.items() if m.labels is not None]
    return "; ".join(parts + ([f"clusters: {', '.join(counts)}"] if counts else []))
