"""Random streams, all of which are derived from the one seed of a run."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cflkit.models.rows import numbered

Result = TypeVar("Result")

# The first number of a key states what is drawn
INITIALISATION, BATCHES, DROPOUT, PARTICIPATION = range(4)
SAMPLES, PROJECTION, PERTURBATION, PRIVACY = range(4, 8)


def stream(seed: int, *key: int) -> np.random.Generator:
    """Return the generator of the child of ``seed`` for a key; different keys are independent."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def integer(seed: int, *key: int) -> int:
    """Draw 64 random bits from the child of ``seed`` for a key, as an unsigned integer."""
    child = np.random.SeedSequence(seed, spawn_key=key)
    return int(child.generate_state(1, np.uint64)[0])


def drawn(clients: Tensor, count: int, seed: int, *key: int) -> Tensor:
    """Draw some of the clients, in ascending order; the same for the same seed and key."""
    chosen = stream(seed, PARTICIPATION, *key).choice(clients.numpy(), count, replace=False)
    return torch.from_numpy(np.sort(chosen))


def dropout_seeds(seed: int, clients: Sequence[int], round: int) -> Tensor:
    """Return one seed per client, ``[J]``, int64, for its dropout masks in a round."""
    seeds = [integer(seed, DROPOUT, client, round) for client in clients]
    return torch.tensor(np.array(seeds, dtype=np.uint64).view(np.int64))


def step_keys(seeds: Tensor, step: int) -> Tensor:
    """Derive the keys of a step's dropout masks from ``seeds``, one key per seed."""
    return numbered(seeds, step + 1)


def initialised(build: Callable[[], Result], seed: int, *key: int) -> Result:
    """Return the result of ``build``, with torch's global generator seeded by the child of a key.

    Afterwards, the generator has its previous state again.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer(seed, INITIALISATION, *key))
        return build()
