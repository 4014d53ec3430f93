"""Updates as the ribs of an umbrella, whose handle is their mean."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cflkit.plots.page import COLOURS, MARKERS

Array = NDArray[np.float64]

# How an umbrella is seen: a little from above, and a little turned, so that no rib hides another
RISE, TURN = 0.35, 0.8


def openings(updates: Tensor | ArrayLike) -> Array:
    """Return the angle ``[m]`` of each update ``[m, P]`` to their mean, in radians."""
    rows = as_rows(updates)
    mean = rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(mean)
    return np.arccos(np.clip(rows @ mean / np.maximum(lengths, np.finfo(float).tiny), -1, 1))


def umbrella(
    updates: Tensor | ArrayLike,
    groups: ArrayLike,
    axes: Axes | None = None,
    view: ArrayLike | None = None,
    before: float | None = None,
) -> Axes:
    """Draw updates as ribs, each at its true angle to their mean, which is the black handle.

    Lengths are true, too; the unit is the mean length of the updates. A solid rim is at the mean
    angle. On which side of the handle a rib is drawn follows from the ``view``. For three groups
    in the view of their means, the angles between groups are true as well.

    Parameters
    ----------
    updates : array_like
        ``[m, P]``.
    groups : array_like
        ``[m]``, the number of each client's colour and marker.
    axes : Axes, optional
        Where to draw.
    view : array_like, optional
        ``[2, P]``, two orthonormal directions; by default those in which the updates differ most.
    before : float, optional
        An angle in radians, at which a dotted rim is drawn.
    """
    axes = axes or plt.gca()
    rows = as_rows(updates)
    angles, lengths = openings(rows), np.linalg.norm(rows, axis=1)
    directions = rows / np.maximum(lengths, np.finfo(float).tiny)[:, None]
    mean = rows.mean(axis=0)
    common = mean / (np.linalg.norm(mean) or 1)
    unshared = directions - np.outer(directions @ common, common)
    plane = np.linalg.svd(unshared, full_matrices=False)[2][:2] if view is None else view
    sides = unshared @ np.asarray(plane).T
    around, unit = np.arctan2(sides[:, 1], sides[:, 0]), lengths.mean() or 1.0
    for rim, line in ((before, ":"), (angles.mean(), "-")):
        if rim is not None:
            circle = on_paper(np.full(100, rim), np.linspace(0, 2 * np.pi, 100))
            axes.plot(*circle, linestyle=line, color="0.6", linewidth=1)
    for client, group in enumerate(np.asarray(groups).tolist()):
        x, y = on_paper(angles[client], around[client]) * (lengths[client] / unit)
        look = {"color": COLOURS[group % 8], "marker": MARKERS[group % 8]}
        axes.plot([0, x], [0, y], linewidth=1.2, markersize=4, markevery=[1], **look)
    height = float(np.linalg.norm(mean) / unit)
    # The grip, which only makes an umbrella of it, and the mean
    axes.plot([0, 0], [-0.3, 0], color="0.85", linewidth=3)
    axes.plot([0, 0], [0, height], color="black", linewidth=3, solid_capstyle="round")
    axes.set(xlim=(-1.2, 1.2), ylim=(-0.4, 1.15), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    return axes


def as_rows(updates: Tensor | ArrayLike) -> Array:
    """Return updates as float64."""
    return np.asarray(updates.cpu() if isinstance(updates, Tensor) else updates, dtype=np.float64)


def on_paper(angle: ArrayLike, around: ArrayLike) -> Array:
    """Return where a rib of length 1 ends on paper, ``[2, …]``."""
    out, turned = np.sin(angle), np.asarray(around) + TURN
    return np.stack([out * np.cos(turned), np.cos(angle) + RISE * out * np.sin(turned)])
