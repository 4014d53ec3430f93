"""Tests of the commands: what they run, and how they refuse wrong arguments."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import nbformat
import papermill
import pytest
from click import shell_completion
from hypothesis import given
from hypothesis import strategies as st
from rounds import notebook

from cflkit import __main__
from cflkit.__main__ import main
from cflkit.commands import cli
from cflkit.reproduce import grid, notebooks, records, run_messages
from cflkit.reproduce.claims import MIME
from cflkit.reproduce.notebooks import NotebookError
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import as_yaml, parse_yaml, read_yaml

OCFL = PROJECT / "notebooks" / "03b_ocfl_controls.ipynb"
LESSON = notebooks.read_notebook(OCFL)


WRONG = [
    ("round", "5", "no parameter 'round'; did you mean 'rounds'?"),
    ("methods", "x", "no parameter 'methods'; did you mean 'only'?"),
    ("only", "[OCFL-HBD]", "unknown method 'OCFL-HBD'; did you mean 'OCFL-HDB'?"),
    ("rounds", "-1", "rounds: Input should be greater than or equal to 1 (is -1)"),
    ("lr", "-0.1", "lr: Input should be greater than 0"),
    *(("lr", ".nan", "lr"), ("lr", ".inf", "lr"), ("lr", "1" + "0" * 400, "lr")),
    ("lr", "1e39", "lr: Input should be less than or equal to 34000"),
    ("clients", str(10**23), "less than or equal to"),
    ("clients", "3000 -p draws 1000000", "the clients would have more than 100000000 samples"),
    ("lr", "[&a [1], *a]", "an alias, such as *name, is not allowed"),
    ("lr", "x" * 10_000, "lr: Input should be a valid number"),
    ("overlap", "some", "overlap: Input should be 'nonoverlapping' or 'overlapping'"),
    ("model", "lenet", "model: unknown model 'lenet'"),
    ("optimizer", "adam -p momentum 0.9", "momentum belongs to sgd"),
    ("batch_size", "null", "batch_size: Input should be a valid integer (is None)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_parameter_ends_before_anything_runs(refuse, monkeypatch, name, value, message):
    monkeypatch.setattr(papermill, "execute_notebook", None)
    words = value.split(" ") if " -p " in value else [value]
    told = refuse("run", OCFL, "-p", name, *words)
    assert message in told
    assert len(told) < 3000


def test_a_layer_that_cannot_be_explained_is_refused_before_a_kernel_starts(refuse, monkeypatch):
    monkeypatch.setattr(papermill, "execute_notebook", None)
    lesson = str(PROJECT / "notebooks" / "07b_explanations_controls.ipynb")
    told = refuse("run", lesson, "-p", "layer", "nonsense", "-p", "dataset", "digits-8x8")
    assert "layer: the network has no layer 'nonsense'" in told


def test_files_that_cannot_be_read_or_written(refuse, tmp_path):
    absent, text = tmp_path / "absent.ipynb", tmp_path / "text.ipynb"
    assert "there is no notebook" in refuse("run", absent)
    assert "cannot be read" in refuse("run", OCFL, "-f", absent)
    for content, message in (
        *((b"rounds: [1", "is not YAML"), (b"\xff\xfe\x00", "is not YAML")),
        *((b"", "must hold 'name: value' lines"), (b"epochs: 3", "no parameter 'epochs'")),
    ):
        text.write_bytes(content)
        assert message in refuse("run", OCFL, "-f", text)
    for content in (b"[]", b'{"cells": [1]}', b"\xff\xfe", b'{"cells":' * 9999):
        text.write_bytes(content)
        assert "is not a notebook" in refuse("run", text)
    for place in (tmp_path, OCFL / "out.ipynb"):
        assert "cannot be used (" in refuse("run", OCFL, "-o", place)


def test_only_an_output_of_a_run_is_overwritten(refuse, tmp_path, monkeypatch):
    """Whatever the path, links and pipes among them."""
    monkeypatch.setattr(papermill, "execute_notebook", None)
    lesson, notes, link, pipe = (tmp_path / f"{n}" for n in ("l.ipynb", "n.md", "s.ipynb", "p"))
    lesson.write_bytes(OCFL.read_bytes())
    notes.write_text("mine")
    link.symlink_to(OCFL.with_name("04_sattler_and_briggs.ipynb"))
    os.mkfifo(pipe)
    assert "ending in .ipynb" in refuse("run", OCFL, "-o", tmp_path / "new.txt")
    for place in (lesson, notes, link):
        before = place.read_bytes()
        assert "would be overwritten" in refuse("run", OCFL, "-o", place)
        assert place.read_bytes() == before
    for command in (["run", OCFL, "-o"], ["ledger", "-o"], ["run", OCFL, "-f"], ["run"]):
        assert "no regular file" in refuse(*command, pipe)
    assert pipe.is_fifo()
    executed = json.dumps({"cells": [], "metadata": {"papermill": {"version": "2"}}})
    for text in ("", executed, executed[:-9]):  # the last was killed
        lesson.write_text(text)
        notebooks.check_output(lesson, OCFL)
    with pytest.raises(NotebookError, match="would be overwritten"):
        notebooks.check_output(lesson, lesson)


def test_without_room_for_results_nothing_runs(tmp_path, monkeypatch, refuse):
    place, out = tmp_path / "file", tmp_path / "out.ipynb"
    place.touch()
    monkeypatch.setenv("CFLKIT_RESULTS", str(place / "results"))
    assert "results cannot be used (Not a directory)" in refuse("run", OCFL, "-o", out)
    assert not out.exists()


def test_a_record_needs_cells_that_are_tagged_for_it():
    with pytest.raises(NotebookError, match="no cells tagged 'record'"):
        notebooks.skip_the_rest([nbformat.v4.new_code_cell("1")])


def test_without_a_model_the_defaults_give_the_types(printed, refuse, tmp_path):
    made = notebook(tmp_path, ("x = 1\nname = 'a'\nrate = 0.1\nown = None", "parameters"))
    for name, value, kind in (("x", "one", "integer"), ("name", "3", "string")):
        told = refuse("run", made, "-p", name, value)
        assert f"{name}: Input should be a valid {kind}" in told
    lesson = notebooks.read_notebook(made)
    assert lesson.check({"rate": 1, "own": "x"}) == ({"rate": 1.0, "own": "x"}, None)
    assert printed("run", made, "--list") == "x = 1\nname = 'a'\nrate = 0.1\nown = None\n"


@pytest.mark.parametrize("paper", PAPERS.values(), ids=lambda paper: paper.name)
def test_every_parameter_file_fits_its_notebook(paper):
    notebook = notebooks.read_notebook(PROJECT / "notebooks" / f"{paper.notebook}.ipynb")
    files = sorted((PROJECT / "notebooks" / "params" / paper.folder).glob("*/*.yaml"))
    assert files
    for file in files:
        notebook.check(read_yaml(file))


# --- Kernels and processes -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_kernel_that_dies_is_said(tmp_path):
    ended = notebook(tmp_path, ("import os\nos.kill(os.getpid(), 9)",))
    with pytest.raises(NotebookError, match=r"^Kernel died \(too little memory\? see "):
        notebooks.execute(notebooks.read_notebook(ended), {}, tmp_path / "out.ipynb")


@pytest.mark.slow
def test_our_own_python_runs_in_a_long_temporary_folder_and_leaves_nothing(tmp_path, monkeypatch):
    """Another environment's kernel has the same name, and the path is too long for sockets."""
    spec, deep = tmp_path / "jupyter" / "kernels" / "python3", tmp_path / ("x" * 100)
    spec.mkdir(parents=True)
    deep.mkdir()
    foreign = {"argv": ["/no/python", "-f", "{connection_file}"], "display_name": "foreign"}
    (spec / "kernel.json").write_text(json.dumps(foreign))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    asks = notebook(tmp_path, ("import sys\nprint(sys.executable)",))
    output = tmp_path / "out.ipynb"
    notebooks.execute(notebooks.read_notebook(asks), {}, output)
    [*_, cell] = nbformat.read(output, 4).cells
    assert cell.outputs[0].text.strip() == sys.executable
    assert [*deep.iterdir()] == []


