import numpy as np
import pytest
import torch

from cflkit import datasets, methods, metrics, partition, simulation
from cflkit.checkpoints import CheckpointMismatch
from cflkit.federation import Diverged, Federation, Jobs, LocalTraining


def line_up():
    return {
        "FedAvg": methods.make("fedavg", weighting="equal"),
        "KM": methods.make("ocfl", clusterer="kmeans"),
        "AFF": methods.make("ocfl", clusterer="affinity"),
        "oracle": methods.make("oracle", weighting="equal"),
        "local": methods.make("local"),
    }


def run(methods, federation, rounds=4, **options):
    return simulation.run(methods, federation, rounds, progress=False, **options)


@pytest.mark.slow
def test_lockstep_equals_running_each_method_alone(federate):
    together = run(line_up(), federate()).table()
    for name, method in line_up().items():
        alone = run({name: method}, federate()).table()
        rows = together[together["method"] == name][alone.columns].reset_index(drop=True)
        assert rows.to_csv() == alone.reset_index(drop=True).to_csv()


def test_shared_trainings_are_run_once(federate):
    history = run(line_up(), federate(), rounds=1)
    # In the first round everybody starts from the same model
    assert (history.requested, history.trained) == (30, 6)
    twice = {"one": methods.make("local"), "other": methods.make("local")}
    history = run(twice, federate(), rounds=3)
    assert (history.requested, history.trained) == (36, 18)


def test_same_seed_same_history_and_another_seed_another(federate):
    one, same, other = (run(line_up(), federate(seed=seed)).table().to_csv() for seed in (1, 1, 2))
    assert one == same
    assert one != other


