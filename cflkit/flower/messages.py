"""Values as Flower records, without pickle: numbers and texts as JSON, tensors as arrays.

A node must not run code that it receives. So a message has only values of these types: None, bool,
int, float, str, bytes, tensors, arrays, and lists, tuples and dictionaries of such values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor


def packed(values: Mapping[str, Any]) -> RecordDict:
    """Pack named values into two records: ``arrays``, and ``values`` with the rest as JSON.

    The name of an array says where it belongs, such as ``jobs.models`` or ``answer.3``.

    Raises
    ------
    TypeError
        A value has another type than the module's description lists.
    """
    arrays: dict[str, Array] = {}
    tree = {name: taken_apart(value, name, arrays) for name, value in values.items()}
    return RecordDict(
        {"arrays": ArrayRecord(arrays), "values": ConfigRecord({"json": json.dumps(tree)})}
    )


def taken_apart(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """Put the arrays of a value into ``arrays``, and return the rest in a form that JSON has."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Tensor | np.ndarray):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        found = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        arrays[name] = Array(np.ascontiguousarray(found).reshape(found.shape))
        return {kind: name}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        parts = enumerate(value)
        return {kind: [taken_apart(part, f"{name}.{place}", arrays) for place, part in parts]}
    if isinstance(value, Mapping):
        pairs = [[key, taken_apart(part, f"{name}.{key}", arrays)] for key, part in value.items()]
        return {"dict": pairs}
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be sent")


def unpacked(records: RecordDict) -> dict[str, Any]:
    """Return the values of `packed`.

    Raises
    ------
    ValueError
        The records are not those of `packed`.
    """
    try:
        arrays = records["arrays"]
        tree = json.loads(str(records["values"]["json"]))
        return {name: put_together(part, arrays) for name, part in tree.items()}
    # Whatever a node sends, it must not end the server: damaged arrays alone raise five errors
    except Exception as error:
        raise ValueError(f"a message that cannot be read: {error!r}") from error


def one_line(text: str) -> str:
    """Return a text of somebody else as one line that is not long."""
    return " ".join(text.split())[:400]


def put_together(part: Any, arrays: Any) -> Any:
    """Return the value that `taken_apart` took apart."""
    if not isinstance(part, dict):
        return part
    [(kind, content)] = part.items()
    if kind == "tensor":
        return torch.from_numpy(arrays[content].numpy().copy())
    if kind == "array":
        return arrays[content].numpy()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {key: put_together(value, arrays) for key, value in content}
    values = [put_together(value, arrays) for value in content]
    return tuple(values) if kind == "tuple" else values
