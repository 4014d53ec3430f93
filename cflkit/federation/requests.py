"""The requests that a method can send to clients during a round.

A round of a method is a conversation: the method yields requests and gets their answers, one answer
per job and in the order of the jobs (see `cflkit.methods.base.Method.round`). Requests are data.
They can be counted, joined with those of other methods, and sent over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from cflkit.federation.jobs import Jobs

if TYPE_CHECKING:
    from cflkit.federation.interface import FederationLike


@dataclass(frozen=True)
class Request:
    """A request for a computation at clients.

    Attributes
    ----------
    jobs : Jobs
        The clients, and the models with which they compute.
    sent : bool
        Whether the server sends the models to the clients. Otherwise the clients compute with
        models that they have kept or made themselves.
    reported : bool
        Whether clients send their answers to the server. In some methods clients only act on them:
        in IFCA, a client picks the model with the smallest loss. The rest that such clients send is
        too small to count.
    """

    jobs: Jobs
    sent: bool = field(default=True, kw_only=True)
    reported: bool = field(default=True, kw_only=True)

    def kind(self) -> tuple[Any, ...]:
        """Return a key; requests with equal keys differ only in their jobs and can be joined."""
        optional = (self.jobs.subset, self.jobs.weights, self.jobs.anchor, self.jobs.about)
        return type(self), self.jobs.training, *(value is None for value in optional)

    def answered_by(self, federation: FederationLike, round: int) -> Any:
        """Let a federation compute the answers, and return them, one per job."""
        raise NotImplementedError

    def only(self, jobs: Jobs) -> Self:
        """Return the same request with other jobs."""
        return replace(self, jobs=jobs)


@dataclass(frozen=True)
class Train(Request):
    """A request to train each job's model on its client's samples; the answer is ``[J, P + Q]``.

    Attributes
    ----------
    order : int, optional
        The number that selects the clients' batch orders; by default the number of the round. A
        method that trains several times per round gives each training its own number.
    """

    order: int | None = None

    def kind(self) -> tuple[Any, ...]:
        """Return a key that includes the batch order."""
        return *super().kind(), self.order

    def answered_by(self, federation: FederationLike, round: int) -> Tensor:
        """Return the trained models; raise `Diverged` if one of them is not finite."""
        order = round if self.order is None else self.order
        return federation.train(self.jobs, order, reported=self.reported)


@dataclass(frozen=True)
class Send(Request):
    """A message with each job's model for its client, who answers nothing; the answers are None."""

    reported: bool = field(default=False, kw_only=True)

    def answered_by(self, federation: FederationLike, round: int) -> list[None]:
        """Return J times None."""
        return [None] * len(self.jobs)


@dataclass(frozen=True)
class Losses(Request):
    """A request for the loss of each job's model on each sample of its client: J tensors ``[n]``.

    Attributes
    ----------
    split : str
        The split of the samples, as in `Federation.predict`.
    """

    split: str = "train"

    def kind(self) -> tuple[Any, ...]:
        """Return a key with the split."""
        return *super().kind(), self.split

    def answered_by(self, federation: FederationLike, round: int) -> list[Tensor]:
        """Return the losses."""
        return federation.losses(self.jobs, self.split)


@dataclass(frozen=True)
class Ask(Request):
    """A request for anything else that a client can compute from its own data: J answers.

    Attributes
    ----------
    question : callable
        The function that runs at each client. Its arguments are the client itself (`Client`), the
        job's model (``[P + Q]``), what the job is about if it says so (`Jobs.about`), and the
        options. The client and the server exchange only these values and the result.
    options : mapping of str to object
        Further arguments, which are hashable and the same for all jobs.
    """

    question: Callable[..., Any] = field(kw_only=True)
    options: Mapping[str, Hashable] = field(default_factory=dict, kw_only=True)

    def kind(self) -> tuple[Any, ...]:
        """Return a key with the question and its options."""
        return *super().kind(), self.question, tuple(sorted(self.options.items()))

    def answered_by(self, federation: FederationLike, round: int) -> list[Any]:
        """Return the answers."""
        return federation.ask(self.question, self.jobs, **self.options)


Question = TypeVar("Question", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declared:
    """A question that clients answer over a network.

    Attributes
    ----------
    ask : callable
        The function that runs at each client, see `Ask`.
    fits : callable
        Whether a method can use an answer. Its arguments are the answer, which can be anything, the
        federation's `Blueprint`, what the job is about if it says so, and the options.
    """

    ask: Callable[..., Any]
    fits: Callable[..., bool]


# The questions that clients answer over a network, by name
QUESTIONS: dict[str, Declared] = {}


def question(fits: Callable[..., bool]) -> Callable[[Question], Question]:
    """Declare a function to be a question that clients answer over a network (`cflkit.flower`).

    Its answer must be safe to send: it must not contain samples or labels. For ``fits``, see
    `Declared`.
    """

    def declare(ask: Question) -> Question:
        QUESTIONS[f"{ask.__module__}.{ask.__name__}"] = Declared(ask, fits)
        return ask

    return declare


def is_finite(answer: Any, *shape: int | None) -> bool:
    """Return whether an answer is an array of this shape with finite numbers in it.

    A size of None stands for any size above zero.
    """
    if not isinstance(answer, Tensor | np.ndarray) or answer.ndim != len(shape):
        return False
    sizes = zip(answer.shape, shape, strict=True)
    if not all(have > 0 and need in (None, have) for have, need in sizes):
        return False
    values = np.asarray(answer)
    return values.dtype.kind in "fiu" and bool(np.isfinite(values).all())


def ask_clients(question: Callable[..., Any], clients: Tensor, **options: Hashable) -> Ask:
    """Build an `Ask` without models, for a question about the clients' data alone."""
    nothing = torch.empty(1, 0)
    jobs = Jobs(nothing, torch.zeros_like(clients), clients)
    return Ask(jobs, question=question, options=options)
