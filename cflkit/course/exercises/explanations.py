"""Exercises of lesson 07: GradCAM, insertion and deletion, and ranks of methods.

M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustering for Federated Learning Under
Clustering-Agnostic Assumption, section 5. GradCAM is by R. R. Selvaraju et al., ICCV 2017, and
insertion and deletion are by V. Petsiuk, A. Das, K. Saenko, BMVC 2018.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import nn

from cflkit import explain
from cflkit.course.exercises.base import Arguments, Explain, Implement, Predict
from cflkit.reproduce import stats

Array = NDArray[np.float64]


# --- 07.1 ----------------------------------------------------------------------------------------


def weighted_map(weights: Array, activations: Array) -> Array:
    """Add channels ``[C, H, W]`` up with weights ``[C]``, apply ReLU, divide by the maximum."""
    heat = np.maximum(np.einsum("c,chw->hw", weights, activations), 0)
    return heat / heat.max()


def gradcam(activations: Array, gradients: Array) -> Array:
    """Compute the map ``[H, W]`` of a layer's activations and gradients ``[C, H, W]``."""
    return weighted_map(gradients.mean(axis=(1, 2)), activations)


def a_layer(rng: np.random.Generator) -> Arguments:
    """Draw activations after ReLU, and gradients with which a map has positive and other values."""
    shape = int(rng.integers(3, 6)), int(rng.integers(4, 7)), int(rng.integers(4, 7))
    activations = np.maximum(rng.normal(0.3, 1, shape), 0)
    gradients = rng.normal(size=shape) + rng.normal(0, 0.5, (shape[0], 1, 1))
    if np.einsum("c,chw->hw", gradients.mean(axis=(1, 2)), activations).max() <= 0:
        gradients = -gradients
    return activations, gradients


def without_relu(activations: Array, gradients: Array) -> Array:
    """Make the mistake of keeping evidence against the class."""
    heat = np.einsum("c,chw->hw", gradients.mean(axis=(1, 2)), activations)
    return heat / heat.max()


def relu_before_the_sum(activations: Array, gradients: Array) -> Array:
    """Make the mistake of applying ReLU to each channel."""
    parts = gradients.mean(axis=(1, 2))[:, None, None] * activations
    heat = np.maximum(parts, 0).sum(axis=0)
    return heat / heat.max()


def gradient_times_activation(activations: Array, gradients: Array) -> Array:
    """Make the mistake of not averaging the gradients."""
    heat = np.maximum((gradients * activations).sum(axis=0), 0)
    return heat / heat.max()


def without_division(activations: Array, gradients: Array) -> Array:
    """Make the mistake of not dividing by the maximum."""
    return np.maximum(np.einsum("c,chw->hw", gradients.mean(axis=(1, 2)), activations), 0)


# --- 07.2 ----------------------------------------------------------------------------------------


def deleted(image: Array, heat: Array, k: int, baseline: float) -> Array:
    """Replace the k most salient pixels of an image ``[H, W]`` by the baseline."""
    order = explain.pixel_order(torch.from_numpy(heat[None]), seed=0)[0].numpy()
    return replaced(image, order[:k], baseline)


def replaced(image: Array, pixels: NDArray[np.int64], baseline: float) -> Array:
    """Replace pixels, which are numbered by rows."""
    result = image.copy()
    result.flat[pixels] = baseline
    return result


def image_and_map(rng: np.random.Generator) -> Arguments:
    """Draw an image, a map without ties, a number of pixels and a baseline."""
    shape = rng.integers(3, 7, 2)
    k = 0 if rng.random() < 0.3 else int(rng.integers(1, shape.prod()))
    heat = rng.permutation(np.linspace(0, 1, shape.prod())).reshape(shape)
    return rng.uniform(size=shape), heat, k, float(rng.uniform(0.1, 0.9))


def by_rank(heat: Array) -> NDArray[np.int64]:
    """Sort pixels from the least to the most salient."""
    return heat.ravel().argsort()


def inserted(image: Array, heat: Array, k: int, baseline: float) -> Array:
    """Make the mistake of keeping the most salient pixels, and of replacing all others."""
    return replaced(image, by_rank(heat)[: heat.size - k], baseline)


# --- 07.3 ----------------------------------------------------------------------------------------


def area(curve: Array) -> float:
    """Compute the area under a curve ``[steps + 1]`` over [0, 1] by the trapezoidal rule."""
    return float(explain.area(torch.from_numpy(curve)))


