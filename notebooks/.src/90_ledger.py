# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The ledger: every published number beside ours
#
# **Question.** A paper prints a table. Which of its numbers can be obtained again when somebody else runs the methods, and
# where they cannot, is it the run, the protocol or the number?
#
# **You will** see cell by cell what has been run, follow any scenario to its runs and their command, and meet the
# numbers that are not what their column says.
#
# **Before this:** `03_ocfl_temperature`, `04_sattler_and_briggs`.
# **Minutes on two cores:** 0.5
#
# **Papers.** Table I of M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustered Federated Learning*, IEEE BigData 2024
# (`ocfl`), Tables 1 and 2 of its extended version (`ocfl-extended`) and the scores behind its Figures 6 to 8 and 17
# (`ocfl-explanations`), and the tables of D. Zhang, F. Toni, M. Williams,
# *Clustered Federated Learning via Embedding Distributions*, 2025 (`emd-cfl`; its Tables 2 and 3 are parts of 7 and 8); and those of
# M. Nardi, L. Valerio, A. Passarella, *Federated Clustering: An Unsupervised Cluster-Wise Training for Decentralized Data
# Distributions*, 2024 (`fedcref`).

# %%
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML, display
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from cflkit import ledger, papers, plots, records
from cflkit.papers.base import SCORES

plots.style()

# %% [markdown]
# ## Parameters
#
# The paper whose tables are drawn. Nothing trains here: the notebook reads `data/published` and `data/results`.

# %% tags=["parameters"]
paper = "ocfl-extended"  # or "ocfl": the first paper; "ocfl-explanations", "emd-cfl", "fedcref"

# %% tags=["nbval-check-output"]
view = papers.lessons.LedgerView.of(globals())
book = ledger.ledger()
print(book.groupby(["paper", "table"]).size().to_string())

# %% [markdown]
# ## When is a number reproduced?
#
# A published number is one run. Ours is a mean over seeds, with the interval from the smallest to the largest (with a
# single seed, that one number). A score is
#
# - **reproduced** if the published value lies in our interval, or within 0.02 of our mean;
# - **close** if within 0.05 of our mean;
# - **not reproduced** otherwise, and **not run** where nobody has.
#
# A *round* (Table 2) is reproduced if the published one lies in our interval, and close if it is within one round of our
# mean. A *dash* in a table of scores says that all clients stayed one cluster from the first round to the last: it is
# reproduced if ours did so in every seed, and one cluster reproduces nothing but a dash. (Table 2 may print a round for the
# same run, in which the method looked and found one cluster.) A *percentage* (EMD-CFL, FedCRef) is reproduced within half a point,
# and close within two; a *number of clusters* (FedCRef) within one and within two.
#
# Mind what such a rule cannot see. The more our seeds scatter, the more numbers lie in the interval, so that "reproduced" beside a
# wide interval says little; and perfect clusters three rounds late count like wrong ones.
#
# Two scales are kept apart. Runs at the *paper's* scale use its network, data, learning rate and rounds. Runs at the
# *reduced* scale fit two cores; they say whether a mechanism works, and nothing about the paper's very numbers, however
# near they come. A run with any other parameters is an experiment of its own and counts for neither. (The first
# paper's Table I holds again what the extended paper's Table 1 has of MNIST, Fashion-MNIST and CIFAR-10, so the same runs
# answer both, and the lines must not be added.)

# %%
print(ledger.counts(book).to_string())
far = (book["reduced_ours"] - book["value"]).abs() > SCORES[0] + 1e-9
wide = far & (book["reduced_status"] == "reproduced")
print(
    f"\nreproduced by the interval alone: {wide.groupby([book['paper'], book['table']]).sum().to_dict()}"
)

# %% [markdown]
# ## The tables at a glance
#
# Each row is a scenario that has been run. Every method has three numbers in the tables of scores, from left to right RAND,
# AMI and COM (what these really are comes below), and one in the table of clustering rounds. The other scenarios
# wait for a GPU: `python -m cflkit grid list ocfl/table-1` names their runs, and `grid run` runs them.

# %%
colours = dict(zip(ledger.STATUS, ["#66c2a5", "#ffd92f", "#e7708a"], strict=False))
marks = dict(zip(ledger.STATUS, ["✓", "≈", "✗"], strict=False))
scales = {"paper's scale": "", "reduced scale": "reduced_"}
scales = {s: p for s, p in scales.items() if (book[f"{p}status"] != "not run").any()}
shown = book[book["paper"] == view.paper]
some = shown[(shown[["status", "reduced_status"]] != "not run").any(axis=1)]
tables = list(some["table"].unique())
index = [name for name in papers.PAPERS[view.paper].scenario if some[name].notna().any()]


