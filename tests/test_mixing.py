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


@pytest.fixture
def federation(federate_turned):
    return federate_turned()


def matrices(federation, name, rounds=2, **options):
    """Run a method, and return its matrices and residuals."""
    watched = mixing.watched({"method": methods.make(name, **options)})
    simulation.run(watched, federation, rounds, progress=False)
    return watched["method"].matrices, watched["method"].residuals


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(6, 12))
def test_it_finds_the_weights_that_made_the_models(seed, clients, jobs):
    rng = np.random.default_rng(seed)
    trained = torch.from_numpy(rng.normal(size=(jobs, 40)))
    owners = np.resize(np.arange(clients), jobs)
    weights = rng.normal(size=(clients, jobs))
    weights += (1 - weights.sum(axis=1, keepdims=True)) / jobs
    found, residual = mixing.mixing_matrix(
        trained, torch.from_numpy(owners), torch.from_numpy(weights) @ trained
    )
    expected = np.stack([weights[:, owners == j].sum(axis=1) for j in range(clients)], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert residual < 1e-8


@given(st.integers(0, 1000))
def test_rows_sum_to_one_and_the_residual_tells_what_is_not_mixed(seed):
    rng = np.random.default_rng(seed)
    trained, elsewhere = (torch.from_numpy(rng.normal(size=(5, 40))) for _ in range(2))
    found, residual = mixing.mixing_matrix(trained, torch.arange(5), elsewhere)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    # The best weights by NumPy's least squares, for models and means around the same point
    centre = trained.mean(dim=0)
    a, b = (trained - centre).T.numpy(), (elsewhere - centre).T.numpy()
    best = a @ np.linalg.lstsq(a, b, rcond=None)[0] - b
    spread = np.linalg.norm(a, axis=0).mean()
    assert residual == pytest.approx(np.linalg.norm(best, axis=0).max() / spread)


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
