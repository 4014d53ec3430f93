"""Failure labs about data: leaked test images, an altered split, the best round, unpaired splits.

L1.1 and L1.2: M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning
(OCFL), extended version, section 3.1. L1.3: G. C. Cawley, N. L. C. Talbot, JMLR 11, 2010. L1.4: T.
G. Dietterich, Neural Computation 10, 1998.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem

from cflkit import datasets, partition
from cflkit.course.exercises.base import Arguments, Implement

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Sets = tuple[list[Indices], list[Indices]]


# --- L1.1 ----------------------------------------------------------------------------------------


def split_without_leaks(drawn: Sequence[Indices], order: Indices, share: float) -> Sets:
    """Give each image of a pool the same role for all clients.

    Parameters
    ----------
    drawn : list of ndarray
        The images that each of m clients drew, with repetitions.
    order : ndarray
        ``[N]``, all images of the pool. Those that a client drew become test images in this order.
    share : float
        The share of test images among the different images that were drawn, rounded down.

    Returns
    -------
    train, test : list of ndarray
        The training and the test images of each client, in ascending order.
    """
    return by_role(drawn, first_drawn(drawn, order, share))


def first_drawn(drawn: Sequence[Indices], order: Indices, share: float) -> Indices:
    """Return the first images that were drawn, up to a share of them."""
    candidates = order[np.isin(order, np.concatenate(drawn))]
    return candidates[: int(share * len(candidates))]


def by_role(drawn: Sequence[Indices], held_out: Indices) -> Sets:
    """Use the images ``held_out`` for tests, and the others for training."""
    train = [np.setdiff1d(own, held_out) for own in drawn]
    return train, [np.intersect1d(own, held_out) for own in drawn]


def draws_from_a_pool(rng: np.random.Generator) -> Arguments:
    """Draw with replacement for some clients, who leave a part of the pool."""
    pool, m = int(rng.integers(30, 45)), int(rng.integers(2, 5))
    drawn = [rng.integers(pool, size=int(rng.integers(12, 20))) for _ in range(m)]
    return drawn, rng.permutation(pool), float(rng.choice([0.25, 0.375, 0.5]))


def client_by_client(drawn: Sequence[Indices], order: Indices, share: float) -> Sets:
    """Make the mistake of choosing the test images of each client on its own."""
    sets = [split_without_leaks([own], order, share) for own in drawn]
    return [train[0] for train, _ in sets], [test[0] for _, test in sets]


def counted_per_client(drawn: Sequence[Indices], order: Indices, share: float) -> Sets:
    """Make the mistake of counting an image once for each client that drew it."""
    candidates = order[np.isin(order, np.concatenate(drawn))]
    tests = int(share * sum(len(np.unique(own)) for own in drawn))
    return by_role(drawn, candidates[:tests])


def trained_on_too(drawn: Sequence[Indices], order: Indices, share: float) -> Sets:
    """Make the mistake of leaving the test images in the training sets."""
    return [np.unique(own) for own in drawn], split_without_leaks(drawn, order, share)[1]


def with_repetitions(drawn: Sequence[Indices], order: Indices, share: float) -> Sets:
    """Make the mistake of keeping repeated draws."""
    tested = [np.isin(own, first_drawn(drawn, order, share)) for own in drawn]
    train = [np.sort(own[~mask]) for own, mask in zip(drawn, tested, strict=True)]
    return train, [np.sort(own[mask]) for own, mask in zip(drawn, tested, strict=True)]


# --- L1.2 ----------------------------------------------------------------------------------------


def two_machines() -> dict[str, dict[str, Indices]]:
    """Return what the file ``split.npz`` has on the machines of two persons.

    The array ``images`` has the images of 12 clients one after the other. The array ``sizes`` has
    the number of images of each client.
    """
    labels = datasets.load("digits-8x8").labels.numpy()
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 140, 12)
    held = []
    for client, size in enumerate(sizes):
        classes = partition.NON_OVERLAPPING[10][client // 4]
        pool = np.flatnonzero(np.isin(labels, classes))
        held.append(np.sort(rng.choice(pool, size, replace=False)))
    images = np.concatenate(held)
    return {
        "Ana": {"images": images, "sizes": sizes},
        "Ben": {"images": images, "sizes": np.sort(sizes)},
    }


def with_sizes(own: Indices) -> list[int]:
    """List the number of a client's images, and the images in ascending order."""
    return [len(own), *sorted(own.tolist())]


