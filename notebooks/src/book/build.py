"""Build the book: the committed notebooks and pages as a static site. Nothing is executed.

``make book`` copies the pages into ``data/cache/book``, and Sphinx writes the site to
``data/runs/book``, or to a new folder that is given. The copies differ from the pages in three
ways. Links to parts of a page become HTML, since their targets are. Each figure gets its
alternative text. If ``CFLKIT_REPOSITORY`` names the public address of the project, links to files
that are no pages lead there, notebooks have links that run them, and the site's folder ``colab``
has copies for Colab. The page that trains, ``play.html``, joins the site as it is. So do a page
to hand out and slides of each lesson, which ``handouts.py`` makes.
"""

import argparse
import itertools
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import handouts
import launch
import ledger_page
import quiz_page
from sphinx.cmd.build import build_main

import cflkit
from cflkit import _project
from cflkit.reproduce.records import PROJECT

sys.path.append(str(Path(__file__).parent.parent))

import keep

HERE = Path(__file__).parent
STAGE = PROJECT / "data" / "cache" / "book"
BOOK = PROJECT / "data" / "runs" / "book"
PLAY = Path("notebooks/play.html")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/published/README.md")
KEPT = """# Runs, executed

These notebooks were executed with the parameters of a paper's run, and kept as they ended.
`make full` makes the runs again that fit the machine, and compares what came out: the clusters
exactly, and scores within a tolerance that stands there. `python notebooks/src/keep.py NOTEBOOK`
runs a notebook, and leaves such a one beside its record.

| run | minutes of one core, or of the GPU | GiB of memory | device |
|---|--:|--:|---|"""
REPOSITORY = os.environ.get("CFLKIT_REPOSITORY", "").rstrip("/")
COMMIT = _project.state()[0] or "main"
# What the book has as a page, and where it is
ONLY_HERE = {
    Path("data/ledger.csv"): "ledger.html",
    Path("notebooks/src/book/handouts.py"): "handouts.html",
}
# What is mended in each page of the theme: names that screen readers miss, a landmark, and a script
# of 1.5 MB that draws icons, for which the theme has a font as well
MENDED = (
    (r"<summary>(?=<span class=.toctree)", '<summary aria-label="Pages of this part">'),
    (r'(?<=title="Search") aria-label="Search"', ""),
    (r'(?<=id="pst-primary-sidebar")', ' role="complementary" aria-label="All pages"'),
    (r'<script defer src="[^"]*/fontawesome\.js[^"]*"></script>', ""),
)
# Modules without a reference: the commands, and the solutions of the exercises
HIDDEN = re.compile(r"cflkit\.(__main__|exercises\.)")


def committed(*patterns: str) -> list[Path]:
    """Return the committed files that match, relative to the project."""
    command = ["git", "ls-files", "--", *(f":(glob){pattern}" for pattern in patterns)]
    listed = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    return [Path(line) for line in listed.stdout.splitlines()]


def main(site: Path) -> int:
    """Copy all pages, and build the site."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    folders = ("notebooks", "notebooks/exercises", "notebooks/full")
    pages = committed(*(f"{folder}/*.ipynb" for folder in folders), "notebooks/**/*.md")
    pages = [page for page in pages if "src" not in page.parts] + [Path(name) for name in PAGES]
    for page in pages:
        text = (PROJECT / page).read_text(encoding="utf-8")
        if page.suffix == ".ipynb":
            text = json.dumps(as_page(json.loads(text), page, set(pages)))
        else:
            text = with_links(text, page, set(pages))
        write(STAGE / page, text)
    for picture in committed("figures/*.png", "figures/*.svg", "figures/*.gif"):
        (STAGE / picture).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / picture, STAGE / picture)
    shutil.copy(PROJECT / "CITATION.cff", STAGE)  # the home page offers it
    for name in ("index.md", "ledger.md", "ledger.html"):
        shutil.copy(HERE / name, STAGE)
    write(STAGE / "notebooks" / "full.md", kept_page(pages))
    write(STAGE / "notebooks" / "quizzes.md", quiz_page.page())
    lessons = sorted(PROJECT.glob("notebooks/[01][0-9]_*.ipynb"))
    write(STAGE / "handouts.md", handouts.write(lessons, site))
    write_reference(STAGE / "api")
    trees = PROJECT / "data" / "cache" / "book-trees"
    options = ["-b", "html", "-q", "-j", "2", "-c", str(HERE), "-d", str(trees)]
    failed = build_main([*options, str(STAGE), str(site)])
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for found, better in MENDED:
            text = re.sub(found, better, text)
        write(path, text)
    write(site / "ledger_data.js", ledger_page.script())
    write(site / PLAY, playing((PROJECT / PLAY).read_text(encoding="utf-8")))
    quiz_page.write_moodle(site / "quizzes")
    for page in pages if REPOSITORY else []:
        if page.suffix == ".ipynb":
            notebook = json.loads((PROJECT / page).read_text(encoding="utf-8"))
            copy = launch.for_colab(notebook, page, REPOSITORY, COMMIT)
            write(site / "colab" / page.name, json.dumps(copy, indent=1))
    return failed


def playing(page: str) -> str:
    """Return the page that trains as a page of the book, where the lessons are pages, too."""
    page = re.sub(r"<!-- as a file -->.*?<!-- end -->", "", page, flags=re.S)
    page = re.sub(r'href="#lessons" data-page="([^"]*)"', r'href="\1.html"', page)
    home = '<nav class="home">'
    return page.replace(home, f'{home}<a href="../index.html">The book</a> · ')


def write(path: Path, text: str) -> None:
    """Write a file, and its folder before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def kept_page(pages: list[Path]) -> str:
    """Write the list of the kept notebooks, with what each needs."""
    listed = [one for one in keep.listed() if one.path.relative_to(PROJECT) in pages]
    rows = [
        f"| [{one.path.stem}](full/{one.path.name}) "
        f"| {one.minutes} | {one.memory_gib} | {one.device} |"
        for one in listed
    ]
    return "\n".join([KEPT, *rows, ""])