def a_curve(rng: np.random.Generator) -> Arguments:
    """Draw a curve of probabilities that rises or falls with some noise."""
    steps = int(rng.integers(3, 9))
    first, last = rng.uniform(0.05, 0.95, 2)
    curve = np.linspace(first, last, steps + 1)
    return (np.clip(curve + rng.normal(0, 0.05, steps + 1), 0, 1),)


# --- 07.4 ----------------------------------------------------------------------------------------


def average_ranks(scores: Array) -> Array:
    """Compute the average rank of each method for scores ``[D, M]``, where high is good."""
    return stats.average_ranks(pd.DataFrame(scores), True).sort_index().to_numpy()


def some_scores(rng: np.random.Generator) -> Arguments:
    """Draw scores of a few methods on more data sets, with ties."""
    methods = rng.integers(3, 6)
    return (rng.integers(0, 5, (methods + rng.integers(2, 6), methods)) / 10,)


def ties_by_order(scores: Array) -> Array:
    """Make the mistake of giving the better rank to the first of equal scores."""
    return rankdata(-scores, method="ordinal", axis=1).mean(axis=0)


# --- 07.5 ----------------------------------------------------------------------------------------


def with_a_larger_last_layer() -> str:
    """Multiply the last layer of a network by 3; tell what changes on some images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)
        images = torch.rand(40, 1, 8, 8)
    network = nn.Sequential(*layers).eval()
    answers, sure, maps = answers_and_maps(network, images)
    with torch.no_grad():
        for parameter in layers[-1].parameters():
            parameter.mul_(3)
    answers_3, sure_3, maps_3 = answers_and_maps(network, images)
    assert (maps.amax(dim=(1, 2)) > 0).float().mean() > 0.2  # not all maps are zero
    changes = {
        "answers": not torch.equal(answers, answers_3),
        "probabilities": bool((sure_3 - sure).abs().mean() > 0.02),
        "maps": not torch.allclose(maps, maps_3, atol=1e-3),
    }
    changed = [name for name, differs in changes.items() if differs]
    return "all" if len(changed) == 3 else " and ".join(changed) or "none"


def answers_and_maps(
    network: nn.Module, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a network's answers ``[n]``, their probabilities and GradCAM's maps of them."""
    with torch.no_grad():
        sure, answers = network(images).softmax(dim=1).max(dim=1)
    return answers, sure, explain.gradcam(network, images, answers, "1")


# --- 07.6 ----------------------------------------------------------------------------------------


def noise_on_a_sure_model() -> str:
    """Compare the mean area of noise under insertion with that under deletion."""
    rng = np.random.default_rng(0)
    pixels, step, maps = 64, 8, 3000
    image, weights = rng.uniform(0.2, 1, pixels), rng.normal(0.25, 0.35, pixels)
    weights *= 8 / (weights @ image)

    def probability(images: Array) -> Array:
        return 1 / (1 + np.exp(2 - images @ weights))

    assert probability(image) > 0.99 and probability(0 * image) < 0.15
    rank = rng.random((maps, pixels)).argsort(axis=1)[:, None]  # random orders of the pixels
    changed = rank < np.arange(0, pixels + step, step)[:, None]  # [maps, steps + 1, pixels]
    insertion, deletion = probability(image * changed), probability(image * ~changed)
    areas = [float(explain.area(torch.from_numpy(one)).mean()) for one in (insertion, deletion)]
    if abs(areas[0] - areas[1]) < 0.02:
        return "equal"
    return "higher" if areas[0] > areas[1] else "lower"


