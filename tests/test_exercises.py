"""The exercises: their sources, their checks, and the versions of their notebooks."""

import builtins
import io
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import ot
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from ot.utils import proj_simplex
from scipy.cluster import hierarchy
from scipy.signal import lfilter
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import mannwhitneyu, rankdata, sem
from sklearn.metrics import adjusted_rand_score, f1_score, homogeneity_completeness_v_measure
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances
from staged import committed

from cflkit import check, clustering, explain, metrics, partition
from cflkit.__main__ import main
from cflkit.course import sources, versions
from cflkit.course.exercises import Explain, Implement, Predict, close, difference
from cflkit.course.sources import exercise_of, hidden
from cflkit.divergence import cosine_divergence, earth_movers_distance, temperature
from cflkit.methods import emd_cfl, emd_cfl_variants, fedcref, ocfl, ocfl_open
from cflkit.methods.baselines import sattler
from cflkit.reproduce import ledger
from cflkit.reproduce.papers.base import Margin
from cflkit.reproduce.papers.emd_cfl import working_range

SOURCES = sources.by_lesson()
IDS = {lesson: sources.ids(path) for lesson, path in SOURCES.items()}
EXERCISES = {id: exercise_of(id) for ids in IDS.values() for id in ids}
SEEDS = (0, versions.HIDDEN_SEED)  # of what students see, and of what they do not see
LOCAL = re.compile(r"\]\((?!http|#)[^)]*\)")  # where a link to a file of the kit leads


def of_kind(lesson, *kinds):
    return [EXERCISES[id] for id in IDS[lesson] if isinstance(EXERCISES[id], kinds)]


# --- Every exercise ------------------------------------------------------------------------------


def test_each_has_its_number_points_for_its_rubric_and_hints_for_mistakes():
    for lesson, ids in IDS.items():
        assert ids == [f"{lesson}.{place}" for place in range(1, len(ids) + 1)]
    for id, one in EXERCISES.items():
        assert one.level in ("easy", "medium", "hard"), id
        if isinstance(one, Explain):
            assert sum(points for points, _ in one.rubric) == one.points, id
        else:
            assert len(one.mistakes) >= (3 if isinstance(one, Implement) else 2), id


@pytest.mark.slow
@pytest.mark.parametrize("lesson", SOURCES)
def test_wrong_answers_are_told(lesson):
    for exercise in of_kind(lesson, Implement, Predict):
        # The experiment of a prediction does not depend on the seed of the check
        for seed in SEEDS if isinstance(exercise, Implement) else SEEDS[:1]:
            for hint, wrong in exercise.mistakes.items():
                assert exercise.hint(wrong, np.random.default_rng(seed)) == hint, exercise.id
    for exercise in of_kind(lesson, Implement):
        # Neither the input nor a constant is taken for an answer
        rng = np.random.default_rng(5)
        arguments = [exercise.inputs(rng) for _ in range(10)]
        fixed = [exercise.solution(*one) for one in arguments]
        fixed += [None, 0.0, 1, True, [], np.zeros(3), np.zeros((4, 4))]
        echoes = [lambda *given, k=k: given[k] for k in range(len(arguments[0]))]
        for wrong in [*echoes, *(lambda *given, value=value: value for value in fixed)]:
            assert exercise.hint(wrong, np.random.default_rng(0)), exercise.id


def attributed(update, updates, labels, limit):
    distances = cosine_distances(update[None], updates)[0]
    means = [distances[labels == k].mean() for k in range(labels.max() + 1)]
    return int(np.argmin(means)) if min(means) <= limit else None


def counts_of_the_partition(labels, held):
    made = partition.Partition("pool", held, [own[:0] for own in held], None, {})
    return partition.class_counts(made, labels)


def trigger_of_ocfl(temperatures, window):
    rounds = range(1, len(temperatures) + 1)
    return next((t for t in rounds if ocfl.rises(temperatures[:t], window)), None)


