"""Write a course: notebooks for students, solutions, quizzes, and an nbgrader course.

All versions of a lesson's exercises are made from their source (see `sources`):

- the *released* version, without solutions, which is also in ``notebooks/exercises``;
- the *solved* version, with solutions and rubrics;
- the *source* version of nbgrader, which has solutions and hidden tests.

The title, the kind, the minutes and the points of an exercise are added to its heading. The quiz of
the lesson is added at the end.
"""

import copy
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from cflkit._project import KIT
from cflkit.course import quizzes, sources
from cflkit.course.exercises import Exercise, Explain
from cflkit.course.sources import HEADING, SOLUTION, Cell, exercise_of

NOTEBOOKS = KIT / "notebooks"
PLAN = NOTEBOOKS / "course.md"
CONFIG = NOTEBOOKS / "src" / "nbgrader_config.py"

LOCAL_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)[^)]+\)")
HIDDEN = re.compile(r"\n### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS", re.S)
# As JupyterLab writes it, but for the version of Python, which differs from machine to machine
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
# What stands in the place of an answer in words
UNANSWERED = "*Write your answer here.*"
# Another seed than that of the visible check
HIDDEN_SEED = 2026


def with_grades(source: Path, only: Collection[str] = ()) -> NotebookNode:
    """Read a source; return it as a notebook in nbgrader's format, with solutions.

    Each answer is a cell that students change. After it is a locked cell with the visible check,
    which also has a hidden check on other random inputs. Answers in words are graded by a person.
    If ``only`` some exercises are asked for, it has no others, and no quiz. Cells have the outputs
    of the built notebook, whose labs show their symptoms without a run.
    """
    lesson = source.stem[:2]
    seen = [cell for cell in sources.cells_of(source) if cell.role != "exercise"]
    seen = chosen(seen, only) if only else seen + quiz_cells(lesson)
    built = NOTEBOOKS / "exercises" / f"{source.stem}.ipynb"
    before = nbformat.read(built, as_version=4).cells if built.exists() else []
    executed = {cell.source: cell for cell in before if cell.cell_type == "code"}
    notebook = nbformat.v4.new_notebook(metadata=METADATA)
    for number, of_source in enumerate(seen):
        make = getattr(nbformat.v4, f"new_{of_source.kind}_cell")
        cell = make(HEADING.sub(head, of_source.source), id=f"{lesson}-{number}")
        if old := executed.get(cell.source):
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
        cell.metadata["nbgrader"] = facts_of(of_source, cell.id)
        if of_source.role == "check":
            cell.source += hidden_check(cell.source)
        notebook.cells.append(cell)
    return notebook


def chosen(cells: list[Cell], only: Collection[str]) -> list[Cell]:
    """Keep the cells of some exercises and of those on whose functions they depend."""
    code = [cell for cell in cells if cell.kind == "code"]
    places = [place for place, cell in enumerate(code) if cell.exercise in only]
    kept = {"", *only, *(code[place].exercise for place in sources.needed(code, places))}
    return [cell for cell in cells if cell.exercise in kept]


def facts_of(cell: Cell, id: str) -> dict[str, Any]:
    """Return what nbgrader must know about a cell with an id."""
    by_hand = cell.role == "answer" and cell.kind == "markdown"
    facts = {
        "cell_type": cell.kind,
        "grade": cell.role == "check" or by_hand,
        "grade_id": f"text-{id}",
        "locked": cell.role in ("text", "check"),
        "schema_version": 3,
        "solution": cell.role == "answer",
        "task": False,
    }
    if cell.role in ("answer", "check"):
        # nbgrader allows no full stop in a name
        facts["grade_id"] = f"{cell.role}-{cell.exercise.replace('.', '-')}"
    if facts["grade"]:
        facts["points"] = exercise_of(cell.exercise).points
    return facts


def hidden_check(visible: str) -> str:
    """Write the check that students do not see: the visible one on other random inputs."""
    arguments = visible.removeprefix("check(").removesuffix(")")
    code = f"import cflkit.check\n\ncflkit.check.grade({arguments}, seed={HIDDEN_SEED})"
    return f"\n### BEGIN HIDDEN TESTS\n{code}\n### END HIDDEN TESTS"


