"""Tables for the ledger's page and the reports: records beside what is printed.

The functions rearrange what the records and the ledger have. `figures` draws the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.metrics import adjusted_rand_score

from cflkit import clustering
from cflkit.methods.ocfl import rises
from cflkit.partition.scenarios import cluster_sizes
from cflkit.reproduce import ledger, records
from cflkit.reproduce.papers import PAPERS, ocfl
from cflkit.reproduce.records import Record
from cflkit.reproduce.stats import LEVEL, Comparison
from reports.maps import rows_as_published

# A value of each round, from round 1 on
Curve = Sequence[float]
# Runs by the scenario that they have in common
Groups = Mapping[tuple[Any, ...], Sequence[Record]]
# Parts of scenarios in short
SHORT = {
    "nonoverlapping": "non-ov.",
    "overlapping": "ov.",
    "balanced": "bal.",
    "imbalanced": "imb.",
    "fashion-mnist": "fashion",
}

# --- Numbers of the ledger -----------------------------------------------------------------------


def at_scale(book: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Reduce the table of `ledger.ledger` to one scale; columns of our runs have no prefix then."""
    facts = [*ledger.OURS, "status", "intended", "runs"]
    prefix, _ = ledger.SCALES[scale]
    ours = book[[prefix + name for name in facts]].set_axis(facts, axis=1)
    theirs = book.drop(columns=[one + name for one, _ in ledger.SCALES.values() for name in facts])
    return theirs.join(ours)


def with_runs(book: pd.DataFrame) -> pd.DataFrame:
    """Return a row per number and ``scale`` (``paper's`` or ``reduced``) that has an answer.

    The answers at the reduced scale have their short names. Each row has the number's `Margin`.
    """
    parts = {
        name: at_scale(book, of).assign(status=ledger.answers_at(book, of))
        for name, of in (("paper's", "paper"), ("reduced", "reduced"))
    }
    entries = pd.concat(parts, names=["scale"]).reset_index("scale")
    entries = entries[entries["status"].isin(ledger.ANSWERS)].reset_index(drop=True)
    of = zip(entries["paper"], entries["protocol"], strict=True)
    return entries.assign(margin=[PAPERS[paper].protocols[name].margin for paper, name in of])


def titled(table: str) -> str:
    """Return how a table or a figure of a paper is called: ``Table 1``, or ``Figure 8``."""
    return table.capitalize() if table.startswith("figure") else f"Table {table}"


def scenario_labels(rows: pd.DataFrame, paper: str) -> list[str]:
    """Name the scenario of each row of `with_runs` by what differs between the rows of the paper.

    If there are rows of both scales, those at the paper's scale say so.
    """
    differing = [name for name in PAPERS[paper].scenario if rows[name].nunique() > 1]
    several = rows["scale"].nunique() > 1
    labels = []
    for scale, *parts in rows[["scale", *differing]].itertuples(index=False):
        names = [str(SHORT.get(part, part)) for part in parts if not pd.isna(part)] or ["all"]
        labels.append(", ".join(names + ["paper's"] * (several and scale == "paper's")))
    return labels


# --- Groups of records ---------------------------------------------------------------------------


