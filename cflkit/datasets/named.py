"""The named image sets, with one function per format of their files.

Every file is checked against its checksum each time it is read. PACS has no published checksums, so
its images are counted. The kit cannot download PACS and the rebuilt set.

A set that is reduced or rebuilt has a name that says so (``cifar10-subset``,
``bloodmnist-rebuilt``, ``pacs-64``, ``kmnist-test``). A result on such a set therefore cannot be
mistaken for one on the original.
"""

import gzip
import hashlib
import os
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit._project import import_package
from cflkit.datasets import own_data
from cflkit.datasets.files import DataFiles, DatasetError, md5_of_folder, read_arrays, reading
from cflkit.datasets.folders import read_folder
from cflkit.datasets.images import Array, ImageSet, as_features, as_images, fifth_for_test

# Reads images, labels, test images and test labels, and the domains of the images if there are any.
# Images have any shape that `as_images` converts; features are ``[N, d]``
Reader = Callable[[DataFiles], Sequence[Array]]

ZENODO = "https://zenodo.org/records/10519652/files/"
KUZUSHIJI49 = "http://codh.rois.ac.jp/kmnist/dataset/k49/"
# Checksums of the files that torchvision does not list
MD5 = {
    "PathMNIST/pathmnist.npz": "a8b06965200029087d5bd730944a56c1",
    "BloodMNIST/bloodmnist.npz": "7053d0359d879ad8a5505303e11de1dc",
    "BloodMNIST/bloodmnist_rebuilt.npz": "435c38bc14976809f1ba941504459064",
    "CIFAR10/cifar10_subset_train.npz": "bec310e19ebaa902f7f7fa7acf1367fc",
    "CIFAR10/cifar10_subset_test.npz": "de453a8049acd30d46d14912d2cd30c2",
    "emnist-letters-train-images-idx3-ubyte": "6b7a6cdb4e8ae8838780bb5aeda8ab2a",  # unpacked
    "emnist-letters-train-labels-idx1-ubyte": "49ecae16ee4c7ab14dcf3e8d8c39090b",
    "emnist-letters-test-images-idx3-ubyte": "811ee95d607652077616dbaaea581e1d",
    "emnist-letters-test-labels-idx1-ubyte": "dd1687ca8200da91c0dfd6321518806d",
    "Kuzushiji49/k49-train-imgs.npz": "7ac088b20481cf51dcd01ceaab89d821",
    "Kuzushiji49/k49-train-labels.npz": "44a8e1b893f81e63ff38d73cad420f7a",
    "Kuzushiji49/k49-test-imgs.npz": "d352e201d846ce6b94f42c990966f374",
    "Kuzushiji49/k49-test-labels.npz": "4da6f7a62e67a832d5eb1bd85c5ee448",
}
# The number of images in each domain
PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}


def names() -> list[str]:
    """Return every name that `load` knows."""
    return sorted(SETS)


def load(name: str | os.PathLike[str]) -> ImageSet:
    """Load one of `names`, or data of one's own by their path (see `own_data`).

    Raises
    ------
    DatasetError
        The name is unknown, the files were not found and cannot be downloaded, or a file does not
        have its checksum. Incomplete data sets are never returned.
    """
    name = os.fspath(name)
    if name not in SETS:
        if own_data.is_own(name):
            return own_data.load(name)
        raise DatasetError(own_data.refusal(name, names()))
    read, classes = SETS[name]
    files = DataFiles(name)
    try:
        images, labels, test_images, test_labels, *domains = read(files)
    except OSError as error:
        raise DatasetError(f"{name}: {error}") from error

    def numbers(values: Array) -> Tensor:
        return torch.from_numpy(values.astype(np.int64).ravel())

    convert = as_features if images.ndim == 2 else as_images
    pool = convert(images, name), numbers(labels)
    tests = convert(test_images, name), numbers(test_labels)
    of_pool = numbers(domains[0]) if domains else None
    return ImageSet(name, *pool, *tests, classes, domains=of_pool, files=files.md5)


