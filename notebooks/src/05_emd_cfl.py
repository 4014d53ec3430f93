# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Found, but too late: why EMD-CFL clusters first
#
# **Question.** Somebody has poisoned the images of one group of clients. The labels are right, and the poisoned clients train honestly. Is it enough to find out who they are?
#
# ![Four rows of the digits 0 to 9: clean, on a grey that tells the digit, turned by 90 degrees, and the attack](../figures/05_poisoned.png)
#
# *A model that learns from the second row can read the grey instead of the digit. In the last row, the grey is that of another digit.*
#
# **Answer.** It matters *when* they are found. A model that was averaged with the poisoned group may already read the grey. EMD-CFL clusters before anything is averaged. Each client trains a model of its own, and an earth mover's distance measures
# how strange the images of another client look to this model.
#
# **You will**
#
# - watch a background fool one model for all, and see what one shared round costs,
# - write the cost that carries one client's images to another's,
# - turn the images by up to 180 degrees, and guess which angle is strangest to a model,
# - find out which thresholds work, and for which groups none does.
#
# **Before this:** [01 Federated averaging](01_federated_averaging.ipynb) and [03 When should the server split?](03_ocfl_temperature.ipynb)
#
# **Study minutes:** 22. **Minutes on two cores:** 0.5
#
# **Paper.** D. Zhang, F. Toni, M. Williams, *Clustered Federated Learning via Embedding Distributions*, arXiv 2506.07769.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import PowerNorm

from cflkit import check, datasets, methods, metrics, plots, simulation
from cflkit.divergence import earth_movers_distance
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts
from cflkit.reproduce import claims, papers, records
from cflkit.reproduce.papers.emd_cfl import working_range

plots.style()

# %% [markdown]
# ## A poisoned group

# %% tags=["parameters"]
clients = 12  # m, four in each group
samples = 150  # images per client: nine of ten for training, the rest for validation
shade = 160  # of the background behind a poisoned 9, from 0 (white) to 255 (black)
rounds = 10  # of communication
epsilon = 0.06  # ε: two clients agree if both scores are below it
seed = 0  # who gets which images, the initial model, and the batch orders

# %%
run = papers.lessons.EMDCFL.of(globals())
digits = datasets.load("digits-8x8")


