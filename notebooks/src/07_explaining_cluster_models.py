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
# how would one measure that?
#
# **You will** write GradCAM in a dozen lines, look at one image with the models of many methods, remove and add pixels in the order of
# a map, measure all cluster models that way as the extended OCFL paper does, hold the maps against maps that know nothing, and draw
# the paper's critical-difference diagrams, one of which is the wrong way round.
#
# **Before this:** `03_ocfl_temperature`.
# **Minutes on two cores:** 1.5
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustering for Federated Learning Under Clustering-Agnostic
# Assumption*, section 5 and appendices A.4 and A.5 ("the paper").

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.stats import t as student

from cflkit import config, datasets, explain, ledger, partition
from cflkit import plots, published, records, simulation, stats
from cflkit.federation import Federation

plots.style()

# %% [markdown]
# ## Parameters
#
# Those of `03`, and how the models are explained.

# %% tags=["parameters"]
dataset = "digits"  # a name that cflkit.datasets knows
overlap = "nonoverlapping"  # or "overlapping": whether clusters share classes
balance = "balanced"  # or "imbalanced": clients and classes unevenly spread
clients = 15  # m
draws = 120  # draws a client, repeated ones dropped; None: pool size / m, as in the papers
partition_seed = 0  # who gets which samples
model = "compact-cnn"  # or "ocfl-cnn" (25 million parameters), "resnet34"
optimizer = "sgd"  # or "adam"
lr = 0.1  # learning rate of the clients
momentum = 0.0  # of SGD
weight_decay = 0.0  # of either optimiser
batch_size = 16  # samples a local step
local_epochs = 3  # passes over a client's data in a round
rounds = 15  # of communication
window = 1  # rounds of the trigger's moving average; 1 is Algorithm 1
sattler_eps1 = None  # Sattler's ε₁; None: a tenth of the largest mean update so far
sattler_eps2 = None  # Sattler's ε₂; None: ten times ε₁
sattler_rounds = 10  # rounds before Sattler's method may split
briggs_rounds = 5  # rounds before Briggs' method clusters
briggs_threshold = 0.95  # cosine distance at which Briggs' method cuts
include_buffers = False  # also run each method with BatchNorm's state in its updates
layer = None  # whose outputs GradCAM weighs; None: the last convolution's, after ReLU
sample_size = 40  # images on which a cluster's model is explained, from each source
step = 49  # pixels that are inserted or deleted at a time
baseline = "zeros"  # what stands where no pixel is; or "blur", "mean"
explained = "predicted"  # the class that is explained; or "true"
seed = 0  # initial model, batch orders, draws of images
precision = "float32"  # or "tf32", "bfloat16": faster and coarser arithmetic

# %%
run = config.ExplanationRun.of(globals())
run_name = records.run_id("explanations", run)

# %% [markdown]
# ## The models
#
# All methods in lockstep, as in `03`: one model for all (FedAvg; the papers' "baseline, no clustering", BNC), Sattler, Briggs, and OCFL with four
# clusterers. "As published" repeats slips of the authors' code (`04`). What a method leaves behind is a model for each cluster.

# %%
images = datasets.load(run.dataset)
split = partition.ocfl(
    images.labels,
    dataset=run.dataset,
    overlap=run.overlap,
    balance=run.balance,
    clients=run.clients,
    draws=run.draws,
    seed=run.partition_seed,
)
federation = Federation(
    images, split, run.model, run.training(), seed=run.seed, precision=run.precision
)

# %%
line_up = published.explained_line_up(run)
trained = simulation.run(
    line_up,
    federation,
    run.rounds,
    central_every=run.rounds,
    checkpoint=records.checkpoint(run_name),
)
for name, measures in trained.summary().items():
    print(f"{name:22s} {measures['n_clusters']:2d} clusters, PF1 {measures['pf1']:.2f}")

