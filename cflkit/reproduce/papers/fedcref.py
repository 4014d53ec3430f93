"""FedCRef: federated cluster-wise refinement.

M. Nardi, L. Valerio, A. Passarella, Federated clustering: an unsupervised cluster-wise training for
decentralized data distributions, arXiv 2408.10664, and their code. Where the paper and its code
differ, the class `methods.fedcref.FedCRef` has both choices as options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from cflkit import _bounds as bounds
from cflkit.reproduce.papers import base
from cflkit.reproduce.parameters import Images, Seed

if TYPE_CHECKING:
    from cflkit.federation import LocalTraining
    from cflkit.methods.fedcref import FedCRef
    from cflkit.methods.sample_clustering import DEC


class Parameters(Images):
    """Parameters of ``06b_fedcref_controls``."""

    folder: ClassVar[str] = "fedcref"

    clients: Annotated[int, Field(ge=2, le=bounds.MOST)]  # one client has nobody to compare with
    samples: bounds.Count
    at_least: bounds.Natural
    unique: bool
    overlap_fraction: bounds.Share
    partition_seed: Seed
    clustering: Literal["dirty-uniform", "k-means", "dec"]
    dirtiness: bounds.Share
    dec_widths: list[bounds.Count]
    dec_steps: bounds.Count
    alpha: bounds.Percent
    theta: bounds.Share
    tau: bounds.PositiveShare
    normalisation: bounds.Normalisation
    match: bounds.Match
    stop: bounds.Stop
    lr: bounds.Positive
    batch_size: bounds.Count
    local_epochs: bounds.Count
    federated_epochs: bounds.Count
    rounds: bounds.Count
    iterations: bounds.Count
    seed: Seed

    @model_validator(mode="after")
    def dirt_is_simulated(self) -> Self:
        """Refuse a dirtiness for clusterings that are not simulated."""
        if self.dirtiness and self.clustering != "dirty-uniform":
            raise ValueError(f"dirtiness must be 0 for {self.clustering}")
        return self

    @property
    def scenario(self) -> str:
        """Return the scenario's part of a record's name."""
        simulated = self.clustering == "dirty-uniform"
        start = f"dirty{self.dirtiness:g}" if simulated else self.clustering
        return f"{self.data_name}-{start}-overlap{self.overlap_fraction:g}-m{self.clients}"

    def training(self, epochs: int) -> LocalTraining:
        """Build the local training of autoencoders for a number of epochs."""
        from cflkit.federation import LocalTraining

        return LocalTraining(epochs, self.batch_size, optimizer="adam", lr=self.lr)

    def dec(self) -> DEC:
        """Build deep embedded clustering with the parameters' options."""
        from cflkit.methods.sample_clustering import DEC

        return DEC(tuple(self.dec_widths), self.dec_steps, 2 * self.dec_steps)

    def method(self, start: Sequence[Any], name: str = "FedCRefVariant", **more: Any) -> FedCRef:
        """Make the method, or another class of `fedcref_variants`, that begins with clusters."""
        from cflkit.methods import fedcref_variants

        names = {"alpha", "theta", "tau", "normalisation", "match", "stop", "rounds"}
        method: FedCRef = getattr(fedcref_variants, name)(
            start=start,
            local=self.training(self.local_epochs),
            federated=self.training(self.federated_epochs),
            **self.model_dump(include=names) | more,
        )
        return method


SCENARIO = {
    "dataset": str,
    "clustering": str,
    "dirtiness": float,
    "overlap_fraction": float,
    "clients": int,
}
VARIANTS = ("FedCRef", "Perfect associations", "Alone")


def data(run: Parameters) -> tuple[base.ImageSet, base.Partition]:
    """Load the images and give each client samples of a few classes."""
    from cflkit import datasets, partition

    return partition.class_mixtures(
        datasets.load(run.dataset),
        samples_per_class=run.samples,
        overlap=run.overlap_fraction,
        seed=run.partition_seed,
        **run.model_dump(include={"clients", "at_least", "unique"}),
    )


def federation(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Federation:
    """Build the federation, which trains all clients' small networks as one stack."""
    from cflkit.federation import Federation

    return Federation(images, split, "autoencoder", engine="stacked", seed=run.seed)


def variants(run: Parameters, start: Sequence[Any], truth: Sequence[Any]) -> base.Methods:
    """Make FedCRef, its upper bound, and a variant without associations.

    The upper bound is given the true associations. The variant without associations is ours, and
    shows how much of the gain is due to the federation: its clients refine with their own networks,
    for three iterations at most, since its graph never changes. ``start`` and ``truth`` have the
    initial local cluster and the class of each sample, one sequence per client.
    """
    perfect = run.method(start, "PerfectAssociations", truth=truth)
    made = run.method(start), perfect, run.method(start, "Alone")
    return dict(zip(VARIANTS, made, strict=True))


def line_up(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Methods:
    """Make the `variants` that begin with the initial clusters of the parameters."""
    from cflkit.methods.sample_clustering import first_clusters

    options: dict[str, Any] = {"dirtiness": run.dirtiness, "dec": run.dec(), "seed": run.seed}
    truth = [images.labels[indices].numpy() for indices in split.train]
    return variants(run, first_clusters(run.clustering, images, split, **options), truth)


def percent_gained(rows: base.Rows) -> float:
    """Compute by how many per cent the accuracy of a clustering increased."""
    accuracy = base.column(rows, "accuracy")
    return float(100 * (accuracy[-1] - accuracy[0]) / accuracy[0])


PAPERS = (
    base.Paper(
        name="fedcref",
        notebook="06b_fedcref_controls",
        parameters=Parameters,
        scenario=SCENARIO,
        file="{dataset}.yaml",
        methods={name: name for name in ("FedCRef", "Perfect associations", "Global DEC")},
        protocols={
            "first-clustering-accuracy": base.at(0, "accuracy", base.SCORES),
            "last-clustering-accuracy": base.at(-1, "accuracy", base.SCORES),
            "clustering-improvement": base.Protocol(percent_gained, base.PERCENT),
            "last-communities": base.at(-1, "communities", base.CLUSTERS),
            "last-wrong-associations": base.at(-1, "wrong", base.PERCENT, 100),
            "first-isolated": base.at(0, "isolated", base.CLUSTERS),
            "last-isolated": base.at(-1, "isolated", base.CLUSTERS),
        },
        # Simulated dirt moves a given share of the images, so this accuracy is one minus the share
        fixed=({"protocol": "first-clustering-accuracy", "clustering": "dirty-uniform"},),
        data=data,
        federation=federation,
        line_up=line_up,
        rounds=lambda run: int(run.iterations),
    ),
)
