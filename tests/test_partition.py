import json
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cflkit import datasets, partition
from cflkit.datasets import ImageSet
from cflkit.partition import Partition, PartitionError, features, shifts
from cflkit.partition.scenarios import NON_OVERLAPPING, OVERLAPPING

LABELS = np.random.default_rng(0).integers(0, 10, size=3000)
SCENARIOS = [(o, b) for o in ("nonoverlapping", "overlapping") for b in ("balanced", "imbalanced")]
scenarios = st.sampled_from(SCENARIOS)


def numbers(labels=LABELS, **options):
    """Build an image set with these labels in its pool, and images of one pixel."""
    targets = torch.as_tensor(labels).long()
    images = torch.zeros(len(targets), 1, 1, 1, dtype=torch.uint8)
    return ImageSet("numbers", images, targets, images[:0], targets[:0], classes=10, **options)


def make(o="nonoverlapping", b="balanced", labels=LABELS, **options):
    images = numbers(labels)
    again, split = partition.ocfl(images, overlap=o, balance=b, **options)
    assert again is images
    return split


def held_by(split):
    """Return the samples of each client, training and test."""
    return [np.concatenate(own) for own in zip(split.train, split.test, strict=True)]


# --- Scenarios of OCFL ---------------------------------------------------------------------------


@given(scenarios, st.integers(3, 40), st.integers(0, 1000), st.sampled_from([8, 9, 10]))
def test_clients_see_their_clusters_classes_alone(scenario, clients, seed, classes):
    labels = LABELS % classes
    split = make(*scenario, labels=labels, clients=clients, seed=seed, draws=30)
    layout = {"nonoverlapping": NON_OVERLAPPING, "overlapping": OVERLAPPING}
    assert split.clients == clients and set(split.clusters) == {0, 1, 2}
    for held, cluster in zip(held_by(split), split.clusters, strict=True):
        assert set(labels[held]) <= set(layout[scenario[0]][classes][cluster])
        assert len(set(held)) == len(held) <= 30
    assert min(map(len, split.train + split.test)) >= 1


SIZES = [
    (15, "imbalanced", [3, 7, 5]),
    (30, "imbalanced", [7, 14, 9]),
    # Others have one client per cluster, and 20, 47 and 33 % of the rest, of which the largest
    # remainders are rounded up
    (10, "imbalanced", [3, 4, 3]),  # 1.4, 3.29 and 2.31 more
    (20, "imbalanced", [4, 9, 7]),  # 3.4, 7.99 and 5.61 more
    (20, "balanced", [7, 7, 6]),
]


@pytest.mark.parametrize(("clients", "balance", "sizes"), SIZES)
def test_cluster_sizes(clients, balance, sizes):
    assert partition.cluster_sizes(clients, balance) == sizes


@given(st.integers(3, 60))
def test_other_numbers_of_classes_are_divided_into_thirds(classes):
    apart = partition.class_sets("nonoverlapping", classes)
    shared = partition.class_sets("overlapping", classes)
    assert sorted(label for part in apart for label in part) == [*range(classes)]
    if classes not in OVERLAPPING:
        assert max(map(len, apart)) - min(map(len, apart)) <= 1
        counts = np.bincount([label for part in shared for label in part])
        assert counts.tolist() == [2] * classes


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_clients_draw_as_numpys_generator_chooses(scenario):
    """The draws are written out, since `choice` would sum up the probabilities for each client.

    The clients of an imbalanced cluster share one draw of class probabilities from Dirichlet(1).
    """
    split, generator = make(*scenario, clients=6, seed=7), np.random.default_rng(7)
    held = held_by(split)
    for cluster, allowed in enumerate(partition.class_sets(scenario[0], 10)):
        shares = generator.dirichlet(np.ones(10)) if scenario[1] == "imbalanced" else np.ones(10)
        weight = np.where(np.isin(LABELS, allowed), shares[LABELS], 0)
        for client in np.flatnonzero(split.clusters == cluster):
            drawn = np.unique(generator.choice(3000, size=500, p=weight / weight.sum()))
            assert sorted(held[client]) == drawn.tolist()
            generator.permutation(drawn)
    assert [len(tests) for tests in split.test] == [round(0.3 * len(own)) for own in held]


