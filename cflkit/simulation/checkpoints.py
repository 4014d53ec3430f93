"""Files with the state of an unfinished run; such a file is complete, or it does not exist."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflkit import _project


class CheckpointMismatch(Exception):
    """A checkpoint is damaged, belongs to another run, or was made by other code."""


def code() -> str:
    """Identify the code on which a state depends: the package's files and PyTorch's version."""
    return f"{_project.DIGEST} torch {torch.__version__}"


def save(path: Path, identity: str, state: dict[str, Any]) -> None:
    """Write a state to a temporary file, and rename the file once it is complete.

    Parameters
    ----------
    path : Path
        The file to write. Missing parent folders are created.
    identity : str
        The identity of the run, which `load` compares.
    state : dict
        Tensors, numbers and texts, and lists and dicts of these. Equal tensors, such as the model
        that several methods have, are written once.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    draft = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            written = each_leaf(partial(plain, known={}), state)
            torch.save({"identity": identity, "code": code(), **written}, file)
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave the final name without contents
        draft.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
        raise OSError(f"{path} cannot be written; is the disk full? ({error})") from error
    finally:
        draft.unlink(missing_ok=True)


def load(path: Path, identity: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """Read what `save` wrote; no arbitrary objects are unpickled.

    Parameters
    ----------
    path : Path
        The file of the checkpoint.
    identity : str
        The identity of the run that is to continue.
    rounds : int
        The number of rounds of the whole run. The checkpoint must not have more.
    device : torch.device
        The device for tensors that were saved on a GPU.

    Raises
    ------
    CheckpointMismatch
        The file is damaged, belongs to another run, or was made by other code or another version
        of PyTorch.
    """
    try:
        # The saved GPU may not exist here; tensors from the CPU (labels, indices) stay on the CPU
        elsewhere = {f"cuda:{number}": str(device) for number in range(64)}
        elsewhere["mps:0"] = str(device)
        state = torch.load(path, weights_only=True, map_location=elsewhere)
    except (torch.OutOfMemoryError, MemoryError, OSError):
        raise
    except Exception as error:  # a damaged file can lead to nearly any error in the reader
        raise CheckpointMismatch(f"{path} is damaged; delete it to start anew") from error
    known = state.keys() if isinstance(state, dict) else ()
    if not {"identity", "code", "rounds"} <= set(known):
        raise CheckpointMismatch(f"{path} is not a checkpoint of this version; delete it")
    if state["code"] != code():
        raise CheckpointMismatch(
            f"{path} was made by other code or another torch ({state['code'].split()[-1]}): the "
            "result would be that of neither program. Continue with the code that made it, or "
            "delete the file to start anew"
        )
    if state["identity"] != identity or state["rounds"] > rounds:
        raise CheckpointMismatch(
            f"{path} is the checkpoint of another run: other methods, options, seed, partition, "
            "data files, device, engine, precision or hooks, or more rounds. Continue as it "
            "was begun, or delete it to start anew"
        )
    # Equal tensors of the file share their memory, and a method may change its own in place
    return each_leaf(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)


def each_leaf(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to everything in a state that is neither a dict nor a list or tuple."""
    if isinstance(value, dict):
        return {name: each_leaf(function, member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(each_leaf(function, member) for member in value)
    return function(value)


def plain(leaf: Any, known: dict[Hashable, Tensor]) -> Any:
    """Prepare a leaf of a state for writing.

    NumPy's numbers become Python's, since the former could not be loaded again. A tensor becomes
    the first one that is equal to it, since ``torch.save`` writes a tensor once.

    Parameters
    ----------
    leaf : object
        The leaf, such as a tensor.
    known : dict
        The different tensors so far, to which this function adds.
    """
    if isinstance(leaf, Tensor):
        contents = leaf.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        key = leaf.dtype, leaf.shape, leaf.device, hashlib.sha256(contents.data).digest()
        return known.setdefault(key, leaf)
    return leaf.item() if isinstance(leaf, np.generic) else leaf
