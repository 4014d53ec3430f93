"""Tutorial 022 of unbitrium, "Clustered Federated Learning".

O. Y. Laitinen Imanov and contributors, 2026.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from cflkit._bounds import MOST, Count, Natural, PositiveShare, Repeats
from cflkit.reproduce.papers import base
from cflkit.reproduce.parameters import Selection, Training

SWITCHES = (
    base.Switch(
        *("signatures", "linkage", "ward", "average"),
        "Ward linkage, which is defined for Euclidean distances, of cosine distances",
        "Tutorial 022, ClientClusterer",
    ),
    base.Switch(
        *("signatures", "samples", 32, None),
        "the gradient of a client's first 32 samples, not that of all its samples",
        "Tutorial 022, ClientSignature",
    ),
    base.Switch(
        *("signatures", "restart", True, False),
        "each cluster starts with a new random model, and the warm-up is lost",
        "Tutorial 022, ClusteredFLServer",
    ),
)

# One change of the method as published at a time
CHANGES: dict[str, dict[str, Any]] = {
    **{f"{switch.option} corrected": {switch.option: switch.intended} for switch in SWITCHES},
    "no warm-up": {"warm_up": 0},
}
METHODS = ("Signatures", *CHANGES, "Oracle", "FedAvg", "Local")


class Parameters(Training, Selection):
    """Parameters of ``08b_tutorial_022_controls``; one seed is that of the data, too."""

    folder: ClassVar[str] = "tutorial"
    line_up: ClassVar[tuple[str, ...]] = METHODS

    clients: Annotated[int, Field(ge=3, le=MOST, multiple_of=3)]  # in three equal clusters
    height: Annotated[float, Field(gt=0, le=20)]  # in standard deviations of the noise
    warm_up: Natural
    k: Count
    fraction: PositiveShare
    repeats: Repeats = 1  # no part of a record, see `bounds.Repeats`

    @property
    def scenario(self) -> str:
        """Return the scenario's part of a record's name."""
        return f"bumps-m{self.clients}"


def data(run: Parameters) -> tuple[base.ImageSet, base.Partition]:
    """Make the clients' samples and the partition."""
    from cflkit.partition import features

    return features.class_bumps(clients=run.clients, height=run.height, seed=run.seed)


def federation(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Federation:
    """Build the federation of clients, stacked also on a CPU, since their steps are short."""
    from cflkit.federation import Federation

    return Federation(images, split, run.model, run.training(), seed=run.seed, engine="stacked")


def line_up(run: Parameters, images: base.ImageSet, split: base.Partition) -> base.Methods:
    """Make the tutorial's method, its variants with one change each, and those of its table."""
    from cflkit import methods

    options = run.model_dump(include={"warm_up", "k", "fraction"})
    published = base.as_published("signatures", options, SWITCHES)
    lines = base.both_ways({"Signatures": ("signatures", options)}, SWITCHES)
    for name, change in CHANGES.items():
        lines[name] = methods.make("signatures", **published | change)
    lines["Oracle"] = methods.make("oracle", truth=split.truth, weighting="samples")
    lines["FedAvg"] = methods.make("fedavg")
    lines["Local"] = methods.make("local")
    return base.selected(lines, run.only)


PAPERS = (
    base.Paper(
        name="tutorial-022",
        notebook="08b_tutorial_022_controls",
        parameters=Parameters,
        scenario={"clients": int},
        file="m{clients}.yaml",
        methods={"Clustered": "Signatures", "Single Model": "FedAvg", "Per-Client": "Local"},
        protocols={"last-accuracy": base.at(-1, "accuracy", base.PERCENT, 100)},
        data=data,
        federation=federation,
        line_up=line_up,
        # A parameter that is printed as a result
        fixed=({"measure": "Discovery Time"},),
    ),
)
