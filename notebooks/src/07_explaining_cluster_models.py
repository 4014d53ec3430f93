# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A pretty map proves nothing: what does an insertion score measure?
#
# **Question.** A network says which digit it sees, and a method paints where it looked. The insertion score says how good this map is. What
# does that score measure?
#
# ![A handwritten digit, and three maps of it with the letters A, B and C: one is a soft blob on the strokes, one is scattered dots, and one has the form of the digit](../figures/07_three_maps.png)
#
# *The image is a 3 of 8 × 8 pixels, enlarged. Pixels that a map calls important are bright.*
#
# **Answer.** It measures more than the map. Two of these three maps were made without the network, and one of these two is random. This lesson shows how a score depends on the map, on the model and on the image. A map is worth something only if it beats maps that know nothing.
#
# **You will**
#
# - watch an image come back pixel by pixel, in the order of three maps,
# - write GradCAM in three lines, and read insertion in eight,
# - find the score of a map that knows nothing,
# - score the models of clusters on the images of their own clients, of other clients, and of the server,
# - compare GradCAM with maps that are made without any model.
#
# **Before this:** [03 When should the server split?](03_ocfl_temperature.ipynb).
#
# **Study minutes:** 23. **Minutes on two cores:** 0.5
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustering for Federated Learning Under Clustering-Agnostic
# Assumption*, section 5. To its authors' knowledge, it is the first to bring cluster models and explanations together. It concludes that personalised models "generate more meaningful explanations" (section 7). Do the scores show it? The authors archived the scores of every cluster, so their diagrams can be drawn again.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

from cflkit import check, datasets, explain, methods, metrics, partition, plots, simulation
from cflkit.explain import assessment
from cflkit.federation import Federation, LocalTraining
from cflkit.reproduce import claims, papers

plots.style()

# %% [markdown]
# ## One model for all, and one per cluster

# %% tags=["parameters"]
clients = 15  # m, five in each group; groups have no digit in common
draws = 120  # images drawn for each client
rounds = 10  # of communication
lr = 0.05  # learning rate of the clients
step = 49  # pixels that come back at a time
seed = 0  # the initial model, and the batch orders

# %%
run = papers.lessons.ExplainingClusterModels.of(globals())
form = {"overlap": "nonoverlapping", "balance": "balanced"}
digits = datasets.load("digits")
images, split = partition.ocfl(digits, clients=run.clients, draws=run.draws, seed=0, **form)
training = LocalTraining(epochs=3, batch_size=16, lr=run.lr)
federation = Federation(images, split, "compact-cnn", training, seed=run.seed)
ways = {"FedAvg": methods.make("fedavg"), "OCFL": methods.make("ocfl", clusterer="hdbscan")}
history = simulation.run(ways, federation, run.rounds, progress=False)

# %% [markdown]
# The digits are enlarged to 28 × 28 pixels here, because a map of 8 × 8 pixels would be too coarse. OCFL has found the three groups, so it has three
# models. FedAvg has one model for all. We explain the model of client 0's cluster and FedAvg's model, on test images of the clients in this cluster.

# %% tags=["nbval-check-output"]
labels, models = ways["OCFL"].labels, ways["OCFL"].models
ari = metrics.agreement(split.clusters, labels)["ari"]
home = np.flatnonzero(labels == labels[0])
tests = np.concatenate([split.test[client] for client in home])
seen, truth = federation.inputs(np.random.default_rng(0).permutation(tests)[:60])
of_all = federation.network(ways["FedAvg"].models[0])
of_cluster = federation.network(models[labels[0]])
print(f"{len(models)} clusters, agreement with the groups (ARI) {ari:.2f}")

# %% [markdown]
# ## Put the pixels back, best first
#
# A **saliency map** gives each pixel of an image a number: how much it matters for the answer. If a map is right, its best pixels alone should be enough.
# **Insertion** starts from a black image (in RISE, its source, from a blurred one), and puts the pixels back in the order of the map. (Unlike in the picture at the top, ink is bright now.) After every step it asks the model for the
# probability of the class that it has predicted for the whole image. The score is the **area** under this curve, between 0 and 1.


