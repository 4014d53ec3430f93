"""Tests of the files around the code: environments, README, and a fresh clone."""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import code_lines
import pandas as pd
import pytest
import staged
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from cflkit import datasets
from cflkit.reproduce import claims, papers
from cflkit.reproduce.records import PROJECT
from cflkit.reproduce.values import read_yaml

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
META = PYPROJECT["project"]
LOCK = (PROJECT / "requirements.lock").read_text()
SYSTEMS = {"linux": ("Linux", "posix"), "darwin": ("Darwin", "posix"), "win32": ("Windows", "nt")}


def pins(system=None, python="3.11.9"):
    """The lock's requirements by package, on this machine or on another one."""
    machine = {}
    if system:
        machine = dict(zip(("platform_system", "os_name"), SYSTEMS[system], strict=True))
        machine |= {"sys_platform": system, "python_full_version": python}
        machine["python_version"] = python.rpartition(".")[0]
    every = [Requirement(line) for line in LOCK.splitlines() if not line.startswith("#")]
    chosen = [pin for pin in every if pin.marker is None or pin.marker.evaluate(machine)]
    found = {canonicalize_name(pin.name): pin for pin in chosen}
    assert len(found) == len(chosen), "a package has one version on a machine"
    return found


def test_the_environment_of_conda_has_python_and_installs_the_kit():
    environment = read_yaml(PROJECT / "environment.yml")
    pip = {"pip": ["--constraint requirements.lock", "--editable .[dev]"]}
    assert environment["dependencies"] == ["python" + META["requires-python"], "pip", pip]


def test_the_metadata_of_the_package_are_those_of_the_citation():
    """The citation is where a publisher fills in names and an address."""
    cited = read_yaml(PROJECT / "CITATION.cff")
    names = [a.get("name") or "{given-names} {family-names}".format(**a) for a in cited["authors"]]
    assert [one["name"] for one in META["authors"]] == names
    assert cited["license"] == META["license"]
    assert cited.get("repository-code") in (None, *META.get("urls", {}).values())


def test_the_version_is_the_same_everywhere():
    written = {
        "cflkit/__init__.py": r'^__version__ = "(.+)"',
        "cflkit/flower/app/pyproject.toml": r'^version = "(.+)"',
        "CITATION.cff": r"^version: (.+)",
        "CHANGELOG.md": r"^## (\d.+)",
    }
    for path, version in written.items():
        text = (PROJECT / path).read_text(encoding="utf-8")
        assert re.search(version, text, re.M).group(1) == META["version"], path


def test_every_requirement_is_pinned_within_its_range():
    """A reader's own settings of pip or uv decide where packages come from."""
    assert not re.search(r"://|^ *-|@", LOCK, re.M)
    for line in LOCK.splitlines():
        assert line.startswith("#") or re.match(r"[\w.\[\]-]+==[\w.+!]+( ;|$)", line), line
    own = "cflkit[book,course,flower,notebooks]"
    assert own in META["optional-dependencies"]["dev"]
    extras, pinned = META["optional-dependencies"], pins()
    for line in META["dependencies"] + extras["notebooks"] + extras["dev"]:
        if line != own:
            requirement = Requirement(line)
            [version] = pinned[canonicalize_name(requirement.name)].specifier
            assert requirement.specifier.contains(version.version), line
    text = (PROJECT / "requirements-hashed.lock").read_text()
    files = r"((?: \\\n    --hash=sha256:[0-9a-f]{64})*)"
    hashes = dict(re.findall(rf"^([^#\n]+?){files}$", text, re.M))
    assert list(hashes) == [line for line in LOCK.splitlines() if not line.startswith("#")]
    bare = {pin.partition("==")[0] for pin in hashes if not hashes[pin]}
    assert bare == {"torch", "torchvision", "triton"}, "all but what PyTorch's own server has, too"


SOURCES = sorted((PROJECT / "notebooks" / "src").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_what_a_notebook_takes_from_the_package_is_there(path):
    """Many notebooks run only at night: what they import must not be renamed without them."""
    tree, known = ast.parse(path.read_text("utf-8")), {}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).split(".")[0] == "cflkit"]
    exec(compile(ast.Module(ours, []), path.name, "exec"), known)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name not in stored:
                module = known.get(name)
                assert not inspect.ismodule(module) or hasattr(module, node.attr), ast.unparse(node)


