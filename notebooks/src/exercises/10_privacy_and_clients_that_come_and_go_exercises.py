# %% [markdown]
# # Exercises: What an update gives away, and clients that come and go
#
# They belong to the lesson [10 Hide and seek](../10_privacy_and_clients_that_come_and_go.ipynb), and 10.4 and 10.7 also to
# [11 Clients that come and go](../11_clients_that_come_and_go.ipynb). For 10.3, see the appendix
# [10b](../10b_privacy_and_change_controls.ipynb#who-was-a-member-an-attack). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# B. Zhao, K. R. Mopuri, H. Bilen: iDLG: improved deep leakage from gradients. 2020.
# S. Yeom et al.: Privacy risk in machine learning: analyzing the connection to overfitting. IEEE CSF
# 2018.

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 10.1
#
# A client takes *one* step of gradient descent with the learning rate $\eta$ on all of its images together. Its images have the shares $s_c$ of the
# classes, and the model predicts class $c$ with the mean probability $\bar p_c$. The output biases then change by
#
# $$\Delta b_c = -\eta\, (\bar p_c - s_c) .$$
#
# Somebody sees $\Delta b$ and knows $\bar p$ and $\eta$. Compute the shares.


# %%
def shares_from_step(change, predicted, lr):
    """Return the shares [C] for the change of the biases [C] and the mean predictions [C]."""
    ### BEGIN SOLUTION
    return change / lr + predicted
    ### END SOLUTION


# %%
check("10.1", shares_from_step)


# %% tags=["exercise"]
from scipy.special import softmax


def one_step(rng):
    """Draw a client's classes and predictions, and take one step on all of its images."""
    classes = int(rng.integers(3, 8))
    shares = rng.dirichlet(np.ones(classes))
    predicted, lr = softmax(rng.normal(size=classes)), float(rng.uniform(0.05, 0.5))
    return lr * (shares - predicted), predicted, lr


exercise = Implement(
    "What an update tells",
    minutes=10,
    level="easy",
    points=1,
    inputs=one_step,
    mistakes={
        "The predictions are missing. A bias goes down for a class that is predicted and "
        "absent.": lambda change, predicted, lr: change / lr,
        "A step goes against the gradient, so the sign changes once more.": (
            lambda change, predicted, lr: predicted - change / lr
        ),
        "Divide the change by the learning rate first.": (
            lambda change, predicted, lr: change + predicted
        ),
        "You multiply by the learning rate, and must divide.": (
            lambda change, predicted, lr: change * lr + predicted
        ),
    },
)

# %% [markdown]
# ## 10.2
#
# Protect the updates of $m$ clients. Shorten each update to the norm $C$ if it is longer. Then add $\sigma C z$, where $z$ are the given random draws.


# %%
def protected(updates, clip, noise, draws):
    """Return [m, P] for updates [m, P], C, σ and draws [m, P]."""
    ### BEGIN SOLUTION
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * np.minimum(1, clip / norms) + noise * clip * draws
    ### END SOLUTION


# %%
check("10.2", protected)


# %% tags=["exercise"]
def long_and_short_updates(rng):
    """Draw updates, one of which is shorter than the bound, and one longer."""
    m, size = int(rng.integers(3, 6)), int(rng.integers(3, 8))
    updates = rng.normal(size=(m, size))
    norms = np.linalg.norm(updates, axis=1)
    clip = float(norms.min() + rng.uniform(0.05, 0.95) * (norms.max() - norms.min()))
    return updates, clip, float(rng.uniform(0.1, 2)), rng.normal(size=(m, size))


def all_to_the_bound(updates, clip, noise, draws):
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * clip / norms + noise * clip * draws


exercise = Implement(
    "Clip and add noise",
    minutes=10,
    level="easy",
    points=1,
    inputs=long_and_short_updates,
    mistakes={
        "Short updates have become longer. Only those that are longer than C change.": (
            all_to_the_bound
        ),
        "The noise is measured in units of C.": lambda updates, clip, noise, draws: protected(
            updates, clip, noise / clip, draws
        ),
        "You clip each value. What is bounded is the norm of the whole update.": (
            lambda updates, clip, noise, draws: np.clip(updates, -clip, clip) + noise * clip * draws
        ),
        "You clip after adding the noise. Then the noise is clipped, too.": (
            lambda updates, clip, noise, draws: protected(
                updates + noise * clip * draws, clip, 0.0, draws
            )
        ),
    },
)

