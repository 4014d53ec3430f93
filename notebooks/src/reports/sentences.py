"""Paragraphs of the page of results, whose numbers come from the ledger and the committed records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from cflkit import compare
from cflkit.reproduce import ledger, papers, records
from cflkit.reproduce.papers.emd_cfl import working_range
from cflkit.reproduce.records import Record
from reports import counting, tables
from reports.thresholds import recorded_scores

OCFL, EMD = "93_report_ocfl.ipynb", "95_report_emd_cfl.ipynb"


def paragraphs(committed: Sequence[Record], book: pd.DataFrame) -> dict[str, str]:
    """Write all paragraphs, by the names in the markers."""
    return {
        "words-counts": counts(book),
        "words-ocfl": scores_of_ocfl(committed, book),
        "words-fine-tuned": leads_over_fine_tuning(committed),
        "words-sattler": both_cuts(committed),
        "words-epsilon": ranges_of_epsilon(committed),
        "words-pacs": natural_groups(committed),
        "words-fedcref": gains_of_fedcref(committed),
    }


def counts(book: pd.DataFrame) -> str:
    """Say how many numbers at the papers' scale are reproduced, and which of them weigh less."""
    good = book["status"].eq("reproduced")
    once = counting.count_once(book)
    wrong = pd.Series(
        [
            method in papers.PAPERS[paper].wrong_sign
            for paper, method in zip(book["paper"], book["method"], strict=True)
        ],
        book.index,
    )
    run = (book["status"].isin(ledger.ANSWERS) & once).sum()
    flat = counting.equal_seeds(book)
    return (
        "Each run number counts once. In brackets, it counts in every table that repeats it, and once for each measure that "
        f"must have the same value. So at the papers' scale, {(good & once).sum()} of {run} numbers are reproduced. Of these, "
        f"{(good & once & wrong).sum()} are reproduced with a wrong sign, as in the authors' code (OCFL-AFF as published; its "
        f"version with the right sign is not in this table). Of the {good.sum()} in brackets, {(good & flat).sum()} rest on "
        f"seeds that are all equal, so that their interval has no width; of the {(good & once).sum()}, {(good & once & flat).sum()} do."
    )


def scores_of_ocfl(committed: Sequence[Record], book: pd.DataFrame) -> str:
    """Say how little the reproduced scores of k-means and HDBSCAN are."""
    table = book.query("paper == 'ocfl-extended'")
    good = table.query("table == '1' and status == 'reproduced'")["method"].value_counts()
    rounds = table.query("table == '2' and method in ['OCFL-KM', 'OCFL-HDB']")["status"]
    run = rounds[rounds != "not run"].value_counts()
    known = [past for past in committed if past.paper == "ocfl"]
    late = [past for past in known if ledger.scale(past, "ocfl") == "paper"]
    early = tables.in_round_1(
        [past for past in known if past.parameters["rounds"] == 1],
        [past for past in late if "OCFL-HDB" in past.summary],
    )
    right = early[early["method"] != "OCFL-MS"]
    scenarios = right.groupby([*papers.ocfl.SCENARIO])["ARI in round 1"].min()
    wrong = counting.placebo(book, by=["paper", "table", "method"])["ocfl-extended", "1"]
    return (
        "Most printed scores of k-means and HDBSCAN come out again. That is less than it seems. With the right groups, all three "
        f"measures follow from the round of clustering alone, so that {good['OCFL-KM'] + good['OCFL-HDB']} of the {good.sum()} "
        "reproduced numbers of Table 1 rest on the rounds of clustering of 16 scenarios. The round itself is reproduced in "
        f"{run['reproduced']} of {run.sum()} cases; {run['inconclusive']} are inconclusive, since three seeds that differ decide "
        f"little. The groups themselves need no waiting. Round 1 was kept in {len(scenarios)} of the 16 scenarios (15 clients, one "
        f"seed), and in {scenarios.eq(1).sum()} of them its updates already give the true groups with k-means, HDBSCAN and affinity "
        f"propagation ([report 93]({OCFL}#does-the-moment-matter-here)). And of the numbers of a *wrong* scenario (the *placebo*), the rule "
        f"still calls {wrong['OCFL-KM']:.0%} reproduced with k-means, and {wrong['OCFL-HDB']:.0%} with HDBSCAN."
    ).replace("%", " %")


