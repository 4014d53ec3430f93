import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cflkit import datasets, partition
from cflkit.datasets import ImageSet
from cflkit.partition import PartitionError

LABELS = np.random.default_rng(0).integers(0, 10, size=3000)
SCENARIOS = [(o, b) for o in ("nonoverlapping", "overlapping") for b in ("balanced", "imbalanced")]
scenarios = st.sampled_from(SCENARIOS)


def numbers(labels=LABELS):
    """Build an image set with these labels in its pool, and images of one pixel."""
    targets = torch.as_tensor(labels).long()
    images = torch.zeros(len(targets), 1, 1, 1, dtype=torch.uint8)
    return ImageSet("numbers", images, targets, images[:0], targets[:0], classes=10)


def make(o="nonoverlapping", b="balanced", labels=LABELS, **options):
    images = numbers(labels)
    again, split = partition.ocfl(images, overlap=o, balance=b, **options)
    assert again is images
    return split


@given(scenarios, st.integers(3, 40), st.integers(0, 1000), st.sampled_from([8, 9, 10]))
def test_clients_see_their_clusters_classes_alone(scenario, clients, seed, classes):
    o, b = scenario
    labels = LABELS % classes
    split = make(o, b, labels=labels, clients=clients, seed=seed, draws=30)
    layout = {"nonoverlapping": partition.NON_OVERLAPPING, "overlapping": partition.OVERLAPPING}
    for train, test, cluster in zip(split.train, split.test, split.clusters, strict=True):
        held = np.concatenate([train, test])
        assert set(labels[held]) <= set(layout[o][classes][cluster])
        assert len(set(held)) == len(held) <= 30
        assert len(train) >= 1
        assert len(test) >= 1


@given(scenarios, st.integers(3, 200))
def test_cluster_sizes_add_up_and_none_is_empty(scenario, clients):
    sizes = partition.cluster_sizes(clients, scenario[1])
    assert sum(sizes) == clients
    assert min(sizes) >= 1
    if scenario[1] == "balanced":
        assert max(sizes) - min(sizes) <= 1


def test_the_papers_cluster_sizes():
    assert partition.cluster_sizes(15, "balanced") == [5, 5, 5]
    assert partition.cluster_sizes(30, "balanced") == [10, 10, 10]
    assert partition.cluster_sizes(15, "imbalanced") == [3, 7, 5]
    assert partition.cluster_sizes(30, "imbalanced") == [7, 14, 9]


def test_other_imbalanced_sizes_round_the_largest_remainders_up():
    """Each cluster has one client, and 20, 47 and 33 % of the other 7 or 17 clients."""
    assert partition.cluster_sizes(10, "imbalanced") == [3, 4, 3]  # 1.4, 3.29 and 2.31 more
    assert partition.cluster_sizes(20, "imbalanced") == [4, 9, 7]  # 3.4, 7.99 and 5.61 more


def test_non_overlapping_clusters_share_no_sample_and_clients_of_one_do():
    split = make(clients=15)
    held = [set(a) | set(b) for a, b in zip(split.train, split.test, strict=True)]
    unions = [
        set().union(*(held[c] for c in np.flatnonzero(split.clusters == k))) for k in range(3)
    ]
    assert all(a.isdisjoint(b) for a, b in pairwise(unions))
    assert held[0] & held[1]


def test_overlapping_clusters_share_samples():
    split = make("overlapping", clients=15)
    held = [set(a) | set(b) for a, b in zip(split.train, split.test, strict=True)]
    assert held[0] & held[-1]


def test_clients_of_an_imbalanced_cluster_share_one_dirichlet_draw():
    split = make("overlapping", "imbalanced", clients=15, seed=3)
    counts = partition.class_counts(split, LABELS)
    shares = counts / counts.sum(axis=1, keepdims=True)
    within = [np.ptp(shares[split.clusters == k], axis=0).max() for k in range(3)]
    means = np.stack([shares[split.clusters == k].mean(axis=0) for k in range(3)])
    assert max(within) < np.ptp(means, axis=0).max()