# %% [markdown]
# ## GradCAM from scratch
#
# Which places of an image speak for class $c$? The last convolution still knows places: after its ReLU its $K$ channels $A^k$ are small pictures. GradCAM
# asks how much the class's score $y^c$ (before softmax) would grow with each channel, on average over its $Z$ places, and adds the channels up with these weights
# (Selvaraju et al., equations 1 and 2):
#
# $$\alpha_k^c = \frac{1}{Z}\sum_{i,j}\frac{\partial y^c}{\partial A^k_{ij}},\qquad
# L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big).$$
#
# ReLU keeps what speaks *for* the class. The small map is then enlarged to the image.


# %%
def gradcam_from_scratch(network, image, c, layer):
    kept = []
    hook = network.get_submodule(layer).register_forward_hook(lambda *call: kept.append(call[-1]))
    y = network(image[None])[0, c]
    hook.remove()
    [A] = kept
    [gradient] = torch.autograd.grad(y, A)
    alpha = gradient.mean(dim=(2, 3), keepdim=True)
    L = F.relu((alpha * A).sum(dim=1, keepdim=True)).detach()
    large = F.interpolate(L, image.shape[1:], mode="bilinear")[0, 0]
    return large / large.max(), L[0, 0]


# %% [markdown]
# The package asks Captum, with ReLU and bilinear enlargement switched on, for Captum's defaults have neither. The image is one of client
# 0's test images, the network OCFL-HDB's model of its cluster:

# %% tags=["nbval-check-output"]
how = run.assessment()
ocfl = line_up["OCFL-HDB"]
network = federation.network(ocfl.models[ocfl.labels[0]])
some, labels = federation.inputs(split.test[0])
answers = network(some).softmax(dim=1).detach()
right = answers.argmax(dim=1) == labels
maps = explain.gradcam(network, some, answers.argmax(dim=1), how.layer)
# The image whose map is the most concentrated, of those that are recognised
chosen = int(torch.where(right, maps.mean(dim=(1, 2)).clamp(min=0.01), 2.0).argmin())
image, c = some[chosen], int(answers[chosen].argmax())
by_hand, coarse = gradcam_from_scratch(network, image, c, how.layer)
print("as Captum's:", torch.allclose(by_hand, maps[chosen], atol=1e-5))

# %%
picture = images.images[split.test[0][chosen]]
figure, axes = plt.subplots(1, 4, figsize=(7, 1.9))
plots.image_grid(picture[None], columns=1, axes=axes[0])
axes[1].imshow(coarse.cpu(), cmap="plasma")
axes[2].imshow(by_hand.cpu(), cmap="plasma", vmin=0, vmax=1)
plots.saliency(picture, by_hand.cpu(), axes[3])
titles = ("image", f"$L^{{{c}}}$", "enlarged", "over the image")
for title, ax in zip(titles, axes, strict=True):
    ax.set_title(title)
    ax.set_axis_off()
plt.show()

# %% [markdown]
# The map is as coarse as the last convolution: it can point at an arm of a digit, not at a stroke.
#
# ## One image, many models
#
# The paper takes clients 1, 7 and 12, one in each true cluster, an image each of the client's most frequent class, and draws the map of each method's
# model *for that client* (Figures 5, 15 and 16). Above each map is what the model predicts, with its probability. Look for two things: do maps
# of one row agree, and does a map tell you whether the answer is right?


# %%
def portrait(client):
    """A client's first test image of its most frequent class there: image, pixels, class."""
    truth = images.labels[split.test[client]]
    index = split.test[client][truth == truth.bincount().argmax()][0]
    pixels, label = federation.inputs([index])
    return images.images[index], pixels, int(label)


def draw(model, picture, pixels, ax):
    """The map of a model's answer over the picture; in the title the answer."""
    network = federation.network(model)
    answer = network(pixels).softmax(dim=1).detach()[0]
    heat = explain.gradcam(network, pixels, answer.argmax()[None], how.layer)[0]
    plots.saliency(picture, heat.cpu(), ax)
    ax.set_title(f"{int(answer.argmax())} ({answer.max():.2f})", fontsize=7)


