"""Recipes that give each client its samples and its true cluster, and the manifest that keeps them.

The partition defines the experiment. It is made from its own seed and saved as a manifest with a
hash; no training seed changes it. Every recipe takes an image set. It returns the image set that
the clients draw from, and the partition of its pool. Only the recipes of `shifts` change images.

- `manifest`: the partition, its hash and its manifest;
- `scenarios`: clusters of clients that differ in their classes, as in the OCFL papers;
- `mixtures`: the recipe of FedCRef, two standard recipes, and clients that are in the data;
- `shifts`: clusters of clients whose images are shifted, as in EMD-CFL.
"""

from cflkit.partition.manifest import Partition, PartitionError, class_counts, integers
from cflkit.partition.mixtures import by_owners, class_mixtures, dirichlet, iid, with_validation
from cflkit.partition.scenarios import (
    NON_OVERLAPPING,
    OVERLAPPING,
    by_class_sets,
    class_sets,
    cluster_sizes,
    ocfl,
)

__all__ = [
    "NON_OVERLAPPING",
    "OVERLAPPING",
    "Partition",
    "PartitionError",
    "by_class_sets",
    "by_owners",
    "class_counts",
    "class_mixtures",
    "class_sets",
    "cluster_sizes",
    "dirichlet",
    "iid",
    "integers",
    "ocfl",
    "with_validation",
]
