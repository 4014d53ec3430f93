# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Start here: what clustered federated learning is for
#
# **Question.** Many clients want to learn together without showing each other their data. What goes wrong if they
# are not all alike, and what can be done about it?
#
# **You will**
#
# - run your first federation, and check that everything is installed;
# - see, in one figure, clients that one shared model serves badly, and the same clients with one model per group;
# - find your way through the notebooks, with a path for students, instructors and researchers.
#
# **Before this:** Python with NumPy, a first course in PyTorch, and some linear algebra.
#
# **Study minutes:** 15. **Minutes on two cores:** 1
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustered Federated Learning*, IEEE BigData 2024.

# %% [markdown]
# ## How to work with a notebook
#
# - **Run** > **Run All Cells** runs the whole lesson. `Shift+Enter` runs one cell and goes to the next one.
# - A cell that only draws is collapsed. Click on its three dots to see its code.
# - Change what you like. To bring the lessons back as they were, run `make reset` in a terminal. Your versions are then
#   kept in `data/runs/yours`.
# - Pages such as the README open as plain text. To read one, right-click it and choose **Open With** > **Markdown
#   Preview**.
# - Figures of your own runs go to `data/runs/figures`. The committed figures stay as they are.
# - Your numbers can differ from those on this page in the last digits, because processors round in different ways. So the claims
#   at the end of a lesson were checked with many random seeds, and the lesson shows the counts. All other sentences describe the
#   run on the page.

# %%
import platform

import matplotlib.pyplot as plt
import numpy as np
import sklearn
import torch

import cflkit
from cflkit import datasets, methods, metrics, partition, plots, simulation
from cflkit.federation import (
    Federation,
    Jobs,
    LocalTraining,
    default_device,
    f1_and_accuracy,
)
from cflkit.reproduce import claims, papers

plots.style()

# %% [markdown]
# ## Parameters
#
# Every notebook has one cell of parameters. Change a value and run all cells again, or change it from outside with
# `python -m cflkit run`.

# %% tags=["parameters"]
dataset = "digits-8x8"  # a name that cflkit.datasets knows, or the path of your own images
clients = 9  # in three groups
draws = 250  # draws of samples per client; repeated ones are dropped
rounds = 12  # of communication
repeats = 3  # number of trainings; their seeds are `seed`, `seed + 1`, and so on
seed = 0  # partition, initial model, batch orders

# %% [markdown]
# The next cell checks the parameters. `globals()` has all variables of the notebook. `StartHere.of` takes the parameters
# out of them, and stops here with one line if a value has a wrong type or is out of bounds. From here on, the code
# reads `run.rounds` and so on.

# %%
run = papers.lessons.StartHere.of(globals())

# %% [markdown]
# ## Is everything there?
#
# The kit runs on a CPU, and uses a GPU where it finds one. The lessons need no network. Their data, 1,797 handwritten
# digits of 8×8 pixels, are a part of scikit-learn.

# %%
print(f"cflkit {cflkit.__version__}, Python {platform.python_version()}, torch {torch.__version__}")
print(f"scikit-learn {sklearn.__version__}, computing on: {default_device()}")

# %% [markdown]
# ## A federation with a secret
#
# Think of offices that each collect handwritten digits. The first third of them only ever sees the digits 0 to 3. The
# second third sees 4 to 6, and the last third 7 to 9. Nobody knows that. The data stay where they are, and the server sees only
# models. (Models can still tell something about the data, for example which digits a client has. [Lesson
# 10](10_privacy_and_clients_that_come_and_go.ipynb) shows how.)
#
# The kit makes such a federation in one call. `overlap="nonoverlapping"` means that no two groups share a class, and
# `balance="balanced"` that all groups have the same number of clients.

# %% tags=["nbval-check-output"]
images, split = partition.ocfl(
    datasets.load(run.dataset),
    overlap="nonoverlapping",
    balance="balanced",
    clients=run.clients,
    draws=run.draws,
    seed=run.seed,
)
print("the secret, client by client:", *split.clusters)

# %% tags=["hide-input"]
firsts = [int(np.flatnonzero(split.clusters == group)[0]) for group in range(3)]
seen = [np.unique(images.labels[split.train[client]]) for client in firsts]
figure, axes = plt.subplots(3, 1, figsize=(6.5, 2.6))
for group, (client, ax) in enumerate(zip(firsts, axes, strict=True)):
    plots.image_grid(images.images[split.train[client][:14]], columns=14, axes=ax)
    ax.set_title(f"client {client}, of group {group}", loc="left")
plots.show(
    figure,
    1,
    "A few training images of the first client of each group.",
    "Three rows of small grey images of handwritten digits. The first row has digits from 0 to 3, the second from 4 to "
    "6, and the third from 7 to 9.",
)