def one_figure_each(cells: list[dict]) -> Iterator[dict]:
    """Give each further figure of a cell a cell of its own, as MyST-NB knows one text per cell."""
    for cell in cells:
        outputs = cell.get("outputs", [])
        figures = [at for at, output in enumerate(outputs) if "image/png" in output.get("data", {})]
        ends = [*figures[1:], len(outputs)]
        yield cell | ({"outputs": outputs[: ends[0]]} if outputs else {})
        for number, (start, end) in enumerate(itertools.pairwise(ends), 1):
            hidden = {"id": f"{cell['id']}-{number}", "metadata": {"tags": ["remove-input"]}}
            yield cell | hidden | {"source": "", "outputs": outputs[start:end]}


def as_page(notebook: dict, page: Path, pages: set[Path]) -> dict:
    """Change a notebook's links and figures for the book, and add links that run it."""
    notebook["cells"] = list(one_figure_each(notebook["cells"]))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = with_links("".join(cell["source"]), page, pages)
        for output in cell.get("outputs", []):
            data, facts = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
            if "text/markdown" in data:
                data["text/markdown"] = with_links("".join(data["text/markdown"]), page, pages)
            if "alt" in facts:  # MyST-NB looks for the text of a figure in its cell
                image = {"alt": facts["alt"], "width": f"{facts['width']}px"}
                cell["metadata"]["mystnb"] = {"image": image}
    if REPOSITORY:
        told = launch.links(page, REPOSITORY, COMMIT)
        cell = {"cell_type": "markdown", "id": "run-it", "metadata": {}, "source": told}
        notebook["cells"].insert(1, cell)
    return notebook


def with_links(text: str, page: Path, pages: set[Path]) -> str:
    """Change the links of a page that Sphinx would not understand."""

    def changed(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, _, part = target.partition("#")
        if mark or "://" in target or target.startswith("mailto:"):
            return match[0]
        if not path:
            return f'<a href="#{part}">{words}</a>'
        full = Path(os.path.normpath(page.parent / path))
        if full == PLAY:
            return f'<a href="{path}">{words}</a>'
        if full in ONLY_HERE:
            return f'<a href="{os.path.relpath(ONLY_HERE[full], page.parent)}">{words}</a>'
        if full not in pages:
            return f"[{words}]({REPOSITORY}/blob/{COMMIT}/{full})" if REPOSITORY else words
        if not part:
            return match[0]
        return f'<a href="{Path(path).with_suffix(".html")}#{part}">{words}</a>'

    return launch.LINK.sub(changed, text)


def write_reference(folder: Path) -> None:
    """Write one page per module, from its docstrings, and their list."""
    folder.mkdir()
    found = (module.name for module in pkgutil.walk_packages(cflkit.__path__, "cflkit."))
    names = ["cflkit", *sorted(name for name in found if not HIDDEN.match(name))]
    for name in names:
        title = f"# {name}\n\n"
        (folder / f"{name}.md").write_text(
            f"{title}```{{eval-rst}}\n.. automodule:: {name}\n```\n", encoding="utf-8"
        )
    listed = "\n".join(names)
    (folder / "index.md").write_text(
        f"# Reference\n\nAll modules.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", nargs="?", type=Path, help="a new folder, not data/runs/book")
    given = parser.parse_args().site
    if given is not None and given.exists():
        parser.error(f"{given} already exists")
    sys.exit(main(given or BOOK))
