"""Build, execute and clean the notebooks.

``python notebooks/.src/build.py [NAME ...]`` builds those named (all by default): each
``.src/NAME.py`` is executed at its default scale and written as ``NAME.ipynb`` with outputs. The
measured minutes are written into the notebook, its source and the README; nobody types them. The
exercises in ``.src/exercises`` are written into ``exercises``, without their solutions. Then the
ledger and the tables of results are written anew, from the records that git tracks: add new ones
before.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import jupytext
import nbformat
from nbclient import NotebookClient

from cflkit import course, ledger, readme, records
from cflkit.notebooks import private_sockets
from cflkit.papers import PAPERS
from cflkit.readme import MINUTES

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


def execute(notebook: nbformat.NotebookNode) -> None:
    """Execute all cells, as a reader would."""
    place = {"metadata": {"path": str(NOTEBOOKS)}}
    options = {"timeout": 1800, "kernel_name": "python3", "resources": place}
    with private_sockets() as config:
        NotebookClient(notebook, config=config, **options).execute()


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Remove widgets, which are dead once the kernel is gone; hide code that readers may skip."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
            if "hide-input" in cell.metadata.get("tags", []):
                cell.metadata["jupyter"] = {"source_hidden": True}
    language = notebook.metadata.get("language_info", {})
    notebook.metadata = {"kernelspec": course.KERNEL, "language_info": language}


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


def write_exercises() -> None:
    """Write the exercises as students get them, without solutions and without executing them."""
    for source in course.sources():
        notebook = course.released(course.with_grades(source))
        course.write_notebook(notebook, NOTEBOOKS / "exercises" / f"{source.stem}.ipynb")


def check_committed() -> None:
    """End if a notebook would show records that the README and the ledger do not."""
    tracked = {record.id for record in records.committed()}
    scaled = {
        record.id
        for record in records.find()
        if any(ledger.scale(record, paper) for paper in PAPERS)
        # A record of a lesson's defaults is at a paper's scale if the paper is as small
        and records.git("check-ignore", "--quiet", str(record.folder)) is None
    }
    if others := sorted(scaled - tracked):
        sys.exit(f"first add these records to git, or move them away: {', '.join(others)}")


if __name__ == "__main__":
    check_committed()
    os.environ["CFLKIT_FIGURES"] = str(records.PROJECT / "figures")
    wanted = sys.argv[1:] or sorted(path.stem for path in SOURCES.glob("[0-9]*.py"))
    # A build begins every run anew: checkpoints in the cache are a reader's, or older code's
    with tempfile.TemporaryDirectory(prefix="cflkit-build-") as cache:
        os.environ["CFLKIT_CACHE"] = cache
        for name in wanted:
            build(SOURCES / f"{name}.py")
    write_exercises()
    readme.write()
