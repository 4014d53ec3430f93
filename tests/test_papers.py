"""Tests that one file holds all that the kit knows about a paper."""

import dataclasses
import json
import math
import re
from typing import ClassVar

import nbformat
import pages
import pytest
from reports import results, worth
from rounds import played

from cflkit import methods, metrics
from cflkit.explain.assessment import of_explanations
from cflkit.methods import fedcref_measures
from cflkit.reproduce import grid, ledger, notebooks, papers, records
from cflkit.reproduce.papers import PAPERS, base, emd_cfl, explanations, fedcref, ocfl, tutorial
from cflkit.reproduce.papers.base import AS_PUBLISHED, SCORES, Paper, at
from cflkit.reproduce.parameters import FederatedRun, ParameterError
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import read_yaml

GENERIC = ("grid", "ledger", "notebooks", "parameters", "records", "papers/base")


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
    known = {paper.notebook for paper in PAPERS.values()} | set(papers.lessons.LESSONS)
    assert every - {"99_glossary"} == known


@pytest.mark.parametrize("module", GENERIC)
def test_what_serves_all_papers_names_none(module):
    text = (PROJECT / "cflkit" / "reproduce" / f"{module}.py").read_text(encoding="utf-8")
    names = {*PAPERS, *(paper.folder for paper in PAPERS.values())} - {"explanations"}
    names |= {paper.notebook for paper in PAPERS.values()}
    # A docstring may show a parameter file as an example
    code = re.sub(r'"""[\s\S]*?"""', "", text)
    assert not [name for name in names if re.search(rf"\b{name}\b", code)]


@pytest.mark.slow
def test_every_committed_record_has_the_id_of_its_parameters(repository, committed):
    assert len(committed) >= 88
    for record in committed:
        run = papers.by_folder(record.paper).parameters.checked(record.parameters)
        assert records.run_id(run) == record.id
        # Older records lack what was added later: where models were trained, and unequal sizes
        added = {name: None for name in ("trained_in", "sizes") if hasattr(run, name)}
        assert run.model_dump() == added | record.parameters


@pytest.mark.slow
def test_the_summary_of_every_committed_record_is_that_of_its_rounds(repository, committed):
    for record in committed:
        rows = record.rounds
        of_paper = fedcref_measures.of_clusters if record.paper == "fedcref" else metrics.of_models
        whole = metrics.by_method(rows, of_explanations if "map" in rows else of_paper)
        assert whole.keys() == record.summary.keys()
        for method, stated in record.summary.items():
            # Old records lack measures that the kit has by now; the table has nine digits
            found = [whole[method][name] for name in stated]
            near = pytest.approx([*map(number, stated.values())], rel=1e-5, abs=1e-8, nan_ok=True)
            assert [*map(number, found)] == near


def number(value):
    """Return a value of a summary as a number: what is unknown is NaN, or infinite, or None."""
    return math.nan if value is None or math.isinf(value) else value


SMALL = {"dataset": "digits-8x8"}
LINEAR = SMALL | {"model": "linear"}
SKEWED = LINEAR | {"sizes": "1/r"}

# --- Line-ups ------------------------------------------------------------------------------------

