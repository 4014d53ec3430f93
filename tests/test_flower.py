"""Methods on clients that are elsewhere: equality with the simulation, messages, and faults.

Most tests replace Flower's network by a grid in this process, which answers with the kit's own
``ClientApp``. The last ones start real processes, which talk over TLS.
"""

import dataclasses
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cflkit import datasets, methods, partition, simulation
from cflkit.datasets import DatasetError
from cflkit.federation import ClientsAbsent, Diverged, Federation, Jobs, LocalTraining
from cflkit.flower import demo, node, resident, server_app
from cflkit.flower import nodes as nodes_module
from cflkit.flower.absence import converse_with_present
from cflkit.flower.answers import QUESTIONS, name_of
from cflkit.flower.certificates import write_key_pair
from cflkit.flower.client_app import answer
from cflkit.flower.messages import packed, unpacked
from cflkit.flower.remote import RemoteFederation
from cflkit.flower.setting import Setting
from cflkit.partition import shifts
from cflkit.simulation import checkpoints
from cflkit.simulation.lockstep import converse
from tests.test_contract import OPTIONS

CLIENTS = 6
TRAINING = LocalTraining(epochs=1, batch_size=16)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """The simulation's federation, and a folder with one file per client."""
    images, split = shifts.make(datasets.load("digits-8x8"), "quarter-turn", clients=8, samples=40)
    split = type(split)(
        split.dataset,
        split.train[:CLIENTS],
        split.test[:CLIENTS],
        split.clusters[:CLIENTS],
        split.recipe,
        {name: parts[:CLIENTS] for name, parts in split.more.items()},
    )
    folder = tmp_path_factory.mktemp("clients")
    for client in range(CLIENTS):
        node.save(folder / f"{client}.npz", images, split, client)
    return Federation(images, split, "linear", TRAINING, engine="threads"), folder


class Grid:
    """Nodes in this process. ``spoil`` may replace or remove the reply of a client."""

    def __init__(self, folder):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.configs = {
            100 + c: {"client": c, "data": str(folder / f"{c}.npz")} for c in range(CLIENTS)
        }
        self.spoil = lambda client, request, reply: reply
        self.replies, self.numbers, self.trainings = {}, itertools.count(), []

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        sent = []
        for message in messages:
            name = f"message {next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = name
            sent.append(name)
            config = self.configs[message.metadata.dst_node_id]
            request = unpacked(message.content)
            if request["kind"] == "train":
                self.trainings.append(config["client"])
            try:
                reply = answer(message, Context(0, 0, config, RecordDict(), {}))
            except Exception as error:  # as Flower does
                reply = Message(Error(code=0, reason=repr(error)), reply_to=message)
            reply = self.spoil(config["client"], request, reply)
            if reply is not None:
                self.replies[name] = reply
        return sent

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


def remote(folder, grid=None, **options):
    """Build a federation of nodes."""
    setting = Setting(CLIENTS, "linear", (1, 8, 8), 10, TRAINING)
    options = {"timeout": 1.0, "wait": 1.0} | options
    return RemoteFederation(grid or Grid(folder), setting, **options)


def same(one, other):
    """Whether all clients of two methods have the same models, bit for bit."""
    return all(
        torch.equal(a, b) for a, b in zip(one.client_models(), other.client_models(), strict=True)
    )


# --- Equality with the simulation -----------------------------------------------------------------

ELSEWHERE = sorted(set(methods.METHODS) - set(server_app.ONLY_SIMULATED))


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
    here = simulation.run(lines[0], federation, 3, progress=False).table()
    there = simulation.run(lines[1], remote(folder), 3, progress=False).table()
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
    images, _ = shifts.make(datasets.load("digits-8x8"), "quarter-turn", clients=8, samples=40)
    partial = Federation(
        images,
        federation.partition,
        "linear",
        TRAINING,
        engine="threads",
        clients_per_round=2,
    )
    lines = [{"IFCA": methods.make("ifca", k=2)} for _ in range(2)]
    simulation.run(lines[0], partial, 3, progress=False)
    simulation.run(lines[1], remote(folder, per_round=2), 3, progress=False)
    assert same(lines[0]["IFCA"], lines[1]["IFCA"])


