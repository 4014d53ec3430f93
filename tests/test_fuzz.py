"""Two doors get altered inputs: each is refused in its own words, or is what it says.

The seed is another one each time, and a failure prints it. ``CFLKIT_FUZZ=SEED`` repeats a night.
"""

import copy
import json
import os
import random
import shutil
from contextlib import suppress

import pages
import pytest

from cflkit.reproduce import grid, ledger, lists, notebooks, records, replay
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.values import read_yaml

pytestmark = pytest.mark.nightly

INPUTS = 500
SEED = int(os.environ.get("CFLKIT_FUZZ") or random.randrange(2**32))
# What is likely to be taken for something else
TOKENS = ("0x1f", "1e999", "-1", "9" * 40, "[" * 30, "{a: ", "&a [*a]", "*a", "\0", "None", "true")
TOKENS += ("!!python/name:os.x ", ".nan", "Infinity", '"', "'", ":", "\n", "\r", "\t", "\ufeff")
TOKENS += ("é", ",", "--output=x")
VALUES = (None, True, -1, 2**70, 1.5, float("inf"), "", "x", "--output=x")
VALUES += ([], [[]], {}, {"a": None})


def draws(door):
    """Yield the generators of a door's inputs, and print the seed of a failure."""
    for number in range(INPUTS):
        print(f"CFLKIT_FUZZ={SEED} {door} {number}")
        yield random.Random(f"{SEED} {door} {number}")


def altered(chance, raw):
    """Flip, cut, repeat or put in some bytes at a few places."""
    for _ in range(chance.randint(1, 3)):
        first, last = sorted(chance.choices(range(len(raw) + 1), k=2))
        last = min(last, first + chance.choice((1, 8, 10**6)))
        flipped = bytes([chance.randrange(256)])
        part = (flipped, b"", 2 * raw[first:last], chance.choice(TOKENS).encode())
        raw = raw[:first] + chance.choice(part) + raw[last:]
    return raw


def replaced(chance, tree):
    """Put another value into a place of a tree of dicts and lists."""
    tree, place = copy.deepcopy(tree), None
    node = tree
    while isinstance(node, dict | list) and node and (place is None or chance.random() < 0.8):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        place = node, chance.choice(keys)
        node = node[place[1]]
    place[0][place[1]] = chance.choice(VALUES)
    return tree


def test_parameters(tmp_path):
    lesson = notebooks.read_notebook(grid.NOTEBOOKS / "03b_ocfl_controls.ipynb")
    files = sorted((grid.PARAMS / "ocfl").glob("*/*.yaml"))
    path = tmp_path / "parameters.yaml"
    taken = 0
    for chance in draws("parameters"):
        path.write_bytes(altered(chance, chance.choice(files).read_bytes()))
        try:
            values, _ = lesson.check(read_yaml(path))
        except ParameterError as error:
            assert len(str(error)) < 10_000
        else:
            taken += 1
            assert values.keys() <= lesson.defaults.keys()
    assert 0 < taken < INPUTS


def test_records(tmp_path):
    committed = [run for run in records.committed() if len(run.rounds) < 200]
    taken = 0
    for chance in draws("records"):
        run = chance.choice(committed)
        folder = tmp_path / run.id
        shutil.copytree(run.folder, folder)
        file, sealed = chance.choice(("record.json", "rounds.csv")), chance.random() < 0.7
        if file == "record.json" and sealed:
            contents = replaced(chance, json.loads((folder / file).read_text()))
            (folder / file).write_text(json.dumps(contents))
        else:
            (folder / file).write_bytes(altered(chance, (folder / file).read_bytes()))
        if sealed:
            contents = json.loads((folder / "record.json").read_text())
            (folder / "record.json").write_text(json.dumps(records.sealed(contents, folder)))
        for found in records.read_all([folder]):
            taken += sealed
            if not sealed:
                assert (found.parameters, found.summary) == (run.parameters, run.summary)
                assert found.rounds.equals(run.rounds)
            with suppress(ParameterError):  # of a table that is damaged
                use(found)
        shutil.rmtree(folder)
    assert 0 < taken < INPUTS


def use(run):
    """Do with a record what the ledger, the README and the lists do."""
    lists.listing([run])
    lists.side_by_side([run])
    pages.true_groups([run])
    for paper in PAPERS.values():
        if (scale := ledger.scale(run, paper.name)) is not None:
            evidence = ledger.Evidence(paper.name, scale, [run])
            for cell in ledger.published().query("paper == @paper.name").to_dict("records"):
                evidence.samples(cell)
    rows = run.table(**records.TEXTS)
    replay.verdicts(rows, rows)
