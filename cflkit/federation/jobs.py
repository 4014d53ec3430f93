"""What clients are asked to compute: which client, with which model, on which of its samples."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from cflkit.bounds import STRICT, Count, Momentum, NonNegative, Optimizer, Positive
from cflkit.federation.rows import digests


class Diverged(Exception):
    """Training gave NaN or infinity; the message says in which round and at which clients.

    Attributes
    ----------
    trained : Tensor
        ``[J, P + Q]``, all trained models.
    broken : Tensor
        ``[J]``, bool: which of them are not finite.
    """

    def __init__(self, round: int, clients: Iterable[int], trained: Tensor, broken: Tensor) -> None:
        super().__init__(
            f"training diverged in round {round + 1}: the models of clients "
            f"{sorted(set(clients))} are no longer finite; lower the learning rate"
        )
        self.trained, self.broken = trained, broken


@validated(frozen=True, config=STRICT)
class LocalTraining:
    """What a client does with a model in one round; the optimiser starts fresh each time.

    Attributes
    ----------
    epochs : int
        Local epochs, at least 1.
    batch_size : int
        Samples per step, at least 1; the last batch of an epoch may be smaller.
    optimizer : {"sgd", "adam"}
        PyTorch's, with its defaults except for the values below.
    lr, weight_decay : float
        The learning rate is positive, weight decay not negative.
    momentum : float
        Of SGD, in [0, 1).
    penalty : {"none", "proximal", "cosine"}
        A term that is added to the loss. With θ the trained parameters, c those of the job's anchor
        (`Jobs.anchor`) and μ the strength: μ/2 ‖θ − c‖² (FedProx), or μ ⟨c, θ⟩ / ‖θ‖ (pFedGraph;
        a negative μ pulls θ towards the direction of c).
    strength : float
        μ.
    layers : tuple of str
        The layers that are trained, by the names of modules; the parameters of all others stay as
        they are. All layers by default.
    """

    epochs: Count = 3
    batch_size: Count = 32
    optimizer: Optimizer = "sgd"
    lr: Positive = 0.01
    momentum: Momentum = 0.0
    weight_decay: NonNegative = 0.0
    penalty: Literal["none", "proximal", "cosine"] = "none"
    strength: float = 0.0
    layers: tuple[str, ...] = ()

    @model_validator(mode="after")
    def consistent(self) -> LocalTraining:
        """Refuse options that contradict each other."""
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd, not to adam")
        if self.penalty == "none" and self.strength:
            raise ValueError("a strength needs a penalty")
        if self.penalty == "proximal" and self.strength < 0:
            raise ValueError(f"a proximal penalty needs a strength from 0 on, not {self.strength}")
        return self

    def trains(self, parameter: str) -> bool:
        """Return whether the parameter of this name is trained."""
        return not self.layers or any(parameter.startswith(f"{name}.") for name in self.layers)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh optimiser; each works value by value, so that models can be stacked."""
        if self.optimizer == "adam":
            # Fused: one pass over the memory, where torch's default on a CPU makes many
            return torch.optim.Adam(
                parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True
            )
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Jobs:
    """J pairs of a model and a client.

    Attributes
    ----------
    models : Tensor
        ``[K, P + Q]``, the distinct models.
    model_of : Tensor
        ``[J]``, int64: the row of ``models`` of each job.
    client_of : Tensor
        ``[J]``, int64: the client of each job.
    subset : sequence of Tensor, optional
        J of them, int64: the positions among its client's training samples that a job trains on;
        all of them for None.
    weights : sequence of Tensor, optional
        J of them, ``[n]``: the weight of each of these samples in the loss, which is the weighted
        sum over a batch divided by the batch's size; ones for None.
    anchor : Tensor, optional
        ``[A, P + Q]``: what the penalty of local training refers to; the job's own model for None.
    anchor_of : Tensor, optional
        ``[J]``, int64: the row of ``anchor`` of each job.
    training : LocalTraining, optional
        How clients train these jobs, if not as the federation's clients usually do.
    """

    models: Tensor
    model_of: Tensor
    client_of: Tensor
    subset: Sequence[Tensor] | None = None
    weights: Sequence[Tensor] | None = None
    anchor: Tensor | None = None
    anchor_of: Tensor | None = None
    training: LocalTraining | None = None

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
        )

    def anchored_to(self, job: int) -> Tensor:
        """``[P + Q]``: what the penalty of a job refers to."""
        if self.anchor is None or self.anchor_of is None:
            return self.models[self.model_of[job]]
        return self.anchor[self.anchor_of[job]]

    def keys(self) -> list[Hashable]:
        """Return a key per job: equal keys ask for the same computation."""
        models, clients = digests(self.models), self.client_of.tolist()
        nothing: list[Hashable] = [None] * len(self)
        anchors = nothing
        if self.anchor is not None and self.anchor_of is not None:
            known = digests(self.anchor)
            anchors = [known[row] for row in self.anchor_of.tolist()]
        subsets = nothing if self.subset is None else [contents(part) for part in self.subset]
        weights = nothing if self.weights is None else [contents(part) for part in self.weights]
        rows = [models[row] for row in self.model_of.tolist()]
        return list(zip(rows, clients, subsets, weights, anchors, strict=True))


def check_finite(trained: Tensor, jobs: Jobs, round: int) -> None:
    """Raise `Diverged` unless all trained models (``[J, P + Q]``) are finite."""
    if not len(jobs):
        return
    # Smallest and largest in one pass over the memory; NaN is both
    broken = ~torch.isfinite(torch.stack(torch.aminmax(trained, dim=1))).all(dim=0).cpu()
    if broken.any():
        raise Diverged(round, jobs.client_of[broken].tolist(), trained, broken)


def contents(values: Tensor) -> bytes:
    """Return a key of a tensor on the CPU: equal for equal contents."""
    return hashlib.blake2b(values.cpu().numpy().tobytes(), digest_size=16).digest()


def joined(parts: Sequence[Jobs]) -> Jobs:
    """Return the jobs of several `Jobs` as one.

    The parts must agree in which optional attributes they have; their training is the first one's.
    """
    if len(parts) == 1:
        return parts[0]
    models, model_of = stacked([(jobs.models, jobs.model_of) for jobs in parts])
    anchor, anchor_of = None, None
    if parts[0].anchor is not None:
        anchor, anchor_of = stacked([(jobs.anchor, jobs.anchor_of) for jobs in parts])
    return Jobs(
        models,
        model_of,
        torch.cat([jobs.client_of for jobs in parts]),
        None if parts[0].subset is None else [own for jobs in parts for own in jobs.subset or ()],
        None if parts[0].weights is None else [own for jobs in parts for own in jobs.weights or ()],
        anchor,
        anchor_of,
        parts[0].training,
    )


def stacked(tables: Sequence[tuple[Tensor | None, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """Return tables of rows as one, without the rows that no index names, and the index into it."""
    rows, indices, start = [], [], 0
    for table, index in tables:
        assert table is not None and index is not None
        used, place = index.unique(return_inverse=True)
        rows.append(table if len(used) == len(table) else table[used.to(table.device)])
        indices.append(place + start)
        start += len(used)
    return torch.cat(rows), torch.cat(indices)
