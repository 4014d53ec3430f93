# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Sattler and Briggs: two ways to split that need a number, and two wrong signs
#
# **Question.** Before OCFL there were two ways to cluster clients by their updates. Both wait for a threshold that
# someone must set. Why is that hard? And why do both do so badly in the OCFL papers' tables?
#
# **You will** watch the norms that decide Sattler's splits, split a cluster in two from scratch, cut a dendrogram
# from scratch, try whole grids of thresholds, and find two slips in published code, where similarity and distance are
# mixed up, that turn a method that works into one that fails.
#
# **Before this:** `03_ocfl_temperature`.
# **Minutes on two cores:** 1
#
# **Papers.** F. Sattler, K.-R. Müller, W. Samek, *Clustered Federated Learning*, IEEE TNNLS 2021 (SCL in tables).
# C. Briggs, Z. Fan, P. Andras, *Federated learning with hierarchical clustering of local updates*, IJCNN 2020 (BCL).
# "The papers" are the two OCFL papers (Zuziak et al.) that compare with them.

# %%
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import display
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cflkit import clustering, datasets, ledger, methods, metrics
from cflkit import papers, partition, plots, records, simulation
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs
from cflkit.methods import sattler
from cflkit.methods.base import average_updates
from cflkit.papers.base import switch_table

plots.style()

# %% [markdown]
# ## Parameters
#
# The digits at their own size, 8×8, and a small network with BatchNorm: many variants run in seconds, and BatchNorm
# will matter. Trainable parameters alone are compared unless we say otherwise.

# %% tags=["parameters"]
dataset = "digits-8x8"  # a name that cflkit.datasets knows
overlap = "nonoverlapping"  # or "overlapping": whether clusters share classes
balance = "balanced"  # or "imbalanced": clients and classes unevenly spread
clients = 15  # m
draws = 120  # draws a client, repeated ones dropped; None: pool size / m
partition_seed = 0  # who gets which samples
model = "compact-bn"  # the compact network with BatchNorm
optimizer = "sgd"  # or "adam"
lr = 0.2  # learning rate of the clients
momentum = 0.0  # of SGD
weight_decay = 0.0  # of either optimiser
batch_size = 32  # samples a local step
local_epochs = 3  # passes over a client's data in a round
rounds = 20  # of communication
seed = 0  # initial model, batch orders
precision = "float32"  # or "tf32", "bfloat16": faster and coarser arithmetic

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
federation = Federation(
    images, split, run.model, run.training(), seed=run.seed, precision=run.precision
)
print("true clusters:", *split.clusters)

# %% [markdown]
# First plain federated averaging, with every update kept: `updates[t]` is the $m \times P$ matrix of what the $m$ clients
# changed of the $P$ parameters in a round, a row $\Delta_i$ a client. Everything below looks at these matrices. (The mean
# is taken by the function that the package's methods use: sums rounded otherwise would drift apart after a dozen rounds.)

# %%
theta = federation.initial()
everyone = torch.arange(federation.clients)
updates, complete = [], []
for t in range(run.rounds):
    trained = federation.train(Jobs(theta[None], torch.zeros_like(everyone), everyone), round=t)
    complete.append(trained - theta)  # with BatchNorm's state, for later
    updates.append(complete[-1][:, : federation.parameters])
    theta = average_updates(theta[None], complete[-1], everyone * 0, torch.ones(run.clients))[0]

# %% [markdown]
# ## Sattler: split where the mean has vanished and the members' updates have not
#
# Suppose federated averaging has converged. Then the *mean* of the updates is near zero. If all clients want the same,
# each single update is near zero, too. If they form groups with different optima, the updates only cancel each other.
# Sattler et al. therefore split a cluster $c$ when
#
# $$\Big\lVert \frac{1}{|c|}\sum_{i \in c} \Delta_i \Big\rVert < \varepsilon_1
# \qquad\text{and}\qquad \max_{i \in c} \lVert \Delta_i \rVert > \varepsilon_2 .$$


