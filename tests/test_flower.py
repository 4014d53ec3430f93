"""Methods on clients that are elsewhere: equality with the simulation, messages, and faults.

Most tests replace Flower's network by a grid in this process. The last ones start real processes,
which talk over TLS.
"""

import contextlib
import dataclasses
import itertools
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Client
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from rounds import first_jobs

from cflkit import datasets, methods, partition, simulation
from cflkit.__main__ import main
from cflkit.datasets import DatasetError
from cflkit.federation import ClientsAbsent, Diverged, Federation, Jobs, LocalTraining
from cflkit.flower import client_app, client_file, demo, resident, server_app
from cflkit.flower import nodes as nodes_module
from cflkit.flower.agreement import ONLY_SIMULATED, Agreement, Setting, line_up_of
from cflkit.flower.answers import QUESTIONS, name_of
from cflkit.flower.certificates import write_certificates, write_key_pair
from cflkit.flower.messages import packed, unpacked
from cflkit.flower.node import Node, Refused
from cflkit.flower.remote import RemoteFederation, converse_with_present, sent_jobs
from cflkit.partition import PartitionError, shifts
from cflkit.reproduce.parameters import ParameterError
from cflkit.simulation import checkpoints
from cflkit.simulation.lockstep import converse
from tests.test_contract import OPTIONS

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS = 6
TRAINING = LocalTraining(epochs=1, batch_size=16)
SETTING = Setting(CLIENTS, "linear", (1, 8, 8), 10, TRAINING)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """The simulation's federation, and a folder with one file per client."""
    images, split = shifts.make(datasets.load("digits-8x8"), "quarter-turn", clients=8, samples=40)
    split = split.take(range(CLIENTS))
    folder = tmp_path_factory.mktemp("clients")
    for client in range(CLIENTS):
        client_file.save(folder / f"{client}.npz", images, split, client)

    def federation(**options):
        return Federation(images, split, "linear", TRAINING, engine="threads", **options)

    return federation, folder


class Grid:
    """Nodes in this process. ``spoil`` may replace or remove the reply of a client.

    Their owners have agreed to the setting, and to the methods that `run` runs.
    """

    agreed = Agreement(SETTING, {}, 9)

    def __init__(self, folder):
        self.data = {100 + c: (c, folder / f"{c}.npz") for c in range(CLIENTS)}
        self.spoil = lambda client, request, reply: reply
        self.replies, self.numbers, self.trainings = {}, itertools.count(), []

    def get_node_ids(self):
        return list(self.data)

    def push_messages(self, messages):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        name = message.metadata.__dict__["_message_id"] = f"message {next(self.numbers)}"
        client, data = self.data[message.metadata.dst_node_id]
        request = unpacked(message.content)
        if request["kind"] == "train":
            self.trainings.append(client)
        try:
            own = Node(client, data, self.agreed, 0)
            reply = Message(own.answered(message.content), reply_to=message)
        except Exception as error:  # as Flower does
            reply = Message(Error(code=0, reason=repr(error)), reply_to=message)
        reply = self.spoil(client, request, reply)
        if reply is not None:
            self.replies[name] = reply
        return name

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


def remote(folder, grid=None, setting=SETTING, **options):
    """Build a federation of nodes."""
    grid = grid or Grid(folder)
    grid.agreed = Agreement(setting, {}, 9)
    options = {"numbers": range(100, 100 + CLIENTS), "timeout": 1.0, "wait": 1.0} | options
    return RemoteFederation(grid, setting, **options)


def made(*names, **options):
    """Make methods, each with its options."""
    return {name: methods.make(name, **options.get(name.replace("-", "_"), {})) for name in names}


def run(line_up, federation, rounds=3, **options):
    """Run methods, and return their rows."""
    if isinstance(federation, RemoteFederation):
        grid = federation.nodes.grid
        grid.agreed = dataclasses.replace(grid.agreed, methods=line_up)
    return simulation.run(line_up, federation, rounds, progress=False, **options).table()


def same(one, other):
    """Whether all clients of two methods have the same models, bit for bit."""
    return all(map(torch.equal, one.client_models(), other.client_models()))


# --- Equality with the simulation -----------------------------------------------------------------

