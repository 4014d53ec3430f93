"""Tests of grids of runs: their contents, and that they survive failures and kills."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import worker

from cflkit.__main__ import main
from cflkit.reproduce import grid, notebooks, records
from cflkit.reproduce.papers import ocfl
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import parse_yaml, read_yaml

TABLE = "ocfl/table-1"
LESSON = grid.NOTEBOOKS / "03b_ocfl_controls.ipynb"
TINY = worker.SMALL | {"rounds": 100, "only": ["FedAvg", "OCFL-HDB", "local"]}


@pytest.fixture
def small_grid(tmp_path, monkeypatch):
    """Make a grid of four short runs, with its files and all results in a temporary folder.

    Its notebook is a lesson with one more cell, which no record needs, and which fails.
    """
    params = tmp_path / "params"
    (params / "own" / "tiny").mkdir(parents=True)
    for balance in ("balanced", "imbalanced"):
        scenario = TINY | {"balance": balance}
        (params / "own" / "tiny" / f"{balance}.yaml").write_text(json.dumps(scenario))
    lesson = nbformat.read(LESSON, 4)
    lesson.cells.append(nbformat.v4.new_code_cell("raise ValueError('not for the record')"))
    nbformat.write(lesson, path := tmp_path / LESSON.name)
    description = {
        "notebook": str(path),
        "file": "tiny/{balance}.yaml",
        "alike": {"partition_seed": "seed"},
        "grids": [{"balance": ["balanced", "imbalanced"], "seed": [0, 1]}],
    }
    (params / "own" / "tiny.yaml").write_text(json.dumps(description))
    monkeypatch.setattr(grid, "PARAMS", params)
    monkeypatch.setattr(notebooks, "RUNS", tmp_path / "runs")
    return params


def place_record(run):
    """Write a record of a run that is found, though it is empty."""
    (records.results() / run).mkdir(parents=True)
    (records.results() / run / "record.json").write_text("{}")


@pytest.mark.slow
def test_the_grid_of_table_1_holds_every_scenario_at_both_scales():
    jobs = grid.jobs_of(TABLE)
    assert len(jobs) == 3 * (40 + 16)
    assert len({job.run for job in jobs}) == len(jobs)
    assert {job.file for job in jobs} == set((grid.PARAMS / "ocfl").glob("*/*.yaml"))
    for job in jobs:
        assert job.values.get("seed", 0) == job.values.get("partition_seed", 0)
    # Every committed record of the table is a run of its grid
    done = {job.run for job in jobs if job.status == "done"}
    reduced = grid.jobs_of(TABLE, {"scale": "reduced"})
    assert done and done <= {job.run for job in reduced}
    for job in (job for job in reduced if job.values.get("seed") == 2):
        words = job.command()
        given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}
        values = read_yaml(PROJECT / words[words.index("-f") + 1])
        values |= {name: parse_yaml(name, value) for name, value in given.items()}
        source = notebooks.read_notebook(PROJECT / words[1])
        run = ocfl.Parameters.checked(source.defaults | values)
        assert records.run_id(run) == job.run, "the command writes the record that is named"


@pytest.mark.slow
def test_every_run_of_a_table_can_be_committed(repository):
    """Git ignores the records of the lessons' digits, and no others."""
    runs = {job.run for table in grid.tables() for job in grid.jobs_of(table)}
    assert any("emnist-digits" in run for run in runs)
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    folders = "\n".join(f"data/results/{run}" for run in runs)
    done = subprocess.run(command, input=folders, capture_output=True, text=True, cwd=PROJECT)
    ignored = {Path(line).name for line in done.stdout.splitlines()}
    assert ignored == {run for run in runs if re.search("(?<!emnist)-digits-|m30-seed42-", run)}


def test_where_chooses():
    chosen = grid.jobs_of(TABLE, {"scale": "reduced", "dataset": "mnist", "seed": "1"})
    assert len(chosen) == 8
    assert all("-mnist-" in job.run and "-seed1-" in job.run for job in chosen)
    clean = grid.jobs_of("fedcref/tables", {"scale": "reduced", "dirtiness": "0"})
    assert {"-dirty0-" in job.run or "-dec-" in job.run for job in clean} == {True}
    with pytest.raises(ParameterError, match=r"no run of ocfl/table-1 has seed 7; .* 0, 1, 2"):
        grid.jobs_of(TABLE, {"seed": "7", "scale": "reduced"})


def test_a_dry_run_lists_what_is_missing_and_a_changed_parameter_only_its_runs(small_grid, printed):
    def listed():
        return printed("grid", "run", "own/tiny", "--dry-run").splitlines()

    jobs = grid.jobs_of("own/tiny")
    assert [job.status for job in jobs] == ["missing"] * 4
    assert len(listed()) == 4
    for job in jobs[:3]:
        place_record(job.run)
    [left] = listed()
    command, run = left.split("  # ")  # as the Snakefile reads it
    assert command.endswith("imbalanced.yaml -p seed 1 -p partition_seed 1 --missing --record-only")
    assert run == jobs[3].run
    # With another learning rate in one scenario's file, only its two runs must be done again
    file = small_grid / "own" / "tiny" / "balanced.yaml"
    file.write_text(json.dumps(read_yaml(file) | {"lr": 0.05}))
    statuses = [job.status for job in grid.jobs_of("own/tiny")]
    assert statuses == ["missing", "missing", "done", "missing"]
    assert len(listed()) == 3


