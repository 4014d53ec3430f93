"""Data of one's own: files and folders that the kit accepts, and what it says of others."""

import io
import json
import math
import os
import shutil
import unicodedata
import zipfile
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

from cflkit import datasets, methods, partition, simulation
from cflkit.__main__ import main
from cflkit.commands import describe
from cflkit.datasets import DatasetError, ImageSet, files, folders, labels, named, own_data
from cflkit.federation import Federation, LocalTraining
from cflkit.federation.clients import as_inputs
from cflkit.partition import PartitionError
from cflkit.reproduce import ledger
from cflkit.reproduce.papers import emd_cfl, ocfl
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import as_yaml

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (60, 6, 5), dtype=np.uint8)
LABELS = np.repeat([0, 1, 2], 20)
NAMES = np.array(["cat", "dog", "emu"])


@pytest.fixture
def saved(tmp_path):
    """Save arrays as an .npz file, by default 60 grey images of three classes."""

    def save(**arrays):
        path = tmp_path / "mine.npz"
        whole = {"images": GREY, "labels": LABELS} | arrays
        np.savez(path, **{name: array for name, array in whole.items() if array is not None})
        return str(path)

    return save


def pictures(folder, sizes):
    """Save one picture per class and size (width, height)."""
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number, size in enumerate(sizes):
            pixels = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")


# --- What is accepted ----------------------------------------------------------------------------


def test_grey_images_get_a_channel_and_a_fifth_becomes_the_test_set(saved):
    numbered = np.arange(60, dtype=np.uint8).repeat(30).reshape(60, 6, 5)
    owners = np.arange(60) // 6
    images = datasets.load(saved(images=numbered, clients=owners, domains=LABELS))
    assert (images.name, images.classes, images.shape) == ("mine", 3, (1, 6, 5))
    assert len(images.images) == 48
    assert np.bincount(images.test_labels).tolist() == [4, 4, 4]
    rows = images.images[:, 0, 0, 0]
    assert sorted([*rows, *images.test_images[:, 0, 0, 0]]) == [*range(60)]
    assert images.owners.tolist() == owners[rows].tolist()
    assert images.labels.tolist() == images.domains.tolist() == LABELS[rows].tolist()
    again = datasets.load(saved(images=numbered, clients=owners, domains=LABELS))
    assert torch.equal(images.images, again.images)
    assert images.files == again.files
    assert list(images.files) == ["mine.npz"]


@pytest.mark.parametrize("last", [True, False])
def test_channels_may_come_second_or_last(saved, last):
    colour = RNG.integers(0, 256, (60, 6, 5, 3), dtype=np.uint8)
    given = colour if last else colour.transpose(0, 3, 1, 2)
    found = datasets.load(saved(images=given, test_images=given, test_labels=LABELS))
    assert found.shape == (3, 6, 5)
    np.testing.assert_array_equal(found.images.permute(0, 2, 3, 1), colour)


def test_floats_from_0_to_1_are_what_networks_get(saved):
    bytes_, floats = (
        datasets.load(saved(images=i, test_images=i, test_labels=LABELS))
        for i in (GREY, GREY / 255)
    )
    torch.testing.assert_close(as_inputs(bytes_.images), as_inputs(floats.images))


def test_features_stay_as_they_are(saved):
    features = 100 * RNG.normal(size=(60, 7))
    found = datasets.load(saved(images=None, features=features))
    assert found.shape == (7, 1, 1)
    assert set(found.images.flatten().tolist()) <= set(np.float32(features).flatten().tolist())


def test_clients_without_truth_have_clusters_and_no_agreement(saved):
    path = saved(images=GREY, clients=np.arange(60) % 4)
    images, split = partition.by_owners(datasets.load(path), seed=1)
    federation = Federation(images, split, "linear", LocalTraining(1, 4, lr=0.1))
    line_up = {"FedAvg": methods.make("fedavg"), "OCFL": methods.make("ocfl", before=-math.inf)}
    history = simulation.run(line_up, federation, 2, progress=False)
    table, summary = history.table(), history.summary()
    assert table["n_clusters"].notna().all() and table["accuracy"].notna().all()
    agreed = {"ari", "ami", "homogeneity", "completeness"}
    assert not agreed & set(table.columns)
    for measures in summary.values():
        assert not {name for name in measures if name.removeprefix("mean_") in agreed}
    with pytest.raises(PartitionError, match="nobody knows the true clusters"):
        methods.make("oracle", truth=split.truth)


