"""Methods on clients that are elsewhere: equality with the simulation, messages, and faults.

Most tests replace Flower's network by a grid in this process. The last ones start real processes,
which talk over TLS.
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
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from cflkit import datasets, methods, partition, simulation
from cflkit.datasets import DatasetError
from cflkit.federation import ClientsAbsent, Diverged, Federation, LocalTraining
from cflkit.flower import client_data, server_app
from cflkit.flower.client_app import Node, Refused
from cflkit.flower.messages import packed, unpacked
from cflkit.flower.server_app import RemoteFederation
from cflkit.flower.settings import DEFAULTS, ONLY_SIMULATED, Settings, line_up_of
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
    """The simulation's federation, and a folder with one file per client."""
    folder = tmp_path_factory.mktemp("clients")
    config = CONFIG | {"clients": 8, "partition": "quarter-turn:samples=40", "nodes": ""}
    images, split = client_data.of_the_kit(Settings.of(config))
    split = split.take(range(CLIENTS))
    for client in range(CLIENTS):
        client_data.save(folder / f"{client}.npz", images, split, client)

    def federation(**options):
        own = Federation(images, split, "linear", TRAINING, engine="threads", **options)
        own.shared_seed = SECRET
        return own

    return federation, folder


SECRET = int("5" * 64, 16)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server_app, "POLL", 0.01)


class Grid:
    """Nodes in this process. ``spoil`` may replace or remove what a client replies."""

    def __init__(self, folder, config=CONFIG):
        secret = folder / "secret"
        secret.write_text("5" * 64)
        self.config, self.connected = config, {100 + client for client in range(CLIENTS)}
        self.nodes = {
            100 + c: {"client": c, "data": str(folder / f"{c}.npz"), "secret": str(secret)}
            for c in range(CLIENTS)
        }
        self.spoil = lambda client, request, content: content
        self.replies, self.count, self.trainings = {}, itertools.count(), []

    def get_node_ids(self):
        return sorted(self.connected)

    def push_messages(self, messages):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        name = message.metadata.__dict__["_message_id"] = f"message {next(self.count)}"
        number = message.metadata.dst_node_id
        client, request = number - 100, unpacked(message.content)
        if request["kind"] == "train":
            self.trainings.append(client)
        try:
            content = Node(self.config, self.nodes[number]).answered(message.content)
        except Exception as error:  # as Flower does
            content = Error(code=0, reason=repr(error))
        content = self.spoil(client, request, content)
        if content is not None:
            self.replies[name] = Message(content, reply_to=message)
        return name

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


def federate(grid, rows, rounds=3, **options):
    """Run methods, given as in the setting, on nodes; return them, the table and the nodes."""
    grid.config = grid.config | {"methods": rows, "rounds": rounds}
    settings = Settings.of(grid.config)
    nodes = RemoteFederation(grid, settings)
    history = simulation.run(settings.methods, nodes, rounds, progress=False, **options)
    return settings.methods, history.table(), nodes


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
    others, there, _ = federate(Grid(folder), row)
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


def test_a_part_of_the_clients_is_the_same_part_as_in_the_simulation(clients):
    federation, folder = clients
    line_up = line_up_of("ifca:k=2")
    simulation.run(line_up, federation(clients_per_round=2), 3, progress=False)
    grid = Grid(folder, CONFIG | {"clients-per-round": 2})
    others, _, _ = federate(grid, "ifca:k=2")
    assert same(line_up["ifca:k=2"], others["ifca:k=2"])


