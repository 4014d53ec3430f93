"""Papermill with the checks that it lacks.

Papermill ignores a parameter that the notebook does not have and a notebook without a parameters
cell, exits with success, and runs with the defaults; it passes YAML's ``1e-3`` on as a string.
`run` checks all of this, and the notebook's own bounds, before a kernel starts.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import nbformat
import papermill
import yaml
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from cflkit import config, records
from cflkit.config import ParameterError, Parameters

# What passes between this process and the kernel is nobody else's to read
ENCRYPTED = Config(KernelManager={"transport_encryption": "auto"})
RUNS = Path(__file__).resolve().parent.parent / "data" / "runs"


class NotebookError(Exception):
    """A notebook that cannot be run, or that failed while it ran."""


def run(
    notebook: Path,
    given: dict[str, str],
    file: Path | None,
    output: Path,
    missing: bool = False,
) -> str | None:
    """Run a notebook with parameters.

    While a notebook that writes a record runs, no other process can run it with the same ones; with
    ``missing`` it waits, and then finds the record.

    Parameters
    ----------
    notebook : Path
        With one cell tagged ``parameters``.
    given : dict of str to str
        Values as YAML; they win over the file's.
    file : Path or None
        YAML, a mapping of names to values.
    output : Path
        Where the executed notebook is written; parent folders are made.
    missing : bool
        Do nothing if the notebook's record is there already.

    Returns
    -------
    str or None
        What the cells tagged ``report`` printed; None if there was nothing to do.

    Raises
    ------
    ParameterError
        An unknown name, a wrong type or a value out of bounds; nothing has run.
    NotebookError
        No notebook, no parameters cell, or an error of one of its cells; or another process runs
        the same.
    """
    source = read(notebook)
    values = {} if file is None else read_yaml(file)
    values |= {name: parse_yaml(name, text) for name, text in given.items()}
    values = check_parameters(source, values)
    name = record_id(source, values)
    if name is None:
        if missing:
            raise NotebookError(f"{notebook} writes no record that could be missing")
        return execute(notebook, values, output)
    try:
        with alone(name, wait=missing):
            records.sweep(name)
            if missing and records.folder(name) is not None:
                return None
            return execute(notebook, values, output)
    except filelock.Timeout as error:
        raise NotebookError(f"{name} is being run by another process") from error
    except OSError as error:
        raise NotebookError(f"{name}: {error}") from error


def record_id(notebook: nbformat.NotebookNode, values: dict[str, Any]) -> str | None:
    """The id of the record that the notebook writes with these parameters, if it writes one.

    The notebook calls ``records.run_id("paper", ...)``, whose first argument is read here.
    """
    model = parameter_model(notebook)
    for node in calls(notebook, "records.run_id"):
        match node.args:
            case [ast.Constant(value=str(paper)), _]:
                checked = None if model is None else model.checked(defaults(notebook) | values)
                if isinstance(checked, config.AnyRun):
                    return records.run_id(paper, checked)
    return None


def alone(run: str, wait: bool = False) -> filelock.BaseFileLock:
    """The lock that one process at a time has on a run; it falls with the process.

    Raises
    ------
    filelock.Timeout
        On entering, if another process has it and we do not ``wait``.
    """
    path = records.checkpoint(run).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(path, timeout=-1 if wait else 0)


def execute(notebook: Path, values: dict[str, Any], output: Path) -> str:
    """Run a notebook with parameters that were checked; returns its report."""
    output = output.resolve()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a"):
            pass
    except OSError as error:
        raise NotebookError(f"{output} cannot be written ({error.strerror})") from error
    os.environ.update(places())
    try:
        executed = papermill.execute_notebook(
            notebook,
            output,
            parameters=values,
            cwd=notebook.resolve().parent,
            progress_bar=sys.stderr.isatty(),
            kernel_name="python3",
            language="python",
            config=ENCRYPTED,
        )
    except PapermillExecutionError as error:
        raise NotebookError(f"{error.ename}: {error.evalue} (see {output})") from error
    except OSError as error:  # papermill writes the notebook after each cell
        raise NotebookError(f"{output} cannot be written; is the disk full? ({error})") from error
    except DeadKernelError as error:
        raise NotebookError(
            f"the kernel died, of too little memory perhaps (see {output})"
        ) from error
    return "".join(
        item["text"]
        for cell in executed.cells
        if "report" in cell.metadata.get("tags", [])
        for item in cell.outputs
        if item.get("name") == "stdout"
    )


def places() -> dict[str, str]:
    """The environment's folders as absolute paths: a kernel runs in another folder than we do."""
    names = ("CFLKIT_DATA", "CFLKIT_RESULTS", "CFLKIT_FIGURES", "CFLKIT_CACHE")
    given = {name: os.environ.get(name) for name in names}
    return {name: str(Path(p).expanduser().resolve()) for name, p in given.items() if p}


