"""The parameters of notebooks that make no records: some lessons, the ledger and the reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cflkit._bounds import MOST, Count, Momentum, NonNegative, Positive, Repeats
from cflkit.reproduce.parameters import FederatedRun, Images, Parameters, Scenario, Seed
from cflkit.reproduce.records import PUBLISHED


class Trained(Parameters):
    """What most lessons have in common: how clients train."""

    local_epochs: Count
    batch_size: Count
    lr: Positive
    seed: Seed


class StartHere(Parameters):
    """Parameters of ``00_start_here``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=12, le=MOST, multiple_of=4)]
    samples: Annotated[int, Field(ge=20, le=MOST)]
    rounds: Count
    seed: Seed


class FederatedAveraging(Trained):
    """Parameters of ``01_federated_averaging``."""

    clients: Annotated[int, Field(ge=3, le=MOST)]
    rounds: Count


class DriftMeasured(Images, Trained):
    """Parameters of ``01b_drift_measured``."""

    clients: Annotated[int, Field(ge=3, le=MOST)]
    rounds: Count
    repeats: Repeats


class ClientsDisagree(Scenario, Trained):
    """Parameters of ``02_when_clients_disagree``."""

    rounds: Annotated[int, Field(ge=2, le=MOST)]
    repeats: Repeats


class OCFLTemperature(Parameters):
    """Parameters of ``03_ocfl_temperature``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=12, le=MOST, multiple_of=4)]
    samples: Annotated[int, Field(ge=20, le=MOST)]
    rounds: Annotated[int, Field(ge=6)]
    local_epochs: Count
    lr: Positive
    seed: Seed


class SattlerAndBriggs(FederatedRun):
    """Parameters of ``04_sattler_and_briggs``."""

    repeats: Repeats


class MapOfTheMethods(Trained):
    """Parameters of ``09_a_map_of_the_methods``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=8, le=MOST, multiple_of=4)]
    samples: Annotated[int, Field(ge=20, le=MOST)]
    momentum: Momentum
    rounds: Annotated[int, Field(ge=2, le=MOST)]


class UpdateGivesAway(Parameters):
    """Parameters of ``10_privacy_and_clients_that_come_and_go``; ``clients`` is a multiple of 4."""

    clients: Annotated[int, Field(ge=12, le=MOST, multiple_of=4)]
    samples: Annotated[int, Field(ge=20, le=MOST)]
    rounds: Annotated[int, Field(ge=6, le=MOST)]
    clip: Positive
    noises: Annotated[list[NonNegative], Field(min_length=2)]
    seed: Seed


class Changing(Parameters):
    """What lessons have in common whose clients come late or change."""

    rounds: Annotated[int, Field(ge=3, le=MOST)]
    change: Count

    @model_validator(mode="after")
    def change_within_the_rounds(self) -> Changing:
        """Refuse a change after the last round."""
        if self.change >= self.rounds:
            raise ValueError(f"change = {self.change} must be below rounds = {self.rounds}")
        return self


class PrivacyAndChange(Changing, Trained):
    """Parameters of ``10b_privacy_and_change_controls``; ``clients`` is even."""

    clients: Annotated[int, Field(ge=6, le=MOST, multiple_of=2)]
    samples: Annotated[int, Field(ge=20, le=MOST)]
    momentum: Momentum
    clip: Positive
    noises: Annotated[list[NonNegative], Field(min_length=2)]
    threshold: Positive
    repeats: Repeats


class ComeAndGo(Changing):
    """Parameters of ``11_clients_that_come_and_go``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=12, le=MOST, multiple_of=4)]
    samples: Annotated[int, Field(ge=20, le=MOST)]
    again: Annotated[int, Field(ge=2, le=MOST)]
    seed: Seed


class Report(Parameters):
    """Parameters of the reports, ``93_report_ocfl`` and so on: which committed runs they show."""

    scale: Literal["paper", "reduced"]


class LedgerView(Parameters):
    """Parameters of ``90_ledger``."""

    paper: str

    @field_validator("paper")
    @classmethod
    def known(cls, name: str) -> str:
        """Accept only papers that have tables."""
        papers = sorted({path.name.split("_")[0] for path in PUBLISHED.glob("*_table-*.csv")})
        if name not in papers:
            raise ValueError(f"unknown paper; choose from {', '.join(papers)}")
        return name


LESSONS: dict[str, type[Parameters]] = {
    "00_start_here": StartHere,
    "01_federated_averaging": FederatedAveraging,
    "01b_drift_measured": DriftMeasured,
    "02_when_clients_disagree": ClientsDisagree,
    "03_ocfl_temperature": OCFLTemperature,
    "04_sattler_and_briggs": SattlerAndBriggs,
    "09_a_map_of_the_methods": MapOfTheMethods,
    "10_privacy_and_clients_that_come_and_go": UpdateGivesAway,
    "10b_privacy_and_change_controls": PrivacyAndChange,
    "11_clients_that_come_and_go": ComeAndGo,
    "90_ledger": LedgerView,
    "93_report_ocfl": Report,
    "95_report_emd_cfl": Report,
    "96_report_fedcref": Report,
    "97_report_explanations": Report,
}
