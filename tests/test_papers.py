"""Tests that one file holds all that the kit knows about a paper."""

import json
import re
from typing import ClassVar

import nbformat
import pandas as pd
import pytest

from cflkit import methods
from cflkit.reproduce import grid, ledger, notebooks, papers, readme, records
from cflkit.reproduce.papers import PAPERS, emd_cfl, explanations, fedcref, lessons, ocfl, tutorial
from cflkit.reproduce.papers.base import (
    AS_PUBLISHED,
    SCORES,
    SEEDS,
    Paper,
    Results,
    at,
    given,
    mean,
    play_rounds,
)
from cflkit.reproduce.parameters import FederatedRun, ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import read_yaml

GENERIC = ("grid", "ledger", "notebooks", "parameters", "readme", "records", "papers/base")


def test_papers_are_known_by_their_names_notebooks_and_records():
    assert {paper.name for paper in PAPERS.values()} == set(PAPERS)
    for paper in PAPERS.values():
        assert (grid.PARAMS / paper.folder).is_dir()
        assert (grid.NOTEBOOKS / "src" / f"{paper.notebook}.py").exists()
        assert set(paper.scenario) <= set(paper.parameters.model_fields)
        assert papers.by_notebook(paper.notebook).folder == paper.folder
        assert papers.by_folder(paper.folder).parameters is paper.parameters
    assert papers.by_folder("nobodys") is None
    every = {path.stem for path in (grid.NOTEBOOKS / "src").glob("[0-9]*.py")}
    known = {paper.notebook for paper in PAPERS.values()} | set(lessons.LESSONS)
    assert every - {"99_glossary"} == known


@pytest.mark.parametrize("module", GENERIC)
def test_what_serves_all_papers_names_none(module):
    text = (PROJECT / "cflkit" / "reproduce" / f"{module}.py").read_text(encoding="utf-8")
    names = {*PAPERS, *(paper.folder for paper in PAPERS.values())} - {"explanations"}
    names |= {paper.notebook for paper in PAPERS.values()}
    names |= {paper.results.marker for paper in PAPERS.values() if paper.results} - {"results"}
    # A docstring may show a parameter file as an example
    code = re.sub(r'"""[\s\S]*?"""', "", text)
    assert not [name for name in names if re.search(rf"\b{name}\b", code)]


def test_every_committed_record_has_the_id_of_its_parameters():
    committed = records.committed()
    if not committed:
        pytest.skip("needs git, which knows the committed records")
    assert len(committed) >= 88
    for record in committed:
        run = papers.by_folder(record.paper).parameters.checked(record.parameters)
        assert records.run_id(run) == record.id
        assert run.model_dump() == record.parameters
        assert set(record.provenance) == set(committed[0].provenance)


SMALL = {"dataset": "digits-8x8"}

# --- Line-ups ------------------------------------------------------------------------------------

FEDAVG = "FedAvg(weighting='{}', watch_temperature=True)"
SATTLER = "Sattler(eps1=0.5, eps2=None, min_rounds={}, include_buffers={}, weighting='equal')"
BRIGGS = (
    "Briggs(rounds={}, threshold={}, metric='cosine', linkage='average', wrong_sign={}, "
    "include_buffers={}, weighting='equal')"
)
OCFL = (
    "OCFL(clusterer='{}', options={}, p=2, scale=None, strict=True, window=2, before=inf, "
    "include_buffers={}, weighting='equal')"
)
TRUTH = (0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2)
REFERENCES = {"oracle": f"Oracle(truth={TRUTH}, weighting='equal')", "local": "Local()"}


def ocfl_lines(sattler_rounds, briggs_rounds):
    """Return the methods of the OCFL papers."""
    return {
        "FedAvg": FEDAVG.format("equal"),
        "Sattler": SATTLER.format(sattler_rounds, False),
        "Briggs": BRIGGS.format(briggs_rounds, 0.95, False, False),
        "Briggs as published": BRIGGS.format(briggs_rounds, 0.05, True, False),
        "OCFL-KM": OCFL.format("kmeans", "{}", False),
        "OCFL-AFF": OCFL.format("affinity", "{}", False),
        "OCFL-AFF as published": OCFL.format("affinity", "{'wrong_sign': True}", False),
        "OCFL-MS": OCFL.format("meanshift", "{}", False),
        "OCFL-HDB": OCFL.format("hdbscan", "{}", False),
        "OCFL-HDB as published": OCFL.format(
            "hdbscan", "{'implementation': 'scikit-learn'}", False
        ),
    }