FEDAVG = "FedAvg(weighting='{}')"
BRIGGS = "Briggs(rounds=7, threshold={}, metric='cosine', linkage='average', wrong_sign={}, "
BRIGGS += "include_buffers=False, weighting='equal')"
OCFL = "OCFL(clusterer='{}', options={}, p=2, scale=None, strict=True, window=2, before=inf, "
OCFL += "include_buffers=False, weighting='equal')"
SATTLER = "Sattler(eps1=0.5, eps2=None, min_rounds=10, include_buffers=False, weighting='equal', "
SATTLER += "linkage='complete')"
# The methods of the OCFL papers, each with its twin as published if there is one
OF_OCFL = {
    "FedAvg": [FEDAVG.format("equal")],
    "Sattler": [SATTLER],
    "Briggs": [BRIGGS.format(0.95, False), BRIGGS.format(0.05, True)],
    "OCFL-KM": [OCFL.format("kmeans", {})],
    "OCFL-AFF": [OCFL.format("affinity", own) for own in ({}, {"wrong_sign": True})],
    "OCFL-MS": [OCFL.format("meanshift", {})],
    "OCFL-HDB": [OCFL.format("hdbscan", own) for own in ({}, {"implementation": "scikit-learn"})],
}
TRUTH = (0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2)
REFERENCES = {"oracle": f"Oracle(truth={TRUTH}, weighting='equal')", "local": "Local()"}


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize(("paper", "references"), [(ocfl, REFERENCES), (explanations, {})])
def test_the_line_up_follows_from_the_switches(paper, references, buffers):
    """With buffers, each method that compares updates has a twin that compares them, too."""
    changed = {"include_buffers": buffers, "window": 2, "sattler_eps1": 0.5, "sattler_rounds": 10}
    changed |= {"briggs_rounds": 7, "briggs_threshold": 0.95}
    run = paper.Parameters.checked(ledger.defaults(paper.PAPERS[0].notebook) | changed)
    expected = {}
    for name, (own, *twin) in OF_OCFL.items():
        expected[name] = own
        if buffers and name != "FedAvg":
            twin = [one.replace("buffers=False", "buffers=True") for one in twin or [own]]
        expected |= dict.fromkeys([name + AS_PUBLISHED] * len(twin), *twin)
    expected |= references
    found = paper.line_up(run, *ocfl.data(run))
    assert [(name, repr(method)) for name, method in found.items()] == [*expected.items()]


def both(names):
    """Return the names, each followed by that of its twin."""
    return [twin for name in names for twin in (name, name + AS_PUBLISHED)]


@pytest.fixture(scope="module")
def turned_digits():
    return emd_cfl.data(emd_cfl.Parameters.checked(ledger.defaults("05b_emd_cfl_controls")))


@pytest.mark.parametrize(
    ("given", "names", "parts"),
    [
        (
            {},
            [*emd_cfl.METHODS],
            {
                "EMD-CFL": "(epsilon=0.08, projection=0.9, sinkhorn=None, max_samples=512, weigh",
                "Oracle": "weighting='samples', truth=(0, 0, 0, 0, 1, 1, 1, 1))",
                "FedAvg": FEDAVG.format("samples"),
                "FedProx": "mu=0.01",
            },
        ),
        (
            {"only": [*emd_cfl.LINE_UP], "pacfl_angle": 20.0},
            [
                *(*emd_cfl.METHODS, *both(emd_cfl.BASELINES), *emd_cfl.OTHERS),
                *(*both(emd_cfl.SOFT), *emd_cfl.NO_CLUSTERS),
            ],
            {
                "IFCA": "IFCA(k=2, chosen_by='train', weighting='samples')",
                "FlexCFL": "FlexCFL(k=2, ",
                "PACFL": "angle=20.0",
                "PACFL as published": "angle=12.0",
                "FedClust": "threshold=5.0",
                "FedRC as published": "FedRC(k=2, ",
                "OCFL-MS": "clusterer='meanshift'",
            },
        ),
        (
            {"only": ["EMD-CFL", "FedProx", "FeSEM", "pFedGraph"], "published_distances": True},
            both(["EMD-CFL", "FedProx", "FeSEM", "pFedGraph"]),
            {"EMD-CFL as published": "draws='per distance', clusters='neighbourhoods'"},
        ),
        (
            {"dataset": "cifar10", "version": "backdoor", "only": ["IFCA", "PACFL"], "k": 5},
            both(["IFCA", "PACFL"]),
            {"IFCA": "k=5", "PACFL": "angle=10.5"},
        ),
        # A twin alone, without its sibling that trains in all rounds
        ({"only": ["FedClust as published"]}, ["FedClust as published"], {}),
    ],
)
def test_the_line_up_of_emd_cfl(turned_digits, given, names, parts):
    """A run has the four methods of the tables, or those that it names, with their twins."""
    run = emd_cfl.Parameters.checked(ledger.defaults("05b_emd_cfl_controls") | given)
    found = emd_cfl.line_up(run, *turned_digits)
    assert [*found] == names
    for name, part in parts.items():
        assert part in repr(found[name])
    # Each twin differs from its sibling in the values of its switches alone
    switches = emd_cfl.OF_BASELINES + emd_cfl.ON_REQUEST * run.published_distances
    for name in (name for name in found if name + AS_PUBLISHED in found):
        own, twin = (dataclasses.asdict(found[one]) for one in (name, name + AS_PUBLISHED))
        where = emd_cfl.LINE_UP[name][0]
        expected = {s.option: (s.intended, s.published) for s in switches if s.where == where}
        apart = {o: (own[o], twin[o]) for o in own if own[o] != twin[o]}
        assert {o: v for o, v in apart.items() if o not in ("angle", "threshold")} == expected


