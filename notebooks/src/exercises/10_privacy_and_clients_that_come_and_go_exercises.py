# %% [markdown]
# # Exercises: What an update gives away
#
# They belong to the lesson [10 Hide and seek](../10_privacy_and_clients_that_come_and_go.ipynb). For 10.3, see the appendix
# [10b](../10b_privacy_and_change_controls.ipynb#who-was-a-member-an-attack). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# B. Zhao, K. R. Mopuri, H. Bilen: iDLG: improved deep leakage from gradients. 2020.
# S. Yeom et al.: Privacy risk in machine learning: analyzing the connection to overfitting. IEEE CSF
# 2018.

from cflkit.course.exercises import Implement, Predict

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


# %% tags=["exercise"]
from scipy.special import softmax


def one_step(rng):
    """Draw a client's classes and predictions, and take one step on all of its images."""
    classes = int(rng.integers(3, 8))
    shares = rng.dirichlet(np.ones(classes))
    predicted, lr = softmax(rng.normal(size=classes)), float(rng.uniform(0.05, 0.5))
    return lr * (shares - predicted), predicted, lr


exercise = Implement(
    "What an update tells",
    minutes=10,
    level="easy",
    points=1,
    inputs=one_step,
    mistakes={
        "The predictions are missing. A bias goes down for a class that is predicted and "
        "absent.": lambda change, predicted, lr: change / lr,
        "A step goes against the gradient, so the sign changes once more.": (
            lambda change, predicted, lr: predicted - change / lr
        ),
        "Divide the change by the learning rate first.": (
            lambda change, predicted, lr: change + predicted
        ),
        "You multiply by the learning rate, and must divide.": (
            lambda change, predicted, lr: change * lr + predicted
        ),
    },
)

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


# %% tags=["exercise"]
def long_and_short_updates(rng):
    """Draw updates, one of which is shorter than the bound, and one longer."""
    m, size = int(rng.integers(3, 6)), int(rng.integers(3, 8))
    updates = rng.normal(size=(m, size))
    norms = np.linalg.norm(updates, axis=1)
    clip = float(norms.min() + rng.uniform(0.05, 0.95) * (norms.max() - norms.min()))
    return updates, clip, float(rng.uniform(0.1, 2)), rng.normal(size=(m, size))


def all_to_the_bound(updates, clip, noise, draws):
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates * clip / norms + noise * clip * draws


exercise = Implement(
    "Clip and add noise",
    minutes=10,
    level="easy",
    points=1,
    inputs=long_and_short_updates,
    mistakes={
        "Short updates have become longer. Only those that are longer than C change.": (
            all_to_the_bound
        ),
        "The noise is measured in units of C.": lambda updates, clip, noise, draws: protected(
            updates, clip, noise / clip, draws
        ),
        "You clip each value. What is bounded is the norm of the whole update.": (
            lambda updates, clip, noise, draws: np.clip(updates, -clip, clip) + noise * clip * draws
        ),
        "You clip after adding the noise. Then the noise is clipped, too.": (
            lambda updates, clip, noise, draws: protected(
                updates + noise * clip * draws, clip, 0.0, draws
            )
        ),
    },
)

# %% [markdown]
# ## 10.3
#
# *Members* are the images on which a model was trained. An attacker takes an image for a member if the model has a small loss on it. You get the losses of
# members and of other images. Compute the area under the ROC curve (AUC) of this attack. It is the probability that a random member
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


# %% tags=["exercise"]
def losses_with_ties(rng):
    """Draw losses of members and others, some of which are equal."""
    members = rng.integers(0, 6, int(rng.integers(5, 12))) / 4
    others = rng.integers(1, 8, int(rng.integers(5, 12))) / 4
    return members, others


exercise = Implement(
    "How good is an attack?",
    minutes=15,
    level="medium",
    points=2,
    inputs=losses_with_ties,
    mistakes={
        "The direction is wrong. A member has the smaller loss.": (
            lambda members, others: area(others, members)
        ),
        "Equal losses count as a success. They must count half.": (
            lambda members, others: float((members[:, None] <= others).mean())
        ),
        "Equal losses count as a failure. They must count half.": (
            lambda members, others: float((members[:, None] < others).mean())
        ),
    },
)

# %% [markdown]
# ## 10.4
#
# Each of four clients adds independent noise with the standard deviation 0.2 to each parameter of its update. What is the standard deviation of the noise in the mean of
# the four updates?

# %%
### BEGIN SOLUTION
prediction = 0.1
### END SOLUTION

# %%
check("10.4", prediction)


# %% tags=["exercise"]
def noise_of_a_mean():
    """Measure the noise in the mean of four updates, each with a noise of 0.2."""
    draws = np.random.default_rng(0).normal(scale=0.2, size=(4, 1_000_000))
    return float(draws.mean(axis=0).std())


exercise = Predict(
    "Noise in good company",
    minutes=5,
    level="easy",
    points=1,
    measure=noise_of_a_mean,
    mistakes={
        "The noise is independent, so a part of it cancels.": 0.2,
        "The variance is divided by four. What follows for the standard deviation?": 0.05,
        "The noise of the sum would grow. What about the mean?": 0.4,
    },
    tolerance=0.001,
    because="In a mean of n independent values, the standard deviation is divided by the root "
    "of n. So a cluster of one has twice as much noise in its model as a cluster of four.",
)

# %% [markdown]
# ## 10.5
#
# A federation runs four times as many rounds as planned, and ε must stay the same. By which factor must the noise σ grow? (The lesson says which noise in
# one round is like the noise σ in $t$ rounds.)

# %%
### BEGIN SOLUTION
prediction = 2.0
### END SOLUTION

# %%
check("10.5", prediction)


# %% tags=["exercise"]
from scipy.optimize import brentq

from cflkit.federation.privacy import epsilon


def noise_for_more_rounds():
    """Find the factor by which the noise grows if ε stays and there are four times the rounds."""
    target = epsilon(3.0, 10)
    return float(brentq(lambda factor: epsilon(3.0 * factor, 40) - target, 1, 5))


exercise = Predict(
    "Four times as many rounds",
    minutes=10,
    level="medium",
    points=1,
    measure=noise_for_more_rounds,
    mistakes={
        "ε depends on s = 2√T / σ alone. If T is four times as large, how much larger must σ "
        "be for the same s?": 4.0,
        "That is the factor for twice as many rounds. What is it for four times as many?": 2**0.5,
        "More rounds tell more, so the noise must grow.": 1.0,
    },
    tolerance=0.01,
    because="ε depends on √T / σ alone. Four times as many rounds need twice the noise.",
)
