"""Whether a lesson's claims hold elsewhere: other seeds, another engine, the last bit perturbed.

`measure` runs a lesson once per seed, each time in a process of its own, and reads the claims from
the executed notebooks. What has run is kept in ``data/cache/robustness``, so that an interrupted
measurement goes on where it stopped. `write` puts the counts into a table with one row per
notebook, setting and claim; ``data/robustness.csv`` is the committed one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from cflkit import _project
from cflkit.reproduce import batch, claims, notebooks, records
from cflkit.reproduce.notebooks import NotebookError
from cflkit.reproduce.parameters import ParameterError


def measure(
    notebook: Path,
    seeds: Sequence[int],
    engine: str | None = None,
    perturbed: bool = False,
    given: Mapping[str, str] | None = None,
    side_by_side: int = 2,
) -> list[dict[str, Any]]:
    """Run a lesson once per seed and count how often each of its claims holds.

    Parameters
    ----------
    notebook : Path
        A lesson with a parameter ``seed`` and a cell tagged ``claims``.
    seeds : sequence of int
        The values of ``seed``.
    engine : {"threads", "stacked"}, optional
        The engine of all its federations; by default the lesson's own.
    perturbed : bool
        Whether every local training ends with its last bit perturbed, see `machine.perturb`. This
        is measured with the lesson's own engine.
    given : mapping of str to str, optional
        Other parameters, as YAML.
    side_by_side : int
        The number of runs at a time.

    Returns
    -------
    list of dict
        One row per claim, with `claims.COLUMNS`.

    Raises
    ------
    ParameterError
        The notebook has no such parameter, or it refuses a value; or an engine is given together
        with perturbation.
    NotebookError
        A run failed, or another process measures the same.
    """
    given = dict(given or {})
    parsed = {name: notebooks.parse_yaml(name, text) for name, text in given.items()}
    if engine and perturbed:
        raise ParameterError("counts are kept for one change at a time: an engine or perturbation")
    if "seed" in given:
        raise ParameterError("the seeds of the runs are given by --seeds and --first")
    for seed in seeds:
        checked = notebooks.check_parameters(notebook, parsed | {"seed": seed})
        # The runs have another working folder, so the path of one's own data must be whole
        changed = {name: checked[name] for name, value in parsed.items() if checked[name] != value}
        given |= {name: notebooks.as_yaml(value) for name, value in changed.items()}
    setting = "perturbed" if perturbed else engine or "default"
    code = digest(notebook)
    kept = folder(notebook, setting, given, code)
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParameterError(f"{kept} cannot be made ({error.strerror})") from error
    try:
        with filelock.FileLock(kept / ".lock", timeout=0):
            commands = [
                command(notebook, seed, engine, perturbed, given, kept)
                for seed in seeds
                if not (kept / f"{seed}.json").exists()
            ]
            run_all(notebook, commands, kept, side_by_side)
    except filelock.Timeout as error:
        raise NotebookError(f"{notebook.stem} is being measured by another process") from error
    runs = {seed: json.loads((kept / f"{seed}.json").read_text("utf-8")) for seed in seeds}
    return [
        {
            "notebook": notebook.stem,
            "setting": setting,
            "claim": claim,
            "runs": len(runs),
            "held": sum(found[claim] for found in runs.values()),
            "failed_seeds": " ".join(str(seed) for seed in runs if not runs[seed][claim]),
            "seeds": f"{min(seeds)}-{max(seeds)}",
            "given": " ".join(f"{name}={value}" for name, value in given.items()),
            "code": code,
        }
        for claim in next(iter(runs.values()))
    ]


def run_all(
    notebook: Path, commands: Sequence[batch.Command], kept: Path, side_by_side: int
) -> None:
    """Run the seeds that are missing, and keep the claims of each.

    Raises
    ------
    NotebookError
        A run failed.
    """
    failed = {}
    for done, reason in batch.run(commands, side_by_side):
        # The folder of a run that failed stays, since the reason names the notebook in it
        work = kept / f"{done.name}.work"
        if reason:
            failed[done.name] = reason
            continue
        try:
            found = claims.of_notebook(work / "lesson.ipynb")
        except ValueError as error:
            failed[done.name] = str(error)
            continue
        part = work / "claims.json"
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(kept / f"{done.name}.json")
        shutil.rmtree(work, ignore_errors=True)
    if failed:
        reasons = "; ".join(f"seed {seed}: {reason}" for seed, reason in failed.items())
        raise NotebookError(f"{notebook.stem} failed with {reasons}")


def command(
    notebook: Path,
    seed: int,
    engine: str | None,
    perturbed: bool,
    given: Mapping[str, str],
    kept: Path,
) -> batch.Command:
    """Build the run of one seed; all that it writes lies in a folder of its own."""
    work = kept / f"{seed}.work"
    work.mkdir(parents=True, exist_ok=True)
    words = [word for name, value in given.items() for word in ("-p", name, value)]
    arguments = ["run", str(notebook.resolve()), "-p", "seed", str(seed), *words]
    environment = {f"CFLKIT_{name}": str(work) for name in ("RESULTS", "FIGURES", "CACHE")}
    environment["CFLKIT_ENGINE"] = engine or ""
    environment["CFLKIT_PERTURB"] = str(seed + 1) if perturbed else ""
    return batch.Command(str(seed), [*arguments, "-o", str(work / "lesson.ipynb")], environment)


def digest(notebook: Path) -> str:
    """Return 12 digits that differ when the package's code or the notebook's differs."""
    both = _project.DIGEST + notebooks.code_digest(notebook)
    return hashlib.sha256(both.encode()).hexdigest()[:12]


def folder(notebook: Path, setting: str, given: Mapping[str, str], code: str) -> Path:
    """Return where the claims of finished runs are kept, one file per seed."""
    options = hashlib.sha256(json.dumps(dict(given), sort_keys=True).encode()).hexdigest()[:8]
    return records.cache().resolve() / "robustness" / notebook.stem / f"{setting}-{options}-{code}"


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows into a table; rows of the same notebook and setting give way to them.

    Raises
    ------
    ParameterError
        The file cannot be written.
    """
    measured = {(row["notebook"], row["setting"]) for row in rows}
    lock = filelock.FileLock(records.cache() / "robustness" / ".table.lock")
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        with lock:  # two lessons may end together
            kept = [r for r in claims.table(path) if (r["notebook"], r["setting"]) not in measured]
            order = list(claims.SETTINGS)
            both = sorted([*kept, *rows], key=lambda r: (r["notebook"], order.index(r["setting"])))
            path.parent.mkdir(parents=True, exist_ok=True)
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, claims.COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(both)
            records.write_whole(path, text.getvalue())
    except OSError as error:
        raise ParameterError(f"{path} cannot be written ({error.strerror})") from error


def listing(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the counts as text, one line per claim."""
    lines = []
    for row in rows:
        failed = f"  (not with seed {row['failed_seeds'].replace(' ', ', ')})"
        lines.append(
            f"held in {row['held']} of {row['runs']}  {row['claim']}"
            f"{failed if row['failed_seeds'] else ''}"
        )
    return "\n".join(lines)