def test_a_run_goes_on_from_its_checkpoint_with_other_nodes(clients, tmp_path, monkeypatch):
    # These rounds are so short that a checkpoint would not be written after each of them
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    federation, folder = clients
    whole = {"OCFL": methods.make("ocfl")}
    simulation.run(whole, federation, 4, progress=False)
    path = tmp_path / "checkpoint.pt"

    class Killed(Exception):
        pass

    grid = Grid(folder)

    def kill(client, request, reply):
        if request["kind"] == "train" and request["order"] == 2:
            raise Killed
        return reply

    grid.spoil = kill
    begun = {"OCFL": methods.make("ocfl")}
    with pytest.raises(Killed):
        simulation.run(begun, remote(folder, grid), 4, checkpoint=path, progress=False)
    again, fresh = {"OCFL": methods.make("ocfl")}, Grid(folder)
    simulation.run(again, remote(folder, fresh), 4, checkpoint=path, progress=False)
    assert same(whole["OCFL"], again["OCFL"])
    assert len(fresh.trainings) == 2 * CLIENTS, "two rounds were already done"


# --- What crosses the wire ------------------------------------------------------------------------


def test_no_message_has_samples_or_labels(clients):
    federation, folder = clients
    nodes = remote(folder)
    names = {"ocfl": {}, "ifca": {"k": 2}, "emd-cfl": {"epsilon": 0.1}}
    line_up = {name: methods.make(name, **options) for name, options in names.items()}
    simulation.run(line_up, nodes, 2, progress=False)
    up = {(sent.kind, sent.contents) for sent in nodes.nodes.log if sent.direction == "up"}
    size = nodes.parameters
    trained = {contents for kind, contents in up if kind == "train"}
    assert trained, "there were trainings"
    assert trained <= {f"answer {jobs}×{size}" for jobs in (1, 2, 3)}, "models and nothing else"
    assert {contents for kind, contents in up if kind in ("hello", "scores")} == {""}, "numbers"
    # IFCA's losses: one number per training sample and model
    counts = {len(own) for own in federation.partition.train}
    assert {c for kind, c in up if kind == "losses"} == {
        f"answer.0 {n}, answer.1 {n}" for n in counts
    }
    # EMD-CFL's embeddings: these networks embed 64 pixels, and 57 dimensions are left of them
    asked = [contents for kind, contents in up if kind == "ask"]
    assert {part.split("×")[-1] for text in asked for part in text.split(", ")} == {"57"}


def test_samples_never_lie_in_a_message(clients):
    """Images and labels are looked for in all that the nodes send: in arrays, and in texts."""
    _, folder = clients
    grid, sent = Grid(folder), []

    def watch(client, request, reply):
        arrays = b"".join(a.numpy().tobytes() for a in reply.content["arrays"].values())
        sent.append((client, arrays, str(reply.content["values"]["json"])))
        return reply

    grid.spoil = watch
    names = {"ocfl": {}, "ifca": {"k": 2}, "emd-cfl": {}, "pacfl": {"p": 1}, "cfl-gp": {"k": 2}}
    line_up = {name: methods.make(name, **options) for name, options in names.items()}
    simulation.run(line_up, remote(folder, grid), 2, progress=False)
    assert {client for client, _, _ in sent} == set(range(CLIENTS))
    for client, arrays, text in sent:
        held = node.read(folder / f"{client}.npz")
        for images, labels in held.values():
            for form in (images.float(), images.float() / 255, images):
                assert not any(one.numpy().tobytes() in arrays for one in form[:20])
                assert not any(str(one.flatten().tolist())[1:-1] in text for one in form[:20])
            for form in (labels, labels.float(), labels.int()):
                assert form[:8].numpy().tobytes() not in arrays
                assert str(form[:8].tolist())[1:-1] not in text


def test_labels_are_not_sent_for_a_question(clients):
    _, folder = clients
    line_up = {"FedRC": methods.make("fedrc", k=2)}
    with pytest.raises(ValueError, match=r"labels_of.* samples or labels"):
        simulation.run(line_up, remote(folder), 1, progress=False)


@pytest.mark.parametrize("method", sorted(server_app.ONLY_SIMULATED))
def test_a_method_that_nodes_cannot_run_is_refused_before_they_start(method):
    with pytest.raises(ValueError, match=f"{method} does not run over a network"):
        server_app.line_up_of(f"{{{method}: {{method: {method}}}}}")


