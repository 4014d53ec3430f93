# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Report: FedCRef beside its paper
#
# **Question.** How close do our runs of FedCRef come to the paper's tables? Where do paper, code and kit differ, and
# does it matter?
#
# **You will**
#
# - compare accuracies and graphs of associations with the published ones, system by system;
# - see where the paper contradicts itself;
# - read which deviations from the paper there are, and the evidence on each.
#
# **Before this:** [06 FedCRef](06_fedcref.ipynb). Its terms are in the [glossary](99_glossary.ipynb#terms).
#
# **Study minutes:** 25. **Minutes on two cores:** 0.5
#
# **Paper.** M. Nardi, L. Valerio, A. Passarella, *Federated Clustering: An Unsupervised Cluster-Wise Training for
# Decentralized Data Distributions*, arXiv 2408.10664 ("the paper"). This report trains nothing. It reads committed
# [records](99_glossary.ipynb#record).

# %%
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from cflkit import plots
from cflkit.reproduce import ledger, papers, records

sys.path.append(str(records.PROJECT / "notebooks" / "src"))  # where the tables of reports are made
from reports import figures, tables

plots.style()

# %% tags=["parameters"]
scale = "reduced"  # or "paper": which committed runs are shown

# %%
view = papers.lessons.Report.of(globals())

# %% [markdown]
# ## The runs
#
# Most systems of the paper have 25 clients with 500 images per class; four have 20 to 50 clients. The images are EMNIST's digits, KMNIST and Kuzushiji-49. The
# command `python -m cflkit grid run fedcref/tables --where scale paper` starts these runs. None of them is committed.
#
# Two committed runs have the whole training of the paper, one on MNIST and one on Fashion-MNIST. All others have less. The long run on MNIST, and all runs on Fashion-MNIST and on letters, have sections of their own. The other systems on MNIST have as many
# clients and images as those of the paper, about a fourth of its federated training, and at most six iterations. On
# KMNIST only the test images are used, a fifth of the paper's number, with three times as many epochs as in our runs on MNIST. We compare MNIST with
# EMNIST's digits, and KMNIST's test images with all of KMNIST.
#
# A *system* is a choice of data, first clustering, overlap and number of clients. The number of seeds per system
# decides what can be said about it.

# %%
known = records.committed()
past = [record for record in known if ledger.scale(record, "fedcref") == view.scale]
systems = dict(sorted(tables.by_scenario(past, "fedcref").items()))
SHORT = {"mnist": "MNIST", "emnist-digits": "EMNIST", "kmnist-test": "KMNIST test"}
SHORT |= {"fashion-mnist": "Fashion-MNIST", "emnist-letters": "letters"}
named = {}  # the systems in few words
for data, clustering, dirtiness, overlap, clients in systems:
    start = f"dirtiness {dirtiness:g}" if clustering == "dirty-uniform" else clustering.upper()
    name = f"{SHORT.get(data, data)}, {start}, overlap {overlap:g}, {clients} clients"
    named[data, clustering, dirtiness, overlap, clients] = name

# %% tags=["nbval-check-output"]
print(f"{len(past)} committed runs of {len(systems)} systems at the {view.scale} scale")
for seeds in sorted({len(runs) for runs in systems.values()}):
    print(f"\nwith {seeds} seed{'s' * (seeds > 1)}:")
    for system, runs in systems.items():
        if len(runs) == seeds:
            print(f"  {named[system]}")
if not past:
    print("So the figures about our runs are empty.")

# %% [markdown]
# A system with one seed shows what can happen, and not what usually happens. Here, the systems with 20, 30, 40 and 50 clients,
# with DEC, and with KMNIST's test images have one seed each.
#
# ## Accuracy: published and ours
#
# The next cell puts what is printed beside what was measured. The paper prints means
# over five runs and 95 % intervals. Ours are means over seeds, with a line from the smallest to the largest where there are three seeds.

