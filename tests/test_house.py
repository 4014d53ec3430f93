"""The limits of the house: lines, circles of imports, and how many files a round walks through."""

import re

import house
import pytest
from code_lines import BASELINE, PACKAGE, SOFT, SOFT_METHODS, room_of
from house import HERE as PROJECT

FILES = sorted(PACKAGE.rglob("*.py"))


def test_no_file_of_the_first_ring_is_large():
    first = [path for path in FILES if room_of(path) in ("ring 1", "baselines")]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in first}
    assert {path: n for path, n in lengths.items() if n > house.LARGE} == {}


@pytest.mark.slow
def test_no_imports_form_a_circle():
    assert house.circles() == []


@pytest.mark.slow
def test_a_round_walks_through_twelve_files():
    for method, called in house.traced(*house.METHODS, threads=2).items():
        assert 5 < len({file for file, _ in called}) <= 12, method


@pytest.mark.slow
def test_one_batch_passes_the_files_of_its_page_in_their_order():
    page = (PROJECT / "notebooks" / "one_batch.md").read_text(encoding="utf-8")
    named = re.findall(r"^\d+\. \[`(.*?)`\]\(\.\./cflkit/(.*?)\)", page, re.M)
    assert all(text == target for text, target in named)
    # In the order in which the first function of each is called
    passed = dict.fromkeys(file for file, _ in house.traced("batch", threads=1)["batch"])
    assert [text for text, _ in named] == [*passed] and len(passed) <= 25


def test_a_baseline_is_one_short_file():
    for path in (path for path in FILES if room_of(path) == "baselines"):
        most = SOFT if path.stem in SOFT_METHODS else BASELINE
        assert len(house.lines_of_code(path.read_text(encoding="utf-8"))) <= most, path.name
