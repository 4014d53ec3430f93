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
# **Answer.** Nearly all of them average trained models and differ only in *whose*. So a round is a matrix with one row per client: its row
# says whose models are in the model that it gets. Read a row, and you know the method.
#
# **You will**
#
# - see six methods as six matrices, and read their rows,
# - measure such a matrix in four lines of code,
# - see that accuracy depends on how much comes from *other* groups,
# - choose a method by what the runs of this lesson show.
#
# **Before this:** [03 When should the server split?](03_ocfl_temperature.ipynb) and
# [04 Two older rules](04_sattler_and_briggs.ipynb). Lesson [05](05_emd_cfl.ipynb) explains EMD-CFL.
#
# **Study minutes:** 14. **Minutes on two cores:** 0.5
#
# **Source.** A graph of collaboration between clients, with weights, is the idea of pFedGraph (R. Ye et al., ICML 2023). Measuring it for all methods is ours.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import PowerNorm

from cflkit import datasets, methods, plots, simulation
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts
from cflkit.reproduce import claims, mixing, papers
from cflkit.reproduce.papers.emd_cfl import working_range

plots.style()

# %% [markdown]
# ## Six methods for the same twenty clients
#
# The clients are those of lesson 03: four groups of five, who turn their digits by 0, 90, 180 or 270 degrees.

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
everyone = torch.arange(20)


def clients_of(version):
    """A federation of 20 clients, in four groups ("four") or without groups ("base")."""
    images, split = shifts.make(digits, version, clients=20, samples=run.samples, seed=run.seed)
    home = Federation(images, split, "perceptron", training, seed=run.seed, engine="stacked")
    return home, split.clusters


federation, truth = clients_of("four")

# %% [markdown]
# Each method answers the question *with whom do I share?* in its own way:
#
# - **FedAvg** (McMahan et al.): with everybody. **Local**: with nobody.
# - **OCFL** (Zuziak et al.): with clients whose updates point the same way, from the first rise of the temperature on.
# - **IFCA** (Ghosh et al.): the server keeps $k$ models. Each client picks the one with the lowest loss on its own images, in every round.
# - **pFedGraph** (Ye et al.): no clusters. Each client gets weights of its own, which are larger for similar updates.
# - **EMD-CFL** (Zhang, Toni and Williams): with clients whose images look similar to a network, as far as a threshold allows. (We give it the best one that we know,
#   between its distances within groups and those between them. A server could not.)
#
# `mixing.watched` lets a method run as usual, and measures a matrix after each round.

# %% tags=["hide-input"]


def threshold_of(federation, truth):
    """The middle between EMD-CFL's distances within groups and between them, in round 1."""
    theta = federation.initial()[None]
    trained = federation.train(Jobs(theta, torch.zeros(20).long(), everyone), 0)
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

# %% [markdown]
# **Predict.** Draw a square of 20 by 20. Darken the cell in row $i$ and column $j$ by how much of client $j$'s trained model is in the next
# model of client $i$. What do FedAvg and Local look like? And OCFL, before and after it clusters?
#
# Move the slider of Figure 1.


# %% tags=["hide-input"]
def split_round(name):
    """The first round, from 1, in which a method's matrix is no longer that of FedAvg."""
    differs = [np.abs(matrix - 1 / 20).max() > 0.01 for matrix in watched[name].matrices]
    return differs.index(True) + 1 if any(differs) else run.rounds


