"""Estimates of the memory that computations need, which limit the sizes of stacks and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cflkit import models
from cflkit.federation.jobs import LocalTraining
from cflkit.federation.rows import RowModel

if TYPE_CHECKING:
    from cflkit.federation.federation import Federation


def kept_per_sample(network: RowModel, shape: torch.Size, device: torch.device) -> float:
    """Measure how many bytes the backward pass keeps per image of a shape."""
    kept = [0, 0]
    network.network.train()
    models.give_keys(network.network, torch.tensor(0, device=device))
    for number, samples in enumerate((2, 4)):  # BatchNorm cannot train on one sample

        def count(tensor: Tensor, number: int = number) -> Tensor:
            kept[number] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            network.network(torch.zeros(samples, *shape, device=device))
    return (kept[1] - kept[0]) / 2


def job_bytes(federation: Federation, training: LocalTraining) -> float:
    """Estimate how many bytes a job in a stack needs.

    The estimate is six rows (parameters, gradients, optimiser state and copies), plus twice the
    bytes that the backward pass keeps for a batch.
    """
    batch = min(training.batch_size, int(federation.sizes.max())) * federation.sample_bytes
    return 6 * 4 * (federation.parameters + federation.buffers) + 2 * batch
