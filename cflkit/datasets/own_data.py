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
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from cflkit.datasets.files import DatasetError, md5_of, md5_of_folder, read_arrays
from cflkit.datasets.images import (
    ImageSet,
    as_features,
    as_images,
    as_labels,
    fifth_for_test,
    read_picture,
)


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
    advice = f"{hint} {', '.join(known)}, or give the path of an .npz file or of a folder of images"
    return f"unknown data set {name!r}; {advice}"


def load(name: str) -> ImageSet:
    """Load one's own images or features from the path of an ``.npz`` file or of a folder.

    Records list the data by the name of the file or folder, together with an MD5.

    Raises
    ------
    DatasetError
        Arrays or images are missing, damaged, or have a type, a shape or values that do not fit.
    """
    path = whole_path(name)
    whole = from_folder(path) if path.is_dir() else from_arrays(path)
    return whole if len(whole.test_labels) else with_test_set(whole)


def from_arrays(path: Path) -> ImageSet:
    """Load an ``.npz`` file, which may have no test set."""
    arrays = read_arrays(path)
    kinds = [kind for kind in ("images", "features") if kind in arrays]
    if len(kinds) == 2:
        raise DatasetError(f"{path} has both 'images' and 'features'; give only one of them")
    if not kinds or "labels" not in arrays:
        found = ", ".join(arrays) or "no arrays"
        raise DatasetError(f"{path} has {found}; it needs 'labels' and 'images' or 'features'")
    [kind] = kinds
    tests = [key for key in (f"test_{kind}", "test_labels") if key in arrays]
    if len(tests) == 1:
        raise DatasetError(f"{path} has {tests[0]}, but a test set needs {kind} and labels")

    def samples(key: str) -> Tensor:
        return (as_images if kind == "images" else as_features)(arrays[key], f"{path}: {key}")

    def numbers(key: str, every: bool = True) -> Tensor:
        return torch.from_numpy(as_labels(arrays[key], f"{path}: {key}", every))

    pool, labels = samples(kind), numbers("labels")
    return ImageSet(
        path.stem,
        pool,
        labels,
        samples(f"test_{kind}") if tests else pool[:0],
        numbers("test_labels", every=False) if tests else labels[:0],
        classes=int(labels.max()) + 1,
        domains=numbers("domains") if "domains" in arrays else None,
        files={path.name: md5_of(path)},
        owners=numbers("clients") if "clients" in arrays else None,
    )


def with_test_set(whole: ImageSet) -> ImageSet:
    """Make a test set of a fifth of each class; no class, domain or client may get lost by that."""
    counts, total, fault = whole.labels.bincount(), len(whole.labels), None
    if counts.min() < 2:
        fault = f"class {int(counts.argmin())} has one sample, but needs one to train, one to test"
    elif math.ceil(total / 5) < whole.classes:
        fault = f"a fifth of {total} samples is too small to test all {whole.classes} classes"
    else:
        kept, held = fifth_for_test(whole.labels.numpy())
        for what, group in (("domains", whole.domains), ("clients", whole.owners)):
            if group is not None and (lost := set(group.tolist()) - set(group[kept].tolist())):
                fault = f"the test set would have all samples of {what} {sorted(lost)}"
    if fault:
        remedy = "give a test set of your own, or more samples"
        raise DatasetError(f"{whole.name}: {fault}; {remedy}")
    return replace(
        whole,
        images=whole.images[kept],
        labels=whole.labels[kept],
        test_images=whole.images[held],
        test_labels=whole.labels[held],
        domains=None if whole.domains is None else whole.domains[kept],
        owners=None if whole.owners is None else whole.owners[kept],
    )


# --- Folders of images ---------------------------------------------------------------------------


def from_folder(folder: Path) -> ImageSet:
    """Load images from one folder per class, or from ``train`` and ``test`` with such folders."""
    entries = folders_in(folder)
    split = entries == ["test", "train"]
    if not split and len({"train", "test", "val", "valid", "validation"} & set(entries)) > 1:
        advice = "give it 'train' and 'test' alone, or one folder per class"
        raise DatasetError(f"{folder} has the folders {', '.join(entries)}; {advice}")
    pool, labels, names, members = images_by_class(folder / "train" if split else folder)
    test, test_labels = pool[:0], labels[:0]
    if split:
        test, test_labels, test_names, others = images_by_class(folder / "test")
        if test_names != names:
            raise DatasetError(
                f"{folder}: train has {names} and test {test_names}; they must be the same"
            )
        members += others
    files = {folder.name: md5_of_folder(folder, members)}
    return ImageSet(folder.name, pool, labels, test, test_labels, len(names), files=files)


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, except hidden ones, in ascending order."""
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."
    )


def images_by_class(folder: Path) -> tuple[Tensor, Tensor, list[str], list[Path]]:
    """Read a folder of classes: images ``[N, 3, H, W]``, labels, names of classes, and paths."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    names = folders_in(folder)
    if not names:
        raise DatasetError(f"{folder} has no folders; it must have one folder of images per class")
    for name in names:
        if inner := folders_in(folder / name):
            advice = "give one folder of images per class, or 'train' and 'test' with such folders"
            raise DatasetError(f"{folder / name} has the folders {', '.join(inner)}; {advice}")
    number = {name: label for label, name in enumerate(names)}
    try:
        found = make_dataset(str(folder), number, extensions=IMG_EXTENSIONS)
    except (FileNotFoundError, ValueError) as error:
        raise DatasetError(f"{folder} must have one folder of images per class: {error}") from error
    images: list[Tensor] = []
    for path, _ in found:
        image = read_picture(path)
        if images and image.shape != images[0].shape:
            sizes = " and not ".join(f"{x.shape[2]}×{x.shape[1]}" for x in (image, images[0]))
            raise DatasetError(f"{path} has {sizes} pixels; scale all images to one size first")
        images.append(image)
    labels = torch.tensor([label for _, label in found])
    return torch.stack(images), labels, names, [Path(path) for path, _ in found]
