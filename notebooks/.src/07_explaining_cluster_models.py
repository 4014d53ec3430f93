# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What do the cluster models look at?
#
# **Question.** A cluster's model predicts its clients' images better than one model for all. Does it also look at the right places? And
# how would we measure that?
#
# **You will**
#
# - write GradCAM, a method that draws what a network looks at, in a dozen lines;
# - compare the maps of many models on one image;
# - score a map by deleting and inserting pixels in its order;
# - score all cluster models, as the extended OCFL paper does;
# - test these scores against maps that know nothing of the model.
#
# **Before this:** [03 One-shot clustering](03_ocfl_temperature.ipynb) and [04 Sattler and Briggs](04_sattler_and_briggs.ipynb).
#
# **Study minutes:** 35. **Minutes on two cores:** 1
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustering for Federated Learning Under Clustering-Agnostic
# Assumption*, section 5 and appendices A.4 and A.5 ("the paper").

# %% tags=["record"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from cflkit import assessment, claims, explain, papers, plots, records, simulation
from cflkit.papers.base import AS_PUBLISHED

plots.style()

# %% [markdown]
# ## Parameters
#
# The first part has the parameters of [lesson 03](03_ocfl_temperature.ipynb). The last part says how the models are explained. The
# digits are enlarged to 28 × 28 pixels here, because a map needs pixels.

# %% tags=["parameters"]
dataset = "digits"  # a name that cflkit.datasets knows, or the path of your own data
overlap = "nonoverlapping"  # or "overlapping": whether clusters share classes
balance = "balanced"  # or "imbalanced": clients and classes unevenly spread
clients = 15  # m
draws = 120  # draws per client, repeated ones dropped; None: pool size / m, as in the papers
partition_seed = 0  # who gets which samples
model = "compact-cnn"  # or "ocfl-cnn" (25 million parameters), "resnet34"
optimizer = "sgd"  # or "adam"
lr = 0.05  # learning rate of the clients
momentum = 0.0  # of SGD
weight_decay = 0.0  # of either optimiser
batch_size = 16  # samples per local step
local_epochs = 3  # passes over a client's data per round
rounds = 10  # of communication
window = 1  # rounds of the trigger's moving average; 1 is Algorithm 1
sattler_eps1 = None  # Sattler's ε₁; None: a tenth of the largest mean update so far
sattler_eps2 = None  # Sattler's ε₂; None: ten times ε₁
sattler_rounds = 5  # rounds before Sattler's method may split
briggs_rounds = 5  # rounds before Briggs' method clusters
briggs_threshold = 0.95  # cosine distance at which Briggs' method cuts
include_buffers = False  # also run each method with BatchNorm's state in its updates
layer = None  # whose outputs GradCAM weighs; None: the last convolution's, after ReLU
sample_size = 40  # images on which a cluster's model is explained, from each source
step = 49  # pixels that are inserted or deleted at a time
baseline = "zeros"  # the values of absent pixels; or "blur", "mean"
explained = "predicted"  # the class that is explained; or "true"
seed = 0  # initial model, batch orders, draws of images
precision = "float32"  # or "tf32", "bfloat16": faster and coarser arithmetic

# %% tags=["record"]
run = papers.explanations.Parameters.of(globals())
run_name = records.run_id(run)

# %% [markdown]
# ## The models
#
# All methods train in lockstep, as in [lesson 03](03_ocfl_temperature.ipynb). Each ends with one model per cluster:
#
# | here | in the paper | clusters |
# |---|---|---|
# | FedAvg | BNC (baseline, no clustering) | one model for all clients |
# | Sattler | SCL | splits clusters in two when training stalls |
# | Briggs | BCL | cuts a dendrogram of updates in one round |
# | OCFL-KM, -AFF, -MS, -HDB | the same; HDBS for HDB | k-means, affinity propagation, mean shift or HDBSCAN, once |
#
# "As published" marks a method with the slips of the authors' code, which [lesson 04](04_sattler_and_briggs.ipynb) shows.
# With the defaults, Sattler's method does not split, so it equals FedAvg. The next
# cell prints [ARI](99_glossary.ipynb#ari), which is 1 for the true clusters, and [PF1](99_glossary.ipynb#pf1), the clients' mean F1.

# %% tags=["record"]
images, split = papers.ocfl.data(run)
federation = papers.explanations.federation(run, images, split)  # if the layer can be explained

