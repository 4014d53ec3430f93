# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09b A catalogue: 26 methods, what they cost, and where they fail
#
# This appendix belongs to [09 A round is a matrix](09_a_map_of_the_methods.ipynb), and is for readers who want to check its results, or who look for
# a method that the lesson leaves out. It runs 26 methods and variants side by side, says what each of them compares and what a person must choose, and measures what they send.
#
# **With the defaults**, all methods that share models only within the true groups are about equally good, and better than clients that train alone. They fail in different situations: [a table](#make-them-fail) says where, and [a list of questions](#which-method) helps to choose.
#
# **Study minutes:** 50. **Minutes on two cores:** 1
#
# **Source.** The idea of a matrix of collaboration between clients stands behind pFedGraph (Ye et al., 2023). Measuring it for
# all methods is ours.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.colors import PowerNorm
from sklearn.isotonic import IsotonicRegression

from cflkit import datasets, methods, plots, simulation
from cflkit.divergence import class_directions, pairwise, principal_angles
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts
from cflkit.simulation import mixing
from cflkit.reproduce import claims, papers
from cflkit.reproduce.papers.emd_cfl import working_range
from cflkit.simulation.evaluation import client_scores

plots.style()

# %% [markdown]
# ## Parameters
#
# The federation is small on purpose, because all methods together train more than a thousand models.

# %% tags=["parameters"]
clients = 12  # m, a multiple of four
samples = 80  # training and validation images per client
local_epochs = 5  # passes over a client's data per round
batch_size = 16  # images per local step
lr = 0.05  # learning rate of the clients
momentum = 0.9  # of the clients
rounds = 6  # of communication
seed = 0  # data, initial models, batch orders

# %%
run = papers.lessons.MapOfTheMethods.of(globals())

# %% [markdown]
# ## One federation for all
#
# The images are handwritten digits of 8 × 8 pixels. There are four groups of clients, which see them turned by 0, 90, 180 and 270
# degrees. All clients have a network with one hidden layer of 64 units. Such a network does not know that a turned digit is still
# a digit. And a 6 that is turned by 180 degrees looks like a 9, so two groups can give different labels to nearly the same image.
# One model for all cannot be right for both. The networks are small and alike, so the kit trains them as one stack
# (`engine="stacked"`).


# %%
def home(images, split, epochs=run.local_epochs):
    """The federation of these clients, with the lesson's network and training."""
    training = LocalTraining(epochs, run.batch_size, lr=run.lr, momentum=run.momentum)
    return Federation(images, split, "perceptron", training, seed=run.seed, engine="stacked")


# %%
def clients_of(version):
    """The images and the clients of one version of the data."""
    digits = datasets.load("digits-8x8")
    return shifts.make(digits, version, clients=run.clients, samples=run.samples, seed=run.seed)


images, split = clients_of("four")
federation = home(images, split)
truth = split.clusters
everyone = torch.arange(run.clients)
print(f"{run.clients} clients in {truth.max() + 1} groups")
tests = sorted(map(len, split.test))
print(
    f"{len(split.train[0])} training images per client, and {tests[0]} to {tests[-1]} test images"
)
print(f"{federation.parameters:,} parameters per model")

# %% [markdown]
# ## A round is a matrix
#
# As in lesson 09, $\tilde\theta_j$ is the model that client $j$ has just trained, and client $i$ predicts with a mean of such models:
#
# $$\theta_i = \sum_{j} M_{ij}\, \tilde\theta_j, \qquad \sum_j M_{ij} = 1 .$$
#
# The weights are the [mixing matrix](99_glossary.ipynb#mixing-matrix) $M$, and least squares measure it. In federated averaging with equally many samples per client, every entry is $1/m$:


# %%
def weights_from_scratch(trained, predicting):
    """The weights [m, m] with which trained models [m, P] make the models [m, P] for predicting."""
    solution, *_ = torch.linalg.lstsq(trained.double().T, predicting.double().T)
    return solution.T


# %%
theta = federation.initial()[None]
trained = federation.train(Jobs(theta, torch.zeros(run.clients).long(), everyone), 0)
mean = trained.mean(dim=0).expand_as(trained)
found = weights_from_scratch(trained, mean)
print(f"federated averaging: all weights between {found.min():.6f} and {found.max():.6f}")
print(f"1/m = {1 / run.clients:.6f}")

# %% [markdown]
# The function in the package also handles clients that train several models. Their weights are added. If a client
# predicts with a mixture of several models, we take the mean of these models. The function also returns a **residual**: the part of the new models that no mean of the trained ones
# explains. It is 0 if the round only averages.

# %% tags=["nbval-check-output"]
matrix, residual = mixing.mixing_matrix(trained, everyone, mean)
print("equals our own:", bool(np.allclose(matrix, found, atol=1e-6)))
print("residual below a millionth:", residual < 1e-6)

