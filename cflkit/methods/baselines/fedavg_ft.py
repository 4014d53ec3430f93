"""FedAvg, then fine-tuned: each client trains the common model once more, and keeps the result.

T. Yu, E. Bagdasaryan, V. Shmatikov: Salvaging federated learning by local adaptation. arXiv
2002.04758. L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: FedAvg with fine tuning: local
updates lead to representation learning. NeurIPS 2022.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from cflkit._bounds import STRICT, Natural
from cflkit.federation import Conversation, Jobs, Train
from cflkit.methods.base import Personal, Weighting


@dataclass(config=STRICT)
class FedAvgFT(Personal):
    """Federated averaging, evaluated after some epochs of fine-tuning at each client.

    It is the control that decides whether clusters are worth it: it needs no clusters, and sends
    nothing more than FedAvg. The fine-tuned models are for predictions alone. The next round begins
    with the common model.

    Parameters
    ----------
    epochs : int, optional
        The number of epochs of fine-tuning; by default those of a local training. With 0, the
        method is FedAvg.
    weighting : {"samples", "equal"}
        The weights of clients in the mean, as in `FedAvg`.

    Attributes
    ----------
    personal : Tensor
        ``[m, P + Q]``, the fine-tuned models. A client that is away keeps its last one.

    Notes
    -----
    The batches of fine-tuning are those of the next round's training. The bytes of a run are
    FedAvg's, since the next round sends the model that is fine-tuned. If only some clients take
    part in a round, the others fine-tune it, too, and this message is not counted.
    """

    partial: ClassVar[bool] = True
    reference: ClassVar[str] = "fine_tuned"

    epochs: Natural | None = None
    weighting: Weighting = "samples"

    def round(self, t: int) -> Conversation[None]:
        """Run a round of federated averaging, and let all clients fine-tune its result."""
        present = self.server.participants(t)
        jobs = Jobs(self.models, torch.zeros_like(present), present)  # all train the one model
        self.aggregate(t, jobs, (yield Train(jobs)))

        there, usual = self.server.reachable(t), self.server.training
        self.personal = self.personal.clone()
        self.personal[there] = self.models
        if self.epochs != 0:
            training = None if self.epochs is None else replace(usual, epochs=self.epochs)
            tuned = Jobs(self.models, torch.zeros_like(there), there, training)
            self.personal[there] = yield Train(tuned, order=t + 1, sent=False, reported=False)
