"""The linter of notebooks finds what it looks for."""

import copy

import nbformat
import pytest
from lint_notebooks import NAMES, Page, faults, page, sentences

LESSON = "03b_ocfl_controls"


@pytest.fixture(scope="module")
def lesson():
    return page(LESSON)


def test_there_are_lessons_and_reports(lesson):
    assert LESSON in NAMES and faults(lesson) == []


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
    cell.update(source=cell.source + "\nx = 1" * 30)
    cell.metadata.tags = []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (replaced("temperature", "heat"), "differs from its source"),
        (of_tag("record", stderr), "has an error or a warning"),
        (of_tag("record", lambda cell: cell.update(execution_count=0)), "was not run in order"),
        (
            of_tag("parameters", lambda cell: cell.metadata.tags.clear()),
            "has 0 cells of parameters",
        ),
        (replaced("  # ", " # "), "does not say what a parameter means"),
        (replaced("04_sattler_and_briggs.ipynb", "04_gone.ipynb"), "which is not there"),
        (of_tag("claims", wrong_claim), "has a claim that is wrong"),
        (of_tag("record", longer), "has long cells of code"),
        (replaced("## What we saw", "## What we saw\n\nMy dear."), "private word 'dear'"),
        (replaced("## What we saw", "It is so. " * 500 + "\n\n## What we saw"), "short sentences"),
        (replaced("## What we saw", "![](x.png)"), "a picture without an alternative text"),
        (replaced("](03_ocfl_temperature.ipynb", "](../README.md"), "has no link to 03_"),
        (first_figure(lambda o: o.metadata["image/png"].update(width=900)), "1 that is too wide"),
        (first_figure(lambda o: o.data.update({"image/svg+xml": "<svg/>"})), "a figure as SVG"),
    ],
)
def test_a_fault_is_found(lesson, spoil, fault):
    tree = copy.deepcopy(lesson.tree)
    spoil(tree.cells)
    assert any(fault in found for found in faults(Page(LESSON, tree)))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (replaced("**Question.**", "Question:"), "has no **Question.**"),
        (replaced("](04_sattler_and_briggs.ipynb", "](../README.md"), "has no link to 04_"),
        (replaced("## What we saw", "word " * 2000 + "## What we saw"), "words of prose, more"),
        (
            of_tag("parameters", lambda cell: cell.update(source=cell.source + "\nx = 1  # y" * 3)),
            "parameters, more than 6",
        ),
    ],
)
def test_a_fault_of_a_short_lesson_is_found(spoil, fault):
    short = page("03_ocfl_temperature")
    assert not any(fault in found for found in faults(short))
    spoil(short.cells)
    assert any(fault in found for found in faults(Page(short.name, short.tree)))


def test_sentences_leave_out_code_and_formulas():
    text = "# Title\n\nThe norm is $x + y$ here. See `a b`.\n\n- One more item here\n\n| a | b |"
    found = [sentence.strip() for sentence in sentences(text)]
    assert found == ["The norm is x here.", "One more item here"]


def test_what_a_lesson_prints_is_compared_unless_it_says_otherwise():
    own = page("11_clients_that_come_and_go")
    cell = own.tagged("nbval-check-output")[0]
    for tags, found in ((["nbval-ignore-output"], False), ([], True)):
        cell.metadata.tags = tags
        told = faults(Page(own.name, own.tree))
        assert any("nbval does not compare" in fault for fault in told) == found
