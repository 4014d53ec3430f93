"""The distances between trained parameters that Table 9 of the EMD-CFL paper has."""

import numpy as np
import pytest
import torch
from rounds import first_jobs
from scipy.spatial.distance import pdist

from cflkit import simulation
from cflkit.federation import LocalTraining
from cflkit.reproduce.distances import MeasuredEMDCFL

NETWORK = {"model": "emd-cnn-small", "training": LocalTraining(5, 16, lr=0.01, momentum=0.9)}


@pytest.mark.slow
def test_distances_are_scipys(federate_turned):
    federation = federate_turned(**NETWORK)
    trained = federation.train(first_jobs(federation), 0)
    alone = {"EMD-CFL": MeasuredEMDCFL(epsilon=0.08)}
    first, second = simulation.run(alone, federation, 2, progress=False).rows
    same = pdist(np.array(first["clusters"].split("|"), dtype=int)[:, None]) == 0

    layout = federation.blueprint.layout
    beginnings = {"last_layer": "classifier.", "linear_layers": ("hidden.", "classifier.")}
    for name, layers in (beginnings | {"parameters": ""}).items():
        parts = [trained[:, at] for tensor, at in layout.items() if tensor.startswith(layers)]
        gaps = pdist(torch.cat(parts, dim=1).double())
        assert first[f"{name}_within"] == pytest.approx(gaps[same].mean(), rel=1e-6)
        assert first[f"{name}_overall"] == pytest.approx(gaps.mean(), rel=1e-6)
    assert first["last_layer_within"] < first["last_layer_overall"] < first["parameters_overall"]
    assert "last_layer_within" not in second


@pytest.mark.slow
def test_distances_need_models_that_started_together(federate_turned):
    federation = federate_turned(**NETWORK, clients_per_round=3)
    line_up = {"EMD-CFL": MeasuredEMDCFL(epsilon=0.08)}
    rows = simulation.run(line_up, federation, 2, progress=False).rows
    assert "scores" in rows[0]
    assert not any("last_layer_within" in row for row in rows)
