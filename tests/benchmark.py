"""The cost of a round: our engines against plain loops and Flower, its growth, and the lockstep.

``make bench`` prints the tables, writes them to ``data/runs/benchmark.csv`` with the machine's
name, and draws ``benchmark.png``. Most parts run on noise, since pixel values do not change the
time. ``python tests/benchmark.py PART ...`` measures only these parts, and the others keep their
numbers. With ``--output data/benchmark.csv``, it changes the table that the project publishes.
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
from time import perf_counter, process_time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from rounds import first_jobs
from torch.utils.data import DataLoader, TensorDataset

from cflkit import clustering, datasets, methods, metrics, models, partition, plots, simulation
from cflkit.datasets import ImageSet
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, LocalTraining
from cflkit.federation.clients import autocast
from cflkit.federation.training import run_in_threads
from cflkit.reproduce import ledger, papers, records
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
PLAIN, LOADER = "plain loop, tensors in memory", "plain loop, a DataLoader a client"
THREADS, STACKED = "cflkit, threads (default on a CPU)", "cflkit, stacked (default on a GPU)"
COARSE = "cflkit, threads, bfloat16"
FLOOR, COARSE_FLOOR = "floor: oneDNN's kernels alone", "floor: the same in bfloat16"
LINES = ["FedAvg", "Sattler", "Briggs", "OCFL-KM", "OCFL-AFF", "OCFL-MS", "OCFL-HDB"]


def noise(shape, count=10_000):
    """Build a set of noise images of a shape, in ten classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return ImageSet("noise", images, labels, images[:100], labels[:100], classes=10)


def federate(model, clients, samples, epochs, batch_size, shape, precision="float32", **options):
    """Build a federation on noise, where 70 % of the draws are training samples."""
    draws = round(samples / 0.7) + 1
    images = noise(shape, count=max(10_000, clients * draws))
    _, split = partition.iid(images, clients=clients, draws=draws)
    split = dataclasses.replace(split, train=[indices[:samples] for indices in split.train])
    training = LocalTraining(epochs, batch_size, lr=0.01, precision=precision)
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


def kernels_alone(federation):
    """Return a round of the convolutions and products alone, as the engine calls them.

    This is the floor: in a round, everything else takes time, too. On a CPU, oneDNN computes them.
    """
    own, training = federation.data, federation.training
    inputs, _ = own.samples(torch.arange(training.batch_size))
    precision = partial(autocast, training, own.device)
    held = {
        id(network): with_inputs(network.network, inputs, precision) for network in own.networks
    }

    def alone(network, client):
        for batch in own.batches(client, 0, training):
            for layer, x, gradient in held[id(network)]:
                size = len(batch.index)
                with precision():
                    outputs = layer(x[:size])
                needed = [x] if x.requires_grad else []
                torch.autograd.grad(outputs, [*needed, *layer.parameters()], gradient[:size])

    return lambda: run_in_threads(alone, range(federation.clients), own.networks)


def with_inputs(network, inputs, precision):
    """Return each layer that multiplies, with its input and a gradient of its output."""
    found = []

    def keep(layer, given, output):
        x = given[0].detach().clone(memory_format=torch.preserve_format)
        # The first layer needs no gradient of the pixels
        found.append((layer, x.requires_grad_(bool(found)), torch.ones_like(output).detach()))

    layers = [
        one for one in network.modules() if isinstance(one, torch.nn.Conv2d | torch.nn.Linear)
    ]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    with precision():
        network.train()(inputs)
    for hook in hooks:
        hook.remove()
    return found


