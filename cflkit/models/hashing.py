"""Hashing of 64-bit integers by tensor operations, and random numbers without a generator."""

from __future__ import annotations

import torch
from torch import Tensor

# Constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), as signed 64-bit integers
GOLDEN, FIRST, SECOND = (
    constant - 2**64 for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def numbered(keys: Tensor, number: int) -> Tensor:
    """Derive keys from ``keys`` for a number; different numbers give independent keys."""
    step = (number * GOLDEN + 2**63) % 2**64 - 2**63  # wraps around like an addition of int64
    return mix(keys + step)


def mix(values: Tensor) -> Tensor:
    """Hash 64-bit integers value by value, by the finaliser of splitmix64.

    Products of int64 wrap around. Shifts to the right copy the sign bit, and the masks remove these
    copies.
    """
    values = (values ^ ((values >> 30) & (2**34 - 1))) * FIRST
    values = (values ^ ((values >> 27) & (2**37 - 1))) * SECOND
    return values ^ ((values >> 31) & (2**33 - 1))


def uniform(key: Tensor, shape: torch.Size) -> Tensor:
    """Draw numbers in [0, 1) that depend only on a key and on the position in the result.

    The generator is counter-based and has no state. The numbers are therefore the same for one
    model alone and for many models in a stack (``torch.func.vmap``).

    Parameters
    ----------
    key : Tensor
        A scalar of type int64.
    shape : torch.Size
        The shape of the result, whose type is float32.
    """
    position = torch.arange(shape.numel(), device=key.device).view(shape)
    bits = mix(position * GOLDEN + key)
    return ((bits >> 40) & (2**24 - 1)).float() / 2**24
