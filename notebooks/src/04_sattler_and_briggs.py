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
# from scratch, try whole grids of thresholds, and find two slips in published code, each a single sign, that turn a
# method that works into one that fails.
#
# **Before this:** `03_ocfl_temperature`.
# **Minutes on two cores:** 3.5
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

from cflkit import (
    clustering,
    config,
    datasets,
    ledger,
    methods,
    metrics,
    partition,
    plots,
    published,
    records,
    simulation,
)
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs
from cflkit.methods import sattler

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

# %% tags=["nbval-check-output"]
run = config.FederatedRun.of(globals())
images = datasets.load(run.dataset)
split = partition.ocfl(
    images.labels,
    dataset=run.dataset,
    overlap=run.overlap,
    balance=run.balance,
    clients=run.clients,
    draws=run.draws,
    seed=run.partition_seed,
)
federation = Federation(images, split, run.model, run.training(), seed=run.seed)
print("true clusters:", *split.clusters)

# %% [markdown]
# First plain federated averaging, with every update kept: `updates[t]` is the $m \times P$ matrix of what clients
# changed in round $t$. Everything below looks at these matrices.

# %%
theta = federation.initial()
everyone = torch.arange(federation.clients)
updates, complete = [], []
for t in range(run.rounds):
    trained = federation.train(Jobs(theta[None], torch.zeros_like(everyone), everyone), round=t)
    complete.append(trained - theta)  # with BatchNorm's state, for later
    updates.append(complete[-1][:, : federation.parameters])
    theta = trained.mean(dim=0)

# %% [markdown]
# ## Sattler: split where the mean has vanished and its parts have not
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
# paper, $\varepsilon_1 = \max_t \lVert\bar\Delta^t\rVert / 10$ with $\varepsilon_2$ between that and its tenfold.
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
axes[0].legend(loc="lower left")
plt.show()

# %% [markdown]
# Grey rounds are those that would split. The mean fades as it should while the parts stay several times larger: the
# clients *are* incongruent. But whether, and when, a pair of lines catches that is luck. A threshold is a length in
# the space of weights, and lengths there depend on the learning rate, the number of local steps and the network. The
# two written pairs, made for other data and networks, fire or not as single clients happen to jump; the rule's upper
# $\varepsilon_2$ is the largest mean of the whole run, which late updates do not reach in any part.
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
# vanished. So Sattler's method needs its thresholds to fit the whole federation and every part of it, and stops where it
# should only if the parts' largest norms fall below $\varepsilon_2$.
#
# ### A grid of thresholds
#
# Nine pairs in lockstep, no waiting time. Each asks for the trainings it needs; what pairs have in common, all rounds
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
# Every pair is within a factor of two of its neighbours, and the answers differ. A low $\varepsilon_2$ goes on splitting
# true groups, since some client's update is always larger than that; a high $\varepsilon_2$ or a low $\varepsilon_1$
# stops half way or never begins. OCFL looks at the same updates and asks only whether their *directions* part more than
# before.
#
# ### The same lengths elsewhere
#
# The authors of OCFL could not run every scenario to find $\max_t\lVert\bar\Delta^t\rVert$, and took a stand-in: the
# step lengths of *centralised* training (extended paper, A.2, Figure 9). In our terms that is a federation of one
# client who holds everything. Below, what the rule makes of it, for two learning rates and two networks.


# %%
def thresholds_by_proxy(model, lr):
    alone = partition.iid(images.labels, dataset=images.name, clients=1)
    training = run.model_copy(update={"lr": lr}).training()
    central = Federation(images, alone, model, training, seed=run.seed)
    return sattler.recommended_thresholds(sattler.central_norms(central, rounds=8))


rows = [
    {
        "network": model,
        "lr": lr,
        **dict(zip(("ε₁", "ε₂ up to"), thresholds_by_proxy(model, lr), strict=True)),
    }
    for model in ("linear", "compact-bn")
    for lr in (0.2, 0.02)
]
print(pd.DataFrame(rows).round(3).to_string(index=False))
print(f"from the federation itself, {run.model}, lr {run.lr}: {rule[0]:.3f}, {rule[1]:.3f}")

