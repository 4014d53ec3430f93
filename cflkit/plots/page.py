"""The look of all figures, and their way onto a page or into a file."""

import base64
import html
import io
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
from matplotlib.figure import Figure

from cflkit._project import PROJECT, expanded

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
# The style of the frames of a moving figure that are not shown
HIDDEN = ' style="display:none"'
BEGIN = "const s=this.previousElementSibling.querySelector('input');s.value=0;s.oninput()"
LEGIBLE = 560  # pixels of width at which a figure's words can still be read
# The widest figure, in inches: a column of JupyterLab has little more than 800 pixels
WIDEST = 8.0


def style() -> None:
    """Set the style of all notebooks' figures, which are small, plain and legible in print.

    It begins with matplotlib's own style. A reader's file with another one, which might need LaTeX,
    changes only the backend.
    """
    plt.rcdefaults()  # leaves the backend as it is
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
    path = folder() / f"{name}.png"
    path.write_bytes(png_of(figure))
    return path


def folder() -> Path:
    """Return the folder of saved figures, which is there afterwards."""
    place = expanded(os.environ.get("CFLKIT_FIGURES") or FOLDER)
    place.mkdir(parents=True, exist_ok=True)
    return place


def finding(text: str, holds: bool) -> str:
    """Return a title that states a finding, and says so where a run has another one."""
    return text if holds else f"Not in this run:\n{text}"


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
    from IPython.display import Image, Markdown, display  # scripts may have no IPython

    display(Image(png_of(figure), format="png", width=width_of(figure), alt=alt))
    display(Markdown(f"**Figure {number}.** {caption}"))
    plt.close(figure)


def show_frames(
    figures: Sequence[Figure],
    labels: Sequence[str],
    number: int,
    caption: str,
    alt: str,
    first: int = 0,
    name: str | None = None,
) -> None:
    """Display a figure that moves: a slider, and one frame for each of its positions.

    It needs no kernel. It works in JupyterLab, in the book and with a keyboard, and begins with
    its first frame, so that readers can predict the others. Where scripts or HTML are off, they see
    the frame ``first`` alone, as the picture of `show`.

    Parameters
    ----------
    figures : sequence of Figure
        The frames, of the same size, at most `WIDEST` inches wide. They are closed.
    labels : sequence of str
        What the slider's position means in each frame, such as ``round 3``.
    number, caption, alt
        As in `show`.
    first : int
        The number of the frame that makes sense without the others.
    name : str, optional
        The name of a GIF, saved as by `save`, for pages that run no scripts; none by default.

    Raises
    ------
    ValueError
        There is not one label per frame, or a frame is too wide for the page.
    """
    from IPython.display import Markdown, display

    if len(figures) != len(labels):
        raise ValueError(f"{len(figures)} frames need as many labels, not {len(labels)}")
    width = width_of(figures[0])
    pictures = [png_of(figure) for figure in figures]
    page = slider([as_webp(picture) for picture in pictures], labels, number, alt, first, width)
    shown = {"text/html": page, "image/png": base64.b64encode(pictures[first]).decode()}
    display(shown, metadata={"image/png": {"width": width, "alt": alt}}, raw=True)
    display(Markdown(f"**Figure {number}.** {caption}"))
    if name is not None:
        images = [PIL.Image.open(io.BytesIO(picture)) for picture in pictures]
        path, second = folder() / f"{name}.gif", 1000
        images[0].save(path, save_all=True, append_images=images[1:], duration=second, loop=0)
    for figure in figures:
        plt.close(figure)


def width_of(figure: Figure) -> int:
    """Return the width of a figure in pixels; a `ValueError` if the page is not as wide."""
    width = figure.get_figwidth()
    if width > WIDEST:
        raise ValueError(f"a figure may be {WIDEST} inches wide, and this one has {width:.1f}")
    return round(width * DPI)


def slider(
    frames: Sequence[bytes], labels: Sequence[str], number: int, alt: str, first: int, width: int
) -> str:
    """Build the HTML of `show_frames`, without names that a second figure could have, too."""
    pictures = "".join(
        f'<img src="data:image/webp;base64,{base64.b64encode(frame).decode()}" width="{width}" '
        f'alt="{html.escape(f"{label}. {alt}")}"{"" if place == first else HIDDEN}>'
        for place, (frame, label) in enumerate(zip(frames, labels, strict=True))
    )
    move = (
        "const f=this.closest('figure'),t=this.dataset.labels.split('|')[this.value];"
        "f.querySelectorAll('img').forEach((p,i)=>p.style.display=i==this.value?'':'none');"
        "f.querySelector('output').value=t;this.setAttribute('aria-valuetext',t)"
    )
    label = html.escape(labels[first])
    return (
        # On a phone, a picture is not made smaller than can be read, and moves sideways instead
        '<figure class="cflkit-frames" style="margin:0;overflow-x:auto;'
        f'max-width:{width}px;--least:{min(width, LEGIBLE)}px">{pictures}'
        '<label style="display:flex;gap:1em;align-items:center">'
        f'<input type="range" min="0" max="{len(frames) - 1}" value="{first}" style="flex:1" '
        f'aria-label="Frame of figure {number}" aria-valuetext="{label}" '
        f'data-labels="{html.escape("|".join(labels))}" oninput="{html.escape(move)}">'
        f'<output style="min-width:12em">{label}</output></label></figure>'
        # Where scripts run, the first frame takes the place of the one that makes sense alone
        f'<style onload="{html.escape(BEGIN)}">'
        ".cflkit-frames img{max-width:100%;min-width:var(--least);height:auto}</style>"
    )


def as_webp(png: bytes) -> bytes:
    """Pack a picture without loss into WebP, which all browsers show and which is smaller."""
    packed = io.BytesIO()
    PIL.Image.open(io.BytesIO(png)).convert("RGB").save(packed, "WEBP", lossless=True, method=6)
    return packed.getvalue()


def png_of(figure: Figure) -> bytes:
    """Draw a figure in few colours: a quarter of the size, and the same to the eye.

    The most frequent colours stay as they are, such as those of lines, bands and grounds. The
    others become the nearest of these and of 12 more, or 120 in figures with images or matrices.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI * SHARPNESS, metadata={"Software": None})
    picture = PIL.Image.open(buffer).convert("RGB")
    counted = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)
    colours = np.array([colour for _, colour in counted])
    rest = 120 if any(axes.images for axes in figure.axes) else 12
    shades = picture.quantize(rest, PIL.Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.vstack([colours[:FREQUENT], np.reshape(shades[: 3 * rest], (-1, 3))])
    number = np.array([1 << 16, 1 << 8, 1])  # of a colour: its three bytes as one integer
    index = np.zeros(1 << 24, dtype=np.uint8)
    # Squared distances but for the part of each colour itself; scikit-learn takes a second to load
    distances = (palette**2).sum(axis=1) - 2.0 * colours @ palette.T
    index[colours @ number] = distances.argmin(axis=1)
    few = PIL.Image.fromarray(index[np.asarray(picture) @ number], "P")
    few.putpalette(palette.astype(np.uint8).tobytes())
    small = io.BytesIO()
    few.save(small, "PNG", optimize=True)
    return small.getvalue()
