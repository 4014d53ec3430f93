"""OCFL that waits until two halves of what it has seen show the same groups, twice running.

This rule is ours (`cflkit.halves`). It takes the place of the temperature in OCFL. Adding up what a
client sends before clustering is the idea of H. Kim, H. Kim, G. de Veciana: Clustered federated
learning via gradient-based partitioning (ICML 2024). Agreement of two halves is old in statistics:
split-half reliability; prediction strength (Tibshirani and Walther 2005); stability (Lange, Roth,
Braun and Buhmann 2004).
"""

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering, halves
from cflkit._bounds import STRICT
from cflkit.divergence import temperature
from cflkit.federation import Jobs, Server
from cflkit.methods.base import Weighting, local_updates
from cflkit.methods.ocfl import OneShot


@dataclass(config=STRICT)
class ReplicatedOCFL(OneShot):
    """One-shot clustered federated learning, when odd and even rounds agree on the groups.

    Parameters
    ----------
    split : {"rounds", "samples"}
        What the halves are of. Rounds alone tell which differences *persist*, and these can be
        peculiar to a client's samples. With samples, a client trains on one half of its samples in
        odd rounds, and on the other in even rounds, until the clusters are compared. Then only what
        belongs to its distribution agrees. This costs half of the data in these rounds, and needs
        about 80 images per client.
    clusterer : str
        The clustering algorithm, a name that `clustering.make` knows.
    options : dict
        The options of the clusterer.
    include_buffers : bool
        Whether update vectors also contain BatchNorm's statistics and batch counters.
    weighting : {"equal", "samples"}
        The weights of a cluster's members.
    """

    split: Literal["rounds", "samples"] = "rounds"
    include_buffers: bool = False
    weighting: Weighting = "equal"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Begin with one cluster of all clients, and without any sum."""
        super().setup(server, initial)
        length = len(initial) if self.include_buffers else server.parameters
        # The sums of each client's updates in the even and in the odd rounds (from 0)
        self.sums = torch.zeros(2, server.clients, length)
        # The clusters of the last round, if its halves agreed
        self.agreed: clustering.Labels | None = None

    def samples_needed(self) -> dict[str, int]:
        """Return that halves of samples need two samples of each client."""
        return {"train": 2} if self.split == "samples" else {}

    def broadcast(self, t: int) -> Jobs:
        """Return the jobs of a round; until the clusters are found, perhaps on half the samples."""
        jobs = super().broadcast(t)
        if self.split == "rounds" or self.clustered:
            return jobs
        sizes = [self.server.num_samples(client) for client in jobs.client_of.tolist()]
        return jobs.replace(subset=[torch.arange(t % 2, size, 2) for size in sizes])

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Add up the updates, cluster if both halves agree twice running, and average."""
        updates = local_updates(trained, self.models, self.labels)
        self.scalars = {}
        if not self.clustered:
            self.sums[t % 2] += self.vectors(updates).to(self.sums)
            if t > 0:
                self.compare_halves()
        self.add_means(updates, self.labels, jobs.client_of)

    def compare_halves(self) -> None:
        """Divide the clients if both halves agree, and agreed on the same clusters before."""
        clusterer = clustering.make(self.clusterer, **self.options)
        compared = halves.compare(self.sums[0], self.sums[1], clusterer)
        self.scalars = {"agreement": compared.agreement, "shared": compared.shared}
        self.scalars["temperature"] = temperature(compared.divergence)
        if halves.replicated(compared, self.agreed):
            self.divide(compared.labels)
            self.sums = self.sums[:, :0].clone()  # they are needed no more; a view would keep them
        self.agreed = compared.labels if compared.agree else None