# %% [markdown]
# ## One model for all, or one per group
#
# **Federated averaging** (FedAvg) works in rounds. In a round, the server sends one model to all clients. Each client
# trains it on its own data. The change that it makes is its **update**. The server adds the mean of all updates to the
# model. With `weighting="equal"`, all clients count alike in this mean.
#
# **OCFL** (one-shot clustered federated learning) is one of the methods of this kit. It starts in the same way. It also
# measures how much the directions of the updates differ. It splits the clients into groups once, in the first round in
# which this difference grows. Here a clustering algorithm called HDBSCAN makes the groups.
#
# A client could also do without a federation, and train **alone**. Both methods must be better than that, or it is not worth taking
# part.
#
# All three start from the same model, on the same data. One training could be a lucky one, so we repeat it with
# other seeds.

# %%
training = LocalTraining(epochs=3, batch_size=16, optimizer="adam", lr=0.003)


def train_methods(seed):
    federation = Federation(images, split, training=training, seed=seed)
    line_up = {
        "one model for all": methods.make("fedavg", weighting="equal"),
        "one model per group": methods.make("ocfl", clusterer="hdbscan"),
        "each client alone": methods.make("local"),
    }
    history = simulation.run(line_up, federation, run.rounds, central_every=run.rounds)
    return federation, line_up, history


trainings = [train_methods(run.seed + repeat) for repeat in range(run.repeats)]

# %% [markdown]
# Did OCFL find the secret? The **adjusted Rand index** ([ARI](99_glossary.ipynb#ari)) compares two groupings. It is 1 if
# they are the same, and near 0 for a random one. The labels 0, 1, 2 of the found groups are arbitrary, so we rename them
# to match the secret.

# %% tags=["nbval-check-output"]
found = [line_up["one model per group"].labels for _, line_up, _ in trainings]
agreements = [metrics.agreement(split.clusters, labels)["ari"] for labels in found]
for labels, ari in zip(found, agreements, strict=True):
    print("groups found:", *metrics.renamed(split.clusters, labels), f" ARI {ari:.2f}")

# %% [markdown]
# The method was told nothing about digits or offices, nor how many groups there are. It had only the updates.
#
# ## Round by round
#
# How well do the models serve the clients? We test each client's model on the client's own test images, and take the mean
# over all clients. (Many of these images are also training images of another client of the group. So the models of the groups
# look better than they are, and those of clients alone do not. [Lesson 02](02_when_clients_disagree.ipynb) measures by how much.)
# Look at how early the lines
# part. Which line is highest in round 2, and which one at the end?

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.5, 2.8))
tables = [history.table() for _, _, history in trainings]
plots.over_rounds(tables, "accuracy", "accuracy on own test images", ax)
ax.set(ylim=(0, 1.05))
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plots.show(
    figure,
    2,
    "Mean accuracy of the clients over the rounds. Lines are means over the trainings, and bands reach from the smallest "
    "to the largest value.",
    "Line chart of accuracy over rounds with three lines. With the defaults, the lines of one model per group and of each "
    "client alone climb almost to 1 within a few rounds. The first ends a little higher. The line of one model for all stays "
    "far below them until the last round.",
)

# %%
ends = {  # the mean accuracy after the last round, per training
    name: [history.summary()[name]["accuracy"] for _, _, history in trainings]
    for name in ("one model for all", "one model per group", "each client alone")
}
for name, reached in ends.items():
    print(f"{name:20s}", *(f"{value:.3f}" for value in reached))

# %% [markdown]
# One column is one training. **With the defaults**, clients alone are ahead in round 2, and the groups' models at the end. But on
# these easy digits, the two end close to each other: the group adds about two points (0.02), and a part of them comes from the
# shared images. How much it adds depends on the data. Whoever shows that clustering helps
# must compare with both: with one model for all, and with no federation at all.
#
# ## The figure to remember
#
# Now we look at each client after the last round. We add a second measure, F1, which balances precision and recall of one
# class. **Macro-F1** is its mean over the classes that occur among the labels or the predictions. A model that predicts a
# class that the client does not hold therefore gets an F1 of 0 for this class. Accuracy has no such penalty.
#
# A **job** is one model on one client. `Jobs` takes the models, the number of the model for each job, and the number of
# the client.


# %%
def scores_of_clients(federation, method):
    everyone = torch.arange(run.clients)
    predicted = federation.predict(Jobs(method.models, method.labels, everyone))
    return [f1_and_accuracy(federation.targets(c), p) for c, p in enumerate(predicted)]


scores = {  # per training, client and measure: macro-F1 and accuracy
    name: np.array([scores_of_clients(federation, line[name]) for federation, line, _ in trainings])
    for name in ("one model for all", "one model per group")
}

