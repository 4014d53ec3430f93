"""IFCA, the iterative federated clustering algorithm.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran: An efficient framework for clustered federated learning.
NeurIPS 2020, Algorithm 1 (with model averaging).
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Count
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
from cflkit.methods.base import Method, Weighting, all_pairs


@dataclass(config=STRICT)
class IFCA(Method):
    """In every round, each client trains the model, among k, with the smallest loss on its data.

    Parameters
    ----------
    k : int
        The number of models, which is the number of clusters that the method is told. The models
        have different random initialisations.
    chosen_by : {"train", "validation"}
        The split of a client's data whose mean loss decides. IFCA's authors use the training data,
        and the code of EMD-CFL's comparison the validation data.
    weighting : {"equal", "samples"}
        The weights of clients in the mean of a cluster. IFCA's authors give equal weights, and the
        code of EMD-CFL's comparison weights by numbers of samples.
    """

    partial: ClassVar[bool] = True

    k: Count = 3
    chosen_by: Literal["train", "validation"] = "train"
    weighting: Weighting = "equal"

    def samples_needed(self) -> dict[str, int]:
        """Return that each client needs a sample, with which it chooses a model."""
        return {self.chosen_by: 1}

    def asks(self) -> list[Request]:
        """Return the request for each client's choice; a client keeps its losses to itself."""
        return [Losses(NOBODY, split=self.chosen_by, told=choice, reported=False)]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round; the first model is the one with which all methods begin."""
        super().setup(server, initial)
        self.models = torch.cat([initial[None], server.initials(self.k - 1, 0)])

    def round(self, t: int) -> Conversation[None]:
        """Send all models, let each participant choose one and train it, and average per cluster.

        The clients that are absent keep their clusters. A model that nobody chooses stays as it is.
        """
        present = self.server.participants(t)
        [request] = self.asks()
        choices = yield request.only(all_pairs(self.models, present))
        chosen = torch.stack(choices).view(-1, self.k).int().argmax(dim=1).cpu()
        self.labels[present] = chosen
        jobs = Jobs(self.models, chosen, present)
        self.aggregate(t, jobs, (yield Train(jobs)))  # federated averaging per cluster


def choice(losses: Sequence[Tensor], training: LocalTraining) -> Tensor:
    """Return which of k models has the smallest mean loss at a client, ``[k]``, bool."""
    best = torch.stack([loss.mean() for loss in losses]).argmin()
    return F.one_hot(best, len(losses)).bool()
