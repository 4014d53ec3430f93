# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Report: explanations of cluster models, ours beside the paper's
#
# **Question.** Are cluster models explained better than one model for all, as the extended OCFL paper says? What do the authors' own
# scores say, and what do our runs say?
#
# **You will**
#
# - draw the paper's Figures 6, 7 and 8 from the scores that its authors archived;
# - read a critical-difference diagram, and find one that ranks the worst first;
# - compare what clustering gains with GradCAM and what it gains with noise;
# - see each deviation of our runs from the paper, with its evidence.
#
# **Before this:** [07 A pretty map proves nothing](07_explaining_cluster_models.ipynb), which explains GradCAM, insertion and
# deletion.
#
# **Study minutes:** 30. **Minutes on two cores:** 0.5
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustering for Federated Learning Under Clustering-Agnostic
# Assumption*, section 5 and appendices A.4 and A.5 ("the paper").

# %%
import sys

import matplotlib.pyplot as plt
import pandas as pd

from cflkit import plots
from cflkit.reproduce import ledger, papers, records, stats

sys.path.append(str(records.PROJECT / "notebooks" / "src"))  # where the tables of reports are made
from reports import figures, maps, tables

plots.style()

# %% [markdown]
# Nothing trains here. The report reads the authors' archived scores and the records of our runs.

# %% tags=["parameters"]
scale = "reduced"  # or "paper": which committed runs are shown

# %%
view = papers.lessons.Report.of(globals())

# %% [markdown]
# Methods have our names: FedAvg is the paper's BNC (baseline, no clustering), Sattler its SCL, and Briggs its BCL. The OCFL methods have
# the same names in both, except that the text also writes HDBS for HDB.
#
# ## The authors' scores
#
# The authors archived the areas under the insertion and deletion curves of every cluster: five data sets, four splits each, 15 clients.
# Figure 1 redraws the paper's Figure 6, for images of the cluster's own clients (in-cluster). Each point is a cluster. Compare the two
# rows of a column: what would a method look like that explains better?

# %%
archive = maps.archived()
theirs = archive[archive["source"] == "in-cluster"]
sets = list(archive["dataset"].unique())
shown = [*sets, "bloodmnist-rebuilt", "cifar10-subset"]
looks = dict(zip(shown, zip(plots.COLOURS, plots.MARKERS, strict=True), strict=False))

# %% tags=["hide-input"]
plots.show(
    figures.archived_boxes(theirs),
    1,
    "The authors' scores in-cluster, as in the paper's Figure 6. Points are clusters, boxes are "
    "quartiles over all splits of a data set, thick lines are medians.",
    "Ten panels of lying boxes, insertion above and deletion below, for five data sets. On cifar10, "
    "pathmnist and bloodmnist the lower boxes follow the upper ones; on mnist they do not.",
)

# %% [markdown]
# The three data sets on the right are those of ResNet34. There, the lower boxes follow the upper ones: what raises insertion raises
# deletion, too. On Fashion-MNIST the two are hardly related. On MNIST, a higher insertion goes with a lower deletion, as one would wish. The
# next cell prints the correlation of the two scores over clusters:

# %% tags=["nbval-check-output"]
for name, rows in theirs.groupby("dataset", sort=False):
    print(f"{name:14s} {rows['insertion'].corr(rows['deletion']):5.2f} over {len(rows)} clusters")

# %% [markdown]
# Figure 2 redraws the paper's Figure 7. The same models are scored on images of the central test set, which the paper calls the
# orchestrator's. It has all classes, and a cluster's model knows only some of them.

# %% tags=["hide-input"]
plots.show(
    figures.archived_boxes(archive[archive["source"] == "central"], points=False),
    2,
    "The authors' scores on the central test set, as in the paper's Figure 7. Boxes as in Figure 1; circles are clusters beyond the whiskers.",
    "Ten panels of boxes, insertion above and deletion below, for five data sets, on the central test set. The pattern is that of Figure 1.",
)

