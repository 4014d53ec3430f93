"""Run the first rounds of a record again, and say whether they come out the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cflkit import papers
from cflkit.parameters import ParameterError
from cflkit.records import Record

SAME, ROUNDED, DIFFERENT = "same", "same to rounding", "different"
# How far a number may lie from the recorded one to differ by rounding alone: as a share of it, or
# in units of a score. A processor's last bit grows with each step of training
RELATIVE, ABSOLUTE = 0.02, 0.005

Row = Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """How a replayed round compares with the recorded one.

    Attributes
    ----------
    round : int
        From 1; 0 is the start, where there is something to measure before the first round.
    outcome : {"same", "same to rounding", "different"}
        The worst over methods and columns. The same means to the last digit that records have.
    where : list of str
        ``method: column`` of what is not the same.
    """

    round: int
    outcome: str
    where: list[str]


def replay(record: Record, rounds: int | None = None) -> list[Verdict]:
    """Run the first rounds of a record again, with the code as it is now.

    Parameters
    ----------
    record : Record
        Of a paper of the kit.
    rounds : int, optional
        How many; two by default. A record that is made after the last round needs them all.

    Returns
    -------
    list of Verdict
        One per round.

    Raises
    ------
    ParameterError
        No paper knows the record, its parameters are refused, a number of rounds that it does not
        have, or its clients get other samples now.
    """
    paper = papers.by_record(record.id)
    if paper is None:
        raise ParameterError(f"{record.id} is a record of no paper of the kit")
    run = paper.parameters.checked(record.parameters)
    every = paper.rounds(run)
    count = rounds or (every if paper.after_the_last else min(2, every))
    if not 1 <= count <= every or (paper.after_the_last and count < every):
        needed = "needs them all" if paper.after_the_last else "cannot be run for so many"
        raise ParameterError(f"{record.id} has {every} rounds and {needed}: {count}")
    images, split = paper.data(run)
    if not split.matches(record.provenance["partition_hash"]):
        raise ParameterError(f"{record.id}: its clients get other samples now than they had")
    federation = paper.federation(run, images, split)
    methods = paper.line_up(run, images, split)
    history = paper.play(run, federation, methods, count)
    text = history.table().to_csv(index=False, float_format="%.9g")
    with (record.folder / "rounds.csv").open(encoding="utf-8", newline="") as file:
        return list(compare(list(csv.DictReader(file)), list(csv.DictReader(io.StringIO(text)))))


def compare(recorded: list[dict[str, str]], replayed: list[dict[str, str]]) -> Iterator[Verdict]:
    """Compare rows that belong together, round by round.

    Columns that the record does not have do not count, nor do values that were not measured then.
    """
    expected = dict(numbered(recorded))
    found: dict[int, list[tuple[str, str]]] = {}
    for key, row in numbered(replayed):
        here = found.setdefault(int(row["round"]), [])
        if key not in expected:
            here.append((DIFFERENT, f"{row['method']}: a row that the record does not have"))
            continue
        old = expected[key]
        here += [
            (alike(old[column], row[column]), f"{row['method']}: {column}")
            for column in old
            if column in row and old[column]
        ]
    for number, outcomes in sorted(found.items()):
        worst = max((outcome for outcome, _ in outcomes), key=(SAME, ROUNDED, DIFFERENT).index)
        yield Verdict(number, worst, [where for outcome, where in outcomes if outcome != SAME])


def numbered(rows: list[dict[str, str]]) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Give each row a key: method, round, and its place among the rows of both."""
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        both = row["method"], row["round"]
        seen[both] = seen.get(both, -1) + 1
        yield (*both, str(seen[both])), row


def alike(old: str, new: str) -> str:
    """Compare two texts of a record: a number, several joined by ``|``, or neither."""
    if old == new:
        return SAME
    pairs = list(zip(old.split("|"), new.split("|"), strict=False))
    if old.count("|") != new.count("|"):
        return DIFFERENT
    return ROUNDED if all(near(*pair) for pair in pairs) else DIFFERENT


def near(old: str, new: str) -> bool:
    """Return whether two numbers differ by rounding alone; whole numbers and texts never do."""
    if old == new:
        return True
    if old.lstrip("-").isdecimal() and new.lstrip("-").isdecimal():
        return False
    try:
        expected, found = float(old), float(new)
    except ValueError:
        return False
    return abs(expected - found) <= max(ABSOLUTE, RELATIVE * abs(expected))