# %% [markdown]
# One number spreads over the rest of the table by what should not matter for who belongs to whom. Centralised steps are also not
# federated ones: one client with all the data takes $m$ times as many steps a round.
#
# ## What BatchNorm's counters do to lengths and angles
#
# The papers' code compares whole model states: after training minus before. With BatchNorm a state holds running
# statistics, and a counter of batches that every client raises by its number of steps. All counters move the same
# way in every client, by far more than any weight.

# %% tags=["nbval-check-output"]
steps = len(federation.batches(0, 0))
print(f"steps of client 0 in a round: {steps}; BatchNorm layers, each with a counter: 4")
for name, delta in (("parameters", updates[-1]), ("with buffers", complete[-1])):
    mean, largest = sattler.update_norms(delta)
    print(f"{name:13s} norm of the mean {mean:5.1f}, largest {largest:5.1f}")

# %% [markdown]
# Four counters of so many steps have a norm of twice as many, and no averaging cancels it: $\varepsilon_1$ is out of
# reach in every round, whatever the clients do. And directions? Every update now points along the counters, so every
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
    plots.temperature([temperature(g) for g in gammas], axes=ax)
    ax.set_title(name)
plt.show()
for name, measures in summary.items():
    print(
        f"{name:22s} first split in round {measures['clustering_round'] or '-':>2}, "
        f"{measures['n_clusters']} clusters, ARI {measures['ari']:.2f}"
    )

# %% [markdown]
# With the buffers inside, Sattler cannot split at all, and the temperature falls to thousandths, where OCFL waits for some
# client to jump. This is what the extended paper's tables have for every network with BatchNorm (a dash in each of
# Sattler's rows on CIFAR-10, PathMNIST and BloodMNIST), and why it sees temperatures near zero there. With parameters
# alone the same network splits. Sattler's own code compares parameters alone.
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
    ax.axhline(published.BRIGGS_THRESHOLD, color="black", linestyle="--", linewidth=1)
    ax.set(title=f"round {t}", xlabel="client")
axes[0].set_ylabel("cosine distance")
plt.show()

# %% [markdown]
# Three groups hang far apart in every round, joined above 1, that is, at more than a right angle. *Within* a group the
# joins lie where each client's own noise puts them, lower with more local data or fewer rounds. A threshold of 0.05 is below
# every join, and leaves all clients alone.
#
# ### A grid of thresholds
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
# At 0.05 everybody should end up alone, then. Yet the papers' tables have a dash for Briggs, one cluster, or a *negative*
# ARI, worse than chance. The reason is in their code: the clusterer takes a matrix of distances, and is given
# cosine **similarities**. Affinity propagation, OCFL-AFF, takes similarities and is given **distances**. Below, both clusterers on one matrix, with either sign.