def read(notebook: Path) -> nbformat.NotebookNode:
    """The notebook as a tree."""
    try:
        return nbformat.read(notebook, as_version=4)
    except OSError as error:
        raise NotebookError(f"{notebook} cannot be read ({error.strerror})") from error
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise NotebookError(f"{notebook} is not a notebook") from error


def read_yaml(file: Path) -> dict[str, Any]:
    """A file of parameters."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{file} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParameterError(f"{file} is not YAML ({error})") from error
    if not isinstance(values, dict):
        raise ParameterError(f"{file} must hold 'name: value' lines")
    return values


def parse_yaml(name: str, text: str) -> Any:
    """The value of a parameter from the command line."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ParameterError(f"{name}: {text!r} is not YAML") from error


def defaults(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Names and values of the one cell tagged ``parameters``, which holds literals alone."""
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise NotebookError(f"the notebook has {len(cells)} cells tagged 'parameters', not one")
    values = {}
    for statement in parsed(cells[0]).body:
        try:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    values[name] = ast.literal_eval(value)
                case _:
                    raise ValueError
        except ValueError:
            raise NotebookError(
                f"line {statement.lineno} of the parameters cell is not 'name = literal'"
            ) from None
    return values


def parsed(cell: nbformat.NotebookNode) -> ast.Module:
    """The syntax tree of a code cell."""
    try:
        return ast.parse(cell.source)
    except SyntaxError as error:
        raise NotebookError(f"a cell is not Python: {error.text or error.msg}") from error


def parameter_model(notebook: nbformat.NotebookNode) -> type[Parameters] | None:
    """The model of `config` that the notebook validates its parameters with, if it names one."""
    for call in calls(notebook, "config.", ".of"):
        found = getattr(config, ast.unparse(call.func).split(".")[1], None)
        if isinstance(found, type) and issubclass(found, Parameters):
            return found
    return None


def calls(notebook: nbformat.NotebookNode, start: str, end: str = "") -> Iterator[ast.Call]:
    """The calls in a notebook's code of functions whose dotted name starts and ends so."""
    for cell in notebook.cells:
        if cell.cell_type != "code" or start not in cell.source:
            continue
        for node in ast.walk(parsed(cell)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.startswith(start) and name.endswith(end):
                    yield node


def check_parameters(notebook: nbformat.NotebookNode, values: dict[str, Any]) -> dict[str, Any]:
    """``values`` as the notebook needs them.

    Raises
    ------
    ParameterError
        A name that the parameters cell does not have, or a value that the notebook would refuse.
    """
    known = defaults(notebook)
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ParameterError(
            f"the notebook has no parameter {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(known)}"
        )
    meant = {name: as_meant(value, known[name]) for name, value in values.items()}
    model = parameter_model(notebook)
    if model is not None:
        model.checked(known | meant)
    else:
        for name, value in meant.items():
            if known[name] is not None and not isinstance(value, type(known[name])):
                raise ParameterError(
                    f"{name}: {value!r} is not {type(known[name]).__name__}, as the default is"
                )
    return meant


def as_meant(value: Any, default: Any) -> Any:
    """A float where the default is one: YAML reads ``1e-3`` as a string, ``1`` as an integer."""
    if isinstance(default, float) and isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return value
    return value
