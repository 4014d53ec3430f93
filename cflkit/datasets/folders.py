"""Folders of pictures: one folder per class.

There may be ``train`` and ``test`` with such folders, or one folder per client with some of them,
whose images then have owners.

Pictures have the formats of `FORMATS`, 8 bits per pixel and one size. They are turned as their EXIF
says, and put on white where they are transparent. Of several pages, the first is taken. Files of
other formats are left out, and so is what is hidden. Notes count pictures on white, and whatever
else than hidden files is left out.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL.ImageOps import exif_transpose

from cflkit._project import check_regular
from cflkit.datasets.files import DatasetError, check_size, md5_of_folder, reading
from cflkit.datasets.labels import Array, checked_names, in_order

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
TAKEN = (
    "one folder of pictures per class is taken, or such folders in 'train' and 'test' alone, or "
    f"such folders in one folder per client; pictures are {', '.join(FORMATS)}"
)
SPLITS = {"train", "test", "val", "valid", "validation"}
# What systems write into folders, as hidden as a name with a dot
LITTER = {"thumbs.db", "desktop.ini", ".ds_store"}


@cache
def endings() -> dict[str, str]:
    """Return the endings of file names that can be read here, each with its format."""
    known = PIL.Image.registered_extensions().items()
    return {end: form for end, form in known if form in FORMATS and form in PIL.Image.OPEN}


def read_folder(folder: Path, notes: Counter[str]) -> tuple[dict[str, Array], str]:
    """Read one folder per class, one such folder per client, or such folders of train and test.

    Return the arrays that an ``.npz`` file of these pictures has, and the pictures' MD5.
    """
    parts = parts_of(folder)
    for place in sorted({folder, *parts}):
        notes.update(["picture beside the folders"] * len(pictures_in(place, notes)))
    held: list[tuple[Path, str, int]] = []
    for holder, part in enumerate(parts):
        names = folders_in(part)
        for name, form in zip(names, checked_names(names, f"folders of {part}"), strict=True):
            pictures = pictures_in(part / name, notes)
            if folders_in(part / name) or not pictures:
                raise DatasetError(f"{part / name} has folders, or no pictures; {TAKEN}")
            held += [(picture, form, holder) for picture in pictures]
    paths, classes, holders = zip(*held, strict=True)
    images, labels, clients = read_all(folder, paths, notes), np.array(classes), np.array(holders)
    arrays = {"images": images, "labels": labels}
    if [part.name for part in parts] == ["test", "train"]:
        test = clients == 0
        arrays = {"images": images[~test], "labels": labels[~test]}
        arrays |= {"test_images": images[test], "test_labels": labels[test]}
    elif len(parts) > 1:
        arrays["clients"] = clients
    return arrays, md5_of_folder(folder, paths)


def parts_of(folder: Path) -> list[Path]:
    """Return what holds folders of classes: the folder itself, test and train, or each client."""
    entries = folders_in(folder)
    within = [bool(folders_in(folder / entry)) for entry in entries]
    nested, divided = all(within), entries == ["test", "train"]
    splits = SPLITS & {name.lower() for name in entries}
    # A class, but no client, may be called like one of the splits
    fits = nested if divided else nested == any(within) and len(splits) <= (not nested)
    if not (entries and fits):
        raise DatasetError(f"{folder} has {', '.join(entries) or 'no folders'}; {TAKEN}")
    return [folder / entry for entry in entries] if nested else [folder]


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, except hidden ones, in ascending order."""
    return in_order(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] != ".")


def pictures_in(folder: Path, notes: Counter[str]) -> list[Path]:
    """Return the paths of the pictures in a folder by name; files of other formats are noted."""
    pictures = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() or path.name[0] == "." or path.name.lower() in LITTER:
            continue
        if path.suffix.lower() in endings():
            pictures.append(path)
        else:
            notes[path.suffix or "file without an ending"] += 1
    return pictures


def read_all(folder: Path, paths: Sequence[Path], notes: Counter[str]) -> NDArray[np.uint8]:
    """Read pictures of one size as ``[N, height, width, 3]``, if memory has room for them."""
    with opened(paths[0]) as first:
        pixels = first.width * first.height
    check_size(folder, 2 * 3 * pixels * len(paths))  # each is read before all are joined
    images: list[NDArray[np.uint8]] = []
    for path in paths:
        images.append(read(path, notes))
        if images[-1].shape != images[0].shape:
            seen = " and not ".join(f"{x.shape[1]}×{x.shape[0]}" for x in (images[-1], images[0]))
            raise DatasetError(f"{path} has {seen} pixels; pictures of one size are taken")
    return np.stack(images)


def read(path: Path, notes: Counter[str]) -> NDArray[np.uint8]:
    """Read a picture as ``[height, width, 3]``, as it is to be seen."""
    with opened(path) as picture:
        if picture.mode[0] in "IF":  # the conversion to RGB would clip them
            raise DatasetError(f"{path} has more than 8 bits per pixel; give floats in an .npz")
        if (pages := getattr(picture, "n_frames", 1)) > 1:
            notes["further page of a file"] += pages - 1
        upright = exif_transpose(picture)
        if upright.has_transparency_data:
            layered = upright.convert("RGBA")
            if layered.getchannel("A").getextrema() != (255, 255):
                notes["transparent and put on white"] += 1
            white = PIL.Image.new("RGBA", layered.size, "white")
            upright = PIL.Image.alpha_composite(white, layered)
        return np.array(upright.convert("RGB"))


@contextmanager
def opened(path: Path) -> Iterator[PIL.Image.Image]:
    """Open a picture for the block, in which damage to its file becomes a `DatasetError`."""
    with (
        reading(path, "whole pictures are taken"),
        PIL.Image.open(check_regular(path), formats=[*endings().values()]) as picture,
    ):
        yield picture
