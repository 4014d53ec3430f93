"""A whole federation on one machine: a SuperLink, one SuperNode per client, and a run.

All of them are processes of their own, which talk over TLS. Each node has a key, which the
SuperLink knows, and a file with the data of its client alone. Afterwards, the models are compared
with those of the simulation.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import filelock
import pandas as pd
import torch

from cflkit import datasets, simulation
from cflkit.federation import Federation
from cflkit.flower import client_file
from cflkit.flower.agreement import APP, DEFAULTS, Setting, line_up_of
from cflkit.flower.certificates import write_certificates, write_key_pair
from cflkit.flower.guard import MARK
from cflkit.partition import shifts
from cflkit.reproduce.values import parsed

# How long the SuperLink may take to start, and a command of Flower to answer, in seconds
PATIENCE = 600.0
CONNECTION, HOST = "cflkit", "127.0.0.1"


class DemoError(Exception):
    """The demonstration failed; the message says why, and perhaps where a log lies."""


class Demo:
    """A demonstration; `prepare` it first, and then `run` it.

    Data, keys, logs and results lie in ``folder``. The clients' data are those of `shifts.make`,
    and ``config`` has settings of the run, see `cflkit.flower.server_app`. The ``processes`` are
    the SuperLink (``server``), and per client its node (``client-00``) and the process with its
    data (``client-00-data``).
    """

    def __init__(
        self,
        folder: Path,
        *,
        dataset: str = "digits-8x8",
        version: str = "quarter-turn",
        clients: int = 4,
        samples: int = 200,
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.folder, self.keys, self.output = folder, folder / "keys", folder / "output"
        self.dataset, self.version, self.samples = dataset, version, samples
        self.names = [f"client-{client:02d}" for client in range(clients)]
        self.config, self.settings = {**DEFAULTS, **config}, folder / "settings.toml"
        self.run_config = folder / "run.toml"
        self.lock = filelock.FileLock(folder / ".lock", timeout=0)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self) -> Federation:
        """Write the clients' files, keys and certificates, and the settings of the run.

        Results of a run with other settings are removed. With the same settings, a run that ended
        early goes on from its checkpoint. The federation of the simulation is returned.

        Raises
        ------
        DatasetError, PartitionError, ValueError
            The data, the version or the methods are unknown or do not fit.
        DemoError
            The folder has files of somebody else, or another run uses it.
        """
        found = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        if found - {".lock"} and not self.settings.exists():
            raise DemoError(f"{self.folder} has other files; name a new or an empty folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire()
        except filelock.Timeout as error:
            raise DemoError(f"another run uses {self.folder}; name another folder") from error
        line_up_of(str(self.config["methods"]))  # a wrong method is told before anything starts
        images, partition = shifts.make(
            datasets.load(self.dataset),
            self.version,
            clients=len(self.names),
            samples=self.samples,
            seed=int(self.config["seed"]),
        )
        self.config |= {
            "output": str(self.output),
            "clients": len(self.names),
            "shape": ", ".join(map(str, images.shape)),
            "classes": images.classes,
        }
        # JSON writes texts, numbers and truth values as TOML does
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self.config.items()]
        text = "".join([f"# {self.dataset}, {self.version}, samples: {self.samples}\n", *lines])
        if not self.settings.exists() or self.settings.read_text(encoding="utf-8") != text:
            shutil.rmtree(self.output, ignore_errors=True)
            self.settings.write_text(text, encoding="utf-8")
        shutil.rmtree(self.keys, ignore_errors=True)  # those of another day, or of fewer clients
        self.keys.mkdir(mode=0o700)
        write_certificates(self.keys, ["localhost"], [HOST])
        for client, name in enumerate(self.names):
            client_file.save(self.folder / f"{name}.npz", images, partition, client)
            write_key_pair(self.keys / name)
        per_round = int(self.config["clients-per-round"]) or None
        return Setting.of(self.config).federation(images, partition, per_round)

    def run(self, federation: Federation) -> pd.DataFrame:
        """Run the federation and its simulation; a `DemoError` says what failed.

        Returns
        -------
        DataFrame
            One row per method: ``accuracy`` after the last round, and ``equal``: whether the models
            of all clients are those of the simulation, bit for bit.
        """
        try:
            self.start()
            status = self.wait(self.submit())
        finally:
            self.stop()
        if status != "finished:completed":
            reason = self.output / "error.txt"
            told = reason.read_text(encoding="utf-8").strip() if reason.exists() else status
            raise DemoError(f"the run failed: {told}; see {self.folder / 'server.log'}")
        line_up = line_up_of(str(self.config["methods"]))
        simulation.run(line_up, federation, int(self.config["rounds"]), progress=False)
        found = torch.load(self.output / "models.pt", weights_only=True)
        rounds = pd.read_csv(self.output / "rounds.csv")
        rows = []
        for name, method in line_up.items():
            last = rounds[rounds["method"] == name].iloc[-1]
            equal = all(map(torch.equal, found[name].values(), method.client_models()))
            rows.append([name, last["accuracy"], equal])
        return pd.DataFrame(rows, columns=["method", "accuracy", "equal"])

    # --- Processes --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the SuperLink, tell it the nodes' keys, and start all nodes."""
        # Not where other temporary files lie: the path of a socket may have 104 characters on macOS
        self.sockets = Path(tempfile.mkdtemp(prefix="cflkit-", dir="/tmp"))
        self.guard = subprocess.Popen(
            [sys.executable, "-m", "cflkit.flower.guard", str(self.sockets)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # what ends this process should not end its guard
        )
        self.port, *node_ports = free_ports(1 + len(self.names))
        home = self.folder / "flower"
        home.mkdir(exist_ok=True)
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "CFLKIT_THREADS": "1",
            MARK: str(self.sockets),
            # The commands of the environment that runs this
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self.launch(
            "server",
            "flower-superlink",
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / "server.crt")),
            *("--ssl-keyfile", str(self.keys / "server.key")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *("--host", HOST, "--port", str(self.port)),
        )
        end = time.monotonic() + PATIENCE
        while not answers(self.port):
            self.check_alive()
            if time.monotonic() > end:
                raise DemoError(f"the SuperLink did not start; see {self.folder / 'server.log'}")
            time.sleep(0.2)
        keys = [str(self.keys / f"{name}.pub") for name in self.names]
        with ThreadPoolExecutor(4) as pool:
            told = pool.map(lambda key: self.flwr("supernode", "register", key, CONNECTION), keys)
            numbers = ", ".join(str(own["node-id"]) for own in told)
        # The settings, and which key is whose; Flower takes one file
        agreed = self.settings.read_text(encoding="utf-8")
        self.run_config.write_text(agreed.replace('nodes = ""', f'nodes = "{numbers}"'), "utf-8")
        for client, port in enumerate(node_ports):
            self.start_node(client, port)

    def start_node(self, client: int, port: int) -> None:
        """Start the two processes of a client: one with its data, and one that talks to Flower."""
        name = self.names[client]
        data, own = self.folder / f"{name}.npz", self.sockets / f"{name}.socket"
        self.launch(
            f"{name}-data",
            *(sys.executable, "-m", "cflkit.flower.resident", str(own)),
            *("--client", str(client), "--data", str(data), "--agreed", str(self.settings)),
            *("--shared-seed", str(self.config["seed"])),  # as in the simulation
        )
        self.launch(
            name,
            "flower-supernode",
            *("--root-certificates", str(self.keys / "ca.crt")),
            *("--superlink", f"{HOST}:{self.port}"),
            *("--auth-supernode-private-key", str(self.keys / f"{name}.key")),
            *("--node-config", f'socket="{own}"'),
            *("--host", HOST, "--port", str(port)),
        )

    def launch(self, name: str, *command: str) -> None:
        """Start a process whose output goes to a log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,  # so that `kill` also ends its children
            )

    def check_alive(self) -> None:
        """Raise a `DemoError` if a process has ended by itself, with the end of its log."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                path = self.folder / f"{name}.log"
                end = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
                raise DemoError(f"the process {name} has ended; {path} ends: {' / '.join(end)}")

    def kill(self, name: str) -> None:
        """End a process and its children at once, as a power cut would."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes, and remove their sockets; others may use the folder."""
        for name in list(self.processes):
            self.kill(name)
        if hasattr(self, "guard"):
            self.guard.communicate()  # it ends what is left, and removes the sockets
            del self.guard
        self.lock.release()

    def flwr(self, *command: str) -> dict[str, Any]:
        """Run a command of Flower and return its answer; a `DemoError` tells why it failed."""
        whole = ("flwr", *command, "--format", "json")
        try:
            done = subprocess.run(
                whole, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{' '.join(whole)} did not answer in {PATIENCE:g} seconds") from error
        _, brace, answer = done.stdout.partition("{")
        told = json.loads(brace + answer) if brace else {}
        if not told.get("success"):
            raise DemoError(f"{' '.join(whole)} failed:\n{done.stdout}{done.stderr}")
        return told

    def submit(self) -> str:
        """Start the run; return its number."""
        config = str(self.run_config)
        return self.flwr("run", str(APP), CONNECTION, "--run-config", config)["run-id"]

    def wait(self, number: str) -> str:
        """Wait until a run has ended; return its status."""
        while True:
            self.check_alive()
            [found] = self.flwr("ls", CONNECTION, "--run-id", number)["runs"]
            if found["status"].startswith("finished"):
                return found["status"]
            time.sleep(3)  # each question is a process of its own


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no process uses."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [own.getsockname()[1] for own in held]


def answers(port: int) -> bool:
    """Return whether a process of this machine listens on a port."""
    with socket.socket() as own:
        return own.connect_ex((HOST, port)) == 0


def line_up_text(given: Sequence[str]) -> str:
    """Write methods, given as ``NAME`` or ``NAME:OPTION=VALUE,…``, as the setting ``methods``.

    A `DemoError` or a `ParameterError` says which one has another form.
    """
    line_up = {}
    for text in given:
        name, _, options = text.partition(":")
        pairs = [option.partition("=") for option in options.split(",") if option]
        names = {"method", *(option for option, _, _ in pairs)}
        if len(names) <= len(pairs) or not all(equals for _, equals, _ in pairs):
            raise DemoError(
                f"{text!r} must be NAME or NAME:OPTION=VALUE,…, without an option 'method', and "
                "without one twice"
            )
        line_up[text] = {"method": name} | parsed({option: value for option, _, value in pairs})
    return json.dumps(line_up, default=str)