# %%
def insertion(network, image, heat, c, step):
    """The probability of class c, and the image, while pixels come back in the map's order."""
    order = explain.pixel_order(heat[None], run.seed)[0]
    probabilities, pictures = [], []
    for count in range(0, len(order) + step, step):
        shown = torch.zeros_like(image)
        shown.flatten(1)[:, order[:count]] = image.flatten(1)[:, order[:count]]
        pictures.append(shown)
        probabilities.append(network(shown[None]).detach().softmax(dim=1)[0, c].item())
    return probabilities, pictures


# %% [markdown]
# **Predict.** Figure 1 does this for three maps of one image, under the model of the cluster, in the order A, B, C of the top picture: GradCAM, which we write below; **noise**, which is a random number for each pixel; and the brightness of the image itself. For each map, which share of the pixels must be back before the
# probability is above 0.5 for the first time? Write your share for noise into the next cell, and execute the cells from there. Figure 1 then shows your guess.

# %%
guess = None  # per cent of the pixels, for noise

# %% [markdown]
# Move the slider.

# %% tags=["hide-input"]
guess = check.guessed(guess, 0, 100)
layer = "features.8"  # the last convolution, after its ReLU
answers = of_cluster(seen).softmax(dim=1).detach()
maps = explain.gradcam(of_cluster, seen, answers.argmax(dim=1), layer)
right = answers.argmax(dim=1) == truth
# Of the last class that is answered rightly, the widest image, whose form is easy to see
known = torch.where(right, truth, -1)
across = torch.linspace(-1, 1, seen.shape[-1], device=seen.device)
columns = seen.sum(dim=(1, 2)) / seen.sum(dim=(1, 2, 3))[:, None]
widths = columns @ across.square() - (columns @ across).square()
chosen = int(torch.where(known == known.max(), widths, -1).argmax())
image, c = seen[chosen], int(answers[chosen].argmax())
three = {
    "GradCAM": maps[chosen],
    "noise": explain.random_maps(image[None], run.seed)[0],
    "brightness": explain.brightness_maps(image[None])[0],
}
back = {name: insertion(of_cluster, image, one, c, run.step) for name, one in three.items()}

# The picture at the top of this page
figure, axes = plt.subplots(1, 4, figsize=(6.4, 1.9))
axes[0].imshow(image[0].cpu(), cmap="gray_r")
for ax, title in zip(axes, ("image", "A", "B", "C"), strict=True):
    ax.set(title=title, xticks=[], yticks=[])
for ax, heat in zip(axes[1:], three.values(), strict=True):
    ax.imshow(heat.cpu(), cmap="plasma")
figure.suptitle("Which of these maps explains what the network sees?", fontsize=10)
plots.save(figure, "07_three_maps")
plt.close(figure)


def area_until(curve, place):
    """The area under a curve up to a step, where the whole width is 1."""
    return np.trapezoid(curve[: place + 1]) / (len(curve) - 1)


