"""The form of a record, and what binds its parts: digests of its files.

Digests show an edit of a record. They are no signature: whoever writes new ones can claim anything.
A record without them is refused, since an edit would else only have to remove them.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from cflkit._bounds import STRICT
from cflkit._files import check_regular


def is_time(text: str) -> str:
    """Refuse a text that is no time."""
    datetime.fromisoformat(text)
    return text


def has_a_seed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Refuse the parameters of a run without the seed of its training."""
    if type(parameters.get("seed")) is not int:
        raise ValueError("they have no seed")
    return parameters


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
    modules: list[str] | None = None  # whose code it is; older records say nothing of it
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

    sha256: dict[str, str]
    paper: str
    parameters: Annotated[dict[str, Value | list[Value]], AfterValidator(has_a_seed)]
    summary: dict[str, dict[str, int | float | None]]
    claims: dict[str, bool]
    provenance: Provenance


# --- Digests -------------------------------------------------------------------------------------


def sealed(contents: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the contents of a record with digests of all that they say, and of the table."""
    rest = {name: value for name, value in contents.items() if name != "sha256"}
    parts = {
        "record.json": json.dumps(rest, sort_keys=True).encode(),
        "rounds.csv": check_regular(folder / "rounds.csv").read_bytes(),
    }
    return {"sha256": {n: hashlib.sha256(part).hexdigest() for n, part in parts.items()}, **rest}


def check(contents: dict[str, Any], folder: Path) -> None:
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
