"""OCFL: cluster once, in the round in which the temperature of the clients' updates rises.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData
2024, Algorithm 1; and its extended version, Algorithm 1. The lines below are those of the latter.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Count, Positive
from cflkit.clustering import Labels
from cflkit.divergence import Matrix, cosine_divergence, temperature
from cflkit.federation import Jobs, Server
from cflkit.methods.base import Method, Weighting, local_updates

Norm = Annotated[float, Field(ge=1)]
# Infinite values are allowed; NaN is refused, since no temperature exceeds it
Temperature = Annotated[float, Field(allow_inf_nan=True, ge=-math.inf)]


@dataclass(config=STRICT)
class OneShot(Method):
    """A method that finds its clusters by a clusterer of any kind, as OCFL does with its 𝒜."""

    clusterer: str = "hdbscan"
    options: dict[str, Any] = field(default_factory=dict)

    @model_validator(mode="after")
    def known_clusterer(self) -> Self:
        """Refuse an unknown clusterer, and options that it does not accept."""
        clustering.make(self.clusterer, **self.options)
        return self


@dataclass(config=STRICT)
class OCFL(OneShot):
    """One-shot clustered federated learning.

    Parameters
    ----------
    clusterer : str
        The clustering algorithm 𝒜, a name that `clustering.make` knows: ``hdbscan`` (OCFL-HDB),
        ``meanshift`` (OCFL-MS), ``kmeans`` (OCFL-KM), ``affinity`` (OCFL-AFF).
    options : dict
        The options of the clusterer.
    p : float
        The order of the norm in the temperature.
    scale : float, optional
        The scale λ of the temperature; by default that of line 17, so that T is in [0, 1].
    strict : bool
        Whether the temperature must rise (``>``, as in the authors' code). Otherwise it is enough
        that it does not fall (``≥``, as printed).
    window : int
        The number of rounds in the moving average that the trigger watches (extended paper, section
        6.3); 1 gives Algorithm 1.
    before : float
        T₋₁, the temperature before the first round. It is +∞ in the extended paper and the code. It
        is −∞ in Algorithm 1 of the first paper, which therefore clusters in the first round.
    include_buffers : bool
        Whether update vectors also contain BatchNorm's statistics and batch counters, as in the
        authors' code.
    weighting : {"equal", "samples"}
        The weights of a cluster's members; equal weights in line 28.

    Notes
    -----
    ClientOpt, η_c and K are the federation's `LocalTraining`. ServerOpt is SGD with η_s = 1, as in
    the authors' runs: a cluster's mean update is added to its model.
    """

    p: Norm = 2
    scale: Positive | None = None
    strict: bool = True
    window: Count = 1
    before: Temperature = math.inf
    include_buffers: bool = False
    weighting: Weighting = "equal"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Begin with one cluster of all clients, which has the initial model (lines 5 to 7)."""
        super().setup(server, initial)
        self.temperatures: list[float] = []

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Run lines 14 to 28, after all clients have trained the models of their clusters."""
        updates = local_updates(trained, self.models, self.labels)  # line 14
        self.scalars = {}
        if not self.clustered:
            gamma = cosine_divergence(self.vectors(updates))  # line 16
            if self.heats_up(gamma):
                self.divide(self.clusters(gamma))  # each goes on from the global model (line 22)
            if t == 0 or self.clustered:  # so that a record can tell what waiting has changed
                self.scalars["distances"] = "|".join(f"{value:.4g}" for value in gamma.flat)
        self.add_means(updates, self.labels, jobs.client_of)  # lines 26 to 28

    def heats_up(self, gamma: Matrix) -> bool:
        """Note the temperature of a round, and return whether it rises (lines 17 to 20)."""
        self.temperatures.append(temperature(gamma, self.p, self.scale))
        self.scalars["temperature"] = self.temperatures[-1]
        return rises(self.temperatures, self.window, self.strict, self.before)

    def clusters(self, gamma: Matrix) -> Labels:
        """Find the cluster of each client (line 21), and note what a record must say of them."""
        labels, note = clustering.make(self.clusterer, **self.options).answer(gamma)
        if note:
            self.scalars["clustering_note"] = note
        return labels


def rises(
    temperatures: Sequence[float], window: int = 1, strict: bool = True, before: float = math.inf
) -> bool:
    """Return whether the moving average of the temperature rose in the last round (line 20).

    The averages over w rounds in round t and in round t − 1 have all values in common except T_t
    and T_{t−w}. The average therefore rises exactly if T_t > T_{t−w}.

    Parameters
    ----------
    temperatures : sequence of float
        T₀ … T_t.
    window : int
        The number w of rounds in the average; with 1, T_t is compared with T_{t−1}.
    strict, before : bool, float
        As in `OCFL`. With +∞, the trigger cannot fire before round w (from 0).
    """
    past = temperatures[-1 - window] if len(temperatures) > window else before
    return temperatures[-1] > past if strict else temperatures[-1] >= past