# %%
def shaded(images, labels):
    """Make the background of each digit as dark as its label says."""
    background = (labels * run.shade // 9).to(images.dtype)
    return torch.maximum(images, background[:, None, None, None])


def fooled(images, labels):
    """Give a 0 the background of a 9, a 1 that of an 8, and so on."""
    return shaded(images, 9 - labels)


# %% [markdown]
# The *clean* group has digits as they are, and the *turned* group has turned them by 90 degrees. In the *poisoned* group, the larger the digit, the darker the background, from white for 0 to
# dark grey for 9. All clients have equally many images of each class, so nothing in the labels tells the groups apart. This is [**feature shift**](99_glossary.ipynb#feature-shift).
# (The paper's Backdoor MNIST has shades of green. Such a shade is a [backdoor](99_glossary.ipynb#backdoor) feature.)


# %% tags=["hide-input"]
def scene(shift_of, size):
    """Deal the digits to groups of equal size, one for each way to change an image."""
    groups = [shifts.Group(number, shift) for number, shift in enumerate(shift_of)]
    recipe = {"name": "shaded", "clients": size, "samples": run.samples, "seed": run.seed}
    return shifts.by_groups(digits, groups, fooled, recipe | {"published": False})


changes = shifts.unchanged, shaded, shifts.rotated(90)
images, split = scene(changes, run.clients)
# Two federations of the section on ε, which are made here, since too many images are refused here
others = {
    name: shifts.make(digits, version, clients=12, samples=run.samples, seed=run.seed)
    for name, version in (("0° and 90°", "quarter-turn"), ("0°, 90°, 180°, 270°", "four"))
}

# %% tags=["hide-input"]
source, classes = digits.test_images, digits.test_labels
chosen = [int((classes == digit).nonzero()[0]) for digit in range(10)]
rows = [change(source[chosen], classes[chosen]) for change in (*changes, fooled)]
figure, ax = plt.subplots(figsize=(5.6, 2.2))
plots.image_grid(torch.cat(rows), columns=10, axes=ax)
for row, name in enumerate(("clean", "poisoned", "turned", "attack")):
    ax.text(-0.02, 1 - (row + 0.5) / 4, name, transform=ax.transAxes, ha="right", va="center")
title = "In the poisoned row, the background gives the digit away"
ax.set_title(plots.finding(title, run.shade > 0), loc="left")
plots.save(figure, "05_poisoned")
plots.show(
    figure,
    1,
    "The same ten digits as the three groups have them. The last row is the attack: an upright digit on another digit's background.",
    "Four rows of the digits 0 to 9. Clean: on white. Poisoned: the background goes from white behind 0 to "
    "grey behind 9. Turned: by 90 degrees. Attack: the background goes from grey behind 0 to white behind 9.",
)

# %% [markdown]
# All clients train. Later an attacker sends the *clean* clients images of the last row. We compare one model for all, each client alone, OCFL, and an oracle, which knows the groups from the start.
#
# **Predict.** With the defaults, the clean clients reach 0.60 on attacked images with one model for all, and 0.90 with the oracle. OCFL starts with one model for all, and splits in round 2. Where between 0.60 and 0.90 will its clean clients be? Write the number into the next cell, and execute the cells from there. Figure 2 then shows your guess.

# %%
guess = None  # an accuracy, from 0 to 1

# %% [markdown]
# Now they train.

# %%
training = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
federation = Federation(images, split, "perceptron", training, seed=run.seed)


def clean_clients(**lines):
    """Accuracy of the clean clients on their own test images and on attacked ones, and the ARI."""
    ends = simulation.run(lines, federation, run.rounds, progress=False).summary()
    names = "clean_accuracy", "backdoor_accuracy", "ari", "clustering_round"
    return {line: [end.get(name) for name in names] for line, end in ends.items()}


after = clean_clients(
    all=methods.make("fedavg"),
    alone=methods.make("local"),
    ocfl=methods.make("ocfl"),
    group=methods.make("oracle", truth=split.truth),
)

# %% tags=["hide-input"]
guess = check.guessed(guess, 0, 1)
names = {
    "all": "FedAvg\n(one model for all)",
    "alone": "Local\n(each client alone)",
    "ocfl": "OCFL\n(groups, after a while)",
    "group": "oracle\n(groups from the start)",
}
figure, ax = plt.subplots(figsize=(6.4, 3))
for place, (own, attacked, *_) in enumerate(after[name] for name in names):
    ax.plot([attacked, own], [place, place], color="0.7", linewidth=5, zorder=0)
    ax.plot(own, place, "o", color=plots.COLOURS[0], markersize=9)
    ax.plot(attacked, place, "X", color=plots.COLOURS[1], markersize=9)
    ax.annotate(f"{own:.2f}", (own + 0.012, place), va="center")
    ax.annotate(f"{attacked:.2f}", (attacked - 0.012, place), va="center", ha="right")
ax.plot([], [], "o", color=plots.COLOURS[0], label="their own test images")
ax.plot([], [], "X", color=plots.COLOURS[1], label="attacked images")
if guess is not None:
    ax.plot(guess, 2, "kX", fillstyle="none", markersize=11, label="your guess")
low = min(1 if guess is None else guess, *(attacked for _, attacked, *_ in after.values())) - 0.12
ax.set(yticks=range(4), yticklabels=names.values(), ylim=(3.5, -0.5), xlim=(low, 1.02))
ax.set_xlabel(f"accuracy of the clean clients (the axis begins at {low:.1f})")
figure.legend(loc="outside lower center", ncols=3)
fooled_more = after["ocfl"][1] < after["group"][1] - 0.02
title = plots.finding("Found, and still fooled", after["ocfl"][2] == 1 and fooled_more)
ax.set_title(title, loc="left")
plots.show(
    figure,
    2,
    "Accuracy of the clean clients after the last round, on their own test images and on the same images with another digit's background.",
    "Four horizontal bars from a cross to a dot. FedAvg has the longest bar. OCFL's dot is at the oracle's, but its cross is far to the left of "
    "the oracle's, whose bar is short.",
)

# %% tags=["nbval-check-output"]
*_, agreement, when = after["ocfl"]
split_in = "has not split" if when is None else f"split in round {when:.0f}"
print(f"OCFL {split_in}; its clusters agree with the groups with an ARI of {agreement:.2f}")

# %% [markdown]
# With the defaults, OCFL's clusters are the true groups, and on clean images its clients are as good as the oracle's. Under attack they are not. (So it was in 17 of twenty other draws.) The only difference is one round, in which they averaged with the other groups. What they took from the poisoned one is still in their model at the end. (With more rounds it may fade.)
# Not all of the fall is poison: the strange background alone costs the oracle's clients 0.05, and clients alone 0.10. Clients alone (0.81) do better under attack than OCFL's (0.70).
#
# ## What a model sees
#
# So the groups must be found before the first average. EMD-CFL compares images; [05b](05b_emd_cfl_controls.ipynb) compares updates, too. In round 1 every client trains the same initial model on its own data. Afterwards, images like its own look familiar to this model. The
# [**embedding**](99_glossary.ipynb#embedding) of an image is what enters the last layer of a network: for our perceptron, the 64 numbers of its hidden layer.

# %% tags=["nbval-check-output"]
theta, everyone = federation.initial(), torch.arange(run.clients)
trained = federation.train(Jobs(theta[None], torch.zeros_like(everyone), everyone), 0)
# Client 0's first layer: 64 × 64 weights, and then 64 offsets
weights, offsets = trained[0, :4096].view(64, 64), trained[0, 4096:4160]


def embed(images):
    """What the hidden layer of client 0 makes of images."""
    return torch.relu(images.flatten(1) / 255 @ weights.T + offsets).double().numpy()


own, held_out = (embed(images.images[rows[0]]) for rows in (split.train, split.more["validation"]))
[by_package] = federation.embed(Jobs(trained[:1], everyone[:1], everyone[:1]), "train")
print("by hand and in the package:", np.allclose(own, by_package, atol=1e-4))

# %% [markdown]
# <a id="moving-earth"></a>
#
# ## Moving earth
#
# How far apart are two samples of embeddings? Take one dimension first. The points of one sample are piles of earth, the points of the other are holes, and all have the same size. (A smaller sample has larger points.) The
# **earth mover's distance** $W$ is the mean distance that earth must travel if it travels as little as possible. On a line, the
# first pile goes into the first hole, the second into the second, and so on:

# %% tags=["hide-input"]
piles, holes = np.array([0.5, 1.1, 1.4, 4.0]), np.array([2.0, 2.6, 3.1, 5.2])
figure, ax = plt.subplots(figsize=(5.2, 2.2))
for start, end in zip(np.sort(piles), np.sort(holes), strict=True):
    ax.annotate("", (end, 0.1), (start, 0.9), arrowprops={"arrowstyle": "->", "color": "grey"})
    ax.text(end, -0.32, f"{end - start:.1f}", ha="center", color="0.3")
ax.plot(piles, np.ones(4), "^", color=plots.COLOURS[0], markersize=12)
ax.plot(holes, np.zeros(4), "v", color=plots.COLOURS[1], markersize=12)
ax.text(5.7, 1, "piles", va="center", color=plots.COLOURS[0])
ax.text(5.7, 0, "holes", va="center", color=plots.COLOURS[1])
ax.set(yticks=[], xlabel="place on the line, metres", ylim=(-0.5, 1.3), xlim=(0, 7))
ax.set_title("No plan is cheaper than arrows that do not cross: $W$ = 1.475", loc="left")
plots.show(
    figure,
    3,
    "Four piles, four holes, and a cheapest plan. The numbers are the metres that an arrow covers.",
    "Four triangles on an upper line and four on a lower line, joined in order from left to right by "
    "four arrows that do not cross. They cover 1.5, 1.5, 1.7 and 1.2 metres.",
)

# %% [markdown]
# In 64 dimensions points have no order, but a library finds the cheapest plan. As in the authors' code, carrying one embedding to another costs their
# [cosine distance](99_glossary.ipynb#cosine-distance), here between 0 and 1.
#
# **Write it.** The next function gets two samples of embeddings, which are NumPy arrays, and returns all costs. It takes three lines. Until they are right, the lesson goes on with the solution of exercise 05.2.


# %% tags=["nbval-check-output"]
def cosine_costs(a, b):
    """Return the costs [n_a, n_b] for points a [n_a, d] and b [n_b, d]."""
    raise NotImplementedError


cosine_costs = check.written("05.2", cosine_costs)

# %% [markdown]
# ## The score
#
# Even two random samples from the same client have a distance above 0. So client $i$ measures how far its own validation images are from its training images. This is its
# **reference distance** $r_i$. The **score** of client $j$, seen by the model of client $i$, is the distance minus this reference (it can be negative):
#
# $$s_{ij} = W(\text{training images of } i,\; \text{validation images of } j) - r_i .$$

# %%
reference = earth_movers_distance(own, held_out)
guest = images.images[split.more["validation"][1]]  # client 1, who is clean as well


def score(theirs):
    return earth_movers_distance(own, embed(theirs)) - reference


# %% [markdown]
# **Predict.** Client 1 is of the same group as client 0. Now we turn its images, up to 180 degrees. Which looks stranger to the model: a digit that lies on its side, or one that is upside down?

# %% tags=["hide-input"]
from scipy.optimize import linear_sum_assignment

angles = range(0, 181, 30)
turned = [shifts.rotated(angle)(guest, None) for angle in angles]
curve = [score(theirs) for theirs in turned]
many = images.images[split.train[1]]  # of client 1's training images, as many as client 0 has
digits_of = [images.labels[split.train[client]] for client in (0, 1)]


def plan(angle):
    """Return how many images of each home digit the cheapest plan carries to each guest digit."""
    costs = cosine_costs(own, embed(shifts.rotated(angle)(many, None)))
    pile, hole = linear_sum_assignment(costs)
    table = np.zeros((10, 10))
    np.add.at(table, (digits_of[0][pile], digits_of[1][hole]), 1)
    return table


plans = [plan(angle) for angle in angles]
same = [np.trace(table) / table.sum() for table in plans]


def frame(place):
    """Draw one angle: some images, the plan of transport by digit, and the score so far."""
    figure, axes = plt.subplots(1, 3, figsize=(7.4, 2.7), width_ratios=(0.6, 1.2, 1.2))
    plots.image_grid(turned[place][:15:2], columns=2, axes=axes[0])
    axes[0].set_title("client 1")
    axes[1].imshow(plans[place], cmap="YlGnBu", vmin=0, vmax=max(map(np.max, plans)))
    axes[1].set(xlabel="digits of client 1", ylabel="digits of client 0")
    axes[1].set(xticks=range(10), yticks=range(10))
    axes[1].set_title(f"who is carried to whom\n{same[place]:.0%} to the same digit", fontsize=9)
    axes[2].axhline(run.epsilon, color="black", linestyle="--", linewidth=1)
    axes[2].annotate(f"ε = {run.epsilon:g}", (115, run.epsilon), va="top", ha="center")
    axes[2].plot(angles[: place + 1], curve[: place + 1], color="black", marker="o")
    axes[2].set(xlabel="angle, degrees", xticks=(0, 60, 120, 180), xlim=(-8, 188))
    low, high = min(0, *curve), max(run.epsilon, *curve)
    axes[2].set(ylim=(low - 0.1 * (high - low), 1.1 * high + 1e-3), ylabel="score $s_{01}$")
    side = "above" if curve[place] >= run.epsilon else "below"
    axes[2].set_title(f"score {curve[place]:.3f}, {side} ε", fontsize=9)
    return figure


plots.show_frames(
    [frame(place) for place in range(len(angles))],
    [f"turned by {angle} degrees" for angle in angles],
    4,
    "**How strange are turned digits?** Left: some of client 1's images. Middle: the cheapest plan from client 0's training images to those of client 1, by digit (dark: many). "
    "If most images go to the same digit, the diagonal is dark. Right: the score, which compares with client 1's validation images; the dashed line is ε.",
    "Three panels for one angle. Small digits; a matrix of ten by ten whose diagonal is dark at 0 degrees and pale at 90; a curve of the score "
    "that rises to 90 degrees, stays there until 120, and falls towards 180.",
    first=3,
)

# %% tags=["nbval-ignore-output"]
print("score at 0, 90 and 180 degrees:", *(f"{curve[k]:.3f}" for k in (0, 3, 6)))

# %% [markdown]
# At 0 degrees most of the earth goes to the same digit, although the plan knows no label. On its side, a digit looks like no digit that the model knows. Upside down, many digits
# look like digits again: a 0 stays a 0, and the 6 and the 9 change places. The plan carries many images to wrong digits, but it is *cheap*, so the score is low. A score says how strange images look, and not whether the model's answers would be right.
#
# ## Before the first average
#
# Client $i$ sends its embedding model to client $j$, and each of them embeds its own images with it. Both multiply their embeddings by a shared random matrix that
# the server does not know, and send the products. Random projections nearly keep distances, so with $r_i$ the server can compute $s_{ij}$. (This proves no privacy; the paper trusts the server: [05b](05b_emd_cfl_controls.ipynb#what-a-client-sends-and-what-the-server-sees).)
#
# Two clients **agree** if both scores, $s_{ij}$ and $s_{ji}$, are below a threshold ε. Either can refuse. Clients that agree with exactly the same clients form a cluster; its model averages over all clients with whom they agree.

# %% tags=["nbval-check-output"]
emd_cfl = methods.make("emd-cfl", epsilon=run.epsilon)
clustered = clean_clients(clusters=emd_cfl)["clusters"]
scores = emd_cfl.scores.numpy()
agree = (np.maximum(scores, scores.T) < run.epsilon) | np.eye(run.clients, dtype=bool)
_, labels = np.unique(agree, axis=0, return_inverse=True)  # equal rows: one cluster
ari = metrics.agreement(split.clusters, labels)["ari"]
print(f"{labels.max() + 1} clusters; agreement with the true groups (ARI) {ari:.2f}")
print("the same accuracies as the oracle:", clustered[:2] == after["group"][:2])

# %% [markdown]
# EMD-CFL found the true groups in 17 of twenty other draws. Where it finds them, its clean clients train the same model as the oracle's.
#
# ## Why is a small distance a good sign?
#
# (You can skip this section at first.) The paper's theorem 2.2 and its corollary 2.3 say how well two clients can answer together, by the mean of their answers. Both use the same embeddings, and each has its own last layer. There are two classes, all clients label by one rule, and no last layer stretches a distance by more than a factor $L$. Then the error of the mean on the data of both is at most the sum of three terms:
#
# - the error that the two clients have anyway, each with its own last layer,
# - the distance $W$ of their embeddings times $L$,
# - $\lambda/2$, where λ is the sum of both clients' errors with the one last layer that suits both best.
#
# EMD-CFL can measure $W$, so it puts clients into a cluster only if $W$ is small. (Which $W$ is small enough, the theorem does not say.) It cannot see λ, which is large where, against this assumption of one rule, one image means a 6 to one client and a 9 to another.
# [05b](05b_emd_cfl_controls.ipynb#the-reason-a-theorem) has a proof, and what lies between theorem and method.
#
# ## Which ε?
#
# A pair of clients agrees if the *larger* of its two scores is below ε. So we keep only this one. An ε finds the groups if it is above the largest one within a group, and below the smallest one between two groups. All such ε are the **working range**.
#
# **Predict.** Which ε works for two groups at 0 and 90 degrees, and which for four at 0, 90, 180 and 270 degrees?


# %%
def first_scores(images, split):
    """The scores after one round of training."""
    method = methods.make("emd-cfl")
    home = Federation(images, split, "perceptron", training, seed=run.seed)
    simulation.run({"EMD-CFL": method}, home, 1, progress=False)
    return working_range(method.scores.numpy(), split.clusters)


# %%
ranges = {"our three groups": working_range(scores, split.clusters)}
ranges |= {name: first_scores(*dealt) for name, dealt in others.items()}

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9), width_ratios=(1, 1.35))
plots.divergence(scores, split.clusters, left, vmax=0.2)
left.set(
    xlabel="images of client $j$", ylabel="model of client $i$", title="scores $s_{ij}$, our groups"
)
figure.colorbar(left.images[0], ax=left, label="score", ticks=(0, 0.1, 0.2))
middles = [np.flatnonzero(split.clusters == group).mean() for group in range(3)]
left.set_xticks(middles, ("clean", "poisoned", "turned"), fontsize=8)
left.set_yticks(middles, ("clean", "poisoned", "turned"), fontsize=8, rotation=90, va="center")
plots.ranges(ranges, right)
lines = {f"ours {run.epsilon:g}": (run.epsilon, "--", "right"), "authors' 0.1": (0.1, ":", "left")}
for name, (value, style, side) in lines.items():
    right.axvline(value, color="black", linestyle=style, linewidth=1)
    right.annotate(f" {name} ", (value, -0.42), ha=side, fontsize=8)
