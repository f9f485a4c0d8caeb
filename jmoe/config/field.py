"""What a field of a config is: its default, the values that it may have, what it means."""

import enum
import math
import re
from collections.abc import Callable

from ml_collections import ConfigDict

# FREE: a later start of the same run may change the field: where and how long to train, not what each step computes.
# COLUMN: a field that a run's result holds unless it is neutral.
# NEUTRAL: the default changes nothing, and a record and a job's name leave it out. Fields added after the first runs
# are so, or have another neutral value, so that older records and names stay as they are.
Mark = enum.Flag("Mark", "FREE COLUMN NEUTRAL")
NONE, (FREE, COLUMN, NEUTRAL) = Mark(0), Mark


class Field:
    """default: a value, or a function that computes it from the fields of its section. allowed: words for people, and
    the test of a value. help: what it means, empty where the name says it. neutral: if it is not the default."""

    def __init__(self, default, allowed: tuple[str, Callable], help: str = "", marks=NONE, *, neutral=None):
        self.default, self.allowed, self.help = default, allowed, help
        self.free, self.column = FREE in marks, COLUMN in marks
        self.neutral = default if NEUTRAL in marks else neutral  # None: there is none


def default(fields: dict[str, Field]) -> ConfigDict:
    """A config of the defaults of `fields`, by their dotted names."""
    config = ConfigDict()
    for name, field in fields.items():
        *sections, last = name.split(".")
        part = config
        for section in sections:
            if section not in part:
                part[section] = ConfigDict()
            part = part[section]
        part[last] = field.default(part) if callable(field.default) else field.default
    return config


def integer(least: int, most: float = math.inf):
    words = f"a whole number, at least {least}" if most == math.inf else f"a whole number from {least} to {most}"
    return words, lambda x: type(x) is int and least <= x <= most


def number(words: str, holds=lambda x: True):
    """A finite number for which `holds`."""
    return f"a number{words}", lambda x: type(x) in (int, float) and math.isfinite(x) and holds(x)


def one_of(*names: str):
    return " or ".join(map(repr, names)), lambda x: x in names


def named_paths(text: str) -> dict[str, str] | None:
    """{"a": "DIR/a.txt", "b": ...} of "a=DIR/a.txt;b=...", None for text of another form or a name given twice."""
    pairs = [part.partition("=")[::2] for part in text.split(";") if part]
    complete = all(re.fullmatch(r"\w+", name) and path for name, path in pairs)
    return dict(pairs) if complete and len(dict(pairs)) == len(pairs) else None


def _sequence(words: str, item: Callable, together: Callable):
    """A tuple or list for each item of which `item` holds, and for all of it `together`."""
    return words, lambda x: isinstance(x, (tuple, list)) and all(map(item, x)) and together(x)


def _pair(first: Callable, second: Callable):
    return lambda x: isinstance(x, (tuple, list)) and len(x) == 2 and first(x[0]) and second(x[1])


def _ascending(x) -> bool:
    return [*x] == sorted({*x})


POSITIVE = number(" above 0", lambda x: x > 0)
NOT_NEGATIVE = number(", 0 or more", lambda x: x >= 0)
BETA = number(" from 0 to below 1", lambda x: 0 <= x < 1)
POSITIVE_OR_INF = "a number above 0; inf clips nothing", lambda x: type(x) in (int, float) and x > 0
SCALE = number(" from 1e-6 to 100", lambda x: 1e-6 <= x <= 100)
UP_TO_1000 = number(" above 0, at most 1000", lambda x: 0 < x <= 1000)
CAPACITY = f"{UP_TO_1000[0]}, or None: nothing is dropped", lambda x: x is None or UP_TO_1000[1](x)
BOOL = "True or False", lambda x: isinstance(x, bool)
TEXT = "text", lambda x: isinstance(x, str)
NAMED_PATHS = "empty, or NAME=PATH;NAME=PATH with other names", lambda x: TEXT[1](x) and named_paths(x) is not None
BUDGETS = _sequence(
    "whole numbers of tokens, ascending, none twice, as (1_000_000,)", integer(1)[1], lambda x: x and _ascending(x)
)
RAMP = _sequence(
    "pairs (from token, tokens of a batch), the first from 0, ascending, as ((0, 65_536),)",
    _pair(integer(0)[1], integer(1)[1]),
    lambda x: x and x[0][0] == 0 and _ascending([start for start, _ in x]),
)
MIXTURE = _sequence(
    "() or pairs (path, weight), each path once and each weight a number above 0, as (('a/*.txt', 0.7), ('b', 0.3))",
    _pair(lambda path: TEXT[1](path) and path, POSITIVE[1]),
    lambda x: len({path for path, _ in x}) == len(x),
)
STEPS = _sequence(
    "() or (first, last), whole numbers with 0 <= first < last",
    integer(0)[1],
    lambda x: len(x) == 0 or len(x) == 2 and x[0] < x[1],
)
