# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # When should the server split? OCFL in one picture
#
# **Question.** Twenty clients train one model together. Each of them turns its images by one of four angles, and the
# server does not know which client has which angle. In which round should it give up the one model, and who belongs together?
#
# ![Updates of twenty clients as the ribs of an umbrella in four colours, round by round, beside the temperature: it falls until round 3, rises in round 4, and the rise is ringed](../figures/03_the_star.gif)
#
# *Each rib is a client's update, in the colour of its true group, and the black handle is the mean of all updates.*
#
# **Answer.** OCFL measures how different the directions of the clients' updates are. It clusters the clients once, in the first round in which the directions become more different. If a single
# update already shows whose data are alike, waiting brings nothing. If every round brings new noise, the server must wait, and it must add up what it has seen.
#
# **You will**
#
# - see updates as an umbrella, and measure with the temperature how far it is open,
# - write the rule of OCFL,
# - ask whether the first round would have been enough, and see clients for whom it is not,
# - try a rule that can also say that there are no groups.
#
# **Before this:** [01 Federated averaging](01_federated_averaging.ipynb) and
# [02 Who wins depends on the test](02_when_clients_disagree.ipynb).
#
# **Study minutes:** 24. **Minutes on two cores:** 1
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustered Federated Learning*, IEEE BigData 2024, and
# its extended version, *One-Shot Clustering for Federated Learning Under Clustering-Agnostic Assumption*.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cflkit import check, clustering, datasets, methods, metrics, models, partition, plots
from cflkit import simulation
from cflkit.divergence import cosine_divergence, temperature
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts
from cflkit.reproduce import claims, papers, records

plots.style()

# %% [markdown]
# ## Twenty clients, four angles

# %% tags=["parameters"]
clients = 20  # m, five for each angle
samples = 40  # training and validation images per client, which are few
rounds = 10  # of communication
local_epochs = 5  # passes over a client's images per round
lr = 0.05  # learning rate of the clients
seed = 0  # who gets which images, the initial model, and the batch orders

# %%
run = papers.lessons.OCFLTemperature.of(globals())
digits = datasets.load("digits-8x8")
images, split = shifts.make(digits, "four", clients=run.clients, samples=run.samples, seed=run.seed)
training = LocalTraining(epochs=run.local_epochs, batch_size=16, lr=run.lr, momentum=0.9)
federation = Federation(images, split, "perceptron", training, seed=run.seed)
everyone = torch.arange(run.clients)

# %% [markdown]
# These are the clients of [lesson 00](00_start_here.ipynb). Four groups turn their digits by 0, 90, 180 and 270 degrees. All
# clients have all ten classes. (In the papers, clients differ in classes.)
#
# ## Updates are arrows
#
# In a round every client receives the same model $\theta^t$, trains it on its own images, and sends back the
# difference, its **update** $\Delta_i^t = \theta_i^t - \theta^t$. Clients
# with similar images should pull the model in similar directions.
#
# The next cell is federated averaging. It keeps the updates of each round.


# %%
def watch(federation, rounds):
    """Average the models of all clients for some rounds; return their updates round by round."""
    theta, updates = federation.initial(), []
    who = torch.arange(federation.clients)
    for t in range(rounds):
        trained = federation.train(Jobs(theta[None], torch.zeros_like(who), who), t)
        updates.append(trained - theta)
        theta = trained.mean(dim=0)
    return updates


updates = watch(federation, run.rounds)
gammas = [cosine_divergence(moved) for moved in updates]
temperatures = [temperature(gamma) for gamma in gammas]

# %% [markdown]
# Figure 1 draws the updates of a round as the umbrella of [lesson 01](01_federated_averaging.ipynb): the handle is the mean of all updates, which federated averaging keeps, and each update is a rib at its true angle to it. The umbrella is
# closed if all clients pull in the same direction, and it opens as they have less in common. The matrix $\Gamma$ beside it says how far apart any two updates are in direction. Move the slider.


# %% tags=["hide-input"]
# The plane in which the groups' mean updates of the last round differ most
final = (updates[-1] / updates[-1].norm(dim=1, keepdim=True)).double().cpu().numpy()
means = np.stack([final[split.clusters == group].mean(axis=0) for group in range(4)])
plane = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2][:2]
angles = [plots.openings(moved).mean() for moved in updates]
middles = [float(np.mean(np.flatnonzero(split.clusters == group))) for group in range(4)]
rising = [t + 1 for t in range(1, run.rounds) if temperatures[t] > temperatures[t - 1]]
first = rising[0] if rising else None


