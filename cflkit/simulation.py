"""The one loop over rounds, for one method or many in lockstep.

Methods that share a starting point share the training: a (client, starting model) that several
methods ask for in a round is trained once. Comparisons are paired by construction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from cflkit import checkpoints, metrics
from cflkit.federation import Federation, Jobs
from cflkit.methods.base import Method


@dataclass
class History:
    """What happened, a row a method and round.

    Attributes
    ----------
    rows : list of dict
        ``method``, ``round`` (from 1), ``n_clusters``, the measures of `metrics.agreement`, ``pf1``
        and ``accuracy`` (mean over clients of macro-F1 and accuracy of the client's model on its
        own test set), ``gf1`` and ``central_accuracy`` (the same models on the central test set),
        ``learning_gap`` (mean over clients of |F1 own − F1 central|), ``worst_accuracy`` (the
        smallest of the clients'), the method's scalars, and
        ``clusters``, the cluster of each client joined by ``|``. Models are those after the round.
        Where the central test set was skipped, or there is none, its measures and the gap are NaN.
        With a backdoor: ``clean_accuracy`` and ``backdoor_accuracy``, means over the clients that
        are to be fooled, on their test samples as they are and manipulated.
    requested, trained : int
        Local trainings that the methods asked for, and those that were run.
    minutes : float
        Wall-clock minutes of the rounds, those before an interruption included.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    requested: int = 0
    trained: int = 0
    minutes: float = 0.0

    def table(self) -> pd.DataFrame:
        """The rows as a table, methods together, rounds ascending."""
        table = pd.DataFrame(self.rows)
        methods = table["method"].unique()
        order = pd.Categorical(table["method"], categories=methods, ordered=True)
        return table.assign(order=order).sort_values(["order", "round"]).drop(columns="order")

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        """Method → measure → value at the last round; with ``mean_`` over the rounds measured.

        ``clustering_round`` is the first round (from 1) that ends with more than one cluster.
        """
        result = {}
        for method, rows in self.table().groupby("method", sort=False):
            split = rows.loc[rows["n_clusters"] > 1, "round"]
            measures: dict[str, float | int | None] = {
                "clustering_round": int(split.iloc[0]) if len(split) else None,
                "n_clusters": int(rows["n_clusters"].iloc[-1]),
            }
            for name in (name for name in MEASURES if name in rows and rows[name].notna().any()):
                measures[name] = float(rows[name].iloc[-1])
                measures[f"mean_{name}"] = float(rows[name].mean())
            result[str(method)] = measures
        return result


MEASURES = (
    *("ari", "ami", "homogeneity", "completeness"),
    *("pf1", "gf1", "learning_gap", "accuracy", "worst_accuracy", "central_accuracy"),
    *("clean_accuracy", "backdoor_accuracy"),
)


def run(
    methods: Mapping[str, Method],
    federation: Federation,
    rounds: int,
    *,
    central_every: int = 1,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Run methods in lockstep from the same initial model.

    Parameters
    ----------
    methods : mapping of str to Method
        The names are those of the history's rows. Methods are set up here and hold their final
        models afterwards.
    federation : Federation
        Trains and evaluates.
    rounds : int
        At least 1.
    central_every : int
        Rounds from one evaluation on the central test set to the next, which on a CPU can cost more
        than the training; the last round always has one.
    checkpoint : path, optional
        Where the state after each round is kept. If the file exists the run goes on from it. It
        stays when the run is complete, until a record holds the result (`records.write`).
    progress : bool
        Whether to show a bar with the round, the temperature and the number of clusters.

    Returns
    -------
    History

    Raises
    ------
    Diverged
        A trained model is not finite; the message names round and clients.
    checkpoints.CheckpointMismatch
        The checkpoint is damaged or of another run: other methods, options, seed or partition, or
        more rounds.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
    if central_every < 1:
        raise ValueError(f"central_every must be at least 1, not {central_every}")
    if not methods:
        raise ValueError("there is no method to run")
    initial = federation.initial()
    for method in methods.values():
        method.setup(federation, initial)
    history, start = History(), 0
    identity = fingerprint(methods, federation)
    if checkpoint is not None and Path(checkpoint).exists():
        history, start = resume(Path(checkpoint), identity, methods, rounds, federation.device)
    bar = tqdm(
        range(start, rounds), initial=start, total=rounds, disable=not progress, unit="round"
    )
    for round in bar:
        begin = perf_counter()
        requests = {name: method.broadcast(round) for name, method in methods.items()}
        trained, places = train_once(federation, requests, round, history)
        for name, method in methods.items():
            method.aggregate(round, requests[name], chosen(trained, places[name]))
        central = (round + 1) % central_every == 0 or round + 1 == rounds
        history.rows += evaluate(methods, federation, round, central)
        history.minutes += (perf_counter() - begin) / 60
        bar.set_postfix_str(headline(methods))
        if checkpoint is not None:
            save_checkpoint(Path(checkpoint), identity, history, round + 1, methods)
    return history


def train_once(
    federation: Federation, requests: Mapping[str, Jobs], round: int, history: History
) -> tuple[Tensor, dict[str, Tensor]]:
    """Train each distinct (starting model, client) once, whoever asks for it.

    Returns
    -------
    trained : Tensor
        ``[D, P + Q]``, the distinct results.
    places : dict of str to Tensor
        For each method, ``[J]``: where the result of each of its jobs lies in ``trained``.
    """
    models: dict[bytes, tuple[int, Tensor]] = {}
    jobs: dict[tuple[int, int, float], int] = {}
    places = {}
    for name, request in requests.items():
        if request.samples is not None:
            raise ValueError(f"{name} trains on parts of clients, which the lockstep cannot share")
        rows = [
            models.setdefault(digest, (len(models), row))[0]
            for digest, row in zip(digests(request.models), request.models, strict=True)
        ]
        mu = torch.zeros(len(request)) if request.proximal is None else request.proximal
        wanted = zip(request.model.tolist(), request.client.tolist(), mu.tolist(), strict=True)
        places[name] = torch.tensor(
            [jobs.setdefault((rows[k], client, mu), len(jobs)) for k, client, mu in wanted]
        )
    model, client, pull = (torch.tensor(column) for column in zip(*jobs, strict=True))
    distinct = torch.stack([row for _, row in models.values()])
    history.requested += sum(map(len, requests.values()))
    history.trained += len(jobs)
    trained = federation.train(Jobs(distinct, model, client, pull if pull.any() else None), round)
    return trained, places


def chosen(trained: Tensor, places: Tensor) -> Tensor:
    """``trained[places]``, without a copy where that is all of it, in order."""
    everything = torch.equal(places, torch.arange(len(trained)))
    return trained if everything else trained[places]


def evaluate(
    methods: Mapping[str, Method], federation: Federation, round: int, central: bool = True
) -> list[dict[str, Any]]:
    """A row of measures for each method; each distinct model meets each test set once."""
    models: dict[bytes, Tensor] = {}
    holders: dict[str, list[bytes]] = {}
    for name, method in methods.items():
        rows, of_client = method.client_models()
        keys = digests(rows)
        holders[name] = [keys[row] for row in of_client.tolist()]
        models.update({key: rows[row] for row, key in enumerate(keys) if key in holders[name]})
    number = {key: position for position, key in enumerate(models)}
    stacked = torch.stack(list(models.values()))

    pairs = sorted({(number[k], c) for keys in holders.values() for c, k in enumerate(keys)})
    own = on_clients(federation, stacked, pairs, "test")
    fooled = [pair for pair in pairs if federation.samples(pair[1], "backdoor")]
    deceived = on_clients(federation, stacked, fooled, "backdoor")
    if central and len(federation.targets(0, "central")):
        everywhere = [(model, 0) for model in range(len(stacked))]
        general = on_clients(federation, stacked, everywhere, "central")
    else:
        general = {}
    truth = federation.clusters.numpy()
    result = []
    for name, method in methods.items():
        held = [(number[key], client) for client, key in enumerate(holders[name])]
        pf1, accuracy = np.array([own[pair] for pair in held]).T
        gf1, central_accuracy = np.array(
            [general.get((model, 0), (np.nan, np.nan)) for model, _ in held]
        ).T
        labels = method.labels.tolist()
        row = {
            "method": name,
            "round": round + 1,
            "n_clusters": len(set(labels)),
            **metrics.agreement(truth, labels),
            "pf1": float(pf1.mean()),
            "gf1": float(gf1.mean()),
            "learning_gap": float(np.abs(pf1 - gf1).mean()),
            "accuracy": float(accuracy.mean()),
            "worst_accuracy": float(accuracy.min()),
            "central_accuracy": float(central_accuracy.mean()),
        }
        if fooled:
            targets = [pair for pair in held if pair in deceived]
            row["clean_accuracy"] = float(np.mean([own[pair][1] for pair in targets]))
            row["backdoor_accuracy"] = float(np.mean([deceived[pair][1] for pair in targets]))
        result.append(row | method.scalars | {"clusters": "|".join(map(str, labels))})
    return result


def on_clients(
    federation: Federation, models: Tensor, pairs: Sequence[tuple[int, int]], split: str
) -> dict[tuple[int, int], tuple[float, float]]:
    """Macro-F1 and accuracy of pairs of a model and a client, on the client's part of a split."""
    if not pairs:
        return {}
    model, client = torch.tensor(pairs).T
    found = federation.predict(Jobs(models, model, client), split)
    return {
        pair: metrics.scores(federation.targets(pair[1], split).cpu(), probabilities.cpu())
        for pair, probabilities in zip(pairs, found, strict=True)
    }


def headline(methods: Mapping[str, Method]) -> str:
    """The temperature and each method's number of clusters, for the progress bar."""
    heats = [m.scalars["temperature"] for m in methods.values() if "temperature" in m.scalars]
    clusters = ", ".join(f"{name} {len(m.labels.unique())}" for name, m in methods.items())
    return (f"T {heats[0]:.3f}; " if heats else "") + f"clusters: {clusters}"


def digests(models: Tensor) -> list[bytes]:
    """A key for each row of ``models``: equal for rows that are equal to the bit."""
    return [hashlib.blake2b(row.numpy().data, digest_size=16).digest() for row in models.cpu()]


# --- Checkpoints ---------------------------------------------------------------------------------


def fingerprint(methods: Mapping[str, object], federation: Federation) -> str:
    """What a run is: methods with options, partition, training, seed, engine and architecture."""
    parts = [
        *(f"{name}: {method!r}" for name, method in methods.items()),
        federation.partition.hash,
        repr(asdict(federation.training)),
        f"{federation.seed}, {federation.participating} a round",
        f"{federation.engine} on {federation.device.type} in {federation.precision}",
        digests(federation.initial()[None])[0].hex(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def save_checkpoint(
    path: Path, identity: str, history: History, rounds: int, methods: Mapping[str, Method]
) -> None:
    """Write the state after ``rounds`` rounds."""
    state = {
        "rounds": rounds,
        "history": vars(history),
        "methods": {name: method.state() for name, method in methods.items()},
    }
    checkpoints.save(path, identity, state)


def resume(
    path: Path, identity: str, methods: Mapping[str, Method], rounds: int, device: torch.device
) -> tuple[History, int]:
    """Restore the methods from a checkpoint; returns the history and the rounds already run."""
    state = checkpoints.load(path, identity, rounds, device)
    for name, method in methods.items():
        method.restore(state["methods"][name])
    return History(**state["history"]), state["rounds"]
