# %% [markdown]
# # Exercises: Privacy, and clients that come and go
#
# They belong to the lesson [10 Privacy, and clients that come and go](../10_privacy_and_clients_that_come_and_go.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

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

# %% [markdown]
# ## 10.7
#
# Twenty hospitals train models in clusters. Next year, ten more will join, some of which have a machine of a new kind. Hospitals replace their machines from time to time. A lawyer asks
# what the server and the other hospitals can learn about the patients. Write half a page: which method do you propose, what do you answer to the lawyer, and what happens to newcomers and to hospitals that change?

# %% [markdown] tags=["answer"]
# 1. *The method.* OCFL that finds its clusters again every few rounds. One-shot clusters would put hospitals with a new kind of machine into a cluster of others (scene "late group"). They would keep a
#    hospital that has replaced its machine where it was (scene "drift"). IFCA also follows, but it must be told the number of groups, and it sends all models to all hospitals.
# 2. *The lawyer.* The server sees every hospital's update. An update tells the classes of the images, so in our case which diagnoses a hospital has. Other hospitals see the model of their
#    cluster. A model of a cluster of one is that hospital's own model, and an attacker finds its training images more often (Figure 3). Noise helps only with an ε that we can name. At an
#    ε at which clusters survive, the promise is empty (Figure 1). So we do not promise differential privacy. A hospital that ends in a cluster of one stops sending, although the server has its earlier updates.
# 3. *Newcomers.* They train the kept model once, and get a cluster. If their accuracy on validation images is below that of a model of their own, we find the clusters again at once.
# 4. *Changes.* Each hospital watches the accuracy of its model on its newest images. A fall is a reason to find the clusters again.
