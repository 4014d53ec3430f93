"""Figures of the ledger's page and the reports, drawn from the tables of `reports`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product, zip_longest
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cflkit.datasets import ImageSet
from cflkit.partition import shifts
from cflkit.plots.page import COLOURS, MARKERS
from cflkit.reproduce import ledger
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.records import AS_PUBLISHED, Record
from cflkit.reproduce.stats import Comparison
from reports import tables, thresholds
from reports.tables import Curve, Groups, titled

Curves = Sequence[Curve]
Look = dict[str, Any]
Parts = Sequence[Sequence[tuple[str, str, pd.DataFrame]]]
# How the answers of the ledger look: colour, hatching of bars, marker of points
ANSWERS = {
    "reproduced": ("#009E73", "", "o"),
    "close": ("#F0E442", "..", "^"),
    "differs": ("#D55E00", "xx", "X"),
    "inconclusive": ("#56B4E9", "//", "D"),
    "single run": ("#CC79A7", "--", "s"),
    "not run": ("0.88", "", ""),
    ledger.NO_CODE: ("0.4", "", ""),
}
# How numbers look that are compared: printed, of three seeds, and of fewer
PUBLISHED: Look = {"marker": "D", "color": COLOURS[1], "markersize": 4.5, "linewidth": 1}
OURS: Look = {"marker": "o", "color": COLOURS[0], "markersize": 5, "linewidth": 1}
FEW_SEEDS = OURS | {"markerfacecolor": "white"}
# A method in two versions, see `versions`: column, marker and colour
VERSIONS = {
    "published": ("value", "|", "black"),
    "as published, ours": ("ours", "X", "#D55E00"),
    "as intended, ours": ("intended", "o", "#0072B2"),
}

# --- Parts of figures ----------------------------------------------------------------------------


def panels(
    titles: Sequence[str], shape: tuple[int, int], size: tuple[float, float], xlabel: str
) -> tuple[Figure, NDArray[Any]]:
    """Make panels with common axes and titles, and hide those without a title."""
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey=True, squeeze=False)
    plt.setp(axes[-1], xlabel=xlabel)
    for ax, title in zip_longest(axes.flat, titles):
        ax.set(title=title or "", visible=title is not None)
    return figure, axes


def legend(figure: Figure, ncols: int = 3, place: Any = "outside lower center") -> None:
    """Put one legend of all panels beside them; what several panels have is there once."""
    labels: dict[str, Any] = {}
    for ax in figure.axes:
        labels |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if labels:
        figure.legend(labels.values(), labels.keys(), loc=place, ncols=ncols)


def rows_from_the_top(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, of which the first one is at the top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(max(len(names), 1) - 0.5, -0.5)


def comparison(
    parts: Parts, by: str, names: Sequence[str], published: str = "published", **options: Any
) -> Figure:
    """Draw a row per name: printed numbers (diamonds), and below them our mean (dot).

    A panel has its title, the label of its axis, and rows of `tables.at_scale` or `beside`, of
    which several can have one name in the column ``by``. Lines are printed deviations, and the
    range of our seeds. Options are those of `plt.subplots`.
    """
    figure, axes = plt.subplots(len(parts), len(parts[0]), sharey=True, squeeze=False, **options)
    axes[0, 0].plot([], [], linestyle="", label=published, **PUBLISHED)
    for ax, (title, xlabel, rows) in zip(axes.flat, chain(*parts), strict=True):
        for place, name in enumerate(names):
            these = rows[rows[by] == name].to_dict("records")
            for number, row in enumerate(these):
                at = place - 0.28 + 0.16 * number
                ax.errorbar(row["value"], at, xerr=row["deviation"], linestyle="", **PUBLISHED)
            for row in these[:1]:
                ax.hlines(place + 0.15, row["low"], row["high"], color=COLOURS[0], linewidth=1)
                few = row["seeds"] < 3
                look, seeds = (FEW_SEEDS, "one seed") if few else (OURS, "three seeds")
                label = f"ours, {seeds}"
                ax.plot(row["ours"], place + 0.15, linestyle="", label=label, **look)
        rows_from_the_top(ax, names)
        ax.tick_params(axis="y", labelsize=8.5)
        ax.grid(axis="y", alpha=0.3)
        ax.set(title=title, xlabel=xlabel)
    legend(figure)
    return figure


def versions(ax: Axes, rows: pd.DataFrame, by: str, names: Sequence[str]) -> None:
    """Draw a row per name in the column ``by``: printed, and ours as published and as intended.

    A method in one version is a square, and a printed dash stands at the right edge.
    """
    rows, places = rows.set_index(by).reindex(names), range(len(names))
    single = rows["intended"].isna() & rows["ours"].notna()
    ax.hlines(places, rows["ours"], rows["intended"], color="0.8", zorder=0)
    for label, (column, marker, colour) in VERSIONS.items():
        big: Look = {"markersize": 10, "markeredgewidth": 2} if marker == "|" else {"markersize": 6}
        values = rows[column].mask(single) if column == "ours" else rows[column]
        ax.plot(values, places, marker, color=colour, label=label, **big)
    if single.any():
        one = rows["ours"].where(single)
        ax.plot(one, places, "s", color="0.4", label="ours, in one version")
    for place in np.flatnonzero(rows["value"].isna() & rows["ours"].notna()):
        printed_dash(ax, int(place), "black")
    rows_from_the_top(ax, names)
    if len(names) > 20:  # else they overlap
        ax.tick_params(axis="y", labelsize=6.5)


def printed_dash(ax: Axes, place: int, colour: str) -> None:
    """Mark at the right edge of a row that a dash is printed."""
    look: Look = {"ha": "right", "va": "center", "fontsize": 12, "fontweight": "bold"}
    ax.text(0.98, place, "–", color=colour, transform=ax.get_yaxis_transform(), **look)


def segments(ax: Axes, ends: pd.DataFrame) -> None:
    """Draw a segment from GF1 to PF1 per method, as published and ours.

    ``ends`` has a row per method and the columns GF1 and PF1 of ``value`` (published) and ``ours``.
    """
    looks = (("value", "published", -0.14, "black"), ("ours", "ours", 0.14, COLOURS[0]))
    for source, name, shift, colour in looks:
        own, places = ends[source], np.arange(len(ends)) + shift
        ax.vlines(places, own["GF1"], own["PF1"], color=colour, linewidth=3, alpha=0.4)
        ax.plot(places, own["GF1"], "o", color=colour, fillstyle="none", label=f"GF1, {name}")
        ax.plot(places, own["PF1"], "o", color=colour, label=f"PF1, {name}")
    ax.set_xticks(range(len(ends)), list(ends.index), rotation=30, ha="right")
    ax.set_ylim(0, 1)


def points(ax: Axes, table: pd.DataFrame, looks: Mapping[str, Any], **look: Any) -> None:
    """Draw a table's second column over its first, each ``dataset`` (of its index) in its look."""
    for name, (colour, marker) in looks.items():
        if len(table) and name in table.index.unique("dataset"):
            x, y = table.xs(name, level="dataset").to_numpy().T
            ax.plot(x, y, marker, color=colour, label=name, **look)
    ax.axline((0, 0), slope=1, color="grey", linewidth=0.8)
    ax.set(xlabel=table.columns[0], ylabel=table.columns[1])
    ax.label_outer()


