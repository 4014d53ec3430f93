"""What clients may be asked over a network, and whether the server can use their answers.

A node must not send its samples or labels, so it answers only the questions in `QUESTIONS`. The
server must not trust a node, so it looks at each answer before a method gets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cflkit.federation import Jobs
from cflkit.federation.blueprint import Blueprint
from cflkit.methods import emd_cfl_clients, emd_cfl_variants
from cflkit.methods.baselines import fedsac, pacfl, signatures

Question = Callable[..., Any]
# Whether a method can use an answer, which can be anything. The further arguments are the network,
# what the job is about if it says so, and the question's options
Fits = Callable[..., bool]


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


def owner_fits(
    answer: Any, network: Blueprint, others: Sequence[int], projection: float, **_: Any
) -> bool:
    """Check a distance, and embeddings for each of the other clients."""
    match answer:
        case float(reference), [*sent] if len(sent) == len(others):
            own = (other_fits(part, network, 0, projection) for part in sent)
            return math.isfinite(reference) and all(own)
    return False


def other_fits(answer: Any, network: Blueprint, owner: int, projection: float, **_: Any) -> bool:
    """Check projected embeddings ``[n, k]``."""
    return is_finite(answer, None, max(1, int(projection * network.embedding)))


# Whoever asks something of their own adds the question here, at the server and at the nodes
QUESTIONS: dict[Question, Fits] = {
    emd_cfl_clients.owner_sends: owner_fits,
    emd_cfl_clients.other_sends: other_fits,
    emd_cfl_variants.owner_draws: owner_fits,
    emd_cfl_variants.other_draws: other_fits,
    pacfl.directions: lambda sent, network, **_: is_finite(sent, math.prod(network.shape), None),
    fedsac.feature_axes: lambda sent, network, components: (
        is_finite(sent, None, network.embedding) and len(sent) <= components
    ),
    signatures.mean_loss: lambda sent, network: is_finite(sent, 1),
    signatures.loss_gradient: lambda sent, network, samples: is_finite(sent, network.parameters),
}


def name_of(question: Question) -> str:
    """Return the name by which a message calls a question.

    Raises
    ------
    ValueError
        Answers to this question are not safe to send.
    """
    if question not in QUESTIONS:
        raise ValueError(
            f"clients do not answer {question.__name__!r} over a network, since the answer would "
            "contain their samples or labels"
        )
    return f"{question.__module__}.{question.__name__}"


def named(name: str) -> Question:
    """Return the question of a name; raise a `KeyError` if there is none."""
    return {name_of(question): question for question in QUESTIONS}[name]


# --- What is wrong with an answer -----------------------------------------------------------------


def fault_of_list(answer: Any, count: int) -> str | None:
    """Return what is wrong with an answer that should be a list of ``count`` values, or None."""
    if not isinstance(answer, list) or len(answer) != count:
        return f"it sent something else than a list of {count} answers"
    return None


def fault_of_models(answer: Any, count: int, width: int, finite: bool) -> str | None:
    """Return what is wrong with ``count`` models of ``width`` values, perhaps ``finite`` ones."""
    if not isinstance(answer, Tensor) or answer.shape != (count, width):
        return f"it sent something else than {count} models of {width} values"
    if finite and not bool(torch.isfinite(answer).all()):
        return "it sent a model that is not finite"
    return None


def fault_of_losses(answer: Any, count: int, samples: int) -> str | None:
    """Return what is wrong with ``count`` times the losses of a client's samples."""
    if fault_of_list(answer, count) or not all(
        isinstance(part, Tensor) and part.shape == (samples,) for part in answer
    ):
        return f"it sent something else than {count} times {samples} losses"
    if not all(bool(torch.isfinite(part).all()) for part in answer):
        return "it sent a loss that is not finite"
    return None


def fault_of_scores(answer: Any, count: int) -> str | None:
    """Return what is wrong with ``count`` pairs of F1 and accuracy."""
    fits = not fault_of_list(answer, count) and all(
        isinstance(part, tuple) and [*map(type, part)] == [float, float] for part in answer
    )
    return None if fits else f"it sent something else than {count} pairs of scores"


def fault_of_answers(
    answer: Any, question: Question, jobs: Jobs, network: Blueprint, **options: Any
) -> str | None:
    """Return what is wrong with a client's answers to a question, one per job."""
    if reason := fault_of_list(answer, len(jobs)):
        return reason
    for job, part in enumerate(answer):
        about = (jobs.of(job, "about"),) if "about" in jobs.columns else ()
        if not QUESTIONS[question](part, network, *about, **options):
            return f"its answer to {question.__name__!r} has a wrong form or is not finite"
    return None
