"""FedEM: federated expectation maximisation, where each client's data is a mixture.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal: Federated multi-task learning under a mixture
of distributions. NeurIPS 2021, Algorithm 1.
"""

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Count
from cflkit.federation import NOBODY, Conversation, Losses, Request, Server, Train
from cflkit.methods.base import Method, all_pairs, average_updates, each_its_own, local_updates


@dataclass(config=STRICT)
class FedEM(Method):
    """Clients train k components on weighted samples, and predict with a mixture of them.

    Parameters
    ----------
    k : int
        The number of components. They have different random initialisations.
    predicts : {"mixture", "last component"}
        What a client predicts with. In the code of EMD-CFL's comparison, it is the model that the
        client has trained last, which is its version of the last component.

    Attributes
    ----------
    shares : Tensor
        ``[m, k]``, the weights π of the components at each client.
    latest : Tensor
        ``[m, P + Q]``, each client's own version of the last component; empty unless clients
        predict with it.
    """

    partial: ClassVar[bool] = True

    k: Count = 3
    predicts: Literal["mixture", "last component"] = "mixture"

    def asks(self) -> list[Request]:
        """Return the requests for the losses of samples, and for training on weighted samples."""
        return [Losses(NOBODY, reported=False), Train(NOBODY.replace(weights=()))]

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, in which all components have equal weights."""
        super().setup(server, initial)
        self.labels = None  # type: ignore[assignment]
        self.models = torch.cat([initial[None], server.initials(self.k - 1, 0)])
        self.shares = torch.full((server.clients, self.k), 1 / self.k)
        kept = server.clients if self.predicts == "last component" else 0
        self.latest = initial.repeat(kept, 1)

    def round(self, t: int) -> Conversation[None]:
        """Weight the samples (E-step), weight the components and train them (M-step)."""
        present = self.server.participants(t)
        pairs = all_pairs(self.models, present)
        # A client keeps its losses to itself
        losses = yield self.asks()[0].only(pairs)
        q = [
            self.e_step(client, torch.stack(losses[place * self.k : (place + 1) * self.k]))
            for place, client in enumerate(present.tolist())
        ]
        self.m_step(present, q)
        weights = list(chain.from_iterable(q))  # of each client and component
        trained = yield Train(pairs.replace(weights=weights))
        if len(self.latest):
            self.latest = self.latest.clone()
            self.latest[present] = trained[self.k - 1 :: self.k]
        updates = local_updates(trained, self.models, pairs.model_of)
        sizes = self.server.sizes[pairs.client_of]
        self.models = average_updates(self.models, updates, pairs.model_of, sizes)

    def e_step(self, client: int, losses: Tensor) -> Tensor:
        """Compute the probability of each component for each sample of a client.

        Parameters
        ----------
        client : int
            The client.
        losses : Tensor
            ``[k, n]``, the losses of the components on the client's training samples.

        Returns
        -------
        Tensor
            ``[k, n]``, the responsibilities q ∝ π exp(−loss), which sum to 1 for each sample.
        """
        log_shares = self.shares[client].log().to(losses.device)
        return (log_shares[:, None] - losses).softmax(dim=0)

    def m_step(self, present: Tensor, q: Sequence[Tensor]) -> None:
        """Set the weights of the components at each participant to its mean responsibilities."""
        self.shares = self.shares.clone()
        self.shares[present] = torch.stack([client.mean(dim=1).cpu() for client in q])

    def client_models(self) -> tuple[Tensor, Tensor]:
        """Return the components and each client's weights of them."""
        return each_its_own(self.latest) if len(self.latest) else (self.models, self.shares)
