# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Report: EMD-CFL beside its paper
#
# **Question.** What do our runs of EMD-CFL show beside the tables of its paper, and where do we deviate from it?
#
# **You will**
#
# - see which runs there are, and what they leave out;
# - compare published numbers with ours;
# - check ε = 0.1 on every stored matrix of scores;
# - see what a poisoned group does to models that are shared with it;
# - read the deviations from the paper, each with its evidence.
#
# **Before this:** the lesson [05 EMD-CFL](05_emd_cfl.ipynb). The [ledger](90_ledger.ipynb) has the numbers of all papers.
#
# **Study minutes:** 25. **Minutes on two cores:** 0.5
#
# **Paper.** D. Zhang, F. Toni, M. Williams, *Clustered Federated Learning via Embedding Distributions*, arXiv 2506.07769 ("the
# paper").

# %%
import sys
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score

from cflkit import datasets, plots
from cflkit.methods.emd_cfl import agreements
from cflkit.methods.emd_cfl_variants import clusters_of
from cflkit.partition import shifts
from cflkit.reproduce import ledger, papers, records

sys.path.append(str(records.PROJECT / "notebooks" / "src"))  # where the tables of reports are made
from reports import costs, figures, results, tables, thresholds

plots.style()

# %% [markdown]
# ## Parameters
#
# Nothing trains here. The report reads the committed records and the paper's tables.

# %% tags=["parameters"]
scale = "reduced"  # or "paper": which committed runs are shown

# %%
view = papers.lessons.Report.of(globals())
emd_cfl = papers.emd_cfl
of_paper = [past for past in records.committed() if past.paper == "emd-cfl"]
of_paper = [past for past in of_paper if past.parameters["dataset"] != "pacs-64"]  # in lesson 05
known = [past for past in of_paper if past.parameters["scene"] == "none"]
scales = {past.id: ledger.scale(past, "emd-cfl") for past in known}
of_scale = [past for past in known if scales[past.id] == view.scale]
# Runs of the paper's own method with all clients; the other runs have baselines only
with_method = [past for past in known if {"EMD-CFL", "Oracle"} <= past.summary.keys()]
WHOLE = {"participants": None, "projection": 0.9, "sinkhorn": None}
of_tables = [past for past in with_method if records.has_parameters(past, WHOLE)]
if not of_scale:
    print("No committed run has this scale, so the figures of tables have published values only.")

# %% [markdown]
# ## What was run
#
# The paper trains 40 clients for ten rounds of ten local epochs. `python -m cflkit grid run emd-cfl/tables --where scale paper`
# does that. In our runs, one round with all 40 clients took one to two hours on two cores. Most of our committed runs have the **reduced** scale, for two cores. The runs at the paper's scale end
# after the first round or before any training, and have sections of their own. The next cell lists the runs of the chosen
# scale, and then every parameter in which the reduced scale differs from the paper's. (The lines *clusters* and *no clusters* are the two kinds of other methods, see "Thirteen baselines".) Note the threshold ε among the parameters.

# %% tags=["nbval-check-output"]
kinds = {"EMD-CFL": "EMD-CFL", "clusters": "IFCA", "no clusters": "FedEM"}
for scenario, runs in sorted(tables.by_scenario(of_scale, "emd-cfl").items(), key=str):
    print(*scenario[:2])
    for kind, name in kinds.items():
        seeds = sorted({past.parameters["seed"] for past in runs if name in past.summary})
        print(f"    {kind:12s} seeds {', '.join(map(str, seeds)) or 'none'}")
    differs = ledger.reduction("emd-cfl", scenario)
    print(textwrap.fill(differs, 90, initial_indent="    ", subsequent_indent="    "))
evidence = sum(scale is None for scale in scales.values())
print(f"runs at the {view.scale} scale: {len(of_scale)}; runs as evidence only: {evidence}")

# %% [markdown]
# By the authors' code, each client of Rotated MNIST has 5,421 images, and the clients of two backdoor groups have half. (The
# paper's text gives 6,000.) `samples 2710` is half of them. (On the backdoor, `samples 5421` keeps the paper's number with fewer clients.) `local_epochs 3` and `rounds 3` stand for three of ten. The network
# `emd-cnn-small` has a
# quarter of the paper's channels. The version `four` has rotations by 0, 90, 180 and 270 degrees, and `two` has ±3 and 180 ± 3 degrees. `min` has ±1 and ±3
# degrees and `base` has none: one true cluster each.
#
# The evidence runs belong to no table: runs with as much training as in the paper, or with its network; more rounds on the backdoor; a fifth of CIFAR-10; other shares of the
# dimensions; and rounds in which only some clients take part.
#
# ## The tables, published and ours
#
# Figure 1 shows the accuracies of Tables 1 and 10. Look at the order of the methods, not at the distance to the published values: the
# paper trains a larger network, on more images, about eleven times as long.

# %%
book = ledger.ledger(known)
cells = tables.at_scale(book, view.scale).query("paper == 'emd-cfl' and dataset == 'mnist'")
cells = cells[cells["table"].isin(["1", "8", "10"])]  # 8 has 3


def parts(versions, measures):
    """The panels of a figure: measures as rows, and versions of the data as columns."""
    chosen = dict(list(cells.groupby(["version", "measure"])))
    return [[(v, f"{m}, %", chosen[v, m]) for v in versions] for m in measures]


# %% tags=["hide-input"]
ROTATED = ("four", "two", "min", "base")
accuracies = parts(ROTATED, ("average accuracy", "worst accuracy"))
figure = figures.comparison(accuracies, "method", emd_cfl.METHODS, figsize=(8, 4.2), sharex="row")
plots.show(
    figure,
    1,
    "Accuracies after the last round for four versions of Rotated MNIST: published values with "
    "their deviation, and our means with a line from the smallest to the largest seed.",
    "Eight panels of dots, average and worst accuracy for four versions, with one row per method. At the reduced scale, EMD-CFL and the "
    "oracle are level in all panels; FedAvg and FedProx are far behind on the version four, behind on two, and level on min and base.",
)

# %% [markdown]
# EMD-CFL is level with the oracle, which is given the true clusters, as in the paper. But we chose ε = 0.02 with the true clusters at hand (deviation 2), so that EMD-CFL has the
# oracle's clusters and models. Where there are clusters to find, both are ahead of FedAvg and FedProx. Between these
# two the order can differ: in version `two`, the paper's FedProx is ahead, and ours is not. The next cell prints the
# numbers behind this: the lead of EMD-CFL over the oracle and over FedAvg, in points of average accuracy.
#
# Runs with the same seed have the same clients, initial model and batches. So ours are **paired**: we take the difference seed by seed, and the 90 % interval
# of its mean. There is no interval where the differences of all seeds are equal, or where there are fewer than three seeds.

# %% tags=["nbval-check-output"]
by = cells.set_index(["version", "measure", "method"]).sort_index()
for version in ROTATED:
    here = by.loc[(version, "average accuracy"), "value"]
    runs = [past for past in of_scale if past.parameters["version"] == version]
    for name in ("Oracle", "FedAvg"):
        ours = results.paired(runs, "EMD-CFL", name, "accuracy", 100)
        text = f"printed {here['EMD-CFL'] - here[name]:+.1f}, ours {ours.text(1)}"
        print(f"{version:5s} over {name:7s} {text}")
