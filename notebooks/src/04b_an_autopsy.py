# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04b Two signs and a counter: an autopsy
#
# This appendix belongs to [04 Two older rules and their thresholds](04_sattler_and_briggs.ipynb), and is for readers who want to check its results. It
# is also a detective story. Sattler's and Briggs' methods score low in the tables of the OCFL papers, and some of these scores
# are not what the methods could give. The thresholds look guilty, but we also find three errors in the code of the OCFL papers: one counter and two signs.
#
# 1. **[The evidence](#the-evidence-what-the-published-table-says).** A dash, a negative number, and one number four times.
# 2. **[What cannot be true](#what-cannot-be-true).** Why these are not scores of the methods as they are described.
# 3. **[The obvious suspect](#the-obvious-suspect-sattlers-two-thresholds): thresholds.** Eight published pairs, and a grid.
# 4. **[A counter](#the-first-culprit-a-counter).** What the buffers of BatchNorm do to lengths and angles.
# 5. **[The other threshold](#the-other-threshold-briggs-cut).** Briggs' threshold is easier to set, but 0.05 is too low.
# 6. **[Two signs](#the-second-culprit-two-wrong-signs).** Similarities given as distances, and distances as similarities.
#
# The OCFL papers deserve credit for this story. Their authors published their code and an archive of their runs, so anybody can
# find out where a number comes from.
#
# **Study minutes:** 60. **Minutes on two cores:** 1.5
#
# **Papers.** F. Sattler, K.-R. Müller, W. Samek, *Clustered Federated Learning*, IEEE TNNLS 2021 (SCL in tables).
# C. Briggs, Z. Fan, P. Andras, *Federated learning with hierarchical clustering of local updates*, IJCNN 2020 (BCL).
# The first paper and the extended paper are the two OCFL papers (Zuziak et al.), which compare OCFL with both.
#
# ![Two drawings. Left, Sattler: a cluster is split in two if its mean update is short and some member's update is
# long, and each half is tested again in every round. Right, Briggs: n rounds of federated averaging, then one cut of a
# dendrogram at a threshold, then federated averaging per cluster.](../figures/scheme_sattler_briggs.svg)

# %%
import math
from collections import Counter
from itertools import combinations

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from scipy.stats import spearmanr

from cflkit import clustering, datasets, methods, metrics, models, partition, plots, simulation
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs
from cflkit.methods.base import average_updates
from cflkit.methods.baselines import sattler
from cflkit.methods.ocfl import rises
from cflkit.reproduce import claims, ledger, papers, records

plots.style()

# %% [markdown]
# ## Parameters
#
# We use the digits at their own size of 8×8 pixels. The network is small and has
# [BatchNorm](99_glossary.ipynb#batchnorm-buffers-and-counters), which will matter. Many variants then run in seconds.
# We compare trainable parameters alone, unless we say otherwise.

# %% tags=["parameters"]
dataset = "digits-8x8"  # a name that cflkit.datasets knows, or the path of your own data
overlap = "nonoverlapping"  # or "overlapping": whether clusters share classes
balance = "balanced"  # or "imbalanced": clients and classes unevenly spread
clients = 15  # m
draws = 120  # draws per client, repeated ones dropped; None: pool size / m
partition_seed = 0  # who gets which samples
model = "compact-bn"  # the compact network with BatchNorm
optimizer = "sgd"  # or "adam"
lr = 0.1  # learning rate of the clients
momentum = 0.0  # of SGD
weight_decay = 0.0  # of either optimiser
batch_size = 32  # samples per local step
local_epochs = 3  # passes over a client's data in a round
rounds = 20  # of communication
seed = 0  # initial model, batch orders
repeats = 5  # training seeds that figures show, from `seed` on
precision = "float32"  # or "tf32", on NVIDIA GPUs: faster and coarser arithmetic

# %% tags=["nbval-check-output"]
run = papers.lessons.SattlerAndBriggs.of(globals())
images, split = partition.ocfl(
    datasets.load(run.dataset),
    overlap=run.overlap,
    balance=run.balance,
    clients=run.clients,
    draws=run.draws,
    seed=run.partition_seed,
)
print("true clusters:", *split.clusters)

# %% [markdown]
# <a id="the-evidence-what-the-published-table-says"></a>
#
# ## The evidence: what the published table says
#
# Table 1 of the extended paper scores every method by the ARI against the true groups, in a column that it calls RAND. Each
# number is a mean over 50 rounds ([90](90_ledger.ipynb)). A dash means one cluster. First MNIST and Fashion-MNIST,
# balanced, with 15 clients:

# %% tags=["nbval-check-output"]
printed = ledger.published()
table_1 = printed[(printed["paper"] == "ocfl-extended") & (printed["measure"] == "RAND")]
here = table_1[(table_1["clients"] == 15) & (table_1["balance"] == "balanced")]
here = here[here["dataset"].isin(["mnist", "fashion-mnist"])]
wide = here.pivot_table(
    index=["dataset", "overlap"], columns="method", values="value", aggfunc="first", dropna=False
)
print(wide[["BCL", "OCFL-AFF", "OCFL-HDB"]].dropna(how="all").to_string(na_rep="–"))

# %% [markdown]
# Now Sattler's method (SCL): its lowest and its highest ARI on each of the five data sets. In the authors' archive it does not split before
# round 22, and a round before the split counts as 0. So the last line has the highest mean that is possible.

# %% tags=["nbval-check-output"]
cells = ledger.published().query("paper == 'ocfl-extended' and table == '1' and measure == 'RAND'")
sattlers = cells.query("method == 'SCL'").groupby("dataset")["value"].agg(["min", "max"])
print(sattlers.rename_axis("lowest and highest ARI of Sattler").to_string(na_rep="–"))
print("at most, with a split in round 22 of 50:", (50 - 21) / 50)

# %% [markdown]
# <a id="what-cannot-be-true"></a>
#
# ## What cannot be true
#
# Four things should make a reader stop.
#
# - **Briggs has −0.14.** The papers' code cuts the dendrogram at 0.05. On cosine distances, so low a cut leaves nearly every
#   client alone, which scores 0. A negative ARI is worse than chance: clusters that *mix* the true groups.
# - **Briggs has dashes.** One cluster is the opposite of what a low cut gives.
# - **OCFL-AFF has 0.23, four times.** These are different images and different splits. OCFL-HDB differs from it only in the
#   clusterer, and has 0.96.
# - **Sattler has a dash** in every row of three data sets, whose clients are grouped by classes like those of the other two.
#   Something keeps the method from ever splitting.
#
# On MNIST and Fashion-MNIST Sattler's method does split, and its highest ARI, 0.57, is nearly the possible maximum. Its lowest is far below.
#
# To find out, we need updates. We run plain [federated averaging](99_glossary.ipynb#federated-averaging) and keep every update. In each round
# they form an $m \times P$ matrix. Row $i$ is $\Delta_i$: what client $i$ changed of the $P$ parameters. Everything
# below looks at these matrices. The training is repeated with several [seeds](99_glossary.ipynb#seed), so that most statements do
# not rest on one of them.


# %%
def federation_of(training_seed):
    return Federation(images, split, run.model, run.training(), seed=training_seed)


