# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Start here: one model, or one each?
#
# **Question.** Twenty offices want to learn to read handwritten digits. They may not show each other their images. Should they train
# one model together, should each of them train its own, or is there something in between?
#
# ![Four rows of handwritten digits, each turned by 90 degrees more than the row above](../figures/00_four_scanners.png)
#
# *What four of the offices see. Is the third digit of the third row a 6 or a 9?*
#
# **Answer.** It depends on how alike the offices are. One model for all must suit everybody, and training alone wastes what others know. A third way is one model for each
# group of similar offices, and a server can find these groups without looking at any image. Which way is best here, and by how much, you will guess and see.
#
# **You will**
#
# - run your first federation, and write the function that scores its clients,
# - compare one model for all, one for each client, and one for each cluster of clients.
#
# **Before this:** Python with NumPy, a first course in PyTorch, and some linear algebra.
# How to run, change and reset a notebook is on the page [Working with the kit](working_with_the_kit.md). Before any code, you can
# [play](play.html): the page trains such clients in your browser.
#
# **Study minutes:** 14. **Minutes on two cores:** 0.5
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustered Federated Learning*, IEEE BigData 2024. (Its clients differ in their classes, ours here in their scanners.)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from cflkit import check, datasets, methods, metrics, plots, simulation
from cflkit.federation import Federation, Jobs, LocalTraining, f1_and_accuracy
from cflkit.partition import shifts
from cflkit.reproduce import claims, papers

plots.style()

# %% [markdown]
# ## Twenty offices, four scanners
#
# Each office scans its digits, but the scanners are turned by different angles. Five offices get their images upright. The images of five others are turned by 90
# degrees, of five more by 180, and of the last five by 270. No office knows the angles of the others. Each has only 36 images to train on. (Of its 40, the
# other 4 are for validation, which this lesson does not need.) It has 70 more to test its model at the end.
#
# In federated learning, an office that takes part is a **client**. A **server** is a computer that sends models to the clients and collects what they send back. Server and clients together are a **federation**.
# A **group** is a set of clients that really are alike, and a **cluster** is a set that a method has found.
# You may change the values of the next cell; the cell after it checks them before anything trains. Captions and text describe the values that stand there now.

# %% tags=["parameters"]
clients = 20  # the offices, five for each angle
samples = 40  # training and validation images per client
rounds = 10  # of communication
seed = 0  # who gets which images, the initial model, and the batch orders

# %%
run = papers.lessons.StartHere.of(globals())
images, split = shifts.make(
    datasets.load("digits-8x8"), "four", clients=run.clients, samples=run.samples, seed=run.seed
)
group_of = split.clusters  # we know it, because we made it; no method below may see it

# %% tags=["hide-input"]
firsts = [int(np.flatnonzero(group_of == group)[0]) for group in range(4)]
figure, axes = plt.subplots(4, 1, figsize=(6.5, 3))
for group, (client, ax) in enumerate(zip(firsts, axes, strict=True)):
    plots.image_grid(images.images[split.train[client][:14]], columns=14, axes=ax)
    ax.set_title(f"client {client}, scanner turned by {90 * group}°", loc="left")
plots.save(figure, "00_four_scanners")
plots.show(
    figure,
    1,
    "**Four scanners, four angles.** A few training images of one client of each group.",
    "Four rows of small grey images of handwritten digits; each row is turned by 90 degrees more than the row above.",
)

