"""The two doors of a real federation: what a node answers a server, and what a server takes."""

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from cflkit import methods
from cflkit.datasets import DatasetError
from cflkit.federation import ClientsAbsent, Diverged, Jobs
from cflkit.flower import answers, demo, server_app
from cflkit.flower.agreement import Agreement
from cflkit.flower.client_file import federation_of
from cflkit.flower.messages import packed, unpacked
from cflkit.flower.node import Node, Refused
from cflkit.flower.remote import converse_with_present, sent_jobs
from cflkit.methods.base import all_pairs
from cflkit.simulation.lockstep import converse
from tests.test_contract import OPTIONS
from tests.test_flower import (
    CLIENTS,
    ELSEWHERE,
    SETTING,
    Grid,
    Output,
    clients,
    made,
    remote,
    replaced,
    run,
)

__all__ = ["clients"]  # a fixture
ROOT = Path(__file__).parent.parent
WIDTH = 650  # of the linear model
AGREED = Agreement(SETTING, made("ifca", "pacfl", ifca={"k": 2}), 3)

# --- What a node answers --------------------------------------------------------------------------


def asked(method, models, client=0):
    """Write the first request of a method besides training, as a server sends it to one client."""
    request = methods.make(method, **OPTIONS.get(method, {})).asks()[0]
    jobs = all_pairs(models, torch.tensor([client]))
    content = {"setting": dataclasses.asdict(SETTING), "options": dict(request.options)}
    if hasattr(request, "question"):
        more = {"kind": "ask", "question": answers.name_of(request.question)}
    else:
        more = {"kind": "losses", "split": request.split, "told": answers.name_of(request.told)}
    return content | more | {"jobs": sent_jobs(jobs)}


def training(**columns):
    jobs = Jobs(torch.zeros(1, WIDTH), torch.tensor([0]), torch.tensor([0]), **columns)
    setting = dataclasses.asdict(SETTING)
    return {"kind": "train", "setting": setting, "jobs": sent_jobs(jobs), "order": 0}


def scoring(**changes):
    models, keys = torch.zeros(1, WIDTH), [b"one"]
    mixtures, setting = [((b"one", 1.0),)], dataclasses.asdict(SETTING)
    base = {"kind": "scores", "models": models, "keys": keys, "mixtures": mixtures, "split": "test"}
    return base | {"setting": setting} | changes


def answer(clients, request, agreed=AGREED, seed=0):
    """Send a request to the node of client 0; return its answer."""
    content = request if isinstance(request, RecordDict) else packed(request)
    return unpacked(Node(0, clients[1] / "0.npz", agreed, seed).answered(content))["answer"]


def test_a_server_cannot_read_samples_with_crafted_models(clients, caplog):
    """The attack: the losses of as many models as there are pixels, each of which looks at one."""
    models = torch.zeros(65, WIDTH)
    models[0, 640:] = torch.arange(10.0)
    models[range(1, 65), range(64)] = 1.0
    attack = asked("fedem", models)
    whole = answer(clients, attack, Agreement(SETTING, made("fedem", fedem={"k": 64}), 1))
    assert len(whole) == 65 and len(whole[0]) > 20, "whoever agrees to FedEM tells all losses"
    for agreed in (AGREED, dataclasses.replace(AGREED, methods=made("fedavg"))):
        with pytest.raises(Refused, match="client 0 refuses a message of the server"):
            answer(clients, attack, agreed)
        assert "client 0 refuses" in caplog.messages[-1]
    with pytest.raises(Refused, match="none of the agreed methods asks for losses of samples"):
        answer(clients, asked("fedem", models[:2]))
    with pytest.raises(Refused, match="1 to 5 rows"):
        answer(clients, asked("ifca", models))
    told = answer(clients, asked("ifca", models[:2]))
    assert [row.dtype for row in told] == [torch.bool] * 2 and sum(told) == 1, "a choice alone"


def nested(request, *path, value):
    """Return a request with another value at a place."""
    name, *rest = path
    own = nested(request[name], *rest, value=value) if rest else value
    return request | {name: own}


TRAIN, IFCA, PACFL = (
    training(),
    asked("ifca", torch.rand(2, WIDTH)),
    asked("pacfl", torch.empty(1, 0)),
)


