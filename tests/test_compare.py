"""A stranger's method on the map: it meets what others met, and its tables say what is measured."""

import numpy as np
import pandas as pd
import pytest

from cflkit import compare, methods
from cflkit.compare import situations
from cflkit.methods.fedavg import FedAvg

TABLE = compare.table(compare.TABLE)
# A method of somebody else, in a file of its own
FILE = """
from pydantic.dataclasses import dataclass
from cflkit.methods.fedavg import FedAvg

@dataclass
class {name}(FedAvg):
    weighting: str = "equal"
    {option}
"""


def test_a_method_meets_the_clients_that_the_committed_ones_met(tmp_path, monkeypatch):
    path, output = tmp_path / "mine.py", tmp_path / "results.csv"
    path.write_text(FILE.format(name="Mine", option=""))
    monkeypatch.setattr(compare, "places", lambda: [("images", 5), ("alone", ""), ("k", 2)])
    monkeypatch.setattr(compare, "SEEDS", (0, 2))
    own = compare.results(path, output, progress=(lines := []).append)
    assert lines[1].startswith("2 of 4: alone, seed 0: accuracy 0.")
    met = [[*place, seed] for seed in "02" for place in (("images", "5"), ("alone", ""))]
    assert own[compare.PLACE].values.tolist() == met, "nobody told it k"
    assert {*own["told"]} == {"nothing"}
    fedavg = TABLE[TABLE["method"] == "FedAvg"].set_index(compare.PLACE)["accuracy"].astype(float)
    for row in own.itertuples():
        assert row.accuracy == pytest.approx(fedavg[row.situation, row.value, row.seed], abs=0.02)
        assert row.trainings == 6 * (12 if row.situation == "images" else 10)
    [kept] = tmp_path.glob("results-*.csv")
    before = kept.read_bytes()
    compare.results(path, output, progress=pytest.fail)
    assert kept.read_bytes() == before, "what is there is not run again"
    path.write_text(FILE.format(name="Other", option=""))
    monkeypatch.setattr(compare, "places", lambda: [("alone", "")])
    other = compare.results(path, output, progress=lambda line: None)
    assert set(other["method"]) == {"Other"}, "an edited method is run again"
    assert kept.read_bytes() == before


def test_the_tables_say_what_was_measured(tmp_path, printed):
    mine = TABLE[TABLE["method"] == "Oracle"].copy()
    mine["accuracy"] = (mine["accuracy"].astype(float) - 0.001).clip(0)
    behind = {"worse_than_local": 0.25, "most_behind_local": 0.051}
    mine.assign(method="Mine", **behind).to_csv(tmp_path / "mine.csv", index=False)
    folder = tmp_path / "out"
    told = printed("compare", tmp_path / "mine.csv", "-o", folder)
    own = compare.results(tmp_path / "mine.csv", folder / "results.csv")
    rows = compare.summary(own).set_index("situation")
    assert {*rows["worse than alone"]} == {"25 % (5.1)"}
    scores = TABLE.assign(accuracy=100 * TABLE["accuracy"].astype(float))
    for place in rows.index:
        here = (scores["situation"] + " " + scores["value"]).str.strip() == place
        means = scores[here].groupby("method")["accuracy"].mean()
        better = (means > means["Oracle"] - 0.1 + 1e-9).sum()
        assert rows.loc[place, "place"] == f"{better + 1} of {len(means) + 1}"
        by_seed = scores[here].pivot(index="seed", columns="method", values="accuracy")
        gains = by_seed["Oracle"] - 0.1 - by_seed[compare.PLAIN].max(axis=1)
        assert rows.loc[place, "gain"] == f"{gains.mean():+z.1f}"
        assert (rows.loc[place, "breaks"] == "breaks") == bool((gains < 0).all())
        assert place in told
    assert (folder / "compare.md").read_text().count("\n") == len(rows) + 2
    assert (folder / "compare.tex").read_text().count(r"\\") == len(rows) + 1
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")


HEAD = b"situation,value,seed,method,accuracy\n"
TWO = FILE.format(name="A", option="") + FILE.format(name="B", option="")


