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
from sklearn.metrics import accuracy_score, f1_score

from cflkit import _project, methods, metrics, partition, simulation
from cflkit.federation import (
    Ask,
    Diverged,
    Federation,
    Jobs,
    LocalTraining,
    Losses,
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
    """It is measured where it is asked for, and a round with one client has none."""
    presence = torch.ones(3, 6, dtype=torch.bool)
    presence[1, 1:] = False
    lines = {name: methods.make("fedavg", weighting="equal") for name in ("watched", "other")}
    lines["OCFL"] = methods.make("ocfl-open", window=9)  # which never fires
    history = run(lines, federate().with_presence(presence), 3, temperature_of=["watched"])
    table = history.table().set_index(["method", "round"])["temperature"]
    assert table["watched"].notna().tolist() == [True, False, True]
    pd.testing.assert_series_equal(table["watched"], table["OCFL"], check_exact=True)
    assert table["other"].isna().all()
    assert torch.equal(lines["watched"].models, lines["other"].models)
    with pytest.raises(ValueError, match=r"temperature_of names \['none'\]"):
        run(lines, federate(), 1, temperature_of=["none"])


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3])
def test_an_ended_run_goes_on_to_the_same_history(federate, played, tmp_path, after):
    """The checkpoint is kept until a record holds the result, and nothing is trained again."""
    checkpoint, federation, rounds_trained = tmp_path / "run.pt", federate(), []
    expected = played.history.table().to_csv()
    run(line_up(), federation, after, checkpoint=checkpoint)
    train = federation.train
    federation.train = lambda jobs, round, **options: (
        rounds_trained.append(round) or train(jobs, round, **options)
    )
    for _ in range(2):
        history = run(line_up(), federation, rounds=5, checkpoint=checkpoint)
        assert rounds_trained == list(range(after, 5))
        assert history.table().to_csv() == expected
        assert list(tmp_path.iterdir()) == [checkpoint]