# %%
portraits = {client: portrait(client) for client in (1, 7, 12) if client < run.clients}
shape = len(line_up), len(portraits)
figure, axes = plt.subplots(*shape[::-1], figsize=(1.05 * shape[0], 1.35 * shape[1]), squeeze=False)
for row, (client, (picture, pixels, label)) in zip(axes, portraits.items(), strict=True):
    for (name, method), ax in zip(line_up.items(), row, strict=True):
        draw(method.models[method.labels[client]], picture, pixels, ax)
        if ax in axes[-1]:
            words = name.replace(" as published", "\nas published")
            ax.text(0.5, -0.08, words, transform=ax.transAxes, ha="center", va="top", fontsize=6)
    row[0].text(-3, 12, f"client {client},\nclass {label}", ha="right", va="center", fontsize=7)
saved = plots.save(figure, f"07_{run_name}")
plt.show()

# %% [markdown]
# Methods that found the same clusters in the same round have the same models, hence the same maps. Others differ though their answers agree, and models
# that answer wrongly draw maps no less handsome. A map shows what the *model* uses; it does not know the truth.
#
# The same images under every cluster's model of OCFL-HDB, a column a cluster. Only on the diagonal does a model see classes that it was trained on:

# %%
clusters = len(ocfl.models)
size = 1.35 * clusters, 1.35 * len(portraits)
figure, axes = plt.subplots(len(portraits), clusters, figsize=size, squeeze=False)
for row, (client, (picture, pixels, label)) in zip(axes, portraits.items(), strict=True):
    for cluster, ax in enumerate(row):
        draw(ocfl.models[cluster], picture, pixels, ax)
    row[0].text(-3, 12, f"client {client},\nclass {label}", ha="right", va="center", fontsize=7)
plt.show()

# %% [markdown]
# Off the diagonal a model must answer with a class that it knows, does so with confidence, and can show where it "sees" it.
#
# ## How good is a map? Take its pixels away
#
# If a map is right, removing the few pixels that it calls most important should hurt at once. **Deletion** sets pixels to zero (which is black, and which we draw
# as paper) in the order of the map, `step` at a time, and follows the probability of the explained class. **Insertion** starts from an empty image and brings the
# pixels back in the same order. Both are RISE's (Petsiuk et al.). Here is deletion, frame by frame:

# %%
order = by_hand.flatten().argsort(descending=True, stable=True)
frames, heights = [], []
for count in range(0, len(order) + run.step, run.step):
    frame = image.clone()
    frame.flatten(1)[:, order[:count]] = 0
    frames.append((255 * frame).byte().cpu())
    heights.append(float(network(frame[None]).softmax(dim=1)[0, c]))
shown = np.linspace(0, len(frames) - 1, 9).astype(int)
figure, axes = plt.subplots(1, len(shown), figsize=(9, 1.3))
for number, ax in zip(shown, axes, strict=True):
    plots.image_grid(frames[number][None], columns=1, axes=ax)
    ax.set_title(f"{min(number * run.step, len(order))} gone\n{heights[number]:.2f}", fontsize=8)
plt.show()

# %% [markdown]
# The number of a method is the **area** under the curve, between 0 and 1: for deletion low is good, for insertion high. The package computes all images and
# both curves in batches, and must agree with the loop above:

# %% tags=["nbval-check-output"]
one = torch.tensor([c], device=image.device)
options = {"step": run.step, "baseline": run.baseline}
found = explain.curves(network, image[None], by_hand[None], one, **options)
same = torch.allclose(found.deletion[0], torch.tensor(heights), atol=1e-5)
print("same curve:", same if run.baseline == "zeros" else "other baseline")

# %%
pixels_changed = np.minimum(np.arange(len(heights)) * run.step, len(order))
figure, axes = plt.subplots(1, 2, figsize=(7, 2), sharey=True)
for ax, (name, curve) in zip(axes, vars(found).items(), strict=True):
    ax.plot(pixels_changed, curve[0])
    ax.fill_between(pixels_changed, curve[0], alpha=0.2)
    ax.set(title=f"{name}: area {explain.area(curve)[0]:.2f}", xlabel="pixels", ylim=(0, 1.05))