REFUSED = [
    ("mine.py", b"x = 1", "one class"),
    ("mine.py", TWO.encode(), "A, B"),
    ("mine.py", FILE.format(name="C", option="").replace("@", "# ").encode(), "a @dataclass"),
    ("mine.xlsx", HEAD, "neither a Python"),
    ("mine.csv", b"situation,value\nbase,", "lacks the columns accuracy"),
    ("mine.csv", HEAD + b"nowhere,,0,Mine,0.5\n", "nowhere"),
    ("mine.csv", HEAD + 2 * b"base,,0,Mine,1\n", "one row"),
    ("MINE.CSV", HEAD + b"base,,0,Mine,87.5\n", "from 0 to 1"),
    ("mine.csv", HEAD + b"base,,0,Mine,\n", "from 0 to 1"),
    ("mine.csv", b"", "cannot be read as a table"),
    ("mine.csv", HEAD + b"base,,0,M\xfcller,0.5\n", "cannot be read as a table"),
    ("mine.csv", HEAD + b"base,,0,M,1\nbase,,1,M,1,7\n", "cannot be read as a table"),
]


@pytest.mark.parametrize("name, contents, reason", REFUSED)
def test_what_is_no_method_and_no_table_is_refused(name, contents, reason, tmp_path, refuse):
    (tmp_path / name).write_bytes(contents)
    assert reason in refuse("compare", tmp_path / name, "-o", tmp_path / "out")


def test_a_method_that_diverged_has_no_costs():
    mine = TABLE[(TABLE["method"] == "Oracle") & (TABLE["situation"] == "base")]
    rows = mine.assign(method="Mine", accuracy="0", trainings="", megabytes="")
    assert "nan" not in compare.markdown(compare.summary(rows))


def test_a_method_is_told_what_it_has_options_for(tmp_path):
    text = FILE.format(name="Told", option="k: int = 9")
    (tmp_path / "told.py").write_text(f"{text}\nOther = Told  # no second class\n")
    kind = compare.load(tmp_path / "told.py")
    assert compare.arguments(kind, situations.scene("k", 5, seed=0)) == {"k": 5}


@pytest.mark.slow
def test_it_says_which_clients_are_worse_off_and_by_how_much():
    idle = type("Idle", (FedAvg,), {"aggregate": lambda *_: None})  # it learns nothing
    base = situations.scene("base", "", 0)
    rows = compare.measure({"Idle": idle(), "Local": methods.make("local")}, base)
    idle, local = (pd.Series(rows[name]).astype(float) for name in ("Idle", "Local"))
    assert idle["worse_than_local"] == idle["worse_than_fine_tuned"] == 1
    assert idle["most_behind_local"] >= local["accuracy"] - idle["accuracy"]
    assert "worse_than_local" not in local and 0 < local["worse_than_fine_tuned"] < 1


def test_each_situation_changes_what_its_name_says():
    def scene(*place):
        return situations.scene(*place, seed=0)

    base, few, uneven = scene("base", ""), scene("five classes", 30), scene("6/3/2/1", "last")
    count = len(base.split.train[0])
    for value in ("1/r", "half"):
        assert scene("sizes", value).split.hash == situations.unequal(base.split, value).hash
    for share in (0.2, 0.4):
        differ = scene("labels wrong", share).images.labels != base.images.labels
        wrong = [float(differ[rows].float().mean()) for rows in base.split.train]
        assert wrong == pytest.approx([share] * 12, abs=0.01)
    assert few.rounds == 30
    assert max(len(few.images.labels[rows].unique()) for rows in few.split.train) <= 5
    assert (np.bincount(uneven.split.clusters).tolist(), uneven.affected) == ([6, 3, 2, 1], [11])
    [first, *_] = scene("between", "").split.train
    assert [np.isin(first, base.split.train[c]).sum() for c in (0, 11)] == [count / 2] * 2
    assert {*scene("IID", "").split.clusters} == {0} and scene("k", 5).k == 5
