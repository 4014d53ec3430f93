"""Tests of the reports' tables against small ones that were made by hand."""

import numpy as np
import pandas as pd
import pytest
from reports import costs, results, tables

from cflkit.reproduce import ledger, stats
from cflkit.reproduce.papers import ocfl
from cflkit.reproduce.papers.base import SCORES
from cflkit.reproduce.records import PROJECT, Record

SCENARIO = ("mnist", "overlapping", "balanced", 15)
OF_OCFL = dict(zip(ocfl.SCENARIO, SCENARIO, strict=True))


def record(table=(), summary=None, name="run", provenance=None, **parameters):
    """Build a record without files from its rounds, as rows or as columns."""
    run = Record(PROJECT / name, None, parameters, summary or {}, provenance or {})
    vars(run)["rounds"] = pd.DataFrame(table)
    return run


def of_ocfl(seed=0, curve=(0.5, 0.4, 0.6), fired=3):
    """A run whose OCFL methods find the true clusters after a round, with its temperatures."""
    after = (np.arange(1, 51) > fired - 1).astype(float)
    watched = [*curve, *[np.nan] * (50 - len(curve))]
    rows = {"round": range(1, 51), "temperature": watched, "clusters": "0", "ari": after}
    rows |= {"settled": after == 1}
    tables = [pd.DataFrame(rows | {"method": name}) for name in ("FedAvg", *ocfl.CLUSTERERS)]
    table = pd.concat(tables).assign(ami=lambda t: t["ari"], homogeneity=lambda t: t["ari"])
    ends = {name: {"ari": 1.0, "clustering_round": fired} for name in ocfl.CLUSTERERS}
    return record(table, ends, f"seed{seed}", seed=seed, **OF_OCFL)


def book():
    """A ledger of two numbers; the second one has not been run at the paper's scale."""
    facts = dict.fromkeys(ledger.OURS, 0.5) | {"intended": np.nan, "runs": "a"}
    cell = {"paper": "ocfl-extended", "table": "1", "method": "BCL", "protocol": "mean-50-ari"}
    cell |= OF_OCFL | {"measure": "RAND", "value": 0.52, "reduced_scale": "draws 600"}
    full = facts | {"status": "reproduced"}
    less = {f"reduced_{name}": value for name, value in facts.items()}
    less |= {"reduced_ours": 0.7, "reduced_status": "agrees (reduced)"}
    other = {"dataset": "fashion-mnist", "status": "not run", "ours": np.nan}
    return pd.DataFrame([cell | full | less, cell | full | less | other])


def test_a_ledger_at_one_scale_and_its_rows_with_runs():
    assert tables.at_scale(book(), "reduced")["status"].tolist() == ["agrees (reduced)"] * 2
    assert tables.at_scale(book(), "reduced")["ours"].tolist() == [0.7, 0.7]
    assert "reduced_ours" not in tables.at_scale(book(), "paper")
    rows = tables.with_runs(book())
    assert rows["scale"].tolist() == ["paper's", "reduced", "reduced"]
    assert set(rows["status"]) == {"reproduced"}
    assert rows["margin"].tolist() == [SCORES] * 3
    labels = ["mnist, paper's", "mnist", "fashion"]
    assert tables.scenario_labels(rows, "ocfl-extended") == labels
    assert tables.scenario_labels(rows[1:], "ocfl-extended") == ["mnist", "fashion"]
    assert tables.scenario_labels(rows[:1], "ocfl-extended") == ["all"]
    assert [tables.titled(table) for table in ("I", "figure 8")] == ["Table I", "Figure 8"]


def test_runs_by_scenario_and_by_seed():
    long, short = (
        record({"method": "A", "round": range(n), "acc": [0.0, 0.2, 0.4][:n]}, name=f"n{n}", **own)
        for n, own in ((3, OF_OCFL), (2, OF_OCFL | {"clients": 30}))
    )
    groups = {SCENARIO: [long], (*SCENARIO[:3], 30): [short]}
    assert tables.by_scenario([long, short], "ocfl") == groups
    table = tables.by_seed({"both": [long, short], "one": [short]}, "A", "acc", since=1)
    means = table.groupby(["method", "round"])["acc"].mean().round(6).to_dict()
    of_both = {("both (2 seeds)", 1): 0.2, ("both (2 seeds)", 2): 0.3}  # the short run stays at 0.2
    assert means == of_both | {("one (1 seed)", 1): 0.2}
    assert tables.by_seed({}, "A", "acc").empty