# %% [markdown]
# <a id="the-methods"></a>
#
# ## The methods
#
# Here are the methods of this page. ([One table](methods.md) has all methods of the kit.) They answer
# three questions in different ways: what do they compare, when do they do it, and what must a person choose? You do not have to
# know them yet. A **proximal term** is a penalty that grows with the distance from
# another model. **Principal angles** compare the main directions of two sets of images.
#
# | method | what is compared | when | what a person must choose | lesson |
# |---|---|---|---|---|
# | FedAvg | nothing | – | – | [01](01_federated_averaging.ipynb) |
# | FedProx | nothing | – | the weight μ of the proximal term | [05b](05b_emd_cfl_controls.ipynb) |
# | SCAFFOLD | nothing | – | – | |
# | Sattler (CFL) | updates, by angle | in every round | nothing here (it chooses its two thresholds itself by default) | [04](04_sattler_and_briggs.ipynb) |
# | Briggs | updates, by angle | once, after a given round | a distance | [04](04_sattler_and_briggs.ipynb) |
# | OCFL | updates, by angle | once, when the temperature rises | what its clusterer needs ($k$ for k-means) | [03](03_ocfl_temperature.ipynb) |
# | EMD-CFL | embeddings of images | once, after the first training | ε | [05](05_emd_cfl.ipynb) |
# | PACFL | images, by principal angles | once, before any training | an angle | [05b](05b_emd_cfl_controls.ipynb) |
# | FedClust | parameters of the last layer | once, after the first training | a distance | [05b](05b_emd_cfl_controls.ipynb) |
# | FlexCFL | updates, by their main directions | once, after the first training | $k$ | [05b](05b_emd_cfl_controls.ipynb) |
# | Signatures | gradients, losses or models | once, after a warm-up | $k$ | [08b](08b_tutorial_022_controls.ipynb) |
# | IFCA | losses of $k$ models | in every round | $k$ | [05b](05b_emd_cfl_controls.ipynb) |
# | FeSEM | parameters | in every round | $k$ | [05b](05b_emd_cfl_controls.ipynb) |
# | CFLGP | gradients, accumulated | in every second round | $k$ | [05b](05b_emd_cfl_controls.ipynb) |
# | FedEM, FedRC | losses of $k$ models, image by image | in every round | $k$ | |
# | FedCE | losses of $k$ models | in every round | $k$ | |
# | FedSoft | losses of $k$ models, image by image | in every second round | $k$, and the weight μ of the proximal term | |
# | pFedGraph | updates, by angle | in every round | two weights | |
# | FedSaC | updates, and spaces of features | in every round | three weights | |
# | Ditto | nothing | – | the weight λ of the proximal term | |
#
# Two more are for comparison: the **Oracle** knows the true groups, and **Local** means that each client trains alone. OCFL comes with four clustering algorithms:
# HDBSCAN (HDB), k-means (KM), affinity propagation (AFF) and mean shift (MS).
#
# A few words about the methods that no lesson has:
#
# - **FedEM** treats every image as a draw from one of $k$ distributions. For each image, a client computes how probable each of the $k$ models is. These are its
#   **responsibilities**. Then it trains all $k$ models, with the responsibilities as weights. **FedRC** also divides these probabilities
#   by how frequent the image's class is in each model's share of the data.
# - **FedCE** keeps a score per client and model. The best model's score rises most. A client trains the model with the smallest loss. Each model is then a mean over all clients, with weights from the scores.
# - **FedSoft** counts for how many images each of the $k$ models is best. A client trains *one* model, with a proximal term that keeps it near the $k$ models, weighted by these counts.
# - **pFedGraph** chooses a client's row of $M$ directly. It minimises a sum of two terms: rows should be close to the shares of samples, and similar clients should weigh more.
#   **FedSaC** adds a term for clients whose features are different.
# - **Ditto** trains two models per client: one for FedAvg, and a personal one that a proximal term with weight λ keeps near it.
# - **SCAFFOLD** corrects the local steps, so that clients that differ do not drift apart. It still has one model.
#
# ## Thresholds
#
# Methods that need the number of groups get the true number, $k = 4$. Four methods need a threshold. For Briggs we take a cosine distance of 0.5. For EMD-CFL, PACFL and FedClust we take the middle between the
# largest distance within a group and the smallest between two groups, in the first round. If the first is larger than the second, there is no gap. Then no ε is right for EMD-CFL, and the middle is a compromise. So the methods get help that a real server does not
# have. (EMD-CFL subtracts a reference from its distances. So they can be negative.) For longer runs on Rotated MNIST, report 95 shows [what each method was told, and what it costs](95_report_emd_cfl.ipynb#what-each-method-was-told), and
# the ARI over [every threshold](95_report_emd_cfl.ipynb#every-threshold-in-its-own-unit).


# %% tags=["hide-input"]
def best_thresholds():
    """For three methods, the middle of the working range on this federation."""
    emd = methods.make("emd-cfl")
    emd.setup(federation.server, theta[0])
    federation.converse(emd.meet(everyone, trained))
    pixels = [federation.inputs(rows) for rows in split.train]
    angles = principal_angles([class_directions(x.flatten(1), y) for x, y in pixels])
    distances = {
        "EMD-CFL": emd.scores.numpy(),
        "PACFL": angles,
        "FedClust": pairwise(trained[:, federation.server.last_layer()], "euclidean"),
    }
    return {name: working_range(matrix, truth) for name, matrix in distances.items()}


ranges = best_thresholds()
middle = {name: float(np.mean(ends)) for name, ends in ranges.items()}
for name, (low, high) in ranges.items():
    gap = "a gap" if low < high else "no gap"
    print(f"{name:9s} within groups up to {low:.2f}, between from {high:.2f}: {gap}")


# %% [markdown]
# The next cell has the methods that give each client one cluster.

# %%
BY_SAMPLES = {"weighting": "samples"}  # otherwise some methods give all clients the same weight


def with_clusters(truth, k):
    return {
        "Sattler": methods.make("sattler", min_rounds=0, **BY_SAMPLES),
        "Briggs": methods.make("briggs", rounds=1, threshold=0.5, **BY_SAMPLES),
        "OCFL-KM": methods.make("ocfl", clusterer="kmeans", options={"n_clusters": k}),
        "OCFL-AFF": methods.make("ocfl", clusterer="affinity"),
        "OCFL-MS": methods.make("ocfl", clusterer="meanshift"),
        "OCFL-HDB": methods.make("ocfl", clusterer="hdbscan"),
        "EMD-CFL": methods.make("emd-cfl", epsilon=middle["EMD-CFL"]),
        "PACFL": methods.make("pacfl", angle=middle["PACFL"]),
        "FedClust": methods.make("fedclust", threshold=middle["FedClust"]),
        "FlexCFL": methods.make("flexcfl", k=k, **BY_SAMPLES),
        "Signatures": methods.make("signatures", warm_up=1, k=k),
        "IFCA": methods.make("ifca", k=k, **BY_SAMPLES),
        "FeSEM": methods.make("fesem", k=k, **BY_SAMPLES),
        "CFLGP": methods.make("cfl-gp", k=k, **BY_SAMPLES),
        "Oracle": methods.make("oracle", truth=truth),
    }


