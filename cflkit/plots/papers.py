"""Figures of one paper's idea: EMD-CFL's thresholds and agreements, FedCRef's associations."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from cflkit.metrics import renamed
from cflkit.plots.page import COLOURS, MARKERS

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


def thresholds(
    aris: ArrayLike, steps: Sequence[float], shares: Sequence[float], axes: Axes | None = None
) -> Axes:
    """Draw an ARI ``[R, S]`` for R shares of the dimensions and S thresholds of EMD-CFL.

    Cells with the true clusters have a 1.
    """
    axes = axes or plt.gca()
    values = np.asarray(aris, dtype=float).reshape(len(shares), len(steps))
    if len(shares):
        axes.imshow(values, vmin=0, vmax=1, cmap="YlGnBu", aspect="auto")
    for row, column in np.argwhere(values == 1):
        axes.text(column, row, "1", ha="center", va="center", color="white", fontsize=8)
    places = range(0, len(steps), max(1, len(steps) // 4))
    axes.set_xticks(places, [f"{steps[place]:.2g}" for place in places])
    axes.set_yticks(range(len(shares)), [f"{share:.0%}" for share in shares])
    axes.set(xlabel="threshold ε", ylabel="dimensions kept")
    return axes


def agreements(
    edges: ArrayLike, clusters: ArrayLike, labels: ArrayLike, axes: Axes | None = None
) -> Axes:
    """Draw which clients agree: clients on a circle, and a line per agreement.

    Parameters
    ----------
    edges : array_like
        ``[m, m]``, bool: whether two clients agree.
    clusters, labels : array_like
        ``[m]``, the true clusters, which decide a client's marker, and the clusters found. A
        client has the number and the colour of the cluster found; numbers are matched to the truth.
    axes : Axes, optional
        Where to draw.
    """
    axes = axes or plt.gca()
    truth, joined = np.asarray(clusters), np.asarray(edges, dtype=bool)
    angles = np.pi / 2 - 2 * np.pi * (np.arange(len(truth)) + 0.5) / len(truth)
    x, y = np.cos(angles), np.sin(angles)
    for first, second in np.argwhere(np.triu(joined, 1)):
        pair, wrong = [first, second], truth[first] != truth[second]
        colour, line = ("black", "--") if wrong else ("0.6", "-")
        axes.plot(x[pair], y[pair], color=colour, linestyle=line, linewidth=1, zorder=0)
    known = np.max(truth) + 1  # as `renamed` counts
    for client, label in enumerate(renamed(truth, labels).tolist()):
        marker = MARKERS[int(truth[client]) % len(MARKERS)]
        colour = COLOURS[label % len(COLOURS)] if label < known else "0.45"
        axes.plot(x[client], y[client], marker, color=colour, markersize=15)
        axes.text(x[client], y[client], label, ha="center", va="center", color="white", fontsize=9)
    axes.set(aspect="equal", xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    axes.set_axis_off()
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
    edges = [] if pd.isna(row["edges"]) else [e.split("-") for e in row["edges"].split("|") if e]
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
