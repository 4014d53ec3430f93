# %% [markdown]
# # Exercises: published numbers beside ours
#
# They belong to the lesson [90 The ledger](../90_ledger.ipynb). Each function gets numbers and NumPy arrays.

# %%
import numpy as np
from scipy.stats import t

from cflkit import check

# %% [markdown]
# ## 90.1
#
# We have run a scenario with $n \ge 2$ seeds. The 90 % t-interval of the mean is $\bar o \pm h$ with
#
# $$h = t_{0.95,\,n-1}\, s / \sqrt{n}.$$
#
# Here $s$ is the standard deviation of the seeds, as estimated from a sample. The factor $t_{0.95,\,n-1}$ is the 95 %
# quantile of the t-distribution with $n - 1$ degrees of freedom. In SciPy, `t.ppf(q, k)` is the quantile $q$ of the
# t-distribution with $k$ degrees of freedom. Write the function that returns $h$.


# %%
def half_width(ours):
    """Return h, a number, for the values [n] of n seeds."""
    ### BEGIN SOLUTION
    n = len(ours)
    s = np.sqrt(((ours - ours.mean()) ** 2).sum() / (n - 1))
    return t.ppf(0.95, n - 1) * s / np.sqrt(n)
    ### END SOLUTION


# %%
check("90.1", half_width)

# %% [markdown]
# ## 90.2
#
# Now write the rule of the lesson. The published number is `value`. Our values are in `ours`, one per seed, and there
# are two seeds or more. Return one of these four words:
#
# - `"reproduced"` if the whole 90 % t-interval of our mean lies within `far` of the number, and the mean within `near`;
# - `"close"` if the whole interval lies within `far` of the number, but the mean does not lie within `near`;
# - `"differs"` if no value of the interval lies within `far` of the number;
# - `"inconclusive"` otherwise.
#
# The margins are $0 < \delta_1 < \delta_2$, here `near` and `far`. They contain the rounding of the printed number
# already. There are no dashes. Whether "within" includes the margin itself does not matter, because no distance in the
# check equals a margin.


# %%
def status(value, ours, near, far):
    """Return the answer, a word, for a published value and our values [n]."""
    ### BEGIN SOLUTION
    distance, h = abs(ours.mean() - value), half_width(ours)
    if distance + h <= far:
        return "reproduced" if distance <= near else "close"
    if distance - h > far:
        return "differs"
    return "inconclusive"
    ### END SOLUTION


# %%
check("90.2", status)

# %% [markdown]
# ## 90.3
#
# The labels of two groupings of the same $m$ clients are given. A label is the name of a group, and names mean nothing:
# group 5 of one grouping may be group 2 of the other. Look at all $m(m-1)/2$ pairs of two different clients. A
# grouping has the two clients of a pair *together* or *apart*. Two groupings agree on a pair if both have it together
# or both have it apart. The **Rand index** $R$ is the share of pairs on which they agree. It is high for random
# groupings, too. The **adjusted Rand index** corrects this:
#
# $$\text{ARI} = \frac{R - \mathbb E[R]}{1 - \mathbb E[R]}.$$
#
# The expectation $\mathbb E$ is over random groupings with the same sizes of groups. Let $a$ be the share of pairs that
# the first grouping has together, and $b$ the share that the second has together. If the groupings are random, a share
# $a b$ of the pairs is together in both on average, and a share $(1 - a)(1 - b)$ is apart in both.
#
# Write the ARI. Both groupings have at least two groups, and some pair is together in each.


# %%
def adjusted_rand_index(truth, found):
    """Return the ARI, a number, of two groupings given as labels [m] and [m]."""
    ### BEGIN SOLUTION
    pairs = np.triu_indices(len(truth), 1)
    in_truth = (truth[:, None] == truth)[pairs]
    in_found = (found[:, None] == found)[pairs]
    a, b = in_truth.mean(), in_found.mean()
    expected = a * b + (1 - a) * (1 - b)
    return ((in_truth == in_found).mean() - expected) / (1 - expected)
    ### END SOLUTION


# %%
check("90.3", adjusted_rand_index)

# %% [markdown]
# ## 90.4
#
# An old rule calls a published score reproduced in two cases. The score lies between our smallest and our largest seed, *or*
# our mean is within 0.02 of it. We try this rule as in the second test of the lesson: each published number is compared
# with our runs of *another*, wrong scenario.
#
# The true scores of scenarios are drawn at random between 0.3 and 0.9, and the published numbers are exact. Our runs
# are five seeds. Their values are normally distributed around the score of the wrong scenario. In the first case their
# standard deviation is 0.01, and in the second case it is 0.10.
#
# Does the rule accept more, equally many or fewer of the published numbers in the second case? Write `"more"`,
# `"equal"` (the shares differ by less than 0.05) or `"fewer"`. The check then simulates 20,000 numbers for each case.

# %%
### BEGIN SOLUTION
prediction = "more"
### END SOLUTION

# %%
check("90.4", prediction)

# %% [markdown]
# ## 90.5
#
# A method learns nothing in 50 rounds. Its true score is constant. The measured score of each round is the true score
# plus independent, normally distributed noise with a standard deviation of 0.02. One paper reports the score of the
# *last* round, and another paper reports the score of the *best* round.
#
# By how much is the second number higher on average? Write one of 0.00, 0.02, 0.045 and 0.14. The check then simulates
# 20,000 such learning curves.

# %%
### BEGIN SOLUTION
prediction = 0.045
### END SOLUTION

# %%
check("90.5", prediction)

# %% [markdown]
# ## 90.6
#
# What is the placebo rate of a rule that calls published numbers reproduced? Why must it stand beside every count of
# reproduced numbers? Explain how you would read this line: "of 40 numbers, 60 % are reproduced; placebo 55 %".

# %% [markdown] tags=["answer"]
# For the placebo rate, each published number is compared with our runs of *another* scenario of the same table, for the
# same method and measure. The placebo rate is the share of these wrong comparisons that the rule calls reproduced.
#
# A count alone cannot say what caused the hits. If the margins are wide, or if all numbers of a table are similar, the
# rule accepts nearly any run, right or wrong. The count is then high, and it carries no information about the
# scenarios. The placebo rate measures this part.
#
# In the example, our runs of the right scenario pass in 60 % of the cases, and runs of a wrong scenario in 55 %. The
# rule can hardly distinguish them. So the 24 hits are no evidence that these numbers came out again. At most they say
# that the method behaves like this in *some* scenario. If the placebo rate were 5 %, the same 60 % would be strong
# evidence.
