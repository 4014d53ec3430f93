"""Data of one's own: files and folders that the kit accepts, and what it says of others."""

import io
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from cflkit import datasets, methods, partition, simulation
from cflkit.__main__ import main
from cflkit.datasets import DatasetError, ImageSet, own_data
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


# --- What is refused, and what is said -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": GREY.astype(np.int32)}, "give uint8 from 0 to 255"),
        ({"images": GREY.astype(float)}, "must be from 0 to 1"),
        ({"images": GREY[:, 0]}, "the shape"),
        ({"images": GREY[:50]}, "50 images and 60 labels"),
        ({"images": None, "features": np.full((60, 2), 1j)}, "the type complex"),
        ({"images": None, "features": np.full((60, 2), 1e39)}, "beyond float32 in 60 rows"),
        ({"images": None, "features": np.full((60, 2), np.nan)}, "NaN"),
        ({"features": GREY[:, 0]}, "has both 'images' and 'features'; give only one"),
        ({"images": None}, "it needs 'labels' and 'images' or 'features'"),
        ({"labels": LABELS[:0]}, "labels are empty"),
        ({"labels": LABELS + 1}, "number them from 0"),
        ({"labels": 2 * LABELS}, "without gaps"),
        ({"labels": LABELS.astype(float)}, "one whole number per sample"),
        ({"labels": np.array(list("abc") * 20)}, "return_inverse"),
        ({"labels": np.r_[LABELS[:-1], 3]}, "class 3 has one sample"),
        ({"test_labels": LABELS}, "a test set needs images and labels"),
        ({"labels": np.array(3)}, "one whole number per sample"),
        ({"domains": LABELS[:3] * 0}, "3 domains for 60 images"),
        ({"domains": np.r_[LABELS, LABELS]}, "120 domains for 60 images"),
        ({"clients": LABELS[:3] * 0}, "3 clients \\(owners\\) for 60 images"),
        ({"clients": LABELS + 1}, "number them from 0"),
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


def test_names_that_are_no_data_are_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("")
    for name, said in (
        ("svhn", "unknown data set 'svhn'; choose from bloodmnist"),
        ("minst", "did you mean 'mnist'"),
        (f"{tmp_path}/mine.csv", r"is no \.npz file; give one, or a folder"),
        (f"{tmp_path}/mine.npz", "there is no file or folder"),
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


def wild(place):
    """Prepare a folder whose test set lacks a class."""
    folder(["train", "test"])(place)
    shutil.rmtree(place / "test" / "dog")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (Path.mkdir, "has no folders; it must have one folder of images per class"),
        (lambda place: (place / "cat").mkdir(parents=True), "per class: Found no valid file"),
        (folder([""], [(5, 6), (6, 6)]), "scale all images to one size"),
        (folder(["Train", "Test"]), "Test has the folders cat, dog"),
        (folder(["train", "val", "test"]), "'train' and 'test' alone"),
        (wild, "they must be the same"),
        (folder([""], last=b""), r"last\.ppm is damaged"),
        (folder([""], last=b"P6\n5 x\n255\n"), r"last\.ppm is damaged"),
        (folder([""], last=b"P6\n5 99999999999999\n255\n"), r"last\.ppm is damaged"),
        (folder([""], deep=np.full((6, 5), 1000, np.uint16)), r"deep\.png has more than 8 bits"),
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
    assert emd_cfl.Parameters.known(path) == path
    with pytest.raises(ValueError, match=r"the path of an \.npz file"):
        emd_cfl.Parameters.known("minst")


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "lesson",
    ["03b_ocfl_controls", pytest.param("05b_emd_cfl_controls", marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("make", [floats_in_a_file, folder_of_pictures, features_of_two_domains])
def test_a_lesson_makes_a_record_of_ones_own_data(tmp_path, monkeypatch, capsys, make, lesson):
    monkeypatch.chdir(tmp_path)
    path = make(datasets.load("digits-8x8"))
    vectors = make is features_of_two_domains
    given = {"dataset": path, "rounds": 1, "local_epochs": 1, "repeats": 1}
    if lesson == "03b_ocfl_controls":
        given |= {"clients": 6, "draws": 60, "model": "perceptron" if vectors else "compact-cnn"}
    elif vectors:
        given |= {"version": "domains", "clients": None, "samples": None, "model": "perceptron"}
    else:
        given |= {"version": "quarter-turn", "clients": 4, "samples": 60}
    options = [f"-p {name} {as_yaml(value)}" for name, value in given.items()]
    notebook = str(PROJECT / "notebooks" / f"{lesson}.ipynb")
    command = ["run", notebook, *" ".join(options).split(), "--record-only"]
    assert main(command) == 0
    [record] = Path(os.environ["CFLKIT_RESULTS"]).iterdir()
    assert f"-{Path(path).stem}-" in record.name
    told = json.loads((record / "record.json").read_text(encoding="utf-8"))
    assert list(told["provenance"]["data_files"]) == [path]
    rounds = pd.read_csv(record / "rounds.csv")
    assert rounds["accuracy"].notna().all()

    assert main([*command, "--missing"]) == 0
    assert "the record is there already" in capsys.readouterr().out
    digits = datasets.load("digits-8x8")
    make(replace(digits, images=255 - digits.images))
    assert main([*command, "--missing"]) == 2, "the same path has other data now"
    assert f"/{path}; run it again without --missing" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize(
    "lesson", ["01_federated_averaging", "02_when_clients_disagree", "05b_emd_cfl_controls"]
)
def test_a_whole_lesson_runs_with_features(tmp_path, monkeypatch, lesson):
    """Also its figures and demonstrations, which a record does not need."""
    monkeypatch.chdir(tmp_path)
    given = {"dataset": features_of_two_domains(datasets.load("digits-8x8"))}
    given |= {"rounds": 2, "local_epochs": 1, "repeats": 1}
    if lesson == "01_federated_averaging":
        given |= {"clients": 6}
    elif lesson == "02_when_clients_disagree":
        given |= {"clients": 6, "draws": 60}
    else:
        given |= {"version": "domains", "clients": None, "model": "perceptron", "compared": []}
    notebook = str(PROJECT / "notebooks" / f"{lesson}.ipynb")
    options = [part for name, value in given.items() for part in ("-p", name, json.dumps(value))]
    options = [option.strip('"') for option in options]
    assert main(["run", notebook, *options]) == 0
