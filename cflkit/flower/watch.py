"""A strategy of Flower that is watched: how different its clients' updates are, round by round.

The strategy can be any one of Flower's, with any model. It computes what it would compute alone::

    strategy = watched(FedAvg(), print, file="watch.npz")
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=3)

The file is one of NumPy (``.npz``) with these arrays, for R rounds, m clients and P parameters:

- ``round`` ``[R]``: the rounds, from 1; ``clients`` ``[m]``: Flower's numbers of the nodes;
- ``divergence`` ``[R, m, m]``: the cosine distances of the clients' updates (`cosine_divergence`);
- ``updates`` ``[R, m, P]``, of the model's type: the updates themselves, if they are asked for.

The rows of a client that sent no update in a round are NaN.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from cflkit import clustering
from cflkit.divergence import Matrix, cosine_divergence, temperature
from cflkit.groups import Answer, groups
from cflkit.groups.evidence import of_arrays

Watched = TypeVar("Watched", bound=Strategy)
Vector = NDArray[np.floating]
# The clusterers that need no number of clusters and no threshold
CLUSTERERS = ("hdbscan", "meanshift", "affinity")
# How names of buffers end, such as BatchNorm's statistics, which are no parameters
BUFFERS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Sight:
    """What was seen in a round of m clients. Clusters are computed when they are asked for.

    Attributes
    ----------
    round : int
        The round, from 1.
    clients : ndarray
        ``[m]``, uint64: the clients' nodes, in ascending order.
    updates : ndarray
        ``[m, P]``, of the model's type: the trained minus the received parameters.
    divergence : ndarray
        ``[m, m]``, the cosine distances of the updates.
    rounds : tuple of Sight
        What was seen in all rounds so far; without updates, unless they are to be kept.
    """

    round: int
    clients: NDArray[np.uint64]
    updates: Vector
    divergence: Matrix
    rounds: tuple["Sight", ...] = field(default=(), repr=False)

    @property
    def temperature(self) -> float:
        """Return the temperature of the divergence (`cflkit.divergence.temperature`)."""
        return float(temperature(self.divergence))

    @cached_property
    def clusters(self) -> dict[str, clustering.Labels]:
        """Return the labels ``[m]`` that each clusterer finds, by its name."""
        return {name: clustering.make(name).fit_predict(self.divergence) for name in CLUSTERERS}

    @cached_property
    def answer(self) -> Answer:
        """Return whether there are groups, by all rounds so far (`cflkit.groups.groups`)."""
        return groups(of_arrays(joined(self.rounds)))


def watched(
    strategy: Watched,
    callback: Callable[[Sight], Any] | None = None,
    *,
    file: str | Path | None = None,
    updates: bool = False,
) -> Watched:
    """Return a strategy of Flower that also tells what it sees after each round of training.

    Buffers of BatchNorm are left out. A round with fewer than two usable updates is not told. What
    goes wrong here ends up in the log, and not in the training.

    Parameters
    ----------
    strategy : Strategy
        The strategy, whose methods are wrapped in place.
    callback : callable, optional
        What is called with the `Sight` of a round.
    file : path, optional
        The file that is written after each round; the module describes its arrays.
    updates : bool
        Whether the file has the updates, too. All rounds' updates are then kept in memory.
    """
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    sent: dict[int, Message] = {}  # to each node in this round
    kept: list[Sight] = []

    def configure_train(*args: Any, **options: Any) -> Iterable[Message]:
        messages = list(configure(*args, **options))
        sent.clear()
        sent.update((message.metadata.dst_node_id, message) for message in messages)
        return messages

    def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
        answers = list(replies)
        try:
            sight = look(server_round, answers, sent)
            kept.append(sight if updates else replace(sight, updates=sight.updates[:, :0].copy()))
            if file is not None:
                draft = Path(f"{file}.draft.npz")
                np.savez(draft, **joined(kept))
                draft.replace(file)  # which is complete at any time
            if callback is not None:
                callback(replace(sight, rounds=tuple(kept)))
        except Exception as error:
            log(WARNING, "not all that was asked of round %s is known: %s", server_round, error)
        return aggregate(server_round, answers)

    strategy.configure_train = configure_train  # type: ignore[method-assign]
    strategy.aggregate_train = aggregate_train  # type: ignore[method-assign]
    return strategy


def look(server_round: int, replies: Iterable[Message], sent: Mapping[int, Message]) -> Sight:
    """Return what the replies of a round show."""
    trained = {reply.metadata.src_node_id: reply for reply in replies if not reply.has_error()}
    if len(trained) < 2:
        raise ValueError(f"{len(trained)} clients have sent updates")
    clients = sorted(trained)
    updates = np.stack([update_of(trained[node], sent[node]) for node in clients])
    return Sight(server_round, np.array(clients, np.uint64), updates, cosine_divergence(updates))


def update_of(reply: Message, message: Message) -> Vector:
    """Return a client's trained minus its received parameters as one vector.

    The first arrays of both messages are the model. A whole number in the reply is no parameter,
    and a strategy may have sent it as the mean of many, with a fraction.
    """
    trained, received = (next(iter(m.content.array_records.values())) for m in (reply, message))
    floats = [name for name, array in trained.items() if array.dtype.startswith("float")]
    names = [name for name in floats if not name.endswith(BUFFERS)]
    return np.concatenate([(trained[n].numpy() - received[n].numpy()).ravel() for n in names])


def joined(rounds: Sequence[Sight]) -> dict[str, Any]:
    """Return the arrays of rounds, as the module describes them."""
    clients = np.unique(np.concatenate([sight.clients for sight in rounds]))
    arrays: dict[str, Any] = {"round": [sight.round for sight in rounds], "clients": clients}
    tables = [pd.DataFrame(sight.divergence, sight.clients, sight.clients) for sight in rounds]
    arrays["divergence"] = np.stack([table.reindex(clients, columns=clients) for table in tables])
    if rounds[0].updates.size:
        tables = [pd.DataFrame(sight.updates, sight.clients) for sight in rounds]
        arrays["updates"] = np.stack([table.reindex(clients) for table in tables])
    return arrays
