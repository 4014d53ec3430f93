"""The Flower ``ClientApp``: it passes the server's messages to the process with a client's data.

Flower starts a new process for each message to a node. So this module must not import torch, which
takes seconds. A node is started with the configuration ``socket="client.socket"``: the path of the
socket on which `cflkit.flower.resident` listens, on the same machine and under the same user.
"""

from __future__ import annotations

from multiprocessing.connection import Client, Connection
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

# The first part of an answer; the second one is the records, or the text of the error
WORKED, FAILED = b"worked", b"failed"
app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the server."""
    if "socket" not in context.node_config:
        raise ValueError("start the node with --node-config 'socket=\"client.socket\"'")
    socket = Path(str(context.node_config["socket"]))
    with Client(str(socket), authkey=key_of(socket).read_bytes()) as connection:
        return Message(passed_on(connection, message.content), reply_to=message)


def key_of(socket: Path) -> Path:
    """Return the path of the key that opens a socket; a node's private key ends in ``.key``."""
    return socket.with_name(f"{socket.name}.authkey")


def passed_on(connection: Connection, content: RecordDict) -> RecordDict:
    """Return the resident process's answer; a `RuntimeError` says why it could not answer."""
    connection.send_bytes(as_bytes(content))
    said, answer = connection.recv_bytes(), connection.recv_bytes()
    if said == FAILED:
        raise RuntimeError(answer.decode())
    return from_bytes(answer)


def as_bytes(content: RecordDict) -> bytes:
    """Write records in Flower's own form for messages, without pickle."""
    return recorddict_to_proto(content).SerializeToString()


def from_bytes(sent: bytes) -> RecordDict:
    """Read what `as_bytes` has written."""
    return recorddict_from_proto(ProtoRecordDict.FromString(sent))
