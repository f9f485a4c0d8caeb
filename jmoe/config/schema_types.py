"""Types of the config schema: a field, its marks, and the constraints on its value.

configs/joint_moe.py builds the table FIELDS from these. schema.py checks and records configs by that table.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict


class Mark(enum.Flag):
    """Properties of a field.

    Fields that were added after the first runs are NEUTRAL, or have another neutral value. So older records and names
    of jobs stay as they are.
    """

    FREE = enum.auto()  # a later start of the same run may change it: where and how long to train, not the mathematics
    COLUMN = enum.auto()  # a run's result has it as a column, unless it has its neutral value
    NEUTRAL = enum.auto()  # the default changes nothing: a record and a job's name leave it out


NONE = Mark(0)
FREE = Mark.FREE
COLUMN = Mark.COLUMN
NEUTRAL = Mark.NEUTRAL


@dataclasses.dataclass(frozen=True)
class Constraint:
    """The values that a field may have."""

    description: str  # completes the sentence "it must be ..."
    accepts: Callable[[Any], bool]


class Field:
    """A field of the config.

    Attributes:
      default: A value, or a function that computes it from the config of the field's section.
      constraint: The values that the field may have.
      help: Its meaning; empty where the name says it.
      free: Whether a later start of the same run may change it.
      column: Whether results have it as a column.
      neutral: The value that records and names of jobs leave out; None if there is none.
    """

    def __init__(
        self, default: Any, constraint: Constraint, help: str = "", marks: Mark = NONE, *, neutral: Any = None
    ) -> None:
        self.default = default
        self.constraint = constraint
        self.help = help
        self.free = FREE in marks
        self.column = COLUMN in marks
        self.neutral = default if NEUTRAL in marks else neutral


def default_config(fields: dict[str, Field]) -> ConfigDict:
    """Builds a config that holds the default of every field.

    Args:
      fields: Field by dotted name, such as "model.d_model".

    Returns:
      A nested ConfigDict with a section for each part of a name before the last.
    """
    config = ConfigDict()
    for dotted_name, field in fields.items():
        *sections, name = dotted_name.split(".")
        parent = config
        for section in sections:
            if section not in parent:
                parent[section] = ConfigDict()
            parent = parent[section]
        parent[name] = field.default(parent) if callable(field.default) else field.default
    return config


def integer(minimum: int, maximum: float = math.inf) -> Constraint:
    """An int in [minimum, maximum]; a bool is none."""
    if maximum == math.inf:
        description = f"a whole number, at least {minimum}"
    else:
        description = f"a whole number from {minimum} to {maximum}"
    return Constraint(description, lambda value: type(value) is int and minimum <= value <= maximum)


def number(range_description: str, is_in_range: Callable[[float], bool] = lambda value: True) -> Constraint:
    """A finite int or float within a range.

    Args:
      range_description: Follows "a number" in errors, such as " above 0".
      is_in_range: Whether a finite number is within that range.
    """
    return Constraint(
        f"a number{range_description}",
        lambda value: type(value) in (int, float) and math.isfinite(value) and is_in_range(value),
    )


def one_of(*names: str) -> Constraint:
    """One of these strings."""
    return Constraint(" or ".join(map(repr, names)), lambda value: value in names)


def named_paths(text: str) -> dict[str, str] | None:
    """Parses "a=DIR/a.txt;b=DIR/b" into {"a": "DIR/a.txt", "b": "DIR/b"}.

    Returns:
      Path by name; None where the text has another form or repeats a name.
    """
    pairs = [part.partition("=")[::2] for part in text.split(";") if part]
    path_by_name = dict(pairs)
    complete = all(re.fullmatch(r"\w+", name) and path for name, path in pairs)
    return path_by_name if complete and len(path_by_name) == len(pairs) else None


def _sequence(
    description: str, accepts_item: Callable[[Any], bool], accepts_whole: Callable[[Sequence], bool]
) -> Constraint:
    """A tuple or list whose items each pass `accepts_item`, and which passes `accepts_whole`."""

    def accepts(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and all(map(accepts_item, value)) and accepts_whole(value)

    return Constraint(description, accepts)


def _pair(accepts_first: Callable[[Any], bool], accepts_second: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A predicate of tuples and lists of two items."""

    def accepts(value: Any) -> bool:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            return False
        first, second = value
        return accepts_first(first) and accepts_second(second)

    return accepts


def _ascends_strictly(values: Sequence) -> bool:
    return [*values] == sorted({*values})


def _is_ramp(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether pairs (from token, batch) begin at token 0 and ascend."""
    return len(pairs) > 0 and pairs[0][0] == 0 and _ascends_strictly([start for start, _ in pairs])


def _is_step_range(steps: Sequence[int]) -> bool:
    """Whether `steps` is () or (first, last) with first < last."""
    if len(steps) == 0:
        return True
    return len(steps) == 2 and steps[0] < steps[1]


POSITIVE = number(" above 0", lambda value: value > 0)
NOT_NEGATIVE = number(", 0 or more", lambda value: value >= 0)
BETA = number(" from 0 to below 1", lambda value: 0 <= value < 1)
POSITIVE_OR_INF = Constraint(
    "a number above 0; inf clips nothing", lambda value: type(value) in (int, float) and value > 0
)
SCALE = number(" from 1e-6 to 100", lambda value: 1e-6 <= value <= 100)
UP_TO_1000 = number(" above 0, at most 1000", lambda value: 0 < value <= 1000)
CAPACITY = Constraint(
    f"{UP_TO_1000.description}, or None: nothing is dropped",
    lambda value: value is None or UP_TO_1000.accepts(value),
)
BOOL = Constraint("True or False", lambda value: isinstance(value, bool))
TEXT = Constraint("text", lambda value: isinstance(value, str))
NAMED_PATHS = Constraint(
    "empty, or NAME=PATH;NAME=PATH with other names",
    lambda value: TEXT.accepts(value) and named_paths(value) is not None,
)
BUDGETS = _sequence(
    "whole numbers of tokens, ascending, none twice, as (1_000_000,)",
    integer(1).accepts,
    lambda budgets: len(budgets) > 0 and _ascends_strictly(budgets),
)
RAMP = _sequence(
    "pairs (from token, tokens of a batch), the first from 0, ascending, as ((0, 65_536),)",
    _pair(integer(0).accepts, integer(1).accepts),
    _is_ramp,
)
MIXTURE = _sequence(
    "() or pairs (path, weight), each path once and each weight a number above 0, as (('a/*.txt', 0.7), ('b', 0.3))",
    _pair(lambda path: TEXT.accepts(path) and path != "", POSITIVE.accepts),
    lambda pairs: len({path for path, _ in pairs}) == len(pairs),
)
STEPS = _sequence("() or (first, last), whole numbers with 0 <= first < last", integer(0).accepts, _is_step_range)
