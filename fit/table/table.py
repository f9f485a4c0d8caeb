"""A table of runs: columns of values as they were read, and these columns as numbers within bounds.

`read` takes files (fit/table/formats.py) and tables from Python. `Table.numbers` parses a column once, by pandas, and
names the first bad value by file, row and column. Rows of a table that is not a file are counted from 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fit.aliases import Array, Numbers
from fit.errors import UserError
from fit.table import spelled
from fit.table.formats import columns_of, plain, read_file, shown, write_file

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BOUNDS", "DERIVED", "WITH_UNITS", "Table", "checked_units", "is_table", "plain", "read", "shown", "write"]

LONGEST_PATH = 4096  # a longer text is not a path: the caller passed the contents of a file
# What a run may be: a number outside these bounds is a mistake of units, not a run.
BOUNDS = dict(n_active=(1, 1e16), n_total=(1, 1e18), n_tokens=(1, 1e18), n_experts=(1, 1e6), loss=(1e-6, 1e3))
# The units that --units names, of counts and of the loss. Any other is given as a number that values are multiplied by.
COUNT_UNITS = dict(ones=1.0, millions=1e6, billions=1e9, trillions=1e12)
LOSS_UNITS = dict(nats=1.0, bits=math.log(2), perplexity=math.nan, exp2=math.nan)
# A perplexity is e to the power of the loss in nats, and exp2 is 2 to that power.
LOGARITHMS = dict(perplexity=np.log, exp2=np.log2)
WITH_UNITS = ("loss", "n_active", "n_total", "n_tokens")
ROWS_NAMED = 5  # in an error


@dataclasses.dataclass(frozen=True)
class BadCells:
    """Cells of a column that hold no number within its bounds.

    Attributes:
      is_bad: which rows, bool [n_rows].
      where: the first of them.
      what: what was found there, and what is expected.
      hint: a clause on what to do, where no condition leaves out these rows; "" where that is not known.
    """

    is_bad: Array
    where: str
    what: str
    hint: str


@dataclasses.dataclass(repr=False)
class Table:
    """Columns of equal length by name, with the values as they were read.

    Attributes:
      path: the file, or a name for a table from Python; errors begin with it.
      columns: {name: values, [n_rows]}.
      rows: the row number in the file of each row, [n_rows].
      names: {name that fit reads: name in the file}, such as {"loss": "val_loss"}.
      arrow: the table of a Parquet file, as pyarrow read it.
      units: {column: unit} of columns that are not nats or plain numbers; `numbers` converts them.
      where: the conditions of --where that chose these rows.
      computed: {column: formula} of the columns that --set added.
      left_out: {reason, in words: how many rows --where left out for it}.
    """

    path: str
    columns: dict[str, list]
    rows: list[int]
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    arrow: pyarrow.Table | None = None
    units: dict[str, str] = dataclasses.field(default_factory=dict)
    where: tuple[str, ...] = ()
    computed: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    # {name in the file: (values, the same as float64 [n_rows])} of the columns that were parsed
    _parsed: dict[str, tuple[list, Array]] = dataclasses.field(default_factory=dict, init=False, compare=False)

    def __repr__(self) -> str:
        return f"<{len(self)} runs of {self.path}: {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return self.names.get(name, name) in self.columns

    def column(self, name: str) -> list:
        """The values of a column as read, or of a column that follows from others (DERIVED).

        Raises:
          UserError: where the table has no such column.
        """
        if self._is_derived(name):
            return self._derived(name).tolist()
        name_in_file = self.names.get(name, name)
        if name_in_file not in self.columns:
            columns = ", ".join(self.columns) or "none"
            raise UserError(f"{self.path}: column {name_in_file} is missing; columns found: {columns}")
        return self.columns[name_in_file]

    def _is_derived(self, name: str) -> bool:
        """Whether the table lacks this column and has those that it follows from."""
        if name not in DERIVED or name in self.columns or self.names.get(name, name) != name:
            return False
        needed, _ = DERIVED[name]
        return all(other in self for other in needed)

    def _derived(self, name: str) -> Array:
        """A column of DERIVED as float64 [n_rows]."""
        _, formula = DERIVED[name]
        return formula(self)

    def column_or(self, name: str, default: object) -> list:
        """Column `name` as read, or `default` for every row where the table has no such column."""
        return self.column(name) if name in self else [default] * len(self)

    def numbers_or(self, name: str, default: Numbers) -> Numbers:
        """Column `name` as numbers from 0 up, or `default` where the table has no such column."""
        return self.numbers(name, (0, 1e18)) if name in self else default

    def numbers(self, name: str, bounds: tuple[float, float] | None = None) -> Array:
        """A column as numbers, in nats or plain numbers whatever its unit.

        Args:
          name: the column; n_experts must be whole numbers.
          bounds: the least and the largest value; by default those of BOUNDS.

        Returns:
          float64 [n_rows].

        Raises:
          UserError: names the first value that is not a finite number within the bounds.
        """
        bad = self.bad_cells(name, bounds)
        if bad is not None:
            raise UserError(f"{self.path}, {bad.where}: {bad.what}{bad.hint}")
        return self.values(name)

    def bad_cells(self, name: str, bounds: tuple[float, float] | None = None) -> BadCells | None:
        """The cells of a column that `numbers` refuses; None where it takes all of them.

        Args:
          name: the column.
          bounds: as `numbers` takes them.

        Raises:
          UserError: where the table has no such column.
        """
        low, high = bounds or BOUNDS.get(name, (-np.inf, np.inf))
        numbers = self.values(name)
        is_bad = ~(np.isfinite(numbers) & (numbers >= low) & (numbers <= high))
        must_be_whole = name == "n_experts"
        if must_be_whole:
            is_bad |= numbers != np.floor(numbers)
        if not is_bad.any():
            return None
        first = int(np.argmax(is_bad))
        kind = "a whole number" if must_be_whole else "a number"
        span = f" from {low:g} to {high:g}" if np.isfinite(high) else ""
        more = self._other_rows(is_bad)
        is_count = name in WITH_UNITS and name != "loss"
        if is_count and name not in self.units and 0 < numbers[first] < BOUNDS[name][0]:
            more += f"; --units={name}:billions says that it is in billions"
        return BadCells(
            is_bad=is_bad,
            where=f"row {self.rows[first]}, column {self.names.get(name, name)}",
            what=f"found {shown(self.column(name)[first])}, expected {kind}{span}{more}",
            hint="; leave out runs that crashed" if name == "loss" and not is_bad.all() else "",
        )

    def values(self, name: str) -> Array:
        """A column as `numbers` gives it, but without bounds, and NaN where a cell is no number, [n_rows]."""
        return self._converted(name, self._parse(name))

    def can_give(self, name: str) -> bool:
        """Whether the table has this column or those that it follows from."""
        return name in self or self._is_derived(name)

    def _parse(self, name: str) -> Array:
        """A column as float64 [n_rows], NaN where a value is not a number; parsed once, and returned as a copy."""
        if self._is_derived(name):
            return self._derived(name)
        values = self.column(name)
        name_in_file = self.names.get(name, name)
        before, numbers = self._parsed.get(name_in_file, (None, None))
        if numbers is None or before is not values:
            numbers = to_numbers(values)
            self._parsed[name_in_file] = values, numbers
        return numbers.copy()

    def _other_rows(self, is_bad: Array) -> str:
        """A clause on how many rows have a bad value; "" for a single one."""
        rows = [str(self.rows[i]) for i in np.flatnonzero(is_bad)]
        if len(rows) == 1:
            return ""
        more = ", ..." if len(rows) > ROWS_NAMED else ""
        return f"; {len(rows)} of {len(self)} rows have none: {', '.join(rows[:ROWS_NAMED])}{more}"

    def _converted(self, name: str, numbers: Array) -> Array:
        """Values of a column in nats or as plain numbers."""
        unit = self.units.get(name)
        if unit is None:
            return numbers
        if unit in LOGARITHMS:
            with np.errstate(divide="ignore", invalid="ignore"):
                return LOGARITHMS[unit](numbers)
        factors = LOSS_UNITS if name == "loss" else COUNT_UNITS
        return numbers * (factors[unit] if unit in factors else float(unit))


def _sparsity(table: Table) -> Array:
    """The share of a layer's experts that a token does not use; 0 for dense models, whatever their top_k.

    Raises:
      UserError: names the first mixture whose top_k is no number from 1 to its n_experts.
    """
    n_experts = table.numbers("n_experts")
    if "top_k" not in table:
        return 1 - 1 / n_experts
    top_k = np.where(n_experts > 1, table.values("top_k"), 1.0)
    is_possible = (top_k >= 1) & (top_k <= n_experts)
    if not is_possible.all():
        first = int(np.argmin(is_possible))
        raise UserError(
            f"{table.path}, row {table.rows[first]}, column {table.names.get('top_k', 'top_k')}: "
            f"found {shown(table.column('top_k')[first])}, expected a number from 1 to n_experts, "
            f"{n_experts[first]:g} there"
        )
    return 1 - top_k / n_experts


def _granularity(table: Table) -> Array:
    """How many times narrower an expert is than the dense feed-forward layer, d_ff / d_expert."""
    d_expert = table.numbers("d_expert")
    d_model = table.numbers("d_model")
    return table.numbers_or("d_ff", 3 * d_model) / d_expert


def _shared_share(table: Table) -> Array:
    """Of the experts that a token uses, the share that all tokens use."""
    top_k = table.numbers("top_k")
    n_shared = table.numbers_or("n_shared_experts", 0.0)
    return n_shared / (top_k + n_shared)


# Columns that follow from others: {name: (the columns needed, a function of the table)}
DERIVED: dict[str, tuple[tuple[str, ...], Callable[[Table], Array]]] = {
    "sparsity": (("n_experts",), _sparsity),
    "granularity": (("d_expert", "d_model"), _granularity),
    "shared_share": (("top_k",), _shared_share),
}


def to_numbers(values: list) -> Array:
    """Values as float64 [n], NaN for each that is not a number (true, None, digits of other scripts).

    Texts may have thousands separators (25,000,000) or a suffix (25M, 1.5 billion).
    """
    if {type(value) for value in values} <= {int, float}:
        with contextlib.suppress(OverflowError):  # of an integer of more than 308 digits
            return np.array(values, np.float64)
    import pandas  # only here: it takes a third of a second

    cells = pandas.Series(values, dtype=object)
    cells = cells.where(cells.map(type).isin((str, int, float)))
    try:
        numbers = pandas.to_numeric(cells, errors="coerce")
    except OverflowError:  # of an integer of more than 308 digits, which as text is infinity
        numbers = pandas.to_numeric(cells.map(str), errors="coerce")
    result = numbers.to_numpy(np.float64, copy=True)
    for i in np.flatnonzero(np.isnan(result)):
        if isinstance(values[i], str):
            result[i] = spelled.number(values[i])
    return result


def with_rows(table: Table, rows: Array) -> Table:
    """The table with some of its rows alone; `rows` are their indices, ascending."""
    columns = {name: [values[i] for i in rows] for name, values in table.columns.items()}
    return dataclasses.replace(table, columns=columns, rows=[table.rows[i] for i in rows], arrow=None)


def is_table(value: object) -> bool:
    """Whether `read` takes this for a table rather than for numbers."""
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and isinstance(value[0], dict)
    return isinstance(value, (Table, dict, str, os.PathLike)) or hasattr(value, "columns")


def checked_units(units: Mapping[str, str] | None) -> dict[str, str]:
    """{column: unit} as the user named them.

    Raises:
      UserError: for a column that has no unit, or a unit that it cannot have.
    """
    for name, unit in (units or {}).items():
        if name not in WITH_UNITS:
            raise UserError(f"--units={name}:{unit}: expected a column of {', '.join(WITH_UNITS)}")
        known = LOSS_UNITS if name == "loss" else COUNT_UNITS
        (factor,) = to_numbers([str(unit)])
        if unit not in known and not 0 < factor < math.inf:
            raise UserError(f"--units={name}:{unit}: expected one of {', '.join(known)} or a number to multiply by")
    return {name: str(unit) for name, unit in (units or {}).items()}


def read(runs: Any, columns: Mapping[str, str] | None = None, units: Mapping[str, str] | None = None) -> Table:
    """Reads a table of runs.

    Args:
      runs: the path of a .csv, .jsonl or .parquet file; a frame of pandas or polars; a table of pyarrow; a list of
        dictionaries, one for each run; a dictionary of columns; or a Table, which is returned as it is.
      columns: {name that fit reads: name in the table}, such as {"loss": "val_loss"}.
      units: {column: unit} where a column is not in nats or plain numbers: {"loss": "bits", "n_active": "millions"}.

    Raises:
      UserError: where the table cannot be read, has no runs, or lacks one of these columns.
    """
    if isinstance(runs, Table):
        return runs
    names = dict(columns or {})
    is_path = len(runs) <= LONGEST_PATH if isinstance(runs, str) else isinstance(runs, os.PathLike)
    table = _read_path(str(runs), names) if is_path else _read_values(runs, names)
    return dataclasses.replace(table, units=checked_units(units))


def _read_path(path: str, names: dict[str, str]) -> Table:
    """A table from a file that has all these columns."""
    contents = read_file(path)
    check_names(path, names, contents.columns)
    return Table(path, contents.columns, contents.rows, names, contents.arrow)


def check_names(path: str, names: Mapping[str, str], columns: Collection[str]) -> None:
    """Raises UserError where a table at `path` lacks columns that --columns names: {our name: its name}."""
    unknown = {ours: theirs for ours, theirs in names.items() if theirs not in columns}
    if unknown:
        flag = ",".join(f"{ours}:{theirs}" for ours, theirs in unknown.items())
        raise UserError(
            f"--columns={flag}: {path} has no column {', '.join(unknown.values())}; columns found: {', '.join(columns)}"
        )


def _read_values(runs: Any, names: dict[str, str]) -> Table:
    """A table from Python: of pyarrow, dictionaries, or a frame."""
    if hasattr(runs, "to_pylist"):
        runs = runs.to_pylist()
    if isinstance(runs, dict):
        path = "the dictionary"
        columns = {str(name): list(np.atleast_1d(values)) for name, values in runs.items()}
    elif isinstance(runs, (list, tuple)) and all(isinstance(run, dict) for run in runs):
        path = "the list"
        columns = columns_of(runs)
    elif hasattr(runs, "columns"):
        path = "the frame"
        columns = {str(name): runs[name].to_list() for name in runs.columns}
    else:
        raise UserError(
            f"runs: found {shown(runs)} ({type(runs).__name__}), expected the path of a table, a frame, a list of "
            "dictionaries or a dictionary of columns"
        )
    for name, values in columns.items():
        columns[name] = [value.item() if isinstance(value, np.generic) else value for value in values]
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"{path}: columns differ in length: {counts}")
    table = Table(path, columns, list(range(max(lengths.values(), default=0))), names)
    for ours in table.names:
        table.column(ours)
    if not len(table):
        raise UserError(f"{path} has no runs")
    return table


def write(table: Table, path: str) -> None:
    """Writes a table in the format that the ending of `path` names: .csv, .jsonl or .parquet.

    Raises:
      UserError: where that cannot be done.
    """
    write_file(path, table.columns, table.path, table.arrow)
