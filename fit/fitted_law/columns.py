"""The columns of models that a law reads, as a caller of Law.predict gives them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.table import table


def as_numbers(field: str, value: Any) -> Array:
    """A value as float64 numbers. Raises UserError where it is none.

    Args:
      field: What the error calls it.
      value: A number, a list or an array.
    """
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise UserError(f"{field}: found {table.shown(value)}, expected numbers") from None


def checked_columns(form: str, names: Iterable[str], arguments: Mapping[str, Any]) -> dict[str, Array]:
    """{column: float64 numbers} of the columns that a form reads.

    Args:
      form: Its name.
      names: The columns that it reads.
      arguments: Values by name.

    Raises:
      UserError: A column is missing, or has a value that no model has.
    """
    names = tuple(names)
    columns = {}
    for name in names:
        if name not in arguments:
            raise UserError(f"{name} is missing: the {form} law reads {', '.join(names)}")
        low, high = table.BOUNDS.get(name, (-np.inf, np.inf))
        values = columns[name] = as_numbers(name, arguments[name])
        bad = ~((low <= values) & (values <= high))
        if bad.any():
            first = values.flat[int(np.argmax(bad))]
            raise UserError(f"{name}: found {first:g}, expected a number from {low:g} to {high:g}")
    return columns
