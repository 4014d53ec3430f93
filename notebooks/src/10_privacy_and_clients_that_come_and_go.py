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
# **Answer.** An update tells which classes a client has. Noise makes this harder to read. But a small amount of noise already destroys the clusters, and
# at that point the classes can still be read, and the mathematical guarantee of privacy is worth nothing.
#
# **You will**
#
# - read the classes of a client from one update,
# - clip updates and add noise to them, and watch the groups disappear,
# - compare what the noise costs FedAvg, OCFL, an oracle and clients that train alone,
# - explain with one formula why noise destroys the clusters before it destroys the models.
#
# **Before this:** [03 When should the server split?](03_ocfl_temperature.ipynb)
#
# **Study minutes:** 17. **Minutes on two cores:** 0.7
#
# **Papers.** Zuziak et al. discuss privacy in *One-Shot Clustered Federated Learning* (IEEE BigData 2024, section V, and
# section 6.1 of the extended version): "Although the performance is expected to drop, DP can be easily applied to our method." DP is differential
# privacy, the noise of this lesson. The experiments are ours.

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
# Twenty clients have digits that are turned by 0, 90, 180 or 270 degrees, with five clients for each angle.

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
# The server of OCFL sees nothing but updates. How much do they tell? In this section we take nine other clients, in three groups with different
# classes, and look at only ten numbers of an update: the changes of the output biases, one for each class.
#
# **Predict.** A client has images of only a few classes. Which of its ten biases go up in training, and which go down?

# %%
_, by_class = partition.ocfl(
    digits, overlap="nonoverlapping", balance="balanced", clients=9, draws=120, seed=run.seed
)
nine = home(digits, by_class)
held = np.array([np.isin(range(10), digits.labels[rows]) for rows in by_class.train])
place = nine.blueprint.layout["classifier.bias"]  # where the ten output biases are in an update
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
# where $p_c$ is the predicted probability of the class, and $\mathbb{1}[y = c]$ is 1 for $c = y$ and else 0. Training goes *against* the gradient. So the bias of a class goes up if the client has more images of it
# than the model predicts, and down if the client has none. Zhao et al. (2020) read labels in this way, and then rebuild images.
#
# OCFL finds groups *because* updates tell something about the data. What helps the clustering also helps a curious server.
#
# ## Hiding an update
#
# The usual protection has two steps, which a client takes before it sends its update $u$. First it **clips** the update: if its norm is larger than $C$,
# the update is shortened to the norm $C$. Then the client adds random noise to each of the $P$ parameters, with the standard deviation $\sigma C$:
#
# $$\tilde u = u \cdot \min\Big(1, \frac{C}{\lVert u \rVert}\Big) + \sigma C z, \qquad z \sim \mathcal{N}(0, I_P) .$$
#
# In code (the package does the same in `Privacy`):


# %%
def hide(update, clip, noise, z):
    """Clip an update [P], and add noise with the random numbers z [P]."""
    return update * min(1.0, clip / update.norm().item()) + noise * clip * z


# %% [markdown]
# This gives **differential privacy** (Dwork and Roth, 2014). Suppose that a client had entirely different images. Then anything that the
# server could observe would be at most $e^{\varepsilon}$ times as likely as before, apart from a tiny probability, here $10^{-5}$.
# For $\varepsilon = 1$ this factor is 2.7. For $\varepsilon = 10$ it is 22,000, which guarantees hardly anything. Every round adds to $\varepsilon$. (This ε is a third one: it is neither Sattler's nor
# EMD-CFL's.)
#
# Now we run three methods for each noise: FedAvg (one model for all), OCFL, and the **oracle** (true groups). The oracle tells us what the noise costs
# if no clusters have to be found. In a fourth run, Local (each client alone), nothing is sent, so it needs no noise. Without noise ($\sigma = 0$), updates are still clipped. This alone costs FedAvg about ten points against lesson 03
# (0.71 there), and OCFL about two.

# %%
images, split = shifts.make(digits, "four", clients=run.clients, samples=run.samples, seed=run.seed)
federation, truth = home(images, split), split.clusters
alone = simulation.run({"Local": methods.make("local")}, federation, run.rounds, progress=False)

# %%
rows, updates = {}, {}
for noise in run.noises:
    # The same clients, but each of them clips its updates and adds noise before it sends them
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
table = pd.DataFrame(rows).T.assign(Local=alone.summary()["Local"]["accuracy"])

# %% [markdown]
# **Predict.** At which of the seven values of $\sigma$ has OCFL lost the groups? And how many points of accuracy has the oracle lost at this $\sigma$?
#
# Move the slider of Figure 2. The [ARI](99_glossary.ipynb#ari) is 1 if OCFL finds the true groups, and near 0 if its clusters are random.

