"""OCFL: one-shot clustered federated learning.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, IEEE BigData 2024 ("the first paper"), and its extended
version ("the extended paper"), which share their runs. What is said of the authors' code was read
by us in MKZuziak/Clustered-Federated-Learning and MKZuziak/OCFL_IEEE_BigData2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from cflkit import clustering, datasets, methods, metrics, partition, simulation
from cflkit.bounds import Count, Natural, Positive
from cflkit.datasets import ImageSet
from cflkit.federation import Federation
from cflkit.history import History
from cflkit.methods import Method
from cflkit.methods.briggs import CosineThreshold
from cflkit.papers.base import (
    AS_PUBLISHED,
    ROUNDS,
    SCALE,
    SCORES,
    SEEDS,
    Column,
    Paper,
    Protocol,
    Results,
    Runs,
    Switch,
    as_published,
    given,
    mean,
)
from cflkit.parameters import FederatedRun
from cflkit.partition import Partition

# --- Parameters ----------------------------------------------------------------------------------


class OCFLMethods(FederatedRun):
    """A training run of the OCFL papers' methods."""

    window: Count
    sattler_eps1: Positive | None
    sattler_eps2: Positive | None
    sattler_rounds: Natural
    briggs_rounds: Natural
    briggs_threshold: CosineThreshold
    include_buffers: bool


class Parameters(OCFLMethods):
    """Parameters of ``03_ocfl_temperature``."""

    folder: ClassVar[str] = "ocfl"

    central_every: Count


SCENARIO = {"dataset": str, "overlap": str, "balance": str, "clients": int}
FILE = "{dataset}_{clients}_{overlap}_{balance}.yaml"

# --- As published, and as intended ---------------------------------------------------------------

# The threshold at which the OCFL authors cut what they took for distances (code; section 4.2 of the
# extended paper gives the range searched, 0.05 to 0.4)
BRIGGS_THRESHOLD = 0.05

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
        alongside={"threshold": BRIGGS_THRESHOLD},
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
)

# --- Methods -------------------------------------------------------------------------------------

# The papers' names for OCFL by its clusterer
CLUSTERERS = {
    "OCFL-KM": "kmeans",
    "OCFL-AFF": "affinity",
    "OCFL-MS": "meanshift",
    "OCFL-HDB": "hdbscan",
}
# What no table has: the true clusters, and no federation
REFERENCE_METHODS = ("oracle", "local")
METHODS = {"SCL": "Sattler", "BCL": "Briggs", **{name: name for name in CLUSTERERS}}


def data(run: FederatedRun) -> tuple[ImageSet, Partition]:
    """Load the images and give clusters of clients their classes."""
    return partition.ocfl(
        datasets.load(run.dataset),
        overlap=run.overlap,
        balance=run.balance,
        clients=run.clients,
        draws=run.draws,
        seed=run.partition_seed,
    )


def federation(run: FederatedRun, images: ImageSet, split: Partition) -> Federation:
    """Build the clients."""
    return Federation(
        images, split, run.model, run.training(), seed=run.seed, precision=run.precision
    )


def line_up(run: OCFLMethods, images: ImageSet, split: Partition) -> dict[str, Method]:
    """Make the methods of the papers' tables and figures, and two reference methods.

    Each method as intended and, where `SWITCHES` say that the authors' code differs, a twin named
    "… as published". The switch ``include_buffers`` is flipped only if the run asks for it, since
    without BatchNorm it makes no difference.

    Parameters
    ----------
    run : OCFLMethods
        The parameters.
    images : ImageSet
        What the clients have; no method needs to know.
    split : Partition
        Who has what; the oracle is told the true clusters.
    """
    equal = {"weighting": "equal"}
    meant: dict[str, tuple[str, dict[str, Any]]] = {
        "FedAvg": ("fedavg", equal),
        "Sattler": (
            "sattler",
            {
                "eps1": run.sattler_eps1,
                "eps2": run.sattler_eps2,
                "min_rounds": run.sattler_rounds,
            },
        ),
        "Briggs": (
            "briggs",
            equal | {"rounds": run.briggs_rounds, "threshold": run.briggs_threshold},
        ),
        **{
            name: ("ocfl", {"clusterer": clusterer, "window": run.window})
            for name, clusterer in CLUSTERERS.items()
        },
        "oracle": ("oracle", {"truth": split.clusters, **equal}),
        "local": ("local", {}),
    }
    flipped = [s for s in SWITCHES if run.include_buffers or s.option != "include_buffers"]
    lines = {}
    for name, (method, options) in meant.items():
        lines[name] = methods.make(method, **options)
        published = slipped(method, options, flipped)
        if published != options:
            lines[name + AS_PUBLISHED] = methods.make(method, **published)
    return lines


def slipped(method: str, options: dict[str, Any], switches: Sequence[Switch]) -> dict[str, Any]:
    """Flip the switches of a method, and of its clusterer where it is given one."""
    published = as_published(method, methods.METHODS[method], options, switches)
    if "clusterer" in options:
        name = options["clusterer"]
        found = as_published(name, clustering.CLUSTERERS[name], {}, switches)
        published |= {"options": found} if found else {}
    return published