# %% [markdown]
# ### How to read a critical-difference diagram
#
# To compare methods over many runs, we rank them (Demšar). In each scenario (a data set and a split) the best method gets rank 1, the
# next rank 2, and so on. The diagram shows each method's average rank on a line. The best method stands on the right.
#
# Ranks could differ by chance. **Friedman's test** asks whether they could: its p-value is the probability of ranks at least
# this far apart if all methods were equal. We compare pairs only if this p-value is at most 0.05. The authors compare each pair
# by **Wilcoxon's signed-rank test**. With seven methods there are 21 pairs, and some would look different by luck. **Holm's
# correction** therefore raises the p-values.
#
# The splits of one data set are not independent of each other: they have the same images. So the true p-values may be larger than
# these.
#
# A **bar** joins methods that these tests cannot tell apart, with a dot at each of them. Two methods without a common bar differ
# significantly. A method that a bar passes without a dot does not belong to it. (The diagram is named after the critical difference of
# another test, Nemenyi's, which is one distance for all pairs. Neither the authors nor we use it.)
#
# ### Deletion, with the worst first
#
# One number stands for a run: the mean over its clusters. We rank the insertion scores as the paper's Figure 8 does, and then the deletion
# scores.

# %% tags=["nbval-check-output"]
scenario = list(papers.explanations.SCENARIO)
MEASURES = ["insertion", "deletion", "difference"]
per_run = theirs.groupby([*scenario, "method"])[MEASURES].mean()
by_insertion = stats.compare(per_run["insertion"].unstack(), higher_is_better=True)
as_printed = stats.compare(per_run["deletion"].unstack(), higher_is_better=True)
corrected = stats.compare(per_run["deletion"].unstack(), higher_is_better=False)
for name, found in (("insertion", by_insertion), ("deletion, as printed", as_printed)):
    print(f"{name}:")
    print(", ".join(f"{method} {rank:.2f}" for method, rank in found.ranks.items()))

# %% [markdown]
# Figure 3 draws these ranks, and those of deletion with the lowest score first.

# %% tags=["hide-input"]
diagrams = {"insertion (highest first)": by_insertion}
diagrams |= {"deletion as printed (highest first)": as_printed}
diagrams |= {"deletion corrected (lowest first)": corrected}
figure, axes = plt.subplots(3, 1, figsize=(5.2, 4.8))
for (title, found), ax in zip(diagrams.items(), axes, strict=True):
    figures.critical_differences(found, ax)
    ax.set_title(f"{title}, Friedman's p = {found.friedman:.1g}", pad=10)
plots.show(
    figure,
    3,
    "Critical-difference diagrams of the authors' in-cluster scores over 20 scenarios, with Holm's correction. The first two are the paper's Figure 8.",
    "Three diagrams of average ranks. By insertion OCFL-HDB and OCFL-KM share the best rank, and FedAvg is last. Deletion as "
    "printed has nearly the same order. Corrected, the order is turned round and FedAvg is first.",
)

# %% [markdown]
# The ranks are those of the paper. But in its second diagram the *highest* deletion score has rank 1, and a high deletion score is bad (section 5.1).
# Corrected, FedAvg is first, and three of OCFL's four methods are last.
#
# The paper concludes on "more meaningful explanations on the provided data samples" (section 7). By insertion, Figure 3 supports that for four methods:
# Briggs, OCFL-MS, OCFL-KM and OCFL-HDB rank significantly better than FedAvg. By deletion with the lowest score first, all methods but Sattler rank significantly worse than FedAvg.

# %%
for name, found in (("insertion", by_insertion), ("deletion corrected", corrected)):
    ours_first = found.ranks.index.tolist()
    print(f"{name:20s} first {ours_first[0]}, last {', '.join(ours_first[-3:])}")

# %% [markdown]
# The paper's Figure 17 ranks methods out-of-cluster, on images of other clusters' clients. A method that never clustered has no
# out-of-cluster samples, so it has no score there. We leave out FedAvg, and Sattler, which splits on none of ResNet34's data sets. We
# rank the other five methods over the scenarios in which all of them have scores.

# %%
outside = archive[archive["source"] == "out-of-cluster"]
outside = outside[~outside["method"].isin(["FedAvg", "Sattler"])]
for measure, higher in (("insertion", True), ("deletion", False)):
    complete = outside.pivot_table(index=scenario, columns="method", values=measure).dropna()
    found = stats.compare(complete, higher_is_better=higher)
    told = f"Friedman's p = {found.friedman:.3f}, {len(tables.different_pairs(found))} pairs"
    print(f"{measure}: {len(complete)} scenarios, {told}")

