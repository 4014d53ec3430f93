"""The exercises: their checks, and the versions of their notebooks."""

import io
import os
import re
import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
import numpy as np
import pytest
from staged import committed

import cflkit.check
from cflkit import check, course
from cflkit.__main__ import main
from cflkit.course import exercises
from cflkit.course.exercises import Explain, Implement, Predict
from cflkit.course.exercises.base import close, same_groups
from cflkit.reproduce.records import PROJECT

EXERCISES = {exercise.id: exercise for exercise in exercises.every()}
SOURCES = {source.stem: source for source in course.sources()}
# The labs train models
executed = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n.startswith("L") else n for n in SOURCES],
)


def of_kind(kind):
    found = [known for known in EXERCISES.values() if isinstance(known, kind)]
    return pytest.mark.parametrize("exercise", found, ids=lambda known: known.id)


def said(exercise, answer, seed=0):
    """What `check` returns, and what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        right = check(exercise, answer, seed)
    return right, out.getvalue()


# --- Every exercise ------------------------------------------------------------------------------


def test_there_are_enough_of_each_kind():
    kinds = [type(exercise) for exercise in EXERCISES.values()]
    assert len(kinds) >= 40
    assert kinds.count(Implement) >= 20
    assert kinds.count(Predict) >= 10
    assert kinds.count(Explain) >= 10


@pytest.mark.parametrize("number", exercises.LESSONS)
def test_ids_count_within_the_lesson(number):
    ids = [exercise.id for exercise in exercises.of_lesson(number)]
    assert ids == [f"{number}.{place}" for place in range(1, len(ids) + 1)]


@of_kind(Implement)
@pytest.mark.parametrize("seed", [0, course.HIDDEN_SEED])
def test_the_reference_is_right(exercise, seed):
    assert said(exercise.id, exercise.reference, seed)[0]


@pytest.mark.slow
@of_kind((Implement, Predict))
def test_usual_mistakes_get_a_hint_of_their_own(exercise):
    assert len(exercise.mistakes) >= (3 if isinstance(exercise, Implement) else 2)
    # The experiment of a prediction does not depend on the seed of the check
    seeds = (0, 1, course.HIDDEN_SEED) if isinstance(exercise, Implement) else (0,)
    for seed in seeds:
        for hint, wrong in exercise.mistakes.items():
            right, text = said(exercise.id, wrong, seed)
            assert not right
            assert hint in text


@pytest.mark.slow
@of_kind(Implement)
def test_neither_the_input_nor_a_constant_is_taken_for_an_answer(exercise):
    rng = np.random.default_rng(5)
    arguments = [exercise.inputs(rng) for _ in range(10)]
    fixed = [exercise.reference(*one) for one in arguments]
    fixed += [None, 0.0, 1, True, [], np.zeros(3), np.zeros((4, 4))]
    echoes = [lambda *given, k=k: given[k] for k in range(len(arguments[0]))]
    for wrong in [*echoes, *(lambda *given, value=value: value for value in fixed)]:
        right, text = said(exercise.id, wrong)
        assert not right
        assert "is not right yet" in text


@of_kind(Implement)
def test_what_is_not_written_or_fails_or_is_no_function_is_told(exercise):
    def starter(*given):
        raise NotImplementedError

    assert "not written yet" in said(exercise.id, starter)[1]
    assert "ZeroDivisionError" in said(exercise.id, lambda *given: 1 / 0)[1]
    assert "Give the function itself" in said(exercise.id, 3.0)[1]


@of_kind(Predict)
def test_a_prediction_must_be_made(exercise):
    for answer in (..., None):
        assert "Write your prediction first" in said(exercise.id, answer)[1]
    assert not said(exercise.id, "something else")[0]


@of_kind(Explain)
def test_a_rubric_adds_up_and_no_program_judges_words(exercise):
    assert sum(points for points, _ in exercise.rubric) == exercise.points
    with pytest.raises(ValueError, match="rubric"):
        check(exercise.id, "because")


# --- The check -----------------------------------------------------------------------------------


def test_module_and_function_are_the_same_check():
    assert cflkit.check.check("01.1", EXERCISES["01.1"].reference) is True
    assert check("01.1", EXERCISES["01.1"].reference) is True


@pytest.mark.parametrize("id", ["01.99", "55.1", "", "one"])
def test_an_unknown_exercise_is_told(id):
    with pytest.raises(ValueError, match="no exercise"):
        check(id, lambda: None)


@pytest.fixture(params=["default_int_handler", "SIG_IGN"])
def interruptible(request):
    """Handle Ctrl-C as in a terminal, or ignore it as in a shell's background."""
    before = signal.signal(signal.SIGINT, getattr(signal, request.param))
    yield
    assert signal.signal(signal.SIGINT, before) == getattr(signal, request.param)


