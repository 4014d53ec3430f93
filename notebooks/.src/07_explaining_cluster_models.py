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

from cflkit import assessment, explain, ledger, papers
from cflkit import plots, records, simulation, stats
from cflkit.papers.base import AS_PUBLISHED

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
run = papers.explanations.Parameters.of(globals())
run_name = records.run_id(run)

# %% [markdown]
# ## The models
#
# All methods in lockstep, as in `03`: one model for all (FedAvg; the papers' "baseline, no clustering", BNC), Sattler, Briggs, and OCFL with four
# clusterers. "As published" repeats slips of the authors' code (`04`). What a method leaves behind is a model for each cluster.

# %%
images, split = papers.ocfl.data(run)
federation = papers.explanations.federation(run, images, split)  # if the layer can be explained

# %%
line_up = papers.explanations.line_up(run, images, split)
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
# asks how much the class's score $y^c$ (before softmax) would grow with each channel, on average over its $Z$ places $(i, j)$, and adds the channels up with these weights
# (Selvaraju et al., equations 1 and 2):
#
# $$\alpha_k^c = \frac{1}{Z}\sum_{i,j}\frac{\partial y^c}{\partial A^k_{ij}},\qquad
# L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big).$$
#
# ReLU keeps what speaks *for* the class. The small map is then enlarged to the image. In code, a hook keeps what the layer puts out (its third argument):


# %%
def gradcam_from_scratch(network, image, c, layer):
    kept = []
    hook = network.get_submodule(layer).register_forward_hook(lambda *call: kept.append(call[2]))
    y = network(image[None])[0, c]
    hook.remove()
    A = kept[0]
    [gradient] = torch.autograd.grad(y, A)
    alpha = gradient.mean(dim=(2, 3), keepdim=True)
    L = F.relu((alpha * A).sum(dim=1, keepdim=True)).detach()
    large = F.interpolate(L, image.shape[1:], mode="bilinear")[0, 0]
    return large / large.max(), L[0, 0]


# %% [markdown]
# The package takes $L^c$ from Captum, a library of explanations for torch, with ReLU switched on (its default is off), and enlarges it bilinearly. The network here is OCFL-HDB's
# model of client 0's cluster; the image is one of client 0's test images, of those that are recognised the one with the most concentrated map:

# %% tags=["nbval-check-output"]
how = run.assessment()  # the layer, and how maps will be scored
ocfl = line_up["OCFL-HDB"]
network = federation.network(ocfl.models[ocfl.labels[0]])
some, labels = federation.inputs(split.test[0])
answers = network(some).softmax(dim=1).detach()
maps = explain.gradcam(network, some, answers.argmax(dim=1), how.layer)
spread = maps.mean(dim=(1, 2))
usable = (answers.argmax(dim=1) == labels) & (spread > 0)
chosen = int(torch.where(usable, spread, 2.0).argmin())
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
figure.colorbar(axes[2].images[0], ax=axes[3], label="saliency")
plt.show()

# %% [markdown]
# ## One image, many models
#
# The paper takes clients 1, 7 and 12 (with the parameters above one in each true cluster), an image each of the client's most frequent class, and draws the map of each method's
# model *for that client* (Figures 5, 15 and 16). Above each map stands what the model predicts, with its probability, orange where it is wrong. Look for two
# things: do the maps of one row agree, and could you tell from a map alone whether the answer is right?


# %%
def portrait(client):
    """A client's first test image of its most frequent class there: image, pixels, class."""
    truth = images.labels[split.test[client]]
    index = split.test[client][truth == truth.bincount().argmax()][0]
    pixels, label = federation.inputs([index])
    return images.images[index], pixels, int(label)


def draw(model, picture, pixels, label, ax):
    """The map of a model's answer over the picture; in the title the answer."""
    network = federation.network(model)
    answer = network(pixels).softmax(dim=1).detach()[0]
    heat = explain.gradcam(network, pixels, answer.argmax()[None], how.layer)[0]
    plots.saliency(picture, heat.cpu(), ax)
    colour = "black" if int(answer.argmax()) == label else plots.COLOURS[1]
    ax.set_title(f"{int(answer.argmax())} ({answer.max():.2f})", fontsize=7, color=colour)


