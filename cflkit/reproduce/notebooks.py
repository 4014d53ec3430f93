"""Papermill with the checks that it lacks.

Papermill ignores a parameter that the notebook does not have and a notebook without a parameters
cell, exits with success, and runs with the defaults; it passes YAML's ``1e-3`` on as a string.
`run` checks all of this, and the notebook's own bounds, before a kernel starts.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import yaml

from cflkit._project import PROJECT
from cflkit.reproduce import records
from cflkit.reproduce.claims import MIME
from cflkit.reproduce.parameters import ParameterError, Recorded, about_unknown

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from traitlets.config import Config

RUNS = PROJECT / "data" / "runs"
# A notebook as it lies in its file
Notebook = dict[str, Any]


class NotebookError(Exception):
    """A notebook that cannot be run, or that failed while it ran."""


def run(
    notebook: Path,
    given: dict[str, str],
    file: Path | None,
    output: Path | None = None,
    missing: bool = False,
    record_only: bool = False,
) -> tuple[str, Path] | None:
    """Run a notebook with parameters.

    While a notebook that writes a record runs, no other process can run it with the same ones; with
    ``missing`` it waits, and then finds the record.

    Parameters
    ----------
    notebook : Path
        A notebook with one cell tagged ``parameters``.
    given : dict of str to str
        Values as YAML, which replace those of the file.
    file : Path or None
        A YAML file that maps names to values.
    output : Path, optional
        Where the executed notebook is written; parent folders are made. By default in `RUNS`, under
        the run's id, or under the notebook's name if it writes no record.
    missing : bool
        Do nothing if the notebook's record is there already.
    record_only : bool
        Run only the cells that the notebook's record needs. The other cells of a lesson train
        models, too, and can take longer.

    Returns
    -------
    tuple of str and Path, or None
        What the cells tagged ``report`` printed, and the executed notebook; None if there was
        nothing to do.

    Raises
    ------
    ParameterError
        An unknown name, a wrong type, a value out of bounds or one that does not fit the data;
        nothing has run.
    DatasetError
        With ``missing``, one's own data do not fit any more.
    NotebookError
        There is no notebook or no parameters cell, one of its cells failed, or another process is
        running the same. Or a record is asked for, and the notebook belongs to no paper. Or, with
        ``missing``, the record was made from other contents of one's own data.
    """
    values = {} if file is None else read_yaml(file)
    values |= {name: parse_yaml(name, text) for name, text in given.items()}
    values = check_parameters(notebook, values)
    parameters = recorded(notebook, values)
    if parameters is None:
        if missing or record_only:
            raise NotebookError(f"{notebook} writes no record")
        return execute(notebook, values, output or RUNS / notebook.name)
    check_writable(records.results())
    name = records.run_id(parameters)
    try:
        with run_lock(name, wait=missing):
            records.remove_leftovers(name)
            if missing and (folder := records.folder(name)) is not None:
                check_own_data(records.read(folder), parameters)
                return None
            parameters.check_against_data()
            return execute(notebook, values, output or RUNS / f"{name}.ipynb", record_only)
    except filelock.Timeout as error:
        raise NotebookError(f"{name} is being run by another process") from error
    except OSError as error:
        raise NotebookError(f"{name}: {error}") from error


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
    """Raise a `NotebookError` if no file can be written into a folder, before hours of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise NotebookError(f"{folder} cannot be written ({error.strerror})") from error


def recorded(notebook: Path, values: dict[str, Any]) -> Recorded | None:
    """Return the checked parameters of a run that writes a record; None for other notebooks."""
    from cflkit.reproduce import papers

    paper = papers.by_notebook(notebook.stem)
    if paper is None:
        return None
    checked: Recorded = paper.parameters.checked(defaults(read(notebook)) | values)
    return checked


def run_lock(run: str, wait: bool = False) -> filelock.BaseFileLock:
    """Return the lock of a run, which one process at a time holds and loses when it ends.

    Raises
    ------
    filelock.Timeout
        Another process holds the lock and we do not ``wait``; raised on entering.
    """
    path = records.checkpoint(run).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(path, timeout=-1 if wait else 0)


