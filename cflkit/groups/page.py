"""One page about an answer: what was asked, what was found, how sure that is, and which cuts work.

The page is HTML with its picture inside, so that it can be sent as one file and read offline. The
picture also stands beside it as PNG, and a JSON file has the answer for other programs.
"""

from __future__ import annotations

import base64
import html
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cflkit import clustering, plots
from cflkit._files import check_regular
from cflkit.clustering import Labels, merge_heights
from cflkit.divergence import pairwise, temperature
from cflkit.groups import ALIKE, DEGREES, GROUPS, Answer, Evidence, hit_rate, limits
from cflkit.halves import FEW, agreement

# The clusterers beside each other; those that are told a number get that of the answer
CLUSTERERS = ("hdbscan", "meanshift", "affinity", "kmeans", "agglomerative")
# The methods that cut a dendrogram, by its linkage
LINKAGES = {
    "average": "Briggs (average linkage)",
    "complete": "FedClust (complete linkage)",
    "single": "StoCFL, first merges (single linkage)",
    "weighted": "PACFL (weighted linkage)",
}
# How many merges, and names of clients, a figure shows at most
SHOWN = 30
MEANINGS = {
    GROUPS: "clients form groups, which show in both halves of the evidence",
    DEGREES: "clients differ, but some more and some less, and no groups show",
    ALIKE: "what a client has of its own is peculiar to it, and no two clients share more of it",
}


@dataclass(frozen=True)
class Cut:
    """Between which thresholds a method leaves as many clusters as the answer has."""

    method: str
    quantity: str  # that is compared, with its unit
    low: float
    high: float
    same: bool  # whether these are the answer's clusters


def cuts(known: Evidence, answer: Answer) -> list[Cut]:
    """Compute the working range of the methods that have a threshold, each in its own unit.

    Norms are of a client's mean update in a round. Where only distances are known, there are the
    four linkages in the unit of the file.
    """
    gamma = answer.divergence
    if known.distances:
        unit = "distance, as in the file"
        return [cut(name, unit, gamma, linkage, answer) for linkage, name in LINKAGES.items()]
    mean = np.nansum(known.aligned, axis=0) / known.present.sum(axis=0)
    euclidean, manhattan = pairwise(mean, "euclidean"), pairwise(mean, "manhattan")
    compared: list[tuple[str, str, NDArray[np.float64], str]] = [
        ("Briggs", "cosine distance", gamma, "average"),
        ("Briggs", "Euclidean distance of updates", euclidean, "average"),
        ("Briggs", "Manhattan distance of updates", manhattan, "average"),
        ("FedClust, all layers", "Euclidean distance of updates", euclidean, "complete"),
        ("StoCFL, first merges", "cosine distance, 1 − τ", gamma, "single"),
    ]
    return [*(cut(*own, answer) for own in compared), *sattler(known, answer)]


def cut(
    method: str, quantity: str, distance: NDArray[np.float64], linkage: Any, answer: Answer
) -> Cut:
    """Compute where a dendrogram can be cut into as many clusters as the answer has."""
    heights = [0.0, *merge_heights(distance, linkage), np.inf]
    low, high = heights[-answer.k - 1], heights[-answer.k]
    found = clustering.make("agglomerative", n_clusters=answer.k, linkage=linkage)
    same = agreement(np.array(answer.clusters), found.fit_predict(distance)) == 1
    return Cut(method, quantity, low, high, same)


def sattler(known: Evidence, answer: Answer) -> list[Cut]:
    """Compute from which ε₁, and up to which ε₂, Sattler's method would split in the last round."""
    last = known.values[-1][~np.isnan(known.values[-1]).any(axis=1)]
    mean, largest = np.linalg.norm(last.mean(axis=0)), np.linalg.norm(last, axis=1).max()
    several = answer.answer == GROUPS
    return [
        Cut("Sattler, ε₁ (splits above)", "norm of the mean update", float(mean), np.inf, several),
        Cut(
            "Sattler, ε₂ (splits below)", "norm of a client's update", 0.0, float(largest), several
        ),
    ]


