# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # OCFL: cluster once, at the moment the temperature rises
#
# **Question.** Fifteen clients train one model together. Unknown to the server, they fall into three
# groups that see different classes. *When* do their updates betray the groups, and what is gained by
# splitting at that moment?
#
# **You will** compute the divergence matrix of client updates and its temperature, watch the trigger of
# OCFL fire, compare four clusterers on the same matrix, see what a model for each cluster gains over
# one model for all, and what it loses, and let clients join who come too late for the clustering.
#
# **Before this:** `01_federated_averaging` and `02_when_clients_disagree`.
# **Minutes on two cores:** 2
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustered Federated Learning*, IEEE
# BigData 2024 (here "the first paper"), and its extended version with explanations ("the extended
# paper", whose Algorithm 1 is meant by line numbers). With its defaults this notebook teaches on the digits of
# scikit-learn; papermill runs the same cells on the paper's data and network (last section).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from cflkit import (
    clustering,
    datasets,
    ledger,
    metrics,
    papers,
    partition,
    plots,
    records,
    simulation,
)
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs
from cflkit.methods.ocfl import attribute, rises

plots.style()

# %% [markdown]
# ## Parameters
#
# Everything that can be changed from outside stands in the next cell, as literals. The cell after it
# checks them: a wrong name, type or value stops the notebook before anything trains.

# %% tags=["parameters"]
dataset = "digits"  # a name that cflkit.datasets knows
overlap = "nonoverlapping"  # or "overlapping": whether clusters share classes
balance = "balanced"  # or "imbalanced": clients and classes unevenly spread
clients = 15  # m; the papers have 15 and 30
draws = 120  # draws a client, repeated ones dropped; None: pool size / m, as in the papers
partition_seed = 0  # who gets which samples
model = "compact-cnn"  # or "ocfl-cnn" (25 million parameters), "resnet34"
optimizer = "sgd"  # or "adam"
lr = 0.1  # learning rate of the clients
momentum = 0.0  # of SGD
weight_decay = 0.0  # of either optimiser
batch_size = 16  # samples a local step
local_epochs = 3  # passes over a client's data in a round
rounds = 20  # of communication
window = 1  # rounds of the trigger's moving average; 1 is Algorithm 1
sattler_eps1 = None  # Sattler's ε₁; None: a tenth of the largest mean update so far
sattler_eps2 = None  # Sattler's ε₂; None: ten times ε₁
sattler_rounds = 10  # rounds before Sattler's method may split
briggs_rounds = 10  # rounds before Briggs' method clusters
briggs_threshold = 0.95  # cosine distance at which Briggs' method cuts
include_buffers = False  # also run each method with BatchNorm's state in its updates
central_every = 1  # rounds between evaluations on the central test set
seed = 0  # initial model, batch orders
precision = "float32"  # or "tf32", "bfloat16": faster and coarser arithmetic

# %%
run = papers.ocfl.Parameters.of(globals())
run_name = records.run_id(run)

# %% [markdown]
# ## The clients
#
# The partition gives each client its samples and remembers which cluster it belongs to, which no
# algorithm below may look at. The `Federation` holds the clients' data and trains models on them. Its
# models are rows of numbers: $P$ parameters each, so that "subtract", "average" and "compare" are plain
# arithmetic.

# %% tags=["nbval-check-output"]
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
print(f"{federation.clients} clients, {federation.parameters:,} parameters a model")
print("true clusters:", *split.clusters)

# %% [markdown]
# ## How far do two clients pull apart?
#
# In round $t$ every client $i$ receives the model $\theta^t$, trains it on its own data to
# $\theta_i^t$, and sends the **update** $\Delta_i^t = \theta_i^t - \theta^t$ (Algorithm 1, line 14).
# Clients with like data pull in like directions. Directions are compared by the cosine distance, and all
# pairs together make the **divergence matrix** (extended paper, Definitions 5 and 6):
#
# $$\gamma_{ij} = 1 - \frac{\Delta_i \cdot \Delta_j}{\lVert\Delta_i\rVert\,\lVert\Delta_j\rVert},
# \qquad \Gamma = (\gamma_{ij}) \in [0, 2]^{m \times m}.$$
#
# In code it is one line for the lengths and one for the products:


