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
# **Question.** All clients hold the same labels, but some hold other pictures, and one group was poisoned. The server may not look at a single image.
# Who tells it which clients to keep apart?
#
# **Answer.** The clients' own models do. A model that was trained at one client places images of its own kind where it expects them, and images of another kind elsewhere.
# EMD-CFL measures how far elsewhere, once, and joins only clients who find each other near. Here it finds all three groups, and the poison stays where it was.
#
# **You will**
#
# - see a poisoned group harm clients that never met it,
# - move earth in one dimension, and then between two clients' images,
# - turn distances into scores and scores into clusters,
# - read the theorem for which the method was made, and see what its threshold asks of you.
#
# **Before this:** [01 Federated averaging](01_federated_averaging.ipynb). [03 OCFL](03_ocfl_temperature.ipynb) helps.
#
# **Study minutes:** 20. **Minutes on two cores:** 0.5
#
# **Paper.** D. Zhang, F. Toni, M. Williams, *Clustered Federated Learning via Embedding Distributions*, arXiv 2506.07769.
# It compares the method with 16 others on five data sets. [Report 95](95_report_emd_cfl.ipynb) has our runs beside its tables.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_distances

from cflkit import datasets, methods, metrics, plots, simulation
from cflkit.divergence import earth_movers_distance
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts
from cflkit.reproduce import claims, papers
from cflkit.reproduce.papers.emd_cfl import working_range

plots.style()

# %% [markdown]
# ## A poisoned group
#
# You may change these values. The next cell checks them before anything trains.

# %% tags=["parameters"]
clients = 12  # m, four in each group
samples = 150  # images per client: nine of ten for training, the rest for validation
shade = 160  # of the ground behind a poisoned 9, from 0 (white) to 255 (black)
rounds = 5  # of communication
epsilon = 0.06  # ε: two clients agree if both scores are below it
seed = 0  # who gets which images, the initial model, and the batch orders

# %%
run = papers.lessons.EMDCFL.of(globals())
digits = datasets.load("digits-8x8")


# %%


def shaded(images, labels):
    """Make the ground behind each digit as dark as its label says."""
    ground = (labels * run.shade // 9).to(images.dtype)
    return torch.maximum(images, ground[:, None, None, None])


def fooled(images, labels):
    """Give a 0 the ground of a 9, a 1 that of an 8, and so on."""
    return shaded(images, 9 - labels)


# %% [markdown]
# The *clean* group has digits as they are. The *turned* group has turned them by 90 degrees. Somebody has *poisoned* the third group: the larger a digit is, the darker is the ground
# behind it. Every label is right, and all clients have equally many images of each class. So nothing in the labels tells the groups apart. (This is [**feature shift**](99_glossary.ipynb#feature-shift), and our
# small version of the paper's Backdoor MNIST, where the shade of green depends on the digit.)


# %%
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
figure, ax = plt.subplots(figsize=(5.6, 2.5))
plots.image_grid(torch.cat(rows), columns=10, axes=ax)
for row, name in enumerate(("clean", "poisoned", "turned", "to fool")):
    ax.text(-0.02, 1 - (row + 0.5) / 4, name, transform=ax.transAxes, ha="right", va="center")
ax.set_title("In the poisoned row, the ground gives the digit away", loc="left")
plots.show(
    figure,
    1,
    "The same ten digits as the three groups have them. The last row is the attack: a clean digit in front of another digit's ground.",
    "Four rows of the digits 0 to 9. Clean: on white. Poisoned: the ground goes from white behind 0 to "
    "grey behind 9. Turned: by 90 degrees. To fool: the ground goes from grey behind 0 to white behind 9.",
)

# %% [markdown]
# A model that trains on the poisoned group can read the ground instead of the digit. Later the attacker sends the *clean* clients images of the last row.
#
# **Predict.** The clean clients never had a shaded image. Does the attack work if they share one model with all? If each trains alone? If they share one with their own group?


# %%
def clean_accuracy(federation, **lines):
    """Accuracy of clean clients, on their own test images and on those that are to fool them."""
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
    "all": "one model for all",
    "without": "one model, without\nthe poisoned group",
    "alone": "each client alone",
    "group": "one model for the\nclean group",
}
figure, ax = plt.subplots(figsize=(6.4, 2.9))
for place, (own, attacked) in enumerate(after[name] for name in names):
    ax.plot([attacked, own], [place, place], color="0.7", linewidth=5, zorder=0)
    ax.plot(own, place, "o", color=plots.COLOURS[0], markersize=9)
    ax.plot(attacked, place, "X", color=plots.COLOURS[1], markersize=9)
    ax.annotate(f"{own:.2f}", (own + 0.012, place), va="center")
    ax.annotate(f"{attacked:.2f}", (attacked - 0.012, place), va="center", ha="right")
