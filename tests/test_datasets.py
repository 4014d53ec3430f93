import gzip
import hashlib
import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from signal import SIGKILL
from unittest.mock import Mock

import numpy as np
import pooch
import pytest
import torch
import torchvision
from PIL import Image
from torch.testing import assert_close

from cflkit import datasets
from cflkit.datasets import DatasetError, files, named
from cflkit.datasets.files import DataFiles, md5_of


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Set up an empty data folder and an empty cache, without a network."""
    monkeypatch.setattr(files, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))

    def offline(*arguments):
        raise OSError("no network here")

    monkeypatch.setattr(files, "download", offline)
    return tmp_path


def kept(cache):
    """List the files in the cache, except its lock."""
    return [path for path in cache.rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Start a local web server with a file; return its folder, and a function that fetches it.

    The names that are asked for, and the MD5 that is expected, may be others.
    """
    monkeypatch.setattr(files, "CACHE", tmp_path / "cache")
    monkeypatch.delenv("CFLKIT_DATA", raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # no pause between two attempts
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "x.gz").write_bytes(b"content" * 100_000)
    right, handler = md5_of(folder / "x.gz"), partial(SimpleHTTPRequestHandler, directory=folder)

    def fetch(*names, md5=right, into=None):
        addresses = [f"http://127.0.0.1:{serve.server_port}/{name}" for name in names]
        return (into or DataFiles("mnist")).fetch("MNIST/raw/x.gz", md5, addresses)

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serve:
        threading.Thread(target=serve.serve_forever, args=[0.05]).start()
        yield folder, fetch
        serve.shutdown()


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    small, large = datasets.load("digits-8x8"), datasets.load("digits")
    assert (small.shape, large.shape) == ((1, 8, 8), (1, 28, 28))
    assert torch.equal(small.labels, large.labels)
    assert small.files == {}
    ours = (torch.cat([small.images, small.test_images]).flatten(1) * (16 / 255)).round()
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, load_digits().data.tolist()))
    shares = small.test_labels.bincount() / torch.cat([small.labels, small.test_labels]).bincount()
    assert_close(shares, torch.full((10,), 0.2), atol=0.005, rtol=0)


REAL = [
    ("fashion-mnist", 60_000, 10_000, (1, 28, 28), 10),
    ("kmnist-test", 8_000, 2_000, (1, 28, 28), 10),
    ("cifar10-subset", 16_000, 4_000, (3, 32, 32), 10),
    ("bloodmnist-rebuilt", 13_671, 3_421, (3, 28, 28), 8),
    ("pacs-64", 9_991, 0, (3, 64, 64), 7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pool", "test", "shape", "classes"), REAL)
def test_real_data(data_root, name, pool, test, shape, classes):
    images = datasets.load(name)
    assert (len(images.images), len(images.test_images)) == (pool, test)
    assert (images.name, images.shape, images.classes) == (name, shape, classes)
    assert images.images.dtype == torch.uint8
    assert set(images.labels.tolist()) == set(range(classes))
    if name == "pacs-64":
        assert images.domains.bincount().tolist() == [2048, 2344, 1670, 3929]


def test_only_the_whole_of_pacs_is_taken_and_its_original_images_are_scaled(tmp_path, monkeypatch):
    """If a class were missing, the classes after it would get wrong numbers."""

    def draw(side, domain, label, name="0", colour="white"):
        place = tmp_path / "PACS" / domain / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), colour).save(place / f"{name}.jpg")

    every = [*product(named.PACS, "abcdefg")]
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))
    monkeypatch.setattr(named, "PACS", dict.fromkeys(named.PACS, 7))
    for side, name in ((300, "pacs"), (300, "pacs-64"), (64, "pacs"), (227, None)):
        for domain, label in every:
            draw(side, domain, label)
        if name:
            with pytest.raises(DatasetError, match=f"has {side}×{side} pixels, not"):
                datasets.load(name)
    images = datasets.load("pacs-64")
    assert images.images.shape == (28, 3, 64, 64)
    assert (images.images == 255).all()
    assert images.labels.tolist() == [*range(7)] * 4
    assert images.domains.tolist() == [number for number in range(4) for _ in range(7)]
    draw(227, "photo", "a", colour="black")
    assert datasets.load("pacs-64").files["PACS"] != images.files["PACS"]
    draw(227, "cartoon", "a", "more")
    with pytest.raises(DatasetError, match="cartoon holds 8 images of 7 classes, not 7 of 7"):
        datasets.load("pacs-64")
    shutil.rmtree(tmp_path / "PACS" / "cartoon" / "b")
    with pytest.raises(DatasetError, match="cartoon holds 7 images of 6 classes, not 7 of 7"):
        datasets.load("pacs-64")


# --- Files that are missing or damaged, and downloads --------------------------------------------


@pytest.mark.parametrize("name", sorted({*datasets.names()} - {"digits", "digits-8x8"}))
def test_missing_and_offline(nowhere, name):
    with pytest.raises(DatasetError, match=f"{name}: not found.*To get it") as caught:
        datasets.load(name)
    message = str(caught.value)
    assert str(nowhere) in message and str(nowhere / "cache") in message
    downloads = name not in ("pacs", "pacs-64", "bloodmnist-rebuilt")
    assert ("The errors were: http" in message and "no network here" in message) == downloads
    assert kept(nowhere / "cache") == []


