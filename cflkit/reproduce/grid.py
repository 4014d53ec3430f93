"""Grids of runs: list the runs that a table needs, and run those that have no record.

A grid file is in the folder of a paper's parameter files. It names a notebook and has lists of
values. Each combination of these values is a run. The grid file also gives the parameter file of
each run::

    notebook: 03_ocfl_temperature.ipynb
    file: "{scale}/{dataset}_{clients}_{overlap}_{balance}.yaml"
    alike: {partition_seed: seed}
    grids:
      - scale: [reduced]
        dataset: [mnist, fashion-mnist]
        ...

Names that are parameters of the notebook are passed on to it. Other names only select the file.
``alike`` gives a parameter the value of another name. ``given`` has parameters of all runs, which
replace those of the files. A run executes only those cells of the notebook that its record needs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Self

import filelock
from pydantic import Field, model_validator

from cflkit.reproduce import batch, notebooks, records
from cflkit.reproduce.parameters import ParameterError, Parameters
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import as_yaml, parse_yaml, read_yaml

NOTEBOOKS = PROJECT / "notebooks"
PARAMS = NOTEBOOKS / "params"


class GridFile(Parameters):
    """The contents of a grid file."""

    notebook: str
    file: str
    alike: dict[str, str] = Field(default={})
    given: dict[str, Any] = Field(default={})
    grids: list[dict[str, list[str | int | float | bool]]]

    @model_validator(mode="after")
    def known_names(self) -> Self:
        """Check that every grid has all names to which ``file`` and ``alike`` refer."""
        needed = names_in(self.file) | set(self.alike.values())
        for lists in self.grids:
            absent = sorted(needed - set(lists))
            if absent:
                raise ValueError(f"a grid has no {', '.join(absent)}, which file or alike needs")
        return self


@dataclass(frozen=True)
class Job:
    """One run of a grid.

    Attributes
    ----------
    run : str
        The id of its record.
    notebook, file : Path
        The notebook to run, and the parameter file.
    given : dict
        Parameters that replace those of the file.
    """

    run: str
    notebook: Path
    file: Path
    given: dict[str, Any]

    @property
    def status(self) -> str:
        """Return ``done`` (there is a record), ``begun`` (there is a checkpoint) or ``missing``."""
        if records.folder(self.run) is not None:
            return "done"
        return "begun" if records.checkpoint(self.run).exists() else "missing"

    def command(self) -> list[str]:
        """Build the arguments of ``python -m cflkit`` that make the record if it is missing."""
        given = [w for name, value in self.given.items() for w in ("-p", name, as_yaml(value))]
        notebook, file = map(records.display_path, (self.notebook, self.file))
        return ["run", notebook, "-f", file, *given, "--missing", "--record-only"]


def names_in(pattern: str) -> set[str]:
    """Return the names in braces in a pattern such as ``"{scale}/{dataset}.yaml"``."""
    return {name for _, name, _, _ in Formatter().parse(pattern) if name}


def tables() -> list[str]:
    """Return the names of all grids, as ``paper/table``."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PARAMS.glob("*/*.yaml"))


def read(table: str, where: Mapping[str, str] | None = None) -> list[Job]:
    """Read the runs of a grid in the order of its file.

    Parameters
    ----------
    table : str
        One of `tables`.
    where : mapping of str to str, optional
        Values by the names in the grid file; only runs that have them are returned.

    Raises
    ------
    ParameterError
        There is no such grid, it does not have a name or a value, or a parameter file is missing or
        refused by the notebook.
    """
    if table not in tables():
        raise ParameterError(f"no grid {table!r}; the grids are {', '.join(tables())}")
    path = PARAMS / f"{table}.yaml"
    try:
        grid = GridFile.checked(read_yaml(path))
    except ParameterError as error:
        raise ParameterError(f"{table}: {error}") from error
    notebook = NOTEBOOKS / grid.notebook
    usual = notebooks.defaults(notebooks.read(notebook))
    used = {*usual, *names_in(grid.file), *grid.alike.values()}
    if unused := sorted({name for lists in grid.grids for name in lists} - used):
        raise ParameterError(f"{table}: {', '.join(unused)} is neither a parameter nor in 'file'")
    jobs = []
    for point in points(grid, where or {}):
        file = path.parent / grid.file.format(**point)
        listed = read_yaml(file)
        wanted = {name: value for name, value in point.items() if name in usual}
        wanted |= {name: point[other] for name, other in grid.alike.items()} | grid.given
        checked = notebooks.check_parameters(notebook, listed | wanted)
        run = notebooks.recorded(notebook, checked)
        if run is None:
            raise ParameterError(f"{grid.notebook} writes no record")
        given = {n: v for n, v in wanted.items() if v != listed.get(n, usual[n])}
        jobs.append(Job(records.run_id(run), notebook, file, given))
    if not jobs:
        raise ParameterError(
            f"no run of {table} has {dict(where or {})}; {values(grid, where or {})}"
        )
    return jobs


def values(grid: GridFile, names: Iterable[str]) -> str:
    """Tell which values these names have in a grid, for a message."""
    lists = {
        name: dict.fromkeys(value for lists in grid.grids for value in lists.get(name, []))
        for name in names
    }
    return "; ".join(f"{name} is {', '.join(map(str, own))}" for name, own in lists.items())


def points(grid: GridFile, where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the combinations of a grid's lists that have the values in ``where`` (YAML texts).

    Raises
    ------
    ParameterError
        The grid has no list with a name in ``where``.
    """
    known = {name for lists in grid.grids for name in lists}
    unknown = [name for name in where if name not in known]
    if unknown:
        raise ParameterError(
            f"the grid has no {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}"
        )
    wanted = {name: parse_yaml(name, text) for name, text in where.items()}
    for lists in grid.grids:
        for values in itertools.product(*lists.values()):
            point = dict(zip(lists, values, strict=True))
            if all(point.get(name) == value for name, value in wanted.items()):
                yield point


def run(jobs: Sequence[Job], side_by_side: int = 1) -> dict[str, str]:
    """Run the jobs that have no record, each in its own process.

    A run that fails does not end the others. A run that was interrupted continues from its
    checkpoint.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs; those that are done are not run again.
    side_by_side : int
        The number of runs at the same time, which share the cores.

    Returns
    -------
    dict of str to str
        The reasons of the runs that failed, by their ids.
    """
    left = []
    for job in jobs:
        if job.status != "done":
            left.append(job)
        elif records.checkpoint(job.run).exists():  # the process was killed after writing it
            with contextlib.suppress(filelock.Timeout), notebooks.run_lock(job.run):
                records.remove_leftovers(job.run)
    commands = [batch.Command(job.run, job.command()) for job in left]
    return {command.name: reason for command, reason in batch.run(commands, side_by_side) if reason}
