"""Tests of the reports' figures: what they draw of small tables that were made by hand."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from reports import figures
from test_reports import SCENARIO, record

from cflkit import plots
from cflkit.reproduce.papers.base import SCORES


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def drawn(ax):
    """The lines of a panel that have points: their marker, x and y."""
    lines = [line for line in ax.lines if len(line.get_xdata())]
    points = [(line.get_marker(), line.get_xdata(), line.get_ydata()) for line in lines]
    return [(marker, list(x), np.round(np.array(y, float), 6).tolist()) for marker, x, y in points]


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_panels_without_a_title_are_hidden_and_a_legend_has_each_label_once():
    figure, axes = figures.panels(["one", "two", "three"], (2, 2), (4, 3), "x")
    assert [ax.get_visible() for ax in axes.flat] == [True, True, True, False]
    assert [ax.get_xlabel() for ax in axes.flat] == ["", "", "x", "x"]
    figures.legend(figure)
    assert figure.legends == []
    for ax, names in zip(axes.flat, ("ab", "bc", "", ""), strict=True):
        for name in names:
            ax.plot([1], [1], label=name)
    figures.legend(figure)
    assert labels(figure) == ["a", "b", "c"]


def test_printed_numbers_stand_above_ours_and_few_seeds_are_hollow():
    cell = {"method": "A", "value": 1.0, "deviation": 0.5, "ours": 3, "low": 2, "high": 4}
    rows = pd.DataFrame([cell | {"seeds": 3}, cell | {"value": 2.0, "seeds": 3}])
    single = pd.DataFrame([cell | {"method": "B", "seeds": 1}])
    parts = [[("title", "label", pd.concat([rows, single]))], [("none", "label", rows[:0])]]
    figure = figures.comparison(parts, "method", ["A", "B"], figsize=(4, 4))
    upper, lower = figure.axes
    heights = {("D", -0.28), ("D", -0.12), ("o", 0.15), ("D", 0.72), ("o", 1.15)}
    assert {(marker, y[0]) for marker, _, y in drawn(upper)} == heights
    dots = [line for line in upper.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert [dot.get_markerfacecolor() for dot in dots] == [plots.COLOURS[0], "white"]
    assert upper.get_ylim() == (1.5, -0.5)
    assert (upper.get_title(), drawn(lower)) == ("title", [])
    assert labels(figure) == ["published", "ours, three seeds", "ours, one seed"]


def test_versions_of_a_method():
    columns = ["method", "value", "ours", "intended"]
    rows = [("A", 0.9, 0.2, 0.8), ("B", np.nan, 0.5, np.nan)]
    ax = plt.figure().subplots()
    figures.versions(ax, pd.DataFrame(rows, columns=columns), "method", ["B", "A"])
    found = {marker: dict(zip(y, x, strict=True)) for marker, x, y in drawn(ax)}
    assert (found["|"][1], found["X"][1], found["o"][1], found["s"][0]) == (0.9, 0.2, 0.8, 0.5)
    assert np.isnan([found["X"][0], found["s"][1]]).all(), "one version is a square alone"
    assert texts(ax) == ["–"]


def test_segments_reach_from_gf1_to_pf1():
    ax = plt.figure().subplots()
    columns = pd.MultiIndex.from_product([["value", "ours"], ["GF1", "PF1"]])
    ends = pd.DataFrame([[0.1, 0.9, 0.2, 0.8], [0.3, 0.3, 0.7, 0.4]], ["A", "B"], columns)
    figures.segments(ax, ends)
    heights = [y for _, _, y in drawn(ax)]
    assert heights == [[0.1, 0.3], [0.9, 0.3], [0.2, 0.7], [0.8, 0.4]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["A", "B"]


def test_answers_are_shares_with_their_counts():
    columns = dict.fromkeys(figures.ANSWERS, 0)
    rows = [columns | {"reproduced": 3, "not run": 7}, *[columns | {"not run": 20}] * 2]
    tables = [("paper's", "ocfl", "I"), ("paper's", "emd-cfl", "1"), ("paper's", "emd-cfl", "2")]
    index = pd.MultiIndex.from_tuples(tables, names=["scale", "paper", "table"])
    [ax] = figures.answers(pd.DataFrame(rows, index=index), ["paper's"]).axes
    assert texts(ax) == ["3", "7", "40"]
    widths = [bar.get_width() for bar in ax.patches if bar.get_width()]
    assert widths == pytest.approx([0.3, 0.7, 1])


def test_differences_beyond_the_edge_are_triangles_there():
    cell = {"method": "A", "measure": "RAND", "margin": SCORES, "half_width": 0.01}
    rows = [("close", 0.5, 0.53, "close"), ("far", 0.5, 0.9, "differs")]
    rows += [("dash", np.nan, 0.1, "differs")]
    table = pd.DataFrame(rows, columns=["label", "value", "ours", "status"]).assign(**cell)
    [ax] = figures.differences(table).axes
    marks = {y[0]: (marker, x[0]) for marker, x, y in drawn(ax)}
    assert marks[0] == ("^", pytest.approx(0.03))
    assert marks[1] == (">", pytest.approx(3 * 0.055)), "three times the margin and its rounding"
    assert texts(ax) == ["–"]


@pytest.mark.parametrize(
    ("method", "marker", "triangles"), [("FedAvg", "None", 2), ("OCFL-HDB", "o", 1)]
)
def test_temperatures_have_triangles_where_clients_are_clustered(method, marker, triangles):
    axes = plt.figure().subplots(1, 1, squeeze=False)
    rows = {"method": method, "round": [1, 2, 3], "temperature": [0.5, 0.4, 0.6]}
    run = record(rows, {"OCFL-HDB": {"clustering_round": 3}}, seed=0)
    theirs = {SCENARIO[:3]: ([0.4, 0.6, 0.5, 0.4], 2)}
    figures.temperatures(axes, {SCENARIO[:3]: [run]}, theirs, range(1, 4), method)
    lines = drawn(axes[0, 0])
    assert lines[0] == (marker, [1, 2, 3], [0.5, 0.4, 0.6])
    ours, authors = ("^", [3], [0.6]), ("^", [2], [0.6])
    assert [line for line in lines if line[0] == "^"] == [ours, authors][-triangles:]
    assert ("None", [1, 2, 3], [0.4, 0.6, 0.5]) in lines, "cut where ours are"


def test_mean_temperatures_are_as_long_as_the_shortest_curve():
    theirs = {"mnist": [[1, 2, 3], [3, 4]], "all": [[1, 2]]}
    left, middle, right = figures.mean_temperatures(theirs, {"mnist": [[5, 5, 5]]}).axes
    assert drawn(left) == [("None", [1, 2], [2, 3]), ("None", [1, 2], [5, 5])]
    assert drawn(right) == [("None", [1, 2], [1, 2])]
    assert (drawn(middle), right.get_title()) == ([], "all\n1 scenarios")


def test_what_shades_to_fool_cost():
    ends = {"A": {"clean_accuracy": 0.9, "backdoor_accuracy": 0.5}}
    rows = {"method": "A", "round": [1, 2], "clean_accuracy": [0.5, 0.9], "backdoor_accuracy": 0.6}
    run = record(rows, ends, seed=1, rounds=3, local_epochs=10)
    ax, other = plt.figure().subplots(2)
    figures.clean_and_fooled(ax, [run], ["A"])
    assert drawn(ax)[1:] == [("o", [0], [90]), ("x", [0], [50])]
    figures.lost_accuracy(other, [run], ["A"], {3: ("--", "three rounds")})
    assert drawn(other)[0] == ("o", [10, 20], [-10, 30])
    assert other.get_legend_handles_labels()[1] == ["A", "three rounds"]
