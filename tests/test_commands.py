"""Tests of the commands: what they run, and how they refuse wrong arguments."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflkit import _project
from cflkit.__main__ import main
from cflkit.reproduce import ledger, notebooks, records
from cflkit.reproduce.notebooks import NotebookError
from cflkit.reproduce.papers import PAPERS, ocfl
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import as_yaml, parse_yaml, read_yaml

OCFL = PROJECT / "notebooks" / "03_ocfl_temperature.ipynb"
LESSON = notebooks.read_notebook(OCFL)
TINY = ["-p", "rounds", "2", "-p", "clients", "6", "-p", "draws", "40", "-p", "repeats", "1"]
TINY += ["-p", "dataset"]


def refuse(capsys, *arguments):
    """Run a command that must fail, and return its error message of one line."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not records.results().exists() or list(records.results().iterdir()) == []
    return err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("round", "5", "no parameter 'round'"),
        ("rounds", "-1", "rounds: Input should be greater than or equal to 1 (is -1)"),
        ("rounds", "0", "rounds"),
        ("rounds", "many", "rounds: Input should be a valid integer (is 'many')"),
        ("rounds", "2.5", "rounds: Input should be a valid integer (is 2.5)"),
        ("rounds", "true", "rounds: Input should be a valid integer (is True)"),
        ("rounds", "[1", "rounds: '[1' is not YAML"),
        ("lr", "fast", "lr: Input should be a valid number (is 'fast')"),
        ("lr", "-0.1", "lr: Input should be greater than 0"),
        ("lr", ".nan", "lr"),
        ("lr", ".inf", "lr"),
        ("lr", "1" + "0" * 400, "lr"),
        ("weight_decay", "-1", "weight_decay"),
        ("momentum", "1.0", "momentum: Input should be less than 1"),
        ("clients", "2", "clients: Input should be greater than or equal to 3"),
        ("draws", "1", "draws"),
        ("dataset", "svhn", "unknown data set"),
        ("overlap", "some", "overlap: Input should be 'nonoverlapping' or 'overlapping'"),
        ("balance", "0.5", "balance"),
        ("model", "lenet", "unknown model"),
        ("optimizer", "lion", "optimizer: Input should be 'sgd' or 'adam'"),
        ("sattler_eps1", "0", "sattler_eps1: Input should be greater than 0"),
        ("sattler_eps2", "-1", "sattler_eps2: Input should be greater than 0"),
        ("sattler_rounds", "-1", "sattler_rounds"),
        ("briggs_threshold", "2.5", "briggs_threshold: Input should be less than or equal to 2"),
        ("include_buffers", "1", "include_buffers: Input should be a valid boolean"),
        ("central_every", "0", "central_every"),
        ("window", "0", "window"),
        ("seed", "-3", "seed"),
        ("batch_size", "null", "batch_size: Input should be a valid integer (is None)"),
    ],
)
def test_a_wrong_parameter_ends_before_anything_runs(capsys, monkeypatch, name, value, message):
    monkeypatch.setattr(papermill, "execute_notebook", None)
    assert message in refuse(capsys, "run", str(OCFL), "-p", name, value)


def test_parameters_that_contradict_each_other(capsys, monkeypatch):
    monkeypatch.setattr(papermill, "execute_notebook", None)
    error = refuse(capsys, "run", str(OCFL), "-p", "optimizer", "adam", "-p", "momentum", "0.9")
    assert "momentum belongs to sgd" in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rounds: [1", "is not YAML"),
        ("- rounds", "must hold 'name: value' lines"),
        ("", "must hold 'name: value' lines"),
        ("epochs: 3", "no parameter 'epochs'"),
        ("rounds: ten", "valid integer"),
        (b"\xff\xfe\x00", "is not YAML"),
    ],
)
def test_a_wrong_parameter_file(capsys, tmp_path, content, message):
    file = tmp_path / "parameters.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message in refuse(capsys, "run", str(OCFL), "-f", str(file))


