# %% [markdown]
# # Exercises: A map of the methods
#
# They belong to the lesson [09 A round is a matrix](../09_a_map_of_the_methods.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# R. Ye et al.: Personalized federated learning with inferred collaboration graphs. ICML 2023.
# O. Marfoq et al.: Federated multi-task learning under a mixture of distributions. NeurIPS 2021.

from scipy.special import softmax

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 09.1
#
# Clients are in clusters, and each cluster does federated averaging. Client $j$ has $n_j$ samples. Build the mixing matrix:
#
# $$M_{ij} = \begin{cases} n_j \big/ \sum_{l \text{ in the cluster of } i} n_l & \text{if } j \text{ is in the cluster of } i, \\ 0 & \text{otherwise.}\end{cases}$$


# %%
def mixing_of_clusters(labels, sizes):
    """Return the matrix [m, m] for clusters [m] and numbers of samples [m]."""
    ### BEGIN SOLUTION
    weights = (labels[:, None] == labels) * sizes
    return weights / weights.sum(axis=1, keepdims=True)
    ### END SOLUTION


# %%
check("09.1", mixing_of_clusters)


# %% tags=["exercise"]
def labels_and_sizes(rng):
    """Draw clusters that are no blocks, and numbers of samples that differ."""
    m = int(rng.integers(6, 10))
    labels = rng.permutation(np.arange(m) % 3)
    return labels, rng.integers(20, 200, m).astype(float)


exercise = Implement(
    "The matrix of a clustering",
    minutes=10,
    level="easy",
    points=1,
    inputs=labels_and_sizes,
    mistakes={
        "All clients count alike. In federated averaging, a client counts by its number of "
        "samples.": lambda labels, sizes: mixing_of_clusters(labels, np.ones_like(sizes)),
        "The rows do not sum to 1. Divide by the number of samples of the cluster, and not of "
        "all clients.": lambda labels, sizes: (labels[:, None] == labels) * sizes / sizes.sum(),
        "The matrix is transposed. Row i has the weights with which all models enter client i's model.": (
            lambda labels, sizes: mixing_of_clusters(labels, sizes).T
        ),
        "This is the matrix without clusters.": lambda labels, sizes: mixing_of_clusters(
            np.zeros_like(labels), sizes
        ),
    },
)

# %% [markdown]
# ## 09.2
#
# Figure 2 of the lesson divides the weight of an average client into three parts: the client itself, the rest of its group, and other
# groups. Compute them. The rows of the matrix sum to 1.


# %%
def divided(matrix, groups):
    """Return three shares that sum to 1 for a mixing matrix [m, m] and true groups [m]."""
    ### BEGIN SOLUTION
    same = groups[:, None] == groups
    own = np.diag(matrix).mean()
    group = (matrix * same).sum(axis=1).mean()
    return np.array([own, group - own, 1 - group])
    ### END SOLUTION


# %%
check("09.2", divided)


# %% tags=["exercise"]
def matrix_and_groups(rng):
    """Draw a mixing matrix, and groups of clients."""
    m = int(rng.integers(6, 10))
    groups = rng.permutation(np.arange(m) % 2)
    return softmax(2 * rng.normal(size=(m, m)), axis=1), groups


exercise = Implement(
    "Whose models do you get?",
    minutes=10,
    level="easy",
    points=1,
    inputs=matrix_and_groups,
    mistakes={
        "The second number contains the client itself. Subtract the diagonal.": (
            lambda matrix, groups: np.add(divided(matrix, groups), [0, np.diag(matrix).mean(), 0])
        ),
        "These are sums over all clients. Give means.": (
            lambda matrix, groups: divided(matrix, groups) * len(groups)
        ),
        "These are means over pairs of clients. Sum each row first.": (
            lambda matrix, groups: divided(matrix, groups) / [1, len(groups), len(groups)]
        ),
    },
)

# %% [markdown]
# ## 09.3
#
# In FedEM ([09b](../09b_catalogue.ipynb#the-methods)), a client has a share $\pi_k$ for each of $K$ models. Model $k$ has the loss $f_k(x)$ on the image $x$. Compute the
# responsibilities of the E-step, which sum to 1 for each image:
#
# $$q_k(x) = \frac{\pi_k\, e^{-f_k(x)}}{\sum_l \pi_l\, e^{-f_l(x)}} .$$


# %%
def responsibilities(losses, shares):
    """Return the responsibilities [K, n] for losses [K, n] and shares [K]."""
    ### BEGIN SOLUTION
    weights = shares[:, None] * np.exp(-losses)
    return weights / weights.sum(axis=0)
    ### END SOLUTION


# %%
check("09.3", responsibilities)


# %% tags=["exercise"]
def losses_and_shares(rng):
    """Draw losses of some models on some images, and the models' shares at a client."""
    count, n = int(rng.integers(2, 5)), int(rng.integers(5, 9))
    return rng.uniform(0, 3, (count, n)), softmax(rng.normal(size=count))


