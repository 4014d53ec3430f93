"""Data of one's own: an ``.npz`` file with arrays, or a folder with images sorted by class.

An ``.npz`` file has ``labels``, numbered from 0 or as names, and either ``images`` or ``features``.
It may have a test set, whose arrays have the prefix ``test_``. It may also have ``domains``, and
``clients``: the client that holds each sample. For folders, see `folders`. Where there is no test
set, a fifth of each class becomes one.

Every error says what is wrong with the data, and what to do. Whoever does so gets right data.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cflkit._bounds import nearest
from cflkit._files import expanded
from cflkit.datasets.files import DatasetError, md5_of, read_arrays
from cflkit.datasets.folders import Notes, from_folder
from cflkit.datasets.images import ImageSet, as_features, as_images, fifth_for_test
from cflkit.datasets.labels import (
    NAMED,
    WITHOUT_GAPS,
    Array,
    as_labels,
    in_order,
    names_in,
    numbered,
)

# Images whose largest pixel is below this share of white are told of
FAINT = 0.25


def is_own(name: str) -> bool:
    """Return whether a data set's name is the path of a file or folder, and not a known name."""
    if not name.strip():
        return False
    with contextlib.suppress(OSError, ValueError):  # such as names that are too long
        path = whole_path(name)
        return path.is_dir() or (path.suffix.lower() == ".npz" and path.is_file())
    return False


def whole_path(name: str) -> Path:
    """Return the path with the user's home in place of ``~``, if there is such a user."""
    # Unlike `Path.resolve`, this takes links in a circle
    return Path(os.path.realpath(expanded(name)))


def refusal(name: str, known: Sequence[str]) -> str:
    """Say why a name is neither one of the known data sets nor one's own data."""
    path = Path(name)
    with contextlib.suppress(OSError, ValueError):
        path = whole_path(name)
        if path.is_file():
            return f"{name} is no .npz file; give one, or a folder of images"
    if path.suffix or len(Path(name).parts) > 1:
        return f"there is no file or folder {name}"
    near = nearest(name, known)
    hint = f"did you mean {near!r}? The sets are" if near else "choose from"
    advice = f"{hint} {', '.join(known)}, or give the path of an .npz file or of a folder of images"
    return f"unknown data set {name!r}; {advice}"


def load(name: str) -> ImageSet:
    """Load one's own images or features from the path of an ``.npz`` file or of a folder.

    Records list the data by the name of the file or folder, together with an MD5 and the names of
    classes. What is left out or changed is told in a warning of one line.

    Raises
    ------
    DatasetError
        Arrays or images are missing, damaged, or have a type, a shape or values that do not fit.
    """
    path, notes = whole_path(name), Notes()
    try:
        path.name.encode()
        whole = from_folder(path, notes) if path.is_dir() else from_arrays(path, notes)
        images = whole if len(whole.test_labels) else with_test_set(whole)
    except UnicodeEncodeError as error:
        raise DatasetError(f"{path!a} is, or has, a name that is not UTF-8; rename it") from error
    except (OSError, MemoryError) as error:
        raise DatasetError(f"{path} cannot be read ({error})") from error
    most = float(images.images.max()) / (1 if images.images.is_floating_point() else 255)
    if 0 < most < FAINT and images.shape[1:] != (1, 1):  # features may have any values
        notes.changed[f"the brightest pixel has {most:.2g} of white; are images scaled right?"] = 0
    if notes.left or notes.changed:
        warnings.warn(notes.line(images), stacklevel=3)
    return images


def from_arrays(path: Path, notes: Notes) -> ImageSet:
    """Load an ``.npz`` file, which may have no test set."""
    arrays = read_arrays(path)
    kinds = [kind for kind in ("images", "features") if kind in arrays]
    if len(kinds) == 2:
        raise DatasetError(f"{path} has both 'images' and 'features'; give only one of them")
    if not kinds or "labels" not in arrays:
        seen = ", ".join(arrays) or "no arrays"
        raise DatasetError(f"{path} has {seen}; it needs 'labels' and 'images' or 'features'")
    [kind] = kinds
    tests = [key for key in (f"test_{kind}", "test_labels") if key in arrays]
    if len(tests) == 1:
        raise DatasetError(f"{path} has {tests[0]}, but a test set needs {kind} and labels")
    known = {kind, "labels", "domains", "clients", *tests}
    notes.left.update(f"array {key!r}" for key in arrays if key not in known)
    convert = as_images if kind == "images" else as_features

    def numbers(key: str) -> Tensor | None:
        return torch.from_numpy(as_labels(arrays[key], f"{path}: {key}")) if key in arrays else None

    pool = convert(arrays[kind], f"{path}: {kind}")
    labels, test_labels, names = labels_in(arrays, path)
    return ImageSet(
        path.stem,
        pool,
        labels,
        convert(arrays[tests[0]], f"{path}: {tests[0]}") if tests else pool[:0],
        test_labels,
        classes=int(labels.max()) + 1,
        domains=numbers("domains"),
        files={path.name: md5_of(path)},
        owners=numbers("clients"),
        class_names=names,
    )


def labels_in(
    arrays: Mapping[str, Array], path: Path
) -> tuple[Tensor, Tensor, tuple[str, ...] | None]:
    """Return the labels of the pool and of the test set, and the names of classes if they have any.

    Names of both are numbered together.
    """
    keys = [key for key in ("labels", "test_labels") if key in arrays]
    names, form = None, f"{WITHOUT_GAPS}, {NAMED}"
    if all(arrays[key].dtype.kind in "US" for key in keys):  # texts
        names = tuple(in_order(names_in(arrays["labels"], f"{path}: labels")[0]))
        numbers = [numbered(arrays[key], names, f"{path}: {key}") for key in keys]
    else:
        numbers = [as_labels(arrays[key], f"{path}: {key}", form, key == "labels") for key in keys]
    labels, *tests = map(torch.from_numpy, numbers)
    return labels, tests[0] if tests else labels[:0], names


def with_test_set(whole: ImageSet) -> ImageSet:
    """Make a test set of a fifth of each class; no class, domain or client may get lost by that."""
    counts, total, fault = whole.labels.bincount(), len(whole.labels), None
    if counts.min() < 2:
        rare = int(counts.argmin())
        name = repr(whole.class_names[rare]) if whole.class_names else rare
        fault = f"class {name} has one sample, but needs one to train, one to test"
    elif math.ceil(total / 5) < whole.classes:
        fault = f"a fifth of {total} samples is too small to test all {whole.classes} classes"
    else:
        pool, test = fifth_for_test(whole.labels.numpy())
        for what, group in (("domains", whole.domains), ("clients", whole.owners)):
            if group is not None and (lost := set(group.tolist()) - set(group[pool].tolist())):
                fault = f"the test set would have all samples of {what} {sorted(lost)}"
    if fault:
        remedy = "give a test set of your own, or more samples"
        raise DatasetError(f"{whole.name}: {fault}; {remedy}")
    return replace(
        whole,
        images=whole.images[pool],
        labels=whole.labels[pool],
        test_images=whole.images[test],
        test_labels=whole.labels[test],
        domains=None if whole.domains is None else whole.domains[pool],
        owners=None if whole.owners is None else whole.owners[pool],
    )
