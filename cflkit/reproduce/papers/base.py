"""The form in which every paper of the kit is described.

The other modules of `reproduce` use a `Paper`, and none of them refers to a particular paper. The
ledger needs what a paper says of its numbers, and not PyTorch, which takes seconds to load. So the
modules of papers import the kit's rooms inside those functions that build runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cflkit.reproduce.parameters import ParameterError, Selection
from cflkit.reproduce.records import AS_PUBLISHED, Record, has_parameters

if TYPE_CHECKING:
    from cflkit.datasets import ImageSet
    from cflkit.federation import Federation
    from cflkit.methods import Method
    from cflkit.partition import Partition
    from cflkit.simulation.evaluation import History

    Methods = dict[str, Method]  # by our names

# A method's rows of a record: a DataFrame, or arrays by the names of columns
Rows = Any

# --- Published numbers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Margin:
    """How far from a published number ours may be, in units of the number."""

    near: float  # the largest distance of our mean that counts as reproduced
    far: float  # the largest distance of a value in our interval that counts as close
    rounding: float  # half a unit of the last printed digit, by which both may be larger


SCORES = Margin(0.01, 0.05, 0.005)
PERCENT = Margin(0.25, 2.0, 0.005)
CLUSTERS = Margin(0.5, 2.0, 0.05)
ROUNDS = Margin(0.5, 1.0, 0.0)  # counted, and not rounded
RANKS = Margin(0.25, 0.5, 0.005)


@dataclass(frozen=True)
class Protocol:
    """The rule by which a published number is computed from a method's rows."""

    # In the table's units; None if the method never did it, and NaN if the run did not measure it
    value: Callable[[Rows], float | None]
    margin: Margin
    dash_is_one_cluster: bool = False  # whether a dash says that clients were always one cluster


@dataclass(frozen=True)
class Ranks:
    """The rule for a method's average rank over all scenarios, whose highest score has rank 1."""

    score: Protocol
    margin: Margin = RANKS


def column(rows: Rows, name: str) -> NDArray[np.float64]:
    """Return a column of numbers, which are NaN if the run did not measure them."""
    if name not in rows:
        return np.full(len(rows["round"]), np.nan)
    return np.asarray(rows[name], dtype=float)


def at(row: int, measure: str, margin: Margin, factor: float = 1) -> Protocol:
    """Build the protocol of a measure's value in one row: the first row (0) or the last (-1)."""
    return Protocol(lambda rows: factor * float(column(rows, measure)[row]), margin)


def mean_of_all(measure: str, margin: Margin, rounds: slice = slice(None)) -> Protocol:
    """Build the protocol of a measure's mean over rounds, each of which must be measured."""

    def mean(rows: Rows) -> float:
        values = column(rows, measure)[rounds]
        return float(values.mean()) if len(values) else np.nan  # a damaged table may be short

    return Protocol(mean, margin)


# --- As published, and as intended ---------------------------------------------------------------


@dataclass(frozen=True)
class Switch:
    """One difference between what was published and what was intended."""

    where: str  # the name of a method or a clusterer
    option: str
    published: Any  # the option's value as published
    intended: Any  # its value in the rest of the papers, or by the method's own authors
    what: str
    source: str
    by: str = "code"  # where the published value is: in the authors' code, or only in a "text"
    alongside: Mapping[str, Any] = field(default_factory=dict)  # options of the published value


# A method's name in `methods.make`, and its options as intended
Line = tuple[str, dict[str, Any]]


def as_published(
    where: str, options: Mapping[str, Any], switches: Sequence[Switch]
) -> dict[str, Any]:
    """Set options of a method, and of its clusterer, to the values of the authors' code.

    Switches of other methods, and those that are only in a text, are ignored. The options equal
    those given if no switch differs.
    """
    from cflkit import clustering, methods

    home: Any = methods.METHODS.get(where) or clustering.CLUSTERERS[where]
    usual = {option.name: option.default for option in fields(home)} | dict(options)
    flipped = dict(options)
    for switch in switches:
        here = switch.where == where and switch.by == "code"
        if here and usual[switch.option] != switch.published:
            flipped |= {switch.option: switch.published, **switch.alongside}
    clusterer = options.get("clusterer")
    if clusterer and (of_clusterer := as_published(clusterer, {}, switches)):
        flipped["options"] = of_clusterer
    return flipped


