"""Data of one's own: files and folders that the kit accepts, and what it says of others."""

import io
import json
import math
import os
import shutil
import unicodedata
from dataclasses import replace
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
from cflkit.datasets import DatasetError, ImageSet, files, folders, named, own_data
from cflkit.federation import Federation, LocalTraining
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


def picture(value, size):
    """Make a bright picture whose left upper square is dark."""
    made = Image.new("RGB", size, (value, value, value))
    made.paste((10, 10, 10), (0, 0, 4, 4))
    return made


def pictures(place, names=("cat", "dog"), count=5, ending="png", size=(8, 9)):
    """Save pictures of classes, each with a brightness of its own."""
    for label, name in enumerate(names):
        (place / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(200 - 5 * label - number, size).save(place / name / f"{number}.{ending}")


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


def test_features_stay_as_they_are(saved):
    features = 100 * RNG.normal(size=(60, 7))
    found = datasets.load(saved(images=None, features=features))
    assert found.shape == (7, 1, 1)
    assert set(found.images.flatten().tolist()) <= set(np.float32(features).flatten().tolist())


def test_features_of_a_named_set_need_a_reader_alone(monkeypatch):
    wine, classes = load_wine(return_X_y=True)
    arrays = wine[::2], classes[::2], wine[1::2], classes[1::2]
    monkeypatch.setitem(named.SETS, "wine", (lambda files: arrays, 3))
    found = datasets.load("wine")
    assert (found.shape, found.classes, len(found.test_labels)) == ((13, 1, 1), 3, 89)


def test_clients_without_truth_have_clusters_and_no_agreement(saved):
    images = datasets.load(saved(clients=np.arange(60) % 4))
    federation = Federation(*partition.by_owners(images), "linear", LocalTraining(1, 4, lr=0.1))
    line_up = {"FedAvg": methods.make("fedavg"), "OCFL": methods.make("ocfl", before=-math.inf)}
    history = simulation.run(line_up, federation, 2, progress=False)
    table = history.table()
    assert table["n_clusters"].notna().all() and table["accuracy"].notna().all()
    measured = {*table.columns}.union(*history.summary().values())
    agreed = {"ari", "ami", "homogeneity", "completeness"}
    assert not {name for name in measured if name.removeprefix("mean_") in agreed}
    with pytest.raises(PartitionError, match="nobody knows the true clusters"):
        methods.make("oracle", truth=federation.partition.truth)


def test_a_folder_may_have_one_folder_per_client(tmp_path):
    held = {"b10": ["cat"], "a": ["cat", "dog"], "b9": ["dog "]}
    for client, names in held.items():
        pictures(tmp_path / "pets" / client, names=names)
    found = datasets.load(tmp_path / "pets")
    assert found.class_names == ("cat", "dog")
    pairs = {*zip(found.owners.tolist(), found.labels.tolist(), strict=True)}
    assert pairs == {(0, 0), (0, 1), (1, 1), (2, 0)}
    images, split = partition.by_owners(found)
    assert (images, split.clients, split.clusters) == (found, 3, None)
    assert describe(str(tmp_path / "pets"))["clients"] == 3


def test_a_folder_has_one_folder_per_class_and_the_md5_of_its_pictures(tmp_path):
    pictures(tmp_path / "pets")
    before = datasets.load(str(tmp_path / "pets"))
    assert (before.name, before.classes, before.shape) == ("pets", 2, (3, 9, 8))
    assert (len(before.images), len(before.test_images)) == (8, 2)
    assert list(before.files) == ["pets"]
    (tmp_path / "pets" / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "pets" / "cover.png")
    after = datasets.load(str(tmp_path / "pets"))
    assert (after.files, after.classes) == (before.files, 2)
    Image.new("RGB", (8, 9)).save(tmp_path / "pets" / "cat" / "0.png")
    assert datasets.load(str(tmp_path / "pets")).files != before.files


@pytest.mark.parametrize("ending", ["PNG", "BMP", "gif", "jpg", "avif", "tif", "webp"])
def test_pictures_of_any_format_are_read(tmp_path, ending):
    pictures(tmp_path / "pets", ending=ending)
    found = datasets.load(str(tmp_path / "pets"))
    pixels = torch.cat([found.images, found.test_images]).float()
    assert (found.class_names, len(pixels)) == (("cat", "dog"), 10)
    assert (pixels[:, :, 0, 0] < 60).all() and (pixels[:, :, -1, -1] > 150).all()


def test_what_is_left_out_is_told_in_one_line_and_pictures_are_turned(tmp_path):
    place = tmp_path / "pets"
    pictures(place, size=(9, 9))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    picture(90, (9, 9)).save(place / "cat" / "90.jpg", exif=exif, quality=100)
    Image.new("RGBA", (9, 9)).save(place / "cat" / "91.png")
    pages = [Image.new("RGB", (9, 9), "red")] * 4
    pages[0].save(place / "dog" / "pages.tiff", save_all=True, append_images=pages[1:])
    shutil.copytree(place / "dog", place / "cat" / ".Trash")
    (place / "cat" / "._0.png").write_bytes(b"of another system")
    (place / "notes.txt").write_text("")
    picture(90, (9, 9)).save(place / "cover.png")
    (place / "dog" / "Thumbs.db").write_bytes(b"")
    line = (
        "pets: took 13 samples of 2 classes; left out or noted: 1 × .txt, 1 × picture beside the "
        "folders, 1 × transparent and put on white, 3 × further page of a file"
    )
    with pytest.warns(UserWarning) as told:
        found = datasets.load(str(place))
    assert [str(warning.message) for warning in told] == [line]
    turned = [x for x in (*found.images, *found.test_images) if x[0, 0, -1] < 60]
    assert len(turned) == 1, "its dark corner is right above"


def test_unknown_arrays_are_told_in_one_line(saved):
    line = "mine: took 60 samples of 3 classes; left out or noted: 1 × array 'test_image'"
    with pytest.warns(UserWarning, match=line):
        datasets.load(saved(test_image=GREY))


def test_a_folder_may_have_a_test_set_and_classes_have_the_order_of_their_numbers(tmp_path):
    names = [*map(str, range(12)), "b", "é"]
    for part, form, count in (("train", "NFC", 3), ("test", "NFD", 1)):
        written = [unicodedata.normalize(form, name) for name in names]
        pictures(tmp_path / "mine" / part, names=written, count=count)
    found = datasets.load(str(tmp_path / "mine"))
    assert (found.class_names, found.owners) == (tuple(names), None)
    assert (len(found.images), len(found.test_images)) == (3 * len(names), len(names))
    assert found.images[found.labels == 2][0, 0, -1, -1] == 190  # as `pictures` gave to "2"


# --- What is refused, and what is said -----------------------------------------------------------


def worded(name):
    """Return labels as words, one of which is another."""
    return np.where(np.arange(60) == 7, name, NAMES[LABELS])


def with_test(labels=LABELS, images=GREY):
    """Return the arrays of a test set."""
    return {"test_images": images, "test_labels": labels}


WRONG_ARRAYS = [
    ({"labels": LABELS + 1}, "labels have 3 values from 1 to 3; whole .* test_labels"),
    ({"labels": LABELS / 1}, "labels have the type float64"),
    ({"labels": np.eye(3)[LABELS]}, r"labels have the shape \(60, 3\)"),
    ({"clients": LABELS + 1}, "clients have 3 values from 1 to 3; whole numbers"),
    ({"domains": NAMES[LABELS]}, "domains have the type <U3; whole numbers"),
    (with_test(NAMES[LABELS]), "test_labels have the type <U3"),
    (with_test(np.array(["cow"]), GREY[:1]) | {"labels": NAMES[LABELS]}, "have 'cow', but the"),
    ({"labels": worded("")}, "the names ''; .* one form, .* missing value"),
    ({"labels": np.resize(["NA", "None", "b", "n/a", "nan"], 60)}, "'NA', 'None', 'n/a', 'nan'"),
    ({"labels": worded("cat ")}, "the names 'cat', 'cat '"),
    ({"labels": np.array(["a", "\ud800"] * 30)}, "mine.npz' cannot be read, or is not UTF-8"),
    ({"labels": np.char.encode(NAMES[LABELS])}, r"labels have the type \|S3; .* names \(texts"),
    ({"labels": np.array(["a", None, "b"] * 20)}, "Object arrays cannot .* numbers or texts"),
    ({"images": GREY[:, 0]}, "images have the shape .*; images .N, height, width.* of bool"),
    ({"images": GREY.astype(int)}, "images are int64 from 0 to 255"),
    ({"images": (GREY > 127).astype(np.uint8)}, "images are uint8 from 0 to 1"),
    ({"images": np.where(GREY > 200, np.nan, 0.5)}, "images are float64 from nan to nan"),
    ({"images": GREY[:50]}, r"labels are torch.int64 of the shape \(60,\) .* for 50 images"),
    ({"images": GREY[..., :0]}, r"images are torch.uint8 of the shape \(60, 1, 6, 0\)"),
    (with_test(images=GREY / 255), "test_images are torch.float32"),
    ({"images": None, "features": np.full((60, 2), 1e39)}, "from inf to inf"),
    ({"features": GREY[:, 0]}, "has images, labels, features; 'labels' and either 'images' or"),
    ({"images": None}, "has labels; 'labels' and either 'images' or"),
    ({"test_labels": LABELS}, "has images, labels, test_labels; .* the same with 'test_'"),
    ({"labels": np.r_[LABELS[:-1], 3]}, "a fifth of each class cannot become the test set"),
    ({"clients": np.arange(60)}, "it would have all samples of clients .* more samples"),
    ({"domains": np.r_[LABELS, LABELS]}, "domains are .* for 60 images"),
]


@pytest.mark.parametrize(("arrays", "said"), WRONG_ARRAYS)
def test_arrays_that_do_not_fit_are_refused_in_one_form(saved, arrays, said):
    """The form is: what is seen; what is taken."""
    with pytest.raises(DatasetError, match=said):
        datasets.load(saved(**arrays))


def test_what_is_no_archive_is_refused(tmp_path):
    path, array = tmp_path / "mine.npz", io.BytesIO()
    np.savez_compressed(path, images=GREY, labels=LABELS)
    np.save(array, GREY)
    whole = path.read_bytes()
    for content in (b"images, labels", b"", whole[: len(whole) // 2], array.getvalue()):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"mine\.npz cannot be read .* files \.npz are tak"):
            datasets.load(str(path))


def test_what_is_too_large_is_refused_before_memory_is_taken(tmp_path, monkeypatch, saved):
    pictures(tmp_path / "pets")
    monkeypatch.setattr(files, "LARGEST", 2**10)
    monkeypatch.setattr(folders, "read", None)
    for name in (saved(), tmp_path / "pets"):
        with pytest.raises(DatasetError, match="GiB is the most here"):
            datasets.load(name)


def test_names_that_are_no_data_are_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert not own_data.is_own(9999 * "a") and not own_data.is_own("a\0b")
    for name in ("svhn", f"{tmp_path}/mine.csv", f"{tmp_path}/circle", "~nobody-here/a.npz"):
        with pytest.raises(DatasetError, match=r"unknown data set .*, and no \.npz .* are bloodm"):
            datasets.load(name)
    with pytest.raises(DatasetError, match="did you mean 'mnist'"):
        datasets.load("minst")


def spoilt(spoil, parts=("",)):
    """Prepare a folder of pictures, and spoil it; ``last`` is the path of one more picture."""

    def prepare(place):
        for part in parts:
            pictures(place / part)
        spoil(place / parts[-1] / "cat" / "last.png")

    return prepare


DEEP = Image.fromarray(np.full((9, 8), 1000, np.uint16))


def as_client(picture):
    """Move two classes into a folder beside two others."""
    shutil.copytree(picture.parent.parent, picture.parent.parent / "a")


WRONG_FOLDERS = [
    (Path.mkdir, "has no folders; one folder of pictures per class is taken"),
    (lambda place: (place / "cat").mkdir(parents=True), "cat has folders, or no pictures; one"),
    (spoilt(lambda last: last.with_suffix("").mkdir(), ["train", "test"]), "has folders, or"),
    (spoilt(lambda last: last, ["Train", "Test"]), "has Test, Train; one folder of"),
    (spoilt(as_client), "has a, cat, dog; one folder of pictures"),
    (spoilt(lambda last: Image.new("L", (6, 6)).save(last)), "has 6×6 and not 8×9 pixels"),
    (spoilt(lambda last: last.write_bytes(b"P6\n5 x\n255\n")), r"last\.png cannot be read"),
    (spoilt(lambda last: DEEP.save(last)), r"last\.png has more than 8 bits"),
    (spoilt(os.mkfifo), "it is no regular file"),
    (spoilt(lambda last: last.symlink_to("nowhere")), "cannot be read"),
    (lambda place: pictures(place, ["é", unicodedata.normalize("NFD", "é")]), "in one form"),
    (lambda place: pictures(place, [os.fsdecode(b"\xff"), "a"]), "is not UTF-8"),
]


@pytest.mark.parametrize(("prepare", "said"), WRONG_FOLDERS)
def test_folders_that_do_not_fit_are_refused_in_one_form(tmp_path, prepare, said):
    prepare(tmp_path / "pets")
    with pytest.raises(DatasetError, match=said):
        datasets.load(str(tmp_path / "pets"))


WRONG_TENSORS = [
    ({"images": GREY}, "images are no tensor, but of the type ndarray; tensors .N, channels"),
    ({"images": torch.from_numpy(GREY)}, r"torch.uint8 of the shape \(60, 6, 5\)"),
    ({"images": torch.from_numpy(GREY)[:, None].int()}, "images are torch.int32"),
    ({"images": torch.full((60, 7, 1, 1), math.nan)}, "from nan to nan"),
    ({"images": torch.full((60, 7, 1, 1), 1e38)}, r"floating-point below 1e\+18"),
    ({"labels": torch.from_numpy(LABELS).int()}, "labels are torch.int32 .* of int64"),
    ({"classes": 2}, "from 0 to 2 for 60 images; .* labels below 2"),
    ({"owners": torch.from_numpy(LABELS) - 1}, "owners are .* from -1 to 1"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG_TENSORS)
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
    with pytest.raises(ParameterError, match=r"unknown data set 'minst', and no \.npz file"):
        emd_cfl.Parameters.checked(values | {"dataset": "minst"})


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
    features = np.where(domains[:, None], features[:, ::-1], features)
    np.savez("vectors.npz", features=features, labels=digits.labels.numpy(), domains=domains)
    return "vectors.npz"


def command(lesson, **given):
    """Return the command that runs a lesson with data of one's own."""
    given = {"local_epochs": 1, "repeats": 1} | given
    options = [word for name, value in given.items() for word in ("-p", name, as_yaml(value))]
    return ["run", str(PROJECT / "notebooks" / f"{lesson}.ipynb"), *options]


@pytest.mark.slow
def test_a_lesson_makes_a_record_of_ones_own_data(tmp_path, monkeypatch, printed, refuse):
    monkeypatch.chdir(tmp_path)
    whole = datasets.load("digits-8x8")
    digits = replace(whole, images=whole.images[:400], labels=whole.labels[:400])
    path = folder_of_pictures(digits)
    words = command("03b_ocfl_controls", dataset=path, rounds=1, clients=6, draws=60)
    words.append("--record-only")
    printed(*words)
    [record] = Path(os.environ["CFLKIT_RESULTS"]).iterdir()
    assert f"-{path}-" in record.name
    told = json.loads((record / "record.json").read_text(encoding="utf-8"))
    assert list(told["provenance"]["data_files"]) == [path]
    assert told["provenance"]["class_names"] == [f"digit {number}" for number in range(10)]
    assert pd.read_csv(record / "rounds.csv")["accuracy"].notna().all()

    assert "the record is there already" in printed(*words, "--missing")
    folder_of_pictures(replace(digits, images=255 - digits.images))
    assert f"/{path}; run it again without --missing" in refuse(*words, "--missing"), "other data"


OF_DOMAINS = {"version": "domains", "clients": None, "samples": None, "compared": []}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("lesson", "options"),
    [
        ("01b_drift_measured", {"clients": 6}),
        ("02b_four_scenarios", {"clients": 6, "draws": 60}),
        ("05b_emd_cfl_controls", OF_DOMAINS | {"model": "perceptron"}),
    ],
)
def test_a_whole_lesson_runs_with_features(tmp_path, monkeypatch, lesson, options):
    """Also its figures and demonstrations, which a record does not need."""
    monkeypatch.chdir(tmp_path)
    path = features_of_two_domains(datasets.load("digits-8x8"))
    assert main(command(lesson, dataset=path, rounds=2, **options)) == 0
