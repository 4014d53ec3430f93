# %% [markdown]
# # Exercises: Tutorial 022
#
# They belong to the lesson [08 Tutorial 022](../08_tutorial_022.ipynb). The exercises 08.1 to 08.5 are parts of
# the tutorial's four exercises: 08.1 belongs to its third, 08.2 to its first, 08.3 and 08.4 to its second, and 08.5 to its
# fourth. Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# O. Y. Laitinen Imanov and contributors: Tutorial 022, Clustered Federated Learning. 2026.

from scipy.special import softmax

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 08.1
#
# The tutorial names three ways to compare clients. Client $i$ has the gradient $g_i$, the loss $f_i$ and the model
# $\theta_i$. Compute three matrices:
#
# $$1 - \frac{g_i \cdot g_j}{\lVert g_i \rVert\, \lVert g_j \rVert}, \qquad \lvert f_i - f_j \rvert, \qquad
# \lVert \theta_i - \theta_j \rVert .$$
#
# Return them in this order, in a list. Write it without scikit-learn and SciPy.


# %%
def three_distances(gradients, losses, models):
    """Return three matrices [m, m] for gradients [m, d], losses [m] and models [m, d]."""
    ### BEGIN SOLUTION
    directions = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    differences = models[:, None] - models
    return [
        1 - directions @ directions.T,
        np.abs(losses[:, None] - losses),
        np.linalg.norm(differences, axis=2),
    ]
    ### END SOLUTION


# %%
check("08.1", three_distances)


# %% tags=["exercise"]
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances


def some_signatures(rng):
    """Draw the three signatures of some clients."""
    m, d = rng.integers(3, 7), rng.integers(4, 9)
    return rng.normal(size=(m, d)), rng.uniform(0.5, 3, m), rng.normal(size=(m, d))


def with_one_changed(place, change):
    """Build the mistake that changes one of the three distances by a function of the arguments."""

    def mistake(*signatures):
        found = three_distances(*signatures)
        found[place] = change(*signatures)
        return found

    return mistake


exercise = Implement(
    "Three distances",
    minutes=15,
    level="easy",
    points=2,
    inputs=some_signatures,
    mistakes={
        "The first matrix has similarities. A client must be at distance 0 from itself.": (
            with_one_changed(0, lambda g, f, w: 1 - cosine_distances(g))
        ),
        "The gradients are not divided by their norms, so long ones count more.": (
            with_one_changed(0, lambda g, f, w: 1 - g @ g.T)
        ),
        "The second matrix has signs. A distance is the same in both directions.": (
            with_one_changed(1, lambda g, f, w: f[:, None] - f)
        ),
        "The third matrix has squared distances. A root is missing.": (
            with_one_changed(2, lambda g, f, w: euclidean_distances(w, squared=True))
        ),
        "The third matrix has cosine distances. Models are compared by the length of their "
        "difference.": with_one_changed(2, lambda g, f, w: cosine_distances(w)),
    },
)

# %% [markdown]
# ## 08.2
#
# In [08b](../08b_tutorial_022_controls.ipynb) every client moves to the model with the smallest loss, in every round. Losses are noisy, and a client on the
# border would jump back and forth. So let it move only if this lowers its loss by *more than* a margin. Otherwise it
# stays where it is.


# %%
def reassign(losses, before, margin):
    """Return the new clusters [m] for losses [K, m], the clusters [m] before, and a margin."""
    ### BEGIN SOLUTION
    clients = np.arange(len(before))
    best = losses.argmin(axis=0)
    gain = losses[before, clients] - losses[best, clients]
    return np.where(gain > margin, best, before)
    ### END SOLUTION


# %%
check("08.2", reassign)


# %% tags=["exercise"]
def losses_and_clusters(rng):
    """Draw losses of three or four models on some clients, and the clients' clusters."""
    count, m = rng.integers(3, 5), rng.integers(6, 12)
    losses = rng.uniform(0.5, 2.5, (count, m))
    return losses, rng.integers(0, count, m), float(rng.uniform(0.2, 0.6))


