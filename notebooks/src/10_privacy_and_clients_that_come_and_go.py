# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What an update gives away
#
# **Question.** The images stay with the clients, and only updates leave. What do these reveal, and what does it cost to hide it?
#
# **Answer.** An update tells which classes a client has. Noise can hide this, but the noise that destroys the clusters comes first: at that
# point the classes can still be read, and the mathematical promise of privacy is empty.
#
# **You will**
#
# - read the classes of a client from one update,
# - clip updates and add noise to them, and watch the star of updates dissolve,
# - compare what the noise costs FedAvg, OCFL, an oracle and clients that train alone,
# - explain with one formula why clusters go before models do.
#
# **Before this:** [03 When should the server split?](03_ocfl_temperature.ipynb)
#
# **Study minutes:** 14. **Minutes on two cores:** 0.7
#
# **Papers.** Zuziak et al. name privacy as an open question of *One-Shot Clustered Federated Learning* (IEEE BigData 2024, section V, and
# section 6.1 of the extended version). The experiments are ours.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

from cflkit import datasets, methods, partition, plots, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, Jobs, LocalTraining, Privacy
from cflkit.federation.privacy import epsilon
from cflkit.partition import shifts
from cflkit.reproduce import claims, papers

plots.style()

# %% [markdown]
# ## The clients of lesson 03, again
#
# Twenty clients turn their digits by 0, 90, 180 or 270 degrees, five by each angle. You may change these values.

# %% tags=["parameters"]
clients = 20  # m, five for each angle
samples = 40  # training and validation images per client
rounds = 10  # of communication
clip = 1.0  # C, the largest norm of an update that leaves a client
noises = [0.0, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4]  # σ, in units of C; the first is 0
seed = 0  # data, initial models, batch orders, noise

# %%
run = papers.lessons.UpdateGivesAway.of(globals())
digits = datasets.load("digits-8x8")
training = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)


def home(images, split):
    """Give these clients the lesson's network and training."""
    return Federation(images, split, "perceptron", training, seed=run.seed, engine="stacked")


def first_updates(federation):
    """Every client trains the initial model once."""
    theta, who = federation.initial(), torch.arange(federation.clients)
    return federation.train(Jobs(theta[None], torch.zeros_like(who), who), 0) - theta


# %% [markdown]
# ## A curious server reads labels
#
# OCFL sees nothing but updates. How much is that? For a moment we take nine other clients, in three groups with different
# classes, and look at ten numbers of an update: the changes of the output biases, one for each class.
#
# **Predict.** A client has images of few classes only. Which of its ten biases go up?

# %%
_, by_class = partition.ocfl(
    digits, overlap="nonoverlapping", balance="balanced", clients=9, draws=120, seed=run.seed
)
nine = home(digits, by_class)
held = np.array([np.isin(range(10), digits.labels[rows]) for rows in by_class.train])
place = nine.blueprint.layout["classifier.bias"]
biases = first_updates(nine)[:, place].numpy()

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 3, figsize=(8, 2.3), sharey=True)
for ax, client in zip(axes, (0, 3, 6), strict=True):
    for group, look in ((True, {"color": plots.COLOURS[0]}), (False, {"color": "0.75"})):
        classes = np.flatnonzero(held[client] == group)
        look["hatch"] = "//" if group else None
        ax.bar(classes, biases[client, classes], edgecolor="white", **look)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(xticks=range(10), xlabel="class", title=f"client {client}")
axes[0].set_ylabel("change of the bias")
figure.suptitle("The biases go up for the classes that a client has, and down for all others")
plots.show(
    figure,
    1,
    "The change of each class's output bias in one update of three clients. Blue and hatched: the client has images of this class.",
    "Three bar charts with one bar for each of ten classes. In each of them three or four hatched bars point up, and all grey "
    "bars point down.",
)

# %% tags=["nbval-check-output"]
exact = sum(np.array_equal(b > 0, own) for b, own in zip(biases, held, strict=True))
print(f"all classes read from the signs: {exact} of {len(held)} clients")

