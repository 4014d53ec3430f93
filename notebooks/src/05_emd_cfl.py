# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Seeing data without seeing it: EMD-CFL in one picture
#
# **Question.** All clients hold the same labels, but some hold different pictures, and one group was poisoned. The server may not look at a single image.
# How can it know which clients to keep apart?
#
# **Answer.** From the clients' own models. A network turns each image into a point. A client's own model puts images like its own into familiar places, and strange images into other places.
# EMD-CFL measures once how far these places are apart, and puts two clients into one cluster only if both find the other's images near. With a threshold that we chose knowing the groups, it finds all
# three here (and in 18 of 20 other draws of clients), and the clean clients stay clean.
#
# **You will**
#
# - see a poisoned group harm clients that have no poisoned image,
# - move earth in one dimension, and then between two clients' images,
# - turn distances into scores and scores into clusters,
# - see why a small distance is a good sign, and what the threshold asks of you.
#
# **Before this:** [01 Federated averaging](01_federated_averaging.ipynb). [03 OCFL](03_ocfl_temperature.ipynb) helps.
#
# **Study minutes:** 22. **Minutes on two cores:** 0.5
#
# **Paper.** D. Zhang, F. Toni, M. Williams, *Clustered Federated Learning via Embedding Distributions*, arXiv 2506.07769.
# It compares the method with 16 others on five data sets. [Report 95](95_report_emd_cfl.ipynb) has our runs beside its tables.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import PowerNorm
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_distances

from cflkit import datasets, methods, metrics, plots, simulation
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
rounds = 5  # of communication
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
# The *clean* group has digits as they are. The *turned* group has turned them by 90 degrees. Somebody has *poisoned* the images of the third group: the higher the digit, the darker the background, from white for 0 to
# dark grey for 9. Every label is right, and all clients have equally many images of each class. So nothing in the labels tells the groups apart. This is [**feature shift**](99_glossary.ipynb#feature-shift).
#
# (It is our small version of the paper's Backdoor MNIST, where the shade of green depends on the digit. Such a shade is called a [backdoor](99_glossary.ipynb#backdoor) feature.)


# %% tags=["hide-input"]
def scene(shift_of, size):
    """Deal the digits to groups of equal size, one for each way to change an image."""
    groups = [shifts.Group(number, shift) for number, shift in enumerate(shift_of)]
    recipe = {"name": "shaded", "clients": size, "samples": run.samples, "seed": run.seed}
    return shifts.by_groups(digits, groups, fooled, recipe | {"published": False})


# %%
training = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
changes = shifts.unchanged, shaded, shifts.rotated(90)
images, split = scene(changes, run.clients)
federation = Federation(images, split, "perceptron", training, seed=run.seed)

# %% tags=["hide-input"]
source, classes = digits.test_images, digits.test_labels
chosen = [int((classes == digit).nonzero()[0]) for digit in range(10)]
rows = [change(source[chosen], classes[chosen]) for change in (*changes, fooled)]
figure, ax = plt.subplots(figsize=(5.6, 2.2))
plots.image_grid(torch.cat(rows), columns=10, axes=ax)
for row, name in enumerate(("clean", "poisoned", "turned", "attack")):
    ax.text(-0.02, 1 - (row + 0.5) / 4, name, transform=ax.transAxes, ha="right", va="center")
ax.set_title("In the poisoned row, the background gives the digit away", loc="left")
plots.show(
    figure,
    1,
    "The same ten digits as the three groups have them. The last row is the attack: an upright digit on another digit's background.",
    "Four rows of the digits 0 to 9. Clean: on white. Poisoned: the background goes from white behind 0 to "
    "grey behind 9. Turned: by 90 degrees. Attack: the background goes from grey behind 0 to white behind 9.",
)

# %% [markdown]
# A model that trains on the poisoned group can read the background instead of the digit. All clients train honestly. But later an attacker sends the *clean* clients images of the last row.
#
# **Predict.** The clean clients have never had a shaded image. How much accuracy does the attack cost them if they share one model with all? If each trains alone? If they share one with their own group?