def test_printed_numbers_beside_those_of_similar_data():
    system = ("mnist", "dirty-uniform", 0.3, 0.0, 25)
    names = ("dataset", "clustering", "dirtiness", "overlap_fraction", "clients")
    cell = dict(zip(names, ("emnist", *system[1:]), strict=True)) | {"deviation": 1.0}
    cell |= {"method": "A", "measure": "wrong, %"}
    cells = pd.DataFrame([cell | {"value": 5.0}, cell | {"value": 6.0}, cell | {"clients": 50}])
    runs = [record(summary={"A": {"wrong": w}, "B": {}}) for w in (0.02, 0.04)]
    measures = {"wrong, %": ("wrong", 100)}
    found = tables.beside(cells, {system: runs}, "fedcref", measures, {"mnist": "emnist"})
    a, again, b = found.drop(columns=["system", "measure"]).to_dict("records")
    ours = {"method": "A", "seeds": 2, "ours": 3.0, "low": 2.0, "high": 4.0, "deviation": 1.0}
    assert (a, again) == (ours | {"value": 5.0}, ours | {"value": 6.0})
    assert b["method"] == "B"
    assert np.isnan([b["ours"], b["value"]]).all()


@pytest.mark.parametrize(
    ("curve", "options", "first"),
    [([3, 2, 2, 4], {}, 4), ([3, 2, 2, 4], {"strict": False}, 3), ([3, 2], {}, None)],
)
def test_the_first_rise(curve, options, first):
    assert tables.first_rise(curve, **options) == first
    assert tables.first_rise(curve, before=float("-inf")) == 1


def test_how_temperatures_begin_and_what_ocfl_finds():
    run, other = of_ocfl(), of_ocfl(seed=1, curve=(0.5, 0.7), fired=2)
    assert tables.temperatures(run) == [0.5, 0.4, 0.6]
    steps = tables.first_steps({SCENARIO[:3]: [run]}, {SCENARIO[:3]: [0.4, 0.6, 0.5]})
    expected = {"seed": 0, "theirs": 2, "their step": "rises", "ours": 3, "our step": "falls"}
    assert expected.items() <= steps.iloc[0].to_dict().items()
    assert steps.loc[0, "distance"] == pytest.approx(0.15)
    index = pd.MultiIndex.from_tuples([(*SCENARIO, name) for name in ocfl.CLUSTERERS])
    printed = pd.DataFrame({"clustering round": 5.0, "RAND": 0.9}, index=index)
    found = tables.outcomes([run, other], printed)
    assert found["RAND"].tolist() == pytest.approx([0.96] * 4 + [0.98] * 4)
    assert found["at their round"].tolist() == pytest.approx([0.92] * 8)
    [row] = tables.over_seeds(found[found["method"] == "OCFL-KM"], "method").to_dict("records")
    assert (row["round"], row["theirs"], row["ARI"]) == ("3, 2", 5, "1, 1")
    assert row["RAND"] == pytest.approx(0.97)


def test_clusters_of_round_1_are_compared_with_those_of_the_trigger():
    truth = np.repeat(range(3), 5)
    gamma = np.where(truth[:, None] == truth, 0.1, 0.8) - 0.1 * np.eye(15)
    gamma[10:, :5] = gamma[:5, 10:] = 0.1  # the first and the last group look alike
    kept = {"round": [1], "distances": ["|".join(f"{own:.4g}" for own in gamma.flat)]}
    frames = [pd.DataFrame(kept | {"method": name}) for name in ocfl.CLUSTERERS]
    early = record(pd.concat(frames), seed=1, **OF_OCFL)
    found = tables.in_round_1([early], [of_ocfl(), of_ocfl(seed=1, fired=4)])
    assert found["method"].tolist() == [*ocfl.CLUSTERERS]
    assert (found["ARI in round 1"] < 0.7).all()
    alike = {"seed": 1, "within": 0.1, "between": 0.1, "round": 4, "ARI": 1.0} | OF_OCFL
    assert alike.items() <= found.iloc[0].to_dict().items()
    with pytest.raises(KeyError):
        tables.in_round_1([early], [of_ocfl()])


def test_sattlers_two_cuts_stand_beside_each_other():
    def played(name, first, second):  # one cluster, then two
        rows = {"method": name, "round": range(1, 51), "ari": [0.0] * 24 + [first] * 26}
        rows |= {"ami": 0.0, "homogeneity": 0.0, "settled": False}
        end = {"ari": first, "n_clusters": second, "clustering_round": 25, "pf1": 0.5}
        return record(rows, {name: end}, name, seed=2, **OF_OCFL)

    exact, code = played("Sattler-exact", 1.0, 3), played("Sattler", 0.5, 4)
    other = record(seed=0, **OF_OCFL)
    assert tables.by_cut([exact], [other]).empty
    found = tables.by_cut([exact], [other, code]).set_index("cut")
    assert found["ARI"].to_dict() == {"complete": 0.5, "single": 1.0}
    assert found["RAND"].to_dict() == pytest.approx({"complete": 0.26, "single": 0.52})
    assert found["clusters"].to_dict() == {"complete": 4, "single": 3}
    assert (OF_OCFL | {"seed": 2, "split": 25}).items() <= found.loc["single"].to_dict().items()