# %% tags=["record"]
line_up = papers.explanations.line_up(run, images, split)
trained = simulation.run(
    line_up,
    federation,
    run.rounds,
    central_every=run.rounds,
    checkpoint=records.checkpoint(run_name),
)
ends = trained.summary()
for name, end in ends.items():
    if "diverged_in" in end:
        print(f"{name:22s} diverged in round {end['diverged_in']}")
        continue
    print(f"{name:22s} {end['n_clusters']:2d} clusters, ARI {end['ari']:.2f}, PF1 {end['pf1']:.2f}")

# %% [markdown]
# ## GradCAM from scratch
#
# Which positions of an image support class $c$? The output of the last convolution still has positions. After its ReLU, its $K$ channels $A^k$ are small
# pictures. GradCAM asks how much the class's score $y^c$ (before softmax) would grow with each channel. It averages this over the
# channel's $Z$ positions $(i, j)$, and adds the channels up with these weights (Selvaraju et al., equations 1 and 2):
#
# $$\alpha_k^c = \frac{1}{Z}\sum_{i,j}\frac{\partial y^c}{\partial A^k_{ij}},\qquad
# L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big).$$
#
# The ReLU keeps what supports the class. The small map is then enlarged to the size of the image and divided by its maximum. In
# the code, a hook keeps the output of the layer:


# %%
def gradcam_from_scratch(network, image, c, layer):
    kept = {}

    def keep(module, inputs, output):
        kept["A"] = output

    with network.get_submodule(layer).register_forward_hook(keep):
        y = network(image[None])[0, c]
    A = kept["A"]
    [gradient] = torch.autograd.grad(y, A)
    alpha = gradient.mean(dim=(2, 3), keepdim=True)
    L = F.relu((alpha * A).sum(dim=1, keepdim=True)).detach()
    large = F.interpolate(L, image.shape[1:], mode="bilinear")[0, 0]
    return large / large.max(), L[0, 0]


# %% [markdown]
# The package takes $L^c$ from Captum, a library of explanations for torch, and enlarges it in the same way. Captum's ReLU is off by
# default; the package switches it on. We explain OCFL-HDB's model of client 0's cluster, on all test images of client 0:

# %% tags=["record"]
how = run.assessment()  # the layer, and how maps will be scored

# %%
ocfl = line_up["OCFL-HDB"]
network = federation.network(ocfl.models[ocfl.labels[0]])
tested, tested_labels = federation.inputs(split.test[0])
answers = network(tested).softmax(dim=1).detach()
tested_maps = explain.gradcam(network, tested, answers.argmax(dim=1), how.layer)

# %% [markdown]
# Our example is the image with the most concentrated map among those that the model recognises. Do our dozen lines agree with Captum?

# %% tags=["nbval-check-output"]
mean_heat = tested_maps.mean(dim=(1, 2))
usable = (answers.argmax(dim=1) == tested_labels) & (mean_heat > 0)
chosen = int(torch.where(usable, mean_heat, 2.0).argmin())
image, c = tested[chosen], int(answers[chosen].argmax())
by_hand, coarse = gradcam_from_scratch(network, image, c, how.layer)
print("as Captum's:", torch.allclose(by_hand, tested_maps[chosen], atol=1e-5))

# %% tags=["hide-input"]
picture_0 = images.images[split.test[0][chosen]]
figure, axes = plt.subplots(1, 4, figsize=(6.5, 1.9))
plots.image_grid(picture_0[None], columns=1, axes=axes[0])
axes[1].imshow(coarse.cpu(), cmap="plasma")
axes[2].imshow(by_hand.cpu(), cmap="plasma", vmin=0, vmax=1)
plots.saliency(picture_0, by_hand.cpu(), axes[3])
for title, ax in zip(("image", f"$L^{{{c}}}$", "enlarged", "over the image"), axes, strict=True):
    ax.set_title(title)
    ax.set_axis_off()
figure.colorbar(axes[2].images[0], ax=axes[3], label="saliency")
plots.show(
    figure,
    1,
    f"GradCAM in steps: a test image of client 0, the map for class {c}, the map enlarged to the "
    "image and divided by its maximum, and the map over the image.",
    "Four small pictures: a grey digit; a coarse map of a few bright cells; the same map enlarged "
    "and smooth; the map laid over the digit, bright where the class has most evidence.",
)