def scores_of_emd_cfl(train, validation, projections):
    scores = np.zeros((len(train), len(train)))
    for i, j in np.ndindex(scores.shape):
        parts = [x @ projections[i, j].T for x in (train[i], validation[i, j])]
        own = earth_movers_distance(train[i], validation[i, i])
        scores[i, j] = emd_cfl.server_sees(*parts, own)
    return scores


def associated_by_fedcref(on_q, on_r, alpha, theta):
    samples = [np.arange(errors.shape[1]) for errors in (on_q, on_r)]
    method = fedcref.FedCRef(start=(), alpha=100 * alpha, theta=theta)
    method.owner, method.samples = np.array([0, 1]), samples
    return bool(method.associated([on_q, on_r])[0, 1])


def first_pixels_deleted(image, heat, k, baseline):
    result = image.copy()
    result.flat[explain.pixel_order(torch.from_numpy(heat[None]), seed=0)[0, :k].numpy()] = baseline
    return result


def mean_ranks(scores, high_is_good):
    lower_is_better = np.where(high_is_good[:, None], -scores, scores)
    return rankdata(lower_is_better, axis=1).mean(axis=0)


# The same by other ways: the kit's own function where there is one, or a library's
OTHERWISE = {
    "00.1": partial(f1_score, average="macro"),
    "00.3": lambda scores, labels: scores[labels, np.arange(len(labels))].mean(),
    "01.1": lambda models, samples: np.average(models, axis=0, weights=samples),
    "01.6": lambda updates, beta, lr: lfilter([lr], [1, -beta], updates, axis=0).sum(axis=0),
    "02.1": counts_of_the_partition,
    "02.3": lambda *given: hidden("02.3", "known_shares")(*given).mean(),
    "02.4": lambda counts: cdist(*[counts / counts.sum(1, keepdims=True)] * 2, "cityblock") / 2,
    "03.1": cosine_divergence,
    "03.2": temperature,
    "03.3": trigger_of_ocfl,
    "03.5": lambda *given: ocfl_open.attribute(*map(torch.from_numpy, given)),
    "04.1": lambda updates, eps1, eps2: (
        (norms := sattler.update_norms(torch.from_numpy(updates)))[0] < eps1 and norms[1] > eps2
    ),
    "04.2": lambda similarity: clustering.make(
        "agglomerative", n_clusters=2, linkage="complete"
    ).fit_predict(1 - similarity),
    "04.3": lambda tree, threshold: hierarchy.fcluster(tree, threshold, "distance"),
    "04.4": lambda similarity: hidden("04.4", "tidy")(1 - similarity),
    "05.1": lambda costs: ot.emd2([], [], costs),
    "05.2": cosine_distances,
    "05.3": lambda scores, epsilon: emd_cfl_variants.clusters_of(scores, epsilon, "components")[0],
    "05.4": working_range,
    "05.6": scores_of_emd_cfl,
    "06.1": lambda own, others: fedcref.FedCRef(start=()).differences(np.vstack([own, others]), 0)[
        1:
    ],
    "06.2": associated_by_fedcref,
    "06.3": metrics.clustering_accuracy,
    "06.4": lambda n, pairs: connected_components(
        coo_array((np.ones(len(pairs)), pairs.T), (n, n)), directed=False
    )[1],
    "07.1": lambda a, gradients: hidden("07.1", "weighted_map")(gradients.mean(axis=(1, 2)), a),
    "07.2": first_pixels_deleted,
    "07.3": lambda curve: float(explain.area(torch.from_numpy(curve))),
    "07.4": lambda scores: mean_ranks(scores, np.ones(len(scores), dtype=bool)),
    "08.1": lambda gradients, losses, models: [
        cosine_distances(gradients),
        euclidean_distances(losses[:, None]),
        euclidean_distances(models),
    ],
    "08.3": lambda losses, tau: softmax(-losses.T / tau, axis=1),
    "09.3": lambda losses, shares: softmax(np.log(shares)[:, None] - losses, axis=0),
    "09.4": lambda sizes, distances, strength: proj_simplex(
        sizes / sizes.sum() - strength * distances / 2
    ),
    "10.3": lambda members, others: (
        mannwhitneyu(others, members).statistic / (len(members) * len(others))
    ),
    "11.1": attributed,
    "90.1": ledger.half_width,
    "90.2": lambda value, ours, near, far: ledger.status(value, ours, Margin(near, far, 0)),
    "90.3": adjusted_rand_score,
    "L1.1": lambda drawn, order, share: hidden("L1.1", "by_role")(
        drawn, hidden("L1.1", "first_drawn")(drawn, order, share)
    ),
    "L1.2": lambda clients: hidden("L1.2", "digest_of")(clients, hidden("L1.2", "with_sizes")),
    "L1.3": lambda validation, test: test[validation.mean(axis=1).argmax()].mean(),
    "L1.4": lambda scores: ((scores[0] - scores[1]).mean(), sem(scores[0] - scores[1])),
    "L2.2": lambda before, after, trainable: hidden("L2.2", "changes")(
        before, after, lambda name, array: name in trainable
    ),
    "L2.3": lambda before, after: 1 - metrics.clustering_accuracy(before, after),
    "L2.4": lambda scores, measured, epsilon: emd_cfl_variants.clusters_of(
        np.where(measured, scores, np.nan), epsilon, "components"
    )[0],
    "L3.1": lambda rates, accuracies, floor: hidden("L3.1", "largest_where")(
        rates, np.all(accuracies >= floor, axis=1)
    ),
    "L3.2": lambda curve: hidden("L3.2", "gain")(curve, curve[-1] - curve[0]),
    "L3.3": mean_ranks,
    "L3.4": lambda truth, found: (
        adjusted_rand_score(truth, found),
        *homogeneity_completeness_v_measure(truth, found)[:2],
    ),
}


