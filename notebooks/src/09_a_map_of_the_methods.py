# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A round is a matrix: which method is which?
#
# **Question.** There are dozens of methods for clients that differ. What does each of them do in one round, and how could one see it
# without reading its code?
#
# ![Four square matrices with the letters A to D: one has four dark blocks, one is a diagonal line, one has also cells outside of the blocks, and one is evenly grey](../figures/09_which_is_which.png)
#
# *Dark cells in a row say whose models this client gets. Six methods end with these four pictures. Which picture do three of them share?*
#
# **Answer.** Most of the methods in this package average trained models. They differ most in *whose* models each client gets. So a round
# can be written as a matrix: the row of a client says how much of each client's model goes into its next model. Read the rows round by
# round, and you see what a method does.
#
# **You will**
#
# - see these methods as matrices, and read their rows,
# - measure such a matrix in four lines of code, and write what its rows are made of,
# - see how the accuracy depends on what comes from *other* groups,
# - choose a method by what the runs of this lesson show.
#
# **Before this:** [03 When should the server split?](03_ocfl_temperature.ipynb) and
# [04 Two older rules](04_sattler_and_briggs.ipynb). Lesson [05](05_emd_cfl.ipynb) explains EMD-CFL.
#
# **Study minutes:** 19. **Minutes on two cores:** 0.5
#
# **Source.** A graph of collaboration between clients, with weights, is the idea of pFedGraph (R. Ye et al., ICML 2023). Measuring it for all methods is ours.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import PowerNorm

from cflkit import check, datasets, methods, plots, simulation
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts
from cflkit.simulation import mixing
from cflkit.reproduce import claims, papers
from cflkit.reproduce.papers.emd_cfl import working_range

plots.style()

# %% [markdown]
# ## Six methods for the same twenty clients
#
# The clients are those of lesson 03: four groups of five, whose digits are turned by 0, 90, 180 or 270 degrees. (We train for 8 rounds and not for 10,
# so the accuracies are a bit lower.)

# %% tags=["parameters"]
samples = 40  # training and validation images per client
rounds = 8  # of communication
lr = 0.05  # learning rate of the clients
k = 4  # the number of models that IFCA is told
client = 7  # whose row we read
seed = 0  # who gets which images, the initial models, and the batch orders

# %%
run = papers.lessons.MethodsAsMatrices.of(globals())
digits = datasets.load("digits-8x8")
training = LocalTraining(epochs=5, batch_size=16, lr=run.lr, momentum=0.9)


def clients_of(version, clients=20, samples=run.samples):
    """A federation whose groups have digits of other angles, and the groups."""
    images, split = shifts.make(digits, version, clients=clients, samples=samples, seed=run.seed)
    home = Federation(images, split, "perceptron", training, seed=run.seed, engine="stacked")
    return home, split.clusters


federation, truth = clients_of("four")

# %% [markdown]
# Each method answers the question *with whom do I share?* in its own way:
#
# - **FedAvg** (McMahan et al., one model for all): with everybody. **Local** (each client alone): with nobody.
# - **OCFL** (Zuziak et al.): with clients whose updates point in similar directions, from the first rise of the temperature on. (We use HDBSCAN; the papers also try k-means, [affinity propagation](99_glossary.ipynb#affinity-propagation) and [mean shift](99_glossary.ipynb#mean-shift).)
# - **IFCA** (Ghosh et al.): the server keeps $k$ models. In every round, each client picks the model that has the lowest loss on its own images.
# - **pFedGraph** (Ye et al.): this method has no clusters. Each client gets its own weights, which are larger for clients with similar updates.
# - **EMD-CFL** (Zhang, Toni and Williams): with clients whose images look less strange to its network than a threshold allows. We set the threshold half-way between its largest score
#   within groups and its smallest score between groups. On our four angles the first is larger than the second, so this is a compromise. A server could not even do this, because it does not know the groups.
#
# `mixing.watched` lets each method run as usual, and measures a matrix after each round.

# %% tags=["hide-input"]


def threshold_of(federation, truth):
    """EMD-CFL's largest score within groups and its smallest between them, in round 1."""
    theta, everyone = federation.initial()[None], torch.arange(federation.clients)
    trained = federation.train(Jobs(theta, torch.zeros_like(everyone), everyone), 0)
    emd = methods.make("emd-cfl")
    emd.setup(federation.server, theta[0])
    federation.converse(emd.meet(everyone, trained))
    return [float(end) for end in working_range(emd.scores.numpy(), truth)]