def averaging(federation, rounds):
    theta, everyone = federation.initial(), torch.arange(federation.clients)
    kept = []
    for t in range(rounds):
        jobs = Jobs(theta[None], torch.zeros_like(everyone), everyone)
        kept.append(federation.train(jobs, round=t) - theta)
        theta = average_updates(theta[None], kept[-1], everyone * 0, torch.ones(len(everyone)))[0]
    return torch.stack(kept).cpu()


# %%
seeds = range(run.seed, run.seed + run.repeats)
federation = federation_of(run.seed)
complete = {n: averaging(federation_of(n), run.rounds) for n in seeds}  # with BatchNorm's state
updates = {number: kept[:, :, : federation.parameters] for number, kept in complete.items()}
first = updates[run.seed]
print(f"{len(updates)} seeds, each with updates [rounds, clients, parameters] = {[*first.shape]}")

# %% [markdown]
# <a id="the-obvious-suspect-sattlers-two-thresholds"></a>
#
# ## The obvious suspect: Sattler's two thresholds
#
# Suppose federated averaging has converged to a **stationary point**. Then the *mean* of the updates is near zero. If all
# clients want the same model, each single update is near zero, too. Sattler et al. call such clients [**congruent**](99_glossary.ipynb#congruent-clients). If the
# clients form groups with different optima, they are **incongruent**: their updates are long
# and only cancel each other. The paper therefore splits a cluster $c$ of $|c|$ clients, with two thresholds $\varepsilon_1$ and $\varepsilon_2$, when
#
# $$\Big\lVert \frac{1}{|c|}\sum_{i \in c} \Delta_i \Big\rVert < \varepsilon_1
# \qquad\text{and}\qquad \max_{i \in c} \lVert \Delta_i \rVert > \varepsilon_2 .$$


# %%
def norms_from_scratch(delta):
    return np.linalg.norm(delta.mean(axis=0)), np.linalg.norm(delta, axis=1).max()


# %% tags=["nbval-check-output"]
norms = np.array([[sattler.update_norms(delta) for delta in kept] for kept in updates.values()])
by_hand = np.array([norms_from_scratch(delta.numpy()) for delta in first])
print("same norms:", np.allclose(by_hand, norms[0], rtol=1e-4))

# %% [markdown]
# ### The thresholds that are written down
#
# | source | data | $\varepsilon_1$ | $\varepsilon_2$ |
# |---|---|---|---|
# | Sattler's code | EMNIST | 0.4 | 1.6 |
# | first paper, section IV-B | MNIST, Fashion-MNIST | 0.35 | 0.35 |
# | the intervals that it searched | the same | 0.2 to 0.6 | 1.2 to 2.0 |
# | extended paper, section 4.2 and Table 4 | MNIST, Fashion-MNIST | 0.35 | 1.00 |
# | extended paper, Table 4 | CIFAR-10 | 185 | 925 |
# | extended paper, Table 4 | PathMNIST | 12 | 60 |
# | extended paper, Table 4 | BloodMNIST | 38 | 188 |
# | Sattler's, as quoted under Table 4 | MNIST | 6 | 30 |
# | Sattler's, as quoted under Table 4 | not named | 25 | 125 |
#
# The two OCFL papers share their runs, yet their $\varepsilon_2$ for MNIST differ. The first paper's $\varepsilon_2$ also
# lies outside the interval that it searched. The paper says that it turned to a heuristic search where the grid failed.
#
# Sattler's paper has a rule instead. It takes
# $\varepsilon_1 = \max_t \lVert\bar\Delta^t\rVert / 10$, where $\bar\Delta^t$ is the mean update of round $t$, and
# $\varepsilon_2$ between $\varepsilon_1$ and $10\,\varepsilon_1$. We take the upper end.
#
# Figure 1 draws both norms with three pairs of the table, and with the pair that Sattler's rule gives here. In which rounds would each pair split?

# %% tags=["hide-input"]
rule = np.mean([sattler.recommended_thresholds(norm[:, 0]) for norm in norms], axis=0)
pairs = {
    "Sattler's code": (0.4, 1.6),
    "first paper": (0.35, 0.35),
    "extended paper": (0.35, 1.0),
    "Sattler's rule": tuple(rule),
}
axis = np.arange(1, run.rounds + 1)
figure, axes = plt.subplots(2, 2, figsize=(6.8, 3.7), sharex=True, sharey=True)
for ax, (name, (eps1, eps2)) in zip(axes.flat, pairs.items(), strict=True):
    for column, (label, line) in enumerate((("norm of the mean", eps1), ("largest norm", eps2))):
        curves, colour = norms[:, :, column], plots.COLOURS[column]
        low, high = curves.min(axis=0), curves.max(axis=0)
        ax.fill_between(axis, low, high, color=colour, alpha=0.2, lw=0)
        look = {"marker": plots.MARKERS[column], "markersize": 4, "markevery": 4, "label": label}
        ax.plot(axis, curves.mean(axis=0), color=colour, **look)
        name_of = f"$\\varepsilon_{column + 1}$"
        ax.axhline(line, color=colour, linestyle=(":", "--")[column], label=name_of)
    for row, norm in enumerate(norms):
        fires = axis[(norm[:, 0] < eps1) & (norm[:, 1] > eps2)]
        heights_of_ticks = np.full(len(fires), 4 * 1.8**row)
        label = "would split (one row per seed)"
        ax.plot(fires, heights_of_ticks, "k|", markersize=5, label=label)
    ax.set(yscale="log", title=f"{name}: {eps1:.2f}, {eps2:.2f}")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.minorticks_off()
for ax in axes[1]:
    ax.set_xlabel("round")
for ax in axes[:, 0]:
    ax.set_ylabel("norm")
handles, labels = axes[0, 0].get_legend_handles_labels()
once = dict(zip(labels, handles, strict=True))
place = {"loc": "outside lower center", "ncols": 5, "fontsize": 8, "columnspacing": 1}
figure.legend(once.values(), once, **place)
plots.show(
    figure,
    1,
    "Norms of the updates in federated averaging, mean over the seeds and range, with four pairs of"
    " thresholds. Ticks above mark the rounds in which a seed would split: one row per seed, with the"
    " first seed in the lowest row. They are not values of the axis. In the panel of the first paper, both thresholds are 0.35,"
    " and their lines coincide.",
    "With the defaults: "
    "Four line charts of two norms over rounds. The norm of the mean falls far below the largest"
    " norm. The ticks above fill other rounds in each chart.",
)

# %% tags=["hide-input"]
for name, (eps1, eps2) in pairs.items():
    may = (norms[:, :, 0] < eps1) & (norms[:, :, 1] > eps2)
    started = [str(int(axis[row][0])) if row.any() else "never" for row in may]
    print(f"{name:15s} would split in {may.mean():4.0%} of the rounds; first in", *started)

# %% [markdown]
# **With the defaults** the mean fades while the longest update stays several times longer. So the clients' updates cancel each
# other, as those of groups with different optima do. Noise alone also makes a mean shorter, by a factor of about the square
# root of the number of clients. Two norms cannot tell these two cases apart. Figure 4 will show that here the groups do pull
# apart. But the four pairs disagree about when to split. The largest norm changes from round to round with a single client's
# update. If $\varepsilon_2$ lies within the range of these norms, the round of the first split changes with the seed.
#
# Sattler's rule never splits in these rounds. Does it only need more of them? The next cell trains the first seed for twice
# as many rounds. It tries the rule's $\varepsilon_1$ with both ends of the interval for $\varepsilon_2$, and with a value
# between them.

