"""Run records: parameters, results and provenance.

A record is a folder in ``data/results/``, or in the folder that ``CFLKIT_RESULTS`` names. It has
``record.json`` with paper, parameters, summary, claims and provenance, and ``rounds.csv`` with one
row per method and round. Digests in ``record.json`` bind both. They show an edit of a record, but
they are no signature: whoever writes new ones can claim anything. A record without them is refused,
since an edit would else only have to remove them. A record is first written under a temporary name
and then renamed. A killed process therefore never leaves an incomplete record. What an old record
cannot tell is null.

Imports that take seconds are inside functions, since the command line often needs none of them.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from cflkit import __version__, _project
from cflkit._bounds import STRICT, hint, one_line
from cflkit._project import KIT, MORE, PROJECT, check_regular, expanded, git, sweep, unwritable
from cflkit.reproduce.parameters import AS_PUBLISHED as AS_PUBLISHED
from cflkit.reproduce.parameters import ParameterError, Recorded

if TYPE_CHECKING:
    import pandas as pd

    from cflkit.federation import Federation
    from cflkit.simulation.evaluation import History

PUBLISHED = KIT / "data" / "published"
# The variable in which `notebooks.execute` tells the digest of the notebook that runs
NOTEBOOK = "CFLKIT_NOTEBOOK_DIGEST"
# The variable with which a user asks that runs keep their last models
KEEP_MODELS = "CFLKIT_KEEP_MODELS"
# The options with which pandas reads a table as texts, with every digit
TEXTS: dict[str, Any] = {"dtype": str, "keep_default_na": False}
# The packages whose versions a record states, beside ours
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "hdbscan", "pot", "captum")


@dataclass(frozen=True, eq=False)
class Record:
    """A record that was read from its folder."""

    folder: Path
    paper: str  # the folder of the paper's parameter files (`parameters.Recorded`)
    parameters: dict[str, Any]
    summary: dict[str, dict[str, Any]]
    provenance: dict[str, Any]
    # What the notebook claimed of the run, and whether it was true
    claims: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.folder.name

    def value(self, method: str, measure: str) -> Any:
        """Return a measure of a method's summary; None if the run does not have it."""
        return self.summary.get(method, {}).get(measure)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Return the table in ``rounds.csv``, which is read only when it is first needed."""
        return self.table(dtype={"clusters": str})

    def table(self, **options: Any) -> pd.DataFrame:
        """Read ``rounds.csv`` with options of pandas; a `ParameterError` says what is wrong."""
        import pandas as pd

        path = self.folder / "rounds.csv"
        try:
            rows = pd.read_csv(path, **options)
            if not {"method", "round"} <= set(rows) or self.summary.keys() - set(rows["method"]):
                raise ValueError("it needs the columns method and round, and rows of each method")
            if not rows["round"].astype(str).str.isdecimal().all():
                raise ValueError("a round is no whole number")
        except (OSError, ValueError) as error:
            raise ParameterError(f"{display_path(path)} is missing or damaged ({error})") from error
        return rows

    @cached_property
    def by_method(self) -> dict[str, pd.DataFrame]:
        """Return the rows of each method in `rounds`."""
        return {str(name): rows for name, rows in self.rounds.groupby("method", sort=False)}


# --- The form of a record, and what binds its parts -----------------------------------------------


def has_a_seed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Refuse the parameters of a run without the seed of its training."""
    if type(parameters.get("seed")) is not int:
        raise ValueError("they have no seed")
    return parameters


Value = bool | int | float | str | None


class Provenance(BaseModel):
    """What the kit reads of a run's circumstances; a record states more, see `provenance`.

    Old records lack some of them.
    """

    model_config = STRICT | ConfigDict(extra="allow")

    finished: str
    resumed: int | None
    code: str | None
    modules: list[str] | None = None  # whose code it is; older records say nothing of it
    device: str
    threads: int | None
    perturbation: int | None
    minutes: float
    peak_memory_gib: float | None
    partition_hash: str
    data_files: dict[str, str]
    parameters_of_model: int
    trainings_requested: int
    trainings_run: int


class Contents(BaseModel):
    """The contents of ``record.json``."""

    model_config = STRICT

    sha256: dict[str, str]
    paper: str
    parameters: Annotated[dict[str, Value | list[Value]], AfterValidator(has_a_seed)]
    summary: dict[str, dict[str, int | float | None]]
    claims: dict[str, bool]
    provenance: Provenance


