"""What a run measures after each round, and the table of it.

Measuring needs the truth, which methods do not see: the true cluster of each client, and the labels
of test samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cflkit.federation import Federation
from cflkit.federation.interface import Mixture, Scores
from cflkit.methods.base import Measuring, Method, Methods, TestSets
from cflkit.metrics import PERFORMANCE, agreement, by_method, of_models
from cflkit.models.rows import digests

if TYPE_CHECKING:
    import pandas as pd


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
        row = {"method": name, "round": t + 1} | clusters_found(federation, method)
        rows.append(row | measured.get(name, {}) | method.scalars | joined_labels(method))
    return rows


def performances(
    methods: Methods, federation: Federation, central: bool
) -> dict[str, dict[str, float]]:
    """Evaluate the clients' models; return each method's measures."""
    models, held = models_of(methods)
    pairs = sorted({pair[::-1] for mixtures in held.values() for pair in enumerate(mixtures)})
    tested = [pair for pair in pairs if federation.num_samples(pair[1], "test")]
    on_test = federation.scores(models, tested, "test")
    targets = [pair for pair in pairs if federation.num_samples(pair[1], "backdoor")]
    on_backdoor = federation.scores(models, targets, "backdoor")
    on_central: Scores = {}
    if central and federation.num_samples(0, "central"):
        everywhere = sorted({(mixture, 0) for mixture, _ in pairs})
        on_central = federation.scores(models, everywhere, "central")
    references = {method.reference: held[name] for name, method in methods.items()}
    references.pop("", None)
    return {
        name: performance(mixtures, on_test, on_backdoor, on_central)
        | comparison(mixtures, references, on_test)
        for name, mixtures in held.items()
    }


def models_of(methods: Methods) -> tuple[dict[bytes, Tensor], dict[str, list[Mixture]]]:
    """Return the distinct models by digest, and for each method the mixture of each client."""
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


def client_scores(method: Method, federation: Federation) -> NDArray[np.float64]:
    """Return macro-F1 and accuracy ``[m, 2]`` of each client's model on its own test set."""
    models, held = models_of({"": method})
    pairs = [(mixture, client) for client, mixture in enumerate(held[""])]
    scores = federation.scores(models, pairs, "test")
    return np.array([scores[pair] for pair in pairs])


def clusters_found(federation: Federation, method: Method) -> dict[str, Any]:
    """Count a method's clusters, if it has any, and compare them with the true ones, if known."""
    if method.labels is None:
        return {}
    labels = method.labels.tolist()
    count = {"n_clusters": len(set(labels))}
    if federation.clusters is None:
        return count
    return count | agreement(federation.clusters.numpy(), labels)


def performance(
    mixtures: Sequence[Mixture], on_test: Scores, on_backdoor: Scores, on_central: Scores
) -> dict[str, float]:
    """Average the scores of the clients' mixtures of models over the clients that have scores."""
    held = [(mixture, c) for c, mixture in enumerate(mixtures) if (mixture, c) in on_test]
    if not held:  # no client has answered
        return dict.fromkeys(PERFORMANCE, np.nan)
    pf1, accuracy = np.array([on_test[pair] for pair in held]).T
    missing = (np.nan, np.nan)
    gf1, central = np.array([on_central.get((mixture, 0), missing) for mixture, _ in held]).T
    means = pf1.mean(), gf1.mean(), np.abs(pf1 - gf1).mean(), accuracy.mean(), accuracy.min()
    measures = dict(zip(PERFORMANCE, map(float, (*means, central.mean())), strict=True))
    targets = [pair for pair in held if pair in on_backdoor]
    if targets:
        measures["clean_accuracy"] = float(np.mean([on_test[pair][1] for pair in targets]))
        measures["backdoor_accuracy"] = float(np.mean([on_backdoor[pair][1] for pair in targets]))
    return measures


def comparison(
    mixtures: Sequence[Mixture], references: Mapping[str, Sequence[Mixture]], on_test: Scores
) -> dict[str, float]:
    """Compare the clients' accuracies with those that reference methods give the same clients."""
    measures = {}
    for reference, others in references.items():
        pairs = [((mixture, c), (others[c], c)) for c, mixture in enumerate(mixtures)]
        known = [(mine, other) for mine, other in pairs if mine in on_test and other in on_test]
        lost = np.array([on_test[other][1] - on_test[mine][1] for mine, other in known])
        if len(lost) and others is not mixtures:
            measures[f"worse_than_{reference}"] = float((lost > 0).mean())
            measures[f"most_behind_{reference}"] = max(0.0, float(lost.max()))
    return measures


def joined_labels(method: Method) -> dict[str, Any]:
    """Return the cluster of each client joined by ``|``, if the method has clusters."""
    if method.labels is None:
        return {}
    return {"clusters": "|".join(map(str, method.labels.tolist())), "settled": method.settled}


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
            if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                table[name] = table[name].astype("Int64")  # pandas would convert them to floats
        methods = table["method"].unique()
        order = pd.Categorical(table["method"], categories=methods, ordered=True)
        return table.assign(order=order).sort_values(["order", "round"]).drop(columns="order")

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the summary of the table: for each method, the values of its measures."""
        return by_method(self.table(), self.summarise)
