# %% [markdown]
# # Exercises: federated averaging
#
# They belong to the lesson [01 Federated averaging](../01_federated_averaging.ipynb). Functions get NumPy arrays, numbers and functions.

# %%
import numpy as np

from cflkit import check

# %% tags=["exercise"]
# H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, AISTATS 2017.

from cflkit.course.exercises import Explain, Implement, Predict

# %% [markdown]
# ## 01.1
#
# The clients send back their trained models. Write what the server does with them. Weigh each model by the client's
# number of samples, as federated averaging does.


# %%
def weighted_mean(models, samples):
    """Return the weighted mean, an array [P], of models [m, P] of clients with samples [m]."""
    ### BEGIN SOLUTION
    return samples @ models / samples.sum()
    ### END SOLUTION


# %%
check("01.1", weighted_mean)


# %% tags=["exercise"]
def models_and_samples(rng):
    """Draw a few models, and different numbers of samples."""
    m, parameters = rng.integers(2, 6), rng.integers(3, 8)
    return rng.normal(size=(m, parameters)), rng.integers(1, 100, m).astype(float)


exercise = Implement(
    "The server's mean",
    minutes=5,
    level="easy",
    points=1,
    inputs=models_and_samples,
    mistakes={
        "All clients have equal weights. A client with more samples must count more.": (
            lambda models, samples: models.mean(axis=0)
        ),
        "The weights do not sum to one. Divide by the number of all samples.": (
            lambda models, samples: samples @ models
        ),
        "You divide twice: by the number of samples, and by the number of clients.": (
            lambda models, samples: samples @ models / samples.sum() / len(models)
        ),
    },
)

# %% [markdown]
# ## 01.2
#
# A client starts from the model $\theta$ and takes some steps of gradient descent on its own loss. The function
# `gradient` returns the gradient at the point that you give it. Here it uses all samples of the client.


# %%
def train_locally(theta, gradient, lr, steps):
    """Return the model [P] after some steps of gradient descent from theta [P]."""
    ### BEGIN SOLUTION
    for _ in range(steps):
        theta = theta - lr * gradient(theta)
    return theta
    ### END SOLUTION


# %%
check("01.2", train_locally)


# %% tags=["exercise"]
def quadratic(curvature, optimum):
    """Build the gradient of a quadratic loss with a positive curvature per parameter."""
    return lambda theta: curvature * (theta - optimum)


def a_client(rng):
    """Draw a model, the gradient of a client's loss, a learning rate and a number of steps."""
    parameters = rng.integers(2, 6)
    gradient = quadratic(rng.uniform(0.5, 2, parameters), rng.normal(size=parameters))
    return rng.normal(size=parameters), gradient, rng.uniform(0.05, 0.3), int(rng.integers(2, 7))


def with_the_first_gradient(theta, gradient, lr, steps):
    return theta - steps * lr * gradient(theta)


exercise = Implement(
    "What a client does",
    minutes=10,
    level="easy",
    points=1,
    inputs=a_client,
    mistakes={
        "The model climbs. A step goes against the gradient.": (
            lambda theta, gradient, lr, steps: train_locally(theta, gradient, -lr, steps)
        ),
        "Every step uses the gradient at the start. Compute it anew where the model is now.": (
            with_the_first_gradient
        ),
        "There is one step too few.": (
            lambda theta, gradient, lr, steps: train_locally(theta, gradient, lr, steps - 1)
        ),
    },
)

# %% [markdown]
# ## 01.3
#
# Put both parts together. In one round, every client trains the server's model for some steps, and the server takes the
# weighted mean. The list `gradients` has one gradient function per client.


# %%
def one_round(theta, gradients, samples, lr, steps):
    """Return the server's model [P] after a round that begins with theta [P]."""
    ### BEGIN SOLUTION
    trained = [train_locally(theta, gradient, lr, steps) for gradient in gradients]
    return weighted_mean(np.stack(trained), samples)
    ### END SOLUTION


# %%
check("01.3", one_round)


# %% tags=["exercise"]
def a_federation(rng):
    """Draw a model, the clients' gradients and samples, a learning rate and a number of steps."""
    m, parameters = int(rng.integers(2, 5)), rng.integers(2, 6)
    gradients = [
        quadratic(rng.uniform(0.5, 2, parameters), rng.normal(size=parameters)) for _ in range(m)
    ]
    samples = rng.integers(1, 100, m).astype(float)
    return rng.normal(size=parameters), gradients, samples, 0.2, int(rng.integers(2, 5))


