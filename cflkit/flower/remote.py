"""The server's side: a federation whose clients are Flower nodes.

`RemoteFederation` has the primitives of `cflkit.federation.Federation`, so that methods, lockstep
and evaluation run on it unchanged. It has no sample: each primitive sends messages and collects
the answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from cflkit.federation import ClientsAbsent, Diverged, Jobs, Server, check_finite
from cflkit.federation.blueprint import Blueprint
from cflkit.federation.interface import Hook, Pair, Scores
from cflkit.federation.seeds import drawn
from cflkit.flower.agreement import Setting
from cflkit.flower.answers import LARGEST, QUESTIONS, TOLD, is_array, name_of
from cflkit.flower.nodes import Nodes
from cflkit.methods import Method
from cflkit.simulation.evaluation import History
from cflkit.simulation.lockstep import Traffic, converse


class RemoteFederation:
    """Clients that are elsewhere; see `Federation` for the attributes and methods.

    All methods raise `ClientsAbsent` where clients that are needed do not answer.

    Parameters
    ----------
    grid, setting, timeout, wait, numbers
        See `Nodes`.
    per_round : int, optional
        The number of clients that take part in a round; by default all.
    absent_allowed : bool
        Whether rounds go on without clients that do not answer (`converse_with_present`).
        Otherwise, such a client ends the run.

    Raises
    ------
    ValueError
        More clients should take part than there are.
    """

    task = "classification"
    engine = "flower"
    after_training: tuple[Hook, ...] = ()
    clusters: Tensor | None = None

    def __init__(
        self,
        grid: Grid,
        setting: Setting,
        *,
        numbers: Sequence[int],
        per_round: int | None = None,
        timeout: float = 600.0,
        wait: float = 600.0,
        absent_allowed: bool = False,
    ) -> None:
        self.absent_allowed = absent_allowed
        self.clients, self.seed, self.training = setting.clients, setting.seed, setting.training
        self.per_round = per_round or self.clients
        if not 1 <= self.per_round <= self.clients:
            raise ValueError(f"{self.per_round} of {self.clients} clients cannot take part")
        self.partial = absent_allowed or self.per_round < self.clients
        self.device = torch.device("cpu")
        self.blueprint = Blueprint(
            setting.model, setting.shape, setting.classes, self.seed, self.device
        )
        self.parameters, self.initial = self.blueprint.parameters, self.blueprint.initial
        self.nodes = Nodes(grid, setting, timeout, wait, numbers)
        samples = [self.num_samples(client) for client in range(self.clients)]
        self.sizes = torch.tensor(samples, dtype=torch.float32)
        self.server = Server(self)

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data, for checkpoints: their numbers of samples."""
        return sha256(repr(sorted(self.nodes.samples.items())).encode()).hexdigest()

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round, ascending: those whose nodes are there."""
        self.nodes.enter(round)
        if not self.absent_allowed:
            self.nodes.need(range(self.clients))
        return torch.tensor(sorted(self.nodes.of), dtype=torch.int64)

    def participants(self, round: int) -> Tensor:
        """Return the clients that take part in a round, ascending: those drawn that are present."""
        chosen = drawn(torch.arange(self.clients), self.per_round, self.seed, round)
        present = chosen[torch.isin(chosen, self.reachable(round))]
        if not len(present):
            self.nodes.need(chosen.tolist())
        return present

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""
        return self.nodes.samples[client].get(split, 0)

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Let clients train."""
        width = jobs.models.shape[1]

        def fits(job: int, model: Any) -> bool:
            # Where nobody may be absent, a model that is not finite ends its methods, not the run
            finite = self.absent_allowed
            return is_array(model, torch.float32, width, finite=finite)

        models = self._ask_all(jobs, "train", fits, order=round)
        trained = torch.stack(models) if models else torch.empty(0, width)
        # In a mean with such a model, those of the others would seem to have diverged later
        trained[trained.abs() > LARGEST] = torch.inf
        check_finite(trained, jobs, round)
        return trained

    def losses(
        self, jobs: Jobs, split: str, told: Callable[..., Tensor] | None, **options: Hashable
    ) -> list[Tensor]:
        """Let clients compute losses, and tell them or what a method needs of them."""
        counts = [self.num_samples(client, split) for client in jobs.client_of.tolist()]

        def fits(job: int, row: Any) -> bool:
            return TOLD[told].fits(row, counts[job])

        asked = {"split": split, "told": name_of(told), "options": options}
        return self._ask_all(jobs, "losses", fits, **asked)

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let clients answer a question that is safe to answer (`name_of`)."""
        name = name_of(question)

        def fits(job: int, answer: Any) -> bool:
            about = (jobs.of(job, "about"),) if "about" in jobs.columns else ()
            return QUESTIONS[question].fits(answer, self.blueprint, *about, **options)

        return self._ask_all(jobs, "ask", fits, question=name, options=options)

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Let clients evaluate models; absent clients have no scores."""
        own: dict[int, list[Pair]] = {}
        for mixture, client in pairs:
            if client in self.nodes.of:
                own.setdefault(client, []).append((mixture, client))
        requests = {}
        for client, held in own.items():
            keys = sorted({key for mixture, _ in held for key, _ in mixture})
            requests[client] = {
                "keys": keys,
                "models": torch.stack([models[key] for key in keys]),
                "mixtures": [mixture for mixture, _ in held],
                "split": split,
            }

        def fits(pair: Pair, answer: Any) -> bool:
            form = type(answer) is tuple and [*map(type, answer)] == [float, float]
            return form and all(0 <= score <= 1 for score in answer)

        found = self.nodes.answers("scores", requests, own, fits)
        if not self.absent_allowed:
            self.nodes.need(own)
        return found

    def _ask_all(
        self, jobs: Jobs, kind: str, fits: Callable[[int, Any], bool], **request: Any
    ) -> list[Any]:
        """Send each client its jobs, and return the answers in the order of all jobs."""
        own: dict[int, list[int]] = {}
        for job, client in enumerate(jobs.client_of.tolist()):
            own.setdefault(client, []).append(job)
        requests = {c: request | {"jobs": sent_jobs(jobs.part(which))} for c, which in own.items()}
        found = self.nodes.answers(kind, requests, own, fits)
        self.nodes.need(own)
        return [found[job] for job in range(len(jobs))]


