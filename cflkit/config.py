"""Validated parameters: one pydantic model for each notebook.

A notebook's parameters cell holds literals; the cell after it takes them into its model here, which
refuses wrong types and values out of bounds. `python -m cflkit run` checks with the same model
before a kernel starts, and unknown names too, which papermill ignores: it runs on with the
defaults.
"""

from __future__ import annotations

from string import Formatter
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cflkit import datasets, models, shifts
from cflkit.explain import Assessment, spatial_layer
from cflkit.federation import LocalTraining
from cflkit.methods.fedcref import FedCRef
from cflkit.sample_clustering import DEC


class ParameterError(Exception):
    """Parameters that a notebook cannot run with; the message is one line."""


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Overlap = Literal["nonoverlapping", "overlapping"]
Balance = Literal["balanced", "imbalanced"]


class Parameters(BaseModel):
    """What every notebook's parameters share: strict types, no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, namespace: dict) -> Self:
        """Take this model's fields out of a notebook's ``globals()`` and validate them.

        Raises
        ------
        ParameterError
            A name is missing, or a value has the wrong type or lies out of bounds.
        """
        return cls.checked(
            {name: namespace[name] for name in cls.model_fields if name in namespace}
        )

    @classmethod
    def checked(cls, values: dict) -> Self:
        """Validate ``values``; pydantic's report becomes one line."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise ParameterError(
                "; ".join(
                    f"{'.'.join(map(str, e['loc'])) or 'parameters'}: {e['msg']}"
                    + (f" (is {e['input']!r})" if e["loc"] else "")
                    for e in error.errors()
                )
            ) from error


class Images(Parameters):
    """Which images."""

    dataset: str

    @field_validator("dataset")
    @classmethod
    def known(cls, name: str) -> str:
        """A name that `datasets.load` knows."""
        if name not in datasets.names():
            raise ValueError(f"unknown data set; known are {', '.join(datasets.names())}")
        return name


class Scenario(Images):
    """Which images, which clients: classes make the clusters."""

    overlap: Overlap
    balance: Balance
    clients: Annotated[int, Field(ge=3)]
    draws: Annotated[int, Field(ge=4)] | None
    partition_seed: Seed

    @property
    def scenario(self) -> str:
        """For the names of records."""
        return f"{self.dataset}-{self.overlap}-{self.balance}-m{self.clients}"


class Splits(Scenario):
    """Parameters of ``02_when_clients_disagree``."""

    local_epochs: Count
    batch_size: Count
    lr: Positive
    rounds: Count
    seed: Seed