def test_a_node_answers_only_questions_that_are_declared():
    names = [name_of(question) for question in QUESTIONS]
    assert not any("fedrc" in name for name in names) and len(set(names)) == len(names)
    assert "cflkit.methods.emd_cfl_clients.owner_sends" in names


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=8),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), parts, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), plain, max_size=3))
def test_values_come_back_as_they_were_sent(values):
    assert unpacked(packed(values)) == values


def test_arrays_come_back_with_their_types_and_shapes():
    values = {
        "tensors": [torch.tensor(3), torch.arange(6).view(2, 3), torch.empty(0, 4), torch.rand(2)],
        "arrays": (np.float64(1.5), np.ones((2, 1), dtype=np.float64)),
    }
    back = unpacked(packed(values))
    for own, other in zip(values["tensors"], back["tensors"], strict=True):
        assert own.dtype == other.dtype and torch.equal(own, other)
    assert back["arrays"][0] == 1.5
    np.testing.assert_array_equal(back["arrays"][1], values["arrays"][1])


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"arrays": ConfigRecord(), "values": ConfigRecord({"json": "[1]"})}),
        RecordDict({"arrays": ConfigRecord(), "values": ConfigRecord({"json": "{"})}),
        RecordDict({"arrays": ConfigRecord(), "values": ConfigRecord({"json": "[" * 10**5})}),
        RecordDict(
            {
                "arrays": ArrayRecord({"a": Array("float32", (1,), "numpy.ndarray", b"")}),
                "values": ConfigRecord({"json": '{"answer": {"tensor": "a"}}'}),
            }
        ),
    ],
    ids=["nothing", "list", "half", "deep", "empty array"],
)
def test_records_of_another_form_are_a_value_error(records):
    with pytest.raises(ValueError, match="a message that cannot be read"):
        unpacked(records)


def test_a_round_that_nobody_evaluates_has_no_scores(clients):
    trained = {}

    def spoil(client, request, reply):
        trained[client] = request.get("order", trained.get(client))
        return None if request["kind"] == "scores" and trained[client] == 1 else reply

    _, _, table, _ = run_with(clients, spoil, k=2)
    assert table["accuracy"].isna().tolist() == [False, True, False]


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match=r"question is a function, which cannot be sent"):
        packed({"question": lambda: None})


# --- Faults ---------------------------------------------------------------------------------------


def silent(client, rounds):
    """Nothing comes from a client in some rounds."""
    return lambda c, request, reply: (
        None if c == client and request.get("order") in rounds else reply
    )


def spoiled(client, change):
    """The models of a client are changed in the second round."""

    def spoil(c, request, reply):
        if c != client or request.get("order") != 1:
            return reply
        own = change(unpacked(reply.content)["answer"])
        return Message(packed({"answer": own}), reply_to=request_of(reply))

    return spoil


def request_of(reply):
    """A message to which another reply can be written in place of the given one."""
    original = Message(RecordDict(), reply.metadata.src_node_id, "train")
    original.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return original


def run_with(clients, spoil, rounds=3, name="ifca", absent_allowed=True, **options):
    """Run a method while a node misbehaves."""
    _, folder = clients
    grid = Grid(folder)
    nodes = remote(folder, grid, absent_allowed=absent_allowed, timeout=0.5)
    grid.spoil = spoil
    line_up = {name: methods.make(name, **options)}
    history = simulation.run(
        line_up,
        nodes,
        rounds,
        progress=False,
        converse=converse_with_present if absent_allowed else converse,
    )
    return grid, nodes, history.table(), line_up[name]


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (silent(2, {1}), "did not answer"),
        (spoiled(2, lambda models: models * np.nan), "not finite"),
        (spoiled(2, lambda models: models[:, :-1]), "something else than"),
        (spoiled(2, lambda models: "model"), "something else than"),
        (spoiled(2, lambda models: None), "something else than"),
    ],
    ids=["silent", "NaN", "shape", "text", "nothing"],
)
def test_a_round_goes_on_without_a_node_that_fails(clients, monkeypatch, spoil, reason):
    told = []
    monkeypatch.setattr(nodes_module, "log", lambda level, *text: told.append(str(text)))
    grid, nodes, table, method = run_with(clients, spoil, k=2)
    assert table["round"].tolist() == [1, 2, 3]
    assert table["accuracy"].notna().all() and torch.isfinite(method.models).all()
    assert any(reason in fault for fault in told), told
    # The others train once in the second round, although it began again; client 2 is back later
    assert sorted(grid.trainings).count(0) == 3
    assert 2 in nodes.nodes.of