ELSEWHERE = sorted(set(methods.METHODS) - set(ONLY_SIMULATED))
# These find several clusters by the second round, so that the third one trains their models
CLUSTERING = {
    "briggs": {"rounds": 1, "threshold": 0.3},
    "fedclust": {"threshold": 0.01},
    "ocfl": OPTIONS["ocfl"],
    "sattler": {"eps1": 1e3, "eps2": 1e-6, "min_rounds": 0},
    "signatures": OPTIONS["signatures"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
def test_nodes_give_the_models_of_the_simulation_to_the_bit(clients, name):
    federation, folder = clients
    options = OPTIONS.get(name, {}) | CLUSTERING.get(name, {})
    lines = [{name: methods.make(name, **options)} for _ in range(2)]
    here, there = run(lines[0], federation()), run(lines[1], remote(folder))
    assert same(lines[0][name], lines[1][name])
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
    one, other = made("ifca", ifca={"k": 2}), made("ifca", ifca={"k": 2})
    run(one, federation(clients_per_round=2))
    run(other, remote(folder, per_round=2))
    assert same(one["ifca"], other["ifca"])


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_with_other_nodes(clients, tmp_path, monkeypatch):
    # These rounds are so short that a checkpoint would not be written after each of them
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    federation, folder = clients
    whole, begun, again = made("ocfl"), made("ocfl"), made("ocfl")
    run(whole, federation(), 4)

    class Killed(Exception):
        pass

    def kill(client, request, reply):
        if request["kind"] == "train" and request["order"] == 2:
            raise Killed
        return reply

    grid, fresh, path = Grid(folder), Grid(folder), tmp_path / "checkpoint.pt"
    grid.spoil = kill
    with pytest.raises(Killed):
        run(begun, remote(folder, grid), 4, checkpoint=path)
    run(again, remote(folder, fresh), 4, checkpoint=path)
    assert same(whole["ocfl"], again["ocfl"])
    assert len(fresh.trainings) == 2 * CLIENTS, "two rounds were already done"


# --- What crosses the wire ------------------------------------------------------------------------


@pytest.mark.slow
def test_no_message_has_samples_or_labels(clients):
    """What nodes send has the declared shapes; images and labels lie in no array and no text."""
    _, folder = clients
    grid, sent = Grid(folder), []

    def watch(client, request, reply):
        arrays = b"".join(a.numpy().tobytes() for a in reply.content["arrays"].values())
        sent.append((client, arrays, str(reply.content["values"]["json"])))
        return reply

    grid.spoil = watch
    nodes = remote(folder, grid)
    names = ("ocfl", "ifca", "emd-cfl", "pacfl", "cfl-gp")
    more = {"ifca": {"k": 2}, "emd_cfl": {"epsilon": 0.1}, "pacfl": {"p": 1}, "cfl_gp": {"k": 2}}
    run(made(*names, **more), nodes, 2)
    up = {(row["kind"], row["contents"]) for row in nodes.nodes.log if row["direction"] == "up"}
    size = nodes.parameters
    trained = {contents for kind, contents in up if kind == "train"}
    assert trained, "there were trainings"
    assert trained <= {f"answer {jobs}×{size}" for jobs in range(1, 6)}, "models and nothing else"
    assert {contents for kind, contents in up if kind in ("hello", "scores")} == {""}, "numbers"
    # IFCA's clients say which model fits best
    assert {c for kind, c in up if kind == "losses"} == {"answer.0 scalar, answer.1 scalar"}
    # EMD-CFL's embeddings: these networks embed 64 pixels, and 57 dimensions are left of them.
    # PACFL has a direction of 64 pixels per class, and CFL-GP a gradient
    parts = {part.split()[-1] for kind, text in up if kind == "ask" for part in text.split(", ")}
    embeddings = {part for part in parts if part.endswith("×57")}
    assert embeddings and parts - embeddings == {"64×10", str(size)}
    assert {client for client, _, _ in sent} == set(range(CLIENTS))
    for client, arrays, text in sent:
        for images, labels in client_file.samples_in(folder / f"{client}.npz").values():
            for form in (images.float(), images.float() / 255, images):
                assert not any(one.numpy().tobytes() in arrays for one in form[:20])
                assert not any(str(one.flatten().tolist())[1:-1] in text for one in form[:20])
            for form in (labels, labels.float(), labels.int()):
                assert form[:8].numpy().tobytes() not in arrays
                assert str(form[:8].tolist())[1:-1] not in text


@pytest.mark.parametrize("method", sorted(ONLY_SIMULATED))
def test_a_method_that_nodes_cannot_run_is_refused_before_they_start(method):
    with pytest.raises(ValueError, match=f"{method} does not run over a network"):
        line_up_of(f"{{{method}: {{method: {method}}}}}")


def test_a_question_that_is_not_declared_is_neither_asked_nor_answered(clients):
    _, folder = clients
    with pytest.raises(ValueError, match=r"labels_of.* samples or labels"):
        run(made("fedrc", fedrc={"k": 2}), remote(folder), 1)
    names = [name_of(question) for question in QUESTIONS]
    assert "cflkit.methods.emd_cfl_clients.owner_sends" in names and len(set(names)) == len(names)
    setting = dataclasses.asdict(SETTING)
    jobs = sent_jobs(Jobs(torch.zeros(1, 650), torch.tensor([0]), torch.tensor([0])))
    request = {"kind": "ask", "question": "cflkit.methods.baselines.fedrc.labels_of"}
    whole = packed({**request, "options": {}, "jobs": jobs, "setting": setting})
    with pytest.raises(Refused, match=r"client 0 refuses a message of the server.*labels_of"):
        Node(0, folder / "0.npz", Agreement(SETTING, made("pacfl"), 1)).answered(whole)


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
names = st.text(max_size=4)


def whole(parts):
    """Lists, tuples and dictionaries of parts."""
    lists = st.lists(parts, max_size=3)
    return lists | lists.map(tuple) | st.dictionaries(names, parts, max_size=3)


plain = st.recursive(leaves | st.text() | st.binary(max_size=8), whole, max_leaves=8)


@pytest.mark.slow
@given(st.dictionaries(names.filter(bool), plain, max_size=3))
def test_values_come_back_as_they_were_sent(values):
    assert unpacked(packed(values)) == values


def test_arrays_come_back_with_their_types_and_shapes():
    tensors = [torch.tensor(3), torch.arange(6).view(2, 3), torch.empty(0, 4), torch.rand(2)]
    arrays = (np.float64(1.5), np.ones((2, 1), dtype=np.float64))
    back = unpacked(packed({"tensors": tensors, "arrays": arrays}))
    for own, other in zip(tensors, back["tensors"], strict=True):
        assert own.dtype == other.dtype and torch.equal(own, other)
    assert back["arrays"][0] == 1.5
    np.testing.assert_array_equal(back["arrays"][1], arrays[1], strict=True)


@pytest.mark.parametrize(
    "arrays, text",
    [(None, ""), ({}, "[1]"), ({}, "{"), ({}, "[" * 10**5), ({"a": b""}, '{"x": {"tensor": "a"}}')],
    ids=["nothing", "list", "half", "deep", "empty array"],
)
def test_records_of_another_form_are_a_value_error(arrays, text):
    records = RecordDict()
    if arrays is not None:
        own = {name: Array("float32", (1,), "numpy.ndarray", data) for name, data in arrays.items()}
        records["arrays"], records["values"] = ArrayRecord(own), ConfigRecord({"json": text})
    with pytest.raises(ValueError, match="a message that cannot be read"):
        unpacked(records)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match=r"question is a function, which cannot be sent"):
        packed({"question": lambda: None})


# --- Faults ---------------------------------------------------------------------------------------


def replaced(kind, answer, clients=(2,), number=1):
    """Clients give other answers to one request of a kind; by default client 2 to its second."""
    asked = [itertools.count() for _ in range(CLIENTS)]

    def spoil(client, request, reply):
        if client not in clients or request["kind"] != kind or next(asked[client]) != number:
            return reply
        if answer is SILENCE:
            return None
        original = Message(RecordDict(), reply.metadata.src_node_id, "train")
        original.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        own = answer(unpacked(reply.content)["answer"]) if callable(answer) else answer
        content = own if isinstance(own, Error | RecordDict) else packed({"answer": own})
        return Message(content, reply_to=original)

    return spoil


SILENCE = object()
FULL = Error(code=0, reason="the disk is full")


def run_with(clients, spoil, name="ifca", absent_allowed=True, **options):
    """Run a method while a node misbehaves."""
    _, folder = clients
    grid = Grid(folder)
    nodes = remote(folder, grid, absent_allowed=absent_allowed, timeout=0.5)
    grid.spoil = spoil
    way = converse_with_present if absent_allowed else converse
    line_up = {name: methods.make(name, **options)}
    return grid, nodes, run(line_up, nodes, converse=way), line_up[name]


SPOILED = [
    ("train", SILENCE),
    ("train", lambda models: models * np.nan),
    ("train", lambda models: models[:, :-1]),
    ("train", "model"),
    ("train", None),
    ("train", lambda models: models.double()),
    ("train", lambda models: models.to(torch.complex64)),
    ("train", lambda models: models.long()),
    ("train", lambda models: models > 0),
    ("train", lambda models: torch.full_like(models, 1e30)),
    ("losses", lambda rows: [row.float() for row in rows]),
    ("losses", lambda rows: [row.numpy() for row in rows]),
    ("losses", [torch.empty(0), torch.empty(0)]),
    ("losses", [torch.rand(32), "none"]),
    ("losses", None),
    ("scores", [1.0]),
    ("scores", ["ab"]),
    ("scores", [(0.5, "all")]),
    *(("scores", [(0.5, score)]) for score in (np.nan, np.inf, 1e9, -5.0, 1, True)),
    ("ask", {}),
    ("ask", ["text"]),
    ("ask", [torch.rand(3, 5)]),
    ("ask", [(np.nan, [np.ones((3, 57))] * 5)]),
    ("ask", [(0.5, [np.ones((3, 56))] * 5)]),
    ("ask", [(0.5, [np.full((3, 57), np.inf)] * 5)]),
]
SLOW = [pytest.param(*one, marks=pytest.mark.slow) if one[0] != "train" else one for one in SPOILED]


@pytest.mark.slow
@pytest.mark.parametrize("kind, answer", SLOW)
def test_a_round_goes_on_without_a_node_that_fails(clients, monkeypatch, kind, answer):
    told = []
    monkeypatch.setattr(nodes_module, "log", lambda level, *text: told.append(str(text)))
    name, options = ("emd-cfl", {}) if kind == "ask" else ("ifca", {"k": 2})
    grid, nodes, table, method = run_with(clients, replaced(kind, answer), name=name, **options)
    assert table["round"].tolist() == [1, 2, 3] and table["accuracy"].notna().all()
    assert torch.isfinite(method.models).all()
    reason = "did not answer" if answer is SILENCE else "wrong form or is not finite"
    assert any(reason in fault for fault in told), told
    # The others train once in the second round, although it began again; client 2 is back later
    assert grid.trainings.count(0) == 3
    assert 2 in nodes.nodes.of


@pytest.mark.slow
def test_a_round_that_nobody_evaluates_has_no_scores(clients):
    _, _, table, _ = run_with(clients, replaced("scores", SILENCE, range(CLIENTS)), k=2)
    assert table["accuracy"].isna().tolist() == [False, True, False]


EMBEDDINGS = {"projection": 0.9, "max_samples": 9}
DRAWS = {"train_mode": False, "draws": "per distance"}
QUESTION_OPTIONS = {
    "owner_sends": ((1, 2), EMBEDDINGS | {"sinkhorn": None}),
    "other_sends": (1, EMBEDDINGS),
    "owner_draws": ((1, 2), EMBEDDINGS | DRAWS | {"sinkhorn": None}),
    "other_draws": (1, EMBEDDINGS | DRAWS),
    "descriptor": (None, {"components": 3, "span": 2.0}),
    "directions": (None, {"p": 2, "split": "train", "standardised": True}),
    "feature_axes": (None, {"components": 3}),
    "loss_gradient": (None, {"samples": 8}),
    "mean_loss": (None, {}),
}


@pytest.mark.parametrize("question", QUESTIONS, ids=name_of)
def test_true_answers_fit_their_question_and_spoiled_ones_do_not(clients, question):
    federation = clients[0]()
    about, options = QUESTION_OPTIONS[question.__name__]
    more = () if about is None else (about,)
    column = {"about": [*more]} if more else {}
    jobs = first_jobs(federation, [0]).replace(**column)
    [told] = federation.ask(question, jobs, **options)

    def fits(answer):
        return QUESTIONS[question].fits(answer, federation.blueprint, *more, **options)

    def each_array(change):
        whole = type(told) is tuple
        return (told[0], [change(part) for part in told[1]]) if whole else change(told)

    spoils = (
        lambda a: a * np.nan,
        lambda a: a[..., :-1] if question.__name__ != "directions" else a[:-1],
        lambda a: a[:0],
        lambda a: a[None],
        lambda a: "text",
        lambda a: None,
        lambda a: a.astype(complex) if isinstance(a, np.ndarray) else a.to(torch.complex64),
    )
    assert fits(told)
    assert not any(fits(each_array(spoil)) for spoil in spoils)
    assert not any(fits(other) for other in (None, "text", 3.0, [], (), (0.5, None)))


def missing(grid, tmp_path):
    del grid.data[102]


def twice(grid, tmp_path):
    grid.data[102] = grid.data[103]


def damaged(grid, tmp_path):
    np.savez(tmp_path / "own.npz", train_labels=np.arange(3))
    grid.data[102] = 2, tmp_path / "own.npz"


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, reason",
    [
        (missing, "it has not said hello"),
        (twice, "its hello was refused: it says that it is client 3"),
        (damaged, "its hello was refused: .*train_images"),
    ],
)
def test_a_federation_that_is_not_complete_says_who_is_missing(clients, tmp_path, change, reason):
    grid = Grid(clients[1])
    change(grid, tmp_path)
    spoil, asked = grid.spoil, []
    grid.spoil = lambda client, *more: asked.append(client) or spoil(client, *more)
    with pytest.raises(ClientsAbsent, match=f"client 2: {reason}"):
        remote(clients[1], grid, wait=0.3)
    assert max(map(asked.count, asked)) <= 1 + (change is twice), "each is asked once"