axes[0].set_ylabel(f"probability of {c}")
plt.show()

# %% [markdown]
# ## One model for all, or one for the cluster
#
# Now both models of client 0 on the same images, those of its cluster's test sets: mean curves of GradCAM, and dashed those of **noise**, a map that is drawn
# at random. Whatever a dashed curve does, no explanation did it.

# %%
members = np.flatnonzero(ocfl.labels == ocfl.labels[0])
drawn = explain.samples_from(
    "in-cluster", split, ocfl.labels, int(ocfl.labels[0]), 0, run.sample_size, run.seed
)
inside, _ = federation.inputs(drawn)
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for (name, method), colour in zip(
    {"FedAvg": line_up["FedAvg"], "OCFL-HDB": ocfl}.items(), plots.COLOURS, strict=False
):
    its = federation.network(method.models[method.labels[0]])
    classes = its(inside).argmax(dim=1)
    heat = {"GradCAM": explain.gradcam(its, inside, classes, how.layer)}
    heat["noise"] = explain.random_maps(inside, run.seed)
    for kind, line in (("GradCAM", "-"), ("noise", "--")):
        found = explain.curves(its, inside, heat[kind], classes, **options)
        for ax, curve in zip(axes, (found.insertion, found.deletion), strict=True):
            ax.plot(pixels_changed, curve.mean(dim=0), line, color=colour, label=f"{name}, {kind}")
axes[0].set(title="insertion", ylabel="probability", xlabel="pixels", ylim=(0, 1))
axes[1].set(title="deletion", xlabel="pixels")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right")
plt.show()

# %% [markdown]
# A surer model lifts *all* its curves, insertion and deletion, with GradCAM's map or with noise. The area under a curve mixes how good the map is with how sure
# the model is. What the map itself explains is the distance from the dashed line.
#
# And where does insertion begin, and deletion end? With an empty image, about which a model should have no opinion. It has one:

# %%
empty = torch.zeros_like(image)[None]
for cluster, row in enumerate(ocfl.models):
    answer = federation.network(row)(empty).softmax(dim=1).detach()[0]
    own = np.flatnonzero(ocfl.labels == cluster)
    held = sorted({int(k) for client in own for k in images.labels[split.train[client]].unique()})
    print(f"cluster {cluster} knows {held}: empty is {int(answer.argmax())} ({answer.max():.2f})")

# %% [markdown]
# A model that must choose among few classes takes one of them for granted, and looks for signs of the others. For images of that class deletion cannot succeed, and
# insertion begins where it should end, whatever the map.
#
# ## All methods, all clusters: Algorithm 2
#
# For each cluster of each method: draw images from the test sets of its own clients (*in-cluster*), of all others (*out-of-cluster*), or from the central test set
# (*orchestrator*); explain the cluster's model on them; take the areas. The paper then has a box for each method, over the clusters. In-cluster we also score
# three maps that no explanation should lose to: GradCAM of an **untrained** network of the same shape, **noise**, and a blob in the **centre**.

# %%
explanations = explain.assess(line_up, federation, trained, how)
table = explanations.table()
table["method"] = table["method"].str.replace(published.AS_PUBLISHED, "*")
gradcam = table[table["map"] == "GradCAM"]
figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharex=True, sharey=True)
for column, source in enumerate(explain.SOURCES):
    for row, measure in enumerate(("insertion", "deletion")):
        plots.boxes(gradcam[gradcam["source"] == source], measure, axes[row, column])
    axes[0, column].set_title(source)
axes[0, 0].set_ylabel("insertion")
axes[1, 0].set_ylabel("deletion")
plt.show()

# %% [markdown]
# (A star stands for "as published".) Insertion is higher for the methods that found the clusters, as the paper says. So is deletion, where lower is better; and both stay high
# on classes that a model has never seen (out-of-cluster): a first warning that confidence is being measured. A method with one cluster has no out-of-cluster box.
#
# ### Does the map matter?
#
# In-cluster, mean over clusters, each of the four maps. If the map explains, GradCAM lies highest on the left and lowest on the right.

