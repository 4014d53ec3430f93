"""Tests of the commands that replay, list and compare records."""

import dataclasses
import json
import shutil
from unittest.mock import Mock

import pandas as pd
import pytest
from rounds import played

from cflkit import datasets
from cflkit.__main__ import main
from cflkit.reproduce import ledger, lists, records, replay
from cflkit.reproduce.papers import ocfl
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.replay import DIFFERENT, ROUNDED, SAME

QUICK = {"dataset": "digits-8x8", "model": "linear", "clients": 6, "draws": 60, "rounds": 4}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The record of a short run of the OCFL papers' methods."""
    usual = ledger.defaults("03b_ocfl_controls")
    run = ocfl.Parameters.checked(usual | QUICK | {"lr": 0.05})
    history, federation = played(ocfl.PAPERS[0], run)
    with pytest.MonkeyPatch.context() as places:
        places.setenv("CFLKIT_RESULTS", str(tmp_path_factory.mktemp("kept")))
        return records.write(records.run_id(run), run, history, federation)


@pytest.fixture
def made(kept):
    """A copy of the record, which a test may change."""
    return records.read(shutil.copytree(kept.folder, records.results() / kept.id))


def change(record, method, round, column, value):
    """Change a cell of the record's rows."""
    rows = record.table(**records.TEXTS)
    rows.loc[rows["method"].eq(method) & rows["round"].eq(str(round)), column] = value
    rows.to_csv(record.folder / "rounds.csv", index=False)
    seal(record.folder)


def seal(folder, **changes):
    """Change the contents of a record, and write digests that agree with them."""
    contents = json.loads((folder / "record.json").read_text()) | changes
    (folder / "record.json").write_text(json.dumps(records.sealed(contents, folder)))


@pytest.mark.slow
def test_a_record_comes_out_the_same(made):
    # All data in one place, for example, are a row that no method makes, and that is not replayed
    rows = made.table(**records.TEXTS)
    more = rows.iloc[:1].assign(method="Global DEC")
    pd.concat([rows, more]).to_csv(made.folder / "rounds.csv", index=False)
    assert [verdict.outcome for verdict in replay.replay(made, rounds=4)] == [SAME] * 4


@pytest.mark.slow
def test_other_numbers_are_rounding_or_not(made, printed, capsys):
    """Numbers in the last digits are rounding, and another cluster is not."""
    pf1 = made.by_method["FedAvg"]["pf1"].iloc[1]
    change(made, "FedAvg", 2, "pf1", f"{pf1 + 1e-6:.9g}")
    rounded = "round 1: same\nround 2: same to rounding  (FedAvg: pf1)\n"
    assert printed("replay", made.id) == rounded
    change(made, "oracle", 1, "clusters", "0|0|0|0|1|1")
    assert main(["replay", made.id, "--rounds", "1"]) == 1
    assert capsys.readouterr().out == "round 1: different  (oracle: clusters)\n"


def test_rows_and_values_that_are_missing_now_are_differences():
    def table(*rows):
        return pd.DataFrame(rows, columns=["method", "round", "ari", "new"])

    recorded = table(("A", "1", "1", ""), ("B", "1", "1", ""), ("A", "2", "1", ""))
    for now, where in (
        (table(("A", "1", "1", "0.5")), ["B: no such row now"]),
        (recorded[:2].drop(columns="ari"), ["A: ari", "B: ari"]),
        (recorded.iloc[[0, 1, 1]], ["B: a row that the record does not have"]),
    ):
        assert replay.verdicts(recorded, now) == [replay.Verdict(1, DIFFERENT, where)]
    # Where nothing was recorded, nothing is the same
    found = replay.verdicts(table(("A", "1", "", "")), recorded[:1])
    assert found == [replay.Verdict(1, DIFFERENT, ["A: nothing was recorded"])]


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        *(("0.5", "0.5", SAME), ("0.5", "0.504", ROUNDED), ("0.5", "0.52", DIFFERENT)),
        *(("0.02", "0.0203", ROUNDED), ("0.0000153", "0.0049", DIFFERENT)),
        *(("1e-12", "-3e-12", ROUNDED), ("3", "4", DIFFERENT), ("0.5", "", DIFFERENT)),
        *(("1.5|2.5", "1.501|2.5", ROUNDED), ("1.5|2.5", "1.5", DIFFERENT)),
        *(("0|0|1", "0|1|1", DIFFERENT), ("GradCAM", "noise", DIFFERENT)),
        *((infinite, "0.5", DIFFERENT) for infinite in ("inf", "-inf", "nan", "")),
        *((same, same, DIFFERENT) for same in ("inf", "1|inf", "", "nan|nan")),
        *(("nan|1", "nan|1", SAME), ("nan|1", "nan|1.001", ROUNDED), ("nan|1", "1|nan", DIFFERENT)),
    ],
)
def test_two_values_by_hand(old, new, outcome):
    assert replay.alike(old, new, "temperature") == outcome


@pytest.mark.parametrize("column", ["accuracy", "insertion_p05", "wrong", "scores"])
def test_shares_near_zero_may_differ_in_the_third_digit(column):
    assert replay.alike("0.002", "0.006", column) == ROUNDED
    assert replay.alike("0.002", "0.008", column) == DIFFERENT


