"""A first clustering of one client's samples, for what refines it (FedCRef).

`dirty_uniform` spoils the true classes to a degree; `kmeans` on pixels and `dec` are real. All
return labels ``[n]`` from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import Tensor, nn

from cflkit.datasets import ImageSet
from cflkit.partition import Partition

Labels = NDArray[np.int64]
CLUSTERINGS = ("dirty-uniform", "k-means", "dec")


def first_clusters(
    name: str,
    images: ImageSet,
    partition: Partition,
    *,
    dirtiness: float = 0.3,
    dec: DEC | None = None,
    seed: int = 0,
) -> list[Labels]:
    """Each client's own clustering of its training samples, into as many clusters as classes.

    Parameters
    ----------
    name : {"dirty-uniform", "k-means", "dec"}
        ``dirtiness`` belongs to the first, ``dec`` to the last.
    images : ImageSet
        Whose pool the partition points into.
    partition : Partition
        Which samples each client holds.
    seed : int
        Each client has a child of it.

    Returns
    -------
    list of ndarray
        m of them, ``[n]``.

    Raises
    ------
    ValueError
        An unknown name, or a client whose samples the clustering refuses.
    """
    seeds = np.random.SeedSequence(seed).generate_state(partition.clients)
    labels = []
    for indices, own in zip(partition.train, seeds.tolist(), strict=True):
        classes = images.labels[indices].numpy()
        if name == "dirty-uniform":
            labels.append(dirty_uniform(classes, dirtiness, own))
            continue
        samples, k = images.images[indices].flatten(1).float() / 255, len(np.unique(classes))
        if name == "k-means":
            labels.append(kmeans(samples, k, own))
        elif name == "dec":
            labels.append((dec or DEC()).fit_predict(samples, k, own))
        else:
            raise ValueError(f"unknown clustering {name!r}; known are {', '.join(CLUSTERINGS)}")
    return labels


def dirty_uniform(classes: ArrayLike, dirtiness: float, seed: int) -> Labels:
    """Each sample's class; with the given probability another of the client's, all alike.

    FedCRef, section 5.2.

    Parameters
    ----------
    classes : array_like
        ``[n]``, the true ones.
    dirtiness : float
        The probability that a sample lies in a wrong cluster, in [0, 1].
    seed : int
        Of the samples moved.

    Raises
    ------
    ValueError
        One class alone (or none), or a dirtiness out of bounds.
    """
    known, labels = np.unique(np.asarray(classes), return_inverse=True)
    if len(known) < 2:
        raise ValueError(f"needs samples of two classes or more, not of {len(known)}")
    if not 0 <= dirtiness <= 1:
        raise ValueError(f"dirtiness must be in [0, 1], not {dirtiness}")
    generator = np.random.default_rng(seed)
    moved = generator.random(len(labels)) < dirtiness
    steps = generator.integers(1, len(known), len(labels))  # to any cluster but its own
    return np.where(moved, (labels + steps) % len(known), labels)


def kmeans(samples: ArrayLike, k: int, seed: int) -> Labels:
    """scikit-learn's k-means on ``[n, d]``, the best of 20 starts."""
    values = checked(samples, k)
    return KMeans(k, n_init=20, random_state=seed).fit_predict(values).astype(np.int64)


def checked(samples: ArrayLike, k: int) -> NDArray[np.float32]:
    """``samples`` as an array, if k clusters can be made of them.

    Raises
    ------
    ValueError
        k is below 1, there are fewer than k samples, or a value is not finite.
    """
    values = np.asarray(samples, dtype=np.float32)
    if k < 1 or len(values) < k:
        raise ValueError(f"{len(values)} samples cannot be put into {k} clusters")
    if not np.isfinite(values).all():
        raise ValueError("a sample has a value that is not finite")
    return values


