# %% [markdown]
# # Exercises: when clients disagree
#
# They belong to the lesson [02 When clients disagree](../02_when_clients_disagree.ipynb). Functions get NumPy arrays,
# whole numbers, and lists of NumPy arrays.

# %%
import numpy as np

from cflkit import check

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

# %% [markdown]
# ## 02.3
#
# Write the leaked share as the lesson defines it:
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

# %% [markdown]
# ## 02.4
#
# Let $\varphi_i(y)$ be the share of class $y$ among the images of client $i$. The total variation distance of two
# clients is
#
# $$\mathrm{TV}(\varphi_i, \varphi_j) = \tfrac12 \sum_y \lvert \varphi_i(y) - \varphi_j(y) \rvert
# = 1 - \sum_y \min\bigl(\varphi_i(y), \varphi_j(y)\bigr).$$
#
# The two formulas have the same value. The second one subtracts what the two clients have in common. The lesson has
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
