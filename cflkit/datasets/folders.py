"""Folders of pictures: one folder per class.

There may be ``train`` and ``test`` with the same such folders, or one folder per client with some
of them, whose images then have owners.

Pictures have the formats of `FORMATS`, 8 bits per pixel and one size. They are turned as their EXIF
says, and put on white where they are transparent; of several pages, the first is taken. Hidden
files and folders, and files of other formats, are left out. `Notes` counts all of that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from PIL.ExifTags import Base
from PIL.ImageOps import exif_transpose
from torch import Tensor

from cflkit.datasets.files import DatasetError, check_size, md5_of_folder
from cflkit.datasets.images import ImageSet, as_rgb, opened
from cflkit.datasets.labels import checked_names, in_order, one_form

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
TAKEN = (
    "one folder of images per class is taken, or such folders in 'train' and 'test' alone, or in "
    "one folder per client"
)
# What systems write into folders, which is never a picture
LITTER = {"thumbs.db", "desktop.ini", ".ds_store"}


@dataclass
class Notes:
    """What was left out of one's own data and what was changed, each with its number."""

    left: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)

    def line(self, images: ImageSet) -> str:
        """Say in one line what was taken, left out and changed."""
        total = len(images.labels) + len(images.test_labels)
        text = f"{images.name}: took {total} samples of {images.classes} classes"
        for what, counts in (("left out", self.left), ("note", self.changed)):
            listed = [f"{count} × {name}" if count else name for name, count in counts.items()]
            text += f"; {what}: {', '.join(listed)}" if listed else ""
        return " ".join(text.split())


@cache
def readable() -> tuple[str, ...]:
    """Return the formats that can be read here."""
    PIL.Image.init()
    return tuple(form for form in FORMATS if form in PIL.Image.OPEN)


@cache
def endings() -> frozenset[str]:
    """Return the endings of file names of these formats."""
    known = PIL.Image.registered_extensions()
    return frozenset(ending for ending, form in known.items() if form in readable())


def from_folder(folder: Path, notes: Notes) -> ImageSet:
    """Load images of one folder per class, of one such folder per client, or of train and test."""
    entries = folders_in(folder)
    if not entries:
        raise DatasetError(f"{folder} has no folders; {TAKEN}")
    within = [bool(folders_in(folder / entry)) for entry in entries]
    nested, divided = all(within), entries == ["test", "train"]
    splits = {"train", "test", "val", "valid", "validation"} & {name.lower() for name in entries}
    # A class, but no client, may be called like one of the splits
    fits = nested == any(within) and len(splits) <= (not nested)
    if not (nested if divided else fits):
        raise DatasetError(f"{folder} has the folders {', '.join(entries)}; {TAKEN}")
    parts = [folder / entry for entry in entries] if nested else [folder]
    for place in {folder, *parts}:
        notes.left.update(left_beside(place))
    names = [checked_names(folders_in(part), f"folders of {part}") for part in parts]
    if divided and names[0] != names[1]:
        fault = f"test has the classes {', '.join(names[0])}, and train {', '.join(names[1])}"
        raise DatasetError(f"{folder}: {fault}; they must be the same")
    classes = in_order(chain(*names))
    pictures = [pictures_of_classes(part, classes, notes) for part in parts]
    paths = [path for part in pictures for path, _ in part]
    check_sizes(folder, paths)
    images = [torch.stack([read(path, notes) for path, _ in part]) for part in pictures]
    labels = [torch.tensor([label for _, label in part]) for part in pictures]
    tests = images[0][:0], labels[0][:0]
    if divided:
        tests = images.pop(0), labels.pop(0)
    owners = torch.arange(len(images)).repeat_interleave(torch.tensor([*map(len, images)]))
    return ImageSet(
        folder.name,
        torch.cat(images),
        torch.cat(labels),
        *tests,
        len(classes),
        files={folder.name: md5_of_folder(folder, paths)},
        owners=owners if len(images) > 1 else None,
        class_names=tuple(classes),
    )


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, except hidden ones, in ascending order."""
    return in_order(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] != ".")


def left_beside(folder: Path) -> list[str]:
    """Name what lies beside folders of classes, once for each thing."""
    entries = [entry for entry in folder.iterdir() if entry.name.lower() not in LITTER]
    hidden = ["hidden" for entry in entries if entry.name[0] == "."]
    files = [entry for entry in entries if entry.name[0] != "." and not entry.is_dir()]
    return hidden + ["file beside the folders"] * len(files)


def pictures_of_classes(
    folder: Path, classes: Sequence[str], notes: Notes
) -> list[tuple[Path, int]]:
    """Return the paths and labels of the pictures in the folders of classes in a folder."""
    held: list[tuple[Path, int]] = []
    for name in folders_in(folder):
        if folders_in(folder / name):
            raise DatasetError(f"{folder / name} has folders; {TAKEN}")
        label = classes.index(one_form(name))
        held += [(path, label) for path in pictures_in(folder / name, notes)]
    return held


def pictures_in(folder: Path, notes: Notes) -> list[Path]:
    """Return the paths of a class's pictures by name; what is left out is told."""
    pictures = []
    for path in sorted(folder.iterdir()):
        if path.name.lower() in LITTER:
            continue
        if path.name[0] == ".":
            notes.left["hidden"] += 1
        elif path.suffix.lower() not in endings():
            notes.left[path.suffix or "file without an ending"] += 1
        elif not path.is_file():  # opening a FIFO would wait for ever
            raise DatasetError(f"{path} is no file; is it a link to one that is gone?")
        else:
            pictures.append(path)
    if not pictures:
        known = ", ".join(sorted(endings()))
        raise DatasetError(f"{folder} has no picture; endings are {known}")
    return pictures


