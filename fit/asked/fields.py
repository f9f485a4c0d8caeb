"""Fields of what a user asks, by kind: their help and bounds, checked when the dataclass is built.

A field's value becomes the type that it is annotated with, whatever stood for it: text of the command line, a list, an
array, a number. UserError names the field that cannot be what it is.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, Self

from fit.data.table import shown
from fit.errors import UserError
from fit.messages import sentences, units
from fit.messages.units import LARGEST

Check = Callable[[str, Any], object]
SMALLEST = 1e-12  # of any positive number that is asked


def flag_of(name: str) -> str:
    """The flag of a field: its name, without the _ at the end of one that a command has another use for."""
    return name.removesuffix("_")


@dataclasses.dataclass(kw_only=True)
class Asked:
    """What one function or command is asked; all fields are made by the functions below."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            value = value.tolist() if hasattr(value, "tolist") else value
            if value is not None:
                setattr(self, field.name, field.metadata["check"](flag_of(field.name), value))
            elif "needed" in field.metadata:
                raise UserError(f"--{flag_of(field.name)} is missing{field.metadata['needed']}")

    @classmethod
    def of(cls, function: str, options: dict[str, object]) -> Self:
        """Built from a function's keyword arguments. Raises TypeError for one that is no field, UserError for a value
        that cannot be what its field is."""
        names = sorted(field.name for field in dataclasses.fields(cls))
        if unknown := [name for name in options if name not in names]:
            raise TypeError(f"fit.{function}() has no option {unknown[0]!r}; options: {', '.join(names)}")
        return cls(**options)

    def given(self, *names: str) -> list[str]:
        """Those of the fields that are not as by default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [name for name in names if getattr(self, name) not in (None, {}, defaults[name])]


def field(
    flag: str, help: str, default: object = None, check: Check = lambda _, value: value, choices: tuple = ()
) -> Any:
    """flag: the kind of flag as absl calls it; check: the value that a name and what was given make, or a UserError."""
    return dataclasses.field(default=default, metadata=dict(flag=flag, help=help, check=check, choices=choices))


def needed(of: Any, words: str = "") -> Any:
    """A field that must be given; words: what the error says beside that it is missing."""
    return dataclasses.field(default=None, metadata=of.metadata | dict(needed=words))


def number(
    help: str, default: float | None = None, least: float = SMALLEST, most: float = LARGEST, below: str = ""
) -> Any:
    """A number from `least` to `most`. below: the sentence for less than that, with {flag} and {value}."""

    def check(name: str, value: Any) -> float:
        x = _to_number(name, value)
        if x is None:
            raise UserError(f"--{name}: found {shown(value)}, expected {units.expected_number(name)}")
        if below and not x >= least:
            raise UserError(below.format(flag=name, value=x))
        if most < LARGEST and not least <= x <= most:
            raise UserError(f"--{name}={x:g}: expected a number from {least:g} to {most:g}")
        if not least <= x <= most:
            kind = "positive" if least > 0 else "non-negative"
            raise UserError(sentences.NOT_POSITIVE.format(flag=name, value=x, kind=kind, largest=most))
        return x

    return field("float", help, default, check)


def whole(help: str, default: int | None = None, least: int = 0, most: int | None = None) -> Any:
    """A whole number from `least` up, to `most` if there is one."""

    def check(name: str, value: object) -> int:
        x = _to_number(name, value)
        typed = value if isinstance(value, str) else shown(value)
        if x is None or not math.isfinite(x) or x != x // 1 or x < least:
            raise UserError(f"--{name}={typed}: expected a whole number from {least} up")
        if most is not None and x > most:
            raise UserError(f"--{name}={typed}: expected a whole number from {least} to {most}")
        return int(x)

    return field("integer", help, default, check)


def _text(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"--{name}: found {shown(value)}, expected text")
    return str(value)


text = functools.partial(field, "string", check=_text)  # or a path
free = functools.partial(field, "string")  # text or what it stands for, as the dataclass checks it
switch = functools.partial(field, "bool", default=False, check=lambda _, value: bool(value))


def choice(help: str, default: str | None, choices: Iterable[str]) -> Any:
    """One of some words."""
    choices = tuple(choices)

    def check(name: str, value: object) -> object:
        if value not in choices:
            raise UserError(f"--{name}={shown(value)}: expected one of {', '.join(choices)}")
        return value

    return field("enum", help, default, check, choices)


def several(help: str, default: tuple[str, ...] | None = (), repeated: bool = False) -> Any:
    """A tuple of words, each once; repeated: a flag that is given once for each of them."""
    check = lambda name, value: tuple(dict.fromkeys(str(v).strip() for v in listed(value)))
    return field("multi_string" if repeated else "list", help, default, check)


def numbers(help: str, default: tuple[float, ...] | None = None) -> Any:
    """A tuple of positive numbers; it may be empty where that is the default."""

    def check(name: str, value: object) -> tuple[float, ...]:
        if not (values := listed(value)) and default is None:
            raise UserError(sentences.NOT_NUMBERS.format(flag=name, text="''"))
        return tuple(_positive(name, v) for v in values)

    return field("list", help, default, check)


def experts(help: str, default: tuple[int, ...] | None = None) -> Any:
    """A sorted tuple of numbers of experts."""

    def check(name: str, value: object) -> tuple[int, ...]:
        values = [_positive(name, v) for v in listed(value)]
        if (not values and default is None) or any(e != int(e) or e > 1e6 for e in values):
            raise UserError(sentences.NOT_EXPERTS.format(value=",".join(map(str, listed(value)))))
        return tuple(sorted({int(e) for e in values}))

    return field("list", help, default, check)


def pairs(help: str, form: str, mark: str, names: tuple[str, ...] = (), hint: str = "") -> Any:
    """A dictionary of texts, or texts of a name, a mark and a value, each name once; form: how a sentence writes one.
    names: those there are, where they are known."""

    def check(name: str, value: object) -> dict[str, str]:
        found, texts = {}, value
        if isinstance(value, dict):
            texts = [f"{key}{mark}{v}" for key, v in value.items()]
        for text in (texts := listed(texts)):
            key, marked, v = (part.strip() for part in str(text).partition(mark))
            if not marked or key in found or (names and (key not in names or not v)):
                raise UserError(
                    f"--{name}={','.join(map(str, texts))}: found {text!r}, expected {form} once for each "
                    f"{form.partition(mark)[0]}{hint}"
                )
            found[key] = v
        return found

    return field("list", help, (), check)


def listed(value: object) -> list:
    """The parts of a text with commas, or of any other collection; a single value is a list of one."""
    if isinstance(value, str):
        return value.split(",") if value else []
    return list(value) if isinstance(value, Iterable) else [value]


def _to_number(name: str, value: Any) -> float | None:
    """The number that `value` is or that a person wrote with a unit; None where it is none."""
    if isinstance(value, str):
        typed = units.parse_number(name, value)
        if typed is not None:
            return typed
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _positive(name: str, value: Any) -> float:
    x = _to_number(name, value)
    if x is None or not SMALLEST <= x <= LARGEST:
        raise UserError(sentences.NOT_NUMBERS.format(flag=name, text=shown(value) if value != "" else "''"))
    return x