def test_a_folder_has_one_folder_per_class_and_may_have_a_test_set(tmp_path):
    pictures(tmp_path / "pets", [(5, 6)] * 5)
    found = datasets.load(str(tmp_path / "pets"))
    assert (found.name, found.classes, found.shape) == ("pets", 2, (3, 6, 5))
    assert (len(found.images), len(found.test_images)) == (8, 2)
    assert list(found.files) == ["pets"]
    for part, count in (("train", 3), ("test", 1)):
        pictures(tmp_path / "split" / part, [(5, 6)] * count)
    found = datasets.load(str(tmp_path / "split"))
    assert (len(found.images), len(found.test_images)) == (6, 2)


def test_the_md5_of_a_folder_is_that_of_the_images_that_were_read(tmp_path):
    pictures(tmp_path / "pets", [(5, 6)] * 5)
    before = datasets.load(str(tmp_path / "pets")).files
    (tmp_path / "pets" / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "pets" / "cover.png")
    after = datasets.load(str(tmp_path / "pets"))
    assert (after.files, after.classes) == (before, 2)
    Image.new("RGB", (5, 6)).save(tmp_path / "pets" / "cat" / "0.png")
    assert datasets.load(str(tmp_path / "pets")).files != before


def stored(place, mode, number=0, side=6, ending="png", **options):
    """Save a picture of its own, in which a left upper square is dark and the rest bright."""
    grey = Image.new("L", (side, side), 200 - number)
    grey.paste(10, (0, 0, 2 + number % 3, 2))
    alpha = grey.point(lambda value: 255 if value == 10 else 0)
    made = {
        "RGBA": lambda: Image.merge("RGBA", [grey.point(lambda _: 0)] * 3 + [alpha]),
        "LA": lambda: Image.merge("LA", [grey.point(lambda _: 0), alpha]),
        "white": lambda: Image.merge("LA", [grey.point(lambda _: 255), alpha]),
        "opaque": lambda: Image.merge("RGBA", [grey] * 3 + [grey.point(lambda _: 255)]),
        "1": lambda: grey.point(lambda value: 255 * (value > 10)).convert("1"),
    }.get(mode, lambda: grey.convert(mode))()
    place.mkdir(parents=True, exist_ok=True)
    made.save(place / f"{number}.{ending}", **options)


def classes_of(place, mode="RGB", names=("cat", "dog"), **options):
    for number, name in enumerate(names):
        for i in range(5):
            stored(place / name, mode, 5 * number + i, **options)


@pytest.mark.parametrize(
    ("mode", "ending", "says"),
    [
        ("L", "PNG", None),
        ("RGB", "BMP", None),
        ("1", "png", None),
        ("P", "gif", None),
        ("CMYK", "tif", None),
        ("RGB", "jfif", None),
        ("RGB", "avif", None),
        ("opaque", "png", None),
        ("RGBA", "png", "10 × transparent and put on white"),
        ("LA", "png", "10 × transparent and put on white"),
    ],
)
def test_pictures_of_any_kind_show_what_one_sees(tmp_path, recwarn, mode, ending, says):
    place = tmp_path / "pets"
    options = {"format": "JPEG"} if ending == "jfif" else {}
    classes_of(place, mode, ending=ending, **options)
    found = datasets.load(str(place))
    pixels = torch.cat([found.images, found.test_images]).float()
    assert (found.class_names, len(pixels)) == (("cat", "dog"), 10)
    assert (pixels[:, :, 0, 0] < 60).all() and (pixels[:, :, -1, -1] > 150).all()
    assert [str(warning.message) for warning in recwarn] == (
        [f"pets: took 10 samples of 2 classes; note: {says}"] if says else []
    )