# %%
made = {
    "Briggs, 0.95": clustering.make("agglomerative", threshold=0.95),
    "Briggs as published": clustering.make(
        "agglomerative", threshold=published.BRIGGS_THRESHOLD, wrong_sign=True
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
plt.show()

# %% tags=["nbval-check-output"]
for name, labels in answers.items():
    ari = metrics.agreement(split.clusters, labels)["ari"]
    print(f"{name:22s} {labels.max() + 1} clusters, ARI {ari:5.2f}")

# %% [markdown]
# Mended, both find the truth. As published, Briggs joins first whoever is *least* alike: a client of each true
# cluster make a trio. Whether the trios stay (five of them, ARI −0.24) depends on their mean similarity: at right angles
# it is $\frac13$, above 0.05. Where the groups oppose each other at 120°, the mean similarity of two trios is
# $(3 \cdot 1 - 6 \cdot \frac12)/9 = 0$, and everything is joined: the dash. So the outcome should change as training
# drives the groups apart. Cluster in each round, with either sign:

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
# Early, trios; later, one cluster: both of the printed outcomes. Now the printed numbers for balanced splits with 15 clients:

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
# they are. (The table averages over 50 rounds of which Briggs' method has clustered in 30: $-0.24 \cdot 30/50 = -0.14$.)
# Neither row says anything about the method.
#
# ### All differences in one place
#
# Each slip or choice is a named option of the kit, so that both ways can be run. This is the whole list, with the values as published and as intended:

# %%
table = published.switches()
with pd.option_context("display.max_colwidth", None):
    display(table.style.hide(axis="index").set_uuid("switches"))

# %% [markdown]
# ## What we saw
#
# - Sattler's criterion is sound, its thresholds are lengths in weight space: what fits one learning rate, network or
#   round does not fit another, and a wrong pair splits nothing or everybody.
# - BatchNorm's counters inside the updates make the criterion unreachable, and angles meaningless.
# - Briggs' threshold is an angle and easier to set: just below 1.
# - Two wrong signs in published code explain two rows of published tables. Mended, both methods find the truth.
#
# ## At full scale
#
# `python -m cflkit run 03_ocfl_temperature.ipynb -f params/ocfl/reduced/mnist_15_nonoverlapping_balanced.yaml`, in this
# folder, runs all methods in lockstep at a size for two cores; the files beside `reduced` are the papers' scenarios.
# From the records that have been committed: the norms that Sattler's method saw, with the papers' thresholds, and what
# each sign finds, as the mean over seeds of the ARI after the last round.

# %%
committed = [
    record for record in records.find(clients=15, rounds=50) if "OCFL-AFF" in record.summary
]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for record in committed:
    p = record.parameters
    if p["seed"] == 0 and p["dataset"] in ("mnist", "fashion-mnist"):
        rows = record.rounds[record.rounds["method"] == "Sattler"]
        split_yet = rows["n_clusters"] > 1
        ax = axes[int(p["dataset"] == "fashion-mnist")]
        label = f"{p['overlap']}, {p['balance']}"
        ax.plot(rows["round"][~split_yet], rows["mean_norm"][~split_yet].astype(float), label=label)
for ax, name in zip(axes, ("MNIST", "Fashion-MNIST"), strict=True):
    ax.axhline(0.35, color="black", linestyle=":", linewidth=1)
    ax.set(xlabel="round", title=f"{name}: norm of the mean until the first split", yscale="log")
if committed:
    axes[0].legend()
plt.show()

# %%
signs = [
    "Briggs as published",
    "Briggs",
    "OCFL-AFF as published",
    "OCFL-AFF",
    "Sattler",
    "OCFL-HDB",
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
# ## Deviations
#
# 1. **Sattler's separation condition.** The paper checks that the cut separates the clients well enough ($\gamma_{max}$) before
#    it splits; neither its code nor the OCFL authors' does, nor ours.
# 2. **Sattler's waiting time.** Not in the paper; 20 rounds in its code. The extended OCFL paper's Table 4 has 30 and 40 for
#    MNIST and Fashion-MNIST, but the archived runs first split in round 22, which 20 gives (counted from zero). Our parameter files say 21.
# 3. **Sattler's early stopping.** Its code keeps the models before each split and lets each client choose the best on its path. Not
#    built: no table of the papers rests on it.
# 4. **Thresholds at reduced scale.** The papers' 0.35 and 1.00 were found for a network of 25 million parameters at a
#    learning rate of 0.01. We keep them for the compact network at 0.1, where they happen to split as well.
# 5. **Briggs' threshold.** Mending the sign does not make 0.05 a good threshold (first grid above); "as intended" means 0.95 here.
# 6. **Briggs' weights.** FL+HC averages by samples; in the papers' line-up, as in their code, clients weigh alike.
# 7. **A small network with BatchNorm** stands for ResNet34, which would take hours on two cores.
#
# ## Exercises
#
# 1. Set `lr = 0.03`. Which pairs of the first figure still split? Predict before you run.
# 2. Set `balance = "imbalanced"`. A cluster of three clients can be split once more: when is it?
# 3. Give `methods.make("briggs", …)` the Euclidean metric. What is a natural threshold now?
# 4. In the wrong-sign figure, why do trios have one client of each cluster? Draw the first three joins by hand.
# 5. Leave out only `num_batches_tracked`, not the running statistics, from the complete updates. Is that enough for Sattler? For OCFL?
#
# ## References
#
# - F. Sattler, K.-R. Müller, W. Samek: Clustered federated learning: model-agnostic distributed multitask optimization under
#   privacy constraints. IEEE TNNLS 32(8), 2021.
# - C. Briggs, Z. Fan, P. Andras: Federated learning with hierarchical clustering of local updates to improve training on non-IID
#   data. IJCNN 2020.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024, and its extended version.
# - B. J. Frey, D. Dueck: Clustering by passing messages between data points. Science 2007.
