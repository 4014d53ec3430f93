"""Claims of lessons: stated, read back, and counted over seeds."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
import robust
import torch
from rounds import first_jobs, notebook

from cflkit import methods
from cflkit._project import KIT
from cflkit.federation import Jobs, LocalTraining, machine
from cflkit.reproduce import claims, notebooks, perturbation, run_messages
from cflkit.reproduce.parameters import ParameterError
from cflkit.simulation.checkpoints import fingerprint

# A lesson that trains nothing
LESSON = """
from cflkit.reproduce import claims
claims.check("lesson", {"the seed is even": seed % 2 == 0, "it is true": True})
"""


@pytest.fixture
def lesson(tmp_path):
    """A notebook with a seed and claims."""
    parameters = "seed = 0  # what decides\nextra = 0"
    return notebook(tmp_path, (parameters, "parameters"), (LESSON, "claims"), name="lesson")


def folder(lesson, **given):
    """Return where the claims of finished runs are kept."""
    return robust.Measurement(notebooks.read_notebook(lesson), given).folder


@pytest.mark.slow
def test_claims_are_counted_over_seeds_and_only_what_is_missing_runs_again(
    lesson, tmp_path, capsys
):
    table = tmp_path / "table.csv"
    robust.write_counts([dict.fromkeys(robust.COLUMNS, "x") | {"setting": "default"}], table)
    command = [str(lesson), "--seeds", "2", "-p", "extra", "1", "-o", str(table)]
    robust.count(command, standalone_mode=False)
    assert "held in 1 of 2  the seed is even  (not with seed 1)" in capsys.readouterr().out
    first = {"claim": "the seed is even", "runs": "2", "held": "1", "failed_seeds": "1"}
    second = {"claim": "it is true", "runs": "2", "held": "2", "failed_seeds": ""}
    rows = robust.counts_in(table)
    assert [row["notebook"] for row in rows] == ["lesson", "lesson", "x"]
    for row, expected in zip(rows, (first, second), strict=False):
        assert row.items() >= (expected | {"given": "extra=1", "seeds": "0-1"}).items()
    kept = folder(lesson, extra=1)
    assert sorted(path.name for path in kept.glob("[!.]*")) == ["0.json", "1.json"]
    # What is kept is not run again: an altered file shows in the counts, in the rows' place
    (kept / "1.json").write_text(json.dumps({"the seed is even": True, "it is true": True}))
    robust.count(command, standalone_mode=False)
    assert [row["held"] for row in robust.counts_in(table)] == ["2", "2", "x"]
    # Changed code is measured anew
    longer = nbformat.read(lesson, as_version=4)
    longer.cells[1].source += "\npass"
    nbformat.write(longer, lesson)
    assert folder(lesson, extra=1) != kept


@pytest.mark.parametrize("setting", ["stacked", "perturbed"])
def test_engine_and_perturbation_are_settings_of_their_own(lesson, setting):
    own = robust.Measurement(notebooks.read_notebook(lesson), {}, setting)
    assert own.folder != folder(lesson)
    assert notebooks.read_notebook(own.copy(7)).code == [
        robust.first_cell(setting, 8),
        *own.lesson.code,
    ]


def test_another_engine_wins_over_the_one_that_a_lesson_names(federate, monkeypatch):
    monkeypatch.setattr(machine, "engine_to_use", machine.engine_to_use)
    exec(robust.first_cell("stacked", 1), {})
    assert (federate().engine, federate(engine="threads").engine) == ("stacked", "stacked")
    with pytest.raises(ValueError, match="'stacked' is this federation's: count with another one"):
        federate(engine="stacked")


@pytest.mark.parametrize("words", [["-p", "sed", "1"], ["-p", "seed", "5"], ["-o", "x"]])
def test_mistakes_are_told_before_anything_runs(lesson, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(robust.subprocess, "run", None)
    Path("x").write_text("another,table\n1,2\n")
    with pytest.raises(ParameterError):
        robust.count([str(lesson), *words], standalone_mode=False)


def test_a_run_that_fails_or_has_no_claims_is_refused_and_the_others_are_kept(lesson, monkeypatch):
    executed = nbformat.read(lesson, as_version=4)
    told = nbformat.v4.new_output("display_data", {claims.MIME: [["it holds", True]]})
    executed.cells[1].outputs.append(told)

    def run(command, **options):
        """Pretend to run: only the first lesson has outputs."""
        output = Path(command[command.index("-o") + 1])
        seed = int(output.parent.stem)
        nbformat.write(executed, output) if seed == 0 else shutil.copy(lesson, output)
        return subprocess.CompletedProcess(command, seed // 2, stderr="a warning\nno memory\n")

    monkeypatch.setattr(robust.subprocess, "run", run)
    failed = r"lesson failed with seed 1: .* no claims in its outputs; seed 2: no memory$"
    with pytest.raises(notebooks.NotebookError, match=failed):
        robust.count([str(lesson), "--seeds", "3"], standalone_mode=False)
    kept = sorted(path.name for path in folder(lesson).glob("[!.]*"))
    assert kept == ["0.json", "1.work", "2.work"]


def test_a_claim_says_how_often_it_held(tmp_path, monkeypatch):
    table, shown = tmp_path / "table.csv", []
    row = dict.fromkeys(robust.COLUMNS, "") | {"notebook": "lesson", "setting": "default"}
    row |= {"claim": "the seed is even", "runs": 2, "held": 1, "seeds": "0-1", "given": "extra=1"}
    robust.write_counts([row], table)
    monkeypatch.setattr(claims, "TABLE", table)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    claims.check("lesson", {"the seed is even": False, "new": True})
    assert dict(shown[0][claims.MIME]) == {"the seed is even": False, "new": True}
    assert shown[0]["text/plain"].splitlines() == [
        "FALSE  the seed is even",
        "       held in 1 of 2 seeds (extra = 1)",
        "true   new",
        "       not counted yet",
    ]


def test_a_report_is_what_tagged_cells_print_and_all_claims(lesson, tmp_path, monkeypatch):
    def cell(*outputs, tags=()):
        return nbformat.v4.new_code_cell(outputs=list(outputs), metadata={"tags": list(tags)})

    printed = nbformat.v4.new_output("stream", name="stdout", text="3 clusters\n")
    data = {claims.MIME: [["it holds", True]], "text/plain": "true   it holds"}
    claimed = nbformat.v4.new_output("display_data", data)
    cells = [cell(printed), cell(printed, tags=["report"]), cell(claimed, tags=["claims"])]
    executed, output = nbformat.v4.new_notebook(cells=cells), tmp_path / "out.ipynb"
    monkeypatch.setattr(notebooks, "run_cells", lambda *_: executed)
    report = notebooks.execute(notebooks.read_notebook(lesson), {"seed": 3}, output)
    expected = f"3 clusters\n\ntrue   it holds\n\n{run_messages.COUNTS}\nnotebook  {output}"
    assert report == expected


# --- The perturbation ----------------------------------------------------------------------------


def trained(federation):
    return federation.train(first_jobs(federation), round=0)


@pytest.fixture
def perturb(unperturbed):
    """Set the perturbation of all federations as the first cell of a lesson does."""
    return lambda seed: exec(robust.first_cell("perturbed", seed), {})


@pytest.mark.slow
def test_a_perturbation_is_of_the_last_bit_and_the_same_each_time(federate, perturb):
    training = LocalTraining(epochs=1, batch_size=16, lr=0.1)
    plain = trained(federate(training=training))
    perturb(1)
    first, second = (trained(federate(training=training)) for _ in range(2))
    assert torch.equal(first, second)
    changed = plain != federate(training=training).initial()  # not the weights of empty pixels
    assert 0.6 < (first != plain)[changed].float().mean() < 0.7  # a third stays
    assert torch.equal(first[~changed], plain[~changed])
    up, down = (torch.nextafter(plain, plain + sign) for sign in (1, -1))
    assert ((first == plain) | (first == up) | (first == down)).all()
    line = {"FedAvg": methods.make("fedavg")}
    identity = fingerprint(line, federate(), "")
    perturb(2)
    assert fingerprint(line, federate(), "") != identity
    assert not torch.equal(first, trained(federate(training=training)))
    assert [hook.perturbation for hook in federate().after_training] == [2]


def test_buffers_are_not_perturbed(federate, normalised, perturb):
    federation = federate(model=normalised)
    plain = trained(federation)
    perturb(1)
    perturbed, counters = trained(federation), slice(federation.parameters, None)
    assert torch.equal(perturbed[:, counters], plain[:, counters])
    assert not torch.equal(perturbed, plain)


def test_seeds_clients_and_rounds_change_perturbations():
    jobs = Jobs(torch.zeros(1, 400), torch.zeros(2, dtype=torch.int64), torch.arange(2))

    def perturbed(round, seed):
        rows = torch.ones(2, 400)
        perturbation.Perturbation(seed)(rows, jobs, round, True)
        return [tuple(row.tolist()) for row in rows]

    found = {row for round, seed in ((0, 0), (1, 0), (0, 1)) for row in perturbed(round, seed)}
    assert len(found) == 6


def test_counts_that_lessons_write_out_are_those_of_their_claims():
    """As in "18 of twenty other draws": the number is that of a claim which was counted."""
    for path in sorted((KIT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        typed = re.findall(r"\b(\d+) of twenty", notebooks.read_notebook(path).prose)
        known = (path.stem, "default")
        rows = [row for row in claims.counts() if (row["notebook"], row["setting"]) == known]
        assert set(typed) <= {row["held"] for row in rows if row["runs"] == "20"}, path.name