# %%
longer = averaging(federation, 2 * run.rounds)[:, :, : federation.parameters]
long_norms = np.array([sattler.update_norms(delta) for delta in longer])
least, _ = sattler.recommended_thresholds(long_norms[:, 0])
for factor in (1, 3, 10):
    may = (long_norms[:, 0] < least) & (long_norms[:, 1] > factor * least)
    at = f"first in round {may.argmax() + 1}" if may.any() else "never"
    print(f"ε₂ = {factor:2d} ε₁: would split in {may.mean():4.0%} of {len(longer)} rounds, {at}")

# %% [markdown]
# **With the defaults**, and with this one seed, the mean does fade to a tenth, a few rounds later. So the rule waits until the mean has faded. Then $\varepsilon_2$ decides: at the lower end of its interval the rule splits in a third of the rounds, and at the upper end in one round of 40.
#
# A threshold is a length in the space of parameters. Such lengths depend on the learning rate, on the number of local
# steps and on the network.
#
# <a id="which-two-halves"></a>
#
# ### Which two halves?
#
# After the decision to split, the best cut makes the largest similarity across it as small as possible. Sattler's paper
# computes this cut (Algorithm 1): it joins the two groups whose *most* similar members are most similar, until two groups
# remain, which is single [linkage](99_glossary.ipynb#linkage). Sattler's code, and that of the OCFL authors, has complete
# linkage, and so have our runs. It joins the two groups whose *least* similar members are most similar. Its cut may be worse by the
# paper's measure.


# %%
def bipartition_from_scratch(similarity, of_pairs):
    groups = [{client} for client in range(len(similarity))]

    def alike(pair):  # `min` is complete linkage, `max` is single linkage
        return of_pairs(similarity[i, j] for i in pair[0] for j in pair[1])

    while len(groups) > 2:
        one, other = max(combinations(groups, 2), key=alike)
        groups = [group for group in groups if group not in (one, other)] + [one | other]
    return groups


# %% tags=["nbval-check-output"]
for linkage, of_pairs in (("complete", min), ("single", max)):
    halves = bipartition_from_scratch(1 - cosine_divergence(first[-1]), of_pairs)
    leaving = set(sattler.bipartition(first[-1], linkage).nonzero().flatten().tolist())
    print(f"the package's halves are the same, {linkage} linkage:", leaving in halves)


# %%
def lies_in_halves(delta, linkage):  # whether no true cluster is cut
    leaving = sattler.bipartition(delta, linkage).numpy()
    return all(
        len(set(leaving[split.clusters == c].tolist())) == 1 for c in {*split.clusters.tolist()}
    )


every = [delta for kept in updates.values() for delta in kept]
for linkage in ("complete", "single"):
    good = sum(lies_in_halves(delta, linkage) for delta in every)
    print(f"{linkage} linkage: each true cluster lies in one half in {good} of {len(every)} rounds")

# %% [markdown]
# **With the defaults** both cuts respect the groups in each round and with each seed.
# One cut cannot separate three groups, though. At best, one half holds two whole groups, and it must be split again when *its*
# mean has vanished. So the thresholds must fit the whole federation and also every half of it. The method stops in the right place
# only if, in each true group, the mean stays at or above $\varepsilon_1$, or the largest norm stays at or below
# $\varepsilon_2$.
#
# ### A grid of thresholds
#
# Now nine pairs run in [lockstep](99_glossary.ipynb#lockstep), together with three published pairs: those of Sattler's code, of
# the first paper and of the extended paper. All run on up to three seeds and for at most twelve rounds. Trainings
# that several pairs ask for run once. Neighbours in the grid differ by a factor of about three. Figure 2 shows the number of
# clusters that each pair finds with each seed, and the mean [ARI](99_glossary.ipynb#ari), which is 1 for the true clusters.
# Look for pairs that find all three with every seed, and for what their neighbours find.

# %%
smaller, larger = (0.05, 0.15, 0.45), (0.25, 0.8, 2.5)
gridded = [(eps1, eps2) for eps1 in smaller for eps2 in larger]
printed_pairs = [pairs[source] for source in ("Sattler's code", "first paper", "extended paper")]


def trial(training_seed):
    line_up = {
        f"{eps1} {eps2}{kind}": methods.make(
            "sattler", eps1=eps1, eps2=eps2, min_rounds=1, linkage=linkage
        )
        for eps1, eps2 in gridded + printed_pairs
        for linkage, kind in (("complete", ""), ("single", ", single"))
    }
    few = min(run.rounds, 12)
    return simulation.run(line_up, federation_of(training_seed), few, central_every=run.rounds)


trials = {number: trial(number) for number in list(seeds)[:3]}
ends = [past.summary() for past in trials.values()]
clusters_found = {p: [end[f"{p[0]} {p[1]}"]["n_clusters"] for end in ends] for p in gridded}

# %% tags=["hide-input"]
mean_ari = {p: np.mean([end[f"{p[0]} {p[1]}"]["ari"] for end in ends]) for p in gridded}
words_of = {
    p: ", ".join(map(str, n)) + f"\nARI {mean_ari[p]:.2f}" for p, n in clusters_found.items()
}
figure, ax = plt.subplots(figsize=(4.4, 2.1))
aris = np.reshape([mean_ari[p] for p in gridded], (len(smaller), len(larger)))
ax.imshow(aris, cmap="viridis", vmin=0, vmax=1, aspect="auto")
for (row, column), ari in np.ndenumerate(aris):
    text = words_of[smaller[row], larger[column]]
    colour = "white" if ari < 0.6 else "black"
    ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
ax.set_xticks(range(len(larger)), map(str, larger))
ax.set_yticks(range(len(smaller)), map(str, smaller))
ax.spines[:].set_visible(False)
ax.tick_params(length=0)
ax.set(xlabel="$\\varepsilon_2$ (largest norm above)", ylabel="$\\varepsilon_1$ (mean below)")
plots.show(
    figure,
    2,
    "What Sattler's method finds with nine pairs of thresholds. In each cell, above: the number of clusters,"
    " once per seed, of which three are true. Below: the mean ARI. The brighter a cell, the higher is its ARI.",
    "A grid of three by three cells with the numbers of clusters and the mean ARI as text. The numbers"
    " differ from cell to cell, and in some cells from seed to seed.",
)
for eps1, eps2 in printed_pairs:
    here = [end[f"{eps1} {eps2}"] for end in ends]
    found_here = ", ".join(f"{m['n_clusters']} (ARI {m['ari']:.2f})" for m in here)
    print(f"ε₁ = {eps1}, ε₂ = {eps2}: clusters {found_here}")

# %%
print("pairs that end with another ARI with single linkage, one ARI per seed")
for eps1, eps2 in gridded + printed_pairs:
    ways = [[end[f"{eps1} {eps2}{kind}"]["ari"] for end in ends] for kind in ("", ", single")]
    if ways[0] != ways[1]:
        complete_aris, single_aris = (", ".join(f"{ari:.2f}" for ari in way) for way in ways)
        print(f"ε₁ = {eps1}, ε₂ = {eps2}: complete {complete_aris}; single {single_aris}")