# %%
def divergence_from_scratch(updates):
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    return 1 - directions @ directions.T


# %% [markdown]
# Now train. The loop below is federated averaging in its barest form: every client trains the same model,
# the server adds the mean update. `Jobs` says which model goes to which client; after each round we keep
# the divergence matrix and go on. Nobody clusters yet.

# %%
theta = federation.initial()
everyone = torch.arange(federation.clients)
gammas = []
for t in range(min(6, run.rounds)):
    trained = federation.train(Jobs(theta[None], torch.zeros_like(everyone), everyone), round=t)
    updates = (trained - theta)[:, : federation.parameters]
    gammas.append(cosine_divergence(updates))
    theta = trained.mean(dim=0)

# %% [markdown]
# The package's function and the two lines above must agree, here on the updates of the last round:

# %% tags=["nbval-check-output"]
by_hand = divergence_from_scratch(updates.cpu().double().numpy())
print("same matrix:", np.allclose(by_hand, gammas[-1], atol=1e-9))

# %% [markdown]
# Look at the matrices round by round. White lines part the true clusters. Dark is "same direction", blue-green, near 1,
# is "at right angles", bright green to yellow is "against each other". Do you see the three blocks, and from which
# round on?

# %%
figure, axes = plt.subplots(1, len(gammas), figsize=(1.8 * len(gammas) + 1, 2.2), squeeze=False)
for t, (gamma, ax) in enumerate(zip(gammas, axes[0], strict=True)):
    plots.divergence(gamma, split.clusters, ax, vmax=2)
    ax.set_title(f"round {t + 1}")
    ax.label_outer()
figure.colorbar(axes[0, -1].images[0], ax=axes, label="cosine distance")
plt.show()

# %% [markdown]
# With the defaults the blocks are there from the first round and sharp from the second, when the network has
# hardly learned anything. From then on, with few exceptions, divergence is near zero within a block: clients busy
# with the same classes go the same way. Between blocks it lies above 1: the groups undo each other's work.
#
# ## One number for the whole matrix: the temperature
#
# The server wants to know *when* the groups come apart without looking at pictures. The **clustering
# temperature** is a norm of $\Gamma$, scaled by an upper bound of it (Definition 7):
#
# $$T(\Gamma) = \frac{1}{\lambda}\Big(\sum_{i,j}|\gamma_{ij}|^p\Big)^{1/p},\qquad
# \lambda = \big(m(m-1)\,2^p\big)^{1/p},\qquad p = 2.$$
#
# While the shared model still learns what helps everybody, updates align and $T$ falls; when the clients
# begin to disagree it rises. On some data it rises from the start. The bound is reached by two clients only: among
# three, not all can be opposed. Three equal clusters that pull at 120° from each other ($\gamma = 1.5$) give
# $T \approx 0.63$ with fifteen clients; keep that number in mind for the curve below.


# %% tags=["nbval-check-output"]
def temperature_from_scratch(gamma, p=2):
    m = len(gamma)
    return (np.abs(gamma) ** p).sum() ** (1 / p) / (m * (m - 1) * 2**p) ** (1 / p)


temperatures = [temperature(gamma) for gamma in gammas]
same = np.allclose(temperatures, [temperature_from_scratch(gamma) for gamma in gammas])
print("same temperatures:", same)

# %% [markdown]
# ## The trigger
#
# OCFL clusters once, in the first round whose temperature exceeds the one before, with
# $T_{-1} = +\infty$ so that the first round never fires (line 20 of Algorithm 1). No threshold, no number
# of rounds to wait. `rises` is that rule; it takes the temperatures so far.


# %% tags=["nbval-check-output"]
def first_rise(past, window=1):
    return next((t + 1 for t in range(len(past)) if rises(past[: t + 1], window)), None)


fires = first_rise(temperatures, run.window)
print("the trigger fires in round", fires)