def frame(t):
    """Draw one round: the umbrella, the divergence matrix and the temperature so far."""
    figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.5), width_ratios=(1.15, 0.9, 1.2))
    plots.umbrella(updates[t], split.clusters, axes[0], plane, before=angles[0])
    axes[0].set_title(f"updates, {np.degrees(angles[t]):.0f}° from their mean")
    plots.divergence(gammas[t], split.clusters, axes[1], vmax=1.5)
    axes[1].set(title="distances Γ (dark: similar)", xlabel="clients of each angle", ylabel="")
    axes[1].set_xticks(middles, ("0°", "90°", "180°", "270°"))
    axes[1].set_yticks([])
    axes[2].plot(range(1, t + 2), temperatures[: t + 1], color="black", marker="o")
    seen = first is not None and t + 1 >= first
    if seen:
        ring = {"markersize": 15, "markerfacecolor": "none", "markeredgecolor": "black"}
        axes[2].plot(first, temperatures[first - 1], "o", markeredgewidth=2, **ring)
    low, high = min(temperatures), max(temperatures)
    room = 0.2 * (high - low) + 0.005
    axes[2].set(xlabel="round", xlim=(0.5, run.rounds + 0.5), ylim=(low - room, high + room))
    axes[2].set_title(f"temperature $T${f', first rise in round {first}' if seen else ''}")
    return figure


shown = sorted({0, 1, 2, (first or 4) - 1, min(5, run.rounds - 1), run.rounds - 1})
plots.show_frames(
    [frame(t) for t in shown],
    [f"round {t + 1}" + (": the first rise" if t + 1 == first else "") for t in shown],
    1,
    "**The umbrella closes, then opens.** Left: each client's update at its true angle to the mean update, which is the black handle; blue, orange, green and pink are 0°, 90°, 180° and 270°. "
    "(Lengths and angles to the handle are true, and angles between ribs are not. We chose the view in which the groups differ most.) The solid rim is the mean angle, and the dotted one that of round 1. "
    "Middle: the distance of each pair of clients. Right: the temperature, one number for how large these distances are, which is defined below (the axis does not begin at 0). The ring marks its first rise.",
    "Three panels for one round. Ribs of four colours spread from the foot of a black handle to a rim; a matrix of 20 by 20 "
    "clients has four dark blocks on its diagonal; a line of the temperature falls until round 3 and then rises.",
    first=shown.index((first or 4) - 1),
    name="03_the_star",
)

# %% [markdown]
# The bundles of ribs and the blocks of the matrix are there from round 1 on. What changes is how much all clients have in common. We think that at first
# all four groups can teach the model something, so the umbrella closes a little. From round 4 on each group pulls more and more in its own direction, so it opens, at last beyond the dotted rim.
#
# ## How far apart, in one number: the temperature
#
# The cosine distance of two updates is 0 if they point the same way, 1 at a right angle, and 2 if they are opposed:
#
# $$\gamma_{ij} = 1 - \frac{\Delta_i \cdot \Delta_j}{\lVert\Delta_i\rVert\,\lVert\Delta_j\rVert}, \qquad \Gamma = (\gamma_{ij}).$$
#
# The **temperature** says how large these distances are altogether. It is the root of the sum of all squared distances, divided by the value that this root would have
# if all $m(m-1)$ distances between $m$ clients were 2, the largest possible (extended paper, Definition 7 with $p = 2$):
#
# $$T(\Gamma) = \sqrt{\frac{\sum_{i,j}\gamma_{ij}^2}{4\,m(m-1)}}.$$
#
# So $T$ is 0 if all updates point the same way, and 0.5 if every two of them are at a right angle.


# %% tags=["nbval-check-output"]
def temperature_by_hand(moved):
    directions = moved / moved.norm(dim=1, keepdim=True)
    gamma = 1 - directions @ directions.T
    m = len(gamma)
    return (gamma.square().sum() / (4 * m * (m - 1))).sqrt().item()


print(
    "by hand and in the package:",
    np.allclose(temperature_by_hand(updates[0]), temperatures[0], atol=1e-4),
)

