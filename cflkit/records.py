"""Run records: parameters, results and provenance.

A record is a folder under ``data/results/`` (or where ``CFLKIT_RESULTS`` points): ``record.json``
with paper, parameters, summary and provenance, and ``rounds.csv``, one row per method and round. It
is written beside its place and renamed, so that a killed process leaves no half of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflkit import revision
from cflkit.parameters import Recorded
from cflkit.revision import PROJECT, git

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from cflkit.federation import Federation
    from cflkit.history import History

# What takes seconds to load is loaded where it is used: the command line only asks what there is
PACKAGES = ("cflkit", "torch", "torchvision", "numpy", "scikit-learn", "hdbscan", "pot", "captum")


@dataclass(frozen=True)
class Record:
    """A record that was read.

    Attributes
    ----------
    folder : Path
        Where it lies; its name is the run's id.
    paper : str or None
        The folder of its paper's parameter files (`parameters.Recorded`); None if no paper of the
        kit has it.
    parameters, summary, provenance : dict
        As in ``record.json``.
    claims : dict of str to bool
        What the notebook claimed of the run, and whether it was true; empty in older records.
    """

    folder: Path
    paper: str | None
    parameters: dict[str, Any]
    summary: dict[str, dict[str, Any]]
    provenance: dict[str, Any]
    claims: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name of the run."""
        return self.folder.name

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """``rounds.csv``, read when it is first asked for."""
        import pandas as pd

        return pd.read_csv(self.folder / "rounds.csv", dtype={"clusters": str})


def results() -> Path:
    """Where records are kept."""
    return Path(os.environ.get("CFLKIT_RESULTS") or PROJECT / "data" / "results").expanduser()


def run_id(parameters: Recorded) -> str:
    """A name that says what the run is and differs when any parameter does."""
    values = json.dumps(parameters.model_dump(exclude_defaults=True), sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:8]
    return f"{parameters.folder}-{parameters.scenario}-seed{parameters.seed}-{digest}"


def folder(run: str) -> Path | None:
    """Where the record of a run lies, if there is one."""
    for place in (results(), PROJECT / "data" / "results"):
        if (place / run / "record.json").exists():
            return place / run
    return None


def checkpoint(run: str) -> Path:
    """Where the run's state is kept while it runs: in ``data/cache``, or ``CFLKIT_CACHE``."""
    cache = Path(os.environ.get("CFLKIT_CACHE") or PROJECT / "data" / "cache").expanduser()
    return cache / "checkpoints" / f"{run}.pt"


