"""Ends all processes of a demonstration, and removes their sockets, once the demonstration is gone.

    python -m cflkit.flower.guard FOLDER

It waits for the end of its standard input. This comes when the demonstration ends, also if that was
killed. Its processes are those whose environment names the folder: Flower starts some of them apart
from their parents.
"""

from __future__ import annotations

import contextlib
import shutil
import sys

import psutil

# The variable with the folder of a demonstration's sockets
MARK = "CFLKIT_DEMONSTRATION"
TRIES = 10


def belongs(process: psutil.Process, folder: str) -> bool:
    """Return whether a process is one of this demonstration's."""
    try:
        return process.environ().get(MARK) == folder
    except psutil.Error:  # it has ended, or is somebody else's
        return False


def main() -> None:
    """Wait until the input ends; then end the processes, and remove the folder."""
    sys.stdin.read()
    folder = sys.argv[1]
    for _ in range(TRIES):  # one could start another meanwhile
        found = [process for process in psutil.process_iter() if belongs(process, folder)]
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=3)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
