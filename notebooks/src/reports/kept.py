"""The figure and the outcome at the end of a kept notebook, see ``notebooks/src/keep.py``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cflkit._project import KIT
from cflkit.reproduce import records
from cflkit.reproduce.records import Record

if TYPE_CHECKING:
    from cflkit.federation import Federation

# The type under which an output keeps what its run needed
NEEDS = "application/vnd.cflkit.needs+json"
TOLD = "needed {minutes} minutes of {of}, and {memory_gib} GiB of memory"
# Scores may differ by this much when a run is made again, as on another processor
TOLERANCE = 0.02
# What is drawn of a run, if it has it: the first of these
DRAWN = ("temperature", "accuracy", "communities", "ari")
# What is counted, and must come out again exactly
COUNTED = ("n_clusters", "clustering_round", "iterations", "diverged_in")


def draw(record: Record, federation: Federation, number: int) -> None:
    """Draw a run as a figure with this number, and show what the run needed."""
    import psutil
    import torch
    from IPython.display import display

    from cflkit.simulation.loop import peak_memory

    draw_rounds(record, federation, number)
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


def draw_rounds(record: Record, federation: Federation, number: int) -> None:
    """Draw a measure over rounds, and the last clusters; nothing if a run has neither."""
    import matplotlib.pyplot as plt

    from cflkit import plots

    table = record.rounds
    last = table.groupby("method", sort=False).last()
    truth = federation.clusters
    clusters = {} if truth is None or "clusters" not in last else dict(last["clusters"].dropna())
    heights = [2.4] * (table["round"].nunique() > 1) + [0.28 * len(clusters) + 0.6] * bool(clusters)
    if not heights:  # explanations
        return
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