# %% [markdown]
# A map shows what the *model* uses. It knows nothing of the truth, and it is as coarse as the layer.
#
# ## One image, many models
#
# The paper takes clients 1, 7 and 12, and one image of each client's most frequent class. It draws the map of each method's model *for
# that client* (Figures 5, 15 and 16). With 15 clients, there is one client from each true cluster.
#
# Figure 2 does the same. Above each map stands the model's answer with its probability. A wrong answer has a cross and is orange. A
# map may mark no position. The image is then drawn without a map, and has a label:
#
# - A **zero map** means that no channel supports the class, and ReLU leaves nothing.
# - A **constant map** has the same positive value everywhere. The model ignores the image, for example because its early units have died
#   and only biases are left. Divided by its maximum, such a map is 1 everywhere.
#
# Look for two things. Do the maps of one row agree? Could you tell from a map alone whether the answer is right?


# %%
def portrait(client):
    """A client's first test image of its most frequent class there: image, pixels, class."""
    truth = images.labels[split.test[client]]
    index = split.test[client][truth == truth.bincount().argmax()][0]
    pixels, label = federation.inputs([index])
    return images.images[index], pixels, int(label)


def explain_answer(row, pixels):
    """What a model (a row of parameters) answers, how surely, and the map of its answer."""
    network = federation.network(row)
    answer = network(pixels).softmax(dim=1).detach()[0]
    heat = explain.gradcam(network, pixels, answer.argmax()[None], how.layer)[0]
    return int(answer.argmax()), float(answer.max()), heat.cpu()


# %% tags=["hide-input"]
def panel(ax, row, picture, pixels, label):
    """One map over its image, with the answer above it."""
    answer, sure, heat = explain_answer(row, pixels)
    plots.saliency(picture, heat, ax)
    wrong = answer != label
    ax.set_title(
        f"{'✗ ' if wrong else ''}{answer} ({sure:.2f})",
        fontsize=8,
        color=plots.COLOURS[1] if wrong else "black",
    )


def name_panels(axes, portraits, columns):
    """Beside each row whose image it is, and below each column its name."""
    for ax, (client, (_, _, label)) in zip(axes[:, 0], portraits.items(), strict=True):
        words = f"client {client},\nclass {label} "
        ax.text(0, 0.5, words, transform=ax.transAxes, ha="right", va="center", fontsize=8)
    for ax, words in zip(axes[-1], columns, strict=True):
        ax.text(0.5, -0.06, words, transform=ax.transAxes, ha="center", va="top", fontsize=8)


# %% tags=["report", "hide-input"]
portraits = {client: portrait(client) for client in (1, 7, 12) if client < run.clients}
shape = len(portraits), len(line_up)
figure, axes = plt.subplots(*shape, figsize=(7.6, 1.05 * shape[0] + 0.3), squeeze=False)
for line, (client, (picture, pixels, label)) in zip(axes, portraits.items(), strict=True):
    for method, ax in zip(line_up.values(), line, strict=True):
        panel(ax, method.models[method.labels[client]], picture, pixels, label)
name_panels(axes, portraits, [name.replace(AS_PUBLISHED, "\nas publ.") for name in line_up])
print("figure   ", records.display_path(plots.save(figure, f"07_{run_name}")))
plots.show(
    figure,
    2,
    "GradCAM maps of three images (rows) by each method's model for that client (columns). Above "
    "each map: the answer and its probability, with a cross and in orange where it is wrong.",
    "A grid of small digits with coloured maps, one row per client and one column per method. Most "
    "maps lie on strokes of the digit; those of wrong answers look much like the others.",
)

# %% [markdown]
# Methods with the same clusters since the same round have the same models, hence the same maps. The other maps of a row usually differ, also
# where the answers agree. Look at the crosses, too. Nothing in the formula knows the true class, so wrong predictions come with maps that
# can look just as convincing.
#
# **With the defaults** Figure 2 has no zero map and no constant map. The map of OCFL-MS for client 12 comes close to a
# constant one: it covers almost the whole image.
#
# Figure 3 shows the same images under every cluster's model of OCFL-HDB. **With the defaults** the clusters have no class in common, and only one
# model per row was trained on the image's class. What do the others do?

# %%
members_of = [np.flatnonzero(ocfl.labels == cluster) for cluster in range(len(ocfl.models))]
known = [  # the classes of each cluster's clients
    sorted({int(k) for client in members for k in images.labels[split.train[client]].unique()})
    for members in members_of
]

