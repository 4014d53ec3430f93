"""Whether a lesson's claims hold elsewhere: other seeds, another engine, the last bit perturbed.

``python tests/robust.py 03 --seeds 5`` counts the claims of lesson 03. It runs a copy of the lesson
once per seed, each time in a process of its own, and reads the claims from the executed notebooks.
The copy has one more cell in front, which sets the engine or the perturbation. What has run is kept
in ``data/cache/robustness``, so that an interrupted measurement goes on where it stopped.
`write_counts` puts the counts into a table with one row per notebook, setting and claim;
``data/robustness.csv`` is the committed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import filelock
import nbformat
import pandas as pd

from cflkit import _project
from cflkit._bounds import MOST
from cflkit._project import PROJECT, check_regular
from cflkit.commands import COUNT, NOTEBOOK, pairs
from cflkit.federation import usable_cores
from cflkit.reproduce import claims, notebooks, records
from cflkit.reproduce.notebooks import Notebook, NotebookError, read_notebook
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.perturbation import Perturbation
from cflkit.reproduce.values import as_yaml, options, parsed

# The columns of the table of counts
COLUMNS = ("notebook", "setting", "claim", "runs", "held", "failed_seeds", "seeds", "given", "code")
# Code that gives all federations of a process another engine, and refuses the usual one, since
# claims would then be counted twice over the same runs
ANOTHER_ENGINE = """
from cflkit.federation import machine
usual = machine.engine_to_use
def another(given, device):
    if usual(given, device) == {0!r}:
        raise ValueError("the engine {0!r} is this federation's: count with another one")
    return usual({0!r}, device)
