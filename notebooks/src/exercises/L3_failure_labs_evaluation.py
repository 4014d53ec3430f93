# %% [markdown]
# # Failure labs: training and evaluation
#
# In each lab somebody has run an experiment, and the result cannot be right. Read the symptom, run the cells, and look
# at the code and at the numbers behind the output. Change the cells and add your own. Write down your diagnosis with
# the observation that supports it, and only then open the fold below it. At the end of each lab you write the repair.
#
# Lab L3.1 needs the lesson [01 Federated averaging](../01_federated_averaging.ipynb). L3.2 and L3.3 need
# [07 Explaining cluster models](../07_explaining_cluster_models.ipynb), and L3.4 needs [90 The ledger](../90_ledger.ipynb).

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.metrics import adjusted_rand_score, homogeneity_completeness_v_measure

from cflkit import check, datasets, explain, methods, partition, plots, simulation
from cflkit.federation import Federation, LocalTraining

plots.style()
images = datasets.load("digits-8x8")

# %% tags=["exercise"]
# L3.1: J. M. Cohen, S. Kaur, Y. Li, J. Z. Kolter, A. Talwalkar, ICLR 2021 (the edge of stability).
# L3.2: V. Petsiuk, A. Das, K. Saenko, BMVC 2018. L3.3: J. Demšar, JMLR 7, 2006. L3.4: A. Rosenberg,
# J. Hirschberg, EMNLP-CoNLL 2007.

from cflkit.course.exercises import Implement
from cflkit.course.sources import hidden

# %% [markdown]
# ## L3.1
#
# Vera tunes the learning rate of federated averaging on her laptop. Her lesson says that the shared model ends with an
# accuracy of 0.94, and a colleague with another processor gets the same number. Then seven students run her notebook,
# each with another seed. Some of their models end far below 0.9. Several students run their seed again on the
# colleague's computer, and for some of them the accuracy changes by a tenth or more. Code, data and seed are the same.

# %%
_, alike = partition.iid(images, clients=5, seed=0)
held = torch.stack([torch.from_numpy(own[:100]) for own in alike.train])  # [m, n]
pixels, labels = images.images.flatten(1) / 255, images.labels
new_pixels, new_labels = images.test_images.flatten(1) / 255, images.test_labels


def initial(seed):
    """A network with 32 hidden units: W1 [64, 32], b1 [1, 32], W2 [32, 10], b2 [1, 10]."""
    generator = torch.Generator().manual_seed(seed)
    W1 = torch.randn(64, 32, generator=generator) / np.sqrt(32)
    W2 = torch.randn(32, 10, generator=generator) / np.sqrt(16)
    return W1, torch.zeros(1, 32), W2, torch.zeros(1, 10)


def scores(theta, x):
    W1, b1, W2, b2 = theta
    return torch.relu(x @ W1 + b1) @ W2 + b2


def rounded_elsewhere(p):
    """Change the last binary digit of some parameters, as another processor might round them."""
    generator = torch.Generator().manual_seed(1)
    return p * (1 + 2.0**-23 * torch.randint(-1, 2, p.shape, generator=generator))


def fedavg(rate, seeds, other_processor=False, rounds=20, steps=5):
    """Train the federations of all seeds side by side; return their accuracies on new images."""
    theta = [torch.stack(p)[:, None] for p in zip(*map(initial, seeds), strict=True)]
    if other_processor:
        theta = [rounded_elsewhere(p) for p in theta]
    targets = labels[held].expand(len(seeds), -1, -1)
    for _ in range(rounds):
        local = [p.expand(-1, len(held), -1, -1) for p in theta]  # one model per seed and client
        for _ in range(steps):
            local = [p.detach().requires_grad_() for p in local]
            outputs = scores(local, pixels[held]).flatten(0, 2)
            loss = F.cross_entropy(outputs, targets.flatten(), reduction="sum") / held.shape[1]
            gradients = torch.autograd.grad(loss, local)
            local = [p - rate * g for p, g in zip(local, gradients, strict=True)]
        theta = [p.detach().mean(dim=1, keepdim=True) for p in local]  # the mean over clients
    hits = scores(theta, new_pixels).argmax(dim=-1) == new_labels
    return hits.float().mean(dim=(1, 2)).numpy()


