"""Explanations of cluster models: section 5, appendices A.4 and A.5 of the extended OCFL paper.

The runs train the paper's methods as in `papers.ocfl`. They then explain the cluster models for the
paper's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import pandas as pd
import torch
from pydantic import model_validator

from cflkit import datasets, models, simulation
from cflkit.bounds import Count
from cflkit.datasets import ImageSet
from cflkit.federation import Federation
from cflkit.history import History
from cflkit.methods import Method
from cflkit.papers import ocfl
from cflkit.papers.base import (
    MINUTES,
    SCORES,
    SEEDS,
    Column,
    Paper,
    Protocol,
    Results,
    Runs,
    given,
    mean,
)
from cflkit.parameters import ParameterError
from cflkit.partition import Partition

if TYPE_CHECKING:
    from cflkit.assessment import Assessment


class Parameters(ocfl.OCFLMethods):
    """Parameters of ``07_explaining_cluster_models``."""

    folder: ClassVar[str] = "explanations"

    layer: str | None
    sample_size: Count
    step: Count
    baseline: Literal["zeros", "blur", "mean"]
    explained: Literal["predicted", "true"]

    @model_validator(mode="after")
    def some_layer(self) -> Self:
        """Check that the model has a default layer where none is named."""
        if self.layer is None and self.model not in models.LAST_FEATURES:
            raise ValueError(f"{self.model} has no default layer to explain; name a layer")
        return self

    def check_against_data(self) -> None:
        """Refuse a layer that GradCAM cannot use."""
        check_layer(self, datasets.load(self.dataset))

    def assessment(self) -> Assessment:
        """Build the options with which models are explained."""
        from cflkit.assessment import Assessment  # loads Captum, which takes seconds

        return Assessment(
            layer=self.layer or models.LAST_FEATURES[self.model],
            sample_size=self.sample_size,
            step=self.step,
            baseline=self.baseline,
            explained=self.explained,
            seed=self.seed,
        )


def federation(run: Parameters, images: ImageSet, split: Partition) -> Federation:
    """Build the federation of clients, if GradCAM can use the layer.

    Raises
    ------
    ParameterError
        The model has no such layer, or its output has no height and width for these images.
    """
    check_layer(run, images)
    return ocfl.federation(run, images, split)


def check_layer(run: Parameters, images: ImageSet) -> None:
    """Refuse a layer without spatial outputs for images of this shape; compute only shapes.

    Raises
    ------
    ParameterError
        The model has no such layer, or its output has no height and width for these images.
    """
    from cflkit.explain import spatial_layer  # loads Captum, as above

    with torch.device("meta"):
        network = models.make(run.model, images.shape, images.classes).eval()
        image = torch.empty(1, *images.shape)
    try:
        spatial_layer(network, image, run.assessment().layer)
    except ValueError as error:
        raise ParameterError(f"layer: {error}") from error


def line_up(run: Parameters, images: ImageSet, split: Partition) -> dict[str, Method]:
    """Make the methods, except the reference methods, which the paper does not explain either."""
    lines = ocfl.line_up(run, images, split)
    return {name: method for name, method in lines.items() if name not in ocfl.REFERENCE_METHODS}


def play(
    run: Parameters, federation: Federation, methods: Mapping[str, Method], rounds: int
) -> History:
    """Run the methods, and explain the models that they end with."""
    from cflkit.assessment import assess  # Captum, as above

    trained = simulation.run(methods, federation, rounds, central_every=rounds)
    return assess(methods, federation, trained, run.assessment())


def explained(measure: str, source: str) -> Protocol:
    """Build the protocol of a score of GradCAM's maps on samples from a source.

    The number is the mean over clusters.
    """

    def value(rows: pd.DataFrame) -> float:
        chosen = (rows["map"] == "GradCAM") & (rows["source"] == source)
        return float(rows.loc[chosen, measure].mean())

    return Protocol(value, SCORES)


def gained(head: str, method: str) -> Column:
    """Build the column of insertion scores minus deletion scores."""
    measures = ("insertion_in-cluster", "deletion_in-cluster")

    def cell(runs: Runs) -> str:
        insertion, deletion = (runs.mean(method, measure) for measure in measures)
        return f"{insertion - deletion:.2f}"

    return Column(head, cell)


METHODS = {"BNC": "FedAvg", **ocfl.METHODS}
# Our names for two methods, by their names in the README
BESIDE = {"no clustering": "FedAvg", "OCFL-HDB": "OCFL-HDB"}

PAPERS = (
    Paper(
        name="ocfl-explanations",
        notebook="07_explaining_cluster_models",
        parameters=Parameters,
        scenario=ocfl.SCENARIO,
        file=ocfl.FILE,
        methods=METHODS,
        protocols={
            f"{measure}-{source}": explained(measure, source)
            for measure in ("insertion", "deletion")
            for source in ("in-cluster", "out-of-cluster", "orchestrator")
        },
        data=ocfl.data,
        federation=federation,
        line_up=line_up,
        play=play,
        after_the_last=True,
        switches=ocfl.SWITCHES,
        results=Results(
            "explanations-results",
            (
                given("data", "dataset"),
                given("split", "overlap", "balance"),
                SEEDS,
                *(
                    mean(f"{measure}, {name}", ours, f"{measure}_in-cluster")
                    for measure in ("insertion", "deletion")
                    for name, ours in BESIDE.items()
                ),
                *(gained(f"insertion − deletion, {name}", ours) for name, ours in BESIDE.items()),
                MINUTES,
            ),
            scales=("reduced",),
        ),
    ),
)
