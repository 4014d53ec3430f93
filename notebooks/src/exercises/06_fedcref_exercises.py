# %% [markdown]
# # Exercises: FedCRef
#
# They belong to the lesson [06 FedCRef](../06_fedcref.ipynb). Each function gets NumPy arrays and numbers.

# %%
import numpy as np
from scipy.optimize import linear_sum_assignment

from cflkit import check

# %% tags=["exercise"]
# M. Nardi, L. Valerio, A. Passarella, arXiv 2408.10664.

from cflkit.course.exercises import Explain, Implement, Predict, same_groups

# %% [markdown]
# ## 06.1
#
# A client has $n$ images in its local cluster $q$. Its own network of $q$ has the reconstruction error $e_k$ on image
# $k$. It also received $L$ networks from other clients. Network $r$ has the error $e_k^r$ on the same image. For each
# network $r$, the client computes
#
# $$d_k = \lvert e_k - e_k^r \rvert, \qquad \tilde d_k = \frac{d_k - \min_l d_l}{\max_l d_l - \min_l d_l}.$$
#
# The minimum and the maximum are over all images $l$ of $q$. Each network has its own minimum and maximum. You may
# assume that they differ.


# %%
def scaled_differences(own, others):
    """Return the scaled differences [L, n] for the own errors [n] and those of others [L, n]."""
    ### BEGIN SOLUTION
    d = np.abs(others - own)
    low, high = d.min(axis=1, keepdims=True), d.max(axis=1, keepdims=True)
    return (d - low) / (high - low)
    ### END SOLUTION


# %%
check("06.1", scaled_differences)


# %% tags=["exercise"]
def errors_on_images(rng):
    """Draw the errors of a network, and of a few others, on the same images."""
    others, images = rng.integers(3, 6), rng.integers(6, 12)
    return rng.uniform(0.02, 0.1, images), rng.uniform(0.02, 0.1, (others, images))


def scaled_over(gaps, axis):
    """Scale by the smallest and the largest value along an axis, or of the whole array."""
    low, high = gaps.min(axis=axis, keepdims=True), gaps.max(axis=axis, keepdims=True)
    return (gaps - low) / (high - low)


exercise = Implement(
    "Scaled differences of errors",
    minutes=10,
    level="easy",
    points=1,
    inputs=errors_on_images,
    mistakes={
        "You divide by the largest difference only. Where must the smallest difference go?": (
            lambda own, others: (
                np.abs(others - own) / np.abs(others - own).max(axis=1, keepdims=True)
            )
        ),
        "You scale along the wrong axis. Each network needs its own smallest and largest "
        "difference, over all images.": lambda own, others: scaled_over(np.abs(others - own), 0),
        "All networks share one smallest and one largest difference. Each needs its own.": (
            lambda own, others: scaled_over(np.abs(others - own), None)
        ),
        "The scale is upside down. Which image must get 0?": (
            lambda own, others: 1 - scaled_differences(own, others)
        ),
        "Your differences have signs. It must not matter which network errs more.": (
            lambda own, others: scaled_over(others - own, 1)
        ),
    },
)

# %% [markdown]
# ## 06.2
#
# Local cluster $q$ of one client has $n_q$ images, and local cluster $r$ of another client has $n_r$ images. The array
# `on_q` has the errors on the images of $q$. Its first row is from the network of $q$, and its second row is from the
# network of $r$. The array `on_r` has the errors of the same two networks, in the same order, on the images of $r$.
#
# The first client agrees if $\tilde d_k \le \vartheta$ holds for at least a share α of the images of $q$ (0.75, for example). The second
# client asks the same on the images of $r$. The two local clusters are associated if both clients agree. The minimum
# and the maximum in $\tilde d_k$ are always over the images of one local cluster. They differ in all inputs.