def test_a_file_that_is_damaged_or_cannot_be_read_is_named(nowhere):
    file = nowhere / "BloodMNIST" / "bloodmnist.npz"
    file.mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"bloodmnist: .*directory: '.*bloodmnist\.npz'"):
        datasets.load("bloodmnist")
    file.rmdir()
    file.write_bytes(b"damaged")
    sums = f"its MD5 is {md5_of(file)}, but the published one is 7053d0359d"
    with pytest.raises(DatasetError, match=f"{file} is damaged: {sums}"):
        datasets.load("bloodmnist")
    assert file.read_bytes() == b"damaged"


def test_a_download_is_checked_and_only_then_kept(server):
    _, fetch = server
    with pytest.raises(DatasetError, match=r"The errors were: http://.*hash of downloaded file"):
        fetch("x.gz", md5="0" * 32)
    assert kept(files.CACHE) == []


def test_a_killed_download_leaves_nothing_after_the_next(server, monkeypatch):
    """It is killed, as by a lack of memory, when the file is complete and not yet checked."""
    _, fetch = server
    with monkeypatch.context() as patch:
        patch.setattr(pooch.core, "hash_matches", lambda *a, **k: os.kill(os.getpid(), SIGKILL))
        process = multiprocessing.get_context("fork").Process(target=fetch, args=["x.gz"])
        process.start()
        process.join()
    assert process.exitcode == -SIGKILL
    assert kept(files.CACHE)
    assert [fetch("x.gz")] == kept(files.CACHE)


def test_a_second_address_is_tried(server):
    folder, fetch = server
    mine = DataFiles("mnist")
    path = fetch("none.gz", "x.gz", into=mine)
    assert path.read_bytes() == (folder / "x.gz").read_bytes()
    assert kept(files.CACHE) == [path]
    assert mine.md5 == {"MNIST/raw/x.gz": md5_of(path)}
    shutil.rmtree(folder)
    assert fetch() == path


def test_two_at_once_download_once(server, monkeypatch):
    _, fetch = server
    monkeypatch.setattr(files, "download", download := Mock(wraps=files.download))
    with ThreadPoolExecutor(2) as threads:
        paths = [*threads.map(fetch, ["x.gz", "x.gz"])]
    assert download.call_count == 1 and paths == [*kept(files.CACHE)] * 2


def test_a_cache_that_cannot_be_written_does_not_read_as_not_found(nowhere, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "download", full)
    with pytest.raises(DatasetError, match=r"cannot be written \(.*No space left") as caught:
        datasets.load("mnist")
    assert "not found" not in str(caught.value)


@pytest.mark.parametrize("place", ["/absent", "/file", "~no-such-user/data"])
def test_cflkit_data_must_be_a_folder(tmp_path, monkeypatch, place):
    """Also the home of no user is none."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CFLKIT_DATA", place if place[0] == "~" else f"{tmp_path}{place}")
    with pytest.raises(DatasetError, match=f"{place}, which is not a folder that can be read"):
        datasets.load("mnist")


# --- Whole sets, from small files in the formats of the real ones --------------------------------


def numbers(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


# Images, labels, test images and test labels
SMALL = numbers(6, 28, 28), np.arange(6), numbers(4, 28, 28)[::-1], np.arange(4)


def idx_file(values):
    """Encode ``values`` as a compressed IDX file."""
    values = np.asarray(values, dtype=np.uint8)
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes())


def written(path, content):
    """Write a file of bytes or of arrays, below folders that may not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)


def fashion_mnist(folder):
    described = torchvision.datasets.FashionMNIST.resources
    for (name, _), values in zip(described, SMALL, strict=True):
        written(folder / "FashionMNIST" / "raw" / name, idx_file(values))


