"""A run that trains and writes its record in a separate process, for tests that kill it."""

import os
import signal
from pathlib import Path

from cflkit import methods, simulation
from cflkit.reproduce import grid, notebooks, records
from cflkit.reproduce.papers import ocfl
from cflkit.simulation import checkpoints

RUN = "ocfl-worker"
SMALL = {"dataset": "digits-8x8", "model": "linear", "clients": 6, "draws": 60, "local_epochs": 1}
ROUNDS = 5


def die(*arguments: object, **options: object) -> None:
    """End this process like a kill, so that nothing is caught and nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


RENAME, SAVE = Path.replace, checkpoints.save


def rename_of_a_part(kept: Path, place: Path) -> Path:
    """Die before a checkpoint has its name."""
    return die() if kept.suffix == ".part" else RENAME(kept, place)


def rename_of_a_record(kept: Path, place: Path) -> Path:
    """Die before a record has its name."""
    return die() if place.name == RUN else RENAME(kept, place)


def first_save(*arguments: object) -> None:
    """Write a checkpoint, and die."""
    SAVE(*arguments)
    die()


# The phases in which a run can end itself: the function to replace, and its replacement
PHASES = {
    "before training": (simulation, "run", die),
    "while a checkpoint is written": (Path, "replace", rename_of_a_part),
    "after the first checkpoint": (checkpoints, "save", first_save),
    "while the record is drafted": (records, "provenance", die),
    "while the record is replaced": (Path, "replace", rename_of_a_record),
    "before the checkpoint goes": (records, "read", die),
}


def run(folder: Path, phase: str | None = None) -> None:
    """Run as a notebook does, with all files in ``folder``; die in a phase if one is given."""
    for name in ("RESULTS", "CACHE"):
        os.environ[f"CFLKIT_{name}"] = str(folder / name.lower())
    usual = notebooks.read_notebook(grid.NOTEBOOKS / "03b_ocfl_controls.ipynb").defaults
    parameters = ocfl.Parameters.checked(usual | SMALL | {"rounds": ROUNDS})
    federation = ocfl.federation(parameters, *ocfl.data(parameters))
    line_up = {"OCFL": methods.make("ocfl"), "local": methods.make("local")}
    if phase is not None:
        setattr(*PHASES[phase])
    with notebooks.run_lock(RUN, wait=True):
        records.remove_leftovers(RUN)
        options = {"checkpoint": records.checkpoint(RUN), "progress": False}
        history = simulation.run(line_up, federation, ROUNDS, **options)
        records.write(RUN, parameters, history, federation)
