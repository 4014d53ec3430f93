"""The form of a record, and what binds its parts: digests of its files.

Digests show an edit of a record. They are no signature: whoever writes new ones can claim anything.
A record without them is refused, since an edit would else only have to remove them.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from cflkit._bounds import STRICT
from cflkit._files import check_regular


def has_a_seed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Refuse the parameters of a run without the seed of its training."""
    if type(parameters.get("seed")) is not int:
        raise ValueError("they have no seed")
    return parameters


Value = bool | int | float | str | None


class Provenance(BaseModel):
    """What the kit reads of a run's circumstances; a record states more, see `records.provenance`.

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
