"""pFedGraph: a personal model per client, mixed with those of clients whose updates are similar.

R. Ye, Z. Ni, F. Wu, S. Chen, Y. Wang: Personalized federated learning with inferred collaboration
graphs. ICML 2023.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, NonNegative, Positive
from cflkit.divergence import Matrix, cosine_divergence
from cflkit.federation import Jobs, Server
from cflkit.methods.base import Method, each_its_own, weighted_means


@dataclass(config=STRICT)
class Collaboration(Method):
    """What pFedGraph and FedSaC share: personal models, mixed with weights that the server learns.

    Parameters
    ----------
    mu : float
        The strength λ of the cosine term in local training.
    term : {"pull", "push"}
        Whether the term turns the model towards its anchor, or away from it (pFedGraph's code).
    anchor : {"neighbours", "own"}
        The mean of the neighbours' directions by the last round's weights, with no term in the
        first; or the direction of the received model (EMD-CFL's comparison).
    since : {"initial", "received"}
        From which model updates are computed; EMD-CFL's comparison takes the received one.
    clipped, in_turn : bool
        Whether a cosine above 0.9 counts as 1, unlike in EMD-CFL's comparison; and whether models
        are mixed one after the other, as there.
    include_buffers : bool
        Whether the buffers belong to the updates that are compared.
    """

    partial: ClassVar[bool] = True

    mu: NonNegative = 0.01
    term: Literal["pull", "push"] = "pull"
    anchor: Literal["neighbours", "own"] = "neighbours"
    since: Literal["initial", "received"] = "initial"
    clipped: bool = True
    in_turn: bool = False
    include_buffers: bool = False

    def setup(self, server: Server, initial: Tensor) -> None:
        """Give each client the initial model."""
        super().setup(server, initial)
        self.labels = None  # type: ignore[assignment]
        self.initial = initial
        self.models = initial.repeat(server.clients, 1)
        # In row i, the weights of all clients' models in client i's next model
        self.graph = torch.eye(server.clients, dtype=torch.float64)
        self.anchors = initial.new_empty(0)

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs, in which each participant trains its model, with the cosine term."""
        present = self.server.participants(t)
        anchors = self.directions(self.models) if self.anchor == "own" else self.anchors
        if not (self.mu and len(anchors)):
            return Jobs(self.models, present, present)
        strength = self.mu if self.term == "push" else -self.mu
        training = replace(self.server.training, penalty="cosine", strength=strength)
        return Jobs(self.models, present, present, training, anchor=anchors[present])

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Learn the weights of the participants for each other, and mix their models."""
        present = jobs.client_of
        sizes = self.server.sizes[present].double()
        costs = self.costs(present, trained)
        rows = torch.from_numpy(nearest_shares((sizes / sizes.sum()).numpy(), costs))
        self.graph = torch.eye(self.server.clients, dtype=rows.dtype)
        self.graph[present[:, None], present] = rows
        if self.anchor == "neighbours":
            known = self.anchors if len(self.anchors) else self.directions(self.models)
            self.anchors = known.clone()
            self.anchors[present] = rows.to(trained) @ self.directions(trained)
        self.models = self.models.clone()
        mix = means_in_turn if self.in_turn else weighted_means
        self.models[present] = mix(self.models[present], trained, rows)

    def costs(self, present: Tensor, trained: Tensor) -> Matrix:
        """Return the cost ``[n, n]`` of each participant's weight in each other's mean."""
        raise NotImplementedError

    def dissimilarity(self, present: Tensor, trained: Tensor) -> Matrix:
        """Return minus the cosines ``[n, n]`` of the participants' updates."""
        start = self.initial if self.since == "initial" else self.models[present]
        dissimilar = cosine_divergence(self.vectors(trained - start)) - 1
        return np.where(self.clipped & (dissimilar < -0.9), -1, dissimilar)

    def directions(self, models: Tensor) -> Tensor:
        """Divide models by the norms of their parameters."""
        norms = models[:, : self.server.parameters].norm(dim=1, keepdim=True)
        return models / norms.clamp_min(torch.finfo(models.dtype).tiny)

    def client_models(self) -> tuple[Tensor, Tensor]:
        """Return the personal models."""
        return each_its_own(self.models)


@dataclass(config=STRICT)
class PFedGraph(Collaboration):
    """The server learns with which weights each client should average the others' models.

    Parameters
    ----------
    alpha : float
        The strength α that keeps the weights near the clients' shares of samples.
    """

    alpha: Positive = 0.8

    def costs(self, present: Tensor, trained: Tensor) -> Matrix:
        """Return the cost ``[n, n]`` of each participant's weight in each other's mean."""
        return self.dissimilarity(present, trained) / self.alpha


def means_in_turn(models: Tensor, trained: Tensor, weights: Tensor) -> Tensor:
    """Compute `weighted_means`, in which each mean takes its trained model's place at once."""
    mixed = trained.clone()
    for place, (model, row) in enumerate(zip(models, weights, strict=True)):
        mixed[place] = weighted_means(model[None], mixed, row[None])[0]
    return mixed


def nearest_shares(p: np.ndarray, costs: Matrix) -> Matrix:
    """Minimise ‖g − p‖² + ⟨cost, g⟩ over the simplex, for shares ``[n]`` and each row of costs."""
    from ot.utils import proj_simplex  # only here, since few processes need it

    return np.ascontiguousarray(proj_simplex((p - costs / 2).T).T)
