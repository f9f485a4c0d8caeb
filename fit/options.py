"""Options of functions and commands: dataclasses whose fields carry a kind, a help text and bounds.

`Options` checks its fields when it is built, whoever builds it: a Python function from its keyword arguments, or a
command from its flags. A field becomes the type that it is annotated with, from a number, a text such as 1.5B or 80GB,
a list or an array. UserError names the field whose value cannot be used.
"""

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from fit.errors import UserError
from fit.messages import sentences
from fit.messages.units import LARGEST, say
from fit.table.table import shown

Check = Callable[[str, Any], object]  # (name of the flag, value as given) to the value, or UserError
SMALLEST = 1e-12  # of any positive number
MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}  # of counts
GIGABYTES = {"mb": 1e-3, "gb": 1.0, "tb": 1e3, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
HOURS = {"min": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}


def flag_of(name: str) -> str:
    """The flag of a field: its name, without the _ at the end of a name that a command uses for something else."""
    return name.removesuffix("_")


@dataclasses.dataclass(kw_only=True)
class Options:
    """The options of one function or command, made of what users give: also numbers as text, lists and arrays.

    The functions below make its fields. A value that cannot be used raises UserError.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "tolist"):  # an array, or a number of numpy's
                value = value.tolist()
            if value is None and "required" in field.metadata:
                raise UserError(f"--{flag_of(field.name)} is missing{field.metadata['required']}")
            if value is None and not field.metadata["checks_none"]:
                continue
            setattr(self, field.name, field.metadata["check"](flag_of(field.name), value))

    def changed(self, *names: str) -> list[str]:
        """Those of the named fields that differ from their defaults."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        changed = []
        for name in names:
            kind = fields[name].metadata.get("group")
            default = kind() if kind else fields[name].default
            if getattr(self, name) not in (None, {}, default):
                changed.append(name)
        return changed

    def check_readers(self, flag: str, values: Collection[str], readers: Mapping[str, Collection[str]]) -> None:
        """Raises UserError for an option that is given, but that only other values of a flag read.

        Args:
          flag: The name of the flag.
          values: Its values here.
          readers: {option: the values of the flag that read it}.
        """
        for name in self.changed(*readers):
            if not set(values) & set(readers[name]):
                raise UserError(f"--{name} is for --{flag}={', '.join(readers[name])}")

    def given(self, kind: type["Options"]) -> dict[str, Any]:
        """{field: value as JSON has it} of the fields of `kind`, a parent, that differ from their defaults."""
        names = self.changed(*[field.name for field in dataclasses.fields(kind)])
        return {name: plain_option(getattr(self, name)) for name in names}


def plain_option(value: Any) -> Any:
    """The value of an option as JSON has it: tuples as lists, fields that are given as a dictionary."""
    if isinstance(value, Options):
        return value.given(type(value))
    if isinstance(value, tuple):
        return list(value)
    return value


def unchanged(name: str, value: object) -> object:
    """The check of a field that takes any value."""
    return value


def option(
    flag: str,
    help: str,
    default: object = None,
    check: Check = unchanged,
    choices: tuple = (),
    checks_none: bool = False,
) -> Any:
    """A field of Options.

    Args:
      flag: The kind of flag, as absl calls it.
      help: The text of --help.
      default: The value where none is given.
      check: Maps the flag's name and the given value to the field's value, or raises UserError.
      choices: The words that a flag of the kind enum takes.
      checks_none: Whether the check also runs for None.
    """
    metadata = dict(flag=flag, help=help, check=check, choices=choices, checks_none=checks_none)
    return dataclasses.field(default=default, metadata=metadata)


# The next ones mark a field by a key of its metadata, which other files look for: "required", "path", "of_python".


def required(field: Any, hint: str = "") -> Any:
    """A field without which UserError says that the flag is missing; `hint` follows in that sentence."""
    return dataclasses.field(default=None, metadata=field.metadata | dict(required=hint))


def number(
    help: str, default: float | None = None, least: float = SMALLEST, most: float = LARGEST, below: str = ""
) -> Any:
    """A number from `least` to `most`. `below`: the sentence for a smaller one, with {flag} and {value}."""

    def check(name: str, value: Any) -> float:
        x = _to_number(name, value)
        if x is None:
            raise UserError(f"--{name}: found {shown(value)}, expected {expected_number(name)}")
        if below and not x >= least:
            raise UserError(say(below, flag=name, value=x))
        if most < LARGEST and not least <= x <= most:
            raise UserError(f"--{name}={x:g}: expected a number from {least:g} to {most:g}")
        if not least <= x <= most:
            kind = "positive" if least > 0 else "non-negative"
            raise UserError(say(sentences.NOT_POSITIVE, flag=name, value=x, kind=kind, largest=most))
        return x

    return option("float", help, default, check)


def whole(help: str, default: int | None = None, least: int = 0, most: int | None = None) -> Any:
    """A whole number from `least` up, and up to `most` if that is given."""

    def check(name: str, value: object) -> int:
        x = _to_number(name, value)
        typed = value if isinstance(value, str) else shown(value)
        if x is None or not math.isfinite(x) or not float(x).is_integer() or x < least:
            raise UserError(f"--{name}={typed}: expected a whole number from {least} up")
        if most is not None and x > most:
            raise UserError(f"--{name}={typed}: expected a whole number from {least} to {most}")
        return int(x)

    return option("integer", help, default, check)


def text(help: str, default: str | None = None) -> Any:
    """A text, or a path."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, (str, os.PathLike)):
            raise UserError(f"--{name}: found {shown(value)}, expected text")
        return str(value)

    return option("string", help, default, check)


def path(help: str) -> Any:
    """The path of a file."""
    return or_path(text(help))


def or_path(field: Any) -> Any:
    """A field whose argument may also be an os.PathLike. The command's flag stays a text."""
    return dataclasses.field(default=field.default, metadata=field.metadata | dict(path=True))


def of_python(field: Any) -> Any:
    """A field that is an argument of the Python function, and no flag of the command."""
    return dataclasses.field(default=field.default, metadata=field.metadata | dict(of_python=True))


def unchecked(help: str, default: object = None) -> Any:
    """A text, or what it stands for. The dataclass of the field checks it."""
    return option("string", help, default)


def switch(help: str) -> Any:
    """A flag that is off by default."""

    def check(name: str, value: object) -> bool:
        if value not in (True, False):
            raise UserError(f"--{name}={shown(value)}: expected True or False")
        return bool(value)

    return option("bool", help, False, check)


def choice(help: str, default: str | None, choices: Iterable[str]) -> Any:
    """One of some words."""
    choices = tuple(choices)

    def check(name: str, value: object) -> object:
        if value not in choices:
            raise UserError(f"--{name}={shown(value)}: expected one of {', '.join(choices)}")
        return value

    return option("enum", help, default, check, choices)


def words(help: str, default: tuple[str, ...] | None = (), repeated: bool = False) -> Any:
    """A tuple of words, each once. `repeated`: the flag is given once for each of them."""

    def check(name: str, value: object) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(word).strip() for word in listed(value)))

    return option("multi_string" if repeated else "list", help, default, check)