# %%
own = table[table["source"] == "in-cluster"]
means = own.groupby(["method", "map"], sort=False)[["insertion", "deletion"]].mean()
figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True)
markers = dict(zip(explain.MAPS, "os^v", strict=True))
for measure, ax in zip(("insertion", "deletion"), axes, strict=True):
    for number, (kind, rows) in enumerate(means[measure].unstack(sort=False).items()):
        ax.plot(rows, markers[kind], color=plots.COLOURS[number], label=kind, markersize=5)
    ax.set_xticks(range(len(rows)), rows.index, rotation=90)
    ax.set_title(measure)
axes[0].legend(fontsize=7)
plt.show()

# %% [markdown]
# They lie close together. By insertion noise is worth as much as GradCAM, and by deletion the blob wins nearly every column: digits stand in the middle, and nobody needs a
# model to know. What goes up from FedAvg to OCFL-HDB goes up for every map.

# %%
record = records.write(run_name, run, explanations, federation)

# %% tags=["report"]
print(f"{'in-cluster':22s} {'clusters':>8s} {'accuracy':>9s} {'insertion':>10s} {'deletion':>9s}")
for name, found in explanations.summary().items():
    numbers = [found[f"{m}_in-cluster"] for m in ("accuracy", "insertion", "deletion")]
    print(
        f"{name:22s} {found['n_clusters']:8d} {numbers[0]:9.2f} {numbers[1]:10.2f} {numbers[2]:9.2f}"
    )
print(f"\nfigure    {records.shown(saved)}\nrecord    {records.shown(record.folder)}")

# %% [markdown]
# ## The authors' scores
#
# The authors archived the areas of every cluster of their runs: five data sets, four splits each, 15 clients. These are the boxes of Figure 6
# (in-cluster; Figure 7 has the central test set, with the same picture):

# %%
archive = pd.read_csv(ledger.PUBLISHED / "ocfl-explanations_per-cluster.csv")
in_cluster = archive[archive["source"] == "in-cluster"]
palette = dict(zip(in_cluster["dataset"].unique(), plots.COLOURS, strict=False))
figure, axes = plt.subplots(2, 5, figsize=(10, 3.8), sharex=True, sharey=True)
for column, (name, rows) in enumerate(in_cluster.groupby("dataset", sort=False)):
    for row, measure in enumerate(("insertion", "deletion")):
        plots.boxes(rows, measure, axes[row, column])
    axes[0, column].set_title(name)
axes[0, 0].set_ylabel("insertion")
axes[1, 0].set_ylabel("deletion")
plt.show()

# %% [markdown]
# Lower boxes look like the upper ones: what raises insertion raises deletion, too.
#
# ### Critical differences
#
# To compare methods over many runs, Demšar proposes ranks: in each scenario the best method gets rank 1, the next rank 2; average over scenarios. Friedman's test
# asks whether the ranks could be chance. If not, Wilcoxon's signed-rank test compares each pair, with Holm's correction for
# so many tests, and a bar joins methods that cannot be told apart.
#
# One number a run: the mean over its clusters. First insertion, as in Figure 8, then deletion as in Figure 8:

# %% tags=["nbval-check-output"]
scenario = ["dataset", "overlap", "balance"]
scores = in_cluster.groupby([*scenario, "method"])[["insertion", "deletion"]].mean().unstack()
printed = stats.compare(scores["insertion"], higher_is_better=True)
inverted = stats.compare(scores["deletion"], higher_is_better=True)
for name, comparison in (("insertion", printed), ("deletion, as printed", inverted)):
    print(name, comparison.ranks.round(2).to_dict())

# %%
righted = stats.compare(scores["deletion"], higher_is_better=False)
figure, axes = plt.subplots(1, 3, figsize=(11, 2.3))
figure.get_layout_engine().set(wspace=0.35)
plots.critical_differences(printed, axes[0])
plots.critical_differences(inverted, axes[1])
plots.critical_differences(righted, axes[2])
for title, ax in zip(("insertion", "deletion, as printed", "deletion"), axes, strict=True):
    ax.set_title(title, fontsize=9)
