"""Figures of one paper's idea: EMD-CFL's thresholds, FedCRef's associations."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cflkit.plots.page import COLOURS

# A range of thresholds, and one within which none works
RANGE: dict[str, Any] = {"color": COLOURS[0], "linewidth": 6}
NO_RANGE: dict[str, Any] = {"color": COLOURS[1], "linewidth": 1.5, "marker": "x"}
# Associations of FedCRef: within a class, and between two
RIGHT_EDGE: dict[str, Any] = {"color": "0.6", "linewidth": 0.6}
WRONG_EDGE: dict[str, Any] = {"color": "black", "linewidth": 1.8}


def ranges(bars: Mapping[str, tuple[float, float]], axes: Axes | None = None) -> Axes:
    """Draw working ranges of a threshold as bars on a logarithmic axis, one row per name.

    A range has the largest distance within clusters and the smallest between clusters. If the
    second is not the larger one, no threshold works: the bar is thin and ends in crosses.
    """
    axes = axes or plt.gca()
    floor = 1e-3
    for place, (within, between) in enumerate(bars.values()):
        look = RANGE if within < between else NO_RANGE
        ends = np.maximum([within, between], floor)
        axes.plot(ends, [place, place], solid_capstyle="butt", **look)
    if any(within < between for within, between in bars.values()):
        axes.plot([], [], label="every ε in the bar works", **RANGE)
    if any(within >= between for within, between in bars.values()):
        axes.plot([], [], "x-", color=COLOURS[1], label="no ε works: the two ends overlap")
    ticks = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 2]
    axes.set(xscale="log", xlabel="threshold ε", xlim=(0.004, 2.2))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(bars)), list(bars))
    axes.margins(y=0.05)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    return axes


def associations(row: Mapping[str, Any], axes: Axes | None = None) -> Axes:
    """Draw the graph of one iteration of FedCRef from a row of a run's history.

    Local clusters of one class form a ring with the class beside it; the rings lie on a circle.
    Associations between two classes are thick and black. Isolated clusters are small and hollow.
    `associations_key` is the legend.
    """
    axes = axes or plt.gca()
    classes = np.array(str(row["classes"]).split("|"), dtype=int)
    known = np.unique(classes)
    middle = {c: 2 * np.pi * k / len(known) for k, c in enumerate(known.tolist())}
    x, y = np.empty((2, len(classes)))
    for label, angle in middle.items():
        ring = np.flatnonzero(classes == label)
        turn = 2 * np.pi * np.arange(len(ring)) / len(ring) + angle
        x[ring] = np.cos(angle) + 0.22 * np.cos(turn)
        y[ring] = np.sin(angle) + 0.22 * np.sin(turn)
        if label >= 0:
            x_label, y_label = 1.42 * np.cos(angle), 1.42 * np.sin(angle)
            axes.text(x_label, y_label, str(label), ha="center", va="center", fontsize=9)
    # Without edges, the text is empty, or the table has NaN
    edges = [edge.split("-") for edge in str(row["edges"]).split("|") if "-" in edge]
    for pair in (list(map(int, edge)) for edge in edges):
        wrong = len(set(classes[pair])) > 1 or classes[pair[0]] < 0
        axes.plot(x[pair], y[pair], zorder=int(wrong), **(WRONG_EDGE if wrong else RIGHT_EDGE))
    joined = np.isin(np.arange(len(classes)), np.array(edges, dtype=int))
    fills, sizes = np.where(joined, COLOURS[0], "white"), np.where(joined, 22, 12)
    rims = np.where(joined, COLOURS[0], "black").tolist()
    axes.scatter(x, y, c=fills, edgecolors=rims, linewidths=0.8, s=sizes, zorder=2)
    axes.set(aspect="equal", xlim=(-1.55, 1.55), ylim=(-1.55, 1.55))
    axes.set_axis_off()
    return axes


def associations_key(figure: Figure, beside: bool = False) -> None:
    """Put the legend of `associations` below a figure, or to its right."""
    joined: dict[str, Any] = {"linestyle": "", "marker": "o", "color": COLOURS[0], "markersize": 5}
    alone = {"color": "black", "markerfacecolor": "white", "markersize": 3.5}
    looks = {
        "associated local cluster": joined,
        "isolated local cluster": joined | alone,
        "association within a class": RIGHT_EDGE,
        "wrong association": WRONG_EDGE,
    }
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    place: Any = "outside right center" if beside else "outside lower center"
    figure.legend(handles=handles, loc=place, ncols=1 if beside else len(handles), fontsize=8.5)
