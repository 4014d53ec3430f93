"""Tests of the ledger, which compares published numbers with ours."""

import shlex
from dataclasses import replace

import dataset
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cflkit.reproduce import grid, ledger, lists, notebooks, records, rule
from cflkit.reproduce.papers import PAPERS, ocfl
from cflkit.reproduce.papers.base import SCORES, Margin
from cflkit.reproduce.records import PROJECT, Record
from cflkit.reproduce.values import parse_yaml, read_yaml

METHODS = ["FedAvg", *ocfl.METHODS.values(), "Briggs as published", "OCFL-AFF as published"]


def made(paper, scale, file, rows, name="run", **changes):
    """Build a record without files: of a run with the parameters of a file, and these rows."""
    known = PAPERS[paper]
    given = read_yaml(grid.PARAMS / known.folder / scale / f"{file}.yaml")
    parameters = ledger.defaults(known.notebook) | given | changes
    run = Record(PROJECT / name, known.folder, parameters, {}, {})
    vars(run)["rounds"] = pd.DataFrame(rows)  # where the cached property stores the table
    return run


def record(number=0, scale="paper", **changes):
    """Build the record of a run in which every method has the true clusters in every round."""
    rows = pd.DataFrame({"method": np.repeat(METHODS, 50), "round": [*range(1, 51)] * len(METHODS)})
    rows = rows.assign(clusters="0|1|2", n_clusters=3, settled=True, ari=1.0, ami=1.0)
    given = {"seed": number, "partition_seed": number} | changes
    file, name = "mnist_15_nonoverlapping_balanced", f"ocfl-run-{number}"
    return made("ocfl", scale, file, rows.assign(homogeneity=1.0), name, **given)


def emd_record(**changes):
    """Build the record of a run of EMD-CFL at the reduced scale."""
    return made("emd-cfl", "reduced", "mnist_four", [], weight_decay=1e-6, **changes)


@pytest.mark.parametrize(
    ("expected", "value", "ours"),
    [
        *(("not run", 0.96, []), ("single run", 0.96, [0.96]), ("single run", np.nan, [np.nan])),
        ("reproduced", 0.96, [0.975, 0.975]),  # 0.96 may have been 0.965, which is 0.01 away
        ("close", 0.96, [0.976, 0.976]),
        ("close", 0.96, [0.905, 0.905]),  # 0.955 is 0.05 away
        *(("differs", 0.96, [0.904, 0.904]), ("reproduced", np.nan, [np.nan, np.nan])),
        *(("differs", np.nan, [3.0, 3.0]), ("differs", 3, [np.nan, np.nan])),
        *(("inconclusive", np.nan, [np.nan, 3.0]), ("inconclusive", 3, [np.nan, 3])),
    ],
)
def test_the_answers_at_the_margins_and_where_all_stayed_one_cluster(expected, value, ours):
    """Exercise 90.2 has the rule for other numbers."""
    assert rule.status(value, ours) == expected


VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=6)


@given(VALUES, st.floats(0, 1))
def test_the_interval_is_scipys(ours, value):
    half = rule.half_width(ours)
    if np.std(ours) > 1e-6:
        low, high = stats.t.interval(0.9, len(ours) - 1, np.mean(ours), stats.sem(ours))
        assert (np.mean(ours) - half, np.mean(ours) + half) == pytest.approx((low, high))
    if half > SCORES.far + SCORES.rounding + 1e-9:
        assert rule.status(value, ours) in ("inconclusive", "differs")


@given(VALUES, st.floats(0, 1), st.floats(-1, 1))
def test_only_the_distance_to_print_counts(ours, value, shift):
    there = rule.status(value + shift, np.array(ours) + shift)
    # Rounding may decide where the distance equals a bound
    wide = Margin(SCORES.near + 1e-7, SCORES.far + 1e-7, SCORES.rounding)
    slim = Margin(SCORES.near - 1e-7, SCORES.far - 1e-7, SCORES.rounding)
    assert there in {rule.status(value, ours, margin) for margin in (wide, slim)}


