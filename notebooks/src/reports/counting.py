"""How often each answer of the ledger is given, and which numbers are facts of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from cflkit.reproduce import ledger
from cflkit.reproduce.ledger import ANSWERS, SCALES, answers_at, scenario_columns
from reports import worth


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Add to the counts of answers what tells how much they are worth.

    Beside those of `ledger.counts`, the columns are ``run`` (cells that are compared with runs),
    ``distinct`` (those that `count_once`), ``distinct reproduced``, ``equal seeds`` (reproduced
    cells whose interval has no width), ``right`` (the share of reproduced cells among those of
    several seeds that a run can miss), and ``placebo`` (the same share if each is compared with our
    runs of the other scenarios). The rows are scale, paper and table.
    """
    parts = {}
    for of, (prefix, _) in SCALES.items():
        answers = answers_at(table, of)
        answered, good = answers.isin(ANSWERS), answers.eq("reproduced")
        distinct = answered & count_once(table, prefix)
        several = table[f"{prefix}seeds"].gt(1) & ~table["fixed"]
        by = [table["paper"], table["table"]]
        facts = {
            "run": answered.groupby(by).sum(),
            "distinct": distinct.groupby(by).sum(),
            "distinct reproduced": (distinct & good).groupby(by).sum(),
            "equal seeds": (good & equal_seeds(table, prefix)).groupby(by).sum(),
            "right": good.astype(float).where(several).groupby(by).mean(),
            "placebo": placebo(table, prefix),
        }
        parts["paper's" if of == "paper" else of] = pd.DataFrame(facts)
    return ledger.counts(table).join(pd.concat(parts, names=["scale"]))


def count_once(table: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Return which numbers no earlier table has, a run can miss, and are not `repeated`."""
    return table["again"].eq("") & ~table["fixed"] & ~repeated(table, prefix)


def equal_seeds(table: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Return which of our means are of several equal values, so that they have no interval."""
    return table[f"{prefix}seeds"].gt(1) & table[f"{prefix}half_width"].lt(1e-9)


def repeated(table: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Return which numbers are those of another measure again, by construction, printed and ours.

    If a method finds exactly the true groups, RAND, AMI and COM are one function of the round. So
    of one method, in one scenario, equal numbers of equal runs are one fact.
    """
    ours = [prefix + name for name in ("ours", "half_width", "low", "high", "never", "runs")]
    return table.duplicated(["paper", *scenario_columns(), "method", "value", *ours])


def placebo(
    table: pd.DataFrame, prefix: str = "", by: Sequence[str] = ("paper", "table")
) -> pd.Series:
    """Compute how often the rule says "reproduced" of a wrong scenario, per paper and table.

    Each published number is compared with our runs of every other scenario of the same table, for
    the same method and measure. A rule that can tell scenarios apart rarely says "reproduced".
    Numbers that a run cannot miss (`Paper.fixed`) are left out. The share is NaN if no cell has
    runs of two seeds at the scale, whose columns have the prefix.
    """
    compared = worth.pairs(table, prefix)
    wrong = compared[compared["number"] != compared["runs"]]
    return wrong.groupby([*by])["passes"].mean()
