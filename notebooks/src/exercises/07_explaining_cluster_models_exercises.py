# %% [markdown]
# # Exercises: explaining cluster models
#
# They belong to the lesson [07 Explaining cluster models](../07_explaining_cluster_models.ipynb). Each function gets
# NumPy arrays and numbers.

# %%
import numpy as np

from cflkit import check

# %% [markdown]
# ## 07.1
#
# A layer has $C$ channels $A^k$ of $H \times W$ places. You get its activations, and the gradient of the class's score
# $y^c$ with respect to each of them. Write GradCAM:
#
# $$\alpha_k^c = \frac{1}{HW}\sum_{i,j}\frac{\partial y^c}{\partial A^k_{ij}},\qquad
# L^c = \mathrm{ReLU}\Big(\sum_k \alpha_k^c A^k\Big).$$
#
# Divide the map $L^c$ by its maximum, as in the lesson. Leave out its enlargement to the size of the image. You may
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