# %% [markdown]
# The last number counts the pairs that differ significantly. By insertion the p-value is above 0.05, so no pairs are compared. By deletion the ranks as a whole
# differ more than chance would let them, but no single pair differs significantly after Holm's correction.
#
# ### What is a map worth?
#
# [Lesson 07](07_explaining_cluster_models.ipynb) shows that insertion − deletion has an expected value of 0 for noise, whatever the model.
# Figure 4 applies that to the archive. On the left each point is a run. On the diagonal, a map is worth as much as noise. On the right, the
# methods are ranked by the difference.

# %%
by_difference = stats.compare(per_run["difference"].unstack(), higher_is_better=True)

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.8), width_ratios=(1, 1.5))
figures.points(left, per_run[["deletion", "insertion"]], looks, alpha=0.8, markersize=4)
left.set(xlim=(0, 1), ylim=(0, 1))
figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=5, fontsize=8)
figures.critical_differences(by_difference, right)
right.set_title(f"insertion − deletion, Friedman's p = {by_difference.friedman:.2g}", pad=10)
plots.show(
    figure,
    4,
    "Left: the authors' runs, one point per method and scenario; the grey line is where a map is worth as much as noise. Right: ranks "
    "of the methods by insertion minus deletion.",
    "Left, a scatter plot: runs on bloodmnist and pathmnist lie on the diagonal, those on the other data sets mostly above it. Right, a "
    "critical-difference diagram with OCFL-HDB first.",
)

# %% [markdown]
# On BloodMNIST and PathMNIST the points lie close to the diagonal: those maps are worth hardly more than noise. (The paper does not state its step, and a step
# that does not divide the number of pixels favours insertion by up to two hundredths; see deviation 5.) On CIFAR-10 all points lie above the diagonal, and on MNIST and Fashion-MNIST all but a few.
#
# By the difference, OCFL-HDB has the best rank. Sattler and OCFL-MS have the same rank, 3.80. The lower bar belongs to OCFL-MS, and not to Sattler. The next cell lists which methods differ significantly from FedAvg and which from each
# other, and then the mean difference per data set. By this measure, the archive does not show that cluster models are explained better than FedAvg. It does not rule it out either.

# %%
apart = tables.different_pairs(by_difference)
with_fedavg = [pair for pair in apart if "FedAvg" in pair]
print("different from FedAvg:", ", ".join(with_fedavg) or "no method")
print("different from each other:", ", ".join(apart) or "no pair")
means = per_run["difference"].groupby(["dataset", "method"]).mean().unstack()
for name, row in means.loc[sets].iterrows():
    print(f"{name:14s} FedAvg {row['FedAvg']:.2f}, OCFL-HDB {row['OCFL-HDB']:.2f}")

# %% [markdown]
# ## Our runs
#
# Our runs at the reduced scale have compact networks and are trained like the reduced runs of the [report on OCFL](93_report_ocfl.ipynb). Their insertion
# and deletion curves have sixteen steps (`params/explanations/reduced/`).
#
# At the paper's scale, `python -m cflkit run notebooks/07b_explanations_controls.ipynb -f
# notebooks/params/explanations/paper/mnist_15_nonoverlapping_balanced.yaml` trains the paper's network on MNIST and explains it. The training
# takes hours per method on two cores. [One run](#at-the-papers-own-scale) has this scale.

# %%
every = {of: [] for of in (None, *ledger.SCALES)}
for one in records.committed():
    every[ledger.scale(one, "ocfl-explanations")].append(one)
past = [one for one in every[view.scale] if "FedAvg" in one.summary]
print(f"{len(past)} runs with FedAvg at the {view.scale} scale")
kinds = ["accuracy_in-cluster", "confidence_in-cluster"]
for parts, group in tables.by_scenario(past, "ocfl-explanations").items():
    ends = pd.DataFrame([one.summary["FedAvg"] for one in group])[kinds]
    accuracy, confidence = ends.map("{:.2f}".format).agg(", ".join)
    print(", ".join(parts[:3]))
    print(f"    FedAvg by seed: accuracy {accuracy}; confidence {confidence}")

# %% [markdown]
# These runs were trained again for their explanations. They have the data, the training and the seed of the OCFL runs, so they should end
# with the same clusters. Do they?

# %%
trained = [run for run in records.committed(until="rounds", only=None) if run.paper == "ocfl"]
agree = tables.same_clusters(past, trained)["same"]
print(f"other clusters at the end in {(~agree).sum()} of {len(agree)} pairs of run and method")

