"""Build the book: the committed notebooks and pages as a static site. Nothing is executed.

``make book`` copies the pages into ``data/cache/book``, and Sphinx writes the site to
``data/runs/book``. The copies differ from the pages in three ways. Links to parts of a page become
HTML, since their targets are. Links to files that are no pages lead to the public address of the
project, if ``CFLKIT_REPOSITORY`` names one. And each figure gets its alternative text.
"""

import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

import cflkit
from cflkit.records import PROJECT

HERE = Path(__file__).parent
STAGE = PROJECT / "data" / "cache" / "book"
BOOK = PROJECT / "data" / "runs" / "book"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/published/README.md")
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
# Modules without a reference: the commands, and the solutions of the exercises
HIDDEN = re.compile(r"cflkit\.(__main__|exercises\.|flower\.app)")


def committed(*patterns: str) -> list[Path]:
    """Return the committed files that match, relative to the project."""
    command = ["git", "ls-files", "--", *(f":(glob){pattern}" for pattern in patterns)]
    listed = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    return [Path(line) for line in listed.stdout.splitlines()]


def main() -> int:
    """Copy all pages, and build the site."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.rmtree(BOOK, ignore_errors=True)
    pages = committed("notebooks/*.ipynb", "notebooks/exercises/*.ipynb", "notebooks/**/*.md")
    pages = [page for page in pages if ".src" not in page.parts] + [Path(name) for name in PAGES]
    for page in pages:
        target = STAGE / page
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (PROJECT / page).read_text(encoding="utf-8")
        if page.suffix == ".ipynb":
            notebook = with_alternative_texts(json.loads(text))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = with_links("".join(cell["source"]), page, set(pages))
                for data in (output.get("data", {}) for output in cell.get("outputs", [])):
                    if "text/markdown" in data:
                        told = "".join(data["text/markdown"])
                        data["text/markdown"] = with_links(told, page, set(pages))
            text = json.dumps(notebook)
        else:
            text = with_links(text, page, set(pages))
        target.write_text(text, encoding="utf-8")
    for picture in committed("figures/*.png", "figures/*.svg"):
        (STAGE / picture).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / picture, STAGE / picture)
    shutil.copy(PROJECT / "CITATION.cff", STAGE)
    shutil.copy(HERE / "index.md", STAGE)
    write_reference(STAGE / "api")
    trees = PROJECT / "data" / "cache" / "book-trees"
    options = ["-b", "html", "-q", "-j", "2", "-c", str(HERE), "-d", str(trees)]
    return build_main([*options, str(STAGE), str(BOOK)])


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
        if full not in pages:
            repository = os.environ.get("CFLKIT_REPOSITORY", "")
            return f"[{words}]({repository}/blob/main/{full})" if repository else words
        if not part:
            return match[0]
        return f'<a href="{Path(path).with_suffix(".html")}#{part}">{words}</a>'

    return LINK.sub(changed, text)


def with_alternative_texts(notebook: dict) -> dict:
    """Move the text of each figure from its output to its cell, where MyST-NB looks for it."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            facts = output.get("metadata", {}).get("image/png", {})
            if "alt" in facts:
                image = {"alt": facts["alt"], "width": f"{facts['width']}px"}
                cell["metadata"]["mystnb"] = {"image": image}
    return notebook


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
    sys.exit(main())
