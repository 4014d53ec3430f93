"""Who may enter a real federation, and its processes; the last tests start real ones, over TLS."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import ssl
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import click
import httpx
import numpy as np
import pandas as pd
import psutil
import pytest
import torch

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.superlink.main import create_app

from cflkit import simulation
from cflkit.__main__ import main
from cflkit.datasets import DatasetError
from cflkit.flower import demo, keys, node, server_app
from cflkit.flower.door import CALLS, door
from cflkit.flower.settings import APP, Settings
from cflkit.partition import PartitionError
from tests.test_flower import Grid, clients, output

__all__ = ["clients"]  # a fixture
ROOT = Path(__file__).parent.parent
SMALL = {"clients": 2, "partition": "quarter-turn:samples=40", "methods": "fedavg"}

# --- Keys and secrets -----------------------------------------------------------------------------


def test_keys_are_their_owners_alone_and_a_server_is_known_by_its_authority(tmp_path):
    for name in ("site.one", "server"):  # the points belong to names
        (tmp_path / f"{name}.key").touch(mode=0o644)
    keys.write_certificates(tmp_path, "federation.example.org", "192.0.2.7")
    keys.write_key_pair(tmp_path / "site.one")
    assert (tmp_path / "site.one.pub").exists()
    for name in ("site.one", "server"):
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o777 == 0o600
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    for name in ("federation.example.org", "192.0.2.7", "localhost", "127.0.0.1"):
        one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = client.wrap_bio(one, other, server_hostname=name)
        far = server.wrap_bio(other, one, server_side=True)
        for side in (near, far, near):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        assert near.getpeercert()["subject"] == ((("commonName", "federation.example.org"),),)


def test_a_secret_is_long_and_no_other_file_is_taken_for_one(tmp_path):
    path = tmp_path / "secret"
    for _ in range(2):
        keys.write_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.read_secret(path) > 2**200
    for weak in ("81349", "0" * 63, "z" * 64, ""):
        path.write_text(weak)
        with pytest.raises(ValueError, match="has not the 64 digits of a secret"):
            keys.read_secret(path)


def test_keys_are_made_by_a_command(tmp_path):
    command = [sys.executable, "-m", "cflkit.flower.keys"]
    for what in (["secret", "s"], ["node", "a"], ["certificates", "c", "localhost"]):
        assert subprocess.run([*command, *what], cwd=tmp_path).returncode == 0
    assert {"s", "a.key", "a.pub", "c"} <= {path.name for path in tmp_path.iterdir()}
    wrong = subprocess.run([*command, "secrets"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "keys secret clients.secret" in wrong.stderr


# --- The door -------------------------------------------------------------------------------------


def test_the_door_passes_on_the_calls_of_nodes_with_keys_and_nothing_else(tmp_path):
    keys.write_certificates(tmp_path, "localhost")
    [port] = demo.free_ports(1)  # where nothing listens
    program = door(f"127.0.0.1:{port}", tmp_path / "ca.crt")
    paths = {*create_app().openapi()["paths"], "/", "/docs", "/openapi.json"}
    paths |= {"/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"}
    passed = {f"/v1/fleet/{call}" for call in CALLS.split()}
    assert passed < paths and "/v1/control/start-run" in paths, "Flower's own names"
    assert not passed & {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}

    async def statuses(method):
        transport = httpx.ASGITransport(program)
        async with httpx.AsyncClient(transport=transport, base_url="https://door") as stranger:
            calls = {path: await stranger.request(method, path, content=b"x") for path in paths}
        return {path: answer.status_code for path, answer in calls.items()}

    posted, got = asyncio.run(statuses("POST")), asyncio.run(statuses("GET"))
    assert {path for path, status in posted.items() if status == 502} == passed
    assert {*posted.values(), *got.values()} == {404, 405, 502} and 502 not in got.values()


# --- What the owner of a node reads ---------------------------------------------------------------


def served(folder, port):
    """Start a door, and wait until it answers."""
    command = [sys.executable, "-m", "cflkit.flower.door", str(folder), "--port", str(port)]
    process = subprocess.Popen([*command, "--superlink", "127.0.0.1:1"])
    end = time.time() + 60
    while not demo.answers(port) and time.time() < end:
        time.sleep(0.1)
    return process


@pytest.mark.slow
def test_an_owner_reads_why_a_server_is_not_the_right_one(tmp_path):
    """A foreign authority, an expired certificate, other names, and a server that is not there."""
    for name, days in (("own", 30), ("foreign", 30), ("expired", -0.5)):
        keys.write_certificates(tmp_path / name, "localhost", days=days)
    keys.write_key_pair(tmp_path / "site")
    ports, key = demo.free_ports(2), tmp_path / "site.key"
    held = zip(("own", "expired"), ports, strict=True)
    doors = [served(tmp_path / name, port) for name, port in held]
    try:
        for port, authority, host, reason in (
            (ports[0], "foreign", "127.0.0.1", "another authority has signed its certificate"),
            (ports[1], "expired", "127.0.0.1", "its certificate has expired"),
            (ports[0], "own", "127.0.0.2", "its certificate is for other names"),
        ):
            server = f"{host}:{port}"
            with pytest.raises(ValueError, match=f"^{server} does not let this node in: {reason}"):
                node.ask(server, tmp_path / authority / "ca.crt", key)
        with pytest.raises(ValueError, match=r"does not let this node in: no answer: .*502"):
            node.ask(f"127.0.0.1:{ports[0]}", tmp_path / "own" / "ca.crt", key, patience=0)
    finally:
        for process in doors:
            process.kill()
            process.wait()


REFUSALS = {401: "it does not accept the key's signature: is a clock wrong"}
REFUSALS |= {404: "it is no server of a federation"}
REFUSALS |= {409: "it does not know the key .*site.key: its operator must register the .pub file"}


@pytest.mark.parametrize("status, reason", REFUSALS.items())
def test_an_owner_reads_why_a_key_is_refused(tmp_path, monkeypatch, status, reason):
    keys.write_certificates(tmp_path, "localhost")
    keys.write_key_pair(tmp_path / "site")
    answer = httpx.Response(status, request=httpx.Request("POST", "https://h/"))
    call = lambda *given: answer.raise_for_status()  # noqa: E731
    monkeypatch.setattr(node.FleetHttpClient, "ActivateNode", call)
    with pytest.raises(ValueError, match=f"h:1 does not let this node in: {reason}"):
        node.ask("h:1", tmp_path / "ca.crt", tmp_path / "site.key", patience=0)


def test_an_owner_reads_what_a_server_can_do_and_the_node_starts(
    clients, tmp_path, monkeypatch, capsys
):
    keys.write_certificates(tmp_path, "localhost")
    keys.write_key_pair(tmp_path / "site")
    keys.write_secret(tmp_path / "secret")
    started, beside = [], []
    monkeypatch.setattr(node, "ask", lambda *given: None)
    monkeypatch.setattr(node.subprocess, "Popen", beside.append)
    monkeypatch.setattr(node.os, "execv", lambda program, given: started.append(given))
    monkeypatch.setattr(node.os, "environ", dict(os.environ))
    given = ["h:8000", "--client", "3", "--data", str(clients[1] / "3.npz")]
    given += ["--key", str(tmp_path / "site.key"), "--authority", str(tmp_path / "ca.crt")]
    node.main([*given, "--secret", str(tmp_path / "secret")], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "Agree only with a server that you trust." in said and "84 % of 180 digits" in said
    assert node.os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    [command], [answering] = started, beside
    assert command[-2:] == ["--isolation", "process"]
    assert answering[-2:] == ["127.0.0.1:9094", str(os.getpid())], "it ends with this process"
    config = command[command.index("--node-config") + 1]
    assert config.startswith("client=3 data=") and keys.read_secret(tmp_path / "secret")
    assert (tmp_path / "secret").read_text() not in " ".join(command), "the path alone"
    (tmp_path / "secret").write_text("81349")
    with pytest.raises(click.ClickException, match="64 digits"):
        node.main([*given, "--secret", str(tmp_path / "secret")], standalone_mode=False)
    np.save(tmp_path / "x.npy", np.zeros(3))
    given[given.index("--data") + 1] = str(tmp_path / "x.npy")
    with pytest.raises(click.ClickException, match=r"is no \.npz file"):
        node.main(given, standalone_mode=False)


# --- The demonstration ----------------------------------------------------------------------------


IMPOSSIBLE = {"methods": ("fedavgg", "unknown method 'fedavgg'"), "dataset": ("digit", "digit")}
IMPOSSIBLE |= {"partition": ("upside-down", "unknown version 'upside-down'")}
IMPOSSIBLE |= {"clients": (3, "clients must be a multiple")}


MISTYPED = [
    ("methods", "ifca:4", "needs OPTION=VALUE, not 4"),
    ("partition", "quarter-turn:200", "needs OPTION=VALUE, not 200"),
    ("partition", "iid:samples=40", "partition: .*'samples'"),
    ("partition", "ocfl", "partition: .*'overlap'"),
]


@pytest.mark.parametrize(
    "setting, value, reason", [*((name, *what) for name, what in IMPOSSIBLE.items()), *MISTYPED]
)
def test_a_demonstration_that_cannot_be_says_why_before_it_starts(tmp_path, setting, value, reason):
    with pytest.raises((DatasetError, PartitionError, ValueError), match=reason):
        demo.Demo(tmp_path / "run", {setting: value}).prepare()


def test_one_other_bit_of_a_model_is_told(tmp_path, monkeypatch):
    run = demo.Demo(tmp_path / "run", SMALL | {"methods": "fedavg; local", "rounds": 1})
    federation, settings = run.prepare(), Settings.of(run.config)
    simulation.run(settings.methods, federation, 1, progress=False)
    names = "models", "mixture"
    models = {
        name: dict(zip(names, method.client_models(), strict=True))
        for name, method in settings.methods.items()
    }
    row = models["local"]["models"][1]
    row[5] = torch.nextafter(row[5], torch.tensor(9.0))
    run.output.mkdir()
    torch.save(models, run.output / "models.pt")
    (run.output / "rounds.csv").write_text("method,accuracy\nfedavg,0.5\nlocal,0.5\n")
    for name, value in (("start", None), ("submit", "1"), ("wait", "finished:completed")):
        monkeypatch.setattr(run, name, lambda *_, value=value: value)
    assert run.run(federation)["equal"].tolist() == [True, False]


def test_a_demonstration_leaves_the_folder_of_somebody_else_as_it_is(tmp_path):
    thesis = tmp_path / "output" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.touch()
    with pytest.raises(demo.DemoError, match="has other files; name a new or an empty folder"):
        demo.Demo(tmp_path, SMALL).prepare()
    assert thesis.exists()


def test_a_demonstration_goes_on_with_the_same_settings_and_begins_anew_with_others(tmp_path):
    checkpoint = tmp_path / "run" / "output" / "checkpoint.pt"

    def prepared(**config):
        secret = demo.Demo(tmp_path / "run", SMALL | config).prepare().shared_seed
        kept = checkpoint.exists()
        checkpoint.parent.mkdir(exist_ok=True)
        checkpoint.touch()
        return kept, secret

    (new, first), (again, second), (other, third) = prepared(), prepared(), prepared(rounds=7)
    assert (new, again, other) == (False, True, False)
    assert first == second != third
    assert prepared(rounds=7)[0]


def test_two_runs_do_not_share_a_folder(clients, tmp_path):
    one, other = (demo.Demo(tmp_path / "run", SMALL) for _ in range(2))
    one.prepare()
    with pytest.raises(demo.DemoError, match="another run uses"):
        other.prepare()
    one.stop()
    other.prepare()
    other.stop()
    lock = server_app.filelock.FileLock(tmp_path / ".lock")
    with lock, pytest.raises(server_app.filelock.Timeout):
        server_app.main(Grid(clients[1]), output(tmp_path))


def test_a_process_that_has_ended_ends_the_wait_with_its_log(tmp_path):
    own = demo.Demo(tmp_path, SMALL)
    own.processes["client-00"] = subprocess.Popen([sys.executable, "-c", ""])
    own.processes["client-00"].wait()
    (tmp_path / "client-00.log").write_text("first\nits certificate has expired\n")
    with pytest.raises(demo.DemoError, match=r"client-00 has ended; .*certificate has expired"):
        own.wait("1")
    own.processes.clear()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, a killed demonstration leaves them")
def test_a_killed_demonstration_leaves_no_process(tmp_path):
    code = textwrap.dedent(f"""
        import os, signal, pathlib
        from cflkit.flower import demo
        own = demo.Demo(pathlib.Path({str(tmp_path / "run")!r}), {SMALL!r})
        own.prepare()
        for name in own.names:
            own.launch(name, "sleep", 600)
        print(*(process.pid for process in own.processes.values()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    end = time.time() + 20
    while time.time() < end and any(map(alive, done.stdout.split())):
        time.sleep(0.1)
    assert len(done.stdout.split()) == 2 and not any(map(alive, done.stdout.split()))


def alive(process):
    """Whether a process runs; one that has ended, and waits to be asked for, does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(int(process)).status() != psutil.STATUS_ZOMBIE
    return False


def test_the_command_tells_whether_the_models_are_equal(tmp_path, monkeypatch, capsys):
    command = ["federate", str(tmp_path / "run"), "--clients", "2", "--samples", "40"]
    told, failed = [True, False], demo.DemoError("the SuperLink did not start")

    def ended(self, federation):
        self.stop()
        if not told:
            raise failed
        return pd.DataFrame({"method": ["ifca"], "accuracy": [0.5], "equal": [told.pop(0)]})

    monkeypatch.setattr(demo.Demo, "run", ended)
    assert [main(command) for _ in range(3)] == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out.count("ifca: accuracy 0.500; the models are equal to those of the sim") == 1
    assert out.count("ifca: accuracy 0.500; the models are NOT equal to those") == 1
    assert "error: the SuperLink did not start" in err
    assert main([*command, "-m", "ifca:k"]) == 2


# --- Real processes -------------------------------------------------------------------------------

LINE_UP = ["ocfl:before=-.inf", "sattler:eps1=1e3,eps2=1e-6,min_rounds=0", "ifca:k=4"]
LINE_UP += ["emd-cfl:epsilon=0.1"]


@pytest.mark.nightly
def test_fifteen_processes_give_the_models_of_the_simulation(tmp_path):
    command = ["federate", str(tmp_path / "run"), "--version", "backdoor", "--clients", "15"]
    command += itertools.chain(*(("--methods", name) for name in LINE_UP))
    assert main([*command, "--samples", "30"]) == 0, "the models are equal, bit for bit"
    rounds = pd.read_csv(tmp_path / "run" / "output" / "rounds.csv").groupby("method")
    assert set(rounds.groups) == set(LINE_UP)
    assert (rounds["n_clusters"].last() > 1).all(), "models of clusters have been trained"
    messages = pd.read_csv(tmp_path / "run" / "output" / "messages.csv", keep_default_na=False)
    assert set(messages["kind"]) == {"hello", "train", "ask", "scores"}
    counts = messages.groupby(["node", "direction"]).size().unstack()
    assert len(counts) == 15 and (counts["down"] == counts["up"]).all()


@pytest.mark.nightly
def test_killed_processes_cost_time_alone(tmp_path):
    """A node is killed and returns, and later all of them: the bits are the same."""
    config = {"methods": "ifca:k=2; ocfl:before=-.inf", "model": "linear", "rounds": 5}
    own = demo.Demo(tmp_path / "run", SMALL | {"clients": 4} | config)
    federation, done = own.prepare(), own.output / "checkpoint.pt"

    def wait_for_round():
        """Wait until a checkpoint that is younger than this call exists."""
        begin = time.time()
        while not done.exists() or done.stat().st_mtime < begin:
            assert time.time() < begin + 1200, "it took too long"
            time.sleep(0.5)

    try:
        own.start()
        own.submit()
        wait_for_round()
        own.kill("client-03")
        own.start_node(3)
        wait_for_round()
        own.stop()
        commands = [str(left.info["cmdline"]) for left in psutil.process_iter(["cmdline"])]
        assert not [command for command in commands if str(tmp_path) in command]
        own.start()
        assert own.wait(own.submit()) == "finished:completed"
    finally:
        own.stop()
    settings = Settings.of(own.config)
    simulation.run(settings.methods, federation, 5, progress=False)
    found = torch.load(own.output / "models.pt", weights_only=True)
    for name, method in settings.methods.items():
        assert all(map(torch.equal, found[name].values(), method.client_models()))
    # The table is sorted by method, and then by round
    assert pd.read_csv(own.output / "rounds.csv")["round"].tolist() == 2 * [1, 2, 3, 4, 5]


class Terminals(demo.Demo):
    """The terminals of the page's recipe, in one folder; commands that go on running have a log."""

    def __init__(self, folder, ports, home="flower"):
        super().__init__(folder, {})
        self.ports = ports
        self.environment |= {"PYTHONPATH": str(ROOT), "FLWR_HOME": str(folder / home)}

    def typed(self, text):
        for printed, port in self.ports.items():
            text = text.replace(printed, str(port))
        return "bash", "-ec", f"cd {self.folder}; {text}"

    def keep(self, name, text):
        self.launch(name, *self.typed(text))

    def done(self, text):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        own = subprocess.run(self.typed(text), env=self.environment, timeout=600, **options)
        return own.returncode, own.stdout

    def end_of_run(self):
        return self.wait(self.flwr("ls", "federation")["runs"][0]["run-id"])


@pytest.mark.nightly
def test_the_page_s_recipe_as_printed_lets_nodes_in_and_no_stranger(tmp_path):
    page = (ROOT / "notebooks" / "a_real_federation.md").read_text(encoding="utf-8")
    recipe = page.partition("## On several machines")[2].partition("## When something fails")[0]
    make, link, door_, node_keys, register, data, secret, first, second, run = re.findall(
        r"```sh\n(.*?)```", recipe, re.DOTALL
    )
    [settings] = re.findall(r"```toml\n(.*?)```", recipe, re.DOTALL)
    ports = dict(zip(("8000", "9000", "9094", "9095"), demo.free_ports(4), strict=True))
    here, public = Terminals(tmp_path, ports), ports["8000"]
    try:
        assert here.done(make)[0] == 0
        here.keep("superlink", link)
        here.keep("door", door_)
        end = time.time() + 300
        while not (demo.answers(public) and demo.answers(ports["9000"])):
            assert time.time() < end, "the server has not started"
            time.sleep(0.5)
        assert here.done(node_keys)[0] == 0
        code, said = here.done(register)
        numbers = re.findall(r"\b[0-9]{12,20}\b", said)
        assert code == 0 and len({*numbers}) == 2, said
        assert here.done(data)[0] == here.done(secret)[0] == 0
        # A node whose key is not registered
        keys.write_key_pair(tmp_path / "mine")
        with pytest.raises(ValueError, match="does not know the key"):
            node.ask(f"localhost:{public}", tmp_path / "keys" / "ca.crt", tmp_path / "mine.key", 0)
        here.keep("hospital-0", first)
        here.keep("hospital-1", second)
        text = settings.replace("NUMBER-OF-HOSPITAL-0", numbers[0])
        text = text.replace("NUMBER-OF-HOSPITAL-1", numbers[1])
        (tmp_path / "settings.toml").write_text(text.replace('"results"', f'"{tmp_path}/results"'))
        code, said = here.done(run)
        assert code == 0, said
        # Meanwhile, a stranger with host and port alone
        stranger = Terminals(tmp_path, {"9000": public}, "stranger")
        (tmp_path / "got.crt").write_text(ssl.get_server_certificate(("localhost", public)))
        demo.write_connection(tmp_path / "stranger", public, tmp_path / "got.crt")
        calls = f"run {APP}", "ls", "supernode list", "supernode register mine.pub"
        for call in calls:
            code, said = stranger.done(f"flwr {call} federation")
            assert code != 0, said
        assert here.end_of_run() == "finished:completed"
        table = pd.read_csv(tmp_path / "results" / "rounds.csv")
        assert table.groupby("method")["round"].max().to_dict() == {"emd-cfl": 3, "fedavg": 3}
        for name in ("hospital-0", "hospital-1"):
            assert "84 % of 180 digits" in (tmp_path / f"{name}.log").read_text()
        # Two keys are swapped: both owners read it, and the run ends
        swapped = (tmp_path / "settings.toml").read_text().replace("/results", "/other")
        swapped = swapped.replace(", ".join(numbers), ", ".join(reversed(numbers)))
        (tmp_path / "settings.toml").write_text(swapped)
        assert here.done(run)[0] == 0
        assert here.end_of_run().startswith("finished:")
        for file in ("other/error.txt", "hospital-0.log", "hospital-1.log"):
            assert "keys or numbers are swapped" in (tmp_path / file).read_text()
    finally:
        here.stop()