# %% [markdown]
# Where they differ, the two sets of runs are two draws of one experiment. They were made by different versions of the kit, which may round
# differently. [Report 93](93_report_ocfl.ipynb#scatter-that-no-seed-causes) shows that rounding alone can change the clusters where classes overlap. Nine of the 25 pairs have disjoint classes, though. Eight of these are of methods for which that report did not test rounding: Sattler's, Briggs' and OCFL-AFF as published. The ninth is OCFL-MS.
#
# Look at the baseline before you compare with it. A FedAvg model at chance level (about 0.1 with ten classes) may give the same answer for every
# image. Then it has nothing to explain, and its areas equal its constant confidence. On the CIFAR-10 subset this is what happened: FedAvg did
# not learn in its 50 rounds, and "Briggs as published" never clustered and has the same model. Sattler's models
# have hardly learned, and their maps are also zero. The next cell names such runs. It also
# prints the share of their GradCAM maps that are zero everywhere.

# %%
dead = [one for one in past if one.summary["FedAvg"]["accuracy_in-cluster"] < 0.25]
compared = [one for one in past if one not in dead]
for one in dead:
    table = one.rounds[one.rounds["map"] == "GradCAM"].query("source == 'in-cluster'")
    print(one.parameters["dataset"], "in-cluster:")
    means = table.groupby("method", sort=False)[["accuracy", "confidence", "empty"]].mean()
    print(means.loc[["FedAvg", "Sattler", "Briggs as published", "OCFL-HDB"]].round(2).to_string())

# %% [markdown]
# A rise from such a baseline says only that the other model has learned. The table on [the results page](results.md) has a row of this run, with insertion
# for "no clustering": it must be read in this way. We leave such runs out of all comparisons below.
#
# ### Theirs and ours
#
# Figure 5 compares the authors' in-cluster scores with ours: one point per method and scenario. A run's score is the mean over
# its clusters. Ours is the mean of such scores over our seeds. Each method is as the authors' code had it. On the diagonal, theirs and ours are equal. At points above it,
# our score is higher.

# %%
ours = maps.scores(compared)
by_run = ours.groupby([*scenario, "seed", "method", "map"], sort=False)[MEASURES].mean()
ours_by_scenario = by_run.groupby(level=[*scenario, "method", "map"], sort=False).mean()
with_gradcam = ours_by_scenario.query("map == 'GradCAM'").droplevel("map")
beside = pd.concat({"theirs": per_run, "ours": with_gradcam}, axis=1).dropna().swaplevel(axis=1)
both = [name for name in sets if name in beside.index.unique("dataset")]

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.8), sharex=True, sharey=True)
for measure, ax in zip(("insertion", "deletion"), axes, strict=True):
    figures.points(ax, beside[measure], looks, markersize=4)
    ax.set(title=measure, xlim=(0, 1), ylim=(0, 1), aspect="equal")
figures.legend(figure, ncols=1, place="outside right")
plots.show(
    figure,
    5,
    "Mean in-cluster scores, of the authors' runs (left to right) and of ours at the chosen scale (up). One point per method and scenario.",
    "Two scatter plots around the diagonal, insertion and deletion, for mnist and fashion-mnist. "
    "In insertion, most points of mnist lie above the diagonal. Without runs at the scale the plots are empty.",
)

# %% [markdown]
# The next cell prints how far the points lie from the diagonal, data set by data set.

# %%
for measure in ("insertion", "deletion"):
    gaps = beside[measure, "ours"] - beside[measure, "theirs"]
    for name in both:
        told = f"ours - theirs {gaps[name].mean():+.2f}, distance {gaps[name].abs().mean():.2f}"
        print(f"{measure:10s} {name:14s} {told}")

# %% [markdown]
# A point far from the diagonal need not be an error: our networks, images and steps differ (deviations 5 and 11).
#
# Does clustering raise insertion and lower deletion? The answer needs a comparison with maps that know nothing.
#
# ### Gain with GradCAM, gain with noise
#
# The gain is OCFL-HDB's score minus FedAvg's. Figure 6 shows one point per run. Its height is the gain with GradCAM's maps,
# and its place from left to right is the gain with noise. A point on the diagonal gained as much with noise as with GradCAM: then the gain
# says nothing about maps. The maps themselves have become better only where a point lies above the diagonal (for deletion, below
# it).

