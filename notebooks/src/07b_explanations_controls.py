# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07b Explanations under control: all methods, all clusters, all maps
#
# This appendix belongs to [07 A pretty map proves nothing](07_explaining_cluster_models.ipynb), and is for readers who want to check its results. It scores the models of all methods and clusters as the extended OCFL paper does (one training seed), and four models with three seeds. With other parameters, it makes the runs of [report 97](97_report_explanations.ipynb).
#
# **With the defaults**, insertion is much higher for cluster models than for FedAvg's, but so it is for maps of noise: much of it is confidence. The brightness of the image scores as well as GradCAM, or nearly so.
#
# **Study minutes:** 35. **Minutes on two cores:** 1.5
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustering for Federated Learning Under Clustering-Agnostic
# Assumption*, section 5 and appendices A.4 and A.5 ("the paper").

# %% tags=["record"]
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from cflkit import explain, plots, simulation
from cflkit.explain import assessment
from cflkit.federation import Jobs
from cflkit.reproduce import claims, papers, records
from cflkit.reproduce.papers.base import AS_PUBLISHED

plots.style()

# %% [markdown]
# ## Parameters
#
# The first part has the parameters of [appendix 03b](03b_ocfl_controls.ipynb). The last part says how the models are explained. The
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
repeats = 3  # training seeds of the four models in Figure 9 and in tables; all else is of the first
precision = "float32"  # or "tf32", on NVIDIA GPUs: faster and coarser arithmetic
trained_in = None  # the ID of a run of 03b, whose kept models are explained

# %% tags=["record"]
run = papers.explanations.Parameters.of(globals())
run_name = records.run_id(run)

# %% [markdown]
# ## The models
#
# All methods train in lockstep, as in [appendix 03b](03b_ocfl_controls.ipynb). Each ends with one model per cluster:
#
# | here | in the paper | clusters |
# |---|---|---|
# | FedAvg | BNC (baseline, no clustering) | one model for all clients |
# | Sattler | SCL | splits clusters in two when training stalls |
# | Briggs | BCL | cuts a dendrogram of updates in one round |
# | OCFL-KM, -AFF, -MS, -HDB | the same; HDBS for HDB | k-means, affinity propagation, mean shift or HDBSCAN, once |
#
# "As published" marks a method with the errors of the authors' code, which [04b](04b_an_autopsy.ipynb) shows.
# With the defaults, Sattler's method does not split, so it equals FedAvg. The next
# cell prints [ARI](99_glossary.ipynb#ari), which is 1 for the true clusters, and [PF1](99_glossary.ipynb#pf1), the clients' mean F1.

# %% tags=["record"]
images, split = papers.ocfl.data(run)
federation = papers.explanations.federation(run, images, split)  # if the layer can be explained

# %% tags=["record"]
line_up, trained = papers.explanations.trained(run, federation, images, split)
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
    return large / (large.max() or 1), L[0, 0]  # a zero map stays zero


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
# A map is meant to show what the *model* uses. It knows nothing of the truth, and it is as coarse as the layer.
#
# ## One image, many models
#
# The paper takes clients 1, 7 and 12, and one image of each client's most frequent class. It draws the map of each method's model *for
# that client* (Figures 5, 15 and 16). With 15 clients, each of the three is from another true cluster.
#
# Figure 2 does the same. Above each map stands the model's answer with its probability. A wrong answer has a cross and is orange.
# A map may have the same value everywhere. It then says nothing about positions, so the image is drawn without a map and has a
# label:
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
    index = split.test[client][(truth == truth.bincount().argmax()).numpy()][0]
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
    "A grid of small digits with coloured maps, one row per client and one column per method. The "
    "maps of right answers lie mostly on strokes of the digit; those of wrong answers are a dot or a few edges. One map of a right answer covers almost the whole image.",
)

# %% [markdown]
# Methods with the same clusters since the same round have the same models, hence the same maps. Nothing in the formula knows the true class, so a wrong answer has a map, too.
#
# **With the defaults**, several of these maps differ from the others of their row. But FedAvg's map of its right 9 is as scattered as that of its wrong 9, so these maps do not tell whether an answer is right. Figure 2 has no zero map and no constant map. The map of OCFL-MS for client 12 comes close to a
# constant one, because it covers almost the whole image.
#
# Figure 3 shows the same images under every cluster's model of OCFL-HDB. **With the defaults** the clusters have no class in common, and only one
# model per row was trained on the image's class. What do the others do?


