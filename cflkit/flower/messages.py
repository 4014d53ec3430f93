"""Values as Flower records, without pickle: JSON, and arrays beside it.

A node must not run code that it receives. So a message has only what JSON has, and tensors and
arrays. A tuple arrives as a list.
"""

import json
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

# How a message names the place of a tensor or of an array among its arrays
TENSOR, ARRAY = "$tensor", "$array"


def packed(value: Any) -> RecordDict:
    """Pack a value into two records: its ``arrays``, and ``values`` with the rest as JSON.

    Raises
    ------
    TypeError
        A part of the value has another type than the module's description lists.
    """
    arrays: dict[str, Array] = {}

    def placed(part: Any) -> Any:
        if isinstance(part, np.generic):
            return part.item()
        if not isinstance(part, Tensor | np.ndarray):
            raise TypeError(f"a {type(part).__name__} cannot be sent")
        name = str(len(arrays))
        arrays[name] = Array(np.array(np.asarray(part), order="C"))
        return {TENSOR if isinstance(part, Tensor) else ARRAY: name}

    text = json.dumps(value, default=placed)
    return RecordDict({"arrays": ArrayRecord(arrays), "values": ConfigRecord({"json": text})})


def unpacked(records: RecordDict) -> Any:
    """Return the value of `packed`; other records raise errors of many kinds."""
    arrays: Any = records["arrays"]

    def restored(part: dict[str, Any]) -> Any:
        if part.keys() == {TENSOR}:
            return torch.from_numpy(arrays[part[TENSOR]].numpy().copy())
        return arrays[part[ARRAY]].numpy() if part.keys() == {ARRAY} else part

    values: Any = records["values"]
    return json.loads(values["json"], object_hook=restored)


def checked(value: Any, dtype: torch.dtype, *shape: int | None) -> Tensor:
    """Return a value if it is a tensor of this type and shape, in which None is any size.

    Raises
    ------
    ValueError
        It is something else.
    """
    needed = dtype, *shape
    form = (value.dtype, *value.shape) if isinstance(value, Tensor) else (type(value).__name__,)
    fits = (need in (None, have) for need, have in zip(needed, form, strict=False))
    if len(form) != len(needed) or not all(fits):
        raise ValueError(f"an array must be {needed}, not {form}")
    return value
