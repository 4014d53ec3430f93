"""The cost of a round: our engines against a plain loop, many clients, and a real federation.

``make bench`` prints the tables, and writes them to ``data/runs/benchmark.csv`` with the machine's
name. Rounds are of noise, since pixel values do not change the time. ``python tests/benchmark.py
PART ...`` measures only these parts, and the others keep their numbers. With ``--output
data/benchmark.csv``, it changes the table that the project publishes.
"""

import argparse
import copy
import dataclasses
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from rounds import begin, first_jobs

from cflkit import datasets, metrics, models, partition, simulation
from cflkit.datasets import ImageSet
from cflkit.federation import Federation, LocalTraining
from cflkit.reproduce import records
from cflkit.reproduce.records import PROJECT
from cflkit.simulation.loop import peak_memory

REPEATS = 3
# Clients, training samples per client, local epochs, batch size, image shape: a round of each takes
# seconds. A training of ocfl-cnn has 24 steps, so that reading and writing its 100 MB weigh little,
# as in the papers, where it has more than 200
WORK = {
    "compact-cnn": (15, 400, 3, 32, (1, 28, 28)),
    "ocfl-cnn": (4, 768, 1, 32, (1, 28, 28)),
    "resnet34": (2, 64, 1, 32, (3, 32, 32)),
}
PLAIN = "plain loop, tensors in memory"
THREADS, STACKED = "cflkit, threads (default on a CPU)", "cflkit, stacked (default on a GPU)"


def noise(shape, count=10_000):
    """Build a set of noise images of a shape, in ten classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return ImageSet("noise", images, labels, images[:100], labels[:100], classes=10)


def federate(model, clients, samples, epochs, batch_size, shape, engine="threads"):
    """Build a federation on noise, where 70 % of the draws are training samples."""
    draws = round(samples / 0.7) + 1
    images = noise(shape, count=max(10_000, clients * draws))
    _, split = partition.iid(images, clients=clients, draws=draws)
    split = dataclasses.replace(split, train=[indices[:samples] for indices in split.train])
    training = LocalTraining(epochs, batch_size, lr=0.01)
    device = "cuda" if engine == "stacked" and torch.cuda.is_available() else "cpu"
    return Federation(images, split, model, training, device=device, engine=engine)


def seconds_of(ways):
    """Return the median seconds of each way over `REPEATS` measurements.

    The ways take turns, so that a busy machine slows all of them equally. A way that measures
    itself, in a process of its own, returns its seconds.
    """
    seconds = {name: [] for name in ways}
    for way in ways.values():
        way()  # not measured: fills caches, starts threads, loads kernels
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = perf_counter()
            measured = way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            passed = perf_counter() - start
            seconds[name].append(measured if isinstance(measured, float) else passed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ways(model):
    """Measure each way's seconds per round, and its ratio to ours."""
    work = WORK[model]
    threads = federate(model, *work)
    jobs = first_jobs(threads)
    # The kit asks torch for large pages, and the C library to keep what is freed
    plain = partial(alone, plain_round, model, THP_MEM_ALLOC_ENABLE="0")
    measured = {PLAIN: plain, THREADS: lambda: threads.train(jobs, 0)}
    if model == "compact-cnn" or torch.cuda.is_available():
        stacked = federate(model, *work, engine="stacked")
        theirs = first_jobs(stacked)
        measured[STACKED] = lambda: stacked.train(theirs, 0)
    table = pd.Series(seconds_of(measured), name="seconds").rename_axis("way").reset_index()
    table["ratio"] = table["seconds"] / table.set_index("way").loc[THREADS, "seconds"]
    on_gpu = table["way"].eq(STACKED) & torch.cuda.is_available()
    return table.assign(network=model, device=np.where(on_gpu, "cuda", "cpu"))


def plain_round(model):
    """Return the seconds of a round in which one ordinary network after the other is trained."""
    clients, samples, epochs, batch_size, shape = WORK[model]
    images, initial = noise(shape), models.make(model, shape, 10)
    pixels = images.images.float() / 255
    held = torch.arange(clients * samples).remainder(len(pixels)).split(samples)

    def train(indices):
        network = copy.deepcopy(initial)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        for _ in range(epochs):
            for batch in indices[torch.randperm(samples)].split(batch_size):
                optimizer.zero_grad()
                F.cross_entropy(network(pixels[batch]), images.labels[batch]).backward()
                optimizer.step()

    train(held[0])  # fills caches, loads kernels
    start = perf_counter()
    for indices in held:
        train(indices)
    return perf_counter() - start