# --- The ledger ----------------------------------------------------------------------------------


def answers(counts: pd.DataFrame, scales: Sequence[str]) -> Figure:
    """Draw the share of each answer in every table: a panel per scale of `counting.counts`.

    Tables without a run at any scale share one bar per paper. Counts stand where they fit.
    """
    known = counts[list(ANSWERS)]
    run = known.drop(columns="not run").sum(axis=1).groupby(level=["paper", "table"]).sum() > 0
    tables = sorted(run.index, key=lambda t: (list(PAPERS).index(t[0]), len(t[1]), t[1]))
    bars = [f"{a}, {titled(b) if run[a, b] else 'tables not run'}" for a, b in tables]
    figure, axes = plt.subplots(1, len(scales), figsize=(7.2, 3.2), sharey=True, squeeze=False)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for ax, scale in zip(axes[0], scales, strict=True):
        numbers = known.loc[scale].loc[tables].groupby(bars, sort=False).sum()
        total, left = numbers.sum(axis=1).to_numpy(), np.zeros(len(numbers))
        for name, (colour, hatch, _) in ANSWERS.items():
            width = numbers[name].to_numpy() / total
            look: Look = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.8}
            bar = ax.barh(range(len(numbers)), width, left=left, label=name, **look)
            fits = width > 0.03 + 0.03 * numbers[name].astype(str).str.len()
            counted = numbers[name].where(fits, "")
            ax.bar_label(bar, counted, label_type="center", fontsize=8, bbox=box)
            left += width
        ax.set(title=f"{scale} scale", xlabel="share of the numbers", xlim=(0, 1))
        rows_from_the_top(ax, list(numbers.index))
    legend(figure, place="outside upper center")
    return figure