def execute(
    notebook: Path, values: dict[str, Any], output: Path, record_only: bool = False
) -> tuple[str, Path]:
    """Run a notebook with checked parameters; return its report and where it was written.

    Raises
    ------
    NotebookError
        The notebook fails, or the output cannot be written.
    """
    output = output.resolve()
    if output == notebook.resolve() or (output.is_file() and output.suffix != ".ipynb"):
        raise NotebookError(f"{output} would be overwritten; name another file, ending in .ipynb")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a"):
            pass
    except OSError as error:
        raise NotebookError(f"{output} cannot be written ({error.strerror})") from error
    os.environ.update(places() | {"CFLKIT_PROGRESS": "lines"})
    import papermill  # takes seconds to load
    from papermill.exceptions import PapermillExecutionError

    # Its errors are reported by ours, in one line
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    os.environ[records.NOTEBOOK] = code_digest(notebook)
    try:
        with private_sockets() as config:
            executed = papermill.execute_notebook(
                for_the_record(notebook) if record_only else notebook,
                output,
                parameters=values,
                cwd=notebook.resolve().parent,
                progress_bar=False,  # it counts cells, where the simulation counts rounds
                stderr_file=sys.stderr,
                kernel_name="python3",
                language="python",
                config=config,
                shutdown_kernel="immediate",  # on Ctrl-C it would print what it is interrupted in
            )
    except PapermillExecutionError as error:
        raise NotebookError(f"{error.ename}: {error.evalue} (see {output})") from error
    except OSError as error:  # papermill writes the notebook after each cell
        raise NotebookError(f"{output} cannot be written; is the disk full? ({error})") from error
    except RuntimeError as error:  # the kernel died in a cell, or before the first one
        raise NotebookError(f"{error} (too little memory? see {output})") from error
    finally:
        del os.environ[records.NOTEBOOK]  # records of this process come from no notebook
    return report_of(executed.cells), output


@contextlib.contextmanager
def private_sockets() -> Iterator[Config]:
    """Give the options with which a kernel talks through files in a folder of this user alone.

    By default it talks through network ports, which are chosen before the kernel starts. Of two
    notebooks that start at the same time, both can be given the same port, and one of them dies.
    """
    from traitlets.config import Config

    with tempfile.TemporaryDirectory(prefix="cflkit-") as folder:
        yield Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})


def for_the_record(notebook: Path) -> NotebookNode:
    """Read a notebook, and mark the code cells without the tag ``record`` as those to skip.

    Raises
    ------
    NotebookError
        No cell has the tag.
    """
    import nbformat

    tree = nbformat.read(notebook, as_version=4)
    cells = [cell for cell in tree.cells if cell.cell_type == "code"]
    tags = [cell.metadata.setdefault("tags", []) for cell in cells]
    if not any("record" in own for own in tags):
        raise NotebookError(f"{notebook} has no cells tagged 'record'")
    for own in tags:
        if not {"parameters", "record"} & set(own):
            own.append("skip-execution")  # nbclient, which papermill uses, knows this tag
    return tree


# What a report says below claims, whose counts may belong to other parameters than those of the run
COUNTS = "Counts are of runs with the lesson's defaults, except for what stands in parentheses."


def report_of(cells: list[Any]) -> str:
    """Return what the cells tagged ``report`` printed, and the claims that cells made."""
    parts = []
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        for item in cell.outputs if cell.cell_type == "code" else ():
            if "report" in tags and item.get("name") == "stdout":
                parts.append(item["text"])
            if MIME in item.get("data", {}):
                parts.append(item["data"]["text/plain"] + "\n")
                parts.append(COUNTS + "\n")
    return "\n".join(parts)


def places() -> dict[str, str]:
    """Return the environment's folders as absolute paths, for kernels run in another folder."""
    names = ("CFLKIT_DATA", "CFLKIT_RESULTS", "CFLKIT_FIGURES", "CFLKIT_CACHE")
    given = {name: os.environ.get(name) for name in names}
    return {name: str(Path(p).expanduser().resolve()) for name, p in given.items() if p}


def find(notebook: Path) -> Path:
    """Return the path of a notebook, which may be given as in the clone.

    In another folder, ``notebooks/03_ocfl_temperature.ipynb`` is that of the clone.
    """
    known = PROJECT / notebook
    return known if known.exists() and not notebook.exists() else notebook