def test_class_shares_of_imbalanced_clusters_are_from_dirichlet_1():
    """The largest of six such shares is (1 + 1/2 + … + 1/6) / 6 on average."""
    labels = np.arange(50_000) % 10
    largest = []
    for seed in range(40):
        split = make("overlapping", "imbalanced", labels=labels, clients=3, draws=1000, seed=seed)
        counts = partition.class_counts(split, labels)
        largest += (counts.max(axis=1) / counts.sum(axis=1)).tolist()
    assert np.mean(largest) == pytest.approx(sum(1 / n for n in range(1, 7)) / 6, abs=0.04)


def test_seven_tenths_train():
    split = make(clients=15)
    for train, test in zip(split.train, split.test, strict=True):
        assert len(test) == round(0.3 * (len(train) + len(test)))


def test_the_number_kept_is_what_draws_with_replacement_leave():
    split = make(clients=15, draws=400)
    for cluster in range(3):
        pool = np.isin(LABELS, partition.NON_OVERLAPPING[10][cluster]).sum()
        expected = pool * (1 - (1 - 1 / pool) ** 400)
        for client in np.flatnonzero(split.clusters == cluster):
            kept = len(split.train[client]) + len(split.test[client])
            assert kept == pytest.approx(expected, abs=4 * np.sqrt(expected * 0.5))


@given(scenarios, st.integers(0, 100))
def test_seed_and_hash(scenario, seed):
    one, same, other = (make(*scenario, clients=9, seed=s) for s in (seed, seed, seed + 1))
    assert one.hash == same.hash
    assert one.hash != other.hash


def test_manifest_round_trip(tmp_path):
    split = make(clients=5, draws=20)
    loaded = partition.Partition.load(split.save(tmp_path / "split.json"))
    assert loaded.hash == split.hash
    assert loaded.recipe == split.recipe
    for a, b in zip(loaded.train + loaded.test, split.train + split.test, strict=True):
        np.testing.assert_array_equal(a, b)


def tiny_partitions():
    """Generate partitions of at most three clients and two further splits, with few indices."""

    @st.composite
    def build(draw):
        clients = draw(st.integers(0, 3))
        indices = st.lists(st.integers(0, 2), max_size=2).map(lambda i: np.array(i, dtype=np.int64))
        split = st.lists(indices, min_size=clients, max_size=clients)
        names = draw(st.lists(st.sampled_from(["a", "aa", "validation"]), max_size=2, unique=True))
        return partition.Partition(
            draw(st.sampled_from(["", "a", "aa"])),
            draw(split),
            draw(split),
            draw(
                st.none()
                | st.lists(st.integers(0, 1), min_size=clients, max_size=clients).map(np.array)
            ),
            {},
            {name: draw(split) for name in names},
        )

    return build()


def contents(split):
    """Return all that a hash should cover, as plain values."""
    held = {name: [i.tolist() for i in parts] for name, parts in split.splits.items()}
    known = None if split.clusters is None else split.clusters.tolist()
    return split.dataset, known, held


@given(tiny_partitions(), tiny_partitions())
def test_two_partitions_have_one_hash_if_and_only_if_they_are_equal(one, other):
    assert (one.hash == other.hash) == (contents(one) == contents(other))


def test_names_of_splits_and_the_number_of_clients_are_in_the_hash():
    a, b = np.arange(3), np.arange(3, 5)
    zeros = np.zeros(1, dtype=np.int64)
    validation, backdoor = (
        partition.Partition("x", [a], [b], zeros, {}, {name: [b]})
        for name in ("validation", "backdoor")
    )
    two_clients = partition.Partition("x", [a, b], [zeros, b], np.array([1, 0]), {})
    one_client = partition.Partition("x", [a], [b], zeros, {}, {"a": [b], "b": [np.array([1, 0])]})
    for one, other in ((validation, backdoor), (two_clients, one_client)):
        assert one.hash != other.hash


@pytest.mark.parametrize("field", ["train", "test", "cluster", "hash"])
def test_an_altered_manifest_is_refused(tmp_path, field):
    path = make(clients=5, draws=20).save(tmp_path / "split.json")
    manifest = json.loads(path.read_text())
    client = manifest["clients"][0]
    if field == "hash":
        manifest["hash"] = "2:" + "0" * 64
    else:
        client[field] = 1 if field == "cluster" else client[field][:-1]
    path.write_text(json.dumps(manifest))
    with pytest.raises(PartitionError, match="was altered"):
        partition.Partition.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"clients": 3}'])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    path = tmp_path / "split.json"
    path.write_text(text)
    with pytest.raises(PartitionError, match="not a partition manifest"):
        partition.Partition.load(path)


