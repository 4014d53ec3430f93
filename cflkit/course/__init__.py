"""Write a course: notebooks for students, solutions, quizzes, and an nbgrader course.

The exercises of a lesson have one source, ``notebooks/src/exercises/NN_topic_exercises.py``, with
the solutions between nbgrader's marks. All other versions are made from it:

- the *released* version, without solutions, which is also in ``notebooks/exercises``;
- the *solved* version, with solutions and rubrics;
- the *source* version of nbgrader, which has solutions and hidden tests.

In a source, a heading ``## 03.2`` begins an exercise. The title, the kind, the minutes and the
points are added to it from `cflkit.course.exercises`. The quiz of the lesson is added at the end.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from cflkit.course import quizzes
from cflkit.course.exercises import Exercise, Explain, Implement, Predict, find
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT

SOURCES = PROJECT / "notebooks" / "src" / "exercises"
PLAN = PROJECT / "notebooks" / "course.md"

HEADING = re.compile(r"\A## ([\dL]\d\.\d+)$", re.MULTILINE)
SOLUTION = re.compile(r"^( *)### BEGIN SOLUTION\n(.*?)^ *### END SOLUTION\n?", re.S | re.M)
LOCAL_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)[^)]+\)")
HIDDEN = re.compile(r"\n### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS", re.S)
# nbgrader's facts about a cell, unless it is an answer or a check
MARK = {"grade": False, "locked": False, "schema_version": 3, "solution": False, "task": False}
# As JupyterLab writes it, so that opening and saving a notebook changes nothing
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
BLANK_ANSWER = "*Write your answer here.*"
# Another seed than that of the visible check
HIDDEN_SEED = 2026

KINDS = {
    Implement: "Write a function",
    Predict: "Predict, then run",
    Explain: "Answer in words; the solutions have a rubric",
}


def sources() -> list[Path]:
    """Return the sources of all exercise notebooks in the order of the lessons.

    Raises
    ------
    ParameterError
        There are none, as where the package is installed without the project.
    """
    found = sorted(SOURCES.glob("[0-9L]*.py"))
    if not found:
        raise ParameterError(f"{SOURCES} has no exercises; a course needs a clone of the project")
    return found


def with_grades(source: Path) -> NotebookNode:
    """Read a source; return it as a notebook in nbgrader's format, with solutions.

    Parameters
    ----------
    source : Path
        The source, in jupytext's percent format.

    Returns
    -------
    NotebookNode
        The notebook. Each answer is a cell that students change. After it is a locked cell with the
        visible check, which also has a hidden check on other random inputs. Answers in words are
        graded by a person.
    """
    notebook = jupytext.read(source)
    notebook.cells += quiz_cells(source.stem[:2])
    exercise = None
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{source.stem[:2]}-{number}"
        heading = HEADING.match(cell.source)
        if heading:
            exercise = find(heading[1])
            cell.source = head(exercise) + cell.source[heading.end() :]
        cell.metadata["nbgrader"] = MARK | {"cell_type": cell.cell_type} | facts_of(cell, exercise)
        if cell.metadata["nbgrader"]["grade_id"].startswith("check-"):
            cell.source += hidden_check(cell.source)
        cell.metadata.pop("tags", None)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def facts_of(cell: NotebookNode, exercise: Exercise | None) -> dict[str, Any]:
    """Return what nbgrader must know about a cell of an exercise, or of the text before the first.

    Parameters
    ----------
    cell : NotebookNode
        The cell, with the tags of the source.
    exercise : Exercise or None
        The exercise to which it belongs.
    """
    tags = cell.metadata.get("tags", [])
    if "diagnosis" in tags:
        return {"grade_id": f"text-{cell.id}"}
    if exercise is not None:
        place = exercise.id.replace(".", "-")  # nbgrader allows no full stop in a name
        if "answer" in tags:
            by_hand = {"solution": True, "grade": True, "points": exercise.points}
            return {"grade_id": f"answer-{place}", **by_hand}
        if SOLUTION.search(cell.source):
            return {"grade_id": f"answer-{place}", "solution": True}
        if cell.source.startswith(f'check("{exercise.id}", '):
            graded = {"locked": True, "grade": True, "points": exercise.points}
            return {"grade_id": f"check-{place}", **graded}
    return {"grade_id": f"text-{cell.id}", "locked": True}


def hidden_check(visible: str) -> str:
    """Write the check that students do not see: the visible one on other random inputs."""
    arguments = visible.removeprefix("check(").removesuffix(")")
    return (
        "\n### BEGIN HIDDEN TESTS\n"
        "import cflkit.check\n\n"
        f"assert cflkit.check.check({arguments}, seed={HIDDEN_SEED})\n"
        "### END HIDDEN TESTS"
    )


def quiz_cells(number: str) -> list[NotebookNode]:
    """Return the cells that show the quiz of a lesson, if it has one."""
    if not any(source.stem.startswith(number) for source in quizzes.sources()):
        return []
    return [
        nbformat.v4.new_markdown_cell("## Quiz\n\nOne answer to each question is right."),
        nbformat.v4.new_code_cell(
            f'from cflkit.course import quizzes\n\nquizzes.show("{number}")',
        ),
    ]


def head(exercise: Exercise) -> str:
    """Write the heading of an exercise, and the line below it."""
    points = f"{exercise.points} point{'s' if exercise.points > 1 else ''}"
    kind = KINDS[type(exercise)]
    return (
        f"## {exercise.id} {exercise.title}\n\n"
        f"*{kind}. Level: {exercise.level}. About {exercise.minutes} minutes, {points}.*"
    )


def released(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook without solutions and hidden tests."""

    def blank(match: re.Match[str]) -> str:
        # The solution of a function is indented, and that of a prediction is not
        return f"{match[1]}raise NotImplementedError\n" if match[1] else "prediction = ...\n"

    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.source = HIDDEN.sub("", SOLUTION.sub(blank, cell.source + "\n")).rstrip("\n")
        if isinstance(answered(cell), Explain):
            cell.source = BLANK_ANSWER
    return notebook


