"""The mixing matrix of a round, measured from what methods do."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cflkit import methods, simulation
from cflkit.simulation import mixing


def matrices(federation, name, rounds=2, **options):
    """Run a method, and return its matrices and residuals."""
    watched = mixing.watched({"method": methods.make(name, **options)})
    simulation.run(watched, federation, rounds, progress=False)
    return watched["method"].matrices, watched["method"].residuals


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(6, 12), st.booleans())
def test_weights_are_numpys_and_the_residual_tells_what_is_not_mixed(seed, clients, jobs, mixed):
    rng, owners = np.random.default_rng(seed), np.resize(np.arange(clients), jobs)
    trained, predicting = rng.normal(size=(jobs, 40)), rng.normal(size=(clients, 40))
    if mixed:
        weights = rng.normal(size=(clients, jobs))
        predicting = (weights + (1 - weights.sum(axis=1, keepdims=True)) / jobs) @ trained
    found, residual = mixing.mixing_matrix(*map(torch.from_numpy, (trained, owners, predicting)))
    # The best weights by NumPy's least squares, for models and means around the same point
    a, b = ((models - trained.mean(axis=0)).T for models in (trained, predicting))
    best, *_ = np.linalg.lstsq(a, b, rcond=None)
    shares = best + 1 / jobs  # which sum to one
    expected = np.stack([shares[owners == j].sum(axis=0) for j in range(clients)], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    distance = np.linalg.norm(a @ best - b, axis=0).max() / np.linalg.norm(a, axis=0).mean()
    assert residual == pytest.approx(distance, abs=1e-8)
    assert (residual < 1e-8) == mixed


@pytest.mark.parametrize(
    ("name", "options", "mixes"),
    [
        *[("fedavg", {}, True), ("fedprox", {}, True)],
        ("ifca", {"k": 1, "weighting": "samples"}, True),
        *[("local", {}, False), ("ditto", {}, False)],
    ],
)
def test_one_model_mixes_by_the_numbers_of_samples_and_personal_models_do_not(
    federation, name, options, mixes
):
    sizes = federation.server.sizes.double().numpy()
    expected = np.tile(sizes / sizes.sum(), (6, 1)) if mixes else np.eye(6)
    for matrix, residual in zip(*matrices(federation, name, **options), strict=True):
        np.testing.assert_allclose(matrix, expected, atol=1e-4)
        assert residual < 1e-4


def test_a_mixture_of_components_counts_all_models_of_a_client(federation):
    found, residuals = matrices(federation, "fedem", k=2)
    assert max(residuals) < 1e-4
    for matrix in found:
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
        assert matrix.min() > -1e-3


@pytest.mark.slow
def test_a_watched_method_does_what_the_bare_one_does(federation):
    def line_up():
        names = {"fedavg": {}, "ifca": {"k": 2}, "emd-cfl": {"epsilon": 0.05}, "scaffold": {}}
        return {name: methods.make(name, **options) for name, options in names.items()}

    bare = simulation.run(line_up(), federation, 2, progress=False).table()
    watched = simulation.run(mixing.watched(line_up()), federation, 2, progress=False).table()
    pd.testing.assert_frame_equal(bare, watched)


def test_a_watched_method_is_described_like_the_bare_one():
    method = methods.make("ifca", k=3)
    watched = mixing.Watched(method)
    assert repr(watched) == repr(method)
    assert watched.k == 3
    assert copy.deepcopy(watched).k == 3


def test_a_round_without_training_has_no_matrix(federation):
    options = {"threshold": 1.0, "stops": True}
    [matrix], _ = matrices(federation, "fedclust", rounds=3, **options)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-6)
