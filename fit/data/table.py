"""Tables read strictly, from files or from Python, and written.

A file is CSV, JSONL or Parquet by its ending. Each bad value is named by file, row and column; rows are counted as an
editor shows them (a CSV's header is row 1), those of what is no file from 0.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fit.aliases import Array, Numbers
from fit.data.files import replacing
from fit.errors import UserError
from fit.messages.printable import is_printable

if TYPE_CHECKING:
    import pyarrow

MOST_ROWS, MOST_BYTES = 5_000_000, 4_000_000_000  # of a Parquet file, which is small before it is unpacked
LONGEST_PATH = 4096  # a longer text is none: somebody gave what is in the file
# What a run may be: outside these bounds a number is a slip of units, not a run.
BOUNDS = dict(n_active=(1, 1e16), n_total=(1, 1e18), n_tokens=(1, 1e18), n_experts=(1, 1e6), loss=(1e-6, 1e3))
# Units that --units names, of columns of counts and of the loss; a number stands for any other: values times it.
COUNT_UNITS = dict(ones=1.0, millions=1e6, billions=1e9, trillions=1e12)
LOSS_UNITS = dict(nats=1.0, bits=math.log(2), perplexity=math.nan)  # of the last the logarithm is taken
WITH_UNITS = ("loss", "n_active", "n_total", "n_tokens")
ROWS_NAMED = 5  # in an error
# Columns that follow from others: {name: (the columns needed, a function of their values and of Table._or)}
DERIVED = {
    "sparsity": (("n_experts",), lambda e, get: 1 - get("top_k", 1.0) / e),
    "granularity": (("d_expert", "d_model"), lambda width, d, get: get("d_ff", 3 * d) / width),
    "shared_share": (("top_k",), lambda k, get: get("n_shared_experts", 0.0) / (k + get("n_shared_experts", 0.0))),
}


@dataclasses.dataclass(repr=False)
class Table:
    """Columns of equal length by name, values as read; rows[i] is the row number in the file of the i-th value.

    names: {"loss": "val_loss"}, what the file calls a column that is asked for by another name. arrow: the table as
    Parquet holds it, where it came from a Parquet file. units: {"loss": "bits"}, in which columns are, where it is not
    nats or plain numbers; `numbers` converts them.
    """

    path: str
    columns: dict[str, list]
    rows: list[int]
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    arrow: pyarrow.Table | None = None
    units: dict[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{len(self)} runs of {self.path}: {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return self.names.get(name, name) in self.columns

    def column(self, name: str) -> list:
        theirs = self.names.get(name, name)
        if name == theirs and name in DERIVED and name not in self.columns:
            needs, of = DERIVED[name]
            if all(other in self for other in needs):
                return of(*(self.numbers(other) for other in needs), self._or).tolist()
        if theirs not in self.columns:
            hint = ""
            if name in BOUNDS and not self.names:
                hint = "; --columns=loss:val_loss,... says what the file calls them"
            raise UserError(
                f"{self.path}: column {theirs} is missing; columns found: {', '.join(self.columns) or 'none'}{hint}"
            )
        return self.columns[theirs]

    def _or(self, name: str, default: Numbers) -> Numbers:
        """Column `name` as numbers, or `default` where the table has no such column."""
        return self.numbers(name, (0, 1e18)) if name in self else default

    def numbers(self, name: str, bounds: tuple[float, float] | None = None) -> Array:
        """Column `name` as float64 [n_rows]; UserError names the first value that is no finite number within bounds."""
        low, high = bounds or BOUNDS.get(name, (-np.inf, np.inf))
        values, integer = self.column(name), name == "n_experts"
        numbers = self._converted(name, np.array([_number(v) for v in values]))
        bad = ~(np.isfinite(numbers) & (numbers >= low) & (numbers <= high))
        if integer:
            bad |= numbers != np.floor(numbers)
        if bad.any():
            i = int(np.argmax(bad))
            span = f" from {low:g} to {high:g}" if np.isfinite(high) else ""
            raise UserError(
                f"{self.path}, row {self.rows[i]}, column {self.names.get(name, name)}: found {shown(values[i])}, "
                f"expected {'a whole number' if integer else 'a number'}{span}{self._more_of(name, bad, numbers)}"
            )
        return numbers

    def _more_of(self, name: str, bad: Array, numbers: Array) -> str:
        """How many rows have no such value, and what mends it, where something is known to."""
        words, rows = "", [str(self.rows[i]) for i in np.flatnonzero(bad)]
        if len(rows) > 1:
            named = ", ".join(rows[:ROWS_NAMED])
            more = ", ..." if len(rows) > ROWS_NAMED else ""
            words = f"; {len(rows)} of {len(self)} rows have none: {named}{more}"
        if name == "loss" and len(rows) < len(self):
            words += "; leave out runs that crashed"
        first = numbers[bad][0]
        if name in WITH_UNITS[1:] and name not in self.units and 0 < first < BOUNDS[name][0]:
            words += f"; --units={name}:billions says that it is in billions"
        return words

    def _converted(self, name: str, numbers: Array) -> Array:
        """Values of a column in nats or as plain numbers."""
        unit = self.units.get(name)
        if unit is None:
            return numbers
        if unit == "perplexity":
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.log(numbers)
        known = LOSS_UNITS if name == "loss" else COUNT_UNITS
        return numbers * (known[unit] if unit in known else float(unit))


def _number(value: Any) -> float:
    """A value as read, as a float; NaN for what is no plain number (true, 1_000, digits of other scripts)."""
    if type(value) not in (str, int, float):
        return np.nan
    if type(value) is str and ("_" in value or not value.isascii()):
        return np.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return np.nan


def shown(value: object) -> str:
    """A value as a sentence shows it, however long it is."""
    is_empty = value is None if not isinstance(value, str) else not value
    text = "nothing" if is_empty else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def is_table(value: object) -> bool:
    """Whether `read` takes this for a table rather than for numbers."""
    rows = isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], dict)
    return rows or isinstance(value, (Table, dict, str, os.PathLike)) or hasattr(value, "columns")


def checked_units(units: Mapping[str, str] | None) -> dict[str, str]:
    """{column: unit} as given. Raises UserError for a column that has none, or a unit that it cannot have."""
    for name, unit in (units or {}).items():
        known = LOSS_UNITS if name == "loss" else COUNT_UNITS
        factor = _number(str(unit))
        if name not in WITH_UNITS or not (unit in known or 0 < factor < math.inf):
            expected = ", ".join(known if name in WITH_UNITS else WITH_UNITS)
            raise UserError(
                f"--units={name}:{unit}: expected {'one of' if name in WITH_UNITS else 'a column of'} {expected}"
                + (" or a number to multiply by" if name in WITH_UNITS else "")
            )
    return {name: str(unit) for name, unit in (units or {}).items()}


def read(runs: Any, columns: Mapping[str, str] | None = None, units: Mapping[str, str] | None = None) -> Table:
    """A table of runs: a .csv, .jsonl or .parquet file, a frame of pandas or polars, a table of pyarrow, a list of
    dictionaries (a run each) or a dictionary of columns; columns: {ours: theirs}, such as {"loss": "val_loss"}; units:
    {"loss": "bits", "n_active": "millions"}, where they are not nats and plain numbers. Raises UserError for what
    cannot be read, or has no such columns."""
    if isinstance(runs, Table):
        return runs
    return dataclasses.replace(_read(runs, columns), units=checked_units(units))


def _read(runs: Any, columns: Mapping[str, str] | None) -> Table:
    is_path = len(runs) <= LONGEST_PATH if isinstance(runs, str) else isinstance(runs, os.PathLike)
    if is_path:
        return _read_file(str(runs), dict(columns or {}))
    if hasattr(runs, "to_pylist"):
        runs = runs.to_pylist()
    if isinstance(runs, dict):
        what, found = "the dictionary", {str(name): list(np.atleast_1d(v)) for name, v in runs.items()}
    elif isinstance(runs, (list, tuple)) and all(isinstance(run, dict) for run in runs):
        what, found = "the list", _columns(runs)
    elif hasattr(runs, "columns"):
        what, found = "the frame", {str(name): runs[name].to_list() for name in runs.columns}
    else:
        raise UserError(
            f"runs: found {shown(runs)} ({type(runs).__name__}), expected the path of a table, a frame, a list of "
            "dictionaries or a dictionary of columns"
        )
    found = {name: [v.item() if isinstance(v, np.generic) else v for v in values] for name, values in found.items()}
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{what}: columns differ in length: {', '.join(f'{n} {k}' for n, k in lengths.items())}")
    table = Table(what, found, list(range(max(lengths.values(), default=0))), dict(columns or {}))
    for ours in table.names:
        table.column(ours)
    if not len(table):
        raise UserError(f"{what} has no runs")
    return table


def _columns(rows: Sequence[dict]) -> dict[str, list]:
    """The columns of rows, None where a row has no such value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {str(name): [row.get(name) for row in rows] for name in names}


