"""A process that keeps a client's data and torch loaded, and answers the messages to its node.

    python -m cflkit.flower.resident SOCKET --client 3 --data hospital-3.npz --agreed settings.toml

It answers only what the file of settings allows, to which the owner of the data has agreed.

The node passes its messages on through the socket (`cflkit.flower.client_app`). The socket and the
key beside it can be read by this user alone.
"""

from __future__ import annotations

import argparse
import secrets
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from cflkit.datasets import DatasetError
from cflkit.flower.agreement import Agreement
from cflkit.flower.client_app import FAILED, WORKED, as_bytes, from_bytes, key_of
from cflkit.flower.node import Node


def serve(socket: Path, client: int, data: Path, agreed: Path, shared_seed: int | None) -> None:
    """Answer messages until the process is ended; whoever has a wrong key gets no answer.

    Raises
    ------
    DatasetError
        The client's file cannot be used, or does not fit the settings.
    ValueError
        The settings are wrong, or need a shared seed.
    OSError
        A file cannot be read, or the socket cannot be created.
    """
    node = Node(client, data, Agreement.read(agreed), shared_seed)
    key = secrets.token_bytes(32)
    for path in (socket, key_of(socket)):
        path.unlink(missing_ok=True)
    key_of(socket).touch(mode=0o600)
    key_of(socket).write_bytes(key)
    with Listener(str(socket), authkey=key) as listener:
        socket.chmod(0o600)
        print(f"client {client} listens", *node.agreement.lines(), sep="\n", flush=True)
        while True:
            hung_up = suppress(EOFError, ConnectionError, AuthenticationError)
            with hung_up, listener.accept() as connection:
                answer_one(connection, node)


def answer_one(connection: Connection, node: Node) -> None:
    """Answer one message; an error becomes the answer."""
    content = connection.recv_bytes()
    try:
        said = WORKED, as_bytes(node.answered(from_bytes(content)))
    except Exception as error:
        said = FAILED, f"{type(error).__name__}: {error}".encode()
    for part in said:
        connection.send_bytes(part)


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser(prog="python -m cflkit.flower.resident", description=__doc__)
    parser.add_argument("socket", type=Path, help="the path of the socket to create")
    parser.add_argument("--client", type=int, required=True, help="the number of the client")
    parser.add_argument("--data", type=Path, required=True, help="the client's file")
    parser.add_argument(
        "--agreed", type=Path, required=True, help="the settings of the run that may be answered"
    )
    parser.add_argument("--shared-seed", type=int, help="the number that the clients share")
    try:
        serve(**vars(parser.parse_args()))
    except (DatasetError, OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("ended")


if __name__ == "__main__":
    main()