def test_iid_clients_are_disjoint_and_one_cluster():
    _, split = partition.iid(numbers(), clients=7)
    held = np.concatenate(split.train + split.test)
    assert len(set(held)) == len(held) == 7 * (3000 // 7)
    assert set(split.clusters) == {0}


@given(st.floats(0.05, 100), st.integers(1, 12), st.integers(0, 100))
def test_dirichlet_deals_every_sample_once(alpha, clients, seed):
    try:
        _, split = partition.dirichlet(numbers(), clients=clients, alpha=alpha, seed=seed)
    except PartitionError:
        assert alpha < 0.2
        return
    held = np.concatenate(split.train + split.test)
    assert sorted(held) == list(range(3000))


def test_dirichlet_is_even_for_a_large_alpha():
    _, split = partition.dirichlet(numbers(), clients=5, alpha=1e6)
    counts = partition.class_counts(split, LABELS) + partition.class_counts(split, LABELS, "test")
    np.testing.assert_allclose(counts, np.tile(np.bincount(LABELS) / 5, (5, 1)), atol=2)


def test_dirichlet_favours_other_clients_in_other_classes():
    _, split = partition.dirichlet(numbers(), clients=4, alpha=0.3)
    assert len(set(partition.class_counts(split, LABELS).argmax(axis=0))) > 1


def test_four_draws_are_enough_for_a_client():
    for split in (make(clients=3, draws=4), partition.iid(numbers(), clients=3, draws=4)[1]):
        assert min(map(len, split.train + split.test)) >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 2}, "2 clients are too few"),
        ({"clients": 2000}, "use fewer clients"),
        ({"draws": 3}, "use fewer clients or more draws"),
        ({"clients": 3001, "draws": 10}, "use fewer clients or more draws"),
        ({"o": "disjoint"}, "overlap is 'disjoint'"),
        ({"b": "even"}, "balance is 'even'"),
        ({"labels": LABELS % 2}, "at least three classes; there are 2"),
        ({"labels": np.zeros(0, dtype=int)}, "at least three classes; there are 0"),
        ({"labels": np.where(LABELS == 5, 6, LABELS)}, "no sample has class 5"),
    ],
)
def test_recipes_that_cannot_be_followed(options, message):
    with pytest.raises(PartitionError, match=message):
        make(**options)


def test_other_recipes_that_cannot_be_followed():
    with pytest.raises(PartitionError, match="cannot be drawn"):
        partition.iid(numbers(), clients=0)
    with pytest.raises(PartitionError, match="cannot be drawn"):
        partition.iid(numbers(), clients=10, draws=301)
    with pytest.raises(PartitionError, match="alpha > 0"):
        partition.dirichlet(numbers(), clients=3, alpha=0)
    with pytest.raises(PartitionError, match="use fewer clients"):
        partition.dirichlet(numbers(), clients=700, alpha=1)


# --- Clients of the data --------------------------------------------------------------------------


def owned(owners):
    return replace(numbers(LABELS[: len(owners)]), owners=torch.as_tensor(owners))


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(0, 5), st.randoms())
def test_clients_of_the_data_have_their_own_samples_and_no_truth(sizes, seed, random):
    owners = [owner for owner, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(owners)
    _, split = partition.by_owners(owned(owners), seed=seed)
    assert split.clusters is None
    for owner, (train, test) in enumerate(zip(split.train, split.test, strict=True)):
        assert sorted([*train, *test]) == [i for i, own in enumerate(owners) if own == owner]
        assert len(train) and len(test)
    assert split.hash == partition.by_owners(owned(owners), seed=seed)[1].hash
    assert split.take([0]).clusters is None


def test_a_manifest_keeps_that_the_truth_is_unknown(tmp_path):
    _, split = partition.by_owners(owned([0, 0, 1, 1, 1]))
    again = partition.Partition.load(split.save(tmp_path / "split.json"))
    assert again.clusters is None
    assert again.hash == split.hash
    assert split.hash != replace(split, clusters=np.zeros(2, dtype=np.int64)).hash


def test_clients_of_the_data_that_cannot_be():
    with pytest.raises(PartitionError, match="give the array 'clients'"):
        partition.by_owners(numbers())
    with pytest.raises(PartitionError, match=r"clients \[1\] of numbers have fewer than two"):
        partition.by_owners(owned([0, 0, 1]))


# --- Seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe",
    [
        lambda seed: partition.iid(numbers(), clients=7, seed=seed)[1],
        lambda seed: partition.dirichlet(numbers(), clients=5, alpha=1.0, seed=seed)[1],
        lambda seed: partition.class_mixtures(numbers(), samples_per_class=50, seed=seed)[1],
        lambda seed: partition.by_owners(owned([0] * 9 + [1] * 9), seed=seed)[1],
        lambda seed: partition.with_validation(make(clients=9), 0.3, seed),
    ],
    ids=["iid", "dirichlet", "class_mixtures", "by_owners", "with_validation"],
)
def test_another_seed_gives_another_split(recipe):
    one, same, other = (recipe(seed).hash for seed in (0, 0, 1))
    assert one == same != other