# %%
def associated(on_q, on_r, alpha, threshold):
    """Return True or False for errors [2, n_q] and [2, n_r], a share alpha and a threshold ϑ."""
    ### BEGIN SOLUTION
    for errors in (on_q, on_r):
        d = scaled_differences(errors[0], errors[1:])[0]
        if (d <= threshold).mean() < alpha:
            return False
    return True
    ### END SOLUTION


# %%
check("06.2", associated)


# %% tags=["exercise"]
def two_local_clusters(rng):
    """Draw errors on two local clusters, on each of which the networks agree or not."""
    alpha, threshold = float(rng.choice([0.65, 0.7, 0.75, 0.8])), rng.uniform(0.2, 0.45)
    return (
        errors_of_two(rng, alpha, threshold),
        errors_of_two(rng, alpha, threshold),
        alpha,
        threshold,
    )


def errors_of_two(rng, alpha, threshold):
    """Draw the errors ``[2, n]`` of two networks; the share within ϑ is never close to α."""
    n = int(rng.integers(20, 40))
    needed = alpha * n
    few, some, many = (
        (1, max(2, int(n - needed) - 1)),  # a smaller share than 1 − α
        (int(n - needed) + 2, int(needed) - 1),
        (int(needed) + 3, n),
    )
    within = int(rng.integers(*[few, some, many, many][rng.integers(4)]))
    # Often many differences just below ϑ and some large ones, or few just above ϑ and many tiny
    # ones, so that the mean lies on the other side of ϑ than the quantile
    near = (within > needed) == (rng.random() < 0.75)
    low = threshold * rng.uniform(*((0.85, 0.98) if near else (0.0, 0.3)), within)
    high = rng.uniform(threshold + 0.05, 1.0 if near else threshold + 0.1, n - within)
    low[0], high[0] = 0, 1
    gaps = rng.uniform(0, 0.005) + 0.04 * rng.permutation(np.concatenate([low, high]))
    own = rng.uniform(0.06, 0.1, n)
    return np.stack([own, own + rng.choice([-1, 1], n) * gaps])


def agree_on(errors, rule):
    """Apply a rule to the scaled differences of two networks."""
    return rule(scaled_over(np.abs(errors[0] - errors[1]), None))


def quantile_within(alpha, threshold):
    """Build the rule that the α-quantile is at most ϑ."""
    return lambda gaps: bool(np.quantile(gaps, alpha, method="inverted_cdf") <= threshold)


def by_the_mean(on_q, on_r, alpha, threshold):
    return all(
        agree_on(errors, lambda gaps: bool(gaps.mean() <= threshold)) for errors in (on_q, on_r)
    )


def in_one_direction(on_q, on_r, alpha, threshold):
    return any(agree_on(errors, quantile_within(alpha, threshold)) for errors in (on_q, on_r))


def with_large_differences(on_q, on_r, alpha, threshold):
    rule = quantile_within(alpha, threshold)
    return not any(agree_on(errors, rule) for errors in (on_q, on_r))


def without_scaling(on_q, on_r, alpha, threshold):
    gaps = [np.abs(errors[0] - errors[1]) for errors in (on_q, on_r)]
    return all(quantile_within(alpha, threshold)(one) for one in gaps)


exercise = Implement(
    "Are two local clusters associated?",
    minutes=15,
    level="medium",
    points=2,
    inputs=two_local_clusters,
    mistakes={
        "You compare the mean difference with ϑ. The rule counts images instead.": by_the_mean,
        "One direction suffices for you. Both clients must agree.": in_one_direction,
        "Your inequality points the wrong way. Do small differences speak for or against an "
        "association?": with_large_differences,
        "Your function asks for a share 1 − α of the images, and not for α. How many images may "
        "exceed ϑ?": (
            lambda on_q, on_r, alpha, threshold: associated(on_q, on_r, 1 - alpha, threshold)
        ),
        "You compare differences with ϑ as they are. Scale them first.": without_scaling,
    },
)

