"""The results of a run as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cflkit.metrics import by_method

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class History:
    """Results of a run: one row per method and round.

    Attributes
    ----------
    rows : list of dict
        ``method``, ``round``, and the measurements (see `Method.measuring`). In the round in which
        a method diverges, its row has ``diverged`` and no measurements. It is its last row.
    requested, trained : int
        The numbers of local trainings that the methods asked for, and that were run.
    minutes : float
        The wall-clock minutes of all rounds, including those before an interruption.
    peak_memory : float
        The largest memory in GiB after a round, including those before an interruption (see
        `loop.peak_memory`).
    revisions : list of str
        The git revision of the code at the start, and at each time that the run continued from a
        checkpoint.
    modules : list of str
        The modules in which the run began (`checkpoints.modules_of`), for the digest of its code.
    summarise : callable
        The function from the rows of one method to its measures.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    requested: int = 0
    trained: int = 0
    minutes: float = 0.0
    peak_memory: float = 0.0
    revisions: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    summarise: Callable[[pd.DataFrame], dict[str, Any]] = field(default=lambda rows: {})

    def table(self) -> pd.DataFrame:
        """Return the rows as a table, sorted by method and then by round; empty without rows."""
        import pandas as pd  # takes a while to load

        if not self.rows:
            return pd.DataFrame(columns=["method", "round"])
        table = pd.DataFrame(self.rows)
        for name in table.columns[table.isna().any()]:
            values = [row[name] for row in self.rows if row.get(name) is not None]
            if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
                table[name] = table[name].astype("Int64")  # pandas would convert them to floats
        methods = table["method"].unique()
        order = pd.Categorical(table["method"], categories=methods, ordered=True)
        return table.assign(order=order).sort_values(["order", "round"]).drop(columns="order")

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return the summary of the table: for each method, the values of its measures."""
        return by_method(self.table(), self.summarise)
