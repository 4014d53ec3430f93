# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Federated averaging: average, and drift
#
# **Question.** How can clients train one model together without sending their data, and what does averaging lose?
#
# ![Four steps of one round of federated averaging in the upper row: send the model, train locally, return updates, average. The lower row has the phases of OCFL, which lesson 03 explains.](../figures/scheme_fedavg_ocfl.svg)
#
# *Look at the upper row, a round of federated averaging. (The lower row is for [lesson 03](03_ocfl_temperature.ipynb).)*
#
# **Answer.** Each client trains a copy of the model on its own data, and the server averages the copies. While a client trains, it drifts towards
# its own optimum. Clients with similar data drift together, and the mean keeps most of their progress. Clients with different data drift apart, so in
# the mean they partly cancel each other. How much is lost, you will guess and see.
#
# **You will**
#
# - read federated averaging in some twenty lines of plain PyTorch, and write the line with which the server averages,
# - watch clients drift, with similar and with dissimilar data,
# - see what a client forgets while it trains alone.
#
# **Before this:** [00 Start here](00_start_here.ipynb).
#
# **Study minutes:** 18. **Minutes on two cores:** 0.5
#
# **Paper.** H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, *Communication-Efficient
# Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

# %% tags=["hide-input"]
import copy
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cflkit import check, datasets, methods, models, partition, plots, simulation
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.reproduce import claims, papers

plots.style()

# %% [markdown]
# ## The clients
#
# The digits are dealt to the clients at random. Their data differ, but the *distributions* of their data do not. Such
# clients are called **IID**: independent and identically distributed.

# %% tags=["parameters"]
clients = 6  # m
rounds = 10  # of communication
local_epochs = 2  # passes over a client's data per round
batch_size = 16  # samples per local step
lr = 0.1  # learning rate of the clients
seed = 0  # partition, initial model, batch orders

# %% tags=["nbval-check-output"]
run = papers.lessons.FederatedAveraging.of(globals())
images = datasets.load("digits-8x8")
_, similar = partition.iid(images, clients=run.clients, seed=run.seed)
# For the section on drift: three groups of clients that see different classes
_, dissimilar = partition.ocfl(
    images, clients=run.clients, seed=run.seed, overlap="nonoverlapping", balance="balanced"
)
print("training samples:", *[len(indices) for indices in similar.train])

# %% [markdown]
# The model is as simple as possible: softmax regression on images of 8×8 pixels, with 650 parameters. Its loss is convex, so there are no bad
# optima in which a client could get lost.

# %% [markdown]
# ## The algorithm
#
# A model is a vector $\theta$ of parameters. There are $m$ clients, numbered from 0. Client $i$ has $n_i$ training samples. Its loss $f_i(\theta)$ is the mean of the model's loss over them. Together, the clients want
# to minimise
#
# $$f(\theta) = \sum_i \frac{n_i}{n} f_i(\theta),\qquad n = \sum_i n_i.$$
#
# They could send a gradient after every step, but communication is expensive. **Federated averaging** (FedAvg) works
# in [rounds](99_glossary.ipynb#round). In each round, every client starts from the common model $\theta^t$ and takes
# many steps of stochastic gradient descent (SGD) alone. It ends with the parameters $\theta_i^t$. The server then averages the results:
#
# $$\theta^{t+1} = \sum_i \frac{n_i}{n}\,\theta_i^t \;=\; \theta^t + \sum_i \frac{n_i}{n}\,\Delta_i^t ,
# \qquad \Delta_i^t = \theta_i^t - \theta^t .$$
#
# The difference $\Delta_i^t$ is the **update** of client $i$. (Code counts rounds from 0, and figures and text count them from 1.)

# %% [markdown]
# ### What a client does
#
# A client runs an ordinary training loop. Only the batches come from the package: `federation.batches(client, t)` shuffles a
# client's samples for each epoch and cuts them into batches. Their order depends only on the client, the round and the
# seed. So this loop and the package's own loop see the same batches, and we can compare their results.

# %%
training = LocalTraining(epochs=run.local_epochs, batch_size=run.batch_size, lr=run.lr)
federation = Federation(images, similar, "linear", training, seed=run.seed)
pixels, labels = images.images / 255, images.labels


def train_locally(network, client, t):
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    for batch in federation.batches(client, t):
        optimizer.zero_grad()
        F.cross_entropy(network(pixels[batch]), labels[batch]).backward()
        optimizer.step()
    return parameters_to_vector(network.parameters()).detach()


