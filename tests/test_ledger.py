"""Tests of the ledger, which compares published numbers with ours."""

import shlex

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cflkit.__main__ import main
from cflkit.reproduce import ledger, notebooks, records
from cflkit.reproduce.papers import PAPERS, ocfl
from cflkit.reproduce.papers.base import ROUNDS, SCORES, Margin
from cflkit.reproduce.records import PROJECT, Record
from cflkit.reproduce.values import parse_yaml, read_yaml

SCENARIO = ("mnist", "nonoverlapping", "balanced", 15)
NOTEBOOK = "03_ocfl_temperature"
METHODS = [*ocfl.METHODS.values(), "Briggs as published", "OCFL-AFF as published"]


def parameters(reduced=False, **changes):
    folder = PROJECT / "notebooks" / "params" / "ocfl"
    scale = "reduced" if reduced else "paper"
    file = folder / scale / "mnist_15_nonoverlapping_balanced.yaml"
    return ledger.defaults(NOTEBOOK) | read_yaml(file) | changes


def made(name, paper, parameters, rows):
    """Build a record without files."""
    run = Record(PROJECT / name, paper, parameters, {}, {})
    vars(run)["rounds"] = rows  # the place where the cached property stores the table
    return run


def record(number=0, fired=3, **options):
    """Build the record of a run in which every method finds the truth in the same round."""
    given = parameters(**options) | {"seed": number, "partition_seed": number}
    number_of_round = np.arange(1, given["rounds"] + 1)
    after = (number_of_round >= fired).astype(float)
    rows = [
        pd.DataFrame(
            {
                "method": method,
                "round": number_of_round,
                "clusters": np.where(after == 1, "0|1|2", "0|0|0"),
                "n_clusters": np.where(after == 1, 3, 1),
                "settled": (after == 1) & method.startswith("OCFL"),
                "ari": after,
                "ami": after,
                "homogeneity": after,
            }
        )
        for method in ["FedAvg", *METHODS]
    ]
    return made(f"ocfl-run-{number}", "ocfl", given, pd.concat(rows))


# Half the width of the 90 % interval of two values is 6.314 / 2 = 3.157 times their distance
@pytest.mark.parametrize(
    ("value", "ours", "expected"),
    [
        (0.96, [], "not run"),
        (0.96, [0.96], "single run"),
        (0.96, [0.96, 0.96], "reproduced"),
        (0.96, [0.975, 0.975], "reproduced"),  # 0.96 may have been 0.965, which is 0.01 away
        (0.96, [0.976, 0.976], "close"),
        (0.96, [0.98, 0.98, 0.98], "close"),  # one round of fifty
        (0.96, [0.905, 0.905], "close"),  # 0.955 is 0.05 away
        (0.96, [0.90, 0.90], "differs"),
        (0.96, [0.955, 0.965], "reproduced"),  # 0.96 ± 0.032
        (0.96, [0.95, 0.97], "inconclusive"),  # 0.96 ± 0.063
        (0.96, [0.2, 0.9, 1.0], "inconclusive"),
        (0.96, [0.70, 0.71], "differs"),
        (0.96, [0.85, 0.87], "inconclusive"),  # 0.86 ± 0.063
        (0.0, [0.0, 0.0], "reproduced"),
        (np.nan, [np.nan], "single run"),
        (np.nan, [np.nan, np.nan], "reproduced"),  # neither has ever clustered
        (np.nan, [np.nan, 3.0], "inconclusive"),
        (np.nan, [3.0, 3.0], "differs"),
        (3, [np.nan, np.nan], "differs"),
        (3, [np.nan, 3], "inconclusive"),
    ],
)
def test_status(value, ours, expected):
    assert ledger.status(value, ours) == expected


@pytest.mark.parametrize(
    ("value", "ours", "expected"),
    [
        (3, [3.0, 3.0], "reproduced"),
        (3, [2.0, 3.0, 3.0, 3.0], "reproduced"),  # 2.75 ± 0.59
        (3, [3.0, 4.0, 4.0, 4.0], "inconclusive"),  # 3.75 ± 0.59
        (3, [4.0, 4.0], "close"),
        (3, [5.0, 5.0], "differs"),
    ],
)
def test_status_of_a_round(value, ours, expected):
    assert ledger.status(value, ours, ROUNDS) == expected


VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=6)


@given(VALUES, st.floats(0, 1))
def test_the_interval_is_scipys(ours, value):
    half = ledger.half_width(ours)
    if np.std(ours) > 1e-6:
        low, high = stats.t.interval(0.9, len(ours) - 1, np.mean(ours), stats.sem(ours))
        assert (np.mean(ours) - half, np.mean(ours) + half) == pytest.approx((low, high))
    if half > SCORES.far + SCORES.rounding + 1e-9:
        assert ledger.status(value, ours) in ("inconclusive", "differs")


@given(VALUES, st.floats(0, 1), st.floats(-1, 1))
def test_only_the_distance_to_print_counts(ours, value, shift):
    there = ledger.status(value + shift, np.array(ours) + shift)
    # Rounding may decide where the distance equals a bound
    wide = Margin(SCORES.near + 1e-7, SCORES.far + 1e-7, SCORES.rounding)
    slim = Margin(SCORES.near - 1e-7, SCORES.far - 1e-7, SCORES.rounding)
    assert there in {ledger.status(value, ours, margin) for margin in (wide, slim)}


def row(table, method, measure, paper="ocfl-extended"):
    chosen = (table["paper"] == paper) & (table["method"] == method)
    chosen &= table["measure"] == measure
    for name, value in zip(ocfl.SCENARIO, SCENARIO, strict=True):
        chosen &= table[name] == value
    [found] = table[chosen].to_dict("records")
    return found


def test_a_run_at_the_papers_scale_meets_its_cells():
    table = ledger.ledger([record(0, fired=3), record(1, fired=2)])
    cell = row(table, "OCFL-HDB", "RAND")
    assert cell["ours"] == pytest.approx((0.96 + 0.98) / 2)
    assert (cell["low"], cell["high"], cell["seeds"]) == pytest.approx((0.96, 0.98, 2))
    assert cell["half_width"] == pytest.approx(0.02 * 6.3138 / 2, abs=1e-5)
    assert cell["status"] == "inconclusive"
    assert cell["runs"] == "ocfl-run-0 ocfl-run-1"
    assert cell["reduced_status"] == "not run"
    same = ledger.ledger([record(0, fired=3), record(1, fired=3)])
    assert row(same, "OCFL-HDB", "RAND")["status"] == "reproduced"
    assert row(same, "OCFL-HDB", "clustering round")["status"] == "reproduced"
    wrong_sign = row(table, "OCFL-AFF", "RAND")
    assert wrong_sign["value"] == 0.23
    assert wrong_sign["status"] == "differs"
    assert wrong_sign["intended"] == pytest.approx(0.97)
    dash = row(table, "BCL", "RAND")
    assert np.isnan(dash["value"])
    assert dash["status"] == "differs"
    assert table["status"].isin(ledger.ANSWERS).sum() == 6 * (3 + 3 + 1)


def test_a_seed_counts_once_and_another_seed_of_the_partition_is_another():
    again, other = record(0), record(0)
    again.parameters["central_every"] = 5
    assert row(ledger.ledger([record(0), again]), "OCFL-HDB", "RAND")["seeds"] == 1
    other.parameters["partition_seed"] = 1
    assert row(ledger.ledger([record(0), other]), "OCFL-HDB", "RAND")["seeds"] == 2


def test_where_a_run_has_a_method_as_published_runs_without_it_do_not_count():
    runs = [record(0), record(1)]
    as_published = runs[1].rounds["method"].str.endswith("as published")
    vars(runs[1])["rounds"] = runs[1].rounds[~as_published]
    table = ledger.ledger(runs)
    assert row(table, "OCFL-AFF", "RAND")["runs"] == "ocfl-run-0"
    assert row(table, "OCFL-HDB", "RAND")["runs"] == "ocfl-run-0 ocfl-run-1"


