"""The Flower ``ServerApp``: it runs methods in lockstep on a federation whose clients are nodes."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from pydantic import Field, TypeAdapter
from torch import Tensor

from cflkit import simulation
from cflkit._bounds import MOST, Share
from cflkit._project import expanded
from cflkit.federation import ClientsAbsent, Federation
from cflkit.federation.federation import Pair, Scores
from cflkit.federation.requests import NOBODY, Ask, Jobs, Losses, Request, Train, check_finite
from cflkit.flower.client_data import Split, divided
from cflkit.flower.messages import checked, packed, unpacked
from cflkit.flower.settings import Settings

POLL = 0.5  # how often the server looks for answers, in seconds
# No honest model, loss or embedding has a larger number. Sums of larger ones could overflow, and
# then the fault would no longer be that of the client that sent it
LARGEST = 1e9
# What a client may say: how many samples it has in each split, and macro-F1 and accuracy of models
COUNTS = TypeAdapter(list[dict[Split, Annotated[int, Field(ge=0, le=MOST, strict=True)]]])
SCORES = TypeAdapter(list[tuple[Share, Share]])
# From places of jobs to what their client is asked, and from its answer to one answer per place
Asking = Callable[[list[int]], dict[str, Any]]
Reading = Callable[[Any], Any]
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the methods, and write the results into the folder ``output`` of the settings, if any.

    If the run fails, ``flwr ls`` has the reason.
    """
    settings = Settings.of(context.run_config)
    output = expanded(settings.output or tempfile.mkdtemp())
    output.mkdir(parents=True, exist_ok=True)
    federation, line_up = RemoteFederation(grid, settings), settings.methods
    checkpoint = output / "checkpoint.pt"
    history = simulation.run(line_up, federation, settings.rounds, checkpoint=checkpoint)
    table = history.table()
    table.to_csv(output / "rounds.csv", index=False)
    # The models of each method, and the model of each client as weights of these
    models = {}
    for name, method in line_up.items():
        models[name] = dict(zip(("models", "mixture"), method.client_models(), strict=True))
    torch.save(models, output / "models.pt")
    checkpoint.unlink(missing_ok=True)
    last = table.groupby("method")["accuracy"].last().round(3)
    print(f"{last.to_dict()} after the last round; all results are in {output}")


