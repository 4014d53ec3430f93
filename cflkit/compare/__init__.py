"""Put a method, or somebody's results, on the map of appendix 09b, beside its 29 methods.

The method runs in the eighteen situations of `situations`, with the same clients, seeds, network
and training as the methods whose results are in ``data/failures.csv``.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from cflkit import methods, plots, simulation
from cflkit._files import check_regular
from cflkit._project import PROJECT
from cflkit.compare.situations import SEEDS, Scene, places, scene
from cflkit.methods.base import Method
from cflkit.reproduce import stats
from cflkit.simulation.evaluation import client_scores

TABLE = PROJECT / "data" / "failures.csv"
PLACE = ["situation", "value", "seed"]
COLUMNS = [*PLACE, "method", "accuracy", "ari", "trainings", "megabytes", "hurt"]
# The methods of whose better one a method must not fall below: one model for all, and each alone
PLAIN = ["FedAvg", "Local"]


class CompareError(ValueError):
    """A file holds no method or no results; the message says what is missing."""


def load(path: Path) -> type[Method]:
    """Load the one class of a method (`Method`) that a Python file defines."""
    spec = importlib.util.spec_from_file_location(path.stem, check_regular(path))
    if spec is None or spec.loader is None or not path.exists():
        raise CompareError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == path.stem
    ]
    if len(own) != 1:
        named = ", ".join(one.__name__ for one in own) or "none"
        raise CompareError(f"{path} must define one class of cflkit's Method, and has {named}")
    return own[0]


def told(kind: type[Method], new: Scene) -> dict[str, Any]:
    """Return what a method is told: k and the true clusters, if it has options of these names."""
    names = {own.name for own in fields(kind)}  # type: ignore[arg-type]
    assert new.split.clusters is not None
    known = {"k": new.k, "truth": new.split.clusters.tolist()}
    return {name: value for name, value in known.items() if name in names}


def measured(kind: type[Method], new: Scene) -> dict[str, str]:
    """Run a method in a scene, and each client alone beside it."""
    home = new.federation()
    lines = {"it": kind(**told(kind, new)), "alone": methods.make("local")}
    summary = simulation.run(lines, home, new.rounds, progress=False).summary()["it"]
    if "accuracy" not in summary:
        return {"accuracy": "0"}  # it diverged
    own, alone = (client_scores(line, home)[:, 1] for line in lines.values())
    traffic = (summary["total_bytes_down"] + summary["total_bytes_up"]) / 1e6
    return {
        "accuracy": f"{own[new.affected].mean():.4f}",
        "ari": f"{summary['ari']:.3f}" if "ari" in summary else "",
        "trainings": str(summary["total_trainings"]),
        "megabytes": f"{traffic:.1f}",
        "hurt": str(int((own < alone).sum())),
    }


def results(path: Path, output: Path, progress: Callable[[str], None] = print) -> pd.DataFrame:
    """Return the rows of one method: it is run where ``output`` lacks them, or a table is read.

    A table has the columns ``situation``, ``value``, ``seed``, ``method`` and ``accuracy`` of
    ``data/failures.csv``, and perhaps others of `COLUMNS`.

    Raises
    ------
    CompareError
        The file holds no method, or no such table.
    """
    if path.suffix != ".csv":
        run_missing(load(path), output, progress)
        path = output
    found = table(check_regular(path))
    if lacking := {*PLACE, "method", "accuracy"} - set(found):
        raise CompareError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
    known = table(TABLE)
    if found["method"].nunique() != 1 or found.duplicated(PLACE).any():
        raise CompareError(f"{path} must have one method, with one row for a situation and a seed")
    if strange := {*map(tuple, found[PLACE].values)} - {*map(tuple, known[PLACE].values)}:
        raise CompareError(f"{path} has {sorted(strange)[0]}, which is not in {TABLE.name}")
    [name] = found["method"].unique()
    return found.assign(method=f"{name} (yours)" if name in set(known["method"]) else name)


def table(path: Path) -> pd.DataFrame:
    """Read a table of results, with its places as texts."""
    return pd.read_csv(path, keep_default_na=False, dtype=dict.fromkeys(PLACE, str))


def run_missing(kind: type[Method], output: Path, progress: Callable[[str], None]) -> None:
    """Run a method in the situations and seeds that a table lacks, and add them to it."""
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    is_told = "k" in told(kind, scene("base", "", 0))  # else a wrong k changes nothing
    with output.open("r+", 1, encoding="utf-8", newline="") as file:  # written line by line
        there = {tuple(row[name] for name in PLACE) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for situation, value, seed in ((*place, seed) for seed in SEEDS for place in places()):
            if (situation, str(value), str(seed)) in there or (situation == "k" and not is_told):
                continue
            row = measured(kind, scene(situation, value, seed))
            key = dict(zip(PLACE, (situation, value, seed), strict=True))
            writer.writerow(key | {"method": kind.__name__} | row)
            progress(f"{situation} {value}, seed {seed}: accuracy {row['accuracy']}")


def accuracies(own: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent: a row per place that ``own`` has, a column per method."""
    together = pd.concat([table(TABLE), own], ignore_index=True)
    together["accuracy"] = 100 * pd.to_numeric(together["accuracy"])
    wide = together.pivot(index=PLACE, columns="method", values="accuracy")
    return wide[wide[own["method"].iloc[0]].notna()]


