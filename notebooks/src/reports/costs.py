"""What each method of EMD-CFL's comparison was told, what its server sees, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from cflkit import methods
from cflkit.federation import Ask, Losses
from cflkit.reproduce import ledger
from cflkit.reproduce.papers import emd_cfl
from cflkit.reproduce.records import Record

# How the thresholds were chosen: by the paper (appendix D.3), and by us at the reduced scale
CHOSEN = {
    "EMD-CFL": "ε, with the true groups (by us)",
    "PACFL": "β, with the true groups (for as published)",
    "FedClust": "λ, with the true groups (for as published)",
    "CFL": "ε₁, ε₂, for another network",
}
# What clients answer besides trained models, by the names of the functions that compute it
SENT = {
    "owner_sends": "projected embeddings",
    "other_sends": "projected embeddings",
    "directions": "directions of its images",
    "loss_gradient": "a gradient",
    "feature_axes": "axes of its features",
    "choice": "the best model's number",
    "descriptor": "means and deviations of embeddings",
    "mean_losses": "mean losses of the models",
    "importance": "weights of the k models",
    "gains": "scores of the k models",
}


def told(runs: Sequence[Record], version: str = "four") -> pd.DataFrame:
    """Tell what methods as intended were told, and what they cost at the reduced scale.

    Costs are per client and round, from records that count them: those of the version, or else of
    another one. The index is the ``method``; ``sees`` is what the server gets of a client,
    ``trainings`` counts local trainings, and ``down`` and ``up`` are bytes in models. The
    ``accuracy`` in per cent is that of the version at the end, also per local training of a client
    (``per training``) and per megabyte that a client received and sent (``per MB``). NaN where no
    record says it.
    """
    whole = [run for run in runs if ledger.scale(run, "emd-cfl") == "reduced"]
    whole = [run for run in whole if run.parameters["until"] == "rounds"]
    there = [run for run in whole if run.parameters["version"] == version]
    rows = []
    for method, (where, options) in emd_cfl.LINE_UP.items():
        ends = [run for run in there if method in run.summary]
        if not ends:
            continue
        told_k = "told" if "k" in options else "the groups" if method == "Oracle" else "–"
        row: dict[str, Any] = {"method": method, "k": told_k}
        known = {"truth": (0,)} if method == "Oracle" else {}
        row |= {"threshold": CHOSEN.get(method, "–"), "sees": sees(methods.make(where, **known))}
        counts = [cost(r, method) for r in ends if "total_trainings" in r.summary[method]]
        others = [run for run in whole if "total_trainings" in run.summary.get(method, {})]
        each = np.mean(counts or [cost(run, method) for run in others] or [[np.nan] * 4], axis=0)
        row |= dict(zip(("trainings", "down", "up"), each, strict=False))
        row["accuracy"] = 100 * fmean(run.summary[method]["accuracy"] for run in ends)
        rounds = ends[0].parameters["rounds"]
        row["per training"] = row["accuracy"] / (rounds * each[0])
        row["per MB"] = row["accuracy"] / (rounds * each[3])
        rows.append(row)
    return pd.DataFrame(rows).set_index("method")


def cost(run: Record, method: str) -> list[float]:
    """Return a client's trainings, models received and sent, and megabytes of both, per round."""
    ends, given = run.summary[method], run.parameters
    times = given["clients"] * given["rounds"]
    down, up = (ends[f"total_bytes_{way}"] / times for way in ("down", "up"))
    model = 4 * run.provenance["parameters_of_model"]
    return [ends["total_trainings"] / times, down / model, up / model, (down + up) / 1e6]


def sees(method: methods.Method) -> str:
    """Name what the server gets of a client: trained models, and what it asks for besides."""
    asked = method.asks()
    names = [r.question for r in asked if isinstance(r, Ask)]
    names += [r.told for r in asked if isinstance(r, Losses) and r.told is not None]
    texts = [SENT.get(name.__name__, name.__name__) for name in names]
    return ", ".join(dict.fromkeys(["models", *texts]))
