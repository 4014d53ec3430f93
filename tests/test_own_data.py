"""Data of one's own: files and folders that the kit accepts, and what it says of others."""

import io
import json
import math
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
from cflkit.partition import PartitionError, shifts
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
        np.savez(path, **({"images": GREY, "labels": LABELS} | arrays))
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
    images = datasets.load(saved())
    assert (images.name, images.classes, images.shape) == ("mine", 3, (1, 6, 5))
    assert len(images.images) == 48
    assert np.bincount(images.test_labels).tolist() == [4, 4, 4]
    together = torch.cat([images.images, images.test_images])[:, 0].numpy()
    assert sorted(together.sum(axis=(1, 2))) == sorted(GREY.sum(axis=(1, 2), dtype=int))
    again = datasets.load(saved())
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


def test_features_stay_as_they_are(tmp_path):
    path, features = tmp_path / "bumps.npz", 100 * RNG.normal(size=(60, 7))
    np.savez(path, features=features, labels=LABELS, domains=LABELS)
    found = datasets.load(str(path))
    assert found.shape == (7, 1, 1)
    assert set(found.images.flatten().tolist()) <= set(np.float32(features).flatten().tolist())
    torch.testing.assert_close(found.domains, found.labels)


def test_samples_have_the_clients_of_the_file(saved):
    owners = np.arange(60) // 6
    numbered = np.arange(60, dtype=np.uint8).repeat(30).reshape(60, 6, 5)
    found = datasets.load(saved(images=numbered, clients=owners))
    assert found.owners.tolist() == owners[found.images[:, 0, 0, 0]].tolist()
    assert len(found.owners) == 48


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


def test_a_folder_has_one_folder_per_class(tmp_path):
    pictures(tmp_path / "pets", [(5, 6)] * 5)
    found = datasets.load(str(tmp_path / "pets"))
    assert (found.name, found.classes, found.shape) == ("pets", 2, (3, 6, 5))
    assert (len(found.images), len(found.test_images)) == (8, 2)
    assert list(found.files) == ["pets"]


@pytest.mark.parametrize("damaged", [b"", b"P6\n5 x\n255\n", b"P6\n5 99999999999999\n255\n"])
def test_a_damaged_image_is_named(tmp_path, damaged):
    pictures(tmp_path / "pets", [(5, 6)] * 5)
    (next((tmp_path / "pets").iterdir()) / "last.ppm").write_bytes(damaged)
    with pytest.raises(DatasetError, match=r"last\.ppm is damaged"):
        datasets.load(str(tmp_path / "pets"))


def test_the_md5_of_a_folder_is_that_of_the_images_that_were_read(tmp_path):
    pictures(tmp_path / "pets", [(5, 6)] * 5)
    before = datasets.load(str(tmp_path / "pets")).files
    (tmp_path / "pets" / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "pets" / "cover.png")
    after = datasets.load(str(tmp_path / "pets"))
    assert (after.files, after.classes) == (before, 2)
    Image.new("RGB", (5, 6)).save(tmp_path / "pets" / "cat" / "0.png")
    assert datasets.load(str(tmp_path / "pets")).files != before


def test_a_folder_that_is_not_sorted_by_class_is_refused(tmp_path):
    for part in ("Train", "Test"):
        pictures(tmp_path / "pets" / part, [(5, 6)] * 3)
    with pytest.raises(DatasetError, match="Test has the folders cat, dog"):
        datasets.load(str(tmp_path / "pets"))


def test_pictures_of_16_bits_are_refused_and_not_clipped(tmp_path):
    pictures(tmp_path / "scans", [(5, 6)] * 5)
    deep = np.full((6, 5), 1000, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "scans" / "cat" / "0.png")
    with pytest.raises(DatasetError, match=r"0\.png has more than 8 bits"):
        datasets.load(str(tmp_path / "scans"))


@pytest.mark.parametrize(
    "features, said",
    [
        (np.full((60, 2), 1j), "the type complex"),
        (np.full((60, 2), 1e39), "beyond float32 in 60 rows"),
        (np.full((60, 2), np.nan), "NaN"),
    ],
)
def test_features_that_networks_cannot_get_are_refused(tmp_path, features, said):
    np.savez(tmp_path / "mine.npz", features=features, labels=LABELS)
    with pytest.raises(DatasetError, match=said):
        datasets.load(str(tmp_path / "mine.npz"))


