"""EMD-CFL: clustered federated learning via embedding distributions.

D. Zhang, F. Toni, M. Williams, arXiv 2506.07769, and their code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from cflkit import _bounds as bounds
from cflkit.reproduce.papers import base
from cflkit.reproduce.papers.ocfl import CLUSTERERS
from cflkit.reproduce.parameters import Images, Seed, Selection, Sizes, Training, known_name

# --- The line-up ---------------------------------------------------------------------------------

# By our names, a method in `methods.make` and its options. An option that is a function is computed
# from the parameters and the partition. A run has these four, or those that it names
METHODS: dict[str, base.Line] = {
    "EMD-CFL": ("emd-cfl-variant", {}),  # with the parameters of the run
    "Oracle": ("emd-cfl-oracle", {"truth": lambda run, split: split.truth}),
    "FedAvg": ("fedavg", {}),
    "FedProx": ("fedprox", {"mu": lambda run, split: run.mu}),
}
SAMPLES: dict[str, Any] = {"weighting": "samples"}  # as in all averages of EMD-CFL's comparison
TOLD_K: dict[str, Any] = {"k": lambda run, split: run.k or len(np.unique(split.truth))}
ANGLE: dict[str, Any] = {"angle": lambda run, split: run.pacfl_angle or thresholds(run)[0]}
DISTANCE: dict[str, Any] = {
    "threshold": lambda run, split: run.fedclust_distance or thresholds(run)[1]
}
# Baselines of the paper's tables that find clusters
BASELINES: dict[str, base.Line] = {
    "CFL": ("sattler", {"eps1": 0.4, "eps2": 1.6}),
    "IFCA": ("ifca", TOLD_K | SAMPLES),
    "PACFL": ("pacfl", ANGLE | SAMPLES),
    "FedClust": ("fedclust", DISTANCE | SAMPLES),
    "FlexCFL": ("flexcfl", TOLD_K | {"weighting": "authors"}),
    "FeSEM": ("fesem", TOLD_K | SAMPLES),
    "CFLGP": ("cfl-gp", TOLD_K | SAMPLES),
}
# Its baselines that find no clusters of clients
SOFT: dict[str, base.Line] = {
    "FedEM": ("fedem", TOLD_K),
    "FedSoft": ("fedsoft", TOLD_K),
    "FedRC": ("fedrc", TOLD_K),
    "FedCE": ("fedce", TOLD_K),
    "pFedGraph": ("pfedgraph", {}),
    "FedSaC": ("fedsac", {}),
}
# Methods that it does not compare. Briggs clusters in the second round, like OCFL at the earliest.
# `OCFL-HDB again` finds its clusters anew after three rounds
OTHERS: dict[str, base.Line] = {
    "Briggs": ("briggs", {"rounds": 1, "threshold": 0.5, **SAMPLES}),
    **{name: ("ocfl-open", {"clusterer": clusterer}) for name, clusterer in CLUSTERERS.items()},
    "OCFL-HDB again": ("ocfl-open", {"clusterer": CLUSTERERS["OCFL-HDB"], "again": 3}),
    "Local": ("local", {}),
}
NO_CLUSTERS: dict[str, base.Line] = {"SCAFFOLD": ("scaffold", {}), "Ditto": ("ditto", {})}
LINE_UP = METHODS | BASELINES | OTHERS | SOFT | NO_CLUSTERS

# The thresholds of PACFL (degrees) and FedClust (units of the parameters), from appendix D.3
THRESHOLDS = {"mnist": (12.0, 5.0), "cifar10": (12.0, 45.0), "pacs": (11.0, 8.0)}
BACKDOOR_THRESHOLDS = {"mnist": (2.5, 4.0), "cifar10": (10.5, 28.0)}


def versions() -> Collection[str]:
    """Return the names that `shifts.make` knows."""
    from cflkit.partition import shifts

    return shifts.VERSIONS


class Parameters(Training, Images, Selection):
    """Parameters of ``05b_emd_cfl_controls``."""

    folder: ClassVar[str] = "emd-cfl"
    line_up: ClassVar[Collection[str]] = LINE_UP

    version: Annotated[str, known_name("version", versions)]
    clients: Annotated[int, Field(ge=2, le=bounds.MOST)] | None
    samples: Annotated[int, Field(ge=20, le=bounds.MOST)] | None
    published_split: bool
    partition_seed: Seed
    weights: Literal["imagenet"] | None
    participants: bounds.Count | None
    epsilon: bounds.NonNegative
    projection: bounds.PositiveShare
    sinkhorn: Annotated[bounds.Positive, Field(ge=0.01)] | None  # with less, it may not converge
    embedded: bounds.Sample
    clusters: bounds.Clusters
    train_mode: bool
    mu: bounds.NonNegative
    range_epochs: list[bounds.Count] = Field(default=[])
    repeats: bounds.Repeats = 1
    k: bounds.Count | None = None
    pacfl_angle: bounds.Angle | None = None
    fedclust_distance: bounds.Positive | None = None
    compared: list[str] | None = Field(default=[])
    scene: Literal["none", "join", "random", "late group", "drift"] = "none"
    change: bounds.Natural = 0
    published_distances: bool = False
    sizes: Sizes | None = None

    @model_validator(mode="after")
    def change_within_the_rounds(self) -> Self:
        """Refuse a change that is not between the first round and the last one."""
        if self.scene in ("none", "random") and self.change:
            raise ValueError(f"change must be 0 with the scene {self.scene!r}")
        if self.scene not in ("none", "random") and not 0 < self.change < self.rounds:
            limits = f"at least 1 and less than rounds = {self.rounds}"
            raise ValueError(f"change must be {limits} with the scene {self.scene!r}")
        if self.scene != "none" and self.participants is not None:
            raise ValueError("participants must be None with a scene, which says who is there")
        if self.scene != "none" and self.until != "rounds":
            raise ValueError("until must be 'rounds' with a scene, since clusters change later")
        return self

    @property
    def scenario(self) -> str:
        """Return the scenario's part of a record's name."""
        clients = f"-m{self.clients}" if self.clients else ""
        scene = "" if self.scene == "none" else f"-{self.scene.replace(' ', '-')}"
        return f"{self.data_name}-{self.version}{clients}{scene}"


# A switch whose published value is in the code of the comparison
theirs = partial(base.Switch, source="EMD-CFL: code of the comparison")
# What the comparison's code does that a run plays only if it asks for it (`published_distances`):
# EMD-CFL's distances cost as much again, and most committed runs are older than the other options
ON_REQUEST = (
    base.Switch(
        *("emd-cfl-variant", "train_mode", True, False),
        "embeddings with the network in training mode: batch statistics, dropout",
        "EMD-CFL: evaluation leaves the copied network in training mode",
    ),
    base.Switch(
        *("emd-cfl-variant", "draws", "per distance", "per client"),
        "each distance has its own samples and projection, also the reference",
        "EMD-CFL: one function computes all distances",
    ),
    theirs("fedprox", "squared", False, True, "the norm of each tensor's step, not squared"),
    theirs("fesem", "squared", False, True, "the norm of each tensor's step, not squared"),
    theirs("fesem", "received", True, False, "the means are one training behind"),
    theirs("pfedgraph", "in_turn", True, False, "later clients mix models mixed already"),
    theirs("fedsac", "in_turn", True, False, "later clients mix models mixed already"),
)
# What pFedGraph and FedSaC have in common
OF_GRAPHS = (
    ("anchor", "own", "neighbours", "the cosine term has the received model"),
    ("since", "received", "initial", "updates are those of the last round alone"),
    ("clipped", False, True, "a cosine above 0.9 does not count as 1"),
    ("include_buffers", True, False, "updates contain BatchNorm's buffers"),
)
LAST_COMPONENT = "a client predicts with its own last component, without the mixture"
# Baselines that the comparison's code runs otherwise than their own authors
OF_BASELINES = (
    theirs("sattler", "min_rounds", 1, 20, "splits are allowed from the second round on"),
    theirs("sattler", "include_buffers", True, False, "updates contain BatchNorm's buffers"),
    theirs(
        "sattler", "weighting", "samples", "equal", "averages are weighted by numbers of samples"
    ),
    theirs("ifca", "chosen_by", "validation", "train", "clients choose by their validation loss"),
    theirs("pacfl", "split", "validation", "train", "directions of the validation images"),
    theirs("pacfl", "standardised", True, False, "directions of standardised pixels"),
    theirs("pacfl", "signed", True, False, "angles depend on the arbitrary signs of vectors"),
    theirs("fedclust", "compared", "state", "last layer", "whole states, and not the last layer"),
    theirs("fedclust", "stops", True, False, "no training after the first round"),
    theirs("flexcfl", "mixing", 5.0, 0.1, "the rate of the exchange between groups"),
    theirs("flexcfl", "divided", False, True, "the exchange is not divided by the total weight"),
    theirs("flexcfl", "include_buffers", True, False, "updates and exchange contain buffers"),
    theirs("fesem", "zeros_first", True, False, "k-means of equal models, before any training"),
    theirs("cfl-gp", "report", "own update", "gradient", "clients report their own model's update"),
    theirs("cfl-gp", "period", 1, 2, "clients report in every round, not in every second round"),
    theirs("cfl-gp", "include_buffers", True, False, "updates contain BatchNorm's buffers"),
    theirs("fedem", "predicts", "last component", "mixture", LAST_COMPONENT),
    theirs("fedrc", "predicts", "last component", "mixture", LAST_COMPONENT),
    theirs("fedsoft", "mu", 0.0, 0.1, "no pull to the centres"),
    theirs("fedsoft", "interval", 1, 2, "weights are estimated in every round"),
    theirs("fedsoft", "split", "validation", "train", "weights by the validation loss"),
    theirs(
        "fedsoft", "counted", "batches", "samples", "a batch as a whole is assigned to a centre"
    ),
    theirs("fedsoft", "start", "mixture", "own", "local training begins at the mixture of centres"),
    theirs("fedsoft", "smoother", 1e-3, 1e-4, "the smallest weight is 0.001 (theirs: one sample)"),
    theirs("fedce", "split", "validation", "train", "associations by the validation loss"),
    theirs("fedce", "counted", "prefixes", "best", "a model that is best so far gains 1, too"),
    *(theirs("pfedgraph", *switch) for switch in OF_GRAPHS),
    *(theirs("fedsac", *switch) for switch in OF_GRAPHS),
    theirs("fedsac", "mu", 1.0, 0.01, "a strong cosine term"),
    theirs("fedsac", "signed", True, False, "opposite feature axes count as distant"),
)


# --- A run ---------------------------------------------------------------------------------------


def data(run: Parameters) -> tuple[base.ImageSet, base.Partition]:
    """Load the images, shift a copy for each group, and split it among the group's clients."""
    from cflkit import datasets
    from cflkit.partition import shifts, unequal

    seed, published = run.partition_seed, run.published_split
    dealt = run.model_dump(include={"version", "clients", "samples"})
    images, split = shifts.make(datasets.load(run.dataset), published=published, seed=seed, **dealt)
    return images, unequal(split, run.sizes, seed)