# %%
def norms_from_scratch(delta):
    return np.linalg.norm(delta.mean(axis=0)), np.linalg.norm(delta, axis=1).max()


# %% tags=["nbval-check-output"]
by_hand = np.array([norms_from_scratch(delta.cpu().numpy()) for delta in updates])
packaged = np.array([sattler.update_norms(delta) for delta in updates])
print("same norms:", np.allclose(by_hand, packaged, rtol=1e-4))

# %% [markdown]
# Draw both against the round, with the thresholds that can be found in writing: $\varepsilon_1 = 0.4$ and
# $\varepsilon_2 = 1.6$ in Sattler's code (EMNIST), $0.35$ and $1.00$ in the papers (MNIST), and the rule of Sattler's
# paper, $\varepsilon_1 = \max_t \lVert\bar\Delta^t\rVert / 10$, with $\bar\Delta^t$ the mean update of round $t$, and
# $\varepsilon_2$ between $\varepsilon_1$ and $10\,\varepsilon_1$ (drawn: the upper end).
# In which round would each split?

# %%
rule = sattler.recommended_thresholds(packaged[:, 0])
pairs = {"Sattler's code": (0.4, 1.6), "the papers": (0.35, 1.0), "the rule": rule}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.7), sharey=True)
for ax, (name, (eps1, eps2)) in zip(axes, pairs.items(), strict=True):
    ax.plot(range(1, len(packaged) + 1), packaged[:, 0], label="norm of the mean")
    ax.plot(range(1, len(packaged) + 1), packaged[:, 1], label="largest norm")
    ax.axhline(eps1, color=plots.COLOURS[0], linestyle=":", label="$\\varepsilon_1$")
    ax.axhline(eps2, color=plots.COLOURS[1], linestyle=":", label="$\\varepsilon_2$")
    may = (packaged[:, 0] < eps1) & (packaged[:, 1] > eps2)
    for t in np.flatnonzero(may):
        ax.axvspan(t + 0.5, t + 1.5, color="0.9", zorder=0)
    ax.set(xlabel="round", yscale="log", title=f"{name}: {eps1:.2f}, {eps2:.2f}")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %% [markdown]
# Grey rounds are those that would split. The mean fades as it should while members' updates stay several times larger: the
# clients *are* incongruent. But whether, and when, a pair of lines catches that is luck. The papers' pair fires in whole
# stretches of rounds, Sattler's own only here and there, as single clients jump; by the rule the mean is small enough only
# in the last rounds, just when no update reaches the upper $\varepsilon_2$. A threshold is a length in the space of
# weights, and lengths there depend on the learning rate, the number of local steps and the network.
#
# ### Which two halves?
#
# Having decided to split, the best cut would make the largest similarity across it as small as possible. Sattler's
# code takes complete linkage instead: join the two groups whose *least* similar members are most similar, until two
# groups remain. From scratch:


# %%
def bipartition_from_scratch(similarity):
    groups = [{client} for client in range(len(similarity))]

    def least(pair):
        return min(similarity[i, j] for i in pair[0] for j in pair[1])

    while len(groups) > 2:
        one, other = max(combinations(groups, 2), key=least)
        groups = [group for group in groups if group not in (one, other)] + [one | other]
    return groups


# %% tags=["nbval-check-output"]
gamma = cosine_divergence(updates[-1])
halves = bipartition_from_scratch(1 - gamma)
leaving = set(sattler.bipartition(updates[-1]).nonzero().flatten().tolist())
print("two halves:", *sorted(sorted(half) for half in halves))
print("the package's are the same:", leaving in halves)

# %% [markdown]
# Three groups cannot be parted by one cut: one half holds two of them and must be split again, when *its* mean has
# vanished. So Sattler's method needs its thresholds to fit the whole federation and every half of it, and stops where it
# should only if the halves' largest norms fall below $\varepsilon_2$.
#
# ### A grid of thresholds
#
# Nine pairs in lockstep, with one round of waiting. Each asks for the trainings it needs; what pairs have in common, all rounds
# before their first difference, runs once. Read a cell as: clusters found (three are true), and the ARI.