def test_files_that_are_not_there_or_are_no_notebooks(capsys, tmp_path):
    assert "cannot be read" in refuse(capsys, "run", str(tmp_path / "absent.ipynb"))
    assert "cannot be read" in refuse(capsys, "run", str(OCFL), "-f", str(tmp_path / "absent"))
    for content in (b"no notebook", b"[]", b'{"cells": [1]}', b"{}", b"\xff\xfe\x00\x80"):
        text = tmp_path / "text.ipynb"
        text.write_bytes(content)
        assert "is not a notebook" in refuse(capsys, "run", str(text))


def test_an_output_overwrites_neither_the_lesson_nor_other_files(capsys, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    for place in (OCFL, notes):
        assert "would be overwritten" in refuse(capsys, "run", str(OCFL), "-o", str(place))
    assert notes.read_text() == "mine"


def test_an_output_that_cannot_be_written(capsys, tmp_path):
    for place in (tmp_path, OCFL / "out.ipynb"):
        assert "cannot be written" in refuse(capsys, "run", str(OCFL), "-o", str(place))


def notebook(tmp_path, *cells):
    """Write a notebook with cells of the given sources and tags."""
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in cells]
    )
    path = tmp_path / "made.ipynb"
    nbformat.write(made, path)
    return str(path)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([("x = 1", [])], "has no parameters; open it in JupyterLab"),
        ([("x = 1", ["parameters"]), ("y = 1", ["parameters"])], "2 cells tagged 'parameters'"),
        ([("x = 1\ny = x + 1", ["parameters"])], "is not 'name = literal'"),
        ([("import os", ["parameters"])], "is not 'name = literal'"),
        ([("x = = 1", ["parameters"])], "a cell is not Python"),
    ],
)
def test_parameters_cells_that_papermill_would_take_silently(capsys, tmp_path, cells, message):
    assert message in refuse(capsys, "run", notebook(tmp_path, *cells), "-p", "x", "2")


def test_a_record_needs_cells_that_are_tagged_for_it():
    with pytest.raises(NotebookError, match="no cells tagged 'record'"):
        notebooks.skip_the_rest([nbformat.v4.new_code_cell("1")])


def test_without_a_model_the_defaults_give_the_types(capsys, tmp_path):
    made = notebook(tmp_path, ("x = 1\nname = 'a'", ["parameters"]))
    assert "x: Input should be a valid integer" in refuse(capsys, "run", made, "-p", "x", "one")
    assert "name: Input should be a valid string" in refuse(capsys, "run", made, "-p", "name", "3")
    lesson = notebooks.Notebook(Path(made), {"cells": []})
    vars(lesson)["defaults"] = {"rate": 0.1, "own": None, "names": ["a"]}
    assert lesson.check({"rate": 1, "own": "x"}) == ({"rate": 1.0, "own": "x"}, None)


@pytest.mark.parametrize(
    ("text", "meant"), [("1e-3", 0.001), ("1", 1.0), ("1.0e-7", 1e-7), ("0.5", 0.5)]
)
def test_numbers_are_what_was_meant(text, meant):
    for name in ("lr", "sattler_eps1"):  # their default is None
        values, _ = LESSON.check({name: parse_yaml(name, text)})
        assert values[name] == meant
        assert isinstance(values[name], float)


def test_the_notebook_itself_refuses_what_was_injected():
    namespace = LESSON.defaults | {"rounds": "20"}
    with pytest.raises(ParameterError, match="rounds: Input should be a valid integer"):
        ocfl.Parameters.of(namespace)
    del namespace["rounds"]
    with pytest.raises(ParameterError, match="rounds: Field required"):
        ocfl.Parameters.of(namespace)


@pytest.mark.parametrize("paper", PAPERS.values(), ids=lambda paper: paper.name)
def test_every_parameter_file_fits_its_notebook(paper):
    notebook = notebooks.read_notebook(PROJECT / "notebooks" / f"{paper.notebook}.ipynb")
    files = sorted((PROJECT / "notebooks" / "params" / paper.folder).glob("*/*.yaml"))
    assert files
    for file in files:
        notebook.check(read_yaml(file))


