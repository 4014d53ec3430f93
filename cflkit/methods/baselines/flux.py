"""FLUX: cluster once, by means and deviations of the clients' embeddings.

D. Fenoglio, M. Li, P. Barbiero, N. D. Lane, M. Langheinrich, M. Gjoreski: FLUX: Efficient
descriptor-driven clustered federated learning under arbitrary distribution shifts. NeurIPS 2025.
The descriptors, their scaling and the clustering are those of the authors' code.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from torch import Tensor

from cflkit import clustering
from cflkit._bounds import STRICT, Count, Positive
from cflkit.federation import NOBODY, Ask, Client, Conversation, Jobs, Request
from cflkit.methods.base import Method, Weighting
from cflkit.methods.baselines.knee import knee


@dataclass(config=STRICT)
class FLUX(Method):
    """One clustering of the clients' descriptors, without a number of clusters or a threshold.

    The authors' server can also wait until the accuracy grows slowly, and assign clients without
    labels when it tests them. Both are left out.

    Parameters
    ----------
    start : int
        The round, from 1, before whose training the server clusters. In the authors' simulation it
        is the fifth.
    components : int
        To how many dimensions embeddings are projected. The authors take the number of classes.
    span : float
        The projection is made from random points between 0 and this value in each dimension.
    weighting : {"samples", "equal"}
        The weights of clients, as in `FedAvg`.
    """

    start: Count = 5
    components: Count = 10
    span: Positive = 2.0
    weighting: Weighting = "samples"

    def asks(self) -> list[Request]:
        """Return the question for each client's descriptor."""
        options = {"components": self.components, "span": self.span}
        return [Ask(NOBODY, question=descriptor, options=options)]

    def round(self, t: int) -> Conversation[None]:
        """Run a round of FedAvg within each cluster; one round begins with the clustering."""
        if t + 1 == self.start:
            [question] = self.asks()
            everyone = torch.arange(self.server.clients)
            answers = yield question.only(Jobs(self.models, self.labels, everyone))
            self.divide(cluster(np.stack(answers)))
        yield from super().round(t)


def descriptor(client: Client, model: Tensor, components: int, span: float) -> NDArray[np.float64]:
    """Describe a client's training samples: ``[2 + 2 · classes, components]``.

    The rows are the mean and the deviation of the projected embeddings of all samples, then the
    means and then the deviations of each class; -1 if the client has no two samples of a class.
    """
    embeddings = client.embed(model, "train").cpu().double().numpy()
    # All clients draw the same points, and so have the same projection
    points = np.random.RandomState(1).uniform(0, span, (200, embeddings.shape[1]))
    project = PCA(min(components, *points.shape), svd_solver="full").fit(points)
    known = client.samples()[1].cpu().numpy()
    classes = len([*client.network.trainable.values()][-1])  # of the last layer
    parts = [project.transform(embeddings)]
    parts += [parts[0][known == c] for c in range(classes)]
    missing = np.full(parts[0].shape[1], -1.0)
    means, deviations = (
        [find(part, axis=0) if len(part) > 1 else missing for part in parts]
        for find in (np.mean, np.std)
    )
    return np.stack([means[0], deviations[0], *means[1:], *deviations[1:]])


def cluster(descriptors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Cluster descriptors ``[m, rows, components]`` by DBSCAN; a client near nobody is alone.

    Each row is scaled to [0, 1] over all clients. The radius is where the sorted distances to the
    nearest client begin to grow fast.
    """
    low = descriptors.min(axis=(0, 2), keepdims=True)
    width = descriptors.max(axis=(0, 2), keepdims=True) - low
    scaled = (descriptors - low) / np.where(width > 0, width, 1)
    distance = squareform(pdist(scaled.reshape(len(scaled), -1)))
    nearest = np.sort(distance, axis=1)[:, 1] if len(distance) > 1 else np.ones(1)
    radius = max(knee(np.sort(nearest)), np.finfo(float).tiny)
    labels = DBSCAN(eps=radius, min_samples=2, metric="precomputed").fit_predict(distance)
    return clustering.assign_noise(distance, labels.astype(np.int64), "singletons")