def test_folders_of_killed_processes_are_removed_and_those_of_living_kernels_are_not(monkeypatch):
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        Path(short, f"cflkit-kernel.{2**22 + 1}.left").mkdir()
        (mine := Path(short, "cflkit.2024")).mkdir()
        with notebooks.private_sockets() as one, notebooks.private_sockets() as other:
            folders = {Path(own["KernelManager"]["ip"]).parent for own in (one, other)}
            assert {*Path(short).iterdir()} == folders | {mine}
        assert [*Path(short).iterdir()] == [mine]


@pytest.mark.slow
def test_a_cell_that_fails_is_said_and_a_kernel_leaves_none_of_its_own_files(tmp_path, capfd):
    source = "from ipykernel import connect\nprint(connect.get_connection_info())\n"
    failing = notebooks.read_notebook(notebook(tmp_path, (f"{source}raise ValueError('not so')",)))
    output = tmp_path / "out.ipynb"
    with pytest.raises(NotebookError, match=rf"^ValueError: not so \(see {output}\)$"):
        notebooks.execute(failing, {}, output)
    assert "Traceback" not in capfd.readouterr().err  # also of the kernel
    *_, cell = nbformat.read(output, 4).cells
    connection = json.loads(cell.outputs[0].text)
    assert connection["transport"] == "ipc"
    assert not Path(connection["ip"]).parent.exists()


