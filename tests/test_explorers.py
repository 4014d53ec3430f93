"""What the explorers of the page compute is what the package computes, over each slider's range."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.cluster import hierarchy

from cflkit import clustering, metrics
from cflkit.methods import emd_cfl, fedcref
from cflkit.methods.fedcref_measures import wrong_share
from cflkit.reproduce.papers.emd_cfl import working_range

ROOT = Path(__file__).parents[1]
EXPLORERS = ROOT / "notebooks" / "src" / "play" / "explorers"
DATA = json.loads((EXPLORERS / "data.json").read_text())
OLDER, EMD, FEDCREF = DATA["older_rules"], DATA["emd_cfl"], DATA["fedcref"]


@pytest.fixture(scope="module")
def js():
    """A function that calls one of ``maths.js``."""
    context = pytest.importorskip("py_mini_racer").MiniRacer()
    context.eval(re.sub(r"^export ", "", (EXPLORERS / "maths.js").read_text(), flags=re.M))
    return lambda name, *given: json.loads(
        context.eval(f"JSON.stringify({name}({', '.join(map(json.dumps, given))}))")
    )


def square(above, m):
    """Return the symmetric matrix of what is above its diagonal."""
    matrix = np.zeros((m, m))
    matrix[np.triu_indices(m, 1)] = np.array(above) * DATA["unit"]
    return matrix + matrix.T


def same_groups(first, second):
    return metrics.agreement(first, second)["ari"] == 1


def test_a_cut_leaves_the_clusters_of_the_package_in_each_round_at_each_height(js):
    truth = OLDER["truth"]
    for above in OLDER["briggs"]["rounds"]:
        gamma = square(above, 20)
        assert np.array_equal(js("square", above, 20, DATA["unit"]), gamma)
        joins = js("linkage", gamma.tolist())
        assert np.allclose([join["height"] for join in joins], clustering.merge_heights(gamma))
        cuts = [round(0.05 + 0.01 * step, 2) for step in range(106)]
        ours = js(f"((joins, cuts) => cuts.map((cut) => cutAt(joins, cut)))", joins, cuts)
        for cut, found in zip(cuts, ours, strict=True):
            labels = clustering.make("agglomerative", threshold=cut).fit_predict(gamma)
            assert found == labels.tolist(), cut
        low, high = js("rightHeights", joins, truth) or (np.nan, np.nan)
        right = [same_groups(truth, found) for found in ours]
        assert right == [bool(low < cut <= high) for cut in cuts]
        order = js("leaves", joins)
        assert sorted(order) == list(range(20))
        assert all(np.ptp(np.flatnonzero(np.isin(order, np.flatnonzero(np.array(found) == k))))
                   == found.count(k) - 1 for found in ours for k in set(found))