def play(
    run: Parameters, federation: Federation, methods: Mapping[str, Method], rounds: int
) -> History:
    """Run the methods for some rounds."""
    return simulation.run(methods, federation, rounds, central_every=run.central_every)


# --- Protocols -----------------------------------------------------------------------------------

# Averages of the tables end here also where a run went on: 80 rounds (CIFAR-10) or 75 (MedMNIST)
TABLE_ROUNDS = 50


def as_in_the_tables(rounds: pd.DataFrame) -> dict[str, float]:
    """RAND, AMI and COM of a run, by the protocol behind Table I and Table 1.

    Parameters
    ----------
    rounds : DataFrame
        A method's rows of a history in order of rounds, with ``ari``, ``ami`` and ``homogeneity``.

    Returns
    -------
    dict of str to float
        Means over rounds 1 to 50, the rounds before clustering included: one cluster scores zero,
        so that who clusters in round r gets at most (51 − r) / 50. NaN if there are fewer rounds.

        - ``RAND``: the *adjusted* Rand index.
        - ``AMI``: adjusted mutual information. In the rows of OCFL-HDB the tables have RAND again.
        - ``COM``: *homogeneity*. The authors call scikit-learn's completeness with its arguments
          exchanged. True completeness of a single cluster would be 1.

    Notes
    -----
    From the authors' archived labels these rules give every number of the extended paper's Table 1
    that can be read and checked (a golden test counts them). The right measures of a whole run are
    the means of `metrics.agreement`, those of its outcome the last round's.
    """
    if len(rounds) < TABLE_ROUNDS:
        return {"RAND": np.nan, "AMI": np.nan, "COM": np.nan}
    means = rounds[["ari", "ami", "homogeneity"]].head(TABLE_ROUNDS).mean()
    return {
        "RAND": float(means["ari"]),
        "AMI": float(means["ami"]),
        "COM": float(means["homogeneity"]),
    }


def round_as_in_the_tables(rounds: pd.DataFrame) -> int | None:
    """The round (from 1) in which a method clustered, by the protocol of the extended Table 2.

    Parameters
    ----------
    rounds : DataFrame
        A method's rows of a history in order of rounds.

    Returns
    -------
    int or None
        For a method that watches a temperature (or cuts a dendrogram) once, the round in which it
        did, also where it found a single cluster; otherwise the last round that ends with other
        clusters than the round before (the table has Sattler's last split). None if there is none.
    """
    cut = rounds.get("merge_heights")
    if cut is not None and cut.notna().any():
        return int(rounds.loc[cut.notna(), "round"].iloc[0])
    watched = rounds.get("temperature")
    if watched is not None and watched.notna().any() and pd.isna(watched.iloc[-1]):
        return int(rounds.loc[watched.notna(), "round"].iloc[-1])
    changed = rounds["clusters"].ne(rounds["clusters"].shift()) & (rounds["round"] > 1)
    return int(rounds.loc[changed, "round"].iloc[-1]) if changed.any() else None


def table_measure(name: str) -> Protocol:
    """Build the protocol of a measure by its name in Table I and Table 1."""
    return Protocol(lambda rounds: as_in_the_tables(rounds)[name], SCORES, dash_is_one_cluster=True)


PROTOCOLS = {
    "mean-50-ari": table_measure("RAND"),
    "mean-50-ami": table_measure("AMI"),
    "mean-50-homogeneity": table_measure("COM"),
    "clustering-round": Protocol(round_as_in_the_tables, ROUNDS),
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
    return {**rounds.head(TABLE_ROUNDS).mean(), **last}


# --- The README's table, and the papers ----------------------------------------------------------


def fired(runs: Runs) -> str:
    """In which round each seed clustered."""
    rounds = runs.values("OCFL-HDB", "clustering_round")
    return ", ".join("never" if number is None else str(number) for number in rounds)


RESULTS = Results(
    "results",
    (
        given("data", "dataset"),
        given("clients", "clients"),
        given("split", "overlap", "balance"),
        SCALE,
        SEEDS,
        Column("clusters in round", fired),
        mean("ARI", "OCFL-HDB", "ari"),
        mean("PF1", "OCFL-HDB", "pf1"),
        mean("PF1 of FedAvg", "FedAvg", "pf1"),
        Column("minutes a run", lambda runs: f"{runs.minutes:.0f}"),
    ),
)


def paper(name: str, results: Results | None) -> Paper:
    """Build one of the two papers."""
    return Paper(
        name=name,
        notebook="03_ocfl_temperature",
        parameters=Parameters,
        scenario=SCENARIO,
        file=FILE,
        methods=METHODS,
        protocols=PROTOCOLS,
        data=data,
        federation=federation,
        line_up=line_up,
        play=play,
        switches=SWITCHES,
        results=results,
        free=frozenset({"seed", "partition_seed", "central_every"}),
    )


PAPERS = (paper("ocfl", RESULTS), paper("ocfl-extended", None))