def one_after_the_other(theta, gradients, samples, lr, steps):
    trained = []
    for gradient in gradients:
        theta = train_locally(theta, gradient, lr, steps)
        trained.append(theta)
    return weighted_mean(np.stack(trained), samples)


def without_the_start(theta, gradients, samples, lr, steps):
    return one_round(theta, gradients, samples, lr, steps) - theta


exercise = Implement(
    "A round of federated averaging",
    minutes=15,
    level="medium",
    points=2,
    inputs=a_federation,
    mistakes={
        "Each client continues where the one before it has stopped. In a round, all clients "
        "start from the server's model.": one_after_the_other,
        "All clients have equal weights. A client with more samples must count more.": (
            lambda theta, gradients, samples, lr, steps: one_round(
                theta, gradients, np.ones(len(samples)), lr, steps
            )
        ),
        "You return the mean update. The new model is the old one plus this update.": (
            without_the_start
        ),
    },
)

# %% [markdown]
# ## 01.4
#
# The title above each panel of the lesson's Figure 2 says how much of the clients' work the mean keeps. Appendix
# [01b](../01b_drift_measured.ipynb#how-much-work-survives) calls this the share that survives:
#
# $$\frac{\lVert \frac1m \sum_i \Delta_i \rVert}{\frac1m \sum_i \lVert \Delta_i \rVert}.$$
#
# Write this function. Norms are Euclidean.


# %%
def share_that_survives(updates):
    """Return the share, a number in [0, 1], for updates [m, P]."""
    ### BEGIN SOLUTION
    return np.linalg.norm(updates.mean(axis=0)) / np.linalg.norm(updates, axis=1).mean()
    ### END SOLUTION


# %%
check("01.4", share_that_survives)


# %% tags=["exercise"]
def some_updates(rng):
    """Draw updates with something in common."""
    m, parameters = rng.integers(3, 8), rng.integers(3, 9)
    return (rng.normal(size=(m, parameters)) + rng.normal(size=parameters),)


exercise = Implement(
    "How much work survives",
    minutes=10,
    level="easy",
    points=1,
    inputs=some_updates,
    mistakes={
        "This is the inverse of the share.": lambda updates: 1 / share_that_survives(updates),
        "The numerator is the norm of the sum. The server takes the mean.": (
            lambda updates: len(updates) * share_that_survives(updates)
        ),
        "You average squared norms. Take the root before you average.": (
            lambda updates: float(
                np.linalg.norm(updates.mean(axis=0))
                / np.sqrt((np.linalg.norm(updates, axis=1) ** 2).mean())
            )
        ),
    },
)

# %% [markdown]
# ## 01.5
#
# Two clients have equally many samples and one parameter. The learning rate is 0.05. Their losses are $f_1 = 2\theta^2$ and
# $f_2 = \frac12 (\theta - 1)^2$. The mean loss has its minimum at $\theta = 0.2$. With one local step per round,
# federated averaging ends there.
#
# Where does it end with fifty local steps per round? Write `"same"`, `"higher"` or `"lower"`. The check then runs 200
# rounds.

# %%
### BEGIN SOLUTION
prediction = "higher"
### END SOLUTION

# %%
check("01.5", prediction)


# %% tags=["exercise"]
def rounds_until_close(epochs):
    """Return the model after 200 rounds of FedAvg on two quadratic losses of unequal curvature."""
    gradients = [
        quadratic(np.array([4.0]), np.array([0.0])),
        quadratic(np.array([1.0]), np.array([1.0])),
    ]
    theta = np.array([0.5])
    for _ in range(200):
        theta = one_round(theta, gradients, np.ones(2), 0.05, epochs)
    return theta


def where_fedavg_ends():
    """Compare where FedAvg ends with many local steps, and with one local step."""
    one, many = float(rounds_until_close(1)[0]), float(rounds_until_close(50)[0])
    minimum = 1 / 5  # of the mean loss: (4 · 0 + 1 · 1) / (4 + 1)
    assert abs(one - minimum) < 1e-3
    return "same" if abs(many - minimum) < 0.02 else ("higher" if many > minimum else "lower")


