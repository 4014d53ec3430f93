"""Write ``data/groups.csv`` and ``data/groups_methods.csv``: how often `cflkit.groups` is right.

A row of the first is a draw of a situation, with what the tool says of all rounds, of the first
alone, and of the distances in all rounds. The second has `ocfl-replicated` beside OCFL, OCFL that
clusters in round 1, and the oracle. The third, ``data/groups_noise.csv``, has the rounds until it
splits. The fourth, ``data/groups_scale.csv``, has the round in which each rule splits the clients
of the OCFL papers' runs on MNIST, with their network and data. Each is counted by its name
(``hit_rate.py groups``), and ``hit_rate.py page`` writes the tables and figures of
``notebooks/are_there_groups.md``. Rows that are there are not run again.

The rule, the situations and the seeds were committed before the count. The rule was developed on
the seeds 300 to 304, which are not counted. What is right of a situation is known from how it was
dealt: it has groups, it has clients that draw from distributions without groups (Dirichlet), or all
clients draw from one distribution.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from cflkit import clustering, datasets, methods, partition, plots, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.federation.privacy import Privacy
from cflkit.groups import ALIKE, DEGREES, GROUPS, Evidence, as_evidence, groups, page
from cflkit.halves import agreement, compare, replicated
from cflkit.partition import shifts
from cflkit.reproduce.records import PROJECT

SEEDS, SEEDS_OF_METHODS = range(160, 172), range(160, 166)
RULES = ("round 1", "OCFL", "OCFL-replicated")
WHOLE = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
ADAM = LocalTraining(epochs=5, batch_size=16, optimizer="adam", lr=0.005)
STEP = LocalTraining(epochs=1, batch_size=16, lr=0.5)


class OneStep(Federation):
    """Clients that take one step in a round, on 16 of their images, drawn anew."""

    def train(self, jobs: Jobs, round: int, reported: bool = True) -> torch.Tensor:
        """Train on a draw of samples, which depends on the seed, the client and the round."""
        drawn = [
            torch.from_numpy(
                np.random.default_rng([self.seed, client, round])
                .permutation(self.num_samples(client))[:16]
                .copy()
            )
            for client in jobs.client_of.tolist()
        ]
        return super().train(jobs.replace(subset=drawn), round, reported)


def four(clients: int, samples: int, seed: int, version: str = "four") -> Any:
    """Deal digits that are rotated by 0, 90, 180 and 270 degrees."""
    digits = datasets.load("digits-8x8")
    return shifts.make(digits, version, clients=clients, samples=samples, seed=seed)


def some(clients: int, samples: int, kept: tuple[int, ...], seed: int) -> Any:
    """Keep the first clients of each angle, as many as told."""
    images, split = four(clients, samples, seed)
    places = [np.flatnonzero(split.clusters == k)[:n] for k, n in enumerate(kept)]
    return images, split.take(np.concatenate(places).tolist())


def unequal(made: Any, seed: int) -> Any:
    """Keep between a sixth and all of a client's training images."""
    images, split = made
    rng = np.random.default_rng(seed)
    own = [np.sort(rng.permutation(r)[: int(len(r) * rng.uniform(1 / 6, 1))]) for r in split.train]
    return images, replace(split, train=own)


def mixed(recipe: str, seed: int, **options: Any) -> Any:
    """Deal digits by a recipe of `cflkit.partition`."""
    return getattr(partition, recipe)(datasets.load("digits-8x8"), **options, seed=seed)


@dataclass(frozen=True)
class Situation:
    """What clients hold, what is right to say of them, and how they train."""

    answer: str
    deal: Callable[[int], Any]
    rounds: int = 12
    model: str = "perceptron"
    training: LocalTraining = WHOLE
    noise: float = 0.0

    def federation(self, seed: int) -> Federation:
        """Build the federation of a draw."""
        kind = OneStep if self.training is STEP else Federation
        home = kind(*self.deal(seed), self.model, self.training, seed=seed, engine="stacked")
        return home.with_hooks(Privacy(1.0, self.noise, seed)) if self.noise else home


