"""Check an answer to an exercise, as in ``check("03.2", my_function)``.

The module itself can be called, so that ``from cflkit import check`` is enough. In a lesson, what a
reader is asked to write is checked by `written`, so that the lesson goes on if nothing is written.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from cflkit.course.exercises import Implement, Predict
from cflkit.course.sources import CourseError, exercise_of

# Right answers take two seconds. nbgrader executes a check twice per cell, and by default it ends a
# cell after 30 seconds, so that the student would see no hint
SECONDS = 10


class Verdict(int):
    """Whether an answer is right; JupyterLab does not repeat it below the sentence."""

    def _ipython_display_(self) -> None:
        """Show nothing."""

    def __repr__(self) -> str:
        return repr(bool(self))


def check(exercise: str, answer: Any, seed: int = 0) -> Verdict:
    """Tell whether an answer is right. If it is not, print a hint.

    Parameters
    ----------
    exercise : str
        The exercise, such as ``03.2``.
    answer : object
        The function that you wrote, or the value that you predict.
    seed : int
        The seed of the random inputs.

    Returns
    -------
    Verdict
        Whether the answer is right, as a truth value.

    Raises
    ------
    CourseError
        There is no such exercise, or a person judges it.
    """
    hint = hint_for(exercise, answer, seed)
    if hint is None:
        print(f"{exercise} is right. {getattr(exercise_of(exercise), 'because', '')}".rstrip())
    else:
        print(f"{exercise} is not right yet. {hint}")
    return Verdict(hint is None)


def guessed(guess: Any, low: float, high: float) -> float | None:
    """Return a reader's guess if a figure can show it, and otherwise None, and say why."""
    if guess is None or (type(guess) in (int, float) and low <= guess <= high):
        return guess
    print(f"Your guess is not shown: it must be a number from {low:g} to {high:g}, not {guess!r}.")
    return None


def grade(exercise: str, answer: Any, seed: int) -> None:
    """Raise a `CourseError` if an answer is not right; feedback shows its sentence alone."""
    if hint_for(exercise, answer, seed) is not None:
        raise CourseError(f"no points for {exercise}: it is not right for all inputs")


def hint_for(exercise: str, answer: Any, seed: int) -> str | None:
    """Judge an answer; return None if it is right, and a hint otherwise. See `check`."""
    task, rng = exercise_of(exercise), np.random.default_rng(seed)
    if isinstance(task, Predict):
        return task.hint(answer, rng)  # it runs an experiment, which takes long on some machines
    if isinstance(task, Implement):
        with at_most(SECONDS):
            return task.hint(answer, rng)
    rubric = "`python -m cflkit course OUT` writes its rubric into OUT/solutions"
    raise CourseError(f"no program can judge the words that answer {exercise}; {rubric}")


def written(exercise: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Check a function as `check` does; return it if it is right, and the solution if it is not."""
    if check(exercise, answer):
        return answer
    print("The lesson goes on with the solution.")
    return exercise_of(exercise).solution


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End a function after some seconds; one that catches the error gets it again."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"it was ended after {seconds} seconds. Does a loop never end?")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class CallableModule(ModuleType):
    """A module that can be called like its function `check`."""

    __call__ = staticmethod(check)


sys.modules[__name__].__class__ = CallableModule