exercise = Predict(
    "Where federated averaging ends",
    minutes=10,
    level="medium",
    points=1,
    measure=where_fedavg_ends,
    mistakes={
        "That holds with one local step per round. After fifty, each client has nearly reached "
        "its own optimum, whatever its curvature. Where is the mean of the two optima?": "same",
        "The second client has the flatter loss, and its optimum is 1. With many local steps, "
        "does its flatness still count against it?": "lower",
    },
    because="With fifty local steps, both clients come close to their own optima, 0 and 1, and "
    "the curvature is forgotten. The mean moves from the minimum, 0.2, towards 0.5.",
)

# %% [markdown]
# ## 01.6
#
# The server may treat the mean update $\Delta^t$ as a direction, and give it momentum, as PyTorch's SGD does:
#
# $$v^t = \beta v^{t-1} + \Delta^t, \qquad \theta^{t+1} = \theta^t + \eta\, v^t, \qquad v^{-1} = 0.$$
#
# The arguments `beta` and `lr` are $\beta$ and $\eta$. Return how far the model has moved after all rounds. (If all updates
# are equal, the steps approach the usual length with $\eta = 1 - \beta$.)


# %%
def server_momentum(updates, beta, lr):
    """Return the sum of the server's steps [P] for the mean updates [T, P] of T rounds."""
    ### BEGIN SOLUTION
    velocity = np.zeros(updates.shape[1])
    moved = np.zeros(updates.shape[1])
    for update in updates:
        velocity = beta * velocity + update
        moved = moved + lr * velocity
    return moved
    ### END SOLUTION


# %%
check("01.6", server_momentum)


# %% tags=["exercise"]
def mean_updates(rng):
    """Draw the mean updates of some rounds, a momentum and a learning rate."""
    rounds = rng.integers(2, 7)
    return rng.normal(size=(rounds, 3)), rng.uniform(0.3, 0.9), rng.uniform(0.1, 1.5)


def one_round_late(updates, beta, lr):
    velocity, moved = np.zeros(updates.shape[1]), np.zeros(updates.shape[1])
    for update in updates:
        moved = moved + lr * velocity
        velocity = beta * velocity + update
    return moved


def damped(updates, beta, lr):
    return (1 - beta) * server_momentum(updates, beta, lr)


exercise = Implement(
    "Momentum on the server",
    minutes=15,
    level="hard",
    points=2,
    inputs=mean_updates,
    mistakes={
        "The velocity is a moving average here. In PyTorch's momentum, an update enters it "
        "with the weight 1, and not with 1 − β.": damped,
        "You move before the round's update has entered the velocity.": one_round_late,
        "The velocity does not remember earlier rounds.": (
            lambda updates, beta, lr: lr * updates.sum(axis=0)
        ),
    },
)

# %% [markdown]
# ## 01.7
#
# Each client takes *one* step of gradient descent with all its samples. Show that the weighted mean of the models is
# then exactly one step of gradient descent on the loss of all data. Why is this no longer so after the second step?

# %% [markdown] tags=["answer"]
# With one step, client $i$ has $\theta_i = \theta - \eta \nabla f_i(\theta)$. The weighted mean is
# $\sum_i \frac{n_i}{n} \theta_i = \theta - \eta \sum_i \frac{n_i}{n} \nabla f_i(\theta) = \theta - \eta \nabla
# f(\theta)$, because the gradient of a sum is the sum of the gradients. All gradients are taken at the same $\theta$.
# In the second step, client $i$ takes its gradient at its own $\theta_i$, and
# $\sum_i \frac{n_i}{n} \nabla f_i(\theta_i)$ is in general not the gradient of $f$ at any one point.

# %% tags=["exercise"]
exercise = Explain(
    "One step is exact",
    minutes=15,
    level="medium",
    points=3,
    rubric=(
        (1, "Writes the round as θ − η Σ (nᵢ/n) ∇fᵢ(θ), with all gradients at the same θ."),
        (1, "Uses that the gradient of f = Σ (nᵢ/n) fᵢ is the same weighted sum."),
        (1, "Says why it fails from the second step on: the gradients are then at θᵢ, not θ."),
    ),
)
