"""Executed notebooks of runs, which are kept, committed and executed again by nbval.

``python -m cflkit run … --keep`` leaves the executed notebook beside the record. It has all cells,
or those of the record with ``--record-only``, and after them a figure and the outcome of the run.
nbval compares the outcome when ``make full`` executes the notebooks in ``notebooks/full`` again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflkit._project import KIT
from cflkit.reproduce import records
from cflkit.reproduce.records import Record

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from cflkit.federation import Federation

FOLDER = KIT / "notebooks" / "full"
# The type under which an output keeps what its run needed
NEEDS = "application/vnd.cflkit.needs+json"
# The most bytes of a kept notebook; of one that is larger, moving figures stand still
LARGEST = 300_000
TOLD = "needed {minutes} minutes of {of}, and {memory_gib} GiB of memory"
# The tag of cells that papermill leaves out
SKIPPED = "skip-execution"
# Scores may differ by this much when a run is made again, as on another processor
TOLERANCE = 0.02
# What is drawn of a run, if it has it: the first of these
DRAWN = ("temperature", "accuracy", "communities", "ari")
# What is counted, and must come out again exactly
COUNTED = ("n_clusters", "clustering_round", "iterations", "diverged_in")


# --- In the notebook ------------------------------------------------------------------------------


def draw(record: Record, federation: Federation, number: int) -> None:
    """Draw a run as a figure with this number: a measure over rounds, and the last clusters."""
    import matplotlib.pyplot as plt
    import psutil
    import torch
    from IPython.display import display

    from cflkit import plots
    from cflkit.simulation.loop import peak_memory

    table = record.rounds
    last = table.groupby("method", sort=False).last()
    truth = federation.clusters
    clusters = {} if truth is None or "clusters" not in last else dict(last["clusters"].dropna())
    heights = [2.4] * (table["round"].nunique() > 1) + [0.28 * len(clusters) + 0.6] * bool(clusters)
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(8, sum(heights)), squeeze=False, height_ratios=heights
    )
    if table["round"].nunique() > 1:
        measure = next(name for name in DRAWN if name in table)
        plots.over_rounds([table], measure, measure, axes[0, 0])
        axes[0, 0].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    if truth is not None and clusters:
        strips = {
            name: [int(label) for label in text.split("|")] for name, text in clusters.items()
        }
        plots.clusterings(truth.cpu(), strips, axes[-1, 0]).set_xticks(range(0, len(truth), 5))
    caption = "The run over its rounds, and the clusters of its last round, as far as it has them."
    plots.show(figure, number, caption, "Lines over rounds, and a strip of clients per method.")
    device = str(record.provenance["device"])
    cpu = device == "cpu"
    spent = time.process_time() if cpu else time.time() - psutil.Process().create_time()
    needs = {
        "minutes": max(round(spent / 60, 1), 0.1),
        "memory_gib": round(peak_memory(torch.device("cpu" if cpu else "cuda")), 1),
        "device": device,
    }
    needed = TOLD.format(**needs, of="one core" if cpu else device)
    display({NEEDS: needs, "text/plain": needed}, raw=True)


def compare(record: Record) -> None:
    """Print what a run counted, and whether its scores are those of the committed record."""
    committed = KIT / "data" / "results" / record.id
    before = records.read(committed).summary if committed.exists() else {}
    for name, measures in record.summary.items():
        counted = [
            f"{count} {measures[count]}" for count in COUNTED if measures.get(count) is not None
        ]
        counted += [f"ari {measures['ari']:.2f}"] if "ari" in measures else []
        print(f"{name}: {', '.join(counted)}; {against(before.get(name, {}), measures)}")


def against(before: Mapping[str, Any], measures: Mapping[str, Any]) -> str:
    """Say which scores of a method are not those that were recorded."""
    scores = [name for name, value in before.items() if isinstance(value, float)]
    missing = [n for n in scores if not isinstance(measures.get(n), int | float)]
    far = missing or [n for n in scores if abs(before[n] - measures[n]) > TOLERANCE]
    if not scores:
        return "no scores are recorded"
    return f"scores as recorded, ± {TOLERANCE}" if not far else f"not as recorded: {', '.join(far)}"


# --- Keeping it -----------------------------------------------------------------------------------


def last_cells(figures: int) -> list[NotebookNode]:
    """Build the cells that a kept notebook has at its end, after so many figures."""
    from nbformat import v4

    draw = f"kept.draw(record, federation, {figures + 1})"
    figure = f"from cflkit.reproduce import kept\n\n{draw}"
    text = "## The run\n\nA figure of it, and its outcome, which nbval compares."
    compared = {"tags": ["record", "nbval-check-output"]}
    return [
        v4.new_markdown_cell(text, id="the-run"),
        v4.new_code_cell(figure, id="its-figure", metadata={"tags": ["record"]}),
        v4.new_code_cell("kept.compare(record)", id="its-outcome", metadata=compared),
    ]


def keep(executed: NotebookNode, source: Path, id: str) -> Path:
    """Write an executed notebook beside the record of its run, without what differs by chance."""
    import nbformat

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
    cells.insert(0, nbformat.v4.new_markdown_cell(f"# {id}\n\n{about}", id="head"))
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


# --- Executing it again ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A kept notebook and what its run needed."""

    path: Path
    minutes: float  # of one core, or of the GPU
    memory_gib: float
    device: str


def listed(folder: Path = FOLDER) -> list[Kept]:
    """List the kept notebooks of a folder, the cheapest first."""
    notebooks = []
    for path in folder.glob("*.ipynb"):
        needs = json.loads(path.read_text(encoding="utf-8"))["metadata"]["cflkit"]
        notebooks.append(Kept(path, needs["minutes"], needs["memory_gib"], needs["device"]))
    return sorted(notebooks, key=lambda notebook: (notebook.minutes, notebook.path.name))