# %%
cells = ledger.published().query("paper == 'fedcref'")
NEAREST = {"mnist": "emnist-digits", "kmnist-test": "kmnist"}
# Names of measures in the records, and the factor between the units
MEASURES = {"ACC end": ("accuracy", 1), "wrong associations, %": ("wrong", 100)}
MEASURES |= {"communities": ("communities", 1), "isolated end": ("isolated", 1)}
both = tables.beside(cells, systems, "fedcref", MEASURES, NEAREST)
both["name"] = both["system"].map(named)
ends = both[both["measure"] == "ACC end"]

# %% [markdown]
# In Figure 1, look at the rows with dirtiness 0, 0.3 and 0.5 first. Then look at the rows that differ in the number of
# clients alone. Our reference *Alone* has no counterpart in the paper.

# %% tags=["hide-input"]
methods = ("FedCRef", "Perfect associations", "Alone")
parts = [(name, "mean ACC at the end", ends[ends["method"] == name]) for name in methods]
looks = {"by": "name", "names": list(named.values()), "figsize": (8, 5)}
looks["published"] = "published (twice if two tables have the system)"
figure = figures.comparison([parts], **looks, sharex=True)
plots.show(
    figure,
    1,
    "Mean ACC of clients at the end: published values with their 95 % intervals, and our means with a line from the "
    "smallest to the largest seed.",
    "Dot plot with one row per system and three panels. Ours and the published values differ little for perfect associations on MNIST; for "
    "FedCRef ours lie above the published values on MNIST without overlap, a little below "
    "them with overlap, and below them on KMNIST where local clusters are dirty.",
)

# %% [markdown]
# The next cell compares the means, so that the text does not have to.

# %%
for name, rows in ends[ends["method"] == "FedCRef"].groupby("name"):
    gaps = " and ".join(f"{gap:+.3f}" for gap in rows["ours"] - rows["value"])
    print(f"{name:48s} ours minus theirs: {gaps}")

# %% [markdown]
# **At the reduced scale**, the order on MNIST is the paper's. The dirtier the first local clusters, the lower the end;
# perfect associations suffer least. Without overlap, FedCRef ends higher here than in the paper, most of all with a dirtiness of 0.5 (+0.19).
# With overlap it ends a little lower. We do not see the paper's decline with many clients. Two of the three runs with dirtiness 0.5 reach
# our limit of six iterations, so their values are not final.
#
# We name two of the possible causes, and neither was tested. Digits of MNIST may be easier than those of EMNIST. And there are
# fewer of them: the images of
# some classes run out, and are given out again (deviation 8). So some clients hold the same images, as with overlap. The next cell prints how many of
# the held images are given out again, if the overlap is 0. With 25 clients and 500 images per class on MNIST, it is at most 5 %.

