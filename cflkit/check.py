"""Check an answer to an exercise, as in ``check("03.2", my_function)``.

The module itself can be called, so that ``from cflkit import check`` is enough.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from cflkit.course.exercises import find
from cflkit.course.exercises.base import Implement, Predict

SECONDS = 30


def check(exercise: str, answer: Any, seed: int = 0) -> bool:
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
    bool
        Whether the answer is right.

    Raises
    ------
    ValueError
        There is no such exercise, or a person judges it.
    """
    known = find(exercise)
    if not isinstance(known, Implement | Predict):
        raise ValueError(
            f"exercise {exercise} is answered in words, which no program can judge; compare your "
            "answer with the rubric: `python -m cflkit course OUT` writes it into OUT/solutions"
        )
    # A prediction cannot take long. Its check runs an experiment, which does on a slow machine
    limit = time_limit(SECONDS) if isinstance(known, Implement) else nullcontext()
    try:
        with limit:
            hint = known.hint(answer, np.random.default_rng(seed))
    except TimeoutError:
        hint = f"The check was ended after {SECONDS} seconds. Does a loop never end?"
    if hint is None:
        because = f" {known.because}" if isinstance(known, Predict) else ""
        print(f"{exercise} is right.{because}")
    else:
        print(f"{exercise} is not right yet. {hint}")
    return hint is None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block after some seconds, on every system; only in the main thread.

    Raises
    ------
    TimeoutError
        The block took longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late, main = threading.Event(), threading.main_thread().ident
    assert main is not None
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def interrupt() -> None:
        late.set()
        if hasattr(signal, "pthread_kill"):  # a real signal also ends waiting
            signal.pthread_kill(main, signal.SIGINT)
        else:
            _thread.interrupt_main()

    def end(number: int, frame: FrameType | None) -> None:
        # In the background, a shell lets its processes ignore Ctrl-C
        if late.is_set() or before is not signal.SIG_IGN:
            raise KeyboardInterrupt

    timer = threading.Timer(seconds, interrupt)
    signal.signal(signal.SIGINT, end)
    timer.start()
    try:
        try:
            yield
        finally:  # an interrupt that is on its way arrives here, and not at the caller
            timer.cancel()
            timer.join()
    except KeyboardInterrupt:
        if late.is_set():
            raise TimeoutError(f"it took longer than {seconds} seconds") from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


class CallableModule(ModuleType):
    """A module that can be called like its function `check`."""

    def __call__(self, exercise: str, answer: Any, seed: int = 0) -> bool:
        """Call `check`."""
        return check(exercise, answer, seed)


sys.modules[__name__].__class__ = CallableModule
