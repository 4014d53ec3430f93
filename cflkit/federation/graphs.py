"""The engine for a GPU that trains client by client, each step of which is one CUDA graph.

A step of `training.train_client` launches some hundred kernels, and Python takes longer to launch
them than a fast GPU to run them. A step with a full batch is therefore captured once as a CUDA
graph, and then launched as a whole. Nothing in it may copy from the CPU or wait for it. The last
batch of an epoch can be smaller; its step is an ordinary one. Several clients train side by side,
each with a network and a stream of its own. Without CUDA every step is an ordinary one, with the
same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from cflkit import models
from cflkit.federation.clients import Batch, Clients, autocast
from cflkit.federation.requests import Jobs, LocalTraining
from cflkit.federation.seeds import dropout_seeds, keys_of_steps
from cflkit.federation.training import add_gradient, run_in_threads
from cflkit.models.rows import RowModel


class Trainer:
    """A network that trains one client after the other by replaying the same step.

    A graph reads and writes the same memory each time it is launched. Its inputs are therefore
    copied into ``index``, ``key`` and ``anchor`` before.

    Parameters
    ----------
    network : RowModel
        The network. Its model is changed.
    clients : Clients
        The clients' samples.
    training : LocalTraining
        How they train.
    """

    def __init__(self, network: RowModel, clients: Clients, training: LocalTraining) -> None:
        self.network, self.clients, self.training = network, clients, training
        device = clients.device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.index = torch.zeros(training.batch_size, dtype=torch.int64, device=device)
        self.key = torch.zeros((), dtype=torch.int64, device=device)
        self.anchor = network.row
        self.optimizer = training.build(network.trainable)
        if training.optimizer == "adam":
            self.optimizer.param_groups[0]["capturable"] = True
        network.network.train()
        with self.on_stream():
            self.replay = captured(
                lambda: self.step(self.index), self.optimizer.zero_grad, self.stream
            )

    def on_stream(self) -> AbstractContextManager:
        """Return the context in which this network's kernels are launched."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def step(self, index: Tensor, weights: Tensor | None = None) -> None:
        """Make one step of `training.train_client`."""
        clients = self.clients
        if self.network.drops_out:
            models.give_keys(self.network.network, self.key)
        samples = *clients.samples(index), weights
        centre = self.network.split(self.anchor)
        precision = autocast(self.training, clients.device)
        add_gradient(self.network, samples, clients.task, self.training, centre, precision)
        self.optimizer.step()

    def train(self, model: Tensor, anchor: Tensor, batches: Sequence[Batch], keys: Tensor) -> None:
        """Train a model (``[P + Q]``) on a client's batches; the network then has the result.

        Parameters
        ----------
        model, anchor : Tensor
            ``[P + Q]``, the model that the client received, and the anchor of the penalty.
        batches : sequence of Batch
            The batches of all epochs.
        keys : Tensor
            ``[steps]``, the key of each step's dropout masks, on the device of the clients.
        """
        self.network.load(model)
        self.network.network.train()
        self.anchor.copy_(anchor)
        if not batches:
            return
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()  # as in a new optimiser
        sizes = [len(batch.index) for batch in batches]
        places = torch.cat([batch.index for batch in batches]).to(self.index.device).split(sizes)
        for batch, positions, key in zip(batches, places, keys, strict=True):
            self.key.copy_(key)
            if len(positions) == len(self.index) and batch.weights is None:
                self.index.copy_(positions)
                self.replay()
            else:
                weights = None if batch.weights is None else batch.weights.to(positions.device)
                self.optimizer.zero_grad()
                self.step(positions, weights)


def captured(
    step: Callable[[], None], clear: Callable[[], None], stream: torch.cuda.Stream | None
) -> Callable[[], None]:
    """Capture a step as a CUDA graph, and return the function that launches it.

    Before an ordinary step, ``clear`` forgets the last gradient. Without a stream, what is returned
    makes the step itself.
    """

    def ordinary() -> None:
        clear()
        step()

    if stream is None:
        return ordinary
    for _ in range(3):  # what happens only in the first steps must not be in the graph
        ordinary()
    clear()  # gradients that are made during the capture lie in the graph's own memory
    graph = torch.cuda.CUDAGraph()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def train_in_graphs(
    clients: Clients, jobs: Jobs, round: int, training: LocalTraining, trained: Tensor
) -> None:
    """Train each job by a `Trainer`, and write the models into ``trained`` (``[J, P + Q]``)."""
    batches = clients.batches_of(jobs, round, training)
    if training not in clients.trainers:
        clients.trainers[training] = {
            id(network): Trainer(network, clients, training) for network in clients.networks
        }
    trainers = clients.trainers[training]
    seeds = dropout_seeds(clients.seed, jobs.client_of.tolist(), round)

    def train_one(network: RowModel, job: int) -> None:
        trainer, model = trainers[id(network)], jobs.models[jobs.model_of[job]]
        with trainer.on_stream():
            keys = keys_of_steps(seeds[job], len(batches[job])).to(clients.device)
            trainer.train(model, jobs.of(job, "anchor", model), batches[job], keys)
            network.store(trained[job])

    wait(clients.device)  # for the models, which another stream has computed
    run_in_threads(train_one, range(len(jobs)), clients.networks)
    wait(clients.device)


def wait(device: torch.device) -> None:
    """Wait until a GPU has done everything that it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
