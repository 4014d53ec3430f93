"""What is known of somebody's clients: updates or distances, of one round or of several.

It is read from the files of others, so nothing is unpickled, and each error says what to do.
"""

import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cflkit import datasets, partition
from cflkit._bounds import Mistake
from cflkit._project import check_regular
from cflkit.clustering import Clusterer
from cflkit.datasets.files import read_arrays
from cflkit.divergence import checked_distances, cosine_divergence
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.halves import Halves, compare, compare_matrices

LEAST = 4  # the fewest clients that can form two groups
# How the clients of one's own data train: as with the CNN of `notebooks/src/hit_rate.py`
ROUNDS, TRAINING = 8, LocalTraining(epochs=5, batch_size=16, optimizer="adam", lr=0.005)


class EvidenceError(Mistake, ValueError):
    """A file cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class Evidence:
    """What clients sent, or how far apart they were.

    Attributes
    ----------
    values : ndarray
        ``[R, m, P]``, the updates of R rounds (trained minus received parameters), or the distances
        ``[R, m, m]``. What is not known, since a client was absent, is NaN.
    distances : bool
        Whether the values are distances.
    names : tuple of str
        The names of the m clients; by default their numbers.
    """

    values: NDArray[Any]
    distances: bool
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clients = self.values.shape[1]
        check_number(clients)
        if fault := self.fault(clients):
            raise EvidenceError(fault)
        object.__setattr__(self, "names", self.names or tuple(map(str, range(clients))))

    def fault(self, clients: int) -> str | None:
        """Return what is wrong with names or values, if anything."""
        if len(self.names) not in (0, clients):
            return f"there are {len(self.names)} names for {clients} clients"
        if np.isinf(self.values).any():
            return "there are infinite values: leave out the rounds that diverged"
        missing = np.isnan(self.values)
        if not self.distances and (missing.any(axis=2) != missing.all(axis=2)).any():
            return "some updates have NaN: give an absent client NaN everywhere, and no other one"
        if not self.distances and missing.all(axis=(1, 2)).any():
            return "in some round, no client was there: leave this round out"
        if missing.all(axis=(0, 2)).any():
            return "a client was never there: leave it out"
        return None

    @property
    def rounds(self) -> int:
        """Return the number of rounds R."""
        return len(self.values)

    def looks(self, clusterer: Clusterer) -> Iterator[tuple[int, Halves]]:
        """Yield the number of each round from which both halves are known, with what they say.

        The halves are sums of updates, or means of distances. Each client, or pair of clients, goes
        into either half in turn, so that a client that was absent loses no half.
        """
        sums = np.zeros((2, *self.values.shape[1:]))
        # A client is there as a whole, and pairs of clients are counted one by one
        counts = np.zeros((2, *self.present.shape[1:]), dtype=int)
        for number, (values, present) in enumerate(zip(self.aligned, self.present, strict=True), 1):
            to_second = counts[0] > counts[1]
            for half, chosen in enumerate((present & ~to_second, present & to_second)):
                sums[half] += np.where(chosen, values, 0)
                counts[half] += chosen
            if not (counts > 0).all():
                continue
            if self.distances:
                yield number, compare_matrices(sums[0] / counts[0], sums[1] / counts[1], clusterer)
            else:
                odd, even = torch.from_numpy(sums)
                yield number, compare(odd, even, clusterer)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Return who was there: ``[R, m, 1]`` for updates, and ``[R, m, m]`` for distances."""
        return ~np.isnan(self.values if self.distances else self.values[:, :, :1])

    @cached_property
    def aligned(self) -> NDArray[Any]:
        """Return the values without what differs between the rounds in which clients were there.

        All clients move in a common direction, which changes from round to round. If some were
        absent, this would group them by their attendance. So it is replaced by its mean.
        """
        if self.distances or self.present.all():
            return self.values
        common = np.nanmean(self.values, axis=1, keepdims=True)
        return self.values - common + common.mean(axis=0)

    def whole(self) -> NDArray[np.float64]:
        """Return the distances ``[m, m]`` by all rounds, as far as they are known."""
        total = np.nansum(self.aligned, axis=0, dtype=np.float64)
        if not self.distances:
            return cosine_divergence(total)
        pairs = self.present.sum(axis=0)
        if not pairs.all():
            raise EvidenceError("two clients were never there together, and have no distance")
        return total / pairs


def check_number(clients: int) -> None:
    """Refuse fewer clients than can form two groups."""
    if clients < LEAST:
        raise EvidenceError(f"{clients} clients cannot be asked about groups: {LEAST} are needed")


