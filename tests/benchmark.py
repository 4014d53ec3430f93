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
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from rounds import first_jobs

from cflkit import datasets, methods, metrics, models, partition, simulation
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


def federate(model, clients, samples, epochs, batch_size, shape, **options):
    """Build a federation on noise, where 70 % of the draws are training samples."""
    draws = round(samples / 0.7) + 1
    images = noise(shape, count=max(10_000, clients * draws))
    _, split = partition.iid(images, clients=clients, draws=draws)
    split = dataclasses.replace(split, train=[indices[:samples] for indices in split.train])
    training = LocalTraining(epochs, batch_size, lr=0.01)
    stacked = options.setdefault("engine", "threads") == "stacked"
    device = "cuda" if stacked and torch.cuda.is_available() else "cpu"
    return images, Federation(images, split, model, training, device=device, **options)


def plain_loop(model, training, batches_of_client):
    """Train one client after the other, each with an ordinary network; return the last one."""
    for batches in batches_of_client:
        network = copy.deepcopy(model)
        optimizer = torch.optim.SGD(network.parameters(), lr=training.lr)
        for inputs, labels in batches():
            optimizer.zero_grad()
            F.cross_entropy(network(inputs), labels).backward()
            optimizer.step()
    return network


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
            begin = perf_counter()
            measured = way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            passed = perf_counter() - begin
            seconds[name].append(measured if isinstance(measured, float) else passed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ways(model):
    """Measure each way's seconds per round, and its ratio to ours."""
    work = WORK[model]
    _, threads = federate(model, *work)
    jobs = first_jobs(threads)
    # The kit asks torch for large pages, and the C library to keep what is freed
    plain = partial(command, "--plain", model, THP_MEM_ALLOC_ENABLE="0")
    measured = {
        PLAIN: lambda: float(plain()),
        THREADS: lambda: threads.train(jobs, 0),
    }
    if model == "compact-cnn" or torch.cuda.is_available():
        _, stacked = federate(model, *work, engine="stacked")
        theirs = first_jobs(stacked)
        measured[STACKED] = lambda: stacked.train(theirs, 0)
    table = pd.Series(seconds_of(measured), name="seconds").rename_axis("way").reset_index()
    table["ratio"] = table["seconds"] / table.set_index("way").loc[THREADS, "seconds"]
    on_gpu = table["way"].eq(STACKED) & torch.cuda.is_available()
    return table.assign(network=model, device=np.where(on_gpu, "cuda", "cpu"))


def plain_round(model):
    """Print the seconds of a round of a plain loop, in a process that has no federation."""
    clients, samples, epochs, batch_size, shape = WORK[model]
    images, network = noise(shape), models.make(model, shape, 10)
    pixels, training = images.images.float() / 255, LocalTraining(epochs, batch_size, lr=0.01)
    held = torch.arange(clients * samples).remainder(len(pixels)).split(samples)

    def batches(indices):
        for _ in range(epochs):
            for batch in indices[torch.randperm(samples)].split(batch_size):
                yield pixels[batch], images.labels[batch]

    own = [partial(batches, indices) for indices in held]
    plain_loop(network, training, own[:1])  # fills caches, loads kernels
    begin = perf_counter()
    plain_loop(network, training, own)
    print(perf_counter() - begin)


def command(*arguments, **environment):
    """Return what this file prints when it runs in its own process."""
    words, places = [sys.executable, __file__, *arguments], os.environ | environment
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=places).stdout


# Clients, and how many of them the clusterer sees; `None` is all
MANY = [
    *((clients, None) for clients in (100, 1000, 10_000)),
    *((10_000, sample) for sample in (100, 300, 1000, 3000)),
    *((100_000, sample) for sample in (100, 300, 1000, 3000, 10_000)),
]


def many():
    """Measure a round of OCFL with up to 100,000 clients, of whom a sample is clustered.

    Each client has eight digits of 8×8 pixels, from the classes of one of three groups. The groups
    share classes, so a sample can cost something.
    """
    rows = []
    for clients, sample in MANY:
        said = command("--many", str(clients), str(sample or clients)).splitlines()[-1]
        rows.append(dict(zip(MANY_COLUMNS, map(float, said.split()), strict=True)))
    return pd.DataFrame(rows)


MANY_COLUMNS = ["clients", "sample", "training", "clustering", "peak GiB", "ARI"]


def one_of_many(clients, sample):
    """Print the seconds of two rounds' training, the seconds of clustering, the peak and ARI."""
    clients, sample = int(clients), int(sample)
    images = datasets.load("digits-8x8")
    generator = np.random.default_rng(0)
    truth = generator.integers(3, size=clients)
    classes = partition.OVERLAPPING[10]
    pools = [np.flatnonzero(np.isin(images.labels.numpy(), own)) for own in classes]
    held = [np.sort(generator.choice(pools[group], 8, replace=False)) for group in truth]
    none = np.empty(0, dtype=np.int64)
    split = partition.Partition(images.name, held, [none] * clients, truth, {"name": "many"})
    federation = Federation(
        images, split, "perceptron", LocalTraining(1, 8, lr=0.1), engine="stacked"
    )
    three = {"clusterer": "kmeans", "options": {"n_clusters": 3}}
    method = methods.make("ocfl-open", **three, sample=sample, before=-np.inf)
    method.setup(federation.server, federation.initial())
    jobs = method.broadcast(0)
    begin = perf_counter()
    trained = federation.train(jobs, 0)
    middle = perf_counter()
    method.aggregate(0, jobs, trained)
    end = perf_counter()
    found = metrics.agreement(truth, method.labels)["ari"]
    print(clients, sample, middle - begin, end - middle, peak_memory(torch.device("cpu")), found)


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
        begin = perf_counter()
        assert own.run(federation)["equal"].all()
        whole = perf_counter() - begin
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


# What this file does in a process of its own
ALONE = {"--plain": plain_round, "--many": one_of_many}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ALONE:
        ALONE[sys.argv[1]](*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("parts", nargs="*", metavar="PART", help="by default all")
        parser.add_argument(
            *("-o", "--output"),
            metavar="FILE",
            type=Path,
            default=PROJECT / "data" / "runs" / "benchmark.csv",
            help="where the table is written; data/runs/benchmark.csv by default",
        )
        given = parser.parse_args()
        main(given.parts, given.output)
