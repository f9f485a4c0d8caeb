"""Numbers as people and spreadsheets write them: 25,000,000 and 25M, and 5,2491 with a decimal comma."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

# thousands between commas, spaces (also those that do not break a line), apostrophes or _
THOUSANDS = re.compile(r"[+-]?\d{1,3}([, \u00a0\u202f'’_])\d{3}(\1\d{3})*(\.\d+)?", re.ASCII)
WITH_SUFFIX = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
SUFFIXES = dict(k=1e3, m=1e6, g=1e9, b=1e9, t=1e12, thousand=1e3, million=1e6, billion=1e9, trillion=1e12)
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)
COMMA_OR_THOUSANDS = re.compile(r"[+-]?\d{1,3},\d{3}")  # 5,249 is 5.249 or 5249
DOT_THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")
DECIMAL_DOT = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)
FEWEST_ROWS = 3  # that a column must have before its commas can be decimal ones
SHARE_WITH_COMMAS = 0.5  # of its cells that must have one
YES = ("true", "yes", "1", "1.0")  # in lower case


def is_yes(cell: object) -> bool:
    """Whether a cell says yes: true, yes or 1."""
    return str(cell).strip().lower() in YES


def number(text: str) -> float:
    """The number of a text with thousands separators (25,000,000) or a suffix (25M, 1.5 billion); NaN for any other
    text."""
    text = text.strip()
    grouped = THOUSANDS.fullmatch(text)
    if grouped:
        return float(text.replace(grouped[1], ""))
    parts = WITH_SUFFIX.fullmatch(text)
    if parts and parts[2].lower() in SUFFIXES:
        return float(parts[1]) * SUFFIXES[parts[2].lower()]
    return math.nan


def are_plain(cells: Iterable[object]) -> bool:
    """Whether cells are finite numbers as every program reads them, without 25M or 25,000,000."""
    try:
        return all(math.isfinite(float(str(cell))) for cell in cells)
    except ValueError:
        return False


def with_decimal_points(columns: Mapping[str, Sequence[str]], delimiter: str) -> dict[str, list[str]]:
    """The columns of a CSV file, those with decimal commas rewritten with decimal points.

    Commas are decimal if no cell has a decimal point and some cells cannot be thousands (5,2491). Between semicolons
    5,249 has a decimal comma too: spreadsheets that write decimal commas separate columns by semicolons.

    Args:
      columns: {name: cells} as text.
      delimiter: the one between the cells of a row.
    """
    unchanged = {name: list(cells) for name, cells in columns.items()}
    if not any("," in cell for cells in unchanged.values() for cell in cells):
        return unchanged
    changed = {}
    is_certain = delimiter == ";"
    for name, cells in unchanged.items():
        filled = [cell for cell in cells if cell]
        if any(_has_decimal_point(cell) or _has_thousands_commas(cell) for cell in filled):
            return unchanged
        with_comma = [cell for cell in filled if DECIMAL_COMMA.fullmatch(cell)]
        if len(filled) < FEWEST_ROWS or len(with_comma) < SHARE_WITH_COMMAS * len(filled):
            continue
        is_certain |= any(not COMMA_OR_THOUSANDS.fullmatch(cell) for cell in with_comma)
        changed[name] = [cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell) else cell for cell in cells]
    if not changed or not is_certain:
        return unchanged
    for name in unchanged.keys() - changed.keys():  # where the comma is the decimal mark, dots group thousands
        changed[name] = [cell.replace(".", "") if DOT_THOUSANDS.fullmatch(cell) else cell for cell in unchanged[name]]
    return {name: changed[name] for name in columns}


def _has_decimal_point(cell: str) -> bool:
    """Whether the dot of a cell can only be a decimal point."""
    return DECIMAL_DOT.fullmatch(cell) is not None and DOT_THOUSANDS.fullmatch(cell) is None


def _has_thousands_commas(cell: str) -> bool:
    """Whether the commas of a cell can only separate thousands."""
    return "," in cell and THOUSANDS.fullmatch(cell) is not None and COMMA_OR_THOUSANDS.fullmatch(cell) is None