def with_buffers(lines):
    """Return the same methods with a twin for each method that compares updates."""
    both = {}
    for name in lines:
        if name.endswith(AS_PUBLISHED):
            continue
        both[name] = lines[name]
        if name != "FedAvg":
            wrong = lines.get(name + AS_PUBLISHED, lines[name])
            both[name + AS_PUBLISHED] = wrong.replace(
                "include_buffers=False", "include_buffers=True"
            )
    return both


@pytest.mark.parametrize("include_buffers", [False, True])
@pytest.mark.parametrize(
    ("paper", "notebook", "references"),
    [
        (ocfl, "03_ocfl_temperature", REFERENCES),
        (explanations, "07_explaining_cluster_models", {}),
    ],
)
def test_the_line_up_follows_from_the_switches(paper, notebook, references, include_buffers):
    changed = {"include_buffers": include_buffers, "window": 2, "sattler_eps1": 0.5}
    changed |= {"sattler_rounds": 10, "briggs_rounds": 7, "briggs_threshold": 0.95}
    run = paper.Parameters.checked(ledger.defaults(notebook) | changed)
    expected = ocfl_lines(10, 7)
    expected = (with_buffers(expected) if include_buffers else expected) | references
    found = paper.line_up(run, *ocfl.data(run))
    assert {name: repr(method) for name, method in found.items()} == expected
    assert [*found] == [*expected]


SCORED = "sinkhorn=None, max_samples=512, weighting='samples', draws='per {}', "
SCORED += "clusters='neighbourhoods', train_mode={}"
EMD = "MeasuredEMDCFL(epsilon=0.08, projection=0.9, " + SCORED + ")"
ORACLE = "EMDOracle(epsilon=0.1, projection=0.9, sinkhorn=None, max_samples=512, "
ORACLE += "weighting='samples'"
FLEXCFL = "FlexCFL(k=2, mixing={}, divided={}, include_buffers={}, weighting='authors')"


def both(names):
    """Return the names, each followed by that of its twin."""
    return [twin for name in names for twin in (name, name + AS_PUBLISHED)]


@pytest.fixture(scope="module")
def turned_digits():
    return emd_cfl.data(emd_cfl.Parameters.checked(ledger.defaults("05_emd_cfl")))


