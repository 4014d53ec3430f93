"""Validated parameters: pydantic models that notebooks share.

A notebook's parameters cell holds literals. The next cell validates them with a model, which
refuses wrong types and values out of bounds. `python -m cflkit run` checks with the same model
before a kernel starts. It also refuses unknown names, since papermill would ignore them and run
with the defaults. The models of the notebooks are in `papers`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from cflkit import _bounds as bounds

if TYPE_CHECKING:
    from cflkit.federation import LocalTraining

T = TypeVar("T")
# The end of a method's name whose options are those of the authors' code
AS_PUBLISHED = " as published"
# The first line of the cell in which papermill gives a notebook other parameters
INJECTED = "# Parameters"
# What other programs call some parameters
MEANT = {"methods": "only", "epochs": "local_epochs", "learning_rate": "lr", "data": "dataset"}


class ParameterError(bounds.Mistake):
    """A notebook cannot run with these parameters."""


Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what PyTorch's generators take
Overlap = Literal["nonoverlapping", "overlapping"]
Balance = Literal["balanced", "imbalanced"]
Sizes = Literal["1/r", "half"]  # of `partition.unequal`


class Recorded(Protocol):
    """Parameters of a run that writes a record, as `records` needs them.

    The record's name begins with ``folder``, that of the paper's files in ``notebooks/params``.
    """

    folder: ClassVar[str]

    @property
    def scenario(self) -> str:
        """Return the part of the record's name that describes the run."""

    @property
    def seed(self) -> int:
        """Return the seed of the training, which is part of the record's name."""

    def check_against_data(self) -> None:
        """Refuse parameters that do not fit the data (see `Parameters.check_against_data`)."""

    def model_dump(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """Return all values by name."""


class Parameters(BaseModel):
    """The base of every notebook's parameters: strict types, no unknown names."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, namespace: dict[str, Any]) -> Self:
        """Take this model's fields out of a notebook's ``globals()`` and validate them.

        Raises
        ------
        ParameterError
            The parameters cell has an unknown name, or see `checked`.
        """
        known = cls.model_fields
        check_names(assigned_parameters(namespace.get("In", ()), known), known)
        return cls.checked({name: namespace[name] for name in known if name in namespace})

    @model_validator(mode="after")
    def fits_a_machine(self) -> Self:
        """Refuse more samples of all clients than any machine can hold."""
        sizes = (getattr(self, name, None) for name in ("clients", "draws", "samples"))
        if math.prod(size for size in sizes if isinstance(size, int)) > 100 * bounds.MOST:
            raise ValueError(f"the clients would have more than {100 * bounds.MOST} samples")
        return self

    def check_against_data(self) -> None:
        """Load the data, and refuse parameters that do not fit them, before a kernel starts."""

    @classmethod
    def checked(cls, values: dict[str, Any], quick: bool = False) -> Self:
        """Validate ``values``; report an error in one line. See `is_quick`.

        Raises
        ------
        ParameterError
            A value is missing, unknown, of the wrong type or out of bounds.
        """
        try:
            plain = {name: bounds.as_python(value) for name, value in values.items()}
            return cls.model_validate(plain, context={"quick": quick})
        except ValidationError as error:
            raise ParameterError(bounds.one_line(error)) from error


def is_quick(info: ValidationInfo) -> bool:
    """Return whether a check shall not load PyTorch, as that of the many runs of a grid's list."""
    return bool(info.context and info.context["quick"])


def model_of(defaults: dict[str, Any]) -> type[Parameters]:
    """Build a model that asks for the types of the defaults, for a notebook that has no model."""
    types: Any = {n: (Any if v is None else type(v), ...) for n, v in defaults.items()}
    return create_model("Parameters", __base__=Parameters, **types)


def assigned_parameters(cells: Sequence[str], known: Collection[str]) -> list[str]:
    """Find the names that a notebook's parameters cell assigns.

    The cells are those that were executed, in order: IPython's ``In``. The last one that assigns
    more than half of the ``known`` names is the parameters cell. Papermill's values are in a marked
    cell after it. Other cells may assign any names.
    """
    assigned_names: list[str] = []
    for cell in reversed(cells):
        names = assigned(cell)
        whole = len(set(names) & set(known)) > len(known) / 2
        if whole or cell.startswith(INJECTED):
            assigned_names = names + assigned_names
        if whole:
            break
    return assigned_names


def assigned(cell: str) -> list[str]:
    """Return the names that a cell assigns, or no names if the cell uses IPython's own syntax."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return []
    targets = [target for line in body if isinstance(line, ast.Assign) for target in line.targets]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first name that is no parameter of a notebook."""
    for name in names:
        if name not in known:
            near = choices(MEANT.get(name, name), known)
            raise ParameterError(f"the notebook has no parameter {name!r}; {near}")


def choices(name: str, known: Collection[str]) -> str:
    """Build the end of a message about an unknown name: one that is near, and all known ones."""
    near = bounds.nearest(name, known)
    begin = f"did you mean {near!r}? There are" if near else "choose from"
    return f"{begin} {', '.join(known)}"


def matching(
    what: str,
    items: Sequence[T],
    where: Mapping[str, Any],
    values: Callable[[T], Mapping[str, Any]],
) -> list[T]:
    """Return the items, such as ``what``, that have the values in ``where``.

    Raises
    ------
    ParameterError
        No item has a value of such a name, or none has all of these values.
    """
    names, chosen = sorted({name for item in items for name in values(item)}), list(items)
    for name, wanted in where.items():
        if name not in names:
            raise ParameterError(f"no {what} has {name!r}; {choices(name, names)}")
        there = sorted({str(values(item).get(name)) for item in chosen})
        chosen = [item for item in chosen if values(item).get(name) == wanted]
        if not chosen:
            raise ParameterError(f"no {what} has {name} {wanted!r}; {choices(str(wanted), there)}")
    return chosen


def known_name(what: str, known: Callable[[], Collection[str]]) -> AfterValidator:
    """Accept the names of what is known, which may take seconds to load (see `is_quick`)."""

    def accept(name: str, info: ValidationInfo) -> str:
        if not is_quick(info) and name not in known():
            raise ValueError(f"unknown {what} {name!r}; {choices(name, known())}")
        return name

    return AfterValidator(accept)


def classifiers() -> list[str]:
    """Return the names of `models.make` whose networks classify."""
    from cflkit import models

    return [name for name in models.names() if name not in models.AUTOENCODERS]


class Images(Parameters):
    """The choice of images."""

    dataset: str

    @field_validator("dataset")
    @classmethod
    def known(cls, name: str, info: ValidationInfo) -> str:
        """Accept what `datasets.load` knows; return the whole path of one's own data."""
        if is_quick(info):
            return name
        from cflkit import datasets
        from cflkit.datasets import own_data

        if name in datasets.names():
            return name
        if own_data.is_own(name):
            return str(own_data.whole_path(name))
        raise ValueError(own_data.refusal(name, datasets.names()))

    @property
    def data_name(self) -> str:
        """Return the name of the data in a record's name: for one's own data, that of the file."""
        return re.sub(r"[^\w-]+", "-", Path(self.dataset).stem)


class Scenario(Images):
    """The choice of images and clients, with clusters that differ in their classes."""

    overlap: Overlap
    balance: Balance
    clients: Annotated[int, Field(ge=3, le=bounds.MOST)]
    draws: Annotated[int, Field(ge=4, le=bounds.MOST)] | None
    partition_seed: Seed

    @property
    def scenario(self) -> str:
        """Return the scenario's part of a record's name."""
        return f"{self.data_name}-{self.overlap}-{self.balance}-m{self.clients}"


class Training(Parameters):
    """A training run: a model, how clients train, and for how long."""

    model: Annotated[str, known_name("model", classifiers)]
    optimizer: bounds.Optimizer
    lr: bounds.Positive
    momentum: bounds.Momentum
    weight_decay: bounds.NonNegative
    batch_size: bounds.Count
    local_epochs: bounds.Count
    rounds: bounds.Count
    seed: Seed
    # A field with a default is no part of a record's name while it has this value
    precision: Literal["float32", "tf32"] = "float32"

    @model_validator(mode="after")
    def trainable(self, info: ValidationInfo) -> Self:
        """Check that the engine can do the local training."""
        if not is_quick(info):
            self.training()
        return self

    def training(self) -> LocalTraining:
        """Build the local training that clients do in a round."""
        from cflkit.federation import LocalTraining

        names = {"batch_size", "optimizer", "lr", "momentum", "weight_decay", "precision"}
        return LocalTraining(epochs=self.local_epochs, **self.model_dump(include=names))


class Selection(Parameters):
    """The methods of a line-up that a run has, and when it ends."""

    # The names of all methods; each may also be asked for as published
    line_up: ClassVar[Collection[str]]

    only: Annotated[list[str], Field(min_length=1)] | None = None
    until: Literal["rounds", "clusters"] = "rounds"

    @field_validator("only", "compared", check_fields=False)  # not all papers compare more
    @classmethod
    def known_methods(cls, names: list[str] | None) -> list[str] | None:
        """Accept only names of the line-up, also with the ending ``as published``."""
        for name in names or ():
            if name.removesuffix(AS_PUBLISHED) not in cls.line_up:
                raise ValueError(f"unknown method {name!r}; {choices(name, cls.line_up)}")
        return names

    def check_measured(self) -> None:
        """Refuse to show a run that ends with its clusters, which measures no model."""
        if self.until == "clusters":
            reason = "the figures need all rounds, and --record-only makes the record alone"
            raise ParameterError(f"until: {reason}")


class FederatedRun(Training, Scenario):
    """A training run on clusters of classes."""