within, between = threshold_of(federation, truth)

# %%
line_up = {
    "FedAvg": lambda: methods.make("fedavg"),
    "Local": lambda: methods.make("local"),
    "OCFL": lambda: methods.make("ocfl", clusterer="hdbscan"),
    "IFCA": lambda: methods.make("ifca", k=run.k),
    "pFedGraph": lambda: methods.make("pfedgraph"),
    "EMD-CFL": lambda: methods.make("emd-cfl", epsilon=(within + between) / 2),
}
watched = mixing.watched({name: make() for name, make in line_up.items()})
history = simulation.run(watched, federation, run.rounds, progress=False)

# %% tags=["hide-input"]
# The picture at the top of this page
figure, axes = plt.subplots(1, 4, figsize=(7.6, 2.1))
puzzle = ("OCFL", "Local", "EMD-CFL", "FedAvg")
for name, letter, ax in zip(puzzle, "ABCD", axes, strict=True):
    ax.imshow(watched[name].matrices[-1], cmap="Greys", norm=PowerNorm(0.5, 0, 1))
    ax.set(title=letter, xticks=[], yticks=[])
plots.save(figure, "09_which_is_which")
plt.close(figure)

# %% [markdown]
# **Predict.** Draw a square of 20 by 20 cells. The more of client $j$'s trained model is in the
# next model of client $i$, the darker is the cell in row $i$ and column $j$. What do FedAvg and Local look like? And OCFL, before and after it clusters? And IFCA in round 1?
#
# Move the slider of Figure 1.


# %% tags=["hide-input"]
MIDDLES, ANGLES = (2, 7, 12, 17), ("0°", "90°", "180°", "270°")
LOOKS = {  # colour and hatch
    "its own model": ("black", None),
    "the rest of its group": (plots.COLOURS[0], None),
    "other groups": (plots.COLOURS[3], "///"),
}


def split_round(name):
    """The first round, from 1, in which a method's matrix is no longer that of FedAvg."""
    differs = [np.abs(matrix - 1 / 20).max() > 0.01 for matrix in watched[name].matrices]
    return differs.index(True) + 1 if any(differs) else run.rounds


def frame(name, t):
    """Draw a method's matrix in a round, and one of its rows as bars."""
    weights = watched[name].matrices[t - 1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2))
    left.imshow(weights, cmap="Greys", norm=PowerNorm(0.5, 0, 1))
    for border in plots.cluster_borders(truth):
        left.axhline(border, color=plots.COLOURS[2], linewidth=1)
        left.axvline(border, color=plots.COLOURS[2], linewidth=1)
    outline = {"fill": False, "edgecolor": plots.COLOURS[1], "linewidth": 2}
    left.add_patch(plt.Rectangle((-0.5, run.client - 0.5), 20, 1, **outline))
    left.set_xticks(MIDDLES, ANGLES)
    left.set_yticks(MIDDLES, ANGLES)
    left.tick_params(length=0)
    left.set(xlabel="client that gives", ylabel="client that receives")
    own, group = np.arange(20) == run.client, truth == truth[run.client]
    parts = {"its own model": own, "the rest of its group": group & ~own, "other groups": ~group}
    for label, these in parts.items():
        colour, hatch = LOOKS[label]
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": label}
        right.bar(np.flatnonzero(these), weights[run.client][these], **look)
    right.set(ylim=(0, 1), yticks=(0, 0.5, 1), xlabel="client that gives", ylabel="weight")
    right.set_xticks(MIDDLES, ANGLES)
    right.legend(loc="upper right", fontsize=8)
    received = 100 * weights[run.client][group].sum()
    right.set_title(f"client {run.client}: {received:.0f} % from its group")
    inside = 100 * weights[truth[:, None] == truth].sum() / 20
    figure.suptitle(f"{name}, round {t}: {inside:.0f} % of all weight stays within the groups")
    return figure


