"""A recipe that makes the samples as well: features with a bump at the place of the class.

Unlike the recipes of `partition` and `shifts`, it takes no image set, since the clients' samples
are drawn at random. Like these, it returns the samples and the partition of their pool.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from cflkit.datasets import ImageSet
from cflkit.partition.manifest import Partition, PartitionError, seeded

FEATURES, CLASSES, CLUSTERS = 32, 10, 3
SMALLEST, LARGEST = 50, 149  # samples of a client
NEW_SAMPLES = 100


def class_bumps(
    *, clients: int = 30, height: float = 2.0, seed: int = 42
) -> tuple[ImageSet, Partition]:
    """Make the federation of Tutorial 022: three clusters of clients, each with four classes.

    There are 32 features with a standard normal distribution. In a sample of class ``c``, the
    feature number ``c`` is raised by ``height`` (the tutorial: 2). Cluster ``k`` has the classes
    ``3k`` to ``3k + 3``, so that neighbouring clusters share one class. A client has 50 to 149
    training samples, which are drawn in the tutorial's order from its generator: with its seed 42,
    they are its own samples. The tutorial has no test samples. Here, each client also gets 100 new
    ones from its own distribution, which are its test set.

    Returns
    -------
    ImageSet
        The samples as features ``[N, 32, 1, 1]``. The central test set has the new samples of all
        clients.
    Partition
        The clients, a multiple of 3 (the tutorial: 30).

    Raises
    ------
    PartitionError
        The number of clients is no multiple of 3, or the seed is none of the tutorial's generator.
    """
    fresh = seeded(seed)
    if clients < CLUSTERS or clients % CLUSTERS or seed >= 2**32:  # more than `RandomState` takes
        needs = f"needs a multiple of {CLUSTERS} clients and a seed below 2**32"
        raise PartitionError(f"{needs}, not {clients} and {seed}")
    clusters = np.repeat(np.arange(CLUSTERS), clients // CLUSTERS)
    as_printed = np.random.RandomState(seed)
    held, new = [], []
    for cluster in clusters:
        allowed = 3 * cluster + np.arange(4)
        count = as_printed.randint(SMALLEST, LARGEST + 1)
        noise = as_printed.randn(count, FEATURES).astype(np.float32)
        held.append(raised(noise, as_printed.choice(allowed, size=count), height))
        noise = fresh.standard_normal((NEW_SAMPLES, FEATURES), dtype=np.float32)
        new.append(raised(noise, fresh.choice(allowed, size=NEW_SAMPLES), height))
    pairs = zip(*held, *new, strict=True)
    features, labels = (torch.from_numpy(np.concatenate(part)) for part in pairs)
    ends = np.cumsum([len(classes) for _, classes in (*held, *new)])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    features, pool_size = features[:, :, None, None], int(ends[clients - 1])
    # A partition's hash covers the name of the samples and not their values
    name = f"class-bumps-{str(float(height)).removesuffix('.0')}-seed{seed}"
    tests = features[pool_size:], labels[pool_size:]
    samples = ImageSet(name, features, labels, *tests, CLASSES)
    recipe = {"name": "class_bumps", "clients": clients, "height": height, "seed": seed}
    split = Partition(samples.name, parts[:clients], parts[clients:], clusters, recipe)
    return samples, split


def raised(
    noise: NDArray[np.float32], classes: NDArray[np.int64], height: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Raise, in each sample ``[n, d]``, the feature that has the number of the sample's class."""
    noise[np.arange(len(classes)), classes] += height
    return noise, classes
