"""Ask clients' updates or distances whether there are groups, how many, and how sure that is.

There are three answers. *Groups* are found in both halves of the evidence (`cflkit.halves`).
Clients are *alike* if what persists in each of them is peculiar to it. Otherwise they differ *by
degrees*.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cflkit import clustering
from cflkit._project import KIT
from cflkit.clustering import Clusterer, Labels
from cflkit.groups.evidence import Evidence, EvidenceError, as_evidence, read
from cflkit.halves import FEW, SHARED, Halves, agreement, compare_matrices, replicated

__all__ = ["Answer", "Evidence", "EvidenceError", "as_evidence", "groups", "hit_rate", "read"]

ALIKE, DEGREES, GROUPS = "alike", "by degrees", "groups"
# The typical correlation of two clients' differences from which they differ by degrees: in several
# rounds, where it has no noise, and in one look. Both were chosen on the draws 300 to 304, as
# `halves.SHARED`
SCATTER, SCATTER_IN_ONE_LOOK = 1 / 6, 0.2
PERSIST = "differences that persist over rounds"
# The fewest rounds in which both halves can agree twice running
REPLICABLE = 3
# How many clients are left out in turn, at most
LEFT_OUT = 50
# Clients whose silhouette is less than this share of the median one are between groups
BETWEEN = 0.25
NOTES = (
    "This is one look. It cannot show that another round would say the same: give three rounds or "
    "more in which every client takes part.",
    "With so few clients, what is peculiar to one can look like a group, since it persists, too. "
    "Let clients train on one half of their samples in odd rounds, and on the other in even ones: "
    "then only what belongs to their distributions agrees.",
    "Only distances are known, which do not tell what persists in a client from noise: with noisy "
    "updates, clients seem more alike than they are. Give updates if you can.",
    "Groups that updates do not show, such as backdoors, would not be found.",
    "In the other half, a client is no more like itself than like others. Either noise hides what "
    "persists, or a row is not the same client in every round: then sort by the clients' numbers.",
)
TABLE = KIT / "data" / "groups.csv"


@dataclass(frozen=True)
class Answer:
    """What the evidence says.

    Attributes
    ----------
    answer : {"alike", "by degrees", "groups"}
        The answer.
    question : str
        What was answered: a difference that persists can be peculiar to a client's samples.
    k : int
        The number of groups; 1 without groups.
    clusters : list of int
        The group of each client, numbered from 0.
    rounds, rounds_needed : int, int or None
        How many rounds there were, and after how many the groups were there to stay; None if they
        were not, or if there was one look only.
    stability : float
        How well the clusters agree with those found when one client is left out: the mean adjusted
        Rand index.
    shared, scatter : float
        As in `halves.Halves`; `limits` has what they are compared with.
    between : list of int
        The clients that sit between groups, by a silhouette that is far below the others'.
    notes : list of str
        What one must know to use the answer.
    divergence : ndarray
        ``[m, m]``, the distances by all rounds.
    """

    answer: str
    question: str
    k: int
    clusters: list[int]
    rounds: int
    rounds_needed: int | None
    stability: float
    shared: float
    scatter: float
    between: list[int]
    notes: list[str]
    divergence: NDArray[np.float64] = field(repr=False)

    @property
    def several(self) -> bool:
        """Return whether there were rounds enough to see if groups replicate."""
        return self.question == PERSIST


def groups(evidence: Evidence) -> Answer:
    """Say whether clients have groups, differ by degrees or are alike.

    With three rounds or more, the answer is *groups* if both halves agree in the last two looks.
    With fewer rounds, nothing can be replicated. Then the clusters of the one look count, if their
    members have enough in common. HDBSCAN finds the clusters; limits and hit rate are for it alone.

    Parameters
    ----------
    evidence : Evidence
        What is known of the clients, see `as_evidence` and `read`.
    """
    method = clustering.make("hdbscan")
    looks = list(evidence.looks(method)) if evidence.rounds >= REPLICABLE else []
    whole, several = evidence.whole(), len(looks) > 1
    if several:
        last, needed = looks[-1][1], since(looks)
        grouped = needed is not None
    else:
        last, needed = compare_matrices(whole, whole, method), None
        grouped = bool(last.labels.any()) and last.shared >= SHARED
    labels = last.labels if grouped else np.zeros_like(last.labels)
    spread = DEGREES if last.scatter >= limits(several)[1] else ALIKE
    return Answer(
        GROUPS if grouped else spread,
        PERSIST if several else "differences in one look",
        int(labels.max()) + 1,
        labels.tolist(),
        evidence.rounds,
        needed,
        stability(whole, last.labels, method),
        last.shared,
        last.scatter,
        between(whole, labels),
        notes(evidence, several, grouped, last.persists),
        whole,
    )


def limits(several: bool) -> tuple[float, float]:
    """Return from which ``shared`` there are groups, and from which ``scatter`` degrees."""
    return SHARED, SCATTER if several else SCATTER_IN_ONE_LOOK


def since(looks: Sequence[tuple[int, Halves]]) -> int | None:
    """Return the round from which the same groups replicate in each look, to the last one."""
    needed = None
    for (_, before), (number, now) in pairwise(looks):
        again = replicated(now, before.labels if before.agree else None)
        needed = (needed or number) if again else None
    return needed


def stability(divergence: NDArray[np.float64], labels: Labels, clusterer: Clusterer) -> float:
    """Return how well clusters agree with those of all clients but one, for up to 50 clients."""
    m = len(divergence)
    agreed = []
    for client in np.unique(np.linspace(0, m - 1, min(m, LEFT_OUT)).astype(int)).tolist():
        rest = np.delete(np.arange(m), client)
        others = clusterer.fit_predict(divergence[np.ix_(rest, rest)])
        agreed.append(agreement(labels[rest], others))
    return float(np.mean(agreed))


def between(divergence: NDArray[np.float64], labels: Labels) -> list[int]:
    """Return the clients that are nearly as near to another group as to their own."""
    if not 1 < labels.max() + 1 < len(labels):
        return []
    from sklearn.metrics import silhouette_samples

    widths = silhouette_samples(divergence, labels, metric="precomputed")
    return np.flatnonzero(widths < BETWEEN * np.median(widths)).tolist()


def notes(evidence: Evidence, several: bool, grouped: bool, persists: bool) -> list[str]:
    """Return what one must know to use the answer."""
    few = several and len(evidence.names) <= FEW
    applies = (not several, few, evidence.distances, not grouped, several and not persists)
    return [note for note, holds in zip(NOTES, applies, strict=True) if holds]


def hit_rate(answer: str, column: str) -> tuple[int, int, int] | None:
    """Return how often an answer was right and given, in how many situations (``data/groups.csv``).

    The column is ``answer``, ``distances`` or ``one look``. None if the answer was never given.
    """
    rows = list(csv.DictReader(TABLE.read_text("utf-8").splitlines()))
    same = [row["truth"] == answer for row in rows if row[column] == answer]
    return (sum(same), len(same), len({row["situation"] for row in rows})) if same else None
