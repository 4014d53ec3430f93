# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # When clients disagree: one model is a see-saw
#
# **Question.** Three groups of clients see different classes, and train one model together. What goes wrong?
#
# **Answer.** The one model does not settle. It works for one group in one round and for another group in the next, because each group pulls it towards its own classes. For the
# other groups, it then predicts classes that they do not even have.
#
# **You will**
#
# - make federations whose groups are known, as the papers do, and see who holds what,
# - watch one model swing between the groups, round by round,
# - compare it with one model per group,
# - find out why the clients' own test sets give accuracies that are too high.
#
# **Before this:** [01 Federated averaging](01_federated_averaging.ipynb).
#
# **Study minutes:** 11. **Minutes on two cores:** 0.5
#
# **Paper.** M. K. Zuziak, R. Pellungrini, S. Rinzivillo, *One-Shot Clustered Federated Learning* (OCFL), extended version,
# section 3.1, whose four scenarios make it possible to say afterwards whether a method has found the right groups.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from cflkit import datasets, methods, partition, plots
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.reproduce import claims, papers

plots.style()

# %% tags=["parameters"]
overlap = "nonoverlapping"  # whether groups share classes; or "overlapping"
clients = 15  # m, in three groups
draws = 120  # images that a client draws; repeated ones are dropped
rounds = 15  # of communication
lr = 0.1  # learning rate of the clients
seed = 0  # who gets which images, the initial model, and the batch orders

# %%
run = papers.lessons.ClientsDisagree.of(globals())
images = datasets.load("digits-8x8")

# %% [markdown]
# ## Who holds what
#
# A method that finds groups can only be tested where the groups are known. The OCFL papers therefore make them. Each group gets some of the classes, and its
# clients draw images of these classes. Two switches give four **scenarios**:
#
# - **overlap**: the groups have disjoint sets of classes, or they share some,
# - **balance**: all groups have the same number of clients and classes keep their frequencies, or both are uneven.
#
# All clients of a group draw from the same classes, and each group has its own set of classes. This is called **label skew**. How a class looks is the same for all
# ([05](05_emd_cfl.ipynb) has the other case).

# %%
scenarios = {
    (kind, balance): partition.ocfl(
        images, overlap=kind, balance=balance, clients=run.clients, draws=run.draws, seed=run.seed
    )[1]
    for kind in ("nonoverlapping", "overlapping")
    for balance in ("balanced", "imbalanced")
}
split = scenarios[run.overlap, "balanced"]
group_of = split.clusters

# %% tags=["hide-input"]
tables = {name: partition.class_counts(made, images.labels) for name, made in scenarios.items()}
most = max(int(table.max()) for table in tables.values())
figure, axes = plt.subplots(1, 4, figsize=(8, 3.1), sharey=True)
for ax, (name, table) in zip(axes, tables.items(), strict=True):
    plots.class_counts(table, scenarios[name].clusters, ax, vmax=most)
    ax.set_title("\n".join(name))
    ax.label_outer()
figure.colorbar(axes[0].images[0], ax=axes, label="training images", shrink=0.9)
plots.save(figure, "02_four_scenarios")
plots.show(
    figure,
    1,
    "**Four ways to make three groups.** Each row is a client, each column a class, and black lines separate the groups. Darker cells have more images; "
    "grey cells have none.",
    "Four matrices of clients and classes. Non-overlapping scenarios have one block of columns per group and grey beside "
    "it. In overlapping scenarios, the blocks of two groups share columns. In imbalanced ones, some columns are much darker.",
)

# %% [markdown]
# ## One model for three groups
#
# We train one model on all clients by federated averaging, on the balanced scenario whose groups share no class. It is the
# algorithm of [lesson 01](01_federated_averaging.ipynb), here with a small network of four convolutions. The loop below does what `simulation.run` does, and keeps the model's answers of every round.
#
# **Predict.** How far apart are the accuracies of the best and the worst served group in the last rounds?

# %%
training = LocalTraining(epochs=5, batch_size=16, lr=run.lr)
federation = Federation(images, split, "compact-cnn", training, seed=run.seed)
everyone = torch.arange(run.clients)