D = "dirichlet"
SITUATIONS = {
    "four angles, 20 clients": Situation(GROUPS, lambda s: four(20, 40, s)),
    "four angles, 100 clients": Situation(GROUPS, lambda s: four(100, 40, s), 8),
    "four angles, unequal groups": Situation(GROUPS, lambda s: some(40, 30, (10, 5, 5, 5), s)),
    "four angles, unequal sizes": Situation(GROUPS, lambda s: unequal(four(20, 60, s), s)),
    "two angles, 10 clients": Situation(GROUPS, lambda s: four(10, 200, s, "quarter-turn")),
    "separate classes, 15 clients": Situation(
        GROUPS, lambda s: mixed("ocfl", s, overlap="nonoverlapping", balance="balanced", clients=15)
    ),
    "shared classes, unequal groups": Situation(
        GROUPS, lambda s: mixed("ocfl", s, overlap="overlapping", balance="imbalanced", clients=15)
    ),
    "backdoor, 24 clients": Situation(GROUPS, lambda s: four(24, 50, s, "backdoor")),
    "four angles, one step": Situation(GROUPS, lambda s: four(20, 40, s), 40, training=STEP),
    "four angles, noise 0.06": Situation(GROUPS, lambda s: four(20, 40, s), 20, noise=0.06),
    "four angles, CNN": Situation(GROUPS, lambda s: four(20, 40, s), 8, "compact-cnn", ADAM),
    "Dirichlet 0.1, 20 clients": Situation(DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.1)),
    "Dirichlet 0.3, 20 clients": Situation(DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.3)),
    "Dirichlet 1, 20 clients": Situation(DEGREES, lambda s: mixed(D, s, clients=20, alpha=1.0)),
    "Dirichlet 0.1, noise 0.06": Situation(
        DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.1), 20, noise=0.06
    ),
    "Dirichlet 0.3, CNN": Situation(
        DEGREES, lambda s: mixed(D, s, clients=20, alpha=0.3), 8, "compact-cnn", ADAM
    ),
    "IID, 20 clients": Situation(ALIKE, lambda s: mixed("iid", s, clients=20)),
    "IID, 8 clients": Situation(ALIKE, lambda s: mixed("iid", s, clients=8)),
    "IID, 100 clients": Situation(ALIKE, lambda s: mixed("iid", s, clients=100), 8),
    "one angle, 10 clients": Situation(ALIKE, lambda s: some(40, 30, (10, 0, 0, 0), s)),
    "IID, unequal sizes": Situation(ALIKE, lambda s: unequal(mixed("iid", s, clients=20), s)),
    "IID, one step": Situation(ALIKE, lambda s: mixed("iid", s, clients=20), 40, training=STEP),
    "IID, noise 0.06": Situation(ALIKE, lambda s: mixed("iid", s, clients=20), 20, noise=0.06),
    "IID, CNN": Situation(ALIKE, lambda s: mixed("iid", s, clients=20), 8, "compact-cnn", ADAM),
}


def watched(home: Federation, rounds: int) -> Iterator[torch.Tensor]:
    """Yield the updates ``[m, P]`` of each round of federated averaging."""
    kept, everyone = home.initial(), torch.arange(home.clients)
    for t in range(rounds):
        trained = home.train(Jobs(kept[None], torch.zeros_like(everyone), everyone), round=t)
        yield (trained - kept)[:, : home.parameters]
        kept = trained.mean(dim=0)


