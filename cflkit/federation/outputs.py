"""The outputs of networks for samples: losses, embeddings and predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cflkit import models
from cflkit.federation.jobs import Jobs
from cflkit.federation.machine import autocast, matmul_precision, spare_memory
from cflkit.federation.rows import RowModel, join
from cflkit.federation.seeds import dropout_seeds, step_keys
from cflkit.federation.threads import run_in_threads
from cflkit.federation.training import TASKS

if TYPE_CHECKING:
    from cflkit.federation.clients import Client
    from cflkit.federation.federation import Federation

# A function from a network, inputs and labels to the output for each sample
Output = Callable[[nn.Module, Tensor, Tensor], Tensor]
# The largest number of images in one forward pass, by engine
AT_ONCE = {"threads": 512, "stacked": 4096}
# How many bytes the backward pass of a gradient may keep. A share of the free memory would change
# the last bits with what else is running
KEPT = 2**30


def loss_of(federation: Federation) -> Output:
    """Return the function that computes the loss of the federation's task, ``[n]``."""
    loss = TASKS[federation.task].loss
    return lambda network, inputs, labels: loss(network(inputs), inputs, labels, "none")


def prediction_of(federation: Federation) -> Output:
    """Return the function that computes the predictions of the federation's task, ``[n, …]``."""
    prediction = TASKS[federation.task].prediction
    return lambda network, inputs, _: prediction(network(inputs))


def embedding_of(federation: Federation) -> Output:
    """Return the function that computes the embeddings ``[n, d]``, the input of `Task.head`."""
    head = TASKS[federation.task].head

    def embedding(network: nn.Module, inputs: Tensor, _: Tensor) -> Tensor:
        caught: list[Tensor] = []
        hook = network.get_submodule(head).register_forward_pre_hook(
            lambda _, inputs: caught.append(inputs[0])
        )
        with hook:
            network(inputs)
        return caught[0]

    return embedding


def evaluate(
    federation: Federation,
    jobs: Jobs,
    split: str,
    output: Output,
    max_samples: int | None = None,
    train_mode: bool = False,
) -> list[Tensor]:
    """Compute an output of each job's model on the samples of a split, or on some of them."""
    federation.data.check(split)
    # Models for the same samples are evaluated one after the other, so samples are loaded only once
    meetings: dict[int, list[int]] = {}
    for job, client in enumerate(jobs.client_of.tolist()):
        meetings.setdefault(0 if split == "central" else client, []).append(job)
    tasks = [
        (client, present, step, part)
        for client, present in meetings.items()
        for step, part in enumerate(parts_of(federation, client, split, max_samples, train_mode))
    ]

    def evaluate_part(network: RowModel, task: tuple[int, list[int], int, Tensor]) -> list[Tensor]:
        client, present, step, part = task
        rows = (jobs.models[jobs.model_of[job]] for job in present)
        samples = federation.data.samples(part, split)
        if train_mode:
            prepare_dropout(federation, network, client, step)
        return [outputs(federation, network, row, samples, output, train_mode) for row in rows]

    collected: list[list[Tensor]] = [[] for _ in range(len(jobs))]
    with matmul_precision(federation.precision, federation.device):
        results = run_in_threads(evaluate_part, tasks, federation.networks)
    for (_, present, _, _), found in zip(tasks, results, strict=True):
        for job, part in zip(present, found, strict=True):
            collected[job].append(part)
    return [torch.cat(part) for part in collected]


def evaluate_client(
    client: Client,
    model: Tensor,
    split: str,
    output: Output,
    max_samples: int | None = None,
    train_mode: bool = False,
) -> Tensor:
    """Compute an output of one model on the samples of one client, with the client's network."""
    federation, network = client.federation, client.network
    federation.data.check(split)
    found = []
    parts = parts_of(federation, client.number, split, max_samples, train_mode)
    for step, part in enumerate(parts):
        samples = federation.data.samples(part, split)
        if train_mode:
            prepare_dropout(federation, network, client.number, step)
        found.append(outputs(federation, network, model, samples, output, train_mode))
    return torch.cat(found)


def gradient_of_client(client: Client, model: Tensor, samples: int | None = None) -> Tensor:
    """Compute the gradient ``[P]`` of a model's mean loss on a client's first training samples.

    The network is in evaluation mode, so that the answer is the same whenever it is asked. The
    gradient is the mean over parts of the samples, whose backward passes fit into the memory.
    """
    federation, network = client.federation, client.network
    index = federation.data.index("train", client.number)[:samples]
    size = min(AT_ONCE[federation.engine], int(KEPT / max(federation.sample_bytes, 1)))
    loss = TASKS[federation.task].loss
    network.load(model)
    network.network.eval()
    parameters = list(network.trainable.values())
    gradient = torch.zeros(federation.parameters, device=federation.device)
    for part in index.split(max(1, size)):
        inputs, labels = federation.data.samples(part)
        with autocast(federation.precision, federation.device):
            mean = loss(network.network(inputs), inputs, labels, "mean")
        found = torch.autograd.grad(mean * (len(part) / len(index)), parameters)
        gradient += join(found)
    return gradient


def parts_of(
    federation: Federation, client: int, split: str, max_samples: int | None, train_mode: bool
) -> Sequence[Tensor]:
    """Split the positions of a client's samples into parts, one per forward pass."""
    index = federation.data.index(split, client, max_samples)
    size = AT_ONCE[federation.engine]
    if train_mode:
        size = federation.training.batch_size
    elif federation.engine == "stacked":
        fitting = int(spare_memory(federation.device) / max(federation.sample_bytes, 1))
        size = max(1, min(size, fitting))
    return index.split(size)


def prepare_dropout(federation: Federation, network: RowModel, client: int, step: int) -> None:
    """Give a network keys, so that its dropout masks depend only on the client and the batch."""
    seeds = dropout_seeds(federation.seed, [client], 0)
    models.give_keys(network.network, step_keys(seeds, step)[0].to(federation.device))


@torch.inference_mode()
def outputs(
    federation: Federation,
    network: RowModel,
    model: Tensor,
    samples: tuple[Tensor, Tensor],
    output: Output,
    train_mode: bool,
) -> Tensor:
    """Compute an output of a model on some samples, in float32."""
    network.load(model)
    network.network.train(train_mode)
    with autocast(federation.precision, federation.device):
        return output(network.network, *samples).float()
