import dataclasses
import math
from types import UnionType
from typing import Union, get_args, get_origin

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from rounds import begin

from cflkit import _bounds, methods, simulation
from cflkit.methods.ocfl import rises

temperatures = st.lists(st.floats(0.01, 1), min_size=1, max_size=12)


@given(temperatures, st.integers(1, 5))
def test_the_trigger_is_a_rise_of_the_moving_average(values, window):
    """Compare the trigger with the averages themselves, with T = +∞ before the first round."""
    padded = [math.inf] * (window + 1) + values
    now, before = padded[-window:], padded[-window - 1 : -1]
    if math.inf in before:
        assert not rises(values, window)
    elif not math.isclose(math.fsum(now), math.fsum(before), rel_tol=1e-9):
        assert rises(values, window) == (math.fsum(now) > math.fsum(before))


@pytest.mark.parametrize(
    ("options", "waits"),
    [({}, 6), ({"strict": False}, 1), ({"strict": False, "window": 3}, 3), ({"before": 0.0}, 0)],
)
def test_how_long_ocfl_waits_if_the_temperature_stays_the_same(options, waits):
    method = methods.make("ocfl", **options)
    method.temperatures, method.scalars = [], {}
    fires = [method.heats_up(1 - np.eye(4)) for _ in range(6)]
    assert [*fires, True].index(True) == waits


@pytest.mark.parametrize("server", ["sgd", "momentum", "adagrad", "adam", "yogi"])
def test_server_optimisers_follow_reddi_et_al(server):
    """Compare with Algorithm 2 in plain Python, value by value."""
    lr, beta1, beta2, tau = 0.1, 0.9, 0.99, 1e-3
    method = methods.make("fedopt", optimizer=server, lr=lr)
    method.momentum, method.second_moment = torch.zeros(1), torch.full((1,), tau**2)
    m, v = 0.0, tau**2
    for delta in (0.5, -0.2, 0.0, 1e-4):
        plain = {"sgd": delta, "momentum": beta1 * m + delta}
        m = plain.get(server, beta1 * m + (1 - beta1) * delta)
        v = {
            "adagrad": v + delta**2,
            "adam": beta2 * v + (1 - beta2) * delta**2,
            "yogi": v - (1 - beta2) * delta**2 * np.sign(v - delta**2),
        }.get(server, v)
        expected = lr * m if server in plain else lr * m / (v**0.5 + tau)
        assert method.step(torch.tensor([delta])).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("server", "rate"), [("sgd", 1), ("momentum", 1), ("adagrad", 1), ("adam", 0.1), ("yogi", 0.1)]
)
def test_the_first_steps_of_servers_are_no_longer_than_models(federate, server, rate):
    federation = federate("linear")
    usual, told = (begin("fedopt", federation, optimizer=server, **o) for o in ({}, {"lr": rate}))
    update = torch.linspace(-0.1, 0.1, federation.parameters)
    step = usual.step(update)
    assert torch.equal(step, told.step(update)) and step.abs().max() <= 1


def test_fedprox_shares_no_training_with_fedavg_unless_mu_is_zero(federate):
    for mu, distinct in ((0.5, 12), (0.0, 6)):
        line_up = {"FedAvg": methods.make("fedavg"), "FedProx": methods.make("fedprox", mu=mu)}
        run = simulation.run(line_up, federate("linear"), 1, progress=False)
        assert run.trained == distinct
        assert torch.equal(line_up["FedAvg"].models, line_up["FedProx"].models) == (mu == 0)