def _read_file(path: str, names: dict[str, str]) -> Table:
    ending = os.path.splitext(path)[1].lower()
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if ending not in readers:
        raise UserError(
            f"{path}: the ending says which format it is, found {ending or 'none'!r}, expected .csv, .jsonl or .parquet"
        )
    try:
        table = readers[ending](path)
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: is not UTF-8 text (byte {e.start})") from e
    if not len(table):
        raise UserError(f"{path}: has no runs")
    for ours, theirs in names.items():
        if theirs not in table.columns:
            raise UserError(
                f"--columns={ours}:{theirs}: {path} has no column {theirs}; columns found: {', '.join(table.columns)}"
            )
    return dataclasses.replace(table, names=names)


def _read_csv(path: str) -> Table:
    lines, rows = [], []
    with open(path, newline="", encoding="utf-8-sig") as f:
        reader = csv.reader(f, strict=True)
        try:
            header = [name.strip() for name in next(reader, ())]
            if not header:
                raise UserError(f"{path}, row 1: expected a header of column names, found nothing")
            _check_names(f"{path}, row 1", header)
            for line in filter(None, reader):
                if len(line) != len(header):
                    raise UserError(
                        f"{path}, row {reader.line_num}: found {len(line)} values, expected {len(header)} "
                        f"(columns {', '.join(header)})"
                    )
                lines.append(line)
                rows.append(reader.line_num)
        except csv.Error as e:
            raise UserError(f"{path}, row {reader.line_num}: is not CSV: {e}") from e
    return Table(path, {name: [line[i].strip() for line in lines] for i, name in enumerate(header)}, rows)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def _read_jsonl(path: str) -> Table:
    records, rows = [], []
    with open(path, encoding="utf-8-sig") as f:
        for row, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=_unique_keys)
            except (ValueError, RecursionError) as e:
                raise UserError(f"{path}, row {row}: is not a JSON object: {e}") from e
            if not isinstance(record, dict):
                raise UserError(f"{path}, row {row}: found {shown(record)}, expected a JSON object")
            records.append(record)
            rows.append(row)
    columns = _columns(records)
    _check_names(path, columns)
    return Table(path, columns, rows)


