# %% [markdown]
# # Exercises: federated averaging
#
# They belong to the lesson [01 Federated averaging](../01_federated_averaging.ipynb). Each function gets NumPy arrays.

# %%
import numpy as np

from cflkit import check

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

# %% [markdown]
# ## 01.4
#
# The lesson measures how much of the clients' work survives the averaging:
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
# $\sum_i \frac{n_i}{n} \nabla f_i(\theta_i)$ is in general no gradient of $f$ at any point.