# %% tags=["nbval-check-output"]
# The images of each class from which clients draw
POOL = {"mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]}
POOL |= {"kmnist-test": [800] * 10, "fashion-mnist": [6000] * 10, "emnist-letters": [4800] * 26}
shares = {}
without_overlap = {"overlap_fraction": 0.0, "clustering": "dirty-uniform"}
for record in known:
    own = record.parameters
    if record.paper == "fedcref" and records.has_parameters(record, without_overlap):
        system = own["dataset"], own["clients"], own["samples"], own["partition_seed"]
        shares[system] = tables.share_given_again(record, POOL[own["dataset"]])
for (data, clients, images), found in pd.Series(shares).groupby(level=[0, 1, 2]):
    each = ", ".join(f"{share:.0%}" for share in found)
    print(f"{SHORT[data]:13s} {clients} clients, {images} images per class: {each}")

# %% [markdown]
# On KMNIST's test images, FedCRef's ACC is about that of the paper if the first local clusters are clean, and lower if they are dirty. With
# perfect associations, all three systems end lower than in the paper. FedCRef also ends slightly below clients
# alone in each of them (one seed each). Even perfect associations end above clients alone only where half of the images are wrong at first.
#
# ## The graphs of associations
#
# The number of communities is the paper's main measure. There are ten classes, so ten is right. Figure 2 shows it beside
# the isolated local clusters and the wrong associations.

# %% tags=["hide-input"]
graph = {"communities": "communities", "isolated end": "isolated at the end"}
graph["wrong associations, %"] = "wrong associations, %"
by_measure = dict(list(both[both["method"] == "FedCRef"].groupby("measure")))
parts = [("", label, by_measure.get(name, both)) for name, label in graph.items()]
figure = figures.comparison([parts], **looks)
figure.axes[0].axvline(10, color="grey", linestyle=":", linewidth=1)
plots.show(
    figure,
    2,
    "The graph at the end: published values with their 95 % intervals, and our means with a line from the smallest to the "
    "largest seed. Dotted: the number of classes.",
    "Dot plot with one row per system and three panels. On MNIST ours has ten to thirteen communities, few wrong associations, and mostly "
    "fewer isolated local clusters than the paper; on KMNIST it has four to seven communities and more isolated ones.",
)

# %% [markdown]
# **At the reduced scale**, we find ten communities or more on MNIST, so some classes may have two. On KMNIST
# there are only four to seven communities: some of them mix classes, one or two classes have none, and many local clusters stay isolated.
#
# With overlap, fewer local clusters are isolated on average, but not in every seed. In the paper, their number also falls from an overlap of 0.3 to 0.5,
# and ACC gains 0.07 from 0 to 0.5. We see neither. With 20, 30 and 50 clients there are fewer isolated clusters than with 25, and with 40 more. Each of these is one seed.
#
# The paper's Table 2 also clusters all images in one place with DEC. The next cell prints our number beside it.

# %%
for _, rows in both.query("method == 'Global DEC' and seeds > 0").groupby("name"):
    by = rows.set_index("measure")
    end, clusters = by.loc[["ACC end"]], by.loc["communities", "ours"]
    told = f"ACC {end['ours'].iloc[0]:.2f} with K = {clusters:.0f}"
    print(f"Global DEC, {end['seeds'].iloc[0]} seed: {told}; the paper: {end['value'].tolist()}")

# %% [markdown]
# In the reduced run, DEC has a tenth of the default steps. On the few classes of one client, as many steps give first clusters with a mean ACC of 0.84. On all ten
# classes at once they give 0.55. We have not tried more steps, so we do not know whether they are the reason.
#
# ## The paper against itself
#
# One system stands in two pairs of tables: 25 clients, dirtiness 0.3, no overlap, EMNIST's digits. Tables 3 and 4 vary
# the dirtiness, and Tables 5 and 6 vary the overlap. Both are means over five runs (section 5.3). Do they agree?

# %% tags=["nbval-check-output"]
twice = cells[(cells["dataset"] == "emnist-digits") & (cells["clients"] == 25)]
twice = twice[(twice["dirtiness"] == 0.3) & (twice["overlap_fraction"] == 0)]
for (method, measure), rows in twice.groupby(["method", "measure"]):
    deviations = [f" ± {value:g}" if value > 0 else "" for value in rows["deviation"]]
    found = "Table " + rows["table"] + ": " + rows["value"].map("{:g}".format) + deviations
    print(f"{method + ', ' + measure:34s}", "   ".join(found))

# %% [markdown]
# They do not. FedCRef's ACC is 0.879 in Table 4, and 0.903 in Table 6. The wrong associations are 5.1 % in Table 3,
# and 0.0 in Table 5. The accuracies lie within each other's intervals, so chance can explain them. For the wrong associations,
# chance is unlikely: 5.1 ± 1.7, in per cent, against 0.0, which is printed without an interval or a unit. The paper does not
# explain it.
#
# The number of runs is not clear either. Table 5 prints 8.429 isolated local clusters and 1.333. No mean of five whole numbers has these decimals: the first fits seven
# runs (59/7), and the second three or six. In Table 7, some wrong associations are such fractions, too: the 8.714 of 50 clients is 61/7. So these numbers may be means of counts, and not per cent.
#
# The two means that the paper prints for this system differ by 0.024 in ACC. That is more than the 0.01 that our
# [ledger](90_ledger.ipynb) allows a mean for "reproduced".
#
# ## How dirty may the first local clusters be?
#
# Figure 3 shows all seeds on MNIST with 25 clients and no overlap. Look at what happens *after* the first iteration. A
# run that has ended keeps its last value.

# %%
here = [s for s in systems if s[1] == "dirty-uniform" and s[3:] == (0.0, 25)]
here = [system for system in here if system[0] in ("mnist", "emnist-digits")]
by_dirtiness = {f"dirtiness {system[2]:g}": systems[system] for system in here}

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, sharex=True)
for ax, method in zip(axes, ("FedCRef", "Alone"), strict=True):
    table = tables.by_seed(by_dirtiness, method, "accuracy")
    plots.over_rounds([table], "accuracy", "mean ACC of clients", ax)
    ax.set(xlabel="iteration", title=method)
    ax.label_outer()
