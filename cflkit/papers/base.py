"""What there is to know about a paper, whatever the paper.

`ledger`, `grid`, `records`, `notebooks` and `readme` ask a `Paper` and know none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.federation import Federation
    from cflkit.history import History
    from cflkit.methods import Method
    from cflkit.partition import Partition
    from cflkit.records import Record

AS_PUBLISHED = " as published"
# How far our mean may lie from a published score, a published round, a published percentage, and a
# published number of clusters, to be reproduced, and to be close
SCORES, ROUNDS, PERCENT, CLUSTERS = (0.02, 0.05), (0.0, 1.0), (0.5, 2.0), (1.0, 2.0)


# --- Published numbers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """How a published number comes from a method's rounds.

    Attributes
    ----------
    value : callable
        From the method's rows to the number, in the table's units.
    within : tuple of float
        How far our mean may lie from it to be reproduced, and to be close.
    dash_is_one_cluster : bool
        Whether print has a dash where all clients stayed one cluster from first to last.
    """

    value: Callable[[pd.DataFrame], float | None]
    within: tuple[float, float]
    dash_is_one_cluster: bool = False


def at(row: int, measure: str, within: tuple[float, float], factor: float = 1) -> Protocol:
    """Build the protocol of a measure in one row, the first (0) or the last (-1)."""
    return Protocol(lambda rounds: factor * rounds[measure].iloc[row], within)


# --- As published, and as intended ---------------------------------------------------------------


@dataclass(frozen=True)
class Switch:
    """One difference between what was published and what was meant.

    Attributes
    ----------
    where : str
        The method or clusterer, by its name in `methods.make` or `clustering.make`.
    option : str
        Its option.
    published, intended : object
        The option's value as published, and as the rest of the papers, or the method's own authors,
        have it.
    by : {"code", "text"}
        Whether the authors' code, and so their results, have the published value, or a text alone.
    what, source : str
        What the difference is, and where it can be read.
    alongside : mapping of str to object
        Other options that had to be chosen for the published value, and their values there.
    """

    where: str
    option: str
    published: Any
    intended: Any
    by: str
    what: str
    source: str
    alongside: Mapping[str, Any] = field(default_factory=dict)


def switch_table(switches: Sequence[Switch]) -> pd.DataFrame:
    """Switches as a table for readers, one row per switch."""
    return pd.DataFrame([vars(switch) for switch in switches]).drop(columns="alongside")


def as_published(
    where: str, home: type, given: Mapping[str, Any], switches: Sequence[Switch]
) -> dict[str, Any]:
    """Flip the switches of one method or clusterer to what the authors' code has.

    Parameters
    ----------
    where : str
        Its name.
    home : type
        Its class, a dataclass, whose defaults hold where nothing is given.
    given : mapping
        Its options as meant.
    switches : sequence of Switch
        Those of other methods, and those of a text alone, change nothing.

    Returns
    -------
    dict
        Its options as published; equal to those given if no switch is another way.
    """
    usual = {option.name: option.default for option in fields(home)} | dict(given)
    flipped = dict(given)
    for switch in switches:
        here = switch.where == where and switch.by == "code"
        if here and usual[switch.option] != switch.published:
            flipped |= {switch.option: switch.published, **switch.alongside}
    return flipped


# --- The README's table --------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """The runs of one scenario at one scale, one per seed: a row of the README's table.

    Attributes
    ----------
    scale : str
        ``paper`` or ``reduced``.
    records : list of Record
        At least one.
    """

    scale: str
    records: list[Record]

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the first run; all of the scenario's are the same in the others."""
        return self.records[0].parameters

    def values(self, method: str, measure: str) -> list[Any]:
        """A measure of each run's summary."""
        return [record.summary[method][measure] for record in self.records]

    def mean(self, method: str, measure: str) -> float:
        """The mean of `values`."""
        return fmean(self.values(method, measure))

    @property
    def minutes(self) -> float:
        """How long a run took, on average."""
        return fmean(record.provenance["minutes"] for record in self.records)


@dataclass(frozen=True)
class Column:
    """One column of a README table.

    Attributes
    ----------
    head : str
        Its heading.
    cell : callable
        From the runs of a row to the text of the cell.
    """

    head: str
    cell: Callable[[Runs], str]


def given(head: str, *names: str) -> Column:
    """Build the column of the parameters with these names."""
    return Column(head, lambda runs: ", ".join(str(runs.parameters[name]) for name in names))


def mean(head: str, method: str, measure: str, digits: int = 2, factor: float = 1) -> Column:
    """Build the column of a measure's mean over seeds."""
    return Column(head, lambda runs: f"{factor * runs.mean(method, measure):.{digits}f}")


SCALE = Column("scale", lambda runs: runs.scale)
SEEDS = Column("seeds", lambda runs: str(len(runs.records)))
MINUTES = Column("minutes", lambda runs: f"{runs.minutes:.0f}")


@dataclass(frozen=True)
class Results:
    """The README's table of a paper's runs.

    Attributes
    ----------
    marker : str
        The name of its place in the README.
    columns : tuple of Column
        From left to right.
    scales : tuple of str
        Of the runs that it has.
    """

    marker: str
    columns: tuple[Column, ...]
    scales: tuple[str, ...] = ("paper", "reduced")


# --- A paper -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paper:
    """All that the kit knows about a paper.

    Attributes
    ----------
    name : str
        As in the column ``paper`` of its tables under ``data/published``.
    notebook : str
        That makes its runs.
    parameters : type
        The model of that notebook's parameters (of `parameters.Parameters`, with what
        `parameters.Recorded` has); several papers may share its runs.
    scenario : mapping of str to type
        The parameters that tell its scenarios apart, which are columns of its tables, and what they
        are.
    file : str
        The name of a scenario's parameter file, which has the other parameters.
    methods : mapping of str to str
        Its names for methods, and ours. A run has a method "as published", too, where what the
        paper's code did is another thing than what was meant.
    protocols : mapping of str to Protocol
        How its numbers come from rounds, by the names in the column ``protocol`` of its tables.
    data : callable
        From the parameters to the images and who holds which, as in the notebook.
    federation : callable
        From parameters, images and partition to the clients.
    line_up : callable
        From parameters, images and partition to the methods by name.
    play : callable
        From parameters, federation, methods and a number of rounds to the history.
    rounds : callable
        From the parameters to the number of rounds of a whole run.
    after_the_last : bool
        Whether its rows are made after the last round, and not round by round.
    switches : tuple of Switch
        Where its code or its text differs from what was meant.
    results : Results, optional
        The README's table; none for a paper that shares another's runs.
    free : frozenset of str
        Parameters in which runs of one scale may differ, like seeds.
    """

    name: str
    notebook: str
    parameters: type[Any]
    scenario: Mapping[str, type]
    file: str
    methods: Mapping[str, str]
    protocols: Mapping[str, Protocol]
    data: Callable[[Any], tuple[ImageSet, Partition]]
    federation: Callable[[Any, ImageSet, Partition], Federation]
    line_up: Callable[[Any, ImageSet, Partition], Mapping[str, Method]]
    play: Callable[[Any, Federation, Mapping[str, Method], int], History]
    rounds: Callable[[Any], int] = lambda run: int(run.rounds)
    after_the_last: bool = False
    switches: tuple[Switch, ...] = ()
    results: Results | None = None
    free: frozenset[str] = frozenset({"seed", "partition_seed"})

    @property
    def folder(self) -> str:
        """Where its parameter files lie, and how the names of its records begin."""
        return str(self.parameters.folder)
