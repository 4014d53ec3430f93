# %% [markdown]
# # Exercises: FedCRef
#
# They belong to the lesson [06 FedCRef](../06_fedcref.ipynb). Each function gets NumPy arrays and numbers.

# %%
import numpy as np
from scipy.optimize import linear_sum_assignment

from cflkit import check

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

# %% [markdown]
# ## 06.2
#
# Local cluster $q$ of one client has $n_q$ images, and local cluster $r$ of another client has $n_r$ images. The array
# `on_q` has the errors on the images of $q$. Its first row is from the network of $q$, and its second row is from the
# network of $r$. The array `on_r` has the errors of the same two networks, in the same order, on the images of $r$.
#
# The first client agrees if $\tilde d_k \le \theta$ holds for at least α per cent of the images of $q$. The second
# client asks the same on the images of $r$. The two local clusters are associated if both clients agree. The minimum
# and the maximum in $\tilde d_k$ are always over the images of one local cluster. They differ in all inputs.


# %%
def associated(on_q, on_r, alpha, theta):
    """Return True or False for errors [2, n_q] and [2, n_r], a percentage alpha and a bound theta."""
    ### BEGIN SOLUTION
    for errors in (on_q, on_r):
        d = scaled_differences(errors[0], errors[1:])[0]
        if 100 * (d <= theta).mean() < alpha:
            return False
    return True
    ### END SOLUTION


# %%
check("06.2", associated)

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

# %% [markdown]
# ## 06.5
#
# Somebody stores pixels as numbers from 0 to 10 instead of from 0 to 1. A mean squared error is then 100 times as
# large. Assume that nothing else changes: *all* networks have 100 times their former errors on all images. The
# parameters $\alpha$ and $\theta$ stay as they are.
#
# The lesson has two normalisations. With `"min-max"`, the scaled differences $\tilde d_k$ are compared with θ. With
# `"absolute"`, the differences $d_k$ are compared with θ as they are. Each has its own θ, with which it found some
# associations before. Which normalisation still gives the same associations? Write `"min-max"`, `"absolute"`, `"both"`
# or `"neither"`. The check then associates 24 local clusters of eight clients, before and after.

# %%
### BEGIN SOLUTION
prediction = "min-max"
### END SOLUTION

# %%
check("06.5", prediction)

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
# for every $\theta \ge 0$ and every $\alpha$. On the images of $r$, the same two networks are compared, and again
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
