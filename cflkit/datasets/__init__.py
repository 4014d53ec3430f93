"""Named image sets as tensors, from scikit-learn, the user's folder, the cache, or a download.

``load("digits")`` needs no network, since the images are part of scikit-learn. `files` describes
how every other set is found or downloaded. Every file is checked against its checksum each time it
is read. PACS has no published checksums, so its images are counted. The kit cannot download PACS
and the rebuilt set.

A set that is reduced or rebuilt has a name that says so (``cifar10-subset``,
``bloodmnist-rebuilt``, ``pacs-64``, ``kmnist-test``). A result on such a set therefore cannot be
mistaken for one on the original.
"""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflkit.datasets.files import DataFiles
from cflkit.datasets.files import DatasetError as DatasetError
from cflkit.datasets.files import roots as roots

MEDMNIST = "https://zenodo.org/records/10519652/files/"
KUZUSHIJI49 = "http://codh.rois.ac.jp/kmnist/dataset/k49/"
KUZUSHIJI49_FILES = {
    "k49-train-imgs.npz": "7ac088b20481cf51dcd01ceaab89d821",
    "k49-train-labels.npz": "44a8e1b893f81e63ff38d73cad420f7a",
    "k49-test-imgs.npz": "d352e201d846ce6b94f42c990966f374",
    "k49-test-labels.npz": "4da6f7a62e67a832d5eb1bd85c5ee448",
}


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
        """Refuse tensors that would fail later, or would train something else.

        Raises
        ------
        DatasetError
            A tensor has a wrong type, shape or value; the message says what to do.
        """
        size = tuple(self.images.shape[1:])
        for what, images, labels in (
            ("images", self.images, self.labels),
            ("test images", self.test_images, self.test_labels),
        ):
            if fault := fault_of(images, labels, size, self.classes):
                raise DatasetError(f"{self.name}: {what} {fault}")
        if self.images.dtype != self.test_images.dtype:
            raise DatasetError(
                f"{self.name}: images have the type {self.images.dtype} and test images "
                f"{self.test_images.dtype}; both must have the same type, since uint8 counts to 255"
            )
        for what, given in (("domains", self.domains), ("owners", self.owners)):
            if given is not None and len(given) != len(self.images):
                raise DatasetError(
                    f"{self.name}: {len(given)} {what} for {len(self.images)} images"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return ``(channels, height, width)`` of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


def fault_of(images: Tensor, labels: Tensor, size: tuple[int, ...], classes: int) -> str | None:
    """Return what is wrong with images of this size and their labels, or None."""
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        return "and labels must be tensors; torch.from_numpy makes them from arrays"
    if images.ndim != 4 or images.shape[1:] != size:
        return (
            f"have the shape {tuple(images.shape)}; all must have the shape [N, channels, height, "
            "width] and the same size. images[:, None] adds a channel"
        )
    if 0 in size:
        return f"have the shape {tuple(images.shape)}; there is nothing to learn from"
    if images.dtype != torch.uint8 and not images.is_floating_point():
        return f"have the type {images.dtype}; images must be uint8, and features floating-point"
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        return (
            f"have labels of the type {labels.dtype} and the shape {tuple(labels.shape)}; each of "
            f"the {len(images)} samples needs one label of type int64, as by labels.long()"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        found = f"from {int(labels.min())} to {int(labels.max())}"
        return f"have labels {found}; they must be from 0 to {classes - 1}"
    return None


def fifth_for_test(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Divide samples into a pool and a test set with a fifth of each class, always the same."""
    from sklearn.model_selection import train_test_split

    places = np.arange(len(labels))
    pool, test = train_test_split(places, test_size=0.2, stratify=labels, random_state=0)
    return pool, test


def names() -> list[str]:
    """Return every name that `load` knows."""
    return sorted(LOADERS)


def load(name: str) -> ImageSet:
    """Load an image set by name, or one's own by its path.

    Parameters
    ----------
    name : str
        One of `names`, or the path of an ``.npz`` file or a folder of images (see `own_data`).

    Returns
    -------
    ImageSet

    Raises
    ------
    DatasetError
        The name is unknown, the files were not found and cannot be downloaded, or a file does not
        have its checksum. Incomplete data sets are never returned.
    """
    from cflkit.datasets import own_data  # here, since that module needs this one

    if name in LOADERS:
        return LOADERS[name](name)
    if own_data.is_own(name):
        return own_data.load(name)
    raise DatasetError(own_data.refusal(name, names()))


# --- Loaders, one per file format ----------------------------------------------------------------


def load_digits(name: str) -> ImageSet:
    """Load scikit-learn's handwritten digits (1,797 images, 8×8, 17 grey levels) without a network.

    The central test set has one fifth of each class and is always the same. Under the name
    ``digits``, the images are enlarged to 28×28 pixels, which the papers' networks expect.
    """
    from sklearn.datasets import load_digits as read_digits
    from torchvision.transforms.v2.functional import resize

    images, labels = read_digits(return_X_y=True)
    grey = torch.from_numpy(np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8))
    if name == "digits":
        grey = resize(grey, [28, 28], antialias=True)
    train, test = fifth_for_test(labels)
    targets = torch.from_numpy(labels).long()
    return ImageSet(name, grey[train], targets[train], grey[test], targets[test], classes=10)


def idx(data: bytes) -> Tensor:
    """Decode the IDX format of MNIST and its relatives (uint8; the header names the dimensions)."""
    dimensions = data[3]
    shape = np.frombuffer(data, dtype=">i4", count=dimensions, offset=4)
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape).copy())


def idx_readers(files: DataFiles, source: str) -> Iterator[Callable[[], Tensor]]:
    """Yield functions that read the train images and labels, then the test images and labels."""
    import torchvision

    described = getattr(torchvision.datasets, source)
    for filename, md5 in described.resources:
        relative = f"{source}/raw/{filename}"
        urls = [mirror + filename for mirror in described.mirrors]

        def read(relative: str = relative, md5: str = md5, urls: list[str] = urls) -> Tensor:
            return idx(gzip.decompress(files.fetch(relative, md5, urls).read_bytes()))

        yield read


def load_idx(name: str, source: str) -> ImageSet:
    """Load MNIST, Fashion-MNIST or KMNIST from the files and checksums that torchvision lists."""
    files = DataFiles(name)
    images, labels, test_images, test_labels = (read() for read in idx_readers(files, source))
    return ImageSet(
        name,
        images[:, None],
        labels.long(),
        test_images[:, None],
        test_labels.long(),
        classes=10,
        files=files.md5,
    )


def load_kmnist_test(name: str) -> ImageSet:
    """Load the 10,000 official *test* images of KMNIST in a split of our own.

    The pool has 800 images of each class. The set is meant for users who do not have the 18 MB of
    train images.
    """
    files = DataFiles(name)
    _, _, read_images, read_labels = idx_readers(files, "KMNIST")
    images, labels = read_images()[:, None], read_labels().long()
    pool = first_of_each(labels, 800)
    return ImageSet(
        name,
        images[pool],
        labels[pool],
        images[~pool],
        labels[~pool],
        classes=10,
        files=files.md5,
    )


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """Return a mask ``[N]`` (bool) of the first ``count`` samples of each class."""
    ranks = torch.stack([(labels == k).cumsum(0) for k in range(int(labels.max()) + 1)])
    return ranks[labels, range(len(labels))] <= count


def load_emnist_digits(name: str) -> ImageSet:
    """Load EMNIST digits (240,000 + 40,000) from NIST's archive, which stores images transposed."""
    from torchvision.datasets import EMNIST

    files = DataFiles(name)
    archive = files.fetch("EMNIST/raw/gzip.zip", EMNIST.md5, [EMNIST.url])
    with zipfile.ZipFile(archive) as members:

        def read(part: str) -> Tensor:
            return idx(gzip.decompress(members.read(f"gzip/emnist-digits-{part}-ubyte.gz")))

        images, test_images = (
            read(f"{split}-images-idx3").transpose(1, 2)[:, None].contiguous()
            for split in ("train", "test")
        )
        labels, test_labels = (read(f"{split}-labels-idx1").long() for split in ("train", "test"))
    return ImageSet(name, images, labels, test_images, test_labels, classes=10, files=files.md5)


def load_cifar10(name: str) -> ImageSet:
    """Load CIFAR-10 with torchvision's own loader; check every file before it is opened."""
    from torchvision.datasets import CIFAR10

    files = DataFiles(name)
    folder = files.locate(CIFAR10.base_folder) or files.unpack(
        CIFAR10.base_folder, files.fetch(CIFAR10.filename, CIFAR10.tgz_md5, [CIFAR10.url])
    )
    names = (CIFAR10.meta["filename"], CIFAR10.meta["md5"])
    for filename, md5 in [*CIFAR10.train_list, *CIFAR10.test_list, names]:
        if not (folder / filename).exists():
            raise DatasetError(
                f"{name}: {folder} has no {filename}; delete the folder and load {name} again, or "
                f"unpack the whole of {CIFAR10.url}"
            )
        files.verified(f"{CIFAR10.base_folder}/{filename}", folder / filename, md5)
    train, test = CIFAR10(folder.parent, train=True), CIFAR10(folder.parent, train=False)
    return ImageSet(
        name,
        channels_first(train.data),
        torch.tensor(train.targets),
        channels_first(test.data),
        torch.tensor(test.targets),
        classes=10,
        files=files.md5,
    )


def load_cifar10_subset(name: str) -> ImageSet:
    """Load the first 1,600 train and 400 test images of each class of CIFAR-10, in official order.

    Where the files of the subset are missing, it is cut from the whole of CIFAR-10.
    """
    files = DataFiles(name)
    parts = {
        "CIFAR10/cifar10_subset_train.npz": "bec310e19ebaa902f7f7fa7acf1367fc",
        "CIFAR10/cifar10_subset_test.npz": "de453a8049acd30d46d14912d2cd30c2",
    }
    paths = [path for relative in parts if (path := files.locate(relative)) is not None]
    if len(paths) < len(parts):
        whole = load_cifar10(name)
        pool, test = first_of_each(whole.labels, 1600), first_of_each(whole.test_labels, 400)
        return replace(
            whole,
            name=name,
            images=whole.images[pool],
            labels=whole.labels[pool],
            test_images=whole.test_images[test],
            test_labels=whole.test_labels[test],
        )
    (images, labels), (test_images, test_labels) = (
        archive_arrays(name, files.verified(relative, path, md5), ["images", "labels"])
        for path, (relative, md5) in zip(paths, parts.items(), strict=True)
    )
    return ImageSet(
        name,
        channels_first(images),
        torch.from_numpy(labels).long(),
        channels_first(test_images),
        torch.from_numpy(test_labels).long(),
        classes=10,
        files=files.md5,
    )


def load_medmnist(name: str, relative: str, md5: str, urls: list[str], classes: int) -> ImageSet:
    """Load PathMNIST or BloodMNIST; the pool is train and validation images, as in OCFL."""
    files = DataFiles(name)
    if urls:
        path = files.fetch(relative, md5, urls)
    else:
        remedy = (
            f"take the original, 'bloodmnist', or copy {Path(relative).name} (made from the "
            "source photographs; no server has it)"
        )
        path = files.verified(relative, files.find(relative, remedy), md5)
    keys = [f"{part}_{kind}" for kind in ("images", "labels") for part in ("train", "val", "test")]
    arrays = dict(zip(keys, archive_arrays(name, path, keys), strict=True))
    images = np.concatenate([arrays["train_images"], arrays["val_images"]])
    labels = np.concatenate([arrays["train_labels"], arrays["val_labels"]])
    return ImageSet(
        name,
        channels_first(images),
        torch.from_numpy(labels).long().flatten(),
        channels_first(arrays["test_images"]),
        torch.from_numpy(arrays["test_labels"]).long().flatten(),
        classes=classes,
        files=files.md5,
    )


def load_kuzushiji49(name: str) -> ImageSet:
    """Load Kuzushiji-49: 49 classes of cursive Japanese characters with unequal frequencies."""
    files = DataFiles(name)
    paths = [
        files.fetch(f"Kuzushiji49/{filename}", md5, [KUZUSHIJI49 + filename])
        for filename, md5 in KUZUSHIJI49_FILES.items()
    ]
    images, labels, test_images, test_labels = (
        torch.from_numpy(archive_arrays(name, path, ["arr_0"])[0]) for path in paths
    )
    return ImageSet(
        name,
        images[:, None],
        labels.long(),
        test_images[:, None],
        test_labels.long(),
        classes=49,
        files=files.md5,
    )


def load_pacs(name: str, side: int) -> ImageSet:
    """Load PACS, which has seven classes of images in four domains.

    The domains are art painting, cartoon, photo and sketch. The images have 227×227 pixels; a
    smaller ``side`` scales them down. The source defines no test split. Every image is therefore
    in the pool, and the central test set is empty.
    """
    files = DataFiles(name)
    folder = files.find(
        "PACS",
        "unpack the authors' images as PACS/<domain>/<class>/*.jpg from "
        "https://domaingeneralization.github.io",
    )
    images, labels, domains, paths = [], [], [], []
    counts = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    for number, (domain, count) in enumerate(counts.items()):
        members = domain_images(files, folder, domain, count)
        for path, label in members.samples:
            images.append(pacs_image(name, path, members.loader, side))
            labels.append(label)
            domains.append(number)
            paths.append(Path(path))
    files.note_folder("PACS", folder, paths)
    pool, targets = torch.stack(images), torch.tensor(labels)
    return ImageSet(
        name,
        pool,
        targets,
        pool[:0],
        targets[:0],
        classes=7,
        domains=torch.tensor(domains),
        files=files.md5,
    )


def domain_images(files: DataFiles, folder: Path, domain: str, count: int) -> Any:
    """Return torchvision's ``ImageFolder`` of one domain of PACS, if it is complete."""
    from torchvision.datasets import ImageFolder

    try:
        members = ImageFolder(folder / domain)
    except FileNotFoundError as error:
        raise files.missing(f"PACS/{domain}", "unpack the whole of PACS") from error
    if len(members.classes) != 7 or len(members) != count:
        raise DatasetError(
            f"{files.name}: {folder / domain} holds {len(members)} images of "
            f"{len(members.classes)} classes, not {count} of 7; unpack the whole of PACS again"
        )
    return members


def pacs_image(name: str, path: str, loader: Callable[[str], Any], side: int) -> Tensor:
    """Read one image of PACS, ``[3, side, side]``; scale it down if it has the original size."""
    from torchvision.transforms.v2.functional import pil_to_tensor, resize

    try:
        image = pil_to_tensor(loader(path))
    except OSError as error:
        raise DatasetError(f"{name}: {path} is damaged ({error})") from error
    if image.shape == (3, 227, 227):
        image = resize(image, [side, side], antialias=True)
    if image.shape != (3, side, side):
        raise DatasetError(
            f"{name}: {path} has {image.shape[2]}×{image.shape[1]} pixels, not {side}×{side}; the "
            "original images are 'pacs', those of 64 pixels 'pacs-64'"
        )
    return image


def archive_arrays(name: str, path: Path, keys: list[str]) -> list[np.ndarray]:
    """Read the named arrays of an ``.npz`` file without unpickling anything."""
    with np.load(path, allow_pickle=False) as archive:
        absent = [key for key in keys if key not in archive.files]
        if absent:
            raise DatasetError(f"{name}: {path} has no {', '.join(absent)}")
        return [archive[key] for key in keys]


def channels_first(images: np.ndarray) -> Tensor:
    """Convert ``[N, H, W, C]`` uint8 images to a tensor ``[N, C, H, W]``."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


LOADERS: dict[str, Callable[[str], ImageSet]] = {
    "digits": load_digits,
    "digits-8x8": load_digits,
    "mnist": partial(load_idx, source="MNIST"),
    "fashion-mnist": partial(load_idx, source="FashionMNIST"),
    "kmnist": partial(load_idx, source="KMNIST"),
    "kmnist-test": load_kmnist_test,
    "emnist-digits": load_emnist_digits,
    "cifar10": load_cifar10,
    "cifar10-subset": load_cifar10_subset,
    "pathmnist": partial(
        load_medmnist,
        relative="PathMNIST/pathmnist.npz",
        md5="a8b06965200029087d5bd730944a56c1",
        urls=[MEDMNIST + "pathmnist.npz?download=1"],
        classes=9,
    ),
    "bloodmnist": partial(
        load_medmnist,
        relative="BloodMNIST/bloodmnist.npz",
        md5="7053d0359d879ad8a5505303e11de1dc",
        urls=[MEDMNIST + "bloodmnist.npz?download=1"],
        classes=8,
    ),
    "bloodmnist-rebuilt": partial(
        load_medmnist,
        relative="BloodMNIST/bloodmnist_rebuilt.npz",
        md5="435c38bc14976809f1ba941504459064",
        urls=[],
        classes=8,
    ),
    "kuzushiji49": load_kuzushiji49,
    "pacs": partial(load_pacs, side=227),
    "pacs-64": partial(load_pacs, side=64),
}
