"""Values of parameters as YAML 1.2: in files, on the command line, and in commands."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, ScalarNode
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from cflkit._project import check_regular
from cflkit.reproduce.parameters import ParameterError


class Constructor(SafeConstructor):
    """A constructor of plain values; ``None`` is null, as notebooks write it."""

    def text_or_none(self, node: ScalarNode) -> str | None:
        """Build a text; a ``None`` without quotes is none."""
        return None if node.value == "None" and node.style is None else str(node.value)


Constructor.add_constructor("tag:yaml.org,2002:str", Constructor.text_or_none)


def parse_yaml(what: str, text: str | bytes) -> Any:
    """Read a YAML document; an error says that ``what`` is not YAML.

    Raises
    ------
    ParameterError
        The text is not YAML.
    """
    reader = YAML(typ="safe", pure=True)
    reader.Constructor, reader.max_depth = Constructor, 20
    try:
        # Nested aliases make values of any size from a few bytes. Looking for them takes as long as
        # reading, so texts without their sign are not searched
        if "*" in str(text) and any(isinstance(e, AliasEvent) for e in reader.parse(text)):
            raise ValueError("an alias, such as *name, is not allowed")
        return reader.load(text)
    except (YAMLError, ValueError) as error:  # a date that does not exist is a ValueError
        mark = getattr(error, "problem_mark", None)
        reason = f"line {mark.line + 1}: {error.problem}" if mark else error  # type: ignore
        raise ParameterError(f"{what} is not YAML ({reason})") from error


def parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the values of parameters from the command line, see `parse_yaml`."""
    return {name: parse_yaml(f"{name}: {text!r}", text) for name, text in texts.items()}


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a file of parameters.

    Raises
    ------
    ParameterError
        The file cannot be read, is not YAML, or has another form.
    """
    try:
        values = parse_yaml(str(file), check_regular(file).read_bytes())
    except OSError as error:
        raise ParameterError(f"{file} cannot be read ({error.strerror})") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ParameterError(f"{file} must hold 'name: value' lines")
    return values


def as_yaml(value: Any) -> str:
    """Write a value in one line, such that `parse_yaml` reads it; plain texts stay as they are."""
    with contextlib.suppress(ParameterError):  # a text such as '@x' is YAML only in quotes
        if isinstance(value, str) and parse_yaml("", value) == value:
            return value
    return json.dumps(value, ensure_ascii=False)


def options(values: Mapping[str, Any]) -> list[str]:
    """Write values as the options of ``python -m cflkit run``."""
    return [word for name, value in values.items() for word in ("-p", name, as_yaml(value))]