def by_the_share_of_the_loss(losses, before, margin):
    own = losses[before, np.arange(len(before))]
    return np.where((own - losses.min(axis=0)) / own > margin, losses.argmin(axis=0), before)


def compared_with_the_mean(losses, before, margin):
    gains = losses.mean(axis=0) - losses.min(axis=0)
    return np.where(gains > margin, losses.argmin(axis=0), before)


exercise = Implement(
    "Reassign, but not for nothing",
    minutes=15,
    level="medium",
    points=2,
    inputs=losses_and_clusters,
    mistakes={
        "Your clients go to the model with the largest loss.": (
            lambda losses, before, margin: reassign(-losses, before, margin)
        ),
        "Your clients always move to the best model. They must gain more than the margin.": (
            lambda losses, before, margin: losses.argmin(axis=0)
        ),
        "You compare a share of the loss with the margin. The margin is a difference of "
        "losses.": by_the_share_of_the_loss,
        "You compare the smallest loss with the mean over all models. What counts is the loss "
        "of the model that the client has now.": compared_with_the_mean,
        "Nobody moves.": lambda losses, before, margin: before,
    },
)

# %% [markdown]
# ## 08.3
#
# Let $f_i(\theta_k)$ be the loss of model $k$ on client $i$. Compute the share of client $i$ in cluster $k$,
#
# $$s_{ik} = \frac{\exp(-f_i(\theta_k)/\tau)}{\sum_l \exp(-f_i(\theta_l)/\tau)} .$$


# %%
def soft_shares(losses, tau):
    """Return the shares [m, K] for losses [K, m] and the temperature tau."""
    ### BEGIN SOLUTION
    weights = np.exp(-losses.T / tau)
    return weights / weights.sum(axis=1, keepdims=True)
    ### END SOLUTION


# %%
check("08.3", soft_shares)


# %% tags=["exercise"]
def losses_and_tau(rng):
    """Draw losses, of which some are large, and a temperature."""
    count, m = rng.integers(2, 5), rng.integers(5, 9)
    return rng.uniform(0, 4, (count, m)), float(rng.uniform(0.2, 0.8))


def not_normalised(losses, tau):
    return np.exp(-losses.T / tau)


exercise = Implement(
    "Soft shares",
    minutes=10,
    level="easy",
    points=1,
    inputs=losses_and_tau,
    mistakes={
        "The sign is wrong: a client now has its largest share in the worst cluster.": (
            lambda losses, tau: soft_shares(-losses, tau)
        ),
        "The shares of a client do not add up to 1.": not_normalised,
        "You multiply by τ. A small τ must make the shares sharp.": (
            lambda losses, tau: soft_shares(losses, 1 / tau)
        ),
        "You normalise over the clients. The shares of each client must add up to 1.": (
            lambda losses, tau: softmax(-losses.T / tau, axis=0)
        ),
        "The result is transposed. It has one row per client.": (
            lambda losses, tau: soft_shares(losses, tau).T
        ),
    },
)

# %% [markdown]
# ## 08.4
#
# Client $i$ has trained its mixture of models, and sends the update $\Delta_i$. The server adds to each model $\theta_k$ a weighted
# mean of all updates. The weight of client $i$ in this mean is proportional to $s_{ik}\, n_i$: its share in the cluster times its number
# of samples.


# %%
def soft_aggregate(models, updates, shares, sizes):
    """Return the new models [K, P] for models [K, P], updates [m, P], shares [m, K], sizes [m]."""
    ### BEGIN SOLUTION
    weights = shares * sizes[:, None]
    weights = weights / weights.sum(axis=0)
    return models + weights.T @ updates
    ### END SOLUTION


# %%
check("08.4", soft_aggregate)


# %% tags=["exercise"]
def a_soft_round(rng):
    """Draw models, updates, shares and numbers of samples."""
    count, m, parameters = 3, int(rng.integers(4, 8)), 5
    of = softmax(2 * rng.normal(size=(m, count)), axis=1)
    sizes = rng.integers(20, 150, m).astype(float)
    return rng.normal(size=(count, parameters)), rng.normal(size=(m, parameters)), of, sizes


