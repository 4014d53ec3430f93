"""Images with labels, and how arrays become such: what named sets and one's own data share."""

from collections.abc import Iterator
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

PIXELS = (
    "images [N, height, width], or with 1 or 3 channels second or last, are taken, of bytes up to "
    "255 or of floats from 0 to 1. Divide all, also of the test set and in other files, by one "
    "number, the largest value of a pixel; numbers below 0 are taken as 'features' [N, d]"
)
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
                seen = f"{labels.numel()} labels of {labels.dtype}, shape {tuple(labels.shape)}"
                advice = "each needs one label of int64, as labels.long()"
                return f"{len(images)} {what} and {seen}; {advice}"
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
                seen = f"from {int(labels.min())} to {int(labels.max())}"
                return f"{what} have labels {seen}; they must be from 0 to {self.classes - 1}"
        if self.images.dtype != self.test_images.dtype:
            types = f"{self.images.dtype} and {self.test_images.dtype}"
            return f"images and test images are {types}; both must have the same type"
        for what, numbers in (("domains", self.domains), ("clients (owners)", self.owners)):
            if numbers is None:
                continue
            if len(numbers) != len(self.images):
                return f"{len(numbers)} {what} for {len(self.images)} images"
            if numbers.ndim != 1 or numbers.is_floating_point() or (numbers < 0).any():
                return f"{what} must be whole numbers from 0, one per image"
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


def as_images(images: Array, what: str) -> Tensor:
    """Convert ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]`` to ``[N, C, H, W]``.

    Pixels are uint8, floats in [0, 1], or bool, which becomes black and white. Where channels could
    be last or second, they are last.
    """
    shape, kind = images.shape, images.dtype.kind
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DatasetError(f"{what} have the shape {shape}; {PIXELS}")
    if kind == "b":
        return torch.from_numpy(images.astype(np.uint8) * 255)
    low, high = (images.min(), images.max()) if images.size and kind in "iuf" else (0, 0)
    if images.dtype == np.uint8 and high != 1:  # 0 and 1 alone would be nearly black
        return torch.from_numpy(np.ascontiguousarray(images))
    if kind == "f" and 0 <= low <= high <= 1:
        return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
    raise DatasetError(f"{what} are {images.dtype} from {low:g} to {high:g}; {PIXELS}")


def as_features(features: Array, what: str) -> Tensor:
    """Convert finite features ``[N, d]`` to the shape of images, ``[N, d, 1, 1]``."""
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        seen = f"the shape {features.shape} and the type {features.dtype}"
        raise DatasetError(f"{what} have {seen}; give numbers of the shape [N, d]")
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
    if picture.mode[0] in "IF":  # the conversion to RGB would clip them
        raise DatasetError(f"{path} has more than 8 bits per pixel; give floats in an .npz file")
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)


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