# %% [markdown]
# The other methods follow. They have one model for everybody, a mixture of $k$ models per client, or a model per client:


# %%
def without_clusters(k):
    return {
        "FedAvg": methods.make("fedavg"),
        "FedProx": methods.make("fedprox"),
        "SCAFFOLD": methods.make("scaffold"),
        "FedEM": methods.make("fedem", k=k),
        "FedRC": methods.make("fedrc", k=k),
        "FedCE": methods.make("fedce", k=k),
        "FedSoft": methods.make("fedsoft", k=k),
        "pFedGraph": methods.make("pfedgraph"),
        "FedSaC": methods.make("fedsac"),
        "Ditto": methods.make("ditto"),
        "Local": methods.make("local"),
    }


def line_up(truth, k=4):
    return with_clusters(truth, k) | without_clusters(k)


# %% [markdown]
# All of them run [in lockstep](99_glossary.ipynb#lockstep). All methods start from the same model, and a client has the same
# order of batches in all of them. A method with $k$ models also needs $k - 1$ other random models. Where two
# methods ask for the same training, the kit runs it once. `mixing.watched` wraps a method. The method works as before, and its matrices are measured on the
# way.


# %%
def in_lockstep(lines, place, rounds):
    """What methods have after these rounds. If a method diverges, the page ends, and says where."""
    result = simulation.run(lines, place, rounds, progress=False)
    for name, end in result.summary().items():
        if "diverged_in" in end:  # without the others, it raises its error
            simulation.run({name: lines[name]}, place, rounds, progress=False)
    return result


# %%
watched = mixing.watched(line_up(truth))
result = in_lockstep(watched, federation, run.rounds)
saved = 1 - result.trained / result.requested
print(f"{len(watched)} methods and variants, {run.rounds} rounds, {result.minutes:.1f} minutes")
print(f"{result.requested} trainings asked for, {result.trained} run: {saved:.0%} saved")
print(f"peak memory of this notebook so far: {result.peak_memory:.2f} GiB")
print(f"largest residual of all matrices: {max(max(w.residuals) for w in watched.values()):.0e}")

# %% [markdown]
# The residual says that the idea holds for all of them: up to rounding, each new model is a mean of the trained ones. Two things are *not* in the matrix. Many methods also change how a client trains: by a pull towards another model, a correction of its steps, or weights for its images.
# That happens before the averaging. And a client with a mixture averages the *predictions* of its models, while $M$ describes the mean of the models.
#
# Figure 1 shows the matrices of twelve methods in four of the rounds. White is no weight and black is all of it. The clients are sorted, and green lines separate the true groups. Choose a
# method, read its row from left to right, and say in one sentence what it does.

# %% tags=["hide-input"]
shown = {
    "one model for all, or one per cluster": [
        "FedAvg",
        "Sattler",
        "OCFL-HDB",
        "IFCA",
        "FeSEM",
        "EMD-CFL",
    ],
    "mixtures, and models of one's own": [
        "Local",
        "FedSoft",
        "FedEM",
        "FedCE",
        "pFedGraph",
        "FedSaC",
    ],
}
times = sorted({1, 2, 3, run.rounds} & {*range(1, run.rounds + 1)})
figure, axes = plt.subplots(
    6,
    2 * len(times) + 1,
    figsize=(7.6, 6.6),
    width_ratios=[*[2] * len(times), 1, *[2] * len(times)],
)
for row in axes:
    row[len(times)].axis("off")
for (title, names), half in zip(
    shown.items(), (axes[:, : len(times)], axes[:, len(times) + 1 :]), strict=True
):
    for row, name in zip(half, names, strict=True):
        for t, ax in zip(times, row, strict=True):
            weights = watched[name].matrices[t - 1]
            drawn = ax.imshow(weights, cmap="Greys", norm=PowerNorm(0.5, 0, 1))
            for border in plots.cluster_borders(truth):
                ax.axhline(border, color=plots.COLOURS[2], linewidth=0.8)
                ax.axvline(border, color=plots.COLOURS[2], linewidth=0.8)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(name)
    for t, ax in zip(times, half[0], strict=True):
        ax.set_title(f"round {t}", fontsize=9)
    head = half[0, 0].annotate(title, (0, 1.5), xycoords="axes fraction", fontsize=10)
    head.set_in_layout(False)
figure.get_layout_engine().set(rect=(0, 0, 1, 0.95))  # room for the heads
figure.colorbar(
    drawn,
    ax=axes,
    location="bottom",
    ticks=[0, 1 / run.clients, 4 / run.clients, 1],
    format="%.2f",
    shrink=0.5,
    aspect=40,
    label="weight of client j's model (column) in client i's (row)",
)
plots.show(
    figure,
    1,
    "Mixing matrices, as measured. Rows of a matrix are clients that predict, and columns are clients that "
    "have trained. Green lines separate the true groups. Grey levels follow the square root of the weight.",
    "Two columns of small square matrices in grey, six methods each, over four rounds. FedAvg, Sattler and "
    "FedEM are evenly grey. OCFL-HDB is grey at first and then has four dark blocks. Local and FedSoft have a "
    "black diagonal. pFedGraph has four blocks from the first round. FedSaC has dark cells outside the blocks.",
)