# %% tags=["hide-input"]
LINES = {  # greys and marks, because the colours are the groups
    "oracle": {"color": "black", "marker": "X", "linestyle": "-"},
    "OCFL": {"color": "black", "marker": "s", "linestyle": "--"},
    "Local": {"color": "0.55", "marker": "^", "linestyle": "-"},
    "FedAvg": {"color": "0.55", "marker": "o", "linestyle": ":"},
}
quiet = updates[run.noises[0]].double().numpy()
quiet = quiet / np.linalg.norm(quiet, axis=1, keepdims=True)
# The plane in which the groups' mean updates differ most, without noise
means = np.stack([quiet[truth == group].mean(axis=0) for group in range(4)])
plane = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)[2][:2]
centre = plane @ means.mean(axis=0)
reach = 1.4 * np.abs(quiet @ plane.T - centre).max()
places = np.arange(len(run.noises))
lost_at = int(np.argmax([*(table["ARI"] < 0.5), True])) % len(run.noises)


def frame(step):
    """Draw one noise: the updates, their distances, and what the methods reach."""
    noise = run.noises[step]
    figure, axes = plt.subplots(1, 3, figsize=(7.8, 2.8), width_ratios=(1, 0.95, 1.3))
    unit = torch.nn.functional.normalize(updates[noise].double(), dim=1).numpy()
    shared = unit.mean(axis=0) @ means.mean(axis=0) / np.square(means.mean(axis=0)).sum()
    for client, (x, y) in enumerate(unit @ plane.T - shared * centre):
        look = {"arrowstyle": "->", "color": plots.COLOURS[truth[client]]}
        axes[0].annotate("", (x, y), (0, 0), arrowprops=look)
    for group, (x, y) in enumerate((means @ plane.T - centre) * 1.25):
        text = {"color": plots.COLOURS[group], "ha": "center", "va": "center"}
        axes[0].text(x, y, f"{90 * group}°", fontsize=8, **text)
    axes[0].set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
    axes[0].spines[:].set_visible(False)
    axes[0].set_title("first updates")
    plots.divergence(cosine_divergence(updates[noise]), truth, axes[1], vmax=1.2)
    axes[1].set(title="their cosine distances", xlabel="", ylabel="", xticks=[], yticks=[])
    axes[1].set_xlabel("violet: 0, blue: near, green: 1")
    for name, look in LINES.items():
        axes[2].plot(
            places[: step + 1], table[name].iloc[: step + 1], alpha=0.6, markersize=0, **look
        )
        size = {"markersize": 11, "fillstyle": "none"} if name == "FedAvg" else {"markersize": 7}
        axes[2].plot(step, table[name].iloc[step], label=name, **size, **look)
    axes[2].set_xticks(places, [f"{other:g}" for other in run.noises], fontsize=8)
    axes[2].set(
        xlabel="noise σ (steps are not to scale)", ylim=(0, 1), xlim=(-0.4, len(places) - 0.6)
    )
    axes[2].set_title("accuracy after the last round")
    axes[2].legend(fontsize=7, loc="lower left")
    row = table.loc[noise]
    state = "found" if row["ARI"] == 1 else "lost" if row["ARI"] < 0.5 else "partly lost"
    figure.suptitle(
        f"σ = {noise:g}: clusters {state} (ARI {row['ARI']:.2f}); "
        f"accuracy of OCFL {row['OCFL']:.2f}, of the oracle {row['oracle']:.2f}"
    )
    return figure


budget = {noise: epsilon(noise, run.rounds) if noise else np.inf for noise in run.noises}
plots.show_frames(
    [frame(step) for step in range(len(run.noises))],
    [f"σ = {noise:g}, ε = {budget[noise]:,.0f}".replace("inf", "∞") for noise in run.noises],
    2,
    "**The clusters are lost while the oracle is still as accurate as before.** Left: the direction of each client's first update, coloured by its true "
    "group, in the plane in which the groups differ. (The angles stand where the groups' arrows end without noise.) Middle: the distance of each pair of clients; without noise, groups are dark blocks. "
    "Right: mean accuracy on the clients' own test images.",
    "Three panels for one noise. Arrows of four colours shrink to a point as the noise grows; four dark blocks in a matrix of 20 by 20 clients "
    "fade into one even colour; in the third panel OCFL's accuracy falls to FedAvg's, and the oracle's falls later.",
    first=lost_at,
    name="10_noise",
)

# %% tags=["nbval-ignore-output"]
print(table[["ARI", "OCFL", "oracle", "FedAvg", "Local"]].to_string(float_format="{:.2f}".format))

