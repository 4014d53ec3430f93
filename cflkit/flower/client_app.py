"""The Flower ``ClientApp``: it answers the server's messages beside one client's data.

A node is started with a configuration such as ``client=3 data="hospital-3.npz"``:

- ``client``: the number of the client, from 0;
- ``data``: the client's file (`node.read`);
- ``shared-seed``: optional; a number that all clients share and the server does not know.
"""

from __future__ import annotations

import os
from pathlib import Path

# Nodes of a demonstration share a machine; a node that has one to itself can set a larger number
os.environ.setdefault("CFLKIT_THREADS", "1")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cflkit.flower import node
from cflkit.flower.messages import packed, unpacked
from cflkit.flower.setting import Setting

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the server."""
    request = unpacked(message.content)
    config = context.node_config
    client = int(config["client"])
    secret = config.get("shared-seed")
    federation = node.federation_of(
        Setting.received(request["setting"]),
        Path(str(config["data"])),
        client,
        None if secret is None else int(secret),
    )
    return Message(packed(node.answer(federation, client, request)), reply_to=message)