class RemoteFederation(Federation):
    """A federation whose clients are elsewhere, and which has no sample: blanks stand for them.

    Each primitive that methods and the evaluation use sends messages and collects the answers. A
    message to a node that is lost is sent again once the node is back. If a client fails, or does
    not answer in time, all primitives raise `ClientsAbsent`.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    settings : Settings
        The settings of the run.

    Raises
    ------
    ClientsAbsent
        Not all clients have said hello in time.
    """

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self.grid, self.settings, self.nodes = grid, settings, [*settings.nodes]
        end, clients = time.monotonic() + settings.timeout, [*range(settings.clients)]
        while len(self.nodes) < len(clients) and time.monotonic() < end:  # in Flower's simulation
            time.sleep(POLL)
            self.nodes = sorted(grid.get_node_ids())[: len(clients)]
        if missing := clients[len(self.nodes) :]:
            raise ClientsAbsent(missing)
        held = self._answers("query.hello", clients, lambda _: {}, COUNTS.validate_python)
        count = sum(sum(samples.values()) for samples in held)
        blanks = torch.zeros(1, *settings.shape, dtype=torch.uint8).expand(count, -1, -1, -1)
        labels = torch.zeros(1, dtype=torch.int64).expand(count)
        data = divided(settings, blanks, labels, dict(enumerate(held)))
        super().__init__(*data, **settings.options)

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Let clients train; a model that is not finite ends its methods, and not the run."""
        form = torch.float32, None, jobs.models.shape[1]
        models = self._asked(Train(NOBODY), jobs, lambda answer: checked(answer, *form), round)
        trained = torch.stack(models) if models else torch.empty(0, jobs.models.shape[1])
        # In a mean with such a model, those of the others would seem to have diverged later
        trained[trained.abs() > LARGEST] = torch.inf
        check_finite(trained, jobs, round)
        return trained

    def losses(self, jobs: Jobs, split: str = "train", told: Any = None, **options: Any) -> Any:
        """Let clients compute losses, and tell them or what a method needs of them."""
        return self._asked(Losses(NOBODY, split, told=told, options=options), jobs, sound)

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Any) -> list[Any]:
        """Let clients answer a question that a method of the run asks."""
        return self._asked(Ask(NOBODY, question=question, options=options), jobs, sound)

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Let clients evaluate models."""

        def asking(places: list[int]) -> dict[str, Any]:
            mixtures = [pairs[place][0] for place in places]
            keys = sorted({key for mixture in mixtures for key, _ in mixture})
            rows = [[(keys.index(key), share) for key, share in mixture] for mixture in mixtures]
            needed = torch.stack([models[key] for key in keys])
            return {"models": needed, "mixtures": rows, "split": split}

        clients = [client for _, client in pairs]
        answers = self._answers("evaluate", clients, asking, SCORES.validate_python)
        return dict(zip(pairs, answers, strict=True))

    # --- Messages ---------------------------------------------------------------------------------

    def _asked(self, request: Request, jobs: Jobs, reading: Reading, order: int = 0) -> list[Any]:
        """Send each client its jobs, with the models that they need, and what it is asked."""
        kind = "train" if isinstance(request, Train) else "query.ask"
        place = self.settings.asked.index(request)
        training = None if jobs.training is None else asdict(jobs.training)

        def asking(places: list[int]) -> dict[str, Any]:
            part = jobs.part(places)
            used, model_of = part.model_of.unique(return_inverse=True)
            held = {"models": part.models[used], "model_of": model_of, "columns": part.columns}
            return held | {"place": place, "order": order, "training": training}

        return self._answers(kind, jobs.client_of.tolist(), asking, reading)

    def _answers(
        self, kind: str, clients: list[int], asking: Asking, reading: Reading
    ) -> list[Any]:
        """Send each client a request about its places in the list; return one answer per place."""
        places: dict[int, list[int]] = {}
        for place, client in enumerate(clients):
            places.setdefault(client, []).append(place)
        asked = {c: packed({"client": c, **asking(part)}) for c, part in places.items()}
        replies = self._exchange(kind, {self.nodes[c]: content for c, content in asked.items()})
        answers, faults = dict[int, Any](), dict[int, str]()
        for client, part in places.items():
            try:
                if (reply := replies.get(self.nodes[client])) is None:
                    raise ValueError("it did not answer in time")
                if reply.has_error():
                    raise ValueError(f"it failed: {reply.error.reason}")
                answers |= zip(part, reading(unpacked(reply.content)), strict=True)
            # Whatever is sent must not end the server: damaged arrays alone raise five errors
            except Exception as error:
                faults[client] = str(error)
        if faults:
            raise ClientsAbsent(list(faults), faults)
        return [answers[place] for place in range(len(clients))]

    def _exchange(self, kind: str, contents: dict[int, RecordDict]) -> dict[int, Message]:
        """Send each node its message; return the replies that arrive in time, by node."""
        end, replies = time.monotonic() + self.settings.timeout, dict[int, Message]()
        waiting: dict[str, int] = {}  # the node that each message without a reply was sent to
        while len(replies) < len(contents) and time.monotonic() < end:
            # What a node was asked is lost with the node, and it is asked again once it is back
            here = {*self.grid.get_node_ids()}
            waiting = {name: node for name, node in waiting.items() if node in here}
            new = sorted((contents.keys() & here) - {*waiting.values()} - replies.keys())
            messages = [Message(contents[node], node, kind) for node in new]
            waiting |= zip(self.grid.push_messages(messages), new, strict=True)
            for reply in self.grid.pull_messages([*waiting]) if waiting else ():
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if not reply.has_error() or reply.error.code != ErrorCode.NODE_UNAVAILABLE:
                    replies[node] = reply
            time.sleep(POLL if len(replies) < len(contents) else 0)
        return replies


def sound(answer: Any) -> Any:
    """Return an answer, all numbers of which are finite and not too large."""
    for part in answer if isinstance(answer, list) else ():
        sound(part)
    if not isinstance(answer, list) and not (abs(np.asarray(answer)) <= LARGEST).all():
        raise ValueError(f"its answer is not finite, or above {LARGEST:g}")
    return answer
