"""A strategy of Flower that is watched does what it does alone, and tells what it sees."""

import random

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs Flower: pip install "cflkit[flower]"')

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from cflkit.divergence import cosine_divergence, temperature
from cflkit.flower.watch import watched

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, SHAPE = 12, (20, 30)
STRATEGIES = [flower.FedAvg, flower.FedProx, flower.FedAdam, flower.FedAvgM, flower.FedMedian]
STRATEGIES += [flower.FedTrimmedAvg, flower.FedYogi, flower.Krum]


class Nodes:
    """Clients in three groups, whose models move towards their group's; some may be spoilt."""

    def __init__(self, spoilt=()):
        self.spoilt = dict(spoilt)

    def get_node_ids(self):
        return list(range(1, CLIENTS + 1))

    def send_and_receive(self, messages, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        node = message.metadata.dst_node_id
        if "arrays" not in message.content or message.metadata.message_type == "evaluate":
            numbers = MetricRecord({"num-examples": 1, "loss": 1.0})
            return self.reply(message, node, RecordDict({"metrics": numbers}))
        start = message.content["arrays"]["w"].numpy()
        group = np.random.default_rng(node % 3).normal(size=SHAPE)
        moved = start + group + 0.3 * np.random.default_rng(10 + node).normal(size=SHAPE)
        moved = moved.astype(np.float32) * self.spoilt.get(node, 1.0)
        arrays = {"w": torch.from_numpy(moved), "bn.running_var": torch.full((5,), float(node))}
        numbers = MetricRecord({"num-examples": 10 + node})
        content = RecordDict({"arrays": model(arrays), "metrics": numbers})
        return self.reply(
            message, node, Error(0, "gone") if self.spoilt.get(node) == 0 else content
        )

    def reply(self, message, node, content):
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


def model(arrays):
    return ArrayRecord({name: own for name, own in arrays.items()})  # noqa: C416


def start(strategy, nodes, rounds=3):
    """Run a strategy; return the aggregates of all rounds."""
    random.seed(0)  # by which Flower draws the order of the nodes
    seen, aggregate = [], strategy.aggregate_train

    def kept(*given):
        seen.append(aggregate(*given))
        return seen[-1]

    strategy.aggregate_train = kept
    arrays = {"w": torch.zeros(SHAPE), "bn.running_var": torch.ones(5)}
    strategy.start(nodes, model(arrays), rounds, train_config=ConfigRecord({"lr": 0.1}))
    return [{name: own.numpy() for name, own in arrays.items()} for arrays, _ in seen]


def options(kind):
    return {"proximal_mu": 0.1} if kind is flower.FedProx else {}


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
def test_a_watched_strategy_gives_the_same_models_to_the_bit(tmp_path, kind):
    sights, file = [], tmp_path / "watch.npz"
    alone = start(kind(**options(kind)), Nodes())
    seen = start(watched(kind(**options(kind)), sights.append, file=file, updates=True), Nodes())
    for one, other in zip(alone, seen, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    groups = [node % 3 for node in range(1, CLIENTS + 1)]
    assert [sight.round for sight in sights] == [1, 2, 3]
    for sight in sights:
        labels = sight.clusters["hdbscan"]
        assert len({*zip(labels.tolist(), groups, strict=True)}) == len({*labels.tolist()}) == 3
        assert sight.clusters.keys() == {"hdbscan", "meanshift", "affinity"}
        assert sight.temperature == temperature(cosine_divergence(sight.updates))
    with np.load(file) as arrays:
        assert arrays["clients"].tolist() == list(range(1, CLIENTS + 1))
        assert arrays["divergence"].shape == (3, CLIENTS, CLIENTS)
        np.testing.assert_array_equal(arrays["divergence"][1], sights[1].divergence)
        # The buffers of BatchNorm are no parameters
        assert arrays["updates"].shape == (3, CLIENTS, 600) and arrays["round"].tolist() == [
            1,
            2,
            3,
        ]
        np.testing.assert_array_equal(arrays["updates"][2], sights[2].updates)


def test_a_client_that_sends_nothing_has_empty_rows(tmp_path):
    class Absent(Nodes):
        def answer(self, message):
            self.spoilt = {5: 0} if len(seen) == 1 else {}
            return super().answer(message)

    seen, file = [], tmp_path / "watch.npz"
    start(watched(flower.FedAvg(), seen.append, file=file), Absent())
    with np.load(file) as arrays:
        assert set(arrays.files) == {"round", "clients", "divergence"}
        missing = np.isnan(arrays["divergence"])
    assert missing[1, 4].all() and missing[1, :, 4].all() and missing.sum() == 2 * CLIENTS - 1
    assert 5 not in seen[1].clients and len(seen[1].clusters["hdbscan"]) == CLIENTS - 1


@pytest.mark.parametrize("fault", ["nan", "callback", "one client"])
def test_what_cannot_be_watched_is_told_and_does_not_end_the_training(caplog, fault):
    def told(sight):
        raise RuntimeError("no room")

    spoilt = {"nan": {3: np.nan}, "one client": dict.fromkeys(range(2, CLIENTS + 1), 0)}
    models = start(watched(flower.FedAvg(), told), Nodes(spoilt.get(fault, {})), 2)
    assert len(models) == 2
    reason = {"nan": "client", "callback": "no room", "one client": "1 clients have sent"}[fault]
    assert any("round 2 is not watched" in own and reason in own for own in caplog.messages)
