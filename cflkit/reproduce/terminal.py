"""Tables as a terminal shows them."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import Any

Row = Mapping[str, Any]
# The width of what is no terminal, such as a file
ENDLESS = 1_000_000


def fitted(rows: Sequence[Row], keys: int = 1) -> str:
    """Write rows as a table; where the terminal is too narrow for it, each row as a paragraph.

    A paragraph begins with a line of the values of the first columns, the ``keys``.
    """
    if not rows:
        return ""
    width = shutil.get_terminal_size((ENDLESS, 0)).columns
    names = list(rows[0])
    cells = [[as_cell(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if sum(widths) + 2 * (len(names) - 1) <= width:
        numbers = [all(isinstance(row[name], int | float) for row in rows) for name in names]
        formats = [f"{'>' if n else '<'}{w}" for n, w in zip(numbers, widths, strict=True)]
        return "\n".join("  ".join(map(format, line, formats)).rstrip() for line in (names, *cells))
    wrapped = partial(fill, width=max(width, 20), break_long_words=False, break_on_hyphens=False)
    lines = [wrapped("  ".join(names[:keys]))]
    for row in cells:
        rest = zip(names[keys:], row[keys:], strict=True)
        text = ", ".join(" ".join(pair) for pair in rest if pair[1])
        lines += [wrapped("  ".join(row[:keys]))]
        lines += [wrapped(text, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join(lines)


def as_cell(value: Any) -> str:
    """Format a value: a dash for a missing one, six digits of a number, the parts of a list."""
    if value is None or value != value:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