# %% [markdown]
# ## 10.3
#
# You get the losses of members and of other images. Compute the area under the ROC curve of the attack by the loss. It is the probability that a random member
# has a smaller loss than a random other image. Equal losses count half.


# %%
def area(members, others):
    """Return the AUC for losses of members [a] and of others [b]."""
    ### BEGIN SOLUTION
    smaller = (members[:, None] < others).mean()
    return smaller + (members[:, None] == others).mean() / 2
    ### END SOLUTION


# %%
check("10.3", area)


# %% tags=["exercise"]
def losses_with_ties(rng):
    """Draw losses of members and others, some of which are equal."""
    members = rng.integers(0, 6, int(rng.integers(5, 12))) / 4
    others = rng.integers(1, 8, int(rng.integers(5, 12))) / 4
    return members, others


exercise = Implement(
    "How good is an attack?",
    minutes=15,
    level="medium",
    points=2,
    inputs=losses_with_ties,
    mistakes={
        "The direction is wrong. A member has the smaller loss.": (
            lambda members, others: area(others, members)
        ),
        "Equal losses count as a success. They must count half.": (
            lambda members, others: float((members[:, None] <= others).mean())
        ),
        "Equal losses count as a failure. They must count half.": (
            lambda members, others: float((members[:, None] < others).mean())
        ),
    },
)

# %% [markdown]
# ## 10.4
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
check("10.4", attributed)


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
# ## 10.5
#
# Each of four clients adds independent noise with the standard deviation 0.2 to each parameter of its update. What is the standard deviation of the noise in the mean of
# the four updates?

# %%
### BEGIN SOLUTION
prediction = 0.1
### END SOLUTION

# %%
check("10.5", prediction)


# %% tags=["exercise"]
def noise_of_a_mean():
    """Measure the noise in the mean of four updates, each with a noise of 0.2."""
    draws = np.random.default_rng(0).normal(scale=0.2, size=(4, 1_000_000))
    return float(draws.mean(axis=0).std())


exercise = Predict(
    "Noise in good company",
    minutes=5,
    level="easy",
    points=1,
    measure=noise_of_a_mean,
    mistakes={
        "The noise is independent, so a part of it cancels.": 0.2,
        "The variance is divided by four. What follows for the standard deviation?": 0.05,
        "The noise of the sum would grow. What about the mean?": 0.4,
    },
    tolerance=0.001,
    because="In a mean of n independent values, the standard deviation is divided by the root "
    "of n. So a cluster of one has twice as much noise in its model as a cluster of four.",
)

# %% [markdown]
# ## 10.6
#
# A federation runs four times as many rounds as planned, and ε must stay the same. By which factor must the noise σ grow?

# %%
### BEGIN SOLUTION
prediction = 2.0
### END SOLUTION

# %%
check("10.6", prediction)


# %% tags=["exercise"]
from scipy.optimize import brentq

from cflkit.federation.privacy import epsilon


def noise_for_more_rounds():
    """Find the factor by which the noise grows if ε stays and there are four times the rounds."""
    target = epsilon(3.0, 10)
    return float(brentq(lambda factor: epsilon(3.0 * factor, 40) - target, 1, 5))


exercise = Predict(
    "Four times as many rounds",
    minutes=10,
    level="medium",
    points=1,
    measure=noise_for_more_rounds,
    mistakes={
        "ε depends on s = 2√T / σ alone. If T is four times as large, how much larger must σ "
        "be for the same s?": 4.0,
        "That is the factor for twice as many rounds. What is it for four times as many?": 2**0.5,
        "More rounds tell more, so the noise must grow.": 1.0,
    },
    tolerance=0.01,
    because="ε depends on √T / σ alone. Four times as many rounds need twice the noise.",
)

# %% [markdown]
# ## 10.7
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
