"""The page that trains computes what the package computes, and is one file that needs no network."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cflkit import clustering, datasets, methods, simulation
from cflkit.divergence import cosine_divergence
from cflkit.federation import Federation, Jobs, LocalTraining
from cflkit.partition import shifts

PLAY = Path(__file__).parent.parent / "notebooks" / "src" / "play"
sys.path.insert(0, str(PLAY))
import build  # noqa: E402

mini_racer = pytest.importorskip("py_mini_racer", reason="no JavaScript engine: pip install mini-racer")


@pytest.fixture(scope="module")
def javascript():
    """Return a function that calls a function of the page's modules, with V8."""
    context = mini_racer.MiniRacer()
    context.eval(build.script("engine.js", "scenes.js"))

    def call(expression, **values):
        names, given = ", ".join(values), json.dumps([*values.values()])
        return json.loads(context.eval(f"JSON.stringify((({names}) => {expression})(...{given}))"))

    return call


DIGITS = datasets.load("digits-8x8")
RUN = """{
  const vector = (values) => Float64Array.from(values);
  const samples = ([inputs, labels]) => ({ inputs: vector(inputs.flat()), labels });
  const own = clients.map(([train, test]) => ({ train: samples(train), test: samples(test) }));
  const server = setup(vector(initial), own.length), rows = [];
  for (const round of orders) {
    aggregate(server, localUpdates(server.models, server.labels, own, round, training));
    const accuracies = own.map((client, i) => accuracy(server.models[server.labels[i]], client.test));
    rows.push({ labels: server.labels, accuracies });
  }
  return { rows, temperatures: server.temperatures };
}"""


def packed(federation, client, split):
    """Return a client's inputs and labels as lists."""
    inputs, labels = federation.inputs(federation.data.index(split, client))
    return inputs.flatten(1).double().tolist(), labels.tolist()


def positions(federation, client, round):
    """Return a client's batches of a round, joined, as positions among its own images."""
    own = federation.partition.train[client]
    return [np.searchsorted(own, batch).tolist() for batch in federation.batches(client, round)]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["four", "two", "base"])
def test_a_run_has_the_packages_temperatures_clusters_and_accuracies(javascript, version):
    # The package computes in float32, and the page in float64
    rounds, everyone = 6, range(20)
    images, split = shifts.make(DIGITS, version, clients=20, samples=40, seed=0)
    training = LocalTraining(epochs=5, batch_size=16, lr=0.05, momentum=0.9)
    federation = Federation(images, split, "perceptron", training, seed=0, device="cpu")
    history = simulation.run({"": methods.make("ocfl")}, federation, rounds, progress=False)
    table = history.table()
    found = javascript(
        RUN,
        initial=federation.initial().tolist(),
        clients=[[packed(federation, c, part) for part in ("train", "test")] for c in everyone],
        orders=[[positions(federation, c, t) for c in everyone] for t in range(rounds)],
        training={"batch": 16, "rate": 0.05, "momentum": 0.9},
    )
    temperatures = table["temperature"].dropna()
    assert len(found["temperatures"]) == len(temperatures) < rounds, "it fires in both"
    np.testing.assert_allclose(found["temperatures"], temperatures, atol=1e-5, rtol=0)
    for row, clusters, accuracy in zip(
        found["rows"], table["clusters"], table["accuracy"], strict=True
    ):
        print(clusters, row["labels"], accuracy, np.mean(row["accuracies"]))
    print(np.abs(np.array(found["temperatures"])-temperatures).max())