@pytest.mark.parametrize(
    ("given", "names", "parts"),
    [
        (
            {},
            [*emd_cfl.METHODS],
            {
                "EMD-CFL": EMD.format("client", False),
                "Oracle": ORACLE + ", truth=(0, 0, 0, 0, 1, 1, 1, 1))",
                "FedAvg": FEDAVG.format("samples"),
                "FedProx": "mu=0.01",
            },
        ),
        ({"only": ["EMD-CFL"]}, ["EMD-CFL"], {}),
        (
            {"only": ["EMD-CFL"], "published_distances": True},
            both(["EMD-CFL"]),
            {"EMD-CFL as published": EMD.format("distance", True)},
        ),
        (
            {"only": ["EMD-CFL", *emd_cfl.BASELINES], "pacfl_angle": 20.0},
            ["EMD-CFL", *both(emd_cfl.BASELINES)],
            {
                "IFCA": "IFCA(k=2, chosen_by='train', weighting='samples')",
                "FlexCFL": FLEXCFL.format(0.1, True, False),
                "FlexCFL as published": FLEXCFL.format(5.0, False, True),
                "CFLGP as published": "report='own update', samples=None, period=1",
                "PACFL": "angle=20.0",
                "PACFL as published": "angle=12.0",
                "FedClust": "threshold=5.0",
                "FeSEM": "=False",
                "FeSEM as published": "=True",
            },
        ),
        (
            {"dataset": "cifar10", "version": "backdoor", "only": ["PACFL", "FedClust"]},
            both(["PACFL", "FedClust"]),
            {"PACFL": "angle=10.5", "FedClust": "threshold=28.0"},
        ),
        ({"only": ["IFCA"], "k": 5}, both(["IFCA"]), {"IFCA": "k=5"}),
        (
            {"only": ["SCAFFOLD", "Ditto", *emd_cfl.SOFT]},
            [*both(emd_cfl.SOFT), "SCAFFOLD", "Ditto"],
            {
                "FedEM": "FedEM(k=2, predicts='mixture')",
                "FedRC as published": "FedRC(k=2, predicts='last component')",
                "FedSoft": "mu=0.1, interval=2",
                "FedSoft as published": "mu=0.0, interval=1, smoother=0.001, split='validation'",
                "FedCE as published": "delta=0.5, split='validation', counted='prefixes'",
                "pFedGraph as published": "anchor='own', since='received', clipped=False",
                "FedSaC as published": "mu=1.0",
            },
        ),
        ({"only": [*emd_cfl.OTHERS]}, [*emd_cfl.OTHERS], {"OCFL-MS": "clusterer='meanshift'"}),
    ],
)
def test_the_line_up_of_emd_cfl(turned_digits, given, names, parts):
    """A run has the four methods of the tables, or those that it names, with their twins."""
    run = emd_cfl.Parameters.checked(ledger.defaults("05_emd_cfl") | given)
    found = {name: repr(one) for name, one in emd_cfl.line_up(run, *turned_digits).items()}
    assert [*found] == names
    for name, part in parts.items():
        assert part in found[name]


@pytest.mark.parametrize("field", ["only", "compared"])
def test_methods_of_emd_cfls_lesson_are_of_its_line_up(field):
    usual, names = ledger.defaults("05_emd_cfl"), [*emd_cfl.OTHERS]
    run = emd_cfl.Parameters.checked(usual | {field: names})
    assert getattr(run, field) == names
    with pytest.raises(ParameterError, match="unknown method 'OCFL'"):
        emd_cfl.Parameters.checked(usual | {field: ["OCFL"]})


def test_emd_cfl_joins_ocfls_line_up_if_it_is_named_and_clients_have_validation_samples():
    usual = ledger.defaults("03_ocfl_temperature")
    names = ["EMD-CFL", "OCFL-HDB"]
    with pytest.raises(ParameterError, match="needs validation samples"):
        ocfl.Parameters.checked(usual | {"only": names})
    run = ocfl.Parameters.checked(usual | {"only": names, "validation": 0.1, "rounds": 2})
    images, split = ocfl.data(run)
    whole = ocfl.data(ocfl.Parameters.checked(usual))[1]
    assert [len(held) for held in split.test] == [len(held) for held in whole.test]
    federation = ocfl.federation(run, images, split)
    table = ocfl.play(run, federation, ocfl.chosen(run, images, split), 2).table()
    assert {*table["method"]} >= {*names}
    found = table[table["method"] == "EMD-CFL"]
    assert found["scores"].str.len().gt(0).any()


def test_the_line_up_of_the_tutorial():
    run = tutorial.Parameters.checked(ledger.defaults("08_tutorial_022"))
    options = "Signatures(warm_up=10, k=3, signature='gradient', samples={}, "
    options += "clustering='hierarchical', linkage='{}', restart={}, fraction=0.3)"
    found = {n: repr(line) for n, line in tutorial.line_up(run, *tutorial.data(run)).items()}
    assert found["Signatures"] == options.format(None, "average", False)
    published = options.format(32, "ward", True)
    assert found["Signatures as published"] == published
    for switch in tutorial.SWITCHES:
        [name] = [name for name in tutorial.CHANGES if name.startswith(switch.option)]
        assert tutorial.CHANGES[name] == {switch.option: switch.intended}
        assert found[name] != published
    assert found["no warm-up"] == published.replace("warm_up=10", "warm_up=0")
    assert [*found] == ["Signatures", "Signatures as published", *tutorial.METHODS[1:]]