# %% [markdown]
# ## 06.3
#
# Compute the clustering accuracy, ACC. Each cluster gets the name of at most one class, and each class gives its name
# to at most one cluster. These names are chosen so that as many images as possible are right. ACC is the share of right
# images among all images. An image in a cluster without a name is wrong.
#
# Classes and clusters have any integers as their labels. There may be more classes than clusters, or fewer. You may use
# `rows, columns = linear_sum_assignment(table, maximize=True)`. It is the Hungarian algorithm of SciPy: it chooses
# entries of the table with the largest sum, at most one per row and one per column. The table need not be square.


# %%
def clustering_accuracy(truth, found):
    """Return ACC, a number in (0, 1], for the classes [n] and the clusters [n] of n images."""
    ### BEGIN SOLUTION
    classes, clusters = np.unique(truth), np.unique(found)
    table = np.array([[np.sum((truth == c) & (found == k)) for k in clusters] for c in classes])
    rows, columns = linear_sum_assignment(table, maximize=True)
    return table[rows, columns].sum() / len(truth)
    ### END SOLUTION


# %%
check("06.3", clustering_accuracy)


# %% tags=["exercise"]
from sklearn.metrics.cluster import contingency_matrix

from cflkit.course.sources import hidden
from cflkit.metrics import matched


def a_clustering(rng):
    """Draw classes, and clusters that are as many, fewer or more."""
    classes, clusters = rng.integers(3, 5), rng.integers(2, 6)
    counts = rng.integers(1, 15, (classes, clusters))
    row, column = np.indices(counts.shape)
    names = rng.choice(10, classes, replace=False)
    truth, found = names[np.repeat(row, counts.ravel())], np.repeat(column, counts.ravel())
    order = rng.permutation(len(truth))
    return truth[order], found[order]


def greedy(truth, found):
    together, right = contingency_matrix(truth, found), 0.0
    for _ in range(min(together.shape)):
        i, j = np.unravel_index(together.argmax(), together.shape)
        right += together[i, j]
        together[i], together[:, j] = -1, -1
    return right / len(truth)


def mean_over_classes(truth, found):
    names = matched(truth, found)
    right = np.array([names.get(int(cluster), -1) for cluster in found]) == truth
    return float(np.mean([right[truth == k].mean() for k in np.unique(truth)]))


def per_class(truth, found):
    return clustering_accuracy(truth, found) * len(truth) / len(np.unique(truth))


exercise = Implement(
    "Clustering accuracy",
    minutes=15,
    level="medium",
    points=2,
    inputs=a_clustering,
    mistakes={
        "This is purity, in which two clusters may have the name of the same class.": hidden(
            "90.3", "purity"
        ),
        "You compare the labels as they are. The number of a cluster means nothing.": (
            lambda truth, found: float((truth == found).mean())
        ),
        "You divide by the number of classes. ACC is a share of all images.": per_class,
        "You average the shares of the classes. Every image counts the same.": mean_over_classes,
        "You match the largest overlap first, then the next. The best matching may need a "
        "smaller overlap for one cluster, so that another cluster gains more.": greedy,
    },
)

# %% [markdown]
# ## 06.4
#
# There are $n$ local clusters with the numbers 0 to $n - 1$. Each row of `pairs` has the numbers of two local clusters
# that are associated. An association has no direction.
#
# Find the connected components. Two local clusters belong to the same component if a chain of associations joins them.
# A component of two local clusters or more is a community. A local cluster without an association is isolated, and is a
# component of its own. Return one integer per local cluster. Two local clusters get the same integer exactly if they
# belong to the same component. Which integers you choose does not matter.


# %%
def components(n, pairs):
    """Return the component of each local cluster, integers [n], for associated pairs [p, 2]."""
    ### BEGIN SOLUTION
    labels = np.arange(n)
    for i, j in pairs:
        labels[labels == labels[j]] = labels[i]
    return labels
    ### END SOLUTION


# %%
check("06.4", components)


