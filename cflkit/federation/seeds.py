"""Random streams: every draw of a run has a child of the run's one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cflkit.hashing import numbered

Result = TypeVar("Result")

# The first number of a child's key says what is drawn
INITIALISATION, BATCHES, DROPOUT, PARTICIPATION, SAMPLES, PROJECTION, PERTURBATION = range(7)


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    """Return the child of ``seed`` for a key; children of different keys are independent."""
    return np.random.SeedSequence(seed, spawn_key=key)


def integer(seed: int, *key: int) -> int:
    """Return 64 random bits from the child of ``seed`` for a key, as an unsigned integer."""
    return int(stream(seed, *key).generate_state(1, np.uint64)[0])


def dropout_seeds(seed: int, clients: Sequence[int], round: int) -> Tensor:
    """``[J]``, int64: where the dropout masks of each client begin in a round."""
    seeds = [integer(seed, DROPOUT, client, round) for client in clients]
    return torch.tensor(np.array(seeds, dtype=np.uint64).view(np.int64))


def step_keys(seeds: Tensor, step: int) -> Tensor:
    """Return the keys of a step's dropout masks, of the shape of ``seeds``."""
    return numbered(seeds, step + 1)


def initialised(build: Callable[[], Result], seed: int, *key: int) -> Result:
    """Return what ``build`` makes with torch's global generator seeded by the child of a key.

    The generator is afterwards as it was before.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer(seed, INITIALISATION, *key))
        return build()