def test_what_cannot_be_replayed_is_said(made, monkeypatch):
    for rounds in (0, 5):
        with pytest.raises(ParameterError, match=f"has 4 rounds and cannot be run for {rounds}"):
            replay.replay(made, rounds=rounds)
    with monkeypatch.context() as variables:
        variables.setenv("CFLKIT_THREADS", "0")
        with pytest.raises(ParameterError, match=r"cannot be replayed here: .*'0'"):
            replay.replay(made)
    images = dataclasses.replace(datasets.load("digits-8x8"), files={"mine.npz": "new"})
    files = made.provenance | {"data_files": {"mine.npz": "old"}}
    with monkeypatch.context() as other:
        other.setattr(datasets, "load", lambda name: images)
        with pytest.raises(ParameterError, match=r"other contents now: \['mine.npz'\]"):
            replay.replay(dataclasses.replace(made, provenance=files))
    (made.folder / "rounds.csv").unlink()
    with pytest.raises(ParameterError, match=r"rounds\.csv is missing or damaged"):
        replay.replay(made)
    made.provenance["partition_hash"] = "0" * 64
    with pytest.raises(ParameterError, match="its clients would get other samples now"):
        replay.replay(made)
    with pytest.raises(ParameterError, match="is not a record of a paper of the kit"):
        replay.replay(dataclasses.replace(made, paper="mine"))


@pytest.mark.slow
def test_explanations_need_all_their_rounds(committed):
    record = next(r for r in committed if r.paper == "explanations")
    with pytest.raises(ParameterError, match="has 50 rounds and needs all of them, not 2"):
        replay.replay(record, rounds=2)


SMALL = {
    "ocfl": "ocfl-mnist-nonoverlapping-balanced-m15-seed0-fcedcadb",
    "emd-cfl": "emd-cfl-mnist-four-m12-seed0-36fbb3b2",  # 3 clients train per round
    "fedcref": "fedcref-kmnist-test-dirty0-overlap0-m25-seed0-1e585722",
}


@pytest.mark.nightly
@pytest.mark.parametrize("paper", SMALL)
def test_the_first_round_of_a_committed_record_comes_out_again(data_root, monkeypatch, paper):
    """Results are the same up to rounding on any machine, and on some to the last digit.

    Records of explanations would need all their rounds, which take a quarter of an hour. `python -m
    cflkit replay` can also replay these.
    """
    record = records.read(records.PROJECT / "data" / "results" / SMALL[paper])
    monkeypatch.setattr(replay, "verdicts", Mock(wraps=replay.verdicts))
    verdicts = replay.replay(record, rounds=1)
    assert [verdict.round for verdict in verdicts if verdict.round > 0] == [1]
    for verdict in verdicts:
        assert verdict.outcome != DIFFERENT, verdict
    _, now = replay.verdicts.call_args.args
    assert set(now.loc[now["round"].eq("1"), "method"]) == set(record.summary)


# --- Lists ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_are_listed_with_scale_and_staleness(made, printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = printed("records", "--where", "dataset", "digits-8x8").splitlines()
    assert lines[0].split() == ["record", "paper", "scale", "seed", "minutes", "stale"]
    [line] = [line for line in lines if made.id in line]
    assert "stale" not in line and "unknown" not in line
    seal(made.folder, provenance=made.provenance | {"code": "0" * 64})
    assert lists.staleness(records.read(made.folder)) == "stale"
    record = records.read(records.PROJECT / "data" / "results" / SMALL["ocfl"])
    [listed] = lists.listing([record])
    assert (listed["scale"], listed["stale"]) == ("reduced", "unknown")


def test_two_records_side_by_side(made, printed):
    other = made.folder.with_name(made.id[:-1] + "x")
    shutil.copytree(made.folder, other)
    summary = made.summary | {"FedAvg": made.summary["FedAvg"] | {"pf1": 0.125}}
    seal(other, parameters=made.parameters | {"lr": 0.5}, summary=summary)
    words = [line.split() for line in printed("records", made.id, other.name).splitlines()]
    assert [own for own in words if own[:1] in (["lr"], ["seed"])] == [["lr", "0.05", "0.5"]]
    assert any(own[:2] == ["FedAvg", "pf1"] and "0.125" in own for own in words)
    whole = printed("records", made.id)
    assert "digits-8x8" in whole
    assert "python -m cflkit run notebooks/03b_ocfl_controls.ipynb -p " in whole
    assert printed("records", made.id[-8:]) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("records a b c", "one record is shown, or two side by side, not 3"),
        ("records a -w seed 0", "--where selects from the list of records"),
        ("records -w seed 0 -w seed 1", "--where takes one value of a name"),
        ("replay absent", "no record 'absent'"),
        ("records ocfl-mnist", "records are called 'ocfl-mnist': ocfl-mnist-"),
    ],
)
def test_bad_requests_are_one_line(arguments, message, refuse):
    assert message in refuse(*arguments.split())


def test_a_record_is_read_from_the_folder_that_is_named(made, tmp_path):
    theirs = tmp_path / made.id
    shutil.copytree(made.folder, theirs)
    seal(theirs, summary=made.summary | {"FedAvg": {"pf1": 0.125}})
    assert records.find_record(str(theirs)).value("FedAvg", "pf1") == 0.125
    assert records.find_record(made.id).folder == made.folder
    with pytest.raises(ParameterError, match="no record"):
        records.find_record(str(tmp_path / "elsewhere" / made.id))
