"""One page about an answer: what was asked, what was found, how sure that is, and which cuts work.

The page is HTML with its picture inside, so that it can be sent as one file and read offline. The
picture also stands beside it as PNG, and a JSON file has the answer for other programs.
"""

import base64
import html
import json
import textwrap
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cflkit import clustering, plots
from cflkit._project import write_files
from cflkit.clustering import Labels, merge_heights
from cflkit.divergence import Matrix, pairwise, temperature
from cflkit.groups import ALIKE, DEGREES, GROUPS, Answer, Evidence, hit_rate, limits
from cflkit.halves import FEW, agreement

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
    GROUPS: "clients form groups",
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


def cuts(evidence: Evidence, answer: Answer) -> list[Cut]:
    """Compute the working range of the methods that have a threshold, each in its own unit.

    Norms are of a client's mean update in a round. Where only distances are evidence, there are the
    four linkages in the unit of the file.
    """
    gamma = answer.divergence
    if evidence.distances:
        unit = "distance, as in the file"
        return [cut(name, unit, gamma, linkage, answer) for linkage, name in LINKAGES.items()]
    mean = np.nansum(evidence.aligned, axis=0) / evidence.present.sum(axis=0)
    euclidean = pairwise(mean, "euclidean")
    last = evidence.values[-1][evidence.present[-1, :, 0]]
    mean_norm, norm = np.linalg.norm(last.mean(axis=0)), np.linalg.norm(last, axis=1).max()
    several, unit = answer.k > 1, "Euclidean distance of updates"
    return [
        cut("Briggs", "cosine distance", gamma, "average", answer),
        cut("Briggs", unit, euclidean, "average", answer),
        cut("FedClust, all layers", unit, euclidean, "complete", answer),
        cut("StoCFL, first merges", "cosine distance, 1 − τ", gamma, "single", answer),
        Cut("Sattler, ε₁ splits", "norm of the last mean", float(mean_norm), np.inf, several),
        Cut("Sattler, ε₂ splits", "norm of a last update", 0.0, float(norm), several),
    ]


def cut(method: str, quantity: str, distance: Matrix, linkage: Any, answer: Answer) -> Cut:
    """Compute where a dendrogram can be cut into as many clusters as the answer has."""
    heights = [0.0, *merge_heights(distance, linkage), np.inf]
    low, high = heights[-answer.k - 1], heights[-answer.k]
    clusterer = clustering.make("agglomerative", n_clusters=answer.k, linkage=linkage)
    same = agreement(np.array(answer.clusters), clusterer.fit_predict(distance)) == 1
    return Cut(method, quantity, low, high, same)


def clusterings(answer: Answer) -> dict[str, Labels]:
    """Return what each clusterer answers to the distances of all rounds."""
    number, gamma = {"n_clusters": answer.k}, answer.divergence
    options: dict[str, Any] = {"hdbscan": {}, "meanshift": {}, "affinity": {}}
    options |= {"kmeans": number, "agglomerative": number}
    with warnings.catch_warnings():  # affinity propagation tells that it did not converge
        warnings.simplefilter("ignore")
        return {
            f"{name}, told {answer.k}" if k else name: clustering.make(name, **k).fit_predict(gamma)
            for name, k in options.items()
        }


def order(answer: Answer) -> NDArray[np.int64]:
    """Return the clients group by group, and neighbours of a dendrogram within a group."""
    from scipy.cluster.hierarchy import leaves_list

    leaves = leaves_list(clustering.dendrogram(answer.divergence, "average"))
    return leaves[np.argsort(np.array(answer.clusters)[leaves], kind="stable")]


def picture(evidence: Evidence, answer: Answer) -> Figure:
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
    answers = {name: labels[places] for name, labels in clusterings(answer).items()}
    strips, names = axes["C"], [f"answer: {answer.answer}", *answers]
    if len(places) <= SHOWN:
        plots.clusterings(clusters, answers, strips)
        strips.set_xticks(range(len(places)), [evidence.names[c] for c in places], rotation=90)
    else:  # numbers and names would be too small to read
        rows = np.stack([clusters, *answers.values()])
        strips.imshow(rows, aspect="auto", cmap="tab20", interpolation="nearest")
        strips.set_xticks([])
    strips.set_yticks(range(len(names)), names)
    strips.set(title="what each clusterer answers", xlabel="client, sorted")
    return figure