# %% [markdown]
# ### What the server does
#
# The server sends the model, waits, and averages. It never sees the data of a client. It sees only the parameters that
# a client returns, and the number of its samples.
#
# **Write it.** The mean weights each model by the client's number of samples. (Here all have the same number, so it is the plain mean of lessons 00 and 03.) It takes one line, in place of `raise NotImplementedError`. Use what NumPy and PyTorch have in common, such as `*`, `@` and `.sum()`: the check sends NumPy
# arrays, the lesson sends tensors. Until your line is right, the lesson goes on with the solution of exercise 01.1.


# %% tags=["nbval-check-output"]
def weighted_mean(models, samples):
    """Return the weighted mean [P] of models [m, P], for numbers of samples [m]."""
    raise NotImplementedError


weighted_mean = check.written("01.1", weighted_mean)

# %%
network = models.make("linear", images.shape, images.classes)
theta = federation.initial()
samples = torch.tensor([float(len(indices)) for indices in similar.train])
for t in range(run.rounds):
    sent_back = []
    for client in range(run.clients):
        local = copy.deepcopy(network)
        vector_to_parameters(theta.clone(), local.parameters())
        sent_back.append(train_locally(local, client, t))
    theta = torch.as_tensor(weighted_mean(torch.stack(sent_back), samples), dtype=theta.dtype)

# %% [markdown]
# ## The same with the package
#
# In the package, `methods.make("fedavg")` does the server's part, `Federation.train` does the clients' part, and
# `simulation.run` is the loop over rounds. Both programs must give the same 650 numbers up to rounding. They round in
# different places, because the package averages updates where our lines average parameters.

# %% tags=["nbval-check-output"]
fedavg = methods.make("fedavg", weighting="samples")
simulation.run({"FedAvg": fedavg}, federation, run.rounds, progress=False)
largest = float((fedavg.models[0] - theta).abs().max())
print("same parameters to 1e-4:", largest < 1e-4)

# %% [markdown]
# ## How good is the shared model?
#
# An accuracy alone says little, so we add two references. The upper one trains a single model on the data of all clients **in one place**, which is
# what a federation avoids. In the lower one **each client trains alone**.
#
# **Predict.** After ten rounds, how far has the shared model come on the way from the lower reference to the upper one: hardly, half of the way, or nearly all of it?

# %%
everything = {"train": [np.concatenate(similar.train)], "test": [np.concatenate(similar.test)]}
one_client = np.zeros(1, dtype=np.int64)  # which holds all data
pooled = replace(similar, clusters=one_client, **everything)
one_place = Federation(images, pooled, "linear", training, seed=run.seed)
apart = {"FedAvg": methods.make("fedavg"), "each client alone": methods.make("local")}
curves = {}
for line_up, where in (
    ({"all data in one place": methods.make("fedavg")}, one_place),
    (apart, federation),
):
    table = simulation.run(line_up, where, run.rounds, progress=False).table()
    curves |= {
        name: table[table["method"] == name]["central_accuracy"].to_numpy() for name in line_up
    }

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.5, 3))
for number, (name, curve) in enumerate(curves.items()):
    look = {"color": plots.COLOURS[number], "marker": plots.MARKERS[number]}
    ax.plot(range(1, run.rounds + 1), curve, markersize=4, **look)
    at = run.rounds + 0.2, curve[-1] + (0.04, -0.01, -0.07)[number]
    ax.annotate(f"{name} {curve[-1]:.2f}", at, va="center", color=look["color"])
