"""``python -m cflkit``, see `cflkit.commands`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import click

from cflkit.commands import INTERRUPTED, cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, which is 2 for a mistake of the user."""
    try:
        return int(cli.main(arguments, complete_var="_CFLKIT_COMPLETE", standalone_mode=False))
    except click.ClickException as error:
        print(f"error: {' '.join(error.format_message().split())}", file=sys.stderr)
        return error.exit_code


def end(number: int, _: object) -> None:
    """End as a program that has finished: each `finally` is run, and ends what we have started."""
    sys.exit(128 + number)


def entry() -> None:
    """Run the command ``cflkit``, and exit with its status."""
    # A terminal that closes, or a batch system that ends us, must not leave processes behind
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, end)
    try:
        status = main()
        sys.stdout.flush()
        if status == INTERRUPTED:
            os._exit(status)  # what papermill has not finished would report that on its way out
    except BrokenPipeError:
        # The reader of our output has closed it, as in `| head`; discard the rest, at exit, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    entry()
