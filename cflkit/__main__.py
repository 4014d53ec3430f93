"""``python -m cflkit``, see `cflkit.commands`."""

import io
import os
import re
import signal
import sys
from collections.abc import Sequence

import click

from cflkit.commands import cli

# Characters that control a terminal, which another person's record may hold
CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
# How each stream shows what its encoding lacks (in a table, in one column), and what must not
# control the terminal; among messages, bars, colours and the line that tells the round may
STREAMS = {
    "stdout": ("replace", re.compile(CONTROL)),
    "stderr": ("backslashreplace", re.compile(rf"(?!\r|\x1b\[[\d;]*[AKm]){CONTROL}")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, which is 2 for a mistake of the user."""
    try:
        return int(cli.main(arguments, complete_var="_CFLKIT_COMPLETE", standalone_mode=False))
    except click.ClickException as error:
        print(f"error: {' '.join(error.format_message().split())}", file=sys.stderr)
        return error.exit_code


class Terminal(io.TextIOWrapper):
    """A standard stream that every text can be written to."""

    controls: re.Pattern[str]

    def write(self, text: str) -> int:
        """Write a text, in which a control character stands as Python would write it."""
        return super().write(self.controls.sub(lambda code: repr(code[0])[1:-1], text))


def use_terminals() -> None:
    """Replace the standard streams, so that neither an encoding nor a text ends a command."""
    for name, (errors, controls) in STREAMS.items():
        stream = getattr(sys, name)
        if stream is None:  # it was closed, as in `cflkit … >&-`
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        encoding = stream.encoding
        # With PYTHONUNBUFFERED, as in containers, text goes through at once
        when = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        terminal = Terminal(stream.detach(), encoding, errors, **when)
        terminal.controls = controls
        setattr(sys, name, terminal)
        setattr(sys, f"__{name}__", terminal)  # which is asked for the terminal's width


def end(number: int, _: object) -> None:
    """End as a program that has finished: each `finally` is run, and ends what we have started."""
    sys.exit(128 + number)


def entry() -> None:
    """Run the command ``cflkit``, and exit with its status."""
    use_terminals()
    # A terminal that closes, or a batch system that ends us, must not leave processes behind
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, end)
    try:
        status = main()
        sys.stdout.flush()
    except SystemExit as ended:  # by a signal
        status = int(ended.code or 0)
    except BrokenPipeError:
        # The reader of our output has closed it, as in `| head`; discard the rest, at exit, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    if status > 128:
        os._exit(status)  # what papermill has not finished would report that on its way out
    sys.exit(status)


if __name__ == "__main__":
    entry()