@pytest.mark.parametrize("name", ["fedavg", "ocfl", "sattler"])
def test_a_node_that_disconnects_between_rounds_ends_the_run_if_nobody_may_be_absent(clients, name):
    _, folder = clients
    grid = Grid(folder)
    nodes, method = remote(folder, grid), made(name)
    grid.agreed = Agreement(SETTING, method, 2)
    history = simulation.run(method, nodes, 1, progress=False)
    del grid.data[104]
    with pytest.raises(ClientsAbsent, match="client 4: its node has disconnected"):
        run(method, nodes, 2, after=history)


def test_a_node_that_comes_back_with_other_data_does_not_take_part(clients, monkeypatch):
    monkeypatch.setattr(nodes_module, "AGAIN", 0.0)
    grid = Grid(clients[1])
    nodes = remote(clients[1], grid, absent_allowed=True)
    own = grid.data.pop(104)
    assert 4 not in nodes.reachable(0).tolist()
    grid.spoil = replaced("hello", lambda s: s | {"samples": {"train": 1, "test": 1}}, [4], 0)
    grid.data[104] = own
    assert 4 not in nodes.reachable(1).tolist()
    assert 4 in nodes.reachable(2).tolist(), "it is asked again"


def test_a_round_without_any_of_its_clients_ends_the_run(clients):
    _, folder = clients
    grid = Grid(folder)
    nodes = remote(folder, grid, per_round=1, absent_allowed=True)
    [drawn] = nodes.participants(0).tolist()
    del grid.data[100 + drawn]
    nodes.nodes._round = -1  # as if it had not begun
    with pytest.raises(ClientsAbsent, match=f"client {drawn}: its node has disconnected"):
        nodes.participants(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, answer, name, reason",
    [
        ("train", SILENCE, "ocfl", "it did not answer within 0.5 seconds"),
        ("train", lambda models: models.double(), "ifca", ".*has a wrong form"),
        ("scores", [(0.5, 1e9)], "ifca", ".*has a wrong form"),
        ("losses", FULL, "ifca", "it failed: the disk is full"),
        ("losses", lambda own: [part * torch.nan for part in own], "ifca", ".*is not finite"),
        ("scores", SILENCE, "ocfl", "it did not answer"),
    ],
)
def test_a_node_that_fails_ends_the_run_where_nobody_may_be_absent(
    clients, kind, answer, name, reason
):
    options = OPTIONS.get(name, {})
    with pytest.raises(ClientsAbsent, match=f"client 2: {reason}"):
        run_with(clients, replaced(kind, answer), name, absent_allowed=False, **options)