def differences(rows: pd.DataFrame) -> Figure:
    """Draw our means minus the printed numbers of one table, with our intervals.

    The rows are those of `tables.with_runs`, with a ``label`` for the scenario. Bands are the two
    margins. A mark beyond three times the larger one is a triangle at the edge.
    """
    margins = rows.groupby("measure", sort=False)["margin"].first()
    scenarios, names = list(rows["label"].unique()), list(rows["method"].unique())
    many = len(names) > 8  # narrow panels
    size = 7.5 if many else 5.6, 1.2 + len(margins) * (0.4 + 0.095 * len(scenarios)) + 0.6 * many
    looks: Look = {"figsize": size, "sharex": "row", "sharey": True, "squeeze": False}
    figure, axes = plt.subplots(len(margins), len(names), **looks)
    for (y, x), ax in np.ndenumerate(axes):
        measure, margin = margins.index[y], margins.iloc[y]
        near, far = margin.near + margin.rounding, margin.far + margin.rounding
        ax.axvspan(-far, far, color="0.93")
        ax.axvspan(-near, near, color="0.82")
        some = rows[(rows["measure"] == measure) & (rows["method"] == names[x])]
        for row in some.to_dict("records"):
            difference(ax, row, scenarios.index(row["label"]), 3 * far)
        rows_from_the_top(ax, scenarios)
        ax.grid(axis="x", color="0.9")
        ax.tick_params(axis="y", length=0)
        ax.set(xlim=(-3.45 * far, 3.45 * far), xticks=[0], xticklabels=["0"])
        if y == 0:
            ax.set_title(names[x], fontsize=8, rotation=90 if many else 0)
        if x == len(names) // 2:
            ax.set_xlabel(f"{measure}, ours minus published")
    for name, (colour, _, marker) in ANSWERS.items():
        if marker:
            axes[0, 0].plot([], [], marker, color=colour, markeredgecolor="0.2", label=name)
    legend(figure)
    return figure


def difference(ax: Axes, row: Mapping[Any, Any], place: int, edge: float) -> None:
    """Draw one mark of `differences`."""
    colour, _, marker = ANSWERS[row["status"]]
    if np.isnan(row["value"]):
        printed_dash(ax, place, colour)
    off, size = row["ours"] - row["value"], 5.5
    half = 0 if np.isnan(row["half_width"]) else row["half_width"]
    ax.hlines(place, *np.clip([off - half, off + half], -edge, edge), color=colour, linewidth=1.5)
    if abs(off) > edge:
        marker, size = ">" if off > 0 else "<", 3.5
    look: Look = {"color": colour, "markeredgecolor": "0.2", "markeredgewidth": 0.5}
    ax.plot(np.clip(off, -edge, edge), place, marker, markersize=size, **look)


# --- Single papers -------------------------------------------------------------------------------


def temperatures(
    axes: NDArray[Any], groups: Groups, theirs: Mapping[Any, Any], ticks: Sequence[int], method: str
) -> None:
    """Draw our runs (dashed, by seed) and the authors' run (black) up to the last of the ticks.

    The curves are FedAvg's, or those of OCFL-HDB, which end where it clusters and have markers.
    Triangles are the rounds in which it clustered. ``theirs`` has a curve and this round.
    """
    for ax, (scenario, runs) in zip(axes.flat, groups.items(), strict=False):
        for run in runs:
            seed, curve = run.parameters["seed"], tables.temperatures(run, method)[: ticks[-1]]
            look: Look = {"linewidth": 1.2} if method == "FedAvg" else {"marker": MARKERS[seed]}
            look |= {"color": COLOURS[seed], "label": f"ours, seed {seed}"}
            ax.plot(range(1, len(curve) + 1), curve, "--", **look)
            if (at := run.summary["OCFL-HDB"]["clustering_round"]) and method == "FedAvg":
                ax.plot(at, curve[at - 1], "^", markersize=8, color=COLOURS[seed])
        black, at = theirs[scenario][0][: ticks[-1]], theirs[scenario][1]
        ax.plot(range(1, len(black) + 1), black, color="black", label="the authors' run")
        ax.plot(at, black[at - 1], "^", markersize=8, color="black")
        ax.margins(y=0.1)
    plt.setp(axes[-1], xticks=ticks)
    axes.flat[0].figure.supylabel("temperature $T$", fontsize=9.5)