EXERCISES = (
    Implement(
        "07.1",
        "GradCAM",
        minutes=15,
        level="medium",
        points=2,
        reference=gradcam,
        inputs=a_layer,
        mistakes={
            "Some values are negative. What speaks against the class must become zero.": (
                without_relu
            ),
            "The weights are means of the activations. They must tell how much the score of the "
            "class would change.": lambda activations, gradients: weighted_map(
                activations.mean(axis=(1, 2)), activations
            ),
            "The weight of a channel is its largest gradient. Use all places.": (
                lambda activations, gradients: weighted_map(gradients.max(axis=(1, 2)), activations)
            ),
            "ReLU comes too early. A channel that speaks against the class must lower the sum.": (
                relu_before_the_sum
            ),
            "Every place has a weight of its own. A channel has one weight for all its places.": (
                gradient_times_activation
            ),
            "The largest value of a map must be 1.": without_division,
        },
    ),
    Implement(
        "07.2",
        "Delete pixels",
        minutes=10,
        level="medium",
        points=1,
        reference=deleted,
        inputs=image_and_map,
        mistakes={
            "The least salient pixels go first here. In which direction do you sort?": (
                lambda image, heat, k, baseline: replaced(image, by_rank(heat)[:k], baseline)
            ),
            "One pixel too many is gone.": (
                lambda image, heat, k, baseline: deleted(image, heat, k + 1, baseline)
            ),
            "This is insertion: the most salient pixels are there, and all others are gone.": (
                inserted
            ),
            "The pixels are set to zero. The baseline is an argument.": (
                lambda image, heat, k, baseline: deleted(image, heat, k, 0.0)
            ),
            "For k = 0 the whole image is gone. What does a slice from −k on contain then?": (
                lambda image, heat, k, baseline: replaced(image, by_rank(heat)[-k:], baseline)
            ),
        },
    ),
    Implement(
        "07.3",
        "The area under a curve",
        minutes=5,
        level="easy",
        points=1,
        reference=area,
        inputs=a_curve,
        mistakes={
            "This is the plain mean. The first and the last point belong to one step each, and all "
            "other points to two.": lambda curve: float(curve.mean()),
            "Your steps have the length 1. All steps together must have the length 1.": (
                lambda curve: area(curve) * (len(curve) - 1)
            ),
            "The last point is left out: each step counts with its left end only.": (
                lambda curve: float(curve[:-1].mean())
            ),
            "You divide by the number of points. How many steps lie between them?": (
                lambda curve: area(curve) * (len(curve) - 1) / len(curve)
            ),
        },
    ),
    Implement(
        "07.4",
        "Average ranks",
        minutes=15,
        level="medium",
        points=2,
        reference=average_ranks,
        inputs=some_scores,
        mistakes={
            "The ranks are upside down. The best method must have the smallest rank.": (
                lambda scores: scores.shape[1] + 1 - average_ranks(scores)
            ),
            "Of equal scores, the first one gets the better rank. They must share the mean of "
            "their ranks.": ties_by_order,
            "Equal scores all get the best of their ranks. They must share the mean of them.": (
                lambda scores: rankdata(-scores, method="min", axis=1).mean(axis=0)
            ),
            "You rank the data sets of each method. Rank the methods on each data set.": (
                lambda scores: rankdata(-scores, axis=0).mean(axis=0)
            ),
            "You average over the methods. Each method needs a mean over the data sets.": (
                lambda scores: rankdata(-scores, axis=1).mean(axis=1)
            ),
        },
    ),
    Predict(
        "07.5",
        "Three times the last layer",
        minutes=10,
        level="medium",
        points=1,
        measure=with_a_larger_last_layer,
        mistakes={
            "Softmax does not notice a number that is added to all scores. Does it notice a "
            "factor?": "none",
            "The gradients, and so the weights of the channels, are three times as large. What "
            "remains of a common factor after division by the maximum?": "probabilities and maps",
            "Which score is the largest after all scores were multiplied by 3? And what remains of "
            "a common factor after division by the maximum?": "all",
        },
        because="All scores before softmax are three times as large, so their order stays, and the "
        "distance to the largest score grows. GradCAM's weights have the factor 3, which the "
        "division by the maximum removes.",
    ),
    Predict(
        "07.6",
        "What noise scores",
        minutes=10,
        level="medium",
        points=1,
        measure=noise_on_a_sure_model,
        mistakes={
            "The model may be sure after few pixels, and then insertion rises early. But how many "
            "random pixels can deletion remove before the model becomes unsure?": "higher",
            "The model may stay sure until most pixels are gone, and then deletion falls late. But "
            "how early does insertion rise with the same model?": "lower",
        },
        because="After k pixels, insertion shows k random pixels, and deletion shows 64 − k random "
        "pixels. Over the whole curve, both see random sets of the same sizes.",
    ),
    Explain(
        "07.7",
        "The zero of the difference",
        minutes=25,
        level="hard",
        points=3,
        rubric=(
            (
                1,
                "Shows that the pixels that are there are a uniformly random set: of size k in "
                "insertion, of size N − k in deletion. So the expected curves are g(k) and "
                "g(N − k).",
            ),
            (
                1,
                "Uses that the points of the curve and their weights in the trapezoidal rule are "
                "symmetric if the step s divides N. Both areas are then the same sum. Otherwise "
                "the last step is shorter: insertion shows 0, s, 2s, …, N pixels, and deletion "
                "shows N, N − s, N − 2s, …, 0 pixels, which are other sizes.",
            ),
            (
                1,
                "Says that g is the same function in both because the baseline is the same: a set "
                "of pixels then gives the same image in insertion and in deletion.",
            ),
        ),
    ),
)