def statuses(table, prefix):
    """Numbers of the statuses, a row a scenario and a column a number."""
    rows = shown[(shown["table"] == table) & (shown[f"{prefix}status"] != "not run")]
    rows = rows.assign(code=rows[f"{prefix}status"].map(ledger.STATUS.index))
    codes = rows.pivot(index=index, columns=["method", "measure"], values="code")
    order = dict.fromkeys(zip(rows["method"], rows["measure"], strict=True))
    return codes[list(order)]


# %%
def draw(grid, ax):
    ax.imshow(grid, cmap=ListedColormap(list(colours.values())), vmin=0, vmax=2, aspect="auto")
    for (row, column), code in np.ndenumerate(grid.to_numpy()):
        ax.text(column, row, marks[ledger.STATUS[code]], ha="center", va="center", fontsize=8)
    names = grid.columns.get_level_values("method")
    width = len(names) / names.nunique()
    ticks = np.arange(names.nunique()) * width + (width - 1) / 2
    ax.set_xticks(ticks, names.unique(), rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(grid)), [", ".join(map(str, scenario)) for scenario in grid.index])
    ax.tick_params(labelsize=8, length=0)
    for border in np.arange(1, names.nunique()) * width - 0.5:
        ax.axvline(border, color="white", linewidth=1.5)
    for row in range(1, len(grid)):
        ax.axhline(row - 0.5, color="white", linewidth=0.4)


# %%
patches = [Patch(color=colour, label=f"{marks[name]} {name}") for name, colour in colours.items()]
for scale, prefix in scales.items():
    ratios = [len(statuses(table, prefix).columns) for table in tables]
    figure, axes = plt.subplots(
        1, len(tables), figsize=(9, 3.2), sharey=True, width_ratios=ratios, squeeze=False
    )
    for table, ax in zip(tables, axes[0], strict=True):
        draw(statuses(table, prefix), ax)
        ax.set_title(f"Table {table}, {scale}")
    figure.legend(handles=patches, loc="outside lower center", ncols=3)
    plt.show()

# %% [markdown]
# How did each method fare, in the reduced runs?

# %%
run = shown[shown["reduced_status"] != "not run"]
fared = run.groupby(["table", "method"])["reduced_status"].value_counts().unstack(fill_value=0)
print(fared.reindex(columns=ledger.STATUS[:3], fill_value=0).to_string())

# %% [markdown]
# Read it with some things in mind. In Table 2 Briggs' 21 is no finding: the round is set, in the authors' code as in ours.
# Sattler's number there is the round of its *last* split, and its thresholds are lengths of updates, which are another
# size in another network (notebook `04`). The variants of OCFL were runs of their own in the paper, unseeded, so that
# their rounds differ although the trigger does not know the clusterer; ours share all rounds before the split. And a
# method that clusters one round later than printed loses up to 0.02 of every score, for that is one round of fifty.
#
# ## Cell by cell
#
# What was run, in numbers: *published → ours*, the mean over seeds, in the colour of its status.


# %%
def text(row, prefix):
    digits = 0 if row["protocol"] == "clustering-round" else 2
    printed = "–" if pd.isna(row["value"]) else f"{row['value']:.{digits}f}"
    ours = row[f"{prefix}ours"]
    return f"{printed} → " + ("never" if pd.isna(ours) else f"{ours:.{max(digits, 1)}f}")


def coloured(table, prefix):
    rows = shown[(shown["table"] == table) & (shown[f"{prefix}status"] != "not run")]
    texts = [text(row, prefix) for _, row in rows.iterrows()]
    rows = rows.assign(text=texts, shade=rows[f"{prefix}status"].map(colours))
    pivot = partial(rows.pivot, index=index, columns=["method", "measure"])
    css = pivot(values="shade").map(lambda shade: f"background-color: {shade}60")
    style = pivot(values="text").style.apply(lambda _: css, axis=None)
    return style.set_uuid(f"t{table}{prefix}").set_table_attributes('style="font-size: 70%"')


# %%
for table in tables:
    for scale, prefix in scales.items():
        if (shown[shown["table"] == table][f"{prefix}status"] != "not run").any():
            display(HTML(f"<b>Table {table}, {scale}</b>"))
            display(coloured(table, prefix))

# %% [markdown]
# ## From a cell to its runs
#
# The runs behind these cells, a row a scenario: each number links to the record of that seed, and the command, from the
# project's folder, makes the first one again (the others differ in `seed` and `partition_seed`). "Saved" is the share of local
# trainings that the methods asked for but the lockstep did not run twice; minutes are a run's, on two cores of which
# other runs used one.