if here:
    axes[1].legend()
plots.show(
    figure,
    3,
    "Mean ACC over iterations on MNIST with 25 clients: mean over seeds, and band from the smallest to the largest.",
    "Two line charts with three lines each. With FedCRef the lines for dirtiness 0.3 and 0.5 rise in the first iteration and go on rising; "
    "alone they rise in the first iteration and fall slowly afterwards. The line for dirtiness 0 falls a little in both.",
)

# %% [markdown]
# **At the reduced scale**, the ACC of clean local clusters can only fall. It falls less with FedCRef than alone. If the first local clusters are dirty,
# the mean ACC rises in the first iteration in both cases. Then clients alone lose part of the gain, and FedCRef gains more. One explanation is
# that networks of clients alone learn the mixtures that they made themselves. No experiment here tests it.
#
# With a dirtiness of 0.5, the mean ACC of FedCRef still rises in the sixth iteration, which is our limit. Figure 4 shows the graphs of one such
# run.

# %%
of_mnist = [run for run in past if run.parameters["dataset"] in ("mnist", "emnist-digits")]
dirtiest = max(of_mnist, key=lambda run: run.parameters["dirtiness"], default=None)
graphs = pd.DataFrame()
if dirtiest:
    graphs = dirtiest.by_method["FedCRef"].query("round > 0")
    shares = [f"{share:.0%}" for share in graphs["wrong"]]
    print(f"{dirtiest.id}\nwrong associations, iteration by iteration:", *shares)

# %% [markdown]
# Figure 4 has four of these iterations.

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 4, figsize=(8, 3.1))
for ax in axes:
    ax.set_axis_off()
places = np.unique(np.linspace(0, max(len(graphs) - 1, 0), 4).round().astype(int))
for (_, row), ax in zip(graphs.iloc[places[: len(graphs)]].iterrows(), axes, strict=False):
    plots.associations(row, ax)
    ax.set_title(f"iteration {row['round']}\n{row['communities']} communities", fontsize=9)
plots.associations_key(figure)
plots.show(
    figure,
    4,
    "Associations of a run that begins with a dirtiness of 0.5, in four of its iterations.",
    "Four graphs of ten rings of dots, one ring per class. In the first, thick black lines, which are wrong, join many "
    "rings; later only few are left.",
)

# %% [markdown]
# **At the reduced scale**, wrong associations join several classes into one community at first. Later their share is smaller,
# but it does not fall in every iteration. Perhaps the model of a mixed community fits few images best, so that
# the pure ones win. We have not counted it.
#
# ## Overlap and number of clients, iteration by iteration
#
# The paper's Figures 6 and 7 vary the overlap and the number of clients. Figure 5 draws the same trends from our runs on
# MNIST with dirtiness 0.3. Communities and isolated local clusters exist from the first iteration on. A line ends
# when all its runs have ended; until then, a run that has ended keeps its last value. Look at the number of seeds before
# you compare two lines.