# %% [markdown]
# ## Three ways to learn
#
# All models are the same small network, a [perceptron](99_glossary.ipynb#perceptron) with one hidden layer. A client could train it **alone**. Then it sends nothing, but it has only 36 images to learn from.
#
# **Federated averaging** (FedAvg) trains one model for all, in rounds. The server sends a model to all clients. Each client trains it on its own
# images, and sends back the change that it made, its **update**. The server adds the mean of all updates to the model. Images stay where they
# are. (What a client sends can still reveal something about its images: see [lesson 10](10_privacy_and_clients_that_come_and_go.ipynb).)
#
# **OCFL** (one-shot clustered federated learning) begins like FedAvg. An update is a long vector, so it has a direction, and
# OCFL measures in each round how different the directions of the updates are. In the first round in which they differ more than in the round before, it splits the clients, once, into clusters: [HDBSCAN](99_glossary.ipynb#hdbscan),
# a clustering algorithm, puts clients together whose updates have similar directions. ([Lesson 03](03_ocfl_temperature.ipynb) asks why in this round.) From then on, each cluster trains a model of its own.
#
# **Predict.** Which of the three is best, and which is worst? Which mean accuracy do you expect of one model per cluster? (Whoever guesses one of the ten digits blindly is right in a tenth of the cases.) Write this number into the next cell, and execute the cells from there. Figure 2 then shows your guess.

# %%
guess = None  # an accuracy, from 0 to 1

# %%
training = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
federation = Federation(images, split, "perceptron", training, seed=run.seed)
line_up = {
    "one model for all": methods.make("fedavg"),
    "each client alone": methods.make("local"),
    "one model per cluster": methods.make("ocfl", clusterer="hdbscan"),
}
history = simulation.run(line_up, federation, run.rounds, progress=False)

# %% [markdown]
# Each client then tests its model on its own test images.

# %%
everyone = torch.arange(run.clients)


def accuracy_of_clients(method):
    # A job is one model on one client. Here, every client tests the model of its cluster
    predicted = federation.predict(Jobs(method.models, method.labels, everyone))
    return np.array([f1_and_accuracy(federation.targets(c), p)[1] for c, p in enumerate(predicted)])


accuracy = {name: accuracy_of_clients(method) for name, method in line_up.items()}


# %% tags=["hide-input"]
guess = check.guessed(guess, 0, 1)


def frame(name):
    """Draw every client's accuracy with one way to learn, and those before it in grey."""
    figure, ax = plt.subplots(figsize=(7, 2.9), layout="none")
    figure.subplots_adjust(left=0.09, right=0.69, bottom=0.18)  # the same for all frames
    seen = dict(list(accuracy.items())[: list(accuracy).index(name) + 1])
    for other, values in seen.items():
        if other != name:
            ax.hlines(values.mean(), -0.7, run.clients - 0.6, color="0.75", linewidth=1)
            ax.text(
                run.clients - 0.2,
                values.mean(),
                f"{other} {values.mean():.2f}",
                color="0.5",
                va="center",
            )
    for client, value in enumerate(accuracy[name]):
        look = {"color": plots.COLOURS[group_of[client]], "marker": plots.MARKERS[group_of[client]]}
        ax.plot(client, value, markersize=8, **look)
    mean = accuracy[name].mean()
    ax.hlines(mean, -0.7, run.clients - 0.6, color="black", linewidth=1.5)
    ax.text(run.clients - 0.2, mean, f"{name} {mean:.2f}", weight="bold", va="center")
    if guess is not None:
        ax.axhline(guess, color="black", linestyle="--", linewidth=1)
        ax.text(-0.5, guess, "your guess", va="bottom", fontsize=9)
    ax.set(xlim=(-0.7, run.clients - 0.4), ylabel="accuracy", xlabel="clients of each scanner")
    lowest = [values.min() - 0.02 for values in accuracy.values()]
    ax.set_ylim(min(0.5, 1 if guess is None else guess, *lowest), 1)
    middles = (np.arange(4) + 0.5) * run.clients / 4 - 0.5
    ax.set_xticks(middles, ["0°", "90°", "180°", "270°"])
    is_best = " is best" if len(seen) == 3 and mean == max(map(np.mean, seen.values())) else ""
    ax.set_title(f"{name}{is_best}: mean accuracy {mean:.2f}", loc="left")
    return figure


plots.show_frames(
    [frame(name) for name in accuracy],
    list(accuracy),
    2,
    "**On average, one model per cluster is better than each client alone, and each client alone is better than one model for all.** Each mark is a client, tested on its own "
    "images after the last round; colours and marks are the four groups. Move the slider from one way to learn to the next. The vertical axis begins at 0.5.",
    "Twenty marks of four colours, one per client, at its accuracy, with a line at their mean. The marks of one model for all "
    "are lowest, those of clients alone are higher, and those of one model per cluster are highest.",
    first=2,
)

