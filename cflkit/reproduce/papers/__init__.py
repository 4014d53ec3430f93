"""The papers: one file holds all that the kit knows about one paper.

To add a paper, write its file here and name it in `PAPERS`. It also needs its methods in `methods`,
a notebook, a folder of parameter files under ``notebooks/params``, and its tables under
``data/published``.
"""

from __future__ import annotations

from cflkit.reproduce.papers import emd_cfl, explanations, fedcref, lessons, ocfl, tutorial
from cflkit.reproduce.papers.base import Paper
from cflkit.reproduce.parameters import Parameters

PAPERS: dict[str, Paper] = {
    paper.name: paper
    for module in (ocfl, explanations, emd_cfl, fedcref, tutorial)
    for paper in module.PAPERS
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