# %%
rates, seed = (0.02, 0.2, 2.0), 5
tuned = [fedavg(rate, [seed])[0] for rate in rates]
chosen = rates[np.argmax(tuned)]
for rate, accuracy in zip(rates, tuned, strict=True):
    print(f"rate {rate:4}: accuracy {accuracy:.2f}")

# %%
seeds = range(4, 12)
laptop = fedavg(chosen, seeds)
colleague = fedavg(chosen, seeds, other_processor=True)
figure, ax = plt.subplots(figsize=(5, 2.4))
ax.plot(seeds, laptop, "o", color=plots.COLOURS[0], markersize=8, fillstyle="none", label="laptop")
ax.plot(seeds, colleague, "s", color=plots.COLOURS[1], markersize=4, label="colleague's computer")
ax.axvline(seed, color="0.8", zorder=0)
ax.set(xlabel="seed (the grey line is Vera's)", ylabel="accuracy", xticks=seeds, ylim=(0, 1))
figure.legend(loc="outside upper center", ncols=2)
plots.show(
    figure,
    1,
    f"Accuracy on new images after 20 rounds with the rate {chosen}, for eight seeds on two computers.",
    "Two marks per seed. Both marks of Vera's seed are high. Those of several other seeds are much "
    "lower, and for some seeds the two marks are far apart.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# How did Vera arrive at her rate, and on how many runs does it rest? How far apart are the two computers with half of
# this rate?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Vera chose the best of three rates by one run. Her rate lies at the *edge of stability*. On a loss of curvature
# $\lambda$, gradient descent with the rate $\eta$ multiplies the distance to the optimum by $1 - \eta\lambda$ in each
# step. Beyond $\eta = 2/\lambda$, each step overshoots more than the one before. At the edge, the initial model decides which
# runs still train well. A difference in the last digit grows until two runs have nothing in common.
#
# The scatter over seeds shows it. At half her rate, all seeds end between 0.93 and 0.95, and the computers agree. A
# comparison of methods at the edge only says which method was lucky.
#
# It happened to this kit, too, until its lessons' default training was moved away from the edge. The command `python tests/robust.py` tests it with other seeds and changed last digits. This is also why
# [01b](../01b_drift_measured.ipynb) runs five federations.
#
# </details>

# %% [markdown]
# **The repair.** Write a rule for choosing a rate from several seeds. The array `rates`, of shape $[R]$, has different
# learning rates in any order. The entry in row $r$ and column $s$ of `accuracies`, of shape $[R, S]$, is the accuracy
# with the rate `rates[r]` and the seed $s$. A run that diverged has the accuracy NaN, and counts as fallen below the
# floor.
#
# Return the largest rate at which no seed falls below the number `floor`. Return `None` if there is no such rate. No
# accuracy equals the floor.


# %%
def largest_safe_rate(rates, accuracies, floor):
    """Return a rate or None, for rates [R], accuracies [R, S] and a number."""
    ### BEGIN SOLUTION
    best = None
    for rate, row in zip(rates, accuracies, strict=True):
        safe = all(accuracy >= floor for accuracy in row)  # False for NaN
        if safe and (best is None or rate > best):
            best = rate
    return best
    ### END SOLUTION


# %%
check("L3.1", largest_safe_rate)


# %% tags=["exercise"]
def largest_where(rates, safe):
    """Return the largest of the rates that are safe, if there is one."""
    return float(rates[safe].max()) if safe.any() else None


def rates_and_accuracies(rng):
    """Draw rates at which some seeds collapse or diverge, at large rates more often."""
    count, seeds = int(rng.integers(4, 8)), int(rng.integers(3, 7))
    rates = 0.01 * np.cumprod(rng.uniform(1.5, 3, count))
    accuracies = rng.uniform(0.88, 0.97, (count, seeds))
    risk = np.linspace(0, 0.5, count)[:, None] if rng.random() < 0.75 else 0.8
    collapsed = rng.random((count, seeds)) < risk
    # There is always a seed that trains well, so that the mean over seeds is a number
    collapsed[np.arange(count), rng.integers(seeds, size=count)] = False
    low = rng.uniform(0.1, 0.75, (count, seeds))
    low[rng.random((count, seeds)) < 0.3] = np.nan
    accuracies[collapsed] = low[collapsed]
    order = rng.permutation(count)
    return rates[order], accuracies[order], float(rng.uniform(0.78, 0.85))


def last_safe_rate(rates, accuracies, floor):
    safe = (accuracies >= floor).all(axis=1)
    return float(rates[safe][-1]) if safe.any() else None


def smallest_safe_rate(rates, accuracies, floor):
    safe = (accuracies >= floor).all(axis=1)
    return float(rates[safe].min()) if safe.any() else None


def or_the_smallest(rates, accuracies, floor):
    found = largest_safe_rate(rates, accuracies, floor)
    return float(rates.min()) if found is None else found


exercise = Implement(
    "It worked on her laptop",
    minutes=20,
    level="medium",
    points=2,
    inputs=rates_and_accuracies,
    mistakes={
        "You look at one seed only, and take the rate with its highest accuracy. What do the "
        "other seeds do at this rate?": lambda rates, accuracies, floor: float(
            rates[np.nan_to_num(accuracies[:, 0]).argmax()]
        ),
        "The mean over the seeds is above the floor here. A mean can hide a seed that has "
        "collapsed.": lambda rates, accuracies, floor: largest_where(
            rates, np.nanmean(accuracies, axis=1) >= floor
        ),
        "It is enough here that the best seed is above the floor. Every seed must be.": (
            lambda rates, accuracies, floor: largest_where(
                rates, np.nanmax(accuracies, axis=1) >= floor
            )
        ),
        "This is the rate with the highest mean accuracy. It need not be safe, and it need not "
        "be the largest safe rate.": lambda rates, accuracies, floor: float(
            rates[np.nanmean(accuracies, axis=1).argmax()]
        ),
        "This is the smallest safe rate. The largest one was asked for.": smallest_safe_rate,
        "A run that diverged counts as safe here. Try `float('nan') < 0.5` and "
        "`float('nan') >= 0.5`.": lambda rates, accuracies, floor: largest_where(
            rates, ~(accuracies < floor).any(axis=1)
        ),
        "This is the safe rate that stands last in the list. The rates can be in any order.": (
            last_safe_rate
        ),
        "You return a rate even if none is safe. Return None in this case.": or_the_smallest,
    },
)

# %% [markdown]
# ## L3.2
#
# Tom trains one model per true cluster. He explains each of them by GradCAM on the test images of its clients.
# He scores the maps by insertion, where a high area is good. The model of cluster 1 is wrong more often than the other
# two. But its maps have clearly the largest area, and Tom writes that this model is explained best. His supervisor asks
# how the worst model can look so reliably at the right places.

# %%
_, split = partition.ocfl(
    images, overlap="nonoverlapping", balance="imbalanced", clients=6, draws=120, seed=22
)
federation = Federation(
    images, split, "compact-cnn", LocalTraining(epochs=3, batch_size=16, lr=0.1), seed=0
)
oracle = methods.make("oracle", truth=split.clusters.tolist())
history = simulation.run({"oracle": oracle}, federation, 10, central_every=10, progress=False)

# %%
networks = [federation.network(row) for row in oracle.models]
curves, rows = [], {}
for cluster, network in enumerate(networks):
    members = np.flatnonzero(split.clusters == cluster)
    seen, truth = federation.inputs(np.concatenate([split.test[client] for client in members]))
    answers = network(seen).argmax(dim=1)
    heat = explain.gradcam(network, seen, answers, "features.8")
    found = explain.curves(network, seen, heat, answers, step=4, baseline="zeros")
    curves.append(found.insertion.mean(dim=0).numpy())  # the mean over the images
    right = float((answers == truth).float().mean())
    area = float(explain.area(found.insertion).mean())
    rows[f"cluster {cluster}"] = {"accuracy": right, "area under insertion": area}

# %%
table = pd.DataFrame.from_dict(rows, orient="index")
print(table.round(2).to_string())
ax = table.plot.bar(rot=0, figsize=(4.5, 2.6), ylim=(0, 1.25))
ax.legend(ncols=2)
plots.show(
    ax.figure,
    2,
    "The accuracy of each model, and the area under insertion of its maps.",
    "Three pairs of bars. Cluster 1 has the lowest accuracy, and by far the largest area.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# Draw the three curves in `curves`. What does a model see at the first point of its curve? Which area does a map of
# noise get, such as `explain.random_maps(seen, 0)`?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Insertion begins with an empty image, here all zeros. About nine in ten training images of cluster 1 show a 5, and its
# model has learned to answer 5 to every image. It gives the 5 a probability of about 0.8 for the empty image, too. Its
# curve begins where it should end, whatever the map. Noise even scores higher than GradCAM.
#
# So the areas of two models that begin at different heights cannot be compared. Measure what a map gains over the empty
# image, as a share of what the full image gains. Cluster 1 then has about 0.1, and cluster 2 about 0.8.
#
# A grey image, or zeros after normalisation, can be evidence of a class as well. The OCFL authors also insert into
# zeros. See "One model for all, or one per cluster" in [appendix 07b](../07b_explanations_controls.ipynb).
#
# </details>

# %% [markdown]
# **The repair.** An insertion curve has the probabilities $p_0, \dots, p_J$ of the explained class, with $J \ge 1$.
# They belong to the shares $0, \frac1J, \frac2J, \dots, 1$ of inserted pixels, so that $p_0$ belongs to the empty image
# and $p_J$ to the full one. The corrected curve is
#
# $$q_j = \frac{p_j - p_0}{p_J - p_0}, \qquad j = 0, \dots, J.$$
#
# It also holds for $p_J < p_0$. If $p_J = p_0$, then $q_j = 0$ for all $j$. Return the area under the corrected curve
# over $[0, 1]$, by the trapezoidal rule.


# %%
def gain_over_empty(curve):
    """Return the area under the corrected curve, a number, for a curve [J + 1]."""
    ### BEGIN SOLUTION
    most = curve[-1] - curve[0]
    if most == 0:
        return 0.0
    corrected = (curve - curve[0]) / most
    return ((corrected[:-1] + corrected[1:]) / 2).mean()
    ### END SOLUTION


# %%
check("L3.2", gain_over_empty)


# %% tags=["exercise"]
area = hidden("07.3", "area")


def gain(curve, most):
    """Measure a curve's gain over its first value in units of the most that could be gained."""
    return area((curve - curve[0]) / most) if most else 0.0


def an_insertion_curve(rng):
    """Draw a curve that mostly rises. Sometimes it falls, or ends where it begins."""
    steps = int(rng.integers(3, 10))
    first, last = float(rng.uniform(0.1, 0.5)), float(rng.uniform(0.65, 0.95))
    kind = rng.choice(["rises", "rises", "falls", "returns"])
    if kind == "falls":
        first, last = last, first
    curve = np.linspace(first, last, steps + 1) + rng.normal(0, 0.05, steps + 1)
    curve[0], curve[-1] = first, first if kind == "returns" else last
    return (np.clip(curve, 0, 1),)


exercise = Implement(
    "The worst model, explained best",
    minutes=15,
    level="medium",
    points=2,
    inputs=an_insertion_curve,
    mistakes={
        "This is the plain area. It also counts what the model says of the empty image.": area,
        "You subtract the value of the empty image, but you do not divide by what the full "
        "image adds to it.": lambda curve: area(curve - curve[0]),
        "You divide by the value of the full image, and do not subtract that of the empty "
        "image.": lambda curve: area(curve) / curve[-1],
        "You divide by the distance from the empty image to certainty. Divide by the distance "
        "to what the model says of the full image.": lambda curve: gain(curve, 1 - curve[0]),
        "You scale the curve from its smallest to its largest value. The two ends of the "
        "curve are the empty and the full image.": lambda curve: area(
            (curve - curve.min()) / np.ptp(curve)
        ),
        "The denominator has lost its sign. It is negative where the full image has a lower "
        "probability than the empty one.": lambda curve: gain(curve, abs(curve[-1] - curve[0])),
        "You return 0 wherever the full image has a lower probability than the empty one. Only "
        "equal probabilities give 0.": lambda curve: gain(curve, max(curve[-1] - curve[0], 0)),
        "This is the mean of the points. In the trapezoidal rule, the first and the last point "
        "have half the weight of the others.": lambda curve: (
            float((curve - curve[0]).mean() / most) if (most := curve[-1] - curve[0]) else 0.0
        ),
    },
)

# %% [markdown]
# ## L3.3
#
# Amal explains one model by four kinds of maps. One of them is noise, as a control: it knows neither the model nor the
# image. She scores each kind by four measures, and ranks the kinds by each measure, where rank 1 is the best. By the
# average rank, noise is the best explanation of the model. She writes that GradCAM explains less than chance does, and
# leaves it out of her report.

# %%
_, three = partition.iid(images, clients=3, draws=200, seed=1)
training = LocalTraining(epochs=3, batch_size=16, optimizer="adam", lr=0.01)
federation = Federation(images, three, "compact-cnn", training, seed=1)
shared = methods.make("fedavg")
history = simulation.run({"FedAvg": shared}, federation, 3, central_every=3, progress=False)

network = federation.network(shared.models[0])
seen, _ = federation.inputs(range(100), central=True)
answers = network(seen).argmax(dim=1)
maps = {
    "GradCAM": explain.gradcam(network, seen, answers, "features.8"),
    "brightness": explain.brightness_maps(seen),
    "centre": explain.centre_maps(seen),
    "noise": explain.random_maps(seen, 0),
}

# %%
measured = {}
for name, heat in maps.items():
    found = explain.curves(network, seen, heat, answers, step=4)
    measured[name] = {
        "area under insertion": explain.area(found.insertion).mean(),
        "area under deletion": explain.area(found.deletion).mean(),
        "share of insertion below 0.5": (found.insertion < 0.5).float().mean(),
        "share of deletion above 0.5": (found.deletion > 0.5).float().mean(),
    }
table = pd.DataFrame(measured).astype(float)
ranks = table.rank(axis="columns", ascending=False)
means = ranks.mean().sort_values()
print(means.to_string())
figure, ax = plt.subplots(figsize=(4.5, 2))
ax.barh(means.index, means)
ax.invert_yaxis()
ax.set_xlabel("average rank (1 is the best)")
plots.show(
    figure,
    3,
    "Amal's ranking of four kinds of maps.",
    "Four horizontal bars from the best rank to the worst. Noise is the best.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# Print `table`. By which measures does noise win? What would you expect of each measure for a perfect map?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# All measures are ranked as if a high score were good. This holds for the area under insertion only. If a map is
# right, the probability falls early in deletion, so the area is small. The two shares should be small, too. Three of
# the four rankings are therefore upside down. Put right, noise is last by every measure, and brightness is first.
#
# A control whose place you know, such as noise, shows such a mistake at once. Without noise in the table, only a wrong
# order would be left, and nobody would be surprised.
#
# It happened in print. In the extended OCFL paper's Figure 8, the *highest* deletion score has rank 1. Put right, the
# model without clustering goes from the last place to the first. The
# [report on explanations](../97_report_explanations.ipynb) shows both, under "Deletion, with the worst first".
#
# </details>

# %% [markdown]
# **The repair.** Average ranks for measures of both kinds. `scores` has the shape $[J, M]$: each of the $J$ rows is a
# measure, and each of the $M$ columns a method. The flag `high_is_good[j]` is `True` if a high score of measure $j$ is
# good, and `False` if a low one is good.
#
# By each measure, the best method has rank 1, the next one rank 2, and so on. Methods with equal scores share the mean
# of the ranks that they occupy together. For example, if low is good, the scores 3, 1, 1, 7 have the ranks 3, 1.5, 1.5,
# 4. Return the average rank of each method over the measures.


# %%
def average_ranks(scores, high_is_good):
    """Return the average ranks [M] for scores [J, M] and flags [J]."""
    ### BEGIN SOLUTION
    low_is_good = np.where(high_is_good[:, None], -scores, scores)
    better = low_is_good[:, None, :] < low_is_good[:, :, None]  # [J, M, M]: is the last one better?
    equal = low_is_good[:, None, :] == low_is_good[:, :, None]  # each method equals itself, too
    ranks = better.sum(axis=2) + (equal.sum(axis=2) + 1) / 2
    return ranks.mean(axis=0)
    ### END SOLUTION


# %%
check("L3.3", average_ranks)


# %% tags=["exercise"]
from scipy.stats import rankdata


def scores_of_measures(rng):
    """Draw scores with ties, in different units, for measures of both kinds."""
    measures, methods = rng.integers(3, 7), rng.integers(3, 6)
    unit = 10.0 ** rng.integers(-2, 3, (measures, 1))
    scores = unit * rng.integers(0, 5, (measures, methods))
    flags = rng.permutation([True, False, *(rng.random(measures - 2) < 0.5)])
    return scores, flags


def signed(scores, high_is_good):
    """Change signs so that low is good for each measure."""
    return np.where(high_is_good[:, None], -scores, scores)


exercise = Implement(
    "Noise wins",
    minutes=15,
    level="medium",
    points=2,
    inputs=scores_of_measures,
    mistakes={
        "You rank each measure as if a high score were good. Where do you use the flags?": (
            lambda scores, high_is_good: average_ranks(scores, np.ones_like(high_is_good))
        ),
        "The flags work the wrong way round. The best method must have the smallest rank.": (
            lambda scores, high_is_good: average_ranks(scores, ~high_is_good)
        ),
        "Of equal scores, the first one gets the better rank. They must share the mean of "
        "their ranks.": lambda scores, high_is_good: rankdata(
            signed(scores, high_is_good), method="ordinal", axis=1
        ).mean(axis=0),
        "Equal scores all get the best of their ranks. They must share the mean of them.": (
            lambda scores, high_is_good: rankdata(
                signed(scores, high_is_good), method="min", axis=1
            ).mean(axis=0)
        ),
        "A single `argsort` says which method is first, second and so on. It does not say "
        "which rank each method has.": lambda scores, high_is_good: (
            1 + signed(scores, high_is_good).argsort(axis=1, kind="stable").mean(axis=0)
        ),
        "You rank the measures of each method. Rank the methods by each measure.": (
            lambda scores, high_is_good: rankdata(signed(scores, high_is_good), axis=0).mean(axis=0)
        ),
        "You average the scores, and rank the means. The measures have different units, and "
        "the one with the largest numbers decides then. Rank first.": (
            lambda scores, high_is_good: rankdata(signed(scores, high_is_good).mean(axis=0))
        ),
        "You average over the methods. Each method needs a mean over the measures.": (
            lambda scores, high_is_good: rankdata(signed(scores, high_is_good), axis=1).mean(axis=1)
        ),
    },
)

# %% [markdown]
# ## L3.4
#
# Jonas runs three methods on 15 clients, which form three true clusters. He prints the number of found clusters and
# three scores: RAND is the adjusted Rand index, HOM is homogeneity, and COM is completeness. He concludes: "Briggs'
# method keeps every true cluster together, since its completeness is 1. Its only weakness is that some of its clusters
# mix true clusters." His colleague wonders how nine clusters can keep three together.

# %%
_, split = partition.ocfl(
    images, overlap="nonoverlapping", balance="balanced", clients=15, draws=60, seed=0
)
federation = Federation(
    images, split, "linear", LocalTraining(epochs=2, batch_size=16, lr=0.1), seed=0
)
line_up = {
    "FedAvg": methods.make("fedavg"),
    "Briggs": methods.make("briggs", rounds=1, threshold=0.05),
    "OCFL-HDB": methods.make("ocfl"),
}
history = simulation.run(line_up, federation, 4, central_every=4, progress=False)

# %%
rows = {}
for name, method in line_up.items():
    found = method.labels.tolist()
    hom, com, _ = homogeneity_completeness_v_measure(found, split.clusters)
    rows[name] = {
        "clusters": len(set(found)),
        "RAND": adjusted_rand_score(found, split.clusters),
        "HOM": hom,
        "COM": com,
    }
table = pd.DataFrame.from_dict(rows, orient="index")
print(table.round(2).to_string())
ax = table[["RAND", "HOM", "COM"]].plot.bar(rot=0, figsize=(5, 2.6), ylim=(0, 1.25))
ax.legend(ncols=3)
plots.show(
    ax.figure,
    4,
    "Jonas's three scores of three methods.",
    "Three groups of bars. FedAvg, with one cluster, has a full score for homogeneity. Briggs has one for completeness.",
)

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# For which row of the table do you know two of the scores without any computation? Compare `line_up["Briggs"].labels`
# with `split.clusters`.

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# The arguments are exchanged: scikit-learn wants the truth first. The adjusted Rand index is symmetric and stays the
# same. But homogeneity and completeness change places, and so two columns are interchanged. Briggs' clusters are pure
# and in pieces: homogeneity is 1, completeness is 0.54.
#
# FedAvg shows it without a computation. It leaves all clients in one cluster. This cluster mixes everything, so
# homogeneity must be 0, and it breaks nothing, so completeness must be 1.
#
# It happened in print. In Table 1 of the extended OCFL paper, COM is homogeneity, since completeness was called with
# exchanged arguments. That column rewards methods that break true clusters into pieces. In the rows of OCFL-HDB,
# moreover, AMI is the ARI again. See "Numbers that are not what their column says" in [lesson 90](../90_ledger.ipynb).
#
# </details>

# %% [markdown]
# **The repair.** Write a function with results in a fixed order: the adjusted Rand index, homogeneity, completeness.
# Let $U$ be the true grouping of the $m$ clients, $V$ the found one, and $H$ the entropy. Labels are names only, and
# the two groupings can have different names.
#
# 1. The **adjusted Rand index** is $(R - E) / (1 - E)$. Look at all pairs of two different clients. $R$ is the share of
#    pairs that are together in both groupings or apart in both. $E = ab + (1 - a)(1 - b)$, where $a$ and $b$ are the
#    shares of pairs that are together in $U$ and in $V$.
# 2. **Homogeneity** is $1 - H(U \mid V) / H(U)$.
# 3. **Completeness** is $1 - H(V \mid U) / H(V)$. It is 1 if $H(V) = 0$.
#
# Let $n_{uv}$ be the number of clients in the true cluster $u$ and the found cluster $v$. Let $n_u$ and $n_v$ be the
# sizes of these clusters. Then $H(U) = -\sum_u \frac{n_u}{m} \ln \frac{n_u}{m}$, and
# $H(U \mid V) = -\sum_{u,v} \frac{n_{uv}}{m} \ln \frac{n_{uv}}{n_v}$, where cells with $n_{uv} = 0$ count 0. The truth
# has at least two clusters, and each of them has at least two clients. The found clusters can be any. You can write the
# function from scratch or call a library.


# %%
def agreement(truth, found):
    """Return ARI, homogeneity and completeness, three numbers, for labels [m] and [m]."""
    ### BEGIN SOLUTION
    pairs = np.triu_indices(len(truth), 1)
    in_truth = (truth[:, None] == truth)[pairs]
    in_found = (found[:, None] == found)[pairs]
    a, b = in_truth.mean(), in_found.mean()
    expected = a * b + (1 - a) * (1 - b)
    ari = ((in_truth == in_found).mean() - expected) / (1 - expected)

    def entropy(labels):
        shares = np.unique(labels, return_counts=True)[1] / len(labels)
        return -(shares * np.log(shares)).sum()

    def conditional(labels, given):
        parts = [labels[given == value] for value in np.unique(given)]
        return sum(len(part) / len(labels) * entropy(part) for part in parts)

    homogeneity = 1 - conditional(truth, found) / entropy(truth)
    one = len(np.unique(found)) == 1
    completeness = 1.0 if one else 1 - conditional(found, truth) / entropy(found)
    return ari, homogeneity, completeness
    ### END SOLUTION


# %%
check("L3.4", agreement)


# %% tags=["exercise"]
from sklearn.metrics import adjusted_mutual_info_score, mutual_info_score, rand_score


def true_and_found_clusters(rng):
    """Draw true clusters, and a clustering that breaks them, merges them or is wrong elsewhere."""
    groups = int(rng.integers(2, 5))
    truth = rng.permutation(
        np.concatenate([np.arange(groups).repeat(2), rng.integers(groups, size=9)])
    )
    kind = rng.choice(["pieces", "pieces", "merged", "one", "one", "alone", "moved", "moved"])
    found = {
        "pieces": truth + groups * rng.integers(3, size=len(truth)),
        "merged": truth // 2,
        "one": 0 * truth,
        "alone": np.arange(len(truth)),
        "moved": np.where(
            rng.random(len(truth)) < 0.3, rng.integers(groups, size=len(truth)), truth
        ),
    }[kind]
    names, other_names = rng.permutation(30), rng.permutation(30)
    return names[truth], other_names[found]


def without_the_edge_case(truth, found):
    ari, homogeneity, completeness = agreement(truth, found)
    return ari, homogeneity, completeness if len(np.unique(found)) > 1 else 0.0


def with_one_entropy(truth, found):
    ari, homogeneity, _ = agreement(truth, found)
    return ari, homogeneity, homogeneity


def with_information(truth, found):
    shared = float(mutual_info_score(truth, found))
    return agreement(truth, found)[0], shared, shared


exercise = Implement(
    "Full marks",
    minutes=20,
    level="medium",
    points=2,
    inputs=true_and_found_clusters,
    mistakes={
        "Homogeneity and completeness are interchanged. Which of them is 1 if every client is "
        "alone? If you call a library, look at the order of its arguments.": (
            lambda truth, found: (
                agreement(truth, found)[0],
                *homogeneity_completeness_v_measure(found, truth)[:2],
            )
        ),
        "The first number is the Rand index without adjustment. It is far above 0 for random "
        "clusters, too.": lambda truth, found: (
            float(rand_score(truth, found)),
            *agreement(truth, found)[1:],
        ),
        "The first number is the adjusted mutual information. The adjusted Rand index counts "
        "pairs of clients.": lambda truth, found: (
            float(adjusted_mutual_info_score(truth, found)),
            *agreement(truth, found)[1:],
        ),
        "The second number is the purity: the share of clients in the majority of their found "
        "cluster. Homogeneity compares two entropies.": lambda truth, found: (
            agreement(truth, found)[0],
            hidden("90.3", "purity")(truth, found),
            agreement(truth, found)[2],
        ),
        "You divide by the entropy of the true clusters in both measures. Which entropy "
        "belongs to completeness?": with_one_entropy,
        "You return what the two groupings have in common, without dividing by an entropy.": (
            with_information
        ),
        "Completeness is 1 if there is only one found cluster. No true cluster is then in "
        "pieces.": without_the_edge_case,
    },
)