def accuracy_of_groups(method):
    """The mean accuracy of each group's clients, each on its own test images."""
    predicted = federation.predict(Jobs(method.models, method.labels, everyone))
    right = [(p.argmax(1) == federation.targets(c)).float() for c, p in enumerate(predicted)]
    own = np.array([each.mean().item() for each in right])
    return [own[group_of == group].mean() for group in range(3)]


# %%
def train(method):
    """Run a method; return its accuracies ``[rounds, 3]`` and its answers to all test images."""
    method.setup(federation.server, federation.initial())
    accuracy, answers, first = [], [], torch.zeros(1, dtype=torch.int64)
    for t in range(run.rounds):
        federation.converse(method.round(t), t)  # the server asks, the clients train and answer
        accuracy.append(accuracy_of_groups(method))
        jobs = Jobs(method.models, first, first)  # the first model, on test images of nobody
        central = federation.predict(jobs, "central")[0]
        answers.append(central.argmax(1).cpu().numpy())
    return np.array(accuracy), answers


shared, answers = train(methods.make("fedavg"))
separate, _ = train(methods.make("oracle", truth=split.truth))

# %% tags=["hide-input"]
truth = images.test_labels.numpy()
sets = [np.unique(images.labels[split.train[c]]) for c in (0, run.clients // 2, run.clients - 1)]


def frame(t):
    """Draw what the one model answers after a round, and how well it serves each group."""
    confusion = np.zeros((10, 10))
    np.add.at(confusion, (truth, answers[t]), 1)
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), width_ratios=(1.1, 1))
    axes[0].imshow(confusion / confusion.sum(axis=1, keepdims=True), cmap="YlGnBu", vmin=0, vmax=1)
    for block in sets[:-1]:
        axes[0].axhline(block[-1] + 0.5, color="black", linewidth=1)
        axes[0].axvline(block[-1] + 0.5, color="black", linewidth=1)
    axes[0].set(xlabel="answer", ylabel="true class", xticks=range(10), yticks=range(10))
    axes[0].set_title("what the one model answers", loc="left")
    figure.colorbar(axes[0].images[0], ax=axes[0], label="share of the row", shrink=0.9)
    for group, value in enumerate(shared[t]):
        axes[1].bar(group, value, color=plots.COLOURS[group])
        place, colour = (value - 0.07, "white") if value > 0.1 else (value + 0.02, "black")
        axes[1].text(group, place, f"{value:.2f}", ha="center", color=colour)
        axes[1].hlines(separate[t, group], group - 0.4, group + 0.4, color="black")
    best = int(shared[t].argmax())
    axes[1].set(ylim=(0, 1.1), xticks=range(3), xticklabels=[f"group {g}" for g in range(3)])
    axes[1].set_title(f"round {t + 1}: group {best} is served best", loc="left")
    axes[1].set_ylabel("accuracy")
    return figure


shown = range(max(0, run.rounds - 7), run.rounds)
gap, best = np.ptp(shared, axis=1), shared.argmax(axis=1)
plots.show_frames(
    [frame(t) for t in shown],
    [f"round {t + 1}" for t in shown],
    2,
    "**The see-saw.** Left: what the one model answers to test images of all classes; each row adds up to 1, and lines separate the groups' classes. Right: its accuracy for "
    "each group, with a black line for the model of this group when it trains without the others. Move the slider through the last seven rounds.",
    "A matrix of true classes and answers beside three bars. From round to round, other columns of the matrix are dark, and "
    "another bar is the highest; the black lines of the separate models stay near the top.",
    first=int(gap[shown.start :].argmax()),
)

# %% [markdown]
# In each of these rounds, the best and the worst served group are more than 0.5 apart. Look at the columns of the matrix. In some rounds a whole block is pale: the model hardly ever answers with a class of that group. Probably the mean of the three
# pulls is closer to one group's optimum in some rounds, and to another's in others. A compromise would need a model that keeps all ten classes apart, and no client trains for that.
#
# ## Round by round
#
# Figure 3 has all rounds. The *gap* is the accuracy of the group that is served best, minus that of the group that is served worst.

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.5, 3))
for group in range(3):
    look = {"color": plots.COLOURS[group], "marker": plots.MARKERS[group]}
    ax.plot(range(1, run.rounds + 1), shared[:, group], label=f"one model, group {group}", **look)
