"""The clients: their samples, the networks that compute with these, and what a network tells.

Training is in `training`. Here is everything else that a client computes: losses, embeddings,
predictions and gradients of a given model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cflkit import models
from cflkit.datasets import ImageSet
from cflkit.federation import machine
from cflkit.federation.blueprint import Blueprint
from cflkit.federation.requests import Jobs, LocalTraining
from cflkit.federation.seeds import BATCHES, SAMPLES, dropout_seeds, step_keys, stream
from cflkit.models.rows import RowModel, join
from cflkit.partition import Partition

CENTRAL = "central"
# The largest number of images in one forward pass, by engine
AT_ONCE = {"threads": 512, "stacked": 4096}
# How many bytes the backward pass of a gradient may keep. A share of the free memory would change
# the last bits with what else is running
GRADIENT_BYTES = 2**30

# A function from a network, inputs and labels to the output for each sample
Output = Callable[[nn.Module, Tensor, Tensor], Tensor]
# A function from outputs, inputs, labels and a reduction to the loss. The reduction ``mean`` gives
# the mean over the batch, and ``none`` gives the loss of each sample ``[n]``
Loss = Callable[[Tensor, Tensor, Tensor, str], Tensor]


def cross_entropy(outputs: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Compute the cross-entropy of class scores ``[n, classes]`` and the labels."""
    return F.cross_entropy(outputs, labels, reduction=reduction)


