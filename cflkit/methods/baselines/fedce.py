"""FedCE: every client is associated with every cluster, with a strength that grows over rounds.

L. Cai, N. Chen, Y. Cao, J. He, Y. Li: FedCE: personalized federated learning method based on
clustering ensembles. ACM Multimedia 2023. There is no code of its authors. This is the method as
EMD-CFL's comparison describes and runs it.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Count, NonNegative
from cflkit.federation import (
    NOBODY,
    Conversation,
    Jobs,
    LocalTraining,
    Losses,
    Request,
    Server,
    Train,
)
from cflkit.methods.base import Method, all_pairs, weighted_means


@dataclass(config=STRICT)
class FedCE(Method):
    """Clients train the best model, and all models learn from all clients.

    Parameters
    ----------
    k : int
        The number of models, which the method is told. They have different initialisations.
    delta : float
        The decay δ. A model whose losses on a client's batches have distance d from those of the
        best model gains the association exp(−δ d).
    split : {"train", "validation"}
        The split of a client's data on which the models are compared.
    counted : {"best", "prefixes"}
        Which models gain an association of 1 in a round: the best, or the best of the first one,
        two, … and k models. The latter is a slip in the code of EMD-CFL's comparison.

    Attributes
    ----------
    association : Tensor
        ``[m, k]``, the sums h of all associations.
    best : Tensor
        ``[m]``, the model with the smallest loss for each client, with which it predicts.
    """

    k: Count = 3
    delta: NonNegative = 0.5
    split: Literal["train", "validation"] = "train"
    counted: Literal["best", "prefixes"] = "best"

    def samples_needed(self) -> dict[str, int]:
        """Return that each client needs a sample, with which it measures losses."""
        return {self.split: 1}

    def asks(self) -> list[Request]:
        """Return the request for what each client gains; a client keeps its losses to itself."""
        options = {"delta": self.delta, "counted": self.counted}
        return [Losses(NOBODY, split=self.split, told=gains, options=options, reported=False)]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, without associations."""
        super().setup(server, initial)
        self.labels = None  # type: ignore[assignment]
        self.models = torch.cat([initial[None], server.initials(self.k - 1, 0)])
        self.association = torch.zeros(server.clients, self.k)
        self.best = torch.zeros(server.clients, dtype=torch.int64)

    def round(self, t: int) -> Conversation[None]:
        """Update the associations, train each client's best model, and average for every model."""
        everyone = torch.arange(self.server.clients)
        [request] = self.asks()
        answers = torch.stack((yield request.only(all_pairs(self.models, everyone))))
        gained, best = answers.view(-1, self.k, 2).unbind(dim=2)
        self.association, self.best = self.association + gained, best.argmax(dim=1)
        trained = yield Train(Jobs(self.models, self.best, everyone))
        # Each model's weights of the clients
        shares = self.association.softmax(dim=0).T
        self.models = weighted_means(self.models, trained, shares)

    def client_models(self) -> tuple[Tensor, Tensor]:
        """Return the models, of which each client uses the best."""
        return self.models, F.one_hot(self.best, self.k).float()


def gains(losses: Sequence[Tensor], training: LocalTraining, delta: float, counted: str) -> Tensor:
    """Compute ``[k, 2]`` from a client's losses: what each model gains, and 1 for the best one."""
    whole = torch.stack(list(losses)).cpu()
    means = whole.mean(dim=1)
    best = int(means.argmin())
    batches = whole.split(training.batch_size, dim=1)
    profile = torch.stack([batch.mean(dim=1) for batch in batches], dim=1)
    gained = torch.exp(-delta * (profile - profile[best]).norm(dim=1))
    if counted == "prefixes":
        for last in range(len(whole) - 1):
            gained[means[: last + 1].argmin()] += 1
    return torch.stack([gained, (torch.arange(len(whole)) == best).to(gained)], dim=1)
