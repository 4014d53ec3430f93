import gzip
import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from cflkit import datasets
from cflkit.datasets import DatasetError


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data anywhere, and no network."""
    monkeypatch.setattr(datasets, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))

    def offline(*arguments, **options):
        raise OSError("offline")

    monkeypatch.setattr(datasets, "download_url", offline)
    return tmp_path


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    small, large = datasets.load("digits-8x8"), datasets.load("digits")
    assert small.shape == (1, 8, 8)
    assert large.shape == (1, 28, 28)
    assert torch.equal(small.labels, large.labels)
    pixels = torch.cat([small.images, small.test_images]).flatten(1)
    theirs = torch.from_numpy(load_digits().data)
    ours = (pixels * (16 / 255)).round()
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
    shares = small.test_labels.bincount() / torch.cat([small.labels, small.test_labels]).bincount()
    torch.testing.assert_close(shares, torch.full((10,), 0.2), atol=0.005, rtol=0)


@pytest.mark.parametrize(
    ("name", "pool", "test", "shape", "classes"),
    [
        ("mnist", 60_000, 10_000, (1, 28, 28), 10),
        ("fashion-mnist", 60_000, 10_000, (1, 28, 28), 10),
        ("kmnist-test", 8_000, 2_000, (1, 28, 28), 10),
        ("cifar10-subset", 16_000, 4_000, (3, 32, 32), 10),
        ("bloodmnist-rebuilt", 13_671, 3_421, (3, 28, 28), 8),
        ("pacs-64", 9_991, 0, (3, 64, 64), 7),
    ],
)
def test_real_data(data_root, name, pool, test, shape, classes):
    images = datasets.load(name)
    assert (len(images.images), len(images.test_images)) == (pool, test)
    assert (len(images.labels), len(images.test_labels)) == (pool, test)
    assert (images.shape, images.classes) == (shape, classes)
    assert images.images.dtype == torch.uint8
    assert set(images.labels.tolist()) == set(range(classes))
    assert images.name == name


def test_mnist_is_what_torchvisions_own_reader_gives(data_root, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (data_root / "MNIST" / "raw").glob("t10k*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        shutil.copy(raw / stem.replace("train", "t10k"), raw / stem)
    theirs = torchvision.datasets.MNIST(tmp_path, train=False)
    ours = datasets.load("mnist")
    assert torch.equal(ours.test_images[:, 0], theirs.data)
    assert torch.equal(ours.test_labels, theirs.targets)


def test_pacs_domains(data_root):
    images = datasets.load("pacs-64")
    assert images.domains.bincount().tolist() == [2048, 2344, 1670, 3929]
    with pytest.raises(DatasetError, match="64×64 pixels, not 227×227"):
        datasets.load("pacs")


def test_only_the_original_images_of_pacs_are_scaled_down(tmp_path, monkeypatch):
    class Folder(list):
        def __init__(self, path):
            counts = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
            super().__init__(range(counts[path.name]))
            self.classes = [*range(7)]
            self.samples = [(path, number % 7) for number in self]
            self.loader = lambda path: Image.new("RGB", (side, side), "white")

    (tmp_path / "PACS").mkdir()
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "ImageFolder", Folder)
    side = 227
    images = datasets.load("pacs-64")
    assert images.images.shape == (9991, 3, 64, 64)
    assert (images.images == 255).all()
    side = 300
    for name in ("pacs", "pacs-64"):
        with pytest.raises(DatasetError, match="has 300×300 pixels, not"):
            datasets.load(name)


def test_the_subset_of_cifar10_is_cut_from_the_whole(nowhere, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    parts = []
    for size in (20_000, 5_000):
        labels = torch.randint(10, (size,), generator=generator)
        parts += [torch.arange(size, dtype=torch.int32)[:, None, None, None], labels]
    whole = datasets.ImageSet("cifar10", *parts, classes=10)
    monkeypatch.setattr(datasets, "load_cifar10", lambda name: whole)
    images = datasets.load("cifar10-subset")
    assert images.labels.bincount().tolist() == [1600] * 10
    assert images.test_labels.bincount().tolist() == [400] * 10
    for k in range(10):
        official = (whole.labels == k).nonzero().flatten()[:1600]
        assert torch.equal(images.images[images.labels == k].flatten(), official.int())
    assert (images.images.flatten().diff() > 0).all()


def test_half_of_pacs_is_refused(data_root, tmp_path, monkeypatch):
    """Without a class, those behind it would take its number."""
    for domain in ("art_painting", "cartoon"):
        source = data_root / "PACS" / domain
        (tmp_path / "PACS" / domain).mkdir(parents=True)
        for folder in sorted(source.iterdir())[1 if domain == "cartoon" else 0 :]:
            (tmp_path / "PACS" / domain / folder.name).symlink_to(folder)
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match=r"cartoon holds \d+ images of 6 classes, not 2344 of 7"):
        datasets.load("pacs-64")


def test_unknown_name():
    with pytest.raises(DatasetError, match="unknown data set 'svhn'; known are bloodmnist"):
        datasets.load("svhn")


EMBEDDED = {"digits", "digits-8x8"}


@pytest.mark.parametrize("name", sorted(set(datasets.names()) - EMBEDDED))
def test_missing_and_offline(nowhere, monkeypatch, name):
    monkeypatch.setattr(
        torchvision.datasets.CIFAR10, "download", lambda self: datasets.download_url()
    )
    with pytest.raises(DatasetError) as caught:
        datasets.load(name)
    message = str(caught.value)
    assert message.startswith(f"{name}: not found")
    assert str(nowhere) in message
    assert str(nowhere / "cache") in message
    assert "To get it" in message
    leftovers = [path for path in (nowhere / "cache").rglob("*") if path.is_file()]
    assert leftovers == []


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_named_with_both_checksums(nowhere, damage):
    raw = nowhere / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    whole = gzip.compress(bytes(1000))
    content = {"cut": whole[:20], "flip": whole[:-1] + b"x", "empty": b""}[damage]
    file = raw / "train-images-idx3-ubyte.gz"
    file.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        datasets.load("fashion-mnist")
    message = str(caught.value)
    assert str(file) in message
    assert "8d4fb7e6c68d591d4c3dfef9ec88bf0d" in message
    assert message.count("MD5 is ") == 1
    assert file.read_bytes() == content


def test_a_damaged_archive_is_never_unpacked(nowhere):
    path = nowhere / "BloodMNIST" / "bloodmnist.npz"
    path.parent.mkdir()
    np.savez(path, train_images=np.zeros(3))
    with pytest.raises(DatasetError, match=r"damaged: its MD5 is \w{32}, published is 7053d0359d"):
        datasets.load("bloodmnist")


def test_a_download_is_checked_and_only_then_kept(nowhere, monkeypatch):
    def broken(url, folder, filename, md5):
        (datasets.Path(folder) / filename).write_bytes(b"half of it")
        raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr(datasets, "download_url", broken)
    with pytest.raises(DatasetError, match="could not be downloaded"):
        datasets.load("pathmnist")
    assert [path for path in (nowhere / "cache").rglob("*") if path.is_file()] == []


def test_a_second_address_is_tried(nowhere, monkeypatch):
    asked = []

    def second(url, folder, filename, md5):
        asked.append(url)
        if len(asked) == 1:
            raise OSError("offline")
        (datasets.Path(folder) / filename).write_bytes(b"content")

    monkeypatch.setattr(datasets, "download_url", second)
    path = datasets.fetch("mnist", "MNIST/raw/x.gz", "", ["https://one/x.gz", "https://two/x.gz"])
    assert path.read_bytes() == b"content"
    assert asked == ["https://one/x.gz", "https://two/x.gz"]


@pytest.mark.parametrize("place", ["absent", "file"])
def test_cflkit_data_must_be_a_folder(tmp_path, monkeypatch, place):
    if place == "file":
        (tmp_path / "file").write_text("")
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path / place))
    with pytest.raises(DatasetError, match=f"{place}, which is not a folder that can be read"):
        datasets.load("mnist")


def test_idx_decoding():
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 3, 4))
    expected = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    assert torch.equal(datasets.idx(header + bytes(range(24))), expected)
