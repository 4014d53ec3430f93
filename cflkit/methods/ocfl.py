"""OCFL: cluster once, at the moment the temperature over the clients' updates rises.

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
# −∞ and +∞ are meant; NaN is no temperature that another one could exceed
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
        The clusterer's.
    p : float
        The norm of the temperature.
    scale : float, optional
        λ of the temperature; by default the upper bound of the norm, so that T is in [0, 1].
    strict : bool
        Whether the temperature must rise (``>``, the authors' code) or need only not fall (``≥``,
        as the papers print).
    window : int
        Rounds of the moving average that the trigger watches (extended paper, section 6.3); 1 is
        Algorithm 1.
    before : float
        T₋₁, the temperature before the first round: +∞ (extended paper and code) or −∞ (Algorithm 1
        of the first paper, which thus clusters at once).
    include_buffers : bool
        Whether update vectors hold BatchNorm's statistics and batch counters too, as in the
        authors' code.
    weighting : {"equal", "samples"}
        Algorithm 1, line 28 weighs members alike.
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
        """Refuse a clusterer, or options of it, that there are not."""
        clustering.make(self.clusterer, **self.options)
        return self

    def setup(self, server: Server, initial: Tensor) -> None:
        """Begin with one cluster of all clients."""
        super().setup(server, initial)
        self.clustered = False
        self.temperatures: list[float] = []

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Do lines 14 to 28 of Algorithm 1."""
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
                # Each cluster goes on from the global model, with its own members' updates
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
        w, the rounds averaged; 1 compares T_t with T_{t−1}.
    strict : bool
        ``>`` rather than ``≥``.
    before : float
        What temperatures before the first round count as; with +∞ nothing fires before round w
        (from 0).

    Returns
    -------
    bool

    Notes
    -----
    Two averages over w rounds, one round apart, share all but their ends: the average rises exactly
    when T_t > T_{t−w}. The window thus says how many rounds back the trigger looks.
    """
    past = temperatures[-1 - window] if len(temperatures) > window else before
    return temperatures[-1] > past if strict else temperatures[-1] >= past


def attribute(update: Tensor, updates: Tensor, labels: Tensor) -> int:
    """Return the cluster of a client that joins after the clustering (extended paper, section 6.2).

    Parameters
    ----------
    update : Tensor
        ``[P]``, what the newcomer makes of the model that the others started from when they were
        clustered; the server keeps it.
    updates : Tensor
        ``[m, P]``, what they made of it.
    labels : Tensor
        ``[m]``, their clusters.

    Returns
    -------
    int
        The cluster whose members' updates are nearest by mean cosine distance.
    """
    distances = torch.from_numpy(cosine_divergence(torch.cat([updates, update[None]]))[-1, :-1])
    clusters = labels.unique()
    nearest = torch.stack([distances[labels == cluster].mean() for cluster in clusters]).argmin()
    return int(clusters[nearest])