def frame(name, t):
    """Draw a method's matrix in a round, and one of its rows as bars."""
    weights = watched[name].matrices[t - 1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), width_ratios=(1, 1.15))
    left.imshow(weights, cmap="Greys", norm=PowerNorm(0.5, 0, 1))
    for border in plots.cluster_borders(truth):
        left.axhline(border, color=plots.COLOURS[2], linewidth=1)
        left.axvline(border, color=plots.COLOURS[2], linewidth=1)
    outline = {"fill": False, "edgecolor": plots.COLOURS[1], "linewidth": 2}
    left.add_patch(plt.Rectangle((-0.5, run.client - 0.5), 20, 1, **outline))
    left.set(xticks=[], yticks=[], xlabel="… of trained models", ylabel="clients get a mixture …")
    left.set_title(f"{name}, round {t}")
    same = truth == truth[run.client]
    colours = [plots.COLOURS[0] if own else plots.COLOURS[4] for own in same]
    colours[run.client] = "black"
    right.bar(range(20), weights[run.client], color=colours)
    inside = weights[run.client][same].sum()
    right.set(ylim=(0, 1), xticks=[], xlabel="trained model of client …")
    right.set_title(f"row of client {run.client}: {inside:.0%} from its own group")
    key = {
        "its own model": "black",
        "its group": plots.COLOURS[0],
        "other groups": plots.COLOURS[4],
    }
    for place, (text, colour) in enumerate(key.items()):
        right.text(19.5, 0.92 - 0.08 * place, text, color=colour, fontsize=9, ha="right")
    return figure


clustered = split_round("OCFL")
shown = [("FedAvg", run.rounds), ("Local", run.rounds), ("OCFL", max(clustered - 1, 1))]
shown += [("OCFL", clustered), ("IFCA", 1), ("IFCA", run.rounds)]
shown += [("pFedGraph", run.rounds), ("EMD-CFL", run.rounds)]
plots.show_frames(
    [frame(*one) for one in shown],
    [f"{name}, round {t}" for name, t in shown],
    1,
    "**A method is the way it fills its rows.** Left: the matrix of one round; the darker a cell, the larger the weight; green lines separate the "
    "true groups. Right: the row in the orange frame, as bars.",
    "A square of 20 by 20 cells beside bars of one row. FedAvg is evenly grey, Local is a black diagonal, OCFL turns from even "
    "grey into four dark blocks on the diagonal, and EMD-CFL has dark cells outside the blocks.",
    first=3,
)

# %% [markdown]
# Read the framed row from left to right:
#
# - **FedAvg:** twenty equal bars, so everybody gets the same model. **Local:** one bar, its own.
# - **OCFL** is FedAvg until it clusters. Then four blocks appear at once, and a row is an equal mean of five.
# - **IFCA** begins with $k$ random models, so in round 1 a client shares with whoever picked the same. Later it has the same blocks as OCFL.
# - **pFedGraph** has the blocks as well. Nobody told it that there are groups.
# - **EMD-CFL** has dark cells outside of the blocks here: half of its row goes to the group that is half a turn away.
#
# ## The matrix
#
# Call $\tilde\theta_j$ the model that client $j$ has just trained, and $\theta_i$ the model that client $i$ predicts with after the round. A method that averages makes
#
# $$\theta_i = \sum_{j} W_{ij}\, \tilde\theta_j, \qquad \sum_j W_{ij} = 1 .$$
#
# The [mixing matrix](99_glossary.ipynb#mixing-matrix) $W$ has one row per client who receives, and one column per client who gives. Nobody has to
# tell us $W$, because it can be *measured*. The models are known before and after the averaging. There is one equation per parameter (4,810 here), and only 20
# unknowns per client, so least squares finds them:


# %%
def weights_of(trained, predicting):
    """The weights [m, m] with which trained models [m, P] make those for predicting [m, P]."""
    solution, *_ = torch.linalg.lstsq(trained.double().T, predicting.double().T)
    return solution.T


# %% tags=["nbval-check-output"]
theta = federation.initial()[None]
trained = federation.train(Jobs(theta, torch.zeros(20).long(), everyone), 0)
found = weights_of(trained, trained.mean(dim=0).expand_as(trained))
print("FedAvg's weights are all 1/20:", bool(np.allclose(found, 1 / 20, atol=1e-6)))
residual = max(max(method.residuals) for method in watched.values())
print("every round of all six methods is such a matrix:", residual < 1e-4)

# %% [markdown]
# The second line says that the measured $W$ gives each new model back, up to rounding, in every round and for each method. So the matrix leaves nothing out of
# the averaging.
#
# ## How much comes from other groups?
#
# A row has three parts: the client's own model, the rest of its group, and other groups.
#
# **Predict.** Which of the six methods do best: those with the most of their own, or those with the most of their group?

