"""Tests of ranks and statistics against scipy and textbooks; `test_published` has the papers'."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reports import figures, results, tables
from scipy.stats import rankdata, ttest_rel, wilcoxon

from cflkit.reproduce import stats

SCORES = arrays(float, (6, 4), elements=st.integers(0, 5).map(float))


@given(SCORES, st.booleans())
def test_ranks_are_scipys(values, higher):
    scores = pd.DataFrame(values, columns=list("abcd"))
    expected = rankdata(-values if higher else values, axis=1).mean(axis=0)
    found = stats.average_ranks(scores, higher)
    np.testing.assert_allclose(found[list("abcd")], expected)
    assert found.is_monotonic_increasing


@given(arrays(float, st.tuples(st.just(2), st.integers(3, 8)), elements=st.integers(0, 9)))
def test_paired_differences_have_scipys_interval(values):
    one, other = values
    found, differences = results.differences(one, other), one - other
    assert (found.mean, found.n) == (pytest.approx(differences.mean()), len(one))
    if np.ptp(differences) == 0:
        assert np.isnan(found.half_width), "equal differences have no interval"
    else:
        low, high = ttest_rel(one, other).confidence_interval(0.9)
        assert found.half_width == pytest.approx((high - low) / 2)


def test_few_pairs_have_no_interval():
    assert results.differences([1, 3], [0, 0]).text(1) == "+2.0 (n = 2)"
    assert results.differences([], []).text(1) == "–"
    assert results.differences([1, 2, 4], [1, 1, 1]).text(1) == "+1.3 ± 2.6"
    assert results.differences([1, 2, 3], [0, 1, 2]).text(1) == "+1.0 (n = 3)", "they are equal"


@given(arrays(float, 7, elements=st.floats(0, 1)), st.floats(0, 1, exclude_max=True))
def test_holm_rejects_as_the_step_down_procedure_does(p, level):
    """Hypotheses are rejected from the smallest p-value on, until one is not rejected."""
    rejected, alive = set(), True
    for step, place in enumerate(np.argsort(p, kind="stable")):
        alive = alive and p[place] * (len(p) - step) <= level
        if alive:
            rejected.add(place)
    assert set(np.flatnonzero(stats.holm(p) <= level)) == rejected
    assert stats.holm(p).max() <= 1


def spread(k=4, blocks=12, gap=1.0, seed=0):
    values = gap * np.arange(k) + np.random.default_rng(seed).normal(size=(blocks, k))
    return pd.DataFrame(values, columns=[f"m{i}" for i in range(k)])


def test_pairs_are_scipys_wilcoxon_tests_corrected():
    scores = spread(blocks=20, gap=0.6).round()  # some differences are zero
    found = stats.compare(scores, higher_is_better=True)
    assert found.ranks.index.tolist() == ["m3", "m2", "m1", "m0"]
    pairs = list(combinations(found.ranks.index, 2))
    raw = [wilcoxon(scores[a], scores[b], zero_method="pratt").pvalue for a, b in pairs]
    corrected = dict(zip(pairs, stats.holm(np.array(raw)), strict=True))
    for (a, b), p in corrected.items():
        assert found.pairs.loc[a, b] == found.pairs.loc[b, a] == pytest.approx(p)
    different = [f"{a} and {b}" for (a, b), p in corrected.items() if p <= 0.05]
    assert tables.different_pairs(found) == different and 0 < len(different) < len(pairs)
    assert found.friedman < 0.001
    assert stats.compare(spread(gap=0.6), higher_is_better=True).alike == [["m2", "m1"]]


def test_where_friedman_finds_nothing_all_are_alike():
    found = stats.compare(spread(k=3, gap=0.4, seed=53), higher_is_better=True)
    assert found.friedman > 0.05
    assert (found.pairs < 0.05).any(axis=None), "though a pair would differ"
    assert found.alike == [found.ranks.index.tolist()]


def test_equal_methods_are_alike_and_far_ones_are_not():
    scores = spread(gap=20.0)
    scores["same"] = scores["m1"]
    found = stats.compare(scores, higher_is_better=False)
    assert [set(clique) for clique in found.alike] == [{"m1", "same"}]
    assert found.pairs.loc["m1", "same"] == 1


def test_cliques_are_maximal_and_need_not_be_neighbours():
    alike = pd.DataFrame(np.eye(5, dtype=bool), list("abcde"), list("abcde"))
    for i, j in ("ab", "bc", "cd", "bd", "ae"):
        alike.loc[i, j] = alike.loc[j, i] = True
    assert stats.cliques(alike) == [["a", "b"], ["a", "e"], ["b", "c", "d"]]


def test_bad_tables_are_refused():
    missing = spread()
    missing.loc[3, "m2"] = np.nan
    for scores, message in ((spread(k=2), "least 3"), (missing, "in .'m2'.$")):
        with pytest.raises(ValueError, match=message):
            stats.compare(scores, higher_is_better=True)


def test_the_diagram_has_every_method_and_a_bar_for_each_clique():
    comparison = stats.compare(spread(gap=0.6), higher_is_better=True)
    axes = plt.figure().subplots()
    figures.critical_differences(comparison, axes)
    labels = {text.get_text() for text in axes.texts}
    assert labels == {f"{name} {rank:.2f}" for name, rank in comparison.ranks.items()}
    bars = [line for line in axes.lines if line.get_linewidth() == 2]
    found = [line.get_xdata().tolist() for line in bars]
    assert found == [comparison.ranks[members].tolist() for members in comparison.alike]
    plt.close("all")
