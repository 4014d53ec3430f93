# %% [markdown]
# # Exercises: OCFL and its temperature
#
# They belong to the lesson [03 OCFL](../03_ocfl_temperature.ipynb). Functions get NumPy arrays; that of 03.3 gets a list and a number.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning, IEEE BigData
# 2024, and its extended version.

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 03.1
#
# OCFL compares the directions of the clients' updates $\Delta_i$ by their cosine distances
#
# $$\gamma_{ij} = 1 - \frac{\Delta_i \cdot \Delta_j}{\lVert \Delta_i \rVert \lVert \Delta_j \rVert}.$$
#
# Write the function that computes the matrix $\Gamma$ of all these distances. No update is zero.


# %%
def divergence(updates):
    """Return the divergence matrix [m, m] of updates [m, P]."""
    ### BEGIN SOLUTION
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    return 1 - directions @ directions.T
    ### END SOLUTION


# %%
check("03.1", divergence)


# %% tags=["exercise"]
def some_updates(rng):
    """Draw updates of different lengths."""
    m, parameters = rng.integers(2, 7), rng.integers(3, 9)
    return (rng.normal(size=(m, parameters)) * rng.uniform(0.1, 10, (m, 1)),)


exercise = Implement(
    "The divergence matrix",
    minutes=10,
    level="easy",
    points=1,
    inputs=some_updates,
    mistakes={
        "These are similarities: clients with the same direction get 1, and must get 0.": (
            lambda updates: 1 - divergence(updates)
        ),
        "The lengths of the updates still matter. Only their directions should.": (
            lambda updates: 1 - updates @ updates.T
        ),
        "Opposite directions must have the distance 2, and not 1.": (
            lambda updates: divergence(updates) / 2
        ),
    },
)

# %% [markdown]
# ## 03.2
#
# The temperature is the norm of $\Gamma$, divided by an upper bound $\lambda$ of it. Write it for $p = 2$:
#
# $$T(\Gamma) = \frac{1}{\lambda} \sqrt{\sum_{i,j} \gamma_{ij}^2}, \qquad \lambda = \sqrt{4\, m(m-1)}.$$


# %%
def temperature(gamma):
    """Return the temperature, a number in [0, 1], of a divergence matrix [m, m]."""
    ### BEGIN SOLUTION
    m = len(gamma)
    return np.sqrt((gamma**2).sum()) / np.sqrt(4 * m * (m - 1))
    ### END SOLUTION


# %%
check("03.2", temperature)


# %% tags=["exercise"]
def a_divergence_matrix(rng):
    """Draw updates and compute their divergence matrix."""
    return (divergence(*some_updates(rng)),)


exercise = Implement(
    "The clustering temperature",
    minutes=10,
    level="easy",
    points=1,
    inputs=a_divergence_matrix,
    mistakes={
        "The bound counts all m² pairs. The diagonal is always zero, and does not count.": (
            lambda gamma: temperature(gamma) * np.sqrt((len(gamma) - 1) / len(gamma))
        ),
        "The largest cosine distance is 2, and λ must take it into account.": (
            lambda gamma: 2 * temperature(gamma)
        ),
        "The root is missing in the norm of Γ.": lambda gamma: (
            temperature(gamma) ** 2 * np.sqrt(4 * len(gamma) * (len(gamma) - 1))
        ),
        "The root is missing in λ.": lambda gamma: (
            temperature(gamma) / np.sqrt(4 * len(gamma) * (len(gamma) - 1))
        ),
        "The root is missing in the norm of Γ and in λ.": lambda gamma: temperature(gamma) ** 2,
    },
)

# %% [markdown]
# ## 03.3
#
# OCFL clusters in the first round $t$ with $T_t > T_{t-w}$. Here $w$ is the window, a number of rounds. Without enough
# earlier rounds, the trigger does not fire. Return the number of this round, counted from 1. Return `None` if the trigger
# never fires.


# %%
def first_rise(temperatures, window):
    """Return the first round that fires, for a list of the temperatures of rounds 1, 2, …"""
    ### BEGIN SOLUTION
    for t in range(window, len(temperatures)):
        if temperatures[t] > temperatures[t - window]:
            return t + 1
    return None
    ### END SOLUTION