def frame(place):
    """Draw three maps, what has come back in their order, and the curves so far."""
    figure, axes = plt.subplots(3, 3, figsize=(5.6, 4.1), width_ratios=(1, 1, 2.2))
    title = "Brightness needs the fewest pixels, and even noise gets a large area"
    title = plots.finding(title, fewest and areas["noise"] > 0.25)
    figure.suptitle(title if place == last else "What do the first pixels show?", fontsize=10)
    for line, (name, (curve, pictures)) in zip(axes, back.items(), strict=True):
        line[0].imshow(three[name].cpu(), cmap="plasma")
        line[1].imshow(pictures[place][0].cpu(), cmap="gray", vmin=0, vmax=float(image.max()))
        line[0].set_ylabel(name)
        for ax in line[:2]:
            ax.set(xticks=[], yticks=[])
        share = np.linspace(0, 1, len(curve))
        colour = plots.COLOURS[list(back).index(name)]
        line[2].plot(share[: place + 1], curve[: place + 1], color=colour)
        line[2].fill_between(share[: place + 1], curve[: place + 1], color=colour, alpha=0.25)
        so_far = area_until(curve, place)
        word = "final area" if place == last else "area so far"
        line[2].text(0.98, 0.1, f"{word} {so_far:.2f}", ha="right")
        if guess is not None and name == "noise":
            line[2].axvline(guess / 100, color="black", linestyle="--", linewidth=1)
            line[2].text(guess / 100, 0.8, " your guess", fontsize=8)
        line[2].set(xlim=(0, 1), ylim=(0, 1.05), xticks=(0, 0.5, 1), yticks=(0, 1))
        line[2].tick_params(labelbottom=name == list(back)[-1])
    axes[0, 0].set_title("map")
    axes[0, 1].set_title("inserted")
    axes[0, 2].set_title(f"probability of {c}")
    axes[2, 2].set_xlabel("share of the pixels")
    return figure


last = len(back["noise"][0]) - 1
areas = {name: area_until(curve, last) for name, (curve, _) in back.items()}
# The first step at which the probability is above 0.5
reached = {name: np.argmax(np.array(curve) > 0.5) for name, (curve, _) in back.items()}
fewest = reached["brightness"] < min(reached["GradCAM"], reached["noise"])
places = sorted({0, 1, 2, 4, 6, last} & set(range(last + 1)))
plots.show_frames(
    [frame(place) for place in places],
    [f"{min(place * run.step, image[0].numel())} of 784 pixels" for place in places],
    1,
    "Left: three maps of one image, bright where they call a pixel important. Middle: the pixels that are back. Right: the probability of the class; the shaded area is the score.",
    "Three rows, for GradCAM, noise and brightness. As pixels come back, strokes of the digit appear in the first and last row, "
    "and scattered dots in the middle row. Each curve rises and the area below it fills, most for brightness.",
    first=1,
)

# %% [markdown]
# With the defaults, brightness needs the smallest share, a single step (a sixteenth of the pixels), because a few of them from all strokes show the shape. GradCAM needs two: it first brings back mainly one stroke.
# Noise, which brings back dots from everywhere, needs about a third. Yet its area is far from 0 at the end.
#
# ## GradCAM in three lines
#
# The output of the last convolution still has positions. Its channels $A^k$ are small pictures. GradCAM asks
# how much the logit $y^c$ of the class, its output before softmax, would grow with each channel. It averages this over the $Z$ positions of the channel, and adds up the channels with
# these weights (Selvaraju et al., equations 1 and 2):
#
# $$\alpha_k^c = \frac{1}{Z}\sum_{i,j}\frac{\partial y^c}{\partial A^k_{ij}},\qquad
# L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big).$$
#
# The ReLU keeps what supports the class.
#
# **Write it.** Compute $L^c$ from the channels and their gradients, both NumPy arrays, and divide it by its largest value. While nothing is written, the lesson uses the solution.


# %% tags=["nbval-check-output"]
def gradcam(activations, gradients):
    """Return the map [H, W] for the activations [C, H, W] and the gradients [C, H, W]."""
    raise NotImplementedError  # write your lines here


gradcam = check.written("07.1", gradcam)

# %% [markdown]
# The next function gets the channels and the gradients out of the network, and enlarges your small map to the size of the image.