def clusterings(answer: Answer) -> dict[str, Labels]:
    """Return what each clusterer answers to the distances of all rounds."""
    told = {"kmeans": {"n_clusters": answer.k}, "agglomerative": {"n_clusters": answer.k}}
    found = {}
    with warnings.catch_warnings():  # affinity propagation tells that it did not converge
        warnings.simplefilter("ignore")
        for name in CLUSTERERS:
            own: dict[str, Any] = told.get(name, {})
            title = f"{name}, told {answer.k}" if own else name
            found[title] = clustering.make(name, **own).fit_predict(answer.divergence)
    return found


def order(answer: Answer) -> NDArray[np.int64]:
    """Return the clients group by group, and neighbours of a dendrogram within a group."""
    from scipy.cluster.hierarchy import leaves_list

    leaves = leaves_list(clustering.dendrogram(answer.divergence, "average"))
    return leaves[np.argsort(np.array(answer.clusters)[leaves], kind="stable")]


def picture(known: Evidence, answer: Answer) -> Figure:
    """Draw the sorted distances, the heights of the merges, and what each clusterer answers."""
    plots.style()
    places = order(answer)
    clusters = np.array(answer.clusters)[places]
    figure, axes = plt.subplot_mosaic("AB;CC", figsize=(8, 7), height_ratios=(3, 2))
    matrix = answer.divergence[np.ix_(places, places)]
    plots.divergence(matrix, clusters, axes["A"], vmax=float(matrix.max()) or 1.0)
    axes["A"].set(title="distances, sorted by groups", xlabel="client, sorted", ylabel="")
    axes["A"].xaxis.set_major_locator(MaxNLocator(integer=True))
    heights = merge_heights(answer.divergence)[-SHOWN:]
    axes["B"].plot(np.arange(len(heights), 0, -1), heights, "o-", markersize=3)
    if answer.k > 1:
        axes["B"].axvline(answer.k - 0.5, color="black", linestyle=":", label=f"{answer.k} groups")
        axes["B"].legend()
    axes["B"].set(title="merges, average linkage", xlabel="clusters after the merge")
    axes["B"].set_ylabel("distance of the merged clusters")
    axes["B"].xaxis.set_major_locator(MaxNLocator(integer=True))
    found = {name: labels[places] for name, labels in clusterings(answer).items()}
    strips, names = axes["C"], [f"answer: {answer.answer}", *found]
    if len(places) <= SHOWN:
        plots.clusterings(clusters, found, strips)
        strips.set_xticks(range(len(places)), [known.names[c] for c in places], rotation=90)
    else:  # numbers and names would be too small to read
        rows = np.stack([clusters, *found.values()])
        strips.imshow(rows, aspect="auto", cmap="tab20", interpolation="nearest")
        strips.set_xticks([])
    strips.set_yticks(range(len(names)), names)
    strips.set(title="what each clusterer answers", xlabel="client, sorted")
    return figure


def sure(known: Evidence, answer: Answer) -> list[str]:
    """Return sentences that tell how sure an answer is."""
    shared, scatter = limits(answer.several)
    told = [
        f"What two clients have of their own is typically correlated by {answer.scatter:.2f} "
        f"(clients are alike below {scatter:.2f}).",
        f"When one client is left out, the clusters stay the same to {answer.stability:.2f} (mean "
        "adjusted Rand index, at most 1).",
    ]
    if not (known.distances and answer.several and len(known.names) > FEW):
        told.insert(
            0,
            f"What a client has of its own is shared with its cluster to {answer.shared:.2f} "
            f"(groups need {shared:.2f} or more).",
        )
    column = "one look" if not answer.several else "distances" if known.distances else "answer"
    if rate := hit_rate(answer.answer, column):
        looks = "several rounds" if answer.several else "one look"
        told.append(
            f"Of {rate[1]} measured draws with this answer after {looks}, it was right in "
            f"{rate[0]} (data/groups.csv: digits of 8×8 pixels in {rate[2]} situations)."
        )
    return told


