"""The mixing matrix of a round: which clients' trained models are in each client's next model.

After local training, most methods of federated learning only average models. A round is then a
matrix W with one row per client. Row i has the weights with which the models that clients have just
trained enter the model that client i predicts with.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cflkit.federation import Request, Train
from cflkit.methods.base import Method
from cflkit.models.rows import as_doubles

Matrix = NDArray[np.float64]
# Squared distances below this share of the largest are rounding errors of models in float32
SMALLEST = 1e-10


class Watched:
    """A method whose mixing matrices are measured while it runs.

    It behaves like the method itself. It reads the trained models that the method receives, and the
    models that the method has afterwards.

    Attributes
    ----------
    method : Method
        The method.
    matrices : list of ndarray
        ``[m, m]``, the mixing matrix of each round in which clients have trained.
    residuals : list of float
        For each of these rounds, how much of the clients' models the matrix does not explain (see
        `mixing_matrix`).
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.matrices: list[Matrix] = []
        self.residuals: list[float] = []

    def __getattr__(self, name: str) -> Any:
        if name == "method" or name.startswith("__"):  # a copy that is being made has no attributes
            raise AttributeError(name)
        return getattr(self.method, name)

    def __repr__(self) -> str:
        return repr(self.method)

    def state(self) -> dict[str, Any]:
        """Return the contents of a checkpoint: those of the method, and what was measured."""
        matrices = [torch.from_numpy(matrix) for matrix in self.matrices]
        residuals = list(self.residuals)
        return {"method": self.method.state(), "matrices": matrices, "residuals": residuals}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.method.restore(state["method"])
        self.matrices = [matrix.numpy() for matrix in state["matrices"]]
        self.residuals = list(state["residuals"])

    def round(self, t: int) -> Generator[Request, Any, None]:
        """Run a round of the method, and measure its mixing matrix."""
        conversation, answer = self.method.round(t), None
        trained: list[Tensor] = []
        owners: list[Tensor] = []
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration:
                break
            answer = yield request
            if isinstance(request, Train):
                trained.append(answer.clone())  # methods may change answers in place
                owners.append(request.jobs.client_of)
        if not trained:  # this round mixes nothing
            return
        models, mixture = self.method.client_models()
        predicting = mixture.to(models) @ models
        matrix, residual = mixing_matrix(torch.cat(trained), torch.cat(owners), predicting)
        self.matrices.append(matrix)
        self.residuals.append(residual)


def watched(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the methods as `Watched` ones, for `simulation.run`."""
    return {name: cast(Method, Watched(method)) for name, method in methods.items()}


def mixing_matrix(trained: Tensor, owners: Tensor, predicting: Tensor) -> tuple[Matrix, float]:
    """Compute with which weights trained models enter the models that clients predict with.

    The weights are the solution of a least-squares problem, since the models are known and the
    weights are not. They are unique if the trained models are in general position.

    Parameters
    ----------
    trained : Tensor
        ``[J, D]``, the models that clients have trained in the round.
    owners : Tensor
        ``[J]``, the client that trained each of them.
    predicting : Tensor
        ``[m, D]``, the model that each client predicts with after the round. For a mixture of
        predictions this is the mean of the models.

    Returns
    -------
    matrix : ndarray
        ``[m, m]``: entry ij is the sum of the weights of all models of client j in that of client
        i. Rows sum to 1. The row of a client whose model is no such mean, such as one that is
        absent, has no meaning.
    residual : float
        The largest distance between a client's model and the mean with these weights, divided by
        the mean distance of the trained models from their mean. It is near 0 if the round only
        mixes.
    """
    ends, goals = as_doubles(trained), as_doubles(predicting)
    centre = ends.mean(dim=0)
    # With weights that sum to 1, the mean can be taken from both sides
    directions = ends - centre
    targets = goals - centre
    # The normal equations, which are small
    products = (directions @ directions.T).cpu().numpy()
    against = (targets @ directions.T).cpu().numpy()
    weights = against @ np.linalg.pinv(products, rcond=SMALLEST, hermitian=True)
    # The directions sum to zero, so equal amounts can be added to all weights
    weights += (1 - weights.sum(axis=1, keepdims=True)) / len(directions)
    missed = torch.from_numpy(weights).to(directions) @ directions - targets
    spread = directions.norm(dim=1).mean().clamp_min(1e-12)
    mine = np.eye(len(predicting))[owners.cpu().numpy()]
    return weights @ mine, float(missed.norm(dim=1).max() / spread)
