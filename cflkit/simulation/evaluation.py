"""What a run measures after each round, and the table of it.

Measuring needs the truth, which methods do not see: the true cluster of each client, and the labels
of test samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cflkit.federation import Federation
from cflkit.federation.federation import Mixture
from cflkit.methods.base import Measuring, Method, Methods, TestSets
from cflkit.metrics import PERFORMANCE, agreement, by_method, of_models
from cflkit.models.rows import digests

if TYPE_CHECKING:
    import pandas as pd

# Macro-F1 and accuracy of each client's model, ``[m, 2]``
Scores = NDArray[np.float64]
# The distinct models by digest, and for each method the mixture of each client
Held = tuple[dict[bytes, Tensor], dict[str, list[Mixture]]]


def on_test_sets(
    methods: Methods, federation: Federation, t: int, test_sets: TestSets = "all"
) -> list[dict[str, Any]]:
    """Measure the clusters and the model of each client after round ``t``.

    Each distinct model is evaluated only once on each test set.

    Parameters
    ----------
    methods : mapping of str to Method
        The methods by name.
    federation : Federation
        The federation that has the test sets.
    t : int
        The round, from 0.
    test_sets : {"all", "own", "none"}
        The test sets for the models: those of the clients and the central one, those of the
        clients alone, or none.

    Returns
    -------
    list of dict
        One row per method, with these columns:

        - ``method``, and ``round`` (from 1);
        - ``n_clusters``, and the measures of `agreement`;
        - ``pf1`` and ``accuracy``: macro-F1 and accuracy of each client's model on the client's own
          test set, as means over clients;
        - ``worst_accuracy``: the smallest accuracy of a client;
        - ``gf1`` and ``central_accuracy``: the same models on the central test set;
        - ``learning_gap``: the mean over clients of the distance between both F1;
        - ``worse_than_local`` and ``worse_than_fine_tuned``: the share of clients whose accuracy is
          below what they have alone, or with fine-tuned FedAvg; ``most_behind_local`` and
          ``most_behind_fine_tuned``: how far the worst of them is behind;
        - ``clean_accuracy`` and ``backdoor_accuracy``: means over the target clients of a backdoor,
          on their test samples as they are, and on the manipulated ones;
        - the method's scalars;
        - ``clusters``: the cluster of each client, joined by ``|``;
        - ``settled``: whether no later round can change the clusters.

        The measures on the central test set and the gap are NaN where this set was skipped or does
        not exist. Without test sets, there are no columns about models. Methods without clusters
        have no columns about clusters, and without true clusters there are no measures of
        agreement. Only federations with a backdoor have the two measures of a backdoor. A
        comparison stands in the rows of other methods while `Local` or `FedAvgFT` runs with them.
    """
    measured: dict[str, dict[str, float]] = {}
    if test_sets != "none":
        measured = performances(methods, federation, test_sets == "all")
    rows = []
    for name, method in methods.items():
        labels = None if method.labels is None else method.labels.tolist()
        row: dict[str, Any] = {"method": name, "round": t + 1}
        if labels is not None:
            row["n_clusters"] = len(set(labels))
        if labels is not None and federation.clusters is not None:
            row |= agreement(federation.clusters.numpy(), labels)
        row |= measured.get(name, {}) | method.scalars
        if labels is not None:
            row |= {"clusters": "|".join(map(str, labels)), "settled": method.settled}
        rows.append(row)
    return rows


def performances(
    methods: Methods, federation: Federation, central: bool
) -> dict[str, dict[str, float]]:
    """Evaluate the clients' models; return each method's measures."""
    held = models_of(methods)
    on_test, on_backdoor = (scores_on(split, held, federation) for split in ("test", "backdoor"))
    on_central = scores_on("central", held, federation) if central else {}
    references = {method.reference: on_test[name] for name, method in methods.items()}
    references.pop("", None)
    unknown = np.full((federation.clients, 2), np.nan)
    return {
        name: performance(tested, on_backdoor[name], on_central.get(name, unknown))
        | comparison(tested, references)
        for name, tested in on_test.items()
    }


def models_of(methods: Methods) -> Held:
    """Return the models with which the clients of the methods predict."""
    models: dict[bytes, Tensor] = {}
    held: dict[str, list[Mixture]] = {}
    for name, method in methods.items():
        rows, mixture = method.client_models()
        keys = digests(rows)
        held[name] = [
            tuple((keys[k], float(shares[k])) for k in shares.nonzero().flatten().tolist())
            for shares in mixture
        ]
        used = {key for mixture in held[name] for key, _ in mixture}
        models.update({key: rows[k] for k, key in enumerate(keys) if key in used})
    return models, held


def scores_on(split: str, held: Held, federation: Federation) -> dict[str, Scores]:
    """Return for each method how the clients' models score; NaN for clients without samples.

    The central test set is the same for all clients.
    """
    central, (models, mixtures_of) = split == "central", held
    pairs = {
        name: [(mixture, 0 if central else client) for client, mixture in enumerate(mixtures)]
        for name, mixtures in mixtures_of.items()
    }
    distinct = sorted({pair for asked in pairs.values() for pair in asked})
    tested = [pair for pair in distinct if federation.num_samples(pair[1], split)]
    scores, missing = federation.scores(models, tested, split), (np.nan, np.nan)
    return {
        n: np.array([scores.get(pair, missing) for pair in asked]) for n, asked in pairs.items()
    }


def client_scores(method: Method, federation: Federation) -> Scores:
    """Return macro-F1 and accuracy ``[m, 2]`` of each client's model on its own test set."""
    return scores_on("test", models_of({"": method}), federation)[""]