@pytest.mark.slow
def test_a_checkpoint_of_another_run_or_code_or_a_damaged_one_is_refused(
    federate, tmp_path, monkeypatch
):
    checkpoint, federation = tmp_path / "run.pt", federate()
    run({"KM": methods.make("ocfl", clusterer="kmeans")}, federation, 2, checkpoint=checkpoint)
    other = {"KM": methods.make("ocfl", clusterer="kmeans", window=2)}
    with pytest.raises(CheckpointMismatch, match="delete it to start anew"):
        run(other, federation, 2, checkpoint=checkpoint)
    same = {"KM": methods.make("ocfl", clusterer="kmeans")}
    with pytest.raises(CheckpointMismatch, match="or more rounds"):
        run(same, federation, 1, checkpoint=checkpoint)
    for options in ({"central_every": 2}, {"until_settled": True}):
        with pytest.raises(CheckpointMismatch):
            run(same, federation, 2, checkpoint=checkpoint, **options)
    for where, name, value in (
        (checkpoints, "digest_of_code", lambda *modules: "another"),
        (checkpoints.torch, "__version__", "9.9"),
    ):
        refused = pytest.raises(CheckpointMismatch, match="made by other code or another torch")
        with monkeypatch.context() as changed, refused:
            changed.setattr(where, name, value)
            run(same, federation, 3, checkpoint=checkpoint)
    whole = checkpoint.read_bytes()
    flipped = [
        whole[:n] + bytes([whole[n] ^ 64]) + whole[n + 1 :]
        for n in range(0, len(whole), len(whole) // 20)
    ]
    for damaged in (b"", whole[:1000], whole.replace(b"identity", 8 * b"\xff"), *flipped):
        checkpoint.write_bytes(damaged)
        with pytest.raises(CheckpointMismatch, match="is damaged; delete it"):
            run(same, federation, 2, checkpoint=checkpoint)
    torch.save({"something": "else"}, checkpoint)
    with pytest.raises(CheckpointMismatch, match="is not a checkpoint of this version"):
        run(same, federation, 2, checkpoint=checkpoint)
    checkpoint.unlink()
    os.mkfifo(checkpoint)
    for using in (
        lambda: checkpoints.load(checkpoint, "", "", 1, torch.device("cpu")),
        lambda: checkpoints.save(checkpoint, "", "", {}),
    ):
        with pytest.raises(OSError, match="no regular file"):
            using()


@pytest.mark.parametrize(
    "options",
    [
        *({"engine": "stacked"}, {"clients_per_round": 2}, {"seed": 1}),
        {"training": LocalTraining(epochs=2, batch_size=16, lr=0.1, precision="bfloat16")},
        {"training": LocalTraining(epochs=7, batch_size=16, lr=0.1)},
        {"files": {"mine.npz": "the MD5 of other pixels"}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_checkpoint_belongs_to_a_way_of_training_and_to_its_data(federate, options):
    files, line = options.pop("files", {}), {"FedAvg": methods.make("fedavg")}
    usual, same, other = federate(), federate(), federate(**options)
    other.data.files = usual.data.files | files
    usual, same, other = (fingerprint(line, each, "") for each in (usual, same, other))
    assert usual == same != other


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


def test_the_minutes_are_those_of_all_rounds(federate, monkeypatch):
    ticks = iter(range(0, 6000, 60))
    monkeypatch.setattr(loop, "perf_counter", lambda: next(ticks))
    history = run({"FedAvg": methods.make("fedavg")}, federate("linear"), rounds=3)
    assert history.minutes == pytest.approx(3)


def test_an_interruption_does_not_hide_the_largest_memory(federate, tmp_path, monkeypatch):
    options = {"checkpoint": tmp_path / "run.pt"}
    for rounds, memory in ((1, 9.0), (2, 3.0)):
        monkeypatch.setattr(loop, "peak_memory", lambda device, memory=memory: memory)
        history = run({"FedAvg": methods.make("fedavg")}, federate("linear"), rounds, **options)
        assert history.peak_memory == 9


def test_the_progress_shows_the_number_of_clusters(federate):
    oracle = methods.make("oracle", truth=[0, 0, 1, 1, 2, 2])
    federation = federate("linear")
    run({"oracle": oracle}, federation, rounds=1)
    assert loop.found_by({"oracle": oracle}) == "clusters: oracle 3"


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
    modules = loop.modules_of({"mine": import_module("mine").Mine()}, federate("linear"))
    assert {"mine", "cflkit.simulation"} <= set(modules)
    known = _project.digest_of_code("mine")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("1", "2"))
    assert _project.digest_of_code.__wrapped__("mine") != known


@pytest.mark.slow
def test_numbers_of_numpy_do_not_spoil_a_checkpoint(federate, tmp_path):
    @dataclass
    class Noted(FedAvg):
        def aggregate(self, t, jobs, trained):
            super().aggregate(t, jobs, trained)
            self.scalars = {"norm": np.float64(1.5), "count": np.int64(t)}

    checkpoint = tmp_path / "run.pt"
    run({"noted": Noted()}, federate(), 2, checkpoint=checkpoint)
    history = run({"noted": Noted()}, federate(), 3, checkpoint=checkpoint)
    assert history.table()["count"].tolist() == [0, 1, 2]
    assert len(history.revisions) == 2


@pytest.mark.parametrize(
    "method, model, task",
    [
        (methods.make("fedavg"), "autoencoder", "reconstruction"),
        (methods.make("fedcref", start=()), "linear", "classification"),
    ],
)
def test_a_method_for_another_task_is_refused_before_the_training(federate, method, model, task):
    message = (
        rf"mine is made for {method.task}, .* task {task}: give it a network for {method.task}"
    )
    with pytest.raises(ValueError, match=message):
        run({"mine": method}, federate(model), rounds=1)


def test_a_diverged_run_says_where(federate):
    wild = LocalTraining(epochs=1, batch_size=16, lr=1e12)
    with pytest.raises(Diverged, match=r"diverged in round \d+: .*lower the learning rate"):
        run({"FedAvg": methods.make("fedavg")}, federate(training=wild), rounds=5)


@dataclass
class Wild(FedAvg):
    """A method that diverges in the round with index 1."""

    def broadcast(self, t):
        jobs = super().broadcast(t)
        return Jobs(jobs.models * (1e30 if t == 1 else 1), jobs.model_of, jobs.client_of)


@pytest.mark.slow
def test_who_diverges_leaves_and_the_others_go_on(federate, played, tmp_path):
    """The others have the same results as without the method that left."""
    checkpoint = tmp_path / "run.pt"
    line = {"wild": Wild(), **line_up()}
    history = run(line, federate(), rounds=3, checkpoint=checkpoint)
    table = history.table()
    left = table[table["method"] == "wild"]
    assert left["round"].tolist() == [1, 2]
    assert left["diverged"].isna().tolist() == [True, False]
    assert left["pf1"].isna().tolist() == [False, True]
    alone = played.history.table().query("round <= 3").reset_index(drop=True)
    others = table[table["method"] != "wild"][alone.columns].reset_index(drop=True)
    assert others.to_csv() == alone.to_csv()
    assert history.summary()["wild"] == {"diverged_in": 2}
    again = run({"wild": Wild(), **line_up()}, federate(), rounds=3, checkpoint=checkpoint)
    assert again.table().to_csv() == table.to_csv()


def test_models_that_the_server_breaks_are_not_scored(federate):
    """The clients' models are finite, and the step of the server is too large."""

    def broken():
        method = methods.make("fedopt", optimizer="sgd")
        method.lr = 1e300  # more than the option takes
        return method

    line = {"broken": broken(), "FedAvg": methods.make("fedavg")}
    history = run(line, federate("linear"), rounds=2)
    [row] = [row for row in history.rows if row["method"] == "broken"]
    assert row == {"method": "broken", "round": 1, "diverged": True}
    assert history.summary()["broken"] == {"diverged_in": 1}
    assert history.table().query("method == 'FedAvg'")["round"].tolist() == [1, 2]
    with pytest.raises(Diverged, match=r"diverged in round 1: the models on the server are no"):
        run({"broken": broken()}, federate("linear"), rounds=1)


@dataclass
class PartlyWild(FedAvg):
    """A method of which one client diverges."""

    def broadcast(self, t):
        jobs = super().broadcast(t)
        models = torch.cat([jobs.models, jobs.models * 1e30])
        return Jobs(models, (jobs.client_of == 2).long(), jobs.client_of)


@pytest.mark.slow
def test_one_broken_client_ends_a_method(federate):
    line = {"partly": PartlyWild(), "FedAvg": methods.make("fedavg")}
    table = run(line, federate(), rounds=2).table()
    assert table.query("method == 'partly'")["diverged"].tolist() == [True]
    assert table.query("method == 'FedAvg'")["round"].tolist() == [1, 2]


@pytest.mark.slow
def test_a_run_in_which_everybody_diverged_is_an_error(federate):
    with pytest.raises(Diverged, match=r"diverged in round 2: .*clients \[0, 1, 2, 3, 4, 5\]"):
        run({"one": Wild(), "other": Wild(weighting="equal")}, federate(), rounds=5)


def test_methods_that_left_before_do_not_hide_that_the_last_one_diverged(federate):
    """The run goes on from a history in which another method has diverged."""
    one = methods.make("fedavg")
    before = run({"one": one, "left": Wild()}, federate(), rounds=2)
    one.models = one.models * 1e30
    with pytest.raises(Diverged, match="diverged in round 3"):
        run({"one": one}, federate(), rounds=6, after=before)


def test_methods_meet_at_their_trainings_though_one_asks_before(federate_turned):
    line = {"FedAvg": methods.make("fedavg"), "PACFL": methods.make("pacfl", angle=180.0)}
    history = run(line, federate_turned(), rounds=1)
    assert (history.requested, history.trained) == (12, 6)


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
        trained = yield Train(jobs)
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


@dataclass
class Forgetful(FedAvg):
    """A method that asks for each training twice."""

    def round(self, t):
        jobs = self.broadcast(t)
        yield Train(jobs)
        trained = yield Train(jobs)
        self.aggregate(t, jobs, trained)


@pytest.mark.slow
def test_clients_report_a_training_once(federate):
    federation = federate()
    history = run({"forgetful": Forgetful()}, federation, rounds=1)
    model = 4 * federation.parameters
    assert bytes_of(history, "forgetful") == [(6 * model, 6 * model)]
    assert history.table()["trainings"].tolist() == [6]


def test_an_anchor_is_a_second_model_to_send(federate):
    """From the second round, clients of SCAFFOLD receive a control variate, too."""
    federation = federate("linear")
    history = run({"Scaffold": methods.make("scaffold")}, federation, rounds=2)
    model = 4 * federation.parameters
    assert bytes_of(history, "Scaffold")[1] == (12 * model, 6 * model)


@pytest.mark.slow
def test_requests_of_several_methods_are_answered_once(federate):
    asked = []

    def question(client, model):
        asked.append(client.number)
        return torch.zeros(2)

    @dataclass
    class Asking(FedAvg):
        def round(self, t):
            yield Ask(self.broadcast(t), question=question)
            yield from super().round(t)

    history = run({"one": Asking(), "other": Asking()}, federate(), rounds=2)
    assert sorted(asked) == sorted([*range(6)] * 2)
    assert history.trained == 12


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
    received = Jobs(line["fedavg"].models, torch.zeros(6, dtype=torch.int64), torch.arange(6))
    assert torch.equal(line["fedavg-ft"].models, line["fedavg"].models)
    assert torch.equal(line["fedavg-ft"].personal, federation.train(received, 3))


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
    summary = history.summary()
    assert summary["FedAvg"]["clustering_round"] is None
    assert summary["oracle"]["clustering_round"] == 1
    assert summary["KM"]["mean_pf1"] == pytest.approx(
        np.mean([row["pf1"] for row in history.rows if row["method"] == "KM"])
    )


def test_measures_are_means_over_clients_and_the_worst_is_the_smallest():
    mixtures = first, second, third = [((bytes([client]), 1.0),) for client in range(3)]
    own = {(first, 0): (0.9, 0.8), (second, 1): (0.1, 0.2), (third, 2): (0.5, 0.5)}
    on_backdoor = {(first, 0): (0.3, 0.7), (second, 1): (0.2, 0.6)}
    central = {(first, 0): (0.5, 0.4), (second, 0): (0.5, 0.6), (third, 0): (0.2, 0.2)}
    assert evaluation.performance(mixtures, own, on_backdoor, central) == pytest.approx(
        {
            "pf1": 0.5,
            "gf1": 0.4,
            "learning_gap": (0.4 + 0.4 + 0.3) / 3,
            "accuracy": 0.5,
            "worst_accuracy": 0.2,
            "central_accuracy": 0.4,
            # Of the two clients that the backdoor is for
            "clean_accuracy": 0.5,
            "backdoor_accuracy": 0.65,
        }
    )


@pytest.mark.slow
def test_the_central_test_set_is_met_every_so_many_rounds_and_last(federate, played):
    every = played.history.table()
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
    with pytest.raises(ValueError, match="there are no rounds after which to go on"):
        run(line_up(), federate(), 2, after=History())


def test_without_any_test_samples_only_clusters_can_be_measured(small, split):
    """All else is refused before the training."""
    untested = dataclasses.replace(split, test=[part[:0] for part in split.test])
    federation = Federation(small, untested, "linear", LocalTraining(epochs=1), device="cpu")
    history = run({"OCFL": methods.make("ocfl")}, federation, 2, until_settled=True)
    assert history.table()["ari"].notna().all()
    federation.train = None  # must not be called
    with pytest.raises(ValueError, match="no client has test samples"):
        run({"FedAvg": methods.make("fedavg")}, federation, 1)


@pytest.mark.slow
def test_methods_go_on_where_clients_have_other_data(federate, small):
    _, other = partition.iid(small, clients=6, draws=40, seed=1)
    first_home = federate()
    assert other.clients == first_home.clients
    second_home = Federation(small, other, "perceptron", first_home.training, device="cpu")
    line_up = {"FedAvg": methods.make("fedavg")}
    first = run(line_up, first_home, 1)
    model = line_up["FedAvg"].models.clone()
    both = run(line_up, second_home, 2, after=first)
    assert both.table()["round"].tolist() == [1, 2]
    assert len(both.revisions) == 1, "nothing was interrupted"
    jobs = Jobs(model, torch.zeros(other.clients).long(), torch.arange(other.clients))
    mean = second_home.train(jobs, 1).mul((second_home.sizes / second_home.sizes.sum())[:, None])
    torch.testing.assert_close(line_up["FedAvg"].models[0], mean.sum(dim=0))


def test_a_checkpoint_belongs_to_the_rounds_after_which_it_began(federate):
    before = (None, *(History(rows=[{"round": 1, "pf1": pf1}]) for pf1 in (0.1, 0.2)))
    keepers = [Keeper("run.pt", {}, federate("linear"), "a plan", after, []) for after in before]
    assert len({keeper.identity for keeper in keepers}) == 3


@pytest.mark.slow
def test_scores_of_clients_are_those_behind_the_means(federate):
    """Mixtures of FedEM predict as the mean of their models' probabilities."""
    federation, lines = federate(), {"FedEM": methods.make("fedem", k=2)}
    [*_, last] = run(lines, federation, 2).table().to_dict("records")
    f1, accuracy = evaluation.client_scores(lines["FedEM"], federation).T
    assert (f1.mean(), accuracy.mean()) == pytest.approx((last["pf1"], last["accuracy"]))
    assert accuracy.min() == pytest.approx(last["worst_accuracy"])
    lines["FedEM"].shares = torch.tensor([[0.95, 0.05], [0.05, 0.95], [0.5, 0.5]]).repeat(2, 1)
    models, mixture = lines["FedEM"].client_models()
    for client, shares in enumerate(mixture):
        answers = federation.predict(Jobs(models, torch.arange(2), torch.tensor([client] * 2)))
        mean = sum(w * p for w, p in zip(shares, answers, strict=True))
        own = by_sklearn(federation.targets(client), mean)
        assert evaluation.client_scores(lines["FedEM"], federation)[client] == pytest.approx(own)


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


def test_what_a_method_needs_from_the_start_it_needs_where_it_goes_on(federate, small, split):
    line_up = {"Scaffold": methods.make("scaffold")}
    first = run(line_up, federate(), 1)
    with pytest.raises(ValueError, match="defined for local training by sgd"):
        run(line_up, federate(training=LocalTraining(optimizer="adam", lr=0.01)), 2, after=first)
    validated = dataclasses.replace(split, more={"validation": split.test})
    home = Federation(small, validated, "linear", LocalTraining(epochs=1), device="cpu")
    line_up = {"IFCA": methods.make("ifca", chosen_by="validation")}
    first = run(line_up, home, 1)
    with pytest.raises(ValueError, match="needs 1 or more validation samples of each client"):
        run(line_up, federate("linear"), 2, after=first)


def by_sklearn(labels, probabilities):
    predicted = probabilities.argmax(dim=1)
    return (
        f1_score(labels, predicted, average="macro", zero_division=0),
        accuracy_score(labels, predicted),
    )


@given(
    st.integers(2, 6).flatmap(
        lambda k: st.tuples(
            st.just(k),
            st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), min_size=1),
        )
    )
)
def test_scores_are_those_of_scikit_learn(case):
    """This holds whatever classes are absent from the labels, the predictions or both."""
    classes, pairs = case
    labels, predicted = torch.tensor(pairs).T
    probabilities = torch.eye(classes)[predicted]
    expected = by_sklearn(labels, probabilities)
    assert f1_and_accuracy(labels, probabilities) == pytest.approx(expected)
    assert np.isnan(f1_and_accuracy(labels[:0], probabilities[:0])).all()


def test_agreement_of_the_unclustered_and_the_true():
    truth = [0, 0, 1, 1, 2, 2]
    assert metrics.agreement(truth, [5, 5, 3, 3, 4, 4]) == pytest.approx(
        {"ari": 1, "ami": 1, "homogeneity": 1, "completeness": 1}
    )
    together = metrics.agreement(truth, [0] * 6)
    assert (together["ari"], together["homogeneity"], together["completeness"]) == (0, 0, 1)


def test_a_system_without_the_largest_memory_tells_the_present_one(monkeypatch):
    text = "Name:\tpython\nVmRSS:\t1024 kB\n"
    monkeypatch.setattr(loop.Path, "exists", lambda self: True)
    monkeypatch.setattr(loop.Path, "read_text", lambda self, **options: text)
    assert loop.peak_memory(torch.device("cpu")) > 0


def test_methods_that_left_early_cannot_go_on_beside_the_others(federate):
    line_up = {"FedAvg": methods.make("fedavg"), "OCFL": methods.make("ocfl", clusterer="kmeans")}
    first = run(line_up, federate("linear"), 3, until_settled=True)
    with pytest.raises(ValueError, match=r"\['FedAvg'\] have fewer rounds"):
        run(line_up, federate("linear"), 6, after=first)


@dataclass
class Keeping(FedAvg):
    """A method that keeps what no file can give back without unpickling."""

    def setup(self, server, initial):
        super().setup(server, initial)
        self.usual = server.training


def test_what_a_checkpoint_could_not_give_back_is_refused(federate, tmp_path):
    with pytest.raises(ValueError, match="cannot keep a LocalTraining"):
        run({"mine": Keeping()}, federate("linear"), 1, checkpoint=tmp_path / "run.pt")


def test_a_temperature_is_of_what_the_server_gets(federate):
    line_up = {"FedAvg": methods.make("fedavg"), "FT": methods.make("fedavg-ft")}
    table = run(line_up, federate("linear"), 2, temperature_of=[*line_up]).table()
    heats = table.set_index(["method", "round"])["temperature"]
    assert heats["FedAvg"].tolist() == heats["FT"].tolist()


def test_the_code_of_a_watched_method_counts(federate):
    line_up = mixing.watched({"OCFL": methods.make("ocfl")})
    assert "cflkit.methods.ocfl" in loop.modules_of(line_up, federate("linear"))