def test_a_method_that_was_not_chosen_is_no_bare_key_error(tmp_path):
    cells = ("only = None", "parameters"), ("{}['FedAvg']",)
    failing = notebooks.read_notebook(notebook(tmp_path, *cells))
    with pytest.raises(NotebookError, match=r"KeyError: 'FedAvg' .* --record-only leaves the cell"):
        notebooks.execute(failing, {"only": ["OCFL-HDB"]}, tmp_path / "out.ipynb")


def test_notebooks_have_the_parameters_that_pages_give_them():
    """Each command of a page that runs one of ours with options, as far as it is on one line."""
    pages = [*(PROJECT / "notebooks").glob("*.md"), PROJECT / "README.md"]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    runs = [shlex.split(line) for line in lines if line.startswith("python -m cflkit run ")]
    assert len(runs) > 4
    for words in (words for words in runs if "path" not in Path(words[4]).parts):
        [path] = (PROJECT / "notebooks").glob(f"{Path(words[4]).stem.partition('_')[0]}_*.ipynb")
        own = notebooks.read_notebook(path)
        given = {words[i + 1] for i, word in enumerate(words) if word == "-p"}
        assert given <= set(own.defaults), words


def python(*arguments, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    options["env"] = os.environ | {"PYTHONPATH": str(PROJECT)}
    return subprocess.Popen([sys.executable, *arguments], **options)


GOES_ON = "interrupted; the same command goes on from what was kept, if anything"


def test_ctrl_c_is_one_line(capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "run", interrupted)
    assert main(["run", str(OCFL)]) == 130
    assert capsys.readouterr().err == f"{GOES_ON}\n"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)],
)
def test_a_run_that_is_ended_leaves_no_process_and_goes_on(monkeypatch, number, status):
    """The record also states that the run was resumed. Containers have unbuffered streams.

    A terminal interrupts the whole group, and a batch system ends the main process alone. The
    streams end when the kernel has ended, too.
    """
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    command = ["-m", "cflkit", "run", str(OCFL), "--record-only", "--verbose"]
    tiny = {"rounds": "6", "clients": "6", "draws": "40", "repeats": "1", "dataset": "digits-8x8"}
    tiny |= {"only": "[FedAvg]", "local_epochs": "100"}  # the signal has seconds to come in time
    command += [word for pair in tiny.items() for word in ("-p", *pair)]
    command += ["-o", str(records.results().with_name("out.ipynb"))]
    with python(
        *command,
        start_new_session=True,
        # A shell in which the tests run in the background ignores the signal, and so would we
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        for line in process.stderr:
            if line.startswith("round 3 of 6"):
                end = os.killpg if number == signal.SIGINT else os.kill
                end(process.pid, number)
                break
        rest = process.stderr.read().splitlines()
        assert process.stdout.read() == ""
    assert process.returncode == status
    told = [GOES_ON] if number == signal.SIGINT else []  # a kernel whose parent is gone says so
    assert [line for line in rest if not line.startswith(("round ", "[IPKernelApp]"))] == told
    with python(*command) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert "round 2 of 6" not in err and "round 6 of 6" in err
    [folder] = records.results().iterdir()
    assert records.read(folder).provenance["resumed"] == 1


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error():
    """The reader stops early, as in ``grid list TABLE | head -1``."""
    with python("-m", "cflkit", "grid", "list", "tutorial/table") as listing:
        listing.stdout.close()
        assert "Traceback" not in listing.stderr.read()
    assert listing.returncode == 1


@pytest.mark.slow
def test_no_stream_ends_a_command():
    """Standard output can be closed, or have another encoding."""
    for encoding, closed in (("ascii", ""), ("utf-8", ">&-")):
        command = f"'{sys.executable}' -m cflkit run --help {closed}"
        environment = os.environ | {"PYTHONPATH": str(PROJECT), "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, shell=True, env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (b"Run a notebook, also with other parameters." in done.stdout) != bool(closed)


def test_what_git_tells_is_read_in_any_locale(repository):
    code = "from cflkit._project import git; print(ascii(git('show', ':cflkit/clustering.py')))"
    locale = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(PROJECT)}
    assert rb"\u0393" in subprocess.check_output([sys.executable, "-c", code], env=locale)


def test_a_text_of_another_person_does_not_control_the_terminal(monkeypatch):
    written = io.BytesIO(), io.BytesIO()
    for name, buffer in zip(("stdout", "stderr"), written, strict=True):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(buffer, encoding="ascii"))
    __main__.use_terminals()
    for stream in (sys.stdout, sys.stderr):
        print("\x1b]0;title\x07 \x1b[2K\r\tε \ud800", file=stream, flush=True)
    out, err = (buffer.getvalue() for buffer in written)
    assert out == rb"\x1b]0;title\x07 \x1b[2K\r" + b"\t? ?\n"
    assert err == rb"\x1b]0;title\x07 " + b"\x1b[2K\r\t" + rb"\u03b5 \ud800" + b"\n"


