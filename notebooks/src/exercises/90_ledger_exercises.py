# %% [markdown]
# # Exercises: published numbers beside ours
#
# They belong to the lesson [90 The ledger](../90_ledger.ipynb). Each function gets numbers and NumPy arrays.

# %%
import numpy as np
from scipy.stats import t

from cflkit import check

# %% tags=["exercise"]
# M. K. Zuziak, R. Pellungrini, S. Rinzivillo, IEEE BigData 2024, and its extended version, whose
# tables the lesson shows in detail. The adjusted Rand index is that of L. Hubert, P. Arabie, Journal
# of Classification 2, 1985.

from cflkit.course.exercises import Explain, Implement, Predict

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


# %% tags=["exercise"]
from scipy.stats import norm


def values_of_seeds(rng):
    """Draw the values of two to eight seeds."""
    seeds = int(rng.integers(2, 9))
    return (rng.uniform(0.2, 0.9) + rng.uniform(0.02, 0.2) * rng.normal(size=seeds),)


def with_quantile(ours, quantile):
    """Multiply the standard error of the mean by a quantile."""
    return float(quantile * ours.std(ddof=1) / np.sqrt(len(ours)))


exercise = Implement(
    "The interval of a mean",
    minutes=10,
    level="easy",
    points=1,
    inputs=values_of_seeds,
    mistakes={
        "This is the quantile of the normal distribution. With few seeds, the standard "
        "deviation is uncertain itself, and the t-distribution allows for that.": (
            lambda ours: with_quantile(ours, norm.ppf(0.95))
        ),
        "This is a 95 % interval. Which share may lie beyond each end of a 90 % interval?": (
            lambda ours: with_quantile(ours, t.ppf(0.975, len(ours) - 1))
        ),
        "This interval leaves a tenth on each side. Together, both sides may have a tenth.": (
            lambda ours: with_quantile(ours, t.ppf(0.9, len(ours) - 1))
        ),
        "The standard deviation divides by n. The seeds are a sample, so divide by n − 1.": (
            lambda ours: half_width(ours) * np.sqrt(1 - 1 / len(ours))
        ),
        "This is an interval for one more seed. The mean of n seeds scatters less than one "
        "seed does.": lambda ours: half_width(ours) * np.sqrt(len(ours)),
    },
)

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


# %% tags=["exercise"]
def a_published_number(rng):
    """Draw a number, our values and two margins, with room between each answer and the next."""
    near, far = rng.uniform(0.01, 0.03), rng.uniform(0.06, 0.1)
    kind = rng.choice(["near", "near", "farther", "farther", "outside"])
    low, high = {
        "near": (0.1 * near, 0.8 * near),
        "farther": (1.2 * near, 0.8 * far),
        "outside": (1.4 * far, 4 * far),
    }[kind]
    distance = rng.uniform(low, high)
    room = abs(far - distance)
    # The standard error, too, must reach beyond the room in some of the trials
    factor = [(0.1, 0.85), (1.15, 2), (8, 12)][rng.choice(3, p=[0.5, 0.25, 0.25])]
    width = room * rng.uniform(*factor)
    if kind == "near" and rng.random() < 0.3:  # half the interval is below far, and its end beyond
        distance = rng.uniform(0.5, 0.8) * near
        width = (far - distance + far) / 2
    scatter = rng.normal(size=int(rng.integers(2, 5)))
    scatter = (scatter - scatter.mean()) * width / half_width(scatter)
    value = float(rng.uniform(0.2, 0.9))
    return value, value + rng.choice([-1, -1, 1]) * distance + scatter, near, far


def by_interval(distance, width, near, far):
    """Apply the rule to a distance and half a width, which may be wrong."""
    if distance + width <= far:
        return "reproduced" if distance <= near else "close"
    return "differs" if distance - width > far else "inconclusive"


def by_the_mean_alone(value, ours, near, far):
    return by_interval(abs(ours.mean() - value), 0, near, far)


def by_half_the_width(value, ours, near, far):
    distance, half = abs(ours.mean() - value), half_width(ours)
    inside = distance <= far and half <= far
    return by_interval(distance, 0 if inside else half, near, far)


def if_it_contains_the_value(value, ours, near, far):
    inside = abs(ours.mean() - value) <= half_width(ours)
    return "reproduced" if inside else status(value, ours, near, far)


def with_a_sign(value, ours, near, far):
    return by_interval(float(ours.mean() - value), half_width(ours), near, far)


def by_the_standard_error(value, ours, near, far):
    error = ours.std(ddof=1) / np.sqrt(len(ours))
    return by_interval(abs(ours.mean() - value), error, near, far)


def by_extremes(value, ours, near, far):
    distances = abs(ours - value)
    if distances.max() <= far:
        return "reproduced" if abs(ours.mean() - value) <= near else "close"
    apart = ours.min() > value + far or ours.max() < value - far
    return "differs" if apart else "inconclusive"


exercise = Implement(
    "The answer to a number",
    minutes=15,
    level="medium",
    points=2,
    inputs=a_published_number,
    mistakes={
        "Your interval is the mean ± one standard error. The factor from the t-distribution is "
        "missing.": by_the_standard_error,
        "Only the mean counts in your function. What if our seeds scatter widely around a mean "
        "that happens to be right?": by_the_mean_alone,
        "A number inside our interval counts as reproduced. Then more scatter makes more "
        "numbers right. The rule asks where the whole interval lies.": if_it_contains_the_value,
        "The two margins are exchanged. Which of them is for the mean, and which for the whole "
        "interval?": lambda value, ours, near, far: status(value, ours, far, near),
        "Your distance can be negative. A mean far below the number is then called near.": (
            with_a_sign
        ),
        "Your interval comes from the spread of the seeds, such as the smallest and the "
        "largest one. The rule takes the t-interval of the mean, with the h of 90.1.": by_extremes,
        "You compare half the width of the interval with far. Compare its ends.": by_half_the_width,
    },
    same=lambda a, b: isinstance(a, str) and a == b,
)

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