def test_of_runs_of_one_seed_the_newest_with_most_rounds_of_the_method_counts():
    runs = {}
    for name, fired in (("old", 3), ("new", 5), ("short", 2)):
        run = record(0, fired=fired)
        rows = run.rounds
        if name == "new":
            rows = rows[rows["method"].eq("OCFL-HDB")]
        if name == "short":
            rows = rows[rows["round"].le(fired)].assign(settled=True)
        runs[name] = made(name, "ocfl", run.parameters, rows)
        runs[name].provenance["finished"] = f"2026-01-0{len(runs)}"
    table = ledger.ledger(list(runs.values()))
    assert row(table, "OCFL-HDB", "clustering round")["ours"] == 5
    assert row(table, "OCFL-KM", "clustering round")["ours"] == 3


def test_runs_of_one_seed_with_other_methods_complete_each_other():
    """A run of some methods, until their clusters are final, and a whole run of the others."""
    early, late = record(0), record(0)
    early.parameters.update(only=["OCFL-HDB"], until="clusters")
    ocfl_hdb = early.rounds["method"].eq("OCFL-HDB")
    vars(early)["rounds"] = early.rounds[ocfl_hdb & early.rounds["round"].le(3)].assign(
        settled=lambda rows: rows["round"].eq(3)
    )
    vars(late)["rounds"] = late.rounds[late.rounds["method"].ne("OCFL-HDB")]
    apart = ledger.ledger([early, late])
    whole = ledger.ledger([record(0)])
    for method in ("OCFL-HDB", "OCFL-KM", "SCL"):
        for measure in ("RAND", "clustering round"):
            one, other = row(apart, method, measure), row(whole, method, measure)
            assert (one["ours"], one["seeds"]) == (other["ours"], other["seeds"])


def test_a_reduced_run_is_kept_apart():
    table = ledger.ledger([record(reduced=True)])
    assert not table["status"].isin(ledger.ANSWERS).any()
    cell = row(table, "OCFL-HDB", "RAND")
    assert cell["reduced_status"] == "single run (reduced)"
    twice = ledger.ledger([record(number, reduced=True) for number in (0, 1)])
    assert row(twice, "OCFL-HDB", "RAND")["reduced_status"] == "agrees (reduced)"
    assert set(cell["reduced_scale"].split(", ")) == {
        *("model compact-cnn", "draws 600", "lr 0.1", "batch_size 16", "local_epochs 1")
    }


@pytest.mark.parametrize("name", ["seed", "partition_seed", "central_every", "only", "until"])
def test_a_scale_leaves_some_parameters_free(name):
    for reduced in (False, True):
        run = record(reduced=reduced)
        run.parameters[name] = 7
        assert ledger.scale(run, "ocfl") == ("reduced" if reduced else "paper")


def test_a_run_that_was_perturbed_from_outside_belongs_to_no_table():
    run = record()
    run.provenance["perturbation"] = None
    assert ledger.scale(run, "ocfl") == "paper"
    run.provenance["perturbation"] = 7
    assert ledger.scale(run, "ocfl") is None


@pytest.mark.parametrize(
    "changes",
    [{"draws": 100}, {"rounds": 10}, {"clients": 12}, {"dataset": "fashion-mnist", "window": 2}],
    ids=str,
)
def test_an_experiment_of_ones_own_is_no_tables(changes):
    run = record(reduced=True, **changes)
    assert ledger.scale(run, "ocfl") is None
    table = ledger.ledger([run])
    assert not {*table["status"], *table["reduced_status"]} - {"not run", ledger.NO_CODE}


def test_a_dash_is_reproduced_by_one_cluster_from_first_to_last():
    split, whole, again = record(0), record(1, fired=99), record(2, fired=99)
    for runs, expected in (([whole, again], "reproduced"), ([split, whole], "inconclusive")):
        cell = row(ledger.ledger(runs), "BCL", "RAND")
        assert np.isnan(cell["value"])
        assert cell["status"] == expected
        assert (cell["never"], cell["seeds"]) == (sum(run is not split for run in runs), 2)
    assert (cell["low"], cell["ours"], cell["high"]) == pytest.approx((0, 0.48, 0.96))
    assert cell["intended"] == pytest.approx(0.48)
    # One cluster does not reproduce a printed number either
    assert row(ledger.ledger([whole, again]), "OCFL-AFF", "RAND")["status"] == "differs"
    # Several clusters that do not agree with the truth also score zero, but are not a dash
    astray = [record(number, fired=3) for number in (3, 4)]
    for run in astray:
        run.rounds[["ari", "ami", "homogeneity"]] = 0.0
    assert row(ledger.ledger(astray), "BCL", "RAND")["status"] == "differs"


