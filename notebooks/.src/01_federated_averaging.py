# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Federated averaging, from scratch
#
# **Question.** How can clients train one model together when no data leave them, and what happens to each
# client's work when their data are unlike?
#
# **You will** write federated averaging in a dozen lines of plain PyTorch, find that the package computes the
# same weights, and see client drift: what alike clients and unlike clients do to each other's work.
#
# **Before this:** `00_start_here`. **Minutes on two cores:** 0.5
#
# **Paper.** H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, *Communication-Efficient
# Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

# %%
import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cflkit import datasets, methods, models, papers, partition, plots, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, Jobs, LocalTraining

plots.style()

# %% tags=["parameters"]
clients = 6  # m
rounds = 10  # of communication
local_epochs = 2  # passes over a client's data in a round
batch_size = 16  # samples a local step
lr = 0.1  # learning rate of the clients
seed = 0  # partition, initial model, batch orders

# %%
run = papers.lessons.FederatedAveraging.of(globals())

# %% [markdown]
# ## The clients
#
# Six clients share the digits at random: their data differ, their *distributions* do not (IID: independent and
# identically distributed). That is the easy case, and the one to begin with. The model is as plain as can be,
# softmax regression on 8×8 pixels: its loss is convex, so whatever goes wrong below is federation's doing.

# %% tags=["nbval-check-output"]
images = datasets.load("digits-8x8")
images, alike = partition.iid(images, clients=run.clients, draws=230, seed=run.seed)
print("training samples:", *[len(indices) for indices in alike.train])

# %% [markdown]
# ## The algorithm
#
# Client $i$ with $n_i$ samples has the loss $f_i(\theta)$, its mean over them. Together the clients want to
# minimise
#
# $$f(\theta) = \sum_i \frac{n_i}{n} f_i(\theta),\qquad n = \sum_i n_i.$$
#
# Sending gradients after each step would do, but sending is dear. **Federated averaging** lets each client
# take many steps of SGD alone, starting from the common $\theta^t$, and averages the results:
#
# $$\theta^{t+1} = \sum_i \frac{n_i}{n}\,\theta_i^t \;=\; \theta^t + \sum_i \frac{n_i}{n}\,\Delta_i^t ,
# \qquad \Delta_i^t = \theta_i^t - \theta^t .$$
#
# ### What a client does
#
# An ordinary training loop. The only thing to settle is the order of its batches: it must depend on the
# client and the round, and on nothing else, or two runs could not be compared. `federation` will hand the
# same order to this loop and to the package.

# %%
training = LocalTraining(epochs=run.local_epochs, batch_size=run.batch_size, lr=run.lr)
federation = Federation(images, alike, "linear", training, seed=run.seed)
pixels, labels = images.images.float() / 255, images.labels


# %%
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
# Send, wait, average. Nothing of a client's data appears here: only the parameters it sends back, and how
# many samples it has.

# %%
network = models.make("linear", images.shape, images.classes)
theta = federation.initial()
shares = torch.tensor([len(indices) for indices in alike.train]) / sum(map(len, alike.train))
for t in range(run.rounds):
    sent_back = []
    for client in range(run.clients):
        local = copy.deepcopy(network)
        vector_to_parameters(theta.clone(), local.parameters())
        sent_back.append(train_locally(local, client, t))
    theta = shares @ torch.stack(sent_back)
from_scratch = theta

# %% [markdown]
# ## The same with the package
#
# `methods.make("fedavg")` holds the server's side, `Federation.train` the clients'. The loop over rounds is
# `simulation.run`. Both must give the same 650 numbers, up to the rounding of float32: the package averages updates
# where the lines above average parameters, and rounds in other places.

# %%
fedavg = methods.make("fedavg", weighting="samples")
history = simulation.run({"FedAvg": fedavg}, federation, run.rounds)

# %% tags=["nbval-check-output"]
largest = (fedavg.models[0] - from_scratch).abs().max()
print("same parameters to 1e-5:", bool(largest < 1e-5))

# %%
figure, ax = plt.subplots(figsize=(5, 2.6))
plots.over_rounds(history.table(), "central_accuracy", "accuracy, central test set", ax)
ax.set(ylim=(0, 1), xticks=range(1, run.rounds + 1))
plt.show()

# %% [markdown]
# A few rounds of communication take the model nearly as far as it gets; the rest of the curve wavers around that. No
# client has seen more than its own images.
#
# ## Client drift
#
# Averaging parameters is exact after *one* step of SGD: the mean of the steps is the step of the mean loss.
# After many steps each client has walked towards its own optimum, and the mean of the ends is not where the
# mean loss would have led. How bad that is depends on how much the clients disagree. So take a second
# federation whose clients see different classes.

# %% tags=["nbval-check-output"]
images, unlike = partition.ocfl(
    images,
    overlap="nonoverlapping",
    balance="balanced",
    clients=run.clients,
    draws=230,
    seed=run.seed,
)
for indices in (alike.train[0], unlike.train[0]):
    print("classes of client 0:", *np.unique(labels[indices]))

# %% [markdown]
# ### The paths of the clients
#
# Start all clients of both federations from the same model (the one trained above), let them train
# for 1, 2, … epochs, and look at where they are. Parameters have 650 dimensions; the drawing shows the
# two directions in which the end points of both federations spread most (principal components).


# %%
def after_epochs(split, epochs):
    own = LocalTraining(epochs=epochs, batch_size=run.batch_size, lr=run.lr)
    many = Federation(images, split, "linear", own, seed=run.seed)
    everyone = torch.arange(run.clients)
    return many.train(Jobs(from_scratch[None], torch.zeros_like(everyone), everyone), round=0)