# %% tags=["exercise"]
def associations(rng):
    """Draw chains of associations with a few branches, and some isolated local clusters."""
    sizes = [int(rng.integers(4, 7)), int(rng.integers(3, 5)), 2]
    backwards = rng.random() < 0.3  # from the end of a long chain to its beginning
    sizes[0] += 4 * backwards
    n = sum(sizes) + int(rng.integers(2, 4))
    names = rng.permutation(n)
    pairs, start = [], 0
    for size in sizes:
        for place in range(start + 1, start + size):
            # Mostly the one before it in the chain, and sometimes an earlier one
            earlier = rng.random() < 0.3 and not backwards
            before = rng.integers(start, place) if earlier else place - 1
            pairs.append(rng.permutation([names[before], names[place]]))
        start += size
    return n, np.array(pairs)[::-1] if backwards else rng.permutation(np.array(pairs))


def with_neighbours(n, pairs):
    labels = np.arange(n)
    for i, j in pairs:
        labels[i], labels[j] = min(labels[i], j), min(labels[j], i)
    return labels


def the_last_pair_wins(n, pairs):
    labels = np.arange(n)
    for i, j in pairs:
        labels[j] = labels[i]
    return labels


def isolated_together(n, pairs):
    labels = components(n, pairs)
    labels[~np.isin(np.arange(n), pairs)] = -1
    return labels


def one_way(n, pairs):
    labels = np.full(n, -1)
    for start in range(n):
        waiting = [start] if labels[start] < 0 else []
        while waiting:
            at = waiting.pop()
            labels[at] = start
            waiting += [int(j) for i, j in pairs if i == at and labels[j] < 0]
    return labels


exercise = Implement(
    "Communities",
    minutes=15,
    level="easy",
    points=1,
    inputs=associations,
    same=same_groups,
    mistakes={
        "You join direct neighbours only. A chain of associations also joins its two ends.": (
            with_neighbours
        ),
        "Each pair gives its second local cluster a new number, and forgets what was joined to "
        "it before. Which others must be renumbered, too?": the_last_pair_wins,
        "All isolated local clusters are in one group. Nothing joins them.": isolated_together,
        "You follow a pair from its first to its second member only. An association has no "
        "direction.": one_way,
    },
)

# %% [markdown]
# ## 06.5
#
# Somebody stores pixels as numbers from 0 to 10 instead of from 0 to 1. A mean squared error is then 100 times as
# large. Assume that nothing else changes: *all* networks have 100 times their former errors on all images. The
# parameters $\alpha$ and $\vartheta$ stay as they are.
#
# The appendix 06b has two normalisations. With `"min-max"`, the scaled differences $\tilde d_k$ are compared with ϑ. With
# `"absolute"`, the differences $d_k$ are compared with ϑ as they are. Each has its own ϑ, with which it found some
# associations before. Which normalisation still gives the same associations? Write `"min-max"`, `"absolute"`, `"both"`
# or `"neither"`. The check then associates 24 local clusters of eight clients, before and after.

# %%
### BEGIN SOLUTION
prediction = "min-max"
### END SOLUTION

# %%
check("06.5", prediction)


# %% tags=["exercise"]
from cflkit.methods.fedcref_variants import FedCRefVariant


def with_errors_times_100():
    """Associate local clusters by their errors, and by errors that are 100 times as large."""
    rng = np.random.default_rng(0)
    clients, classes, n = 8, 3, 60
    owner = np.repeat(np.arange(clients), classes)
    of_network = np.tile(np.arange(classes), clients)
    of_image = np.repeat(np.arange(classes), n)
    errors = []
    for _ in range(clients):
        errors_on = rng.uniform(0.01, 0.04, len(of_image)) + np.where(
            of_network[:, None] == of_image,
            rng.exponential(0.002, (len(owner), len(of_image))),
            rng.uniform(0.02, 0.08, (len(owner), len(of_image))),
        )
        errors.append(errors_on)
    thresholds = {"min-max": 0.45, "absolute": 0.015}
    kept = []
    for normalisation, theta in thresholds.items():
        method = FedCRefVariant(start=(), theta=theta, normalisation=normalisation)
        method.owner, method.samples = owner, [k * n + np.arange(n) for k in of_network]
        before = method.associated(errors)
        after = method.associated([100 * one for one in errors])
        assert 0 < before.sum() < before.size / 2
        if np.array_equal(before, after):
            kept.append(normalisation)
    return {0: "neither", 1: kept[0] if kept else "", 2: "both"}[len(kept)]


