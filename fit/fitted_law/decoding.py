"""Values of JSON as values of types, refused with the name of their field where they cannot be.

The types are those of dataclasses: of a Law, its parts, its models and its optima.
"""

import dataclasses
import functools
import json
import sys
import types
import typing
from typing import Annotated, Any

from fit.messages.catalogue import CATALOGUE, SEVERITIES
from fit.messages.finding import Finding
from fit.messages.printable import is_printable

EXPECTED = {float: "a number", int: "a whole number", bool: "true or false", str: "text without control characters"}
MISSING = object()
LONGEST_SHOWN = 60  # letters of a value in an error


class Invalid(Exception):
    """A value that a law.json cannot hold.

    Attributes:
      field: Its name and place in the file.
      reason: What it is, and what is expected.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        shown = "missing" if value is MISSING else json.dumps(value, default=str)
        if len(shown) > LONGEST_SHOWN:
            shown = shown[: LONGEST_SHOWN - 3] + "..."
        self.field = field
        self.reason = f"is {shown}, expected {expected}"
        super().__init__(f"{field} {self.reason}")


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    """{field: its type} of a dataclass."""
    return typing.get_type_hints(kind, include_extras=True)


def fields_of(kind: Any, value: Any, path: str) -> dict[str, Any]:
    """{field: value} of an object, of the fields that a dataclass has; those with their default may be missing.

    Args:
      kind: The dataclass. Its fields may have another name in JSON, `key` of their metadata, or none.
      value: The object.
      path: Its place in the file, for errors; "" for the file.

    Raises:
      Invalid: A value is none of its field's type.
    """
    if not isinstance(value, dict):
        raise Invalid(path, value, "an object")
    kinds = _types_of(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        if not field.metadata.get("json", True):
            continue
        key = field.metadata.get("key", field.name)
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        item = value.get(key, MISSING)
        if has_default and (item is MISSING or item is None):
            continue
        fields[field.name] = decoded(kinds[field.name], item, f"{path}.{key}".lstrip("."))
    return fields


def decoded(kind: Any, value: Any, path: str) -> Any:
    """A value of JSON as a value of a type.

    Args:
      kind: float, int, bool, str, a tuple, a dict with names as keys, a dataclass, a union of such, or
        Annotated[type, Rule].
      value: MISSING where the file does not have it.
      path: its place in the file, for errors.

    Raises:
      Invalid: It is none.
    """
    origin = typing.get_origin(kind)
    kinds = typing.get_args(kind)
    if origin is Annotated:
        of_type, rule = kinds
        try:
            checked = decoded(of_type, value, path)
        except Invalid:
            raise Invalid(path, value, rule.expected) from None
        if not rule.accepts(checked):
            raise Invalid(path, value, rule.expected)
        return checked
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in kinds:
            return None
        is_text = isinstance(value, str) and str in kinds
        return decoded(str if is_text else kinds[0], value, path)
    if origin is dict:
        if not isinstance(value, dict) or not all(map(is_printable, value)):
            raise Invalid(path, value, "an object with names without control characters")
        return {name: decoded(kinds[1], item, f"{path}.{name}") for name, item in value.items()}
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise Invalid(path, value, "a list")
        of_items = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(value) != len(of_items):
            raise Invalid(path, value, f"a list of {len(of_items)}")
        return tuple(decoded(of_item, item, path) for of_item, item in zip(of_items, value, strict=True))
    if kind is Finding:
        return _finding(value, path)
    if dataclasses.is_dataclass(kind):
        return kind(**fields_of(kind, value, path))
    accepted = (float, int) if kind is float else (kind,)
    is_allowed = type(value) in accepted
    if is_allowed and kind in (int, float):
        is_allowed = abs(value) <= sys.float_info.max  # no NaN either
    if is_allowed and kind is str:
        is_allowed = is_printable(value)
    if not is_allowed:
        raise Invalid(path, value, EXPECTED[kind])
    return kind(value)


def _finding(value: Any, path: str) -> Finding:
    """A finding of a file. One of a code that this version does not know keeps its words."""
    if not isinstance(value, dict):
        raise Invalid(path, value, "an object")
    text = {name: decoded(str, value.get(name, MISSING), f"{path}.{name}") for name in ("code", "severity", "text")}
    values = value.get("values", MISSING)
    if not isinstance(values, dict) or not all(map(is_printable, values)):
        raise Invalid(f"{path}.values", values, "an object with names without control characters")
    for name, item in values.items():
        if type(item) not in EXPECTED:
            raise Invalid(f"{path}.values.{name}", item, "a number or text")
        decoded(type(item), item, f"{path}.values.{name}")
    if text["severity"] not in SEVERITIES:
        raise Invalid(f"{path}.severity", text["severity"], f"one of {', '.join(SEVERITIES)}")
    if text["code"] not in CATALOGUE:
        return Finding("older_words", text["severity"], dict(sentence=text["text"]))
    finding_of_file = Finding(text["code"], text["severity"], values)
    try:
        str(finding_of_file)
    except (KeyError, ValueError, TypeError):
        raise Invalid(f"{path}.values", values, f"those of {text['code']}") from None
    return finding_of_file
