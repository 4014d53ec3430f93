"""Images with labels, and how arrays become such: what named sets and one's own data share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from PIL.Image import DecompressionBombError as TooLarge
from torch import Tensor

from cflkit.datasets.files import DatasetError

Array = NDArray[Any]
Labels = NDArray[np.int64]


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
            if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
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
        return None


def fifth_for_test(labels: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide samples into a pool and a test set with a fifth of each class, always the same."""
    from sklearn.model_selection import train_test_split

    places = np.arange(len(labels))
    pool, test = train_test_split(places, test_size=0.2, stratify=labels, random_state=0)
    return pool, test


# --- What comes from files. A `DatasetError` says by ``what`` the arrays are wrong ----------------


def as_images(images: Array, what: str) -> Tensor:
    """Convert ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``, uint8 or floats in [0, 1]."""
    if images.ndim == 3:
        images = images.reshape(len(images), 1, *images.shape[1:])
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in (1, 3):
        advice = "give [N, height, width], or with 1 or 3 channels, second or last"
        raise DatasetError(f"{what} have the shape {images.shape}; {advice}")
    if images.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(images))
    if not np.issubdtype(images.dtype, np.floating):
        advice = "give uint8 from 0 to 255 (astype(np.uint8)), or floats from 0 to 1"
        raise DatasetError(f"{what} have the type {images.dtype}; {advice}")
    if images.size and not (np.isfinite(images).all() and 0 <= images.min() <= images.max() <= 1):
        found = f"floats from {images.min():g} to {images.max():g}"
        raise DatasetError(f"{what} are {found}; they must be from 0 to 1, or be 'features'")
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))


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


def as_labels(labels: Array, what: str, every: bool = True) -> Labels:
    """Convert labels ``[N]`` to int64; with ``every``, no number from 0 on may be missing."""
    flat = labels.reshape(-1) if labels.ndim and labels.size == len(labels) else labels
    advice = f"np.unique({what.rsplit(' ', 1)[-1]}, return_inverse=True)[1]"
    if flat.ndim == 1 and not len(flat):
        raise DatasetError(f"{what} are empty; there must be samples")
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer):
        found = f"the shape {labels.shape} and the type {labels.dtype}"
        raise DatasetError(f"{what} have {found}; give one whole number per sample, as {advice}")
    values = np.unique(flat)
    if values[0] < 0 or (every and (values != np.arange(len(values))).any()):
        found = f"{len(values)} values from {values[0]} to {values[-1]}"
        advice = f"number them from 0 without gaps, as {advice}"
        raise DatasetError(f"{what} have {found}; {advice}")
    return flat.astype(np.int64)


def read_picture(path: str | Path) -> Tensor:
    """Read a picture of 8 bits per pixel from its file as ``[3, height, width]``, uint8."""
    from torchvision.transforms.v2.functional import pil_to_tensor

    try:
        with PIL.Image.open(path) as picture:
            mode, image = picture.mode, pil_to_tensor(picture.convert("RGB"))
    # What Pillow raises for damaged files depends on their format
    except (OSError, ValueError, TypeError, SyntaxError, TooLarge) as error:
        raise DatasetError(f"{path} is damaged ({error})") from error
    if mode[0] in "IF":  # the conversion to RGB has clipped them
        raise DatasetError(f"{path} has more than 8 bits per pixel; give floats in an .npz file")
    return image