@pytest.mark.slow
def test_another_seed_of_the_partition_is_another_seed():
    book = ledger.ledger([record(0), record(0, partition_seed=1)])
    assert set(book.loc[book["status"].isin(ledger.ANSWERS), "seeds"]) == {2}


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        *(({name: 7}, "reduced") for name in ("seed", "partition_seed", "only", "until")),
        *(({name: 7}, None) for name in ("draws", "rounds", "clients", "sizes")),
        ({"dataset": "fashion-mnist", "window": 2}, None),
    ],
    ids=str,
)
def test_a_scale_leaves_some_parameters_free_and_an_experiment_of_ones_own_has_none(changes, scale):
    assert ledger.scale(record(scale="reduced", **changes), "ocfl") == scale
    # Ten of the twelve clients at the reduced scale are not ten of forty
    assert ledger.scale(emd_record(), "emd-cfl") == "reduced"
    assert ledger.scale(emd_record(participants=10), "emd-cfl") is None
    perturbed = record()  # from outside
    perturbed.provenance["perturbation"] = 7
    assert ledger.scale(perturbed, "ocfl") is None


@pytest.mark.slow
def test_another_threshold_of_one_method_leaves_the_other_methods_in_their_table():
    rows = [{"method": m, "round": 10, "accuracy": 0.9, "ari": 1} for m in ("EMD-CFL", "Oracle")]
    for epsilon, seeds in ((0.1, [1, 1]), (0.05, [0, 1])):
        run = made("emd-cfl", "paper", "mnist_four", rows, participants=10, epsilon=epsilon)
        cells = ledger.ledger([run]).query("table == '6' and dataset == 'mnist'")
        of_ten = cells[cells["participants"].eq(10) & cells["measure"].eq("average accuracy")]
        assert of_ten.set_index("method")["seeds"].loc[["EMD-CFL", "Oracle"]].tolist() == seeds


def test_the_command_of_a_record_gives_its_parameters():
    """They may be lists, too."""
    for paper, run in (("ocfl", record(3)), ("emd-cfl", emd_record(range_epochs=[1, 3]))):
        words = shlex.split(ledger.command(run, paper))
        assert words[:4] == ["python", "-m", "cflkit", "run"]
        assert words[-1] == "--record-only"
        given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}
        values = {name: parse_yaml(name, text) for name, text in given.items()}
        lesson = notebooks.read_notebook(PROJECT / words[4])
        assert lesson.defaults | lesson.check(values)[0] == run.parameters


def test_equal_seeds_have_no_interval_in_lists():
    equal, apart = (lists.as_text(0.5, half, 0.5, 0.5, 3, 0, "close") for half in (0.0, 0.1))
    assert equal == "0.50 [0.50, 0.50] n=3 close"
    assert apart == "0.50 ± 0.10 [0.50, 0.50] n=3 close"


@pytest.mark.slow
def test_the_ledger_of_the_data_set_is_the_committed_one(committed, tmp_path):
    rows = dataset.table(committed)
    table = ledger.ledger(list(dataset.runs_of(rows)))
    assert ledger.write(table, tmp_path / "ledger.csv").read_text() == ledger.LEDGER.read_text()
    [resource] = dataset.package(rows)["resources"]
    assert [field["name"] for field in resource["schema"]["fields"]] == list(rows)


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path, monkeypatch, printed, refuse):
    monkeypatch.setattr(records, "find_records", lambda: [record(0), record(1)])
    path, notes = tmp_path / "ledger.csv", tmp_path / "notes.md"
    notes.write_text(of_paper := "paper,table,method\n")  # not ours, but a table of a paper
    text = printed("ledger", "--paper", "ocfl", "--table", "I", "-o", path)
    assert str(path) in text and " n=2 " in text
    assert len(pd.read_csv(path)) == len(ledger.published())
    monkeypatch.setattr(ledger, "ledger", None)  # the errors come before the work
    for words, message in (
        (["--paper", "ocfl", "--table", "1"], "number has table '1'; choose from I"),
        (["--paper", "mine"], "number has paper 'mine'; "),
        (["-o", notes], "is no ledger, and stays as it is"),
    ):
        assert message in refuse("ledger", *words)
    assert notes.read_text() == of_paper


# --- Explanations --------------------------------------------------------------------------------


