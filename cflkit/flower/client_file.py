"""One client's data in a file of its own, and the federation that its node builds from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit.datasets import DatasetError, ImageSet
from cflkit.datasets.files import read_arrays
from cflkit.datasets.labels import numbered, whole
from cflkit.datasets.own_data import as_features, as_images
from cflkit.federation import Federation
from cflkit.flower.agreement import Setting
from cflkit.partition import Partition

# The order of the splits matters: which samples are drawn from a split depends on its place
SPLITS = ("train", "test", "validation", "backdoor")
NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)


def save(path: Path, images: ImageSet, partition: Partition, client: int) -> Path:
    """Write the file of one client of a partition, which its owner alone can read."""
    arrays: dict[str, NDArray[Any]] = {}
    # Features are held as images of one pixel (`as_features`)
    kind = "features" if images.shape[1:] == (1, 1) else "images"
    for split, indices in partition.splits.items():
        index = torch.from_numpy(indices[client])
        samples = images.images[index].numpy()
        arrays[f"{split}_{kind}"] = samples if kind == "images" else samples.reshape(len(index), -1)
        arrays[f"{split}_labels"] = images.labels[index].numpy()
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def samples_in(path: Path, names: Sequence[str] = ()) -> dict[str, tuple[Tensor, Tensor]]:
    """Read a client's file: for each split, the images (or features) and the labels.

    It is an ``.npz`` file with ``train_images`` and ``train_labels``, the same for ``test``, and
    perhaps for ``validation`` and ``backdoor``. Images have the types of one's own data
    (`cflkit.datasets.own_data`). Instead of images there may be features ``[n, d]``. Where the
    federation names its classes, labels are these ``names``, and otherwise their numbers.

    Raises
    ------
    DatasetError
        The file cannot be read, or lacks an array, or an array does not fit.
    """
    arrays = read_arrays(path)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for split in SPLITS:
        kinds = [kind for kind in ("images", "features") if f"{split}_{kind}" in arrays]
        labels = arrays.get(f"{split}_labels")
        if not kinds and labels is None and split not in ("train", "test"):
            continue
        if len(kinds) != 1 or labels is None:
            raise DatasetError(
                f"{path} needs {split}_labels, and either {split}_images or {split}_features"
            )
        name = f"{split}_{kinds[0]}"
        convert = as_images if kinds == ["images"] else as_features
        samples = convert(arrays[name], f"{path}: {name}")
        if labels.shape[:1] != (len(samples),):
            raise DatasetError(
                f"{path}: {name} has {len(samples)} rows, but the labels have the shape "
                f"{labels.shape}"
            )
        own = NOTHING
        if len(labels):  # a client may have no sample in a split
            of_split = f"{path}: {split}_labels"
            own = numbered(labels, names, of_split) if names else whole(labels, of_split)
        found[split] = samples, torch.from_numpy(own)
    if len({(samples.dtype, samples.shape[1:]) for samples, _ in found.values()}) > 1:
        raise DatasetError(f"{path}: all splits must have samples of one type and one shape")
    return found


def federation_of(setting: Setting, data: Path, client: int) -> Federation:
    """Build the federation as one client sees it: the other clients have no samples.

    The client has the number that it has in the whole federation. Batch orders depend on this
    number and the seed, so it trains exactly as in the simulation.

    Raises
    ------
    DatasetError
        The number of the client is out of bounds, or its file does not fit the setting.
    """
    if not 0 <= client < setting.clients:
        raise DatasetError(f"clients are numbered from 0 to {setting.clients - 1}, not {client}")
    splits = samples_in(data, setting.names)
    pool, labels = map(torch.cat, zip(*splits.values(), strict=True))
    images = ImageSet(data.stem, pool, labels, pool[:0], labels[:0], setting.classes, files={})
    if images.shape != setting.shape:
        raise DatasetError(
            f"{data} has images of the shape {images.shape}; the server expects {setting.shape}"
        )
    held = {split: [NOTHING] * setting.clients for split in splits}
    start = 0
    for split, (_, targets) in splits.items():
        held[split][client] = np.arange(start, start + len(targets))
        start += len(targets)
    train, test = held.pop("train"), held.pop("test")
    partition = Partition(images.name, train, test, None, {"name": "one client"}, held)
    return setting.federation(images, partition)
