"""Tests of the reports' and pages' tables; what a report prints is compared by executing it."""

import re

import numpy as np
import pages
import pandas as pd
import pytest
from reports import sentences, tables, thresholds

from cflkit import clustering, metrics
from cflkit.methods.emd_cfl_variants import clusters_of
from cflkit.reproduce import ledger, records
from cflkit.reproduce.papers import PAPERS, emd_cfl, ocfl
from cflkit.reproduce.papers.base import SCORES
from cflkit.reproduce.records import PROJECT, Record

SCENARIO = ("mnist", "overlapping", "balanced", 15)
OF_OCFL = dict(zip(ocfl.SCENARIO, SCENARIO, strict=True))


def record(table=(), summary=None, name="run", provenance=None, **parameters):
    """Build a record without files from its rounds, as rows or as columns."""
    run = Record(PROJECT / name, None, parameters, summary or {}, provenance or {})
    vars(run)["rounds"] = pd.DataFrame(table)
    return run


def test_a_ledger_at_one_scale_and_its_rows_with_runs():
    book = ledger.read()
    reduced = tables.at_scale(book, "reduced")
    for name in ("ours", "status"):
        assert reduced[name].equals(book[f"reduced_{name}"])
    assert "reduced_ours" not in tables.at_scale(book, "paper")
    rows = tables.with_runs(book)
    none = {"not run", ledger.NO_CODE}
    parts = [book[~book[name].isin(none)] for name in ("status", "reduced_status")]
    assert rows["value"].equals(pd.concat(parts, ignore_index=True)["value"])
    assert rows["scale"].tolist() == ["paper's"] * len(parts[0]) + ["reduced"] * len(parts[1])
    assert set(rows["status"]) == set(ledger.ANSWERS)
    assert set(rows.loc[rows["measure"].eq("RAND"), "margin"]) == {SCORES}


def test_scenarios_have_labels_of_what_differs():
    reduced = OF_OCFL | {"scale": "reduced"}
    rows = [OF_OCFL | {"scale": "paper's"}, reduced, reduced | {"dataset": "fashion-mnist"}]
    labels = ["mnist, paper's", "mnist", "fashion"]
    assert tables.scenario_labels(pd.DataFrame(rows), "ocfl-extended") == labels
    assert tables.scenario_labels(pd.DataFrame(rows[:1]), "ocfl-extended") == ["all"]


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


# --- What is written from the committed records ---------------------------------------------------


@pytest.mark.slow
def test_pages_and_the_ledger_are_what_the_kit_writes(committed, tmp_path, monkeypatch):
    texts = [page.read_text(encoding="utf-8") for page in pages.PAGES]
    copies = [tmp_path / f"{number}.md" for number in range(len(texts))]
    tables, names = re.compile(rf"({pages.start('([a-z0-9-]+)')})(?s:.+?)(?=\n<!-- end)"), []
    for copy, text in zip(copies, texts, strict=True):
        copy.write_text(tables.sub(r"\1to replace", text), encoding="utf-8")
        names += [name for _, name in tables.findall(text)]
    assert len(set(names)) == len(names)
    book = tmp_path / "ledger.csv"
    monkeypatch.setattr(pages, "PAGES", copies)
    monkeypatch.setattr(ledger, "LEDGER", book)
    monkeypatch.setattr(records, "committed", lambda: committed)
    assert pages.write_pages() == [book, *copies]
    assert [copy.read_text(encoding="utf-8") for copy in copies] == texts
    assert book.read_bytes() == (PROJECT / "data" / "ledger.csv").read_bytes()
    stubs = (pages, "tables", {"lost": ""}), (sentences, "paragraphs", {}), (ledger, "ledger", None)
    for module, name, value in stubs:
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    with pytest.raises(ValueError, match="no page has a place for lost"):
        pages.write_pages()


# --- The ARI over a threshold ---------------------------------------------------------------------

TRUTH = np.array([0, 0, 0, 1, 1, 2])


def distances(seed, noise=0.4):
    """Distances of six clients in three groups, one apart from the next, on a noisy line."""
    places = TRUTH + noise * np.random.default_rng(seed).normal(size=len(TRUTH))
    return np.abs(np.subtract.outer(places, places))


def directly(matrix, threshold, linkage):
    if linkage is None:
        return clusters_of(matrix, threshold)[0]
    cut = clustering.make("agglomerative", threshold=threshold, linkage=linkage)
    return cut.fit_predict(matrix)


@pytest.mark.slow
@pytest.mark.parametrize("linkage", [None, "weighted", "complete"])
@pytest.mark.parametrize("seed", range(3))
def test_a_curve_has_the_ari_of_every_threshold(linkage, seed):
    matrix = distances(seed)
    if linkage is None:  # a score of EMD-CFL has two sides, also that of a client with itself
        np.fill_diagonal(matrix, np.random.default_rng(seed).uniform(0, 1, len(TRUTH)))
    found = thresholds.curve(matrix, TRUTH, linkage)
    assert (found["high"].iloc[:-1].to_numpy() == found["low"].iloc[1:].to_numpy()).all()
    # Also at the ends of the intervals: a threshold cuts above what is smaller than itself
    tried = np.r_[np.linspace(0.01, 3, 40), found["high"].iloc[:-1]]
    aris = [metrics.agreement(TRUTH, directly(matrix, own, linkage))["ari"] for own in tried]
    assert thresholds.at(found, tried) == pytest.approx(aris)
    assert found["clusters"].iloc[-1] == 1


@pytest.mark.slow
def test_the_curve_of_a_record_has_its_own_ari_at_its_own_threshold(committed):
    paper, compared = PAPERS["emd-cfl"], 0
    for (_, _, _, method), runs in thresholds.by_scenario(committed).items():
        cut = thresholds.CUTS[method.removesuffix(records.AS_PUBLISHED)]
        for run in (run for run in runs if thresholds.recorded(run, method)):
            assert not paper.is_one_group(run)
            used = cut.used(emd_cfl.Parameters.checked(run.parameters))
            [ari] = thresholds.at(thresholds.curve_of(run, method), [used])
            assert ari == pytest.approx(run.by_method[method]["ari"].iloc[0]), (run.id, method)
            compared += 1
    assert compared >= 20