def replaced(kind, answer):
    """Client 2 gives this answer to its second request of a kind."""
    asked = itertools.count()

    def spoil(client, request, reply):
        if client != 2 or request["kind"] != kind or next(asked) != 1:
            return reply
        return Message(packed({"answer": answer}), reply_to=request_of(reply))

    return spoil


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, answer",
    [
        ("losses", [torch.empty(0), torch.empty(0)]),
        ("losses", [torch.rand(32), "none"]),
        ("losses", None),
        ("scores", [1.0]),
        ("scores", ["ab"]),
        ("scores", [(0.5, "all")]),
        ("ask", {}),
        ("ask", ["text"]),
        ("ask", [torch.rand(3, 5)]),
        ("ask", [(np.nan, [np.ones((3, 57))] * 5)]),
        ("ask", [(0.5, [np.ones((3, 56))] * 5)]),
        ("ask", [(0.5, [np.full((3, 57), np.inf)] * 5)]),
    ],
)
def test_any_answer_that_does_not_fit_leaves_its_client_out(clients, kind, answer):
    name, options = ("emd-cfl", {}) if kind == "ask" else ("ifca", {"k": 2})
    _, nodes, table, _ = run_with(clients, replaced(kind, answer), name=name, **options)
    assert table["round"].tolist() == [1, 2, 3] and table["accuracy"].notna().all()
    assert 2 in nodes.nodes.of, "it has come back"


EMBEDDINGS = {"projection": 0.9, "max_samples": 9}
DRAWS = {"train_mode": False, "draws": "per distance"}
QUESTION_OPTIONS = {
    "owner_sends": ((1, 2), EMBEDDINGS | {"sinkhorn": None}),
    "other_sends": (1, EMBEDDINGS),
    "owner_draws": ((1, 2), EMBEDDINGS | DRAWS | {"sinkhorn": None}),
    "other_draws": (1, EMBEDDINGS | DRAWS),
    "directions": (None, {"p": 2, "split": "train", "standardised": True}),
    "feature_axes": (None, {"components": 3}),
    "loss_gradient": (None, {"samples": 8}),
    "mean_loss": (None, {}),
}


@pytest.mark.parametrize("question", QUESTIONS, ids=name_of)
def test_true_answers_fit_their_question_and_spoiled_ones_do_not(clients, question):
    federation, _ = clients
    about, options = QUESTION_OPTIONS[question.__name__]
    column = {} if about is None else {"about": [about]}
    jobs = Jobs(federation.initial()[None], torch.tensor([0]), torch.tensor([0]), **column)
    [told] = federation.ask(question, jobs, **options)
    more = () if about is None else (about,)

    def fits(answer):
        return QUESTIONS[question](answer, federation.blueprint, *more, **options)

    assert fits(told)

    def each_array(change):
        return (
            (told[0], [change(part) for part in told[1]]) if type(told) is tuple else change(told)
        )

    spoils = (
        lambda a: a * np.nan,
        lambda a: a[..., :-1] if question.__name__ != "directions" else a[:-1],
        lambda a: a[:0],
        lambda a: a[None],
        lambda a: "text",
        lambda a: None,
        lambda a: a.astype(complex) if isinstance(a, np.ndarray) else a.to(torch.complex64),
    )
    assert not any(fits(each_array(spoil)) for spoil in spoils)
    assert not any(fits(other) for other in (None, "text", 3.0, [], (), (0.5, None)))


@pytest.mark.slow
@pytest.mark.parametrize("said", [None, {}, {"client": "2", "samples": {}}, {"client": 9}])
def test_a_node_that_does_not_say_who_it_is_is_ignored(clients, said):
    _, folder = clients
    grid = Grid(folder)
    grid.spoil = lambda client, request, reply: (
        Message(packed({"answer": said}), reply_to=request_of(reply))
        if client == 2 and request["kind"] == "hello"
        else reply
    )
    with pytest.raises(ClientsAbsent, match=r"client 2: it has not said hello"):
        remote(folder, grid, wait=0.5)