def test_what_is_left_out_or_turned_is_told_in_one_line(tmp_path):
    place = tmp_path / "pets"
    classes_of(place, side=8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    stored(place / "cat", "RGB", 90, side=8, ending="jpg", exif=exif, quality=100)
    pages = [Image.new("RGB", (8, 8), "red")] * 4
    pages[0].save(place / "dog" / "pages.tiff", save_all=True, append_images=pages[1:])
    for name in (".ipynb_checkpoints", ".Trash"):
        shutil.copytree(place / "dog", place / "cat" / name)
    (place / "cat" / "._0.png").write_bytes(b"of another system")
    (place / "notes.txt").write_text("")
    (place / "dog" / "scene.psd").write_bytes(b"")
    (place / "dog" / "Thumbs.db").write_bytes(b"")
    line = (
        "pets: took 12 samples of 2 classes; left out: 1 × file beside the folders, 3 × hidden, "
        "1 × .psd, 3 × further page of a file; note: 1 × turned as EXIF says"
    )
    with pytest.warns(UserWarning) as told:
        found = datasets.load(str(place))
    assert [str(warning.message) for warning in told] == [line]
    turned = [x for x in (*found.images, *found.test_images) if x[0, 0, -1] < 60]
    assert len(turned) == 1, "its dark corner is right above"


def test_classes_have_names_in_the_order_of_their_numbers(tmp_path):
    names = [*map(str, range(12)), "b", "é"]
    for part, form in (("train", "NFC"), ("test", "NFD")):
        classes_of(tmp_path / "mine" / part, names=[unicodedata.normalize(form, n) for n in names])
    found = datasets.load(str(tmp_path / "mine"))
    assert found.class_names == tuple(names)
    assert found.images[found.labels == 2][0, 0, -1, -1] == 190  # as `stored` gave to "2"
    classes_of(tmp_path / "mine" / "train", names=[unicodedata.normalize("NFD", "é")])
    with pytest.raises(DatasetError, match="train have 'é' in 2 forms"):
        datasets.load(str(tmp_path / "mine"))


def test_names_of_files_may_end_in_capitals(saved):
    path = Path(saved())
    path = path.rename(path.with_name("MINE.NPZ"))
    assert datasets.load(str(path)).name == "MINE"


@pytest.mark.parametrize(
    "given",
    [
        lambda n: NAMES[n],
        lambda n: np.char.encode(NAMES[n]),
        lambda n: np.char.add(" ", NAMES[n])[:, None],
        lambda n: n[:, None].astype(np.uint8),
    ],
)
def test_labels_of_both_parts_are_numbered_together(saved, given):
    few = np.array([1, 2, 2, 1])  # without the first class
    path = saved(labels=given(LABELS), test_images=GREY[:4], test_labels=given(few))
    found = datasets.load(Path(path))
    assert (found.labels.tolist(), found.test_labels.tolist()) == (LABELS.tolist(), few.tolist())
    assert found.class_names in (tuple(NAMES), None)


def test_names_are_numbered_by_the_list_of_a_federation():
    classes = ["emu", "é", "cat"]
    given = np.array([unicodedata.normalize("NFD", "é"), "cat ", "emu"])
    assert labels.numbered(given, classes, "labels").tolist() == [1, 2, 0]
    with pytest.raises(DatasetError, match="labels have 'dog', but the classes are 'emu', 'é', 'c"):
        labels.numbered(NAMES, classes, "labels")


def test_a_folder_may_have_one_folder_per_client(tmp_path):
    held = {"b10": ["cat"], "a": ["cat", "dog"], "b9": ["dog "]}
    for client, names in held.items():
        classes_of(tmp_path / "pets" / client, names=names)
    found = datasets.load(tmp_path / "pets")
    assert found.class_names == ("cat", "dog")
    pairs = {*zip(found.owners.tolist(), found.labels.tolist(), strict=True)}
    assert pairs == {(0, 0), (0, 1), (1, 1), (2, 0)}
    images, split = partition.by_owners(found)
    assert (images, split.clients, split.clusters) == (found, 3, None)
    assert describe(str(tmp_path / "pets"))["clients"] == 3


def test_features_of_a_named_set_need_a_reader_alone(monkeypatch):
    wine, classes = load_wine(return_X_y=True)
    arrays = wine[::2], classes[::2], wine[1::2], classes[1::2]
    monkeypatch.setitem(named.SETS, "wine", (lambda files: arrays, 3))
    found = datasets.load("wine")
    assert (found.shape, found.classes, len(found.test_labels)) == ((13, 1, 1), 3, 89)


def test_faint_pixels_and_unknown_arrays_are_told_in_one_line(saved):
    path = saved(images=GREY // 16, test_image=GREY)
    line = (
        "took 60 samples of 3 classes; left out: 1 × array 'test_image'; note: the brightest pixel"
    )
    with pytest.warns(UserWarning, match=line):
        datasets.load(path)


# --- What is refused, and what is said -----------------------------------------------------------


def worded(name):
    """Return labels as words, one of which is another."""
    return np.where(np.arange(60) == 7, name, NAMES[LABELS])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        *(
            ({"labels": wrong}, f"labels have {seen}; whole numbers .* from 0 on .* test_labels")
            for wrong, seen in (
                (LABELS + 1, "3 values from 1 to 3"),
                (LABELS - 1, "3 values from -1 to 1"),
                (2 * LABELS, "3 values from 0 to 4"),
                (LABELS / 1, "the type float64"),
                (LABELS > 1, "the type bool"),
                (LABELS.astype("m8[s]"), "the type timedelta.*"),
                (np.eye(3)[LABELS], r"the shape \(60, 3\)"),
                (LABELS[:0], r"the shape \(0,\)"),
                (np.array(3), r"the shape \(\)"),
            )
        ),
        *(
            ({key: wrong}, f"{key} have .*; whole numbers .* are taken, .* without gaps$")
            for key in ("domains", "clients")
            for wrong in (LABELS + 1, NAMES[LABELS], LABELS / 1)
        ),
        ({"test_images": GREY, "test_labels": NAMES[LABELS]}, "test_labels have the type <U3"),
        *(
            ({"labels": worded(name)}, f"have the name '{name.strip()}', as of a missing value")
            for name in ("", " ", "nan", "None", "NA")
        ),
        ({"labels": worded("cat ")}, "have 'cat' in 2 forms, 'cat', 'cat '; give it in one form"),
        ({"labels": np.where(LABELS == 0, "\xe9", "e\u0301")}, "'é' in 2 forms, 'e.u0301', '.xe9'"),
        *(
            ({"images": wrong}, f"images {seen}; images .N, height, width.* to 1. Divide all")
            for wrong, seen in (
                (GREY[:, 0], "have the shape .*"),
                (GREY.astype(int), "are int64 from 0 to 255"),
                (GREY / 1, "are float64 from 0 to 255"),
                (GREY / 127.5 - 1, "are float64 from -1 to 1"),
                ((GREY > 127).astype(np.uint8), "are uint8 from 0 to 1"),
                (np.where(GREY > 200, np.nan, 0.5), "are float64 from nan to nan"),
            )
        ),
        ({"images": GREY[:50]}, "50 images and 60 labels"),
        ({"images": None, "features": np.full((60, 2), 1j)}, "the type complex"),
        ({"images": None, "features": np.full((60, 2), 1e39)}, "beyond float32 in 60 rows"),
        ({"images": None, "features": np.full((60, 2), np.nan)}, "NaN"),
        ({"features": GREY[:, 0]}, "has both 'images' and 'features'; give only one"),
        ({"images": None}, "it needs 'labels' and 'images' or 'features'"),
        ({"labels": np.array([b"\xff"] * 60)}, "not UTF-8"),
        ({"labels": np.array(["a", "\ud800"] * 30)}, "is, or has, a name that is not UTF-8"),
        ({"labels": np.array(["a", None, "b"] * 20)}, "arrays of objects are not read"),
        (
            {"labels": NAMES[LABELS], "test_images": GREY[:1], "test_labels": np.array(["cow"])},
            "test_labels have 'cow', but the classes are 'cat', 'dog', 'emu'",
        ),
        ({"labels": np.r_[LABELS[:-1], 3]}, "class 3 has one sample"),
        ({"test_labels": LABELS}, "a test set needs images and labels"),
        ({"domains": LABELS[:3] * 0}, "3 domains for 60 images"),
        ({"domains": np.r_[LABELS, LABELS]}, "120 domains for 60 images"),
        ({"clients": LABELS[:3] * 0}, "3 clients \\(owners\\) for 60 images"),
        ({"clients": np.arange(60)}, "the test set would have all samples of clients"),
        ({"test_images": GREY / 255, "test_labels": LABELS}, "both must have the same type"),
        ({"images": GREY[..., :0]}, "nothing to learn from"),
        ({"images": GREY[:4], "labels": LABELS[18:22]}, "a fifth of 4 samples is too small"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_advice(saved, arrays, said):
    with pytest.raises(DatasetError, match=said):
        datasets.load(saved(**arrays))


def test_the_home_of_nobody_is_no_folder():
    assert not own_data.is_own("~nobody-of-this-name/mine.npz")
    with pytest.raises(ParameterError, match="there is no file or folder ~nobody"):
        ocfl.Parameters.checked(
            ledger.defaults("03b_ocfl_controls") | {"dataset": "~nobody-of-this-name/mine.npz"}
        )


def test_what_is_no_archive_is_refused(tmp_path):
    path, array = tmp_path / "mine.npz", io.BytesIO()
    np.savez_compressed(path, images=GREY, labels=LABELS)
    np.save(array, GREY)
    whole = path.read_bytes()
    for content in (b"images, labels", b"", whole[: len(whole) // 2], array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"is no \.npz file|cannot be read as an"):
            datasets.load(str(path))


def test_an_array_that_is_there_twice_is_refused(saved):
    path = saved()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("images", archive.read("labels.npy"))
    with pytest.raises(DatasetError, match="it has images twice"):
        datasets.load(path)


def test_numbers_in_names_of_any_length_are_in_order():
    names = ["a" + "9" * 9999, "a10", "a9"]
    assert labels.in_order(names) == ["a9", "a10", names[0]]


def test_what_is_too_large_is_refused_before_memory_is_taken(tmp_path, monkeypatch, saved):
    path = saved()
    pictures(tmp_path / "pets", [(100, 100)] * 3)
    monkeypatch.setattr(files, "LARGEST", 2**10)
    monkeypatch.setattr(folders, "read", None)
    for name in (path, str(tmp_path / "pets")):
        with pytest.raises(DatasetError, match="GiB is the most here; give fewer or smaller"):
            datasets.load(name)
    monkeypatch.undo()
    for shape in [(10**12, 1), (2**62, 2)]:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"shape": shape, "fortran_order": False, "descr": "|u1"}
        )
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", head.getvalue())
        with pytest.raises(DatasetError, match=r"cannot be read as an \.npz file of arrays: "):
            datasets.load(path)


def test_names_that_are_no_data_are_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert not own_data.is_own(9999 * "a") and not own_data.is_own("a\0b")
    for name, said in (
        ("svhn", "unknown data set 'svhn'; choose from bloodmnist"),
        ("minst", "did you mean 'mnist'"),
        (f"{tmp_path}/mine.csv", r"is no \.npz file; give one, or a folder"),
        (f"{tmp_path}/mine.npz", "there is no file or folder"),
        (f"{tmp_path}/circle", "there is no file or folder"),
        (f"{9999 * 'a'}.npz", "there is no file or folder"),
    ):
        with pytest.raises(DatasetError, match=said):
            datasets.load(name)


def folder(parts, sizes=((5, 6),) * 5, **files):
    """Prepare a folder with such parts; the files are put into a folder ``cat`` of it."""

    def prepare(place):
        for part in parts:
            pictures(place / part, sizes)
        for name, content in files.items():
            cat = next(place.rglob("cat"))
            if isinstance(content, bytes):
                (cat / f"{name}.ppm").write_bytes(content)
            else:
                Image.fromarray(content).save(cat / f"{name}.png")

    return prepare


def with_entry(place, make):
    """Prepare a folder, and put something by the name of a picture into it."""
    folder([""])(place)
    make(place / "cat" / "last.png")


def wild(place):
    """Prepare a folder whose test set lacks a class."""
    folder(["train", "test"])(place)
    shutil.rmtree(place / "test" / "dog")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (Path.mkdir, "has no folders; one folder of images per class is taken"),
        (lambda place: (place / "cat").mkdir(parents=True), "cat has no picture; endings are"),
        (folder([""], [(5, 6), (6, 6)]), "scale all images to one size"),
        (folder(["Train", "Test"]), "has the folders Test, Train; one folder of images per class"),
        (folder(["train", "val", "test"]), "'train' and 'test' alone"),
        (wild, "they must be the same"),
        (folder([""], last=b""), r"last\.ppm is damaged"),
        (folder([""], last=b"P6\n5 x\n255\n"), r"last\.ppm is damaged"),
        (folder([""], last=b"P6\n5 99999999999999\n255\n"), r"last\.ppm is damaged"),
        (folder([""], deep=np.full((6, 5), 1000, np.uint16)), r"deep\.png has more than 8 bits"),
        (lambda place: classes_of(place, "white"), "nothing of .* is seen on white"),
        (
            lambda place: with_entry(place, os.mkfifo),
            "is no file; is it a link to one that is gone",
        ),
        (lambda place: with_entry(place, lambda path: path.symlink_to(path)), "is no file"),
        (lambda place: (place / os.fsdecode(b"\xff")).mkdir(parents=True), "not UTF-8; rename it"),
    ],
)
def test_folders_that_do_not_fit_are_refused_with_advice(tmp_path, prepare, said):
    prepare(tmp_path / "pets")
    with pytest.raises(DatasetError, match=said):
        datasets.load(str(tmp_path / "pets"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": GREY}, "must be tensors"),
        ({"images": torch.from_numpy(GREY)}, "adds a channel"),
        ({"images": torch.from_numpy(GREY)[:, None].int()}, "images must be uint8"),
        *(
            ({"images": torch.full((60, 7, 1, 1), value)}, "they must be finite and below 1e\\+18")
            for value in (math.nan, -math.inf, 1e38)
        ),
        ({"labels": torch.from_numpy(LABELS).int()}, "labels.long()"),
        ({"labels": torch.from_numpy(LABELS[:9])}, "needs one label"),
        ({"classes": 2}, "from 0 to 2; they must be from 0 to 1"),
        ({"domains": torch.zeros(3)}, "3 domains for 60 images"),
        ({"owners": torch.zeros(3)}, "3 clients \\(owners\\) for 60 images"),
    ],
)
def test_an_image_set_refuses_tensors_that_would_fail_later(changes, said):
    images, labels = torch.from_numpy(GREY)[:, None], torch.from_numpy(LABELS)
    given = {"images": images, "labels": labels, "test_images": images[:0], "classes": 3}
    given |= {"test_labels": labels[:0], "name": "mine"}
    ImageSet(**given)
    with pytest.raises(DatasetError, match=said):
        ImageSet(**(given | changes))


# --- By command ----------------------------------------------------------------------------------


def test_a_path_is_a_parameter_and_the_files_name_stands_in_the_records(saved):
    path = saved()
    known = {"dataset": path, "overlap": "overlapping", "balance": "balanced", "clients": 6}
    run = ocfl.Parameters.model_construct(**known)
    assert run.scenario == "mine-overlapping-balanced-m6"
    values = ledger.defaults("05b_emd_cfl_controls")
    assert emd_cfl.Parameters.checked(values | {"dataset": path}).dataset == path
    with pytest.raises(ParameterError, match=r"the path of an \.npz file"):
        emd_cfl.Parameters.checked(values | {"dataset": "minst"})


def floats_in_a_file(digits):
    """Images as floats from 0 to 1."""
    np.savez("floats.npz", images=digits.images[:, 0].numpy() / 255, labels=digits.labels.numpy())
    return "floats.npz"


def folder_of_pictures(digits):
    """One picture per image, in one folder per class."""
    for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
        folder = Path("pictures") / f"digit {int(label)}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{number}.png")
    return "pictures"


