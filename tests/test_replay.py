"""Tests of the commands that replay, list and compare records."""

import csv
import dataclasses
import json
import shutil

import pytest

from cflkit import _project
from cflkit.__main__ import main
from cflkit.reproduce import ledger, papers, records, replay
from cflkit.reproduce.papers import ocfl
from cflkit.reproduce.parameters import ParameterError

QUICK = {"dataset": "digits-8x8", "model": "linear", "clients": 6, "draws": 60, "rounds": 4}


def short_run():
    """Make the record of a short run of the OCFL papers' methods."""
    usual = ledger.defaults("03_ocfl_temperature")
    run = ocfl.Parameters.checked(usual | QUICK | {"lr": 0.05})
    images, split = ocfl.data(run)
    federation = ocfl.federation(run, images, split)
    history = ocfl.play(run, federation, ocfl.line_up(run, images, split), run.rounds)
    return records.write(records.run_id(run), run, history, federation)


@pytest.fixture
def made():
    """The record of a short run."""
    return short_run()


def changed(record, change):
    """Change the rows of a record."""
    path = record.folder / "rounds.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        change(row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def outcomes(record, **options):
    return [verdict.outcome for verdict in replay.replay(record, **options)]


def test_a_record_comes_out_the_same(made, capsys):
    assert outcomes(made) == [replay.SAME] * 2
    assert outcomes(made, rounds=4) == [replay.SAME] * 4
    assert main(["replay", made.id, "--rounds", "1"]) == 0
    assert capsys.readouterr().out == "round 1: same\n"


@pytest.mark.slow
def test_rows_of_no_method_are_not_replayed(made):
    """All data in one place, for example, are a row that no method makes."""
    path = made.folder / "rounds.csv"
    lines = path.read_text().splitlines()
    method = lines[0].split(",").index("method")
    cells = lines[1].split(",")
    cells[method] = "Global DEC"
    path.write_text("\n".join([*lines, ",".join(cells), ""]))
    assert outcomes(made) == [replay.SAME] * 2


@pytest.mark.slow
def test_other_numbers_are_rounding_or_not(made, capsys):
    """A change in the last digits is rounding.

    Another cluster, another whole number or a missing row is not.
    """

    def last_bit(row):
        if row["round"] == "2":
            row["pf1"] = f"{float(row['pf1']) + 1e-6:.9g}"

    changed(made, last_bit)
    assert outcomes(made) == [replay.SAME, replay.ROUNDED]
    assert main(["replay", made.id]) == 0
    assert "round 2: same to rounding  (FedAvg: pf1" in capsys.readouterr().out

    def another_cluster(row):
        if (row["method"], row["round"]) == ("oracle", "1"):
            row["clusters"] = "0|0|0|0|1|1"

    changed(made, another_cluster)
    [first, second] = replay.replay(made)
    assert (first.outcome, first.where) == (replay.DIFFERENT, ["oracle: clusters"])
    assert second.outcome == replay.ROUNDED
    assert main(["replay", made.id]) == 1
    assert "round 1: different  (oracle: clusters)" in capsys.readouterr().out


def test_rows_and_values_that_are_missing_now_are_differences():
    def row(method, round, **values):
        return {"method": method, "round": str(round), "ari": "1", "new": ""} | values

    recorded = [row("A", 1), row("B", 1), row("A", 2)]
    [verdict] = replay.compare_rows(recorded, [row("A", 1, extra="0.5")])
    assert verdict == replay.Verdict(1, replay.DIFFERENT, ["B: no such row now"])
    without = {name: value for name, value in row("A", 1).items() if name != "ari"}
    [verdict] = replay.compare_rows(recorded, [without, row("B", 1)])
    assert verdict == replay.Verdict(1, replay.DIFFERENT, ["A: ari"])


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("0.5", "0.5", replay.SAME),
        ("0.5", "0.504", replay.ROUNDED),
        ("0.5", "0.52", replay.DIFFERENT),
        ("0.02", "0.0203", replay.ROUNDED),
        ("0.02", "0.0245", replay.DIFFERENT),
        ("0.0000153", "0.0049", replay.DIFFERENT),
        ("1e-12", "-3e-12", replay.ROUNDED),
        ("120.0", "121.5", replay.ROUNDED),
        ("3", "4", replay.DIFFERENT),
        ("1.5|2.5", "1.501|2.5", replay.ROUNDED),
        ("1.5|2.5", "1.5|2.9", replay.DIFFERENT),
        ("1.5|2.5", "1.5", replay.DIFFERENT),
        ("0|0|1", "0|1|1", replay.DIFFERENT),
        ("GradCAM", "noise", replay.DIFFERENT),
        ("0.5", "", replay.DIFFERENT),
    ],
)
def test_two_values_by_hand(old, new, outcome):
    assert replay.alike(old, new, "temperature") == outcome


@pytest.mark.parametrize("column", ["accuracy", "insertion_p05", "wrong", "scores"])
def test_shares_near_zero_may_differ_in_the_third_digit(column):
    assert replay.alike("0.002", "0.006", column) == replay.ROUNDED
    assert replay.alike("0.002", "0.008", column) == replay.DIFFERENT


