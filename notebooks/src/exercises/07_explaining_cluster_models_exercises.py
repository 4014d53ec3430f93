# %% [markdown]
# # Exercises: explaining cluster models
#
# They belong to the lesson [07 Explaining cluster models](../07_explaining_cluster_models.ipynb). Each function gets
# NumPy arrays and numbers.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustering for Federated Learning Under
# Clustering-Agnostic Assumption, section 5. GradCAM is by R. R. Selvaraju et al., ICCV 2017, and
# insertion and deletion are by V. Petsiuk, A. Das, K. Saenko, BMVC 2018.

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 07.1
#
# A layer has $C$ channels $A^k$ of $H \times W$ places. You get its activations, and the gradient of the class's score
# $y^c$ with respect to each of them. Write GradCAM:
#
# $$\alpha_k^c = \frac{1}{HW}\sum_{i,j}\frac{\partial y^c}{\partial A^k_{ij}},\qquad
# L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big).$$
#
# Divide the map $L^c$ by its maximum. Leave out its enlargement to the size of the image. You may
# assume that some value of $L^c$ is positive.


# %%
def gradcam(activations, gradients):
    """Return the map [H, W] for the activations [C, H, W] and the gradients [C, H, W]."""
    ### BEGIN SOLUTION
    alpha = gradients.mean(axis=(1, 2), keepdims=True)
    L = np.maximum((alpha * activations).sum(axis=0), 0)
    return L / L.max()
    ### END SOLUTION


# %%
check("07.1", gradcam)


# %% tags=["exercise"]
def weighted_map(weights, activations):
    """Add channels ``[C, H, W]`` up with weights ``[C]``, apply ReLU, divide by the maximum."""
    heat = np.maximum(np.einsum("c,chw->hw", weights, activations), 0)
    return heat / heat.max()


def a_layer(rng):
    """Draw activations after ReLU, and gradients with which a map has positive and other values."""
    shape = int(rng.integers(3, 6)), int(rng.integers(4, 7)), int(rng.integers(4, 7))
    activations = np.maximum(rng.normal(0.3, 1, shape), 0)
    gradients = rng.normal(size=shape) + rng.normal(0, 0.5, (shape[0], 1, 1))
    if np.einsum("c,chw->hw", gradients.mean(axis=(1, 2)), activations).max() <= 0:
        gradients = -gradients
    return activations, gradients


def without_relu(activations, gradients):
    heat = np.einsum("c,chw->hw", gradients.mean(axis=(1, 2)), activations)
    return heat / heat.max()


def relu_before_the_sum(activations, gradients):
    parts = gradients.mean(axis=(1, 2))[:, None, None] * activations
    heat = np.maximum(parts, 0).sum(axis=0)
    return heat / heat.max()


def gradient_times_activation(activations, gradients):
    heat = np.maximum((gradients * activations).sum(axis=0), 0)
    return heat / heat.max()


def without_division(activations, gradients):
    return np.maximum(np.einsum("c,chw->hw", gradients.mean(axis=(1, 2)), activations), 0)