def asked(situation: Situation, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what the tool says of a draw."""
    home = situation.federation(seed)
    updates = torch.stack([*watched(home, situation.rounds)]).numpy()
    answer = groups(Evidence(updates, distances=False))
    first = groups(Evidence(updates[:1], distances=False))
    apart = np.stack([cosine_divergence(own) for own in updates])
    assert home.clusters is not None
    truth = home.clusters.numpy()
    yield {
        "truth": situation.answer,
        "answer": answer.answer,
        "k": answer.k,
        "ari": f"{agreement(truth, np.array(answer.clusters)):.2f}" if truth.any() else "",
        "rounds needed": answer.rounds_needed or "",
        "shared": f"{answer.shared:.2f}",
        "scatter": f"{answer.scatter:.2f}",
        "one look": first.answer,
        "distances": groups(Evidence(apart, distances=True)).answer,
    }


def rules() -> dict[str, methods.Method]:
    """Make the rules that are compared, by their names in `RULES`."""
    first = methods.make("ocfl", before=-np.inf)
    made = first, methods.make("ocfl"), methods.make("ocfl-replicated")
    return dict(zip(RULES, made, strict=True))


def raced(situation: Situation, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what each method finds in a draw, and how well its models do."""
    home = situation.federation(seed)
    assert home.clusters is not None
    oracle = methods.make("oracle", truth=home.clusters.tolist())
    lines = {"FedAvg": methods.make("fedavg"), **rules(), "oracle": oracle}
    if home.sizes.min() >= 80:
        lines["halves of samples"] = methods.make("ocfl-replicated", split="samples")
    summary = simulation.run(lines, home, situation.rounds, progress=False).summary()
    for name, own in summary.items():
        yield {
            "truth": situation.answer,
            "method": name,
            "clusters": own["n_clusters"],
            "round": own["clustering_round"] or "",
            "ari": f"{own['ari']:.2f}" if home.clusters.any() else "",
            "accuracy": f"{own['accuracy']:.4f}",
        }


def waited(situation: Situation, seed: int) -> Iterator[dict[str, Any]]:
    """Yield how many rounds it takes until the halves agree twice running, and the bound."""
    clear = replace(situation, noise=0.0).federation(seed)
    bounds = sufficient(next(watched(clear, 1)), clear.clusters, situation.noise)
    clusterer, before = clustering.make("hdbscan"), None
    sums = torch.zeros(2, clear.clients, clear.parameters)
    fired = ""
    for t, updates in enumerate(watched(situation.federation(seed), situation.rounds)):
        sums[t % 2] += updates
        if t:
            found = compare(sums[0], sums[1], clusterer)
            if replicated(found, before):
                fired = t + 1
                break
            before = found.labels if found.agree else None
    names = ("noise", "rounds", "all pairs", "equal pairs")
    values = (situation.noise, fired, *(f"{bound:.1f}" for bound in bounds))
    yield dict(zip(names, values, strict=True))


def sufficient(updates: torch.Tensor, truth: Any, noise: float) -> tuple[float, float]:
    """Compute after how many rounds the distances in both halves order alike.

    Sums of n noisy updates u + σξ of two clients have a product of n²⟨uᵢ, uⱼ⟩ and noise of the
    variance 2n³σ²‖u‖² + n²σ⁴P. Let δ be the gap between the products within groups and between
    them. If the noise of each pair stays below n²δ/2, all distances within groups are smaller than
    those between. By Gaussian tails and the union bound over the m(m − 1) pairs of two halves, this
    has a probability of 1/2 or more once n²δ/2 is q standard deviations, with q² = 2 ln(2m(m − 1)).
    Two halves take 2n rounds, and the second look one more.

    Returns
    -------
    tuple of float
        The rounds for these clients, whose δ is that of the worst pairs, and for ideal groups,
        whose pairs all have the mean product within groups or between them.
    """
    shorter = updates * (1 / updates.norm(dim=1, keepdim=True)).clamp(max=1)  # as clients clip
    products = (shorter @ shorter.T).numpy()
    m, parameters = updates.shape
    same = np.equal.outer(truth.numpy(), truth.numpy())
    apart = ~np.eye(m, dtype=bool)
    inside, between = products[same & apart], products[~same]
    square = 2 * np.log(2 * m * (m - 1))

    def rounds(gap: float) -> float:  # n²δ²/4 = q² (2nσ²‖u‖² + σ⁴P), of which n is the larger root
        a, b = gap**2 / 4, -2 * square * noise**2 * products.diagonal().max()
        c = -square * noise**4 * parameters
        return float((-b + np.sqrt(b**2 - 4 * a * c)) / a + 1) if gap > 0 else np.inf

    return rounds(inside.min() - between.max()), rounds(inside.mean() - between.mean())


NOISES = (0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.12)
NOISY = {
    f"four angles, noise {noise:g}": Situation(GROUPS, lambda s: four(20, 40, s), 40, noise=noise)
    for noise in NOISES
}


def as_in_the_papers(overlap: Any, balance: Any, seed: int) -> Any:
    """Deal MNIST to fifteen clients as the OCFL papers do."""
    images = datasets.load("mnist")
    return partition.ocfl(images, overlap=overlap, balance=balance, clients=15, seed=seed)


# Runs of the OCFL papers: their images, network and local training
AT_SCALE = {
    f"{overlap} classes, {balance}": Situation(
        GROUPS,
        partial(as_in_the_papers, overlap, balance),
        rounds=8,
        model="ocfl-cnn",
        training=LocalTraining(epochs=3, batch_size=32, lr=0.01),
    )
    for overlap, balance in (("nonoverlapping", "balanced"), ("overlapping", "imbalanced"))
}


def split_at_scale(situation: Situation, seed: int) -> Iterator[dict[str, Any]]:
    """Yield in which round each rule divides the clients, and how well; no model is tested."""
    home = Federation(*situation.deal(seed), situation.model, situation.training, seed=seed)
    history = simulation.run(rules(), home, situation.rounds, until_settled=True)
    for name, values in history.summary().items():
        yield {
            "method": name,
            "clusters": values["n_clusters"],
            "round": values["clustering_round"] or "",
            "ari": f"{values['ari']:.2f}",
        }


Rows = Callable[[Situation, int], Iterator[dict[str, Any]]]
TABLES: dict[str, tuple[Rows, dict[str, Situation], range, str]] = {
    "groups": (
        asked,
        SITUATIONS,
        SEEDS,
        "truth,answer,k,ari,rounds needed,shared,scatter,one look,distances",
    ),
    "groups_methods": (
        raced,
        SITUATIONS,
        SEEDS_OF_METHODS,
        "truth,method,clusters,round,ari,accuracy",
    ),
    "groups_noise": (waited, NOISY, SEEDS_OF_METHODS, "noise,rounds,all pairs,equal pairs"),
    "groups_scale": (split_at_scale, AT_SCALE, range(1), "method,clusters,round,ari"),
}


def main(name: str) -> None:
    """Add what a table lacks, one seed and situation after the other."""
    torch.set_num_threads(1)
    rows_of, situations, seeds, columns = TABLES[name]
    path = PROJECT / "data" / f"{name}.csv"
    names = ["situation", "seed", *columns.split(",")]
    if not path.exists():
        path.write_text(",".join(names) + "\n", encoding="utf-8")
    with path.open("r+", 1, encoding="utf-8", newline="") as file:  # written line by line
        there = {(row["situation"], row["seed"]) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, names, lineterminator="\n")
        for seed, (place, situation) in ((s, x) for s in seeds for x in situations.items()):
            if (place, str(seed)) not in there:
                key = {"situation": place, "seed": seed}
                writer.writerows(key | row for row in rows_of(situation, seed))


# --- The page -------------------------------------------------------------------------------------


def read(name: str) -> pd.DataFrame:
    """Read a table, with texts as they are."""
    return pd.read_csv(PROJECT / "data" / f"{name}.csv", keep_default_na=False)


def markdown(rows: list[list[str]]) -> str:
    """Format a table, whose first row is its head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_answers() -> str:
    """Return the table of right answers by situation, and the hit rate of each answer."""
    found = read("groups")
    columns = {"answer": "rounds", "distances": "distances", "one look": "one round"}
    rows = [["right", "situation", *columns.values(), "other answers of rounds"]]
    for (truth, place), own in found.groupby(["truth", "situation"], sort=False):
        right = [f"{(own[c] == truth).sum()} of {len(own)}" for c in columns]
        others = own["answer"][own["answer"] != truth].value_counts()
        told = ", ".join(f"{answer} {count}" for answer, count in others.items())
        rows.append([truth, place, *right, told])
    for answer in (GROUPS, DEGREES, ALIKE):
        given = {c: found[found[c] == answer] for c in columns}
        right = [f"{(own['truth'] == answer).sum()} of {len(own)}" for own in given.values()]
        rows.append([f"**said: {answer}**", "all", *right, ""])
    return f"{fixed(SEEDS)}\n\n{markdown(rows)}"


def of_failures() -> str:
    """Return sentences about where the rule was wrong."""
    found = read("groups")
    grouped = found[(found["answer"] == GROUPS) & (found["truth"] == GROUPS)]
    exact = (grouped["ari"].astype(float) == 1).sum()
    false = found[(found["answer"] == GROUPS) & (found["truth"] != GROUPS)]
    without = (found["truth"] != GROUPS).sum()
    one = found[(found["one look"] == GROUPS) & (found["truth"] != GROUPS)]
    return (
        f"With rounds, groups were said to be there in {len(false)} of {without} draws without "
        f"groups, and after one round in {len(one)}. Where there are groups and they were found, "
        f"the members were exactly right in {exact} of {len(grouped)} draws."
    )


def fixed(seeds: range) -> str:
    """Return the sentence about the seeds of a count."""
    return f"The seeds {seeds[0]} to {seeds[-1]} were fixed, and all of them are counted."


def of_methods() -> str:
    """Return the table of methods by situation: accuracy, and the draws in which they are right.

    Right are exactly the true groups or, where there are none, one cluster of all clients. The
    sentences before the table add the draws up.
    """
    runs = read("groups_methods")
    exact = pd.to_numeric(runs["ari"], errors="coerce") == 1
    runs["right"] = exact.where(runs["truth"] == GROUPS, runs["clusters"] == 1)
    rows = [["situation", "FedAvg", *RULES, "oracle", "draws"]]
    for place, runs_there in runs.groupby("situation", sort=False):
        by_method = runs_there.groupby("method")
        accuracy = (100 * by_method["accuracy"].mean()).map("{:.1f}".format)
        right = by_method["right"].sum()
        cells = [f"{accuracy[rule]} ({right[rule]})" for rule in RULES]
        draws = str(runs_there["seed"].nunique())
        rows.append([place, accuracy["FedAvg"], *cells, accuracy["oracle"], draws])
    halves = runs[runs["method"] == "halves of samples"]
    places = "; ".join(halves["situation"].unique())
    return (
        f"{fixed(SEEDS_OF_METHODS)} With groups, exactly these were found in "
        f"{added_up(runs[runs['truth'] == GROUPS])}. Without groups, all clients were kept "
        f"together in {added_up(runs[runs['truth'] != GROUPS])}. With halves of samples, "
        f"which were tried where each client has 80 images or more ({places}), OCFL-replicated was "
        f"right in {halves['right'].sum()} of {len(halves)} draws.\n\n{markdown(rows)}"
    )


def added_up(runs: pd.DataFrame) -> str:
    """Say in how many of the draws each rule was right."""
    by_method = runs.groupby("method")["right"]
    right, draws = by_method.sum(), by_method.size()
    return ", ".join(f"{right[rule]} of {draws[rule]} draws by {rule}" for rule in RULES)


def of_noise() -> str:
    """Return the table of rounds over the noise."""
    rows = [["σ", "rounds in each draw", "upper line, rounds", "lower line, rounds"]]
    for noise, own in read("groups_noise").groupby("noise"):
        waits = ", ".join(str(r) or "not in 40" for r in own["rounds"])
        bounds = [f"{own[c].mean():.0f}" for c in ("all pairs", "equal pairs")]
        rows.append([f"{noise:g}", waits, *bounds])
    return markdown(rows)


def of_scale() -> str:
    """Return the table of the round and the clusters of each rule at the papers' scale."""
    columns = ["situation", "method", "round", "clusters", "ari"]
    rows = [["clients", "rule", "splits in round", "clusters", "ARI"]]
    return markdown(rows + read("groups_scale")[columns].astype(str).values.tolist())


def draw() -> None:
    """Draw the figures of the page."""
    plots.style()
    home = SITUATIONS["four angles, one step"].federation(302)
    known = as_evidence(torch.stack([*watched(home, 40)]).numpy())
    shown = page.picture(known, groups(known))
    found = read("groups_noise")
    figure, ax = plt.subplots(figsize=(6, 3.6))
    split = found[found["rounds"] != ""]
    ax.plot(split["noise"], split["rounds"].astype(float), "o", label="measured, one point a draw")
    for column, style in (("all pairs", "--"), ("equal pairs", "-")):
        label = {"all pairs": "sufficient: worst pairs", "equal pairs": "with the mean gap"}[column]
        ax.plot(found.groupby("noise")[column].mean(), style, color="black", label=label)
    ax.set(xlabel="σ, standard deviation of the noise (clip 1)", ylabel="rounds until it splits")
    ax.set(yscale="log")
    ax.legend()
    for name, own in (("groups_answer", shown), ("groups_noise", figure)):
        (PROJECT / "figures" / f"{name}.png").write_bytes(plots.png_of(own))


def write_page() -> None:
    """Write the tables into the page, and its figures."""
    path = PROJECT / "notebooks" / "are_there_groups.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    draw()


def filled(text: str) -> str:
    """Return the page's text with the tables of the committed counts."""
    parts = {"answers": of_answers, "failures": of_failures}
    parts |= {"methods": of_methods, "scale": of_scale, "noise": of_noise}
    for name, table in parts.items():
        before, marked, rest = text.partition(f"<!-- {name} -->\n")
        if not marked:
            continue
        text = (
            f"{before}<!-- {name} -->\n{table()}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
        )
    return text


if __name__ == "__main__":
    write_page() if sys.argv[1:] == ["page"] else main(sys.argv[1])