def ways(model):
    """Measure each way's seconds per round, its ratio to ours, and the floor's share of them."""
    work = WORK[model]
    _, threads = federate(model, *work)
    jobs = first_jobs(threads)

    def plain(way):
        # The kit asks torch for large pages, and the C library to keep what is freed
        return lambda: float(command("--plain", way, model, THP_MEM_ALLOC_ENABLE="0"))

    measured = {PLAIN: plain("memory"), LOADER: plain("loader")}
    measured[THREADS] = lambda: threads.train(jobs, 0)
    _, coarse = federate(model, *work, precision="bfloat16")
    measured[COARSE] = lambda: coarse.train(jobs, 0)
    measured |= {FLOOR: kernels_alone(threads), COARSE_FLOOR: kernels_alone(coarse)}
    if model == "compact-cnn" or torch.cuda.is_available():
        _, stacked = federate(model, *work, engine="stacked")
        theirs = first_jobs(stacked)
        measured[STACKED] = lambda: stacked.train(theirs, 0)
    table = pd.Series(seconds_of(measured), name="seconds").rename_axis("way").reset_index()
    ours = table.loc[table["way"] == THREADS, "seconds"].item()
    table["ratio"] = table["seconds"] / ours
    floors = {way: COARSE_FLOOR if way in (COARSE, COARSE_FLOOR) else FLOOR for way in measured}
    seconds = table.set_index("way")["seconds"]
    table["share"] = table["way"].map(floors).map(seconds) / table["seconds"]
    table["device"] = "cpu"
    if torch.cuda.is_available():  # no floor is measured there
        table.loc[table["way"] == STACKED, ["share", "device"]] = [np.nan, "cuda"]
    table.insert(0, "network", model)
    return table


def plain_round(way, model):
    """Print the seconds of a round of a plain loop, in a process that has no federation."""
    clients, samples, epochs, batch_size, shape = WORK[model]
    images, network = noise(shape), models.make(model, shape, 10)
    pixels, training = images.images.float() / 255, LocalTraining(epochs, batch_size, lr=0.01)
    held = torch.arange(clients * samples).remainder(len(pixels)).split(samples)

    def in_memory(indices):
        orders = (indices[torch.randperm(samples)] for _ in range(epochs))
        return lambda: ((pixels[b], images.labels[b]) for o in orders for b in o.split(batch_size))

    def by_loader(indices):
        data = TensorDataset(pixels[indices], images.labels[indices])
        loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        return lambda: (batch for _ in range(epochs) for batch in loader)

    batches = by_loader if way == "loader" else in_memory
    plain_loop(network, training, map(batches, held[:1]))  # fills caches, loads kernels
    begin = perf_counter()
    plain_loop(network, training, map(batches, held))
    print(perf_counter() - begin)


def growth():
    """Measure a round's parts in seconds for more and more clients, and the peak memory."""
    rows = []
    for clients in (15, 50, 150, 500):
        _, federation = federate("compact-cnn", clients, 60, 1, 32, (1, 28, 28))
        jobs = first_jobs(federation)
        updates = federation.train(jobs, 0) - jobs.models
        gamma = cosine_divergence(updates)
        parts = {
            "training": lambda f=federation, j=jobs: f.train(j, 0),
            "divergence": lambda u=updates: cosine_divergence(u),
            "clustering": lambda g=gamma: clustering.make("hdbscan").fit_predict(g),
        }
        peak = float(command("--peak", "compact-cnn", str(clients)))
        rows.append({"clients": clients, **seconds_of(parts), "peak GiB": peak})
    rows.append({"clients": "15, ocfl-cnn", "peak GiB": float(command("--peak", "ocfl-cnn", "15"))})
    return pd.DataFrame(rows)


def command(*arguments, **environment):
    """Return what this file prints when it runs in its own process."""
    words, places = [sys.executable, __file__, *arguments], os.environ | environment
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=places).stdout


def peak(model, clients):
    """Print the peak memory of two rounds of OCFL, in GiB."""
    _, federation = federate(model, int(clients), 32, 1, 32, (1, 28, 28))
    line_up = {"OCFL": methods.make("ocfl", clusterer="kmeans", before=-np.inf)}
    simulation.run(line_up, federation, 2, progress=False)
    print(peak_memory(torch.device("cpu")))


# The ways to train the papers' network on one core, and whether torch asks for large pages: it is
# the kit that tells it to. Flower's way is a node's work, without the transport of models
LARGE = {
    "plain loop, one core": ("plain", "0"),
    "plain loop, one core, large pages": ("plain", "1"),
    "Flower's ClientApp, one core": ("flower", "0"),
    "cflkit, one core": ("cflkit", "1"),
}


