"""The Flower ``ClientApp``: a node answers the server's messages, each in a process of its own.

A node checks the form of what it is asked: nothing is unpickled, arrays have their types and sizes,
and only questions that a method of the run asks are answered. It cannot do more. The server chooses
the methods and the models, and Flower even lets it choose the program that runs here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from torch import Tensor

from cflkit.federation import Ask, Diverged, Jobs, LocalTraining, Request
from cflkit.federation.federation import Pair
from cflkit.flower.client_data import federation_at
from cflkit.flower.keys import read_secret
from cflkit.flower.messages import is_array, one_line, packed, unpacked
from cflkit.flower.settings import Settings

TESTED = ("test", "backdoor")
# The modules of the questions whose answers clients hide with their secret
HIDDEN = ("cflkit.methods.emd_cfl_clients", "cflkit.methods.emd_cfl_variants")
app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the server."""
    node = Node(context.run_config, context.node_config)
    return Message(node.answered(message.content), reply_to=message)


class Refused(Exception):
    """A node does not answer a message; the text says which client refuses it, and why."""


class Node:
    """A client with its data, which answers the requests of a run.

    Parameters
    ----------
    run, node
        The settings of the run (`settings`), and those of the node (`client_data.federation_at`).
        The node's ``secret`` is the path of a file (`keys.write_secret`).
    """

    def __init__(self, run: Mapping[str, Any], node: Mapping[str, Any]) -> None:
        self.settings = Settings.of(run)
        self.client, self.federation = federation_at(self.settings, node)
        # In Flower's simulation there are no secrets, and clients hide nothing
        self.hides = "secret" in node or "data" not in node
        if "secret" in node:
            self.federation.shared_seed = read_secret(Path(str(node["secret"])))

    def answered(self, content: RecordDict) -> RecordDict:
        """Answer the content of a message; `Refused` says why not, and so does the node's log."""
        try:
            compute = self.computation(unpacked(content))
        # Whatever a server sends, it gets no answer from here, and the node goes on
        except Exception as error:
            why = error if isinstance(error, Refused) else f"it cannot be read: {error!r}"
            reason = one_line(f"client {self.client} refuses a message of the server: {why}")
            log(WARNING, "%s", reason)
            raise Refused(reason) from error
        try:
            return packed(answer=compute())
        except Diverged as error:  # the server sees which models are not finite
            return packed(answer=error.trained)

    def computation(self, request: Mapping[str, Any]) -> Callable[[], Any]:
        """Return the function that computes the answer, if the request has a right form."""
        match request:
            case {"kind": "hello", "client": None | self.client}:
                return self.hello
            case {"kind": "hello", "client": expected}:
                raise Refused(
                    f"it takes this node's key for that of client {expected}, but the data here "
                    f"are those of client {self.client}: keys or numbers are swapped"
                )
            case {"place": int(place), "order": int(order), "jobs": sent} if min(place, order) >= 0:
                asked = self.asked(place).only(self.jobs(sent))
                return partial(asked.answered_by, self.federation, order)
            case {"kind": "scores", "models": models, "mixtures": [*mixtures], "split": split}:
                if split not in TESTED or not self.federation.num_samples(self.client, split):
                    raise Refused(f"models are not evaluated on the split {split!r}")
                self.check_models(models)
                if not all(is_mixture(len(models), mixture) for mixture in mixtures):
                    raise Refused("a mixture must be pairs of a model's row and its weight")
                return partial(self.scores, models, mixtures, split)
        raise Refused(f"nodes do not answer such a request of the kind {request.get('kind')!r}")

    # --- The form of requests ---------------------------------------------------------------------

    def check_models(self, models: Any) -> None:
        """Check that models are rows of the network's width; for some questions there are none."""
        width = self.federation.parameters + self.federation.buffers
        if not any(is_array(models, torch.float32, (None, columns)) for columns in (0, width)):
            raise Refused(f"models must be rows of {width} numbers of float32")

    def jobs(self, sent: Any) -> Jobs:
        """Return jobs that were sent."""
        models, of, columns = sent["models"], sent["model_of"], sent["columns"]
        self.check_models(models)
        if not is_array(of, torch.int64, (None,)) or not 0 <= of.min() <= of.max() < len(models):
            raise Refused("each job must have one of the models")
        sizes = {"anchor": models.shape[1], "weights": self.federation.num_samples(self.client)}
        for name, values in columns.items():
            if name == "about":  # clients, of which JSON makes a list
                values[:] = [tuple(who) if isinstance(who, list) else who for who in values]
                fit = all(map(self.are_clients, values))
            else:
                fit = all(is_array(value, torch.float32, (sizes[name],)) for value in values)
            if len(values) != len(of) or not fit:
                raise Refused(f"{name!r} has a wrong form")
        training = None if sent["training"] is None else LocalTraining(**sent["training"])
        return Jobs(models, of, torch.full_like(of, self.client), training, **columns)

    def are_clients(self, about: Any) -> bool:
        """Return whether a value is the number of a client, or a tuple of such numbers."""
        clients = about if isinstance(about, tuple) else (about,)
        return all(type(who) is int and 0 <= who < self.settings.clients for who in clients)

    def asked(self, place: int) -> Request:
        """Return one of the requests of the run."""
        request = self.settings.asked[place]
        if isinstance(request, Ask) and request.question.__module__ in HIDDEN and not self.hides:
            raise Refused("clients hide this answer with a secret; start with --secret")
        return request

    # --- Answers ----------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """Return the client's number, and how many samples it has in each split."""
        splits, count = self.federation.partition.splits, self.federation.num_samples
        counts = {split: count(self.client, split) for split in splits}
        return {"client": self.client, "samples": counts}

    def scores(self, models: Tensor, mixtures: list[Any], split: str) -> list[Any]:
        """Return macro-F1 and accuracy of each mixture of models."""
        keys = [b"%d" % row for row in range(len(models))]
        mixed = [tuple((keys[row], share) for row, share in mixture) for mixture in mixtures]
        pairs: list[Pair] = [(mixture, self.client) for mixture in mixed]
        scores = self.federation.scores(dict(zip(keys, models, strict=True)), pairs, split)
        return [np.array(scores[pair]) for pair in pairs]


def is_mixture(models: int, mixture: Any) -> bool:
    """Return whether a mixture is pairs of a model's row and its weight."""
    match mixture:
        case [[int(row), float(share)], *more]:
            right = 0 <= row < models and math.isfinite(share)
            return right and (not more or is_mixture(models, more))
    return False
