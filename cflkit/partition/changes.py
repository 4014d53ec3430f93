"""Scenes in which clients come late, come and go, or change their group."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cflkit._bounds import checked_seed

Scene = Literal["none", "join", "random", "late group", "drift"]


def affected(scene: Scene, clusters: ArrayLike) -> list[int]:
    """Return the clients that a scene is about, in ascending order.

    ``join``: the last client of each cluster. ``late group``: all clients of the last cluster.
    ``drift``: the last client of the first cluster and the first client of the second one.
    ``random`` and ``none``: all clients. The true clusters are whole numbers ``[m]``.
    """
    groups = members(clusters)
    if scene == "join":
        return sorted(int(group[-1]) for group in groups)
    if scene == "late group":
        return groups[-1].tolist()
    if scene == "drift":
        return sorted([int(groups[0][-1]), int(groups[1][0])])
    return list(range(len(np.asarray(clusters))))


def presence(scene: Scene, clusters: ArrayLike, rounds: int, change: int, seed: int) -> Tensor:
    """Return who is there in which round (``[rounds, m]``, bool) for `Federation.with_presence`.

    In ``join`` and ``late group``, the `affected` clients come after ``change`` rounds. In
    ``random``, each client is there with probability 1/2 in each round, and so is at least one
    client of each cluster, which is drawn (``seed``). Otherwise, all clients are always there. A
    `ValueError` says that a scene needs more true clusters than there are, or a seed.
    """
    if scene in ("late group", "drift") and len(members(clusters)) < 2:
        raise ValueError(f"the scene {scene!r} needs two true clusters, and there is one")
    there = np.ones((rounds, len(np.asarray(clusters))), dtype=bool)
    if scene in ("join", "late group"):
        there[:change, affected(scene, clusters)] = False
    elif scene == "random":
        generator = np.random.default_rng(checked_seed(seed))
        there = generator.random(there.shape) < 0.5
        for group in members(clusters):
            there[np.arange(rounds), group[generator.integers(len(group), size=rounds)]] = True
    return torch.from_numpy(there)


def members(clusters: ArrayLike) -> list[NDArray[np.int64]]:
    """Return the clients of each cluster."""
    labels = np.asarray(clusters)
    return [np.flatnonzero(labels == cluster) for cluster in np.unique(labels)]