# %%
behind = {name for ids in [*shown["runs"], *shown["reduced_runs"]] for name in ids.split()}
scenarios = {}
for past in records.find():
    if past.id in behind:
        key = ledger.scenario_of(past, view.paper), ledger.scale(past, view.paper)
        scenarios.setdefault(key, []).append(past)

# %%
lines = []
for (scenario, scale), found in scenarios.items():
    links = " ".join(
        f'<a href="../data/results/{past.id}/record.json">{past.parameters["seed"]}</a>'
        for past in found
    )
    facts = pd.DataFrame([past.provenance for past in found])
    saved = 1 - facts["trainings_run"].sum() / facts["trainings_requested"].sum()
    lines.append(
        f"<tr><td>{' '.join(map(str, scenario))}</td><td>{scale}</td><td>{links}</td>"
        f"<td>{facts['minutes'].mean():.0f}</td><td>{saved:.0%}</td>"
        f"<td><code>{ledger.command(found[0], view.paper)}</code></td></tr>"
    )
names = ["scenario", "scale", "seeds", "minutes", "saved", "command"]
head = "".join(f"<th>{name}</th>" for name in names)
display(HTML(f'<table style="font-size: 75%"><tr>{head}</tr>{"".join(lines)}</table>'))

# %% [markdown]
# ## As published, and as meant
#
# Two methods rest on a wrong sign in the papers' code (notebook `04`): Briggs' clusterer takes distances and is given
# similarities; affinity propagation takes similarities and is given distances. Both ways are run: what is printed, what
# the slip gives us, and what the method gives with the sign corrected. The score is RAND. Clustering in round $r$ of 50
# gives at most $(51 - r)/50$: 0.6 for Briggs' round 21, 0.96 for round 3 and 0.98 for round 2.

# %%
slips = shown[(shown["measure"] == "RAND") & shown["reduced_intended"].notna()]
slips = slips.rename(columns={"reduced_ours": "with the slip", "reduced_intended": "as meant"})
columns = ["value", "with the slip", "as meant"]
texts = slips[columns].map(lambda value: "–" if pd.isna(value) else f"{value:.2f}")
slips = pd.concat([slips[["method", *index]], texts.rename(columns={"value": "published"})], axis=1)
print(slips.sort_values(["method", *index]).to_string(index=False))

# %% [markdown]
# ## Numbers that are not what their column says
#
# The authors archived the clusters of every round, so the tables can be computed again without training anything. Done by
# the columns' names, many numbers differ. They are all obtained under four rules, which `cflkit.papers.ocfl` keeps
# apart from the right measures: RAND is the *adjusted* Rand index; COM is **homogeneity** (completeness called with its arguments exchanged);
# AMI in the rows of OCFL-HDB is the **ARI** again; and everything is averaged over rounds 1 to 50, rounds before the
# clustering included and rounds after the fiftieth left out (their runs on CIFAR-10 have 80, on MedMNIST 75). In numbers, of
# those that can be read in our copy and whose run is archived:

# %% tags=["nbval-check-output"]
true = pd.read_csv(ledger.PUBLISHED / "ocfl-extended_corrected-table-1.csv")
cells = ledger.published().query("paper == 'ocfl-extended' and table == '1'")
printed = cells.pivot(index=[*papers.ocfl.SCENARIO, "method"], columns="measure", values="value")
beside = true.merge(printed.reset_index(), on=[*papers.ocfl.SCENARIO, "method"])
legible = cells[cells["source"] == "printed"]
legible = legible.merge(true.drop_duplicates([*papers.ocfl.SCENARIO, "method"], keep="first"))
by_rule = {"mean-50-ari": "ari", "mean-50-ami": "ami", "mean-50-homogeneity": "homogeneity"}
by_name = {"RAND": "ari", "AMI": "ami", "COM": "completeness"}
for rule, column in (("by name (RAND adjusted)", by_name), ("by the four rules", by_rule)):
    key = legible["measure" if column is by_name else "protocol"].map(column)
    ours = np.array([row[name] for (_, row), name in zip(legible.iterrows(), key, strict=True)])
    agree = np.abs(ours - legible["value"].fillna(0)) <= 0.005 + 1e-4
    print(f"{rule:24s} {agree.sum()} of {len(legible)} agree")

# %% [markdown]
# What the measures themselves say, beside the printed numbers (`truth` is the number of clients in each true cluster):
# first the AMI of OCFL-HDB, where the two differ by more than 0.02. (BloodMNIST imbalanced stands there twice: see the end
# of this section.)

