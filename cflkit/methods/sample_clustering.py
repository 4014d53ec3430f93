"""Initial local clusterings of each client's samples, the starting point of FedCRef.

All return labels ``[n]``, local from 0. `dirty_uniform` simulates a clustering by the true
classes. `kmeans` on pixels and `DEC` are real clusterings. `kfed` joins the clients' local clusters
without training, for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from cflkit._bounds import checked_seed
from cflkit.clustering import Labels, k_means
from cflkit.datasets import ImageSet
from cflkit.federation.clients import as_inputs
from cflkit.methods.fedcref_clusters import local_clusters
from cflkit.partition import Partition


def first_clusters(
    name: str,
    images: ImageSet,
    partition: Partition,
    *,
    dirtiness: float = 0.3,
    dec: DEC | None = None,
    seed: int = 0,
) -> list[Labels]:
    """Cluster each client's training samples into as many local clusters as it has classes.

    The ``name`` is ``dirty-uniform``, with the option ``dirtiness``, ``k-means``, or ``dec``, with
    the option ``dec``. Each client's seed is derived from ``seed``. Returned are the labels ``[n]``
    of each client.

    Raises
    ------
    ValueError
        The name is unknown, there is no seed, or the clustering refuses the samples of a client.
    """
    if name not in ("dirty-uniform", "k-means", "dec"):
        raise ValueError(f"unknown clustering {name!r}; choose from dirty-uniform, k-means, dec")
    seeds = np.random.SeedSequence(checked_seed(seed)).generate_state(partition.clients)
    labels = []
    for indices, start in zip(partition.train, seeds.tolist(), strict=True):
        classes = images.labels[indices].numpy()
        if name == "dirty-uniform":
            labels.append(dirty_uniform(classes, dirtiness, start))
            continue
        cluster = kmeans if name == "k-means" else (dec or DEC()).fit_predict
        samples = as_inputs(images.images[indices]).flatten(1)
        labels.append(cluster(samples, len(np.unique(classes)), start))
    return labels


def dirty_uniform(classes: ArrayLike, dirtiness: float, seed: int) -> Labels:
    """Label samples by their classes ``[n]``, except for a share (in [0, 1]) that has wrong labels.

    A sample is mislabelled with the probability ``dirtiness``. All other classes of the client are
    then equally likely (FedCRef, section 5.2).

    Raises
    ------
    ValueError
        There are fewer than two classes, or there is no seed.
    """
    known, labels = np.unique(np.asarray(classes), return_inverse=True)
    if len(known) < 2:
        raise ValueError(f"a client needs samples of two classes or more, not of {len(known)}")
    generator = np.random.default_rng(checked_seed(seed))
    moved = generator.random(len(labels)) < dirtiness
    steps = generator.integers(1, len(known), len(labels))  # to any cluster except its own
    return np.where(moved, (labels + steps) % len(known), labels)


def kmeans(samples: ArrayLike, k: int, seed: int) -> Labels:
    """Cluster samples ``[n, d]`` by scikit-learn's k-means, and return the best of 20 starts."""
    return k_means(np.asarray(samples, "f4"), k, 20, random_state=seed).labels_.astype(np.int64)


def kfed(samples: Sequence[ArrayLike], labels: Sequence[Labels], k: int) -> list[Labels]:
    """Join the clients' local clusters into k clusters of the whole federation, by their centres.

    This is the server's part of k-FED (D. Dennis, T. Li, V. Smith: Heterogeneity for the win.
    ICML 2021, Algorithm 2), which gets one centre per local cluster, once. k-FED's clients cluster
    by Awasthi and Sheffet's method; here, each brings its own ``labels`` ``[n]`` of its
    ``samples`` ``[n, d]``. Returned are the labels ``[n]`` of each client.
    """
    from sklearn.metrics import pairwise_distances  # a second, which other clusterings need not

    clusters = local_clusters(labels)
    pairs = list(zip(clusters.owner, clusters.samples, strict=True))
    centres = np.array([np.asarray(samples[c])[members].mean(axis=0) for c, members in pairs])
    seeds = list(centres[: min(k, np.sum(clusters.owner == 0))])  # of any client
    while len(seeds) < k:  # then the farthest ones
        seeds.append(centres[pairwise_distances(centres, seeds).min(axis=1).argmax()])
    joined = pairwise_distances(centres, seeds).argmin(axis=1)  # a step of Lloyd's algorithm
    whole = [np.empty(len(local), dtype=np.int64) for local in labels]
    for (client, members), cluster in zip(pairs, joined, strict=True):
        whole[client][members] = cluster
    return whole