def sent_jobs(jobs: Jobs) -> dict[str, Any]:
    """Return one client's jobs in a form that can be sent, with only the models that they need."""
    used, model_of = jobs.model_of.unique(return_inverse=True)
    columns = {name: list(values) for name, values in jobs.columns.items()}
    training = None if jobs.training is None else asdict(jobs.training)
    models = jobs.models[used]
    return {"models": models, "model_of": model_of, "training": training, "columns": columns}


def converse_with_present(
    methods: Mapping[str, Method],
    federation: RemoteFederation,
    t: int,
    history: History,
    *options: Any,
) -> tuple[dict[str, Traffic], dict[str, Diverged]]:
    """Run a round as `converse` does; if clients fail in it, begin it again without them.

    It raises `ClientsAbsent` if a method asks clients that were absent before, or if nobody who
    should take part is there.
    """
    before = {name: copy.deepcopy(method.state()) for name, method in methods.items()}
    counts = history.requested, history.trained
    while True:
        there = set(federation.reachable(t).tolist())
        try:
            return converse(methods, federation, t, history, *options)
        except ClientsAbsent as error:
            if not there.intersection(error.clients):
                raise ClientsAbsent(error.clients, federation.nodes.faults) from error
        except ValueError:  # perhaps a method that needs everyone, as PACFL at its start
            federation.nodes.need(range(federation.clients))
            raise
        for name, method in methods.items():
            method.restore(copy.deepcopy(before[name]))
        history.requested, history.trained = counts
