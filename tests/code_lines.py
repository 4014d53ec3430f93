"""The size of the package's rooms in lines of code, beside what they may have: ``make lint``.

A line of code has neither only a comment nor only a part of a docstring. With ``--strict``, the
script fails where a room has more than its budget.
"""

import sys
from collections import Counter
from pathlib import Path

from house import HERE, lines_of_code

PACKAGE = HERE / "cflkit"
# The rooms that are no part of ring 1, by the folder or file of the package
ROOMS = {
    "reproduce": "ring 2",
    "commands.py": "ring 2",
    "__main__.py": "ring 2",
    "course": "course",
    "check.py": "course",
    "flower": "Flower",
    "groups": "instrument",
    "compare": "instrument",
}
BUDGETS = {"ring 1": 5_700, "ring 2": 3_000, "course": 460, "Flower": 700, "package": 11_800}
BUDGETS["instrument"] = 750 - 45  # the 45 lines are those of `methods/ocfl_replicated.py`
# What `tests/test_house.py` allows a baseline; those that mix models have more to write down
BASELINE, SOFT = 60, 80
SOFT_METHODS = {"fedce", "fedem", "fedrc", "fedsoft", "pfedgraph"}


def room_of(path: Path) -> str:
    """Return the room of a file of the package."""
    first = path.relative_to(PACKAGE).parts[0]
    if path.parent.name == "baselines":
        return "baselines"
    return ROOMS.get(first, "ring 1")


def main() -> int:
    """Print the table; return 1 if it is strict, and a room has more lines than it may have."""
    sizes = {path: len(lines_of_code(path.read_text("utf-8"))) for path in PACKAGE.rglob("*.py")}
    rooms = Counter(package=sum(sizes.values()))
    for path, size in sizes.items():
        rooms[room_of(path)] += size
    rooms["tests"] = sum(
        len(lines_of_code(p.read_text("utf-8"))) for p in HERE.glob("tests/**/*.py")
    )
    makers = {*HERE.glob("notebooks/src/**/*.py")} - {*HERE.glob("notebooks/src/**/[0-9L]*.py")}
    rooms["page makers"] = sum(len(lines_of_code(p.read_text("utf-8"))) for p in makers)
    budgets = BUDGETS | {"tests": rooms["package"]}
    print("lines of code       have  may have")
    for room, size in rooms.items():
        budget = budgets.get(room)
        over = "  too many" if budget and size > budget else ""
        print(f"{room:16s}{size:8,d}{budget or '':>10}{over}")
    too_many = any(size > budgets.get(room, size) for room, size in rooms.items())
    return int("--strict" in sys.argv and too_many)


if __name__ == "__main__":
    sys.exit(main())