plt.show()

# %% [markdown]
# These are the paper's numbers. But in the middle the *highest* deletion has rank 1, and high deletion is bad. The right way round, on the right, no clustering (BNC)
# comes out best and OCFL's methods worst. So "clustering improves explanations" holds by insertion and fails by deletion.
#
# Out-of-cluster (Figure 17) no clustering cannot be ranked, and others only where they split. The scenarios in which five methods have scores:

# %%
outside = archive[(archive["source"] == "out-of-cluster") & (archive["method"] != "SCL")]
outside = outside.groupby([*scenario, "method"])[["insertion", "deletion"]].mean()
outside = outside.unstack().dropna()
figure, axes = plt.subplots(1, 2, figsize=(8, 1.9))
figure.get_layout_engine().set(wspace=0.35)
for measure, higher, ax in zip(("insertion", "deletion"), (True, False), axes, strict=True):
    plots.critical_differences(stats.compare(outside[measure], higher), ax)
    ax.set_title(f"out-of-cluster: {measure}, {len(outside)} scenarios", fontsize=9)
plt.show()

# %% [markdown]
# ### A measure that confidence cannot move so easily
#
# Take noise. After $k$ pixels its insertion shows a random set of $k$ pixels; its deletion leaves a random set of $N - k$. Over the whole curve both see random
# sets of every size, so their expected areas are the *same*, whatever the model and however sure it is. What a map explains is therefore the **difference**
# insertion − deletion, and noise scores 0. In our runs above:

# %%
table["difference"] = table["insertion"] - table["deletion"]
own = table[table["source"] == "in-cluster"]
of_maps = own.groupby(["map", "method"], sort=False)["difference"].mean().unstack(0, sort=False)
print(of_maps[list(explain.MAPS)].round(2).to_string())

# %% [markdown]
# The paper does not say which layer GradCAM looked at. How much hangs on that? The difference of OCFL-HDB's models, a column a cluster, layer by layer of the network's
# convolutional part, in-cluster:

# %%
differences = {}
for cluster, row in enumerate(ocfl.models):
    its = federation.network(row)
    drawn = explain.samples_from(
        "in-cluster", split, ocfl.labels, cluster, 0, run.sample_size, run.seed
    )
    inside, _ = federation.inputs(drawn)
    classes = its(inside).argmax(dim=1)
    for name, module in its.features.named_children():
        heat = explain.gradcam(its, inside, classes, f"features.{name}")
        found = explain.curves(its, inside, heat, classes, **options)
        key = f"features.{name}, {type(module).__name__}"
        gap = explain.area(found.insertion) - explain.area(found.deletion)
        differences.setdefault(key, []).append(float(gap.mean()))
print(pd.DataFrame(differences).T.round(2).to_string())

# %% [markdown]
# In this lesson the model counts for more than the layer. The first cluster's maps are far above noise on every layer, those of the other two below it. Look at the figures: the
# first model looks at strokes, the others at the paper around them, for what is *not* there also tells a 6 from a 4. But paper is zero, and with a baseline of zeros taking
# it away changes nothing: insertion and deletion cannot test such a map (exercise 2). On MNIST the layer decides, too (last section).
#
# And in the authors' archive. Each dot is a run (method and scenario); on the diagonal a map is worth as much as noise:

# %%
difference = scores["insertion"] - scores["deletion"]
by_difference = stats.compare(difference, higher_is_better=True)
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3), width_ratios=(1, 1.5))
for name, rows in scores.groupby(level="dataset", sort=False):
    axes[0].plot(rows["deletion"], rows["insertion"], "o", markersize=3, color=palette[name])
    axes[0].plot([], [], "o", markersize=3, color=palette[name], label=name)
axes[0].axline((0, 0), slope=1, color="grey", linewidth=0.5)
axes[0].set(xlabel="deletion", ylabel="insertion", xlim=(0, 1), ylim=(0, 1))
axes[0].legend(fontsize=7)
plots.critical_differences(by_difference, axes[1])
axes[1].set_title("insertion − deletion", fontsize=9)
plt.show()