# %% [markdown]
# ## Four clusterers on one matrix
#
# OCFL does not say how to cluster, and the paper tries four ways. **HDBSCAN** reads the distances and finds
# dense groups (at least 20 % of the clients). **Affinity propagation** reads similarities, $-\Gamma$, and
# elects exemplars. **Mean shift** and **k-means** take the *rows* of $\Gamma$ as features: two clients are
# alike if they stand alike to everybody. Only k-means must be told that there are three.
#
# Each strip below is one clusterer's answer on the matrix of the round that fired (or the last one above, if none
# did); the top strip is the truth. Colours may be permuted: only who is with whom counts.

# %%
gamma = gammas[fires - 1 if fires else -1]
names = ("hdbscan", "meanshift", "kmeans", "affinity")
found = {name: clustering.make(name).fit_predict(gamma) for name in names}
strips = {"truth": split.clusters, **found}
figure, ax = plt.subplots(figsize=(6, 0.4 * len(strips) + 0.6))
ax.imshow(np.array(list(strips.values())), cmap="tab10", vmin=0, vmax=9, aspect="auto")
ax.set(xlabel="client", xticks=range(run.clients))
ax.set_yticks(range(len(strips)), strips)
plt.show()

# %% [markdown]
# The **adjusted Rand index** (ARI) compares two groupings pair by pair: 1 is the same grouping, 0 is what
# chance gives.

# %% tags=["nbval-check-output"]
for name, labels in found.items():
    ari = metrics.agreement(split.clusters, labels)["ari"]
    print(f"{name:10s} {len(set(labels))} clusters, ARI {ari:.2f}")

# %% [markdown]
# Three of the four find the groups. Mean shift keeps two of them and breaks the third, the least tight block of the
# matrix, into single clients: it merges only what lies within a bandwidth, which scikit-learn estimates from the
# data. Whoever splits a true group leaves less data for each model; whoever joins two makes clients share a model
# that serves neither.
#
# ## All methods in lockstep
#
# Now the whole algorithm. In the round that fires, each cluster starts from the global model and at once adds the mean
# of its *own* members' updates of that same round (lines 26 to 28); from then on it is federated averaging in each
# cluster. We run it with each clusterer (OCFL-KM, -AFF, -MS, -HDB in the papers), beside the two earlier methods that the
# papers compare with, **Sattler** and **Briggs**, which notebook `04` takes apart, and three yardsticks: **FedAvg** (one
# model; the papers' "baseline, no clustering", BNC), the **oracle** (the true clusters from round 1) and **local** training (no federation). Two lines named
# "as published" repeat a slip of the authors' code (also in `04`). All start from the same model. Until they split, all
# but two ask for the very same local trainings, and methods that found the same clusters in the same round do so
# afterwards: each is run once and shared.

# %%
line_up = papers.ocfl.line_up(run, images, split)
history = simulation.run(
    line_up,
    federation,
    run.rounds,
    central_every=run.central_every,
    checkpoint=records.checkpoint(run_name),
)
table, summary = history.table(), history.summary()
print(f"{history.requested} local trainings asked for, {history.trained} run")

# %% [markdown]
# ### The temperature over the whole run
#
# FedAvg never clusters, so its curve shows what the trigger would see if it went on looking. Mark where
# OCFL stopped looking and split.

# %%
curve = table[table["method"] == "FedAvg"]["temperature"].tolist()
trigger = summary["OCFL-HDB"]["clustering_round"]
figure, ax = plt.subplots(figsize=(5, 2.6))
plots.temperature(curve, trigger, ax)
ax.axhline(0.63, color="0.6", linestyle=":", linewidth=1)  # three clusters at 120°
plt.show()