@pytest.mark.parametrize("scale", ["paper", "reduced"])
def test_explained_models_are_those_of_the_ocfl_runs(scale):
    """Files and defaults together give both papers the same training."""
    params = PROJECT / "notebooks" / "params"
    ours, theirs = (
        ledger.defaults(paper.notebook)
        for paper in (PAPERS["ocfl-explanations"], PAPERS["ocfl-extended"])
    )
    compared = 0
    for file in (params / "explanations" / scale).glob("*.yaml"):
        trained = params / "ocfl" / scale / file.name
        if trained.exists():
            explained = ours | read_yaml(file)
            expected = theirs | read_yaml(trained)
            for name in ocfl.OCFLMethods.model_fields:
                assert explained[name] == expected[name], name
            compared += 1
    assert compared == {"paper": 20, "reduced": 8}[scale]


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PROJECT)} | environment,
    )


@pytest.mark.slow
def test_two_runs_from_another_directory_write_the_same_record(tmp_path, monkeypatch, capfd):
    """The files are equal byte by byte, and the training seed is not that of the partition.

    The runs execute only those cells of the lesson that their records need.
    """
    monkeypatch.chdir(tmp_path)
    made = []
    for number in ("0", "1"):
        results, output = tmp_path / number, tmp_path / f"{number}.ipynb"
        monkeypatch.setenv("CFLKIT_RESULTS", str(results))
        command = ["run", os.path.relpath(OCFL, tmp_path), *TINY, "digits-8x8", "-p", "lr", "1e-1"]
        assert main([*command, "-o", str(output), "--record-only"]) == 0
        printed = capfd.readouterr().out
        [folder] = results.iterdir()
        for told in ("OCFL-HDB", "clusters in round", f"notebook  {output}", str(folder)):
            assert told in printed
        made.append(records.read(folder))
    one, same = ((record.folder / "rounds.csv").read_bytes() for record in made)
    assert one == same
    assert made[0].parameters["lr"] == 0.1
    assert [record.claims for record in made] == [{}, {}]
    _, split = ocfl.data(ocfl.Parameters.checked(made[0].parameters | {"seed": 1}))
    assert split.hash == made[0].provenance["partition_hash"]


FAULTS = {
    "too many clients": (["-p", "clients", "400", "-p", "draws", "null"], "use fewer clients or"),
    "missing": (["-p", "dataset", "pacs-64"], "pacs-64: not found"),
    "no folder": (["-p", "dataset", "mnist"], "which is not a folder that can be read"),
    "damaged": (["-p", "dataset", "fashion-mnist"], "is damaged: its MD5 is"),
    "diverged": (["-p", "lr", "1e30", "-p", "dataset", "digits-8x8"], "diverged in round 1"),
}
LONG = [pytest.param(name, marks=pytest.mark.nightly) for name in list(FAULTS)[:3]]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*LONG, "damaged", "diverged"])
def test_what_fails_inside_a_notebook_is_one_line_too(tmp_path, monkeypatch, capfd, fault):
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"not a gzip file")
    results, output = tmp_path / "results", tmp_path / "out.ipynb"
    monkeypatch.setenv("CFLKIT_DATA", str(tmp_path / ("no" if fault == "no folder" else "data")))
    monkeypatch.setenv("CFLKIT_RESULTS", str(results))
    parameters, message = FAULTS[fault]
    assert main(["run", str(OCFL), *parameters, "-o", str(output)]) == 2
    stderr = capfd.readouterr().err  # includes that of the kernel
    [line] = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert message in line
    assert str(output) in line
    assert "Traceback" not in stderr
    assert not results.exists() or list(results.iterdir()) == []


@pytest.fixture
def notebook_of(tmp_path):
    """Write notebooks with one cell."""

    def write(source):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        path = tmp_path / "one_cell.ipynb"
        nbformat.write(notebook, path)
        return notebooks.read_notebook(path)

    return write


def test_a_kernel_talks_through_files_of_its_own_and_leaves_none(notebook_of, tmp_path):
    source = "from ipykernel import connect\nprint(connect.get_connection_info())"
    _, output = notebooks.execute(notebook_of(source), {}, tmp_path / "out.ipynb")
    connection = json.loads(nbformat.read(output, 4).cells[0].outputs[0].text)
    assert connection["transport"] == "ipc"
    assert not Path(connection["ip"]).parent.exists()