# %% tags=["hide-input"]
shape = len(portraits), len(known)
size = min(1.3 * shape[1] + 0.8, 8), 1.2 * shape[0] + 0.3
figure, axes = plt.subplots(*shape, figsize=size, squeeze=False)
for line, (picture, pixels, label) in zip(axes, portraits.values(), strict=True):
    for row, ax in zip(ocfl.models, line, strict=True):
        panel(ax, row, picture, pixels, label)
name_panels(axes, portraits, ["knows\n" + ", ".join(map(str, classes)) for classes in known])
plots.show(
    figure,
    3,
    "The three images (rows) under every cluster's model of OCFL-HDB (columns). Below a column: the "
    "classes of the cluster's clients. A cross marks a wrong answer.",
    "A grid of three digits by the cluster models. Each row has one right answer, by the model that "
    "knows the class; the others answer wrongly with a class that they know, and have maps too.",
)

# %% [markdown]
# A model that was not trained on the class answers with one of the classes that it knows. Compare the probabilities in a row: how confident
# is it? Its map also marks positions for the wrong answer.
#
# **With the defaults**, all wrong answers have a probability of more than 0.85.
#
# ## How good is a map? Take its pixels away
#
# If a map is right, removing the few pixels that it calls most important should hurt at once. **Deletion** sets pixels to zero in the
# order of the map, `step` at a time. It follows the probability of the explained class. Zero is black in these images, and we draw it as
# white paper.
#
# **Insertion** starts from an empty image and brings the pixels back in the same order. RISE (Petsiuk et al.) proposed both, with
# insertion from a blurred image. The OCFL authors start from zeros. Here is deletion, frame by frame:

# %%
order = explain.pixel_order(by_hand[None], run.seed)[0]
frames, probabilities = [], []
for count in range(0, len(order) + run.step, run.step):
    frame = image.clone()
    frame.flatten(1)[:, order[:count]] = 0
    frames.append((255 * frame).byte().cpu())
    probabilities.append(float(network(frame[None]).detach().softmax(dim=1)[0, c]))

# %% tags=["hide-input"]
shown = np.linspace(0, len(frames) - 1, 8).astype(int)
figure, axes = plt.subplots(1, len(shown), figsize=(8, 1.6))
for number, ax in zip(shown, axes, strict=True):
    plots.image_grid(frames[number][None], columns=1, axes=ax)
    ax.set_axis_on()
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    gone = min(number * run.step, len(order))
    ax.set_title(f"{gone} gone\n$p_{{{c}}}$ = {probabilities[number]:.2f}", fontsize=9)
plots.show(
    figure,
    4,
    f"Deletion: the pixels of Figure 1's image vanish in the order of its map. Above each frame: the "
    f"number of deleted pixels, and the probability of class {c}.",
    "Eight frames of one digit from whole to empty. The pixels under the map's bright places go "
    "first; the probability of the class stands above each frame.",
)

# %% [markdown]
# The score of a map is the **area** under its curve, where the pixels count as a share from 0 to 1. For deletion a low area is good, for insertion a high one. The
# package computes both curves of all images in batches. It must agree with the loop above. (Pixels of equal saliency come in random
# order.)

# %% tags=["nbval-check-output"]
scored_by = {"step": run.step, "baseline": run.baseline, "seed": run.seed}
one = explain.curves(network, image[None], by_hand[None], torch.tensor([c]), **scored_by)
same = torch.allclose(one.deletion[0], torch.tensor(probabilities), atol=1e-5)
print("same curve:", same if run.baseline == "zeros" else "other baseline")

# %% tags=["hide-input"]
changed = np.minimum(np.arange(len(probabilities)) * run.step, len(order))
figure, axes = plt.subplots(1, 2, figsize=(6, 1.9), sharey=True)
for ax, (name, curve) in zip(axes, vars(one).items(), strict=True):
    ax.plot(changed, curve[0], marker="o", markersize=3)
    ax.fill_between(changed, curve[0], alpha=0.2)
    ax.set(title=f"{name}: area {explain.area(curve)[0]:.2f}", ylim=(0, 1.05))
    ax.set_xlabel(f"pixels {'inserted' if name == 'insertion' else 'deleted'}")
