"""Put a method, or somebody's results, on the map of appendix 09b, beside its 31 methods.

The method runs in the twenty situations of `situations`, with the same clients, seeds, network
and training as the methods whose results are in ``data/failures.csv``.
"""

import csv
import hashlib
import runpy
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import matplotlib.pyplot as plt
import pandas as pd
from filelock import FileLock
from matplotlib.figure import Figure

from cflkit import methods, plots, simulation
from cflkit._bounds import Mistake
from cflkit._project import KIT, check_regular, write_files
from cflkit.compare.situations import SEEDS, Scene, places, scene
from cflkit.methods.base import Method
from cflkit.reproduce import stats
from cflkit.simulation.evaluation import client_scores

TABLE = KIT / "data" / "failures.csv"
PLACE = ["situation", "value", "seed"]
# The references beside which clients can be worse off, by the titles of columns in tables
BEHIND = {"worse than alone": "local", "worse than fine-tuned": "fine_tuned"}
COMPARED = [f"{what}_{of}" for of in BEHIND.values() for what in ("worse_than", "most_behind")]
# What a run measures, with the forms of numbers
MEASURED = {"accuracy": ".4f", "ari": ".3f"} | dict.fromkeys(COMPARED, ".4f")
COSTS = {"trainings": "d", "megabytes": ".1f"}
COLUMNS = [*PLACE, "method", *MEASURED, *COSTS, "told"]
REFERENCES = {"Local": "local", "FedAvg-FT": "fedavg-ft"}
# The methods of whose better one a method must not fall below: one model for all, and each alone
PLAIN = ["FedAvg", "Local"]


class CompareError(Mistake, ValueError):
    """A file holds no method or no results; the message says what is missing."""


def load(path: Path) -> type[Method]:
    """Load the one class of a method (`Method`) that a Python file defines."""
    if path.suffix.lower() != ".py":
        raise CompareError(f"{path} is neither a Python file (.py) nor a table (.csv)")
    values = runpy.run_path(str(check_regular(path)), run_name=path.stem).values()
    kinds = dict.fromkeys(k for k in values if isinstance(k, type) and issubclass(k, Method))
    # Options of a class that only inherits from a dataclass would not be seen
    classes = [k for k in kinds if k.__module__ == path.stem and "__dataclass_fields__" in vars(k)]
    if len(classes) != 1:
        names = ", ".join(kind.__name__ for kind in classes) or "none"
        raise CompareError(f"{path} must define one class, a @dataclass of Method, and has {names}")
    return classes[0]


def arguments(kind: type[Method], scene: Scene) -> dict[str, Any]:
    """Return what a method is told: k and the true clusters, if it has options of these names."""
    names = {option.name for option in fields(kind)}  # type: ignore[arg-type]
    truth = {"k": scene.k, "truth": scene.split.truth.tolist()}
    return {name: value for name, value in truth.items() if name in names}


def measure(lines: dict[str, Method], scene: Scene) -> dict[str, dict[str, str]]:
    """Run methods in a scene, beside the `REFERENCES`; return what each has measured.

    The accuracy is that of the affected clients. Who is worse is counted over all clients.
    """
    federation = scene.federation()
    beside = {name: methods.make(reference) for name, reference in REFERENCES.items()}
    history = simulation.run(
        beside | lines, federation, scene.rounds, central_every=scene.rounds, progress=False
    )
    last, summaries = history.table().groupby("method").last(), history.summary()
    rows = {}
    for name, method in lines.items():
        total = summaries[name]
        if "accuracy" not in total:
            rows[name] = {"accuracy": "0"}  # it diverged
            continue
        values = last.loc[name].dropna().to_dict() | {
            "accuracy": client_scores(method, federation)[scene.affected, 1].mean(),
            "trainings": total["total_trainings"],
            "megabytes": (total["total_bytes_down"] + total["total_bytes_up"]) / 1e6,
        }
        forms = (MEASURED | COSTS).items()
        rows[name] = {c: f"{values[c]:{form}}" for c, form in forms if c in values}
    return rows


