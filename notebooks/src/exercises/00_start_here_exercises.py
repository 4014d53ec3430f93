# %% [markdown]
# # Exercises: how well a model serves its clients
#
# They belong to the lesson [00 Start here](../00_start_here.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% [markdown]
# ## 00.1
#
# For each class $k$, let $h_k$ be the number of images with label $k$ that are predicted right. Let $l_k$ be the number
# of images with label $k$, and $a_k$ the number of images with prediction $k$. The F1 of the class is
#
# $$F_k = \frac{2 h_k}{l_k + a_k}.$$
#
# Macro-F1 is the mean of $F_k$ over all classes that occur among the labels **or** the predictions. A class that is
# predicted but has no label therefore counts, with $F_k = 0$. A class that occurs in neither of them does not count.
#
# Write macro-F1. Both arguments have at least one entry. Classes are whole numbers from 0, and there can be gaps
# between them.


# %%
def macro_f1(labels, predictions):
    """Return macro-F1, a number in [0, 1], of predicted classes [n] for labels [n]."""
    ### BEGIN SOLUTION
    f1 = []
    for k in np.union1d(labels, predictions):
        hits = np.sum((labels == k) & (predictions == k))
        f1.append(2 * hits / (np.sum(labels == k) + np.sum(predictions == k)))
    return np.mean(f1)
    ### END SOLUTION


# %%
check("00.1", macro_f1)

# %% [markdown]
# ## 00.2
#
# A client has test images of the classes 0, 1 and 2, with 20 images of each. A model answers each of them with class 0.
# Its accuracy is 1/3.
#
# How large is its macro-F1, as defined in 00.1? Write one of the numbers `1 / 9`, `1 / 6`, `1 / 3` and `1 / 2`. The
# check then computes it.

# %%
### BEGIN SOLUTION
prediction = 1 / 6
### END SOLUTION

# %%
check("00.2", prediction)

# %% [markdown]
# ## 00.3
#
# A method has put $m$ clients into clusters, and each cluster has a model. There are $K$ models. The entry in row $k$
# and column $j$ of `scores` is the score of model $k$ on the own test images of client $j$. The entry $j$ of `labels`
# is the cluster of client $j$, a whole number from 0 to $K - 1$. A cluster may have no client.
#
# Each client uses the model of its cluster. Return the mean over clients of the score on their own test images. All
# clients count alike.


# %%
def mean_own_score(scores, labels):
    """Return the mean over clients, a number, for scores [K, m] and clusters [m]."""
    ### BEGIN SOLUTION
    return np.mean([scores[cluster, client] for client, cluster in enumerate(labels)])
    ### END SOLUTION


# %%
check("00.3", mean_own_score)

# %% [markdown]
# ## 00.4
#
# Nine offices train one model by federated averaging. The organiser trains it once, and says: "The mean accuracy over
# all offices is 60 %. This proves that the one model serves your office."
#
# What would you ask to see before you believe it? Name at least three things, and say for each of them what the single
# number can hide.

# %% [markdown] tags=["answer"]
# 1. **The score on the office's own test images, and the spread over all offices.** A mean hides who is served. If six
#    offices have 85 % and three have 10 %, the mean is 60 %. The smallest value matters as much as the mean. It also
#    matters that these are own test images, because a central test set has classes that the office never sees.
# 2. **Macro-F1, or the scores of the single classes.** If 60 % of an office's images have one class, a model that
#    always answers with this class has an accuracy of 60 %. With three classes, its macro-F1 is only 0.25. Predictions
#    of classes that the office does not have lower macro-F1, too.
# 3. **The same numbers for several seeds, with their spread.** One training can be a lucky one. The office that is
#    served worst may be another one with the next seed.
# 4. **A comparison**, which is a fourth thing worth asking for. Whether 60 % is good depends on what else the office
#    could have: the model of its group, or a model that it trains alone. It also depends on the number of rounds,
#    because the accuracy may still be rising.
