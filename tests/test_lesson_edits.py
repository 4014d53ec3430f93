"""What a student tries: each lesson with other values of its parameters, one at a time.

A lesson ends in its results, or refuses a value with the reason before anything is trained. A
training that diverges says so itself, since nobody can know it before.
"""

import random
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest

from cflkit.datasets import DatasetError
from cflkit.federation import Diverged, Federation
from cflkit.partition import PartitionError
from cflkit.plots import page
from cflkit.reproduce import notebooks, papers
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import PROJECT

LESSONS = {
    path.stem.split("_")[0]: notebooks.read_notebook(path)
    for path in sorted((PROJECT / "notebooks").glob("[01][0-9]*_*.ipynb"))
}
REFUSALS = ParameterError, DatasetError, PartitionError
# Edits that once ended in a traceback of internals
EDITS = [
    ("03", "lr", 1e-6),
    ("04", "cut", 2.5),
    ("06", "dirtiness", 0.0),
    ("06", "threshold", 0.1),
    ("07", "lr", 1e-6),
    ("07", "draws", 20),
    ("03b", "clients", 3),
    ("03b", "until", "clusters"),
    ("05b", "until", "clusters"),
    ("08b", "until", "clusters"),
]
# Other parameters, where the defaults take long
SMALL: dict[str, dict[str, Any]] = {
    "00": {"rounds": 2},
    "02": {"rounds": 6},
    "03": {"rounds": 6},
    "04": {"rounds": 6},
    "05": {"rounds": 2},
    "06": {"clients": 6, "samples": 60},
    "07": {"rounds": 5},
    "02b": {"rounds": 2, "repeats": 1},
    "03b": {"rounds": 4, "repeats": 1},
    "04b": {"rounds": 6, "repeats": 1},
    "05b": {"repeats": 1, "range_epochs": [1]},
    "06b": {"local_epochs": 2, "rounds": 2, "iterations": 2, "dec_steps": 20},
    "07b": {"rounds": 3, "repeats": 1, "sample_size": 10},
    "08b": {"rounds": 12, "repeats": 1},
    "10b": {"repeats": 1},
}
# An end that only costs time, as a million rounds, is far away: this many times the default is run
FAR, TIMES = 1000, 2


def ends(schema: dict[str, Any], usual: Any) -> Iterator[Any]:
    """Yield the values at the ends of a parameter's bounds, and two that are drawn in between."""
    if "anyOf" in schema:
        for own in schema["anyOf"]:
            yield from ends(own, usual)
    elif schema["type"] == "null":
        yield None
    elif "const" in schema or "enum" in schema:
        yield from schema.get("enum", [schema.get("const")])
    elif schema["type"] == "boolean":
        yield not usual
    elif schema["type"] == "array" and isinstance(usual, list) and "items" in schema:
        yield usual[: max(1, schema.get("minItems", 0))]
    elif schema["type"] in ("integer", "number"):
        yield from of_numbers(schema, usual)


def of_numbers(schema: dict[str, Any], usual: Any) -> Iterator[Any]:
    """Yield the ends of a number's bounds, and two numbers that are drawn in between."""
    kind = int if schema["type"] == "integer" else float
    step, draw = schema.get("multipleOf", 1), random.Random(str(schema))
    low = schema.get("ge", schema.get("minimum", schema.get("exclusiveMinimum")))
    high = schema.get("le", schema.get("maximum", schema.get("exclusiveMaximum", 1e38)))
    if "exclusiveMaximum" in schema:
        high -= 1e-9 if kind is float else step
    if kind is int and high > FAR:
        high = TIMES * step * max(1, (usual or low) // step)
    low = -(-low // step) * step if kind is int else low
    yield from (kind(low), kind(high))
    near = usual if isinstance(usual, kind) and usual else max(low, 1)
    for _ in range(2):  # by factors, as people try values
        drawn = min(max(near * 10 ** draw.uniform(-1, 0.3), low), high)
        yield kind(drawn) // step * step if kind is int else float(f"{drawn:.2g}")


def edits() -> Iterator[Any]:
    """Yield each lesson with each value of each parameter, other than its default."""
    for lesson, notebook in LESSONS.items():
        schemas = papers.parameters_of(notebook.path.stem).model_json_schema()["properties"]
        for name, usual in notebook.defaults.items():
            for text, value in {repr(end): end for end in ends(schemas[name], usual)}.items():
                if text != repr(usual):
                    label = f"{lesson}-{name}-{text}"
                    yield pytest.param(lesson, name, value, id=label, marks=pytest.mark.nightly)


@pytest.fixture
def trained(monkeypatch):
    """Draw figures coarsely, show none, and note in which round clients trained."""
    rounds: list[int] = []
    train = Federation.train

    def noted(self, jobs, round, *others, **options):
        rounds.append(round)
        return train(self, jobs, round, *others, **options)

    monkeypatch.setattr(Federation, "train", noted)
    monkeypatch.setattr(page, "SHARPNESS", 0.3)
    monkeypatch.setattr("IPython.display.display", lambda *shown, **options: None)
    monkeypatch.chdir(PROJECT / "notebooks")
    with plt.rc_context():
        yield rounds
    plt.close("all")


def execute(lesson: str, values: dict[str, Any]) -> None:
    """Execute the code of a lesson's cells in this process, with some values of parameters."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in LESSONS[lesson].tree.cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"lesson {lesson}", "exec"), names)
            if "parameters" in cell.metadata.get("tags", ()):
                names |= values


@pytest.mark.parametrize(
    ("lesson", "name", "value"),
    [*(pytest.param(*edit, marks=pytest.mark.slow) for edit in EDITS), *edits()],
)
def test_an_edit_ends_in_a_result_or_is_refused_before_training(lesson, name, value, trained):
    try:
        execute(lesson, SMALL.get(lesson, {}) | {name: value})
    except REFUSALS as refusal:
        assert str(refusal)
        assert not trained, f"refused only after training: {refusal}"
    except Diverged:
        pass