def papers_network():
    """Measure a step of ``ocfl-cnn`` in milliseconds of one core, each way in its own processes.

    Processor time is counted, and the fastest of all trainings is taken, since memory is shared
    with whatever else is running. The ways take turns.
    """
    measured = {way: [] for way in LARGE}
    for _ in range(REPEATS):
        for way, (name, pages) in LARGE.items():
            told = command("--step", name, THP_MEM_ALLOC_ENABLE=pages).splitlines()[-1]
            measured[way].append([float(number) for number in told.split()])
    rows = []
    for way, numbers in measured.items():
        steps, peaks = zip(*numbers, strict=True)
        rows.append({"way": way, "ms per step": min(steps), "peak GiB": max(peaks)})
    table = pd.DataFrame(rows)
    table["ratio"] = table["ms per step"] / table["ms per step"].iloc[-1]
    return table.assign(network="ocfl-cnn", device="cpu")


def step_of(way):
    """Print the milliseconds of a step in the fastest of three trainings, and the peak in GiB."""
    torch.set_num_threads(1)
    steps, shape = 24, (1, 28, 28)
    if way == "cflkit":
        _, federation = federate("ocfl-cnn", 1, 32 * steps, 1, 32, shape)
        train = partial(federation.train, first_jobs(federation), 0)
    else:
        images, network = noise(shape), models.make("ocfl-cnn", shape, 10)
        pixels, order = images.images.float() / 255, torch.arange(32 * steps).split(32)
        local = LocalTraining(1, 32, lr=0.01)
        batches = [lambda: ((pixels[own], images.labels[own]) for own in order)]
        train = partial(plain_loop, network, local, batches)
        train = in_flower(network, train) if way == "flower" else train
    spent = []
    for _ in range(3):
        begin = process_time()
        train()
        spent.append(1000 * (process_time() - begin) / steps)
    print(min(spent), peak_memory(torch.device("cpu")))


def in_flower(network, train):
    """Return a training as a node of Flower does it: from the server's message to the answer."""
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    app = ClientApp()

    @app.train()
    def fit(message, context):
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        trained = ArrayRecord(train().state_dict())
        return Message(RecordDict({"arrays": trained}), reply_to=message)

    content = RecordDict({"arrays": ArrayRecord(network.state_dict())})
    return lambda: app(Message(content, 1, "train"), Context(0, 0, {}, RecordDict(), {}))


def lockstep():
    """Measure seven methods of the default scenario together, and each of them alone."""
    run = papers.ocfl.Parameters.checked(ledger.defaults("03b_ocfl_controls"))
    images, split = papers.ocfl.data(run)
    federation = papers.ocfl.federation(run, images, split)
    rows = []
    for names in (LINES, *([name] for name in LINES)):
        line_up = {name: papers.ocfl.line_up(run, images, split)[name] for name in names}
        history = simulation.run(line_up, federation, run.rounds, progress=False)
        name = "seven in lockstep" if len(names) > 1 else names[0]
        rows.append({"methods": name, "trainings": history.trained, "minutes": history.minutes})
    table = pd.DataFrame(rows)
    alone = table.iloc[1:][["trainings", "minutes"]].sum()
    table.loc[len(table)] = {"methods": "seven one by one", **alone}
    return table.assign(ratio=table["trainings"] / alone["trainings"])


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


def draw(tables):
    """Draw the ways for each network side by side, and the growth with the number of clients."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    measured = tables["ways"].pivot(index="network", columns="way", values="ratio")
    measured.loc[list(WORK)].plot.bar(ax=left, rot=0, xlabel="", ylabel="time, ours = 1", width=0.8)
    left.legend(fontsize=6)
    grown = tables["growth"].iloc[:-1].astype(float).set_index("clients")
    grown[["training", "divergence", "clustering"]].plot(ax=right, marker="o", logx=True, logy=True)
    right.set(xlabel="clients", ylabel="seconds per round")
    right.set_xticks(grown.index, grown.index.astype(int))
    right.minorticks_off()
    return plots.save(figure, "benchmark")


def main(wanted, path) -> None:
    """Measure, print, write and draw the wanted parts; the others keep their old numbers."""
    plots.style()
    parts = {
        "ways": lambda: pd.concat([ways(model) for model in WORK], ignore_index=True),
        "papers' network": papers_network,
        "growth": growth,
        "lockstep": lockstep,
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
    if not wanted:
        print(f"figure    {draw(tables)}")


# What this file does in a process of its own
ALONE = {"--peak": peak, "--plain": plain_round, "--step": step_of, "--many": one_of_many}

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
