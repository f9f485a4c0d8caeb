"""Quotes cells of a CSV file that a spreadsheet would run as a formula, by an apostrophe before them.

A cell that begins with =, +, - or @ is a formula to a spreadsheet, and may call programs. Tables hold names and
settings that others chose. A number such as -1.5 stays as it is.
"""

import re
from typing import Any

FORMULA = re.compile("'*[=+@-].", re.DOTALL)
NUMBER = re.compile(r"[+-]((?=[.,_ ]*\d)[\d.,_ ]+(e[+-]?\d+)?%?|inf|infinity|nan)", re.IGNORECASE)


def quoted(cell: Any) -> Any:
    """The cell as it is written: with an apostrophe before text that would be a formula, else unchanged."""
    if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unquoted(cell: str) -> str:
    """The cell before `quoted` quoted it."""
    if cell.startswith("'") and quoted(cell[1:]) == cell:
        return cell[1:]
    return cell