# %% [markdown]
# **With the defaults** no pair finds the three groups with every seed. Only one pair, 0.45 and 0.8, finds them at all, with two of three seeds. None of the
# three published pairs finds the groups with any of these seeds. In these twelve rounds, the method never begins to split with the lowest $\varepsilon_1$ or with the highest $\varepsilon_2$. The highest
# $\varepsilon_1$ with the lowest $\varepsilon_2$ goes on splitting true groups, because some member's update stays longer
# than $\varepsilon_2$.
#
# The paper's own cut, by single linkage, changes results of three pairs (the last lines above). Of their nine ARIs, five become higher and one lower, and a second pair becomes right with two seeds. Still, no pair finds the three groups with every seed.
#
# ### The same lengths elsewhere
#
# The authors of OCFL could not run every scenario to find $\max_t\lVert\bar\Delta^t\rVert$. They took the step lengths of
# *centralised* training as a proxy (extended paper, A.2, Figure 9). For us that is a federation with one client who
# holds all data. What does the rule make of it, with two networks and two learning rates?


# %%
def centralised(network, rate):
    _, alone = partition.iid(images, clients=1)
    training = run.model_copy(update={"lr": rate}).training()
    return Federation(images, alone, network, training, seed=run.seed)


def step_lengths(federation, rounds):
    """The lengths of the steps of all parameters in each round, for a federation of one client."""
    theta, client, lengths = federation.initial()[None], torch.zeros(1, dtype=torch.int64), []
    for t in range(rounds):
        trained = federation.train(Jobs(theta, client, client), t)
        lengths.append(float((trained - theta)[:, : federation.parameters].norm()))
        theta = trained
    return lengths


for network in dict.fromkeys(("linear", run.model)):
    for rate in (0.1, 0.01):
        lengths = step_lengths(centralised(network, rate), rounds=3)
        eps1, upper = sattler.recommended_thresholds(lengths)
        print(f"{network:10s} lr {rate:<5} ε₁ = {eps1:.3f}, ε₂ up to {upper:.2f}")
print(
    f"the federation itself: {run.model}, lr {run.lr}: ε₁ = {rule[0]:.3f}, ε₂ up to {rule[1]:.2f}"
)

# %% [markdown]
# Neither the learning rate nor the network changes who belongs together. Yet **with the defaults** the largest $\varepsilon_1$ is more than five times the smallest one. With the
# same network and learning rate, the proxy is also more than five times the federation's own value. Why is it so much larger? The
# next cell compares the lengths of the first round.

# %%
central = centralised(run.model, run.lr)
single = np.mean([kept[0].norm(dim=1).mean() for kept in updates.values()])
first_lengths = {
    f"one client with all data, {len(central.batches(0, 0))} steps": step_lengths(central, 1)[0],
    f"one of {run.clients} clients, {len(federation.batches(0, 0))} steps, on average": single,
    "the mean update of these clients": norms[:, 0, 0].mean(),
}
for what, length in first_lengths.items():
    print(f"{what:45s} {length:.2f}")

# %% [markdown]
# Two things differ. One client with all data takes about ten times as many steps per round, and it moves farther. And the mean of updates in different directions is shorter than they are on average. Centralised training has neither the few steps nor the averaging.
#
# <a id="the-first-culprit-a-counter"></a>
#
# ## The first culprit: a counter
#
# The papers' code compares whole model states, that is, the state after training minus the state before. With BatchNorm
# a state also holds running statistics and, for each layer, a counter of batches. Every client raises each counter
# by its number of steps. All counters move in the same direction in every client, and much farther than any weight.

# %%
counter = torch.zeros(len(federation.initial()), dtype=torch.bool)
for name, place in federation.blueprint.layout.items():
    counter[place] = name.endswith("num_batches_tracked")
steps = len(federation.batches(0, 0))
whole_state = complete[run.seed][-1]
print(f"steps per client and round: {steps}; counters: {int(counter.sum())}")
print(f"norm of the counters alone: {whole_state[:, counter].mean(dim=0).norm():.1f}")
for name, delta in (("parameters", first[-1]), ("with buffers", whole_state)):
    mean, largest = sattler.update_norms(delta)
    print(f"{name:13s} norm of the mean {mean:5.2f}, largest {largest:5.2f}")

# %% [markdown]
# The counters' norm is the number of steps times the square root of the number of counters. Averaging does not
# reduce it, because all clients have the same sign. So the norm of the mean never falls below it, whatever the clients do.
#
# Now the papers' own numbers. Their network for three data sets is ResNet34. The next cell counts its counters, and
# estimates the steps from the sizes of the data sets (3 local epochs; 70 % of a client's distinct images are for
# training). It compares the norm with the $\varepsilon_1$ of Table 4.
# Each row of `table_4` has the number of images, the batch size, $\varepsilon_1$ and $\varepsilon_2$. A client draws `pool / m` images
# from a third of the pool, and the formula of [02b](02b_four_scenarios.ipynb) gives how many of them are different.

# %% tags=["nbval-check-output"]
names = models.make("resnet34", (3, 32, 32), 10).state_dict()
counters = sum(name.endswith("num_batches_tracked") for name in names)
table_4 = {
    "CIFAR-10": (50_000, 64, 185, 925),
    "PathMNIST": (100_000, 128, 12, 60),
    "BloodMNIST": (13_671, 128, 38, 188),
}
print(f"ResNet34 has {counters} counters")
print("data        clients  steps  norm of counters  ε₁ of Table 4  within reach")
for name, (pool, batch, eps1, _) in table_4.items():
    for m in (15, 30):
        distinct = pool / 3 * (1 - math.exp(-3 / m))  # of pool / m draws from a third of the pool
        there = 3 * math.ceil(0.7 * distinct / batch)
        norm = there * counters**0.5
        print(f"{name:10s} {m:8d} {there:6d} {norm:17.0f} {eps1:14d}  {norm < eps1}")

# %% [markdown]
# In all six cases the counters alone are longer than $\varepsilon_1$. If the estimate is right, Sattler's method cannot split with these thresholds in the papers' code,
# whatever the clients learn. Sattler's own code compares parameters alone.

#
# On these three data sets, Table 1 has nothing but dashes for Sattler's method. On MNIST and Fashion-MNIST the network has no BatchNorm, and there the method does split.
#
# And the directions? If the network has BatchNorm, every whole update points along the counters, and every angle is small. Figure 3
# shows OCFL's [temperature](99_glossary.ipynb#temperature) both ways, on a logarithmic scale. Look at the distance
# between the solid and the dashed lines, and at the rounds in which the trigger fires.


# %%
def trigger(heats):  # the round, from 1, in which OCFL clusters
    return next((t + 1 for t in range(1, len(heats)) if rises(heats[: t + 1])), None)


