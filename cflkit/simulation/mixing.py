"""The mixing matrix of a round: which clients' trained models are in each client's next model.

After local training, most methods only average models. A round is then a matrix W. Row i has the
weights with which the models just trained enter the model that client i predicts with.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from cflkit.divergence import Matrix
from cflkit.federation import Conversation, Train
from cflkit.methods.base import Method
from cflkit.models.rows import as_doubles

# Squared distances below this share of the largest are rounding errors of models in float32
SMALLEST = 1e-10


class Watched:
    """A method whose mixing matrices are measured while it runs; it behaves like the method itself.

    Attributes
    ----------
    matrices, residuals : list
        What `mixing_matrix` returns for each round in which clients have trained. A checkpoint does
        not keep them.
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

    def round(self, t: int) -> Conversation[None]:
        """Run a round of the method, and measure its mixing matrix."""
        trained = yield from trainings(self.method.round(t))
        if trained is None:  # this round mixes nothing
            return
        models, mixture = self.method.client_models()
        matrix, residual = mixing_matrix(*trained, mixture.to(models) @ models)
        self.matrices.append(matrix)
        self.residuals.append(residual)


def trainings(conversation: Conversation[None]) -> Conversation[tuple[Tensor, Tensor] | None]:
    """Pass a conversation on; return the models ``[J, D]`` trained in it and their clients."""
    trained: list[Tensor] = []
    owners: list[Tensor] = []
    answer = None
    while True:
        try:
            request = conversation.send(answer)
        except StopIteration:
            return (torch.cat(trained), torch.cat(owners)) if trained else None
        answer = yield request
        if isinstance(request, Train):
            trained.append(answer.clone())  # methods may change answers in place
            owners.append(request.jobs.client_of)


def watched(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the methods as `Watched` ones, for `simulation.run`."""
    return {name: cast(Method, Watched(method)) for name, method in methods.items()}


def mixing_matrix(trained: Tensor, owners: Tensor, predicting: Tensor) -> tuple[Matrix, float]:
    """Compute with which weights trained models enter the models that clients predict with.

    They solve a least-squares problem, and are unique if the models are in general position.

    Parameters
    ----------
    trained, owners : Tensor
        ``[J, D]`` and ``[J]``, the models trained in the round, and the client of each.
    predicting : Tensor
        ``[m, D]``, the model that each client predicts with after the round. For a mixture of
        predictions this is the mean of the models.

    Returns
    -------
    matrix : ndarray
        ``[m, m]``: entry ij is the sum of the weights of all models of client j in that of client
        i. Rows sum to 1. That of a client whose model is no such mean (it was absent, perhaps) has
        no meaning.
    residual : float
        The largest distance between a client's model and the mean with these weights, divided by
        the mean distance of the trained models from their mean; near 0 if the round only mixes.
    """
    ends = as_doubles(trained)
    centre = ends.mean(dim=0)
    # With weights that sum to 1, the mean can be taken from both sides
    directions, targets = ends - centre, as_doubles(predicting) - centre
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