# %%
def known_by(clients):
    """The classes of these clients' training samples."""
    return sorted(
        {int(k) for client in clients for k in images.labels[split.train[client]].unique()}
    )


members_of = [np.flatnonzero(ocfl.labels == cluster) for cluster in range(len(ocfl.models))]
known = [known_by(members) for members in members_of]

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
# A model that was not trained on the class answers with one of the classes that it knows. For this model the image is
# **out-of-distribution**, which means unlike its training data (Hendrycks and Gimpel). Compare the probabilities in a row: how confident
# is the model? Its map also marks positions for the wrong answer.
#
# **With the defaults**, all wrong answers have a probability of more than 0.85 in Figure 3.
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
shown = range(0, len(frames), math.ceil((len(frames) - 1) / 8))
figure, axes = plt.subplots(1, len(shown), figsize=(8, 1.3))
for number, ax in zip(shown, axes, strict=True):
    plots.image_grid(frames[number][None], columns=1, axes=ax)
    ax.set_axis_on()
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    gone = min(number * run.step, len(order))
    ax.set_title(f"{gone} gone\n$p_{{{c}}}$ = {probabilities[number]:.2f}", fontsize=8)
plots.show(
    figure,
    4,
    f"Deletion: the pixels of Figure 1's image vanish in the order of its map. Above each frame: the "
    f"number of deleted pixels, and the probability of class {c}.",
    "Frames of one digit from whole to empty, with equal numbers of pixels between them. The pixels under the map's bright places go "
    "first; the probability of the class stands above each frame.",
)

# %% [markdown]
# There is an objection. An image without some of its pixels is out-of-distribution, too, so the probability may change for this reason alone: it may fall, or even rise, as it does between the second and third frame. ROAR (Hooker et al.) therefore trains a new model on images without these pixels, and compares accuracies. We do not, because
# each map would need its own training.
#
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
# Now we compare FedAvg's model with that of client 0's cluster, on images of that cluster's test sets. After few rounds FedAvg's
# model is hardly trained, so this comparison alone would be unfair. Two more models stand beside them:
#
# - **Local** is a model that one client trains alone, for the same number of rounds. Figure 6 has that of client 0. Later we take the
#   first client of each cluster.
# - **FedAvg, logits × 5** is FedAvg's model with its logits, the scores before softmax, multiplied by 5. It gives the same answers
#   with more confidence. GradCAM's maps are the same, too: five times the map, divided by five times its maximum.
#
# One training proves little. So FedAvg and OCFL-HDB train with more seeds, on the same clients.


# %%
def trained_with(number):
    """The federation with another seed of the training, and two methods after their rounds."""
    again = run.model_copy(update={"seed": number})
    home = papers.explanations.federation(again, images, split)
    lines = papers.explanations.line_up(again, images, split)
    both = {name: lines[name] for name in ("FedAvg", "OCFL-HDB")}
    simulation.run(both, home, run.rounds, central_every=run.rounds)
    return home, both


trainings = {run.seed: (federation, line_up)}
for number in range(run.seed + 1, run.seed + run.repeats):
    trainings[number] = trained_with(number)

# %% [markdown]
# The next two cells make the two added models, and list all four with the clients on whose images they are tested.


# %%
def alone(home, clients):
    """The models that these clients train alone, from the common initial model."""
    models, own = home.initial().repeat(len(clients), 1), torch.arange(len(clients))
    for t in range(run.rounds):
        models = home.train(Jobs(models, own, torch.tensor(clients)), round=t)
    return models


def sharpened(network, factor=5):
    """The network with multiplied logits: the same answers and maps, and more confidence."""
    network.register_forward_hook(lambda module, inputs, logits: factor * logits)
    return network