# %% [markdown]
# On BloodMNIST and PathMNIST the dots lie on the diagonal: those maps are worth as much as noise, and their areas say how sure the models are. On the other three, maps explain
# something; but by the difference one bar joins no clustering with the best of OCFL, and only affinity propagation, with its wrong sign, falls behind some. What the
# archive shows is that cluster models are *surer*, not that they are better explained.
#
# ## What we saw
#
# - GradCAM is a weighted sum of the last convolution's channels; it shows what a model uses, right or wrong.
# - Insertion and deletion measure a map and the model's confidence together. Clustering makes models surer, and moves both numbers up: one looks
#   like a gain, the other is a loss, printed as a gain by a rank that is the wrong way round.
# - Their difference is 0 for noise whatever the model. Before a map is believed it should beat noise, an untrained network and a blob in the middle; here not all do.
# - A cluster's model answers for classes that it has never seen, and draws maps for its answers.
#
# ## At full scale
#
# In this folder, `python -m cflkit run 07_explaining_cluster_models.ipynb -f params/explanations/paper/mnist_15_nonoverlapping_balanced.yaml`
# trains the paper's network on MNIST and explains it; it wants a GPU. Below are the runs that are committed, on the compact network, trained as in the reduced
# runs of `03` and explained in sixteen steps (`params/explanations/reduced/`). First the boxes, theirs and ours (names as theirs):

# %%
past_runs = [p for p in records.find() if ledger.scale(p, "ocfl-explanations") == "reduced"]
ours = pd.concat(
    [
        ledger.as_printed(past, name).assign(
            method=theirs, **{column: past.parameters[column] for column in scenario}
        )
        for past in past_runs
        for theirs, name in ledger.EXPLANATIONS.methods.items()
    ]
).query("source == 'in-cluster'")
print(*(f"{past.id}, {past.provenance['minutes']:.0f} minutes" for past in past_runs), sep="\n")

# %%
both = [name for name in palette if name in set(ours["dataset"])]
figure, axes = plt.subplots(2, 2 * len(both), figsize=(10, 3.8), sharex=True, sharey=True)
for number, name in enumerate(both):
    own = ours[(ours["dataset"] == name) & (ours["map"] == "GradCAM")]
    theirs = in_cluster[in_cluster["dataset"] == name]
    for column, (whose, rows) in enumerate({"theirs": theirs, "ours": own}.items(), 2 * number):
        for row, measure in enumerate(("insertion", "deletion")):
            plots.boxes(rows, measure, axes[row, column])
        axes[0, column].set_title(f"{name}, {whose}")
axes[0, 0].set_ylabel("insertion")
axes[1, 0].set_ylabel("deletion")
plt.show()

# %% [markdown]
# Does clustering raise insertion and lower deletion? OCFL-HDB less no clustering: the mean over splits with its 95 % interval (Student's t),
# for GradCAM and for the maps that know nothing of the model.

# %%
ours["difference"] = ours["insertion"] - ours["deletion"]


def gain(rows, measure):
    """OCFL-HDB's mean over clusters less BNC's."""
    means = rows.groupby([*scenario, "method"])[measure].mean().unstack()
    gains = means["OCFL-HDB"] - means["BNC"]
    half = student.ppf(0.975, len(gains) - 1) * gains.std() / np.sqrt(len(gains))
    return f"{gains.mean():+.2f}" + (f" ± {half:.2f}" if len(gains) > 1 else "")


# %%
measures = ("insertion", "deletion", "difference")
gains = {
    (name, measure): {
        kind: gain(of_map, measure) for kind, of_map in rows.groupby("map", sort=False)
    }
    for name, rows in ours.groupby("dataset", sort=False)
    for measure in measures
}
print(pd.DataFrame(gains).T.to_string())

# %% [markdown]
# TEXT-GAIN
#
# And the layer, which the paper does not name: insertion − deletion of one scenario, with GradCAM on the last convolution after its ReLU and before.