def squared_error(outputs: Tensor, inputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Compute the mean squared error over the pixels of reconstructions ``[n, pixels]``."""
    errors = (outputs - inputs.flatten(1)).square().mean(dim=1)
    return errors if reduction == "none" else errors.mean()


LOSSES: dict[str, Loss] = {"classification": cross_entropy, "reconstruction": squared_error}


def f1_and_accuracy(labels: Tensor, probabilities: Tensor) -> tuple[float, float]:
    """Compute macro-F1 and accuracy of probabilities ``[n, classes]`` for labels ``[n]``.

    F1 is averaged over the classes that occur among the labels or the predictions. The prediction
    of a class that the client does not have therefore lowers the mean. The confusion matrix is
    computed on the device of the arguments. Without a sample, both results are NaN.
    """
    if not len(labels):
        return float("nan"), float("nan")
    classes = probabilities.shape[1]
    cells = labels * classes + probabilities.argmax(dim=1)
    confusion = torch.bincount(cells, minlength=classes**2).view(classes, classes).cpu().numpy()
    hits = confusion.diagonal()
    occurring = confusion.sum(axis=0) + confusion.sum(axis=1)  # counts labels and predictions
    f1 = 2 * hits[occurring > 0] / occurring[occurring > 0]
    return float(f1.mean()), float(hits.sum() / len(labels))


def as_inputs(images: Tensor) -> Tensor:
    """Convert images or features to what networks get: pixels in [0, 1], features as they are."""
    inputs = images.to(torch.get_default_dtype())
    return inputs if images.is_floating_point() else inputs.div_(255)


@dataclass(frozen=True)
class Batch:
    """Some of a client's training samples.

    Attributes
    ----------
    index : Tensor
        ``[B]``, int64: the positions of the samples in the pool.
    weights : Tensor or None
        ``[B]``: the weight of each sample in the loss; None means that all weights are one.
    """

    index: Tensor
    weights: Tensor | None = None


class Clients:
    """The data of all clients on one device, and the networks that compute with them.

    The arguments are those of `Federation`. There is one network per core.

    Raises
    ------
    ValueError
        The partition does not fit the images.
    """

    def __init__(
        self,
        images: ImageSet,
        partition: Partition,
        blueprint: Blueprint,
        task: str,
        training: LocalTraining,
        engine: str,
    ) -> None:
        if partition.dataset != images.name:
            raise ValueError(
                f"the partition is of {partition.dataset!r}, but the images are {images.name!r}"
            )
        held = [indices for parts in partition.splits.values() for indices in parts]
        if max(int(indices.max(initial=0)) for indices in held) >= len(images.labels):
            raise ValueError(
                f"the partition has indices beyond the {len(images.labels)} samples of the pool"
            )
        self.device = device = blueprint.device
        cores = machine.usable_cores() if device.type == "cpu" else 1
        more = blueprint.networks(min(cores, partition.clients) - 1)
        self.networks = networks = [blueprint.first, *more]
        self.task, self.loss_of, self.training = task, LOSSES[task], training
        sizes = [parameter.nbytes for parameter in networks[0].trainable.values()]
        self.has_large_layers = max(sizes, default=0) > machine.KEPT_BLOCK
        for layer in (layer for network in networks for layer in network.network.modules()):
            if isinstance(layer, nn.ReLU):
                layer.inplace = True  # the same bits, in 4 to 10 % less time per round
        self.seed, self.engine = blueprint.seed, engine
        self.bytes_per_sample = blueprint.bytes_per_sample
        self.files, self.class_names = images.files, images.class_names
        self.sizes = [len(positions) for positions in partition.train]
        self.pool = images.images.to(device), images.labels.to(device)
        self.central = images.test_images.to(device), images.test_labels.to(device)
        self._indices = {
            name: [torch.from_numpy(indices) for indices in parts]
            for name, parts in partition.splits.items()
        }
        # The central test set is the same for every client
        self._indices[CENTRAL] = [torch.arange(len(images.test_labels))] * partition.clients

        # With channels last, torch's convolutions are a third faster on a CPU (see `RowModel`)
        stacks = engine == "stacked"
        self.memory_format = torch.contiguous_format if stacks else torch.channels_last

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""
        return len(self._indices[split][client]) if split in self._indices else 0

    def batches(
        self,
        client: int,
        round: int,
        training: LocalTraining,
        subset: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> list[Batch]:
        """Return the batches of all local epochs, with a new permutation in each epoch.

        The order depends only on the seed, the client and the round.
        """
        key = np.random.SeedSequence(self.seed, spawn_key=(BATCHES, client, round))
        generator = np.random.default_rng(key)
        indices = self._indices["train"][client]
        indices = indices if subset is None else indices[subset]
        batches: list[Batch] = []
        for _ in range(training.epochs):
            order = torch.from_numpy(generator.permutation(len(indices)))
            for chosen in order.split(training.batch_size):
                batch_weights = None if weights is None else weights[chosen.to(weights.device)]
                batches.append(Batch(indices[chosen], batch_weights))
        # Nothing, split, is one empty batch
        return [batch for batch in batches if len(batch.index)]

    def batches_of(self, jobs: Jobs, round: int, training: LocalTraining) -> list[list[Batch]]:
        """Return the batches of each job, see `batches`."""
        return [
            self.batches(c, round, training, jobs.of(job, "subset"), jobs.of(job, "weights"))
            for job, c in enumerate(jobs.client_of.tolist())
        ]

    def index(self, split: str, client: int, most: int | None = None) -> Tensor:
        """Return the positions of a client's samples of a split in the pool.

        If there are more than ``most``, this many are drawn. The draw depends only on the seed, the
        split and the client. Every client has the whole central test set.
        """
        if split not in self._indices:
            raise ValueError(f"unknown split {split!r}; choose from {', '.join(self._indices)}")
        index = self._indices[split][client]
        if split == CENTRAL or most is None or len(index) <= most:
            return index
        place = list(self._indices).index(split)
        order = stream(self.seed, SAMPLES, place, client).permutation(len(index))
        return index[torch.from_numpy(np.sort(order[:most]))]

    def samples(self, index: Tensor, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return the inputs ``[n, channels, height, width]``, and the labels ``[n]``."""
        images, labels = self.central if split == CENTRAL else self.pool
        index = index.to(self.device)
        inputs = as_inputs(images[index])
        return inputs.contiguous(memory_format=self.memory_format), labels[index]

    def labels(self, client: int, split: str) -> Tensor:
        """Return the labels ``[n]`` of a client's samples of a split."""
        labels = self.central[1] if split == CENTRAL else self.pool[1]
        return labels[self.index(split, client).to(self.device)]

    # --- What a network tells ---------------------------------------------------------------------

    def loss(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of each sample, ``[n]``."""
        return self.loss_of(network(inputs), inputs, labels, "none")

    def prediction(self, network: nn.Module, inputs: Tensor, _: Tensor) -> Tensor:
        """Compute the prediction for each sample, ``[n, …]``."""
        outputs = network(inputs)
        return outputs.softmax(dim=1) if self.task == "classification" else outputs

    def embedding(self, network: nn.Module, inputs: Tensor, _: Tensor) -> Tensor:
        """Compute the embeddings ``[n, d]``: what enters the network's last part."""
        caught: list[Tensor] = []
        last = list(network.children())[-1]
        with last.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0])):
            network(inputs)
        return caught[0]

    def evaluate(
        self,
        network: RowModel,
        rows: Sequence[Tensor],
        part: Tensor,
        split: str,
        output: Output,
        train_mode: bool = False,
    ) -> list[Tensor]:
        """Compute an output of some models on some samples."""
        samples = self.samples(part, split)
        outputs = []
        for row in rows:
            network.load(row)
            network.network.train(train_mode)
            with torch.inference_mode():
                outputs.append(output(network.network, *samples))
        return outputs

    def parts(
        self, client: int, split: str, most: int | None = None, train_mode: bool = False
    ) -> Sequence[Tensor]:
        """Split the positions of a client's samples into parts, one per forward pass."""
        size = AT_ONCE[self.engine]
        if train_mode:
            size = self.training.batch_size
        elif self.engine == "stacked":
            fitting = int(spare_memory(self.device) / max(self.bytes_per_sample, 1))
            size = max(1, min(size, fitting))
        return self.index(split, client, most).split(size)

    def bytes_per_job(self, training: LocalTraining) -> float:
        """Estimate how many bytes a job in a stack needs.

        The estimate is six rows (parameters, gradients, optimiser state and copies), plus twice the
        bytes that the backward pass keeps for a batch.
        """
        batch = min(training.batch_size, max(self.sizes)) * self.bytes_per_sample
        return 6 * 4 * len(self.networks[0].row) + 2 * batch