# %%
check("03.3", first_rise)


# %% tags=["exercise"]
def some_temperatures(rng):
    """Draw temperatures that mostly fall, some of them equal, and a window of one or two rounds.

    Some rise over the window of two rounds, but not over its last round, and some rise at once.
    """
    if rng.random() < 0.2:
        return [0.5, 0.48, 0.51, 0.49][rng.integers(2) :], int(rng.integers(1, 3))
    if rng.random() < 0.3:
        start = float(rng.uniform(0.4, 0.6))
        falls = [[0, -0.05, -0.1, -0.06, -0.07], [0, -0.06, -0.08, -0.07, -0.07, -0.05]]
        return [round(start + step, 2) for step in falls[rng.integers(2)]], 2
    steps = rng.choice([-0.02, -0.01, 0.0, 0.01], size=rng.integers(4, 9), p=[0.4, 0.25, 0.2, 0.15])
    return [float(value) for value in (0.5 + steps.cumsum()).round(2)], int(rng.integers(1, 3))


def rises_or_stays(temperatures, window):
    rounds = range(window, len(temperatures))
    return next((t + 1 for t in rounds if temperatures[t] >= temperatures[t - window]), None)


def rises_over_all(temperatures, window):
    rounds = range(window, len(temperatures))
    higher = (t for t in rounds if temperatures[t] > max(temperatures[t - window : t]))
    return next((t + 1 for t in higher), None)


def counted_from_the_end(temperatures, window):
    rounds = range(len(temperatures))
    return next((t + 1 for t in rounds if temperatures[t] > temperatures[t - window]), None)


def begins_later(temperatures, window):
    rounds = range(window + 1, len(temperatures))
    return next((t + 1 for t in rounds if temperatures[t] > temperatures[t - window]), None)


def counted_from_zero(temperatures, window):
    found = first_rise(temperatures, window)
    return None if found is None else found - 1


exercise = Implement(
    "The trigger",
    minutes=10,
    level="medium",
    points=2,
    inputs=some_temperatures,
    mistakes={
        "The trigger fires where the temperature stays equal. It must rise.": rises_or_stays,
        "Rounds are counted from 1.": counted_from_zero,
        "The trigger can fire as soon as there are w earlier rounds. You begin later.": (
            begins_later
        ),
        "You ask for a rise over all of the last w rounds. Compare with round t − w alone.": (
            rises_over_all
        ),
        "In the first w rounds, t − w is a negative index, and Python then counts from the end. "
        "Begin where there are enough earlier rounds.": counted_from_the_end,
        "The window is not used. It says how many rounds back the trigger looks.": (
            lambda temperatures, window: first_rise(temperatures, 1)
        ),
    },
)

# %% [markdown]
# ## 03.4
#
# After the clustering, federated averaging goes on within each cluster. The array `labels` has the cluster of each
# client, from 0 to $K - 1$. Every cluster has at least one client. Add to the model of each cluster the mean of the
# updates of its clients, with equal weights.


# %%
def step_of_each_cluster(models, updates, labels):
    """Return the new models [K, P], for models [K, P], updates [m, P] and labels [m]."""
    ### BEGIN SOLUTION
    means = [updates[labels == k].mean(axis=0) for k in range(len(models))]
    return models + np.stack(means)
    ### END SOLUTION


# %%
check("03.4", step_of_each_cluster)


# %% tags=["exercise"]
def clustered_clients(rng):
    """Draw models, updates and labels; every cluster has a client."""
    clusters, parameters = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    labels = rng.permutation(np.concatenate([np.arange(clusters), rng.integers(0, clusters, 5)]))
    size = (len(labels), parameters)
    return rng.normal(size=(clusters, parameters)), rng.normal(size=size), labels


exercise = Implement(
    "After the clustering",
    minutes=10,
    level="easy",
    points=1,
    inputs=clustered_clients,
    mistakes={
        "Every model gets the mean update of all clients. It must get that of its own.": (
            lambda models, updates, labels: models + updates.mean(axis=0)
        ),
        "You add the sum of the updates, and not their mean.": (
            lambda models, updates, labels: models + np.eye(len(models))[labels].T @ updates
        ),
        "You return the mean updates alone. They must be added to the models.": (
            lambda models, updates, labels: step_of_each_cluster(models, updates, labels) - models
        ),
    },
)

