"""Run records: parameters, results and provenance.

A record is a folder in ``data/results/``, or in the folder that ``CFLKIT_RESULTS`` names. It has
``record.json`` with paper, parameters, summary and provenance, and ``rounds.csv`` with one row per
method and round. A record is first written under a temporary name and then renamed. A killed
process therefore never leaves an incomplete record.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from cflkit import __version__, _project
from cflkit._project import PROJECT, git
from cflkit.reproduce.parameters import ParameterError, Recorded

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from cflkit.federation import Federation
    from cflkit.simulation.history import History

# Imports that take seconds are inside functions, since the command line often needs none of them

# The variable in which `notebooks.execute` tells the digest of the notebook that runs
NOTEBOOK = "CFLKIT_NOTEBOOK_DIGEST"
# The packages whose versions a record states, beside ours
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "hdbscan", "pot", "captum")


@dataclass(frozen=True)
class Record:
    """A record that was read from its folder.

    Attributes
    ----------
    folder : Path
        The record's folder, whose name is the run's id.
    paper : str
        The folder of the paper's parameter files (`parameters.Recorded`).
    parameters, summary, provenance : dict
        The contents of ``record.json``.
    claims : dict of str to bool
        What the notebook claimed of the run, and whether it was true; empty if it claimed nothing.
    """

    folder: Path
    paper: str
    parameters: dict[str, Any]
    summary: dict[str, dict[str, Any]]
    provenance: dict[str, Any]
    claims: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the run's id, which is the name of the record's folder."""
        return self.folder.name

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Return the table in ``rounds.csv``, which is read only when it is first needed.

        Raises
        ------
        ParameterError
            The file is missing or damaged.
        """
        import pandas as pd

        path = self.folder / "rounds.csv"
        try:
            return pd.read_csv(path, dtype={"clusters": str})
        except (OSError, ValueError) as error:
            raise ParameterError(f"{display_path(path)} is missing or damaged ({error})") from error

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of ``rounds.csv`` as texts, with every digit.

        Raises
        ------
        ParameterError
            The file is missing or damaged.
        """
        path = self.folder / "rounds.csv"
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error) as error:
            raise ParameterError(f"{display_path(path)} is missing or damaged ({error})") from error

    @cached_property
    def by_method(self) -> dict[str, pd.DataFrame]:
        """Return the rows of each method in `rounds`."""
        return {str(name): rows for name, rows in self.rounds.groupby("method", sort=False)}


def results() -> Path:
    """Return the folder in which records are kept."""
    return Path(os.environ.get("CFLKIT_RESULTS") or PROJECT / "data" / "results").expanduser()


def run_id(parameters: Recorded) -> str:
    """Return a run's id: it describes the run, and differs if any parameter differs.

    A run has an id of its own if ``CFLKIT_ENGINE`` names its engine or ``CFLKIT_PERTURB`` perturbs
    it, so that it does not replace the record of the run as it is.
    """
    values = json.dumps(parameters.model_dump(exclude_defaults=True), sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:8]
    engine, perturbed = os.environ.get("CFLKIT_ENGINE"), os.environ.get("CFLKIT_PERTURB")
    suffix = f"-{engine}" if engine else ""
    suffix += f"-perturbed{perturbed}" if perturbed else ""
    return f"{parameters.folder}-{parameters.scenario}-seed{parameters.seed}-{digest}{suffix}"


def variables(run: str) -> dict[str, str]:
    """Return the environment variables that a run's id names, and their values, see `run_id`."""
    found = re.search(r"-[0-9a-f]{8}(?:-([a-z]+))?(?:-perturbed(-?\d+))?$", run)
    values = found.groups() if found else (None, None)
    names = ("CFLKIT_ENGINE", "CFLKIT_PERTURB")
    return {name: value for name, value in zip(names, values, strict=True) if value}


def folder(run: str) -> Path | None:
    """Return the folder of a run's record, or None if it has no record."""
    for place in (results(), PROJECT / "data" / "results"):
        if (place / run / "record.json").exists():
            return place / run
    return None


