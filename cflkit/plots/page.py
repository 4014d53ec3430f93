"""The look of all figures, and their way onto a page or into a file."""

from __future__ import annotations

import io
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure
from sklearn.metrics import pairwise_distances_argmin

from cflkit._project import PROJECT

# Where figures of a reader's run go; the build of the notebooks writes into ``figures/``
FOLDER = PROJECT / "data" / "runs" / "figures"

# Okabe and Ito's colours, which readers with a colour vision deficiency can distinguish
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
# Lines differ in their marker as well, so that no line is told by its colour alone
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
# Pixels per inch on the page. A figure is stored in more, for screens of high density, and not in
# so many that a notebook exceeds 300 kB
DPI, SHARPNESS = 100, 1.5
# The number of colours that a stored figure has exactly
FREQUENT = 24
# The widest figure, in inches: a column of JupyterLab has little more than 800 pixels
WIDEST = 8.0


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