@pytest.mark.slow
def test_average_ranks_of_the_archived_scores_are_the_printed_ones():
    """There is a record per scenario of Figure 8, with the scores of the authors' archive."""
    paper = PAPERS["ocfl-explanations"]
    scores = pd.read_csv(records.PUBLISHED / "ocfl-explanations_per-cluster.csv")
    scores = scores.assign(method=scores["method"].replace(paper.methods), map="GradCAM", round=50)
    runs = [
        made(paper.name, "paper", paper.file.removesuffix(".yaml").format(**where), rows, **where)
        for scenario, rows in scores.groupby(list(paper.scenario))
        for where in [dict(zip(paper.scenario, scenario, strict=True))]
    ]
    assert len(runs) == 20
    ranks = ledger.ledger(runs).query("table == 'figure 8'")
    assert ranks["ours"].tolist() == pytest.approx(ranks["value"].tolist(), abs=0.0051)
    assert set(ranks["status"]) == {"single run"}
    assert set(ranks["runs"].str.split().map(len)) == {20}
    # A rank needs all scenarios, with all methods
    less = replace(runs[3], folder=PROJECT / "less")
    vars(less)["rounds"] = runs[3].rounds.query("method != 'OCFL-MS'")
    for some in (runs[1:], [*runs[:3], less, *runs[4:]]):
        assert set(ledger.ledger(some).query("table == 'figure 8'")["status"]) == {"not run"}


# --- FedCRef and Tutorial 022 --------------------------------------------------------------------


def fedcref_record(accuracy, communities, scale="paper", dataset="emnist-digits", **changes):
    """Build the record of a run of FedCRef that ends with these values."""
    rows = {
        "method": ["FedCRef", "FedCRef", "Perfect associations", "Perfect associations"],
        "round": [0, 1, 0, 1],
        "communities": [0, communities, 0, 10],
        "isolated": [88, 17, 88, 0],
        "wrong": [0.0, 0.05, 0.0, 0.0],
        "accuracy": [0.7, accuracy, 0.7, 0.95],
    }
    return made("fedcref", scale, dataset, rows, **{"dirtiness": 0.3} | changes)


@pytest.mark.slow
def test_fedcref_is_compared_at_the_start_and_after_the_last_iteration():
    table = ledger.ledger([fedcref_record(0.880, 10), fedcref_record(0.878, 10, seed=1)])
    run = table[table["status"].isin(ledger.ANSWERS)]
    # The same system is in three pairs of tables, each with another result
    assert set(run["table"]) == {"3", "4", "5", "6"}
    cells = run[run["table"].isin(["3", "4"])].set_index(["method", "measure"])
    ours, status = cells["ours"], cells["status"]
    assert ours["FedCRef", "ACC init"] == 0.7
    assert ours["FedCRef", "ACC end"] == pytest.approx(0.879)
    assert ours["FedCRef", "improvement, %"] == pytest.approx(100 * 0.179 / 0.7)
    assert ours["FedCRef", "wrong associations, %"] == 5
    assert (ours["FedCRef", "isolated start"], ours["FedCRef", "isolated end"]) == (88, 17)
    assert ours["Perfect associations", "ACC end"] == 0.95
    assert status["FedCRef", "ACC end"] == status["FedCRef", "communities"] == "reproduced"


@pytest.mark.slow
def test_the_centralised_clustering_is_compared_in_its_one_row():
    runs = [fedcref_record(0.9, 11, clustering="dec", dirtiness=0.0, seed=seed) for seed in (0, 1)]
    for run in runs:
        run.rounds.loc[4] = ["Global DEC", 0, 9, 0, 0.0, 0.8]
    cells = ledger.ledger(runs).query("method == 'Global DEC'").set_index("measure")
    assert cells["ours"].to_dict() == {"ACC end": 0.8, "communities": 9}
    assert set(cells["status"]) == {"reproduced"}


def test_an_edited_lesson_does_not_change_what_the_ledger_compares_but_its_commands(
    repository, tmp_path, monkeypatch
):
    name, run = "05b_emd_cfl_controls", emd_record()
    text = (grid.NOTEBOOKS / f"{name}.ipynb").read_text("utf-8")
    (tmp_path / f"{name}.ipynb").write_text(text.replace("mu = 0.01", "mu = 0.5"), "utf-8")
    monkeypatch.setattr(grid, "NOTEBOOKS", tmp_path)
    assert ledger.defaults.__wrapped__(name)["mu"] == 0.01
    assert "-p mu 0.01" in ledger.command(run, "emd-cfl")
