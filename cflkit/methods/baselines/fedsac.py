"""FedSaC: mixed personal models as in pFedGraph, which also prefers complementary clients.

K. Yan, S. Cui, A. Wuerkaixi, J. Zhang, B. Han, G. Niu, M. Sugiyama, C. Zhang: Balancing similarity
and complementarity for federated learning. ICML 2024.
"""

from collections.abc import Sequence

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from sklearn.decomposition import PCA
from torch import Tensor

from cflkit._bounds import STRICT, Count, NonNegative
from cflkit.divergence import Matrix
from cflkit.federation import NOBODY, Ask, Client, Conversation, Jobs, Request, Train
from cflkit.methods.baselines.pfedgraph import Collaboration


@dataclass(config=STRICT)
class FedSaC(Collaboration):
    """A collaboration whose weights also depend on angles between the clients' feature spaces.

    Parameters
    ----------
    lambda1 : float
        The weight λ₁ of complementarity: similar feature spaces cost more.
    lambda2 : float
        The weight λ₂ of similarity: similar updates cost less.
    components : int
        The number of principal components of the features, by the client's own model, that span a
        client's feature space.
    signed : bool
        Whether opposite components are far from each other, as in the code of EMD-CFL's comparison.
        The sign of a principal component has no meaning.

    Attributes
    ----------
    axes : list of Tensor
        The principal components ``[components, d]`` of the last round's participants.
    """

    lambda1: NonNegative = 0.9
    lambda2: NonNegative = 1.4
    components: Count = 3
    signed: bool = False

    def samples_needed(self) -> dict[str, int]:
        """Return that each client needs two samples, which span a feature space."""
        return {"train": 2}

    def asks(self) -> list[Request]:
        """Return the question for each client's feature space, by the model it has just trained."""
        options = {"components": self.components}
        return [Ask(NOBODY, question=feature_axes, options=options, sent=False)]

    def round(self, t: int) -> Conversation[None]:
        """Train, ask for the feature spaces, and mix the models."""
        jobs = self.broadcast(t)
        trained = yield Train(jobs)
        pairs = Jobs(trained, torch.arange(len(jobs)), jobs.client_of)
        [question] = self.asks()
        self.axes = yield question.only(pairs)
        self.aggregate(t, jobs, trained)

    def costs(self, present: Tensor, trained: Tensor) -> Matrix:
        """Return the cost ``[n, n]`` of each participant's weight in each other's mean."""
        similar = self.dissimilarity(present, trained)
        return self.lambda1 * closeness(self.axes, self.signed) + self.lambda2 * similar


def feature_axes(client: Client, model: Tensor, components: int) -> Tensor:
    """Return the main principal components ``[components, d]`` of a client's embeddings."""
    features = client.embed(model, "train").cpu().numpy()
    count = min(components, len(features) - 1, features.shape[1])  # the rest is rounding noise
    return torch.from_numpy(PCA(count, svd_solver="full").fit(features).components_)


def closeness(axes: Sequence[Tensor], signed: bool) -> Matrix:
    """Compute the cosine ``[n, n]`` of the mean angle between the axes of each pair of clients.

    Axes are matched greedily: the two with the largest cosine first, and then of the rest.
    """
    spaces = [basis.double().numpy() for basis in axes]
    cosine = np.empty((len(spaces), len(spaces)))
    for i, basis in enumerate(spaces):
        for j, other in enumerate(spaces):
            cosines = np.clip(basis @ other.T, -1, 1)
            cosines = cosines if signed else np.abs(cosines)
            angles = []
            for _ in range(min(cosines.shape)):
                row, column = np.unravel_index(np.argmax(cosines), cosines.shape)
                angles.append(np.arccos(cosines[row, column]))
                cosines[row], cosines[:, column] = -np.inf, -np.inf
            cosine[i, j] = np.cos(np.mean(angles))
    return cosine
