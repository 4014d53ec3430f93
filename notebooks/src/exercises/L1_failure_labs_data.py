# %% [markdown]
# # Failure labs: data
#
# In each lab somebody has run an experiment, and the result cannot be right. Read the symptom, run the cells, and look
# at the code and at the numbers behind the output. Change the cells and add your own. Write down your diagnosis with
# the observation that supports it, and only then open the fold below it. At the end of each lab you write the repair.
#
# You need the lessons [01 Federated averaging](../01_federated_averaging.ipynb) and
# [02 Who wins depends on the test](../02_when_clients_disagree.ipynb). Lab L1.2 also runs the method of
# [03 OCFL](../03_ocfl_temperature.ipynb).

# %%
import hashlib
import random

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.spatial.distance import cdist

from cflkit import check, datasets, methods, metrics, partition, plots, simulation
from cflkit.course.sources import hidden
from cflkit.federation import Federation, Jobs, LocalTraining

plots.style()
images = datasets.load("digits-8x8")
labels, new_labels = images.labels.numpy(), images.test_labels.numpy()

# %% tags=["exercise"]
# L1.1 and L1.2: M. K. Zuziak, R. Pellungrini, S. Rinzivillo, One-Shot Clustered Federated Learning
# (OCFL), extended version, section 3.1. L1.3: G. C. Cawley, N. L. C. Talbot, JMLR 11, 2010. L1.4: T.
# G. Dietterich, Neural Computation 10, 1998.

from cflkit.course.exercises import Implement

# %% [markdown]
# ## L1.1
#
# Nadia's digits come from a bad camera, whose pixels are noisy. In each true cluster, she compares two models. One
# answers with the class of the most similar training image, and the other with the class whose mean image is nearest.
# On the clients' own test sets, the first model wins by 0.08. On new images of the same camera and the same classes, it
# loses by 0.08. Its accuracy there is also 0.2 lower than on the clients' own test sets. No client trains on its own test images.

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
scores = {}
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
    scores[model.__name__] = {"own test sets": np.mean(on_own), "new images": np.mean(on_new)}

# %%
table = pd.DataFrame(scores).round(2)
print(table.to_string())
ax = table.plot.bar(
    rot=0, figsize=(4.5, 2.6), ylabel="accuracy", ylim=(0, 1.25), yticks=(0, 0.5, 1)
)
ax.legend(ncols=2)
plots.show(
    ax.figure,
    1,
    "Nadia's two models, on the clients' own test sets and on new images of the same camera.",
    "Two pairs of bars. On own test sets the most similar image is the better model, and on new images the nearest mean is.",
)

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
# on](../02b_four_scenarios.ipynb#test-images-that-others-train-on) in appendix 02b.
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


# %% tags=["exercise"]
def first_drawn(drawn, order, share):
    """Return the first images that were drawn, up to a share of them."""
    candidates = order[np.isin(order, np.concatenate(drawn))]
    return candidates[: int(share * len(candidates))]


def by_role(drawn, held_out):
    """Use the images ``held_out`` for tests, and the others for training."""
    train = [np.setdiff1d(own, held_out) for own in drawn]
    return train, [np.intersect1d(own, held_out) for own in drawn]


def draws_from_a_pool(rng):
    """Draw with replacement for some clients, who leave a part of the pool."""
    pool, m = int(rng.integers(30, 45)), int(rng.integers(2, 5))
    drawn = [rng.integers(pool, size=int(rng.integers(12, 20))) for _ in range(m)]
    return drawn, rng.permutation(pool), float(rng.choice([0.25, 0.375, 0.5]))


def client_by_client(drawn, order, share):
    sets = [split_without_leaks([own], order, share) for own in drawn]
    return [train[0] for train, _ in sets], [test[0] for _, test in sets]


def counted_per_client(drawn, order, share):
    candidates = order[np.isin(order, np.concatenate(drawn))]
    tests = int(share * sum(len(np.unique(own)) for own in drawn))
    return by_role(drawn, candidates[:tests])


def trained_on_too(drawn, order, share):
    return [np.unique(own) for own in drawn], split_without_leaks(drawn, order, share)[1]