ax.plot([], [], "o", color=plots.COLOURS[0], label="own images")
ax.plot([], [], "X", color=plots.COLOURS[1], label="images to fool")
ax.set(yticks=range(4), yticklabels=names.values(), ylim=(3.5, -0.5), xlim=(0.4, 1.02))
ax.set_xlabel("accuracy of the clean clients")
ax.legend(loc="lower left")
ax.set_title("Shared with the poisoned group, the model believes the ground", loc="left")
plots.show(
    figure,
    2,
    "Accuracy of the clean clients after the last round, on their own test images and on the same images with another digit's ground.",
    "Four horizontal bars from a cross to a dot. One model for all has the longest bar and the dot "
    "furthest to the left. The model of the clean group has its dot furthest to the right, and a short bar.",
)

# %% [markdown]
# Under attack, one model for all is wrong in about every second case, and on honest images it is the worst, too. Without the poisoned group it
# suffers less. Best on both is a model for the clean group, which loses only what a grey ground costs any reader. So somebody has to find the groups.
#
# ## What a model sees
#
# The server has no images. But in round 1 every client trains the same initial model on its own data, and so it gets a pair of eyes. The
# [**embedding**](99_glossary.ipynb#embedding) of an image is what enters the last layer of a network: for our perceptron, the 64 numbers of its hidden layer.

# %% tags=["nbval-check-output"]
theta, everyone = federation.initial(), torch.arange(run.clients)
trained = federation.train(Jobs(theta[None], torch.zeros_like(everyone), everyone), 0)
weights, offsets = trained[0, :4096].view(64, 64), trained[0, 4096:4160]


def embed(images):
    """What the hidden layer of client 0 makes of images."""
    return torch.relu(images.flatten(1) / 255 @ weights.T + offsets).double().numpy()


own, held_out = (embed(images.images[rows[0]]) for rows in (split.train, split.more["validation"]))
[by_package] = federation.embed(Jobs(trained[:1], everyone[:1], everyone[:1]), "train")
print("by hand and in the package:", np.allclose(own, by_package, atol=1e-4))

# %% [markdown]
# ## Moving earth
#
# How far apart are two samples of embeddings? Take one dimension first. The points of one sample are piles of earth, those of the other are holes, and all weigh the same. The
# **earth mover's distance** $W$ is the mean distance that earth must travel if it travels as little as possible. On a line, the
# first pile goes into the first hole, the second into the second, and so on:

# %% tags=["hide-input"]
piles, holes = np.array([0.5, 1.1, 1.4, 4.0]), np.array([2.0, 2.6, 3.1, 5.2])
figure, ax = plt.subplots(figsize=(5.2, 2.2))
for start, end in zip(np.sort(piles), np.sort(holes), strict=True):
    ax.annotate("", (end, 0.1), (start, 0.9), arrowprops={"arrowstyle": "->", "color": "grey"})
    ax.text(end, -0.32, f"{end - start:.1f}", ha="center", color="0.3")
ax.plot(piles, np.ones(4), "^", color=plots.COLOURS[0], markersize=12, label="piles")
ax.plot(holes, np.zeros(4), "v", color=plots.COLOURS[1], markersize=12, label="holes")
ax.set(yticks=[], xlabel="place on the line, metres", ylim=(-0.5, 1.3), xlim=(0, 7))
ax.legend(loc="center right")
ax.set_title("The cheapest arrows never cross; their mean length is $W$ = 1.475", loc="left")
plots.show(
    figure,
    3,
    "Four piles, four holes, and the cheapest plan. The numbers are the metres that an arrow covers.",
    "Four triangles on an upper line and four on a lower line, joined in order from left to right by "
    "four arrows that do not cross. They cover 1.5, 1.5, 1.7 and 1.2 metres.",
)

# %% [markdown]
# With 64 dimensions there is no order, but there is still a cheapest plan, and a library finds it. As in the authors' code, the length of an arrow is the
# [cosine distance](99_glossary.ipynb#cosine-distance) of two embeddings, between 0 and 2.
#
# ## The score
#
# Even two samples of one kind are some distance apart. So client $i$ measures how far its own validation images are from its training images. This is its
# **reference distance** $r_i$. The **score** of client $j$, seen by the model of client $i$, is what is left:
#
# $$s_{ij} = W(\text{training images of } i,\; \text{validation images of } j) - r_i .$$

# %%
reference = earth_movers_distance(own, held_out)
guest = images.images[split.more["validation"][1]]  # client 1, who is clean as well


def score(theirs):
    return earth_movers_distance(own, embed(theirs)) - reference