def test_what_cannot_be_replayed_is_said(made, monkeypatch):
    for rounds in (0, 5):
        with pytest.raises(ParameterError, match=f"has 4 rounds and cannot be run for {rounds}"):
            replay.replay(made, rounds=rounds)
    with monkeypatch.context() as variables:
        variables.setenv("CFLKIT_THREADS", "0")
        with pytest.raises(ParameterError, match=r"cannot be replayed here: .*'0'"):
            replay.replay(made)
    rows = (made.folder / "rounds.csv").rename(made.folder / "away.csv")
    with pytest.raises(ParameterError, match=r"rounds\.csv is missing or damaged"):
        replay.replay(made)
    rows.rename(made.folder / "rounds.csv")
    made.provenance["partition_hash"] = "0" * 64
    with pytest.raises(ParameterError, match="its clients would get other samples now"):
        replay.replay(made)
    with pytest.raises(ParameterError, match="is not a record of a paper of the kit"):
        replay.replay(dataclasses.replace(made, paper="mine"))


SMALL = {
    "ocfl": "ocfl-mnist-nonoverlapping-balanced-m15-seed0-c4d2e520",
    "emd-cfl": "emd-cfl-mnist-four-m12-seed0-36fbb3b2",  # 3 clients train per round
    "fedcref": "fedcref-kmnist-test-dirty0-overlap0-m25-seed0-1e585722",
}


@pytest.mark.slow
@pytest.mark.parametrize("paper", SMALL)
def test_the_first_round_of_a_committed_record_comes_out_again(data_root, monkeypatch, paper):
    """Results are the same up to rounding on any machine, and on some to the last digit.

    Records of explanations would need all their rounds, which take a quarter of an hour. `python -m
    cflkit replay` can also replay these.
    """
    record = records.read(records.PROJECT / "data" / "results" / SMALL[paper])
    compare, again = replay.compare_rows, []
    monkeypatch.setattr(
        replay, "compare_rows", lambda then, now: again.extend(now) or compare(then, now)
    )
    verdicts = replay.replay(record, rounds=1)
    assert [verdict.round for verdict in verdicts if verdict.round > 0] == [1]
    for verdict in verdicts:
        assert verdict.outcome != replay.DIFFERENT, verdict
    assert {row["method"] for row in again if row["round"] == "1"} == set(record.summary)


def test_explanations_need_all_their_rounds():
    known = papers.PAPERS["ocfl-explanations"]
    record = next(r for r in records.committed() if r.paper == known.folder)
    with pytest.raises(ParameterError, match="has 50 rounds and needs all of them, not 2"):
        replay.replay(record, rounds=2)


# --- Lists ---------------------------------------------------------------------------------------


def test_records_are_listed_with_scale_and_age(made, capsys):
    assert main(["records", "--where", "dataset", "digits-8x8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["record", "paper", "scale", "seed", "minutes", "code", "stale"]
    [line] = [line for line in lines if made.id in line]
    assert "stale" not in line  # the code of a committed record, below, is another
    committed = records.committed()
    table = records.listing(committed, ledger.any_scale).set_index("record")
    if committed:
        assert table.loc[SMALL["ocfl"], "scale"] == "reduced"
        assert table.loc[SMALL["ocfl"], "stale"] == "stale"
        age = table.loc[SMALL["ocfl"], "code"]
        [record] = (record for record in committed if record.id == SMALL["ocfl"])
        known = _project.git("cat-file", "-t", record.provenance["git_revision"]) == "commit"
        assert age.endswith("commits ago") if known else age == "of an unknown revision"


def test_the_age_of_a_record_is_counted_in_commits(made):
    """A shallow clone lacks the revision of an older record."""
    made.provenance["git_revision"] = "0" * 40
    assert records.age(made) == "of an unknown revision"
    if (head := _project.git("rev-parse", "HEAD")) is not None:
        made.provenance["git_revision"] = head
        assert records.age(made) == "0 commits ago"


def test_two_records_side_by_side(made, capsys):
    other = made.folder.with_name(made.id[:-1] + "x")
    shutil.copytree(made.folder, other)
    contents = json.loads((other / "record.json").read_text())
    contents["parameters"]["lr"] = 0.5
    contents["summary"]["FedAvg"]["pf1"] = 0.125
    (other / "record.json").write_text(json.dumps(contents))
    assert main(["records", made.id, other.name]) == 0
    out = capsys.readouterr().out
    assert "parameters in which they differ" in out
    assert [line.split() for line in out.splitlines() if line.startswith("lr")] == [
        ["lr", "0.05", "0.5"]
    ]
    assert any(line.split()[:1] == ["pf1"] and "0.125" in line for line in out.splitlines())
    assert main(["records", made.id]) == 0
    whole = capsys.readouterr().out
    assert "digits-8x8" in whole
    assert "python -m cflkit run notebooks/03_ocfl_temperature.ipynb -p " in whole
    assert main(["records", made.id[-8:]]) == 0
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["records", "a", "b", "c"], "one record is shown, or two side by side, not 3"),
        (["records", "absent"], "no record 'absent'"),
        (["records", "-w", "dataset", "svhn"], "no record has {'dataset': 'svhn'}"),
        (["records", "-w", "datset", "mnist"], "no record has a parameter datset; they have alpha"),
        (["records", "a", "-w", "seed", "0"], "--where selects from the list of records"),
        (["records", "-w", "seed", "0", "-w", "seed", "1"], "--where takes one value of a name"),
        (["replay", "absent"], "no record 'absent'"),
        (["records", "ocfl-mnist"], "records are called 'ocfl-mnist': ocfl-mnist-"),
    ],
)
def test_bad_requests_are_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_provenance_says_what_a_result_hangs_on(made):
    known = made.provenance
    assert known["code"] == _project.DIGEST
    assert known["processor"]
    assert known["threads"] >= 1
    assert known["notebook"] is None  # no notebook has run
    assert known["data_files"] == {}  # the digits are part of scikit-learn
    assert known["resumed"] == 0
    assert known["git_revisions"] == [_project.revision() or "unknown"]
    assert (known["cuda"], known["cudnn"]) == (None, None)
