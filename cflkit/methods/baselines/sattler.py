"""Clustered federated learning by recursive bipartition (SCL of the OCFL papers).

F. Sattler, K.-R. Müller, W. Samek: Clustered federated learning: model-agnostic distributed
multitask optimization under privacy constraints. IEEE Transactions on Neural Networks and Learning
Systems 32(8), 2021.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Natural, Positive
from cflkit.divergence import cosine_divergence, finite_updates
from cflkit.federation import Jobs, Server
from cflkit.methods.base import Method, Weighting, local_updates

Linkage = Literal["complete", "single"]


@dataclass(config=STRICT)
class Sattler(Method):
    """Split a cluster in two if its mean update is close to zero, but a member's update is not.

    Parameters
    ----------
    eps1 : float, optional
        The threshold ε₁, in the units of the parameters. A cluster may be split if the norm of its
        mean update is below ε₁. By default, ε₁ follows from the mean updates so far, by
        `recommended_thresholds`.
    eps2 : float, optional
        The threshold ε₂. A cluster may be split if the norm of a member's update is above ε₂. By
        default, it is ten times ε₁, the upper end of the paper's interval.
    min_rounds : int
        The number of rounds before the first split: 20 in the authors' code, none in the paper.
    include_buffers : bool
        Whether updates also contain BatchNorm's statistics and batch counters, as in the OCFL
        authors' code.
    weighting : {"equal", "samples"}
        The weights of members in a cluster's average. The authors' code gives equal weights.
    linkage : {"complete", "single"}
        How a cluster is divided (`bipartition`): as in the authors' code, or as in the paper.

    Notes
    -----
    The separation condition in the paper's equation on γ_max is not checked, and there is no pause
    after a split, also as in that code. A cluster of one or two clients is never split. That code
    also keeps the models from before each split, and at the end a client may choose the best of
    those on its path. Here, it has the last one.
    """

    eps1: Positive | None = None
    eps2: Positive | None = None
    min_rounds: Natural = 20
    include_buffers: bool = False
    weighting: Weighting = "equal"
    linkage: Linkage = "complete"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first round, with one cluster of all clients."""
        super().setup(server, initial)
        self.mean_norms: list[float] = []

    def aggregate(self, t: int, jobs: Jobs, trained: Tensor) -> None:
        """Split the clusters that meet the conditions, and average the updates in each cluster."""
        updates = local_updates(trained, self.models, self.labels)
        compared = finite_updates(self.vectors(updates))
        clusters = [(self.labels == c).nonzero().flatten() for c in range(len(self.models))]
        norms = [update_norms(compared[members]) for members in clusters]
        self.mean_norms += [mean for mean, _ in norms]
        eps1 = recommended_thresholds(self.mean_norms)[0] if self.eps1 is None else self.eps1
        eps2 = 10 * eps1 if self.eps2 is None else self.eps2

        parents = list(range(len(clusters)))
        labels = self.labels.clone()
        for cluster, (members, (mean, largest)) in enumerate(zip(clusters, norms, strict=True)):
            stationary, incongruent = mean < eps1, largest > eps2
            if stationary and incongruent and len(members) > 2 and t >= self.min_rounds:
                labels[members[bipartition(compared[members], self.linkage)]] = len(parents)
                parents.append(cluster)
        self.labels = labels
        self.scalars = {
            "mean_norm": "|".join(f"{mean:.4g}" for mean, _ in norms),
            "max_norm": "|".join(f"{largest:.4g}" for _, largest in norms),
            "eps1": eps1,
            "eps2": eps2,
        }

        # Both halves start from their parent's model and add the updates of their own members
        self.models = self.models[parents]
        self.add_means(updates, self.labels, jobs.client_of)


def recommended_thresholds(mean_norms: Sequence[float]) -> tuple[float, float]:
    """Compute thresholds by the paper's rule from the norms of the mean updates of all rounds.

    By this rule, ε₁ is a tenth of the largest norm, and ε₂ is at most 10 ε₁.

    Returns
    -------
    tuple of float
        ε₁, and the upper end of the interval [ε₁, 10 ε₁] for ε₂.

    Raises
    ------
    ValueError
        There are no norms.
    """
    if not len(mean_norms):
        raise ValueError("the rule needs the norm of at least one round")
    largest = max(mean_norms)
    return largest / 10, largest


def update_norms(updates: Tensor) -> tuple[float, float]:
    """Return the norm of the mean of ``updates`` (``[n, P]``), and the largest of their norms."""
    return float(updates.mean(dim=0).norm()), float(updates.norm(dim=1).max())


def bipartition(updates: Tensor, linkage: Linkage = "complete") -> Tensor:
    """Divide the members of a cluster in two, and return which of them leave it: ``[n]``, bool.

    Single linkage is the paper's Algorithm 1: no bipartition has a smaller largest cosine
    similarity across. The authors' code has complete linkage, which only approximates it.
    """
    halves = clustering.make("agglomerative", n_clusters=2, linkage=linkage)
    return torch.from_numpy(halves.fit_predict(cosine_divergence(updates))) == 1
