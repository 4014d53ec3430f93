"""Methods on clients that are elsewhere: equality with the simulation, messages, and faults.

A grid in this process replaces Flower's network. `test_flower_processes` starts real processes.
"""

import dataclasses
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from cflkit import datasets, methods, partition, simulation
from cflkit.datasets import DatasetError
from cflkit.federation import ClientsAbsent, Diverged, Federation, LocalTraining
from cflkit.flower import client_app, client_data, keys, server_app
from cflkit.flower.messages import packed, unpacked
from cflkit.flower.server_app import RemoteFederation
from cflkit.flower.settings import DEFAULTS, ONLY_SIMULATED, Settings, line_up_of
from cflkit.reproduce.parameters import ParameterError
from cflkit.simulation import checkpoints
from tests.test_contract import OPTIONS

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, WIDTH = 6, 650  # of clients, and of the linear model
TRAINING = LocalTraining(epochs=1, batch_size=16)
CONFIG = DEFAULTS | {"clients": CLIENTS, "model": "linear", "epochs": 1, "timeout": 0.5}
CONFIG |= {"nodes": ", ".join(str(100 + client) for client in range(CLIENTS))}
CONFIG |= {"lr": 0.01, "momentum": 0.0}


def text(name, **options):
    """Write a method with its options as in the setting ``methods``."""
    values = (json.dumps(value).replace("Infinity", ".inf") for value in options.values())
    return f"{name}:" + ",".join(map("=".join, zip(options, values, strict=True)))


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """The simulation's federation, and a folder with one file per client and their secret."""
    folder = tmp_path_factory.mktemp("clients")
    config = CONFIG | {"clients": 8, "partition": "quarter-turn:samples=40", "nodes": ""}
    images, split = client_data.of_the_kit(Settings.of(config))
    split = split.take(range(CLIENTS))
    keys.write_secret(folder / "secret")
    for client in range(CLIENTS):
        client_data.save(folder / f"{client}.npz", images, split, client)

    def federation(**options):
        own = Federation(images, split, "linear", TRAINING, engine="threads", **options)
        own.shared_seed = keys.read_secret(folder / "secret")
        return own

    return federation, folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server_app, "POLL", 0.01)


def sent_to(config, node, kind, content):
    """Send a message to a node, and return the content of its reply."""
    context = Context(1, 1, node, RecordDict(), config)
    return client_app.app(Message(content, 1, kind), context).content


class Grid:
    """Nodes in this process. ``spoil`` may replace or remove what a client replies."""

    def __init__(self, folder, config=CONFIG):
        self.config, self.connected = config, {100 + client for client in range(CLIENTS)}
        secret = str(folder / "secret")
        self.nodes = {
            100 + c: {"data": str(folder / f"{c}.npz"), "secret": secret} for c in range(CLIENTS)
        }
        self.spoil = lambda client, kind, content: content
        self.replies, self.count, self.trainings = {}, itertools.count(), []

    def get_node_ids(self):
        return sorted(self.connected)

    def push_messages(self, messages):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        name = message.metadata.__dict__["_message_id"] = f"message {next(self.count)}"
        number, kind = message.metadata.dst_node_id, message.metadata.message_type
        if kind == "train":
            self.trainings.append(number - 100)
        try:
            content = sent_to(self.config, self.nodes[number], kind, message.content)
        except Exception as error:  # as Flower does
            content = Error(code=0, reason=repr(error))
        content = self.spoil(number - 100, kind, content)
        if content is not None:
            self.replies[name] = Message(content, reply_to=message)
        return name

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


def federate(grid, rows, rounds=3, **options):
    """Run methods, given as in the setting, on nodes; return them and the table."""
    grid.config = grid.config | {"methods": rows, "rounds": rounds}
    settings = Settings.of(grid.config)
    nodes = RemoteFederation(grid, settings)
    history = simulation.run(settings.methods, nodes, rounds, progress=False, **options)
    return settings.methods, history.table()


def same(one, other):
    """Whether all clients of two methods have the same models, bit for bit."""
    return all(map(torch.equal, one.client_models(), other.client_models()))


