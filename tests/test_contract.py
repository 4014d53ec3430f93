"""The contract that every method must keep.

Each method runs once, for four rounds, and most tests look at this run or compare another with it.
"""

import dataclasses
import json
import subprocess
import sys
from contextlib import suppress
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from torch.utils._pytree import tree_leaves

from cflkit import metrics, simulation
from cflkit.federation import Jobs, LocalTraining, Losses, Train
from cflkit.methods import METHODS, make
from cflkit.methods.fedavg import FedAvg
from cflkit.reproduce.records import PROJECT

ADAM = LocalTraining(epochs=2, batch_size=16, optimizer="adam", lr=1e-3)
TRUTH = [0, 0, 0, 1, 1, 1]
# Options with which each method clusters six clients within two rounds
TWO = ("cfl-gp", "clove", "fedce", "fedem", "fedrc", "fedsoft", "fesem", "flexcfl", "ifca")
OPTIONS = {
    **{name: {"k": 2} for name in TWO},
    "briggs": {"rounds": 1, "threshold": 0.95},
    "emd-cfl": {"epsilon": 0.06},
    "emd-cfl-oracle": {"truth": TRUTH},
    "emd-cfl-variant": {"epsilon": 0.06, "draws": "per distance", "clusters": "components"},
    "fedclust": {"threshold": 0.3},
    "feddrift": {"start": "each", "period": 1, "threshold": 0.2},
    "fedprox": {"mu": 0.1},
    "flux": {"start": 1},
    "ocfl": {"clusterer": "kmeans", "options": {"n_clusters": 2}, "before": -np.inf},
    "ocfl-open": {"clusterer": "kmeans", "options": {"n_clusters": 2}, "before": -np.inf},
    "ocfl-replicated": {"clusterer": "kmeans", "options": {"n_clusters": 2}},
    "oracle": {"truth": TRUTH},
    "pacfl": {"angle": 20.0},
    "sattler": {"eps1": 1e3, "eps2": 1e-6, "min_rounds": 1},
    "signatures": {"warm_up": 1, "k": 2},
    "stocfl": {"threshold": 0.5, "lam": 0.1},
}
# Options with which each method trains a single client as it would be trained in one place
ALONE = {
    **{name: {"k": 1} for name in ("clove", "fedce", "fedem", "fedrc", "ifca")},
    **{name: {"mu": 0.0} for name in ("ditto", "fedsac", "fesem", "pfedgraph")},
    "fedavg-ft": {"epochs": 0},
    "fedopt": {"optimizer": "sgd"},
    "fedprox": {"mu": 0.5},
    "fedsoft": {"k": 1, "mu": 0.0},
    "stocfl": {"lam": 0.0},
}
# Methods that assign no client to a cluster
SOFT = ("ditto", "fedavg-ft", "fedce", "fedem", "fedrc", "fedrep", "fedsac", "fedsoft", "pfedgraph")
# The baselines of EMD-CFL's comparison beside those with one model
BASELINES = ("cfl-gp", "fedclust", "fesem", "flexcfl", "ifca", "pacfl", *SOFT)
# They cluster samples and train autoencoders, which takes seconds per test
OF_SAMPLES = ("fedcref", "fedcref-variant")
each = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in OF_SAMPLES else n for n in METHODS]
)
averaging = pytest.mark.parametrize("name", [name for name in METHODS if name not in OF_SAMPLES])
hard = pytest.mark.parametrize("name", sorted({*METHODS} - {*SOFT, *OF_SAMPLES}))


@pytest.fixture(scope="module")
def federate(federate_turned):
    """Build federations for a method: with classifiers, or with autoencoders for FedCRef."""

    def build(name="", **options):
        if name in OF_SAMPLES:
            options = {"model": "autoencoder"} | options
        return federate_turned(**options)

    return build