@pytest.mark.parametrize("part", ["quarter-turn:samples=40", "dirichlet:alpha=1.0", "iid"])
def test_flower_s_simulation_gives_the_models_of_the_kit_s(clients, part):
    """Nodes without a file take their part of the kit's data, and those that are too many rest."""
    config = CONFIG | {"clients": 4, "partition": part, "nodes": ""}
    grid = Grid(clients[1], config)
    grid.nodes = {100 + c: {"partition-id": c, "num-partitions": 6} for c in range(CLIENTS)}
    looks, all_nodes = itertools.count(), grid.get_node_ids
    grid.get_node_ids = lambda: all_nodes() if next(looks) else []  # they come one after the other
    grid.config |= {"methods": "fedavg; emd-cfl" if "turn" in part else "fedavg"}
    settings, others = Settings.of(grid.config), Settings.of(grid.config)
    images, split = client_data.of_the_kit(Settings.of(config))
    simulation.run(settings.methods, settings.federation(images, split), 2, progress=False)
    simulation.run(others.methods, RemoteFederation(grid, others), 2, progress=False)
    for name in settings.methods:
        assert same(settings.methods[name], others.methods[name])


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_with_other_nodes(clients, tmp_path, monkeypatch):
    # These rounds are so short that a checkpoint would not be written after each of them
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    federation, folder = clients
    line_up = line_up_of("ocfl")
    simulation.run(line_up, federation(), 4, progress=False)
    grid, fresh, options = Grid(folder), Grid(folder), {"checkpoint": tmp_path / "checkpoint.pt"}

    def kill(client, request, content):
        if request["kind"] == "train" and request["order"] == 2:
            raise KeyboardInterrupt
        return content

    grid.spoil = kill
    # The others answer in the reverse order
    fresh.pull_messages = lambda names: Grid.pull_messages(fresh, [*names][::-1])
    with pytest.raises(KeyboardInterrupt):
        federate(grid, "ocfl", 4, **options)
    again, _, _ = federate(fresh, "ocfl", 4, **options)
    assert same(line_up["ocfl"], again["ocfl"])
    assert len(fresh.trainings) == 2 * CLIENTS, "two rounds were already done"


# --- What crosses the wire ------------------------------------------------------------------------


@pytest.mark.slow
def test_no_message_has_samples_or_labels(clients):
    """What nodes send has the declared shapes; images and labels lie in no array and no text."""
    grid, sent = Grid(clients[1]), []

    def watch(client, request, content):
        arrays = b"".join(a.numpy().tobytes() for a in content["arrays"].values())
        sent.append((client, arrays, str(content["values"]["json"])))
        return content

    grid.spoil = watch
    rows = "ocfl; ifca:k=2; emd-cfl:epsilon=0.1; pacfl:p=1; cfl-gp:k=2"
    _, _, nodes = federate(grid, rows, 2)
    up = {(row["kind"], row["contents"]) for row in nodes.log if row["direction"] == "up"}
    trained = {contents for kind, contents in up if kind == "train"}
    assert trained, "there were trainings"
    assert trained <= {f"{jobs}×{WIDTH}" for jobs in range(1, 6)}, "models and nothing else"
    # A hello has numbers alone, and scores are pairs of them
    assert {contents for kind, contents in up if kind == "hello"} == {""}
    assert {p for kind, own in up if kind == "scores" for p in own.split(", ")} == {"2"}
    # IFCA's clients say which model fits best. EMD-CFL's networks embed 64 pixels, and 57
    # dimensions are left of them. PACFL has a direction of 64 pixels per class, CFL-GP a gradient
    parts = {part for kind, own in up if kind == "ask" for part in own.split(", ")}
    embeddings = {part for part in parts if part.endswith("×57")}
    assert embeddings and parts - embeddings == {"scalar", "64×10", str(WIDTH)}
    assert {client for client, _, _ in sent} == set(range(CLIENTS))
    for client, arrays, said in sent:
        for images, labels in client_data.samples_in(clients[1] / f"{client}.npz").values():
            for form in (images.float(), images.float() / 255, images):
                assert not any(one.numpy().tobytes() in arrays for one in form[:20])
                assert not any(str(one.flatten().tolist())[1:-1] in said for one in form[:20])
            for form in (labels, labels.float(), labels.int()):
                assert form[:8].numpy().tobytes() not in arrays
                assert str(form[:8].tolist())[1:-1] not in said


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
names = st.text(max_size=4)


def whole(parts):
    """Lists and dictionaries of parts."""
    return st.lists(parts, max_size=3) | st.dictionaries(names, parts, max_size=3)


@pytest.mark.slow
@given(st.dictionaries(names, st.recursive(leaves | st.text(), whole, max_leaves=8), max_size=3))
def test_values_come_back_as_they_were_sent(values):
    assert unpacked(packed(**values)) == values


def test_arrays_come_back_with_their_types_and_shapes():
    tensors = [torch.tensor(3), torch.arange(6).view(2, 3), torch.empty(0, 4), torch.rand(2)]
    arrays = (np.float64(1.5), np.int64(7), np.ones((2, 1), dtype=np.float64))
    back = unpacked(packed(tensors=tensors, arrays=arrays))
    for own, other in zip(tensors, back["tensors"], strict=True):
        assert own.dtype == other.dtype and torch.equal(own, other)
    assert back["arrays"][:2] == [1.5, 7]
    np.testing.assert_array_equal(back["arrays"][2], arrays[2], strict=True)
    with pytest.raises(TypeError, match="a function cannot be sent"):
        packed(question=lambda: None)