# %% tags=["hide-input"]
same = truth[:, None] == truth[None]
last = {name: method.matrices[-1] for name, method in watched.items()}
own = {name: np.diag(matrix).mean() for name, matrix in last.items()}
group = {name: (matrix * same).sum(axis=1).mean() for name, matrix in last.items()}
accuracy = {name: row["accuracy"] for name, row in history.summary().items()}
order = sorted(accuracy, key=accuracy.get)
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), sharey=True, width_ratios=(1.7, 1))
start = np.zeros(len(order))
parts = {
    "its own model": ([own[name] for name in order], "black", None),
    "the rest of its group": ([group[name] - own[name] for name in order], plots.COLOURS[0], None),
    "other groups": ([1 - group[name] for name in order], plots.COLOURS[4], "///"),
}
for label, (share, colour, hatch) in parts.items():
    share = np.maximum(share, 0)
    axes[0].barh(
        order, share, left=start, color=colour, hatch=hatch, edgecolor="white", label=label
    )
    start += share
axes[0].set(xlabel="share of a client's model, last round", xlim=(0, 1))
axes[1].plot([accuracy[name] for name in order], order, "o", color="black")
for name in order:
    axes[1].annotate(f" {accuracy[name]:.2f}", (accuracy[name], name), va="center", fontsize=9)
axes[1].set(xlabel="mean accuracy", xlim=(0.6, 1))
axes[1].grid(alpha=0.3)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
figure.suptitle("Best is all from one's own group, and from all of it", fontsize=10)
plots.show(
    figure,
    2,
    "Whose models are in a client's model after the last round, and the clients' mean accuracy on their own test images.",
    "Stacked horizontal bars beside dots. The methods at the top have a fifth of black and four fifths of blue, with accuracies near 0.9. "
    "Local, all black, and EMD-CFL, with much hatched yellow, lie in the middle, and FedAvg, mostly yellow, lies at the bottom.",
)

# %% [markdown]
# OCFL, IFCA and pFedGraph compare different things, and yet their bars and their accuracies are nearly the same. What a method compares only matters until it
# finds the groups. After that, all three average within them.
#
# Yellow hurts: it comes from models that read other digits, and FedAvg, with three quarters of it, is last. Black alone wastes the images of four partners, so Local is far
# below the best. EMD-CFL has some of both. Half of its weight is foreign, the other half helps, and it lands near Local. So there are two questions about any
# method: *how much foreign weight is left, and how many partners does a client have?*
#
# ## When does the matrix get there?
#
# The last round hides how a method got there. Figure 3 follows two numbers through the rounds.

# %% tags=["hide-input"]
table = history.table()
axis = range(1, run.rounds + 1)
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.0))
for number, name in enumerate(line_up):
    foreign = [1 - (matrix * same).sum(axis=1).mean() for matrix in watched[name].matrices]
    look = {"color": plots.COLOURS[(6, 7, 0, 2, 3, 4)[number]], "marker": plots.MARKERS[number]}
    axes[0].plot(axis, foreign, markersize=5, **look)
    mine = table[table["method"] == name]
    axes[1].plot(mine["round"], mine["accuracy"], markersize=5, label=name, **look)
axes[0].set(xlabel="round", ylabel="weight from other groups", ylim=(-0.03, 1))
axes[1].set(xlabel="round", ylabel="mean accuracy", ylim=(0.2, 1))
figure.legend(
    *axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8.5
)
figure.suptitle("When the foreign weight goes, the accuracy comes", fontsize=10)
plots.show(
    figure,
    3,
    "Left: the mean weight that comes from other groups, by round. Right: the mean accuracy.",
    "Two charts of six lines over rounds. Left, FedAvg stays at three quarters, OCFL falls from there to zero in one step, IFCA falls in "
    "the first rounds, and Local and pFedGraph are at zero. Right, OCFL's accuracy jumps in the same round.",
)

# %% [markdown]
# OCFL pays for its waiting with low accuracy in the first rounds, and jumps when it clusters. pFedGraph shares within the groups from round 1. IFCA's random models need a few rounds
# (two with the defaults), until each of them has found its group. After eight rounds, the three can hardly be told apart.
#
# ## How to choose
#
# One scene is not enough to choose. So we change it: first the clients have **no groups** at all, then IFCA is told a **wrong number** of models.