# %%
first, second = (0.1, 0.2, 0.4), (0.5, 1.0, 2.0)
line_up = {
    f"{eps1} {eps2}": methods.make("sattler", eps1=eps1, eps2=eps2, min_rounds=1)
    for eps1 in first
    for eps2 in second
}
history = simulation.run(line_up, federation, run.rounds, central_every=run.rounds)
found = history.summary()

# %%
cells = [[found[f"{eps1} {eps2}"] for eps2 in second] for eps1 in first]
figure, ax = plt.subplots(figsize=(4.2, 2.6))
plots.grid(
    [[measures["ari"] for measures in row] for row in cells],
    first,
    second,
    [[f"{measures['n_clusters']}\n{measures['ari']:.2f}" for measures in row] for row in cells],
    ax,
)
ax.set(xlabel="$\\varepsilon_2$", ylabel="$\\varepsilon_1$", title="clusters found, and ARI")
plt.show()

# %% [markdown]
# Every pair is within a factor of two of its neighbours, and the answers differ. A low $\varepsilon_1$ never begins. A high
# $\varepsilon_1$ with a low $\varepsilon_2$ goes on splitting true groups, since some member's update is always larger than
# that; a high $\varepsilon_2$ may stop half way. OCFL looks at the same updates and asks only whether their *directions*
# part more than before.
#
# ### The same lengths elsewhere
#
# The authors of OCFL could not run every scenario to find $\max_t\lVert\bar\Delta^t\rVert$, and took a stand-in: the
# step lengths of *centralised* training (extended paper, A.2, Figure 9). In our terms that is a federation of one
# client who holds everything. Below, what the rule makes of it, for two learning rates and two networks.


# %%
def thresholds_by_proxy(model, lr):
    _, alone = partition.iid(images, clients=1)
    training = run.model_copy(update={"lr": lr}).training()
    central = Federation(images, alone, model, training, seed=run.seed)
    return sattler.recommended_thresholds(sattler.central_norms(central, rounds=8))


rows = []
for network in ("linear", "compact-bn"):
    for rate in (0.2, 0.02):
        eps1, upper = thresholds_by_proxy(network, rate)
        rows.append({"network": network, "lr": rate, "ε₁": eps1, "ε₂ up to": upper})
print(pd.DataFrame(rows).round(3).to_string(index=False))
print(f"from the federation itself, {run.model}, lr {run.lr}: {rule[0]:.3f}, {rule[1]:.3f}")

# %% [markdown]
# From line to line $\varepsilon_1$ changes several times over, though neither learning rate nor network changes who
# belongs together; and none of the lines is what the federation itself says. Part of that is the number of steps: one client with all
# the data takes many times as many in a round as ours do.
#
# ## What BatchNorm's counters do to lengths and angles
#
# The papers' code compares whole model states: after training minus before. With BatchNorm a state holds running
# statistics, and a counter of batches that every client raises by its number of steps. All counters move the same
# way in every client, by far more than any weight.

# %% tags=["nbval-check-output"]
steps = len(federation.batches(0, 0))
counters = int(torch.isclose(complete[-1], torch.tensor(float(steps))).all(dim=0).sum())
print(f"steps of a client in a round: {steps}; counters: {counters}")
print(f"norm of the counters alone: {steps * counters**0.5:.1f}")
for name, delta in (("parameters", updates[-1]), ("with buffers", complete[-1])):
    mean, largest = sattler.update_norms(delta)
    print(f"{name:13s} norm of the mean {mean:5.1f}, largest {largest:5.1f}")

# %% [markdown]
# The counters' norm is the number of steps times the root of the number of counters, and no averaging cancels it:
# $\varepsilon_1$ is out of reach in every round, whatever the clients do. And directions? Every update now points along the counters, so every
# angle is nearly zero. Run both methods both ways: look at the temperature's scale, and at who splits.

