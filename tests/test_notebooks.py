"""What must hold of every notebook, without running it (nbval runs them).

The notebooks are read as they are staged or committed: what a reader does to a lesson breaks no
test.
"""

import re
import subprocess
import sys

import jupytext
import nbformat
import pytest
import staged

from cflkit.reproduce import claims, notebooks, papers
from cflkit.reproduce.records import PROJECT

FOLDER = PROJECT / "notebooks"
NAMES = sorted(path.stem for path in (FOLDER / "src").glob("[0-9]*.py"))
LESSONS = [name for name in NAMES if name < "90"]
REPORTS = [name for name in NAMES if re.match("9[0-8]", name)]
each = pytest.mark.parametrize("name", NAMES)
each_lesson = pytest.mark.parametrize("name", LESSONS)
each_that_runs = pytest.mark.parametrize("name", [*LESSONS, *REPORTS])

# Sentences longer than this are for readers who read English every day
LONG = 25


def committed(path):
    return staged.committed(f"notebooks/{path}")


def built(name):
    return nbformat.reads(committed(f"{name}.ipynb"), as_version=4)


def tags(cell):
    return cell.metadata.get("tags", [])


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def prose(name):
    return [cell.source for cell in built(name).cells if cell.cell_type == "markdown"]


def sentences(text):
    """The sentences of Markdown prose, without code, formulas, tables and headings."""
    text = text.split("## References")[0]
    text = re.sub(r"\$\$.*?\$\$|```.*?```|<[^>]*>", " ", text, flags=re.S)
    text = re.sub(r"\$[^$]*\$|`[^`]*`", "x", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = [line for line in text.split("\n") if not re.match(r" *(#|\||!|>? *\*\*Paper)", line)]
    text = re.sub(r"^ *(>|[-*]|\d+\.) +", ". ", "\n".join(lines), flags=re.M)
    parts = re.split(r"(?<=[.!?:;])[*)\"]*\s+|\n\n", text)
    return [part for part in parts if len(part.split()) > 2]


def test_every_notebook_has_a_source(repository):
    listed = subprocess.run(
        ["git", "ls-files", ":(glob)notebooks/*.ipynb"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("/")[-1][:-6] for line in sorted(listed.stdout.splitlines())] == NAMES


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_first_notebook_has_every_other_one_on_its_map(name):
    assert f"]({name}.ipynb) |" in "\n".join(prose("00_start_here"))


@each
def test_source_and_notebook_are_in_sync(name):
    source = jupytext.reads(committed(f"src/{name}.py"), fmt="py:percent")
    assert [(c.cell_type, c.source, tags(c)) for c in built(name).cells] == [
        (c.cell_type, c.source, tags(c)) for c in source.cells
    ]


@each
def test_metadata_is_what_jupyterlab_writes(name):
    notebook = built(name)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata["kernelspec"]["display_name"] == "Python 3 (ipykernel)"
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)


@each
def test_it_was_run_in_order_and_nothing_failed(name):
    cells = code(built(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@each_that_runs
def test_compared_cells_have_output_to_compare(name):
    compared = [cell for cell in code(built(name)) if "nbval-check-output" in tags(cell)]
    assert compared
    assert all(cell.outputs for cell in compared)


@each_that_runs
def test_parameters_are_literals_with_their_meaning_and_validated_next(name):
    notebook = built(name)
    assert notebooks.defaults(notebook)
    cells = code(notebook)
    [position] = [i for i, cell in enumerate(cells) if "parameters" in tags(cell)]
    assert all("  # " in line for line in cells[position].source.splitlines())
    model = papers.parameters_of(name)
    home = model.__module__.removeprefix("cflkit.reproduce.")
    assert f" = {home}.{model.__name__}.of(globals())\n" in cells[position + 1].source + "\n"
    assert set(notebooks.defaults(notebook)) == set(model.model_fields)


@each_lesson
def test_a_lesson_opens_and_closes_as_the_others(name):
    cells = prose(name)
    text = "\n".join(cells)
    assert len(re.findall(r"^# ", text, re.M)) == 1
    for part in ("**Question.**", "**You will**", "**Before this:**", "## Exercises"):
        assert part in text, part
    assert re.search(r"\*\*You will\*\*\n\n- ", cells[0]), "objectives are a list"
    assert re.search(r"\*\*Study minutes:\*\* \d+", cells[0])
    assert re.search(r"\*\*Minutes on two cores:\*\* [\d.]+", cells[0])
    assert "## What we saw" in text
    assert "## References" in text


@each
def test_links_lead_somewhere(name):
    text = "\n".join(prose(name))
    for path in re.findall(r"\]\((?!http)([^)#\s]+)", text):
        assert (FOLDER / path).exists(), path
    # Notebooks that are named are linked
    assert not re.findall(r"(?<!\[)`\d\d_\w+`(?!\])", text)
    place = NAMES.index(name)
    last = prose(name)[-1]
    for neighbour in NAMES[max(place - 1, 0) : place] + NAMES[place + 1 : place + 2]:
        assert f"]({neighbour}.ipynb" in last, f"previous or next: {neighbour}"


def claims_of(name):
    """The claims in the output of a lesson's one cell of claims, by sentence."""
    [cell] = [cell for cell in code(built(name)) if "claims" in tags(cell)]
    [output] = cell.outputs
    return dict(output["data"][claims.MIME])


@each_lesson
def test_the_claims_of_a_lesson_are_true(name):
    found = claims_of(name)
    assert found
    assert [claim for claim, holds in found.items() if not holds] == []


@each_lesson
def test_claims_were_measured_and_say_if_they_usually_hold(name):
    rows = [row for row in claims.table() if row["notebook"] == name]
    for claim in claims_of(name):
        by = {row["setting"]: row for row in rows if row["claim"] == claim}
        assert int(by["default"]["runs"]) >= 20, claim
        assert max(int(by[s]["runs"]) for s in {"stacked", "threads"} & set(by)) >= 5, claim
        assert int(by["perturbed"]["runs"]) >= 5, claim
        if int(by["default"]["held"]) < 19:
            assert "usually" in claim.lower(), claim


@pytest.mark.parametrize("name", sorted({paper.notebook for paper in papers.PAPERS.values()}))
def test_the_cells_of_a_record_need_no_others(name, tmp_path):
    cells = [c for c in code(built(name)) if {"parameters", "record"} & set(tags(c))]
    path = tmp_path / "record.py"
    path.write_text("\n".join(cell.source for cell in cells), encoding="utf-8")
    assert "records.write(" in path.read_text(encoding="utf-8")
    undefined = ["ruff", "check", "--isolated", "--select", "F821", str(path)]
    done = subprocess.run([sys.executable, "-m", *undefined], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@each
def test_size_cell_length_and_prose(name):
    assert len(committed(f"{name}.ipynb").encode()) < 300_000
    cells = built(name).cells
    counted = {"nbval-check-output", "record"} | ({"hide-input"} if name in REPORTS else set())
    lengths = [
        len(c.source.split("\n")) - c.source.count("\n\n")
        for c in cells
        if c.cell_type == "code" and not set(tags(c)) - counted
    ]
    if lengths:
        assert sorted(lengths)[len(lengths) // 2] <= 10
        assert max(lengths) <= (15 if name in REPORTS else 25)
    kinds = "".join("c" if c.cell_type == "code" else "m" for c in cells)
    assert "cccc" not in kinds
    assert kinds.count("m") >= 0.5 * kinds.count("c")


@each
def test_sentences_are_short(name):
    lengths = sorted(len(s.split()) for text in prose(name) for s in sentences(text))
    assert lengths[len(lengths) * 9 // 10] <= LONG


@each
def test_no_private_words(name):
    text = " ".join(prose(name)).lower()
    assert not re.findall(r"\b(heaps?|yardsticks?|dear|mended|strangers?|handsome|dreams?)\b", text)


@each
def test_figures_have_a_number_a_caption_and_an_alternative_text(name):
    number = 0
    for cell in code(built(name)):
        for place, output in enumerate(cell.outputs):
            data = output.get("data", {})
            assert "image/svg+xml" not in data
            if "image/png" in data:
                number += 1
                metadata = output.metadata["image/png"]
                assert metadata["width"] <= 800
                assert len(metadata["alt"]) >= 30
                caption = cell.outputs[place + 1]["data"]["text/markdown"]
                assert caption.startswith(f"**Figure {number}.** "), caption
    for text in prose(name):
        assert "![](" not in text, "a picture without an alternative text"


@each
def test_text_fits_the_column(name):
    for cell in code(built(name)):
        for output in cell.outputs:
            text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
            if "image/png" not in output.get("data", {}) and "text/html" not in output.get(
                "data", {}
            ):
                assert max(map(len, text.split("\n")), default=0) <= 100, text


@each
def test_no_path_of_a_machine_is_left_in(name):
    text = committed(f"{name}.ipynb")
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
