"""Tests of rotations, backdoors and domains: each client's images and their shifts."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import colormaps
from reports import thresholds
from torchvision.transforms.functional import rotate

from cflkit import datasets
from cflkit.partition import PartitionError, shifts


def altered(images, channels=1, pixels=lambda x: x, tested=range(10), **others):
    """Return images with other channels or pixels, and with the test images of some classes."""
    few = torch.isin(images.test_labels, torch.tensor(tested))
    parts = images.images, images.test_images[few]
    pool, tests = (pixels(part.expand(-1, channels, -1, -1)) for part in parts)
    others |= {"images": pool, "test_images": tests, "test_labels": images.test_labels[few]}
    return dataclasses.replace(images, **others)


@pytest.fixture(scope="module")
def colourful(digits):
    """Make digits with three channels in place of CIFAR-10."""
    return altered(digits, channels=3)


def origin(index, images, copies):
    """Return the row in the unshifted images (training, then test) and the copy of an index."""
    total = len(images.labels) + len(images.test_labels)
    assert index.max() < total * copies
    return index % total, index // total


def whole(images):
    return torch.cat([images.images, images.test_images])


@pytest.mark.slow
@pytest.mark.parametrize("version", shifts.ROTATIONS)
@settings(max_examples=5)
@given(
    seed=st.integers(0, 100),
    members=st.integers(1, 4),
    samples=st.none() | st.integers(20, 60),
    published=st.booleans(),
)
def test_a_group_shares_no_images(small, version, seed, members, samples, published):
    """Clients hold images that are shifted as their group's are.

    Owners and domains of the images are left out, since the pool has more images.
    """
    groups = shifts.ROTATIONS[version]
    clients, zeros = members * len(groups), torch.zeros(len(small.labels), dtype=torch.int64)
    images = dataclasses.replace(small, owners=zeros, domains=zeros)
    options = {"clients": clients, "samples": samples, "published": published, "seed": seed}
    shifted, split = shifts.make(images, version, **options)
    assert (shifted.owners, shifted.domains) == (None, None)
    assert split.clusters.tolist() == [g.cluster for g in groups for _ in range(members)]
    seen = [set() for _ in groups]
    for client in range(clients):
        parts = [split.train[client], split.more["validation"][client], split.test[client]]
        for number, part in enumerate(parts):
            rows, group = origin(part, small, len(groups))
            assert set(group) == {client // members}
            assert ((rows < len(small.labels)) == (number < 2)).all()  # part 2 is test images
            assert not seen[client // members] & set(part)
            seen[client // members] |= set(part)
        tested = np.bincount(shifted.labels[parts[2]], minlength=10)
        held = np.concatenate(parts[:2])
        assert tested.max() == tested.min() > 0
        assert len(parts[1]) == len(held) - int(0.9 * len(held))
        if samples:
            assert len(held) == samples
            assert np.ptp(np.bincount(shifted.labels[held], minlength=10)) <= 1
    sharers = clients if published else members
    assert abs(len(split.test[0]) - 350 / sharers) <= 10  # the rarest class has 35


CHANGES = [
    ("four", [partial(rotate, angle=angle) for angle in (0, 90, 180, 270)]),
    ("min", [partial(rotate, angle=angle) for angle in (-3, -1, 1, 3)]),
    ("two", [partial(rotate, angle=angle) for angle in (-3, 3, 177, 183)]),
    ("inverted", [lambda images: images, lambda images: 255 - images]),
]


@pytest.mark.parametrize(("version", "changes"), CHANGES)
def test_pixels_are_turned_or_inverted(digits, version, changes):
    shifted, split = shifts.make(digits, version, clients=8)
    labels = torch.cat([digits.labels, digits.test_labels])
    for client, index in enumerate(split.train):
        rows, copy = origin(index, digits, len(changes))
        assert torch.equal(shifted.images[index], changes[copy[0]](whole(digits)[rows]))
        assert torch.equal(shifted.labels[index], labels[rows])
        assert copy[0] == client * len(changes) // 8
    used = np.concatenate([held for parts in split.splits.values() for held in parts])
    assert not shifted.images[np.setdiff1d(np.arange(len(shifted.labels)), used)].any()


def test_backdoors_of_grey_images_are_shades(digits):
    shifted, split = shifts.make(digits, "backdoor", clients=6)
    assert shifted.shape == (3, 28, 28)
    first, _, whole_client, _, fifth, _ = map(len, split.train)
    assert [first, fifth] == pytest.approx([whole_client / 2] * 2, rel=0.1)
    assert [len(b) for b in split.more["backdoor"]] == [*map(len, split.test[:2]), 0, 0, 0, 0]
    grey = whole(digits).float()
    for part, client, colour in (
        ("train", 0, lambda label: shifts.GREEN),
        ("train", 2, lambda label: shifts.SHADES[label]),
        ("test", 5, lambda label: shifts.PURPLE),
        ("backdoor", 1, lambda label: shifts.SHADES[9 - label]),
    ):
        index = split.splits[part][client][:20]
        rows, _ = origin(index, digits, 4)
        colours = np.array([colour(label) for label in shifted.labels[index].tolist()])
        expected = grey[rows] * torch.tensor(colours)[:, :, None, None]
        assert (shifted.images[index] - expected).abs().max() <= 0.5 + 1e-4


def test_colours_are_those_of_matplotlib():
    assert (colormaps["summer"].resampled(40)(range(10))[:, :3] == shifts.SHADES).all()
    assert (colormaps["tab10"](range(5))[:, :3] == shifts.PATCHES / 255).all()


def test_backdoors_of_coloured_images_are_patches(colourful):
    shifted, split = shifts.make(colourful, "backdoor", clients=6)
    held = [set(shifted.labels[i].tolist()) for i in split.train]
    assert held == [set(range(5))] * 4 + [set(range(5, 10))] * 2
    corner = shifted.images[:, :, :3, :3]
    for part, client, move in (("train", 2, 0), ("backdoor", 0, 1)):
        index = split.splits[part][client]
        colours = torch.tensor(shifts.PATCHES)[(shifted.labels[index] + move) % 5]
        assert (corner[index] == colours[:, :, None, None]).all()
        rows, _ = origin(index, colourful, 4)
        assert torch.equal(shifted.images[index][..., 3:], whole(colourful)[rows][..., 3:])
    rows, _ = origin(split.test[0], colourful, 4)
    assert torch.equal(shifted.images[split.test[0]], whole(colourful)[rows])


@pytest.mark.parametrize("version", sorted({*shifts.VERSIONS} - {"domains"}))
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_floats_are_shifted_as_images_of_bytes(small, version, channels):
    """Both have the clusters that the reports take for true."""
    of_bytes = altered(small, channels)
    of_floats = altered(small, channels, pixels=lambda x: x / 255)
    expected, split = shifts.make(of_bytes, version, clients=12, samples=20)
    found, same = shifts.make(of_floats, version, clients=12, samples=20)
    assert found.images.dtype == torch.float32
    # Shades of bytes are rounded to whole grey levels
    torch.testing.assert_close(found.images, expected.images / 255, atol=0.5001 / 255, rtol=0)
    assert same.hash == split.hash
    assert split.clusters.tolist() == thresholds.true_clusters(version, 12).tolist()


def test_domains_are_cut_as_the_paper_says_or_as_its_code_does(colourful):
    domains = torch.arange(len(colourful.labels)) % 2
    pacs = dataclasses.replace(colourful, domains=domains)
    for published, shares in ((False, (0.8, 0.1, 0.1)), (True, (0.64, 0.16, 0.2))):
        images, split = shifts.make(pacs, "domains", published=published)
        assert images is pacs
        assert split.clusters.tolist() == [0, 1]
        held = [split.train[0], split.more["validation"][0], split.test[0]]
        assert [len(part) / 719 for part in held] == pytest.approx(shares, abs=0.005)
        assert sorted(np.concatenate(held)) == np.flatnonzero(domains == 0).tolist()


def test_a_domain_has_as_many_clients_as_its_images_allow(pool_of):
    """A split does not depend on the pixels; `test_real_data` has the sizes of PACS's domains."""
    domains = torch.arange(4).repeat_interleave(torch.tensor([2048, 2344, 1670, 3929]))
    pacs = dataclasses.replace(pool_of(torch.arange(len(domains)) % 7), domains=domains)
    for samples, least, clients in ((None, 500, [4, 4, 3, 7]), (600, 600, [3, 3, 2, 6])):
        _, split = shifts.make(pacs, "domains", samples=samples, published=True)
        assert np.bincount(split.clusters).tolist() == clients
        held = zip(*split.splits.values(), strict=True)
        assert min(sum(map(len, parts)) for parts in held) >= least
    with pytest.raises(PartitionError, match="domain 2 has 1670 images, but samples is 2000"):
        shifts.make(pacs, "domains", samples=2000)