@dataclass(frozen=True)
class DEC:
    """Deep embedded clustering (Xie, Girshick and Farhadi, ICML 2016).

    The paper pre-trains with 50,000 and 100,000 steps of SGD; Adam, which we use, needs fewer.
    """

    widths: tuple[int, ...] = (500, 500, 2000, 10)  # of the encoder; the decoder mirrors them
    layer_steps: int = 2_000  # batches in the pre-training of each layer
    whole_steps: int = 4_000  # batches in the pre-training of the whole autoencoder
    batch_size: int = 256
    lr: float = 1e-3  # of Adam in the pre-training; the last phase uses a tenth of it
    dropout: float = 0.2  # what the pre-training of a layer learns to undo
    updates: int = 40  # the largest number of updates of the target distribution
    tolerance: float = 0.001  # clustering ends when an update changes this share of labels or less

    def fit_predict(self, samples: ArrayLike, k: int, seed: int) -> Labels:
        """Cluster samples ``[n, d]`` with values in [0, 1] into k clusters; return their labels."""
        return self.fit_each(samples, [k], seed)[k]

    def fit_each(self, samples: ArrayLike, numbers: Sequence[int], seed: int) -> dict[int, Labels]:
        """Compute the labels for each of several numbers of clusters, with one pre-training."""
        x = torch.from_numpy(np.asarray(samples, dtype=np.float32))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            encoder = self.pretrained(x)
            labels = {}
            for k in numbers:
                with torch.random.fork_rng(devices=[]):  # each number begins at the same state
                    labels[k] = self.refined(deepcopy(encoder), x, k, seed)
            return labels

    def pretrained(self, x: Tensor) -> nn.Sequential:
        """Pre-train a stacked denoising autoencoder, by layers and as a whole (section 3.2)."""
        widths = (x.shape[1], *self.widths)
        encoder: list[nn.Module] = []
        decoder: list[nn.Module] = []
        values = x
        for inputs, outputs in pairwise(widths):
            first, last = not encoder, len(encoder) == len(widths) - 2
            # No ReLU at either end, since pixels and embeddings may take any value
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
        """Train a network to reproduce ``values``."""
        optimizer = torch.optim.Adam(network.parameters(), self.lr)
        for _ in range(steps):
            batch = values[torch.randint(len(values), (min(self.batch_size, len(values)),))]
            optimizer.zero_grad()
            F.mse_loss(network(batch), batch).backward()
            optimizer.step()

    def refined(self, encoder: nn.Sequential, x: Tensor, k: int, seed: int) -> Labels:
        """Train encoder and centres of k-means towards more certain assignments (section 3.1).

        The target is computed once per pass over the samples. The loop ends when few labels
        *changed*; the FedCRef authors compare the share of labels that did not change.
        """
        with torch.no_grad():
            start = k_means(encoder(x).numpy(), k, 20, random_state=seed)
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
            before = labels
            with torch.no_grad():
                labels = soft_assignment(encoder(x), centres).argmax(dim=1)
            if (labels != before).float().mean() <= self.tolerance:
                break
        return labels.numpy()


def soft_assignment(embeddings: Tensor, centres: Tensor) -> Tensor:
    """Compute soft assignments ``[n, k]``, whose rows sum to one, by Student's t (equation 1)."""
    q = 1 / (1 + torch.cdist(embeddings, centres).square())
    return q / q.sum(dim=1, keepdim=True)


def target_distribution(q: Tensor) -> Tensor:
    """Compute the more certain target ``[n, k]``, which favours small clusters (equation 3)."""
    p = q.square() / q.sum(dim=0)
    return p / p.sum(dim=1, keepdim=True)