# %% [markdown]
# Compare the methods at the *same* noise, because the loss of one method says nothing about clusters:
#
# - **OCFL** falls first. At $\sigma = 0.06$ its clusters are mostly wrong, and it has lost more than ten points. From $\sigma = 0.1$ on, HDBSCAN puts all clients into one cluster, so that OCFL is FedAvg.
# - **The oracle** trains one model for each true group with the same noise. At $\sigma = 0.06$, it has lost nothing. So the models survive this noise, but the clustering does not.
# - **FedAvg** loses a few points at this noise. But it has less to lose, because its one model must serve four angles.
# - **Local** is a level line. With much noise even the oracle falls below it, and then every client does better alone.
#
# ## Why noise hits the clustering first
#
# A model is a mean of five updates or more, and in a mean, independent noise partly cancels. The clusterer compares *single* updates, where nothing
# cancels. The noise has a length of about $\sigma C\sqrt P$, and nearly all of it points in directions that no update uses. So in Figure 2, the arrows first become shorter and hardly turn. From $\sigma = 0.2$ on,
# hardly anything but noise is left of them, and they point anywhere.
#
# Let $\rho$ be the cosine of two updates of norm $C$. With noise it becomes about
#
# $$\rho' \approx \frac{\rho}{1 + \sigma^2 P}, \qquad \text{plus a random part of about } \frac{1}{\sqrt P}.$$
#
# The clusterer needs a gap: cosines within groups must be larger than cosines between groups. The formula says that noise makes this gap smaller by the factor $1 + \sigma^2 P$. When
# the gap is not much larger than the random part, the groups are lost.

# %% tags=["nbval-ignore-output"]
same, pairs = truth[:, None] == truth, ~np.eye(run.clients, dtype=bool)
noise, P, gaps = run.noises[lost_at], federation.parameters, []
for updates_sent in (updates[run.noises[0]], updates[noise]):
    cosine = 1 - cosine_divergence(updates_sent)
    gaps.append(cosine[same & pairs].mean() - cosine[~same].mean())
print(f"gap without noise: {gaps[0]:.2f}; with σ = {noise:g}: {gaps[1]:.3f}", end=" ")
print(f"(formula: {gaps[0] / (1 + noise**2 * P):.3f}, random part: {1 / np.sqrt(P):.3f})")

# %% [markdown]
# The formula nearly fits. At this noise, the *mean* gap is only about twice the random part of *one* pair, and HDBSCAN has to decide by single pairs. ([10b](10b_privacy_and_change_controls.ipynb#why-the-clusters-go-first) computes from
# the formula how much noise clusters can survive, and why larger networks survive less.)
#
# ## Does this noise protect anything?
#
# There are two answers. The first is the guarantee: Figure 3 shows $\varepsilon$ below each $\sigma$, and where the twenty clients' groups are lost, it is in the thousands, so nothing is guaranteed. The second is the attack
# of Figure 1, which we repeat with noise. For each client we compare a class that it has with a class that it does not have:
# how often did the bias of the first class rise more than that of the second? Always is 1, and guessing is 0.5. (This number is called the AUC.) We also let OCFL cluster these nine clients.

# %%
read, nine_found = [], []
for noise in run.noises:
    noisy = nine.with_hooks(Privacy(run.clip, noise, run.seed))
    seen = first_updates(noisy)[:, place].numpy()
    read.append(np.mean([roc_auc_score(own, b) for own, b in zip(held, seen, strict=True)]))
    one = {"OCFL": methods.make("ocfl", clusterer="hdbscan")}
    # After the clustering, no round is needed
    ended = simulation.run(one, noisy, run.rounds, until_settled=True, progress=False)
    nine_found.append(ended.summary()["OCFL"]["ari"])

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(7.4, 3.2))
for number, (name, values) in enumerate(
    {
        "labels read,\nnine clients (AUC)": read,
        "clusters found,\nthe same nine (ARI)": nine_found,
        "clusters found,\nthe twenty clients (ARI)": table["ARI"],
    }.items()
):
    look = {"color": plots.COLOURS[(5, 1, 2)[number]], "marker": plots.MARKERS[number]}
    if number == 0:  # it stays visible around the other lines' marks
        look |= {"markersize": 11, "fillstyle": "none", "zorder": 3}
    ax.plot(places, values, label=name, linestyle=("-", "--", "-")[number], **look)
for level, text in ((0.5, "guessing labels"), (0, "guessing clusters")):
    ax.axhline(level, color="0.6", linestyle=":", linewidth=1)
    ax.text(0, level + 0.02, text, fontsize=8, color="0.4")
marks = [f"{noise:g}\n{budget[noise]:,.0f}".replace("inf", "∞") for noise in run.noises]
ax.set_xticks(places, marks, fontsize=8)
for line, text in ((-0.075, "σ"), (-0.125, "ε")):
    ax.text(-0.02, line, text, transform=ax.transAxes, ha="right", va="center", fontsize=9)
