"""Where a notebook runs without an installation: Binder and Colab.

Both need the public address of the project. The workflow that publishes the book knows it, and
passes it on as ``CFLKIT_REPOSITORY``. No file has it.
"""

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

from cflkit._project import PROJECT

# The branch to which the book is published. Colab opens notebooks from a branch only
BRANCH = "gh-pages"
# Colab gets the tested versions of what computes, and keeps those that its own code depends on. Its
# PyTorch fits its GPUs, takes minutes to replace, and is newer than the oldest that the kit takes
COLABS = {"pandas", "torch"}
# What computes, and does not come with the kit alone
MORE = {"captum"}
# Markdown's links and images: a mark for images, the words, and the target
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")

TOLD = """\
The next cell installs the kit, and the versions of packages that it is tested with. This takes some
minutes. If Colab then asks you to restart the session, do so, and go on with the cell after it.
Figures and records are written to the folder `data` of this session."""


def links(page: Path, repository: str, commit: str) -> str:
    """Return Markdown with links that open ``page`` on Binder and, from GitHub, in Colab."""
    binder = f"https://mybinder.org/v2/git/{quote(repository, safe='')}/{commit}"
    places = [f"[on Binder]({binder}?urlpath=lab/tree/{page})"]
    if repository.startswith("https://github.com/"):
        owner_and_name = repository.removeprefix("https://github.com/")
        colab = "https://colab.research.google.com/github"
        places.append(f"[in Colab]({colab}/{owner_and_name}/blob/{BRANCH}/colab/{page.name})")
    return f"Run this notebook {' or '.join(places)}. Nothing needs to be installed."


def with_public_links(
    text: str, page: Path, repository: str, commit: str, beside: Collection[Path] = ()
) -> str:
    """Return Markdown whose links to files lead to the repository, but for those ``beside`` it.

    Without the address of a repository, links become their words, and pictures are left out.
    """

    def public(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        place = os.path.normpath(page.parent / target)
        if re.match(r"\w+:|#", target) or Path(place.partition("#")[0]) in beside:
            return match[0]
        if not repository:
            return "" if mark else words
        return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/{commit}/{place})"

    return LINK.sub(public, text)


def for_colab(notebook: dict, page: Path, repository: str, commit: str) -> dict:
    """Return a copy of a notebook with a first cell that installs the kit, and links that work."""
    cells = [{**cell, "source": "".join(cell["source"])} for cell in notebook["cells"]]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = with_public_links(cell["source"], page, repository, commit)
    installs = {
        "cell_type": "code",
        "id": "colab-installs",
        "metadata": {},
        "source": f"%pip install --quiet {' '.join(pins())} git+{repository}@{commit}",
        "execution_count": None,
        "outputs": [],
    }
    told = {"cell_type": "markdown", "id": "colab-says", "metadata": {}, "source": TOLD}
    return {**notebook, "cells": [told, installs, *cells]}


def pins() -> list[str]:
    """Return the tested versions of the packages that compute, such as ``numpy==2.4.6``."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    needed = (needed | MORE) - COLABS
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    return [line for line in lock.splitlines() if line.partition("==")[0] in needed]