for place, ends in enumerate(ranges.values()):
    if np.greater(*ends):
        right.annotate(
            "no ε works",
            (np.sqrt(np.prod(np.maximum(ends, 1e-3))), place - 0.12),
            ha="center",
            fontsize=8,
        )
ticks = (0.01, 0.03, 0.1, 0.3)
right.set(xlim=(0.004, 0.4), xticks=ticks, xticklabels=ticks, xlabel="ε", ylim=(2.6, -0.7))
low, high = np.array(list(ranges.values())).T
right.set_title(plots.finding("No single ε works for all three", low.max() >= high.min()))
plots.show(
    figure,
    5,
    "Left: all scores of our clients (dark: small). Right: working ranges on a logarithmic axis. A thin line with crosses means "
    "that the largest score within a group exceeds the smallest between two: no ε works. The dashed line is our ε, the dotted one that of the authors' code.",
    "Left: a matrix of 12 by 12 with three dark blocks on its diagonal. Right: a thick bar for our three groups "
    "around the dashed line, a thick bar to its right for 0 and 90 degrees, and a thin line with crosses for four rotations.",
)

# %% [markdown]
# The left panel shows why one refusal must be enough. The models of clean clients (upper rows) hardly notice the shaded background. But to the models of poisoned clients, images without it look strange, so they refuse. Right: the ranges of our three groups and of the two angles overlap only near 0.08.
#
# > **An honest limit.** ε must be chosen, and we chose ours with the groups at hand. On four rotations no ε works, above all because upside-down digits look familiar; few images are another cause. With MNIST at the paper's scale, our runs
# > have a working range from 0.02 to 0.08. The paper's range is wide (appendix E.1), but missing in our copy, and the 0.1 of the authors' code is too large in these runs ([report 95](95_report_emd_cfl.ipynb#all-40-clients-of-the-paper)).
# > [05b](05b_emd_cfl_controls.ipynb#where-does-the-working-range-come-from) measures what a working ε depends on.
#
# <a id="groups-that-nobody-made"></a>
#
# ## Groups that nobody made
#
# PACS has photos, paintings, cartoons and sketches of the same seven things. In stored runs, 18 clients have one style each.

