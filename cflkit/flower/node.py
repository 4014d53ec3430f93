"""Start a node: what the owner of a client's data runs, and is told at the start.

Agree only with a server that you trust. Flower lets whoever runs it send the program that runs here
as your user. Even with this kit's program, a server that chooses the models reads most samples of a
small client: 84 % of 180 digits, from answers to FedAvg. Otherwise, give data with noise added.

The node waits for a server that does not answer. If the server does not let it in, it ends, and its
last lines say why:

- "Failed to activate SuperNode": the server does not know this key. Its operator must register the
  .pub file of the key. Or it has lost this node less than a minute ago: start it again after that.
- "certificate has expired": the server's operator must make a new one.
- "self-signed certificate" or "unable to get local issuer certificate": it is not the certificate
  that you have. Somebody else may answer in the server's place, or you have the wrong file.
- "mismatch": the certificate is for other names; call the server by one of these.
"""

import json
import os
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import NoReturn

import click
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

from cflkit.flower.server import free_port

# What a message's process needs; the last one is what an optimiser of PyTorch would load
LOADED = [run_clientapp.__module__, "cflkit.flower.client_app", "torch._dynamo"]
POLL = 0.5  # how often the SuperNode is asked for a message, in seconds
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("server")
@click.option("--data", type=FILE, required=True, help="The client's .npz file.")
@click.option("--key", type=FILE, required=True, help="The node's private key.")
@click.option("--certificate", type=FILE, required=True, help="The server's certificate.")
@click.option("--secret", type=FILE, help="The clients' secret, which EMD-CFL needs.")
def main(server: str, data: Path, key: Path, certificate: Path, secret: Path | None) -> None:
    """Tell the owner what will happen, and become Flower's SuperNode for SERVER (HOST:PORT)."""
    print(__doc__, flush=True)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    files = {"data": data} | ({"secret": secret} if secret else {})
    config = " ".join(f"{name}={json.dumps(str(path.resolve()))}" for name, path in files.items())
    port = str(free_port())  # by which Flower's processes on this machine talk
    # This process becomes the SuperNode, and the one that starts the answers ends with it
    start = f"from cflkit.flower import node; node.answer_all('127.0.0.1:{port}', {os.getpid()})"
    subprocess.Popen([sys.executable, "-c", start])
    program = str(Path(sys.executable).with_name("flower-supernode"))
    options = ["--superlink", server, "--root-certificates", str(certificate), "--port", port]
    options += ["--auth-supernode-private-key", str(key), "--node-config", config]
    os.execv(program, [program, *options, "--isolation", "process"])


def answer_all(address: str, supernode: int) -> NoReturn:
    """Start a process for each message of the SuperNode at an address, until this one ends.

    Flower's SuperExec would start Python for each message, which then loads PyTorch and Flower for
    seconds. Here, a process that has loaded both, and that never has data, is copied.
    """
    start_parent_process_monitor(supernode)
    processes = get_context("forkserver")
    processes.set_forkserver_preload(LOADED)
    asking = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    versioned = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    retrying = make_simple_http_retry_invoker()  # the SuperNode may not listen yet
    link = RuntimeHttpClient.from_server_address(
        address, True, None, [versioned], retry_invoker=retrying
    )
    while True:
        task = link.AcquireTask(asking)
        if task.token:
            arguments = address, task.token, True, None, os.getpid()
            processes.Process(target=run_clientapp, args=arguments).start()
        time.sleep(POLL)


if __name__ == "__main__":
    main()
