"""Runs side by side: each is a process of its own, and a failure ends only its own run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from time import perf_counter

from cflkit._project import PROJECT
from cflkit.reproduce import notebooks

Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Command:
    """One call of ``python -m cflkit``.

    Attributes
    ----------
    name : str
        The name of the run, by which its outcome is reported.
    arguments : sequence of str
        What follows ``python -m cflkit``.
    environment : mapping of str to str
        The variables in which its environment differs from ours.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def run(commands: Sequence[Command], side_by_side: int = 1) -> Iterator[tuple[Command, str]]:
    """Run commands, print a line as each ends, and yield it with the reason of its failure.

    Parameters
    ----------
    commands : sequence of Command
        The commands, in the order in which they begin.
    side_by_side : int
        The largest number of processes at a time, which share the cores.

    Yields
    ------
    tuple of Command and str
        Each command once it has ended, and why it failed; an empty string if it did not.
    """
    side_by_side = max(1, min(side_by_side, len(commands)))
    pool, running, ended = ThreadPoolExecutor(side_by_side), set[Process](), threading.Event()
    try:
        begun = {
            pool.submit(run_one, command, side_by_side, running, ended): command
            for command in commands
        }
        for number, future in enumerate(as_completed(begun), 1):
            command, (reason, minutes) = begun[future], future.result()
            outcome = f"failed  {command.name}: {reason}" if reason else f"done  {command.name}"
            print(f"[{number}/{len(commands)}] {outcome}  {minutes:.1f} min", flush=True)
            yield command, reason
    # A signal ends us alone, here or where outcomes are read; Ctrl-C interrupts the processes, too
    except (SystemExit, GeneratorExit):
        pool.shutdown(wait=False, cancel_futures=True)
        ended.set()
        for process in tuple(running):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def run_one(
    command: Command, side_by_side: int, running: set[Process], ended: threading.Event
) -> tuple[str, float]:
    """Run a command; return the reason of a failure (empty without one) and the minutes.

    Its process is in ``running`` until it has ended. If it starts after ``ended`` is set, which is
    too late for whoever ends the running processes, it is ended here.
    """
    from cflkit.federation import usable_cores  # loads torch, which listing a grid does not need

    begin = perf_counter()
    try:
        threads = str(max(1, usable_cores() // side_by_side))
    except ValueError as error:  # CFLKIT_THREADS is no number
        return str(error), 0.0
    share = {"CFLKIT_THREADS": threads, "OMP_NUM_THREADS": threads}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "cflkit", *command.arguments],
            cwd=PROJECT,
            env=os.environ | notebooks.places() | share | dict(command.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        return f"cannot be started ({error})", 0.0
    running.add(process)
    if ended.is_set():
        process.terminate()
    _, told = process.communicate()
    running.remove(process)
    minutes = (perf_counter() - begin) / 60
    if process.returncode == 0:
        return "", minutes
    lines = told.split("\n") if process.returncode == 2 else []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    unexpected = f"exit status {process.returncode}, last output {told.strip()[-200:]!r}"
    return (errors or [unexpected])[-1], minutes
