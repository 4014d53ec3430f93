"""Run a notebook, and keep it as it ended beside its record, for ``notebooks/full``.

``python notebooks/src/keep.py NOTEBOOK …`` takes options of ``python -m cflkit run``. What is kept
has all cells, or those of the record with ``--record-only``, and after them a figure and the
outcome of the run. ``make full`` makes the runs of ``notebooks/full`` again, and compares outcomes.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import nbformat
from nbformat import NotebookNode, v4
from reports.kept import NEEDS

from cflkit._bounds import Mistake
from cflkit.commands import FILE, NOTEBOOK, pairs, refused
from cflkit.reproduce import notebooks, records
from cflkit.reproduce.notebooks import SKIPPED
from cflkit.reproduce.values import as_yaml, parsed, read_yaml

FOLDER = records.KIT / "notebooks" / "full"
# The most bytes of a kept notebook; of one that is larger, moving figures stand still
LARGEST = 300_000
# How a kept notebook finds what its last cells call
IMPORT = """import sys

sys.path.append(str(records.KIT / "notebooks" / "src"))
from reports import kept"""


@click.command()
@click.argument("notebook", **NOTEBOOK)
@pairs("-p", "--parameter", "One parameter, as in YAML, which wins over -f")
@click.option("-f", "--file", **FILE, help="A YAML file of parameters.")
@click.option("--record-only", is_flag=True, help="Run only the cells that the record needs.")
def main(notebook: Path, parameter: dict[str, str], file: Path | None, record_only: bool) -> None:
    """Run a notebook, and keep it beside its record."""
    print(records.display_path(run(notebook, parameter, file, record_only)))


def run(path: Path, overrides: Mapping[str, str], file: Path | None, record_only: bool) -> Path:
    """Run a notebook with the cells of `last_cells`; return the path of what is kept."""
    notebook = notebooks.read_notebook(path)
    listed = {} if file is None else read_yaml(file)
    _, parameters = notebook.check(listed | parsed(overrides))
    if parameters is None:
        raise notebooks.NotebookError(f"{path} writes no record")
    run_id = records.run_id(parameters)
    output = notebooks.RUNS / f"{run_id}.ipynb"
    figures = 0 if record_only else sum("plots.show" in source for source in notebook.code)
    options = {"record_only": record_only, "verbose": True, "more": last_cells(figures)}
    notebooks.run(path, overrides, file, output, **options)
    return keep(nbformat.read(output, as_version=4), path, run_id)


def last_cells(figures: int) -> list[NotebookNode]:
    """Build the cells that a kept notebook has at its end, after so many figures."""
    figure = f"{IMPORT}\n\nkept.draw(record, federation, {figures + 1})"
    text = "## The run\n\nA figure of it, and its outcome, which `make full` compares."
    kept = {"tags": ["record"]}
    return [
        v4.new_markdown_cell(text, id="the-run"),
        v4.new_code_cell(figure, id="its-figure", metadata=kept),
        v4.new_code_cell("kept.compare(record)", id="its-outcome", metadata=kept),
    ]


def keep(executed: NotebookNode, source: Path, id: str) -> Path:
    """Write an executed notebook beside the record of its run, without what differs by chance."""
    partial = any(SKIPPED in cell.metadata.get("tags", []) for cell in executed.cells)
    needs, cells = {"run": id}, []
    for cell in executed.cells:
        tags = cell.metadata.get("tags", [])
        if SKIPPED in tags or (partial and cell.cell_type == "markdown"):
            continue
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        if "injected-parameters" in tags:
            cell.id = "injected-parameters"
        if cell.cell_type == "markdown":  # the folder is one below that of the lessons
            cell.source = re.sub(r"\]\((?!\w+:|#)", "](../", cell.source)
        else:
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr" and not widget(o)]
        for output in cell.get("outputs", []):
            needs |= output.get("data", {}).get(NEEDS, {})
        cells.append(cell)
    part = "The cells that its record needs" if partial else "All cells"
    about = f"{part} of [{source.stem}](../{source.name}), executed. What came out is at the end."
    if not partial:  # a page has one title
        cells[0].source = cells[0].source.replace("# ", "## ", 1)
    cells.insert(0, v4.new_markdown_cell(f"# {id}\n\n{about}", id="head"))
    executed.cells = cells
    executed.metadata = {"kernelspec": executed.metadata["kernelspec"], "cflkit": needs}
    text = nbformat.writes(executed)
    if len(text.encode()) > LARGEST:
        for output in (output for cell in cells for output in cell.get("outputs", [])):
            if "image/png" in output.get("data", {}):
                output.data.pop("text/html", None)
        text = nbformat.writes(executed)
    path = records.results() / id / "notebook.ipynb"
    records.write_whole(path, text + "\n")
    return path


def widget(output: Mapping[str, Any]) -> bool:
    """Return whether an output is a widget, which is dead once its kernel is gone."""
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


# --- What is kept ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A kept notebook and what its run needed."""

    path: Path
    minutes: float  # of one core, or of the GPU
    memory_gib: float
    device: str


def listed(folder: Path = FOLDER) -> list[Kept]:
    """List the kept notebooks of a folder, the cheapest first."""
    kept = []
    for path in folder.glob("*.ipynb"):
        needs = json.loads(path.read_text(encoding="utf-8"))["metadata"]["cflkit"]
        kept.append(Kept(path, needs["minutes"], needs["memory_gib"], needs["device"]))
    return sorted(kept, key=lambda notebook: (notebook.minutes, notebook.path.name))


def again(kept: Kept) -> bool:
    """Make the run of a kept notebook again, and return whether its outcome is another one.

    The code is that of today's lesson, since what the kept cells call may have moved.
    """
    cells = nbformat.read(kept.path, as_version=4).cells
    [parameters] = [c.source for c in cells if "injected-parameters" in c.metadata.get("tags", [])]
    lines = ast.parse(parameters).body
    values = {line.targets[0].id: as_yaml(ast.literal_eval(line.value)) for line in lines}
    [lesson] = re.findall(r"\(\.\./(\w+\.ipynb)\)", cells[0].source)
    partial = "its record needs" in cells[0].source
    with tempfile.TemporaryDirectory() as place, patch.dict(os.environ, CFLKIT_RESULTS=place):
        executed = run(FOLDER.parent / lesson, values, None, record_only=partial)
        outcome = nbformat.read(executed, as_version=4).cells[-1].outputs
    differs = outcome != cells[-1].outputs
    print(f"{kept.path.stem}: {f'not as kept: {outcome}' if differs else 'as kept'}")
    return differs


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except click.ClickException as error:
        sys.exit(refused(error.format_message()))
    except (OSError, Mistake) as error:
        sys.exit(refused(error))
