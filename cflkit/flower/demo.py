"""A whole federation on one machine: a SuperLink, one SuperNode per client, and a run.

All of them are processes of their own, which talk over TLS. Each node has a key, which the
SuperLink knows, and a file with the data of its client alone. Afterwards, the models are compared
with those of the simulation.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cflkit import datasets, simulation
from cflkit.datasets import DatasetError
from cflkit.federation import Federation
from cflkit.flower import node
from cflkit.flower.certificates import write_certificates, write_key_pair
from cflkit.flower.server_app import line_up_of, setting_of
from cflkit.partition import PartitionError, shifts
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.values import parse_yaml

# How long processes may take to start, in seconds
PATIENCE = 120.0
CONNECTION = "cflkit"


class DemoError(Exception):
    """A process of the demonstration failed; the message says which, and where its log lies."""


@dataclass(frozen=True)
class Demo:
    """What the demonstration runs.

    Attributes
    ----------
    folder : Path
        Where data, keys, logs and results lie.
    dataset, version, clients, samples
        The data, how they differ between clients, the number of clients, and the samples of each
        (`shifts.make`).
    config : dict
        Settings of the run, see `cflkit.flower.server_app`.
    """

    folder: Path
    dataset: str = "digits-8x8"
    version: str = "quarter-turn"
    clients: int = 4
    samples: int | None = 200
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        """Return the folder of the results."""
        return self.folder / "output"

    @property
    def settings(self) -> Path:
        """Return the file with all settings of the run."""
        return self.folder / "settings.toml"


@contextlib.contextmanager
def app_folder() -> Iterator[Path]:
    """Give the folder of the Flower app, which `flwr run` sends to the nodes."""
    with as_file(files("cflkit.flower") / "app") as folder:
        yield folder


# --- Preparation ----------------------------------------------------------------------------------


def prepare(demo: Demo) -> tuple[Federation, dict[str, Any]]:
    """Write the clients' files, keys and certificates, and the settings of the run.

    Results of a run with other settings are removed. With the same settings, a run that ended early
    goes on from its checkpoint.

    Returns
    -------
    federation : Federation
        The federation of the simulation.
    settings : dict
        All settings of the run: those of the app, with those of the demonstration.

    Raises
    ------
    DatasetError, PartitionError, ValueError
        The data, the version or the methods are unknown or do not fit.
    DemoError
        The folder has files of somebody else.
    """
    if demo.folder.exists() and any(demo.folder.iterdir()) and not demo.settings.exists():
        raise DemoError(f"{demo.folder} has other files; name a new or an empty folder")
    demo.folder.mkdir(parents=True, exist_ok=True)
    with app_folder() as app:
        project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    settings = project["tool"]["flwr"]["app"]["config"] | demo.config
    line_up_of(str(settings["methods"]))  # a wrong method is told before anything starts
    images, partition = shifts.make(
        datasets.load(demo.dataset),
        demo.version,
        clients=demo.clients,
        samples=demo.samples,
        seed=int(settings["seed"]),
    )
    settings |= {
        "output": str(demo.output),
        "clients": demo.clients,
        "shape": ", ".join(map(str, images.shape)),
        "classes": images.classes,
    }
    text = f"# {demo.dataset}, {demo.version}, samples: {demo.samples}\n{toml(settings)}"
    if not demo.settings.exists() or demo.settings.read_text(encoding="utf-8") != text:
        shutil.rmtree(demo.output, ignore_errors=True)
        demo.settings.write_text(text, encoding="utf-8")
    for client in range(demo.clients):
        node.save(demo.folder / f"client-{client:02d}.npz", images, partition, client)
    keys = demo.folder / "keys"
    shutil.rmtree(keys, ignore_errors=True)  # those of another day, or of fewer clients
    keys.mkdir(mode=0o700)
    write_certificates(keys, ["localhost"], ["127.0.0.1"])
    for client in range(demo.clients):
        write_key_pair(keys / f"client-{client:02d}")
    per_round = int(settings["clients-per-round"]) or None
    return setting_of(settings).federation(images, partition, per_round), settings


# --- Processes ------------------------------------------------------------------------------------


class Running:
    """The processes of a demonstration.

    Parameters
    ----------
    demo : Demo
        The demonstration, already prepared.

    Attributes
    ----------
    processes : dict of str to Popen
        The SuperLink (``server``), and per client its node (``client-00``) and the process with its
        data (``client-00-data``).
    """

    def __init__(self, demo: Demo) -> None:
        self.demo, self.keys = demo, demo.folder / "keys"
        self.port, *self.node_ports = free_ports(1 + demo.clients)
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # The path of a socket may have 108 characters at most, and the demonstration's may be long
        self.sockets = Path(tempfile.mkdtemp(prefix="cflkit-"))
        home = demo.folder / "flower"
        home.mkdir(exist_ok=True)
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "CFLKIT_THREADS": "1",
            # The commands of the environment that runs this
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.address}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        )

    def start(self) -> None:
        """Start the SuperLink, tell it the nodes' keys, and start all nodes."""
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        self.start_server()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.register, range(self.demo.clients)))
        for client in range(self.demo.clients):
            self.start_node(client)

    def start_server(self) -> None:
        """Start the SuperLink, and wait until it answers.

        Raises
        ------
        DemoError
            It does not answer in time.
        """
        self.launch(
            "server",
            "flower-superlink",
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / "server.crt")),
            *("--ssl-keyfile", str(self.keys / "server.key")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *("--host", "127.0.0.1"),
            *("--port", str(self.port)),
        )
        address, end = ("127.0.0.1", self.port), time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(address, 1):
                return
            if self.processes["server"].poll() is not None:
                break
            time.sleep(0.2)
        raise DemoError(f"the SuperLink did not start; see {self.demo.folder / 'server.log'}")

    def register(self, client: int) -> None:
        """Tell the SuperLink the public key of a node."""
        key = self.keys / f"client-{client:02d}.pub"
        self.flwr("supernode", "register", str(key), CONNECTION)

    def start_node(self, client: int) -> None:
        """Start the two processes of a client: one with its data, and one that talks to Flower."""
        name = f"client-{client:02d}"
        data, own = self.demo.folder / f"{name}.npz", self.sockets / f"{name}.socket"
        given = ("--client", str(client), "--data", str(data))
        self.launch(
            f"{name}-data", sys.executable, "-m", "cflkit.flower.resident", str(own), *given
        )
        self.launch(
            name,
            "flower-supernode",
            *("--root-certificates", str(self.keys / "ca.crt")),
            *("--superlink", self.address),
            *("--auth-supernode-private-key", str(self.keys / f"{name}.key")),
            *("--node-config", f'client={client} socket="{own}"'),
            *("--host", "127.0.0.1"),
            *("--port", str(self.node_ports[client])),
        )

    def launch(self, name: str, *command: str) -> None:
        """Start a process whose output goes to a log."""
        with (self.demo.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,  # so that `kill` also ends its children
            )

    def kill(self, name: str) -> None:
        """End a process and its children at once, as a power cut would."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes, and remove their sockets."""
        for name in list(self.processes):
            self.kill(name)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def flwr(self, *command: str) -> str:
        """Run a command of Flower; return its output.

        Raises
        ------
        DemoError
            The command failed.
        """
        done = subprocess.run(
            ["flwr", *command], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DemoError(f"flwr {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self) -> int:
        """Start the run; return its number.

        Raises
        ------
        DemoError
            Flower refuses the run.
        """
        with app_folder() as app:
            given = ("--run-config", str(self.demo.settings), "--format", "json")
            said = self.flwr("run", str(app), CONNECTION, *given)
        answer = json.loads(said[said.index("{") :])
        if not answer["success"]:
            raise DemoError(f"Flower refuses the run: {answer['error-message']}")
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        """Return the status of a run, such as ``running`` or ``finished:completed``."""
        said = self.flwr("ls", CONNECTION, "--run-id", str(run), "--format", "json")
        [found] = json.loads(said[said.index("{") :])["runs"]
        return str(found["status"])

    def wait(self, run: int, limit: float) -> str:
        """Wait until a run has ended; return its status.

        Raises
        ------
        DemoError
            It has not ended within ``limit`` seconds.
        """
        end = time.monotonic() + limit
        while time.monotonic() < end:
            status = self.status(run)
            if status.startswith("finished"):
                return status
            time.sleep(1)
        raise DemoError(f"the run did not end within {limit:g} seconds")


def free_ports(count: int) -> list[int]:
    """Return ports that no process uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for own in sockets:
            own.bind(("127.0.0.1", 0))
        return [own.getsockname()[1] for own in sockets]


def toml(values: Mapping[str, Any]) -> str:
    """Write flat settings as TOML; JSON has the same forms for texts, numbers and truth values."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


# --- The demonstration ----------------------------------------------------------------------------


def run(demo: Demo, limit: float = math.inf) -> pd.DataFrame:
    """Run the demonstration, and compare its models with those of the simulation.

    Returns
    -------
    DataFrame
        One row per method: ``accuracy`` after the last round, ``clusters``, and ``equal``: whether
        the models of all clients are those of the simulation, bit for bit.

    Raises
    ------
    DemoError
        The settings do not fit, a process failed, or the run took longer than ``limit`` seconds.
    """
    try:
        prepared = prepare(demo)
    except (DatasetError, PartitionError, ValueError) as error:
        raise DemoError(str(error)) from error
    return conduct(demo, *prepared, limit)


def conduct(
    demo: Demo, federation: Federation, settings: Mapping[str, Any], limit: float = math.inf
) -> pd.DataFrame:
    """Do what `run` does, once everything is prepared.

    Raises
    ------
    DemoError
        A process failed, or the run took longer than ``limit`` seconds.
    """
    running = Running(demo)
    try:
        running.start()
        status = running.wait(running.submit(), limit)
    finally:
        running.stop()
    if status != "finished:completed":
        reason = demo.output / "error.txt"
        told = reason.read_text(encoding="utf-8").strip() if reason.exists() else status
        raise DemoError(f"the run failed: {told}; see {demo.folder / 'server.log'}")
    return compared(demo, federation, settings)


def compared(demo: Demo, federation: Federation, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Run the simulation, and compare its models with those of the federation."""
    line_up = line_up_of(str(settings["methods"]))
    simulation.run(line_up, federation, int(settings["rounds"]), progress=False)
    found = torch.load(demo.output / "models.pt", weights_only=True)
    rounds = pd.read_csv(demo.output / "rounds.csv")
    rows = []
    for name, method in line_up.items():
        models, mixture = method.client_models()
        last = rounds[rounds["method"] == name].iloc[-1]
        equal = torch.equal(found[name]["models"], models)
        rows.append(
            {
                "method": name,
                "accuracy": last["accuracy"],
                "clusters": last.get("n_clusters"),
                "equal": equal and torch.equal(found[name]["mixture"], mixture),
            }
        )
    return pd.DataFrame(rows)


def line_up_text(given: Sequence[str]) -> str:
    """Write methods, given as ``NAME`` or ``NAME:OPTION=VALUE,…``, as the setting ``methods``.

    Raises
    ------
    DemoError
        An option is not of this form.
    """
    line_up = {}
    for text in given:
        name, _, options = text.partition(":")
        try:
            pairs = [option.split("=", 1) for option in options.split(",") if option]
            own = {key: parse_yaml(key, value) for key, value in pairs if key != "method"}
            json.dumps(own)  # a date is YAML, and no value of an option
        except (ValueError, TypeError, ParameterError) as error:
            raise DemoError(f"{text!r} must be NAME or NAME:OPTION=VALUE,…") from error
        if len(own) < len(pairs):
            raise DemoError(f"{text!r} names an option twice, or the option 'method'")
        line_up[text] = {"method": name} | own
    return json.dumps(line_up)