# %%
def gradcam_by_hand(network, image, c):
    """The map of one image for class c, of the image's size."""
    kept = []
    # A hook is called with the module, the inputs and the output of its layer
    with network.get_submodule(layer).register_forward_hook(lambda *given: kept.append(given[2])):
        y = network(image[None])[0, c]
    [gradient] = torch.autograd.grad(y, kept)
    A, slopes = (part[0].detach().cpu().numpy() for part in (kept[0], gradient))
    if not (slopes.mean(axis=(1, 2), keepdims=True) * A).sum(axis=0).max() > 0:
        return torch.zeros(image.shape[1:])  # no channel supports the class
    small = torch.from_numpy(np.asarray(gradcam(A, slopes), dtype=np.float32))[None, None]
    large = F.interpolate(small, image.shape[1:], mode="bilinear")[0, 0]
    return large / large.max()


# %% [markdown]
# The package takes GradCAM from the library Captum, and computes the curves of many images at once. Both must agree with
# what we wrote:

# %% tags=["nbval-check-output"]
by_hand = gradcam_by_hand(of_cluster, image, c)
same_map = torch.allclose(by_hand, maps[chosen].cpu(), atol=1e-5)
settings = {"step": run.step, "baseline": "zeros", "seed": run.seed}
one = explain.curves(of_cluster, image[None], maps[chosen][None], torch.tensor([c]), **settings)
same_curve = np.allclose(one.insertion[0], back["GradCAM"][0], atol=1e-5)
print("as Captum's map:", same_map, "· as the package's curve:", same_curve)

# %% [markdown]
# ## Wrong answers have maps, too
#
# The formula does not use the true class. Figure 2 shows the image under FedAvg's model and under the models of all clusters. Two of these have never seen this digit.
#
# **Predict.** How many of the four answers are wrong, and could you tell from the maps alone?

# %% tags=["hide-input"]
named = {"FedAvg (one for all)": ways["FedAvg"].models[0]}
for number, row in enumerate(models):
    who = np.flatnonzero(labels == number)
    classes = sorted({int(k) for i in who for k in images.labels[split.train[i]].unique()})
    named[f"cluster with {classes[0]} to {classes[-1]}"] = row
figure, axes = plt.subplots(1, len(named), figsize=(7, 2.2))
picture, verdicts = (255 * image / image.max()).byte().cpu(), []
for (name, row), ax in zip(named.items(), axes, strict=True):
    network = federation.network(row)
    sure, answer = network(image[None]).softmax(dim=1).detach()[0].max(dim=0)
    plots.saliency(picture, explain.gradcam(network, image[None], answer[None], layer)[0].cpu(), ax)
    verdicts.append((int(answer) == c, float(sure)))
    colour = "black" if verdicts[-1][0] else plots.COLOURS[1]
    mark = "" if verdicts[-1][0] else "✗ "
    ax.set_title(f"{name}\n{mark}{int(answer)} ({sure:.2f})", fontsize=9, color=colour)
wrong = not all(is_right for is_right, _ in verdicts)
figure.suptitle(plots.finding("Wrong answers have convincing maps, too", wrong))
figure.supxlabel("colour: importance, from purple (little) to yellow (most)", fontsize=9)
plots.show(
    figure,
    2,
    "GradCAM's maps of one image under four models. Above each map: the answer and its probability, with a cross where it is "
    "wrong.",
    "Four pictures of the same digit with coloured maps. The maps of models that answer wrongly lie on strokes of the digit "
    "like that of the right one.",
)

# %% [markdown]
# With the defaults, three of the four answers are wrong. The paper (section 5.2) shows similar maps for different answers. A map should show which pixels the *model* used, and no eye can check this. So maps need scores.
#
# ## What does noise score?
#
# Noise explains nothing. We score it under three models: FedAvg's model, the model of the cluster, and FedAvg's
# model with its logits multiplied by 5. This third one gives the same answers as the first, with more confidence.
#
# **Deletion** is the opposite of insertion: the pixels leave the whole image in the order of the map, so that a *low* area is good.
#
# **Predict.** The multiplied logits change no answer. By how much do they change the insertion area of noise: not at all, a little, or by more than 0.1?


# %%
def sharpened(network, factor=5):
    """The network with multiplied logits: the same answers, and more confidence."""
    network.register_forward_hook(lambda module, inputs, logits: factor * logits)
    return network


