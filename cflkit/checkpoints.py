"""The state of a run that is not finished, in a file that is whole or not there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cflkit import revision


class CheckpointMismatch(Exception):
    """A checkpoint that belongs to another run, or was made by other code."""


def code() -> str:
    """Return what a state depends on besides the run: the package's files and torch's version."""
    return f"{revision.DIGEST} torch {torch.__version__}"


def save(path: Path, identity: str, state: dict[str, Any]) -> None:
    """Write a state beside its place and rename it.

    Parameters
    ----------
    path : Path
        Parent folders are made.
    identity : str
        Of the run, which `load` compares.
    state : dict
        Tensors, numbers, texts, and lists and dicts of such.

    Raises
    ------
    OSError
        It cannot be written.
    """
    draft = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            torch.save({"identity": identity, "code": code(), **plain(state)}, file)
            file.flush()
            os.fsync(file.fileno())  # the name must not outlive a power cut without the contents
        draft.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer knows no OSError
        raise OSError(f"{path} cannot be written; is the disk full? ({error})") from error
    finally:
        draft.unlink(missing_ok=True)


def load(path: Path, identity: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """Read what `save` wrote; nothing in it is unpickled.

    Parameters
    ----------
    path : Path
        Of the checkpoint.
    identity : str
        Of the run that wants to go on.
    rounds : int
        How far it wants to go; the state's own ``rounds`` must not be more.
    device : torch.device
        Where tensors go that were on a GPU.

    Raises
    ------
    CheckpointMismatch
        The file is damaged, of another run, or was made by other code or another torch.
    """
    try:
        # Tensors of a GPU that is not there; labels and indices stay on the CPU
        elsewhere = {f"cuda:{number}": str(device) for number in range(64)}
        elsewhere["mps:0"] = str(device)
        state = torch.load(path, weights_only=True, map_location=elsewhere)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointMismatch(f"{path} is damaged; delete it to start anew") from error
    known = state.keys() if isinstance(state, dict) else ()
    if not {"identity", "code", "rounds"} <= set(known):
        raise CheckpointMismatch(f"{path} is no checkpoint of this version; delete it")
    if state["code"] != code():
        raise CheckpointMismatch(
            f"{path} was made by other code or another torch ({state['code'].split()[-1]}): what "
            "would come out is neither the one's result nor the other's. Go on with the code that "
            "made it, or delete the file to start anew"
        )
    if state["identity"] != identity or state["rounds"] > rounds:
        raise CheckpointMismatch(
            f"{path} is the checkpoint of another run (other methods, options, seed or partition, "
            "or more rounds); delete it to start anew"
        )
    return state


def plain(value: Any) -> Any:
    """Return ``value`` with Python's numbers for NumPy's, which cannot be loaded again."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(member) for member in value)
    return value.item() if isinstance(value, np.generic) else value