gammas = {n: [cosine_divergence(delta) for delta in kept] for n, kept in updates.items()}
mixed = {n: [cosine_divergence(delta) for delta in kept] for n, kept in complete.items()}
heat = {
    "parameters": {n: [temperature(g) for g in made] for n, made in gammas.items()},
    "with buffers": {n: [temperature(g) for g in made] for n, made in mixed.items()},
}
fired = {name: {n: trigger(curve) for n, curve in curves.items()} for name, curves in heat.items()}

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.5, 2.9))
for name, line in (("parameters", "-"), ("with buffers", "--")):
    for place, (number, curve) in enumerate(heat[name].items()):
        colour = plots.COLOURS[place % len(plots.COLOURS)]
        ax.plot(axis, curve, line, color=colour, linewidth=1)
        if at := fired[name][number]:
            marker = plots.MARKERS[place % len(plots.MARKERS)]
            label = f"seed {number}" if name == "parameters" else None
            ax.plot(at, curve[at - 1], marker, color=colour, label=label)
    highest = max(max(curve[len(curve) // 2 :]) for curve in heat[name].values())
    ax.text(axis[-1], 1.4 * highest, name, ha="right", va="bottom")
ax.set(xlabel="round", ylabel="temperature $T$", yscale="log", ylim=(None, 3))
ax.xaxis.get_major_locator().set_params(integer=True)
ax.minorticks_off()
ax.legend(title="trigger fires", title_fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
plots.show(
    figure,
    3,
    "The temperature over rounds on a logarithmic scale, one line per seed: from parameters alone"
    " (solid) and from parameters and buffers (dashed). Markers show where OCFL's trigger fires.",
    "With the defaults: "
    "A line chart. The solid lines lie together near one half. The dashed lines lie a hundred times"
    " lower or more, fall, and have peaks in different rounds.",
)


# %% tags=["hide-input"]
def first_split(kept, eps1=0.35, eps2=1.0, waiting=1):
    pair = [sattler.update_norms(delta) for delta in kept]
    may = (t + 1 for t, (mean, top) in enumerate(pair) if t >= waiting and mean < eps1 < eps2 < top)
    return next(may, None)


hdbscan = clustering.make("hdbscan")
both = []
for name, kept, made in (("parameters", updates, gammas), ("with buffers", complete, mixed)):
    for number in seeds:
        at = fired[name][number]
        labels = hdbscan.fit_predict(made[number][at - 1]) if at else np.zeros(run.clients)
        ari = metrics.agreement(split.clusters, labels)["ari"]
        both.append((name, number, first_split(kept[number]), at, ari))
follows = [
    spearmanr(np.diff(norm[:, 1]), np.diff(curve))[0]
    for norm, curve in zip(norms, heat["with buffers"].values(), strict=True)
]
print(
    "rank correlation of the changes of T (with buffers) and of the largest norm:"
    f" {min(follows):.2f} to {max(follows):.2f}"
)
for name, number, sattlers, ocfls, ari in both:
    print(
        f"{name:12s} seed {number}: Sattler (0.35, 1.00) splits first in round {sattlers or '-'!s:>2},"
        f" OCFL-HDB in round {ocfls or '-'!s:>2}, ARI {ari:.2f}"
    )

# %% [markdown]
# **With the defaults** the temperature shrinks more than fiftyfold, and Sattler's method cannot split at all. OCFL still
# clusters, usually later and less well. The temperature now follows lengths: a longer update points farther away from the
# counters that all clients share. The first printed line agrees with this. For each seed, it compares how the temperature and
# the largest norm change from round to round. The rank correlation is 1 if both have the same order, and near 0 if they are
# unrelated. The line gives the smallest and the largest correlation over the seeds. So the temperature tends to rise when the longest
# update becomes longer.
#
# The authors' archived temperatures are below 0.01, too, for all three data sets with BatchNorm (Figures 12 to 14 of the
# extended paper). The paper's text reports a drop to 0 for CIFAR-10 only, as a collapse of the network (section 4.6.2).
#
# <a id="the-papers-own-network"></a>
#
# ### The papers' own network
#
# So much for small digits. The next cell reads one committed run with the papers' ResNet34 and training, on blood cells (15 clients, disjoint
# classes, balanced). Each client has a fifth of the images, and batches of a fifth, so that it makes as many steps as in
# the papers. `python -m cflkit grid run ocfl/resnet34` makes the run, in 50 minutes on one core.

# %% tags=["nbval-check-output"]
[blood] = records.committed(dataset="bloodmnist-rebuilt", model="resnet34")
archive = pd.read_csv(records.PUBLISHED / "ocfl-extended_figures-10-14.csv")
same = "dataset == 'bloodmnist' and overlap == 'nonoverlapping' and balance == 'balanced'"
theirs = archive.query(same).set_index("round")["temperature"]
print("temperature in rounds 1 and 2")
for name, kind in (("parameters", ""), ("with buffers", records.AS_PUBLISHED)):
    print(
        f"  {name:12s}", *(f"{t:8.2g}" for t in blood.by_method[f"OCFL-HDB{kind}"]["temperature"])
    )
print("  the archive ", *(f"{theirs[t]:8.2g}" for t in (1, 2)))
cells = ledger.published().query(f"{same} and clients == 15 and table == '1' and measure == 'RAND'")
printed = cells[cells["paper"] == "ocfl-extended"].set_index("method")["value"]
print("\nARI after the clustering in round 2; the mean over 50 rounds that Table 1 has")
for name in (name for name in blood.summary if not name.endswith(records.AS_PUBLISHED)):
    own, code = (blood.summary[name + kind]["ari"] for kind in ("", records.AS_PUBLISHED))
    print(
        f"  {name:8s} parameters {own:.2f}; as published {code:.2f}, so {code * 49 / 50:.2f}",
        end="",
    )
    print(f" in Table 1, which has {printed[name]:.2f}")

# %% [markdown]
# **In this run** (one seed) buffers make the temperature more than three thousand times smaller. The archive's is smaller still, by a factor of about 2.4. It rises in round
# 2 both ways, as in the archive. And here buffers do not spoil the clusters of k-means and HDBSCAN, which find the true groups both ways. Affinity propagation
# does so with the parameters and the right sign. *As published* it has the buffers and the wrong sign, and then its mean over 50 rounds is the
# printed 0.23. This run cannot tell which of the two spoils it. On MNIST, where the network has no buffers, the wrong [sign](#the-second-culprit-two-wrong-signs) alone does ([report 93](93_report_ocfl.ipynb)). For mean shift, our run gives 0.83 as published, and 0.78 is printed.
#
# <a id="the-other-threshold-briggs-cut"></a>
#
# ## The other threshold: Briggs' cut
#
# Briggs et al. average for $n$ rounds, cluster once, and continue in each cluster. Agglomerative clustering joins the two
# nearest groups again and again. The distances of these joins are the heights of a
# [dendrogram](99_glossary.ipynb#dendrogram), and a threshold cuts it. With *average linkage* the distance of two groups
# is the mean over all pairs.


# %%
def merge_heights_from_scratch(distance):
    groups, heights = [[client] for client in range(len(distance))], []

    def apart(pair):
        return distance[np.ix_(*pair)].mean()

    while len(groups) > 1:
        one, other = min(combinations(groups, 2), key=apart)
        heights.append(apart((one, other)))
        groups = [group for group in groups if group not in (one, other)] + [one + other]
    return heights


# %% tags=["nbval-check-output"]
late = gammas[run.seed][-1]
own_heights = merge_heights_from_scratch(late)
print("same heights:", np.allclose(own_heights, clustering.merge_heights(late)))

# %% [markdown]
# Figure 4 shows the same federation early, later, and at the end. The dashed line is the threshold in the papers'
# code, 0.05. Where would you put it? Would one place do for all three rounds?

# %% tags=["hide-input"]
shown = sorted({min(t, run.rounds) for t in (2, 8, run.rounds)})
chosen = 0.9  # the threshold of this lesson


def draw_tree(gamma, threshold, ax, labels=None):
    tree = hierarchy.linkage(squareform(gamma, checks=False), "average")
    options = {"color_threshold": 0, "above_threshold_color": "0.35", "leaf_font_size": 8}
    hierarchy.dendrogram(tree, ax=ax, labels=labels, leaf_rotation=0, **options)
    ax.axhline(threshold, color=plots.COLOURS[1], linestyle="--", linewidth=1.5)
    ax.set(xlabel="client", ylim=(0, 1.5))


figure, axes = plt.subplots(1, len(shown), figsize=(7.4, 2.3), sharey=True, squeeze=False)
for ax, t in zip(axes[0], shown, strict=True):
    draw_tree(gammas[run.seed][t - 1], papers.ocfl.BRIGGS_THRESHOLD, ax, split.clusters)
    ax.set(title=f"round {t}", xlabel="true cluster of a client")
axes[0, 0].set_ylabel("cosine distance")
plots.show(
    figure,
    4,
    "Dendrograms of the clients' updates in three rounds (first seed). The leaves are the clients,"
    " with the number of their true cluster. Dashed: 0.05, the threshold in the papers' code.",
    "With the defaults: "
    "Three dendrograms of 15 clients. Three groups join far above the joins within"
    " groups. The dashed line lies below every join.",
)

# %% [markdown]
# **With the defaults** three groups hang far apart in each of these rounds. They join above 1, that is, at more than a right
# angle. *Within* a group the clients differ only in their samples and batches, so these heights come from chance. They change with the round and the group. A threshold of 0.05 is below every join and leaves all clients alone.
#
# <a id="one-threshold-after-another"></a>
#
# ### One threshold after another
#
# Now we cut at every threshold and draw the ARI of the cut (Figure 5). The hatched band is the range that both OCFL papers
# searched, 0.05 to 0.4. Is there a threshold that is right in every round and with every seed? The lines below the figure count
# them. We also try two other federations, for fewer rounds. In the first, clusters share classes if those of this run do not, and
# the other way round. The second has a tenth of the learning rate.


# %%
def ari_of(gamma, clusterer, truth=split.clusters):
    return metrics.agreement(truth, clusterer.fit_predict(gamma))["ari"]


heights = np.round(np.arange(0.05, 1.45, 0.05), 2)
cuts = [clustering.make("agglomerative", threshold=float(height)) for height in heights]


def sweep_of(matrices, rounds, truth=split.clusters):
    """Cut the dendrograms of some rounds at every threshold; ARI [rounds, seeds, thresholds]."""
    return np.array(
        [[[ari_of(made[t - 1], cut, truth) for cut in cuts] for made in matrices] for t in rounds]
    )


sweep = sweep_of(gammas.values(), shown)

# %%
kind = "overlapping" if run.overlap == "nonoverlapping" else "nonoverlapping"
# What each federation changes, and its number of rounds
others = {kind: ({"overlap": kind}, 8), "a tenth of the learning rate": ({"lr": run.lr / 10}, 2)}
sweeps = {f"this run ({run.overlap})": (shown, sweep)}
for title, (change, until) in others.items():
    other = run.model_copy(update=change)
    chances = other.model_dump(include={"overlap", "balance", "clients", "draws"})
    _, part = partition.ocfl(images, **chances, seed=run.partition_seed)
    matrices = []
    for number in seeds:
        made = Federation(images, part, run.model, other.training(), seed=number)
        kept = averaging(made, until)[:, :, : made.parameters]
        matrices.append([cosine_divergence(delta) for delta in kept])
    at = [t for t in (2, 8) if t <= until]
    sweeps[title] = at, sweep_of(matrices, at, part.clusters)

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 3, figsize=(8, 2.3), sharey=True)
for ax, (title, (at, aris)) in zip(axes, sweeps.items(), strict=True):
    look = {"facecolor": "none", "edgecolor": "0.6", "hatch": "///", "linewidth": 0}
    ax.axvspan(0.05, 0.4, zorder=0, label="range searched", **look)
    for place, t in enumerate(at):
        look, marker = {"color": plots.COLOURS[place]}, plots.MARKERS[place]
        mean, low, high = (f(aris[place], axis=0) for f in (np.mean, np.min, np.max))
        ax.plot(heights, mean, marker=marker, markersize=3, label=f"round {t}", **look)
        ax.fill_between(heights, low, high, alpha=0.15, lw=0, **look)
    ax.set(xlabel="threshold (cosine distance)", title=title, ylim=(-0.05, 1.05))
    ax.title.set_size(9)
axes[0].set_ylabel("ARI")
axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1, 1))
plots.show(
    figure,
    5,
    "The ARI of a cut against its threshold in some rounds: mean over the seeds, and their range. Left: this"
    " run. Centre: the other kind of clusters. Right: a tenth of the learning rate.",
    "With the defaults: "
    "Three line charts. Left, the ARI rises from 0 to 1, stays at 1 on a plateau that ends a little above a"
    " threshold of 1, and falls to 0. In the centre, where clusters share classes, the peaks of the"
    " rounds are narrow and lie at different thresholds. On the right, the plateau is wider.",
)
for title, (at, aris) in sweeps.items():
    for t, values in zip(at, aris, strict=True):
        always = heights[(values == 1).all(axis=0)]
        span = f"from {always.min()} to {always.max()}" if len(always) else ""
        print(f"{title:30s} round {t:2d}: {len(always):2d} right with every seed {span}")

# %% [markdown]
# **With the defaults**, this run is easy. All thresholds from 0.75 to 1.05 are right in each of these rounds, and
# with every seed. A cosine distance has a natural scale, unlike a length in the space of parameters. A threshold somewhat below 1
# separates groups that stand at right angles to each other. This appendix takes 0.9. Notebook [03b](03b_ocfl_controls.ipynb) takes 0.8, lesson [04](04_sattler_and_briggs.ipynb) takes 0.6 for other clients, and the parameter files of the papers' scenarios take 0.95.
#
# If clusters share classes, they stand at smaller angles. **With the defaults**, no threshold that is right in round 2
# with every seed is so in round 8, and 0.9 joins true clusters in round 2. The learning rate
# moves the lower end of the plateau, because it changes how much members of a group agree. At a tenth of our rate, which is the
# extended paper's rate, thresholds from 0.2 are right in round 2. So in this small federation, a part of the range searched
# would work with the correct sign. At the papers' own scale, one run says otherwise: there, every searched threshold leaves
# each client alone ([report 93](93_report_ocfl.ipynb)). A threshold for a cosine distance is therefore easier to choose than one for a length, but the right one still depends on the data, the round and the training.
#
# ### Move the threshold yourself
#
# In JupyterLab the next cell has a slider. It cuts the dendrogram of the last round, which is already computed. Predict
# how many clusters 0.5, 0.9 and 1.25 leave, then try. For readers without a kernel, Figure 6 shows the cut at 0.9, and the lines
# above it have the numbers for all three.


# %% tags=["hide-input"]
def cut_at(threshold):
    labels = clustering.make("agglomerative", threshold=threshold).fit_predict(late)
    made, (above, below) = plt.subplots(2, 1, figsize=(6.6, 3.3), height_ratios=(2, 1))
    draw_tree(late, threshold, above)
    above.set_ylabel("cosine distance")
    plots.clusterings(split.clusters, {f"cut at {threshold:.2f}": labels}, below)
    ari = metrics.agreement(split.clusters, labels)["ari"]
    return made, f"cut at {threshold:.2f}: {labels.max() + 1} cluster(s), ARI {ari:.2f}"


# %%
slider = ipywidgets.FloatSlider(chosen, min=0.05, max=1.4, step=0.05, description="threshold")
words, picture = ipywidgets.Label(), ipywidgets.Image(width=660)


def move(change):
    made, words.value = cut_at(change["new"])
    picture.value = plots.png_of(made)
    plt.close(made)


slider.observe(move, "value")
move({"new": chosen})
display(ipywidgets.VBox([slider, words, picture]))
for threshold in (0.5, 0.9, 1.25):
    drawn, found_text = cut_at(threshold)
    plt.close(drawn)
    print(found_text)
figure, _ = cut_at(chosen)
plots.show(
    figure,
    6,
    "The dendrogram of the last round (first seed), cut at the dashed line, and the clusters that"
    " remain below it. The strips have the clients in the order of their numbers, not of the leaves.",
    "With the defaults: "
    "Above, a dendrogram with a dashed line through the long vertical branches. Below, two strips"
    " of numbered clients: the true clusters, and those of the cut.",
)

# %% [markdown]
# <a id="the-second-culprit-two-wrong-signs"></a>
#
# ## The second culprit: two wrong signs
#
# At 0.05 all clients end up alone, as Figure 5 shows (ARI 0). On MNIST and Fashion-MNIST, Table 1 has a dash or a *negative* ARI.
#
# The reason is in the authors' code. The clusterer of Briggs' method takes a matrix of distances and is given cosine **similarities**.
# Affinity propagation, in OCFL-AFF, takes similarities and is given **distances**. (With BatchNorm all similarities
# are nearly 1. Taken as distances, they all lie above the cut at 0.05. Then all clients do end up alone, and Table 1 has 0.00 in all rows of these three data sets.) Figure 7 shows both clusterers on one matrix, each with the right and with the wrong sign. (Of the seeds, this one has the highest ARI of OCFL-AFF as published.) What do the clusters of "Briggs as published" have in common?

# %%
clusterers = {
    "Briggs, 0.9": clustering.make("agglomerative", threshold=chosen),
    "Briggs as published": clustering.make(
        "agglomerative", threshold=papers.ocfl.BRIGGS_THRESHOLD, wrong_sign=True
    ),
    "OCFL-AFF": clustering.make("affinity"),
    "OCFL-AFF as published": clustering.make("affinity", wrong_sign=True),
}
early = gammas[run.seed][shown[0] - 1]
answers = {name: clusterer.fit_predict(early) for name, clusterer in clusterers.items()}

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.4, 2.1))
plots.clusterings(split.clusters, answers, ax)
plots.show(
    figure,
    7,
    f"Clusters found on the divergence matrix of round {shown[0]} (first seed). A cluster has the"
    " number and colour of the true cluster that it matches best; hatched ones match none. The trios of Briggs"
    " as published match all three equally, so that their numbers say nothing.",
    "With the defaults: "
    "Five strips of 15 numbered clients. With the correct sign both clusterers repeat the true"
    " strip. Briggs as published mixes five numbers within each true cluster. OCFL-AFF as published "
    "keeps most clients of a true cluster together.",
)
for name, labels in answers.items():
    ari = metrics.agreement(split.clusters, labels)["ari"]
    print(f"{name:22s} {labels.max() + 1} clusters, ARI {ari:5.2f}")