judged = {
    "one for all": of_all,
    "one for all, logits × 5": sharpened(federation.network(ways["FedAvg"].models[0])),
    "cluster's": of_cluster,
}

# %% [markdown]
# The next cell scores any of four kinds of maps, under any model, on sixty images.


# %%
def mean_curves(network, kind):
    """The mean curves of one kind of map over all images, for the predicted class."""
    answer = network(seen).argmax(dim=1)
    makers = {
        "GradCAM": lambda: explain.gradcam(network, seen, answer, layer),
        "noise": lambda: explain.random_maps(seen, run.seed),
        "centre": lambda: explain.centre_maps(seen),
        "brightness": lambda: explain.brightness_maps(seen),
    }
    return explain.curves(network, seen, makers[kind](), answer, **settings)


of_noise = {name: mean_curves(network, "noise") for name, network in judged.items()}

# %% tags=["hide-input"]
full = {
    "one for all": "FedAvg",
    "one for all, logits × 5": "FedAvg, logits × 5",
    "cluster's": "model of the cluster",
}
figure, axes = plt.subplots(1, 2, figsize=(7.4, 3), sharey=True)
inserted, deleted = {}, {}
for number, (name, found) in enumerate(of_noise.items()):
    inserted[name] = explain.area(found.insertion).mean().item()
    deleted[name] = explain.area(found.deletion).mean().item()
    look = {"color": plots.COLOURS[(1, 3, 0)[number]], "marker": plots.MARKERS[number]}
    share = np.linspace(0, 1, found.insertion.shape[1])
    label = f"{full[name]}:\ninsertion {inserted[name]:.2f}, deletion {deleted[name]:.2f}"
    for ax, curve in zip(axes, (found.insertion, found.deletion), strict=True):
        ax.plot(share, curve.mean(dim=0), markersize=4, label=label, **look)
axes[0].set(title="insertion", xlabel="share of pixels inserted", ylabel="mean probability")
axes[1].set(title="deletion", xlabel="share of pixels deleted", ylim=(0, 1.05))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
title = "Random maps score higher under a more confident model"
higher = min(inserted["one for all, logits × 5"], inserted["cluster's"]) > inserted["one for all"]
figure.suptitle(plots.finding(title, higher), fontsize=10)
plots.show(
    figure,
    3,
    "Mean curves of random maps under three models, with the areas of insertion and deletion.",
    "Two line plots with three lines each. Under the model of the cluster both lines lie far above those of FedAvg's model; "
    "with multiplied logits the lines mostly lie in between.",
)

# %% [markdown]
# The maps are the same random numbers, but the area grows with the confidence of the model: with multiplied logits, by more than 0.2. So an insertion score alone cannot say that one
# model has better *maps* than another one. Deletion alone does not help: by its score, the more confident model is worse.
#
# ## Whose images? The paper's three scores
#
# The paper's Algorithm 2 explains each cluster's model on three sources of images. **In-cluster** are the test images of the cluster's own clients, **out-of-cluster** those of all other
# clients, and **orchestrator** the server's own test set. For each source it draws images, computes their maps, and takes the mean area. We do the same, with GradCAM and noise, for the predicted classes, as the archive suggests (the algorithm prints $y$).
#
# **Predict.** Out-of-cluster, our clusters' models have seen none of the digits, so all answers are wrong. Is the insertion of GradCAM there far below the one in-cluster?


# %%
def scored(network, x, y):
    """Accuracy, and the mean insertion of GradCAM's maps and of noise, on some images."""
    answer = network(x).argmax(dim=1)
    found = explain.gradcam(network, x, answer, layer), explain.random_maps(x, run.seed)
    curves = [explain.curves(network, x, heat, answer, **settings).insertion for heat in found]
    right = (answer == y).float().mean()
    return [right.item(), *(explain.area(curve).mean().item() for curve in curves)]