@pytest.mark.parametrize("name", ["fedavg", "ocfl", "sattler"])
def test_a_node_that_disconnects_between_rounds_ends_the_run_if_nobody_may_be_absent(clients, name):
    _, folder = clients
    grid = Grid(folder)
    nodes, method = remote(folder, grid), {name: methods.make(name)}
    history = simulation.run(method, nodes, 1, progress=False)
    del grid.configs[104]
    with pytest.raises(ClientsAbsent, match="client 4: its node has disconnected"):
        simulation.run(method, nodes, 2, after=history, progress=False)


def test_a_round_without_any_of_its_clients_ends_the_run(clients):
    _, folder = clients
    grid = Grid(folder)
    nodes = remote(folder, grid, per_round=1, absent_allowed=True)
    [drawn] = nodes.participants(0).tolist()
    del grid.configs[100 + drawn]
    nodes.nodes._round = -1  # as if it had not begun
    with pytest.raises(ClientsAbsent, match=f"client {drawn}: its node has disconnected"):
        nodes.participants(0)


def test_a_node_that_fails_ends_the_run_where_a_method_needs_everyone(clients):
    with pytest.raises(ClientsAbsent, match=r"client 2: it did not answer within 0.5 seconds"):
        run_with(clients, silent(2, {1}), name="ocfl", absent_allowed=False)


def test_methods_that_need_everyone_are_refused_where_clients_may_be_absent(clients):
    with pytest.raises(ValueError, match="runs only with all clients"):
        run_with(clients, lambda c, q, r: r, name="sattler")


def test_an_error_at_a_node_is_told(clients):
    def fail(client, request, reply):
        if client == 1 and request["kind"] == "losses":
            return Message(Error(code=0, reason="the disk is full"), reply_to=request_of(reply))
        return reply

    with pytest.raises(ClientsAbsent, match=r"client 1: it failed: the disk is full"):
        run_with(clients, fail, absent_allowed=False, k=2)


def test_training_that_diverges_everywhere_is_an_error_as_in_the_simulation(clients):
    _, folder = clients
    setting = Setting(CLIENTS, "linear", (1, 8, 8), 10, LocalTraining(epochs=4, lr=1e38))
    nodes = RemoteFederation(Grid(folder), setting, timeout=1.0)
    with pytest.raises(Diverged, match="no longer finite"):
        simulation.run({"FedAvg": methods.make("fedavg")}, nodes, 2, progress=False)


def test_a_loss_that_is_not_finite_ends_the_run_if_nobody_may_be_absent(clients):
    broken = replaced("losses", [torch.full((36,), torch.nan)] * 2)
    with pytest.raises(ClientsAbsent, match="not finite"):
        run_with(clients, broken, k=2, absent_allowed=False)


def test_a_model_that_is_not_finite_costs_the_methods_that_asked_for_it(clients):
    _, folder = clients
    grid = Grid(folder)
    nodes = remote(folder, grid)

    def last_model_is_nan(models):
        models[-1] = torch.nan
        return models

    grid.spoil = spoiled(2, last_model_is_nan)
    line_up = {"FedAvg": methods.make("fedavg"), "local": methods.make("local")}
    table = simulation.run(line_up, nodes, 3, progress=False).table()
    assert table.groupby("method")["round"].max().to_dict() == {"FedAvg": 3, "local": 2}
    assert table["diverged"].sum() == 1


def test_a_federation_that_is_not_complete_says_who_is_missing(clients):
    _, folder = clients
    grid = Grid(folder)
    del grid.configs[104]
    with pytest.raises(ClientsAbsent, match=r"client 4: it has not said hello"):
        remote(folder, grid, timeout=0.5)


def test_a_node_that_is_refused_is_asked_once_and_its_reason_is_told(clients, tmp_path):
    _, folder = clients
    grid = Grid(folder)
    np.savez(tmp_path / "own.npz", train_labels=np.arange(3))
    grid.configs[104]["data"] = str(tmp_path / "own.npz")
    asked = []
    grid.spoil = lambda client, request, reply: asked.append(client) or reply
    with pytest.raises(ClientsAbsent, match=r"client 4: .* a node was refused: .*train_images"):
        remote(folder, grid)
    assert asked.count(4) == 1


def test_more_clients_cannot_take_part_than_there_are(clients):
    for count in (-1, CLIENTS + 1):
        with pytest.raises(ValueError, match=f"{count} of {CLIENTS} clients cannot take part"):
            remote(clients[1], per_round=count)