axes[0].set_ylabel(f"probability of class {c}")
plots.show(
    figure,
    5,
    "The insertion curve (left) and the deletion curve (right) of one map. The shaded area is the score.",
    "Two line plots of a probability against the number of pixels, with the area below the line "
    "shaded: left while pixels come back, right while pixels are deleted.",
)

# %% [markdown]
# ## One model for all, or one per cluster
#
# Now we compare FedAvg's model with that of client 0's cluster, on images of that cluster's test sets. We draw mean curves with GradCAM's
# maps (Figure 6). We also draw curves with **noise**, which are maps drawn at random. A curve with noise owes nothing to an explanation. Look at the
# dashed lines first.


# %%
def test_images(cluster):
    """Images from the test sets of the clients of a cluster of OCFL-HDB."""
    drawn = assessment.samples_from(
        "in-cluster", split, ocfl.labels, cluster, 0, run.sample_size, run.seed
    )
    return federation.inputs(drawn)[0]


# %%
seen = test_images(int(ocfl.labels[0]))
noise = explain.random_maps(seen, run.seed)
mean_curves = {}
for name in ("FedAvg", "OCFL-HDB"):
    its = federation.network(line_up[name].models[line_up[name].labels[0]])
    classes = its(seen).argmax(dim=1)
    for kind in ("GradCAM", "noise"):
        heat = noise if kind == "noise" else explain.gradcam(its, seen, classes, how.layer)
        mean_curves[name, kind] = explain.curves(its, seen, heat, classes, **scored_by)

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.4), sharey=True)
for (name, kind), found in mean_curves.items():
    look = {"color": plots.COLOURS[name != "FedAvg"], "marker": "os"[name != "FedAvg"]}
    look |= {"linestyle": "--" if kind == "noise" else "-", "markersize": 4, "markevery": 2}
    for ax, curve in zip(axes, (found.insertion, found.deletion), strict=True):
        ax.plot(changed, curve.mean(dim=0), label=f"{name}, {kind}", **look)
axes[0].set(title="insertion", ylabel="mean probability", xlabel="pixels inserted", ylim=(0, 1.05))
axes[1].set(title="deletion", xlabel="pixels deleted")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right")
plots.show(
    figure,
    6,
    f"Mean curves of {len(seen)} images under FedAvg's model and under the cluster's model of "
    "OCFL-HDB, with GradCAM's maps (solid) and with noise (dashed).",
    "Two line plots, insertion and deletion, with four lines each. The dashed lines of noise lie "
    "much higher under the cluster's model than under FedAvg's, in both plots.",
)

# %% [markdown]
# **With the defaults** OCFL-HDB's model has higher dashed curves, too, in insertion and in deletion. It is more confident than FedAvg's. Noise is the same map for both
# models, and it explains nothing. So the area under a curve mixes two things. One is how good the map is. The other is how confident the model
# is about half-erased images.
#
# Insertion begins with an empty image, and deletion ends with it. A model should have no opinion about it. What do the models say?

# %%
empty = explain.background(image[None], run.baseline)
rows_asked = {"FedAvg": line_up["FedAvg"].models[0]}
rows_asked |= {f"OCFL-HDB, knows {known[k]}": row for k, row in enumerate(ocfl.models)}
for name, row in rows_asked.items():
    answer, sure, _ = explain_answer(row, empty)
    print(f"{name:32s} empty is {answer} ({sure:.2f})")

# %% [markdown]
# With ten classes, a probability near 0.1 is no opinion. If a probability is far above 0.1, the model prefers this class
# even without any image. For images of this class, deletion cannot lower the probability to the end, and insertion begins with a high probability. Both hold for any map.
#
# **With the defaults** the models have little opinion: all probabilities are below a quarter. Try a larger learning rate, `lr = 0.1`, and
# look again.
#
# ## All methods, all clusters: Algorithm 2
#
# The paper scores each cluster of each method. It draws images from one of three sources, explains the cluster's model on them, and takes
# the areas. The sources are:
#
# - **in-cluster**: the test sets of the cluster's own clients;
# - **out-of-cluster**: the test sets of all other clients;
# - **central**: the central test set. The paper and the kit's tables say "orchestrator".
#
# Figure 7 shows the first two sources, with one box per method and one point per cluster. A star stands for "as published". Compare the
# upper row with the lower row.

# %% tags=["record"]
explanations = assessment.assess(line_up, federation, trained, how)
record = records.write(run_name, run, explanations, federation)

