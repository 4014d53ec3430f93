# %% [markdown]
# # Exercises: when clients disagree
#
# They belong to the lesson [02 Who wins depends on the test](../02_when_clients_disagree.ipynb). Functions get NumPy arrays,
# whole numbers, and lists of NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning (OCFL), extended
# version, section 3.1.

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 02.1
#
# A pool has $N$ images, and `labels` has their classes, which are whole numbers from 0. The list `held` has one array
# per client, with the indices of the client's images in the pool. No client holds an image twice, but two clients can
# hold the same image.
#
# Write the matrix of class counts. The entry in row $i$ and column $y$ is the number of images of class $y$ that client
# $i$ holds. The number of columns is $C$, the largest label of the pool plus one. A class that no client holds has a
# column of zeros.


# %%
def class_counts(labels, held):
    """Return the counts [m, C] for the labels [N] of a pool and the indices of m clients."""
    ### BEGIN SOLUTION
    counts = np.zeros((len(held), labels.max() + 1), dtype=int)
    for client, indices in enumerate(held):
        for label in labels[indices]:
            counts[client, label] += 1
    return counts
    ### END SOLUTION


# %%
check("02.1", class_counts)


# %% tags=["exercise"]
def class_shares(counts):
    """Compute the class distribution of each client from counts ``[m, C]``."""
    return counts / counts.sum(axis=1, keepdims=True)


def over_the_held_classes(labels, held):
    classes = max(int(labels[own].max(initial=0)) for own in held) + 1
    return class_counts(labels, held)[:, :classes]


def a_pool_and_its_owners(rng):
    """Draw the labels of a pool, in which classes may be missing, and the images of each client."""
    classes, m = int(rng.integers(3, 7)), int(rng.integers(2, 7))
    names = np.sort(rng.choice(classes + 2, classes, replace=False))
    labels = rng.permutation(np.concatenate([names, rng.choice(names, size=30)]))
    held = [draw_different(rng, len(labels), 3, 16) for _ in range(m)]
    if rng.random() < 0.3:  # nobody holds the last class
        held = [own[labels[own] < labels.max()] for own in held]
    return labels, held


def draw_different(rng, pool, low, high):
    """Draw from ``low`` to ``high`` - 1 different images of a pool, in ascending order."""
    return np.sort(rng.choice(pool, int(rng.integers(low, high)), replace=False))


exercise = Implement(
    "Class counts",
    minutes=10,
    level="easy",
    points=1,
    inputs=a_pool_and_its_owners,
    mistakes={
        "The rows add up to one. These are shares, and not counts.": (
            lambda labels, held: class_shares(class_counts(labels, held))
        ),
        "Rows and columns are swapped. There is one row per client.": (
            lambda labels, held: class_counts(labels, held).T
        ),
        "You note whether a client has a class. Count its images of this class.": (
            lambda labels, held: (class_counts(labels, held) > 0).astype(int)
        ),
        "You divide by the number of images of the class in the pool. Only count.": (
            lambda labels, held: class_counts(labels, held) / np.maximum(np.bincount(labels), 1)
        ),
        "A column is missing at the end. C comes from the labels of the whole pool, whether "
        "clients hold them or not.": (over_the_held_classes),
        "There are too few columns. There are as many as the largest label plus one.": (
            lambda labels, held: class_counts(labels, held)[:, np.unique(labels)]
        ),
    },
)

# %% [markdown]
# ## 02.2
#
# A client draws $n$ times with replacement from a pool of $N$ images, and keeps each image once. In each draw, all
# images are equally likely. A single draw therefore misses a given image with probability $1 - 1/N$.
#
# How many different images does the client keep in expectation? Write the exact expectation. The approximation with the
# exponential function is too coarse for small pools.


# %%
def expected_different(pool, draws):
    """Return the expected number of different images, for N = pool and n = draws."""
    ### BEGIN SOLUTION
    never = (1 - 1 / pool) ** draws  # the probability that an image is never drawn
    return pool * (1 - never)
    ### END SOLUTION


# %%
check("02.2", expected_different)


# %% tags=["exercise"]
def a_pool_and_draws(rng):
    """Draw a small pool, and fewer or more draws than it has images."""
    return int(rng.integers(3, 20)), int(rng.integers(2, 40))