def by_scenario(runs: Sequence[Record], paper: str) -> dict[tuple[Any, ...], list[Record]]:
    """Group runs by their scenario, in the order of `Paper.scenario`."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for run in runs:
        groups.setdefault(ledger.scenario_of(run, paper), []).append(run)
    return groups


def by_seed(
    groups: Mapping[str, Sequence[Record]], name: str, measure: str, since: int = 0
) -> pd.DataFrame:
    """Return a method's measure for `plots.over_rounds`, with a line per group of runs.

    A row per run and round has ``method``, which is the name of the group and the number of seeds,
    ``round`` and the measure. A run that has ended keeps its last value while others go on.
    """
    parts = [pd.DataFrame(columns=["method", "round", measure])]
    for group, runs in groups.items():
        rows = pd.concat([run.by_method[name].assign(run=run.id) for run in runs])
        wide = rows.pivot(index="run", columns="round", values=measure).ffill(axis=1).loc[:, since:]
        label = f"{group} ({len(wide)} seed{'s' * (len(wide) > 1)})"
        parts.append(wide.melt(value_name=measure).assign(method=label))
    return pd.concat(parts[1:] or parts)


def beside(
    cells: pd.DataFrame,
    systems: Groups,
    paper: str,
    measures: Mapping[str, tuple[str, float]],
    stands_for: Mapping[str, str],
) -> pd.DataFrame:
    """Put printed numbers beside ours where our data set may only resemble the paper's.

    Parameters
    ----------
    cells, paper : DataFrame, str
        Rows of `ledger.published` of this paper.
    systems : mapping of tuple to sequence of Record
        Our runs by scenario, whose first part is the data set.
    measures : mapping of str to (str, float)
        For each printed measure, its name in the records and the factor between the units.
    stands_for : mapping of str to str
        The paper's data set, by the name of ours.

    Returns
    -------
    DataFrame
        A row per ``system``, ``method``, ``measure`` and printed ``value``: its ``deviation``, and
        the mean ``ours``, ``low``, ``high`` and number of ``seeds``. NaN where there is none.
    """
    columns = list(PAPERS[paper].scenario)
    rows = []
    for system, runs in systems.items():
        nearest = [stands_for.get(system[0], system[0]), *system[1:]]
        theirs = cells[(cells[columns] == nearest).all(axis=1)]
        methods = dict.fromkeys(
            [*theirs["method"], *(name for run in runs for name in run.summary)]
        )
        for method, (measure, (name, factor)) in product(methods, measures.items()):
            found = [run.summary[method].get(name) for run in runs if method in run.summary]
            ours = factor * np.array(found or [None], dtype=float)
            row = {"system": system, "method": method, "measure": measure, "seeds": len(found)}
            row |= {"ours": ours.mean(), "low": ours.min(), "high": ours.max()}
            printed = theirs[(theirs["method"] == method) & (theirs["measure"] == measure)]
            known = printed[["value", "deviation"]].to_dict("records")
            rows += [row | cell for cell in known or [{"value": np.nan, "deviation": np.nan}]]
    names = ["system", "method", "measure", "seeds", "ours", "low", "high", "value", "deviation"]
    return pd.DataFrame(rows, columns=names)


# --- OCFL ----------------------------------------------------------------------------------------


def scenario_and_seed(run: Record) -> dict[str, Any]:
    """Return the scenario and the seed of a run, with which its rows in tables begin."""
    return {name: run.parameters[name] for name in (*ocfl.SCENARIO, "seed")}


def by_scenario_and_seeds(runs: Sequence[Record]) -> dict[tuple[Any, ...], Record]:
    """Return runs by their scenario and their seeds, which differ between the runs."""
    return {(ledger.scenario_of(run, "ocfl"), records.seeds_of(run)): run for run in runs}


def temperatures(run: Record, method: str = "FedAvg") -> list[float]:
    """Return the temperature of each round in which a method watched it, from round 1 on."""
    return list(run.by_method[method]["temperature"].dropna())


def first_rise(curve: Curve, strict: bool = True, before: float = float("inf")) -> int | None:
    """Return the round (from 1) in which a temperature first rises; None if it never does.

    ``strict`` and ``before`` are those of `methods.ocfl.rises`.
    """
    rounds = range(1, len(curve) + 1)
    return next((t for t in rounds if rises(curve[:t], 1, strict, before)), None)


def first_steps(
    groups: Groups, theirs: Mapping[tuple[Any, ...], Curve], method: str = "FedAvg"
) -> pd.DataFrame:
    """Compare how the temperature of a method begins in our runs and in the authors'.

    Both have the key data set, overlap and balance. A row per run has these, the ``seed``, the
    rounds of the first rise (``theirs``, ``ours``), whether the step from round 1 to 2 ``rises`` or
    ``falls`` (``their step``, ``our step``), and the mean ``distance`` in these two rounds.
    """
    rows = []
    for scenario, run in ((scenario, run) for scenario, runs in groups.items() for run in runs):
        row = dict(zip(ocfl.SCENARIO, scenario, strict=False)) | {"seed": run.parameters["seed"]}
        own = temperatures(run, method)
        for name, curve in (("their", theirs[scenario]), ("our", own)):
            row[f"{name}s"] = first_rise(curve)
            row[f"{name} step"] = "rises" if curve[1] > curve[0] else "falls"
        row["distance"] = np.abs(np.subtract(own[:2], theirs[scenario][:2])).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def outcomes(runs: Sequence[Record], printed: pd.DataFrame) -> pd.DataFrame:
    """Separate when the variants of OCFL cluster from what they find, beside Tables 1 and 2.

    ``printed`` has the columns ``clustering round`` and ``RAND``, by scenario and method. A row per
    run and method as published has the scenario, ``seed``, ``method``, ``round`` and ``printed
    round``, the final ``ARI``, ``RAND`` and ``printed`` RAND, and what our RAND would be if our
    clusters had come ``at their round``.
    """
    rows = []
    for run, name in product(runs, ocfl.CLUSTERERS):
        scenario = ledger.scenario_of(run, "ocfl")
        found, theirs = rows_as_published(run, name), printed.loc[(*scenario, name)]
        ari, fired = found["ari"].iloc[-1], int(theirs["clustering round"])
        row = scenario_and_seed(run) | {"method": name, "ARI": ari}
        row |= {"round": ocfl.round_as_in_the_tables(found), "printed round": fired}
        row |= {"RAND": ocfl.as_in_the_tables(found), "printed": theirs["RAND"]}
        row["at their round"] = ari * (ocfl.TABLE_ROUNDS + 1 - fired) / ocfl.TABLE_ROUNDS
        rows.append(row)
    return pd.DataFrame(rows)


def over_seeds(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Summarise `outcomes` by a column: rounds and ARIs seed by seed, and means of RAND."""

    def each(values: pd.Series) -> str:
        return ", ".join(f"{value:.3g}" for value in values.round(2))

    return rows.groupby(by).agg(
        round=("round", each),
        theirs=("printed round", "first"),
        ARI=("ARI", each),
        RAND=("RAND", "mean"),
        printed=("printed", "first"),
        **{"at their round": ("at their round", "mean")},
    )


