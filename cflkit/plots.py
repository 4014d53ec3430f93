"""Functions that draw the figures; each takes a table or a matrix and returns the Axes."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import PIL.Image
from IPython.display import Image, Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from sklearn.metrics import pairwise_distances_argmin

from cflkit._project import PROJECT
from cflkit.metrics import renamed

# Where figures of a reader's run go; the build of the notebooks writes into ``figures/``
FOLDER = PROJECT / "data" / "runs" / "figures"

# Okabe and Ito's colours, which readers with a colour vision deficiency can distinguish
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
# Lines differ in their marker as well, so that no line is told by its colour alone
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
# Associations of FedCRef: within a class, and between two
RIGHT_EDGE: dict[str, Any] = {"color": "0.6", "linewidth": 0.6}
WRONG_EDGE: dict[str, Any] = {"color": "black", "linewidth": 1.8}
# Pixels per inch on the page. A figure is stored in more, for screens of high density, and not in
# so many that a notebook exceeds 300 kB
DPI, SHARPNESS = 100, 1.5
# The number of colours that a stored figure has exactly
FREQUENT = 24
# The widest figure, in inches: a column of JupyterLab has little more than 800 pixels
WIDEST = 8.0
# The height in pixels of a row of features
STRIP = 6


def style() -> None:
    """Set the style of all notebooks' figures, which are small, plain and legible in print."""
    plt.rcParams.update(
        {
            "figure.dpi": DPI,
            "savefig.dpi": DPI * SHARPNESS,
            "figure.constrained_layout.use": True,
            "axes.prop_cycle": plt.cycler(color=COLOURS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
            "axes.labelsize": 9.5,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "image.cmap": "viridis",
        }
    )


def save(figure: Figure, name: str) -> Path:
    """Save a figure as PNG in ``data/runs/figures``, or where ``CFLKIT_FIGURES`` points."""
    folder = Path(os.environ.get("CFLKIT_FIGURES") or FOLDER).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    path.write_bytes(png_of(figure))
    return path


def show(figure: Figure, number: int, caption: str, alt: str) -> None:
    """Display a figure of a notebook with its number, caption and alternative text.

    Parameters
    ----------
    figure : Figure
        At most `WIDEST` inches wide. It is closed, so that no cell shows it twice.
    number : int
        Its number in the notebook, from 1.
    caption : str
        What the figure shows, in Markdown. What it means belongs into the text.
    alt : str
        What somebody who cannot see it should know: the kind of figure, and what to see in it.

    Raises
    ------
    ValueError
        The figure is too wide for the page.
    """
    width = figure.get_figwidth()
    if width > WIDEST:
        raise ValueError(f"a figure may be {WIDEST} inches wide, and this one has {width:.1f}")
    display(Image(png_of(figure), format="png", width=round(width * DPI), alt=alt))
    display(Markdown(f"**Figure {number}.** {caption}"))
    plt.close(figure)


def png_of(figure: Figure) -> bytes:
    """Draw a figure in few colours: a quarter of the size, and the same to the eye.

    The most frequent colours stay as they are, such as those of lines, bands and grounds. The
    others become the nearest of these and of 12 more, or 120 in figures with images or matrices.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI * SHARPNESS, metadata={"Software": None})
    picture = PIL.Image.open(buffer).convert("RGB")
    counted = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)
    found = np.array([colour for _, colour in counted])
    rest = 120 if any(axes.images for axes in figure.axes) else 12
    shades = picture.quantize(rest, PIL.Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.vstack([found[:FREQUENT], np.reshape(shades[: 3 * rest], (-1, 3))])
    number = np.array([1 << 16, 1 << 8, 1])  # of a colour: its three bytes as one integer
    index = np.zeros(1 << 24, dtype=np.uint8)
    index[found @ number] = pairwise_distances_argmin(found, palette)
    few = PIL.Image.fromarray(index[np.asarray(picture) @ number], "P")
    few.putpalette(palette.astype(np.uint8).tobytes())
    small = io.BytesIO()
    few.save(small, "PNG", optimize=True)
    return small.getvalue()


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


def clusterings(truth: ArrayLike, found: Mapping[str, ArrayLike], axes: Axes | None = None) -> Axes:
    """Draw clusterings as strips, one per row, with the true clusters ``[m]`` on top.

    A cluster has the number and the colour of the true cluster that it matches best. Clusters that
    match no true one have numbers of their own and are hatched.
    """
    axes = axes or plt.gca()
    rows = {"truth": np.asarray(truth)}
    rows |= {name: renamed(truth, labels) for name, labels in found.items()}
    known = rows["truth"].max() + 1  # as `renamed` counts
    for place, labels in enumerate(rows.values()):
        for client, label in enumerate(labels.tolist()):
            extra = label >= known
            axes.add_patch(
                Rectangle(
                    (client - 0.5, place - 0.4),
                    1,
                    0.8,
                    facecolor="0.85" if extra else COLOURS[label % len(COLOURS)],
                    edgecolor="white",
                    hatch="///" if extra else None,
                )
            )
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
        look = number % len(COLOURS)
        every = max(len(curve) // 5, 1)
        axes.plot(
            curve.index,
            curve["mean"],
            label=method,
            color=COLOURS[look],
            marker=MARKERS[look],
            markersize=5,
            markevery=(number % every, every),
        )
        axes.fill_between(
            curve.index, curve["min"], curve["max"], color=COLOURS[look], alpha=0.15, linewidth=0
        )
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
    [hollow] = axes.plot(places, means["gf1"], "o", color=colour, label="GF1, central test set")
    hollow.set_markerfacecolor("white")
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
    axes.scatter(
        x,
        y,
        c=np.where(joined, COLOURS[0], "white"),
        edgecolors=np.where(joined, COLOURS[0], "black").tolist(),
        linewidths=0.8,
        s=np.where(joined, 22, 12),
        zorder=2,
    )
    axes.set(aspect="equal", xlim=(-1.55, 1.55), ylim=(-1.55, 1.55))
    axes.set_axis_off()
    return axes


def agreements(
    edges: ArrayLike, clusters: ArrayLike, found: ArrayLike, axes: Axes | None = None
) -> Axes:
    """Draw which clients agree: clients on a circle, and a line per agreement.

    Parameters
    ----------
    edges : array_like
        ``[m, m]``, bool: whether two clients agree.
    clusters, found : array_like
        ``[m]``, the true clusters, which decide a client's marker, and the clusters found. A
        client has the number and the colour of its found cluster; numbers are matched to the truth.
    axes : Axes, optional
        Where to draw.
    """
    axes = axes or plt.gca()
    truth, joined = np.asarray(clusters), np.asarray(edges, dtype=bool)
    angles = np.pi / 2 - 2 * np.pi * (np.arange(len(truth)) + 0.5) / len(truth)
    x, y = np.cos(angles), np.sin(angles)
    for one, other in np.argwhere(np.triu(joined, 1)):
        false = truth[one] != truth[other]
        axes.plot(
            x[[one, other]],
            y[[one, other]],
            color="black" if false else "0.6",
            linestyle="--" if false else "-",
            linewidth=1,
            zorder=0,
        )
    known = np.max(truth) + 1  # as `renamed` counts
    for client, label in enumerate(renamed(truth, found).tolist()):
        marker = MARKERS[int(truth[client]) % len(MARKERS)]
        colour = COLOURS[label % len(COLOURS)] if label < known else "0.45"
        axes.plot(x[client], y[client], marker, color=colour, markersize=15)
        axes.text(x[client], y[client], label, ha="center", va="center", color="white", fontsize=9)
    axes.set(aspect="equal", xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    axes.set_axis_off()
    return axes


def ranges(bars: Mapping[str, tuple[float, float]], axes: Axes | None = None) -> Axes:
    """Draw working ranges of a threshold as bars on a logarithmic axis, one row per name.

    A range has the largest distance within clusters and the smallest between clusters. If the
    second is not the larger one, no threshold works: the bar is thin and ends in crosses.
    """
    axes = axes or plt.gca()
    floor = 1e-3
    for place, (within, between) in enumerate(bars.values()):
        works = within < between
        axes.plot(
            np.maximum([within, between], floor),
            [place, place],
            color=COLOURS[0 if works else 1],
            linewidth=6 if works else 1.5,
            marker=None if works else "x",
            solid_capstyle="butt",
        )
    if any(within < between for within, between in bars.values()):
        axes.plot([], [], color=COLOURS[0], linewidth=6, label="every ε in the bar works")
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


def associations_key(figure: Figure, beside: bool = False) -> None:
    """Put the legend of `associations` below a figure, or to its right."""
    dot: dict[str, Any] = {"linestyle": "", "color": "none"}
    joined = {"marker": "o", "markerfacecolor": COLOURS[0], "markeredgecolor": COLOURS[0]}
    alone = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": "black"}
    looks: dict[str, dict[str, Any]] = {
        "associated local cluster": dot | joined | {"markersize": 5},
        "isolated local cluster": dot | alone | {"markersize": 3.5},
        "association within a class": RIGHT_EDGE,
        "wrong association": WRONG_EDGE,
    }
    handles = [Line2D([], [], label=label, **look) for label, look in looks.items()]
    place: Any = "outside right center" if beside else "outside lower center"
    figure.legend(handles=handles, loc=place, ncols=1 if beside else len(handles), fontsize=8.5)


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
