import dataclasses
import os
import re
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass
from rounds import begin, watched
from sklearn.metrics import accuracy_score, f1_score

from cflkit import _project, methods, partition, simulation
from cflkit.federation import (
    Ask,
    Diverged,
    Federation,
    Jobs,
    LocalTraining,
    Losses,
    Privacy,
    Send,
    Train,
    f1_and_accuracy,
)
from cflkit.methods.fedavg import FedAvg
from cflkit.simulation import checkpoints, evaluation, loop, mixing
from cflkit.simulation.checkpoints import CheckpointMismatch, Keeper, fingerprint
from cflkit.simulation.evaluation import History


def line_up():
    truth = [0, 0, 1, 1, 2, 2]  # the clusters of the six clients in `split`
    return {
        "FedAvg": methods.make("fedavg", weighting="equal"),
        "KM": methods.make("ocfl", clusterer="kmeans"),
        "AFF": methods.make("ocfl", clusterer="affinity"),
        "oracle": methods.make("oracle", truth=truth, weighting="equal"),
        "local": methods.make("local"),
    }


def run(methods, federation, rounds=4, **options):
    return simulation.run(methods, federation, rounds, progress=False, **options)


@pytest.fixture(scope="module")
def played(federate):
    """Run the usual methods for five rounds; tests only read what they get."""
    line, federation = line_up(), federate()
    history = run(line, federation, rounds=5)
    return SimpleNamespace(line=line, federation=federation, history=history)