# %% [markdown]
# What counts is the first rise, not the height. On these digits the temperature rises at once, the second of the two
# behaviours that the extended paper describes (theirs on Fashion-MNIST), up to nearly the 0.63 of three clusters
# at 120°; then it cools, shortly before FedAvg takes off, and goes up and down. In the authors' runs on MNIST it falls
# first (last section). Either way the trigger comes early: the groups are visible long before the model is good.
#
# ### Clusters, personalisation and generalisation
#
# Three curves a method. The **ARI** says whether the clusters are the true ones, round by round, as in the first paper's
# Figure 1. **PF1** is the mean macro-F1 of the clients' models on their *own* test sets, **GF1** the same models on
# the *central* test set with all classes. A cluster model is meant to win the first and must lose the second: it
# never sees the other clusters' classes. F1 is averaged over the classes that occur among labels *or answers*, as in
# the authors' code: one stray answer of a class that a client does not have counts as a class failed. Wider lines lie
# under narrower ones where methods coincide. Left out are OCFL-KM and -AFF, which on the digits coincide with OCFL-HDB,
# and Briggs as published.

# %%
drawn = ["FedAvg", "Sattler", "Briggs", "OCFL-AFF as published", "OCFL-MS", "OCFL-HDB"]
chosen = table[table["method"].isin([*drawn, "oracle", "local"])]
figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True)
for ax, measure in zip(axes, ("ari", "pf1", "gf1"), strict=True):
    rows = chosen[~((measure == "ari") & chosen["method"].isin(["oracle", "local"]))]
    plots.over_rounds(rows.dropna(subset=[measure]), measure, "", ax)
axes[0].set(ylim=(-0.05, 1.05), title="ARI: clusters")
axes[1].set_title("PF1: own test sets")
axes[2].set_title("GF1: central test set")
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right")
saved = plots.save(figure, f"03_{run_name}")
plt.show()

# %% [markdown]
# OCFL-HDB, and with it OCFL-KM and -AFF, has the true clusters in the round that fires (OCFL-MS breaks one up, as on the
# strips above); Briggs has them too, when its round comes. Sattler's method never
# splits here: its threshold is a tenth of the largest mean update *so far*, and the mean update has not fallen that far
# in so few rounds (`04` draws both). After the split the cluster models leave FedAvg behind on their own clients'
# data: a smaller task, learned by five clients together. Part of the distance is the measure: by accuracy (table at the
# end) FedAvg is closer, for its wrong answers fall on classes that the client does not have, and each such class
# counts in the mean of F1. On the central test set cluster models stay low, for they know three or four of ten classes.
#
# Averaged over rounds, each method becomes a segment from GF1 (hollow) to PF1 (filled), the form of
# Figure 2 of both papers; its length is the first paper's **learning gap**. (The extended paper's Definition 8, kept in
# the record, takes the difference client by client.)

# %%
figure, ax = plt.subplots(figsize=(6.5, 3))
plots.learning_gap(table, ax)
plt.show()

# %% [markdown]
# A high filled dot is what a client wants for itself; a high hollow one is what one would want of a model that
# travels. FedAvg's dots lie the other way round: a stray answer costs more on a client's three or four classes than on
# all ten. Local training stays far below the cluster models although its task is the same: it lacks the data of the
# right others. (It is also the only one that gains nothing from the shared samples of `02`.)
#
# ### What it costs to send
#
# In federated learning the network is often the bottleneck. The kit counts, for each method and round, the bytes that
# clients receive (`bytes_down`) and send (`bytes_up`): here models of $4P$ bytes each way. Below, PF1 against all that
# has been sent so far. Look at how far each method comes with the same amount.

# %%
figure, ax = plt.subplots(figsize=(5.5, 2.8))
for name in ("FedAvg", "OCFL-HDB", "oracle"):
    rows = table[table["method"] == name]
    megabytes = (rows["bytes_down"] + rows["bytes_up"]).cumsum() / 1e6
    ax.plot(megabytes, rows["pf1"], marker="o", markersize=3, label=name)
