"""FedCRef: federated cluster-wise refinement.

M. Nardi, L. Valerio, A. Passarella, Federated clustering: an unsupervised cluster-wise training for
decentralized data distributions, arXiv 2408.10664, and their code. The paper's choices and those of
its code are options of the one class, `methods.fedcref.FedCRef`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from cflkit import datasets, metrics, partition
from cflkit.datasets import ImageSet
from cflkit.federation import Federation, LocalTraining
from cflkit.methods.fedcref import FedCRef
from cflkit.papers.base import (
    CLUSTERS,
    MINUTES,
    PERCENT,
    SCORES,
    SEEDS,
    Column,
    Paper,
    Protocol,
    Results,
    Runs,
    at,
    given,
    mean,
)
from cflkit.parameters import Count, Images, Positive, Seed, Share
from cflkit.partition import Partition
from cflkit.sample_clustering import DEC


class Parameters(Images):
    """Parameters of ``06_fedcref``."""

    folder: ClassVar[str] = "fedcref"

    clients: Count
    samples: Count
    at_least: Annotated[int, Field(ge=0)]
    unique: bool
    overlap_fraction: Share
    partition_seed: Seed
    clustering: Literal["dirty-uniform", "k-means", "dec"]
    dirtiness: Share
    dec_widths: list[Count]
    dec_steps: Count
    alpha: Annotated[float, Field(gt=0, le=100)]
    theta: Share
    tau: Annotated[float, Field(gt=0, le=1)]
    normalisation: Literal["min-max", "absolute"]
    match: Literal["all", "first", "best"]
    stop: Literal["paper", "code"]
    lr: Positive
    batch_size: Count
    local_epochs: Count
    federated_epochs: Count
    rounds: Count
    iterations: Count
    seed: Seed

    @model_validator(mode="after")
    def dirt_is_simulated(self) -> Self:
        """Only the simulated clustering knows how wrong it is."""
        if self.dirtiness and self.clustering != "dirty-uniform":
            raise ValueError(f"dirtiness must be 0 for {self.clustering}")
        return self

    @property
    def scenario(self) -> str:
        """For the names of records."""
        start = (
            f"dirty{self.dirtiness:g}" if self.clustering == "dirty-uniform" else self.clustering
        )
        return f"{self.dataset}-{start}-overlap{self.overlap_fraction:g}-m{self.clients}"

    def training(self, epochs: int) -> LocalTraining:
        """How autoencoders train."""
        return LocalTraining(epochs, self.batch_size, optimizer="adam", lr=self.lr)

    def dec(self) -> DEC:
        """The clusterer of this name."""
        return DEC(tuple(self.dec_widths), self.dec_steps, 2 * self.dec_steps)

    def options(self) -> FedCRef:
        """Those of the method."""
        chosen = self.model_dump(
            include={"alpha", "theta", "tau", "normalisation", "match", "stop", "rounds"}
        )
        return FedCRef(
            local=self.training(self.local_epochs),
            federated=self.training(self.federated_epochs),
            **chosen,
        )


SCENARIO = {
    "dataset": str,
    "clustering": str,
    "dirtiness": float,
    "overlap_fraction": float,
    "clients": int,
}


def data(run: Parameters) -> tuple[ImageSet, Partition]:
    """Load the images and give each client some of a few classes."""
    images = datasets.load(run.dataset)
    split = partition.class_mixtures(
        images.labels,
        dataset=images.name,
        clients=run.clients,
        samples=run.samples,
        at_least=run.at_least,
        unique=run.unique,
        overlap=run.overlap_fraction,
        seed=run.partition_seed,
    )
    return images, split


def federation(run: Parameters, images: ImageSet, split: Partition) -> Federation:
    """Build the clients, whose small networks all train as one stack."""
    return Federation(
        images, split, "autoencoder", task="reconstruction", engine="stacked", seed=run.seed
    )


def line_up(run: Parameters, truth: ArrayLike) -> dict[str, FedCRef]:
    """Make FedCRef; its upper bound, to which the associations are given; and without any (ours).

    The last says what of the gain is the federation's: its clients refine with their own networks,
    for three iterations at most, since its graph never changes. The true clusters of clients
    (``truth``) say nothing here: it is samples that are clustered.
    """
    options = run.options()
    return {
        "FedCRef": options,
        "Perfect associations": replace(options, associations="true"),
        "Alone": replace(options, associations="none"),
    }


def centralised(truth: ArrayLike, labels: ArrayLike) -> dict[str, Any]:
    """A row of `refinement.Refinement`, without the method, if all samples lay in one place.

    As of one client, which associates nothing: its clusters are all there is (Table 2).
    """
    accuracy = metrics.clustering_accuracy(truth, labels)
    return {
        "round": 0,
        "communities": len(np.unique(labels)),
        "isolated": 0,
        "wrong": 0.0,
        "accuracy": accuracy,
        "worst_accuracy": accuracy,
        "active": 0,
        **dict.fromkeys(("owners", "classes", "edges"), ""),
    }


def percent_gained(rounds: pd.DataFrame) -> float:
    """How much a clustering's accuracy grew, in per cent of what it was."""
    first, last = rounds["accuracy"].iloc[0], rounds["accuracy"].iloc[-1]
    return float(100 * (last - first) / first)


def start(runs: Runs) -> str:
    """How clients clustered at first."""
    of = runs.parameters
    simulated = of["clustering"] == "dirty-uniform"
    return f"{of['dirtiness']:g}" if simulated else str(of["clustering"])


PAPERS = (
    Paper(
        name="fedcref",
        notebook="06_fedcref",
        parameters=Parameters,
        scenario=SCENARIO,
        file="{dataset}.yaml",
        methods={name: name for name in ("FedCRef", "Perfect associations", "Global DEC")},
        protocols={
            "first-clustering-accuracy": at(0, "accuracy", SCORES),
            "last-clustering-accuracy": at(-1, "accuracy", SCORES),
            "clustering-improvement": Protocol(percent_gained, PERCENT),
            "last-communities": at(-1, "communities", CLUSTERS),
            "last-wrong-associations": at(-1, "wrong", PERCENT, 100),
            "first-isolated": at(0, "isolated", CLUSTERS),
            "last-isolated": at(-1, "isolated", CLUSTERS),
        },
        data=data,
        federation=federation,
        line_up=line_up,
        results=Results(
            "fedcref-results",
            (
                given("data", "dataset"),
                given("clients", "clients"),
                Column("dirtiness", start),
                Column("overlap", lambda runs: f"{runs.parameters['overlap_fraction']:g}"),
                SEEDS,
                mean("ACC at the start", "FedCRef", "accuracy_start"),
                *(
                    mean(name, name, "accuracy", digits=3)
                    for name in ("FedCRef", "Perfect associations", "Alone")
                ),
                mean("communities", "FedCRef", "communities", digits=1),
                mean("isolated", "FedCRef", "isolated", digits=1),
                mean("wrong, %", "FedCRef", "wrong", digits=1, factor=100),
                MINUTES,
            ),
            scales=("reduced",),
        ),
    ),
)