def numbers(help: str, default: tuple[float, ...] | None = None) -> Any:
    """A tuple of positive numbers. It may be empty where the default is."""

    def check(name: str, value: object) -> tuple[float, ...]:
        values = listed(value)
        if not values and default is None:
            raise UserError(say(sentences.NOT_NUMBERS, flag=name, text="''"))
        return tuple(_positive(name, v) for v in values)

    return option("list", help, default, check)


def experts(help: str, default: tuple[int, ...] | None = None) -> Any:
    """A sorted tuple of numbers of experts."""

    def check(name: str, value: object) -> tuple[int, ...]:
        values = [_positive(name, v) for v in listed(value)]
        is_missing = not values and default is None
        if is_missing or any(e != int(e) or e > 1e6 for e in values):
            raise UserError(say(sentences.NOT_EXPERTS, value=",".join(map(str, listed(value)))))
        return tuple(sorted({int(e) for e in values}))

    return option("list", help, default, check)


def pairs(help: str, form: str, mark: str, names: tuple[str, ...] = (), hint: str = "") -> Any:
    """A dictionary of texts, given as one or as texts of a name, a mark and a value. Each name occurs once.

    Args:
      help: The text of --help.
      form: How an error writes a pair, such as NAME=VALUE.
      mark: What stands between name and value.
      names: The names that exist, where they are known.
      hint: What follows in the error.
    """

    def check(name: str, value: object) -> dict[str, str]:
        texts = listed(value)
        if value is None:
            texts = []
        elif isinstance(value, dict):
            texts = [f"{key}{mark}{v}" for key, v in value.items()]
        values = {}
        for text in texts:
            key, found_mark, v = (part.strip() for part in str(text).partition(mark))
            is_unknown = bool(names) and (key not in names or not v)
            if not found_mark or key in values or is_unknown:
                raise UserError(
                    f"--{name}={','.join(map(str, texts))}: found {text!r}, expected {form} once for each "
                    f"{form.partition(mark)[0]}{hint}"
                )
            values[key] = v
        return values

    return option("list", help, None, check, checks_none=True)


