"""The form of a record, and what binds its parts: digests of its files.

Digests show an edit of a record. They are no signature: whoever writes new ones can claim anything.
A record without them is refused, since an edit would else only have to remove them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from cflkit._bounds import STRICT
from cflkit._files import check_regular

# The names under which a record states the digest of all else that it says, and that of its table
RECORD, ROUNDS = "record.json", "rounds.csv"


def is_time(text: str) -> str:
    """Refuse a text that is no time."""
    datetime.fromisoformat(text)
    return text


def has_a_seed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Refuse the parameters of a run without the seed of its training."""
    if type(parameters.get("seed")) is not int:
        raise ValueError("they have no seed")
    return parameters


Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
# No text that git could take for an option
Revision = Annotated[str, Field(pattern="^[0-9a-f]{7,64}$")]
Value = bool | int | float | str | None


class Provenance(BaseModel):
    """The circumstances of a run, see `records.provenance`. Old records lack some of them."""

    model_config = STRICT

    finished: Annotated[str, AfterValidator(is_time)]
    git_revision: Revision | None
    git_clean: bool | None
    git_revisions: list[str] | None
    resumed: int | None
    code: str | None
    notebook: str | None
    python: str
    versions: dict[str, str]
    cuda: str | None
    cudnn: int | None
    device: str
    processor: str | None
    products: str | None = None  # the library of large products; older records do not say it
    cores: int | None
    threads: int | None
    engine: str
    perturbation: int | None
    minutes: float
    peak_memory_gib: float | None
    seed: int
    partition_hash: str
    data_files: dict[str, str]
    class_names: list[str] | None = None  # only where labels of one's own data are names
    parameters_of_model: int
    trainings_requested: int
    trainings_run: int


class Contents(BaseModel):
    """The contents of ``record.json``."""

    model_config = STRICT

    sha256: dict[FileName, Digest]
    paper: str
    parameters: Annotated[dict[str, Value | list[Value]], AfterValidator(has_a_seed)]
    summary: dict[str, dict[str, int | float | None]]
    claims: dict[str, bool]
    provenance: Provenance


# --- Digests -------------------------------------------------------------------------------------


def sealed(contents: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the contents of a record with the digests of its files, and of themselves."""
    rest = {name: value for name, value in contents.items() if name != "sha256"}
    return {"sha256": {RECORD: digest(rest), ROUNDS: digest_of(folder / ROUNDS)}, **rest}


def digest(contents: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the contents of a record without its digests."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(check_regular(path).read_bytes()).hexdigest()


def check(contents: dict[str, Any], folder: Path) -> None:
    """Check the form of a record's contents, and its digests.

    Raises
    ------
    ValueError
        Something has another form, or was altered.
    """
    Contents.model_validate(contents)
    stated = contents["sha256"]
    if {RECORD, ROUNDS} - stated.keys():
        raise ValueError(f"sha256 must have {RECORD} and {ROUNDS}")
    if stated[RECORD] != digest({n: v for n, v in contents.items() if n != "sha256"}):
        raise ValueError("it was altered: its SHA-256 is another one")
    for name in stated.keys() - {RECORD}:
        if stated[name] != digest_of(folder / name):
            raise ValueError(f"{name} was altered: its SHA-256 is another one")
