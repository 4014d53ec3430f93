"""The Flower ``ClientApp``: a node answers the server's messages, each in a process of its own.

A node checks the form of what it is asked: nothing is unpickled, arrays have their types and sizes,
and only questions that a method of the run asks are answered. It cannot do more. The server chooses
the methods and the models, and Flower even lets it choose the program that runs here. A message of
another form is an error, which Flower writes into the node's log and sends to the server.
"""

from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cflkit.federation import Ask, Diverged, Federation, Jobs, LocalTraining
from cflkit.flower.client_data import federation_at
from cflkit.flower.messages import checked, packed, unpacked
from cflkit.flower.settings import Settings

# The modules of the questions whose answers clients hide with their secret
HIDDEN = ("cflkit.methods.emd_cfl_clients", "cflkit.methods.emd_cfl_variants")
app = ClientApp()


def opened(message: Message, context: Context) -> tuple[dict[str, Any], Settings, Federation]:
    """Return what a message asks, the run's settings, and the federation as the node sees it."""
    sent, settings = unpacked(message.content), Settings.of(context.run_config)
    if context.node_config.get("client", sent["client"]) != sent["client"]:
        raise ValueError(f"this node is not client {sent['client']}: are two keys swapped?")
    return sent, settings, federation_at(settings, context.node_config, sent["client"])


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Tell how many samples the client has in each split; the node's log has its number."""
    sent, settings, federation = opened(message, context)
    print(f"In this run, you are client {sent['client']} of {settings.clients}.", flush=True)
    held = {s: len(part[sent["client"]]) for s, part in federation.partition.splits.items()}
    return Message(packed([held]), reply_to=message)


@app.train()
@app.query("ask")
def answer(message: Message, context: Context) -> Message:
    """Answer one of the requests of the run, for jobs that were sent."""
    sent, settings, federation = opened(message, context)
    asked, node = settings.asked[sent["place"]], context.node_config
    # In Flower's simulation there are no secrets, and clients hide nothing
    hides = "secret" in node or "data" not in node
    if isinstance(asked, Ask) and asked.question.__module__ in HIDDEN and not hides:
        raise ValueError("clients hide this answer with a secret, which --node-config must name")
    try:
        answers = asked.only(jobs_in(sent, federation)).answered_by(federation, sent["order"])
    except Diverged as error:  # the server sees which models are not finite
        answers = error.trained
    return Message(packed(answers), reply_to=message)


def jobs_in(sent: dict[str, Any], federation: Federation) -> Jobs:
    """Return the jobs that were sent; a `ValueError` says that they have another form."""
    client, models, model_of = sent["client"], sent["models"], sent["model_of"]
    checked(model_of, torch.int64, None)
    # Some questions are about the data alone, and then models have no columns
    width = federation.parameters + federation.buffers if models.shape[1] else 0
    sizes = {"anchor": width, "weights": federation.num_samples(client)}
    columns, training = sent["columns"], sent["training"]
    for name in columns.keys() - {"about"}:
        for value in columns[name]:
            checked(value, torch.float32, sizes[name])
    checked(models, torch.float32, None, width)
    local = LocalTraining(**training) if training else None
    return Jobs(models, model_of, torch.full_like(model_of, client), local, **columns)


@app.evaluate()
def scores(message: Message, context: Context) -> Message:
    """Tell macro-F1 and accuracy of each mixture of models on a test set of the client."""
    sent, _, federation = opened(message, context)
    client, models, split = sent["client"], sent["models"], sent["split"]
    checked(models, torch.float32, None, federation.parameters + federation.buffers)
    if split not in ("test", "backdoor"):
        raise ValueError(f"models are not evaluated on the split {split!r}")
    pairs: Any = [(tuple(map(tuple, mixture)), client) for mixture in sent["mixtures"]]
    rows: Any = dict(enumerate(models))
    measured = federation.scores(rows, pairs, split)
    return Message(packed([measured[pair] for pair in pairs]), reply_to=message)
