"""What a method can ask of clients during a round.

A round of a method is a conversation: the method yields requests and gets their answers, one per
job and in the order of the jobs (see `cflkit.methods.base.Method.round`). Requests are data. They
can be counted, joined with those of other methods, and sent over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from cflkit.federation.jobs import Jobs

if TYPE_CHECKING:
    from cflkit.federation.federation import Federation


@dataclass(frozen=True)
class Request:
    """Something to compute at clients.

    Attributes
    ----------
    jobs : Jobs
        Which clients, and with which models.
    exchanged : bool
        Whether models and answers travel. Clients that train models of their own and keep the
        results exchange nothing.
    reported : bool
        Whether clients send their answers to the server. Where they only act on them (in IFCA a
        client picks the model with the smallest loss), what is left to send is too small to count.
    """

    jobs: Jobs
    exchanged: bool = field(default=True, kw_only=True)
    reported: bool = field(default=True, kw_only=True)

    def kind(self) -> tuple[Any, ...]:
        """Return a key: requests of one kind differ in their jobs alone and can be joined."""
        optional = (self.jobs.subset, self.jobs.weights, self.jobs.anchor)
        return type(self), self.jobs.training, *(value is None for value in optional)

    def answered_by(self, federation: Federation, round: int) -> Any:
        """Return the answers of a federation, one per job."""
        raise NotImplementedError

    def only(self, jobs: Jobs) -> Self:
        """Return the same request with other jobs."""
        return replace(self, jobs=jobs)


@dataclass(frozen=True)
class Train(Request):
    """Local training of each job's model on its client's samples; the answer is ``[J, P + Q]``.

    Attributes
    ----------
    order : int, optional
        Which of the clients' batch orders; the round's number by default. A method that trains
        several times per round gives each training an order of its own.
    """

    order: int | None = None

    def kind(self) -> tuple[Any, ...]:
        """Return a key of all that the batch order and the optimiser depend on."""
        return *super().kind(), self.order

    def answered_by(self, federation: Federation, round: int) -> Tensor:
        """Return the trained models; raise `Diverged` if one of them is not finite."""
        return federation.train(self.jobs, round if self.order is None else self.order)


@dataclass(frozen=True)
class Losses(Request):
    """The loss of each job's model on each sample of its client; J tensors ``[n]``.

    Attributes
    ----------
    split : str
        As in `Federation.predict`.
    """

    split: str = "train"

    def kind(self) -> tuple[Any, ...]:
        """Return a key with the split."""
        return *super().kind(), self.split

    def answered_by(self, federation: Federation, round: int) -> list[Tensor]:
        """Return the losses."""
        return federation.losses(self.jobs, self.split)


@dataclass(frozen=True)
class Embed(Request):
    """What enters the last layer of each job's model; J tensors ``[n, d]``.

    Attributes
    ----------
    split, max_samples, train_mode
        As in `Federation.embed`.
    """

    split: str = "train"
    max_samples: int | None = None
    train_mode: bool = False

    def kind(self) -> tuple[Any, ...]:
        """Return a key with all options."""
        return *super().kind(), self.split, self.max_samples, self.train_mode

    def answered_by(self, federation: Federation, round: int) -> list[Tensor]:
        """Return the embeddings."""
        return federation.embed(self.jobs, self.split, self.max_samples, self.train_mode)


@dataclass(frozen=True)
class Ask(Request):
    """Anything else that a client can compute from its own data; J answers.

    Attributes
    ----------
    question : callable
        Runs at each client, who passes itself (`Client`), the job's model (``[P + Q]``) and the
        options. Its arguments and its result are all that the client and the server exchange.
    options : mapping of str to object
        The same for all jobs; hashable values.
    with_model : bool
        Whether the question needs the job's model. Otherwise no model is sent.
    """

    question: Callable[..., Any] = field(kw_only=True)
    options: Mapping[str, Hashable] = field(default_factory=dict, kw_only=True)
    with_model: bool = field(default=True, kw_only=True)

    def kind(self) -> tuple[Any, ...]:
        """Return a key with the question and its options."""
        return *super().kind(), self.question, tuple(sorted(self.options.items()))

    def answered_by(self, federation: Federation, round: int) -> list[Any]:
        """Return the answers."""
        return federation.ask(self.question, self.jobs, **self.options)


def ask_clients(question: Callable[..., Any], clients: Tensor, **options: Hashable) -> Ask:
    """Return an `Ask` without models: a question about the clients' data alone."""
    nothing = torch.empty(1, 0)
    jobs = Jobs(nothing, torch.zeros_like(clients), clients)
    return Ask(jobs, question=question, options=options, with_model=False)