# %% [markdown]
# Did OCFL find who is alike? The numbers of its clusters are arbitrary, so we rename them. The **adjusted Rand index** ([ARI](99_glossary.ipynb#ari)) compares two groupings. It is 1 if they are the same, and near 0 for a random one.

# %% tags=["nbval-check-output"]
found = line_up["one model per cluster"].labels
ari = metrics.agreement(group_of, found)["ari"]
print("clusters found:", *metrics.renamed(group_of, found))
print(f"agreement with the true groups (ARI): {ari:.2f}")

# %% [markdown]
# **Write it.** How good are these models for the clients? There are $K$ clusters and $m$ clients. The array `scores` has a row for each cluster's model and a column for each client: the accuracy of this model on the client's test images. The entry $j$ of the array `labels` is the cluster of client $j$, a number from 0 to $K - 1$. Every client uses the model of its cluster.
# Write the mean of the accuracies that the clients get, in one to three lines of NumPy, in place of `raise NotImplementedError`. Until they are right, the lesson goes on with the solution of exercise 00.3.

# %%
models = line_up["one model per cluster"].models
scores = np.zeros((len(models), run.clients))
for k, model in enumerate(models):
    answers = federation.predict(Jobs(model[None], torch.zeros_like(everyone), everyone))
    scores[k] = [f1_and_accuracy(federation.targets(c), a)[1] for c, a in enumerate(answers)]


# %% tags=["nbval-ignore-output"]
def mean_own_score(scores, labels):
    """Return the mean over clients, a number, for scores [K, m] and clusters [m]."""
    raise NotImplementedError


mean_own_score = check.written("00.3", mean_own_score)
print(
    f"with the model of its cluster, a client has {mean_own_score(scores, np.asarray(found)):.2f}"
)

# %% [markdown]
# The one model sees twenty times as many images as a client alone, and is still worse. One reason may be that a 6 that is upside down, like the third digit of the third row above, is a 9 for another office. Another is that it learns four kinds of
# images at once, and is slow: after ten more rounds it has 0.82 ([04](04_sattler_and_briggs.ipynb)). The model of a cluster has five times the images of a client, and all of them suit it.
#
# A fourth way needs no clusters. At the end, each client trains the one model for five more epochs on its own images, and keeps the result for itself. Clusters are worth their trouble only if they also beat this [**fine-tuning**](99_glossary.ipynb#fine-tuning).

# %% tags=["nbval-check-output"]
control = {"fine-tuned": methods.make("fedavg-ft")}
tuned = simulation.run(control, federation, run.rounds, progress=False).summary()["fine-tuned"]
print(f"one model, fine-tuned by each client: {tuned['accuracy']:.2f}")

# %% [markdown]
# Here fine-tuning lifts the one model from 0.71 to 0.77, which is still below clients alone (0.81). (These train for fifty epochs on their own images; fine-tuning adds five.)
#
# OCFL was not told the groups, nor how many there are. It used the updates, and one number that was chosen before: a cluster has at least a fifth of the clients, as in the papers. Here that is four, and our groups have five. So the number fits, and a group of three would not be found.
#
# > **An honest limit.** Clustering helps *here*, after ten rounds. After twenty, one model for all is about as good as each client alone ([04](04_sattler_and_briggs.ipynb)), and both are still
# > below the clusters. Exercise 2 asks what becomes of the clusters' lead if each client has more images. And if all offices are alike, clustering has nothing to separate. Whoever claims that clustering
# > helps must therefore compare it with one model for all, with clients alone, and with fine-tuning.
#
# ## What we saw
#
# - One model for clients who differ can be worse than no federation at all.
# - Updates tell who is alike, although no image leaves a client.
# - A cluster's model has learned from more data than a client's own, and all of these data suit the client.
#
# Each lesson ends with claims: sentences that are either true or false in a run. We ran the lesson with twenty draws of clients (*seeds*), and counted how often each claim was true. A claim should not depend on how a computer rounds, either.
# So five draws were run twice more: with another program for the same training (the *stacked* or the *threads engine*), and with tiny changes of each trained number (*the last bit perturbed*).