clustered = split_round("OCFL")
shown = [("FedAvg", run.rounds), ("Local", run.rounds), ("OCFL", max(clustered - 1, 1))]
shown += [("OCFL", clustered), ("IFCA", 1), ("IFCA", run.rounds)]
shown += [("pFedGraph", run.rounds), ("EMD-CFL", run.rounds)]
plots.show_frames(
    [frame(*one) for one in shown],
    [f"{name}, round {t}" for name, t in shown],
    1,
    "**Each method fills the rows in its own way; OCFL has four blocks from the round in which it clusters.** Left: the matrix of one round. A weight of 0.05 is light grey, 0.2 is "
    "middle grey, and 1 is black. Green lines separate the true groups, by their angle. Right: the row in the orange frame, as bars.",
    "A square of 20 by 20 cells beside bars of one row. FedAvg is evenly grey, Local is a black diagonal, OCFL turns from even "
    "grey into four dark blocks on the diagonal, and EMD-CFL has dark cells outside the blocks.",
    first=3,
)

# %% [markdown]
# Read the framed row from left to right:
#
# - **FedAvg** (picture D): twenty equal bars, because everybody gets the same model. **Local** (B): a single bar, for the client's own model.
# - **OCFL** is FedAvg until it clusters. Then four blocks appear at once, and each row is an equal mean of five models.
# - **IFCA** begins with $k$ random models, so in round 1 a client shares with all clients who happened to pick the same model. Later it has the same blocks as OCFL.
# - **pFedGraph** has these blocks, too, although nobody told it that there are groups. So three methods share picture A.
# - **EMD-CFL** (C) has grey cells outside of the blocks here: half of the row belongs to the group whose digits are turned by another 180 degrees.
#
# ## The matrix
#
# Call $\tilde\theta_j$ the model that client $j$ has just trained, and $\theta_i$ the model that client $i$ predicts with after the round. A method that averages makes
#
# $$\theta_i = \sum_{j} M_{ij}\, \tilde\theta_j, \qquad \sum_j M_{ij} = 1 .$$
#
# The [mixing matrix](99_glossary.ipynb#mixing-matrix) $M$ has one row for each client that receives, and one column for each client that gives. Nobody has to
# tell us $M$, because it can be *measured*: we know the models before and after the averaging. For each client there is one equation per parameter (4,810 here), and there are only 20
# unknown weights, so the method of least squares finds them:


# %%
def weights_of(trained, predicting):
    """The weights [m, m] with which trained models [m, P] make those for predicting [m, P]."""
    # Solves trained.T [P, m] @ solution [m, m] = predicting.T [P, m]
    solution, *_ = torch.linalg.lstsq(trained.double().T, predicting.double().T)
    return solution.T


# %% tags=["nbval-check-output"]
theta = federation.initial()[None]
everyone = torch.arange(20)
trained = federation.train(Jobs(theta, torch.zeros_like(everyone), everyone), 0)
found = weights_of(trained, trained.mean(dim=0).expand_as(trained))
print("FedAvg's weights are all 1/20:", bool(np.allclose(found, 1 / 20, atol=1e-6)))
residual = max(max(method.residuals) for method in watched.values())
print("every round of all six methods is such a matrix:", residual < 1e-4)

# %% [markdown]
# The second line says that the measured $M$ gives each new model, up to rounding, in every round and for each method. So the matrix describes all of
# the averaging.
#
# ## How much comes from other groups?
#
# The weights in a row have three parts: the client's own model, the rest of its group, and other groups.
#
# **Write it.** Compute the three parts in this order, as means over all rows, from a matrix and the true group of each client. While nothing is written, the lesson uses the solution.


# %% tags=["nbval-check-output"]
def divided(matrix, groups):
    """Return three shares that sum to 1 for a mixing matrix [m, m] and true groups [m]."""
    raise NotImplementedError  # write your lines here


divided = check.written("09.2", divided)

# %% [markdown]
# **Predict.** Local has all weight on the client's own model, FedAvg has three quarters of it on other groups, and EMD-CFL half. Local was ten points above FedAvg in lesson 03. Where is EMD-CFL: below FedAvg, between them, or above Local?

# %% tags=["hide-input"]
shares = {name: divided(method.matrices[-1], truth) for name, method in watched.items()}
group = {name: 1 - other for name, (_, _, other) in shares.items()}
accuracy = {name: row.get("accuracy", np.nan) for name, row in history.summary().items()}
order = sorted(accuracy, key=accuracy.get)
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), sharey=True, width_ratios=(1.7, 1))
start = np.zeros(len(order))
for label, share in zip(LOOKS, np.array([shares[name] for name in order]).T, strict=True):
    share, (colour, hatch) = np.maximum(share, 0), LOOKS[label]
    look = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": label}
    axes[0].barh(order, share, left=start, **look)
    start += share
