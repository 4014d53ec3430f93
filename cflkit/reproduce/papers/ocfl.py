"""OCFL: one-shot clustered federated learning.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, IEEE BigData 2024 ("the first paper"), and its extended
version ("the extended paper"), which share their runs. Statements about the authors' code refer to
the repositories MKZuziak/Clustered-Federated-Learning and MKZuziak/OCFL_IEEE_BigData2024.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from cflkit._bounds import MOST, CosineThreshold, Count, Natural, NonNegative, Positive, Repeats
from cflkit.reproduce.papers import base
from cflkit.reproduce.parameters import FederatedRun, Seed, Selection, Sizes


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
WRONG_SIGN = ("OCFL-AFF", "BCL")  # in the code of the papers
METHODS = {"SCL": "Sattler", "BCL": "Briggs", **{name: name for name in CLUSTERERS}}


class Parameters(OCFLMethods, Selection):
    """Parameters of ``03b_ocfl_controls``."""

    folder: ClassVar[str] = "ocfl"
    line_up: ClassVar[tuple[str, ...]] = (
        *("FedAvg", *METHODS.values(), *REFERENCE_METHODS),
        *("Sattler-exact", "EMD-CFL", "FedAvg-FT"),  # a run has these only if it names them
    )

    clients: Annotated[int, Field(ge=4, le=MOST)]  # with three, nobody has a companion
    central_every: Count
    repeats: Repeats = 1
    engine: Literal["threads", "stacked"] | None = None
    perturbation: Seed | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    epsilon: NonNegative = 0.1
    sizes: Sizes | None = None


SCENARIO = {"dataset": str, "overlap": str, "balance": str, "clients": int}
FILE = "{dataset}_{clients}_{overlap}_{balance}.yaml"

# The threshold in the OCFL authors' code, which passes similarities as distances. Section 4.2 of
# the extended paper gives the range searched, 0.05 to 0.4
BRIGGS_THRESHOLD = 0.05

BUFFERS = (
    "updates include BatchNorm's statistics and batch counters beside the parameters",
    "state after minus state before; the papers speak of parameters",
)
EQUAL_WEIGHTS = (
    "all clients have equal weights in an average, whatever their number of samples",
    "as in OCFL's own Algorithm 1; this method's authors weight by samples",
)
SWITCHES = (
    base.Switch(
        *("affinity", "wrong_sign", True, False),
        "affinity propagation, which takes similarities, is given distances",
        "OCFL with affinity propagation",
    ),
    base.Switch(
        *("briggs", "wrong_sign", True, False),
        "agglomerative clustering, which takes distances, is given cosine similarities",
        "Briggs et al.'s method",
        alongside={"threshold": BRIGGS_THRESHOLD},
    ),
    base.Switch("ocfl", "include_buffers", True, False, *BUFFERS),
    base.Switch("sattler", "include_buffers", True, False, *BUFFERS),
    base.Switch("briggs", "include_buffers", True, False, *BUFFERS),
    base.Switch(
        *("hdbscan", "noise", "own cluster", "nearest"),
        "clients that HDBSCAN leaves out as noise train together as one more cluster",
        "labels in sorted order, −1 first; not in the papers; the intended value is ours",
    ),
    base.Switch(
        *("hdbscan", "implementation", "scikit-learn", "hdbscan"),
        "HDBSCAN is scikit-learn's, which counts a client among its own neighbours",
        "OCFL with HDBSCAN; the two packages agree where clusters are clear",
    ),
    base.Switch(
        *("ocfl", "strict", False, True),
        "the trigger also fires where the temperature stays equal",
        "Algorithm 1 (the first paper's line 18, the extended one's 20): ≥; the code: >",
        by="text",
    ),
    base.Switch(
        *("ocfl", "before", float("-inf"), float("inf")),
        "any first temperature exceeds the one before it, so that round 1 clusters",
        "first paper, Algorithm 1; the extended paper (line 6) and the code: +∞",
        by="text",
    ),
    base.Switch(
        *("sattler", "linkage", "single", "complete"),
        "halves with the smallest largest similarity across; the codes only approximate them",
        "Sattler et al., Algorithm 1",
        by="text",
    ),
    base.Switch("fedavg", "weighting", "equal", "samples", *EQUAL_WEIGHTS),
    base.Switch("briggs", "weighting", "equal", "samples", *EQUAL_WEIGHTS),
)

# --- A run ---------------------------------------------------------------------------------------


def data(run: FederatedRun) -> tuple[base.ImageSet, base.Partition]:
    """Load the images and give each cluster of clients its classes."""
    from cflkit import datasets, partition

    dealt = run.model_dump(include={"overlap", "balance", "clients", "draws"})
    images, split = partition.ocfl(datasets.load(run.dataset), seed=run.partition_seed, **dealt)
    if isinstance(run, Parameters):
        if run.validation:
            split = partition.with_validation(split, run.validation, run.partition_seed)
        split = partition.unequal(split, run.sizes, run.partition_seed)
    return images, split


def federation(run: FederatedRun, images: base.ImageSet, split: base.Partition) -> base.Federation:
    """Build the federation of clients."""
    from cflkit.federation import Federation

    engine, perturbation = (getattr(run, name, None) for name in ("engine", "perturbation"))
    usual = Federation(images, split, run.model, run.training(), seed=run.seed, engine=engine)
    if perturbation is None:
        return usual
    from cflkit.reproduce.perturbation import Perturbation

    return usual.with_hooks(Perturbation(perturbation))


def line_up(run: OCFLMethods, images: base.ImageSet, split: base.Partition) -> base.Methods:
    """Make the methods of the papers' tables and figures, and two reference methods.

    There are two exceptions from twins "as published". The switch ``include_buffers`` is used only
    if the run asks for it, since it makes no difference without BatchNorm. What HDBSCAN leaves out
    as noise is one more cluster, as published, since no paper intends anything else.
    """
    equal = {"weighting": "equal"}
    cut = {"rounds": run.briggs_rounds, "threshold": run.briggs_threshold}
    intended: dict[str, base.Line] = {
        "FedAvg": ("fedavg", equal),
        "Sattler": ("sattler", sattlers_limits(run)),
        "Briggs": ("briggs", equal | cut),
        **{
            name: ("ocfl", {"clusterer": clusterer, "window": run.window})
            for name, clusterer in CLUSTERERS.items()
        },
        "oracle": ("oracle", {"truth": split.truth, **equal}),
        "local": ("local", {}),
    }
    asked = [s for s in SWITCHES if run.include_buffers or s.option != "include_buffers"]
    return base.both_ways(intended, asked)


def sattlers_limits(run: OCFLMethods) -> dict[str, Any]:
    """Return the options of Sattler's method that say when a cluster may be split."""
    eps1, eps2 = run.sattler_eps1, run.sattler_eps2
    return {"eps1": eps1, "eps2": eps2, "min_rounds": run.sattler_rounds}