@pytest.mark.slow
def test_all_baselines_run_in_lockstep_and_stand_in_the_ledger_as_published():
    usual = ledger.defaults("05_emd_cfl") | SMALL | {"model": "linear", "rounds": 2}
    names = [*emd_cfl.BASELINES, *emd_cfl.SOFT]
    run = emd_cfl.Parameters.checked(
        usual | {"only": [*emd_cfl.METHODS, *names], "pacfl_angle": 20.0}
    )
    images, split = emd_cfl.data(run)
    federation = emd_cfl.federation(run, images, split)
    history = emd_cfl.PAPERS[0].play(run, federation, emd_cfl.line_up(run, images, split), 2)
    assert history.trained < history.requested
    record = records.write(records.run_id(run), run, history, federation)
    assert "diverged" not in record.rounds
    for name in names:
        rows = records.rows_as_published(record, name)
        assert rows["method"].tolist() == [f"{name} as published"] * 2


# --- Data and clients ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "changed"),
    [
        (ocfl, SMALL | {"model": "linear"}),
        (explanations, SMALL),
        (emd_cfl, SMALL | {"model": "linear"}),
        (fedcref, {}),
        (tutorial, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_data_and_federation_are_those_of_the_notebook(paper, changed):
    """The federation has as many clients as the parameters state, and their seed."""
    [known] = [each for each in paper.PAPERS if each.name != "ocfl-extended"]
    run = paper.Parameters.checked(ledger.defaults(known.notebook) | changed)
    images, split = known.data(run)
    federation = known.federation(run, images, split)
    assert images.name.endswith(getattr(run, "dataset", "class-bumps-2-seed42"))
    assert federation.clients == run.clients
    assert federation.seed == run.seed
    assert len(known.line_up(run, images, split)) >= 3


FOLDERS = sorted({paper.folder for paper in PAPERS.values()})


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_data_of_a_committed_record_can_be_dealt_again(data_root, folder):
    """The clients get the samples that they had when the record was made."""
    ours = [record for record in records.committed() if record.paper == folder]
    record = next((r for r in ours if "mnist" in r.id or "bumps" in r.id), None)
    if record is None:
        pytest.skip("needs git, which knows the committed records")
    paper = papers.by_folder(record.paper)
    _, split = paper.data(paper.parameters.checked(record.parameters))
    assert split.hash == record.provenance["partition_hash"]


# --- A new paper ---------------------------------------------------------------------------------

# The contents of the new paper's file. It shares data and engine with the other papers, and has one
# method.


class Toy(FederatedRun):
    """Parameters of ``08_toy``."""

    folder: ClassVar[str] = "toy"


TOY = Paper(
    name="toy-paper",
    notebook="08_toy",
    parameters=Toy,
    scenario={"dataset": str, "clients": int},
    file="{dataset}.yaml",
    methods={"Ours": "FedAvg"},
    protocols={"last-f1": at(-1, "pf1", SCORES)},
    data=ocfl.data,
    federation=ocfl.federation,
    line_up=lambda run, images, split: {"FedAvg": methods.make("fedavg")},
    play=play_rounds,
    results=Results(
        "toy-results", (given("data", "dataset"), SEEDS, mean("F1", "FedAvg", "pf1", digits=3))
    ),
)

CELL = """
dataset = "digits-8x8"  # a name that cflkit.datasets knows
overlap = "nonoverlapping"  # whether clusters share classes
balance = "balanced"  # clients and classes evenly spread
clients = 6  # m
draws = 60  # draws per client
partition_seed = 0  # who gets which samples
model = "linear"  # softmax regression
optimizer = "sgd"  # or "adam"
lr = 0.1  # learning rate
momentum = 0.0  # of SGD
weight_decay = 0.0  # of either optimiser
batch_size = 16  # samples per local step
local_epochs = 1  # passes over a client's data in a round
rounds = 2  # of communication
seed = 0  # initial model, batch orders
""".strip()
FILES = {
    "params/toy/table-1.yaml": {
        "notebook": "08_toy.ipynb",
        "file": "{scale}/{dataset}.yaml",
        "grids": [{"scale": ["paper"], "dataset": ["digits-8x8"], "seed": [0, 1]}],
    },
    "params/toy/paper/digits-8x8.yaml": {"lr": 0.2, "clients": 6},
}
TABLE = {
    "paper": ["toy-paper"],
    "table": ["1"],
    "dataset": ["digits-8x8"],
    "clients": [6],
    "method": ["Ours"],
    "measure": ["F1"],
    "value": [0.5],
    "protocol": ["last-f1"],
    "dash": [None],
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Register the toy paper, with its notebook, parameter files and table."""
    for name, contents in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(contents))
    cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
    title = nbformat.v4.new_markdown_cell("# A toy\n**Minutes on two cores:** 0.5")
    nbformat.write(nbformat.v4.new_notebook(cells=[title, cell]), tmp_path / "08_toy.ipynb")
    pd.DataFrame(TABLE).to_csv(tmp_path / "toy-paper_table-1.csv", index=False)
    # The line in the registry, and temporary folders for the paper
    monkeypatch.setattr(papers, "PAPERS", {"toy-paper": TOY})
    for module in (ledger, readme):
        monkeypatch.setattr(module, "PAPERS", papers.PAPERS)
    monkeypatch.setattr(grid, "PARAMS", tmp_path / "params")
    monkeypatch.setattr(grid, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(ledger, "PUBLISHED", tmp_path)
    ledger.scale_parameters.cache_clear()
    yield TOY
    ledger.scale_parameters.cache_clear()
    ledger.defaults.cache_clear()


def test_a_new_paper_needs_its_file_and_nothing_else(toy):
    """The declaration above is enough for all steps from the parameter files to the README."""
    from cflkit import simulation

    jobs = grid.jobs_of("toy/table-1")
    assert [job.status for job in jobs] == ["missing", "missing"]
    for job in jobs:
        values = read_yaml(job.file) | job.given
        run = Toy.checked(notebooks.read_notebook(job.notebook).defaults | values)
        assert records.run_id(run) == job.run
        assert job.run.startswith("toy-digits-8x8-nonoverlapping-balanced-m6-seed")
        images, split = toy.data(run)
        federation = toy.federation(run, images, split)
        lines = toy.line_up(run, images, split)
        history = simulation.run(lines, federation, run.rounds, progress=False)
        records.write(job.run, run, history, federation)
    assert [job.status for job in grid.jobs_of("toy/table-1")] == ["done", "done"]

    made = [records.read(records.results() / job.run) for job in jobs]
    assert [record.paper for record in made] == ["toy", "toy"]
    book = ledger.ledger(made)
    [cell] = book.to_dict("records")
    f1 = [record.summary["FedAvg"]["pf1"] for record in made]
    assert cell["ours"] == pytest.approx(sum(f1) / 2)
    assert cell["seeds"] == 2
    assert cell["status"] == ledger.status(0.5, f1)
    assert "-p lr 0.2" in ledger.command(made[0], "toy-paper")

    marks = ("lessons", "ledger", "toy-results")
    text = "\n".join(
        f"<!-- {name}: written by python -m cflkit readme -->\nold\n<!-- end -->" for name in marks
    )
    tables = readme.tables(made, book)
    written = readme.filled(text, tables)
    assert "| [08_toy](notebooks/08_toy.ipynb) | A toy | 0.5 |" in written
    assert "| toy-paper, 1 | paper's | 1 | 1 |" in written
    assert (
        f"| data | seeds | F1 |\n|---|---|---|\n| digits-8x8 | 2 | {sum(f1) / 2:.3f} |" in written
    )
    with pytest.raises(ValueError, match="there is no table other"):
        readme.filled(text.replace("toy-results", "other"), tables)
    with pytest.raises(ValueError, match="has no end"):
        readme.filled(text.removesuffix("<!-- end -->"), tables)


def test_how_little_a_new_paper_is():
    """Count the lines of the declaration: the model, the paper, and a line in the registry."""
    text = (PROJECT / "tests" / "test_papers.py").read_text(encoding="utf-8")
    declared = text[text.index("class Toy(") : text.index("\nCELL = ")]
    lines = [line for line in declared.splitlines() if line.strip()]
    assert len(lines) + 1 <= 25
