"""What holds for all files that the kit reads or writes: numbers, no devices, no leftovers."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any


def as_json(value: Any, **options: Any) -> str:
    """Return JSON, with the numbers of NumPy as Python's."""
    return json.dumps(value, default=lambda number: number.item(), **options)


def check_regular(path: Path) -> Path:
    """Return a path; raise an `OSError` if it is a device, a pipe or a folder, and no file.

    Reading a device or a pipe may never end, and renaming a file to its name would replace it.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder for ``~``; the name of no user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (`Path.expanduser` raises for no user)


def unwritable(path: Path, error: BaseException) -> OSError:
    """Build the error for a file that cannot be written; it says so if there is no room for it."""
    cause: BaseException | None = error
    while cause is not None:  # PyTorch raises another error while it handles that of the system
        if getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return OSError(f"{path} cannot be written: the disk is full, or a quota is reached")
        cause = cause.__cause__ or cause.__context__
    return OSError(f"{path} cannot be written ({error})")


def abandoned(draft: Path) -> bool:
    """Return whether no other process can still be writing a draft with its number in the name.

    That process has ended, or is this one. A name without a number is of no draft.

    Numbers are given again: a process that began after the draft was last changed is another one.
    """
    import psutil  # only here, since few processes need it

    numbers = [int(part) for part in draft.name.split(".") if part.isdecimal()]
    for number in numbers:
        with contextlib.suppress(psutil.Error, OSError, OverflowError):  # there is no such process
            # A second more, since the two clocks differ by parts of one
            changed = draft.lstat().st_mtime + 1
            if number != os.getpid() and psutil.Process(number).create_time() <= changed:
                return False
    return bool(numbers)


def sweep(folder: Path, pattern: str) -> None:
    """Remove the drafts in a folder, files or folders, whose processes have ended."""
    for draft in filter(abandoned, folder.glob(pattern)):
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
