"""FeSEM: k-means of the clients' models, with one step of it per round.

G. Long, M. Xie, T. Shen, T. Zhou, X. Wang, J. Jiang: Multi-center federated learning: clients
clustering for better personalization. World Wide Web 26, 2023 (federated stochastic expectation
maximisation, Algorithm 1).
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Count, NonNegative
from cflkit.clustering import canonical_labels, k_means
from cflkit.divergence import coordinates
from cflkit.federation import Conversation, Jobs, Server, Train
from cflkit.methods.base import Method, Weighting, average_updates, client_weights
from cflkit.methods.baselines.fedprox import proximal_training


@dataclass(config=STRICT)
class FeSEM(Method):
    """In every round, each client joins the centre that is nearest to its model.

    Parameters
    ----------
    k : int
        The number of centres, which the method is told; at most one per client.
    mu : float
        The strength of the pull towards the centre during local training, as in `FedProx`.
    zeros_first : bool
        Whether the first k-means comes before any training, as in the code of EMD-CFL's
        comparison. All clients then have the same model, and form one cluster here. In that code,
        rounding errors of their distances decide, so its clusters depend on the machine.
    received : bool
        Whether clients predict with the centre that they received in a round, and are then compared
        with it, as in the paper's order of steps. Otherwise the round ends with the new means.
    squared : bool
        The pull, as in `FedProx`; not squared in the code of EMD-CFL's comparison.
    weighting : {"equal", "samples"}
        The weights of clients in the mean of a centre. The method's authors give equal weights.

    Attributes
    ----------
    latest : Tensor
        ``[m, P + Q]``, the model that each client has trained last; empty before the first round.
    """

    k: Count = 3
    mu: NonNegative = 0.1
    zeros_first: bool = False
    received: bool = False
    squared: bool = True
    weighting: Weighting = "equal"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        self.latest = initial.new_empty(0)

    def round(self, t: int) -> Conversation[None]:
        """Assign clients to centres, move the centres to their means, and let the clients train."""
        if t > 0 and (not torch.equal(nearest := self.nearest(), self.labels) or self.received):
            self.labels = nearest
            self.models = self.centres()
        everyone = torch.arange(self.server.clients)
        # A pull towards the received centre
        training = proximal_training(self.server, self.mu, self.squared)
        self.latest = yield Train(Jobs(self.models, self.labels, everyone, training=training))
        if t == 0:
            self.start()
        if not self.received or (t == 0 and not self.zeros_first):
            self.models = self.centres()

    def start(self) -> None:
        """Cluster by k-means the models that all clients have trained from the same start."""
        k = min(self.k, len(self.latest))
        if self.zeros_first:  # the other centres are new models, to which no client is near
            self.models = torch.cat([self.models, self.server.initials(k - 1, 0)])
            return
        points = coordinates(self.latest[:, : self.server.parameters])
        means = k_means(points, k, max_iter=20, random_state=0)
        self.labels = torch.from_numpy(canonical_labels(means.labels_))
        self.models = self.models.repeat(k, 1)

    def nearest(self) -> Tensor:
        """Return the nearest centre ``[m]`` of each client's last model (the E-step).

        All parameters are compared; the authors' code takes those of one dense layer.
        """
        p = self.server.parameters
        latest, centres = self.latest[:, :p], self.models[:, :p]
        distances = torch.stack([(latest - centre).norm(dim=1) for centre in centres])
        return distances.argmin(dim=0).cpu()

    def centres(self) -> Tensor:
        """Return the means ``[K, P + Q]`` of the clients' last models (the M-step)."""
        updates = self.latest - self.models[self.labels]
        weights = client_weights(self.server, self.weighting)
        return average_updates(self.models, updates, self.labels, weights)
