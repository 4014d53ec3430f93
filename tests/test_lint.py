"""The linter of notebooks finds what it looks for."""

import re

import pytest
from lint_notebooks import Page, faults

LESSON = Page("03_ocfl_temperature")
LONG = "x = 1\\\\n" * 30  # as lines in a notebook's JSON


FAULTS = [
    ("temperature", "heat", "differs from its source"),
    ('"name": "stdout"', '"name": "stderr"', "has an error or a warning"),
    ('"execution_count": 5', '"execution_count": 0', "was not run in order"),
    ('"nbval-check-output"', '"other"', "prints what nbval does not compare"),
    ('"parameters"', '"other"', "has 0 cells of parameters"),
    ('"seed = 0  # who', '"x = 1  # y\\\\n", "seed = 0  # who', "parameters, more than 6"),
    ("  # ", " # ", "does not say what a parameter means"),
    (r"\*\*Question\.\*\*", "Question:", "has no ^\\*\\*Question"),
    (r"04_sattler_and_briggs\.ipynb", "04_gone.ipynb", "which is not there"),
    (r"\]\(04_sattler_and_briggs\.ipynb", "](../README.md", "has no link to 04_"),
    (r'(round 1, too",\s+)true', r"\1false", "has a claim that is wrong"),
    ('"def temperature_by_hand', f'"{LONG}", \\g<0>', "lines of code, more than 15"),
    ("## What we saw", "word " * 2000 + r"\\n\g<0>", "words of prose, more"),
    ("## What we saw", r"\g<0>\\n![](x.png)", "a picture without an alternative text"),
    ('"width": [0-9]+', '"width": 900', "1 that is too wide"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "spoiled", "fault"), FAULTS)
def test_a_fault_is_found(part, spoiled, fault):
    assert not any(fault in found for found in faults(LESSON))
    other = Page(LESSON.name, re.sub(part, spoiled, LESSON.file))
    assert any(fault in found for found in faults(other))
