"""Ends the processes of a demonstration, and removes their sockets, once the demonstration is gone.

    python -m cflkit.flower.guard FOLDER

It reads the numbers of the processes from its standard input. This ends when the demonstration
does, also if that was killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Read numbers of processes until the input ends; then end these and their children."""
    groups = [int(line) for line in sys.stdin]
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