def group(help: str, kind: type["Options"]) -> Any:
    """Several fields in one option: a text such as expert:8,remat:dots, or a dictionary. Its value is a `kind`.

    Args:
      help: The text of --help, which the texts of the fields follow.
      kind: The class of the fields, all of which have defaults. In a text a switch is given by its name alone, and a
        tuple by naming its field once for each value: used:1,used:2.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}

    def check(name: str, value: Any) -> Options:
        if isinstance(value, kind):
            return value
        values = {}
        for key, given in _given_fields(name, value, fields):
            flag = f"{name}={key}"  # a sentence says --mesh=expert=0; what was typed is --mesh=expert:0
            try:
                checked = fields[key].metadata["check"](flag, given)
            except UserError as error:
                raise UserError(error.sentence.replace(f"{flag}=", f"{flag}:")) from error
            if key in values and isinstance(checked, tuple):
                checked = (*values[key], *checked)
            elif key in values:
                raise UserError(f"--{name}: {key} is given twice")
            values[key] = checked
        return kind(**values)

    words = tuple(key if field.metadata["flag"] == "bool" else f"{key}:" for key, field in fields.items())
    field = option("multi_string", f"<{'|'.join(words)}>: {help}", None, check, checks_none=True)
    return dataclasses.field(default=None, metadata=field.metadata | dict(group=kind))


def _given_fields(name: str, value: Any, fields: dict[str, Any]) -> Iterable[tuple[str, object]]:
    """(field, value) of each that a user gives, as group takes them. Raises UserError for an unknown one."""
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        pairs = [(str(key), given) for key, given in value.items() if given is not None]
    elif value is not None:
        texts = ",".join(map(str, listed(value))).split(",")
        pairs = [(text.partition(":")[0].strip(), text.partition(":")[2].strip()) for text in texts]
    for key, given in pairs:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise UserError(f"--{name}: found {key!r}, expected fields {', '.join(fields)}{hint}")
        is_switch = fields[key].metadata["flag"] == "bool"
        if is_switch and given == "":
            given = True
        if given == "":
            raise UserError(f"--{name}: {key} has no value; expected {key}:VALUE")
        yield key, given


def listed(value: object) -> list:
    """The parts of a text between its commas, or of any other collection; a single value gives a list of one."""
    if isinstance(value, str):
        return value.split(",") if value else []
    return list(value) if isinstance(value, Iterable) else [value]


def parse_number(name: str, text: str) -> float | None:
    """Parse the number that a user typed for a flag.

    Counts may end with K, M, B or T (1.5B), memory_gb with MB, GB, TB, MiB, GiB or TiB, hours with min, h, d or w.
    Case does not matter.

    Args:
      name: of the flag.
      text: the user's text.

    Returns:
      GB for memory_gb, hours for hours, else a plain count. None where the text is no number in these units.
    """
    units = MULTIPLES
    if name.endswith("memory_gb"):
        units = GIGABYTES
    elif name == "hours":
        units = HOURS
    parts = re.fullmatch(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)", text.strip().lower())
    if not parts:
        return None
    number, unit = parts.groups()
    if unit and unit not in units:
        return None
    return float(number) * units.get(unit, 1.0)


def expected_number(name: str) -> str:
    """A description of the values that `parse_number` accepts for a flag of this name."""
    if name.endswith("memory_gb"):
        return "a number of GB such as 80, 80GB or 1.5TB"
    if name == "hours":
        return "a number of hours such as 240, 240h or 10d"
    return "a number such as 1e22, 1.5B or 300M"


def _to_number(name: str, value: Any) -> float | None:
    """The number that `value` is, or that a person wrote with a unit; None where it is neither."""
    if isinstance(value, str):
        typed = parse_number(name, value)
        if typed is not None:
            return typed
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _positive(name: str, value: Any) -> float:
    """A positive number. Raises UserError for anything else."""
    x = _to_number(name, value)
    if x is None or not SMALLEST <= x <= LARGEST:
        raise UserError(say(sentences.NOT_NUMBERS, flag=name, text=shown(value) if value != "" else "''"))
    return x