exercise = Predict(
    "Errors that are 100 times as large",
    minutes=5,
    level="medium",
    points=1,
    measure=with_errors_times_100,
    mistakes={
        "The differences are 100 times as large, too. What happens to them where they are "
        "compared with ϑ as they are?": "both",
        "ϑ is a number in the unit of the errors there, and the unit has changed. Which of the "
        "two rules does not know the unit?": "absolute",
        "All differences of a pair have the factor 100. Write it into the formula for the "
        "scaled difference. What remains of it?": "neither",
    },
    because="In min-max scaling, the factor 100 is in the numerator and in the denominator, "
    "and cancels. An absolute threshold has the unit of the errors, and must grow with them.",
)

# %% [markdown]
# ## 06.6
#
# Client $j$ wants the work of client $i$. For each of its own local clusters, it sends a copy of one of client $i$'s
# networks instead of a network of its own. It also uses these copies wherever it compares networks on its own images.
# Associations follow Algorithm 1 with min-max scaling. If two networks have the same error on every image, all scaled
# differences count as 0.
#
# With which local clusters of client $i$ is client $j$ associated for sure, whatever classes it holds? Both directions
# are asked: is that enough to protect the federation? What follows for the communities, and for a third client?

# %% [markdown] tags=["answer"]
# Let local cluster $r$ of client $j$ have a copy of the network of client $i$'s local cluster $q$. The copy has the
# same error as the original on *every* image, of whatever class. So $d_k = 0$ on all images of $q$. Client $i$ agrees
# for every $\vartheta \ge 0$ and every $\alpha$. On the images of $r$, the same two networks are compared, and again
# $d_k = 0$. So client $j$ agrees, too. Each local cluster of client $j$ is associated with the one whose network it
# copied.
#
# Both directions are therefore not enough. They help if every network was trained on the local cluster for which it
# speaks. Then the images of $r$ test what the network of $q$ knows. Here neither test depends on the images. Client $j$
# could also lie: it computes the second answer itself, and nobody else sees its images.
#
# One association suffices to enter a community. So $r$ is in the community of $q$ and of all local clusters that are
# connected with $q$, even if it holds another class. Client $j$ receives the community's model, which it might have for
# nothing. In federated averaging, it also trains this model on images of a wrong class. A third client compares its
# local cluster $s$ with $r$. On the images of $s$, the copy passes exactly if the original does. On the images of $r$,
# the classes of client $j$ play a role, so a direct association is not sure. It is not needed either, because $q$
# already joins $r$ with the partners of $q$.

# %% tags=["exercise"]
exercise = Explain(
    "A client that copies networks",
    minutes=20,
    level="hard",
    points=3,
    rubric=(
        (
            1,
            "Two equal networks have equal errors on every image of any class. All differences "
            "are zero, so the local cluster is associated with the one of the original for "
            "every ϑ and α.",
        ),
        (
            1,
            "Both directions are not enough: each compares a network with its own copy. "
            "Client j even answers the second question itself.",
        ),
        (
            1,
            "Says what follows: client j's local cluster is in the community of the original, "
            "whatever its images are, and so trains this community's model. Compared with a "
            "third client, the networks are equal to the originals, but one direction is asked "
            "on client j's own images.",
        ),
    ),
)
