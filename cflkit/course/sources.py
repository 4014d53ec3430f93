"""Read exercises from their sources, ``notebooks/src/exercises/NN_topic_exercises.py``.

A source has jupytext's percent format, and is all that there is of its exercises. A heading such
as ``## 03.2`` begins an exercise, which has these cells after its question:

- the answer, with the solution between ``### BEGIN SOLUTION`` and ``### END SOLUTION``, or, for an
  answer in words, a Markdown cell with the tag ``answer``;
- the check, such as ``check("03.2", temperature)``;
- a cell with the tag ``exercise``. It names the `Exercise` and what else only the check needs: the
  random inputs, the usual mistakes with their hints, the experiment, the rubric.

Cells with this tag are not in the notebooks of students. The check executes them, together with the
answer and those cells before them whose names they use.
"""

import re
import symtable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from cflkit._bounds import hint
from cflkit._project import KIT
from cflkit.course.exercises import Exercise
from cflkit.reproduce.parameters import ParameterError

SOURCES = KIT / "notebooks" / "src"

CELL = re.compile(r'^# %%(?: \[(markdown)\])?(?: tags=\["(\w+)"\])?\n', re.M)
HEADING = re.compile(r"\A## ([\dL]\d\.\d+)$", re.M)
CHECK = re.compile(r'\Acheck\("([\dL]\d\.\d+)", (\w+)\)\Z')
SOLUTION = re.compile(r"^( *)### BEGIN SOLUTION\n(.*?)^ *### END SOLUTION\n?", re.S | re.M)


class CourseError(ParameterError):
    """There is no such exercise or course; the message is one line."""


@dataclass(frozen=True)
class Cell:
    """A cell of a source."""

    kind: str  # ``code`` or ``markdown``
    source: str
    role: str = "text"  # or its tag, or ``answer`` or ``check``
    exercise: str = ""  # to which it belongs; empty before the first one
    line: int = 0  # its first one in the file, from 0


def by_lesson(pattern: str = "exercises/[!.]*.py") -> dict[str, Path]:
    """Return the sources of exercises, or others, by their lesson, in order.

    The name of each file begins with its lesson or lab, such as ``03`` or ``L1``.
    """
    return {path.stem[:2]: path for path in sorted(SOURCES.glob(pattern))}


@cache
def cells_of(path: Path) -> list[Cell]:
    """Read the cells of a source."""
    text = path.read_text(encoding="utf-8")
    cells: list[Cell] = []
    exercise = ""
    for header, body in zip(CELL.finditer(text), CELL.split(text)[3::3], strict=True):
        kind, source = header[1] or "code", body.strip("\n")
        if kind == "markdown":
            source = re.sub(r"^# ?", "", source, flags=re.M)
            exercise = heading[1] if (heading := HEADING.match(source)) else exercise
        roles = {"answer": SOLUTION.search(source), "check": CHECK.match(source), "text": True}
        role = header[2] or next(name for name, matches in roles.items() if matches)
        cells.append(Cell(kind, source, role, exercise, text.count("\n", 0, header.end())))
    return cells


def ids(path: Path) -> list[str]:
    """Return the exercises of a source in their order."""
    return list(dict.fromkeys(cell.exercise for cell in cells_of(path) if cell.exercise))


def source_of(id: str) -> Path:
    """Return the source that has an exercise, such as ``03.2``.

    Raises
    ------
    CourseError
        There is no such exercise; the message names one that may be meant, or all.
    """
    known = {each: path for path in by_lesson().values() for each in ids(path)}
    if id not in known:
        # 1.1 is meant as 01.1
        near = hint(str(id).zfill(4), known) or f"; there are {', '.join(known)}"
        raise CourseError(f"no exercise {id!r}{near}")
    return known[id]


def exercise_of(id: str) -> Exercise:
    """Return the exercise with an id; see `source_of`."""
    return cast(Exercise, hidden(id, "exercise"))


def hidden(id: str, name: str) -> Any:
    """Return what the cell of an exercise that students do not see calls by a name."""
    return executed(id)[name]


@cache
def executed(id: str) -> dict[str, Any]:
    """Execute the cells that define an exercise; return all names of them."""
    path = source_of(id)
    cells = [cell for cell in cells_of(path) if cell.kind == "code"]
    places = {cell.role: place for place, cell in enumerate(cells) if cell.exercise == id}
    names: dict[str, Any] = {}
    for place in needed(cells, [places[role] for role in ("answer", "exercise") if role in places]):
        # With empty lines before it, an error names the line of the file
        exec(compile("\n" * cells[place].line + cells[place].source, str(path), "exec"), names)
    names["exercise"].id = id
    if "check" in places and (check := CHECK.match(cells[places["check"]].source)):
        names["exercise"].solution = names[check[2]]
    return names


def needed(cells: Sequence[Cell], wanted: Sequence[int]) -> list[int]:
    """Return the places of some cells and of all cells on whose names they depend.

    A name belongs to the cell that was the last one to define it.
    """
    names = [used_and_defined(cell.source) for cell in cells]
    waiting, chosen = list(wanted), set()
    while waiting:
        place = waiting.pop()
        if place not in chosen:
            chosen.add(place)
            for name in names[place][0]:
                waiting += [k for k in range(place) if name in names[k][1]][-1:]
    return sorted(chosen)


def used_and_defined(code: str) -> tuple[set[str], set[str]]:
    """Return the global names that code uses but does not define, and those that it defines."""
    scopes = [symtable.symtable(code, "a cell", "exec")]
    defined = {s.get_name() for s in scopes[0].get_symbols() if s.is_assigned() or s.is_imported()}
    for scope in scopes:  # with those of functions and classes, which are added meanwhile
        scopes += scope.get_children()
    symbols = [s for scope in scopes for s in scope.get_symbols()]
    used = {s.get_name() for s in symbols if s.is_global() and s.is_referenced()}
    return used - defined, defined
