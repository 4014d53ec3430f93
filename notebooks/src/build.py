"""Build, execute and clean the notebooks.

``python notebooks/src/build.py [NAME ...]`` builds those named (all by default): each
``src/NAME.py`` is executed at its default scale and written as ``NAME.ipynb`` with outputs. The
measured minutes are written into the notebook, its source and the README; nobody types them. With
``--prose``, nothing is executed: changed prose comes into the notebooks, and code cells keep their
outputs. This is refused for a notebook whose code has changed.

The exercises in ``src/exercises`` are written into ``exercises``, without their solutions; what
failure labs show is executed, too, but not with ``--prose``. Then the ledger and the tables of
results are written anew, from the records that git tracks: add new ones before.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import jupytext
import nbformat
import pages
from nbclient import NotebookClient

from cflkit.course import sources, versions
from cflkit.reproduce import ledger, records
from cflkit.reproduce.notebooks import our_kernel, private_sockets
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.run_messages import MINUTES

SOURCES = Path(__file__).resolve().parent
NOTEBOOKS = SOURCES.parent
WIDGET = "application/vnd.jupyter.widget-view+json"


def build(source: Path) -> None:
    """Execute one source and write its notebook."""
    notebook, target = jupytext.read(source), NOTEBOOKS / f"{source.stem}.ipynb"
    start = perf_counter()
    execute(notebook)
    minutes = math.ceil((perf_counter() - start) / 30) / 2
    tidy(notebook)
    state_minutes(notebook, source, minutes)
    write(notebook, target)
    print(f"{target.name}: {minutes:g} minutes, {target.stat().st_size // 1000} kB")


def build_prose(source: Path) -> None:
    """Write the prose of a source into its notebook, which keeps the outputs of its code."""
    notebook, target = jupytext.read(source), NOTEBOOKS / f"{source.stem}.ipynb"
    before = nbformat.read(target, as_version=4)
    cells, executed = code_cells(notebook), code_cells(before)
    if [cell.source for cell in cells] != [cell.source for cell in executed]:
        sys.exit(f"the code of {source.name} has changed: build it without --prose")
    for cell, old in zip(cells, executed, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    tidy(notebook)
    write(notebook, target)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def execute(notebook: nbformat.NotebookNode) -> None:
    """Execute all cells, as a reader would."""
    place = {"metadata": {"path": str(NOTEBOOKS)}}
    options = {"timeout": 1800, "kernel_name": "python3", "resources": place}
    with private_sockets() as config:
        options |= {"config": config, "kernel_manager_class": our_kernel()}
        NotebookClient(notebook, **options).execute()


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Remove widgets, which are dead once the kernel is gone; hide code that readers may skip."""
    for cell in code_cells(notebook):
        cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
    notebook.metadata = nbformat.from_dict(versions.METADATA)


def state_minutes(notebook: nbformat.NotebookNode, source: Path, minutes: float) -> None:
    """Write the measured minutes into the notebook and its source."""
    stated = rf"\1 {minutes:g}"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = MINUTES.sub(stated, cell.source)
    text = MINUTES.sub(stated, source.read_text(encoding="utf-8"))
    source.write_text(text, encoding="utf-8")


def write(notebook: nbformat.NotebookNode, target: Path) -> None:
    """Write a notebook without what differs from run to run."""
    nbformat.write(notebook, target)
    keys = "metadata.papermill metadata.widgets cell.metadata.papermill cell.metadata.execution"
    strip = [sys.executable, "-m", "nbstripout", "--keep-output", "--keep-count"]
    subprocess.run([*strip, "--extra-keys", keys, str(target)], check=True)


def write_exercises(prose: bool) -> None:
    """Write the exercises as students get them, without solutions.

    Only the symptoms of failure labs are executed, so that readers see them at once.
    """
    for source in sources.by_lesson().values():
        notebook = versions.released(versions.with_grades(source))
        if source.stem.startswith("L") and not prose:
            marks = [(cell, cell.metadata["nbgrader"]["grade_id"]) for cell in code_cells(notebook)]
            given = [cell for cell, mark in marks if mark.startswith("text-")]
            execute(nbformat.v4.new_notebook(cells=given))
            for cell in given:  # a later build gives the same file
                cell.metadata.pop("execution", None)
        versions.write_notebook(notebook, NOTEBOOKS / "exercises" / f"{source.stem}.ipynb")


def check_committed() -> None:
    """End if a notebook would show records that the README and the ledger do not."""
    tracked = {record.id for record in records.committed()}
    scaled = {
        record.id
        for record in records.find_records()
        if any(ledger.scale(record, paper) for paper in PAPERS)
        # A record of a lesson's defaults is at a paper's scale if the paper is as small
        and records.git("check-ignore", "--quiet", str(record.folder)) is None
    }
    if others := sorted(scaled - tracked):
        sys.exit(f"first add these records to git, or move them away: {', '.join(others)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a notebook; all by default")
    parser.add_argument("--prose", action="store_true", help="execute nothing, keep the outputs")
    given = parser.parse_args()
    check_committed()
    os.environ["CFLKIT_FIGURES"] = str(records.PROJECT / "figures")
    wanted = given.names or sorted(path.stem for path in SOURCES.glob("[0-9]*.py"))
    # A build begins every run anew: checkpoints in the cache are a reader's, or older code's
    with tempfile.TemporaryDirectory(prefix="cflkit-build-") as cache:
        os.environ["CFLKIT_CACHE"] = cache
        for name in wanted:
            (build_prose if given.prose else build)(SOURCES / f"{name}.py")
    write_exercises(given.prose)
    pages.write_pages()