def test_methods_that_need_everyone_are_refused_where_clients_may_be_absent(clients):
    with pytest.raises(ValueError, match="runs only with all clients"):
        run_with(clients, lambda client, request, reply: reply, name="sattler")


def test_training_that_diverges_everywhere_is_an_error_as_in_the_simulation(clients):
    setting = dataclasses.replace(SETTING, training=LocalTraining(epochs=4, lr=1e38))
    with pytest.raises(Diverged, match="no longer finite"):
        run(made("fedavg"), remote(clients[1], setting=setting), 2)


@pytest.mark.slow
@pytest.mark.parametrize("value", [torch.nan, 1e30])
def test_a_model_that_is_not_finite_costs_the_methods_that_asked_for_it(clients, value):
    grid = Grid(clients[1])

    def spoilt(models):
        models[-1] = value
        return models

    grid.spoil = replaced("train", spoilt)
    table = run(made("fedavg", "local"), remote(clients[1], grid))
    assert table.groupby("method")["round"].max().to_dict() == {"fedavg": 3, "local": 2}
    assert table["diverged"].sum() == 1


# --- A client's file ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "floats", "features"])
def test_a_client_s_file_has_its_samples(tmp_path, kind):
    images = datasets.load("digits-8x8")
    pool = images.images if kind == "bytes" else images.images.float() / 255
    if kind == "features":
        pool = pool.flatten(1)[:, :, None, None] - 0.5
    images = dataclasses.replace(images, images=pool, test_images=pool[:360])
    _, split = partition.iid(images, clients=2, draws=20)
    read = client_file.samples_in(client_file.save(tmp_path / "1.npz", images, split, 1))
    for name, indices in split.splits.items():
        samples, labels = read[name]
        assert samples.dtype == pool.dtype and torch.equal(samples, pool[indices[1]])
        assert torch.equal(labels, images.labels[indices[1]])