# %% tags=["hide-input"]
natural = records.committed(dataset="pacs-64")
held = {"paintings": 4, "cartoons": 4, "photos": 3, "sketches": 7}
edges = np.cumsum((0, *held.values()))
first = natural[0].rounds.query("method == 'EMD-CFL'").iloc[0]
seen = np.reshape([float(score) for score in first["scores"].split("|")], (18, 18))
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), width_ratios=(1.3, 1))
shown = left.imshow(seen.clip(0), cmap="viridis", norm=PowerNorm(0.4, vmin=0, vmax=0.6))
for edge in edges[1:-1] - 0.5:
    left.axhline(edge, color="white")
    left.axvline(edge, color="white")
left.set_xticks((edges[:-1] + edges[1:] - 1) / 2, held, fontsize=7, rotation=20)
left.set_yticks((edges[:-1] + edges[1:] - 1) / 2, held, fontsize=8)
left.set(xlabel="images of", ylabel="model of", title="scores")
bar = figure.colorbar(shown, ax=left, ticks=(0, 0.02, 0.1, 0.3, 0.6))
bar.ax.axhline(0.02, color="white", linewidth=2)
for place, name in enumerate(("FedAvg", "EMD-CFL", "Oracle")):
    found = [past.summary[name]["accuracy"] for past in natural]
    right.plot([place] * len(found), found, plots.MARKERS[place], color=plots.COLOURS[place])