def leads_over_fine_tuning(committed: Sequence[Record]) -> str:
    """Say how OCFL ends beside fine-tuned FedAvg, seed by seed, where both were run."""
    known = [past for past in committed if ledger.scale(past, "ocfl") == "reduced"]
    rows = []
    for scenario, runs in tables.by_scenario(known, "ocfl").items():
        clusters, tuned = (
            pd.DataFrame(
                {
                    past.parameters["seed"]: past.summary[name]
                    for past in runs
                    if past.value(name, "accuracy") is not None
                }
            )
            for name in ("OCFL-HDB", "FedAvg-FT")
        )
        if tuned.empty:
            continue
        seeds = sorted(tuned.columns.intersection(clusters.columns))
        accuracy, pf1, gf1 = (
            (clusters.loc[row, seeds] - tuned.loc[row, seeds]).astype(float)
            for row in ("accuracy", "pf1", "gf1")
        )
        worth = "more" if accuracy.gt(0.01).all() else "less" if accuracy.lt(0).all() else "neither"
        texts = [", ".join(f"{lead:+.2f}" for lead in leads) for leads in (pf1, gf1)]
        texts.insert(0, ", ".join(f"{100 * lead:+.1f}" for lead in accuracy))
        rows.append([", ".join(map(str, scenario)), worth, *texts])
    columns = ["scenario, clients", "clusters are worth", "accuracy (points)", "PF1", "GF1"]
    table = pd.DataFrame(rows, columns=columns)
    worths = table["clusters are worth"].value_counts()
    more, less, neither = (worths.get(name, 0) for name in ("more", "less", "neither"))
    return (
        "Fine-tuned FedAvg is FedAvg's model after one more round of training at each client. The table has OCFL-HDB's leads over it "
        "after the last round, seed by seed. Before these runs, we fixed that clusters are worth more in a scenario if the lead in "
        "accuracy is above one point with each seed, and less if it is below 0 with each.\n\n"
        f"{compare.markdown(table)}\n"
        f"So clusters are worth more in {more} of {len(table)} scenarios, less in {less}, and neither in {neither}. "
        "Without fine-tuning, FedAvg is far below on the clients' own classes (see *PF1 − FedAvg's* in the table above)."
    )


def both_cuts(committed: Sequence[Record]) -> str:
    """Say whether the exact division of Sattler's paper is better than that of his code."""
    known = [past for past in committed if past.paper == "ocfl"]
    usual, exact = (
        [past for past in known if past.parameters["only"] == only]
        for only in (["Sattler"], ["Sattler-exact"])
    )
    whole = [past for past in known if ledger.scale(past, "ocfl") == "reduced"]
    whole = [past for past in whole if past.parameters["only"] is None]
    pairs, elsewhere = (
        tables.by_cut(exact, runs).pivot(
            index=[*papers.ocfl.SCENARIO, "seed"], columns="cut", values="ARI"
        )
        for runs in (usual, whole)
    )
    gained, moved = (
        pairs["single"] - pairs["complete"],
        (elsewhere["complete"] - pairs["complete"]).abs(),
    )
    return (
        "Sattler's *code*, which the tables follow, divides a cluster by complete linkage, and his *paper* by single linkage, which is "
        f"exact. On one processor, both cuts end with the same clusters in {gained.eq(0).sum()} of {len(pairs)} scenarios. In the others, "
        f"the ARI is higher with the exact cut in {gained.gt(0).sum()}, and lower in {gained.lt(0).sum()} (reduced scale, 15 clients, one "
        f"seed; [report 93]({OCFL}#sattler-and-briggs-in-our-runs)). Runs of the same seeds by an earlier version of the kit, most of them "
        f"on another processor, end with another ARI in {(moved > 0).sum()} of {len(moved)} scenarios, by up to {moved.max():.2f}. So neither cut is "
        "the better one here, and one run of Sattler's method says little."
    )


def ranges_of_epsilon(committed: Sequence[Record]) -> str:
    """Say for which ε EMD-CFL's scores separate the true groups at the paper's scale."""
    ends: dict[str, tuple[float, float, int]] = {}
    for version in ("four", "backdoor"):
        runs = [
            past
            for past in committed
            if ledger.scale(past, "emd-cfl") == "paper" and past.parameters["version"] == version
            if "EMD-CFL" in past.summary
        ]
        spans = [working_range(*recorded_scores(past)) for past in runs]
        low, high = max(low for low, _ in spans), min(high for _, high in spans)
        ends[version] = low, high, len({past.parameters["seed"] for past in runs})
    words = {
        version: f"above {low:.2g} and up to {high:.2g} ({seeds} seed{'s' * (seeds > 1)})"
        for version, (low, high, seeds) in ends.items()
    }
    return (
        f"At the paper's scale, EMD-CFL's scores separate the true groups of Rotated MNIST for every ε {words['four']}, and on Backdoor "
        f"MNIST {words['backdoor']}."
    )