def test_a_method_without_a_twin_is_refused_by_the_name_of_one():
    with pytest.raises(ParameterError, match="no version of its own 'FedAvg as published'"):
        base.selected({"FedAvg": None}, ["FedAvg as published"])


@pytest.mark.parametrize("field", ["only", "compared"])
def test_methods_of_emd_cfls_lesson_are_of_its_line_up(field):
    with pytest.raises(ParameterError, match=r"unknown method 'OCFL'; .* EMD-CFL, Oracle"):
        emd_cfl.Parameters.checked(ledger.defaults("05b_emd_cfl_controls") | {field: ["OCFL"]})


@pytest.mark.parametrize("paper", [ocfl, emd_cfl])
def test_other_sizes_are_refused_with_the_two_that_there_are(paper):
    with pytest.raises(ParameterError, match="sizes: Input should be '1/r' or 'half'"):
        paper.Parameters.checked(ledger.defaults(paper.PAPERS[0].notebook) | {"sizes": "equal"})


def test_three_methods_join_ocfls_line_up_if_they_are_named():
    """Sattler's method with the exact cut, EMD-CFL with validation samples, and FedAvg-FT."""
    usual = ledger.defaults("03b_ocfl_controls") | {"sattler_eps1": 0.3}
    every = ocfl.Parameters.checked(usual)
    images, whole = ocfl.data(every)
    names = ["Sattler", "Sattler-exact", "EMD-CFL", "FedAvg-FT"]
    assert {*names} & {*ocfl.chosen(every, images, whole)} == {"Sattler"}
    run = ocfl.Parameters.checked(usual | {"only": names, "validation": 0.1})
    images, split = ocfl.data(run)
    lines = ocfl.chosen(run, images, split)
    code, exact = repr(lines["Sattler"]), repr(lines["Sattler-exact"])
    assert exact == code.replace("linkage='complete'", "linkage='single'") != code
    assert [*lines] == names
    assert [len(held) for held in split.test] == [len(held) for held in whole.test]
    assert all(map(len, split.more["validation"]))


def test_the_line_up_of_the_tutorial():
    run = tutorial.Parameters.checked(ledger.defaults("08b_tutorial_022_controls"))
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


# --- Data and clients ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "changed"),
    [(ocfl, SKEWED), (explanations, SMALL), (emd_cfl, SKEWED), (fedcref, {}), (tutorial, {})],
)
def test_data_and_federation_are_those_of_the_notebook(paper, changed):
    """The federation has as many clients as the parameters state, and their seed."""
    [known] = [each for each in paper.PAPERS if each.name != "ocfl-extended"]
    run = paper.Parameters.checked(ledger.defaults(known.notebook) | changed)
    images, split = known.data(run)
    federation = known.federation(run, images, split)
    assert images.name.endswith(getattr(run, "dataset", "class-bumps-2-seed42"))
    assert (federation.clients, federation.seed) == (run.clients, run.seed)
    assert split.recipe.get("sizes") == getattr(run, "sizes", None)
    assert len(known.line_up(run, images, split)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted({paper.folder for paper in PAPERS.values()}))
def test_the_data_of_a_committed_record_can_be_dealt_again(repository, committed, folder, request):
    """The clients get the samples that they had when the record was made."""
    if folder != "tutorial":  # which draws its samples
        request.getfixturevalue("data_root")
    known = (r for r in committed if "mnist" in r.id or "bumps" in r.id)
    record = next(r for r in known if r.paper == folder)
    paper = papers.by_folder(record.paper)
    _, split = paper.data(paper.parameters.checked(record.parameters))
    assert split.hash == record.provenance["partition_hash"]


