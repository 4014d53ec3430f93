"""Functions that draw the figures; each takes a table or a matrix and returns the Axes."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from cflkit.metrics import renamed
from cflkit.plots.page import COLOURS, MARKERS, finding, png_of, save, show, show_frames, style
from cflkit.plots.papers import agreements, associations, associations_key, ranges, thresholds
from cflkit.plots.updates import openings, umbrella

__all__ = [
    "COLOURS",
    "MARKERS",
    "agreements",
    "associations",
    "associations_key",
    "class_counts",
    "cluster_borders",
    "clusterings",
    "divergence",
    "finding",
    "grid",
    "image_grid",
    "learning_gap",
    "openings",
    "over_rounds",
    "png_of",
    "ranges",
    "saliency",
    "save",
    "show",
    "show_frames",
    "style",
    "thresholds",
    "umbrella",
]

# The height in pixels of a row of features
STRIP = 6


def image_grid(images: ArrayLike, columns: int, axes: Axes | None = None) -> Axes:
    """Draw images ``[N, channels, height, width]`` as one sheet.

    The images are grey or colour, and bytes from 0 to 255 or floats from 0 to 1. Features have the
    form of images of one pixel; they are drawn as rows of shades, from the smallest to the largest.
    """
    pictures = np.asarray(images)
    if pictures.shape[2:] == (1, 1):
        features = pictures.reshape(len(pictures), -1)
        shades = (features - features.min()) / (np.ptp(features) or 1)
        pictures = np.repeat(shades[:, None, None], STRIP, axis=2)
    if np.issubdtype(pictures.dtype, np.floating):
        pictures = np.rint(pictures.clip(0, 1) * 255)
    count, channels, height, width = pictures.shape
    rows = -(-count // columns)
    gap = 2
    white = 0 if channels == 1 else 255  # grey images are drawn as ink on paper
    sheet = np.full((rows * (height + gap), columns * (width + gap), channels), white, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = (number // columns) * (height + gap), (number % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = picture.transpose(1, 2, 0)
    axes = axes or plt.gca()
    cmap = "gray_r" if channels == 1 else None
    axes.imshow(sheet.squeeze(), cmap=cmap, vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()
    return axes


def class_counts(
    counts: ArrayLike, clusters: ArrayLike, axes: Axes | None = None, vmax: float | None = None
) -> Axes:
    """Draw how many samples of each class (columns) each client (rows) has.

    A class of which a client has no sample is grey. Lines separate the true clusters. Panels that
    share a ``vmax`` share a scale of colours.
    """
    table = np.asarray(counts)
    axes = axes or plt.gca()
    colours = plt.get_cmap("YlGnBu").with_extremes(bad="0.88")
    axes.imshow(np.ma.masked_equal(table, 0), aspect="auto", cmap=colours, vmin=1, vmax=vmax)
    for border in cluster_borders(clusters):
        axes.axhline(border, color="black", linewidth=1)
    axes.set(xlabel="class", ylabel="client", xticks=range(table.shape[1]))
    return axes


def divergence(
    matrix: ArrayLike, clusters: ArrayLike, axes: Axes | None = None, vmax: float | None = None
) -> Axes:
    """Draw a client-by-client matrix, with white lines between the true clusters."""
    axes = axes or plt.gca()
    axes.imshow(np.asarray(matrix), vmin=0, vmax=vmax)
    for border in cluster_borders(clusters):
        axes.axhline(border, color="white", linewidth=1)
        axes.axvline(border, color="white", linewidth=1)
    axes.set(xlabel="client", ylabel="client")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


def clusterings(
    truth: ArrayLike, clusters: Mapping[str, ArrayLike], axes: Axes | None = None
) -> Axes:
    """Draw clusterings as strips, one per row, with the true clusters ``[m]`` on top.

    A cluster has the number and the colour of the true cluster that it matches best. Clusters that
    match no true one have numbers of their own and are hatched.
    """
    axes = axes or plt.gca()
    rows = {"truth": np.asarray(truth)}
    rows |= {name: renamed(truth, labels) for name, labels in clusters.items()}
    known = rows["truth"].max() + 1  # as `renamed` counts
    for place, labels in enumerate(rows.values()):
        for client, label in enumerate(labels.tolist()):
            extra = label >= known
            face, hatch = ("0.85", "///") if extra else (COLOURS[label % len(COLOURS)], None)
            axes.barh(place, 1, 0.8, client - 0.5, color=face, edgecolor="white", hatch=hatch)
            colour = "black" if extra else "white"
            axes.text(client, place, label, ha="center", va="center", color=colour, fontsize=9)
    axes.set(xlabel="client", xlim=(-0.5, len(rows["truth"]) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(rows["truth"])))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def over_rounds(
    tables: Sequence[pd.DataFrame], measure: str, label: str, axes: Axes | None = None
) -> Axes:
    """Draw a measure over rounds, one line per method, from the tables of one or several seeds.

    A line is the mean over the seeds, and its band reaches from the smallest to the largest. Lines
    have markers of their own, at different rounds, so that those in the same place stay visible.
    """
    axes = axes or plt.gca()
    together = pd.concat(tables).dropna(subset=[measure])
    for number, (method, rows) in enumerate(together.groupby("method", sort=False)):
        curve = rows.groupby("round")[measure].agg(["mean", "min", "max"])
        every, colour = max(len(curve) // 5, 1), COLOURS[number % len(COLOURS)]
        look: dict[str, Any] = {"color": colour, "marker": MARKERS[number % len(COLOURS)]}
        look |= {"markersize": 5, "markevery": (number % every, every)}
        axes.plot(curve.index, curve["mean"], label=method, **look)
        band = curve.index, curve["min"], curve["max"]
        axes.fill_between(*band, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


def learning_gap(table: pd.DataFrame, axes: Axes | None = None) -> Axes:
    """Draw one segment per method of a history's table, from GF1 (hollow) to PF1 (filled).

    Both are means over the rounds with an evaluation on the central test set. The figure follows
    Figure 2 of both OCFL papers, whose segments have GF1 below and PF1 above.
    """
    axes = axes or plt.gca()
    both = table.dropna(subset=["gf1", "pf1"])
    means = both.groupby("method", sort=False)[["gf1", "pf1"]].mean()
    places, colour = range(len(means)), COLOURS[0]
    axes.vlines(places, means["gf1"], means["pf1"], color=colour, linewidth=3, alpha=0.5)
    axes.plot(places, means["gf1"], "o", color=colour, mfc="white", label="GF1, central test set")
    axes.plot(places, means["pf1"], "o", color=colour, label="PF1, own test sets")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.set(ylabel="F1, mean over rounds", ylim=(0, 1))
    axes.set_xticks(places, list(means.index), rotation=30, ha="right")
    return axes


def grid(
    values: ArrayLike,
    rows: Sequence[object],
    columns: Sequence[object],
    texts: Sequence[Sequence[str]],
    axes: Axes | None = None,
) -> Axes:
    """Draw values ``[rows, columns]`` in [0, 1] as coloured cells with texts; NaN is grey."""
    axes = axes or plt.gca()
    shades = np.asarray(values, dtype=float)
    colours = plt.get_cmap("viridis").with_extremes(bad="0.92")
    axes.imshow(np.ma.masked_invalid(shades), cmap=colours, vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(shades):
        colour = "white" if value < 0.6 else "black"
        text = texts[row][column]
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(range(len(columns)), [str(name) for name in columns])
    axes.set_yticks(range(len(rows)), [str(name) for name in rows])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def cluster_borders(clusters: ArrayLike) -> list[float]:
    """Compute the positions of lines between clients of different true clusters."""
    return (np.flatnonzero(np.diff(np.asarray(clusters))) + 0.5).tolist()


def saliency(image: ArrayLike, heat: ArrayLike, axes: Axes | None = None) -> Axes:
    """Draw a saliency map over its image ``[channels, height, width]``.

    The map is ``[height, width]`` with values in [0, 1]. Pixels with a high value hide the image;
    pixels with the value 0 show it unchanged. A map that has one value everywhere says nothing
    about places. The image then stays bare, and a label says so.
    """
    axes = image_grid(np.asarray(image)[None], columns=1, axes=axes)
    shades = np.asarray(heat, dtype=float)
    if np.ptp(shades) < 1e-6:
        words = "zero\nmap" if abs(shades.max()) < 1e-6 else "constant\nmap"
        box: dict[str, Any] = {"facecolor": "white", "edgecolor": "black", "pad": 2}
        text = axes.text(0.5, 0.5, words, fontsize=8, bbox=box, transform=axes.transAxes)
        text.set(ha="center", va="center")
        return axes
    axes.imshow(shades, cmap="plasma", vmin=0, vmax=1, alpha=0.75 * shades, interpolation="nearest")
    return axes