def digits(files: DataFiles, side: int) -> Sequence[Array]:
    """Read scikit-learn's handwritten digits (1,797 images, 8×8, 17 grey levels), without files.

    The central test set has one fifth of each class and is always the same. The papers' networks
    expect images with a ``side`` of 28 pixels, to which these are enlarged.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    grey = torch.from_numpy(np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8))
    if side != 8:
        transforms = import_package("torchvision.transforms.v2.functional")
        grey = transforms.resize(grey, [side, side], antialias=True)
    pool, test = fifth_for_test(labels)
    return grey.numpy()[pool], labels[pool], grey.numpy()[test], labels[test]


def idx(data: bytes) -> NDArray[np.uint8]:
    """Decode the IDX format of MNIST and its relatives (uint8; the header names the dimensions)."""
    dimensions = data[3]
    shape = np.frombuffer(data, dtype=">i4", count=dimensions, offset=4)
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def idx_files(files: DataFiles, source: str, first: int = 0) -> Sequence[Array]:
    """Read the files of MNIST or a relative, from the ``first`` on, as torchvision lists them."""
    described = getattr(import_package("torchvision.datasets"), source)
    paths = [
        files.fetch(f"{source}/raw/{name}", md5, [mirror + name for mirror in described.mirrors])
        for name, md5 in described.resources[first:]
    ]
    return [idx(gzip.decompress(path.read_bytes())) for path in paths]


def kmnist_test(files: DataFiles) -> Sequence[Array]:
    """Read the 10,000 official *test* images of KMNIST, of which 800 of each class are the pool.

    The set is meant for users who do not have the 18 MB of train images.
    """
    images, labels = idx_files(files, "KMNIST", first=2)
    pool = first_of_each(labels, 800)
    return images[pool], labels[pool], images[~pool], labels[~pool]


def first_of_each(labels: Array, count: int) -> NDArray[np.bool_]:
    """Return a mask ``[N]`` of the first ``count`` samples of each class."""
    import pandas as pd

    return (pd.Series(labels).groupby(labels).cumcount() < count).to_numpy()


def emnist(files: DataFiles, part: str, first: int = 0) -> Sequence[Array]:
    """Read EMNIST's digits (240,000 + 40,000) or letters (124,800 + 20,800 of 26 classes).

    They come from NIST's archive, or, for letters, from single files, whose contents are checked
    since they may have been packed again. Images are stored transposed, and the ``first`` label may
    not be 0.
    """
    EMNIST = import_package("torchvision.datasets").EMNIST
    halves = product(("train", "test"), ("images-idx3", "labels-idx1"))
    names = [f"emnist-{part}-{half}-{kind}-ubyte" for half, kind in halves]
    single = [path for name in names if (path := files.locate(f"EMNIST/raw/{name}.gz"))]
    if len(single) == len(names) and set(names) <= MD5.keys():
        contents = []
        for name, path in zip(names, single, strict=True):
            with reading(path, f"delete it and load {files.name} again"):
                data = gzip.decompress(path.read_bytes())
                files.md5[name] = hashlib.md5(data, usedforsecurity=False).hexdigest()
                if files.md5[name] != MD5[name]:
                    raise ValueError(f"its contents have the MD5 {files.md5[name]}")
            contents.append(data)
    else:
        archive = files.fetch("EMNIST/raw/gzip.zip", EMNIST.md5, [EMNIST.url])
        with zipfile.ZipFile(archive) as members:
            contents = [gzip.decompress(members.read(f"gzip/{name}.gz")) for name in names]
    images, labels, test_images, test_labels = map(idx, contents)
    return images.mT, labels - first, test_images.mT, test_labels - first


def cifar10(files: DataFiles) -> Sequence[Array]:
    """Read CIFAR-10 from the authors' archive with torchvision's own loader."""
    CIFAR10 = import_package("torchvision.datasets").CIFAR10
    archive = files.fetch(CIFAR10.filename, CIFAR10.tgz_md5, [CIFAR10.url])
    with TemporaryDirectory() as folder:
        shutil.unpack_archive(archive, folder, filter="data")
        train, test = (CIFAR10(folder, train=part) for part in (True, False))
    return train.data, np.array(train.targets), test.data, np.array(test.targets)


def cifar10_subset(files: DataFiles) -> Sequence[Array]:
    """Read the first 1,600 train and 400 test images of each class of CIFAR-10, in official order.

    Where the files of the subset are missing, it is cut from the whole of CIFAR-10.
    """
    paths = [path for path in MD5 if path.startswith("CIFAR10/")]
    if not all(map(files.locate, paths)):
        images, labels, test_images, test_labels = cifar10(files)
        pool, test = first_of_each(labels, 1600), first_of_each(test_labels, 400)
        return images[pool], labels[pool], test_images[test], test_labels[test]
    parts = [read_arrays(files.fetch(path, MD5[path], urls=())) for path in paths]
    return [part[key] for part in parts for key in ("images", "labels")]


def medmnist(files: DataFiles, path: str) -> Sequence[Array]:
    """Read PathMNIST or BloodMNIST; the pool is train and validation images, as in OCFL.

    The rebuilt BloodMNIST was made from the source photographs, and is on no server.
    """
    urls = [] if "rebuilt" in path else [f"{ZENODO}{Path(path).name}?download=1"]
    arrays = read_arrays(files.fetch(path, MD5[path], urls))
    images, labels = (
        np.concatenate([arrays[f"train_{kind}"], arrays[f"val_{kind}"]])
        for kind in ("images", "labels")
    )
    return images, labels, arrays["test_images"], arrays["test_labels"]


def kuzushiji49(files: DataFiles) -> Sequence[Array]:
    """Read Kuzushiji-49: 49 classes of cursive Japanese characters with unequal frequencies."""
    paths = [path for path in MD5 if path.startswith("Kuzushiji49/")]
    checked = [files.fetch(path, MD5[path], [KUZUSHIJI49 + Path(path).name]) for path in paths]
    return [read_arrays(path)["arr_0"] for path in checked]


def pacs(files: DataFiles, side: int) -> Sequence[Array]:
    """Read PACS, which has seven classes of images in four domains.

    The images have 227×227 pixels; a smaller ``side`` scales them down. The source defines no test
    split. Every image is therefore in the pool, and the central test set is empty.
    """
    transforms = import_package("torchvision.transforms.v2.functional")
    folder = files.locate("PACS")
    if folder is None:
        remedy = "unpack the authors' images as PACS/<domain>/<class>/*.jpg from "
        raise files.missing("PACS", remedy + "https://domaingeneralization.github.io")
    images, labels = [], []
    for domain, count in PACS.items():
        arrays, _ = read_folder(folder / domain, Counter())
        classes, numbers = np.unique(arrays["labels"], return_inverse=True)
        if (len(numbers), len(classes)) != (count, 7):
            held = f"{len(numbers)} images of {len(classes)} classes, not {count} of 7"
            raise DatasetError(f"{files.name}: {folder / domain} holds {held}; unpack all of PACS")
        pixels = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2)
        if pixels.shape[2:] == (227, 227):
            pixels = transforms.resize(pixels, [side, side], antialias=True)
        if pixels.shape[2:] != (side, side):
            size = f"{pixels.shape[3]}×{pixels.shape[2]} pixels, not {side}×{side}"
            raise DatasetError(f"{files.name}: {folder / domain} has {size}")
        images.append(pixels.numpy())
        labels.append(numbers)
    paths = [path for domain in PACS for path in folder.glob(f"{domain}/*/*.[jp][pn]g")]
    files.md5["PACS"] = md5_of_folder(folder, paths)
    pool, numbers = np.concatenate(images), np.concatenate(labels)
    return pool, numbers, pool[:0], numbers[:0], np.repeat(np.arange(4), list(PACS.values()))


# How each set is read, and its number of classes
SETS: dict[str, tuple[Reader, int]] = {
    "digits": (partial(digits, side=28), 10),
    "digits-8x8": (partial(digits, side=8), 10),
    "mnist": (partial(idx_files, source="MNIST"), 10),
    "fashion-mnist": (partial(idx_files, source="FashionMNIST"), 10),
    "kmnist": (partial(idx_files, source="KMNIST"), 10),
    "kmnist-test": (kmnist_test, 10),
    "emnist-digits": (partial(emnist, part="digits"), 10),
    "emnist-letters": (partial(emnist, part="letters", first=1), 26),
    "cifar10": (cifar10, 10),
    "cifar10-subset": (cifar10_subset, 10),
    "pathmnist": (partial(medmnist, path="PathMNIST/pathmnist.npz"), 9),
    "bloodmnist": (partial(medmnist, path="BloodMNIST/bloodmnist.npz"), 8),
    "bloodmnist-rebuilt": (partial(medmnist, path="BloodMNIST/bloodmnist_rebuilt.npz"), 8),
    "kuzushiji49": (kuzushiji49, 49),
    "pacs": (partial(pacs, side=227), 7),
    "pacs-64": (partial(pacs, side=64), 7),
}