FLOATS, LABELS = np.full((4, 8, 8), 0.5, dtype=np.float32), np.arange(4)
GIVEN = {"train_images": FLOATS, "train_labels": LABELS, "test_labels": LABELS}


@pytest.mark.parametrize(
    "arrays, reason",
    [
        ({"train_images": FLOATS, "train_labels": LABELS[:3]}, "train_images has 4 rows, but the"),
        ({"train_images": FLOATS}, "needs train_labels"),
        (GIVEN | {"test_images": (FLOATS * 255).astype(np.uint8)}, "samples of one type"),
        (GIVEN | {"test_images": FLOATS[:, :4, :4]}, "samples of one type and one shape"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_reason(tmp_path, arrays, reason):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DatasetError, match=reason):
        client_file.samples_in(tmp_path / "own.npz")


@pytest.mark.parametrize(
    "shape, client, reason",
    [
        ((1, 9, 9), 0, r"\(1, 8, 8\); the server expects \(1, 9, 9\)"),
        ((1, 8, 8), -1, f"from 0 to {CLIENTS - 1}, not -1"),
        ((1, 8, 8), CLIENTS, f"from 0 to {CLIENTS - 1}, not {CLIENTS}"),
    ],
)
def test_a_client_that_does_not_fit_the_setting_is_refused(clients, shape, client, reason):
    setting = dataclasses.replace(SETTING, shape=shape)
    with pytest.raises(DatasetError, match=reason):
        client_file.federation_of(setting, clients[1] / "0.npz", client)


# --- The server app and the demonstration ---------------------------------------------------------


class Output:
    """The context of a server app whose results go to a folder."""

    def __init__(self, folder, **config):
        own = {"output": str(folder), "clients": CLIENTS, "shape": "1, 8, 8", "classes": 10}
        short = {"model": "linear", "epochs": 1, "batch-size": 16, "wait": 0.5, "timeout": 0.5}
        numbers = ", ".join(str(100 + client) for client in range(CLIENTS))
        self.run_config = demo.DEFAULTS | own | short | {"nodes": numbers} | config

    def grid(self, folder):
        """Nodes whose owners have agreed to these settings."""
        grid = Grid(folder)
        grid.agreed = Agreement.of(self.run_config)
        return grid


@pytest.mark.slow
def test_the_server_app_writes_its_results_or_why_it_failed(clients, tmp_path):
    output, fedavg = Output(tmp_path), "{A: {method: fedavg}}"
    grid = output.grid(clients[1])
    del grid.data[104]
    with pytest.raises(ClientsAbsent):
        server_app.main(grid, output)
    assert "client 4: it has not said hello" in (tmp_path / "error.txt").read_text()
    output = Output(tmp_path, methods=fedavg, rounds=2, absent="leave")
    server_app.main(output.grid(clients[1]), output)
    assert pd.read_csv(tmp_path / "rounds.csv")["round"].tolist() == [1, 2]
    assert pd.read_csv(tmp_path / "messages.csv")["kind"].iloc[0] == "hello"
    assert torch.load(tmp_path / "models.pt")["A"]["mixture"].shape[0] == CLIENTS
    assert not (tmp_path / "error.txt").exists(), "the reason of another run"


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"shape": "1, 8"}, "shape must be channels, height, width"),
        ({"optimizer": "sgdd"}, "^optimizer: [^\n]*$"),
        ({"seed": -1}, "^seed: [^\n]*$"),
        ({"rounds": 0}, "rounds must be 1 or more"),
        ({"absent": "wait"}, "absent must be end or leave"),
        ({"clients-per-round": CLIENTS + 1}, "7 of 6 clients cannot take part"),
        ({"clients-per-round": -1}, "-1 of 6 clients cannot take part"),
        ({"methods": "{A: [fedavg"}, "methods must be YAML"),
        ({"methods": "{A: {method: [fedavg]}}"}, "A needs the name of a method"),
    ],
)
def test_wrong_settings_are_told_before_any_node_is_asked(clients, tmp_path, config, reason):
    grid = Grid(clients[1])
    with pytest.raises(ValueError, match=reason):
        server_app.main(grid, Output(tmp_path, **config))
    assert next(grid.numbers) == 0


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"config": {"methods": "{A: {method: fedavgg}}"}}, "unknown method 'fedavgg'"),
        ({"config": {"methods": "{A: {method: ifca, k: many}}"}}, "method 'ifca': .*k"),
        ({"version": "upside-down"}, "unknown version 'upside-down'"),
        ({"clients": 3}, "clients must be a multiple"),
        ({"dataset": "digit"}, "digit"),
    ],
)
def test_a_demonstration_that_cannot_be_says_why_before_it_starts(tmp_path, options, reason):
    with pytest.raises((DatasetError, PartitionError, ValueError), match=reason):
        demo.Demo(tmp_path / "run", **options).prepare()


