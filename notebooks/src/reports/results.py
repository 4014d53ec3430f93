"""The tables of the papers' runs on the page of results: one row per scale and scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cflkit.reproduce import ledger, records, stats
from cflkit.reproduce.papers import emd_cfl, fedcref
from cflkit.reproduce.records import AS_PUBLISHED, Record

# The cells of a row by their headings
Cells = dict[str, str]
TWIN = "Signatures" + AS_PUBLISHED  # the tutorial's method as its code has it


@dataclass(frozen=True)
class Paired:
    """The differences between two methods whose runs have the same seeds (`differences`)."""

    mean: float  # NaN without a pair
    half_width: float  # half of the interval; NaN if there is none
    n: int  # the number of pairs

    def text(self, digits: int) -> str:
        """Format as ``+1.2 ± 0.3``; without an interval, the number of pairs stands there."""
        if not self.n:
            return "–"
        mean = f"{self.mean:+z.{digits}f}"
        if np.isnan(self.half_width):
            return f"{mean} (n = {self.n})"
        return f"{mean} ± {self.half_width:.{digits}f}"


def differences(scores: ArrayLike, other: ArrayLike) -> Paired:
    """Compute the mean of paired differences ``[n]``, and their 90 % t-interval over the pairs.

    There is no interval if there are fewer than three pairs, or if all differences are equal, up to
    rounding: other pairs might still differ.
    """
    gained = np.asarray(scores, dtype=float) - np.asarray(other, dtype=float)
    mean = float(gained.mean()) if (n := len(gained)) else np.nan
    equal = n < 3 or np.ptp(gained) <= 1e-9 * max(1, abs(mean))
    return Paired(mean, np.nan if equal else stats.half_width(gained), n)


def paired(
    runs: Sequence[Record], first: str, second: str, measure: str, factor: float = 1
) -> Paired:
    """Compare two methods in a measure of the summaries, seed by seed, also across records.

    The runs are those of one scenario. Of several with a seed, that with most rows of the method
    counts, and among these the newest.
    """

    def by_seeds(method: str) -> dict[tuple[Any, ...], float]:
        measured = [run for run in runs if run.value(method, measure) is not None]
        best = records.one_per_seed(measured, lambda run: len(run.by_method[method]))
        return {records.seeds_of(run): factor * run.value(method, measure) for run in best}

    ends, others = by_seeds(first), by_seeds(second)
    common = [seeds for seeds in ends if seeds in others]
    return differences([ends[seeds] for seeds in common], [others[seeds] for seeds in common])


@dataclass(frozen=True)
class Runs:
    """The runs of one scenario at one scale, one record per seed, and texts for cells of a row."""

    scale: str
    records: list[Record]

    def parameters(self, *names: str) -> str:
        """Return parameters, which are the same in all runs of a scenario."""
        return ", ".join(str(self.records[0].parameters[name]) for name in names)

    @property
    def seeds(self) -> str:
        """Return the number of seeds."""
        return str(len({record.parameters["seed"] for record in self.records}))

    def values(self, method: str, measure: str) -> list[Any]:
        """Return a measure of each run's summary; runs without this measure are left out."""
        summaries = [record.summary.get(method, {}) for record in self.records]
        return [summary[measure] for summary in summaries if measure in summary]

    def mean(self, method: str, measure: str, digits: int = 2, factor: float = 1) -> str:
        """Return a measure's mean over seeds."""
        return average(self.values(method, measure), digits, factor)

    def percent(self, method: str) -> str:
        """Return the mean accuracy in percent."""
        return self.mean(method, "accuracy", digits=1, factor=100)

    def lead(
        self, first: str, second: str, measure: str, digits: int = 2, factor: float = 1
    ) -> str:
        """Return a method's lead over another, with its 90 % interval over the seeds."""
        return paired(self.records, first, second, measure, factor).text(digits)

    def leads(self, first: str, others: Sequence[str]) -> Cells:
        """Return a method's leads in accuracy, in percentage points."""
        return {f"{first} − {name}": self.lead(first, name, "accuracy", 1, 100) for name in others}

    def minutes(self, digits: int = 0) -> str:
        """Return the mean minutes of a run on a CPU."""
        costs = [record.provenance for record in self.records]
        return average([cost["minutes"] for cost in costs if cost["device"] == "cpu"], digits)


def average(values: Sequence[float], digits: int, factor: float = 1) -> str:
    """Format the mean of some values, or a dash if there is none."""
    known = [value for value in values if value is not None]
    return f"{factor * fmean(known):.{digits}f}" if known else "–"