alone = table[table["method"] == "local"]["pf1"].iloc[-1]
ax.axhline(alone, color="0.5", linestyle=":", label="local, nothing sent")
ax.set(xlabel="megabytes sent, both ways, all clients", ylabel="PF1", ylim=(0, 1.02))
ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# All methods of this line-up but local training send the same amount in every round: one model to each client, and one
# back. Clustering by updates costs nothing extra, because the server compares what it receives anyway. So the curves
# differ only in what each method makes of the same traffic. (Other families pay for their clusters: EMD-CFL sends models
# between all pairs of clients once, and IFCA sends every cluster's model to every client in every round.)
#
# ## Looking further back: the moving average
#
# Section 6.3 of the extended paper proposes to watch a moving average of the temperature over $w$ rounds
# instead of single rounds. Two such averages, one round apart, share all terms but two:
#
# $$\bar T_t > \bar T_{t-1} \iff T_t + \dots + T_{t-w+1} > T_{t-1} + \dots + T_{t-w} \iff T_t > T_{t-w}.$$
#
# So the window simply says how many rounds back the trigger looks, and $w = 1$ is Algorithm 1. On the curve above:

# %%
for w in (1, 2, 3, 5):
    print(f"window {w}: first rise of the average in round {first_rise(curve, w)}")

# %% [markdown]
# With the defaults every window fires as soon as it can look back, for the temperature stays above its first value
# for longer than the widest of them. A window pays where single rounds jitter around a falling curve.
#
# ## Clients that come later
#
# "One-shot" seems to need everybody at once. Section 6.2 of the extended paper sketches the way out: cluster those who
# are there, and *attribute* each newcomer to the cluster whose updates point its way. The angle between two updates only means
# something if both start from the same model, so the server keeps the one of the round that fired. Below, the last client of each true
# cluster is late.

# %%
late = torch.tensor([int(np.flatnonzero(split.clusters == c)[-1]) for c in range(3)])
early = torch.tensor([client for client in range(run.clients) if client not in late])
kept, seen = federation.initial(), []
for t in range(run.rounds):
    trained = federation.train(Jobs(kept[None], torch.zeros_like(early), early), round=t)
    updates = (trained - kept)[:, : federation.parameters]
    seen.append(temperature(cosine_divergence(updates)))
    if rises(seen, run.window) or t + 1 == run.rounds:
        break
    kept = trained.mean(dim=0)
labels = torch.from_numpy(clustering.make("hdbscan").fit_predict(cosine_divergence(updates)))

# %% [markdown]
# Each newcomer trains that model once, and `attribute` compares: the smallest mean cosine distance to a cluster's
# members wins. It is the rule that `HDBSCAN(noise="nearest")` uses for clients left out.

# %% tags=["nbval-check-output"]
answers = federation.train(Jobs(kept[None], torch.zeros_like(late), late), round=t)
newcomers = (answers - kept)[:, : federation.parameters]
for client, update in zip(late.tolist(), newcomers, strict=True):
    joined = early[labels == attribute(update, updates, labels)].tolist()
    print(f"client {client:2d}, of true cluster {split.clusters[client]}, joins", *joined)

# %% [markdown]
# Every newcomer finds its own, for one local training each. Were the first clients a poor sample, with a whole group
# missing, there would be no right cluster to join. Then one clusters again, now with the updates of all who have come, all from
# the model kept: **few-shot** clustering, the same step with more updates to go by.

# %% tags=["nbval-check-output"]
order = torch.cat([early, late]).argsort()
everybody = torch.cat([updates, newcomers])[order]
again = clustering.make("hdbscan").fit_predict(cosine_divergence(everybody))
print("clustered again:", *again)
print(f"ARI {metrics.agreement(split.clusters, again)['ari']:.2f}")

# %% [markdown]
# ## Record
#
# A run that is not written down cannot be compared with a paper. The record holds the parameters, each
# method's measures, and the circumstances: code version, machine, minutes, seed, and the hash of the
# partition.

# %%
record = records.write(run_name, run, history, federation)

# %% tags=["report"]
heads = f"{'ARI':>6s} {'PF1':>6s} {'GF1':>6s} {'accuracy':>9s}"
print(f"{'after the last round':22s} {'clusters in round':>18s} {heads}")
for name, measures in summary.items():
    if "diverged_in" in measures:
        print(f"{name:22s} diverged in round {measures['diverged_in']}")
        continue
    print(
        f"{name:22s} {measures['clustering_round'] or '-':>18} {measures['ari']:6.2f} "
        f"{measures['pf1']:6.2f} {measures['gf1']:6.2f} {measures['accuracy']:9.2f}"
    )
