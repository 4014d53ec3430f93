"""Replay of the first rounds of a record, and comparison of the results with the record."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cflkit.metrics import MEASURES
from cflkit.reproduce import papers
from cflkit.reproduce.papers.base import Paper
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import Record

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.partition import Partition

SAME, ROUNDED, DIFFERENT = "same", "same to rounding", "different"
# The largest difference from the recorded number that counts as rounding: a share of that number,
# or an absolute difference. Differences in the last bit between processors grow with each step
RELATIVE, ABSOLUTE, ABSOLUTE_OF_SHARES = 0.02, 1e-6, 0.005
# Columns with values between 0 and 1, or nearly so; EMD-CFL's scores are differences of cosine
# distances. Others have no scale: temperatures of networks with BatchNorm are around 0.001
SHARES = (*MEASURES, "wrong", "empty", "confidence", "insertion", "deletion", "scores")

Row = dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """The comparison of a replayed round with the recorded one.

    The ``outcome`` is the worst over methods and columns: "same" (in all digits of the record),
    "same to rounding" or "different". ``where`` has the values that are not the same, as ``method:
    column``. Round 0 is the start, for runs that are measured before the first round.
    """

    round: int
    outcome: str
    where: list[str]


def replay(record: Record, rounds: int | None = None) -> list[Verdict]:
    """Run the first rounds of a record's methods again with the present code, and compare them.

    By default, ``rounds`` is two, or all rounds if the record is made only after the last one.

    Raises
    ------
    ParameterError
        The record belongs to no paper of the kit, its parameters are not valid, its rows cannot be
        read, the run does not have this number of rounds, its clients would get other samples now,
        or it cannot be replayed on this machine.
    DatasetError
        The data are missing or damaged.
    """
    paper = papers.by_folder(record.paper)
    if paper is None:
        raise ParameterError(f"{record.id} is not a record of a paper of the kit")
    run = paper.parameters.checked(record.parameters)
    count = rounds_of(record, paper, run, rounds)
    images, split = data_of(record, paper, run)
    try:
        federation = paper.federation(run, images, split)
    except ValueError as error:  # such as a precision that only GPUs have
        raise ParameterError(f"{record.id} cannot be replayed here: {error}") from error
    rows, line_up = record.rows(), paper.line_up(run, images, split)
    # The line-up may have methods that are newer than the record. Rows of no method in the line-up,
    # such as those of all data in one place, are not made again
    known = {row["method"] for row in rows}
    methods = {name: method for name, method in line_up.items() if name in known}
    history = paper.play(run, federation, methods, count)
    text = history.table().to_csv(index=False, float_format="%.9g")
    recorded = [row for row in rows if row["method"] in methods]
    return compare_rows(recorded, list(csv.DictReader(io.StringIO(text))))


def rounds_of(record: Record, paper: Paper, run: Any, asked: int | None) -> int:
    """Return how many rounds to run; raise a `ParameterError` if they cannot be run."""
    every = paper.rounds(run)
    count = (every if paper.after_the_last else min(2, every)) if asked is None else asked
    if not 1 <= count <= every or (paper.after_the_last and count < every):
        needed = "needs all of them, not" if paper.after_the_last else "cannot be run for"
        raise ParameterError(f"{record.id} has {every} rounds and {needed} {count}")
    return count


def data_of(record: Record, paper: Paper, run: Any) -> tuple[ImageSet, Partition]:
    """Load the data of a record; raise a `ParameterError` if they are not as they were."""
    images, split = paper.data(run)
    if split.hash != record.provenance["partition_hash"]:
        raise ParameterError(f"{record.id}: its clients would get other samples now than then")
    then = record.provenance["data_files"]
    if changed := [n for n, md5 in images.files.items() if then.get(n, md5) != md5]:
        raise ParameterError(f"{record.id}: these files have other contents now: {changed}")
    return images, split


def compare_rows(recorded: list[Row], replayed: list[Row]) -> list[Verdict]:
    """Compare recorded and replayed rows, round by round.

    Columns that the record does not have are ignored, and so are values that it has not measured.
    """
    expected, again = numbered(recorded), numbered(replayed)
    last = max((int(row["round"]) for row in replayed), default=0)
    found: dict[int, list[tuple[str, str]]] = {}
    for key in dict.fromkeys([*expected, *again]):
        if (number := int(key[1])) <= last:
            compared = compare_row(key[0], expected.get(key), again.get(key))
            found.setdefault(number, []).extend(compared)
    verdicts = []
    for number, outcomes in sorted(found.items()):
        worst = max((outcome for outcome, _ in outcomes), key=(SAME, ROUNDED, DIFFERENT).index)
        where = [where for outcome, where in outcomes if outcome != SAME]
        verdicts.append(Verdict(number, worst, where))
    return verdicts


def compare_row(method: str, old: Row | None, new: Row | None) -> list[tuple[str, str]]:
    """Compare a recorded and a replayed row: the outcome of each value, and its name."""
    if old is None:
        return [(DIFFERENT, f"{method}: a row that the record does not have")]
    if new is None:
        return [(DIFFERENT, f"{method}: no such row now")]
    return [(alike(old[c], new.get(c, ""), c), f"{method}: {c}") for c in old if old[c]]


def numbered(rows: list[Row]) -> dict[tuple[str, str, int], Row]:
    """Give each row a key: its method, its round, and its number among the rows of these two."""
    seen, keyed = Counter[tuple[str, str]](), {}
    for row in rows:
        both = row["method"], row["round"]
        keyed[*both, seen[both]] = row
        seen[both] += 1
    return keyed


def alike(old: str, new: str, column: str) -> str:
    """Compare two cells of a column: numbers, several numbers joined by ``|``, or other texts."""
    if old == new:
        return SAME
    olds, news = old.split("|"), new.split("|")
    absolute = ABSOLUTE_OF_SHARES if column.startswith(SHARES) else ABSOLUTE
    close = len(olds) == len(news) and all(near(*p, absolute) for p in zip(olds, news, strict=True))
    return ROUNDED if close else DIFFERENT


def near(old: str, new: str, absolute: float) -> bool:
    """Return whether two numbers differ only by rounding; whole numbers and texts must be equal."""
    if old == new:
        return True
    if old.lstrip("-").isdecimal() and new.lstrip("-").isdecimal():
        return False
    try:
        expected, found = float(old), float(new)
    except ValueError:
        return False
    return abs(expected - found) <= max(absolute, RELATIVE * abs(expected))