def cache() -> Path:
    """Return the folder of what unfinished work keeps: ``data/cache``, or ``CFLKIT_CACHE``."""
    return Path(os.environ.get("CFLKIT_CACHE") or PROJECT / "data" / "cache").expanduser()


def checkpoint(run: str) -> Path:
    """Return the path of a run's checkpoint, in ``data/cache`` or the folder ``CFLKIT_CACHE``."""
    return cache() / "checkpoints" / f"{run}.pt"


def write(
    run: str,
    parameters: Recorded,
    history: History,
    federation: Federation,
) -> Record:
    """Write the record of a finished run, and delete the run's checkpoint.

    Parameters
    ----------
    run : str
        The run's id, see `run_id`. A record with the same id is replaced as a whole.
    parameters : Recorded
        The validated parameters.
    history : History
        The results that the simulation returned.
    federation : Federation
        The federation of the run.

    Returns
    -------
    Record
        The record as it was written.

    Raises
    ------
    OSError
        The record cannot be written.
    """
    root = results()
    contents = {
        "paper": parameters.folder,
        "parameters": parameters.model_dump(),
        "summary": finite(history.summary()),
        "claims": {},
        "provenance": provenance(federation, history),
    }
    draft = root / f".{run}.{os.getpid()}"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        history.table().to_csv(draft / "rounds.csv", index=False, float_format="%.9g")
        (draft / "record.json").write_text(as_text(contents), encoding="utf-8")
        for path in draft.iterdir():
            sync(path)
        replace(draft, root / run)
    except OSError as error:
        raise OSError(f"{root / run} cannot be written; is the disk full? ({error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    checkpoint(run).unlink(missing_ok=True)
    return read(root / run)


def add_claims(record: Record, claims: Mapping[str, bool]) -> None:
    """Write into a record what the lesson claims of the run, see `claims.check`.

    Raises
    ------
    OSError
        The record cannot be written.
    """
    path = record.folder / "record.json"
    contents = json.loads(path.read_text(encoding="utf-8")) | {"claims": dict(claims)}
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(as_text(contents), encoding="utf-8")
    sync(part)
    part.replace(path)


def sync(path: Path) -> None:
    """Wait until a file is on the disk; else a power cut could leave its name without contents."""
    with path.open("rb+") as file:  # Windows syncs only files that are open for writing
        os.fsync(file.fileno())


def as_text(contents: dict[str, Any]) -> str:
    """Write the contents of ``record.json``."""
    return json.dumps(contents, indent=2) + "\n"


def replace(draft: Path, place: Path) -> None:
    """Rename a folder to ``place``; delete the old folder only when the new one is in place."""
    if not place.exists():
        draft.replace(place)
        return
    old = draft.with_name(f"{draft.name}.old")
    place.replace(old)
    try:
        draft.replace(place)
    except BaseException:
        old.replace(place)
        raise
    shutil.rmtree(old)


def restore(run: str) -> None:
    """Put a run's record in place if a process was killed while it was replacing the record."""
    place = results() / run
    for old in results().glob(f".{run}.*.old"):
        if not place.exists():
            # The new record is complete, since `write` syncs it before the first of the two renames
            draft = old.with_suffix("")
            (draft if draft.exists() else old).replace(place)


def remove_leftovers(run: str) -> None:
    """Remove the files that killed processes left of a run.

    A checkpoint that is newer than the run's record is kept: it belongs to a run that began after
    the record was made, and was interrupted. When a record was made stands in it, since git changes
    the times of files. The caller must hold `notebooks.run_lock`. A lesson
    that is open in JupyterLab does not hold it, so that drafts of living processes stay.
    """
    restore(run)
    state = checkpoint(run)
    for part in [*state.parent.glob(f"{run}.*.part"), *(results() / run).glob("*.part")]:
        if not written_by_a_living_process(part):
            part.unlink(missing_ok=True)
    for draft in results().glob(f".{run}.*"):
        if not written_by_a_living_process(draft):
            shutil.rmtree(draft, ignore_errors=True)
    made = folder(run)
    if made is None or not state.exists():
        return
    finished = datetime.fromisoformat(read(made).provenance["finished"]).timestamp()
    if finished + 1 >= state.stat().st_mtime:  # the record leaves out parts of a second
        state.unlink()


def written_by_a_living_process(draft: Path) -> bool:
    """Return whether the process whose number is in the name of a draft is there."""
    numbers = [int(part) for part in draft.name.split(".") if part.isdecimal()]
    return any(number != os.getpid() and psutil.pid_exists(number) for number in numbers)


def finite(value: Any) -> Any:
    """Return ``value`` with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def display_path(path: Path) -> str:
    """Return a path for readers, relative to the folder of all outputs if it is inside it."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def read(folder: str | Path) -> Record:
    """Read a record.

    Raises
    ------
    ParameterError
        The record is damaged.
    """
    folder = Path(folder)
    path = folder / "record.json"
    try:
        return Record(folder, **json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ParameterError(f"{display_path(path)} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{display_path(path)} is damaged ({error!r})") from error


def find(**parameters: Any) -> list[Record]:
    """Return every record with these parameters, sorted by id.

    The records are those in the project and those in `results`.
    """
    found = (folder(name) for name in names())
    every = [read(place) for place in found if place is not None]
    return [record for record in every if has(record, parameters)]


def has(record: Record, parameters: Mapping[str, Any]) -> bool:
    """Return whether a record has these parameters."""
    return all(record.parameters.get(name) == value for name, value in parameters.items())


def names() -> list[str]:
    """Return the ids of all records, in the project and in `results`, sorted."""
    places = PROJECT / "data" / "results", results()
    return sorted({path.parent.name for p in places for path in p.glob("[!.]*/record.json")})


def committed(**parameters: Any) -> list[Record]:
    """Return the records with these parameters that the project publishes, sorted by id.

    In a clone, they are those that git tracks. A wheel or an archive of the project has copies.

    Raises
    ------
    ParameterError
        This is a clone, and git cannot list its files.
    """
    if not (PROJECT / ".git").exists():
        found = sorted((PROJECT / "data" / "results").glob("[!.]*/record.json"))
    else:
        listed = git("ls-files", "-z", "--", "data/results/*/record.json")
        if listed is None:
            raise ParameterError(f"git cannot list the records in {PROJECT}")
        found = [PROJECT / line for line in sorted(filter(None, listed.split("\0")))]
    every = [read(path.parent) for path in found]
    return [record for record in every if has(record, parameters)]


def provenance(federation: Federation, history: History) -> dict[str, Any]:
    """Return the circumstances of a run: code, versions, machine, cost, seed and data."""
    import torch

    from cflkit.federation import usable_cores

    device = federation.device
    cuda = device.type == "cuda"
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_revision": _project.revision(),
        "git_clean": _project.is_clean(),
        # More than one if the commit changed before the run continued from a checkpoint
        "git_revisions": list(dict.fromkeys(history.revisions)),
        "resumed": len(history.revisions) - 1,
        "code": _project.DIGEST,
        "notebook": os.environ.get(NOTEBOOK),
        "python": platform.python_version(),
        # A checkout on Python's path has no installed version
        "versions": {"cflkit": __version__} | {name: version(name) for name in PACKAGES},
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "device": torch.cuda.get_device_name(device) if cuda else str(device),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": usable_cores(),
        "engine": federation.engine,
        "perturbation": federation.perturbation,
        "minutes": round(history.minutes, 2),
        "peak_memory_gib": peak_memory(device),
        "seed": federation.seed,
        "partition_hash": federation.partition.hash,
        "data_files": dict(federation.data.files),
        "parameters_of_model": federation.parameters,
        "trainings_requested": history.requested,
        "trainings_run": history.trained,
    }


def processor() -> str:
    """Return the name of the processor, if the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_memory(device: torch.device) -> float | None:
    """Return the largest memory used so far, in GiB; None on Windows without CUDA.

    On CUDA, it is the memory of the GPU; otherwise, it is that of this process.
    """
    if device.type == "cuda":
        import torch

        return round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30, 2)