def mean_temperatures(theirs: Mapping[str, Curves], ours: Mapping[str, Curves]) -> Figure:
    """Draw `band` of the authors' runs and of ours, one panel per name, three at the most."""
    figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.6), sharey=True)
    used = axes[[*range(len(theirs) - 1), -1]]
    for ax, (name, curves) in zip(used, theirs.items(), strict=True):
        length = min(map(len, curves))
        band(ax, [curve[:length] for curve in curves], color="black", label="the authors' runs")
        if own := [curve[:length] for curve in ours.get(name, [])]:
            label = f"ours ({len(own)} scenarios)"
            band(ax, own, color=COLOURS[0], linestyle="--", label=label)
        ax.set(title=f"{name}\n{len(curves)} scenarios", xlabel="round")
    axes[0].set_ylabel("mean temperature $T$")
    return figure


def band(ax: Axes, curves: Curves, **look: Any) -> None:
    """Draw the mean of curves of equal length over rounds, plus and minus two standard errors."""
    rounds, mean = range(1, len(curves[0]) + 1), np.mean(curves, axis=0)
    ax.plot(rounds, mean, **look)
    if len(curves) > 1:
        error = 2 * np.std(curves, axis=0, ddof=1) / np.sqrt(len(curves))
        shade: Look = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
        ax.fill_between(rounds, mean - error, mean + error, **shade)


def over_thresholds(runs: Sequence[Record], versions: Sequence[str]) -> Figure:
    """Draw the mean ARI over each method's threshold: a row of panels per version of MNIST.

    Solid lines are runs at the paper's scale, and dashed ones those at the reduced scale. A dotted
    line marks the paper's threshold, which belongs to the method as published.
    """
    size = len(versions), len(thresholds.CUTS)
    figure, axes = plt.subplots(
        *size, figsize=(7.2, 0.8 + 1.4 * size[0]), sharey=True, sharex="col"
    )
    places = dict(zip(product(versions, thresholds.CUTS), axes.flat, strict=True))
    for (version, name), ax in places.items():
        given = SimpleNamespace(version=version, dataset="mnist", epsilon=0.1)
        used, cut = thresholds.CUTS[name].used(given), thresholds.CUTS[name]
        ax.axvline(used, color="black", linestyle=":", label="the paper's (ε: assumed)")
        unit = f" ({cut.unit})" if cut.unit else ""
        ax.set(title=f"{name}, {version}", xlabel=f"threshold {cut.sign}{unit}", ylabel="ARI")
        ax.set(xscale="log", xlim=(used / 20, used * 15))
        ax.label_outer()
    for (scale, _, version, method), own in thresholds.by_scenario(runs).items():
        name, published = method.removesuffix(AS_PUBLISHED), method.endswith(AS_PUBLISHED)
        curves = [thresholds.curve_of(r, method) for r in own if thresholds.recorded(r, method)]
        if (ax := places.get((version, name))) and curves:
            mean = thresholds.mean_curve(curves)
            label = f"as {'published' if published else 'intended'}, {scale} scale"
            look: Look = {"color": COLOURS[published], "label": label}
            ends = mean["high"].clip(upper=1e3)
            ax.step(ends, mean["ari"], "-" if scale == "paper" else "--", **look)
    legend(figure)
    return figure


def dyed_digits(digits: ImageSet, shown: Sequence[int], dyes: Mapping[str, Any]) -> Figure:
    """Draw a digit of each class in several dyes, with its colour and lightness (Rec. 709)."""
    places = [int((digits.labels == label).nonzero()[0]) for label in shown]
    figure, axes = plt.subplots(len(dyes), len(shown), figsize=(3.1, 4), squeeze=False)
    for (title, colours), row in zip(dyes.items(), axes, strict=True):
        dyed = shifts.coloured(colours)(digits.images[places], digits.labels[places])
        for image, label, ax in zip(dyed, shown, row, strict=True):
            ax.imshow(image.permute(1, 2, 0).numpy())
            colour = np.broadcast_to(colours, (10, 3))[label]
            rgb = " ".join(f"{255 * value:.0f}" for value in colour)
            light = colour @ [0.2126, 0.7152, 0.0722]
            ax.set_xlabel(f"{rgb}\nlight {light:.2f}", fontsize=8)
        row[0].set_ylabel(title)
    plt.setp(axes, xticks=[], yticks=[])
    return figure


