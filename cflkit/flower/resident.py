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
import contextlib
import secrets
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from cflkit.datasets import DatasetError

# The first part of an answer; the second one is the records, or the text of the error
WORKED, FAILED = b"worked", b"failed"


def passed_on(socket: Path, content: RecordDict) -> RecordDict:
    """Pass a message's content to the resident process, and return its answer.

    Raises
    ------
    RuntimeError
        The resident process could not answer; the message says why.
    """
    with Client(str(socket), authkey=key_of(socket).read_bytes()) as connection:
        connection.send_bytes(as_bytes(content))
        said, answer = connection.recv_bytes(), connection.recv_bytes()
    if said == FAILED:
        raise RuntimeError(answer.decode())
    return from_bytes(answer)


def key_of(socket: Path) -> Path:
    """Return the path of the key that opens a socket.

    Its ending is not ``.key``, which is the ending of a node's private key.
    """
    return socket.with_name(f"{socket.name}.authkey")


def serve(socket: Path, client: int, data: Path, shared_seed: int | None = None) -> None:
    """Answer messages until the process is ended.

    An error becomes the answer. A process that hangs up, or has a wrong key, gets none. In both
    cases, the next message is waited for.

    Raises
    ------
    DatasetError
        The client's file cannot be used.
    OSError
        The socket cannot be created.
    """
    from cflkit.flower.node import answered, read

    read(data)  # a wrong file is told now, and not only to the server
    socket.unlink(missing_ok=True)
    key = secrets.token_bytes(32)
    key_of(socket).unlink(missing_ok=True)
    key_of(socket).touch(mode=0o600)
    key_of(socket).write_bytes(key)
    with Listener(str(socket), authkey=key) as listener:
        socket.chmod(0o600)
        print(f"client {client} listens", flush=True)
        while True:
            hung_up = contextlib.suppress(EOFError, ConnectionError, AuthenticationError)
            with hung_up, listener.accept() as connection:
                content = connection.recv_bytes()
                try:
                    answer = answered(from_bytes(content), client, data, shared_seed)
                    said = WORKED, as_bytes(answer)
                except Exception as error:
                    said = FAILED, f"{type(error).__name__}: {error}".encode()
                for part in said:
                    connection.send_bytes(part)


def as_bytes(content: RecordDict) -> bytes:
    """Write records in Flower's own form for messages, without pickle."""
    return recorddict_to_proto(content).SerializeToString()


def from_bytes(sent: bytes) -> RecordDict:
    """Read what `as_bytes` has written."""
    return recorddict_from_proto(ProtoRecordDict.FromString(sent))


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser(prog="python -m cflkit.flower.resident", description=__doc__)
    parser.add_argument("socket", type=Path, help="the path of the socket to create")
    parser.add_argument("--client", type=int, required=True, help="the number of the client")
    parser.add_argument("--data", type=Path, required=True, help="the client's file")
    parser.add_argument("--shared-seed", type=int, help="the number that the clients share")
    options = parser.parse_args()
    try:
        serve(options.socket, options.client, options.data, options.shared_seed)
    except (DatasetError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("ended")


if __name__ == "__main__":
    main()
