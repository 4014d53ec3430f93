"""Data of one's own: an ``.npz`` file with arrays, or a folder with images sorted by class.

An ``.npz`` file has ``labels`` and either ``images`` or ``features``. It may have a test set, whose
arrays have the prefix ``test_``. It may also have ``domains``, and ``clients``: the client that
holds each sample. A folder has one folder of images per class. It may instead have the folders
``train`` and ``test``, each with the same classes. Where there is no test set, a fifth of each
class becomes one.

Every error says what is wrong with the data, and what to do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from PIL.Image import DecompressionBombError as TooLarge
from torch import Tensor

from cflkit.datasets import ImageSet, fifth_for_test
from cflkit.datasets.files import DataFiles, DatasetError, md5_of, read_arrays

Array = NDArray[Any]
Labels = NDArray[np.int64]


def is_own(name: str) -> bool:
    """Return whether a data set's name is the path of a file or folder, and not a known name."""
    if not name.strip():
        return False
    path = whole_path(name)
    return path.is_dir() if path.suffix != ".npz" else path.is_file()


def whole_path(name: str) -> Path:
    """Return the path with the user's home in place of ``~``, if there is such a user."""
    with contextlib.suppress(RuntimeError):
        return Path(name).expanduser().resolve()
    return Path(name).resolve()


def refusal(name: str, known: Sequence[str]) -> str:
    """Say why a name is neither one of the known data sets nor one's own data."""
    path = whole_path(name)
    if path.is_file():
        return f"{name} is no .npz file; give one, or a folder of images"
    if path.suffix or len(Path(name).parts) > 1:
        return f"there is no file or folder {name}"
    near = get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}? The sets are" if near else "choose from"
    return (
        f"unknown data set {name!r}; {hint} {', '.join(known)}, or give the path of an .npz file "
        "or of a folder of images"
    )


def load(name: str) -> ImageSet:
    """Load one's own images or features.

    Parameters
    ----------
    name : str
        The path of an ``.npz`` file or of a folder. Records list it by its name, together with an
        MD5. The name of the set is that without the file's ending.

    Returns
    -------
    ImageSet

    Raises
    ------
    DatasetError
        Arrays or images are missing, damaged, or have a type, a shape or values that do not fit.
    """
    path = whole_path(name)
    return from_folder(path) if path.is_dir() else from_arrays(path)


# --- Arrays --------------------------------------------------------------------------------------


def from_arrays(path: Path) -> ImageSet:
    """Load an ``.npz`` file without unpickling anything.

    Raises
    ------
    DatasetError
        An array is missing, or does not fit the others.
    """
    arrays = read_arrays(path)
    kinds = [kind for kind in ("images", "features") if kind in arrays]
    if len(kinds) == 2:
        raise DatasetError(f"{path} has both 'images' and 'features'; give only one of them")
    if not kinds or "labels" not in arrays:
        raise DatasetError(
            f"{path} has {', '.join(arrays) or 'no arrays'}; it must have 'labels' and either "
            "'images' or 'features'"
        )
    [kind] = kinds
    given = [key for key in (f"test_{kind}", "test_labels") if key in arrays]
    if len(given) == 1:
        raise DatasetError(f"{path} has {given[0]}, but a test set needs {kind} and labels")
    convert = as_images if kind == "images" else as_features
    pool = convert(arrays[kind], f"{path}: {kind}")
    labels = as_labels(arrays["labels"], f"{path}: labels")
    if len(pool) != len(labels):
        raise DatasetError(f"{path} has {len(pool)} {kind} and {len(labels)} labels")
    test = None
    if given:
        held = convert(arrays[f"test_{kind}"], f"{path}: test_{kind}")
        test = held, as_labels(arrays["test_labels"], f"{path}: test_labels", every=False)
    groups = {}
    for what in {"domains", "clients"} & set(arrays):
        groups[what] = as_labels(arrays[what], f"{path}: {what}")
        if len(groups[what]) != len(labels):
            raise DatasetError(f"{path} has {len(groups[what])} {what} and {len(labels)} labels")
    return assembled(path.stem, pool, labels, test, {path.name: md5_of(path)}, groups)