def test_the_temperature_of_a_method_is_what_ocfls_trigger_would_see(federate):
    """It is that of what the server gets, where it is asked for; one client alone has none."""
    presence = torch.ones(3, 6, dtype=torch.bool)
    presence[1, 1:] = False
    lines = {name: methods.make("fedavg", weighting="equal") for name in ("watched", "other")}
    lines["OCFL"] = methods.make("ocfl-open", window=9)  # which never fires
    lines["FT"] = methods.make("fedavg-ft", weighting="equal")
    federation = federate().with_presence(presence)
    lines["p"] = methods.make("ocfl-open", window=9, p=1)  # keeps the number of its trigger
    history = run(lines, federation, 3, temperature_of=["watched", "FT", "p"])
    table = history.table().set_index(["method", "round"])["temperature"]
    assert table["watched"].notna().tolist() == [True, False, True]
    for same in ("OCFL", "FT"):
        pd.testing.assert_series_equal(table["watched"], table[same], check_exact=True)
    assert table["p"].dropna().tolist() == lines["p"].temperatures
    assert table["other"].isna().all()
    assert torch.equal(lines["watched"].models, lines["other"].models)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_or_code_or_a_damaged_one_is_refused(
    federate, tmp_path, monkeypatch
):
    checkpoint, federation = tmp_path / "run.pt", federate()

    def refused(message, rounds=2, window=3, **options):
        line = {"KM": methods.make("ocfl", clusterer="kmeans", window=window)}
        with pytest.raises(CheckpointMismatch, match=message):
            run(line, federation, rounds, checkpoint=checkpoint, **options)

    run({"KM": methods.make("ocfl", clusterer="kmeans")}, federation, 2, checkpoint=checkpoint)
    refused("delete it to start anew", window=2)
    refused("or more rounds", rounds=1)
    refused("of another run", central_every=2)
    refused("of another run", until_settled=True)
    for where, name, value in (
        (checkpoints, "digest_of_code", lambda *modules: "another"),
        (checkpoints.torch, "__version__", "9.9"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(where, name, value)
            refused("made by other code or another torch", rounds=3)
    whole = checkpoint.read_bytes()
    places = range(0, len(whole), len(whole) // 20)
    flipped = [whole[:n] + bytes([whole[n] ^ 64]) + whole[n + 1 :] for n in places]
    for damaged in (b"", whole[:1000], *flipped):
        checkpoint.write_bytes(damaged)
        refused("is damaged; delete it")
    checkpoint.unlink()
    os.mkfifo(checkpoint)
    with pytest.raises(OSError, match="no regular file"):
        checkpoints.load(checkpoint, "", "", 1, torch.device("cpu"))
    with pytest.raises(OSError, match="no regular file"):
        checkpoints.save(checkpoint, "", "", {})


def test_a_checkpoint_belongs_to_a_way_of_training_its_noise_and_its_data(federate):
    more = LocalTraining(epochs=7, batch_size=16, lr=0.1)
    changed = ({"engine": "stacked"}, {"clients_per_round": 2}, {"seed": 1}, {"training": more})
    noisy = [federate().with_hooks(Privacy(1.0, noise)) for noise in (1.0, 2.0)]
    others = [federate(), *noisy, *(federate(**options) for options in changed)]
    others[0].data.pool = others[0].data.central  # other pixels, perhaps of no file
    lines = {"FedAvg": methods.make("fedavg")}
    known = [fingerprint(lines, each, "") for each in (federate(), *others)]
    assert len(set(known)) == len(known)
    assert fingerprint(lines, federate(), "") == known[0]
    before = (None, *(History(rows=[{"round": 1, "pf1": pf1}]) for pf1 in (0.1, 0.2)))
    keepers = [Keeper("run.pt", lines, federate(), "a plan", after, []) for after in before]
    assert len({keeper.identity for keeper in keepers}) == 3


def test_writing_checkpoints_takes_at_most_a_second_per_minute(federate, tmp_path, monkeypatch):
    clock, saved = [0.0], []

    def save(path, identity, code, state):
        saved.append(state["rounds"])
        clock[0] += 1.0

    monkeypatch.setattr(checkpoints, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(checkpoints, "save", save)
    keeper = Keeper(tmp_path / "run.pt", {}, federate("linear"), "a plan", None, [])
    for rounds, seconds in enumerate((0, 59, 2, 59, 2), start=1):
        clock[0] += seconds
        keeper.keep(History(), rounds, {}, last=False)
    assert saved == [1, 3, 5]
    keeper.keep(History(), 6, {}, last=True)
    assert saved == [1, 3, 5, 6]


def test_minutes_and_memory_are_those_of_all_rounds_also_before_a_break(
    federate, tmp_path, monkeypatch
):
    ticks = iter(range(0, 60_000, 60))
    monkeypatch.setattr(loop, "perf_counter", lambda: next(ticks))
    for rounds, memory in ((1, 9.0), (3, 3.0)):
        monkeypatch.setattr(loop, "peak_memory", lambda device, memory=memory: memory)
        line, checkpoint = {"FedAvg": methods.make("fedavg")}, tmp_path / "run.pt"
        history = run(line, federate("linear"), rounds, checkpoint=checkpoint)
    assert (history.minutes, history.peak_memory) == pytest.approx((3, 9))


def test_a_checkpoint_has_equal_models_once_and_gives_each_method_its_own(tmp_path):
    path, model, sizes = tmp_path / "run.pt", torch.randn(10**5), []
    for count in (1, 9):
        states = {f"line {n}": {"models": model.clone()} for n in range(count)}
        checkpoints.save(path, "ID", "code", {"rounds": 1, "methods": states})
        sizes.append(path.stat().st_size)
    assert sizes[1] - sizes[0] < 0.5 * model.nbytes
    again = checkpoints.load(path, "ID", "code", 1, torch.device("cpu"))["methods"]
    first, second, *_ = (state["models"] for state in again.values())
    assert torch.equal(first, second)
    first += 1
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("module", "before", "after", "counts"),
    [
        ("cflkit.methods.ocfl", "self.clustered", "not self.clustered", True),
        ("cflkit.metrics", "import numpy as np", "import numpy as np; np.seterr()", True),
        ("cflkit.methods.ocfl", '"""', '"""An addition. ', False),
        ("cflkit.metrics", "import numpy as np", "import  numpy as np  # the arrays\n", False),
        ("cflkit.plots", "import", "import ast; import", False),
        ("cflkit.methods.fedcref", "import", "import ast; import", False),
    ],
)
def test_the_digest_of_the_code_is_of_what_a_run_computes_with(
    monkeypatch, module, before, after, counts
):
    """What the run begins with does, and what that imports; docstrings and layout do not."""
    begun = "cflkit.simulation", "cflkit.methods.ocfl"
    known, text = _project.digest_of_code(*begun), _project.SOURCES[module]
    changed = re.sub(f"^(.*?){re.escape(before)}", rf"\1{after}", text, count=1, flags=re.DOTALL)
    assert changed != text
    monkeypatch.setitem(_project.SOURCES, module, changed)
    assert (_project.digest_of_code.__wrapped__(*begun) != known) == counts


def test_a_method_of_ones_own_counts_as_its_file(federate, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from cflkit.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    step = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    line = mixing.watched({"mine": import_module("mine").Mine()})
    assert {"mine", "cflkit.simulation"} <= set(loop.modules_of(line, federate("linear")))
    known = _project.digest_of_code("mine")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("1", "2"))
    assert _project.digest_of_code.__wrapped__("mine") != known


def test_a_checkpoint_keeps_numbers_and_arrays_of_numpy_and_refuses_what_it_cannot_give_back(
    tmp_path,
):
    path = tmp_path / "run.pt"
    state = {"norm": np.float64(1.5), "count": np.int64(2), "pair": (1, [None, "text"])}
    given = {"rounds": 1, "state": state | {"array": np.arange(3.0)}}
    checkpoints.save(path, "ID", "code", given)
    again = checkpoints.load(path, "ID", "code", 1, torch.device("cpu"))["state"]
    np.testing.assert_array_equal(again.pop("array"), np.arange(3.0))
    assert again == state
    with pytest.raises(ValueError, match="cannot keep a LocalTraining"):
        checkpoints.save(path, "ID", "code", {"training": LocalTraining()})


@dataclass
class Wild(FedAvg):
    """A method of which some clients diverge in the second round."""

    broken: tuple[int, ...] = tuple(range(6))

    def broadcast(self, t):
        jobs = super().broadcast(t)
        broken = torch.isin(jobs.client_of, torch.tensor(self.broken)) & (t == 1)
        return Jobs(torch.cat([jobs.models, jobs.models * 1e30]), broken.long(), jobs.client_of)


@pytest.mark.slow
def test_who_diverges_leaves_and_the_others_go_on(federate, played, tmp_path):
    """The others have the same results as without the method that left.

    The checkpoint of a run that has ended is there until a record holds the result.
    """
    checkpoint, federation = tmp_path / "run.pt", federate()
    history = run({"wild": Wild(broken=(2,)), **line_up()}, federation, 3, checkpoint=checkpoint)
    table = history.table()
    left = table[table["method"] == "wild"]
    assert left["round"].tolist() == [1, 2]
    assert left["diverged"].isna().tolist() == [True, False]
    assert left["pf1"].isna().tolist() == [False, True]
    alone = played.history.table().query("round <= 3").reset_index(drop=True)
    others = table[table["method"] != "wild"][alone.columns].reset_index(drop=True)
    assert others.to_csv() == alone.to_csv()
    assert history.summary()["wild"] == {"diverged_in": 2}
    federation.train = None  # must not be called
    again = run({"wild": Wild(broken=(2,)), **line_up()}, federation, 3, checkpoint=checkpoint)
    assert again.table().to_csv() == table.to_csv()
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_models_that_the_server_breaks_are_not_scored(federate):
    """The clients' models are finite, and the step of the server, or of personal models, is not."""
    broken = methods.make("fedopt", optimizer="sgd")
    broken.lr = 1e300  # more than the option takes
    line = {"broken": broken, "FedAvg": methods.make("fedavg")}
    history = run(line, federate("linear"), rounds=2)
    [row] = [row for row in history.rows if row["method"] == "broken"]
    assert row == {"method": "broken", "round": 1, "diverged": True}
    assert history.summary()["broken"] == {"diverged_in": 1}
    assert history.table().query("method == 'FedAvg'")["round"].tolist() == [1, 2]
    infinite = property(lambda _: torch.full((6, 650), torch.inf), lambda *_: None)
    personal = type("Personal", (type(methods.make("fedavg-ft")),), {"personal": infinite})
    for method in (broken, personal()):
        with pytest.raises(Diverged, match=r"in round 1: the models on the server are no"):
            run({"broken": method}, federate("linear"), rounds=1)


def test_a_run_of_which_the_last_method_diverges_is_an_error_whoever_left_before(federate):
    """The run goes on from a history in which another method has diverged."""
    one = methods.make("fedavg")
    before = run({"one": one, "left": Wild()}, federate(), rounds=2)
    one.models = one.models * 1e30
    message = r"diverged in round 3: .*clients \[0, 1, 2, 3, 4, 5\] .*lower the learning rate"
    with pytest.raises(Diverged, match=message):
        run({"one": one}, federate(), rounds=6, after=before)


def test_methods_meet_at_their_trainings_though_one_asks_before(federate_turned):
    line = {"FedAvg": methods.make("fedavg"), "PACFL": methods.make("pacfl", angle=180.0)}
    federation = federate_turned()
    trainings = watched(federation)
    history = run(line, federation, rounds=1)
    assert (history.requested, history.trained) == (12, 6)
    assert [len(jobs) for jobs, _ in trainings] == [6]


def test_a_history_without_rows_is_an_empty_table():
    assert History().table().empty
    assert History().summary() == {}


# --- Communication --------------------------------------------------------------------------------


def bytes_of(history, name):
    rows = history.table().query("method == @name")
    return list(zip(rows["bytes_down"], rows["bytes_up"], strict=True))


@pytest.mark.slow
def test_bytes_of_averaging_are_models_there_and_back_and_all_trainings_count(played):
    history, model = played.history, 4 * played.federation.parameters
    for name in ("FedAvg", "KM", "oracle"):
        assert bytes_of(history, name) == [(6 * model, 6 * model)] * 5
    assert bytes_of(history, "local") == [(0, 0)] * 5
    assert history.summary()["FedAvg"]["total_bytes_up"] == 30 * model
    assert history.table()["trainings"].eq(6).all()
    assert history.summary()["local"]["total_trainings"] == 30
    assert history.requested == 5 * 30 > history.trained


def test_bytes_of_a_buffer_count_and_absent_clients_do_not(federate, normalised):
    federation = federate(normalised, clients_per_round=2)
    history = run({"FedAvg": methods.make("fedavg")}, federation, rounds=2)
    model = 4 * (federation.parameters + federation.buffers)
    assert bytes_of(history, "FedAvg") == [(2 * model, 2 * model)] * 2


def counted(client, model, split):
    return [1.0, torch.zeros(3), np.zeros(2)]


@dataclass
class Talkative(FedAvg):
    """A method that sends every kind of request."""

    def round(self, t):
        jobs = self.broadcast(t)
        assert (yield Send(jobs)) == [None] * len(jobs)
        yield Losses(jobs, split="test")
        yield Losses(jobs)
        yield Losses(jobs, reported=False)
        yield Ask(jobs, question=counted, options={"split": "test"})
        yield Train(jobs)
        trained = yield Train(jobs)  # which clients neither do nor report again
        each = torch.arange(len(jobs))
        yield Losses(Jobs(trained, each, jobs.client_of), reported=False)  # known to them
        yield Losses(Jobs(trained, each, jobs.client_of.flip(0)), reported=False)
        self.aggregate(t, jobs, trained)


@pytest.mark.slow
def test_bytes_of_answers_and_a_model_is_sent_once_per_round(federate):
    federation = federate()
    model = 4 * federation.parameters
    history = run({"talkative": Talkative()}, federation, rounds=1)
    samples = sum(federation.num_samples(c, s) for c in range(6) for s in ("train", "test"))
    answers = 4 * samples + 6 * (8 + 12 + 16)
    # Clients receive the initial model, and one model that another client has trained
    assert bytes_of(history, "talkative") == [(12 * model, answers + 6 * model)]
    assert history.table()["trainings"].tolist() == [6]


def test_an_anchor_is_a_second_model_to_send(federate):
    """From the second round, clients of SCAFFOLD receive a control variate, too."""
    federation = federate("linear")
    history = run({"Scaffold": methods.make("scaffold")}, federation, rounds=2)
    model = 4 * federation.parameters
    assert bytes_of(history, "Scaffold")[1] == (12 * model, 6 * model)


def test_rows_say_whom_a_method_leaves_worse_than_alone_or_fine_tuned(federate):
    federation, names = federate("linear"), ("fedavg", "fedavg-ft", "local")
    line = {name: methods.make(name) for name in names}
    last = run(line, federation, 3).table().groupby("method").last()
    scores = {name: evaluation.client_scores(line[name], federation)[:, 1] for name in names}
    for reference, column in (("local", "local"), ("fedavg-ft", "fine_tuned")):
        for name in names:
            measured = last.loc[name, [f"worse_than_{column}", f"most_behind_{column}"]].tolist()
            lost = scores[reference] - scores[name]
            expected = [np.nan] * 2 if name == reference else [(lost > 0).mean(), lost.max()]
            assert measured == pytest.approx(np.maximum(expected, 0), nan_ok=True)
    assert last.loc["fedavg", "worse_than_local"] > 0


@pytest.mark.slow
def test_rows_hold_what_they_say(played):
    line, federation, history = played.line, played.federation, played.history
    last = history.table().groupby("method").last()
    for name in ("FedAvg", "KM"):  # some clients of FedAvg are worse on their own test sets
        models, mixture = line[name].client_models()
        jobs = Jobs(models, mixture.argmax(dim=1), torch.arange(6))
        own = [by_sklearn(federation.targets(c), p) for c, p in enumerate(federation.predict(jobs))]
        labels = federation.targets(0, "central")
        central = [by_sklearn(labels, p) for p in federation.predict(jobs, "central")]
        (pf1, accuracy), (gf1, elsewhere) = np.array(own).T, np.array(central).T
        expected = {"pf1": pf1.mean(), "accuracy": accuracy.mean()}
        expected |= {"worst_accuracy": accuracy.min(), "learning_gap": np.abs(pf1 - gf1).mean()}
        expected |= {"gf1": gf1.mean(), "central_accuracy": elsewhere.mean()}
        assert last.loc[name, [*expected]].to_dict() == pytest.approx(expected)
    assert last.loc["KM", "clusters"] == "|".join(map(str, line["KM"].labels.tolist()))
    assert last.loc["local", "n_clusters"] == 6
    assert loop.found_by({"oracle": line["oracle"]}) == "clusters: oracle 3"  # in the progress
    summary = history.summary()
    assert summary["FedAvg"]["clustering_round"] is None
    assert summary["oracle"]["clustering_round"] == 1
    assert summary["KM"]["mean_pf1"] == pytest.approx(
        np.mean([row["pf1"] for row in history.rows if row["method"] == "KM"])
    )


def test_clients_without_test_samples_do_not_count():
    """Nor do those that a backdoor is not for, in its measures."""
    nothing = (np.nan, np.nan)
    own = np.array([(0.9, 0.8), (0.1, 0.2), nothing, (0.5, 0.5)])
    on_backdoor = np.array([(0.3, 0.7), (0.2, 0.6), (0.1, 0.1), nothing])
    central = np.array([(0.5, 0.4), (0.5, 0.6), (0.9, 0.9), (0.2, 0.2)])
    measured = evaluation.performance(own, on_backdoor, central)
    expected = {"pf1": 0.5, "gf1": 0.4, "learning_gap": 1.1 / 3, "accuracy": 0.5}
    expected |= {"worst_accuracy": 0.2, "central_accuracy": 0.4}
    expected |= {"clean_accuracy": 0.5, "backdoor_accuracy": 0.65}
    assert measured == pytest.approx(expected)


@pytest.mark.slow
def test_the_central_test_set_is_met_every_so_many_rounds_and_last(federate, played):
    every = played.history.table()
    some = run(line_up(), federate(), rounds=5, central_every=2).table()
    met = some["round"].isin([2, 4, 5])
    for name in ("gf1", "central_accuracy", "learning_gap"):
        assert some[name][~met].isna().all()
        assert some[name][met].tolist() == every[name][met].tolist()
    assert some["pf1"].tolist() == every["pf1"].tolist()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"central_every": 0}, "central_every must be at least 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"methods": {}}, "no method"),
        ({"after": History()}, "there are no rounds after which to go on"),
        ({"temperature_of": ["none"]}, r"temperature_of names \['none'\]"),
        (
            {"methods": {"mine": methods.make("fedcref", start=())}},
            "mine is made for reconstruction, .* task classification: give it a network for recon",
        ),
    ],
)
def test_bad_requests_are_refused(federate, options, message):
    with pytest.raises(ValueError, match=message):
        run(**{"methods": line_up(), "federation": federate()} | options)


