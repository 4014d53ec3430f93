"""Kept notebooks: a run leaves one, is made again, and a difference is found."""

import json
import re
from types import SimpleNamespace

import full
import keep
import pytest
import torch
from reports import kept

from cflkit.reproduce import notebooks, records
from cflkit.reproduce.records import PROJECT

LESSON = PROJECT / "notebooks" / "08b_tutorial_022_controls.ipynb"
SMALL = {"rounds": "3", "warm_up": "1", "clients": "6", "only": "[FedAvg, Oracle]"}


def cells_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: cell for cell in cells}


def outcome(path):
    return "".join(cells_of(path)["its-outcome"]["outputs"][0]["text"])


@pytest.mark.slow
def test_a_run_is_kept_and_executed_again_and_a_difference_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "RUNS", tmp_path)
    path = keep.run(LESSON, SMALL, None, record_only=True)
    assert [*records.results().glob("*/notebook.ipynb")] == [path]
    [one] = keep.listed(path.parent)
    assert (one.path, one.device) == (path, "cpu") and one.minutes > 0 and one.memory_gib > 0
    cells = cells_of(path)
    assert "rounds = 3" in "".join(cells["injected-parameters"]["source"])
    code = [cell for cell in cells.values() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in o.get("data", {}) for o in cells["its-figure"]["outputs"])
    assert "Oracle: n_clusters 3, clustering_round 1, ari 1.00" in outcome(path)
    assert not keep.again(one)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("clustering_round 1, ari 1.00", "clustering_round 2, ari 1.00"))
    assert keep.again(one)


def test_scores_are_compared_within_the_tolerance():
    assert kept.against({"accuracy": 0.50, "k": 3}, {"accuracy": 0.51}).startswith("scores as")
    assert kept.against({"accuracy": 0.50}, {"accuracy": 0.53}) == "not as recorded: accuracy"
    assert kept.against({"accuracy": 0.50}, {"accuracy": None}) == "not as recorded: accuracy"
    assert kept.against({}, {"accuracy": 0.5}) == "no scores are recorded"


def test_what_does_not_fit_a_machine_is_said(tmp_path):
    here = {"minutes": 30, "memory_gib": 8, "cores": 2, "cuda": False}
    long, large, gpu = (("cpu", 61, 1), ("cpu", 1, 9), ("NVIDIA H100", 1, 1))
    told = [
        full.hindrance(keep.Kept(tmp_path, minutes, gib, device), **here)
        for device, minutes, gib in (("cpu", 60, 8), long, large, gpu)
    ]
    assert told == ["", "it takes more than 30 minutes", "8.0 GiB are free", "it needs a GPU"]


def test_committed_notebooks_are_of_committed_records_and_came_out_as_recorded():
    every = keep.listed()
    assert every
    for one in every:
        text = one.path.read_text(encoding="utf-8")
        assert len(text.encode()) <= keep.LARGEST, one.path.name
        assert (PROJECT / "data" / "results" / one.path.stem / "record.json").exists()
        lines = outcome(one.path).splitlines()
        assert all("scores as recorded" in line for line in lines), one.path.name
        assert not re.search(r"/(home|root|work|tmp|Users)/", text), one.path.name


def test_explanations_which_have_one_round_are_kept_without_a_figure(capsys):
    name = "explanations-mnist-overlapping-imbalanced-m15-seed2-3d6abe84"
    record = records.read(PROJECT / "data" / "results" / name)
    kept.draw(record, SimpleNamespace(clusters=torch.zeros(15)), 1)
    assert "minutes of one core" in capsys.readouterr().out