@pytest.mark.slow
def test_solutions_agree_with_the_kit_and_with_libraries():
    for id, function in OTHERWISE.items():
        for seed in SEEDS:
            hint = EXERCISES[id].hint(function, np.random.default_rng(seed))
            assert hint is None, (id, hint)


# --- The check -----------------------------------------------------------------------------------


def test_a_lesson_goes_on_with_the_solution_where_nothing_right_is_written(capsys):
    solution = exercise_of("03.3").solution
    assert check.written("03.3", train_locally) is solution
    assert "is not written yet.\nThe lesson goes on with the solution." in capsys.readouterr().out
    mine = partial(solution)
    assert check.written("03.3", mine) is mine


def test_a_verdict_is_a_truth_value_that_jupyter_does_not_repeat():
    right = check("01.1", EXERCISES["01.1"].solution)
    assert repr(right) == "True" and DisplayFormatter().format(right) == ({}, {})


UNCHECKED = [
    ("1.1", "no exercise '1.1'; did you mean '01.1'"),
    ("one", "no exercise 'one'; there are 00.1, 00.2"),
    ("01.7", "no program can judge the words that answer 01.7; .* rubric"),
]


@pytest.mark.parametrize("id, message", UNCHECKED)
def test_what_cannot_be_checked_is_told(id, message):
    with pytest.raises(sources.CourseError, match=message) as told:
        check(id, lambda: None)
    assert told.value._render_traceback_() == [f"CourseError: {told.value}"]


def stubborn(models, samples):
    with suppress(BaseException):
        time.sleep(60)
    while True:
        pass


def test_a_function_that_never_ends_is_ended(monkeypatch, capsys):
    monkeypatch.setattr(check, "SECONDS", 0.2)
    assert not check("01.1", stubborn)
    assert "ended after 0.2 seconds" in capsys.readouterr().out
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def careless(models, samples):
    samples /= samples.sum()
    return samples @ models


def train_locally(*given):
    raise NotImplementedError


WRONG_ANSWERS = [
    ("01.1", train_locally, ["not written yet"]),
    ("01.1", lambda *given: 1 / 0, ["ZeroDivisionError"]),
    ("01.1", 3.0, ["Give the function itself"]),
    *(("09.6", answer, ["Write your prediction first"]) for answer in (..., None)),
    ("09.6", "something else", ["of the type str", "must be"]),
    ("01.1", careless, ["changes its arguments"]),
    ("01.3", lambda *given: train_locally(), ["calls `train_locally`, which is not written"]),
    ("04.5", "Pairs", ["one of those in the exercise"]),
    ("09.6", 0.9, ["another outcome"]),
    ("L1.1", lambda *given: {}, ["wrong value"]),
    ("04.2", lambda *given: [{0, 1}, {2}], ["no array of numbers", "shape"]),
]