# %%
gained = {measure: maps.gains(ours, measure) for measure in MEASURES}
whole = pd.concat(gained.values())
reach = whole[["GradCAM", "noise"]] if len(whole) else pd.DataFrame([-1, 1])
PAIR = ["noise", "GradCAM"]
limits = reach.min().min() - 0.04, reach.max().max() + 0.04

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 3, figsize=(7, 3), sharex=True, sharey=True)
for (measure, gain), ax in zip(gained.items(), axes, strict=True):
    figures.points(ax, gain.reindex(columns=PAIR).add_prefix("gain with "), looks)
    ax.axhline(0, color="grey", linewidth=0.4)
    ax.axvline(0, color="grey", linewidth=0.4)
    ax.set(title=measure, aspect="equal", xlim=limits, ylim=limits)
figures.legend(figure)
plots.show(
    figure,
    6,
    "Gain of OCFL-HDB over FedAvg, with GradCAM's maps against noise: insertion, deletion, and insertion minus deletion. One point per run; "
    "the diagonal is an equal gain.",
    "Three scatter plots. In insertion and deletion nearly all points lie right of and above zero, near the diagonal. In the difference "
    "they lie on the vertical axis, above and below zero.",
)

# %% [markdown]
# The next cell prints the mean gains, and how many runs gain.

# %% tags=["nbval-check-output"]
for measure, gain in gained.items():
    for kind in ("GradCAM", "noise") if len(gain) else ():
        found = gain[kind]
        told = f"{found.mean():+.2f} [{found.min():+.2f}, {found.max():+.2f}]"
        count = f"above 0 in {(found > 0).sum()} of {len(found)}"
        print(f"{measure:10s} with {kind:8s} {told}, {count}")

# %% [markdown]
# The numbers are means over runs, with the smallest and the largest. With the committed runs at the reduced scale,
# insertion rises, as in the paper. Deletion rises as well, although a low deletion is good. Both rise with noise, too. What has grown is the models'
# confidence in half-erased images. One possible reason is that a cluster's model has fewer classes to choose from. We have not tested it. In the difference little is left, and the
# runs disagree about its sign: it is above 0 in about half of them.
#
# ### How large are the differences?
#
# Figure 7 shows insertion − deletion itself, the mean over runs, for FedAvg (hollow) and OCFL-HDB (filled). The line at 0 is noise. The five kinds of maps are those of [07b](07b_explanations_controls.ipynb): GradCAM,
# GradCAM of an untrained network, random noise, a blob in the centre of the image, and the brightness of the image itself.

# %%
pairs = by_run["difference"].groupby(level=["dataset", "method", "map"], sort=False).mean()
ours_sets = list(pairs.index.unique("dataset"))
shape = 1, max(len(ours_sets), 1)

# %% tags=["hide-input"]
figure, axes = figures.panels(ours_sets, shape, (7, 2.3), "insertion − deletion")
for name, ax in zip(ours_sets, axes[0], strict=False):
    for method, face in (("FedAvg", "white"), ("OCFL-HDB", "C0")):
        means = pairs[name, method]
        ax.plot(means, range(len(means)), "C0o", label=method, markerfacecolor=face)
    figures.rows_from_the_top(ax, means.index)
    ax.axvline(0, color="black", linewidth=0.8)
figures.legend(figure, ncols=2)
plots.show(
    figure,
    7,
    "Insertion minus deletion with five kinds of maps, for FedAvg and OCFL-HDB. Means over clusters and runs.",
    "Three panels of points in five rows. Noise lies on zero. On mnist and fashion-mnist brightness lies far to the right of GradCAM; on blood "
    "cells the blob in the centre lies a little to the right of it, and brightness below zero.",
)

# %% [markdown]
# On grey images with a dark ground, brightness alone scores far above GradCAM. On MNIST, the blob in the centre also scores above it. Blood cells are dark
# on a bright ground. There, brightness is the wrong place to look, but the blob still scores above GradCAM.
#
# ### In one run, the layer changes the sign
#
# One run on MNIST (seed 0) was explained twice, with GradCAM on the last convolution after its ReLU and before it. The next cell prints
# insertion − deletion.

