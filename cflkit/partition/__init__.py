"""Recipes that give each client its samples and its true cluster, and the manifest that keeps them.

The partition defines the experiment. It is made from its own seed and saved as a manifest with a
hash; no training seed changes it. Every recipe takes an image set. It returns the image set that
the clients draw from, and the partition of its pool. Only the recipes of `shifts` change images.

Every recipe raises a `PartitionError` for arguments out of bounds, and for images that are too few
or do not suit it.
"""
# ruff: noqa: F401

from cflkit.partition.manifest import Partition, PartitionError, class_counts, integers, unequal
from cflkit.partition.mixtures import by_owners, class_mixtures, dirichlet, iid, with_validation
from cflkit.partition.scenarios import by_class_sets, class_sets, cluster_sizes, ocfl
