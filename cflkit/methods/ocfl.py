"""OCFL: cluster once, in the round in which the temperature of the clients' updates rises.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData
2024, Algorithm 1; and its extended version, Algorithm 1 and section 6.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit.bounds import STRICT, Count, Positive
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Jobs, Server
from cflkit.methods.base import (
    Method,
    Weighting,
    average_updates,
    client_weights,
    local_updates,
)

Norm = Annotated[float, Field(ge=1)]
# Infinite values are allowed; NaN is refused, since no temperature exceeds it
Temperature = Annotated[float, Field(allow_inf_nan=True, ge=-math.inf)]


@dataclass(config=STRICT)
class OCFL(Method):
    """One-shot clustered federated learning.

    Parameters
    ----------
    clusterer : str
        A name that `clustering.make` knows: ``hdbscan`` (OCFL-HDB), ``meanshift`` (OCFL-MS),
        ``kmeans`` (OCFL-KM), ``affinity`` (OCFL-AFF).
    options : dict
        The options of the clusterer.
    p : float
        The order of the norm in the temperature.
    scale : float, optional
        The scale λ of the temperature; by default the upper bound of the norm, so that T is in
        [0, 1].
    strict : bool
        Whether the temperature must rise (``>``, as in the authors' code). Otherwise it is enough
        that it does not fall (``≥``, as printed in the papers).
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
        The weights of a cluster's members; equal weights in Algorithm 1, line 28.
    """

    clusterer: str = "hdbscan"
    options: dict[str, Any] = field(default_factory=dict)
    p: Norm = 2
    scale: Positive | None = None
    strict: bool = True
    window: Count = 1
    before: Temperature = math.inf
    include_buffers: bool = False
    weighting: Weighting = "equal"

    @model_validator(mode="after")
    def known_clusterer(self) -> OCFL:
        """Refuse an unknown clusterer, and options that it does not accept."""
        clustering.make(self.clusterer, **self.options)
        return self

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        self.clustered = False
        self.temperatures: list[float] = []

    @property
    def settled(self) -> bool:
        """Return whether the trigger has fired."""
        return self.clustered

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Run lines 14 to 28 of Algorithm 1."""
        updates = local_updates(trained, self.models, self.labels)
        self.scalars = {}
        if not self.clustered:
            compared = updates if self.include_buffers else updates[:, : self.server.parameters]
            gamma = cosine_divergence(compared)
            self.temperatures.append(temperature(gamma, self.p, self.scale))
            self.scalars["temperature"] = self.temperatures[-1]
            if rises(self.temperatures, self.window, self.strict, self.before):
                found = clustering.make(self.clusterer, **self.options).fit_predict(gamma)
                self.labels = torch.from_numpy(found)
                # Each cluster starts from the global model and adds the updates of its own members
                self.models = self.models.repeat(int(self.labels.max()) + 1, 1)
                self.clustered = True
        weights = client_weights(self.server, self.weighting)
        self.models = average_updates(self.models, updates, self.labels, weights)


def rises(
    temperatures: Sequence[float],
    window: int = 1,
    strict: bool = True,
    before: float = math.inf,
) -> bool:
    """Return whether the moving average of the temperature rose in the last round (line 20).

    Parameters
    ----------
    temperatures : sequence of float
        T₀ … T_t.
    window : int
        The number w of rounds in the average; with 1, T_t is compared with T_{t−1}.
    strict : bool
        Whether to compare with ``>`` and not with ``≥``.
    before : float
        The value of temperatures before the first round. With +∞, the trigger cannot fire before
        round w (from 0).

    Returns
    -------
    bool

    Notes
    -----
    The averages over w rounds in round t and in round t − 1 have all values in common except T_t
    and T_{t−w}. The average therefore rises exactly if T_t > T_{t−w}. The window states how many
    rounds back the trigger looks.
    """
    past = temperatures[-1 - window] if len(temperatures) > window else before
    return temperatures[-1] > past if strict else temperatures[-1] >= past


def attribute(update: Tensor, updates: Tensor, labels: Tensor) -> int:
    """Find the cluster of a client that joins after the clustering (extended paper, section 6.2).

    Parameters
    ----------
    update : Tensor
        ``[P]``, the new client's update of the model from which the others started in the round
        that clustered them. The server must keep this model.
    updates : Tensor
        ``[m, P]``, the updates of the other clients in that round.
    labels : Tensor
        ``[m]``, the clusters of these clients.

    Returns
    -------
    int
        The cluster whose members' updates are nearest by mean cosine distance.
    """
    distances = torch.from_numpy(cosine_divergence(torch.cat([updates, update[None]]))[-1, :-1])
    clusters = labels.unique()
    nearest = torch.stack([distances[labels == cluster].mean() for cluster in clusters]).argmin()
    return int(clusters[nearest])
