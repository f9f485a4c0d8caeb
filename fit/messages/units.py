"""Formats numbers, alone, in sentences and in tables: 9.71B parameters, 24.3 GB, 2×10²² FLOPs.

GB is 1e9 bytes. `say` fills in the templates of sentences.py.
"""

import math
import numbers
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fit.aliases import Json

AMOUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1.0, ""))
MEMORIES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "bytes"))
LARGEST = 1e40  # of any amount that a flag gives, and of every budget
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _digits(x: float) -> str:
    """x with three significant digits, never with an exponent: 9.71, 24.3, 1740."""
    return f"{float(f'{x:.2e}'):f}".rstrip("0").rstrip(".") or "0"


def _scaled(x: float, units: Sequence[tuple[float, str]]) -> tuple[str, str]:
    """A number in the largest unit that is not above it.

    Args:
      x: the number.
      units: (size, name) of each unit, the largest first.

    Returns:
      (x in that unit, rounded to three digits, as text; the unit's name).
    """
    x = float(f"{x:.2e}")
    size, name = next((unit for unit in units if abs(x) >= unit[0]), units[-1])
    return _digits(x / size), name


def amount(x: float) -> str:
    """A count: 9.71B, 1.68M, 257."""
    return "".join(_scaled(x, AMOUNTS))


def memory(n_bytes: float) -> str:
    """Bytes: 24.3 GB, 73.1 KB."""
    return " ".join(_scaled(n_bytes, MEMORIES))


def _mantissa(x: float) -> tuple[str, int]:
    """(mantissa with three significant digits, without trailing zeros; exponent of 10)."""
    mantissa, exponent = f"{x:.2e}".split("e")
    return mantissa.rstrip("0").rstrip("."), int(exponent)


def flops(x: float) -> str:
    """FLOPs in plain text: 10²², 2.5×10¹²."""
    if not (x > 0 and math.isfinite(x)):
        return f"{x:g}"
    mantissa, exponent = _mantissa(x)
    power = "10" + str(exponent).translate(SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa}×{power}"


def flops_math(x: float) -> str:
    """FLOPs as matplotlib typesets them."""
    mantissa, exponent = _mantissa(x)
    power = f"10^{{{exponent}}}"
    return f"${power}$" if mantissa == "1" else rf"${mantissa}\times{power}$"


def rounded(x: float) -> float:
    """x rounded down to two significant digits, for budgets and sizes in text."""
    unit = 10.0 ** (math.floor(math.log10(x)) - 1)
    return float(f"{math.floor(x / unit * (1 + 1e-12)) * unit:.1e}")


def duration(hours: float) -> str:
    """Hours as text: 3.2 years, 4.17 days, 7.5 h, 12 min, 3 s."""
    if not hours * 3600 >= 1:
        return "< 1 s"
    years = 365.25 * 24
    # (from this many hours, hours of the unit, its name)
    units = ((years, years, "years"), (48, 24, "days"), (1, 1, "h"), (1 / 60, 1 / 60, "min"))
    _, size, name = next((unit for unit in units if hours >= unit[0]), (0, 1 / 3600, "s"))
    return f"{_digits(hours / size)} {name}"


def dollars(x: float) -> str:
    """Dollars: $12.8K."""
    return f"${amount(x)}"


# What a template may write after a colon, beside Python's own formats.
FORMATS = dict(amount=amount, memory=memory, flops=flops, duration=duration, dollars=dollars)


class _Formatter(string.Formatter):
    """str.format with FORMATS, lists and cells of tables."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """One field of a template.

        Args:
          value: of the field. A list is written as "9.71B to 24B".
          format_spec: of Python, or a name in FORMATS. In a table's cell, such as {x:.4f:>8}, what follows the second
            colon places it; words stay as they are, and None is "-".
        """
        kind, in_cell, place = format_spec.partition(":")
        if isinstance(value, (list, tuple)):
            text = " to ".join(self.format_field(item, kind) for item in value)
        elif in_cell and not isinstance(value, numbers.Real):
            text = value or "-"
        elif kind in FORMATS:
            text = FORMATS[kind](value)
        else:
            text = format(value, kind)
        return format(text, place)


def say(template: str, /, **values: Any) -> str:
    """A template, filled in as str.format does.

    str.format itself is wrong for our templates: it knows neither FORMATS, nor lists, nor cells of tables.

    Raises:
      KeyError: A field of the template has no value.
    """
    return _Formatter().vformat(template, (), values)


def fields_of(template: str) -> list[str]:
    """The names of a template's fields, in its order, each once."""
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name))


def say_first(templates: Iterable[str], values: Mapping[str, Any]) -> str:
    """The first of several templates whose fields all have a value, filled in; "" where there is none."""
    for template in templates:
        if values.keys() >= set(fields_of(template)):
            return say(template, **values)
    return ""


def counted(count: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(columns: str, rows: Iterable[Json | str], **heads: str) -> list[str]:
    """The lines of a table.

    Args:
      columns: a template of `say` for a line.
      rows: the values of each line; a text is a line as it is.
      heads: of columns, where they are not the template's names.
    """
    names = {name: name for name in fields_of(columns)}
    return [row if isinstance(row, str) else say(columns, **row).rstrip() for row in (names | heads, *rows)]
