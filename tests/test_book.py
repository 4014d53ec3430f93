"""The book: it is built, each of its links leads somewhere, and each picture has a text."""

import json
import re
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import bs4  # of the book's theme
import pytest

from cflkit import _project
from cflkit.reproduce.records import PROJECT

pytestmark = pytest.mark.nightly


class Page:
    """What a page has: ids, links, and pictures with their texts."""

    def __init__(self, path):
        tags = bs4.BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").find_all()
        self.ids = {tag[name] for tag in tags for name in ("id", "name") if tag.get(name)}
        self.pictures = [(tag.get("src", ""), tag.get("alt")) for tag in tags if tag.name == "img"]
        self.links = [tag["href"] for tag in tags if tag.name == "a" and tag.get("href")]
        self.links += [source for source, _ in self.pictures]


@pytest.fixture(scope="module")
def book(repository, tmp_path_factory):
    """Build the book; return its folder, its pages and the messages."""
    pytest.importorskip("myst_nb", reason='needs the book\'s tools: pip install "cflkit[book]"')
    pytest.importorskip("sphinx_book_theme", reason="needs the book's theme")
    site = (tmp_path_factory.mktemp("book") / "site").resolve()
    command = [sys.executable, PROJECT / "notebooks" / "src" / "book" / "build.py", site]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site, {path: Page(path) for path in site.rglob("*.html")}, done.stderr


def test_the_book_has_every_notebook_and_page_and_builds_without_warnings(book):
    site, pages, told = book
    names = {path.relative_to(site).with_suffix("").as_posix() for path in pages}
    listed = _project.git("ls-files", "notebooks/*.ipynb", "notebooks/*.md").splitlines()
    expected = {line.rsplit(".", 1)[0] for line in listed if "src" not in line}
    assert expected <= names
    assert {"README", "index", "search", "api/cflkit.methods.ocfl"} <= names
    assert "WARNING" not in told and "ERROR" not in told, told
    contents = set(pages[site / "index.html"].links)
    assert {f"{name}.html" for name in expected} <= contents, "every page is in the contents"


def test_no_link_is_broken(book):
    _, pages, _ = book
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or (not parts.path and not parts.fragment):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            ids = pages[target].ids if target in pages else {unquote(parts.fragment)}
            if not target.exists() or unquote(parts.fragment) not in ids | {""}:
                broken.append(f"{path.name}: {link}")
    assert not broken, "\n".join(broken)


def test_the_ledger_has_a_page_with_every_number_and_the_home_leads_to_it(book):
    site, pages, _ = book
    assert "const at = " in (site / "ledger.html").read_text(encoding="utf-8")
    text = (site / "ledger_data.js").read_text(encoding="utf-8")
    data = json.loads(text.removeprefix("const LEDGER = ").removesuffix(";\n"))
    lines = (PROJECT / "data" / "ledger.csv").read_text(encoding="utf-8").splitlines()
    assert len(data["rows"]) == len(lines) - 1
    for row in (dict(zip(data["columns"], row, strict=True)) for row in data["rows"]):
        for scale in ("ours", "reduced"):  # what the strips show is what the ledger summarises
            seeds = row[f"{scale}_seeds"]
            assert (row[scale] is None) == (not seeds)
            assert not seeds or row[scale] == pytest.approx(sum(seeds) / len(seeds), rel=1e-3)
    assert all(command.startswith("python -m cflkit run ") for _, command in data["runs"])
    for page in ("index", "notebooks/results", "notebooks/90_ledger"):
        assert any(link.endswith("ledger.html") for link in pages[site / f"{page}.html"].links)


def test_each_lesson_has_a_page_to_hand_out_and_slides_without_a_network(book):
    site, pages, _ = book
    for lesson in PROJECT.glob("notebooks/[01][0-9]_*.ipynb"):
        sheet = site / "handouts" / f"{lesson.stem[:2]}.html"
        slides = sheet.with_stem(f"{sheet.stem}_slides")
        assert len(pages[sheet].pictures) == 1
        figures = lesson.read_text(encoding="utf-8").count('"image/png": "')
        sections = slides.read_text(encoding="utf-8").count("<section>")
        assert sections >= figures + 3, "a title, the figures, and two of words"
        for page in (sheet, slides):
            assert all(source.startswith("data:") for source, _ in pages[page].pictures)
            assert not re.findall(r"https?:|<script|<link|@import", page.read_text("utf-8"))
        assert f"handouts/{slides.name}" in pages[site / "handouts.html"].links


def test_pages_are_small_and_pictures_have_texts(book):
    _, pages, _ = book
    for path, page in pages.items():
        assert path.stat().st_size < 2_000_000, path.name
        assert all(text for _, text in page.pictures), (path.name, page.pictures)