def assembled(
    name: str,
    pool: Tensor,
    labels: Labels,
    test: tuple[Tensor, Labels] | None,
    files: dict[str, str],
    groups: Mapping[str, Labels] = MappingProxyType({}),
) -> ImageSet:
    """Build the set; without test samples, a fifth of each class becomes the test set.

    ``groups`` may have the ``domains`` and the ``clients`` of the samples.

    Raises
    ------
    DatasetError
        A class has too few samples for a pool and a test set.
    """
    classes = int(labels.max()) + 1
    if test is None:
        counts = np.bincount(labels)
        if counts.min() < 2:
            raise DatasetError(
                f"{name}: class {counts.argmin()} has one sample, which cannot be both in the pool "
                "and in the test set; give a test set of your own, or more samples"
            )
        if math.ceil(len(labels) / 5) < classes:
            raise DatasetError(
                f"{name}: a fifth of {len(labels)} samples is too small for a test set with all "
                f"{classes} classes; give a test set of your own, or more samples"
            )
        kept, held = fifth_for_test(labels)
        test = pool[held], labels[held]
        pool, labels = pool[kept], labels[kept]
        for what, group in groups.items():
            if lost := sorted(set(group.tolist()) - set(group[kept].tolist())):
                raise DatasetError(
                    f"{name}: the test set would have all samples of {what} {lost}; give a test "
                    "set of your own, or more samples"
                )
        groups = {what: group[kept] for what, group in groups.items()}
    domains, owners = (
        torch.from_numpy(groups[what]) if what in groups else None
        for what in ("domains", "clients")
    )
    return ImageSet(
        name,
        pool,
        torch.from_numpy(labels),
        test[0],
        torch.from_numpy(test[1]),
        classes,
        domains,
        files,
        owners,
    )


def as_images(images: Array, what: str) -> Tensor:
    """Convert ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``; floats stay in [0, 1].

    Raises
    ------
    DatasetError
        The array has another type or shape, or floats beyond [0, 1].
    """
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DatasetError(
            f"{what} have the shape {images.shape}; give [N, height, width], or four dimensions "
            "with 1 or 3 channels, second or last"
        )
    if images.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(images))
    if not np.issubdtype(images.dtype, np.floating):
        raise DatasetError(
            f"{what} have the type {images.dtype}; give uint8 from 0 to 255 (astype(np.uint8)), or "
            "floats from 0 to 1"
        )
    if images.size and not (np.isfinite(images).all() and 0 <= images.min() <= images.max() <= 1):
        raise DatasetError(
            f"{what} are floats from {images.min():g} to {images.max():g}; they must be from 0 to "
            "1. Divide them, or give them as 'features', which networks get as they are"
        )
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))


def as_features(features: Array, what: str) -> Tensor:
    """Convert features ``[N, d]`` to the shape of images, ``[N, d, 1, 1]``.

    Raises
    ------
    DatasetError
        The array has another type or shape, or numbers that are not finite.
    """
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise DatasetError(
            f"{what} have the shape {features.shape} and the type {features.dtype}; give numbers "
            "of the shape [N, d]"
        )
    with np.errstate(over="ignore"):
        values = features.astype(np.float32)
    if not np.isfinite(values).all():
        rows = np.flatnonzero(~np.isfinite(values).all(axis=1))
        raise DatasetError(
            f"{what} have NaN, infinity or numbers beyond float32 in {len(rows)} rows, first in "
            f"{rows[0]}"
        )
    return torch.from_numpy(values)[:, :, None, None]