# %% [markdown]
# Each client has two bars: a grey one for the one model, and a coloured one for its group's model. The marks are the
# trainings. Compare the heights of the two bars. In which group does the one model do worst, and is it the same group in each training?

# %% tags=["hide-input"]
one, grouped = scores.values()
few = run.clients <= 12  # there is room for numbers below the bars
figure, axes = plt.subplots(2, 1, figsize=(7.5, 4.6), sharex=True)
names = [f"group {k}: classes {own.min()} to {own.max()}" for k, own in enumerate(seen)]
for measure, (ax, label) in enumerate(zip(axes, ("macro-F1", "accuracy"), strict=True)):
    for client, group in enumerate(split.clusters.tolist()):
        looks = [
            ("0.35", "X", one, -0.21),
            (plots.COLOURS[group], plots.MARKERS[group], grouped, 0.21),
        ]
        for colour, marker, values, shift in looks:
            repeated = values[:, client, measure]
            mean = repeated.mean()
            ax.bar(client + shift, mean, width=0.4, color=colour, alpha=0.35)
            places = np.linspace(-0.11, 0.11, len(repeated)) if len(repeated) > 1 else np.zeros(1)
            ax.plot(client + shift + places, repeated, marker, color=colour, markersize=4.5)
            if few:
                ax.text(client + shift, -0.03, f"{mean:.2f}", ha="center", va="top", fontsize=8)
    for border in plots.cluster_borders(split.clusters):
        ax.axvline(border, color="0.6", linewidth=0.8, linestyle=":")
    ax.set(ylabel=label, ylim=(-0.16, 1.05), yticks=[0, 0.25, 0.5, 0.75, 1])
axes[1].set_xticks(range(run.clients), [f"client {k}" if few else k for k in range(run.clients)])
marks = [plt.Line2D([], [], linestyle="", color="0.35", marker="X", label="one model for all")]
marks += [
    plt.Line2D(
        [],
        [],
        linestyle="",
        color=plots.COLOURS[k],
        marker=plots.MARKERS[k],
        label=f"model of {name}",
    )
    for k, name in enumerate(names)
]
figure.legend(handles=marks, loc="outside upper center", ncols=2)
plots.save(figure, "00_one_model_or_one_for_each_group")
plots.show(
    figure,
    3,
    "Each client's score on its own test images, with one model for all and with the model of its own group. Marks are "
    "trainings, the first one on the left. Bars are their means, with the value below.",
    "Two bar charts with pairs of bars per client, macro-F1 above and accuracy below. With the defaults, the bars of the "
    "group models are close to 1 for all clients. The bars of the one model are much lower, and their marks are widely "
    "spread.",
)

# %%
for place, measure in enumerate(("macro-F1", "accuracy")):
    by_group = [one[:, split.clusters == group, place].mean(axis=1) for group in range(3)]
    worst = np.argmin(by_group, axis=0)
    print(f"group that the one model serves worst, by {measure}, per training:", *worst)

# %% [markdown]
# ## What we saw
#
# - Clients with different data pull a shared model in different directions. It can then serve some of them badly.
# - The updates alone can tell which clients are alike. A group's model has fewer classes to learn, and its
#   clients' updates point in similar directions.
#
# **With the defaults**, OCFL finds the groups in each training, and every client gains from the model of its group. These
# models are also a little better than those of clients alone. The line of the one model ends far below the others. It still rises
# at the end, so this lesson does not show how good the one model would become. Exercise 1 tries more rounds. The one model serves
# some client badly in each training. By accuracy, group 0 is served worst in all three trainings. By macro-F1, it is not always
# the same group.
#
# This is the promise of clustered federated learning: a client gets a model that fits its data, and that has learned from more
# data than the client's own. The rest is the question of *how to find the groups*: early, without a look at the data, and
# without being told how many there are.
#
# The next cell checks what this lesson says happened. A claim is a sentence that is true or false in a run. The cell
# also prints how often it was true in other runs: with other seeds, on the other [engine](99_glossary.ipynb#engine) of
# the kit, and with the last bit of each parameter perturbed. An engine is a way to compute many local trainings at once.
# The last bit is perturbed because another processor might round it in another way. Each of these other runs made one
# training (`repeats = 1`).