# %%
here = {"dataset": "mnist", "overlap": "nonoverlapping", "balance": "balanced", "seed": 0}
for where, layer in (("after ReLU", None), ("before ReLU", "features.7")):
    for one in records.committed(layer=layer, sample_size=350, step=49, **here):
        ends = pd.DataFrame(one.summary)[["FedAvg", "OCFL-HDB"]]
        gaps = ends.loc["insertion_in-cluster"] - ends.loc["deletion_in-cluster"]
        print(f"{where:12s}", ", ".join(f"{name} {gap:+.2f}" for name, gap in gaps.items()))

# %% [markdown]
# We think of this reason, which we did not test: before the ReLU, a unit can be negative where it sees nothing. A negative weight times a negative value speaks *for* the class, so the background
# around the digit may light up. In this run, clustering raises the difference after the ReLU, and lowers it before. It is one seed.
#
# ### The ranks of Figure 8, published and ours
#
# The paper's average ranks are over 20 scenarios. At the reduced scale, the ledger takes those with the paper's data and parameter files of ours: MNIST and Fashion-MNIST in four splits. Our rank is the mean over seeds. The third number is
# the rank of the authors' archived scores over the same eight scenarios. The answer is the ledger's.

# %%
eight = ledger.ledger(records.committed()).query("table == 'figure 8'")
same = theirs[theirs["dataset"].isin(["mnist", "fashion-mnist"])]
names = papers.PAPERS["ocfl-explanations"].methods
for measure in ("insertion", "deletion"):
    print(f"{measure}, the highest first")
    archived = same.pivot_table(index=scenario, columns="method", values=measure)
    archived = stats.average_ranks(archived, higher_is_better=True)
    rows = tables.at_scale(eight[eight["measure"] == f"{measure}, average rank"], view.scale)
    for cell in rows.sort_values("value").to_dict("records"):
        name = names[cell["method"]]
        told = f"printed {cell['value']:.2f}, ours {cell['ours']:.2f}"
        print(f"    {name:10s} {told}, archived {archived[name]:.2f}; {cell['status']}")

# %% [markdown]
# At the reduced scale, OCFL-KM and OCFL-HDB are among the first and FedAvg is last, as in print. Briggs is in the middle in print and near the end here. But
# over the same eight scenarios, it is near the end in the authors' scores, too. So the scenarios make this difference.
# In print and here, the order by deletion is much like the order by insertion. The methods that raise insertion also raise deletion.
#
# ### Ranks with GradCAM, ranks with noise
#
# We rank all methods by the difference, averaged over seeds, in our scenarios of MNIST and Fashion-MNIST. We do it once with GradCAM, and once with noise, where
# there is nothing to find.

# %%
for kind in ("GradCAM", "noise"):
    chosen = ours_by_scenario.query("map == @kind and dataset in @both").droplevel("map")
    means = chosen["difference"].unstack("method")
    if len(means) < 2:
        print("too few runs at this scale")
        continue
    found = stats.compare(means, higher_is_better=True)
    first, *_, last = (f"{name} ({rank:.1f})" for name, rank in found.ranks.items())
    print(f"{kind:8s} Friedman's p = {found.friedman:.2f}; first {first}, last {last}")

# %% [markdown]
# Both p-values are above 0.05: no method stands out.
#
# ### Maps in colour
#
# The paper compares such maps by eye, "for demonstration purposes only", and finds those of OCFL-KM, -MS and -HDB more cohesive, with fewer artefacts (section 5.2). Our two pictures are too few to agree or disagree.
#
# These are the paper's three clients again, as in its Figures 5 and 16. Each row is an image and each column a method. A title has the
# model's answer and its probability. A wrong answer differs from the class on the left, and its title is orange. The first
# picture has BloodMNIST rebuilt from its source (compact network with BatchNorm, 50 rounds). Here a map can be compared with what one
# sees.
#
# ![A grid of three blood cells by nine methods, with saliency maps. In the first row all models answer 1, which is right, and all maps show the right side of the cell. In the second row all answer 3, rightly; the maps of FedAvg and of the two methods as published show a neighbouring cell, those of OCFL-KM, -AFF, -MS and -HDB show the cell itself and the neighbour. In the third row FedAvg and Briggs as published answer 3, which is wrong, and the others 6, which is right.](../figures/07_explanations-bloodmnist-rebuilt-nonoverlapping-balanced-m15-seed0-54f8f484.png)
#
# **Picture A.** BloodMNIST: compare FedAvg's cell in the second row with those of OCFL. In this row all answers are right, but the maps show different places.
#
# ![A grid of three photographs by nine methods. For FedAvg, Sattler and Briggs as published no image has a map. FedAvg and Briggs as published answer 6 with probability 0.13 three times, and Sattler answers 5, 5 and 7. The first photograph, class 3, is answered 3 by OCFL-AFF as published alone; under OCFL-MS it is covered by one even colour. The second, class 6, is answered 6 by FedAvg, Briggs as published and OCFL-MS. The third, class 7, is answered 7 by all but FedAvg and Briggs as published, and the maps of OCFL-KM, -AFF, -MS and -HDB lie on the sand below the horse.](../figures/07_explanations-cifar10-subset-nonoverlapping-balanced-m15-seed0-6b9a3f73.png)
#
# **Picture B.** A subset of CIFAR-10, the run whose FedAvg did not learn. Where there is a bare photograph, the map is zero everywhere: no channel speaks for the answer.
# The even yellow square under OCFL-MS is a constant map, which is 1 everywhere after division by its maximum. Neither kind of map shows which pixels matter. OCFL-HDB is wrong on two of three images. Nothing follows from this picture about clustering.

