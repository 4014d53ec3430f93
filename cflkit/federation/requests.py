"""What a method asks of clients: jobs, the local training that they do, and requests.

A round of a method is a conversation: the method yields requests and gets their answers, one answer
per job and in the order of the jobs (see `cflkit.methods.base.Method.round`). Requests are data.
They can be counted, joined with those of other methods, and sent over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, Self, TypeAlias, TypeVar

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from cflkit._bounds import STRICT, Count, Mistake, Momentum, NonNegative, Optimizer, Positive
from cflkit.models.rows import digests, finite_rows

Outcome = TypeVar("Outcome")


@validated(frozen=True, config=STRICT)
class LocalTraining:
    """The training of a model at a client in one round, with a new optimiser each time.

    Attributes
    ----------
    epochs : int
        The number of local epochs, at least 1.
    batch_size : int
        The number of samples per step, at least 1. The last batch of an epoch may be smaller. What
        BatchNorm does where it has one sample is said in `RowModel`.
    optimizer : {"sgd", "adam"}
        The optimiser of PyTorch, with its defaults except for the values below.
    lr, weight_decay : float
        The learning rate, which is positive, and the weight decay, which is not negative.
    momentum : float
        The momentum of SGD, in [0, 1).
    penalty : {"none", "proximal", "norms", "cosine", "linear"}
        A term that is added to the loss: μ/2 ‖θ − c‖² (``proximal``, FedProx), the sum of μ ‖θ − c‖
        over the network's tensors (``norms``), μ ⟨c, θ⟩ / ‖θ‖ (``cosine``, pFedGraph; a negative μ
        pulls θ towards the direction of c), or μ ⟨c, θ⟩ (``linear``, SCAFFOLD). Here θ are the
        trained parameters, c are those of the job's anchor (`Jobs`), and μ is the strength.
    strength : float
        The strength μ of the penalty.
    trains : {"all", "head", "body"}
        Which parameters move: all, those of the layer ``classifier``, or all others.
    precision : {"float32", "tf32"}
        The precision of matrix products and convolutions, also where models are only evaluated.
        ``tf32`` rounds their factors to 10 bits, on NVIDIA GPUs alone. It is not meant for records
        that must be exact.
    """

    epochs: Count = 3
    batch_size: Count = 32
    optimizer: Optimizer = "sgd"
    lr: Positive = 0.01
    momentum: Momentum = 0.0
    weight_decay: NonNegative = 0.0
    penalty: Literal["none", "proximal", "norms", "cosine", "linear"] = "none"
    strength: float = 0.0
    trains: Literal["all", "head", "body"] = "all"
    precision: Literal["float32", "tf32"] = "float32"

    @model_validator(mode="after")
    def consistent(self) -> LocalTraining:
        """Refuse options that contradict each other."""
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd, not to adam")
        if self.penalty == "none" and self.strength:
            raise ValueError("a strength needs a penalty")
        if self.penalty in ("proximal", "norms") and self.strength < 0:
            raise ValueError(f"a proximal penalty needs a strength ≥ 0, not {self.strength}")
        return self

    def moving(self, named: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
        """Return those of a network's parameters, by name, that the training moves."""
        every, head = self.trains == "all", self.trains == "head"
        return [p for n, p in named.items() if every or n.startswith("classifier.") == head]

    def build(self, named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimiser of the parameters that move, by name; stacked ones do as well."""
        parameters, decay = self.moving(named), self.weight_decay
        if self.optimizer == "adam":
            # Fused Adam makes one pass over the memory; torch's default on a CPU makes many
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=decay, fused=True)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=decay)


class Jobs:
    """J jobs, each a pair of a model and a client, with further columns that a request may need.

    Parameters
    ----------
    models : Tensor
        ``[K, P + Q]``, the distinct models.
    model_of, client_of : Tensor
        ``[J]``, int64: the row of ``models`` and the client of each job.
    training : LocalTraining, optional
        The local training of these jobs; by default that of the federation.
    **columns
        J values each, tensors or hashable: ``subset``, the positions (int64) of the samples to
        train on among the client's; ``weights``, their weights ``[n]`` in the loss, which is the
        weighted sum over a batch divided by the size of the batch; ``anchor``, the model
        ``[P + Q]`` to which the penalty refers, by default the job's own; ``about``, what a
        question to the client is about (`Ask`).
    """

    def __init__(
        self,
        models: Tensor,
        model_of: Tensor,
        client_of: Tensor,
        training: LocalTraining | None = None,
        **columns: Sequence[Any] | Tensor,
    ) -> None:
        self.models, self.model_of, self.client_of = models, model_of, client_of
        self.training, self.columns = training, columns

    def __len__(self) -> int:
        return len(self.client_of)

    def replace(self, **changes: Any) -> Jobs:
        """Return the same jobs with other attributes or columns."""
        attributes = {name: value for name, value in vars(self).items() if name != "columns"}
        return Jobs(**attributes | self.columns | changes)

    def part(self, which: Sequence[int]) -> Jobs:
        """Return some of the jobs."""
        index = torch.as_tensor(which, dtype=torch.int64)
        columns = {name: [column[job] for job in which] for name, column in self.columns.items()}
        return self.replace(
            model_of=self.model_of[index], client_of=self.client_of[index], **columns
        )

    def of(self, job: int, column: str, default: Any = None) -> Any:
        """Return the value of a job in a column, if there is such a column."""
        return self.columns[column][job] if column in self.columns else default

    def keys(self) -> list[tuple[Hashable, ...]]:
        """Return one key per job; jobs with equal keys ask for the same computation.

        A key has the model's digest, the client, and the names and digests of the columns.
        """
        models, clients = digests(self.models), self.client_of.tolist()
        columns = []
        for name, values in sorted(self.columns.items()):
            column = list(values)
            known = {id(v): key_of(v) for v in column}
            columns.append([(name, known[id(v)]) for v in column])
        rows = (models[row] for row in self.model_of.tolist())
        return list(zip(rows, clients, *columns, strict=True))


def key_of(value: Any) -> Hashable:
    """Return the digest of a tensor; any other value is its own key."""
    if not isinstance(value, Tensor):
        return value
    [digest] = digests(value[None])
    # The position 0 adds nothing to a digest, so the number of positions counts, too
    return digest if value.is_floating_point() else (*value.shape, digest)


def joined(parts: Sequence[Jobs]) -> Jobs:
    """Join `Jobs` that have the same columns and the same training."""
    if len(parts) == 1:
        return parts[0]
    before = accumulate((len(jobs.models) for jobs in parts), initial=0)
    rows = [jobs.model_of + count for jobs, count in zip(parts, before, strict=False)]
    models = torch.cat([jobs.models for jobs in parts])
    columns = {name: [v for jobs in parts for v in jobs.columns[name]] for name in parts[0].columns}
    clients = torch.cat([jobs.client_of for jobs in parts])
    return Jobs(models, torch.cat(rows), clients, parts[0].training, **columns)


class Diverged(Mistake):
    """Training gave NaN or infinity; the message names the round and the clients.

    Without clients, the models of the server are meant, such as those after too large a step.

    Attributes
    ----------
    trained : Tensor
        ``[J, P + Q]``, all trained models, or those of the server.
    broken : Tensor
        ``[J]``, bool: whether each of these models is not finite.
    """

    def __init__(self, round: int, clients: Iterable[int], trained: Tensor, broken: Tensor) -> None:
        owners = sorted(set(clients))
        whose = f"of clients {owners}" if owners else "on the server"
        super().__init__(
            f"training diverged in round {round + 1}: the models {whose} are no longer finite; "
            "lower the learning rate"
        )
        self.trained, self.broken = trained, broken


class ClientsAbsent(Exception):
    """Clients are asked that do not answer.

    Attributes
    ----------
    clients : list of int
        The clients.
    """

    def __init__(self, clients: Sequence[int], reasons: Mapping[int, str] | None = None) -> None:
        known = reasons or {}
        listed = "; ".join(f"client {c}: {known.get(c, 'no answer')}" for c in clients)
        super().__init__(f"a round needs clients that are absent ({listed})")
        self.clients = list(clients)


def check_finite(trained: Tensor, jobs: Jobs, round: int) -> None:
    """Raise `Diverged` if any trained model or other answer (``[J, D]``) is not finite."""
    broken = ~finite_rows(trained).cpu()
    if broken.any():
        raise Diverged(round, jobs.client_of[broken].tolist(), trained, broken)


# --- Requests -------------------------------------------------------------------------------------


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
        return type(self), self.jobs.training, *sorted(self.jobs.columns)

    def keys(self) -> list[tuple[Any, ...]]:
        """Return one key per job; jobs with equal keys have the same answer (`Jobs.keys`)."""
        return self.jobs.keys()

    def answered_by(self, federation: Any, round: int) -> Any:
        """Let a `Federation` compute the answers, one per job."""
        raise NotImplementedError

    def only(self, jobs: Jobs) -> Self:
        """Return the same request with other jobs."""
        return replace(self, jobs=jobs)


# What a method's round is: it yields requests, gets their answers, and ends with a result. The type
# of the answers depends on the request, so the method states it
Conversation: TypeAlias = Generator[Request, Any, Outcome]


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

    def answered_by(self, federation: Any, round: int) -> Tensor:
        """Return the trained models; raise `Diverged` if one of them is not finite."""
        order = round if self.order is None else self.order
        return federation.train(self.jobs, order, reported=self.reported)


@dataclass(frozen=True)
class Send(Request):
    """A message with each job's model for its client, who answers nothing; the answers are None."""

    reported: bool = field(default=False, kw_only=True)

    def answered_by(self, federation: Any, round: int) -> list[None]:
        """Return J times None."""
        return [None] * len(self.jobs)


@dataclass(frozen=True)
class Losses(Request):
    """A request for the loss of each job's model on each sample of its client: J tensors ``[n]``.

    Losses of single samples tell a server everything about these samples, if it chooses the models.
    So a method that does not need them says what a client tells in their place.

    Attributes
    ----------
    split : str
        The split of the samples, as in `Federation.predict`.
    told : callable, optional
        The function that a client applies to what it has computed: from the losses ``[n]`` of all
        models that it was sent, the client's local training and the options, to what it tells, one
        row per model. By default it tells the losses themselves.
    options : mapping of str to object
        Further arguments of this function, which are hashable.
    """

    split: str = "train"
    told: Callable[..., Tensor] | None = field(default=None, kw_only=True)
    options: Mapping[str, Hashable] = field(default_factory=dict, kw_only=True)

    def kind(self) -> tuple[Any, ...]:
        """Return a key with the split; what is told is about the models of this request alone."""
        return *super().kind(), self.split, None if self.told is None else id(self)

    def keys(self) -> list[tuple[Any, ...]]:
        """Return one key per job; a model that is there twice is told about twice."""
        keys = super().keys()
        return keys if self.told is None else [(*k, ("place", j)) for j, k in enumerate(keys)]

    def answered_by(self, federation: Any, round: int) -> list[Tensor]:
        """Return the losses, or what is told of them."""
        return federation.losses(self.jobs, self.split, self.told, **self.options)


@dataclass(frozen=True)
class Ask(Request):
    """A request for anything else that a client can compute from its own data: J answers.

    Attributes
    ----------
    question : callable
        The function that runs at each client. Its arguments are the client itself (`Client`), the
        job's model (``[P + Q]``), what the job is about if there is such a column, and the options.
        The client and the server exchange only these values and the result.
    options : mapping of str to object
        Further arguments, which are hashable and the same for all jobs.
    """

    question: Callable[..., Any] = field(kw_only=True)
    options: Mapping[str, Hashable] = field(default_factory=dict, kw_only=True)

    def kind(self) -> tuple[Any, ...]:
        """Return a key with the question and its options."""
        return *super().kind(), self.question, tuple(sorted(self.options.items()))

    def answered_by(self, federation: Any, round: int) -> list[Any]:
        """Return the answers."""
        return federation.ask(self.question, self.jobs, **self.options)


# Stands for the jobs in a request that says only what is asked (`Method.asks`)
NOBODY = Jobs(torch.empty(1, 0), *torch.empty(2, 0, dtype=torch.int64))


def without_models(clients: Tensor) -> Jobs:
    """Return one job per client without a model, to ask about the clients' data alone."""
    return Jobs(NOBODY.models, torch.zeros_like(clients), clients)