def test_two_nodes_cannot_be_the_same_client(clients):
    _, folder = clients
    grid = Grid(folder)
    grid.configs[104] = grid.configs[103]
    with pytest.raises(ClientsAbsent, match=r"client 4"):
        remote(folder, grid, timeout=0.5)


@pytest.mark.parametrize("kind", ["bytes", "floats", "features"])
def test_a_client_s_file_has_its_samples(tmp_path, kind):
    images = datasets.load("digits-8x8")
    pool = images.images if kind == "bytes" else images.images.float() / 255
    if kind == "features":
        pool = pool.flatten(1)[:, :, None, None] - 0.5
    images = dataclasses.replace(images, images=pool, test_images=pool[:360])
    _, split = partition.iid(images, clients=2, draws=20)
    read = node.read(node.save(tmp_path / "1.npz", images, split, 1))
    for name, indices in split.splits.items():
        samples, labels = read[name]
        assert samples.dtype == pool.dtype and torch.equal(samples, pool[indices[1]])
        assert torch.equal(labels, images.labels[indices[1]])


def test_a_file_that_does_not_fit_is_refused_with_its_reason(clients, tmp_path):
    _, folder = clients
    images, _ = node.read(folder / "0.npz")["train"]
    path = tmp_path / "own.npz"
    np.savez(path, train_images=images.numpy(), train_labels=np.arange(3))
    with pytest.raises(DatasetError, match=r"train_images has \d+ rows, but the labels"):
        node.read(path)
    np.savez(path, train_images=images.numpy())
    with pytest.raises(DatasetError, match=r"needs train_labels"):
        node.read(path)
    setting = Setting(CLIENTS, "linear", (1, 9, 9), 10, TRAINING)
    with pytest.raises(DatasetError, match=r"\(1, 8, 8\); the server expects \(1, 9, 9\)"):
        node.federation_of(setting, folder / "0.npz", 0)
    for client in (-1, CLIENTS):
        with pytest.raises(DatasetError, match=f"from 0 to {CLIENTS - 1}, not {client}"):
            node.federation_of(setting, folder / "0.npz", client)


@pytest.mark.parametrize("other", ["bytes", "size"])
def test_the_splits_of_a_client_have_samples_of_one_kind(tmp_path, other):
    floats, labels = np.full((4, 8, 8), 0.5, dtype=np.float32), np.arange(4)
    given = {"train_images": floats, "train_labels": labels, "test_labels": labels}
    odd = (floats * 255).astype(np.uint8) if other == "bytes" else floats[:, :4, :4]
    np.savez(tmp_path / "own.npz", test_images=odd, **given)
    with pytest.raises(DatasetError, match="samples of one type and one shape"):
        node.read(tmp_path / "own.npz")


# --- Real processes -------------------------------------------------------------------------------

METHODS = {
    "OCFL": {"method": "ocfl"},
    "Sattler": {"method": "sattler", "eps1": 1e3, "eps2": 1e-6, "min_rounds": 0},
    "IFCA": {"method": "ifca", "k": 4},
    "EMD-CFL": {"method": "emd-cfl", "epsilon": 0.1},
}


def settings(line_up, **more):
    """The settings of a short run."""
    return {"methods": json.dumps(line_up), "model": "linear", "epochs": 1} | more


class Output:
    """The context of a server app whose results go to a folder."""

    def __init__(self, folder, **config):
        with demo.app_folder() as app:
            project = tomllib.loads((app / "pyproject.toml").read_text())
        own = {"output": str(folder), "clients": CLIENTS, "shape": "1, 8, 8", "classes": 10}
        short = {"model": "linear", "epochs": 1, "batch-size": 16, "wait": 0.5, "timeout": 0.5}
        self.run_config = project["tool"]["flwr"]["app"]["config"] | own | short | config


def test_the_server_app_writes_its_results(clients, tmp_path):
    _, folder = clients
    server_app.main(Grid(folder), Output(tmp_path, methods="{A: {method: fedavg}}", rounds=2))
    assert pd.read_csv(tmp_path / "rounds.csv")["round"].tolist() == [1, 2]
    assert torch.load(tmp_path / "models.pt")["A"]["mixture"].shape[0] == CLIENTS
    assert "error.txt" not in {path.name for path in tmp_path.iterdir()}