@pytest.mark.parametrize("id, answer, messages", WRONG_ANSWERS)
def test_what_is_wrong_with_an_answer_is_told(id, answer, messages, capsys):
    assert not check(id, answer)
    told = capsys.readouterr().out
    assert all(message in told for message in messages)


def test_a_difference_is_told_without_the_right_value():
    assert "must return None" in difference(3, None)
    assert "returns None. Has every case its `return`?" in difference(None, 3)
    assert difference({"a": 1}, {"a": 2}) == "For some input, the result has a wrong value."
    assert "one of those" in difference("a", "b") and '"b"' not in difference("a", "b")
    assert "2 of 3 values are wrong" in difference([1, 2, 3], np.array([1, 5, 6]))
    assert "values" not in difference([1, 2, 3], np.array([1, 5, 6]), count=False)
    assert "Part 1 (from 0) is wrong. The word" in difference([1, "a"], [1, "b"])


def test_close_compares_what_exercises_return():
    same = [([1, 2], np.array([1.0, 2 + 1e-9])), ({"a": 1}, {"a": 1.0}), (np.nan, np.nan)]
    same += [(([1, 2], 3), [np.array([1, 2]), 3]), (None, None)]
    other = [(1, 2), (10**400, 2), ([1], 1), (None, 1), ("a", 1), (1, "a"), ({"a": 1}, {"b": 1})]
    assert [close(*pair) for pair in same + other] == [True] * 5 + [False] * 7


# --- The sources ---------------------------------------------------------------------------------


def test_cells_are_read_as_jupytext_reads_them():
    for path in SOURCES.values():
        for cell, same in zip(sources.cells_of(path), jupytext.read(path).cells, strict=True):
            assert (cell.kind, cell.source) == (same.cell_type, same.source)
            assert same.metadata.get("tags", [cell.role]) == [cell.role]


@pytest.mark.slow
def test_only_the_cells_that_an_exercise_needs_are_executed():
    code = ["import math", "def f(x):\n    return math.sqrt(x)", "heavy = f(2)", "y = 1"]
    code += ["y = [f(k) for k in range(3)]", "print(y)"]
    cells = [sources.Cell("code", source) for source in code]
    assert sources.needed(cells, [4]) == [0, 1, 4]
    assert sources.needed(cells, [5]) == [0, 1, 4, 5]
    # The labs train models, and their checks do not
    for id in EXERCISES:
        assert not {"federation", "measured", "curves", "laptop"} & set(sources.executed(id)), id


def test_an_error_names_its_line(tmp_path, monkeypatch):
    (tmp_path / "exercises").mkdir()
    text = "# %% [markdown]\n# ## 77.1\n#\n# ?\n\n# %%\n### BEGIN SOLUTION\n{}\n### END SOLUTION\n"
    path = tmp_path / "exercises" / "77_new.py"
    monkeypatch.setattr(sources, "SOURCES", tmp_path)
    path.write_text(text.format("1 / 0"))
    with pytest.raises(ZeroDivisionError) as told:
        exercise_of("77.1")
    assert told.traceback[-1].lineno + 1 == 8


# --- The notebooks -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lesson", SOURCES)
def test_starters_fail_and_solutions_are_right(lesson):
    """Run a notebook, and each answer twice: as students get it, and solved, with hidden tests."""
    graded = versions.with_grades(SOURCES[lesson])
    blank = versions.version(graded, solved=False)
    names, out = {}, io.StringIO()
    with redirect_stdout(out):
        for place, cell in enumerate(graded.cells):
            if cell.cell_type == "code":
                if versions.answered(cell):
                    exec(blank.cells[place].source, names)
                    exec(blank.cells[place + 1].source, names)
                exec(cell.source, names)
    for exercise in of_kind(lesson, Implement, Predict):
        assert out.getvalue().count(f"{exercise.id} is not right yet") == 1
        assert out.getvalue().count(f"{exercise.id} is right") == 1  # a hidden test raises
    text = "\n".join(cell.source for cell in blank.cells)
    for secret in ("SOLUTION", "HIDDEN", "Implement(", "Predict(", "Explain("):
        assert secret not in text