aris = cells[(cells["measure"] == "ari") & (cells["method"] == "EMD-CFL")]
print("ARI of EMD-CFL, ours:", *aris["ours"].round(2))

# %% [markdown]
# ## Thirteen baselines
#
# The paper compares with sixteen methods. Three of them are in Figure 1. Of the others, seven give each client one cluster, and six do not: they
# mix models, or they learn with whom a client should share. The kit has all thirteen. `python -m cflkit grid run emd-cfl/baselines` and `emd-cfl/soft` run
# each of them twice: as its own authors intended, and as the code of the comparison has it ("as published"). The printed numbers
# presumably come from this code, or from an earlier state of it.
#
# The thresholds of PACFL and FedClust are the paper's, and were not adapted to our scale. (The paper tuned them to come close to the true clusters, so that the baselines stand "under their best-case scenario", section 4.3.) We chose EMD-CFL's ε with the true
# clusters, at our scale. So this is no fair contest; what other thresholds give stands [below](#every-threshold-in-its-own-unit).
#
# Figure 2 shows them on the version `four`, in the order of the printed accuracies. Look for rows in which the cross is far from the circle. There,
# the printed number may say more about the code than about the method.

# %%
thirteen = [*emd_cfl.BASELINES, *emd_cfl.SOFT]
run_of = cells[cells["method"].isin(thirteen) & cells["seeds"].gt(0)]
with_runs = [v for v in (*ROTATED, "backdoor") if v in set(run_of["version"])]
four = dict(list(cells[cells["version"] == "four"].groupby("measure")))
by_print = list(four["average accuracy"].sort_values("value", ascending=False)["method"])

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.2), sharey=True)
for ax, measure in zip(axes, ("average accuracy", "worst accuracy"), strict=True):
    figures.versions(ax, four[measure], "method", by_print)
    ax.set_xlabel(f"{measure}, %")
    ax.grid(alpha=0.3)
figures.legend(figure, ncols=4)
plots.show(
    figure,
    2,
    "All methods of Table 1 on Rotated MNIST, version four: printed values (bars), and our means as published (crosses) and as intended "
    "(circles). The oracle, EMD-CFL, FedAvg and FedProx were run in one version only (squares).",
    "Two panels of marks with one row per method. At the reduced scale, FeSEM and FlexCFL have a cross near 65 per cent and a circle near "
    "96; FedEM and FedRC have a cross near 90 and a circle near 50.",
)

# %% [markdown]
# The next cell prints the numbers for every version that has been run, with the ARI where a method has clusters.

# %% tags=["nbval-check-output"]
print(f"versions with runs of these methods: {len(with_runs)} of 5")
for version in with_runs:
    accuracy = "clean accuracy" if version == "backdoor" else "average accuracy"
    heads = "".join(f"{head:>13s}" for head in ("printed", "as published", "as intended"))
    print(f"\nmnist {version:8s}{'ARI':>13s}{'':26s}{accuracy + ', %':>26s}")
    print(f"{'':11s}seeds{heads}{heads}")
    rows = cells[cells["version"] == version]
    print(*tables.version_lines(rows, thirteen, {"ari": ".2f", accuracy: ".1f"}), sep="\n")

# %% [markdown]
# Are these differences more than chance? The next cell prints the mean of the paired differences, in points of accuracy, with its 90 % interval: the version as intended
# minus that as published, and EMD-CFL minus the version as intended. A difference whose interval leaves out 0 is larger than its scatter over our seeds.

# %% tags=["nbval-check-output"]
for version in ("four", "backdoor"):
    accuracy = "clean_accuracy" if version == "backdoor" else "accuracy"
    runs = [past for past in of_scale if past.parameters["version"] == version]
    print(f"mnist {version:18s}{'intended − published':>22s}{'EMD-CFL − intended':>22s}")
    for name in thirteen if runs else ():
        versions = (name, f"{name} as published"), ("EMD-CFL", name)
        found = [results.paired(runs, *pair, accuracy, 100).text(1) for pair in versions]
        print(f"    {name:20s}" + "".join(f"{text:>22s}" for text in found))

# %% [markdown]
# With three seeds, an interval is wide: $t_{0.95,2} = 2.9$. So a lead of a few points can be chance for the methods that begin with random models.
#
# What explains the differences between the columns of the table before? First the methods with clusters:
#
# - **FedClust.** The comparison's code trains on after the clustering, but it never averages again. So its accuracy is that of the means after
#   the first round. It also compares whole models. The threshold 5 belongs to these distances. The intended method compares the last layer,
#   whose distances are smaller, so that the same threshold separates nobody.
# - **FeSEM.** The code clusters before any training, when all models are equal. All distances are then 0, up to rounding errors, and these decide.
#   If the printed ARI comes from this code, it has no simple meaning. Our version as published has exact zeros, and one cluster.
# - **FlexCFL.** After each round, the code adds the models of the other groups, divided by their norms and multiplied by 5. It does not divide the sum by the
#   total weight. So the models grow, and on `four` the clusters, which are right, do not help. (On `two` and the backdoor, *as published* does well here. On the backdoor it does badly in print.
#   The paper explains its number by wrong clusters in the first epoch.)
# - **CFLGP.** In the code, a client reports the update of its own cluster's model. In the paper of CFL-GP, all clients report the gradient of one and the same model, which the server chooses; in the code of its authors, each reports the gradient of its own cluster's model. Ours takes the models in turn, as in the paper. On `backdoor`, our version
#   as intended fails in all three seeds: its clusters mix the groups (a mean ARI of 0.40). It differs from the authors' code in
#   the model, the samples and the number of reports, so this says nothing about their code.
# - **PACFL.** The code takes the validation images, a tenth of the data, and standardises their pixels. The signs of singular vectors are arbitrary, and the code's angles depend on them.
# - **IFCA.** In the code, a client chooses its model by the loss on its validation images. In the paper of IFCA, it chooses by
#   the loss on its training images. The models begin at random, and all
#   clients may choose the same one, so single seeds differ much. With three seeds, we cannot say how much of the difference is chance.
# - **CFL.** The paper's thresholds were made for another network and more rounds. In our runs it never splits, so both versions are FedAvg, up to the weights. The code weights clients by their samples, and the authors weight them equally.
#
# And the methods without clusters:
#
# - **FedEM** and **FedRC.** A client should predict with a mixture of the common components. The code keeps the client's *own* copy of the last
#   component instead, which it has just trained. This is a personal model. On `four` it is far better than the mixture, which is far from converged.
# - **FedSoft.** The intended method pulls local training towards the mixture of the centres. The code does not.
# - **FedCE.** The code adds 1 to a score several times, where the paper adds it once.
# - **pFedGraph** and **FedSaC.** In the code, the term in the local loss pulls a client towards the model that it has received. The authors' term refers
#   to its neighbours' models. The code compares two clients by their last updates, and not by all that they have learned. Its term for FedSaC
#   is a hundred times as strong as the authors'. On `backdoor`, the intended methods lose 6 and 15 points against those of the code, in the
#   one seed that was run. In [09b](09b_catalogue.ipynb), FedSaC prefers clients of
#   other groups, too.
#
# These six have no clusters, so neither the paper nor the kit gives them an ARI.
#
# One more difference is $k$. In its main experiments, the paper gives methods with $k$ the true number of clusters (appendix D.3). Ours get it in all versions. On `min` and `base` it is 1, and a
# method with $k = 1$ has one cluster, so an ARI of 1 by construction. The paper says that it chose another $k$ for `min`, `two` and `base`, because these methods would be FedAvg otherwise (appendix E.9). The number is missing in
# our copy of the text. This would explain the printed ARI of 0 on `min` and `base` for IFCA, FlexCFL, FeSEM and CFLGP. So these numbers cannot be compared (deviation 17). On `two`, they can: FlexCFL and CFLGP
# always have $k$ clusters, and their printed ARI of 1 is only possible with $k = 2$.