# %%
def name_row(ax, client, label):
    """Beside the first panel of a row: whose image it is."""
    words = f"client {client},\nclass {label} "
    ax.text(0, 0.5, words, transform=ax.transAxes, ha="right", va="center", fontsize=7)


# %%
portraits = {client: portrait(client) for client in (1, 7, 12) if client < run.clients}
shape = len(portraits), len(line_up)
size = 1.05 * shape[1], 1.35 * shape[0]
figure, axes = plt.subplots(*shape, figsize=size, squeeze=False)
for row, (client, (picture, pixels, label)) in zip(axes, portraits.items(), strict=True):
    name_row(row[0], client, label)
    for method, ax in zip(line_up.values(), row, strict=True):
        draw(method.models[method.labels[client]], picture, pixels, label, ax)
for name, ax in zip(line_up, axes[-1], strict=True):
    words = name.replace(" as published", "\nas published")
    ax.text(0.5, -0.08, words, transform=ax.transAxes, ha="center", va="top", fontsize=6)
saved = plots.save(figure, f"07_{run_name}")
plt.show()

# %% [markdown]
# Methods with the same clusters since the same round have the same models, hence the same maps. Other methods' maps differ even where the answers agree, and models
# that answer wrongly draw maps no less handsome. A map is meant to show what the *model* uses; it knows nothing of the truth.
#
# The same images under every cluster's model of OCFL-HDB. With the parameters above, only on the diagonal does a model see a class that it was trained on:

# %%
known = [  # the classes of each cluster's clients
    sorted({int(k) for client in members for k in images.labels[split.train[client]].unique()})
    for members in (np.flatnonzero(ocfl.labels == cluster) for cluster in range(len(ocfl.models)))
]

# %%
size = 1.5 * len(known), 1.45 * len(portraits)
figure, axes = plt.subplots(len(portraits), len(known), figsize=size, squeeze=False)
for row, (client, (picture, pixels, label)) in zip(axes, portraits.items(), strict=True):
    name_row(row[0], client, label)
    for model, ax in zip(ocfl.models, row, strict=True):
        draw(model, picture, pixels, label, ax)
for classes, ax in zip(known, axes[-1], strict=True):
    words = "knows " + ", ".join(map(str, classes))
    ax.text(0.5, -0.05, words, transform=ax.transAxes, ha="center", va="top", fontsize=7)
plt.show()

# %% [markdown]
# Off the diagonal a model must answer with a class that it knows, is hardly less sure of it, and has a place in the image to show for it.
#
# ## How good is a map? Take its pixels away
#
# If a map is right, removing the few pixels that it calls most important should hurt at once. **Deletion** sets pixels to zero (which is black, and which we draw
# as paper) in the order of the map, `step` at a time, and follows the probability of the explained class. **Insertion** starts from an empty image and brings the
# pixels back in the same order. Both were proposed with RISE (Petsiuk et al.), insertion there from a blurred image; the OCFL authors start from zeros. Deletion, frame by frame:

# %%
order = explain.pixel_order(by_hand[None], run.seed)[0]
frames, probabilities = [], []
for count in range(0, len(order) + run.step, run.step):
    frame = image.clone()
    frame.flatten(1)[:, order[:count]] = 0
    frames.append((255 * frame).byte().cpu())
    probabilities.append(float(network(frame[None]).detach().softmax(dim=1)[0, c]))
shown = np.linspace(0, len(frames) - 1, 9).astype(int)
figure, axes = plt.subplots(1, len(shown), figsize=(9, 1.4))
for number, ax in zip(shown, axes, strict=True):
    plots.image_grid(frames[number][None], columns=1, axes=ax)
    gone = min(number * run.step, len(order))
    ax.set_title(f"{gone} gone\n$p_{{{c}}}$ = {probabilities[number]:.2f}", fontsize=8)
plt.show()

# %% [markdown]
# The score of a map is the **area** under the curve, between 0 and 1: for deletion low is good, for insertion high. The package computes both curves of all images
# in batches, and must agree with the loop above. (Pixels of equal saliency come in random order.)

# %% tags=["nbval-check-output"]
explained_class = torch.tensor([c], device=image.device)
scored_by = {"step": run.step, "baseline": run.baseline, "seed": run.seed}
curves = explain.curves(network, image[None], by_hand[None], explained_class, **scored_by)
same = torch.allclose(curves.deletion[0], torch.tensor(probabilities), atol=1e-5)
print("same curve:", same if run.baseline == "zeros" else "other baseline")