# %%
def clean_accuracy(federation, **lines):
    """Accuracy of the clean clients, on their own test images and on attacked ones."""
    history = simulation.run(lines, federation, run.rounds, progress=False)
    ends = history.summary()
    return {name: (ends[name]["clean_accuracy"], ends[name]["backdoor_accuracy"]) for name in ends}


# %%
oracle = methods.make("oracle", truth=split.truth)
local, fedavg = methods.make("local"), methods.make("fedavg")
after = clean_accuracy(federation, all=fedavg, alone=local, group=oracle)
unpoisoned = scene((shifts.unchanged, shifts.rotated(90)), run.clients // 3 * 2)
healthy = Federation(*unpoisoned, "perceptron", training, seed=run.seed)
after |= clean_accuracy(healthy, without=methods.make("fedavg"))

# %% tags=["hide-input"]
names = {
    "all": "FedAvg\n(one model for all)",
    "without": "FedAvg, without\nthe poisoned group",
    "alone": "Local\n(each client alone)",
    "group": "oracle\n(true groups)",
}
figure, ax = plt.subplots(figsize=(6.4, 3))
for place, (own, attacked) in enumerate(after[name] for name in names):
    ax.plot([attacked, own], [place, place], color="0.7", linewidth=5, zorder=0)
    ax.plot(own, place, "o", color=plots.COLOURS[0], markersize=9)
    ax.plot(attacked, place, "X", color=plots.COLOURS[1], markersize=9)
    ax.annotate(f"{own:.2f}", (own + 0.012, place), va="center")
    ax.annotate(f"{attacked:.2f}", (attacked - 0.012, place), va="center", ha="right")
ax.plot([], [], "o", color=plots.COLOURS[0], label="their own test images")
ax.plot([], [], "X", color=plots.COLOURS[1], label="attacked images")
ax.set(yticks=range(4), yticklabels=names.values(), ylim=(3.5, -0.5), xlim=(0.4, 1.02))
ax.set_xlabel("accuracy of the clean clients (the axis begins at 0.4)")
ax.legend(loc="lower left")
figure.suptitle("The attack costs most if the model is shared with the poisoned group", fontsize=10)
plots.show(
    figure,
    2,
    "Accuracy of the clean clients after the last round, on their own test images and on the same images with another digit's background.",
    "Four horizontal bars from a cross to a dot. FedAvg has the longest bar and the dot "
    "furthest to the left. The oracle has its dot furthest to the right, and a short bar.",
)

# %% [markdown]
# The attack costs most with FedAvg, less alone, and least within the own group. FedAvg's model is wrong for about every second attacked image, and on the clients' own images it is the worst, too.
# Without the poisoned group it suffers less, but still more than a client alone. Best on both is the oracle, which has one model for the clean group. It still loses 0.10 under attack, and we think that
# this is because digits on grey are harder to read. So somebody has to find the groups.
#
# ## What a model sees
#
# The server has no images. But in round 1 every client trains the same initial model on its own data. This trained model decides which images look familiar to the client. The
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
# How far apart are two samples of embeddings? Take one dimension first. The points of one sample are piles of earth, the points of the other are holes, and all have the same size. The
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
ax.set_title("The cheapest arrows never cross; their mean length is $W$ = 1.475", loc="left")
plots.show(
    figure,
    3,
    "Four piles, four holes, and the cheapest plan. The numbers are the metres that an arrow covers.",
    "Four triangles on an upper line and four on a lower line, joined in order from left to right by "
    "four arrows that do not cross. They cover 1.5, 1.5, 1.7 and 1.2 metres.",
)

# %% [markdown]
# In 64 dimensions points have no order, but there is still a cheapest plan, and a library finds it. As in the authors' code, the length of an arrow is the
# [cosine distance](99_glossary.ipynb#cosine-distance) of two embeddings, between 0 and 2.
#
# ## The score
#
# Even two random samples from the same client have a distance above 0. So client $i$ measures how far its own validation images are from its training images. This is its
# **reference distance** $r_i$. The **score** of client $j$, seen by the model of client $i$, is the distance minus this reference:
#
# $$s_{ij} = W(\text{training images of } i,\; \text{validation images of } j) - r_i .$$

# %%
reference = earth_movers_distance(own, held_out)
guest = images.images[split.more["validation"][1]]  # client 1, who is clean as well


def score(theirs):
    return earth_movers_distance(own, embed(theirs)) - reference


# %% [markdown]
# **Predict.** Client 1 is of the same group as client 0. Now we turn its images, 18 degrees at a time. The labels and the model stay the same. At which angle does the score exceed our threshold, ε = 0.06?
#
# Move the slider of Figure 4.


# %% tags=["hide-input"]
def unit(points):
    return points / np.linalg.norm(points, axis=1, keepdims=True)


plane = PCA(2).fit(unit(own))
angles = range(0, 91, 18)
turned = [shifts.rotated(angle)(guest, None) for angle in angles]
curve = [score(theirs) for theirs in turned]
shares = len(own) // len(guest)  # so many training images go to each of the other client's


def frame(place):
    """Draw one angle: some images, the plan of transport, and the score so far."""
    there = embed(turned[place])
    costs = np.repeat(cosine_distances(own, there), shares, axis=1)
    _, hole = linear_sum_assignment(costs)
    here, ends = plane.transform(unit(own)), plane.transform(unit(there))
    figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.5), width_ratios=(0.6, 1.5, 1.2))
    plots.image_grid(turned[place][:15:2], columns=2, axes=axes[0])
    for pile in range(0, len(here), 4):
        ways = np.stack([here[pile], ends[hole[pile] // shares]]).T
        grey = 0.9 * (1 - min(costs[pile, hole[pile]] / 0.6, 1))
        axes[1].plot(*ways, color=str(grey), linewidth=1, zorder=0)
    axes[1].plot(*here[::4].T, "^", color=plots.COLOURS[0], markersize=3.5, label="client 0")
    axes[1].plot(*ends.T, "o", color=plots.COLOURS[1], markersize=6, label="client 1")
    axes[1].set(xlim=(-0.85, 0.95), ylim=(-0.75, 0.8), xticks=[], yticks=[])
    axes[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2)
    axes[2].axhline(run.epsilon, color="black", linestyle="--", linewidth=1)
    axes[2].annotate(f"ε = {run.epsilon:g}", (90, run.epsilon - 0.014), ha="right")
    axes[2].plot(angles[: place + 1], curve[: place + 1], color="black", marker="o")
    axes[2].set(title="score $s_{01}$", xlabel="angle, degrees", xticks=(0, 30, 60, 90))
    axes[2].set(xlim=(-5, 95), ylim=(-0.02, 1.1 * max(curve)))
    axes[2].set_yticks((0, 0.05, 0.1, 0.15))
    axes[0].set_title("client 1")
    axes[1].set_title("as client 0's model sees both")
    side = "above" if curve[place] >= run.epsilon else "below"
    figure.suptitle(f"Turned by {angles[place]}°: score {curve[place]:.3f}, {side} ε", fontsize=10)
    return figure


plots.show_frames(
    [frame(place) for place in range(len(angles))],
    [f"turned by {angle} degrees" for angle in angles],
    4,
    "**The images turn, the arrows grow, and so does the score.** Left: some of client 1's images. Middle: embeddings of client 0's training "
    "images (triangles) and of client 1's validation images (dots), in the plane of two principal components, with the cheapest plan as lines; a quarter of it is drawn, and a darker line stands for a longer way. Right: the score; the dashed line is ε.",
    "Three panels for one angle. Small digits; a cloud of triangles joined by lines to fifteen dots, "
    "which lie among the triangles at 0 degrees and crowd together at 90; and a curve of the score that starts "
    "near zero and rises above a dashed line.",
    first=len(angles) - 1,
)

# %% [markdown]
# At 0 degrees the dots lie among the triangles, and the score is near zero. The model has learned where upright digits belong. The more the images turn, the farther they end from there, so the lines
# become longer and darker. At 36 degrees the score is still just below ε. The score itself uses no label.
#
# ## What the server sees
#
# Client $i$ sends its model to client $j$, and each of them embeds its own images with it. Both then multiply their embeddings by a random matrix that they share and that
# the server does not know. The server gets the products and $r_i$, and computes $s_{ij}$. Random projections nearly keep distances, so it can compare images without
# having one. (This is not a proof of privacy: [05b](05b_emd_cfl_controls.ipynb#what-a-client-sends-and-what-the-server-sees).)
#
# Two clients **agree** if both scores, $s_{ij}$ and $s_{ji}$, are below a threshold ε. One high score is enough to refuse. Clients with exactly the same
# list of agreements form a cluster. Nobody has to say how many clusters there are.

# %% tags=["nbval-check-output"]
emd_cfl = methods.make("emd-cfl", epsilon=run.epsilon)
clustered = clean_accuracy(federation, clusters=emd_cfl)["clusters"]
scores = emd_cfl.scores.numpy()
agree = np.maximum(scores, scores.T) < run.epsilon
_, labels = np.unique(agree, axis=0, return_inverse=True)  # equal rows: one cluster
ari = metrics.agreement(split.clusters, labels)["ari"]
print(f"{labels.max() + 1} clusters; agreement with the true groups (ARI) {ari:.2f}")
print("the same accuracy as the clean group's own model:", clustered == after["group"])

# %% [markdown]
# The [ARI](99_glossary.ipynb#ari) is 1 if the clusters are exactly the true groups. Then the clean clients train the same model as in the last line of Figure 2.
#
# ## Why is a small distance a good sign?
#
# The paper takes its reason from domain adaptation, where a model must answer on other data than those it has learned from. Suppose that two clients embed with the same network, and
# that they share the mean of their last layers. The paper then bounds the error of this shared layer on the data of both, under some assumptions. It is at most the sum of three terms:
#
# - the error that the two clients have anyway, each at home with its own last layer,
# - the distance $W$ of their embeddings times $L$, the largest factor by which a last layer can stretch a distance,
# - $\lambda/2$, where λ is what even the best common last layer gets wrong at both.
#
# In words: *sharing a model costs at most the distance of the two clients, plus what even the best common last layer gets wrong*. If $L\,W$ and λ are both small, sharing costs little. EMD-CFL can measure $W$, so it clusters clients
# only if $W$ is small. The bound works in one direction only: a large $W$ does not prove harm. [05b](05b_emd_cfl_controls.ipynb#the-reason-a-theorem) has the theorem, its assumptions, a proof, and what lies between it and the method.
#
# ## Which ε?
#
# ε says what counts as small. Every ε between the largest score within a group and the smallest between two groups finds the groups: this is the **working range**. We look at our clients, and at two other
# federations of the same digits.
#
# **Predict.** Which is easier to tell apart, two groups at 0 and 90 degrees, or four at 0, 90, 180 and 270 degrees?


# %%
def first_scores(images, split):
    """The scores after one round of training."""
    method = methods.make("emd-cfl")
    home = Federation(images, split, "perceptron", training, seed=run.seed)
    simulation.run({"EMD-CFL": method}, home, 1, progress=False)
    return working_range(method.scores.numpy(), split.clusters)


# %%
ranges = {"our three groups": working_range(scores, split.clusters)}
for name, version in (("0° and 90°", "quarter-turn"), ("0°, 90°, 180°, 270°", "four")):
    dealt = shifts.make(digits, version, clients=12, samples=run.samples, seed=run.seed)
    ranges[name] = first_scores(*dealt)

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
right.set_title("Two have a common ε, and one has none")
plots.show(
    figure,
    5,
    "Left: all scores of our clients. Right: working ranges on a logarithmic axis. A thin line with crosses means "
    "that the largest score within a group exceeds the smallest between two: no ε works. The dashed line is our ε, the dotted one that of the authors' code.",
    "Left: a matrix of 12 by 12 with three dark blocks on its diagonal. Right: a thick bar for our three groups "
    "around the dashed line, a thick bar to its right for 0 and 90 degrees, and a thin line with crosses for four rotations.",
)

# %% [markdown]
# The left panel shows why one refusal must be enough. The models of clean clients (upper rows) hardly notice the shaded background. But the models of poisoned clients miss it in clean images, and refuse.
#
# > **An honest limit.** ε must be chosen, and we chose ours with the groups at hand. It is too small for 0° and 90° alone. An ε of 0.08 would have suited both, but a server could not know this. The paper keeps
# > one value in most of its experiments, 0.1 in the authors' code. For our three groups this would be too large. On four rotations, no ε works with 150 images per client, and we think that few images are one cause. With MNIST, at the paper's scale, our own runs
# > have a working range from 0.02 to 0.08, and the paper separates the groups, too ([report 95](95_report_emd_cfl.ipynb#all-40-clients-of-the-paper)).
# > [05b](05b_emd_cfl_controls.ipynb#where-does-the-working-range-come-from) measures what a working ε depends on.
#
# <a id="groups-that-nobody-made"></a>
#
# ## Groups that nobody made
#
# So far we turned and shaded the images ourselves. PACS has photos, paintings, cartoons and sketches of the same seven things, and nobody made these styles for our
# experiment. The next cell reads runs that are stored with the kit, in which 18 clients have one style each.

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
# In all three runs, no cluster mixes two styles, and the cartoons and the sketches are whole. One run finds exactly the four styles. In the other two, paintings and photos fall into pieces.
# In one of these, three pairs of clients with the same style have a score above ε. In the other, one client with photos agrees with two with paintings, so that clients of one style no longer agree with exactly the
# same others. The pieces cost little here: EMD-CFL's accuracy is within 0.01 of the oracle's, and 0.10 to 0.16 above FedAvg's. (The ε was chosen for rotated MNIST, before PACS was run. With
# the authors' 0.1, no run finds the styles: the ARI is 0.32, 0.68 and 0.46.)
#
# The picture is not symmetric. Models trained on sketches find little that is strange (lowest rows), and models trained on paintings find sketches strangest.
#
# ## What we saw
#
# - Labels can be the same and right everywhere, and one group still harms the clean clients who share a model with it.
# - A client's model is an instrument: the earth mover's distance of embeddings says how strange another client's images look to it.
# - The paper's theorem says why that distance matters: it bounds what a shared model can lose. It does not say which distance is small enough.
# - EMD-CFL also finds groups that nobody made: with 64 pixels and a small network, no cluster mixed two styles of PACS in three runs.

# %% tags=["claims"]
all_own, all_fooled = after["all"]
claims.check(
    "05_emd_cfl",
    {
        "The attack costs the clean clients 0.15 of accuracy or more with FedAvg": all_own
        - all_fooled
        >= 0.15,
        "Clean clients are better alone than with FedAvg": after["alone"][0] > all_own,
        "EMD-CFL usually finds the three groups": ari == 1,
        "The score at 90 degrees is at least ε above that at 0": curve[-1] - curve[0] > run.epsilon,
        "No ε finds four rotations with 150 images per client": np.greater(
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
#    <details><summary>Answer</summary>λ becomes large, because no last layer can suit both. W stays small, so EMD-CFL cannot see the group.</details>
#
# **Go deeper.** [05b](05b_emd_cfl_controls.ipynb) compares embeddings with pixels, parameters and updates, runs thirteen methods side by side, and lets only some clients take part.
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