def test_a_loop_that_never_ends_is_ended(monkeypatch, interruptible):
    def endless(models, samples):
        while True:
            pass

    monkeypatch.setattr(cflkit.check, "SECONDS", 0.2)
    assert "ended after 0.2 seconds" in said("01.1", endless)[1]
    assert "ended after 0.2 seconds" in said("01.1", lambda *given: time.sleep(60))[1]


def test_a_function_that_changes_its_arguments_is_told():
    def careless(models, samples):
        samples /= samples.sum()
        return samples @ models

    assert "changes its arguments" in said("01.1", careless)[1]


def test_a_word_must_be_one_of_those_that_are_offered():
    assert "one of the words" in said("04.5", "Pairs")[1]


def test_groups_that_are_no_array_are_told_the_shape():
    message = said("04.2", lambda *arguments: [{0, 1}, {2}])[1]
    assert "no array of numbers" in message and "shape" in message


def test_close_compares_what_exercises_return():
    assert close([1, 2], np.array([1.0, 2 + 1e-9]))
    assert close({"a": 1}, {"a": 1.0})
    assert close(([1, 2], 3), [np.array([1, 2]), 3])
    assert close(np.nan, np.nan)
    assert close(None, None)
    for given, right in [
        (1, 2),
        (10**400, 2),
        ([1], 1),
        (None, 1),
        ("a", 1),
        (1, "a"),
        ({"a": 1}, {"b": 1}),
    ]:
        assert not close(given, right)


def test_same_groups_ignores_the_numbers_of_clusters():
    assert same_groups([5, 5, 0], np.array([0, 0, 1]))
    assert not same_groups([0, 1, 1], [0, 0, 1])
    assert not same_groups([0, 0], [0, 0, 0])
    assert not same_groups(None, [0, 0])


# --- The notebooks -------------------------------------------------------------------------------


def run_cells(notebook):
    """Run the code of a notebook; return what it prints."""
    out = io.StringIO()
    names = {}
    with redirect_stdout(out):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                exec(cell.source, names)
    return out.getvalue()


@pytest.mark.parametrize("name", SOURCES)
def test_every_exercise_has_a_place_in_the_notebook_of_its_lesson(name):
    notebook = course.with_grades(SOURCES[name])
    wanted = exercises.of_lesson(name[:2])
    answers = [course.answered(cell) for cell in notebook.cells]
    assert [exercise for exercise in answers if exercise] == list(wanted)
    points = [cell.metadata["nbgrader"].get("points", 0) for cell in notebook.cells]
    assert sum(points) == sum(exercise.points for exercise in wanted)
    names = [cell.metadata["nbgrader"]["grade_id"] for cell in notebook.cells]
    assert len(set(names)) == len(names)


@executed
def test_solutions_are_right(name):
    text = run_cells(course.with_grades(SOURCES[name]))  # with hidden tests
    assert "not right yet" not in text
    for exercise in exercises.of_lesson(name[:2]):
        assert text.count(f"{exercise.id} is right") == (0 if isinstance(exercise, Explain) else 2)


@executed
def test_what_students_get_has_no_solutions_and_fails_each_check(name):
    notebook = course.released(course.with_grades(SOURCES[name]))
    text = run_cells(notebook)
    for exercise in exercises.of_lesson(name[:2]):
        if not isinstance(exercise, Explain):
            assert f"{exercise.id} is not right yet" in text
    assert " is right" not in text
    sources = "\n".join(cell.source for cell in notebook.cells)
    assert "SOLUTION" not in sources
    assert "HIDDEN" not in sources


@pytest.mark.parametrize("name", SOURCES)
def test_the_committed_notebook_is_what_students_get(name):
    lies_there = nbformat.reads(committed(f"notebooks/exercises/{name}.ipynb"), as_version=4)
    assert lies_there == course.released(course.with_grades(SOURCES[name]))


@pytest.mark.parametrize("name", SOURCES)
def test_links_lead_somewhere(name):
    text = "\n".join(cell.source for cell in course.with_grades(SOURCES[name]).cells)
    links = re.findall(r"\]\((?!http)([^)#\s]+)", text)
    lesson = f"../{name.removesuffix('_exercises')}.ipynb"
    assert links if name.startswith("L") else lesson in links
    for link in links:
        assert (PROJECT / "notebooks" / "exercises" / link).exists(), link


