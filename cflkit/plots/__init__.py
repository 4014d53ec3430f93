"""Functions that draw the figures; each takes a table or a matrix and returns the Axes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from cflkit.metrics import renamed
from cflkit.plots.page import COLOURS, MARKERS, finding, png_of, save, show, show_frames, style
from cflkit.plots.papers import associations, associations_key, ranges
from cflkit.plots.updates import openings, umbrella

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLOURS",
    "MARKERS",
    "associations",
    "associations_key",
    "class_counts",
    "cluster_borders",
    "clusterings",
    "divergence",
    "finding",
    "image_grid",
    "openings",
    "over_rounds",
    "png_of",
    "ranges",
    "saliency",
    "save",
    "show",
    "show_frames",
    "style",
    "umbrella",
]

# In pixels: the height of a row of features, and what stands between images
STRIP, GAP = 6, 2


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
    # Grey images are drawn as ink on paper
    white, cmap = (0, "gray_r") if pictures.shape[1] == 1 else (255, None)
    room = (0, -len(pictures) % columns), (0, 0), (0, GAP), (0, GAP)
    cells = np.pad(pictures.astype(np.uint8), room, constant_values=white)
    channels, height, width = cells.shape[1:]
    sheet = cells.reshape(-1, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    sheet = sheet.reshape(-1, columns * width, channels).squeeze()
    axes = axes or plt.gca()
    axes.imshow(sheet, cmap=cmap, vmin=0, vmax=255, interpolation="nearest")
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
    tables: Sequence["pd.DataFrame"], measure: str, label: str, axes: Axes | None = None
) -> Axes:
    """Draw a measure over rounds, one line per method, from the tables of one or several seeds.

    A line is the mean over the seeds, and its band reaches from the smallest to the largest. Lines
    have markers of their own, at different rounds, so that those in the same place stay visible.
    """
    import pandas as pd  # only here: a lesson's first cell is there sooner

    axes = axes or plt.gca()
    together = pd.concat(tables).dropna(subset=[measure])
    for number, (method, rows) in enumerate(together.groupby("method", sort=False)):
        curve = rows.groupby("round")[measure].agg(["mean", "min", "max"])
        every, colour = max(len(curve) // 5, 1), COLOURS[number % len(COLOURS)]
        look: dict[str, Any] = {"color": colour, "marker": MARKERS[number % len(COLOURS)]}
        look |= {"label": method, "markersize": 5, "markevery": (number % every, every)}
        axes.plot(curve.index, curve["mean"], **look)
        axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
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