UNREADABLE = {"nothing": (None, ""), "list": ({}, "[1]"), "half": ({}, "{")}
UNREADABLE |= {"deep": ({}, "[" * 10**5), "empty": ({"a": b""}, '{"x": {"$tensor": "a"}}')}


@pytest.mark.parametrize("arrays, said", UNREADABLE.values(), ids=UNREADABLE)
def test_records_of_another_form_are_a_value_error(arrays, said):
    records = RecordDict()
    if arrays is not None:
        own = {name: Array("float32", (1,), "numpy.ndarray", data) for name, data in arrays.items()}
        records["arrays"], records["values"] = ArrayRecord(own), ConfigRecord({"json": said})
    with pytest.raises(ValueError, match="a message that cannot be read"):
        unpacked(records)


# --- What a node answers --------------------------------------------------------------------------

ROWS = "ifca:k=2; pacfl; fedsoft:k=2; fedem:k=2; emd-cfl"
MODELS = {"models": torch.zeros(2, WIDTH), "model_of": torch.tensor([0, 1])}
SENT = MODELS | {"training": None, "columns": {}}
REQUESTS = [{"kind": "ask", "jobs": SENT, "place": n, "order": 0} for n in range(8)]
TRAIN, IFCA, PACFL, FEDSOFT, FEDEM, _, EMD, _ = REQUESTS
SCORES = {"kind": "scores", "models": torch.zeros(2, WIDTH), "mixtures": [[(0, 0.5), (1, 0.5)]]}
SCORES |= {"split": "test"}
HELLO = {"kind": "hello", "client": 0}


def answer(clients, request, **node):
    """Send a request to the node of client 0; return its answer."""
    content = request if isinstance(request, RecordDict) else packed(**request)
    own = {"client": 0, "data": str(clients[1] / "0.npz")} | node
    return unpacked(Node(CONFIG | {"methods": ROWS}, own).answered(content))["answer"]


def nested(request, *path, value):
    """Return a request with another value at a place."""
    name, *rest = path
    return request | {name: nested(request[name], *rest, value=value) if rest else value}


def columns(**values):
    return nested(TRAIN, "jobs", "columns", value={k: [v] * 2 for k, v in values.items()})


@pytest.mark.parametrize(
    "request_, reason",
    [
        (nested(TRAIN, "order", value=-1), "such a request of the kind 'ask'"),
        (nested(TRAIN, "order", value="1"), "such a request of the kind 'ask'"),
        (nested(TRAIN, "jobs", "training", value={"batch_size": 0}), "batch_size"),
        (nested(TRAIN, "jobs", "models", value=torch.zeros(1, WIDTH).double()), "of float32"),
        (nested(TRAIN, "jobs", "models", value=torch.zeros(1, WIDTH + 1)), "rows of 650"),
        (nested(TRAIN, "jobs", "model_of", value=torch.tensor([2])), "have one of the models"),
        (nested(TRAIN, "jobs", "model_of", value=torch.tensor([0.0])), "have one of the models"),
        (columns(subset=torch.tensor([3])), "'subset'"),
        (columns(anchor=torch.zeros(3)), "'anchor' has a wrong form"),
        (columns(weights=torch.ones(3)), "'weights' has a wrong form"),
        (columns(about=[1, CLIENTS]), "'about' has a wrong form"),
        (columns(about="x"), "'about' has a wrong form"),
        (nested(IFCA, "place", value=-1), "such a request of the kind 'ask'"),
        (nested(IFCA, "place", value=8), "list index out of range"),
        (EMD, "hide this answer with a secret; start with --secret"),
        (nested(SCORES, "split", value="train"), "not evaluated on the split 'train'"),
        (nested(SCORES, "mixtures", value=[[(2, 1.0)]]), "a mixture must be pairs"),
        (nested(SCORES, "mixtures", value=[[]]), "a mixture must be pairs"),
        (nested(HELLO, "client", value=3), "for that of client 3, but .* of client 0: keys or"),
        ({"kind": "exec", "code": "1"}, "such a request of the kind 'exec'"),
        (RecordDict(), "cannot be read"),
    ],
)
def test_a_node_refuses_what_has_a_wrong_form(clients, caplog, request_, reason):
    told = f"^client 0 refuses a message of the server: .*{reason}"
    with pytest.raises(Refused, match=told) as no:
        answer(clients, request_)
    assert "\n" not in str(no.value) and len(str(no.value)) <= 400
    assert caplog.messages[-1] == str(no.value), "the owner can read it"