# --- A course ------------------------------------------------------------------------------------


def test_a_course_has_solutions_only_where_asked(tmp_path, capsys):
    assert main(["course", str(tmp_path / "all")]) == 0
    assert main(["course", str(tmp_path / "public"), "--without-solutions"]) == 0
    assert capsys.readouterr().out.count("student") == 2
    public = "\n".join(path.read_text() for path in (tmp_path / "public").rglob("*.ipynb"))
    assert "SOLUTION" not in public
    assert "Rubric" not in public
    for name in SOURCES:
        student = (tmp_path / "public" / "student" / f"{name}.ipynb").read_text()
        lies_there = nbformat.reads(committed(f"notebooks/exercises/{name}.ipynb"), as_version=4)
        assert nbformat.reads(student, as_version=4) == course.apart(lies_there)
        solutions = (tmp_path / "all" / "solutions" / f"{name}.ipynb").read_text()
        assert "SOLUTION" not in solutions
        assert "HIDDEN" not in solutions
    assert "Rubric of 01.7" in (
        tmp_path / "all" / "solutions" / "01_federated_averaging_exercises.ipynb"
    ).read_text(encoding="utf-8")


def test_a_course_links_only_to_the_internet(tmp_path):
    course.write(tmp_path)
    texts = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.md")}
    for path in tmp_path.rglob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        texts[path.name] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for name, text in texts.items():
        assert not re.findall(r"\]\((?!http|#)[^)]*\)", text), name
    assert "the lesson 00 Start here" in texts["00_start_here_exercises.ipynb"]


def test_a_course_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "mine.txt").touch()
    assert main(["course", str(tmp_path)]) == 2
    assert "has files already" in capsys.readouterr().err


def half_solved(notebook):
    """The solutions of the first half of the automatically graded points, and no others."""
    blank = course.released(notebook)
    left = sum(automatic_points(notebook)) // 2
    for theirs, cell in zip(blank.cells, notebook.cells, strict=True):
        exercise = course.answered(cell)
        if isinstance(exercise, Implement | Predict) and exercise.points <= left:
            left -= exercise.points
            theirs.source = cell.source
    assert left == 0
    return blank


def automatic_points(notebook):
    marks = [cell.metadata["nbgrader"] for cell in notebook.cells]
    return [one["points"] for one in marks if one["grade_id"].startswith("check-")]


@pytest.mark.slow
def test_nbgrader_grades_blank_half_and_whole_submissions(tmp_path, monkeypatch):
    from nbgrader.api import Gradebook
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    # As in an activated environment: nbgrader calls alembic
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    name = "01_federated_averaging_exercises"
    course.write(tmp_path / "course")
    home = tmp_path / "course" / "nbgrader"
    settings = Config()
    settings.CourseDirectory.root = str(home)
    settings.CourseDirectory.course_id = "clustered-federated-learning"
    api = NbGraderAPI(config=settings)
    made = api.generate_assignment(name)
    assert made["success"], made["log"]
    release = nbformat.read(home / "release" / name / f"{name}.ipynb", as_version=4)
    source = course.with_grades(SOURCES[name])
    assert len(release.cells) == len(source.cells)
    assert "SOLUTION" not in str(release)
    assert "HIDDEN" not in str(release)

    submissions = {"blank": release, "half": half_solved(source), "whole": course.solved(source)}
    for student, notebook in submissions.items():
        course.write_notebook(notebook, home / "submitted" / student / name / f"{name}.ipynb")
        graded = api.autograde(name, student)
        assert graded["success"], graded["log"]
    most = sum(automatic_points(source))
    with Gradebook(f"sqlite:///{home / 'gradebook.db'}", "clustered-federated-learning") as book:
        scores = {s: book.find_submission(name, s).score for s in submissions}
        by_hand = book.find_submission(name, "whole").needs_manual_grade
    assert scores == {"blank": 0, "half": most // 2, "whole": most}
    assert by_hand


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("L")])
def test_a_lab_has_a_symptom_a_place_for_the_diagnosis_and_a_folded_reveal(name):
    text = "\n".join(cell.source for cell in course.with_grades(SOURCES[name]).cells)
    for lab in text.split("\n## L")[1:]:
        order = ["**Your diagnosis.**", "<details>", "</details>", "### BEGIN SOLUTION", "check("]
        places = [lab.index(part) for part in order]
        assert places == sorted(places)


def test_there_are_at_least_eight_labs():
    assert sum(id.startswith("L") for id in EXERCISES) >= 8