def sealed(contents: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the contents of a record with digests of all that they say, and of the table."""
    rest = {name: value for name, value in contents.items() if name != "sha256"}
    parts = {
        "record.json": json.dumps(rest, sort_keys=True).encode(),
        "rounds.csv": check_regular(folder / "rounds.csv").read_bytes(),
    }
    return {"sha256": {n: hashlib.sha256(part).hexdigest() for n, part in parts.items()}, **rest}


def check_contents(contents: dict[str, Any], folder: Path) -> None:
    """Check the form of a record's contents, and its digests.

    Raises
    ------
    ValueError
        Something has another form, or was altered.
    """
    Contents.model_validate(contents)
    for name, digest in sealed(contents, folder)["sha256"].items():
        if contents["sha256"].get(name) != digest:
            raise ValueError(f"{name} was altered: its SHA-256 is another one")


# --- Names and places ----------------------------------------------------------------------------


def results() -> Path:
    """Return the folder in which records are kept."""
    return expanded(os.environ.get("CFLKIT_RESULTS") or PROJECT / "data" / "results")


def run_id(parameters: Recorded) -> str:
    """Return a run's id: it describes the run, and differs if any parameter differs."""
    values = json.dumps(parameters.model_dump(exclude_defaults=True), sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:8]
    return f"{parameters.folder}-{parameters.scenario}-seed{parameters.seed}-{digest}"


def record_folders() -> dict[str, Path]:
    """Return the folders of all records by id: those in the project, and in `results`."""
    folders = KIT / "data" / "results", results()
    return {f.parent.name: f.parent for place in folders for f in place.glob("[!.]*/record.json")}


def folder(id: str) -> Path | None:
    """Return the folder of a run's record, or None if it has no record."""
    folders = results(), KIT / "data" / "results"
    return next((f / id for f in folders if (f / id / "record.json").exists()), None)


def cache() -> Path:
    """Return the folder of what unfinished work keeps: ``data/cache``, or ``CFLKIT_CACHE``."""
    return expanded(os.environ.get("CFLKIT_CACHE") or PROJECT / "data" / "cache")


def checkpoint(id: str) -> Path:
    """Return the path of a run's checkpoint, which is in `cache`."""
    return cache() / "checkpoints" / f"{id}.pt"


def kept_models(id: str) -> Path:
    """Return the path of the last checkpoint of a run that was asked to keep its models."""
    return cache() / "models" / f"{id}.pt"


def display_path(path: Path) -> str:
    """Return a path for readers, relative to the folder of all outputs if it is inside it."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


# --- Writing -------------------------------------------------------------------------------------


def write(id: str, parameters: Recorded, history: History, federation: Federation) -> Record:
    """Write the record of a finished run, and delete the run's checkpoint or keep it as models.

    A record with the same ``id`` (`run_id`) is replaced as a whole. An `OSError` says what cannot
    be written.
    """
    root = results()
    contents = {
        "paper": parameters.folder,
        "parameters": parameters.model_dump(),
        "summary": finite(history.summary()),
        "claims": {},
        "provenance": provenance(federation, history),
    }
    draft = root / f".{id}.{os.getpid()}"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        table = history.table().to_csv(index=False, float_format="%.9g", lineterminator="\n")
        write_synced(draft / "rounds.csv", table)
        write_synced(draft / "record.json", sealed_text(contents, draft))
        # Of a run that is killed between the two, there is the checkpoint
        if (root / id).exists():
            shutil.rmtree(root / id)
        draft.replace(root / id)
    except OSError as error:
        raise unwritable(root / id, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    record = read(root / id)
    if os.environ.get(KEEP_MODELS) not in (None, "", "0") and checkpoint(id).exists():
        kept_models(id).parent.mkdir(parents=True, exist_ok=True)
        checkpoint(id).replace(kept_models(id))
    checkpoint(id).unlink(missing_ok=True)  # if this is killed, the next run goes on after its end
    return record


def sealed_text(contents: Mapping[str, Any], folder: Path) -> str:
    """Return the text of ``record.json`` with its digests (`sealed`)."""
    return json.dumps(sealed(contents, folder), indent=2) + "\n"


def add_claims(record: Record, claims: Mapping[str, bool]) -> None:
    """Write into a record what the lesson claims of the run, see `claims.check`."""
    path = record.folder / "record.json"
    contents = json.loads(path.read_text(encoding="utf-8")) | {"claims": dict(claims)}
    write_whole(path, sealed_text(contents, record.folder))


def write_whole(path: Path, text: str) -> None:
    """Write a text file such that a killed process leaves the old file or the new one.

    What killed processes left beside it is removed. An `OSError` says that it is no regular file.
    """
    check_regular(path).parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, f".{glob.escape(path.name)}.*.part")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_synced(part, text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_synced(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk, so that no power cut can leave it empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def finite(value: Any) -> Any:
    """Return ``value`` with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def remove_leftovers(id: str) -> None:
    """Remove what killed processes left of a run.

    The checkpoint stays. The caller must hold `notebooks.run_lock`. A lesson that is open in
    JupyterLab does not hold it, so that drafts of living processes stay. What other runs left
    stays, too: their processes may live on another machine, with other numbers.
    """
    sweep(checkpoint(id).parent, f"{id}.*.part")
    sweep(results() / id, ".*.part")
    sweep(results(), f".{id}.[0-9]*")


def provenance(federation: Federation, history: History) -> dict[str, Any]:
    """Return the circumstances of a run: code, versions, machine, cost, seed and data."""
    import torch

    from cflkit.federation import usable_cores
    from cflkit.federation.machine import product_library
    from cflkit.simulation.loop import peak_memory

    device, names = federation.device, federation.data.class_names
    commit, clean = _project.state()
    cuda = device.type == "cuda"
    hooks = federation.after_training
    perturbations = [hook.perturbation for hook in hooks if hasattr(hook, "perturbation")]
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_revision": commit,
        "git_clean": clean,
        # More than one if the commit changed before the run continued from a checkpoint
        "git_revisions": list(dict.fromkeys(history.revisions)),
        "resumed": len(history.revisions) - 1,
        "code": _project.digest_of_code(*history.modules),
        "modules": history.modules,
        "notebook": os.environ.get(NOTEBOOK),
        "python": platform.python_version(),
        # A checkout on Python's path has no installed version
        "versions": {"cflkit": __version__} | {name: version(name) for name in PACKAGES},
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "device": torch.cuda.get_device_name(device) if cuda else str(device),
        "processor": processor(),
        "products": None if cuda else product_library(),
        "cores": os.cpu_count(),
        "threads": usable_cores(),
        "engine": federation.engine,
        "perturbation": perturbations[0] if perturbations else None,
        "minutes": round(history.minutes, 2),
        "peak_memory_gib": round(max(history.peak_memory, peak_memory(device)), 2),
        "seed": federation.seed,
        "partition_hash": federation.partition.hash,
        "data_files": dict(federation.data.files),
        **({"class_names": list(names)} if names else {}),
        "parameters_of_model": federation.parameters,
        "trainings_requested": history.requested,
        "trainings_run": history.trained,
    }