def chosen(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Methods:
    """Make the methods of the `line_up` that the run asks for, with their twins as published.

    Sattler's method with the exact cut of its paper, EMD-CFL, and FedAvg with fine-tuning join them
    if the run names them. Clients have equal weights in these averages, too.
    """
    from cflkit import methods
    from cflkit.reproduce.distances import MeasuredEMDCFL

    lines = line_up(run, images, split)
    if run.only is not None:
        lines["Sattler-exact"] = methods.make("sattler", linkage="single", **sattlers_limits(run))
        lines["EMD-CFL"] = MeasuredEMDCFL(epsilon=run.epsilon, weighting="equal")
        lines["FedAvg-FT"] = methods.make("fedavg-ft", weighting="equal")
    return base.selected(lines, run.only)


# --- Protocols -----------------------------------------------------------------------------------

# The tables average over these rounds, also where a run has 80 (CIFAR-10) or 75 (MedMNIST)
TABLE_ROUNDS = 50
# The measures behind the tables' names, see `as_in_the_tables`
TABLE_MEASURES = {"RAND": "ari", "AMI": "ami", "COM": "homogeneity"}


def as_in_the_tables(rounds: base.Rows, name: str = "RAND") -> float:
    """Compute RAND, AMI or COM of a run by the protocol behind Table I and Table 1.

    They are means over rounds 1 to 50, including the rounds before clustering. A single cluster
    scores zero, so a method that clusters in round r gets at most (51 − r) / 50. If a run ended, or
    the method diverged, when the clusters were final, they count for the missing rounds, too.
    Otherwise the values are NaN if there are fewer rounds.

    - ``RAND``: the *adjusted* Rand index.
    - ``AMI``: adjusted mutual information. In the rows of OCFL-HDB, the tables have RAND again.
    - ``COM``: *homogeneity*. The authors call scikit-learn's completeness with its arguments
      swapped. The true completeness of a single cluster would be 1.

    From the authors' archived labels, these rules give every number of the extended paper's Table 1
    that can be read and checked; a golden test counts them.
    """
    count, final = until_divergence(rounds)
    if count == 0 or (count < TABLE_ROUNDS and final is None):
        return float("nan")
    # Rounds that are missing have the clusters of the last one
    places = np.arange(TABLE_ROUNDS).clip(max=count - 1)
    return float(base.column(rounds, TABLE_MEASURES[name])[places].mean())


def until_divergence(rounds: base.Rows) -> tuple[int, int | None]:
    """Return the number of rows before a method diverged, and where its clusters become final.

    The number is 0 if it diverged with clusters that were not final. The place is that of the first
    row with the final clusters; None if no clusters are final.
    """
    count = len(rounds["round"])
    diverged = "diverged" in rounds and (np.asarray(rounds["diverged"]) == np.True_).any()
    count -= int(diverged)  # it does so in the last row
    settled = (np.asarray(rounds["settled"]) == np.True_)[:count]
    if count and settled[-1]:
        return count, int(settled.argmax())
    return 0 if diverged else count, None


def round_as_in_the_tables(rounds: base.Rows) -> float | None:
    """Find the round (from 1) in which a method clustered, by the extended paper's Table 2.

    For a method that clusters once, by a temperature or a dendrogram, it is the first round after
    which the clusters are final, even if there is a single one. For other methods, it is the last
    round that changed the clusters, since the table has Sattler's last split. It is None if there
    is no such round, and NaN if the method diverged before its clusters were final.
    """
    count, final = until_divergence(rounds)
    if count == 0:
        return float("nan")
    numbers, clusters = (np.asarray(rounds[name])[:count] for name in ("round", "clusters"))
    if final is not None:
        return int(numbers[final])
    changed = np.flatnonzero(clusters[1:] != clusters[:-1])
    return int(numbers[changed[-1] + 1]) if len(changed) else None


def table_measure(name: str) -> base.Protocol:
    """Build the protocol of a measure with this name in Table I and Table 1."""
    return base.Protocol(lambda rounds: as_in_the_tables(rounds, name), base.SCORES, True)


PROTOCOLS = {
    **{f"mean-50-{measure}": table_measure(name) for name, measure in TABLE_MEASURES.items()},
    "clustering-round": base.Protocol(round_as_in_the_tables, base.ROUNDS),
    # Figure 2 of both papers averages over all rounds. The authors' code measures GF1 before the
    # aggregation, so its last value is that of the last round but one; its first value, of the
    # initial model, is left out
    "mean-pf1": base.mean_of_all("pf1", base.SCORES),
    "mean-gf1-before-last": base.mean_of_all("gf1", base.SCORES, slice(None, -1)),
}

# --- The papers ----------------------------------------------------------------------------------

# FedAvg's temperature is what the trigger would see if OCFL went on looking
play = partial(base.play_rounds, temperature_of=["FedAvg"])
PAPERS = tuple(
    base.Paper(
        name=name,
        notebook="03b_ocfl_controls",
        parameters=Parameters,
        scenario=SCENARIO,
        file=FILE,
        methods={"BNC": "FedAvg", **METHODS},
        protocols=PROTOCOLS,
        data=data,
        federation=federation,
        line_up=chosen,
        play=play,
        free=base.FREE | {"central_every"},
        wrong_sign=WRONG_SIGN,
        # The round in which Briggs' method clusters is a parameter
        fixed=({"method": "BCL", "protocol": "clustering-round"},),
    )
    for name in ("ocfl", "ocfl-extended")
)
