"""Random files and folders for the doors through which a user's data enter.

A door either gives what an independent reading of the input gives, or raises the kit's own error
in one line. `CFLKIT_FUZZ` sets the seed, which is printed: another one tries other inputs.
"""

import os
import unicodedata
import warnings
from collections import Counter
from itertools import product

import numpy as np
import pytest
from PIL import Image

from cflkit import datasets
from cflkit.datasets import DatasetError

SEED = int(os.environ.get("CFLKIT_FUZZ", "0"))
NAMES = np.array(["cat", "dog", "10", "9", unicodedata.normalize("NFD", "é"), "e"])


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


# --- Files of arrays -----------------------------------------------------------------------------


def pixels(rng, n):
    """Draw images of any type and shape; most of them as they should be."""
    side = [int(rng.integers(1, 6)), int(rng.integers(2, 6))]
    byte = rng.integers(0, 256, pick(rng, [n, *side], [n, *side, 3], [n, 3, *side], [n, 1, *side]))
    small, share = byte.astype(np.uint8), byte / 255
    if rng.random() < 0.8:
        return pick(rng, small, byte > 127, share.astype(pick(rng, np.float16, np.float32, ">f8")))
    types = np.int64, np.uint16, np.float64, np.complex64, object, "U3"
    wrong = [byte.astype(pick(rng, *types)), small > 1, (byte > 127).astype(np.uint8), 2 * share]
    wrong += [np.where(byte > 250, pick(rng, np.nan, np.inf, 1e300), share), small[..., None]]
    wrong += [small.reshape(n, -1)[:, : pick(rng, 0, 1, 9)], small[: rng.integers(n)]]
    return pick(rng, *wrong)


