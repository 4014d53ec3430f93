"""Tests of records: what they say, and that nothing interrupts their writing halfway."""

import errno
import json
import os
import shutil
from dataclasses import replace
from unittest.mock import Mock

import pytest
from rounds import played

from cflkit import _project
from cflkit.federation import machine
from cflkit.reproduce import ledger, records
from cflkit.reproduce.papers import ocfl
from cflkit.reproduce.parameters import ParameterError

DEAD = 2**22 + 1  # no process of Linux has such a number


@pytest.fixture(scope="module")
def finished():
    """Make a finished run; return its parameters, its history and its federation."""
    small = {"dataset": "digits-8x8", "balance": "imbalanced", "clients": 6, "draws": 120}
    small |= {"model": "linear", "rounds": 3, "only": ["OCFL-KM", "local"]}
    parameters = ocfl.Parameters.checked(ledger.defaults("03b_ocfl_controls") | small)
    return parameters, *played(ocfl.PAPERS[0], parameters)


def test_a_record_says_what_how_and_where(finished):
    parameters, history, federation = finished
    run = records.run_id(parameters)
    history = replace(history, minutes=1.5, revisions=["a", "b", "b"])
    record = records.write(run, parameters, history, federation)
    assert record.id == run
    assert run.startswith("ocfl-digits-8x8-nonoverlapping-imbalanced-m6-seed0-")
    assert record.paper == "ocfl"
    # The number of seeds that figures show is no part of a record
    assert record.parameters == parameters.model_dump()
    assert "repeats" not in record.parameters
    assert record.summary == json.loads(json.dumps(history.summary()))
    known = record.provenance
    assert known["partition_hash"] == federation.partition.hash
    assert (known["seed"], known["minutes"]) == (0, 1.5)
    assert known["trainings_run"] == history.trained
    assert set(known["versions"]) == {"cflkit", *records.PACKAGES}
    assert "cflkit.methods.ocfl" in known["modules"]
    assert known["code"] == _project.digest_of_code(*known["modules"])
    assert known["processor"] and known["threads"] >= 1
    assert known["products"] == machine.product_library()
    assert known["notebook"] is None  # no notebook has run
    assert known["data_files"] == {}  # the digits are part of scikit-learn
    # It was interrupted twice, and other code was checked out meanwhile
    assert (known["resumed"], known["git_revisions"]) == (2, ["a", "b"])
    changes = _project.git("status", "--porcelain", "--", *_project.CODE)
    assert known["git_clean"] == {None: None, "": True}.get(changes, False)
    assert record.rounds["method"].tolist() == ["OCFL-KM"] * 3 + ["local"] * 3
    assert record.rounds["clusters"].iloc[-1] == "0|1|2|3|4|5"


def test_the_same_run_gives_the_same_file_and_replaces_the_old(finished, monkeypatch):
    """Both files are synced, so that no power cut can leave them empty."""
    synced = []
    monkeypatch.setattr(records.os, "fsync", synced.append)
    first = records.write("run", *finished)
    assert len(synced) == 2
    before = (first.folder / "rounds.csv").read_bytes()
    (first.folder / "stale").write_text("")
    again = records.write("run", *finished)
    assert (again.folder / "rounds.csv").read_bytes() == before
    assert sorted(path.name for path in again.folder.iterdir()) == ["record.json", "rounds.csv"]
    assert [path.name for path in records.results().iterdir()] == ["run"]


def test_what_killed_processes_left_is_swept_and_what_is_in_use_stays(finished):
    kept = records.write("run", *finished)
    (kept.folder / f".record.json.{DEAD}.part").write_text("{")
    state = records.checkpoint("run")  # of an unfinished run
    being_written = state.with_suffix(f".{os.getppid()}.part")
    state.parent.mkdir(parents=True)
    for path in (state, being_written, state.with_suffix(f".{DEAD}.part")):
        path.touch()
    os.utime(state, (0, 0))  # as after a clock that was set back
    # Another run's process may live on another machine, and a user may hide a folder here
    others = [f".other.{DEAD}", ".bak.20261130", ".ipynb_checkpoints"]
    for name in (f".run.{DEAD}", *others):
        (kept.folder.parent / name).mkdir()
    records.remove_leftovers("run")
    assert {*state.parent.iterdir()} == {state, being_written}
    assert sorted(path.name for path in kept.folder.iterdir()) == ["record.json", "rounds.csv"]
    assert {p.name for p in kept.folder.parent.iterdir()} == {*others, "run"}


