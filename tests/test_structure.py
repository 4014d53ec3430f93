"""The test of groups: what it says of groups, of clouds, and of what is no matrix of distances."""

import csv

import numpy as np
import pytest
import structure as program
from sklearn.metrics import silhouette_samples

from cflkit.divergence import cosine_divergence
from cflkit.groups import structure


def directions(groups, spread, clients=15, dimensions=400, seed=0):
    """Make updates that all clients share in part, and the more so within a group."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((groups, dimensions))[np.arange(clients) % groups]
    common = 2 * rng.standard_normal(dimensions)
    return common + centres + spread * rng.standard_normal((clients, dimensions))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_clear_groups_are_found(groups):
    found = structure.structure_test(cosine_divergence(directions(groups, spread=0.2)))
    assert found.silhouette > 0.7 and found.p_value <= 0.02
    assert found.has_groups


@pytest.mark.slow
def test_one_cloud_is_as_clear_as_other_clouds():
    cloud = [cosine_divergence(directions(1, spread=1.0, seed=seed)) for seed in range(12)]
    found = [structure.structure_test(gamma, seed=seed) for seed, gamma in enumerate(cloud)]
    assert sum(one.p_value <= 0.05 for one in found) <= 3  # 0.6 are expected at most
    assert not any(one.has_groups for one in found)


@pytest.mark.slow
def test_a_wide_cloud_of_few_dimensions_has_no_groups():
    rng = np.random.default_rng(3)
    wide = rng.standard_normal((16, 2)) @ rng.standard_normal((2, 300))
    updates = 3 * rng.standard_normal(300) + wide + 0.3 * rng.standard_normal((16, 300))
    assert not structure.structure_test(cosine_divergence(updates)).has_groups


def test_the_silhouette_is_that_of_the_best_of_all_cuts():
    gamma = cosine_divergence(directions(4, spread=0.8, clients=9))
    distances = np.sqrt(2 * gamma)
    best, clusters = -1.0, [{client} for client in range(9)]
    while len(clusters) > 2:  # average linkage, as it is defined
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a)]
        apart = [distances[np.ix_([*clusters[a]], [*clusters[b]])].mean() for a, b in pairs]
        a, b = pairs[int(np.argmin(apart))]
        clusters[b] |= clusters.pop(a)
        if len(clusters) <= 4:
            labels = [next(k for k, own in enumerate(clusters) if c in own) for c in range(9)]
            best = max(best, silhouette_samples(distances, labels, metric="precomputed").mean())
    assert structure.best_silhouette(2 * gamma) == pytest.approx(best)


def test_clients_that_are_all_alike_have_no_groups():
    for gamma in (np.zeros((6, 6)), 1 - np.eye(6)):
        assert not structure.structure_test(gamma).has_groups


def test_both_halves_of_the_rule_count():
    assert structure.Structure(0.6, 0.05).has_groups
    assert not structure.Structure(0.7, 0.06).has_groups
    assert not structure.Structure(0.5, 0.01).has_groups


@pytest.mark.slow
def test_one_odd_client_is_enough():
    updates = directions(1, spread=1.0)
    updates[3] *= -1
    assert structure.structure_test(cosine_divergence(updates)).has_groups


def test_rounding_below_zero_is_zero():
    gamma = cosine_divergence(directions(3, spread=0.2))
    gamma[0, 3] = gamma[3, 0] = -2e-16
    assert structure.structure_test(gamma).has_groups


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(ValueError, match="clouds must be at least 1, not 0"):
        structure.structure_test(1 - np.eye(5), clouds=0)
    with pytest.raises(ValueError, match="groups of 3 clients cannot be tested: four are needed"):
        structure.structure_test(1 - np.eye(3))
    with pytest.raises(ValueError, match="square matrix"):
        structure.structure_test(np.zeros((4, 5)))


@pytest.mark.slow
def test_the_table_has_what_its_program_computes():
    clients, _, made = next(program.federations("digits-8x8", 100))
    home = program.Federation(*made, "compact-cnn", program.SETTINGS["digits-8x8"][-1], seed=100)
    rows = list(csv.DictReader(program.TABLE.open(encoding="utf-8")))
    kept = [
        r for r in rows if (r["data"], r["clients"], r["seed"]) == ("digits-8x8", clients, "100")
    ]
    for row, answer in zip(kept, program.tested(home), strict=True):
        assert row["round"] == answer["round"]
        for name, tolerance in (("silhouette", 0.02), ("p", 0.03)):
            assert float(row[name]) == pytest.approx(float(answer[name]), abs=tolerance)