# %% [markdown]
# The reason is one line. For one image with the label $y$, the gradient of the loss $\ell$ with respect to the bias $b_c$ of class $c$ is
#
# $$\frac{\partial \ell}{\partial b_c} = p_c - \mathbb{1}[y = c],$$
#
# where $p_c$ is the predicted probability of the class. Training goes *against* the gradient, so the bias of a class goes up if the client has more of it
# than the model expects, and down if it has none. Zhao et al. (2020) read labels in this way, and then rebuild images.
#
# OCFL finds groups *because* updates tell about data. What helps the clusterer helps a curious server, too.
#
# ## Hiding an update
#
# The usual protection has two steps, which a client takes before it sends its update $u$. It **clips** the update: a longer
# one is shortened to the norm $C$. Then it adds random noise to each of the $P$ parameters, with the standard deviation $\sigma C$:
#
# $$\tilde u = u \cdot \min\Big(1, \frac{C}{\lVert u \rVert}\Big) + \sigma C z, \qquad z \sim \mathcal{N}(0, I_P) .$$
#
# In code:


# %%
def hide(update, clip, noise, z):
    """Clip an update [P], and add noise with the random numbers z [P]."""
    return update * min(1.0, clip / update.norm().item()) + noise * clip * z


# %% [markdown]
# This gives **differential privacy** (Dwork and Roth, 2014). Suppose that a client had entirely different images. Then any event that the
# server can see would be at most $e^{\varepsilon}$ times as probable as before, apart from a tiny probability, here $10^{-5}$.
# For $\varepsilon = 1$ this factor is 2.7. For $\varepsilon = 10$ it is 22,000, which promises hardly anything. Every round adds to $\varepsilon$.
#
# Now we run three methods for each noise. FedAvg has one model for all. OCFL searches for clusters. The **oracle** knows the true groups, so it tells us what the noise costs
# when nothing has to be found. A client that trains alone sends nothing, hence it needs no noise.

# %%
images, split = shifts.make(digits, "four", clients=run.clients, samples=run.samples, seed=run.seed)
federation, truth = home(images, split), split.clusters
alone = simulation.run({"alone": methods.make("local")}, federation, run.rounds, progress=False)

# %%
rows, updates = {}, {}
for noise in run.noises:
    noisy = federation.with_hooks(Privacy(run.clip, noise, run.seed))
    three = {
        "FedAvg": methods.make("fedavg"),
        "OCFL": methods.make("ocfl", clusterer="hdbscan"),
        "oracle": methods.make("oracle", truth=split.truth),
    }
    ends = simulation.run(three, noisy, run.rounds, progress=False).summary()
    rows[noise] = {name: end["accuracy"] for name, end in ends.items()} | {
        "ARI": ends["OCFL"]["ari"]
    }
    updates[noise] = first_updates(noisy)
table = pd.DataFrame(rows).T.assign(alone=alone.summary()["alone"]["accuracy"])

# %% [markdown]
# **Predict.** With more and more noise, what breaks first: the clusters that OCFL finds, or the models of the oracle?
#
# Move the slider of Figure 2. The [ARI](99_glossary.ipynb#ari) is 1 for the true groups.

# %% tags=["hide-input"]
LINES = {"oracle": 6, "OCFL": 2, "alone": 1, "FedAvg": 0}
quiet = updates[run.noises[0]].double().numpy()
quiet = quiet / np.linalg.norm(quiet, axis=1, keepdims=True)
# The plane in which the groups' mean updates differ most, without noise
means = np.stack([quiet[truth == group].mean(axis=0) for group in range(4)])
plane = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2][:2]
centre = plane @ means.mean(axis=0)
reach = 1.25 * np.abs(quiet @ plane.T - centre).max()
places = np.arange(len(run.noises))


def frame(step):
    """Draw one noise: the updates, their distances, and what the methods reach."""
    noise = run.noises[step]
    figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.6), width_ratios=(1, 0.95, 1.4))
    unit = torch.nn.functional.normalize(updates[noise].double(), dim=1).numpy()
    shared = unit.mean(axis=0) @ means.mean(axis=0) / np.square(means.mean(axis=0)).sum()
    for client, (x, y) in enumerate(unit @ plane.T - shared * centre):
        look = {"arrowstyle": "->", "color": plots.COLOURS[truth[client]]}
        axes[0].annotate("", (x, y), (0, 0), arrowprops=look)
    axes[0].set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
    axes[0].spines[:].set_visible(False)
    axes[0].set_title("first updates")
    plots.divergence(cosine_divergence(updates[noise]), truth, axes[1], vmax=1.2)
    axes[1].set(title="their distances", xlabel="", ylabel="", xticks=[], yticks=[])
    for name, number in LINES.items():
        look = {"color": plots.COLOURS[number], "marker": plots.MARKERS[number]}
        axes[2].plot(places, table[name], alpha=0.35, markersize=0, **look)
        axes[2].plot(step, table[name].iloc[step], markersize=8, label=name, **look)
    axes[2].set_xticks(places, [f"{other:g}" for other in run.noises], fontsize=8)
    axes[2].set(xlabel="noise σ", ylim=(0, 1), title="accuracy at the end")
    axes[2].legend(fontsize=7, loc="lower left")
    row = table.loc[noise]
    figure.suptitle(
        f"σ = {noise:g}: ARI {row['ARI']:.2f}, accuracy of OCFL {row['OCFL']:.2f}, "
        f"of the oracle {row['oracle']:.2f}"
    )
    return figure


