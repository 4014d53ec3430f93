"""Write ``data.json``, the numbers that the explorers show.

``python notebooks/src/play/explorers/data.py`` executes the lessons' own cells, up to the one that
computes what is needed, and writes their numbers (minutes on two cores). So an explorer and its
lesson have the same clients, the same seeds and the same training. Numbers are rounded and written
as whole numbers, of which ``unit`` is one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jupytext
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflkit import methods, simulation
from cflkit.federation import Federation
from cflkit.methods.baselines.sattler import bipartition, update_norms
from cflkit.simulation import mixing as mixing_matrices

HERE = Path(__file__).parent
LESSONS = HERE.parents[1]
UNIT = 1e-4


def lesson(name: str, until: str, **given: object) -> dict[str, Any]:
    """Execute the cells of a lesson until a name is there, with given parameters and no figures."""
    names: dict[str, Any] = {}
    for cell in jupytext.read(LESSONS / f"{name}.py").cells:
        if until in names:
            return names
        if cell.cell_type == "code":
            source, *frames = cell.source.split("\n\n\ndef frame(")
            if frames or "plots.show" not in source:
                exec(source, names)
        if "parameters" in cell.metadata.get("tags", ()):
            names |= given
    return names


def whole(values: ArrayLike, unit: float = UNIT) -> Any:
    """Return the nearest whole numbers of units, as lists."""
    return np.rint(np.asarray(values) / unit).astype(int).tolist()


def above(matrix: ArrayLike) -> Any:
    """Return what is above the diagonal of a symmetric matrix, row by row."""
    square = np.asarray(matrix)
    return whole(square[np.triu_indices(len(square), 1)])


def older_rules() -> dict[str, Any]:
    """Lesson 04: distances for Briggs' cut, and for each rate the norms and halves of Sattler."""
    names = lesson("04_sattler_and_briggs", until="gammas")
    run, updates = names["run"], names["updates"]
    rates = [
        {
            "lr": rate,
            "norms": [whole(update_norms(moved)) for moved in kept],
            "halves": ["".join(map(str, bipartition(moved).int().tolist())) for moved in kept],
        }
        for rate, kept in updates.items()
    ]
    return {
        "truth": names["split"].clusters.tolist(),
        "briggs": {"cut": run.cut, "rounds": [above(gamma) for gamma in names["gammas"][run.lr]]},
        "sattler": {"eps1": run.eps1, "eps2": run.eps2, "rates": rates},
    }


def emd_cfl() -> dict[str, Any]:
    """Lesson 05: the scores of the first round, for the clients of its Figure 5."""
    names = lesson("05_emd_cfl", until="federation")
    run, digits, shifts = names["run"], names["digits"], names["shifts"]

    def scores(images: Any, split: Any) -> dict[str, Any]:
        home = Federation(images, split, "perceptron", names["training"], seed=run.seed)
        method = methods.make("emd-cfl", epsilon=run.epsilon)
        simulation.run({"EMD-CFL": method}, home, 1, progress=False)
        return {"truth": split.clusters.tolist(), "scores": whole(method.scores)}

    options = {"clients": run.clients, "samples": run.samples, "seed": run.seed}
    turned = {name: shifts.make(digits, name, **options) for name in ("quarter-turn", "four")}
    dealt = {"poisoned": (names["images"], names["split"])} | turned
    scenes = {name: scores(*clients) for name, clients in dealt.items()}
    return {"epsilon": run.epsilon, "scenes": scenes}


def fedcref() -> dict[str, Any]:
    """Lesson 06: how alike the networks of two local clusters are, on both clusters."""
    names = lesson("06_fedcref", until="associate")
    far = names["far"](names["errors"], names["clusters"])
    return {
        "threshold": names["run"].threshold,
        "owner": names["clusters"].owner.tolist(),
        "classes": names["names"].tolist(),
        "far": above(np.maximum(far, far.T)),
    }


def insertion() -> dict[str, Any]:
    """Lesson 07: the image of its Figure 1, three orders of its pixels, and their curves."""
    names = lesson("07_explaining_cluster_models", until="three")
    order, seed = names["explain"].pixel_order, names["run"].seed
    image, heats = names["image"][0], names["three"]
    return {
        "class": names["c"],
        "step": names["run"].step,
        "image": whole(image.flatten() / image.max(), 1 / 255),
        "maps": [
            {
                "name": name,
                "order": order(heat[None], seed)[0].tolist(),
                "heat": whole(heat.flatten() / heat.max(), 1 / 99),
                "curve": whole(names["back"][name][0]),
            }
            for name, heat in heats.items()
        ],
    }


def mixing() -> dict[str, Any]:
    """Lesson 09 and its catalogue 09b: the matrix of each method and round, on the same clients."""
    names = lesson("09_a_map_of_the_methods", until="history")
    run, truth = names["run"], names["truth"]
    same = {"clients": len(truth), "samples": run.samples, "rounds": run.rounds, "seed": run.seed}
    catalogue = lesson("09b_catalogue", until="line_up", **same)
    # The catalogue's OCFL with HDBSCAN is the lesson's OCFL
    known = {*names["watched"], "OCFL-HDB"}
    others = {n: method for n, method in catalogue["line_up"](truth).items() if n not in known}
    added = mixing_matrices.watched(others)
    more = simulation.run(added, catalogue["federation"], run.rounds, progress=False)
    tables = [names["history"].table(), more.table()]
    accuracy = pd.concat(tables).groupby("method")["accuracy"].agg(whole)
    squares: dict[tuple[str, str], int] = {}  # each once, in the order of the first method with it
    rounds = {
        name: [squares.setdefault(folded(one), len(squares)) for one in method.matrices]
        for name, method in (names["watched"] | added).items()
    }
    return {
        "truth": truth.tolist(),
        "client": run.client,
        "squares": list(squares),
        "methods": [
            {"name": name, "rounds": own, "accuracy": accuracy[name]}
            for name, own in rounds.items()
        ],
    }


def folded(matrix: np.ndarray) -> tuple[str, str]:
    """Return the different rows of a mixing matrix, and a letter for each row that says which.

    A weight is a number of 240ths, as two hexadecimal digits: so equal shares of 3, 4, 5, 10, 15 or
    20 clients are exact. The page divides each row by its sum.
    """
    weights = np.rint(240 * np.clip(matrix, 0, 1)).astype(np.uint8)
    rows, of = np.unique(weights, axis=0, return_inverse=True)
    return rows.tobytes().hex(), "".join(chr(ord("a") + place) for place in of)


def write(parts: Iterable[Any]) -> None:
    """Write what the functions return, each under its name; what others returned stays."""
    file = HERE / "data.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    data = kept | {"unit": UNIT} | {part.__name__: part() for part in parts}
    text = json.dumps(data, separators=(",", ":"))
    file.write_text(text + "\n", encoding="utf-8")
    print(f"data.json: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    write((older_rules, emd_cfl, fedcref, insertion, mixing))
