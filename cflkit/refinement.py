"""Runs of FedCRef: iterations until it stops, a row of measures for each.

What `simulation` is for methods that average every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from cflkit import checkpoints, metrics
from cflkit.federation import Federation, LocalTraining
from cflkit.methods import fedcref
from cflkit.methods.fedcref import FedCRef, Labels, LocalClusters, State
from cflkit.simulation import History, fingerprint


class Refinement(History):
    """What happened, a row a method and iteration.

    Rows have ``method``, ``round`` (the iteration; 0 is the start), ``communities`` and
    ``isolated`` (clusters; at the start all of them) and ``wrong`` (the share of associations
    between clusters of two classes), all of the clusters that the iteration began with;
    ``accuracy`` and ``worst_accuracy`` (clients' clustering accuracy, the mean and the smallest)
    and ``active`` (clients that will refine again) after it has refined them; and the graph of
    associations, again before: ``owners`` and ``classes``, the client and the true class of each
    cluster joined by ``|``, and ``edges``, pairs of clusters ``i-j`` joined by ``|``.
    """

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        """Method → measure → value after the last iteration; ``…_start`` before the first."""
        result: dict[str, dict[str, float | int | None]] = {}
        for method, rows in self.table().groupby("method", sort=False):
            first, last = rows.iloc[0], rows.iloc[-1]
            result[str(method)] = {
                "iterations": int(last["round"]),
                **{name: int(last[name]) for name in ("communities", "isolated", "active")},
                "isolated_start": int(first["isolated"]),
                **{name: float(last[name]) for name in ("wrong", "accuracy", "worst_accuracy")},
                "accuracy_start": float(first["accuracy"]),
            }
        return result


def measures(federation: Federation, state: State, classes: Labels) -> dict[str, Any]:
    """A row of `Refinement` for a state, without the method.

    ``classes`` are those of ``state.clusters``: `fedcref.true_classes`, before refinement.
    """
    accuracies = [
        metrics.clustering_accuracy(federation.targets(client, "train").cpu(), own)
        for client, own in enumerate(state.labels)
    ]
    communities, isolated = state.counts[-1]
    pairs = zip(*np.nonzero(np.triu(state.edges)), strict=True)
    return {
        "round": state.iteration,
        "communities": communities,
        "isolated": isolated,
        "wrong": fedcref.wrong_share(state.edges, classes),
        "accuracy": float(np.mean(accuracies)),
        "worst_accuracy": float(np.min(accuracies)),
        "active": int(state.active.sum()),
        "owners": "|".join(map(str, state.clusters.owner)),
        "classes": "|".join(map(str, classes)),
        "edges": "|".join(f"{i}-{j}" for i, j in pairs),
    }


def run(
    methods: Mapping[str, FedCRef],
    federation: Federation,
    labels: Sequence[Labels],
    iterations: int,
    *,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> tuple[Refinement, dict[str, State]]:
    """Run variants of FedCRef in lockstep, from the same initial clusters.

    The networks of the first iteration, which are the same for all variants that train alike, are
    trained once.

    Parameters
    ----------
    methods : mapping of str to FedCRef
        The names are those of the rows.
    federation : Federation
        Whose task is reconstruction.
    labels : sequence of ndarray
        The initial clusters, as for `fedcref.start`.
    iterations : int
        The most iterations, where nothing else ends a run.
    checkpoint : path, optional
        Where the states after each iteration are kept. If the file exists the run goes on from it.
    progress : bool
        Whether to show a bar.

    Returns
    -------
    Refinement
        What happened.
    dict of str to State
        Where each variant ended.

    Raises
    ------
    ValueError
        No iteration, or labels that do not fit the clients (`fedcref.start`).
    Diverged
        A trained model is not finite.
    checkpoints.CheckpointMismatch
        The checkpoint is damaged or of another run.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
    states = {name: fedcref.start(federation, labels) for name in methods}
    history = Refinement()
    given = {"labels": [np.asarray(own).tolist() for own in labels]}
    identity = fingerprint({**methods, **given}, federation)
    if checkpoint is not None and Path(checkpoint).exists():
        kept = checkpoints.load(Path(checkpoint), identity, iterations, federation.device)
        history = Refinement(**kept["history"])
        for name, state in kept["methods"].items():
            restore(federation, states[name], state)
    else:
        classes = fedcref.true_classes(federation, labels)
        history.rows = [
            {"method": name, **measures(federation, state, classes)}
            for name, state in states.items()
        ]
    begun = max(state.iteration for state in states.values())
    bar = tqdm(range(begun, iterations), disable=not progress, unit="iteration")
    for _ in bar:
        running = [name for name in methods if not fedcref.finished(states[name], methods[name])]
        if not running:
            break
        # From the same clusters all train the same networks at first
        first: dict[LocalTraining, State] = {}
        for name in running:
            state, options = states[name], methods[name]
            begin = perf_counter()
            classes = fedcref.true_classes(federation, state.labels)
            active = state.active.copy()
            alike = None if state.iteration else first.get(options.local)
            fedcref.iterate(federation, state, options, alike)
            first.setdefault(options.local, state)
            local = int(active[state.clusters.owner].sum())
            federated = options.rounds * sum(map(len, state.communities))
            history.requested += local + federated
            history.trained += federated if alike else local + federated
            row = measures(federation, state, classes)
            history.rows.append({"method": name, **row})
            history.minutes += (perf_counter() - begin) / 60
            bar.set_postfix_str(f"{name}: ACC {row['accuracy']:.3f}")
        if checkpoint is not None:
            done = {
                "rounds": max(state.iteration for state in states.values()),
                "history": vars(history),
                "methods": {name: kept_of(state) for name, state in states.items()},
            }
            checkpoints.save(Path(checkpoint), identity, done)
    return history, states


def kept_of(state: State) -> dict[str, Any]:
    """What of a state a checkpoint must hold: the rest follows from it."""
    return {
        "labels": [torch.from_numpy(own) for own in state.labels],
        "active": torch.from_numpy(state.active),
        "models": state.models,
        "owner": torch.from_numpy(state.clusters.owner),
        "samples": [torch.from_numpy(members) for members in state.clusters.samples],
        "edges": torch.from_numpy(state.edges),
        "communities": [torch.from_numpy(members) for members in state.communities],
        "federated": state.federated,
        "counts": state.counts,
        "refined": torch.from_numpy(state.refined),
    }


def restore(federation: Federation, state: State, kept: dict[str, Any]) -> None:
    """Take back what `kept_of` gave, and the models' errors, which are computed again."""
    state.labels = [own.numpy() for own in kept["labels"]]
    state.active = kept["active"].numpy()
    state.refined = kept["refined"].numpy()
    state.counts = [(communities, isolated) for communities, isolated in kept["counts"]]
    state.models, state.federated = kept["models"], kept["federated"]
    samples = [members.numpy() for members in kept["samples"]]
    state.clusters = LocalClusters(kept["owner"].numpy(), samples)
    state.edges = kept["edges"].numpy()
    state.communities = [members.numpy() for members in kept["communities"]]
    if not state.iteration:
        return
    ends = np.cumsum([len(models) for models in state.models])
    errors = fedcref.reconstruction_errors(federation, torch.cat(state.models))
    parts = [np.split(of_client, ends[:-1]) for of_client in errors]
    state.errors = [[part[client] for part in parts] for client in range(federation.clients)]