# %%
changed = np.minimum(np.arange(len(probabilities)) * run.step, len(order))
figure, axes = plt.subplots(1, 2, figsize=(7, 2), sharey=True)
for ax, (name, curve) in zip(axes, vars(curves).items(), strict=True):
    ax.plot(changed, curve[0])
    ax.fill_between(changed, curve[0], alpha=0.2)
    ax.set(title=f"{name}: area {explain.area(curve)[0]:.2f}", xlabel="pixels", ylim=(0, 1.05))
axes[0].set_ylabel(f"probability of {c}")
plt.show()

# %% [markdown]
# ## One model for all, or one for the cluster
#
# Now both models of client 0 on the same images, those of its cluster's test sets: mean curves with GradCAM's maps, and dashed those with **noise**, maps that are drawn
# at random. A dashed curve owes nothing to an explanation.


# %%
def inside(cluster):
    """Images of a cluster of OCFL-HDB, from the test sets of its clients."""
    drawn = assessment.samples_from(
        "in-cluster", split, ocfl.labels, cluster, 0, run.sample_size, run.seed
    )
    return federation.inputs(drawn)[0]


# %%
seen = inside(int(ocfl.labels[0]))
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for name, colour in zip(("FedAvg", "OCFL-HDB"), plots.COLOURS, strict=False):
    its = federation.network(line_up[name].models[line_up[name].labels[0]])
    classes = its(seen).argmax(dim=1)
    for kind, line in (("GradCAM", "-"), ("noise", "--")):
        noise = explain.random_maps(seen, run.seed)
        heat = noise if kind == "noise" else explain.gradcam(its, seen, classes, how.layer)
        curves = explain.curves(its, seen, heat, classes, **scored_by)
        for ax, curve in zip(axes, (curves.insertion, curves.deletion), strict=True):
            ax.plot(changed, curve.mean(dim=0), line, color=colour, label=f"{name}, {kind}")
axes[0].set(title="insertion", ylabel="probability", xlabel="pixels", ylim=(0, 1))
axes[1].set(title="deletion", xlabel="pixels")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right")
plt.show()

# %% [markdown]
# The surer model lifts *all* its curves, insertion and deletion, with GradCAM's maps or with noise. So the area under a curve mixes how good a map is with how sure
# the model is of half-erased images.
#
# And where does insertion begin, and deletion end? With an empty image, about which a model should have no opinion. What do they say of it?

# %%
empty = explain.background(image[None], run.baseline)
models = {"FedAvg": line_up["FedAvg"].models[0]}
models |= {f"OCFL-HDB, knows {known[k]}": row for k, row in enumerate(ocfl.models)}
for name, row in models.items():
    answer = federation.network(row)(empty).softmax(dim=1).detach()[0]
    print(f"{name:32s} empty is {int(answer.argmax())} ({answer.max():.2f})")

# %% [markdown]
# None of them says "I do not know", and a model that must choose among few classes may take one of them for granted, and look for signs of the others. For images of that class deletion cannot succeed, and
# insertion begins where it should end, whatever the map.
#
# ## All methods, all clusters: Algorithm 2
#
# For each cluster of each method: draw images from the test sets of its own clients (*in-cluster*), of all others (*out-of-cluster*), or from the central test set
# (*orchestrator*); explain the cluster's model on them; take the areas. The paper then has a box for each method, over the clusters (a star stands for "as published"):

# %%
explanations = assessment.assess(line_up, federation, trained, how)
table = explanations.table()
table["method"] = table["method"].str.replace(AS_PUBLISHED, "*")
gradcam = table[table["map"] == "GradCAM"]
figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharex=True, sharey=True)
for column, source in enumerate(assessment.SOURCES):
    for row, measure in enumerate(("insertion", "deletion")):
        plots.boxes(gradcam[gradcam["source"] == source], measure, axes[row, column])
    axes[0, column].set_title(source)
axes[0, 0].set_ylabel("insertion\n(high is good)")
axes[1, 0].set_ylabel("deletion\n(low is good)")
plt.show()