def results(path: Path, output: Path, progress: Callable[[str], None] = click.echo) -> pd.DataFrame:
    """Return the rows of one method: it is run where ``output`` lacks them, or a table is read.

    What a run has measured belongs to the text of the method's file, of which the name of the
    output gets eight digits. After an edit, the method is run again. An edit of another file that
    it imports, or another version of the kit, does not count: then begin with another output.

    A table has the columns ``situation``, ``value``, ``seed``, ``method`` and ``accuracy`` of
    ``data/failures.csv``, and perhaps others of `COLUMNS`.

    Raises
    ------
    CompareError
        The file holds no method, or no such table.
    """
    if path.suffix.lower() != ".csv":
        kind, version = load(path), hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        output = output.with_stem(f"{output.stem}-{version}")
        run_missing(kind, output, progress)
        path = output
    rows, committed = table(check_regular(path)), table(TABLE)
    if lacking := {*PLACE, "method", "accuracy"} - set(rows):
        raise CompareError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
    if rows["method"].nunique() != 1 or rows.duplicated(PLACE).any():
        raise CompareError(f"{path} must have one method, with one row for a situation and a seed")
    if strange := {*map(tuple, rows[PLACE].values)} - {*map(tuple, committed[PLACE].values)}:
        raise CompareError(f"{path} has {sorted(strange)[0]}, which is not in {TABLE.name}")
    if not pd.to_numeric(rows["accuracy"], errors="coerce").between(0, 1).all():
        raise CompareError(f"{path} must have an accuracy from 0 to 1 in each row, not in percent")
    [name] = rows["method"].unique()
    return rows.assign(method=f"{name} (yours)" if name in set(committed["method"]) else name)


def table(path: Path) -> pd.DataFrame:
    """Read a table of results, with its places as texts."""
    try:
        return pd.read_csv(path, keep_default_na=False, dtype=dict.fromkeys(PLACE, str))
    except ValueError as error:
        raise CompareError(f"{path} cannot be read as a table of results ({error})") from error