def sure(evidence: Evidence, answer: Answer) -> list[str]:
    """Return sentences that tell how sure an answer is."""
    shared, scatter = limits(answer.several)
    seen = "one look" if not answer.several else "distances" if evidence.distances else "answer"
    sentences = [
        f"What two clients have of their own is typically correlated by {answer.scatter:.2f} "
        f"(clients are alike below {scatter:.2f}).",
        f"When one client is left out, the clusters stay the same to {answer.stability:.2f} (mean "
        "adjusted Rand index, at most 1).",
    ]
    if seen != "distances" or len(evidence.names) <= FEW:
        sentences.append(
            f"Members of a cluster share {answer.shared:.2f} of what they have of their own "
            f"(groups need {shared:.2f} or more)."
        )
    if rate := hit_rate(answer.answer, seen):
        sentences.append(
            f"This answer was right in {rate[0]} of {rate[1]} draws in which it was given, in "
            f"{rate[2]} situations with digits of 8×8 pixels (data/groups.csv, column {seen!r})."
        )
    return sentences


def summary(evidence: Evidence, answer: Answer) -> str:
    """Return the answer in a few lines."""
    replicated = ", which both halves of the rounds show" if answer.rounds_needed else ""
    lines = [f"{answer.answer}: {MEANINGS[answer.answer]}{replicated}"]
    parts = {f"group {group}": np.equal(answer.clusters, group) for group in range(answer.k)}
    parts["between groups"] = np.isin(np.arange(len(evidence.names)), answer.between)
    for name, part in parts.items() if answer.k > 1 else ():
        members = textwrap.shorten(", ".join(np.array(evidence.names)[part]), 80, placeholder=" …")
        lines += [f"  {name}: {part.sum()} clients ({members})"] if part.any() else []
    size = f"rounds: {answer.rounds}, clients: {len(evidence.names)}"
    lines.append(f"asked: {answer.question} ({size})")
    if answer.rounds_needed:
        lines.append(f"the groups are there to stay after {answer.rounds_needed} rounds")
    return "\n".join([*lines, *sure(evidence, answer), *answer.notes])


def as_json(evidence: Evidence, answer: Answer) -> str:
    """Return the answer for other programs; a threshold without an upper end has null."""
    contents = asdict(answer) | {"clients": evidence.names, "cuts": []}
    contents["temperature"] = temperature(contents.pop("divergence"))
    for row in cuts(evidence, answer):
        contents["cuts"].append(asdict(row) | ({"high": None} if np.isinf(row.high) else {}))
    return json.dumps(contents, indent=2, ensure_ascii=False) + "\n"


def as_html(evidence: Evidence, answer: Answer, title: str, png: bytes) -> str:
    """Return the page, which needs no other file."""
    first, *rest = summary(evidence, answer).splitlines()
    paragraphs = "".join(f"<p>{html.escape(line)}</p>\n" for line in rest)
    rows = "".join(
        f"<tr><td>{html.escape(row.method)}<td>{html.escape(row.quantity)}<td>{row.low:.4g}"
        f"<td>{'∞' if np.isinf(row.high) else f'{row.high:.4g}'}<td>{'yes' if row.same else 'no'}"
        for row in cuts(evidence, answer)
    )
    described = (
        f"The distances of {len(answer.clusters)} clients as a matrix, sorted by groups; the "
        f"heights of their merges; and the clusters of several clusterers. The answer is "
        f"{answer.answer}, k = {answer.k}."
    )
    shown = base64.b64encode(png).decode()
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Groups in {html.escape(title)}</title>\n"
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "img{max-width:100%}td,th{padding:.2em 1em .2em 0;text-align:left}</style>\n"
        f"<h1>{html.escape(first)}</h1>\n<p>{html.escape(title)}</p>\n{paragraphs}"
        f'<img src="data:image/png;base64,{shown}" alt="{html.escape(described)}">\n'
        f"<h2>Thresholds that leave {answer.k} cluster{'s' if answer.k > 1 else ''}</h2>\n"
        "<table><tr><th>method<th>what it compares<th>from<th>to<th>the answer's clusters"
        f"{rows}</table>\n</html>\n"
    )


def write(evidence: Evidence, answer: Answer, folder: Path, title: str) -> list[Path]:
    """Write ``groups.html``, ``groups.png`` and ``groups.json`` into a folder."""
    figure = picture(evidence, answer)
    png = plots.png_of(figure)
    plt.close(figure)
    page = as_html(evidence, answer, title, png).encode(errors="replace")
    text = as_json(evidence, answer).encode(errors="replace")
    return write_files(folder, {"groups.html": page, "groups.png": png, "groups.json": text})