# %%
dirty = {s: systems[s] for s in systems if s[:3] == ("mnist", "dirty-uniform", 0.3)}
rows_of = {
    "overlap": {f"{s[3]:g}": runs for s, runs in dirty.items() if s[4] == 25},
    "number of clients": {str(s[4]): runs for s, runs in dirty.items() if s[3] == 0},
}
trends = {"accuracy": ("mean ACC", 0), "communities": ("communities", 1)}
trends |= {"isolated": ("isolated clusters", 1)}
place = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": 8, "title_fontsize": 8}

# %% tags=["hide-input"]
figure, axes = plt.subplots(2, 3, figsize=(8, 5), sharex=True)
for row, (what, groups) in zip(axes, rows_of.items(), strict=True):
    for ax, (measure, (label, since)) in zip(row, trends.items(), strict=True):
        table = tables.by_seed(groups, "FedCRef", measure, since)
        plots.over_rounds([table], measure, label, ax).set_xlabel("")
    ax.legend(*ax.get_legend_handles_labels(), title=what, **place)
plt.setp(axes[-1], xlabel="iteration")
plots.show(
    figure,
    5,
    "FedCRef over iterations. Upper row: 25 clients with overlap 0, 0.3 and 0.5. Lower row: no overlap, 20 to 50 clients. Lines are "
    "means over seeds, and bands reach from the smallest to the largest.",
    "Six line charts of mean ACC, communities and isolated local clusters over iterations. In all systems ACC rises in "
    "the first iteration, and changes by less than 0.1 afterwards.",
)

# %% [markdown]
# These are the printed numbers beside ours, for FedCRef without overlap:

# %%
for name, rows in ends[ends["method"] == "FedCRef"].groupby("system"):
    if name[:4] == ("mnist", "dirty-uniform", 0.3, 0.0):
        seeds, mean = len(systems[name]), rows["ours"].iloc[0]
        print(f"{name[4]} clients: ACC {mean:.2f} ({seeds} seed{'s' * (seeds > 1)}); ", end="")
        print(f"the paper: {rows['value'].tolist()}")

# %% [markdown]
# In the paper, ACC is lowest with the most clients. **At the reduced scale** no such trend can be seen. Our systems with
# 20, 30, 40 and 50 clients have one seed each. The bands of 25 clients show how much a seed can move the numbers.
#
# ## How many images, and what does overlap do?
#
# Two more differences from the paper concern the number of images. A client has a fifth of the paper's
# 500 images per class of KMNIST. And in the authors' code, overlap gives a client more images, about 1.8 times as many
# at 0.5; ours gives as many as without (deviation 8). The next table has one system, dirtiness 0.3 and seed 0, with
# other numbers $S$ of images per class. With $S = 100$ there are more epochs, too.

# %%
FULL = {"rounds": 15, "federated_epochs": 7}  # the paper's federated training
CODE = {"theta": 0.25, "tau": 0.85, "normalisation": "min-max", "match": "first", "stop": "code"}
of_system = [
    run
    for run in known
    if records.has_parameters(run, {"dirtiness": 0.3, "clients": 25, "seed": 0})
]
OTHERS = ("fashion-mnist", "emnist-letters")  # which have a section of their own
same_system = [run for run in of_system if not records.has_parameters(run, FULL)]
same_system = [run for run in same_system if run.parameters["dataset"] not in OTHERS]
by_images = {}
for run in (run for run in same_system if records.has_parameters(run, CODE)):
    key = tuple(run.parameters[name] for name in ("dataset", "overlap_fraction", "samples"))
    by_images[key] = {name: found["accuracy"] for name, found in run.summary.items()}
    by_images[key]["isolated"] = run.summary["FedCRef"]["isolated"]

# %% tags=["nbval-check-output"]
images_table = pd.DataFrame(by_images).T.sort_index().astype({"isolated": int})
print(images_table.rename_axis(["data", "overlap", "S"]).round(3).to_string())