def processor() -> str:
    """Return the name of the processor, if the system gives it."""
    import torch

    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.processor())


# --- Reading -------------------------------------------------------------------------------------


def read(folder: str | Path) -> Record:
    """Read a record; a `ParameterError` says what is damaged."""
    folder = Path(folder)
    path = folder / "record.json"
    try:
        contents = json.loads(check_regular(path).read_text(encoding="utf-8"))
        check_contents(contents, folder)
        return Record(folder, **{n: v for n, v in contents.items() if n != "sha256"})
    except OSError as error:
        raise ParameterError(f"{display_path(path)} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = one_line(error) if isinstance(error, ValidationError) else error
        raise ParameterError(
            f"{display_path(path)} is damaged, or of another version of the kit ({reason})"
        ) from error


def read_all(folders: Iterable[Path]) -> list[Record]:
    """Read records; those that are damaged are named, and left out."""
    every = []
    for place in folders:
        try:
            every.append(read(place))
        except ParameterError as error:
            print(f"left out: {error}", file=sys.stderr)
    return every


def find_records() -> list[Record]:
    """Return the records in the project and in `results`, sorted by id; damaged ones are named."""
    return read_all(place for _, place in sorted(record_folders().items()))


def has_parameters(record: Record, parameters: Mapping[str, Any]) -> bool:
    """Return whether a record has these parameters."""
    return all(record.parameters.get(name) == value for name, value in parameters.items())


def seeds_of(record: Record) -> tuple[Any, ...]:
    """Return the seeds of a run: of its training and of its partition."""
    return record.parameters.get("seed"), record.parameters.get("partition_seed")


def one_per_seed(
    runs: Iterable[Record], rows: Callable[[Record], int] = lambda record: len(record.rounds)
) -> list[Record]:
    """Return one run per seed, sorted by id: that with most rows, and among these the newest."""
    best: dict[tuple[Any, ...], Record] = {}
    newest = sorted(runs, key=lambda record: record.provenance.get("finished", ""), reverse=True)
    for record in sorted(newest, key=rows, reverse=True):
        best.setdefault(seeds_of(record), record)
    return sorted(best.values(), key=lambda record: record.id)


def find_record(text: str) -> Record:
    """Read the record at this path or of this name, or the only one whose name begins or ends so.

    Raises
    ------
    ParameterError
        There is no such record, or there are several.
    """
    place = Path(text)
    if (place / "record.json").exists():
        return read(place.resolve())
    id, known = str(place), record_folders()
    ids = [n for n in sorted(known) if id and (n.startswith(id) or n.endswith(id))]
    if id in known or len(ids) == 1:
        return read(known.get(id) or known[ids[0]])
    if not ids:
        raise ParameterError(
            f"no record {id!r}; `python -m cflkit records` lists all records{hint(id, known)}{MORE}"
        )
    some = ", ".join(ids[:3]) + ", …" * (len(ids) > 3)
    raise ParameterError(f"{len(ids)} records are called {id!r}: {some}")


def committed(**parameters: Any) -> list[Record]:
    """Return the records with these parameters that the project publishes, sorted by id.

    In a clone, they are those that git tracks. An archive of the project has copies. Records that
    are damaged are named, and left out.

    Raises
    ------
    ParameterError
        This is a clone, and git cannot list its files.
    """
    if (KIT / ".git").exists():
        listed = git("ls-files", "-z", "--", "data/results/*/record.json")
        if listed is None:
            raise ParameterError(f"git cannot list the records in {KIT}")
        paths = [KIT / line for line in listed.split("\0") if line]
    else:
        paths = list((KIT / "data" / "results").glob("[!.]*/record.json"))
    every = read_all(path.parent for path in sorted(paths))
    return [record for record in every if has_parameters(record, parameters)]
