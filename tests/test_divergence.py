import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import cosine_distances

from cflkit import divergence
from cflkit.divergence import cosine_divergence, temperature
from cflkit.models.rows import as_doubles, device_of_doubles

values = st.floats(-1e3, 1e3, width=32).map(lambda v: 0.0 if abs(v) < 1e-3 else v)
shapes = st.tuples(st.integers(1, 8), st.integers(1, 40))
matrices = shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=values))


@pytest.mark.slow
@given(matrices)
def test_cosine_divergence_is_that_of_numpy_in_float64_and_a_distance(updates):
    gamma = cosine_divergence(torch.from_numpy(updates))
    expected = cosine_distances(updates.astype(np.float64))
    np.testing.assert_allclose(gamma, expected, rtol=1e-6, atol=1e-12)
    assert (gamma == gamma.T).all()
    assert (np.diag(gamma) == 0).all()
    assert gamma.min() >= 0
    assert gamma.max() <= 2


@given(matrices, st.sampled_from([1, 2, 3.5]), st.sampled_from([None, 2.0]))
def test_temperature_is_the_formula_of_definition_7(updates, p, scale):
    gamma = cosine_divergence(updates)
    n = len(gamma)
    bound = scale or (n * (n - 1) * 2**p) ** (1 / p)
    expected = np.linalg.norm(gamma.ravel(), p) / (bound or 1)
    assert temperature(gamma, p, scale) == pytest.approx(expected, rel=1e-6)
    assert scale or 0 <= temperature(gamma, p) <= 1 + 1e-12


def test_identical_updates_do_not_diverge():
    row = np.random.default_rng(0).normal(size=300)
    gamma = cosine_divergence(np.stack([row, row, 3 * row]))
    np.testing.assert_allclose(gamma, 0, atol=1e-15)
    lengths = np.linspace(0.1, 9, 30)[:, None]
    assert cosine_divergence(lengths * row).min() == 0, "rounding makes no distance negative"


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_distances_of_many_near_updates_keep_their_digits(metric):
    """From 26 updates on, torch computes distances in a faster way unless told not to."""
    updates = torch.full((40, 1000), 1000.0, dtype=torch.float64)
    updates[:, 0] += 1e-5 * torch.arange(40)
    expected = 1e-5 * np.arange(40)
    np.testing.assert_allclose(divergence.pairwise(updates, metric)[0], expected, rtol=1e-3)


@pytest.mark.parametrize("metric", divergence.METRICS)
def test_chunks_do_not_change_the_matrix(monkeypatch, metric):
    updates = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    whole = divergence.pairwise(updates, metric)
    monkeypatch.setattr(divergence, "CHUNK", 33)
    np.testing.assert_allclose(divergence.pairwise(updates, metric), whole, rtol=1e-12, atol=1e-14)


def test_tiny_and_huge_updates_do_not_overflow():
    updates = np.array([[1e-30, 0], [0, 1e30], [1e30, 1e30]])
    np.testing.assert_allclose(cosine_divergence(updates / 1e25)[1, 2], 1 - 0.5**0.5)
    assert np.isfinite(cosine_divergence(updates)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_named(bad):
    updates = np.zeros((3, 4))
    updates[1, 2] = bad
    with pytest.raises(ValueError, match=r"clients \[1\] are not finite"):
        cosine_divergence(updates)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="matrix"):
        cosine_divergence(np.zeros(3))
    with pytest.raises(ValueError, match="similarities"):
        temperature(np.eye(3))
    for wrong in ({"p": 0.5}, {"p": np.nan}, {"scale": 0}, {"scale": np.nan}, {"scale": np.inf}):
        with pytest.raises(ValueError, match="p ≥ 1"):
            temperature(np.zeros((2, 2)), **wrong)


def test_apples_gpus_leave_float64_to_the_cpu():
    devices = [torch.device(name) for name in ("mps", "cuda:1", "cpu")]
    assert [str(device_of_doubles(device)) for device in devices] == ["cpu", "cuda:1", "cpu"]
    assert as_doubles(torch.ones(2)).dtype == torch.float64
