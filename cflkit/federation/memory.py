"""What a computation takes of the memory, so that stacks and batches can be cut to fit."""

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
    """Measure the bytes that the backward pass keeps of an image of a shape."""
    kept = [0, 0]
    network.network.train()
    models.give_keys(network.network, torch.tensor(0, device=device))
    for number, samples in enumerate((2, 4)):  # BatchNorm cannot train on one

        def count(tensor: Tensor, number: int = number) -> Tensor:
            kept[number] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            network.network(torch.zeros(samples, *shape, device=device))
    return (kept[1] - kept[0]) / 2


def job_bytes(federation: Federation, training: LocalTraining) -> float:
    """Estimate the bytes of a job of a stack.

    Six rows (parameters, gradients, optimiser state and copies) and, twice, what the backward pass
    keeps of a batch.
    """
    batch = min(training.batch_size, int(federation.sizes.max())) * federation.sample_bytes
    return 6 * 4 * (federation.parameters + federation.buffers) + 2 * batch