def summary(own: pd.DataFrame) -> pd.DataFrame:
    """Return a row per situation: accuracy, place, best method, gain, and where the method breaks.

    The place is that of the mean over seeds, among all methods. The ``gain`` has the points above
    the better one of FedAvg and clients alone, and the method ``breaks`` where it is below in every
    seed. What a run has measured follows: its trainings and megabytes, and ``hurt``, the clients of
    which it leaves the model worse than that of the client alone. All are means over seeds.
    """
    name, rows = own["method"].iloc[0], []
    measures = [own_name for own_name in COLUMNS[6:] if own_name in own]
    costs = own.assign(**{m: pd.to_numeric(own[m], errors="coerce") for m in measures})
    for place, runs in accuracies(own).groupby(level=["situation", "value"], sort=False):
        known = runs.dropna(axis=1)
        means = known.mean()
        rank = int((means > means[name]).sum()) + 1
        row = {"situation": " ".join(place).strip(), "accuracy": f"{means[name]:.1f}"}
        row |= {"place": f"{rank} of {len(means)}", "best": f"{means.idxmax()} {means.max():.1f}"}
        if set(PLAIN) <= set(known):
            gains = known[name] - known[PLAIN].max(axis=1)
            broken = "breaks" if (gains < 0).all() else ""
            row |= {"gain": f"{gains.mean():+.1f}", "breaks": broken}
        here = costs[(costs["situation"] == place[0]) & (costs["value"] == place[1])]
        rows.append(row | {m: f"{here[m].mean():.1f}" for m in measures})
    return pd.DataFrame(rows).fillna("")


def markdown(rows: pd.DataFrame) -> str:
    """Format a table in Markdown."""
    lines = [list(rows), ["---"] * len(rows.columns), *rows.astype(str).values.tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows: pd.DataFrame) -> str:
    """Format a table in LaTeX, for the package booktabs."""
    head, *body = (" & ".join(line) for line in [list(rows), *rows.astype(str).values.tolist()])
    inside = " \\\\\n".join(body).replace("%", r"\%").replace("_", r"\_")
    columns = "l" * len(rows.columns)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head} \\\\\n\\midrule\n{inside} \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def ranks(own: pd.DataFrame) -> Figure:
    """Draw the average ranks of all methods, and bars over those that do not differ significantly.

    The blocks are the situations, each with the mean over its seeds: clients of one seed are the
    same in many of them. Situations with another k are left out, since few methods are told k.
    """
    wide = accuracies(own).groupby(level=["situation", "value"], sort=False).mean()
    found = stats.compare(wide.drop(index="k", level="situation", errors="ignore"), True)
    plots.style()
    figure, ax = plt.subplots(figsize=(8, 0.2 * len(found.ranks) + 1.2))
    names, name = found.ranks.index.tolist(), own["method"].iloc[0]
    colours = [plots.COLOURS[1] if one == name else plots.COLOURS[0] for one in names]
    ax.scatter(found.ranks, range(len(names)), color=colours)
    for place, group in enumerate(found.alike):
        at = [names.index(one) for one in group]
        ends = [max(found.ranks) + 0.5 + 0.4 * place] * 2
        ax.plot(ends, [min(at), max(at)], color="black", linewidth=2)
    ax.set_yticks(range(len(names)), [f"▸ {one}" if one == name else one for one in names])
    ax.invert_yaxis()
    ax.set(xlabel="average rank (1 is best); bars join methods that do not differ significantly")
    return figure


def write(own: pd.DataFrame, folder: Path) -> list[Path]:
    """Write ``compare.md``, ``compare.tex`` and ``compare.png`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, figure = summary(own), ranks(own)
    png = plots.png_of(figure)
    plt.close(figure)
    written = {"md": markdown(rows).encode(), "tex": latex(rows).encode(), "png": png}
    for ending, contents in written.items():
        check_regular(folder / f"compare.{ending}").write_bytes(contents)
    return [folder / f"compare.{ending}" for ending in written]
