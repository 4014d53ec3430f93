"""The client's side: its data, and its answers to the requests to which its owner has agreed.

A node has one client's data in a file of its own. It builds a `Federation` with this one client,
under the number that the client has in the whole federation. Batch orders depend on this number and
the seed, so the node trains exactly as the simulation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor

from cflkit.datasets import DatasetError, ImageSet
from cflkit.datasets.files import read_arrays
from cflkit.datasets.labels import numbered, whole
from cflkit.datasets.own_data import as_features, as_images
from cflkit.federation import Diverged, Federation, Jobs, LocalTraining
from cflkit.flower.agreement import Agreement, Refused
from cflkit.flower.answers import QUESTIONS, TOLD, name_of
from cflkit.flower.messages import one_line, packed, unpacked
from cflkit.flower.setting import Setting
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


@lru_cache(maxsize=1)
def federation_of(
    setting: Setting, data: Path, client: int, changed: int, shared_seed: int | None = None
) -> Federation:
    """Build the federation as one client sees it: the other clients have no samples.

    A file is read once per version: ``changed`` says when it was last changed, in nanoseconds. The
    shared seed is the secret that the server does not know (`Client`); by default it is the seed of
    the federation, which the server knows. A `DatasetError` says that the number of the client is
    out of bounds, or that its file does not fit the setting.
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
    federation = setting.federation(images, partition)
    if shared_seed is not None:
        federation.shared_seed = shared_seed
    return federation


# --- Answers --------------------------------------------------------------------------------------


def sent_jobs(jobs: Jobs) -> dict[str, Any]:
    """Return one client's jobs in a form that can be sent, with only the models that they need."""
    used, model_of = jobs.model_of.unique(return_inverse=True)
    columns = {name: list(values) for name, values in jobs.columns.items()}
    training = None if jobs.training is None else asdict(jobs.training)
    models = jobs.models[used]
    return {"models": models, "model_of": model_of, "training": training, "columns": columns}


def jobs_from(sent: dict[str, Any], client: int) -> Jobs:
    """Return the jobs of one client that `sent_jobs` describes."""
    training = None if sent["training"] is None else LocalTraining(**sent["training"])
    client_of = torch.full_like(sent["model_of"], client)
    return Jobs(sent["models"], sent["model_of"], client_of, training, **sent["columns"])


def answered(
    content: RecordDict,
    client: int,
    data: Path,
    shared_seed: int | None = None,
    agreement: Agreement | None = None,
) -> RecordDict:
    """Answer the content of a message; client, data and seed are those of `federation_of`.

    Raises
    ------
    Refused
        The message is not within the agreement, or there is none; this is also logged.
    """
    if agreement is None:
        raise refused(client, "this node has agreed to nothing")
    if agreement.hidden and shared_seed is None:
        raise refused(client, "this node knows no shared seed, which would hide its embeddings")
    changed = data.stat().st_mtime_ns
    own = federation_of(agreement.setting, data, client, changed, shared_seed)
    try:
        request = unpacked(content)
        why = agreement.refusal(request, own, client)
    # Whatever a server sends, it gets no answer from here, and the node goes on
    except Exception as error:
        raise refused(client, f"it cannot be read: {error!r}") from error
    if why:
        raise refused(client, why)
    agreement.answered[request["kind"]] += request["kind"] != "hello"
    return packed({"answer": answer_to(request, own, client)})


def refused(client: int, why: str) -> Refused:
    """Log that a message is refused; return the error."""
    error = Refused(one_line(f"client {client} refuses a message of the server: {why}"))
    log(WARNING, "%s", error)
    return error


def answer_to(request: dict[str, Any], federation: Federation, client: int) -> Any:
    """Return the answer to a request that was not refused; one part per job, if it has jobs."""
    match request:
        case {"kind": "hello"}:
            splits = federation.partition.splits
            samples = {split: federation.num_samples(client, split) for split in splits}
            return {"client": client, "samples": samples}
        case {"kind": "train", "jobs": sent, "order": order}:
            try:
                return federation.train(jobs_from(sent, client), order)
            except Diverged as error:
                return error.trained  # the server sees whether they are finite
        case {"kind": "losses", "jobs": sent, "split": split, "told": name, "options": options}:
            told = {name_of(own): own for own in TOLD}[name]
            tell = None if told is None else partial(told, **options)
            return federation.losses(jobs_from(sent, client), split, tell)
        case {"kind": "ask", "jobs": sent, "question": name, "options": options}:
            question = {name_of(own): own for own in QUESTIONS}[name]
            return federation.ask(question, jobs_from(sent, client), **options)
        case {"kind": "scores", "keys": keys, "models": models, "mixtures": mixtures}:
            pairs = [(mixture, client) for mixture in mixtures]
            rows = dict(zip(keys, models, strict=True))
            found = federation.scores(rows, pairs, request["split"])
            return [found[pair] for pair in pairs]
    raise AssertionError(request["kind"])