def test_without_any_test_samples_only_clusters_can_be_measured(small, split):
    """All else is refused before the training."""
    untested = dataclasses.replace(split, test=[part[:0] for part in split.test])
    federation = Federation(small, untested, "linear", LocalTraining(epochs=1), device="cpu")
    history = run({"OCFL": methods.make("ocfl")}, federation, 2, until_settled=True)
    assert history.table()["ari"].notna().all()
    federation.train = None  # must not be called
    with pytest.raises(ValueError, match="no client has test samples"):
        run({"FedAvg": methods.make("fedavg")}, federation, 1)


def test_a_mixture_predicts_as_the_mean_of_its_models_probabilities(federate):
    federation = federate()
    method = begin("fedem", federation, k=2)
    method.shares = torch.tensor([[0.95, 0.05], [0.05, 0.95], [0.5, 0.5]]).repeat(2, 1)
    models, mixture = method.client_models()
    for client, scores in enumerate(evaluation.client_scores(method, federation)):
        answers = federation.predict(Jobs(models, torch.arange(2), torch.tensor([client] * 2)))
        mean = sum(w * p for w, p in zip(mixture[client], answers, strict=True))
        assert scores == pytest.approx(by_sklearn(federation.targets(client), mean))


def test_methods_cannot_go_on_in_a_federation_that_does_not_fit(federate, small):
    line_up = {"Sattler": methods.make("sattler")}
    first = run(line_up, federate(), 1)
    _, fewer = partition.iid(small, clients=3, draws=40)
    for home in (Federation(small, fewer, "perceptron", device="cpu"), federate("linear")):
        with pytest.raises(ValueError, match=r"Sattler cannot go on here"):
            run(line_up, home, 2, after=first)
    with pytest.raises(ValueError, match=r"runs only with all clients"):
        run(line_up, federate(clients_per_round=2), 2, after=first)
    with pytest.raises(ValueError, match=r"it must have run with"):
        run({"Sattler": methods.make("sattler")}, federate(), 2, after=first)
    with pytest.raises(ValueError, match=r"1 rounds have been run, and rounds = 1"):
        run(line_up, federate(), 1, after=first)
    line_up = {"FedAvg": methods.make("fedavg"), "OCFL": methods.make("ocfl", clusterer="kmeans")}
    first = run(line_up, federate("linear"), 3, until_settled=True)
    with pytest.raises(ValueError, match=r"\['FedAvg'\] have fewer rounds"):
        run(line_up, federate("linear"), 6, after=first)


def by_sklearn(labels, probabilities):
    predicted = probabilities.argmax(dim=1)
    return (
        f1_score(labels, predicted, average="macro", zero_division=0),
        accuracy_score(labels, predicted),
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1), st.integers(6, 8))
def test_scores_are_those_of_scikit_learn(pairs, classes):
    """This holds whatever classes are absent from the labels, the predictions or both."""
    labels, predicted = torch.tensor(pairs).T
    probabilities = torch.eye(classes)[predicted]
    expected = by_sklearn(labels, probabilities)
    assert f1_and_accuracy(labels, probabilities) == pytest.approx(expected)
    assert np.isnan(f1_and_accuracy(labels[:0], probabilities[:0])).all()