@pytest.mark.slow
def test_rotated_mnist_has_the_papers_sizes(data_root):
    """The authors' notebook has 4,878 and 543 images, and by its error 220 test images.

    A split does not depend on the pixels, so four of each image are enough.
    """
    mnist = altered(datasets.load("mnist"), pixels=lambda x: x[..., :2, :2])
    _, split = shifts.make(mnist, "four", clients=40, published=True)
    assert {len(i) for i in split.train} == {4878, 4887}
    assert {len(i) for i in split.more["validation"]} == {542, 543}
    assert {len(i) for i in split.test} == {220, 230}  # all of theirs have 220
    _, coloured = shifts.make(mnist, "backdoor", clients=30, published=True)
    assert {len(coloured.train[c]) for c in (0, 29)} <= {2439, 2443}
    assert {len(i) for i in coloured.more["validation"]} == {542, 543}
    assert {len(i) for i in coloured.test} == {890, 900}
    _, meant = shifts.make(mnist, "four", clients=40)
    assert {len(i) for i in meant.test} == {890, 900}


IMPOSSIBLE = [
    ("sideways", {"clients": 4}, {}, "unknown version 'sideways'"),
    ("four", {"clients": 6}, {}, "clients must be a multiple of 4"),
    ("four", {"clients": None}, {}, "clients must be a multiple of 4"),
    ("four", {"clients": 4, "samples": 100_000}, {}, "but the rarest class has"),
    ("four", {"clients": 400}, {}, "0 images for training and validation, and 0 for test"),
    ("backdoor", {"clients": 3, "samples": 2}, {}, "2 images for training and validation"),
    ("four", {"clients": 4, "samples": -10}, {}, "samples must be at least 1, not -10"),
    ("domains", {"samples": 9}, {}, "samples must be at least 10, not 9"),
    ("domains", {"clients": 4}, {}, "clients must be None"),
    ("domains", {}, {}, "has no domains"),
    ("backdoor", {}, {"classes": 11}, "need ten classes; digits has 11"),
    ("four", {}, {"pixels": lambda x: x.flatten(1)[..., None, None] / 1}, "s has features"),
    ("four", {"clients": 4}, {"pixels": lambda x: x[:, :, :4]}, "4×28 pixels would lose their"),
    ("backdoor", {"clients": 3}, {"tested": ()}, "has no test images"),
    ("backdoor", {"clients": 3}, {"tested": range(5), "channels": 3}, "a group has classes"),
]


@pytest.mark.parametrize(("version", "options", "change", "message"), IMPOSSIBLE)
def test_what_cannot_be_made_is_refused(digits, version, options, change, message):
    with pytest.raises(PartitionError, match=message):
        shifts.make(altered(digits, **change), version, **options)
