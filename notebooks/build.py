"""Build, execute and clean the notebooks, and write what the README says about them.

``python notebooks/build.py [NAME ...]`` builds those named (all by default): each ``src/NAME.py``
is executed at its default scale and written as ``NAME.ipynb`` with outputs. The measured minutes
are written into the notebook, its source and the README; nobody types them.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import jupytext
import nbformat
from nbclient import NotebookClient

from cflkit import records
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
    minutes = math.ceil((perf_counter() - start) / 30) / 2
    stated = rf"\1 {minutes:g}"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = MINUTES.sub(stated, cell.source)
    source.write_text(MINUTES.sub(stated, source.read_text()))
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
    """The README's results: every committed record, FedAvg beside OCFL with HDBSCAN."""
    lines = [
        "| data | network | draws | rounds | clusters in round | ARI | PF1 | PF1 of FedAvg |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records.find(clients=15):
        if record.parameters["dataset"].startswith("digits"):
            continue  # made anew by `make run`, not committed
        p, ocfl = record.parameters, record.summary["OCFL-HDB"]
        lines.append(
            f"| {p['dataset']}, {p['overlap']}, {p['balance']} | {p['model']} | "
            f"{p['draws'] or 'all'} | {p['rounds']} | {ocfl['clustering_round']} | "
            f"{ocfl['ari']:.2f} | {ocfl['pf1']:.2f} | {record.summary['FedAvg']['pf1']:.2f} |"
        )
    return "\n".join(lines)


def write_readme() -> None:
    """Fill the parts of the README between its markers."""
    text = README.read_text()
    for name, table in (("notebooks", notebook_table()), ("results", results_table())):
        pattern = rf"(<!-- {name}: written by notebooks/build.py -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(pattern, lambda m, t=table: m[1] + t + m[2], text, flags=re.S)
        if not found:
            raise ValueError(f"README.md has no place for {name}")
    README.write_text(text)


if __name__ == "__main__":
    wanted = sys.argv[1:] or sorted(path.stem for path in (NOTEBOOKS / "src").glob("[0-9]*.py"))
    for name in wanted:
        build(NOTEBOOKS / "src" / f"{name}.py")
    write_readme()