# %%
def four_models(home, lines):
    """For each of four models, the pairs of a network and its clients."""
    single, rows = lines["FedAvg"].models[0], lines["OCFL-HDB"].models
    labels, everyone = lines["OCFL-HDB"].labels, range(run.clients)
    groups = [np.flatnonzero(labels == cluster) for cluster in range(len(rows))]
    first = [int(members[0]) for members in groups]  # one client per cluster trains alone
    return {
        "FedAvg": [(home.network(single), everyone)],
        "FedAvg, logits × 5": [(sharpened(home.network(single)), everyone)],
        "local": [
            (home.network(row), [client])
            for row, client in zip(alone(home, first), first, strict=True)
        ],
        "OCFL-HDB": [
            (home.network(row), members) for row, members in zip(rows, groups, strict=True)
        ],
    }


four = {number: four_models(*training) for number, training in trainings.items()}

# %% [markdown]
# Figure 6 draws the mean curves of these four models with GradCAM's maps. It also draws curves with **noise**, which are maps drawn at
# random. A curve with noise owes nothing to an explanation. Look at the dashed lines first.


# %%
def test_images(clients):
    """Images from the test sets of these clients."""
    chosen = np.isin(range(run.clients), clients)
    drawn = assessment.samples_from("in-cluster", split, chosen, True, 0, run.sample_size, run.seed)
    return federation.inputs(drawn)