# %%
both = {
    f"{name}, {what}": methods.make(kind, **options, include_buffers=buffers)
    for name, kind, options in (
        ("Sattler", "sattler", {"eps1": 0.4, "eps2": 1.0, "min_rounds": 5}),
        ("OCFL", "ocfl", {}),
    )
    for what, buffers in (("parameters", False), ("with buffers", True))
}
history = simulation.run(both, federation, run.rounds, central_every=run.rounds)
summary = history.summary()

# %%
heat = {
    "parameters": [cosine_divergence(delta) for delta in updates],
    "with buffers": [cosine_divergence(delta) for delta in complete],
}
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6))
for ax, (name, gammas) in zip(axes, heat.items(), strict=True):
    fired = summary[f"OCFL, {name}"]["clustering_round"]
    plots.temperature([temperature(g) for g in gammas], fired, ax)
    ax.set_title(name)
plt.show()
for name, measures in summary.items():
    print(
        f"{name:22s} first split in round {measures['clustering_round'] or '-':>2}, "
        f"{measures['n_clusters']} clusters, ARI {measures['ari']:.2f}"
    )

# %% [markdown]
# With the buffers inside, Sattler cannot split at all, and the temperature shrinks a hundredfold (mind the scales). It
# still rises once some client jumps, so OCFL still clusters, but later and less well. This is what the extended paper's
# tables have for every network with BatchNorm (a dash in each of Sattler's rows on CIFAR-10, PathMNIST and BloodMNIST), and why
# it sees temperatures near zero there. With parameters alone the same network splits. Sattler's own code compares
# parameters alone.
#
# ## Briggs: one cut of a dendrogram
#
# Briggs et al. average for $n$ rounds, cluster once, and go on in each cluster. Agglomerative clustering joins the two
# nearest groups again and again; the distances of these joins are the heights of a **dendrogram**, and a threshold
# cuts it. With *average linkage* the distance of two groups is the mean over pairs:


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
matrices = {t: cosine_divergence(updates[t - 1]) for t in (2, 8, run.rounds)}
heights = merge_heights_from_scratch(matrices[8])
print("same heights:", np.allclose(heights, clustering.merge_heights(matrices[8])))

# %% [markdown]
# The same federation early, later, and at the end. The dashed line is the threshold of the papers, 0.05. Where would
# you put it, and would one place do for all three?

# %%
figure, axes = plt.subplots(1, len(matrices), figsize=(9, 2.6), sharey=True)
for ax, (t, gamma) in zip(axes, matrices.items(), strict=True):
    tree = hierarchy.linkage(squareform(gamma, checks=False), "average")
    hierarchy.dendrogram(
        tree, ax=ax, color_threshold=0.95, above_threshold_color="0.5", leaf_font_size=7
    )
    ax.axhline(papers.ocfl.BRIGGS_THRESHOLD, color="black", linestyle="--", linewidth=1)
    ax.set(title=f"round {t}", xlabel="client")
axes[0].set_ylabel("cosine distance")
plt.show()

# %% [markdown]
# Three groups hang far apart in every round, joined above 1, that is, at more than a right angle. *Within* a group the
# joins lie where each client's own noise puts them, and move with the round and the group. A threshold of 0.05 is below
# every join, and leaves all clients alone.
#
# ### One threshold after another
#
# The ARI of the cut against the threshold, in each of the three rounds; the grey band is the range that the papers searched.

# %%
trials = np.linspace(0.02, 1.4, 70)


def cut(gamma, threshold, **options):
    made = clustering.make("agglomerative", threshold=threshold, **options)
    return metrics.agreement(split.clusters, made.fit_predict(gamma))["ari"]


figure, ax = plt.subplots(figsize=(5.5, 2.6))
for t, gamma in matrices.items():
    ax.plot(trials, [cut(gamma, threshold) for threshold in trials], label=f"round {t}")