# %% [markdown]
# ### PACFL at the paper's own scale
#
# PACFL compares its clients before any training. So its clusters need no GPU, even with the paper's 40 clients and all of their images. `python -m cflkit grid run emd-cfl/pacfl --where scale paper`
# makes these runs, with the paper's thresholds, which it tuned with the true clusters: 12 degrees, and 2.5 degrees for the
# backdoor.

# %% tags=["nbval-check-output"]
at_paper = book[(book["method"] == "PACFL") & (book["measure"] == "ari") & book["seeds"].gt(0)]
for cell in at_paper[at_paper["again"].eq("")].to_dict("records"):
    print(f"{cell['version']:9s} printed {cell['value']:.2f}, ", end="")
    print(f"as published {cell['ours']:.2f} ({cell['low']:.2f} to {cell['high']:.2f}), ", end="")
    print(f"as intended {cell['intended']:.2f}, seeds {cell['seeds']}: {cell['status']}")
of_pacfl = [p for p in known if scales[p.id] == "paper" and p.parameters["only"] == ["PACFL"]]
for past in (past for past in of_pacfl if past.parameters["version"] == "backdoor"):
    counts = ", ".join(f"{name} {found['n_clusters']}" for name, found in past.summary.items())
    print(f"clusters of the {past.parameters['clients']} backdoor clients: {counts}")

# %% [markdown]
# On the rotations, both versions find the true clusters with every seed, as the paper prints it.
#
# On the backdoor, the versions differ, and runs at the reduced scale, which differ in the pixels alone, show why (next cell). The comparison's code *standardises* all pixels, here with the mean and the deviation of ImageNet. PACFL's directions are those of the standardised pixels.
# This moves all images by one vector, and changes the angles. With pixels from 0 to 1, as PACFL's authors have them, 2.5 degrees separate most clients: see the numbers of clusters.
# (At the paper's scale, the two versions also differ in the images and in the signs.)
# So the threshold belongs to pixels that are standardised in this way. With them, we find more of the groups than the paper prints, and we do not know why.
#
# At the reduced scale, the same thresholds fail on the backdoor, and on the rotations as published. On the rotations, the version as intended still finds the true clusters. The next cell prints the clusters of each version, one number per seed. Our oldest runs had pixels from 0 to 1 as published, too. They are in
# the lines that end in "0 to 1".


# %% tags=["nbval-check-output", "hide-input"]
kinds = {"as intended": ("PACFL", True), "as published": ("PACFL as published", True)}
kinds["as published, 0 to 1"] = "PACFL as published", False  # older runs, with more methods
whole = [past for past in of_scale if past.parameters["until"] == "rounds"]
for version in with_runs:
    ends = [past.summary for past in whole if past.parameters["version"] == version]
    for told, (name, newer) in kinds.items():
        found = [end[name] for end in ends if name in end and (len(end) == 2) == newer]
        counts = ", ".join(str(of["n_clusters"]) for of in found)
        aris = [round(of["ari"], 2) for of in found]
        print(f"{version:9s}{told:22s} clusters {counts:8s} ARI", aris)

# %% [markdown]
# On the rotations at the reduced scale, PACFL as published separates clients of one group. Our runs point to two causes:
#
# - **Images.** A client has half of the paper's images, so 271 for validation and not 542. The directions of fewer images are less certain, and the angles within a group grow. On `four`,
#   the thresholds that work for every seed begin at 10.5 degrees with 542 images (40 clients), and at 14.6 degrees with 271 (12 clients): see the table [below](#every-threshold-in-its-own-unit).
# - **Pixels.** With pixels from 0 to 1 and the same 271 images, four of six runs have the true clusters.
#
# As intended, PACFL compares the training images. They are nine times as many, and the threshold works.
#
# On the backdoor, clients have all of the paper's images. Without standardised pixels, nearly every client is a cluster of its
# own: the lines above have the numbers. With them these runs have three clusters, the true ones with one seed.
#
# ### What the line-up costs
#
# All methods of a run are in lockstep: a training that several of them ask for is done once. The next cell prints the costs of the runs on `four`. Minutes were measured on
# shared machines with two to four cores, so they are rough.

# %%
billed = [
    past
    for past in of_scale
    if records.has_parameters(past, {"version": "four", "until": "rounds"})
]
billed = sorted(billed, key=lambda past: (len(past.summary), past.parameters["seed"]))
print(" methods  seed  asked   run  saved  minutes   GiB")
for past in billed:
    p = past.provenance
    if asked := p.get("trainings_requested"):
        done, memory = p["trainings_run"], p["peak_memory_gib"] or np.nan
        print(f"{len(past.summary):8d} {past.parameters['seed']:5d} {asked:6d} {done:5d}", end=" ")
        print(f"{1 - done / asked:6.0%} {p['minutes']:8.0f} {memory:5.1f}")

# %% [markdown]
# <a id="what-each-method-was-told"></a>
#
# ### What each method was told, and what it sends
#
# A table of accuracies hides three things: what a method was told, what its server sees of a client, and what a client pays. The next cell prints them for the methods as intended, from the records of the reduced scale.
#
# - **k** says whether the method was told the true number of groups. **threshold** says how its threshold was chosen.
# - **sees** is what a client sends besides numbers of samples.
# - **trainings** counts the local trainings of a client per round. **down** and **up** are the bytes that it receives and sends per round, in models.
# - **accuracy** is that on `four` after three rounds, in per cent (three seeds). The last columns divide it by a client's local trainings, and by the megabytes that it received and sent.
#
# (EMD-CFL, the oracle, FedAvg and FedProx have their costs from `base` and `min`, since their records of `four` are older than these counts.)

# %% tags=["nbval-check-output"]
bill = costs.told(known)
print(bill.iloc[:, :3].to_string(), bill.iloc[:, 3:].round(2).to_string(), sep="\n\n")

# %% [markdown]
# Besides FedAvg and FedProx, four methods are told nothing of the groups and need no threshold: pFedGraph, FedSaC, SCAFFOLD and Ditto. The first two are level with the oracle here, Ditto is two points behind, and SCAFFOLD twenty. None of the four has clusters. (SCAFFOLD and Ditto are not in the paper; we added them.)
# EMD-CFL sends embeddings in the first round, and each client's model goes to all others. Over three rounds this is more than three times as much traffic as the oracle's, for the same accuracy; over ten rounds it would weigh less.
# FedEM and FedRC train $k$ models per client and round, so they pay four times as much for each round. At equal numbers of trainings, the others would have had twelve rounds.
#
# The division is no law of growth: half of the trainings do not give half of the accuracy. The columns show who paid more for the same.