def test_every_exercise_has_a_place_in_the_notebook_of_its_lesson():
    for lesson, source in SOURCES.items():
        cells = versions.with_grades(source).cells
        answers = [exercise.id for cell in cells if (exercise := versions.answered(cell))]
        assert answers == IDS[lesson]
        marks = [cell.metadata["nbgrader"] for cell in cells]
        points = sum(EXERCISES[id].points for id in IDS[lesson])
        assert sum(mark.get("points", 0) for mark in marks) == points
        assert len({mark["grade_id"] for mark in marks}) == len(marks)


def committed_notebook(name):
    return nbformat.reads(committed(f"notebooks/exercises/{name}.ipynb"), as_version=4)


def test_the_committed_notebooks_are_what_students_get():
    for source in SOURCES.values():
        made = versions.version(versions.with_grades(source), solved=False)
        assert made == committed_notebook(source.stem), source.stem


@pytest.mark.parametrize("lab", [id for lesson in SOURCES for id in IDS[lesson] if id[0] == "L"])
def test_a_lab_shows_its_symptom_in_one_figure_without_being_run(lab):
    cells = committed_notebook(SOURCES[lab[:2]].stem).cells
    [begin] = [n for n, cell in enumerate(cells) if cell.source.startswith(f"## {lab} ")]
    end = next(n for n in range(begin, len(cells)) if "Your diagnosis" in cells[n].source)
    outputs = [output for cell in cells[begin:end] for output in cell.get("outputs", [])]
    [shown] = [output for output in outputs if "image/png" in output.get("data", {})]
    assert shown.metadata["image/png"]["alt"]


# --- A course ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_course_has_solutions_only_where_asked_and_links_only_to_the_internet(tmp_path, capsys):
    assert main(["course", str(tmp_path / "all")]) == 0
    assert main(["course", str(tmp_path / "public"), "--without-solutions"]) == 0
    assert capsys.readouterr().out.count("student") == 2
    assert [path.name for path in (tmp_path / "public").iterdir()] == ["student"]
    for source in SOURCES.values():
        student = nbformat.read(tmp_path / f"public/student/{source.stem}.ipynb", as_version=4)
        notebooks = student, committed_notebook(source.stem)
        code, told = ([c.source for c in n.cells if c.cell_type == "code"] for n in notebooks)
        assert code == told
        solutions = (tmp_path / f"all/solutions/{source.stem}.ipynb").read_text(encoding="utf-8")
        assert not re.search("SOLUTION|HIDDEN", solutions)
        assert ("Rubric of 01.7" in solutions) == source.stem.startswith("01")
    for path in (tmp_path / "all").rglob("*.md"):
        assert not LOCAL.findall(path.read_text(encoding="utf-8")), path
    for path in (tmp_path / "all").rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            assert "Implement(" not in cell.source
            assert cell.cell_type == "code" or not LOCAL.findall(cell.source), path


def test_a_course_of_some_exercises_has_these_and_what_they_need(tmp_path, refuse):
    """01.3 calls the functions of 01.1 and 01.2; of another lesson there is nothing."""
    assert main(["course", str(tmp_path / "week"), "--exercises", "01.3", "03.1"]) == 0
    names = [SOURCES[lesson].stem for lesson in ("01", "03")]
    for folder in ("solutions", "student", "nbgrader/source/*"):
        assert sorted(path.stem for path in (tmp_path / "week").glob(f"{folder}/*")) == names
    for name, ids in zip(names, (["01.1", "01.2", "01.3"], ["03.1"]), strict=True):
        cells = nbformat.read(tmp_path / f"week/solutions/{name}.ipynb", as_version=4).cells
        assert [e.id for cell in cells if (e := versions.answered(cell))] == ids
        assert "Quiz" not in str(cells)
    told = refuse("course", tmp_path / "no", "--exercises", "01.11")
    assert "no exercise '01.11'; did you mean '01.1'?" in told
    assert not (tmp_path / "no").exists()
    assert "(File exists)" in refuse("course", tmp_path / "week")


