"""The three kinds of exercises, and how an answer is judged.

An exercise knows the right answer, and it knows the mistakes that people usually make. Each mistake
is a wrong answer together with a hint. An answer that equals such a wrong answer gets its hint, so
that a hint names the mistake that was made. The exercises themselves are in
``notebooks/src/exercises``, from where `sources` reads them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from traceback import extract_tb
from typing import Any, ClassVar, Literal

import numpy as np

# How many random inputs a function is tried on
TRIALS = 20
TOLERANCE = 1e-6

Arguments = tuple[Any, ...]


# --- Comparing -----------------------------------------------------------------------------------


def close(answer: Any, right: Any, tolerance: float = TOLERANCE) -> bool:
    """Compare two values: numbers, texts, arrays, or lists, tuples and dicts of these."""
    if isinstance(right, dict):
        alike = isinstance(answer, dict) and answer.keys() == right.keys()
        return alike and all(close(answer[name], right[name], tolerance) for name in right)
    if right is None or isinstance(right, str) or callable(right):
        return isinstance(answer, type(right)) and bool(answer == right)
    a, b = as_array(answer), as_array(right)
    if a is None or b is None:  # lists of parts with different shapes
        if not (isinstance(answer, list | tuple) and isinstance(right, list | tuple)):
            return False
        pairs = zip(answer, right, strict=False)
        return len(answer) == len(right) and all(close(x, y, tolerance) for x, y in pairs)
    return a.shape == b.shape and bool(np.allclose(a, b, tolerance, tolerance, equal_nan=True))


def same_groups(answer: Any, right: Any) -> bool:
    """Compare two clusterings: the same groups, whatever their numbers."""
    a, b = as_array(answer), as_array(right)
    if a is None or b is None or a.shape != b.shape or not np.isfinite(a).all():
        return False
    pairs = set(zip(a.flat, b.flat, strict=True))
    return len(pairs) == len(set(a.flat)) == len(set(b.flat))


def as_array(value: Any) -> np.ndarray | None:
    """Convert numbers, arrays and tensors to an array of numbers; None if there is no such."""
    if value is None or isinstance(value, str | dict):
        return None
    try:
        return np.asarray(value.detach() if hasattr(value, "detach") else value, dtype=float)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def difference(answer: Any, right: Any, count: bool = True) -> str:
    """Describe how a result differs from the right one, without giving the right one away.

    The wrong values of an array are counted if they are wrong one by one, as numbers of clusters,
    for example, are not.
    """
    if answer is None:
        return "For some input, your function returns None. Has every case its `return`?"
    if right is None:
        return "For some input, your function returns a value where it must return None."
    a, b = as_array(answer), as_array(right)
    if a is not None and b is not None and a.shape != b.shape:
        must = f"must have the shape {b.shape}" if b.ndim else "must be a single number"
        return f"A result has the shape {a.shape}, and {must}."
    if a is None and b is not None and isinstance(answer, list | tuple | set | dict):
        return f"A result is no array of numbers. It must have the shape {b.shape}."
    if (a is None) != (b is None):
        kind, wanted = type(answer).__name__, type(right).__name__
        return f"A result is of the type {kind}, and must be {wanted}."
    if isinstance(right, str):
        return "The word must be one of those in the exercise, exactly as it stands there."
    if a is not None and b is not None and a.ndim and count:
        wrong = int((~np.isclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True)).sum())
        return f"The shape is right, but for some input {wrong} of {a.size} values are wrong."
    if {type(answer), type(right)} <= {list, tuple} and len(answer) == len(right):  # parts
        place = next(n for n, part in enumerate(right) if not close(answer[n], part))
        return f"Part {place} (from 0) is wrong. {difference(answer[place], right[place])}"
    return "For some input, the result has a wrong value."


def not_written(error: NotImplementedError, answer: Callable[..., Any]) -> str:
    """Say that a function is not written yet, or which function it calls that is not."""
    name = extract_tb(error.__traceback__)[-1].name
    if name == getattr(answer, "__name__", name):
        return "The function is not written yet."
    return f"Your function calls `{name}`, which is not written yet. Write that one first."


# --- The kinds of exercises -----------------------------------------------------------------------


@dataclass
class Exercise:
    """What all exercises have."""

    kind: ClassVar[str]
    title: str
    minutes: int  # an estimate of how long it takes
    level: Literal["easy", "medium", "hard"]
    points: int
    # From the source: the lesson and the number, such as ``03.2``, and the function or the
    # prediction that it gives to the check
    id: str = field(init=False, default="")
    solution: Any = field(init=False, default=None)


@dataclass
class Implement(Exercise):
    """Write a function. It is compared with the solution on random inputs."""

    kind = "Write a function"
    inputs: Callable[[np.random.Generator], Arguments]  # the arguments of one trial
    mistakes: Mapping[str, Callable[..., Any]]  # the usual ones, by the hint for each
    same: Callable[[Any, Any], bool] = close  # compares two results

    def hint(self, answer: Any, rng: np.random.Generator) -> str | None:
        """Judge a function; return None if it is right, and otherwise what to think about."""
        if not callable(answer):
            return "Give the function itself, as in `check(..., my_function)`, and not its result."
        trials = [self.inputs(rng) for _ in range(TRIALS)]
        results = []
        for arguments in trials:
            copies = copy.deepcopy(arguments)
            try:
                results.append(answer(*copies))
            except NotImplementedError as error:
                return not_written(error, answer)
            except Exception as error:
                return f"Your function ends with an error, {type(error).__name__}: {error}"
            if not close(copies, arguments, tolerance=0):
                return "Your function changes its arguments. Work on a copy of them."
        if (wrong := self.first_unlike(results, trials, self.solution)) is None:
            return None
        for text, mistake in self.mistakes.items():
            if self.first_unlike(results, trials, mistake) is None:
                return text
        return difference(*wrong, count=self.same is close)

    def first_unlike(
        self, results: Sequence[Any], trials: Sequence[Arguments], function: Callable[..., Any]
    ) -> tuple[Any, Any] | None:
        """Return the first result that differs from a function's, and the function's result."""
        for result, arguments in zip(results, trials, strict=True):
            other = function(*copy.deepcopy(arguments))
            if not self.same(result, other):
                return result, other
        return None


@dataclass
class Predict(Exercise):
    """Predict the outcome of an experiment. The check then runs the experiment."""

    kind = "Predict, then run"
    measure: Callable[[], Any]  # the experiment, which takes a few seconds
    mistakes: Mapping[str, Any]  # the usual wrong predictions, by the hint for each
    because: str  # why the outcome is what it is, which those who are right may read
    tolerance: float = TOLERANCE  # of a predicted number

    @cached_property
    def outcome(self) -> Any:
        """The right answer. The experiment runs once, when it is first asked for."""
        return self.measure()

    def hint(self, answer: Any, rng: np.random.Generator) -> str | None:
        """Judge a prediction; return None if it is right, and otherwise what to think about."""
        if answer is None or answer is ...:
            return "Write your prediction first."
        if close(answer, self.outcome, self.tolerance):
            return None
        for text, wrong in self.mistakes.items():
            if close(answer, wrong, self.tolerance):
                return text
        if isinstance(answer, str) or isinstance(self.outcome, str):
            return difference(answer, self.outcome)
        return "The experiment has another outcome."


@dataclass
class Explain(Exercise):
    """Derive or explain something in words. A person compares the answer with a rubric."""

    kind = "Answer in words; the solutions have a rubric"
    rubric: tuple[tuple[int, str], ...]  # points, and what an answer must say for them
