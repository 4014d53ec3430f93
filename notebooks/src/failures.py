"""Write ``data/failures.csv``: how well each method of lesson 09b does where its assumptions fail.

The program executes the lesson's own cells up to its line-up, and runs all methods in each of the
situations of `cflkit.compare` with each seed, which decides data and training. Rows that are there
are not run again.
"""

import csv
import sys
from collections.abc import Iterable
from typing import Any

import torch

from cflkit import methods, simulation
from cflkit.compare.situations import SEEDS, TRUE_K, Scene, places, scene
from cflkit.reproduce.records import PROJECT
from cflkit.simulation.evaluation import client_scores

sys.path.insert(0, str(PROJECT / "notebooks" / "src" / "play" / "explorers"))
from data import lesson

TABLE = PROJECT / "data" / "failures.csv"
COLUMNS = ("situation", "value", "seed", "method", "accuracy", "ari")
Names = dict[str, Any]  # what the lesson's cells define


def line_up(names: Names, truth: Any, k: int) -> dict[str, methods.Method]:
    """Return the lesson's methods, and three that it leaves out."""
    return names["line_up"](truth, k) | {
        "FLUX": methods.make("flux", start=2),  # by embeddings of a model that was trained once
        "StoCFL": methods.make("stocfl"),
        "FedRep": methods.make("fedrep"),
    }


def measured(names: Names, new: Scene, only: Iterable[str] | None = None) -> list[dict[str, str]]:
    """Run the methods in a scene; with a wrong k, those alone that are told k."""
    lines, right = (line_up(names, new.split.clusters, k) for k in (new.k, TRUE_K))
    told = [name for name in lines if new.k == TRUE_K or repr(lines[name]) != repr(right[name])]
    lines = {name: lines[name] for name in told if only is None or name in only}
    home = new.federation()
    summary = simulation.run(lines, home, new.rounds, progress=False).summary()
    return [
        {
            "method": name,
            "accuracy": f"{client_scores(line, home)[new.affected, 1].mean():.4f}",
            "ari": f"{summary[name]['ari']:.3f}" if "ari" in summary[name] else "",
        }
        for name, line in lines.items()
    ]


def main() -> None:
    """Add what the table lacks, one seed and situation after the other."""
    torch.set_num_threads(1)
    if not TABLE.exists():
        TABLE.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with TABLE.open("r+", 1, encoding="utf-8", newline="") as file:  # written line by line
        there = {(row["situation"], row["value"], row["seed"]) for row in csv.DictReader(file)}
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for seed in SEEDS:
            names = lesson("09b_catalogue", until="line_up", seed=seed)
            for place in places():
                if (place[0], str(place[1]), str(seed)) not in there:
                    key = dict(zip(COLUMNS, (*place, seed), strict=False))
                    writer.writerows(key | row for row in measured(names, scene(*place, seed)))
                    print(*place, seed, flush=True)


if __name__ == "__main__":
    main()