# %% tags=["claims"]
one, alone, clustered = (values.mean() for values in accuracy.values())
claims.check(
    "00_start_here",
    {
        "OCFL finds the four groups": ari == 1,
        "Clients alone are at least 0.05 better than one model for all": alone - one >= 0.05,
        "One model per cluster is at least 0.05 better than clients alone": clustered - alone
        >= 0.05,
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
# | [01 Federated averaging](01_federated_averaging.ipynb) | How do clients train one model together, and what does averaging lose? |
# | [02 Who wins depends on the test](02_when_clients_disagree.ipynb) | Whom does one model for all serve, and whom the model of a cluster? |
# | [03 OCFL](03_ocfl_temperature.ipynb) | When should the server split, and who belongs together? |
# | [04 Two older rules](04_sattler_and_briggs.ipynb) | What must two older methods be told before they can split? |
# | [05 EMD-CFL](05_emd_cfl.ipynb) | Is it enough to find a poisoned group, or must it be found early? |
# | [06 FedCRef](06_fedcref.ipynb) | What if nobody has labels: whose cluster is like mine? |
# | [07 Explanations](07_explaining_cluster_models.ipynb) | What does an insertion score measure? |
# | [08 Tutorial 022](08_tutorial_022.ipynb) | Can this tutorial's table be true? |
# | [09 A round is a matrix](09_a_map_of_the_methods.ipynb) | What do all these methods have in common, and which is which? |
# | [10 Hide and seek](10_privacy_and_clients_that_come_and_go.ipynb) | What do clients reveal, and what does hiding it cost? |
# | [11 Clients that come and go](11_clients_that_come_and_go.ipynb) | What happens to clusters when clients come late, leave or change? |
# | [90 Ledger](90_ledger.ipynb) | Which published numbers do our runs reproduce? |
# | [93 Report: OCFL](93_report_ocfl.ipynb) | How do our runs compare with the two OCFL papers? |
# | [95 Report: EMD-CFL](95_report_emd_cfl.ipynb) | How do our runs compare with the EMD-CFL paper? |
# | [96 Report: FedCRef](96_report_fedcref.ipynb) | How do our runs compare with the FedCRef paper? |
# | [97 Report: explanations](97_report_explanations.ipynb) | How do our explanations compare with the paper's? |
# | [98 What is *reproduced* worth?](98_what_is_reproduced_worth.ipynb) | What does it say that a number came out again? |
# | [99 Glossary](99_glossary.ipynb) | What do symbols, terms, methods and measures mean? |
# | [Exercises](exercises) | Can I write it, predict it, and explain it? |
# | [Failure labs](exercises) | Something went wrong in an experiment. What was it? |

# %% [markdown]
# Read 00 to 03 in order; after them, each lesson can be a session of its own (but 09 needs 04). The page [Where do I begin?](where_to_begin.md) says what students, instructors and researchers need, and how long it takes.
# Most lessons have an appendix that tests their idea more strictly, such as [03b](03b_ocfl_controls.ipynb).

# %% [markdown]
# ## Exercises
#
# The [exercises of this lesson](exercises/00_start_here_exercises.ipynb) check your answers and give hints. To try yourself:
#
# 1. **Build.** Add `"true groups": methods.make("oracle", truth=split.truth)` to the line-up. How much does OCFL lose by not knowing them?
# 2. **Break.** Set `samples = 200`. Which of the three ways gains most, and is clustering still worth it?
# 3. **Explain.** Why has FedAvg the most images, but the lowest accuracy?
#
# ## References
#
# - H. B. McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS 2017.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024.
#
# **Next:** [01 Federated averaging](01_federated_averaging.ipynb) · [Glossary](99_glossary.ipynb)
