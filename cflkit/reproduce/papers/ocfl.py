"""OCFL: one-shot clustered federated learning.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, IEEE BigData 2024 ("the first paper"), and its extended
version ("the extended paper"), which share their runs. Statements about the authors' code refer to
the repositories MKZuziak/Clustered-Federated-Learning and MKZuziak/OCFL_IEEE_BigData2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from cflkit import clustering, datasets, methods, metrics, partition
from cflkit._bounds import Count, Natural, NonNegative, Positive, Repeats
from cflkit.datasets import ImageSet
from cflkit.federation import Federation
from cflkit.methods import Method
from cflkit.methods.baselines.briggs import CosineThreshold
from cflkit.partition import Partition
from cflkit.reproduce.papers.base import (
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
    mean_of_all,
    minutes,
    play_rounds,
    selected,
)
from cflkit.reproduce.parameters import FederatedRun, Seed, Selection
from cflkit.simulation.history import History, diverged_in

# --- Parameters ----------------------------------------------------------------------------------


class OCFLMethods(FederatedRun):
    """The parameters of a training run of the OCFL papers' methods."""

    window: Count
    sattler_eps1: Positive | None
    sattler_eps2: Positive | None
    sattler_rounds: Natural
    briggs_rounds: Natural
    briggs_threshold: CosineThreshold
    include_buffers: bool


# Our names of clusterers, by the papers' names for OCFL with them
CLUSTERERS = {
    "OCFL-KM": "kmeans",
    "OCFL-AFF": "affinity",
    "OCFL-MS": "meanshift",
    "OCFL-HDB": "hdbscan",
}
# Methods that are in no table: training within the true clusters, and local training alone
REFERENCE_METHODS = ("oracle", "local")
METHODS = {"SCL": "Sattler", "BCL": "Briggs", **{name: name for name in CLUSTERERS}}


class Parameters(OCFLMethods, Selection):
    """Parameters of ``03_ocfl_temperature``."""

    folder: ClassVar[str] = "ocfl"
    line_up: ClassVar[tuple[str, ...]] = (
        *("FedAvg", *METHODS.values(), *REFERENCE_METHODS),
        "EMD-CFL",  # a run has it only if it names it
    )

    central_every: Count
    repeats: Repeats = 1
    engine: Literal["threads", "stacked"] | None = None
    perturbation: Seed | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    epsilon: NonNegative = 0.1

    @model_validator(mode="after")
    def has_what_emd_cfl_needs(self) -> Parameters:
        """Refuse EMD-CFL if clients have no validation samples."""
        if "EMD-CFL" in (self.only or ()) and not self.validation:
            raise ValueError("EMD-CFL needs validation samples: set validation, for example to 0.1")
        return self


SCENARIO = {"dataset": str, "overlap": str, "balance": str, "clients": int}
FILE = "{dataset}_{clients}_{overlap}_{balance}.yaml"

# --- As published, and as intended ---------------------------------------------------------------

# The threshold in the OCFL authors' code, which passes similarities as distances. Section 4.2 of
# the extended paper gives the range searched, 0.05 to 0.4
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
            what="updates include BatchNorm's statistics and batch counters beside the parameters",
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
        source="labels in sorted order, −1 first; not in the papers; the intended value is ours",
    ),
    Switch(
        "hdbscan",
        "implementation",
        published="scikit-learn",
        intended="hdbscan",
        by="code",
        what="HDBSCAN is scikit-learn's, which counts a client among its own neighbours",
        source="OCFL with HDBSCAN; the two packages agree where clusters are clear",
    ),
    Switch(
        "ocfl",
        "strict",
        published=False,
        intended=True,
        by="text",
        what="the trigger also fires where the temperature stays equal",
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
            what="all clients have equal weights in an average, whatever their number of samples",
            source="as in OCFL's own Algorithm 1; this method's authors weight by samples",
        )
        for method in ("fedavg", "briggs")
    ),
)

# --- Methods -------------------------------------------------------------------------------------


def data(run: FederatedRun) -> tuple[ImageSet, Partition]:
    """Load the images and give each cluster of clients its classes."""
    images, split = partition.ocfl(
        datasets.load(run.dataset),
        overlap=run.overlap,
        balance=run.balance,
        clients=run.clients,
        draws=run.draws,
        seed=run.partition_seed,
    )
    if isinstance(run, Parameters) and run.validation:
        split = partition.with_validation(split, run.validation, run.partition_seed)
    return images, split


