"""What must hold of every notebook, without running it (nbval runs them).

``python tests/lint_notebooks.py`` prints one line per fault, and fails if there is one. The
notebooks are read as they are staged or committed: what a reader does to a lesson is no fault.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from staged import committed

from cflkit import _project
from cflkit.course.versions import METADATA
from cflkit.reproduce import claims, papers
from cflkit.reproduce.records import PROJECT

FOLDER = PROJECT / "notebooks"
NAMES = sorted(path.stem for path in (FOLDER / "src").glob("[0-9]*.py"))
# Appendices have the number of their lesson and a letter: what only those who doubt it need
APPENDICES = [name for name in NAMES if name[2] != "_"]
CHAPTERS = [name for name in NAMES if name not in APPENDICES]
RECORDED = {paper.notebook for paper in papers.PAPERS.values()}
# How a lesson opens and closes
PARTS = (
    r"^# .",
    r"^\*\*Question\.\*\*",
    r"^\*\*You will\*\*\n\n- ",
    r"^\*\*Before this:\*\*",
    r"\*\*Study minutes:\*\* \d",
    r"\*\*Minutes on two cores:\*\* \d",
    r"^## Exercises",
    r"^## What we saw",
    r"^## References",
)


class Page:
    """A notebook with its cells by kind."""

    def __init__(self, name: str, file: str = "") -> None:
        self.name, self.file = name, file or committed(f"notebooks/{name}.ipynb")
        self.tree = nbformat.v4.reads(self.file)
        self.cells = self.tree.cells
        self.code = [cell for cell in self.cells if cell.cell_type == "code"]
        self.prose = [cell.source for cell in self.cells if cell.cell_type == "markdown"]
        self.text = "\n".join(self.prose)
        self.is_appendix = name in APPENDICES
        self.is_lesson = name < "90" and not self.is_appendix
        self.is_report = bool(re.match("9[0-8]", name))

    def tagged(self, tag: str) -> list[nbformat.NotebookNode]:
        """Return the code cells with a tag."""
        return [cell for cell in self.code if tag in tags(cell)]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    """Return the tags of a cell."""
    return cell.metadata.get("tags", [])


# --- Checks: each yields what is wrong ------------------------------------------------------------


def source(own: Page) -> Iterator[str]:
    """Compare a notebook with its source."""
    written = jupytext.reads(committed(f"notebooks/src/{own.name}.py"), fmt="py:percent")
    pairs = ([(c.cell_type, c.source, tags(c)) for c in one.cells] for one in (own, written))
    if next(pairs) != next(pairs):
        yield "differs from its source: build it"


def metadata(own: Page) -> Iterator[str]:
    """Look for metadata that differs from notebook to notebook."""
    if own.tree.metadata != METADATA:
        yield f"has the metadata {own.tree.metadata}: build it"
    if (own.tree.nbformat, own.tree.nbformat_minor) != (4, 5):
        yield "has another format than 4.5"
    if found := re.search(r"/(home|root|work|tmp|Users)/", own.file):
        yield f"has a path of a machine: {found[0]}…"


def execution(own: Page) -> Iterator[str]:
    """Look for cells that were not run in order, or failed."""
    if [cell.execution_count for cell in own.code] != list(range(1, len(own.code) + 1)):
        yield "was not run in order"
    for output in (output for cell in own.code for output in cell.outputs):
        if output.output_type == "error" or output.get("name") == "stderr":
            yield f"has an error or a warning: {str(output)[:80]}"
    if not own.name.startswith("99") and not own.tagged("nbval-check-output"):
        yield "has no output to compare"
    if any(not cell.outputs for cell in own.tagged("nbval-check-output")):
        yield "has a cell to compare without output"
    for cell in own.code if own.is_lesson else ():
        printed = any(output.get("name") == "stdout" for output in cell.outputs)
        if printed and not {"nbval-check-output", "nbval-ignore-output"} & set(tags(cell)):
            yield f"prints what nbval does not compare: {cell.source[:60]!r}"


def parameters(own: Page) -> Iterator[str]:
    """Check that parameters are literals with their meaning, which the next cell validates."""
    if not (own.is_lesson or own.is_appendix or own.is_report):
        return
    places = [i for i, cell in enumerate(own.code) if "parameters" in tags(cell)]
    if len(places) != 1:
        yield f"has {len(places)} cells of parameters"
        return
    sources = [*(cell.source for cell in own.code), "nothing"]
    cell, following = sources[places[0] : places[0] + 2]
    for line in cell.splitlines():
        if "  # " not in line:
            yield f"does not say what a parameter means: {line}"
    model = papers.parameters_of(own.name) or papers.Parameters  # which no notebook has
    home = model.__module__.removeprefix("cflkit.reproduce.")
    if f" = {home}.{model.__name__}.of(globals())\n" not in f"{following}\n":
        yield "does not validate its parameters in the next cell, with its model of `papers`"


def form(own: Page) -> Iterator[str]:
    """Check how a lesson opens and closes."""
    if own.is_lesson:
        yield from (f"has no {part}" for part in PARTS if not re.search(part, own.text, re.M))


def links(own: Page) -> Iterator[str]:
    """Check that links lead somewhere, also to the pages before and after."""
    for path in re.findall(r"\]\((?!http)([^)#\s]+)", own.text):
        if not (FOLDER / path).exists():
            yield f"has a link to {path}, which is not there"
    # JupyterLab and GitHub give headings other ids, so that a place that is linked names its own
    for path, place in re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", own.text):
        target = committed(f"notebooks/{path}") if path else own.text
        if not re.search(rf'<a id=\\?"{re.escape(place)}\\?"></a>', target):
            yield f"has a link to {path}#{place}, but there is no <a id> of this name"
    if "![](" in own.text:
        yield "has a picture without an alternative text"
    if own.is_appendix:
        neighbours = [name for name in CHAPTERS if name[:2] == own.name[:2]]
    else:
        place = CHAPTERS.index(own.name)
        neighbours = CHAPTERS[max(place - 1, 0) : place] + CHAPTERS[place + 1 : place + 2]
    missing = [name for name in neighbours if f"]({name}.ipynb" not in own.prose[-1]]
    yield from (f"has no link to {name} at its end" for name in missing)
    if own.name == NAMES[0]:
        missing = [name for name in CHAPTERS[1:] if f"]({name}.ipynb) |" not in own.text]
        yield from (f"has no {name} on its map" for name in missing)


def claimed(own: Page) -> Iterator[str]:
    """Check that claims are true, counted over seeds, and say if they only usually hold."""
    if not (own.is_lesson or own.is_appendix):
        return
    stated = claims.of_cells(cells := own.tagged("claims"))
    if len(cells) != 1 or not stated:
        yield f"has {len(cells)} cells of claims, and {len(stated)} claims"
    rows = [row for row in claims.counts() if row["notebook"] == own.name]
    for claim, holds in stated.items():
        by = {row["setting"]: row for row in rows if row["claim"] == claim}
        runs = {setting: int(row["runs"]) for setting, row in by.items()}
        other = max((runs.get(setting, 0) for setting in ("stacked", "threads")), default=0)
        if not holds:
            yield f"has a claim that is wrong: {claim}"
        if runs.get("default", 0) < 20 or other < 5 or runs.get("perturbed", 0) < 5:
            yield f"has a claim that was not counted: {claim}"
        elif int(by["default"]["held"]) < 19 and not re.search("usually|often", claim):
            yield f"has a claim that only usually holds: {claim}"


def sizes(own: Page) -> Iterator[str]:
    """Check the lengths of the file, of cells of code, and of what stands between them."""
    if len(own.file.encode()) >= 300_000:
        yield "is larger than 300 kB"
    # Of a report, also the cells that only draw are read
    passed = {"claims", "parameters"} | (set() if own.is_report else {"hide-input"})
    longest = max(map(len, visible(own, passed)), default=0)
    if longest > (most := 25 if own.is_appendix else 15):
        yield f"has a cell of {longest} lines of code, more than {most}"
    kinds = "".join("c" if c.cell_type == "code" else "m" for c in own.cells)
    if "cccc" in kinds or kinds.count("m") < 0.5 * kinds.count("c"):
        yield "has too little prose between cells of code"


def visible(own: Page, passed: set[str]) -> list[list[str]]:
    """Return the lines of the cells that have none of some tags."""
    cells = [cell.source.split("\n") for cell in own.code if not passed & set(tags(cell))]
    return [[line for line in lines if line.strip()] for lines in cells]


# What a lesson may have at most; what is longer belongs into its appendix
BOUNDS = {"words of prose": 1600, "visible lines of code": 150, "figures": 5, "parameters": 6}


def measures(own: Page) -> list[int]:
    """Count what `BOUNDS` bounds in a lesson, without its exercises and references."""
    text = own.text.split("## Exercises")[0]
    text = re.sub(r"\$\$.*?\$\$|<[^>]*>", " ", text, flags=re.S)
    text = re.sub(r"^ *(\||#|!\[).*$|\]\([^)]*\)", " ", text, flags=re.M)
    outputs = [output for cell in own.code for output in cell.outputs]
    return [
        len(re.findall(r"\w[\w'-]*", text)),
        sum(map(len, visible(own, {"hide-input", "claims", "parameters"}))),
        sum("image/png" in output.get("data", {}) for output in outputs),
        sum(len(cell.source.split("\n")) for cell in own.tagged("parameters")),
    ]


def model(own: Page) -> Iterator[str]:
    """Check that a lesson is short, and how long it takes.

    A student reads 140 words a minute, a line of code in 5 seconds, and a figure in a minute.
    """
    if own.is_lesson:
        words, lines, figures, _ = found = measures(own)
        for (what, most), number in zip(BOUNDS.items(), found, strict=True):
            if number > most:
                yield f"has {number} {what}, more than {most}"
        minutes = round(words / 140 + lines * 5 / 60 + figures)
        if f"**Study minutes:** {minutes}." not in own.prose[0]:
            yield f"takes {minutes} study minutes, and states others"


def outputs(own: Page) -> Iterator[str]:
    """Check that figures have numbers, captions and alternative texts, and that text fits."""
    number = 0
    for cell in own.code:
        for place, output in enumerate(cell.outputs):
            data = output.get("data", {})
            text = "".join(output.get("text", "") or data.get("text/plain", ""))
            if "image/png" in data:
                number += 1
                about = output.metadata["image/png"]
                after = cell.outputs[place + 1 : place + 2]
                caption = "".join(after[0]["data"]["text/markdown"]) if after else ""
                if about["width"] > 800 or len(about["alt"]) < 30:
                    yield f"has a figure {number} that is too wide or without alternative text"
                if not caption.startswith(f"**Figure {number}.** "):
                    yield f"has a figure {number} without its number and caption"
            elif "text/html" not in data and max(map(len, text.split("\n")), default=0) > 100:
                yield f"has output wider than the column: {text[:60]}…"


def recorded(own: Page) -> Iterator[str]:
    """Look for names that the cells of a record use and do not define, which ruff finds."""
    if own.name in RECORDED:
        cells = [cell for cell in own.code if {"parameters", "record"} & set(tags(cell))]
        text = "\n".join(cell.source for cell in cells)
        if "records.write(" not in text:
            yield "writes no record"
        ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
        done = subprocess.run(ruff, input=text, capture_output=True, text=True)
        yield from re.findall("^F821.*", done.stdout, re.M)


CHECKS = source, metadata, execution, parameters, form, links, claimed, sizes, model, outputs
CHECKS += (recorded,)


def faults(own: Page) -> list[str]:
    """Return all that is wrong with a notebook."""
    return [f"{own.name} {fault}" for check in CHECKS for fault in check(own)]


# --- All notebooks -------------------------------------------------------------------------------


def without_source() -> list[str]:
    """Return the faults of the list of notebooks, if there is git.

    A notebook whose name does not begin with a number is a reader's own.
    """
    known = _project.git("ls-files", ":(glob)notebooks/[0-9]*.ipynb")
    listed = set(NAMES) if known is None else {Path(line).stem for line in known.splitlines()}
    return [f"{name} has a source or a notebook alone" for name in listed ^ set(NAMES)]


def main() -> int:
    """Print the faults of all notebooks."""
    found = [fault for name in NAMES for fault in faults(Page(name))] + without_source()
    for fault in found:
        print(fault)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
