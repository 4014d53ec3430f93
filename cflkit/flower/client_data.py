"""One client's data: a file of its own, or a part of a set of the kit or of flwr-datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit import datasets, partition
from cflkit.datasets import DatasetError, ImageSet
from cflkit.datasets.files import read_arrays
from cflkit.datasets.images import fifth_for_test
from cflkit.datasets.labels import numbered, whole
from cflkit.datasets.own_data import as_features, as_images
from cflkit.federation import Federation
from cflkit.flower.settings import Settings, named
from cflkit.partition import Partition, PartitionError, shifts

# The order of the splits matters: which samples are drawn from a split depends on its place
SPLITS = ("train", "test", "validation", "backdoor")
NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)
Splits = dict[str, tuple[Tensor, Tensor]]


def federation_at(settings: Settings, node: Mapping[str, Any]) -> tuple[int, Federation]:
    """Return a node's client, and the federation as this client sees it.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    node : mapping
        The configuration of the node: ``client`` and the path of its ``data`` (`samples_in`).
        Without these, the client has the number ``partition-id``, and its data are those that
        ``dataset`` and ``partition`` describe. A name with a slash, such as ``ylecun/mnist``, is a
        set of flwr-datasets, and the partition then names one of its partitioners.

    Raises
    ------
    DatasetError, PartitionError
        There is no such client, or its data cannot be used, or do not fit the settings.
    """
    client, count = int(node["client" if "data" in node else "partition-id"]), settings.clients
    if not 0 <= client < count:
        raise DatasetError(f"clients are numbered from 0 to {count - 1}; there is no {client}")
    if "data" in node:
        return client, alone(settings, client, samples_in(Path(node["data"]), settings.names))
    if "/" in settings.dataset:
        return client, alone(settings, client, of_the_hub(settings, client))
    return client, settings.federation(*of_the_kit(settings))


def of_the_kit(settings: Settings) -> tuple[ImageSet, Partition]:
    """Make the data of all clients that ``dataset`` and ``partition`` describe.

    The partition is a recipe of `cflkit.partition` or a version of its `shifts`, with options.
    """
    images, (name, options) = datasets.load(settings.dataset), named(settings.partition)
    options |= {"clients": settings.clients, "seed": settings.seed}
    is_recipe = name in ("iid", "dirichlet", "ocfl", "class_mixtures")
    make = getattr(partition, name) if is_recipe else partial(shifts.make, version=name)
    try:
        made: tuple[ImageSet, Partition] = make(images, **options)
    except TypeError as error:  # it has no such option, or lacks one
        raise PartitionError(f"partition: {error}") from error
    return made


def of_the_hub(settings: Settings, client: int) -> Splits:
    """Read a client's part of a data set of flwr-datasets; a fifth of each class is for testing."""
    import flwr_datasets  # an optional package

    name, options = named(settings.partition)
    make = getattr(flwr_datasets.partitioner, name)
    parts = {"train": make(num_partitions=settings.clients, **options)}
    hub = flwr_datasets.FederatedDataset(dataset=settings.dataset, partitioners=parts)
    table = hub.load_partition(client, "train")
    column = {type(kind).__name__: title for title, kind in table.features.items()}
    pictures = np.stack([np.asarray(picture) for picture in table[column["Image"]]])
    samples, labels = as_images(pictures, settings.dataset), np.array(table[column["ClassLabel"]])
    indices = zip(("train", "test"), fifth_for_test(labels), strict=True)
    return {split: (samples[rows], torch.from_numpy(labels[rows])) for split, rows in indices}


def save(path: Path, images: ImageSet, partition: Partition, client: int) -> None:
    """Write the file of one client of a partition, which its owner alone can read."""
    arrays: dict[str, Any] = {}
    for split, indices in partition.splits.items():
        samples = images.images[indices[client]].numpy()
        # Features are held as images of one pixel (`as_features`)
        if images.shape[1:] == (1, 1):
            arrays[f"{split}_features"] = samples[:, :, 0, 0]
        else:
            arrays[f"{split}_images"] = samples
        arrays[f"{split}_labels"] = images.labels[indices[client]].numpy()
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    np.savez_compressed(path, **arrays)


def samples_in(path: Path, names: Sequence[str] = ()) -> Splits:
    """Read a client's samples and labels of each split from an ``.npz`` file.

    The file has ``train_images`` and ``train_labels``, the same for ``test``, and perhaps for
    ``validation`` and ``backdoor``. Images have the types of one's own data
    (`cflkit.datasets.own_data`). Instead of images there may be features ``[n, d]``. Where the
    federation names its classes, labels are these ``names``, and otherwise their numbers.

    Raises
    ------
    DatasetError
        The file cannot be read, or lacks an array, or an array does not fit.
    """
    arrays, splits = read_arrays(path), Splits()
    for split in SPLITS:
        kinds = [kind for kind in ("images", "features") if f"{split}_{kind}" in arrays]
        labels = arrays.get(f"{split}_labels")
        if not kinds and labels is None and split not in ("train", "test"):
            continue
        what, either = f"{path}: {split}_labels", f"either {split}_images or {split}_features"
        if len(kinds) != 1 or labels is None:
            raise DatasetError(f"{path} needs {split}_labels, and {either}")
        name = f"{split}_{kinds[0]}"
        convert = as_images if kinds == ["images"] else as_features
        samples = convert(arrays[name], f"{path}: {name}")
        if labels.shape[:1] != (count := len(samples),):
            rows = f"{name} has {count} rows, but the labels have the shape {labels.shape}"
            raise DatasetError(f"{path}: {rows}")
        numbers = NOTHING  # a client may have no sample in a split
        if len(labels):
            numbers = numbered(labels, names, what) if names else whole(labels, what)
        splits[split] = samples, torch.from_numpy(numbers)
    return splits


def alone(settings: Settings, client: int, splits: Splits) -> Federation:
    """Build the federation as one client sees it: the other clients have no samples.

    The client has the number that it has in the whole federation. Batch orders depend on this
    number and the seed, so it trains exactly as in the simulation.
    """
    kinds = {(samples.dtype, samples.shape[1:]) for samples, _ in splits.values()}
    if len(kinds) > 1 or next(iter(kinds))[1] != settings.shape:
        shapes = ", ".join(f"{tuple(shape)} of {dtype}" for dtype, shape in kinds)
        must = f"one type and of the shape {settings.shape}, as the settings say"
        raise DatasetError(f"all splits must have samples of {must}, not {shapes}")
    held = {client: {split: len(labels) for split, (_, labels) in splits.items()}}
    pool, labels = map(torch.cat, zip(*splits.values(), strict=True))
    return settings.federation(*divided(settings, pool, labels, held))


def divided(
    settings: Settings, pool: Tensor, labels: Tensor, held: Mapping[int, Mapping[str, int]]
) -> tuple[ImageSet, Partition]:
    """Return a pool, and the partition of it by how many samples clients have in each split."""
    names = dict.fromkeys(split for counts in held.values() for split in counts)
    parts, start = {split: [NOTHING] * settings.clients for split in names}, 0
    for client, counts in sorted(held.items()):  # in whatever order clients have said hello
        for split, count in counts.items():
            parts[split][client] = np.arange(start, start + count)
            start += count
    classes = settings.classes if isinstance(settings.classes, int) else len(settings.classes)
    images = ImageSet("own", pool, labels, pool[:0], labels[:0], classes)
    train, test = parts.pop("train"), parts.pop("test")
    return images, Partition("own", train, test, None, {"name": "own"}, parts)