# %%
wrong = {f"IFCA, k = {number}": methods.make("ifca", k=number) for number in (2, 8)}
plain, _ = clients_of("base")
without = simulation.run(
    {name: make() for name, make in line_up.items()}, plain, run.rounds, progress=False
).summary()
misled = simulation.run(wrong, federation, run.rounds, progress=False).summary()

# %% tags=["hide-input", "nbval-ignore-output"]
base = history.summary()["FedAvg"]
print(f"{'':12s} four groups   no groups   bytes (FedAvg = 1)")
for name, row in (history.summary() | misled).items():
    sent = [each["total_bytes_up"] + each["total_bytes_down"] for each in (row, base)]
    other = f"{without[name]['accuracy']:9.2f}" if name in without else f"{'':9s}"
    print(f"{name:12s} {row['accuracy']:11.2f}   {other}   {sent[0] / sent[1]:5.1f}")

# %% [markdown]
# What these runs say, and no more:
#
# 1. **First compare FedAvg with Local.** Where Local is better (left column), the clients differ and foreign weight hurts. Where FedAvg is much
#    better (right column), groups have little to offer.
# 2. **Groups, but you do not know how many?** OCFL and pFedGraph found them without a number. OCFL sends what FedAvg sends, and pFedGraph a bit more.
# 3. **You know how many?** IFCA reached the same accuracy. It sends $k$ models to each client. With $k = 2$ groups must share a model, and it lost most of
#    its lead over Local. With $k = 8$ it lost nothing but bytes.
# 4. **No groups?** Then OCFL, pFedGraph and EMD-CFL lose nothing against FedAvg. IFCA loses a little, and Local a lot.
#
# > **An honest limit.** This is one data set, one network and clean groups of five. EMD-CFL is at a disadvantage: no threshold is right for it on these
# > clients, because its distances within groups and between them overlap. Lesson [05](05_emd_cfl.ipynb) has data that it is made for. A client *without* partners can
# > lose a lot with any method that insists on sharing ([09b](09b_catalogue.ipynb#make-them-fail)). And $W$ shows the averaging alone: methods
# > that pull on the training itself, such as Ditto or SCAFFOLD, do it before the matrix.
#
# ## What we saw
#
# - A round of these methods is a matrix, which can be measured from the models alone.
# - Its rows say which method it is: even grey, a diagonal, blocks at once, blocks after a while.
# - Weight from other groups hurts, and weight from the own group helps. Methods that get there by different ways end alike.

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
        "Those that share within groups are 3 points above Local, and FedAvg is below Local": (
            min(accuracy[name] for name in best if group[name] > 0.95) > accuracy["Local"] + 0.03
            and accuracy["FedAvg"] < accuracy["Local"]
        ),
        "EMD-CFL's distances within groups and between them overlap": within > between,
        "Without groups FedAvg is above Local": (
            without["FedAvg"]["accuracy"] > without["Local"]["accuracy"]
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write a function that divides a matrix's rows into own, group and other. The graded version is in
#    [the exercises](exercises/09_a_map_of_the_methods_exercises.ipynb).
# 2. **Break.** Set `samples = 200`. How far does Local come, and is foreign weight still worse than none?
# 3. **Explain.** Multiply OCFL's matrices of all rounds. What does an entry of the product mean, and why is the product not the whole story? (Models
#    are trained between the averages.)
#
# **Go deeper.** [09b](09b_catalogue.ipynb) has the matrices of 26 methods, [what they cost](09b_catalogue.ipynb#what-does-it-cost), what a person must choose for each, and five situations in
# which they [fail](09b_catalogue.ipynb#make-them-fail).
#
# ## References
#
# - R. Ye et al.: *Personalized federated learning with inferred collaboration graphs*. ICML 2023 (pFedGraph).
# - A. Ghosh et al.: *An efficient framework for clustered federated learning*. NeurIPS 2020 (IFCA).
#
# **Previous:** [08 Tutorial 022](08_tutorial_022.ipynb) · **Next:** [10 What an update gives away](10_privacy_and_clients_that_come_and_go.ipynb) ·
# [Appendix](09b_catalogue.ipynb) · [Glossary](99_glossary.ipynb)
