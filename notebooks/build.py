"""Build, execute and clean the notebooks, and write what the README says about them.

``python notebooks/build.py [NAME ...]`` builds those named (all by default): each ``src/NAME.py``
is executed at its default scale and written as ``NAME.ipynb`` with outputs. The measured minutes
are written into the notebook, its source and the README; nobody types them. The ledger of the
records that git tracks is written anew, too: add new ones before.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from time import perf_counter

import jupytext
import nbformat
import pandas as pd
from nbclient import NotebookClient
from PIL import Image

from cflkit import ledger, records
from cflkit.notebooks import ENCRYPTED

NOTEBOOKS = Path(__file__).resolve().parent
README = NOTEBOOKS.parent / "README.md"
WIDGET = "application/vnd.jupyter.widget-view+json"
MINUTES = re.compile(r"(\*\*Minutes on two cores:\*\*) [\d.]+")


def build(source: Path) -> None:
    """Execute one source and write its notebook."""
    notebook = jupytext.read(source)
    start = perf_counter()
    NotebookClient(
        notebook,
        timeout=1800,
        kernel_name="python3",
        config=ENCRYPTED,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # a progress bar is a widget, dead once the kernel is gone
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = smaller(output.data["image/png"])
    minutes = math.ceil((perf_counter() - start) / 30) / 2
    stated = rf"\1 {minutes:g}"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = MINUTES.sub(stated, cell.source)
    text = MINUTES.sub(stated, source.read_text(encoding="utf-8"))
    source.write_text(text, encoding="utf-8")
    target = NOTEBOOKS / f"{source.stem}.ipynb"
    nbformat.write(notebook, target)
    keys = "metadata.papermill cell.metadata.papermill cell.metadata.execution "
    keys += "metadata.language_info.version"
    strip = [sys.executable, "-m", "nbstripout", "--keep-output", "--keep-count"]
    subprocess.run(
        [*strip, "--extra-keys", keys, str(target)],
        check=True,
    )
    print(f"{target.name}: {minutes:g} minutes, {target.stat().st_size // 1000} kB")


def smaller(png: str) -> str:
    """A figure (base64) in 128 colours: a quarter of the size, the same to the eye."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    palette = image.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def notebook_table() -> str:
    """The README's map: each notebook with its title and minutes."""
    lines = ["| notebook | what it shows | minutes |", "|---|---|---|"]
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        text = "\n".join(
            c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown"
        )
        title = re.search(r"^# (.+)$", text, re.M)
        minutes = re.search(MINUTES.pattern.replace(r"[\d.]+", r"([\d.]+)"), text)
        if title is None or minutes is None:
            raise ValueError(f"{path.name} states no title or no minutes")
        lines.append(
            f"| [`{path.stem}`](notebooks/{path.name}) | {title.group(1)} | {minutes.group(2)} |"
        )
    return "\n".join(lines)


def results_table() -> str:
    """The README's results: each scenario with committed records, means over seeds."""
    lines = [
        "| data | clients | split | scale | seeds | clusters in round | ARI | PF1 | "
        "PF1 of FedAvg | minutes a run |",
        "|---|" + "---|" * 9,
    ]
    scenarios: dict[tuple, list[records.Record]] = {}
    for record in records.committed():
        if scale := ledger.scale(record, "ocfl"):
            scenarios.setdefault((*ledger.scenario_of(record), scale), []).append(record)
    for (dataset, overlap, balance, clients, scale), runs in scenarios.items():
        ocfl = [run.summary["OCFL-HDB"] for run in runs]
        fired = [measures["clustering_round"] for measures in ocfl]
        columns = [
            ", ".join("never" if round is None else str(round) for round in fired),
            *(f"{fmean(measures[name] for measures in ocfl):.2f}" for name in ("ari", "pf1")),
            f"{fmean(run.summary['FedAvg']['pf1'] for run in runs):.2f}",
            f"{fmean(run.provenance['minutes'] for run in runs):.0f}",
        ]
        first = f"{dataset} | {clients} | {overlap}, {balance} | {scale} | {len(runs)}"
        lines.append(f"| {first} | {' | '.join(columns)} |")
    return "\n".join(lines)