# %% [markdown]
# What this shows, with one seed per line:
#
# - With $S = 900$ and overlap 0.5, all three end higher than with $S = 500$ and overlap 0.5.
# - With $S = 500$, overlap alone leaves fewer local clusters isolated, and hardly changes the ACC.
# - With $S = 100$, FedCRef and perfect associations end lower on MNIST, with many isolated local clusters. Clients alone end a little higher, with their
#   additional epochs. The federation still adds to what clients reach alone. On KMNIST it does not.
# - With $S = 900$ and *no* overlap, perfect associations and clients alone end higher than with $S = 500$, too. FedCRef does not. Its ACC is
#   a little lower, although fewer local clusters are isolated and, by its record, no association is wrong at the end. So a small number of isolated local clusters does not mean that FedCRef
#   comes close to perfect associations. But this line does not separate more images from overlap: 35 % of its images are given out a second time.
#
# We did not test why KMNIST gains nothing. Its classes have characters of several shapes, so they may need more images.
#
# <a id="which-choice-moves-the-result"></a>
# ## Which choice moves the result?
#
# Paper and code differ in some choices (deviations 1 to 3). The first line below has the choices of the code (but see deviation 3 on its matches), on MNIST
# with 25 clients, dirtiness 0.3, no overlap, and seed 0. The other lines name what they change. The column `isol. 1` has
# the isolated local clusters in iteration 1; the other columns are from the end of the run.

# %%
COLUMNS = {"iterations": "iter.", "communities": "comm.", "isolated": "isol.", "wrong": "wrong"}
COLUMNS |= {"accuracy": "ACC", "worst_accuracy": "worst"}
MNIST = {"dataset": "mnist", "samples": 500, "overlap_fraction": 0.0}
choices, first_graph = {}, {}
for run in (run for run in same_system if records.has_parameters(run, MNIST)):
    changed = [f"{n} {run.parameters[n]}" for n in CODE if run.parameters[n] != CODE[n]]
    choice = ", ".join(changed) or "as in the code"
    choices[choice] = {short: run.summary["FedCRef"][n] for n, short in COLUMNS.items()}
    first_graph[choice] = run.by_method["FedCRef"].set_index("round").loc[1, "isolated"]

# %% tags=["nbval-check-output"]
choices_table = pd.DataFrame(choices).T.sort_index(key=lambda index: index != "as in the code")
choices_table["isol. 1"] = pd.Series(first_graph)
print(choices_table.round(3).to_string())

# %% [markdown]
# With the paper's values, many more local clusters stay isolated at the end. That line changes four things at once. The
# line "theta 0.2" changes θ alone, and has the same numbers in every column. So in this seed, θ accounts for all of the
# difference. The mean ACC hardly changes, and the worst client's ACC is higher. With θ = 0.1, nearly all local clusters stay isolated, and the ACC falls by 0.17.
#
# With unscaled differences and the best match, fewer local clusters are isolated than with the code's choices. That line
# changes three things at once. The mean ACC is higher by 0.01, which is less than the difference between seeds in Figure 1. The ACC of the worst client
# is higher by more than 0.1. All this is one seed.
#
# ## What does the paper's training do?
#
# The runs above with 500 images per class have about a fourth of the paper's federated training. One more run has the whole training: 15 rounds of 7 epochs,
# and at most 30 iterations. It uses MNIST in place of EMNIST's digits, with dirtiness 0.3, no overlap, 25 clients and seed 0. The
# command `python -m cflkit grid run fedcref/choices --where choice full-training` makes it. It is not EMNIST, so it is in
# no table of the ledger. The next cell prints it beside the run with less training, and beside the numbers printed for EMNIST.

# %% tags=["nbval-check-output"]
for run in sorted(of_system, key=lambda run: run.parameters["rounds"]):
    if records.has_parameters(run, MNIST | CODE):
        own = run.parameters
        print(f"{own['rounds']} rounds of {own['federated_epochs']} epochs")
        lines = pd.DataFrame(run.summary).T.rename(columns=COLUMNS)[list(COLUMNS.values())]
        print(lines.round(3).to_string(), "\n")