HEAVY = {"torch", "torchvision", "matplotlib", "captum", "sklearn", "hdbscan", "papermill"}


@pytest.mark.slow
def test_what_only_lists_does_not_wait_for_torch(tmp_path):
    commands = [
        ("--help", "Usage: ", HEAVY | {"pandas", "numpy", "scipy", "nbformat"}),
        ("grid list ocfl/table-1", "ocfl-mnist-over", HEAVY | {"pandas"}),
        ("records -w dataset mnist", "ocfl-mnist-", HEAVY),
        (f"ledger --paper tutorial-022 -o {tmp_path}/l.csv", "tutorial-022", HEAVY),
    ]
    code = "import sys; from cflkit.__main__ import main\n"
    code += f"for command in {[command.split() for command, *_ in commands]}:\n"
    code += "    main(command)\n    print(*(n for n in sys.modules if '.' not in n), end='\\0')"
    with python("-c", code) as process:
        *told, rest = process.communicate()[0].split("\0")
    assert rest == ""
    for printed, (_, expected, heavy) in zip(told, commands, strict=True):
        assert expected in printed
        assert not heavy & set(printed.splitlines()[-1].split())


# --- Other commands ------------------------------------------------------------------------------


def test_data_lists_and_loads(printed, refuse):
    for arguments, told in (([], "digits"), (["digits-8x8"], "1437")):
        assert told in printed("data", *arguments)
        assert told in str(json.loads(printed("data", *arguments, "--json")))
    assert "did you mean 'mnist'?" in refuse("data", "MNIST")


def test_a_notebook_is_found_from_any_folder(tmp_path, monkeypatch, printed, refuse):
    """And a mistyped one gets a near match."""
    monkeypatch.chdir(tmp_path)
    for name in ("03b", OCFL.stem, OCFL.name, f"notebooks/{OCFL.name}"):
        assert printed("run", name, "--list").rstrip("\n") == LESSON.parameters_cell
    near = "did you mean '03b_ocfl_controls'?"
    for name in ("03b_ocfl_contrls", "notebooks/03B_ocfl_controls.ipynb"):
        assert near in refuse("run", name)
    told = refuse("run", "ocfl")
    assert told.endswith("there are 03_ocfl_temperature, 03b_ocfl_controls, 93_report_ocfl\n")
    assert "there are 00, 01, 01b, 02," in refuse("run", "13")
    Path("03").touch()  # the reader's own file wins
    assert "03 is not a notebook" in refuse("run", "03")