# %% [markdown]
# ## One threshold for everything?
#
# The paper keeps one ε for most of its experiments, "finding it to be robust across datasets and models" (section 3). The number is missing in our copy of the text. The configuration
# in the authors' code has 0.1, and Rotated CIFAR-10 as its data set. So 0.1 on MNIST is **our assumption**. The paper adds that ε depends in general on the data set, the model and the
# projection (section 4.2), and it shows a range of values that work. Our reduced runs have 0.02. Why?
#
# Each record keeps the scores of the first round. So we can compute the **working range** of every run: from the largest score within a true cluster to
# the smallest between two. Figure 3 shows one bar per record. The dashed line is 0.1. Which bars does it cross?

# %%
KEYS = ("dataset", "version", "clients", "local_epochs", "seed")
ordered = sorted(of_tables, key=lambda past: [past.parameters[key] for key in KEYS])
ours, labels, above = {}, [], None
for past in ordered:
    p = past.parameters
    name = f"{p['dataset']} {p['version']}, {p['clients']} clients, {p['local_epochs']} epochs"
    name += ", paper's network" if p["model"] == "emd-cnn" else ""
    labels.append(f"seed {p['seed']}" if name == above else f"{name}, seed {p['seed']}")
    ours[f"{name}, seed {p['seed']}"] = emd_cfl.working_range(*thresholds.recorded_scores(past))
    above = name

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(7.7, 0.17 * len(ours) + 1.1))
plots.ranges(ours, ax).set_yticks(range(len(ours)), labels)
ax.axvline(0.1, color="black", linestyle="--", label="ε = 0.1, as in the authors' code")
figures.legend(figure)
plots.show(
    figure,
    3,
    "Working ranges of ε in the runs with all clients and 90 % of the dimensions, by data set, version, numbers of clients and of local epochs, "
    "and seed; those with 40 clients follow below. Bars that reach 2 belong to runs with one true cluster, which have no upper end.",
    "Horizontal bars on a logarithmic axis, one per run. All bars of runs with several clusters end "
    "to the left of the dashed line at 0.1; the bars of the versions base and min cross it.",
)

# %% [markdown]
# The next cell counts the runs in which 0.1 is right. It also looks for one ε that is right in all of them.

# %% tags=["nbval-check-output"]
several = pd.DataFrame(ours, index=["low", "high"]).T.query("high < 2")
right = ((several["low"] < 0.1) & (several["high"] >= 0.1)).sum()
print(f"runs with several true clusters: {len(several)}; right with ε = 0.1: {right}")
ends = several["high"]
print(f"smallest score between clusters: from {ends.min():.3f} to {ends.max():.3f}")
without = several[~several.index.str.startswith("cifar10")]
for told, of in (("all of these runs", several), ("those of MNIST alone", without)):
    low, high = of["low"].max(), of["high"].min()
    common = f"{low:.3f} < ε ≤ {high:.3f}" if low < high else "no ε"
    print(f"right in {told}: {common}")

# %% [markdown]
# Which clients does 0.1 join wrongly? The next cell has the runs of `four` with ten local epochs.

# %% tags=["nbval-check-output"]
for past in ordered:
    p = past.parameters
    if p["version"] == "four" and p["local_epochs"] == 10:
        scores, truth = thresholds.recorded_scores(past)
        pairs = np.argwhere(np.triu(agreements(scores, 0.1) & (truth[:, None] != truth)))
        low, high = emd_cfl.working_range(scores, truth)
        print(f"four, 10 epochs, {p['clients']} clients, {p['model']}, seed {p['seed']}: right if")
        print(f"  {low:.3f} < ε ≤ {high:.3f}; clusters of pairs that 0.1 joins:", *truth[pairs])

# %% [markdown]
# If ε is 0.1 on MNIST, which is our assumption, none of these runs with more than one true cluster would be clustered right. Every upper end is
# below 0.1, so at least one pair of clients from different clusters would agree.
#
# In the runs of Figure 3 with ten local epochs and all images, the upper ends on `four` are above 0.09, in the paper's network (8 clients) and in the small one (12). With all 40 clients, they are lower (0.079 to 0.086, see below). These runs cannot tell the effect of the epochs from that of the images.
#
# The cell above also prints the values of ε that are right in *all* of these runs. That interval is narrow because of one run: a part of CIFAR-10, with a small network and one seed. Without it, the interval is wider. Both were found
# with the true clusters at hand, and a server does not have those.
#
# <a id="all-40-clients-of-the-paper"></a>
#
# ### All 40 clients of the paper
#
# The clusters are final after the first round. The command `python -m cflkit grid run emd-cfl/clusters` runs this round at the
# paper's own scale. A run has 40 clients (30 for the backdoor), all of their images, the paper's network and ten local epochs.
# The [results page](results.md) has the minutes of each run. One run also has *EMD-CFL as published*, which measures the
# distances as the authors' code does (deviations 6, 7 and 13 below). The next cell prints the number of clusters and the ARI
# for ε from 0.01 to 0.3. It uses two rules: the paper's (clients with the same neighbours are a cluster), and connected
# components.

# %%
TRIED = (0.01, 0.02, 0.03, 0.05, 0.08, 0.09, 0.1, 0.12, 0.15, 0.2, 0.3)
RULES = ("neighbourhoods", "components")
of_round = [past for past in known if scales[past.id] == "paper" and "EMD-CFL" in past.summary]
kinds = [(past, name) for past in of_round for name in past.summary if name.startswith("EMD-CFL")]

# %% tags=["nbval-check-output"]
for past, kind in kinds:
    scores, truth = thresholds.recorded_scores(past, kind)
    low, high = emd_cfl.working_range(scores, truth)
    version, seed = past.parameters["version"], past.parameters["seed"]
    print(f"mnist {version}, {len(truth)} clients, seed {seed}, {kind}")
    print(f"right: {low:.3f} < ε ≤ {high:.3f}")
    print(f"{'ε':>5s}{'by neighbours':>20s}{'by components':>20s}")
    for epsilon in TRIED:
        found = [clusters_of(scores, epsilon, rule)[0] for rule in RULES]
        texts = [f"{max(own) + 1}, ARI {adjusted_rand_score(truth, own):.2f}" for own in found]
        print(f"{epsilon:5.2f}" + "".join(f"{text:>20s}" for text in texts))
    agree, same = agreements(scores, 0.1), truth[:, None] == truth
    wrong = {(int(truth[i]), int(truth[j])) for i, j in np.argwhere(agree & ~same) if i < j}
    print(f"ε = 0.1: pairs of one cluster that do not agree: {(same & ~agree).sum() // 2},")
    print(f"pairs of two clusters that do: {(agree & ~same).sum() // 2}, between {sorted(wrong)}\n")

# %% [markdown]
# In the three tables of `four`, every ε above 0.02, up to 0.078, gives the four true clusters. ε = 0.1 gives 30 clusters or more, and an ARI of at most 0.15. No pair of clients from
# the *same* cluster is missed at 0.1. But 29 to 45 pairs agree that should not. All of them are from the clusters 0 and 2, or 1 and 3, whose images are rotated by 180° relative to each other. Each such pair gives its two clients one neighbour more. Clients with different
# neighbours get into different clusters, so a few wrong pairs break the clusters into pieces. By connected components, the same pairs join the four clusters into two.
#
# On the backdoor, 0.1 is just above the range that works. One pair of clients from two groups agrees, and makes five clusters out of three (one seed).
#
# The paper prints an ARI of 1 on both. Our version of the distances as published does not explain it: with them, 0.1 fails as well (one seed). Two things limit what this says about the paper. Our clients' models
# end further apart than the printed distances (see [below](#are-parameters-nearer-within-clusters)), and ε = 0.1 on MNIST is our assumption.
#
# The baselines of the same runs cluster once, too:

# %% tags=["nbval-check-output"]
for past in of_round:
    print(f"mnist {past.parameters['version']}, seed {past.parameters['seed']}")
    for name, found in past.summary.items():
        if not name.startswith("EMD-CFL"):
            print(f"{name:22s} clusters {found['n_clusters']:2d}, ARI {found['ari']:.2f}")

# %% [markdown]
# On `four`, PACFL and FlexCFL find the four clusters, as printed. FedClust has the paper's thresholds: 5, and 4 on the backdoor.
# On `four`, as published, it finds them with one seed, and splits one client
# off with the other (printed is an ARI of 1). As intended, with the distances of the last layer alone, it splits nobody. On the
# backdoor, FlexCFL finds the three groups, as printed. FedClust as published makes each client a cluster of its own, where the
# printed ARI is 0.53. Our clients lie further apart there than the paper's, even within a group (see the distances below), so a
# threshold of 4 joins nobody.
#
# As published, FedClust averages after the first round only. So its accuracies cost one round, and they are the only ones that we have at the paper's scale:

# %% tags=["nbval-check-output"]
whole = book.query("paper == 'emd-cfl' and method == 'FedClust' and again == '' and ours == ours")
for _, cell in whole[whole["measure"].str.contains("accuracy")].iterrows():
    printed = f"printed {cell['value']:.1f} ± {cell['deviation']:.1f}"
    print(f"{cell['version']:9s} {cell['measure']:18s} {printed}, ours {cell['ours']:.1f}")

# %% [markdown]
# On `four`, our accuracies agree with the printed ones within the paper's deviation, with one client in a cluster of its own (one seed). So FedClust's printed
# accuracies can be had from a single round, where the other methods of the table train for ten rounds.
#
# On the backdoor, each of our clients is a cluster of its own. So our accuracies are those of clients who have trained alone for one round. They are
# higher than the printed ones, which belong to clusters with an ARI of 0.53 (one seed against the mean of the paper's runs). An accuracy after one round does not tell which clusters there are.

# %% [markdown]
# ## Fewer dimensions, and an approximation
#
# By the paper's Figures 8 and 9, a random projection to a tenth of the dimensions is enough for the right clusters. This holds for exact distances and for Sinkhorn's approximation.
# `python -m cflkit grid run emd-cfl/dimensions` makes such runs. Each has one round, since the clusters are final then. A record keeps the scores, so the ARI for every ε follows from it.
# The second cell below prints which of 24 values of ε give exactly the true clusters.

# %%
VARIED = {"projection", "sinkhorn", "only", "until"}
FIRST = {"version": "four", "seed": 0}
first = [
    past.parameters
    for past in of_scale
    if past in of_tables and records.has_parameters(past, FIRST)
]
common = [{name: own[name] for name in own.keys() - VARIED} for own in first]
narrow = [past for past in with_method if any(records.has_parameters(past, own) for own in common)]
steps = np.geomspace(0.001, 0.2, 24)
by_solver = {"exact": {}, "Sinkhorn": {}}
for past in sorted(narrow, key=lambda past: past.parameters["projection"]):
    solver = {None: "exact", 0.1: "Sinkhorn"}[past.parameters["sinkhorn"]]
    curve = thresholds.curve_of(past, "EMD-CFL")
    by_solver[solver][past.parameters["projection"]] = thresholds.at(curve, steps)

# %% tags=["nbval-check-output"]
for solver, rows in by_solver.items():
    for share, values in rows.items():
        works = steps[np.array(values) == 1]
        text = f"ε from {works[0]:.3f} to {works[-1]:.3f}" if len(works) else "no ε of those tried"
        print(f"{solver:9s} {share:4.0%} of the dimensions: {text}")

# %% [markdown]
# With a tenth of the dimensions there is still a working ε, by exact distances and by Sinkhorn's approximation. This agrees with the paper. With a twentieth there is none. But the
# range that works moves with the number of dimensions, and all of it is below 0.1. This is one seed at the reduced scale.
#
# <a id="every-threshold-in-its-own-unit"></a>
#
# ## Every threshold in its own unit
#
# EMD-CFL, PACFL and FedClust each compare something, and each cut it at a threshold. An ARI at *one* threshold says little about a method: is the method weak, or the threshold wrong? So we compute the ARI for *every* threshold.
# No run is needed: from the recorded matrix, EMD-CFL's rule or the method's dendrogram gives the clusters of each threshold. Figure 4 shows the mean over seeds. The dotted line is the paper's threshold, and for EMD-CFL our assumption, 0.1. PACFL's and FedClust's were tuned for the versions as published, which compare other quantities.

# %% tags=["hide-input"]
plots.show(
    figures.over_thresholds(known, ("four", "backdoor")),
    4,
    "The mean ARI over the threshold, each in its method's own unit, for the versions four and backdoor. Blue: as intended. Orange: as published. "
    "The table below has the number of seeds.",
    "Six panels of step curves over logarithmic thresholds, with a dotted vertical line each. Most curves rise to a plateau and fall again. "
    "EMD-CFL's plateaus end left of its line. On the backdoor, PACFL's orange curve has its peak at the line, and its blue one reaches 1 right of it.",
)

# %% [markdown]
# The next cell prints the best ARI of one threshold for all seeds, and the widest interval of thresholds that have it. Scenarios with one true group are left out, since there any large threshold is right.
# The ARI at the threshold used is a dash where that threshold belongs to another quantity. Briggs' method is from OCFL's runs, whose records have only the heights of the merges.

# %% tags=["nbval-check-output"]
table = thresholds.table([*known, *(past for past in records.committed() if past.paper == "ocfl")])
for of, rows in table.groupby("scale"):
    print(f"{of} scale")
    print(rows.drop(columns=["scale", "note"]).to_string(index=False), end="\n\n")
print("Dashes:", *sorted(set(table["note"]) - {""}), sep="\n    ")

# %% [markdown]
# - **EMD-CFL** has a wide plateau of true clusters in both panels, and ε = 0.1, our assumption, lies to the right of it.
# - **PACFL** on the backdoor, at the paper's scale: as published, its best ARI is 0.81, at 2.5 degrees. So in our runs, the paper's threshold is the best one for the code's version, and even that does not find all groups. As intended, every threshold
#   from 3.9 to 4.3 degrees finds them with all three seeds, and 2.5 degrees does not. With one threshold for both, the better version looks like the worse one. (At the reduced scale, no threshold finds the groups of the backdoor with all three seeds: the best mean ARIs are 0.86 and 0.88. The 0.86 is at 2.5 degrees, where the first table has 0.57: these runs are later, and a corrected split deals the images of two seeds otherwise.) On `four`, both versions have a wide plateau. At the reduced scale,
#   that of the version as published begins above 12 degrees, as its few validation images make the angles larger.
# - **FedClust** on `four`, at the reduced scale: as published, every λ from 3 to 4.5 finds the groups, and the paper's 5 lies just above. As intended, no threshold finds them with all three seeds. Its best mean ARI is 0.70, in a narrow interval near 1.3.
#    On the backdoor, no λ finds the groups with all three seeds in either version. The best mean ARI is 0.92 as published, with λ above the paper's 4, and 0.58 as intended.
#    At the paper's scale, one seed of `four` has its distances: as published, every λ from 5.2 to 6.6 finds the groups, and the paper's 5, with an ARI of 0.97, lies just below. As intended, the best ARI is 0.93, near 2.2. One seed of the backdoor has the distances as published: every λ from 5.6 to 5.8 finds the groups.
#
# A best threshold is an upper bound, since a server does not know it. And a wide plateau is worth more than a high peak, since it leaves room for a guess.
#
# ## If only some clients take part
#
# In the paper's Table 6, 10, 20 or 30 of 40 clients train per round. Our reduced runs have 3, 6 or 9 of 12 in three rounds instead of ten. So they belong to no row of the table, and the next cell prints them beside it.