def clean_and_fooled(ax: Axes, runs: Sequence[Record], methods: Sequence[str]) -> None:
    """Draw the clean clients' accuracy (dot), and that in shades to fool (cross), in per cent."""
    for run, (place, name) in product(runs, enumerate(methods)):
        x, end = place + 0.15 * (run.parameters["seed"] - 1), run.summary[name]
        clean, fooled = 100 * end["clean_accuracy"], 100 * end["backdoor_accuracy"]
        ax.plot([x, x], [clean, fooled], color="lightgrey", zorder=0)
        ax.plot(x, clean, "o", color=COLOURS[0], markersize=6)
        ax.plot(x, fooled, "x", color=COLOURS[1], markersize=7)
    ax.plot([], [], "o", color=COLOURS[0], label="own test images")
    ax.plot([], [], "x", color=COLOURS[1], label="in shades to fool")
    ax.set_xticks(range(len(methods)), methods)
    ax.set_ylabel("accuracy of clean clients, %")
    ax.legend()


def lost_accuracy(
    ax: Axes, runs: Sequence[Record], methods: Sequence[str], lines: Mapping[int, tuple[str, str]]
) -> None:
    """Draw what shades to fool cost clean clients (points), over the local epochs of each run.

    ``lines`` has the style and meaning of runs by the number of rounds.
    """
    for run, (number, name) in product(runs, enumerate(methods)):
        rows, given = run.by_method[name], run.parameters
        lost = 100 * (rows["clean_accuracy"] - rows["backdoor_accuracy"])
        look: Look = {"marker": MARKERS[number], "color": COLOURS[number], "markersize": 4}
        ax.plot(rows["round"] * given["local_epochs"], lost, lines[given["rounds"]][0], **look)
    for name, colour, marker in zip(methods, COLOURS, MARKERS, strict=False):
        ax.plot([], [], color=colour, marker=marker, label=name)
    for style, label in lines.values():
        ax.plot([], [], style, color="grey", label=label)
    ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(xlabel="local epochs so far", ylabel="accuracy lost, points")