def test_the_server_app_tells_why_it_failed(clients, tmp_path):
    _, folder = clients
    grid = Grid(folder)
    del grid.configs[104]
    with pytest.raises(ClientsAbsent):
        server_app.main(grid, Output(tmp_path))
    assert "client 4: it has not said hello" in (tmp_path / "error.txt").read_text()
    server_app.main(Grid(folder), Output(tmp_path, rounds=1))
    assert not (tmp_path / "error.txt").exists(), "the reason of another run"


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
def test_a_demonstration_that_cannot_be_says_why_before_it_starts(
    tmp_path, monkeypatch, options, reason
):
    monkeypatch.setattr(demo, "Running", None)
    with pytest.raises(demo.DemoError, match=reason):
        demo.run(demo.Demo(tmp_path / "run", **options))


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"shape": "1, 8"}, "shape must be channels, height, width"),
        ({"optimizer": "sgdd"}, "^optimizer: [^\n]*$"),
        ({"seed": -1}, "^seed: [^\n]*$"),
        ({"rounds": 0}, "rounds must be 1 or more"),
        ({"clients-per-round": CLIENTS + 1}, "cannot take part"),
        ({"methods": "{A: [fedavg"}, "methods must be YAML"),
        ({"methods": "{A: {method: [fedavg]}}"}, "A needs the name of a method"),
    ],
)
def test_wrong_settings_are_told_before_any_node_is_asked(clients, tmp_path, config, reason):
    grid = Grid(clients[1])
    with pytest.raises(ValueError, match=reason):
        server_app.main(grid, Output(tmp_path, **config))
    assert next(grid.numbers) == 0


def test_a_demonstration_leaves_the_folder_of_somebody_else_as_it_is(tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "thesis.txt").touch()
    with pytest.raises(demo.DemoError, match="has other files; name a new or an empty folder"):
        demo.prepare(demo.Demo(tmp_path, clients=2, samples=40))
    assert (tmp_path / "output" / "thesis.txt").exists()


def test_keys_are_named_as_asked_and_are_their_owners_alone(tmp_path):
    for name in ("site.one", "site.two"):
        (tmp_path / f"{name}.key").touch(mode=0o644)
        write_key_pair(tmp_path / name)
        assert (tmp_path / f"{name}.pub").exists()
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o777 == 0o600


def test_small_numbers_are_options_of_methods():
    text = demo.line_up_text(["sattler:eps1=1e3,eps2=1e-6,min_rounds=0"])
    [method] = server_app.line_up_of(text).values()
    assert (method.eps1, method.eps2) == (1000.0, 1e-6)


def test_options_of_methods_that_cannot_be_read_are_refused():
    for text in ("ifca:k", "ifca:k=[", "ifca:k={", "ifca:k=2020-01-01"):
        with pytest.raises(demo.DemoError, match="must be NAME or NAME:OPTION=VALUE"):
            demo.line_up_text([text])
    for text in ("ifca:method=fedavg", "ifca:k=2,k=3"):
        with pytest.raises(demo.DemoError, match="an option twice, or the option 'method'"):
            demo.line_up_text([text])


def test_a_demonstration_goes_on_with_the_same_settings_and_begins_anew_with_others(tmp_path):
    def prepared(**options):
        own = demo.Demo(tmp_path / "run", clients=2, **({"samples": 40} | options))
        demo.prepare(own)
        kept = (own.output / "checkpoint.pt").exists()
        own.output.mkdir(exist_ok=True)
        (own.output / "checkpoint.pt").touch()
        return kept

    assert not prepared()
    assert prepared()
    assert not prepared(samples=60)
    assert not prepared(samples=60, config={"rounds": 7})
    assert prepared(samples=60, config={"rounds": 7})


def test_a_folder_of_a_demonstration_can_be_used_again(tmp_path):
    for count in (2, 4):
        own = demo.Demo(tmp_path / "run", clients=count, samples=40)
        demo.prepare(own)
        assert len(list((own.folder / "keys").glob("*.pub"))) == count
        running = demo.Running(own)
        assert len(str(running.sockets / "client-00.socket")) < 100
        running.stop()
        assert not running.sockets.exists()


# --- The process beside the data ------------------------------------------------------------------