# %% [markdown]
# ## The rule
#
# OCFL clusters in the first round whose temperature exceeds the one before, $T_t > T_{t-1}$ (Algorithm 1 prints ≥). The rule has no threshold, and no number of
# rounds to wait. In the extended paper, the idea is that updates diverge because the clients' data do not fit together, from the start or after they have first converged. The first rise is the sign. (It came in round 2, before
# any fall, in 17 of the authors' 32 OCFL runs on Fashion-MNIST. The first paper's section III-C expects a rise and then a fall, but IV-F reports the reverse.)
#
# **Write it.** The extended paper (section 6.3) suggests watching a moving average over $w$ rounds instead. From round to round it gains $T_t$ and drops $T_{t-w}$, so it rises exactly if $T_t > T_{t-w}$. With $w = 1$ this is the rule above. In the first $w$ rounds it cannot rise. Return the first round in which it does, in two to four lines.
# Until they are right, the lesson goes on with the solution of exercise 03.3.


# %% tags=["nbval-check-output"]
def first_rise(temperatures, window):
    """Return the first round that fires, counted from 1, or None if none does."""
    raise NotImplementedError


first_rise = check.written("03.3", first_rise)
print("the rule fires in round", first_rise(temperatures, 1))

# %% [markdown]
# In that round OCFL needs a **clusterer**, an algorithm that makes clusters from the matrix. Any is allowed: OCFL is *clustering-agnostic*. Ours is [HDBSCAN](99_glossary.ipynb#hdbscan): it finds clients that lie close together, and needs
# no number of clusters. It must be told how small a cluster may be: at least 20 % of the clients, as in the papers. ([03b](03b_ocfl_controls.ipynb) compares it with mean shift, affinity propagation and k-means.)
#
# ## OCFL in fifteen lines
#
# Until the temperature rises, OCFL is federated averaging. In the round of the first rise it clusters the clients, and each cluster adds the mean update
# of its members to the common model. From then on it is federated averaging within each cluster. (Clients that fit nowhere, HDBSCAN's *noise*, form one more cluster.)


# %%
def ocfl(federation, rounds):
    clients = torch.arange(federation.clients)
    models, labels, before = federation.initial()[None], torch.zeros_like(clients), torch.inf
    for t in range(rounds):
        updates = federation.train(Jobs(models, labels, clients), t) - models[labels]
        if len(models) == 1:  # it has not split
            gamma = cosine_divergence(updates)
            if temperature(gamma) > before:  # never in round 1
                labels = torch.from_numpy(clustering.make("hdbscan").fit_predict(gamma))
                models = models.repeat(int(labels.max()) + 1, 1)  # a copy for each cluster
            before = temperature(gamma)
        means = [updates[labels == k].mean(dim=0) for k in range(len(models))]
        models = models + torch.stack(means)
    return labels, models


# %% tags=["nbval-check-output"]
labels, cluster_models = ocfl(federation, run.rounds)
ari = metrics.agreement(split.clusters, labels)["ari"]
print(f"{len(cluster_models)} clusters; agreement with the true groups (ARI) {ari:.2f}")

# %% [markdown]
# The [ARI](99_glossary.ipynb#ari) of 1 says that the clusters are the true groups.
#
# ## What clustering gains
#
# Here are the three ways to learn of [lesson 00](00_start_here.ipynb) over the rounds, beside an **oracle**, which is told the true groups.
#
# **Predict.** How many rounds after the split does OCFL need to be as good as the oracle?

# %%
four_ways = {
    "FedAvg (one model for all)": methods.make("fedavg"),
    "Local (each client alone)": methods.make("local"),
    "OCFL": methods.make("ocfl", clusterer="hdbscan"),
    "oracle (true groups)": methods.make("oracle", truth=split.truth),
}
history = simulation.run(four_ways, federation, run.rounds, progress=False)
ends = {name: row.get("accuracy", np.nan) for name, row in history.summary().items()}

# %% tags=["report", "hide-input", "nbval-ignore-output"]
table = history.table()
figure, ax = plt.subplots(figsize=(6.5, 3.2))
for number, (name, end) in enumerate(ends.items()):
    own = table[table["method"] == name]
    look = {"color": plots.COLOURS[(0, 1, 2, 6)[number]], "marker": plots.MARKERS[number]}
    ax.plot(
        own["round"], own["accuracy"], markersize=4, linestyle="-" if number < 3 else ":", **look
    )
    place = end + (0.03 if number == 3 else -0.03 if number == 2 else 0)
    ax.annotate(f"{name} {end:.2f}", (run.rounds + 0.2, place), va="center", color=look["color"])