axes[0].set(xlabel="share of a client's model, last round", xlim=(0, 1))
axes[1].plot([accuracy[name] for name in order], order, "o", color="black")
for name in order:
    beside = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
    axes[1].annotate(f"{accuracy[name]:.2f}", (accuracy[name], name), **beside)
axes[1].set(xlabel="mean accuracy", xlim=(min(0.6, *accuracy.values()), 1))
axes[1].grid(alpha=0.3)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
title = "Best: average with your whole group, and with nobody else"
alone, _, foreign = shares[order[-1]]  # of the best method
figure.suptitle(plots.finding(title, alone < 0.3 and foreign < 0.05), fontsize=10)
plots.show(
    figure,
    2,
    "Whose models are in a client's model after the last round, and the mean accuracy on the clients' own test images. EMD-CFL is not at its best here (see Figure 3).",
    "Stacked horizontal bars beside dots. The methods at the top have a fifth of black and four fifths of blue, with accuracies near 0.9. "
    "Local, all black, and EMD-CFL, with much hatched pink, lie in the middle, and FedAvg, mostly pink, lies at the bottom.",
)

# %% [markdown]
# OCFL and pFedGraph compare updates, and IFCA compares losses. Yet their bars and their accuracies are nearly the same. What a method compares matters only until it
# has found the groups. After that, all three average within the groups.
#
# Weight from other groups (pink) hurts, because their models have learned digits that are turned differently. FedAvg has three quarters of it, and is last, 11 points below Local. A client that trains alone (all black) does not use the images of
# its four partners, so Local is far below the best. In EMD-CFL, half of the weight hurts and the other half helps, and here it ends near Local. This gives two questions about any
# method: *how much weight from other groups is left, and how many partners does a client have?*
#
# ## Where EMD-CFL works
#
# EMD-CFL asks whether the images of one client look strange to the network of another one. Digits that are turned by 90 degrees do. Upside-down digits of 8 × 8 pixels hardly do, as [lesson 05](05_emd_cfl.ipynb) shows, so on our four angles no threshold is right. (On the larger digits of the paper, some are: see the limit below.) We give it
# twelve clients in two groups, upright and turned by 90 degrees, with 120 images each.

# %%
two, halves = clients_of("quarter-turn", clients=12, samples=120)
inside, outside = threshold_of(two, halves)
middle = (inside + outside) / 2
pair = {"FedAvg": methods.make("fedavg"), "EMD-CFL": methods.make("emd-cfl", epsilon=middle)}
seen = mixing.watched(pair)
reached = simulation.run(seen, two, run.rounds, progress=False).summary()

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(6.6, 3.3))
settings = (
    ("four angles", watched["EMD-CFL"], truth, (within, between)),
    ("upright and turned by 90°", seen["EMD-CFL"], halves, (inside, outside)),
)
for ax, (title, method, groups, (low, high)) in zip(axes, settings, strict=True):
    ax.imshow(method.matrices[-1], cmap="Greys", norm=PowerNorm(0.5, 0, 1))
    for border in plots.cluster_borders(groups):
        ax.axhline(border, color=plots.COLOURS[2], linewidth=1)
        ax.axvline(border, color=plots.COLOURS[2], linewidth=1)
    gap = "a gap" if low < high else "no gap"
    ax.set_title(f"{title}\nscores within ≤ {low:.2f}, between ≥ {high:.2f}: {gap}", fontsize=9)
    ax.set(xticks=[], yticks=[])
title = "EMD-CFL's blocks need groups that look strange to each other"
figure.suptitle(plots.finding(title, within > between and inside < outside), fontsize=10)
plots.show(
    figure,
    3,
    "EMD-CFL's matrices after the last round, for the lesson's four angles and for two. Above: its largest score within groups and its smallest between two groups. A threshold works if there is a gap.",
    "Two square matrices. In the left one dark cells also lie outside the four blocks; the right one has two dark blocks and nothing else.",
)

# %% tags=["nbval-check-output"]
print("with two angles, a threshold works:", inside < outside)
better = reached["EMD-CFL"]["accuracy"] > reached["FedAvg"]["accuracy"]
print("EMD-CFL ends above FedAvg there:", better)