@pytest.fixture
def beside(clients):
    """A resident process with the data of client 3; its socket."""
    _, folder = clients
    # Not in a folder of pytest: macOS allows 104 characters for the path of a socket
    with tempfile.TemporaryDirectory(prefix="cflkit-") as short:
        private = Path(short) / "hospital-3.key"
        private.write_text("a node's private key")
        own = Path(short) / "hospital-3.socket"
        command = [sys.executable, "-m", "cflkit.flower.resident", str(own), "--client", "3"]
        command += ["--data", str(folder / "3.npz")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"client 3 listens\n"
        yield own
        assert private.read_text() == "a node's private key"
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_resident_process_tells_at_once_that_its_file_is_wrong(tmp_path):
    wrong = tmp_path / "client.npz"
    np.savez(wrong, train_images=np.zeros((2, 8, 8)))
    command = [sys.executable, "-m", "cflkit.flower.resident", str(tmp_path / "socket")]
    command += ["--client", "0", "--data", str(wrong)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert f"{wrong} needs train_labels" in ended.stderr
    assert not (tmp_path / "socket").exists()


@pytest.mark.slow
def test_a_resident_process_answers_and_outlives_errors_and_peers_that_hang_up(beside):
    setting = Setting(CLIENTS, "linear", (1, 8, 8), 10, TRAINING).sent()
    hello, wrong = (packed({"kind": kind, "setting": setting}) for kind in ("hello", "goodbye"))
    for _ in range(2):
        said = unpacked(resident.passed_on(beside, hello))["answer"]
        assert said["client"] == 3 and said["samples"]["train"] > 0
        with pytest.raises(RuntimeError, match="KeyError: 'goodbye'"):
            resident.passed_on(beside, wrong)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(beside))
        with pytest.raises(AuthenticationError):
            Client(str(beside), authkey=b"another key")
        with Client(str(beside), authkey=resident.key_of(beside).read_bytes()):
            pass  # and nothing is asked


@pytest.mark.network
def test_fifteen_processes_give_the_models_of_the_simulation(tmp_path):
    more = settings(METHODS, rounds=3)
    own = demo.Demo(tmp_path / "run", version="backdoor", clients=15, samples=30, config=more)
    table = demo.run(own, limit=1200)
    assert table["method"].tolist() == list(METHODS)
    assert table["equal"].all(), table.to_string()
    assert (table["clusters"] > 1).all(), "models of clusters have been trained"
    messages = pd.read_csv(own.output / "messages.csv", keep_default_na=False)
    assert set(messages["kind"]) == {"hello", "losses", "train", "ask", "scores"}
    counts = messages.groupby(["client", "direction"]).size().unstack()
    assert (counts.loc[0:, "down"] == counts.loc[0:, "up"]).all()


@pytest.mark.network
def test_killed_processes_cost_a_round_at_most(tmp_path):
    """A node is killed; then all are killed, and new processes go on from the checkpoint."""
    line_up = {"IFCA": {"method": "ifca", "k": 2}}
    own = demo.Demo(
        tmp_path / "run",
        clients=4,
        samples=40,
        # A request takes about 12 seconds on two cores, and a late answer would be none
        config=settings(line_up, rounds=5, absent="leave", timeout=120.0),
    )
    demo.prepare(own)
    running = demo.Running(own)
    done = own.output / "checkpoint.pt"
    try:
        running.start()
        running.submit()
        wait_for(done.exists, 600)
        running.kill("client-03")
        running.kill("client-03-data")
        before = done.stat().st_mtime
        wait_for(lambda: done.stat().st_mtime > before, 600)
        running.stop()
        running.start()
        assert running.wait(running.submit(), 1200) == "finished:completed"
    finally:
        running.stop()
    table = pd.read_csv(own.output / "rounds.csv")
    assert table["round"].tolist() == [1, 2, 3, 4, 5] and table["accuracy"].notna().all()
    messages = pd.read_csv(own.output / "messages.csv")
    last = messages[(messages["round"] == 5) & (messages["kind"] == "train")]
    assert set(last["client"]) == {0, 1, 2, 3}, "the node that was killed takes part again"


def wait_for(condition, limit):
    """Wait until something is true."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)


@pytest.mark.slow
def test_the_command_runs_a_federation(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cflkit",
            "federate",
            str(tmp_path / "run"),
            "--clients",
            "2",
            "--rounds",
            "1",
            "--methods",
            "fedavg",
            "--samples",
            "40",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,  # not a measure of speed: clients that never meet would wait for ever
    )
    assert done.returncode == 0, done.stderr
    assert "the models are equal to those of the simulation, bit for bit" in done.stdout