# --- Equality with the simulation -----------------------------------------------------------------

ELSEWHERE = sorted(set(methods.METHODS) - set(ONLY_SIMULATED))
# These find several clusters by the second round, so that the third one trains their models
CLUSTERING = {"briggs": {"rounds": 1, "threshold": 0.3}, "fedclust": {"threshold": 0.01}}
CLUSTERING |= {"sattler": {"eps1": 1e3, "eps2": 1e-6, "min_rounds": 0}}
CLUSTERING |= {name: OPTIONS[name] for name in ("ocfl", "signatures")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
def test_nodes_give_the_models_of_the_simulation_to_the_bit(clients, name):
    federation, folder = clients
    row = text(name, **OPTIONS.get(name, {}) | CLUSTERING.get(name, {}))
    line_up = line_up_of(row)
    here = simulation.run(line_up, federation(), 3, progress=False).table()
    others, there = federate(Grid(folder), row)
    assert same(line_up[row], others[row])
    if name in CLUSTERING:
        assert here["n_clusters"].iloc[1] > 1
    assert not set(there) - set(here)
    # A real federation has no true clusters and no central test set
    missing = {"ari", "ami", "homogeneity", "completeness"}
    central = ["gf1", "learning_gap", "central_accuracy"]
    common = [column for column in here if column not in (*missing, *central)]
    pd.testing.assert_frame_equal(here[common], there[common])
    assert there[central].isna().all(axis=None)


SOME = {"clients-per-round": 3, "methods": "fedavg; ifca:k=2"}


@pytest.mark.parametrize(
    "part, config",
    [
        ("quarter-turn:samples=40", {"methods": "fedavg; emd-cfl"}),
        ("dirichlet:alpha=1.0", SOME),
        ("iid", SOME | {"dataset": "own.npz"}),
    ],
)
def test_flower_s_simulation_is_that_of_the_kit(clients, tmp_path, monkeypatch, part, config):
    """Nodes without a file take their part of a data set, and those that are too many rest."""
    monkeypatch.chdir(tmp_path)
    digits = datasets.load("digits-8x8")
    np.savez("own.npz", images=digits.images[:, 0], labels=digits.labels)
    config = CONFIG | {"clients": 4, "partition": part, "nodes": ""} | config
    grid = Grid(clients[1], config)
    grid.nodes = {100 + c: {"partition-id": c, "num-partitions": 6} for c in range(CLIENTS)}
    looks, all_nodes = itertools.count(), grid.get_node_ids
    grid.get_node_ids = lambda: all_nodes() if next(looks) else []  # they come one after the other
    settings = Settings.of(config)
    some = {"clients_per_round": config["clients-per-round"] or None}
    here = Federation(*client_data.of_the_kit(settings), **settings.options | some)
    simulation.run(settings.methods, here, 2, progress=False)
    others, _ = federate(grid, config["methods"], 2)
    for name in settings.methods:
        assert same(settings.methods[name], others[name])


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_with_other_nodes(clients, tmp_path, monkeypatch):
    # These rounds are so short that a checkpoint would not be written after each of them
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    federation, folder = clients
    line_up = line_up_of("ocfl")
    simulation.run(line_up, federation(), 4, progress=False)
    grid, fresh, options = Grid(folder), Grid(folder), {"checkpoint": tmp_path / "checkpoint.pt"}

    def kill(client, kind, content):
        if grid.trainings.count(client) == 3:
            raise KeyboardInterrupt
        return content

    grid.spoil = kill
    # The others answer in the reverse order
    fresh.pull_messages = lambda names: Grid.pull_messages(fresh, [*names][::-1])
    with pytest.raises(KeyboardInterrupt):
        federate(grid, "ocfl", 4, **options)
    again, _ = federate(fresh, "ocfl", 4, **options)
    assert same(line_up["ocfl"], again["ocfl"])
    assert len(fresh.trainings) == 2 * CLIENTS, "two rounds were already done"


# --- What crosses the wire ------------------------------------------------------------------------


@pytest.mark.slow
def test_no_message_has_samples_or_labels(clients):
    """What nodes send has the declared shapes; images and labels lie in no array and no text."""
    grid, shapes = Grid(clients[1]), {}
    own = [client_data.samples_in(clients[1] / f"{c}.npz", Settings.of(CONFIG)) for c in range(6)]

    def watch(client, kind, content):
        arrays = [array.numpy() for array in content["arrays"].values()]
        shapes.setdefault(kind, set()).update(array.shape for array in arrays)
        numbers, said = b"".join(map(np.ndarray.tobytes, arrays)), content["values"]["json"]
        for images, labels in own[client].values():
            for form in (images.float(), images.float() / 255, images):
                assert not any(one.numpy().tobytes() in numbers for one in form[:20])
                assert not any(str(one.flatten().tolist())[1:-1] in said for one in form[:20])
            for form in (labels, labels.float(), labels.int()):
                assert form[:8].numpy().tobytes() not in numbers
                assert str(form[:8].tolist())[1:-1] not in said
        return content

    grid.spoil = watch
    federate(grid, "ocfl; ifca:k=2; emd-cfl:epsilon=0.1; pacfl:p=1; cfl-gp:k=2", 2)
    assert {width for _, width in shapes.pop("train")} == {WIDTH}, "models and nothing else"
    # IFCA's clients say which model fits best. EMD-CFL's networks embed 64 pixels, and 57
    # dimensions are left of them. PACFL has a direction of 64 pixels per class, CFL-GP a gradient
    asked = shapes.pop("query.ask")
    assert {shape for shape in asked if shape[1:] != (57,)} == {(), (64, 10), (WIDTH,)}
    assert shapes == {"query.hello": set(), "evaluate": set()}, "numbers alone"


def test_values_come_back_with_their_types_and_shapes():
    tensors = [torch.tensor(3), torch.arange(6).view(2, 3), torch.empty(0, 4), torch.rand(2)]
    arrays = (np.float64(1.5), np.int64(7), np.ones((2, 1), dtype=np.float64))
    rest = {"é": [None, True, 2**70, -1.5e-300, "$tensor", {}, []]}
    back = unpacked(packed({"tensors": tensors, "arrays": arrays, "rest": rest}))
    assert back["rest"] == rest
    for own, other in zip(tensors, back["tensors"], strict=True):
        assert own.dtype == other.dtype and torch.equal(own, other)
    assert back["arrays"][:2] == [1.5, 7]
    np.testing.assert_array_equal(back["arrays"][2], arrays[2], strict=True)
    with pytest.raises(TypeError, match="a function cannot be sent"):
        packed(lambda: None)


# --- What a node answers --------------------------------------------------------------------------

ROWS = "ifca:k=2; pacfl; fedsoft:k=2; fedem:k=2; emd-cfl"
MODELS = {"client": 0, "models": torch.zeros(2, WIDTH), "model_of": torch.tensor([0, 1])}
REQUESTS = [MODELS | {"training": None, "columns": {}, "place": n, "order": 0} for n in range(8)]
TRAIN, IFCA, PACFL, _, FEDEM, _, EMD, _ = REQUESTS
SCORES = {"client": 0, "models": torch.zeros(2, WIDTH), "mixtures": [[(0, 0.5), (1, 0.5)]]}
SCORES |= {"split": "test"}


def answer(clients, request, kind="query.ask"):
    """Send a request to the node of client 0, which has no secret; return its answer."""
    node = {"data": str(clients[1] / "0.npz"), "client": 0}
    return unpacked(sent_to(CONFIG | {"methods": ROWS}, node, kind, packed(request)))


def columns(**values):
    return TRAIN | {"columns": {name: [value] * 2 for name, value in values.items()}}


WRONG_REQUESTS = [
    (TRAIN | {"training": {"batch_size": 0}}, "batch_size"),
    (TRAIN | {"models": torch.zeros(1, WIDTH).double()}, "float32, None, 650"),
    (TRAIN | {"model_of": torch.tensor([2])}, "index"),
    (TRAIN | {"model_of": torch.tensor([0.0])}, "int64, None"),
    (columns(subset=torch.tensor([3])), "subset"),
    (columns(anchor=torch.zeros(3)), "float32, 650"),
    (columns(weights=torch.ones(3)), "float32, "),
    (IFCA | {"place": 8}, "list index out of range"),
    (EMD, "hide this answer with a secret, which --node-config must name"),
    (SCORES | {"split": "train"}, "not evaluated on the split 'train'"),
    (TRAIN | {"client": 1}, "this node is not client 1: are two keys swapped"),
]


@pytest.mark.parametrize("request_, reason", WRONG_REQUESTS)
def test_a_node_refuses_what_has_a_wrong_form(clients, request_, reason):
    with pytest.raises(Exception, match=reason):
        answer(clients, request_, "evaluate" if "split" in request_ else "query.ask")


def test_a_node_answers_the_questions_of_the_run_alone(clients):
    told = answer(clients, IFCA)
    assert [row.dtype for row in told] == [torch.bool] * 2 and sum(told) == 1, "a choice alone"
    assert len(answer(clients, FEDEM)[0]) > 20, "FedEM's clients tell all losses"
    assert answer(clients, PACFL)[0].shape[0] == 64
    assert answer(clients, TRAIN, "train").shape == (2, WIDTH)
    assert len(answer(clients, SCORES, "evaluate")[0]) == 2


def test_the_page_says_what_each_method_s_clients_tell():
    page = (Path(__file__).parent.parent / "notebooks" / "a_real_federation.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w, -]+) \|", page, re.MULTILINE)
    told = {name for row in rows for name in row.split(", ")}
    asking = {name for name in ELSEWHERE if methods.make(name, **OPTIONS.get(name, {})).asks()}
    assert "ifca" in asking and asking <= told


# --- What a server takes --------------------------------------------------------------------------

SILENCE = object()
FULL = Error(code=0, reason="the disk is full")
LOST = Error(code=ErrorCode.NODE_UNAVAILABLE, reason="Node Unavailable")
EMPTY = RecordDict({"arrays": ArrayRecord({"a": Array("float32", (1,), "numpy.ndarray", b"")})})
EMPTY["values"] = ConfigRecord({"json": '{"$tensor": "a"}'})


def replaced(kind, other, number=1):
    """Client 2 gives another answer to one request of a kind, by default to its second."""
    asked = itertools.count()

    def spoil(client, sent, content):
        if client != 2 or sent != kind or next(asked) != number:
            return content
        if other is SILENCE:
            return None
        own = other(unpacked(content)) if callable(other) else other
        return own if isinstance(own, Error | RecordDict) else packed(own)

    return spoil


FAILURES = [
    ("train", SILENCE, "it did not answer in time"),
    ("train", FULL, "it failed: the disk is full"),
    ("train", RecordDict(), "arrays"),
    ("train", EMPTY, ""),
    ("train", lambda models: models[:, :-1], "float32, None, 650"),
    ("train", lambda models: models.double(), "float32, None, 650"),
    ("train", lambda models: models[:0], "shorter"),
    ("train", "model", "float32, None, 650"),
    ("query.ask", lambda own: [part * torch.nan for part in own], "is not finite"),
    ("query.ask", [torch.full((2,), 1e30)] * 2, "is not finite"),
    ("query.ask", [None, None], "None"),
    ("evaluate", [(0.5, 0.5, 0.5)], "at most 2 items"),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind, other, reason", FAILURES)
def test_a_node_that_fails_ends_the_run_and_is_named(clients, kind, other, reason):
    grid = Grid(clients[1])
    grid.spoil = replaced(kind, other)
    with pytest.raises(ClientsAbsent, match=f"(?s)client 2: .*{reason}"):
        federate(grid, "ifca:k=2")


@pytest.mark.parametrize("kind, number", [("train", 1), ("query.ask", 0), ("evaluate", 2)])
@pytest.mark.parametrize("told", [SILENCE, LOST], ids=["silence", "lost"])
def test_a_node_that_dies_and_returns_costs_nothing_but_time(clients, kind, number, told):
    """What it was asked is asked again once it is back, and the models are the same."""
    config = CONFIG | {"timeout": 60.0}  # a busy machine takes longer, and nobody stays away
    grid, whole = (Grid(clients[1], config) for _ in range(2))
    whole, _ = federate(whole, "ifca:k=2")
    own, looks = replaced(kind, told, number), itertools.count()

    def die(client, sent, content):
        left = own(client, sent, content)
        if left is not content:
            grid.connected.discard(102)
        return left

    def back():
        if 102 not in grid.connected and next(looks) % 4 == 3:
            grid.connected.add(102)
        return sorted(grid.connected)

    grid.spoil, grid.get_node_ids = die, back
    methods, table = federate(grid, "ifca:k=2")
    assert same(whole["ifca:k=2"], methods["ifca:k=2"]) and next(looks) == 4
    assert table["round"].tolist() == [1, 2, 3]
    assert grid.trainings.count(2) == 3 + (kind == "train"), "and nothing else is done again"


def hello(**samples):
    """Client 2 says that it has other numbers of samples."""
    other = [{"train": 30, "test": 10} | samples]
    return lambda grid, _: setattr(grid, "spoil", replaced("query.hello", other, 0))


def spoilt_file(grid, folder):
    np.savez(folder / "own.npz", train_labels=np.arange(3))
    grid.nodes[102]["data"] = str(folder / "own.npz")


INCOMPLETE = [
    (lambda grid, _: grid.connected.discard(102), "it did not answer in time"),
    (spoilt_file, "it failed: .*needs train_images and train_labels"),
    (hello(train=-5), "greater than or equal to 0"),
    (hello(test=10**30), "less than or equal to 1000000"),
    (hello(test=True), "valid integer"),
    (hello(cluster=5), "cluster"),
]


@pytest.mark.parametrize("change, reason", INCOMPLETE)
def test_a_federation_that_is_not_complete_says_who_is_missing(clients, tmp_path, change, reason):
    grid = Grid(clients[1])
    change(grid, tmp_path)
    with pytest.raises(ClientsAbsent, match=f"(?s)client 2: .*{reason}"):
        federate(grid, "fedavg")


def test_flower_s_simulation_without_enough_nodes_says_who_is_missing(clients):
    with pytest.raises(ClientsAbsent, match="client 6: no answer"):
        federate(Grid(clients[1], CONFIG | {"clients": 7, "nodes": ""}), "fedavg")


def test_training_that_diverges_everywhere_is_an_error_as_in_the_simulation(clients):
    grid = Grid(clients[1], CONFIG | {"epochs": 4, "lr": 1e38})
    with pytest.raises(Diverged, match="no longer finite"):
        federate(grid, "fedavg", 2)


@pytest.mark.parametrize("value", [torch.nan, 1e30])
def test_a_model_that_is_not_finite_costs_methods_that_asked_for_it(clients, unperturbed, value):
    grid = Grid(clients[1])

    def spoilt(models):
        models[-1] = value
        return models

    grid.spoil = replaced("train", spoilt)
    _, table = federate(grid, "fedavg; local")
    assert table.groupby("method")["round"].max().to_dict() == {"fedavg": 3, "local": 2}
    assert table["diverged"].sum() == 1


# --- A client's data ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "floats", "features"])
def test_a_client_s_file_has_its_samples(tmp_path, kind):
    images = datasets.load("digits-8x8")
    pool = images.images if kind == "bytes" else images.images.float() / 255
    if kind == "features":
        pool = pool.flatten(1)[:, :, None, None] - 0.5
    images = dataclasses.replace(images, images=pool, test_images=pool[:360])
    _, split = partition.iid(images, clients=2, draws=20)
    client_data.save(tmp_path / "1.npz", images, split, 1)
    assert (tmp_path / "1.npz").stat().st_mode & 0o777 == 0o600
    read = client_data.samples_in(tmp_path / "1.npz", Settings.of(CONFIG))
    for name, indices in split.splits.items():
        samples, labels = read[name]
        assert samples.dtype == pool.dtype and torch.equal(samples, pool[indices[1]])
        assert torch.equal(labels, images.labels[indices[1]])


FLOATS, LABELS = np.full((4, 8, 8), 0.5, dtype=np.float32), np.arange(4)
GIVEN = {"train_images": FLOATS, "train_labels": LABELS, "test_labels": LABELS}
NAMES = np.array(["emu", "dog", "emu", "dog"])
NAMED, FOXES = {"classes": "cat, dog , emu"}, {"train_labels": np.array(["fox"] * 4)}


def held(folder, change, arrays):
    """Return the federation of client 2, whose file has these arrays."""
    np.savez(folder / "own.npz", **GIVEN | arrays)
    node = {"data": str(folder / "own.npz")}
    return client_data.federation_at(Settings.of(CONFIG | change), node, 2)


MISFITS = [
    ({}, {"test_images": (FLOATS * 255).astype(np.uint8)}, "samples need one type"),
    ({}, {"test_images": FLOATS[..., :7]}, "samples need one type"),
    ({"shape": "1, 9, 9"}, {}, r"the shape \(1, 9, 9\), not .*\(1, 8, 8\)"),
    (NAMED, FOXES, "train_labels have 'fox', but the classes"),
    (NAMED, {"test_labels": NAMES}, "train_labels have '0', but the classes are 'cat', 'dog'"),
    ({}, {"train_labels": NAMES}, "have the type <U3; .*one per sample"),
]


@pytest.mark.parametrize("change, arrays, reason", MISFITS)
def test_a_file_that_does_not_fit_is_refused_with_its_reason(tmp_path, change, arrays, reason):
    with pytest.raises(DatasetError, match=reason):
        held(tmp_path, change, {"test_images": FLOATS} | arrays)


def test_classes_have_the_numbers_of_the_federation(tmp_path):
    arrays = {"train_labels": NAMES, "test_labels": NAMES, "test_images": FLOATS}
    assert held(tmp_path, NAMED, arrays).targets(2, "train").tolist() == [2, 1, 2, 1]


# --- The server app and its settings --------------------------------------------------------------


def output(folder, **config):
    """The context of a server app whose results go to a folder."""
    return SimpleNamespace(run_config=CONFIG | {"output": str(folder)} | config)


def test_the_server_app_writes_its_results(clients, tmp_path, capsys):
    context = output(tmp_path, methods="fedavg", rounds=2)
    server_app.main(Grid(clients[1], context.run_config), context)
    assert pd.read_csv(tmp_path / "rounds.csv")["round"].tolist() == [1, 2]
    assert torch.load(tmp_path / "models.pt")["fedavg"]["mixture"].shape[0] == CLIENTS
    assert not (tmp_path / "checkpoint.pt").exists()
    assert str(tmp_path) in capsys.readouterr().out


WRONG_SETTINGS = [
    ({"shape": "1, 8, x"}, "^shape"),
    ({"optimizer": "sgdd"}, "^optimizer: [^\n]*$"),
    ({"seed": -1}, "^seed: [^\n]*$"),
    ({"round": 3}, "^round: "),
    ({"methods": "fedavgg"}, "unknown method 'fedavgg'"),
    ({"methods": "ifca:k=many"}, "method 'ifca': k: "),
    ({"methods": "ifca:k=["}, "is not YAML"),
    *(({"methods": name}, f"{name} does not run over") for name in ONLY_SIMULATED),
    ({"methods": "ocfl-replicated:split=samples"}, "split=samples does not run over a network"),
    ({"nodes": "1, 2"}, "nodes must be the numbers that 'flwr supernode reg"),
    ({"nodes": "1, 1, 1, 1, 1, 1"}, "nodes must be the numbers that 'flwr supernode reg"),
]


@pytest.mark.parametrize("config, reason", WRONG_SETTINGS)
def test_wrong_settings_are_told_before_any_node_is_asked(clients, tmp_path, config, reason):
    grid = Grid(clients[1])
    with pytest.raises((ValueError, ParameterError), match=reason):
        server_app.main(grid, output(tmp_path, **config))
    assert next(grid.count) == 0