exercise = Implement(
    "The E-step of FedEM",
    minutes=15,
    level="medium",
    points=2,
    inputs=losses_and_shares,
    mistakes={
        "The shares are missing. A model with a small share must be less probable.": (
            lambda losses, shares: responsibilities(losses, np.ones_like(shares))
        ),
        "The sign of the losses is wrong: models with large losses get more.": (
            lambda losses, shares: responsibilities(-losses, shares)
        ),
        "The responsibilities of an image do not sum to 1.": (
            lambda losses, shares: shares[:, None] * np.exp(-losses)
        ),
        "You normalise over the images. For each image, the sum over models must be 1.": (
            lambda losses, shares: softmax(np.log(shares)[:, None] - losses, axis=1)
        ),
        "The share stands in the exponent. The probability is π times exp(−loss).": (
            lambda losses, shares: softmax(shares[:, None] - losses, axis=0)
        ),
        "The best model gets everything. That is IFCA, image by image.": (
            lambda losses, shares: (
                np.eye(len(losses))[(np.log(shares)[:, None] - losses).argmax(axis=0)].T
            )
        ),
    },
)

# %% [markdown]
# ## 09.4
#
# pFedGraph chooses the row $w$ of a client. The shares of the samples are $p_j = n_j / \sum_l n_l$, and $d_j$ is the distance to client $j$. In this exercise,
# distances may be negative, and $\lambda$ is their weight. (The package has `alpha`, which is $1 / \lambda$.) The row minimises
#
# $$\lVert w - p \rVert^2 + \lambda\, d \cdot w \qquad \text{with } w_j \ge 0 \text{ and } \sum_j w_j = 1 .$$
#
# Without the two conditions, the minimum would be at $v = p - \lambda d / 2$. With them, it has the form $w_j = \max(v_j - \tau, 0)$. One number
# $\tau$ makes the sum 1. (Hint: sort $v$ in descending order. If the $r$ largest entries stay, $\tau$ is their sum minus 1, divided by $r$. The right $r$ is the
# largest one for which the $r$-th entry is still above the $\tau$ of this $r$.) Write the function that returns this row.


# %%
def row_of_pfedgraph(sizes, distances, strength):
    """Return the weights [m] of one client for samples [m], distances [m] and the weight λ."""
    ### BEGIN SOLUTION
    v = sizes / sizes.sum() - strength * distances / 2
    descending = np.sort(v)[::-1]
    taus = (np.cumsum(descending) - 1) / np.arange(1, len(v) + 1)
    tau = taus[np.flatnonzero(descending > taus)[-1]]
    return np.maximum(v - tau, 0)
    ### END SOLUTION


# %%
check("09.4", row_of_pfedgraph)


# %% tags=["exercise"]
def sizes_and_distances(rng):
    """Draw a client's costs such that some weights, but not all, are zero."""
    m = int(rng.integers(6, 10))
    distances = rng.uniform(-1, 1, m)
    return rng.integers(40, 80, m).astype(float), distances, float(rng.uniform(0.3, 0.6))


def cut_and_divided(sizes, distances, strength):
    wanted = np.clip(sizes / sizes.sum() - strength * distances / 2, 0, None)
    return wanted / wanted.sum()


def only_shifted(sizes, distances, strength):
    wanted = sizes / sizes.sum() - strength * distances / 2
    return wanted + (1 - wanted.sum()) / len(wanted)


exercise = Implement(
    "A row of pFedGraph's matrix",
    minutes=25,
    level="hard",
    points=3,
    inputs=sizes_and_distances,
    mistakes={
        "Some weights are negative. They must be at least 0.": only_shifted,
        "You cut negative weights off and divide. The sum is 1, but the cost is not minimal: "
        "all weights that stay must be shifted by the same amount.": cut_and_divided,
        "The term p is missing. If all distances are equal, the weights are the shares of the "
        "samples.": lambda sizes, distances, strength: row_of_pfedgraph(
            np.ones_like(sizes), distances, strength
        ),
        "The sign of the distances is wrong: clients that are far away weigh more.": (
            lambda sizes, distances, strength: row_of_pfedgraph(sizes, -distances, strength)
        ),
        "A factor 2 is missing. The derivative of a square has one.": (
            lambda sizes, distances, strength: row_of_pfedgraph(sizes, 2 * distances, strength)
        ),
    },
)

# %% [markdown]
# ## 09.5
#
# In each round of IFCA, a client receives all models. It trains one of them and sends this one back. (We neglect the number of
# the chosen model.) IFCA has six models here. How many times the bytes of federated averaging does it exchange, in both directions together?

# %%
### BEGIN SOLUTION
prediction = 3.5
### END SOLUTION

# %%
check("09.5", prediction)