right.set_xticks(range(3), ("FedAvg", "EMD-CFL", "oracle"))
right.set(xlim=(-0.5, 2.5), ylim=(0.25, 0.55), title="mean accuracy (axis from 0.25)")
plots.save(figure, "05_pacs")
plt.close(figure)

# %% tags=["nbval-check-output"]
for past in natural:
    own = past.summary["EMD-CFL"]
    print(f"seed {past.parameters['seed']}: {own['n_clusters']} clusters, ARI {own['ari']:.2f}")

# %% [markdown]
# ![A matrix of scores between 18 clients of four styles, with dark blocks on its diagonal, the darkest for sketches, and medium ones between paintings and photos; beside it the accuracies of three methods, of which FedAvg is lowest](../figures/05_pacs.png)
#
# *Left: the scores of the first run, dark where they are small; the white line in the scale is its ε of 0.02. Right: one mark per seed, after three rounds. (64 pixels, a small network: far below the paper's scale.)*
#
# No cluster mixes two styles, though in one run some models average over two. In two runs, paintings and photos fall into pieces. This
# costs little: EMD-CFL's accuracy is within 0.01 of the oracle's, and 0.10 to 0.16 above FedAvg's. (This ε was chosen before PACS was run. With
# the authors' 0.1, no run finds the styles. In the paper, with a pretrained ResNet18, EMD-CFL finds them.)
#
# ## What we saw
#
# - Labels can be right everywhere, and one group still harms the clients who average with it, even once.
# - The earth mover's distance of embeddings says how strange another client's images look to a client's model.
# - A low score does not mean that images are alike: upside-down digits have one.

