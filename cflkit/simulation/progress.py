"""The progress of a run, as a bar for people or as lines for logs."""

from __future__ import annotations

import os
import sys
from time import perf_counter
from types import TracebackType
from typing import Self

from tqdm.auto import tqdm


class Progress:
    """A count of rounds on a bar, or in one line per round where nobody would see a bar.

    ``CFLKIT_PROGRESS=lines`` asks for lines. `python -m cflkit run` sets it for its kernel.

    Parameters
    ----------
    start, rounds : int
        The number of rounds that were run before, and of all rounds.
    shown : bool
        Whether to show any progress.
    """

    def __init__(self, start: int, rounds: int, shown: bool) -> None:
        interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
        lines = os.environ.get("CFLKIT_PROGRESS") == "lines" or not interactive
        self.rounds, self.lines = rounds, shown and lines
        self.begin, self.start = perf_counter(), start
        if self.lines and start:
            print(f"continues after round {start} of {rounds}", file=sys.stderr, flush=True)
        self.bar = tqdm(total=rounds, initial=start, disable=not shown or lines, unit="round")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.close()

    def step(self, t: int, text: str) -> None:
        """Show that round ``t`` (from 0) is over, with a text about it."""
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()
        if self.lines:
            seconds = (perf_counter() - self.begin) / (t + 1 - self.start)
            print(
                f"round {t + 1} of {self.rounds} ({seconds:.1f} s per round); {text}",
                file=sys.stderr,
                flush=True,
            )
