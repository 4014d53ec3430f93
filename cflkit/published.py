"""What the papers' code did where it differs from their text, and the line-up of their tables.

Each difference in a method is a named option, so that both ways can be run; `SWITCHES` lists them
with their sources: the OCFL papers (the first: IEEE BigData 2024; the extended one) and their
authors' public code, MKZuziak/Clustered-Federated-Learning and MKZuziak/OCFL_IEEE_BigData2024, read
by us; and EMD-CFL's. (FedCRef's choices are told where its options are, in `FedCRef`. Measures that
differ from their names are in `metrics`, splits in `partition` and `shifts`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from cflkit import methods, metrics
from cflkit.config import EMDRun, FedCRefRun, OCFLMethods
from cflkit.methods import Method


@dataclass(frozen=True)
class Switch:
    """One difference between what was published and what was meant.

    Attributes
    ----------
    where : str
        The method or clusterer, by its name in `methods.make` or `clustering.make`.
    option : str
        Its option.
    published, intended : object
        The option's value as published, and as the rest of the papers, or the method's own authors,
        have it.
    by : {"code", "text"}
        Whether the authors' code, and so their results, have the published value, or a text alone.
    what, source : str
        What the difference is, and where it can be read.
    """

    where: str
    option: str
    published: Any
    intended: Any
    by: str
    what: str
    source: str


SWITCHES = (
    Switch(
        "affinity",
        "wrong_sign",
        published=True,
        intended=False,
        by="code",
        what="affinity propagation, which takes similarities, is given distances",
        source="OCFL with affinity propagation",
    ),
    Switch(
        "briggs",
        "wrong_sign",
        published=True,
        intended=False,
        by="code",
        what="agglomerative clustering, which takes distances, is given cosine similarities",
        source="Briggs et al.'s method",
    ),
    *(
        Switch(
            method,
            "include_buffers",
            published=True,
            intended=False,
            by="code",
            what="updates hold BatchNorm's statistics and batch counters beside the parameters",
            source="state after minus state before; the papers speak of parameters",
        )
        for method in ("ocfl", "sattler", "briggs")
    ),
    Switch(
        "hdbscan",
        "noise",
        published="own cluster",
        intended="nearest",
        by="code",
        what="clients that HDBSCAN leaves out as noise train together as one more cluster",
        source="labels in sorted order, −1 first; the papers do not say, the other value is ours",
    ),
    Switch(
        "ocfl",
        "strict",
        published=False,
        intended=True,
        by="text",
        what="the trigger fires also where the temperature stays equal",
        source="Algorithm 1 (the first paper's line 18, the extended one's 20): ≥; the code: >",
    ),
    Switch(
        "ocfl",
        "before",
        published=float("-inf"),
        intended=float("inf"),
        by="text",
        what="any first temperature exceeds the one before it, so that round 1 clusters",
        source="first paper, Algorithm 1; the extended paper (line 6) and the code: +∞",
    ),
    *(
        Switch(
            method,
            "weighting",
            published="equal",
            intended="samples",
            by="code",
            what="clients weigh alike in an average, whatever their number of samples",
            source="as in OCFL's own Algorithm 1; this method's authors weigh by samples",
        )
        for method in ("fedavg", "briggs")
    ),
    Switch(
        "emd-cfl",
        "train_mode",
        published=True,
        intended=False,
        by="code",
        what="embeddings with the network in training mode: batch statistics, dropout",
        source="EMD-CFL: evaluation leaves the copied network in training mode",
    ),
)

# The threshold at which the OCFL authors cut what they took for distances (code; section 4.2 of the
# extended paper gives the range searched, 0.05 to 0.4)
BRIGGS_THRESHOLD = 0.05
AS_PUBLISHED = " as published"
# What no paper's table has: the true clusters, and no federation
YARDSTICKS = ("oracle", "local")
# The papers' names for OCFL by its clusterer
CLUSTERERS = {
    "OCFL-KM": "kmeans",
    "OCFL-AFF": "affinity",
    "OCFL-MS": "meanshift",
    "OCFL-HDB": "hdbscan",
}


def switches() -> pd.DataFrame:
    """`SWITCHES` as a table, a row a switch."""
    return pd.DataFrame([vars(switch) for switch in SWITCHES])


def line_up(run: OCFLMethods, truth: Sequence[int]) -> dict[str, Method]:
    """The methods of the OCFL papers' tables and figures, and two yardsticks.

    Each as meant; and once more under its name with "as published", where the authors' code did
    another thing: a wrong sign, or BatchNorm's state inside the updates (``include_buffers``).
    """
    sattler = {
        "eps1": run.sattler_eps1,
        "eps2": run.sattler_eps2,
        "min_rounds": run.sattler_rounds,
    }
    briggs = {"rounds": run.briggs_rounds, "weighting": "equal"}
    slip = {"threshold": BRIGGS_THRESHOLD, "wrong_sign": True}
    pairs: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "Sattler": ("sattler", sattler, sattler),
        "Briggs": ("briggs", briggs | {"threshold": run.briggs_threshold}, briggs | slip),
    }
    for name, clusterer in CLUSTERERS.items():
        meant = {"clusterer": clusterer, "window": run.window}
        wrong = {"options": {"wrong_sign": True}} if clusterer == "affinity" else {}
        pairs[name] = ("ocfl", meant, meant | wrong)

    lines = {"FedAvg": methods.make("fedavg", weighting="equal")}
    for name, (method, meant, published) in pairs.items():
        lines[name] = methods.make(method, **meant)
        if published != meant or run.include_buffers:
            published = published | {"include_buffers": run.include_buffers}
            lines[name + AS_PUBLISHED] = methods.make(method, **published)
    lines["oracle"] = methods.make("oracle", truth=truth, weighting="equal")
    lines["local"] = methods.make("local")
    return lines


def explained_line_up(run: OCFLMethods, truth: Sequence[int]) -> dict[str, Method]:
    """`line_up` without the yardsticks, which the extended paper does not explain either."""
    return {name: method for name, method in line_up(run, truth).items() if name not in YARDSTICKS}


def emd_line_up(run: EMDRun, truth: Sequence[int]) -> dict[str, Method]:
    """EMD-CFL, and what its tables put around it."""
    options = run.model_dump(
        include={"epsilon", "projection", "sinkhorn", "clusters", "train_mode"}
    )
    return {
        "EMD-CFL": methods.make("emd-cfl", max_samples=run.embedded, **options),
        "Oracle": methods.make("emd-cfl-oracle", truth=truth),
        "FedAvg": methods.make("fedavg"),
        "FedProx": methods.make("fedprox", mu=run.mu),
    }


def fedcref_line_up(
    run: FedCRefRun, start: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]
) -> dict[str, Method]:
    """FedCRef; its upper bound, to which the associations are given; and without any (ours).

    The last says what of the gain is the federation's: its clients refine with their own networks,
    for three iterations at most, since its graph never changes.
    """
    options = run.options(start)
    return {
        "FedCRef": options,
        "Perfect associations": replace(options, associations="true", truth=truth),
        "Alone": replace(options, associations="none"),
    }


def corrected(clusters: Sequence[Sequence[str]], sizes: Sequence[int]) -> dict[str, float]:
    """What Table 1 of the extended paper would say of a run by the measures' own names.

    Parameters
    ----------
    clusters : sequence of sequences of str
        The clients' clusters after each round.
    sizes : sequence of int
        Clients of each true cluster, who are numbered cluster by cluster.

    Returns
    -------
    dict of str to float
        ``ari``, ``ami``, ``homogeneity`` and ``completeness`` as means over rounds 1 to 50, and
        with the prefix ``last_`` after the last round.
    """
    truth = np.repeat(np.arange(len(sizes)), sizes)
    known: dict[tuple[str, ...], dict[str, float]] = {}  # most rounds repeat the one before
    for labels in map(tuple, clusters):
        if labels not in known:
            known[labels] = metrics.agreement(truth, labels)
    rounds = pd.DataFrame([known[tuple(labels)] for labels in clusters])
    last = rounds.iloc[-1].add_prefix("last_")
    return {**rounds.head(metrics.TABLE_ROUNDS).mean(), **last}
