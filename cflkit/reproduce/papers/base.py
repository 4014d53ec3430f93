"""The form in which every paper of the kit is described.

`ledger`, `catalogue`, `replay`, `records`, `notebooks` and `readme` use a `Paper`. None of them
refers to a particular paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd

from cflkit.reproduce.parameters import Selection

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.federation import Federation
    from cflkit.methods import Method
    from cflkit.partition import Partition
    from cflkit.reproduce.records import Record
    from cflkit.simulation.history import History

AS_PUBLISHED = " as published"


# --- Published numbers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Margin:
    """How far from a published number ours may be, in units of the number.

    Attributes
    ----------
    near : float
        The largest distance of our mean, for the number to count as reproduced.
    far : float
        The largest distance of all values in our interval, for it to count as reproduced or close.
    rounding : float
        Half a unit of the last printed digit, by which both distances may be larger.
    """

    near: float
    far: float
    rounding: float


SCORES = Margin(0.01, 0.05, 0.005)
PERCENT = Margin(0.25, 2.0, 0.005)
CLUSTERS = Margin(0.5, 2.0, 0.05)
ROUNDS = Margin(0.5, 1.0, 0.0)  # counted, and not rounded
RANKS = Margin(0.25, 0.5, 0.005)


@dataclass(frozen=True)
class Protocol:
    """The rule by which a published number is computed from a method's rounds.

    Attributes
    ----------
    value : callable
        The function from the method's rows to the number, in the table's units. It returns None if
        the method never did what the number describes, and NaN if the run did not measure it.
    margin : Margin
        The distances from the number that count as reproduced and as close.
    dash_is_one_cluster : bool
        Whether the table prints a dash where all clients stayed one cluster in all rounds.
    """

    value: Callable[[pd.DataFrame], float | None]
    margin: Margin
    dash_is_one_cluster: bool = False


@dataclass(frozen=True)
class Ranks:
    """The rule by which a method's average rank is computed from runs of all scenarios.

    The highest score has rank 1.

    Attributes
    ----------
    score : Protocol
        The rule for the score by which the methods of a scenario are ranked.
    margin : Margin
        The distances from the number that count as reproduced and as close.
    """

    score: Protocol
    margin: Margin = RANKS


def at(row: int, measure: str, margin: Margin, factor: float = 1) -> Protocol:
    """Build the protocol of a measure's value in one row: the first row (0) or the last (-1)."""

    def value(rounds: pd.DataFrame) -> float:
        return factor * float(rounds[measure].iloc[row]) if measure in rounds else float("nan")

    return Protocol(value, margin)


def mean_of_all(measure: str, margin: Margin, rounds: slice = slice(None)) -> Protocol:
    """Build the protocol of a measure's mean over rounds, each of which must be measured."""

    def value(table: pd.DataFrame) -> float:
        values = table[measure].iloc[rounds] if measure in table else pd.Series([float("nan")])
        return float(values.mean(skipna=False))

    return Protocol(value, margin)


# --- As published, and as intended ---------------------------------------------------------------


@dataclass(frozen=True)
class Switch:
    """One difference between what was published and what was intended.

    Attributes
    ----------
    where : str
        The method or clusterer, by its name in `methods.make` or `clustering.make`.
    option : str
        The option that switches between the two.
    published, intended : object
        The option's value as published, and its value in the rest of the papers or by the method's
        own authors.
    by : {"code", "text"}
        Where the published value is found: in the authors' code, which also affects their results,
        or only in a text.
    what, source : str
        A description of the difference, and its source.
    alongside : mapping of str to object
        Other options that belong to the published value, and their values.
    """

    where: str
    option: str
    published: Any
    intended: Any
    by: str
    what: str
    source: str
    alongside: Mapping[str, Any] = field(default_factory=dict)


def as_published(
    where: str, home: type, given: Mapping[str, Any], switches: Sequence[Switch]
) -> dict[str, Any]:
    """Set the switches of one method or clusterer to the values of the authors' code.

    Parameters
    ----------
    where : str
        The name of the method or clusterer.
    home : type
        Its class, a dataclass, whose defaults are used for options that are not given.
    given : mapping
        The options as intended.
    switches : sequence of Switch
        The switches. Those of other methods and those that are only in a text are ignored.

    Returns
    -------
    dict
        The options as published; equal to those given if no switch differs.
    """
    usual = {option.name: option.default for option in fields(home)} | dict(given)
    flipped = dict(given)
    for switch in switches:
        here = switch.where == where and switch.by == "code"
        if here and usual[switch.option] != switch.published:
            flipped |= {switch.option: switch.published, **switch.alongside}
    return flipped


def selected(lines: Mapping[str, Method], only: Sequence[str] | None) -> dict[str, Method]:
    """Return the methods with these names and their twins as published; None for all methods."""
    wanted = lines if only is None else only
    return {name: lines[name] for name in lines if name.removesuffix(AS_PUBLISHED) in wanted}


# --- The table of results ------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """The runs of one scenario at one scale, one per seed: a row of the table of results.

    Attributes
    ----------
    scale : str
        The scale, ``paper`` or ``reduced``.
    records : list of Record
        The records of the runs, at least one.
    """

    scale: str
    records: list[Record]

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the first run's parameters; those of the scenario are the same in all runs."""
        return self.records[0].parameters

    def values(self, method: str, measure: str) -> list[Any]:
        """Return a measure of each run's summary; runs without this measure are left out."""
        summaries = [record.summary.get(method, {}) for record in self.records]
        return [summary[measure] for summary in summaries if measure in summary]

    @property
    def seeds(self) -> int:
        """Return the number of different seeds."""
        return len({record.parameters["seed"] for record in self.records})

    @property
    def minutes(self) -> list[float]:
        """Return the minutes of each run on a CPU; those on a GPU are no measure for others."""
        costs = [record.provenance for record in self.records]
        return [cost["minutes"] for cost in costs if cost["device"] == "cpu"]