def run_labels(rows: pd.DataFrame) -> pd.Series:
    """Return a short label for the scenario and the seed of each row."""
    words = rows[["dataset", "overlap", "balance"]].replace(SHORT).agg(" ".join, axis=1)
    return words + rows.apply(lambda row: f" {row['clients']}, seed {row['seed']}", axis=1)


def in_round_1(early: Sequence[Record], late: Sequence[Record]) -> pd.DataFrame:
    """Compare what OCFL's variants would find in round 1 with what they find at their trigger.

    Runs of ``early`` keep the distances of round 1. A row per such run and method has the
    scenario, the ``seed``, the largest distance ``within`` a true cluster and the smallest
    ``between`` two, the ``method`` and its ``ARI in round 1``. The ``round`` and ``ARI`` at the
    trigger are those of the run of ``late`` with the same scenario and seeds.
    """
    waited = by_scenario_and_seeds(late)
    rows = []
    for run, (name, clusterer) in product(early, ocfl.CLUSTERERS.items()):
        scenario = ledger.scenario_of(run, "ocfl")
        *_, balance, clients = scenario
        truth = np.repeat(range(3), cluster_sizes(clients, balance))
        kept = run.by_method[name]["distances"].iloc[0]
        gamma = np.array(kept.split("|"), dtype=float).reshape(clients, clients)
        found = clustering.make(clusterer).fit_predict(gamma)
        same = truth[:, None] == truth
        row = scenario_and_seed(run)
        row |= {"within": gamma[same].max(), "between": gamma[~same].min(), "method": name}
        row["ARI in round 1"] = adjusted_rand_score(truth, found)
        end = waited[scenario, records.seeds_of(run)].summary[name]
        rows.append(row | {"round": end["clustering_round"], "ARI": end["ari"]})
    return pd.DataFrame(rows)


def by_cut(exact: Sequence[Record], usual: Sequence[Record]) -> pd.DataFrame:
    """Compare Sattler's method with the exact cut of its paper to the one with its code's cut.

    A row per run of ``exact`` and cut has the scenario, the ``seed``, the linkage of the ``cut``,
    the round of the first ``split``, and at the end of the run the ``clusters`` (a number), the
    ``ARI`` and ``PF1``; ``RAND`` is as in the tables. The run of ``usual`` with the same scenario
    and seeds has the code's cut; without such a run, there is no row.
    """
    code, rows = by_scenario_and_seeds(usual), []
    for key, run in by_scenario_and_seeds(exact).items():
        if key not in code:
            continue
        for cut, played, name in (
            ("complete", code[key], "Sattler"),
            ("single", run, "Sattler-exact"),
        ):
            end, own = played.summary[name], played.by_method[name]
            row = scenario_and_seed(run) | {"cut": cut, "split": end["clustering_round"]}
            row |= {"clusters": end["n_clusters"], "ARI": end["ari"], "PF1": end["pf1"]}
            rows.append(row | {"RAND": ocfl.as_in_the_tables(own)})
    return pd.DataFrame(rows)