def test_seeds_that_never_clustered_are_counted():
    cell = row(ledger.ledger([record(0), record(1, fired=99)]), "OCFL-HDB", "clustering round")
    assert (cell["ours"], cell["seeds"], cell["never"]) == (3, 2, 1)
    assert cell["status"] == "inconclusive"


def test_the_command_of_a_record_gives_its_parameters():
    run = record(3, reduced=True)
    words = shlex.split(ledger.command(run, "ocfl"))
    assert words[:4] == ["python", "-m", "cflkit", "run"]
    given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}
    notebook = PROJECT / words[4]
    values = {name: parse_yaml(name, text) for name, text in given.items()}
    lesson = notebooks.read_notebook(notebook)
    assert lesson.defaults | lesson.check(values)[0] == run.parameters


def test_counts_hold_every_cell():
    counts = ledger.counts(ledger.ledger([record()]))
    assert counts[list(ledger.STATUS)].to_numpy().sum() == 2 * len(ledger.published())
    assert (counts["run"] == counts[list(ledger.ANSWERS)].sum(axis=1)).all()


def test_a_number_counts_once_and_only_if_a_run_can_miss_it():
    table = ledger.ledger([record(0), record(1)])
    counts = ledger.counts(table).loc["paper's"]
    first = table[table["paper"].eq("ocfl") & table["status"].ne("not run")]
    # The first paper's table has the same scores, but for those that are printed otherwise
    assert len(first) == counts.loc[("ocfl", "I"), "run"] == 18
    assert set(first["again"]) <= {"", "ocfl-extended 1"}
    assert (first["again"] == "").sum() == counts.loc[("ocfl", "I"), "distinct"] < 3
    ami = row(table, "OCFL-HDB", "AMI")
    assert ami["again"] == "ocfl-extended 1", "it is the ARI again"
    assert row(table, "OCFL-HDB", "RAND")["again"] == ""
    assert row(table, "BCL", "clustering round")["fixed"]
    assert not row(table, "SCL", "clustering round")["fixed"]
    assert counts.loc[("ocfl-extended", "2"), "distinct"] == 5
    assert counts.loc[("ocfl-extended", "2"), "distinct reproduced"] <= 5


def test_the_placebo_compares_with_the_other_scenarios_of_a_table():
    """Of two scenarios, one has its clusters in round 3 and the other in round 31."""
    there = {"overlap": "overlapping"}
    file = PROJECT / "notebooks/params/ocfl/paper/mnist_15_overlapping_balanced.yaml"
    runs = [record(number) for number in (0, 1)]
    for number in (2, 3):
        run = record(number, fired=31)
        seeds = {name: run.parameters[name] for name in ("seed", "partition_seed")}
        run.parameters.update(read_yaml(file) | there | seeds)
        runs.append(run)
    table = ledger.ledger(runs)
    run = table[table["paper"].eq("ocfl-extended") & table["table"].eq("2")]
    # Briggs clusters in the round that it is told, so its rounds cannot be missed
    run = run[run["status"].ne("not run") & ~run["fixed"]]
    assert len(run) == 2 * 5
    # A number passes if it is the round of the other scenario
    passing = run["value"].eq(run["overlap"].map({"nonoverlapping": 31, "overlapping": 3}))
    assert ledger.placebo(table)["ocfl-extended", "2"] == pytest.approx(passing.mean())


@pytest.mark.slow
def test_the_committed_ledger_is_what_the_kit_writes(tmp_path):
    if records.git("rev-parse", "HEAD") is None:
        pytest.skip("needs git, which knows the committed records")
    table = ledger.ledger(records.committed())
    assert ledger.write(table, tmp_path / "ledger.csv").read_text() == ledger.LEDGER.read_text()


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ledger.csv"
    assert main(["ledger", "--paper", "ocfl", "--table", "I", "-o", str(path)]) == 0
    printed = capsys.readouterr().out
    assert str(path) in printed
    assert " n=" in printed
    assert len(pd.read_csv(path)) == len(ledger.published())
    assert main(["ledger", "--paper", "ocfl", "--table", "1", "-o", str(path)]) == 2
    assert "no table '1'; there are I" in capsys.readouterr().err
    monkeypatch.setattr(ledger, "ledger", None)  # the errors come before the work
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    assert main(["ledger", "-o", str(notes)]) == 2
    assert "is no ledger, and stays as it is" in capsys.readouterr().err
    assert notes.read_text() == "mine"
    assert main(["ledger", "-o", str(path / "below-a-file.csv")]) == 2
    assert "cannot be written" in capsys.readouterr().err