# %% tags=["nbval-check-output"]
six = book[(book["paper"] == "emd-cfl") & (book["table"] == "6") & (book["dataset"] == "mnist")]
paper = six.set_index(["method", "participants", "measure"])["value"].sort_index()
for share in (0.25, 0.5, 0.75):
    print(f"{share:.0%} of the clients per round")
    runs = [past for past in with_method if past.parameters["participants"] == share * 12]
    for name in ("EMD-CFL", "Oracle"):
        ari, score = (paper[name, 40 * share, measure] for measure in ("ari", "average accuracy"))
        text = f"printed ARI {ari:.2f}, accuracy {score:.1f}"
        if runs:
            ends = pd.DataFrame([past.summary[name] for past in runs])[["ari", "accuracy"]].mean()
            seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
            text += f"; ours ARI {ends['ari']:.2f}, accuracy {100 * ends['accuracy']:.1f} ({seeds})"
        print(f"    {name:8s} {text}")

# %% [markdown]
# EMD-CFL is level with the oracle here, too. A client that was never drawn is in a cluster of its own, for the oracle as well. This is why the ARI of *both* methods is below 1 if few take part: some
# clients have not been seen yet. Our three rounds see fewer of them than the paper's ten. The accuracies suffer in the same way, since a client that was not seen has the initial model.

# %% [markdown]
# ## If clients come late, or change their group
#
# In the paper, some clients may miss rounds (Table 6), but none comes late or changes its data. `python -m cflkit grid run emd-cfl/changes` plays the four scenes of lesson
# [11](11_clients_that_come_and_go.ipynb) on Rotated MNIST, version four, with 12 clients of 1,200 images and ε = 0.03. After three of eight rounds, one client per group joins (*join*), a whole group appears (*late group*), or
# two clients exchange their data (*drift*). In *random*, each client is there in about half of the rounds. The next cell prints the end of each scene.

# %% tags=["nbval-check-output"]
changed = [past for past in of_paper if past.parameters["scene"] != "none"]
scenes = {scene: [] for scene in ("join", "random", "late group", "drift")}
for past in changed:
    scenes[past.parameters["scene"]].append(past.summary)
print("Accuracy in %, and the ARI: means over seeds after the last round")
print(f"{'':15s}" + "".join(f"{scene:>13s}" for scene in scenes))
print(f"{'seeds':15s}" + "".join(f"{len(runs):13d}" for runs in scenes.values()))
for name in ("Oracle", "EMD-CFL", "OCFL-HDB", "OCFL-HDB again", "IFCA", "FedAvg"):
    frames = [pd.DataFrame([run[name] for run in runs]) for runs in scenes.values()]
    ends = [(100 * table["accuracy"].mean(), table["ari"].mean()) for table in frames]
    print(f"{name:15s}" + "".join(f"{accuracy:6.1f} ({ari:.2f})" for accuracy, ari in ends))

# %% [markdown]
# In the scene *random*, the clusters change from round to round:

# %% tags=["nbval-check-output"]
for past in (past for past in changed if past.parameters["scene"] == "random"):
    for name in ("OCFL-HDB", "OCFL-HDB again"):
        aris = " ".join(f"{ari:.2f}" for ari in past.by_method[name]["ari"])
        print(f"random, seed {past.parameters['seed']}, ARI per round of {name}: {aris}")

# %% [markdown]
# - **Join.** EMD-CFL and both kinds of OCFL end level with the oracle: the newcomers find their group.
# - **Random.** EMD-CFL reaches the oracle once all pairs have been measured. For OCFL, chance decides who is seen when it clusters. With seed 1 its groups are the true ones, and with the seeds 0 and 2 it joins two. Clustering again has the same risk:
#   with seed 0, the second clustering found the true groups, and the third one lost them. With seed 2, the third one found them.
# - **Late group.** EMD-CFL is level with the oracle. OCFL has no cluster for the newcomers and joins two groups, which costs three points. If it clusters again, it is level, too.
# - **Drift.** EMD-CFL and OCFL decide once, so the two clients stay in the wrong clusters. Two points of the mean over twelve clients are about twelve points for each of the two. OCFL that clusters again follows.
# - **IFCA** chooses anew in each round and could follow. But from random models, it found the four groups in two of these twelve runs only, both of *random*. FedAvg ends about eleven points below the oracle, and on average further below in *random*.
#
# <a id="a-poisoned-group-that-looks-the-same"></a>
#
# ## A poisoned group that looks the same
#
# In Backdoor MNIST, the digits of one group are green. Those of another are purple. The digits of a third group, the poisoned one, are green in a shade that depends
# on the digit. A model that is trained with the third group can learn to read the shade instead of the digit. Somebody who later sends a digit in another digit's shade fools
# that model.
#
# Figure 5 shows the same three digits in all four ways. The poisoned shades are told by their lightness, which stands below each digit. Compare the rows *poisoned*
# and *to fool*.

# %% tags=["hide-input"]
dyes = {"clean": shifts.GREEN, "poisoned": shifts.SHADES}
dyes |= {"to fool": shifts.SHADES[::-1], "purple": shifts.PURPLE}
plots.show(
    figures.dyed_digits(datasets.load("digits"), [0, 5, 9], dyes),
    5,
    "Three digits as clean, poisoned and purple clients have them, and as test images that are meant to fool "
    "clean clients. Below each: red, green and blue (0 to 255), and the lightness.",
    "Four rows of three coloured digits. The clean row has one green, with lightness 0.53. In the poisoned row, the lightness rises with "
    "the digit from 0.39 to 0.52, in the row to fool it falls, and the purple row has one purple.",
)

# %% [markdown]
# In the runs, we look at the clients of the clean group. Figure 6 shows their accuracy on their own test images, and on the same images in the shades that
# are meant to fool them. The vertical distance of the two is the damage.

# %%
damaged = [past for past in of_tables if past.parameters["version"] == "backdoor"]
poisoned = [past for past in damaged if past in of_scale]
LINE = ("Oracle", "EMD-CFL", "FedAvg", "FedProx")

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.4, 3))
figures.clean_and_fooled(ax, poisoned, LINE)
plots.show(
    figure,
    6,
    "Accuracy of the clean group's clients after the last round; each vertical line is one seed.",
    "Pairs of a dot and a cross for four methods and up to three seeds each. At the reduced scale, the pairs of the oracle and of EMD-CFL lie "
    "together near 97 per cent; those of FedAvg and FedProx lie lower, and in two seeds the cross is one to five points below the dot.",
)