def quiz_cells(lesson: str) -> list[Cell]:
    """Return the cells that show the quiz of a lesson, if it has one."""
    if lesson not in quizzes.files():
        return []
    code = f'from cflkit.course import quizzes\n\nquizzes.show("{lesson}")'
    text = "## Quiz\n\nOne answer to each question is right."
    return [Cell("markdown", text), Cell("code", code)]


def head(heading: re.Match[str]) -> str:
    """Write the heading of an exercise, and the line below it."""
    exercise = exercise_of(heading[1])
    points = f"{exercise.points} point{'s' if exercise.points > 1 else ''}"
    effort = f"Level: {exercise.level}. About {exercise.minutes} minutes, {points}."
    return f"## {exercise.id} {exercise.title}\n\n*{exercise.kind}. {effort}*"


def version(notebook: NotebookNode, solved: bool) -> NotebookNode:
    """Return a notebook without hidden tests: with solutions and rubrics, or for students."""
    notebook = copy.deepcopy(notebook)
    solution = r"\2" if solved else blank
    for cell in notebook.cells:
        cell.source = HIDDEN.sub("", SOLUTION.sub(solution, cell.source + "\n")).rstrip("\n")
        if isinstance(exercise := answered(cell), Explain):
            cell.source = with_rubric(cell.source, exercise) if solved else UNANSWERED
    return notebook


def blank(solution: re.Match[str]) -> str:
    """Write what stands in the place of a solution: of a function, which is indented, or not."""
    return f"{solution[1]}raise NotImplementedError\n" if solution[1] else "prediction = ...\n"


def with_rubric(answer: str, exercise: Explain) -> str:
    """Write an answer in words, and below it for what there are points."""
    rows = [f"- {n} point{'s' if n > 1 else ''}: {text}" for n, text in exercise.rubric]
    return "\n".join([answer, "", f"**Rubric of {exercise.id}**", "", *rows])


def answered(cell: NotebookNode) -> Exercise | None:
    """Return the exercise of which a cell is the answer, if it is one."""
    kind, _, place = cell.metadata["nbgrader"]["grade_id"].partition("-")
    return exercise_of(place.replace("-", ".")) if kind == "answer" else None


def write_versions(out: Path, solutions: bool = True, only: Collection[str] = ()) -> list[Path]:
    """Write a course into a new folder, and return the folders in it.

    Without ``solutions``, it is what students may have. With ``only`` some exercises, it has these
    and those on whose functions they depend, without quizzes and the instructor's pack.

    Raises
    ------
    CourseError
        There is no such exercise.
    FileExistsError
        There is a file or a folder of this name.
    """
    wanted = sorted({sources.source_of(id) for id in only}) or sources.by_lesson().values()
    out.mkdir(parents=True)
    for source in wanted:
        write_lesson(out, with_grades(source, only), source.stem, solutions)
    if solutions:
        shutil.copy(CONFIG, out / "nbgrader")
    if solutions and not only:
        write_instructors_pack(out)
    return sorted(out.iterdir())


def write_lesson(out: Path, notebook: NotebookNode, name: str, solutions: bool) -> None:
    """Write the versions of a lesson's exercises, without links to files of the kit."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # the kit's files do not lie beside a course
            cell.source = LOCAL_LINK.sub(r"\1", cell.source)
    write_notebook(version(notebook, solved=False), out / "student" / f"{name}.ipynb")
    if solutions:
        write_notebook(version(notebook, solved=True), out / "solutions" / f"{name}.ipynb")
        write_notebook(notebook, out / "nbgrader" / "source" / name / f"{name}.ipynb")


def write_instructors_pack(out: Path) -> None:
    """Write the plan of the course, the quizzes for Moodle, and their key."""
    (out / "quizzes").mkdir()
    (out / "instructor").mkdir()
    key = ["# Key to the quizzes"]
    for source in quizzes.files().values():
        questions = quizzes.questions_of(source)
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