def write(
    run: str,
    parameters: Recorded,
    history: History,
    federation: Federation,
    claims: Mapping[str, bool] | None = None,
) -> Record:
    """Write the record of a finished run and drop its checkpoint.

    Parameters
    ----------
    run : str
        The run's id, see `run_id`. A record of the same id is replaced as a whole.
    parameters : Recorded
        The validated parameters.
    history : History
        What the simulation returned.
    federation : Federation
        What it ran on.
    claims : mapping of str to bool, optional
        What the notebook claims of the run, see `claims.check`.

    Returns
    -------
    Record
    """
    root = results()
    contents = {
        "paper": parameters.folder,
        "parameters": parameters.model_dump(),
        "summary": finite(history.summary()),
        "claims": dict(claims or {}),
        "provenance": provenance(parameters, federation, history),
    }
    draft = root / f".{run}.{os.getpid()}"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        history.table().to_csv(draft / "rounds.csv", index=False, float_format="%.9g")
        text = json.dumps(contents, indent=2) + "\n"
        (draft / "record.json").write_text(text, encoding="utf-8")
        for path in draft.iterdir():  # the name must not outlive a power cut without the contents
            with path.open("rb+") as file:  # Windows syncs only what may be written
                os.fsync(file.fileno())
        replace(draft, root / run)
    except OSError as error:
        raise OSError(f"{root / run} cannot be written; is the disk full? ({error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    checkpoint(run).unlink(missing_ok=True)
    return read(root / run)


def replace(draft: Path, place: Path) -> None:
    """Rename a folder to ``place``; what was there goes only once the new one stands."""
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
    """Put a record back in its place that `replace` had moved away when its process was killed."""
    place = results() / run
    for old in results().glob(f".{run}.*.old"):
        if not place.exists():
            # The new record is whole: `write` syncs it before the first of the two renames
            draft = old.with_suffix("")
            (draft if draft.exists() else old).replace(place)


def remove_leftovers(run: str) -> None:
    """Remove what killed processes left of a run; only for whom holds `notebooks.run_lock`."""
    restore(run)
    state = checkpoint(run)
    for part in state.parent.glob(f"{run}.*.part"):
        part.unlink(missing_ok=True)
    for draft in results().glob(f".{run}.*"):
        shutil.rmtree(draft, ignore_errors=True)
    if folder(run) is not None:
        state.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """Return ``value`` with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def display_path(path: Path) -> str:
    """Return a path as a reader wants it: from the project's folder where it lies in there."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def read(folder: str | Path) -> Record:
    """Read one record; parameters that came later than it have their defaults."""
    from cflkit import papers

    folder = Path(folder)
    contents = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    if (paper := papers.by_record(folder.name)) is not None:
        # Older records do not name their paper
        contents = {"paper": paper.folder} | contents
        contents["parameters"] = paper.parameters.added_later() | contents["parameters"]
    return Record(folder, **{"paper": None} | contents)


def find(**parameters: Any) -> list[Record]:
    """Every record with these parameters, by id: the committed ones and those of `results`."""
    # Of a run that is in both places the one in `results` counts
    places = PROJECT / "data" / "results", results()
    found = {path.parent.name: path.parent for p in places for path in p.glob("[!.]*/record.json")}
    return [
        record
        for record in (read(found[name]) for name in sorted(found))
        if all(record.parameters.get(name) == value for name, value in parameters.items())
    ]


def committed() -> list[Record]:
    """The records that git tracks, by id: those that the project publishes."""
    listed = git("ls-files", "--", "data/results/*/record.json") or ""
    return [read((PROJECT / line).parent) for line in sorted(listed.splitlines())]


def provenance(parameters: Recorded, federation: Federation, history: History) -> dict[str, Any]:
    """Return the circumstances of a run: code, versions, machine, cost, seed and data."""
    import torch

    from cflkit.federation import usable_cores

    device = federation.device
    cuda = device.type == "cuda"
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_revision": revision.revision(),
        "git_clean": revision.is_clean(),
        # More than one where the run went on from a checkpoint
        "git_revisions": list(dict.fromkeys(history.revisions)),
        "resumed": len(history.revisions) - 1,
        "code": revision.DIGEST,
        "notebook": notebook_digest(parameters),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "device": torch.cuda.get_device_name(device) if cuda else str(device),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": usable_cores(),
        "engine": federation.engine,
        "minutes": round(history.minutes, 2),
        "peak_memory_gib": peak_memory(device),
        "seed": federation.seed,
        "partition_hash": federation.partition.hash,
        "data_files": dict(federation.data.files),
        "parameters_of_model": federation.parameters,
        "trainings_requested": history.requested,
        "trainings_run": history.trained,
    }


def notebook_digest(parameters: Recorded) -> str | None:
    """Return the digest of the code of the paper's notebook; None if it is not there."""
    from cflkit import notebooks, papers  # here, since they import this module

    known = [paper for paper in papers.PAPERS.values() if paper.folder == parameters.folder]
    path = PROJECT / "notebooks" / f"{known[0].notebook}.ipynb" if known else None
    return None if path is None or not path.exists() else notebooks.code_digest(path)


def processor() -> str:
    """Return the processor's name where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_memory(device: torch.device) -> float | None:
    """Most memory used so far, in GiB: the GPU's on CUDA, else this process's (not on Windows)."""
    if device.type == "cuda":
        import torch

        return round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30, 2)
