"""Data of one's own: an ``.npz`` file with arrays, or a folder with images sorted by class.

An ``.npz`` file has ``labels``, numbered from 0 or as names, and either ``images`` or ``features``.
It may have a test set, whose arrays have the prefix ``test_``. It may also have ``domains``, and
``clients``: the client that holds each sample. For folders, see `folders`. Where there is no test
set, a fifth of each class becomes one.

Every error says what was seen in the data, and what is taken.
"""

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cflkit._bounds import hint
from cflkit._project import expanded
from cflkit.datasets.files import DatasetError, md5_of, read_arrays
from cflkit.datasets.folders import read_folder
from cflkit.datasets.images import ImageSet, as_features, as_images, fifth_for_test
from cflkit.datasets.labels import Array, in_order, names_in, numbered, whole


def is_own(name: str) -> bool:
    """Return whether a data set's name is the path of a file or folder, and not a known name."""
    with contextlib.suppress(OSError, ValueError):  # such as names that are too long
        path = whole_path(name)
        is_file = path.suffix.lower() == ".npz" and path.is_file()
        return bool(name) and (path.is_dir() or is_file)  # no name at all is no folder
    return False


def whole_path(name: str) -> Path:
    """Return the path with the user's home in place of ``~``, if there is such a user."""
    # Unlike `Path.resolve`, this takes links in a circle
    return Path(os.path.realpath(expanded(name)))


def refusal(name: str, known: Sequence[str]) -> str:
    """Say that a name is neither one of the known data sets nor the path of one's own data."""
    seen = f"unknown data set {name!r}, and no .npz file or folder of images"
    return f"{seen}; the sets are {', '.join(known)}{hint(name, known)}"


def load(name: str) -> ImageSet:
    """Load one's own images or features from the path of an ``.npz`` file or of a folder.

    Records list the data by the name of the file or folder, together with an MD5 and the names of
    classes. What is left out or changed is told in a warning of one line.

    Raises
    ------
    DatasetError
        Arrays or images are missing, damaged, or have a type, a shape or values that do not fit.
    """
    path, notes = whole_path(name), Counter[str]()
    try:
        path.name.encode()
        folder = path.is_dir()
        arrays, md5 = read_folder(path, notes) if folder else (read_arrays(path), md5_of(path))
        pool = from_arrays(arrays, path, md5, notes)
        images = pool if len(pool.test_labels) else with_test_set(pool)
    except (OSError, MemoryError, UnicodeError) as error:
        raise DatasetError(f"{str(path)!a} cannot be read, or is not UTF-8 ({error})") from error
    if notes:
        total = len(images.labels) + len(images.test_labels)
        told = ", ".join(f"{count} × {what}" for what, count in notes.items())
        took = f"{images.name}: took {total} samples of {images.classes} classes"
        warnings.warn(f"{took}; left out or noted: {told}", stacklevel=3)
    return images


def from_arrays(arrays: Mapping[str, Array], path: Path, md5: str, notes: Counter[str]) -> ImageSet:
    """Build an image set from named arrays, which may have no test set."""
    kinds = [kind for kind in ("images", "features") if kind in arrays]
    tests = [key for key in arrays if key in ("test_labels", *(f"test_{kind}" for kind in kinds))]
    if len(kinds) != 1 or "labels" not in arrays or len(tests) == 1:
        seen = ", ".join(arrays) or "no arrays"
        taken = "'labels' and either 'images' or 'features' are taken, and the same with 'test_'"
        raise DatasetError(f"{path} has {seen}; {taken}")
    [kind] = kinds
    known = {kind, "labels", "domains", "clients", *tests}
    notes.update(f"array {key!r}" for key in arrays if key not in known)
    numbers, names = numbers_in(arrays, path)
    convert = as_images if kind == "images" else as_features
    pool = convert(arrays[kind], f"{path}: {kind}"), numbers["labels"]
    test = pool[0][:0], pool[1][:0]
    if tests:
        test = convert(arrays[f"test_{kind}"], f"{path}: test_{kind}"), numbers["test_labels"]
    name, classes = path.name if path.is_dir() else path.stem, int(numbers["labels"].max()) + 1
    domains, owners = numbers.get("domains"), numbers.get("clients")
    return ImageSet(name, *pool, *test, classes, domains, {path.name: md5}, owners, names)


def numbers_in(
    arrays: Mapping[str, Array], path: Path
) -> tuple[dict[str, Tensor], tuple[str, ...] | None]:
    """Return labels, domains and clients as numbers, and the names of classes if they have any."""
    numbers, names = {}, None
    if arrays["labels"].dtype.kind == "U":  # texts
        names = tuple(in_order(names_in(arrays["labels"], f"{path}: labels")[0]))
    for key in [key for key in ("labels", "test_labels", "domains", "clients") if key in arrays]:
        if names and "labels" in key:  # those of both sets are numbered together
            values = numbered(arrays[key], names, f"{path}: {key}")
        else:
            values = whole(arrays[key], f"{path}: {key}", every=key != "test_labels")
        numbers[key] = torch.from_numpy(values)
    return numbers, names


def with_test_set(images: ImageSet) -> ImageSet:
    """Make a test set of a fifth of each class; no class, domain or client may get lost by that."""
    try:
        pool, test = fifth_for_test(images.labels.numpy())  # fails for too few samples of a class
        for what, group in (("domains", images.domains), ("clients", images.owners)):
            if group is not None and (lost := set(group.tolist()) - set(group[pool].tolist())):
                raise ValueError(f"it would have all samples of {what} {sorted(lost)}")
    except ValueError as error:
        fault = f"{images.name}: a fifth of each class cannot become the test set ({error})"
        raise DatasetError(f"{fault}; give a test set of your own, or more samples") from error
    parts = {name: getattr(images, name) for name in ("images", "labels", "domains", "owners")}
    kept: dict[str, Any] = {name: part[pool] for name, part in parts.items() if part is not None}
    tests = images.images[test], images.labels[test]
    return replace(images, **kept, test_images=tests[0], test_labels=tests[1])
