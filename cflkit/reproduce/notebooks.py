"""Papermill with the checks that it lacks.

Papermill ignores a parameter that the notebook does not have and a notebook without a parameters
cell, exits with success, and runs with the defaults; it passes YAML's ``1e-3`` on as a string. Its
inspection of parameters gives the texts of values, and only of those that fit in one line. `run`
checks all of this, and the notebook's own bounds, before a kernel starts.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from cflkit._bounds import Mistake
from cflkit._project import PROJECT, abandoned, check_regular, expanded, unwritable
from cflkit.reproduce import records, run_messages
from cflkit.reproduce.parameters import Recorded, check_names, model_of
from cflkit.reproduce.values import parsed, read_yaml

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager
    from nbformat import NotebookNode
    from traitlets.config import Config

RUNS = PROJECT / "data" / "runs"
SKIPPED = "skip-execution"  # the tag of cells that papermill leaves out, by nbclient


class NotebookError(Mistake):
    """A notebook that cannot be run, or that failed while it ran."""


@dataclass(frozen=True)
class Notebook:
    """A notebook: its file, whose name says which paper or lesson it is of, and its contents."""

    path: Path
    tree: NotebookNode

    @property
    def code(self) -> list[str]:
        """Return the sources of the code cells."""
        return [cell.source for cell in self.tree.cells if cell.cell_type == "code"]

    @property
    def prose(self) -> str:
        """Return the text of the Markdown cells."""
        return "\n".join(cell.source for cell in self.tree.cells if cell.cell_type == "markdown")

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the code alone: outputs change, and parameters are elsewhere."""
        return hashlib.sha256("\0".join(self.code).encode()).hexdigest()

    @cached_property
    def parameters_cell(self) -> str:
        """Return the source of the one cell tagged ``parameters``; a `NotebookError` without it."""
        cells = [c for c in self.tree.cells if "parameters" in c.metadata.get("tags", [])]
        if len(cells) != 1:
            raise NotebookError(f"the notebook has {len(cells)} cells tagged 'parameters', not one")
        return str(cells[0].source)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Return names and values of the parameters cell, which holds literals alone."""
        try:
            lines = ast.parse(self.parameters_cell).body
        except SyntaxError as error:
            raise NotebookError(f"a cell is not Python: {error.text or error.msg}") from error
        literals = {}
        for line in lines:
            try:
                [target] = line.targets  # type: ignore[attr-defined]
                literals[target.id] = ast.literal_eval(line.value)  # type: ignore[attr-defined]
            except (AttributeError, TypeError, ValueError) as error:  # no such line, or {[]: 1}
                where = f"line {line.lineno} of the parameters cell"
                raise NotebookError(f"{where} is not 'name = literal'") from error
        return literals

    def check(
        self, chosen: Mapping[str, Any], quick: bool = False
    ) -> tuple[dict[str, Any], Recorded | None]:
        """Check parameters as the notebook would.

        Return the given values in the types that the notebook needs; and all parameters of the run,
        if it writes a record. A ``quick`` check leaves out what has to load PyTorch, such as
        whether there is a data set of this name.

        Raises
        ------
        ParameterError
            A name that the parameters cell does not have, or a value that the notebook refuses.
        """
        from cflkit.reproduce import papers

        check_names(chosen, self.defaults)
        model = papers.parameters_of(self.path.stem) or model_of(self.defaults)
        run: Any = model.checked(self.defaults | dict(chosen), quick)
        values = {name: getattr(run, name) for name in chosen}
        return values, None if papers.by_notebook(self.path.stem) is None else run


def read_notebook(path: Path) -> Notebook:
    """Read a notebook; raise a `NotebookError` if the file is none."""
    import nbformat

    text = check_regular(path).read_bytes()
    try:
        nbformat.validate(json.loads(text), version=4)
        tree = nbformat.v4.reads(text)
    except Exception as error:  # of any type, since nbformat expects something like a notebook
        why = getattr(error, "message", error)
        raise NotebookError(f"{path} is not a notebook ({why})") from error
    return Notebook(path, tree)


def run(
    path: Path,
    overrides: Mapping[str, str],
    file: Path | None,
    output: Path | None = None,
    missing: bool = False,
    record_only: bool = False,
    verbose: bool = False,
    more: Sequence[NotebookNode] = (),
) -> str | None:
    """Run a notebook with parameters; return what to tell of it, or None if nothing was to be done.

    The options are those of ``python -m cflkit run``; the values in ``overrides`` are YAML, and
    ``more`` are further cells at the end. While a notebook that writes a record runs, no other
    process can run it with the same parameters; with ``missing`` it waits, and then finds the
    record.

    Raises
    ------
    ParameterError
        A value is refused (`Notebook.check`); nothing has run. Some that do not fit the data are
        refused only by a cell.
    DatasetError
        With ``missing``, one's own data do not fit any more.
    NotebookError
        The file is no notebook, one of its cells failed, or another process is running the same. Or
        a record is asked for and there cannot be one, or it was made from other data of one's own.
    OSError
        A file cannot be read or written.
    """
    notebook = read_notebook(path)
    listed = {} if file is None else read_yaml(file)
    values, parameters = notebook.check(listed | parsed(overrides))
    if parameters is None:
        if missing or record_only:
            raise NotebookError(f"{path} writes no record")
        return execute(notebook, values, output or RUNS / path.name, verbose=verbose)
    check_writable(records.results())
    name = records.run_id(parameters)
    try:
        with run_lock(name, wait=missing):
            records.remove_leftovers(name)
            if missing and (folder := records.folder(name)) is not None:
                check_own_data(records.read(folder), parameters)
                return None
            parameters.check_against_data()
            place = output or RUNS / f"{name}.ipynb"
            return execute(notebook, values, place, record_only, verbose, name, more)
    except filelock.Timeout as error:
        raise NotebookError(f"{name} is being run by another process") from error


def check_own_data(record: records.Record, parameters: Recorded) -> None:
    """Raise a `NotebookError` if a record was made from other contents of one's own data."""
    from cflkit.datasets import own_data  # PyTorch takes seconds to load

    name = str(getattr(parameters, "dataset", ""))
    then = record.provenance["data_files"]
    if own_data.is_own(name) and own_data.load(name).files != then:
        raise NotebookError(
            f"{record.id} has a record of other contents of {name}; run it again without --missing"
        )


