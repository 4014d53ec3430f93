"""A whole federation on one machine, which stands for several: all that the page describes.

Each part is a process of its own: the server, and one node per client, with a key and with a file
of this client's data. They talk over TLS. Afterwards, the models are compared with those of the
simulation.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cflkit import simulation
from cflkit._bounds import Mistake
from cflkit.federation import Federation
from cflkit.flower import client_data, keys
from cflkit.flower.server import HOST, free_port
from cflkit.flower.settings import APP, DEFAULTS, Settings


class DemoError(Mistake):
    """The demonstration failed; the message says why, and perhaps where a log lies."""


class Demo:
    """A demonstration; `prepare` it first, and then `run` it.

    Data, keys, logs and results lie in ``folder``, and ``config`` has settings of the run, see
    `cflkit.flower.settings`. The ``processes`` are the ``server`` and the nodes (``client-00``).
    After a run, ``told`` has what ``flwr ls`` tells of it.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.server, self.output = folder, folder / "server", folder / "output"
        self.config = DEFAULTS | config | {"output": str(self.output)}
        self.names = [f"client-{client:02d}" for client in range(self.config["clients"])]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        home = {"FLWR_HOME": str(self.server), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
        # A proxy is not on the way to this machine
        self.environment = os.environ | home | {"no_proxy": HOST, "CFLKIT_THREADS": "1"}

    def prepare(self) -> Federation:
        """Write the clients' files, keys and secret; return the federation of the simulation.

        Raises
        ------
        DatasetError, PartitionError, ParameterError, ValueError
            The data, the partition or the methods are unknown or do not fit.
        """
        images, partition = client_data.of_the_kit(Settings.of(self.config))
        self.config |= {"shape": ", ".join(map(str, images.shape)), "classes": images.classes}
        federation = Federation(images, partition, **Settings.of(self.config).options)
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in (self.output / "checkpoint.pt", self.server / "server.crt"):
            old.unlink(missing_ok=True)  # of a run that ended early; the certificate may expire
        keys.write_secret(self.folder / "secret")
        federation.shared_seed = keys.read_secret(self.folder / "secret")
        for client, name in enumerate(self.names):
            client_data.save(self.folder / f"{name}.npz", images, partition, client)
            keys.write_key_pair(self.folder / name)
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
            self.told = self.wait(self.submit())
        finally:
            self.stop()
        settings = Settings.of(self.config)
        simulation.run(settings.methods, federation, settings.rounds, progress=False)
        results = torch.load(self.output / "models.pt", weights_only=True)
        last = pd.read_csv(self.output / "rounds.csv").groupby("method")["accuracy"].last()
        equal = {
            name: all(map(torch.equal, results[name].values(), method.client_models()))
            for name, method in settings.methods.items()
        }
        return last.to_frame().assign(equal=pd.Series(equal)).reset_index()

    # --- Processes --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server, tell it the nodes' keys, and start all nodes."""
        self.port, ready = free_port(), self.server / "config.toml"
        ready.unlink(missing_ok=True)
        where = HOST, "--host", HOST, "--port", self.port
        self.launch("server", sys.executable, "-m", "cflkit.flower.server", self.server, *where)
        while not ready.exists():
            self.check_alive()
            time.sleep(0.2)
        public = (str(self.folder / f"{name}.pub") for name in self.names)
        entries = (self.flwr("supernode", "register", key, "federation") for key in public)
        self.config["nodes"] = ", ".join(str(entry["node-id"]) for entry in entries)
        for name in self.names:
            self.start_node(name)

    def start_node(self, name: str) -> None:
        """Start the node of a client."""
        base, client = self.folder / name, self.names.index(name)
        where = "--superlink", f"{HOST}:{self.port}"
        trust = "--root-certificates", self.server / "server.crt"
        key = "--auth-supernode-private-key", f"{base}.key"
        files = "--node-config", f'client={client} data="{base}.npz" secret="{self.folder}/secret"'
        self.launch(name, sys.executable, "-m", "cflkit.flower.node", *where, *trust, *key, *files)

    def launch(self, name: str, *command: object) -> None:
        """Start a process whose output goes to a log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            options: dict[str, Any] = {"env": self.environment, "stdout": log, "stderr": log}
            self.processes[name] = subprocess.Popen([*map(str, command)], **options)

    def check_alive(self) -> None:
        """Raise a `DemoError` if a process has ended by itself, with the end of its log."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                path = self.folder / f"{name}.log"
                end = path.read_text(encoding="utf-8", errors="replace")[-500:]
                raise DemoError(f"the process {name} has ended; {path} ends:\n{end}")

    def kill(self, name: str) -> None:
        """End a process at once, as a power cut would; those that it has started end by it."""
        with self.processes.pop(name) as process:
            process.kill()

    def stop(self) -> None:
        """End all processes."""
        for name in list(self.processes):
            self.kill(name)

    def flwr(self, *command: str) -> dict[str, Any]:
        """Run a command of Flower and return its answer; a `DemoError` tells why it failed."""
        whole = ["flwr", *command, "--format", "json"]
        done = subprocess.run(whole, env=self.environment, capture_output=True, encoding="utf-8")
        _, brace, answer = done.stdout.partition("{")
        values = json.loads(brace + answer) if brace else {}
        if not values.get("success"):
            raise DemoError(f"{' '.join(whole)} failed:\n{done.stdout}{done.stderr}")
        return values

    def submit(self) -> str:
        """Start the run; return its number."""
        # TOML, in which JSON's texts, numbers and truth values have their form
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in self.config.items())
        return self.flwr("run", str(APP), "federation", "--run-config", config)["run-id"]

    def wait(self, number: str) -> dict[str, Any]:
        """Wait until a run is complete; return what Flower tells of it."""
        while True:
            self.check_alive()
            [entry] = self.flwr("ls", "federation", "--run-id", number)["runs"]
            if entry["status"] == "finished:completed":
                return entry
            if entry["status"].startswith("finished"):
                why = f"{entry['status-details']}; see {self.folder / 'server.log'}"
                raise DemoError(f"the run failed: {why}")
            time.sleep(3)  # each question is a process of its own