MISTYPED = [
    ("lgder", "'ledger'"),
    ("grid list ocfl/tabel-1", "'ocfl/table-1'"),
    ("grid list ocfl/table-1 -w sead 1", "'seed'"),
    ("ledger --paper oclf", "'ocfl'"),
    ("records -w dataet mnist", "'dataset'"),
    ("records -w dataset mnits", "'mnist'"),
]


@pytest.mark.parametrize(("command", "near"), MISTYPED)
def test_a_mistyped_name_gets_a_near_match(refuse, command, near):
    assert f"id you mean {near}?" in refuse(*command.split())


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80])
def test_tables_fit_the_terminal_and_lose_no_value(printed, monkeypatch, tmp_path, width):
    records_of = ["records", "-w", "clients", "30"]
    [run] = [job.run for job in grid.jobs_of("tutorial/table", {"seed": "0"})]
    ledger_of = ["ledger", "--paper", "tutorial-022", "-o", str(tmp_path / "l.csv")]
    for command in (["grid", "list"], ledger_of, records_of, ["records", run]):
        monkeypatch.setenv("COLUMNS", "1000")
        wide = printed(*command)
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = printed(*command)
        table = re.sub(r"^(ledger  |unknown:|stale:|python ).*", "", narrow, flags=re.M)
        assert all(len(line) <= width or " " not in line for line in table.splitlines()), command
        words = {word.strip(",") for word in narrow.split()}
        assert {word.strip(",") for word in wide.split()} - words <= {"–"}, command


def test_each_help_has_an_example_that_is_understood(printed):
    assert "  ledger    Show the papers' numbers beside ours.\n" in printed()
    for name, command in [("", cli), *cli.commands.items()]:
        text = printed(*name.split(), "--help")
        [shown] = re.findall(r"Example:\n +python -m cflkit (.*)", text)
        given, *arguments = shown.split()
        assert given == (name or "run"), name
        cli.commands[given].make_context(given, arguments)
        assert command.help


@pytest.mark.slow
def test_json_for_other_programs(printed, refuse):
    def values(*words):
        return json.loads(printed(*words, "--json"))

    listed = {row["table"]: row for row in values("grid", "list")}
    assert [*listed] == grid.tables()
    of_one = values("grid", "list", "tutorial/table")
    assert listed["tutorial/table"]["runs"] == len(of_one) == 5
    run = of_one[0]["run"]
    assert run in [row["record"] for row in values("records", "-w", "clients", "30")]
    [record] = values("records", run)
    assert record["id"] == run and record["summary"]
    [verdict] = values("replay", run, "--rounds", "1")
    assert verdict["round"] == 1 and verdict["outcome"] in ("same", "same to rounding")
    assert "name a table: emd-cfl/" in refuse("grid", "run")


def test_lessons_are_copied_into_a_new_folder_only(tmp_path, printed, refuse):
    begin = Path(printed("lessons", tmp_path / "mine").split()[-1])
    assert begin.read_bytes() == (grid.NOTEBOOKS / begin.name).read_bytes()
    picture = re.search(r"\]\((\.\./figures/[^)]+)\)", begin.read_text(encoding="utf-8"))
    assert (begin.parent / picture[1]).exists() and not (begin.parent / "src").exists()
    assert "(File exists)" in refuse("lessons", str(tmp_path))
    assert "lies among the lessons" in refuse("lessons", str(grid.NOTEBOOKS / "mine"))


def test_the_shell_completes_notebooks_and_tables():
    def completed(*words):
        shell = shell_completion.BashComplete(cli, {}, "cflkit", "_CFLKIT_COMPLETE")
        return [item.value for item in shell.get_completions([*words[:-1]], words[-1])]

    assert completed("run", "03") == ["03_ocfl_temperature", "03b_ocfl_controls"]
    assert completed("grid", "list", "ocfl/w") == ["ocfl/whole"]


