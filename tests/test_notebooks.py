"""Tests of every notebook that do not run it (nbval runs the notebooks)."""

import re

import jupytext
import nbformat
import pytest

from cflkit import notebooks, papers
from cflkit.records import PROJECT

FOLDER = PROJECT / "notebooks"
NAMES = sorted(path.stem for path in (FOLDER / "src").glob("[0-9]*.py"))
each = pytest.mark.parametrize("name", NAMES)


def built(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def tags(cell):
    return cell.metadata.get("tags", [])


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_has_a_source():
    assert [path.stem for path in sorted(FOLDER.glob("*.ipynb"))] == NAMES


@each
def test_the_first_notebook_has_every_one_on_its_map(name):
    assert f"| `{name}` |" in built("00_start_here").cells[-1].source


@each
def test_source_and_notebook_are_in_sync(name):
    source = jupytext.read(FOLDER / "src" / f"{name}.py")
    assert [(c.cell_type, c.source, tags(c)) for c in built(name).cells] == [
        (c.cell_type, c.source, tags(c)) for c in source.cells
    ]


@each
def test_it_was_run_in_order_and_nothing_failed(name):
    cells = code(built(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@each
def test_compared_cells_have_output_to_compare(name):
    compared = [cell for cell in code(built(name)) if "nbval-check-output" in tags(cell)]
    assert compared
    assert all(cell.outputs for cell in compared)


@each
def test_parameters_are_literals_with_their_meaning_and_validated_next(name):
    notebook = built(name)
    assert notebooks.defaults(notebook)
    cells = code(notebook)
    [position] = [i for i, cell in enumerate(cells) if "parameters" in tags(cell)]
    assert all("  # " in line for line in cells[position].source.splitlines())
    model = papers.parameters_of(name)
    home = model.__module__.removeprefix("cflkit.")
    assert f" = {home}.{model.__name__}.of(globals())\n" in cells[position + 1].source + "\n"
    assert set(notebooks.defaults(notebook)) == set(model.model_fields)


@each
def test_it_opens_and_closes_as_the_others(name):
    text = "\n".join(c.source for c in built(name).cells if c.cell_type == "markdown")
    assert len(re.findall(r"^# ", text, re.M)) == 1
    for part in ("**Question.**", "**You will**", "**Before this:**", "## Exercises"):
        assert part in text, part
    assert re.search(r"\*\*Minutes on two cores:\*\* [\d.]+", text)
    assert "## Summary" in text or "## What we saw" in text
    assert "## References" in text


@each
def test_size_cell_length_and_prose(name):
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    cells = built(name).cells
    lengths = [
        len(c.source.split("\n")) - c.source.count("\n\n")
        for c in cells
        if c.cell_type == "code" and not tags(c)
    ]
    assert sorted(lengths)[len(lengths) // 2] <= 10
    assert max(lengths) <= 25
    kinds = "".join("c" if c.cell_type == "code" else "m" for c in cells)
    assert "cccc" not in kinds
    assert kinds.count("m") >= 0.5 * kinds.count("c")


@each
def test_figures_are_png(name):
    for cell in code(built(name)):
        for output in cell.outputs:
            assert "image/svg+xml" not in output.get("data", {})


@each
def test_no_path_of_a_machine_is_left_in(name):
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