# %% tags=["claims"]
summaries = [history.summary()["one model per group"] for _, _, history in trainings]
split_in = [summary["clustering_round"] or np.inf for summary in summaries]
gain = (grouped - one).mean(axis=0)  # over the trainings, per client and measure
claims.check(
    "00_start_here",
    {
        "OCFL finds the three groups in each training": min(agreements) == 1,
        "OCFL splits the clients within the first five rounds": max(split_in) <= 5,
        "the groups' models end with a mean accuracy of 0.9 or more": (
            grouped[..., 1].mean(axis=1).min() >= 0.9
        ),
        "in each training, the groups' models are better than those of clients alone": all(
            np.greater(ends["one model per group"], ends["each client alone"])
        ),
        "every client has a higher mean F1 with its group's model": gain[:, 0].min() > 0,
        "the mean gain in F1 is 0.3 or more": gain[:, 0].mean() >= 0.3,
        "the mean gain in accuracy is 0.2 or more": gain[:, 1].mean() >= 0.2,
        "in each training, some client's accuracy is below 0.7 with one model": (
            one[..., 1].min(axis=1).max() < 0.7
        ),
    },
)

# %% [markdown]
# ## The map
#
# The first cell of each notebook has its study minutes, and the minutes that it runs on two cores.
#
# | notebook | the question that it answers |
# |---|---|
# | [00 Start here](00_start_here.ipynb) | What is clustered federated learning for? |
# | [01 Federated averaging](01_federated_averaging.ipynb) | How do clients train one model together, and what is client drift? |
# | [02 When clients disagree](02_when_clients_disagree.ipynb) | How are clusters of clients simulated, and how does one model fail them? |
# | [03 OCFL](03_ocfl_temperature.ipynb) | When do updates reveal the clusters, and what is gained by splitting then? |
# | [04 Sattler and Briggs](04_sattler_and_briggs.ipynb) | What must two older methods be told before they can split? |
# | [05 EMD-CFL](05_emd_cfl.ipynb) | Can a network's view of the data tell clients apart, once and for all? |
# | [06 FedCRef](06_fedcref.ipynb) | What if nobody has labels? |
# | [07 Explanations](07_explaining_cluster_models.ipynb) | What do the models of clusters look at? |
# | [08 Tutorial 022](08_tutorial_022.ipynb) | Does a tutorial's code produce its table, and what do its faults cost? |
# | [09 A map of the methods](09_a_map_of_the_methods.ipynb) | What do all these methods have in common, and which one should I use? |
# | [10 Privacy, and clients that come and go](10_privacy_and_clients_that_come_and_go.ipynb) | What do clients reveal, and what if they come late or change? |
# | [90 Ledger](90_ledger.ipynb) | Which published numbers do our runs reproduce? |
# | [93 Report: OCFL](93_report_ocfl.ipynb) | How do our runs compare with the two OCFL papers? |
# | [95 Report: EMD-CFL](95_report_emd_cfl.ipynb) | How do our runs compare with the EMD-CFL paper? |
# | [96 Report: FedCRef](96_report_fedcref.ipynb) | How do our runs compare with the FedCRef paper? |
# | [97 Report: explanations](97_report_explanations.ipynb) | How do our explanations compare with the paper's? |
# | [99 Glossary](99_glossary.ipynb) | What do symbols, terms, methods and measures mean? |
# | [Exercises](exercises) | Can I write it, predict it, and explain it? |
# | [Failure labs](exercises) | Something went wrong in an experiment. What was it? |

# %% [markdown]
# ## Three paths
#
# - **Students** read 00 to 03 in order. Then they choose what interests them among 04 to 10. The
#   [glossary](99_glossary.ipynb) stands beside all of them.
# - **Instructors** find a [course](course.md) of six weeks, with quizzes, exercises that check themselves and failure labs.
#   Figures and "What we saw" are there before anything runs. Each lesson can be a session of its own after 01 and 02.
# - **Researchers** read the lesson of a method and then its report, which lists every deviation from the paper. The
#   [ledger](90_ledger.ipynb) has all published numbers beside ours.
#
# The page [Where do I begin?](where_to_begin.md) says what each of them needs, and how long it takes.
#
# ## From a lesson to an experiment
#
# The lesson of a paper is also its experiment. With its defaults, it teaches on a laptop. The files in `params/` run the
# same cells at the paper's scale, or at a reduced one. For instance, in this folder:
#
# `python -m cflkit run 03_ocfl_temperature.ipynb -f params/ocfl/reduced/mnist_15_nonoverlapping_balanced.yaml`

# %% [markdown]
# ## Exercises
#
# The [exercises of this lesson](exercises/00_start_here_exercises.ipynb) check your
# answers and give hints. The questions below are for playing with the parameters and the code above.
#
# 1. Set `rounds = 3`. Are the groups found already? Does clustering pay yet? Then set `rounds = 40`. What becomes of the
#    one model?
# 2. Set `clients = 30` and `draws = 80`. What happens to the bars of the one model, what happens to the bars of the
#    groups' models, and why?
#
# ## References
#
# - H. B. McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS 2017.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024.
#
# **Next:** [01 Federated averaging](01_federated_averaging.ipynb) · [Glossary](99_glossary.ipynb)