print("printed for EMNIST's digits")
wanted = [("FedCRef", measure) for measure in (*graph, "ACC end")]
for method, measure in (*wanted, ("Perfect associations", "ACC end")):
    values = twice.query("method == @method and measure == @measure")["value"]
    print(f"{method}, {measure}:", " and ".join(f"{value:g}" for value in values))

# %% [markdown]
# The paper's training raises what perfect associations reach, and raises FedCRef by about half as much. So the gap between them doubles. Both have the same training in each iteration and differ only in their associations, so what FedCRef lacks
# must come from these. A few of them join two classes, where none did with less
# training, and about as many local clusters are isolated as before. Ten classes have twelve communities. FedCRef's worst client ends lower than with less training, and that of perfect associations
# higher. The printed numbers have the same order. There, too,
# FedCRef's accuracy is below that of perfect associations, local clusters stay isolated, and one of the two tables has wrong associations. This is one seed.
#
# <a id="other-images"></a>
# ## And on other images?
#
# Fashion-MNIST has ten classes as well, but some of them resemble one another: shirts, pullovers and coats. EMNIST's letters have 26 classes. The next cell has the
# same system on these images, with the settings of the authors' code: 25 clients, dirtiness 0.3, and no
# overlap. On Fashion-MNIST it has a smaller threshold, too. One run has the paper's training, and the others less. The command `python -m cflkit grid run fedcref/other-data` makes them.

# %% tags=["nbval-check-output"]
others = [run for run in known if run.paper == "fedcref" and run.parameters["dataset"] in OTHERS]
ORDER = ("dataset", "rounds", "theta", "seed")
for run in sorted(others, key=lambda run: [run.parameters[name] for name in ORDER]):
    own = run.parameters
    training = f"{own['rounds']} rounds of {own['federated_epochs']} epochs"
    print(f"{own['dataset']}, {training}, θ = {own['theta']}, seed {own['seed']}")
    rows = run.by_method["FedCRef"].set_index("round")
    print(rows[["communities", "isolated", "wrong", "accuracy"]].round(3).to_string())
    ends = {name: f"{found['accuracy']:.2f}" for name, found in run.summary.items()}
    print("ACC at the end:", ", ".join(f"{name} {end}" for name, end in ends.items()), "\n")