# %% [markdown]
# With the defaults, the figure tells these stories:
#
# - **FedAvg** is evenly grey: everybody has the same mean. **Sattler**'s method looks the same, as it has not split yet.
# - **OCFL** waits, and then its blocks appear at once. They never change again. **FeSEM** has them from the first round on.
# - **IFCA** begins with random models. A client computes the loss of all $k$ models and trains the best one. In the first rounds, the choice changes. In the last
#   round, the first and the last group share one model.
# - **EMD-CFL** has no good threshold on these data, as we saw. It joins clients whose images are rotated by 180° relative to each other. Some
#   digits look alike upside down, which may be the reason. Its clusters need not be blocks: a client gets the mean of all clients that it agrees with, and this may leave out itself.
# - **Local** is the identity. **FedSoft** is, too: a client predicts with its own model, which is only *pulled* to a mixture.
# - **FedEM** has four models, and it is grey by construction. Each of the four is a mean over all clients, so each mixture of them is such a mean, too. A client
#   has influence in another way: through the weights of its images while it trains.
# - **FedCE** is nearly FedAvg in these rounds, as its scores differ little.
# - **pFedGraph** learns the weights by itself, and finds the blocks without being told that there are groups.
# - **FedSaC** looks for clients that *complement* each other. It begins with the blocks. Then the weight moves to groups that are
#   rotated by 180°.
#
# ## Whose models do you get?
#
# Figure 2 shows three shares per method: how much of the last averaging comes from the client itself, from the rest of its group,
# and from other groups. The influence of earlier rounds is not in the bars. The right panel has the accuracy. How far do the bars
# explain it?

# %% tags=["hide-input"]
same = truth[:, None] == truth[None]
summary = result.summary()
table = pd.DataFrame(
    {
        name: {
            "own": np.diag(line.matrices[-1]).mean(),
            "group": (line.matrices[-1] * same).sum(axis=1).mean(),
            "accuracy": summary[name]["accuracy"],
            "megabytes": (summary[name]["total_bytes_down"] + summary[name]["total_bytes_up"])
            / 1e6,
            "trainings": summary[name]["total_trainings"] / run.clients / run.rounds,
            "ari": summary[name].get("ari", np.nan),
        }
        for name, line in watched.items()
    }
).T

# %% tags=["hide-input"]
ordered = table.sort_values("accuracy", kind="stable")
places = np.arange(len(ordered))
figure, axes = plt.subplots(1, 2, figsize=(7.4, 5.4), sharey=True, width_ratios=[3, 2])
left = np.zeros(len(ordered))
parts = {
    "the client itself": ordered["own"],
    "the rest of its group": ordered["group"] - ordered["own"],
    "other groups": 1 - ordered["group"],
}
for (label, share), colour in zip(parts.items(), (5, 0, 1), strict=True):
    axes[0].barh(places, share, left=left, color=plots.COLOURS[colour], label=label)
    left += share
axes[1].plot(ordered["accuracy"], places, "o", color="black")
axes[1].axvline(table.loc["Local", "accuracy"], color="0.6", linestyle="--", linewidth=1)
axes[0].set_yticks(places, ordered.index)
axes[0].set(xlabel="share of a client's model", xlim=(0, 1))
axes[1].set(xlabel="mean accuracy (dashed: alone)")
axes[1].grid(alpha=0.3)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plots.show(
    figure,
    2,
    "Where the last round's models come from, and the mean accuracy on the clients' own test images. "
    "Methods are sorted by accuracy.",
    "Stacked horizontal bars beside dots. With the defaults, nearly all methods at the top have a third of light blue "
    "and two thirds of dark blue, with accuracies near 0.92. Bars with light blue alone are near 0.87. Bars "
    "with much orange lie at the bottom, below 0.8.",
)

# %% [markdown]
# With the defaults, there are three layers:
#
# - At the top, there is almost no orange, and much dark blue. These clients share with their own group and, up to a little mixing by FlexCFL, *only* with it.
# - In the middle, there are two kinds. Some bars are light blue alone: in the last round, no other trained model is averaged in.
#   In Local, none has ever been. In FedSoft and Ditto, other models act through a pull during the training. Others have a quarter
#   to a third of orange, and their mean accuracy is near that of Local. A mean can hide much. In IFCA, two groups share one
#   model, and two have a model of their own.
# - At the bottom, there is more orange than blue.
#
# So a first question about any method is: *how much orange is left?* The matrix is not everything, though. SCAFFOLD, FedAvg and FedEM have the same bar, and quite different accuracies. They differ in the training. (There are about 1,400 test images. Differences below one point, such as
# that between the first method and the oracle, can be chance.)
#
# ## Is this only the beginning?
#
# Six rounds are few. So we train some of the methods five times as long. A simple rival joins them: **fine-tuning**. Each client
# trains FedAvg's model for one more round on its own data, and keeps the result (`fedavg-ft`; [03b](03b_ocfl_controls.ipynb)).

# %%
PATIENT = ["Oracle", "FedCE", "Local", "FedAvg"]
lines = {name: line for name, line in line_up(truth).items() if name in PATIENT}
lines["fine-tuned"] = methods.make("fedavg-ft")
long = in_lockstep(lines, federation, 5 * run.rounds).table()
after = long.pivot(index="method", columns="round", values="accuracy").loc[PATIENT]
print(after[[run.rounds, 2 * run.rounds, 5 * run.rounds]].round(3).to_string())

# %%
tuned = long.query("method == 'fine-tuned'").set_index("round")["accuracy"]
for rounds in (run.rounds, 5 * run.rounds):
    print(f"FedAvg of round {rounds}, fine-tuned: {tuned[rounds]:.3f}")

# %% [markdown]
# With the defaults, FedAvg comes near Local, but does not pass it. FedCE, which was at the bottom, comes near the oracle: a method that searches step by
# step needs time. The order in Figure 2 is an order for short training. After 30 rounds, the oracle is still several points above
# Local and FedAvg, but FedAvg still rises. So this run does not show how it ends. Fine-tuning lifts FedAvg's model of round 6
# from 0.66 to 0.86, and that of round 30 slightly above Local. It stays below the oracle.
#
# <a id="what-does-it-cost"></a>
#
# ## What does it cost?
#
# Figure 3 shows the accuracy against what is sent, in both directions, during all rounds. Bytes are given in multiples of FedAvg's. Open markers train more than one
# model per client and round. Which methods would you not choose, because another one is both better and cheaper?

