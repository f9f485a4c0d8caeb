"""Flags that several commands have: a law, names of columns, JSON; and how all print JSON and warnings."""

import dataclasses
import json
import sys
from collections.abc import Iterable

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import law_files
from fit.messages import lines
from fit.options import Options, listed, option, pairs, required, switch, text
from fit.results import Result
from fit.table.importers.tools import KEPT
from fit.table.reading import read_with
from fit.table.selection import parse
from fit.table.table import WITH_UNITS, Table, checked_units, plain

NAMES = (*KEPT, "config")  # columns that a table may call by another name


@dataclasses.dataclass(kw_only=True)
class OfLaw(Options):
    """A law."""

    law: str = required(
        text("A law.json, or the name of a published law."), f": a law.json, or one of {', '.join(law_files.NAMES)}"
    )


def _conditions(name: str, value: object) -> tuple[str, ...]:
    """Conditions on the rows of a table, as selection.parse reads them."""
    return tuple(map(str, parse(map(str, listed(value))))) if value else ()


@dataclasses.dataclass(kw_only=True)
class Names(Options):
    """Names and units of a table's columns."""

    columns: dict[str, str] = pairs(
        "The table's names of columns, where they differ, as OURS:THEIRS: loss:val_loss,n_tokens:D.",
        "name:column",
        ":",
        NAMES,
        f", such as loss:val_loss; names: {', '.join(NAMES)}",
    )

    units: dict[str, str] = pairs(
        "Units of the table's columns, where they are not nats per token and plain numbers: loss:bits (or perplexity), "
        "n_active:millions (or billions, trillions), or a number that values are multiplied by.",
        "column:unit",
        ":",
        WITH_UNITS,
        f", such as loss:bits; columns: {', '.join(WITH_UNITS)}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_units(self.units)


@dataclasses.dataclass(kw_only=True)
class Columns(Names):
    """Names and units of a table's columns, which of its rows count, and further columns."""

    where: tuple[str, ...] = option(
        "list",
        "Only rows with this value (state=finished), with another one (state!=crashed), with a number (loss=finite), "
        "or the last of each run (run=last). Of several values of one column any counts; all other conditions must "
        "hold. Names are the table's or ours.",
        (),
        _conditions,
    )
    set: dict[str, str] = pairs(
        "Further columns: a value of all runs, n_experts=1, or others multiplied and divided: "
        "n_tokens=step*batch*seq_len, n_tokens=flops/6/n_active.",
        "NAME=VALUE",
        "=",
    )

    def check_has_table(self, *paths: str | None) -> None:
        """Raises UserError for an option on a table where none of the tables is given."""
        of_tables = self.changed(*[field.name for field in dataclasses.fields(Columns)])
        if of_tables and not any(paths):
            raise UserError(f"--{of_tables[0]}: describes a table; --runs is missing")

    def read(self, path: str | None) -> Table | str | None:
        """The table by these names, units, conditions and formulas. Where there are none it is the path, for a law may
        know its own."""
        if path and (self.columns or self.units or self.where or self.set):
            return read_with(path, self.columns, self.units, self.where, self.set)
        return path


@dataclasses.dataclass(kw_only=True)
class JsonOutput(Options):
    """Output as JSON."""

    json: bool = switch("Print everything as JSON.")

    def show(self, result: Result) -> None:
        """Prints a result as text or as JSON."""
        if self.json:
            print_json(result.to_dict())
        else:
            print(result)


def print_json(values: Json) -> None:
    """Prints what a command prints with --json."""
    print(json.dumps(plain(values), indent=1, allow_nan=False))


def print_findings(findings: Iterable[object]) -> None:
    """Prints what to know before trusting a result as warnings on stderr, wrapped."""
    warnings = lines.warnings(findings)
    if warnings:
        print(lines.text(warnings), file=sys.stderr)