# %% [markdown]
# The next cell prints the means of these accuracies, and what each seed loses.

# %% tags=["nbval-check-output"]
for name in LINE if poisoned else ():
    ends = 100 * pd.DataFrame([past.summary[name] for past in poisoned])
    clean, fooled = ends["clean_accuracy"], ends["backdoor_accuracy"]
    told = f"own images {clean.mean():.1f}, in shades to fool {fooled.mean():.1f}"
    lost = " ".join(f"{points:.1f}" for points in clean - fooled)
    print(f"{name:8s} {told}, lost per seed {lost}")

# %% [markdown]
# At the reduced scale, the clean clients of EMD-CFL and of the oracle lose next to nothing. They average with nobody who learned to read the shade. The clean clients of FedAvg and
# FedProx are less accurate to begin with. After three rounds, FedAvg's lose 4.5 and 2.3 points in two seeds, and gain 0.7 in the third. The loss is still growing then (Figure 7).
#
# So there is also a run of more rounds with fewer local epochs each. Figure 7 shows the loss against the local epochs so far. Every curve of FedAvg starts at a negative value. That means that
# the images in shades to fool are classified *better* than the clean ones. How can that be?

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.4, 3))
lines = {3: ("-", "3 rounds of 10 epochs"), 5: ("--", "5 rounds of 5 epochs, one seed")}
figures.lost_accuracy(ax, damaged, ("EMD-CFL", "FedAvg"), lines)
figures.legend(figure, ncols=2)
plots.show(
    figure,
    7,
    "What clean clients lose on images in shades to fool, by local epochs so far. Each line is one run; a negative loss is a gain.",
    "Lines over local epochs. Those of EMD-CFL stay near zero. Those of FedAvg begin below zero and "
    "rise, and the dashed one of five rounds ends highest, at six points after 25 epochs.",
)

# %% [markdown]
# The next cell prints where FedAvg stands after the first round, and what the clean group loses in the end.

# %% tags=["nbval-check-output"]
print("FedAvg after round 1, accuracy on own test images, %:")
for past in damaged:
    rounds = past.by_method["FedAvg"]
    first, last = (100 * rounds.iloc[place].filter(like="accuracy") for place in (0, -1))
    others = (3 * first["accuracy"] - first["clean_accuracy"]) / 2  # three groups of one size
    fooled, lost = first["backdoor_accuracy"], last["clean_accuracy"] - last["backdoor_accuracy"]
    print(f"clean group {first['clean_accuracy']:.1f}, in shades to fool {fooled:.1f}", end="")
    print(f", the two other groups {others:.1f}")
    print(f"  after round {rounds['round'].iloc[-1]}, the clean group loses {lost:.1f} points")

# %% [markdown]
# The numbers above suggest an answer. After one round, the common model is much better on the two other groups than on the clean one. The shades to fool are the poisoned group's
# colours. That group has twice as many training images as each other group, so FedAvg gives it half of the weight. At first the model may simply know
# these colours better, and only later learn that a shade stands for a digit. We have not tested this explanation by a run of its own.
#
# After the paper's ten rounds of ten local epochs, FedAvg's clean clients lose nearly nine points (Table 8; the next cell prints it beside ours).

# %% tags=["nbval-check-output"]
of_group = cells[cells["version"] == "backdoor"]
measures = {"clean accuracy": ".1f", "backdoor accuracy": ".1f"}
print(f"{'':11s}seeds{'clean: print':>13s}{'ours':>13s}{'':13s}{'fooled: print':>13s}{'ours':>13s}")
print(*tables.version_lines(of_group, [*emd_cfl.METHODS], measures), sep="\n")

# %% [markdown]
# <a id="are-parameters-nearer-within-clusters"></a>
#
# ## Are parameters nearer within clusters?
#
# The paper's Table 9 compares the mean distance of clients' parameters within the clusters found with that over all pairs. It
# has the "hypothesis" and the full model. The next cell prints the published distances, first for the hypothesis and then for
# the full model. It also prints by how much the distance within clusters is smaller than that over all pairs. Where we have
# runs, a row of ours follows. It has means over seeds of the distances after the first round, in which all clients begin with
# one model. `python -m cflkit grid run emd-cfl/distances` makes these runs. The rows "full scale" are one run each at the
# paper's scale: EMD-CFL as published on `four`, and as intended on the backdoor. With ε = 0.1, these runs have too many clusters (see
# above), so their distances are within smaller clusters than the paper's.

# %% tags=["nbval-check-output"]
nine = book[book["table"] == "9"]
parts = ("hypothesis", "full model")
for names, rows in nine.groupby(["dataset", "version"], sort=False):
    for source, column in (("printed", "value"), ("ours", "reduced_ours"), ("full scale", "ours")):
        gap = rows.set_index("measure")[column]
        pairs = [(gap[f"{part}, clusters"], gap[f"{part}, overall"]) for part in parts]
        texts = [f"{c:5.2f} of {all_:5.2f} ({1 - c / all_:.1%} less)" for c, all_ in pairs]
        if gap.notna().all():
            print(f"{' '.join(names):17s}{source:11s}" + ", ".join(texts))

# %% [markdown]
# The distances over *all* pairs do not depend on the clusters. At the full scale, ours are larger than the printed ones: by
# almost a quarter on `four`, and by about a third on the backdoor. So our clients' models lie further apart than the paper's, or
# the paper measured another round.
#
# By the text, the hypothesis is the last layer. Can that be? On MNIST, the printed hypothesis has nearly the whole distance of the model. But the last layer has 1,290 of 3.3 million parameters.
# The records have the distances of three parts of the model:

# %% tags=["nbval-check-output"]
has_distances = [past for past in of_scale if "parameters_within" in past.rounds]
for scenario, runs in sorted(tables.by_scenario(has_distances, "emd-cfl").items(), key=str):
    means = pd.DataFrame([past.rounds.iloc[0] for past in runs])
    print(f"{scenario[1]}, mean over {len(runs)} seeds")
    print(means.filter(regex="_(within|overall)$").mean().round(2).to_string())

# %% [markdown]
# All linear layers together have nearly the distance of the whole model, and the last layer has much less. So we compare the printed hypothesis of MNIST with the linear layers, the last two. The
# other networks of the table have one linear layer.
#
# The printed distances are smaller within the clusters on every data set, as the paper's bound suggests for the last layer. For the full model, they are
# smaller by nine tenths on PACS, by a third on Rotated MNIST and by a fifth on Backdoor MNIST. On both sets of CIFAR-10 they are hardly
# smaller at all. The appendix [05b](05b_emd_cfl_controls.ipynb) prints the same shares for its own clients.
#
# ## Deviations from the paper
#
# The next cell computes the evidence for the first of them.

# %% tags=["nbval-check-output"]
methods_there = set(book.loc[book["paper"] == "emd-cfl", "method"].dropna()) - {"EMD-CFL"}
ran = {name for past in known for name in past.summary}
missing = sorted(methods_there - ran)
print(f"{len(methods_there)} baselines in the paper's tables, {len(missing)} of them not run here")
print(textwrap.fill(", ".join(missing), 90))

