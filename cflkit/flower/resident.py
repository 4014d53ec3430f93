"""A process that keeps a client's data and torch loaded between messages.

Flower starts a new process for each message to a node. This process would import torch and read the
data each time, which takes seconds. A node whose configuration has ``socket`` passes its messages
to a resident process instead::

    python -m cflkit.flower.resident SOCKET --client 3 --data hospital-3.npz

Both run on the same machine, under the same user. The socket and the key beside it can be read by
this user alone.
"""

from __future__ import annotations

import argparse
import secrets
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import RecordDict


def passed_on(socket: Path, content: RecordDict) -> RecordDict:
    """Pass a message's content to the resident process, and return its answer.

    Raises
    ------
    RuntimeError
        The resident process could not answer; the message says why.
    """
    with Client(str(socket), authkey=key_of(socket).read_bytes()) as connection:
        connection.send(content)
        answer = connection.recv()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    found: RecordDict = answer
    return found


def key_of(socket: Path) -> Path:
    """Return the path of the key that opens a socket."""
    return socket.with_suffix(".key")


def serve(socket: Path, client: int, data: Path, shared_seed: int | None = None) -> None:
    """Answer messages until the process is ended.

    An error becomes the answer, so that the process goes on.
    """
    from cflkit.flower.node import answered

    socket.unlink(missing_ok=True)
    key = secrets.token_bytes(32)
    key_of(socket).touch(mode=0o600)
    key_of(socket).write_bytes(key)
    with Listener(str(socket), authkey=key) as listener:
        socket.chmod(0o600)
        print(f"client {client} listens", flush=True)
        while True:
            with listener.accept() as connection:
                content = connection.recv()
                try:
                    answer = answered(content, client, data, shared_seed)
                except Exception as error:
                    connection.send(f"{type(error).__name__}: {error}")
                else:
                    connection.send(answer)


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser(prog="python -m cflkit.flower.resident", description=__doc__)
    parser.add_argument("socket", type=Path, help="the path of the socket to create")
    parser.add_argument("--client", type=int, required=True, help="the number of the client")
    parser.add_argument("--data", type=Path, required=True, help="the client's file")
    parser.add_argument("--shared-seed", type=int, help="the number that the clients share")
    options = parser.parse_args()
    serve(options.socket, options.client, options.data, options.shared_seed)


if __name__ == "__main__":
    main()