@pytest.mark.slow
def test_a_damaged_or_edited_record_is_named_and_left_out_and_the_others_stay(finished, capsys):
    """Neither the ledger nor a table of the README gets the number."""
    whole, folder = records.write("whole", *finished), records.write("run", *finished).folder
    record, table = folder / "record.json", folder / "rounds.csv"
    contents, rows = json.loads(record.read_text()), table.read_text()
    without = {name: value for name, value in contents.items() if name != "sha256"}
    no_seed = contents | {"parameters": contents["parameters"] | {"seed": []}}
    edited = contents | {"more": 1}, contents | {"summary": {}}, without
    texts = '{"parameters": ', "[]", '{"a":' * 9999
    for text in (*texts, *map(json.dumps, (*edited, records.sealed(no_seed, folder)))):
        record.write_text(text)
        with pytest.raises(ParameterError, match=r"run/record\.json is damaged"):
            records.read(folder)
    record.write_text(json.dumps(contents))
    table.write_text(rows.replace(",1,", ",2,"))
    found = [r.id for r in records.find_records() if r.folder.parent == whole.folder.parent]
    assert found == ["whole"]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out: {record} is damaged")
    reasons = {"": "missing or damaged", "method,time\nOCFL,1\n": "needs the columns"}
    for bad_rows, message in reasons.items():
        table.write_text(bad_rows)
        record.write_text(json.dumps(records.sealed(contents, folder)))
        with pytest.raises(ParameterError, match=rf"rounds\.csv .*{message}"):
            _ = records.read(folder).rounds
    record.unlink()
    with pytest.raises(ParameterError, match=r"run/record\.json cannot be read"):
        records.read(folder)


def test_a_file_is_written_in_the_place_of_regular_files_alone(tmp_path):
    pipe, table = tmp_path / "pipe", tmp_path / "table.csv"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        records.write_whole(pipe, "text")
    assert pipe.is_fifo()
    # What a killed process left goes, also if another process has its number by now
    left = [tmp_path / f".table.csv.{number}.part" for number in (DEAD, 1)]
    for part in left:
        part.touch()
    os.utime(left[1], (0, 0))
    records.write_whole(table, "text")
    assert sorted(tmp_path.iterdir()) == [pipe, table]


def test_a_written_record_drops_the_checkpoint_and_a_failed_one_keeps_it(finished, monkeypatch):
    """The old record stays, too, unless it ends while the folder is replaced."""
    state = records.checkpoint("run")
    state.parent.mkdir(parents=True)
    full, told = OSError(errno.ENOSPC, "No space left"), "run cannot be written: the disk is full"
    for name, left in (("write_synced", []), ("write_synced", ["run"]), ("Path.replace", [])):
        state.touch()
        for error, message in ((KeyboardInterrupt(), None), (full, told)):
            with monkeypatch.context() as broken, pytest.raises(type(error), match=message):
                broken.setattr(f"cflkit.reproduce.records.{name}", Mock(side_effect=error))
                records.write("run", *finished)
            assert state.exists()
            assert [path.name for path in records.results().iterdir()] == left
        records.write("run", *finished)
        assert not state.exists()


def test_nan_is_null_in_a_record():
    assert records.finite({"a": {"b": float("nan"), "c": 1.0}}) == {"a": {"b": None, "c": 1.0}}


def test_what_is_published_is_what_git_lists_or_what_is_whole(finished, monkeypatch):
    """Outside a clone, a record that is half written is not published."""
    root = records.write("run", *finished).folder.parent.parent
    monkeypatch.setattr(records, "KIT", root)
    shutil.copytree(records.results(), root / "data" / "results")
    shutil.copytree(records.results() / "run", root / "data" / "results" / ".run.123")
    assert [record.id for record in records.committed()] == ["run"]
    (root / ".git").mkdir()
    monkeypatch.setattr(records, "git", lambda *_: None)
    with pytest.raises(ParameterError, match="git cannot list the records"):
        records.committed()


def test_the_claims_of_a_lesson_get_into_its_sealed_record(finished):
    record, claims = records.write("run", *finished), {"it holds": True, "and this": False}
    records.add_claims(record, claims)
    again = records.read(record.folder)
    assert (again.claims, again.summary) == (claims, record.summary)
