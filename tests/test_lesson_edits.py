"""What a student tries: each lesson with other values of its parameters.

A lesson ends in its results, or refuses a value with the reason before anything is trained. A
training that diverges says so itself, since nobody can know it before. An execution has values of
many parameters, to save hours.
"""

import random
import re
import shlex
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest

from cflkit._bounds import Mistake
from cflkit.federation import Diverged, Federation
from cflkit.reproduce import notebooks, papers, records
from cflkit.reproduce.values import options

LESSONS = {
    path.stem.split("_")[0]: notebooks.read_notebook(path)
    for path in sorted((records.PROJECT / "notebooks").glob("[01][0-9]*_*.ipynb"))
}
# Edits that once ended in a traceback of internals
EDITS = [
    ("03", {"lr": 1e-6}),
    ("04", {"cut": 2.5}),
    ("06", {"dirtiness": 0.0}),
    ("06", {"threshold": 0.1}),
    ("07", {"lr": 1e-6, "draws": 20}),
    ("03b", {"clients": 3, "until": "clusters"}),
    ("05b", {"until": "clusters"}),
    ("08b", {"until": "clusters"}),
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
    "05b": {"samples": 40, "local_epochs": 2, "repeats": 1, "range_epochs": [1]},
    "06b": {"local_epochs": 2, "rounds": 2, "iterations": 2, "dec_steps": 20},
    "07b": {"rounds": 3, "repeats": 1, "sample_size": 10},
    "08b": {"local_epochs": 1, "rounds": 12, "repeats": 1},
    "10b": {"repeats": 1},
}


def ends(schema: dict[str, Any], usual: Any) -> list[Any]:
    """Return the values at the ends of a parameter's bounds, and two that are drawn in between."""
    if "anyOf" in schema:
        return [end for own in schema["anyOf"] for end in ends(own, usual)]
    if schema["type"] in ("integer", "number"):
        return list(of_numbers(schema, usual))
    if schema["type"] == "array" and isinstance(usual, list) and "items" in schema:
        return [usual[: max(1, schema.get("minItems", 0))]]
    others = {"null": [None], "boolean": [not usual]}.get(schema["type"], [])
    return [schema["const"]] if "const" in schema else schema.get("enum", others)


def of_numbers(schema: dict[str, Any], usual: Any) -> Iterator[Any]:
    """Yield the ends of a number's bounds, and two numbers that are drawn in between."""
    kind = int if schema["type"] == "integer" else float
    step, draw = schema.get("multipleOf", 1), random.Random(str(schema))
    low = schema.get("ge", schema.get("minimum", schema.get("exclusiveMinimum")))
    below = schema.get("exclusiveMaximum", 1e38) - (1e-9 if kind is float else step)
    high = schema.get("le", schema.get("maximum", below))
    if kind is int:
        low = -(-low // step) * step
        # An end that only costs time, as a million rounds, is far away: twice the default is run
        high = high if high <= 1000 else 2 * step * max(1, (usual or low) // step)
    yield from (kind(low), kind(high))
    near = usual if isinstance(usual, kind) and usual else max(low, 1)
    for _ in range(2):  # by factors, as people try values
        drawn = min(max(near * 10 ** draw.uniform(-1, 0.3), low), high)
        yield kind(drawn) // step * step if kind is int else float(f"{drawn:.2g}")


def edits() -> Iterator[Any]:
    """Yield `EDITS`, and each lesson with values of its parameters until each had all of its own.

    The first parameter begins with its first value, the second with its second, and so on, so that
    not all have their least or their greatest values in one execution.
    """
    yield from (pytest.param(*edit, marks=pytest.mark.slow) for edit in EDITS)
    for lesson, notebook in LESSONS.items():
        schemas = papers.parameters_of(notebook.path.stem).model_json_schema()["properties"]
        usual = (notebook.defaults | SMALL.get(lesson, {})).items()
        others = {n: [o for o in ends(schemas[n], own) if o != own] for n, own in usual}
        turns = max(map(len, others.values()))
        for turn in range(turns):
            places = ((name, place % turns) for place, name in enumerate(others, turn))
            edited = {n: others[n][place] for n, place in places if place < len(others[n])}
            yield pytest.param(lesson, edited, id=f"{lesson}-{turn}", marks=pytest.mark.nightly)


@pytest.fixture
def trained(monkeypatch):
    """Draw figures coarsely, show none, and note in which round clients trained."""
    rounds: list[int] = []
    train = Federation.train

    def noted(self, jobs, round, *others, **options):
        rounds.append(round)
        return train(self, jobs, round, *others, **options)

    monkeypatch.setattr(Federation, "train", noted)
    monkeypatch.setattr("cflkit.plots.page.SHARPNESS", 0.3)
    monkeypatch.setattr("IPython.display.display", lambda *shown, **options: None)
    monkeypatch.chdir(records.PROJECT / "notebooks")
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


@pytest.mark.parametrize(("lesson", "edited"), list(edits()))
def test_edits_end_in_results_or_are_refused_before_training(lesson, edited, trained):
    """Where a lesson ends without results, the edits are split to see what each of them does.

    Those that the message names are one part, or else the first half.
    """
    values = SMALL.get(lesson, {}) | edited
    command = f"python -m cflkit run {lesson} {shlex.join(options(values))}"
    trained.clear()
    try:
        return execute(lesson, values)
    except Mistake as mistake:
        message = str(mistake).replace("learning rate", "lr, momentum, weight_decay")
        assert message and (isinstance(mistake, Diverged) or not trained), f"{message} {command}"
    except Exception as error:
        error.add_note(command)
        raise
    if len(edited) > 1:
        blamed = [name for name in edited if re.search(rf"\b{name}\b", message)]
        if len(blamed) in (0, len(edited)):
            blamed = list(edited)[: len(edited) // 2]
        for part in (blamed, [name for name in edited if name not in blamed]):
            edits_of_part = {name: edited[name] for name in part}
            test_edits_end_in_results_or_are_refused_before_training(lesson, edits_of_part, trained)