# %% tags=["nbval-check-output"]
hdb = beside[(beside["method"] == "OCFL-HDB") & ((beside["AMI"] - beside["ami"]).abs() > 0.02)]
columns = [*papers.ocfl.SCENARIO, "truth", "AMI", "ami"]
print(
    hdb[columns]
    .rename(columns={"AMI": "printed AMI", "ami": "AMI"})
    .round(2)
    .to_string(index=False)
)

# %% [markdown]
# Where HDBSCAN is imperfect its true AMI is mostly higher than printed. Now COM. Means over rounds mix two things, for
# before clustering there is one cluster, of completeness 1 (it separates nobody) and homogeneity 0. So look at the columns
# `last`, the last round alone: homogeneity rewards breaking clusters up, since a client alone is as homogeneous as can
# be; completeness asks the opposite, whether a true cluster stays together. Means over the scenarios of each method
# (printed dashes left out; their number first):

# %% tags=["nbval-check-output"]
twice = (beside["balance"] == "imbalanced") & (beside["truth"] == "10/10/10")  # see below
com = beside[beside["COM"].notna() & ~twice]
com = com.rename(columns={"COM": "printed COM"}).groupby("method")
columns = ["printed COM", "completeness", "last_homogeneity", "last_completeness"]
print(com[columns].mean().round(2).assign(scenarios=com.size()).to_string())

# %% [markdown]
# Last, a scenario that was scored against the
# wrong truth: BloodMNIST, overlapping, imbalanced, 30 clients. By its name it has 7, 14 and 9 clients a cluster, and so it
# was scored; the archived partition has 10, 10 and 10.

# %% tags=["nbval-check-output"]
blood = beside[(beside["dataset"] == "bloodmnist") & (beside["clients"] == 30)]
blood = blood[(blood["overlap"] == "overlapping") & (blood["balance"] == "imbalanced")]
wide = blood.pivot(index="method", columns="truth", values=["ari", "last_ari"])
wide.columns = [
    f"{'last' if name == 'last_ari' else 'mean'} ARI, {truth}" for name, truth in wide.columns
]
wide.insert(0, "printed RAND", blood.groupby("method")["RAND"].first())
print(wide.round(2).to_string())

# %% [markdown]
# Against the truth, k-means and mean shift did much better than printed.
#
# ## What we saw
#
# - What comes out again at the reduced scale, method by method, is counted above; nothing counts for the paper's scale
#   until a run has its parameters.
# - A slip can be reproduced as well as a result: with the wrong sign affinity propagation stays near the low scores that are
#   printed, and Briggs' method finds one cluster or scores at or below zero. With the sign corrected both score
#   several times higher.
# - A printed number can be a faithful result of a run and still not be what its column says. Keeping a protocol by its name,
#   apart from the measure, lets both be computed.
#
# ## Deviations
#
# 1. **Legibility.** Some numbers of Tables 1 and 2 of the extended paper cannot be read in our copy; they are computed from
#    the authors' archive by the same protocol and marked `archive` in `data/published`.
# 2. **The two papers differ** in a few cells of one method, whose runs for the first paper had names for 25 clusters only and lost
#    five clients (exercise 1).
# 3. **Intervals** run from the smallest to the largest of our seeds: three seeds carry no confidence interval worth the name.
#
# ## Exercises
#
# 1. Merge the two papers' cells in `ledger.published()` on scenario, method and measure, round both values to two digits, and
#    let two dashes count as equal. In how many cells do the papers differ, and whose are they?
# 2. Take each scenario of Table 1 in which OCFL-HDB is not reproduced. In the folder of its record, `rounds.csv` says: did it
#    cluster late, or wrongly?
# 3. By hand: fifteen clients, three true clusters of five, and a clustering in which everybody is alone from round 21 of 50
#    on. What do RAND, AMI and COM of the tables give, and what would true completeness? (Homogeneity is
#    $1 - H(\text{truth} \mid \text{found})/H(\text{truth})$, completeness the same with the two exchanged, and 1 where the
#    denominator is 0; ARI and AMI of clients all alone are 0.) Check with `from cflkit import metrics`.
#
# ## References
#
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024, and its extended version.
# - A. Rosenberg, J. Hirschberg: V-measure: a conditional entropy-based external cluster evaluation measure. EMNLP-CoNLL 2007.
# - N. X. Vinh, J. Epps, J. Bailey: Information theoretic measures for clusterings comparison. JMLR 11, 2010.