def with_repetitions(drawn, order, share):
    tested = [np.isin(own, first_drawn(drawn, order, share)) for own in drawn]
    train = [np.sort(own[~mask]) for own, mask in zip(drawn, tested, strict=True)]
    return train, [np.sort(own[mask]) for own, mask in zip(drawn, tested, strict=True)]


exercise = Implement(
    "Too good to be true",
    minutes=25,
    level="medium",
    points=2,
    inputs=draws_from_a_pool,
    mistakes={
        "Each client chooses test images on its own. An image can then be a test image of one "
        "client and a training image of another one.": client_by_client,
        "The test images are still in the training sets.": trained_on_too,
        "You take the share of the whole pool. Skip images that nobody drew.": (
            lambda drawn, order, share: by_role(drawn, order[: int(share * len(order))])
        ),
        "There are too many test images, because you count an image once for each client that "
        "drew it. How many different images were drawn by all clients together?": (
            counted_per_client
        ),
        "A client holds some images several times. Drop the repetitions.": with_repetitions,
        "The training sets and the test sets are swapped.": (
            lambda drawn, order, share: split_without_leaks(drawn, order, share)[::-1]
        ),
    },
)

# %% [markdown]
# ## L1.2
#
# In March, Ana ran OCFL with 12 clients in three true clusters. It found the true clusters. Today Ben runs the same
# command with the same versions and the same seeds, and he gets an ARI of 0.35. Both have the file `split.npz`, which
# says who holds which images. They compare the number of clients, the number of images and a checksum of the list of
# images. Everything agrees. Ben blames the rounding errors of his processor.

# %%
files = hidden("L1.2", "two_machines")()  # what `split.npz` has on each machine
truth = np.repeat([0, 1, 2], 4)


def clients_of(file):
    """Return the images of each client, a list of 12 arrays."""
    return np.split(file["images"], np.cumsum(file["sizes"])[:-1])


def found_clusters(clients):
    """Run OCFL until it has found clusters; return the cluster of each client."""
    held = [np.unique(own) for own in clients]  # a client has no image twice
    nothing = [own[:0] for own in clients]
    split = partition.Partition(images.name, held, nothing, truth, recipe={})
    training = LocalTraining(epochs=5, batch_size=1000, lr=0.5)
    federation = Federation(images, split, "linear", training, seed=0)
    ocfl = methods.make("ocfl")
    simulation.run({"ocfl": ocfl}, federation, 10, until_settled=True, progress=False)
    return ocfl.labels.numpy()


# %%
results = {"true clusters": truth}
for name, file in files.items():
    clients = clients_of(file)
    checksum = hashlib.sha256(file["images"].tobytes()).hexdigest()[:16]
    print(f"{name}: {len(clients)} clients, {sum(map(len, clients))} images, checksum {checksum}")
    clusters = results[f"{name}: OCFL found"] = found_clusters(clients)
    ari = metrics.agreement(truth, clusters)["ari"]
    print(f"     true clusters {truth}\n     OCFL found    {clusters}, ARI {ari:.2f}")

# %%
figure, ax = plt.subplots(figsize=(5.5, 1.7))
found = np.array(list(results.values()))
ax.imshow(found, cmap="Set2", vmax=7, aspect="auto")
for (row, client), cluster in np.ndenumerate(found):
    ax.text(client, row, cluster, ha="center", va="center")
ax.set(xlabel="client", xticks=range(12), yticks=range(3), yticklabels=results)
ax.grid(False)
plots.show(
    figure,
    2,
    "The true cluster of each client, and the clusters that the same command found on two machines. Numbers and colours are clusters.",
    "Three rows of twelve cells. The first run has the three blocks of four of the true clusters, and the second one does not.",
)

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
# experiment](../02b_four_scenarios.ipynb#the-partition-is-the-experiment) in appendix 02b.
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


