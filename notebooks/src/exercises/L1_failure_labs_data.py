# %% [markdown]
# # Failure labs: data
#
# In each lab somebody has run an experiment, and the result cannot be right. Read the symptom, run the cells, and look
# at the code and at the numbers behind the output. Change the cells and add your own. Write down your diagnosis with
# the observation that supports it, and only then open the fold below it. At the end of each lab you write the repair.
#
# You need the lessons [01 Federated averaging](../01_federated_averaging.ipynb) and
# [02 When clients disagree](../02_when_clients_disagree.ipynb). Lab L1.2 also runs the method of
# [03 OCFL](../03_ocfl_temperature.ipynb).

# %%
import hashlib
import random

import numpy as np
import torch
from scipy.spatial.distance import cdist

from cflkit import check, datasets, methods, metrics, partition, simulation
from cflkit.course.exercises import labs_data
from cflkit.federation import Federation, Jobs, LocalTraining

images = datasets.load("digits-8x8")
labels, new_labels = images.labels.numpy(), images.test_labels.numpy()

# %% [markdown]
# ## L1.1
#
# Nadia's digits come from a bad camera, whose pixels are noisy. In each true cluster, she compares two models. One
# answers with the class of the most similar training image, and the other with the class whose mean image is nearest.
# On the clients' own test sets, the first model wins by 0.08. On new images of the same camera and the same classes, it
# loses by 0.08. It is also worse there by 0.2 than on the own test sets. No client trains on its own test images.

# %%
_, split = partition.ocfl(
    images, overlap="overlapping", balance="balanced", clients=15, draws=400, seed=7
)
camera = np.random.default_rng(7)


def photographed(pixels):
    """Return images as the camera sees them, one row of 64 pixels per image."""
    rows = pixels.flatten(1).numpy()
    return np.clip(rows + camera.normal(0, 100, rows.shape), 0, 255)


pool, new = photographed(images.images), photographed(images.test_images)


def most_similar_image(train, queries):
    """Return the class of the most similar training image for each query."""
    return labels[train][cdist(queries, pool[train]).argmin(axis=1)]


def nearest_mean(train, queries):
    """Return the class whose mean training image is nearest to each query."""
    classes = np.unique(labels[train])
    means = np.stack([pool[train][labels[train] == y].mean(axis=0) for y in classes])
    return classes[cdist(queries, means).argmin(axis=1)]


# %%
print("                     own test sets  new images")
for model in (most_similar_image, nearest_mean):
    on_own, on_new = [], []
    for cluster in range(3):
        members = np.flatnonzero(split.clusters == cluster)
        train = np.unique(np.concatenate([split.train[client] for client in members]))
        for client in members:
            test = split.test[client]
            on_own.append(np.mean(model(train, pool[test]) == labels[test]))
        known = np.isin(new_labels, labels[train])  # the new images of the cluster's classes
        on_new.append(np.mean(model(train, new[known]) == new_labels[known]))
    print(f"{model.__name__:20s} {np.mean(on_own):13.2f} {np.mean(on_new):11.2f}")

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# How far is a test image of client 0 from the most similar training image of its cluster? Compare this with the
# distances of new images. For which test images does the first model give a wrong answer?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# The clients of a cluster draw from one pool, and each client splits its images on its own. So about 70 % of a
# client's test images are training images of other clients of its cluster. The most similar image is then the test
# image itself, with its noise, and the answer is always right. On all other test images, the accuracy of this model is
# 0.75, nearly as on new images.
#
# The distances show it, because most of them are exactly 0. Noisy photographs of two digits are never equal.
#
# A leak flatters those models most that remember their training images. It can therefore choose the wrong winner, as
# it did here. The clients of the OCFL papers draw in this way, too. See [test images that others train
# on](../02_when_clients_disagree.ipynb#test-images-that-others-train-on) in lesson 02.
#
# </details>

