"""Values of parameters as YAML 1.2: in files, on the command line, and in commands."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, ScalarNode
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError

from cflkit.reproduce.parameters import ParameterError


class Constructor(SafeConstructor):
    """A constructor of plain values, for which ``None`` is null, as notebooks write it."""


def text_or_none(constructor: Constructor, node: ScalarNode) -> str | None:
    """Build a text; a ``None`` without quotes is none."""
    return None if node.value == "None" and node.style is None else str(node.value)


Constructor.add_constructor("tag:yaml.org,2002:str", text_or_none)


def from_yaml(text: str) -> Any:
    """Read one document; raise a `YAMLError`, or a `ValueError` of a date that does not exist."""
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = Constructor
    reader.max_depth = 20
    return reader.load(text)


def parse_yaml(name: str, text: str) -> Any:
    """Parse the value of a parameter from the command line.

    Raises
    ------
    ParameterError
        The value is not YAML.
    """
    try:
        return from_yaml(text)
    except (YAMLError, ValueError) as error:
        raise ParameterError(f"{name}: {text!r} is not YAML") from error


def parsed(given: Mapping[str, str]) -> dict[str, Any]:
    """Parse several values by their names, see `parse_yaml`."""
    return {name: parse_yaml(name, text) for name, text in given.items()}


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a file of parameters.

    Raises
    ------
    ParameterError
        The file cannot be read, is not YAML, or has another form.
    """
    try:
        values = from_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{file} cannot be read ({error.strerror})") from error
    except (YAMLError, ValueError) as error:
        raise ParameterError(f"{file} is not YAML ({error})") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ParameterError(f"{file} must hold 'name: value' lines")
    return values


def as_yaml(value: Any) -> str:
    """Write a value in one line, such that `parse_yaml` reads it; plain texts stay as they are."""
    with contextlib.suppress(YAMLError, ValueError):  # a text such as '@x' is YAML only in quotes
        if isinstance(value, str) and from_yaml(value) == value:
            return value
    return json.dumps(value, ensure_ascii=False)


def options(values: Mapping[str, Any]) -> list[str]:
    """Write values as the options of ``python -m cflkit run``."""
    return [word for name, value in values.items() for word in ("-p", name, as_yaml(value))]