def test_a_run_of_seed_0_is_of_both_kinds():
    ends = {name: {"ari": 1.0, "clustering_round": 2} for name in ocfl.CLUSTERERS}
    plain = {"engine": "threads", "perturbation": None, "until": "clusters", "seed": 0} | OF_OCFL
    others = {"seed": 1}, {"perturbation": 3}, {"until": "rounds"}, {"engine": None}
    runs = [record(summary=ends, **plain | change) for change in ({}, *others)]
    kinds = tables.roundings(runs, "seeds", "roundings")["kind"].value_counts()
    assert kinds.to_dict() == {"seeds": 2 * 4, "roundings": 2 * 4}


def test_lines_of_versions():
    columns = ["method", "measure", "value", "ours", "intended", "seeds"]
    rows = [("A", "acc", 98.64, 50.0, 49.96, 3.0), ("A", "ari", 1, 0.5, np.nan, 3.0)]
    table = pd.DataFrame(rows, columns=columns)
    [a] = tables.version_lines(table, ["A"], {"ari": ".2f", "acc": ".1f"})
    assert a.split() == ["A", "3", "1.00", "0.50", "–", "98.6", "50.0", "50.0"]


def test_images_that_are_given_again():
    run = record({"method": ["FedCRef"], "classes": ["0|0|1"]}, samples=10)
    assert tables.share_given_again(run, [15, 15]) == pytest.approx(5 / 30)


def test_methods_are_paired_by_seed_across_records():
    def of(name, seed, accuracy, finished="1"):
        ends = {name: {"accuracy": accuracy}}
        rows = {"method": [name], "round": [1]}
        return record(rows, ends, f"{name}{seed}{finished}", {"finished": finished}, seed=seed)

    runs = [of("A", seed, value) for seed, value in enumerate((0.5, 0.7, 0.6))]
    runs += [of("B", seed, value) for seed, value in enumerate((0.4, 0.5, 0.5))]
    found = results.paired(runs, "A", "B", "accuracy", 100)
    assert found == stats.paired([50, 70, 60], [40, 50, 50])
    # Seed 2 has a newer run of A; seed 3 has only one of the methods
    more = [*runs, of("A", 2, 0.9, "2"), of("A", 3, 0.1)]
    assert results.paired(more, "A", "B", "accuracy").mean == pytest.approx(0.7 / 3)
    assert results.paired(runs, "A", "C", "accuracy").n == 0


def test_clusters_are_compared_with_the_last_ones_of_each_method():
    """One method ends a round before the other, one diverges, and one is in one run alone."""
    explained = [("A", 0, "0|1"), ("A", 0, "0|1"), ("A", 1, "2"), ("B", 0, "0"), ("B", 1, "1|2")]
    rows = [("A", "0|0|1"), ("B", "1|0|0"), ("B", "0|0|1"), ("A", None), ("C", "0|0|0")]
    one = record(pd.DataFrame(explained, columns=["method", "cluster", "clients"]), seed=0, layer=1)
    trained = pd.DataFrame(rows, columns=["method", "clusters"])
    runs = [record(trained, seed=seed, central_every=1) for seed in (0, 1)]
    found = tables.same_clusters([one], runs)
    assert dict(zip(found["method"], found["same"], strict=True)) == {"A": True, "B": False}
    assert len(found) == 2, "runs with other parameters are not compared"


def test_pairs_that_differ():
    pairs = pd.DataFrame([[1, 0.04], [0.04, 1]], index=["A", "B"], columns=["A", "B"])
    comparison = stats.Comparison(pd.Series({"B": 1.0, "A": 2.0}), 0.01, pairs, [])
    assert tables.different_pairs(comparison) == ["B and A"]
    comparison.pairs.loc["B", "A"] = 0.06
    assert tables.different_pairs(comparison) == []


@pytest.mark.slow
def test_what_methods_were_told_and_cost(committed):
    """Costs come from the records: FedEM trains its four models, and an oracle is told."""
    bill = costs.told(committed)
    assert (bill.loc["FedAvg", ["trainings", "down", "up"]] == 1).all()
    assert bill.loc["FedEM", ["trainings", "down", "up"]].tolist() == [4, 4, 4]
    assert bill.loc[["IFCA", "PACFL", "Oracle"], "k"].tolist() == ["told", "–", "the groups"]
    assert bill.loc["EMD-CFL", "sees"] == "models, projected embeddings"
    found, rounds = bill.loc["PACFL"], 3
    assert found["per training"] == pytest.approx(found["accuracy"] / rounds)
    assert bill["threshold"].ne("–").sum() == len(costs.CHOSEN)
