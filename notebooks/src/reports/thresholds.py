"""The ARI over a method's threshold, in the threshold's own unit, from what the records keep.

A record has what a method compares in the round that clusters. So the clusters of every threshold
follow from it, and no run is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import adjusted_rand_score

from cflkit import clustering
from cflkit.methods.emd_cfl_variants import clusters_of
from cflkit.partition import shifts
from cflkit.reproduce import ledger, records
from cflkit.reproduce.papers import emd_cfl
from cflkit.reproduce.records import AS_PUBLISHED, Record


@dataclass(frozen=True)
class Cut:
    """The threshold of a method of EMD-CFL's comparison."""

    sign: str
    used: Callable[[Any], float]  # the threshold of a run, from its parameters
    linkage: str | None = None  # of the dendrogram that it cuts; None for EMD-CFL's own rule
    unit: str = ""


CUTS = {
    "EMD-CFL": Cut("ε", lambda run: run.epsilon),
    "PACFL": Cut("β", lambda run: emd_cfl.thresholds(run)[0], "weighted", "°"),
    "FedClust": Cut("λ", lambda run: emd_cfl.thresholds(run)[1], "complete"),
}
# The columns of `table`
COLUMNS = ["scale", "data", "method", "seeds", "threshold", "ARI", "best", "range", "note"]