def build(name, federation):
    """Build a new method with its options."""
    options = dict(OPTIONS.get(name, {}))
    if name in OF_SAMPLES:
        start = [(np.arange(len(held)) % 3).tolist() for held in federation.partition.train]
        options = {"start": start, "local": ADAM, "federated": ADAM, "rounds": 2, "theta": 0.5}
    return make(name, **options)


def run(methods, federation, rounds=2, **options):
    return simulation.run(methods, federation, rounds, progress=False, **options)


def rows_of(history, name):
    return [row for row in history.rows if row["method"] == name]


def text_of(history, name):
    """Return a method's rows as text with all digits, in which NaN equals NaN."""
    return json.dumps(rows_of(history, name))


@pytest.fixture(scope="module")
def ran(federate):
    """Return a method after its run of four rounds, with the history, and what it was after two.

    A run is made when the first test asks for it.
    """

    @cache
    def of(name):
        federation = federate(name)
        method = build(name, federation)
        first = run({name: method}, federation)
        told = text_of(first, name)
        models = None if name in OF_SAMPLES else mean_models(method)
        history = run({name: method}, federation, 4, after=first)
        assert text_of(first, name) == told, "the earlier results stay as they were"
        assert len(history.revisions) == 1, "nothing was interrupted"
        return SimpleNamespace(method=method, history=history, models=models, text=told)

    return of


# How far rounding may move what is computed in another order, or in another layout of the memory.
# A sum of n products in float32 is off by n · 2⁻²⁴ of its terms at most. The methods here do 16
# steps with sums of 64 pixels, and an update is about a tenth of a model
ROUNDING = 16 * 64 * 2**-24 * 10


def differences(one, other):
    """Return the values of two histories, given as text, that differ by more than rounding does.

    Counts and clusters must be equal. A rounded prediction can change the class of a sample.
    """
    found = []
    for first, second in zip(json.loads(one), json.loads(other), strict=True):
        assert first.keys() == second.keys()
        compared = [(name, value, second[name]) for name, value in first.items()]
        found += [values for values in compared if not close(*values)]
    return found