# %% [markdown]
# ## 03.5
#
# A client joins after the clustering. It trains the model from which all others started in the round of the clustering,
# and sends its update. It goes to the cluster whose clients' updates are nearest: the one with the smallest *mean* cosine
# distance. Return the number of this cluster. The clusters have the numbers 0 to $K - 1$.


# %%
def cluster_of_newcomer(update, updates, labels):
    """Return a cluster, for the new update [P], the others' updates [m, P] and labels [m]."""
    ### BEGIN SOLUTION
    distances = 1 - updates @ update / (np.linalg.norm(updates, axis=1) * np.linalg.norm(update))
    return int(np.argmin([distances[labels == k].mean() for k in range(labels.max() + 1)]))
    ### END SOLUTION


# %%
check("03.5", cluster_of_newcomer)


# %% tags=["exercise"]
def a_newcomer(rng):
    """Draw two to four clusters of updates with different lengths, and one more update."""
    clusters = int(rng.integers(2, 5))
    labels = rng.permutation(np.repeat(np.arange(clusters), rng.choice([2, 3, 9], clusters)))
    centres = rng.normal(size=(clusters, 4))
    lengths = rng.uniform(0.2, 5, (len(labels), 1))
    updates = (centres[labels] + 0.9 * rng.normal(size=(len(labels), 4))) * lengths
    return centres[0] + 0.9 * rng.normal(size=4), updates, labels


def farthest_cluster(update, updates, labels):
    return cluster_of_newcomer(-update, updates, labels)


def cluster_of_smallest_sum(update, updates, labels):
    lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(update)
    distances = 1 - updates @ update / lengths
    return int(np.argmin([distances[labels == k].sum() for k in range(labels.max() + 1)]))


def cluster_of_nearest_client(update, updates, labels):
    return int(labels[np.argmax(updates @ update / np.linalg.norm(updates, axis=1))])


def nearest_by_length(update, updates, labels):
    products = updates @ update
    return int(np.argmax([products[labels == k].mean() for k in range(labels.max() + 1)]))


exercise = Implement(
    "A client that joins later",
    minutes=15,
    level="medium",
    points=2,
    inputs=a_newcomer,
    mistakes={
        "The lengths of the updates matter. Only their directions should.": nearest_by_length,
        "This is the cluster that is farthest away.": farthest_cluster,
        "You add up the distances, so large clusters seem far away. Take the mean.": (
            cluster_of_smallest_sum
        ),
        "A single client decides. Compare the mean distance to all clients of a cluster.": (
            cluster_of_nearest_client
        ),
    },
)

# %% [markdown]
# ## 03.6
#
# Six clients form three groups of two. Within a group, all updates have the same direction. The directions of two
# groups are 120 degrees apart. What is the temperature of the six clients? Work it out by hand, to two decimal places.

# %%
### BEGIN SOLUTION
prediction = 0.67
### END SOLUTION

# %%
check("03.6", prediction)


# %% tags=["exercise"]
def of_three_groups():
    """Compute the temperature of six clients in three groups whose directions are 120° apart."""
    angles = np.repeat([0, 2 * np.pi / 3, 4 * np.pi / 3], 2)
    return temperature(divergence(np.stack([np.cos(angles), np.sin(angles)], axis=1)))


exercise = Predict(
    "The temperature of three groups",
    minutes=10,
    level="medium",
    points=1,
    measure=of_three_groups,
    tolerance=0.004,
    mistakes={
        "That is the temperature of fifteen clients, as in appendix 03b. Here there are six.": 0.63,
        "The bound counts all m² pairs. The diagonal is always zero, and does not count.": 0.61,
        "That is the mean distance between groups, 1.5, divided by 2. What do the pairs within "
        "a group contribute?": 0.75,
        "That would be right angles between all clients. Here three groups pull against each "
        "other, and two clients pull the same way.": 0.5,
        "That is the temperature if all clients are opposed to each other, which is impossible "
        "for more than two.": 1.0,
    },
    because="Of the 30 ordered pairs, 24 lie in different groups and have the distance 1.5. "
    "So T = 1.5 √24 / (2 √30) = 0.67.",
)

