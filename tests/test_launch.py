"""Where the kit runs without an installation by hand: development containers, Binder and Colab."""

import json
import re
from pathlib import Path

import nbformat
from book import launch
from packaging.requirements import Requirement

from cflkit.reproduce.records import PROJECT

PAGE = Path("notebooks/03b_ocfl_controls.ipynb")


KIT = "https://github.com/someone/kit", "abc123"


def test_colabs_copy_is_the_notebook_with_links_to_the_code_host_and_installs_the_kit():
    original = json.loads((PROJECT / PAGE).read_text(encoding="utf-8"))
    copy = launch.for_colab(original, PAGE, *KIT)
    nbformat.validate(nbformat.from_dict(copy))
    command = next(cell for cell in copy["cells"] if cell["cell_type"] == "code")["source"]
    *options, kit = command.split()
    assert options[:3] == ["%pip", "install", "--quiet"]
    assert kit == "git+https://github.com/someone/kit@abc123"
    locked = (PROJECT / "requirements.lock").read_text().splitlines()
    assert set(options[3:]) <= set(locked)
    names = {Requirement(pin).name for pin in options[3:]}
    assert {"numpy", "hdbscan", "pot", "captum"} <= names
    assert not {"torch", "torchvision"} & names, "Colab keeps its own"
    for before, after in zip(original["cells"], copy["cells"][2:], strict=True):
        if before["cell_type"] == "code":
            assert after["outputs"] == before["outputs"]
            assert after["source"] == "".join(before["source"])
    text = "".join(cell["source"] for cell in copy["cells"] if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all(target.startswith(("https://", "#", "attachment:")) for target in targets)
    assert not any("/../" in target for target in targets)
    images = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    raw = "https://github.com/someone/kit/raw/abc123/figures/"
    assert images and all(image.startswith(raw) for image in images), "pages are no images"


def test_a_page_links_to_binder_and_from_github_to_colab():
    told = launch.links(PAGE, *KIT)
    assert "/v2/git/https%3A%2F%2Fgithub.com%2Fsomeone%2Fkit/abc123?urlpath=lab/tree/" in told
    assert "/github/someone/kit/blob/gh-pages/colab/03b_ocfl_controls.ipynb" in told
    assert "Colab" not in launch.links(PAGE, "https://gitlab.com/someone/kit", "abc123")


def test_binder_installs_the_locked_versions_of_this_clone():
    folder = PROJECT / ".binder"
    lines = (folder / "requirements.txt").read_text().splitlines()
    options = dict(line[2:].split(" ", 1) for line in lines if line.startswith("--"))
    assert (folder / options["constraint"]).resolve() == PROJECT / "requirements.lock"
    assert options["editable"] == ".[notebooks]"
    assert (folder / "runtime.txt").read_text().strip() == "python-3.11"