def close(name, value, other):
    """Return whether two values of a measure differ by no more than rounding."""
    if name in metrics.MEASURES:
        return other == pytest.approx(value, abs=0.02, nan_ok=True)
    if isinstance(value, float):
        return other == pytest.approx(value, rel=ROUNDING, nan_ok=True)
    if name in ("scores", "merge_heights", "distances"):  # joined numbers of few digits
        numbers = [[float(part) for part in text.split("|")] for text in (value, other)]
        return numbers[1] == pytest.approx(numbers[0], rel=ROUNDING, abs=2e-4, nan_ok=True)
    return value == other


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [["fedavg", "ocfl", "emd-cfl", "ifca"], pytest.param([*METHODS], marks=pytest.mark.nightly)],
)
def test_every_method_computes_the_same_on_a_device_that_is_not_the_cpu(names):
    """The device of `standin` takes the place of a GPU, on which mixed tensors are an error.

    It computes on the CPU, and its tensors have another layout, so that some processors round
    otherwise: equal bits are no promise here.
    """
    command = [sys.executable, str(PROJECT / "tests" / "standin.py"), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    expected = set(product(names, ("stacked", "threads")))
    assert {(own["method"], own["engine"]) for own in answers} == expected
    assert [own for own in answers if own["differences"]] == []


@pytest.mark.slow
@each
def test_lockstep_equals_alone_and_a_neighbour_that_spoils_its_answers_changes_nothing(
    name, federate, ran
):
    @dataclass
    class Spoiling(type(build(name, federate(name)))):
        """The same method, which also overwrites every answer at the end of a round."""

        def round(self, t):
            talk, answers = super().round(t), [None]
            with suppress(StopIteration):
                while True:
                    answers.append((yield talk.send(answers[-1])))
            for tensor in tensors_in(answers):
                if not shares_memory(tensor, self):
                    tensor.fill_(123.0)

    federation = federate(name)
    fresh = build(name, federation)
    values = {f.name: getattr(fresh, f.name) for f in dataclasses.fields(fresh)}
    together = {"spoiling": Spoiling(**values), name: fresh}
    if name not in OF_SAMPLES:
        together["fedavg too"] = make("fedavg")
    assert text_of(run(together, federation), name) == ran(name).text


def tensors_in(values):
    """Return the tensors in nested lists and dictionaries."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def shares_memory(tensor, method):
    """Return whether a method has kept a tensor without copying it."""
    storages = {kept.untyped_storage().data_ptr() for kept in tensors_in(vars(method))}
    return tensor.untyped_storage().data_ptr() in storages


def test_a_method_that_asks_for_a_thing_twice_gets_two_answers(federate):
    """Two of its models may be the same, for example as long as no client has trained them."""

    @dataclass
    class Twice(FedAvg):
        def round(self, t):
            pairs = torch.arange(2).repeat(6), torch.arange(6).repeat_interleave(2)
            jobs = Jobs(self.models.repeat(2, 1), *pairs)
            losses = yield Losses(jobs)
            trained = yield Train(jobs)
            assert len(losses) == len(trained) == 12
            assert all(torch.equal(losses[j], losses[j + 1]) for j in range(0, 12, 2))
            self.models = trained.mean(dim=0)[None]

    for others in ({}, {"fedavg": make("fedavg")}):
        run({"twice": Twice(), **others}, federate(), 2)


@pytest.mark.slow
@each
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(name, federate, ran, tmp_path):
    """With a round, a break, and three more.

    The run to compare with has two rounds, and goes on for two more without a checkpoint. So both
    ways of going on lose nothing, as the rounds of their breaks differ.
    """
    path, whole = tmp_path / "state.pt", ran(name).history
    run({name: build(name, federate(name))}, federate(name), 1, checkpoint=path)
    again = run({name: build(name, federate(name))}, federate(name), 4, checkpoint=path)
    assert text_of(again, name) == text_of(whole, name)
    assert (again.requested, again.trained) == (whole.requested, whole.trained)


def mean_models(method):
    """Return the mean ``[m, P + Q]`` of the models with which each client predicts."""
    models, mixture = method.client_models()
    return mixture @ models


@pytest.mark.slow
@pytest.mark.parametrize("name", SOFT)
def test_no_clusters_are_invented_for_a_method_without_them(name, federate, ran):
    method, history = ran(name).method, ran(name).history
    measures = {"ari", "ami", "n_clusters", "clusters", "settled"}
    assert not measures & set(history.rows[-1])
    assert not measures & set(history.summary()[name])
    assert mean_models(method).shape == (6, federate(name).parameters)
    torch.testing.assert_close(method.client_models()[1].sum(dim=1), torch.ones(6))
    short = run({name: build(name, federate(name))}, federate(name), 4, until_settled=True)
    assert len(short.rows) == 1, "there are no clusters to wait for"
    assert short.trained == 0


@pytest.mark.slow
@hard
def test_settled_clusters_stay_and_a_run_until_then_has_the_same_rows(name, federate, ran):
    whole = ran(name).history
    rows = rows_of(whole, name)
    clusters, settled = ([row[column] for row in rows] for column in ("clusters", "settled"))
    assert settled == sorted(settled), "what is settled stays so"
    first = settled.index(True) if True in settled else len(rows) - 1
    assert len(set(clusters[first:])) == 1
    short = run({name: build(name, federate(name))}, federate(name), 4, until_settled=True)
    assert short.trained <= whole.trained
    measures = ["round", "n_clusters", "ari", "ami", "clusters", "settled"]
    if short.trained:
        scalars = ("temperature", "merge_heights", "distances", "scores", "last_layer_within")
        measures += [scalar for scalar in scalars if scalar in rows[0]]
    kept = [[row.get(measure) for measure in measures] for row in rows_of(short, name)]
    assert kept == [[row.get(measure) for measure in measures] for row in rows[: first + 1]]
    costs = [(row["bytes_up"], row["trainings"]) for row in rows]
    *before, last = [(row["bytes_up"], row["trainings"]) for row in rows_of(short, name)]
    assert before == costs[:first]
    # Clusters that are known before a round's training make this training superfluous
    assert last == costs[first] or (last[0] <= costs[first][0] and last[1] == 0)
    assert "pf1" not in short.table()


@pytest.mark.slow
@averaging
def test_clients_in_another_order_give_results_in_that_order(name, federate, turned, monkeypatch):
    """Clusters and models move with the clients: nothing depends on a client's number."""
    _, split = turned
    order = [4, 0, 5, 2, 1, 3]
    usual, other = federate(name), federate(name, split=split.take(order))
    # Batch orders depend on a client's number; here each client keeps its own batches
    own = usual.data.batches
    monkeypatch.setattr(other.data, "batches", lambda client, *rest: own(order[client], *rest))
    one, two = build(name, usual), build(name, other)
    if "oracle" in name:
        two = make(name, truth=[TRUTH[c] for c in order])
    if name.startswith("emd-cfl"):  # projections also depend on numbers: keep all dimensions
        one, two = (dataclasses.replace(method, projection=1.0) for method in (one, two))
    histories = run({name: one}, usual), run({name: two}, other)
    if name not in SOFT:
        same = one.labels[order][:, None] == one.labels[order][None]
        assert torch.equal(same, two.labels[:, None] == two.labels[None])
    torch.testing.assert_close(mean_models(two), mean_models(one)[order], rtol=1e-3, atol=1e-5)
    for first, second in zip(*(history.rows for history in histories), strict=True):
        assert first["accuracy"] == pytest.approx(second["accuracy"], abs=0.02)


@averaging
def test_one_client_alone_trains_as_in_one_place(name, turned, federate):
    """A single client has no other client for averaging or clustering, whatever the method."""
    _, split = turned
    federation = federate(name, split=split.take([0]))
    method = make(name, **({"truth": [0]} if "oracle" in name else ALONE.get(name, {})))
    run({name: method}, federation, 2)
    training = federation.training
    if name == "fedprox":
        training = dataclasses.replace(training, penalty="proximal", strength=method.mu)
    theta, client = federation.initial()[None], torch.zeros(1).long()
    for t in range(2):
        theta = federation.train(Jobs(theta, client, client, training=training), t)
    torch.testing.assert_close(mean_models(method), theta, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@averaging
def test_both_engines_give_the_same_models(name, federate, ran):
    federation = federate(name, engine="stacked")
    method, threads = build(name, federation), ran(name).models
    run({name: method}, federation)
    torch.testing.assert_close(threads, mean_models(method), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].partial])
def test_methods_that_need_all_clients_refuse_a_part(name, federate):
    federation = federate(name, clients_per_round=3)
    with pytest.raises(ValueError, match=r"\w+ runs only with all clients here"):
        run({name: build(name, federation)}, federation)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BASELINES, "clove", "scaffold"])
def test_one_method_that_diverges_leaves_the_others_running(name, federate):
    """Its training is made to overflow; FedAvg's is not."""
    federation = federate()
    broken = build(name, federation)
    setup = type(broken).setup

    def with_infinity(server, initial):
        setup(broken, server, initial + 1e38)
        broken.models = broken.models + 1e38

    broken.setup = with_infinity
    table = run({"broken": broken, "FedAvg": make("fedavg")}, federation, 3).table()
    assert table[table["method"] == "broken"]["diverged"].iloc[-1]
    assert len(table[table["method"] == "FedAvg"]) == 3


@each
def test_options_are_strict(name):
    given = OPTIONS.get(name, {}) | ({"start": [[0]]} if name in OF_SAMPLES else {})
    with pytest.raises(ValueError, match=r"surprise: Unexpected keyword argument"):
        make(name, **given, surprise=1)