def archived_boxes(table: pd.DataFrame, points: bool = True) -> Figure:
    """Draw `boxes` of insertion (above) and deletion, one column per data set."""
    sets = list(table["dataset"].unique())
    figure, axes = plt.subplots(2, len(sets), figsize=(6.8, 3), sharex=True, sharey=True)
    for column, name in enumerate(sets):
        for ax, measure in zip(axes[:, column], ("insertion", "deletion"), strict=True):
            boxes(ax, table[table["dataset"] == name], measure, points)
        axes[0, column].set_title(name)
    for ax, good in zip(axes[:, len(sets) // 2], ("insertion (high", "deletion (low"), strict=True):
        ax.set_xlabel(f"area under {good} is good)")
    return figure


def boxes(ax: Axes, table: pd.DataFrame, measure: str, points: bool) -> None:
    """Draw a row per method: a lying box of a measure over clusters, and a point per cluster.

    The figure follows Figures 6 and 7 of the extended OCFL paper. Boxes are quartiles, the thick
    line is the median, and whiskers reach to the farthest value within 1.5 interquartile ranges.
    Without ``points``, only clusters beyond the whiskers are drawn.
    """
    values = {name: rows.dropna() for name, rows in table.groupby("method", sort=False)[measure]}
    look: Look = {"marker": "o", "markersize": 2.5}
    parts: Look = {name: {"color": "0.5"} for name in ("boxprops", "whiskerprops")}
    parts["medianprops"] = {"color": "black", "linewidth": 2}
    parts["flierprops"] = {"markeredgecolor": COLOURS[0], **look}
    shape: Look = {"orientation": "horizontal", "widths": 0.7, "showcaps": False}
    ax.boxplot(list(values.values()), showfliers=not points, **shape, **parts)
    look |= {"color": COLOURS[0], "markeredgewidth": 0, "linestyle": "", "clip_on": False}
    for place, rows in enumerate(values.values(), 1):
        if points and len(rows):
            # Neighbours in the order of their values stand side by side, so that none hides another
            beside = place + 0.12 * (np.arange(len(rows)) % 5 - 2) * (len(rows) > 1)
            ax.plot(rows.sort_values(), beside, **look)
    ax.set_yticks(range(1, len(values) + 1), list(values))
    ax.set(xlim=(0, 1), ylim=(len(values) + 0.6, 0.4))


def critical_differences(comparison: Comparison, ax: Axes) -> None:
    """Draw a critical-difference diagram: average ranks on a line, and bars below it.

    The best method is on the right, as in the OCFL paper's Figure 8. A bar joins methods that do
    not differ significantly; it has a dot at each of them, and passes others by.
    """
    ranks = comparison.ranks
    k, half = len(ranks), (len(ranks) + 1) // 2
    for place, (name, rank) in enumerate(ranks.items()):
        best = place < half
        level = -0.6 - 0.35 * (place if best else k - 1 - place)
        side = 0.7 if best else k + 0.3
        ax.plot([rank, rank, side], [0, level, level], color="0.4", linewidth=0.8)
        where = "left" if best else "right"
        ax.text(side, level, f"{name} {rank:.2f}", ha=where, va="center", fontsize=9)
    for row, names in enumerate(comparison.alike):
        bar = [-0.14 - 0.12 * row] * len(names)
        ax.plot(ranks[names], bar, "o-", color="black", linewidth=2, markersize=4)
    ax.set(xlim=(k + 0.3, 0.7), ylim=(-0.4 - 0.35 * half, 0), yticks=[])
    ax.xaxis.tick_top()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[:].set_visible(False)
    ax.spines["top"].set_visible(True)
    ax.set_xlabel("average rank", fontsize=9)
    ax.xaxis.set_label_position("top")


# --- What an answer is worth ---------------------------------------------------------------------


def placebo(ax: Axes, shares: pd.DataFrame) -> None:
    """Draw a row per method: how often the rule passes (`worth.shares`), with intervals."""
    looks = (
        ("right", "o", "#0072B2", "right scenario", -0.22),
        ("wrong", "s", "#D55E00", "wrong scenario (placebo)", 0),
        ("same sizes", "D", "#D55E00", "wrong, groups of the same sizes", 0.22),
    )
    names = list(shares.index.unique("method"))
    for kind, marker, colour, label, shift in looks:
        own = shares.xs(kind, level="kind").loc[names]
        places = np.arange(len(names)) + shift
        ax.hlines(places, own["low"], own["high"], color=colour, linewidth=1.2)
        face = colour if kind == "right" else "white"
        look: Look = {"color": colour, "markerfacecolor": face, "markersize": 6}
        ax.plot(own["share"], places, marker, label=label, **look)
    rows_from_the_top(ax, names)
    ax.set_xlim(-0.02, 1.02)
    ax.grid(axis="x", alpha=0.3)


def by_margin(curves: pd.DataFrame) -> Figure:
    """Draw the share of right scenarios that pass over that of wrong ones, a line per method.

    The index has the ``factor`` of the margins and the ``method``.
    """
    figure, ax = plt.subplots(figsize=(4.8, 3.6))
    ring: Look = {"color": "black", "fillstyle": "none", "markersize": 11, "linestyle": ""}
    for number, method in enumerate(curves.index.unique("method")):
        rows = curves.xs(method, level="method")
        look: Look = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 5}
        ax.plot(rows["wrong"], rows["right"], label=method, **look)
        ax.plot(rows["wrong"][1.0], rows["right"][1.0], "o", **ring)
    ax.plot([], [], "o", label="the margins of the rule", **ring)
    ax.axline((0, 0), slope=1, color="0.6", linewidth=0.8)
    ax.set(xlabel="wrong scenarios that pass", ylabel="right scenarios that pass")
    ax.legend(loc="lower right")
    return figure


def rand_over_rounds(printed: pd.DataFrame, parts: Mapping[str, pd.Series], rounds: int) -> Figure:
    """Draw the printed RAND over the printed round, a panel per method, rows in two parts."""
    names = list(printed["method"].unique())
    figure, axes = panels(names, (1, len(names)), (7.8, 2.6), "printed round")
    last = printed["clustering round"].max()
    for ax, method in zip(axes.flat, names, strict=True):
        ends = [1.0, (rounds + 1 - last) / rounds]
        ax.plot([1, last], ends, color="0.6", linewidth=1, label="RAND with the true groups")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        for (label, which), face in zip(parts.items(), ("white", COLOURS[0]), strict=True):
            rows = printed[which & printed["method"].eq(method)]
            look: Look = {"color": COLOURS[0], "markerfacecolor": face, "label": label}
            ax.plot(rows["clustering round"], rows["RAND"], "o", **look)
    axes[0, 0].set_ylabel("printed RAND")
    legend(figure)
    return figure


def both_signs(ends: pd.DataFrame, looks: Mapping[str, tuple[str, str]]) -> Figure:
    """Draw the ARI at the end of each run, by the ``sizes`` of the groups: a column per sign."""
    sizes = sorted(ends["sizes"].unique())
    figure, ax = plt.subplots(figsize=(6, 2.3))
    each = ends.groupby("sizes").cumcount()
    places = ends["sizes"].map(sizes.index) + 0.6 * (each / each.max() - 0.5)
    for (name, (label, marker)), colour in zip(looks.items(), COLOURS, strict=False):
        ax.plot(ends[name], places, marker, color=colour, markersize=5, label=label)
    rows_from_the_top(ax, sizes)
    ax.set(xlabel="ARI of the final clusters", xlim=(-0.05, 1.05))
    legend(figure)
    return figure


def at_two_thresholds(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Draw both versions of methods at the printed threshold, and at the best one for each."""
    titles = {"at the printed": "at the printed threshold", "at its best": "each at its best one"}
    figure, axes = panels([*titles.values()], (1, 2), (7.8, 3), "mean ARI")
    looks = ("as published", "X", COLOURS[1]), ("as intended", "o", COLOURS[0])
    for ax, where in zip(axes.flat, titles, strict=True):
        versions_of, places = table[where], range(len(table))
        ax.hlines(places, versions_of.min(axis=1), versions_of.max(axis=1), color="0.8", zorder=0)
        for name, marker, colour in looks:
            look: Look = {"color": colour, "fillstyle": "none", "markersize": 8, "label": name}
            ax.plot(versions_of[name], places, marker, **look)
        rows_from_the_top(ax, labels)
    legend(figure)
    return figure


def gains_by_map(gains: Mapping[str, pd.DataFrame], means: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw gains by kind of map: a panel per measure, a point per run, and the mean of each.

    ``means`` has the mean and the ends of its interval, by kind.
    """
    figure, axes = panels([*gains], (1, len(gains)), (7.6, 2.6), "gain of OCFL-HDB over FedAvg")
    for ax, (measure, gain) in zip(axes.flat, gains.items(), strict=True):
        beside = 0.08 * (np.arange(len(gain)) % 5 - 2)
        for place, (name, found) in enumerate(means[measure].iterrows()):
            ax.plot(gain[name], place + beside, "o", color="0.7", markersize=3, label="one run")
            ax.plot(found[["low", "high"]], [place, place], color=COLOURS[1], linewidth=2)
            look: Look = {"color": COLOURS[1], "label": "mean, 90 % interval"}
            ax.plot(found["mean"], place, "D", markersize=6, **look)
        ax.axvline(0, color="black", linewidth=0.8)
        rows_from_the_top(ax, list(gain.columns))
    legend(figure)
    return figure


def what_was_run(counts: pd.DataFrame) -> Figure:
    """Draw a stacked bar per kind of number: a part per column, with counts where they fit."""
    figure, ax = plt.subplots(figsize=(7.2, 2.3))
    left, looks = np.zeros(len(counts)), ((COLOURS[2], ""), (COLOURS[5], "//"), ("0.85", ""))
    for (name, numbers), (colour, hatch) in zip(counts.items(), looks, strict=True):
        look: Look = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": name}
        bars = ax.barh(range(len(counts)), numbers, left=left, **look)
        ax.bar_label(bars, numbers.where(numbers > 60, ""), label_type="center", fontsize=8)
        left += numbers.to_numpy()
    rows_from_the_top(ax, list(counts.index))
    ax.set_xlabel("published numbers")
    legend(figure)
    return figure
