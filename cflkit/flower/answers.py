"""What clients may be asked over a network, and whether the server can use their answers.

A node must not send its samples or labels, so it answers only the questions in `QUESTIONS`. The
server must not trust a node, so it looks at each answer before a method gets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from cflkit.federation.blueprint import Blueprint
from cflkit.methods import emd_cfl_clients, emd_cfl_variants
from cflkit.methods.baselines import fedsac, pacfl, signatures

Question = Callable[..., Any]
# Whether a method can use an answer, which can be anything. The further arguments are the network,
# what the job is about if it says so, and the question's options
Fits = Callable[..., bool]


def is_array(answer: Any, *shape: int | None, finite: bool = True) -> bool:
    """Return whether an answer is an array of numbers; a size of None is any above zero."""
    if not isinstance(answer, Tensor | np.ndarray) or answer.ndim != len(shape):
        return False
    sizes = zip(answer.shape, shape, strict=True)
    if not all(have == need or (need is None and have > 0) for have, need in sizes):
        return False
    values = np.asarray(answer)
    return values.dtype.kind in "fiu" and not (finite and not np.isfinite(values).all())


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
    return is_array(answer, None, max(1, int(projection * network.embedding)))


# Whoever asks something of their own adds the question here, at the server and at the nodes
QUESTIONS: dict[Question, Fits] = {
    emd_cfl_clients.owner_sends: owner_fits,
    emd_cfl_clients.other_sends: other_fits,
    emd_cfl_variants.owner_draws: owner_fits,
    emd_cfl_variants.other_draws: other_fits,
    pacfl.directions: lambda sent, network, **_: is_array(sent, math.prod(network.shape), None),
    fedsac.feature_axes: lambda sent, network, components: (
        is_array(sent, None, network.embedding) and len(sent) <= components
    ),
    signatures.mean_loss: lambda sent, network: is_array(sent, 1),
    signatures.loss_gradient: lambda sent, network, samples: is_array(sent, network.parameters),
}


def name_of(question: Question) -> str:
    """Return the name of a question in messages; a `ValueError` if no answer may be sent."""
    if question not in QUESTIONS:
        raise ValueError(
            f"clients do not answer {question.__name__!r} over a network, since the answer would "
            "contain their samples or labels"
        )
    return f"{question.__module__}.{question.__name__}"