print(f"\nfigure    {records.display_path(saved)}\nrecord    {records.display_path(record.folder)}")

# %% [markdown]
# Oracle and local training are split from the start, hence round 1. The papers' PF1 and GF1 are means over all rounds
# (the record has both); accuracy is that of the clients' models on their own test sets.
#
# ## What we saw
#
# - Clients of a cluster send updates of like direction; the divergence matrix shows the clusters as blocks
#   within the first rounds, long before the model is good.
# - One number, the temperature, says when: OCFL splits at its first rise, with no threshold to set.
# - The clusterer matters: on the same matrix some find the truth and some do not.
# - Cluster models serve their own clients better than one model does, and much earlier, and know nothing of other
#   classes. How much better depends on the measure.
# - Who comes later is attributed by one local training of the model that the server kept.
#
# ## At full scale
#
# In this folder, `python -m cflkit run 03_ocfl_temperature.ipynb -f params/ocfl/paper/mnist_15_nonoverlapping_balanced.yaml` is
# the papers' experiment: MNIST, their 25-million-parameter network, 4,000 draws a client, 50 rounds. It
# wants a GPU. The folder `params/ocfl/reduced/` holds scenarios at a size for two cores. The next cell draws, black, the
# temperature of the authors' runs without clustering, 15 clients, from their archive (Figures 10 to 14 of the extended
# paper), and in colour FedAvg's of the reduced runs that are committed, a line a seed. Dots mark the round in which
# OCFL-HDB clustered (theirs by Table 2).

# %%
theirs = pd.read_csv(ledger.PUBLISHED / "ocfl-extended_figures-10-14.csv")
table2 = ledger.published().query("table == '2' and method == 'OCFL-HDB' and clients == 15")
table2 = table2.set_index(["dataset", "overlap", "balance"])["value"].astype(int)
scenarios = list(theirs.groupby(["dataset", "overlap", "balance"], sort=False))
known = [past for past in records.find(clients=15) if past.paper == "ocfl"]
committed = [past for past in known if ledger.scale(past, "ocfl") == "reduced"]
figure, axes = plt.subplots(5, 4, figsize=(10, 9), sharex=True, sharey="row")
for ax, (scenario, archived) in zip(axes.flat, scenarios, strict=True):
    for past in committed:
        if ledger.scenario_of(past, "ocfl")[:3] == scenario:
            rows = past.rounds[past.rounds["method"] == "FedAvg"].set_index("round")["temperature"]
            [line] = ax.plot(rows, linewidth=1)
            if fired := past.summary["OCFL-HDB"]["clustering_round"]:
                ax.plot(fired, rows[fired], "o", color=line.get_color(), markersize=4)
    trace = archived.set_index("round")["temperature"]
    ax.plot(trace, color="black", linewidth=1.5)
    ax.plot(table2[scenario], trace[table2[scenario]], "o", color="black", markersize=4)
    ax.set_title("{}\n{}, {}".format(*scenario), fontsize=8)
figure.supxlabel("round", fontsize=9)
figure.supylabel("temperature $T$", fontsize=9)
plt.show()

# %% [markdown]
# On MNIST and Fashion-MNIST all are on a plateau a little above 0.5 from about the tenth round on, ours on theirs on MNIST
# and somewhat above on Fashion-MNIST. The first rounds differ: theirs mostly begin low and climb, on MNIST after a fall;
# ours often begin higher, and rise once or fall before they climb. Either way the first rise comes within the first
# rounds. Where the network has BatchNorm, on the three other data sets, the scale is another: its counters are inside the
# authors' updates, as `04` explains. In numbers, the round of the first rise, theirs and ours (a number a seed):

# %%
rows = []
for scenario, archived in scenarios[:8]:
    runs = [past for past in committed if ledger.scenario_of(past, "ocfl")[:3] == scenario]
    curves = [past.rounds.query("method == 'FedAvg'")["temperature"].tolist() for past in runs]
    minutes = [past.provenance["minutes"] for past in runs]
    saved_by = [
        1 - past.provenance["trainings_run"] / past.provenance["trainings_requested"]
        for past in runs
    ]
    ours = [first_rise(past) for past in curves]
    rows.append([*scenario, first_rise(archived["temperature"].tolist()), ours, minutes, saved_by])
