"""The parameters of notebooks that make no records: some lessons, the ledger and the reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cflkit._bounds import Count, Momentum, NonNegative, Positive, Repeats
from cflkit.reproduce.parameters import FederatedRun, Images, Parameters, Scenario, Seed
from cflkit.reproduce.records import PUBLISHED


class Trained(Parameters):
    """What most lessons have in common: how clients train."""

    local_epochs: Count
    batch_size: Count
    lr: Positive
    seed: Seed


class StartHere(Images):
    """Parameters of ``00_start_here``."""

    clients: Annotated[int, Field(ge=3)]
    draws: Annotated[int, Field(ge=4)]
    rounds: Count
    repeats: Repeats
    seed: Seed


class FederatedAveraging(Images, Trained):
    """Parameters of ``01_federated_averaging``."""

    clients: Annotated[int, Field(ge=3)]
    rounds: Count
    repeats: Repeats


class ClientsDisagree(Scenario, Trained):
    """Parameters of ``02_when_clients_disagree``."""

    rounds: Annotated[int, Field(ge=2)]
    repeats: Repeats


class OCFLTemperature(Parameters):
    """Parameters of ``03_ocfl_temperature``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=12, multiple_of=4)]
    samples: Annotated[int, Field(ge=20)]
    rounds: Annotated[int, Field(ge=6)]
    local_epochs: Count
    lr: Positive
    seed: Seed


class SattlerAndBriggs(FederatedRun):
    """Parameters of ``04_sattler_and_briggs``."""

    repeats: Repeats


class EMDCFL(Parameters):
    """Parameters of ``05_emd_cfl``; ``clients`` is a multiple of three."""

    clients: Annotated[int, Field(ge=6, multiple_of=3)]
    samples: Annotated[int, Field(ge=20, multiple_of=10)]
    shade: Annotated[int, Field(ge=0, le=255)]
    rounds: Count
    epsilon: NonNegative
    seed: Seed


class TutorialTable(Parameters):
    """Parameters of ``08_tutorial_022``; ``clients`` is a multiple of three."""

    clients: Annotated[int, Field(ge=3, multiple_of=3)]
    height: Positive
    rounds: Annotated[int, Field(ge=2)]
    warm_up: Count
    lr: Positive
    seed: Seed

    @model_validator(mode="after")
    def rounds_after_the_warm_up(self) -> TutorialTable:
        """Refuse a warm-up without a round after it."""
        if self.warm_up >= self.rounds:
            raise ValueError(f"warm_up = {self.warm_up} must be below rounds = {self.rounds}")
        return self


class MapOfTheMethods(Trained):
    """Parameters of ``09_a_map_of_the_methods``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=8, multiple_of=4)]
    samples: Annotated[int, Field(ge=20)]
    momentum: Momentum
    rounds: Annotated[int, Field(ge=2)]


class PrivacyAndChange(Trained):
    """Parameters of ``10_privacy_and_clients_that_come_and_go``; ``clients`` is even."""

    clients: Annotated[int, Field(ge=6, multiple_of=2)]
    samples: Annotated[int, Field(ge=20)]
    momentum: Momentum
    rounds: Annotated[int, Field(ge=3)]
    change: Count
    clip: Positive
    noises: Annotated[list[NonNegative], Field(min_length=2)]
    threshold: Positive
    repeats: Repeats

    @model_validator(mode="after")
    def change_within_the_rounds(self) -> PrivacyAndChange:
        """Refuse a change after the last round."""
        if self.change >= self.rounds:
            raise ValueError(f"change = {self.change} must be below rounds = {self.rounds}")
        return self


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
    "02_when_clients_disagree": ClientsDisagree,
    "03_ocfl_temperature": OCFLTemperature,
    "04_sattler_and_briggs": SattlerAndBriggs,
    "05_emd_cfl": EMDCFL,
    "08_tutorial_022": TutorialTable,
    "09_a_map_of_the_methods": MapOfTheMethods,
    "10_privacy_and_clients_that_come_and_go": PrivacyAndChange,
    "90_ledger": LedgerView,
    "93_report_ocfl": Report,
    "95_report_emd_cfl": Report,
    "96_report_fedcref": Report,
    "97_report_explanations": Report,
}
