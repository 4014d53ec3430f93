"""The parameters of notebooks that make no records: some lessons, the ledger and the reports."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from cflkit import _bounds as bounds
from cflkit.reproduce.parameters import (
    FederatedRun,
    Images,
    Overlap,
    Parameters,
    Scenario,
    Seed,
    known_name,
)
from cflkit.reproduce.records import PUBLISHED

Samples = Annotated[int, Field(ge=20, le=bounds.MOST)]  # of a client
# The figures of a lesson have a mark or a row for each client, and a place for each round
MOST_CLIENTS, MOST_ROUNDS = 100, 100
# A smaller step is lost in the last digit of a float32, and after a larger one nothing is learned
Rate = Annotated[float, Field(ge=1e-6, le=10)]
# A shorter update is lost in the last digits of the model that it is added to
Clip = Annotated[float, Field(ge=1e-3, le=100)]


def rising_from_zero(noises: list[float]) -> list[float]:
    """Accept noises of which the first is 0, and each other one larger than the one before."""
    if noises[0] or any(lower >= upper for lower, upper in pairwise(noises)):
        raise ValueError("the first noise must be 0, and each other one larger than the one before")
    return noises


Noise = Annotated[float, Field(ge=0, le=10)]  # in units of the largest norm of an update
Noises = Annotated[
    list[Noise], Field(min_length=3, max_length=12), AfterValidator(rising_from_zero)
]


def before_the_last(number: int, info: ValidationInfo) -> int:
    """Refuse a number of rounds after which there is none left."""
    rounds = info.data.get("rounds", number + 1)
    if number >= rounds:
        raise ValueError(f"it must be below rounds = {rounds}")
    return number


BeforeTheLast = Annotated[bounds.Count, AfterValidator(before_the_last)]


class Lesson(Parameters):
    """What all lessons have in common."""

    seed: Seed


class WithRate(Lesson):
    """What lessons have in common whose reader chooses the learning rate."""

    lr: Rate


class Trained(WithRate):
    """What most lessons have in common: how clients train."""

    local_epochs: bounds.Count
    batch_size: bounds.Count


class FourGroups(Lesson):
    """What lessons have in common whose clients are four equal groups."""

    clients: Annotated[int, Field(ge=12, le=MOST_CLIENTS, multiple_of=4)]
    samples: Samples


class StartHere(FourGroups):
    """Parameters of ``00_start_here``."""

    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


class FederatedAveraging(Trained):
    """Parameters of ``01_federated_averaging``."""

    clients: Annotated[int, Field(ge=3, le=MOST_CLIENTS)]
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


class DriftMeasured(Images, Trained):
    """Parameters of ``01b_drift_measured``."""

    clients: Annotated[int, Field(ge=3, le=bounds.MOST)]
    rounds: bounds.Count
    repeats: bounds.Repeats


class ClientsDisagree(WithRate):
    """Parameters of ``02_when_clients_disagree``."""

    overlap: Overlap
    clients: Annotated[int, Field(ge=6, le=MOST_CLIENTS)]
    draws: Samples
    rounds: Annotated[int, Field(ge=6, le=MOST_ROUNDS)]


class FourScenarios(Scenario, Trained):
    """Parameters of ``02b_four_scenarios``."""

    rounds: Annotated[int, Field(ge=2, le=bounds.MOST)]
    repeats: bounds.Repeats


class OCFLTemperature(FourGroups):
    """Parameters of ``03_ocfl_temperature``."""

    rounds: Annotated[int, Field(ge=6, le=MOST_ROUNDS)]
    local_epochs: bounds.Count
    lr: Rate


class OlderRules(WithRate):
    """Parameters of ``04_sattler_and_briggs``."""

    rounds: Annotated[int, Field(ge=6, le=MOST_ROUNDS)]
    cut: bounds.CosineThreshold
    eps1: bounds.Positive
    eps2: bounds.Positive


class SattlerAndBriggs(FederatedRun):
    """Parameters of ``04b_an_autopsy``."""

    lr: Rate  # a tenth of it is tried, too
    repeats: bounds.Repeats


class MethodsAsMatrices(WithRate):
    """Parameters of ``09_a_map_of_the_methods``, which has 20 clients."""

    samples: Samples
    rounds: Annotated[int, Field(ge=5, le=MOST_ROUNDS)]
    k: Annotated[int, Field(ge=2, le=20)]
    client: Annotated[int, Field(ge=0, lt=20)]


class MapOfTheMethods(Trained):
    """Parameters of ``09b_catalogue``; ``clients`` is a multiple of four."""

    clients: Annotated[int, Field(ge=8, le=bounds.MOST, multiple_of=4)]
    samples: Samples
    momentum: bounds.Momentum
    rounds: Annotated[int, Field(ge=2, le=bounds.MOST)]


class Changing(Parameters):
    """What lessons have in common whose clients come late or change."""

    rounds: Annotated[int, Field(ge=3, le=MOST_ROUNDS)]
    change: BeforeTheLast


class PrivacyAndChange(Changing, Trained):
    """Parameters of ``10b_privacy_and_change_controls``; ``clients`` is even."""

    clients: Annotated[int, Field(ge=6, le=bounds.MOST, multiple_of=2)]
    samples: Samples
    momentum: bounds.Momentum
    clip: Clip
    noises: Noises
    threshold: bounds.Positive
    repeats: bounds.Repeats


class Report(Parameters):
    """Parameters of the reports, from ``93_report_ocfl`` on: which committed runs they show."""

    scale: Literal["paper", "reduced"]


class FedCRef(Lesson):
    """Parameters of ``06_fedcref``."""

    clients: Annotated[int, Field(ge=4, le=MOST_CLIENTS)]
    samples: Samples
    overlap: bounds.Share
    dirtiness: bounds.Share
    threshold: bounds.Share


class ExplainingClusterModels(WithRate):
    """Parameters of ``07_explaining_cluster_models``."""

    clients: Annotated[int, Field(ge=9, le=MOST_CLIENTS)]
    draws: Samples
    rounds: Annotated[int, Field(ge=2, le=MOST_ROUNDS)]
    step: bounds.Count


class EMDCFL(Lesson):
    """Parameters of ``05_emd_cfl``; ``clients`` is a multiple of three."""

    clients: Annotated[int, Field(ge=6, le=MOST_CLIENTS, multiple_of=3)]
    samples: Annotated[int, Field(ge=20, multiple_of=10)]
    shade: Annotated[int, Field(ge=0, le=255)]
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    epsilon: Annotated[float, Field(ge=0, le=2)]  # 2 is the largest cosine distance


class TutorialTable(WithRate):
    """Parameters of ``08_tutorial_022``; ``clients`` is a multiple of three."""

    clients: Annotated[int, Field(ge=3, le=MOST_CLIENTS, multiple_of=3)]
    height: Annotated[float, Field(ge=0, le=20)]  # in standard deviations of the noise
    rounds: Annotated[int, Field(ge=2, le=MOST_ROUNDS)]
    warm_up: BeforeTheLast


class UpdateGivesAway(FourGroups):
    """Parameters of ``10_privacy_and_clients_that_come_and_go``."""

    rounds: Annotated[int, Field(ge=6, le=MOST_ROUNDS)]
    clip: Clip
    noises: Noises


class ComeAndGo(Changing, FourGroups):
    """Parameters of ``11_clients_that_come_and_go``."""

    again: Annotated[int, Field(ge=2, le=MOST_ROUNDS)]


def papers_with_tables() -> list[str]:
    """Return the names of papers that have tables."""
    return sorted({path.name.split("_")[0] for path in PUBLISHED.glob("[!.]*_table-*.csv")})


class LedgerView(Parameters):
    """Parameters of ``90_ledger``."""

    paper: Annotated[str, known_name("paper", papers_with_tables)]


LESSONS: dict[str, type[Parameters]] = {
    "00_start_here": StartHere,
    "01_federated_averaging": FederatedAveraging,
    "01b_drift_measured": DriftMeasured,
    "02_when_clients_disagree": ClientsDisagree,
    "02b_four_scenarios": FourScenarios,
    "03_ocfl_temperature": OCFLTemperature,
    "04_sattler_and_briggs": OlderRules,
    "04b_an_autopsy": SattlerAndBriggs,
    "05_emd_cfl": EMDCFL,
    "06_fedcref": FedCRef,
    "07_explaining_cluster_models": ExplainingClusterModels,
    "08_tutorial_022": TutorialTable,
    "09_a_map_of_the_methods": MethodsAsMatrices,
    "09b_catalogue": MapOfTheMethods,
    "10_privacy_and_clients_that_come_and_go": UpdateGivesAway,
    "10b_privacy_and_change_controls": PrivacyAndChange,
    "11_clients_that_come_and_go": ComeAndGo,
    "90_ledger": LedgerView,
    **dict.fromkeys(("93_report_ocfl", "95_report_emd_cfl", "96_report_fedcref"), Report),
    **dict.fromkeys(("97_report_explanations", "98_what_is_reproduced_worth"), Report),
}