def numbers(rng, n):
    """Draw labels in any form; most of them as they should be."""
    which = rng.permutation(np.arange(n) % pick(rng, 2, 3))
    if rng.random() < 0.8:
        whole = which.astype(pick(rng, np.int64, np.uint8, ">i2"))
        return pick(rng, whole, NAMES[rng.permutation(6)[:3]][which], which[:, None])
    wrong = [NAMES[which].astype(object), np.char.encode(NAMES[which], "utf-8"), np.eye(3)[which]]
    wrong += [which * 2 - pick(rng, 0, 1), which / pick(rng, 1, 2), np.array(["", "a", "b"])[which]]
    wrong += [which.astype(pick(rng, bool, "M8[s]", "m8[s]", np.complex64)), which[: n // 2]]
    return pick(rng, *wrong, np.where(which == 0, np.nan, which), np.array(which[0]))


def named(labels):
    """Return the name of each label: a text in one Unicode form, or a number."""
    flat = labels.ravel().tolist()
    return [unicodedata.normalize("NFC", x) if isinstance(x, str) else x for x in flat]


def seen(images):
    """Return what is to be seen, ``[N, channels, height, width]`` from 0 to 1, in 1,000 steps."""
    if images.dtype == bool:
        images = images * 1.0
    assert images.dtype.kind == "f" or images.dtype == np.uint8
    shown = images / 255 if images.dtype == np.uint8 else images.astype(float)
    if shown.ndim == 3:
        return shown[:, None]
    return np.moveaxis(shown, 3, 1) if shown.shape[3] in (1, 3) else shown


def counted(shown, labels):
    """Count samples: their pixels, rounded, together with their labels."""
    rows = (1000 * np.asarray(shown, dtype=float)).round().astype(int)
    pairs = zip(rows, labels, strict=True)
    return Counter((row.tobytes(), row.shape, label) for row, label in pairs)


def loaded(found, test):
    """Return a loaded pool or test set, counted."""
    images = found.test_images if test else found.images
    labels = found.test_labels if test else found.labels
    scale = 1 if images.is_floating_point() else 255
    names = found.class_names or range(found.classes)
    return counted(images.numpy() / scale, [names[label] for label in labels.tolist()])


def arrays(rng, place):
    """Write a file of arrays, which may be damaged; return its path and what must be found."""
    n = int(rng.integers(15, 40))
    held = {"images": pixels(rng, n), "labels": numbers(rng, n)}
    if rng.random() < 0.5:
        held |= {f"test_{key}": array[:7] if array.ndim else array for key, array in held.items()}
    held |= {pick(rng, "domains", "clients", "more"): numbers(rng, n)} if rng.random() < 0.2 else {}
    if rng.random() < 0.1:
        held.pop(pick(rng, *held))
    path = place / f"mine.{pick(rng, 'npz', 'NPZ')}"
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, **held)
    if rng.random() < 0.3:
        content = bytearray(path.read_bytes())
        for at in rng.integers(len(content), size=rng.integers(1, 4)):
            content[at] = rng.integers(256)
        path.write_bytes(content[: pick(rng, len(content), rng.integers(len(content)))])

    def expected(found):
        with np.load(path) as read:
            whole = counted(seen(read["images"]), named(read["labels"]))
            if "test_images" not in read:
                return loaded(found, False) + loaded(found, True), whole
            test = counted(seen(read["test_images"]), named(read["test_labels"]))
        return (loaded(found, False), loaded(found, True)), (whole, test)

    return path, expected


# --- Folders of pictures -------------------------------------------------------------------------


def picture(rng, side):
    """Draw a picture in any mode; return it, and what is to be seen: ``[3, height, width]``."""
    height, width = side
    byte = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
    byte[..., 3] = rng.choice([0, 255], (height, width))
    mode = pick(rng, *["RGB", "L", "RGBA", "LA", "1", "P", "I;16"][: pick(rng, 2, 6, 6, 6, 7)])
    if mode == "I;16":
        return Image.fromarray(byte[..., 0].astype(np.uint16) * 200), None
    made = Image.fromarray(byte[..., 0] if mode == "P" else byte).convert(mode)
    planes = np.array(made).reshape(height, width, -1) * (255 if mode == "1" else 1)
    if "A" in mode:
        planes = np.where(planes[..., -1:] == 255, planes[..., :-1], 255)
    return made, np.broadcast_to(planes, (height, width, 3)).transpose(2, 0, 1)


def pictures(rng, place):
    """Write a folder of pictures and of other things; return its path and what must be found."""
    side, strange = rng.integers(2, 7, 2), rng.random() < 0.3
    names = [str(name) for name in NAMES[rng.permutation(6)[: rng.integers(1, 5)]]]
    parts, held = pick(rng, [""], [""], ["train", "test"]), Counter()
    for part, name in product(parts, names):
        folder = place / "mine" / part / name
        folder.mkdir(parents=True)
        for number in range(rng.integers(2, 9)):
            made, shown = picture(rng, rng.permutation(side) if strange else side)
            path = folder / f"{number}.{pick(rng, 'png', 'PNG', 'tiff')}"
            made.save(path)
            if shown is not None:
                label = unicodedata.normalize("NFC", name)
                held += counted(shown[None] / 255, [label])
    return place / "mine", lambda found: (loaded(found, False) + loaded(found, True), held)


@pytest.mark.parametrize("inputs", [80, pytest.param(500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("make", [arrays, pictures])
def test_a_door_gives_what_is_there_or_says_in_one_line_why_not(tmp_path, make, inputs):
    taken = 0
    for number in range(inputs):
        print(f"CFLKIT_FUZZ={SEED} input {number}")  # which pytest shows of a failure
        place = tmp_path / str(number)
        place.mkdir()
        path, expected = make(np.random.default_rng([SEED, number]), place)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = datasets.load(path)
        except DatasetError as error:
            assert "\n" not in str(error)
        else:
            got, wanted = expected(found)
            assert got == wanted
            taken += 1
    assert 0.2 < taken / inputs < 0.9, "both kinds of input are tried"