def test_a_demonstration_leaves_the_folder_of_somebody_else_as_it_is(tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "thesis.txt").touch()
    with pytest.raises(demo.DemoError, match="has other files; name a new or an empty folder"):
        demo.Demo(tmp_path, clients=2, samples=40).prepare()
    assert (tmp_path / "output" / "thesis.txt").exists()


def test_a_demonstration_goes_on_with_the_same_settings_and_begins_anew_with_others(tmp_path):
    def prepared(**options):
        own = demo.Demo(tmp_path / "run", clients=2, **({"samples": 40} | options))
        own.prepare()
        kept = (own.output / "checkpoint.pt").exists()
        own.output.mkdir(exist_ok=True)
        (own.output / "checkpoint.pt").touch()
        return kept

    assert not prepared()
    assert prepared()
    assert not prepared(samples=60)
    assert not prepared(samples=60, config={"rounds": 7})
    assert prepared(samples=60, config={"rounds": 7})


def test_each_node_has_its_own_key_and_file_and_talks_over_tls(tmp_path, monkeypatch):
    """Processes are not started here; the folder is used for fewer clients before.

    Paths of sockets are short, also where temporary files have long ones.
    """
    place = tmp_path / ("long" * 30)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    started, asked = {}, []
    monkeypatch.setattr(demo.Demo, "launch", lambda self, name, *own: started.update({name: own}))
    answer = {"node-id": 2**64 - 1}
    monkeypatch.setattr(demo.Demo, "flwr", lambda self, *own: asked.append(own) or answer)
    monkeypatch.setattr(demo, "answers", lambda port: True)
    for count in (2, 4):
        own = demo.Demo(tmp_path / "run", clients=count, samples=40)
        own.prepare()
        assert len(list(own.keys.glob("*.pub"))) == count
        own.start()
        assert len(str(own.sockets / "client-00.socket")) < 100
        assert own.sockets.stat().st_mode & 0o777 == 0o700
        own.stop()
        assert not own.sockets.exists()
    assert "--enable-supernode-auth" in started["server"]
    assert not any("--insecure" in command for command in started.values())
    assert sorted(key for _, _, key, _ in asked[2:]) == [
        str(own.keys / f"{name}.pub") for name in own.names
    ]
    for name in own.names:
        assert str(own.keys / f"{name}.key") in started[name]
        assert str(own.keys / "ca.crt") in started[name]
        assert str(own.folder / f"{name}.npz") in started[f"{name}-data"]
        assert str(own.settings) in started[f"{name}-data"], "what its owner has agreed to"
        assert (own.folder / f"{name}.npz").stat().st_mode & 0o777 == 0o600
    text = own.run_config.read_text()
    numbers = ", ".join([str(answer["node-id"])] * 4)
    assert text == own.settings.read_text().replace('nodes = ""', f'nodes = "{numbers}"')


