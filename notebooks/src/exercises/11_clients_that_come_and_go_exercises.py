# %% [markdown]
# # Exercises: Clients that come and go
#
# They belong to the lesson [11 Clients that come and go](../11_clients_that_come_and_go.ipynb). 11.4 needs
# [10 Hide and seek](../10_privacy_and_clients_that_come_and_go.ipynb), too. Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# M. K. Zuziak, R. Pellungrini, S. Rinzivillo: One-shot clustering for federated learning under
# clustering-agnostic assumption.

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 11.1
#
# In the scene "late group", OCFL puts each newcomer into the nearest cluster, even if the newcomer is of another kind. Suppose that there is a limit.
# A newcomer has trained the model from which the clustering began. Its cluster is the one whose members' updates have the smallest mean cosine
# distance from the newcomer's update. If this distance is above the limit, it has no cluster, and the result is `None`. Clusters are numbered from 0.


# %%
def attributed(update, updates, labels, limit):
    """Return the cluster of an update [P] for updates [m, P] and their clusters [m], or None."""
    ### BEGIN SOLUTION
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    cosines = directions @ update / np.linalg.norm(update)
    means = [(1 - cosines[labels == k]).mean() for k in range(labels.max() + 1)]
    nearest = int(np.argmin(means))
    return nearest if means[nearest] <= limit else None
    ### END SOLUTION


# %%
check("11.1", attributed)


# %% tags=["exercise"]
from sklearn.metrics.pairwise import cosine_distances


def newcomer(rng):
    """Draw updates of clusters of different size and length, a newcomer's update, and a limit."""
    clusters = int(rng.integers(2, 5))
    labels = rng.permutation(np.repeat(np.arange(clusters), rng.choice([2, 3, 6], clusters)))
    updates = rng.normal(size=(clusters, 3))[labels] + 0.7 * rng.normal(size=(len(labels), 3))
    updates *= rng.uniform(0.1, 6, size=(len(labels), 1))
    update = rng.normal(size=3)
    distances = cosine_distances(update[None], updates)[0]
    nearest = min(distances[labels == k].mean() for k in range(clusters))
    return update, updates, labels, float(nearest * rng.choice([0.9, 1.1, 1.3, 1.5]))


def whatever_the_limit(update, updates, labels, limit):
    return attributed(update, updates, labels, np.inf)


def by_the_nearest_client(update, updates, labels, limit):
    distances = cosine_distances(update[None], updates)[0]
    return int(labels[distances.argmin()]) if distances.min() <= limit else None


def by_length(update, updates, labels, limit):
    distances = np.linalg.norm(updates - update, axis=1)
    means = [distances[labels == k].mean() for k in range(labels.max() + 1)]
    return int(np.argmin(means)) if min(means) <= limit else None