def summary(known: Evidence, answer: Answer) -> str:
    """Return the answer in a few lines."""
    lines = [f"{answer.answer}: {MEANINGS[answer.answer]}"]
    if answer.answer == GROUPS:
        for group in range(answer.k):
            members = [known.names[c] for c, own in enumerate(answer.clusters) if own == group]
            lines.append(f"  group {group}: {len(members)} clients ({shortened(members)})")
    if answer.between:
        named = shortened([known.names[client] for client in answer.between])
        lines.append(f"  between groups: {named}")
    rounds = f"{answer.rounds} round{'s' if answer.rounds > 1 else ''}"
    lines.append(f"asked: {answer.question}; {rounds}, {len(answer.clusters)} clients")
    if answer.rounds_needed:
        lines.append(f"the groups are there to stay after {answer.rounds_needed} rounds")
    return "\n".join([*lines, *sure(known, answer), *answer.notes])


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Join names, of which at most ``most`` are told."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def as_json(known: Evidence, answer: Answer) -> str:
    """Return the answer for other programs; numbers that are not finite are null."""
    contents = asdict(answer)
    del contents["divergence"]
    contents["clients"] = list(known.names)
    contents["temperature"] = temperature(answer.divergence)
    contents["cuts"] = [
        asdict(own) | {"high": own.high if np.isfinite(own.high) else None}
        for own in cuts(known, answer)
    ]
    return json.dumps(contents, indent=2, ensure_ascii=False) + "\n"


def as_html(known: Evidence, answer: Answer, title: str, png: bytes) -> str:
    """Return the page, which needs no other file."""
    first, *rest = summary(known, answer).splitlines()
    told = "".join(f"<p>{html.escape(line)}</p>\n" for line in rest)
    rows = "".join(
        f"<tr><td>{html.escape(own.method)}<td>{html.escape(own.quantity)}<td>{own.low:.4g}"
        f"<td>{'∞' if np.isinf(own.high) else f'{own.high:.4g}'}<td>{'yes' if own.same else 'no'}"
        for own in cuts(known, answer)
    )
    described = (
        f"The distances of {len(answer.clusters)} clients as a matrix, sorted by groups; the "
        f"heights of their merges; and the clusters of {len(CLUSTERERS)} clusterers. The answer is "
        f"{answer.answer}, k = {answer.k}."
    )
    shown = base64.b64encode(png).decode()
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Groups in {html.escape(title)}</title>\n"
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "img{max-width:100%}td,th{padding:.2em 1em .2em 0;text-align:left}</style>\n"
        f"<h1>{html.escape(first)}</h1>\n<p>{html.escape(title)}</p>\n{told}"
        f'<img src="data:image/png;base64,{shown}" alt="{html.escape(described)}">\n'
        f"<h2>Thresholds that leave {answer.k} cluster{'s' if answer.k > 1 else ''}</h2>\n"
        "<table><tr><th>method<th>what it compares<th>from<th>to<th>the answer's clusters"
        f"{rows}</table>\n</html>\n"
    )


def write(known: Evidence, answer: Answer, folder: Path, title: str) -> list[Path]:
    """Write ``groups.html``, ``groups.png`` and ``groups.json`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = picture(known, answer)
    png = plots.png_of(figure)
    plt.close(figure)
    page = as_html(known, answer, title, png).encode()
    written = {"html": page, "png": png, "json": as_json(known, answer).encode()}
    for ending, contents in written.items():
        check_regular(folder / f"groups.{ending}").write_bytes(contents)
    return [folder / f"groups.{ending}" for ending in written]
