"""Scenes in which clients come late, come and go, or change their group."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds import played

from cflkit import simulation
from cflkit.partition import changes
from cflkit.reproduce import ledger
from cflkit.reproduce.papers import emd_cfl
from cflkit.reproduce.parameters import ParameterError

TRUTH = [0, 0, 0, 1, 1, 1, 2, 2]
SIZES = {"clients": 6, "samples": 80, "rounds": 5, "embedded": 64, "local_epochs": 2}
TRAINING = {"model": "perceptron", "lr": 0.05, "batch_size": 16}
ONLY = ["EMD-CFL", "Oracle", "FedAvg", "IFCA", "OCFL-HDB", "OCFL-HDB again"]
SMALL = ledger.defaults("05b_emd_cfl_controls") | SIZES | TRAINING | {"only": ONLY}


@pytest.mark.parametrize(
    ("scene", "truth", "affected"),
    [
        *(("none", TRUTH, range(8)), ("random", TRUTH, range(8)), ("join", TRUTH, [2, 5, 7])),
        *(("late group", TRUTH, [6, 7]), ("drift", TRUTH, [2, 3])),
        # Clusters may have been left out
        *(("join", [0, 0, 2, 2], [1, 3]), ("drift", [0, 0, 2, 2], [1, 2])),
    ],
)
def test_who_is_affected_and_who_comes_late(scene, truth, affected):
    """Those who come late are absent before the change, and there after it."""
    assert changes.affected(scene, truth) == [*affected]
    if scene != "random":
        there = changes.presence(scene, truth, rounds=6, change=4, seed=0)
        late = affected if scene in ("join", "late group") else []
        assert not there[:4, late].any()
        there[:4, late] = True
        assert there.all()


@given(
    groups=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    rounds=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_in_each_random_round_each_cluster_has_somebody(groups, rounds, seed):
    truth = np.repeat(range(0, 2 * len(groups), 2), groups)  # some clusters are left out
    there = changes.presence("random", truth, rounds, 0, seed)
    assert there.shape == (rounds, len(truth))
    for cluster in set(truth):
        assert there[:, truth == cluster].any(dim=1).all()
    assert torch.equal(there, changes.presence("random", truth, rounds, 0, seed))


def test_drift_needs_two_clusters_and_what_is_drawn_a_seed():
    with pytest.raises(ValueError, match="needs two true clusters"):
        changes.presence("drift", [1, 1], 5, 2, seed=0)
    with pytest.raises(ValueError, match="from 0 on, not None"):
        changes.presence("random", [0, 1], 5, 2, seed=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scene": "late group", "change": 5}, "change must be at least 1 and less than rounds"),
        ({"change": 2}, "change must be 0"),
        ({"scene": "random", "participants": 3}, "participants must be None"),
        ({"scene": "random", "until": "clusters"}, "until must be 'rounds'"),
    ],
)
def test_a_scene_that_cannot_be_is_refused(change, message):
    with pytest.raises(ParameterError, match=message):
        emd_cfl.Parameters.checked(SMALL | change)


def last(scene, tmp_path=None, **options):
    """Play a small run of this scene; return its table."""
    run = emd_cfl.Parameters(**SMALL | {"scene": scene, **options})
    history, _ = played(emd_cfl.PAPERS[0], run, tmp_path and tmp_path / "state.pt")
    return history.table()


@pytest.fixture(scope="module")
def drifted():
    return last("drift", change=3)


@pytest.mark.slow
def test_in_drift_the_truth_changes_and_only_some_methods_follow(drifted):
    assert drifted.groupby("method")["round"].max().eq(5).all()
    ari = drifted.pivot(index="method", columns="round", values="ari")
    once, again = ["EMD-CFL", "OCFL-HDB"], ["Oracle", "IFCA"]
    assert (ari.loc[once + again, 3] == 1).all()
    assert (ari.loc[once, 5] < 0.5).all(), "they decide once, and two of six clients changed"
    assert (ari.loc[again, 5] == 1).all()


@pytest.mark.slow
def test_a_run_with_drift_that_is_interrupted_ends_as_if_it_was_not(drifted, tmp_path, monkeypatch):
    going_on = simulation.run

    def killed(*arguments, after=None, **options):
        if after is not None:
            raise KeyboardInterrupt
        return going_on(*arguments, **options)

    monkeypatch.setattr(simulation, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        last("drift", tmp_path, change=3)
    monkeypatch.undo()
    assert (tmp_path / "state.pt").exists()
    columns = ["method", "round", "ari", "accuracy", "worst_accuracy", "clusters"]
    assert last("drift", tmp_path, change=3)[columns].equals(drifted[columns])


@pytest.mark.slow
def test_a_late_group_gets_its_own_cluster_where_the_method_looks_again():
    table = last("late group", change=2, only=[*ONLY, "Local"])
    final = table[table["round"] == 5].set_index("method")
    ari = final["ari"]
    assert ari["EMD-CFL"] == ari["IFCA"] == ari["Oracle"] == 1
    assert ari["OCFL-HDB"] < 1
    assert final["worst_accuracy"].min() > 0.2, "those who came late have learned, too"