def digest(clients: Sequence[Indices]) -> str:
    """Compute the SHA-256 of each client's number of images and of its images."""
    return digest_of(clients, with_sizes)


def digest_of(
    clients: Sequence[Indices],
    listed: Callable[[Indices], Sequence[int]],
    encode: Callable[[Sequence[int]], bytes] = partition.integers,
) -> str:
    """Compute the SHA-256 of what is listed for each client, in the order of the clients."""
    return hashlib.sha256(b"".join(encode(listed(own)) for own in clients)).hexdigest()


def some_clients(rng: np.random.Generator) -> Arguments:
    """Draw the images of some clients in any order; a client can have none."""
    m = int(rng.integers(3, 7))
    held = [rng.choice(500, int(rng.integers(1, 9)), replace=False) for _ in range(m)]
    held[int(rng.integers(m))] = np.empty(0, dtype=np.int64)
    return ([own.astype(np.int64) for own in held],)


def without_order_of_clients(clients: Sequence[Indices]) -> str:
    """Make the mistake of sorting the clients."""
    return digest(sorted(clients, key=with_sizes))


def sizes_first(clients: Sequence[Indices]) -> str:
    """Make the mistake of writing all sizes first, and then all images."""
    sizes = np.array([len(own) for own in clients])
    return digest_of([sizes, *(np.sort(own) for own in clients)], np.ndarray.tolist)


# --- L1.3 ----------------------------------------------------------------------------------------


def score_of_run(validation: Array, test: Array) -> float:
    """Return the mean test accuracy of the first round with the best mean validation accuracy.

    Both arrays are ``[T, m]``, with a row per round and a column per client.
    """
    return float(test[validation.mean(axis=1).argmax()].mean())


def accuracies_of_rounds(rng: np.random.Generator) -> Arguments:
    """Draw accuracies of some rounds, of which two have the best mean on validation images."""
    rounds, m = int(rng.integers(5, 10)), int(rng.integers(2, 6))
    # Sixteenths have exact means, so that equal means are equal
    validation, test = rng.integers(4, 16, (2, rounds, m)) / 16
    best = int(validation.mean(axis=1).argmax())
    if best < rounds - 2:
        validation[int(rng.integers(best + 1, rounds - 1))] = rng.permutation(validation[best])
    return validation, test


def best_round_of_each_client(validation: Array, test: Array) -> float:
    """Make the mistake of choosing a round per client, by validation accuracies."""
    return float(test[validation.argmax(axis=0), np.arange(test.shape[1])].mean())


def last_of_the_best(validation: Array, test: Array) -> float:
    """Make the mistake of taking the last of several best rounds."""
    return score_of_run(validation[::-1], test[::-1])


# --- L1.4 ----------------------------------------------------------------------------------------


def paired(scores: Array) -> tuple[float, float]:
    """Return the mean difference of two methods' scores ``[2, S]``, and its standard error."""
    differences = scores[0] - scores[1]
    return float(differences.mean()), float(sem(differences))


def scores_on_splits(rng: np.random.Generator) -> Arguments:
    """Draw the scores of two methods on splits that are easy or difficult for both."""
    splits = int(rng.integers(3, 9))
    difficulty, own = rng.normal(0, 0.1, splits), rng.normal(0, 0.02, (2, splits))
    return (rng.uniform(0.4, 0.7, (2, 1)) + difficulty + own,)


def unpaired(scores: Array) -> tuple[float, float]:
    """Make the mistake of computing the standard error of two independent means."""
    return paired(scores)[0], float(np.sqrt((sem(scores, axis=1) ** 2).sum()))


def with_error(scores: Array, factor: float) -> tuple[float, float]:
    """Multiply the standard error by a factor."""
    mean, error = paired(scores)
    return mean, factor * error