# %% [markdown]
# 1. **Baselines.** The paper compares with 16 methods (section 4.3). The cell above counts those that were not run. The thresholds of CFL, PACFL and
#    FedClust are the paper's own, for its network and its number of rounds. We did not tune them for the reduced scale, so their results here are no verdict on these methods.
#    What other thresholds would give stands [above](#every-threshold-in-its-own-unit), except for CFL's: its two thresholds decide in every round, so that no single matrix gives the clusters of other thresholds.
# 2. **The threshold.** That ε is 0.1 is our assumption, from the configuration in the code; our copy of the text lost the number. The reduced runs have 0.02, and the evidence runs 0.02 or 0.03. The runs with the paper's network have 0.1. The evidence is Figure 3 and the two cells below it: with 0.1, no committed run
#    with several true clusters is clustered right. We chose ours between the known scores, so the ARI of 1 in our runs is a best case.
# 3. **Reduced scale.** The list under "What was run" has all differences.
# 4. **Data sets.** Of the paper's five, we ran Rotated MNIST and Backdoor MNIST. Not run: both sets of CIFAR-10, and PACS but for [05](05_emd_cfl.ipynb). The
#    fifth of CIFAR-10 in Figure 3 is no table's data.
# 5. **Mode of the embeddings.** The authors' extractor stays in training mode, so BatchNorm uses the batch's statistics. Ours is in evaluation mode unless
#    `train_mode` says otherwise. The files of the paper's scale set it for ResNet18. For networks without BatchNorm and dropout both are the same.
# 6. **Reference distance.** The authors project it by a square random matrix, which distorts it a little. A client that computes it for itself
#    does not need a projection, and ours does not use one. *EMD-CFL as published* does, as it also has the samples and the scale of the next deviations (7 and 13).
# 7. **Samples.** The authors draw up to 512 samples anew for each pair. We draw them once per client, so that embeddings are computed once. The paper's
#    limit of 10 % of the samples (section 3.1) is not in their code, nor here. They round scores to four decimals before comparing.
# 8. **Test images.** The authors split each rotation's test images among as many clients as all groups have. A client of
#    Rotated MNIST then has 220 test images. Every worst accuracy printed for it is a mean of three multiples of 1/220, which is the evidence. With
#    `published_split = True` we do the same; a few of our clients have 230.
# 9. **Tables 10 and 11.** The text calls both versions of MNIST. By the size of the numbers, Table 11 is CIFAR-10.
# 10. **FedProx.** The paper that proposed it squares the distance, and so do our runs. The code of the comparison adds μ times the norm, tensor by tensor: the option `squared = False`. With
#     `published_distances = True`, a run also has *FedProx as published*. No committed run has it.
# 11. **Partial participation.** We compute distances once per pair, with the models that clients first trained, as Algorithm 1
#     has it. The authors' code computes all distances of clients seen so far again in every round, with the latest models.
# 12. **Rotated CIFAR-10** keeps its 32 × 32 pixels here. The authors' images grow as they turn, with a border in version `min`. Our clients
#     also have equally many images of each class, as in MNIST.
# 13. **The projection.** Its rows have unit length here. In the authors' code, its columns have unit length. Angles are nearly
#     the same.
# 14. **pFedGraph and FedSaC.** The code of the comparison mixes the clients' models one after the other. Later clients average models that are mixed already, so the
#     result depends on the clients' order. The option `in_turn` does this. The committed runs are older and mix all at once, also *as published*; runs with `published_distances = True` mix in turn.
# 15. **FeSEM.** The code of the comparison computes the means before the local training, and saves them, so they are one training behind (`received`). Its penalty is the norm and not its square
#     (`squared = False`). Both belong to *FeSEM as published* in runs with `published_distances = True`. The committed runs are older: theirs has only the zero matrix at the start.
# 16. **Texts and official code.** For two methods, the code of the comparison and that of their own authors agree, and the authors' *paper* says something else. Sattler's Algorithm 1 halves a cluster exactly, by single linkage (`linkage = "single"`); both codes have complete
#     linkage. PACFL's equations 2 and 3 compare principal angles, or the trace (`measure`); both codes compare single columns. No run of this paper has these options ([93](93_report_ocfl.ipynb#sattler-and-briggs-in-our-runs) has Sattler's). Of PACFL and FedClust, we ran no authors' code. (We ran that of [eight methods](../tests/golden/README.md), of FLUX and FedDrift the clustering alone, and of four the code of this comparison; ours equal all of it.) Tests compare ours with cases worked out by hand and with libraries.
# 17. **The number of clusters.** On `min` and `base`, eight methods have the true number here, and another one in the paper (appendix E.9; see "Thirteen baselines"). So their numbers there are of other runs than ours.

# %% [markdown]
# ## What we saw
#
# - At the reduced scale, EMD-CFL, the oracle and FedAvg stand in the paper's order. EMD-CFL is level with the oracle in every seed, but we chose its threshold with the true clusters at hand.
# - At the paper's own scale, thresholds above 0.02, up to 0.078, give the true clusters of `four` in all three tables (40 clients). ε = 0.1 lies just above, and gives 30 clusters or more, also with our version of the distances as published (one seed). On the backdoor, it gives five clusters in place of three (one seed). With the smaller network, 12 clients and as much training, 0.1 is just above the range, too. If 0.1 is the paper's threshold on MNIST, our runs do not confirm its ARI of 1.
# - A threshold that belongs to another quantity can reverse an order. On the backdoor at the paper's scale, PACFL as intended fails at the paper's 2.5 degrees, and finds all groups from 3.9 to 4.3 degrees.
# - On `four`, at the reduced scale (three seeds), six of the thirteen other methods come within a point of EMD-CFL if they run as their authors intended: PACFL, FlexCFL, FeSEM, CFLGP, pFedGraph and FedSaC.
# - In our reduced runs, several methods do much worse as published than as intended. As intended, FeSEM finds the true clusters, and FlexCFL is as good as the oracle. This does not show that these differences cause the printed
#   failures: on the backdoor, FlexCFL as published does well here. As in the code, FedEM and FedRC predict with personal models.
# - In three rounds, the backdoor costs FedAvg's clean clients 4.5 and 2.3 points in two seeds, and nothing in the third. The paper's ten rounds cost nearly nine.
# - A tenth of the dimensions is enough for a working threshold, as in the paper, and a twentieth is not (one seed, reduced scale).
# - With few clients per round, EMD-CFL is level with the oracle (three seeds).
# - In our small scenes on `four` (three seeds), EMD-CFL follows clients that come later, and not those that change their group. OCFL that clusters again follows both, but lost the groups in one of three runs with few clients per round.
# - At the paper's scale, PACFL finds the true clusters of all rotations, as printed. At the reduced scale, it does so only as intended: 271 standardised validation images are too few for 12 degrees.
# - Table 9 supports the theory for its hypothesis, which on MNIST seems to be more than the last layer. For the full model, all five rows are smaller within clusters, too, but on CIFAR-10 by less than 3 %.

# %% [markdown]
# ## References
#
# - D. Zhang, F. Toni, M. Williams: Clustered federated learning via embedding distributions. arXiv 2506.07769, 2025.
# - T. Li et al.: Federated optimization in heterogeneous networks. MLSys 2020.
#
# **Previous:** [93 Report: OCFL](93_report_ocfl.ipynb) · **Next:** [96 Report: FedCRef](96_report_fedcref.ipynb) ·
# [Lesson](05_emd_cfl.ipynb) · [Appendix](05b_emd_cfl_controls.ipynb) · [Ledger](90_ledger.ipynb) · [Glossary](99_glossary.ipynb)