# %% tags=["hide-input"]
KINDS = {
    "knows the groups": ["Oracle"],
    "one model": ["FedAvg", "FedProx", "SCAFFOLD"],
    "mixtures": ["FedEM", "FedRC", "FedCE", "FedSoft"],
    "own models": ["pFedGraph", "FedSaC", "Ditto", "Local"],
}
kind_of = {name: kind for kind, names in KINDS.items() for name in names}
table["kind"] = [kind_of.get(name, "clusters") for name in table.index]
table["bytes"] = table["megabytes"] / table.loc["FedAvg", "megabytes"]


def spread(heights, gap):
    """Places for labels near these ascending heights, with a gap between neighbours."""
    steps = gap * np.arange(len(heights))
    return IsotonicRegression().fit_transform(steps, heights - steps) + steps


def labels_of(rows):
    """The text and place of one label per method, or per crowd of methods at nearly one place."""
    for _, crowd in rows.groupby((rows["accuracy"].diff() > 0.01).cumsum()):
        if len(crowd) > 5:
            text = f"{len(crowd)} methods (see the table)"
            yield text, crowd["bytes"].min(), crowd["accuracy"].mean()
        else:
            yield from zip(crowd.index, crowd["bytes"], crowd["accuracy"], strict=True)


figure, ax = plt.subplots(figsize=(7.8, 5))
for number, kind in enumerate(("clusters", *KINDS)):
    look = {"marker": plots.MARKERS[number], "color": plots.COLOURS[number], "linestyle": ""}
    for several, rows in table[table["kind"] == kind].groupby(table["trainings"] > 1):
        fill = {"markerfacecolor": "white"} if several else {}
        ax.plot(rows["bytes"], rows["accuracy"], **look, **fill)
    ax.plot([], [], label=kind, **look)
ax.plot([], [], "o", color="0.4", markerfacecolor="white", label="trains several models")
columns = (table["bytes"] * 2).round()  # labels of markers that are nearly above each other
for column, rows in table.drop(index="Oracle").sort_values("accuracy").groupby(columns):
    labels = [*labels_of(rows)]
    heights = spread(np.array([height for _, _, height in labels]), 0.02)
    side, align = (-0.12, "right") if column == 2 else (0.12, "left")
    for (text, x, y), height in zip(labels, heights, strict=True):
        end = (1 if column == 2 else x) + side
        ax.plot([x, end], [y, height], "0.7", linewidth=0.6, zorder=0)
        ax.text(end + side / 6, height, text, fontsize=8, va="center", ha=align)
ax.set(xlabel="bytes exchanged, in multiples of FedAvg's", ylabel="mean accuracy")
ax.set_xlim(-0.2, table["bytes"].max() + 0.7)
bottom, top = ax.get_ylim()[0], table["accuracy"].max()  # labels above are no accuracies
ax.set_yticks([tick for tick in ax.get_yticks() if bottom <= tick <= top])
ax.grid(alpha=0.3)
figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
plots.show(
    figure,
    3,
    "Accuracy after the last round against the bytes that are sent in both directions. Open markers train "
    "more than one model per client and round. The height of a label is not an accuracy: only the marker is.",
    "A scatter plot with one marker and name per method. With the defaults, ten methods are at the top "
    "left, with an accuracy near 0.92 and FedAvg's bytes. Local has no bytes and 0.87. EMD-CFL, FedEM and FedRC "
    "are far to the right, and lower.",
)

# %% tags=["hide-input"]
columns = {"accuracy": "7.3f", "ari": "6.2f", "bytes": "7.2f", "trainings": "11.1f"}
print(f"{'method':12s}accuracy   ARI  bytes  trainings   (bytes: FedAvg = 1)")
for name, row in table.sort_values("accuracy", ascending=False).iterrows():
    numbers = "".join(f"{row[column]:{form}}" for column, form in columns.items())
    print(f"{name:12s}{numbers}".replace("nan", "  –"))

# %% [markdown]
# With the defaults, the first bytes buy five points: that is the step from Local to the methods at the top. More bytes than FedAvg's buy nothing. The expensive ones send $k$ models to each client (IFCA, FedEM, FedRC, FedCE, FedSoft), or the models of other clients for the distances (EMD-CFL). In between, pFedGraph, FedSaC and SCAFFOLD send one more vector for the training, and CFLGP also
# sends gradients. EMD-CFL pays only once, in the first round. (The kit sends embeddings with 8 bytes per number, and models with 4. With 4 for both, EMD-CFL would pay less.) Over 100 rounds instead of 6, its total would fall from 3.8 times FedAvg's bytes to about 1.2 times, which is $1 + (3.8 - 1) \cdot 6/100$. Signatures and
# PACFL, which also pay only once, would fall to FedAvg's bytes. Taken literally, the answer to the question above leaves only Briggs and Local. But the
# methods from Signatures to CFLGP in the list are within a point of Briggs, and one run cannot tell them apart.
#
# <a id="make-them-fail"></a>
#
# ## Make them fail
#
# So far, the data had four clear groups of three. Now one thing changes at a time. This takes longer than the rest of the page, so
# the kit has done it before, with three seeds for both the data and the training. FLUX, StoCFL, CLoVE and FedRep, which the [table of all methods](methods.md) describes, and fine-tuned FedAvg join the methods of
# this page. The program is `notebooks/src/failures.py`, and its results are in `data/failures.csv`. They come from the
# default parameters, and other parameters above do not change them. The thresholds are chosen on the four groups of each seed, as above, and stay as they are.
#
# - **IID**: no groups at all. All clients draw from one distribution.
# - **Images**: each client has 40, 20, 10 or 5 training images instead of 72. It trains more epochs per round, so that the number of steps is nearly the same.
# - **Sizes**: in the column *1/r*, the clients get the ranks 1 to 12 at random, and a client with rank $r$ keeps $1/r$ of its training images. In *half*, one client keeps all of its images, which are half of those of the federation. Epochs stay, so that small clients take fewer steps.
# - **Wrong labels**: 20 % or 40 % of each client's training images have the label of another class.
# - **Five classes**: each client has only five of the ten classes, in training and in tests, drawn for each client. The rotations stay. We measure after 6 rounds, as in all other columns, and after 30.
# - **6/3/2/1**: the groups have six, three, two and one clients. We look at all clients, and then at the single one.
# - **Alone**: three groups of three, and a group with one client. We look at this client.
# - **Between**: half of one client's images are from the first group, and half are from the last. We look at this client.
# - **Wrong $k$**: methods that need the number of clusters are told 2, 3, 5 or 6 instead of 4.
#
# Each cell of Figure 4 compares a method with the better of the two simplest ones, FedAvg and Local, in the same seed. Purple means that the method is better. Orange
# means that one of the two simple ones is. Read it by columns first: where does even the oracle lose? Then look for a row without orange.

