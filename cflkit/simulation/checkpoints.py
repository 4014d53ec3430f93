"""Files with the state of an unfinished run; such a file is complete, or it does not exist.

`Keeper` decides when a run writes its state, and `save` and `load` are the file.
"""

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflkit._project import as_json, check_regular, digest_of_code, unwritable
from cflkit.federation import Federation
from cflkit.methods.base import Methods
from cflkit.models.rows import digests
from cflkit.simulation.evaluation import History

# The largest share of a run's time that may be spent on writing checkpoints: a second per minute
SHARE = 1 / 60
# The number of bytes at the end of the file that are the SHA-256 of those before
DIGEST = hashlib.sha256().digest_size


class CheckpointMismatch(Exception):
    """A checkpoint is damaged, belongs to another run, or was made by other code."""


class Keeper:
    """A writer and reader of a run's checkpoints; the ``plan`` says what is measured when."""

    def __init__(
        self,
        path: str | Path,
        methods: Methods,
        federation: Federation,
        plan: str,
        after: History | None,
        modules: Sequence[str],
    ) -> None:
        plan += "" if after is None else f", after {as_json(after.rows)}"
        self.path, self.identity = Path(path), fingerprint(methods, federation, plan)
        # The code on which a state depends
        self.code = f"{digest_of_code(*modules)} torch {torch.__version__}"
        # How many seconds the last writing took, and when it ended
        self.cost, self.written = 0.0, perf_counter()

    def keep(self, history: History, rounds: int, methods: Methods, last: bool) -> None:
        """Write the state after ``rounds`` rounds, unless writing takes too much of the time."""
        begin = perf_counter()
        if not last and self.cost > SHARE * (begin - self.written):
            return
        kept = {f.name: getattr(history, f.name) for f in fields(history) if f.name != "summarise"}
        states = {name: method.state() for name, method in methods.items()}
        state = {"rounds": rounds, "history": as_json(kept), "methods": states}
        save(self.path, self.identity, self.code, state)
        self.written = perf_counter()
        self.cost = self.written - begin

    def resume(
        self, methods: Methods, rounds: int, device: torch.device
    ) -> tuple[History, int] | None:
        """Restore the methods; return the history and its rounds, or None without a checkpoint."""
        if not self.path.exists():
            return None
        state = load(self.path, self.identity, self.code, rounds, device)
        for name, method in methods.items():
            method.restore(state["methods"][name])
        return History(**json.loads(state["history"])), state["rounds"]


def fingerprint(methods: Methods, federation: Federation, plan: str) -> str:
    """Compute the identity of a run, a hash of all that must be the same for it to continue.

    These are the methods with their options, the partition, the training, the seed, the number of
    clients per round, the engine with its device, the hooks, the initial model, and the plan.
    """
    parts = [
        *(f"{name}: {method!r}" for name, method in methods.items()),
        federation.identity,
        repr(asdict(federation.training)),
        f"{federation.seed}, {federation.per_round} per round",
        f"{federation.engine} on {federation.device.type}, then {federation.after_training}",
        digests(federation.initial()[None])[0].hex(),
        plan,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# --- The file -------------------------------------------------------------------------------------


def save(path: Path, identity: str, code: str, state: dict[str, Any]) -> None:
    """Write a state to a temporary file, and rename the file once it is complete.

    It has tensors, arrays, numbers and texts, and lists and dicts of these. Equal tensors, such as
    the model that several methods have, are written once. The file ends with a digest of its
    contents, since PyTorch would read altered numbers. An `OSError` says why it cannot be written.
    """
    draft = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        with draft.open("w+b") as file:
            written = each_leaf(partial(prepare_leaf, known={}), state)
            torch.save({"identity": identity, "code": code, **written}, file)
            file.seek(0)
            file.write(hashlib.file_digest(file, "sha256").digest())  # which has read to the end
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave the final name without contents
        draft.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
        raise unwritable(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def load(path: Path, identity: str, code: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """Read what `save` wrote; no arbitrary objects are unpickled.

    Tensors that were saved on a GPU come to the ``device``. A `CheckpointMismatch` says that the
    file is damaged, belongs to another run or to one of more ``rounds``, or was made by other code.
    """
    check_digest(path)
    # The saved GPU may not exist here; tensors from the CPU (labels, indices) stay on the CPU
    elsewhere = {f"cuda:{number}": str(device) for number in range(64)} | {"mps:0": str(device)}
    state = each_leaf(restore_leaf, torch.load(path, weights_only=True, map_location=elsewhere))
    if state["code"] != code:
        torch_then = state["code"].rpartition(" ")[2]
        raise CheckpointMismatch(
            f"{path} was made by other code or another torch ({torch_then}): the "
            "result would be that of neither program. Continue with the code that made it, or "
            "delete the file to start anew"
        )
    if state["identity"] != identity or not 0 <= state["rounds"] <= rounds:
        raise CheckpointMismatch(
            f"{path} is the checkpoint of another run: other methods, options, seed, partition, "
            "data files, device, engine or hooks, or more rounds. Continue as it was begun, or "
            "delete it to start anew"
        )
    return state


def check_digest(path: Path) -> None:
    """Raise a `CheckpointMismatch` if a file does not end with the digest of its contents."""
    if check_regular(path).stat().st_size > DIGEST:
        whole = np.memmap(path, mode="r")
        if hashlib.sha256(whole[:-DIGEST].data).digest() == whole[-DIGEST:].tobytes():
            return
    reason = "is not a checkpoint of this version, or it is damaged; delete it to start anew"
    raise CheckpointMismatch(f"{path} {reason}")


# In a file, the key of a dict that stands for an array of NumPy: it has the same tensor
ARRAY = "array of NumPy"
# What a file can give back without unpickling
STORABLE = (str, bytes, int, float, complex, set, type(None), np.generic, torch.device, torch.dtype)


def each_leaf(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to everything in a state that is neither a dict nor a list or tuple."""
    if isinstance(value, dict) and ARRAY not in value:
        return {name: each_leaf(function, member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(each_leaf(function, member) for member in value)
    return function(value)


def prepare_leaf(leaf: Any, known: dict[Hashable, Tensor]) -> Any:
    """Prepare a leaf of a state for writing.

    NumPy's numbers become Python's and its arrays become tensors, since they could not be loaded
    again. A tensor becomes the first one that is equal to it, since ``torch.save`` writes a tensor
    once; ``known`` has the different ones so far.
    """
    if isinstance(leaf, Tensor):
        [digest] = digests(leaf.cpu().reshape(1, -1))
        return known.setdefault((leaf.dtype, leaf.shape, leaf.device, digest), leaf)
    if isinstance(leaf, np.ndarray):
        return {ARRAY: prepare_leaf(torch.from_numpy(leaf), known)}
    if not isinstance(leaf, STORABLE):
        raise ValueError(
            f"a checkpoint cannot keep a {type(leaf).__name__}: methods may have tensors, arrays, "
            "numbers and texts, and lists and dicts of these"
        )
    return leaf.item() if isinstance(leaf, np.generic) else leaf


def restore_leaf(leaf: Any) -> Any:
    """Return a leaf as a method needs it, the inverse of `prepare_leaf`.

    Equal tensors of a file share their memory, and a method may change its own in place.
    """
    if isinstance(leaf, dict):
        return leaf[ARRAY].numpy().copy()
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