def test_keys_are_their_owners_alone_and_a_server_is_known_by_its_authority(tmp_path):
    for name in ("site.one", "server"):  # the points belong to names
        (tmp_path / f"{name}.key").touch(mode=0o644)
    write_certificates(tmp_path, ["localhost"], ["127.0.0.1"])
    write_key_pair(tmp_path / "site.one")
    assert (tmp_path / "site.one.pub").exists()
    for name in ("site.one", "server"):
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o777 == 0o600
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    for name in ("localhost", "127.0.0.1"):
        one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = client.wrap_bio(one, other, server_hostname=name)
        far = server.wrap_bio(other, one, server_side=True)
        for side in (near, far, near):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        assert near.getpeercert()["subject"] == ((("commonName", "localhost"),),)


def test_methods_are_options_of_the_command():
    text = demo.line_up_text(["sattler:eps1=1e3,eps2=1e-6,min_rounds=0"])
    [method] = line_up_of(text).values()
    assert (method.eps1, method.eps2) == (1000.0, 1e-6), "small numbers are numbers"
    with pytest.raises(ValueError, match="k: Input should be a valid integer"):
        line_up_of(demo.line_up_text(["ifca:k=2020-01-01"]))
    for text in ("ifca:k", "ifca:method=fedavg", "ifca:k=2,k=3"):
        with pytest.raises(demo.DemoError, match="must be NAME or NAME:OPTION=VALUE"):
            demo.line_up_text([text])
    for text in ("ifca:k=[", "ifca:k={"):
        with pytest.raises(ParameterError, match="is not YAML"):
            demo.line_up_text([text])


def test_the_command_tells_whether_the_models_are_equal(tmp_path, monkeypatch, capsys):
    command = ["federate", str(tmp_path / "run"), "--clients", "2", "--samples", "40"]
    told, failed = [True, False], demo.DemoError("the SuperLink did not start")

    def ended(self, federation):
        if not told:
            raise failed
        return pd.DataFrame({"method": ["ifca"], "accuracy": [0.5], "equal": [told.pop(0)]})

    monkeypatch.setattr(demo.Demo, "run", ended)
    assert [main(command) for _ in range(3)] == [0, 1, 1]
    out, err = capsys.readouterr()
    assert out.count("ifca: accuracy 0.500; the models are equal to those of the sim") == 1
    assert out.count("ifca: accuracy 0.500; the models are NOT equal to those") == 1
    assert "error: the SuperLink did not start" in err
    assert main([*command, "-m", "ifca:k"]) == 2


# --- The process beside the data ------------------------------------------------------------------


def test_the_process_beside_the_data_answers_and_tells_its_errors(clients):
    own = Node(3, clients[1] / "3.npz", Agreement(SETTING, {}, 1), 81349)
    assert own.federation.shared_seed == 81349
    with pytest.raises(ValueError, match="start the node with --node-config"):
        client_app.answer(None, Context(0, 0, {"client": 3}, RecordDict(), {}))
    near, far = Pipe()
    setting = dataclasses.asdict(SETTING)
    for kind in ("hello", "goodbye", "hello"):
        answering = Thread(target=resident.answer_one, args=(far, own))
        answering.start()
        request = packed({"kind": kind, "setting": setting})
        if kind == "hello":
            said = unpacked(client_app.passed_on(near, request))["answer"]
            assert said["client"] == 3 and said["samples"]["train"] > 0
        else:
            with pytest.raises(RuntimeError, match=r"nodes do not answer requests of .*'goodbye'"):
                client_app.passed_on(near, request)
        answering.join()