def alone(function, *arguments, **environment):
    """Return what a function returns in a process of its own, where no other federation was."""
    process = ProcessPoolExecutor(1, get_context("spawn"))
    with patch.dict(os.environ, environment), process:
        return process.submit(function, *arguments).result()


# Clients, and how many of them the clusterer sees; `None` is all
MANY = [
    *((clients, None) for clients in (100, 1000, 10_000)),
    *((10_000, sample) for sample in (100, 300, 1000, 3000)),
    *((100_000, sample) for sample in (100, 300, 1000, 3000, 10_000)),
]


def many():
    """Measure a round of OCFL with up to 100,000 clients, of whom a sample is clustered.

    Each client trains on up to eight digits of 8×8 pixels, from the classes of one of three groups.
    The groups share classes, so a sample can cost something.
    """
    columns = ["clients", "sample", "training", "clustering", "peak GiB", "ARI"]
    rows = [alone(of_many, clients, sample or clients) for clients, sample in MANY]
    return pd.DataFrame(rows, columns=columns)


def of_many(clients, sample):
    """Return both numbers, the seconds of training and of clustering, the peak and the ARI."""
    images = datasets.load("digits-8x8")
    layout = {"overlap": "overlapping", "balance": "balanced", "draws": 12}
    _, split = partition.ocfl(images, clients=clients, **layout)
    training = LocalTraining(1, 8, lr=0.1)
    federation = Federation(images, split, "perceptron", training, engine="stacked")
    three = {"clusterer": "kmeans", "options": {"n_clusters": 3}}
    method = begin("ocfl-open", federation, **three, sample=sample, before=-np.inf)
    jobs = method.broadcast(0)
    start = perf_counter()
    trained = federation.train(jobs, 0)
    middle = perf_counter()
    method.aggregate(0, jobs, trained)
    end, ari = perf_counter(), metrics.agreement(split.clusters, method.labels)["ari"]
    return clients, sample, middle - start, end - middle, peak_memory(torch.device("cpu")), ari


def real_federation():
    """Measure three rounds on four nodes with FedAvg and IFCA, simulated and over a network.

    This is the command of notebooks/a_real_federation.md. Bytes are those that the kit counts,
    method by method, and those that Flower counts.
    """
    from cflkit.flower.demo import Demo  # needs the extra
    from cflkit.flower.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        own = Demo(Path(folder), {"clients": 4, "methods": "fedavg; ifca:k=2"})
        federation = own.prepare()
        settings = Settings.of(own.config)
        history = simulation.run(settings.methods, federation, settings.rounds, progress=False)
        start = perf_counter()
        assert own.run(federation)["equal"].all()
        whole = perf_counter() - start
    counted = history.table()[["bytes_down", "bytes_up"]].sum() / 1e6
    sent = [own.told["network-traffic"][f"{way}-bytes"] / 1e6 for way in ("outbound", "inbound")]
    begun, ended = (pd.Timestamp(own.told[name]) for name in ("running-at", "finished-at"))
    lasting = (ended - begun).total_seconds()
    columns = ["way", "seconds", "seconds with start and end", "MB down", "MB up"]
    simulated = ["simulated", 60 * history.minutes, np.nan, *counted]
    networked = ["over a network", lasting, whole, *sent]
    return pd.DataFrame([simulated, networked], columns=columns)


def main(wanted, path) -> None:
    """Measure, print and write the wanted parts; the others keep their old numbers."""
    parts = {
        "ways": lambda: pd.concat([ways(model) for model in WORK], ignore_index=True),
        "many": many,
        "real federation": real_federation,
    }
    if unknown := sorted(set(wanted) - set(parts)):
        sys.exit(f"no part {', '.join(unknown)}; the parts are {', '.join(parts)}")
    tables = {name: parts[name]() for name in wanted or parts}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else records.processor()
    print(f"{device}, {os.cpu_count()} cores, torch {torch.__version__}")
    for name, table in tables.items():
        print(f"\n{name}\n{table.round(3).to_string(index=False)}")
    lines = [table.assign(part=name, machine=device) for name, table in tables.items()]
    if wanted and path.exists():
        old = pd.read_csv(path)
        lines = [old[~old["part"].isin(wanted)], *lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.concat(lines).to_csv(path, index=False, float_format="%.4g")
    print(f"\ntable     {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="by default all")
    usual = PROJECT / "data" / "runs" / "benchmark.csv"
    about = "where the table is written; data/runs/benchmark.csv by default"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=usual, help=about)
    given = parser.parse_args()
    main(given.parts, given.output)