# %% [markdown]
# ## 03.7
#
# Fifteen clients are alike. In round $t$, from 1 to 20, the update of each is $s / t$ plus noise. The direction $s$ is
# the same for all of them. The noise is drawn anew for each client and each round, and its size does not change. Does the
# trigger with the window $w = 1$ fire in some round (`"fires"`), or does it never fire (`"never"`)?

# %%
### BEGIN SOLUTION
prediction = "fires"
### END SOLUTION

# %%
check("03.7", prediction)


# %% tags=["exercise"]
def of_clients_that_are_alike():
    """Watch the trigger while what alike clients have in common shrinks, and their noise stays."""
    rng = np.random.default_rng(0)
    common, past = np.ones(200), []
    for t in range(20):
        noise = rng.normal(size=(15, 200))
        past.append(temperature(divergence(common / (t + 1) + noise)))
    return "never" if first_rise(past, 1) is None else "fires"


exercise = Predict(
    "Nothing to find",
    minutes=10,
    level="medium",
    points=1,
    measure=of_clients_that_are_alike,
    mistakes={
        "The clients have one direction in common, and it becomes shorter from round to round. "
        "What does then decide the angles between their updates?": "never",
        "Write one of the two words that the exercise offers.": "sometimes",
    },
    because="The common part shrinks as training converges, and the noise does not. The "
    "updates come to stand at right angles, so the temperature rises. A rise alone does not "
    "show that there are groups.",
)

# %% [markdown]
# ## 03.8
#
# There are $K$ groups with $m / K$ clients each. Two clients of one group have the distance 0, and two clients of
# different groups have the distance $d$. Derive the temperature for $p = 2$. How does it depend on $K$ and on $d$? Can
# the server read the number of groups from $T$?

# %% [markdown] tags=["answer"]
# There are $m^2$ ordered pairs, and a share of $1 / K$ of them lies within a group. So $m^2 (1 - 1/K)$ pairs have the
# distance $d$, and all others have the distance 0. This gives
#
# $$T = \frac{d\, m \sqrt{1 - 1/K}}{2 \sqrt{m (m - 1)}} = \frac d2 \sqrt{\frac{m}{m - 1} \Big(1 - \frac1K\Big)}.$$
#
# $T$ grows with $d$ and with $K$. Two groups that are far apart and many groups that are less far apart can have the
# same temperature. So the server cannot read the number of groups from $T$. It needs a clustering of $\Gamma$.

# %% tags=["exercise"]
exercise = Explain(
    "The temperature of K groups",
    minutes=20,
    level="hard",
    points=3,
    rubric=(
        (1, "Counts m² (1 − 1/K) ordered pairs of clients in different groups."),
        (1, "Derives T = (d/2) √(m (1 − 1/K) / (m − 1)), for p = 2 and the distance d."),
        (1, "Says that T grows with K and with d, so that one number cannot tell them apart."),
    ),
)

# %% [markdown]
# ## 03.9
#
# The trigger watches one number for all clients together. Describe a federation in which two groups disagree in every
# round, from the first one on, and the temperature still falls from round to round. What does this say about the trigger?

# %% [markdown] tags=["answer"]
# Let two groups have directions 90 degrees apart in every round. In the first round, the updates within a group differ
# much, since the initial model has learned nothing and batches are noisy. Later, the clients of a group agree more and
# more. The distances between the groups stay near 1, and the distances within them fall. So $T$ falls in every round,
# and the trigger never fires, although the groups could be told apart from the first round on. The trigger sees that a
# disagreement *grows*. It does not see that there *is* one.

# %% tags=["exercise"]
exercise = Explain(
    "Where the trigger is blind",
    minutes=20,
    level="hard",
    points=3,
    rubric=(
        (1, "Names a federation with groups that disagree in every round from the start."),
        (1, "Gives a reason why T falls all the same, such as alignment within the groups."),
        (1, "Concludes that the trigger sees changes of disagreement, and not disagreement."),
    ),
)