ax.set(ylabel="accuracy, own test images", ylim=(0, 1))
ax.set_xlabel("round", x=0.32)
ax.spines["bottom"].set_bounds(0.8, run.rounds)
ax.set(xlim=(0.8, run.rounds * 1.6), xticks=range(1, run.rounds + 1, -(-run.rounds // 10)))
one, by_itself, clusters, oracle = ends.values()
title = "Clusters beat clients alone, and clients alone beat one model for all"
ax.set_title(plots.finding(title, one < by_itself < clusters), loc="left")
saved = plots.save(figure, "03_one_alone_groups")
plots.show(
    figure,
    2,
    "Mean accuracy of the clients' models on their own test images, over rounds.",
    "Four lines over ten rounds. One model for all ends lowest, clients alone in the middle, and OCFL at the "
    "top. It jumps in the round in which it splits, and meets the line of the true groups by round 9.",
)
read = [f"{name.partition(' (')[0]} {100 * end:.0f} %" for name, end in ends.items()]
print("digits read:", ", ".join(read))
print("figure   ", records.display_path(saved))

# %% [markdown]
# OCFL's line leaves FedAvg's in the round of the split, and about five rounds later it is level with the oracle.
#
# ## Would round 1 have been enough?
#
# In Figure 1, the four blocks were there from the start. So we let HDBSCAN cluster the matrix of every round.


# %% tags=["nbval-check-output"]
def clusters_of(moved):
    return clustering.make("hdbscan").fit_predict(cosine_divergence(moved))


def right(moved):
    """The agreement of the clusters of some updates with the true groups."""
    return metrics.agreement(split.clusters, clusters_of(moved))["ari"]


every = [right(moved) for moved in updates]
print("ARI in rounds 1, 2, …:", *(f"{value:.2f}" for value in every))

# %% [markdown]
# With these clients, round 1 would have been enough. At the papers' scale round 1 had the true groups in all scenarios that we tried, with one seed
# each ([report 93](93_report_ocfl.ipynb#does-the-moment-matter-here)). Where groups share classes, [03b](03b_ocfl_controls.ipynb#does-the-round-matter) has worse clusters in round 1 than at the first rise, with four of five seeds. When does waiting help?
#
# ## Where waiting pays
#
# Our clients train for five epochs, so each update tells about all of a client's images. Let each client take only **one step, on 16 images** (with the learning rate 0.5), and send it. Now the update depends mostly on which
# images were drawn, so a client's direction is hidden under noise that is new in every round.


# %%
def one_step(federation, images, rounds):
    """Average single steps on 16 images for some rounds; return the updates round by round."""
    network, theta, updates = models.make("perceptron", images.shape, 10), federation.initial(), []
    for t in range(rounds):
        vector_to_parameters(theta.clone(), network.parameters())
        moved = []
        for client in range(federation.clients):
            batch = federation.batches(client, t)[0]
            loss = F.cross_entropy(network(images.images[batch] / 255), images.labels[batch])
            gradient = torch.autograd.grad(loss, list(network.parameters()))
            moved.append(-0.5 * parameters_to_vector(gradient))
        updates.append(torch.stack(moved))
        theta = theta + updates[-1].mean(dim=0)
    return updates


# %%
noisy = one_step(federation, images, rounds=40)
sums = torch.stack(noisy).double().cumsum(dim=0)
alone = [right(moved) for moved in noisy]
together = [right(total) for total in sums]

# %% [markdown]
# Noise that is drawn anew grows like $\sqrt t$ if you add up $t$ rounds, and a direction that stays grows like $t$. So the server keeps for each client the **sum** of all that it has sent. (This is CFL-GP's idea.)
#
# **Predict.** From which round on does the sum show all four groups? Write it into the next cell and execute the cells from there. Figure 3 then shows your guess.

# %%
guess = None  # a round from 1 to 40


# %% tags=["hide-input"]
guess = check.guessed(guess, 1, 40)
walks = (sums - sums.mean(dim=1, keepdim=True)).cpu().numpy()


def widest(t):
    """Return walks up to round t in the two directions in which the sums of round t differ most."""
    plane = np.linalg.svd(walks[t], full_matrices=False)[2][:2]
    return np.concatenate([np.zeros((1, run.clients, 2)), walks[: t + 1] @ plane.T])


def walk_frame(t):
    """Draw the clients' sums up to a round as walks, and the agreement with the true groups."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 2.8), width_ratios=(1, 1.4))
    paths = widest(t)
    for client, group in enumerate(split.clusters):
        look = {"color": plots.COLOURS[group], "marker": plots.MARKERS[group]}
        axes[0].plot(*paths[:, client].T, linewidth=0.9, markersize=4, markevery=[-1], **look)
    reach = 1.1 * max(np.abs(paths).max(), 1e-9)
    axes[0].set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
    axes[0].spines[:].set_visible(False)
    axes[0].set_title(f"all that each client has sent, round {t + 1}")
    rounds = range(1, t + 2)
    blue, orange = ({"color": plots.COLOURS[k], "markevery": [-1]} for k in (0, 1))
    axes[1].plot(rounds, together[: t + 1], marker="o", label="the sum so far", **blue)
    axes[1].plot(rounds, alone[: t + 1], "s:", markersize=4, label="this round alone", **orange)
    if guess is not None:
        axes[1].axvline(guess, color="black", linestyle="--", linewidth=1, label="your guess")
    axes[1].set(xlim=(0.5, 40.5), ylim=(-0.1, 1.08), xlabel="round", ylabel="ARI")
    axes[1].set_title(f"agreement with the four angles: {together[t]:.2f}", loc="left")
    axes[1].legend(loc="center right")
    return figure


moments = [0, 4, 9, 39]
plots.show_frames(
    [walk_frame(t) for t in moments],
    [f"round {t + 1}" for t in moments],
    3,
    "**Out of twenty random walks, four beams grow.** Left: the sum of all that a client has sent, without what all clients share; a line is a client, and its mark is the present round. Each drawing has the two directions in "
    "which the sums differ most at this moment. No group was used to choose them. (Four beams need three directions, so on paper two of them can overlap.) Right: how well HDBSCAN's clusters agree with the true groups, of the sums (solid) and of each round alone (dotted).",
    "Left: twenty zigzag lines of four colours that begin in one tangle and leave it in bundles of one colour. Right: a "
    "solid line that climbs to 1 and stays there, and a dotted line that stays below 0.4.",
    first=len(moments) - 1,
)

# %% tags=["nbval-check-output"]
rise = first_rise([temperature(cosine_divergence(moved)) for moved in noisy], 1)
if rise is not None:
    print(f"the temperature rises first in round {rise}; ARI of this round: {alone[rise - 1]:.2f}")

# %% [markdown]
# In our run, HDBSCAN finds the four groups in no round alone, not even at the first rise. In the sum it finds all four from round 8 on. So waiting pays if noise is new in every round, and only if the server adds up. Waiting does not help against noise that
# stays: a client that has only ten images shows in every round [what is special about these ten](are_there_groups.md).
#
# ## A rule that can say no
#
# How long should the server wait? The temperature cannot tell: it rises for clients without any groups, too. We give twenty clients upright digits at random ([IID](99_glossary.ipynb#iid)).

# %% tags=["nbval-check-output"]
alike, without_groups = partition.iid(digits, clients=20, seed=run.seed)
iid = Federation(alike, without_groups, "perceptron", training, seed=run.seed)
heat = [temperature(cosine_divergence(moved)) for moved in watch(iid, 6)]
print("without groups, the temperature rises:", first_rise(heat, 1) is not None)

# %% [markdown]
# So the clusterer must notice that there are no groups (untested in the papers), and it does not always: OCFL kept all clients together in [59 of 78 draws without groups](are_there_groups.md).
#
# Here is a rule of ours. Keep two sums for each client, of odd and of even rounds. Cluster both. Split as soon as both give the *same* clusters, and more than one, in two successive rounds.
# Clusters that arise by chance in one half are unlikely to arise in the other. (To compare halves is an old test for clusterings. In a short search we found no paper where it starts the clustering of clients. In the package, `ocfl-replicated` has such a rule with one more condition.)
#
# **Predict.** The next cell tries this rule on the clients of Figure 1, on those of Figure 3, and on clients without groups that take single steps, too. For which of them does it split, and when?


# %%
def halves_agree(updates):
    """Return the first round in which odd and even rounds agree twice running, or None."""
    halves, before = [0, 0], False
    for t, moved in enumerate(updates):
        halves[t % 2] = halves[t % 2] + moved.double()
        if t > 0:
            odd, even = map(clusters_of, halves)
            now = odd.max() > 0 and metrics.agreement(odd, even)["ari"] == 1
            if now and before:
                return t + 1
            before = now
    return None


# %% tags=["nbval-ignore-output"]
cases = {
    "five epochs, four angles": updates,
    "one step, four angles": noisy,
    "one step, no groups": one_step(iid, alike, rounds=40),
}
agreed = {name: halves_agree(moved) for name, moved in cases.items()}
for name, t in agreed.items():
    print(f"{name:<25} {'the halves never agree' if t is None else f'split in round {t}'}")

# %% [markdown]
# In our run, the rule splits early where one round is clear, later where noise is new in every round, and never in 40 rounds of single steps without groups. (`ocfl-replicated` split in none of the 78 draws.)
#
# > **An honest limit.** The halves show which differences *persist*, and not that they matter. With few clients and few images the rule can fire falsely where there are no groups, because what is peculiar to
# > a client's images repeats in every round. Two halves of a client's images, instead of its rounds, should avoid this, but then clients need more images. And the rule can split too early, with two angles in one cluster. On twenty other draws, the claim about the sum of 40 rounds held in 18, and so did the one about the halves.
#
# ## What we saw
#
# - The angle between updates tells which clients have similar data. The temperature is one number for all angles, and OCFL splits at its first rise, once. With these clients, round 1 would have been enough.
# - With few images per client and groups that need different models, one model per cluster is best, and one model for all is last.
# - Waiting pays where noise is new in every round, if the server adds up what clients send.

# %% tags=["claims"]
claims.check(
    "03_ocfl_temperature",
    {
        "The temperature falls before it rises, and OCFL finds the four groups": (
            temperatures[1] < temperatures[0] and bool(rising) and ari == 1
        ),
        "One model ends below clients alone, and clients alone below OCFL": (
            one < by_itself < clusters
        ),
        "HDBSCAN finds the groups in round 1, too": every[0] == 1,
        "With one step per round, no round alone shows the four groups, and 40 rounds' sum usually does": (
            max(alone) < 1 and together[-1] == 1
        ),
        "Within 40 rounds the halves usually agree for four angles, and never without groups": (
            agreed["one step, four angles"] is not None and agreed["one step, no groups"] is None
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Draw the temperature of the *sums* of Figure 3 over the rounds. Does it rise, and if so, when? More to write is in
#    [the exercises](exercises/03_ocfl_temperature_exercises.ipynb).
# 2. **Break.** Set `samples = 200`. Which of the four lines in Figure 2 moves most, and is clustering still worth it?
# 3. **Explain.** Three groups pull at 120 degrees from each other. Show that a large federation then has a temperature of about 0.61. Why can it not reach 1? (Hint: how
#    many clients can be opposed to each other, two by two?)
#
# **Go deeper.** [03b](03b_ocfl_controls.ipynb) has nine methods in lockstep, three of them in two versions, four clusterers, clients that come later, and the runs of the
# paper's own scenarios. [Report 93](93_report_ocfl.ipynb) compares them with the papers' tables. In the papers, updates are called *gradients*, and averaging is FedOpt with a server learning rate of 1 (appendix A.1). What counts is the change
# of $T$ and not its value (section 3.2), and a clustering that comes too early may find "an improper structure" (4.3). Algorithm 1 of the first paper begins with $T_{-1} = -\infty$, that of the extended one with $+\infty$, as here.
#
# ## References
#
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: *One-Shot Clustered Federated Learning*. IEEE BigData 2024.
# - R. J. G. B. Campello, D. Moulavi, J. Sander: *Density-Based Clustering Based on Hierarchical Density Estimates*. PAKDD 2013.
# - H. Kim et al.: *Clustered Federated Learning via Gradient-based Partitioning* (CFL-GP). ICML 2024.
# - T. Lange, V. Roth, M. L. Braun, J. M. Buhmann: *Stability-Based Validation of Clustering Solutions*. Neural Computation 2004.
#
# **Previous:** [02 Who wins depends on the test](02_when_clients_disagree.ipynb) · **Next:**
# [04 Sattler and Briggs](04_sattler_and_briggs.ipynb) · [Appendix](03b_ocfl_controls.ipynb) · [Glossary](99_glossary.ipynb)
