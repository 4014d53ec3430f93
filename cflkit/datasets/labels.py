"""Labels of one's own data: whole numbers from 0, or names that are numbered together."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflkit.datasets.files import DatasetError

Array = NDArray[Any]
Labels = NDArray[np.int64]
TAKEN = (
    "whole numbers [N] from 0 on without gaps are taken, one per sample; labels may be names "
    "(texts), and test_labels are numbered or named together with them"
)
# What tables of all kinds write where there is no value
MISSING = {"", "nan", "NaN", "NAN", "None", "NA", "N/A", "n/a", "<NA>", "NaT", "NULL", "null"}


def numbered(labels: Array, classes: Sequence[str], what: str) -> Labels:
    """Number names ``[N]`` by their places in a list of classes.

    In a federation, this list is the federation's, never that of one client's own names.

    Raises
    ------
    DatasetError, UnicodeError
        A name is not in the list, or `names_in` refuses the labels.
    """
    names, places = names_in(labels, what)
    if unknown := [name for name in names if name not in classes]:
        known = ", ".join(map(repr, classes))
        raise DatasetError(f"{what} have {unknown[0]!r}, but the classes are {known}")
    return np.array([classes.index(name) for name in names], dtype=np.int64)[places]


def names_in(labels: Array, what: str) -> tuple[list[str], Labels]:
    """Return the distinct names, and for each label ``[N]`` which of them it is.

    A `UnicodeError` says that a name cannot stand in a record.
    """
    values, places = np.unique(flattened(labels, what).astype(str), return_inverse=True)
    return checked_names(values.tolist(), what), places.astype(np.int64)


def checked_names(names: Sequence[str], what: str) -> list[str]:
    """Return distinct names, each in `one_form`.

    Raises
    ------
    DatasetError
        Two names have the same form, or one stands for a value that is missing.
    """
    forms = {name: one_form(name) for name in names}
    counts = Counter(forms.values())
    if doubtful := [name for name, form in forms.items() if form in MISSING or counts[form] > 1]:
        seen = ", ".join(map(ascii, doubtful))
        taken = "each name is taken in one form, and none that stands for a missing value"
        raise DatasetError(f"{what} have the names {seen}; {taken}")
    return list(forms.values())


def one_form(name: str) -> str:
    """Return a name without blanks at its ends, and in the composed Unicode form (NFC).

    A `UnicodeEncodeError` says that it cannot stand in a record.
    """
    name.encode()
    return unicodedata.normalize("NFC", name.strip())


def in_order(names: Iterable[str]) -> list[str]:
    """Return distinct names in alphabetical order, with numbers in them by their values."""

    def key(name: str) -> tuple[list[str | int], str]:
        parts = re.split("([0-9]{1,18})", name)  # Python converts no number of any length
        return [int(part) if place % 2 else part for place, part in enumerate(parts)], name

    return sorted(set(names), key=key)


def flattened(labels: Array, what: str) -> Array:
    """Return labels ``[N]`` or ``[N, 1]`` as ``[N]``; raise a `DatasetError` for other shapes."""
    if not labels.ndim or not labels.size or labels.size != len(labels):
        raise DatasetError(f"{what} have the shape {labels.shape}; {TAKEN}")
    return labels.reshape(-1)


def whole(labels: Array, what: str, every: bool = False) -> Labels:
    """Convert whole numbers ``[N]`` from 0 on to int64; a `DatasetError` if they are none.

    With ``every``, no number may be missing.
    """
    flat = flattened(labels, what)
    if flat.dtype.kind not in "iu":
        raise DatasetError(f"{what} have the type {labels.dtype}; {TAKEN}")
    values = np.unique(flat)
    if values[0] < 0 or (every and values[-1] >= len(values)):
        span = f"{len(values)} values from {values[0]} to {values[-1]}"
        raise DatasetError(f"{what} have {span}; {TAKEN}")
    return flat.astype(np.int64)