epochs = [1, 2, 4, 8]
paths = {
    name: torch.stack([after_epochs(split, e) for e in epochs]) - from_scratch
    for name, split in {"alike (IID)": alike, "unlike (three clusters)": unlike}.items()
}

# %%
ends = torch.cat([path[-1] for path in paths.values()])
plane = torch.linalg.svd(ends - ends.mean(dim=0), full_matrices=False).Vh[:2]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True)
for ax, (name, path) in zip(axes, paths.items(), strict=True):
    flat = torch.cat([torch.zeros(1, *path.shape[1:]), path]) @ plane.T
    for client in range(run.clients):
        colour = plots.COLOURS[unlike.clusters[client]] if "unlike" in name else "0.6"
        ax.plot(*flat[:, client].T, marker="o", markersize=3, color=colour)
    ax.plot(*flat.mean(dim=1).T, marker="s", markersize=4, color="black", label="their mean")
    ax.set(title=name, xlabel="first component")
axes[0].set_ylabel("second component")
axes[0].legend()
plt.show()

# %% [markdown]
# Each line is a client walking away from the shared model at the origin, a dot after 1, 2, 4 and 8 epochs; black
# is the mean, which the server would take. Clients of unlike data part, cluster by cluster (colours), each towards
# its own optimum, and their mean hardly moves: this is **client drift**. (The plane shows where end points differ.
# What all clients have in common lies mostly outside it, so lengths are better measured than read off here.)
#
# ### In numbers
#
# How much of the clients' work survives averaging? Compare the length of the mean update with the mean length of
# the updates. The ratio is 1 when all pull the same way and $1/\sqrt m$ when they pull in unrelated directions.
# And what do the clients' own models forget meanwhile? Test them on all ten classes: before averaging (circles), and
# their mean (squares, dashed).


# %%
def surviving(path):
    return path.mean(dim=1).norm(dim=-1) / path.norm(dim=-1).mean(dim=1)


def central_accuracy(drifted):
    everyone = torch.arange(run.clients)
    predicted = federation.predict(Jobs(from_scratch + drifted, everyone, everyone), "central")
    return np.mean([(p.argmax(1) == images.test_labels).float().mean() for p in predicted])


# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8))
for name, path in paths.items():
    axes[0].plot(epochs, surviving(path), marker="o", label=name)
    [line] = axes[1].plot(epochs, [central_accuracy(drifted) for drifted in path], marker="o")
    means = [central_accuracy(drifted.mean(dim=0).expand_as(drifted)) for drifted in path]
    axes[1].plot(epochs, means, marker="s", linestyle="--", color=line.get_color())
axes[0].axhline(run.clients**-0.5, color="0.6", linestyle="--", label=r"unrelated: $1/\sqrt{m}$")
axes[0].set(ylabel="share that survives averaging", ylim=(0, 1))
axes[1].set(ylabel="accuracy, all ten classes", ylim=(0, 1))
for ax in axes:
    ax.set(xlabel="local epochs", xticks=epochs)
axes[0].legend(loc="upper left", bbox_to_anchor=(0, 1.35), ncols=2)
plt.show()

# %% [markdown]
# Most of what like clients do survives. Of unlike clients' work a small part does, less than if they pulled in
# unrelated directions: they pull *against* each other. More local epochs do not change that share much, but they make
# what is lost larger: on the right each unlike client trains itself out of the classes that it does not see, the more
# so the longer it trains alone. On this convex loss the mean (dashed) repairs the damage, by undoing the work. Deep
# networks are less forgiving, as the next notebook shows.
#
# The same disagreement, pair by pair, is what the next notebooks read clusters from. Within a cluster updates stay
# close; between clusters they do not:

# %% tags=["nbval-check-output"]
gamma = cosine_divergence(paths["unlike (three clusters)"][0])
same = unlike.clusters[:, None] == unlike.clusters
within = gamma[same & ~np.eye(run.clients, dtype=bool)].mean()
between = gamma[~same].mean()
print("clients of one cluster pull closer together:", bool(within < between))

# %% [markdown]
# ## Summary
#
# - Federated averaging is: send, train locally, average. The server sees parameters and sample counts.
# - It saves communication by many local steps, and pays with client drift.
# - Drift has a direction. Clients of like data drift together, which is both the trouble (for one model) and
#   the clue (to the clusters).
#
# ## Deviations from the paper
#
# 1. All clients take part in every round (McMahan et al. draw a fraction $C$ of them, Algorithm 1).
#
# ## Exercises
#
# 1. Set `local_epochs = 1` and `batch_size` to more than a client has, so that each client takes one step of
#    plain gradient descent. Show that one round then equals one step on all data together (section "Client
#    drift", first sentence). How large is the difference, and why is it not zero?
# 2. The server may treat the mean update as a gradient and apply momentum or Adam to it (Reddi et al., 2021):
#    `methods.make("fedavg", server="momentum", server_lr=0.1)`. Is it faster here? Why is 0.1 with $\beta_1 = 0.9$ not
#    a tenth of a step?
# 3. In the federation of unlike clients, let client 0 keep a third of its samples
#    (`dataclasses.replace(unlike, train=[...])`). What do `weighting="samples"` and `weighting="equal"` do to its
#    classes?
#
# ## References
#
# - H. B. McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS
#   2017.
# - S. Reddi et al.: Adaptive federated optimization. ICLR 2021.
# - S. P. Karimireddy et al.: SCAFFOLD: stochastic controlled averaging for federated learning. ICML 2020
#   (client drift).
