"""Seconds a round on one fixed job, in one run and as ratios.

The job: 15 clients with 400 training images each (MNIST where ``CFLKIT_DATA`` has it, else noise of
the same shape: the values do not change the time), 3 local epochs, batches of 32, compact CNN.
"""

import os
import platform
import statistics
from time import perf_counter

import torch
import torch.nn.functional as F
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from cflkit import datasets, models, partition
from cflkit.datasets import DatasetError, ImageSet
from cflkit.federation import Federation, Jobs, LocalTraining

CLIENTS, DRAWS, REPEATS = 15, 572, 5  # 70 % of 572 are 400
TRAINING = LocalTraining(epochs=3, batch_size=32, lr=0.01)


def pool() -> ImageSet:
    """MNIST, or noise of its shape."""
    try:
        return datasets.load("mnist")
    except DatasetError:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (10_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (10_000,), generator=generator)
        return ImageSet("noise", images, labels, images[:100], labels[:100], classes=10)


def plain_loop(batches_of_client, start):
    """One client after the other, one ordinary network and optimiser."""
    for batches in batches_of_client:
        network = models.make("compact-cnn", (1, 28, 28), 10)
        vector_to_parameters(start.clone(), network.parameters())
        optimizer = torch.optim.SGD(network.parameters(), lr=TRAINING.lr)
        for inputs, labels in batches():
            optimizer.zero_grad()
            F.cross_entropy(network(inputs), labels).backward()
            optimizer.step()


def main() -> None:
    """Measure each way in turn, several times over, and print medians and ratios."""
    images = pool()
    split = partition.iid(images.labels, dataset=images.name, clients=CLIENTS, draws=DRAWS)
    threads = Federation(images, split, training=TRAINING, device="cpu", engine="threads")
    stacked = Federation(images, split, training=TRAINING, device="cpu", engine="stacked")
    start = threads.initial()
    everyone = torch.arange(CLIENTS)
    jobs = Jobs(start[None], torch.zeros_like(everyone), everyone)
    pixels = images.images.float() / 255

    def in_memory(client):
        return lambda: ((pixels[b], images.labels[b]) for b in threads.batches(client, 0))

    def by_loader(client):
        data = TensorDataset(pixels[split.train[client]], images.labels[split.train[client]])
        loader = DataLoader(data, batch_size=TRAINING.batch_size, shuffle=True)
        return lambda: (batch for _ in range(TRAINING.epochs) for batch in loader)

    ways = {
        "plain loop, tensors in memory": lambda: plain_loop(map(in_memory, range(CLIENTS)), start),
        "plain loop, a DataLoader a client": lambda: plain_loop(
            map(by_loader, range(CLIENTS)), start
        ),
        "cflkit, threads (default on a CPU)": lambda: threads.train(jobs, 0),
        "cflkit, stacked (default on a GPU)": lambda: stacked.train(jobs, 0),
    }
    seconds = {name: [] for name in ways}
    for _ in range(REPEATS):  # in turn, so that a busy machine slows all alike
        for name, way in ways.items():
            begin = perf_counter()
            way()
            seconds[name].append(perf_counter() - begin)
    ours = statistics.median(seconds["cflkit, threads (default on a CPU)"])
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {images.name}")
    print(
        f"{'one round of ' + str(CLIENTS) + ' clients':36s} {'median s':>9s} {'range':>13s} ratio"
    )
    for name, values in seconds.items():
        median = statistics.median(values)
        span = f"{min(values):.1f} to {max(values):.1f}"
        print(f"{name:36s} {median:9.2f} {span:>13s} {median / ours:5.2f}")


if __name__ == "__main__":
    main()
