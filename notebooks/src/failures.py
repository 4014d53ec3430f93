"""Write ``data/failures.csv``: how well each method of lesson 09b does where its assumptions fail.

The program executes the lesson's own cells up to its line-up, and runs all methods in each of the
situations of `cflkit.compare` with each seed, which decides data and training. Rows that are there
are not run again.
"""

import sys
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch

from cflkit import compare, methods
from cflkit.compare import PLACE
from cflkit.compare.situations import SEEDS, TRUE_K, Scene, places, scene
from cflkit.reproduce import records
from cflkit.reproduce.records import PROJECT

sys.path.insert(0, str(PROJECT / "notebooks" / "src" / "play" / "explorers"))
from data import lesson

TABLE = PROJECT / "data" / "failures.csv"
COLUMNS = [*PLACE, "method", *compare.MEASURED]
Names = dict[str, Any]  # what the lesson's cells define


def line_up(names: Names, truth: Any, k: int) -> dict[str, methods.Method]:
    """Return the lesson's methods, and five that it leaves out."""
    return names["line_up"](truth, k) | {
        "FLUX": methods.make("flux", start=2),  # by embeddings of a model that was trained once
        "StoCFL": methods.make("stocfl"),
        "FedRep": methods.make("fedrep"),
        "CLoVE": methods.make("clove", k=k),
        "FedAvg-FT": methods.make("fedavg-ft"),
    }


def those_of(names: Names, new: Scene) -> dict[str, methods.Method]:
    """Return the methods that run in a scene: with a wrong k, those alone that are told k."""
    lines, right = (line_up(names, new.split.clusters, k) for k in (new.k, TRUE_K))
    told = [name for name in lines if new.k == TRUE_K or repr(lines[name]) != repr(right[name])]
    return {name: lines[name] for name in told}


def measured(names: Names, new: Scene, only: Iterable[str]) -> dict[str, dict[str, str]]:
    """Run some of the methods in a scene; return the row of each."""
    return compare.measure({n: m for n, m in those_of(names, new).items() if n in only}, new)


def main() -> None:
    """Add what the table lacks, one seed and situation after the other."""
    torch.set_num_threads(1)
    there = pd.read_csv(TABLE, **records.TEXTS).to_dict("records") if TABLE.exists() else []
    rows = {(*(row[name] for name in PLACE), row["method"]): row for row in there}
    keys = []
    for seed in SEEDS:
        names = lesson("09b_catalogue", until="line_up", seed=seed)
        for place in places():
            new, key = scene(*place, seed), tuple(map(str, (*place, seed)))
            wanted = [*those_of(names, new)]
            keys += [(*key, name) for name in wanted]
            missing = [name for name in wanted if (*key, name) not in rows]
            for name, row in (measured(names, new, missing) if missing else {}).items():
                rows[*key, name] = dict(zip(PLACE, key, strict=True)) | {"method": name} | row
            if missing:
                print(*key, *missing, flush=True)
                ordered = [*keys, *(k for k in rows if k not in keys)]
                text = pd.DataFrame([rows[k] for k in ordered], columns=COLUMNS)
                records.write_whole(TABLE, text.to_csv(index=False, lineterminator="\n"))


if __name__ == "__main__":
    main()
