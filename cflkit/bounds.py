"""Types of options with their bounds, each stated once.

A class states the bound of an option in its annotation; the parameter model of a notebook has the
same annotation, and the command line checks with that model.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

# A value is of the type that the annotation names: no text passes for a number
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# Of local training
Optimizer = Literal["sgd", "adam"]
Momentum = Annotated[float, Field(ge=0, lt=1)]


def one_line(error: ValidationError) -> str:
    """Pydantic's report in one line: each name with what is wrong and the value it has."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'parameters'}: {e['msg']}"
        + (f" (is {e['input']!r})" if e["loc"] and e["type"] != "missing" else "")
        for e in error.errors()
    )
