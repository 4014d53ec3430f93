"""Validated parameters: pydantic models that notebooks share.

A notebook's parameters cell holds literals; the cell after it takes them into its model, which
refuses wrong types and values out of bounds. `python -m cflkit run` checks with the same model
before a kernel starts, and unknown names too, which papermill ignores: it runs on with the
defaults. The models of the notebooks themselves are in `papers`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cflkit.bounds import (
    Count,
    Momentum,
    Natural,
    NonNegative,
    Optimizer,
    Positive,
    one_line,
)

if TYPE_CHECKING:
    from cflkit.federation import LocalTraining

# How papermill marks the cell in which it gives a notebook other parameters
INJECTED = "# Parameters"


class ParameterError(Exception):
    """Parameters that a notebook cannot run with; the message is one line."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback, which would say nothing more."""
        return [f"{type(self).__name__}: {self}"]


Seed = Natural
Overlap = Literal["nonoverlapping", "overlapping"]
Balance = Literal["balanced", "imbalanced"]


class Recorded(Protocol):
    """Parameters of a run that leaves a record, as `records` needs them.

    Attributes
    ----------
    folder : str
        Of the paper's parameter files under ``notebooks/params``; the records' names begin with it.
    scenario : str
        What the run is about, for the record's name.
    seed : int
        Of the training.
    """

    folder: ClassVar[str]

    @property
    def scenario(self) -> str:
        """Part of the record's name."""
        ...

    @property
    def seed(self) -> int:
        """Part of the record's name."""
        ...

    def check_against_data(self) -> None:
        """Refuse what does not fit the data, see `Parameters.check_against_data`."""
        ...

    def model_dump(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """All values by name."""
        ...


class Parameters(BaseModel):
    """What every notebook's parameters share: strict types, no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, namespace: dict[str, Any]) -> Self:
        """Take this model's fields out of a notebook's ``globals()`` and validate them.

        Raises
        ------
        ParameterError
            A name is missing, the parameters cell has one that the notebook does not know, or a
            value has the wrong type or lies out of bounds.
        """
        unknown = unknown_names(namespace.get("In", ()), cls.model_fields)
        if unknown:
            raise ParameterError("; ".join(unknown_name(n, cls.model_fields) for n in unknown))
        return cls.checked(
            {name: namespace[name] for name in cls.model_fields if name in namespace}
        )

    def check_against_data(self) -> None:
        """Refuse what does not fit the data, which must be loaded; before a kernel starts.

        Raises
        ------
        ParameterError
            A parameter does not fit.
        datasets.DatasetError
            The data are not there.
        """

    @classmethod
    def added_later(cls) -> dict[str, Any]:
        """The defaults of fields that older records lack: what those were run with."""
        fields = cls.model_fields.items()
        return {name: field.default for name, field in fields if not field.is_required()}

    @classmethod
    def checked(cls, values: dict[str, Any]) -> Self:
        """Validate ``values``; pydantic's report becomes one line."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise ParameterError(one_line(error)) from error


def unknown_names(cells: Sequence[str], known: dict[str, Any]) -> list[str]:
    """Names that a notebook's parameters cell assigns although the notebook does not know them.

    Parameters
    ----------
    cells : sequence of str
        The sources of the cells that were executed, in order: IPython's ``In``. The last one that
        assigns more than half of the known names is the parameters cell; what papermill gave
        instead stands in a marked cell after it. Other cells may assign what they like.
    known : dict
        By name, the parameters that there are.
    """
    found: list[str] = []
    for cell in reversed(cells):
        names = assigned(cell)
        whole = len(set(names) & set(known)) > len(known) / 2
        if whole or cell.startswith(INJECTED):
            found = [*(name for name in names if name not in known), *found]
        if whole:
            break
    return found


def assigned(cell: str) -> list[str]:
    """The names that a cell assigns; none if it has IPython's own syntax."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return []
    targets = [target for line in body if isinstance(line, ast.Assign) for target in line.targets]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def unknown_name(name: str, known: dict[str, Any]) -> str:
    """What to say of a name that is no parameter."""
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    return f"the notebook has no parameter {name!r}; {hint}"


# What knows the names below takes seconds to load, and is loaded when it is asked


class Images(Parameters):
    """Which images."""

    dataset: str

    @field_validator("dataset")
    @classmethod
    def known(cls, name: str) -> str:
        """A name that `datasets.load` knows."""
        from cflkit import datasets

        if name not in datasets.names():
            raise ValueError(f"unknown data set; known are {', '.join(datasets.names())}")
        return name


class Scenario(Images):
    """Which images, which clients: classes make the clusters."""

    overlap: Overlap
    balance: Balance
    clients: Annotated[int, Field(ge=3)]
    draws: Annotated[int, Field(ge=4)] | None
    partition_seed: Seed

    @property
    def scenario(self) -> str:
        """For the names of records."""
        return f"{self.dataset}-{self.overlap}-{self.balance}-m{self.clients}"


class Run(Images):
    """A training run: images, a model, how clients train, and for how long."""

    model: str
    optimizer: Optimizer
    lr: Positive
    momentum: Momentum
    weight_decay: NonNegative
    batch_size: Count
    local_epochs: Count
    rounds: Count
    seed: Seed
    # What came later than some records has a default here: what those were run with
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"

    @field_validator("model")
    @classmethod
    def known_model(cls, name: str) -> str:
        """A network that classifies, by a name that `models.make` knows."""
        from cflkit import models

        known = [model for model in models.names() if model not in models.AUTOENCODERS]
        if name not in known:
            raise ValueError(f"unknown model; known are {', '.join(known)}")
        return name

    @model_validator(mode="after")
    def trainable(self) -> Self:
        """The local training must be one that the engine can do."""
        self.training()
        return self

    def training(self) -> LocalTraining:
        """What clients do in a round."""
        from cflkit.federation import LocalTraining

        return LocalTraining(
            epochs=self.local_epochs,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


class FederatedRun(Run, Scenario):
    """A training run on clusters of classes."""