def as_labels(labels: Array, what: str, every: bool = True) -> Labels:
    """Convert labels ``[N]`` to int64; with ``every``, no number from 0 on may be missing.

    Raises
    ------
    DatasetError
        The labels have another type or shape, or leave numbers out.
    """
    flat = labels.reshape(-1) if labels.ndim and labels.size == len(labels) else labels
    name = what.rsplit(" ", 1)[-1]
    if flat.ndim == 1 and not len(flat):
        raise DatasetError(f"{what} are empty; there must be samples")
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer):
        raise DatasetError(
            f"{what} have the shape {labels.shape} and the type {labels.dtype}; give one whole "
            f"number per sample. np.unique({name}, return_inverse=True)[1] makes numbers of names"
        )
    found = np.unique(flat)
    if found[0] < 0 or (every and (found != np.arange(len(found))).any()):
        raise DatasetError(
            f"{what} have {len(found)} values from {found[0]} to {found[-1]}; number them from 0 "
            f"without gaps. np.unique({name}, return_inverse=True)[1] does this"
        )
    return flat.astype(np.int64)


# --- Folders of images ---------------------------------------------------------------------------


def from_folder(folder: Path) -> ImageSet:
    """Load images from one folder per class, or from ``train`` and ``test`` with such folders.

    Raises
    ------
    DatasetError
        The folders have another form, or ``train`` and ``test`` have other classes.
    """
    entries = folders_in(folder)
    split = entries == ["test", "train"]
    if not split and len({"train", "test", "val", "valid", "validation"} & set(entries)) > 1:
        raise DatasetError(
            f"{folder} has the folders {', '.join(entries)}; give it 'train' and 'test' alone, or "
            "one folder per class"
        )
    pool, labels, names, members = images_by_class(folder / "train" if split else folder)
    test = None
    if split:
        held, held_labels, held_names, others = images_by_class(folder / "test")
        if held_names != names:
            raise DatasetError(
                f"{folder}: 'train' has the classes {', '.join(names)}, and 'test' has "
                f"{', '.join(held_names)}; they must be the same"
            )
        test, members = (held, held_labels), members + others
    files = DataFiles(folder.name)
    files.note_folder(folder.name, folder, members)
    return assembled(folder.name, pool, labels, test, files.md5)


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, except hidden ones, in ascending order."""
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."
    )


def images_by_class(folder: Path) -> tuple[Tensor, Labels, list[str], list[Path]]:
    """Read a folder of classes: images ``[N, 3, H, W]``, labels, names of classes, and paths.

    Raises
    ------
    DatasetError
        There are no folders of images, or an image is damaged or has another size.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader, make_dataset
    from torchvision.transforms.v2.functional import pil_to_tensor

    names = folders_in(folder)
    if not names:
        raise DatasetError(f"{folder} has no folders; it must have one folder of images per class")
    for name in names:
        if inner := folders_in(folder / name):
            raise DatasetError(
                f"{folder / name} has the folders {', '.join(inner)}; give one folder of images "
                "per class, or 'train' and 'test' with such folders"
            )
    number = {name: label for label, name in enumerate(names)}
    try:
        found = make_dataset(str(folder), number, extensions=IMG_EXTENSIONS)
    except (FileNotFoundError, ValueError) as error:
        raise DatasetError(f"{folder} must have one folder of images per class: {error}") from error
    images: list[Tensor] = []
    for path, _ in found:
        try:
            with PIL.Image.open(path) as picture:
                mode = picture.mode
            image = pil_to_tensor(default_loader(path))
        # What Pillow raises for damaged files depends on their format
        except (OSError, ValueError, TypeError, SyntaxError, TooLarge) as error:
            raise DatasetError(f"{path} is damaged ({error})") from error
        if mode[0] in "IF":  # the conversion to RGB would clip them
            raise DatasetError(
                f"{path} has more than 8 bits per pixel; give such images as floats from 0 to 1 in "
                "an .npz file"
            )
        if images and image.shape != images[0].shape:
            (first_height, first_width), (height, width) = images[0].shape[1:], image.shape[1:]
            raise DatasetError(
                f"{path} has {width}×{height} pixels, and the images before have "
                f"{first_width}×{first_height}; scale all images to one size first"
            )
        images.append(image)
    labels = np.array([label for _, label in found], dtype=np.int64)
    return torch.stack(images), labels, names, [Path(path) for path, _ in found]
