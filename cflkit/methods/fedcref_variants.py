"""FedCRef as its authors' code does it, its upper bound, and clients without a federation."""

from collections.abc import Sequence

import numpy as np
from pydantic.dataclasses import dataclass
from torch import Tensor

from cflkit._bounds import STRICT, Match, Normalisation, Stop
from cflkit.clustering import Labels
from cflkit.divergence import Matrix
from cflkit.federation import Server
from cflkit.methods.fedcref import FedCRef, stable
from cflkit.methods.fedcref_clusters import Edges, PerSample, labels_of, true_classes


@dataclass(config=STRICT)
class FedCRefVariant(FedCRef):
    """FedCRef with choices that the paper leaves open or makes otherwise.

    Parameters
    ----------
    normalisation : {"min-max", "absolute"}
        The normalisation of differences. With ``min-max``, as published, the differences of a pair
        range from 0 to 1, however small they are, and one outlier changes all others. With
        ``absolute``, they remain differences between mean squared errors of pixels in [0, 1]. This
        needs another order of magnitude for θ, such as 0.02.
    match : {"all", "first", "best"}
        The clusters of another client with which a cluster may be associated: ``all`` that agree,
        as in Algorithm 1; the ``first`` that agrees; or the ``best``, with the smallest α-th
        percentile. One match must hold from both sides here. The authors' code takes the first one
        from the side of the client with the smaller number alone, and so keeps more associations.
    stop : {"paper", "code"}
        The rule by which a run ends. By ``code``, the numbers of communities and of isolated
        clusters may change by 10 and 15 %, and the run also ends when clients have refined ten
        times on average. In both cases, a run also ends when no client is active; the authors' code
        then continues until it is stable.
    """

    normalisation: Normalisation = "min-max"
    match: Match = "all"
    stop: Stop = "paper"

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first iteration; no client has refined its clusters."""
        super().setup(server, initial)
        self.refined = np.zeros(server.clients, dtype=np.int64)

    @property
    def finished(self) -> bool:
        """Return whether no client is active, or the rule ``stop`` ends the run."""
        if self.stop == "paper":
            return super().finished
        enough = bool(self.refined.mean() >= 10)
        return not self.active.any() or stable(self.counts, (0.10, 0.15)) or enough

    def differences(self, errors: Matrix, cluster: int) -> Matrix:
        """Compute the differences of errors, normalised or not."""
        if self.normalisation == "absolute":
            return np.abs(errors[cluster] - errors)
        return super().differences(errors, cluster)

    def associated(self, errors: Sequence[Matrix]) -> Edges:
        """Find the associated clusters, with one match per cluster and client if asked."""
        both = super().associated(errors)
        if self.match == "all":
            return both
        far = self.percentiles(errors)
        return keep_one_match(both, np.maximum(far, far.T), self.owner, self.match)

    def refine(self, client: int, general: Matrix) -> None:
        """Refine a client's clusters, and count that it did."""
        super().refine(client, general)
        self.refined[client] += 1


@dataclass(config=STRICT)
class PerfectAssociations(FedCRefVariant):
    """The paper's upper bound: clusters of the same true class are associated.

    Parameters
    ----------
    truth : sequence of sequence of int
        For each client, the class of each of its training samples.
    """

    truth: PerSample = ()

    def setup(self, server: Server, initial: Tensor) -> None:
        """Prepare for the first iteration, if the truth fits the clients' samples."""
        labels_of(self.truth, server)
        super().setup(server, initial)

    def associated(self, errors: Sequence[Matrix]) -> Edges:
        """Associate the clusters of different clients that represent the same class."""
        classes = true_classes(self.truth, self.clusterings)
        alike = (classes[:, None] == classes) & (classes >= 0)
        return alike & (self.owner[:, None] != self.owner)


@dataclass(config=STRICT)
class Alone(FedCRefVariant):
    """Clients without associations, who refine their clusters with their own models alone."""

    def associated(self, errors: Sequence[Matrix]) -> Edges:
        """Associate nothing."""
        return np.zeros((len(self.owner), len(self.owner)), dtype=bool)


def keep_one_match(both: Edges, distance: Matrix, owner: Labels, match: str) -> Edges:
    """Keep at most one of the agreeing pairs per cluster and other client.

    A cluster's match with another client is the first of this client's clusters that agrees, or the
    agreeing cluster with the smallest ``distance``. A pair is kept if each of the two clusters is
    the match of the other.
    """
    rank = np.arange(len(owner))[None] if match == "first" else distance
    rank = np.where(both, rank, np.inf)
    kept = np.zeros_like(both)
    for client in np.unique(owner):
        theirs = np.flatnonzero(owner == client)
        chosen = theirs[rank[:, theirs].argmin(axis=1)]
        kept[np.arange(len(owner)), chosen] = True
    kept &= both  # argmin chooses a cluster even if none of the client's agrees
    return kept & kept.T
