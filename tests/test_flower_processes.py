"""Who may enter a real federation, and its processes; the last tests start real ones, over TLS."""

import asyncio
import contextlib
import itertools
import os
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pandas as pd
import psutil
import pytest
import torch

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from cryptography import x509
from flwr.supercore.primitives.asymmetric import bytes_to_private_key
from flwr.superlink.main import create_app

from cflkit import simulation
from cflkit.__main__ import main
from cflkit.datasets import DatasetError
from cflkit.flower import demo, keys, node, server
from cflkit.flower.settings import APP, Settings
from cflkit.partition import PartitionError

ROOT = Path(__file__).parent.parent
SMALL = {"clients": 2, "partition": "quarter-turn:samples=40", "methods": "fedavg"}

# --- Keys and secrets -----------------------------------------------------------------------------


def test_keys_and_secrets_are_made_by_a_command_and_are_their_owners_alone(tmp_path):
    for name in ("site.one.key", "secret"):  # the points belong to names
        (tmp_path / name).touch(mode=0o644)
    command = [sys.executable, "-m", "cflkit.flower.keys"]
    for what in (["secret", "secret"], ["node", "site.one"]):
        assert subprocess.run([*command, *what], cwd=tmp_path).returncode == 0
    for name in ("site.one.key", "secret"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "site.one.pub").exists()
    assert keys.read_secret(tmp_path / "secret") > 2**200
    wrong = subprocess.run([*command, "secrets"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "keys secret clients.secret" in wrong.stderr


@pytest.mark.parametrize("weak", ["81349", "0" * 63, "z" * 64, ""])
def test_no_other_file_is_taken_for_a_secret(tmp_path, weak):
    (tmp_path / "secret").write_text(weak)
    with pytest.raises(ValueError, match=r"64 digits of a secret|invalid literal"):
        keys.read_secret(tmp_path / "secret")


# --- The server's certificate and its door --------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A server's certificate and its key, a foreign one, and one that has expired."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("own", "foreign"):
        addresses = "federation.example.org", "192.0.2.7"
        server.write_certificate(folder / f"{name}.crt", folder / f"{name}.key", *addresses)
    old = x509.load_pem_x509_certificate((folder / "own.crt").read_bytes())
    begin, span = old.not_valid_before_utc, old.not_valid_after_utc - old.not_valid_before_utc
    expired = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
    expired = expired.not_valid_before(begin - 2 * span).not_valid_after(begin - span)
    for extension in old.extensions:
        expired = expired.add_extension(extension.value, extension.critical)
    key = bytes_to_private_key((folder / "own.key").read_bytes())
    signed = expired.sign(key, old.signature_hash_algorithm)
    (folder / "expired.crt").write_bytes(signed.public_bytes(keys.form.Encoding.PEM))
    return folder


def handshake(folder, held, known, address):
    """Let a client that knows a certificate call a server that holds another, at an address."""
    client = ssl.create_default_context(cafile=folder / f"{known}.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    holder = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    holder.load_cert_chain(folder / f"{held}.crt", folder / "own.key")
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(one, other, server_hostname=address)
    for side in (near, holder.wrap_bio(other, one, server_side=True), near):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return near.getpeercert()


@pytest.mark.parametrize(
    "address", ["federation.example.org", "192.0.2.7", "localhost", "127.0.0.1"]
)
def test_a_server_is_known_by_its_certificate_at_each_of_its_addresses(certificates, address):
    assert (certificates / "own.key").stat().st_mode & 0o777 == 0o600
    told = handshake(certificates, "own", "own", address)
    assert told["subject"] == ((("commonName", "federation.example.org"),),)


REFUSED = [
    ("own", "foreign", "localhost", "self-signed certificate"),
    ("expired", "expired", "localhost", "certificate has expired"),
    ("own", "own", "127.0.0.2", "mismatch"),
    ("own", "own", "example.org", "mismatch"),
]


@pytest.mark.parametrize("held, known, address, reason", REFUSED)
def test_an_owner_has_read_why_one_is_refused(certificates, held, known, address, reason):
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        handshake(certificates, held, known, address)
    assert f'"{reason}"' in node.__doc__, "the node's first words explain Flower's last ones"


def test_the_door_passes_on_the_calls_of_nodes_with_keys_and_nothing_else():
    superlink, link = create_app(), server.free_port()
    paths = {*superlink.openapi()["paths"], "/", "/docs", "/openapi.json", "/v1/fleet/"}
    paths |= {"/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"}
    passed = {f"/v1/fleet/{call}" for call in server.CALLS.split()}
    assert passed < paths and "/v1/control/start-run" in paths, "Flower's own names"
    assert not passed & {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}

    async def answered(port):
        transport = httpx.ASGITransport(server.door(superlink, link))
        async with httpx.AsyncClient(transport=transport, base_url=f"https://h:{port}") as caller:
            answers = {path: await caller.post(path, content=b"x") for path in paths}
        return {path for path, answer in answers.items() if answer.status_code != 404}

    assert asyncio.run(answered(8000)) == passed
    assert asyncio.run(answered(link)) > passed | {"/v1/control/start-run"}, "on this machine"


# --- A node ---------------------------------------------------------------------------------------


def test_an_owner_reads_what_a_server_can_do_and_the_node_starts(monkeypatch, capsys):
    started, beside = [], []
    monkeypatch.setattr(node.subprocess, "Popen", beside.append)
    monkeypatch.setattr(node.os, "execv", lambda program, given: started.append(given))
    monkeypatch.setattr(node.os, "environ", dict(os.environ))
    node.main(["--superlink", "h:8000"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Agree only with a server that you trust." in said and "84 % of 180 digits" in said
    assert node.os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    [command], [answering] = started, beside
    assert command[1:4] == ["--superlink", "h:8000", "--port"]
    assert command[-2:] == ["--isolation", "process"]
    assert f":{command[4]}', {os.getpid()})" in answering[-1], "it ends with this process"


# --- The demonstration ----------------------------------------------------------------------------


IMPOSSIBLE = [
    ("methods", "ifca:4", "needs OPTION=VALUE, not 4"),
    ("dataset", "digit", "digit"),
    ("partition", "upside-down", "unknown version 'upside-down'"),
    ("partition", "iid:samples=40", "partition: .*'samples'"),
    ("partition", "iid:seed=7", "partition: .*'seed'"),
]


@pytest.mark.parametrize("setting, value, reason", IMPOSSIBLE)
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
    for name in ("start", "submit", "wait"):
        monkeypatch.setattr(run, name, lambda *_: None)
    assert run.run(federation)["equal"].tolist() == [True, False]


def test_a_process_that_has_ended_ends_the_wait_with_its_log(tmp_path, monkeypatch):
    """And no proxy is on its way to this machine."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    own = demo.Demo(tmp_path, SMALL)
    code = (
        "from urllib.request import proxy_bypass as bypass; print('expired', bypass('127.0.0.1'))"
    )
    own.launch("client-00", sys.executable, "-c", code)
    own.processes["client-00"].wait()
    with pytest.raises(demo.DemoError, match=r"(?s)client-00 has ended; .*expired True"):
        own.wait("1")
    own.stop()


def test_the_command_tells_whether_the_models_are_equal(tmp_path, monkeypatch, capsys):
    command = ["federate", str(tmp_path / "run"), "--clients", "2", "--samples", "40"]
    told, failed = [True, False], demo.DemoError("the server did not start")

    def ended(self, federation):
        if not told:
            raise failed
        return pd.DataFrame({"method": ["ifca"], "accuracy": [0.5], "equal": [told.pop(0)]})

    monkeypatch.setattr(demo.Demo, "run", ended)
    assert [main(command) for _ in range(3)] == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out.count("ifca: accuracy 0.500; the models are equal to those of the sim") == 1
    assert out.count("ifca: accuracy 0.500; the models are NOT equal to those") == 1
    assert "error: the server did not start" in err
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


@pytest.mark.nightly
def test_killed_processes_cost_time_alone(tmp_path):
    """A node is killed and returns, and later all of them: the bits are the same."""
    config = {"methods": "ifca:k=2; ocfl:before=-.inf", "model": "linear", "rounds": 5}
    own = demo.Demo(tmp_path / "run", SMALL | {"clients": 4} | config)
    federation, done = own.prepare(), own.output / "checkpoint.pt"

    def wait_for_round():
        """Wait until a checkpoint that is younger than this call exists, and supervise nodes."""
        begin = time.time()
        while not done.exists() or done.stat().st_mtime < begin:
            assert time.time() < begin + 1200, "it took too long"
            for name in own.names:  # Flower refuses for a minute a node that it has just lost
                if name not in own.processes or own.processes[name].poll() is not None:
                    own.start_node(name)
            time.sleep(0.5)

    try:
        own.start()
        own.submit()
        wait_for_round()
        own.kill("client-03")
        wait_for_round()
        own.stop()
        begin = time.time()  # what a killed process has started ends by itself
        while [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info)]:
            assert time.time() < begin + 60
            time.sleep(0.5)
        own.start()
        own.wait(own.submit())
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

    def __init__(self, folder, port, home="server"):
        super().__init__(folder, {})
        self.environment |= {"PYTHONPATH": str(ROOT), "FLWR_HOME": str(folder / home)}
        self.typed = lambda text: ("bash", "-ec", f"cd {folder}; {text.replace('8000', str(port))}")

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
    start, node_keys, register, data, secret, first, second, run = re.findall(
        r"```sh\n(.*?)```", recipe, re.DOTALL
    )
    [settings] = re.findall(r"```toml\n(.*?)```", recipe, re.DOTALL)
    public = server.free_port()
    here = Terminals(tmp_path, public)
    try:
        here.keep("server", start)
        end = time.time() + 300
        while not (tmp_path / "server" / "config.toml").exists():
            assert time.time() < end, "the server has not started"
            time.sleep(0.5)
        assert here.done(node_keys)[0] == 0
        code, said = here.done(register)
        numbers = re.findall(r"\b[0-9]{12,20}\b", said)
        assert code == 0 and len({*numbers}) == 2, said
        assert here.done(data)[0] == here.done(secret)[0] == 0
        # A node whose key is not registered reads why it ends
        keys.write_key_pair(tmp_path / "mine")
        here.keep("mine", first.replace("hospital-0.key", "mine.key"))
        assert here.processes["mine"].wait(300) != 0
        here.kill("mine")
        said = (tmp_path / "mine.log").read_text()
        reason = "Failed to activate SuperNode"
        assert said.count(reason) == 2, "the explanation, and Flower's own words"
        here.keep("hospital-0", first)
        here.keep("hospital-1", second)
        text = settings.replace("NUMBER-OF-HOSPITAL-0", numbers[0])
        text = text.replace("NUMBER-OF-HOSPITAL-1", numbers[1])
        for name, output in (("settings", "results"), ("again", "swapped")):
            whole = text.replace('"results"', f'"{tmp_path}/{output}"')
            (tmp_path / f"{name}.toml").write_text(whole)
        code, said = here.done(run)
        assert code == 0, said
        # Meanwhile, a stranger with host and port alone
        stranger = Terminals(tmp_path, public, "stranger")
        got = tmp_path / "stranger" / "got.crt"
        got.parent.mkdir()
        got.write_text(ssl.get_server_certificate(("localhost", public)))
        link = f'address = "localhost:{public}"\nroot-certificates = "{got}"\n'
        (got.parent / "config.toml").write_text(f"[superlink.federation]\n{link}")
        for call in (f"run {APP}", "ls", "supernode list", "supernode register mine.pub"):
            code, said = stranger.done(f"flwr {call} federation")
            assert code != 0, said
        here.end_of_run()
        table = pd.read_csv(tmp_path / "results" / "rounds.csv")
        assert table.groupby("method")["round"].max().to_dict() == {"emd-cfl": 3, "fedavg": 3}
        for client in range(2):
            said = (tmp_path / f"hospital-{client}.log").read_text()
            assert "84 % of 180 digits" in said
            assert said.count(f"you are client {client} of 2") == 1
        # A run that fails says why: each node has the other one's key
        here.kill("hospital-0")
        here.kill("hospital-1")
        time.sleep(75)  # Flower refuses for about a minute a node that it has just lost
        for client, node in enumerate((first, second)):
            key, other = f"hospital-{client}.key", f"hospital-{1 - client}.key"
            here.keep(f"hospital-{client}", node.replace(key, other))
        assert here.done(run.replace("settings.toml", "again.toml"))[0] == 0
        with pytest.raises(
            demo.DemoError, match=r"client 1: it failed: .*this node is not client 1"
        ):
            here.end_of_run()
        assert "are two keys swapped?" in (tmp_path / "hospital-0.log").read_text()
    finally:
        here.stop()