# %% [markdown]
# Insertion is higher for the methods that found the clusters, as in the paper. So is deletion, where lower is better; and both stay high
# on classes that a model has never seen (out-of-cluster): a first warning that confidence is being measured. A method with one cluster has no out-of-cluster box.
#
# ### Does the map matter?
#
# In-cluster we also score four maps to hold GradCAM against: GradCAM of an **untrained** network of the same shape (a sanity check of Adebayo et al.), **noise**, a blob in the
# **centre**, and the **brightness** of the image itself. None of them has seen the model. Mean over clusters:

# %%
own = table[table["source"] == "in-cluster"]
means = own.groupby(["method", "map"], sort=False)[["insertion", "deletion"]].mean()
figure, axes = plt.subplots(1, 2, figsize=(9.5, 2.8), sharey=True)
markers = dict(zip(assessment.MAPS, "os^vD", strict=True))
for measure, ax in zip(("insertion", "deletion"), axes, strict=True):
    for number, (kind, rows) in enumerate(means[measure].unstack(sort=False).items()):
        ax.plot(rows, markers[kind], color=plots.COLOURS[number], label=kind, markersize=5)
    ax.set_xticks(range(len(rows)), rows.index, rotation=90)
    ax.set_title(f"{measure} ({'high' if measure == 'insertion' else 'low'} is good)")
axes[0].set_ylabel("area")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right", fontsize=7)
plt.show()

# %% [markdown]
# What goes up from FedAvg to OCFL-HDB goes up for every map. By insertion noise is worth about as much as GradCAM, by deletion the blob in the centre more, and brightness is best by
# both: on zeros, ink is all that there is to take away, and no model is needed to know where it is.

# %%
record = records.write(run_name, run, explanations, federation)

# %% tags=["report"]
print(f"{'in-cluster':22s} {'clusters':>8s} {'accuracy':>9s} {'insertion':>10s} {'deletion':>9s}")
for name, found in explanations.summary().items():
    accuracy, up, down = (found[f"{m}_in-cluster"] for m in ("accuracy", "insertion", "deletion"))
    print(f"{name:22s} {found['n_clusters']:8d} {accuracy:9.2f} {up:10.2f} {down:9.2f}")
print(f"\nfigure    {records.display_path(saved)}\nrecord    {records.display_path(record.folder)}")

# %% [markdown]
# ## The authors' scores
#
# The authors archived the areas of every cluster of their runs: five data sets, four splits each, 15 clients. These are the boxes of Figure 6 (in-cluster):

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
# On the three data sets on the right, those of ResNet34, the lower boxes repeat the upper ones: what raises insertion raises deletion as much. On Fashion-MNIST they go together loosely, on
# MNIST they do not.
#
# ### Critical differences
#
# To compare methods over many runs one ranks them: in each scenario the best method gets rank 1, the next rank 2; average over scenarios (Demšar). Friedman's test
# asks whether the ranks could be chance. If not, each pair is compared; the authors take Wilcoxon's signed-rank test with Holm's correction for
# so many tests. A bar joins methods that cannot be told apart, with a dot on each. (The diagram's name is that of another test, Nemenyi's, with one critical difference for all pairs.)
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
figure, axes = plt.subplots(1, 3, figsize=(13, 2.5))
figure.get_layout_engine().set(wspace=0.2)
for comparison, ax in zip((printed, inverted, righted), axes, strict=True):
    plots.critical_differences(comparison, ax)
for title, ax in zip(("insertion", "deletion, as printed", "deletion"), axes, strict=True):
    ax.set_title(title, fontsize=9)
plt.show()

# %% [markdown]
# These are the paper's numbers. But in the middle the *highest* deletion has rank 1, and high deletion is bad. The right way round, on the right, no clustering (BNC)
# is first and three of OCFL's four methods are last. "More meaningful explanations on the provided data samples" (section 7) follow from the
# insertion of some methods; from deletion follows the contrary.
#
# Out-of-cluster (Figure 17) who never clustered has no score. Without BNC, and without Sattler (who splits on none of ResNet34's data sets), the scenarios are left in which the other
# five all have one:

# %%
outside = archive[archive["source"] == "out-of-cluster"].query("method != 'SCL'")
outside = outside.groupby([*scenario, "method"])[["insertion", "deletion"]].mean()
outside = outside.unstack().dropna()
figure, axes = plt.subplots(1, 2, figsize=(8, 2.1))
figure.get_layout_engine().set(wspace=0.35)
for measure, higher, ax in zip(("insertion", "deletion"), (True, False), axes, strict=True):
    comparison = stats.compare(outside[measure], higher)
    plots.critical_differences(comparison, ax)
    title = f"{measure}, {len(outside)} scenarios, Friedman p = {comparison.friedman:.3f}"
    ax.set_title(title, fontsize=9)