exercise = Implement(
    "What remains of the draws",
    minutes=10,
    level="easy",
    points=1,
    inputs=a_pool_and_draws,
    mistakes={
        "No draw repeats another one here. With replacement, some images are drawn again.": (
            lambda pool, draws: draws
        ),
        "This is the largest possible number. The expected number is smaller, because some "
        "images are drawn again.": lambda pool, draws: min(pool, draws),
        "This is the approximation for large pools. Write the exact expectation.": (
            lambda pool, draws: pool * (1 - np.exp(-draws / pool))
        ),
        "This is the number of images that are never drawn.": (
            lambda pool, draws: pool * (1 - 1 / pool) ** draws
        ),
        "This is the probability that one image is drawn. How many images are there?": (
            lambda pool, draws: 1 - (1 - 1 / pool) ** draws
        ),
        "You confuse the size of the pool with the number of draws.": (
            lambda pool, draws: expected_different(draws, pool)
        ),
    },
)

# %% [markdown]
# ## 02.3
#
# Write the leaked share of [02b](../02b_four_scenarios.ipynb#test-images-that-others-train-on):
#
# 1. For each client, take the share of its test images that at least one *other* client *of the same cluster* trains
#    on. An image counts once, however many clients train on it. A client that is alone in its cluster has the share 0.
# 2. Return the mean of these shares over all clients. All clients count alike.
#
# The lists `train` and `test` have one array of indices per client. No test set is empty. No client trains on its own test images. The entry $i$ of `clusters`
# is the cluster of client $i$.


# %%
def leaked_share(train, test, clusters):
    """Return the leaked share, a number in [0, 1], for lists of m arrays and clusters [m]."""
    ### BEGIN SOLUTION
    shares = []
    for client, cluster in enumerate(clusters):
        known = set()
        for other in range(len(clusters)):
            if other != client and clusters[other] == cluster:
                known |= set(train[other].tolist())
        shares.append(np.mean([image in known for image in test[client].tolist()]))
    return np.mean(shares)
    ### END SOLUTION


# %%
check("02.3", leaked_share)


# %% tags=["exercise"]
def mates_of(client, clusters):
    """Return the other clients of a client's cluster."""
    same = np.flatnonzero(clusters == clusters[client]).tolist()
    return [mate for mate in same if mate != client]


def known_shares(trained, tested, clusters):
    """Compute the share ``[m]`` of each client's test images that others of its cluster train."""
    shares = np.zeros(len(clusters))
    for client, own in enumerate(tested):
        known = [np.isin(own, trained[mate]) for mate in mates_of(client, clusters)]
        shares[client] = np.any(known, axis=0).mean()  # 0 for a client that is alone
    return shares


def training_and_test_sets(rng):
    """Draw clusters, one of which may have one client or none, and each client's samples."""
    others = rng.integers(3, size=int(rng.integers(1, 4)))
    clusters = rng.permutation(np.concatenate([[0, 0, 1, 1], others]))
    held = [rng.permutation(draw_different(rng, 40, 8, 25)) for _ in clusters]
    cuts = [round(len(own) * float(rng.uniform(0.2, 0.5))) for own in held]
    train = [np.sort(own[cut:]) for own, cut in zip(held, cuts, strict=True)]
    test = [np.sort(own[:cut]) for own, cut in zip(held, cuts, strict=True)]
    return train, test, clusters


def without_lone_clients(train, test, clusters):
    company = np.bincount(clusters)[clusters] > 1
    return float(known_shares(train, test, clusters)[company].mean())


def once_per_mate(train, test, clusters):
    shares = [
        sum(float(np.isin(own, train[mate]).mean()) for mate in mates_of(client, clusters))
        for client, own in enumerate(test)
    ]
    return float(np.mean(shares))


exercise = Implement(
    "Test images that others train on",
    minutes=20,
    level="medium",
    points=2,
    inputs=training_and_test_sets,
    mistakes={
        "You count the clients of all clusters. Only those of the same cluster count here.": (
            lambda train, test, clusters: leaked_share(train, test, np.zeros_like(clusters))
        ),
        "You pool the test images of all clients. Compute the share of each client first, and "
        "then the mean over clients.": lambda train, test, clusters: float(
            np.average(known_shares(train, test, clusters), weights=[len(one) for one in test])
        ),
        "You look into the test sets of the other clients. Do they train on them?": (
            lambda train, test, clusters: leaked_share(test, test, clusters)
        ),
        "You take shares of the training images. Ask how many test images are leaked.": (
            lambda train, test, clusters: leaked_share(test, train, clusters)
        ),
        "You leave out the clients that are alone in their cluster. They have a share of 0, "
        "and they count in the mean.": without_lone_clients,
        "An image counts several times here, if several clients train on it. Count it once.": (
            once_per_mate
        ),
    },
)