budget = {noise: epsilon(noise, run.rounds) if noise else np.inf for noise in run.noises}
plots.show_frames(
    [frame(step) for step in range(len(run.noises))],
    [f"σ = {noise:g}, ε = {budget[noise]:,.0f}".replace("inf", "∞") for noise in run.noises],
    2,
    "**The clusters dissolve while the oracle hardly notices.** Left: the direction of each client's first update, coloured by its true "
    "group, in the plane in which the groups differ. Middle: the distance of each pair of clients, dark where they agree. "
    "Right: mean accuracy on own test images after the last round.",
    "Three panels for one noise. Arrows of four colours shrink to a point as the noise grows; four dark blocks in a matrix of 20 by 20 clients "
    "fade into one even colour; in the third panel OCFL's accuracy falls to FedAvg's, and the oracle's falls later.",
    name="10_noise",
)

# %% tags=["nbval-ignore-output"]
print(table[["ARI", "OCFL", "oracle", "FedAvg", "alone"]].round(2).to_string())

# %% [markdown]
# Compare the lines at the *same* noise, for a loss alone says nothing about clusters:
#
# - **OCFL** falls first. Without its clusters it is FedAvg, since HDBSCAN puts all clients together.
# - **The oracle** trains the same clusters with the same noise and keeps nearly all of its accuracy where OCFL has lost its groups. So the models bear this noise, but the *search* does not.
# - **FedAvg** also loses little at this noise, but it has less to lose: its one model was poor from the start.
# - **Alone** is a level line. With much noise even the oracle falls below it, and then nobody should join.
#
# ## Why the search is hurt first
#
# A model is a mean of five updates or more, and independent noise partly cancels in a mean. The clusterer compares *single* updates, where nothing
# cancels. Noise of the length $\sigma C\sqrt P$ points into directions that no update uses. So the arrows do not turn in Figure 2; they shrink.
#
# Let $\rho$ be the cosine of two updates of norm $C$. With noise it becomes about
#
# $$\rho' \approx \frac{\rho}{1 + \sigma^2 P}, \qquad \text{plus a random part of about } \frac{1}{\sqrt P}.$$
#
# Let $g$ be the gap: the mean cosine within groups minus that between them. The gap shrinks by the same factor, and the clusterer no longer sees it
# once it is as small as the random part:
#
# $$\sigma^* = \sqrt{\frac{g\sqrt P - 1}{P}} .$$

# %% tags=["nbval-check-output"]
cosine = 1 - cosine_divergence(updates[run.noises[0]])
same, pairs = truth[:, None] == truth, ~np.eye(run.clients, dtype=bool)
gap, P = cosine[same & pairs].mean() - cosine[~same].mean(), federation.parameters
limit = np.sqrt(max(gap * np.sqrt(P) - 1, 0) / P)
print(f"gap {gap:.2f}, {P:,} parameters: clusters survive up to about σ* = {limit:.3f}")

# %% [markdown]
# This is a rough guide. It looks at the first round only, and here HDBSCAN loses the groups a little earlier.
#
# ## Does this noise protect anything?
#
# There are two answers. The first is the promise: at $\sigma^*$, $\varepsilon$ is in the thousands, so nothing is promised. The second is the attack
# of Figure 1. We repeat it with noise. For each client we compare a class that it has with one that it has not:
# how often did the bias of the former rise more? Always is 1, and guessing is 0.5 (this is the AUC).

# %%
read = []
for noise in run.noises:
    seen = first_updates(nine.with_hooks(Privacy(run.clip, noise, run.seed)))[:, place].numpy()
    read.append(np.mean([roc_auc_score(own, b) for own, b in zip(held, seen, strict=True)]))

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.5, 3.1))
for number, (name, values) in enumerate(
    {"labels read (AUC)": read, "clusters found (ARI)": table["ARI"]}.items()
):
    look = {"color": plots.COLOURS[(5, 2)[number]], "marker": plots.MARKERS[number]}
    ax.plot(places, values, label=name, **look)
