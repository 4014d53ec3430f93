"""The server's side: a federation whose clients are Flower nodes.

`RemoteFederation` has the primitives of `cflkit.federation.Federation`, so that methods, lockstep
and evaluation run on it unchanged. It has no sample: each primitive sends messages and collects
the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from cflkit.federation import ClientsAbsent, Jobs, Server, check_finite
from cflkit.federation.blueprint import Blueprint
from cflkit.federation.interface import Hook, Pair, Scores
from cflkit.federation.seeds import drawn
from cflkit.flower import answers
from cflkit.flower.node import sent_jobs
from cflkit.flower.nodes import Fault, Nodes
from cflkit.flower.setting import Setting


class RemoteFederation:
    """Clients that are elsewhere.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    setting : Setting
        The facts on which server and nodes agree.
    per_round : int, optional
        The number of clients that take part in a round; by default all.
    timeout : float
        How long to wait for an answer, in seconds.
    wait : float
        How long to wait for all clients at the start, in seconds.
    absent_allowed : bool
        Whether rounds go on without clients that do not answer, see `absence`. Otherwise, such a
        client ends the run.

    Attributes
    ----------
    nodes : Nodes
        The nodes that are connected.

    Raises
    ------
    ValueError
        More clients should take part than there are.
    ClientsAbsent
        Not all clients have said hello in time.
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
        self.nodes = Nodes(grid, setting, timeout, wait)
        samples = [self.num_samples(client) for client in range(self.clients)]
        self.sizes = torch.tensor(samples, dtype=torch.float32)
        self.server = Server(self)

    @property
    def identity(self) -> str:
        """Return the identity of the clients' data, for checkpoints: their numbers of samples."""
        return sha256(repr(sorted(self.nodes.samples.items())).encode()).hexdigest()

    def reachable(self, round: int) -> Tensor:
        """Return the clients that answer in a round, ascending: those whose nodes are there.

        Raises
        ------
        ClientsAbsent
            A client is absent, and rounds may not go on without clients.
        """
        self.nodes.enter(round)
        self._check(self.nodes.absent() if not self.absent_allowed else [])
        return torch.tensor(sorted(self.nodes.of), dtype=torch.int64)

    def participants(self, round: int) -> Tensor:
        """Return the clients that take part in a round, ascending: those drawn that are present.

        Raises
        ------
        ClientsAbsent
            None of the drawn clients is present; also see `reachable`.
        """
        there = self.reachable(round)
        chosen = self.drawn(torch.arange(self.clients), self.per_round, round)
        present = chosen[torch.isin(chosen, there)]
        self._check(chosen.tolist() if not len(present) else [])
        return present

    def drawn(self, clients: Tensor, count: int, *key: int) -> Tensor:
        """Draw some of the clients, in ascending order; the same for the same seed and key."""
        return drawn(clients, count, self.seed, *key)

    def num_samples(self, client: int, split: str = "train") -> int:
        """Return how many samples a client has in a split; 0 if there is no such split."""
        return self.nodes.samples[client].get(split, 0)

    # --- The primitives ---------------------------------------------------------------------------

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> Tensor:
        """Let clients train (`Federation.train`)."""
        width, own = jobs.models.shape[1], jobs_by_client(jobs)

        def fault(answer: Any, client: int) -> str | None:
            return answers.fault_of_models(answer, len(own[client]), width, self.absent_allowed)

        models = self._ask_all(jobs, "train", {"order": round}, fault)
        trained = torch.stack(models) if models else torch.empty(0, width)
        check_finite(trained, jobs, round)
        return trained

    def losses(self, jobs: Jobs, split: str = "train") -> list[Tensor]:
        """Let clients compute losses (`Federation.losses`)."""
        own = jobs_by_client(jobs)

        def fault(answer: Any, client: int) -> str | None:
            samples = self.num_samples(client, split)
            return answers.fault_of_losses(answer, len(own[client]), samples)

        return self._ask_all(jobs, "losses", {"split": split}, fault)

    def ask(self, question: Callable[..., Any], jobs: Jobs, **options: Hashable) -> list[Any]:
        """Let clients answer a question (`Federation.ask`).

        Raises
        ------
        ValueError
            Answers to this question are not safe to send.
        """
        name, own = answers.name_of(question), jobs_by_client(jobs)

        def fault(answer: Any, client: int) -> str | None:
            asked = jobs.part(own[client])
            return answers.fault_of_answers(answer, question, asked, self.blueprint, **options)

        request = {"question": name, "options": dict(options)}
        return self._ask_all(jobs, "ask", request, fault)

    def scores(self, models: Mapping[bytes, Tensor], pairs: Sequence[Pair], split: str) -> Scores:
        """Let clients evaluate models (`Federation.scores`); absent clients have no scores."""
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

        def fault(answer: Any, client: int) -> str | None:
            return answers.fault_of_scores(answer, len(own[client]))

        told = self.nodes.answers("scores", requests, fault)
        if not self.absent_allowed:
            self._check(sorted(set(requests) - set(told)))
        found: Scores = {}
        for client, answer in told.items():
            found |= zip(own[client], map(tuple, answer), strict=True)
        return found

    def _ask_all(self, jobs: Jobs, kind: str, request: dict[str, Any], fault: Fault) -> list[Any]:
        """Send each client its jobs, and return the answers in the order of all jobs.

        Raises
        ------
        ClientsAbsent
            A client does not answer, or its answer is of no use.
        """
        own = jobs_by_client(jobs)
        requests = {c: request | {"jobs": sent_jobs(jobs.part(which))} for c, which in own.items()}
        told = self.nodes.answers(kind, requests, fault)
        self._check(sorted(set(requests) - set(told)))
        found: list[Any] = [None] * len(jobs)
        for client, answer in told.items():
            for job, part in zip(own[client], answer, strict=True):
                found[job] = part
        return found

    def _check(self, absent: Sequence[int]) -> None:
        """Raise `ClientsAbsent` if somebody is absent."""
        if absent:
            raise ClientsAbsent(absent, self.nodes.faults)


def jobs_by_client(jobs: Jobs) -> dict[int, list[int]]:
    """Return the numbers of each client's jobs."""
    own: dict[int, list[int]] = {}
    for job, client in enumerate(jobs.client_of.tolist()):
        own.setdefault(client, []).append(job)
    return own