# %% [markdown]
# ## 02.4
#
# Let $\varphi_i(y)$ be the share of class $y$ among the images of client $i$. The total variation distance of two
# clients is
#
# $$\mathrm{TV}(\varphi_i, \varphi_j) = \tfrac12 \sum_y \lvert \varphi_i(y) - \varphi_j(y) \rvert
# = 1 - \sum_y \min\bigl(\varphi_i(y), \varphi_j(y)\bigr).$$
#
# The two formulas have the same value. The second one subtracts what the two clients have in common. Appendix 02b has
# code for the first formula, so try the second one. Each client has at least one image.


# %%
def variation(counts):
    """Return the distances [m, m] of all pairs of clients for class counts [m, C]."""
    ### BEGIN SOLUTION
    shares = counts / counts.sum(axis=1, keepdims=True)
    in_common = np.minimum(shares[:, None], shares[None]).sum(axis=2)
    return 1 - in_common
    ### END SOLUTION


# %%
check("02.4", variation)


# %% tags=["exercise"]
from scipy.spatial.distance import cdist


def counts_with_gaps(rng):
    """Draw class counts of clients, of which each misses some classes."""
    m, classes = int(rng.integers(2, 6)), int(rng.integers(3, 7))
    counts = rng.integers(1, 20, (m, classes)) * (rng.random((m, classes)) < 0.7)
    counts[np.arange(m), rng.integers(classes, size=m)] += 5
    return (counts,)


def from_shares_of_classes(counts):
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    return cdist(shares, shares, "cityblock") / 2


exercise = Implement(
    "Total variation distance",
    minutes=15,
    level="medium",
    points=2,
    inputs=counts_with_gaps,
    mistakes={
        "The values are twice as large as they should be. What is the distance of two clients "
        "with no class in common?": lambda counts: 2 * variation(counts),
        "You compare counts. A client with more images would then be far from all others. "
        "Compare distributions.": lambda counts: cdist(counts, counts, "cityblock") / 2,
        "The differences are squared. The definition has their absolute values.": (
            lambda counts: cdist(class_shares(counts), class_shares(counts), "sqeuclidean") / 2
        ),
        "You take the largest difference of a single class. Sum over the classes.": (
            lambda counts: cdist(class_shares(counts), class_shares(counts), "chebyshev")
        ),
        "You divide by the number of images of the class. The distribution of a client sums to "
        "one over the classes.": from_shares_of_classes,
        "This is what two clients have in common. It is 1 for equal distributions, and the "
        "distance is then 0.": lambda counts: 1 - variation(counts),
    },
)

# %% [markdown]
# ## 02.5
#
# Two clients of one cluster draw with replacement from the same pool of $N = 100$ equally likely images. Client 0 draws
# 50 times, and client 1 draws 100 times. Each of them drops repeated images.
#
# How many images do the two clients share in expectation? Write one of the numbers `3`, `25`, `39` and `50`, which are
# rounded. The check then repeats the draws 3,000 times. Your function of 02.2 may help.

# %%
### BEGIN SOLUTION
prediction = 25
### END SOLUTION

# %%
check("02.5", prediction)


# %% tags=["exercise"]
def mean_shared():
    """Let two clients draw 50 and 100 of 100 images, often; return how many images they share."""
    rng = np.random.default_rng(0)
    shared = [
        len(np.intersect1d(rng.integers(100, size=50), rng.integers(100, size=100)))
        for _ in range(3000)
    ]
    return float(np.mean(shared))