def test_a_node_answers_the_questions_of_the_run_alone(clients):
    told = answer(clients, IFCA)
    assert [row.dtype for row in told] == [torch.bool] * 2 and sum(told) == 1, "a choice alone"
    whole = answer(clients, FEDEM)
    assert len(whole[0]) > 20, "FedEM's clients tell all losses"
    assert answer(clients, PACFL)[0].shape[0] == 64
    assert answer(clients, TRAIN).shape == (2, WIDTH)
    assert answer(clients, SCORES)[0].shape == (2,)


@pytest.mark.parametrize("method", sorted(ONLY_SIMULATED))
def test_a_method_that_nodes_cannot_run_is_refused_before_they_start(method):
    with pytest.raises(ValueError, match=f"{method} does not run over a network"):
        line_up_of(method)


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


def replaced(kind, other, number=1):
    """Client 2 gives another answer to one request of a kind, by default to its second."""
    asked = itertools.count()

    def spoil(client, request, content):
        if client != 2 or request["kind"] != kind or next(asked) != number:
            return content
        if other is SILENCE:
            return None
        own = other(unpacked(content)["answer"]) if callable(other) else other
        return own if isinstance(own, Error) else packed(answer=own)

    return spoil


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, other, reason",
    [
        ("train", SILENCE, "it did not answer in time"),
        ("train", FULL, "it failed: the disk is full"),
        ("train", lambda models: models[:, :-1], "a wrong form"),
        ("train", lambda models: models.double(), "a wrong form"),
        ("train", lambda models: models[:0], "a wrong form"),
        ("train", "model", "a wrong form"),
        ("train", None, "a wrong form"),
        ("ask", lambda own: [part * torch.nan for part in own], "is not finite"),
        ("ask", [torch.full((2,), 1e30)] * 2, "is not finite"),
        ("ask", [None, None], "a wrong form"),
        ("ask", [], "a wrong form"),
        ("scores", [np.array([0.5, 1e9])], "a wrong form"),
        ("scores", [(0.5, 0.5)], "a wrong form"),
        ("scores", SILENCE, "it did not answer"),
    ],
)
def test_a_node_that_fails_ends_the_run_and_is_named(clients, kind, other, reason):
    grid = Grid(clients[1])
    grid.spoil = replaced(kind, other)
    with pytest.raises(ClientsAbsent, match=f"client 2: .*{reason}"):
        federate(grid, "ifca:k=2")


@pytest.mark.parametrize("kind, number", [("train", 1), ("ask", 0), ("scores", 2)])
@pytest.mark.parametrize("told", [SILENCE, LOST], ids=["silence", "lost"])
def test_a_node_that_dies_and_returns_costs_nothing_but_time(clients, kind, number, told):
    """What it was asked is asked again once it is back, and the models are the same."""
    config = CONFIG | {"timeout": 60.0}  # a busy machine takes longer, and nobody stays away
    grid, whole = (Grid(clients[1], config) for _ in range(2))
    whole, _, _ = federate(whole, "ifca:k=2")
    own, looks = replaced(kind, told, number), itertools.count()

    def die(client, request, content):
        left = own(client, request, content)
        if left is not content:
            grid.connected.discard(102)
        return left

    def back():
        if 102 not in grid.connected and next(looks) % 4 == 3:
            grid.connected.add(102)
        return sorted(grid.connected)

    grid.spoil, grid.get_node_ids = die, back
    methods, table, _ = federate(grid, "ifca:k=2")
    assert same(whole["ifca:k=2"], methods["ifca:k=2"]) and next(looks) == 4
    assert table["round"].tolist() == [1, 2, 3]
    assert grid.trainings.count(2) == 3 + (kind == "train"), "and nothing else is done again"


def spoilt_file(grid, folder):
    np.savez(folder / "own.npz", train_labels=np.arange(3))
    grid.nodes[102]["data"] = str(folder / "own.npz")


def another_number(grid, folder):
    grid.nodes[102]["client"] = 3


def hello(other):
    return lambda grid, _: setattr(grid, "spoil", replaced("hello", other, 0))