@pytest.mark.parametrize(
    "request_, reason",
    [
        (nested(TRAIN, "setting", "model", value="perceptron"), "model is 'perceptron' and not 'l"),
        (nested(TRAIN, "setting", "training", "epochs", value=9), "epochs is 9 and not 1"),
        (nested(TRAIN, "setting", "shape", value=(1, 8, 9)), "shape is"),
        (nested(TRAIN, "order", value=3), "no round 3"),
        (nested(TRAIN, "order", value=True), "no round True"),
        (nested(TRAIN, "jobs", "training", value={"batch_size": 1}), "its local training is not"),
        (nested(TRAIN, "jobs", "models", value=torch.zeros(1, WIDTH).double()), "of float32"),
        (nested(TRAIN, "jobs", "model_of", value=torch.tensor([1])), "with one of the models"),
        (training(subset=[torch.tensor([3])]), "sends 'subset' for each job"),
        (training(weights=[torch.eye(32)[0]]), "sends 'weights' for each job"),
        (training(anchor=[torch.zeros(3)]), "'anchor' has a wrong form"),
        (nested(IFCA, "split", value="test"), "of the split 'test'"),
        (nested(IFCA, "told", value=None), "asks for losses of samples"),
        (nested(PACFL, "options", "p", value=64), "with {'p': 64"),
        (nested(PACFL, "question", value="os.system"), "asks for 'os.system'"),
        (scoring(split="train"), "not evaluated on the split 'train'"),
        (scoring(split="central"), "not evaluated on the split 'central'"),
        (scoring(mixtures=[((b"two", 1.0),)]), "a mixture must be pairs"),
        (scoring(keys=[]), "each model needs a key of its own"),
        ({"setting": None, "kind": "hello"}, "cannot be read"),
        ({"kind": "hello"}, "cannot be read"),
        (RecordDict(), "cannot be read"),
    ],
)
def test_a_node_refuses_what_its_owner_has_not_agreed_to(clients, request_, reason):
    with pytest.raises(Refused) as caught:
        answer(clients, request_)
    told = str(caught.value)
    assert told.startswith("client 0 refuses a message of the server: ") and reason in told
    assert "\n" not in told and len(told) < 500


def test_a_node_answers_as_often_as_the_agreed_run_can_need(clients):
    agreed = Agreement(SETTING, made("ifca", ifca={"k": 2}), 1)
    own = Node(0, clients[1] / "0.npz", agreed)
    for request in [IFCA] * agreed.messages + [TRAIN | {"kind": "hello"}]:
        own.answered(packed(request))
    with pytest.raises(Refused, match="twice what the agreed run can need"):
        own.answered(packed(IFCA))


def test_embeddings_are_not_told_without_a_shared_seed(clients):
    agreed = Agreement(SETTING, made("emd-cfl"), 1)
    with pytest.raises(ValueError, match="with a shared seed; give --shared-seed"):
        Node(0, clients[1] / "0.npz", agreed)
    assert agreed.hidden and not AGREED.hidden