def run_missing(kind: type[Method], output: Path, progress: Callable[[str], None]) -> None:
    """Run a method in the situations and seeds that a table lacks, and add them to it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    told = arguments(kind, scene("base", "", 0))
    about = {"method": kind.__name__, "told": " and ".join(told) or "nothing"}
    # Written line by line; a second process waits, and finds what the first has measured
    with FileLock(f"{output}.lock"), output.open("a+", 1, encoding="utf-8", newline="") as file:
        file.seek(0)
        done = {tuple(row[name] for name in PLACE) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not output.stat().st_size:
            writer.writeheader()
        # Another k changes nothing for a method that is not told k
        wanted = [(*p, seed) for seed in SEEDS for p in places() if p[0] != "k" or "k" in told]
        for number, (situation, value, seed) in enumerate(wanted, start=1):
            if (situation, str(value), str(seed)) in done:
                continue
            place = scene(situation, value, seed)
            [row] = measure({"": kind(**arguments(kind, place))}, place).values()
            key = dict(zip(PLACE, (situation, value, seed), strict=True))
            writer.writerow(key | about | row)
            named = f"{number} of {len(wanted)}: {situation} {value}".rstrip()
            progress(f"{named}, seed {seed}: accuracy {row['accuracy']}")


def accuracies(runs: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent: a row per place that ``runs`` has, a column per method."""
    together = pd.concat([table(TABLE), runs], ignore_index=True)
    together["accuracy"] = 100 * pd.to_numeric(together["accuracy"])
    wide = together.pivot(index=PLACE, columns="method", values="accuracy")
    return wide.reindex(pd.MultiIndex.from_frame(runs[PLACE]))


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per situation: accuracy, place, best method, gain, and where the method breaks.

    The place is that of the mean over seeds, among all methods. The ``gain`` has the points above
    the better one of FedAvg and clients alone, and the method ``breaks`` where it is below in every
    seed. Two columns say what share of clients the method leaves worse than alone, and worse than
    with fine-tuned FedAvg; in brackets, by how many points the worst. What a run has cost follows.
    All are means over seeds. The last column says what the method is told of the true clusters.
    """
    name, rows = runs["method"].iloc[0], []
    for place, scores in accuracies(runs).groupby(level=["situation", "value"], sort=False):
        scores = scores.dropna(axis=1)
        means = scores.mean()
        rank = int((means > means[name]).sum()) + 1
        row = {"situation": " ".join(place).strip(), "accuracy": f"{means[name]:.1f}"}
        row |= {"place": f"{rank} of {len(means)}", "best": f"{means.idxmax()} {means.max():.1f}"}
        if set(PLAIN) <= set(scores):
            gains = scores[name] - scores[PLAIN].max(axis=1)
            row |= {"gain": f"{gains.mean():+z.1f}", "breaks": "breaks" * bool((gains < 0).all())}
        here = runs[(runs["situation"] == place[0]) & (runs["value"] == place[1])]
        # A method that has diverged has only an accuracy
        numbers = here.reindex(columns=COLUMNS).apply(pd.to_numeric, errors="coerce").mean()
        spent = {cost: f"{numbers[cost]:.1f}" for cost in COSTS if pd.notna(numbers[cost])}
        rows.append(row | worse(numbers) | spent | here.iloc[0].filter(["told"]).to_dict())
    return pd.DataFrame(rows).fillna("")


def worse(numbers: pd.Series) -> dict[str, str]:
    """Say what share of clients is worse than with a reference, and by how many points at most."""
    return {
        title: f"{share:.0f} % ({most:.1f})"
        for title, of in BEHIND.items()
        for share, most in [100 * numbers[[f"worse_than_{of}", f"most_behind_{of}"]]]
        if pd.notna(share) and pd.notna(most)
    }


def markdown(rows: pd.DataFrame) -> str:
    """Format a table in Markdown."""
    lines = [list(rows), ["---"] * len(rows.columns), *rows.astype(str).values.tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def ranks(runs: pd.DataFrame) -> Figure:
    """Draw the average ranks of all methods, and bars over those that do not differ significantly.

    The blocks are the situations, each with the mean over its seeds: clients of one seed are the
    same in many of them. Situations with another k are left out, since few methods are told k.
    """
    wide = accuracies(runs).groupby(level=["situation", "value"], sort=False).mean()
    compared = stats.compare(wide.drop(index="k", level="situation", errors="ignore"), True)
    plots.style()
    names, mine = compared.ranks.index.tolist(), runs["method"].iloc[0]
    figure, ax = plt.subplots(figsize=(8, 0.2 * len(names) + 1.2))
    colours = [plots.COLOURS[int(name == mine)] for name in names]
    ax.scatter(compared.ranks, range(len(names)), color=colours)
    rows = [[names.index(name) for name in group] for group in compared.alike]
    for place, span in enumerate(dict.fromkeys((min(at), max(at)) for at in rows)):
        ends = [max(compared.ranks) + 0.5 + 0.4 * place] * 2
        ax.plot(ends, span, color="black", linewidth=2)
    ax.set_yticks(range(len(names)), [f"▸ {name}" if name == mine else name for name in names])
    ax.invert_yaxis()
    ax.set(xlabel="average rank (1 is best); bars join methods that do not differ significantly")
    return figure


def write(runs: pd.DataFrame, folder: Path) -> list[Path]:
    """Write ``compare.md`` and ``compare.tex``, and of two situations or more ``compare.png``."""
    rows = summary(runs)
    latex = rows.to_latex(index=False, escape=True)
    written = {"compare.md": markdown(rows).encode(), "compare.tex": latex.encode()}
    if (~rows["situation"].str.startswith("k ")).sum() > 1:
        figure = ranks(runs)
        written["compare.png"] = plots.png_of(figure)
        plt.close(figure)
    return write_files(folder, written)