ax.plot(
    range(1, run.rounds + 1),
    separate.mean(axis=1),
    "k--",
    label="one model per group, mean of groups",
)
ax.set(xlabel="round", ylabel="accuracy, own test images", ylim=(0, 1.05))
ax.set_xticks(range(1, run.rounds + 1))
ax.set_title("The one model swings from group to group; a model per group settles", loc="left")
ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
plots.show(
    figure,
    3,
    "Accuracy of each group under the one model, and the mean accuracy if each group has a model of its own.",
    "Line chart with three zigzag lines, one per group, that cross each other again and again, nearly always below a dashed line "
    "that rises to nearly 1.",
)

# %% tags=["nbval-check-output"]
changes = int((np.diff(best) != 0).sum())
print(f"mean gap {gap.mean():.1f}; the group that is served best changes {changes} times")

# %% [markdown]
# Look at the first rounds, too: until round 8, the accuracy of group 0 is 0, and only the other two take turns. In the last rounds, groups 0 and 1 swing, while group 2 keeps more than half.

# %% [markdown]
# ## The clients' own test sets are too easy
#
# Thirty per cent of what a client holds becomes its **own test set**. In these scenarios, clients of a group draw from the same pool, and each splits what it has on its
# own. So an image in one client's test set may be a training image of another. How often?

# %% tags=["nbval-check-output"]
known = [
    np.isin(split.test[c], np.concatenate([split.train[k] for k in range(run.clients) if k != c]))
    for c in range(run.clients)
]
leaked = np.concatenate(known).mean()
print(f"test images that another client trains on: {leaked:.0%}")

# %% [markdown]
# > **An honest limit.** Such a test set makes every model that several clients trained look too good, but not the model of a client that trains alone. On the images that nobody trains on, a model
# > per group is only 0.4 to 2.4 percentage points better than a client alone in this scenario ([02b](02b_four_scenarios.ipynb#how-much-do-the-shared-images-flatter) measures it). And how badly one
# > model fails depends on the network and its training: with fewer local epochs and another network, FedAvg ends much higher.
#
# ## What we saw
#
# - The papers' groups differ in the classes that they see. Overlap and balance give four scenarios.
# - One model for such groups swings from round to round. One model per group settles.
# - The clients' own test sets can share images with other clients' training sets, so compare with a client alone.
#
# %% tags=["claims"]
claims.check(
    "02_when_clients_disagree",
    {
        "The best and the worst group are usually 0.3 or more apart, as a mean over rounds": gap.mean()
        >= 0.3,
        "The group that is served best changes three times or more": (np.diff(best) != 0).sum()
        >= 3,
        "One model per group ends 0.2 or more above one model for all": (
            separate[-5:].mean() - shared[-5:].mean() >= 0.2
        ),
        "A third or more of the own test images are training images of another client": leaked
        >= 1 / 3,
    },
)

# %% [markdown]
# ## Exercises
#
# The [exercises of this lesson](exercises/02_when_clients_disagree_exercises.ipynb) check your answers and give hints. To try yourself:
#
# 1. **Build.** Test each group's model on images that nobody trains on: those of the group's classes among the central test images (`images.test_images`, `images.test_labels`, and
#    `federation.predict(jobs, "central")`). By how much does the accuracy of one model per group fall?
# 2. **Break.** Set `overlap = "overlapping"`. Which group recovers, and which classes does it share?
# 3. **Explain.** Imagine that Figure 3 showed only the mean of the three coloured lines. Would you still see the see-saw? What would a paper that prints only the mean make you
#    believe?
#
# **Go deeper.** [02b](02b_four_scenarios.ipynb) has the draws, how far apart groups are, Dirichlet splits, five training seeds, and manifests.
#
# ## References
#
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustered federated learning. IEEE BigData 2024, and its extended version.
#
# **Previous:** [01 Federated averaging](01_federated_averaging.ipynb) · **Next:** [03 OCFL](03_ocfl_temperature.ipynb) · [Appendix](02b_four_scenarios.ipynb) · [Glossary](99_glossary.ipynb)
