"""The rows of the book's page of every published number, ``ledger.md``, from ``data/ledger.csv``.

They lie in a script beside the page, so that the page needs no server.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from cflkit.reproduce import grid, ledger, records
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.values import options, read_yaml

Evidence = dict[tuple[str, str], ledger.Evidence]
# The columns of a row of the page, in their order
COLUMNS = (
    *("paper", "table", "scenario", "method", "measure", "published", "source"),
    *("ours", "ours_half", "status", "ours_n", "ours_intended"),
    *("ours_seeds", "ours_runs", "ours_version"),
    *("reduced", "reduced_half", "reduced_status", "reduced_n", "reduced_intended"),
    *("reduced_seeds", "reduced_runs", "reduced_version"),
    *("scale", "command", "far"),
)
SOURCES = {
    "printed": "printed table",
    "archive": "authors' archive",
    "no code": "printed table, produced by no code",
}


def script() -> str:
    """Return the script with the rows."""
    cells = ledger.read()
    runs = Numbered()
    commands = Numbered()
    kept = records.committed()
    evidence = ledger.gathered(kept, cells["paper"].unique())
    made = {record.id: record for record in kept}
    rows = [row_of(cell, evidence, made, runs, commands) for cell in cells.to_dict("records")]
    told = [(run, ledger.command(made[run], paper)) for run, paper in runs.found]
    data = {"columns": COLUMNS, "rows": rows, "runs": told, "commands": commands.found}
    return f"const LEDGER = {json.dumps(data, ensure_ascii=False, separators=(',', ':'))};\n"


class Numbered:
    """Things in the order in which they were first asked for."""

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        """Return the number of a thing."""
        return self.places.setdefault(thing, len(self.places))

    @property
    def found(self) -> list[Any]:
        """Return all things."""
        return list(self.places)


def row_of(
    cell: ledger.Cell,
    evidence: Evidence,
    made: Mapping[str, records.Record],
    runs: Numbered,
    commands: Numbered,
) -> list[Any]:
    """Return the row of a published number, in the order of `COLUMNS`."""
    paper = cell["paper"]
    scenario = [f"{value:g}" if isinstance(value, float) else str(value) for value in named(cell)]
    printed = cell["value"] if pd.notna(cell["value"]) else "–"
    source = SOURCES[cell["source"]] + (" (a dash)" if pd.isna(cell["value"]) else "")
    row = [
        paper,
        cell["table"],
        " ".join(scenario),
        cell["method"],
        cell["measure"],
        printed,
        source,
    ]
    for scale, (prefix, _) in ledger.SCALES.items():
        names = ("ours", "half_width", "status", "seeds", "intended")
        own = [cell[prefix + name] for name in names]
        told = cell[f"{prefix}runs"]
        ids = told.split() if isinstance(told, str) else []
        row += [None if pd.isna(value) else value for value in own]
        seeds = [one.value for one in evidence[paper, scale].samples(cell)]
        row.append([float(f"{value:.4g}") for value in seeds if pd.notna(value)])
        row.append([runs((run, paper)) for run in ids])
        row.append(version(cell, [made[run] for run in ids], made.values()))
    run = isinstance(cell["runs"], str)
    command = None if run else command_of(cell)
    scale = cell["reduced_scale"] if isinstance(cell["reduced_scale"], str) else ""
    place = None if command is None else commands(command)
    return [*row, scale, place, ledger.margin_of(cell).far]


def version(
    cell: ledger.Cell, own: Sequence[records.Record], kept: Iterable[records.Record]
) -> str:
    """Say which version of a method our number is of, if some record of the paper has both."""
    paper = PAPERS[cell["paper"]]
    twin = f"{paper.methods.get(cell['method'])}{records.AS_PUBLISHED}"
    if any(twin in record.summary for record in own):
        return "as published"
    both = own and any(r.paper == paper.folder and twin in r.summary for r in kept)
    return "as intended" if both else ""


def named(cell: ledger.Cell) -> Sequence[Any]:
    """Return the values that identify the scenario of a published number."""
    return [value for value in ledger.scenario_in(cell) if value is not None]


def command_of(cell: ledger.Cell) -> str | None:
    """Build the command of a run that has no record; None if a paper has no file for it."""
    paper, scenario = PAPERS[cell["paper"]], ledger.scenario_in(cell)
    wanted = dict(zip(paper.scenario, scenario, strict=True))
    file = grid.PARAMS / paper.folder / "paper" / paper.file.format(**wanted)
    if paper.protocols.get(cell["protocol"]) is None or not file.exists():
        return None
    usual = ledger.defaults(paper.notebook) | read_yaml(file)
    given = {n: v for n, v in wanted.items() if n in usual and usual[n] != v}
    words = ["python", "-m", "cflkit", "run", f"notebooks/{paper.notebook}.ipynb"]
    words += ["-f", records.display_path(file), *options(given), "--record-only"]
    return shlex.join(words)