def test_a_resident_process_tells_at_once_that_its_file_is_wrong(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "own.npz", train_images=np.zeros((2, 8, 8)))
    (tmp_path / "settings.toml").write_text("clients = 6")
    command = ["resident", str(tmp_path / "socket"), "--client", "3"]
    command += ["--agreed", str(tmp_path / "settings.toml")]
    monkeypatch.setattr(sys, "argv", [*command, "--data", str(tmp_path / "own.npz")])
    with pytest.raises(SystemExit, match="2"):
        resident.main()
    assert f"{tmp_path / 'own.npz'} needs train_labels" in capsys.readouterr().err
    assert not (tmp_path / "socket").exists()


@pytest.mark.nightly
def test_a_resident_process_outlives_errors_and_peers_that_hang_up(clients):
    # Not in a folder of pytest: macOS allows 104 characters for the path of a socket
    with tempfile.TemporaryDirectory(prefix="cflkit-") as short:
        private, place = Path(short) / "hospital-3.key", Path(short) / "hospital-3.socket"
        private.write_text("a node's private key")
        command = [sys.executable, "-m", "cflkit.flower.resident", str(place), "--client", "3"]
        settings = Path(short) / "settings.toml"
        settings.write_text('clients = 6\nmodel = "linear"\nepochs = 1\nlr = 0.01\nmomentum = 0.0')
        command += ["--data", str(clients[1] / "3.npz"), "--agreed", str(settings)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "client 3 listens\n"
            context = Context(0, 0, {"socket": str(place)}, RecordDict(), {})
            setting = dataclasses.asdict(SETTING)
            hello, wrong = (
                Message(packed({"kind": kind, "setting": setting}), 1, "query")
                for kind in ("hello", "goodbye")
            )
            for _ in range(2):
                said = unpacked(client_app.answer(hello, context).content)["answer"]
                assert said["client"] == 3
                with pytest.raises(RuntimeError, match="goodbye"):
                    client_app.answer(wrong, context)
                with socket.socket(socket.AF_UNIX) as peer:
                    peer.connect(str(place))
                with pytest.raises(AuthenticationError):
                    Client(str(place), authkey=b"another key")
                with Client(str(place), authkey=client_app.key_of(place).read_bytes()):
                    pass  # and nothing is asked
            assert private.read_text() == "a node's private key"
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_the_client_app_does_not_wait_for_torch():
    """Flower starts a process per message."""
    command = "import sys, cflkit.flower.client_app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0


# --- Real processes -------------------------------------------------------------------------------


@pytest.mark.nightly
def test_fifteen_processes_give_the_models_of_the_simulation(tmp_path):
    line_up = ["ocfl", "sattler:eps1=1e3,eps2=1e-6,min_rounds=0", "ifca:k=4", "emd-cfl:epsilon=0.1"]
    command = ["federate", str(tmp_path / "run"), "--version", "backdoor", "--clients", "15"]
    command += itertools.chain(*(("--methods", name) for name in line_up))
    assert main([*command, "--samples", "30"]) == 0, "the models are equal, bit for bit"
    rounds = pd.read_csv(tmp_path / "run" / "output" / "rounds.csv").groupby("method")
    assert set(rounds.groups) == set(line_up)
    assert (rounds["n_clusters"].last() > 1).all(), "models of clusters have been trained"
    messages = pd.read_csv(tmp_path / "run" / "output" / "messages.csv", keep_default_na=False)
    assert set(messages["kind"]) == {"hello", "losses", "train", "ask", "scores"}
    counts = messages.groupby(["client", "direction"]).size().unstack()
    assert (counts.loc[0:, "down"] == counts.loc[0:, "up"]).all()


@pytest.mark.nightly
def test_killed_processes_cost_a_round_at_most(tmp_path):
    """A node is killed; then all are killed, and new processes go on from the checkpoint."""
    config = {"methods": "{IFCA: {method: ifca, k: 2}}", "model": "linear", "rounds": 5}
    config |= {"absent": "leave", "timeout": 120.0}  # a late answer would be none
    own = demo.Demo(tmp_path / "run", clients=4, samples=40, config=config)
    own.prepare()
    done = own.output / "checkpoint.pt"

    def wait_for_round():
        """Wait until a checkpoint that is younger than this call exists."""
        begin = time.time()
        while not done.exists() or done.stat().st_mtime < begin:
            assert time.time() < begin + 600, "it took too long"
            time.sleep(0.5)

    try:
        own.start()
        own.submit()
        wait_for_round()
        own.kill("client-03")
        own.kill("client-03-data")
        wait_for_round()
        own.stop()
        own.start()
        assert own.wait(own.submit()) == "finished:completed"
    finally:
        own.stop()
    table = pd.read_csv(own.output / "rounds.csv")
    assert table["round"].tolist() == [1, 2, 3, 4, 5] and table["accuracy"].notna().all()
    messages = pd.read_csv(own.output / "messages.csv")
    last = messages[(messages["round"] == 5) & (messages["kind"] == "train")]
    assert set(last["client"]) == {0, 1, 2, 3}, "the node that was killed takes part again"