SAMPLES = {"train": 30, "test": 10}
WRONG = [{"train": -5}, {"train": 0}, {"cluster": 5}]
WRONG += [{"test": own} for own in (10**30, True, "x", 1.5)]
FALSE = [{"client": 2, "samples": SAMPLES | more} for more in WRONG]
FALSE += [{"client": 2.0, "samples": SAMPLES}, {"client": 2, "samples": {"train": 30}}, {}, None]


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda grid, _: grid.connected.discard(102), "it has not said hello"),
        (another_number, "it takes this node's key for .*swapped"),
        (spoilt_file, "its hello was refused: .*needs train_labels, and|its hello .*train_images"),
        *((hello(own), "it does not say which client it is") for own in FALSE),
        (hello({"client": 3, "samples": SAMPLES}), "it says that it is client 3"),
    ],
)
def test_a_federation_that_is_not_complete_says_who_is_missing(clients, tmp_path, change, reason):
    grid = Grid(clients[1])
    change(grid, tmp_path)
    with pytest.raises(ClientsAbsent, match=f"client 2: .*{reason}"):
        federate(grid, "fedavg")


def test_training_that_diverges_everywhere_is_an_error_as_in_the_simulation(clients):
    grid = Grid(clients[1], CONFIG | {"epochs": 4, "lr": 1e38})
    with pytest.raises(Diverged, match="no longer finite"):
        federate(grid, "fedavg", 2)


@pytest.mark.parametrize("value", [torch.nan, 1e30])
def test_a_model_that_is_not_finite_costs_the_methods_that_asked_for_it(clients, value):
    grid = Grid(clients[1])

    def spoilt(models):
        models[-1] = value
        return models

    grid.spoil = replaced("train", spoilt)
    _, table, _ = federate(grid, "fedavg; local")
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
    read = client_data.samples_in(tmp_path / "1.npz")
    for name, indices in split.splits.items():
        samples, labels = read[name]
        assert samples.dtype == pool.dtype and torch.equal(samples, pool[indices[1]])
        assert torch.equal(labels, images.labels[indices[1]])


FLOATS, LABELS = np.full((4, 8, 8), 0.5, dtype=np.float32), np.arange(4)
GIVEN = {"train_images": FLOATS, "train_labels": LABELS, "test_labels": LABELS}
NAMES = np.array(["emu", "dog", "emu", "dog"])
NAMED, FOXES = {"classes": "cat, dog , emu"}, {"train_labels": np.array(["fox"] * 4)}