EXERCISES = (
    Implement(
        "L1.1",
        "Too good to be true",
        minutes=25,
        level="medium",
        points=2,
        reference=split_without_leaks,
        inputs=draws_from_a_pool,
        mistakes={
            "Each client chooses test images on its own. An image can then be a test image of one "
            "client and a training image of another one.": client_by_client,
            "The test images are still in the training sets.": trained_on_too,
            "You take the share of the whole pool. Skip images that nobody drew.": (
                lambda drawn, order, share: by_role(drawn, order[: int(share * len(order))])
            ),
            "There are too many test images, because you count an image once for each client that "
            "drew it. How many different images were drawn by all clients together?": (
                counted_per_client
            ),
            "A client holds some images several times. Drop the repetitions.": with_repetitions,
            "The training sets and the test sets are swapped.": (
                lambda drawn, order, share: split_without_leaks(drawn, order, share)[::-1]
            ),
        },
    ),
    Implement(
        "L1.2",
        "The same command",
        minutes=20,
        level="medium",
        points=2,
        reference=digest,
        inputs=some_clients,
        mistakes={
            "Only the images enter the digest. If an image moves from the end of one client to the "
            "beginning of the next one, would you notice?": (
                lambda clients: digest_of(clients, sorted)
            ),
            "The clients are sorted. If two clients exchange their images, would you notice?": (
                without_order_of_clients
            ),
            "The images of a client are not sorted. Their order means nothing, and it must not "
            "change the digest.": lambda clients: digest_of(
                clients, lambda own: [len(own), *own.tolist()]
            ),
            "All sizes come first. The recipe has the size of each client just before the images "
            "of this client.": sizes_first,
            "The size of a client comes after its images. It must come before them.": (
                lambda clients: digest_of(clients, lambda own: [*sorted(own.tolist()), len(own)])
            ),
            "Each number has four bytes, and it must have eight.": lambda clients: digest_of(
                clients, with_sizes, lambda values: np.asarray(values, dtype="<i4").tobytes()
            ),
        },
    ),
    Implement(
        "L1.3",
        "Less is more",
        minutes=15,
        level="medium",
        points=2,
        reference=score_of_run,
        inputs=accuracies_of_rounds,
        mistakes={
            "Each client gets the round that is best for it, and test images choose this round. "
            "Choose one round for all clients, without looking at test images.": (
                lambda validation, test: float(test.max(axis=0).mean())
            ),
            "Test images choose the round. The choice may depend on validation images only.": (
                lambda validation, test: float(test.mean(axis=1).max())
            ),
            "Each client gets a round of its own. Choose one round for all clients.": (
                best_round_of_each_client
            ),
            "You report the validation accuracy by which you choose. It is too high, because you "
            "chose the round by it. Report the test accuracy of the chosen round.": (
                lambda validation, test: float(validation.mean(axis=1).max())
            ),
            "You take the last round. Take the one with the best validation accuracy.": (
                lambda validation, test: float(test[-1].mean())
            ),
            "If several rounds are equally good on validation images, take the first of them.": (
                last_of_the_best
            ),
        },
    ),
    Implement(
        "L1.4",
        "Every day another winner",
        minutes=15,
        level="easy",
        points=1,
        reference=paired,
        inputs=scores_on_splits,
        mistakes={
            "This is the standard error for two independent groups of splits. Here both methods "
            "have the same splits. Compute it from the differences.": unpaired,
            "This is the standard deviation of the differences. How much smaller is the standard "
            "error of their mean?": lambda scores: with_error(scores, np.sqrt(scores.shape[1])),
            "You divide by the number of splits in the variance. For a sample, divide by the "
            "number of splits minus one.": lambda scores: with_error(
                scores, np.sqrt(1 - 1 / scores.shape[1])
            ),
            "The sign of the mean is wrong. Subtract the second method from the first one.": (
                lambda scores: paired(scores[::-1])
            ),
            "You divide the standard deviation by the number of splits. The standard error has the "
            "root of this number.": lambda scores: with_error(scores, 1 / np.sqrt(scores.shape[1])),
        },
    ),
)