# --- A new paper ---------------------------------------------------------------------------------


# The new paper's file: it shares data and engine with the other papers, and has one method
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
)

USUAL = ledger.defaults("03b_ocfl_controls") | LINEAR
USUAL |= {"clients": 6, "draws": 60, "rounds": 2, "local_epochs": 1}
CELL = "\n".join(f"{name} = {USUAL[name]!r}" for name in Toy.model_fields if name in USUAL)
GRID = {"scale": ["paper"], "dataset": ["digits-8x8"], "seed": [0, 1]}
TABLE = {"notebook": "08_toy.ipynb", "file": "{scale}/{dataset}.yaml", "grids": [GRID]}
FILES = {
    "params/toy/table-1.yaml": json.dumps(TABLE),
    "params/toy/paper/digits-8x8.yaml": json.dumps({"lr": 0.2, "clients": 6}),
    "toy-paper_table-1.csv": "paper,table,dataset,clients,method,measure,value,protocol,dash\n"
    "toy-paper,1,digits-8x8,6,Ours,F1,0.5,last-f1,\n",
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Register the toy paper, with its notebook, parameter files and table."""
    for name, contents in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(contents)
    cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
    title = nbformat.v4.new_markdown_cell("# A toy\n**Minutes on two cores:** 0.5")
    nbformat.write(nbformat.v4.new_notebook(cells=[title, cell]), tmp_path / "08_toy.ipynb")
    # The line in the registry, and temporary folders for the paper
    monkeypatch.setattr(papers, "PAPERS", {"toy-paper": TOY})
    for module in (ledger, pages, worth):
        monkeypatch.setattr(module, "PAPERS", papers.PAPERS)
    monkeypatch.setattr(grid, "PARAMS", tmp_path / "params")
    monkeypatch.setattr(grid, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(ledger, "PUBLISHED", tmp_path)
    ledger.scale_parameters.cache_clear()
    yield TOY
    ledger.scale_parameters.cache_clear()
    ledger.defaults.cache_clear()


def test_a_new_paper_needs_its_file_and_a_row_of_results(toy, monkeypatch, unperturbed):
    """They are enough for all steps from the parameter files to the README."""
    jobs = grid.jobs_of("toy/table-1")
    assert [job.status for job in jobs] == ["missing", "missing"]
    for job in jobs:
        values = read_yaml(job.file) | job.values
        run = Toy.checked(notebooks.read_notebook(job.notebook).defaults | values)
        assert records.run_id(run) == job.run
        assert job.run.startswith("toy-digits-8x8-nonoverlapping-balanced-m6-seed")
        records.write(job.run, run, *played(toy, run))
    assert [job.status for job in grid.jobs_of("toy/table-1")] == ["done", "done"]

    made = [records.read(records.results() / job.run) for job in jobs]
    assert [record.paper for record in made] == ["toy", "toy"]
    book = ledger.ledger(made)
    [cell] = book.to_dict("records")
    f1 = [record.summary["FedAvg"]["pf1"] for record in made]
    assert (cell["ours"], cell["seeds"]) == (pytest.approx(sum(f1) / 2), 2)
    assert cell["status"] == ledger.status(0.5, f1)
    assert "-p lr 0.2" in ledger.command(made[0], "toy-paper")

    table = results.Results(
        "toy-paper", lambda runs: {"seeds": runs.seeds, "F1": runs.mean("FedAvg", "pf1", 3)}
    )
    monkeypatch.setattr(results, "TABLES", {"toy-results": table})
    marks = ("lessons", "ledger", "toy-results")
    text = "\n".join(f"{pages.start(name)}old\n<!-- end -->" for name in marks)
    written = pages.filled(text, pages.tables(made, book))
    assert "| [08 A toy](notebooks/08_toy.ipynb) |  | 0.5 |" in written
    assert "| toy-paper, 1 | paper's | 1 | 1 |" in written
    assert f"| seeds | F1 |\n|---|---|\n| 2 | {sum(f1) / 2:.3f} |" in written
