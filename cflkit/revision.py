"""Which code is running: its git revision, and a digest of its files."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
# What decides about a result; outputs lie elsewhere
CODE = ("cflkit", "notebooks/.src", "pyproject.toml", "requirements.lock")


def git(*arguments: str) -> str | None:
    """Return what git says in the project's folder, or None without git or a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def digest_of_files() -> str:
    """Return the SHA-256 of all files of the package, by name and contents."""
    digest = hashlib.sha256()
    for path in sorted((PROJECT / "cflkit").rglob("*.py")):
        digest.update(f"{path.relative_to(PROJECT).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# Of the code as it was loaded, which a commit during a run does not change
DIGEST = digest_of_files()


@cache
def revision() -> str | None:
    """Return the commit that is checked out, as it was when first asked for."""
    return git("rev-parse", "HEAD")


@cache
def is_clean() -> bool | None:
    """Return whether the files that decide about results are those of the commit."""
    return None if revision() is None else not git("status", "--porcelain", "--", *CODE)
