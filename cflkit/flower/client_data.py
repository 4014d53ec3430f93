"""One client's data: a file of its own, or a part of a data set of the kit or of one's own."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit import datasets, partition
from cflkit.datasets import DatasetError, ImageSet
from cflkit.datasets.files import read_arrays
from cflkit.datasets.images import as_features, as_images
from cflkit.datasets.labels import numbered, whole
from cflkit.federation import Federation
from cflkit.flower.keys import private_file, read_secret
from cflkit.flower.settings import Settings, named
from cflkit.partition import Partition, PartitionError, shifts

# The order of the splits matters: which samples are drawn from a split depends on its place
Split = Literal["train", "test", "validation", "backdoor"]
NEEDED, SPLITS = ("train", "test"), get_args(Split)
NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)
Splits = dict[str, tuple[Tensor, Tensor]]


def federation_at(settings: Settings, node: Mapping[str, Any], client: int) -> Federation:
    """Return the federation as the node of a client sees it.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    node : mapping
        The configuration of the node: the paths of its ``data`` (`samples_in`) and of its
        ``secret`` (`keys.write_secret`), if it has some. Without a file of its own, the client has
        the data that ``dataset`` and ``partition`` describe. ``client`` is the number that the
        owner expects, and no request to another client is answered (`client_app.opened`).
    client : int
        The client's number.

    Raises
    ------
    DatasetError, PartitionError
        The data cannot be used, or do not fit the settings.
    """
    if "data" in node:
        federation = alone(settings, client, samples_in(Path(node["data"]), settings))
    else:
        federation = Federation(*of_the_kit(settings), **settings.options)
    if "secret" in node:
        federation.shared_seed = read_secret(Path(node["secret"]))
    return federation


def of_the_kit(settings: Settings) -> tuple[ImageSet, Partition]:
    """Make the data of all clients that ``dataset`` and ``partition`` describe.

    The partition is a recipe of `cflkit.partition` or a version of its `shifts`, with options.
    """
    images, (name, options) = datasets.load(settings.dataset), named(settings.partition)
    make: Callable[..., tuple[ImageSet, Partition]] = partial(shifts.make, version=name)
    if name in ("iid", "dirichlet", "ocfl", "class_mixtures"):
        make = getattr(partition, name)
    try:
        return make(images, clients=settings.clients, seed=settings.seed, **options)
    except TypeError as error:  # it has no such option, or lacks one
        raise PartitionError(f"partition: {error}") from error


def save(path: Path, images: ImageSet, partition: Partition, client: int) -> None:
    """Write the file of one client of a partition, which its owner alone can read."""
    # Features are held as images of one pixel (`as_features`)
    kind = "features" if images.shape[1:] == (1, 1) else "images"
    samples = images.images.flatten(1) if kind == "features" else images.images
    arrays: dict[str, Any] = {}
    for split, indices in partition.splits.items():
        arrays[f"{split}_{kind}"] = samples[indices[client]]
        arrays[f"{split}_labels"] = images.labels[indices[client]]
    np.savez_compressed(private_file(path), **arrays)


def samples_in(path: Path, settings: Settings) -> Splits:
    """Read a client's samples and labels of each split from an ``.npz`` file.

    The file has ``train_images`` and ``train_labels``, the same for ``test``, and perhaps for
    ``validation`` and ``backdoor``. Images have the types of one's own data
    (`cflkit.datasets.own_data`). Instead of images there may be features ``[n, d]``. Where the
    federation names its classes, labels are these names, and otherwise their numbers.

    Raises
    ------
    DatasetError
        The file cannot be read, or lacks an array, or an array does not fit.
    """
    arrays, splits = read_arrays(path), Splits()
    has_features, names = "train_features" in arrays, settings.classes
    kind, convert = ("features", as_features) if has_features else ("images", as_images)
    number = whole if isinstance(names, int) else partial(numbered, classes=names)
    for split in SPLITS:
        name, labels = f"{split}_{kind}", f"{split}_labels"
        if split not in NEEDED and not {name, labels} & arrays.keys():
            continue
        if not {name, labels} <= arrays.keys():
            raise DatasetError(f"{path} needs {name} and {labels}")
        samples, numbers = convert(arrays[name], f"{path}: {name}"), NOTHING
        if len(arrays[labels]):  # a client may have no sample in a split
            numbers = number(arrays[labels], what=f"{path}: {labels}")
        splits[split] = samples, torch.from_numpy(numbers)
    return splits


def alone(settings: Settings, client: int, splits: Splits) -> Federation:
    """Build the federation as one client sees it: the other clients have no samples.

    The client has the number that it has in the whole federation. Batch orders depend on this
    number and the seed, so it trains exactly as in the simulation.
    """
    forms = {(samples.dtype, tuple(samples.shape[1:])) for samples, _ in splits.values()}
    if len(forms) > 1 or next(iter(forms))[1] != settings.shape:
        raise DatasetError(f"samples need one type and the shape {settings.shape}, not {forms}")
    pool, labels = map(torch.cat, zip(*splits.values(), strict=True))
    held = {client: {split: len(labels) for split, (_, labels) in splits.items()}}
    return Federation(*divided(settings, pool, labels, held), **settings.options)


def divided(
    settings: Settings, pool: Tensor, labels: Tensor, held: Mapping[int, Mapping[str, int]]
) -> tuple[ImageSet, Partition]:
    """Return a pool, and the partition of it by how many samples clients have in each split."""
    names = dict.fromkeys(split for counts in held.values() for split in counts)
    parts, start = {split: [NOTHING] * settings.clients for split in (*NEEDED, *names)}, 0
    for client, counts in held.items():
        for split, count in counts.items():
            parts[split][client] = np.arange(start, start + count)
            start += count
    classes = settings.classes if isinstance(settings.classes, int) else len(settings.classes)
    images = ImageSet("own", pool, labels, pool[:0], labels[:0], classes)
    train, test = parts.pop("train"), parts.pop("test")
    return images, Partition("own", train, test, None, {"name": "own"}, parts)