# %%
failures = pd.read_csv(claims.TABLE.with_name("failures.csv"), keep_default_na=False)
levels = ["situation", "value"]
order = failures[levels].drop_duplicates().agg(tuple, axis=1).tolist()
measured = failures.pivot(index=[*levels, "seed"], columns="method", values="accuracy")
simple = measured[["FedAvg", "Local"]].max(axis=1)
simple = simple.fillna({place: simple["base", "", place[2]] for place in simple.index})  # for k
gains = 100 * measured.sub(simple, axis=0)
gain = gains.groupby(level=levels).mean().loc[order].T
agree = np.sign(gains).groupby(level=levels).nunique().loc[order].T == 1

# %% tags=["hide-input"]
ROWS = [
    "knows the groups",
    "clusters, not told k",
    "clusters, told k",
    "mixtures",
    "own models",
    "one model",
]
row_of = {name: ROWS.index(kind_of.get(name, ROWS[1])) for name in gain.index}
row_of |= {name: 2 for name in gain.index[gain["k"].notna().any(axis=1)] if row_of[name] == 1}
row_of["FedRep"] = row_of["FedAvg-FT"] = ROWS.index("own models")
rows = pd.DataFrame({"kind": row_of, "mean": -gain.mean(axis=1)}).sort_values(["kind", "mean"])
gain, kinds = gain.loc[rows.index], rows["kind"].tolist()

figure, ax = plt.subplots(figsize=(7.8, 7.6))
drawn = ax.imshow(gain, cmap="PuOr", vmin=-20, vmax=20, aspect="auto")
for (row, column), value in np.ndenumerate(gain.to_numpy()):
    if not np.isnan(value):
        text = f"{value:+.0f}" if abs(value) >= 0.5 else "0"
        text = text if agree.loc[gain.index[row]].iloc[column] else f"({text})"
        look = {"color": "white" if abs(value) > 12 else "black", "fontsize": 7}
        ax.text(column, row, text, ha="center", va="center", **look)
for kind in range(1, len(ROWS)):
    ax.axhline(kinds.index(kind) - 0.5, color="black", linewidth=1.2)
    middle_row = kinds.index(kind) + (kinds.count(kind) - 1) / 2
    ax.text(len(order) - 0.3, middle_row, ROWS[kind], rotation=270, va="center", fontsize=8)
HEADS = {"base": "four\ngroups", "labels wrong": "wrong\nlabels", "five classes": "five\nclasses"}
HEADS |= {"alone": "alone\n", "between": "be-\ntween", "k": "wrong k"}
names = [name for name, _ in order]
for name in dict.fromkeys(names):
    ax.axvline(names.index(name) - 0.5, color="black", linewidth=1.2)
    middle_column = names.index(name) + (names.count(name) - 1) / 2
    ax.text(middle_column, -0.7, HEADS.get(name, name), ha="center", fontsize=8)
ticks = [value.replace("0.2", "20 %").replace("0.4", "40 %") for _, value in order]
ax.set_xticks(range(len(order)), ticks, fontsize=8)
ax.set_yticks(range(len(gain)), gain.index)
ax.tick_params(length=0)
label = "points of accuracy, against the better of FedAvg and Local"
figure.colorbar(drawn, extend="both", label=label, location="bottom", shrink=0.6, aspect=40)
plots.show(
    figure,
    4,
    "How many points of accuracy a method gains for the affected clients, over the better of FedAvg and Local: "
    "means over three seeds. In brackets, the three seeds do not agree in sign. "
    "Empty cells: the method is not told a number of clusters.",
    "A table of coloured cells with 31 methods and 20 situations. Columns of few images and of wrong labels are "
    "mostly purple in the upper half. Both columns of five classes are orange or white everywhere. In the columns "
    "of a client that is alone, OCFL-HDB, OCFL-AFF and pFedGraph are dark orange, and FlexCFL, FedClust and PACFL are white.",
)