@dataclass(frozen=True)
class Column:
    """One column of a table of results.

    Attributes
    ----------
    head : str
        The heading.
    cell : callable
        The function from the runs of a row to the text of the cell.
    """

    head: str
    cell: Callable[[Runs], str]


def given(head: str, *names: str) -> Column:
    """Build the column of the parameters with these names."""
    return Column(head, lambda runs: ", ".join(str(runs.parameters[name]) for name in names))


def mean(head: str, method: str, measure: str, digits: int = 2, factor: float = 1) -> Column:
    """Build the column of a measure's mean over seeds, with a dash where no run has it."""

    def cell(runs: Runs) -> str:
        values = runs.values(method, measure)
        return f"{factor * fmean(values):.{digits}f}" if values else "–"

    return Column(head, cell)


SCALE = Column("scale", lambda runs: runs.scale)
SEEDS = Column("seeds", lambda runs: str(runs.seeds))


def minutes(head: str = "minutes", digits: int = 0) -> Column:
    """Build the column of the mean minutes of a run on a CPU, with a dash where there is none."""
    return Column(head, lambda runs: f"{fmean(runs.minutes):.{digits}f}" if runs.minutes else "–")


@dataclass(frozen=True)
class Results:
    """The table of a paper's runs on the page of results.

    Attributes
    ----------
    marker : str
        The name in the markers between which the table stands.
    columns : tuple of Column
        The columns from left to right.
    scales : tuple of str
        The scales of the runs in the table.
    method : str, optional
        The method that a row is about. Scenarios that were run without it have no row.
    """

    marker: str
    columns: tuple[Column, ...]
    scales: tuple[str, ...] = ("paper", "reduced")
    method: str | None = None


# --- A paper -------------------------------------------------------------------------------------


def play_rounds(
    run: Any,
    federation: Federation,
    methods: Mapping[str, Method],
    rounds: int,
    checkpoint: Path | None = None,
    **options: Any,
) -> History:
    """Run the methods for some rounds, or until all their clusters are final if the run says so.

    Other options are those of `simulation.run`.
    """
    from cflkit import simulation

    until_settled = isinstance(run, Selection) and run.until == "clusters"
    return simulation.run(
        methods, federation, rounds, until_settled=until_settled, checkpoint=checkpoint, **options
    )


@dataclass(frozen=True)
class Paper:
    """All that the kit knows about a paper.

    Attributes
    ----------
    name : str
        The paper's name in the column ``paper`` of its tables under ``data/published``.
    notebook : str
        The notebook that makes its runs.
    parameters : type
        The model of that notebook's parameters: a subclass of `parameters.Parameters` that also
        satisfies `parameters.Recorded`. Several papers may share the runs of a notebook.
    scenario : mapping of str to type
        The parameters that identify a scenario, with their types. They are columns of the paper's
        tables.
    file : str
        The name of a scenario's parameter file, which has the other parameters.
    methods : mapping of str to str
        Our names for methods, by the paper's. A run also has a method "as published" where the
        paper's code differs from what was intended.
    protocols : mapping of str to Protocol or Ranks
        The rules for the paper's numbers, by the names in the column ``protocol`` of its tables.
    data : callable
        The function from the parameters to the images and the partition, as in the notebook.
    federation : callable
        The function from parameters, images and partition to the federation.
    line_up : callable
        The function from parameters, images and partition to the methods by name.
    play : callable
        The function from parameters, federation, methods and a number of rounds to the history.
    rounds : callable
        The function from the parameters to the number of rounds of a whole run.
    after_the_last : bool
        Whether the rows are made only after the last round, and not in each round.
    switches : tuple of Switch
        The differences of the paper's code or text from what was intended.
    results : Results, optional
        The table of results; None for a paper that shares another's runs.
    free : frozenset of str
        The parameters in which runs of one scale may differ, such as seeds.
    whole_only : frozenset of str
        The parameters of a scenario that runs at the reduced scale cannot have. For example, 10
        participants of 12 clients are not the scenario of 10 participants of 40.
    fixed : tuple of mapping
        The numbers that a run cannot miss, such as a parameter that is printed as a result. Each
        mapping gives values of columns of the tables.
    """

    name: str
    notebook: str
    parameters: type[Any]
    scenario: Mapping[str, type]
    file: str
    methods: Mapping[str, str]
    protocols: Mapping[str, Protocol | Ranks]
    data: Callable[[Any], tuple[ImageSet, Partition]]
    federation: Callable[[Any, ImageSet, Partition], Federation]
    line_up: Callable[[Any, ImageSet, Partition], Mapping[str, Method]]
    play: Callable[[Any, Federation, Mapping[str, Method], int], History]
    rounds: Callable[[Any], int] = lambda run: int(run.rounds)
    after_the_last: bool = False
    switches: tuple[Switch, ...] = ()
    results: Results | None = None
    free: frozenset[str] = frozenset({"seed", "partition_seed"})
    whole_only: frozenset[str] = frozenset()
    fixed: tuple[Mapping[str, Any], ...] = ()

    @property
    def folder(self) -> str:
        """Return the folder of its parameter files, with which its records' names begin."""
        return str(self.parameters.folder)