class Run(Images):
    """A training run: images, a model, how clients train, and for how long."""

    model: str
    optimizer: Literal["sgd", "adam"]
    lr: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]
    batch_size: Count
    local_epochs: Count
    rounds: Count
    seed: Seed
    # What came later than some records has a default here: what those were run with
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"

    @field_validator("model")
    @classmethod
    def known_model(cls, name: str) -> str:
        """A network that classifies, by a name that `models.make` knows."""
        known = [model for model in models.names() if model not in models.AUTOENCODERS]
        if name not in known:
            raise ValueError(f"unknown model; known are {', '.join(known)}")
        return name

    @model_validator(mode="after")
    def trainable(self) -> Self:
        """The local training must be one that the engine can do."""
        self.training()
        return self

    def training(self) -> LocalTraining:
        """What clients do in a round."""
        return LocalTraining(
            epochs=self.local_epochs,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


class FederatedRun(Run, Scenario):
    """A training run on clusters of classes; parameters of ``04_sattler_and_briggs``."""


class OCFLMethods(FederatedRun):
    """A training run of the OCFL papers' methods."""

    window: Count
    sattler_eps1: Positive | None
    sattler_eps2: Positive | None
    sattler_rounds: Annotated[int, Field(ge=0)]
    briggs_rounds: Annotated[int, Field(ge=0)]
    briggs_threshold: Annotated[float, Field(gt=0, le=2)]
    include_buffers: bool


class OCFLRun(OCFLMethods):
    """Parameters of ``03_ocfl_temperature``."""

    central_every: Count


class ExplanationRun(OCFLMethods):
    """Parameters of ``07_explaining_cluster_models``."""

    layer: str | None
    sample_size: Count
    step: Count
    baseline: Literal["zeros", "blur", "mean"]
    explained: Literal["predicted", "true"]

    @model_validator(mode="after")
    def layer_with_places(self) -> Self:
        """The layer must be one that GradCAM can look at; better known before anything trains."""
        if self.layer is None and self.model not in models.LAST_FEATURES:
            raise ValueError(f"which layer of {self.model} to explain is not known; name one")
        with torch.device("meta"):  # shapes alone
            network = models.make(self.model, (3, 32, 32), 10).eval()
            spatial_layer(network, torch.empty(1, 3, 32, 32), self.assessment().layer)
        return self

    def assessment(self) -> Assessment:
        """How models are explained."""
        return Assessment(
            layer=self.layer or models.LAST_FEATURES[self.model],
            sample_size=self.sample_size,
            step=self.step,
            baseline=self.baseline,
            explained=self.explained,
            seed=self.seed,
        )


class EMDRun(Run):
    """Parameters of ``05_emd_cfl``."""

    version: str
    clients: Annotated[int, Field(ge=2)] | None
    samples: Annotated[int, Field(ge=20)] | None
    published_split: bool
    partition_seed: Seed
    weights: Literal["imagenet"] | None
    participants: Count | None
    epsilon: Annotated[float, Field(ge=0)]
    projection: Annotated[float, Field(gt=0, le=1)]
    sinkhorn: Positive | None
    embedded: Annotated[int, Field(ge=2)]
    clusters: Literal["neighbourhoods", "components"]
    train_mode: bool
    mu: Annotated[float, Field(ge=0)]
    # Came later than some records, see `Run.precision`
    range_epochs: list[Count] = []

    @field_validator("version")
    @classmethod
    def known_version(cls, name: str) -> str:
        """A name that `shifts.make` knows."""
        if name not in shifts.VERSIONS:
            raise ValueError(f"unknown version; known are {', '.join(shifts.VERSIONS)}")
        return name

    @property
    def scenario(self) -> str:
        """For the names of records."""
        return f"{self.dataset}-{self.version}" + (f"-m{self.clients}" if self.clients else "")


class FedCRefRun(Images):
    """Parameters of ``06_fedcref``."""

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

    def options(self, start) -> FedCRef:
        """Those of the method."""
        given = self.model_dump(
            include={"alpha", "theta", "tau", "normalisation", "match", "stop", "rounds"}
        )
        return FedCRef(
            start=start,
            local=self.training(self.local_epochs),
            federated=self.training(self.federated_epochs),
            **given,
        )


class FirstRun(Parameters):
    """Parameters of ``00_start_here``."""

    clients: Annotated[int, Field(ge=3)]
    draws: Annotated[int, Field(ge=4)]
    rounds: Count
    seed: Seed


class AveragingRun(Parameters):
    """Parameters of ``01_federated_averaging``."""

    clients: Annotated[int, Field(ge=2)]
    rounds: Count
    local_epochs: Count
    batch_size: Count
    lr: Positive
    seed: Seed


class GridFile(Parameters):
    """A grid of runs, see `grid`."""

    notebook: str
    file: str
    alike: dict[str, str] = {}
    grids: list[dict[str, list[str | int | float | bool]]]

    @model_validator(mode="after")
    def known_names(self) -> Self:
        """Whatever ``file`` and ``alike`` refer to must be in every grid."""
        needed = {name for _, name, _, _ in Formatter().parse(self.file) if name}
        needed |= set(self.alike.values())
        for lists in self.grids:
            absent = sorted(needed - set(lists))
            if absent:
                raise ValueError(f"a grid without {', '.join(absent)}, which file or alike name")
        return self


# What a record can be of
AnyRun = FederatedRun | EMDRun | FedCRefRun


class LedgerView(Parameters):
    """Parameters of ``90_ledger``."""

    paper: Literal["ocfl", "ocfl-extended", "ocfl-explanations", "emd-cfl", "fedcref"]