def performance(on_test: Scores, on_backdoor: Scores, on_central: Scores) -> dict[str, float]:
    """Average the scores of the clients' models over the clients that have scores."""
    tested = ~np.isnan(on_test[:, 1])
    if not tested.any():  # no client has answered
        return dict.fromkeys(PERFORMANCE, np.nan)
    (pf1, accuracy), (gf1, central) = on_test[tested].T, on_central[tested].T
    means = pf1.mean(), gf1.mean(), np.abs(pf1 - gf1).mean(), accuracy.mean(), accuracy.min()
    measures = dict(zip(PERFORMANCE, map(float, (*means, central.mean())), strict=True))
    targets = tested & ~np.isnan(on_backdoor[:, 1])
    if targets.any():
        measures["clean_accuracy"] = float(on_test[targets, 1].mean())
        measures["backdoor_accuracy"] = float(on_backdoor[targets, 1].mean())
    return measures


def comparison(on_test: Scores, references: Mapping[str, Scores]) -> dict[str, float]:
    """Compare the clients' accuracies with those that reference methods give the same clients."""
    measures = {}
    for reference, others in references.items():
        lost = others[:, 1] - on_test[:, 1]
        lost = lost[~np.isnan(lost)]
        if len(lost) and others is not on_test:
            measures[f"worse_than_{reference}"] = float((lost > 0).mean())
            measures[f"most_behind_{reference}"] = max(0.0, float(lost.max()))
    return measures


ON_TEST_SETS = Measuring(on_test_sets, of_models)


# --- The table ------------------------------------------------------------------------------------


@dataclass
class History:
    """Results of a run: one row per method and round.

    Attributes
    ----------
    rows : list of dict
        ``method``, ``round``, and the measurements (see `Method.measuring`). In the round in which
        a method diverges, its row has ``diverged`` and no measurements. It is its last row.
    requested, trained : int
        The numbers of local trainings that the methods asked for, and that were run.
    minutes : float
        The wall-clock minutes of all rounds, including those before an interruption.
    peak_memory : float
        The largest memory in GiB after a round, including those before an interruption (see
        `loop.peak_memory`).
    revisions : list of str
        The git revision of the code at the start, and at each time that the run continued from a
        checkpoint.
    modules : list of str
        The modules in which the run began (`loop.modules_of`), for the digest of its code.
    summarise : callable
        The function from the rows of one method to its measures.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    requested: int = 0
    trained: int = 0
    minutes: float = 0.0
    peak_memory: float = 0.0
    revisions: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    summarise: Callable[[pd.DataFrame], dict[str, Any]] = field(default=lambda rows: {})

    def table(self) -> pd.DataFrame:
        """Return the rows as a table, sorted by method and then by round; empty without rows."""
        import pandas as pd  # takes a while to load

        if not self.rows:
            return pd.DataFrame(columns=["method", "round"])
        table = pd.DataFrame(self.rows)
        for name in table.columns[table.isna().any()]:
            values = [row[name] for row in self.rows if row.get(name) is not None]
            if all(type(value) is int for value in values):
                table[name] = table[name].astype("Int64")  # pandas would convert them to floats
        methods, _ = pd.factorize(table["method"])
        return table.iloc[np.lexsort([table["round"], methods])]

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the summary of the table: for each method, the values of its measures."""
        return by_method(self.table(), self.summarise)