def both_ways(
    lines: Mapping[str, Line],
    switches: Sequence[Switch],
    classes: Mapping[str, type[Method]] | None = None,
) -> Methods:
    """Make methods by our names, each followed by a twin where the authors' code differs.

    ``classes`` stand in for those of `methods.make`.
    """
    from cflkit import methods

    made = {}
    for name, (where, options) in lines.items():
        build = (classes or {}).get(where) or partial(methods.make, where)
        made[name] = build(**options)
        if (published := as_published(where, options, switches)) != options:
            made[name + AS_PUBLISHED] = build(**published)
    return made


def selected(lines: Mapping[str, Method], only: Sequence[str] | None) -> Methods:
    """Return the methods with these names and their twins as published; None for all methods.

    A twin may also be named alone, where its sibling would train for many more rounds.

    Raises
    ------
    ParameterError
        A method has no twin, since the authors' code does what was intended.
    """
    wanted = lines if only is None else only
    if absent := [name for name in wanted if name not in lines]:
        raise ParameterError(
            f"there is no version of its own {absent[0]!r}: name the method itself"
        )
    return {
        name: method
        for name, method in lines.items()
        if name in wanted or name.removesuffix(AS_PUBLISHED) in wanted
    }


# --- A paper -------------------------------------------------------------------------------------


def play_rounds(
    run: Any,
    federation: Federation,
    methods: Mapping[str, Method],
    rounds: int,
    checkpoint: Path | None = None,
    temperature_of: Collection[str] = (),
    **options: Any,
) -> History:
    """Run the methods for some rounds, or until all their clusters are final if the run says so.

    The temperature is that of those methods in ``temperature_of`` that take part.
    """
    from cflkit import simulation

    options["temperature_of"] = methods.keys() & set(temperature_of)
    options = {"central_every": getattr(run, "central_every", 1)} | options
    until_settled = isinstance(run, Selection) and run.until == "clusters"
    return simulation.run(
        methods, federation, rounds, until_settled=until_settled, checkpoint=checkpoint, **options
    )


# Parameters that say nothing of a run's scale: engines and precisions are equal to rounding, and
# `repeats` is no part of a record
FREE = frozenset({"seed", "partition_seed", "only", "until", "precision", "engine", "repeats"})


@dataclass(frozen=True)
class Paper:
    """All that the kit knows about a paper. Several papers may share the runs of a notebook."""

    name: str  # in the column "paper" of its tables under data/published
    notebook: str  # which makes its runs
    parameters: type[Any]  # the model of the notebook's parameters, also a `parameters.Recorded`
    scenario: Mapping[str, type]  # the parameters that identify one, which are columns of tables
    file: str  # the name of a scenario's parameter file, which has the other parameters
    # Our names for methods, by the paper's; where its code differs from what was intended, a run
    # also has the method "as published"
    methods: Mapping[str, str]
    protocols: Mapping[str, Protocol | Ranks]  # by the names in the column "protocol" of its tables
    # The functions that build a run as in the notebook; the last takes a number of rounds
    data: Callable[[Any], tuple[ImageSet, Partition]]
    federation: Callable[[Any, ImageSet, Partition], Federation]
    line_up: Callable[[Any, ImageSet, Partition], Mapping[str, Method]]
    play: Callable[[Any, Federation, Mapping[str, Method], int], History] = play_rounds
    rounds: Callable[[Any], int] = lambda run: int(run.rounds)
    after_the_last: bool = False  # whether the rows are made only after the last round
    free: frozenset[str] = FREE  # the parameters that may differ within a scale
    # Parameters that runs at the reduced scale cannot have: 10 participants of 12 clients are not
    # the scenario of 10 participants of 40
    whole_only: frozenset[str] = frozenset()
    # Parameters that change some methods alone, with these methods (our names). A run in which such
    # a parameter differs still counts for all other methods
    concerns: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Numbers that a run cannot miss, such as a printed parameter: values of the tables' columns
    fixed: tuple[Mapping[str, Any], ...] = ()
    # Parameters of scenarios with one true group, in which a method that cuts nothing is right
    one_group: tuple[Mapping[str, Any], ...] = ()
    # Methods whose runs have a threshold that belongs to another quantity, and to which one
    borrowed: Mapping[str, str] = field(default_factory=dict)
    wrong_sign: tuple[str, ...] = ()  # the paper's methods whose code has a wrong sign

    def unread_by(self, method: str) -> frozenset[str]:
        """Return the parameters that do not change a method, by its name here."""
        return frozenset(name for name, readers in self.concerns.items() if method not in readers)

    def is_one_group(self, record: Record) -> bool:
        """Return whether a run's scenario has one true group."""
        return any(has_parameters(record, scenario) for scenario in self.one_group)

    @property
    def folder(self) -> str:
        """Return the folder of its parameter files, with which its records' names begin."""
        return str(self.parameters.folder)
