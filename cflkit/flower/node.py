"""Start a node: what the owner of a client's data runs.

It reads all files, tells the owner what the server can do, and asks the server once whether it lets
this node in. Flower's SuperNode would repeat "Connection attempt failed" whatever is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from cflkit.flower.keys import read_secret

# How long Flower may still take a node that was killed for a living one, in seconds
LOST = 90.0
WARNING = """\
Agree only with a server that you trust. Flower lets whoever runs it send the program that runs here
as your user. Even with this kit's program, a server that chooses the models reads most samples of a
small client: 84 % of 180 digits, from answers to FedAvg. Otherwise, give data with noise added."""
# What the owner must know, by a part of the error or by the status with which the server refuses
REASONS = {
    "certificate has expired": "its certificate has expired: its operator must make a new one",
    "mismatch": "its certificate is for other names: call it by one of these names",
    "certificate verify failed": "another authority has signed its certificate: somebody else may "
    "answer in its place, or you have the wrong ca.crt",
    "401 Unauthorized": "it does not accept the key's signature: is a clock wrong?",
    "404 Not Found": "it is no server of a federation",
}
UNKNOWN = "it does not know the key {}: its operator must register the .pub file of this key"
LATER = "{}; asking again for {:.0f} seconds, since Flower knows no node that was just lost, either"
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("server")
@click.option("--client", type=click.IntRange(0), required=True, help="The number of the client.")
@click.option("--data", type=FILE, required=True, help="The client's .npz file.")
@click.option("--key", type=FILE, required=True, help="The node's private key.")
@click.option("--authority", type=FILE, required=True, help="The server's ca.crt.")
@click.option("--secret", type=FILE, help="The clients' secret, which EMD-CFL needs.")
@click.option("--port", default="9094", help="A free port of this machine.")
def main(
    server: str, client: int, data: Path, key: Path, authority: Path, secret: Path | None, port: str
) -> None:
    """Tell the owner what will happen, ask SERVER (HOST:PORT), and become Flower's SuperNode."""
    config = f"client={client} data={json.dumps(str(data.resolve()))}"
    try:
        if not zipfile.is_zipfile(data):
            raise ValueError(f"{data} is no .npz file, which np.savez writes")
        with np.load(data, allow_pickle=False) as arrays:
            count = len(arrays["train_labels"])
        if secret:
            read_secret(secret)
            config += f" secret={json.dumps(str(secret.resolve()))}"
        print(f"client {client} has {count} samples to train with.\n{WARNING}", flush=True)
        ask(server, authority, key)
    except (KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise click.ClickException(str(error)) from error
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    # This process becomes the SuperNode, and the other one ends with it
    address, supernode = f"127.0.0.1:{port}", str(os.getpid())
    subprocess.Popen([sys.executable, "-m", "cflkit.flower.answering", address, supernode])
    program = str(Path(sys.executable).with_name("flower-supernode"))
    options = ["--superlink", server, "--root-certificates", str(authority), "--port", port]
    options += ["--auth-supernode-private-key", str(key), "--node-config", config]
    os.execv(program, [program, *options, "--isolation", "process"])


def ask(server: str, authority: Path, key: Path, patience: float = LOST) -> None:
    """Ask a server whether it lets the owner of a key in; a `ValueError` says why it does not."""
    private: Any = load_ssh_private_key(key.read_bytes(), None)
    public, end = private.public_key(), time.monotonic() + patience
    signed = NodeAuthHttpInterceptor(private, public)
    versioned = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    entry = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30)
    address = server, False, authority.read_bytes(), (versioned, signed)
    with FleetHttpClient.from_server_address(*address) as link:
        while True:
            try:
                number = link.ActivateNode(entry).node_id
                link.DeactivateNode(DeactivateNodeRequest(node_id=number))
                return
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                # The door answers 502 where no SuperLink stands behind it
                status = getattr(vars(error).get("response"), "status_code", 502)
                refused = f"no answer: {error}" if status == 502 else UNKNOWN.format(key)
                final = [reason for part, reason in REASONS.items() if part in str(error)]
                why = f"{server} does not let this node in: {[*final, refused][0]}"
                if final or time.monotonic() > end:
                    raise ValueError(why) from error
            print(LATER.format(why, end - time.monotonic()), flush=True)
            time.sleep(10)


if __name__ == "__main__":
    main()