ax.set(ylabel="AUC or ARI", ylim=(-0.3, 1.05))
ax.set_title("The clusters are lost at a noise where labels can still be read", loc="left")
ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
plots.show(
    figure,
    3,
    "Success of the attack on one update of the nine clients of Figure 1, and agreement of OCFL's clusters with the true groups, for these nine and for lesson 03's twenty clients. "
    "An ARI below 0 is worse than random clusters. Below each noise σ stands its ε, for all rounds.",
    "Three falling lines over the noise. The clusters of the twenty clients are lost between 0.02 and 0.1, and those of the nine between 0.06 and 0.2. The attack is at 1 until 0.06, and "
    "falls towards a dotted line at 0.5, which it does not reach.",
)

# %% [markdown]
# These are two federations, and we compare each with the attack:
#
# - At the noise where the **twenty** clients' groups are lost ($\sigma = 0.06$), the server still reads every label of the nine clients. (The twenty draw from all ten classes, so they have hardly any such secret.)
# - The groups of the **nine** are easier to find, because their classes differ. They are lost at a larger noise, between 0.06 and 0.2, and even at 0.2 the server reads labels better than by guessing (AUC about 0.8).
#
# So with so few clients, noise on each update has no good setting. It costs first the clusters and then the models, and it protects last.
#
# > **An honest limit.** We show *local* noise, one small network, one seed and one attack on the *first* update. If an attack fails, this proves nothing, because a better attack may exist; only ε is a guarantee.
# > A server that all clients trust can add noise once, to a mean of thousands of clients, and then a useful ε is possible. But to cluster, this server must look at single updates, and these then have
# > no noise ([10b](10b_privacy_and_change_controls.ipynb#why-the-clusters-go-first) computes both).
#
# ## What we saw
#
# - The signs of ten numbers in one update tell which classes a client has.
# - Noise destroys the clustering before it harms models whose groups are known, because single updates are not averaged, so the noise in them does not cancel.
# - Where the clusters are lost, labels can still be read, and ε is far too large to guarantee anything.

# %% tags=["claims"]
gone = next((noise for noise in run.noises if table["ARI"][noise] < 0.5), run.noises[-1])
lost = {name: table[name].iloc[0] - table[name] for name in ("oracle", "OCFL", "FedAvg")}
still_read = read[run.noises.index(gone)]
claims.check(
    "10_privacy_and_clients_that_come_and_go",
    {
        "The signs of one update tell all classes of each of the nine clients": exact == len(held),
        "Without noise, OCFL finds the groups": table["ARI"].iloc[0] == 1,
        "At the smallest noise with an ARI below 0.5, OCFL has lost more accuracy than the oracle and FedAvg": (
            lost["OCFL"][gone] > max(lost["oracle"][gone], lost["FedAvg"][gone])
        ),
        "There, labels are still read with an AUC above 0.8": still_read > 0.8,
        "With the largest noise, the oracle ends below clients alone": (
            table["oracle"].iloc[-1] < table["Local"].iloc[-1]
        ),
    },
)

# %% [markdown]
# ## Exercises
#
# 1. **Build.** Write `protected(updates, clip, noise, draws)` for all clients at once. The graded version is in
#    [the exercises](exercises/10_privacy_and_clients_that_come_and_go_exercises.ipynb).
# 2. **Break.** Set `clip = 0.3`, then `clip = 3.0`. At which σ are the clusters lost now, and why does ε stay the same?
# 3. **Explain.** Somebody says: "We use differential privacy with ε = 3,000." What is this worth?
#    <details><summary>A possible answer</summary>As a guarantee, nothing: what the server observes may be more likely by a factor of e to the power of 3,000 if the client has these images and not others.</details>
#
# **Go deeper.** [10b](10b_privacy_and_change_controls.ipynb) lists what the messages of nine methods contain, lets a client
# lie, shows that larger networks survive less noise, and asks whose training images can be recognised
# ([membership inference](10b_privacy_and_change_controls.ipynb#who-was-a-member-an-attack)): those of clients in clusters of one.
#
# ## References
#
# - C. Dwork, A. Roth: *The Algorithmic Foundations of Differential Privacy*. 2014.
# - B. Zhao, K. R. Mopuri, H. Bilen: *iDLG: Improved Deep Leakage from Gradients*. 2020.
# - M. K. Zuziak, R. Pellungrini, S. Rinzivillo: *One-Shot Clustered Federated Learning*. IEEE BigData 2024.
#
# **Previous:** [09 A round is a matrix](09_a_map_of_the_methods.ipynb) · **Next:**
# [11 Clients that come and go](11_clients_that_come_and_go.ipynb) · [Appendix](10b_privacy_and_change_controls.ipynb) ·
# [A real federation](a_real_federation.md) · [Glossary](99_glossary.ipynb)
