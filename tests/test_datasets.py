import gzip
import hashlib
import multiprocessing
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from cflkit import datasets
from cflkit.datasets import DatasetError, files
from cflkit.datasets.files import DataFiles, md5_of


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Set up an empty data folder and an empty cache, without a network."""
    monkeypatch.setattr(files, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))

    def offline(*arguments, **options):
        raise OSError("no network here")

    monkeypatch.setattr(files, "download", offline)
    return tmp_path


def kept(cache):
    """List the files in the cache, except its lock."""
    return [path for path in cache.rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Start a local web server, and return the folder that it serves and its address."""
    monkeypatch.setattr(files, "CACHE", tmp_path / "cache")
    monkeypatch.delenv("CFLKIT_DATA", raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # no pause between two attempts
    folder = tmp_path / "served"
    folder.mkdir()
    serve = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))
    )
    thread = threading.Thread(target=partial(serve.serve_forever, poll_interval=0.05))
    thread.start()
    yield folder, f"http://127.0.0.1:{serve.server_port}/"
    serve.shutdown()
    thread.join()
    serve.server_close()


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_pacs_domains(data_root):
    images = datasets.load("pacs-64")
    assert images.domains.bincount().tolist() == [2048, 2344, 1670, 3929]
    with pytest.raises(DatasetError, match="64×64 pixels, not 227×227"):
        datasets.load("pacs")


@pytest.mark.slow
def test_only_the_original_images_of_pacs_are_scaled_down(tmp_path, monkeypatch):
    counts = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    (tmp_path / "PACS").mkdir()
    for domain in counts:
        (tmp_path / "PACS" / f"{domain}.jpg").write_text(domain)

    class Folder(list):
        def __init__(self, path):
            super().__init__(range(counts[path.name]))
            self.classes = [*range(7)]
            self.samples = [(f"{path}.jpg", number % 7) for number in self]
            self.loader = lambda path: Image.new("RGB", (side, side), "white")

    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))
    monkeypatch.setattr(torchvision.datasets, "ImageFolder", Folder)
    side = 227
    images = datasets.load("pacs-64")
    assert images.images.shape == (9991, 3, 64, 64)
    assert (images.images == 255).all()
    first = images.files["PACS"]
    (tmp_path / "PACS" / "photo.jpg").write_text("another picture")
    assert datasets.load("pacs-64").files["PACS"] != first
    side = 300
    for name in ("pacs", "pacs-64"):
        with pytest.raises(DatasetError, match="has 300×300 pixels, not"):
            datasets.load(name)


def test_the_subset_of_cifar10_is_cut_from_the_whole(nowhere, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    parts = []
    for size in (20_000, 5_000):
        labels = torch.randint(10, (size,), generator=generator)
        parts += [torch.arange(size, dtype=torch.float32)[:, None, None, None], labels]
    whole = datasets.ImageSet("cifar10", *parts, classes=10)
    monkeypatch.setattr(datasets, "load_cifar10", lambda name: whole)
    images = datasets.load("cifar10-subset")
    assert images.labels.bincount().tolist() == [1600] * 10
    assert images.test_labels.bincount().tolist() == [400] * 10
    for k in range(10):
        official = (whole.labels == k).nonzero().flatten()[:1600]
        assert torch.equal(images.images[images.labels == k].flatten(), official.float())
    assert (images.images.flatten().diff() > 0).all()


def test_half_of_pacs_is_refused(data_root, tmp_path, monkeypatch):
    """If a class were missing, the classes after it would get wrong numbers."""
    for domain in ("art_painting", "cartoon"):
        source = data_root / "PACS" / domain
        (tmp_path / "PACS" / domain).mkdir(parents=True)
        for folder in sorted(source.iterdir())[1 if domain == "cartoon" else 0 :]:
            (tmp_path / "PACS" / domain / folder.name).symlink_to(folder)
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match=r"cartoon holds \d+ images of 6 classes, not 2344 of 7"):
        datasets.load("pacs-64")


def test_unknown_name():
    with pytest.raises(DatasetError, match="unknown data set 'svhn'; choose from bloodmnist"):
        datasets.load("svhn")


EMBEDDED = {"digits", "digits-8x8"}


@pytest.mark.parametrize("name", sorted(set(datasets.names()) - EMBEDDED))
def test_missing_and_offline(nowhere, name):
    with pytest.raises(DatasetError) as caught:
        datasets.load(name)
    message = str(caught.value)
    assert message.startswith(f"{name}: not found")
    assert str(nowhere) in message
    assert str(nowhere / "cache") in message
    assert "To get it" in message
    assert ("The errors were: http" in message) == ("no network here" in message)
    assert kept(nowhere / "cache") == []


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
    damaged = r"damaged: its MD5 is \w{32}, but the published one is 7053d0359d"
    with pytest.raises(DatasetError, match=damaged):
        datasets.load("bloodmnist")