class Killed(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_run_goes_on_to_the_same_history(federate, tmp_path, monkeypatch, after):
    checkpoint = tmp_path / "run.pt"
    expected = run(line_up(), federate(), rounds=5)
    save = simulation.save_checkpoint

    def save_and_die(path, identity, history, rounds, methods):
        save(path, identity, history, rounds, methods)
        if rounds == after:
            raise Killed

    monkeypatch.setattr(simulation, "save_checkpoint", save_and_die)
    with pytest.raises(Killed):
        run(line_up(), federate(), rounds=5, checkpoint=checkpoint)
    monkeypatch.setattr(simulation, "save_checkpoint", save)
    federation = federate()
    rounds_trained = []
    train = federation.train
    federation.train = lambda jobs, round: rounds_trained.append(round) or train(jobs, round)
    history = run(line_up(), federation, rounds=5, checkpoint=checkpoint)
    assert rounds_trained == list(range(after, 5))
    assert history.table().to_csv() == expected.table().to_csv()
    assert (history.requested, history.trained) == (expected.requested, expected.trained)
    # Kept until a record holds the result; the run is complete, so nothing is trained again
    assert list(tmp_path.iterdir()) == [checkpoint]
    again = run(line_up(), federation, rounds=5, checkpoint=checkpoint)
    assert rounds_trained == list(range(after, 5))
    assert again.table().to_csv() == expected.table().to_csv()


def test_a_checkpoint_of_another_run_is_refused(federate, tmp_path):
    checkpoint = tmp_path / "run.pt"
    run({"KM": methods.make("ocfl", clusterer="kmeans")}, federate(), 2, checkpoint=checkpoint)
    other = {"KM": methods.make("ocfl", clusterer="kmeans", window=2)}
    with pytest.raises(CheckpointMismatch, match="delete it to start anew"):
        run(other, federate(), 2, checkpoint=checkpoint)
    with pytest.raises(CheckpointMismatch):
        same = {"KM": methods.make("ocfl", clusterer="kmeans")}
        run(same, federate(seed=1), 2, checkpoint=checkpoint)
    with pytest.raises(CheckpointMismatch, match="or more rounds"):
        run(same, federate(), 1, checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(CheckpointMismatch, match="is damaged; delete it"):
        run(same, federate(), 2, checkpoint=checkpoint)


def test_a_diverged_run_says_where(federate):
    wild = LocalTraining(epochs=1, batch_size=16, lr=1e12)
    with pytest.raises(Diverged, match=r"diverged in round \d+: .*lower the learning rate"):
        run({"FedAvg": methods.make("fedavg")}, federate(training=wild), rounds=5)


def test_rows_hold_what_they_say(federate):
    federation, line = federate(), line_up()
    history = run(line, federation)
    last = history.table().groupby("method").last()
    models, of_client = line["KM"].client_models()
    jobs = Jobs(models, of_client, torch.arange(6))
    own = [metrics.scores(federation.targets(c), p) for c, p in enumerate(federation.predict(jobs))]
    central = [
        metrics.scores(federation.targets(0, "central"), p)
        for p in federation.predict(jobs, "central")
    ]
    pf1, accuracy = np.array(own).T
    gf1, _ = np.array(central).T
    assert last.loc["KM", "pf1"] == pytest.approx(pf1.mean())
    assert last.loc["KM", "accuracy"] == pytest.approx(accuracy.mean())
    assert last.loc["KM", "gf1"] == pytest.approx(gf1.mean())
    assert last.loc["KM", "learning_gap"] == pytest.approx(np.abs(pf1 - gf1).mean())
    assert last.loc["KM", "clusters"] == "|".join(map(str, line["KM"].labels.tolist()))
    assert last.loc["local", "n_clusters"] == 6
    summary = history.summary()
    assert summary["FedAvg"]["clustering_round"] is None
    assert summary["oracle"]["clustering_round"] == 1
    assert summary["KM"]["mean_pf1"] == pytest.approx(
        np.mean([row["pf1"] for row in history.rows if row["method"] == "KM"])
    )


@pytest.mark.slow
def test_the_central_test_set_is_met_every_so_many_rounds_and_last(federate):
    every = run(line_up(), federate(), rounds=5).table()
    some = run(line_up(), federate(), rounds=5, central_every=2).table()
    met = some["round"].isin([2, 4, 5])
    for name in ("gf1", "central_accuracy", "learning_gap"):
        assert some[name][~met].isna().all()
        assert some[name][met].tolist() == every[name][met].tolist()
    assert some["pf1"].tolist() == every["pf1"].tolist()


def test_bad_requests_are_refused(federate):
    with pytest.raises(ValueError, match="central_every must be at least 1"):
        run(line_up(), federate(), central_every=0)
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        run(line_up(), federate(), rounds=0)
    with pytest.raises(ValueError, match="no method"):
        run({}, federate())


def test_scores_against_a_count_by_hand():
    labels = [0, 0, 1, 1]
    probabilities = np.eye(3)[[0, 0, 1, 2]]
    # F1: class 0 → 1, class 1 → 2/3, the stray class 2 → 0
    assert metrics.scores(labels, probabilities) == (pytest.approx((1 + 2 / 3) / 3), 0.75)
    assert np.isnan(metrics.scores([], np.zeros((0, 3)))).all()


def test_agreement_of_the_unclustered_and_the_true():
    truth = [0, 0, 1, 1, 2, 2]
    assert metrics.agreement(truth, [5, 5, 3, 3, 4, 4]) == pytest.approx(
        {"ari": 1, "ami": 1, "homogeneity": 1, "completeness": 1}
    )
    together = metrics.agreement(truth, [0] * 6)
    assert (together["ari"], together["homogeneity"], together["completeness"]) == (0, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["nonoverlapping", "overlapping"])
def test_ocfl_finds_the_clusters_of_mnist(data_root, overlap):
    images, split = partition.ocfl(
        datasets.load("mnist"), overlap=overlap, balance="balanced", draws=400
    )
    training = LocalTraining(epochs=3, batch_size=16, lr=0.05)
    method = methods.make("ocfl", clusterer="hdbscan")
    federation = Federation(images, split, training=training, device="cpu")
    summary = run({"OCFL": method}, federation, rounds=5).summary()["OCFL"]
    assert summary["clustering_round"] <= 5
    assert summary["ari"] == 1