# --- EMD-CFL -------------------------------------------------------------------------------------


def emd_record(accuracy, version="four", scale="reduced", **changes):
    """Build the record of a run of EMD-CFL that ends with this accuracy."""
    file = PROJECT / "notebooks" / "params" / "emd-cfl" / scale / f"mnist_{version}.yaml"
    given = read_yaml(file) | {"weight_decay": 1e-6} | changes
    rows = pd.DataFrame(
        {
            "method": ["EMD-CFL", "EMD-CFL", "FedAvg", "FedAvg"],
            "round": [1, 2, 1, 2],
            "n_clusters": 1,
            "ari": [0.0, 1.0, 0.0, 0.0],
            "accuracy": [0.1, accuracy, 0.1, 0.5],
            "worst_accuracy": [0.1, accuracy - 0.02, 0.1, 0.4],
        }
    )
    parameters = ledger.defaults("05_emd_cfl") | given
    return made(f"emd-cfl-{accuracy}", "emd-cfl", parameters, rows)


def test_a_command_may_hold_lists():
    words = shlex.split(ledger.command(emd_record(0.9, range_epochs=[1, 3]), "emd-cfl"))
    text = words[words.index("range_epochs") + 1]
    assert parse_yaml("range_epochs", text) == [1, 3]


def emd_cell(table, number, measure, method="EMD-CFL", version="four"):
    found = table[(table["paper"] == "emd-cfl") & (table["table"] == number)]
    found = found[(found["measure"] == measure) & (found["method"] == method)]
    [cell] = found[(found["version"] == version) & (found["dataset"] == "mnist")].to_dict("records")
    return cell


def test_emd_cfl_is_compared_after_the_last_round_in_per_cent():
    table = ledger.ledger([emd_record(0.986), emd_record(0.989, seed=1)])
    cell = emd_cell(table, "1", "average accuracy")
    assert cell["value"] == 98.86
    assert cell["reduced_ours"] == pytest.approx(98.75)
    assert cell["reduced_status"] == "agrees (reduced)"
    assert cell["status"] == "not run"
    assert emd_cell(table, "1", "worst accuracy")["reduced_status"] == "close (reduced)"
    assert emd_cell(table, "1", "ari")["reduced_status"] == "agrees (reduced)"
    found = emd_cell(table, "1", "average accuracy", "FedAvg")["reduced_status"]
    assert found == "differs (reduced)"
    assert emd_cell(table, "1", "average accuracy", "PACFL")["reduced_status"] == "not run"
    assert emd_cell(table, "10", "average accuracy", version="two")["reduced_status"] == "not run"


def test_one_cluster_is_a_result_where_it_is_the_truth():
    table = ledger.ledger([emd_record(0.985, version="base", seed=seed) for seed in (0, 1)])
    found = emd_cell(table, "10", "ari", version="base")["reduced_status"]
    assert found == "agrees (reduced)"


def test_participants_part_the_scenarios():
    table = ledger.ledger([emd_record(0.98, scale="paper", participants=20)])
    assert emd_cell(table, "1", "average accuracy")["status"] == "not run"
    rows = table[(table["table"] == "6") & (table["dataset"] == "mnist")]
    run = rows[rows["status"] != "not run"]
    assert set(run["participants"]) == {20}
    assert table["clients"].dtype == table["participants"].dtype == "Int64"  # not 15.0
    assert set(run["method"]) == {"EMD-CFL"}
    # A run in which EMD-CFL is there as published, too, has the scale of the others
    assert ledger.scale(emd_record(0.98, published_distances=True), "emd-cfl") == "reduced"
    # Ten of the twelve clients at the reduced scale are not ten of forty
    assert ledger.scale(emd_record(0.98, participants=10), "emd-cfl") is None