# %% [markdown]
# As published, Briggs' method first joins the clients who are *least* alike. Three of them, one from each true
# cluster, form a trio. Five trios of 15 clients have an ARI of −0.24. Do trios stay, or are they joined? That depends on the mean
# similarity of two trios, $(s_{\text{in}} + 2 s_{\text{out}})/3$. Here $s_{\text{in}}$ is the similarity of two clients of one true cluster, and $s_{\text{out}}$ that of two
# clients of different ones. Of the nine pairs between two trios, three are of the first kind and six of the second.
#
# For tight groups at right angles it is $\frac13$. Taken as a distance, this is above the cut at 0.05, so trios stay. For groups that oppose each other
# at 120° it is $(1 - 2 \cdot \frac12)/3 = 0$. Then everything is joined, which gives the dash. The same happens when
# members of a group agree less. So the outcome depends on the round, and Figure 8 clusters in each. It also shows how much
# the ARI of OCFL-AFF as published changes with the seed.

# %%
by_round = {
    name: np.array([[ari_of(gamma, clusterer) for gamma in made] for made in gammas.values()])
    for name, clusterer in clusterers.items()
}

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 4, figsize=(7.4, 2.3), sharey=True)
for place, (ax, (name, aris)) in enumerate(zip(axes, by_round.items(), strict=True)):
    for row in aris:
        ax.plot(axis, row, ".", color="0.6", markersize=4)
    ax.plot(axis, aris.mean(axis=0), color=plots.COLOURS[place], linewidth=1.5)
    ax.axhline(0, color="0.4", linewidth=0.6)
    ax.set(xlabel="round", title=name.replace(" as", "\nas"), ylim=(-0.35, 1.08))