# %% tags=["exercise"]
from sklearn.metrics import adjusted_rand_score, rand_score
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix


def two_groupings(rng):
    """Draw a grouping, and a second one that moves some clients; names of groups are arbitrary."""
    while True:
        m, groups = int(rng.integers(8, 20)), int(rng.integers(2, 5))
        truth = rng.integers(0, groups, m)
        found = np.where(rng.random(m) < 0.4, rng.integers(0, groups + 1, m), truth)
        names, other_names = rng.permutation(10), rng.permutation(10)
        several = min(len(np.unique(truth)), len(np.unique(found))) > 1
        if several and 0.05 < adjusted_rand_score(truth, found) < 0.95:
            return names[truth], other_names[found]


def expected_rand(truth, found):
    """Compute the mean Rand index of random groupings with the same sizes."""
    (neither, only_found), (only_true, both) = pair_confusion_matrix(truth, found)
    pairs = neither + only_found + only_true + both
    a, b = (both + only_true) / pairs, (both + only_found) / pairs
    return float(a * b + (1 - a) * (1 - b))


def without_division(truth, found):
    return float(rand_score(truth, found)) - expected_rand(truth, found)


def purity(truth, found):
    """Compute the share of clients that belong to the majority of their found cluster."""
    return float(contingency_matrix(truth, found).max(axis=0).sum() / len(truth))


def with_all_pairs(truth, found):
    same, alike = truth[:, None] == truth, found[:, None] == found
    a, b = same.mean(), alike.mean()
    expected = a * b + (1 - a) * (1 - b)
    return float(((same == alike).mean() - expected) / (1 - expected))


exercise = Implement(
    "The adjusted Rand index",
    minutes=20,
    level="medium",
    points=2,
    inputs=two_groupings,
    mistakes={
        "This is the Rand index. It is far above 0 for random groupings, too.": (
            lambda truth, found: float(rand_score(truth, found))
        ),
        "This is the purity: the share of clients in the majority of their found cluster. It "
        "is 1 if every client is alone.": purity,
        "You subtract the expectation, but equal groupings do not get 1 so. Divide by the "
        "largest difference that is possible.": without_division,
        "You count pairs of a client with itself. All groupings agree on these.": with_all_pairs,
    },
)

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


# %% tags=["exercise"]
def hits_of_wrong_scenarios(scatter, rng):
    """Compute how often the old rule accepts our runs of another scenario."""
    published, other = rng.uniform(0.3, 0.9, (2, 20_000))
    ours = other[:, None] + scatter * rng.normal(size=(len(other), 5))
    inside = (ours.min(axis=1) <= published) & (published <= ours.max(axis=1))
    return float((inside | (abs(ours.mean(axis=1) - published) <= 0.02)).mean())


def what_scatter_does():
    """Compare the share of hits with much scatter and with little."""
    little, much = (hits_of_wrong_scenarios(s, np.random.default_rng(0)) for s in (0.01, 0.1))
    return "equal" if abs(much - little) < 0.05 else ("more" if much > little else "fewer")


exercise = Predict(
    "A rule that rewards scatter",
    minutes=10,
    level="medium",
    points=1,
    measure=what_scatter_does,
    mistakes={
        "Noisier runs say less about their own scenario. But how long is the interval from the "
        "smallest to the largest seed now, and what does the rule do with it?": "fewer",
        "The mean of the runs stays at the same place on average. The rule has a second "
        "condition. Does that one depend on the scatter?": "equal",
    },
    because="The interval from the smallest to the largest seed grows with the scatter, and a "
    "longer interval contains more numbers, right or wrong. Bad runs are rewarded.",
)

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


# %% tags=["exercise"]
def gain_of_the_best_round():
    """Compute the mean of best minus last round, over many curves of 50 rounds of pure noise."""
    curves = 0.8 + 0.02 * np.random.default_rng(0).normal(size=(20_000, 50))
    return float((curves.max(axis=1) - curves[:, -1]).mean())


exercise = Predict(
    "The best round",
    minutes=5,
    level="easy",
    points=1,
    measure=gain_of_the_best_round,
    tolerance=0.002,
    mistakes={
        "The noise has the mean 0 in each round. Has the largest of fifty draws the mean 0, "
        "too?": 0.0,
        "One standard deviation is what a single round is usually off. How far out is the most "
        "extreme of fifty rounds?": 0.02,
        "That is 0.02 times the root of 50, as if the noise of all rounds were added up. Only "
        "one round is reported. Is a draw seven standard deviations out likely among "
        "fifty?": 0.14,
    },
    because="The largest of fifty normal draws lies 2.25 standard deviations above the mean on "
    "average, and 2.25 · 0.02 = 0.045. Nothing has been learned in these rounds.",
)

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

# %% tags=["exercise"]
exercise = Explain(
    "Why a placebo?",
    minutes=15,
    level="medium",
    points=3,
    rubric=(
        (
            1,
            "Defines the placebo rate. It compares numbers with our runs of other scenarios "
            "(of the same table, method and measure). The rate is the share that the rule "
            "calls reproduced.",
        ),
        (
            1,
            "Says why a count alone proves nothing: a generous rule, or a table with similar "
            "numbers, gives many hits with wrong scenarios as well.",
        ),
        (
            1,
            "Draws the conclusion: only a share for right scenarios that lies well above the "
            "placebo rate is evidence that these numbers came out again.",
        ),
    ),
)