def ocfl_row(runs: Runs) -> Cells:
    """Return the row of a scenario of the OCFL papers."""
    rounds = runs.values("OCFL-HDB", "clustering_round")
    return {
        "data": runs.parameters("dataset"),
        "clients": runs.parameters("clients"),
        "split": runs.parameters("overlap", "balance"),
        "scale": runs.scale,
        "seeds": runs.seeds,
        "clusters in round": ", ".join("never" if t is None else str(t) for t in rounds),
        "ARI": runs.mean("OCFL-HDB", "ari"),
        "PF1": runs.mean("OCFL-HDB", "pf1"),
        "PF1 − FedAvg's": runs.lead("OCFL-HDB", "FedAvg", "pf1"),
        "accuracy − FedAvg's": runs.lead("OCFL-HDB", "FedAvg", "accuracy"),
        "PF1 − oracle's": runs.lead("OCFL-HDB", "oracle", "pf1"),
        "minutes per run": runs.minutes(),
    }


def emd_cfl_row(runs: Runs) -> Cells:
    """Return the row of a scenario of EMD-CFL's paper."""
    return {
        "data": runs.parameters("dataset", "version"),
        "clients": runs.parameters("clients"),
        "scale": runs.scale,
        "seeds": runs.seeds,
        "ARI of EMD-CFL": ", ".join(f"{ari:.2f}" for ari in runs.values("EMD-CFL", "ari")),
        **{name: runs.percent(name) for name in emd_cfl.METHODS},
        **runs.leads("EMD-CFL", ("Oracle", "FedAvg")),
        "minutes": runs.minutes(),
    }


def fedcref_row(runs: Runs) -> Cells:
    """Return the row of a scenario of FedCRef's paper; dirt that is not simulated has a name."""
    dirt = "dirtiness" if runs.parameters("clustering") == "dirty-uniform" else "clustering"
    return {
        "data": runs.parameters("dataset"),
        "clients": runs.parameters("clients"),
        "dirtiness": runs.parameters(dirt).removesuffix(".0"),
        "overlap": runs.parameters("overlap_fraction").removesuffix(".0"),
        "seeds": runs.seeds,
        "ACC at the start": runs.mean("FedCRef", "accuracy_start"),
        **{name: runs.mean(name, "accuracy", digits=3) for name in fedcref.VARIANTS},
        "FedCRef − Alone": runs.lead("FedCRef", "Alone", "accuracy", digits=3),
        "communities": runs.mean("FedCRef", "communities", digits=1),
        "isolated": runs.mean("FedCRef", "isolated", digits=1),
        "wrong, %": runs.mean("FedCRef", "wrong", digits=1, factor=100),
        "minutes": runs.minutes(),
    }


def explanations_row(runs: Runs) -> Cells:
    """Return the row of a scenario of the explanations."""
    compared = {"no clustering": "FedAvg", "OCFL-HDB": "OCFL-HDB"}  # as the README calls them
    scores = ("insertion", "deletion")

    def gained(method: str) -> str:
        found = [runs.values(method, f"{score}_in-cluster") for score in scores]
        return f"{fmean(found[0]) - fmean(found[1]):z.2f}" if all(found) else "–"

    return {
        "data": runs.parameters("dataset"),
        "split": runs.parameters("overlap", "balance"),
        "seeds": runs.seeds,
        **{
            f"{score}, {name}": runs.mean(method, f"{score}_in-cluster")
            for score in scores
            for name, method in compared.items()
        },
        **{f"insertion − deletion, {name}": gained(method) for name, method in compared.items()},
        "insertion, gained by OCFL-HDB": runs.lead("OCFL-HDB", "FedAvg", "insertion_in-cluster"),
        "minutes": runs.minutes(),
    }


def tutorial_row(runs: Runs) -> Cells:
    """Return the row of a scenario of Tutorial 022."""
    return {
        "clients": runs.parameters("clients"),
        "scale": runs.scale,
        "seeds": runs.seeds,
        "ARI as published": runs.mean(TWIN, "ari"),
        "as published": runs.percent(TWIN),
        **{name: runs.percent(name) for name in ("Signatures", "Oracle", "FedAvg", "Local")},
        **runs.leads("Signatures", ("Oracle", "Local")),
        "minutes": runs.minutes(digits=1),
    }


@dataclass(frozen=True)
class Results:
    """The table of a paper's runs."""

    paper: str
    row: Callable[[Runs], Cells]
    scales: tuple[str, ...] = ("paper", "reduced")
    method: str | None = None  # scenarios that were run without it have no row

    def rows(self, committed: Sequence[Record]) -> list[Cells]:
        """Return the rows, sorted by scale and scenario."""
        counted = [run for run in committed if self.method in (None, *run.summary)]
        return [
            self.row(Runs(scale, records.one_per_seed(group)))
            for scale in self.scales
            for group in ledger.by_scenario(counted, self.paper, scale).values()
        ]


# By the names in the markers between which the tables stand
TABLES: Mapping[str, Results] = {
    "results": Results("ocfl", ocfl_row, method="OCFL-HDB"),
    "emd-results": Results("emd-cfl", emd_cfl_row, method="EMD-CFL"),
    "fedcref-results": Results("fedcref", fedcref_row, scales=("reduced",)),
    "explanations-results": Results("ocfl-explanations", explanations_row, scales=("reduced",)),
    "tutorial-results": Results("tutorial-022", tutorial_row),
}
