"""FedRC: a mixture as in FedEM, in which a component does not depend on the shares of classes.

Y. Guo, X. Tang, T. Lin: FedRC: tackling diverse distribution shifts challenge in federated learning
by robust clustering. ICML 2024.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT
from cflkit.federation import Ask, Client, Conversation, Server, without_models
from cflkit.methods.baselines.fedem import FedEM

# The smallest sum of responsibilities for a class, which keeps the quotient finite
FLOOR = 1e-8


@dataclass(config=STRICT)
class FedRC(FedEM):
    """Mixtures whose responsibilities are divided by the share of the sample's class.

    A component with many samples of a class has a small loss on this class just because it is
    frequent. Without the division, components would group clients by their classes.

    Attributes
    ----------
    classes : list of Tensor
        m tensors ``[n]``: the labels of each client's training samples, which stay at the client.
    class_shares : Tensor
        ``[k, classes]``, the share of each class among the samples of each component.
    """

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, in which all classes have equal shares."""
        super().setup(server, initial)
        self.class_shares = torch.empty(0)

    def enter(self, server: Server) -> None:
        """Take part in the federation of a server, whose clients tell their classes anew."""
        super().enter(server)
        self.classes: list[Tensor] = []

    def round(self, t: int) -> Conversation[None]:
        """Run a round of FedEM, with responsibilities that account for the shares of classes."""
        if not self.classes:
            self.needs_everyone(t)
            jobs = without_models(torch.arange(self.server.clients))
            self.classes = yield Ask(jobs, question=labels_of, reported=False)
            count = 1 + max(int(labels.max()) for labels in self.classes)
            if self.class_shares.shape != (self.k, count):
                self.class_shares = torch.full((self.k, count), 1 / count)
        yield from super().round(t)

    def e_step(self, client: int, losses: Tensor) -> Tensor:
        """Compute ``[k, n]``: q ∝ π exp(−loss) / (share of the sample's class)."""
        shares = self.class_shares[:, self.classes[client]].to(losses.device)
        return super().e_step(client, losses + shares.log())

    def m_step(self, present: Tensor, q: Sequence[Tensor]) -> None:
        """Set the weights of the components, and sum the responsibilities of each class."""
        super().m_step(present, q)
        count = self.class_shares.shape[1]
        of_clients = [
            responsibilities.cpu() @ F.one_hot(self.classes[client], count).float()
            for client, responsibilities in zip(present.tolist(), q, strict=True)
        ]
        sums = torch.stack(of_clients).sum(dim=0).clamp_min(FLOOR)
        self.class_shares = sums / sums.sum(dim=1, keepdim=True)


def labels_of(client: Client, model: Tensor) -> Tensor:
    """Return the labels ``[n]`` of a client's training samples."""
    return client.samples()[1].cpu()
