"""The Flower ``ClientApp``: it answers the server's messages beside one client's data.

A node is started with a configuration such as ``client=3 data="hospital-3.npz"``:

- ``client``: the number of the client, from 0;
- ``data``: the client's file (`node.read`);
- ``shared-seed``: optional; a number that all clients share and the server does not know;
- ``socket``: optional; the socket of a resident process, which makes messages faster
  (`cflkit.flower.resident`). The other values are then those of this process.
"""

from __future__ import annotations

import os
from pathlib import Path

# Nodes of a demonstration share a machine; a node that has one to itself can set a larger number
os.environ.setdefault("CFLKIT_THREADS", "1")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cflkit.flower import resident

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the server."""
    config = context.node_config
    if "socket" in config:
        content = resident.passed_on(Path(str(config["socket"])), message.content)
    else:
        from cflkit.flower import node  # imports torch

        secret = config.get("shared-seed")
        content = node.answered(
            message.content,
            int(config["client"]),
            Path(str(config["data"])),
            None if secret is None else int(secret),
        )
    return Message(content, reply_to=message)