ax.set(ylim=(0, 1.02), xlim=(0.8, 1.5 * run.rounds), ylabel="accuracy, all classes")
ax.set_xlabel("round", x=0.32)
ax.spines["bottom"].set_bounds(0.8, run.rounds)
ax.set_xticks(range(1, run.rounds + 1, -(-run.rounds // 10)))
last = {name: curve[-1] for name, curve in curves.items()}
between = last["each client alone"] < last["FedAvg"] < last["all data in one place"]
ax.set_title(plots.finding("FedAvg ends between the two references", between), loc="left")
plots.show(
    figure,
    1,
    "Accuracy on the central test set, which belongs to no client.",
    "Line chart of accuracy over rounds with three lines. All data in one place is highest, each client alone is lowest, "
    "and FedAvg lies between them and rises more slowly than all data in one place.",
)

# %% [markdown]
# FedAvg ends about halfway between the two references. In a round, the clients together take about as many steps as the model of all data. That model takes them one after the other, but the clients take theirs side by side, and
# FedAvg gets only their mean. So it rises more slowly.
#
# ## Client drift
#
# If each client takes only *one* step of gradient descent on all of its samples, averaging loses nothing: the mean of the clients' steps is the step for the mean loss. After many steps this is
# no longer true. Each client has moved towards its own optimum, and the mean of these end points is not the point that gradient descent on all data would have reached. This
# is **client drift**. To see how it depends on the data, we take a second federation, `dissimilar`, whose six clients form three groups that see different classes.
#
# All clients of both federations start from the model that FedAvg has trained above, and train alone for up to 16 epochs. (A **job** is one model on one client.
# `Jobs(models, model_of, client_of)` lists many at once.)
#
# **Predict.** After 8 epochs, how long is the mean of the six updates of the dissimilar clients, in per cent of the length of a single one? (Six updates of equal length at right angles to each
# other have a mean of length $1/\sqrt 6$, which is 41 %. If the two clients of each group go the same way, and only the three groups are at right angles, it is $1/\sqrt 3$, which is 58 %.) Write your number into the next cell, and execute the cells from there. Figure 2 then shows your guess.

# %%
guess = None  # per cent, from 0 to 100

# %% [markdown]
# In Figure 2, updates are the ribs of an umbrella. All of them start at the common model. The black line starts there, too, and ends at the mean update. So the more the mean keeps of the updates' length, the longer the black line is. (The pale piece
# below has no meaning. It only makes the umbrella easy to recognise.)

# %%
epochs, everyone = [1, 2, 4, 8, 16], torch.arange(run.clients)


def updates_after(count, split):
    longer = LocalTraining(epochs=count, batch_size=run.batch_size, lr=run.lr)
    drifting = Federation(images, split, "linear", longer, seed=run.seed)
    start = Jobs(theta[None], torch.zeros_like(everyone), everyone)  # one model for all clients
    return drifting.train(start, round=0) - theta


paths = {
    name: torch.stack([updates_after(count, split) for count in epochs])
    for name, split in (("similar clients", similar), ("dissimilar clients", dissimilar))
}


# %% tags=["hide-input"]
guess = check.guessed(guess, 0, 100)


def frame(step):
    """Draw the clients' updates after a number of epochs, and their mean in black."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.1))
    for ax, (name, path) in zip(axes, paths.items(), strict=True):
        groups = dissimilar.clusters if name.startswith("dis") else np.full(run.clients, 7)
        plots.umbrella(path[step], groups, ax)
        survives = float(path[step].mean(dim=0).norm() / path[step].norm(dim=1).mean())
        opening = np.degrees(plots.openings(path[step]).mean())
        ax.set_title(f"{name}, {opening:.0f}° from their mean,\nwhich keeps {survives:.0%}")
        if guess is not None and name.startswith("dis"):
            ax.axhline(guess / 100, color="black", linestyle="--", linewidth=1)
            ax.text(1.2, guess / 100, "your guess", ha="right", va="bottom", fontsize=9)
    return figure


plots.show_frames(
    [frame(step) for step in range(len(epochs))],
    [f"{count} local epoch{'s' if count > 1 else ''}" for count in epochs],
    2,
    "**Similar clients drift together, dissimilar ones apart.** Each rib is the update of a client; colours and marks are groups, and the grey clients have none. "
    "The black line is the mean of the six updates, and this is what the server keeps. All lines start at the shared model. An update has 650 numbers, so this is a drawing in perspective: a rib that points towards us looks shorter. Lengths and angles to the black line are true; the unit is the mean length, and the ring is the mean angle. "
    "The three groups point in three directions, with angles of more than 90° between them.",
    "Two umbrellas. The six grey ribs of similar clients stand close around the black line, which is nearly as long. The coloured "
    "ribs of dissimilar clients lie nearly flat and point in three directions, and their black line is short.",
    first=3,
)

# %% [markdown]
# We call the length of the updates the clients' *work*. The mean of similar clients keeps most of it. The mean of dissimilar clients keeps less than the 41 % of six unrelated directions, and far less than the 58 % of three unrelated groups, because the groups pull *against*
# each other. With more epochs, the mean keeps a larger *share* in both federations (move the slider; we have not tested why). This does not mean that there is less drift. The updates become much longer, too, and the length that the mean loses
# grows with them ([01b](01b_drift_measured.ipynb#how-much-work-survives) measures both).
#
# ## What do clients forget meanwhile?
#
# We test the drifted models on *all* ten classes: the clients' own models, and their mean.


# %%
def accuracy_of(drifted):
    predicted = federation.predict(Jobs(theta + drifted, everyone, everyone), "central")
    return np.mean([(p.argmax(1) == images.test_labels).float().mean() for p in predicted])


own = {name: [accuracy_of(d) for d in path] for name, path in paths.items()}
mean = {n: [accuracy_of(d.mean(dim=0).expand_as(d)) for d in path] for n, path in paths.items()}

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.5, 3))
for number, name in enumerate(paths):
    look = {"color": plots.COLOURS[number], "marker": plots.MARKERS[number]}
    ax.plot(own[name], label=f"{name}: own models", **look)
    ax.plot(mean[name], "--", label=f"{name}: their mean", markerfacecolor="white", **look)
ax.set(xlabel="local epochs", ylabel="accuracy, all classes", ylim=(0, 1))
ax.set_xticks(range(len(epochs)), epochs)
forgets = own["dissimilar clients"][-1] < own["dissimilar clients"][0]
title = plots.finding("Alone, a client forgets the classes that it does not see", forgets)
ax.set_title(title, loc="left")
ax.legend(loc="lower left")
plots.show(
    figure,
    3,
    "Accuracy on all ten classes of the clients' own models, and of the mean of these models.",
    "Four lines over local epochs. The own models of dissimilar clients fall steeply; the other three lines stay near the top.",
)

# %% [markdown]
# Each dissimilar client forgets the classes that it does not see: in the end it is right for little more than a third of the images, and its own classes are about a third of them. The other three lines lie nearly on each other. So the mean repairs the damage here: most of the drift cancels, and the mean
# stays near the good model from which all clients started. In this one round, averaging loses length (Figure 2), but no accuracy (Figure 3).
#
# > **An honest limit.** The clients started from a trained, convex model, and drifted for one round. With a deeper network, from random weights and in every round, the mean
# > repairs less: [02 Who wins depends on the test](02_when_clients_disagree.ipynb).
#
# ## What we saw
#
# - FedAvg sends a model, trains it locally, and averages. The server sees parameters and sample counts.
# - Local steps save rounds of communication, as [01b](01b_drift_measured.ipynb#do-local-steps-save-rounds) counts. Their price is client drift.
# - Drift has a direction. Clients with similar data drift together, and clients with different data drift apart. This can harm one shared model ([02](02_when_clients_disagree.ipynb)), but
#   it also tells the server who is alike ([lesson 03](03_ocfl_temperature.ipynb)).

# %% tags=["claims"]
share = {n: float(p[-2].mean(dim=0).norm() / p[-2].norm(dim=1).mean()) for n, p in paths.items()}
ends = {name: curve[-1] for name, curve in curves.items()}
claims.check(
    "01_federated_averaging",
    {
        "From scratch and with the package, the parameters are the same to 1e-4": largest < 1e-4,
        "FedAvg ends above clients alone, and not above all data in one place by 0.01": (
            ends["each client alone"] < ends["FedAvg"] < ends["all data in one place"] + 0.01
        ),
        "After eight epochs, at least half of similar clients' work survives the mean": (
            share["similar clients"] > 0.5
        ),
        "Less of dissimilar clients' work survives than if they pulled in unrelated directions": (
            share["dissimilar clients"] < run.clients**-0.5
        ),
        "From one to eight epochs, dissimilar clients forget 0.2 accuracy or more": (
            own["dissimilar clients"][0] - own["dissimilar clients"][3] > 0.2
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# The [exercises of this lesson](exercises/01_federated_averaging_exercises.ipynb) check your answers and give hints. To try yourself:
#
# 1. **Build.** In *What the server does*, add only half of the mean update: `theta = theta + 0.5 * (weighted_mean(torch.stack(sent_back), samples) - theta)`. Measure the accuracy on
#    `images.test_images` after each round. How does it compare with FedAvg's line in Figure 1?
# 2. **Break.** Set `lr = 2`. Which of the three lines of Figure 1 suffers most, and why?
# 3. **Explain.** With one step of gradient descent per round, FedAvg equals gradient descent on all data. Why does the equality end with the second step?
#
# **Go deeper.** [01b](01b_drift_measured.ipynb) repeats this with five federations, counts the rounds that local steps save, and compares pairs of clients.
#
# ## References
#
# - H. B. McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS 2017.
# - S. P. Karimireddy et al.: SCAFFOLD: stochastic controlled averaging for federated learning. ICML 2020 (client drift).
#
# **Previous:** [00 Start here](00_start_here.ipynb) · **Next:** [02 Who wins depends on the test](02_when_clients_disagree.ipynb) · [Appendix](01b_drift_measured.ipynb) · [Glossary](99_glossary.ipynb)
