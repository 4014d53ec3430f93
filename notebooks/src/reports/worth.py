"""What the answer "reproduced" is worth: the tables of report 98."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cflkit.reproduce import ledger
from cflkit.reproduce.papers import PAPERS
from cflkit.reproduce.papers.base import Margin
from cflkit.reproduce.records import AS_PUBLISHED, Record
from cflkit.reproduce.rule import answer
from reports import thresholds

# A number may be compared with the runs for another one if they have these in common
KEY = ["paper", "table", "method", "measure"]
# Scenarios with these in common have groups of the same sizes
SIZES = ["clients", "balance"]
# The level of intervals, and the number of draws of the bootstrap
LEVEL, DRAWS = 0.9, 4000


def pairs(book: pd.DataFrame, prefix: str = "", factor: float = 1) -> pd.DataFrame:
    """Compare each published number with our runs of every scenario of its table.

    The numbers are those of `counting.placebo`, and the prefix is that of a scale. A row per number
    and scenario of the runs has the columns of `KEY`; ``number`` and ``runs``, which are scenarios;
    whether the comparison ``passes`` as reproduced; and whether both scenarios have groups that are
    ``alike`` in size. A factor makes both margins of the rule wider or narrower.
    """
    facts = [prefix + name for name in ("ours", "half_width", "seeds", "never")]
    cells = book[book[f"{prefix}seeds"].gt(1) & ~book["fixed"]]
    names = list(ledger.scenario_columns())
    cells = cells.assign(scenario=[", ".join(map(str, row)) for row in cells[names].to_numpy()])
    sized = [name for name in SIZES if name in cells]
    others = cells[[*KEY, *sized, *facts, "scenario"]]
    both = cells.merge(others, on=KEY, suffixes=("", "_other"))
    columns = ["paper", "protocol", "value", *(f"{name}_other" for name in facts)]
    passes = []
    for paper, protocol, value, mean, width, seeds, never in both[columns].to_numpy():
        margin = PAPERS[paper].protocols[protocol].margin
        wider = Margin(factor * margin.near, factor * margin.far, margin.rounding)
        passes.append(answer(value, mean, width, seeds, never, wider) == "reproduced")
    sizes, theirs = (both[[name + end for name in sized]].map(str) for end in ("", "_other"))
    alike = (sizes.to_numpy() == theirs.to_numpy()).all(axis=1)
    found = both[KEY].assign(number=both["scenario"], runs=both["scenario_other"])
    return found.assign(passes=passes, alike=alike)


def shares(compared: pd.DataFrame) -> pd.DataFrame:
    """Compute how often the rule passes, with intervals that are clustered by scenario.

    A row of the result has the ``share``, and the ``low`` and ``high`` end of its 90 % interval:
    for ``right`` scenarios, for ``wrong`` ones, for wrong ones with groups of the ``same sizes``,
    and for the ``lead`` of right over wrong. The bootstrap draws whole scenarios, each with all of
    its numbers and its runs. A scenario that is drawn twice is no wrong scenario for itself.
    """
    by_pair = compared.groupby(["number", "runs"])
    passes = by_pair["passes"].sum().unstack(fill_value=0).to_numpy(float)
    size = by_pair.size().unstack(fill_value=0).to_numpy(float)
    alike = by_pair["alike"].all().unstack(fill_value=False).to_numpy(bool)
    n, right = len(size), np.eye(len(size), dtype=bool)

    def of_draws(counts: NDArray[np.int64]) -> NDArray[np.float64]:
        twice = counts[:, :, None] * counts[:, None, :]
        times = np.where(right, counts[:, :, None], twice).astype(float)
        found = []
        for which in (right, ~right, alike & ~right):
            total = np.einsum("bij,ij->b", times, size * which)
            passed = np.einsum("bij,ij->b", times, passes * which)
            # A draw may lack such pairs
            found.append(np.divide(passed, total, np.full_like(total, np.nan), where=total > 0))
        return np.array([*found, found[0] - found[1]])

    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS)
    low, high = np.nanquantile(of_draws(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    share = of_draws(np.ones((1, n), dtype=np.int64))[:, 0]
    index = ["right", "wrong", "same sizes", "lead"]
    return pd.DataFrame({"share": share, "low": low, "high": high}, index=index)


def mean_of_scenarios(values: pd.Series, by: Sequence[str]) -> pd.Series:
    """Return the ``mean`` over runs, and the ends of its interval, which draws whole scenarios."""
    groups = values.groupby(list(by)).agg(["sum", "size"]).to_numpy(float)
    n = len(groups)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS) @ groups
    low, high = np.quantile(draws[:, 0] / draws[:, 1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return pd.Series({"mean": values.mean(), "low": low, "high": high})


def at_thresholds(runs: Sequence[Record]) -> pd.DataFrame:
    """Compare both versions of PACFL and FedClust at the printed threshold and at their own best.

    A row per scale, data and method has, for each ``version``, the mean ARI ``at the printed`` one
    and ``at its best``, and the number of ``seeds``. Runs without what a method compares are left
    out, and so is a method of which only one version is known.
    """
    rows = []
    for (scale, dataset, version, name), runs_of in thresholds.by_scenario(runs).items():
        method = name.removesuffix(AS_PUBLISHED)
        kept = [run for run in runs_of if thresholds.recorded(run, name)]
        if method == "EMD-CFL" or not kept:
            continue
        curves = [thresholds.curve_of(run, name) for run in kept]
        rows.append(
            {
                **{"scale": scale, "data": f"{dataset}, {version}", "method": method},
                "version": "as published" if name.endswith(AS_PUBLISHED) else "as intended",
                "at the printed": fmean(run.value(name, "ari") for run in kept),
                "at its best": thresholds.best(thresholds.mean_curve(curves))[0],
                "seeds": len(kept),
            }
        )
    table = pd.DataFrame(rows).set_index(["scale", "data", "method", "version"]).unstack()
    return table.dropna()
