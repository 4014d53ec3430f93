"""Exercises of lesson 00: how well a model serves its clients.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning, IEEE BigData
2024, and its extended version.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from cflkit import metrics
from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


# --- 00.1 ----------------------------------------------------------------------------------------


def macro_f1(labels: Labels, predictions: Labels) -> float:
    """Compute macro-F1 over the classes that occur among the labels or the predictions ``[n]``."""
    one_hot = torch.nn.functional.one_hot
    classes = int(max(labels.max(), predictions.max())) + 1
    return metrics.scores(torch.tensor(labels), one_hot(torch.tensor(predictions), classes))[0]


def labels_and_predictions(rng: np.random.Generator) -> Arguments:
    """Draw a client's labels, and predictions that also have classes of other clients."""
    classes, n = rng.permutation(8), int(rng.integers(10, 30))
    own = int(rng.integers(2, 5))
    labels = rng.choice(classes[:own], n)
    wrong = rng.random(n) < 0.4
    wrong[0] = False
    return labels, np.where(wrong, rng.choice(classes[: own + 2], n), labels)


def counts_by_class(labels: Labels, predictions: Labels) -> tuple[Array, Array, Array]:
    """Count right answers, labels and predictions of each class that occurs."""
    occurring = np.union1d(labels, predictions)[:, None]
    is_label, is_prediction = labels == occurring, predictions == occurring
    counted = (is_label & is_prediction, is_label, is_prediction)
    hits, of_labels, of_predictions = (one.sum(axis=1).astype(float) for one in counted)
    return hits, of_labels, of_predictions


def mean_precision(labels: Labels, predictions: Labels) -> float:
    """Make the mistake of averaging precision, which is 0 for a class without predictions."""
    hits, _, predicted = counts_by_class(labels, predictions)
    return float((hits / np.maximum(predicted, 1)).mean())


def mean_recall(labels: Labels, predictions: Labels) -> float:
    """Make the mistake of averaging recall, which is 0 for a class without labels."""
    hits, labelled, _ = counts_by_class(labels, predictions)
    return float((hits / np.maximum(labelled, 1)).mean())


def over_the_classes_of_labels(labels: Labels, predictions: Labels) -> float:
    """Make the mistake of leaving out the classes that are only predicted."""
    hits, labelled, predicted = counts_by_class(labels, predictions)
    return float((2 * hits / (labelled + predicted))[labelled > 0].mean())


def over_all_numbers(labels: Labels, predictions: Labels) -> float:
    """Make the mistake of counting classes that do not occur, with an F1 of 0."""
    classes = max(labels.max(), predictions.max()) + 1
    occur = len(np.union1d(labels, predictions))
    return macro_f1(labels, predictions) * occur / int(classes)


def of_the_means(labels: Labels, predictions: Labels) -> float:
    """Make the mistake of computing F1 from mean precision and mean recall."""
    precision, recall = mean_precision(labels, predictions), mean_recall(labels, predictions)
    return 2 * precision * recall / (precision + recall)


# --- 00.2 ----------------------------------------------------------------------------------------


def always_the_same_answer() -> float:
    """Compute macro-F1 of a model that answers with one of three classes of equal size."""
    labels = np.repeat([0, 1, 2], 20)
    return macro_f1(labels, np.zeros_like(labels))


# --- 00.3 ----------------------------------------------------------------------------------------


def mean_own_score(scores: Array, labels: Labels) -> float:
    """Average over clients the score ``[K, m]`` of the model of the client's cluster ``[m]``."""
    return float(scores[labels, np.arange(len(labels))].mean())


def scores_and_clusters(rng: np.random.Generator) -> Arguments:
    """Draw scores, and clusters of unequal size of which some can be empty."""
    clusters, m = rng.integers(2, 5), int(rng.integers(5, 10))
    return rng.random((clusters, m)), rng.integers(clusters, size=m)


def mean_over_clusters(scores: Array, labels: Labels) -> float:
    """Make the mistake of giving equal weights to the clusters and not to the clients."""
    own = scores[labels, np.arange(len(labels))]
    return float(np.mean([own[labels == cluster].mean() for cluster in np.unique(labels)]))


EXERCISES = (
    Implement(
        "00.1",
        "Macro-F1",
        minutes=15,
        level="easy",
        points=2,
        reference=macro_f1,
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
    ),
    Predict(
        "00.2",
        "Always the same answer",
        minutes=5,
        level="easy",
        points=1,
        measure=always_the_same_answer,
        mistakes={
            "That is the accuracy, and also the mean recall. How do the many wrong predictions of "
            "class 0 enter its F1?": 1 / 3,
            "That is the F1 of class 0 alone. What is the F1 of the other two classes?": 1 / 2,
            "That is the mean precision. All images of class 0 are found, which also counts.": (
                1 / 9
            ),
        },
        because="Class 0 has an F1 of 2 · 20 / (20 + 60) = 1/2. The other two classes have 0, and "
        "the mean is 1/6. Macro-F1 punishes an ignored class more than accuracy does.",
        tolerance=0.005,
    ),
    Implement(
        "00.3",
        "The mean over clients",
        minutes=10,
        level="easy",
        points=1,
        reference=mean_own_score,
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
    ),
    Explain(
        "00.4",
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
    ),
)