def features_of_two_domains(digits):
    """Features, which stand in another order in the second domain."""
    features = digits.images.flatten(1).numpy() / 255 - 0.5
    domains = np.arange(len(features)) % 2
    order = np.random.default_rng(0).permutation(features.shape[1])
    features[domains == 1] = features[domains == 1][:, order]
    np.savez("vectors.npz", features=features, labels=digits.labels.numpy(), domains=domains)
    return "vectors.npz"


# Short runs of the lessons, and what they need for features of two domains
SHORT = {
    "01b_drift_measured": ({"clients": 6}, {}),
    "02b_four_scenarios": ({"clients": 6, "draws": 60}, {}),
    "03b_ocfl_controls": ({"clients": 6, "draws": 60}, {"model": "perceptron"}),
    "05b_emd_cfl_controls": (
        {"version": "quarter-turn", "clients": 4, "samples": 60, "compared": []},
        {"version": "domains", "clients": None, "samples": None, "model": "perceptron"},
    ),
}


def command(lesson, path, rounds):
    """Return the command that runs a lesson with data of one's own."""
    usual, of_features = SHORT[lesson]
    given = {"dataset": path, "rounds": rounds, "local_epochs": 1, "repeats": 1} | usual
    given |= of_features if path == "vectors.npz" else {}
    options = [word for name, value in given.items() for word in ("-p", name, as_yaml(value))]
    return ["run", str(PROJECT / "notebooks" / f"{lesson}.ipynb"), *options]