# %% [markdown]
# Each of these sentences holds in all three seeds. All are for this small network and, where they do not say 30, for six rounds:
#
# - **IID.** Where there are no groups, no method gains a point over FedAvg. FlexCFL, FeSEM, CFLGP, OCFL-KM and Signatures must make four clusters, so that each model gets less data, and lose 1 to 4 points.
#   Briggs, PACFL, FedClust and pFedGraph lose nothing. OCFL-AFF is not told $k$ either, and loses 1 to 3 points.
# - **Few images.** If a client has fewer images and takes as many steps, sharing is worth more: the oracle gains 4 to 5 points at 72 images, and 13 or more at 20, 10 and 5. But groups become harder to find. At 20 images, OCFL-HDB, OCFL-AFF, OCFL-KM, FlexCFL and
#   FeSEM still find the true groups (ARI 1). At 10, OCFL-AFF and OCFL-KM do. At 5, no method comes nearer to the oracle than 9 points. A threshold that was right for 72 images is wrong for 20: FedClust then leaves every client alone.
# - **Sizes.** If clients have unequal numbers of images, groups are worth much and are hard to find. With $1/r$, the oracle gains 13 to 17 points and EMD-CFL 8 to 13. All four of OCFL's clusterers lose 1 to 10 points, though all but mean shift find the groups of clients that have 20 images each. If one client has half of all images,
#   the oracle gains 1 to 5 points, and no other method gains half a point in all three seeds.
# - **Wrong labels.** If labels are wrong at random, groups are worth more than before, probably because a group averages the errors that a client alone learns by heart. The oracle gains 13 points or more with 20 %, and 20 or more with 40 %. FlexCFL, FeSEM, OCFL-HDB, OCFL-AFF and OCFL-KM
#   still find the true groups. Briggs' threshold no longer fits at 40 %: its ARI is below 0.8.
# - **Five classes.** If classes and rotations differ together, no method gains a point over local training, and not after 30 rounds either. A client alone has the easier task, with five classes instead of ten. Even the oracle loses: 6 to 11 points after six rounds, and 0.8 to 2.6 after 30. So the right groups are not enough
#   when clients of one group differ in something else.
# - **6/3/2/1.** If the groups are unequal, the mean over all clients hides the small ones. OCFL-HDB and OCFL-AFF lose at most 0.3 points in the mean over all clients, but 6 to 30 for the single client. pFedGraph loses 14 to 34 points for it.
# - **Alone.** Nobody can gain much for a client that has no partner. OCFL-HDB and OCFL-AFF put it into another group, and it loses 26 to 34 points. (HDBSCAN makes no cluster of one client.) pFedGraph loses 31 or more. FlexCFL, PACFL and FedClust leave it alone, and it loses nothing.
# - **Between.** One cluster per client is the wrong description for a client with two distributions. Even the oracle, which puts the client into the group of its first half, loses 1 to 13 points. StoCFL, which pulls all models towards a common one, gains 7 to 14.
# - **Fine-tuned FedAvg** is the control for all methods with clusters: it sends what FedAvg sends, and then each client trains once more. With the four groups as they are, it loses 0.5 to 1.5 points against the better of FedAvg and Local, where the oracle gains 4 to 5. It gains 3 to 8 points where labels are wrong.
# - **Wrong $k$.** If there are four equal groups, one cluster too few costs FlexCFL, FeSEM, CFLGP, OCFL-KM and Signatures 3 to 10 points against the right $k$, and two too few cost 7 to 12. One too many costs at most 1.5, and two too many at most 2.5.
#
# No row is without orange, although the thresholds were chosen with the truth at hand.
#
# Do not read too much into small numbers. In the columns *alone* and *between*, there is one client with little more than a hundred test images, and the single client of 6/3/2/1 has 50. One image is two points there.

# %% [markdown]
# Why is the column *alone* so different? The next cells train some methods in it, with the parameters above, and print whose trained models are in the last model of the client that is alone: its own, and those of
# the three other groups. These are the shares of its row in the last matrix. Its images are turned by 270°. The columns name the turns of the other groups. So the group turned by
# 90° is half a turn away from it.

# %%
SHOWN = ["Oracle", "OCFL-HDB", "EMD-CFL", "PACFL", "FlexCFL", "IFCA", "FeSEM", "CFLGP"]
SHOWN += ["FedSoft", "pFedGraph", "FedAvg", "Local"]
last = run.clients - run.clients // 4  # the first client of the last group
lonely = split.take(range(last + 1))
place = home(images, lonely)
lines = {name: line for name, line in line_up(lonely.clusters).items() if name in SHOWN}
tried = mixing.watched(lines)
in_lockstep(tried, place, run.rounds)
outcome = {name: client_scores(line, place)[last, 1] for name, line in tried.items()}

# %%
others = lonely.clusters[:last]
print(f"{'share of':12s}" + "".join(f"{turn:>8s}" for turn in ("itself", "0°", "90°", "180°")))
for name in SHOWN:
    row = tried[name].matrices[-1][last]
    shares = [row[last], *(row[:last][others == group].sum() for group in range(3))]
    print(f"{name:12s}" + "".join(f"{abs(share):8.2f}" for share in shares))

# %% [markdown]
# With the defaults, FlexCFL, FeSEM and CFLGP look for four clusters, and one of the four is this client. HDBSCAN does not
# leave the client out as noise, and puts it into the group turned by 90°, which is half a turn away. In pFedGraph's last matrix, most of its weight is in the same group. IFCA's client has chosen the model of another group. In EMD-CFL's last matrix, all of its weight is in the group that is half a turn away, and none is its own.
#
# <a id="which-method"></a>
#
# ## Which method should I use?
#
# Your federation is not this one. But the figures suggest questions, and an order for them:
#
# 1. **Do the clients differ at all?** Train FedAvg and Local, both of which are cheap, until their accuracy stops rising. Then
#    fine-tune FedAvg's model, and look at every client. Where Local is still better than FedAvg, models from other clients may
#    have done harm (Figure 2, orange). If FedAvg is better for everybody, clusters may still help, but less is at stake (Figure 4, IID). A
#    method with clusters must be better than all three.
# 2. **Are there groups?** Draw the matrix of cosine distances of the first updates, and sort it by a hierarchical clustering. It costs nothing, since the server has the updates anyway. Square blocks of *small* distances on the diagonal mean groups. (In [lesson 03](03_ocfl_temperature.ipynb), small distances are dark.)
# 3. **Groups, and you do not know how many?** Take a method that is not told $k$ and compares updates: OCFL with HDBSCAN or affinity propagation, or pFedGraph. If you see a threshold in the matrix, Briggs is as good, but the threshold fits only this number of images and these labels (Figure 4). They send at most one and a half times as many bytes as FedAvg (Figure 3).
# 4. **You know $k$?** FlexCFL, CFLGP, FeSEM or the signatures are as good. If you are in doubt, choose $k$ too large rather than too small (Figure 4).
# 5. **Single clients, or clients between groups?** Compare each client's model with one that it trains alone, on validation
#    images, and let it keep the better one. In Figure 4, pFedGraph and OCFL with HDBSCAN or affinity propagation lose
#    about 30 points for a client that is alone, and StoCFL gains most for the one between two groups.
# 6. **Clients that change?** Clusters that are found once do not follow. IFCA chooses a model in every round, and OCFL can
#    cluster again. [10b](10b_privacy_and_change_controls.ipynb#clients-that-come-and-go) shows that both follow a client that changes.
#    FeSEM, CFLGP and pFedGraph also choose again, but we have not tested them with such a client.
# 7. **Is it private enough?** Look at what else is sent. PACFL sends directions in the space of images, EMD-CFL sends embeddings, and models travel between clients.
#
# Use several seeds, because one seed proves little.
#
# What this page does not show: other networks, other shifts, and methods with the settings of their papers. In the tables of EMD-CFL's paper,
# many of the methods here are within a point of each other on Rotated MNIST (see the [report](95_report_emd_cfl.ipynb)).