def headline() -> str:
    """The README's count of the papers' numbers, and what committed runs have made of them."""
    counts = ledger.counts(ledger.ledger(records.committed()))
    named = counts.columns.drop("not run")
    lines = [f"| paper, table | scale | numbers | run | {' | '.join(named)} |", "|---" * 7 + "|"]
    run = counts[named].sum(axis=1) > 0
    others = counts[~run].groupby("scale").sum()
    others.index = pd.MultiIndex.from_tuples([(scale, "all others") for scale in others.index])
    for (scale, *table), row in [*counts[run].iterrows(), *others.iterrows()]:
        numbers = [row.sum(), row[named].sum(), *row[named]]
        lines.append(f"| {', '.join(table)} | {scale} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def emd_results_table() -> str:
    """The README's results of EMD-CFL: each version with committed records, means over seeds."""
    names = ("EMD-CFL", "Oracle", "FedAvg", "FedProx")
    lines = [
        f"| data | clients | scale | seeds | ARI of EMD-CFL | {' | '.join(names)} | minutes |",
        "|---" * 10 + "|",
    ]
    scenarios: dict[tuple, list[records.Record]] = {}
    for record in records.committed():
        if scale := ledger.scale(record, "emd-cfl"):
            p = record.parameters
            scenarios.setdefault((p["dataset"], p["version"], p["clients"], scale), []).append(
                record
            )
    for (dataset, version, clients, scale), runs in scenarios.items():
        columns = [
            ", ".join(f"{run.summary['EMD-CFL']['ari']:.2f}" for run in runs),
            *(f"{100 * fmean(run.summary[n]['accuracy'] for run in runs):.1f}" for n in names),
            f"{fmean(run.provenance['minutes'] for run in runs):.0f}",
        ]
        first = f"{dataset}, {version} | {clients} | {scale} | {len(runs)}"
        lines.append(f"| {first} | {' | '.join(columns)} |")
    return "\n".join(lines)


def fedcref_results_table() -> str:
    """The README's results of FedCRef: each system with committed records, means over seeds."""
    names = ("FedCRef", "Perfect associations", "Alone")
    lines = [
        "| data | clients | dirtiness | overlap | seeds | ACC at the start | "
        f"{' | '.join(names)} | communities | isolated | wrong, % | minutes |",
        "|---" * 13 + "|",
    ]
    systems: dict[tuple, list[records.Record]] = {}
    for record in records.committed():
        if ledger.scale(record, "fedcref") == "reduced":
            systems.setdefault(ledger.scenario_of(record, "fedcref"), []).append(record)
    for (dataset, clustering, dirtiness, overlap, clients), runs in sorted(systems.items()):

        def mean(measure: str, name: str = "FedCRef", runs: list[records.Record] = runs) -> float:
            return fmean(run.summary[name][measure] for run in runs)

        dirt = f"{dirtiness:g}" if clustering == "dirty-uniform" else clustering
        columns = [
            f"{mean('accuracy_start'):.2f}",
            *(f"{mean('accuracy', name):.3f}" for name in names),
            *(f"{mean(measure):.1f}" for measure in ("communities", "isolated")),
            f"{100 * mean('wrong'):.1f}",
            f"{fmean(run.provenance['minutes'] for run in runs):.0f}",
        ]
        first = f"{dataset} | {clients} | {dirt} | {overlap:g} | {len(runs)}"
        lines.append(f"| {first} | {' | '.join(columns)} |")
    return "\n".join(lines)


def explanations_results_table() -> str:
    """The README's results of explanations: each scenario with committed records."""
    names = {"no clustering": "FedAvg", "OCFL-HDB": "OCFL-HDB"}
    measures = ("insertion", "deletion", "insertion − deletion")
    heads = [f"{measure}, {name}" for measure in measures for name in names]
    lines = [
        f"| data | split | seeds | {' | '.join(heads)} | minutes |",
        "|---" * (4 + len(heads)) + "|",
    ]
    scenarios: dict[tuple, list[records.Record]] = {}
    for record in records.committed():
        if ledger.scale(record, "ocfl-explanations") == "reduced":
            scenarios.setdefault(ledger.scenario_of(record), []).append(record)
    for (dataset, overlap, balance, _), runs in scenarios.items():
        insertion, deletion = (
            [fmean(run.summary[name][f"{m}_in-cluster"] for run in runs) for name in names.values()]
            for m in ("insertion", "deletion")
        )
        difference = [up - down for up, down in zip(insertion, deletion, strict=True)]
        columns = [f"{value:.2f}" for value in [*insertion, *deletion, *difference]]
        columns.append(f"{fmean(run.provenance['minutes'] for run in runs):.0f}")
        first = f"{dataset} | {overlap}, {balance} | {len(runs)}"
        lines.append(f"| {first} | {' | '.join(columns)} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The README's text with what belongs between its markers."""
    parts = {
        "notebooks": notebook_table(),
        "results": results_table(),
        "emd-results": emd_results_table(),
        "fedcref-results": fedcref_results_table(),
        "explanations-results": explanations_results_table(),
        "ledger": headline(),
    }
    for name, table in parts.items():
        pattern = rf"(<!-- {name}: written by notebooks/build.py -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(pattern, lambda m, t=table: m[1] + t + m[2], text, flags=re.S)
        if not found:
            raise ValueError(f"README.md has no place for {name}")
    return text


def check_committed() -> None:
    """End if a notebook would show records that the README and the ledger do not."""
    tracked = {record.id for record in records.committed()}
    scaled = {
        record.id
        for record in records.find()
        if any(ledger.scale(record, paper) for paper in ledger.RUNS)
    }
    if strangers := sorted(scaled - tracked):
        sys.exit(f"first add these records to git, or move them away: {', '.join(strangers)}")


if __name__ == "__main__":
    check_committed()
    # A build begins every run anew: checkpoints in the cache are a reader's, or older code's
    os.environ["CFLKIT_CACHE"] = tempfile.mkdtemp(prefix="cflkit-build-")
    wanted = sys.argv[1:] or sorted(path.stem for path in (NOTEBOOKS / "src").glob("[0-9]*.py"))
    for name in wanted:
        build(NOTEBOOKS / "src" / f"{name}.py")
    ledger.write(ledger.ledger(records.committed()), ledger.LEDGER)
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