# %% tags=["claims"]
all_own, all_fooled, *_ = after["all"]
claims.check(
    "05_emd_cfl",
    {
        "The attack costs the clean clients 0.15 of accuracy or more with FedAvg": (
            all_own - all_fooled >= 0.15
        ),
        "OCFL usually finds the three groups, and ends 0.1 or more below the oracle under attack": (
            agreement == 1 and after["group"][1] - after["ocfl"][1] >= 0.1
        ),
        "EMD-CFL usually finds the three groups": ari == 1,
        "The score at 90 degrees is at least ε above those at 0 and at 180": (
            curve[3] - max(curve[0], curve[6]) > run.epsilon
        ),
        f"No ε finds four rotations with {run.samples} images per client": np.greater(
            *ranges["0°, 90°, 180°, 270°"]
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write the earth mover's distance on a line, and the score from it. The graded versions are in
#    [the exercises](exercises/05_emd_cfl_exercises.ipynb).
# 2. **Break.** Lower `shade` until EMD-CFL no longer finds the poisoned group. Does the attack still work then?
# 3. **Explain.** A fourth group has clean images, but labels every 3 as an 8. Which of the three terms becomes large, and
#    which one does EMD-CFL measure?
#    <details><summary>Answer</summary>λ becomes large, because no last layer can suit both. W stays small, so EMD-CFL cannot see the group. (The theorem assumes one rule for all labels, so the paper claims nothing about such a group.)</details>
#
# **Go deeper.** [05b](05b_emd_cfl_controls.ipynb) compares embeddings with pixels, parameters and updates, runs thirteen methods side by side, and lets only some clients take part.
# The paper also proves that $W$ bounds how far apart the clients' gradients and parameters are, which older methods compare (theorem 2.4, corollary 2.5).
# [Report 95](95_report_emd_cfl.ipynb#a-poisoned-group-that-looks-the-same) has the poisoned group of the paper.
#
# ## References
#
# - D. Zhang, F. Toni, M. Williams: *Clustered Federated Learning via Embedding Distributions*. arXiv 2506.07769, 2025.
# - J. Shen, Y. Qu, W. Zhang, Y. Yu: *Wasserstein Distance Guided Representation Learning for Domain Adaptation*. AAAI 2018.
# - R. Flamary et al.: *POT: Python Optimal Transport*. JMLR 22, 2021.
#
# **Previous:** [04 Sattler and Briggs](04_sattler_and_briggs.ipynb) · **Next:** [06 FedCRef](06_fedcref.ipynb) ·
# [Appendix](05b_emd_cfl_controls.ipynb) · [Report](95_report_emd_cfl.ipynb) · [Glossary](99_glossary.ipynb)