def test_a_download_is_checked_and_only_then_kept(server):
    folder, address = server
    (folder / "x.gz").write_bytes(b"half of it")
    with pytest.raises(DatasetError, match=r"The errors were: http://.*hash of downloaded file"):
        DataFiles("mnist").fetch("MNIST/raw/x.gz", "0" * 32, [address + "x.gz"])
    assert kept(files.CACHE) == []


def test_a_second_address_is_tried(server):
    folder, address = server
    (folder / "x.gz").write_bytes(b"content")
    md5 = md5_of(folder / "x.gz")
    mine = DataFiles("mnist")
    path = mine.fetch("MNIST/raw/x.gz", md5, [address + "none.gz", address + "x.gz"])
    assert path.read_bytes() == b"content"
    assert kept(files.CACHE) == [path]
    assert mine.md5 == {"MNIST/raw/x.gz": md5}
    shutil.rmtree(folder)
    assert DataFiles("mnist").fetch("MNIST/raw/x.gz", md5, []) == path


def test_two_processes_download_once(server):
    folder, address = server
    (folder / "x.gz").write_bytes(b"content" * 100_000)
    md5 = md5_of(folder / "x.gz")
    asked = []
    original = SimpleHTTPRequestHandler.send_head

    def counted(self):
        asked.append(self.path)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimpleHTTPRequestHandler, "send_head", counted)
        processes = [
            multiprocessing.get_context("fork").Process(
                target=lambda: DataFiles("mnist").fetch("x.gz", md5, [address + "x.gz"])
            )
            for _ in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert asked == ["/x.gz"]


def test_a_cache_that_cannot_be_written_does_not_read_as_not_found(nowhere, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "download", full)
    with pytest.raises(DatasetError, match=r"cannot be written \(.*No space left") as caught:
        datasets.load("mnist")
    assert "not found" not in str(caught.value)


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


# --- Whole sets, from small files in the formats of the real ones --------------------------------


def idx_file(values):
    """Encode ``values`` as a compressed IDX file."""
    values = np.asarray(values, dtype=np.uint8)
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes())


def numbers(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_emnist_digits_lie_transposed(nowhere, monkeypatch):
    train, test = numbers(6, 28, 28), numbers(4, 28, 28)[::-1]
    parts = {
        "train-images-idx3": train,
        "train-labels-idx1": np.arange(6),
        "test-images-idx3": test,
        "test-labels-idx1": np.arange(4),
    }
    path = nowhere / "EMNIST" / "raw" / "gzip.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for part, values in parts.items():
            archive.writestr(f"gzip/emnist-digits-{part}-ubyte.gz", idx_file(values))
    monkeypatch.setattr(torchvision.datasets.EMNIST, "md5", md5_of(path))
    images = datasets.load("emnist-digits")
    assert images.shape == (1, 28, 28)
    for ours, stored in ((images.images, train), (images.test_images, test)):
        assert np.array_equal(ours[:, 0].numpy(), stored.transpose(0, 2, 1))
        assert ours.is_contiguous()
    assert images.labels.tolist() == [*range(6)]
    assert images.test_labels.tolist() == [*range(4)]
    assert images.files == {"EMNIST/raw/gzip.zip": md5_of(path)}


def test_kuzushiji49(nowhere, monkeypatch):
    folder = nowhere / "Kuzushiji49"
    folder.mkdir()
    train, test = numbers(5, 28, 28), numbers(3, 28, 28)
    parts = {"train-imgs": train, "train-labels": np.arange(5, dtype=np.uint8)}
    parts |= {"test-imgs": test, "test-labels": np.arange(3, dtype=np.uint8)}
    for part, values in parts.items():
        np.savez(folder / f"k49-{part}.npz", values)
    sums = {f"k49-{part}.npz": md5_of(folder / f"k49-{part}.npz") for part in parts}
    monkeypatch.setattr(datasets, "KUZUSHIJI49_FILES", sums)
    images = datasets.load("kuzushiji49")
    assert np.array_equal(images.images[:, 0].numpy(), train)
    assert np.array_equal(images.test_images[:, 0].numpy(), test)
    assert (images.labels.tolist(), images.test_labels.tolist()) == ([*range(5)], [*range(3)])
    assert images.classes == 49
    assert set(images.files) == {f"Kuzushiji49/k49-{part}.npz" for part in parts}


@pytest.mark.parametrize(
    ("name", "relative", "classes"),
    [("pathmnist", "PathMNIST/pathmnist.npz", 9), ("bloodmnist", "BloodMNIST/bloodmnist.npz", 8)],
)
def test_medmnist(nowhere, monkeypatch, name, relative, classes):
    arrays = {}
    for start, part in ((0, "train"), (4, "val"), (6, "test")):
        arrays[f"{part}_images"] = numbers(9, 28, 28, 3)[start : start + 4][
            : 4 if start == 0 else 2
        ]
        arrays[f"{part}_labels"] = np.arange(start, start + len(arrays[f"{part}_images"]))[:, None]
    path = nowhere / relative
    path.parent.mkdir()
    np.savez(path, **arrays)
    loader = partial(datasets.LOADERS[name], md5=md5_of(path))
    monkeypatch.setitem(datasets.LOADERS, name, loader)
    images = datasets.load(name)
    pool = np.concatenate([arrays["train_images"], arrays["val_images"]])
    assert np.array_equal(images.images.permute(0, 2, 3, 1).numpy(), pool)
    assert images.labels.tolist() == [*range(6)]
    assert images.test_labels.tolist() == [6, 7]
    assert (images.shape, images.classes) == ((3, 28, 28), classes)
    assert images.files == {relative: md5_of(path)}


@pytest.fixture
def small_cifar10(tmp_path, monkeypatch):
    """Make an archive like CIFAR-10's with twelve images; return its path, folder and pixels."""
    source = torchvision.datasets.CIFAR10
    folder = tmp_path / "made" / source.base_folder
    folder.mkdir(parents=True)
    pixels = numbers(12, 3072)
    for start, (filename, _) in enumerate([*source.train_list, *source.test_list]):
        rows = slice(2 * start, 2 * start + 2)
        batch = {"data": pixels[rows], "labels": [start, start + 1]}
        (folder / filename).write_bytes(pickle.dumps(batch))
    names = {"label_names": [f"class {k}" for k in range(10)]}
    (folder / source.meta["filename"]).write_bytes(pickle.dumps(names))
    for part in ("train_list", "test_list"):
        sums = [[filename, md5_of(folder / filename)] for filename, _ in getattr(source, part)]
        monkeypatch.setattr(source, part, sums)
    meta = source.meta | {"md5": md5_of(folder / source.meta["filename"])}
    monkeypatch.setattr(source, "meta", meta)
    archive = tmp_path / source.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=source.base_folder)
    monkeypatch.setattr(source, "tgz_md5", md5_of(archive))
    return archive, folder, torch.from_numpy(pixels).view(12, 3, 32, 32)