exercise = Implement(
    "A soft round at the server",
    minutes=15,
    level="medium",
    points=2,
    inputs=a_soft_round,
    mistakes={
        "All clients count alike. A client also counts by its number of samples.": (
            lambda models, updates, of, sizes: soft_aggregate(
                models, updates, of, np.ones_like(sizes)
            )
        ),
        "The weights of a cluster do not add up to 1. Divide by their sum.": (
            lambda models, updates, of, sizes: models + (of * sizes[:, None]).T @ updates
        ),
        "You divide by the number of all samples. The weights of each cluster must add up to "
        "1.": lambda models, updates, of, sizes: (
            models + (of * sizes[:, None] / sizes.sum()).T @ updates
        ),
        "The models themselves are missing. You return the mean updates.": (
            lambda models, updates, of, sizes: soft_aggregate(0 * models, updates, of, sizes)
        ),
        "The updates have the wrong sign. An update is the model after training minus the "
        "model before.": lambda models, updates, of, sizes: soft_aggregate(
            models, -updates, of, sizes
        ),
    },
)

# %% [markdown]
# ## 08.5
#
# Agglomerative clustering begins with every point alone, and each merge has a height. You get the heights of all merges, in
# ascending order. Find the largest gap between two neighbouring heights. The merges below the gap are kept, and those above are
# undone. How many clusters remain?


# %%
def clusters_below_the_gap(heights):
    """Return the number of clusters for the heights [n] of the merges of n + 1 points."""
    ### BEGIN SOLUTION
    kept = np.diff(heights).argmax() + 1
    return len(heights) + 1 - kept
    ### END SOLUTION


# %%
check("08.5", clusters_below_the_gap)


# %% tags=["exercise"]
def rising_heights(rng):
    """Draw the heights of merges in ascending order, with one gap that is clearly the largest."""
    steps = rng.uniform(0.05, 0.3, rng.integers(5, 9))
    # Often the first gap or the last one
    steps[rng.choice([1, rng.integers(1, len(steps)), len(steps) - 1])] += rng.uniform(0.6, 1.5)
    steps[0] = 0.01  # the second height is the largest multiple of the one before
    return (np.cumsum(steps),)


exercise = Implement(
    "Cut the largest gap",
    minutes=15,
    level="medium",
    points=2,
    inputs=rising_heights,
    mistakes={
        "You are off by one: n merges join n + 1 points. How many clusters are left after the "
        "merges that you keep?": lambda heights: clusters_below_the_gap(heights) - 1,
        "You are off by one. How many clusters are left if no merge is undone?": (
            lambda heights: clusters_below_the_gap(heights) + 1
        ),
        "You count the merges that are kept. How many clusters do they leave?": (
            lambda heights: int(np.diff(heights).argmax()) + 1
        ),
        "The last gap is a gap, too.": (
            lambda heights: int(len(heights) - np.diff(heights)[:-1].argmax())
        ),
        "The first gap is a gap, too.": (
            lambda heights: int(len(heights) - 1 - np.diff(heights)[1:].argmax())
        ),
        "You cut the smallest gap.": lambda heights: int(len(heights) - np.diff(heights).argmin()),
        "You look for the largest ratio of two heights. The gap is their difference.": (
            lambda heights: int(len(heights) - (heights[1:] / heights[:-1]).argmax())
        ),
    },
)

# %% [markdown]
# ## 08.6
#
# Suppose that "Global Acc" is measured on samples of all clients together. The three clusters have equally many samples and the
# classes 0 to 3, 3 to 6, and 6 to 9. Within a cluster, classes are equally frequent. Each cluster has a
# perfect model for its four classes, which never answers with another class. What is the mean accuracy of the three models? Write a number
# between 0 and 1.

# %%
### BEGIN SOLUTION
prediction = 4 / 9
### END SOLUTION

# %%
check("08.6", prediction)


# %% tags=["exercise"]
def mean_ceiling():
    """Compute the mean over clusters of the share of samples whose class the cluster has."""
    classes = [3 * cluster + np.arange(4) for cluster in range(3)]
    samples = np.concatenate(classes)
    return float(np.mean([np.isin(samples, own).mean() for own in classes]))