# %% [markdown]
# <a id="at-the-papers-own-scale"></a>
#
# ## At the paper's own scale
#
# One [whole run of OCFL](93_report_ocfl.ipynb#a-whole-run) has the paper's network, data and training. Its models were explained as those of the other runs. Its three methods found the same clusters in the same
# round, so that they have the same three models. The authors' methods have a training each. So the next cell prints our one column beside three of theirs, for the three sources of images. Their numbers come from the archive: the paper shows them as boxes
# (Figures 6 and 7), and the out-of-cluster ones only as ranks (Figure 17).

# %% tags=["nbval-check-output"]
at_full_scale = every["paper"]
scored = ledger.ledger(at_full_scale).query("paper == 'ocfl-explanations' and seeds > 0")
scored["source"] = scored["protocol"].str.removeprefix("insertion-").str.removeprefix("deletion-")
printed = scored.pivot_table("value", ["measure", "source"], "method", sort=False)
print(printed.assign(ours=scored.groupby(["measure", "source"])["ours"].mean()).round(2))

# %% [markdown]
# Are the maps worth more than noise there? The next cell has the means over the three clusters, in-cluster, for five kinds of maps.

# %% tags=["nbval-check-output"]
of_maps = maps.scores(at_full_scale).query("method == 'OCFL-HDB'")
print(of_maps.groupby("map", sort=False)[MEASURES].mean().round(2))

# %% [markdown]
# Each column of theirs has the means over the clusters of one training, and ours is of one training as well. So single trainings are compared, and the differences may be chance. We see three things.
#
# - **Our run finds the true clusters, but its in-cluster scores differ from the authors'.** Our insertion is lower by 0.2 and our deletion higher by 0.3 to 0.4. Only the scores of the
#   orchestrator's images, of which most are of classes that a cluster never saw, are within 0.1 of theirs.
# - **GradCAM is hardly better than noise.** Insertion minus deletion is 0.04 for GradCAM and 0.02 for noise. (Noise is not at 0: a step of 20 does not divide the 784 pixels, which favours insertion; see deviation 5.) The blob in the centre and brightness are far
#   better than both. This is not as at the reduced scale: there GradCAM was far better than noise on MNIST, and the blob only a little better than GradCAM (Figure 7).
# - **The layer may be the reason.** The paper does not name it. The next cell has the same models, explained once more by the *first* convolution, before its ReLU.

# %% tags=["nbval-check-output"]
earlier = {"dataset": "mnist", "balance": "imbalanced", "layer": "features.0"}
of_layers = {
    "last convolution, after ReLU": of_maps,
    "first convolution": maps.scores(records.committed(**earlier)),
}
for where, scores in of_layers.items():
    means = scores.query("method == 'OCFL-HDB' and map == 'GradCAM'")[MEASURES].mean()
    print(f"{where:30s}", *(f"{name} {value:.2f}" for name, value in means.items()))