# %% tags=["exercise"]
def two_machines():
    """Return what the file ``split.npz`` has on the machines of two persons.

    The array ``images`` has the images of 12 clients one after the other. The array ``sizes`` has
    the number of images of each client.
    """
    labels = datasets.load("digits-8x8").labels.numpy()
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 140, 12)
    held = []
    for client, size in enumerate(sizes):
        classes = partition.class_sets("nonoverlapping", 10)[client // 4]
        pool = np.flatnonzero(np.isin(labels, classes))
        held.append(np.sort(rng.choice(pool, size, replace=False)))
    images = np.concatenate(held)
    return {
        "Ana": {"images": images, "sizes": sizes},
        "Ben": {"images": images, "sizes": np.sort(sizes)},
    }


def with_sizes(own):
    """List the number of a client's images, and the images in ascending order."""
    return [len(own), *sorted(own.tolist())]


def digest_of(clients, listed, encode=partition.integers):
    """Compute the SHA-256 of what is listed for each client, in the order of the clients."""
    return hashlib.sha256(b"".join(encode(listed(own)) for own in clients)).hexdigest()


def some_clients(rng):
    """Draw the images of some clients in any order; a client can have none."""
    m = int(rng.integers(3, 7))
    held = [rng.choice(500, int(rng.integers(1, 9)), replace=False) for _ in range(m)]
    held[int(rng.integers(m))] = np.empty(0, dtype=np.int64)
    return ([own.astype(np.int64) for own in held],)


def without_order_of_clients(clients):
    return digest(sorted(clients, key=with_sizes))


def sizes_first(clients):
    sizes = np.array([len(own) for own in clients])
    return digest_of([sizes, *(np.sort(own) for own in clients)], np.ndarray.tolist)


exercise = Implement(
    "The same command",
    minutes=20,
    level="medium",
    points=2,
    inputs=some_clients,
    mistakes={
        "Only the images enter the digest. If an image moves from the end of one client to the "
        "beginning of the next one, would you notice?": lambda clients: digest_of(clients, sorted),
        "The clients are sorted. If two clients exchange their images, would you notice?": (
            without_order_of_clients
        ),
        "The images of a client are not sorted. Their order means nothing, and it must not "
        "change the digest.": lambda clients: digest_of(
            clients, lambda own: [len(own), *own.tolist()]
        ),
        "All sizes come first. The recipe has the size of each client just before the images "
        "of this client.": sizes_first,
        "The size of a client comes after its images. It must come before them.": (
            lambda clients: digest_of(clients, lambda own: [*sorted(own.tolist()), len(own)])
        ),
        "Each number has four bytes, and it must have eight.": lambda clients: digest_of(
            clients, with_sizes, lambda values: np.asarray(values, dtype="<i4").tobytes()
        ),
    },
)

# %% [markdown]
# ## L1.3
#
# Leo wants to save traffic. He trains one shared model by federated averaging, and only some of the nine clients take
# part in a round. He records the accuracy on each client's own test set after each of 20 rounds. His table says
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
figure, ax = plt.subplots(figsize=(4, 2.4))
ax.plot([str(n) for n in measured], [test.max(axis=0).mean() for test in measured.values()], "o-")
ax.set(xlabel="clients per round", ylabel="accuracy", ylim=(0.9, 1))
plots.show(
    figure,
    3,
    "The accuracy by the number of clients that take part in a round.",
    "Three points. The accuracy is 0.94 with nine clients per round, and 0.98 with two and with one.",
)

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
# single model has such an accuracy. In the round in which its mean over all clients is highest, the
# model with one client per round has 0.69. The one with nine has 0.93.
#
# The best round rewards curves that go up and down, and runs with many rounds. Choosing it needs the test labels, so nobody
# can choose this round in practice.
#
# Maxima over test curves are common. The library PFLlib ends each run with "Best accuracy", the maximum over rounds of
# the mean test accuracy. Why the shared model goes up and down is in [how one model
# fails](../02b_four_scenarios.ipynb#how-one-model-fails-cluster-by-cluster), appendix 02b.
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


# %% tags=["exercise"]
def accuracies_of_rounds(rng):
    """Draw accuracies of some rounds, of which two have the best mean on validation images."""
    rounds, m = int(rng.integers(5, 10)), int(rng.integers(2, 6))
    # Sixteenths have exact means, so that equal means are equal
    validation, test = rng.integers(4, 16, (2, rounds, m)) / 16
    best = int(validation.mean(axis=1).argmax())
    if best < rounds - 2:
        validation[int(rng.integers(best + 1, rounds - 1))] = rng.permutation(validation[best])
    return validation, test


def best_round_of_each_client(validation, test):
    return float(test[validation.argmax(axis=0), np.arange(test.shape[1])].mean())


def last_of_the_best(validation, test):
    return score_of_run(validation[::-1], test[::-1])


exercise = Implement(
    "Less is more",
    minutes=15,
    level="medium",
    points=2,
    inputs=accuracies_of_rounds,
    mistakes={
        "Each client gets the round that is best for it, and test images choose this round. "
        "Choose one round for all clients, without looking at test images.": (
            lambda validation, test: float(test.max(axis=0).mean())
        ),
        "Test images choose the round. The choice may depend on validation images only.": (
            lambda validation, test: float(test.mean(axis=1).max())
        ),
        "Each client gets a round of its own. Choose one round for all clients.": (
            best_round_of_each_client
        ),
        "You report the validation accuracy by which you choose. It is too high, because you "
        "chose the round by it. Report the test accuracy of the chosen round.": (
            lambda validation, test: float(validation.mean(axis=1).max())
        ),
        "You take the last round. Take the one with the best validation accuracy.": (
            lambda validation, test: float(test[-1].mean())
        ),
        "If several rounds are equally good on validation images, take the first of them.": (
            last_of_the_best
        ),
    },
)

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
figure, ax = plt.subplots(figsize=(5, 2.6))
for day in ("Monday", "Tuesday"):
    averaging = [accuracy(methods.make("fedavg")) for _ in range(3)]
    proximal = [accuracy(methods.make("fedprox", mu=0.1)) for _ in range(3)]
    for name, runs in (("FedAvg", averaging), ("FedProx", proximal)):
        print(f"{day:8s} {name:8s}", *(f"{run:.2f}" for run in runs), f" mean {np.mean(runs):.2f}")
        ax.plot([f"{day}\n{name}"] * 3, runs, "o", color="C0")
        ax.plot(f"{day}\n{name}", np.mean(runs), "_", color="C1", markersize=30)
ax.set_ylabel("accuracy")
ax.margins(x=0.15)
plots.show(
    figure,
    4,
    "Three runs of each method on two days (points), and their means (lines).",
    "On Monday, the mean of FedProx is above that of FedAvg; on Tuesday, it is below. The points of a method lie far apart.",
)

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
# experiment](../02b_four_scenarios.ipynb#the-partition-is-the-experiment) in appendix 02b.
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


# %% tags=["exercise"]
from scipy.stats import sem


def scores_on_splits(rng):
    """Draw the scores of two methods on splits that are easy or difficult for both."""
    splits = int(rng.integers(3, 9))
    difficulty, own = rng.normal(0, 0.1, splits), rng.normal(0, 0.02, (2, splits))
    return (rng.uniform(0.4, 0.7, (2, 1)) + difficulty + own,)


def unpaired(scores):
    return paired(scores)[0], float(np.sqrt((sem(scores, axis=1) ** 2).sum()))


def with_error(scores, factor):
    """Multiply the standard error by a factor."""
    mean, error = paired(scores)
    return mean, factor * error


exercise = Implement(
    "Every day another winner",
    minutes=15,
    level="easy",
    points=1,
    inputs=scores_on_splits,
    mistakes={
        "This is the standard error for two independent groups of splits. Here both methods "
        "have the same splits. Compute it from the differences.": unpaired,
        "This is the standard deviation of the differences. How much smaller is the standard "
        "error of their mean?": lambda scores: with_error(scores, np.sqrt(scores.shape[1])),
        "You divide by the number of splits in the variance. For a sample, divide by the "
        "number of splits minus one.": lambda scores: with_error(
            scores, np.sqrt(1 - 1 / scores.shape[1])
        ),
        "The sign of the mean is wrong. Subtract the second method from the first one.": (
            lambda scores: paired(scores[::-1])
        ),
        "You divide the standard deviation by the number of splits. The standard error has the "
        "root of this number.": lambda scores: with_error(scores, 1 / np.sqrt(scores.shape[1])),
    },
)