# %% [markdown]
# **With the threshold of the authors' code, θ = 0.25, FedCRef fails on Fashion-MNIST** in all four runs. With the paper's training (seed 0) it begins with an ACC of 0.70 and ends at 0.43, where clients alone end at 0.71, and perfect associations at
# 0.91. With a fourth of the training and three seeds, it ends at 0.64 to 0.68, where clients alone end at 0.69 to 0.72, and perfect associations at 0.79 to 0.82. All runs of a seed have the same images, and all methods of a run have the same
# training, so the associations are at fault. In the first iteration, the ten classes are in two communities, and a fifth to a third of the associations join two classes.
#
# **With θ = 0.1 it gains about as much as perfect associations.** With a fourth of the training and three seeds, it ends at 0.79 to 0.83, where clients alone end at 0.69 to 0.72, and perfect associations at 0.78 to 0.83. In no iteration do more than 6 % of
# the associations join two classes. The price is that 33 to 53 of about 95 local clusters are isolated at the end. We chose 0.1 before these runs, and tried no other value there.
#
# **But neither of the two values suits both data sets.** In the [table of choices](#which-choice-moves-the-result) above, the line with θ = 0.1 is of MNIST. There, 88 of 95 local clusters stay isolated. FedCRef ends at 0.77, clients alone end at 0.79, and
# FedCRef with θ = 0.25 ends at 0.94 (one seed). The paper sets its thresholds "after a series of validation runs" (section 5.2), and calls the choice "typically empirical" (section 4.2). It does not say how a federation without labels could validate them. On its small images, [Appendix 06b](06b_fedcref_controls.ipynb) needs another value again, θ = 0.45.
#
# **On the letters it gains much, and less than it could** (θ = 0.25 alone was tried). With a fourth of the training, it ends at 0.81, where clients alone end at 0.72, and perfect associations at 0.85. It has about as many communities as there
# are classes, although 13 % of its first associations, and 20 % of its last ones, join two classes.
#
# In most runs on MNIST that have several iterations, the share of wrong associations falls after the first one, and the ACC rises. In the five runs with θ = 0.25 here, the ACC falls after the first iteration, and at the end about a fifth of the associations or more are wrong. In none of these runs does a later iteration
# have the highest ACC: the start or the first iteration has it.
#
# <a id="deviations-from-the-paper"></a>
# ## Deviations from the paper
#
# 1. **Values** (section 5.2). The paper has θ = 0.2 and τ = 0.8. Its code has 0.25 and 0.85, and so have our parameter
#    files. [Appendix 06b](06b_fedcref_controls.ipynb) has other values, epochs and rounds, for its small images. *Evidence:* the last
#    line of the [table of choices](#which-choice-moves-the-result); Figure 4 of the appendix.
# 2. **Stopping** (section 4.5). The paper stops when communities and isolated local clusters change by at most 10 %. The
#    code allows 10 and 15 %, and stops after ten refinements. The parameter `stop` chooses. Both of ours also stop when
#    no client is active, as the paper's text says. The code does not. The condition in line 5 of Algorithm 1 would even
#    go on while the graph varies *or* a client is active.
# 3. **Matches** (Algorithm 1, lines 10 to 16). The paper associates all pairs that agree. For each local
#    cluster, its code takes the first agreeing local cluster of each client with a higher number. Where we take one
#    match, each local cluster must be the other's first (or best) match. This keeps fewer associations than the code does, so our `first` is not exactly the authors'. The code compares an interpolated
#    percentile with `<`; ours counts as equation 2 says. *Evidence:* the line "match all" above.
# 4. **Resting clients** (section 4.5) keep networks that were trained on their last but one local clusters, as in
#    Algorithm 1. We therefore rename new clusters after the old ones that they match, so that each keeps the network
#    trained on most of its images. A client whose number of clusters changed trains once more. Without the renaming,
#    networks and clusters are mixed up.
# 5. **Wrong associations** (section 5.3) are edges between local clusters of two classes, as in the code. The text
#    speaks of local clusters in the wrong group.
# 6. **A local cluster may vanish** when no image is left for it; Algorithm 2 does not say what happens then. The client
#    has one cluster less until it refines again. What is left after $K$ clusters goes to the best of the selected
#    models, as in the paper. The code sorts it in a second pass that can mix up the numbers.
# 7. **Training** (section 5.2). We leave out the code's early stopping of local training, and its limit of thirty members
#    per community. We also leave out the two local epochs of its first federated round. Adam starts again in each
#    federated round.
# 8. **Overlap** (section 5.2). Clients share a fraction of a class and hold $S$ images of it, whatever the fraction $p$.
#    In the code, a client's part of the class grows with it, for $n$ holders as $n / (n + p - np)$. A class of MNIST
#    runs out sooner than one of EMNIST, and its images are then given out again. Some images are
#    therefore held twice although the overlap is 0. *Evidence:* the shares printed under "Accuracy: published and ours".
# 9. **DEC** (section 5.2) is trained by Adam, with fewer steps. Our stopping rule compares the share of labels that
#    changed with the tolerance. The authors' code compares the share that did not.
# 10. **Data and amount** (section 5.1). MNIST stands in for EMNIST's digits, and KMNIST's test images for KMNIST.
#     Kuzushiji-49 has not been run. There are one or three seeds where the paper speaks of five runs. *Evidence:* the list of runs
#     at the top.
#
# ## References
#
# - M. Nardi, L. Valerio, A. Passarella: Federated clustering: an unsupervised cluster-wise training for decentralized
#   data distributions. arXiv 2408.10664, 2024.

# %% [markdown]
# **Previous:** [95 Report: EMD-CFL](95_report_emd_cfl.ipynb) · **Next:**
# [97 Report: explanations](97_report_explanations.ipynb) · [Lesson 06](06_fedcref.ipynb) ·
# [Glossary](99_glossary.ipynb)