def federation(run: FederatedRun, images: ImageSet, split: Partition) -> Federation:
    """Build the federation of clients."""
    rounding = run.model_dump(include={"precision", "engine", "perturbation"})
    return Federation(images, split, run.model, run.training(), seed=run.seed, **rounding)


def line_up(run: OCFLMethods, images: ImageSet, split: Partition) -> dict[str, Method]:
    """Make the methods of the papers' tables and figures, and two reference methods.

    Each method is made as intended. Where `SWITCHES` say that the authors' code differs, a twin
    named "… as published" is made, too. There are two exceptions. The switch ``include_buffers`` is
    used only if the run asks for it, since it makes no difference without BatchNorm. What HDBSCAN
    leaves out as noise is one more cluster, as published, since no paper intends anything else.

    Parameters
    ----------
    run : OCFLMethods
        The parameters of the notebook.
    images : ImageSet
        The clients' images, which no method needs.
    split : Partition
        The partition, whose true clusters the oracle is given.
    """
    equal = {"weighting": "equal"}
    intended: dict[str, tuple[str, dict[str, Any]]] = {
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
        "oracle": ("oracle", {"truth": split.truth, **equal}),
        "local": ("local", {}),
    }
    flipped = [s for s in SWITCHES if run.include_buffers or s.option != "include_buffers"]
    lines = {}
    for name, (method, options) in intended.items():
        lines[name] = methods.make(method, **options)
        published = options_as_published(method, options, flipped)
        if published != options:
            lines[name + AS_PUBLISHED] = methods.make(method, **published)
    return lines


def options_as_published(
    method: str, options: dict[str, Any], switches: Sequence[Switch]
) -> dict[str, Any]:
    """Return the options of a method, and of its clusterer if it has one, as published."""
    published = as_published(method, methods.METHODS[method], options, switches)
    if "clusterer" in options:
        name = options["clusterer"]
        found = as_published(name, clustering.CLUSTERERS[name], {}, switches)
        published |= {"options": found} if found else {}
    return published


def chosen(run: Parameters, images: ImageSet, split: Partition) -> dict[str, Method]:
    """Make the methods of the `line_up` that the run asks for, with their twins as published.

    EMD-CFL joins them if the run names it. Clients have equal weights in its averages, too.
    """
    lines = line_up(run, images, split)
    if run.only is None:
        return lines
    lines["EMD-CFL"] = methods.make("emd-cfl", epsilon=run.epsilon, weighting="equal")
    return selected(lines, run.only)


def play(
    run: Parameters,
    federation: Federation,
    methods: Mapping[str, Method],
    rounds: int,
    checkpoint: Path | None = None,
) -> History:
    """Run the methods, see `play_rounds`, with tests on the central data as often as asked."""
    return play_rounds(
        run, federation, methods, rounds, checkpoint, central_every=run.central_every
    )


# --- Protocols -----------------------------------------------------------------------------------

# The tables average over these rounds, also where a run has 80 (CIFAR-10) or 75 (MedMNIST)
TABLE_ROUNDS = 50


def as_in_the_tables(rounds: pd.DataFrame) -> dict[str, float]:
    """Compute RAND, AMI and COM of a run by the protocol behind Table I and Table 1.

    Parameters
    ----------
    rounds : DataFrame
        A method's rows of a history in order of rounds, with ``ari``, ``ami`` and ``homogeneity``.

    Returns
    -------
    dict of str to float
        Means over rounds 1 to 50, including the rounds before clustering. A single cluster scores
        zero, so a method that clusters in round r gets at most (51 − r) / 50. If a run ended, or
        the method diverged, when the clusters were final, they count for the missing rounds, too.
        Otherwise the values are NaN if there are fewer rounds.

        - ``RAND``: the *adjusted* Rand index.
        - ``AMI``: adjusted mutual information. In the rows of OCFL-HDB, the tables have RAND again.
        - ``COM``: *homogeneity*. The authors call scikit-learn's completeness with its arguments
          swapped. The true completeness of a single cluster would be 1.

    Notes
    -----
    From the authors' archived labels, these rules give every number of the extended paper's Table 1
    that can be read and checked; a golden test counts them. The correct measures of a whole run are
    the means of `metrics.agreement`. Those of its outcome are the values of the last round.
    """
    measured = until_divergence(rounds)
    if measured is None or (len(measured) < TABLE_ROUNDS and not is_settled(measured)):
        return {"RAND": np.nan, "AMI": np.nan, "COM": np.nan}
    measures = measured[["ari", "ami", "homogeneity"]].reset_index(drop=True)
    # Rounds that are missing have the clusters of the last one
    measures = measures.reindex(range(TABLE_ROUNDS), method="ffill")
    means = measures.mean()
    return {
        "RAND": float(means["ari"]),
        "AMI": float(means["ami"]),
        "COM": float(means["homogeneity"]),
    }