ax.axvspan(0.05, 0.4, color="0.92", zorder=0)
ax.set(xlabel="threshold (cosine distance)", ylabel="ARI", ylim=(-0.3, 1.05))
ax.legend()
plt.show()

# %% [markdown]
# A cosine distance has a natural scale, unlike a length in weight space: just below 1 cuts groups apart that stand at right
# angles, and finds the truth in every round here. The kit's runs take 0.95. The range that the papers searched ends about
# where the answer begins.
#
# ## The finding: two wrong signs
#
# At 0.05 everybody should end up alone, then. Yet on MNIST and Fashion-MNIST the papers' tables have a dash for Briggs, one
# cluster, or a *negative* ARI, worse than chance. (On the data sets whose network has BatchNorm everybody does end up alone, a
# score of 0.00 with COM 0.60: the counters make every similarity nearly 1, and nothing lies below 0.05.) The reason is in
# their code: the clusterer takes a matrix of distances, and is given
# cosine **similarities**. Affinity propagation, OCFL-AFF, takes similarities and is given **distances**. Below, both clusterers on one matrix, with either sign.

# %%
made = {
    "Briggs, 0.95": clustering.make("agglomerative", threshold=0.95),
    "Briggs as published": clustering.make(
        "agglomerative", threshold=papers.ocfl.BRIGGS_THRESHOLD, wrong_sign=True
    ),
    "OCFL-AFF": clustering.make("affinity"),
    "OCFL-AFF as published": clustering.make("affinity", wrong_sign=True),
}
answers = {"truth": split.clusters}
answers |= {name: clusterer.fit_predict(matrices[2]) for name, clusterer in made.items()}

# %%
figure, ax = plt.subplots(figsize=(6.5, 2.2))
ax.imshow(np.array(list(answers.values())), cmap="tab10", vmin=0, vmax=9, aspect="auto")
ax.set(xlabel="client", xticks=range(run.clients))
ax.set_yticks(range(len(answers)), answers)
for border in range(1, len(answers)):
    ax.axhline(border - 0.5, color="white", linewidth=2)
plt.show()

# %% tags=["nbval-check-output"]
for name, labels in answers.items():
    ari = metrics.agreement(split.clusters, labels)["ari"]
    print(f"{name:22s} {labels.max() + 1} clusters, ARI {ari:5.2f}")

# %% [markdown]
# Mended, both find the truth here. As published, Briggs joins first whoever is *least* alike: one client of each true
# cluster makes a trio. Whether the trios stay (five of them, ARI −0.24) depends on the mean similarity of two trios, which is
# $(s_{\text{in}} + 2 s_{\text{out}})/3$ with the similarities within a true cluster and across. Of tight groups at right
# angles it is $\frac13$, above 0.05. Where groups oppose each other at 120° it is $(1 - 2 \cdot \frac12)/3 = 0$, and everything is
# joined: the dash. The same happens as members of a group agree less. So the outcome depends on the round. Cluster in
# each, with either sign:

# %%
figure, ax = plt.subplots(figsize=(6, 2.6))
for width, (name, clusterer) in zip((4, 2, 1.6, 1.6), made.items(), strict=True):
    found = [clusterer.fit_predict(cosine_divergence(delta)) for delta in updates]
    ari = [metrics.agreement(split.clusters, labels)["ari"] for labels in found]
    ax.plot(range(1, len(ari) + 1), ari, label=name, linewidth=width)
ax.set(xlabel="round of clustering", ylabel="ARI", ylim=(-0.3, 1.05), xticks=(1, 5, 10, 15, 20))
ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# Early, trios; later, mostly one cluster: the two outcomes that are printed for networks without BatchNorm. Now the printed
# RAND (the ARI, averaged over 50 rounds) of MNIST and Fashion-MNIST, balanced, 15 clients:

# %% tags=["nbval-check-output"]
cells = ledger.published()
here = cells[(cells["paper"] == "ocfl-extended") & (cells["measure"] == "RAND")]
here = here[(here["clients"] == 15) & (here["balance"] == "balanced")]
here = here[here["dataset"].isin(["mnist", "fashion-mnist"])]
wide = here.pivot_table(
    index=["dataset", "overlap"], columns="method", values="value", aggfunc="first", dropna=False
)
print(wide[["BCL", "OCFL-AFF", "OCFL-HDB"]].dropna(how="all").to_string(na_rep="–"))

# %% [markdown]
# OCFL-AFF's 0.23 is what affinity propagation gives on most of our matrices when it is fed the wrong way round, clear as
# they are. Briggs' −0.14 is $-0.24 \cdot 30/50$, for its clusters stand in 30 of the 50 rounds. Neither row says anything
# about the method.
#
# ### All differences in one place
#
# Each is a named option of the kit, so that both ways can be run. `by` says whether the published value stands in the
# authors' code, and so in their results, or in a text alone; "intended" is what the rest of their papers, or the method's own
# authors, have. The kit's runs take the intended value of every slip (signs, buffers, the first temperature), and the
# code's where it is a choice (noise, equal weights). Measures that are not what their column says are in `90_ledger`.

# %%
table = switch_table(papers.ocfl.SWITCHES)
with pd.option_context("display.max_colwidth", None):
    display(table.style.hide(axis="index").set_uuid("switches"))

# %% [markdown]
# ## What we saw
#
# - Sattler's criterion is sound, its thresholds are lengths in weight space: what fits one learning rate, network or
#   round does not fit another, and a wrong pair splits nothing, half, or too much.
# - BatchNorm's counters inside the updates make the criterion unreachable, and shrink all angles a hundredfold.
# - Briggs' threshold is an angle and easier to set: just below 1 on the digits. (On the papers' data no one value fits every
#   run, as we shall see.)
# - Two mix-ups of similarity and distance in published code explain two rows of published tables. Mended, both methods
#   find the truth here.
#
# ## At full scale
#
# `python -m cflkit run 03_ocfl_temperature.ipynb -f params/ocfl/reduced/mnist_15_nonoverlapping_balanced.yaml`, in this
# folder, runs all methods in lockstep at a size for two cores; the files beside `reduced` are the papers' scenarios.
# From the records of reduced scale that have been committed: the norms that Sattler's method saw until its first split
# (seed 0; the mean solid, the largest dashed) with the papers' thresholds, dotted.

# %%
known = [record for record in records.find(clients=15) if record.paper == "ocfl"]
committed = [record for record in known if ledger.scale(record, "ocfl") == "reduced"]
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for ax, name in zip(axes, ("mnist", "fashion-mnist"), strict=True):
    runs = [r for r in committed if (r.parameters["dataset"], r.parameters["seed"]) == (name, 0)]
    for number, record in enumerate(runs):
        rows = record.rounds[record.rounds["method"] == "Sattler"].set_index("round")
        rows = rows[rows["n_clusters"].shift(fill_value=1) == 1]
        label = f"{record.parameters['overlap']}, {record.parameters['balance']}"
        ax.plot(rows["mean_norm"].astype(float), color=plots.COLOURS[number], label=label)
        ax.plot(rows["max_norm"].astype(float), "--", color=plots.COLOURS[number], linewidth=0.8)
    for threshold in (0.35, 1.0):
        ax.axhline(threshold, color="black", linestyle=":", linewidth=1)
    ax.set(xlabel="round", title=name, yscale="log")
