"""Images with labels, and how arrays become such: what named sets and one's own data share."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit.datasets.files import DatasetError
from cflkit.datasets.labels import Array, Labels

PIXELS = (
    "images [N, height, width], or with 1 or 3 channels second or last, are taken, of uint8 up to "
    "255, of floats from 0 to 1, or of bool; divide all by one number, that of white"
)
# Squares of larger values overflow in float32, so that no training would stay finite
LARGEST_VALUE = 1e18
IMAGES = (
    "tensors [N, channels, height, width] are taken, uint8 for images, floating-point below "
    f"{LARGEST_VALUE:g} and never nan for features, with the same in the test set"
)


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
        """Return what is seen in the tensors, and what is taken; None if they are right."""
        for what in ("images", "test_images"):
            images = getattr(self, what)
            if not (
                isinstance(images, Tensor)
                and images.ndim == 4
                and (images.dtype, images.shape[1:]) == (self.images.dtype, self.images.shape[1:])
                and 0 not in images.shape[1:]
                and (images.dtype == torch.uint8 or images.is_floating_point())
                and within(images, -LARGEST_VALUE, LARGEST_VALUE)
            ):
                return f"{what} are {described(images)}; {IMAGES}"
        for what in ("labels", "test_labels", "domains", "owners"):
            numbers, limit = getattr(self, what), self.classes if "labels" in what else math.inf
            count = len(self.test_images if what == "test_labels" else self.images)
            if numbers is not None and not (
                isinstance(numbers, Tensor)
                and (numbers.dtype, numbers.shape) == (torch.int64, (count,))
                and within(numbers, -1, limit)
            ):
                seen = f"{what} are {described(numbers)} for {count} images"
                return f"{seen}; [N] of int64 from 0 on is taken, labels below {self.classes}"
        return None


def within(values: Tensor, low: float, high: float) -> bool:
    """Return whether all values lie between two bounds, which no NaN does."""
    return not values.numel() or bool(low < values.min() and values.max() < high)


def described(values: Any) -> str:
    """Say what a tensor holds, or of which type a value is that is no tensor."""
    if not isinstance(values, Tensor):
        return f"no tensor, but of the type {type(values).__name__}"
    span = f" from {values.min():g} to {values.max():g}" if values.numel() else ""
    return f"{values.dtype} of the shape {tuple(values.shape)}{span}"


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
    """Convert features ``[N, d]`` to the shape of images, ``[N, d, 1, 1]``."""
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        seen = f"{features.dtype} of the shape {features.shape}"
        raise DatasetError(f"{what} are {seen}; numbers [N, d] are taken")
    with np.errstate(over="ignore"):  # an `ImageSet` refuses infinity
        return torch.from_numpy(features.astype(np.float32))[:, :, None, None]
