"""Data files from the user's folder, the cache or a download, each with a check of its contents.

The kit looks for a file in the folder that ``CFLKIT_DATA`` names, then in ``data/cache/``. If the
file is in neither, it is downloaded into the cache. A download is first written into a folder for
drafts, and gets its final place once it is complete. A killed process therefore leaves nothing that
a later process takes for a data set.
"""

import hashlib
import os
import shutil
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray

from cflkit._bounds import Mistake
from cflkit._project import PROJECT, expanded, import_package

CACHE = PROJECT / "data" / "cache"
LARGEST = 8 * 2**30  # the most bytes that one's own data may have


class DatasetError(Mistake):
    """A data set is unknown, not available, or damaged; the message says what to do."""


def roots() -> list[Path]:
    """Return the folders to search: ``CFLKIT_DATA`` where it is set, then the cache."""
    named = os.environ.get("CFLKIT_DATA")
    if not named:
        return [CACHE]
    folder = expanded(named)
    if not os.access(folder, os.R_OK | os.X_OK) or not folder.is_dir():
        raise DatasetError(f"CFLKIT_DATA names {folder}, which is not a folder that can be read")
    return [folder, CACHE]


@contextmanager
def reading(path: Path, taken: str) -> Iterator[None]:
    """Turn what is raised for a damaged file into a `DatasetError` that says what is taken."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:  # what libraries raise depends on where the file is damaged
        why = " ".join(str(error).split())
        raise DatasetError(f"{path} cannot be read ({why}); {taken}") from error


def read_arrays(path: Path, only: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file, or some, without unpickling anything.

    What else is in the archive is left out.
    """
    with reading(path, "files .npz are taken, in which np.savez has put numbers or texts"):
        with zipfile.ZipFile(path) as archive:
            check_size(path, sum(member.file_size for member in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            wanted = [key for key in arrays if key in only or not only]
            return {key: held for key in wanted if isinstance(held := arrays[key], np.ndarray)}


def check_size(path: Path, size: int) -> None:
    """Raise a `DatasetError` if data have too many bytes: half of the free memory, or `LARGEST`."""
    import psutil

    most = min(LARGEST, psutil.virtual_memory().available // 2)
    if size > most:
        needed, free = (f"{count / 2**30:.3g} GiB" for count in (size, most))
        raise DatasetError(f"{path} would need {needed} of memory, but {free} is the most here")


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def md5_of_folder(folder: Path, members: Iterable[Path]) -> str:
    """Return one MD5 over the names and MD5s of the files in a folder that were read."""
    lines = sorted(f"{path.relative_to(folder).as_posix()} {md5_of(path)}\n" for path in members)
    text = "".join(lines).encode(errors="surrogateescape")  # a file's name may be no UTF-8
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def download(url: str, target: Path, md5: str) -> None:
    """Download a file, which appears at ``target`` once it is complete and has its checksum.

    Raises
    ------
    OSError
        The address cannot be reached, or the file cannot be written (only then with an ``errno``).
    ValueError
        The downloaded file has another checksum.
    """
    pooch = import_package("pooch")  # here, since it is needed once per data set and machine

    registry, urls = {target.name: f"md5:{md5}"}, {target.name: url}
    fetcher = pooch.create(target.parent, "", registry=registry, urls=urls, retry_if_failed=2)
    fetcher.fetch(target.name, progressbar=True)


@dataclass
class DataFiles:
    """The files of one data set; each method raises a `DatasetError` that begins with its name.

    Attributes
    ----------
    name : str
        The name of the data set.
    md5 : dict of str to str
        The MD5 of each file that was read, by its path below one of the `roots`.
    """

    name: str
    md5: dict[str, str] = field(default_factory=dict)

    def locate(self, relative: str) -> Path | None:
        """Return the first file or folder ``relative`` below one of the `roots`, or None."""
        return next((root / relative for root in roots() if (root / relative).exists()), None)

    def verified(self, relative: str, path: Path, md5: str) -> Path:
        """Check the MD5 of ``path``, note that the file was read, and return the path."""
        if (computed := md5_of(path)) != md5:
            sums = f"its MD5 is {computed}, but the published one is {md5}"
            raise DatasetError(f"{self.name}: {path} is damaged: {sums}; delete the file")
        self.md5[relative] = md5
        return path

    def fetch(self, relative: str, md5: str, urls: Sequence[str]) -> Path:
        """Return the path of a checked file; download it if none of the `roots` has it.

        A `DatasetError` says that the file is missing, or that the cache cannot be written to.
        """
        path = self.locate(relative)
        if path is None:
            try:
                CACHE.mkdir(parents=True, exist_ok=True)
                with filelock.FileLock(CACHE / ".lock"):
                    # While this process waited, another one may have downloaded the file
                    path = self.locate(relative) or self.downloaded(relative, md5, urls)
            except OSError as error:
                raise DatasetError(f"{self.name}: {CACHE} cannot be written ({error})") from error
        return self.verified(relative, path, md5)

    def downloaded(self, relative: str, md5: str, urls: Sequence[str]) -> Path:
        """Download a file into the cache from the first address that works."""
        place, draft, failures = CACHE / relative, CACHE / ".part", []
        shutil.rmtree(draft, ignore_errors=True)  # what a killed process left
        for url in urls:
            try:
                download(url, draft / place.name, md5)
                place.parent.mkdir(parents=True, exist_ok=True)
                return (draft / place.name).replace(place)
            except (OSError, ValueError) as error:
                # An error number means that this computer failed; the next address would not help
                if getattr(error, "errno", None) is not None:
                    raise
                failures.append(f"{url}: {error}")
        remedy = f"download {' or '.join(urls)}" if urls else "copy the file, which no server has,"
        raise self.missing(relative, remedy, failures)

    def missing(self, relative: str, remedy: str, failures: Sequence[str] = ()) -> DatasetError:
        """Build the error for a missing file, with the places searched, the cause and a remedy."""
        places = ", ".join(str(root / relative) for root in roots())
        why = "the download failed" if failures else "the kit cannot download it"
        tried = f". The errors were: {'; '.join(failures)}" if failures else ""
        return DatasetError(
            f"{self.name}: not found, and {why}. To get it, {remedy} into one of these places (set "
            f"CFLKIT_DATA to use your own folder): {places}{tried}"
        )
