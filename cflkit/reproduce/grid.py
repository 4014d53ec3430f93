"""Grids of runs: list the runs that a table needs, and run those that have no record.

A grid file is in the folder of a paper's parameter files. It names a notebook and has lists of
values. Each combination of these values is a run. The grid file also gives the parameter file of
each run::

    notebook: 03b_ocfl_controls.ipynb
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

import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from pydantic import Field

from cflkit._bounds import Mistake
from cflkit._project import KIT
from cflkit.reproduce import notebooks, records
from cflkit.reproduce.parameters import ParameterError, Parameters, choices, matching
from cflkit.reproduce.values import as_yaml, options, parsed, read_yaml

NOTEBOOKS = KIT / "notebooks"
PARAMS = NOTEBOOKS / "params"


class GridFile(Parameters):
    """The contents of a grid file."""

    notebook: str
    file: str
    alike: dict[str, str] = Field(default={})
    given: dict[str, Any] = Field(default={})
    grids: list[dict[str, list[str | int | float | bool | list[str]]]]

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield the combinations of the lists."""
        for lists in self.grids:
            for values in itertools.product(*lists.values()):
                yield dict(zip(lists, values, strict=True))


@dataclass(frozen=True)
class Job:
    """One run of a grid: its id, the notebook, the parameter file, and values beside it."""

    run: str
    notebook: Path
    file: Path
    values: dict[str, Any]

    @property
    def status(self) -> str:
        """Return ``done`` (there is a record), ``begun`` (there is a checkpoint) or ``missing``."""
        if records.folder(self.run) is not None:
            return "done"
        return "begun" if records.checkpoint(self.run).exists() else "missing"

    def command(self) -> list[str]:
        """Build the arguments of ``python -m cflkit`` that make the record if it is missing."""
        notebook, file = map(records.display_path, (self.notebook, self.file))
        return ["run", notebook, "-f", file, *options(self.values), "--missing", "--record-only"]


def tables() -> list[str]:
    """Return the names of all grids, as ``paper/table``."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PARAMS.glob("[!.]*/[!.]*.yaml"))


def about(table: str) -> str:
    """Return the first sentence of the comment with which a grid's file begins."""
    lines = (PARAMS / f"{table}.yaml").read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return re.split(r"(?<=[a-z)\d])[.:] ", text)[0].rstrip(".")


def jobs_of(table: str, where: Mapping[str, str] | None = None) -> list[Job]:
    """Return the runs of a grid that have the values ``where`` (YAML), in the order of its file.

    Raises
    ------
    ParameterError
        There is no such grid, it does not have a name or a value, or a parameter file is missing or
        refused by the notebook.
    """
    if table not in tables():
        raise ParameterError(f"no grid {table!r}; {choices(table, tables())}")
    path = PARAMS / f"{table}.yaml"
    grid = GridFile.checked(read_yaml(path))
    notebook, read = notebooks.read_notebook(NOTEBOOKS / grid.notebook), cache(read_yaml)
    usual = notebook.defaults
    used = {*usual, *grid.alike.values(), *(name for _, name, _, _ in Formatter().parse(grid.file))}
    if unused := sorted({name for lists in grid.grids for name in lists} - used):
        raise ParameterError(f"{table}: {', '.join(unused)} is neither a parameter nor in 'file'")
    jobs, chosen = [], parsed(where or {})
    for point in matching(f"run of {table}", list(grid.points()), chosen, dict):
        try:
            file = path.parent / grid.file.format(**point)
            same = {name: point[other] for name, other in grid.alike.items()}
        except KeyError as error:
            absent = f"a grid has no {error.args[0]}, which file or alike needs"
            raise ParameterError(absent) from error
        listed = read(file)  # once, since many runs have the same
        values = {n: v for n, v in point.items() if n in usual} | same | grid.given
        _, run = notebook.check(listed | values, quick=True)
        if run is None:
            raise ParameterError(f"{grid.notebook} writes no record")
        differing = {n: v for n, v in values.items() if v != listed.get(n, usual[n])}
        jobs.append(Job(records.run_id(run), notebook.path, file, differing))
    return jobs


def run_jobs(jobs: Sequence[Job]) -> None:
    """Run jobs that have no record, one after another, and print how each ended.

    A run that was interrupted continues from its checkpoint. Several runs at a time, and several
    machines, are the task of Snakemake.
    """
    for number, job in enumerate(jobs, 1):
        begun, outcome = time.monotonic(), "done"
        texts = {name: as_yaml(value) for name, value in job.values.items()}
        try:
            notebooks.run(job.notebook, texts, job.file, missing=True, record_only=True)
        except (Mistake, OSError) as error:  # it does not end the others
            outcome = f"failed ({' '.join(str(error).split())})"
        minutes = (time.monotonic() - begun) / 60
        print(f"[{number}/{len(jobs)}] {job.run}: {outcome}  {minutes:.1f} min", flush=True)