@pytest.mark.parametrize(
    "change, arrays, reason",
    [
        ({}, {"train_labels": LABELS[:3]}, "train_images has 4 rows, but the"),
        ({}, {"train_labels": None}, "needs train_labels"),
        ({}, {"test_images": (FLOATS * 255).astype(np.uint8)}, "samples of one type"),
        ({}, {"test_images": FLOATS[:, :4, :4]}, "samples of one type and of the shape"),
        ({"shape": "1, 9, 9"}, {}, r"shape \(1, 9, 9\), as the settings say, not \(1, 8, 8\) of"),
        ({"clients": 2, "nodes": ""}, {}, "from 0 to 1; there is no 2"),
        (NAMED, FOXES, "train_labels have 'fox', but the classes"),
        (NAMED, {"test_labels": NAMES}, "train_labels have '0', but the classes are 'cat', 'dog'"),
        ({}, {"train_labels": NAMES}, "have the type <U3; .*one per sample"),
        ({}, {"train_labels": LABELS + 7}, r"labels are .* from \d+ to 10"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_reason(tmp_path, change, arrays, reason):
    arrays = GIVEN | {"test_images": FLOATS} | arrays
    path = tmp_path / "own.npz"
    np.savez(path, **{name: own for name, own in arrays.items() if own is not None})
    run = CONFIG | change
    with pytest.raises(DatasetError, match=reason):
        client_data.federation_at(Settings.of(run), {"client": 2, "data": str(path)})


def test_classes_have_the_numbers_of_the_federation(tmp_path):
    path, run = tmp_path / "own.npz", CONFIG | NAMED
    np.savez(path, **GIVEN | {"train_labels": NAMES, "test_labels": NAMES, "test_images": FLOATS})
    _, own = client_data.federation_at(Settings.of(run), {"client": 2, "data": str(path)})
    assert own.targets(2, "train").tolist() == [2, 1, 2, 1]


def test_a_client_may_have_a_part_of_a_set_of_flwr_datasets(monkeypatch):
    flwr_datasets = pytest.importorskip("flwr_datasets")
    hub = pytest.importorskip("datasets")
    digits = datasets.load("digits-8x8")
    kinds = hub.Features({"picture": hub.Image(), "digit": hub.ClassLabel(num_classes=10)})
    rows = {"picture": list(digits.images[:, 0].numpy()), "digit": digits.labels.tolist()}
    whole = hub.Dataset.from_dict(rows, features=kinds)

    class Offline(flwr_datasets.FederatedDataset):
        def _prepare_dataset(self):
            self._dataset, self._dataset_prepared = hub.DatasetDict({"train": whole}), True

    run = CONFIG | {"dataset": "someone/digits", "partition": "IidPartitioner"}
    monkeypatch.setattr(flwr_datasets, "FederatedDataset", Offline)
    client, own = client_data.federation_at(Settings.of(run), {"partition-id": 1})
    assert client == 1 and own.num_samples(0) == 0
    counts = [own.num_samples(1, split) for split in ("train", "test")]
    assert sum(counts) == len(whole) // CLIENTS + 1
    assert counts[1] == pytest.approx(sum(counts) / 5, abs=5)


# --- The server app and the command ---------------------------------------------------------------


def output(folder, **config):
    """The context of a server app whose results go to a folder."""
    return SimpleNamespace(run_config=CONFIG | {"output": str(folder)} | config)


@pytest.mark.slow
def test_the_server_app_writes_its_results_or_why_it_failed(clients, tmp_path):
    context = output(tmp_path, methods="fedavg", rounds=2)
    grid = Grid(clients[1], context.run_config)
    grid.connected.discard(104)
    with pytest.raises(ClientsAbsent):
        server_app.main(grid, context)
    assert "client 4: it has not said hello" in (tmp_path / "error.txt").read_text()
    server_app.main(Grid(clients[1], context.run_config), context)
    assert pd.read_csv(tmp_path / "rounds.csv")["round"].tolist() == [1, 2]
    assert pd.read_csv(tmp_path / "messages.csv")["kind"].iloc[0] == "hello"
    assert torch.load(tmp_path / "models.pt")["fedavg"]["mixture"].shape[0] == CLIENTS
    assert not (tmp_path / "error.txt").exists(), "the reason of another run"
    assert not (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"shape": "1, 8"}, "^shape"),
        ({"shape": "1, 8, x"}, "^shape"),
        ({"optimizer": "sgdd"}, "^optimizer: [^\n]*$"),
        ({"seed": -1}, "^seed: [^\n]*$"),
        ({"rounds": 0}, "^rounds: [^\n]*$"),
        ({"clients-per-round": CLIENTS + 1}, "7 of 6 clients cannot take part"),
        ({"clients-per-round": -1}, "^clients-per-round: "),
        ({"timeout": 0.0}, "^timeout: "),
        ({"classes": "cat, cat"}, "classes must be different names, not cat, cat"),
        ({"round": 3}, "^round: "),
        ({"nodes": "1, 2, 3, 4, 5, x"}, "^nodes"),
        ({"methods": " ; "}, "methods must be names such as"),
        ({"methods": "fedavgg"}, "unknown method 'fedavgg'"),
        ({"methods": "ifca:k"}, "method 'ifca': k: "),
        ({"methods": "ifca:k=many"}, "method 'ifca': k: "),
        ({"methods": "ifca:k=2,k=3"}, "is not YAML"),
        ({"methods": "ifca:k=["}, "is not YAML"),
        ({"nodes": "1, 2"}, "nodes must be the numbers that 'flwr supernode reg"),
        ({"nodes": "1, 1, 1, 1, 1, 1"}, "nodes must be the numbers that 'flwr supernode reg"),
    ],
)
def test_wrong_settings_are_told_before_any_node_is_asked(clients, tmp_path, config, reason):
    grid = Grid(clients[1])
    with pytest.raises(ValueError, match=reason):
        server_app.main(grid, output(tmp_path, **config))
    assert next(grid.count) == 0


def test_options_of_methods_are_values_of_yaml():
    row = "sattler:eps1=1e3,eps2=1e-6,min_rounds=0"
    [method] = line_up_of(row).values()
    assert (method.eps1, method.eps2) == (1000.0, 1e-6), "small numbers are numbers"
    assert line_up_of("oracle:truth=[0, 0, 1]; fedavg")["oracle:truth=[0, 0, 1]"].truth == (0, 0, 1)
