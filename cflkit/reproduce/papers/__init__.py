"""The papers: one file of this folder holds all that the kit knows about one paper.

A file with a tuple ``PAPERS`` is found by itself. A paper also needs its methods in `methods`, a
notebook, a folder of parameter files under ``notebooks/params``, and its tables under
``data/published``.
"""

from importlib import import_module
from pkgutil import iter_modules

from cflkit.reproduce.papers import lessons
from cflkit.reproduce.papers.base import Paper
from cflkit.reproduce.parameters import Parameters

MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
# By their names, in the order of their lessons
PAPERS: dict[str, Paper] = {
    paper.name: paper
    for paper in sorted(
        (paper for module in MODULES for paper in getattr(module, "PAPERS", ())),
        key=lambda paper: (paper.notebook, paper.name),
    )
}


def by_notebook(notebook: str) -> Paper | None:
    """Find the paper whose runs a notebook makes, by the notebook's name without its extension."""
    return next((paper for paper in PAPERS.values() if paper.notebook == notebook), None)


def by_folder(folder: str) -> Paper | None:
    """Find a paper by its folder, which its records state; of two that share it, the first."""
    return next((paper for paper in PAPERS.values() if paper.folder == folder), None)


def parameters_of(notebook: str) -> type[Parameters] | None:
    """Find the model of a notebook's parameters, by the notebook's name without its extension."""
    paper = by_notebook(notebook)
    return lessons.LESSONS.get(notebook) if paper is None else paper.parameters
