"""Jobs for clients: which client computes with which model, on which of its samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from cflkit._bounds import STRICT, Count, Momentum, NonNegative, Optimizer, Positive
from cflkit.federation.rows import digests, finite_rows


class Diverged(Exception):
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


@validated(frozen=True, config=STRICT)
class LocalTraining:
    """The training of a model at a client in one round, with a new optimiser each time.

    Attributes
    ----------
    epochs : int
        The number of local epochs, at least 1.
    batch_size : int
        The number of samples per step, at least 1. The last batch of an epoch may be smaller.
    optimizer : {"sgd", "adam"}
        The optimiser of PyTorch, with its defaults except for the values below.
    lr, weight_decay : float
        The learning rate, which is positive, and the weight decay, which is not negative.
    momentum : float
        The momentum of SGD, in [0, 1).
    penalty : {"none", "proximal", "cosine", "linear"}
        A term that is added to the loss: μ/2 ‖θ − c‖² (``proximal``, FedProx), μ ⟨c, θ⟩ / ‖θ‖
        (``cosine``, pFedGraph; a negative μ pulls θ towards the direction of c), or μ ⟨c, θ⟩
        (``linear``, SCAFFOLD). Here θ are the trained parameters, c are those of the job's anchor
        (`Jobs.anchor`), and μ is the strength.
    strength : float
        The strength μ of the penalty.
    """

    epochs: Count = 3
    batch_size: Count = 32
    optimizer: Optimizer = "sgd"
    lr: Positive = 0.01
    momentum: Momentum = 0.0
    weight_decay: NonNegative = 0.0
    penalty: Literal["none", "proximal", "cosine", "linear"] = "none"
    strength: float = 0.0

    @model_validator(mode="after")
    def consistent(self) -> LocalTraining:
        """Refuse options that contradict each other."""
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd, not to adam")
        if self.penalty == "none" and self.strength:
            raise ValueError("a strength needs a penalty")
        if self.penalty == "proximal" and self.strength < 0:
            raise ValueError(f"a proximal penalty needs a strength ≥ 0, not {self.strength}")
        return self

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimiser.

        Each optimiser computes value by value, so that it also works on stacked models.
        """
        if self.optimizer == "adam":
            # Fused Adam makes one pass over the memory; torch's default on a CPU makes many
            return torch.optim.Adam(
                parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True
            )
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Jobs:
    """J jobs, each a pair of a model and a client.

    Attributes
    ----------
    models : Tensor
        ``[K, P + Q]``, the distinct models.
    model_of : Tensor
        ``[J]``, int64: the row of ``models`` of each job.
    client_of : Tensor
        ``[J]``, int64: the client of each job.
    subset : sequence of Tensor, optional
        J tensors, int64: for each job, the positions of the samples to train on among the client's
        training samples. By default a job trains on all of them.
    weights : sequence of Tensor, optional
        J tensors ``[n]``: for each job, the weights of these samples in the loss. The loss is the
        weighted sum over a batch divided by the size of the batch. By default all weights are one.
    anchor : Tensor, optional
        ``[A, P + Q]``: the models to which the penalty of local training refers. By default it
        refers to the job's own model.
    anchor_of : Tensor, optional
        ``[J]``, int64: the row of ``anchor`` of each job.
    training : LocalTraining, optional
        The local training of these jobs; by default that of the federation.
    about : sequence of hashable, optional
        J values: for each job, what a question to its client is about (`Ask`), for example another
        client.
    """

    models: Tensor
    model_of: Tensor
    client_of: Tensor
    subset: Sequence[Tensor] | None = None
    weights: Sequence[Tensor] | None = None
    anchor: Tensor | None = None
    anchor_of: Tensor | None = None
    training: LocalTraining | None = None
    about: Sequence[Hashable] | None = None

    def __len__(self) -> int:
        return len(self.client_of)

    def part(self, which: Sequence[int]) -> Jobs:
        """Return some of the jobs."""
        index = torch.as_tensor(which, dtype=torch.int64)
        return replace(
            self,
            model_of=self.model_of[index],
            client_of=self.client_of[index],
            subset=None if self.subset is None else [self.subset[job] for job in which],
            weights=None if self.weights is None else [self.weights[job] for job in which],
            anchor_of=None if self.anchor_of is None else self.anchor_of[index],
            about=None if self.about is None else [self.about[job] for job in which],
        )

    def anchored_to(self, job: int) -> Tensor:
        """Return the model ``[P + Q]`` to which the penalty of a job refers."""
        if self.anchor is None or self.anchor_of is None:
            return self.models[self.model_of[job]]
        return self.anchor[self.anchor_of[job]]

    def keys(self) -> list[tuple[Hashable, ...]]:
        """Return one key per job; jobs with equal keys ask for the same computation."""
        models, clients = digests(self.models), self.client_of.tolist()
        nothing: list[Hashable] = [None] * len(self)
        anchors = nothing
        if self.anchor is not None and self.anchor_of is not None:
            known = digests(self.anchor)
            anchors = [known[row] for row in self.anchor_of.tolist()]
        subsets = nothing if self.subset is None else [contents(part) for part in self.subset]
        weights = nothing if self.weights is None else [contents(part) for part in self.weights]
        about = nothing if self.about is None else self.about
        rows = [models[row] for row in self.model_of.tolist()]
        return list(zip(rows, clients, subsets, weights, anchors, about, strict=True))


# A hook after training. It changes trained parameters ``[J, P]`` in place. It is also given their
# jobs, the round (from 0), and whether clients send these models to the server
Hook = Callable[[Tensor, Jobs, int, bool], None]


def check_finite(trained: Tensor, jobs: Jobs, round: int) -> None:
    """Raise `Diverged` if any trained model or other answer (``[J, D]``) is not finite."""
    if not len(jobs):
        return
    broken = ~finite_rows(trained).cpu()
    if broken.any():
        raise Diverged(round, jobs.client_of[broken].tolist(), trained, broken)


def contents(values: Tensor) -> bytes:
    """Return a key of a tensor, which is equal for equal contents."""
    return hashlib.blake2b(values.cpu().numpy().tobytes(), digest_size=16).digest()


def joined(parts: Sequence[Jobs]) -> Jobs:
    """Join several `Jobs` into one.

    All parts must have the same optional attributes. The result has the training of the first part.
    """
    if len(parts) == 1:
        return parts[0]
    models, model_of = joined_rows([(jobs.models, jobs.model_of) for jobs in parts])
    anchor, anchor_of = None, None
    if parts[0].anchor is not None:
        anchor, anchor_of = joined_rows([(jobs.anchor, jobs.anchor_of) for jobs in parts])
    return Jobs(
        models,
        model_of,
        torch.cat([jobs.client_of for jobs in parts]),
        None if parts[0].subset is None else [own for jobs in parts for own in jobs.subset or ()],
        None if parts[0].weights is None else [own for jobs in parts for own in jobs.weights or ()],
        anchor,
        anchor_of,
        parts[0].training,
        None if parts[0].about is None else [own for jobs in parts for own in jobs.about or ()],
    )


def joined_rows(tables: Sequence[tuple[Tensor | None, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """Join tables of rows, without rows that no index names; return the table and its index."""
    rows, indices, start = [], [], 0
    for table, index in tables:
        assert table is not None and index is not None
        used, place = index.unique(return_inverse=True)
        rows.append(table if len(used) == len(table) else table[used.to(table.device)])
        indices.append(place + start)
        start += len(used)
    return torch.cat(rows), torch.cat(indices)
