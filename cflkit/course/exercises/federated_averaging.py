"""Exercises of lesson 01: federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict

Array = NDArray[np.float64]
Gradient = Callable[[Array], Array]


# --- 01.1 ----------------------------------------------------------------------------------------


def weighted_mean(models: Array, samples: Array) -> Array:
    """Average models ``[m, P]`` with the clients' numbers of samples ``[m]`` as weights."""
    return samples @ models / samples.sum()


def models_and_samples(rng: np.random.Generator) -> Arguments:
    """Draw a few models, and different numbers of samples."""
    m, parameters = rng.integers(2, 6), rng.integers(3, 8)
    return rng.normal(size=(m, parameters)), rng.integers(1, 100, m).astype(float)


# --- 01.2 ----------------------------------------------------------------------------------------


def train_locally(theta: Array, gradient: Gradient, lr: float, steps: int) -> Array:
    """Take some steps of gradient descent from θ ``[P]``; return the trained model ``[P]``."""
    for _ in range(steps):
        theta = theta - lr * gradient(theta)
    return theta


def quadratic(curvature: Array, optimum: Array) -> Gradient:
    """Build the gradient of a quadratic loss with a positive curvature per parameter."""
    return lambda theta: curvature * (theta - optimum)


def a_client(rng: np.random.Generator) -> Arguments:
    """Draw a model, the gradient of a client's loss, a learning rate and a number of steps."""
    parameters = rng.integers(2, 6)
    gradient = quadratic(rng.uniform(0.5, 2, parameters), rng.normal(size=parameters))
    return rng.normal(size=parameters), gradient, rng.uniform(0.05, 0.3), int(rng.integers(2, 7))


def with_the_first_gradient(theta: Array, gradient: Gradient, lr: float, steps: int) -> Array:
    """Make the mistake of using the gradient at the start in all steps."""
    return theta - steps * lr * gradient(theta)


# --- 01.3 ----------------------------------------------------------------------------------------


def one_round(
    theta: Array, gradients: Sequence[Gradient], samples: Array, lr: float, steps: int
) -> Array:
    """Run a round of federated averaging from the server's model θ ``[P]``."""
    trained = [train_locally(theta, gradient, lr, steps) for gradient in gradients]
    return weighted_mean(np.stack(trained), samples)


def a_federation(rng: np.random.Generator) -> Arguments:
    """Draw a model, the clients' gradients and samples, a learning rate and a number of steps."""
    m, parameters = int(rng.integers(2, 5)), rng.integers(2, 6)
    gradients = [
        quadratic(rng.uniform(0.5, 2, parameters), rng.normal(size=parameters)) for _ in range(m)
    ]
    samples = rng.integers(1, 100, m).astype(float)
    return rng.normal(size=parameters), gradients, samples, 0.2, int(rng.integers(2, 5))


def one_after_the_other(
    theta: Array, gradients: Sequence[Gradient], samples: Array, lr: float, steps: int
) -> Array:
    """Make the mistake of starting each client from the model of the client before it."""
    trained = []
    for gradient in gradients:
        theta = train_locally(theta, gradient, lr, steps)
        trained.append(theta)
    return weighted_mean(np.stack(trained), samples)


def without_the_start(
    theta: Array, gradients: Sequence[Gradient], samples: Array, lr: float, steps: int
) -> Array:
    """Make the mistake of returning the mean update, and not the new model."""
    return one_round(theta, gradients, samples, lr, steps) - theta


# --- 01.4 ----------------------------------------------------------------------------------------


def share_that_survives(updates: Array) -> float:
    """Divide the norm of the mean update by the mean norm of the updates ``[m, P]``."""
    return float(np.linalg.norm(updates.mean(axis=0)) / np.linalg.norm(updates, axis=1).mean())


def some_updates(rng: np.random.Generator) -> Arguments:
    """Draw updates with something in common."""
    m, parameters = rng.integers(3, 8), rng.integers(3, 9)
    return (rng.normal(size=(m, parameters)) + rng.normal(size=parameters),)


# --- 01.5 ----------------------------------------------------------------------------------------


def rounds_until_close(epochs: int) -> Array:
    """Return the model after 200 rounds of FedAvg on two quadratic losses of unequal curvature."""
    gradients = [
        quadratic(np.array([4.0]), np.array([0.0])),
        quadratic(np.array([1.0]), np.array([1.0])),
    ]
    theta = np.array([0.5])
    for _ in range(200):
        theta = one_round(theta, gradients, np.ones(2), 0.05, epochs)
    return theta


def where_fedavg_ends() -> str:
    """Compare where FedAvg ends with many local steps, and with one local step."""
    one, many = float(rounds_until_close(1)[0]), float(rounds_until_close(50)[0])
    minimum = 1 / 5  # of the mean loss: (4 · 0 + 1 · 1) / (4 + 1)
    assert abs(one - minimum) < 1e-3
    return "same" if abs(many - minimum) < 0.02 else ("higher" if many > minimum else "lower")


# --- 01.6 ----------------------------------------------------------------------------------------