# %% [markdown]
# **The repair.** Write a split in which each image has the same role for all clients. The list `drawn` has one array
# per client, with the indices of the images that the client drew. An image can be there several times, and it can be
# with several clients. The array `order` has all $N$ indices of the pool, once each and in a random order.
#
# 1. Count the different images that at least one client drew. Multiply their number by `share` and round down.
# 2. Go through `order` and skip the images that nobody drew. The first images, as many as you have computed, are test
#    images. All others are training images.
# 3. Return two lists, `train` and `test`, with one array per client. They have the training images and the test
#    images that this client drew. Each image is there once, and the indices are in ascending order. An array can be
#    empty.


# %%
def split_without_leaks(drawn, order, share):
    """Return lists train and test of m arrays, for m arrays drawn, the order [N] and a share."""
    ### BEGIN SOLUTION
    anywhere = set(np.concatenate(drawn).tolist())
    candidates = [image for image in order.tolist() if image in anywhere]
    tests = set(candidates[: int(share * len(candidates))])
    train, test = [], []
    for own in drawn:
        held = sorted(set(own.tolist()))
        train.append(np.array([image for image in held if image not in tests], dtype=int))
        test.append(np.array([image for image in held if image in tests], dtype=int))
    return train, test
    ### END SOLUTION


# %%
check("L1.1", split_without_leaks)

# %% [markdown]
# ## L1.2
#
# In March, Ana ran OCFL with 12 clients in three true clusters. It found the true clusters. Today Ben runs the same
# command with the same versions and the same seeds, and he gets an ARI of 0.35. Both have the file `split.npz`, which
# says who holds which images. They compare the number of clients, the number of images and a checksum of the list of
# images. Everything agrees. Ben blames the rounding errors of his processor.

# %%
files = labs_data.two_machines()  # what `split.npz` has on each machine
truth = np.repeat([0, 1, 2], 4)


def clients_of(file):
    """Return the images of each client, a list of 12 arrays."""
    return np.split(file["images"], np.cumsum(file["sizes"])[:-1])


def found_clusters(clients):
    """Run OCFL until it has found clusters; return the cluster of each client."""
    nothing = [own[:0] for own in clients]
    split = partition.Partition(images.name, clients, nothing, truth, recipe={})
    training = LocalTraining(epochs=5, batch_size=1000, lr=0.5)
    federation = Federation(images, split, "linear", training, seed=0)
    ocfl = methods.make("ocfl")
    simulation.run({"ocfl": ocfl}, federation, 10, until_settled=True, progress=False)
    return ocfl.labels.numpy()


# %%
for name, file in files.items():
    clients = clients_of(file)
    checksum = hashlib.sha256(file["images"].tobytes()).hexdigest()[:16]
    print(f"{name}: {len(clients)} clients, {sum(map(len, clients))} images, checksum {checksum}")
    clusters = found_clusters(clients)
    ari = metrics.agreement(truth, clusters)["ari"]
    print(f"     true clusters {truth}\n     OCFL found    {clusters}, ARI {ari:.2f}")

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# How large would the effect of rounding errors be? Which classes does client 4 hold on each of the two machines?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Ben's file is another one under the same name. Somebody has sorted the array `sizes`, perhaps for a table, and has
# saved the file again. The list of all images is unchanged, and so is its checksum. But it is now cut in other places.
# Three clients hold images of a wrong true cluster, and two hold images of two. The classes of each client show it.
#
# A checksum detects only changes of what it covers. The kit therefore saves a split as a manifest with a hash over
# everything that decides who holds what. Loading refuses an altered file. See [the partition is the
# experiment](../02_when_clients_disagree.ipynb#the-partition-is-the-experiment) in lesson 02.
#
# Such an error can remain unnoticed. One scenario in the OCFL authors' archive has 10 clients in each cluster, but it
# was scored as if there were 7, 14 and 9. See [a wrong truth](../90_ledger.ipynb#a-wrong-truth) in lesson 90.
#
# </details>