def read(notebook: Path) -> Notebook:
    """Read a notebook as a tree.

    Raises
    ------
    NotebookError
        The file cannot be read, or is not a notebook.
    """
    try:
        tree = json.loads(notebook.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotebookError(f"{notebook} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise NotebookError(f"{notebook} is not a notebook") from error
    if not is_notebook(tree):
        raise NotebookError(f"{notebook} is not a notebook")
    return tree


def code_digest(notebook: Path) -> str:
    """Return the SHA-256 of a notebook's code.

    Only the sources of its code cells count: outputs change, and what papermill adds is in the
    parameters.
    """
    cells = read(notebook)["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def is_notebook(tree: Any) -> bool:
    """Return whether a tree has cells as Jupyter writes them."""
    try:
        return all({"cell_type", "metadata", "source"} <= cell.keys() for cell in tree["cells"])
    except (AttributeError, KeyError, TypeError):
        return False


class Loader(yaml.SafeLoader):
    """A loader of YAML with the floats of version 1.2: ``1e-3`` is a number, not a string.

    ``None`` is null, since notebooks and messages write it so. A name that is there twice is an
    error.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a dict, and refuse a second value of a name."""
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name!r} is there twice", node.value[place][0].start_mark
                )
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"None$"), ["N"])


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a file of parameters.

    Raises
    ------
    ParameterError
        The file cannot be read, is not YAML, or has another form.
    """
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise ParameterError(f"{file} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError) as error:  # also a date that does not exist
        raise ParameterError(f"{file} is not YAML ({error})") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ParameterError(f"{file} must hold 'name: value' lines")
    return values


def parse_yaml(name: str, text: str) -> Any:
    """Parse the value of a parameter from the command line.

    Raises
    ------
    ParameterError
        The value is not YAML.
    """
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a ValueError
        raise ParameterError(f"{name}: {text!r} is not YAML") from error


def as_yaml(value: Any) -> str:
    """Write a value in one line, such that `parse_yaml` reads it; plain texts stay as they are."""
    with contextlib.suppress(ParameterError):  # a text such as '@x' is YAML only in quotes
        if isinstance(value, str) and parse_yaml("", value) == value:
            return value
    return json.dumps(value, ensure_ascii=False)


def defaults(notebook: Notebook) -> dict[str, Any]:
    """Return names and values of the cell tagged ``parameters``, which holds literals alone.

    Raises
    ------
    NotebookError
        A parameter has a value that is not a literal, or a cell is not Python.
    """
    try:
        return dict(literals(parameters_cell(notebook)))
    except SyntaxError as error:
        raise NotebookError(f"a cell is not Python: {error.text or error.msg}") from error
    except ValueError as error:
        raise NotebookError(
            f"line {error} of the parameters cell is not 'name = literal'"
        ) from error


def parameters_cell(notebook: Notebook) -> str:
    """Return the source of the one cell tagged ``parameters``.

    Raises
    ------
    NotebookError
        There is no such cell, or more than one.
    """
    cells = [c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", [])]
    if not cells:
        raise NotebookError("the notebook has no parameters; open it in JupyterLab")
    if len(cells) != 1:
        raise NotebookError(f"the notebook has {len(cells)} cells tagged 'parameters', not one")
    return "".join(cells[0]["source"])


def literals(source: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a cell that holds lines ``name = literal`` alone.

    Raises
    ------
    SyntaxError
        The cell is not Python.
    ValueError
        A line is not of this form; the message is its number.
    """
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                try:
                    yield name, ast.literal_eval(value)
                except (ValueError, TypeError):  # a literal such as {[]: 1} has no value
                    raise ValueError(statement.lineno) from None
            case _:
                raise ValueError(statement.lineno)


def check_parameters(notebook: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` as the notebook needs them.

    Raises
    ------
    ParameterError
        A name that the parameters cell does not have, or a value that the notebook would refuse.
    """
    from cflkit.reproduce import papers

    known = defaults(read(notebook))
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ParameterError(about_unknown(unknown, known))
    model = papers.parameters_of(notebook.stem)
    if model is None:
        return {name: as_the_default(name, value, known[name]) for name, value in values.items()}
    checked = model.checked(known | values)
    return {name: getattr(checked, name) for name in values}


def as_the_default(name: str, value: Any, default: Any) -> Any:
    """Return a value in the type of the default, for a notebook that has no model.

    Raises
    ------
    ParameterError
        It has another type.
    """
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        raise ParameterError(
            f"{name}: {value!r} is not {type(default).__name__}, as the default is"
        )
    return value