def test_a_dash_that_says_nothing_is_no_cell():
    cells = ledger.published()
    soft = cells[(cells["paper"] == "emd-cfl") & (cells["method"] == "FedAvg")]
    assert "ari" not in set(soft["measure"])
    assert cells[cells["value"].isna()]["dash"].notna().all()


# --- FedCRef -------------------------------------------------------------------------------------


def explanations_record(insertion, scale="reduced"):
    """Build the record of a run with this insertion score on average over clusters.

    OCFL-AFF as published has half of this score.
    """
    folder = PROJECT / "notebooks" / "params" / "explanations" / scale
    given = read_yaml(folder / "mnist_15_nonoverlapping_balanced.yaml")
    rows = [
        {
            **{"method": method, "round": 50, "cluster": cluster, "source": source, "map": kind},
            "insertion": insertion * (0.5 if method == "OCFL-AFF as published" else 1) + 0.1 * sign,
            "deletion": 0.3 if kind == "GradCAM" else 0.9,
        }
        for method in ["FedAvg", *METHODS]
        for cluster, sign in ((0, -1), (1, 1))
        for source, kind in (("in-cluster", "GradCAM"), ("in-cluster", "noise"))
    ]
    parameters = ledger.defaults("07_explaining_cluster_models") | given
    return made("explanations-run", "explanations", parameters, pd.DataFrame(rows))


def test_explanations_are_means_over_clusters_of_gradcams_scores():
    table = ledger.ledger([explanations_record(0.7)]).query("paper == 'ocfl-explanations'")
    found = table[table["reduced_status"] != "not run"].set_index(["table", "method", "measure"])
    assert found.loc[("figure 6", "OCFL-HDB", "insertion"), "reduced_ours"] == pytest.approx(0.7)
    assert found.loc[("figure 6", "BNC", "deletion"), "reduced_ours"] == pytest.approx(0.3)
    affinity = found.loc[("figure 6", "OCFL-AFF", "insertion")]
    assert affinity["reduced_ours"] == pytest.approx(0.35)
    assert affinity["reduced_intended"] == pytest.approx(0.7)
    # A rank needs the runs of all scenarios
    assert set(table.loc[table["table"] == "figure 8", "reduced_status"]) == {"not run"}


def archived_explanations():
    """Build a record per scenario of Figure 8, with the scores of the authors' archive."""
    scores = pd.read_csv(records.PUBLISHED / "ocfl-explanations_per-cluster.csv")
    scores["method"] = scores["method"].replace(PAPERS["ocfl-explanations"].methods)
    names = list(PAPERS["ocfl-explanations"].scenario)
    return [
        made(
            "-".join(map(str, scenario)),
            "explanations",
            ledger.scale_parameters("ocfl-explanations", "paper", scenario),
            rows.assign(map="GradCAM", round=50),
        )
        for scenario, rows in scores.groupby(names)
    ]


def test_average_ranks_of_the_archived_scores_are_the_printed_ones():
    runs = archived_explanations()
    assert len(runs) == 20
    ranks = ledger.ledger(runs).query("table == 'figure 8'")
    assert ranks["ours"].tolist() == pytest.approx(ranks["value"].tolist(), abs=0.0051)
    assert set(ranks["status"]) == {"single run"}
    assert set(ranks["runs"].str.split().map(len)) == {20}
    assert set(ranks["reduced_status"]) == {"not run"}


@pytest.mark.slow
def test_average_ranks_need_all_scenarios_with_all_methods():
    runs = archived_explanations()
    one_less = ledger.ledger(runs[1:]).query("table == 'figure 8'")
    assert set(one_less["status"]) == {"not run"}
    runs[3] = made(
        "less", "explanations", runs[3].parameters, runs[3].rounds.query("method != 'OCFL-MS'")
    )
    one_method_less = ledger.ledger(runs).query("table == 'figure 8'")
    assert set(one_method_less["status"]) == {"not run"}


