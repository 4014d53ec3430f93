"""A run that trains and writes its record in a separate process, for tests that kill it."""

import os
import signal
from pathlib import Path

from cflkit import datasets, methods, partition, simulation
from cflkit.federation import Federation
from cflkit.reproduce import notebooks, records
from cflkit.reproduce.papers import ocfl

RUN = "ocfl-worker"
PARAMETERS = {
    "dataset": "digits-8x8",
    "overlap": "nonoverlapping",
    "balance": "balanced",
    "clients": 6,
    "draws": 60,
    "partition_seed": 0,
    "model": "linear",
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch_size": 16,
    "local_epochs": 1,
    "rounds": 60,
    "seed": 0,
    "window": 1,
    "sattler_eps1": None,
    "sattler_eps2": None,
    "sattler_rounds": 10,
    "briggs_rounds": 10,
    "briggs_threshold": 0.95,
    "include_buffers": False,
    "central_every": 1,
}


def die(*arguments: object, **options: object) -> None:
    """End this process like a kill, so that nothing is caught and nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


RENAME = Path.replace


def first_rename(kept: Path, place: Path) -> Path:
    """Rename as usual, and die after the first rename of a record."""
    done = RENAME(kept, place)
    if RUN in kept.name and kept.suffix != ".part":
        die()
    return done


# The phases in which a run can end itself: the function to replace, and its replacement
PHASES = {
    "before training": (simulation, "run", die),
    "while the record is drafted": (records, "provenance", die),
    "between the two renames": (Path, "replace", first_rename),
    "before the checkpoint goes": (records, "read", die),
}


def run(folder: Path, phase: str | None = None, rounds: int = PARAMETERS["rounds"]) -> None:
    """Run as a notebook does, with all files in ``folder``; die in a phase if one is given."""
    for name in ("RESULTS", "CACHE"):
        os.environ[f"CFLKIT_{name}"] = str(folder / name.lower())
    parameters = ocfl.Parameters(**PARAMETERS | {"rounds": rounds})
    images, split = partition.ocfl(
        datasets.load(parameters.dataset),
        overlap=parameters.overlap,
        balance=parameters.balance,
        clients=parameters.clients,
        draws=parameters.draws,
        seed=parameters.partition_seed,
    )
    federation = Federation(
        images, split, parameters.model, parameters.training(), seed=0, device="cpu"
    )
    line_up = {"OCFL": methods.make("ocfl"), "local": methods.make("local")}
    if phase is not None:
        setattr(*PHASES[phase])
    with notebooks.run_lock(RUN, wait=True):
        records.remove_leftovers(RUN)
        history = simulation.run(
            line_up,
            federation,
            parameters.rounds,
            checkpoint=records.checkpoint(RUN),
            progress=False,
        )
        records.write(RUN, parameters, history, federation)