names = ["data", "overlap", "balance", "theirs", "ours", "minutes", "saved"]
per_scenario = pd.DataFrame(rows, columns=names)
for name in ("minutes", "saved"):
    per_scenario[name] = [f"{np.mean(v):.2f}" if v else "" for v in per_scenario[name]]
print(per_scenario.to_string(index=False))

# %% [markdown]
# "Saved" is the share of local trainings that the lockstep did not run since another method asked for the same. Averaged
# over the four scenarios of a data set (ours over seeds first), with a band of twice the standard error, as in Figures 3
# and 4 of the extended paper:


# %%
def no_clustering(runs):
    """The mean over seeds of FedAvg's temperature, round by round."""
    curves = [past.rounds.query("method == 'FedAvg'")["temperature"].to_numpy() for past in runs]
    return np.mean(curves, axis=0)


figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), sharey=True)
for ax, name in zip(axes, ("mnist", "fashion-mnist"), strict=True):
    here = [(scenario, archived) for scenario, archived in scenarios if scenario[0] == name]
    ours = [
        [p for p in committed if ledger.scenario_of(p, "ocfl")[:3] == scenario]
        for scenario, _ in here
    ]
    curves = [no_clustering(runs) for runs in ours if runs]
    plots.band([archived["temperature"] for _, archived in here], "black", "theirs", ax)
    if curves:
        plots.band(curves, plots.COLOURS[0], "ours", ax)
    ax.set_title(f"{name}, {len(here)} scenarios")
axes[0].legend()
plt.show()

# %% [markdown]
# And the tables: what the ledger (`90_ledger`) says of Table 1's RAND, which is the ARI averaged over all 50 rounds (the
# rounds before clustering score 0). A cell is the printed number, and ours as the mean over seeds. BCL is our "Briggs as
# published" and OCFL-AFF our "OCFL-AFF as published", for that is what was printed.

# %%
book = ledger.ledger(committed).query("paper == 'ocfl-extended' and measure == 'RAND'")
book = book[book["reduced_status"] != "not run"]
pair = book[["value", "reduced_ours"]].map(lambda v: "–" if pd.isna(v) else f"{v:.2f}")
book = book.assign(both=pair["value"] + " / " + pair["reduced_ours"])
if len(book):
    cells = book.pivot(index=["dataset", "overlap", "balance"], columns="method", values="both")
    print(cells.to_string())

# %% [markdown]
# Mind Fashion-MNIST, overlapping, balanced: OCFL-HDB scores far below what is printed, less for clustering late than for
# clustering wrongly. Is it the method or our scale? The same scenario with four times the draws a client, and, since more
# draws also mean more local steps, with the same draws and four local epochs; the first five rounds alone, a line a seed, black is
# the authors' run:

# %%
given = {"dataset": "fashion-mnist", "overlap": "overlapping", "balance": "balanced"}
ways = {}
for past in (run for run in known if given.items() <= run.parameters.items()):
    run_as = past.parameters["draws"], past.parameters["local_epochs"]
    ways.setdefault(f"{run_as[0]} draws, local epochs: {run_as[1]}", []).append(past)
figure, ax = plt.subplots(figsize=(5, 2.6))
for number, (way, runs) in enumerate(sorted(ways.items())):
    for past in runs:
        curve = past.rounds.query("method == 'FedAvg'")["temperature"].to_numpy()[:5]
        label = way if past is runs[0] else None
        ax.plot(range(1, 6), curve, color=plots.COLOURS[number], label=label)
trace = dict(scenarios)[tuple(given.values())]["temperature"].to_numpy()[:5]
ax.plot(range(1, 6), trace, color="black", label="theirs")
ax.set(xlabel="round", ylabel="temperature $T$", xticks=range(1, 6))
ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %%
for way, runs in sorted(ways.items()):
    found = [past.summary["OCFL-HDB"] for past in runs]
    fired, aris = ([of[name] for of in found] for name in ("clustering_round", "ari"))
    print(f"{way}: clusters in round {fired}, ARI {np.round(aris, 2).tolist()}")

