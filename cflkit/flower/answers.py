"""What clients tell over a network, what that says about their samples, and whether it can be used.

A node answers only the questions in `QUESTIONS` and `TOLD`, and only those of the methods to which
its owner has agreed (`cflkit.flower.agreement`). The server must not trust a node, so it looks at
each answer before a method gets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from cflkit.federation import Ask, Losses
from cflkit.federation.blueprint import Blueprint
from cflkit.methods import Method, emd_cfl_clients, emd_cfl_variants
from cflkit.methods.baselines import fedce, fedsac, flux, ifca, pacfl, questions

Question = Callable[..., Any]
# Whether a method can use an answer, which can be anything. The further arguments are the network,
# what the job is about if it says so, and the question's options
Fits = Callable[..., bool]
# No honest model, loss or embedding has a larger number. Sums of larger ones could overflow, and
# then the fault would no longer be that of the client that sent it
LARGEST = 1e9
UNIT = 1 + 1e-4  # the largest coordinate of a vector of unit length, with its rounding


class Answer(NamedTuple):
    """The answer to a question."""

    fits: Fits  # whether the server can use an answer
    leaves: str  # the client, for the page
    says: str  # what a curious server can learn from it
    about: Callable[..., bool] | None = None  # whether a job can be about this client, or these
    hidden: bool = False  # by the seed that clients share, and the server must not know
    model: bool = True  # whether the question comes with a model


def is_array(
    answer: Any,
    dtype: torch.dtype | DTypeLike,
    *shape: int | range,
    least: float = -LARGEST,
    most: float = LARGEST,
    finite: bool = True,
) -> bool:
    """Return whether an answer is an array of this type and shape, with values within bounds.

    A size may also be a range. Tensors have a type of torch, and arrays one of NumPy. Without
    ``finite``, values do not matter.
    """
    kind = Tensor if isinstance(dtype, torch.dtype) else np.ndarray
    if not isinstance(answer, kind) or answer.dtype != dtype or answer.ndim != len(shape):
        return False
    sizes = zip(answer.shape, shape, strict=True)
    if not all(have in need if isinstance(need, range) else have == need for have, need in sizes):
        return False
    values = np.asarray(answer)
    return not finite or bool(((values >= least) & (values <= most)).all())  # NaN is not


def is_number(value: Any, below: int) -> bool:
    """Return whether a value is a whole number from 0 to below a bound."""
    return type(value) is int and 0 <= value < below


def are_numbers(value: Any, below: int) -> bool:
    """Return whether a value is a tuple of different numbers (`is_number`)."""
    several = type(value) is tuple and 0 < len({*value}) == len(value)
    return several and all(is_number(own, below) for own in value)


def owner_fits(
    answer: Any, network: Blueprint, others: Sequence[int], *, projection: float, **options: Any
) -> bool:
    """Check a distance, and embeddings for each of the other clients."""
    match answer:
        case float(reference), [*sent] if len(sent) == len(others):
            own = (other_fits(part, network, 0, projection=projection, **options) for part in sent)
            return math.fabs(reference) <= LARGEST and all(own)
    return False


def other_fits(
    answer: Any, network: Blueprint, owner: int, *, projection: float, max_samples: int, **_: Any
) -> bool:
    """Check projected embeddings ``[n, k]``."""
    width = max(1, int(projection * network.embedding))
    return is_array(answer, np.float64, range(1, max_samples + 1), width)


def directions_fit(sent: Any, network: Blueprint, *, p: int, **_: Any) -> bool:
    """Check singular vectors ``[d, p · classes]``, of which a client may have fewer."""
    sizes = math.prod(network.shape), range(1, p * network.classes + 1)
    return is_array(sent, np.float64, *sizes, least=-UNIT, most=UNIT)


def axes_fit(sent: Any, network: Blueprint, *, components: int) -> bool:
    """Check principal components ``[components, d]``, of which a client may have fewer."""
    sizes = range(1, components + 1), network.embedding
    return is_array(sent, torch.float32, *sizes, least=-UNIT, most=UNIT)


def descriptor_fits(sent: Any, network: Blueprint, *, components: int, **_: Any) -> bool:
    """Check means and deviations ``[2 + 2 · classes, components]``, which may be fewer."""
    sizes = 2 + 2 * network.classes, min(components, network.embedding, 200)
    return is_array(sent, np.float64, *sizes)


EMBEDDINGS = (
    "projected embeddings of its samples, and a distance",
    "Whoever knows the clients' shared seed can undo most of the projection, and with a network "
    "that passes pixels on, the embeddings are the samples. The server must not know this seed, "
    "and no client may tell it.",
)
# Whoever asks something of their own adds the question here, at the server and at the nodes
QUESTIONS: dict[Question, Answer] = {
    emd_cfl_clients.owner_sends: Answer(owner_fits, *EMBEDDINGS, about=are_numbers, hidden=True),
    emd_cfl_clients.other_sends: Answer(other_fits, *EMBEDDINGS, about=is_number, hidden=True),
    emd_cfl_variants.owner_draws: Answer(owner_fits, *EMBEDDINGS, about=are_numbers, hidden=True),
    emd_cfl_variants.other_draws: Answer(other_fits, *EMBEDDINGS, about=is_number, hidden=True),
    pacfl.directions: Answer(
        directions_fit,
        "the main directions of the pixels of each class",
        "It sees how many classes the client has, and a blurred picture of each. Where a class has "
        "one sample, the direction is this sample.",
        model=False,
    ),
    fedsac.feature_axes: Answer(
        axes_fit,
        "the main axes of its embeddings",
        "With a network that passes pixels on, they are the main directions of the pixels. With "
        "two samples, they are the difference of these.",
    ),
    flux.descriptor: Answer(
        descriptor_fits,
        "means and deviations of its embeddings, of all and of each class",
        "It sees which classes the client has. With a network that passes pixels on, the means are "
        "projections of the mean pictures. Mean and deviation of two samples are these two.",
    ),
    questions.mean_loss: Answer(
        lambda sent, network: is_array(sent, torch.float32, 1, least=0),
        "the mean loss of a model",
        "It is a mean over all samples, of a model that the server chooses. Many such means tell "
        "more and more about single samples.",
    ),
    questions.loss_gradient: Answer(
        lambda sent, network, samples: is_array(sent, torch.float32, network.parameters),
        "the gradient of a model's loss",
        "From the gradient of few samples, their pixels and labels can be computed. A method with "
        "a small number `samples` asks for just that.",
    ),
}
# What clients tell of their losses (`Losses.told`); what fits is a row, for a number of samples
TOLD: dict[Question | None, Answer] = {
    None: Answer(
        lambda row, count: is_array(row, torch.float32, count, least=0),
        "the loss of each sample",
        "Everything: with as many crafted models as an image has pixels, the losses give every "
        "pixel and every label exactly.",
    ),
    ifca.choice: Answer(
        lambda row, count: is_array(row, torch.bool, least=0, most=1),
        "which model fits it best",
        "One choice per request. With crafted models, it answers whether one mean loss is smaller "
        "than another, and many answers tell more and more.",
    ),
    questions.importance: Answer(
        lambda row, count: is_array(row, torch.float32, least=0, most=UNIT),
        "the share of its samples that each model fits best",
        "With crafted models, it tells how many samples have a property; with few samples, this "
        "is about single ones.",
    ),
    fedce.gains: Answer(
        lambda row, count: is_array(row, torch.float32, 2, least=0),
        "which model fits it best, and how near the losses of the others are",
        "The distances are numbers with many digits, over batches of losses of models that the "
        "server chooses. With few samples or small batches, they tell about single samples.",
    ),
}
WEIGHTED = (
    "models trained on samples that the server weights",
    "If it gives all weight to one sample, the trained model tells this sample.",
)


def name_of(question: Question | None) -> str | None:
    """Return the name of a question in messages; a `ValueError` if no answer may be sent."""
    if question not in QUESTIONS and question not in TOLD:
        raise ValueError(
            f"clients do not answer {getattr(question, '__name__', question)!r} over a network, "
            "since the answer would contain their samples or labels"
        )
    return None if question is None else f"{question.__module__}.{question.__name__}"


def told_by(method: Method) -> list[tuple[str, str]]:
    """Return what a method's clients tell besides trained models, and what that says."""
    found = []
    for request in method.asks():
        match request:
            case Losses(told=told):
                found.append((TOLD[told].leaves, TOLD[told].says))
            case Ask(question=question):
                found.append((QUESTIONS[question].leaves, QUESTIONS[question].says))
            case _:
                found.append(WEIGHTED)
    return list(dict.fromkeys(found))