# --- What a run tells ----------------------------------------------------------------------------


def test_a_run_is_told_in_few_lines():
    [place] = (PROJECT / "data" / "results").glob("tutorial-bumps-m30-seed0-*")
    record = records.read(place)
    claims = {"it holds": True, "and this": False}
    data = {MIME: list(claims.items()), "text/plain": "as text"}
    output = nbformat.v4.new_output("display_data", data)
    figure = nbformat.v4.new_output("stream", name="stdout", text="figure    f.png\nmore\n")
    new = nbformat.v4.new_code_cell
    cells = [new(outputs=[output]), new(outputs=[figure], metadata={"tags": ["report"]})]
    lines = run_messages.brief(cells, record, OCFL, PROJECT / "out.ipynb").splitlines()
    assert lines[0].startswith(f"{len(record.summary)} methods: 30 clients, 60 rounds.")
    rows = {line[:17].strip(): line.split() for line in lines}
    measures = record.summary["Signatures"]
    shown = [str(measures["n_clusters"]), str(measures["clustering_round"])]
    assert rows["Signatures"][1:] == [*shown, *(f"{measures[n]:.2f}" for n in ("ari", "accuracy"))]
    assert any(line.startswith("claims    1 of 2 claims") for line in lines)
    assert "figure    f.png" in lines and "more" not in lines
    lines = run_messages.brief(cells, None, OCFL, PROJECT / "out.ipynb").splitlines()
    assert lines[:3] == ["more", "true   it holds", "FALSE  and this"]
    diverged = replace(record, summary={"Signatures": measures | {"diverged_in": 3}})
    assert re.search(r"diverged in round\n.* 3\n", "\n".join(run_messages.story(diverged)))


@pytest.mark.slow
def test_every_record_can_be_told():
    for record in records.find_records():
        head, *_ = run_messages.story(record)
        assert re.match(r"(1 method|(?!1 )\d+ methods)\b", head)


def test_rounds_are_told_in_one_line_that_changes_or_in_all_lines():
    screen, file = io.StringIO(), io.StringIO()
    screen.isatty = lambda: True
    lines = [f"round {now} of 4 (0.1 s per round); T 0.5; clusters: many\n" for now in range(1, 5)]
    for stream in (screen, file):
        rounds = run_messages.Rounds(stream)
        for line in (*lines, "a warning\n"):
            rounds.write(line)
        rounds.end()
    assert screen.getvalue().endswith("\r\x1b[2Kround 4 of 4 (0.1 s per round)\r\x1b[2Ka warning\n")
    assert "clusters" not in screen.getvalue() and screen.getvalue().count("\n") == 1
    assert file.getvalue() == "".join((*lines, "a warning\n"))


# --- Values --------------------------------------------------------------------------------------

PRINTABLE = st.text(st.characters(exclude_categories=("C",)))  # YAML has no control characters


@given(PRINTABLE | st.integers() | st.lists(PRINTABLE | st.booleans()))
def test_values_come_back_from_yaml_as_they_were_written(value):
    assert parse_yaml("x", as_yaml(value)) == value


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *(("1e-3", 0.001), ("+1E3", 1000.0), ("1.e-7", 1e-7), ("2e5", 2e5), (".5", 0.5)),
        *(("010", 10), ("-010", -10), ("+5", 5), ("1:30", "1:30"), ("yes", "yes")),
        *(("null", None), ("None", None), ("'None'", "None"), ("[None, ~]", [None, None])),
        *(("e3", "e3"), ("'1e-3'", "1e-3")),
    ],
)
def test_values_are_those_of_yaml_1_2(text, meant):
    """And None is null, as notebooks and messages write it."""
    value = parse_yaml("x", text)
    assert (value, type(value)) == (meant, type(meant))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{a: 1, a: 2}", "[1", "2024-02-30", "[" * 5000, "!!python/x y"])
def test_what_yaml_does_not_allow_is_refused(text):
    with pytest.raises(ParameterError, match="is not YAML"):
        parse_yaml("x", text)