# %%
scores = explanations.table()
scores["difference"] = scores["insertion"] - scores["deletion"]
scores["short"] = scores["method"].str.replace(AS_PUBLISHED, "*")

# %% tags=["hide-input"]
of_gradcam = scores[scores["map"] == "GradCAM"].drop(columns="method")
of_gradcam = of_gradcam.rename(columns={"short": "method"})
figure, axes = plt.subplots(2, 2, figsize=(6, 3.9), sharex=True, sharey=True)
for column, source in enumerate(("in-cluster", "out-of-cluster")):
    for line, measure in enumerate(("insertion", "deletion")):
        plots.boxes(of_gradcam[of_gradcam["source"] == source], measure, axes[line, column])
    axes[0, column].set_title(source)
axes[0, 0].set_ylabel("area under insertion\n(high is good)")
axes[1, 0].set_ylabel("area under deletion\n(low is good)")
plots.show(
    figure,
    7,
    "Scores of GradCAM's maps by method, for two sources of images. Points are clusters, boxes are "
    "quartiles, thick lines are medians. FedAvg has nothing out-of-cluster.",
    "Four panels of boxes with points: insertion above, deletion below; in-cluster images on the "
    "left, out-of-cluster images on the right. Insertion is far higher for the methods that found "
    "the clusters than for FedAvg; deletion hardly differs.",
)

# %% [markdown]
# **With the defaults** insertion is much higher for OCFL-HDB than for FedAvg, as in the paper. Deletion, where low is good, is usually
# higher, too. Insertion stays high on classes that a model has never seen (out-of-cluster), where all its answers are wrong. That is a
# first warning that we measure confidence. A method with one cluster has no out-of-cluster images.
#
# ### Does the map matter?
#
# In-cluster we also score four maps beside GradCAM. The first is GradCAM of an **untrained** network of the same shape (a sanity check of
# Adebayo et al.). The others are **noise**, a blob in the **centre**, and the **brightness** of the image itself. None of them has seen
# the model. Figure 8 shows means over clusters. Does GradCAM (circles) stand out?

# %%
in_cluster = scores[scores["source"] == "in-cluster"]
measures = ["insertion", "deletion", "difference"]
of_maps = in_cluster.groupby(["short", "map"], sort=False)[measures].mean()

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for measure, ax in zip(("insertion", "deletion"), axes, strict=True):
    table = of_maps[measure].unstack(sort=False)
    places = np.arange(len(table))
    for number, (kind, means) in enumerate(table.items()):
        # The maps stand side by side, so that none hides another
        beside = places + 0.16 * (number - (len(table.columns) - 1) / 2)
        colour, marker = plots.COLOURS[number], plots.MARKERS[number]
        ax.plot(beside, means, marker, color=colour, label=kind, markersize=4)
    ax.set_xticks(places, table.index, rotation=90)
    for place in places[1:] - 0.5:
        ax.axvline(place, color="0.85", linewidth=0.6)
    ax.set_title(f"{measure} ({'high' if measure == 'insertion' else 'low'} is good)")
axes[0].set(ylabel="area under the curve", ylim=(0, 1))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right")
plots.show(
    figure,
    8,
    "Mean areas over each method's clusters, with GradCAM's maps and with four maps that have not "
    "seen the model.",
    "Two panels, insertion and deletion, with five markers per method. The markers of different maps "
    "rise and fall together from method to method; brightness is best or close to the best.",
)

# %% [markdown]
# **With the defaults** GradCAM does not stand out: brightness is as good or better. Noise has larger areas under OCFL-HDB's models than
# under FedAvg's, in insertion and in deletion, although it knows nothing of either model. Look at
# brightness, too. On a ground of zeros, ink is all that there is to take away. No model is needed to know where the ink is.
#
# ### What is a map worth?
#
# Take noise, and let $N$ be the number of pixels. After $k$ pixels its insertion shows a random set of $k$ pixels. Its deletion leaves a random set of $N - k$ pixels. Over the
# whole curve, both see random sets of every size. So their expected areas are the *same*, whatever the model and however sure it is. (This
# needs a `step` that divides $N$; otherwise they agree to one or two hundredths.)
#
# So the **difference** insertion − deletion has a natural reference: noise gets 0 on average, whatever the model. A map must beat 0 to be worth anything. It is still no pure
# measure of explanation: a surer model has room for larger differences. Maps that have never seen a model can score high, too.

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6, 2.1))
for method, face in (("FedAvg", "white"), ("OCFL-HDB", plots.COLOURS[0])):
    look = {"markerfacecolor": face, "color": plots.COLOURS[0], "linestyle": ""}
    worth = of_maps.loc[method, "difference"]
    ax.plot(worth, range(len(worth)), marker="o", label=method, **look)