plt.show()

# %% [markdown]
# No pair can be told apart, by either measure.
#
# ### What is a map worth?
#
# Take noise. After $k$ pixels its insertion shows a random set of $k$ pixels; its deletion leaves a random set of $N - k$. Over the whole curve both see random
# sets of every size, so their expected areas are the *same*, whatever the model and however sure it is (if `step` divides $N$; else to one or two
# hundredths). So the **difference** insertion − deletion has a zero that needs no model: a map must beat 0 to be worth anything. It is no pure measure of explanation: a surer
# model has room for larger differences, and maps that have never seen a model can score high. In our runs above:

# %%
table["difference"] = table["insertion"] - table["deletion"]
own = table[table["source"] == "in-cluster"]
of_maps = own.groupby(["map", "method"], sort=False)["difference"].mean().unstack(0, sort=False)
print(of_maps[list(assessment.MAPS)].round(2).to_string())

# %% [markdown]
# Noise lies within a hundredth of 0, with forty images a cluster. GradCAM lies above it for most methods, and below the centre and the brightness for all: whether these
# maps explain anything, these scores cannot say.
#
# The paper does not say which layer GradCAM looked at. How much hangs on that? The difference of OCFL-HDB's models, a column a cluster, layer by layer of the network's
# convolutional part:

# %%
differences = {}
for cluster, row in enumerate(ocfl.models):
    its, seen = federation.network(row), inside(cluster)
    classes = its(seen).argmax(dim=1)
    for name, module in its.features.named_children():
        try:
            heat = explain.gradcam(its, seen, classes, f"features.{name}")
        except ValueError:  # no places are left
            continue
        curves = explain.curves(its, seen, heat, classes, **scored_by)
        gap = explain.area(curves.insertion) - explain.area(curves.deletion)
        key = f"features.{name}, {type(module).__name__}"
        differences.setdefault(key, []).append(float(gap.mean()))
columns = [f"cluster {cluster}" for cluster in range(len(known))]
print(pd.DataFrame(differences, index=columns).T.round(2).to_string())

# %% [markdown]
# In this lesson the model counts for more than the layer: the first cluster's maps are far above noise on every layer, those of the other two below. Look at the figures: the
# first model looks at strokes, the others at the paper around them, for what is *not* there also tells a 6 from a 4. But paper is zero, and taking it
# away changes nothing. With a baseline of zeros such a map must score below noise, so its score does not say that the map is bad (exercise 2). On MNIST the layer decides, too (last section).
#
# And in the authors' archive? Each dot is a run (method and scenario); on the diagonal a map is worth as much as noise:

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
title = f"insertion − deletion, Friedman p = {by_difference.friedman:.3f}"
axes[1].set_title(title, fontsize=9)
plt.show()

# %% [markdown]
# On BloodMNIST and PathMNIST the dots lie on the diagonal: those maps are worth hardly more than noise (the authors' step is not known, and may favour insertion by a hundredth). On the other
# three most maps are worth something; some lie below. By the difference OCFL-HDB has the best rank, but the bars join no clustering with every method; only affinity propagation, with its wrong sign, falls significantly
# behind some. The archive does not show that cluster models are better explained, and does not rule it out.
#
# ## What we saw
#
# - GradCAM is a weighted sum of a layer's channels, meant to show what a model uses, right or wrong; the layer is a choice.
# - Insertion and deletion measure the map and the model's confidence in half-erased images together. With clustering both tend to go up: the one looks
#   like a gain, the other is a loss, and was printed as a gain by a rank that is the wrong way round.
# - Their difference is 0 for noise, whatever the model. Maps that have never seen the model may still score higher than GradCAM: hold an explanation against such maps before
#   believing it.
# - A cluster's model answers for classes that it has never seen, and has maps for its answers.
#
# ## At full scale
#
# In this folder, `python -m cflkit run 07_explaining_cluster_models.ipynb -f params/explanations/paper/mnist_15_nonoverlapping_balanced.yaml`
# trains the paper's network on MNIST and explains it; it wants a GPU. Below are the runs that are committed, on compact networks, trained as the reduced
# runs of `03` (anew: 50 rounds amplify the rounding of another version of the kit) and explained in sixteen steps (`params/explanations/reduced/`). First the boxes, theirs and ours, each
# method as the authors' code had it:

# %%
past_runs = [p for p in records.find() if ledger.scale(p, "ocfl-explanations") == "reduced"]
ours = pd.concat(
    [
        ledger.rows_as_published(past, name).assign(
            method=theirs, **{column: past.parameters[column] for column in scenario}
        )
        for past in past_runs
        for theirs, name in papers.explanations.METHODS.items()
    ]
).query("source == 'in-cluster'")
for past in past_runs:
    print(f"{past.id}, {past.provenance['minutes']:.0f} minutes")

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
# Does clustering raise insertion and lower deletion? OCFL-HDB less no clustering: the mean over a data set's splits and, in brackets, the smallest and the
# largest, with GradCAM's maps and with those that have never seen the model. (The rebuilt and the reduced data set have no counterpart in the archive, and one split each.)

# %%
ours["difference"] = ours["insertion"] - ours["deletion"]


def gain(rows, measure):
    """OCFL-HDB's mean over clusters less BNC's."""
    means = rows.groupby([*scenario, "method"])[measure].mean().unstack()
    gains = means["OCFL-HDB"] - means["BNC"]
    spread = f" [{gains.min():+.2f}, {gains.max():+.2f}]" if len(gains) > 1 else ""
    return f"{gains.mean():+.2f}{spread}"


# %%
gains = {
    (name, measure): {
        kind: gain(of_map, measure) for kind, of_map in rows.groupby("map", sort=False)
    }
    for name, rows in ours.groupby("dataset", sort=False)
    for measure in ("insertion", "deletion", "difference")
}
print(pd.DataFrame(gains).T.to_string())

# %% [markdown]
# Insertion rises, as in the paper; deletion rises as well, and does not fall. Both rise by about as much with noise: what has grown is the models' confidence in half-erased images, which
# leave a cluster's model fewer classes to choose from. In the difference little is left, and splits disagree about its sign.
#
# And how large are the differences themselves? Means over splits, without clustering and with OCFL-HDB:

# %%
pairs = ours[ours["method"].isin(["BNC", "OCFL-HDB"])]
pairs = pairs.groupby([*scenario, "method", "map"], sort=False)["difference"].mean()
pairs = pairs.groupby(level=["dataset", "method", "map"], sort=False).mean().unstack(sort=False)
print(pairs.round(2).to_string())

# %% [markdown]
# On grey images, which have a dark ground, brightness alone scores far above GradCAM, and on MNIST so does the blob in the centre. Blood cells are dark on a bright ground: there brightness is
# the wrong way to look, but the blob still scores above GradCAM.
#
# The layer once more: insertion − deletion of one scenario on MNIST, with GradCAM on the last convolution after its ReLU and before.

# %%
here = {"dataset": "mnist", "overlap": "nonoverlapping", "balance": "balanced", "seed": 0}
for where, chosen_layer in (("after ReLU", None), ("before ReLU", "features.7")):
    for past in records.find(layer=chosen_layer, sample_size=350, step=49, **here):
        gaps = {
            name: past.summary[name]["insertion_in-cluster"]
            - past.summary[name]["deletion_in-cluster"]
            for name in ("FedAvg", "OCFL-HDB")
        }
        print(where, {name: round(gap, 2) for name, gap in gaps.items()})

# %% [markdown]
# Before the ReLU a unit is negative where it sees nothing, and a negative weight times a negative value speaks *for* the class: the paper around the digit lights up. Whether clustering "improves"
# these explanations turns with the layer.
#
# The difference of all methods, ranked over our runs on MNIST and Fashion-MNIST; on the left with GradCAM, on the right with noise, where there is nothing to find. (Splits of one data set
# are not independent, so mind the bars less than the ranks.)

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 2.5))
figure.get_layout_engine().set(wspace=0.3)
for kind, ax in zip(("GradCAM", "noise"), axes, strict=True):
    rows = ours[(ours["map"] == kind) & ours["dataset"].isin(both)]
    means = rows.groupby([*scenario, "method"])["difference"].mean().unstack()
    plots.critical_differences(stats.compare(means, higher_is_better=True), ax)
    ax.set_title(f"insertion − deletion, {kind}", fontsize=9)