def roundings(runs: Sequence[Record], of_seeds: str, of_roundings: str) -> pd.DataFrame:
    """Collect what OCFL's variants find with other seeds, and with other roundings of seed 0.

    Runs that name their engine and end with the clusters count. Those on the usual engine without a
    perturbation are of the first kind, and those of seed 0 of the second; a run can be of both. A
    row per run, kind and method has ``dataset``, ``overlap``, ``method``, ``kind``, ``ARI`` and
    ``round``.
    """
    rows = []
    for run in runs:
        own = run.parameters
        if own.get("engine") is None or own["until"] != "clusters":
            continue
        plain = own["engine"] == "threads" and own["perturbation"] is None
        kinds = [of_seeds] * plain + [of_roundings] * (own["seed"] == 0)
        row = {name: own[name] for name in ("dataset", "overlap")}
        for name, kind in product(ocfl.CLUSTERERS, kinds):
            end = run.summary[name]
            found = {"kind": kind, "ARI": end["ari"], "round": end["clustering_round"]}
            rows.append(row | {"method": name} | found)
    return pd.DataFrame(rows)


# --- EMD-CFL, FedCRef and explanations -----------------------------------------------------------


def version_lines(
    rows: pd.DataFrame, methods: Sequence[str], measures: Mapping[str, str]
) -> list[str]:
    """Format a line per method: seeds, and numbers printed, as published and as intended.

    The rows are those of `at_scale`, one per method and measure. ``measures`` gives the format of
    each; the seeds are those of the last one.
    """
    known = rows.set_index(["method", "measure"])
    known = known.reindex(pd.MultiIndex.from_product([methods, list(measures)]))
    lines = []
    for method in methods:
        numbers = [
            "–" if pd.isna(value) else format(value, style)
            for measure, style in measures.items()
            for value in known.loc[(method, measure), ["value", "ours", "intended"]]
        ]
        seeds = int(known.loc[method]["seeds"].iloc[-1])
        lines.append(f"{method:11s}{seeds:5d}" + "".join(f"{text:>13s}" for text in numbers))
    return lines


def share_given_again(run: Record, available: ArrayLike) -> float:
    """Compute which share of a FedCRef run's images clients were given a second time.

    The run has no overlap, and there are ``available`` ``[classes]`` images of each class.
    """
    classes = run.by_method["FedCRef"]["classes"].iloc[0].split("|")
    pool = np.asarray(available)
    held = run.parameters["samples"] * np.bincount(np.array(classes, int), minlength=len(pool))
    return float(np.maximum(held - pool, 0).sum() / held.sum())


def same_clusters(explained: Sequence[Record], trained: Sequence[Record]) -> pd.DataFrame:
    """Find out whether runs of `papers.explanations` and of OCFL end with the same clusters.

    Runs are compared if all parameters are equal that both have, but for the rounds with tests. A
    row per pair and method has ``explained``, ``trained``, ``method`` and ``same``. A method's last
    clusters in OCFL's run count, also if it ended earlier or diverged afterwards.
    """
    rows = []
    for one, other in product(explained, trained):
        shared = (one.parameters.keys() & other.parameters.keys()) - {"central_every"}
        if any(one.parameters[name] != other.parameters[name] for name in shared):
            continue
        members = one.rounds.drop_duplicates(["method", "cluster"]).groupby("method")["clients"]
        last = other.rounds.dropna(subset="clusters").groupby("method").tail(1)
        for method, clusters in zip(last["method"], last["clusters"], strict=True):
            if method in members.groups:
                labels = np.array(clusters.split("|"))
                found = {"|".join(map(str, np.flatnonzero(labels == k))) for k in labels}
                same = found == set(members.get_group(method).astype(str))
                rows.append((one.id, other.id, method, same))
    return pd.DataFrame(rows, columns=["explained", "trained", "method", "same"])


def different_pairs(found: Comparison) -> list[str]:
    """List the pairs of methods that differ significantly, as ``A and B``, in order of rank."""
    pairs = combinations(found.ranks.index, 2)
    return [f"{a} and {b}" for a, b in pairs if found.pairs.loc[a, b] <= LEVEL]