# %% [markdown]
# **The repair.** Write a digest that changes whenever a client's set of images changes, or the order of the clients.
# The order of the images within a client means nothing, and must not change it. For each client in the given order,
# write these whole numbers:
#
# 1. the number of the client's images, which can be 0;
# 2. the indices of its images in ascending order.
#
# Join the numbers of all clients, with eight bytes per number and the lowest byte first. Return the SHA-256 of these
# bytes as a text of 64 hexadecimal digits. For an array `a` of whole numbers, `a.astype("<i8").tobytes()` gives such
# bytes. `hashlib.sha256(data).hexdigest()` gives the text for the bytes `data`.
#
# If client 0 holds the images 7 and 3, and client 1 holds image 5, the digest begins with `fb633fd5`.


# %%
def digest(clients):
    """Return the digest, a text, for a list of m arrays with the indices of the clients' images."""
    ### BEGIN SOLUTION
    data = b""
    for own in clients:
        numbers = np.concatenate([[len(own)], np.sort(own)])
        data += numbers.astype("<i8").tobytes()
    return hashlib.sha256(data).hexdigest()
    ### END SOLUTION


# %%
check("L1.2", digest)

# %% [markdown]
# ## L1.3
#
# Leo wants to save traffic. He trains one shared model by federated averaging, and only some of the nine clients take
# part in a round. He records the accuracy on the own test set of each client after each of 20 rounds. His table says
# that one client per round is better than all nine. He writes: "Averaging is superfluous." But the clients form three
# true clusters that have no class in common. With one client per round, only one of these clusters trains the model.

# %%
_, nine_clients = partition.ocfl(
    images, overlap="nonoverlapping", balance="balanced", clients=9, draws=120, seed=0
)
five_epochs = LocalTraining(epochs=5, batch_size=1000, lr=0.5)


def accuracies(per_round):
    """Train for 20 rounds; return the accuracies [20, 9] on the own test sets of the clients."""
    federation = Federation(
        images, nine_clients, "linear", five_epochs, seed=0, clients_per_round=per_round
    )
    method, everyone = methods.make("fedavg", weighting="equal"), torch.arange(9)
    method.setup(federation.server, federation.initial())
    result = np.zeros((20, 9))
    for t in range(20):
        jobs = method.broadcast(t)
        method.aggregate(t, jobs, federation.train(jobs, t))
        predicted = federation.predict(Jobs(method.models, method.labels, everyone))
        for client, probabilities in enumerate(predicted):
            right = probabilities.argmax(1) == federation.targets(client)
            result[t, client] = right.float().mean()
    return result


# %%
measured = {per_round: accuracies(per_round) for per_round in (9, 2, 1)}
print("clients per round   accuracy")
for per_round, test in measured.items():
    print(f"{per_round:17d} {test.max(axis=0).mean():10.2f}")

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# Draw the curves of `measured[1]` for one client of each true cluster. Which model would you install, and how would you
# know that, without test images?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Leo's number is the mean over clients of each client's *best round*. With one client per round, the model serves one
# true cluster at a time. Each client finds a round in which it was served, and the table counts only this round. But no
# single model has such an accuracy. After its best round, the model with one client per round has a mean of 0.69. The
# one with nine has 0.93.
#
# The best round rewards curves that go up and down, and runs with many rounds. It needs the test labels, so that nobody
# can choose this round in practice.
#
# Maxima over test curves are common. The library PFLlib ends each run with "Best accuracy", the maximum over rounds of
# the mean test accuracy. Why the shared model goes up and down is in [how one model
# fails](../02_when_clients_disagree.ipynb#how-one-model-fails-cluster-by-cluster), lesson 02.
#
# </details>

# %% [markdown]
# **The repair.** Each client has validation images, too, which are neither training nor test images. Choose *one* round
# for all clients: the one with the highest mean validation accuracy over clients. If several rounds have this mean,
# choose the first of them. Return the mean test accuracy over clients in the chosen round.
#
# Both arguments are arrays $[T, m]$ with a row for each of $T$ rounds and a column for each of $m$ clients. All clients
# count alike. In the check, all accuracies are multiples of 1/16, so that equal means are exactly equal.


