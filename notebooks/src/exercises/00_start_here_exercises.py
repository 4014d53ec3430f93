# %% [markdown]
# # Exercises: how well a model serves its clients
#
# They belong to the lesson [00 Start here](../00_start_here.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning, IEEE BigData
# 2024, and its extended version.

from cflkit.course.exercises import Explain, Implement, Predict

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


# %% tags=["exercise"]
def labels_and_predictions(rng):
    """Draw a client's labels, and predictions that also have classes of other clients."""
    classes, n = rng.permutation(8), int(rng.integers(10, 30))
    own = int(rng.integers(2, 5))
    labels = rng.choice(classes[:own], n)
    wrong = rng.random(n) < 0.4
    wrong[0] = False
    return labels, np.where(wrong, rng.choice(classes[: own + 2], n), labels)


def counts_by_class(labels, predictions):
    """Count right answers, labels and predictions of each class that occurs."""
    occurring = np.union1d(labels, predictions)[:, None]
    is_label, is_prediction = labels == occurring, predictions == occurring
    counted = (is_label & is_prediction, is_label, is_prediction)
    hits, of_labels, of_predictions = (one.sum(axis=1).astype(float) for one in counted)
    return hits, of_labels, of_predictions


def mean_precision(labels, predictions):
    hits, _, predicted = counts_by_class(labels, predictions)
    return float((hits / np.maximum(predicted, 1)).mean())


def mean_recall(labels, predictions):
    hits, labelled, _ = counts_by_class(labels, predictions)
    return float((hits / np.maximum(labelled, 1)).mean())


def over_the_classes_of_labels(labels, predictions):
    hits, labelled, predicted = counts_by_class(labels, predictions)
    return float((2 * hits / (labelled + predicted))[labelled > 0].mean())


def over_all_numbers(labels, predictions):
    classes = max(labels.max(), predictions.max()) + 1
    occur = len(np.union1d(labels, predictions))
    return macro_f1(labels, predictions) * occur / int(classes)


def of_the_means(labels, predictions):
    precision, recall = mean_precision(labels, predictions), mean_recall(labels, predictions)
    return 2 * precision * recall / (precision + recall)


exercise = Implement(
    "Macro-F1",
    minutes=15,
    level="easy",
    points=2,
    inputs=labels_and_predictions,
    mistakes={
        "This is the accuracy. It counts images, and macro-F1 gives each class the same "
        "weight.": lambda labels, predictions: float((labels == predictions).mean()),
        "This is the mean precision. F1 also asks how many images of the class are found.": (
            mean_precision
        ),
        "This is the mean recall. F1 also asks how many predictions of the class are wrong.": (
            mean_recall
        ),
        "You average over too few classes. What about a class that the model predicts, but "
        "that no label has?": over_the_classes_of_labels,
        "A class that occurs neither among the labels nor among the predictions counts in your "
        "mean. Leave it out.": over_all_numbers,
        "You average precision and recall first. Compute F1 of each class, and then take the "
        "mean.": of_the_means,
    },
)

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


# %% tags=["exercise"]
def always_the_same_answer():
    """Compute macro-F1 of a model that answers with one of three classes of equal size."""
    labels = np.repeat([0, 1, 2], 20)
    return macro_f1(labels, np.zeros_like(labels))


exercise = Predict(
    "Always the same answer",
    minutes=5,
    level="easy",
    points=1,
    measure=always_the_same_answer,
    mistakes={
        "That is the accuracy, and also the mean recall. How do the many wrong predictions of "
        "class 0 enter its F1?": 1 / 3,
        "That is the F1 of class 0 alone. What is the F1 of the other two classes?": 1 / 2,
        "That is the mean precision. All images of class 0 are found, which also counts.": 1 / 9,
    },
    because="Class 0 has an F1 of 2 · 20 / (20 + 60) = 1/2. The other two classes have 0, and "
    "the mean is 1/6. Macro-F1 punishes an ignored class more than accuracy does.",
    tolerance=0.005,
)

# %% [markdown]
# ## 00.3
#
# A method has put $m$ clients into clusters, and each cluster has a model. There are $K$ models. The entry in row $k$
# and column $j$ of `scores` is the score of model $k$ on client $j$'s own test images. The entry $j$ of `labels`
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


# %% tags=["exercise"]
def scores_and_clusters(rng):
    """Draw scores, and clusters of unequal size of which some can be empty."""
    clusters, m = rng.integers(2, 5), int(rng.integers(5, 10))
    return rng.random((clusters, m)), rng.integers(clusters, size=m)


def mean_over_clusters(scores, labels):
    own = scores[labels, np.arange(len(labels))]
    return float(np.mean([own[labels == cluster].mean() for cluster in np.unique(labels)]))


exercise = Implement(
    "The mean over clients",
    minutes=10,
    level="easy",
    points=1,
    inputs=scores_and_clusters,
    mistakes={
        "You take the best model for each client. The client gets the model of its cluster, "
        "even if another one would serve it better.": (
            lambda scores, labels: float(scores.max(axis=0).mean())
        ),
        "All clusters have equal weights. A cluster with more clients must count more.": (
            mean_over_clusters
        ),
        "You average over all models. A client uses only the model of its cluster.": (
            lambda scores, labels: float(scores.mean())
        ),
        "You test each client's model on the test sets of all clients. Only its own counts.": (
            lambda scores, labels: float(scores[labels].mean())
        ),
    },
)

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

# %% tags=["exercise"]
exercise = Explain(
    "What does 60 % prove?",
    minutes=15,
    level="easy",
    points=3,
    rubric=(
        (
            1,
            "One point for each of three questions, with what the number can hide. For "
            "example: asks for the score on the office's own test images, or for all clients "
            "one by one. A mean can hide clients that are served badly.",
        ),
        (
            1,
            "Or asks for macro-F1 or scores per class. Accuracy can hide classes that the "
            "model ignores, or predicts although the office does not have them.",
        ),
        (
            1,
            "Or asks for several seeds and their spread, since one training can be a lucky "
            "one. Or asks for a comparison with a model per group, or with local training.",
        ),
    ),
)