FORMS = folder_of_pictures, floats_in_a_file, features_of_two_domains
FIRST, *OTHERS = product(("03b_ocfl_controls", "05b_emd_cfl_controls"), FORMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lesson", "make"),
    [FIRST, *(pytest.param(*other, marks=pytest.mark.nightly) for other in OTHERS)],
)
def test_a_lesson_makes_a_record_of_ones_own_data(tmp_path, monkeypatch, capsys, make, lesson):
    monkeypatch.chdir(tmp_path)
    whole = datasets.load("digits-8x8")
    digits = replace(whole, images=whole.images[:400], labels=whole.labels[:400])
    path = make(digits)
    words = [*command(lesson, path, rounds=1), "--record-only"]
    assert main(words) == 0
    [record] = Path(os.environ["CFLKIT_RESULTS"]).iterdir()
    assert f"-{Path(path).stem}-" in record.name
    told = json.loads((record / "record.json").read_text(encoding="utf-8"))
    assert list(told["provenance"]["data_files"]) == [path]
    named = [f"digit {number}" for number in range(10)] if make is folder_of_pictures else None
    assert told["provenance"].get("class_names") == named
    rounds = pd.read_csv(record / "rounds.csv")
    assert rounds["accuracy"].notna().all()

    assert main([*words, "--missing"]) == 0
    assert "the record is there already" in capsys.readouterr().out
    make(replace(digits, images=255 - digits.images))
    assert main([*words, "--missing"]) == 2, "the same path has other data now"
    assert f"/{path}; run it again without --missing" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("lesson", sorted({*SHORT} - {"03b_ocfl_controls"}))
def test_a_whole_lesson_runs_with_features(tmp_path, monkeypatch, lesson):
    """Also its figures and demonstrations, which a record does not need."""
    monkeypatch.chdir(tmp_path)
    path = features_of_two_domains(datasets.load("digits-8x8"))
    assert main(command(lesson, path, rounds=2)) == 0