def check_sizes(folder: Path, paths: Sequence[Path]) -> None:
    """Check by the files' heads that all pictures have one size, and that memory has room."""
    sizes = []
    for path in paths:
        with opened(path, readable()) as picture:
            width, height = picture.size
            sizes.append((height, width) if orientation(picture) >= 5 else (width, height))
        if sizes[-1] != sizes[0]:
            seen = " and not ".join(f"{w}×{h}" for w, h in (sizes[-1], sizes[0]))
            raise DatasetError(f"{path} has {seen} pixels; scale all images to one size first")
    # Each is read before all are joined, which takes their bytes twice
    check_size(folder, sum(2 * 3 * width * height for width, height in sizes))


def orientation(picture: PIL.Image.Image) -> int:
    """Return how EXIF says that a picture is turned; 1 if it is upright, from 5 on by 90°."""
    turned = picture.getexif().get(Base.Orientation, 1)
    return turned if turned in range(1, 9) else 1


def read(path: Path, notes: Notes) -> Tensor:
    """Read a picture as ``[3, height, width]``, uint8, as it is to be seen."""
    with opened(path, readable()) as picture:
        if (pages := getattr(picture, "n_frames", 1)) > 1:
            notes.left["further page of a file"] += pages - 1
        if any(";16" in str(tile) for tile in getattr(picture, "tile", ())):
            notes.changed["from 16 to 8 bits per value"] += 1
        if orientation(picture) > 1:
            notes.changed["turned as EXIF says"] += 1
        upright = exif_transpose(picture)
        if not upright.has_transparency_data or upright.mode[0] in "IF":
            return as_rgb(upright, path)
        layered = upright.convert("RGBA")
        if layered.getchannel("A").getextrema() != (255, 255):
            notes.changed["transparent and put on white"] += 1
            white = PIL.Image.new("RGBA", layered.size, "white")
            layered = PIL.Image.alpha_composite(white, layered)
            if not np.ptp(np.asarray(layered), axis=(0, 1)).any():
                advice = "put transparent pictures on a background of your choice first"
                raise DatasetError(f"nothing of {path} is seen on white; {advice}")
        return as_rgb(layered, path)
