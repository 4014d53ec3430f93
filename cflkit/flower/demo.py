"""A whole federation on one machine, which stands for several: all that the page describes.

Each part is a process of its own: Flower's SuperLink, the door before it, and one node per client,
with a key and with a file of this client's data. They talk over TLS. Afterwards, the models are
compared with those of the simulation.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import psutil
import torch

from cflkit import simulation
from cflkit._bounds import Mistake
from cflkit.federation import Federation
from cflkit.flower import client_data, keys
from cflkit.flower.settings import APP, DEFAULTS, Settings

PATIENCE = 600.0  # how long a command of Flower may take to answer, in seconds
HOST = "127.0.0.1"
# The files of TLS that a SuperLink reads, by the options that name them
SERVER_FILES = {"cert": "server.crt", "key": "server.key", "ca-cert": "ca.crt"}


class DemoError(Mistake):
    """The demonstration failed; the message says why, and perhaps where a log lies."""


class Demo:
    """A demonstration; `prepare` it first, and then `run` it.

    Data, keys, logs and results lie in ``folder``, and ``config`` has settings of the run, see
    `cflkit.flower.settings`. The ``processes`` are the ``superlink``, the ``door`` and the nodes
    (``client-00``). Nodes call the ``port`` of the door.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.keys, self.output = folder, folder / "keys", folder / "output"
        self.config = DEFAULTS | config | {"output": str(self.output)}
        self.names = [f"client-{client:02d}" for client in range(self.config["clients"])]
        self.lock = filelock.FileLock(folder / ".lock", timeout=0)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # A proxy is not on the way to this machine
        local = ",".join(filter(None, (os.environ.get("no_proxy"), "localhost", HOST)))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        changed = {"FLWR_HOME": str(folder / "flower"), "PATH": path, "CFLKIT_THREADS": "1"}
        changed |= {"FLWR_TELEMETRY_ENABLED": "0", "no_proxy": local, "NO_PROXY": local}
        self.environment = os.environ | changed

    def prepare(self) -> Federation:
        """Write the clients' files, keys and certificates, and the settings of the run.

        Results of a run with other settings are removed. With the same settings, a run that ended
        early goes on from its checkpoint. The federation of the simulation is returned.

        Raises
        ------
        DatasetError, PartitionError, ValueError
            The data, the partition or the methods are unknown or do not fit.
        DemoError
            The folder has files of somebody else, or another run uses it.
        """
        folder, settings, secret = self.folder, self.folder / "settings", self.folder / "secret"
        if {path.name for path in folder.glob("*")} - {".lock"} and not settings.exists():
            raise DemoError(f"{folder} has other files; name a new or an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire()
        except filelock.Timeout as error:
            raise DemoError(f"another run uses {folder}; name another folder") from error
        images, partition = client_data.of_the_kit(Settings.of(self.config))
        self.config |= {"shape": ", ".join(map(str, images.shape)), "classes": images.classes}
        federation = Settings.of(self.config).federation(images, partition)
        if not settings.exists() or settings.read_text(encoding="utf-8") != as_text(self.config):
            shutil.rmtree(self.output, ignore_errors=True)
            settings.write_text(as_text(self.config), encoding="utf-8")
            keys.write_secret(secret)
        federation.shared_seed = keys.read_secret(secret)
        keys.write_certificates(self.keys, HOST)
        for client, name in enumerate(self.names):
            client_data.save(folder / f"{name}.npz", images, partition, client)
            keys.write_key_pair(self.keys / name)
        return federation

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
            why = reason.read_text(encoding="utf-8").strip() if reason.exists() else status
            raise DemoError(f"the run failed: {why}; see {self.folder / 'superlink.log'}")
        settings = Settings.of(self.config)
        simulation.run(settings.methods, federation, settings.rounds, progress=False)
        results = torch.load(self.output / "models.pt", weights_only=True)
        last = pd.read_csv(self.output / "rounds.csv").groupby("method")["accuracy"].last()
        rows = []
        for name, method in settings.methods.items():
            equal = all(map(torch.equal, results[name].values(), method.client_models()))
            rows.append({"method": name, "accuracy": last[name], "equal": equal})
        return pd.DataFrame(rows)

    # --- Processes --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the SuperLink and the door, tell it the nodes' keys, and start all nodes."""
        superlink, self.port, *self.node_ports = free_ports(2 + len(self.names))
        write_connection(self.folder / "flower", superlink, self.keys / "ca.crt")
        tls = (f"--ssl-{name}file={self.keys / file}" for name, file in SERVER_FILES.items())
        alone = "--enable-supernode-auth", "--disable-runtime-dependency-installation"
        self.launch("superlink", "flower-superlink", "--port", superlink, *tls, *alone)
        where = "--superlink", f"{HOST}:{superlink}", "--host", HOST, "--port", self.port
        self.launch("door", sys.executable, "-m", "cflkit.flower.door", self.keys, *where)
        while not (answers(superlink) and answers(self.port)):
            self.check_alive()
            time.sleep(0.2)
        public = (str(self.keys / f"{name}.pub") for name in self.names)
        entries = (self.flwr("supernode", "register", key, "federation") for key in public)
        self.config["nodes"] = ", ".join(str(entry["node-id"]) for entry in entries)
        for client in range(len(self.names)):
            self.start_node(client)

    def start_node(self, client: int) -> None:
        """Start the node of a client."""
        name = self.names[client]
        node = sys.executable, "-m", "cflkit.flower.node", f"{HOST}:{self.port}", "--client", client
        files = "--data", self.folder / f"{name}.npz", "--secret", self.folder / "secret"
        trust = "--key", self.keys / f"{name}.key", "--authority", self.keys / "ca.crt"
        self.launch(name, *node, *files, *trust, "--port", self.node_ports[client])

    def launch(self, name: str, *command: object) -> None:
        """Start a process whose output goes to a log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            # What ends this process, such as Ctrl-C, should not reach its children by itself
            how: dict[str, Any] = {"env": self.environment, "start_new_session": True}
            how |= {"preexec_fn": end_with_parent if sys.platform == "linux" else None}
            self.processes[name] = subprocess.Popen(
                [*map(str, command)], stdout=log, stderr=log, **how
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
        process, children = self.processes.pop(name), []
        with contextlib.suppress(psutil.Error):  # Flower starts some in sessions of their own
            children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=10)

    def stop(self) -> None:
        """End all processes; others may use the folder."""
        for name in list(self.processes):
            self.kill(name)
        self.lock.release()

    def flwr(self, *command: str) -> dict[str, Any]:
        """Run a command of Flower and return its answer; a `DemoError` tells why it failed."""
        whole = ["flwr", *command, "--format", "json"]
        options: dict[str, Any] = {"env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(whole, timeout=PATIENCE, **options)
        _, brace, answer = done.stdout.partition("{")
        values = json.loads(brace + answer) if brace else {}
        if not values.get("success"):
            raise DemoError(f"{' '.join(whole)} failed:\n{done.stdout}{done.stderr}")
        return values

    def submit(self) -> str:
        """Start the run; return its number."""
        config = as_text(self.config).replace("\n", " ")
        return self.flwr("run", str(APP), "federation", "--run-config", config)["run-id"]

    def wait(self, number: str) -> str:
        """Wait until a run has ended; return its status."""
        while True:
            self.check_alive()
            [entry] = self.flwr("ls", "federation", "--run-id", number)["runs"]
            if entry["status"].startswith("finished"):
                return entry["status"]
            time.sleep(3)  # each question is a process of its own


def as_text(config: Mapping[str, Any]) -> str:
    """Write values as TOML, in which JSON's texts, numbers and truth values have their form."""
    return "".join(f"{name}={json.dumps(value)}\n" for name, value in config.items())


def write_connection(home: Path, port: int, authority: Path) -> None:
    """Write where Flower's commands find a SuperLink of this machine, into their folder."""
    home.mkdir(exist_ok=True)
    link = {"address": f"{HOST}:{port}", "root-certificates": str(authority)}
    (home / "config.toml").write_text(f"[superlink.federation]\n{as_text(link)}")


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no process uses."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listening.getsockname()[1] for listening in held]


def answers(port: int) -> bool:
    """Return whether a process of this machine listens on a port."""
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port)) == 0
