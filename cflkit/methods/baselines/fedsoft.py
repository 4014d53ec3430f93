"""FedSoft: soft clusters, and a personal model per client that is pulled to a mixture of centres.

Y. Ruan, C. Joe-Wong: FedSoft: soft clustered federated learning with proximal local updating.
AAAI 2022, Algorithm 1.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
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
    Send,
    Server,
    Train,
)
from cflkit.methods.base import Personal, all_pairs, weighted_means
from cflkit.methods.baselines.fedprox import proximal_training


@dataclass(config=STRICT)
class FedSoft(Personal):
    """Each client trains one model, and every centre is a weighted mean of these models.

    The paper draws clients for each centre, in proportion to their samples in the cluster. Here all
    train, and these shares are weights, as in the authors' code if it draws no clients.

    Parameters
    ----------
    k : int
        The number of centres, which the method is told.
    mu : float
        The strength λ of the pull to the centres. The clients minimise their loss plus
        λ/2 Σₛ uₛ ‖θ − cₛ‖², which differs from λ/2 ‖θ − Σₛ uₛ cₛ‖² by a constant.
    interval : int
        The number τ of rounds from one estimate of the weights u to the next.
    smoother : float
        The smallest weight that a centre has for a client before the weights are scaled to sum 1.
    split : {"train", "validation"}
        The data on which a client compares the centres.
    counted : {"samples", "batches"}
        What goes to its best centre: each sample, or each batch (EMD-CFL's comparison).
    start : {"own", "mixture"}
        Where local training begins: at the client's model, or at Σₛ uₛ cₛ (that comparison).

    Attributes
    ----------
    personal : Tensor
        ``[m, P + Q]``, the clients' models.
    importance : Tensor
        ``[m, k]``, the weights u of the centres for each client, which sum to 1.
    """

    partial: ClassVar[bool] = True

    k: Count = 3
    mu: NonNegative = 0.1
    interval: Count = 2
    smoother: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    split: Literal["train", "validation"] = "train"
    counted: Literal["samples", "batches"] = "samples"
    start: Literal["own", "mixture"] = "own"

    def samples_needed(self) -> dict[str, int]:
        """Return that each client needs a sample, with which it measures losses."""
        return {self.split: 1}

    def asks(self) -> list[Request]:
        """Return the request for each client's weights; a client keeps its losses to itself."""
        options = {"counted": self.counted, "smoother": self.smoother}
        return [Losses(NOBODY, split=self.split, told=importance, options=options, reported=False)]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with equal weights of the centres."""
        super().setup(server, initial)
        self.models = torch.cat([initial[None], server.initials(self.k - 1, 0)])
        self.importance = torch.full((server.clients, self.k), 1 / self.k)
        self.estimated = torch.zeros(server.clients, dtype=torch.bool)

    def round(self, t: int) -> Conversation[None]:
        """Estimate the weights, train the personal models, and average them for every centre."""
        present = self.server.participants(t)
        pairs = all_pairs(self.models, present)
        # A client that was absent whenever weights were due gets its first ones now
        if t % self.interval and self.estimated[present].all():
            yield Send(pairs)
        else:
            [request] = self.asks()
            weights = yield request.only(pairs)
            self.importance = self.importance.clone()
            self.importance[present] = torch.stack(weights).view(-1, self.k)
            self.estimated[present] = True
        mixtures = self.importance[present].to(self.models) @ self.models
        starts = mixtures if self.start == "mixture" else self.personal[present]
        rows, training = torch.arange(len(present)), proximal_training(self.server, self.mu)
        jobs = Jobs(starts, rows, present, training, anchor=mixtures)
        trained = yield Train(jobs, sent=False)  # from models that the clients have
        self.personal = self.personal.clone()
        self.personal[present] = trained
        samples = self.importance[present] * self.server.sizes[present, None]
        self.models = weighted_means(self.models, trained, samples.T)


def importance(
    losses: Sequence[Tensor], training: LocalTraining, counted: str, smoother: float
) -> Tensor:
    """Compute a client's weights ``[k]`` from the losses ``[n]`` of each of the centres."""
    whole = torch.stack(list(losses)).cpu()
    if counted == "batches":
        parts = whole.split(training.batch_size, dim=1)
        whole = torch.cat([p.mean(dim=1, keepdim=True).expand_as(p) for p in parts], dim=1)
    counts = whole.argmin(dim=0).bincount(minlength=len(whole))
    weights = (counts / counts.sum()).clamp_min(smoother)
    return weights / weights.sum()
