"""Labels of one's own data: whole numbers from 0, or names that are numbered together."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflkit.datasets.files import DatasetError

Array = NDArray[Any]
Labels = NDArray[np.int64]
# Arrays with numbers that no other array shares
ALONE = ("domains", "clients")


def are_names(labels: Array) -> bool:
    """Return whether labels are texts, and not numbers."""
    return labels.dtype.kind in "US"


def numbered(labels: Array, classes: Sequence[str], what: str) -> Labels:
    """Number names ``[N]`` by their places in a list of classes.

    In a federation, this list is the federation's, never that of one client's own names.

    Raises
    ------
    DatasetError
        A name is not in the list, or `names_in` refuses the labels.
    """
    found, places = names_in(labels, what)
    if unknown := [name for name in found if name not in classes]:
        known = ", ".join(map(repr, classes))
        raise DatasetError(f"{what} have {unknown[0]!r}, but the classes are {known}")
    return np.array([classes.index(name) for name in found], dtype=np.int64)[places]


def names_in(labels: Array, what: str) -> tuple[list[str], Labels]:
    """Return the distinct names, and for each label ``[N]`` which of them it is.

    Names that differ only in their Unicode form, such as two kinds of é, are the same name; so they
    may stand twice in the list.
    """
    flat = flattened(labels, what)
    try:
        texts = np.char.decode(flat, "utf-8") if flat.dtype.kind == "S" else flat.astype(str)
    except UnicodeDecodeError as error:
        raise DatasetError(f"{what} have names that are not UTF-8 ({error})") from error
    values, places = np.unique(texts, return_inverse=True)
    found = [one_form(str(value)) for value in values]
    if "" in found:
        empty = int(np.flatnonzero(np.array(found)[places] == "")[0])
        raise DatasetError(f"{what} have no name in place {empty}; leave out what has no class")
    return found, places.astype(np.int64)


def one_form(name: str) -> str:
    """Return a name in the composed Unicode form (NFC), in which equal names are equal.

    A `UnicodeEncodeError` says that it cannot stand in a record.
    """
    name.encode()
    return unicodedata.normalize("NFC", name)


def in_order(names: Iterable[str]) -> list[str]:
    """Return distinct names in alphabetical order, with numbers in them by their values."""

    def key(name: str) -> tuple[list[str | int], str]:
        parts = re.split("([0-9]{1,18})", name)  # Python converts no number of any length
        return [int(part) if place % 2 else part for place, part in enumerate(parts)], name

    return sorted(set(names), key=key)


def flattened(labels: Array, what: str) -> Array:
    """Return labels ``[N]`` or ``[N, 1]`` as ``[N]``; raise a `DatasetError` for other shapes."""
    key = what.rsplit(" ", 1)[-1]
    flat = labels.reshape(-1) if labels.ndim and labels.size == len(labels) else labels
    if flat.ndim == 1 and not len(flat):
        raise DatasetError(f"{what} are empty; there must be samples")
    if flat.ndim == 1:
        return flat
    fault = f"{what} have the shape {labels.shape}; give one whole number per sample"
    numbers = labels.ndim == 2 and labels.dtype.kind in "biuf" and labels.size
    if numbers and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all():
        fault += f", which for one-hot rows is {key}.argmax(axis=1)"
    raise DatasetError(fault)


def whole(labels: Array, what: str) -> Labels:
    """Convert whole numbers ``[N]`` to int64; a `DatasetError` if they are something else."""
    key, flat = what.rsplit(" ", 1)[-1], flattened(labels, what)
    kind = flat.dtype.kind
    if kind in "iu":
        return flat.astype(np.int64)
    fault = f"{what} have the type {labels.dtype}; give one whole number per sample"
    if kind == "b" or (kind == "f" and (flat == np.rint(flat)).all() and abs(flat).max() < 2**53):
        fault += f", as {key}.astype(int)"
    elif key in ALONE:
        fault += f", as np.unique({key}, return_inverse=True)[1]"
    elif are_names(flat):
        fault += ", that of its class in the federation"
    raise DatasetError(fault)


def as_labels(labels: Array, what: str, every: bool = True) -> Labels:
    """Convert labels ``[N]`` to int64; with ``every``, no number from 0 on may be missing."""
    key, found = what.rsplit(" ", 1)[-1], whole(labels, what)
    values = np.unique(found)
    if values[0] < 0 or (every and (values != np.arange(len(values))).any()):
        advice = f"np.unique({key}, return_inverse=True)[1]"
        if key not in ALONE:  # then the test set must be numbered in the same way
            advice = f"give names, as {key}.astype(str), also of the test set"
        raise DatasetError(
            f"{what} have {len(values)} values from {values[0]} to {values[-1]}; number them from "
            f"0 without gaps, {'as' if key in ALONE else 'or'} {advice}"
        )
    return found
