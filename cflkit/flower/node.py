r"""Start a node: what the owner of a client's data runs, and is told at the start.

    python -m cflkit.flower.node --superlink federation.example.org:8000 \
      --root-certificates server.crt --auth-supernode-private-key hospital-3.key \
      --node-config 'client=3 data="/srv/hospital-3.npz" secret="/srv/clients.secret"'

The options are those of Flower's command flower-supernode, which this process becomes.

Agree only with a server that you trust. Flower lets whoever runs it send the program that runs here
as your user. Even with this kit's program, a server that chooses the models reads most samples of a
small client: 84 % of 180 digits, from answers to FedAvg. Otherwise, give data with noise added.

"Connection attempt failed, retrying" is usual while the node starts. "SuperNode ID" with a number
says that the server has let it in. The node waits for a server that does not answer. If the server
does not let it in, it ends. The lines of the log after "Exit Code" say why:

- "Failed to activate SuperNode": the server does not know this key. Its operator must register the
  .pub file of the key. Or another node uses the key. Or the server has lost this node less than a
  minute ago: start it again after that.
- "certificate has expired": the server's operator must make a new one.
- "self-signed certificate" or "unable to get local issuer certificate": it is not the certificate
  that you have. Somebody else may answer in the server's place, or you have the wrong file.
- "mismatch": the certificate is for other names; call the server by one of these.

The server knows by your key which client you are, and the log says it at the start of each run. The
numbers begin with 0. ``client=3`` is the number on which you and the operator have agreed. If the
server takes the node for another client, as when two keys are swapped, it answers nothing.
"""

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supernode.runtime.run_clientapp import run_clientapp

from cflkit.flower.server import HOST, free_port

# What a message's process needs; the last one is what an optimiser of PyTorch would load
LOADED = [run_clientapp.__module__, "cflkit.flower.client_app", "torch._dynamo"]


def main(options: list[str]) -> None:
    """Tell the owner what will happen, and become Flower's SuperNode with these options."""
    print(__doc__, flush=True)
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
    port = free_port()  # by which Flower's processes on this machine talk
    # The process that starts the answers ends with this one
    start = f"from cflkit.flower import node; node.answer_all('{HOST}:{port}', {os.getpid()})"
    subprocess.Popen([sys.executable, "-c", start])
    program = str(Path(sys.executable).with_name("flower-supernode"))
    os.execv(program, [program, *options, "--port", str(port), "--isolation", "process"])


def answer_all(address: str, supernode: int) -> None:
    """Run Flower's SuperExec, which starts a process for each message, until the SuperNode ends.

    By itself, it would start Python, which then loads PyTorch and Flower for seconds. Here, a
    process that has loaded both, and that never has data, is copied.
    """
    processes = get_context("forkserver")
    processes.set_forkserver_preload(LOADED)

    def launch(self: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
        arguments = spec.runtime_api_address, spec.token, spec.insecure, None, spec.parent_pid
        processes.Process(target=run_clientapp, args=arguments).start()
        return LaunchResult.accepted()

    SubprocessExecutor.launch = launch  # type: ignore[method-assign]
    run_superexec(address, insecure=True, parent_pid=supernode)


if __name__ == "__main__":
    main(sys.argv[1:])
