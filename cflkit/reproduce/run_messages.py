"""What ``python -m cflkit run`` tells of a run: how far it is, and in the end what came of it.

With ``--verbose``, the command prints what the notebook's cells print for the report instead.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from cflkit._project import IS_CLONE, KIT, PROJECT
from cflkit.reproduce import records
from cflkit.reproduce.claims import MIME, of_cells
from cflkit.reproduce.records import AS_PUBLISHED, Record
from cflkit.reproduce.terminal import fitted

ROUND = re.compile(r"(continues after )?round \d+ of \d+")
TITLE = re.compile(r"^# (.+)$", re.M)
# The line in a notebook's first cell that states the minutes
MINUTES = re.compile(r"(\*\*Minutes on two cores:\*\*) ([\d.]+)")
# What a report says below claims, whose counts may belong to other parameters than those of the run
COUNTS = "Counts are of runs with the lesson's defaults, except for what stands in parentheses."
# The measures of the small table, those of a run's summary that are among them, with their heads
SHOWN = {
    **{"n_clusters": "clusters", "clustering_round": "since round", "ari": "ARI"},
    **{"accuracy": "accuracy", "accuracy_in-cluster": "accuracy", "communities": "communities"},
    **{"accuracy_start": "at the start", "wrong": "wrong", "insertion_in-cluster": "insertion"},
    **{"deletion_in-cluster": "deletion", "diverged_in": "diverged in round"},
}


class Rounds:
    """A stream that shows a kernel's messages, but of its rounds one line that changes.

    Where lines stay, as in a file, and if it is verbose, it shows all of them.
    """

    def __init__(self, stream: TextIO, verbose: bool = False) -> None:
        self.stream, self.changing = stream, False
        self.one_line = stream.isatty() and not verbose

    def write(self, text: str) -> None:
        """Write whole lines, or a bar as it is."""
        if not self.one_line or "\r" in text:
            self.stream.write(text)
            return
        for line in text.splitlines():
            if ROUND.match(line):
                self.stream.write(f"\r\x1b[2K{line.partition(';')[0]}")
                self.changing = True
            else:
                self.end()
                self.stream.write(f"{line}\n")

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()

    def end(self) -> None:
        """Remove the line that changes, if there is one."""
        if self.changing:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()
        self.changing = False


def heading(prose: str) -> str:
    """Return the title of a notebook, and the minutes that it takes with its defaults."""
    title, minutes = TITLE.search(prose), MINUTES.search(prose)
    about = f" (about {minutes[2]} minutes on two cores with its defaults)" if minutes else ""
    return f"{title[1] if title else 'a notebook'}{about}"


def brief(cells: Sequence[Any], record: Record | None, notebook: Path, output: Path) -> str:
    """Tell what came of a run in few lines: its results, where all of it lies, and what is next."""
    claims, results = of_cells(cells), "".join(printed(cells)).splitlines()
    figures = [line for line in results if line.startswith("figure ")]
    if record is None:
        lines = [line for line in results if line not in figures]
        lines += [f"{'true ' if holds else 'FALSE'}  {claim}" for claim, holds in claims.items()]
    else:
        lines = [*story(record), ""]
        if claims:
            held = sum(claims.values())
            count = f"{held} of {len(claims)} claims of the notebook are true in this run"
            lines.append(f"claims    {count} (--verbose lists them)")
    lines += figures
    lines += [f"record    {records.display_path(record.folder)}"] if record else []
    lines.append(f"notebook  {records.display_path(output)}")
    return "\n".join([*lines, *following(record, notebook)])


def story(record: Record) -> Iterator[str]:
    """Yield what was run, and its methods in a small table, the most accurate first."""
    parameters, provenance, count = record.parameters, record.provenance, len(record.summary)
    on = f" on {parameters['dataset']}" if "dataset" in parameters else ""
    sizes = [f"{parameters[n]} {n}" for n in ("clients", "rounds") if parameters.get(n)]
    yield (
        f"{count} method{'s' * (count > 1)}{on}: {', '.join(sizes)}. There were "
        f"{provenance['trainings_requested']:,} requests for local trainings, of which "
        f"{provenance['trainings_run']:,} were distinct and run. "
        f"{provenance['minutes']:.1f} minutes"
    )
    yield ""
    usual = {n: m for n, m in record.summary.items() if not n.endswith(AS_PUBLISHED)}
    usual = usual or record.summary  # a method can be asked for as published alone
    names = [name for name in SHOWN if any(m.get(name) is not None for m in usual.values())]
    best = sorted(usual.items(), key=lambda pair: -(pair[1].get("accuracy") or 0))
    rows = [{"method": name} | {SHOWN[n]: text(v.get(n)) for n in names} for name, v in best]
    yield fitted(rows)
    if "ari" in names:
        yield "ARI 1: the true groups. Accuracy: on each client's own test set."
    if len(usual) < len(record.summary):
        yield f"The {len(record.summary) - len(usual)} as published are in the record."


def text(value: float | int | None) -> str:
    """Format a measure: a dash for none, and two digits of what is no whole number."""
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else f"{value}"


def following(record: Record | None, notebook: Path) -> Iterator[str]:
    """Yield what a reader may do next."""
    is_ours = Path(sys.executable).is_relative_to(PROJECT)  # the environment that `make` has made
    kit = f"{records.display_path(Path(sys.executable)) if is_ours else 'python'} -m cflkit"
    number = notebook.stem.partition("_")[0] if notebook.parent == KIT / "notebooks" else notebook
    steps = {f"{kit} run {number} --list": "what you can change, as in -p seed 1"}
    if record is not None:
        steps[f"{kit} records {record.id.rpartition('-')[2]}"] = "all that the run measured"
    if IS_CLONE:
        steps["make lab"] = "the lessons; begin at 00"
    for before, (step, what) in zip(["next", *[""] * 2], steps.items(), strict=False):
        yield f"{before:8s}  {step:{max(map(len, steps))}s}  {what}"


def report_of(cells: Sequence[Any]) -> str:
    """Return what the cells tagged ``report`` printed, and the claims that cells made."""
    shown = [item["data"] for cell in cells for item in cell.get("outputs", ()) if "data" in item]
    claims = [f"{data['text/plain']}\n\n{COUNTS}\n" for data in shown if MIME in data]
    return "\n".join([*printed(cells), *claims])


def printed(cells: Sequence[Any]) -> list[str]:
    """Return what the cells tagged ``report`` printed, cell by cell."""
    reporting = [cell for cell in cells if "report" in cell.metadata.get("tags", [])]
    outputs = [item for cell in reporting for item in cell.get("outputs", ())]
    return [item["text"] for item in outputs if item.get("name") == "stdout"]