def _check_names(where: str, names: Iterable[str]) -> None:
    """UserError where two columns have one name, or a name is no text that can be printed: errors list the names."""
    seen = set()
    for name in names:
        if not is_printable(name):
            raise UserError(f"{where}: the name of column {shown(name)} holds a control character")
        if name in seen:
            raise UserError(f"{where}: column {name or '(no name)'} stands there twice")
        seen.add(name)


def _read_parquet(path: str) -> Table:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_size(path, file.metadata)
        table = file.read()
    except pyarrow.ArrowException as e:
        raise UserError(f"{path}: is not Parquet: {str(e).splitlines()[0]}") from e
    names = table.column_names
    _check_names(path, names)
    columns = {name: _values(column, pyarrow) for name, column in zip(names, table.columns, strict=True)}
    return Table(path, columns, list(range(1, table.num_rows + 1)), arrow=table)


def _check_size(path: str, found: pyarrow.parquet.FileMetaData) -> None:
    """UserError where a Parquet file holds more than a table of runs can: a few megabytes may hold 300 million rows."""
    n_bytes = sum(found.row_group(i).total_byte_size for i in range(found.num_row_groups))
    if found.num_rows > MOST_ROWS or n_bytes > MOST_BYTES:
        raise UserError(
            f"{path}: holds {found.num_rows:,} rows and {n_bytes / 1e9:.1f} GB unpacked; a table of runs has at most "
            f"{MOST_ROWS:,} rows and {MOST_BYTES / 1e9:g} GB"
        )


def _values(column: pyarrow.ChunkedArray, pyarrow: ModuleType) -> list:
    """A Parquet column as Python values; times as text, for not every time that Parquet holds is one of Python's."""
    if not pyarrow.types.is_temporal(column.type):
        return column.to_pylist()
    try:
        return column.cast(pyarrow.string()).to_pylist()
    except pyarrow.ArrowException:  # durations, or a time zone that this machine does not know
        return [None if v is None else f"{v} {column.type}" for v in column.cast(pyarrow.int64()).to_pylist()]


def plain(value: object) -> object:
    """A value as JSON and CSV can hold it: NaN is None; bytes and all other types are text."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def write(table: Table, path: str) -> None:
    """Writes a table in the format that the ending of `path` says; UserError if that cannot be done."""
    ending = os.path.splitext(path)[1].lower()
    if ending == ".parquet":
        import pyarrow.parquet

        read = {} if table.arrow is None else dict(zip(table.arrow.column_names, table.arrow.columns, strict=True))
        columns = {name: read[name] if name in read else _arrow(name, table, pyarrow) for name in table.columns}
        with replacing(path) as temporary:
            pyarrow.parquet.write_table(pyarrow.table(columns), temporary)
        return
    if ending not in (".csv", ".jsonl"):
        raise UserError(f"--out={path}: found ending {ending or 'none'!r}, expected .csv, .jsonl or .parquet")
    rows = zip(*table.columns.values(), strict=True)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
        if ending == ".jsonl":
            f.writelines(json.dumps(plain(dict(zip(table.columns, row, strict=True)))) + "\n" for row in rows)
        else:
            writer = csv.writer(f)
            writer.writerow(table.columns)
            writer.writerows([v if type(v) in (str, float, int) else plain(v) for v in row] for row in rows)


def _arrow(name: str, table: Table, pyarrow: ModuleType) -> pyarrow.Array:
    try:
        return pyarrow.array(table.columns[name])
    except (pyarrow.ArrowException, OverflowError) as e:
        kinds = sorted({type(v).__name__ for v in table.columns[name]})
        raise UserError(
            f"{table.path}, column {name}: Parquet cannot hold its values ({', '.join(kinds)}) in one column: write "
            f".csv or .jsonl instead ({str(e).splitlines()[0]})"
        ) from e