# %%
own = int(ocfl.labels[0])
seen, _ = test_images(members_of[own])
noise = explain.random_maps(seen, run.seed)
mean_curves = {}
for name, pairs in four[run.seed].items():
    its, _ = pairs[own % len(pairs)]  # FedAvg has one model
    classes = its(seen).argmax(dim=1)
    for kind in ("GradCAM", "noise"):
        heat = noise if kind == "noise" else explain.gradcam(its, seen, classes, how.layer)
        mean_curves[name, kind] = explain.curves(its, seen, heat, classes, **scored_by)

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for number, ((name, kind), found) in enumerate(mean_curves.items()):
    look = {"color": plots.COLOURS[number // 2], "marker": plots.MARKERS[number // 2]}
    look |= {"linestyle": "--" if kind == "noise" else "-", "markersize": 4, "markevery": 3}
    for ax, curve in zip(axes, (found.insertion, found.deletion), strict=True):
        ax.plot(changed, curve.mean(dim=0), label=f"{name}, {kind}", **look)
axes[0].set(title="insertion", ylabel="mean probability", xlabel="pixels inserted", ylim=(0, 1.05))
axes[1].set(title="deletion", xlabel="pixels deleted")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right", fontsize=8)
plots.show(
    figure,
    6,
    f"Mean curves of {len(seen)} images under four models, with GradCAM's maps (solid) and with "
    "noise (dashed).",
    "Two line plots, insertion and deletion, with eight lines each. The dashed lines of noise lie "
    "lowest under the model of FedAvg, higher with its logits multiplied by five, and highest under "
    "the models of client 0 and of its cluster, in both plots.",
)

# %% [markdown]
# **With the defaults** the dashed curves are higher for OCFL-HDB's model than for FedAvg's, in insertion and in deletion. Noise is the
# same map for all models, and it explains nothing. FedAvg's model with multiplied logits has higher dashed curves, too, although only its
# confidence has changed. So the area under a curve mixes two things. One is how good the map is. The other is how confident the model
# is about half-erased images.
#
# [**Calibration**](99_glossary.ipynb#calibration) is the agreement of confidence and accuracy. A calibrated model that is 0.7
# sure is right for 70 % of such images (Guo et
# al.). The next cell compares both, on images of each model's own clients. It prints the smallest and the largest value over the seeds.


# %%
def calibration(pairs):
    """The mean accuracy and confidence of models on images of their own clients."""
    values = []
    for its, clients in pairs:
        inputs, truth = test_images(clients)
        sure, answers = its(inputs).softmax(dim=1).detach().max(dim=1)
        values.append([float((answers == truth).float().mean()), float(sure.mean())])
    return np.mean(values, axis=0)


# %%
for name in four[run.seed]:
    accuracy, sure = np.transpose([calibration(models[name]) for models in four.values()])
    right = f"accuracy {accuracy.min():.2f} to {accuracy.max():.2f}"
    print(f"{name:20s} {right}, confidence {sure.min():.2f} to {sure.max():.2f}")

# %% [markdown]
# **With the defaults** FedAvg's confidence is far below its accuracy. With multiplied logits it is somewhat above. The confidence
# of the other models is within five points of their accuracy. So FedAvg's model differs in two ways: it is less accurate, and badly
# calibrated. The multiplied logits turn the second round: the confidence is then too high, but by less.


# %%
empty = explain.background(image[None], run.baseline)
to_empty = {}
for number, models in four.items():
    for name in ("FedAvg", "OCFL-HDB"):
        for its, clients in models[name]:
            sure, answer = its(empty).softmax(dim=1)[0].max(dim=0)
            key = name if name == "FedAvg" else f"{name}, knows {known_by(clients)}"
            to_empty.setdefault(key, {})[f"seed {number}"] = f"{answer} ({sure:.2f})"
print(pd.DataFrame(to_empty).T.fillna("–").to_string())

# %% [markdown]
# With ten classes, a probability near 0.1 is no opinion. If a probability is far above 0.1, the model prefers this class
# even without any image. For images of this class, the curve of deletion cannot end low, and the curve of insertion begins high.
# Both hold for any map.
#
# **With the defaults** most models have little opinion, with probabilities below a quarter. With one of the three seeds, one cluster's model
# gives more than one half to a class.
#
# ## All methods, all clusters: Algorithm 2
#
# The paper scores each cluster of each method. It draws images from one of three sources, explains the cluster's model on them, and takes
# the areas. The two that we show are:
#
# - **in-cluster**: the test sets of the cluster's own clients;
# - **out-of-cluster**: the test sets of all other clients.
#
# Figure 7 has one point per cluster. A star stands for "as published". Compare the
# upper row with the lower row.

# %% tags=["record"]
explanations = assessment.assess(line_up, federation, trained, how)
record = records.write(run_name, run, explanations, federation)

# %%
scores = explanations.table()
scores["difference"] = scores["insertion"] - scores["deletion"]
scores["short"] = scores["method"].str.replace(AS_PUBLISHED, "*")

# %% tags=["hide-input"]
of_gradcam = scores[scores["map"] == "GradCAM"]
names = list(of_gradcam["short"].unique())
figure, axes = plt.subplots(2, 2, figsize=(6, 3.9), sharex=True, sharey=True)
for column, source in enumerate(("in-cluster", "out-of-cluster")):
    shown = of_gradcam[of_gradcam["source"] == source]
    for line, measure in enumerate(("insertion", "deletion")):
        for place, name in enumerate(names):
            values = shown.loc[shown["short"] == name, measure].dropna().sort_values()
            # The clusters stand side by side, so that none hides another
            beside = place + 0.14 * (np.arange(len(values)) - (len(values) - 1) / 2)
            axes[line, column].plot(beside, values, "o", color=plots.COLOURS[0], markersize=4)
    axes[0, column].set(title=source, ylim=(0, 1))
    axes[1, column].set_xticks(range(len(names)), names, rotation=90)
    for ax in axes[:, column]:
        for border in range(1, len(names)):
            ax.axvline(border - 0.5, color="0.85", linewidth=0.6)
axes[0, 0].set_ylabel("area under insertion\n(high is good)")
axes[1, 0].set_ylabel("area under deletion\n(low is good)")
plots.show(
    figure,
    7,
    "Scores of GradCAM's maps by method, for two sources of images. Each point is a cluster, as the "
    "mean over its images, sorted in each panel. A method with one cluster has nothing out-of-cluster.",
    "Four panels of points: insertion above, deletion below; in-cluster images on the "
    "left, out-of-cluster images on the right. Insertion is far higher for the methods that found "
    "the clusters than for FedAvg; deletion is usually higher, too, but by less.",
)

# %% [markdown]
# **With the defaults** insertion is much higher for OCFL-HDB than for FedAvg, as in the paper. Deletion, where low is good, is usually
# higher, too. Insertion stays high out-of-cluster. There OCFL-HDB's models have seen none of the classes, all images are out-of-distribution, and
# all answers are wrong. That is a first warning that insertion measures confidence, too.
#
# ### Does the map matter?
#
# In-cluster we also score four maps beside GradCAM. The first is GradCAM of an **untrained** network of the same shape. Adebayo et al.
# compare the *maps* of trained and of randomised networks: if they look alike, a map cannot show what was learned. We compare
# their *scores* under the trained model. The other maps are **noise**, a blob in the **centre**, and the **brightness** of the image
# itself. None of the four looks into the model. (Only the untrained network is told which class the model answers.) Figure 8
# shows means over clusters. Does GradCAM (circles) stand out?

# %%
in_cluster = scores[scores["source"] == "in-cluster"]
measures = ["insertion", "deletion", "difference"]


def mean_scores(home, pairs):
    """The mean scores of models on images of their own clients, one row per kind of map."""
    untrained, rows = home.network(home.blueprint.initials(1, 0)[0]), []
    for its, clients in pairs:
        rows += assessment.explain_images(
            its, untrained, *test_images(clients), assessment.MAPS, how
        )
    table = pd.DataFrame(rows)
    table["difference"] = table["insertion"] - table["deletion"]
    return table.groupby("map", sort=False)[measures].mean()


# %%
of_four = {
    (number, name): mean_scores(trainings[number][0], pairs)
    for number, models in four.items()
    for name, pairs in models.items()
}
added = {name: of_four[run.seed, name] for name in ("FedAvg, logits × 5", "local")}
of_maps = in_cluster.groupby(["short", "map"], sort=False)[measures].mean()
of_maps = pd.concat([of_maps, pd.concat(added)])

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(8, 2.9), sharey=True)
for measure, ax in zip(("insertion", "deletion"), axes, strict=True):
    table = of_maps[measure].unstack(sort=False)
    places = np.arange(len(table))
    for number, (kind, means) in enumerate(table.items()):
        # The maps stand side by side, so that none hides another
        beside = places + 0.17 * (number - (len(table.columns) - 1) / 2)
        colour, marker = plots.COLOURS[number], plots.MARKERS[number]
        ax.plot(beside, means, marker, color=colour, label=kind, markersize=4)
    ax.set_xticks(places, table.index.str.replace(", ", ",\n"), rotation=90)
    for place in places[1:] - 0.5:
        ax.axvline(place, color="0.85", linewidth=0.6)
    ax.set_title(f"{measure} ({'high' if measure == 'insertion' else 'low'} is good)")
axes[0].set(ylabel="area under the curve", ylim=(0, 1))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right")
plots.show(
    figure,
    8,
    "Mean areas over each method's clusters, with GradCAM's maps and with four maps that have not "
    "seen the model. The two columns on the right have the two added models. "
    "Colours and markers are maps here; in Figures 6 and 9 they are models.",
    "Two panels, insertion and deletion, with five markers per method. The markers of different maps "
    "rise and fall together from method to method; brightness is best or close to the best.",
)

# %% [markdown]
# **With the defaults** and the first seed, GradCAM stands out from three of the four maps under OCFL-HDB's models: the untrained network and noise score far worse, and the centre worse. Figure 9 shows that its lead over the centre is small with another seed. Brightness is as good or better. Under FedAvg's model even the centre is better than GradCAM. Noise has larger areas
# under OCFL-HDB's models than under FedAvg's, although it knows nothing of either. It has larger areas under FedAvg's model with
# multiplied logits, too. Look at brightness again. On a background of zeros, the strokes are all that can be taken away. No model is needed to know
# where the ink is.
#
# <a id="what-is-a-map-worth"></a>
# ### What is a map worth?
#
# Take noise, and let $N$ be the number of pixels. After $k$ pixels its insertion shows a random set of $k$ pixels. Its deletion leaves a random set of $N - k$ pixels. Over the
# whole curve, both see random sets of every size. So their expected areas are the *same*, whatever the model and however sure it is. (This
# needs a `step` that divides $N$; otherwise they agree to one or two hundredths.)
#
# So the **difference** insertion − deletion has a natural reference: noise gets 0 on average, whatever the model. A map must beat 0 to be worth anything. It is still no pure
# measure of explanation: a surer model has room for larger differences. Maps that have never seen a model can score high, too.
#
# Figure 9 shows the differences of the four models with each seed. The table has the smallest and the largest. Does
# more confidence do for each map what clustering does?

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(7, 2.9))
kinds = np.arange(len(assessment.MAPS))
for place, name in enumerate(four[run.seed]):
    look = {"color": plots.COLOURS[place], "marker": plots.MARKERS[place], "linestyle": ""}
    for number in four:
        worth = of_four[number, name]["difference"]
        label = name if number == run.seed else None
        ax.plot(worth, kinds + 0.18 * (place - 1.5), markersize=4.5, label=label, **look)
