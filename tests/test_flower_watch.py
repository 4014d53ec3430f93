"""A strategy of Flower that is watched does what it does alone, and tells what it sees."""

import random
import re
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from cflkit.divergence import cosine_divergence, temperature
from cflkit.flower.watch import watched

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, SHAPE = 12, (20, 30)
GRID = SimpleNamespace(get_node_ids=lambda: list(range(1, CLIENTS + 1)))
STRATEGIES = [flower.FedAvg, flower.FedProx, flower.FedAdam, flower.FedAvgM, flower.FedMedian]
STRATEGIES += [flower.FedTrimmedAvg, flower.FedYogi, flower.Krum]


def moved_by(node):
    """By what a client moves the model: by that of its group, and something of its own."""
    group = np.random.default_rng(node % 3).normal(size=SHAPE)
    return group + 0.3 * np.random.default_rng(10 + node).normal(size=SHAPE)


def answer(message, spoilt):
    """A client moves the model towards that of its group; a spoilt one fails, or sends NaN."""
    node = message.metadata.dst_node_id
    moved = message.content["arrays"]["w"].numpy() + moved_by(node)
    moved = moved.astype(np.float32) * spoilt.get(node, 1)
    content = RecordDict({"arrays": model(moved, float(node))})
    content["metrics"] = MetricRecord({"num-examples": 10 + node})
    reply = Message(Error(0, "gone") if spoilt.get(node) == 0 else content, reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = node
    return reply


def model(weights, variance):
    buffer = np.full(5, variance, dtype=np.float32)
    # BatchNorm counts its batches, and a mean makes a number with a fraction of them
    arrays = {"w": weights, "bn.running_var": buffer, "bn.num_batches_tracked": np.array(7)}
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def rounds(strategy, spoilt=lambda t: {}, count=3):
    """Run rounds of training; return the aggregates of all of them."""
    random.seed(0)  # by which Flower draws the order of the nodes
    arrays, found = model(np.zeros(SHAPE, dtype=np.float32), 1.0), []
    for t in range(1, count + 1):
        messages = strategy.configure_train(t, arrays, ConfigRecord({"lr": 0.1}), GRID)
        arrays, _ = strategy.aggregate_train(t, [answer(own, spoilt(t)) for own in messages])
        found.append({name: own.numpy() for name, own in arrays.items()})
    return found


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
def test_a_watched_strategy_gives_the_same_models_to_the_bit(tmp_path, kind):
    sights, file = [], tmp_path / "watch.npz"
    options = {"proximal_mu": 0.1} if kind is flower.FedProx else {}
    alone = rounds(kind(**options))
    seen = rounds(watched(kind(**options), sights.append, file=file, updates=True))
    for one, other in zip(alone, seen, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    groups = [node % 3 for node in range(1, CLIENTS + 1)]
    expected = np.stack([moved_by(node).ravel() for node in range(1, CLIENTS + 1)])
    assert [sight.round for sight in sights] == [1, 2, 3]
    for sight in sights:
        labels = sight.clusters["hdbscan"].tolist()
        assert len({*zip(labels, groups, strict=True)}) == len({*labels}) == 3
        assert sight.clusters.keys() == {"hdbscan", "meanshift", "affinity"}
        np.testing.assert_allclose(sight.updates, expected, atol=1e-5)
        assert sight.temperature == temperature(cosine_divergence(sight.updates))
    assert sights[-1].answer.clusters == sights[-1].clusters["hdbscan"].tolist()
    assert [sight.answer.rounds for sight in sights] == [1, 2, 3]
    with np.load(file) as arrays:
        assert arrays["clients"].tolist() == list(range(1, CLIENTS + 1))
        assert arrays["divergence"].shape == (3, CLIENTS, CLIENTS)
        np.testing.assert_array_equal(arrays["divergence"][1], sights[1].divergence)
        # The buffers of BatchNorm are no parameters
        assert arrays["updates"].shape == (3, CLIENTS, 600)
        np.testing.assert_array_equal(arrays["updates"][2], sights[2].updates)


def test_a_client_that_sends_nothing_has_empty_rows(tmp_path):
    seen, file = [], tmp_path / "watch.npz"
    rounds(watched(flower.FedAvg(), seen.append, file=file), lambda t: {5: 0} if t == 2 else {})
    with np.load(file) as arrays:
        assert set(arrays.files) == {"round", "clients", "divergence"}
        missing = np.isnan(arrays["divergence"])
    assert missing[1, 4].all() and missing[1, :, 4].all() and missing.sum() == 2 * CLIENTS - 1
    assert 5 not in seen[1].clients and len(seen[1].clusters["hdbscan"]) == CLIENTS - 1


FAULTS = {
    "no room": {},
    "is not finite|not finite|NaN": {3: np.nan},
    "1 clients have sent": dict.fromkeys(range(2, CLIENTS + 1), 0),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_what_cannot_be_watched_is_told_and_does_not_end_the_training(caplog, reason):
    def told(sight):
        raise RuntimeError("no room")

    with caplog.at_level("WARNING"):
        assert len(rounds(watched(flower.FedAvg(), told), lambda t: FAULTS[reason], 2)) == 2
    assert re.search(f"asked of round 2 is known: .*({reason})", caplog.text)