def test_a_folder_may_have_a_test_set(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        pictures(tmp_path / "pets" / part, [(5, 6)] * count)
    found = datasets.load(str(tmp_path / "pets"))
    assert (len(found.images), len(found.test_images)) == (6, 2)


# --- What is refused, and what is said -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": GREY.astype(np.int32)}, "give uint8 from 0 to 255"),
        ({"images": GREY.astype(float)}, "must be from 0 to 1"),
        ({"images": GREY[:, 0]}, "the shape"),
        ({"images": GREY[:50]}, "50 images and 60 labels"),
        ({"features": GREY[:, 0]}, "has both 'images' and 'features'; give only one"),
        ({"labels": LABELS + 1}, "number them from 0"),
        ({"labels": 2 * LABELS}, "without gaps"),
        ({"labels": LABELS.astype(float)}, "one whole number per sample"),
        ({"labels": np.array(list("abc") * 20)}, "return_inverse"),
        ({"labels": np.r_[LABELS[:-1], 3]}, "class 3 has one sample"),
        ({"test_labels": LABELS}, "a test set needs images and labels"),
        ({"labels": np.array(3)}, "one whole number per sample"),
        ({"domains": LABELS[:3] * 0}, "3 domains and 60 labels"),
        ({"domains": np.r_[LABELS, LABELS]}, "120 domains and 60 labels"),
        ({"clients": LABELS[:3] * 0}, "3 clients and 60 labels"),
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


def test_shifted_data_have_the_groups_clients_and_not_those_of_the_file(saved):
    images = datasets.load(saved(clients=np.arange(60) % 3))
    shifted, split = shifts.make(images, "quarter-turn", clients=4, samples=10)
    assert (shifted.owners, split.clients) == (None, 4)


def test_the_home_of_nobody_is_no_folder():
    assert not own_data.is_own("~nobody-of-this-name/mine.npz")
    with pytest.raises(ParameterError, match="there is no file or folder ~nobody"):
        ocfl.Parameters.checked(
            ledger.defaults("03_ocfl_temperature") | {"dataset": "~nobody-of-this-name/mine.npz"}
        )


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, images=GREY, labels=LABELS)
    whole = path.read_bytes()
    for content in (b"images, labels", b"", whole[: len(whole) // 2], npy()):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"is no \.npz file|cannot be read as an"):
            datasets.load(str(path))


def npy():
    """The bytes of a single array, without an archive."""
    buffer = io.BytesIO()
    np.save(buffer, GREY)
    return buffer.getvalue()


def test_folders_that_do_not_fit_are_refused_with_advice(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="one folder of images per class"):
        datasets.load(str(tmp_path / "empty"))
    pictures(tmp_path / "pets", [(5, 6), (6, 6)])
    with pytest.raises(DatasetError, match="scale all images to one size"):
        datasets.load(str(tmp_path / "pets"))
    for part in ("train", "val", "test"):
        pictures(tmp_path / "split" / part, [(5, 6)] * 5)
    with pytest.raises(DatasetError, match="'train' and 'test' alone"):
        datasets.load(str(tmp_path / "split"))
    pictures(tmp_path / "wild" / "train", [(5, 6)])
    (tmp_path / "wild" / "test" / "cat").mkdir(parents=True)
    Image.new("RGB", (5, 6)).save(tmp_path / "wild" / "test" / "cat" / "0.png")
    with pytest.raises(DatasetError, match="they must be the same"):
        datasets.load(str(tmp_path / "wild"))


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
        ({"owners": torch.zeros(3)}, "3 owners for 60 images"),
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
    assert own_data.is_own(path)
    assert not own_data.is_own("mnist")
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
@pytest.mark.parametrize("lesson", ["03_ocfl_temperature", "05_emd_cfl"])
@pytest.mark.parametrize("make", [floats_in_a_file, folder_of_pictures, features_of_two_domains])
def test_a_lesson_makes_a_record_of_ones_own_data(tmp_path, monkeypatch, capsys, make, lesson):
    monkeypatch.setenv("CFLKIT_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("CFLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = make(datasets.load("digits-8x8"))
    vectors = make is features_of_two_domains
    given = {"dataset": path, "rounds": 1, "local_epochs": 1, "repeats": 1}
    if lesson == "03_ocfl_temperature":
        given |= {"clients": 6, "draws": 60, "model": "perceptron" if vectors else "compact-cnn"}
    elif vectors:
        given |= {"version": "domains", "clients": None, "samples": None, "model": "perceptron"}
    else:
        given |= {"version": "quarter-turn", "clients": 4, "samples": 60}
    options = [f"-p {name} {as_yaml(value)}" for name, value in given.items()]
    notebook = str(PROJECT / "notebooks" / f"{lesson}.ipynb")
    command = ["run", notebook, *" ".join(options).split(), "--record-only"]
    assert main(command) == 0
    [record] = (tmp_path / "results").iterdir()
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "lesson", ["01_federated_averaging", "02_when_clients_disagree", "05_emd_cfl"]
)
def test_a_whole_lesson_runs_with_features(tmp_path, monkeypatch, lesson):
    """Also its figures and demonstrations, which a record does not need."""
    for name in ("RESULTS", "CACHE", "FIGURES"):
        monkeypatch.setenv(f"CFLKIT_{name}", str(tmp_path / name.lower()))
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