@dataclass(frozen=True)
class DEC:
    """Deep embedded clustering (Xie, Girshick and Farhadi, ICML 2016).

    Attributes
    ----------
    widths : tuple of int
        Of the encoder's layers; the decoder mirrors them. The last is the embedding.
    layer_steps, whole_steps : int
        Batches of the pre-training of each layer, which learns to undo dropout, and of the whole
        autoencoder after that. The paper has 50,000 and 100,000, of SGD; ours are of Adam, which
        needs fewer.
    batch_size : int
        Of all three phases.
    lr : float
        Of Adam, in the pre-training; a tenth of it afterwards.
    dropout : float
        Of the pre-training of layers.
    updates : int
        The most updates of the target distribution.
    tolerance : float
        Clustering ends when an update changes at most this share of the labels.
    """

    widths: tuple[int, ...] = (500, 500, 2000, 10)
    layer_steps: int = 2_000
    whole_steps: int = 4_000
    batch_size: int = 256
    lr: float = 1e-3
    dropout: float = 0.2
    updates: int = 40
    tolerance: float = 0.001

    def fit_predict(self, samples: ArrayLike, k: int, seed: int) -> Labels:
        """Labels of samples ``[n, d]`` in k clusters; values should lie in [0, 1].

        Raises
        ------
        ValueError
            As `checked`.
        """
        return self.fit_each(samples, [k], seed)[k]

    def fit_each(self, samples: ArrayLike, numbers: Sequence[int], seed: int) -> dict[int, Labels]:
        """Labels as of `fit_predict` for several numbers of clusters, after one pre-training.

        Raises
        ------
        ValueError
            As `checked`.
        """
        x = torch.from_numpy(checked(samples, max(numbers)))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            encoder = self.pretrained(x)
            state = torch.default_generator.get_state()
            labels = {}
            for k in numbers:
                torch.default_generator.set_state(state)
                labels[k] = self.refined(deepcopy(encoder), x, k, seed)
            return labels

    def pretrained(self, x: Tensor) -> nn.Sequential:
        """Section 3.2: a stacked denoising autoencoder, layer by layer and then as a whole."""
        widths = (x.shape[1], *self.widths)
        encoder: list[nn.Module] = []
        decoder: list[nn.Module] = []
        values = x
        for inputs, outputs in pairwise(widths):
            first, last = not encoder, len(encoder) == len(widths) - 2
            # Linear at both ends: pixels and embeddings may take any value
            down = nn.Sequential(nn.Linear(inputs, outputs), nn.Identity() if last else nn.ReLU())
            up = nn.Sequential(nn.Linear(outputs, inputs), nn.Identity() if first else nn.ReLU())
            spoil = nn.Dropout(self.dropout)
            self.train(nn.Sequential(spoil, down, spoil, up), values, self.layer_steps)
            encoder, decoder = [*encoder, down], [up, *decoder]
            with torch.no_grad():
                values = down(values)
        self.train(nn.Sequential(*encoder, *decoder), x, self.whole_steps)
        return nn.Sequential(*encoder)

    def train(self, network: nn.Module, values: Tensor, steps: int) -> None:
        """Learn to give ``values`` back."""
        optimizer = torch.optim.Adam(network.parameters(), self.lr)
        for _ in range(steps):
            batch = values[torch.randint(len(values), (min(self.batch_size, len(values)),))]
            optimizer.zero_grad()
            F.mse_loss(network(batch), batch).backward()
            optimizer.step()

    def refined(self, encoder: nn.Sequential, x: Tensor, k: int, seed: int) -> Labels:
        """Section 3.1: k-means' centres and the encoder move towards surer assignments.

        The target is computed once in each pass over the samples, and the share of labels that
        *changed* ends the loop (the FedCRef authors compare the share of those that did not).
        """
        with torch.no_grad():
            start = KMeans(k, n_init=20, random_state=seed).fit(encoder(x).numpy())
        centres = nn.Parameter(torch.from_numpy(start.cluster_centers_).float())
        labels = torch.from_numpy(start.labels_).long()
        optimizer = torch.optim.Adam([*encoder.parameters(), centres], self.lr / 10)
        for _ in range(self.updates):
            with torch.no_grad():
                target = target_distribution(soft_assignment(encoder(x), centres))
            for batch in torch.randperm(len(x)).split(self.batch_size):
                optimizer.zero_grad()
                q = soft_assignment(encoder(x[batch]), centres)
                F.kl_div(q.log(), target[batch], reduction="batchmean").backward()
                optimizer.step()
            with torch.no_grad():
                found = soft_assignment(encoder(x), centres).argmax(dim=1)
            changed = (found != labels).float().mean()
            labels = found
            if changed <= self.tolerance:
                break
        return labels.numpy()


def soft_assignment(embeddings: Tensor, centres: Tensor) -> Tensor:
    """``[n, k]``: Student's t with one degree of freedom, a row summing to one (equation 1)."""
    q = 1 / (1 + torch.cdist(embeddings, centres).square())
    return q / q.sum(dim=1, keepdim=True)


def target_distribution(q: Tensor) -> Tensor:
    """``[n, k]``: surer than ``q``, and fairer to small clusters (equation 3)."""
    p = q.square() / q.sum(dim=0)
    return p / p.sum(dim=1, keepdim=True)


def best_by_silhouette(plane: ArrayLike, labels: Mapping[int, Labels]) -> tuple[int, dict]:
    """Which number of clusters has the largest silhouette in a plane, and all silhouettes.

    Parameters
    ----------
    plane : array_like
        ``[n, 2]``, the samples as t-SNE draws them (the FedCRef paper's choice).
    labels : mapping of int to ndarray
        Labels for each number of clusters tried.
    """
    scores = {k: float(silhouette_score(plane, found)) for k, found in labels.items()}
    return max(scores, key=lambda k: scores[k]), scores