@pytest.mark.slow
def test_some_exercises_define_all_names_that_they_use():
    for lesson, source in SOURCES.items():
        for id in IDS[lesson]:
            cells = versions.with_grades(source, [id]).cells
            code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
            used, _ = sources.used_and_defined(code)
            assert used <= {*dir(builtins)}, (id, used)


def test_a_check_ends_well_before_nbgrader_ends_a_cell():
    """The limit counts twice per cell, and the usual one of nbgrader is 30 seconds."""
    limit = int(re.search(r"^c.Execute.timeout = (\d+)$", versions.CONFIG.read_text(), re.M)[1])
    assert min(30, limit) - 10 >= 2 * check.SECONDS


@pytest.mark.nightly
def test_nbgrader_grades_blank_wrong_and_whole_submissions(tmp_path, monkeypatch):
    from nbgrader.api import Gradebook
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    # As in an activated environment: nbgrader calls alembic
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    name = "01_federated_averaging_exercises"
    versions.write_versions(tmp_path / "course")
    home = tmp_path / "course" / "nbgrader"
    place = {"root": str(home), "course_id": "clustered-federated-learning"}
    api = NbGraderAPI(config=Config(CourseDirectory=place))
    made = api.generate_assignment(name)
    assert made["success"], made["log"]
    release = nbformat.read(home / "release" / name / f"{name}.ipynb", as_version=4)
    source = versions.with_grades(SOURCES["01"])
    assert len(release.cells) == len(source.cells)
    assert not re.search("SOLUTION|HIDDEN", str(release))
    submissions = {name: versions.version(source, True) for name in ("whole", "endless", "merged")}
    submissions["blank"] = release
    [merged, *_] = [c for c in submissions["merged"].cells if c.source.startswith("check(")]
    lost = merged.metadata.pop("nbgrader")["points"]
    # The last function that is graded, which no other calls
    functions = [c for c in submissions["endless"].cells if c.source.startswith("def ")]
    last = [c for c in functions if versions.answered(c)][-1]
    last.source = last.source.split("\n")[0] + "\n    while True:\n        pass"
    for student, notebook in submissions.items():
        versions.write_notebook(notebook, home / "submitted" / student / name / f"{name}.ipynb")
        graded = api.autograde(name, student)
        assert graded["success"], graded["log"]
    most = sum(exercise.points for exercise in of_kind("01", Implement, Predict))
    with Gradebook(f"sqlite:///{home / 'gradebook.db'}", place["course_id"]) as book:
        scores = {s: book.find_submission(name, s).score for s in submissions}
        assert book.find_submission(name, "whole").needs_manual_grade
    without = most - versions.answered(last).points
    assert scores == {"blank": 0, "whole": most, "endless": without, "merged": most - lost}
    # What the course's own settings add
    versions.write_notebook(release, home / "submitted" / "blank" / name / "renamed.ipynb")
    _, said = (
        subprocess.run(["nbgrader", word, name], cwd=home, capture_output=True, text=True).stderr
        for word in ("generate_feedback", "autograde")
    )
    told = (home / "feedback" / "endless" / name / f"{name}.html").read_text()
    assert "Does a loop never end?" in told and "no points for 01." in told
    assert "Traceback (most" not in told and "cflkit.check.grade" not in told
    assert re.search(r"blank/.*renamed\.ipynb is no notebook .*: was it renamed", said)
    assert re.search(r"merged/.*\.ipynb lacks check-.*, which get no score", said)


@pytest.mark.parametrize(
    "guess, shown", [(None, True), (3, True), (2.5, True), (41, False), ("9", False)]
)
def test_a_guess_that_no_figure_can_show_is_told(guess, shown, capsys):
    assert check.guessed(guess, 1, 40) == (guess if shown else None)
    assert ("must be a number from 1 to 40" in capsys.readouterr().out) == (not shown)