def test_the_claims_of_every_lesson_are_counted_at_night():
    workflow = YAML(typ="safe").load(PROJECT / ".github" / "workflows" / "check.yml")
    targets = workflow["jobs"]["nightly"]["strategy"]["matrix"]["target"]
    counted = {target.partition("LESSON=")[2] for target in targets} - {""}
    assert counted == {row["notebook"] for row in claims.counts()}


def test_workflows_run_actions_of_one_commit_and_none_of_our_code_with_a_token_that_writes():
    for path in (PROJECT / ".github" / "workflows").glob("*.yml"):
        workflow = YAML(typ="safe").load(path)
        for name, job in workflow["jobs"].items():
            used = [step["uses"] for step in job["steps"] if "uses" in step]
            assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", use) for use in used), name
            writes = "write" in job.get("permissions", workflow["permissions"]).values()
            assert writes == (name == "publish")
            assert not (writes and any("checkout" in use for use in used))


@pytest.mark.parametrize("python", ["3.11.4", "3.11.9", "3.12.8", "3.13.2", "3.14.0"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_lock_has_one_version_of_a_package_on_every_system(python, system):
    assert {"torch", "jupyterlab", "pytest", "soupsieve"} <= set(pins(system, python))


def git(*words, cwd=PROJECT):
    return subprocess.check_output(["git", *words], cwd=cwd, text=True)


@pytest.fixture
def clone(repository, tmp_path):
    git("clone", "--quiet", str(PROJECT), str(tmp_path / "clone"))
    return tmp_path / "clone"


def test_the_top_level_is_what_it_should_be(repository):
    folders = {line.split("/")[0] for line in git("ls-files").splitlines() if "/" in line}
    hosts = {".binder", ".ci", ".devcontainer", ".github"}
    assert folders == {"notebooks", "cflkit", "data", "figures", "tests", *hosts}


def test_the_readme_names_commands_and_files_that_exist():
    """And the development container sets up as the README does."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    container = (PROJECT / ".devcontainer" / "devcontainer.json").read_text()
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.M))
    assert {"run", "test"} <= set(re.findall(r"make ([a-z]+)", text)) <= targets
    assert re.findall(r"make ([a-z]+)", container) == ["setup"] and ":3.11" in container
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (PROJECT / path).exists(), path


def test_the_words_about_clients_that_are_away_at_random_have_the_numbers_of_the_runs(committed):
    """Lesson 11 says so: "once by 17 points, and twice by less than one"."""
    away = [run.summary for run in committed if run.parameters.get("scene") == "random"]
    lost = [100 * (run["OCFL-HDB"]["accuracy"] - run["OCFL-HDB again"]["accuracy"]) for run in away]
    one, other, third = sorted(lost)
    assert 0 < one <= other < 1 and round(third) == 17


def test_the_words_under_the_moving_picture_have_the_accuracies_of_lesson_03():
    """And those of the output of the lesson, which `make run` prints, too."""
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    told = re.search(r"one model for all reads (\d+) %.* alone (\d+) %.* (\d+) %", readme)
    lesson = staged.committed("notebooks/03_ocfl_temperature.ipynb")
    shown = re.search(r"digits read: FedAvg (\d+) %, Local (\d+) %, OCFL (\d+) %", lesson)
    assert told.groups() == shown.groups()


@pytest.mark.slow
def test_the_table_of_true_groups_counts_the_last_rounds_of_the_records(committed):
    """Count what OCFL's variants found again, from the records' files alone."""
    counted = {"until": "clusters", "draws": None, "rounds": 50}  # ocfl/first-round has fewer
    last = []
    for run in (run for run in committed if run.paper == "ocfl"):
        if counted.items() <= run.parameters.items():
            scenario = str([run.parameters[name] for name in papers.ocfl.SCENARIO])
            rows = pd.read_csv(run.folder / "rounds.csv").groupby("method").tail(1)
            last.append(rows.assign(scenario=scenario, seed=run.parameters["seed"]))
    known = pd.concat(last).drop_duplicates(["method", "scenario", "seed"], keep="last")
    text = (PROJECT / "notebooks" / "results.md").read_text(encoding="utf-8")
    for method in papers.ocfl.CLUSTERERS:
        ari, of = (known.loc[known["method"] == method, name] for name in ("ari", "scenario"))
        numbers = of.nunique(), len(ari), (ari == 1).sum(), f"{ari.mean():.3f}"
        assert f"| ocfl | {method} | {' | '.join(map(str, numbers))} |" in text


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(home, target, tools, ready, **places):
    """Make a target with these tools in the environment of a user; return what is printed."""
    own = {n: v for n, v in os.environ.items() if not n.startswith(("ARGS", "CFLKIT", "MAKE"))}
    command = ["make", "--old-file", str(ready), target, f"BIN={tools}", f"READY={ready}"]
    done = subprocess.run(command, cwd=home, env=own | places, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_make
def test_make_works_in_a_folder_with_spaces_and_without_git(tmp_path):
    """The tools are stand-ins, which only print what they are asked to do."""
    home, names = tmp_path / "a folder", ["python", "ruff", "lint-imports", "mypy", "jupyter"]
    tools, lesson = home / "bin", home / "notebooks" / "a lesson.ipynb"
    for path in (*(tools / name for name in names), lesson):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('#!/bin/sh\necho "asked: $@"\n')
        path.chmod(0o755)
    shutil.copy(PROJECT / "Makefile", home)

    def asked(target):
        return re.findall("^asked: (.*)", make(home, target, tools, "ready"), re.M)

    assert asked("run") == ["-m cflkit run notebooks/03_ocfl_temperature.ipynb"]
    assert ("--allow-root" in asked("lab")[0]) == (os.getuid() == 0), "JupyterLab refuses root"
    checks = asked("test")
    assert len(checks) == 7
    end = "tests data/cache/staged -m not nightly --ignore-glob=*/[0-9][0-9]b_*.ipynb"
    assert re.fullmatch(f"-m pytest .* {re.escape(end)}", checks[-1])
    assert (home / "data" / "cache" / "staged" / "notebooks" / lesson.name).exists()


@needs_make
@pytest.mark.nightly
def test_make_run_in_a_fresh_clone(clone):
    """Run the README's first command on committed files only, with this environment's packages."""
    ready = clone.parent / "ready"
    ready.touch()
    printed = make(clone, "run", f"{sys.prefix}/bin", ready, PYTHONPATH=str(clone))
    assert "digits read: FedAvg " in printed
    assert len(re.findall("^true ", printed, re.M)) == 5
    for kind in ("notebook", "figure"):
        assert (clone / re.search(rf"^{kind} +(\S+)$", printed, re.M).group(1)).exists()


@needs_make
def test_reset_brings_a_lesson_back_and_keeps_the_readers(clone):
    folder, runs, name = clone / "notebooks", clone / "data" / "runs", "00_start_here.ipynb"
    lesson = folder / name
    before = lesson.read_text()
    lesson.write_text(before.replace("seed = 0", "seed = 1"))
    own = [folder / f"{stem}.ipynb" for stem in ("exercises/mine", "my own notes", "Untitled")]
    for path in own:
        path.write_text("mine")
    git("add", str(lesson), *map(str, own[:2]), cwd=clone)
    deleted, renamed = folder / "01_federated_averaging.ipynb", "02_when_clients_disagree.ipynb"
    deleted.unlink()
    git("mv", f"notebooks/{renamed}", "notebooks/new name.ipynb", cwd=clone)
    subprocess.run(["make", "reset"], cwd=clone, check=True, capture_output=True)
    assert lesson.read_text() == before
    assert [path.read_text() for path in own] == ["mine"] * 3, "only lessons are reset"
    assert deleted.exists() and (folder / renamed).exists() and (folder / "new name.ipynb").exists()
    [kept] = (runs / "yours").glob(f"*/{name}")
    assert "seed = 1" in kept.read_text()
    (runs / "old").mkdir()
    subprocess.run(["make", "clean"], cwd=clone, check=True, capture_output=True)
    assert kept.exists() and not (runs / "old").exists()


@pytest.mark.slow
def test_the_pages_python_runs(tmp_path, monkeypatch):
    """Run the examples one after the other, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    pages = (PROJECT / "notebooks" / name for name in ("your_own_data.md", "as_a_library.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    code, namespace = "".join(re.findall(r"```python\n(.*?)```", text, re.S)), {}
    assert code.count("rounds=20") == 1  # 6 are enough for clusters
    exec(compile(code.replace("rounds=20", "rounds=6"), "as_a_library.md", "exec"), namespace)
    assert namespace["last"].set_index("method").loc["OCFL", "n_clusters"] == 3


@pytest.mark.nightly
def test_a_wheel_has_what_the_commands_read_and_links_that_work(clone, tmp_path):
    """Build it from what git tracks, and copy the lessons from it in an empty folder."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(clone)]
    home = {"CFLKIT_REPOSITORY": "https://example.org/kit"}
    subprocess.run([*pip, *build], check=True, env=os.environ | home)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 3_000_000
    place, empty = tmp_path / "place", tmp_path / "empty"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
        [about] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    targets = re.findall(r"\]\(([^)]+)\)", (place / about).read_text(encoding="utf-8"))
    assert targets and all(re.match("https?:|#", target) for target in targets)
    empty.mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("CFLKIT")}
    own |= {"PYTHONPATH": str(place)}
    for words, told in WHEEL.items():
        command = [sys.executable, "-m", "cflkit", *words.split()]
        done = subprocess.run(command, cwd=empty, env=own, capture_output=True, text=True)
        assert told in done.stdout + done.stderr, (words, done.stdout, done.stderr)
    folder = empty / "out" / "notebooks"
    numbers = {path.stem[:2] for path in folder.glob("*.ipynb")}
    assert numbers == {*map("{:02d}".format, range(12)), "99"}
    for page in (*folder.rglob("*.ipynb"), *folder.glob("*.md")):
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


# What commands say in an empty folder
WHEEL = {
    "lessons out": "begin at  out/notebooks/00_start_here.ipynb",
    "lessons out ": "cannot be used (File exists)",
    "data digits-8x8": "1437",
    "records": "emd-cfl-pacs-64-domains-seed0",
    "records 1a2e169e": "a clone of the project has more",
    "ledger --paper tutorial-022": "data/runs/ledger.csv",
    "grid list": "ocfl/table-1",
    "run 90": "a clone of the project has more",
}


@pytest.mark.slow
def test_ring_1_and_the_commands_need_none_of_the_packages_for_notebooks():
    """Nor psutil, which is asked for when memory is; a missing package is told in a sentence."""
    extra = map(Requirement, META["optional-dependencies"]["notebooks"])
    missing = {"IPython", "psutil", *(requirement.name for requirement in extra)}
    rooms = ("ring 1", "baselines", "instrument")
    files = [path for path in code_lines.PACKAGE.rglob("*.py") if code_lines.room_of(path) in rooms]
    parts = [path.relative_to(PROJECT).with_suffix("").parts for path in files]
    names = [".".join(part).removesuffix(".__init__") for part in parts]
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({sorted(missing)})
for name in {names}:
    importlib.import_module(name)
from cflkit.__main__ import main
from cflkit.compare.situations import scene
scene("base", "", 0).federation()  # its images are turned by right angles
sys.exit(main(["records", "1a2e169e"]) or main(["data", "digits"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'cflkit[notebooks]'" in done.stderr, done.stderr
    assert "torchvision" in done.stderr


def test_the_page_of_licences_lists_every_data_set_and_package():
    page = (PROJECT / "notebooks" / "licences.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", page, re.M)
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == datasets.names()
    table = pd.read_csv(PROJECT / "data" / "licences.csv", dtype=str).to_dict("records")
    listed = {canonicalize_name(row["Name"]): row for row in table}
    versions = {name: str(pin.specifier)[2:] for name, pin in pins("linux").items()}
    assert {name: row["Version"] for name, row in listed.items()} == versions
    restricted = re.compile("MPL|Mozilla|NVIDIA|GPL|UNKNOWN")
    for name, row in listed.items():
        if restricted.search(row["License"]):
            assert f"`{name}`" in page or name.startswith("nvidia-"), (name, row["License"])


def test_the_map_of_the_house_is_true():
    """Its rooms are those of the package, in the order in which the linter lets them import."""
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [drawn] = re.findall(r"^```\ncflkit/\n(.*?)^```", text, re.M | re.S)
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    assert re.findall(r"^  (\w.*?)  ", drawn, re.M) == layers
    for line in re.findall(r"^    (\w.*?)  ", drawn, re.M):
        for name in line.replace("/", "").split(", "):
            assert list((PROJECT / "cflkit").glob(f"*/{name}*")), name
