"""Images with labels, and how arrays become such: what named sets and one's own data share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit.datasets.files import DatasetError
from cflkit.datasets.labels import Array, Labels

# Squares of larger values overflow in float32, so that no training would stay finite
LARGEST_VALUE = 1e18


@dataclass(frozen=True)
class ImageSet:
    """Images and labels with the official split into training and test images.

    Attributes
    ----------
    name : str
        The name under which records list the set.
    images, test_images : Tensor
        ``[N, channels, height, width]``. Images are uint8, and networks get them in [0, 1].
        Features are floating-point, and networks get them as they are. ``images`` is the pool that
        clients draw from. ``test_images`` is the central test set, empty where the source defines
        none.
    labels, test_labels : Tensor
        ``[N]``, int64, numbered from 0.
    classes : int
        The number of classes.
    domains : Tensor or None
        ``[N]``, the domain of each image of the pool, where the source has domains (PACS).
    files : dict of str to str
        The MD5 of each data file that was read, by its path in the data folder. A folder of images
        has one MD5 for all of them; embedded images have none.
    owners : Tensor or None
        ``[N]``, the client that holds each image of the pool, numbered from 0, where the source has
        clients.
    class_names : tuple of str or None
        The name of each class, where the source names them.

    Raises
    ------
    DatasetError
        A tensor would fail later, or train something else; the message says what to do.
    """

    name: str
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    domains: Tensor | None = None
    files: dict[str, str] = field(default_factory=dict)
    owners: Tensor | None = None
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if fault := self.fault():
            raise DatasetError(f"{self.name}: {fault}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return ``(channels, height, width)`` of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def fault(self) -> str | None:
        """Return what is wrong with the tensors, and what to do; None if they are right."""
        for what, images, labels in (
            ("images", self.images, self.labels),
            ("test images", self.test_images, self.test_labels),
        ):
            if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
                return f"{what} and labels must be tensors; torch.from_numpy makes them from arrays"
            if images.ndim != 4 or images.shape[1:] != self.images.shape[1:]:
                advice = "[N, channels, height, width] of one size; images[:, None] adds a channel"
                return f"{what} have the shape {tuple(images.shape)}, not {advice}"
            if 0 in images.shape[1:]:
                return f"{what} of the shape {tuple(images.shape)} have nothing to learn from"
            if images.dtype != torch.uint8 and not images.is_floating_point():
                return f"{what} are {images.dtype}; images must be uint8, and features floats"
            if images.is_floating_point() and images.numel():
                low, high = images.aminmax()
                if not max(-low, high) < LARGEST_VALUE:  # also where one is NaN
                    advice = f"they must be finite and below {LARGEST_VALUE:g}"
                    return f"{what} have values from {low:g} to {high:g}; {advice}"
            if labels.shape[:1] != images.shape[:1]:
                return f"{len(images)} {what} and {labels.numel()} labels; each needs one label"
            if labels.dtype != torch.int64 or labels.ndim != 1:
                found = f"{labels.numel()} labels of {labels.dtype}, shape {tuple(labels.shape)}"
                advice = "each needs one label of int64, as labels.long()"
                return f"{len(images)} {what} and {found}; {advice}"
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
                found = f"from {int(labels.min())} to {int(labels.max())}"
                return f"{what} have labels {found}; they must be from 0 to {self.classes - 1}"
        if self.images.dtype != self.test_images.dtype:
            types = f"{self.images.dtype} and {self.test_images.dtype}"
            return f"images and test images are {types}; both must have the same type"
        for what, given in (("domains", self.domains), ("clients (owners)", self.owners)):
            if given is not None and len(given) != len(self.images):
                return f"{len(given)} {what} for {len(self.images)} images"
        if self.class_names is not None and len(self.class_names) != self.classes:
            return f"{len(self.class_names)} names of classes for {self.classes} classes"
        return None


def fifth_for_test(labels: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide samples into a pool and a test set with a fifth of each class, always the same."""
    from sklearn.model_selection import train_test_split

    places = np.arange(len(labels))
    pool, test = train_test_split(places, test_size=0.2, stratify=labels, random_state=0)
    return pool, test


# --- What comes from files. A `DatasetError` says by ``what`` the arrays are wrong ----------------