def test_the_owner_of_a_node_is_told_what_it_will_tell(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("methods = '{A: {method: fedem}, B: {method: emd-cfl}}'\nrounds = 7")
    lines = Agreement.read(path).lines()
    assert lines[0].endswith("in 7 rounds, and tells models and scores, for A, B")
    assert any("the loss of each sample. Everything" in line for line in lines)
    path.write_text("round = 7")
    with pytest.raises(ValueError, match=r"settings\.toml has unknown settings: round"):
        Agreement.read(path)


TRAINED = (
    "trained models",
    "The difference between the trained and the received model can give away samples, above all if "
    "a client has few samples or trains for few steps.",
)


def table(line_up):
    """Write what clients of methods tell, and what a curious server can learn, in Markdown."""
    found: dict[tuple[str, str], list[str]] = {TRAINED: ["all methods"]}
    for name, method in line_up.items():
        for told in answers.told_by(method):
            found.setdefault(told, []).append(name)
    head = "| method | what a client tells | what a curious server can learn |\n|---|---|---|\n"
    return head + "".join(
        f"| {', '.join(names)} | {' | '.join(told)} |\n" for told, names in found.items()
    )


def test_the_page_says_what_each_method_s_clients_tell():
    line_up = {name: methods.make(name, **OPTIONS.get(name, {})) for name in ELSEWHERE}
    page = (ROOT / "notebooks" / "a_real_federation.md").read_text(encoding="utf-8")
    needed = table(line_up)
    assert needed in page, f"the page needs this table:\n{needed}"


# --- Classes --------------------------------------------------------------------------------------

PIXELS = np.full((3, 8, 8), 0.5, dtype=np.float32)
NAMED = dataclasses.replace(SETTING, classes=3, names=("cat", "dog", "emu"))


def client_file(folder, train, test):
    arrays = {"train_labels": np.array(train), "test_labels": np.array(test)}
    path = folder / "own.npz"
    np.savez(path, train_images=PIXELS[: len(train)], test_images=PIXELS[: len(test)], **arrays)
    return path


def test_classes_have_the_numbers_of_the_federation(tmp_path):
    path = client_file(tmp_path, ["emu", "dog", "emu"], ["dog"])
    own = federation_of(NAMED, path, 0)
    assert own.targets(0, "train").tolist() == [2, 1, 2] and own.targets(0, "test").tolist() == [1]
    config = Output(tmp_path, classes="cat, dog , emu").run_config
    assert Agreement.of(config).setting.names == NAMED.names
    with pytest.raises(ValueError, match="classes must be different names, not 'cat, cat'"):
        Agreement.of(config | {"classes": "cat, cat"})


@pytest.mark.parametrize(
    "setting, labels, reason",
    [
        (NAMED, ["emu", "fox", "emu"], "train_labels have 'fox', but the classes are"),
        (NAMED, [0, 1, 0], "train_labels have '0', but the classes are 'cat', 'dog', 'emu'"),
        (SETTING, ["emu", "dog", "emu"], "that of its class in the federation"),
        (SETTING, [0.0, 1.0, 0.0], "give one whole number per sample, as .*astype"),
        (SETTING, [0, 10, 0], "labels from 0 to 10; they must be from 0 to 9"),
        (SETTING, [0, -1, 0], "labels from -1 to 0; they must be from 0 to 9"),
    ],
)
def test_a_client_does_not_number_its_classes_itself(tmp_path, setting, labels, reason):
    path = client_file(tmp_path, labels, labels[:1])
    with pytest.raises(DatasetError, match=reason) as caught:
        federation_of(setting, path, 0)
    assert "np.unique" not in str(caught.value)


# --- What a server takes --------------------------------------------------------------------------

FINE = {"train": 30, "test": 10, "validation": 8, "backdoor": 0}


@pytest.mark.parametrize(
    "said",
    [
        {"client": 2, "samples": FINE | {"train": -5}},
        {"client": 2, "samples": FINE | {"train": 0}},
        {"client": 2, "samples": {"train": 30}},
        {"client": 2, "samples": FINE | {"train": 10**30}},
        {"client": 2, "samples": FINE | {"test": True}},
        {"client": 2, "samples": FINE | {"validation": "x"}},
        {"client": 2, "samples": FINE | {"another": 1}},
        {"client": True, "samples": FINE},
        {"client": 2.0, "samples": FINE},
        {"client": 2, "samples": FINE, "more": 1},
        {"client": 2},
        {"client": 9, "samples": FINE},
        *([2, FINE], {}, None),
    ],
)
def test_a_false_hello_is_refused(clients, said):
    grid = Grid(clients[1])
    grid.spoil = replaced("hello", said, number=0)
    with pytest.raises(ClientsAbsent, match="client 2: its hello was refused"):
        remote(clients[1], grid, wait=0.0)


def test_a_key_belongs_to_one_client(clients):
    """The node of client 3 says that it is client 2, before client 2 does."""
    grid = Grid(clients[1])
    remote(clients[1], grid)
    grid.data[103] = grid.data[102]
    grid.data[999] = grid.data[103]
    with pytest.raises(ClientsAbsent, match=r"\(client 3: .* it is client 2, with the key of cl"):
        remote(clients[1], grid, wait=0.0)
    for given in ("", "1, 2", ", ".join("1" * CLIENTS), "1, 2, 3, 4, 5, x"):
        with pytest.raises(ValueError, match="nodes must be the numbers that 'flwr supernode reg"):
            server_app.numbers_of({"nodes": given, "clients": CLIENTS})


# --- Processes ------------------------------------------------------------------------------------


def test_two_runs_do_not_share_a_folder(clients, tmp_path):
    one, other = (demo.Demo(tmp_path / "run", clients=2, samples=40) for _ in range(2))
    one.prepare()
    with pytest.raises(demo.DemoError, match="another run uses"):
        other.prepare()
    one.stop()
    other.prepare()
    output = Output(tmp_path)
    lock = server_app.filelock.FileLock(tmp_path / ".lock")
    with lock, pytest.raises(RuntimeError, match="another run writes into"):
        server_app.main(output.grid(clients[1]), output)
    other.stop()


def test_a_process_that_has_ended_ends_the_wait_with_its_log(tmp_path, monkeypatch):
    own = demo.Demo(tmp_path, clients=1)
    own.processes["client-00-data"] = subprocess.Popen([sys.executable, "-c", ""])
    own.processes["client-00-data"].wait()
    (tmp_path / "client-00-data.log").write_text("first\nAF_UNIX path too long\n")
    with pytest.raises(demo.DemoError, match=r"client-00-data has ended; .*AF_UNIX path too long"):
        own.wait("1")
    own.processes.clear()


@pytest.mark.slow
def test_a_killed_demonstration_leaves_no_process_and_no_socket(tmp_path):
    """A demonstration starts a process, and is killed; its guard ends what it has started."""
    code = textwrap.dedent(f"""
        import os, signal, sys, pathlib
        from cflkit.flower import demo
        demo.Demo.submit = lambda self: None
        demo.Demo.flwr = lambda self, *command: {{"node-id": 1}}
        demo.answers = lambda port: True
        launch = demo.Demo.launch
        demo.Demo.launch = lambda self, name, *command: launch(self, name, "sleep", "600")
        own = demo.Demo(pathlib.Path({str(tmp_path / "run")!r}), clients=2, samples=40)
        own.prepare()
        own.start()
        print(own.sockets, *(process.pid for process in own.processes.values()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    sockets, *processes = done.stdout.split()
    assert len(processes) == 5
    end = time.time() + 20
    while time.time() < end and (Path(sockets).exists() or any(map(alive, processes))):
        time.sleep(0.1)
    assert not Path(sockets).exists()
    assert not any(map(alive, processes))


def alive(process):
    """Whether a process runs; one that has ended, and waits to be asked for, does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(process), 0)
        stat = Path(f"/proc/{process}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# --- Anything -------------------------------------------------------------------------------------

INPUTS = 500
LEAVES = [None, True, -1, 0, 1, 7, 2**63, 10**30, 0.5, -1.0, 1e30, np.nan, np.inf, "", "test", "x"]
LEAVES += [b"", b"one", [], (), {}, [[]], {"a": 1}, ((b"one", 1.0),), torch.tensor(1.0)]
TYPES = [np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex64]
FILLS = [np.nan, np.inf, 1e38, 1e30, 1e9, -1, 0, 2]


def changed_array(array, rng):
    """Change the type, the shape or the values of an array."""
    own = np.asarray(array).copy()
    match rng.randrange(5):
        case 0:
            with np.errstate(invalid="ignore"):
                own = own.astype(rng.choice(TYPES))
        case 1:
            own = np.atleast_1d(own)
            own = rng.choice([own[None], own[..., :-1], own[:0], own.reshape(-1)])
        case 2:
            with np.errstate(all="ignore"):
                own = np.full(own.shape, rng.choice(FILLS)).astype(own.dtype)
        case 3 if own.size:
            with np.errstate(all="ignore"):
                value = np.array(rng.choice(FILLS)).astype(own.dtype)
                own.reshape(-1)[rng.randrange(own.size)] = value
        case 4:
            return own if isinstance(array, torch.Tensor) else torch.from_numpy(own.copy())
    return torch.from_numpy(own.copy()) if isinstance(array, torch.Tensor) else own


def changed(value, rng):
    """Change something in a value, however deep."""
    if rng.random() < 0.15:
        return rng.choice(LEAVES)
    if isinstance(value, torch.Tensor | np.ndarray):
        return changed_array(value, rng)
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        if rng.random() < 0.15:
            return {key: own for key, own in value.items() if key != name}
        return value | {name: changed(value[name], rng)}
    if isinstance(value, list | tuple) and value:
        parts = list(value)
        place = rng.randrange(len(parts))
        part = parts[place]
        parts[place : place + 1] = rng.choice([[], [part] * 2, [changed(part, rng)]])
        return type(value)(parts)
    return rng.choice(LEAVES)


def damaged(content, rng):
    """Change the bytes of a message."""
    text = str(content["values"]["json"])
    arrays = dict(content["arrays"].items())
    if arrays and rng.random() < 0.5:
        name = rng.choice(list(arrays))
        own = arrays[name]
        shape = rng.choice([(), (2**40,), tuple(own.shape), (-1,)])
        data = rng.choice([b"", own.data[:-3], rng.randbytes(len(own.data))])
        arrays[name] = Array(rng.choice([own.dtype, "object", "x"]), shape, own.stype, data)
    else:
        place = rng.randrange(len(text))
        broken = rng.choice(["", "{", "[" * 3000, '"', "1e999", "9"])
        text = text[:place] + broken + text[place + 1 :]
    return RecordDict({"arrays": ArrayRecord(arrays), "values": ConfigRecord({"json": text})})


def crafted(value, rng):
    """Return the content of a message with some changes, also of none."""
    for _ in range(rng.randrange(4)):
        value = changed(value, rng)
    content = packed(value if isinstance(value, dict) else {"answer": value})
    return damaged(content, rng) if rng.random() < 0.1 else content


@pytest.mark.nightly
def test_a_node_answers_or_refuses_whatever_a_server_sends(clients):
    """Each answer has a form that the agreement allows."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    line_up = {name: methods.make(name, **OPTIONS[name]) for name in ("ifca", "pacfl", "fedsoft")}
    agreed = Agreement(SETTING, line_up, 3)
    hello = {"kind": "hello", "setting": TRAIN["setting"]}
    fedsoft = asked("fedsoft", torch.rand(2, WIDTH))
    pulled = training(anchor=[torch.zeros(WIDTH)])
    pulled["jobs"]["training"] = dataclasses.asdict(
        dataclasses.replace(SETTING.training, penalty="proximal", strength=0.1)
    )
    bases = [hello, TRAIN, pulled, IFCA, fedsoft, PACFL, scoring()]
    given = refused = 0
    while given + refused < INPUTS:
        content = crafted(rng.choice(bases), rng)
        try:
            told = answer(clients, content, agreed)
        except Refused as error:
            refused += 1
            assert str(error).startswith("client 0 refuses a message of the server: "), seed
            assert "\n" not in str(error), seed
            continue
        given += 1
        match unpacked(content)["kind"]:
            case "hello":
                assert told.keys() == {"client", "samples"}, seed
            case "train":
                assert told.shape[1] == WIDTH and len(told) <= agreed.jobs, seed
            case "losses":
                assert all(row.ndim == 0 for row in told), seed
            case "ask":
                assert all(own.shape[0] == 64 and own.shape[1] <= 30 for own in told), seed
            case "scores":
                assert all(0 <= score <= 1 for pair in told for score in pair), seed
    assert given > INPUTS / 20 and refused > INPUTS / 4, "both kinds are tried"


ASKING = ["fedavg", "ifca", "fedsoft", "fedce", "fedem", "pacfl", "signatures", "cfl-gp", "emd-cfl"]
ASKING += ["fedsac", "ocfl"]


@pytest.mark.nightly
def test_a_server_uses_or_refuses_whatever_a_node_sends(clients, monkeypatch):
    """Client 2 changes an answer; the run goes on with numbers, or ends with its name."""
    monkeypatch.setattr("cflkit.flower.nodes.log", lambda *told: None)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ended = 0
    for _ in range(INPUTS):
        name, kind = rng.choice(ASKING), rng.choice(["hello", "train", "losses", "ask", "scores"])
        method = methods.make(name, **OPTIONS.get(name, {}))
        leave = method.partial and rng.random() < 0.5
        grid = Grid(clients[1])
        grid.spoil = replaced(kind, lambda own: crafted({"answer": own}, rng), number=0)
        try:
            nodes = remote(clients[1], grid, absent_allowed=leave, wait=0.0, timeout=0.5)
            way = converse_with_present if leave else converse
            table = run({name: method}, nodes, 2, converse=way)
        except ClientsAbsent as error:
            ended += 1
            assert "(client 2: " in str(error) and "\n" not in str(error), (seed, str(error))
        except (Diverged, ValueError) as error:  # it has too few samples for the method
            ended += 1
            assert "clients [2]" in str(error), (seed, str(error))
        else:
            accuracy = table["accuracy"].dropna()
            assert ((accuracy >= 0) & (accuracy <= 1)).all(), seed
    assert ended > INPUTS / 20