def server_momentum(updates: Array, beta: float, lr: float) -> Array:
    """Add up how far the server's model moves over the rounds, with momentum.

    Parameters
    ----------
    updates : ndarray
        ``[T, P]``, the mean update of each round.
    beta, lr : float
        The momentum β, and the server's learning rate.

    Returns
    -------
    ndarray
        ``[P]``, the sum of the server's steps.
    """
    moved = torch.zeros(updates.shape[1], dtype=torch.float64)
    optimizer = torch.optim.SGD([moved], lr=lr, momentum=beta)
    for update in updates:
        moved.grad = -torch.from_numpy(update)  # the optimiser goes against a gradient
        optimizer.step()
    return moved.numpy()


def mean_updates(rng: np.random.Generator) -> Arguments:
    """Draw the mean updates of some rounds, a momentum and a learning rate."""
    rounds = rng.integers(2, 7)
    return rng.normal(size=(rounds, 3)), rng.uniform(0.3, 0.9), rng.uniform(0.1, 1.5)


def one_round_late(updates: Array, beta: float, lr: float) -> Array:
    """Make the mistake of moving with the velocity of the round before."""
    velocity, moved = np.zeros(updates.shape[1]), np.zeros(updates.shape[1])
    for update in updates:
        moved = moved + lr * velocity
        velocity = beta * velocity + update
    return moved


def damped(updates: Array, beta: float, lr: float) -> Array:
    """Make the mistake of using a moving average, (1 − β) times as large."""
    return (1 - beta) * server_momentum(updates, beta, lr)


EXERCISES = (
    Implement(
        "01.1",
        "The server's mean",
        minutes=5,
        level="easy",
        points=1,
        reference=weighted_mean,
        inputs=models_and_samples,
        mistakes={
            "All clients have equal weights. Who has more samples must count more.": (
                lambda models, samples: models.mean(axis=0)
            ),
            "The weights do not sum to one. Divide by the number of all samples.": (
                lambda models, samples: samples @ models
            ),
            "You divide twice: by the number of samples, and by the number of clients.": (
                lambda models, samples: samples @ models / samples.sum() / len(models)
            ),
        },
    ),
    Implement(
        "01.2",
        "What a client does",
        minutes=10,
        level="easy",
        points=1,
        reference=train_locally,
        inputs=a_client,
        mistakes={
            "The model climbs. A step goes against the gradient.": (
                lambda theta, gradient, lr, steps: train_locally(theta, gradient, -lr, steps)
            ),
            "Every step uses the gradient at the start. Compute it anew where the model is now.": (
                with_the_first_gradient
            ),
            "There is one step too few.": (
                lambda theta, gradient, lr, steps: train_locally(theta, gradient, lr, steps - 1)
            ),
        },
    ),
    Implement(
        "01.3",
        "A round of federated averaging",
        minutes=15,
        level="medium",
        points=2,
        reference=one_round,
        inputs=a_federation,
        mistakes={
            "Each client continues where the one before it has stopped. In a round, all clients "
            "start from the server's model.": one_after_the_other,
            "All clients have equal weights. Who has more samples must count more.": (
                lambda theta, gradients, samples, lr, steps: one_round(
                    theta, gradients, np.ones(len(samples)), lr, steps
                )
            ),
            "You return the mean update. The new model is the old one plus this update.": (
                without_the_start
            ),
        },
    ),
    Implement(
        "01.4",
        "How much work survives",
        minutes=10,
        level="easy",
        points=1,
        reference=share_that_survives,
        inputs=some_updates,
        mistakes={
            "This is the inverse of the share.": lambda updates: 1 / share_that_survives(updates),
            "The numerator is the norm of the sum. The server takes the mean.": (
                lambda updates: len(updates) * share_that_survives(updates)
            ),
            "You average squared norms. Take the root before you average.": (
                lambda updates: float(
                    np.linalg.norm(updates.mean(axis=0))
                    / np.sqrt((np.linalg.norm(updates, axis=1) ** 2).mean())
                )
            ),
        },
    ),
    Predict(
        "01.5",
        "Where federated averaging ends",
        minutes=10,
        level="medium",
        points=1,
        measure=where_fedavg_ends,
        mistakes={
            "That holds with one local step per round. After fifty, each client has nearly reached "
            "its own optimum, whatever its curvature. Where is the mean of the two optima?": "same",
            "The second client has the flatter loss, and its optimum is 1. With many local steps, "
            "does its flatness still count against it?": "lower",
        },
        because="With fifty local steps, both clients come close to their own optima, 0 and 1, and "
        "the curvature is forgotten. The mean moves from the minimum, 0.2, towards 0.5.",
    ),
    Implement(
        "01.6",
        "Momentum on the server",
        minutes=15,
        level="hard",
        points=2,
        reference=server_momentum,
        inputs=mean_updates,
        mistakes={
            "The velocity is a moving average here. In PyTorch's momentum, an update enters it "
            "with the weight 1, and not with 1 − β.": damped,
            "You move before the round's update has entered the velocity.": one_round_late,
            "The velocity does not remember earlier rounds.": (
                lambda updates, beta, lr: lr * updates.sum(axis=0)
            ),
        },
    ),
    Explain(
        "01.7",
        "One step is exact",
        minutes=15,
        level="medium",
        points=3,
        rubric=(
            (1, "Writes the round as θ − η Σ (nᵢ/n) ∇fᵢ(θ), with all gradients at the same θ."),
            (1, "Uses that the gradient of f = Σ (nᵢ/n) fᵢ is the same weighted sum."),
            (1, "Says why it fails from the second step on: the gradients are then at θᵢ, not θ."),
        ),
    ),
)
