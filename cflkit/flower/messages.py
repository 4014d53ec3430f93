"""Values as Flower records, without pickle: JSON, and arrays beside it.

A node must not run code that it receives. So a message has only what JSON has, and tensors and
arrays. A tuple arrives as a list.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import DTypeLike
from torch import Tensor

# How a message names the place of a tensor or of an array among its arrays
TENSOR, ARRAY = "$tensor", "$array"
# No honest model, loss or embedding has a larger number. Sums of larger ones could overflow, and
# then the fault would no longer be that of the client that sent it
LARGEST = 1e9


def packed(**values: Any) -> RecordDict:
    """Pack named values into two records: ``arrays``, and ``values`` with the rest as JSON.

    Raises
    ------
    TypeError
        A value has another type than the module's description lists.
    """
    arrays: dict[str, Array] = {}

    def placed(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, Tensor | np.ndarray):
            raise TypeError(f"a {type(value).__name__} cannot be sent")
        numbers, name = np.asarray(value), str(len(arrays))
        arrays[name] = Array(np.ascontiguousarray(numbers).reshape(numbers.shape))
        return {TENSOR if isinstance(value, Tensor) else ARRAY: name}

    text = json.dumps(values, default=placed)
    return RecordDict({"arrays": ArrayRecord(arrays), "values": ConfigRecord({"json": text})})


def unpacked(records: RecordDict) -> dict[str, Any]:
    """Return the values of `packed`; a `ValueError` says that these are not its records."""

    def restored(part: dict[str, Any]) -> Any:
        if part.keys() == {TENSOR}:
            return torch.from_numpy(arrays[part[TENSOR]].numpy().copy())
        return arrays[part[ARRAY]].numpy() if part.keys() == {ARRAY} else part

    try:
        arrays: Any = records.array_records["arrays"]
        return dict(json.loads(str(records["values"]["json"]), object_hook=restored))
    # Whatever is sent must not end the receiver: damaged arrays alone raise five errors
    except Exception as error:
        raise ValueError(one_line(f"a message that cannot be read: {error!r}")) from error


def is_array(value: Any, dtype: torch.dtype | DTypeLike, shape: tuple[int | None, ...]) -> bool:
    """Return whether a value is an array of this type and shape, in which None is any size.

    Tensors have a type of torch, and arrays one of NumPy.
    """
    kind = Tensor if isinstance(dtype, torch.dtype) else np.ndarray
    if not isinstance(value, kind) or value.dtype != dtype or value.ndim != len(shape):
        return False
    return all(need in (None, have) for have, need in zip(value.shape, shape, strict=True))


def one_line(text: str) -> str:
    """Return a text of somebody else as one line that is not long."""
    return " ".join(text.split())[:400]
