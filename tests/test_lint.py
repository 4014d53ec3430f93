"""The linter of notebooks finds what it looks for."""

import copy

import nbformat
import pytest
from lint_notebooks import Page, faults, page


def replaced(old, new):
    """Change the text of all cells."""

    def spoil(cells):
        for cell in cells:
            cell.source = cell.source.replace(old, new)

    return spoil


def of_tag(tag, change):
    """Change the first cell with a tag."""
    return lambda cells: change(
        next(cell for cell in cells if tag in cell.metadata.get("tags", []))
    )


def first_figure(change):
    """Change the first output that is a figure."""
    return lambda cells: change(
        next(o for c in cells for o in c.get("outputs", ()) if "image/png" in o.get("data", {}))
    )


def wrong_claim(cell):
    [data] = [output.data for output in cell.outputs]
    [mime] = [name for name in data if "claims" in name]
    data[mime][0][1] = False


def stderr(cell):
    cell.outputs.append(nbformat.v4.new_output("stream", name="stderr", text="UserWarning"))


def longer(cell):
    cell.update(source=cell.source + "\nx = 1  # y" * 30)


def untagged(cell):
    cell.metadata.tags.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (replaced("temperature", "heat"), "differs from its source"),
        (of_tag("nbval-check-output", stderr), "has an error or a warning"),
        (
            of_tag("nbval-check-output", lambda cell: cell.update(execution_count=0)),
            "was not run in order",
        ),
        (of_tag("nbval-check-output", untagged), "prints what nbval does not compare"),
        (of_tag("parameters", untagged), "has 0 cells of parameters"),
        (of_tag("parameters", longer), "parameters, more than 6"),
        (replaced("  # ", " # "), "does not say what a parameter means"),
        (replaced("**Question.**", "Question:"), "has no ^\\*\\*Question"),
        (replaced("04_sattler_and_briggs.ipynb", "04_gone.ipynb"), "which is not there"),
        (replaced("](04_sattler_and_briggs.ipynb", "](../README.md"), "has no link to 04_"),
        (of_tag("claims", wrong_claim), "has a claim that is wrong"),
        (of_tag("nbval-check-output", longer), "lines of code, more than 15"),
        (replaced("## What we saw", "word " * 2000 + "## What we saw"), "words of prose, more"),
        (replaced("## What we saw", "![](x.png)"), "a picture without an alternative text"),
        (first_figure(lambda o: o.metadata["image/png"].update(width=900)), "1 that is too wide"),
        (first_figure(lambda o: o.data.update({"image/svg+xml": "<svg/>"})), "a figure as SVG"),
    ],
)
def test_a_fault_is_found(spoil, fault):
    lesson = page("03_ocfl_temperature")
    assert not any(fault in found for found in faults(lesson))
    tree = copy.deepcopy(lesson.tree)
    spoil(tree.cells)
    assert any(fault in found for found in faults(Page(lesson.name, tree)))