axes[0].set_ylabel("ARI")
plots.show(
    figure,
    8,
    "The ARI if clustering happens in a given round. Dots are seeds, lines their means.",
    "With the defaults: "
    "Four line charts. With the correct sign both methods lie at 1. Briggs as published begins"
    " below 0 and ends at 0. OCFL-AFF as published scatters, mostly below one half.",
)
low, middle, high = np.quantile(by_round["OCFL-AFF as published"][:, shown[0] - 1], (0, 0.5, 1))
print(f"OCFL-AFF as published, round {shown[0]}: ARI {low:.2f} to {high:.2f}, median {middle:.2f}")
scores = by_round["OCFL-AFF as published"].round(2).ravel().tolist()
common, times = Counter(scores).most_common(1)[0]
print(f"most frequent ARI of OCFL-AFF as published: {common}, in {times} of {len(scores)} matrices")

# %% [markdown]
# **With the defaults** Briggs as published finds trios in early rounds and mostly one cluster in late ones. Now compare
# [the printed values](#the-evidence-what-the-published-table-says).
#
# The −0.14 of Briggs (BCL) is what five trios from round 21 on would give, in 30 of the 50 rounds: $-0.24 \cdot 30/50 = -0.144$.
# OCFL-AFF's 0.23 is also the most frequent value below Figure 8, which comes from the digits alone.
#
# This shows a possible mechanism. The signs are wrong in the code, and wrong signs produce values of this kind. These digits do not reproduce the paper's values: our data and network are not the paper's, and which outcome Briggs has in a scenario depends on the run. At the papers' scale,
# OCFL-AFF with the wrong sign has the printed value in some scenarios and another one in others ([93](93_report_ocfl.ipynb#what-these-runs-can-say)).
# The same report [counts](93_report_ocfl.ipynb#sattler-and-briggs-in-our-runs) what the signs of Briggs and OCFL-AFF give on MNIST and Fashion-MNIST.
#
# ### All differences in one place
#
# Each difference is an option of the kit, so that both values can be run. Where a line says *in a text*, the published value is what the text says, and the intended value is what the authors' codes do. For `linkage`, this is the
# less exact cut. The kit's runs use the published values of `noise` and
# `weighting`, because these are choices, not mistakes. For all other options in this list, they use the intended value.
# [90](90_ledger.ipynb) lists the measures that are not what their column says.

