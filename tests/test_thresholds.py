"""Tests of the ARI over a method's threshold."""

import numpy as np
import pages
import pandas as pd
import pytest
from reports import thresholds

from cflkit import clustering, metrics
from cflkit.methods.emd_cfl_variants import clusters_of
from cflkit.reproduce import records
from cflkit.reproduce.papers import PAPERS, emd_cfl

TRUTH = np.array([0, 0, 0, 1, 1, 2])


def distances(seed, noise=0.4):
    """Distances of six clients in three groups, one apart from the next, on a noisy line."""
    places = TRUTH + noise * np.random.default_rng(seed).normal(size=len(TRUTH))
    return np.abs(np.subtract.outer(places, places))


def directly(matrix, threshold, linkage):
    if linkage is None:
        return clusters_of(matrix, threshold)[0]
    return clustering.make("agglomerative", threshold=threshold, linkage=linkage).fit_predict(
        matrix
    )


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


def test_the_widest_range_of_the_best_mean():
    def steps(*rows):
        return pd.DataFrame(rows, columns=["low", "high", "ari"])

    one = steps((0, 1, 0.2), (1, 2, 1.0), (2, 4, 1.0), (4, 5, 0.3), (5, 6, 1.0), (6, np.inf, 0.0))
    assert thresholds.best(one) == (1.0, 1, 4)
    other = steps((0, 3, 0.5), (3, np.inf, 1.0))
    mean = thresholds.mean_curve([one, other])
    assert thresholds.at(mean, [0.5, 2.5, 3, 3.5, 9]) == pytest.approx([0.35, 0.75, 0.75, 1, 0.5])
    assert thresholds.best(mean) == (1.0, 3, 4)


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


@pytest.mark.slow
def test_thresholds_of_another_quantity_and_scenarios_of_one_group_stand_apart(committed):
    table = thresholds.table(committed).set_index(["scale", "data", "method"])
    assert table.loc[("paper", "mnist, backdoor", "PACFL"), "ARI"] == "–"
    assert table.loc[("paper", "mnist, backdoor", "PACFL as published"), "ARI"] == "0.81"
    assert not any("base" in data or "min" in data for _, data, _ in table.index)
    counted = pages.true_groups(committed)
    by_scenario = "0.81 (mnist, backdoor); 1.00 (mnist, four); 1.00 (mnist, two)"
    assert f"| emd-cfl | PACFL as published | 3 | 9 | 6 | {by_scenario} | 6 of 6 |" in counted
    assert "| emd-cfl | FedClust | 2 | 3 | – | – |  |" in counted
    assert thresholds.table([]).empty