# %% [markdown]
# ## When does the weight from other groups go?
#
# Figure 4 follows two numbers through the rounds.
#
# **Predict.** By how many points does OCFL's accuracy rise in the round in which it clusters? (A point is 0.01.) Write the number into the next cell, and execute the cells from there. Figure 4 then shows your guess.

# %%
guess = None  # points

# %% tags=["hide-input"]
guess = check.guessed(guess, -100, 100)
table, same = history.table(), truth[:, None] == truth[None]
axis = range(1, run.rounds + 1)
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.0))
for number, name in enumerate(line_up):
    foreign = [1 - (matrix * same).sum(axis=1).mean() for matrix in watched[name].matrices]
    # None of the colours that Figures 1 and 2 have for the parts of a row
    colour = (*(plots.COLOURS[place] for place in (7, 1, 2, 4, 5)), "tab:brown")[number]
    look = {"color": colour, "marker": plots.MARKERS[number]}
    look["linewidth"] = 4 if name == "Local" else 1.5  # it stays visible below pFedGraph
    axes[0].plot(axis, foreign, markersize=5, **look)
    mine = table[table["method"] == name]
    axes[1].plot(mine["round"], mine["accuracy"], markersize=5, label=name, **look)
if guess is not None and clustered > 1:
    was = (table["method"] == "OCFL") & (table["round"] == clustered - 1)
    before = table[was]["accuracy"].item()
    look = {"fillstyle": "none", "markersize": 11, "label": "your guess"}
    axes[1].plot(clustered, before + guess / 100, "kX", **look)
if len(watched["OCFL"].models) > 1:
    for ax in axes:
        ax.axvline(clustered, color="0.5", linestyle="--", linewidth=1, zorder=0)
    axes[0].text(clustered + 0.15, 0.9, "OCFL clusters", fontsize=8)
axes[0].set(xlabel="round", ylabel="weight from other groups", ylim=(-0.05, 1))
axes[1].set(xlabel="round", ylabel="mean accuracy", ylim=(min(0.2, table["accuracy"].min()), 1))
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize=8)
title = "OCFL's accuracy jumps in the round in which it stops averaging with other groups"
of_ocfl = table[table["method"] == "OCFL"].set_index("round")["accuracy"]
jumps = clustered > 1 and of_ocfl[clustered] - of_ocfl[clustered - 1] > 0.1
clusters = len(watched["OCFL"].models) > 1
figure.suptitle(plots.finding(title, clusters and jumps), fontsize=10)
plots.show(
    figure,
    4,
    "Left: the mean weight that comes from other groups, by round. Local and pFedGraph have 0 in all rounds. Right: the mean accuracy.",
    "Two charts of six lines over rounds. Left, FedAvg stays at three quarters, OCFL falls from there to zero in one step, IFCA falls to "
    "zero in round 2, and Local and pFedGraph are at zero. Right, OCFL's accuracy jumps in the same round.",
)

# %% [markdown]
# OCFL waits, so its accuracy is low in the first rounds. When OCFL clusters, it rises by about 32 points, from 0.43 to 0.75. (We think that each update was good for its group, and only the mean over all groups spoiled it.) pFedGraph shares only within the groups from round 1 on. IFCA mixes the groups
# in round 1, while its models are random; from round 2 on, each group has its own model. After eight rounds, the three methods are nearly equal.
#
# ## How to choose
#
# One set of clients is not enough to choose a method. So we try two other cases. In the first, the clients have **no groups** at all, and EMD-CFL keeps its threshold. In the second, IFCA is told a **wrong number** of models.

# %%
wrong = {f"IFCA, k = {number}": methods.make("ifca", k=number) for number in (2, 8)}
plain, _ = clients_of("base")
without = simulation.run(
    {name: make() for name, make in line_up.items()}, plain, run.rounds, progress=False
).summary()
misled = simulation.run(wrong, federation, run.rounds, progress=False).summary()


# %% tags=["hide-input", "nbval-ignore-output"]
import pandas as pd


def bytes_sent(row):
    """The bytes of all clients and rounds, in both directions."""
    return row["total_bytes_up"] + row["total_bytes_down"]


columns = {}
for name, row in (history.summary() | misled).items():
    columns[name] = {
        "accuracy, four groups": f"{row['accuracy']:.2f}",
        "accuracy, no groups": f"{without[name]['accuracy']:.2f}" if name in without else "",
        "bytes (FedAvg = 1)": f"{bytes_sent(row) / bytes_sent(history.summary()['FedAvg']):.1f}",
    }