# %% [markdown]
# Both help, and data more than steps. With four times the draws the trigger fires earlier, about where the authors' does, and
# the clusters are right but for single clients; more epochs go part of the way. k-means, which is told the number of
# clusters, mostly finds the groups at the reduced scale as well (OCFL-KM in the table above): the matrix shows them, but
# with less room between them than HDBSCAN needs, which leaves clients out as noise.
#
# These runs are of reduced scale (fewer draws, one local epoch of three, a small network, another learning rate and
# batch size): they say that the mechanism works as published, and no more.
#
# ## Deviations from the papers
#
# 1. **Strict rise.** Algorithm 1 of both papers prints $T_t \ge T_{t-1}$; the authors' code, and this
#    notebook, test $T_t > T_{t-1}$. (`OCFL(strict=False)` is the printed rule.)
# 2. **First value.** The first paper's Algorithm 1 starts from $T_{-1} = -\infty$, which would fire at once;
#    the extended paper's and the code's $+\infty$ (its line 6) is used here.
# 3. **What an update holds.** The authors' code compares all state, BatchNorm's statistics and batch
#    counters included; here trainable parameters only (`include_buffers=True` runs each method both ways). Networks
#    without BatchNorm, as both CNNs here, do not feel it.
# 4. **Affinity propagation** gets similarities, $-\Gamma$. The authors' code passes $\Gamma$ itself, so that
#    far clients count as alike.
# 5. **HDBSCAN.** The authors used scikit-learn's, which counts a point among its own neighbours; the hdbscan
#    package does not. With `min_samples` one smaller the two agree wherever clusters are clear (a test holds
#    them together); with the package's defaults the three-client cluster of the imbalanced scenarios is lost.
# 6. **k-means** starts ten times and keeps the best; the authors' code starts once, unseeded.
# 7. **Splits** follow the authors' rules but are seeded; theirs cannot be made again (their Dirichlet draws and
#    train/test splits are unseeded). As theirs, they let clients of a cluster share samples across the line between
#    training and test (`02` measures how many).
# 8. **GF1** is measured after the round's aggregation; the authors' code measures it before, one round late.
# 9. **Central test set.** The papers call it uniform over classes; the authors', and ours, has the natural
#    frequencies of the official test set.
# 10. **Means.** The papers' tables average over rounds; the table of the record is of the last round.
# 11. **Scale.** At the reduced scale OCFL-HDB falls short of Table 1 on Fashion-MNIST with overlapping classes, by wrong
#     clusters; with more draws a client it does not (the lines above). Mean shift also breaks clusters up on
#     Fashion-MNIST without overlap.
#
# ## Exercises
#
# 1. Set `overlap = "overlapping"`. In which round does the trigger fire now, and which clusterers suffer? Why is the divergence
#    between clusters smaller now?
# 2. Change `seed` but not `partition_seed`. Does the trigger fire in the same round? Is the hash of the
#    partition in the record the same?
# 3. Replace the cosine distance by the Euclidean distance of updates in the first loop. Do the blocks survive when
#    client 0 holds a quarter of its samples (`dataclasses.replace(split, train=[...])`)?
# 4. `from cflkit import methods`, and add
#    `line_up["nearest"] = methods.make("ocfl", clusterer="hdbscan", options={"noise": "nearest"})`, in an imbalanced
#    scenario. When does it matter what becomes of clients that HDBSCAN leaves out as noise?
# 5. The trigger looks at all clients together. Construct a federation in which two clusters disagree from the
#    start but the temperature still falls.
#
# ## References
#
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024.
# - H. B. McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS
#   2017.
# - R. J. G. B. Campello, D. Moulavi, J. Sander: Density-based clustering based on hierarchical density
#   estimates. PAKDD 2013.
# - D. Comaniciu, P. Meer: Mean shift: a robust approach toward feature space analysis. PAMI 2002.
# - B. J. Frey, D. Dueck: Clustering by passing messages between data points. Science 2007.
