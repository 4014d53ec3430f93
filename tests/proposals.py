"""What to run next: missing runs of the grids that fit this machine, the most telling first.

What a run needs is told by a record whose parameters differ in nothing that costs time. A run
without such a record is not proposed. ``python tests/proposals.py --minutes 30`` prints the runs
with their commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import click
import pandas as pd
import psutil
import torch

from cflkit.reproduce import grid, ledger, notebooks, records
from cflkit.reproduce.grid import Job
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.records import AS_PUBLISHED, Record
from cflkit.reproduce.values import read_yaml

SEEDS = {"seed", "partition_seed"}
# Parameters on which the minutes and the memory of a run hardly depend
CHEAP = SEEDS | {"overlap", "balance", "version", "dirtiness", "epsilon"}


@dataclass(frozen=True)
class Proposal:
    """A missing run, a record of which it differs in nothing costly, and what it would tell."""

    job: Job
    like: Record
    seeds: int  # records that differ from it in their seeds alone
    numbers: int  # published numbers of its scenario that no run at its scale has, at most

    @property
    def minutes(self) -> float:
        """Return the minutes that the other run took."""
        return float(self.like.provenance["minutes"])

    def __str__(self) -> str:
        gib = self.like.provenance["peak_memory_gib"]
        known = "memory unknown" if gib is None else f"{gib:.1f} GiB"
        device = self.like.provenance["device"]
        new = f"up to {self.numbers} new numbers"
        told = new if self.numbers else f"a further seed beside {self.seeds}"
        return f"{told}: about {self.minutes:.0f} minutes, {known}, {device}"


def proposals(minutes: float, cuda: bool) -> list[Proposal]:
    """Return the missing runs of all grids that take so many minutes at most.

    First come runs that could give many published numbers their first run at this scale, then
    further seeds of the scenarios with the fewest, and among equals the shortest. There is one
    proposal of runs that differ in their seeds alone.
    """
    memory = psutil.virtual_memory().total / 2**30
    done = records.find_records()
    book = ledger.read()
    found: dict[str, Proposal] = {}
    read_once = cache(notebooks.read_notebook)
    for job in (job for table in grid.tables() for job in grid.jobs_of(table)):
        if job.status == "done":
            continue
        _, run = read_once(job.notebook).check(read_yaml(job.file) | job.values)
        if run is None or (like := nearest(run.model_dump(), run.folder, done)) is None:
            continue
        needs = like.provenance
        if needs["minutes"] > minutes or (needs["peak_memory_gib"] or 0) > memory:
            continue
        if needs["device"] == "cpu" or cuda:
            own = run.model_dump()
            twins = [r for r in done if not differing(own, r) - SEEDS]
            numbers = 0 if twins else missing_numbers(replace(like, parameters=own), book)
            alike = str(sorted((name, own[name]) for name in own.keys() - SEEDS))
            found.setdefault(alike, Proposal(job, like, len(twins), numbers))
    return sorted(found.values(), key=lambda one: (-one.numbers, one.seeds, one.minutes))


def differing(parameters: Mapping[str, Any], record: Record) -> set[str]:
    """Return the names of the parameters in which a run differs from a record."""
    return {name for name, value in parameters.items() if record.parameters.get(name) != value}


def nearest(parameters: Mapping[str, Any], folder: str, done: list[Record]) -> Record | None:
    """Return the record that differs in the fewest parameters, and in no costly one."""
    own = {r.id: differing(parameters, r) for r in done if r.paper == folder}
    fitting = [r for r in done if r.paper == folder and own[r.id] <= CHEAP]
    return min(fitting, key=lambda r: (len(own[r.id]), r.provenance["minutes"]), default=None)


def missing_numbers(run: Record, book: pd.DataFrame) -> int:
    """Count the published numbers of a run's scenario and methods that no run at its scale has."""
    methods = {name.removesuffix(AS_PUBLISHED) for name in run.summary}
    count = 0
    for name, paper in PAPERS.items():
        if (scale := ledger.scale(run, name)) is None:
            continue
        prefix, _ = ledger.SCALES[scale]
        cells = book[(book["paper"] == name) & (book[f"{prefix}status"] == "not run")]
        wanted = ledger.scenario_of(run, name)
        for cell in cells.to_dict("records"):
            here = paper.methods.get(cell["method"]) in methods
            count += here and ledger.scenario_in(cell) == wanted
    return count


@click.command()
@click.option("--minutes", type=float, default=90, help="The most that a run may take.")
@click.option("-n", "--count", type=int, default=5, help="How many to propose.")
def propose(minutes: float, count: int) -> None:
    """Propose missing runs that fit this machine."""
    every = proposals(minutes, torch.cuda.is_available())
    for proposal in every[:count]:
        command = shlex.join(["python", "-m", "cflkit", *proposal.job.command()])
        print(f"{proposal}\n  {command}")
    print(f"{min(count, len(every))} of {len(every)} missing runs that fit")


if __name__ == "__main__":
    propose()