def test_a_grid_tells_what_failed_and_goes_on(small_grid, monkeypatch, capsys):
    jobs = grid.jobs_of("own/tiny")
    done, fails, *rest = [job.run for job in jobs]
    place_record(done)
    left = iter(jobs[1:])

    def run(*words, missing, record_only):
        job = next(left)
        assert words == (job.notebook, dict.fromkeys(job.values, "1"), job.file)
        if job.run == fails:
            raise notebooks.NotebookError("no\nmemory")
        place_record(job.run)

    monkeypatch.setattr(notebooks, "run", run)
    assert main(["grid", "run", "own/tiny"]) == 1
    out, err = capsys.readouterr()
    outcomes = [(fails, "failed (no memory)"), *((run, "done") for run in rest)]
    assert re.findall(r"(\S+): (.+)  0\.0 min", out) == outcomes
    assert err == "3 of 4 done\n"


MISTAKES = [
    ({"file": "{scale}.yaml"}, "a grid has no scale"),
    ({"alike": {"sead": "seed"}}, "no parameter 'sead'"),
    ({"grids": [{"balance": ["balanced"], "seed": [0], "sed": [1, 2]}]}, "sed is neither"),
    ({"grids": [{"balance": ["even"], "seed": [0]}]}, "cannot be read"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_grid_file_with_a_mistake(small_grid, change, message):
    path = small_grid / "own" / "tiny.yaml"
    path.write_text(json.dumps(read_yaml(path) | change))
    with pytest.raises(ParameterError, match=message):
        grid.jobs_of("own/tiny")


def test_a_notebook_without_record_is_never_missing_one(refuse):
    assert "writes no record" in refuse("run", "00", "--missing")


def test_no_two_processes_run_the_same(small_grid):
    job = grid.jobs_of("own/tiny")[0]
    refused = pytest.raises(notebooks.NotebookError, match="is being run by another process")
    with notebooks.run_lock(job.run), refused:
        notebooks.run(job.notebook, {}, job.file, notebooks.RUNS / "out.ipynb")
    with notebooks.run_lock(job.run):
        pass  # the refused run does not hold it


@pytest.mark.slow
def test_a_run_elsewhere_writes_the_record_of_its_cells(small_grid, tmp_path, monkeypatch, printed):
    """The files are equal byte by byte, and the training seed is not that of the partition.

    The run executes only those cells of the notebook that its record needs.
    """
    monkeypatch.chdir(tmp_path)
    lesson = notebooks.read_notebook(Path(LESSON.name))
    command = ["run", lesson.path.name, "-f", "params/own/tiny/balanced.yaml"]
    command += ["-p", "rounds", "2", "-p", "lr", "1e-1", "--record-only"]
    command += ["-p", "only", "[FedAvg-FT]"]  # its row has no clusters
    assert f"notebook  {tmp_path / 'out.ipynb'}" in printed(*command, "-o", "out.ipynb")
    assert printed(*command, "--missing") == "the record is there already\n"
    [folder] = records.results().iterdir()
    made = records.read(folder)
    assert (made.parameters["lr"], made.claims) == (0.1, {})
    assert made.provenance["notebook"] == lesson.digest
    _, split = ocfl.data(ocfl.Parameters.checked(made.parameters | {"seed": 1}))
    assert split.hash == made.provenance["partition_hash"]
    there = (folder / "rounds.csv").read_bytes()
    here = lesson.defaults | made.parameters
    for cell in lesson.tree.cells:
        if "record" in cell.metadata.get("tags", []):
            exec(cell.source, here)
    assert here["run_name"] == made.id
    assert (folder / "rounds.csv").read_bytes() == there
    assert records.read(folder).provenance["notebook"] is None


# --- Kills ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker_process():
    """Start `worker.run` in separate processes, which share one import of the packages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cflkit.reproduce.notebooks", "hdbscan", "torchvision"])

    def begin(*arguments):
        process = context.Process(target=worker.run, args=arguments)
        process.start()
        process.join()
        return process.exitcode

    return begin


@pytest.fixture(scope="module")
def undisturbed(worker_process, tmp_path_factory):
    """Return the table of a run that is not killed."""
    folder = tmp_path_factory.mktemp("calm")
    assert worker_process(folder) == 0
    return (folder / "results" / worker.RUN / "rounds.csv").read_bytes()


DAILY = ["after the first checkpoint", "while the record is replaced"]
PHASES = [pytest.param(p, marks=[] if p in DAILY else pytest.mark.nightly) for p in worker.PHASES]


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_any_phase_loses_nothing(worker_process, undisturbed, tmp_path, phase):
    """After a kill, there is a whole record or none, and the next run ends normally."""
    table = tmp_path / "results" / worker.RUN / "rounds.csv"
    for _ in range(2):  # first without a record, then with one
        assert worker_process(tmp_path, phase) == -signal.SIGKILL
        assert worker_process(tmp_path) == 0
        assert [path.name for path in (tmp_path / "results").iterdir()] == [worker.RUN]
        assert table.read_bytes() == undisturbed
    assert not list((tmp_path / "cache" / "checkpoints").glob("*.p*t"))


@pytest.mark.nightly
def test_a_full_disk_is_a_clear_error_and_leaves_no_half_record(small_grid):
    """A limit on the size of files simulates the full disk."""
    job = grid.jobs_of("own/tiny")[0]
    bound = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
    bound += "from cflkit.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", bound, "run", str(job.notebook), "-f", str(job.file)]
    command += ["-p", "model", "compact-cnn"]  # its checkpoints are larger than the limit
    command += ["--record-only", "-o", str(notebooks.RUNS / "out.ipynb")]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=environment)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "cannot be written: the disk is full" in line
    assert not list(records.results().parent.glob("results/*"))
    assert not list(records.checkpoint("x").parent.glob("*.p*t"))