machine.engine_to_use = another
"""
# Code that perturbs what all federations of a process train
PERTURBED = """
from cflkit.federation import Federation
from cflkit.reproduce.perturbation import Perturbation
Federation.after_training = ({0!r},)
"""


def first_cell(setting: str, seed: int) -> str:
    """Return the code of the cell in front of a lesson."""
    if setting == "perturbed":
        return PERTURBED.format(Perturbation(seed))
    return "" if setting == "default" else ANOTHER_ENGINE.format(setting)


@dataclass(frozen=True)
class Measurement:
    """A lesson with a parameter ``seed``, and what is other than usual in all of its runs."""

    lesson: Notebook  # with a cell tagged ``claims``
    given: dict[str, Any]  # other values of its parameters
    setting: str = "default"  # one of `claims.SETTINGS`

    @property
    def code(self) -> str:
        """Return 12 digits that differ when the package's code or the lesson's differs."""
        code = _project.digest_of_code(*_project.SOURCES) + self.lesson.digest
        return hashlib.sha256(code.encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Return where the claims of finished runs are kept, one file per seed."""
        given = hashlib.sha256(json.dumps(self.given, sort_keys=True).encode()).hexdigest()[:8]
        place = records.cache().resolve() / "robustness" / self.lesson.path.stem
        return place / f"{self.setting}-{given}-{self.code}"

    def copy(self, seed: int) -> Path:
        """Write a copy of the lesson with one more cell in front; return its path."""
        first, tree = first_cell(self.setting, seed + 1), deepcopy(self.lesson.tree)
        path = self.folder / f"{seed}.work" / self.lesson.path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        tree.cells.insert(0, nbformat.v4.new_code_cell(first, id="first"))
        nbformat.write(tree, path)
        return path

    def run(self, seed: int, threads: int) -> str:
        """Run a copy in a process of its own, and keep its claims; return why it failed, if so.

        The folder of a run that failed stays, since the reason names the notebook in it.
        """
        path = self.copy(seed)
        work, executed = path.parent, path.with_name("executed.ipynb")
        command = [sys.executable, "-m", "cflkit", "run", str(path), "-o", str(executed)]
        command += options(self.given | {"seed": seed})
        variables = {f"CFLKIT_{name}": str(work) for name in ("RESULTS", "FIGURES", "CACHE")}
        variables |= dict.fromkeys(("CFLKIT_THREADS", "OMP_NUM_THREADS"), str(threads))
        env = os.environ | notebooks.absolute_folders() | variables
        done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip().split("\n")[-1]
        found = claims.of_cells(nbformat.read(executed, as_version=4).cells)
        if not found:
            return f"{executed} has no claims in its outputs"
        records.write_whole(self.folder / f"{seed}.json", json.dumps(found))
        shutil.rmtree(work, ignore_errors=True)
        return ""

    def run_all(self, seeds: Sequence[int], side_by_side: int) -> None:
        """Run the seeds that are missing, which share the cores, and raise if a run failed."""
        missing = [seed for seed in seeds if not (self.folder / f"{seed}.json").exists()]
        run = partial(self.run, threads=max(1, usable_cores() // side_by_side))
        with ThreadPoolExecutor(side_by_side) as pool:
            reasons = zip(missing, pool.map(run, missing), strict=True)
            if failed := [f"seed {seed}: {reason}" for seed, reason in reasons if reason]:
                raise NotebookError(f"{self.lesson.path.stem} failed with {'; '.join(failed)}")

    def rows(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Count how often each claim held, as rows of `COLUMNS`."""
        runs = {n: json.loads((self.folder / f"{n}.json").read_text("utf-8")) for n in seeds}
        return [
            {
                "notebook": self.lesson.path.stem,
                "setting": self.setting,
                "claim": claim,
                "runs": len(runs),
                "held": sum(found[claim] for found in runs.values()),
                "failed_seeds": " ".join(str(seed) for seed in runs if not runs[seed][claim]),
                "seeds": f"{min(seeds)}-{max(seeds)}",
                "given": " ".join(f"{name}={as_yaml(v)}" for name, v in self.given.items()),
                "code": self.code,
            }
            for claim in next(iter(runs.values()))
        ]


def counts_in(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table of counts, none if there is no file; refuse another table."""
    if not check_regular(path).exists():
        return []
    table = pd.read_csv(path, **records.TEXTS)
    if list(table) != list(COLUMNS):
        raise ParameterError(f"{path} is no table of claims")
    return table.to_dict("records")


def write_counts(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows into a table; rows of the same notebook and setting give way to them."""
    measured, order = {(r["notebook"], r["setting"]) for r in rows}, list(claims.SETTINGS)
    lock = records.cache() / "robustness" / ".table.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):  # two lessons may end together
        kept = [r for r in counts_in(path) if (r["notebook"], r["setting"]) not in measured]
        both = sorted([*kept, *rows], key=lambda r: (r["notebook"], order.index(r["setting"])))
        table = pd.DataFrame(both, columns=COLUMNS)
        records.write_whole(path, table.to_csv(index=False, lineterminator="\n"))


@click.command()
@click.argument("notebook", **NOTEBOOK)
@click.option("--seeds", type=click.IntRange(1, MOST), default=20, help="How many seeds.")
@click.option("--first", type=int, default=0, help="The first seed.")
@click.option("--setting", type=click.Choice([*claims.SETTINGS]), default="default")
@pairs("-p", "--parameter", "Another value of a parameter, as in YAML")
@click.option("-j", "--jobs", type=COUNT, default=2, help="Runs at a time.")
@click.option("-o", "--output", type=Path, default=notebooks.RUNS / "robustness.csv")
def count(
    notebook: Path, seeds: int, first: int, setting: str, parameter: Any, jobs: int, output: Path
) -> None:
    """Count how often a lesson's claims hold over seeds.

    Each run is a process of its own. An interrupted measurement goes on where it stopped. The
    counts are printed and written into a table; data/robustness.csv is the committed one.
    """
    counts_in(output)  # another file is refused before hours of work
    other = parsed(parameter)
    if "seed" in other:
        raise ParameterError("the seeds of the runs are given by --seeds and --first")
    lesson, numbers = read_notebook(notebook), range(first, first + seeds)
    for seed in numbers:
        checked, _ = lesson.check(other | {"seed": seed})
    # As checked, since the path of one's own data must be whole in another working folder
    measurement = Measurement(lesson, {name: checked[name] for name in other}, setting)
    measurement.run_all(numbers, jobs)
    rows = measurement.rows(numbers)
    write_counts(rows, output)
    for row in rows:
        failed = f"  (not with seed {row['failed_seeds']})" if row["failed_seeds"] else ""
        print(f"held in {row['held']} of {row['runs']}  {row['claim']}{failed}")
    print(f"\ntable     {records.display_path(output.resolve())}")


if __name__ == "__main__":
    count()