def until_divergence(rounds: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows before a method diverged; None if its clusters were not final by then."""
    left = diverged_in(rounds)
    if left is None:
        return rounds
    rounds = rounds[rounds["round"] < left]
    return rounds if len(rounds) and is_settled(rounds) else None


def is_settled(rounds: pd.DataFrame) -> bool:
    """Return whether a method's clusters are final after its last row."""
    return bool(rounds["settled"].eq(True).iloc[-1])


def round_as_in_the_tables(rounds: pd.DataFrame) -> float | None:
    """Find the round (from 1) in which a method clustered, by the extended paper's Table 2.

    Parameters
    ----------
    rounds : DataFrame
        A method's rows of a history in order of rounds.

    Returns
    -------
    float or None
        For a method that clusters once, by a temperature or a dendrogram, the round in which it
        did so, even if it found a single cluster: the first round after which the clusters are
        final. For other methods, the last round that changed the clusters, since the table has
        Sattler's last split. None if there is no such round, and NaN if the method diverged before
        its clusters were final.
    """
    if (rounds := until_divergence(rounds)) is None:
        return float("nan")
    if is_settled(rounds):
        return int(rounds.loc[rounds["settled"].eq(True), "round"].iloc[0])
    changed = rounds["clusters"].ne(rounds["clusters"].shift()) & (rounds["round"] > 1)
    return int(rounds.loc[changed, "round"].iloc[-1]) if changed.any() else None


def table_measure(name: str) -> Protocol:
    """Build the protocol of a measure with this name in Table I and Table 1."""
    return Protocol(lambda rounds: as_in_the_tables(rounds)[name], SCORES, dash_is_one_cluster=True)


PROTOCOLS = {
    "mean-50-ari": table_measure("RAND"),
    "mean-50-ami": table_measure("AMI"),
    "mean-50-homogeneity": table_measure("COM"),
    "clustering-round": Protocol(round_as_in_the_tables, ROUNDS),
    # Figure 2 of both papers averages over all rounds. The authors' code measures GF1 before the
    # aggregation, so its last value is that of the last round but one; its first value, of the
    # initial model, is left out
    "mean-pf1": mean_of_all("pf1", SCORES),
    "mean-gf1-before-last": mean_of_all("gf1", SCORES, slice(None, -1)),
}


def corrected(clusters: Sequence[Sequence[str]], sizes: Sequence[int]) -> dict[str, float]:
    """Compute what Table 1 of the extended paper would have if its measures were as named.

    Parameters
    ----------
    clusters : sequence of sequences of str
        The clients' clusters after each round.
    sizes : sequence of int
        The number of clients in each true cluster; clients are numbered cluster by cluster.

    Returns
    -------
    dict of str to float
        ``ari``, ``ami``, ``homogeneity`` and ``completeness`` as means over rounds 1 to 50, and
        after the last round with the prefix ``last_``.
    """
    truth = np.repeat(np.arange(len(sizes)), sizes)
    known: dict[tuple[str, ...], dict[str, float]] = {}  # most rounds keep the clusters
    for labels in map(tuple, clusters):
        if labels not in known:
            known[labels] = metrics.agreement(truth, labels)
    rounds = pd.DataFrame([known[tuple(labels)] for labels in clusters])
    last = rounds.iloc[-1].add_prefix("last_")
    return {**rounds.head(TABLE_ROUNDS).mean(), **last}


# --- The table of results, and the papers --------------------------------------------------------


def fired(runs: Runs) -> str:
    """Format the rounds in which the runs clustered, one per seed."""
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
        minutes("minutes per run"),
    ),
    method="OCFL-HDB",
)


def paper(name: str, results: Results | None) -> Paper:
    """Build one of the two papers."""
    return Paper(
        name=name,
        notebook="03_ocfl_temperature",
        parameters=Parameters,
        scenario=SCENARIO,
        file=FILE,
        methods={"BNC": "FedAvg", **METHODS},
        protocols=PROTOCOLS,
        data=data,
        federation=federation,
        line_up=chosen,
        play=play,
        switches=SWITCHES,
        results=results,
        free=frozenset({"seed", "partition_seed", "central_every", "only", "until"}),
        # The round in which Briggs' method clusters is a parameter
        fixed=({"method": "BCL", "protocol": "clustering-round"},),
    )


PAPERS = (paper("ocfl", RESULTS), paper("ocfl-extended", None))