ax.set_yticks(range(len(worth)), worth.index)
ax.axvline(0, color="black", linewidth=0.8)
ax.set(xlabel="insertion − deletion (high is good)", ylim=(len(worth) - 0.5, -0.5))
figure.legend(*ax.get_legend_handles_labels(), loc="outside right")
plots.show(
    figure,
    9,
    "Insertion minus deletion by map, for FedAvg (hollow) and as the mean over OCFL-HDB's clusters "
    "(filled). The black line is 0, the value of a map without information.",
    "Points in five rows, two per row. Noise lies on zero for both methods. GradCAM and brightness "
    "lie far to the right for OCFL-HDB; for FedAvg, brightness lies to the right of GradCAM.",
)

# %% [markdown]
# **With the defaults** noise lies close to 0, with forty images per cluster. The difference of GradCAM's maps grows from FedAvg to
# OCFL-HDB. So does that of brightness, which is the same map for both: part of the growth is the room that a surer model has. For both
# methods, brightness scores higher than GradCAM or nearly as high. These scores cannot tell whether GradCAM explains more than the
# position of the ink.
#
# ### The layer and the background
#
# The paper does not say which layer GradCAM looked at. How much depends on that? The next cell prints insertion − deletion of OCFL-HDB's
# models for each layer of the network's convolutional part, one column per cluster. Is there more variation down a column or along a row?


# %%
def gap(network, heat, seen, classes):
    """The mean difference of areas of maps."""
    found = explain.curves(network, seen, heat, classes, **scored_by)
    return float((explain.area(found.insertion) - explain.area(found.deletion)).mean())


# %%
of_layers, on_ink, all_over = {}, [], []
for cluster, row in enumerate(ocfl.models):
    its, inputs = federation.network(row), test_images(cluster)
    classes = its(inputs).argmax(dim=1)
    for name, module in its.features.named_children():
        place = f"features.{name}"
        try:
            heat = explain.gradcam(its, inputs, classes, place)
        except ValueError:  # no places are left
            continue
        key = f"{place}, {type(module).__name__}"
        of_layers.setdefault(key, []).append(gap(its, heat, inputs, classes))
    heat = explain.gradcam(its, inputs, classes, how.layer)
    on_ink.append(float((heat * inputs.mean(dim=1)).sum() / heat.sum()))
    all_over.append(float(inputs.mean()))

# %%
of_layers |= {"mean brightness, by heat": on_ink, "mean brightness": all_over}
columns = [f"cluster {cluster}" for cluster in range(len(known))]
print(pd.DataFrame(of_layers, index=columns).T.round(2).to_string())

# %% [markdown]
# **With the defaults** there is more variation along a row: the clusters differ more than the layers.
#
# The line "by heat" is the mean brightness of the pixels, weighted by the map of the layer that `layer` chooses. The last line is the mean
# without weights.
#
# **With the defaults** the first is far above the second in every cluster, so the maps lie on the ink.
#
# Where the first is below the second, a model looks at the background around the strokes. There can be a good reason: what is *not* there
# also tells a 6 from a 4. But the background is zero, and taking zero away changes nothing. With a baseline of zeros such a map must score
# badly. So its score does not say that the map is bad (exercise 2). In the [report](97_report_explanations.ipynb), the layer decides whether insertion − deletion is above 0.
#
# ## What we saw
#
# - GradCAM is a weighted sum of a layer's channels. It is meant to show what a model uses, right or wrong. The layer is a choice.
# - Insertion and deletion measure the map and the model's confidence in half-erased images together.
# - Their difference is 0 on average for noise, whatever the model. Maps that have never seen the model may still score higher than GradCAM. Compare
#   an explanation with such maps before you believe it.
# - A cluster's model also answers for classes that it has never seen, and has maps for these answers.
#
# The next cell checks the claims of this lesson. "Rises" means from FedAvg to OCFL-HDB, in-cluster, as a mean over clusters.