mnist = cache(partial(datasets.load, "mnist"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("clients", [15, 30])
def test_client_sizes_on_mnist_are_those_of_the_archive(data_root, scenario, clients):
    """Compare with the authors' own partitions, within sampling error."""
    archive = data_root.parent / "published" / "ocfl_partitions.csv"
    if not archive.exists():
        pytest.skip("needs the authors' archived partitions beside the data")
    o, b = scenario
    theirs = pd.read_csv(archive).query(
        "dataset == 'MNIST' and overlap == @o and balance == @b and clients == @clients"
        " and client_id != 'orchestrator'"
    )
    totals = theirs.groupby(theirs["client_id"].astype(int))["total_samples"].sum().to_numpy()
    _, split = partition.ocfl(mnist(), overlap=o, balance=b, clients=clients)
    ours = np.array([*map(len, held_by(split))])
    assert len(ours) == len(totals)
    assert b == "balanced" or (ours < 60000 // clients).all()
    # A client's count varies by about 20 around one expectation, or has another Dirichlet draw
    near = {"abs": 30} if b == "balanced" else {"rel": 0.2}
    for cluster in range(3):
        members = split.clusters == cluster
        assert ours[members].mean() == pytest.approx(totals[members].mean(), **near)
    shares = theirs[theirs["partition"] == "train_set"]["total_samples"].sum() / totals.sum()
    assert sum(map(len, split.train)) / ours.sum() == pytest.approx(shares, abs=0.002)


# --- Other recipes -------------------------------------------------------------------------------


def test_iid_clients_are_disjoint_and_one_cluster():
    _, split = partition.iid(numbers(), clients=7)
    held = np.concatenate(held_by(split))
    assert len(set(held)) == len(held) == 7 * (3000 // 7)
    assert set(split.clusters) == {0}


@given(st.floats(0.05, 100), st.integers(1, 12), st.integers(0, 100))
def test_dirichlet_deals_every_sample_once(alpha, clients, seed):
    try:
        _, split = partition.dirichlet(numbers(), clients=clients, alpha=alpha, seed=seed)
    except PartitionError:
        assert alpha < 0.2
        return
    assert sorted(np.concatenate(held_by(split))) == list(range(3000))


def test_dirichlet_is_even_for_a_large_alpha_and_favours_clients_for_a_small_one():
    _, split = partition.dirichlet(numbers(), clients=5, alpha=1e6)
    counts = partition.class_counts(split, LABELS) + partition.class_counts(split, LABELS, "test")
    np.testing.assert_allclose(counts, np.tile(np.bincount(LABELS) / 5, (5, 1)), atol=2)
    _, split = partition.dirichlet(numbers(), clients=4, alpha=0.3)
    assert len(set(partition.class_counts(split, LABELS).argmax(axis=0))) > 1


def owned(owners):
    return numbers(LABELS[: len(owners)], owners=torch.as_tensor(owners))


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(0, 5), st.randoms())
def test_clients_of_the_data_have_their_own_samples_and_no_truth(sizes, seed, random):
    owners = [owner for owner, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(owners)
    _, split = partition.by_owners(owned(owners), seed=seed)
    assert split.clusters is split.take([0]).clusters is None
    for owner, held in enumerate(held_by(split)):
        assert sorted(held) == [i for i, own in enumerate(owners) if own == owner]
    assert min(map(len, split.train + split.test)) >= 1


@given(share=st.floats(0.01, 0.9), seed=st.integers(0, 5))
def test_validation_samples_are_taken_from_the_training_samples(share, seed):
    _, whole = partition.iid(numbers(), clients=7, draws=30)
    split = partition.with_validation(whole, share, seed)
    for own, kept, held in zip(whole.train, split.train, split.more["validation"], strict=True):
        assert len(held) == max(1, round(share * len(own)))
        assert sorted([*kept, *held]) == own.tolist()
    assert all(map(np.array_equal, split.test, whole.test))


@given(st.sampled_from(["1/r", "half"]), st.integers(2, 12), st.integers(0, 100))
def test_unequal_clients_keep_the_shares_of_their_ranks(sizes, clients, seed):
    """Each client has 140 training samples before; with ``half``, one has half of what is left."""
    _, whole = partition.iid(numbers(), clients=clients, draws=200)
    split = partition.unequal(whole, sizes, seed)
    others = [140 / r if sizes == "1/r" else 140 / (clients - 1) for r in range(2, clients + 1)]
    assert sorted(map(len, split.train), reverse=True) == [140, *map(round, others)]
    assert all(map(set.issuperset, map(set, whole.train), map(set, split.train)))
    assert replace(whole, train=split.train).hash == split.hash, "all else is as before"
    assert partition.unequal(whole, None, seed) is whole


def test_a_partition_gives_its_clients_in_another_order():
    whole, order = partition.with_validation(make(clients=6), 0.2), [5, 0, 3]
    taken = whole.take(order)
    for name, held in whole.splits.items():
        assert all(map(np.array_equal, taken.splits[name], [held[client] for client in order]))
    assert taken.clusters.tolist() == whole.clusters[order].tolist()
    assert whole.take(range(6)).hash == whole.hash != taken.hash
    assert taken.take([2, 0]).recipe["clients taken"] == [3, 5]


def test_four_draws_are_enough_for_a_client():
    for split in (make(clients=3, draws=4), partition.iid(numbers(), clients=3, draws=4)[1]):
        assert min(map(len, split.train + split.test)) >= 1


def of_domains(version, clients, seed):
    images = datasets.load("digits-8x8")
    images = replace(images, domains=torch.arange(len(images.labels)) % 2)
    return shifts.make(images, version, clients=clients, seed=seed)[1]


def validated(share, seed=0, whole=None):
    _, made = partition.iid(numbers(), clients=7, draws=30)
    return partition.with_validation(whole or made, share, seed)


RECIPES = [
    *(partial(make, *scenario, clients=9) for scenario in SCENARIOS),
    lambda seed: partition.iid(numbers(), clients=7, seed=seed)[1],
    lambda seed: partition.dirichlet(numbers(), clients=5, alpha=1.0, seed=seed)[1],
    lambda seed: partition.class_mixtures(numbers(), samples_per_class=50, seed=seed)[1],
    lambda seed: partition.by_owners(owned([0] * 9 + [1] * 9), seed=seed)[1],
    partial(validated, 0.3),
    lambda seed: partition.unequal(make(clients=9), "1/r", seed),
    partial(of_domains, "two", 8),
    partial(of_domains, "domains", None),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_seed_gives_another_split(recipe):
    one, same, other = (recipe(seed=seed).hash for seed in (0, np.int64(0), 1))
    assert one == same != other


def alone(classes):
    """Let two clients draw from classes of one sample."""
    return partition.by_class_sets(np.arange(9), classes, [1, 1], draws=4, dirichlet=False, seed=0)


IMPOSSIBLE = [
    (lambda: make(clients=2), "2 clients are too few"),
    (lambda: make(draws=3), "use fewer clients or more draws"),
    (lambda: make(clients=3001, draws=10), "use fewer clients or more draws"),
    (lambda: make("disjoint"), "overlap is 'disjoint'"),
    (lambda: make(b="even"), "balance is 'even'"),
    (lambda: make(labels=LABELS[:0]), "at least three classes; there are 0"),
    (lambda: make(labels=np.where(LABELS == 5, 6, LABELS)), r"no sample has the classes \[5\]"),
    (lambda: alone([[-1, 0], [9]]), r"no sample has the classes \[-1, 9\]"),
    (lambda: alone([[0], [1]]), "client 0 has fewer than two different samples"),
    (lambda: partition.iid(numbers(), clients=10, draws=301), "cannot be drawn"),
    (lambda: partition.dirichlet(numbers(), clients=3, alpha=np.nan), "alpha above 0 and"),
    (lambda: partition.dirichlet(numbers(), clients=3, alpha=np.inf), "alpha above 0 and"),
    (lambda: partition.dirichlet(numbers(LABELS[:90]), clients=20, alpha=1), "fewer clients"),
    (lambda: partition.by_owners(numbers()), "give the array 'clients'"),
    (lambda: features.class_bumps(clients=0), "needs a multiple of 3 clients"),
    (lambda: features.class_bumps(clients=7), "needs a multiple of 3 clients"),
    (lambda: features.class_bumps(seed=2**32), "a seed below 2"),
    (lambda: features.class_bumps(seed=1.5), "whole number from 0 on, not 1.5"),
    (lambda: partition.by_owners(owned([0, 0, 1])), "client 1 has fewer than two different"),
    (lambda: partition.by_owners(owned([0] * 9), seed=None), "from 0 on, not None"),
    (lambda: partition.iid(numbers(), clients=3, seed=None), "from 0 on, not None"),
    (lambda: partition.dirichlet(numbers(), clients=3, alpha=1, seed=None), "from 0 on, not None"),
    (lambda: partition.unequal(make(), "1/R"), "sizes is '1/R', not one of 1/r, half"),
    (lambda: partition.unequal(make(clients=3, draws=6), "1/r"), "would keep 1 training"),
    (lambda: validated(1.0), "above 0 and below 1"),
    (lambda: validated(0.99), "no training samples left"),
    (lambda: validated(0.1, whole=validated(0.1)), "already"),
]


@pytest.mark.parametrize(("recipe", "message"), IMPOSSIBLE)
def test_recipes_that_cannot_be_followed(recipe, message):
    with pytest.raises(PartitionError, match=message):
        recipe()


# --- Hash and manifest ---------------------------------------------------------------------------


@st.composite
def tiny_partitions(draw):
    """Generate partitions of one to three clients and two further splits, with few indices."""
    clients = draw(st.integers(1, 3))

    def split(first=0):
        size, elements = st.integers(0, 2), st.integers(first, first + 2)
        indices = arrays(np.int64, size, elements=elements, unique=True)
        return draw(st.lists(indices, min_size=clients, max_size=clients))

    names = draw(st.lists(st.sampled_from(["a", "aa", "validation"]), max_size=2, unique=True))
    clusters = arrays(np.int64, clients, elements=st.integers(0, 1))
    return Partition(
        draw(st.sampled_from(["", "a", "aa"])),
        split(),
        split(first=3),
        draw(st.none() | clusters),
        {"name": "tiny", "seed": np.int64(draw(st.integers(0, 1)))},
        {name: split(first=3 if name == "validation" else 0) for name in names},
    )


def contents(split):
    """Return all that a hash should cover, as plain values."""
    held = {name: [i.tolist() for i in parts] for name, parts in split.splits.items()}
    known = None if split.clusters is None else split.clusters.tolist()
    return split.dataset, known, held


A, B, ZERO = np.arange(3), np.arange(3, 5), np.zeros(1, dtype=np.int64)
ALIKE = [  # with the same indices, but in splits of other names, or of other clients
    Partition("x", [A], [B], ZERO, {}, {"validation": [B]}),
    Partition("x", [A], [B], ZERO, {}, {"backdoor": [B]}),
    Partition("x", [A, B], [B, A], np.array([1, 0]), {}),
    Partition("x", [A], [B], ZERO, {}, {"a": [B], "b": [np.array([1, 0])]}),
]


@given(tiny_partitions(), tiny_partitions())
@example(*ALIKE[:2])
@example(*ALIKE[2:])
def test_two_partitions_have_one_hash_if_and_only_if_they_are_equal(one, other):
    assert (one.hash == other.hash) == (contents(one) == contents(other))


@given(tiny_partitions())
def test_a_manifest_keeps_everything(tmp_path_factory, split):
    again = Partition.load(split.save(tmp_path_factory.getbasetemp() / "split.json"))
    assert contents(again) == contents(split)
    assert (again.recipe, [*again.splits]) == (split.recipe, [*split.splits])


def of_two(**changed):
    """Build a partition of two clients, in which something is changed."""
    right = {"train": [A, B], "test": [A + 5, B + 5], "clusters": np.array([0, 1]), "more": {}}
    return Partition("x", recipe={}, **(right | changed))


WRONG = [
    ({"train": [], "test": [], "clusters": None}, "it needs clients"),
    ({"train": [A - 2, B]}, "train of client 0 has -2; numbers begin with 0"),
    ({"train": [A, np.array([True, False])]}, "has the type bool; arrays .* are taken"),
    ({"test": [A + 5, (B + 5).astype(np.uint8)]}, "test of client 1 has the type uint8"),
    ({"train": [A.tolist(), B]}, "has the type list; arrays"),
    ({"train": [A[:, None], B]}, r"arrays \[n\] of whole numbers"),
    ({"train": [np.zeros(40, int), B]}, "has the same samples again, 39 times"),
    ({"test": [A, B + 5]}, "client 0 has 3 samples both for training and for test"),
    ({"test": [A + 5]}, "test has 1 clients, but train has 2"),
    ({"more": {"validation": [A, A]}}, "samples both for training and for validation"),
    ({"more": {"central": [A, B]}}, "no further split can have the name 'central'"),
    ({"clusters": np.array([0, 1, 1])}, "3 numbers for 2 clients"),
    ({"clusters": np.array([0, -5])}, "clusters has -5"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_a_partition_that_is_wrong_is_refused_before_anything_trains(changed, said):
    assert of_two(train=[A.astype(np.int32), B[:0]], clusters=None).clients == 2
    with pytest.raises(PartitionError, match=said):
        of_two(**changed)


ALTERED = [
    (lambda told: told.pop("clients"), "clients: Field required"),
    (lambda told: told["clients"][0]["train"].append(2**70), "less than 9223372036854775808"),
    # Two dimensions have the hash of one
    (lambda told: told["clients"][0].update(train=[[0], [1], [2]]), "a valid integer"),
    (lambda told: told["clients"][1].update(test=[3]), "both for training and for test"),
    (lambda told: told["clients"][1].update(cluster=None), "was altered"),
    (lambda told: told["clients"][1].update(more=[1]), "was altered"),
    (lambda told: told["clients"][0]["train"].pop(), "was altered"),
    (lambda told: told["recipe"].update(seed=1), "was altered"),
]


@pytest.mark.parametrize(("change", "said"), ALTERED)
def test_a_manifest_with_wrong_values_is_refused_in_one_line(tmp_path, change, said):
    path = of_two().save(tmp_path / "split.json")
    told = json.loads(path.read_text())
    change(told)
    for text, fault in ((json.dumps(told), said), ("[" * 9999, ""), ('{"hash": "\xff"}', "")):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(PartitionError, match=f"is not a partition manifest .*{fault}") as error:
            Partition.load(path)
        assert "\n" not in str(error.value)