def emnist(folder, part, first=0):
    """The archive stores the images transposed, and labels of letters from 1 on."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        for name, packed in emnist_files(part, first).items():
            members.writestr(f"gzip/{name}.gz", packed)
    written(folder / "EMNIST" / "raw" / "gzip.zip", archive.getvalue())


def emnist_files(part, first):
    parts = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    turned = [own.transpose(0, 2, 1) if own.ndim == 3 else own + np.uint8(first) for own in SMALL]
    return {f"emnist-{part}-{p}-ubyte": idx_file(own) for p, own in zip(parts, turned, strict=True)}


def kuzushiji49(folder):
    names = [name for name in named.MD5 if name.startswith("Kuzushiji49")]
    for name, values in zip(names, SMALL, strict=True):
        written(folder / name, {"arr_0": values.astype(np.uint8)})


def medmnist(folder, name):
    """The pool is train and validation images, and labels are columns."""
    images, labels, test_images, test_labels = SMALL
    parts = {"train": (images[:4], labels[:4]), "val": (images[4:], labels[4:])}
    arrays = {}
    for part, (pixels, own) in (parts | {"test": (test_images, test_labels)}).items():
        coloured = np.stack([pixels] * 3, axis=3)
        arrays |= {f"{part}_images": coloured, f"{part}_labels": own[:, None]}
    written(folder / name, arrays)


WRITTEN = [
    ("fashion-mnist", fashion_mnist, 10),
    ("emnist-digits", partial(emnist, part="digits"), 10),
    ("emnist-letters", partial(emnist, part="letters", first=1), 26),
    ("kuzushiji49", kuzushiji49, 49),
    ("pathmnist", partial(medmnist, name="PathMNIST/pathmnist.npz"), 9),
    ("bloodmnist", partial(medmnist, name="BloodMNIST/bloodmnist.npz"), 8),
]


@pytest.mark.parametrize(("name", "write", "classes"), WRITTEN)
def test_a_set_is_what_its_files_hold(nowhere, monkeypatch, name, write, classes):
    write(nowhere)
    monkeypatch.setattr(DataFiles, "verified", lambda self, relative, path, md5: path)
    found = datasets.load(name)
    images, labels, test_images, test_labels = SMALL
    assert (found.shape[1:], found.classes) == ((28, 28), classes)
    for channel in range(found.shape[0]):
        assert np.array_equal(found.images[:, channel], images)
        assert np.array_equal(found.test_images[:, channel], test_images)
    assert found.images.is_contiguous() and found.test_images.is_contiguous()
    assert found.labels.tolist() == labels.tolist()
    assert found.test_labels.tolist() == test_labels.tolist()


def test_letters_may_be_single_files_that_were_packed_again(nowhere, monkeypatch):
    place = nowhere / "EMNIST" / "raw"
    for name, packed in emnist_files("letters", 1).items():
        content = gzip.decompress(packed)
        written(place / f"{name}.gz", gzip.compress(content, compresslevel=1))
        monkeypatch.setitem(named.MD5, name, hashlib.md5(content).hexdigest())
    images = datasets.load("emnist-letters")
    assert np.array_equal(images.images[:, 0], SMALL[0])
    assert images.labels.tolist() == SMALL[1].tolist()
    assert len(images.files) == 4
    for spoilt in (gzip.compress(content[:-1] + b"x"), packed[:-9]):
        (place / f"{name}.gz").write_bytes(spoilt)
        with pytest.raises(DatasetError, match=r"test-labels.* cannot be read .* delete it"):
            datasets.load("emnist-letters")


def test_cifar10_is_read_from_its_archive(nowhere, monkeypatch):
    """The archive here is like that of CIFAR-10, with two images in each file."""
    source, folder = torchvision.datasets.CIFAR10, nowhere / "made"
    pixels = numbers(12, 3072)
    contents = {source.meta["filename"]: {"label_names": [f"class {k}" for k in range(10)]}}
    for start, (name, _) in enumerate([*source.train_list, *source.test_list]):
        contents[name] = {"data": pixels[2 * start : 2 * start + 2], "labels": [start, start + 1]}
    for name, content in contents.items():
        written(folder / source.base_folder / name, pickle.dumps(content))
    sums = {name: md5_of(folder / source.base_folder / name) for name in contents}
    for part in ("train_list", "test_list"):
        listed = [[name, sums[name]] for name, _ in getattr(source, part)]
        monkeypatch.setattr(source, part, listed)
    monkeypatch.setattr(source, "meta", source.meta | {"md5": sums[source.meta["filename"]]})
    archive = Path(shutil.make_archive(nowhere / "cifar-10-python", "gztar", folder))
    monkeypatch.setattr(source, "tgz_md5", md5_of(archive))
    images = datasets.load("cifar10")
    expected = torch.from_numpy(pixels).view(12, 3, 32, 32)
    assert torch.equal(torch.cat([images.images, images.test_images]), expected)
    assert images.labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert images.test_labels.tolist() == [5, 6]
    assert images.files == {archive.name: source.tgz_md5}, "it was checked"


def test_the_pool_of_kmnist_test_are_the_first_images_of_each_class(nowhere, monkeypatch):
    pixels = np.linspace(0, 1, 10_000, dtype=np.float32)[:, None, None]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 1000))
    made = {("KMNIST", 2): (pixels, labels)}
    monkeypatch.setattr(named, "idx_files", lambda files, source, first: made[source, first])
    images = datasets.load("kmnist-test")
    for label in range(10):
        official = pixels[labels == label].ravel().tolist()
        assert images.images[images.labels == label].flatten().tolist() == official[:800]
        assert images.test_images[images.test_labels == label].flatten().tolist() == official[800:]


@pytest.mark.slow
def test_data_and_clustering_are_quick_to_import():
    """Large packages are loaded only when they are needed."""
    code = "import sys; from cflkit import partition; from cflkit.partition import shifts;"
    code += "print(*sys.modules); from cflkit import check, clustering, methods, plots, simulation;"
    code += "from cflkit.reproduce import claims, papers; print(*sys.modules)"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    data, lesson = (set(line.split()) for line in printed)
    assert not data & {"matplotlib", "pandas", "scipy", "sklearn"}
    assert not lesson & {"torchvision", "sklearn", "hdbscan", "pooch", "pandas", "scipy"}
