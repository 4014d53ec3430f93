"""The project: where its files lie, how files are read and written, and which code is running."""

import ast
import contextlib
import errno
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
# Whether the package lies in a clone, which also has notebooks, parameter files, tables and records
IS_CLONE = (PACKAGE.parent / "notebooks" / "src").is_dir()
# The folder of outputs: the clone; for a package that was installed alone, the folder in which it
# is used, also by the kernels that it starts in others
PROJECT = PACKAGE.parent
if not IS_CLONE:
    PROJECT = Path(os.environ.setdefault("CFLKIT_HOME", str(Path.cwd())))
# Where lessons, tables and parameters lie, in the same folders: the clone, or the wheel's copies
KIT = PROJECT if IS_CLONE else PACKAGE / "_data"
# What an answer ends with if a clone has more than the wheel, and how the other packages are got
MORE = "" if IS_CLONE else "; a clone of the project has more"
EXTRA = "pip install 'cflkit[notebooks]' installs what is missing"
# The files that determine results; outputs are elsewhere
CODE = ("cflkit", "notebooks/src", "pyproject.toml", "requirements.lock")


def import_package(name: str) -> Any:
    """Import a package of the extra ``notebooks``; say how to get it where it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; {EXTRA}", name=error.name) from error


# --- Files ----------------------------------------------------------------------------------------


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


def write_files(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, by their names; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        check_regular(folder / name).write_bytes(content)
    return [folder / name for name in contents]


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


# --- The running code -----------------------------------------------------------------------------


def git(*arguments: str) -> str | None:
    """Return the output of git in the project's folder, or None without git or a repository."""
    if not IS_CLONE:  # an environment can lie in a repository of its user
        return None
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=PROJECT, capture_output=True, encoding="utf-8", check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


# The text of each module of the package at its start, so that an edit during a run does not count
SOURCES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): (
        path.read_text(encoding="utf-8")
    )
    for path in PACKAGE.rglob("[!.]*.py")
}


@cache
def digest_of_code(*modules: str) -> str:
    """Return the SHA-256 of the code of modules, and of the kit's modules that these import.

    It identifies what can change the numbers of a run. Docstrings, comments and the layout of lines
    do not count, and neither do modules that nothing imports by name, such as another method. A
    module that is not the kit's counts as the file from which it was loaded, if there is one.
    """
    known: dict[str, Any] = {}
    waiting = list(modules)
    while waiting:
        if (name := waiting.pop()) not in known:
            known[name], others = analysed(source(name))
            waiting += SOURCES.keys() & others
    return hashlib.sha256(repr(sorted(known.items())).encode()).hexdigest()


@cache
def analysed(text: str) -> tuple[Any, set[str]]:
    """Return the `skeleton` of a module's text, and the names of the modules that it imports."""
    tree = ast.parse(text)
    return skeleton(tree), set(imported(tree))


def source(module: str) -> str:
    """Return the text of a module; nothing for one that was not loaded from a file of Python."""
    if module in SOURCES:
        return SOURCES[module]
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return path.read_text(encoding="utf-8") if path.suffix == ".py" else ""


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the modules that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = members & SOURCES.keys()
            yield from submodules
            if members != submodules:
                yield str(node.module)


def skeleton(node: Any) -> Any:
    """Return a syntax tree as lists, without empty fields, which differ between Python's versions.

    Statements that are only a constant, such as docstrings, are left out, since they do nothing.
    """
    if isinstance(node, list):
        return [skeleton(part) for part in node if not is_constant(part)]
    if not isinstance(node, ast.AST):
        return node
    parts = [(name, skeleton(value)) for name, value in ast.iter_fields(node)]
    return [type(node).__name__, *(part for part in parts if part[1] not in (None, []))]


def is_constant(node: Any) -> bool:
    """Return whether a node is a statement that consists of a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def state() -> tuple[str | None, bool | None]:
    """Return the commit that is checked out, and whether the files that determine results are its.

    Git is asked once, so that a commit during a run does not change what its record says.
    """
    commit = git("rev-parse", "HEAD")
    changes = None if commit is None else git("status", "--porcelain", "--", *CODE)
    return commit, None if changes is None else not changes