# %% tags=["hide-input"]
places = {
    "code": "This is so in the authors' code.",
    "text": "This is so in a text, not in the code.",
}
grouped = {}
for switch in papers.ocfl.SWITCHES:
    grouped.setdefault((switch.option, switch.what), []).append(switch)
lines = []
for (option, what), switches in grouped.items():
    one = switches[0]
    owners = ", ".join(switch.where for switch in switches)
    lines.append(
        f"- **`{option}` of {owners}.** {what[0].upper()}{what[1:]}. {places[one.by]}"
        f" The published value is `{one.published}` and the intended value `{one.intended}`."
    )
display(Markdown("\n".join(lines)))

# %% [markdown]
# ## What we saw
#
# **With the defaults**, the mean update fades faster than the longest single update, as Sattler's criterion expects. But its thresholds are lengths in the space of parameters. They do not carry over from one
# learning rate, network or round to another. BatchNorm's counters inside the updates make the criterion
# unreachable with the papers' thresholds. Briggs' threshold is a cosine distance. It has a natural scale, and is easier to set. But if clusters share classes, the
# right threshold changes with the round. Two confusions of
# similarity and distance turn methods that work here into methods that fail.
#
# The next cell checks what this lesson states about the defaults. It also counts runs with other seeds, on the other [engine](99_glossary.ipynb#engine), and with the last bit of each trained number perturbed. Each of these runs made one training
# (`repeats = 1`).

# %% tags=["claims"]
unsplit = [pair for pair in gridded if pair[0] == smaller[0] or pair[1] == larger[-1]]
_, sharing = sweeps["overlapping"] if run.overlap == "nonoverlapping" else (shown, sweep)
plain, buffered = both[: len(seeds)], both[len(seeds) :]
pairs = zip(plain, buffered, strict=True)
worse = [(b[3] or math.inf) > (a[3] or math.inf) and b[4] < a[4] for a, b in pairs]
cool = np.array([*heat["with buffers"].values()]) / np.array([*heat["parameters"].values()])
least_mean = min(sattler.update_norms(delta)[0] for kept in complete.values() for delta in kept)
as_published = by_round["Briggs as published"]
claims.check(
    "04b_an_autopsy",
    {
        "the mean update fades to a third; single updates stay over twice as long as the mean": (
            norms[:, -5:, 0].mean(axis=1) < norms[:, 0, 0] / 3
        ).all()
        and (norms[:, :, 1] > 2 * norms[:, :, 0]).all(),
        "a small ε₁ or a large ε₂ never splits; a large ε₁ with a small ε₂ splits true clusters": all(
            max(clusters_found[pair]) == 1 for pair in unsplit
        )
        and min(clusters_found[smaller[-1], larger[0]]) > 3,
        "with buffers the mean update is never shorter than the counters' norm": least_mean
        > 0.99 * steps * int(counter.sum()) ** 0.5,
        "with buffers the temperature is less than a fiftieth": cool.max() < 1 / 50,
        "with buffers OCFL usually clusters later and less well": np.mean(worse) > 0.5,
        "a cut at 0.9 finds the true clusters in rounds 2, 8 and 20": (
            sweep[:, :, list(heights).index(chosen)] == 1
        ).all(),
        "if clusters share classes, a cut at 0.9 misses them in round 2": (
            sharing[0, :, list(heights).index(chosen)] < 1
        ).all(),
        "a cut at 0.05 leaves every client alone": (sweep[:, :, 0] == 0).all(),
        "in round 2 Briggs as published is worse than chance": (
            as_published[:, shown[0] - 1] < 0
        ).all(),
        "late, Briggs as published usually has one cluster": (as_published[:, -5:] == 0).mean()
        > 0.5,
        "affinity propagation always finds the true clusters, and never with the wrong sign": (
            by_round["OCFL-AFF"] == 1
        ).all()
        and (by_round["OCFL-AFF as published"] < 1).all(),
    },
)

# %% [markdown]
# <a id="deviations-from-the-paper"></a>
#
# ## Deviations from the paper
#
# 1. **Sattler's separation condition.** The paper splits only if members' updates are less noisy than what
#    separates the halves (its $\gamma_{max}$). Neither its code nor that of the OCFL authors checks this. Ours does not either.
# 2. **Sattler's cut.** Both codes and our runs have complete linkage, and the paper has single linkage ([above](#which-two-halves); [93](93_report_ocfl.ipynb#sattler-and-briggs-in-our-runs) has it in the scenarios of the tables).
# 3. **Sattler's waiting time.** The paper has none. Its code waits 20 rounds. Table 4 of the extended OCFL paper has
#    30 and 40 for MNIST and Fashion-MNIST, but the archived runs first split in round 22. Their code waits until a count from
#    zero *exceeds* 20. Our option counts the rounds before the first split, so our parameter files have 21, and 41 for BloodMNIST and PathMNIST, where Table 4 has 40.
# 4. **Sattler's early stopping.** Its code keeps the models before each split. Each client then chooses the best model on its
#    path. We did not build this, since no table of the papers rests on it.
# 5. **Thresholds at reduced scale.** The extended paper's 0.35 and 1.00 belong to a network of 25 million parameters and a
#    learning rate of 0.01. We keep them for the compact network at 0.1. The first paper prints 0.35 and 0.35.
# 6. **Briggs' threshold.** Correcting the sign does not make 0.05 a good threshold (Figure 5). "As intended" means 0.95 in the parameter files of the papers' scenarios.
# 7. **Briggs' weights.** The method averages by numbers of samples. In the papers' code all clients weigh alike, and so they
#    do in our runs.
# 8. **A small network with BatchNorm** replaces ResNet34, which would take hours on two cores.

# %% [markdown]
# ## Exercises
#
# These questions are for playing with the parameters and the code above.
#
# 1. Set `lr = 0.03`. Which pairs of Figure 1 still split? Predict before you run.
# 2. In Figure 2, take a pair that found more than three clusters and look at
#    `trials[run.seed].table()[["method", "round", "clusters"]]`. Which true cluster was split, and in which round?
# 3. Draw `clustering.merge_heights(divergence.pairwise(delta, "euclidean"))` (from `cflkit import divergence`) for three
#    rounds `delta` of `first`. Is there one threshold for all?
# 4. In Figure 7, why do trios have one client from each cluster? Draw the first three joins by hand.
# 5. Leave out only the counters, not the running statistics: take `delta[:, ~counter]` for each `delta` of
#    `complete[run.seed]`. Is that enough for Sattler? For OCFL?
#
# ## References
#
# - F. Sattler, K.-R. Müller, W. Samek: Clustered federated learning: model-agnostic distributed multitask optimization under
#   privacy constraints. IEEE TNNLS 32(8), 2021.
# - C. Briggs, Z. Fan, P. Andras: Federated learning with hierarchical clustering of local updates to improve training on non-IID
#   data. IJCNN 2020.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024, and its extended version.
# - B. J. Frey, D. Dueck: Clustering by passing messages between data points. Science 2007.
#
# **The lesson:** [04 Two older rules and their thresholds](04_sattler_and_briggs.ipynb) · **Next:** [05 EMD-CFL](05_emd_cfl.ipynb) ·
# [Report](93_report_ocfl.ipynb) · [Glossary](99_glossary.ipynb)
