"""Ditto: a personal model per client, which is pulled to the common model of federated averaging.

T. Li, S. Hu, A. Beirami, V. Smith: Ditto: fair and robust federated learning through
personalization. ICML 2021, Algorithm 1.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT, NonNegative
from cflkit.federation import Conversation, Jobs, Train
from cflkit.methods.base import Personal, weighted_means
from cflkit.methods.baselines.fedprox import proximal_training


@dataclass(config=STRICT)
class Ditto(Personal):
    """Federated averaging beside personal models, with which the clients predict.

    Parameters
    ----------
    mu : float
        The strength λ of the pull. Clients minimise their loss plus λ/2 ‖v − w‖², where w is the
        common model at the start of the round. With λ = 0 this is local training.

    Attributes
    ----------
    personal : Tensor
        ``[m, P + Q]``, the personal models v.
    """

    partial: ClassVar[bool] = True

    mu: NonNegative = 0.1

    def round(self, t: int) -> Conversation[None]:
        """Run a round of federated averaging, and train the personal models at the clients."""
        present = self.server.participants(t)
        same = torch.zeros_like(present)  # the common model, which is the only row
        training = proximal_training(self.server, self.mu)
        common = [self.models[0]] * len(present)
        pulled = Jobs(self.personal, present, present, training, anchor=common)
        # The training that FedAvg has, too, comes first, so that the lockstep joins them
        trained = yield Train(Jobs(self.models, same, present))
        personal = yield Train(pulled, sent=False, reported=False)
        self.personal = self.personal.clone()
        self.personal[present] = personal
        self.models = weighted_means(self.models, trained, self.server.sizes[present][None])
