"""The running code: where it lies, its git revision, and a digest of its files."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# Whether the package lies in a clone, which also has notebooks, parameter files, tables and records
IS_CLONE = (PACKAGE.parent / "notebooks" / "src").is_dir()
# The clone; for a package that was installed alone, the folder in which it is used
PROJECT = PACKAGE.parent if IS_CLONE else Path.cwd()
# The files that determine results; outputs are elsewhere
CODE = ("cflkit", "notebooks/src", "pyproject.toml", "requirements.lock")


def git(*arguments: str) -> str | None:
    """Return the output of git in the project's folder, or None without git or a repository."""
    if not IS_CLONE:  # an environment can lie in a repository of its user
        return None
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def digest_of_files() -> str:
    """Return the SHA-256 of the names and contents of all files of the package."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE.parent).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# The digest of the code as it was loaded, so that a commit during a run does not change it
DIGEST = digest_of_files()


@cache
def state() -> tuple[str | None, bool | None]:
    """Return the commit that is checked out, and whether the files that determine results are its.

    Git is asked once, so that a commit during a run does not change what its record says.
    """
    commit = git("rev-parse", "HEAD")
    changes = None if commit is None else git("status", "--porcelain", "--", *CODE)
    return commit, None if changes is None else not changes
