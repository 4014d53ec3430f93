"""What a wheel has beside the package: the README of an index, the lessons and their data.

``cflkit/_data`` in the wheel has files of the clone in the same folders, since the commands find
them there (`cflkit._project.KIT`). Notebooks go without outputs, which are most of their size. If
``CFLKIT_REPOSITORY`` names the public address of the project, links to files that are not in the
wheel lead there, as in the book. Without an address, they become words.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "notebooks" / "src" / "book")]

from launch import with_public_links  # noqa: E402

from cflkit import _project  # noqa: E402

HOME = os.environ.get("CFLKIT_REPOSITORY", "").rstrip("/"), _project.state()[0] or "main"
# What the commands and the lessons read, and what these link to. Of records, only those that
# lessons read; reports need all of them, and are left out
DATA = (
    *("data/*.csv", "data/published/*", "data/results/emd-cfl-pacs-64-*/*"),
    *("data/results/ocfl-bloodmnist-rebuilt-*/*", "figures/*.png", "figures/*.svg"),
    *("figures/[01]*.gif", "notebooks/*.md", "notebooks/[01]*.ipynb", "notebooks/99_*.ipynb"),
    *("notebooks/play.html", "notebooks/exercises/*.ipynb", "notebooks/params/**/*.yaml"),
    *("notebooks/src/exercises/*.py", "notebooks/src/quizzes/*", "notebooks/src/nbgrader_*.py"),
)


class BuildWithData(build_py):
    """Build the package, and copy what is read beside it."""

    def run(self) -> None:
        """Copy the files, unless the package stays in the clone."""
        super().run()
        if self.editable_mode:
            return
        place = Path(self.build_lib, "cflkit", "_data")
        shutil.rmtree(place, ignore_errors=True)
        found = {pattern: sorted(HERE.glob(pattern)) for pattern in DATA}
        if missing := [pattern for pattern, paths in found.items() if not paths]:
            raise SystemExit(f"there is no {missing[0]}: build the wheel from a clone")
        paths = {path.relative_to(HERE) for listed in found.values() for path in listed}
        # What `cflkit lessons` copies, so that links to it work there
        copied = {p for p in paths if p.parts[0] != "data" and p.parts[1] not in ("src", "params")}
        for path in paths:
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in (".ipynb", ".md"):
                text = (HERE / path).read_text(encoding="utf-8")
                target.write_text(without_outputs(text, path, copied), encoding="utf-8")
            else:
                shutil.copy(HERE / path, target)


def without_outputs(text: str, path: Path, paths: set[Path]) -> str:
    """Return a page, or a notebook without its outputs, with links that work beside ``paths``."""
    if path.suffix == ".md":
        return with_public_links(text, path, *HOME, paths)
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = with_public_links("".join(cell["source"]), path, *HOME, paths)
        elif path.parent.name != "exercises":  # whose labs show their symptoms
            cell |= {"outputs": [], "execution_count": None}
    return json.dumps(notebook, ensure_ascii=False, indent=1)


setup(
    cmdclass={"build_py": BuildWithData},
    long_description=with_public_links(
        (HERE / "README.md").read_text(encoding="utf-8"), Path("README.md"), *HOME
    ),
    long_description_content_type="text/markdown",
)