# %% tags=["claims"]
mean_of = in_cluster.groupby(["method", "map"])[measures].mean()
base, own = mean_of.loc["FedAvg"], mean_of.loc["OCFL-HDB"]
rise = own - base
better = ends["OCFL-HDB"]["pf1"] - ends["FedAvg"]["pf1"]
of_noise = rise.loc["noise", ["insertion", "deletion"]].min()
worth_of_noise = max(abs(means.loc["noise", "difference"]) for means in (base, own))
grown = rise.loc[["GradCAM", "brightness"], "difference"].min()
lead = [
    means.loc["brightness", "difference"] - means.loc["GradCAM", "difference"]
    for means in (base, own)
]
outside = scores.query("source == 'out-of-cluster' and method == 'OCFL-HDB'")
right, sure_outside = outside["accuracy"].max(), outside["confidence"].mean()
claims.check(
    "07_explaining_cluster_models",
    {
        "OCFL-HDB finds the true clusters": ends["OCFL-HDB"]["ari"] == 1,
        "OCFL-HDB's models beat FedAvg's by 0.3 PF1 or more": better >= 0.3,
        "Insertion rises by 0.2 or more with GradCAM": rise.loc["GradCAM", "insertion"] >= 0.2,
        "Insertion and deletion rise by 0.2 or more with noise": of_noise >= 0.2,
        "Deletion rises with GradCAM": rise.loc["GradCAM", "deletion"] > 0,
        "The difference of noise is within 0.08 of zero": worth_of_noise <= 0.08,
        "The difference grows with GradCAM, and with brightness": grown > 0,
        "The difference of brightness is larger than GradCAM's, or by 0.1 smaller at most": (
            min(lead) >= -0.1
        ),
        "Out-of-cluster, OCFL-HDB's models are never right, but 0.7 sure or more": (
            right == 0 and sure_outside >= 0.7
        ),
    },
    record,
)

# %% tags=["record", "report"]
print(f"{'in-cluster':22s} {'clusters':>8s} {'accuracy':>9s} {'insertion':>10s} {'deletion':>9s}")
for name, found in explanations.summary().items():
    accuracy, up, down = (found[f"{m}_in-cluster"] for m in ("accuracy", "insertion", "deletion"))
    print(f"{name:22s} {found['n_clusters']:8d} {accuracy:9.2f} {up:10.2f} {down:9.2f}")
print(f"\nrecord    {records.display_path(record.folder)}")

# %% [markdown]
# ## Deviations from the paper
#
# The [report on explanations](97_report_explanations.ipynb) lists where layer, class, baseline, step, samples and ranks differ from the
# paper, with the evidence. It also compares the authors' archived scores with ours.
#
# ## Exercises
#
# The [exercises of this lesson](exercises/07_explaining_cluster_models_exercises.ipynb) check your
# answers and give hints. The questions below are for playing with the parameters and the code above.
#
# 1. Set `explained = "true"`. Whose insertion changes most, and why out-of-cluster?
# 2. Set `baseline = "mean"`. Which maps gain, and why is brightness not the best any more?
# 3. Set `layer = "features.7"`, the last convolution before its ReLU. In which figure do you first see that the layer matters?
# 4. Show by hand that insertion and deletion of noise have the same expectation. Where does the proof use that the baseline is the same in
#    both, and that the step divides $N$?
# 5. Multiply a model's last layer (weights and biases) by 3. It answers as before, more surely. What happens to its GradCAM maps, its
#    insertion, its deletion and the difference?
# 6. Compare `OCFL-MS` with `OCFL-HDB` cluster by cluster. What do clusters of one client do to the mean over clusters? (Which round broke
#    them off?) Weigh clusters by their number of clients instead.
#
# ## References
#
# - R. R. Selvaraju et al.: Grad-CAM: visual explanations from deep networks via gradient-based localization. ICCV 2017.
# - V. Petsiuk, A. Das, K. Saenko: RISE: randomized input sampling for explanation of black-box models. BMVC 2018.
# - J. Adebayo et al.: Sanity checks for saliency maps. NeurIPS 2018.
# - N. Kokhlikyan et al.: Captum: a unified and generic model interpretability library for PyTorch. arXiv 2009.07896, 2020.
#
# **Previous:** [06 FedCRef](06_fedcref.ipynb) · **Next:** [08 Tutorial 022](08_tutorial_022.ipynb) · [Report](97_report_explanations.ipynb) ·
# [Glossary](99_glossary.ipynb)