axes[0].set(ylabel="norm")
if committed:
    axes[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# The mean falls below 0.35 long before the waiting time is over, so the split hangs on $\varepsilon_2$ alone: it comes with the
# first jump of a client after the waiting time. What each method finds, the ARI after the last round as the mean over seeds:

# %%
signs = [
    *("Briggs as published", "Briggs", "OCFL-AFF as published", "OCFL-AFF"),
    *("Sattler", "OCFL-HDB"),
]
last = pd.DataFrame(
    {
        **{name: record.parameters[name] for name in ("dataset", "overlap", "balance")},
        **{name: record.summary[name]["ari"] for name in signs},
    }
    for record in committed
)
if len(last):
    print(last.groupby(["dataset", "overlap", "balance"]).mean().round(2).to_string())

# %% [markdown]
# Affinity propagation with its sign corrected is at or near 1. Briggs' method, too, but not in every run: where does 0.95
# lie among its merge heights? Below, for each run, the thresholds that would have left three clusters in its round 21.

# %%
rows = []
for record in committed:
    cut = record.rounds.query("method == 'Briggs' and merge_heights.notna()").iloc[0]
    heights = [float(height) for height in cut["merge_heights"].split("|")]
    p = record.parameters
    scenario = f"{p['dataset']}, {p['overlap']}, {p['balance']}"
    rows.append([scenario, f"{heights[-3]:.2f}–{heights[-2]:.2f} ({cut['ari']:.2f})"])
for scenario, found in pd.DataFrame(rows).groupby(0)[1]:
    print(f"{scenario:40s} {'  '.join(found)}")

# %% [markdown]
# (In brackets the ARI that 0.95 has.) Where two true groups are joined below 0.95 they stay together. No one threshold lies in
# all intervals, so that here, too, it would have to be known beforehand; and three clusters are not always the right
# three, as low values with 0.95 inside show.
#
# ## Deviations
#
# 1. **Sattler's separation condition.** The paper splits only if members' updates are noisy by less than what separates
#    the halves (its $\gamma_{max}$); neither its code nor the OCFL authors' checks that, nor does ours.
# 2. **Sattler's waiting time.** Not in the paper; 20 rounds in its code. The extended OCFL paper's Table 4 has 30 and 40 for
#    MNIST and Fashion-MNIST, but the archived runs first split in round 22: their code waits until a count from zero
#    *exceeds* 20. Ours counts the rounds before the first split, hence 21 in our parameter files.
# 3. **Sattler's early stopping.** Its code keeps the models before each split and lets each client choose the best on its path. Not
#    built: no table of the papers rests on it.
# 4. **Thresholds at reduced scale.** The papers' 0.35 and 1.00 were found for a network of 25 million parameters at a
#    learning rate of 0.01. We keep them for the compact network at 0.1, where they happen to split as well.
# 5. **Briggs' threshold.** Mending the sign does not make 0.05 a good threshold (curves above); "as intended" means 0.95 here.
# 6. **Briggs' weights.** FL+HC averages by samples; in the papers' line-up, as in their code, clients weigh alike.
# 7. **A small network with BatchNorm** stands for ResNet34, which would take hours on two cores.
#
# ## Exercises
#
# 1. Set `lr = 0.03`. Which pairs of the first figure still split? Predict before you run.
# 2. In the grid, take a pair that found four clusters and look at `history.table()[["method", "round", "clusters"]]`: which
#    true cluster was split, and in which round? (Do it before the next section overwrites `history`.)
# 3. Draw `clustering.merge_heights(divergence.pairwise(delta, "euclidean"))` (from `cflkit import divergence`) for three
#    rounds. Is there one threshold for all?
# 4. In the wrong-sign figure, why do trios have one client of each cluster? Draw the first three joins by hand.
# 5. Leave out only the counters, not the running statistics: with
#    `counter = torch.isclose(complete[-1], torch.tensor(float(steps))).all(dim=0)` take `delta[:, ~counter]`. Is that
#    enough for Sattler? For OCFL?
#
# ## References
#
# - F. Sattler, K.-R. Müller, W. Samek: Clustered federated learning: model-agnostic distributed multitask optimization under
#   privacy constraints. IEEE TNNLS 32(8), 2021.
# - C. Briggs, Z. Fan, P. Andras: Federated learning with hierarchical clustering of local updates to improve training on non-IID
#   data. IJCNN 2020.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024, and its extended version.
# - B. J. Frey, D. Dueck: Clustering by passing messages between data points. Science 2007.