# %% tags=["exercise"]
from cflkit import methods, simulation
from cflkit.datasets import load
from cflkit.federation import Federation, LocalTraining
from cflkit.partition import shifts


def bytes_of_ifca():
    """Run a round of IFCA with six models; measure its bytes in multiples of FedAvg's."""
    images, split = shifts.make(load("digits-8x8"), "base", clients=4, samples=40)
    federation = Federation(images, split, "linear", LocalTraining(1, 16), engine="stacked")
    lines = {"FedAvg": methods.make("fedavg"), "IFCA": methods.make("ifca", k=6)}
    rounds = simulation.run(lines, federation, 1, progress=False).table()
    total = (rounds["bytes_down"] + rounds["bytes_up"]).groupby(rounds["method"]).sum()
    return float(total["IFCA"] / total["FedAvg"])


exercise = Predict(
    "What six models cost",
    minutes=5,
    level="easy",
    points=1,
    measure=bytes_of_ifca,
    mistakes={
        "Six models go down to each client. How many come back?": 6.0,
        "FedAvg sends one model down and one up. Divide by these two.": 7.0,
        "One model comes back to the server, too.": 3.0,
    },
    tolerance=0.01,
    because="Seven models are exchanged per client and round, and federated averaging "
    "exchanges two. With FedEM, all six models also come back, which is six times FedAvg's bytes.",
)

# %% [markdown]
# ## 09.6
#
# Four clients have equally many samples. In round 1, the clusters are {0, 1}, {2} and {3}. In round 2 they are {0}, {1, 2} and {3}.
# Suppose that the training in round 2 changes nothing. Client 0 has trained a model in round 1. What is the share of
# this model, as it was before the averaging, in client 2's model after round 2?

# %%
### BEGIN SOLUTION
prediction = 1 / 4
### END SOLUTION

# %%
check("09.6", prediction)


# %% tags=["exercise"]
def through_a_common_neighbour():
    """Compute the share of client 0 in client 2 after two rounds with different clusters."""
    first = mixing_of_clusters(np.array([0, 0, 1, 2]), np.ones(4))
    second = mixing_of_clusters(np.array([0, 1, 1, 2]), np.ones(4))
    return float((second @ first)[2, 0])


exercise = Predict(
    "Through a common neighbour",
    minutes=10,
    level="medium",
    points=1,
    measure=through_a_common_neighbour,
    mistakes={
        "They never share a cluster, but client 1 was in a cluster with both of them.": 0.0,
        "In round 2, client 2 gets half of client 1's model. Client 0 has only a half of what "
        "client 1 started with.": 0.5,
        "Three clients are connected, but not with equal shares.": 1 / 3,
    },
    tolerance=0.01,
    because="The shares of two rounds are the product of their matrices, ½ · ½. This counts "
    "where a round's training starts. What the training then adds is the clients' own.",
)

# %% [markdown]
# ## 09.7
#
# Thirty hospitals want to train a classifier of X-ray images together. Their machines are of different makers; nobody knows how many kinds there are. One
# hospital has a machine that it built itself. The connection is slow, and there will be a hundred rounds. Which method do you propose?
# Write half a page: what you run first, which method you choose and why, where it may fail, and how you will notice.

# %% [markdown] tags=["answer"]
# 1. *First*, FedAvg and local training, with three seeds. If FedAvg is better for all hospitals, less is at stake, although clusters may still
#    help. If local training is better somewhere, other hospitals' models do harm there.
# 2. *What we know.* The number of groups is unknown, so methods that must be told $k$ need a guess. The connection is slow, so that methods
#    with several models per round cost too much (Figure 3 of the appendix 09b).
# 3. *The method.* OCFL clusters once, by updates that the server has anyway, and sends nothing more than FedAvg. With HDBSCAN it would put the
#    hospital with its own machine into a group (Figure 4 of the appendix 09b, "alone"). So this hospital compares the group's model with its own on validation images, and keeps the better one.
# 4. *Measures.* Each hospital reports the accuracy on its own test images, under FedAvg, its group's model and local training. The worst one
#    counts, and not the mean alone. If clusters differ between seeds, there are perhaps no groups. We would then take personal models instead, such as those of Ditto, which sends no more than FedAvg.

# %% tags=["exercise"]
exercise = Explain(
    "Choose a method",
    minutes=25,
    level="hard",
    points=4,
    rubric=(
        (1, "Proposes to run FedAvg and local training first, and says what each tells."),
        (
            1,
            "Uses what is known of the clients: the number of groups is unknown, one hospital "
            "may be alone, and the connection is slow.",
        ),
        (
            1,
            "Names a method and a reason that a figure or a table of the lesson or its appendix "
            "shows, and a situation in which the method would fail.",
        ),
        (1, "Says what would be measured, with which seeds, and what would change the choice."),
    ),
)