def spare_memory(device: torch.device) -> int:
    """Return the bytes that a computation may take: half of what the device has free now.

    PyTorch keeps a GPU's memory that it has freed. To CUDA this is in use, but it is free for us.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (torch.cuda.mem_get_info(device)[0] + kept) // 2
    import psutil

    return psutil.virtual_memory().available // 2


@dataclass(frozen=True)
class Client:
    """One client as a question (`Ask`) sees it: its own data, and its computations.

    Attributes
    ----------
    clients : Clients
        The data of all clients.
    number : int
        The number of the client, from 0.
    network : RowModel
        The network with which the client computes.
    shared_seed : int
        A seed that the clients share and the server does not know.
    """

    clients: Clients
    number: int
    network: RowModel
    shared_seed: int

    def samples(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """Return the client's inputs ``[n, channels, height, width]`` and labels (`as_inputs`)."""
        return self.clients.samples(self.clients.index(split, self.number), split)

    def embed(
        self, model: Tensor, split: str, max_samples: int | None = None, train_mode: bool = False
    ) -> Tensor:
        """Return a model's embeddings ``[n, d]`` of the client's samples (`Federation.embed`).

        In training mode, masks of dropout depend only on the client and on the number of its batch.
        """
        clients, network, embedded = self.clients, self.network, []
        seed = dropout_seeds(clients.seed, [self.number], 0)
        for step, part in enumerate(clients.parts(self.number, split, max_samples, train_mode)):
            if train_mode:
                models.give_keys(network.network, step_keys(seed, step)[0].to(clients.device))
            output = clients.embedding
            embedded += clients.evaluate(network, [model], part, split, output, train_mode)
        return torch.cat(embedded)

    def losses(self, model: Tensor, split: str = "train") -> Tensor:
        """Return the losses ``[n]`` of a model on the client's samples."""
        clients, losses = self.clients, []
        for part in clients.parts(self.number, split):
            losses += clients.evaluate(self.network, [model], part, split, clients.loss)
        return torch.cat(losses)

    def gradient(self, model: Tensor, samples: int | None = None) -> Tensor:
        """Return the gradient ``[P]`` of a model's mean loss on the first training samples.

        The network is in evaluation mode, so that the answer is the same whenever it is asked. The
        gradient is the mean over parts of the samples, whose backward passes fit into the memory.
        """
        clients, network = self.clients, self.network
        index = clients.index("train", self.number)[:samples]
        size = min(AT_ONCE[clients.engine], int(GRADIENT_BYTES / max(clients.bytes_per_sample, 1)))
        network.load(model)
        network.network.eval()
        parameters = list(network.trainable.values())
        gradient = torch.zeros(network.parameters, device=clients.device)
        for part in index.split(max(1, size)):
            inputs, labels = clients.samples(part)
            mean = clients.loss_of(network.network(inputs), inputs, labels, "mean")
            pieces = torch.autograd.grad(mean * (len(part) / len(index)), parameters)
            gradient += join(pieces)
        return gradient