def true_clusters(version: str, clients: int) -> NDArray[np.int64]:
    """Return the true clusters ``[m]`` in any version except ``domains``, which needs the data."""
    # `shifts.CORNERS`, for images with colours, has the clusters of `shifts.COLOURS`
    groups = shifts.COLOURS if version == "backdoor" else shifts.ROTATIONS[version]
    return np.repeat([group.cluster for group in groups], clients // len(groups))


def recorded_scores(
    record: Record, method: str = "EMD-CFL"
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the scores ``[m, m]`` of a run's first round and the true clusters ``[m]``.

    The scores are those of EMD-CFL, also as published, or the distances of PACFL or FedClust. Where
    few clients take part in a round, pairs that had not met then are NaN. The true clusters are
    those of the version of the data, or for ``domains`` those of the oracle.
    """
    column = "scores" if method.startswith("EMD-CFL") else "distances"
    matrix = np.array(record.by_method[method][column].iloc[0].split("|"), dtype=float)
    run = record.parameters
    if run["version"] == "domains":
        known = record.by_method["Oracle"]["clusters"].iloc[-1]
        truth = np.array(known.split("|"), dtype=int)
    else:
        truth = true_clusters(run["version"], run["clients"])
    return matrix.reshape(len(truth), -1), truth


def curve(matrix: NDArray[np.float64], truth: ArrayLike, linkage: str | None) -> pd.DataFrame:
    """Compute the ``clusters`` (a number) and the ``ari`` for every threshold above 0.

    A row holds from ``low`` (not included) up to ``high``. The matrix ``[m, m]`` has EMD-CFL's
    scores, or distances, of which a dendrogram is cut (`Cut`).
    """
    if linkage is None:
        own = np.maximum(matrix, matrix.T)
    else:
        own = clustering.merge_heights(matrix, linkage)
    rows = []
    for low, high in pairwise([0.0, *np.unique(own[own > 0]), np.inf]):
        within = min(high, low + 1)
        if linkage is None:
            labels = clusters_of(matrix, within)[0]
        else:
            cut = clustering.make("agglomerative", threshold=within, linkage=linkage)
            labels = cut.fit_predict(matrix)
        ari = adjusted_rand_score(truth, labels)
        rows.append((low, high, labels.max() + 1, ari))
    return pd.DataFrame(rows, columns=["low", "high", "clusters", "ari"])


def recorded(record: Record, method: str) -> bool:
    """Return whether a record has what a method compared."""
    rows = record.by_method[method]
    name = "distances" if CUTS[method.removesuffix(AS_PUBLISHED)].linkage else "scores"
    return name in rows and pd.notna(rows[name].iloc[0])


@cache
def curve_of(record: Record, method: str) -> pd.DataFrame:
    """Compute the `curve` of a method in a run that has what it compared."""
    linkage = CUTS[method.removesuffix(AS_PUBLISHED)].linkage
    return curve(*recorded_scores(record, method), linkage)


def at(found: pd.DataFrame, threshold: ArrayLike) -> NDArray[np.float64]:
    """Return the ARI of a curve at a threshold, or at several."""
    aris: NDArray[np.float64] = found["ari"].to_numpy()[np.searchsorted(found["high"], threshold)]
    return aris


def mean_curve(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Average the ARI of several seeds' curves, threshold by threshold."""
    ends = np.unique(np.concatenate([own["high"] for own in curves]))
    mean = np.mean([at(own, ends) for own in curves], axis=0)
    return pd.DataFrame({"low": [0.0, *ends[:-1]], "high": ends, "ari": mean})


def best(found: pd.DataFrame) -> tuple[float, float, float]:
    """Return the largest ARI of a curve, and the widest interval of thresholds that have it."""
    top = found["ari"].max()
    reached = np.isclose(found["ari"], top)
    spell = (np.diff(reached.astype(int), prepend=0) != 0).cumsum()
    ranges = found[reached].groupby(spell[reached]).agg({"low": "min", "high": "max"})
    low, high = ranges.loc[(ranges["high"] - ranges["low"]).idxmax()]
    return float(top), float(low), float(high)


def by_scenario(runs: Sequence[Record]) -> dict[tuple[str, str, str, str], list[Record]]:
    """Group runs by scale, data set, version and method with a threshold, one run per seed.

    They are those of EMD-CFL's tables, without the scenarios of one true group, in which cutting
    nothing is right. Of several runs of a seed, one that has what the method compared comes first.
    """
    [paper] = emd_cfl.PAPERS
    known = [run for run in runs if run.paper == paper.folder]
    found: dict[tuple[str, str, str, str], list[Record]] = {}
    for of in ledger.SCALES:
        for scenario, group in ledger.by_scenario(known, paper.name, of).items():
            dataset, version, participants = scenario
            if participants is not None or paper.is_one_group(group[0]):
                continue
            for method in sorted({name for run in group for name in run.summary}):
                if method.removesuffix(AS_PUBLISHED) in CUTS:
                    own = [run for run in group if method in run.summary]
                    best = records.one_per_seed(own, partial(recorded, method=method))
                    found[of, dataset, version, method] = best
    return found


def table(runs: Sequence[Record]) -> pd.DataFrame:
    """Put the best ARI of one threshold for all seeds beside the mean ARI at the threshold used.

    A row has ``scale``, ``data``, ``method`` and ``seeds``; the ``threshold`` used and the ``ARI``
    there; the ``best`` ARI and the ``range`` of thresholds that have it; and a ``note``. Both ARIs
    are of the same seeds: those that have what the method compared, if any has. The ARI at the
    threshold is a dash where this belongs to another quantity.
    """
    rows, [paper] = [], emd_cfl.PAPERS
    for (of, dataset, version, method), own in by_scenario(runs).items():
        cut = CUTS[method.removesuffix(AS_PUBLISHED)]
        used = f"{cut.sign} = {cut.used(emd_cfl.Parameters(**own[0].parameters)):g}{cut.unit}"
        chosen_here = of == "reduced" and method.startswith("EMD-CFL")  # ε is ours at this scale
        borrowed = None if chosen_here else paper.borrowed.get(method)
        notes = [borrowed] if borrowed else []
        kept = [run for run in own if recorded(run, method)]
        ari = fmean(run.value(method, "ari") for run in kept or own)
        there = "–" if borrowed else f"{ari:.2f}"
        found = ("–", "–")
        if kept:
            top, low, high = best(mean_curve([curve_of(run, method) for run in kept]))
            found = f"{top:.2f}", f"{low:.3g} to {high:.3g}{cut.unit}"
        if len(kept) < len(own):
            notes.append(f"what it compares is recorded for {len(kept)} of {len(own)} seeds")
        data = f"{dataset}, {version}"
        rows.append((of, data, method, len(own), used, there, *found, "; ".join(notes)))
    return pd.DataFrame([*rows, *of_briggs(runs)], columns=COLUMNS)


def of_briggs(runs: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Return the rows of Briggs' method as intended: over all scenarios of OCFL's tables.

    Its records have the heights of the merges. So the thresholds that leave as many clusters are
    known, and those that give the true ones where the run's own threshold gives them.
    """
    rows, with_it = [], [r for r in runs if r.paper == "ocfl" and "Briggs" in r.summary]
    for of in ledger.SCALES:
        own = [run for run in with_it if ledger.scale(run, "ocfl") == of]
        ends = [working_range(run) for run in own if run.summary["Briggs"]["ari"] == 1]
        if own:
            used = f"{own[0].parameters['briggs_threshold']:g}"
            there = f"{fmean(run.value('Briggs', 'ari') for run in own):.2f}"
            low, high = max(low for low, _ in ends), min(high for _, high in ends)
            top = "1.00" if len(ends) == len(own) else "–"
            span = f"{low:.3g} to {high:.3g}" if low < high else "–"
            note = f"right in {len(ends)} of {len(own)} runs; the range is theirs"
            which = (of, "OCFL's scenarios", "Briggs", len(own))
            rows.append((*which, used, there, top, span, note))
    return rows


def working_range(run: Record) -> tuple[float, float]:
    """Return between which thresholds Briggs' method leaves as many clusters as in the run."""
    rows = run.by_method["Briggs"]
    heights = [0.0, *map(float, rows["merge_heights"].dropna().iloc[0].split("|")), np.inf]
    count = int(rows["n_clusters"].iloc[-1])
    return heights[-count - 1], heights[-count]