for border in kinds[1:] - 0.5:
    ax.axhline(border, color="0.85", linewidth=0.6)
ax.set_yticks(kinds, worth.index)
ax.axvline(0, color="black", linewidth=0.8)
ax.set(xlabel="insertion − deletion (high is good)", ylim=(len(kinds) - 0.5, -0.5))
figure.legend(*ax.get_legend_handles_labels(), loc="outside right")
plots.show(
    figure,
    9,
    "Insertion minus deletion by map, for four models. Each point is one seed, as the mean over the "
    "models of that seed. The black line is 0, the value of a map without information.",
    "With the defaults: "
    "Points in five rows. Noise lies near zero for all models. GradCAM lies right of the other "
    "rows except brightness for OCFL-HDB, and for local with two of three seeds; for FedAvg it lies near "
    "zero, and brightness lies to the right of it.",
)

# %%
differences = pd.concat(of_four, names=["seed", "model"])["difference"]
spread = differences.groupby(level=["model", "map"], sort=False).agg(["min", "max"])
texts = [f"{low:.2f} to {high:.2f}" for low, high in spread.to_numpy()]
print(pd.Series(texts, spread.index).unstack(sort=False).to_string())

# %% [markdown]
# **With the defaults** noise lies close to 0. GradCAM's difference is below 0.1 with FedAvg and above 0.3 with OCFL-HDB, in each seed. How
# much of this is confidence? Brightness is the same map for all models. Multiplied logits bring its difference most of the way
# to that of OCFL-HDB's models, so its growth is largely due to confidence. They bring GradCAM's difference only a small part of the way. So, by this score, the maps of FedAvg's model after ten rounds are themselves worse. FedAvg is hardly trained here: in 28 longer runs on larger data, GradCAM's difference is larger with OCFL-HDB than with FedAvg in only 15, and by 0.02 on average ([report 97](97_report_explanations.ipynb)). The local models need no clusters, and with two of three seeds their maps score about as high as OCFL-HDB's. With the third they score only a little more than FedAvg's.
#
# GradCAM of OCFL-HDB's models scores higher than all maps except brightness, but its smallest value is only a little above the largest of
# the centre. These scores cannot tell whether GradCAM explains more than the
# position of the ink.
#
# ### The layer and the background
#
# The paper does not say which layer GradCAM looked at. How much depends on that? The next cell prints insertion − deletion of OCFL-HDB's
# models for each layer of the network's convolutional part. It has one column per seed and cluster; the digits are the classes of the
# cluster. Is there more variation down a column or along a row?