ax.axhline(0.5, color="0.6", linestyle=":", linewidth=1)
ax.text(0, 0.52, "guessing labels", fontsize=8, color="0.4")
marks = [f"{noise:g}\n{budget[noise]:,.0f}".replace("inf", "∞") for noise in run.noises]
ax.set_xticks(places, marks, fontsize=8)
ax.set(xlabel="noise σ, and ε below it", ylim=(-0.08, 1.05))
ax.set_title("The clusters are gone while labels can still be read", loc="left")
ax.legend(loc="center right")
plots.show(
    figure,
    3,
    "Agreement of OCFL's clusters with the true groups (lesson 03's clients), and success of the attack on one update (the nine clients of Figure 1).",
    "Two falling lines over the noise. Clusters fall to 0 between 0.02 and 0.1, when the attack is still far above a dotted line at "
    "0.5, which it approaches only at the right.",
)

# %% [markdown]
# Where the clusters are gone, the server still reads nearly every label. Even where the oracle falls below clients that train alone, the attack
# is far better than guessing. So with twenty clients, noise on each update has no good setting: it costs the clusters first, then the
# models, and protects last.
#
# > **An honest limit.** We show *local* noise, one small network and one attack on the *first* update. An attack that fails proves nothing, because a better one may exist; only ε is a promise.
# > A server that all clients trust can add noise once, to a mean of thousands of clients, and then a useful ε is possible. It would still have to find the clusters
# > without noise ([10b](10b_privacy_and_change_controls.ipynb#why-the-clusters-go-first) computes both).
#
# ## What we saw
#
# - The signs of ten numbers in one update tell which classes a client has.
# - Noise hits the search for clusters before it hits the models of clusters that are known, since single updates have nobody to average with.
# - Where the clusters vanish, labels can still be read and ε is in the thousands.

# %% tags=["claims"]
gone = next((noise for noise in run.noises if table["ARI"][noise] < 0.5), run.noises[-1])
lost = {name: table[name].iloc[0] - table[name] for name in ("oracle", "OCFL", "FedAvg")}
still_read = read[run.noises.index(gone)]
claims.check(
    "10_privacy_and_clients_that_come_and_go",
    {
        "The signs of one update tell all classes of every client": exact == len(held),
        "Without noise, OCFL finds the groups": table["ARI"].iloc[0] == 1,
        "At the first noise without clusters, OCFL has lost more than the oracle and FedAvg": (
            lost["OCFL"][gone] > max(lost["oracle"][gone], lost["FedAvg"][gone])
        ),
        "There, labels are still read with an AUC above 0.8": still_read > 0.8,
        "With the largest noise, the oracle ends below clients alone": (
            table["oracle"].iloc[-1] < table["alone"].iloc[-1]
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write `protected(updates, clip, noise, draws)` for all clients at once. The graded version is in
#    [the exercises](exercises/10_privacy_and_clients_that_come_and_go_exercises.ipynb).
# 2. **Break.** Set `clip = 0.3`, then `clip = 3.0`. At which σ do the clusters vanish now, and why does ε stay the same?
# 3. **Explain.** Somebody says: "We use differential privacy with ε = 3,000." What is it worth? (An observer's odds may change by the factor
#    $e^{3000}$.)
#
# **Go deeper.** [10b](10b_privacy_and_change_controls.ipynb) lists what the messages of nine methods contain, lets a client
# lie, shows that larger networks bear less noise, and asks whose training images are found out
# ([membership inference](10b_privacy_and_change_controls.ipynb#who-was-a-member-an-attack)): those of clients in clusters of one.
#
# ## References
#
# - C. Dwork, A. Roth: *The Algorithmic Foundations of Differential Privacy*. 2014.
# - B. Zhao, K. R. Mopuri, H. Bilen: *iDLG: Improved Deep Leakage from Gradients*. 2020.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: *One-Shot Clustered Federated Learning*. IEEE BigData 2024.
#
# **Previous:** [09 A map of the methods](09_a_map_of_the_methods.ipynb) · **Next:**
# [11 Clients that come and go](11_clients_that_come_and_go.ipynb) · [Appendix](10b_privacy_and_change_controls.ipynb) ·
# [A real federation](a_real_federation.md) · [Glossary](99_glossary.ipynb)