def test_a_kernel_that_dies_is_one_line(notebook_of, tmp_path):
    killed = notebook_of("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(NotebookError, match=r"^Kernel died \(too little memory\?"):
        notebooks.execute(killed, {}, tmp_path / "out.ipynb")


@pytest.mark.slow
def test_ctrl_c_ends_in_one_line_and_the_same_command_goes_on(tmp_path):
    """The record also states that the run was resumed, and the revisions at which it ran."""
    command = [sys.executable, "-m", "cflkit", "run", str(OCFL), *TINY, "digits-8x8"]
    command[command.index("rounds") + 1] = "6"
    command += ["-p", "only", "[FedAvg]", "-o", str(tmp_path / "out.ipynb"), "--record-only"]
    command += ["-p", "local_epochs", "100"]  # the signal has seconds to come in time
    places = {f"CFLKIT_{n}": str(tmp_path / n) for n in ("RESULTS", "CACHE", "FIGURES")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | places | {"PYTHONPATH": str(PROJECT)},
        text=True,
        start_new_session=True,
        # A shell in which the tests run in the background ignores the signal, and so would we
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        for line in process.stderr:
            if line.startswith("round 3 of 6"):
                os.killpg(process.pid, signal.SIGINT)  # to the whole group, as a terminal does
                break
        rest = process.stderr.read().splitlines()
        assert process.stdout.read() == ""
    assert process.returncode == 130
    assert [line for line in rest if not line.startswith("round ")] == [
        "interrupted; the same command goes on from the last checkpoint"
    ]
    done = python("-m", "cflkit", *command[3:], **places)
    assert done.returncode == 0, done.stderr
    run_again = [line[:12] for line in done.stderr.splitlines() if line.startswith("round ")]
    assert "round 2 of 6" not in run_again
    assert run_again[-1] == "round 6 of 6"
    [folder] = (tmp_path / "RESULTS").iterdir()
    provenance = records.read(folder).provenance
    assert provenance["resumed"] == 1
    assert provenance["git_revisions"] == [_project.revision() or "unknown"]
    assert provenance["notebook"] == LESSON.digest


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error():
    """The reader stops early, as in ``grid list TABLE | head -1``."""
    with subprocess.Popen(
        [sys.executable, "-m", "cflkit", "grid", "list", "ocfl/table-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        text=True,
    ) as listing:
        listing.stdout.close()
        assert "Traceback" not in listing.stderr.read()
    assert listing.returncode == 1


def test_data_lists_and_loads(capsys):
    assert main(["data"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["data", "digits-8x8"]) == 0
    assert "1437 images in the pool" in capsys.readouterr().out
    assert "unknown data set" in refuse(capsys, "data", "svhn")
    assert "did you mean 'mnist'?" in refuse(capsys, "data", "MNIST")
    assert "there is no file or folder no/mine.npz" in refuse(capsys, "data", "no/mine.npz")


@pytest.mark.parametrize("command", ["run", "data"])
def test_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: ")


def test_checkpoints_lie_in_the_ignored_cache(monkeypatch):
    monkeypatch.delenv("CFLKIT_CACHE")
    assert records.checkpoint("run").is_relative_to(PROJECT / "data" / "cache")
    assert "data/cache/" in Path(PROJECT / ".gitignore").read_text()


def loaded_by(*arguments):
    """Return the output of a command, and the names of the packages that it loads."""
    code = "import sys; from cflkit.__main__ import main\n"
    code += f"main({list(arguments)})\n"
    code += "print(*(n for n in sys.modules if '.' not in n), file=sys.stderr)"
    done = python("-c", code)
    return done.stdout, set(done.stderr.split())


HEAVY = {"torch", "torchvision", "matplotlib", "captum", "sklearn", "hdbscan", "papermill"}


def test_help_waits_for_nothing_heavy():
    printed, loaded = loaded_by("--help")
    assert printed.startswith("Usage: ")
    assert not loaded & (HEAVY | {"pandas", "numpy", "scipy", "nbformat"})


def test_records_and_ledger_do_not_wait_for_torch(tmp_path):
    printed, loaded = loaded_by("records", "-w", "dataset", "mnist")
    assert "ocfl-mnist-" in printed
    assert not loaded & HEAVY
    printed, loaded = loaded_by("ledger", "--paper", "tutorial-022", "-o", str(tmp_path / "l.csv"))
    assert "tutorial-022" in printed
    assert not loaded & HEAVY


def test_the_readme_command_writes_the_ledger_and_the_tables(tmp_path, monkeypatch, capsys):
    from cflkit.reproduce import ledger, readme

    marker = "<!-- {}: written by python -m cflkit readme -->\nTO REPLACE\n<!-- end -->\n"
    names = ["ledger", "paper-runs", *(p.results.marker for p in PAPERS.values() if p.results)]
    names_here = ("lessons", "reports", "true-groups", "summary", "overhead")
    first = map(marker.format, names_here)
    (tmp_path / "README.md").write_text("before\n" + "".join(first) + "after\n")
    (tmp_path / "results.md").write_text("".join(map(marker.format, names)))
    pages = tmp_path / "README.md", tmp_path / "results.md"
    monkeypatch.setattr(readme, "PAGES", pages)
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "ledger.csv")
    monkeypatch.setattr(records, "committed", lambda: [])
    assert main(["readme"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / "ledger.csv"),
        *map(str, pages),
    ]
    written = (tmp_path / "README.md").read_text()
    assert written.startswith("before\n<!-- lessons")
    assert written.endswith("<!-- end -->\nafter\n")
    assert "TO REPLACE" not in written + pages[1].read_text()
    assert "[03_ocfl_temperature](" in written
    pages[1].write_text("no table")
    with pytest.raises(ValueError, match="no page has a place for ledger"):
        readme.write()
    assert (tmp_path / "ledger.csv").exists()


PRINTABLE = st.text(st.characters(exclude_categories=("C",)))  # YAML has no control characters


@given(PRINTABLE | st.integers() | st.lists(PRINTABLE | st.booleans()))
def test_values_come_back_from_yaml_as_they_were_written(value):
    assert parse_yaml("x", as_yaml(value)) == value


def test_notebooks_of_the_kit_are_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lesson = Path("notebooks/03_ocfl_temperature.ipynb")
    assert notebooks.in_the_clone(lesson) == PROJECT / lesson
    lesson.parent.mkdir()
    lesson.touch()
    assert notebooks.in_the_clone(lesson) == lesson
    assert notebooks.in_the_clone(Path("nowhere.ipynb")) == Path("nowhere.ipynb")


def test_a_folder_without_room_for_results_is_an_error_before_any_work(
    tmp_path, monkeypatch, capsys
):
    place = tmp_path / "file"
    place.touch()
    monkeypatch.setenv("CFLKIT_RESULTS", str(place / "results"))
    assert main(["run", str(OCFL), "-o", str(tmp_path / "out.ipynb")]) == 2
    assert "results cannot be written (Not a directory)" in capsys.readouterr().err
    assert not (tmp_path / "out.ipynb").exists()
    assert main(["robust", str(OCFL), "-o", str(place / "counts.csv")]) == 2
    assert "cannot be written (File exists)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *(("1e-3", 0.001), ("+1E3", 1000.0), ("-5e1", -50.0), ("1.e-7", 1e-7), ("2e5", 2e5)),
        *(("010", 10), ("1:30", "1:30"), ("yes", "yes"), ("null", None), ("None", None)),
        *(("'None'", "None"), ("[None, ~, Nonesuch]", [None, None, "Nonesuch"])),
        *((text, text) for text in ("e3", "1e", "0x1e-3", "1e3m")),
        ("'1e-3'", "1e-3"),
    ],
)
def test_values_are_those_of_yaml_1_2(text, meant):
    """And None is null, as notebooks and messages write it."""
    value = parse_yaml("x", text)
    assert (value, type(value)) == (meant, type(meant))


@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "[1", "2024-02-30", "[" * 5000, "!!python/x y"])
def test_what_yaml_does_not_allow_is_refused(text):
    with pytest.raises(ParameterError, match="is not YAML"):
        parse_yaml("x", text)


def test_a_layer_that_cannot_be_explained_is_refused_before_a_kernel_starts(capsys, monkeypatch):
    monkeypatch.setattr(papermill, "execute_notebook", None)
    lesson = str(PROJECT / "notebooks" / "07_explaining_cluster_models.ipynb")
    assert "layer: the network has no layer 'nonsense'" in refuse(
        capsys, "run", lesson, "-p", "layer", "nonsense"
    )