exercise = Predict(
    "How much do two clients share?",
    minutes=10,
    level="medium",
    points=1,
    measure=mean_shared,
    mistakes={
        "This is the product of the draws, divided by the size of the pool. Repeated draws are "
        "dropped. How many different images does each client keep?": 50,
        "All images of client 0 would then be among those of client 1. But client 1 does not "
        "hold the whole pool.": 39,
        "The clients would then share as few images as possible. But neither of them knows "
        "what the other one draws.": 3,
    },
    because="Client 0 keeps k₀ ≈ 39.5 images and client 1 keeps k₁ ≈ 63.4. Each image that "
    "client 0 keeps is also with client 1 with probability k₁ / N. They share k₀ k₁ / N ≈ 25.",
    tolerance=0.05,
)

# %% [markdown]
# ## 02.6
#
# In a federation, other clients of the same cluster train on half of a client's test images.
#
# 1. What does the accuracy on this test set then measure?
# 2. Which models does it flatter, and which not? What does this mean for a comparison of a cluster's model with a model
#    that the client trains alone?
# 3. How would you split the images instead?

# %% [markdown] tags=["answer"]
# 1. A test set should measure the accuracy on new images of the client. Here, half of the images are training images of
#    any model that the clients of the cluster train together. So the accuracy is a mixture of what the model has
#    learned about new images and of what it has fitted. It is usually too high for new images, and more so the more
#    closely the model fits its training images.
# 2. It flatters each model that other clients of the cluster help to train: the model of the cluster, that of an
#    oracle, and also a single model for all clients. It does not flatter a model that the client trains alone, because
#    a client never trains on its own test images. In a comparison, the cluster's model therefore seems to gain more
#    from the cooperation than it does. Among methods with clusters, one that leaves a client alone loses this
#    advantage, too. The central test set is not affected.
# 3. Divide the pool into training images and test images before any client draws. Each client then draws its training
#    set from the first part and its test set from the second part. Both draws have the class probabilities of its cluster. An
#    image has the same role for all clients. Clients can still share training images, and they can share test images.

# %% tags=["exercise"]
exercise = Explain(
    "What a leaked test set measures",
    minutes=15,
    level="medium",
    points=3,
    rubric=(
        (
            1,
            "Says that the accuracy is in part one on training images of the model. It "
            "overestimates the accuracy on new images of the client.",
        ),
        (
            1,
            "Says that it flatters models that several clients of the cluster train, such as "
            "the cluster's or a shared model. It does not flatter a client's model trained "
            "alone, so that a comparison of the two is unfair.",
        ),
        (
            1,
            "Divides the pool into training and test images before any client draws, or gives "
            "each image the same role for all clients in another way. Each client's test "
            "images still come from its own distribution.",
        ),
    ),
)

# %% [markdown]
# ## 02.7
#
# A share $p$ of a client's test images is of classes that its group does not have, and the others are like its own. A model with the
# accuracy $a$ on images like the client's own, and $b$ on foreign ones, reaches $(1 - p)\, a + p\, b$.
#
# The arrays `home` and `foreign` have the accuracies $a$ and $b$ of two models. At which share $p$ are the two models equally good? One model is better
# at home, and the other one on foreign images.


# %%
def crossing(home, foreign):
    """Return the share p at which two models tie, for two accuracies at home and two abroad."""
    ### BEGIN SOLUTION
    lead_at_home = home[0] - home[1]
    lead_abroad = foreign[0] - foreign[1]
    return lead_at_home / (lead_at_home - lead_abroad)
    ### END SOLUTION


# %%
check("02.7", crossing)


# %% tags=["exercise"]
def two_models(rng):
    """Draw the accuracies of two models, of which each is better in one place."""
    low, high = rng.uniform(0.1, 0.45, 2), rng.uniform(0.55, 1, 2)
    home, foreign = np.array([low[0], high[0]]), np.array([high[1], low[1]])
    return (home, foreign) if rng.random() < 0.5 else (home[::-1].copy(), foreign[::-1].copy())


exercise = Implement(
    "Where two models tie",
    minutes=10,
    level="easy",
    points=1,
    inputs=two_models,
    mistakes={
        "This is the share of the client's own images. Foreign images have the rest.": (
            lambda home, foreign: 1 - crossing(home, foreign)
        ),
        "This share has the wrong sign. In which order do you subtract?": (
            lambda home, foreign: -crossing(home, foreign)
        ),
        "You divide the lead at home by the lead abroad. Divide by both leads together.": (
            lambda home, foreign: abs((home[0] - home[1]) / (foreign[0] - foreign[1]))
        ),
    },
)
