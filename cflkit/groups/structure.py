"""Are there groups at all? How clear the best clusters are, beside those of a cloud without groups.

The test follows SigClust (Y. Liu, D. Hayes, A. Nobel, J. Marron, JASA 2008): clients without groups
are one Gaussian cloud as wide as what was seen. It has the silhouette (P. Rousseeuw, J. Comput.
Appl. Math. 1987) in place of SigClust's index, which is made for two clusters.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cflkit._bounds import checked_seed
from cflkit.clustering import dendrogram
from cflkit.divergence import checked_distances

# L. Kaufman, P. Rousseeuw, Finding Groups in Data, 1990: clusters with less are weak
REASONABLE = 0.5


@dataclass(frozen=True)
class Structure:
    """The silhouette of the best clusters, and how often a cloud without groups has as large a one.

    Attributes
    ----------
    silhouette : float
        The largest mean silhouette of 2 to m/2 clusters, in [−1, 1]; −1 without any clusters, where
        all clients are at one place.
    p_value : float
        One plus the number of clouds with a silhouette at least as large, as a share of one plus
        the number of clouds.
    """

    silhouette: float
    p_value: float

    @property
    def has_groups(self) -> bool:
        """Return whether p is at most 0.05 and the clusters are not weak.

        This is no proof. One client that is unlike all others is enough for it.
        """
        return self.p_value <= 0.05 and self.silhouette > REASONABLE


def structure_test(divergence: ArrayLike, clouds: int = 99, seed: int = 0) -> Structure:
    """Compare the clients of a divergence matrix with clouds of clients without groups.

    A cloud is drawn from one Gaussian distribution with the m − 1 variances (over m) of the
    clients' directions, which are the updates scaled to length 1. The median variance is taken for
    noise of many dimensions, which adds the same squared distance between any two clients. So the
    noise is added as a constant, and taken from the variances. More than m/2 groups cannot be
    found.

    Parameters
    ----------
    divergence : array_like
        ``[m, m]``, cosine distances, as in `cosine_divergence`; m is at least 4.
    clouds : int
        How many clouds are drawn, at least one; the smallest p-value is 1 / (clouds + 1).
    seed : int
        The seed of the draws.

    Raises
    ------
    ValueError
        There are fewer than four clients or no clouds, or the matrix has no distances.
    """
    gamma = checked_distances(divergence).clip(0)
    m = len(gamma)
    if m < 4:
        raise ValueError(f"groups of {m} clients cannot be tested: four are needed")
    if clouds < 1:
        raise ValueError(f"clouds must be at least 1, not {clouds}")
    from scipy.spatial.distance import pdist, squareform

    centring = np.eye(m) - 1 / m
    variances = np.linalg.eigvalsh(-centring @ gamma @ centring)[1:].clip(0)
    noise = np.median(variances)
    widths = np.sqrt((variances - noise).clip(0) / m)
    rng = np.random.default_rng(checked_seed(seed))
    clearest, as_clear = best_silhouette(2 * gamma), 1
    for _ in range(clouds):
        cloud = rng.standard_normal((m, m - 1)) * widths
        squared = squareform(pdist(cloud, "sqeuclidean")) + 2 * noise
        as_clear += best_silhouette(squared) >= clearest
    return Structure(clearest, as_clear / (clouds + 1))


def best_silhouette(squared: NDArray[np.float64]) -> float:
    """Return the largest mean silhouette of 2 to m/2 clusters, given squared distances ``[m, m]``.

    Clusters are those of average linkage.
    """
    from scipy.cluster.hierarchy import fcluster
    from sklearn.metrics import silhouette_score

    distances = np.sqrt(squared)
    np.fill_diagonal(distances, 0)
    tree = dendrogram(distances, "average")
    scores = [-1.0]
    for k in range(2, len(distances) // 2 + 1):
        labels = fcluster(tree, k, "maxclust")
        if len(set(labels)) > 1:  # equal heights may leave one cluster
            scores.append(float(silhouette_score(distances, labels, metric="precomputed")))
    return max(scores)
