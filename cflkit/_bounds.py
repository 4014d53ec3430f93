"""Types of options with their bounds, each stated in one place.

A class states the bound of an option in its annotation. The parameter model of a notebook uses the
same annotation, and the command line checks parameters with that model.
"""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

# Strict: a value must have the type that the annotation names, so a text is no number
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


class Mistake(Exception):
    """What a user can correct; the message is one line that says how."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback, which would not help."""
        return [f"{type(self).__name__}: {self}"]


# More clients, samples or rounds than this are beyond any machine, and a mistake
MOST = 1_000_000
Made = TypeVar("Made")
# The range of float32, PyTorch's usual type
SMALLEST, LARGEST = 1.2e-38, 3.4e38
# Between two bounds of the same side, so that each is told by itself
THEN = AfterValidator(float)


def as_python(value: Any) -> Any:
    """Return a number of NumPy or a tensor with one number as Python's, and all else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


PLAIN = BeforeValidator(as_python)

Count = Annotated[int, Field(ge=1, le=MOST), PLAIN]
TwoOrMore = Annotated[int, Field(ge=2), PLAIN]
Natural = Annotated[int, Field(ge=0), PLAIN]
Positive = Annotated[float, Field(gt=0), THEN, Field(ge=SMALLEST, le=LARGEST), PLAIN]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST), PLAIN]
Share = Annotated[float, Field(ge=0, le=1), PLAIN]
PositiveShare = Annotated[float, Field(gt=0, le=1), THEN, Field(ge=SMALLEST), PLAIN]
Percent = Annotated[float, Field(gt=0, le=100), PLAIN]
Angle = Annotated[float, Field(gt=0, le=180), PLAIN]
CosineThreshold = Annotated[float, Field(gt=0, le=2), PLAIN]  # 2 is the largest cosine distance
# The number of training seeds that a lesson's figures show. The record is of the first seed alone,
# so this is no part of the record or of its name
Repeats = Annotated[int, Field(ge=1, le=MOST, exclude=True)]
# Options of local training
Optimizer = Literal["sgd", "adam"]
Momentum = Annotated[float, Field(ge=0, lt=1), PLAIN]
# Options of EMD-CFL and of FedCRef
Clusters = Literal["neighbourhoods", "components"]
Sample = Annotated[int, Field(ge=2, le=MOST), PLAIN]
Normalisation = Literal["min-max", "absolute"]
Match = Literal["all", "first", "best"]
Stop = Literal["paper", "code"]


def checked_seed(seed: Any) -> int:
    """Return a seed as Python's; a `ValueError` without one, since nothing could be repeated."""
    number = as_python(seed)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"seed must be a whole number from 0 on, not {seed!r}")
    return number


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one is most like; None if it is like none of them."""
    names = {title.lower(): title for title in known}
    return next((names[near] for near in get_close_matches(name.lower(), names, n=1)), None)


def hint(name: str, known: Iterable[str]) -> str:
    """Return what an error adds for a mistyped name: ``"; did you mean 'mnist'?"``, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def one_line(error: ValidationError) -> str:
    """Return pydantic's report in one line: for each name, what is wrong, and the value given.

    The first three faults are reported, and of a long or nested value a part.
    """
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'parameters'}: {e['msg'].removeprefix('Value error, ')}"
        + (f" (is {reprlib.repr(e['input'])})" if e["loc"] and e["type"] != "missing" else "")
        for e in error.errors()[:3]
    )


def make(kind: str, known: Mapping[str, Callable[..., Made]], name: str, **options: Any) -> Made:
    """Make what has a name; a `ValueError` tells of an unknown name, option or value."""
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; choose from {', '.join(known)}")
    try:
        return known[name](**options)
    except ValidationError as error:
        raise ValueError(f"{kind} {name!r}: {one_line(error)}") from error
