"""pFedGraph: a personal model per client, mixed with those of clients whose updates are similar.

R. Ye, Z. Ni, F. Wu, S. Chen, Y. Wang: Personalized federated learning with inferred collaboration
graphs. ICML 2023.
"""

from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Positive
from cflkit.divergence import Matrix
from cflkit.methods.baselines.collaboration import Collaboration


@dataclass(config=STRICT)
class PFedGraph(Collaboration):
    """The server learns with which weights each client should average the others' models.

    Parameters
    ----------
    alpha : float
        The strength α that keeps the weights near the clients' shares of samples.
    """

    alpha: Positive = 0.8

    def costs(self, present: Tensor, trained: Tensor) -> Matrix:
        """Return the cost ``[n, n]`` of each participant's weight in each other's mean."""
        return self.dissimilarity(present, trained) / self.alpha