def as_evidence(values: Any, names: tuple[str, ...] = ()) -> Evidence:
    """Recognise an array of updates or of distances, of one round or of several (`Evidence`).

    A square matrix is one of distances if it is symmetric, not negative, and zero on its diagonal.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or not array.size:
        raise EvidenceError(
            "there must be numbers of the shape [clients, parameters], [rounds, clients, "
            f"parameters], or distances [clients, clients], not {array.dtype} of {array.shape}"
        )
    rounds = array[None] if array.ndim == 2 else array
    # Squares of small numbers vanish in float16
    floats = rounds.astype(np.result_type(rounds, np.float32), copy=False)
    return Evidence(floats, are_distances(rounds), names)


def are_distances(rounds: NDArray[Any]) -> bool:
    """Return whether each round is a matrix of distances, of which absent clients have NaN."""
    if rounds.shape[1] != rounds.shape[2]:
        return False
    try:
        for matrix in rounds:
            checked_distances(np.nan_to_num(matrix))
    except ValueError:
        return False
    return True


def read(path: str | Path) -> Evidence:
    """Read a file with updates or distances, or a record of the kit; or train on clients' data.

    Parameters
    ----------
    path : str or Path
        A file ``.npy``, ``.npz``, ``.csv`` or ``.safetensors``, or a record's folder or its id. Of
        several arrays, ``updates`` is taken, else ``divergence``, and ``clients`` are the names.
        Or one's own data that say which client holds what (`of_clients`).

    Raises
    ------
    EvidenceError
        The file cannot be used.
    ParameterError
        There is no such file or record.
    DatasetError, PartitionError
        A file ``.npz``, or one's own data, cannot be used.
    """
    place = Path(path)
    reader = READERS.get(place.suffix.lower())
    if reader is not None and not place.is_dir():
        try:
            return reader(check_regular(place))
        except EvidenceError as error:
            raise EvidenceError(f"{place}: {error}") from error
        except (ValueError, KeyError, EOFError, OverflowError, tokenize.TokenError) as error:
            raise EvidenceError(f"{place} cannot be read ({error})") from error
    if place.is_dir() and not (place / "record.json").exists():
        return of_clients(place)
    if place.is_file():
        row = "give a row per client, trained minus received parameters, by np.save"
        raise EvidenceError(f"{place} is no {', '.join(READERS)} and no record: {row}")
    return of_record(place)


def of_npz(path: Path) -> Evidence:
    """Read a file ``.npz``, such as that of a watched Flower strategy (`cflkit.flower`)."""
    arrays = read_arrays(path, ("updates", "divergence", "clients", "labels"))
    if {"updates", "divergence"} & arrays.keys():
        return of_arrays(arrays)
    return of_clients(path) if "labels" in arrays else of_arrays(read_arrays(path))


def of_safetensors(path: Path) -> Evidence:
    """Read a file ``.safetensors``."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        return of_arrays(load_file(path))
    except ImportError as error:
        raise EvidenceError("pip install safetensors, with which it can be read") from error
    except SafetensorError as error:
        raise EvidenceError(f"it cannot be read ({error})") from error


def of_arrays(arrays: Mapping[str, Any]) -> Evidence:
    """Choose among named arrays."""
    usable = [name for name in ("updates", "divergence") if name in arrays]
    usable = usable or [name for name in arrays if len(list(arrays)) == 1]
    if not usable:
        raise EvidenceError(f"{', '.join(arrays)}: none is 'updates' (by client) or 'divergence'")
    names = np.asarray(arrays["clients"]).astype(str) if "clients" in arrays else np.empty(0)
    return as_evidence(arrays[usable[0]], tuple(names.tolist()) if names.ndim == 1 else ())


def of_clients(path: Path) -> Evidence:
    """Train one model on all clients of one's own data by federated averaging.

    The data say which client holds what, see `partition.by_owners`. Images are learned by the small
    CNN, and features by the perceptron.
    """
    images, split = partition.by_owners(datasets.load(str(path.absolute())))
    check_number(split.clients)  # before the training
    network = "perceptron" if images.shape[1:] == (1, 1) else "compact-cnn"
    federation = Federation(images, split, network, TRAINING)
    clients = torch.arange(federation.clients)
    model, updates = federation.initial(), []
    for t in range(ROUNDS):
        trained = federation.train(Jobs(model[None], torch.zeros_like(clients), clients), t)
        updates.append((trained - model)[:, : federation.parameters].cpu().numpy())
        model = trained.mean(dim=0)
    return as_evidence(np.stack(updates))


def of_csv(path: Path) -> Evidence:
    """Read a table: a client's update or distances in each row, with names or without."""
    import pandas as pd

    table = pd.read_csv(path, header=None, dtype=str)
    numbers = table.apply(pd.to_numeric, axis=1, errors="coerce")
    corner = table.iloc[0, 0]  # empty, as pandas writes a table, or the name of its index
    indexed = pd.isna(corner) or corner.strip().lower() in ("client", "clients", "client_id", "id")
    first, places = numbers.iloc[0].tolist(), [*range(numbers.shape[1])]  # as pandas counts columns
    indexed = indexed or (pd.isna(first[0]) and len(first) > 1 and first[1:] == places[:-1])
    is_count = first == places and not are_distances(numbers.to_numpy()[None])
    headed = int(indexed or is_count or (len(first) > 1 and numbers.iloc[0, 1:].isna().all()))
    rows = numbers.iloc[headed:]
    # Different whole numbers, below a head and beside others, are the clients' names
    whole = (rows % 1 == 0).all()
    listed = headed and rows[0].is_unique and whole[0] and not whole.all()
    named = int(indexed or listed or rows[0].isna().all())
    names = tuple(table.iloc[headed:, 0]) if named else ()
    return as_evidence(rows.iloc[:, named:].to_numpy(), names)


def of_record(place: Path) -> Evidence:
    """Read the distances that OCFL has compared in a run of the kit."""
    from cflkit.reproduce import records

    record = records.find_record(str(place))
    for rows in record.by_method.values():
        kept = rows["distances"].dropna() if "distances" in rows else []
        flat = [np.array(text.split("|"), dtype=np.float64) for text in kept]
        if flat and all(row.size == (side := round(row.size**0.5)) ** 2 for row in flat):
            matrices = np.stack([row.reshape(side, side) for row in flat])
            if are_distances(matrices):
                return as_evidence(matrices)
    raise EvidenceError(f"the record {record.id} has no distances of clients")


def of_npy(path: Path) -> Evidence:
    """Read the array of a file ``.npy``."""
    return as_evidence(np.load(path, allow_pickle=False))


READERS = {".npy": of_npy, ".npz": of_npz, ".csv": of_csv, ".safetensors": of_safetensors}