def accuracies(committed: Sequence[Record], paper: str, **parameters: Any) -> pd.DataFrame:
    """Return the accuracies of the runs with these parameters: a row per run, by method."""
    runs = [
        past.summary
        for past in committed
        if past.paper == paper and records.has_parameters(past, parameters)
    ]
    return pd.DataFrame([{name: ends["accuracy"] for name, ends in run.items()} for run in runs])


def natural_groups(committed: Sequence[Record]) -> str:
    """Say what EMD-CFL does with the styles of PACS."""
    pacs = accuracies(committed, "emd-cfl", dataset="pacs-64")
    runs = [past for past in committed if records.has_parameters(past, {"dataset": "pacs-64"})]
    aris = sorted(past.summary["EMD-CFL"]["ari"] for past in runs if "EMD-CFL" in past.summary)
    gain, behind = pacs["EMD-CFL"] - pacs["FedAvg"], (pacs["EMD-CFL"] - pacs["Oracle"]).abs().max()
    return (
        f"**PACS.** In {len(pacs)} small runs on [groups that nobody made](05_emd_cfl.ipynb#groups-that-nobody-made), no cluster of "
        f"EMD-CFL has two styles (ARI {', '.join(f'{ari:.2f}' for ari in aris)}). Its models can mix styles all the same, since a model is "
        "the mean over a neighbourhood, and neighbourhoods may overlap: in one of the runs, a client with photos shares its model with two "
        f"clients with paintings. The accuracy is {gain.min():.2f} to {gain.max():.2f} above FedAvg's, and within {behind + 0.0005:.3f} of the "
        "oracle's."
    )


def gains_of_fedcref(committed: Sequence[Record]) -> str:
    """Say what FedCRef gains over clients alone, on each set of images."""
    methods = ["FedCRef", "Alone", "Perfect associations"]

    def means(**parameters: Any) -> tuple[list[str], int]:
        runs = accuracies(committed, "fedcref", **parameters)[methods]
        return [f"{end:.2f}" for end in runs.mean()], len(runs)

    mnist = {
        "dataset": "mnist",
        "samples": 500,
        "rounds": 5,
        "theta": 0.25,
        "match": "first",
        "clients": 25,
    }
    half, _ = means(**mnist, dirtiness=0.5, overlap_fraction=0.0)
    gaps = [
        accuracies(committed, "fedcref", **mnist, dirtiness=0.3, overlap_fraction=overlap)[
            methods
        ].mean()
        for overlap in (0.3, 0.5)
    ]
    gap = max(abs(ends["FedCRef"] - ends["Perfect associations"]) for ends in gaps)
    letters, n_letters = means(dataset="emnist-letters", rounds=5, theta=0.25)
    whole, n_whole = means(dataset="fashion-mnist", rounds=15, theta=0.25)
    fourth, n_fourth = means(dataset="fashion-mnist", rounds=5, theta=0.25)
    strict, n_strict = means(dataset="fashion-mnist", rounds=5, theta=0.1)
    return f"""On MNIST (the paper has EMNIST's digits), FedCRef gains much over clients alone from dirty local clusters; from clean ones it loses less than they do. Without overlap, it ends at most 0.05 below perfect associations, and in two systems slightly above them. The printed gaps are larger: from half-wrong clusters, {half[0]} beside {half[2]} here, and 0.71 beside 0.91 in print. With overlap, both gaps are small ({gap:.3f} at most). Its settings are those of the authors' code (θ = 0.25, τ = 0.85, nearly its first match, its rule to stop), where the paper has 0.2, 0.8, all matches and 10 %.

On a part of KMNIST it gains nothing over clients alone (one seed per start). On EMNIST's letters, with a fourth of the paper's training, it ends at {letters[0]}, where clients alone end at {letters[1]}, and perfect associations at {letters[2]} (runs: {n_letters}). On Fashion-MNIST, the authors' θ = 0.25 is too large: a fifth to a third of FedCRef's first associations join two classes. With the paper's training it then ends at {whole[0]}, far below clients alone ({whole[1]}) and perfect associations ({whole[2]}; runs: {n_whole}), and with a fourth of it at {fourth[0]} ({fourth[1]} and {fourth[2]}; runs: {n_fourth}). With θ = 0.1 and a fourth of the training, it ends at {strict[0]}, where clients alone end at {strict[1]}, and perfect associations at {strict[2]} ([runs](96_report_fedcref.ipynb#other-images): {n_strict}). On MNIST, θ = 0.1 is too small: nearly all local clusters stay isolated, and FedCRef ends a little below clients alone (one seed). The federation has no labels with which it could choose θ."""