# %%
def gap(network, heat, seen, classes):
    """The mean difference of areas of maps."""
    found = explain.curves(network, seen, heat, classes, **scored_by)
    return float((explain.area(found.insertion) - explain.area(found.deletion)).mean())


# %%
def layer_scores(its, inputs):
    """The difference by layer, and the mean brightness with and without a map's weights."""
    classes = its(inputs).argmax(dim=1)
    found = {}
    for name, module in its.features.named_children():
        place = f"features.{name}"
        try:
            heat = explain.gradcam(its, inputs, classes, place)
        except ValueError:  # no places are left
            continue
        found[f"{place}, {type(module).__name__}"] = gap(its, heat, inputs, classes)
    heat = explain.gradcam(its, inputs, classes, how.layer)
    found["mean brightness, by heat"] = float((heat * inputs.mean(dim=1)).sum() / heat.sum())
    return found | {"mean brightness": float(inputs.mean())}


# %%
of_layers = {
    (f"seed {number}:", "".join(map(str, known_by(clients)))): layer_scores(
        its, test_images(clients)[0]
    )
    for number, models in four.items()
    for its, clients in models["OCFL-HDB"]
}
print(pd.DataFrame(of_layers).round(2).to_string())

# %% [markdown]
# **With the defaults** this depends on the seed. With the first seed, the clusters differ more than the layers. With the second
# they differ far more, and one cluster also differs much from layer to layer. With the third, both differ less.
#
# All figures above use `features.8`, the last convolution after its ReLU. The line "by heat" is the mean brightness of the pixels, weighted by the map of this layer. The last line is the mean
# without weights. In all columns but one, the first is far above the second, so the maps lie on the ink. The exception is the column with
# mostly negative differences, which are worse than those of noise. Its model is the one that gives a class more than one half for the empty image.
#
# Where the first is below the second, as there, the map marks the background around the strokes. There can be a good reason: what is *not* there
# also tells a 6 from a 4. But the background is zero, and taking zero away changes nothing. With a baseline of zeros such a map must score
# badly. So its score does not say that the map is bad (exercise 2). In one run on MNIST in the [report](97_report_explanations.ipynb), the layer changes the sign for OCFL-HDB (+0.26 after the ReLU, −0.21 before it), and not for FedAvg.
#
# ## What we saw
#
# - GradCAM is a weighted sum of a layer's channels. It is meant to show what a model uses, right or wrong. The layer is a choice.
# - Insertion and deletion measure the map and the model's confidence in half-erased images together. Multiplied logits change the confidence
#   alone. Compare maps of models that are about equally accurate and calibrated, over several seeds.
# - Their difference is 0 on average for noise, whatever the model. Maps that have never seen the model may still score higher than GradCAM. Compare
#   an explanation with such maps before you believe it.
# - A cluster's model also answers for classes that it has never seen, and has maps for these answers.
#
# The next cell checks the claims of this appendix. "Rises" means from FedAvg to OCFL-HDB, in-cluster, as a mean over clusters.

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
    "07b_explanations_controls",
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
    if "diverged_in" in found:
        print(f"{name:22s} diverged in round {found['diverged_in']}")
        continue
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
# The [exercises of the lesson](exercises/07_explaining_cluster_models_exercises.ipynb) check your
# answers and give hints. The questions below are for playing with the parameters and the code above.
#
# 1. Set `explained = "true"`. Whose insertion changes most, and why out-of-cluster?
# 2. Set `baseline = "mean"`. Which maps gain, and why is brightness not the best any more?
# 3. Set `layer = "features.7"`, the last convolution before its ReLU. In which figure do you first see that the layer matters?
# 4. Set the factor of `sharpened` to 0.3 and to 100. Which scores of Figure 9 change? To which value does the area of noise tend for a large factor?
# 5. Compare `OCFL-MS` with `OCFL-HDB` cluster by cluster. How do clusters of one client change the mean over clusters? (In which round were
#    they split off?) Weight clusters by their number of clients instead.
#
# ## References
#
# - R. R. Selvaraju et al.: Grad-CAM: visual explanations from deep networks via gradient-based localization. ICCV 2017.
# - V. Petsiuk, A. Das, K. Saenko: RISE: randomized input sampling for explanation of black-box models. BMVC 2018.
# - J. Adebayo et al.: Sanity checks for saliency maps. NeurIPS 2018.
# - S. Hooker, D. Erhan, P.-J. Kindermans, B. Kim: A benchmark for interpretability methods in deep neural networks. NeurIPS 2019 (ROAR).
# - C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger: On calibration of modern neural networks. ICML 2017.
# - D. Hendrycks, K. Gimpel: A baseline for detecting misclassified and out-of-distribution examples in neural networks. ICLR 2017.
# - N. Kokhlikyan et al.: Captum: a unified and generic model interpretability library for PyTorch. arXiv 2009.07896, 2020.
#
# **The lesson:** [07 A pretty map proves nothing](07_explaining_cluster_models.ipynb) · **Next:** [08 Tutorial 022](08_tutorial_022.ipynb) · [Report](97_report_explanations.ipynb) ·
# [Glossary](99_glossary.ipynb)