# %%
def algorithm_2(method, source):
    """The mean scores of a method's models on images of one source; None if it has no images."""
    rows, labels = [], method.labels.numpy()
    for cluster in np.unique(labels):
        place = source, split, labels, cluster, len(images.test_labels)
        drawn = assessment.samples_from(*place, size=40, seed=run.seed)
        if len(drawn):
            chosen = federation.inputs(drawn, central=source == "orchestrator")
            rows.append(scored(federation.network(method.models[cluster]), *chosen))
    return np.mean(rows, axis=0) if rows else None


# %% tags=["hide-input", "nbval-ignore-output"]
print(f"{'':8s}{'images':16s}{'accuracy':>9s}{'GradCAM':>9s}{'noise':>8s}")
for name, method in ways.items():
    for source in assessment.SOURCES:
        numbers = algorithm_2(method, source)
        told = (
            "none: there are no other clients"
            if numbers is None
            else "{:8.2f} {:8.2f} {:7.2f}".format(*numbers)
        )
        print(f"{name:8s}{source:16s} {told}")

# %% [markdown]
# With the defaults, out-of-cluster every answer is wrong, and GradCAM's insertion is still 0.79, only 0.10 below the one in-cluster. That of noise falls about as much. So the score follows the confidence of the model, even where it is confidently wrong. On the server's
# test set, which has all digits, FedAvg's model is right more often than the clusters' models, and yet the score prefers the clusters. (How often depends on rounding: 0.65 here, 0.43 with one thread.)
#
# In the paper's ranking by insertion in-cluster (its Figure 8), OCFL with HDBSCAN or k-means comes first, and one model for all last. Our small table also has OCFL before FedAvg. But noise has this order, too, so the order alone
# does not show that the *maps* of clusters are better. (The authors call the evaluation of maps unresolved, and compare models on purpose: section 5.1.)
#
# ## What noise must score
#
# In Figure 3, the two areas of each model are equal to within 0.06, and not by accident. With a random map, insertion after 30 % of the pixels shows a random 30 % of the image. Deletion after 70 %
# also shows a random 30 %. On average, one curve is therefore the other one, read backwards,
# and their areas are equal. This holds for every model and every kind of image, if absent pixels are black in both curves and all steps are equal.
#
# So the **difference**, insertion − deletion, has a natural zero. A map must beat 0 to be worth anything, but this is not enough.
#
# **Predict.** A fourth map is a blob in the centre of every image. Does it beat 0 under the two models? Does it beat GradCAM?

# %%
kinds = ("GradCAM", "brightness", "centre", "noise")
worth = {name: [] for name in ("one for all", "cluster's")}
for name, values in worth.items():
    for kind in kinds:
        found = mean_curves(judged[name], kind)
        values.append((explain.area(found.insertion) - explain.area(found.deletion)).mean().item())

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.8, 2.8))
for number, (name, values) in enumerate(worth.items()):
    look = {"color": plots.COLOURS[(1, 0)[number]], "hatch": ("//", "")[number]}
    drawn = ax.barh(np.arange(4) + 0.36 * (number - 0.5), values, 0.34, label=full[name], **look)
    ax.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
ax.axvline(0, color="black", linewidth=0.8)
ax.set_yticks(range(4), kinds)
ax.invert_yaxis()
ax.margins(x=0.12)
ax.set(xlabel="insertion − deletion (high is good)")
of_gradcam, of_brightness, _, of_zero = np.array(list(worth.values())).T
title = "Noise scores near 0, and brightness as much as GradCAM, or more"
as_much = (of_brightness > of_gradcam - 0.05).all() and (abs(of_zero) <= 0.08).all()
ax.set_title(plots.finding(title, as_much), loc="left")
figure.legend(loc="outside right")
plots.show(
    figure,
    4,
    "Insertion minus deletion of four kinds of maps under two models, as means over 60 test images.",
    "Four pairs of bars. Noise is at zero for both models. GradCAM and brightness are longest under the model of the "
    "cluster; under FedAvg's model, brightness is longer than GradCAM.",
)