exercise = Implement(
    "GradCAM",
    minutes=15,
    level="medium",
    points=2,
    inputs=a_layer,
    mistakes={
        "Some values are negative. What speaks against the class must become zero.": without_relu,
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
)

# %% [markdown]
# ## 07.2
#
# Write one frame of deletion. The `k` most salient pixels of an image are replaced by the number `baseline`, and all
# others stay. The image has one channel, and `heat` has the saliency of each pixel. All saliencies differ. `k` lies
# between 0 and the number of pixels; with `k = 0` the image stays as it is. Do not change the image that you get.


# %%
def deleted(image, heat, k, baseline):
    """Return the image [H, W] without its k most salient pixels, for an image and a map [H, W]."""
    ### BEGIN SOLUTION
    order = np.argsort(-heat.ravel())
    result = image.copy()
    result.flat[order[:k]] = baseline
    return result
    ### END SOLUTION


# %%
check("07.2", deleted)


# %% tags=["exercise"]
def replaced(image, pixels, baseline):
    """Replace pixels, which are numbered by rows."""
    result = image.copy()
    result.flat[pixels] = baseline
    return result


def image_and_map(rng):
    """Draw an image, a map without ties, a number of pixels and a baseline."""
    shape = rng.integers(3, 7, 2)
    k = int(rng.choice([0, rng.integers(1, shape.prod()), shape.prod()], p=[0.3, 0.5, 0.2]))
    heat = rng.permutation(np.linspace(0, 1, shape.prod())).reshape(shape)
    return rng.uniform(size=shape), heat, k, float(rng.uniform(0.1, 0.9))


def by_rank(heat):
    """Sort pixels from the least to the most salient."""
    return heat.ravel().argsort()


def inserted(image, heat, k, baseline):
    return replaced(image, by_rank(heat)[: heat.size - k], baseline)


exercise = Implement(
    "Delete pixels",
    minutes=10,
    level="medium",
    points=1,
    inputs=image_and_map,
    mistakes={
        "The least salient pixels go first here. In which direction do you sort?": (
            lambda image, heat, k, baseline: replaced(image, by_rank(heat)[:k], baseline)
        ),
        "One pixel too many is gone.": (
            lambda image, heat, k, baseline: deleted(image, heat, k + 1, baseline)
        ),
        "This is insertion: the most salient pixels are there, and all others are gone.": inserted,
        "The pixels are set to zero. The baseline is an argument.": (
            lambda image, heat, k, baseline: deleted(image, heat, k, 0.0)
        ),
        "For k = 0 the whole image is gone. What does a slice from −k on contain then?": (
            lambda image, heat, k, baseline: replaced(image, by_rank(heat)[-k:], baseline)
        ),
    },
)

# %% [markdown]
# ## 07.3
#
# The score of a map is the area under its curve. The curve has probabilities $p_0, \dots, p_J$ at the shares
# $0, \frac1J, \frac2J, \dots, 1$ of the pixels. Compute the area over $[0, 1]$ by the trapezoidal rule, which joins
# neighbouring points by straight lines. Here $J \ge 1$.


# %%
def area(curve):
    """Return the area, a number in [0, 1], under a curve of probabilities [J + 1]."""
    ### BEGIN SOLUTION
    return ((curve[:-1] + curve[1:]) / 2).mean()
    ### END SOLUTION


# %%
check("07.3", area)


# %% tags=["exercise"]
def a_curve(rng):
    """Draw a curve of probabilities that rises or falls with some noise."""
    steps = int(rng.integers(3, 9))
    first, last = rng.uniform(0.05, 0.95, 2)
    curve = np.linspace(first, last, steps + 1)
    return (np.clip(curve + rng.normal(0, 0.05, steps + 1), 0, 1),)


exercise = Implement(
    "The area under a curve",
    minutes=5,
    level="easy",
    points=1,
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
)

# %% [markdown]
# ## 07.4
#
# The paper compares $M$ methods on $D$ data sets by their average ranks. On each data set, the method with the highest
# score has rank 1, the next one has rank 2, and so on. Methods with equal scores share the mean of the ranks that they
# occupy together. For example, the scores 0.9, 0.7, 0.7, 0.5 have the ranks 1, 2.5, 2.5, 4. Average the ranks of each
# method over the data sets.


# %%
def average_ranks(scores):
    """Return the average rank of each method [M] for scores [D, M], where high is good."""
    ### BEGIN SOLUTION
    better = scores[:, None, :] > scores[:, :, None]  # [D, M, M]: is the last one better?
    equal = scores[:, None, :] == scores[:, :, None]  # each method equals itself, too
    ranks = better.sum(axis=2) + (equal.sum(axis=2) + 1) / 2
    return ranks.mean(axis=0)
    ### END SOLUTION


# %%
check("07.4", average_ranks)


# %% tags=["exercise"]
from scipy.stats import rankdata


def some_scores(rng):
    """Draw scores of a few methods on more data sets, with ties."""
    methods = rng.integers(3, 6)
    return (rng.integers(0, 5, (methods + rng.integers(2, 6), methods)) / 10,)


def ties_by_order(scores):
    return rankdata(-scores, method="ordinal", axis=1).mean(axis=0)


exercise = Implement(
    "Average ranks",
    minutes=15,
    level="medium",
    points=2,
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
)

# %% [markdown]
# ## 07.5
#
# A network has a convolution, a ReLU and one linear layer, from which softmax makes the probabilities of five classes.
# Somebody multiplies the weights *and* the biases of the linear layer by 3. The network gets the same images as before.
# Three things may change:
#
# - its **answers**, which are the classes with the largest probability;
# - the **probabilities** of its answers;
# - the **maps** of GradCAM for its answers, at the layer after the ReLU, each divided by its maximum.
#
# Which of them change? Write `"none"`, `"probabilities"`, `"probabilities and maps"` or `"all"`. The check then
# explains 40 images, before and after.

# %%
### BEGIN SOLUTION
prediction = "probabilities"
### END SOLUTION

# %%
check("07.5", prediction)


# %% tags=["exercise"]
import torch
from torch import nn

from cflkit import explain


def with_a_larger_last_layer():
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


def answers_and_maps(network, images):
    """Return a network's answers ``[n]``, their probabilities and GradCAM's maps of them."""
    with torch.no_grad():
        sure, answers = network(images).softmax(dim=1).max(dim=1)
    return answers, sure, explain.gradcam(network, images, answers, "1")


exercise = Predict(
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
)

# %% [markdown]
# ## 07.6
#
# An image has 64 pixels, and eight of them change per step. The baseline is zero in insertion and in deletion. The
# model is a logistic regression. The probability of the explained class is above 0.99 for the whole image, and below
# 0.15 for the empty one. The saliency map is noise, drawn without looking at the image or the model.
#
# How does the expected area under insertion compare with that under deletion? Write `"higher"`, `"equal"` or `"lower"`.
# The check then takes the means over 3000 maps. It calls them equal if they differ by less than 0.02.

# %%
### BEGIN SOLUTION
prediction = "equal"
### END SOLUTION

# %%
check("07.6", prediction)


# %% tags=["exercise"]
def noise_on_a_sure_model():
    """Compare the mean area of noise under insertion with that under deletion."""
    rng = np.random.default_rng(0)
    pixels, step, maps = 64, 8, 3000
    image, weights = rng.uniform(0.2, 1, pixels), rng.normal(0.25, 0.35, pixels)
    weights *= 8 / (weights @ image)

    def probability(images):
        return 1 / (1 + np.exp(2 - images @ weights))

    assert probability(image) > 0.99 and probability(0 * image) < 0.15
    rank = rng.random((maps, pixels)).argsort(axis=1)[:, None]  # random orders of the pixels
    changed = rank < np.arange(0, pixels + step, step)[:, None]  # [maps, steps + 1, pixels]
    insertion, deletion = probability(image * changed), probability(image * ~changed)
    areas = [np.mean([area(curve) for curve in one]) for one in (insertion, deletion)]
    if abs(areas[0] - areas[1]) < 0.02:
        return "equal"
    return "higher" if areas[0] > areas[1] else "lower"


exercise = Predict(
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
)

# %% [markdown]
# ## 07.7
#
# The lesson says that the difference insertion − deletion has the expectation 0 for a map of noise, whatever the model.
# Show it. An image has $N$ pixels, and $s$ of them change per step. Both curves follow the same random order of the
# pixels, and all orders are equally likely. The area is computed by the trapezoidal rule. Where does your proof use
# that the baseline is the same in both curves? Where does it use that $s$ divides $N$?

# %% [markdown] tags=["answer"]
# Take the image in which the pixels of the set $S$ are there, and all others have the baseline. Let $f(S)$ be its
# probability of the explained class. *This uses that the baseline is the same in both curves.* One function $f$ then serves
# both. With two baselines, the same set $S$ would give two different images, and possibly two probabilities.
#
# Let $S_k$ be the first $k$ pixels of the random order. It is equally likely to be any set of $k$ pixels. Insertion
# shows $S_k$ after $k$ pixels. Deletion shows the complement of $S_k$, which is equally likely to be any set of $N - k$
# pixels. Let $g(k)$ be the mean of $f(S)$ over all sets $S$ of $k$ pixels. The expected curves are $g(k)$ for insertion
# and $g(N - k)$ for deletion, whatever $f$ is.
#
# Let $s$ divide $N$, and $J = N / s$. The points of both curves are at $k = js$ with $j = 0, \dots, J$. The area is
# $\sum_j w_j\, p_j$ with the weights $w_0 = w_J = \frac{1}{2J}$ and $w_j = \frac1J$ otherwise. It is linear in the
# curve, so its expectation is the area under the expected curve. For deletion this is
#
# $$\sum_{j=0}^{J} w_j\, g(N - js) = \sum_{j=0}^{J} w_j\, g\big((J - j)s\big) = \sum_{j=0}^{J} w_{J-j}\, g(js)
# = \sum_{j=0}^{J} w_j\, g(js),$$
#
# which is the expected area under insertion. *The first equality uses that $s$ divides $N$*, and the last one that the
# weights are symmetric. If $s$ does not divide $N$, the last step is shorter. Insertion then shows $0, s, 2s, \dots, N$
# pixels, and deletion shows $N, N - s, N - 2s, \dots, 0$. These are other sizes, so the two sums evaluate $g$ at
# different points. They agree only nearly.
#
# The proof needs no independence of the two curves, because an expectation of a difference is the difference of the
# expectations. It does need that the order is independent of the image and the model.

# %% tags=["exercise"]
exercise = Explain(
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
)