plt.show()

# %% [markdown]
# By the difference no method stands out, with GradCAM or with noise.
#
# In colour, the paper's three clients again: BloodMNIST rebuilt from its source (compact network with BatchNorm, 50 rounds), and below a subset of CIFAR-10 (without). Here a map can be held against
# what one sees. Compare FedAvg's second cell with OCFL's: right answers, for different reasons.
#
# ![saliency maps on blood cells](../figures/07_explanations-bloodmnist-rebuilt-nonoverlapping-balanced-m15-seed0-54f8f484.png)
#
# ![saliency maps on a subset of CIFAR-10](../figures/07_explanations-cifar10-subset-nonoverlapping-balanced-m15-seed0-6b9a3f73.png)
#
# ## Deviations
#
# 1. **Layer.** The paper does not name GradCAM's layer; ours is the last convolution of each network with its ReLU (`layer` chooses another). Nor does it
#    say how maps are enlarged; ours bilinearly.
# 2. **Models.** Explained are the cluster models after the last round, the averages of line 7 of Algorithm 2. The authors
#    saved models every ten rounds and explain the last saved.
# 3. **Class.** Algorithm 2 writes $(x, y)$. Map and curves are here of the *predicted* class, as in RISE's code, right or wrong: the archived scores out-of-cluster are far above
#    what a label that the model never saw could have. `explained = "true"` takes the label.
# 4. **Baseline.** Zeros for insertion, too, as the arrays inside the authors' figures show; RISE inserts into a blurred image (`baseline = "blur"` has a blur of that
#    size), and its zeros are those of normalised images.
# 5. **Step.** Not stated; by the frames inside the authors' figures 8, 10, 20 or 40 pixels. Our parameter files have 20 at the paper's scale. Where the step does
#    not divide the number of pixels, the last is a shorter one, but counts as much in the area (as in RISE's code), which favours insertion over deletion by up to
#    two hundredths; the lesson's and the reduced scale's steps divide it.
# 6. **Equal pixels** are in random order, so that a map which is zero everywhere is worth as much as noise. RISE's code leaves that to its sorting.
# 7. **Samples** are drawn without replacement from the union of the clients' test sets, `sample_size` of them (in Algorithm 2 ζ is a share, in the text 350, or 180 of BloodMNIST).
#    The paper concatenates the test sets, whose images clients of a cluster share; here each counts once.
# 8. **Area of the mean curve, mean of the areas.** The paper averages curves over a batch and takes one area, to be faster. For batches of equal size the two are equal; only the
#    spread needs an area for each image, and ours (quantiles over images) is not theirs (over batches).
# 9. **Deletion's ranks** are printed with the highest first (Figure 8). Both ways above.
# 10. **Out-of-cluster ranks** (Figure 17): who never clustered has no out-of-cluster images; the authors' tests answered that with NaN. `stats.compare` refuses missing
#     scores, so we rank five methods where all have some; the ledger has the scores, not these ranks.
#
# ## Exercises
#
# 1. Set `explained = "true"`. Whose insertion changes most, and why out-of-cluster?
# 2. Set `baseline = "mean"`. Which maps gain, and why is brightness not the best any more?
# 3. Set `layer = "features.7"`, the last convolution before its ReLU. In which figure do you first see that the layer matters?
# 4. Show by hand that insertion and deletion of noise have the same expectation. Where does the proof use that the baseline is the same in both, and that the step divides $N$?
# 5. Multiply a model's last layer (weights and biases) by 3. It answers as before, more surely. What happens to its GradCAM maps, its insertion, its deletion and the difference?
# 6. Compare `OCFL-MS` with `OCFL-HDB` cluster by cluster: what do clusters of one client (which round broke them off?) do to the mean over clusters? Weigh clusters by
#    their clients instead.
#
# ## References
#
# - R. R. Selvaraju et al.: Grad-CAM: visual explanations from deep networks via gradient-based localization. ICCV 2017.
# - V. Petsiuk, A. Das, K. Saenko: RISE: randomized input sampling for explanation of black-box models. BMVC 2018.
# - J. Adebayo et al.: Sanity checks for saliency maps. NeurIPS 2018.
# - J. Demšar: Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
# - N. Kokhlikyan et al.: Captum: a unified and generic model interpretability library for PyTorch. arXiv 2009.07896, 2020.