# %% [markdown]
# ## What we saw
#
# - A round of each of these methods is a matrix: each new model is a mean of the trained ones.
# - With the defaults, methods that share only within the true groups are better than clients alone. Methods that take most of a model from other groups are worse.
# - Methods differ in what they exchange. In six rounds, EMD-CFL exchanges several times the bytes of FedAvg, and OCFL exchanges the same.
# - A client without a partner can lose much by sharing, and a mean over all clients hides it.
# - In Figure 4, groups are worth most where images are few or unequally many, and where labels are wrong. They are hard to find with unequal numbers of images, and with five per client. They gain nothing where the clients of a group have different classes.
#
# A claim is a sentence about this run that the next cell evaluates. It also prints in how many other runs the claim held.

# %% tags=["claims"]
final = {name: line.matrices[-1] for name, line in watched.items()}
accuracy, alone = table["accuracy"], table.loc["Local", "accuracy"]
blocks = table.index[(table["group"] > 0.95) & (table["own"] < 0.5)]
grey = table.index[table["group"] < 0.5]
claims.check(
    "09b_catalogue",
    {
        "every round of every method is a mixing matrix (residuals below 0.0001)": all(
            max(line.residuals) < 1e-4 for line in watched.values()
        ),
        "Local's matrix is the identity, and FedAvg's has equal entries": bool(
            np.allclose(final["Local"], np.eye(run.clients), atol=1e-3)
            and np.allclose(final["FedAvg"], 1 / run.clients, atol=1e-3)
        ),
        "Briggs, OCFL-HDB, FlexCFL, CFLGP and Signatures find the true groups": bool(
            (table.loc[["Briggs", "OCFL-HDB", "FlexCFL", "CFLGP", "Signatures"], "ari"] == 1).all()
        ),
        "pFedGraph has at least 95 % of its weight within the groups": (
            table.loc["pFedGraph", "group"] > 0.95
        ),
        "FedSaC has more weight half a turn away than in the own group": (
            (final["FedSaC"] * (abs(truth[:, None] - truth[None]) == 2)).sum()
            > (final["FedSaC"] * same).sum()
        ),
        "FedEM and FedRC mix like FedAvg, up to 0.02 per weight": all(
            np.allclose(final[name], final["FedAvg"], atol=0.02) for name in ("FedEM", "FedRC")
        ),
        "there is a gap for a threshold for FedClust, and none for EMD-CFL": (
            ranges["EMD-CFL"][0] > ranges["EMD-CFL"][1]
            and ranges["FedClust"][0] < ranges["FedClust"][1]
        ),
        "after five times the rounds, FedCE has passed Local, and FedAvg has not": (
            after.iloc[:, -1]["FedCE"] > after.iloc[:, -1]["Local"] > after.iloc[:, -1]["FedAvg"]
        ),
        "every method that shares, by 95 % within groups, is at least 2 points above Local": (
            accuracy[blocks].min() > alone + 0.02
        ),
        "every method with most weight in other groups is at least 5 points below Local": (
            accuracy[grey].max() < alone - 0.05
        ),
        "EMD-CFL exchanges at least three times FedAvg's bytes, OCFL-HDB the same": (
            table.loc["EMD-CFL", "bytes"] > 3 and table.loc["OCFL-HDB", "bytes"] == 1
        ),
        "lockstep saves at least a fifth of the trainings": saved > 0.2,
        "alone: OCFL-HDB and pFedGraph leave the client at least 10 points below Local": (
            max(outcome["OCFL-HDB"], outcome["pFedGraph"]) < outcome["Local"] - 0.1
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# These questions are for playing with the code above.
#
# 1. Draw the matrices of the methods that Figure 1 leaves out. Which of them are equal in every round, and for which must it be so?
# 2. Set `rounds = 30`. Which methods climb, and what do their matrices look like now? Does Sattler's method split?
# 3. Give FedSaC `lambda1=0.0`, which removes the complementarity. What becomes of its matrix?
# 4. What is the product of the matrices of all rounds of one method? What do its entries mean, and why is it not the whole story?
# 5. Add your own situation to `notebooks/src/failures.py`, such as a group of nine and a group of three.
#
# ## References
#
# - R. Ye et al.: Personalized federated learning with inferred collaboration graphs. ICML 2023 (pFedGraph).
# - K. Yan et al.: Balancing similarity and complementarity for federated learning. ICML 2024 (FedSaC).
# - O. Marfoq et al.: Federated multi-task learning under a mixture of distributions. NeurIPS 2021 (FedEM).
# - Y. Guo et al.: FedRC: tackling diverse distribution shifts challenge in federated learning by robust clustering. ICML 2024.
# - Y. Ruan, C. Joe-Wong: FedSoft: soft clustered federated learning with proximal local updating. AAAI 2022.
# - L. Cai et al.: FedCE: personalized federated learning method based on clustering ensembles. ACM Multimedia 2023.
# - S. P. Karimireddy et al.: SCAFFOLD: stochastic controlled averaging for federated learning. ICML 2020.
# - T. Li et al.: Ditto: fair and robust federated learning through personalization. ICML 2021.
#
# **The lesson:** [09 A round is a matrix](09_a_map_of_the_methods.ipynb) · **Next:**
# [10 Hide and seek](10_privacy_and_clients_that_come_and_go.ipynb) · [Glossary](99_glossary.ipynb)