# %% [markdown]
# With the first convolution, the in-cluster scores are within about 0.06 of the authors'. So they may have explained an early layer. Only their code could tell. It is one
# training, and the two rows differ not only in the layer: one map is of the values after the ReLU, and the other of those before it. This network has no pooling, so the maps of all its layers have the pixels of the image.
#
# ## Deviations from the paper
#
# 1. **Layer.** The paper (section 5) does not name GradCAM's layer, nor how maps are enlarged. Ours is the last convolution of each network
#    with its ReLU, enlarged bilinearly; `layer` chooses another. The sections on the layer and on the paper's own scale show what depends on it.
# 2. **Models.** We explain the cluster models after the last round, the averages of line 7 of Algorithm 2. The authors saved models every
#    ten rounds and explain the last saved ones.
# 3. **Class.** Algorithm 2 (line 15) writes $(x, y)$. Our maps and curves are of the *predicted* class, right or wrong, as in RISE's code.
#    We think that the authors' are, too. Without overlap, the archived out-of-cluster scores on MNIST, Fashion-MNIST and CIFAR-10 are far above what a label that the model
#    never saw could have (the next cell). Those on the other two data sets do not tell.
#    `explained = "true"` takes the label.

# %%
far = archive[archive["source"].eq("out-of-cluster") & archive["overlap"].eq("nonoverlapping")]
far = far.groupby("dataset", sort=False)["insertion"]
print("archived insertion, out-of-cluster, without overlap, mean over clusters:")
print(", ".join(f"{name} {mean:.2f}" for name, mean in far.mean().items()))

# %% [markdown]
# 4. **Baseline.** We use zeros for insertion too, as the arrays inside the authors' figures show. RISE inserts into a blurred image
#    (`baseline = "blur"` has a blur of that size), and its zeros are those of normalised images.
# 5. **Step.** The paper does not state it. By the frames inside the authors' figures it is 8, 10, 20 or 40 pixels. Our parameter files have
#    20 at the paper's scale. If the step does not divide the number of pixels, the last step is shorter. It still counts as much in the area, as
#    in RISE's code. This favours insertion over deletion by up to two hundredths. At the reduced scale the step divides it.
# 6. **Equal pixels** are in random order, so that a map which is zero everywhere is worth as much as noise. RISE's code leaves that to its
#    sorting.
# 7. **Samples** are drawn without replacement from the union of the clients' test sets, `sample_size` of them. The paper calls the size of the sample ζ. In Algorithm 2 it is a share;
#    in the text it is 350, or 180 for BloodMNIST. The paper concatenates the test sets, whose images clients of a cluster share. Here each
#    image counts once.
# 8. **Area of the mean curve, mean of the areas.** The paper (footnotes 9 and 11) averages curves over a batch and takes one area, to be
#    faster. For batches of equal size the two are equal. Only the spread needs an area for each image. Ours (quantiles over images) is not
#    theirs (over batches).
# 9. **Deletion's ranks** are printed with the highest first (Figure 8), and the ledger has them in the same order. Figure 3 above has both orders.
# 10. **Out-of-cluster ranks** (Figure 17). A method that never clustered has no score, and the authors' tests answered that with NaN.
#     `stats.compare` refuses missing scores. We rank five methods where all have some. The ledger has the scores, not these ranks.
# 11. **Scale.** All our runs but that at the paper's own scale have compact networks, fewer images and, for BloodMNIST and CIFAR-10, other images than the paper's. PathMNIST
#     has not been run. The next cell counts what there is.

# %%
of_sets = pd.Series([one.parameters["dataset"] for one in past], dtype=object).value_counts()
print("runs at this scale:", of_sets.to_dict() or "none")
print("published numbers by status:")
table_of_cells = ledger.ledger(past).query("paper == 'ocfl-explanations'")
status = "status" if view.scale == "paper" else "reduced_status"
answers = table_of_cells[status].str.removesuffix(" (reduced)")
print(pd.crosstab(table_of_cells["table"], answers).to_string())

# %% [markdown]
# ## References
#
# - R. R. Selvaraju et al.: Grad-CAM: visual explanations from deep networks via gradient-based localization. ICCV 2017.
# - V. Petsiuk, A. Das, K. Saenko: RISE: randomized input sampling for explanation of black-box models. BMVC 2018.
# - J. Demšar: Statistical comparisons of classifiers over multiple data sets. JMLR 7, 2006.
#
# **Previous:** [96 Report: FedCRef](96_report_fedcref.ipynb) · **Next:**
# [98 What is *reproduced* worth?](98_what_is_reproduced_worth.ipynb) · [Glossary](99_glossary.ipynb) · [Lesson 07](07_explaining_cluster_models.ipynb) · [Ledger](90_ledger.ipynb)