def test_distances_between_parameters_are_those_of_the_first_round():
    file = PROJECT / "notebooks" / "params" / "emd-cfl" / "paper" / "mnist_four.yaml"
    parameters = ledger.defaults("05_emd_cfl") | read_yaml(file)
    first = {"linear_layers_within": 3.0, "linear_layers_overall": 4.6}
    rows = [{"method": "EMD-CFL", "round": 1, "ari": 1.0} | first]
    rows += [{"method": "EMD-CFL", "round": 2, "ari": 1.0}]
    run = made("emd-run", "emd-cfl", parameters, pd.DataFrame(rows))
    nine = ledger.ledger([run]).query("table == '9' and version == 'four' and dataset == 'mnist'")
    found = nine.set_index("measure")
    assert found.loc["hypothesis, clusters", "ours"] == 3.0
    assert found.loc["hypothesis, overall", "ours"] == 4.6
    # Older records do not have the distances of the whole model, nor has this one
    assert set(found.loc[["full model, clusters", "full model, overall"], "status"]) == {"not run"}


def fedcref_record(accuracy, communities, scale="paper", dataset="emnist-digits", **changes):
    """Build the record of a run of FedCRef that ends with these values."""
    file = PROJECT / "notebooks" / "params" / "fedcref" / scale / f"{dataset}.yaml"
    rows = pd.DataFrame(
        {
            "method": ["FedCRef", "FedCRef", "Perfect associations", "Perfect associations"],
            "round": [0, 1, 0, 1],
            "communities": [0, communities, 0, 10],
            "isolated": [88, 17, 88, 0],
            "wrong": [0.0, 0.05, 0.0, 0.0],
            "accuracy": [0.7, accuracy, 0.7, 0.95],
        }
    )
    given = read_yaml(file) | {"dirtiness": 0.3} | changes
    parameters = ledger.defaults("06_fedcref") | given
    return made(f"fedcref-{accuracy}", "fedcref", parameters, rows)


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


def test_the_centralised_clustering_is_compared_in_its_one_row():
    runs = [fedcref_record(0.9, 11, clustering="dec", dirtiness=0.0, seed=seed) for seed in (0, 1)]
    for run in runs:
        run.rounds.loc[4] = ["Global DEC", 0, 9, 0, 0.0, 0.8]
    cells = ledger.ledger(runs).query("method == 'Global DEC'").set_index("measure")
    assert cells["ours"].to_dict() == {"ACC end": 0.8, "communities": 9}
    assert set(cells["status"]) == {"reproduced"}


def test_runs_on_other_images_are_no_tables():
    table = ledger.ledger([fedcref_record(0.87, 9, "reduced", "mnist")])
    assert not {*table["status"], *table["reduced_status"]} - {"not run", ledger.NO_CODE}


def tutorial_record(accuracy, seed=42, **changes):
    """Build the record of a run of Tutorial 022 whose methods end with this accuracy."""
    names = ("Signatures", "Signatures as published", "FedAvg", "Local")
    rows = pd.DataFrame({"method": names, "round": 60, "n_clusters": 3, "accuracy": accuracy})
    parameters = ledger.defaults("08_tutorial_022") | {"seed": seed, "repeats": 1} | changes
    return made(f"tutorial-{seed}", "tutorial", parameters, rows)


def test_numbers_that_no_code_produces_are_shown_beside_ours_and_compared_with_nothing():
    table = ledger.ledger([tutorial_record(0.82), tutorial_record(0.82, seed=0)])
    own = table[table["paper"] == "tutorial-022"].set_index(["method", "measure"])
    assert set(own["status"]) == set(own["reduced_status"]) == {ledger.NO_CODE}
    cell = own.loc["Clustered", "Cluster Acc"]
    # Ours equals the printed number, and still reproduces nothing
    assert (cell["value"], cell["ours"], cell["seeds"]) == (82, pytest.approx(82), 2)
    assert own.loc["Clustered", "Global Acc"]["seeds"] == 0
    counts = ledger.counts(table).loc["paper's"].loc["tutorial-022", "metrics"]
    assert (counts["run"], counts["distinct"], counts[ledger.NO_CODE]) == (0, 0, 6)
    text = ledger.formatted(own.reset_index())["paper's scale"]
    assert text.iloc[1] == ledger.NO_CODE
    assert text.iloc[0].endswith(f"n=2 {ledger.NO_CODE}")
    assert ledger.scale(tutorial_record(0.8, height=1.0), "tutorial-022") is None