def federation(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Federation:
    """Build the federation of clients, who come and go as the run's scene says."""
    from cflkit.federation import Federation
    from cflkit.partition import changes

    presence = changes.presence(run.scene, split.truth, run.rounds, run.change, run.partition_seed)
    model = run.model if run.weights is None else f"{run.model}-{run.weights}"
    options: dict[str, Any] = {"seed": run.seed, "clients_per_round": run.participants}
    everyone = Federation(images, split, model, run.training(), **options)
    return everyone.with_presence(presence)


def play(
    run: Parameters,
    home: base.Federation,
    lines: Mapping[str, base.Method],
    rounds: int,
    checkpoint: Path | None = None,
    **options: Any,
) -> base.History:
    """Run the methods, as `base.play_rounds` does. In the scene ``drift``, two clients change.

    They exchange their data after ``run.change`` rounds, and the oracle is told so. A checkpoint
    has only the rounds before.
    """
    options = {"temperature_of": lines.keys() & {"FedAvg", "FedProx"}} | options
    if run.scene != "drift" or rounds <= run.change:
        return base.play_rounds(run, home, lines, rounds, checkpoint, **options)
    import torch

    from cflkit import simulation
    from cflkit.methods.baselines.oracle import Oracle
    from cflkit.partition import changes

    history = base.play_rounds(run, home, lines, run.change, checkpoint, **options)
    images, split = data(run)
    clients = list(range(split.clients))
    first, second = changes.affected("drift", split.truth)
    clients[first], clients[second] = second, first
    moved = split.take(clients)
    for method in lines.values():
        if isinstance(method, Oracle):
            method.labels = torch.from_numpy(moved.clusters)
    return simulation.run(lines, federation(run, images, moved), rounds, after=history, **options)


def line_up(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Methods:
    """Make EMD-CFL and the three methods beside it, or those that the run names.

    A method has a twin as published if options make what the comparison's code does (report 95
    lists what has no option). Those in `ON_REQUEST` count if ``run.published_distances`` says so.
    The twins of PACFL and FedClust have the paper's thresholds.
    """
    from cflkit.reproduce.distances import MeasuredEMDCFL

    lines = {
        name: (where, {n: v(run, split) if callable(v) else v for n, v in options.items()})
        for name, (where, options) in LINE_UP.items()
    }
    names = {"epsilon", "projection", "sinkhorn", "clusters", "train_mode"}
    lines["EMD-CFL"][1].update(run.model_dump(include=names), max_samples=run.embedded)
    if run.scene != "none":
        # Where clients come later, the oracle knows all clusters from the first round
        lines["Oracle"] = "oracle", {"truth": split.truth}
    angle, distance = thresholds(run)
    switches = (
        *OF_BASELINES,
        *(ON_REQUEST if run.published_distances else ()),
        base.Switch("pacfl", "angle", angle, None, "the paper's threshold", "appendix D.3"),
        base.Switch("fedclust", "threshold", distance, None, "the same", "appendix D.3"),
    )
    made = base.both_ways(lines, switches, {"emd-cfl-variant": MeasuredEMDCFL})
    return base.selected(made, tuple(METHODS) if run.only is None else run.only)


def thresholds(run: Parameters) -> tuple[float, float]:
    """Return the paper's thresholds for the run's data, or those of MNIST for data of no table."""
    known = BACKDOOR_THRESHOLDS if run.version == "backdoor" else THRESHOLDS
    return known.get(run.dataset.split("-")[0], known["mnist"])


# --- What records say ----------------------------------------------------------------------------


def working_range(scores: NDArray[np.float64], clusters: ArrayLike) -> tuple[float, float]:
    """Compute between which values ε finds exactly the true clusters ``[m]``.

    Returned are the largest score (of ``[m, m]``) within a true cluster and the smallest between
    two (2 if there is one cluster, the largest cosine distance), each the larger of the pair's two
    directions. Each ε above the first and up to the second finds the true clusters, by either rule.
    The scores may also be distances of other methods, in their own units.
    """
    truth = np.asarray(clusters)
    pair = np.maximum(scores, scores.T)
    same = truth[:, None] == truth[None]
    between = pair[~same]
    return float(pair[same].max()), float(between.min()) if len(between) else 2.0


# --- The paper -----------------------------------------------------------------------------------

OF_CIFAR = "ε = 0.1 stands in the authors' configuration for CIFAR-10 and ResNet18"
PAPERS = (
    base.Paper(
        name="emd-cfl",
        notebook="05b_emd_cfl_controls",
        parameters=Parameters,
        scenario={"dataset": str, "version": str, "participants": int},
        file="{dataset}_{version}.yaml",
        methods={name: name for name in (*METHODS, *BASELINES, *SOFT)},
        protocols={
            "last-accuracy": base.at(-1, "accuracy", base.PERCENT, 100),
            "last-worst-accuracy": base.at(-1, "worst_accuracy", base.PERCENT, 100),
            "last-clean-accuracy": base.at(-1, "clean_accuracy", base.PERCENT, 100),
            "last-backdoor-accuracy": base.at(-1, "backdoor_accuracy", base.PERCENT, 100),
            "last-ari": base.at(-1, "ari", base.SCORES),
            **{
                f"{name}-{pairs}": base.at(0, f"{name.replace('-', '_')}_{pairs}", base.SCORES)
                for name in ("linear-layers", "parameters")
                for pairs in ("within", "overall")
            },
        },
        data=data,
        federation=federation,
        line_up=line_up,
        play=play,
        whole_only=frozenset({"participants"}),
        concerns={"epsilon": frozenset({"EMD-CFL"})},
        free=base.FREE | {"published_distances"},
        one_group=({"version": "min"}, {"version": "base"}),
        # The comparison tuned two of them for its own versions of these methods
        borrowed={
            "EMD-CFL": OF_CIFAR,
            "EMD-CFL as published": OF_CIFAR,
            "PACFL": "β was tuned for standardised validation pixels",
            "FedClust": "λ was tuned for distances of whole models",
        },
        # An oracle knows the clusters
        fixed=({"method": "Oracle", "measure": "ari", "value": 1.0},),
    ),
)