pd.DataFrame(columns).T

# %% [markdown]
# This is what these runs say, and no more:
#
# 1. **First compare FedAvg with Local.** With four groups, Local was better: the clients differed, and weight from other groups hurt. Without groups, FedAvg was much better, and clustering
#    gained nothing. (Clusters can also gain where both are level, as after twenty rounds in [lesson 04](04_sattler_and_briggs.ipynb).)
# 2. **There are groups, but you do not know how many?** OCFL and pFedGraph found them without being told the number. OCFL sends as many bytes as FedAvg, pFedGraph two fifths more, and EMD-CFL more than three times as many in these eight rounds. (All of its surplus comes once, when it clusters; the paper's section 3.1 calls such costs "one-off".)
# 3. **You know how many?** IFCA reached the same accuracy. It sends $k$ models to each client. With $k = 2$, groups must share a model, and it lost most of
#    its lead over Local. With $k = 8$ it was as accurate, but it sent more bytes.
# 4. **There are no groups?** Then OCFL, pFedGraph and EMD-CFL lost nothing against FedAvg. IFCA was 0.02 lower in this one run, and Local lost a lot.
#
# > **An honest limit.** This is one data set, one network, one seed and clean groups of five. On Rotated MNIST, the paper's first data set, EMD-CFL separates the
# > four rotations, too ([report 95](95_report_emd_cfl.ipynb#all-40-clients-of-the-paper)). A client *without* partners can
# > lose a lot with any method that insists on sharing ([09b](09b_catalogue.ipynb#make-them-fail)). And $M$ shows only the averaging: not what a method changes in the local training, and not an optimiser of the server such as [FedOpt](99_glossary.ipynb#fedopt).
#
# ## What we saw
#
# - A round of these methods is a matrix, which can be measured from the models alone.
# - Its rows over the rounds show how a method works: all grey, a diagonal, blocks from the start, or blocks after a while.
# - Weight from other groups hurts, and weight from the client's own group helps. Methods that reach the same matrix in different ways end with nearly the same accuracy.

# %% tags=["claims"]
best = ("OCFL", "IFCA", "pFedGraph")
claims.check(
    "09_a_map_of_the_methods",
    {
        "Every round of the six methods is a mixing matrix (residuals below 0.0001)": residual
        < 1e-4,
        "OCFL and pFedGraph end with at least 95 % of the weight within the groups": (
            min(group["OCFL"], group["pFedGraph"]) > 0.95
        ),
        "OCFL, IFCA and pFedGraph, if they share within groups, end 3 points above Local, and FedAvg ends below Local": (
            min((accuracy[n] for n in best if group[n] > 0.95), default=-1)
            > accuracy["Local"] + 0.03
            and accuracy["FedAvg"] < accuracy["Local"]
        ),
        "EMD-CFL's scores within groups and between them overlap": within > between,
        "Without groups FedAvg is above Local": (
            without["FedAvg"]["accuracy"] > without["Local"]["accuracy"]
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write the matrix itself: clusters and numbers of samples are given (09.1). The graded version is in
#    [the exercises](exercises/09_a_map_of_the_methods_exercises.ipynb).
# 2. **Break.** Set `samples = 200`, so that a client has many images. How close does Local come to the best, and is FedAvg still below Local?
# 3. **Explain.** Multiply OCFL's matrices of all rounds. What does an entry of the product mean, and what does the product leave out?
#    <details><summary>A possible answer</summary>It says how much of one client's model reaches another client over all rounds if only the averages are counted. It leaves out that the models are trained between the averages.</details>
#
# **Go deeper.** [09b](09b_catalogue.ipynb) has the matrices of 26 methods, [what they cost](09b_catalogue.ipynb#what-does-it-cost), what a person must choose for each, and situations in
# which they [fail](09b_catalogue.ipynb#make-them-fail).
#
# ## References
#
# - R. Ye et al.: *Personalized federated learning with inferred collaboration graphs*. ICML 2023 (pFedGraph).
# - A. Ghosh et al.: *An efficient framework for clustered federated learning*. NeurIPS 2020 (IFCA).
#
# **Previous:** [08 Tutorial 022](08_tutorial_022.ipynb) · **Next:** [10 Hide and seek](10_privacy_and_clients_that_come_and_go.ipynb) ·
# [Appendix](09b_catalogue.ipynb) · [Glossary](99_glossary.ipynb)