def solved(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook with solutions, and with the rubrics of answers in words."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.source = HIDDEN.sub("", SOLUTION.sub(r"\2", cell.source + "\n")).rstrip("\n")
        exercise = answered(cell)
        if isinstance(exercise, Explain):
            cell.source += "\n\n" + rubric(exercise)
    return notebook


def answered(cell: NotebookNode) -> Exercise | None:
    """Return the exercise of which a cell is the answer, if it is one."""
    kind, _, place = cell.metadata["nbgrader"]["grade_id"].partition("-")
    return find(place.replace("-", ".")) if kind == "answer" else None


def rubric(exercise: Explain) -> str:
    """Write the rubric of an answer in words as a Markdown list."""
    rows = [f"- {n} point{'s' if n > 1 else ''}: {text}" for n, text in exercise.rubric]
    return "\n".join([f"**Rubric of {exercise.id}**", "", *rows])


def write(out: Path, solutions: bool = True) -> list[Path]:
    """Write a course into a folder.

    Parameters
    ----------
    out : Path
        The folder, which must not exist or be empty.
    solutions : bool
        Whether to write what contains the answers, too: solutions, the nbgrader course, quizzes for
        Moodle and the instructor's pack.

    Returns
    -------
    list of Path
        The folders that were written.

    Raises
    ------
    ParameterError
        The folder has files already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ParameterError(f"{out} is a file, or has files already; name a new folder")
    notebooks = {source.stem: apart(with_grades(source)) for source in sources()}
    versions: dict[str, Callable[[NotebookNode], NotebookNode]] = {"student": released}
    if solutions:
        versions["solutions"] = solved
    for folder, version in versions.items():
        for name, notebook in notebooks.items():
            write_notebook(version(notebook), out / folder / f"{name}.ipynb")
    if solutions:
        for name, notebook in notebooks.items():
            write_notebook(notebook, out / "nbgrader" / "source" / name / f"{name}.ipynb")
        write_instructors_pack(out)
        config = 'c = get_config()\nc.CourseDirectory.course_id = "clustered-federated-learning"\n'
        (out / "nbgrader" / "nbgrader_config.py").write_text(config, encoding="utf-8")
    return sorted(path for path in out.iterdir() if path.is_dir())


def write_instructors_pack(out: Path) -> None:
    """Write the plan of the course, the quizzes for Moodle, and their key."""
    (out / "quizzes").mkdir()
    (out / "instructor").mkdir()
    key = ["# Key to the quizzes"]
    for source in quizzes.sources():
        questions = quizzes.read(source)
        written = quizzes.moodle(questions, f"Clustered federated learning/{source.stem}")
        (out / "quizzes" / f"{source.stem}.xml").write_bytes(written)
        key += ["", f"## {source.stem}"]
        for question in questions:
            [right] = [answer.text for answer in question.answers if answer.correct]
            key += ["", f"**{question.id}** {question.question}", "", f"*{right}*"]
            key += ["", question.explanation]
    (out / "instructor" / "quiz_key.md").write_text("\n".join(key) + "\n", encoding="utf-8")
    plan = LOCAL_LINK.sub(r"\1", PLAN.read_text(encoding="utf-8"))
    (out / "instructor" / PLAN.name).write_text(plan, encoding="utf-8")


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def apart(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook without links to files of the kit, beside which a course does not lie."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LOCAL_LINK.sub(r"\1", cell.source)
    return notebook
