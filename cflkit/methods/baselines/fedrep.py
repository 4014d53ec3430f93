"""FedRep: clients share the layers that represent images, and each has a last layer of its own.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting shared representations for
personalized federated learning. ICML 2021, Algorithm 1.
"""

import dataclasses
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT, Count
from cflkit.federation import Conversation, Jobs, Train
from cflkit.methods.base import Personal, Weighting, client_weights, weighted_means


@dataclass(config=STRICT)
class FedRep(Personal):
    """Federated averaging of all layers but the last, which each client trains before them.

    Parameters
    ----------
    head_epochs : int, optional
        The number of epochs in which a client trains its last layer, with the others fixed; by
        default the federation's.
    body_epochs : int
        The number of epochs in which it then trains the others, with its last layer fixed.
    weighting : {"equal", "samples"}
        The weights of clients in the mean; equal ones in the paper.

    Attributes
    ----------
    personal : Tensor
        ``[m, P + Q]``, the common layers with each client's own last layer.

    Notes
    -----
    The bytes of a run count whole models, though the last layers stay at the clients.
    """

    partial: ClassVar[bool] = True

    head_epochs: Count | None = None
    body_epochs: Count = 1
    weighting: Weighting = "equal"

    def round(self, t: int) -> Conversation[None]:
        """Train the participants' last layers, then their other layers, and average the latter."""
        present, usual = self.server.participants(t), self.server.training
        rows, places = torch.arange(len(present)), self.server.last_layer()
        epochs = self.head_epochs or usual.epochs
        training = dataclasses.replace(usual, trains="head", epochs=epochs)
        jobs = Jobs(self.personal, present, present, training)
        trained = yield Train(jobs, reported=False)
        heads = trained[:, places]
        if len(places) < self.server.parameters:  # else the network has nothing to share
            training = dataclasses.replace(usual, trains="body", epochs=self.body_epochs)
            trained = yield Train(Jobs(trained, rows, present, training), sent=False)
        weights = client_weights(self.server, self.weighting)[present]
        self.models = weighted_means(self.models, trained, weights[None])
        kept = self.personal[:, places]
        kept[present] = heads
        self.personal = self.models.repeat(self.server.clients, 1)
        self.personal[:, places] = kept