# %%
for past in records.find(dataset="mnist", overlap="nonoverlapping", balance="balanced", clients=15):
    if past.id.startswith("explanations-"):
        gaps = {
            name: past.summary[name]["insertion_in-cluster"]
            - past.summary[name]["deletion_in-cluster"]
            for name in ("FedAvg", "OCFL-HDB")
        }
        where = "before ReLU" if past.parameters["layer"] else "after ReLU"
        print(where, {name: round(gap, 2) for name, gap in gaps.items()})

# %% [markdown]
# TEXT-BEFORE
#
# The difference of all methods, ranked over our runs; on the left with GradCAM, on the right with noise, where there is nothing to find:

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 2.3))
for kind, ax in zip(("GradCAM", "noise"), axes, strict=True):
    means = ours[ours["map"] == kind].groupby([*scenario, "method"])["difference"].mean().unstack()
    plots.critical_differences(stats.compare(means.dropna(axis=1), higher_is_better=True), ax)
    ax.set_title(f"insertion − deletion, {kind}", fontsize=9)
plt.show()

# %% [markdown]
# TEXT-COLOUR
#
# ## Deviations
#
# 1. **Layer.** The paper does not name GradCAM's layer; ours is the last convolution of each network with its ReLU (`layer` chooses another).
# 2. **Models.** Explained are the cluster models after the last round, the averages of line 7 of Algorithm 2. The authors
#    explain the last ones that they saved, every ten rounds.
# 3. **Class.** Map and curves are of the predicted class (as in RISE), right or wrong; `explained = "true"` takes the label.
# 4. **Baseline.** Zeros for insertion, too, as the arrays inside the authors' figures show; RISE inserts into a blurred image (`baseline = "blur"`).
# 5. **Step.** Not stated; by the frames inside the authors' figures 8, 10, 20 or 40 pixels. Our parameter files have 20 at the paper's scale. Where the step does
#    not divide the number of pixels, the last is a shorter one, but counts as much in the area (as in RISE's code), which favours insertion over deletion by up to
#    two hundredths; the lesson's and the reduced scale's steps divide it.
# 6. **Samples** are drawn without replacement from the union of the clients' test sets. Clients of a cluster share images; each counts once.
# 7. **Area of the mean curve, mean of the areas.** The paper averages curves over a batch and takes one area, to be faster. The two are equal; only the spread needs an area for each
#    image, and ours (quantiles over images) is not theirs (over batches).
# 8. **Deletion's ranks** are printed with the highest first (Figure 8). Both ways above.
# 9. **Out-of-cluster ranks** (Figure 17): who never clustered has no out-of-cluster images; the authors' tests answered that with NaN. `stats.compare` refuses missing
#    scores, so we rank five methods where all have some; the ledger has the scores, not these ranks.
#
# ## Exercises
#
# 1. Set `explained = "true"`. Whose insertion changes most, and why out-of-cluster?
# 2. Set `baseline = "blur"`. What do the models say of a blurred image, and what becomes of the order of methods?
# 3. Set `layer = "features.7"`, the last convolution before its ReLU. Which figure shows first that something is wrong?
# 4. Show by hand that insertion and deletion of noise have the same expectation. Where does the proof use that the baseline is the same in both?
# 5. Multiply a model's last layer (weights and biases) by 3. It answers as before, more surely. What happens to its GradCAM maps, its insertion, its deletion and the difference?
# 6. Compare `OCFL-MS` with `OCFL-HDB` cluster by cluster: what do clusters of one client do to the mean over clusters? Weigh clusters by their clients instead.
#
# ## References
#
# - R. R. Selvaraju et al.: Grad-CAM: visual explanations from deep networks via gradient-based localization. ICCV 2017.
# - V. Petsiuk, A. Das, K. Saenko: RISE: randomized input sampling for explanation of black-box models. BMVC 2018.
# - J. Adebayo et al.: Sanity checks for saliency maps. NeurIPS 2018.
# - J. Demšar: Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
