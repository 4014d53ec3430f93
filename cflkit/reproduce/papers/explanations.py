"""Explanations of cluster models: section 5, appendices A.4 and A.5 of the extended OCFL paper.

The runs train the paper's methods as in `papers.ocfl`. They then explain the cluster models for the
paper's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from cflkit._bounds import Count, Repeats
from cflkit.reproduce import records
from cflkit.reproduce.papers import base, ocfl
from cflkit.reproduce.parameters import ParameterError

if TYPE_CHECKING:
    from cflkit.explain.assessment import Assessment


class Parameters(ocfl.OCFLMethods):
    """Parameters of ``07b_explanations_controls``."""

    folder: ClassVar[str] = "explanations"

    layer: str | None
    sample_size: Count
    step: Count
    baseline: Literal["zeros", "blur", "mean"]
    explained: Literal["predicted", "true"]
    repeats: Repeats = 1  # no part of a record, see `bounds.Repeats`
    trained_in: str | None = None

    def check_against_data(self) -> None:
        """Refuse a layer that GradCAM cannot use."""
        from cflkit import datasets

        check_layer(self, datasets.load(self.dataset))

    def assessment(self) -> Assessment:
        """Build the options with which models are explained; a `ParameterError` without a layer."""
        from cflkit import models
        from cflkit.explain.assessment import Assessment

        names = {"sample_size", "step", "baseline", "explained", "seed"}
        layer = self.layer or models.LAST_FEATURES.get(self.model)
        if layer is None:
            raise ParameterError(f"{self.model} has no default layer to explain; name a layer")
        return Assessment(layer=layer, **self.model_dump(include=names))


def federation(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Federation:
    """Build the federation of clients, if the maps can be made and scored (`check_layer`)."""
    check_layer(run, images)
    return ocfl.federation(run, images, split)


def check_layer(run: Parameters, images: base.ImageSet) -> None:
    """Refuse a layer without spatial outputs, and images that are too small for the blur.

    Only shapes are computed.

    Raises
    ------
    ParameterError
        The model has no such layer, its output has no height and width for these images, or the
        images are too small for the baseline ``blur``.
    """
    import torch

    from cflkit import models
    from cflkit.explain import SMALLEST_BLURRED, spatial_layer

    if run.baseline == "blur" and min(images.shape[1:]) < SMALLEST_BLURRED:
        raise ParameterError(f"baseline: blur needs images of {SMALLEST_BLURRED} pixels or more")
    with torch.device("meta"):
        network = models.make(run.model, images.shape, images.classes).eval()
        image = torch.empty(1, *images.shape)
    try:
        spatial_layer(network, image, run.assessment().layer)
    except (ValueError, RuntimeError) as error:
        raise ParameterError(f"layer: {error}") from error


def line_up(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Methods:
    """Make the methods, except the reference methods, which the paper does not explain either."""
    lines = ocfl.line_up(run, images, split)
    return {name: method for name, method in lines.items() if name not in ocfl.REFERENCE_METHODS}


def trained(
    run: Parameters, federation: base.Federation, images: base.ImageSet, split: base.Partition
) -> tuple[base.Methods, base.History]:
    """Train the methods, or take their last models from the run that ``trained_in`` names.

    Raises
    ------
    ParameterError
        There is no such run of ``03b_ocfl_controls``, it has not kept its models, or it had other
        parameters.
    """
    from cflkit import simulation

    if run.trained_in is None:
        methods, state = line_up(run, images, split), records.checkpoint(records.run_id(run))
        options: dict[str, Any] = {"central_every": run.rounds, "checkpoint": state}
        return methods, simulation.run(methods, federation, run.rounds, **options)
    record = records.find_record(run.trained_in)
    state = records.kept_models(record.id)
    if record.paper != ocfl.Parameters.folder or not state.exists():
        reason = "has no models; run 03b again with CFLKIT_KEEP_MODELS=1"
        raise ParameterError(f"trained_in: {record.id} {reason}")
    shared = {name: getattr(run, name) for name in ocfl.OCFLMethods.model_fields}
    if differing := [name for name in shared if record.parameters.get(name) != shared[name]]:
        names = ", ".join(sorted(differing))
        raise ParameterError(f"trained_in: {record.id} has other values of {names}")
    training = ocfl.Parameters.checked(record.parameters)
    if training.until != "rounds":
        raise ParameterError(f"trained_in: {record.id} ended with its clusters, before all rounds")
    methods = ocfl.chosen(training, images, split)
    return methods, ocfl.play(training, federation, methods, training.rounds, state)


def play(
    run: Parameters, federation: base.Federation, methods: Mapping[str, base.Method], rounds: int
) -> base.History:
    """Run the methods, and explain the models that they end with."""
    from cflkit import simulation
    from cflkit.explain.assessment import assess

    trained = simulation.run(methods, federation, rounds, central_every=rounds)
    return assess(methods, federation, trained, run.assessment())


def explained(measure: str, source: str) -> base.Protocol:
    """Build the protocol of the mean over clusters of a score of GradCAM's maps on some samples."""

    def value(rows: base.Rows) -> float:
        chosen = (np.asarray(rows["map"]) == "GradCAM") & (np.asarray(rows["source"]) == source)
        values = base.column(rows, measure)[chosen]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")

    return base.Protocol(value, base.SCORES)


# The columns that tell the scenarios of the runs apart, all of which have 15 clients
SCENARIO = ("dataset", "overlap", "balance")
METHODS = {"BNC": "FedAvg", **ocfl.METHODS}
SCORES_OF_MAPS = {
    f"{measure}-{source}": explained(measure, source)
    for measure in ("insertion", "deletion")
    for source in ("in-cluster", "out-of-cluster", "orchestrator")
}
# The average ranks of Figure 8, which has the highest first, also for deletion
AVERAGE_RANKS = {
    f"{measure}-rank": base.Ranks(SCORES_OF_MAPS[f"{measure}-in-cluster"])
    for measure in ("insertion", "deletion")
}

PAPERS = (
    base.Paper(
        name="ocfl-explanations",
        notebook="07b_explanations_controls",
        parameters=Parameters,
        scenario=ocfl.SCENARIO,
        file=ocfl.FILE,
        methods=METHODS,
        protocols={**SCORES_OF_MAPS, **AVERAGE_RANKS},
        data=ocfl.data,
        federation=federation,
        line_up=line_up,
        play=play,
        after_the_last=True,
        free=base.FREE | {"trained_in"},
        wrong_sign=ocfl.WRONG_SIGN,
    ),
)
