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
# **Question.** Many clients want to learn together without showing each other their data. What goes wrong
# when they are not all alike, and what can be done about it?
#
# **You will** see, in one figure, a federation that one model does not serve and the same federation after
# its clients were grouped; check that everything is installed; and find your way through the notebooks.
#
# **Before this:** nothing but some Python and the idea of gradient descent.
# **Minutes on two cores:** 0.5

# %%
import platform

import matplotlib.pyplot as plt
import numpy as np
import sklearn
import torch

import cflkit
from cflkit import datasets, methods, metrics, papers, partition, plots, simulation
from cflkit.federation import Federation, Jobs, LocalTraining, default_device

plots.style()

# %% [markdown]
# ## Parameters
#
# Every notebook has one cell of parameters. Change a value and run all cells again, or change it from
# outside with `python -m cflkit run`.

# %% tags=["parameters"]
clients = 9  # in three groups of three
draws = 250  # draws of samples a client, repeated ones dropped
rounds = 12  # of communication
seed = 0  # partition, initial model, batch orders

# %%
run = papers.lessons.StartHere.of(globals())

# %% [markdown]
# ## Is everything there?
#
# The kit runs on a CPU and takes a GPU by itself where it finds one. No network is needed for the lessons:
# their data, 1,797 handwritten digits, ship inside scikit-learn.

# %%
print(f"cflkit {cflkit.__version__}, Python {platform.python_version()}, torch {torch.__version__}")
print(f"scikit-learn {sklearn.__version__}, computing on: {default_device()}")
print("data sets by name:", ", ".join(datasets.names()))

# %% [markdown]
# ## A federation with a secret
#
# Think of nine offices that each collect handwritten digits. Three of them only ever see 0 to 3, three only
# 4 to 6, three only 7 to 9. Nobody knows that: the data stay where they are, and the server sees models
# alone. Below, a few images of one office of each kind.

# %% tags=["nbval-check-output"]
images = datasets.load("digits")
images, split = partition.ocfl(
    images,
    overlap="nonoverlapping",
    balance="balanced",
    clients=run.clients,
    draws=run.draws,
    seed=run.seed,
)
print("the secret:", *split.clusters)

# %%
figure, axes = plt.subplots(3, 1, figsize=(6, 2.4))
for group, ax in enumerate(axes):
    office = int(np.flatnonzero(split.clusters == group)[0])
    plots.image_grid(images.images[split.train[office][:12]], columns=12, axes=ax)
    ax.set_title(f"client {office}", loc="left")
plt.show()

# %% [markdown]
# ## One model for all, or one for each group
#
# **Federated averaging** sends one model to all clients, lets each train it on its own data, and averages
# what comes back. **OCFL**, one of the methods that this kit walks through, starts the same way but
# compares the directions in which clients pull, and splits them into groups as soon as they come apart.
# Both run here from the same start, on the same data.

# %%
federation = Federation(
    images, split, training=LocalTraining(epochs=3, batch_size=16, lr=0.1), seed=run.seed
)
line_up = {
    "one model": methods.make("fedavg", weighting="equal"),
    "clustered": methods.make("ocfl", clusterer="hdbscan"),
}
history = simulation.run(line_up, federation, run.rounds)

# %% tags=["nbval-check-output"]
last = history.summary()["clustered"]
print("groups found:", *line_up["clustered"].labels.tolist())
print(f"in round {last['clustering_round']}; agreement with the secret (ARI): {last['ari']:.2f}")

# %% [markdown]
# ARI, the adjusted Rand index, is 1 when two groupings are the same and near 0 for a random one. The method was told
# nothing about digits or offices, nor how many groups there are: it read them off the models' updates.
#
# ## The figure to remember
#
# How well does each client's model do on that client's own test images? F1 balances precision and recall, and is
# averaged over the classes that occur among labels or answers, so an answer that the client cannot have counts as a
# class failed. Each pair of bars is a client; grey is the one model for all, colour the model of its group.


# %%
def f1_of_clients(method):
    everyone = torch.arange(run.clients)
    predicted = federation.predict(Jobs(method.models, method.labels, everyone))
    return [metrics.scores(federation.targets(c), p)[0] for c, p in enumerate(predicted)]


one, grouped = (f1_of_clients(method) for method in line_up.values())

# %%
figure, ax = plt.subplots(figsize=(7, 2.8))
place = np.arange(run.clients)
ax.bar(place - 0.2, one, width=0.4, color="0.75", label="one model for all")
ax.bar(
    place + 0.2,
    grouped,
    width=0.4,
    color=[plots.COLOURS[k] for k in split.clusters],
    label="model of the client's group",
)
ax.set(xlabel="client (colour: its group)", ylabel="F1 on own test images", ylim=(0, 1.05))
ax.set_xticks(place)
ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2)
plots.save(figure, "00_one_model_or_one_for_each_group")
plt.show()

# %% [markdown]
# After these twelve rounds the one model is still torn between ten digits, for the pulls of the three groups undo each
# other. A group's model has a smaller task and clients who agree. That is the whole promise of clustered federated learning;
# the rest is the question of *how to find the groups*, without looking at the data, early, and without being
# told how many there are.
#
# ## The map
#
# | notebook | the question it answers |
# |---|---|
# | `00_start_here` | what is this for? |
# | `01_federated_averaging` | how do clients train one model together, and what is client drift? |
# | `02_when_clients_disagree` | how are clusters of clients simulated, and how does one model fail them? |
# | `03_ocfl_temperature` | when do updates betray the clusters, and what is gained by splitting then? |
# | `04_sattler_and_briggs` | what do two older ways to split need to be told? |
# | `05_emd_cfl` | can clients be told apart by what a network sees in their data, once and for all? |
# | `06_fedcref` | what if nobody has labels? |
# | `07_explaining_cluster_models` | what do the models of clusters look at? |
# | `90_ledger` | which published numbers do our runs reproduce? |
#
# Read 00 to 03 in order, and of the others what you like. Each notebook of a paper is both the lesson and the
# experiment: with its defaults it runs here in a few minutes; with the parameter files in `params/` the same cells run
# at the paper's scale, or at a reduced one. For instance, in this folder:
#
# `python -m cflkit run 03_ocfl_temperature.ipynb -f params/ocfl/reduced/mnist_15_nonoverlapping_balanced.yaml`
#
# ## Summary
#
# - Clients of unlike data pull a shared model in unlike directions, and it serves them late and unevenly.
# - Their updates alone tell who is like whom; grouping them gives each group a model that fits.
#
# ## Exercises
#
# 1. Set `rounds = 3`. Are the groups found already? Does clustering pay yet?
# 2. Set `clients = 30` and `draws = 80`. What happens to the grey bars, what to the coloured ones, and why?
#
# ## References
#
# - H. B. McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS
#   2017.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024.
