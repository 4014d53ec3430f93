"""Replay of the first rounds of a record, and comparison of the results with the record."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from cflkit.metrics import MEASURES
from cflkit.reproduce import papers
from cflkit.reproduce.papers.base import Paper
from cflkit.reproduce.parameters import ParameterError
from cflkit.reproduce.records import TEXTS, Record

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
    rows, line_up = record.table(**TEXTS), paper.line_up(run, images, split)
    # The line-up may have methods that are newer than the record. Rows of no method in the line-up,
    # such as those of all data in one place, are not made again
    recorded = rows[rows["method"].isin(line_up)]
    if recorded.empty:
        raise ParameterError(f"{record.id} has no rows of methods that can be run")
    known = set(recorded["method"])
    methods = {name: method for name, method in line_up.items() if name in known}
    history = paper.play(run, federation, methods, count)
    text = history.table().to_csv(index=False, float_format="%.9g")
    return verdicts(recorded, pd.read_csv(io.StringIO(text), **TEXTS))


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


def verdicts(recorded: pd.DataFrame, replayed: pd.DataFrame) -> list[Verdict]:
    """Compare the texts of recorded and of replayed rows, round by round.

    Columns that the record does not have are ignored, and so are values that it has not measured: a
    run measures more after its last round. A row without any value is compared with nothing, and
    counts as different.
    """
    then, now = by_key(recorded), by_key(replayed)
    last = max((number for number, *_ in now), default=0)
    by_round: dict[int, list[tuple[str, str]]] = {}
    for key in dict.fromkeys([*then, *now]):
        number, method, _ = key
        if key in then and key in now:
            old, new = then[key], now[key]
            measured = [c for c in old if old[c] and c not in ("method", "round")]
            outcomes = [(alike(old[c], new.get(c, ""), c), f"{method}: {c}") for c in measured]
            outcomes = outcomes or [(DIFFERENT, f"{method}: nothing was recorded")]
        else:
            why = "no such row now" if key in then else "a row that the record does not have"
            outcomes = [(DIFFERENT, f"{method}: {why}")]
        if number <= last:
            by_round.setdefault(number, []).extend(outcomes)
    return [
        Verdict(
            number,
            max((outcome for outcome, _ in outcomes), key=(SAME, ROUNDED, DIFFERENT).index),
            [where for outcome, where in outcomes if outcome != SAME],
        )
        for number, outcomes in sorted(by_round.items())
    ]


def by_key(rows: pd.DataFrame) -> dict[tuple[int, str, int], dict[str, str]]:
    """Return rows by round, method, and the number among the rows of these two."""
    numbers = rows.groupby(["method", "round"]).cumcount()
    keys = zip(rows["round"].astype(int), rows["method"], numbers, strict=True)
    return dict(zip(keys, rows.to_dict("records"), strict=True))


def alike(old: str, new: str, column: str) -> str:
    """Compare two cells of a column: numbers, several numbers joined by ``|``, or other texts.

    Nothing is the same as an infinite number, or as a cell without any value. In a list, a value
    may be missing (``nan``) on both sides, such as the score of a client that was not asked.
    """
    olds, news = old.split("|"), new.split("|")
    if any(math.isinf(number(text)) for text in olds + news):
        return DIFFERENT
    if any({*map(str.lower, texts)} <= {"", "nan"} for texts in (olds, news)):
        return DIFFERENT
    if old == new:
        return SAME
    absolute = ABSOLUTE_OF_SHARES if column.startswith(SHARES) else ABSOLUTE
    close = len(olds) == len(news) and all(near(*p, absolute) for p in zip(olds, news, strict=True))
    return ROUNDED if close else DIFFERENT


def number(text: str) -> float:
    """Return the number that a text is; NaN for other texts."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def near(old: str, new: str, absolute: float) -> bool:
    """Return whether two numbers differ only by rounding; whole numbers and texts must be equal."""
    if old == new:
        return True
    if old.lstrip("-").isdecimal() and new.lstrip("-").isdecimal():
        return False
    expected, replayed = number(old), number(new)
    return abs(expected - replayed) <= max(absolute, RELATIVE * abs(expected))