# --- Validation samples --------------------------------------------------------------------------


@given(share=st.floats(0.01, 0.9), seed=st.integers(0, 5))
def test_validation_samples_are_taken_from_the_training_samples(share, seed):
    _, whole = partition.iid(numbers(), clients=7, draws=30)
    split = partition.with_validation(whole, share, seed)
    for own, kept, held in zip(whole.train, split.train, split.more["validation"], strict=True):
        assert len(held) == max(1, round(share * len(own)))
        assert sorted([*kept, *held]) == own.tolist()
    assert all(map(np.array_equal, split.test, whole.test))
    assert split.hash != whole.hash
    assert partition.with_validation(whole, share, seed).hash == split.hash


def test_validation_samples_that_cannot_be_taken():
    _, whole = partition.iid(numbers(), clients=7, draws=30)
    for share in (0.0, 1.0):
        with pytest.raises(PartitionError, match="above 0 and below 1"):
            partition.with_validation(whole, share)
    with pytest.raises(PartitionError, match="no training samples left"):
        partition.with_validation(whole, 0.99)
    with pytest.raises(PartitionError, match="already"):
        partition.with_validation(partition.with_validation(whole, 0.1), 0.1)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("clients", [15, 30])
def test_client_sizes_on_mnist_are_those_of_the_archive(data_root, scenario, clients):
    """Compare with the authors' own partitions, within sampling error."""
    archive = data_root.parent / "published" / "ocfl_partitions.csv"
    if not archive.exists():
        pytest.skip("needs the authors' archived partitions beside the data")
    o, b = scenario
    table = pd.read_csv(archive)
    theirs = table[
        (table["dataset"] == "MNIST")
        & (table["overlap"] == o)
        & (table["balance"] == b)
        & (table["clients"] == clients)
        & (table["client_id"] != "orchestrator")
    ]
    totals = theirs.groupby(theirs["client_id"].astype(int))["total_samples"].sum().to_numpy()
    images = datasets.load("mnist")
    _, split = partition.ocfl(images, overlap=o, balance=b, clients=clients)
    ours = np.array([len(x) + len(y) for x, y in zip(split.train, split.test, strict=True)])
    assert len(ours) == len(totals)
    for cluster in range(3):
        members = split.clusters == cluster
        if b == "balanced":  # the same expectation; a client's count varies by about 20
            assert ours[members].mean() == pytest.approx(totals[members].mean(), abs=30)
        else:  # another Dirichlet draw, so sizes agree only roughly
            assert np.all(ours[members] < 60000 // clients)
            assert ours[members].mean() == pytest.approx(totals[members].mean(), rel=0.2)
    shares = theirs[theirs["partition"] == "train_set"]["total_samples"].sum() / totals.sum()
    assert sum(map(len, split.train)) / ours.sum() == pytest.approx(shares, abs=0.002)


@given(st.integers(3, 60))
def test_other_numbers_of_classes_are_divided_into_thirds(classes):
    apart = partition.class_sets("nonoverlapping", classes)
    shared = partition.class_sets("overlapping", classes)
    assert sorted(label for part in apart for label in part) == [*range(classes)]
    if classes not in partition.OVERLAPPING:
        assert max(map(len, apart)) - min(map(len, apart)) <= 1
        counts = np.bincount([label for part in shared for label in part])
        assert counts.tolist() == [2] * classes