def test_cifar10_from_its_folder_and_from_its_archive(nowhere, small_cifar10):
    archive, folder, pixels = small_cifar10
    images = datasets.load("cifar10")  # from the archive in CFLKIT_DATA
    assert torch.equal(torch.cat([images.images, images.test_images]), pixels)
    assert images.labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert images.test_labels.tolist() == [5, 6]
    assert "cifar-10-batches-py/data_batch_1" in images.files
    archive.unlink()
    assert torch.equal(datasets.load("cifar10").images, images.images)
    shutil.rmtree(files.CACHE)
    folder.rename(nowhere / folder.name)
    assert torch.equal(datasets.load("cifar10").images, images.images)
    (nowhere / folder.name / "data_batch_3").unlink()
    with pytest.raises(DatasetError, match="has no data_batch_3; delete the folder"):
        datasets.load("cifar10")


def test_an_unpacking_that_is_interrupted_leaves_nothing(nowhere, small_cifar10, monkeypatch):
    extract, calls = tarfile.TarFile.extractall, []

    def die(tar, path, **options):
        extract(tar, path, **options)
        next(Path(path).rglob("data_batch_2")).unlink()
        calls.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", die)
        with pytest.raises(KeyboardInterrupt):
            datasets.load("cifar10")
    assert calls
    assert kept(files.CACHE) == []
    # A killed process cannot clean up; its temporary folder must not be taken for the data
    (files.CACHE / "tmpkilled" / "cifar-10-batches-py").mkdir(parents=True)
    assert len(datasets.load("cifar10").images) == 10


def test_two_processes_unpack_the_same_archive(nowhere, small_cifar10):
    processes = [
        multiprocessing.get_context("fork").Process(target=datasets.load, args=("cifar10",))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(datasets.load("cifar10").images) == 10


def test_embedded_images_have_no_files_and_others_name_theirs(nowhere, monkeypatch, small):
    assert small.files == {}
    raw = nowhere / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    parts = [numbers(3, 28, 28), np.arange(3), numbers(2, 28, 28), np.arange(2)]
    sums = []
    for (filename, _), values in zip(
        torchvision.datasets.FashionMNIST.resources, parts, strict=True
    ):
        (raw / filename).write_bytes(idx_file(values))
        sums.append((filename, hashlib.md5((raw / filename).read_bytes()).hexdigest()))
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", sums)
    images = datasets.load("fashion-mnist")
    assert np.array_equal(images.images[:, 0].numpy(), parts[0])
    assert images.files == {f"FashionMNIST/raw/{filename}": md5 for filename, md5 in sums}


@pytest.mark.slow
def test_datasets_and_clustering_are_quick_to_import():
    """Torchvision and the clustering packages are loaded only when they are needed."""
    code = "import sys; from cflkit import clustering, datasets;"
    code += "print({'torchvision', 'sklearn', 'hdbscan', 'pooch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