def by_the_mean_update(update, updates, labels, limit):
    means = np.stack([updates[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return attributed(update, means, np.arange(len(means)), limit)


exercise = Implement(
    "A newcomer's cluster, or none",
    minutes=20,
    level="medium",
    points=2,
    inputs=newcomer,
    mistakes={
        "You ask the nearest client alone. Take the mean over a cluster's members.": (
            by_the_nearest_client
        ),
        "The lengths of the updates must not matter. Use cosine distances.": by_length,
        "In the mean of updates, long ones count more. Take the mean of distances.": (
            by_the_mean_update
        ),
        "Your function finds a cluster for every newcomer. What if none is near?": (
            whatever_the_limit
        ),
        "The limit is for the nearest cluster. Is its distance above it, or below?": (
            lambda update, updates, labels, limit: (
                None
                if attributed(update, updates, labels, limit) is not None
                else whatever_the_limit(update, updates, labels, limit)
            )
        ),
    },
)

# %% [markdown]
# ## 11.2
#
# A server does not know which limit is right. It has the updates of the clustered clients and their clusters, each with two clients or more. For each client, take the mean cosine distance of its update from those
# of the *other* members of its cluster. Return the largest of these means. A newcomer that lies farther away than every member may be of another kind.


# %%
def largest_within(updates, labels):
    """Return a distance for updates [m, P] and their clusters [m]."""
    ### BEGIN SOLUTION
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    distances = 1 - directions @ directions.T
    others = (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool)
    return float(((distances * others).sum(axis=1) / others.sum(axis=1)).max())
    ### END SOLUTION


# %%
check("11.2", largest_within)


# %% tags=["exercise"]
def clustered(rng):
    """Draw updates of clusters of different size and length, and their clusters."""
    return newcomer(rng)[1:3]


def with_oneself(updates, labels):
    same = labels[:, None] == labels
    return float(((cosine_distances(updates) * same).sum(axis=1) / same.sum(axis=1)).max())


def farthest_pair(updates, labels):
    return float(cosine_distances(updates)[labels[:, None] == labels].max())


def of_all(updates, labels):
    return largest_within(updates, np.zeros(len(labels), dtype=int))


def mean_of_means(updates, labels):
    others = (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool)
    means = (cosine_distances(updates) * others).sum(axis=1) / others.sum(axis=1)
    return float(means.mean())


exercise = Implement(
    "A limit without the truth",
    minutes=20,
    level="medium",
    points=2,
    inputs=clustered,
    mistakes={
        "A client is not one of its own neighbours. Leave its distance from itself out.": (
            with_oneself
        ),
        "That is the farthest pair. Take a mean for each client first.": farthest_pair,
        "Only members of the same cluster count.": of_all,
        "That is the mean over the clients. What is the largest one?": mean_of_means,
    },
)

# %% [markdown]
# ## 11.3
#
# OCFL clusters again in every fifth round, first in round 10 and then in rounds 15, 20 and so on. In a round that clusters, the server sees all changes. A client's data change right after the clustering of round 10. In how many rounds does
# it train in the wrong cluster before the server can notice it? Do not count round 15.

# %%
### BEGIN SOLUTION
prediction = 4
### END SOLUTION

# %%
check("11.3", prediction)


# %% tags=["exercise"]
def rounds_in_the_wrong_cluster():
    """Count the rounds between two clusterings, in which nobody notices a change."""
    clusters_in = set(range(10, 100, 5))
    following = 11
    while following not in clusters_in:
        following += 1
    return float(following - 11)


exercise = Predict(
    "Until somebody notices",
    minutes=5,
    level="easy",
    points=1,
    measure=rounds_in_the_wrong_cluster,
    mistakes={
        "Round 15 clusters again, so it does not count.": 5.0,
        "Which are the rounds after 10 and before 15?": 3.0,
        "The server does not look at changes in the rounds between two clusterings.": 0.0,
    },
    tolerance=0.001,
    because="These are rounds 11 to 14: one less than the five rounds from one clustering to the "
    "next. Clustering more often shortens this time, and costs more rounds.",
)

# %% [markdown]
# ## 11.4
#
# Twenty hospitals train models in clusters. Next year, ten more will join, some of which have a machine of a new kind. Hospitals replace their machines from time to time. A lawyer asks
# what the server and the other hospitals can learn about the patients. Write half a page: which method do you propose, what do you answer to the lawyer, and what happens to newcomers and to hospitals that change?

# %% [markdown] tags=["answer"]
# 1. *The method.* OCFL that finds its clusters again every few rounds. One-shot clusters would put hospitals with a new kind of machine into a cluster of others (scene "late group"). They would keep a
#    hospital that has replaced its machine where it was (scene *drift*). IFCA also follows, but it must be told the number of groups, and it sends all models to all hospitals.
# 2. *The lawyer.* The server sees every hospital's update. An update tells the classes of the images, so in our case which diagnoses a hospital has. Other hospitals see the model of their
#    cluster. A model of a cluster of one is that hospital's own model, and an attacker finds its training images more often (Figure 3 of 10b). Noise helps only with an ε that we can name. At an
#    ε at which clusters survive, the promise is empty (Figure 4 of lesson 10). So we do not promise differential privacy. A hospital that ends in a cluster of one stops sending, although the server has its earlier updates.
# 3. *Newcomers.* They train the kept model once, and get a cluster. If their accuracy on validation images is below that of a model of their own, we find the clusters again at once.
# 4. *Changes.* Each hospital watches the accuracy of its model on its newest images. A fall is a reason to find the clusters again.

# %% tags=["exercise"]
exercise = Explain(
    "Hospitals that come late",
    minutes=25,
    level="hard",
    points=4,
    rubric=(
        (1, "Says what is seen by the server and by other clients, for the chosen method."),
        (
            1,
            "Says what happens to a hospital that comes later, and to one of a new kind, with "
            "a scene of the lesson as the reason.",
        ),
        (
            1,
            "Does not promise privacy by noise without a number: names ε, and what it costs "
            "small clusters.",
        ),
        (1, "Says how one would notice a hospital that has changed, and what is then done."),
    ),
)