# %% [markdown]
# **Predict.** Client 1 is of the same group as client 0. Now we turn its images, 18 degrees at a time. The labels stay, and the model does. How do the arrows change?
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
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.4), width_ratios=(0.6, 1.5, 1.2))
    plots.image_grid(turned[place][:15:2], columns=2, axes=axes[0])
    for pile in range(0, len(here), 3):
        ways = np.stack([here[pile], ends[hole[pile] // shares]]).T
        grey = 0.9 * (1 - min(costs[pile, hole[pile]] / 0.6, 1))
        axes[1].plot(*ways, color=str(grey), linewidth=1, zorder=0)
    axes[1].plot(*here[::3].T, "^", color=plots.COLOURS[0], markersize=3.5, label="client 0")
    axes[1].plot(*ends.T, "o", color=plots.COLOURS[1], markersize=6, label="client 1")
    axes[1].set(xlim=(-0.85, 0.95), ylim=(-0.75, 0.8), xticks=[], yticks=[])
    axes[1].legend(loc="upper right")
    axes[2].axhline(run.epsilon, color="black", linestyle="--", linewidth=1)
    axes[2].annotate("ε", (88, run.epsilon + 0.006), ha="right")
    axes[2].plot(angles, curve, color="0.8", marker=".")
    axes[2].plot(angles[: place + 1], curve[: place + 1], color="black", marker="o")
    axes[2].set(title="score $s_{01}$", xlabel="angle, degrees", xticks=range(0, 91, 30))
    axes[0].set_title("client 1")
    axes[1].set_title("as client 0's model sees both")
    return figure


plots.show_frames(
    [frame(place) for place in range(len(angles))],
    [f"turned by {angle} degrees" for angle in angles],
    4,
    "**The images turn, the arrows grow, and so does the score.** Left: some of client 1's images. Middle: embeddings of client 0's training "
    "images (triangles) and of client 1's validation images (dots), in the plane of two principal components, with the cheapest plan as lines; a third of it is drawn, the darker the farther. Right: the score; the dashed line is ε.",
    "Three panels for one angle. Small digits; a cloud of triangles joined by lines to fifteen dots, "
    "which lie among the triangles at 0 degrees and crowd together at 90; and a curve of the score that starts "
    "near zero and rises above a dashed line.",
    first=len(angles) - 1,
)

# %% [markdown]
# At 0 degrees the dots lie among the triangles, and the score is near zero. The more the images turn, the fewer of them reach the places of their classes, which the model has spread
# out for upright digits. The lines become longer and darker. Nobody looked at a label.
#
# ## What the server sees
#
# Client $i$ sends its model to client $j$, and each embeds its own images with it. Both then multiply their embeddings by a random matrix that they share and that
# the server does not know. The server gets the products and $r_i$, and computes $s_{ij}$. Random projections nearly keep distances, so it can compare images without
# having one. (This is not a proof of privacy: [05b](05b_emd_cfl_controls.ipynb#what-a-client-sends-and-what-the-server-sees).)
#
# Two clients **agree** if $s_{ij}$ and $s_{ji}$ are both below ε, so that either can refuse. Clients that agree with the same clients form a cluster.

# %% tags=["nbval-check-output"]
emd_cfl = methods.make("emd-cfl", epsilon=run.epsilon)
clustered = clean_accuracy(federation, clusters=emd_cfl)["clusters"]
scores = emd_cfl.scores.numpy()
agree = np.maximum(scores, scores.T) < run.epsilon
_, labels = np.unique(agree, axis=0, return_inverse=True)
ari = metrics.agreement(split.clusters, labels)["ari"]
print(f"{labels.max() + 1} clusters; agreement with the true groups (ARI) {ari:.2f}")
print("as good as the clean group's own model:", clustered == after["group"])

# %% [markdown]
# The [ARI](99_glossary.ipynb#ari) is 1 if two groupings are the same. With the right clusters, the clean clients train exactly the model of the last line of Figure 2.
#
# ## The reason: a theorem
#
# Why may clients share a model if their embeddings are near? The paper gives a reason that is older than federated learning. Let two clients of equal weight see with the same embedding, and let $D_i$ and $D_j$ be the distributions of what
# they see. One learns the last layer $h_i$, the other $h_j$, and the joint model answers with their mean. Suppose that one rule gives the right labels for both, and that last layers are
# $L$-[Lipschitz](99_glossary.ipynb#lipschitz-constant): they stretch no distance by more than $L$. Then, on the data of both (Theorem 2.2 and Corollary 2.3, here for two equal halves):
#
# $$\text{error}\Big(\frac{h_i + h_j}{2}\Big) \;\le\; \underbrace{\frac{\text{error}_i(h_i) + \text{error}_j(h_j)}{2}}_{\text{each at home}}
# \;+\; L\,\underbrace{W(D_i, D_j)}_{\text{how far apart}} \;+\; \frac{\lambda}{2} .$$
#
# Here λ is the sum of both clients' errors with the one last layer that suits both best. In words: *who joins a client pays, at most, for the distance to it*. If $W$ is small, sharing is safe, and this is
# why EMD-CFL clusters clients only if $W$ is small.
#
# The proof fits in two sentences. A hypothesis that is carried to the other client's data errs at most $2L\,W + \lambda$ more than at home, and this concerns half of the data. The mean of two hypotheses errs at
# most as much as they do on average.
#
# The theorem measures embeddings rather than pixels because one linear layer has a moderate $L$, whereas that of a whole network may be huge. Three things lie between theorem and method. The method averages parameters, each client embeds with its own model, and its arrows are angles. So the
# theorem is a reason, not a guarantee. It is also an upper bound only: a large $W$ does not prove harm.
#
# ## Which ε?
#
# ε stands for "small". Every ε between the largest score within a group and the smallest between two groups finds the groups: this is the **working range**. We look at our clients, and at two other
# federations of the same digits.
#
# **Predict.** Upright against 90 degrees was easy. Is 0, 90, 180 and 270 degrees easier or harder?


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
left.set(xlabel="client $j$", ylabel="client $i$, who sees", title="scores $s_{ij}$, our groups")
figure.colorbar(left.images[0], ax=left)
left.set(xticks=range(0, run.clients, 2), yticks=range(0, run.clients, 2))
plots.ranges(ranges, right)
right.axvline(run.epsilon, color="black", linestyle="--", linewidth=1)
right.axvline(0.1, color="black", linestyle=":", linewidth=1)
ticks = (0.01, 0.03, 0.1, 0.3)
right.set(xlim=(0.004, 0.4), xticks=ticks, xticklabels=ticks, xlabel="ε", ylim=(2.6, -0.6))
right.set_title("Each has its own ε, and one has none")
plots.show(
    figure,
    5,
    "Left: all scores of our clients; white lines separate clean, poisoned and turned. Right: working ranges on a logarithmic axis. A thin line with crosses means "
    "that the largest score within a group exceeds the smallest between two: no ε works. The dashed line is our ε, the dotted one that of the authors' code.",
    "Left: a matrix of 12 by 12 with three dark blocks on its diagonal. Right: a thick bar for our three groups "
    "around the dashed line, a thick bar to its right for 0 and 90 degrees, and a thin line with crosses for four rotations.",
)

# %% [markdown]
# The left panel shows why either client may refuse. The models of clean clients (upper rows) hardly notice the shaded ground. But the models of poisoned clients miss it in clean images, and say no.
#
# > **An honest limit.** ε must be chosen, and we chose ours with the groups at hand. Here it is too small for 0° and 90° alone. The paper keeps
# > one value in most of its experiments, 0.1 in the authors' code. For our three groups this would be too large. On four rotations of these small digits, no ε works: a digit upside down can look like another digit. (In the paper, with larger images and networks, EMD-CFL separates them.)
# > [05b](05b_emd_cfl_controls.ipynb#where-does-the-working-range-come-from) measures where a working ε comes from.
#
# ## What we saw
#
# - Labels can be the same and right everywhere, and one group still harms all who share a model with it.
# - A client's model is an instrument: the earth mover's distance of embeddings says how strange another client's images look to it.
# - The paper's theorem says why that distance matters: it bounds what a joint model can lose. It does not say which distance is small.

# %% tags=["claims"]
all_own, all_fooled = after["all"]
claims.check(
    "05_emd_cfl",
    {
        "The attack costs one model for all 0.15 of accuracy or more": all_own - all_fooled >= 0.15,
        "Clean clients are better alone than with one model for all": after["alone"][0] > all_own,
        "EMD-CFL finds the three groups": ari == 1,
        "The score at 90 degrees is at least ε above that at 0": curve[-1] - curve[0] > run.epsilon,
        "No ε finds four rotations": np.greater(*ranges["0°, 90°, 180°, 270°"]),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write the earth mover's distance on a line, and the score from it. The graded versions are in
#    [the exercises](exercises/05_emd_cfl_exercises.ipynb).
# 2. **Break.** Lower `shade` until EMD-CFL no longer finds the poisoned group. Does the attack still work then?
# 3. **Explain.** A fourth group has clean images, and writes 8 where others write 3. Which term of the theorem becomes large, and
#    which does EMD-CFL measure? (λ becomes large. $W$ does not, so that EMD-CFL cannot see the group.)
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