# What options of each type refuse, and with which words
REFUSED = {
    "Count": [(0, "greater than or equal to 1"), (2.5, "a valid integer")],
    "Natural": [(-1, "greater than or equal to 0"), (2.5, "a valid integer")],
    "Sample": [(1, "greater than or equal to 2")],
    "TwoOrMore": [(1, "greater than or equal to 2")],
    "NonNegative": [(-0.1, "greater than or equal to 0"), (math.inf, "a finite number")],
    "Positive": [(0.0, "greater than 0"), (-0.4, "greater than 0"), (math.nan, "a finite number")],
    "Share": [(-0.1, "greater than or equal to 0"), (1.1, "less than or equal to 1")],
    "PositiveShare": [(0.0, "greater than 0"), (1.5, "less than or equal to 1")],
    "Percent": [(0.0, "greater than 0"), (101.0, "less than or equal to 100")],
    "Angle": [(0.0, "greater than 0"), (181.0, "less than or equal to 180")],
    "CosineThreshold": [(0.0, "greater than 0"), (2.1, "less than or equal to 2")],
    "Momentum": [(-0.1, "greater than or equal to 0"), (1.0, "less than 1")],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_values_out_of_range_are_refused(kind):
    bounds = TypeAdapter(getattr(_bounds, kind), config=_bounds.STRICT)
    for value, said in REFUSED[kind]:
        with pytest.raises(ValueError, match=f"Input should be {said}"):
            bounds.validate_python(value)


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_option_has_bounds(name):
    """No option is any number, and none is any text but a clusterer's name."""
    for option in dataclasses.fields(methods.METHODS[name]):
        is_union = get_origin(option.type) in (Union, UnionType)
        kinds = {*get_args(option.type)} if is_union else {option.type}
        assert not kinds & {int, float} and (str not in kinds or option.name == "clusterer")


BAD_REQUESTS = [
    ("fedsgd", {}, "unknown method 'fedsgd'"),
    ("ocfl", {"clusterer": "dbscan"}, "unknown clusterer"),
    ("oracle", {}, r"truth: Field required$"),
    ("briggs", {"threshold": 2.5}, "cosine distances are at most 2"),
    ("briggs", {"metric": "euclidean", "wrong_sign": True}, "cosine similarity"),
]


@pytest.mark.parametrize("name, options, said", BAD_REQUESTS)
def test_bad_requests_are_refused(name, options, said):
    with pytest.raises(ValueError, match=said):
        methods.make(name, **options)


@pytest.mark.parametrize("name, option", [("oracle", "truth"), ("fedcref", "start")])
@pytest.mark.parametrize(
    "labels", [3, None, "01", [0.2, 1.9], [0, -1], np.array([0.0, 1.0]), torch.tensor(1), [[0, 1]]]
)
def test_labels_that_are_no_integers_from_0_are_a_value_error(name, option, labels):
    given = labels if name == "oracle" or labels is None else [labels]
    with pytest.raises(ValueError, match=rf"method '{name}': {option}\S*: Input should be"):
        methods.make(name, **{option: given})


@pytest.mark.parametrize("labels", [[1, 0], (1, 0), np.array([1, 0]), torch.tensor([1, 0])])
def test_labels_may_be_any_sequence_of_integers(labels):
    assert methods.make("oracle", truth=labels).truth == (1, 0)
    assert methods.make("fedcref", start=[labels, []]).start == ((1, 0), ())


@pytest.mark.parametrize("name", ["oracle", "emd-cfl-oracle"])
def test_the_truth_must_fit_the_clients(federate, name):
    with pytest.raises(ValueError, match="needs the true cluster of 6 clients, not 2"):
        begin(name, federate(), truth=[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["oracle", "fedavg"])
@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize("participants", [3, 6])
def test_participants_are_averaged_within_their_clusters(federate, name, weighting, participants):
    """A cluster of which nobody takes part keeps its model."""
    federation = federate(clients_per_round=participants)
    options = {"truth": federation.clusters} if name == "oracle" else {}
    method = begin(name, federation, weighting=weighting, **options)
    jobs, received = method.broadcast(0), method.models[0]
    trained = federation.train(jobs, 0)
    method.aggregate(0, jobs, trained.clone())  # a method may change its answers in place
    present = federation.participants(0)
    sizes = federation.sizes[present] if weighting == "samples" else torch.ones(len(present))
    for cluster in range(len(method.models)):
        own, expected = method.labels[present] == cluster, received
        if own.any():
            expected = np.average(trained[own], axis=0, weights=sizes[own])
        np.testing.assert_allclose(method.models[cluster], expected, rtol=1e-5, atol=1e-6)