# %%
def score_of_run(validation, test):
    """Return the score, a number, for validation accuracies [T, m] and test accuracies [T, m]."""
    ### BEGIN SOLUTION
    means = validation.mean(axis=1)
    chosen = 0
    for t in range(1, len(means)):
        if means[t] > means[chosen]:
            chosen = t
    return test[chosen].mean()
    ### END SOLUTION


# %%
check("L1.3", score_of_run)

# %% [markdown]
# ## L1.4
#
# Is FedProx better than federated averaging here? FedProx adds a term to the clients' loss, which keeps them near the
# model that they received. Ines runs each method three times and compares the means. On Monday FedProx wins by 0.1. On
# Tuesday it loses by 0.07. She has not changed the code in between, and the initial model and the batches have a fixed
# seed. She concludes: "There is no difference that one could measure."

# %%
random.seed(5)  # so that you see the days that Ines saw
ten_epochs = LocalTraining(epochs=10, batch_size=2000, lr=0.5)


def accuracy(method):
    """Return the accuracy on the central test set after three rounds."""
    _, split = partition.dirichlet(images, clients=4, alpha=0.1, seed=random.randrange(1000))
    federation = Federation(images, split, "linear", ten_epochs, seed=0)
    history = simulation.run({"m": method}, federation, 3, central_every=3, progress=False)
    return history.summary()["m"]["central_accuracy"]


# %%
for day in ("Monday", "Tuesday"):
    averaging = [accuracy(methods.make("fedavg")) for _ in range(3)]
    proximal = [accuracy(methods.make("fedprox", mu=0.1)) for _ in range(3)]
    for name, runs in (("FedAvg", averaging), ("FedProx", proximal)):
        print(f"{day:8s} {name:8s}", *(f"{run:.2f}" for run in runs), f" mean {np.mean(runs):.2f}")

# %% [markdown] tags=["diagnosis"]
# **Your diagnosis.** *Write here what you think went wrong, and which observation supports it.*
#
# By how much do two runs of the *same* method differ? What else differs between these two runs?

# %% [markdown]
# <details><summary><b>What went wrong</b> (open it after you have written your diagnosis)</summary>
#
# Every run draws a new split. The seed of the split comes from Python's global generator, whose state changes with
# each call, and nobody has saved the splits. Two runs of the same method on one day differ by up to 0.16. So Ines
# compares easy splits with difficult ones, which hides the small difference between the methods.
#
# Give both methods the same splits. On the ten splits with the seeds 0 to 9, FedAvg wins each time. The mean difference
# is 0.020, with a standard error of 0.003. Runs in [lockstep](../99_glossary.ipynb#lockstep) are paired in this way.
#
# Unseeded splits are common. The OCFL authors' Dirichlet draws and local splits have no seed, and neither has the
# shuffling of PACS in EMD-CFL's code. Only a saved split can be repeated. See [the partition is the
# experiment](../02_when_clients_disagree.ipynb#the-partition-is-the-experiment) in lesson 02.
#
# </details>

# %% [markdown]
# **The repair.** Both methods run on the same $S \ge 2$ splits, which are a random sample of all possible splits. The
# array `scores` has the shape $[2, S]$: row 0 is the first method, row 1 is the second one, and each column is a split.
#
# Return two numbers: the mean of the differences "first method minus second method", and the standard error of this
# mean. The standard error is the standard deviation of the differences, as estimated from a sample, divided by
# $\sqrt S$.


# %%
def paired(scores):
    """Return the mean difference and its standard error for scores [2, S]."""
    ### BEGIN SOLUTION
    differences = scores[0] - scores[1]
    mean, splits = differences.mean(), len(differences)
    deviation = np.sqrt(((differences - mean) ** 2).sum() / (splits - 1))
    return mean, deviation / np.sqrt(splits)
    ### END SOLUTION


# %%
check("L1.4", paired)