def check_writable(folder: Path) -> None:
    """Raise an `OSError` if no file can be written into a folder, before hours of work."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def run_lock(id: str, wait: bool = False) -> filelock.BaseFileLock:
    """Return the lock of a run, which one process at a time holds and loses when it ends.

    If another one holds it and we do not ``wait``, entering it raises a `filelock.Timeout`.
    """
    path = records.checkpoint(id).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(path, timeout=-1 if wait else 0)


def execute(
    notebook: Notebook,
    values: Mapping[str, Any],
    output: Path,
    record_only: bool = False,
    verbose: bool = True,
    name: str | None = None,
    more: Sequence[NotebookNode] = (),
) -> str:
    """Execute a notebook with checked parameters, see `run`; ``name`` is that of its record."""
    output, folder = Path(os.path.realpath(output)), notebook.path.resolve().parent
    check_output(output, notebook.path)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.open("a").close()  # what cannot be written is an error before the run
    os.environ.update(absolute_folders() | {"CFLKIT_PROGRESS": "lines"})
    tree = copy.deepcopy(notebook.tree)
    tree.cells += more
    if record_only:
        skip_the_rest(tree.cells)
    os.environ[records.NOTEBOOK] = notebook.digest
    messages = run_messages.Rounds(sys.stderr, verbose)
    messages.write(f"{run_messages.heading(notebook.prose)}\n")
    try:
        executed = run_cells(tree, values, output, folder, messages)
    finally:
        del os.environ[records.NOTEBOOK]  # records of this process come from no notebook
        messages.end()
    if verbose:
        where = f"notebook  {records.display_path(output)}"
        return f"{run_messages.report_of(executed.cells)}{where}"
    made = records.folder(name) if name else None
    record = None if made is None else records.read(made)
    return run_messages.brief(executed.cells, record, notebook.path, output)


def run_cells(
    tree: NotebookNode,
    values: Mapping[str, Any],
    output: Path,
    folder: Path,
    messages: run_messages.Rounds,
) -> NotebookNode:
    """Run the cells in a kernel of our own, in a folder; say in one line why they failed."""
    import papermill  # takes seconds to load
    from papermill.exceptions import PapermillExecutionError

    # Its errors are reported by ours, in one line
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    try:
        with private_sockets() as config:
            return papermill.execute_notebook(
                tree,
                output,
                parameters=dict(values),
                cwd=folder,
                progress_bar=False,  # it counts cells, where the simulation counts rounds
                stderr_file=messages,
                kernel_name="python3",
                language="python",
                config=config,
                kernel_manager_class=our_kernel(),
                shutdown_kernel="immediate",  # on Ctrl-C it would print what it is interrupted in
            )
    except PapermillExecutionError as error:
        hint = ""
        if error.ename == "KeyError" and values.get("only") is not None:
            hint = "; if this method is not in `only`, --record-only leaves the cell out"
        raise NotebookError(f"{error.ename}: {error.evalue} (see {output}{hint})") from error
    except OSError as error:  # papermill writes the notebook after each cell
        raise NotebookError(str(unwritable(output, error))) from error
    except RuntimeError as error:  # the kernel died in a cell, or before the first one
        # Linux kills a process for which memory is missing
        raise NotebookError(f"{error} (too little memory? see {output})") from error


def check_output(output: Path, source: Path) -> None:
    """Refuse to overwrite anything but the output of a run.

    Raises
    ------
    NotebookError
        The file is another notebook, or none.
    OSError
        It is no regular file.
    """
    there = check_regular(output).exists()
    # Papermill writes this into the metadata of each cell, and quotes within a cell are escaped;
    # committed notebooks are without it. A run that was killed while it wrote leaves the beginning
    # of the file, or an empty one
    text = output.read_bytes() if there else b""
    executed = output.suffix == ".ipynb" and (not text or b'"papermill": {' in text)
    if not executed or (there and output.samefile(source)):
        raise NotebookError(
            f"{output} would be overwritten, or is no notebook; name a new file or the output of a "
            "run, ending in .ipynb"
        )


def our_kernel() -> type[AsyncKernelManager]:
    """Return a manager that starts our own Python.

    The kernel ``python3`` that Jupyter finds first can be that of another environment.
    """
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec

    class OurKernel(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(**get_kernel_dict())

    return OurKernel


@contextlib.contextmanager
def private_sockets() -> Iterator[Config]:
    """Give the options with which a kernel talks through files in a folder of this user alone.

    By default it talks through network ports, which are chosen before the kernel starts. Of two
    notebooks that start at the same time, both can be given the same port, and one of them dies.
    Folders of processes that were killed are removed.
    """
    from traitlets.config import Config

    # The path of a socket has at most 107 characters, and 103 on macOS
    short = [place for place in (tempfile.gettempdir(), "/tmp") if len(os.fsencode(place)) < 64]
    place = next((place for place in short if os.access(place, os.W_OK)), None)
    prefix = f"cflkit-kernel.{os.getpid()}."
    for left in Path(place or tempfile.gettempdir()).glob("cflkit-kernel.*"):
        # Another kernel of this process can be alive
        if abandoned(left) and not left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as folder:
        sockets = {"transport": "ipc", "ip": f"{folder}/kernel"}
        sockets["connection_file"] = f"{folder}/kernel.json"  # which has the key
        yield Config({"KernelManager": sockets} if place else {})


def skip_the_rest(cells: list[Any]) -> None:
    """Mark code cells without the tag ``record`` to be skipped; raise if no cell has it."""
    tags = [c.metadata.setdefault("tags", []) for c in cells if c.cell_type == "code"]
    if not any("record" in of_cell for of_cell in tags):
        raise NotebookError("the notebook has no cells tagged 'record'")
    for of_cell in tags:
        if not {"parameters", "record"} & set(of_cell):
            of_cell.append(SKIPPED)


def absolute_folders() -> dict[str, str]:
    """Return the environment's folders as absolute paths, for kernels run in another folder."""
    names = ("CFLKIT_DATA", "CFLKIT_RESULTS", "CFLKIT_FIGURES", "CFLKIT_CACHE")
    folders = {name: os.environ.get(name) for name in names}
    return {name: os.path.realpath(expanded(p)) for name, p in folders.items() if p}