exercise = Predict(
    "An impossible number",
    minutes=10,
    level="easy",
    points=1,
    measure=mean_ceiling,
    mistakes={
        "A model for four of ten classes would be right in 40 % if all classes were equally "
        "frequent. Are they?": 0.4,
        "This is the share of a cluster's own samples. Other clusters have samples of its "
        "classes, too.": 1 / 3,
        "This is the ceiling of the two outer clusters. The middle one shares two classes.": 5 / 12,
        "This is the ceiling of the middle cluster. The outer ones share only one class.": 0.5,
    },
    tolerance=0.0035,
    because="Each cluster has a third of the samples, a quarter of which are of each class. So "
    "the shared classes have two twelfths each, and the others one. The outer clusters have "
    "five twelfths, and the middle one six. No training can change this: the printed 78 % is "
    "impossible under this reading.",
)

# %% [markdown]
# ## 08.7
#
# There are three groups of ten clients. In a run with reassignment, all clients of two groups have chosen the same model, and the
# third group has another model. Nobody has chosen the third model. Which ARI do these clusters have? Two digits after the point are enough. You
# may compute it. (Look at Figure 6 of [08b](../08b_tutorial_022_controls.ipynb) afterwards: some of its runs end like this.)

# %%
### BEGIN SOLUTION
prediction = 0.55
### END SOLUTION

# %%
check("08.7", prediction)


# %% tags=["exercise"]
from sklearn.metrics import adjusted_rand_score


def ari_of_the_plateau():
    """Compute the ARI if two of three groups of ten clients share a model."""
    truth = np.repeat([0, 1, 2], 10)
    return float(adjusted_rand_score(truth, truth > 0))


exercise = Predict(
    "The height of the plateau",
    minutes=10,
    level="medium",
    points=1,
    measure=ari_of_the_plateau,
    mistakes={
        "Two thirds of the clients are right in some sense, but the ARI counts pairs of "
        "clients, and subtracts what chance would give.": 2 / 3,
        "This is the Rand index: the share of pairs that are right. The adjusted index "
        "subtracts what chance would give.": 0.77,
        "You are near, but two digits are asked for. Compute it, for example with "
        "scikit-learn.": 0.5,
    },
    tolerance=0.003,
    because="Of 435 pairs, 335 are right, but many of these would be right by chance. A "
    "plateau at this value tells that two groups share a model.",
)

# %% [markdown]
# ## 08.8
#
# A blog post compares four methods of federated learning in a table of accuracies. There is one number per method. Write
# down the four questions that you would ask first, and say for each which answer would change your mind about the table.

# %% [markdown] tags=["answer"]
# 1. *Which code produced the numbers?* If there is no script with a seed and a version, nobody can tell a measurement from a
#    guess. In the tutorial, no function that measures an accuracy is ever called.
# 2. *On which samples?* If training has seen them, models that remember their samples win. In the lesson, this turns the ranking
#    around.
# 3. *Are the numbers possible?* Chance is what guessing gives. The data often give an upper bound, such as the ceilings of the lesson. And
#    columns must fit together: if two columns are the same average, they have the same numbers.
# 4. *How often was it run, and was everybody given the same?* A difference that is smaller than the scatter over seeds says
#    nothing. A method that is told the number of clusters, or that trains for more rounds, has an advantage that the table must
#    state.

# %% tags=["exercise"]
exercise = Explain(
    "Read a table critically",
    minutes=25,
    level="hard",
    points=4,
    rubric=(
        (1, "Asks which code, with which seed and commit, produced each number."),
        (1, "Asks on which samples a measure was taken, and whether training saw them."),
        (
            1,
            "Compares with a bound that follows from the data alone: chance, a ceiling, or "
            "what the columns would have to satisfy together.",
        ),
        (
            1,
            "Asks for repeated runs, and for what each row was given: the number of clusters, "
            "more rounds, or more local training than the others.",
        ),
    ),
)