# %% [markdown]
# Noise is near 0 under both models. The centre beats 0 under both models, because digits are in the middle. GradCAM beats the centre under the model of the cluster. Under FedAvg's model
# both are much lower, and GradCAM is no better than the centre. But these ten rounds flatter the clusters, because FedAvg's model is hardly trained. In 28 longer runs, GradCAM's difference was larger under the clusters' models in only 15, and by 0.02 on average ([report 97](97_report_explanations.ipynb)).
#
# Only the zero is common to all models: brightness, the same map under both, scores 0.31 and 0.65. So compare maps under one model.
#
# Brightness scores as much as GradCAM, or more, although no model was used to make it. It knows where the strokes are, and on a black background the strokes are all that can be put back.
#
# > **An honest limit.** This score cannot tell whether GradCAM explains more than where the strokes are. What counts as an absent pixel is also a choice. With
# > black, a map that marks the empty background must score badly, although what is *not* there also tells a 6 from a 4. This lesson has 60 images and one training.
# > [07b](07b_explanations_controls.ipynb#what-is-a-map-worth) has three trainings, all clusters and all layers.
#
# ## What we saw
#
# - GradCAM is a weighted sum of a layer's channels. Its maps can look alike for right and wrong answers.
# - An insertion area mixes the map with the confidence of the model. Multiplied logits change only the confidence.
# - Insertion − deletion is 0 on average for noise, under every model. Compare a map with noise *and* with brightness before you believe it.

# %% tags=["claims"]
rise = inserted["cluster's"] - inserted["one for all"]
sharper = inserted["one for all, logits × 5"] - inserted["one for all"]
claims.check(
    "07_explaining_cluster_models",
    {
        "OCFL finds the groups": ari == 1,
        "Under the model of the cluster, noise has an insertion area 0.15 or more above FedAvg's": rise
        >= 0.15,
        "Multiplied logits raise the insertion area of noise": sharper > 0,
        "The difference of noise is within 0.08 of 0": (abs(of_zero) <= 0.08).all(),
        "Brightness is worth at most 0.1 less than GradCAM": (
            (of_brightness - of_gradcam >= -0.1).all()
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write GradCAM from activations and gradients, and then the difference of areas. The graded versions are in
#    [the exercises](exercises/07_explaining_cluster_models_exercises.ipynb).
# 2. **Break.** Put `"baseline": "mean"` into `settings`. Which map is the best one now, and why is it not brightness any more?
# 3. **Explain.** Multiply the logits by 100 instead of 5. What do the areas of noise come close to, and what happens to the difference?
#
# **Go deeper.** [07b](07b_explanations_controls.ipynb) scores all methods and all clusters as the paper does. It has an untrained
# network as a further control, the calibration of the models, and the choice of the layer. By eye, the authors find fewer artefacts and more cohesive maps with OCFL-KM, -MS and -HDBS (section 5.2). [Report 97](97_report_explanations.ipynb) compares the
# scores with those of the authors, and ranks the methods as the paper does, by [critical differences](99_glossary.ipynb#critical-difference-diagram).
#
# ## References
#
# - R. R. Selvaraju et al.: *Grad-CAM: Visual Explanations from Deep Networks via Gradient-Based Localization*. ICCV 2017.
# - V. Petsiuk, A. Das, K. Saenko: *RISE: Randomized Input Sampling for Explanation of Black-Box Models*. BMVC 2018.
# - J. Adebayo et al.: *Sanity Checks for Saliency Maps*. NeurIPS 2018.
#
# **Previous:** [06 FedCRef](06_fedcref.ipynb) · **Next:** [08 Tutorial 022](08_tutorial_022.ipynb) ·
# [Appendix](07b_explanations_controls.ipynb) · [Glossary](99_glossary.ipynb)
