"""Replay of the first rounds of a record, and comparison of the results with the record."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cflkit.reproduce import papers, records
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import Record
from cflkit.simulation.history import MEASURES

SAME, ROUNDED, DIFFERENT = "same", "same to rounding", "different"
# The largest difference from the recorded number that counts as rounding: a share of that number,
# or an absolute difference. Differences in the last bit between processors grow with each step
RELATIVE, ABSOLUTE, ABSOLUTE_OF_SHARES = 0.02, 1e-6, 0.005
# Columns with values between 0 and 1, or nearly so; EMD-CFL's scores are differences of cosine
# distances. Others have no scale: temperatures of networks with BatchNorm are around 0.001
SHARES = (*MEASURES, "wrong", "empty", "confidence", "insertion", "deletion", "scores")

Row = Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """The comparison of a replayed round with the recorded one.

    Attributes
    ----------
    round : int
        The round, from 1. Round 0 is the start, for runs that are measured before the first round.
    outcome : {"same", "same to rounding", "different"}
        The worst outcome over methods and columns. "Same" means equal in all digits of the record.
    where : list of str
        The values that are not the same, as ``method: column``.
    """

    round: int
    outcome: str
    where: list[str]


def replay(record: Record, rounds: int | None = None) -> list[Verdict]:
    """Run the first rounds of a record's methods again, with the present code.

    Parameters
    ----------
    record : Record
        The record of a run for one of the kit's papers.
    rounds : int, optional
        The number of rounds to run; two by default. All rounds are needed, and are the default, if
        the record is made only after the last round.

    Returns
    -------
    list of Verdict
        The comparisons of the methods that the present code has in this run, one per round.

    Raises
    ------
    ParameterError
        The record belongs to no paper of the kit, its parameters are not valid, its rows cannot be
        read, the run does not have this number of rounds, its clients would get other samples now,
        or it cannot be replayed on this machine or with these environment variables.
    DatasetError
        The data are missing or damaged.
    """
    paper = papers.by_folder(record.paper)
    if paper is None:
        raise ParameterError(f"{record.id} is not a record of a paper of the kit")
    for name, value in records.variables(record.id).items():
        if os.environ.get(name) != value:
            raise ParameterError(f"{record.id} was made with {name}={value}; set it to replay it")
    run = paper.parameters.checked(record.parameters)
    every = paper.rounds(run)
    count = (every if paper.after_the_last else min(2, every)) if rounds is None else rounds
    if not 1 <= count <= every or (paper.after_the_last and count < every):
        needed = "needs all of them, not" if paper.after_the_last else "cannot be run for"
        raise ParameterError(f"{record.id} has {every} rounds and {needed} {count}")
    images, split = paper.data(run)
    if split.hash != record.provenance["partition_hash"]:
        raise ParameterError(f"{record.id}: its clients would get other samples now than then")
    then = record.provenance["data_files"]
    if changed := [n for n, md5 in images.files.items() if then.get(n, md5) != md5]:
        raise ParameterError(f"{record.id}: these files have other contents now: {changed}")
    try:
        federation = paper.federation(run, images, split)
    except ValueError as error:  # such as a precision that only GPUs have
        raise ParameterError(f"{record.id} cannot be replayed here: {error}") from error
    recorded = record.rows()
    # The line-up may have methods that are newer than the record. Rows of no method in the line-up,
    # such as those of all data in one place, are not made again
    known = {row["method"] for row in recorded}
    line_up = paper.line_up(run, images, split)
    methods = {name: method for name, method in line_up.items() if name in known}
    recorded = [row for row in recorded if row["method"] in methods]
    history = paper.play(run, federation, methods, count)
    text = history.table().to_csv(index=False, float_format="%.9g")
    return list(compare(recorded, list(csv.DictReader(io.StringIO(text)))))


def compare(recorded: list[dict[str, str]], replayed: list[dict[str, str]]) -> Iterator[Verdict]:
    """Compare recorded and replayed rows, round by round.

    Columns that the record does not have are ignored, and so are values that it has not measured.
    """
    expected, again = dict(numbered(recorded)), dict(numbered(replayed))
    last = max((int(row["round"]) for row in again.values()), default=0)
    found: dict[int, list[tuple[str, str]]] = {}
    for key, row in expected.items():
        if key not in again and int(row["round"]) <= last:
            missing = DIFFERENT, f"{row['method']}: no such row now"
            found.setdefault(int(row["round"]), []).append(missing)
    for key, row in again.items():
        here = found.setdefault(int(row["round"]), [])
        if key not in expected:
            here.append((DIFFERENT, f"{row['method']}: a row that the record does not have"))
            continue
        old = expected[key]
        here += [
            (alike(old[column], row.get(column, ""), column), f"{row['method']}: {column}")
            for column in old
            if old[column]
        ]
    for number, outcomes in sorted(found.items()):
        worst = max((outcome for outcome, _ in outcomes), key=(SAME, ROUNDED, DIFFERENT).index)
        yield Verdict(number, worst, [where for outcome, where in outcomes if outcome != SAME])


def numbered(rows: list[dict[str, str]]) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Give each row a key: its method, its round, and its number among the rows of these two."""
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        both = row["method"], row["round"]
        seen[both] = seen.get(both, -1) + 1
        yield (*both, str(seen[both])), row


def alike(old: str, new: str, column: str) -> str:
    """Compare two cells of a column: numbers, several numbers joined by ``|``, or other texts."""
    if old == new:
        return SAME
    pairs = list(zip(old.split("|"), new.split("|"), strict=False))
    if old.count("|") != new.count("|"):
        return DIFFERENT
    absolute = ABSOLUTE_OF_SHARES if column.startswith(SHARES) else ABSOLUTE
    return ROUNDED if all(near(*pair, absolute) for pair in pairs) else DIFFERENT


def near(old: str, new: str, absolute: float) -> bool:
    """Return whether two numbers differ only by rounding.

    Different whole numbers and different texts do not.
    """
    if old == new:
        return True
    if old.lstrip("-").isdecimal() and new.lstrip("-").isdecimal():
        return False
    try:
        expected, found = float(old), float(new)
    except ValueError:
        return False
    return abs(expected - found) <= max(absolute, RELATIVE * abs(expected))