def as_images(images: Array, what: str, alike: Mapping[str, Array] | None = None) -> Tensor:
    """Convert ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]`` to ``[N, C, H, W]``.

    Pixels are uint8, floats in [0, 1], or bool, which becomes black and white. Where channels could
    be last or second, they are last. ``alike`` has all arrays of pixels, by name, that belong
    together: what a `DatasetError` advises is then the same for all of them.
    """
    if images.ndim == 3:
        images = images.reshape(len(images), 1, *images.shape[1:])
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in (1, 3):
        advice = "give [N, height, width], or with 1 or 3 channels, second or last"
        raise DatasetError(f"{what} have the shape {images.shape}; {advice}")
    if images.dtype == bool:
        images = images.astype(np.uint8) * 255
    kind, (low, high) = images.dtype.kind, extremes(images)
    if images.dtype == np.uint8:
        if high == 1:
            # 255 times the others would begin again at 0
            ones = alike and {key: own for key, own in alike.items() if extremes(own)[1] == 1}
            advice = f"white is 255: give {each(ones, '{} * 255')}"
            raise DatasetError(f"{what} are uint8 of 0 and 1 alone; {advice}")
        return torch.from_numpy(np.ascontiguousarray(images))
    if kind not in "iuf":
        advice = "give uint8 from 0 to 255, or floats from 0 to 1"
        raise DatasetError(f"{what} have the type {images.dtype}; {advice}")
    if kind == "f" and 0 <= low <= high <= 1:
        return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
    found = f"are {images.dtype} from {low:g} to {high:g}"
    raise DatasetError(f"{what} {found}; {scaling(images, alike)}")


def extremes(images: Array) -> tuple[float, float]:
    """Return the smallest and the largest value; 0 if there is none, NaN if a value is NaN."""
    return (images.min(), images.max()) if images.size and images.dtype.kind in "iuf" else (0, 0)


def each(arrays: Mapping[str, Array] | None, formula: str) -> str:
    """Say what to do with each array; without names, with all images of all files."""
    if arrays is None:
        return f"{formula.format('images')} of all such images, also in other files"
    return " and ".join(formula.format(key) for key in arrays)


def scaling(images: Array, alike: Mapping[str, Array] | None) -> str:
    """Say how to make pixels of numbers that are neither uint8 nor floats from 0 to 1."""
    ends = [extremes(array) for array in (alike or {"": images}).values()]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if not np.isfinite([low, high]).all():
        return "pixels must be finite: leave out images with NaN or infinity"
    if low < 0:
        reshaped = each(alike, "{0}.reshape(len({0}), -1)")
        return f"pixels must be from 0 to 1; give {reshaped} under the name of 'features' instead"
    whole = images.dtype.kind in "iu"
    if whole and 128 <= high <= 255:
        return f"give uint8 from 0 to 255: {each(alike, '{}.astype(np.uint8)')}"
    if alike is None:  # one client's images do not tell what others can have
        most = "the largest value that a pixel can have (4095 for 12 bits)"
        return f"floats must be from 0 to 1: divide all images, also in other files, by {most}"
    divided = each(alike, f"{{}} / {int(high) if whole else float(high)!r}")
    return f"floats must be from 0 to 1: divide all by one number, {divided}"


def as_features(features: Array, what: str) -> Tensor:
    """Convert finite features ``[N, d]`` to the shape of images, ``[N, d, 1, 1]``."""
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        found = f"the shape {features.shape} and the type {features.dtype}"
        raise DatasetError(f"{what} have {found}; give numbers of the shape [N, d]")
    with np.errstate(over="ignore"):
        values = features.astype(np.float32)
    rows = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(rows):
        beyond = f"in {len(rows)} rows, first in {rows[0]}"
        raise DatasetError(f"{what} have NaN, infinity or numbers beyond float32 {beyond}")
    return torch.from_numpy(values)[:, :, None, None]


def read_picture(path: Path) -> Tensor:
    """Read a picture of 8 bits per pixel from its file as ``[3, height, width]``, uint8."""
    with opened(path) as picture:
        return as_rgb(picture, path)


def as_rgb(picture: PIL.Image.Image, path: Path) -> Tensor:
    """Convert a picture to ``[3, height, width]``, uint8."""
    from torchvision.transforms.v2.functional import pil_to_tensor

    if picture.mode[0] in "IF":  # the conversion to RGB would clip them
        raise DatasetError(f"{path} has more than 8 bits per pixel; give floats in an .npz file")
    return pil_to_tensor(picture.convert("RGB"))


@contextmanager
def opened(path: Path, formats: tuple[str, ...] | None = None) -> Iterator[PIL.Image.Image]:
    """Open a picture for the block, in which damage to its file becomes a `DatasetError`."""
    try:
        with PIL.Image.open(path, formats=formats) as picture:
            yield picture
    except DatasetError:
        raise
    except Exception as error:  # what Pillow raises for damaged files depends on their format
        why = " ".join(str(error).split())
        raise DatasetError(f"{path} is damaged ({why})") from error
